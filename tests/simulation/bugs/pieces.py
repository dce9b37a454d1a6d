"""Injected bugs of discovery by a cursor, which the simulation of pieces must catch."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.enumerator import Ledger, SplitEnumerator
from headrace.enumerator import coordinator as coordinator_module
from headrace.enumerator import events as e
from headrace.enumerator.coordinator import Coordinator
from headrace.enumerator.enumerator import DISCOVERY_TRANSITIONS, Discovery, Trigger
from tests.simulation.bugs.injecting import bugs_of, instead_of


@instead_of(Coordinator, "_snapshotted")
def forgotten_piece_of_a_late_report_is_new(snapshotted: Any, self: Any, event: Any) -> Any:
    """A reader that missed the completion reports a piece that was forgotten, and it is read again."""
    late = [state.split for split_id, state in event.states.items() if split_id not in self.enumerator.ledger]
    self.enumerator.ledger.add([replace(split, next_offset=0) for split in late])
    return snapshotted(self, replace(event, states={k: s for k, s in event.states.items() if s.split not in late}))


@instead_of(coordinator_module, "Checkpoint")
def cursor_stored_ahead(checkpoint_type: Any, number: int, splits: Any, exhausted: bool, cursor: Any, *_: Any) -> Any:
    """The cursor is where the look under way will be, whose pieces are not there yet."""
    return checkpoint_type(number, splits, exhausted, {"found": cursor["found"] + 1})


@instead_of(coordinator_module, "Checkpoint")
def cursor_stored_behind(checkpoint_type: Any, number: int, splits: Any, exhausted: bool, cursor: Any, *_: Any) -> Any:
    """The cursor is of an earlier answer than the pieces: they are found twice."""
    return checkpoint_type(number, splits, exhausted, {"found": max(0, cursor["found"] - 1)})


def _initial_look() -> Any:
    return patch.dict(DISCOVERY_TRANSITIONS, {(Discovery.AT_CURSOR, Trigger.START): Discovery.INITIALISING})


@instead_of(SplitEnumerator, "start", _initial_look)
def initial_look_after_a_restore(start: Any, self: Any) -> Any:
    """A restored enumerator finds all pieces again, those that were forgotten as new ones."""
    return start(self)


@instead_of(SplitEnumerator, "discovered")
def look_skipped_while_there_is_more(discovered: Any, self: Any, findings: Any) -> Any:
    """The next look waits for the interval, whatever is left to find."""
    return discovered(self, replace(findings, more=False))


@instead_of(SplitEnumerator, "continued")
def looks_however_much_is_unread(_: Any, self: Any) -> Any:
    """The ledger and its checkpoints grow with the backlog."""
    if not self.is_behind:
        return []
    self._move(Trigger.CAPACITY)
    return self._discover()


@instead_of(Coordinator, "_report_finished")
def forgotten_before_it_is_reported(report_finished: Any, self: Any) -> Any:
    """A job that dies before the source is notified never notifies it."""
    commands = report_finished(self)
    for command in commands:
        self.enumerator.ledger.forget([split.split_id for split in command.splits])
    return commands


@instead_of(Ledger, "forget")
def finished_pieces_are_kept(_: Any, self: Any, split_ids: Any) -> None:
    """Every piece that was ever read is in every checkpoint."""
    self.mark_reported(split_ids)


@instead_of(Coordinator, "_completed")
def reported_before_it_is_durable(completed: Any, self: Any, event: Any) -> Any:
    """Every piece is reported with each checkpoint, whether it is read to its end there or not."""
    finished = [entry.durable for entry in self.enumerator.ledger if entry.durable.stop_offset is not None]
    return [*completed(self, event), e.ReportFinished(tuple(finished))]


INJECTED = bugs_of(globals())
