"""Planted bugs in commit and recovery: each breaks one rule of `headrace.connectors.base.commit`, and must be caught.

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
    CommitCore,
    CommitPhase,
    Copied,
    Ended,
    JobCommitter,
    Record,
    Sweep,
    Swept,
)
from headrace.connectors.base.sink import CommitList, Outcome

Planted = Callable[[], AbstractContextManager[None]]


@contextmanager
def _performing(command_type: type, planted: Callable[[Any, Callable[[Any], Any], Any], Any]) -> Iterator[None]:
    """The commands of this type are performed by `planted(committer, perform, command)`."""
    perform = JobCommitter._perform

    def performed(self: Any, command: Any) -> Any:
        if isinstance(command, command_type):
            return planted(self._committer, lambda other: perform(self, other), command)
        return perform(self, command)

    with patch.object(JobCommitter, "_perform", performed):
        yield


@contextmanager
def _transition(phase: CommitPhase, event: type, handler: str, planted: Callable[..., list[Any]]) -> Iterator[None]:
    """In this phase the event is handled so; and may lead anywhere, for the checker to see what comes of it."""
    handle = getattr(CommitCore, handler)

    def handled(core: Any, *arguments: Any) -> list[Any]:
        return planted(core, *arguments) if core.phase is phase else handle(core, *arguments)

    leading_anywhere = {(phase, event): tuple(CommitPhase)}
    with patch.object(CommitCore, handler, handled), patch.dict(COMMIT_TRANSITIONS, leading_anywhere):  # type: ignore[arg-type]
        yield


@contextmanager
def committed_before_the_list_is_durable() -> Iterator[None]:
    """The transactions are committed first, and the list of them is written when that is done."""

    def planted(committer: Any, perform: Callable[[Any], Any], command: Any) -> Any:
        for handle in command.commits.handles:
            committer.end(handle)
        return perform(command)

    with _performing(Record, planted):
        yield


@contextmanager
def completed_before_the_commits() -> Iterator[None]:
    """The list says that the epoch is completed before its transactions are committed."""

    def planted(_: Any, perform: Callable[[Any], Any], command: Any) -> Any:
        return perform(Record(replace(command.commits, handles=(), completed=True)))

    with _performing(Record, planted):
        yield


@contextmanager
def recovery_skipped() -> Iterator[None]:
    """A restarted driver takes what the durable list names for done."""

    def planted(core: Any) -> list[Any]:
        core.commits = core.commits and replace(core.commits, handles=(), completed=True)
        return core._sweep()  # type: ignore[no-any-return]

    with patch.object(CommitCore, "_recover", planted):
        yield


@contextmanager
def aborted_after_the_list_was_durable() -> Iterator[None]:
    """A restarted driver aborts an unfinished epoch, though its list is durable, and lets it be written again."""

    def planted(core: Any) -> list[Any]:
        if core.commits is not None and not core.commits.completed:
            core.commits = CommitList(None, (), completed=True, claim=core.commits.claim)
        return core._sweep()  # type: ignore[no-any-return]

    with patch.object(CommitCore, "_recover", planted):
        yield


@contextmanager
def expired_after_the_list_was_durable_ignored() -> Iterator[None]:
    """A listed transaction that was aborted by its timeout counts as committed: no copy."""
    ended = CommitCore._ended

    def planted(core: Any, event: Any) -> list[Any]:
        return ended(core, Ended(event.handle, Outcome.COMMITTED))

    with _transition(CommitPhase.ENDING, Ended, "_ended", planted):
        yield


@contextmanager
def copy_not_recorded() -> Iterator[None]:
    """The copy is committed without taking the place of the others on the list."""

    def planted(core: Any, event: Any) -> list[Any]:
        core.commits = replace(core.commits, handles=event.handles)
        return core._end_all()  # type: ignore[no-any-return]

    with _transition(CommitPhase.COPYING, Copied, "_copied", planted):
        yield


@contextmanager
def sweep_skipped() -> Iterator[None]:
    """Nobody aborts the losers."""
    with _performing(Sweep, lambda *_: Swept()):
        yield


@contextmanager
def nothing_swept_where_nothing_is_committed() -> Iterator[None]:
    """A driver that has recovered takes up a replay, or an epoch without rows, and leaves open what its tasks prepared."""

    def planted(core: Any, _: Any) -> list[Any]:
        return core._take_up()  # type: ignore[no-any-return]

    with _transition(CommitPhase.READY, module.CommitRequested, "_commit", planted):
        yield


@contextmanager
def sweep_of_what_is_to_be_committed() -> Iterator[None]:
    """The recovery before a commit aborts what the tasks have just prepared."""
    with _performing(Sweep, lambda _, perform, __: perform(Sweep(()))):
        yield


@contextmanager
def losers_of_a_recorded_epoch_kept() -> Iterator[None]:
    """The recovery before a commit keeps what a replay has prepared, though its epoch is made up of others."""

    def planted(core: Any) -> list[Any]:
        core.phase = CommitPhase.SWEEPING
        return [Sweep(core._asked.handles if core._asked is not None else ())]

    with patch.object(CommitCore, "_sweep", planted):
        yield


@contextmanager
def stale_epoch_skipped() -> Iterator[None]:
    """An epoch below the recorded one is taken for done."""
    take_up = CommitCore._take_up

    def planted(core: Any) -> list[Any]:
        if core._asked is not None and core._asked.epoch < core._recorded_epoch:
            core._asked = None
        return take_up(core)

    with patch.object(CommitCore, "_take_up", planted):
        yield


@contextmanager
def stale_epoch_written() -> Iterator[None]:
    """An epoch below the recorded one is written once more."""
    with patch.object(module, "refuse_stale", lambda *_: None):
        yield


@contextmanager
def recorded_epoch_written_again() -> Iterator[None]:
    """A replay of the recorded epoch is committed too."""
    take_up = CommitCore._take_up

    def planted(core: Any) -> list[Any]:
        asked = core._asked
        if asked is not None and asked.handles and core.commits is not None and asked.epoch == core.commits.epoch:
            core._asked, core.commits = asked, replace(core.commits, epoch=asked.epoch - 1)
        return take_up(core)

    with patch.object(CommitCore, "_take_up", planted), patch.object(module, "refuse_stale", lambda *_: None):
        yield


@contextmanager
def incarnations_are_ignored() -> Iterator[None]:
    """Who has fenced goes on, whosever the job is: so two drivers that live fence each other by turns."""
    with patch.object(module, "refuse_another", lambda *_: None):
        yield


@contextmanager
def a_claim_is_recorded_last() -> Iterator[None]:
    """A driver that begins first ends what the one before has left, and then says whose the job is: not at all, if it dies."""

    def planted(core: Any, event: Any) -> list[Any]:
        core.commits = event.commits
        return core._recover()  # type: ignore[no-any-return]

    with _transition(CommitPhase.FENCING, module.Fenced, "_fenced", planted):
        yield


@contextmanager
def a_list_says_no_more_whose_the_job_is() -> Iterator[None]:
    """The claim is lost with the next epoch."""
    with _performing(Record, lambda _, perform, command: perform(Record(_unclaimed(command.commits)))):
        yield


def _unclaimed(commits: CommitList[Any]) -> CommitList[Any]:
    return commits if commits.epoch is None else replace(commits, claim=None)


ALL: tuple[Planted, ...] = (
    committed_before_the_list_is_durable,
    completed_before_the_commits,
    recovery_skipped,
    aborted_after_the_list_was_durable,
    expired_after_the_list_was_durable_ignored,
    copy_not_recorded,
    sweep_skipped,
    nothing_swept_where_nothing_is_committed,
    sweep_of_what_is_to_be_committed,
    losers_of_a_recorded_epoch_kept,
    stale_epoch_skipped,
    stale_epoch_written,
    recorded_epoch_written_again,
    incarnations_are_ignored,
    a_claim_is_recorded_last,
    a_list_says_no_more_whose_the_job_is,
)
"""Those that the simulation must catch: all of them."""
