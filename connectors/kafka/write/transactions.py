"""Kafka's transaction protocol, request by request: start, add partitions, end from any process, describe, list.

Kafka has two versions of it. Version 2 (KIP-890; chosen where the cluster's finalised `transaction.version` is 2) adds
partitions implicitly, and bumps the producer's epoch with every transaction, so that a delayed EndTxn cannot hit the next one.
Version 1 needs an InitProducerId before every transaction for that. **A transaction is ended in the version it was written
in**: ended in version 1 and asked again in version 2, a committed one answers INVALID_TXN_STATE, as an aborted one does.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeVar

from headrace.connectors.kafka.client.api_versions import END_TXN_V1, END_TXN_V2
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import BrokerError, FencedByBrokerError, broker_error
from headrace.connectors.kafka.client.retries import giving_up_when
from headrace.connectors.kafka.client.topology import TopicPartition
from headrace.connectors.kafka.client.wire.protocol import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    Message,
)
from headrace.connectors.kafka.write.topics import refuse_deleted
from headrace.enumerator.errors import RetriableError, is_retriable

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")

_MOST_AT_ONCE = 16

_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED)
ENDED_BY_OTHERS = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.TRANSACTION_ABORTABLE,
)
"""What a write is answered whose transaction is over: by its timeout, by another driver, or as its id has expired."""
_ONGOING = "Ongoing"
_ABORTED = ("PrepareAbort", "CompleteAbort")
_COMMITTED = ("PrepareCommit", "CompleteCommit")


class TransactionProtocol(IntEnum):
    """The value is part of handles: never renumbered."""

    V1 = 1
    V2 = 2


class TransactionResult(Enum):
    """How a transaction is to end."""

    COMMIT = True
    ABORT = False


class Answer(Enum):
    """What EndTxn says."""

    DONE = "done"
    REFUSED = "refused"  # it was aborted (or, to an abort, committed), or is empty
    UNKNOWN = "unknown"  # fenced, or its id has expired: only the log can tell what became of it


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer's identity at the brokers. `transactional_id` is None for one that is idempotent only."""

    transactional_id: str | None
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator knows it. `state` is Kafka's (`Ongoing`, `CompleteCommit`, ...).

    `started_ms` (epoch milliseconds, the coordinator's clock) is None when nothing is open.
    """

    producer: Producer
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]

    @property
    def is_ongoing(self) -> bool:
        """True while it can still be committed or aborted."""
        return self.state == _ONGOING

    @property
    def is_under_way(self) -> bool:
        """True while it is open, or decided and its markers are not all written."""
        return self.is_ongoing or self.state.startswith("Prepare")

    @property
    def is_aborted(self) -> bool:
        """True once its abort is decided, whether or not readers know yet."""
        return self.state in _ABORTED

    @property
    def is_decided(self) -> bool:
        """True once its abort or its commit is decided, until the next one starts or the id is taken over."""
        return self.state in _ABORTED or self.state in _COMMITTED


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id and its state, as ListTransactions has them."""

    transactional_id: str
    state: str


def in_parallel(ask: Callable[[ItemT], AnswerT], items: Sequence[ItemT]) -> list[AnswerT]:
    """The answers for all items, in their order, 16 requests at a time at most: a coordinator's log takes some ms for each.

    Every item is asked for once at least. After an error that is not retriable nothing is tried again, and that error
    is raised; else that of the first item that has one. Interrupted by an exception (Ctrl-C), it ends at once; a request that
    is under way is not repeated.
    """
    if len(items) < 2:
        return [ask(item) for item in items]
    answers: list[Future[AnswerT]] = [Future() for _ in items]
    left, is_over, has_failed = deque(zip(items, answers, strict=True)), threading.Event(), threading.Event()
    for _ in range(min(_MOST_AT_ONCE, len(items))):
        # Daemons, and no executor: a process that is to end would wait for an executor's threads.
        asking = (ask, left, is_over, has_failed)
        threading.Thread(target=_answer_all, args=asking, name="headrace-transactions", daemon=True).start()
    try:
        wait(answers)
    finally:
        is_over.set()  # this thread may have been interrupted
    errors = [error for answer in answers if (error := answer.exception()) is not None]
    for error in sorted(errors, key=is_retriable)[:1]:  # that of a wait which was cut short is none
        raise error
    return [answer.result() for answer in answers]


def _answer_all(
    ask: Callable[[ItemT], AnswerT],
    left: deque[tuple[ItemT, Future[AnswerT]]],
    is_over: threading.Event,
    has_failed: threading.Event,
) -> None:
    with giving_up_when(lambda: is_over.is_set() or has_failed.is_set()), suppress(IndexError):
        while not is_over.is_set():
            item, answer = left.popleft()
            try:
                answer.set_result(ask(item))
            except BaseException as error:  # noqa: BLE001 - raised where the answers are waited for
                if not is_retriable(error):
                    has_failed.set()
                answer.set_exception(error)


class Transactions:
    """Requests to transaction coordinators. Retries what passes, as `KafkaCluster` does. Thread-safe; does no I/O itself.

    All methods raise `RefusedByBrokerError` without Write on the transactional id, and DeadlineExceededError.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def protocol(self) -> TransactionProtocol:
        """What the cluster's finalised features call for, asked now. A broker of version 1 would accept requests of 2."""

        def ask() -> TransactionProtocol:
            level = self._cluster.finalized_features().get("transaction.version", 0)
            return TransactionProtocol.V2 if level >= TransactionProtocol.V2 else TransactionProtocol.V1

        return self._cluster.retrying("asking for the transaction version", ask)

    def init(self, transactional_id: str, timeout_ms: int) -> Producer:
        """Take the id over: whatever it has open is aborted first, and the previous producer is fenced
        (KIP-98).

        Raises `InvalidForBrokerError` for a timeout that the broker does not allow.
        """
        return self._init(Producer(transactional_id, -1, -1), timeout_ms)

    def renew(self, producer: Producer, timeout_ms: int) -> Producer:
        """Bump the epoch of a producer that is still the current one (KIP-360). Raises FencedByBrokerError when it is not."""
        return self._init(producer, timeout_ms)

    def init_idempotent(self) -> Producer:
        def ask() -> Producer:
            response = self._cluster.call_any(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_INT32_MAX))
            if response.error_code != ErrorCode.NONE:
                raise broker_error(response.error_code, "asking for a producer id")
            return Producer(None, response.producer_id, response.producer_epoch)

        return self._cluster.retrying("asking for a producer id", ask)

    def _init(self, producer: Producer, timeout_ms: int) -> Producer:
        where = f"taking over the transactional id {producer.transactional_id!r}"

        def ask() -> Producer:
            request = InitProducerIdRequest(  # a new one for each try: a request remembers the version that it was sent in
                transactional_id=producer.transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
            )
            response = self._coordinated(str(producer.transactional_id), request)
            if response.error_code != ErrorCode.NONE:
                raise broker_error(response.error_code, where)
            return Producer(producer.transactional_id, response.producer_id, response.producer_epoch)

        return self._cluster.retrying(where, ask)

    def add_partitions(self, producer: Producer, partitions: Iterable[TopicPartition]) -> None:
        """Version 1 only: announce where the transaction is going to write. Raises FencedByBrokerError."""
        wanted = list(partitions)
        by_topic: dict[str, list[int]] = {}
        for topic, partition in wanted:
            by_topic.setdefault(topic, []).append(partition)

        def ask() -> None:
            topics = [
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in by_topic.items()
            ]
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=producer.transactional_id,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=topics,
            )
            response = self._coordinated(str(producer.transactional_id), request)
            refused = [
                broker_error(
                    item.partition_error_code,
                    f"adding {topic.name}-{item.partition_index} to a transaction of {producer.transactional_id!r}",
                )
                for topic in response.results_by_topic_v3_and_below
                for item in topic.results_by_partition
                if item.partition_error_code != ErrorCode.NONE
            ]
            if any(error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for error in refused):
                refuse_deleted(self._cluster, wanted)  # that the coordinator does not know it is not proof
            if refused:
                raise min(refused, key=_rank)

        self._cluster.retrying(f"adding partitions to a transaction of {producer.transactional_id!r}", ask)

    def end(self, producer: Producer, protocol: TransactionProtocol, outcome: TransactionResult) -> tuple[Answer, Producer]:
        """Commit or abort, from whichever process. Asking again after a success answers DONE again.

        Returns the answer and the producer to continue with: version 2 gives it a new epoch. A lost connection or a busy
        coordinator is not an answer; the same request is sent again.
        """
        where = f"ending a transaction of {producer.transactional_id!r}"

        def ask() -> tuple[Answer, Producer]:
            request = EndTxnRequest(
                transactional_id=producer.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                committed=outcome.value,
                **(END_TXN_V1 if protocol is TransactionProtocol.V1 else END_TXN_V2).limits,
            )
            response = self._coordinated(str(producer.transactional_id), request)
            if response.error_code in _FENCED:
                return Answer.UNKNOWN, producer
            if response.error_code == ErrorCode.INVALID_TXN_STATE:
                return Answer.REFUSED, producer
            if response.error_code != ErrorCode.NONE:
                raise broker_error(response.error_code, where)
            if protocol is TransactionProtocol.V1:
                return Answer.DONE, producer
            return Answer.DONE, Producer(producer.transactional_id, response.producer_id, response.producer_epoch)

        return self._cluster.retrying(where, ask)

    def abort(self, producer: Producer, protocol: TransactionProtocol, timeout_ms: int) -> Answer:
        """Abort what a producer has open, and fence it: nothing that it sends late, or has under way, is written after that.

        Version 2 does both by EndTxn. Version 1 leaves the epoch as it is: a Produce that EndTxn has overtaken then opens a
        transaction that nothing ends (KAFKA-14053), and the producer may continue in another partition. So there it is done
        by InitProducerId, with this timeout for the id, whose marker bears a new epoch. REFUSED: nothing was open any more.
        """
        if protocol is TransactionProtocol.V2:
            return self.end(producer, protocol, TransactionResult.ABORT)[0]
        try:
            self.renew(producer, timeout_ms)
        except FencedByBrokerError:  # by the marker of this same request, when there was something to abort
            found = self._describe(str(producer.transactional_id))
            fenced = None if found is None else (found.producer.producer_id, found.producer.epoch, found.is_aborted)
            return Answer.DONE if fenced == (producer.producer_id, producer.epoch + 1, True) else Answer.UNKNOWN
        return Answer.REFUSED

    def describe(self, transactional_ids: Collection[str]) -> dict[str, TransactionDescription | None]:
        """Each id as its coordinator knows it now; None for one that it does not know (never used, or expired)."""
        ids = list(transactional_ids)
        return dict(zip(ids, in_parallel(self._describe, ids), strict=True))

    def _describe(self, transactional_id: str) -> TransactionDescription | None:
        where = f"describing the transactional id {transactional_id!r}"

        def ask() -> TransactionDescription | None:
            response = self._coordinated(transactional_id, DescribeTransactionsRequest(transactional_ids=[transactional_id]))
            (found,) = response.transaction_states
            if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return None
            if found.error_code != ErrorCode.NONE:
                raise broker_error(found.error_code, where)
            return _description(found)

        return self._cluster.retrying(where, ask)

    def ongoing(self, prefix: str) -> list[str]:
        """The transactional ids that start with `prefix` and have a transaction open, sorted. See `listing`."""
        return [found.transactional_id for found in self.listing(prefix, [_ONGOING])]

    def listing(self, prefix: str, states: Collection[str] = (), producer_ids: Collection[int] = ()) -> list[ListedTransaction]:
        """The transactional ids that start with `prefix`, are in one of `states` and have one of `producer_ids` (default: any),
        sorted (KIP-664, KIP-1152).

        Ids that one may not describe are left out by the broker.
        """

        def ask() -> list[ListedTransaction]:
            found: dict[str, ListedTransaction] = {}
            for broker in self._cluster.brokers():
                request = ListTransactionsRequest(
                    state_filters=list(states),
                    producer_id_filters=list(producer_ids),
                    duration_filter=-1,
                    transactional_id_pattern=re.escape(prefix) + ".*",
                )
                response = self._cluster.call(broker, request)
                if response.error_code != ErrorCode.NONE:
                    raise broker_error(response.error_code, f"listing transactions at {broker}")
                for item in response.transaction_states:
                    if item.transactional_id.startswith(prefix):  # brokers before 4.1 know no patterns
                        found[item.transactional_id] = ListedTransaction(item.transactional_id, item.transaction_state)
            return [found[name] for name in sorted(found)]

        return self._cluster.retrying("listing transactions", ask)

    def _coordinated(self, transactional_id: str, request: Message) -> Message:
        """To the id's coordinator; one that is no longer it, or cannot be reached, is looked up again by the next try."""
        try:
            response = self._cluster.call(self._cluster.coordinator(CoordinatorKind.TRANSACTION, transactional_id), request)
        except RetriableError:
            self._cluster.forget_coordinator(CoordinatorKind.TRANSACTION, transactional_id)
            raise
        if not _codes(response).isdisjoint(_ELSEWHERE):
            self._cluster.forget_coordinator(CoordinatorKind.TRANSACTION, transactional_id)
        return response


_INT32_MAX = 0x7FFFFFFF
_ELSEWHERE = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


def _rank(error: BrokerError) -> int:
    """Which of several partitions' errors is the reason: OPERATION_NOT_ATTEMPTED states that it is another's."""
    if error.code == ErrorCode.OPERATION_NOT_ATTEMPTED:
        return 2
    return 1 if isinstance(error, RetriableError) else 0


def _codes(response: Message) -> set[int]:
    """All error codes of a response, wherever they are.

    A message has the fields of all its versions, with their defaults: that the one for the whole is 0 says nothing of the
    parts. AddPartitionsToTxn has it from version 4 on, and codes of partitions only before.
    """
    codes = {int(holder.error_code) for holder in (response, *_states(response)) if hasattr(holder, "error_code")}
    topics = getattr(response, "results_by_topic_v3_and_below", ()) or ()
    return codes | {int(item.partition_error_code) for topic in topics for item in topic.results_by_partition}


def _states(response: Message) -> Sequence[Message]:
    return getattr(response, "transaction_states", ()) or ()


def _description(found: Message) -> TransactionDescription:
    return TransactionDescription(
        Producer(found.transactional_id, found.producer_id, found.producer_epoch),
        found.transaction_state,
        found.transaction_timeout_ms,
        found.transaction_start_time_ms if found.transaction_start_time_ms >= 0 else None,
        tuple((topic.topic, partition) for topic in found.topics for partition in topic.partitions),
    )
