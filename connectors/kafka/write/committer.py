"""Ends the transactions of a job in its driver's process, and stores the lists of what is to be committed."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from headrace.connectors.base.capabilities import Confirmation, GroupedEnd, PreparedAbort, StagedRecord, another_write
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.jobs import owner_of
from headrace.connectors.base.sink import CommitList, Committer, Outcome, RecordedEpoch
from headrace.connectors.kafka.write.commit_log import CommitLog
from headrace.connectors.kafka.write.driver_log import DriverLog
from headrace.connectors.kafka.write.handles import KafkaHandle, KafkaHandleSerializer
from headrace.connectors.kafka.write.names import Role, parse_name
from headrace.connectors.kafka.write.produce import transactional_sender
from headrace.connectors.kafka.write.transaction import TransactionalSink, timeout_advice, written_ranges
from headrace.connectors.kafka.write.transaction_log import BatchCopier, outcome_of
from headrace.connectors.kafka.write.transactions import (
    Answer,
    Producer,
    TransactionDescription,
    TransactionProtocol,
    TransactionResult,
    Transactions,
    in_parallel,
)
from headrace.enumerator.errors import DeadlineExceededError, HeadraceError

log = logging.getLogger(__name__)

LISTS = CommitListSerializer(KafkaHandleSerializer())
"""The lists in the commit topic."""
_TIME_LEFT = 0.1  # a transaction with less than this share of its time to go, and than 10 s, is not put on the durable list
_TIME_LEFT_MS = 10_000
_LONGEST_EXPIRY_MS = 60_000  # coordinators look for what is past its timeout every 10 s


class CommittingSink(TransactionalSink, Protocol):
    """What committers have to know of their `KafkaSink`."""

    def commit_log(self) -> CommitLog:
        """Where the durable lists are."""

    def read_list(self, key: str, data: bytes) -> CommitList[KafkaHandle]:
        """Parse the list that the commit topic has under this key."""


class _Budget(NamedTuple):
    """How long a transaction has been open."""

    milliseconds: int
    timeout_ms: int
    transactional_id: str


def _budget(found: TransactionDescription, now_ms: int) -> _Budget:
    """By its coordinator's clock, which also ends it, and that of this machine; the writer's does not count."""
    budget_ms = 0 if found.started_ms is None else max(0, now_ms - found.started_ms)
    name = str(found.producer.transactional_id)
    if budget_ms > found.timeout_ms + _LONGEST_EXPIRY_MS:  # and it is Ongoing
        log.warning("the clocks of this machine and of the brokers differ by minutes: how long %s was open is not known", name)
        budget_ms = 0
    return _Budget(budget_ms, found.timeout_ms, name)


class KafkaCommitter(
    Committer[KafkaHandle],
    GroupedEnd[KafkaHandle],
    Confirmation[KafkaHandle],
    StagedRecord[KafkaHandle],
    PreparedAbort[KafkaHandle],
):
    """Ends a job's transactions."""

    def __init__(self, sink: CommittingSink, job: str) -> None:
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
        longest = _Budget(-1, 0, "")
        for handle in handles:
            found = known[handle.transactional_id]
            if found is None or not found.is_ongoing or found.producer != handle.producer:
                state = "unknown to the broker" if found is None else found.state
                raise DeadlineExceededError(
                    f"the transaction of {handle.transactional_id!r} is {state}, not prepared: it timed out, or another "
                    "attempt took its place. Nothing of this epoch is visible; it has to be written again. "
                    + timeout_advice(handle.timeout_ms)
                )
            longest = max(longest, _budget(found, now_ms))
        self._check_time(longest)

    def _check_time(self, budget: _Budget) -> None:
        """Raise DeadlineExceededError for too little time left.

        Warn when half of it is gone: a driver that dies now has little time to come back before a copy is needed.
        """
        left_ms = budget.timeout_ms - budget.milliseconds
        if left_ms < min(_TIME_LEFT_MS, _TIME_LEFT * budget.timeout_ms):
            raise DeadlineExceededError(
                f"the transaction of {budget.transactional_id!r} has {max(0, left_ms) / 1000:.0f} s left of its "
                f"{budget.timeout_ms / 1000:g}: raise transaction.timeout.ms, or write less in one batch"
            )
        if budget.milliseconds > budget.timeout_ms / 2:
            log.warning(
                "job %s: the transaction of %s was open for %.0f s of its %.0f before it could be committed; raise "
                "transaction.timeout.ms above the time between triggers and that of a restart",
                self._job,
                budget.transactional_id,
                budget.milliseconds / 1000,
                budget.timeout_ms / 1000,
            )

    def record(self, commits: CommitList[KafkaHandle]) -> None:
        """Write it to the commit topic, in a transaction of the driver's own."""
        self._log.write(self._serialized(commits))

    def stage(self, commits: CommitList[KafkaHandle]) -> None:
        """Write it, in a transaction of the driver's that `record` commits."""
        last = self._last
        try:
            self._log.stage(self._serialized(commits))
        finally:
            self._last = last

    def _serialized(self, commits: CommitList[KafkaHandle]) -> bytes:
        return LISTS.serialize(replace(commits, destination=self._names.destination, targets=self._targets(commits)))

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
        """Commit in the handle's version of the protocol. "Fenced" resolves nothing: the log is asked then."""
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
        return KafkaHandle(producer, protocol, started_ms, timeout_ms, written_ranges(self._cluster, sender))

    def _abort_repair(self, producer: Producer, protocol: TransactionProtocol) -> None:
        """Until it is aborted, readers see nothing that comes after it."""
        try:
            bounded = Transactions(self._sink.bounded().cluster())
            bounded.abort(producer, protocol, self._sink.config.transaction_timeout_ms)
        except HeadraceError as error:
            log.warning("job %s: the transaction of a copy that failed could not be aborted now: %s", self._job, error)

    def clean_up(self, keep: Collection[KafkaHandle]) -> None:
        """Abort what is Ongoing under the job's prefix: losing attempts, and what a dead run has left.

        What a run's worker has left, at all destinations: no other job has its name, and the run may have had another topic.
        """
        kept = {handle.producer for handle in keep}
        prefix = self._names.beginning if owner_of(self._job) == self._job else self._names.of_job
        names = [name for name in self._transactions.ongoing(prefix) if _is_of_attempt(name)]
        open_ones = [found for found in self._transactions.describe(names).values() if found is not None and found.is_ongoing]
        losers = [found for found in open_ones if found.producer not in kept]
        if losers:
            protocol = self._transactions.protocol()
            in_parallel(lambda found: self._transactions.abort(found.producer, protocol, found.timeout_ms), losers)

    def abort_prepared(self, handles: Sequence[KafkaHandle]) -> None:
        """Until then readers see nothing of their partitions that comes behind them."""
        in_parallel(lambda handle: self._transactions.abort(handle.producer, handle.protocol, handle.timeout_ms), handles)

    def forget(self) -> None:
        self._log.remove()

    def start_over(self) -> None:
        """For an operator: forget the job's list though it cannot be read or is lost, and abort all that the job has open."""
        self._log.reset()
        self.clean_up(())

    def close(self) -> None:
        """Connections belong to the process."""


def _topics(handles: Sequence[KafkaHandle]) -> tuple[str, ...]:
    return tuple(sorted({written.topic for handle in handles for written in handle.ranges}))


def _is_of_attempt(transactional_id: str) -> bool:
    name = parse_name(transactional_id)
    return name is not None and name.role is not Role.DRIVER
