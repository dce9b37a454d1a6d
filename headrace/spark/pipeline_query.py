"""A `Pipeline` as a streaming query: what of it Spark can do, and the options that only a query has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.connectors.base.outputs import known_outputs
from headrace.enumerator.errors import UsageError
from headrace.runners.pipeline import PipelineSpec
from headrace.runners.spark.pipeline import PipelineQuery
from headrace.runners.spark.version import require_pyspark
from headrace.spark.any_stream import stream_read


def pipeline_query(
    pipeline: PipelineSpec, checkpoint: str, name: str | None, trigger: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> PipelineQuery:
    """The pipeline as a query. Does no I/O. Raises UsageError naming what Spark cannot carry over, or the option at fault."""
    require_pyspark()
    if isinstance(pipeline.sink, Mapping):
        raise UsageError(
            f"several sinks cannot be carried over: a streaming query has one; {known_outputs(pipeline.sink)}. Start one query "
            "for each output, such as pipeline.only('good').start_on_spark(...), each with its own checkpointLocation"
        )
    if not isinstance(checkpoint, str) or not checkpoint.strip():
        raise UsageError(f"checkpointLocation must be a folder's path or URL, not {checkpoint!r}")
    if trigger is not None and not isinstance(trigger, Mapping):
        raise UsageError(f"trigger must be a mapping, such as {{'availableNow': True}}, not {trigger!r}")
    read = stream_read(pipeline.source, checkpoint, options)
    return PipelineQuery(read, pipeline.sink, pipeline.transformed, checkpoint, name, trigger)
