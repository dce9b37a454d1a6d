"""When a position may be published (a group's offsets committed): sans I/O, per split and worker process.

Beam finalises a bundle once its output is durable. Flink's runner does not keep to that: when a checkpoint completes it
finalises every bundle that has ended, those after the checkpoint's barrier too, so a position published then can be ahead of
what a restore goes back to. What is certain, with one checkpoint at a time, is this: a bundle that was still under way when
another was finalised is finalised by a later checkpoint, whose barrier came after the other bundle's end. So each call notes
which position had been finalised by then, and its own finalisation proves that one durable.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

PositionT = TypeVar("PositionT")


class Proof(Enum):
    """What a runner's finalisation of a bundle proves durable."""

    OWN_BUNDLE = "own bundle"  # the bundle itself, as Beam has it
    EARLIER_BUNDLES = "earlier bundles"  # only bundles that were finalised while this one was under way or before: Flink


@dataclass(frozen=True, slots=True)
class Mark(Generic[PositionT]):
    """A position, and the number of the call that reached it: greater is later."""

    number: int
    end: PositionT


@dataclass(frozen=True, slots=True)
class Ticket(Generic[PositionT]):
    """One call's position, and the one that its finalisation will prove: no other ticket, or each would keep all before it."""

    life: int
    reached: Mark[PositionT]
    proven: Mark[PositionT] | None


class Publication(Generic[PositionT]):
    """The positions of one split, as the calls of one process register them and the runner finalises them. Thread-safe.

    A call that does not begin where the last one ended means that the split was restored, or was elsewhere meanwhile: what is
    known of the time before proves nothing then.
    """

    def __init__(self, proof: Proof) -> None:
        """Of a split that this process has not read yet."""
        self._proof = proof
        self._lock = threading.Lock()
        self._life = 0
        self._last: PositionT | None = None
        self._numbers = 0
        self._finalised: Mark[PositionT] | None = None
        self._published = 0

    def register(self, start: PositionT, end: PositionT) -> Ticket[PositionT] | None:
        """A call has read from `start` to `end`. The ticket for `finalised`; None when nothing is owed."""
        with self._lock:
            if start != self._last:
                self._life += 1
                self._finalised = None
                self._published = self._numbers
            elif start == end and self._published == self._numbers:
                return None
            if start != end or start != self._last:
                self._numbers += 1
            self._last = end
            proven = self._finalised if self._proof is Proof.EARLIER_BUNDLES else None
            return Ticket(self._life, Mark(self._numbers, end), proven)

    def finalised(self, ticket: Ticket[PositionT]) -> PositionT | None:
        """The runner has finalised the call's bundle. What to publish now, if anything: never less than before."""
        with self._lock:
            if ticket.life != self._life:
                return None
            if self._finalised is None or ticket.reached.number > self._finalised.number:
                self._finalised = ticket.reached
            durable = ticket.reached if self._proof is Proof.OWN_BUNDLE else ticket.proven
            if durable is None or durable.number <= self._published:
                return None
            self._published = durable.number
            return durable.end
