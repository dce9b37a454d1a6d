"""A `Pipeline` as a streaming query: what of it Spark can do, and the options that only a query has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.connectors.base.outputs import known_outputs
from headrace.connectors.kafka.read.source import KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import UsageError
from headrace.enumerator.source import Boundedness, Source
from headrace.runners.pipeline import PipelineSpec
from headrace.runners.spark.log_read import LogRead
from headrace.runners.spark.pipeline import PipelineQuery
from headrace.runners.spark.version import require_pyspark
from headrace.spark.kafka_options import SOURCE_OPTIONS
from headrace.spark.kafka_read import log_read
from headrace.spark.options import OptionTable

_OF_QUERIES = (
    *("startFromSavepoint", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("maxRecordsPerPartition", "minPartitions", "kafkaConsumer.pollTimeoutMs"),
)

QUERY_OPTIONS = OptionTable(
    [option for option in SOURCE_OPTIONS if option.name in _OF_QUERIES],
    "a pipeline's query",
    "a pipeline's query",
    nothing_alike=f"there are: {', '.join(_OF_QUERIES)}; everything else is said by the pipeline's source and sink",
)
"""What `Pipeline.start_on_spark` takes alongside what the source says."""


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
    given, _ = QUERY_OPTIONS.parse({name: _text(value) for name, value in options.items()})
    return PipelineQuery(_read(pipeline.source, given), pipeline.sink, pipeline.transformed, checkpoint, name, trigger)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(source: Source[Any], given: Mapping[str, Any]) -> LogRead[KafkaSplit]:
    if not isinstance(source, KafkaSource):
        raise UsageError(
            f"source {source.name!r} cannot be a streaming query of Spark, only Kafka can; headrace.spark.read_source makes a "
            "frame of a source that has an end"
        )
    if source.boundedness is not Boundedness.UNBOUNDED:
        raise UsageError(
            "stop cannot be carried over: a streaming query has no end. Leave it out; trigger={'availableNow': True} ends the "
            "query when all is read that was there when it started"
        )
    if source.discovery_interval_s is None:
        raise UsageError(
            "discovery_interval_s=None cannot be carried over: Spark looks for new partitions whenever it plans a batch"
        )
    return log_read(source, tuple(source.schema.names), given)
