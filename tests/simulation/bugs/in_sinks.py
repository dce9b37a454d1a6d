"""Injected bugs of sinks, each counting its harm: any sink, with one promise of `headrace.sinks` broken."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base import capabilities
from headrace.sinks import Attempt, CommitList, Committer, HandleSerializer, Outcome, RecordedEpoch, Transaction, TwoPhaseSink
from headrace.testing import SinkConformance


def _of_inner(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(self.inner, name)(*arguments)


def _asked_of_inner(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(capabilities, name)(self.inner, *arguments)


class PassingTransaction(Transaction[Any]):
    """No bug."""

    def __init__(self, sink: "PassingSink", inner: Transaction[Any], attempt: Attempt) -> None:
        self.sink, self.inner, self.attempt = sink, inner, attempt

    write, prepare, abort = map(_of_inner, ("write", "prepare", "abort"))

    def committed(self) -> Any:
        """The handle of what was written, which is committed at once."""
        handle = self.inner.prepare()
        if handle is not None:
            self.sink.harm.append("committed")
            committer = self.sink.inner.committer(self.attempt.job)
            committer.end(handle)
            committer.close()
        return handle


class PassingCommitter(Committer[Any], capabilities.Confirmation[Any], capabilities.TaskCleanup[Any]):
    """No bug. Ends one by one, so that a bug in `end` happens for each."""

    def __init__(self, sink: "PassingSink", inner: Committer[Any], job: str) -> None:
        self.sink, self.inner, self.job = sink, inner, job

    fence, check, record, end = map(_of_inner, ("fence", "check", "record", "end"))
    copy, clean_up, forget, close = map(_of_inner, ("copy", "clean_up", "forget", "close"))
    confirm = _asked_of_inner("confirm")

    def clean_up_tasks(self, tasks: Collection[int], keep: Collection[Any]) -> None:
        capabilities.task_cleanup(self.inner).clean_up_tasks(tasks, keep)

    def open_tasks(self) -> frozenset[int]:
        return capabilities.task_cleanup(self.inner).open_tasks()


class PassingSink(
    TwoPhaseSink[Any],
    capabilities.RowRouting,
    capabilities.RowSharding,
    capabilities.PromptLookup,
    capabilities.OutageRetry,
    capabilities.ExpiringTransactions,
    capabilities.Warmable,
    capabilities.LeftoverCleanup,
    capabilities.WriterCommit,
):
    """No bug: the control. `harm` and `jobs` are shared by all sinks of a case. Around a `SingleCommit` sink it is one, too."""

    transaction: type[PassingTransaction] = PassingTransaction
    committing: type[PassingCommitter] = PassingCommitter

    def __init__(self, inner: TwoPhaseSink[Any], harm: list[str], jobs: set[str]) -> None:
        self.inner, self.harm, self.jobs = inner, harm, jobs

    def __new__(cls, inner: TwoPhaseSink[Any], harm: list[str], jobs: set[str]) -> "PassingSink":
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

    def committer_of_writer(self, writer: str, driver: Committer[Any]) -> Committer[Any]:
        assert isinstance(driver, PassingCommitter)
        return self.committing(self, capabilities.committer_of_writer(self.inner, writer, driver.inner), writer)

    def bounded(self) -> "PassingSink":
        return type(self)(capabilities.bounded(self.inner), self.harm, self.jobs)

    recorded, rows_name_targets = _of_inner("recorded"), property(_asked_of_inner("rows_name_targets"))
    recorded_now, targets_of, shards_of = map(_asked_of_inner, ("recorded_now", "targets_of", "shards_of"))
    reached, warm, warm_driver = map(_asked_of_inner, ("reached", "warm", "warm_driver"))
    transaction_timeout_s = property(_asked_of_inner("transaction_timeout_s"))
    left_over, end_left_over = map(_asked_of_inner, ("left_over", "end_left_over"))


class _PassingSingleCommit(capabilities.SingleCommit):
    inner: Any

    @property
    def refuses_epochs_by_their_rows(self) -> bool:
        return bool(self.inner.refuses_epochs_by_their_rows)


CAUGHT_BY: dict[type[PassingSink], str] = {}
"""Each bug, and a case of the kit that must fail for it."""


def _caught_by(case: str) -> Callable[[type[Any]], Any]:
    """The class is a bug: a sink, or the transactions or the committers of one. This case of the kit must fail for it."""

    def decorated(injected: type[Any]) -> type[Any]:
        attribute = {PassingTransaction: "transaction", PassingCommitter: "committing"}.get(injected.__base__)
        sink = injected
        if attribute is not None:
            sink = type(injected.__name__, (PassingSink,), {attribute: injected, "__doc__": injected.__doc__})
        CAUGHT_BY[sink] = case
        return sink

    return decorated


@_caught_by("test_nothing_is_visible_before_the_commit")
class CommitsInPrepare(PassingTransaction):
    """The first phase does what the second is for."""

    def prepare(self) -> Any:
        return self.committed()


@_caught_by("test_aborted_rows_are_never_visible")
class CommitsInAbort(PassingTransaction):
    """What a task gives up is committed all the same."""

    is_prepared = False

    def prepare(self) -> Any:
        self.is_prepared = True
        return self.inner.prepare()

    def abort(self) -> None:
        if not self.is_prepared:
            self.is_prepared = True
            self.committed()
        self.inner.abort()


@_caught_by("test_nothing_is_visible_before_the_commit")
class SecondBatchDropped(PassingTransaction):
    """Rows are lost without a word."""

    written = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.written += 1
        if self.written == 2:
            self.sink.harm.append("dropped")
        else:
            self.inner.write(batch)


@_caught_by("test_losing_attempts_are_aborted")
class CleanUpDoesNothing(PassingCommitter):
    """Losing attempts stay prepared for ever."""

    def clean_up(self, keep: Collection[Any]) -> None:
        self.sink.harm.append("not cleaned up")


@_caught_by("test_a_cleans_up_spares_what_it_is_instructed_to_keep")
class CleanUpKeepsNothing(PassingCommitter):
    """What is about to be recorded is aborted."""

    def clean_up(self, keep: Collection[Any]) -> None:
        self.sink.harm += ["cleaned_up"] * len(keep)
        self.inner.clean_up(())


@_caught_by("test_jobs_are_apart")
class CleansUpOtherJobs(PassingCommitter):
    """A job's names are matched by a prefix that others have too."""

    def clean_up(self, keep: Collection[Any]) -> None:
        self.inner.clean_up(keep)
        for job in self.sink.jobs - {self.job}:
            self.sink.harm.append(job)
            other = self.sink.inner.committer(job)
            other.fence()
            other.clean_up(())
            other.close()


@_caught_by("test_the_durable_list_is_read_back")
class ListNotDurable(PassingCommitter):
    """The list is in the driver's memory only."""

    def record(self, commits: CommitList[Any]) -> None:
        self.sink.harm.append("not recorded")


@_caught_by("test_an_older_driver_is_fenced")
class OlderDriverNotFenced(PassingCommitter):
    """The process that checks or records takes the job over again."""

    def check(self, handles: Sequence[Any]) -> None:
        self.inner.fence()
        self.inner.check(handles)

    def record(self, commits: CommitList[Any]) -> None:
        self.sink.harm.append("fenced back")
        self.inner.fence()
        self.inner.record(commits)


@_caught_by("test_epochs_are_visible_once_they_are_committed")
class EndDoesNothing(PassingCommitter):
    """States that it has committed, and has not."""

    def end(self, handle: Any) -> Outcome:
        self.sink.harm.append("not ended")
        return Outcome.COMMITTED


@_caught_by("test_ending_twice_is_ending_once")
class SecondEndSaysAborted(PassingCommitter):
    """A transaction that is no longer there counts as aborted."""

    def end(self, handle: Any) -> Outcome:
        if repr(handle) in self.sink.harm:
            return Outcome.ABORTED
        self.sink.harm.append(repr(handle))
        return self.inner.end(handle)


@_caught_by("test_what_was_aborted_after_the_list_is_repaired_or_said_to_be_lost")
class AbortedTakenForCommitted(PassingCommitter):
    """A transaction that timed out after its list was durable is skipped."""

    def end(self, handle: Any) -> Outcome:
        if self.inner.end(handle) is Outcome.ABORTED:
            self.sink.harm.append("skipped")
        return Outcome.COMMITTED


@_caught_by("test_what_was_aborted_is_not_recorded")
class CheckDoesNothing(PassingCommitter):
    """An epoch is recorded though a part of it is gone."""

    def check(self, handles: Sequence[Any]) -> None:
        self.sink.harm.append("not checked")


@_caught_by("test_a_losing_attempt_of_the_greatest_number_is_aborted")
class GreatNumbersAreNobodys(PassingSink):
    """What an attempt of more than 18 digits writes bears a name that the clean-up does not take for the job's."""

    def begin(self, attempt: Attempt) -> Transaction[Any]:
        if attempt.number >= 10**18:
            self.harm.append("named")
            attempt = replace(attempt, job="nobodys")
        return super().begin(attempt)


@_caught_by("test_an_epoch_without_rows_is_recorded")
class RecordedEpochsForgotten(PassingSink):
    """Tasks are not reported what is durable."""

    def recorded(self) -> Mapping[str, RecordedEpoch]:
        self.harm.append("not reported")
        return {}


@_caught_by("test_an_epoch_that_was_planned_again_is_refused")
class ContentForgotten(PassingCommitter):
    """An epoch is informed by its number alone."""

    def fence(self) -> CommitList[Any] | None:
        commits = self.inner.fence()
        if commits is None or commits.content is None:
            return commits
        self.sink.harm.append(commits.content)
        return replace(commits, content=None)


@_caught_by("test_who_has_claimed_a_job_keeps_it_until_a_younger_driver_comes")
class ClaimForgotten(PassingCommitter):
    """Who owns the job, no one knows."""

    def fence(self) -> CommitList[Any] | None:
        commits = self.inner.fence()
        if commits is None or commits.claim is None:
            return commits
        self.sink.harm.append(str(commits.claim))
        return replace(commits, claim=None)


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
