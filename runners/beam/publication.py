"""When a position may be published (a group's offsets committed): sans I/O, per split and worker process.

Beam finalises a bundle once its output is durable. Flink's runner does not keep to that: when a checkpoint completes it
finalises every bundle that has ended, those after the checkpoint's barrier too, so a position published then can be ahead of
what a restore goes back to. What is certain, with one checkpoint at a time, is this: a bundle that was still under way when
another was finalised is finalised by a later checkpoint, whose barrier came after the other bundle's end. So each call notes
which position had been finalised by then, and its own finalisation proves that one durable.

The same holds on every runner, so the same is done on every runner: which one runs the pipeline is not known where it is built
(an expansion service builds for another's). A runner that keeps Beam's promise publishes one call later than it could.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

PositionT = TypeVar("PositionT")


@dataclass(frozen=True, slots=True)
class Mark(Generic[PositionT]):
    """A position, and the number of the call that reached it: greater is later."""

    number: int
    end: PositionT


@dataclass(frozen=True, slots=True)
class FinalizationToken(Generic[PositionT]):
    """One call's position, and the one that its finalisation will prove: no other token, or each would keep all before it."""

    lifetime: int
    reached: Mark[PositionT]
    proven: Mark[PositionT] | None


class Publication(Generic[PositionT]):
    """The positions of one split, as the calls of one process register them and the runner finalises them. Thread-safe.

    A call that does not start where the last one ended means that the split was restored, or was elsewhere meanwhile: what is
    known of the time before proves nothing then.
    """

    def __init__(self, most_outstanding: int | None = None) -> None:
        """Of a split that this process has not read yet.

        `most_outstanding`: this many token at most wait for their finalisation, as a runner keeps every bundle until then, and
        one without checkpoints keeps it for ever. Calls beyond get no token; what they read is published with a later one's.
        """
        self._most = most_outstanding
        self._lock = threading.Lock()
        self._lifetime = 0
        self._last: PositionT | None = None
        self._numbers = 0
        self._finalised: Mark[PositionT] | None = None
        self._published = 0
        self._outstanding = 0

    def register(self, start: PositionT, end: PositionT) -> FinalizationToken[PositionT] | None:
        """A call has read from `start` to `end`. The token for `finalised`; None when nothing is owed, or too much is."""
        with self._lock:
            if start != self._last:
                self._lifetime += 1
                self._finalised = None
                self._published = self._numbers
                self._outstanding = 0
            elif start == end and self._published == self._numbers:
                return None
            if start != end or start != self._last:
                self._numbers += 1
            self._last = end
            if self._most is not None and self._outstanding >= self._most:
                return None
            self._outstanding += 1
            return FinalizationToken(self._lifetime, Mark(self._numbers, end), self._finalised)

    def finalised(self, token: FinalizationToken[PositionT]) -> PositionT | None:
        """The runner has finalised the call's bundle. What to publish now, if anything: never less than before."""
        with self._lock:
            if token.lifetime != self._lifetime:
                return None
            self._outstanding -= 1
            if self._finalised is None or token.reached.number > self._finalised.number:
                self._finalised = token.reached
            if token.proven is None or token.proven.number <= self._published:
                return None
            self._published = token.proven.number
            return token.proven.end

    def not_published(self, token: FinalizationToken[PositionT]) -> None:
        """What `finalised` of this token gave could not be published: it is owed still."""
        with self._lock:
            if token.lifetime == self._lifetime and token.proven is not None:
                self._published = min(self._published, token.proven.number - 1)

    def settled(self, position: PositionT) -> bool:
        with self._lock:
            return self._last == position and self._published == self._numbers
