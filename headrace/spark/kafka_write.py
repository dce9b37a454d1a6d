"""What a set of options of Spark's Kafka sink means as a `KafkaSink`, and which columns it writes.

Names, defaults and error texts are those of Spark's own connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pyspark.sql.types import StructType

from headrace.connectors.base.dead_letters import DEAD_LETTER
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.enumerator.errors import UsageError
from headrace.runners.spark.writers import check_columns
from headrace.spark.kafka_formats import REGISTRY_PREFIX, write_formats
from headrace.spark.kafka_options import SINK_OPTIONS, Delivery, check_properties
from headrace.spark.options import SinkWrite, sink_write, warn_once

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    DEAD_LETTER: ("struct<topic:string,key:binary,value:binary,headers:array<struct<key:string,value:binary>>>",),
}
"""What is written of a row, and the types it may have; a frame's other columns are left out, as Spark's sink does."""

_AT_LEAST_ONCE = frozenset(each.name for each in fields(AtLeastOnceKafkaSink))


def kafka_columns(schema: StructType, sink: KafkaSink | AtLeastOnceKafkaSink) -> list[str]:
    for field in schema:
        if field.name == DEAD_LETTER and "topic" not in getattr(field.dataType, "names", ()):
            raise UsageError(
                f"the column {DEAD_LETTER} does not say where dead letters go: headrace.spark.with_dead_letters(frame, topic) "
                f"does; or drop it, and bad records are written with a null value"
            )
    of_any_type = {each.name: [each.dataType.simpleString()] for each in schema if each.name in sink.formats}
    written = {name: types for name, types in {**COLUMNS, **of_any_type}.items() if name != "topic" or sink.topic is None}
    return check_columns(schema, written, ["value"])


def kafka_write(options: Mapping[str, str], schema: StructType | None = None) -> SinkWrite[KafkaSink | AtLeastOnceKafkaSink]:
    """`schema`: of the frame, for formats. No I/O but a schema registry. Raises UsageError naming the option at fault."""
    given, properties = SINK_OPTIONS.parse(options)
    check_properties(properties, "producer")
    formats = write_formats(given, StructType([]) if schema is None else schema, given.get(REGISTRY_PREFIX, {}))
    bootstrap, arguments = properties.pop("bootstrap.servers"), SINK_OPTIONS.arguments(given)
    arguments |= {"value": formats.get("value"), "key": formats.get("key")}
    if given.get("delivery") is not Delivery.AT_LEAST_ONCE:
        return sink_write(KafkaSink(bootstrap, properties=properties, **arguments), given)
    _check_without_transactions(given)
    known = {name: value for name, value in arguments.items() if name in _AT_LEAST_ONCE}
    return sink_write(AtLeastOnceKafkaSink(bootstrap, properties=properties, **known), given)


def _check_without_transactions(given: Mapping[str, Any]) -> None:
    """That a write is not written again is a promise; where its transactions are kept is none."""
    for name in ("txnAppId", "txnVersion"):
        if name in given:
            raise UsageError(f"option '{name}' needs transactions, and delivery=at-least-once has none")
    for option in SINK_OPTIONS:
        if option.name in given and option.argument is not None and option.argument not in _AT_LEAST_ONCE:
            warn_once(f"option '{option.name}' means nothing with delivery=at-least-once, and is ignored")
