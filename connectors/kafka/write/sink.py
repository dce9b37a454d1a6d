"""Kafka as a two-phase-commit sink: rows in transactions that any process can end, and that survive whoever wrote them.

Transactional ids are made in `names.py`. One is taken over by InitProducerId before every transaction.
"""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.capabilities import (
    Confirmation,
    GroupedEnd,
    OutageRetry,
    PromptLookup,
    RowRouting,
    RowSharding,
    Warmable,
    another_write,
)
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.dead_letters import parted
from headrace.connectors.base.immediate import ImmediateSink
from headrace.connectors.base.jobs import check_job, is_one_off
from headrace.connectors.base.sink import Attempt, CommitList, Committer, Outcome, RecordedEpoch, Transaction, TwoPhaseSink
from headrace.connectors.formats.value_format import ValueFormat
from headrace.connectors.kafka.client.arguments import client_config
from headrace.connectors.kafka.client.cluster import KafkaCluster, enduring_cluster
from headrace.connectors.kafka.client.errors import BrokerError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.sasl import SaslConfig
from headrace.connectors.kafka.format.encode import (
    MAX_BATCH_BYTES,
    Codec,
    EncodedBatch,
    RecordEncoder,
    check_column,
    key_partitions,
)
from headrace.connectors.kafka.write.commit_log import CommitLog, DriverLog
from headrace.connectors.kafka.write.handles import KafkaHandle, KafkaHandleSerializer, WrittenRange
from headrace.connectors.kafka.write.names import (
    DEFAULT_COMMIT_TOPIC,
    DEFAULT_PREFIX,
    EACH_ROWS_TOPIC,
    JobNames,
    Role,
    digest_of,
    parse_key,
    parse_name,
)
from headrace.connectors.kafka.write.produce import BatchSender, OutBatch, idempotent_sender, transactional_sender
from headrace.connectors.kafka.write.transaction_log import BatchCopier, outcome_of
from headrace.connectors.kafka.write.transactions import (
    ENDED_BY_OTHERS,
    Answer,
    Producer,
    TransactionDescription,
    TransactionProtocol,
    TransactionResult,
    Transactions,
    in_parallel,
)
from headrace.enumerator.errors import DeadlineExceededError, HeadraceError, StateError, UsageError

__all__ = ["AtLeastOnceKafkaSink", "KafkaSink"]

log = logging.getLogger(__name__)

_TIME_LEFT = 0.1  # a transaction with less than this share of its time to go, and than 10 s, is not put on the durable list
_TIME_LEFT_MS = 10_000
_LONGEST_BOUNDED_MS = 60_000
_LONGEST_EXPIRY_MS = 60_000  # coordinators look for what is past its timeout every 10 s
_SERIALIZER = KafkaHandleSerializer()
_LISTS = CommitListSerializer(_SERIALIZER)
_TOPIC_COLUMN = "topic"


@dataclass(frozen=True)
class KafkaSink(TwoPhaseSink[KafkaHandle], RowRouting, RowSharding, PromptLookup, OutageRetry, Warmable):
    """Writes rows with the columns `value`, and optionally `key`, `headers`, `partition`, `timestamp`, `topic`, exactly once.

    Readers of the output have to use `isolation.level=read_committed`. Arguments, all but the first by keyword:

    - `bootstrap`: `host:port`, several with commas between.
    - `topic`: where all rows go; None (default) takes each row's column `topic`.
    - `properties`: the Java client's names and values ("compression.type", ...). One that cannot be honoured, or says otherwise
      than an argument, is refused.
    - `transactional_id_prefix`: what all transactional ids start with; letters, digits, `-` and `_`; default "headrace". Jobs
      of different applications on one cluster should differ in it.
    - `commit_topic`: the compacted topic of the lists of committables, made if need be; default "headrace-commits".
    - `transaction_timeout_ms`: after so many milliseconds the broker aborts what was not committed: longer than an outage of
      the job. Default: the property `transaction.timeout.ms`, else 15 minutes, the most that brokers allow by default.
    - `sasl`: who logs in, in place of the properties; needed for OAUTHBEARER, whose tokens a Python object provides.
    - `value`, `key`: formats of `headrace.formats` that encode these columns (default None: they are bytes or strings). A row
      that its format cannot hold is an error of the write.

    A row whose column `deadLetter` is not null is written to the topic that stands there, as it stands there, and its other
    columns are not; see `headrace.connectors.base.dead_letters`.

    A value that is checked when made, hashable and picklable; contacts nobody. Raises UsageError for anything that contradicts
    itself.
    """

    bootstrap: str
    topic: str | None = field(default=None, kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False, hash=False)
    transactional_id_prefix: str = field(default=DEFAULT_PREFIX, kw_only=True)
    commit_topic: str = field(default=DEFAULT_COMMIT_TOPIC, kw_only=True)
    transaction_timeout_ms: int | None = field(default=None, kw_only=True)
    sasl: SaslConfig | None = field(default=None, kw_only=True)
    value: ValueFormat | None = field(default=None, kw_only=True, compare=False)
    key: ValueFormat | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        _check_formats(self.value, self.key)
        check_job(self.transactional_id_prefix)
        if self.topic is not None:
            _check_topic("topic", self.topic)
        _check_topic("commit_topic", self.commit_topic)
        if self.topic == self.commit_topic:
            raise UsageError(f"topic and commit_topic are both {self.topic!r}: the lists of transactions need their own topic")
        _ = self.config

    @functools.cached_property
    def config(self) -> ClientConfig:
        """The client configuration that the arguments and `properties` make."""
        arguments = {"transaction_timeout_ms": ("transaction.timeout.ms", self.transaction_timeout_ms)}
        return client_config(self.bootstrap, self.properties, arguments, sasl=self.sasl)

    @property
    def handles(self) -> KafkaHandleSerializer:
        """Versioned JSON."""
        return _SERIALIZER

    def begin(self, attempt: Attempt) -> KafkaTransaction:
        """A transaction; nothing is contacted before its first row."""
        check_job(attempt.job)
        return KafkaTransaction(self, attempt)

    def committer(self, job: str) -> KafkaCommitter:
        """The one for this job's driver."""
        return KafkaCommitter(self, check_job(job))

    def shards_of(self, rows: pa.RecordBatch, shards: int) -> pa.Int32Array:
        """Records of one key, and those that name one partition, go through one transaction: there is no order between two.

        Keys are placed as in partitions, so that with a multiple of `shards` partitions each one is written by one shard.
        """
        rows = _encoded(rows, self)
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        found = key_partitions(columns["key"], shards) if "key" in columns else pa.nulls(rows.num_rows, pa.int32())
        if "partition" in columns:
            own = columns["partition"]
            check_column("partition", own.type)
            rounds = pc.multiply(pc.divide(own, shards), shards)
            found = pc.coalesce(pc.abs(pc.subtract(own, rounds)).cast(pa.int32()), found)
        return found

    @property
    def destination(self) -> str:
        """What lists, transactional ids and fencing are bound to: the topic, or that each row has its own."""
        return EACH_ROWS_TOPIC if self.topic is None else self.topic

    def recorded(self) -> Mapping[str, RecordedEpoch]:
        """From the commit topic: the lists of this prefix and destination. Damaged lists are left out, with a warning."""
        return self._epochs_of(self.commit_log().read())

    def recorded_now(self) -> Mapping[str, RecordedEpoch]:
        """As `recorded`, from what is committed there now."""
        return self._epochs_of(self.commit_log().decided())

    def _epochs_of(self, lists: Mapping[str, bytes]) -> Mapping[str, RecordedEpoch]:
        found: dict[str, RecordedEpoch] = {}
        for key, data in lists.items():
            job = parse_key(key).job
            if key != self.names(job).key:
                continue
            try:
                commits = self.read_list(key, data)
            except StateError as error:
                log.warning("%s; it is left alone", error)
                continue
            if commits.epoch is not None:
                found[job] = RecordedEpoch(commits.epoch, commits.targets, commits.content, commits.claim)
        return found

    def open_transactions(self) -> Mapping[str, Sequence[float]]:
        """Job to the ages, in seconds, of its open transactions at this destination. Asks every broker, for a minute at most.

        An age is the time on this machine's clock since the start on that of the coordinator.
        """
        transactions = Transactions(self.bounded().cluster())
        found = transactions.describe(transactions.ongoing(f"{self.transactional_id_prefix}."))
        now_ms = time.time() * 1000
        ages: dict[str, list[float]] = {}
        for transactional_id, described in found.items():
            name = parse_name(transactional_id)
            if name is None or described is None or described.started_ms is None:
                continue
            if name.digest == digest_of(self.destination):
                ages.setdefault(name.job, []).append(max(0.0, now_ms - described.started_ms) / 1000)
        return ages

    def read_list(self, key: str, data: bytes) -> CommitList[KafkaHandle]:
        """A record of the commit topic. Raises StateError for a damaged one, or one of another destination."""
        where = f"{self.commit_topic}, key {key!r}"
        commits = _LISTS.deserialize(data, where)
        if commits.destination != self.destination:
            raise StateError(f"{where}: this is a list for {commits.destination}, not for {self.destination}")
        return commits

    @property
    def rows_name_targets(self) -> bool:
        """Where the sink has no topic for all."""
        return self.topic is None

    def targets_of(self, rows: pa.RecordBatch) -> frozenset[str]:
        """The topics that rows name; nothing where the sink has a topic for all."""
        if not self.rows_name_targets:
            return frozenset()
        named = [part for part in parted(rows) if part is not None and _TOPIC_COLUMN in part.schema.names]
        return frozenset(str(name) for part in named for name in part.column(_TOPIC_COLUMN).unique().to_pylist())

    def names(self, job: str) -> JobNames:
        """The transactional ids of a job at this destination."""
        return JobNames(self.transactional_id_prefix, job, self.destination)

    def cluster(self) -> KafkaCluster:
        """The process's connections to this cluster. Calls ride out an outage: an engine would end the job for one task."""
        return enduring_cluster(self.config)

    def bounded(self) -> KafkaSink:
        """With a `default.api.timeout.ms` and a `delivery.timeout.ms` of a minute at most.

        Of what the properties stood for when this sink was made: what `${env:...}` and `${file:...}` name need not be here.
        """
        config = self.config
        call_ms = min(config.default_api_timeout_ms or _LONGEST_BOUNDED_MS, _LONGEST_BOUNDED_MS)
        delivery_ms = max(min(config.longest_delivery_ms or call_ms, call_ms), config.request_timeout_ms)
        limits = {"default.api.timeout.ms": str(call_ms), "delivery.timeout.ms": str(delivery_ms)}
        bounded = copy.copy(self)  # unlike a new one, it resolves nothing
        named = {**{name.lower(): value for name, value in self.properties.items()}, **limits}
        limited = replace(config, default_api_timeout_ms=call_ms, delivery_timeout_ms=delivery_ms)
        bounded.__dict__.update(properties=named, config=limited)
        return bounded

    def reached(self) -> None:
        """Calls of this process wait from the first one on: a minute is not a limit to them."""
        enduring_cluster(self.config).vouch()

    def warm(self) -> None:
        """By one look at the topic, in one try."""
        if self.topic is not None:
            self.cluster().warm({self.topic})

    def warm_driver(self) -> None:
        """By a look at the commit topic, which tasks never read."""
        topics = {self.commit_topic} if self.topic is None else {self.commit_topic, self.topic}
        self.cluster().warm(topics)  # in one try: while no broker answers, the next call would wait for one
        self.recorded_now()

    def commit_log(self) -> CommitLog:
        """Where the durable lists are."""
        return _commit_log(self.config, self.commit_topic)


@functools.lru_cache(maxsize=16)
def _commit_log(config: ClientConfig, topic: str) -> CommitLog:
    """Kept with the process, so that only what is new is read for every epoch."""
    return CommitLog(enduring_cluster(config), topic)


_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


def _check_formats(*formats: object) -> None:
    for each in formats:
        if not isinstance(each, ValueFormat | None):
            raise UsageError(f"value and key must be formats of headrace.formats, not {each!r}")


def _encoded(rows: pa.RecordBatch, sink: KafkaSink | AtLeastOnceKafkaSink) -> pa.RecordBatch:
    """The rows with keys and values as bytes. Raises UsageError, which names the row, for what a format cannot hold."""
    for name, form in (("key", sink.key), ("value", sink.value)):
        if form is not None and name in rows.schema.names:
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, name, form.encode(rows.column(index)))
    return rows


def _check_topic(argument: str, topic: object) -> None:
    """Raise UsageError for what can be no topic's name."""
    if not isinstance(topic, str) or not _TOPIC_NAME.fullmatch(topic):
        hint = ": one name; rows for several topics have a column 'topic'" if isinstance(topic, list | tuple | set) else ""
        raise UsageError(f"{argument} must be a topic's name (1 to 249 letters, digits, '.', '_' and '-'), not {topic!r}{hint}")


class _Rows:
    """Rows on their way to record batches: an encoder for each topic, all for one producer."""

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str | None,
        encoder: Callable[[int], RecordEncoder],
        commit_topic: str | None = None,
    ) -> None:
        """`encoder` makes one for so many partitions. No row may name the `commit_topic`."""
        self._cluster, self._topic, self._encoder, self._commit_topic = cluster, topic, encoder, commit_topic
        self._encoders: dict[str, RecordEncoder] = {}

    def write(self, rows: pa.RecordBatch, sender: BatchSender, letters: pa.RecordBatch | None = None) -> None:
        """Make batches, and send what is full. Of `letters` each names its topic, also where all other rows have one."""
        now_ms = time.time_ns() // 1_000_000
        others = [] if letters is None else _each_to_its_own(letters)
        for topic, part in [*(self._by_topic(rows) if rows.num_rows else ()), *others]:
            if topic == self._commit_topic:
                raise UsageError(f"a row names the topic {topic!r}, which holds the lists of transactions: choose another one")
            if topic not in self._encoders:
                partitions = len(self._cluster.topics([topic])[topic].partitions)
                self._encoders[topic] = self._encoder(partitions)
            sender.send(topic, self._out(topic, self._encoders[topic].append(part, now_ms)))

    def flush(self, sender: BatchSender) -> None:
        """Send the rest, and wait for every acknowledgement."""
        for topic, encoder in self._encoders.items():
            sender.send(topic, self._out(topic, encoder.flush()))
        sender.flush()

    def _out(self, topic: str, encoded: Sequence[EncodedBatch]) -> list[OutBatch]:
        """Raises UsageError for a record that alone is more than a request may hold."""
        most = self._cluster.config.max_request_size
        for batch in encoded:
            if most is not None and batch.records == 1 and len(batch.data) > most:
                raise UsageError(
                    f"a record for {topic}-{batch.partition} takes {len(batch.data)} bytes, and max.request.size is {most}: "
                    "raise it, and max.message.bytes of the topic if need be"
                )
        return [OutBatch(batch.partition, batch.data, batch.records) for batch in encoded]

    def _by_topic(self, rows: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        has_column = _TOPIC_COLUMN in rows.schema.names
        if self._topic is not None:
            return [(self._topic, rows.drop_columns([_TOPIC_COLUMN]) if has_column else rows)]
        if not has_column:
            raise UsageError(f"no topic: give the option 'topic', or a column {_TOPIC_COLUMN!r}; there are {rows.schema.names}")
        return _each_to_its_own(rows)


def _each_to_its_own(rows: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    """The rows by the topic that they name."""
    names = rows.column(_TOPIC_COLUMN)
    if names.null_count:
        raise UsageError(f"null topic present in the data: {names.null_count} of {rows.num_rows} rows have none")
    rest = rows.drop_columns([_TOPIC_COLUMN])
    return [(name, rest.filter(pc.equal(names, name))) for name in names.unique().to_pylist()]


class KafkaTransaction(Transaction[KafkaHandle]):
    """One attempt's transaction. Starts with its first row: a task without rows opens none."""

    def __init__(self, sink: KafkaSink, attempt: Attempt) -> None:
        """Contacts nobody."""
        self._sink, self._attempt = sink, attempt
        self._transactions = Transactions(sink.cluster())
        self._producer: Producer | None = None
        self._protocol = TransactionProtocol.V1
        self._started_ms = 0
        self._sender: BatchSender | None = None
        self._rows: _Rows | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises UsageError for rows that cannot be records, BrokerError for records that a broker refuses, and for the
        transaction timeout if it is longer than brokers allow."""
        if batch.num_rows == 0:
            return
        rest, letters = parted(batch)
        encoded = _encoded(rest, self._sink)
        sender, rows = self._begun()
        with self._explaining():
            rows.write(encoded, sender, letters)

    def prepare(self) -> KafkaHandle | None:
        """All acknowledged by all in-sync replicas."""
        if self._producer is None or self._sender is None or self._rows is None:
            return None
        try:
            with self._explaining():
                self._rows.flush(self._sender)
            ranges = _ranges(self._sink.cluster(), self._sender)
            self._refuse_after_decision()
        except BaseException:
            self.abort()
            raise
        handle = KafkaHandle(self._producer, self._protocol, self._started_ms, self._sink.config.transaction_timeout_ms, ranges)
        self._sender.close()
        self._producer = self._sender = None
        return handle

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Raise DeadlineExceededError for what a coordinator has aborted because it took too long, as in a long outage."""
        try:
            yield
        except BrokerError as error:
            timeout_ms = self._sink.config.transaction_timeout_ms
            open_ms = time.time_ns() // 1_000_000 - self._started_ms
            if error.code not in ENDED_BY_OTHERS or open_ms < timeout_ms:
                raise
            raise DeadlineExceededError(
                f"a transaction of task {self._attempt.task} timed out after {open_ms / 1000:.0f} s, before all of its rows "
                f"were written: nothing of it is visible, and the task has to be repeated. {_time_out(timeout_ms)}"
            ) from error

    def _refuse_after_decision(self) -> None:
        """Raise StateError if the write of its own that this is of has been committed or aborted: nobody cleans up after that.

        Checked with the transaction open: a driver that starts later finds it. The driver's id is used at the end only.
        """
        job = self._attempt.job
        if is_one_off(job):
            driver = self._sink.names(job).driver
            if self._transactions.describe([driver])[driver] is not None:
                raise StateError(
                    f"the write {job} is committed or aborted already: what this attempt at task {self._attempt.task} has "
                    "written too late is aborted"
                )

    def abort(self) -> None:
        """Abort, if the coordinator can be reached."""
        producer, sender, self._producer, self._sender = self._producer, self._sender, None, None
        if sender is not None:
            sender.close()
        if producer is not None:
            try:  # whatever has failed is not to wait for this
                bounded = Transactions(self._sink.bounded().cluster())
                bounded.abort(producer, self._protocol, self._sink.config.transaction_timeout_ms)
            except HeadraceError as error:
                log.warning("the transaction of %s could not be aborted now: %s", producer.transactional_id, error)

    def _begun(self) -> tuple[BatchSender, _Rows]:
        if self._sender is None or self._rows is None:
            cluster = self._sink.cluster()
            self._protocol = self._transactions.protocol()
            producer = self._producer = self._transactions.init(self._free_id(), self._sink.config.transaction_timeout_ms)
            self._started_ms = time.time_ns() // 1_000_000
            timeout_ms = self._sink.config.transaction_timeout_ms
            self._sender = transactional_sender(cluster, self._transactions, producer, self._protocol, timeout_ms)
            self._rows = _Rows(
                cluster,
                self._sink.topic,
                lambda partitions: _encoder(self._sink.config, partitions, producer),
                self._sink.commit_topic,
            )
        return self._sender, self._rows

    def _free_id(self) -> str:
        """The first of the task's ids, from its retry on, under which nothing is open: to take over one would abort it.

        An open one may be another attempt's that is running or has prepared; the driver aborts what nobody wants. One that was
        taken over and has nothing open is taken again: so a zombie is fenced before it writes. Should that one prepare between
        the look and the takeover, the driver's check refuses its handle before anything is recorded, and the epoch is repeated.
        """
        names, attempt = self._sink.names(self._attempt.job), self._attempt
        ids = (names.task(attempt.epoch, attempt.task, number) for number in itertools.count(attempt.retry))
        return next(name for name in ids if not self._is_open(name))

    def _is_open(self, transactional_id: str) -> bool:
        found = self._transactions.describe([transactional_id])[transactional_id]
        return found is not None and found.is_ongoing


def _topics(handles: Sequence[KafkaHandle]) -> tuple[str, ...]:
    return tuple(sorted({written.topic for handle in handles for written in handle.ranges}))


def _ranges(cluster: KafkaCluster, sender: BatchSender) -> tuple[WrittenRange, ...]:
    topics = {topic for topic, _ in sender.written}
    ids = {topic: cluster.retrying("looking up topics", functools.partial(cluster.topic_id, topic)) for topic in topics}
    return tuple(
        WrittenRange(topic, ids[topic], partition, written.first, written.last, written.records)
        for (topic, partition), written in sorted(sender.written.items())
    )


def _encoder(config: ClientConfig, partitions: int, producer: Producer) -> RecordEncoder:
    # As in Java, a batch.size of 0 gives every record its own batch, and a batch has to fit a request.
    batch_bytes = MAX_BATCH_BYTES if config.batch_size is None else max(1, config.batch_size)
    return RecordEncoder(
        partitions,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transactional=producer.transactional_id is not None,
        codec=Codec(config.compression_type),
        max_batch_bytes=min(batch_bytes, config.max_request_size or batch_bytes),
        compression_level=config.compression_level,
    )


@dataclass(frozen=True)
class AtLeastOnceKafkaSink(ImmediateSink):
    """Rows written by an idempotent producer, visible at once, and written again after a failure.

    Columns, and the arguments `bootstrap`, `topic`, `properties`, `sasl`, `value` and `key`, as `KafkaSink`.
    """

    bootstrap: str
    topic: str | None = field(default=None, kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False, hash=False)
    sasl: SaslConfig | None = field(default=None, kw_only=True)
    value: ValueFormat | None = field(default=None, kw_only=True, compare=False)
    key: ValueFormat | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        _check_formats(self.value, self.key)
        if self.topic is not None:
            _check_topic("topic", self.topic)
        _ = self.config

    @functools.cached_property
    def config(self) -> ClientConfig:
        """The client configuration that the arguments and `properties` make."""
        return client_config(self.bootstrap, self.properties, {}, sasl=self.sasl)

    def begin(self, attempt: Attempt) -> _AtLeastOnceTransaction:
        """Contacts nobody before its first row."""
        return _AtLeastOnceTransaction(self)


class _AtLeastOnceTransaction(Transaction[Any]):
    def __init__(self, sink: AtLeastOnceKafkaSink) -> None:
        self._sink = sink
        self._sender: BatchSender | None = None
        self._rows: _Rows | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        rest, letters = parted(batch)
        encoded = _encoded(rest, self._sink)
        if self._sender is None or self._rows is None:
            config, cluster = self._sink.config, enduring_cluster(self._sink.config)
            producer = Transactions(cluster).init_idempotent()
            self._sender = idempotent_sender(cluster)
            self._rows = _Rows(cluster, self._sink.topic, lambda partitions: _encoder(config, partitions, producer))
        self._rows.write(encoded, self._sender, letters)

    def prepare(self) -> None:
        try:
            if self._sender is not None and self._rows is not None:
                self._rows.flush(self._sender)
        finally:
            self.abort()

    def abort(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None


def _time_out(timeout_ms: int) -> str:
    return (
        f"From the first row to the commit, outages included, it may take {timeout_ms / 1000:g} s here "
        "(transaction.timeout.ms); the most that brokers allow is their transaction.max.timeout.ms, by default 15 minutes"
    )


class _Spent(NamedTuple):
    """How long a transaction has been open."""

    milliseconds: int
    timeout_ms: int
    transactional_id: str


def _spent(found: TransactionDescription, now_ms: int) -> _Spent:
    """By its coordinator's clock, which also ends it, and that of this machine; the writer's does not count."""
    spent_ms = 0 if found.started_ms is None else max(0, now_ms - found.started_ms)
    name = str(found.producer.transactional_id)
    if spent_ms > found.timeout_ms + _LONGEST_EXPIRY_MS:  # and it is Ongoing
        log.warning("the clocks of this machine and of the brokers differ by minutes: how long %s was open is not known", name)
        spent_ms = 0
    return _Spent(spent_ms, found.timeout_ms, name)


class KafkaCommitter(Committer[KafkaHandle], GroupedEnd[KafkaHandle], Confirmation[KafkaHandle]):
    """Ends a job's transactions."""

    def __init__(self, sink: KafkaSink, job: str) -> None:
        """Contacts nobody."""
        self._sink, self._job = sink, job
        self._cluster = sink.cluster()
        self._transactions = Transactions(self._cluster)
        self._names = sink.names(job)
        self._log = DriverLog(sink.commit_log(), self._transactions, self._names)
        self._last: RecordedEpoch | None = None

    def fence(self) -> CommitList[KafkaHandle] | None:
        """Take the driver's transactional id over, then read the commit topic to its end."""
        data = self._log.fence()
        if data is None:
            return None
        commits = self._sink.read_list(self._names.key, data)
        if commits.epoch is not None:
            self._last = RecordedEpoch(commits.epoch, commits.targets)
        return replace(commits, destination=None, targets=None)  # `record` binds it to the destination again

    def check(self, handles: Sequence[KafkaHandle]) -> None:
        """Every one Ongoing under its own producer, with time left.

        Raises DeadlineExceededError: nothing of the epoch is visible, and the next start writes it again.
        """
        known = self._transactions.describe([handle.transactional_id for handle in handles])
        now_ms = time.time_ns() // 1_000_000
        longest = _Spent(-1, 0, "")
        for handle in handles:
            found = known[handle.transactional_id]
            if found is None or not found.is_ongoing or found.producer != handle.producer:
                state = "unknown to the broker" if found is None else found.state
                raise DeadlineExceededError(
                    f"the transaction of {handle.transactional_id!r} is {state}, not prepared: it timed out, or another "
                    "attempt took its place. Nothing of this epoch is visible; it has to be written again. "
                    + _time_out(handle.timeout_ms)
                )
            longest = max(longest, _spent(found, now_ms))
        self._check_time(longest)

    def _check_time(self, spent: _Spent) -> None:
        """Raise DeadlineExceededError for too little time left.

        Warn when half of it is gone: a driver that dies now has little time to come back before a copy is needed.
        """
        left_ms = spent.timeout_ms - spent.milliseconds
        if left_ms < min(_TIME_LEFT_MS, _TIME_LEFT * spent.timeout_ms):
            raise DeadlineExceededError(
                f"the transaction of {spent.transactional_id!r} has {max(0, left_ms) / 1000:.0f} s left of its "
                f"{spent.timeout_ms / 1000:g}: raise transaction.timeout.ms, or write less in one batch"
            )
        if spent.milliseconds > spent.timeout_ms / 2:
            log.warning(
                "job %s: the transaction of %s was open for %.0f s of its %.0f before it could be committed; raise "
                "transaction.timeout.ms above the time between triggers and that of a restart",
                self._job,
                spent.transactional_id,
                spent.milliseconds / 1000,
                spent.timeout_ms / 1000,
            )

    def record(self, commits: CommitList[KafkaHandle]) -> None:
        """Write it to the commit topic, in a transaction of the driver's own."""
        self._log.write(_LISTS.serialize(replace(commits, destination=self._names.destination, targets=self._targets(commits))))

    def _targets(self, commits: CommitList[KafkaHandle]) -> tuple[str, ...] | None:
        """The topics that the epoch was written to, also of what is committed already and no longer in the list."""
        if commits.epoch is None:
            return None
        found: tuple[str, ...] | None = _topics(commits.handles)
        if self._last is not None and self._last.epoch == commits.epoch:
            known = self._last.targets
            found = None if known is None else tuple(sorted({*known, *_topics(commits.handles)}))
        self._last = RecordedEpoch(commits.epoch, found if self._sink.topic is None else None)
        return self._last.targets

    def confirm(self, handles: Sequence[KafkaHandle]) -> None:
        """Raise StateError for handles of topics that the recorded epoch was not written to."""
        known = None if self._last is None else self._last.targets
        others = set() if known is None else set(_topics(handles)) - set(known)
        if self._last is not None and others:
            raise another_write(self._job, self._last, others)

    def end(self, handle: KafkaHandle) -> Outcome:
        """Commit in the handle's version of the protocol. "Fenced" settles nothing: the log is asked then."""
        answer, _ = self._transactions.end(handle.producer, handle.protocol, TransactionResult.COMMIT)
        match answer:
            case Answer.DONE:
                return Outcome.COMMITTED
            case Answer.REFUSED:  # it is not empty, so it was aborted
                return Outcome.ABORTED
            case Answer.UNKNOWN:
                return outcome_of(self._cluster, handle)

    def end_all(self, handles: Sequence[KafkaHandle]) -> Sequence[Outcome]:
        """Several at once: what readers see of a part of the epoch, they see for milliseconds."""
        return in_parallel(self.end, handles)

    def copy(self, handles: Sequence[KafkaHandle]) -> KafkaHandle:
        """The aborted records are still in the log: read, made out to a new transaction, written again."""
        timeout_ms = self._sink.config.transaction_timeout_ms
        protocol = self._transactions.protocol()
        producer = self._transactions.init(self._names.repair, timeout_ms)
        started_ms = time.time_ns() // 1_000_000
        copier = BatchCopier(self._cluster, producer)
        sender = transactional_sender(self._cluster, self._transactions, producer, protocol, timeout_ms)
        try:
            for handle in handles:
                for topic, batch in copier.copies(handle):
                    sender.send(topic, [batch])
            sender.flush()
        except BaseException:
            self._abort_repair(producer, protocol)
            raise
        finally:
            sender.close()
        names = ", ".join(handle.transactional_id for handle in handles)
        log.warning("job %s: copied what was written by transactions that timed out before their commit: %s", self._job, names)
        return KafkaHandle(producer, protocol, started_ms, timeout_ms, _ranges(self._cluster, sender))

    def _abort_repair(self, producer: Producer, protocol: TransactionProtocol) -> None:
        """Until it is aborted, readers see nothing that comes after it."""
        try:
            bounded = Transactions(self._sink.bounded().cluster())
            bounded.abort(producer, protocol, self._sink.config.transaction_timeout_ms)
        except HeadraceError as error:
            log.warning("job %s: the transaction of a copy that failed could not be aborted now: %s", self._job, error)

    def clean_up(self, keep: Collection[KafkaHandle]) -> None:
        """Abort what is Ongoing under the job's prefix: losing attempts, and what a dead run has left."""
        kept = {handle.producer for handle in keep}
        names = [name for name in self._transactions.ongoing(self._names.beginning) if _is_of_attempt(name)]
        open_ones = [found for found in self._transactions.describe(names).values() if found is not None and found.is_ongoing]
        losers = [found for found in open_ones if found.producer not in kept]
        if losers:
            protocol = self._transactions.protocol()
            in_parallel(lambda found: self._transactions.abort(found.producer, protocol, found.timeout_ms), losers)

    def forget(self) -> None:
        """A tombstone in the commit topic."""
        self._log.remove()

    def start_over(self) -> None:
        """For an operator: forget the job's list though it cannot be read or is lost, and abort all that the job has open."""
        self._log.reset()
        self.clean_up(())

    def close(self) -> None:
        """Connections belong to the process."""


def _is_of_attempt(transactional_id: str) -> bool:
    """Not the driver's, which is in use."""
    name = parse_name(transactional_id)
    return name is not None and name.role is not Role.DRIVER
