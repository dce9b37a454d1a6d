"""What a set of options of Spark's Kafka source means as a `KafkaSource`.

Names, defaults and meanings are those of Spark's own connector, so `kafka.isolation.level` is read_uncommitted by default,
where `headrace.kafka.KafkaSource` has read_committed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace.connectors.kafka.client.positions import At, Committed, Earliest, Latest, Timestamp
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.format.decode import ALL_COLUMNS, MAX_UNCOMPRESSED_BYTES
from headrace.connectors.kafka.read.discovery import Positions
from headrace.connectors.kafka.read.source import KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import UsageError
from headrace.enumerator.source import LogSource
from headrace.enumerator.split import OffsetSplitT
from headrace.runners.spark.log_read import Limits, LogRead, OffsetsFormat
from headrace.spark.jvm_checkpoint import JvmCheckpoint
from headrace.spark.kafka_formats import REGISTRY_PREFIX, read_formats
from headrace.spark.kafka_offsets import KafkaOffsets
from headrace.spark.kafka_options import SOURCE_OPTIONS, check_properties
from headrace.spark.options import check_for_batch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


class Mode(Enum):
    """The kind of query."""

    BATCH = "batch"
    STREAM = "streaming"


_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_STREAM_ONLY = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitOffsetsToGroup", "jvmCheckpoint"),
    "startingOffsetsOfNewPartitions",
)
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_STOPS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_BY_TIME = (*_STARTS[:2], *_STOPS[:2])


def kafka_read(options: Mapping[str, str], mode: Mode, wanted: StructType | None = None) -> LogRead[KafkaSplit]:
    """`wanted`: the columns asked for, where known. No I/O but a schema registry. Raises UsageError naming the option."""
    given, properties = _parsed(options)
    (_check_stream if mode is Mode.STREAM else _check_batch)(given)
    return _read(given, properties, mode, wanted)


def any_read(options: Mapping[str, str]) -> LogRead[KafkaSplit]:
    """What these options mean in whatever kind of query they fit. Raises UsageError if they fit none."""
    given, properties = _parsed(options)
    try:
        _check_stream(given)
    except UsageError:
        _check_batch(given)
        return _read(given, properties, Mode.BATCH, None)
    return _read(given, properties, Mode.STREAM, None)


def _parsed(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    given, properties = SOURCE_OPTIONS.parse(options)
    chosen = [name for name in _STRATEGIES if name in given]
    if len(chosen) != 1:
        how_many, verb = ("Only one", "can") if chosen else ("One", "must")
        raise UsageError(
            f"{how_many} of the following options {verb} be specified for Kafka source: "
            f"{', '.join(_STRATEGIES)}. See the docs for more details."
        )
    check_properties(properties, "consumer")
    _check_what_depends(given)
    return given, properties


def _read(given: Mapping[str, Any], properties: dict[str, str], mode: Mode, wanted: StructType | None) -> LogRead[KafkaSplit]:
    topics = None if "subscribePattern" in given else tuple(given["subscribe"] if "subscribe" in given else given["assign"])
    typed = read_formats(given, topics, wanted, given.get(REGISTRY_PREFIX, {}))
    start = _start(given, properties, mode)
    if "commitOffsetsToGroup" in given:  # the group to start from may be another: only this one is the client's then
        properties.pop("group.id", None)
    source = KafkaSource(
        properties.pop("bootstrap.servers"),
        topics=given.get("subscribe"),
        pattern=given.get("subscribePattern"),
        partitions=given.get("assign"),
        start=start,
        start_of_new_partitions=given.get("startingOffsetsOfNewPartitions", Earliest()),
        stop=next((given[name] for name in _STOPS if name in given), Latest()) if mode is Mode.BATCH else None,
        group=given.get("commitOffsetsToGroup"),
        isolation_level=properties.pop("isolation.level", Isolation.READ_UNCOMMITTED),
        properties=properties,
        fail_on_data_loss=given.get("failOnDataLoss", True),
        columns=(*ALL_COLUMNS, "headers"),
        value=typed.formats.get("value"),
        key=typed.formats.get("key"),
        on_bad_record=typed.on_bad,
        no_match=given.get("startingOffsetsByTimestampStrategy", "error"),
        bad_timestamps=given.get("badTimestamps", "error"),
        bad_batches=given.get("badBatches", "error"),
        max_uncompressed_batch_bytes=given.get("maxUncompressedBatchBytes", MAX_UNCOMPRESSED_BYTES),
    )
    bad = source.typed.bad_columns()
    source = source.with_columns((*source.columns, *bad))
    return kafka_log_read(source, (*ALL_COLUMNS, *(["headers"] if given.get("includeHeaders", False) else []), *bad), given)


def kafka_log_read(source: KafkaSource, columns: tuple[str, ...], given: Mapping[str, Any]) -> LogRead[KafkaSplit]:
    """How Spark reads this source: `given` are the options that do not describe it. Raises UsageError for limits at odds."""
    return log_read(source, KafkaOffsets(source), columns, given)


def log_read(
    source: LogSource[OffsetSplitT], offsets: OffsetsFormat[OffsetSplitT], columns: tuple[str, ...], given: Mapping[str, Any]
) -> LogRead[OffsetSplitT]:
    """As `kafka_log_read`, of any log."""
    location, least, most = map(given.get, ("jvmCheckpoint", "minOffsetsPerTrigger", "maxOffsetsPerTrigger"))
    if least is not None and most is not None and least > most:
        raise UsageError(f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most}).")
    return LogRead(
        source=source,
        offsets=offsets,
        columns=columns,
        limits=Limits(most, least, given.get("maxTriggerDelay", 900.0)),
        min_tasks=given.get("minPartitions"),
        max_task_offsets=given.get("maxRecordsPerPartition"),
        poll_timeout_s=given.get("kafkaConsumer.pollTimeoutMs", 120_000) / 1000,
        predecessor=None if location is None else JvmCheckpoint(location),
        savepoint=given.get("startFromSavepoint"),
    )


def _check_what_depends(given: Mapping[str, Any]) -> None:
    """Of the options that mean something with another one only, Spark's own is skipped, as Spark does; ours is refused."""
    if "startingOffsetsByTimestampStrategy" in given and not any(name in given for name in _BY_TIME):
        log.warning("option 'startingOffsetsByTimestampStrategy' means nothing without a timestamp, and is ignored")
    if "startingOffsetsWithoutCommit" in given and given.get("startingOffsets") != Committed():
        raise UsageError("option 'startingOffsetsWithoutCommit' means nothing without startingOffsets=group")
    if "startFromSavepoint" in given:
        others = [name for name in (*_STARTS, "jvmCheckpoint") if name in given]
        if others:
            raise UsageError(f"options 'startFromSavepoint' and '{others[0]}' both say where the query starts: give one")


def _check_stream(given: Mapping[str, Any]) -> None:
    if "endingOffsets" in given:
        raise UsageError("ending offset not valid in streaming queries")
    if "endingOffsetsByTimestamp" in given or "endingTimestamp" in given:
        raise UsageError("ending timestamp not valid in streaming queries")


def _check_batch(given: Mapping[str, Any]) -> None:
    check_for_batch(given, _STREAM_ONLY)
    starts = None if any(name in given for name in _STARTS[:2]) else given.get("startingOffsets")
    ends = None if any(name in given for name in _STOPS[:2]) else given.get("endingOffsets")
    if starts == Latest():
        raise UsageError("starting offset can't be latest for batch queries on Kafka")
    if ends == Earliest():
        raise UsageError("ending offset can't be earliest for batch queries on Kafka")
    for (topic, partition), position in starts.items() if isinstance(starts, Mapping) else ():
        if position == Latest():
            raise UsageError(f"startingOffsets for {topic}-{partition} can't be latest for batch queries on Kafka")
    for (topic, partition), position in ends.items() if isinstance(ends, Mapping) else ():
        if position == Earliest():
            raise UsageError(f"ending offset for {topic}-{partition} can't be earliest for batch queries on Kafka")
    _check_range(starts, ends, "offset")
    _check_range(given.get("startingOffsetsByTimestamp"), given.get("endingOffsetsByTimestamp"), "timestamp")
    low, high = _number(given.get("startingTimestamp")), _number(given.get("endingTimestamp"))
    if low is not None and high is not None and low > high:
        raise UsageError(f"startingTimestamp {low} is greater than endingTimestamp {high}")


def _check_range(starts: object, ends: object, what: str) -> None:
    if not isinstance(starts, Mapping) or not isinstance(ends, Mapping):
        return
    if starts.keys() != ends.keys():
        only = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(starts.keys() ^ ends.keys()))
        raise UsageError(f"the starting and the ending {what}s must name the same partitions: {only} is in one only")
    for (topic, partition), start in starts.items():
        low, high = _number(start), _number(ends[topic, partition])
        if low is not None and high is not None and low > high:
            raise UsageError(f"the starting {what} {low} of {topic}-{partition} is greater than its ending {what} {high}")


def _number(position: object) -> int | None:
    match position:
        case At(offset):
            return offset
        case Timestamp(ms):
            return ms
        case _:
            return None


def _start(given: Mapping[str, Any], properties: Mapping[str, str], mode: Mode) -> Positions:
    default = Latest() if mode is Mode.STREAM else Earliest()
    start: Positions = next((given[name] for name in _STARTS if name in given), default)
    if start != Committed():
        return start
    group = properties.get("group.id") or given.get("commitOffsetsToGroup")
    if group is None:
        raise UsageError("startingOffsets=group needs the group: set kafka.group.id, or commitOffsetsToGroup")
    return Committed(group, given.get("startingOffsetsWithoutCommit", Earliest()))
