"""`headrace checkpoint`: look into the checkpoint of a streaming query, and make changed copies of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING, Annotated

import typer

from headrace._extras import needs_extra
from headrace.cli.options import BOOTSTRAP_VARIABLE, ClientOptions, Json, grouped
from headrace.cli.output import Listing, epoch_ms, instant, note, show_all
from headrace.enumerator.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.connectors.kafka.client.cluster import KafkaCluster
    from headrace.connectors.kafka.read.split import KafkaSplit
    from headrace.spark.checkpoints.copies import CopyPlan
    from headrace.spark.checkpoints.logs import SparkCheckpoint

checkpoint_app = typer.Typer(
    no_args_is_help=True, help="Look into the checkpoint of a Spark query, and make changed copies of it."
)

Location = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation: a folder, or its URL.")]
Copy = Annotated[str, typer.Argument(metavar="COPY", help="A new folder, or its URL, for the changed copy.")]
Batch = Annotated[int | None, typer.Option(help="The batch to look at. Default: the last one planned.", min=0)]
Stopped = Annotated[
    bool, typer.Option("--stopped", help="The query is stopped, though its last batch is less than a minute old.")
]


def opened(location: str) -> SparkCheckpoint:
    """Raises UsageError where there is none."""
    with needs_extra("spark", "pyspark"):
        import headrace.spark.checkpoints.positions  # noqa: F401 - all commands read them, by PySpark's types
        from headrace.spark.checkpoints.logs import read_checkpoint
    with _usable(location):
        return read_checkpoint(location)


@contextmanager
def _usable(location: str) -> Iterator[None]:
    """Raises UsageError, naming the location, for what a filesystem, or the library of a store, raises in the body."""
    from headrace.connectors.files.store import is_local

    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and is_local(location):  # no store's library has raised it
            raise
        what = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{location}: the checkpoint cannot be read or written there: {what}") from error


@checkpoint_app.command(name="show")
@grouped
def show_command(location: Location, *, batch: Batch = None, as_json: Json = False, client: ClientOptions) -> None:
    """Print the batches in the logs, and the offsets of one. With --bootstrap also where the partitions end, and the lag.

    Plain lines are `query` (id, batches planned, batches committed, operators with state), `batch` (batch, state, planned at,
    watermark, sources), `offset` (source, form, topic, topic id, partition, offset; with --bootstrap end, lag), `other`
    (source, text) for sources that are not Kafka's, and `damaged` (file, why).
    """
    checkpoint = opened(location)
    cluster = _cluster(client)
    query = (checkpoint.query_id, len(checkpoint.planned), len(checkpoint.committed), len(checkpoint.state_operators))
    damaged = [(file.name, file.why) for file in checkpoint.damaged]
    listings = [
        Listing("query", "Query", ("id", "planned", "committed", "stateful operators"), [query]),
        _batches(checkpoint),
        *_offsets(checkpoint, batch, cluster),
        Listing("damaged", "Damaged files", ("file", "why"), damaged),
    ]
    show_all(listings, is_json=as_json)


@checkpoint_app.command(name="diff")
def diff_command(
    first: Annotated[str, typer.Argument(metavar="CHECKPOINT")],
    second: Annotated[str, typer.Argument(metavar="OTHER")],
    *,
    batch: Batch = None,
    as_json: Json = False,
) -> None:
    """Compare two checkpoints: their queries, batches, and the offsets of one batch. Exit status 1 if they differ.

    Plain lines are `query` (name, first, second), `offset` (source, topic, topic id, partition, first, second, difference) and,
    for sources that are not Kafka's, `other` (source, first, second), of what differs only.
    """
    listings = _differences(opened(first), opened(second), batch)
    show_all(listings, is_json=as_json)
    if any(listing.rows for listing in listings):
        raise typer.Exit(1)


@checkpoint_app.command(name="verify")
@grouped
def verify_checkpoint_command(location: Location, *, as_json: Json = False, client: ClientOptions) -> None:
    """Check whether the query can continue from here. Exit status 1 if not.

    Every log has to be readable, and no batch missing; with --bootstrap every topic and offset has to be there, too.

    Plain lines are `finding` (kind, where, what). Kinds: `damaged`, a file that cannot be read; `refused`, the query does not
    start, or loses records; `note`.
    """
    checkpoint = opened(location)
    from headrace.spark.checkpoints.findings import findings_in_cluster, findings_of

    found = findings_of(checkpoint)
    cluster = _cluster(client)
    if cluster is not None and not any(finding.kind.prevents_restore for finding in found):
        found += findings_in_cluster(cluster, checkpoint)
    rows = [(finding.kind.value, finding.where, finding.what) for finding in found]
    show_all([Listing("finding", "Findings", ("kind", "where", "what"), rows)], is_json=as_json)
    is_bad = any(finding.kind.prevents_restore for finding in found)
    asked = "" if cluster is not None else " (topics and offsets were not looked at: give --bootstrap)"
    note(f"the query can{'not' if is_bad else ''} continue from this checkpoint{asked}")
    if is_bad:
        raise typer.Exit(1)


@checkpoint_app.command(name="rewind")
def rewind_command(
    location: Location,
    copy: Copy,
    *,
    to_batch: Annotated[int | None, typer.Option(help="The last batch that is to count as done.", min=0)] = None,
    to_timestamp: Annotated[
        str | None,
        typer.Option(help="In its place a time: the last batch that was planned by then (2026-11-22T10:00:00Z, or epoch ms)."),
    ] = None,
    stopped: Stopped = False,
) -> None:
    """Copy a checkpoint at the positions after a batch, for a new query: what came after is read, and written, again.

    The copy has its own query id, and its batches continue with a new number: exactly-once sinks know what they have written
    by these. So what the old query has written after that batch is in its output twice, unless you remove it or write
    elsewhere. Refused for queries with state.
    """
    from headrace.spark.checkpoints.copies import batch_at, rewind

    if (to_batch is None) == (to_timestamp is None):
        raise UsageError("give either --to-batch or --to-timestamp")
    checkpoint = opened(location)
    batch = to_batch if to_timestamp is None else batch_at(checkpoint, epoch_ms(to_timestamp))
    assert batch is not None, "one of the two is given"
    _copy(checkpoint, copy, rewind(checkpoint, batch), stopped=stopped)
    assert checkpoint.last_planned is not None, "that batch is there"
    note(
        f"the copy's query continues after batch {batch}, as a new query, with number {checkpoint.last_planned + 1}: what came "
        "after that batch is written again"
    )


@checkpoint_app.command(name="fork")
def fork_command(location: Location, copy: Copy, *, stopped: Stopped = False) -> None:
    """Copy a checkpoint for a new query that continues alongside the old one: both write all that comes, each exactly once.

    Write the new query to another place than the old one, or stop the old one first.
    """
    from headrace.spark.checkpoints.copies import fork

    checkpoint = opened(location)
    _copy(checkpoint, copy, fork(checkpoint), stopped=stopped)


@checkpoint_app.command(name="set-offsets")
def set_offsets_command(
    location: Location,
    copy: Copy,
    *,
    offset: Annotated[
        list[str], typer.Option(help="The next offset of a partition. May be repeated.", metavar="TOPIC:PARTITION=OFFSET")
    ],
    stopped: Stopped = False,
) -> None:
    """Copy a checkpoint with other offsets for some partitions; the query's next batch starts there. The query stays the same.

    Records in between are skipped, or written again.
    """
    from headrace.spark.checkpoints.copies import set_offsets

    checkpoint = opened(location)
    _copy(checkpoint, copy, set_offsets(checkpoint, parse_positions(offset)), stopped=stopped)


@checkpoint_app.command(name="forget-topic")
def forget_topic_command(
    location: Location, copy: Copy, *, topic: Annotated[str, typer.Option()], stopped: Stopped = False
) -> None:
    """Copy a checkpoint without a topic, as after it was deleted. If it is still subscribed to, it is read from its start."""
    from headrace.spark.checkpoints.copies import forget_topic

    checkpoint = opened(location)
    _copy(checkpoint, copy, forget_topic(checkpoint, topic), stopped=stopped)


@checkpoint_app.command(name="export")
@grouped
def export_command(
    location: Location,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new folder for the copy; for run, one for savepoints.")],
    *,
    to: Annotated[str, typer.Option(help="jvm: Spark's own Kafka connector. run: headrace run.")],
    stopped: Stopped = False,
    client: ClientOptions,
) -> None:
    """Let a query continue elsewhere: with format("kafka") from a copy of its checkpoint, or in headrace run from a savepoint.

    The last batch has to be committed, so that everything before the positions is written. The savepoint's file is printed. A
    checkpoint of Spark's own Kafka connector becomes a savepoint, too; it has no topic ids, so that needs --bootstrap.
    """
    if to not in ("jvm", "run"):
        raise UsageError(f"--to must be jvm or run, not {to!r}")
    checkpoint = opened(location)
    cluster = _cluster(client)
    if to == "jvm":
        from headrace.spark.checkpoints.copies import export_to_jvm

        _copy(checkpoint, target, export_to_jvm(checkpoint), stopped=stopped)
        return
    from headrace.runners.local.storage.folder import local_folder
    from headrace.spark.checkpoints.copies import QUIET_S
    from headrace.spark.checkpoints.savepoints import export_to_run

    typer.echo(export_to_run(checkpoint, local_folder(target), cluster, quiet_s=0.0 if stopped else QUIET_S))
    note("headrace run starts with it by --from-savepoint; do not start the query again alongside it")


_MOST_DIGITS = len(str(2**63))


def parse_positions(texts: Iterable[str]) -> dict[tuple[str, int], int]:
    """From `topic:partition=offset`. Raises UsageError."""
    found: dict[tuple[str, int], int] = {}
    for text in texts:
        place, _, offset = text.partition("=")
        topic, _, partition = place.rpartition(":")
        if not topic or not all(number.isascii() and number.isdigit() for number in (partition, offset)):
            raise UsageError(f"--offset {text!r} is not TOPIC:PARTITION=OFFSET")
        if len(partition) > _MOST_DIGITS or len(offset) > _MOST_DIGITS or int(offset) >= 2**63:
            raise UsageError(f"--offset {text!r}: an offset of Kafka is at most 2**63 - 1")
        if (topic, int(partition)) in found:
            raise UsageError(f"--offset names {topic}:{partition} twice")
        found[topic, int(partition)] = int(offset)
    return found


def _cluster(client: ClientOptions) -> KafkaCluster | None:
    """The cluster that the options, or the environment, name; None where they name none."""
    is_given = any(each is not None for each in astuple(client))
    return client.connect() if is_given or os.environ.get(BOOTSTRAP_VARIABLE) else None


def _copy(checkpoint: SparkCheckpoint, to: str, plan: CopyPlan, *, stopped: bool) -> None:
    from headrace.spark.checkpoints.copies import QUIET_S, write_copy

    with _usable(to):
        write_copy(checkpoint, to, plan, quiet_s=0.0 if stopped else QUIET_S)
    note(f"written to {to}; {checkpoint.location} is as it was")


# --- what is printed --------------------------------------------------------------------------------------------------


def _batches(checkpoint: SparkCheckpoint) -> Listing:
    rows = []
    for number in sorted({*checkpoint.planned, *checkpoint.committed}):
        batch = checkpoint.planned.get(number)
        state = "committed" if number in checkpoint.committed else "planned"
        times = (None, None) if batch is None else (instant(batch.planned_ms), instant(batch.watermark_ms or None))
        rows.append((number, state, *times, 0 if batch is None else len(batch.sources)))
    return Listing("batch", "Batches", ("batch", "state", "planned at", "watermark", "sources"), rows)


def _offsets(checkpoint: SparkCheckpoint, number: int | None, cluster: KafkaCluster | None) -> list[Listing]:
    from headrace.spark.checkpoints.findings import partition_states
    from headrace.spark.checkpoints.positions import OffsetForm, stored_positions

    if number is None and checkpoint.last_planned is None:
        return []
    rows: list[Sequence[object]] = []
    others: list[Sequence[object]] = []
    for source in checkpoint.batch(number).sources:
        positions = stored_positions(source.text)
        if positions.form is OffsetForm.OTHER:
            others.append((source.name, source.text))
            continue
        ends = [] if cluster is None else [(state.end, state.lag) for state in partition_states(cluster, positions)]
        for at, split in enumerate(positions):
            reported = (source.name, positions.form.value, split.topic, _topic_id(split))
            rows.append((*reported, split.partition, split.next_offset, *(ends[at] if ends else ())))
    shown = checkpoint.last_planned if number is None else number
    columns = ("source", "form", "topic", "topic id", "partition", "offset", *(() if cluster is None else ("end", "lag")))
    return [
        Listing("offset", f"Offsets after batch {shown}", columns, rows),
        Listing("other", "Other sources", ("source", "text"), others),
    ]


def _topic_id(split: KafkaSplit) -> str | None:
    return None if split.topic_id is None else str(split.topic_id)


def _differences(first: SparkCheckpoint, second: SparkCheckpoint, number: int | None) -> list[Listing]:
    facts = [
        ("id", first.query_id, second.query_id),
        ("last planned", first.last_planned, second.last_planned),
        ("last committed", first.last_committed, second.last_committed),
    ]
    before, after = (_positions(checkpoint, number) for checkpoint in (first, second))
    if not all(topic_id for _, _, topic_id, _ in (*before, *after)):  # the JVM connector stores none
        before, after = _by_name(before), _by_name(after)
    places = sorted({*before, *after}, key=str)
    rows = [
        (*place, one, other, None if one is None or other is None else other - one)
        for place in places
        if (one := before.get(place)) != (other := after.get(place))
    ]
    texts, others = (_other_texts(checkpoint, number) for checkpoint in (first, second))
    reported = [(source, texts.get(source), others.get(source)) for source in sorted({*texts, *others})]
    columns = ("source", "topic", "topic id", "partition", "first", "second", "difference")
    return [
        Listing("query", "Queries", ("what", "first", "second"), [fact for fact in facts if fact[1] != fact[2]]),
        Listing("offset", "Offsets", columns, rows),
        Listing("other", "Other sources", ("source", "first", "second"), [row for row in reported if row[1] != row[2]]),
    ]


StoredPlace = tuple[str, str, str | None, int]  # source, topic, topic id, partition


def _by_name(positions: dict[StoredPlace, int]) -> dict[StoredPlace, int]:
    return {(source, topic, None, partition): at for (source, topic, _, partition), at in positions.items()}


def _other_texts(checkpoint: SparkCheckpoint, number: int | None) -> dict[str, str | None]:
    from headrace.spark.checkpoints.positions import OffsetForm, stored_positions

    if number is None and checkpoint.last_planned is None:
        return {}
    sources = checkpoint.batch(number).sources
    return {source.name: source.text for source in sources if stored_positions(source.text).form is OffsetForm.OTHER}


def _positions(checkpoint: SparkCheckpoint, number: int | None) -> dict[StoredPlace, int]:
    from headrace.spark.checkpoints.positions import stored_positions

    if number is None and checkpoint.last_planned is None:
        return {}
    return {
        (source.name, split.topic, _topic_id(split), split.partition): split.next_offset
        for source in checkpoint.batch(number).sources
        for split in stored_positions(source.text)
    }
