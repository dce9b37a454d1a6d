"""Injected bugs in the coordinator of `headrace run` and in its commits, for the search to find."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.enumerator.progress import ReaderProgress
from headrace.runners.local.checkpoints import RunCheckpoint
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.commit.per_worker import PerWorkerCommit
from headrace.runners.local.commit.takeover import RunTakeover
from headrace.runners.local.core import RunCore
from headrace.testing.memory_sink import MemorySink
from tests.simulation.bugs.injecting import bug, bugs_of, instead_of
from tests.simulation.run import DiskStore


@instead_of(DiskStore, "keep_claim")
def a_coordinator_that_was_replaced_writes_on(*_: Any) -> None:
    """Into the same store, as there is no lock between machines."""


@instead_of(RunCore, "_failed")
def handles_of_a_failed_checkpoint_are_forgotten(failed: Any, self: Any, checkpoint_id: int, reason: str) -> Any:
    self._prepared = []
    return failed(self, checkpoint_id, reason)


@instead_of(RunCore, "_died")
def handles_of_a_dead_worker_are_kept(died: Any, self: Any, place: int, event: Any) -> Any:
    prepared = self._prepared
    commands = died(self, place, event)
    self._prepared = prepared
    return commands


@instead_of(RunCommitter, "retire")
def dead_workers_are_not_cleaned_up(*_: Any) -> None:
    pass


@instead_of(RunCommitter, "retire")
def dead_workers_are_cleaned_up_by_the_next_checkpoint_alone(_: Any, self: Any, number: int) -> None:
    """Their locks are in its way."""
    self._due_s[number] = None


@instead_of(RunCommitter, "clean_up")
def living_workers_are_cleaned_up(clean_up: Any, self: Any, keep: Any) -> None:
    self._due_s |= {number: None for number in self._state.store.registry.not_cleaned_up if number not in self._due_s}
    clean_up(self, keep)


@instead_of(DiskStore, "write")
def the_list_is_not_stored(write: Any, self: Any, checkpoint: Any) -> None:
    """Handles are committed that no checkpoint has."""
    write(self, RunCheckpoint(checkpoint.positions, (), completed=True))


@instead_of(RunTakeover, "_refuse_stale")
def an_older_folder_is_taken(*_: Any) -> None:
    pass


@instead_of(MemorySink, "recorded")
def an_older_folder_takes_over_before_it_is_refused(*_: Any) -> Any:
    return {}


@instead_of(RunCommitter, "record")
def the_sink_is_not_asked_before_a_commit(record: Any, self: Any, commits: Any) -> None:
    with patch.object(self._state.outputs[0].driver, "record", lambda commits: None):
        record(self, commits)


@instead_of(ReaderProgress, "moved")
def what_has_moved_is_reported_once(moved: Any, self: Any) -> Any:
    """Whatever becomes of the checkpoint."""
    found = moved(self)
    self._moved.clear()
    return found


@instead_of(RunCore, "_is_unchanged")
def a_checkpoint_with_handles_is_left_out(_: Any, self: Any, checkpoint: Any) -> bool:
    return self._stored_last is not None and not self._stopping


IN_RUNS = bugs_of(globals())
"""Each breaks a promise in some history."""


@instead_of(RunCommitter, "_with_copies")
def copies_are_recorded_under_the_epoch_of_what_was_aborted(_: Any, self: Any, stored: Any, copies: Any) -> Any:
    """Which another copy of the folder has, too."""
    return replace(stored, handles=tuple(copies))


@instead_of(PerWorkerCommit, "is_last")
def a_look_at_what_copies_have_replaced_is_news(is_last: Any, self: Any, seen: int, settings: Any) -> Any:
    return is_last(self, seen, replace(settings, replaced=()))


@instead_of(RunCommitter, "fence")
def the_second_output_is_forgotten_after_a_crash(fence: Any, self: Any) -> Any:
    """Of a coordinator that died between the commits of two sinks. The next one ends what is of the first alone."""
    commits = fence(self)
    if commits is None:
        return None
    sinks, first = self._state.sinks, self._state.outputs[0].name
    return replace(commits, handles=tuple(one for one in commits.handles if sinks.output_of(one.handle) == first))


@instead_of(RunCommitter, "copy_all")
def aborted_rows_of_the_second_output_are_not_copied(copy_all: Any, self: Any, handles: Any) -> Any:
    return copy_all(self, handles)[:1]


@bug
def the_first_sink_is_not_told_of_what_is_for_the_others() -> Iterator[None]:
    """So no process decides between two copies of a folder, and both are refused in the end."""
    recorded_last = RunCommitter._recorded_last.fget  # type: ignore[attr-defined]

    def without(self: Any) -> Any:
        return [output for output in recorded_last(self) if self._state.own(output, self._state.listed)]

    with patch.object(RunCommitter, "_recorded_last", property(without)):
        yield


@instead_of(RunCommitter, "clean_up")
def dead_workers_are_cleaned_up_at_the_first_sink_alone(clean_up: Any, self: Any, keep: Any) -> None:
    with patch.object(self._state, "outputs", self._state.outputs[:1]):
        clean_up(self, keep)


IN_OUTPUTS = tuple(one for one in bugs_of(globals()) if one not in IN_RUNS)
"""Each breaks a promise in some schedule with two outputs."""
