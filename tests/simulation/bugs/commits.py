"""Injected bugs in commit and recovery: each breaks one rule of `headrace.connectors.base.commit`, and must be caught.

with planted_commits.sweep_skipped():
    ...  # must fail
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.connectors.base import commit as module
from headrace.connectors.base.commit import (
    COMMIT_TRANSITIONS,
    CleanedUp,
    CleanUp,
    CommitCore,
    CommitPhase,
    Copied,
    Ended,
    JobCommitter,
    Record,
)
from headrace.connectors.base.sink import CommitList, Outcome

Injected = Callable[[], AbstractContextManager[None]]


@contextmanager
def _performing(command_type: type, injected: Callable[[Any, Callable[[Any], Any], Any], Any]) -> Iterator[None]:
    """The commands of this type are performed by `injected(committer, perform, command)`."""
    perform = JobCommitter._perform

    def performed(self: Any, command: Any) -> Any:
        if isinstance(command, command_type):
            return injected(self._committer, lambda other: perform(self, other), command)
        return perform(self, command)

    with patch.object(JobCommitter, "_perform", performed):
        yield


@contextmanager
def _transition(phase: CommitPhase, event: type, handler: str, injected: Callable[..., list[Any]]) -> Iterator[None]:
    """In this phase the event is handled so; and may lead anywhere, for the checker to see what comes of it."""
    handle = getattr(CommitCore, handler)

    def handled(core: Any, *arguments: Any) -> list[Any]:
        return injected(core, *arguments) if core.phase is phase else handle(core, *arguments)

    leading_anywhere = {(phase, event): tuple(CommitPhase)}
    with patch.object(CommitCore, handler, handled), patch.dict(COMMIT_TRANSITIONS, leading_anywhere):  # type: ignore[arg-type]
        yield


@contextmanager
def committed_before_the_list_is_durable() -> Iterator[None]:
    """The transactions are committed first, and the list of them is written when that is done."""

    def injected(committer: Any, perform: Callable[[Any], Any], command: Any) -> Any:
        for handle in command.commits.handles:
            committer.end(handle)
        return perform(command)

    with _performing(Record, injected):
        yield


@contextmanager
def completed_before_the_commits() -> Iterator[None]:
    """The list states that the epoch is completed before its transactions are committed."""

    def injected(_: Any, perform: Callable[[Any], Any], command: Any) -> Any:
        return perform(Record(replace(command.commits, handles=(), completed=True)))

    with _performing(Record, injected):
        yield


@contextmanager
def recovery_skipped() -> Iterator[None]:
    """A restarted driver takes what the durable list names for done."""

    def injected(core: Any) -> list[Any]:
        core.commits = core.commits and replace(core.commits, handles=(), completed=True)
        return core._clean_up()  # type: ignore[no-any-return]

    with patch.object(CommitCore, "_recover", injected):
        yield


@contextmanager
def aborted_after_the_list_was_durable() -> Iterator[None]:
    """A restarted driver aborts an unfinished epoch, though its list is durable, and lets it be written again."""

    def injected(core: Any) -> list[Any]:
        if core.commits is not None and not core.commits.completed:
            core.commits = CommitList(None, (), completed=True, claim=core.commits.claim)
        return core._clean_up()  # type: ignore[no-any-return]

    with patch.object(CommitCore, "_recover", injected):
        yield


@contextmanager
def expired_after_the_list_was_durable_ignored() -> Iterator[None]:
    """A listed transaction that was aborted by its timeout counts as committed: no copy."""
    ended = CommitCore._ended

    def injected(core: Any, event: Any) -> list[Any]:
        return ended(core, Ended(event.handle, Outcome.COMMITTED))

    with _transition(CommitPhase.ENDING, Ended, "_ended", injected):
        yield


@contextmanager
def copy_not_recorded() -> Iterator[None]:
    """The copy is committed without taking the place of the others on the list."""

    def injected(core: Any, event: Any) -> list[Any]:
        core.commits = replace(core.commits, handles=event.handles)
        return core._end_all()  # type: ignore[no-any-return]

    with _transition(CommitPhase.COPYING, Copied, "_copied", injected):
        yield


@contextmanager
def clean_up_skipped() -> Iterator[None]:
    """No process aborts the losers."""
    with _performing(CleanUp, lambda *_: CleanedUp()):
        yield


@contextmanager
def nothing_cleaned_up_where_nothing_is_committed() -> Iterator[None]:
    """A driver that has recovered takes up a replay, or an epoch without rows, and leaves open what its tasks prepared."""

    def injected(core: Any, _: Any) -> list[Any]:
        return core._take_up()  # type: ignore[no-any-return]

    with _transition(CommitPhase.READY, module.CommitRequested, "_commit", injected):
        yield


@contextmanager
def clean_up_of_what_is_to_be_committed() -> Iterator[None]:
    """The recovery before a commit aborts what the tasks have just prepared."""
    with _performing(CleanUp, lambda _, perform, __: perform(CleanUp(()))):
        yield


@contextmanager
def losers_of_a_recorded_epoch_kept() -> Iterator[None]:
    """The recovery before a commit keeps what a replay has prepared, though its epoch is made up of others."""

    def injected(core: Any) -> list[Any]:
        core.phase = CommitPhase.CLEANING_UP
        return [CleanUp(core._asked.handles if core._asked is not None else ())]

    with patch.object(CommitCore, "_clean_up", injected):
        yield


@contextmanager
def stale_epoch_skipped() -> Iterator[None]:
    """An epoch below the recorded one is taken for done."""
    take_up = CommitCore._take_up

    def injected(core: Any) -> list[Any]:
        if core._asked is not None and core._asked.epoch < core._recorded_epoch:
            core._asked = None
        return take_up(core)

    with patch.object(CommitCore, "_take_up", injected):
        yield


@contextmanager
def stale_epoch_written() -> Iterator[None]:
    """An epoch below the recorded one is written again."""
    with patch.object(module, "refuse_stale", lambda *_: None):
        yield


@contextmanager
def recorded_epoch_written_again() -> Iterator[None]:
    """A replay of the recorded epoch is committed too."""
    take_up = CommitCore._take_up

    def injected(core: Any) -> list[Any]:
        asked = core._asked
        if asked is not None and asked.handles and core.commits is not None and asked.epoch == core.commits.epoch:
            core._asked, core.commits = asked, replace(core.commits, epoch=asked.epoch - 1)
        return take_up(core)

    with patch.object(CommitCore, "_take_up", injected), patch.object(module, "refuse_stale", lambda *_: None):
        yield


@contextmanager
def driver_ids_are_ignored() -> Iterator[None]:
    """Who has fenced continues, whosever the job is: so two drivers that live fence each other alternately."""
    with patch.object(module, "refuse_another", lambda *_: None):
        yield


@contextmanager
def a_claim_is_recorded_last() -> Iterator[None]:
    """A driver that starts first ends what the previous one has left, and then says who owns the job: not at all, if it
    dies.
    """

    def injected(core: Any, event: Any) -> list[Any]:
        core.commits = event.commits
        return core._recover()  # type: ignore[no-any-return]

    with _transition(CommitPhase.FENCING, module.Fenced, "_fenced", injected):
        yield


@contextmanager
def a_list_says_no_more_whose_the_job_is() -> Iterator[None]:
    """The claim is lost with the next epoch."""
    with _performing(Record, lambda _, perform, command: perform(Record(_unclaimed(command.commits)))):
        yield


def _unclaimed(commits: CommitList[Any]) -> CommitList[Any]:
    return commits if commits.epoch is None else replace(commits, claim=None)


ALL: tuple[Injected, ...] = (
    committed_before_the_list_is_durable,
    completed_before_the_commits,
    recovery_skipped,
    aborted_after_the_list_was_durable,
    expired_after_the_list_was_durable_ignored,
    copy_not_recorded,
    clean_up_skipped,
    nothing_cleaned_up_where_nothing_is_committed,
    clean_up_of_what_is_to_be_committed,
    losers_of_a_recorded_epoch_kept,
    stale_epoch_skipped,
    stale_epoch_written,
    recorded_epoch_written_again,
    driver_ids_are_ignored,
    a_claim_is_recorded_last,
    a_list_says_no_more_whose_the_job_is,
)
"""Those that the simulation must catch: all of them."""
