"""Injected bugs of sinks: any sink, with one promise of `headrace.sinks` broken. The conformance kit must catch each.

    sink = broken(SweepDoesNothing, sink)

Every bug counts how often it has done harm, so that a test can tell a caught bug from one that never happened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base import capabilities
from headrace.sinks import Attempt, CommitList, Committer, HandleSerializer, Outcome, RecordedEpoch, Transaction, TwoPhaseSink
from headrace.testing import SinkConformance


class PassingTransaction(Transaction[Any]):
    """No bug."""

    def __init__(self, sink: PassingSink, inner: Transaction[Any], attempt: Attempt) -> None:
        self.sink, self.inner, self.attempt = sink, inner, attempt

    def write(self, batch: pa.RecordBatch) -> None:
        self.inner.write(batch)

    def prepare(self) -> Any:
        return self.inner.prepare()

    def abort(self) -> None:
        self.inner.abort()


class PassingCommitter(Committer[Any], capabilities.Confirmation[Any], capabilities.TaskCleanup[Any]):
    """No bug. Ends one by one, so that a bug in `end` happens for each."""

    def __init__(self, sink: PassingSink, inner: Committer[Any], job: str) -> None:
        self.sink, self.inner, self.job = sink, inner, job

    def fence(self) -> CommitList[Any] | None:
        return self.inner.fence()

    def check(self, handles: Sequence[Any]) -> None:
        self.inner.check(handles)

    def record(self, commits: CommitList[Any]) -> None:
        self.inner.record(commits)

    def end(self, handle: Any) -> Outcome:
        return self.inner.end(handle)

    def copy(self, handles: Sequence[Any]) -> Any:
        return self.inner.copy(handles)

    def clean_up(self, keep: Collection[Any]) -> None:
        self.inner.clean_up(keep)

    def clean_up_tasks(self, tasks: Collection[int], keep: Collection[Any]) -> None:
        capabilities.task_cleanup(self.inner).clean_up_tasks(tasks, keep)

    def open_tasks(self) -> frozenset[int]:
        return capabilities.task_cleanup(self.inner).open_tasks()

    def confirm(self, handles: Sequence[Any]) -> None:
        capabilities.confirm(self.inner, handles)

    def forget(self) -> None:
        self.inner.forget()

    def close(self) -> None:
        self.inner.close()


class PassingSink(
    TwoPhaseSink[Any],
    capabilities.RowRouting,
    capabilities.RowSharding,
    capabilities.PromptLookup,
    capabilities.OutageRetry,
    capabilities.Warmable,
    capabilities.LeftoverCleanup,
    capabilities.WriterCommit,
):
    """No bug: the control. `harm` and `jobs` are shared by all sinks of a case. Around a `SingleCommit` sink it is one, too."""

    transaction: type[PassingTransaction] = PassingTransaction
    committing: type[PassingCommitter] = PassingCommitter

    def __init__(self, inner: TwoPhaseSink[Any], harm: list[str], jobs: set[str]) -> None:
        self.inner, self.harm, self.jobs = inner, harm, jobs

    def __new__(cls, inner: TwoPhaseSink[Any], harm: list[str], jobs: set[str]) -> PassingSink:
        if isinstance(inner, capabilities.SingleCommit) and not issubclass(cls, _PassingSingleCommit):
            return object.__new__(type(cls.__name__, (cls, _PassingSingleCommit), {}))
        return object.__new__(cls)

    @property
    def handles(self) -> HandleSerializer[Any]:
        return self.inner.handles

    def begin(self, attempt: Attempt) -> Transaction[Any]:
        self.jobs.add(attempt.job)
        return self.transaction(self, self.inner.begin(attempt), attempt)

    def committer(self, job: str) -> Committer[Any]:
        return self.committing(self, self.inner.committer(job), job)

    def recorded(self) -> Mapping[str, RecordedEpoch]:
        return self.inner.recorded()

    def recorded_now(self) -> Mapping[str, RecordedEpoch]:
        return capabilities.recorded_now(self.inner)

    def committer_of_writer(self, writer: str, driver: Committer[Any]) -> Committer[Any]:
        assert isinstance(driver, PassingCommitter)
        return self.committing(self, capabilities.committer_of_writer(self.inner, writer, driver.inner), writer)

    @property
    def rows_name_targets(self) -> bool:
        return capabilities.rows_name_targets(self.inner)

    def targets_of(self, rows: pa.RecordBatch) -> frozenset[str]:
        return capabilities.targets_of(self.inner, rows)

    def shards_of(self, rows: pa.RecordBatch, shards: int) -> pa.Int32Array:
        return capabilities.shards_of(self.inner, rows, shards)

    def bounded(self) -> PassingSink:
        return type(self)(capabilities.bounded(self.inner), self.harm, self.jobs)

    def reached(self) -> None:
        capabilities.reached(self.inner)

    def warm(self) -> None:
        capabilities.warm(self.inner)

    def warm_driver(self) -> None:
        capabilities.warm_driver(self.inner)

    def left_over(self) -> frozenset[str]:
        return capabilities.left_over(self.inner)

    def end_left_over(self, job: str, left_over: frozenset[str], driver_id: str | None = None) -> None:
        capabilities.end_left_over(self.inner, job, left_over, driver_id)


class _PassingSingleCommit(capabilities.SingleCommit):
    inner: Any

    @property
    def refuses_epochs_by_their_rows(self) -> bool:
        return bool(self.inner.refuses_epochs_by_their_rows)


class _CommitsAtOnce(PassingTransaction):
    def prepare(self) -> Any:
        handle = self.inner.prepare()
        if handle is not None:
            self.sink.harm.append("committed")
            committer = self.sink.inner.committer(self.attempt.job)
            committer.end(handle)
            committer.close()
        return handle


class CommitsInPrepare(PassingSink):
    """The first phase does what the second is for."""

    transaction = _CommitsAtOnce


class _KeepsAborted(PassingTransaction):
    is_prepared = False

    def prepare(self) -> Any:
        self.is_prepared = True
        return self.inner.prepare()

    def abort(self) -> None:
        if not self.is_prepared:
            self.is_prepared = True
            handle = self.inner.prepare()
            if handle is not None:
                self.sink.harm.append("committed")
                committer = self.sink.inner.committer(self.attempt.job)
                committer.end(handle)
                committer.close()
        self.inner.abort()


class CommitsInAbort(PassingSink):
    """What a task gives up is committed all the same."""

    transaction = _KeepsAborted


class _DropsBatches(PassingTransaction):
    written = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.written += 1
        if self.written == 2:
            self.sink.harm.append("dropped")
        else:
            self.inner.write(batch)


class SecondBatchDropped(PassingSink):
    """Rows are lost without a word."""

    transaction = _DropsBatches


class _NoCleanUp(PassingCommitter):
    def clean_up(self, keep: Collection[Any]) -> None:
        self.sink.harm.append("not cleaned up")


class CleanUpDoesNothing(PassingSink):
    """Losing attempts stay prepared for ever."""

    committing = _NoCleanUp


class _KeepsNothing(PassingCommitter):
    def clean_up(self, keep: Collection[Any]) -> None:
        self.sink.harm += ["cleaned_up"] * len(keep)
        self.inner.clean_up(())


class CleanUpKeepsNothing(PassingSink):
    """What is about to be recorded is aborted."""

    committing = _KeepsNothing


class _CleansUpAll(PassingCommitter):
    def clean_up(self, keep: Collection[Any]) -> None:
        self.inner.clean_up(keep)
        for job in self.sink.jobs - {self.job}:
            self.sink.harm.append(job)
            other = self.sink.inner.committer(job)
            other.fence()
            other.clean_up(())
            other.close()


class CleansUpOtherJobs(PassingSink):
    """A job's names are matched by a prefix that others have too."""

    committing = _CleansUpAll


class _RecordsNothing(PassingCommitter):
    def record(self, commits: CommitList[Any]) -> None:
        self.sink.harm.append("not recorded")


class ListNotDurable(PassingSink):
    """The list is in the driver's memory only."""

    committing = _RecordsNothing


class _FencesBack(PassingCommitter):
    def check(self, handles: Sequence[Any]) -> None:
        self.inner.fence()
        self.inner.check(handles)

    def record(self, commits: CommitList[Any]) -> None:
        self.sink.harm.append("fenced back")
        self.inner.fence()
        self.inner.record(commits)


class OlderDriverNotFenced(PassingSink):
    """The process that checks or records takes the job over again."""

    committing = _FencesBack


class _EndsInWords(PassingCommitter):
    def end(self, handle: Any) -> Outcome:
        self.sink.harm.append("not ended")
        return Outcome.COMMITTED


class EndDoesNothing(PassingSink):
    """States that it has committed, and has not."""

    committing = _EndsInWords


class _EndsOnce(PassingCommitter):
    def end(self, handle: Any) -> Outcome:
        if repr(handle) in self.sink.harm:
            return Outcome.ABORTED
        self.sink.harm.append(repr(handle))
        return self.inner.end(handle)


class SecondEndSaysAborted(PassingSink):
    """A transaction that is no longer there counts as aborted."""

    committing = _EndsOnce


class _NeverAborted(PassingCommitter):
    def end(self, handle: Any) -> Outcome:
        if self.inner.end(handle) is Outcome.ABORTED:
            self.sink.harm.append("skipped")
        return Outcome.COMMITTED


class AbortedTakenForCommitted(PassingSink):
    """A transaction that timed out after its list was durable is skipped."""

    committing = _NeverAborted


class _ChecksNothing(PassingCommitter):
    def check(self, handles: Sequence[Any]) -> None:
        self.sink.harm.append("not checked")


class CheckDoesNothing(PassingSink):
    """An epoch is recorded though a part of it is gone."""

    committing = _ChecksNothing


class RecordedEpochsForgotten(PassingSink):
    """Tasks are not reported what is durable."""

    def recorded(self) -> Mapping[str, RecordedEpoch]:
        self.harm.append("not reported")
        return {}


class GreatNumbersAreNobodys(PassingSink):
    """What an attempt of more than 18 digits writes bears a name that the clean-up does not take for the job's."""

    def begin(self, attempt: Attempt) -> Transaction[Any]:
        if attempt.number >= 10**18:
            self.harm.append("named")
            attempt = replace(attempt, job="nobodys")
        return super().begin(attempt)


class _ForgetsContent(PassingCommitter):
    def fence(self) -> CommitList[Any] | None:
        commits = self.inner.fence()
        if commits is None or commits.content is None:
            return commits
        self.sink.harm.append(commits.content)
        return replace(commits, content=None)


class ContentForgotten(PassingSink):
    """An epoch is informed by its number alone."""

    committing = _ForgetsContent


class _ForgetsClaim(PassingCommitter):
    def fence(self) -> CommitList[Any] | None:
        commits = self.inner.fence()
        if commits is None or commits.claim is None:
            return commits
        self.sink.harm.append(str(commits.claim))
        return replace(commits, claim=None)


class ClaimForgotten(PassingSink):
    """Who owns the job, no one knows."""

    committing = _ForgetsClaim


CAUGHT_BY: Mapping[type[PassingSink], str] = {
    CommitsInPrepare: "test_nothing_is_visible_before_the_commit",
    CommitsInAbort: "test_aborted_rows_are_never_visible",
    SecondBatchDropped: "test_nothing_is_visible_before_the_commit",
    CleanUpDoesNothing: "test_losing_attempts_are_aborted",
    CleanUpKeepsNothing: "test_a_cleans_up_spares_what_it_is_instructed_to_keep",
    CleansUpOtherJobs: "test_jobs_are_apart",
    ListNotDurable: "test_the_durable_list_is_read_back",
    OlderDriverNotFenced: "test_an_older_driver_is_fenced",
    EndDoesNothing: "test_epochs_are_visible_once_they_are_committed",
    SecondEndSaysAborted: "test_ending_twice_is_ending_once",
    AbortedTakenForCommitted: "test_what_was_aborted_after_the_list_is_repaired_or_said_to_be_lost",
    CheckDoesNothing: "test_what_was_aborted_is_not_recorded",
    GreatNumbersAreNobodys: "test_a_losing_attempt_of_the_greatest_number_is_aborted",
    RecordedEpochsForgotten: "test_an_epoch_without_rows_is_recorded",
    ContentForgotten: "test_an_epoch_that_was_planned_again_is_refused",
    ClaimForgotten: "test_who_has_claimed_a_job_keeps_it_until_a_younger_driver_comes",
}
"""Each bug, and a case of the kit that must fail for it."""


def run_case(kit: SinkConformance, case: str, injected: type[PassingSink], harm: list[str]) -> None:
    """The case with this bug in every sink that it makes. Raises what the case raises."""
    jobs: set[str] = set()
    external = kit.create_external_context()
    make = external.create_sink
    external.create_sink = lambda: injected(make(), harm, jobs)
    try:
        getattr(kit, case)(external)
    finally:
        kit.close_committers()
        external.close()


def assert_caught(kit: SinkConformance, bug: type[PassingSink]) -> None:
    """The bug happens, and fails the case that must catch it; without it that case passes."""
    harm: list[str] = []
    run_case(kit, CAUGHT_BY[bug], PassingSink, harm)
    assert not harm
    with pytest.raises((Exception, pytest.fail.Exception), match=r"."):
        run_case(kit, CAUGHT_BY[bug], bug, harm)
    assert harm, "the bug never happened"
