"""The options of Spark's Kafka source and sink, and ours, as two tables: how the text of each is read, and what it means.

Names, defaults and meanings are those of Spark's own connector. Case is ignored. An option that no one knows is refused; one
that means something in the other direction only is skipped with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Literal, TypeGuard

from headrace.connectors.formats.by_name import FormatSpec
from headrace.connectors.formats.registry.schemas import SchemaReference
from headrace.connectors.kafka.client.positions import At, Committed, Earliest, Latest, Position, Timestamp
from headrace.connectors.kafka.client.topology import TopicPartition
from headrace.connectors.kafka.read.discovery import Positions, java_pattern
from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC, DEFAULT_PREFIX
from headrace.enumerator.errors import UsageError
from headrace.runners.restarts import duration_s
from headrace.spark.kafka_formats import FIELDS, RECORD_FORMATS, REGISTRY_PREFIX, BadRecord, RecursiveField
from headrace.spark.options import (
    REPEATED_WRITE,
    Option,
    OptionTable,
    as_json,
    boolean,
    choice,
    integer,
    one_of,
    text,
    verbatim,
)
from headrace.spark.time_zone import zone


class Delivery(StrEnum):
    """What a reader of the output, under read_committed, sees of each row after failures."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


# --- reading the text of one option -----------------------------------------------------------------------------------

_MOST_DIGITS = len(str(2**63))


def _names(option: Option, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise UsageError(f"No topics to subscribe to as specified value for option '{option.name}' is '{value}'")
    return names


def _pattern(option: Option, value: str) -> str:
    if not value.strip():
        raise UsageError(f"Pattern to subscribe is empty as specified value for option '{option.name}' is '{value}'")
    return _found_within(value.strip())


_FLAGS = re.compile(r"(\(\?[a-zA-Z]+\))*")


def _found_within(regex: str) -> str:
    """A pattern of whole names that this one is found in: Spark's own connector looks for it anywhere (`findFirstIn`)."""
    python = java_pattern(regex).pattern
    flags = _FLAGS.match(python)
    start = flags.end() if flags else 0  # Python takes flags at the start only
    end = "\n" if "x" in python[:start] else ""  # of a comment
    return f"{python[:start]}.*(?:{python[start:]}{end}).*"


def _json(option: Option, value: str, example: str) -> Mapping[str, Any]:
    document = as_json(value)
    if not isinstance(document, dict):
        raise option.refuse(value, f"JSON like {example}")
    return document


def _partitions(option: Option, value: str) -> Mapping[str, tuple[int, ...]]:
    if not value.strip().startswith("{"):
        raise UsageError(f"No topicpartitions to assign as specified value for option '{option.name}' is '{value}'")
    example = '{"topicA":[0,1],"topicB":[2,4]}'
    wanted = _json(option, value, example)
    if not all(isinstance(numbers, list) and all(map(_is_partition, numbers)) for numbers in wanted.values()):
        raise option.refuse(value, f"JSON like {example}")
    return {topic: tuple(numbers) for topic, numbers in wanted.items()}


def _is_whole(number: object) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool)


def _is_partition(number: object) -> bool:
    return _is_whole(number) and 0 <= number < 2**31


def _each(option: Option, value: str, example: str, position: Callable[[int], Position]) -> Positions:
    found: dict[TopicPartition, Position] = {}
    for topic, partitions in _json(option, value, example).items():
        for partition, number in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            if not (_whole(partition) and _is_partition(int(partition)) and _is_whole(number)):
                raise option.refuse(value, f"JSON like {example}")
            try:
                found[topic, int(partition)] = position(number)
            except UsageError as error:
                raise UsageError(f"option '{option.name}', {topic}-{partition}: {error}") from None
    return found


def _whole(digits: str) -> bool:
    """As Java reads numbers: ASCII digits, not too many for any of its types."""
    return digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS


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
    digits = value.strip()
    if not _whole(digits.removeprefix("-")):
        raise UsageError(f"Expected a single long value, got {digits}")
    return Timestamp(int(digits))


def _timestamps(option: Option, value: str) -> Positions:
    return _each(option, value, '{"topicA":{"0":1000,"1":1000},"topicB":{"0":2000}}', Timestamp)


def _end_word(option: Option, value: str) -> Position:
    return _BY_NAME[one_of("earliest", "latest")(option, value)]


def _format(option: Option, value: str) -> FormatSpec:
    word = text(option, value).lower()
    if word not in RECORD_FORMATS:
        raise option.refuse(value, " or ".join(RECORD_FORMATS))
    return RECORD_FORMATS[word]


def _references(option: Option, value: str) -> tuple[SchemaReference, ...]:
    wanted = 'a JSON list of objects like {"name": "air.City", "subject": "city-value", "version": 1}'
    found = as_json(value)
    if not isinstance(found, list) or not all(isinstance(each, dict) and _names_a_version(each) for each in found):
        raise option.refuse(value, wanted)
    return tuple(SchemaReference(**each) for each in found)


def _names_a_version(reference: Mapping[str, Any]) -> bool:
    texts = all(isinstance(reference.get(name), str) for name in ("name", "subject"))
    version = reference.get("version")
    return texts and set(reference) == {"name", "subject", "version"} and type(version) is int and version > 0


# --- the tables -------------------------------------------------------------------------------------------------------

_SCHEMAS: tuple[Option, ...] = (
    Option("schemaRegistryUrl", verbatim, "ours: of a schema registry; its properties are `schema.registry.*`"),
    *(
        each
        for field in FIELDS
        for each in (
            Option(f"{field}Subject", text, f"ours: subject of the {field}'s schema. Default: by the topic's name"),
            Option(f"{field}SchemaVersion", integer(1), "ours: version of the subject. Default: the newest at the start"),
            Option(
                f"{field}Schema", text, f"ours: schema of the {field}: Avro's, a JSON Schema, .proto text; a Spark type's JSON"
            ),
            Option(f"{field}SchemaFile", text, "ours: path of a file with the schema"),
            Option(f"{field}Message", text, "ours: full name of the Protobuf message type. Default: the schema's first"),
            Option(
                f"{field}Record",
                text,
                "ours: full name of the Avro record, or title of the JSON Schema, where `schema.registry."
                f"{field}.subject.name.strategy` names the subject after it",
            ),
        )
    ),
)

_SOURCE: tuple[Option, ...] = (
    Option("subscribe", _names, "topics to read, separated by commas"),
    Option("subscribePattern", _pattern, "regular expression (Java's) that is found in topic names; `^orders$` is one name"),
    Option("assign", _partitions, "exactly these partitions, as JSON"),
    Option("startingOffsets", _offsets, "start: earliest (batch default), latest (streaming default), group, or JSON"),
    Option("startingTimestamp", _timestamp, "start at this time, in ms since 1970 UTC. Overrides startingOffsetsByTimestamp"),
    Option("startingOffsetsByTimestamp", _timestamps, "start at these times, as JSON. Overrides startingOffsets"),
    Option("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "no record that late: error (default), or latest"),
    Option("startingOffsetsOfNewPartitions", _end_word, "ours: where partitions that appear later start. Default earliest"),
    Option("startingOffsetsWithoutCommit", _end_word, "ours: start of what the group has not committed. Default earliest"),
    Option(
        "startFromSavepoint",
        text,
        "ours, streaming: path or URI of a savepoint of `headrace run` to start from, in place of startingOffsets",
    ),
    Option("endingOffsets", _offsets, "batch: where to end, exclusively. Default latest"),
    Option("endingTimestamp", _timestamp, "batch: end at this time. Overrides endingOffsetsByTimestamp"),
    Option("endingOffsetsByTimestamp", _timestamps, "batch: end at these times. Overrides endingOffsets"),
    Option("failOnDataLoss", boolean, "fail when records are gone (default true), or warn and continue"),
    Option("includeHeaders", boolean, "add the column headers. Default false"),
    Option("maxOffsetsPerTrigger", integer(1), "streaming: most offsets in a batch, divided among the partitions"),
    Option("minOffsetsPerTrigger", integer(1), "streaming: wait for this many offsets, or for maxTriggerDelay"),
    Option(
        "maxTriggerDelay",
        lambda option, value: duration_s(f"option '{option.name}'", value),
        "streaming: longest wait for minOffsetsPerTrigger. Default 15m",
    ),
    Option("maxRecordsPerPartition", integer(1), "most offsets in one Spark task"),
    Option("minPartitions", integer(1), "about this many Spark tasks: large ranges are split"),
    Option("kafkaConsumer.pollTimeoutMs", integer(1), "a task that receives nothing for this time fails. Default 120000"),
    Option(
        "badTimestamps", one_of("error", "null"), "ours: a timestamp beyond 64-bit microseconds: `error` (default), or `null`"
    ),
    Option(
        "badBatches",
        one_of("error", "skip"),
        "ours: a batch of records that cannot be decoded at all: `error` (default), or `skip`",
    ),
    Option("maxUncompressedBatchBytes", integer(1), "ours: most bytes that a compressed batch may unpack to. Default 256 MiB"),
    Option("valueFormat", _format, f"ours: decode `value`: {', '.join(f'`{name}`' for name in RECORD_FORMATS)}"),
    Option("keyFormat", _format, "ours: the same for `key`"),
    *_SCHEMAS,
    *(
        Option(
            f"{field}Recursive",
            choice(RecursiveField),
            f"ours: a field of the {field}'s Avro schema whose type contains itself: `refuse` (default), or `json`, a text",
        )
        for field in FIELDS
    ),
    Option("timeZone", zone, "ours: of JSON times without a zone. Default: the session's, as with files"),
    Option("onBadRecord", choice(BadRecord), "ours: what cannot be decoded: `fail` (default), `keep`, or `skip`"),
    Option("commitOffsetsToGroup", text, "ours, streaming: commit offsets to this group as batches complete"),
    Option("jvmCheckpoint", text, "ours: path of the JVM connector's checkpoint, if that query was killed in its first batch"),
    Option("fetchOffset.numRetries", integer(0), "accepted, not needed: see kafka.default.api.timeout.ms"),
    Option("fetchOffset.retryIntervalMs", integer(0), "accepted, not needed: see kafka.retry.backoff.ms"),
    Option("groupIdPrefix", text, "accepted, not needed: no consumer group is joined"),
)

# What is an argument of `KafkaSink` says so; more than that an option of the sink does not need.
_SINK: tuple[Option, ...] = (
    Option("topic", text, "topic of all rows; overrides the column `topic`", argument="topic"),
    Option("valueFormat", _format, "ours: encode `value`, as above. Default: bytes or a string"),
    Option("keyFormat", _format, "ours: the same for `key`"),
    *_SCHEMAS,
    *(
        Option(
            f"{field}SchemaReferences",
            _references,
            f'ours: what {field}Schema refers to in the registry: `[{{"name": "A", "subject": "a", "version": 1}}]`',
        )
        for field in FIELDS
    ),
    Option("registerSchemas", boolean, "ours: register the schema of valueSchema or keySchema where it is new. Default false"),
    Option("delivery", choice(Delivery), "ours: `exactly-once` (default) or `at-least-once`"),
    Option(
        "transactionalIdPrefix",
        text,
        f"ours: prefix of all transactional ids (default `{DEFAULT_PREFIX}`). Keep it over restarts",
        "transactional_id_prefix",
    ),
    Option(
        "commitTopic",
        text,
        f"ours: compacted topic for the lists of committables, created if missing (default `{DEFAULT_COMMIT_TOPIC}`)",
        "commit_topic",
    ),
    *(replace(option, meaning=f"ours: {option.meaning}") for option in REPEATED_WRITE),
)

SOURCE_OPTIONS = OptionTable(
    _SOURCE,
    "headrace",
    "headrace's source",
    prefix="kafka.",
    ignored=frozenset({"path"}),
    groups=(REGISTRY_PREFIX,),
    other_side=_SINK,
    nothing_alike=f"there are: {', '.join(option.name for option in _SOURCE)}, kafka.*",
)

SINK_OPTIONS = OptionTable(
    _SINK,
    prefix="kafka.",
    ignored=frozenset({"path"}),  # Spark's own sink ignores it, too
    groups=(REGISTRY_PREFIX,),
    other_side=_SOURCE,
)

# --- the client's properties, `kafka.*`: what Spark's own connector refuses, in its words -----------------------------------

REFUSED: Mapping[str, str] = {
    "auto.offset.reset": (
        "Kafka option 'auto.offset.reset' is not supported.\n"
        "Instead set the source option 'startingoffsets' to 'earliest' or 'latest'\n"
        "to specify where to start. Structured Streaming manages which offsets are consumed\n"
        "internally, rather than relying on the kafkaConsumer to do it. This will ensure that no\n"
        "data is missed when new topics/partitions are dynamically subscribed. Note that\n"
        "'startingoffsets' only applies when a new Streaming query is started, and\n"
        "that resuming will always pick up from where the query left off. See the docs for more\n"
        "details."
    ),
    "key.deserializer": (
        "Kafka option 'key.deserializer' is not supported as keys are deserialized as byte arrays with "
        "ByteArrayDeserializer. Use DataFrame operations to explicitly deserialize the keys."
    ),
    "value.deserializer": (
        "Kafka option 'value.deserializer' is not supported as values are deserialized as byte arrays with "
        "ByteArrayDeserializer. Use DataFrame operations to explicitly deserialize the values."
    ),
    "key.serializer": "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer.",
    "value.serializer": "Kafka option 'value.serializer' is not supported as values are serialized with ByteArraySerializer.",
    "enable.auto.commit": "Kafka option 'enable.auto.commit' is not supported",
    "interceptor.classes": "Kafka option 'interceptor.classes' is not supported",
}
"""Properties that Spark's connector sets itself, without `kafka.`, and what it reports about each."""


def check_properties(properties: Mapping[str, str], client: Literal["consumer", "producer"]) -> None:
    """Raises UsageError, in Spark's words, for a property (in lower case) that its connector refuses, or without a cluster."""
    for name in properties:
        if name in REFUSED:
            raise UsageError(REFUSED[name])
    if "bootstrap.servers" not in properties:
        raise UsageError(f"Option 'kafka.bootstrap.servers' must be specified for configuring Kafka {client}")
