"""Injected bugs in commit and recovery: each breaks one rule of `headrace.connectors.base.commit`, and must be caught."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.connectors.base import commit as module
from headrace.connectors.base.commit import CleanedUp, CleanUp, CommitCore, CommitPhase, Ended, JobCommitter, Record
from headrace.connectors.base.sink import CommitList, Outcome
from tests.simulation.bugs.injecting import Injected, bugs_of, instead_of


def _performing(command_type: type) -> Callable[[Callable[..., Any]], Injected]:
    """The commands of this type are performed by the function: of the committer, what performs any command, and the command."""

    def decorated(function: Callable[..., Any]) -> Injected:
        @functools.wraps(function)
        def performed(perform: Any, self: Any, command: Any) -> Any:
            if isinstance(command, command_type):
                return function(self._committer, lambda other: perform(self, other), command)
            return perform(self, command)

        return instead_of(JobCommitter, "_perform")(performed)

    return decorated


def _in_phase(phase: CommitPhase, event: type, handler: str) -> Callable[[Callable[..., Any]], Injected]:
    """In this phase the event is handled so; and may lead anywhere, for the checker to see what comes of it."""
    leading_anywhere = {(phase, event): tuple(CommitPhase)}

    def decorated(function: Callable[..., Any]) -> Injected:
        @functools.wraps(function)
        def handled(handle: Any, core: Any, *arguments: Any) -> Any:
            return function(handle, core, *arguments) if core.phase is phase else handle(core, *arguments)

        anywhere = functools.partial(patch.dict, module.COMMIT_TRANSITIONS, leading_anywhere)
        return instead_of(CommitCore, handler, anywhere)(handled)

    return decorated


@_performing(Record)
def committed_before_the_list_is_durable(committer: Any, perform: Any, command: Any) -> Any:
    """The transactions are committed first, and the list of them is written when that is done."""
    for handle in command.commits.handles:
        committer.end(handle)
    return perform(command)


@_performing(Record)
def completed_before_the_commits(_: Any, perform: Any, command: Any) -> Any:
    """The list states that the epoch is completed before its transactions are committed."""
    return perform(Record(replace(command.commits, handles=(), completed=True)))


@instead_of(CommitCore, "_recover")
def recovery_skipped(_: Any, core: Any) -> Any:
    """A restarted driver takes what the durable list names for done."""
    core.commits = core.commits and replace(core.commits, handles=(), completed=True)
    return core._clean_up()


@instead_of(CommitCore, "_recover")
def aborted_after_the_list_was_durable(_: Any, core: Any) -> Any:
    """A restarted driver aborts an unfinished epoch, though its list is durable, and lets it be written again."""
    if core.commits is not None and not core.commits.completed:
        core.commits = CommitList(None, (), completed=True, claim=core.commits.claim)
    return core._clean_up()


@_in_phase(CommitPhase.ENDING, Ended, "_ended")
def expired_after_the_list_was_durable_ignored(ended: Any, core: Any, event: Any) -> Any:
    """A listed transaction that was aborted by its timeout counts as committed: no copy."""
    return ended(core, Ended(event.handle, Outcome.COMMITTED))


@_in_phase(CommitPhase.COPYING, module.Copied, "_copied")
def copy_not_recorded(_: Any, core: Any, event: Any) -> Any:
    """The copy is committed without taking the place of the others on the list."""
    core.commits = replace(core.commits, handles=event.handles)
    return core._end_all()


@_performing(CleanUp)
def clean_up_skipped(*_: Any) -> Any:
    """No process aborts the losers."""
    return CleanedUp()


@_in_phase(CommitPhase.READY, module.CommitRequested, "_commit")
def nothing_cleaned_up_where_nothing_is_committed(_: Any, core: Any, event: Any) -> Any:
    """A driver that has recovered takes up a replay, or an epoch without rows, and leaves open what its tasks prepared."""
    return core._take_up()


@_performing(CleanUp)
def clean_up_of_what_is_to_be_committed(_: Any, perform: Any, command: Any) -> Any:
    """The recovery before a commit aborts what the tasks have just prepared."""
    return perform(CleanUp(()))


@instead_of(CommitCore, "_clean_up")
def losers_of_a_recorded_epoch_kept(_: Any, core: Any) -> Any:
    """The recovery before a commit keeps what a replay has prepared, though its epoch is made up of others."""
    core.phase = CommitPhase.CLEANING_UP
    return [CleanUp(core._asked.handles if core._asked is not None else ())]


@instead_of(CommitCore, "_take_up")
def stale_epoch_skipped(take_up: Any, core: Any) -> Any:
    """An epoch below the recorded one is taken for done."""
    if core._asked is not None and core._asked.epoch < core._recorded_epoch:
        core._asked = None
    return take_up(core)


@instead_of(module, "refuse_stale")
def stale_epoch_written(*_: Any) -> None:
    """An epoch below the recorded one is written again."""


@instead_of(CommitCore, "_take_up", stale_epoch_written)
def recorded_epoch_written_again(take_up: Any, core: Any) -> Any:
    """A replay of the recorded epoch is committed too."""
    asked = core._asked
    if asked is not None and asked.handles and core.commits is not None and asked.epoch == core.commits.epoch:
        core._asked, core.commits = asked, replace(core.commits, epoch=asked.epoch - 1)
    return take_up(core)


@instead_of(module, "refuse_another")
def driver_ids_are_ignored(*_: Any) -> None:
    """Who has fenced continues, whosever the job is: so two drivers that live fence each other alternately."""


@_in_phase(CommitPhase.FENCING, module.Fenced, "_fenced")
def a_claim_is_recorded_last(_: Any, core: Any, event: Any) -> Any:
    """A driver that starts first ends what the previous one has left, then says who owns the job: not at all, if it dies."""
    core.commits = event.commits
    return core._recover()


@_performing(Record)
def a_list_says_no_more_whose_the_job_is(_: Any, perform: Any, command: Any) -> Any:
    """The claim is lost with the next epoch."""
    commits = command.commits
    return perform(Record(commits if commits.epoch is None else replace(commits, claim=None)))


ALL = bugs_of(globals())
"""Those that the simulation must catch: all of them."""
