"""How what workers have prepared for one sink is ended: the contract, and that of sinks that commit by list."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic

from headrace.connectors.base import capabilities
from headrace.connectors.base.sink import CommitList, Committer, HandleT, Outcome
from headrace.runners.local.events import WorkerHandle

EPOCH_BITS = 20
"""The random bits of an epoch; those above them are the checkpoint's number."""


@dataclass(frozen=True, slots=True)
class SinkEpochs:
    """What the last checkpoint reports about a sink: its epochs, as in `RunCheckpoint`, and whether all is committed."""

    before: int = 0
    last: int = 0
    completed: bool = True
    replaced: Collection[int] = ()

    @property
    def possible(self) -> Collection[int]:
        """What the sink may have recorded last, where not all is committed."""
        return {self.before, self.last, *(epoch for epoch in self.replaced if epoch > self.before)}


class CommitStrategy(ABC, Generic[HandleT]):
    """How what workers have prepared for one sink is ended. Methods without a body do nothing by default."""

    def is_possible(self, seen: int, reported: SinkEpochs) -> bool:
        """Whether the sink may have recorded this last, if it is the one that the last checkpoint is of.

        By default a checkpoint is completed after the sink has recorded it: one that does not know it is another, or older.
        """
        return seen in ({reported.last} if reported.completed else reported.possible)

    @abstractmethod
    def is_last(self, seen: int, reported: SinkEpochs) -> bool:
        """Whether this, looked up without waiting for any process, is what the sink has recorded last."""

    def has_ended(self, recorded: CommitList[HandleT]) -> bool:
        """Whether this states that all which the checkpoint of this epoch lists is committed. Default: no."""
        return False

    @abstractmethod
    def listed(self, epoch: int, handles: Sequence[WorkerHandle[HandleT]]) -> CommitList[HandleT]:
        """What the sink records of a checkpoint."""

    def stage(self, epoch: int) -> None:
        """What the sink is to record of a checkpoint soon. Nothing where that depends on what workers prepare."""

    @abstractmethod
    def check(self, handles: Sequence[WorkerHandle[HandleT]]) -> None:
        """Raise unless all are still prepared."""

    @abstractmethod
    def end_all(self, handles: Sequence[WorkerHandle[HandleT]]) -> Sequence[Outcome]:
        """The outcomes, in their order."""

    @abstractmethod
    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        """As the coordinator's own."""

    @abstractmethod
    def clean_up(self, number: int, keep: Collection[HandleT]) -> None:
        """Abort what this worker, which is dead, has left, but these."""

    def release(self, number: int) -> None:
        """Nothing will be asked of this worker any more."""

    def close(self) -> None:
        """Give connections back, but for the driver's."""

    def taken_over(self, reported: SinkEpochs, listed: Sequence[HandleT]) -> None:
        """This coordinator is the sink's driver, and the last checkpoint, which lists these, is recorded. No worker writes."""

    def completed(self, epoch: int) -> None:
        """The checkpoint of this epoch is stored as committed."""


class PerRunCommit(CommitStrategy[HandleT]):
    """At a sink that commits all of a checkpoint in one step, by its list (`capabilities.SingleCommit`).

    All workers have the run's job: what the sink records is committed.
    """

    def __init__(self, driver: Committer[HandleT]) -> None:
        self._driver = driver

    def is_last(self, seen: int, reported: SinkEpochs) -> bool:
        return True

    def has_ended(self, recorded: CommitList[HandleT]) -> bool:
        """An operator may have ended the table's list (`headrace transactions commit`)."""
        return recorded.completed

    def listed(self, epoch: int, handles: Sequence[WorkerHandle[HandleT]]) -> CommitList[HandleT]:
        return CommitList(epoch, tuple(listed.handle for listed in handles), completed=not handles)

    def check(self, handles: Sequence[WorkerHandle[HandleT]]) -> None:
        """Raise also where the sink would refuse them."""
        self._driver.check([listed.handle for listed in handles])

    def end_all(self, handles: Sequence[WorkerHandle[HandleT]]) -> Sequence[Outcome]:
        return capabilities.end_all(self._driver, [listed.handle for listed in handles])

    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        return self._driver.copy(handles)

    def clean_up(self, number: int, keep: Collection[HandleT]) -> None:
        capabilities.task_cleanup(self._driver).clean_up_tasks((number,), keep)

    def taken_over(self, reported: SinkEpochs, listed: Sequence[HandleT]) -> None:
        """Lists of coordinators that have died while they committed are removed, and so are files that are on no list."""
        if reported.completed and reported.last:
            self.completed(reported.last)
        self._driver.clean_up(listed)

    def completed(self, epoch: int) -> None:
        self._driver.record(CommitList(epoch, (), completed=True))
