"""What Spark calls to write: batch and stream writers over any two-phase-commit sink.

Spark's epochs are its batch ids, its jobs are queries (by their id, which tasks see and tell the driver) and batch writes.
Tasks prepare; the driver's `commit` makes the list of what they prepared durable and ends it. A task of an epoch that is on the
durable list already writes nothing: the driver completes it, if it is the same batch by its entry in the offset log, too.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Generic

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.connectors.base import capabilities
from headrace.connectors.base import commit as commits
from headrace.connectors.base.counters import COUNTERS, Counted
from headrace.connectors.base.jobs import one_off_job
from headrace.connectors.base.sink import Attempt, HandleT, RecordedEpoch, TwoPhaseSink
from headrace.enumerator.errors import FencedError, HeadraceError, StateError, UsageError
from headrace.runners.spark.offset_log import OffsetLog
from headrace.runners.spark.reports import QUERY_ID, report
from headrace.runners.spark.tasks import check_memory

log = logging.getLogger(__name__)

_BATCH_ID = "streaming.sql.batchId"

_MOST_FENCES = 20
"""How often in a row an owner may be fenced: by its siblings, and by drivers that learn by it that they own the job no more."""

STRAGGLERS_S = 4.0
"""When a task fails, Spark stops the others and calls `abort` at once, but leaves their Python processes 2 s to end by
themselves (spark.python.task.killTimeout): until then one may prepare what nothing would ever end."""


@dataclass(frozen=True)
class PreparedMessage(WriterCommitMessage, Generic[HandleT]):
    """A task's message to the driver, with the handle of what it prepared, if it had any rows.

    `query`: whose `foreachBatch` a batch write is in. `skipped`: nothing was written, as the epoch was recorded already.
    """

    job: str
    epoch: int
    handle: HandleT | None
    query: str | None = None
    skipped: bool = False


def check_columns(schema: StructType, known: Mapping[str, Sequence[str]], required: Sequence[str]) -> list[str]:
    """The known columns of a frame, in its order. Raises UsageError for a missing one, or one of another type."""
    for name in required:
        if name not in schema.names:
            raise UsageError(f"Required attribute '{name}' not found; the columns are {', '.join(schema.names)}")
    for field in schema.fields:
        found = field.dataType.simpleString()
        if field.name in known and found not in known[field.name]:
            raise UsageError(f"{field.name} attribute type must be {' or '.join(known[field.name])}, not {found}")
    return [name for name in schema.names if name in known]


class _Recorded:
    """The epochs on the lists, and the lingering transactions, at the time of pickling: before the tasks of an epoch start.

    They must not write again what is durable. What a dead driver has under way is not waited for: if it becomes durable all the
    same, the driver's commit finds it, and aborts what these tasks have written.
    """

    def __init__(self, sink: TwoPhaseSink[Any], driver_id: str | None = None) -> None:
        self._sink = sink
        self._driver_id = driver_id
        self._epochs: Mapping[str, RecordedEpoch] | None = None
        self._left_over: frozenset[str] = frozenset()

    def __getstate__(self) -> dict[str, Any]:
        if self._epochs is None:
            # first: what is recorded in between is ended then, not written again
            self._left_over = capabilities.left_over(self._sink)
            self._epochs = dict(capabilities.recorded_now(self._sink))
        return {"_sink": self._sink, "_driver_id": self._driver_id, "_epochs": self._epochs, "_left_over": self._left_over}

    def of(self, job: str) -> RecordedEpoch | None:
        return None if self._epochs is None else self._epochs.get(job)

    def refuse(self, job: str, epoch: int, content: str | None) -> None:
        """Raise StaleEpochError if that was an epoch of another plan, before anything of its writer is fenced.

        SupersededError where another driver has claimed the job from this one since: its checkpoint is no older copy.
        """
        last = self.of(job)
        if last is None:
            return
        try:
            commits.refuse_stale(job, epoch, last.epoch)
            if last.epoch == epoch:
                commits.refuse_other_content(job, epoch, content, last.content)
        except commits.StaleEpochError:
            if self._driver_id is not None:
                commits.refuse_another(job, self._driver_id, last.claim)
            raise

    def warn_of_gap(self, job: str, epoch: int) -> None:
        """Of batches between that the sink does not have. No error: Spark runs a batch without rows without a task, maybe."""
        last = self.of(job)
        has_its_lists = isinstance(self._sink, capabilities.EpochRecord | capabilities.SingleCommit)
        if has_its_lists and last is not None and last.epoch < epoch - 1:
            log.warning(
                "job %s: the sink's last batch is %d, and this is batch %d. If the destination was restored from an older "
                "backup, what the batches between have written is not in it: continue with a checkpoint of the same age",
                job,
                last.epoch,
                epoch,
            )

    def recover(self, job: str) -> None:
        """End what an earlier run of the job has left. In a task, since the driver's side of Spark does not know the query."""
        capabilities.end_left_over(self._sink, job, self._left_over, self._driver_id)


def _prepare(
    sink: TwoPhaseSink[HandleT], recorded: _Recorded, attempt: Attempt, rows: Iterable[pa.RecordBatch]
) -> PreparedMessage[HandleT]:
    check_memory()
    capabilities.reached(sink)  # where `recorded` was made
    recorded.refuse(attempt.job, attempt.epoch, None)  # the driver knows the content
    last = recorded.of(attempt.job)
    if last is not None and last.epoch == attempt.epoch:
        _refuse_of_another_write(sink, attempt, last, rows)
        return PreparedMessage(attempt.job, attempt.epoch, None, skipped=True)
    recorded.recover(attempt.job)
    batches = iter(rows)
    first = [*islice(batches, 1)]  # which may take long to be computed: a database's transaction would be idle meanwhile
    with sink.begin(attempt) as transaction:
        for batch in chain(first, batches):
            transaction.write(batch)
        return PreparedMessage(attempt.job, attempt.epoch, transaction.prepare())


def _refuse_of_another_write(
    sink: TwoPhaseSink[Any], attempt: Attempt, recorded: RecordedEpoch, rows: Iterable[pa.RecordBatch]
) -> None:
    """Raise StateError for rows that name what the recorded epoch was not written to: to skip them would lose them."""
    if recorded.targets is None:
        return
    for batch in rows:
        others = capabilities.targets_of(sink, batch) - set(recorded.targets)
        if others:
            raise capabilities.another_write(attempt.job, recorded, others)


class StreamWriter(DataSourceStreamArrowWriter, Generic[HandleT]):
    """A streaming query's sink. Spark makes one for every batch alongside the driver, and unpickles copies in the tasks."""

    def __init__(
        self,
        sink: TwoPhaseSink[HandleT],
        columns: Sequence[str],
        offsets: OffsetLog | None = None,
        driver_id: str | None = None,
    ) -> None:
        """`columns`: those of the frame that are written. `driver_id`: of the driver, if it is a supervised one.

        `offsets`: of the query's checkpoint, where it is known: with it a batch that an older copy of the checkpoint has
        planned again is refused, and not taken for a replay.
        """
        self.sink = sink
        self._columns = list(columns)
        self._offsets = offsets
        self._driver_id = driver_id
        self._recorded = _Recorded(sink, driver_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PreparedMessage[HandleT]:
        """In a task. Raises what `_Recorded.refuse` and the sink raise."""
        context = _context()
        job, epoch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if job is None or epoch is None:
            raise UsageError("Spark does not say which query and batch this task is of: headrace needs PySpark 4.2 or later")
        try:
            return _prepare(self.sink, self._recorded, _attempt(context, job, int(epoch)), self._rows(iterator))
        finally:
            report(job)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.select(self._columns) for batch in batches)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver. The first of a query recovers: it fences an older driver, and completes what that has left.

        Raises what `_Recorded.refuse` and the sink raise.
        """
        prepared = _of_tasks(messages)
        if not prepared:
            return
        job, content = prepared[0].job, _content(self._offsets, batchId)
        asked = _requested(batchId, prepared, content)
        began_s = time.monotonic()
        self._recorded.refuse(job, batchId, content)
        self._recorded.warn_of_gap(job, batchId)
        capabilities.reached(self.sink)
        if self._driver_id is None:
            self._commit_unsupervised(job, asked)
        else:
            _while_owner(lambda: _commit(self.sink, job, asked, self._driver_id))
        # Of commits that have succeeded alone: what has failed is repeated.
        COUNTERS.add(Counted.COMMITS)
        COUNTERS.add(Counted.COMMITTED_TRANSACTIONS, len(asked.handles))
        COUNTERS.add(Counted.COMMIT_SECONDS, time.monotonic() - began_s)
        report(job)

    def _commit_unsupervised(self, job: str, asked: commits.CommitRequested[HandleT]) -> None:
        """Again if this process was fenced by a sibling: Spark has several processes for commits, and changes between them.

        By another driver, if the batch is recorded: this one is done for, and must not take back what is no longer its own.
        """
        try:
            _commit(self.sink, job, asked, None)
        except commits.SupersededError:
            raise
        except FencedError:
            if _is_recorded(self.sink, job, asked.epoch):
                raise
            _commit(self.sink, job, asked, None)

    def claim(self, job: str, last_batch: Callable[[], int | None]) -> int | None:
        """As `recover`, before a driver with a driver id starts the query for the first time: it makes the job its own."""
        return self._started(job, last_batch, commits.JobCommitter.claim)

    def recover(self, job: str, last_batch: Callable[[], int | None]) -> int | None:
        """Before the query starts, in a process of its driver: as the first `commit` does. Raises what the sink raises.

        Gives the last batch if all its rows are committed for sure, so that nothing is lost if it is not run again: it is
        recorded, of the same plan, and no row of it may name another target than what it was written to.

        `last_batch` gives the last one of the checkpoint's offset log; None for none. It is asked after the sink: a driver
        that is to be superseded may still be running, and plan and record one more. Where the sink has a later one, or this
        one from another plan and it is to be run again, the checkpoint is an older copy, whose query may be running:
        StaleEpochError then, before anything of that one is fenced or aborted. SupersededError where another driver has
        claimed the job since this one has.
        """
        return self._started(job, last_batch, commits.JobCommitter.recover)

    def release(self, job: str) -> None:
        """After the query has ended in good order: release the job. Raises as `recover`, and soon if the sink is away."""
        self._in_driver(capabilities.bounded(self.sink), job, commits.JobCommitter.release)

    def _started(
        self, job: str, last_batch: Callable[[], int | None], begin: Callable[[commits.JobCommitter[HandleT]], None]
    ) -> int | None:
        recorded = self._refuse_copy(job, last_batch)
        self._in_driver(self.sink, job, begin)
        return None if capabilities.rows_name_targets(self.sink) else recorded

    def _refuse_copy(self, job: str, last_batch: Callable[[], int | None]) -> int | None:
        """The last batch, if the sink has it, of the same plan, and the commit log has not."""
        recorded = capabilities.recorded_now(self.sink).get(job)
        if recorded is None:
            return None
        planned = last_batch()
        _refuse_older_copy(job, planned, recorded)
        if planned is None or recorded.epoch != planned:
            return None
        content = _content(self._offsets, planned)
        if self._offsets is None or content is None or self._offsets.is_committed(planned):
            return None  # it cannot be read here; or it is not run again, and may have other offsets by now (set-offsets)
        commits.refuse_other_content(job, planned, content, recorded.content)
        return None if recorded.content is None else planned

    def _in_driver(self, sink: TwoPhaseSink[HandleT], job: str, act: Callable[[commits.JobCommitter[HandleT]], None]) -> None:
        """With a new committer: one that was fenced is of no further use."""

        def attempt() -> None:
            with closing(commits.JobCommitter(job, sink.committer(job), self._driver_id)) as committer:
                act(committer)

        _while_owner(attempt)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver. What the query has prepared is aborted, unless this batch is recorded: the next start completes it."""
        prepared = _of_tasks(messages)
        if prepared:
            _abort(capabilities.bounded(self.sink), prepared[0].job, batchId, _handles(prepared), self._driver_id)


class BatchWriter(DataSourceArrowWriter, Generic[HandleT]):
    """A batch write: nothing of it is seen unless every task succeeded."""

    def __init__(
        self,
        sink: TwoPhaseSink[HandleT],
        columns: Sequence[str],
        job: str | None,
        epoch: int | None,
        offsets: OffsetLog | None = None,
    ) -> None:
        """`job` and `epoch` name a write that is repeated until it succeeds (default: this one alone), which may be the batch
        of a `foreachBatch`: then `offsets` as a stream's."""
        self._offsets, self._sink, self._columns = offsets, sink, list(columns)
        self._is_repeatable = job is not None
        self._job, self._epoch = one_off_job() if job is None else job, epoch or 0
        self._recorded = _Recorded(sink)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PreparedMessage[HandleT]:
        context = _context()
        rows = (batch.select(self._columns) for batch in iterator)
        prepared = _prepare(self._sink, self._recorded, _attempt(context, self._job, self._epoch), rows)
        return prepared if self._is_repeatable else replace(prepared, query=context.getLocalProperty(QUERY_ID))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver. If it dies in here, `headrace transactions commit` finishes the write."""
        prepared = _of_tasks(messages)
        queries = {message.query for message in prepared} - {None}
        if queries:
            log.warning(
                "query %s writes in foreachBatch without txnAppId and txnVersion: a batch that Spark runs again is written "
                "again, and each write takes separate names, which Kafka's coordinators keep for 7 days "
                "(transactional.id.expiration.ms)",
                ", ".join(sorted(map(str, queries))),
            )
        if any(message.skipped for message in prepared):
            log.warning(
                "write %s, number %d: the destination has it already, and nothing is written. That is so where the same batch "
                "is repeated. A second write of a batch to one destination needs another txnAppId, and so does a query that "
                "counts its batches from 0 again: their rows are left out",
                self._job,
                self._epoch,
            )
        capabilities.reached(self._sink)
        content = _content(self._offsets, self._epoch) if self._is_repeatable else None
        self._recorded.refuse(self._job, self._epoch, content)
        committer = commits.JobCommitter(self._job, self._sink.committer(self._job))
        committer.commit_requested(_requested(self._epoch, prepared, content))
        if not self._is_repeatable:
            _forget(committer, self._job)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: as a stream's, and again after 4 s, for tasks that were still running: nothing is cleaned up later."""
        handles = _handles(_of_tasks(messages))
        self._abort_now(handles)
        time.sleep(STRAGGLERS_S)
        self._abort_now(handles)

    def _abort_now(self, handles: tuple[HandleT, ...]) -> None:
        if self._is_repeatable:
            _abort(capabilities.bounded(self._sink), self._job, self._epoch, handles)
        else:  # no other write has this name, and none completes it later
            _recover(capabilities.bounded(self._sink), self._job, handles)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise UsageError("this writer is called outside of a Spark task")
    return context


def _attempt(context: TaskContext, job: str, epoch: int) -> Attempt:
    """By the number that no other attempt has: attempt numbers restart with each attempt at a stage."""
    return Attempt(job, epoch, context.partitionId(), context.taskAttemptId(), context.attemptNumber())


def _of_tasks(messages: Sequence[WriterCommitMessage | None]) -> list[PreparedMessage[Any]]:
    return [message for message in messages if isinstance(message, PreparedMessage)]


def _requested(
    epoch: int, prepared: Sequence[PreparedMessage[HandleT]], content: str | None
) -> commits.CommitRequested[HandleT]:
    return commits.CommitRequested(epoch, _handles(prepared), content, skipped=any(message.skipped for message in prepared))


def _handles(prepared: Sequence[PreparedMessage[HandleT]]) -> tuple[HandleT, ...]:
    return tuple(message.handle for message in prepared if message.handle is not None)


def _content(offsets: OffsetLog | None, batch: int) -> str | None:
    return None if offsets is None else offsets.digest(batch)


def _while_owner(act: Callable[[], None]) -> None:
    """Act again where this process was fenced meanwhile: each time it fences, and continues only if the job is still its own.

    So it is one that is not the owner, and ends for it, or a sibling. Raises SupersededError where the job is another's.
    """
    for _ in range(_MOST_FENCES - 1):
        try:
            act()
        except commits.SupersededError:
            raise
        except FencedError:
            continue
        return
    act()


def _commit(sink: TwoPhaseSink[HandleT], job: str, asked: commits.CommitRequested[HandleT], driver_id: str | None) -> None:
    committer = _committer(sink, job, driver_id)
    is_new = committer.recorded_epoch is None
    try:
        committer.commit_requested(asked)
    except BaseException:
        _committer.cache_clear()  # whatever comes next recovers
        raise
    if is_new and committer.is_first and asked.epoch > 0:
        log.warning(
            "job %s: batch %d is the first one that is recorded here. That is so where a query continues into another topic, "
            "table or folder, or from a checkpoint of another sink; if it has written here before, its destination was "
            "recreated, and what the batches before have written is not in it",
            job,
            asked.epoch,
        )


def _refuse_older_copy(job: str, last_batch: int | None, recorded: RecordedEpoch) -> None:
    """A batch is in the offset log before any of it is written, so what is recorded and not there is of another checkpoint."""
    if last_batch is None or last_batch < recorded.epoch:
        there = "knows no batch" if last_batch is None else f"ends with batch {last_batch}"
        raise commits.StaleEpochError(
            f"the checkpoint of job {job!r} {there}, and the sink has committed up to epoch {recorded.epoch} of it: the "
            "checkpoint is an older copy. Nothing of the job was changed. Continue from the newest checkpoint, or start a new "
            "query with a new checkpoint"
        )


@functools.lru_cache(maxsize=16)
def _committer(sink: TwoPhaseSink[Any], job: str, driver_id: str | None) -> commits.JobCommitter[Any]:
    """Kept with the process, which Spark uses again for every batch: a driver fences and recovers once."""
    return commits.JobCommitter(job, sink.committer(job), driver_id)


def _is_recorded(sink: TwoPhaseSink[Any], job: str, epoch: int) -> bool:
    """Whether the sink has this epoch, or a later one. Asked each time: Spark aborts in a new process."""
    return sink.recorded_epochs().get(job, -1) >= epoch


def _abort(sink: TwoPhaseSink[HandleT], job: str, epoch: int, handles: Sequence[HandleT], driver_id: str | None = None) -> None:
    """Abort what the job has prepared, `handles` among it, unless the epoch is recorded.

    Then another driver may be running with what comes after it, and to fence it and abort its transactions would be wrong.
    """
    try:
        if _is_recorded(sink, job, epoch):
            log.warning("job %s: epoch %d is recorded, nothing is aborted; the next start completes it if need be", job, epoch)
            return
    except HeadraceError as error:
        problem = "job %s: whether epoch %d is recorded cannot be determined now, so nothing is aborted: %s"
        log.warning(problem, job, epoch, error)
        return
    _recover(sink, job, handles, driver_id)


def _recover(sink: TwoPhaseSink[HandleT], job: str, handles: Sequence[HandleT], driver_id: str | None = None) -> None:
    """Abort all that the job has open. Where the sink refuses the job for good, as its list is lost, these handles alone."""
    committer = sink.committer(job)
    try:
        try:
            commits.JobCommitter(job, committer, driver_id).recover()
        except StateError:
            capabilities.abort_prepared(committer, handles)
            raise
    except HeadraceError as error:
        log.warning("job %s: what was prepared could not be aborted now, the next start will: %s", job, error)


def _forget(committer: commits.JobCommitter[Any], job: str) -> None:
    """Drop what is recorded of a write that is done. To fail now would have the caller repeat what readers see already."""
    try:
        committer.forget()
    except Exception as error:  # noqa: BLE001 - whatever it is, the write has succeeded
        log.warning("job %s: the write is committed, but what is recorded of it could not be removed: %s", job, error)
