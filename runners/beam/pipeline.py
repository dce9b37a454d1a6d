"""A `PipelineSpec` as transforms of Beam: its source's batches, changed by its transform, into its sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa

from headrace.connectors.base.capabilities import SingleCommit
from headrace.connectors.base.immediate import ImmediateSink
from headrace.connectors.base.outputs import DEFAULT_OUTPUT
from headrace.connectors.base.sink import TwoPhaseSink
from headrace.enumerator.errors import UsageError
from headrace.runners.beam.read import ReadFromSource
from headrace.runners.beam.write import WriteExactlyOnce, WriteImmediately
from headrace.runners.pipeline import PipelineSpec


class ExpandPipeline(beam.PTransform[Any, Any]):
    """See `Pipeline.expand_on_beam`."""

    def __init__(
        self,
        pipeline: PipelineSpec,
        *,
        start_from_savepoint: str | None = None,
        num_readers: int | None = None,
        num_shards: int | None = None,
    ) -> None:
        """Reads the savepoint, if there is one. Raises as `ReadFromSource` and `WriteExactlyOnce`."""
        super().__init__()
        source = pipeline.source.in_one_stage()
        self._read = ReadFromSource(
            source,
            output="arrow",
            discovery_interval_s=source.discovery_interval_s,
            publish=source.publishes,
            num_readers=num_readers,
            start_from_savepoint=start_from_savepoint,
        )
        self._pipeline = pipeline
        outputs = pipeline.outputs
        # A sole table, or at-least-once sink, refuses num_shards; of several outputs it is for those that have shards.
        self._writes = {
            name: _write(sink, None if isinstance(sink, SingleCommit | ImmediateSink) and not outputs.is_sole else num_shards)
            for name, sink in outputs.sinks.items()
        }

    def expand(self, pbegin: Any) -> Any:
        """Called by Beam. Raises UsageError for a runner or options with which a promise of the pipeline would be broken."""
        batches = pbegin | "Read" >> self._read
        transform = _Transform(self._pipeline)
        if DEFAULT_OUTPUT in self._writes:
            rows = batches | "Transform" >> beam.ParDo(transform).with_output_types(pa.RecordBatch)
            return rows | "Write" >> self._writes[DEFAULT_OUTPUT]
        tagged = batches | "Transform" >> beam.ParDo(transform).with_outputs(*self._writes)
        for name, write in self._writes.items():
            rows = tagged[name]
            rows.element_type = pa.RecordBatch
            _ = rows | f"Write {name}" >> write
        return beam.pvalue.PDone(pbegin.pipeline)


def _write(sink: TwoPhaseSink[Any], num_shards: int | None) -> beam.PTransform[Any, Any]:
    if not isinstance(sink, ImmediateSink):
        return WriteExactlyOnce(sink, num_shards)
    if num_shards is not None:
        raise UsageError(f"{type(sink).__name__} writes no transactions, and has no shards: leave their number out")
    return WriteImmediately(sink)


class _Transform(beam.DoFn):
    """The pipeline's transform."""

    def __init__(self, pipeline: PipelineSpec) -> None:
        self._pipeline = pipeline

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        for name, rows in self._pipeline.routed(element):
            if rows.num_rows:
                yield rows if name == DEFAULT_OUTPUT else beam.pvalue.TaggedOutput(name, rows)
