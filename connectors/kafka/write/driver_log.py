"""The write of a job's list to the commit topic, under a transactional id of the job's driver.

The transactional id is what makes it safe: taking it over fences an older driver, whose write can then no longer land after
the new driver has read the list. A plain compacted topic would let it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import BrokerError, broker_error
from headrace.connectors.kafka.format.encode import Codec, RecordEncoder
from headrace.connectors.kafka.write.commit_log import CommitLog
from headrace.connectors.kafka.write.list_records import SEPARATOR, list_of, record_rows, split
from headrace.connectors.kafka.write.names import JobNames, other_prefixes
from headrace.connectors.kafka.write.produce import OutBatch, transactional_sender
from headrace.connectors.kafka.write.transactions import (
    ENDED_BY_OTHERS,
    Answer,
    Producer,
    TransactionDescription,
    TransactionProtocol,
    TransactionResult,
    Transactions,
)
from headrace.enumerator.errors import FencedError, RetriableError, StateError

log = logging.getLogger(__name__)

_DRIVER_TIMEOUT_MS = 10_000  # a driver that dies in the middle of a write holds others up no longer than this
_HAS_WRITTEN = ("PrepareCommit", "CompleteCommit")
_MOST_QUICK_FAILURES = 3  # before its timeout a write is aborted by no outage


@dataclass(frozen=True, slots=True)
class _Open:
    """A transaction of the driver's, which has this value and nothing else, all acknowledged."""

    value: bytes | None
    producer: Producer
    parts: frozenset[str]


class DriverLog:
    """The list of one job at one destination, and its driver's right to write it. Used by one thread."""

    def __init__(self, commit_log: CommitLog, transactions: Transactions, names: JobNames) -> None:
        self._log, self._transactions, self._names = commit_log, transactions, names
        self._parts: frozenset[str] = frozenset()
        self._recorded: bytes | None = None
        self._producer: Producer | None = None
        self._protocol = TransactionProtocol.V1
        self._staged: _Open | None = None
        self._may_be_open = False

    def fence(self) -> bytes | None:
        """Shut other drivers of the job out; then the job's durable list.

        Raises StateError if there is none, and the job's driver has written one: then the topic is not the one that it was.
        """
        self._log.create()
        self._refuse_lost()
        self._protocol = self._transactions.protocol()
        others = other_prefixes(self._names, self._take_over_and_read())
        if others and self._recorded is None:
            log.warning(
                "job %s: the topic %r has no list of it under the prefix %r, and one under %s: what that list has is not "
                "completed, and an epoch on it is written again. If it is of this job, start it with that prefix",
                self._names.job,
                self._log.topic,
                self._names.prefix,
                ", ".join(map(repr, others)),
            )
        return self._recorded

    def _take_over_and_read(self) -> dict[str, bytes]:
        self._staged, self._may_be_open = None, False
        self._producer = self._transactions.init(self._names.driver, _DRIVER_TIMEOUT_MS)
        key, records = self._names.key, self._log.proved_records()
        self._recorded = list_of(key, records)
        self._parts = frozenset(name for name in records if name.startswith(f"{key}{SEPARATOR}"))
        return records

    def _refuse_lost(self) -> None:
        """The coordinator knows what the driver's last transaction was, until the id is taken over.

        Checked before that, so that it is known at the next start, too. A driver that has taken the id over and died before
        its first write leaves nothing to know it by.
        """
        known = self._transactions.describe([self._names.driver])[self._names.driver]
        if known is None or known.state not in _HAS_WRITTEN or self._names.key in self._log.decided_records():
            return
        self._await_end(self._names.driver)  # its first write may be decided, and not in the log yet
        if self._names.key in self._log.proved_records():
            return
        raise StateError(
            f"the driver of job {self._names.job!r} has recorded epochs in the topic {self._log.topic!r}, and it has no list "
            "of the job: it was deleted and created again, or the job had another commit topic. Which epochs are committed is "
            f"not known. Restore the topic, or start over with headrace transactions forget --job {self._names.job}"
        )

    def _await_end(self, transactional_id: str) -> None:
        """Return when nothing is under way under the id: all that was committed is in the log then, with its markers."""

        def look() -> None:
            found = self._transactions.describe([transactional_id])[transactional_id]
            if found is not None and found.is_under_way:
                raise RetriableError(
                    f"a transaction of {transactional_id!r} is {found.state}, and ends by its timeout at the latest"
                )

        self._log.cluster.retrying(f"waiting for a transaction of {transactional_id!r} to end", look)

    def write(self, value: bytes | None) -> None:
        """Replace the job's list (None: leave none). Raises FencedError when another driver has claimed the job since `fence`.

        An outage may outlast the transaction of this write, whose coordinator then aborts and fences it. That is no other
        driver: the list is read again, and written again unless it is there.
        """
        quick_failures = 0
        while True:
            started_at = time.monotonic()
            try:
                self._write(value)
            except BrokerError as error:
                if error.code not in ENDED_BY_OTHERS:
                    raise
                quick_failures += time.monotonic() - started_at < _DRIVER_TIMEOUT_MS / 1000
                if quick_failures > _MOST_QUICK_FAILURES:
                    raise
                self._refuse_rival(value, error)
                self._log.cluster.back_off(quick_failures)
                if self._recorded == value:
                    return
            else:
                self._recorded = value
                return

    def stage(self, value: bytes) -> None:
        """Write it as `write` does, and do not commit it yet: that is left to `write` of the same value.

        Readers of the commit topic wait for it meanwhile, at most for the transaction's timeout. After an error, which may be
        any of the client's, `write` starts over.
        """
        self._staged = self._opened(value)

    def _refuse_rival(self, value: bytes | None, error: BrokerError) -> None:
        """Raise FencedError if another driver has taken the id over, or has changed the list; else take it again, and read."""
        own, before = self._producer, self._recorded
        found = self._transactions.describe([self._names.driver])[self._names.driver]
        if found is not None and found.producer != own and not _has_ended(found, own):
            raise self._fenced() from error
        log.warning(
            "job %s: the write of its list was aborted, and no other driver has done it: it took longer than %.0f s, or the "
            "brokers forgot its id; looking whether it is to be written again (%s)",
            self._names.job,
            _DRIVER_TIMEOUT_MS / 1000,
            error,
        )
        self._take_over_and_read()
        if self._recorded not in (before, value):
            raise self._fenced() from error

    def remove(self) -> None:
        """Remove the job's list, and that it had one. Raises FencedError as `write`."""
        self.write(None)
        self._producer = self._transactions.init(self._names.driver, _DRIVER_TIMEOUT_MS)

    def reset(self) -> None:
        """Shut other drivers of the job out and leave no list, whatever was recorded, can be read of it, or is lost."""
        self._log.create()
        self._protocol = self._transactions.protocol()
        self._take_over_and_read()
        self.remove()

    def _write(self, value: bytes | None) -> None:
        staged, self._staged = self._staged, None
        written = staged if staged is not None and staged.value == value else self._opened(value)
        answer, self._producer = self._transactions.end(written.producer, self._protocol, TransactionResult.COMMIT)
        if answer is not Answer.DONE:
            code = ErrorCode.PRODUCER_FENCED if answer is Answer.UNKNOWN else ErrorCode.INVALID_TXN_STATE
            raise broker_error(code, f"writing the list of transactions of job {self._names.job!r}")
        self._parts, self._may_be_open = written.parts, False

    def _opened(self, value: bytes | None) -> _Open:
        assert self._producer is not None
        if self._may_be_open:  # what was staged and is not to be committed, or has failed
            answer, self._producer = self._transactions.end(self._producer, self._protocol, TransactionResult.ABORT)
            if answer is Answer.UNKNOWN:
                raise broker_error(ErrorCode.PRODUCER_FENCED, f"aborting a list of transactions of job {self._names.job!r}")
        if self._protocol is TransactionProtocol.V1:
            # A delayed EndTxn of the write before could end this one (KAFKA-17754); version 2 bumps the epoch with each.
            self._producer = self._transactions.renew(self._producer, _DRIVER_TIMEOUT_MS)
        self._staged, self._may_be_open = None, True
        producer = self._producer
        records = split(self._names.key, value, self._parts)
        rows = record_rows(records)
        encoder = RecordEncoder(
            1, producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=True, codec=Codec.ZSTD
        )
        encoded = [*encoder.append(rows, time.time_ns() // 1_000_000), *encoder.flush()]
        sender = transactional_sender(self._log.cluster, self._transactions, producer, self._protocol)
        try:
            sender.send(self._log.topic, [OutBatch(batch.partition, batch.data, batch.records) for batch in encoded])
            sender.flush()
        finally:
            sender.close()
        parts = frozenset(name for name, data in records.items() if SEPARATOR in name and data is not None)
        return _Open(value, producer, parts)

    def _fenced(self) -> FencedError:
        return FencedError(f"another driver of job {self._names.job!r} claimed it: this one must stop, and has changed nothing")


def _has_ended(found: TransactionDescription, own: Producer | None) -> bool:
    """Whether this producer's transaction is over, as a rule by its timeout, and no other driver has come since.

    That bumps the epoch once. Another driver's InitProducerId bumps it, too, but leaves the id without a transaction, and what
    that driver writes ends one epoch later still.
    """
    by_its_end = None if own is None else (own.producer_id, own.epoch + 1)
    return found.is_decided and (found.producer.producer_id, found.producer.epoch) == by_its_end
