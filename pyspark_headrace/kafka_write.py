"""The options and columns of Spark's Kafka sink, and ours, and what they mean as a `KafkaSink`.

Names, defaults and error texts are those of Spark's own connector; case is ignored. An option nobody knows is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC, DEFAULT_PREFIX
from headrace.connectors.kafka.write.sink import AtLeastOnceKafkaSink, KafkaSink
from headrace.enumerator.errors import UsageError
from pyspark_headrace.options import FROM_SPARK, REPEATED_WRITE, SinkWrite, chosen, given_options, sink_write

__all__ = ["COLUMNS", "SINK_OPTIONS", "Delivery", "kafka_write"]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""What is written of a row, and the types it may have; a frame's other columns are left out, as Spark's sink does."""

SINK_OPTIONS: Mapping[str, str] = {
    "topic": "topic of all rows; overrides the column `topic`",
    "delivery": "`exactly-once` (default) or `at-least-once`",
    "transactionalIdPrefix": f"prefix of all transactional ids (default `{DEFAULT_PREFIX}`)",
    "commitTopic": f"compacted topic for the lists of committables, created if missing (default `{DEFAULT_COMMIT_TOPIC}`)",
    **REPEATED_WRITE,
}
_PROPERTY = "kafka."


class Delivery(StrEnum):
    """What a reader of the output, under read_committed, sees of each row after failures."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


def kafka_write(options: Mapping[str, str]) -> SinkWrite[KafkaSink | AtLeastOnceKafkaSink]:
    """Raises UsageError naming the option that is missing, unknown or wrong. Contacts nobody."""
    written = {name: value for name, value in options.items() if name.lower().startswith(_PROPERTY)}
    properties = {name.lower().removeprefix(_PROPERTY): value for name, value in written.items()}
    ours = {name: value for name, value in options.items() if name not in written}
    given = given_options(ours, SINK_OPTIONS, FROM_SPARK | {"path"})  # Spark's own sink ignores a path, too
    delivery = chosen(given, "delivery", Delivery.EXACTLY_ONCE)
    if "bootstrap.servers" not in properties:
        raise UsageError("Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer")
    return sink_write(_sink(given, properties.pop("bootstrap.servers"), properties, delivery), given)


def _sink(
    given: Mapping[str, str], bootstrap: str, properties: Mapping[str, str], delivery: Delivery
) -> KafkaSink | AtLeastOnceKafkaSink:
    if delivery is Delivery.AT_LEAST_ONCE:
        return AtLeastOnceKafkaSink(bootstrap, topic=given.get("topic"), properties=properties)
    return KafkaSink(
        bootstrap,
        topic=given.get("topic"),
        properties=properties,
        transactional_id_prefix=given.get("transactionalIdPrefix", DEFAULT_PREFIX),
        commit_topic=given.get("commitTopic", DEFAULT_COMMIT_TOPIC),
    )
