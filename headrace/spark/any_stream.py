"""Any source as a streaming frame of Spark: `read_stream`, and what a pipeline's query reads.

How Spark can plan a source depends on its splits. A log's are ranges of offsets, whose ends the driver asks for. Others are
read whole where they have an end (`Source.finite_splits`), and else as far as each task gets, which it records.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.connectors.kafka.read.source import KafkaSource
from headrace.enumerator.errors import UsageError
from headrace.enumerator.source import Boundedness, LogSource, Source, StagedSource, check_needs_no_ends
from headrace.runners.restarts import duration_s
from headrace.runners.spark.log_offsets import SplitOffsets
from headrace.runners.spark.log_read import LogRead
from headrace.runners.spark.pipeline import StreamRead, read_frame
from headrace.runners.spark.split_stream import SplitRead, checkpoint_of
from headrace.runners.spark.split_tasks import TaskLimits
from headrace.runners.spark.staged import StagedRead
from headrace.runners.spark.version import require_pyspark
from headrace.spark.kafka_options import SOURCE_OPTIONS
from headrace.spark.kafka_read import kafka_log_read, log_read
from headrace.spark.options import Option, OptionTable, integer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OF_LOGS = (
    *("startFromSavepoint", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("maxRecordsPerPartition", "minPartitions"),
)
_OF_KAFKA = (*_OF_LOGS, "kafkaConsumer.pollTimeoutMs")
_MAX_BYTES = Option("maxBytesPerTrigger", integer(1), "about this many bytes in a batch")


def _table(shared: Sequence[str], *own: Option) -> OptionTable:
    options = [*(option for option in SOURCE_OPTIONS if option.name in shared), *own]
    names = ", ".join(option.name for option in options)
    whose = "a streaming query of this source"
    return OptionTable(options, whose, whose, nothing_alike=f"there are: {names}; everything else is said by the source itself")


KAFKA_OPTIONS, LOG_OPTIONS = _table(_OF_KAFKA), _table(_OF_LOGS)
FINITE_OPTIONS = _table(
    ["startFromSavepoint"], Option("maxSplitsPerTrigger", integer(1), "most splits in a batch, such as files"), _MAX_BYTES
)
OPEN_OPTIONS = _table(
    ["startFromSavepoint"],
    Option("maxRecordsPerTrigger", integer(1), "about this many records in a batch, divided among its tasks"),
    _MAX_BYTES,
    Option(
        "maxTriggerDuration",
        lambda option, value: duration_s(f"option '{option.name}'", value),
        "the longest that a task of a batch waits and reads, but for a first record that takes longer",
    ),
)

_SPLIT_OPTIONS = {option.name: option for table in (FINITE_OPTIONS, OPEN_OPTIONS) for option in table}
SPLIT_LIMITS = tuple(option for name, option in _SPLIT_OPTIONS.items() if name != "startFromSavepoint")
"""What bounds a batch of splits, of either kind."""
STAGED_OPTIONS = _table([name for name in _OF_KAFKA if name != "startFromSavepoint"], *SPLIT_LIMITS)


def read_stream(
    spark: SparkSession,
    source: Source[Any],
    *,
    checkpointLocation: str | None = None,  # noqa: N803 - Spark's name
    **options: object,
) -> DataFrame:
    """A streaming frame of any source, with its columns; exactly once with headrace's sinks. Call it in the driver.

    `checkpointLocation`: the query's own, as given to `writeStream`. It is needed unless the source is a `LogSource` or has
    `finite_splits` that are `repeatable`: tasks record there how far they have read, and keep what would not be given again. A
    task of such splits keeps what it reads in memory until then.

    `options` bound a batch. Of a log: those of `Pipeline.start_on_spark`. Of finite splits, such as files:
    `maxSplitsPerTrigger` (1000) and `maxBytesPerTrigger`. Of others: `maxRecordsPerTrigger` (1000000), `maxBytesPerTrigger`
    (256 MiB) and `maxTriggerDuration` (10s). Of all but a `Hybrid`, whose stages take their own: `startFromSavepoint`. New
    splits are looked for every `Source.discovery_interval_s`, without one when the query starts. A query of splits without an
    end that is started with `availableNow` ends when nothing comes for `maxTriggerDuration` and no reader is behind
    (`SplitBatch.is_behind`). Rows of such splits that no task of a batch has computed, as `foreachBatch` did not use its frame,
    come again.

    Raises UsageError, which names it, for an option, a type of a column that Spark does not have, or a source that cannot be
    pickled.
    """
    require_pyspark()
    if not isinstance(source, Source):
        raise UsageError(f"read_stream needs a headrace Source, not {type(source).__name__}")
    return read_frame(spark, stream_read(source, checkpointLocation, options))


def stream_read(source: Source[Any], checkpoint: str | None, options: Mapping[str, object]) -> StreamRead:
    """How Spark reads it. Does no I/O. Raises UsageError naming the option at fault."""
    written = {name: _text(value) for name, value in options.items()}
    if isinstance(source, StagedSource):
        return _staged_read(source, checkpoint, written)
    check_needs_no_ends(source, "Spark")
    return _read_of(source, checkpoint, written)


def _staged_read(source: StagedSource[Any], checkpoint: str | None, written: Mapping[str, str]) -> StagedRead:
    """Each stage takes the options that are of its kind. Those that are known when the query starts are checked then."""
    STAGED_OPTIONS.parse(written)
    for number, stage in source.known_stages().items():
        if isinstance(stage, LogSource) and number < source.last_stage:
            raise UsageError(
                f"stage {number}, source {stage.name!r}, is a log: a streaming query of one has no end, so on Spark it can "
                "only be the last"
            )
        _read_of_stage(checkpoint, written, stage)
    return StagedRead(source=source, read_of=functools.partial(_read_of_stage, checkpoint, dict(written)))


def _read_of_stage(checkpoint: str | None, written: Mapping[str, str], source: Source[Any]) -> LogRead[Any] | SplitRead[Any]:
    known = {option.name.lower() for option in _options_of(source)}
    return _read_of(source, checkpoint, {name: value for name, value in written.items() if name.lower() in known})


def _options_of(source: Source[Any]) -> OptionTable:
    match source:
        case KafkaSource():
            return KAFKA_OPTIONS
        case LogSource():
            return LOG_OPTIONS
        case _:
            return FINITE_OPTIONS if source.finite_splits else OPEN_OPTIONS


def _read_of(source: Source[Any], checkpoint: str | None, written: Mapping[str, str]) -> LogRead[Any] | SplitRead[Any]:
    given, _ = _options_of(source).parse(written)
    match source:
        case KafkaSource():
            _check_kafka(source)
            return kafka_log_read(source, tuple(source.schema.names), given)
        case LogSource():
            _check_endless(source)
            return log_read(source, SplitOffsets(source), tuple(source.schema.names), given)
        case _:
            return _split_read(source, checkpoint, given)


def _split_read(source: Source[Any], checkpoint: str | None, given: Mapping[str, Any]) -> SplitRead[Any]:
    default = TaskLimits()
    limits = TaskLimits(
        given.get("maxRecordsPerTrigger", default.records),
        given.get("maxBytesPerTrigger", default.size_bytes),
        given.get("maxTriggerDuration", default.seconds),
    )
    read = SplitRead(
        source=source,
        checkpoint=checkpoint,
        most_splits=given.get("maxSplitsPerTrigger", SplitRead.most_splits),
        most_bytes=given.get("maxBytesPerTrigger"),
        limits=limits,
        savepoint=given.get("startFromSavepoint"),
    )
    if read.records_ends:
        checkpoint_of(read)
    return read


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_endless(source: Source[Any]) -> None:
    if source.boundedness is not Boundedness.UNBOUNDED:
        raise UsageError(
            "stop cannot be carried over: a streaming query of a log has no end. Leave it out; trigger={'availableNow': True} "
            "ends the query when all is read that was there when it started"
        )


def _check_kafka(source: KafkaSource) -> None:
    _check_endless(source)
    if source.discovery_interval_s is None:
        raise UsageError(
            "discovery_interval_s=None cannot be carried over: Spark looks for new partitions whenever it plans a batch"
        )
