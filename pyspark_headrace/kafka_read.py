"""The options of Spark's Kafka source, and ours, as one table; and what a set of them means as a `KafkaSource`.

Names, defaults and meanings are those of Spark's own connector, so `kafka.isolation.level` is read_uncommitted by default,
where `headrace.kafka.KafkaSource` has read_committed. Case is ignored. An option nobody knows is refused.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from headrace.connectors.kafka.client.positions import At, Committed, Earliest, Latest, Position, Timestamp
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.format.decode import ALL_COLUMNS
from headrace.connectors.kafka.read.discovery import NoMatch, Positions
from headrace.connectors.kafka.read.pushdown import KafkaPruner
from headrace.connectors.kafka.read.source import KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import UsageError
from headrace.runners.spark.log_read import Limits, LogRead
from pyspark_headrace.jvm_checkpoint import JvmCheckpoint
from pyspark_headrace.kafka_offsets import KafkaOffsets
from pyspark_headrace.kafka_properties import check_properties
from pyspark_headrace.options import Option, OptionTable, boolean, integer, text

log = logging.getLogger(__name__)

__all__ = ["OPTIONS", "Mode", "any_read", "kafka_read"]


class Mode(Enum):
    """The kind of query."""

    BATCH = "batch"
    STREAM = "streaming"


# --- reading the text of one option -----------------------------------------------------------------------------------

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(option: Option, value: str) -> float:
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", value.lower())
    if match is None or (match[2] or "ms") not in _SECONDS:
        raise option.refuse(value, "a time such as 500ms, 30s, 15m, 1h (a bare number is milliseconds)")
    return int(match[1]) * _SECONDS[match[2] or "ms"]


def _names(option: Option, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise UsageError(f"No topics to subscribe to as specified value for option '{option.name}' is '{value}'")
    return names


def _pattern(option: Option, value: str) -> str:
    if not value.strip():
        raise UsageError(f"Pattern to subscribe is empty as specified value for option '{option.name}' is '{value}'")
    return value.strip()


def _json(option: Option, value: str, example: str) -> Mapping[str, Any]:
    try:
        document = json.loads(value)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise option.refuse(value, f"JSON like {example}")
    return document


def _partitions(option: Option, value: str) -> Mapping[str, tuple[int, ...]]:
    if not value.strip().startswith("{"):
        raise UsageError(f"No topicpartitions to assign as specified value for option '{option.name}' is '{value}'")
    example = '{"topicA":[0,1],"topicB":[2,4]}'
    try:
        return {topic: tuple(int(number) for number in numbers) for topic, numbers in _json(option, value, example).items()}
    except (TypeError, ValueError):
        raise option.refuse(value, f"JSON like {example}") from None


def _each(option: Option, value: str, example: str, position: Callable[[int], Position]) -> Positions:
    try:
        return {
            (topic, int(partition)): position(int(number))
            for topic, partitions in _json(option, value, example).items()
            for partition, number in partitions.items()
        }
    except UsageError:
        raise
    except (AttributeError, TypeError, ValueError):
        raise option.refuse(value, f"JSON like {example}") from None


_BY_NUMBER: Mapping[int, Position] = {-2: Earliest(), -1: Latest()}
_BY_NAME: Mapping[str, Position] = {"earliest": Earliest(), "latest": Latest(), "group": Committed()}


def _offsets(option: Option, value: str) -> Positions:
    word = value.strip().lower()
    if word in _BY_NAME and not (word == "group" and option.name != "startingOffsets"):
        return _BY_NAME[word]
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}} (-1 is latest, -2 is earliest)'
    if not word.startswith("{"):
        words = "earliest, latest, group" if option.name == "startingOffsets" else "latest"
        raise option.refuse(value, f"{words}, or JSON like {example}")
    return _each(option, value, example, lambda number: _BY_NUMBER[number] if number in _BY_NUMBER else At(number))


def _timestamp(_option: Option, value: str) -> Position:
    try:
        return Timestamp(int(value))
    except ValueError:
        raise UsageError(f"Expected a single long value, got {value.strip()}") from None


def _timestamps(option: Option, value: str) -> Positions:
    return _each(option, value, '{"topicA":{"0":1000,"1":1000},"topicB":{"0":2000}}', Timestamp)


def _end_word(option: Option, value: str) -> Position:
    word = value.strip().lower()
    if word not in ("earliest", "latest"):
        raise option.refuse(value, "earliest or latest")
    return _BY_NAME[word]


def _no_match(option: Option, value: str) -> NoMatch:
    match value.strip().lower():
        case "error":
            return "error"
        case "latest":
            return "latest"
        case _:
            raise option.refuse(value, "error or latest")


# --- the table --------------------------------------------------------------------------------------------------------

_TABLE: tuple[Option, ...] = (
    Option("subscribe", _names, "topics to read, separated by commas"),
    Option("subscribePattern", _pattern, "regular expression (Java's) for whole topic names"),
    Option("assign", _partitions, "exactly these partitions, as JSON"),
    Option("startingOffsets", _offsets, "start: earliest (batch default), latest (streaming default), group, or JSON"),
    Option("startingTimestamp", _timestamp, "start at this time, in ms since 1970 UTC. Overrides startingOffsetsByTimestamp"),
    Option("startingOffsetsByTimestamp", _timestamps, "start at these times, as JSON. Overrides startingOffsets"),
    Option("startingOffsetsByTimestampStrategy", _no_match, "no record that late: error (default), or latest"),
    Option("startingOffsetsOfNewPartitions", _end_word, "ours: where partitions that appear later start. Default earliest"),
    Option("startingOffsetsWithoutCommit", _end_word, "ours: start of what the group has not committed. Default earliest"),
    Option("endingOffsets", _offsets, "batch: where to end, exclusively. Default latest"),
    Option("endingTimestamp", _timestamp, "batch: end at this time. Overrides endingOffsetsByTimestamp"),
    Option("endingOffsetsByTimestamp", _timestamps, "batch: end at these times. Overrides endingOffsets"),
    Option("failOnDataLoss", boolean, "fail when records are gone (default true), or warn and continue"),
    Option("includeHeaders", boolean, "add the column headers. Default false"),
    Option("maxOffsetsPerTrigger", integer(1), "streaming: most offsets in a batch, divided among the partitions"),
    Option("minOffsetsPerTrigger", integer(1), "streaming: wait for this many offsets, or for maxTriggerDelay"),
    Option("maxTriggerDelay", _duration, "streaming: longest wait for minOffsetsPerTrigger. Default 15m"),
    Option("maxRecordsPerPartition", integer(1), "most offsets in one Spark task"),
    Option("minPartitions", integer(1), "about this many Spark tasks: large ranges are split"),
    Option("kafkaConsumer.pollTimeoutMs", integer(1), "a task that receives nothing for this time fails. Default 120000"),
    Option("commitOffsetsToGroup", text, "ours, streaming: commit offsets to this group as batches complete"),
    Option("jvmCheckpoint", text, "ours: path of the JVM connector's checkpoint, if that query was killed in its first batch"),
    Option("fetchOffset.numRetries", integer(0), "accepted, not needed: see kafka.default.api.timeout.ms"),
    Option("fetchOffset.retryIntervalMs", integer(0), "accepted, not needed: see kafka.retry.backoff.ms"),
    Option("groupIdPrefix", text, "accepted, not needed: no consumer group is joined"),
)


def _sink_options() -> OptionTable:
    from pyspark_headrace.kafka_write import OPTIONS as SINK_OPTIONS

    return SINK_OPTIONS


OPTIONS = OptionTable(
    "headrace",
    "headrace's source",
    _TABLE,
    prefix="kafka.",
    ignored=frozenset({"path"}),
    other_side=_sink_options,
    nothing_alike=f"there are: {', '.join(option.name for option in _TABLE)}, kafka.*",
)
"""Every option of the source; `kafka.*` are the client's properties."""

_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitOffsetsToGroup")


# --- the whole --------------------------------------------------------------------------------------------------------


def kafka_read(options: Mapping[str, str], mode: Mode) -> LogRead[KafkaSplit]:
    """What these options of a Spark query mean. Contacts nobody. Raises UsageError naming the option at fault."""
    given, properties = OPTIONS.parse(options)
    chosen = [name for name in _STRATEGIES if name in given]
    if len(chosen) != 1:
        how_many = "Only one" if chosen else "One"
        verb = "can" if chosen else "must"
        raise UsageError(
            f"{how_many} of the following options {verb} be specified for Kafka source: "
            f"{', '.join(_STRATEGIES)}. See the docs for more details."
        )
    check_properties(properties, "consumer")
    if mode is Mode.STREAM:
        _check_stream(given)
    else:
        _check_batch(given)
    source = KafkaSource(
        properties.pop("bootstrap.servers"),
        topics=given.get("subscribe"),
        pattern=given.get("subscribePattern"),
        partitions=given.get("assign"),
        start=_start(given, properties, mode),
        start_of_new_partitions=given.get("startingOffsetsOfNewPartitions", Earliest()),
        stop=_stop(given) if mode is Mode.BATCH else None,
        group=given.get("commitOffsetsToGroup"),
        isolation_level=properties.pop("isolation.level", Isolation.READ_UNCOMMITTED),
        properties=_without_group(given, properties),
        fail_on_data_loss=given.get("failOnDataLoss", True),
        columns=(*ALL_COLUMNS, "headers"),
        no_match=given.get("startingOffsetsByTimestampStrategy", "error"),
    )
    location = given.get("jvmCheckpoint")
    return LogRead(
        source=source,
        offsets=KafkaOffsets(source),
        columns=(*ALL_COLUMNS, "headers") if given.get("includeHeaders", False) else ALL_COLUMNS,
        limits=_limits(given),
        min_tasks=given.get("minPartitions"),
        max_task_offsets=given.get("maxRecordsPerPartition"),
        poll_timeout_s=given.get("kafkaConsumer.pollTimeoutMs", 120_000) / 1000,
        pruner=KafkaPruner(source),
        predecessor=None if location is None else JvmCheckpoint(location),
    )


def any_read(options: Mapping[str, str]) -> LogRead[KafkaSplit]:
    """What these options mean in whatever kind of query they fit. Raises UsageError if they fit none."""
    try:
        return kafka_read(options, Mode.STREAM)
    except UsageError:
        return kafka_read(options, Mode.BATCH)


def _check_stream(given: Mapping[str, Any]) -> None:
    if "endingOffsets" in given:
        raise UsageError("ending offset not valid in streaming queries")
    if "endingOffsetsByTimestamp" in given or "endingTimestamp" in given:
        raise UsageError("ending timestamp not valid in streaming queries")


def _check_batch(given: Mapping[str, Any]) -> None:
    starts, ends = given.get("startingOffsets"), given.get("endingOffsets")
    if "startingTimestamp" in given or "startingOffsetsByTimestamp" in given:
        starts = None
    if "endingTimestamp" in given or "endingOffsetsByTimestamp" in given:
        ends = None
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
    for name in _STREAM_ONLY:
        if name in given:
            log.warning("%s option ignored in batch queries", name)


def _check_range(starts: object, ends: object, what: str) -> None:
    if not isinstance(starts, Mapping) or not isinstance(ends, Mapping):
        return
    if starts.keys() != ends.keys():
        raise UsageError(f"the starting and the ending {what}s must name the same partitions: {_only(starts, ends)}")
    for (topic, partition), start in starts.items():
        low, high = _number(start), _number(ends[topic, partition])
        if low is not None and high is not None and low > high:
            raise UsageError(f"the starting {what} {low} of {topic}-{partition} is greater than its ending {what} {high}")


def _only(starts: Mapping[Any, Any], ends: Mapping[Any, Any]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(starts.keys() ^ ends.keys())) + " is in one only"


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
    names = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    start: Positions = next((given[name] for name in names if name in given), default)
    if start != Committed():
        return start
    group = properties.get("group.id") or given.get("commitOffsetsToGroup")
    if group is None:
        raise UsageError("startingOffsets=group needs the group: set kafka.group.id, or commitOffsetsToGroup")
    return Committed(group, given.get("startingOffsetsWithoutCommit", Earliest()))


def _limits(given: Mapping[str, Any]) -> Limits:
    least, most = given.get("minOffsetsPerTrigger"), given.get("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise UsageError(f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most}).")
    return Limits(most, least, given.get("maxTriggerDelay", 900.0))


def _stop(given: Mapping[str, Any]) -> Positions:
    names = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    stop: Positions = next((given[name] for name in names if name in given), Latest())
    return stop


def _without_group(given: Mapping[str, Any], properties: Mapping[str, str]) -> dict[str, str]:
    """The group to start from may be another than the one to commit to; only the latter is the client's then."""
    return {name: value for name, value in properties.items() if name != "group.id" or "commitOffsetsToGroup" not in given}
