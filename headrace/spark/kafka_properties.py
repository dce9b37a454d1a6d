"""The client's properties in Spark, `kafka.*`: what Spark's own connector refuses, in its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headrace.enumerator.errors import UsageError

__all__ = ["REFUSED", "check_properties"]

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
