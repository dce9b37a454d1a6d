"""The options and columns of Spark's Kafka sink, and ours, and what they mean as a `KafkaSink`.

Names, defaults and error texts are those of Spark's own connector; case is ignored. An option nobody knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC, DEFAULT_PREFIX
from headrace.connectors.kafka.write.sink import AtLeastOnceKafkaSink, KafkaSink
from pyspark_headrace.kafka_properties import check_properties
from pyspark_headrace.options import REPEATED_WRITE, Option, OptionTable, SinkWrite, choice, sink_write, text

__all__ = ["COLUMNS", "OPTIONS", "Delivery", "kafka_write"]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""What is written of a row, and the types it may have; a frame's other columns are left out, as Spark's sink does."""


class Delivery(StrEnum):
    """What a reader of the output, under read_committed, sees of each row after failures."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


def _source_options() -> OptionTable:
    from pyspark_headrace.kafka_read import OPTIONS as SOURCE_OPTIONS

    return SOURCE_OPTIONS


OPTIONS = OptionTable(
    "the sink",
    "the sink",
    (
        Option("topic", text, "topic of all rows; overrides the column `topic`"),
        Option("delivery", choice(Delivery), "`exactly-once` (default) or `at-least-once`"),
        Option("transactionalIdPrefix", text, f"prefix of all transactional ids (default `{DEFAULT_PREFIX}`)"),
        Option(
            "commitTopic",
            text,
            f"compacted topic for the lists of committables, created if missing (default `{DEFAULT_COMMIT_TOPIC}`)",
        ),
        *REPEATED_WRITE,
    ),
    prefix="kafka.",
    ignored=frozenset({"path"}),  # Spark's own sink ignores it, too
    other_side=_source_options,
)
"""Every option of the sink; `kafka.*` are the client's properties."""


def kafka_write(options: Mapping[str, str]) -> SinkWrite[KafkaSink | AtLeastOnceKafkaSink]:
    """Raises UsageError naming the option that is missing, unknown or wrong. Contacts nobody."""
    given, properties = OPTIONS.parse(options)
    check_properties(properties, "producer")
    return sink_write(_sink(given, properties.pop("bootstrap.servers"), properties), given)


def _sink(given: Mapping[str, Any], bootstrap: str, properties: Mapping[str, str]) -> KafkaSink | AtLeastOnceKafkaSink:
    if given.get("delivery") is Delivery.AT_LEAST_ONCE:
        return AtLeastOnceKafkaSink(bootstrap, topic=given.get("topic"), properties=properties)
    return KafkaSink(
        bootstrap,
        topic=given.get("topic"),
        properties=properties,
        transactional_id_prefix=given.get("transactionalIdPrefix", DEFAULT_PREFIX),
        commit_topic=given.get("commitTopic", DEFAULT_COMMIT_TOPIC),
    )
