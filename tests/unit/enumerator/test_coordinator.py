from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from headrace.enumerator import DiscoveryResult, LazyEnumerator
from headrace.enumerator import events as e
from headrace.enumerator.coordinator import CHECKPOINT_TRANSITIONS, CheckpointPhase
from headrace.enumerator.errors import ProtocolViolationError
from headrace.enumerator.ledger import UNASSIGNED, Assigned
from tests.helpers.driving import Driver, assigned, assigned_splits, checkpoint_of, finished, only, reading, split

EVENTS = {
    e.Started: e.Started(), e.SplitsDiscovered: e.SplitsDiscovered(DiscoveryResult([])),
    e.DiscoveryFailed: e.DiscoveryFailed(TimeoutError()), e.DiscoveryDue: e.DiscoveryDue(),
    e.SplitsGone: e.SplitsGone(frozenset()), e.FinishedReported: e.FinishedReported(frozenset(), is_done=True),
    e.ReaderRegistered: e.ReaderRegistered(0), e.ReaderLost: e.ReaderLost(0),
    e.SplitRequested: e.SplitRequested(0), e.SplitFinished: e.SplitFinished(0, "a"),
    e.CheckpointTriggered: e.CheckpointTriggered(1), e.ReaderSnapshotted: e.ReaderSnapshotted(0, 1, {}),
    e.CheckpointCompleted: e.CheckpointCompleted(1), e.CheckpointAborted: e.CheckpointAborted(1),
}  # fmt: skip


def reading_job(**options) -> Driver:
    """Two readers; reader 0 reads a and c, reader 1 reads b."""
    driver = Driver(**options)
    driver.discovered(split("a", 0, 9), split("b", 0, 9), split("c", 0, 9), complete=True)
    driver.register(0, 1)
    return driver


def collecting_job(checkpoint_id: int = 1) -> Driver:
    """The same, with a checkpoint triggered for which no reader has answered."""
    driver = reading_job()
    driver.send(e.CheckpointTriggered(checkpoint_id))
    return driver


def checkpointed_job(b=reading("b", 2, 9)) -> Driver:  # noqa: B008 - it is frozen
    """The same, with a checkpoint that is being persisted: a is at 4, c at 1."""
    driver = reading_job()
    driver.checkpoint(1, r0=[reading("a", 4, 9), reading("c", 1, 9)], r1=[b])
    return driver


# --- the table --------------------------------------------------------------------------------------------------------
def test_there_is_an_example_of_every_event():
    assert set(EVENTS) == {getattr(kind, "__origin__", kind) for kind in get_args(e.Event)}


@pytest.mark.parametrize(
    ("phase", "event"), [key for key in product(CheckpointPhase, EVENTS) if key not in CHECKPOINT_TRANSITIONS]
)
def test_what_is_not_in_the_table_is_refused(phase, event):
    driver = reading_job()
    driver.coordinator.phase = phase
    with pytest.raises(ProtocolViolationError, match=phase.name):
        driver.send(EVENTS[event])
    assert driver.coordinator.phase is phase


def test_what_the_table_refuses():
    """Written out, so that no process widens the table without saying so."""
    created = {(CheckpointPhase.CREATED, event) for event in EVENTS if event is not e.Started}
    started = {(phase, e.Started) for phase in CheckpointPhase if phase is not CheckpointPhase.CREATED}
    completed = {(phase, e.CheckpointCompleted) for phase in (CheckpointPhase.RUNNING, CheckpointPhase.COLLECTING)}
    refused = {key for key in product(CheckpointPhase, EVENTS) if key not in CHECKPOINT_TRANSITIONS}
    assert refused == created | started | (completed - created)


@pytest.mark.parametrize("reader", [2, -1])
def test_a_reader_outside_the_slots_is_refused(reader):
    with pytest.raises(ProtocolViolationError, match=rf"^reader {reader} is not a slot of 0\.\.1$"):
        Driver(parallelism=2).register(reader)


def test_what_is_refused_is_said_with_who_refuses_it_and_where_it_is():
    with pytest.raises(ProtocolViolationError, match=r"^the coordinator is RUNNING: Started\(\) is not possible now$"):
        Driver().send(e.Started())


def test_why_a_checkpoint_is_declined_is_said():
    driver = Driver()
    assert driver.send(e.CheckpointTriggered(1)) == [e.DeclineCheckpoint(1, "the initial discovery has not answered yet")]
    driver.discovered(split("a"))
    driver.register(0)
    driver.send(e.CheckpointTriggered(2))
    assert driver.send(e.CheckpointTriggered(3)) == [e.DeclineCheckpoint(3, "checkpoint 2 is still under way")]


HELD = [reading("a", 4, 9), reading("c", 4, 9)]


@pytest.mark.parametrize(("states", "said"), [
    ([], r"^reader 0 does not report its splits \['a', 'c'\]$"),
    ([*HELD, reading("b", 2, 9), reading("z", 2, 9)], r"^reader 0 reports splits it does not hold: \['b', 'z'\]$"),
    ([HELD[0], finished("c", 9)], r"^reader 0 and its SplitFinished events disagree on c$"),
], ids=["none", "others and unknown", "one that is not finished"])  # fmt: skip
def test_a_snapshot_of_other_splits_than_the_reader_holds_is_refused_with_reader_and_splits(states, said):
    with pytest.raises(ProtocolViolationError, match=said):
        collecting_job().snapshot(0, 1, *states)


def test_a_reader_that_is_not_registered_is_named():
    with pytest.raises(ProtocolViolationError, match=r"^reader 1 is not registered$"):
        Driver().send(e.SplitRequested(1))


def test_the_checkpoint_that_is_under_way_is_said_when_another_ends():
    driver = Driver()
    driver.discovered(split("a"))
    driver.checkpoint(1)
    with pytest.raises(ProtocolViolationError, match=r"^checkpoint 2 is not the one under way \(_Pending\(checkpoint_id=1"):
        driver.send(e.CheckpointCompleted(2))


@pytest.mark.parametrize("late", [(0, 1), (1, 2)], ids=["of another checkpoint", "again"])
def test_an_answer_that_is_not_awaited_changes_nothing(late):
    driver = reading_job()
    driver.send(e.CheckpointTriggered(1), e.CheckpointAborted(1), e.CheckpointTriggered(2))
    driver.snapshot(1, 2, reading("b", 2, 9))
    assert driver.snapshot(*late, reading("b", 3, 9)) == []
    assert driver.coordinator.waiting_for == (0,)


def test_a_reader_that_comes_again_is_reported_again_that_there_is_no_more():
    driver = Driver()
    driver.discovered(split("a", 0, 9), complete=True)
    assert only(driver.register(0, 1), e.NoMoreSplits) == [e.NoMoreSplits(0), e.NoMoreSplits(1)]
    driver.send(e.ReaderLost(1))
    assert driver.register(1) == [e.NoMoreSplits(1)]


def test_the_enumerator_hears_which_reader_has_registered(monkeypatch):
    heard = []
    monkeypatch.setattr(LazyEnumerator, "reader_registered", lambda _, reader: heard.append(reader))
    Driver(assignment=LazyEnumerator).register(1, 0)
    assert heard == [1, 0]


@pytest.mark.parametrize("event", [e.SplitRequested(1), e.SplitFinished(1, "b")])
def test_a_reader_that_is_not_registered_cannot_speak(event):
    driver = reading_job()
    driver.send(e.ReaderLost(1))
    with pytest.raises(ProtocolViolationError, match="not registered"):
        driver.send(event)


def test_losing_a_reader_that_is_not_there_changes_nothing():
    assert Driver().send(e.ReaderLost(1)) == []


# --- checkpoints ------------------------------------------------------------------------------------------------------
def test_a_checkpoint_holds_what_the_readers_delivered():
    checkpoint = reading_job().checkpoint(1, r0=[reading("a", 4, 9), reading("c", 1, 9)], r1=[reading("b", 2, 9)])
    assert checkpoint.splits == (reading("a", 4, 9), reading("b", 2, 9), reading("c", 1, 9))
    assert checkpoint.exhausted


def test_a_checkpoint_without_readers_is_there_at_once():
    driver = Driver()
    driver.discovered(split("a", 3))
    assert driver.checkpoint(1).splits == (reading("a", 3),)


def test_a_checkpoint_before_the_initial_discovery_has_answered_is_declined():
    driver = Driver()
    (declined,) = driver.send(e.CheckpointTriggered(1))
    assert isinstance(declined, e.DeclineCheckpoint)
    assert driver.coordinator.phase is CheckpointPhase.RUNNING
    driver.discovered(split("a"))
    assert driver.checkpoint(2).splits == (reading("a", 0),)


def test_a_checkpoint_while_a_restored_enumerator_looks_holds_what_was_restored():
    checkpoint = Driver(checkpoint_of(reading("a", 3), finished("b", 2))).checkpoint(8)
    assert checkpoint.splits == (reading("a", 3), finished("b", 2))
    assert not checkpoint.exhausted


def test_a_second_checkpoint_is_declined_while_one_is_under_way():
    driver = collecting_job()
    (declined,) = driver.send(e.CheckpointTriggered(2))
    assert "checkpoint 1" in declined.reason
    driver.snapshot(0, 1, reading("a", 0, 9), reading("c", 0, 9))
    assert only(driver.snapshot(1, 1, reading("b", 0, 9)), e.PersistCheckpoint)
    (declined,) = driver.send(e.CheckpointTriggered(3))
    assert declined.checkpoint_id == 3


def test_positions_are_published_once_durable():
    driver = checkpointed_job()
    assert only(driver.commands, e.PublishPositions) == []
    (publish,) = only(driver.send(e.CheckpointCompleted(1)), e.PublishPositions)
    assert publish.splits == (split("a", 4, 9), split("b", 2, 9), split("c", 1, 9))


def test_a_split_assigned_after_the_trigger_is_in_the_checkpoint_where_it_starts():
    """FLINK-20290"""
    driver = Driver(discovery_interval_s=1.0)
    driver.discovered(split("a"))
    driver.register(0, 1)
    driver.send(e.DiscoveryDue(), e.CheckpointTriggered(1))
    assert assigned(driver.discovered(split("b"))) == {1: [split("b")]}
    driver.snapshot(0, 1, reading("a", 5))
    (persist,) = only(driver.snapshot(1, 1), e.PersistCheckpoint)
    assert persist.checkpoint.splits == (reading("a", 5), reading("b", 0))


def test_snapshots_are_asked_for_before_anything_is_assigned():
    driver = Driver(assignment=LazyEnumerator)
    driver.discovered(split("a"))
    driver.register(0)
    commands = driver.send(e.CheckpointTriggered(1), e.SplitRequested(0))
    assert [type(command) for command in commands] == [e.SnapshotReader, e.Assign]


def test_a_snapshot_without_a_split_that_the_reader_holds_is_refused_and_changes_nothing():
    driver = collecting_job()
    with pytest.raises(ProtocolViolationError, match=r"does not report its splits \['c'\]"):
        driver.snapshot(0, 1, reading("a", 4, 9))
    driver.snapshot(0, 1, reading("a", 4, 9), reading("c", 4, 9))
    assert only(driver.snapshot(1, 1, reading("b", 2, 9)), e.PersistCheckpoint)


def test_a_snapshot_may_leave_out_as_many_splits_as_it_reports_to_be_where_they_were():
    driver = collecting_job()
    driver.snapshot(1, 1, reading("b", 2, 9))
    with pytest.raises(ProtocolViolationError, match=r"does not report its splits \['a', 'c'\]"):
        driver.send(e.ReaderSnapshotted(0, 1, {}, unmoved=1))
    (persist,) = only(driver.send(e.ReaderSnapshotted(0, 1, {"c": reading("c", 4, 9)}, unmoved=1)), e.PersistCheckpoint)
    at = {state.split.split_id: state.split.next_offset for state in persist.checkpoint.splits}
    assert at == {"a": 0, "b": 2, "c": 4}


@pytest.mark.parametrize(("states", "said"), [
    ([reading("b", 2, 9), reading("a", 4, 9)], "does not hold"),
    ([reading("b", 2, 9), finished("unknown", 4)], "does not hold"),
    ([finished("b", 9)], "disagree"),
], ids=["another reader's", "an unknown one", "one that is not finished"])  # fmt: skip
def test_a_reader_that_holds_one_split_reports_no_other(states, said):
    with pytest.raises(ProtocolViolationError, match=said):
        collecting_job().snapshot(1, 1, *states)


def test_the_answer_to_a_checkpoint_that_was_given_up_is_ignored():
    driver = reading_job()
    driver.send(e.CheckpointTriggered(1), e.CheckpointAborted(1))
    for following in ([], [e.CheckpointTriggered(2)]):
        driver.send(*following)
        assert driver.snapshot(1, 1, reading("b", 2, 9)) == []
    assert driver.coordinator.phase is CheckpointPhase.COLLECTING


def test_late_news_of_an_old_checkpoints_end_does_not_end_the_next_one():
    driver = collecting_job()
    driver.send(e.ReaderLost(1), e.CheckpointAborted(1), e.CheckpointTriggered(2), e.CheckpointAborted(1))
    assert driver.coordinator.phase is CheckpointPhase.COLLECTING


@pytest.mark.parametrize("late", [e.CheckpointAborted(1), e.ReaderSnapshotted(0, 1, {})], ids=lambda late: type(late).__name__)
def test_late_news_of_an_old_checkpoint_changes_nothing_while_the_next_is_persisted(late):
    driver = reading_job()
    driver.send(e.CheckpointTriggered(1), e.CheckpointAborted(1))
    driver.checkpoint(2, r0=[reading("a", 1, 9), reading("c", 0, 9)], r1=[reading("b", 0, 9)])
    assert driver.send(late) == []
    assert driver.coordinator.phase is CheckpointPhase.PERSISTING
    (published,) = only(driver.send(e.CheckpointCompleted(2)), e.PublishPositions)
    assert split("a", 1, 9) in published.splits


@pytest.mark.parametrize("event", [e.CheckpointCompleted(2), e.CheckpointAborted(2)])
def test_the_end_of_a_checkpoint_that_never_started_is_refused(event):
    driver = Driver()
    driver.discovered(split("a"))
    driver.checkpoint(1)
    with pytest.raises(ProtocolViolationError, match="not the one under way"):
        driver.send(event)


# --- lost readers -----------------------------------------------------------------------------------------------------
def test_a_reader_lost_while_snapshots_are_collected_costs_the_checkpoint():
    driver = collecting_job()
    driver.snapshot(1, 1, reading("b", 2, 9))
    commands = driver.send(e.ReaderLost(1))
    assert only(commands, e.DeclineCheckpoint) == [e.DeclineCheckpoint(1, "reader 1 was lost")]
    assert assigned_splits(commands + driver.register(1)) == [split("b", 0, 9)]
    assert driver.coordinator.phase is CheckpointPhase.RUNNING


@pytest.mark.parametrize(("end", "position"), [(e.CheckpointCompleted(1), 2), (e.CheckpointAborted(1), 0)])
def test_a_reader_lost_while_persisting_continues_from_the_checkpoint_only_when_it_completes(end, position):
    driver = checkpointed_job()
    assert assigned(driver.send(e.ReaderLost(1)) + driver.register(1)) == {}
    assert assigned_splits(driver.send(end)) == [split("b", position, 9)]


def test_a_split_finished_in_the_checkpoint_is_not_read_again_when_its_reader_is_lost_while_persisting():
    driver = reading_job()
    driver.send(e.SplitFinished(1, "b"))
    driver.checkpoint(1, r0=[reading("a", 4, 9), reading("c", 1, 9)], r1=[finished("b", 9)])
    driver.send(e.ReaderLost(1))
    assert assigned(driver.send(e.CheckpointCompleted(1)) + driver.register(1)) == {}


def test_a_reader_that_registers_again_is_taken_to_have_been_lost():
    """FLINK-40710"""
    assert assigned_splits(reading_job().register(0)) == [split("a", 0, 9), split("c", 0, 9)]


def test_a_reader_that_registers_again_costs_the_checkpoint_it_was_asked_for():
    assert [each.reason for each in only(collecting_job().register(0), e.DeclineCheckpoint)] == ["reader 0 was lost"]


def test_a_split_finished_since_the_last_checkpoint_is_lost_with_its_reader():
    """FLINK-37416, FLINK-28639"""
    driver = reading_job()
    driver.send(e.SplitFinished(1, "b"))
    assert assigned_splits(driver.send(e.ReaderLost(1)) + driver.register(1)) == [split("b", 0, 9)]


def test_a_split_that_finishes_after_the_readers_snapshot_is_still_open_in_the_checkpoint():
    driver = collecting_job()
    driver.snapshot(1, 1, reading("b", 2, 9))
    driver.send(e.SplitFinished(1, "b"))
    (persist,) = only(driver.snapshot(0, 1, reading("a", 4, 9), reading("c", 1, 9)), e.PersistCheckpoint)
    assert reading("b", 2, 9) in persist.checkpoint.splits
    driver.send(e.CheckpointCompleted(1))
    assert assigned_splits(driver.send(e.ReaderLost(1)) + driver.register(1)) == [split("b", 2, 9)]


def test_a_reader_that_missed_the_completion_may_report_a_finished_split_again():
    driver = reading_job()
    driver.send(e.SplitFinished(1, "b"))
    others = [reading("a", 4, 9), reading("c", 1, 9)]
    driver.checkpoint(1, r0=others, r1=[finished("b", 9)])
    driver.send(e.CheckpointCompleted(1))
    assert finished("b", 9) in driver.checkpoint(2, r0=others, r1=[finished("b", 9)]).splits
    driver.send(e.CheckpointCompleted(2))


# --- the end of input -------------------------------------------------------------------------------------------------
def test_readers_hear_that_no_split_will_come_once_all_are_assigned():
    driver = Driver()
    driver.register(0, 1)
    commands = driver.discovered(split("a", 0, 9), complete=True)
    assert [type(command) for command in commands] == [e.Assign, e.NoMoreSplits, e.NoMoreSplits]


def test_no_such_thing_is_said_while_splits_may_be_added():
    driver = Driver(discovery_interval_s=1.0)
    driver.discovered()
    assert driver.register(0) == []


def test_no_such_thing_is_said_while_a_split_waits():
    driver = Driver(assignment=LazyEnumerator)
    driver.discovered(split("a", 0, 9), complete=True)
    assert driver.register(0) == []
    assert [type(command) for command in driver.send(e.SplitRequested(0))] == [e.Assign, e.NoMoreSplits]


def test_the_source_finishes_when_the_last_split_does_and_says_so_once():
    driver = reading_job()
    assert driver.send(e.SplitFinished(0, "a"), e.SplitFinished(1, "b")) == []
    assert driver.send(e.SplitFinished(0, "c")) == [e.SourceFinished()]
    assert only(driver.send(e.SplitRequested(0)), e.SourceFinished) == []


def test_a_reader_lost_after_the_end_takes_the_end_back():
    driver = reading_job()
    driver.send(e.SplitFinished(0, "a"), e.SplitFinished(1, "b"), e.SplitFinished(0, "c"))
    again = driver.send(e.ReaderLost(1)) + driver.register(1)
    assert only(again, e.SourceFinished) == []
    holder = next(reader for reader, splits in assigned(again).items() if splits)
    assert driver.send(e.SplitFinished(holder, "b")) == [e.SourceFinished()]


def test_a_reader_that_takes_the_place_of_a_lost_one_hears_that_no_split_will_come():
    driver = reading_job()
    assert driver.send(e.ReaderLost(1)) == []
    assert driver.register(1) == [e.Assign(1, (split("b", 0, 9),)), e.NoMoreSplits(1)]


def test_a_reader_that_asks_again_hears_again_that_no_split_will_come_and_no_other_does():
    assert reading_job().send(e.SplitRequested(0)) == [e.NoMoreSplits(0)]


def test_a_reader_that_gets_a_split_of_a_lost_one_hears_again_that_no_more_will_come():
    driver = Driver()
    driver.discovered(*(split(name, 0, 9) for name in "abcd"), complete=True)
    driver.register(0, 1)
    driver.send(e.SplitFinished(0, "a"))
    driver.checkpoint(1, r0=[finished("a", 9), reading("c", 0, 9)], r1=[reading("b", 0, 9), reading("d", 0, 9)])
    driver.send(e.CheckpointCompleted(1))
    assert driver.send(e.ReaderLost(1)) == [e.Assign(0, (split("d", 0, 9),))]
    assert driver.register(1) == [e.Assign(1, (split("b", 0, 9),)), e.NoMoreSplits(0), e.NoMoreSplits(1)]


def test_a_bounded_source_without_splits_finishes():
    assert Driver().discovered(complete=True) == [e.SourceFinished()]


def test_a_restored_source_that_had_finished_finishes_again():
    """FLINK-31006"""
    driver = Driver(checkpoint_of(finished("a", 9), exhausted=True))
    assert driver.commands == [e.ReportFinished((split("a", 9, 9),)), e.SourceFinished()]
    assert driver.register(0, 1) == [e.NoMoreSplits(0), e.NoMoreSplits(1)]


def test_a_restored_source_whose_discovery_was_done_says_that_no_split_will_come():
    """FLINK-31006"""
    driver = Driver(checkpoint_of(reading("a", 3, 9), finished("b", 9), exhausted=True), parallelism=1)
    assert driver.register(0) == [e.Assign(0, (split("a", 3, 9),)), e.NoMoreSplits(0)]
    assert driver.send(e.SplitFinished(0, "a")) == [e.SourceFinished()]


def test_a_restored_source_whose_discovery_was_not_done_ends_when_it_is():
    driver = Driver(checkpoint_of(finished("a", 9)), parallelism=1)
    assert (driver.register(0), driver.discovered(complete=True)) == ([], [e.NoMoreSplits(0), e.SourceFinished()])


def test_every_split_is_in_one_place_all_along():
    """I1"""
    driver = checkpointed_job()
    assert [entry.place for entry in driver.ledger] == [Assigned(0), Assigned(1), Assigned(0)]
    driver.send(e.ReaderLost(0))
    assert [entry.place for entry in driver.ledger] == [UNASSIGNED, Assigned(1), UNASSIGNED]


# --- splits that are read to their end ---------------------------------------------------------------------------------
def pieces_job() -> Driver:
    """A source of pieces p1 and p2, of which p1 is finished in a checkpoint that is being persisted."""
    driver = Driver(parallelism=1)
    found = DiscoveryResult([split("p1", 0, 1), split("p2", 0, 1)], cursor={"at": 2})
    driver.send(e.SplitsDiscovered(found), e.ReaderRegistered(0), e.SplitFinished(0, "p1"))
    driver.checkpoint(1, r0=[finished("p1", 1), reading("p2", 0, 1)])
    return driver


def test_a_finished_split_is_reported_once_that_is_durable_and_again_by_each_restored_job():
    driver = pieces_job()
    assert only(driver.commands, e.ReportFinished) == []
    report = e.ReportFinished((split("p1", 1, 1),))
    assert only(driver.send(e.CheckpointCompleted(1)), e.ReportFinished) == [report]
    stored = driver.checkpoint(2, r0=[reading("p2", 0, 1)])
    assert (stored.cursor, finished("p1", 1) in stored.splits) == ({"at": 2}, True), "the source may not know yet"
    assert only(driver.send(e.CheckpointCompleted(2)), e.ReportFinished) == [], "it is being reported"
    assert only(Driver(stored).commands, e.ReportFinished) == [report]


def test_a_report_that_fails_for_now_is_made_with_the_next_checkpoint():
    driver = pieces_job()
    driver.send(e.CheckpointCompleted(1))
    assert driver.send(e.FinishedReported(frozenset({"p1"}), is_done=False)) == []
    driver.checkpoint(2, r0=[reading("p2", 0, 1)])
    assert only(driver.send(e.CheckpointCompleted(2)), e.ReportFinished) == [e.ReportFinished((split("p1", 1, 1),))]


def test_a_split_found_by_a_cursor_is_forgotten_once_it_is_reported_and_late_reports_of_it_are_harmless():
    driver = pieces_job()
    driver.send(e.CheckpointCompleted(1), e.CheckpointTriggered(2))
    late = driver.snapshot(0, 2, finished("p1", 1), reading("p2", 0, 1))
    driver.send(e.FinishedReported(frozenset({"p1"}), is_done=True))
    assert [entry.durable.split_id for entry in driver.ledger] == ["p2"]
    assert len(only(late, e.PersistCheckpoint)[0].checkpoint.splits) == 2
    driver.send(e.CheckpointCompleted(2))
    for number in (3, 4):  # the reader has missed the completion
        stored = driver.checkpoint(number, r0=[finished("p1", 1), reading("p2", 0, 1)])
        assert [state.split.split_id for state in stored.splits] == ["p2"]
        assert only(driver.send(e.CheckpointCompleted(number)), e.ReportFinished) == []
    driver.send(e.CheckpointTriggered(5))
    with pytest.raises(ProtocolViolationError, match="splits it does not hold"):
        driver.snapshot(0, 5, reading("p1", 0, 1), reading("p2", 0, 1))


def test_other_finished_splits_are_reported_and_stay_as_discovery_would_find_them_again():
    driver = reading_job()
    driver.send(e.SplitFinished(1, "b"))
    driver.checkpoint(1, r0=[reading("a", 4, 9), reading("c", 1, 9)], r1=[finished("b", 9)])
    assert only(driver.send(e.CheckpointCompleted(1)), e.ReportFinished) == [e.ReportFinished((split("b", 9, 9),))]
    driver.send(e.FinishedReported(frozenset({"b"}), is_done=True))
    assert "b" in driver.ledger
    driver.checkpoint(2, r0=[reading("a", 4, 9), reading("c", 1, 9)], r1=[])
    assert only(driver.send(e.CheckpointCompleted(2)), e.ReportFinished) == []
