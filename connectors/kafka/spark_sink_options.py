"""The options and columns of Spark's Kafka sink, and ours, and what they mean as a `KafkaSink`.

Names, defaults and error texts are those of Spark's own connector; case is ignored. An option nobody knows is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace.connectors.kafka.properties import ClientConfig
from headrace.connectors.kafka.sink import (
    DEFAULT_COMMIT_TOPIC,
    DEFAULT_PREFIX,
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    AtLeastOnceKafkaSink,
    KafkaSink,
)
from headrace.enumerator.errors import UsageError

__all__ = ["COLUMNS", "SINK_OPTIONS", "Delivery", "KafkaWrite", "kafka_write"]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""What is written of a row, and the types it may have; a frame's other columns are left out, as Spark's sink does."""

SINK_OPTIONS: Mapping[str, str] = {
    "topic": "where all rows go, whatever their column `topic` says",
    "delivery": "`exactly-once` (default) or `at-least-once`",
    "transactionalIdPrefix": f"what the names of all transactions begin with (default `{DEFAULT_PREFIX}`)",
    "commitTopic": f"the compacted topic of the lists of transactions, made if need be (default `{DEFAULT_COMMIT_TOPIC}`)",
    "txnAppId": "a name for a batch write that is repeated until it succeeds, as in foreachBatch; needs txnVersion",
    "txnVersion": "its number, as the batch id in foreachBatch: a number that was written once is not written again",
}
_BY_NAME = {name.lower(): name for name in SINK_OPTIONS}
_FROM_SPARK = frozenset({"path", "checkpointlocation", "provider", "__datasource_name", "queryname"})


class Delivery(StrEnum):
    """What a reader of the output, under read_committed, sees of each row after failures."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class KafkaWrite:
    """How an engine is to write. `job` and `epoch` name a batch write that is repeated until it succeeds, or are None."""

    sink: KafkaSink | AtLeastOnceKafkaSink
    job: str | None = None
    epoch: int | None = None


def kafka_write(options: Mapping[str, str]) -> KafkaWrite:
    """Raises UsageError naming the option that is missing, unknown or wrong. Contacts nobody."""
    given, properties = _sort(options)
    delivery = given.get("delivery", Delivery.EXACTLY_ONCE)
    if delivery not in tuple(Delivery):
        raise UsageError(f"option 'delivery' must be {' or '.join(Delivery)}, not {delivery!r}")
    properties.setdefault("transaction.timeout.ms", str(DEFAULT_TRANSACTION_TIMEOUT_MS))
    config = ClientConfig.from_properties(properties)
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise UsageError("options 'txnAppId' and 'txnVersion' go together")
    return KafkaWrite(_sink(given, config, Delivery(delivery)), given.get("txnAppId"), _version(given.get("txnVersion")))


def _sink(given: Mapping[str, str], config: ClientConfig, delivery: Delivery) -> KafkaSink | AtLeastOnceKafkaSink:
    if delivery is Delivery.AT_LEAST_ONCE:
        return AtLeastOnceKafkaSink(config, given.get("topic"))
    return KafkaSink(
        config,
        topic=given.get("topic"),
        prefix=given.get("transactionalIdPrefix", DEFAULT_PREFIX),
        commit_topic=given.get("commitTopic", DEFAULT_COMMIT_TOPIC),
        transaction_timeout_ms=config.transaction_timeout_ms,
    )


def _version(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"option 'txnVersion' must be a whole number from 0, not {text!r}")
    return int(text)


def _sort(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    given: dict[str, str] = {}
    properties: dict[str, str] = {}
    for written, value in options.items():
        name = written.lower()
        if name.startswith("kafka."):
            properties[name.removeprefix("kafka.")] = value
        elif name in _BY_NAME:
            if not value.strip():
                raise UsageError(f"option '{_BY_NAME[name]}' must not be empty")
            given[_BY_NAME[name]] = value.strip()
        elif name not in _FROM_SPARK:
            near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.6)
            hint = f"; did you mean '{_BY_NAME[near[0]]}'?" if near else ""
            raise UsageError(f"option '{written}' is not known to the sink{hint}")
    return given, properties
