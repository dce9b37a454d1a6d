"""Fetching records: one thread per broker keeps the next request in flight while the reader decodes what came.

The threads only move bytes: what to ask and what an answer means is `fetch_plan`'s. One more thread looks up leaders and
one checks offsets out of range, so that a slow request never holds up a fetch. Each is woken for what it has to do, and a
thread ends when nothing is fetched from its broker any more. `poll`, `assign`, `finish` and `close` are for one reader thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Set
from contextlib import contextmanager
from types import TracebackType
from uuid import UUID

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import UnknownTopicError, broker_error
from headrace.connectors.kafka.client.fetch import FetchLimits, fetch_request
from headrace.connectors.kafka.client.topology import Broker, Leader, TopicPartition
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.protocol import Message
from headrace.connectors.kafka.format.fetch_protocol import FetchAnswer
from headrace.connectors.kafka.read.bytes_per_offset import shared_densities
from headrace.connectors.kafka.read.fetch_index import Work, Worker
from headrace.connectors.kafka.read.fetch_plan import Asked, FetchedData, FetchFailed, FetchFrom, FetchPlan
from headrace.connectors.kafka.read.fetch_session import FORGOTTEN, FetchSession
from headrace.connectors.kafka.read.topic_ids import absence, is_same, range_outcome
from headrace.enumerator.errors import HeadraceError, RetriableError, StateError

log = logging.getLogger(__name__)

__all__ = ["FetchFailed", "FetchFrom", "FetchedData", "Fetcher"]

_BUDGET_BYTES = 64 * 1024 * 1024
_LARGEST_REQUEST = 8 * 1024 * 1024
_SMALLEST_REQUEST = 256 * 1024
_JOIN_S = 5.0
_CALL_JOIN_S = 1.0


class Fetcher:
    """Fetches partitions of a cluster from their leaders, ahead of the reader, within `budget_bytes` (default 64 MiB).

    The budget covers what is fetched or asked for and not yet polled; one batch larger than it still gets through. A broker is
    asked at most every `linger_s` seconds (default 0), unless its answers are full. Errors of one partition come out of `poll`
    as `FetchFailed`; the others continue. Threads start at once; nothing is contacted before that. Not for use across a fork.
    Use it as a context manager, or call `close`.
    """

    def __init__(
        self, cluster: KafkaCluster, sources: Iterable[FetchFrom], *, budget_bytes: int = _BUDGET_BYTES, linger_s: float = 0.0
    ) -> None:
        self._cluster, self._config = cluster, cluster.config
        self._budget, self._linger_s = budget_bytes, linger_s
        self._plan = FetchPlan(cluster.config, shared_densities(cluster.config))
        self._lock = threading.RLock()  # a signal handler may take it a second time
        self._to_reader = threading.Condition(self._lock)
        self._wakes: dict[Worker, threading.Condition] = {}
        self._starved: set[Broker] = set()  # they wait for space
        self._queue: deque[FetchedData | FetchFailed] = deque()
        self._queued_bytes = 0
        self._asked_bytes = 0
        self._connections: dict[Broker, Connection] = {}
        self._busy: set[Broker] = set()
        self._threads: dict[Worker, threading.Thread] = {}
        self._in_call: set[Work] = set()
        self._crash: BaseException | None = None
        self._closed = False
        self._woken = False
        self._pid = os.getpid()
        with self._lock:
            for source in sources:
                self._plan.add(source)
            self._start(Work.LOOKUPS)

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- for the reader ------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """True when every partition has ended (its stop reached, failed or finished) and everything was polled.

        Raises StateError as `poll` does.
        """
        self._check_process()
        with self._lock:
            return not self._queue and not len(self._plan)

    def poll(self, timeout_s: float) -> FetchedData | FetchFailed | None:
        """The next data or failure, waiting up to `timeout_s`; None when there was none in time, or when `done`.

        Raises nothing of Kafka's: failures are items. RuntimeError states that a fetching thread died of a bug, StateError that
        this is a forked child, which has no such threads.
        """
        self._check_process()
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while not self._queue:
                if self._crash is not None:
                    raise RuntimeError("a thread of the fetcher died, which is a bug") from self._crash
                left = deadline - time.monotonic()
                if left <= 0 or self._closed or self._woken or not len(self._plan):
                    self._woken = False
                    return None
                self._to_reader.wait(left)
            self._woken = False
            item = self._queue.popleft()
            if isinstance(item, FetchedData):
                self._queued_bytes -= len(item.records)
                self._wake_starved()
            return item

    def wake_up(self) -> None:
        """Have `poll` return what there is, the call under way or the next one. Called by any thread.

        In a forked child nothing is done.
        """
        if self._is_forked:
            return
        with self._lock:
            self._woken = True
            self._to_reader.notify_all()

    def assign(self, sources: Iterable[FetchFrom]) -> None:
        """Fetch more partitions, or some already under way from other offsets; what was fetched of these is dropped.

        Raises StateError as `poll` does.
        """
        self._check_process()
        added = {source.key: source for source in sources}
        with self._lock:
            self._drop(added.keys())
            for source in added.values():
                self._plan.add(source, time.monotonic())
            self._wake_changed()

    def finish(self, topic: str, partition: int) -> None:
        """Fetch this partition no more, and drop what was fetched of it. Raises StateError as `poll` does."""
        self._check_process()
        with self._lock:
            self._drop({(topic, partition)})
            self._plan.remove((topic, partition))
            self._wake_changed()
            self._to_reader.notify_all()

    def close(self) -> None:
        """Stop. A connection with a request in flight is cut, others go back to the cluster. Waits for the threads to end.

        A look-up under way is waited for a second only: its thread ends when it is answered, or given up. A signal handler may
        call this, too; where it has interrupted this very object the threads end once it has returned, and are not waited for.
        In a forked child nothing is done: threads and connections are the parent's, and one may have had the lock.
        """
        if self._is_forked:
            return
        self._closed = True
        below_a_handler = self._has_lock()
        # `with`, as Python handles no signal between its lock and its block: after `acquire` it would stay locked.
        with self._lock:
            for wake in self._wakes.values():
                wake.notify_all()
            self._to_reader.notify_all()
            for broker in self._busy & self._connections.keys():
                self._connections[broker].abort()
            threads = [
                (thread, _CALL_JOIN_S if worker in self._in_call else _JOIN_S) for worker, thread in self._threads.items()
            ]
        if not below_a_handler:
            for thread, longest_s in threads:
                thread.join(longest_s)

    @property
    def _is_forked(self) -> bool:
        """Whether this is a child of the process that made it, and has none of its threads."""
        return self._pid != os.getpid()

    def _check_process(self) -> None:
        if self._is_forked:
            raise StateError(
                "this reader was made before a fork, and its parent process reads on: make another one here, from a checkpoint"
            )

    def _has_lock(self) -> bool:
        """Whether this very thread holds it."""
        try:
            self._to_reader.notify_all()
        except RuntimeError:  # what it raises without the lock
            return False
        return True

    def _drop(self, keys: Set[TopicPartition]) -> None:
        kept = deque(item for item in self._queue if (item.topic, item.partition) not in keys)
        self._queued_bytes = sum(len(item.records) for item in kept if isinstance(item, FetchedData))
        self._queue = kept
        self._wake_starved()

    # --- threads -------------------------------------------------------------------------------------------------------

    def _start(self, worker: Worker) -> None:
        if worker in self._threads or self._closed:
            return
        name = "headrace-fetch-" + (worker.name.lower() if isinstance(worker, Work) else str(worker.node_id))
        self._wakes[worker] = threading.Condition(self._lock)
        self._threads[worker] = threading.Thread(target=self._run, args=(worker,), name=name, daemon=True)
        self._threads[worker].start()

    def _run(self, worker: Worker) -> None:
        try:
            if worker is Work.LOOKUPS:
                self._run_lookups()
            elif worker is Work.RANGES:
                self._run_ranges()
            else:
                self._run_fetches(worker)
        except BaseException as error:  # noqa: BLE001 - poll() raises it; without it the reader would wait without end
            with self._lock:
                self._crash = error
                self._to_reader.notify_all()
            if isinstance(worker, Broker):
                self._give_back(worker)

    def _wake_changed(self) -> None:
        """Wake those who have got something to do, and start who is not there yet."""
        for worker in self._plan.changed():
            if isinstance(worker, Work) or self._plan.fetches_from(worker):
                self._start(worker)
            if worker in self._wakes:
                self._wakes[worker].notify_all()

    def _wake_starved(self) -> None:
        starved, self._starved = self._starved, set()
        for broker in starved & self._wakes.keys():
            self._wakes[broker].notify_all()

    def _deliver(self, outcomes: Iterable[FetchedData | FetchFailed | None]) -> None:
        """Queue what the plan made of an answer, or of an error."""
        if news := self._plan.outages.news(time.monotonic()):
            log.warning("%s", news)
        for outcome in outcomes:
            if outcome is not None:
                self._queue.append(outcome)
                self._queued_bytes += len(outcome.records) if isinstance(outcome, FetchedData) else 0
        self._wake_changed()
        if self._queue or not len(self._plan):
            self._to_reader.notify_all()

    # --- the threads that look up leaders and ranges --------------------------------------------------------------------

    def _run_lookups(self) -> None:
        while True:
            with self._lock:
                leaderless = self._wait_for_lookups()
                if self._closed:
                    return
            with self._calling(Work.LOOKUPS):
                self._look_up(leaderless)

    def _wait_for_lookups(self) -> list[FetchFrom]:
        while not self._closed:
            now = time.monotonic()
            if leaderless := self._plan.leaderless(now):
                return leaderless
            due = self._plan.next_due(None)
            self._wakes[Work.LOOKUPS].wait(None if due is None else max(due - now, 0.0))
        return []

    def _run_ranges(self) -> None:
        while True:
            with self._lock:
                while not self._closed and not self._plan.unresolved():
                    self._wakes[Work.RANGES].wait()
                if self._closed:
                    return
                unresolved = self._plan.unresolved()
            with self._calling(Work.RANGES):
                for source, offset in unresolved:
                    self._check_range(source, offset)

    @contextmanager
    def _calling(self, work: Work) -> Iterator[None]:
        """While this lasts `close` does not wait for the thread as for others."""
        with self._lock:
            self._in_call.add(work)
        try:
            yield
        finally:
            with self._lock:
                self._in_call.discard(work)

    def _look_up(self, sources: list[FetchFrom]) -> None:
        """Find the leaders of these partitions: one Metadata request for all whose topic is not fresh in the cache."""
        try:
            unknown = self._cluster.warm({source.topic for source in sources})
        except HeadraceError as error:
            self._lookups_failed(sources, error)
            return
        found: list[tuple[FetchFrom, Leader, UUID | None]] = []
        absent = [source for source in sources if source.topic in unknown]
        for source in sources:
            if source.topic in unknown:
                continue
            try:
                leader, topic_id = self._cluster.leader(*source.key), self._cluster.topic_id(source.topic)
            except UnknownTopicError:
                absent.append(source)
            except HeadraceError as error:
                self._lookups_failed([source], error)
            else:
                if self._plan.topic_id_of(source) in (None, topic_id):
                    found.append((source, leader, topic_id))
                else:
                    absent.append(source)
        # All at once, so that a broker's first request already asks for all that it leads.
        with self._lock:
            self._deliver([self._plan.leader_found(*item, time.monotonic()) for item in found])
            for source, _, _ in found:
                if not self._plan.is_ready(source):
                    self._cluster.invalidate(source.topic)
        if absent:
            self._look_everywhere(absent)

    def _lookups_failed(self, sources: Iterable[FetchFrom], error: HeadraceError) -> None:
        for source in sources:
            self._cluster.invalidate(source.topic)
            with self._lock:
                self._deliver([self._plan.lookup_failed(source, error, time.monotonic())])

    def _look_everywhere(self, sources: Collection[FetchFrom]) -> None:
        """One broker's word that there is no such topic, or another one, is not proof: what does every other one say?

        A question is for all of them: a topic of many partitions is one topic.
        """
        try:
            views = self._cluster.topic_views({source.topic for source in sources})
        except HeadraceError as error:
            self._lookups_failed(sources, error)
            return
        answers = [answer for _, answer in views.answers]
        for source in sources:
            unanswered = views.failures.get(source.topic)
            outcome = unanswered or absence(*source.key, self._plan.topic_id_of(source), answers)
            self._lookups_failed([source], outcome)

    def _check_range(self, source: FetchFrom, offset: int) -> None:
        """What one broker reports about its log proves nothing: what does its leader say now, and is it still the same topic?
        (I4)
        """
        outcome: HeadraceError
        try:
            outcome = self._range_outcome(source, offset)
        except HeadraceError as error:
            outcome = error
        self._cluster.invalidate(source.topic)
        with self._lock:
            self._deliver([self._plan.cleared(source, outcome, time.monotonic())])

    def _range_outcome(self, source: FetchFrom, offset: int) -> HeadraceError:
        """Offsets are asked for by name, so which topic they belong to is checked afterwards."""
        outcome = range_outcome(*source.key, offset, source.stop, self._cluster.offset_range(*source.key))
        if isinstance(outcome, RetriableError):
            return outcome
        answers = self._cluster.find_topics_everywhere([source.topic])
        if is_same(source.topic, self._plan.topic_id_of(source), answers):
            return outcome
        return RetriableError(f"the topic {source.topic!r} is not the one it was")  # the lookup that follows decides

    # --- the threads that fetch ----------------------------------------------------------------------------------------

    def _run_fetches(self, broker: Broker) -> None:
        not_before = 0.0
        session = FetchSession()
        while True:
            with self._lock:
                taken, headroom = self._wait_for_work(broker, session, not_before)
                if headroom:
                    self._asked_bytes += headroom
                    self._busy.add(broker)
                else:
                    connection = self._leave(broker)
            if not headroom:
                if connection is not None:
                    self._cluster.give_back(connection)
                return
            try:
                not_before = self._fetch(broker, session, taken, headroom)
            finally:
                with self._lock:
                    self._asked_bytes -= headroom
                    self._busy.discard(broker)
                    self._wake_starved()

    def _leave(self, broker: Broker) -> Connection | None:
        """The thread ends: under the lock, so that the next one for this broker finds nothing of it. Its connection, if any."""
        if not self._closed:  # close() waits for those that are there
            del self._threads[broker], self._wakes[broker]
        return self._connections.pop(broker, None)

    def _give_back(self, broker: Broker) -> None:
        with self._lock:
            connection = self._connections.pop(broker, None)
        if connection is not None:
            self._cluster.give_back(connection)

    def _wait_for_work(self, broker: Broker, session: FetchSession, not_before: float) -> tuple[list[Asked], int]:
        """What to ask for now, alongside what is in flight, and how many bytes that may bring.

        None at all when the fetcher was closed, or fetches nothing more from this broker.
        """
        while True:
            self._recall(broker, session)
            if self._closed or not self._plan.fetches_from(broker):
                return [], 0
            now = time.monotonic()
            headroom = self._headroom()
            if headroom and now >= not_before:
                taken = self._take(broker, session, now, headroom)
                if taken or session.asked:
                    return taken, headroom
            if not headroom:
                self._starved.add(broker)
            due = (not_before if session.asked else self._plan.next_due(broker)) if headroom else None
            wake = None if due is None else max(due, not_before) - now
            self._wakes[broker].wait(None if wake is None else max(wake, 0.0))

    def _recall(self, broker: Broker, session: FetchSession) -> None:
        """What is to be fetched elsewhere now, or no more, is not in flight here any more."""
        recalled = [item for key in self._plan.left(broker) if (item := session.leave(key)) is not None]
        if recalled:
            self._plan.put_back(recalled)
            self._wake_changed()

    def _take(self, broker: Broker, session: FetchSession, now: float, headroom: int) -> list[Asked]:
        taken = self._plan.take(broker, now, headroom)
        if not taken or self._plan.allows_session(taken):
            return taken
        self._plan.put_back(session.end())
        return taken + self._plan.take(broker, now, headroom)

    def _headroom(self) -> int:
        """How many bytes the next request may bring: a broker's share of the budget, or 0 while that much is not free."""
        share = self._budget // (2 * max(1, len(self._plan.replicas())))
        size = min(self._config.fetch_max_bytes, _LARGEST_REQUEST, max(share, _SMALLEST_REQUEST))
        used = self._queued_bytes + self._asked_bytes
        return size if used == 0 or used + size <= self._budget else 0

    def _fetch(self, broker: Broker, session: FetchSession, taken: list[Asked], headroom: int) -> float:
        """One request and its answer. Returns when the next may be sent: the broker may want to be left alone (KIP-219)."""
        request, asked_at = self._request(taken, session, headroom), time.monotonic()
        try:
            connection = self._connection(broker)
            answer = connection.request(request, self._timeout())
            if answer.error in FORGOTTEN and session.is_incremental:
                with self._lock:
                    self._plan.put_back(session.reset())
                return asked_at
            if answer.error:
                raise broker_error(answer.error, f"fetching from {broker}")
        except HeadraceError as error:
            self._abandon(broker, session.reset(), error)
            return asked_at
        is_full = self._digest(broker, session, answer, headroom)
        throttled_until: float = time.monotonic() + answer.throttle_time_ms / 1000
        return max(throttled_until, asked_at if is_full else asked_at + self._linger_s)

    def _timeout(self) -> float:
        return (self._config.request_timeout_ms + self._config.fetch_max_wait_ms) / 1000

    def _connection(self, broker: Broker) -> Connection:
        connection = self._connections.get(broker)
        if connection is not None and connection.usable:
            return connection
        if connection is not None:
            self._give_back(broker)  # which closes it
        connection = self._cluster.lease(broker)
        with self._lock:
            self._connections[broker] = connection
            if self._closed:
                raise RetriableError("the fetcher was closed")
        return connection

    def _digest(self, broker: Broker, session: FetchSession, answer: FetchAnswer, headroom: int) -> bool:
        """Queue what came. Returns whether that is about as much as was asked for: the broker may have more at once."""
        found, left_out = session.answered(answer)
        outcomes: list[FetchedData | FetchFailed | None] = []
        with self._lock:
            now = time.monotonic()
            for item, part in found:
                replica = part.preferred_replica
                preferred = None if replica is None else self._cluster.broker(replica)
                if part.error or (replica is not None and preferred is None):
                    self._cluster.invalidate(item.topic)
                hinted = None if part.leader is None else self._cluster.broker(part.leader[0])
                hint = Leader(hinted, part.leader[1]) if part.leader is not None and hinted is not None else None
                outcomes.append(self._plan.landed(item, part, preferred, now, hint=hint))
            if answer.throttle_time_ms:  # a broker that throttles leaves out all of them, and they are asked for again
                self._plan.put_back(left_out)
            else:
                silent = RetriableError(f"{broker} left partitions out of its answer")
                outcomes += self._plan.lost(left_out, silent, now)
            self._deliver(outcomes)
        total = sum(len(part.records) for _, part in found)
        return 2 * total > headroom or any(2 * len(part.records) > item.max_bytes for item, part in found)

    def _abandon(self, broker: Broker, asked: list[Asked], error: HeadraceError) -> None:
        self._give_back(broker)
        for topic in {item.topic for item in asked}:
            self._cluster.invalidate(topic)
        with self._lock:
            self._deliver(self._plan.lost(asked, error, time.monotonic()))

    def _request(self, taken: list[Asked], session: FetchSession, headroom: int) -> Message:
        wanted, part = session.next(taken)
        limits = FetchLimits(
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes if self._plan.wants_wait(taken) else 1,
            max_bytes=headroom,
        )
        rack = self._config.client_rack if all(item.may_be_nearby for item in taken) else None
        return fetch_request(wanted, limits, self._config.isolation, rack, part)
