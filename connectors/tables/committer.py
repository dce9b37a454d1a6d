"""Commits the epochs of one job to a table: each in one commit of the table, which sets the job's marker too.

**The table's commit is the decision.** It adds all files of an epoch and states that the epoch is recorded, by which driver. So
`record` makes an epoch visible, whole, and `end` finds that it is. A marker that was set is never set again for the same epoch.

**Fencing.** A driver that takes over sets the marker to the next number of a driver, in a commit without files. An older one
then finds another number in the marker, or its commit refused, and the table that it loads next has that number.

**Another process's commits** (another job, a compaction, a changed schema) only mean that the table is loaded again, and the
marker asked before anything is tried again. The same is done when the answer to a commit was lost.

**Cleaning up in two steps.** Files are where the commit leaves them, so a driver that was replaced must not remove what its
successor commits. It marks what it will remove (`check` refuses that), then looks whether it is still the driver, then removes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from headrace.connectors.base.capabilities import TaskCleanup
from headrace.connectors.base.jobs import is_one_off
from headrace.connectors.base.sink import CommitList, Committer, Outcome, PreparedGoneError, content_number, numbered_content
from headrace.connectors.tables.handles import TableHandle, table_changed, takes, task_of
from headrace.connectors.tables.log import JobMarker, LoadedTable, TableFile, TableLog
from headrace.connectors.tables.merging import Merge, Merger
from headrace.connectors.tables.metadata_folder import LeftOver, WorkFolder, refused_by_store
from headrace.connectors.tables.writing import Layout
from headrace.enumerator.errors import (
    DataLossError,
    FencedError,
    HeadraceError,
    PeerError,
    ProtocolViolationError,
    RetriableError,
    StateError,
)

AnswerT = TypeVar("AnswerT")

log = logging.getLogger(__name__)

TIMEOUT_S = 120.0
LONGEST_PAUSE_S = 5.0


class TableCommitter(Committer[TableHandle], TaskCleanup[TableHandle]):
    """Commits a job's files to one table. Raises PeerError for what the store refuses; recovering later continues there."""

    def __init__(self, table: TableLog, job: str, where: str, layout: Layout | None = None) -> None:
        """`where` names the table in messages; `layout` is of the files that merges write."""
        self._log = table
        self._merger = Merger(layout or Layout(), where)
        self._job = job
        self._where = where
        self._driver: int | None = None
        self._table_id: str | None = None
        self._commits: CommitList[TableHandle] | None = None
        self._list: tuple[int, int] | None = None  # epoch and driver of the list that counts
        self._following = 0  # of the marker as it was last known

    def fence(self) -> CommitList[TableHandle] | None:
        """Become the marker's driver. Raises UsageError for a table that cannot be written, StateError for a damaged list."""
        self._driver = None
        self._table_id, before = self._retrying(self._take_over)
        self._following = 0 if before is None else before.following
        if before is None:
            return None
        if not before.following:
            return None if before.claimed is None else CommitList(None, (), completed=True, claim=before.claimed)
        recorded, recorded_by = before.following - 1, before.recorded_by
        found = self._retrying(lambda: self._work().read_list(recorded, recorded_by))
        self._list = (recorded, before.recorded_by)
        commits = found or CommitList(recorded, (), completed=True, content=numbered_content(before.content))
        self._commits = replace(commits, claim=before.claimed)
        return self._commits

    def check(self, handles: Sequence[TableHandle]) -> None:
        """Raise for all that `record` would refuse: so nothing is recorded elsewhere, either, that cannot be committed.

        PreparedGoneError naming the transactions that have not all their files any more, or are about to be removed, PeerError
        those that do not fit the table any more; UsageError for a table that cannot be written, and for changes that cannot be
        merged; FencedError for an older driver, StateError for another table. Changes are merged here: `record` commits that,
        if the table is still the same.
        """
        self._retrying(lambda: self._check(handles))

    def record(self, commits: CommitList[TableHandle]) -> None:
        """Commit these files to the table, unless it states that the epoch is recorded. Raises FencedError for an older driver.

        Raises PeerError for files that do not fit the table any more.
        """
        try:
            merge = self._retrying(lambda: self._record(commits))
        finally:
            self._merger.forget()  # it is committed, or that is not known
        self._commits = commits if merge is None else replace(commits, handles=(*commits.handles, merge.handle))
        if merge is not None:
            self._retrying(lambda: self._work().close(merge.handle.place))
        self._remove_replaced(self._merger.replaced(merge))

    def end(self, handle: TableHandle) -> Outcome:
        """COMMITTED: `record` has done it. ABORTED if a reader would look for a file of it that is gone."""
        if self._commits is None or handle not in self._commits.handles:
            raise ProtocolViolationError(f"{self._where}: transaction {handle.place} is to be ended, and is not recorded")
        there = self._retrying(lambda: self._work().data_files(handle.place))
        gone = {file.path for file in handle.files} - there.keys()
        # a compaction may have taken their place, and a vacuum may have removed them then
        is_lost = bool(gone) and self._retrying(lambda: self._log.load().refers_to(gone))
        if is_lost:
            return Outcome.ABORTED
        self._retrying(lambda: self._leave(handle))
        return Outcome.COMMITTED

    def copy(self, handles: Sequence[TableHandle]) -> TableHandle:
        """Raise DataLossError naming the files: they are nowhere."""
        paths = ", ".join(f"{file.path} ({file.rows} rows)" for handle in handles for file in handle.files)
        raise DataLossError(
            f"{self._where}: another process has removed files that job {self._job!r} has committed, some or all of these: "
            f"{paths}. "
            "Take them out of the table by its own means (Delta: `repair`), or restore an older version of it"
        )

    def clean_up(self, keep: Collection[TableHandle]) -> None:
        """Remove the files of the job's other transactions, but not committed ones. Raises FencedError for an older driver."""
        kept = {handle.place for handle in keep}
        self._retrying(lambda: self._clean_up(self._work().look(), kept))

    def clean_up_tasks(self, tasks: Collection[int], keep: Collection[TableHandle]) -> None:
        """`clean up` of these tasks' transactions alone; lists stay."""
        kept = {handle.place for handle in keep}
        self._retrying(lambda: self._clean_up(self._work().look().of_tasks(tasks), kept))

    def open_tasks(self) -> frozenset[int]:
        found = self._retrying(self._work().look)
        return frozenset(task_of(place) for place in found.opened | found.cleaned_up)

    def widen(self, missing: Callable[[pa.Schema], pa.Schema]) -> None:
        """Add the columns that `missing` gives for the table's, if any, also if another writer adds some meanwhile."""
        self._retrying(lambda: self._widen(missing))

    def give_up(self, places: Collection[str]) -> frozenset[str]:
        """Remove the files of these transactions, wanted or not; those that are committed stay. Returns what was removed.

        Called after `fence`, for who looks after a table and is not a driver: what is recorded stays to be completed.
        """
        found = self._retrying(self._work().look)
        doomed = (found.opened | found.cleaned_up) & frozenset(places) - self._committed
        self._retrying(lambda: self._clean_up(found, (found.opened | found.cleaned_up) - doomed))
        return doomed

    @property
    def _committed(self) -> frozenset[str]:
        return frozenset(handle.place for handle in (self._commits.handles if self._commits else ()))

    def _remove_replaced(self, places: frozenset[str]) -> None:
        """Another merge is committed in their place. What cannot be removed now is left to the next driver."""
        if not places:
            return
        try:
            self._retrying(lambda: self._clean_up(LeftOver(places, frozenset(), frozenset(), {}), ()))
        except HeadraceError as error:
            log.warning("%s: files of merges that were not committed stay for now: %s", self._where, error)

    def _clean_up(self, found: LeftOver, kept: Collection[str]) -> None:
        work = self._work()
        doomed = found.opened - frozenset(kept) - self._committed
        for place in sorted(doomed):
            work.mark_cleaned_up(place)
        if doomed:
            self._check_removable(work, doomed)
        for place in sorted(doomed):
            work.remove_data(place)
        for place in sorted((found.opened | found.cleaned_up) - frozenset(kept)):
            work.close(place)
        for epoch, driver in sorted(found.lists - {self._list}):
            if self._driver is not None and driver <= self._driver:  # a younger one may be about to commit what it lists
                work.remove_list(epoch, driver)

    def forget(self) -> None:
        """Remove the job's folder, and set its marker back; that of a name that is never used again is removed if it can."""
        self._retrying(self._reset)
        self._retrying(lambda: self._work().leave())

    def close(self) -> None:
        """The table's library keeps its connections."""

    # --- steps --------------------------------------------------------------------------------------------------------

    def _take_over(self) -> tuple[str, JobMarker | None]:
        """The table's id, and the marker as it was before we became its driver.

        It is asked for first: our commit may clean up the log files that have it.
        """
        loaded = self._log.load()
        loaded.check_writable()
        self._work().enter()
        before = loaded.marker(self._job)
        marker = JobMarker(1) if before is None else replace(before, driver=before.driver + 1)
        loaded.commit(self._job, marker, ())
        self._driver = marker.driver
        return loaded.id, before

    def _record(self, commits: CommitList[TableHandle]) -> Merge | None:
        loaded, marker = self._own()
        if commits.epoch is None or commits.epoch < marker.following:
            claimed = marker.with_claim(commits.claim)
            if claimed != marker:
                self._commit(loaded, claimed, ())
            if commits.completed and commits.epoch is not None:
                self._work().remove_list(commits.epoch, marker.recorded_by)
            return self._merger.last_of(_changes_in(commits.handles))
        merge = self._fitted(loaded, commits.handles)
        rows = [handle for handle in commits.handles if handle.changes is None]
        if commits.handles:
            self._list = (commits.epoch, marker.driver)
            merges = () if merge is None else (merge.handle,)
            self._work().write_list(marker.driver, replace(commits, handles=(*commits.handles, *merges), claim=None))
            rows.extend(merges)
        if merge is not None:
            self._merger.asked_for(merge)
        recorded = JobMarker(marker.driver, commits.epoch + 1, marker.driver, content_number(commits.content))
        self._commit(loaded, recorded.with_claim(commits.claim), rows, None if merge is None else merge.removed)
        self._following = recorded.following
        return merge

    def _check(self, handles: Sequence[TableHandle]) -> None:
        loaded, _ = self._own()  # first: a driver that was replaced finds its files cleaned up
        if any(handle.table != loaded.id for handle in handles):
            # What is not in this table may be committed in that one: so it says nothing of what was written.
            raise StateError(
                f"{self._where}: this is not the table that job {self._job!r} has written these files to: another is named, "
                "or it was recreated. Name the table that they are in"
            )
        self._check_files(handles)
        self._fitted(loaded, handles)

    def _fitted(self, loaded: LoadedTable, handles: Sequence[TableHandle]) -> Merge | None:
        """All that can be known before the commit. Gives what the changes among these make of this version."""
        loaded.check_writable()
        for handle in handles:
            self._check_fits(loaded, handle)
        changes = _changes_in(handles)
        return self._merger.merge(loaded, self._work(), changes) if changes else None

    def _leave(self, handle: TableHandle) -> None:
        """It is committed. Changes that were staged are of no more use."""
        work = self._work()
        if handle.changes is not None:
            work.remove_data(handle.place)
        work.close(handle.place)

    def _widen(self, missing: Callable[[pa.Schema], pa.Schema]) -> None:
        loaded = self._log.load()
        columns = missing(loaded.schema)
        if len(columns):
            loaded.check_writable()
            loaded.widen(columns)

    def _commit(
        self, loaded: LoadedTable, marker: JobMarker, handles: Sequence[TableHandle], removed: Sequence[TableFile] | None = None
    ) -> None:
        """What fails after the commit, such as a checkpoint of the table's log, does not undo it."""
        try:
            loaded.commit(self._job, marker, [file for handle in handles for file in handle.files], removed)
        except RetriableError:
            raise
        except PeerError as error:
            if self._own()[1] != marker:
                raise
            log.warning(
                "%s: the commit has succeeded, and what the table's library does after it has not: %s", self._where, error
            )

    def _reset(self) -> None:
        loaded = self._log.load()
        if is_one_off(self._job):
            loaded.drop_marker(self._job)
        elif (marker := loaded.marker(self._job)) is not None and (marker.following or marker.claim):
            loaded.commit(self._job, JobMarker(marker.driver + 1), ())

    def _own(self) -> tuple[LoadedTable, JobMarker]:
        """The table, whose marker names us. Raises FencedError, or StateError for another one, or an older, in its place."""
        if self._driver is None:
            raise ProtocolViolationError(f"the committer of job {self._job!r} must fence before anything else")
        loaded = self._log.load()
        marker = loaded.marker(self._job)
        newest = (self._driver, self._following)
        if loaded.id != self._table_id or marker is None or (marker.driver, marker.following) < newest:
            raise StateError(
                f"{self._where}: this is not the table any more that job {self._job!r} has written to: it was recreated, or an "
                "older copy has taken its place. To write to it start a new query with a new checkpoint"
            )
        if marker.driver != self._driver:
            raise FencedError(f"{self._where}: another driver of job {self._job!r} claimed it; this one must stop")
        return loaded, marker

    def _check_files(self, handles: Sequence[TableHandle]) -> None:
        work = self._work()
        for handle in handles:
            there = work.data_files(handle.place)
            if not work.is_open(handle.place) or any(there.get(file.path) != file.size for file in handle.files):
                raise PreparedGoneError(
                    f"{self._where}: the files of transaction {handle.place} of job {self._job!r} are not there any more as "
                    "they were written: write the epoch again"
                )

    def _check_fits(self, loaded: LoadedTable, handle: TableHandle) -> None:
        """Another process may have changed the table since the task has looked at it."""
        now = {field.name: field for field in loaded.schema}
        changed = [name for name, kind in handle.columns if name not in now or not self._takes(now[name], handle, kind)]
        required = {field.name for field in loaded.schema if not field.nullable} - dict(handle.columns).keys()
        is_placed = handle.changes is not None or handle.partitioning == loaded.partitioning
        if handle.table != loaded.id or not is_placed or changed or required:
            what = [*changed, *sorted(required)] or ["it is another one, or is partitioned in another way"]
            raise table_changed(self._where, what)

    def _takes(self, field: pa.Field, handle: TableHandle, kind: str) -> bool:
        """Whether a column takes what these files have, also if it has become required since and they have no null.

        Of changes the merge sees it, as nulls of deleted rows, and of those that others replace, do not count.
        """
        if takes(field, kind):
            return True
        if not takes(field.with_nullable(nullable=True), kind):
            return False
        work = self._work()
        return handle.changes is not None or not any(work.has_nulls(file, field.name) for file in handle.files)

    def _check_removable(self, work: WorkFolder, doomed: Collection[str]) -> None:
        """Raise FencedError for an older driver, StateError if a reader needs any of these: then the marks tell an untruth."""
        loaded, _ = self._own()
        paths = {path for place in doomed for path in work.data_files(place)}
        if paths and loaded.refers_to(paths):
            raise StateError(
                f"{self._where}: files that are marked as not committed are in the table: {', '.join(sorted(paths)[:5])}. "
                "Nothing is removed. If a list was removed from `_headrace` by hand, remove their marks (`.open`) too"
            )

    def _work(self) -> WorkFolder:
        return WorkFolder(self._log.store(), self._job)

    def _retrying(self, step: Callable[[], AnswerT]) -> AnswerT:
        """The answer of a step that asks the table or the store first, whatever became of it the last time."""
        attempts = Retrying(
            retry=retry_if_exception_type(RetriableError),
            wait=wait_random_exponential(multiplier=0.02, max=LONGEST_PAUSE_S),
            stop=stop_after_delay(TIMEOUT_S),
            reraise=True,
        )
        answer: AnswerT = attempts(refused_by_store(self._where)(step))
        return answer


def _changes_in(handles: Sequence[TableHandle]) -> tuple[TableHandle, ...]:
    return tuple(handle for handle in handles if handle.changes is not None)
