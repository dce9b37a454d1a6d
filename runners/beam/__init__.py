"""Runs any source, and any two-phase-commit sink, as a transform of a Beam pipeline. No connector is known here.

`ReadFromSource` is in `headrace.runners.beam.read`; users take it from `headrace.beam`.
"""
