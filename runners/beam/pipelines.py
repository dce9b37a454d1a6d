"""A pipeline as transforms of Beam: its source's batches, changed by its transform, into its sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import pyarrow as pa

from headrace.connectors.sink import ImmediateSink
from headrace.runners.beam.read import ReadFromSource
from headrace.runners.beam.write import WriteExactlyOnce, WriteImmediately

if TYPE_CHECKING:
    from headrace.runners.local.pipeline import Pipeline

__all__ = ["ExpandPipeline"]


class ExpandPipeline(beam.PTransform[Any, Any]):
    """See `Pipeline.expand_on_beam`."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        start_from_savepoint: str | None = None,
        num_readers: int | None = None,
        num_shards: int | None = None,
    ) -> None:
        """Contacts nobody; reads the savepoint, if there is one. Raises as `ReadFromSource` and `WriteExactlyOnce`."""
        super().__init__()
        source, sink = pipeline.source, pipeline.sink
        self._read = ReadFromSource(
            source,
            output="arrow",
            discovery_interval_s=source.discovery_interval_s,
            publish=source.publishes,
            num_readers=num_readers,
            start_from_savepoint=start_from_savepoint,
        )
        self._transform = beam.ParDo(_Transform(pipeline)).with_output_types(pa.RecordBatch)
        self._write: beam.PTransform[Any, Any]
        if isinstance(sink, ImmediateSink):
            self._write = WriteImmediately(sink)
        else:
            self._write = WriteExactlyOnce(sink, num_shards)

    def expand(self, pbegin: Any) -> Any:
        """Called by Beam. Raises UsageError for a runner or options with which a promise of the pipeline would be broken."""
        return pbegin | "Read" >> self._read | "Transform" >> self._transform | "Write" >> self._write


class _Transform(beam.DoFn):
    """The pipeline's transform."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def process(self, element: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return (rows for rows in self._pipeline.transformed(element) if rows.num_rows)
