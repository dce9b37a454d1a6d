"""What jobs have left in a table, for who looks after it: the transactions that are open, and what is recorded.

The mark of a transaction is there before its first file, and is removed after the table's commit: so only the mark shows a file
of an epoch that was never committed from one that a compaction has replaced, which is for the table's own vacuum. Removing
takes the job over, as a new driver does: a driver that is still running is fenced, and cannot commit what is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from headrace.connectors.base.sink import CommitList
from headrace.connectors.tables.committer import TableCommitter
from headrace.connectors.tables.handles import TableHandle
from headrace.connectors.tables.log import TableLog
from headrace.connectors.tables.metadata_folder import WorkFolder, jobs_in, jobs_with_marks, refused_by_store


class MarkState(StrEnum):
    """What becomes of a transaction whose mark is there."""

    OPEN = "open"  # written or prepared, and not committed
    GIVEN_UP = "given up"  # about to be removed
    COMMITTED = "committed"  # readers see it, and the epoch is not completed


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction whose mark is there. `since`: seconds since 1970 by the store's clock, None if the store does not say."""

    job: str
    place: str
    state: MarkState
    files: int
    size: int
    since: float | None


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's last recorded epoch, and its list: `commits` is None once the epoch is completed. `drivers` counts them.

    `driver_id`: of the supervised driver who owns the job.
    """

    job: str
    epoch: int
    drivers: int
    commits: CommitList[TableHandle] | None
    driver_id: str | None = None


class TableUpkeep:
    """Of one table. Raises PeerError for what the store refuses, UsageError without a table."""

    def __init__(self, log: TableLog, where: str) -> None:
        """`where` names the table in messages."""
        self._log, self._where = log, where

    def jobs(self) -> list[JobState]:
        loaded = self._log.load()
        with refused_by_store(self._where):
            store = self._log.store()
            names = jobs_in(store)
        states = []
        for job in names:
            marker = loaded.marker(job)
            if marker is None or not marker.following:
                continue
            with refused_by_store(self._where):
                commits = WorkFolder(store, job).read_list(marker.following - 1, marker.recorded_by)
            owner = None if marker.claimed is None else marker.claimed.driver_id
            states.append(JobState(job, marker.following - 1, marker.driver, commits, owner))
        return states

    def transactions(self) -> list[OpenTransaction]:
        """Those whose marks are there, of every job, by job and name."""
        committed = {(state.job, handle.place) for state in self.jobs() if state.commits for handle in state.commits.handles}
        with refused_by_store(self._where):
            return [item for job in jobs_with_marks(self._log.store()) for item in self._of(job, committed)]

    def _of(self, job: str, committed: Collection[tuple[str, str]]) -> Iterator[OpenTransaction]:
        work = WorkFolder(self._log.store(), job)
        found = work.look()
        for place in sorted(found.opened | found.cleaned_up):
            state = MarkState.GIVEN_UP if place in found.cleaned_up else MarkState.OPEN
            sizes = work.data_files(place).values()
            known = MarkState.COMMITTED if (job, place) in committed else state
            yield OpenTransaction(job, place, known, len(sizes), sum(sizes), found.since.get(place))

    def remove(self, job: str, places: Collection[str]) -> frozenset[str]:
        """Remove the files and marks of these transactions of a job, but not of committed ones. Gives what it removed.

        A driver of the job that is still running is fenced. Raises FencedError if another takes over meanwhile.
        """
        committer = TableCommitter(self._log, job, self._where)
        committer.fence()
        return committer.give_up(places)
