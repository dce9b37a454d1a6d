"""`headrace dump`: the record batches of a topic as they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Bootstrap, Properties, PropertiesFile, client_config, connect
from headrace.cli.output import Listing, console, escaped, instant, note, plain_line, show
from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    from headrace.connectors.kafka.write.log_dump import DumpedBatch

MOST_BATCHES = 100
BATCH_COLUMNS = (
    "partition",
    "base offset",
    "last offset",
    "records",
    "producer id",
    "epoch",
    "sequence",
    "transaction",
    "coordinator epoch",
    "compression",
    "bytes",
    "timestamp",
)
RECORD_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "transaction")


def batch_row(partition: int, batch: DumpedBatch) -> Sequence[object]:
    """The cells of BATCH_COLUMNS. `transaction`: its outcome, the type of a marker, or None."""
    stored = batch.stored
    numbers = (stored.producer_id, stored.producer_epoch, stored.base_sequence)
    producer_id, epoch, sequence = (None if number < 0 else number for number in numbers)
    return (
        partition,
        stored.base_offset,
        stored.last_offset,
        stored.records,
        producer_id,
        epoch,
        sequence,
        _transaction(batch),
        batch.marker.coordinator_epoch if batch.marker else None,
        stored.compression,
        len(stored.data),
        instant(stored.max_timestamp_ms),
    )


def record_rows(topic: str, partition: int, batch: DumpedBatch) -> Iterator[Sequence[object]]:
    """The cells of RECORD_COLUMNS for each record; none for a marker."""
    from headrace.connectors.kafka.write.log_dump import records_of

    if batch.marker is not None:
        return
    records = records_of(topic, partition, batch.stored)
    times = records.column("timestamp").cast("int64").to_pylist()
    columns = (records.column(name).to_pylist() for name in ("offset", "key", "value"))
    for offset, key, value, microseconds in zip(*columns, times, strict=True):
        moment = None if microseconds is None else instant(microseconds // 1000)
        yield partition, offset, moment, escaped(key), escaped(value), _transaction(batch)


def _transaction(batch: DumpedBatch) -> str | None:
    if batch.marker is not None:
        return batch.marker.kind.value
    return None if batch.fate is None else batch.fate.value


def dump_command(
    topic: Annotated[str, typer.Argument()],
    *,
    partition: Annotated[int | None, typer.Option(help="Default: all partitions.", min=0)] = None,
    start: Annotated[
        int | None, typer.Option("--from", help="First offset; needs --partition. Default: the beginning of the log.", min=0)
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of batches per partition.", min=1)] = MOST_BATCHES,
    records: Annotated[bool, typer.Option("--records", help="Print the records of each batch as well.")] = False,
    bootstrap: Bootstrap = None,
    properties: Properties = None,
    properties_file: PropertiesFile = None,
) -> None:
    """Print a topic's log batch by batch, with open and aborted transactions and the markers that end them.

    Plain lines are `batch` (partition, base offset, last offset, records, producer id, producer epoch, base sequence,
    transaction, coordinator epoch, compression, bytes, greatest timestamp) and `record` (partition, offset, timestamp, key,
    value, transaction). `transaction` is committed, aborted or open; COMMIT or ABORT for a marker; `-` outside a transaction.
    """
    from headrace.connectors.kafka.write.log_dump import dump

    if start is not None and partition is None:
        raise UsageError("--from needs --partition: offsets are per partition")
    cluster = connect(client_config(bootstrap, properties, properties_file))
    there = sorted(cluster.topics([topic])[topic].partitions)
    if partition is not None and partition not in there:
        raise UsageError(f"topic {topic!r} has the partitions 0 to {there[-1]}, not {partition}")
    for number in there if partition is None else [partition]:
        batches = dump(cluster, topic, number, start)
        _print(topic, number, islice(batches, limit), records=records)
        if (more := next(batches, None)) is not None:
            note(f"{topic}-{number} has more: use --partition {number} --from {more.stored.base_offset}, or a higher --limit")


def _print(topic: str, partition: int, batches: Iterator[DumpedBatch], *, records: bool) -> None:
    """For scripts one line per item, streamed; on a terminal two tables."""
    out = console()
    rows, lines = [], []
    for batch in batches:
        found = list(record_rows(topic, partition, batch)) if records else []
        if out.is_terminal:
            rows.append(batch_row(partition, batch))
            lines += found
        else:
            typer.echo(plain_line("batch", batch_row(partition, batch)))
            for row in found:
                typer.echo(plain_line("record", row))
    show(Listing("batch", f"{topic}-{partition}", BATCH_COLUMNS, rows), out)
    show(Listing("record", "Records", RECORD_COLUMNS, lines), out)
