"""Connectors, and what they share: formats of keys and values, security. None knows an engine: `headrace.runners` runs them.

A source implements `headrace.enumerator.source.Source` (`kafka`, `beam`), a two-phase-commit sink implements
`sink.TwoPhaseSink` (`kafka`, `sql`, `files`, `tables`). `commit` is the order in which the epochs of all of them are
committed and recovered.
"""
