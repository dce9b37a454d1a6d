"""Splits: the unit that is discovered, assigned, read and checkpointed (FLIP-27, SourceSplit)."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar, runtime_checkable


@runtime_checkable
class SourceSplit(Protocol):
    """One independently readable piece of a source, with its full position.

    A split is immutable and picklable. Reading it yields a *new* split object that is further on, so a split is at
    once the unit of work and the unit of state. Its position is always a resolved one (invariant I2: a symbolic start
    such as "latest" is turned into a number by discovery) and names the next thing to read (I3).
    """

    @property
    def split_id(self) -> str:
        """Identity of the split: the same for ever, and never given to anything else (I5: a topic's id, not its name)."""


@runtime_checkable
class SizedSplit(SourceSplit, Protocol):
    """A split that knows about how much is to be read of it, for runners that read so much at a time."""

    @property
    def size_bytes(self) -> int:
        """As it is stored: compressed, where it is."""


@runtime_checkable
class StagedSplit(SourceSplit, Protocol):
    """A split of a source of several stages."""

    @property
    def stage(self) -> int:
        """The number of its stage."""


class OffsetSplit(SourceSplit, Protocol):
    """A split of a log: a range of integer offsets. Engines that plan tasks by themselves (Spark) can plan over these."""

    @property
    def next_offset(self) -> int:
        """The next offset to read."""

    @property
    def stop_offset(self) -> int | None:
        """Where reading ends, exclusive; None while the split has no end."""

    def between(self, start: int, stop: int | None) -> Self:
        """The same split, to be read from `start` up to, not including, `stop`."""


SplitT = TypeVar("SplitT", bound=SourceSplit)
OffsetSplitT = TypeVar("OffsetSplitT", bound=OffsetSplit)
