"""The transaction of one attempt at a task: its rows, acknowledged and not visible. The protocol is in `transactions.py`."""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, Self

import pyarrow as pa

from headrace.connectors.base.dead_letters import parted
from headrace.connectors.base.guard import AllOrNothing
from headrace.connectors.base.jobs import is_one_off
from headrace.connectors.base.sink import Attempt, Transaction
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import BrokerError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.write.encoding import TopicRows, record_encoder
from headrace.connectors.kafka.write.handles import KafkaHandle, WrittenRange
from headrace.connectors.kafka.write.names import JobNames
from headrace.connectors.kafka.write.produce import BatchSender, transactional_sender
from headrace.connectors.kafka.write.transactions import ENDED_BY_OTHERS, Producer, TransactionProtocol, Transactions
from headrace.enumerator.errors import DeadlineExceededError, HeadraceError, StateError

log = logging.getLogger(__name__)


class TransactionalSink(Protocol):
    """What transactions and committers have to know of their `KafkaSink`."""

    @property
    def topic(self) -> str | None:
        """Where all rows go; None where each names its own."""

    @property
    def commit_topic(self) -> str:
        """Where no row may go."""

    @property
    def config(self) -> ClientConfig:
        """The client's configuration."""

    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as the encoder takes them."""

    def names(self, job: str) -> JobNames:
        """Its transactional ids."""

    def cluster(self) -> KafkaCluster:
        """The connections of this process."""

    def bounded(self) -> Self:
        """With calls that fail soon."""


class KafkaTransaction(Transaction[KafkaHandle]):
    """One attempt's transaction. Starts with its first row: a task without rows opens none."""

    def __init__(self, sink: TransactionalSink, attempt: Attempt) -> None:
        self._sink, self._attempt = sink, attempt
        self._transactions = Transactions(sink.cluster())
        self._producer: Producer | None = None
        self._protocol = TransactionProtocol.V1
        self._started_ms = 0
        self._sender: BatchSender | None = None
        self._rows: TopicRows | None = None
        self._whole = AllOrNothing(sink.config.bootstrap, f"the transaction of {attempt}", self.abort)

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises UsageError for rows that cannot be records, BrokerError for records that a broker refuses, and for the
        transaction timeout if it is longer than brokers allow."""
        self._whole.check_rows(batch)
        if batch.num_rows == 0:
            return
        rest, dead = parted(batch)
        rows = self._sink.encoded(rest)
        with self._whole.steps():
            sender, topics = self._begun()
            with self._explaining():
                topics.write(rows, sender, dead)

    def push(self) -> None:
        """The partitions know the transaction from then on, too, so that `prepare` is one request and its answer."""
        self._whole.check()
        if self._sender is not None and self._rows is not None:
            with self._whole.steps(), self._explaining():
                self._rows.push(self._sender)

    def prepare(self) -> KafkaHandle | None:
        self._whole.check()
        if self._producer is None or self._sender is None or self._rows is None:
            return None
        try:
            with self._explaining():
                self._rows.flush(self._sender)
            ranges = written_ranges(self._sink.cluster(), self._sender)
            self._refuse_after_decision()
        except BaseException:
            self.abort()
            raise
        handle = KafkaHandle(self._producer, self._protocol, self._started_ms, self._sink.config.transaction_timeout_ms, ranges)
        self._sender.close()
        self._producer = self._sender = None
        self._whole.end()
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
                f"were written: nothing of it is visible, and the task has to be repeated. {timeout_advice(timeout_ms)}"
            ) from error

    def _refuse_after_decision(self) -> None:
        """Raise StateError if this write, which no driver repeats, is committed or aborted: nothing is cleaned up after
        that.

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
        if not self._whole.end():
            return
        producer, sender, self._producer, self._sender = self._producer, self._sender, None, None
        if sender is not None:
            sender.close()
        if producer is not None:
            try:  # whatever has failed is not to wait for this
                bounded = Transactions(self._sink.bounded().cluster())
                bounded.abort(producer, self._protocol, self._sink.config.transaction_timeout_ms)
            except HeadraceError as error:
                log.warning("the transaction of %s could not be aborted now: %s", producer.transactional_id, error)

    def _begun(self) -> tuple[BatchSender, TopicRows]:
        if self._sender is None or self._rows is None:
            cluster = self._sink.cluster()
            self._protocol = self._transactions.protocol()
            producer = self._producer = self._transactions.init(self._free_id(), self._sink.config.transaction_timeout_ms)
            self._started_ms = time.time_ns() // 1_000_000
            timeout_ms = self._sink.config.transaction_timeout_ms
            self._sender = transactional_sender(cluster, self._transactions, producer, self._protocol, timeout_ms)
            self._rows = TopicRows(
                cluster,
                self._sink.topic,
                lambda partitions: record_encoder(self._sink.config, partitions, producer),
                self._sink.commit_topic,
            )
        return self._sender, self._rows

    def _free_id(self) -> str:
        """The first of the task's ids, from its retry on, under which nothing is open: to take over one would abort it.

        An open one may be another attempt's that is running or has prepared; the driver aborts what is not committed. One that
        was taken over and has nothing open is taken again: so a zombie is fenced before it writes. Should that one prepare
        between the look and the takeover, the driver's check refuses its handle before anything is recorded, and the epoch is
        repeated.
        """
        names, attempt = self._sink.names(self._attempt.job), self._attempt
        ids = (names.task(attempt.epoch, attempt.task, number) for number in itertools.count(attempt.retry))
        return next(name for name in ids if not self._is_open(name))

    def _is_open(self, transactional_id: str) -> bool:
        found = self._transactions.describe([transactional_id])[transactional_id]
        return found is not None and found.is_ongoing


def timeout_advice(timeout_ms: int) -> str:
    return (
        f"From the first row to the commit, outages included, it may take {timeout_ms / 1000:g} s here "
        "(transaction.timeout.ms); the most that brokers allow is their transaction.max.timeout.ms, by default 15 minutes"
    )


def written_ranges(cluster: KafkaCluster, sender: BatchSender) -> tuple[WrittenRange, ...]:
    topics = {topic for topic, _ in sender.written}
    ids = {topic: cluster.retrying("looking up topics", functools.partial(cluster.topic_id, topic)) for topic in topics}
    return tuple(
        WrittenRange(topic, ids[topic], partition, written.first, written.last, written.records)
        for (topic, partition), written in sorted(sender.written.items())
    )
