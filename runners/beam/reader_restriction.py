"""What one reader has to do: splits at their positions. The reading stage's restriction, and the tracker that guards it.

One element holds many splits, so that one reader reads them all: it fetches for all of them ahead, and there is a call for each
reader and not for each split, where a runner's state grows with every call (Beam #27648). A runner that divides the work moves
whole splits; only of the last one a range is isolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker

from headrace.enumerator.ledger import SplitState
from headrace.enumerator.split import SplitT
from headrace.runners.beam.split_restriction import OffsetSplitTracker, SplitTracker, progress_of

SplitTrackers = Callable[[SplitState[Any]], SplitTracker[Any] | OffsetSplitTracker]


@dataclass(frozen=True, slots=True)
class ReaderRestriction(Generic[SplitT]):
    """Splits to be read from where they are; and those that were read to their end, whose last position is not published."""

    reading: tuple[SplitT, ...]
    unpublished: tuple[SplitT, ...] = ()


@dataclass(slots=True)
class Claim(Generic[SplitT]):
    """A batch that is to be delivered: its split as it is afterwards. `left` is the tracker's answer.

    What is left of the split for this call, whether the claim is granted or not; None when nothing is.
    """

    split: SplitT
    finished: bool
    left: SplitT | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The last position of a split that was read to its end is published, or is given up."""

    split_id: str


class ReaderTracker(RestrictionTracker, Generic[SplitT]):
    """Guards the splits of one reader, each by its own tracker."""

    def __init__(self, restriction: ReaderRestriction[SplitT], tracker_of: SplitTrackers, *, publishes: bool) -> None:
        """For one call of `process`. `publishes`: a split read to its end is kept until its last position is published."""
        states = (SplitState(split, finished=False) for split in restriction.reading)
        self._reading = {state.split.split_id: tracker_of(state) for state in states}
        # a checkpoint of a job that published may have some, which are not published now
        self._unpublished = {split.split_id: split for split in restriction.unpublished} if publishes else {}
        self._publishes = publishes
        self._completed = 0.0
        for split_id in list(self._reading):
            self._drop_if_done(split_id)

    def current_restriction(self) -> ReaderRestriction[SplitT]:
        reading = tuple(tracker.current_restriction().split for tracker in self._reading.values())
        return ReaderRestriction(reading, tuple(self._unpublished.values()))

    def try_claim(self, position: Claim[SplitT] | Published) -> bool:
        """False for a batch that is another element's now, in part or whole: it must not be delivered."""
        if isinstance(position, Published):
            return self._unpublished.pop(position.split_id, None) is not None
        tracker = self._reading.get(position.split.split_id)
        if tracker is None:
            position.left = None
            return False
        granted = tracker.try_claim(SplitState(position.split, position.finished))
        state = tracker.current_restriction()
        position.left = None if state.finished else state.split
        self._drop_if_done(position.split.split_id)
        return granted

    def try_split(self, fraction_of_remainder: float) -> tuple[ReaderRestriction[SplitT], ReaderRestriction[SplitT]] | None:
        """Hand all that is left on (0); or move the later splits; or, of a single one, the later part."""
        if fraction_of_remainder <= 0:
            return self._hand_on()
        if len(self._reading) > 1:
            return self._move(fraction_of_remainder)
        return self._divide(fraction_of_remainder)

    def check_done(self) -> bool:
        """Raise ValueError while no call has dealt with a split, or with a last position."""
        for tracker in self._reading.values():
            tracker.check_done()
        if self._unpublished:
            raise ValueError(f"the last positions of {sorted(self._unpublished)} were neither published nor handed on")
        return True

    def current_progress(self) -> RestrictionProgress:
        parts = [tracker.current_progress() for tracker in self._reading.values()]
        completed = self._completed + sum(part.completed_work for part in parts)
        return progress_of(completed, sum(part.remaining_work for part in parts))

    def is_bounded(self) -> bool:
        return all(tracker.is_bounded() for tracker in self._reading.values())

    def _drop_if_done(self, split_id: str) -> None:
        tracker = self._reading[split_id]
        state = tracker.current_restriction()
        if state.finished:
            del self._reading[split_id]
            self._completed += tracker.current_progress().completed_work
            if self._publishes:
                self._unpublished[split_id] = state.split

    def _hand_on(self) -> tuple[ReaderRestriction[SplitT], ReaderRestriction[SplitT]] | None:
        rest = self.current_restriction()
        if rest == ReaderRestriction(()):
            return None
        self._reading, self._unpublished = {}, {}
        return ReaderRestriction(()), rest

    def _move(self, fraction: float) -> tuple[ReaderRestriction[SplitT], ReaderRestriction[SplitT]] | None:
        keep = max(1, math.ceil(len(self._reading) * fraction))
        moved = list(self._reading)[keep:]
        if not moved:
            return None
        rest = ReaderRestriction(tuple(self._reading.pop(split_id).current_restriction().split for split_id in moved))
        return self.current_restriction(), rest

    def _divide(self, fraction: float) -> tuple[ReaderRestriction[SplitT], ReaderRestriction[SplitT]] | None:
        for tracker in self._reading.values():
            parts = tracker.try_split(fraction)
            if parts is not None:
                return self.current_restriction(), ReaderRestriction((parts[1].split,))
        return None


def deal(splits: Sequence[SplitT], readers: int) -> list[ReaderRestriction[SplitT]]:
    """The splits dealt out to this many readers, or fewer where there are fewer splits."""
    return [ReaderRestriction(tuple(splits[first::readers])) for first in range(min(readers, len(splits)))]
