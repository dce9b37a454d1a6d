"""What is left to do of a source, as Beam restrictions, and the trackers that guard them. No connector, no I/O.

The enumerating stage's restriction is the ledger. It starts as `Fresh`, the one state that leads to the initial discovery; what
is handed on to the next call is always `Enumerated`, so a restored pipeline cannot initialise again (Beam #31313, #34890). The
reading stage's restriction is made of splits at their positions (`reader.py`), each guarded by a tracker of here. What
is claimed is the split as it is after a batch, rows or not: it moves over records that yield nothing (Beam #25962).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker

from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import ProtocolViolationError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.split import OffsetSplit, SplitT


@dataclass(frozen=True, slots=True)
class Fresh:
    """Nothing was discovered yet."""


@dataclass(frozen=True, slots=True)
class Enumerated(Generic[SplitT]):
    """Discovery has answered, and these are the splits that were handed to the reading stage."""

    checkpoint: Checkpoint[SplitT]


@dataclass(frozen=True, slots=True)
class HandedOn:
    """No work: the rest of the enumeration is another element's."""


Enumeration = Fresh | Enumerated[SplitT] | HandedOn


class EncodedTracker(RestrictionTracker):
    """A tracker whose restrictions are bytes towards Beam, while the tracker inside has them as objects."""

    def __init__(self, inner: RestrictionTracker, encode: Callable[[Any], bytes]) -> None:
        self._inner = inner
        self._encode = encode

    def current_restriction(self) -> bytes:
        return self._encode(self._inner.current_restriction())

    def try_claim(self, position: Any) -> bool:
        return bool(self._inner.try_claim(position))

    def try_split(self, fraction_of_remainder: float) -> tuple[bytes, bytes] | None:
        parts = self._inner.try_split(fraction_of_remainder)
        return None if parts is None else (self._encode(parts[0]), self._encode(parts[1]))

    def check_done(self) -> bool:
        return bool(self._inner.check_done())

    def current_progress(self) -> RestrictionProgress:
        return self._inner.current_progress()

    def is_bounded(self) -> bool:
        return bool(self._inner.is_bounded())


def progress_of(completed: float, remaining: float) -> RestrictionProgress:
    """Of nothing, all is done: Beam divides by the sum (2.70 without asking whether it is 0)."""
    total = completed + remaining
    fraction = completed / total if total else 1.0
    return RestrictionProgress(fraction=fraction, completed=float(completed), remaining=float(remaining))


class EnumerationTracker(RestrictionTracker):
    """Guards the ledger. Claimed is the ledger after a check for splits; the rest is handed on until discovery is complete."""

    def __init__(self, enumeration: Enumeration[Any], *, bounded: bool) -> None:
        self._enumeration = enumeration
        self._bounded = bounded

    def current_restriction(self) -> Enumeration[Any]:
        return self._enumeration

    def try_claim(self, checkpoint: Checkpoint[Any]) -> bool:
        """The ledger as it is with the splits that were found. False when the runner has taken the work away meanwhile."""
        if isinstance(self._enumeration, HandedOn):
            return False
        self._enumeration = Enumerated(checkpoint)
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[HandedOn, Enumeration[Any]] | None:
        """Hand all of it on (0), which is the only way to divide it."""
        if fraction_of_remainder > 0 or self._done:
            return None
        rest, self._enumeration = self._enumeration, HandedOn()
        return self._enumeration, rest

    def check_done(self) -> bool:
        """Raise ValueError while no call has dealt with the ledger."""
        if not self._done:
            raise ValueError("the enumeration was neither completed nor handed on")
        return True

    def current_progress(self) -> RestrictionProgress:
        return RestrictionProgress(completed=1.0 if self._done else 0.0, remaining=0.0 if self._done else 1.0)

    def is_bounded(self) -> bool:
        return self._bounded

    @property
    def _done(self) -> bool:
        match self._enumeration:
            case HandedOn():
                return True
            case Enumerated(checkpoint):
                return checkpoint.exhausted
        return False


class SplitTracker(RestrictionTracker, Generic[SplitT]):
    """Guards one split of any kind: it can be handed on where it is, but not be divided."""

    def __init__(self, state: SplitState[SplitT], *, bounded: bool) -> None:
        self._state = state
        self._bounded = bounded

    def current_restriction(self) -> SplitState[SplitT]:
        """Where the split is; finished once nothing of it is left for this call."""
        return self._state

    def try_claim(self, state: SplitState[SplitT]) -> bool:
        """The split as it is once a batch is delivered. False when the rest is another element's: deliver nothing then."""
        if self._state.finished:
            return False
        self._state = state
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[SplitState[SplitT], SplitState[SplitT]] | None:
        if fraction_of_remainder > 0 or self._state.finished:
            return None
        rest, self._state = self._state, SplitState(self._state.split, finished=True)
        return self._state, rest

    def check_done(self) -> bool:
        """Raise ValueError while no call has dealt with a part of the split."""
        if not self._state.finished:
            raise ValueError(f"{self._state.split} was neither read to its end nor handed on")
        return True

    def current_progress(self) -> RestrictionProgress:
        """Half done, as far as any process knows."""
        return RestrictionProgress(fraction=1.0 if self._state.finished else 0.5)

    def is_bounded(self) -> bool:
        return self._bounded


class OffsetSplitTracker(RestrictionTracker):
    """Guards a range of offsets. One with a stop can be divided while it is read, unless `divisible` is false."""

    def __init__(self, state: SplitState[Any], *, end: Callable[[], int | None] = lambda: None, divisible: bool = True) -> None:
        """For one call of `process`. `end` reports where the split's records end, as far as is known: for the backlog."""
        self._split: OffsetSplit = state.split
        self._start = state.split.next_offset
        self._stop: int | None = state.split.stop_offset
        self._finished = state.finished
        self._end = end
        self._divisible = divisible

    def current_restriction(self) -> SplitState[Any]:
        """What is left for this call, from where it is to where the runner lets it go."""
        return SplitState(self._split.between(self._split.next_offset, self._stop), self._done)

    def try_claim(self, state: SplitState[Any]) -> bool:
        """The split as it is once a batch is delivered.

        False when the batch reaches beyond the stop, as the runner has divided the range meanwhile: it must not be delivered.
        What `current_restriction` then says is left is this call's still, and must be read again, up to that stop.
        A position goes back only where the source lets data loss pass, and never in a range with a stop: what is before its
        start may be another's. Raises ProtocolViolationError, a bug, for one that does.
        """
        at = state.split.next_offset
        if at < self._split.next_offset and self._stop is not None:
            raise ProtocolViolationError(f"{state.split} goes back from offset {self._split.next_offset} to {at}")
        if self._done or (self._stop is not None and at > self._stop):
            return False
        self._split, self._finished = state.split, state.finished
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[SplitState[Any], SplitState[Any]] | None:
        """Hand the rest on (0), or the later part of what is left."""
        if self._done:
            return None
        cut = self._cut(fraction_of_remainder)
        if cut is None:
            return None
        rest = SplitState(self._split.between(cut, self._stop), finished=False)
        self._stop = cut
        start = min(self._start, cut)
        return SplitState(self._split.between(start, cut), cut == start), rest

    def check_done(self) -> bool:
        """Raise ValueError while no call has dealt with a part of the range."""
        if not self._done:
            raise ValueError(
                f"{self._split} was neither read to its end nor handed on: "
                f"offsets from {self._split.next_offset} to {self._stop} are left"
            )
        return True

    def current_progress(self) -> RestrictionProgress:
        """Offsets read by this call, and offsets left: up to the stop, or to where the split's records end now."""
        at = self._split.next_offset
        end = at if self._done else self._stop if self._stop is not None else self._end()
        return progress_of(max(0, at - self._start), max(0, (at if end is None else end) - at))

    def is_bounded(self) -> bool:
        return self._stop is not None

    @property
    def _done(self) -> bool:
        return self._finished or (self._stop is not None and self._split.next_offset >= self._stop)

    def _cut(self, fraction: float) -> int | None:
        at = self._split.next_offset
        if fraction <= 0:
            return at
        if self._stop is None or not self._divisible:
            return None
        cut = at + max(1, int((self._stop - at) * fraction))
        return cut if cut < self._stop else None
