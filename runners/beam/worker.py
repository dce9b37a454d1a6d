"""What a worker process keeps between two calls of `process`: nothing that a restore would need.

Runners make new DoFn instances as they like, so all of it belongs to the process, under the name of the transform. Readers are
cached while their splits wait for the next call: they continue fetching, and a call that comes to the very positions takes its
reader over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from apache_beam.utils.timestamp import Timestamp

from headrace.enumerator.pauses import DiscoveryPauses
from headrace.enumerator.source import Source, SourceReader
from headrace.enumerator.source_driver import FailureLog, can_pass
from headrace.enumerator.split import SplitT
from headrace.runners.beam.publication import Publication

log = logging.getLogger(__name__)

CACHED_S = 10.0
"""A cached reader that no call takes for this many seconds is closed: its splits are read elsewhere."""

TURN_S = 2.0
"""Many readers take turns on a runner's threads: each that is cached adds so long, in seconds, to the timeout with all."""

MOST_CACHED = 256
"""More readers than this are not cached by one transform in one process: the oldest is closed."""


@dataclass(frozen=True, slots=True)
class Cached(Generic[SplitT]):
    """A reader, where each of its splits is, and the time of the latest record that each has delivered."""

    reader: SourceReader[SplitT]
    positions: Mapping[str, SplitT]
    latest: Mapping[str, Timestamp]


class CachedReaders(Generic[SplitT]):
    """Readers that wait for their splits' next call. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: OrderedDict[frozenset[str], tuple[float, Cached[SplitT]]] = OrderedDict()
        self._most = MOST_CACHED

    def __len__(self) -> int:
        return len(self._cached)

    def cache(self, cached: Cached[SplitT]) -> None:
        """Keep a reader that holds just these splits and has delivered up to there. Closes one that is too many."""
        key = frozenset(cached.positions)
        with self._lock:
            closing = [self._cached.pop(key, None)]
            self._cached[key] = (self._clock(), cached)
            if len(self._cached) > self._most:
                closing.append(self._cached.popitem(last=False)[1])
        _close(closing)

    def close(self) -> None:
        """Close every reader, and from now on each that a call still under way comes to park."""
        self._most = 0
        self.clean_up(0.0)

    def take(self, positions: Mapping[str, SplitT]) -> Cached[SplitT] | None:
        """The splits' reader, if it is at these very positions. One that is elsewhere is closed: a restore."""
        with self._lock:
            found = self._cached.pop(frozenset(positions), None)
        if found is None or found[1].positions == positions:
            return None if found is None else found[1]
        _close([found])
        return None

    def clean_up(self, timeout_s: float) -> int:
        """Close the readers that were cached longer ago than that; how many are left."""
        oldest_s = self._clock() - timeout_s
        with self._lock:
            late = [key for key, (since_s, _) in self._cached.items() if since_s <= oldest_s]
            closing = [self._cached.pop(key) for key in late]
            left = len(self._cached)
        _close(closing)
        return left

    def clean_up_late(self) -> int:
        return self.clean_up(max(CACHED_S, TURN_S * len(self)))


def _close(cached: Sequence[tuple[float, Cached[Any]] | None]) -> None:
    for item in cached:
        if item is not None:
            item[1].reader.close()


@dataclass(frozen=True, slots=True)
class EndSeen:
    """Where a split's records end, and when that was asked, in epoch time: what was written by then has lower offsets."""

    offset: int
    asked: Timestamp


class Ends(Generic[SplitT]):
    """Where splits end: looked up in its own thread, so that no call ever waits for what is only a hint. Thread-safe.

    By the split's id, which the parts of a divided split have in common: so what is asked is where the records of the whole
    split end, and no split that is asked for has a stop.

    A look-up that fails for a reason that is transient is left out; any other failure is raised by the next `of`.
    """

    def __init__(self) -> None:
        """Nothing is known; the thread starts with the first question, and is gone when there is none."""
        self._condition = threading.Condition()
        self._known: dict[str, EndSeen] = {}
        self._asked: dict[str, SplitT] = {}
        self._failure: Exception | None = None
        self._looking = False

    def of(self, split_id: str) -> EndSeen | None:
        with self._condition:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return self._known.get(split_id)

    def offset(self, split_id: str) -> int | None:
        """The last answer's offset, for the backlog. Raises nothing."""
        end = self._known.get(split_id)
        return None if end is None else end.offset

    def ask(self, splits: Sequence[SplitT], look: Callable[[Sequence[SplitT]], Mapping[str, int]]) -> None:
        """Have these looked up soon. Returns at once."""
        with self._condition:
            self._asked.update((split.split_id, split) for split in splits)
            if self._looking or not self._asked:
                return
            self._looking = True
        threading.Thread(target=self._run, args=(look,), name="headrace-beam-ends", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Until every question is answered or has failed; false after the timeout. For tests."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._looking, timeout_s)

    def _run(self, look: Callable[[Sequence[SplitT]], Mapping[str, int]]) -> None:
        while True:
            with self._condition:
                splits, self._asked = list(self._asked.values()), {}
                if not splits:
                    self._looking = False
                    self._condition.notify_all()
                    return
            now, failure = Timestamp.now(), None
            ends: Mapping[str, int] = {}
            try:
                ends = look(splits)
            except Exception as error:  # noqa: BLE001 - raised by the next `of`
                if can_pass(error):
                    log.debug("where splits end is not known now: %s", error)
                else:
                    failure = error
            with self._condition:
                self._known.update((split_id, EndSeen(offset, now)) for split_id, offset in ends.items())
                self._failure = failure or self._failure


@dataclass(frozen=True, slots=True)
class LastPoll:
    """The last look for splits of this process: its number in the lifetime of the job, and its time, in monotonic seconds.

    `more`: it has not found all there was.
    """

    number: int
    at_s: float
    more: bool = False


@dataclass(eq=False)
class Worker(Generic[SplitT]):
    """One transform in this process. `ends` and `last_look` are hints; `reported` are missing splits.

    `pauses` and the logs of failures outlive the DoFn instances: so pauses grow, and a failure is logged once.
    `finalised_s`: when the runner last finalised a bundle of this transform here, in monotonic seconds; the start at first.
    `ended_s`: since when a split's last position waits to be published.
    """

    readers: CachedReaders[SplitT] = field(default_factory=CachedReaders)
    ends: Ends[SplitT] = field(default_factory=Ends)
    last_look: LastPoll | None = None
    reported: set[str] = field(default_factory=set)
    pauses: DiscoveryPauses = field(default_factory=DiscoveryPauses)
    discovery_failures: FailureLog = field(default_factory=FailureLog)
    publish_failures: FailureLog = field(default_factory=FailureLog)
    finishing_failures: FailureLog = field(default_factory=FailureLog)
    finalised_s: float = field(default_factory=time.monotonic)
    ended_s: dict[str, float] = field(default_factory=dict)
    users: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    _publications: dict[str, Publication[SplitT]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def report_missing(self, source: Source[SplitT], missing: Sequence[SplitT]) -> None:
        """Each is reported once, unless the source raises, which ends the job: then at every attempt."""
        unreported = [split for split in missing if split.split_id not in self.reported]
        if unreported:
            source.on_splits_missing(unreported)
            self.reported |= {split.split_id for split in unreported}

    def publication(self, split_id: str) -> Publication[SplitT]:
        with self._lock:
            # This many calls of a split may wait for their bundle's finalisation: a runner keeps about 100 KB for each.
            return self._publications.setdefault(split_id, Publication(most_outstanding=256))

    def forget(self, split_id: str) -> None:
        """A split has ended, and its last position is published: of a stream of files there are more and more of them."""
        with self._lock:
            self._publications.pop(split_id, None)
            self.ended_s.pop(split_id, None)


_workers: dict[str, Worker[Any]] = {}
_lock = threading.Lock()


def join(transform: str) -> Worker[Any]:
    """The process's state of this transform, for one more DoFn instance. Every `join` is followed by a `leave`."""
    with _lock:
        worker = _workers.get(transform)
        if worker is None:
            worker = _workers[transform] = Worker()
            name = f"headrace-beam-sweeper-{transform}"
            threading.Thread(target=_clean_up_for_ever, args=(worker,), name=name, daemon=True).start()
        worker.users += 1
        return worker


def leave(transform: str) -> None:
    """A DoFn instance is gone; with the last one go the cached readers."""
    with _lock:
        worker = _workers[transform]
        worker.users -= 1
        if worker.users == 0:
            del _workers[transform]
    if worker.users == 0:
        worker.ended.set()
        worker.readers.close()


def _clean_up_for_ever(worker: Worker[Any]) -> None:
    while not worker.ended.wait(CACHED_S / 2):
        worker.readers.clean_up_late()
