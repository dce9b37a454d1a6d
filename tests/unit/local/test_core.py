"""The core of `headrace run`: when checkpoints are taken, what becomes of workers, and what is committed."""

from __future__ import annotations

import pytest

from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.enumerator import create_enumerator, restore_enumerator
from headrace.enumerator.errors import ProtocolViolationError, RunFailedError
from headrace.enumerator.events import (
    DiscoverAfter,
    DiscoverInitial,
    DiscoveryDue,
    FinishedReported,
    PublishPositions,
    ReportFinished,
    SplitsDiscovered,
)
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import DiscoveryResult
from headrace.runners.local.balanced import BalancedEnumerator, BalancedPieces
from headrace.runners.local.core import CheckpointFailedError, RunCore, RunPhase, RunSchedule
from headrace.runners.local.events import (
    AssignSplits,
    CheckpointCommitted,
    CheckpointDue,
    CheckpointIsNotStored,
    CheckpointStored,
    CheckpointTimedOut,
    CommitCheckpoint,
    EndRun,
    FailRun,
    JoinTimeout,
    KillWorker,
    NoteUnchanged,
    NotifyCheckpointStored,
    PauseOver,
    Recover,
    ReportCheckpointFailure,
    ReportWorkerLost,
    RestartDue,
    RetireWorker,
    RowsDue,
    RunRecovered,
    RunStarted,
    SetTimer,
    SplitDone,
    StageCheckpoint,
    StartWorker,
    StopRequested,
    StopWorker,
    TakeSnapshot,
    WorkerDied,
    WorkerHandle,
    WorkerJoined,
    WorkerSilent,
    WorkerSnapshotted,
    WorkerWrote,
)
from headrace.runners.restarts import FixedDelay, NoRestart, Restarts
from headrace.testing.memory import MemorySplit
from tests.soak import run_soak

SPLITS = [MemorySplit(name, 0) for name in "abcd"]


def core(schedule=None, strategy=None, workers=2, first=5, uncommitted=0):
    enumerator = create_enumerator(BalancedEnumerator, parallelism=workers)
    restarts = Restarts(strategy or FixedDelay(3, 2.0))
    schedule = schedule or RunSchedule(10.0)
    return RunCore(enumerator, schedule, restarts, next_number=first, last_checkpoint_id=7, uncommitted=uncommitted)


@pytest.mark.parametrize(("interval_s", "max_delay_s", "linger_s"), [
    (10.0, None, 0.05), (1.0, None, 0.05), (0.2, None, 0.01), (10.0, 0.02, 0.001), (1.0, 0.0, 0.0),
])  # fmt: skip
def test_records_wait_for_others_for_a_small_share_of_the_time_to_a_checkpoint(interval_s, max_delay_s, linger_s):
    assert RunSchedule(interval_s, max_delay_s=max_delay_s).linger_s == pytest.approx(linger_s)


def running(schedule=None, strategy=None, splits=tuple(SPLITS), complete=False):
    """Two workers, 5 and 6, with two splits each."""
    run = core(schedule, strategy)
    for event in (RunStarted(), RunRecovered(), SplitsDiscovered(DiscoveryResult(splits, complete=complete)), WorkerJoined(5)):
        run.handle(event)
    assigned = run.handle(WorkerJoined(6))
    assert sorted(command.number for command in assigned) == [5, 6]
    return run, {command.number: command.splits for command in assigned}


def snapshot(number, splits, checkpoint_id, at, handles=(), finished=False):
    states = {split.split_id: SplitState(split.between(at, None), finished) for split in splits}
    return WorkerSnapshotted(number, checkpoint_id, states, tuple(handles))


def only(kind, commands):
    (found,) = [command for command in commands if isinstance(command, kind)]
    return found


def collected(run, assigned, checkpoint_id, at=3):
    """Both workers answer, with a handle each; the commands of the second answer."""
    run.handle(snapshot(5, assigned[5], checkpoint_id, at, [f"h5-{checkpoint_id}"]))
    return run.handle(snapshot(6, assigned[6], checkpoint_id, at, [f"h6-{checkpoint_id}"]))


def stored(run, assigned):
    """Checkpoint 8."""
    run.handle(CheckpointDue())
    collected(run, assigned, 8)
    run.handle(CheckpointStored(8))


def test_workers_start_while_the_last_checkpoint_is_completed_and_read_only_afterwards():
    run = core()
    assert run.handle(RunStarted()) == [StartWorker(0, 5), StartWorker(1, 6), Recover()]
    assert run.handle(WorkerJoined(5)) == run.handle(WorkerJoined(6)) == []
    assert DiscoverInitial() in run.handle(RunRecovered())
    commands = run.handle(SplitsDiscovered(DiscoveryResult(SPLITS)))
    assert {command.number: len(command.splits) for command in commands} == {5: 2, 6: 2}


def test_the_first_splits_wait_for_all_workers_but_not_for_ever():
    run = core()
    for event in (RunStarted(), RunRecovered(), SplitsDiscovered(DiscoveryResult(SPLITS))):
        run.handle(event)
    assert run.handle(WorkerJoined(6)) == []
    assert only(AssignSplits, run.handle(JoinTimeout())) == AssignSplits(6, tuple(SPLITS))


def test_a_checkpoint_is_positions_and_handles_of_all_workers():
    run, assigned = running()
    assert run.handle(CheckpointDue()) == [
        SetTimer(10.0, CheckpointDue()), SetTimer(600.0, CheckpointTimedOut(8)), TakeSnapshot(5, 8), TakeSnapshot(6, 8)
    ]  # fmt: skip
    commit = only(CommitCheckpoint, collected(run, assigned, 8))
    assert commit.handles == (WorkerHandle(5, "h5-8"), WorkerHandle(6, "h6-8"))
    assert {state.split.next_offset for state in commit.checkpoint.splits} == {3}
    commands = run.handle(CheckpointStored(8))
    notified = [command for command in commands if isinstance(command, NotifyCheckpointStored)]
    assert notified == [NotifyCheckpointStored(5, 8), NotifyCheckpointStored(6, 8)]
    assert PublishPositions not in map(type, commands)  # a group shows what is visible
    assert [type(command) for command in run.handle(CheckpointCommitted(8))] == [PublishPositions]
    assert run.phase is RunPhase.RUNNING


def unchanged(number, checkpoint_id):
    return WorkerSnapshotted(number, checkpoint_id, {}, (), {}, unmoved=2)


def committed(run, assigned):
    """Checkpoint 8, to its end."""
    stored(run, assigned)
    run.handle(CheckpointCommitted(8))


def test_a_checkpoint_that_says_what_the_last_one_says_is_not_stored_again():
    """A run without data wrote all its positions, and asked for all ends, at each interval."""
    run, assigned = running(RunSchedule(2.0))
    committed(run, assigned)
    for checkpoint_id in (9, 10):
        run.handle(CheckpointDue())
        assert run.handle(unchanged(5, checkpoint_id)) == []
        assert run.handle(unchanged(6, checkpoint_id)) == [NoteUnchanged(checkpoint_id)]
        assert run.phase is RunPhase.RUNNING
    run.handle(CheckpointDue())
    run.handle(unchanged(5, 11))
    commit = only(CommitCheckpoint, run.handle(snapshot(6, assigned[6], 11, 4)))
    offsets = {state.split.split_id: state.split.next_offset for state in commit.checkpoint.splits}
    assert offsets == {split.split_id: at for number, at in ((5, 3), (6, 4)) for split in assigned[number]}


@pytest.mark.parametrize("what", ["the first", "handle", "split", "stop", "many"])
def test_an_unchanged_checkpoint_is_stored_all_the_same_where_there_is_a_reason(what):
    run, assigned = running(RunSchedule(2.0))
    if what != "the first":
        committed(run, assigned)
    if what == "split":
        run.handle(DiscoveryDue())
        run.handle(SplitsDiscovered(DiscoveryResult([*SPLITS, MemorySplit("e", 0)])))
    checkpoint_id = 8 if what == "the first" else 9
    for _ in range(2 if what == "many" else 0):  # as many as take less than 5 s
        run.handle(CheckpointDue())
        run.handle(unchanged(5, checkpoint_id))
        assert run.handle(unchanged(6, checkpoint_id)) == [NoteUnchanged(checkpoint_id)]
        checkpoint_id += 1
    run.handle(StopRequested() if what == "stop" else CheckpointDue())
    run.handle(WorkerSnapshotted(5, checkpoint_id, {}, ("h",) if what == "handle" else (), {}, unmoved=3))
    assert only(CommitCheckpoint, run.handle(unchanged(6, checkpoint_id)))


def test_what_a_checkpoint_that_was_not_stored_says_is_not_what_the_last_one_says():
    run, assigned = running(RunSchedule(10.0, tolerable_failed_checkpoints=1))
    committed(run, assigned)
    for checkpoint_id in (9, 10):
        run.handle(CheckpointDue())
        run.handle(snapshot(5, assigned[5], checkpoint_id, 4))
        assert only(CommitCheckpoint, run.handle(unchanged(6, checkpoint_id)))
        run.handle(CheckpointIsNotStored(checkpoint_id, "no space")) if checkpoint_id == 9 else None
        run.handle(PauseOver())


def test_execution_checkpointing_interval_counts_on_while_a_checkpoint_is_under_way():
    run, assigned = running(RunSchedule(1.5))
    assert SetTimer(1.5, CheckpointDue()) in run.handle(CheckpointDue())
    assert run.handle(CheckpointDue()) == [SetTimer(1.5, CheckpointDue())]
    collected(run, assigned, 8)
    run.handle(CheckpointStored(8))
    assert TakeSnapshot(5, 9) in run.handle(CheckpointCommitted(8))


def test_execution_checkpointing_min_pause_starts_when_a_checkpoint_ends():
    run, assigned = running(RunSchedule(1.0, min_pause_s=5.0))
    stored(run, assigned)
    assert SetTimer(5.0, PauseOver()) in run.handle(CheckpointCommitted(8))
    assert run.handle(CheckpointDue()) == [SetTimer(1.0, CheckpointDue())]
    assert TakeSnapshot(5, 9) in run.handle(PauseOver())


def test_a_checkpoint_is_taken_max_delay_after_the_first_rows():
    run, assigned = running(RunSchedule(10.0, max_delay_s=0.2))
    assert run.handle(WorkerWrote(5)) == [SetTimer(0.2, RowsDue(7))]
    assert run.handle(WorkerWrote(6)) == []
    assert [type(command) for command in run.handle(RowsDue(7))] == [SetTimer, StageCheckpoint, TakeSnapshot, TakeSnapshot]
    collected(run, assigned, 8)
    run.handle(CheckpointStored(8))
    assert TakeSnapshot(5, 9) not in run.handle(CheckpointCommitted(8))


def test_max_delay_has_passed_for_no_rows_that_a_checkpoint_has_taken_since():
    run, assigned = running(RunSchedule(10.0, max_delay_s=0.2))
    run.handle(WorkerWrote(5))
    stored(run, assigned)
    run.handle(CheckpointCommitted(8))
    assert run.handle(RowsDue(7)) == []
    assert run.handle(WorkerWrote(5)) == [SetTimer(0.2, RowsDue(8))]


def test_rows_behind_the_snapshot_of_their_worker_wait_for_the_next_checkpoint():
    run, assigned = running(RunSchedule(10.0, max_delay_s=0.2))
    run.handle(CheckpointDue())
    run.handle(snapshot(5, assigned[5], 8, 3, ["h5"]))
    assert run.handle(WorkerWrote(6)) == [StageCheckpoint(8)]  # before its snapshot
    assert run.handle(WorkerWrote(5)) == [SetTimer(0.2, RowsDue(8))]
    run.handle(snapshot(6, assigned[6], 8, 3, ["h6"]))
    run.handle(CheckpointStored(8))
    assert run.handle(RowsDue(8)) == []
    assert TakeSnapshot(5, 9) in run.handle(CheckpointCommitted(8))


@pytest.mark.parametrize("failure", [CheckpointTimedOut(8), CheckpointIsNotStored(8, "disk full")])
def test_rows_of_a_checkpoint_that_has_failed_wait_max_delay_for_the_next(failure):
    run, assigned = running(RunSchedule(300.0, max_delay_s=0.2, tolerable_failed_checkpoints=1))
    run.handle(WorkerWrote(5))
    run.handle(RowsDue(7))
    if isinstance(failure, CheckpointIsNotStored):
        collected(run, assigned, 8)
    assert SetTimer(0.2, RowsDue(8)) in run.handle(failure)
    run.handle(PauseOver())
    assert TakeSnapshot(5, 9) in run.handle(RowsDue(8))


@pytest.mark.parametrize("rows", [False, True])
def test_a_checkpoint_is_staged_where_there_are_rows(rows):
    run, _ = running()
    if rows:
        assert run.handle(WorkerWrote(5)) == []  # without a max_delay
    assert (StageCheckpoint(8) in run.handle(CheckpointDue())) is rows


def test_handles_of_a_checkpoint_that_has_failed_are_staged_for_the_next():
    run, assigned = running(RunSchedule(10.0, tolerable_failed_checkpoints=1))
    run.handle(WorkerWrote(5))
    run.handle(CheckpointDue())
    collected(run, assigned, 8)
    run.handle(CheckpointIsNotStored(8, "full"))
    run.handle(PauseOver())
    assert StageCheckpoint(9) in run.handle(CheckpointDue())


def paused_for_an_hour():
    run, assigned = running(RunSchedule(1.0, min_pause_s=3600.0), complete=True)
    stored(run, assigned)
    assert SetTimer(3600.0, PauseOver()) in run.handle(CheckpointCommitted(8))
    return run, assigned


def test_a_stop_does_not_wait_for_the_minimum_pause():
    run, _ = paused_for_an_hour()
    assert TakeSnapshot(5, 9) in run.handle(StopRequested())


def test_the_end_of_the_source_does_not_wait_for_the_minimum_pause():
    run, assigned = paused_for_an_hour()
    commands = [run.handle(SplitDone(number, split.split_id)) for number, splits in assigned.items() for split in splits]
    assert [TakeSnapshot(5, 9) in each for each in commands] == [False, False, False, True]


def test_the_last_checkpoint_of_a_stop_is_tried_again_soon_where_it_fails():
    run, _ = running(RunSchedule(1.0, min_pause_s=3600.0, tolerable_failed_checkpoints=1))
    run.handle(StopRequested())
    assert SetTimer(0.1, PauseOver()) in run.handle(CheckpointTimedOut(8))
    assert TakeSnapshot(5, 9) in run.handle(PauseOver())


def test_execution_checkpointing_timeout_fails_a_checkpoint_and_its_handles_go_to_the_next():
    run, assigned = running(RunSchedule(1.0, timeout_s=30.0, tolerable_failed_checkpoints=1))
    assert SetTimer(30.0, CheckpointTimedOut(8)) in run.handle(CheckpointDue())
    run.handle(snapshot(5, assigned[5], 8, 3, ["early"]))
    failure = only(ReportCheckpointFailure, run.handle(CheckpointTimedOut(8)))
    assert failure.checkpoint_id == 8
    assert failure.reason.startswith("it was not complete after 30 s; worker 6 did not prepare for it in t")
    run.handle(snapshot(6, assigned[6], 8, 3, ["late"]))
    run.handle(CheckpointDue())
    run.handle(PauseOver())
    commit = only(CommitCheckpoint, collected(run, assigned, 9, at=4))
    assert [listed.handle for listed in commit.handles] == ["early", "late", "h5-9", "h6-9"]


def test_the_timeout_of_a_checkpoint_that_is_over_means_nothing():
    run, assigned = running()
    stored(run, assigned)
    run.handle(CheckpointCommitted(8))
    assert run.handle(CheckpointTimedOut(8)) == []


def test_a_checkpoint_that_is_being_stored_too_long_ends_this_lifetime_of_the_run():
    run, assigned = running(RunSchedule(1.0, tolerable_failed_checkpoints=9))
    run.handle(CheckpointDue())
    collected(run, assigned, 8)
    assert "whether it is stored is not known" in str(only(FailRun, run.handle(CheckpointTimedOut(8))).error)


def test_execution_checkpointing_tolerable_failed_checkpoints_counts_those_in_a_row():
    run, assigned = running(RunSchedule(1.0, tolerable_failed_checkpoints=1))

    def attempt(checkpoint_id, outcome):
        run.handle(PauseOver())
        run.handle(CheckpointDue())
        collected(run, assigned, checkpoint_id, at=checkpoint_id)
        return run.handle(outcome)

    assert only(ReportCheckpointFailure, attempt(8, CheckpointIsNotStored(8, "disk full")))
    attempt(9, CheckpointStored(9))
    run.handle(CheckpointCommitted(9))
    assert only(ReportCheckpointFailure, attempt(10, CheckpointIsNotStored(10, "disk full")))
    error = only(FailRun, attempt(11, CheckpointIsNotStored(11, "disk full"))).error
    assert isinstance(error, CheckpointFailedError)
    assert "checkpoint 11 has failed: disk full; tolerable failed checkpoints: 1" in str(error)


def test_what_a_stored_checkpoint_lists_is_not_listed_again():
    run, assigned = running()
    for checkpoint_id in (8, 9):
        run.handle(CheckpointDue())
        commit = only(CommitCheckpoint, collected(run, assigned, checkpoint_id, at=checkpoint_id))
        assert [listed.handle for listed in commit.handles] == [f"h5-{checkpoint_id}", f"h6-{checkpoint_id}"]
        run.handle(CheckpointStored(checkpoint_id))
        run.handle(CheckpointCommitted(checkpoint_id))


def test_a_dead_workers_splits_go_to_the_others_at_their_stored_positions_and_its_handles_to_no_process():
    run, assigned = running(RunSchedule(1.0, tolerable_failed_checkpoints=1))
    run.handle(CheckpointDue())
    run.handle(snapshot(5, assigned[5], 8, 3, ["lost"]))
    commands = run.handle(WorkerDied(5, "worker 5: killed", 0.0, 0.5))
    assert RetireWorker(5) in commands
    assert ReportWorkerLost(5, "worker 5: killed", 2.0) in commands
    assert SetTimer(2.0, RestartDue(0)) in commands
    assert only(AssignSplits, commands) == AssignSplits(6, assigned[5])  # from 0, as nothing is stored
    run.handle(PauseOver())
    assert only(CommitCheckpoint, run.handle(snapshot(6, SPLITS, 9, 3, ["h6"]))).handles == (WorkerHandle(6, "h6"),)


def test_a_worker_that_dies_while_its_checkpoint_is_being_stored_is_resolved_by_the_outcome():
    for outcome, position in ((CheckpointStored(8), 3), (CheckpointIsNotStored(8, "disk full"), 0)):
        run, assigned = running(RunSchedule(1.0, tolerable_failed_checkpoints=1))
        run.handle(CheckpointDue())
        collected(run, assigned, 8)
        died = run.handle(WorkerDied(5, "worker 5: killed", 0.0, 0.5))
        assert [command for command in died if isinstance(command, AssignSplits)] == []
        given = only(AssignSplits, run.handle(outcome))
        assert (given.number, {split.next_offset for split in given.splits}) == (6, {position})


def test_messages_of_a_dead_worker_are_dropped_and_its_successor_has_a_number_of_its_own():
    run, assigned = running()
    run.handle(WorkerDied(5, "killed", 0.0, 0.5))
    assert run.handle(RestartDue(0)) == [StartWorker(0, 7)]
    assert run.handle(snapshot(5, assigned[5], 8, 3, ["zombie"])) == run.handle(WorkerJoined(5)) == []
    assert run.handle(WorkerDied(5, "killed", 0.0, 0.5)) == []


def test_a_silent_worker_is_killed_before_anything_of_it_is_given_away():
    run, _ = running()
    assert run.handle(WorkerSilent(6)) == [KillWorker(6)]


def test_a_run_without_restarts_fails_with_its_first_worker():
    run, _ = running(strategy=NoRestart())
    error = only(FailRun, run.handle(WorkerDied(6, "worker 6: ValueError: no (job.py:3)", 0.0, 0.5))).error
    assert isinstance(error, RunFailedError)
    assert str(error) == "worker 6: ValueError: no (job.py:3); not restarted: the restart strategy is none"


def test_a_worker_that_says_itself_that_no_other_would_do_better_ends_the_run():
    run, _ = running()
    error = only(FailRun, run.handle(WorkerDied(5, "worker 5: UsageError: no such column", 0.0, 0.5, is_final=True))).error
    assert isinstance(error, RunFailedError)
    assert str(error) == "worker 5: UsageError: no such column"


def test_the_end_of_the_source_is_stored_and_committed_before_the_run_ends():
    run, assigned = running(complete=True)
    for number in (5, 6):
        for split in assigned[number]:
            commands = run.handle(SplitDone(number, split.split_id))
    assert TakeSnapshot(6, 8) in commands
    run.handle(snapshot(5, assigned[5], 8, 3, finished=True))
    assert only(CommitCheckpoint, run.handle(snapshot(6, assigned[6], 8, 3, ["h"], finished=True)))
    stored = run.handle(CheckpointStored(8))
    assert not [command for command in stored if isinstance(command, ReportFinished)], "it may be rolled back"
    positions, ended, *commands = run.handle(CheckpointCommitted(8))
    assert (type(positions), type(ended)) == (PublishPositions, ReportFinished)
    assert commands == [StopWorker(5), StopWorker(6), EndRun(finished=True)]


def test_a_restored_run_gives_each_worker_a_few_pieces_and_reports_what_was_finished():
    states = [SplitState(MemorySplit(f"p{number}", number // 10, 1), number == 10) for number in range(11)]
    positions = Checkpoint(7, tuple(states), exhausted=False, cursor={"found": 11})
    enumerator = restore_enumerator(BalancedPieces, positions, parallelism=2)
    run = RunCore(enumerator, RunSchedule(10.0), Restarts(NoRestart()), next_number=5, last_checkpoint_id=7)
    run.handle(RunStarted())
    commands = run.handle(RunRecovered())
    assert only(ReportFinished, commands).splits == (states[10].split,)
    assert only(DiscoverAfter, commands).cursor == {"found": 11}
    run.handle(FinishedReported(frozenset({"p10"}), is_done=True))
    run.handle(WorkerJoined(5))
    assert [len(command.splits) for command in run.handle(WorkerJoined(6))] == [4, 4]
    assert only(AssignSplits, run.handle(SplitDone(6, "p1"))).number == 6


def test_a_stop_takes_a_last_checkpoint():
    run, assigned = running()
    assert TakeSnapshot(5, 8) in run.handle(StopRequested())
    collected(run, assigned, 8)
    run.handle(CheckpointStored(8))
    assert run.handle(CheckpointCommitted(8))[1:] == [StopWorker(5), StopWorker(6), EndRun(finished=False)]


def test_a_stop_before_the_first_discovery_has_nothing_to_store():
    run = core()
    run.handle(RunStarted())
    run.handle(RunRecovered())
    assert only(EndRun, run.handle(StopRequested())) == EndRun(finished=False)


def test_a_stop_while_the_run_recovers_ends_it_if_nothing_is_to_be_committed():
    """Recovery may wait for a server for a minute."""
    run = core()
    run.handle(RunStarted())
    assert only(EndRun, run.handle(StopRequested())) == EndRun(finished=False)
    run = core(uncommitted=1)
    run.handle(RunStarted())
    assert run.handle(StopRequested()) == []
    assert only(EndRun, run.handle(RunRecovered())) == EndRun(finished=False)


def test_what_the_table_does_not_have_is_refused():
    run, _ = running()
    with pytest.raises(ProtocolViolationError, match="the run is RUNNING"):
        run.handle(CheckpointCommitted(8))


def test_the_soak_counts_what_is_wrong():
    keys = [b"%d" % partition for partition in range(run_soak.PARTITIONS)]
    rows = [(key, str(number)) for key in keys for number in (1, 2, 3)]
    bad = [(key, f"bad {number}") for key in keys for number in (0, 4)]
    count = len(rows) + len(bad)
    right = {"letters": len(bad), "records": count, "duplicates": 0, "lost": 0, "foreign": 0, "out_of_order": 0}
    assert run_soak.judged(rows, bad, 5) == right
    assert run_soak.judged([*rows, rows[-1]], bad, 5) == right | {"records": count + 1, "duplicates": 1}
    assert run_soak.judged(rows[:-1], bad, 5) == right | {"records": count - 1, "lost": 1}
    assert run_soak.judged([*rows, (b"0", "7")], bad, 5) == right | {"records": count + 1, "foreign": 1}
    assert run_soak.judged([rows[1], rows[0], *rows[2:]], bad, 5) == right | {"out_of_order": 1}
    more = {"letters": len(bad) + 1, "records": count + 1}
    assert run_soak.judged(rows, [*bad, bad[-1]], 5) == right | more | {"duplicates": 1}
    assert run_soak.judged(rows, [*bad, (b"0", "1")], 5) == right | more | {"foreign": 1, "out_of_order": 1}
    assert run_soak.judged(rows, bad[:-1], 5) == right | {"letters": len(bad) - 1, "records": count - 1, "lost": 1}
