"""`headrace dump`: the record batches of a topic as they are stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import ClientOptions, RegistryUrl, grouped
from headrace.cli.output import Listing, console, escaped, instant, note, one_line, plain_line, show
from headrace.connectors.formats.by_name import FORMATS, create_format
from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.formats.avro.recursion import Recursive
    from headrace.connectors.formats.registry.client import SchemaRegistry
    from headrace.connectors.formats.registry.framing import Framed
    from headrace.connectors.formats.registry.schemas import RegisteredSchema, SchemaId
    from headrace.connectors.formats.value_format import DecodedValues
    from headrace.connectors.kafka.client.cluster import KafkaCluster
    from headrace.connectors.kafka.log_dump import DumpedBatch

if TYPE_CHECKING:
    Encoding = str
else:  # an enum at run time: Typer lists and checks its values
    Encoding = StrEnum("Encoding", {name: name for name, spec in FORMATS.items() if spec.registry_kind is not None})
"""The formats whose schemas a registry has."""

BATCH_COLUMNS = (
    *("partition", "base offset", "last offset", "records", "producer id", "epoch", "sequence"),
    *("transaction", "coordinator epoch", "compression", "bytes", "timestamp"),
)
RECORD_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "transaction")


def batch_row(partition: int, batch: DumpedBatch) -> Sequence[object]:
    """The cells of BATCH_COLUMNS. `transaction`: its outcome, the type of a marker, or None."""
    stored = batch.stored
    numbers = (stored.producer_id, stored.producer_epoch, stored.base_sequence)
    producer = (None if number < 0 else number for number in numbers)
    epoch = batch.marker.coordinator_epoch if batch.marker else None
    head = (partition, stored.base_offset, stored.last_offset, stored.records, *producer, _transaction(batch), epoch)
    return (*head, stored.compression, len(stored.data), instant(stored.max_timestamp_ms))


Shown = Callable[["pa.Array", "pa.Array"], list[str]]
"""Keys or values, and the records' headers, to a text for each, on one line."""


def _as_json(registry: SchemaRegistry, field: str, encoding: Encoding, values: pa.Array, headers: pa.Array) -> list[str]:
    """Each by the schema that it names in a registry; else its bytes, with the reason. Raises as the registry's client."""
    from headrace.connectors.formats.registry.framing import Framed, framing

    texts = [escaped(value) for value in values.to_pylist()]
    groups = list(framing(values, headers, field))
    schemas = registry.by_ids({group.schema_id for group in groups if isinstance(group, Framed)})
    for group in groups:
        rows = group.rows.to_pylist()
        found = _decoded(group, schemas, values.take(group.rows), encoding) if isinstance(group, Framed) else group.reason
        if isinstance(found, str):
            for row in rows:
                texts[row] = f"{texts[row]} ({found})"
            continue
        for places, decoded in found:
            reasons = {each.row: each.reason for each in decoded.bad}
            for index, (at, value) in enumerate(zip(places, decoded.values.to_pylist(), strict=True)):
                row, reported = rows[at], one_line(json.dumps(_plain(value), default=str, ensure_ascii=False))
                texts[row] = f"{texts[row]} ({reasons[index]})" if index in reasons else reported
    return texts


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    """With what JSON has for its numbers that are not finite."""
    from headrace.connectors.formats.json_lines import json_number

    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case float():
            return json_number(value)
    return value


def _decoded(
    group: Framed, schemas: Mapping[SchemaId, RegisteredSchema], values: pa.Array, wanted: Encoding
) -> list[tuple[Sequence[int], DecodedValues]] | str:
    """Values of one schema, by the message types that they name if it has several; or why they cannot be decoded."""
    import pyarrow as pa

    from headrace.connectors.formats.registry.avro_values import is_raw
    from headrace.connectors.formats.registry.protobuf_values import by_message_type

    if group.schema_id not in schemas:
        return f"the schema registry has no schema {group.schema_id}"
    schema = schemas[group.schema_id]
    spec = FORMATS[wanted]
    if schema.kind != spec.registry_kind:
        return f"schema {schema.id} of the registry is {schema.kind}"
    try:
        if "message" in spec.arguments:
            return [(rows, made.decode(bodies)) for rows, bodies, made in by_message_type(schema, group, values)]
        recursive: Recursive | None = "json" if "recursive" in spec.arguments else None
        made = create_format(wanted, schema=schema.text, references=dict(schema.references), recursive=recursive)
        if recursive is not None and is_raw(schema):
            made = create_format("bytes")
    except UsageError as error:
        return str(error)
    bodies = pa.array([value[group.skipped :] for value in values.to_pylist()], pa.binary())
    return [(range(len(bodies)), made.decode(bodies))]


def record_rows(topic: str, partition: int, batch: DumpedBatch, typed: Mapping[str, Shown]) -> Iterator[Sequence[object]]:
    """The cells of RECORD_COLUMNS for each record; none for a marker. `typed`: what shows key and value, if not as bytes."""
    from headrace.connectors.kafka.format.stored_batch import records_of

    if batch.marker is not None:
        return
    records = records_of(topic, partition, batch.stored)
    times = records.column("timestamp").cast("int64").to_pylist()
    offsets = records.column("offset").to_pylist()
    cells = [
        typed[name](records.column(name), records.column("headers"))
        if name in typed
        else [escaped(each) for each in records.column(name).to_pylist()]
        for name in ("key", "value")
    ]
    for offset, key, value, microseconds in zip(offsets, *cells, times, strict=True):
        moment = None if microseconds is None else instant(microseconds // 1000)
        yield partition, offset, moment, key, value, _transaction(batch)


def typed_values(
    registry: str | None, encodings: Mapping[str, Encoding | None], properties: Mapping[str, str]
) -> dict[str, Shown]:
    """What shows key and value where they have an encoding. Raises UsageError for options that need each other."""
    wanted = {name: encoding for name, encoding in encodings.items() if encoding is not None}
    if bool(wanted) != (registry is not None):
        raise UsageError("--key-format and --value-format need --schema-registry, and it needs one of them")
    if registry is None:
        return {}
    from headrace.connectors.formats.registry.client import SchemaRegistry

    client = SchemaRegistry(registry, properties)
    return {name: partial(_as_json, client, name, encoding) for name, encoding in wanted.items()}


def _transaction(batch: DumpedBatch) -> str | None:
    if batch.marker is not None:
        return batch.marker.kind.value
    return None if batch.fate is None else batch.fate.value


@grouped
def dump_command(
    topic: Annotated[str, typer.Argument()],
    *,
    partition: Annotated[int | None, typer.Option(help="Default: all partitions.", min=0)] = None,
    start: Annotated[
        int | None, typer.Option("--from", help="First offset; needs --partition. Default: the beginning of the log.", min=0)
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of batches per partition.", min=1)] = 100,
    records: Annotated[bool, typer.Option("--records", help="Print the records of each batch as well.")] = False,
    value_format: Annotated[Encoding | None, typer.Option(help="Print values as JSON, by a schema registry.")] = None,
    key_format: Annotated[Encoding | None, typer.Option(help="The same for keys.")] = None,
    schema_registry: RegistryUrl = None,
    client: ClientOptions,
) -> None:
    """Print a topic's log batch by batch, with open and aborted transactions and the markers that end them.

    Plain lines are `batch` (partition, base offset, last offset, records, producer id, producer epoch, base sequence,
    transaction, coordinator epoch, compression, bytes, greatest timestamp) and `record` (partition, offset, timestamp, key,
    value, transaction). `transaction` is committed, aborted or open; COMMIT or ABORT for a marker; `-` outside a transaction.
    """
    from headrace.connectors.kafka.log_dump import dump

    if start is not None and partition is None:
        raise UsageError("--from needs --partition: offsets are per partition")
    encodings = {"key": key_format, "value": value_format}
    typed = typed_values(schema_registry, encodings, client.registry_properties())
    cluster = client.connect()
    for number in chosen_partitions(cluster, topic, partition):
        batches = dump(cluster, topic, number, start)
        _print(topic, number, islice(batches, limit), typed if records or typed else None)
        if (more := next(batches, None)) is not None:
            note(f"{topic}-{number} has more: use --partition {number} --from {more.stored.base_offset}, or a higher --limit")


def chosen_partitions(cluster: KafkaCluster, topic: str, partition: int | None) -> Sequence[int]:
    """This partition of the topic, or all of them. Raises UsageError for one that it does not have."""
    there = sorted(cluster.topics([topic])[topic].partitions)
    if partition is not None and partition not in there:
        raise UsageError(f"topic {topic!r} has the partitions 0 to {there[-1]}, not {partition}")
    return there if partition is None else [partition]


def _print(topic: str, partition: int, batches: Iterator[DumpedBatch], typed: Mapping[str, Shown] | None) -> None:
    """For scripts one line per item, streamed; on a terminal two tables. `typed` None: without records."""
    out = console()
    rows, lines = [], []
    for batch in batches:
        found = [] if typed is None else list(record_rows(topic, partition, batch, typed))
        if out.is_terminal:
            rows.append(batch_row(partition, batch))
            lines += found
        else:
            typer.echo(plain_line("batch", batch_row(partition, batch)))
            for row in found:
                typer.echo(plain_line("record", row))
    show(Listing("batch", f"{topic}-{partition}", BATCH_COLUMNS, rows), out)
    show(Listing("record", "Records", RECORD_COLUMNS, lines), out)
