"""Commits at a sink that commits all of a checkpoint in one step, by its list (`capabilities.SingleCommit`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.connectors.base import capabilities
from headrace.connectors.base.sink import CommitList, Committer, HandleT, Outcome
from headrace.runners.local.commit.strategy import CommitStrategy, SinkEpochs
from headrace.runners.local.events import WorkerHandle


class PerRunCommit(CommitStrategy[HandleT]):
    """All workers have the run's job: what the sink records is committed."""

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
