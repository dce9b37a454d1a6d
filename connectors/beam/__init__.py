"""Beam's bounded sources, outside of Beam: any `apache_beam.io.iobase.BoundedSource` as a Source. Needs `headrace[beam]`.

A package of three modules because a connector is a folder.

from headrace.connectors.beam import BeamSource

source = BeamSource(beam.io.ReadFromText("/data/*.txt"))
"""

from headrace.connectors.beam.source import BeamSource, bounded_source, schema_of
from headrace.connectors.beam.split import BundleSplit, BundleSplitSerializer

__all__ = ["BeamSource", "BundleSplit", "BundleSplitSerializer", "bounded_source", "schema_of"]
