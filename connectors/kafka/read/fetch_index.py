"""Which partitions are due, by what is to be done with them, so that nothing scans all of them. Sans-I/O.

Each change of a partition costs its own place only (`put`), whatever their number; `changed` names the workers with work.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from headrace.connectors.kafka.client.topology import Broker


class Work(Enum):
    """What is done for partitions alongside fetching them."""

    LOOKUPS = auto()
    """Finding leaders."""
    RANGES = auto()
    """Asking whether an offset is out of range."""


Worker = Broker | Work
"""A thread with something to do: it fetches from a broker, or does one of the other kinds of work."""


@dataclass(slots=True)
class Place:
    """Where a partition is: which broker it belongs to, whether it may be asked for there, when its leader is looked up."""

    broker: Broker | None = None
    is_ready: bool = False
    in_dispute: bool = False
    lookup_at: float | None = None


class Placed(Protocol, Hashable):
    """A partition. `order` is smaller for those that have waited longer; `place` is the index's own."""

    place: Place
    order: int


P = TypeVar("P", bound=Placed)


@dataclass(slots=True)
class FetchIndex(Generic[P]):
    """Partitions by what is due. Not thread-safe."""

    _ready: dict[Broker, dict[P, None]] = field(default_factory=dict)
    _disputes: dict[P, None] = field(default_factory=dict)
    _lookups: list[tuple[float, int, P]] = field(default_factory=list)
    _homes: Counter[Broker] = field(default_factory=Counter)
    _left: dict[Broker, list[P]] = field(default_factory=dict)
    _changed: set[Worker] = field(default_factory=set)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def put(self, partition: P, place: Place) -> None:
        """The partition is there now; an empty `Place` takes it out."""
        before, partition.place = partition.place, place
        if before.broker != place.broker:
            self._move_home(partition, before.broker, place.broker)
        self._queue(partition, before, place)
        if place.in_dispute:
            self._disputes[partition] = None
            self._changed.add(Work.RANGES)
        else:
            self._disputes.pop(partition, None)
        if place.lookup_at is not None and place.lookup_at != before.lookup_at:
            heapq.heappush(self._lookups, (place.lookup_at, next(self._numbers), partition))
            self._changed.add(Work.LOOKUPS)

    def _move_home(self, partition: P, old: Broker | None, new: Broker | None) -> None:
        if old is not None:
            self._left.setdefault(old, []).append(partition)
            self._homes[old] -= 1
            if not self._homes[old]:
                del self._homes[old]
                self._changed.add(old)
        if new is not None:
            self._homes[new] += 1

    def _queue(self, partition: P, before: Place, place: Place) -> None:
        if before.is_ready and before.broker is not None:
            line = self._ready[before.broker]
            del line[partition]
            if not line:
                del self._ready[before.broker]
        if place.is_ready and place.broker is not None:
            self._ready.setdefault(place.broker, {})[partition] = None
            self._changed.add(place.broker)

    def changed(self) -> set[Worker]:
        """Who has got something to do, or a broker nothing any more, since this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    def left(self, broker: Broker) -> list[P]:
        """Those that have belonged to the broker since this was last asked, and may not do so any more."""
        return self._left.pop(broker, [])

    def ready(self, broker: Broker) -> list[P]:
        """Those that may be asked for at this broker, those that have waited longest first."""
        return sorted(self._ready.get(broker, ()), key=lambda partition: partition.order)

    def unresolved(self) -> list[P]:
        return list(self._disputes)

    def lookups(self, now: float) -> list[P]:
        due = []
        while self._lookups and self._lookups[0][0] <= now:
            entry = heapq.heappop(self._lookups)
            if self._is_current(entry):
                due.append(entry)
        for entry in due:
            heapq.heappush(self._lookups, entry)  # until its look-up has ended, and it is elsewhere
        return [partition for _, _, partition in due]

    def next_lookup(self) -> float | None:
        while self._lookups and not self._is_current(self._lookups[0]):
            heapq.heappop(self._lookups)
        return self._lookups[0][0] if self._lookups else None

    def brokers(self) -> set[Broker]:
        return set(self._homes)

    def belongs(self, broker: Broker) -> bool:
        return broker in self._homes

    @staticmethod
    def _is_current(entry: tuple[float, int, P]) -> bool:
        return entry[2].place.lookup_at == entry[0]
