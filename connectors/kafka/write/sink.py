"""Kafka as a two-phase-commit sink: rows in transactions that survive their writer, and that any process
can end.

Transactional ids are made in `names.py`. One is taken over by InitProducerId before every transaction.
"""

from __future__ import annotations

import copy
import functools
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.capabilities import (
    ExpiringTransactions,
    OutageRetry,
    PromptLookup,
    RowRouting,
    RowSharding,
    Warmable,
)
from headrace.connectors.base.dead_letters import parted
from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.nested import plain_rows
from headrace.connectors.base.sink import Attempt, CommitList, RecordedEpoch, TwoPhaseSink
from headrace.connectors.formats.value_format import ValueFormat
from headrace.connectors.kafka.client.arguments import client_config
from headrace.connectors.kafka.client.cluster import KafkaCluster, enduring_cluster
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.sasl import SaslConfig
from headrace.connectors.kafka.format.encode import check_column, key_partitions
from headrace.connectors.kafka.write.commit_log import CommitLog
from headrace.connectors.kafka.write.committer import LISTS, KafkaCommitter
from headrace.connectors.kafka.write.encoding import TOPIC_COLUMN, topic_names, without_origin
from headrace.connectors.kafka.write.handles import KafkaHandle, KafkaHandleSerializer
from headrace.connectors.kafka.write.names import (
    DEFAULT_COMMIT_TOPIC,
    DEFAULT_PREFIX,
    EACH_ROWS_TOPIC,
    JobNames,
    digest_of,
    parse_key,
    parse_name,
)
from headrace.connectors.kafka.write.transaction import KafkaTransaction
from headrace.connectors.kafka.write.transactions import Transactions
from headrace.enumerator.errors import StateError, UsageError

log = logging.getLogger(__name__)

_LONGEST_BOUNDED_MS = 60_000
_HANDLES = KafkaHandleSerializer()
_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class KafkaSinkOptions:
    """The arguments that all sinks of Kafka have; `KafkaSink` says what each means."""

    bootstrap: str
    topic: str | None = field(default=None, kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False, hash=False)
    sasl: SaslConfig | None = field(default=None, kw_only=True)
    value: ValueFormat | None = field(default=None, kw_only=True, compare=False)
    key: ValueFormat | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        for name in ("value", "key"):
            if not isinstance(getattr(self, name), ValueFormat | None):
                raise UsageError(f"value and key must be formats of headrace.formats, not {getattr(self, name)!r}")
        if self.topic is not None:
            check_topic("topic", self.topic)
        _ = self.config

    @functools.cached_property
    def config(self) -> ClientConfig:
        """The client configuration that the arguments and `properties` make."""
        return client_config(self.bootstrap, self.properties, self._arguments, sasl=self.sasl)

    @property
    def _arguments(self) -> Mapping[str, tuple[str, object]]:
        """Those that stand for a property: see `client_config`."""
        return {}

    @property
    def formats(self) -> Mapping[str, ValueFormat]:
        """Of the columns that are encoded. One without a format has the type of its part of a record."""
        return {name: each for name, each in (("key", self.key), ("value", self.value)) if each is not None}

    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as the encoder takes them: what an argument says about columns takes effect here.

        Raises UsageError, which names the row, for what a format cannot hold.
        """
        rows = without_origin(rows)
        for name, form in self.formats.items():
            if name in rows.schema.names:
                index = rows.schema.get_field_index(name)
                rows = rows.set_column(index, name, form.encode(rows.column(index)))
        return rows


@dataclass(frozen=True)
class KafkaSink(
    KafkaSinkOptions,
    TwoPhaseSink[KafkaHandle],
    RowRouting,
    RowSharding,
    PromptLookup,
    OutageRetry,
    ExpiringTransactions,
    Warmable,
):
    """Writes rows with the columns `value`, and optionally `key`, `headers`, `partition`, `timestamp`, `topic`, exactly once.

    Readers of the output have to use `isolation.level=read_committed`. Arguments, all but the first by keyword:

    - `bootstrap`: `host:port`, several with commas between.
    - `topic`: where all rows go; None (default) takes each row's column `topic`.
    - `properties`: the Java client's names and values ("compression.type", ...). One that cannot be honoured, or says otherwise
      than an argument, is refused.
    - `transactional_id_prefix`: what all transactional ids start with; letters, digits, `-` and `_`; default "headrace". Jobs
      of different applications on one cluster should differ in it. Keep it over restarts: under another one an unfinished
      epoch is written again.
    - `commit_topic`: the compacted topic of the lists of committables, made if need be; default "headrace-commits".
    - `transaction_timeout_ms`: after this many milliseconds the broker aborts what was not committed: longer than an outage of
      the job. Default: the property `transaction.timeout.ms`, else 15 minutes, the most that brokers allow by default.
    - `sasl`: who logs in, in place of the properties; needed for OAUTHBEARER, whose tokens a Python object provides.
    - `value`, `key`: formats of `headrace.formats` that encode these columns (default None: they are bytes or strings). A row
      that its format cannot hold is an error of the write.

    Rows as `KafkaSource` gives them can be written. Its `offset` and `timestampType` are left out, and with an `offset` the
    `partition` and `topic` too, which say where the row was read: the sink chooses the partition, and `topic` is needed.
    A `timestamp` of -1 ms, as a record without one is read, is like null: the time of the write.

    A row whose column `deadLetter` is not null is written to the topic that is there, as it is there, and its other
    columns are not; see `headrace.connectors.base.dead_letters`.

    A value that is checked when made, hashable and picklable; does no I/O. Raises UsageError for anything that contradicts
    itself.
    """

    transactional_id_prefix: str = field(default=DEFAULT_PREFIX, kw_only=True)
    commit_topic: str = field(default=DEFAULT_COMMIT_TOPIC, kw_only=True)
    transaction_timeout_ms: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        super().__post_init__()
        check_job(self.transactional_id_prefix)
        check_topic("commit_topic", self.commit_topic)
        if self.topic == self.commit_topic:
            raise UsageError(f"topic and commit_topic are both {self.topic!r}: the lists of transactions need their own topic")

    @property
    def _arguments(self) -> Mapping[str, tuple[str, object]]:
        return {"transaction_timeout_ms": ("transaction.timeout.ms", self.transaction_timeout_ms)}

    @property
    def handles(self) -> KafkaHandleSerializer:
        """Versioned JSON."""
        return _HANDLES

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
        rows = self.encoded(plain_rows(rows))
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

    @property
    def transaction_timeout_s(self) -> float:
        """`transaction_timeout_ms`, or the property of that name."""
        return self.config.transaction_timeout_ms / 1000

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
        commits = LISTS.deserialize(data, where)
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
        named = [part for part in parted(rows) if part is not None and TOPIC_COLUMN in part.schema.names]
        return frozenset(name for part in named for name in topic_names(part).unique().to_pylist())

    def names(self, job: str) -> JobNames:
        """The transactional ids of a job at this destination."""
        return JobNames(self.transactional_id_prefix, job, self.destination)

    def cluster(self) -> KafkaCluster:
        """The process's connections to this cluster. Calls ride out an outage: an engine would end the job for one task."""
        return enduring_cluster(self.config)

    def bounded(self) -> KafkaSink:
        """With a `default.api.timeout.ms` and a `delivery.timeout.ms` of a minute at most.

        Of what the properties represented when this sink was made: what `${env:...}` and `${file:...}` name need not be here.
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
        """By a check at the commit topic, which tasks never read."""
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


def is_topic_name(topic: object) -> bool:
    """Whether a topic may have this name, by the rule of brokers."""
    return isinstance(topic, str) and _TOPIC_NAME.fullmatch(topic) is not None


def check_topic(argument: str, topic: object) -> None:
    """Raise UsageError for what can be no topic's name."""
    if not is_topic_name(topic):
        hint = ": one name; rows for several topics have a column 'topic'" if isinstance(topic, list | tuple | set) else ""
        raise UsageError(f"{argument} must be a topic's name (1 to 249 letters, digits, '.', '_' and '-'), not {topic!r}{hint}")
