"""What a set of options of Spark's Kafka sink means as a `KafkaSink`, and which columns it writes.

Names, defaults and error texts are those of Spark's own connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC, DEFAULT_PREFIX
from headrace.connectors.kafka.write.sink import AtLeastOnceKafkaSink, KafkaSink
from headrace.enumerator.errors import UsageError
from pyspark_headrace.kafka_options import SINK_OPTIONS, Delivery
from pyspark_headrace.kafka_properties import check_properties
from pyspark_headrace.options import SinkWrite, sink_write, warn_once

__all__ = ["COLUMNS", "kafka_write"]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""What is written of a row, and the types it may have; a frame's other columns are left out, as Spark's sink does."""


def kafka_write(options: Mapping[str, str]) -> SinkWrite[KafkaSink | AtLeastOnceKafkaSink]:
    """Raises UsageError naming the option that is missing, unknown or wrong. Contacts nobody."""
    given, properties = SINK_OPTIONS.parse(options)
    check_properties(properties, "producer")
    return sink_write(_sink(given, properties.pop("bootstrap.servers"), properties), given)


def _sink(given: Mapping[str, Any], bootstrap: str, properties: Mapping[str, str]) -> KafkaSink | AtLeastOnceKafkaSink:
    if given.get("delivery") is Delivery.AT_LEAST_ONCE:
        _check_without_transactions(given)
        return AtLeastOnceKafkaSink(bootstrap, topic=given.get("topic"), properties=properties)
    return KafkaSink(
        bootstrap,
        topic=given.get("topic"),
        properties=properties,
        transactional_id_prefix=given.get("transactionalIdPrefix", DEFAULT_PREFIX),
        commit_topic=given.get("commitTopic", DEFAULT_COMMIT_TOPIC),
    )


def _check_without_transactions(given: Mapping[str, Any]) -> None:
    """That a write is not written again is a promise; where its transactions are kept is none."""
    for name in ("txnAppId", "txnVersion"):
        if name in given:
            raise UsageError(f"option '{name}' needs transactions, and delivery=at-least-once has none")
    for name in ("transactionalIdPrefix", "commitTopic"):
        if name in given:
            warn_once(f"option '{name}' means nothing with delivery=at-least-once, and is ignored")
