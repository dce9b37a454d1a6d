"""`headrace verify`: whether every record of the input topic is in the output, a topic or a table, exactly once.

Topics are read under read_committed up to where they end now, a Delta or Iceberg table in its newest version; `compare.py`
explains the comparison and its limits. Compare when the job has caught up or stopped: records that it has not written yet
count as lost.

**Epochs.** The log does not record which transactions made up an epoch. A job's list of committables does, for its last epoch,
until that is completed. For that epoch `verify` reports how many transactions are committed, aborted and open. An epoch with
committed and aborted ones is partially committed until the job (or `headrace transactions commit`) repairs it. Earlier epochs
are unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.compare import Identity, OrderCheck, RecordFault, RecordField, RowIdentity, TopicCounts, parse_origin
from headrace.cli.durable_lists import DurableLists, read_lists
from headrace.cli.options import ClientOptions, grouped, is_given
from headrace.cli.output import Listing, escaped, note, progress, show
from headrace.cli.tables import TableOptions
from headrace.connectors.kafka.write.names import EACH_ROWS_TOPIC, digest_of, parse_key
from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.kafka.client.cluster import KafkaCluster
    from headrace.connectors.kafka.log_dump import TransactionStatus
    from headrace.connectors.kafka.read.source import KafkaSource

_FOR_BOTH = ("before", "columns", "identity", "id_header", "examples", "bootstrap", "properties", "properties_file")
_ORIGIN = ("topic", "partition", "offset")


# --- epochs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EpochState:
    """The outcomes of the transactions of a job's recorded epoch."""

    job: str
    epoch: int
    fates: Mapping[TransactionStatus, int]

    @property
    def is_torn(self) -> bool:
        """Some are committed and others aborted."""
        from headrace.connectors.kafka.log_dump import TransactionStatus

        return bool(self.fates.get(TransactionStatus.COMMITTED)) and bool(self.fates.get(TransactionStatus.ABORTED))


def epoch_states(cluster: KafkaCluster, lists: DurableLists, topic: str) -> list[EpochState]:
    """Of every job whose list is not completed and names a transaction that wrote to the topic."""
    from headrace.connectors.kafka.log_dump import fate_of

    return [
        EpochState(parse_key(key).job, commits.epoch, Counter(fate_of(cluster, handle) for handle in commits.handles))
        for key, commits in lists.incomplete().items()
        if commits.epoch is not None and any(written.topic == topic for handle in commits.handles for written in handle.ranges)
    ]


def unread_lists(lists: DurableLists, topic: str) -> list[tuple[str, str]]:
    """Job and reason of each list that cannot be read, and may name transactions that wrote to the topic."""
    destinations = {digest_of(topic), digest_of(EACH_ROWS_TOPIC)}
    return [(parse_key(key).job, why) for key, why in lists.unreadable.items() if parse_key(key).digest in destinations]


# --- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicReader:
    """Reads topics of a cluster."""

    cluster: KafkaCluster
    properties: Mapping[str, str]

    def batches(self, topic: str, columns: Sequence[str]) -> Generator[pa.RecordBatch]:
        """All of a topic under read_committed, up to where it ends now, with a bar on a terminal."""
        offsets = sum(stable - first for first, stable, _ in self._ends(topic).values())
        with progress(f"reading {topic}", offsets) as advance, self.source(topic, columns).batches() as batches:
            for batch in batches:
                yield batch
                advance(batch.num_rows)

    def source(self, topic: str, columns: Sequence[str]) -> KafkaSource:
        """Under read_committed, up to its end at the start. A time that does not fit is null: a producer may claim any."""
        from headrace.connectors.kafka.client.positions import Latest
        from headrace.connectors.kafka.read.source import KafkaSource

        given = {name: value for name, value in self.properties.items() if name not in ("isolation.level", "group.id")}
        return KafkaSource(
            given["bootstrap.servers"],
            topics=[topic],
            stop=Latest(),
            columns=tuple(dict.fromkeys(columns)),
            bad_timestamps="null",
            properties=given,
        )

    def note_hidden(self, topic: str) -> None:
        """Report where an open transaction hides the rest of a partition from readers."""
        for (_, partition), (_, stable, end) in sorted(self._ends(topic).items()):
            if stable < end:
                note(f"{topic}-{partition}: an open transaction hides {end - stable} offsets from offset {stable} on")

    def _ends(self, topic: str) -> dict[tuple[str, int], tuple[int, int, int]]:
        from headrace.connectors.kafka.client.positions import Earliest, Latest
        from headrace.connectors.kafka.client.properties import Isolation

        keys = [(topic, number) for number in self.cluster.topics([topic])[topic].partitions]
        first = self.cluster.list_offsets(dict.fromkeys(keys, Earliest()))
        stable = self.cluster.list_offsets(dict.fromkeys(keys, Latest()), Isolation.READ_COMMITTED)
        end = self.cluster.list_offsets(dict.fromkeys(keys, Latest()), Isolation.READ_UNCOMMITTED)
        return {key: (first[key].offset or 0, stable[key].offset or 0, end[key].offset or 0) for key in keys}


@dataclass(slots=True)
class Comparison:
    """`examples`: finding to the first records found: topic, partition, offset (each None for a table's row), identity."""

    identity: Identity
    order: OrderCheck | None
    most_examples: int
    counts: TopicCounts = field(init=False)
    examples: dict[str, list[Sequence[object]]] = field(default_factory=dict)
    lost: int = 0

    def __post_init__(self) -> None:
        self.counts = TopicCounts(self.identity.nothing)

    def read(self, topics: TopicReader, before: str, output: Iterable[pa.RecordBatch], by: Identity | RowIdentity) -> None:
        """Read the topic and the output; and the topic again, as far as needed, to name lost records."""
        for batch in topics.batches(before, self.identity.columns):
            self.counts.add_input(self.identity.hashes(batch))
        for batch in output:
            for index, finding in self.counts.add_output(by.hashes(batch)):
                self._note(finding, by, batch, index)
            self._check_order(batch)
        self.lost = self.counts.lost
        wanted = min(self.lost, self.most_examples)
        with closing(topics.batches(before, [*self.identity.columns, *_ORIGIN])) as again:
            while len(self.examples.get(RecordFault.LOST, ())) < wanted and (read := next(again, None)) is not None:
                for index in self.counts.lost_among(self.identity.hashes(read)):
                    self._note(RecordFault.LOST, self.identity, read, index)

    def _check_order(self, batch: pa.RecordBatch) -> None:
        if self.order is None:
            return
        partitions = batch.column("partition").to_pylist()
        for index, headers in enumerate(batch.column("headers").to_pylist()):
            if self.order.add(partitions[index], headers):
                self._note("disorder", self.identity, batch, index)

    def _note(self, finding: str, identity: Identity | RowIdentity, batch: pa.RecordBatch, index: int) -> None:
        examples = self.examples.setdefault(finding, [])
        if len(examples) < self.most_examples:
            (parts,) = identity.parts(batch.slice(index, 1))
            is_record = isinstance(identity, Identity)
            place = [batch.column(name)[index].as_py() if is_record else None for name in _ORIGIN]
            examples.append((*place, " ".join(map(escaped, parts))))


# --- the command -------------------------------------------------------------------------------------------------------


@grouped
def verify_command(
    context: typer.Context,
    *,
    before: Annotated[str, typer.Option("--input", help="The topic that was read.", metavar="TOPIC")],
    after: Annotated[str | None, typer.Option("--output", help="The topic that was written.", metavar="TOPIC")] = None,
    tables: TableOptions,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of the table that hold the identity. Default: its own name(s).", metavar="COLUMN,..."),
    ] = None,
    identity: Annotated[
        RecordField, typer.Option("--identity", "--by", help="The part of a record that identifies it.")
    ] = RecordField.VALUE,
    id_header: Annotated[
        list[str] | None, typer.Option(help="Identify records by this header instead. May be repeated.")
    ] = None,
    origin_headers: Annotated[
        str | None,
        typer.Option(
            help="Headers of the output that name each record's origin: checks the order.", metavar="TOPIC,PARTITION,OFFSET"
        ),
    ] = None,
    commit_topic: Annotated[
        str | None, typer.Option(help="Report partially committed epochs, from the lists of committables in this topic.")
    ] = None,
    examples: Annotated[int, typer.Option(help="Number of records to name for each kind of finding.", min=0)] = 10,
    client: ClientOptions,
) -> None:
    """Check that every record of one topic is in another, or in a table, exactly once. Exit status 1 if not.

    Topics are read under read_committed. A table (`--delta`, `--iceberg`, in place of `--output`) is compared by its
    `--columns`: bytes, texts (as UTF-8) or whole numbers (as digits). `--by position` compares partition and offset.

    Plain lines are `duplicate`, `lost`, `foreign` and `disorder` (topic, partition, offset, identity; the first of each) and
    `epoch` (job, epoch, committed, aborted, open, unknown, partially committed or not). The last line is
    `N records in, N out, D duplicates, L lost, F foreign`.

    Records without the key or the headers that are asked for end it with status 1, too: they are not compared. So does a list
    of the output that cannot be read.

    Records are identified by a hash of 128 bits; each takes about 150 bytes of memory. Run it when the job has caught up.
    Partially committed epochs (some transactions committed, others aborted) can be detected for a job's last epoch only, while
    its list is incomplete.
    """
    table = tables.named(context, *_FOR_BOTH)
    if table is None and after is None:
        raise UsageError("give --output, --delta or --iceberg")
    if id_header and is_given(context, "identity"):
        raise UsageError("give either --id-header or --by: a record is identified by one of them")
    by = Identity(identity, tuple(id_header or ()))
    rows_by = None if table is None else _row_identity(by, columns)
    if table is None and (columns is not None or by.field is RecordField.POSITION):
        raise UsageError("--columns and --by position are for a table: give --delta or --iceberg")
    comparison = Comparison(by, parse_origin(origin_headers), examples)
    given = client.client_properties()
    cluster = client.connect()
    if commit_topic is not None:
        cluster.topics([commit_topic])  # it was named: epochs that are not looked at are not well
    topics = TopicReader(cluster, given)
    partial = 0
    if table is not None and rows_by is not None:
        comparison.read(topics, before, table.sink.log().load().batches(rows_by.columns), rows_by)
    elif after is not None:
        read = [*by.columns, *_ORIGIN, *(["headers"] if comparison.order else [])]
        comparison.read(topics, before, topics.batches(after, read), by)
        topics.note_hidden(after)
        partial = _report_epochs(cluster, commit_topic, after)
    _report(comparison, partial)


def _row_identity(by: Identity, columns: str | None) -> RowIdentity:
    """The columns of the rows that stand for a record's identity. Raises UsageError for what cannot be compared."""
    if columns is None and by.headers:
        raise UsageError("name the columns of the table that hold the headers by --columns")
    names = by.columns if columns is None else tuple(name.strip() for name in columns.split(","))
    wanted = len(by.headers) or len(by.columns)
    if len(names) != wanted or not all(names):
        raise UsageError(f"--columns names {len(names)} column(s), and a record is identified by {wanted}")
    return RowIdentity(names)


def _report(comparison: Comparison, partial: int) -> None:
    """Print what was found. Raises typer.Exit if anything is wrong, or could not be compared."""
    for finding, rows in comparison.examples.items():
        show(Listing(finding, finding.capitalize(), ("topic", "partition", "offset", "identity"), rows))
    disorder = _report_order(comparison.order)
    counts = comparison.counts
    if counts.repeated:
        note(f"{counts.repeated} input records repeat an identity: such records are counted, not distinguished")
    if counts.unidentified:
        missing = f"header {' or '.join(by.headers)}" if (by := comparison.identity).headers else "key"
        note(f"{counts.unidentified} records of both have no {missing}: they are counted, and not identified")
    typer.echo(counts.summary(comparison.lost))
    if counts.unidentified or comparison.lost or counts.duplicates or counts.foreign or partial or disorder:
        raise typer.Exit(1)


def _report_epochs(cluster: KafkaCluster, commit_topic: str | None, topic: str) -> int:
    """Print the epochs of the topic. Returns how many are partially committed, or on a list that cannot be read."""
    from headrace.connectors.kafka.log_dump import TransactionStatus

    if commit_topic is None:
        return 0
    lists = read_lists(cluster, commit_topic)
    states = epoch_states(cluster, lists, topic)
    rows: list[Sequence[object]] = []
    for state in states:
        partial = "partially committed" if state.is_torn else "not partially committed"
        rows.append((state.job, state.epoch, *(state.fates.get(fate, 0) for fate in TransactionStatus), partial))
    show(Listing("epoch", "Incomplete epochs", ("job", "epoch", *(fate.value for fate in TransactionStatus), "partial"), rows))
    unread = unread_lists(lists, topic)
    for job, reason in unread:
        note(f"job {job}: the state of its epoch is unknown: {reason}")
    return len(unread) + sum(state.is_torn for state in states)


def _report_order(order: OrderCheck | None) -> int:
    if order is None:
        return 0
    if order.unmarked:
        note(f"{order.unmarked} output records have no origin headers: their order is not checked")
    note(
        f"{order.violations} records are out of order: behind a later one of the same input partition, in one output partition"
    )
    return order.violations + order.unmarked
