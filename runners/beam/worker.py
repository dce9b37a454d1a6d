"""What a worker process keeps between two calls of `process`: nothing that a restore would need.

Runners make new DoFn instances as they like, so all of it belongs to the process, under the name of the transform. Readers are
parked while their split waits for its next call: they go on fetching, and a call that comes to the very position takes its
reader over.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic

from headrace.enumerator.source import SourceReader
from headrace.enumerator.split import SplitT
from headrace.runners.beam.publication import Proof, Publication

PARKED_S = 10.0
"""A parked reader that nobody takes for so long is closed, in seconds: its split is read elsewhere."""

MOST_PARKED = 256
"""More readers than this are not parked by one transform in one process: the oldest is closed."""


@dataclass(frozen=True, slots=True)
class _Parked(Generic[SplitT]):
    reader: SourceReader[SplitT]
    split: SplitT
    since_s: float


class ParkedReaders(Generic[SplitT]):
    """Readers that wait for their split's next call. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """None yet. `clock` gives monotonic seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._parked: OrderedDict[str, _Parked[SplitT]] = OrderedDict()
        self._most = MOST_PARKED

    def park(self, reader: SourceReader[SplitT], split: SplitT) -> None:
        """Keep a reader that holds this one split and has delivered up to here. Closes one that is too many."""
        with self._lock:
            closing = [self._parked.pop(split.split_id, None)]
            self._parked[split.split_id] = _Parked(reader, split, self._clock())
            if len(self._parked) > self._most:
                closing.append(self._parked.popitem(last=False)[1])
        _close(closing)

    def close(self) -> None:
        """Close every reader, and from now on each that a call still under way comes to park."""
        self._most = 0
        self.sweep(0.0)

    def take(self, split: SplitT) -> SourceReader[SplitT] | None:
        """The split's reader, if it stands at this very position. One that stands elsewhere is closed: a restore."""
        with self._lock:
            parked = self._parked.pop(split.split_id, None)
        if parked is None or parked.split == split:
            return parked.reader if parked is not None else None
        parked.reader.close()
        return None

    def sweep(self, patience_s: float) -> int:
        """Close the readers that were parked longer ago than that; how many are left."""
        oldest_s = self._clock() - patience_s
        with self._lock:
            late = [split_id for split_id, parked in self._parked.items() if parked.since_s <= oldest_s]
            closing = [self._parked.pop(split_id) for split_id in late]
            left = len(self._parked)
        _close(closing)
        return left


def _close(parked: list[_Parked[Any] | None] | list[_Parked[Any]]) -> None:
    for item in parked:
        if item is not None:
            item.reader.close()


@dataclass(frozen=True, slots=True)
class LastLook:
    """The last look for splits of this process: its number in the life of the job, and when it was, in monotonic seconds."""

    number: int
    at_s: float


@dataclass(eq=False)
class Worker(Generic[SplitT]):
    """One transform in this process. `ends` and `last_look` are hints, overwritten at will; `reported` are missing splits."""

    readers: ParkedReaders[SplitT] = field(default_factory=ParkedReaders)
    ends: dict[str, int] = field(default_factory=dict)
    last_look: LastLook | None = None
    reported: set[str] = field(default_factory=set)
    users: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    _publications: dict[str, Publication[SplitT]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def publication(self, split_id: str, proof: Proof) -> Publication[SplitT]:
        """The split's, made when first asked for."""
        with self._lock:
            return self._publications.setdefault(split_id, Publication(proof))


_workers: dict[str, Worker[Any]] = {}
_lock = threading.Lock()


def join(transform: str) -> Worker[Any]:
    """The process's state of this transform, for one more DoFn instance. Every `join` is followed by a `leave`."""
    with _lock:
        worker = _workers.get(transform)
        if worker is None:
            worker = _workers[transform] = Worker()
            name = f"headrace-beam-sweeper-{transform}"
            threading.Thread(target=_sweep_for_ever, args=(worker,), name=name, daemon=True).start()
        worker.users += 1
        return worker


def leave(transform: str) -> None:
    """A DoFn instance is gone; with the last one go the parked readers."""
    with _lock:
        worker = _workers[transform]
        worker.users -= 1
        if worker.users == 0:
            del _workers[transform]
    if worker.users == 0:
        worker.ended.set()
        worker.readers.close()


def _sweep_for_ever(worker: Worker[Any]) -> None:
    while not worker.ended.wait(PARKED_S / 2):
        worker.readers.sweep(PARKED_S)
