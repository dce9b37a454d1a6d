"""Restore and enumeration bugs that real systems shipped, each sequence replayed on the core. The table is in README.md."""

from collections import deque

import pytest

from headrace.enumerator import Boundedness, DiscoveryResult, EagerEnumerator, EmbeddedRun, LazyEnumerator
from headrace.enumerator import events as e
from headrace.enumerator.errors import ProtocolViolationError
from headrace.enumerator.source import Stage
from headrace.testing.memory import MemoryReader, MemorySource
from tests.helpers.driving import Driver, assigned, assigned_splits, checkpoint_of, finished, log_of, only, reading, split
from tests.simulation.bugs import core


def read(run: EmbeddedRun) -> str:
    values: list[str] = []
    while (batch := run.poll(0.0)) is not None:
        values += batch.records.column("value").to_pylist()
    return "".join(sorted(values))


def run_of(source: MemorySource, checkpoint: bytes | None = None, **options) -> EmbeddedRun:
    return EmbeddedRun(source, clock=lambda: 0.0, checkpoint=checkpoint, **options)


def stopped(source: MemorySource, polls: int, **options) -> tuple[str, bytes]:
    """What a run delivered in this many polls, and its last checkpoint."""
    with run_of(source, **options) as run:
        batches = [batch for batch in (run.poll(0.0) for _ in range(polls)) if batch is not None]
        data = run.checkpoint()
        run.checkpoint_completed()
    return "".join(value for batch in batches for value in batch.records.column("value").to_pylist()), data


def restored_as_beam_does() -> tuple[str, str]:
    source = MemorySource(log_of(a="1234", b="5678"))
    before, data = stopped(source, 2)
    with run_of(source, data) as run:
        return before, read(run)


def test_beam_31313_34890_a_restored_enumerator_does_not_split_the_source_again():
    before, after = restored_as_beam_does()
    assert sorted(before + after) == list("12345678")


def test_beam_31313_34890_shows_when_the_bug_is_injected():
    with core.reinitialise_on_restore():
        before, after = restored_as_beam_does()
    assert after == "12345678"
    assert before != ""


def test_beam_20836_splits_added_between_two_runs_are_read():
    log = log_of(a="12")
    source = MemorySource(log)
    before, data = stopped(source, 1)
    log.create("b")
    log.append("b", "34")
    with run_of(source, data) as run:
        assert before + read(run) == "1234"


@pytest.mark.parametrize("assignment", [EagerEnumerator, LazyEnumerator])
def test_beam_25975_every_split_is_dispatched_at_lower_parallelism(assignment):
    source = MemorySource(log_of(a="12", b="34", c="56", d="78"), bounded=True)
    _, data = stopped(source, 0, parallelism=4, assignment=assignment)
    with run_of(source, data, parallelism=1, assignment=assignment) as run:
        assert read(run) == "12345678"
        assert run.finished


def test_beam_21742_26884_positions_are_published_when_a_checkpoint_is_durable_and_always_then():
    driver = Driver(parallelism=1)
    driver.discovered(split("a"))
    driver.register(0)
    driver.checkpoint(1, r0=[reading("a", 5)])
    driver.send(e.CheckpointAborted(1))
    driver.checkpoint(2, r0=[reading("a", 9)])
    assert only(driver.commands, e.PublishPositions) == []
    driver.send(e.CheckpointCompleted(2))
    assert only(driver.commands, e.PublishPositions) == [e.PublishPositions((split("a", 9),))]


def test_flink_40710_a_reader_that_fails_and_registers_again_empty_is_given_its_splits():
    driver = Driver()
    driver.discovered(split("a"), split("b"))
    driver.register(0, 1)
    driver.checkpoint(1, r0=[reading("a", 4)], r1=[reading("b", 6)])
    driver.send(e.CheckpointCompleted(1))
    assert assigned_splits(driver.register(0)) == [split("a", 4)]


def test_flink_40469_a_checkpoint_in_the_recovery_window_misses_no_split():
    driver = Driver(checkpoint_of(reading("a", 4), reading("b", 6), finished("c", 2)))
    assert driver.checkpoint(8).splits == (reading("a", 4), reading("b", 6), finished("c", 2))
    driver.send(e.CheckpointCompleted(8))
    driver.register(0)
    assert driver.checkpoint(9, r0=[reading("a", 5)]).splits == (reading("a", 5), reading("b", 6), finished("c", 2))


def test_flink_38453_a_checkpoint_holds_full_splits_so_a_waiting_one_keeps_its_start():
    driver = Driver()
    driver.discovered(split("a", 1234))
    assert assigned(Driver(driver.checkpoint(1), parallelism=1).register(0)) == {0: [split("a", 1234)]}


@pytest.mark.parametrize("state", [reading("a", 3, 9), finished("a", 9)])
def test_flink_31006_a_bounded_job_restored_after_discovery_finished_ends(state):
    driver = Driver(checkpoint_of(state, exhausted=True), parallelism=1)
    driver.register(0)
    if not state.finished:
        driver.send(e.SplitFinished(0, "a"))
    assert only(driver.commands, e.NoMoreSplits) == [e.NoMoreSplits(0)]
    assert only(driver.commands, e.SourceFinished) == [e.SourceFinished()]
    assert only(driver.commands, e.DiscoverInitial) == []


def test_flink_20290_a_split_assigned_while_the_checkpoint_is_collected_is_assigned_once():
    driver = Driver(assignment=LazyEnumerator)
    driver.discovered(split("a"), split("b"))
    driver.register(0, 1)
    driver.send(e.CheckpointTriggered(1), e.SplitRequested(0))
    driver.snapshot(0, 1)
    (persist,) = only(driver.snapshot(1, 1), e.PersistCheckpoint)
    driver.send(e.CheckpointCompleted(1))
    assert assigned(driver.send(e.SplitRequested(1))) == {1: [split("b")]}
    assert persist.checkpoint.splits == (reading("a", 0), reading("b", 0))


def test_flink_37416_28639_a_split_finished_before_its_readers_snapshot_is_in_the_checkpoint():
    driver = Driver(parallelism=1)
    driver.discovered(split("a", 0, 9))
    driver.register(0)
    driver.send(e.CheckpointTriggered(1), e.SplitFinished(0, "a"))
    (persist,) = only(driver.snapshot(0, 1, finished("a", 9)), e.PersistCheckpoint)
    assert persist.checkpoint.splits == (finished("a", 9),)
    assert assigned(Driver(persist.checkpoint, parallelism=1).register(0)) == {}


def test_flink_39645_a_second_failure_right_after_a_restore_loses_nothing():
    """Of a hybrid source, whose second part was empty in a checkpoint between the restore and the switch."""
    states = (reading("a", 4), finished("b", 2))
    assert Driver(Driver(checkpoint_of(*states)).checkpoint(8)).checkpoint(9).splits == states
    first = Stage(0, "files", None, in_pieces=False, is_found=True)
    read = checkpoint_of(finished("a", 4), finished("b", 2), stage=first)
    switch = e.SwitchStage(first, None, (split("a", 4, 4), split("b", 2, 2)), e.SPLITS_AT_ONCE)
    for number in (8, 9):
        driver = Driver(read)
        assert only(driver.commands, e.SwitchStage) == [switch]
        read = driver.checkpoint(number)
        assert (read.splits, read.stage) == ((finished("a", 4), finished("b", 2)), first)
    second = Stage(1, "kafka", {"at": 4}, in_pieces=False, is_found=False)
    driver.send(e.SplitsDiscovered(DiscoveryResult([split("c")], stage=second)))
    driver.send(e.CheckpointCompleted(9))
    restored = Driver(driver.checkpoint(10))
    assert only(restored.commands, e.SwitchStage) == []
    assert [command.stage for command in only(restored.commands, e.DiscoverLater)] == [second]


def test_flink_28303_latest_of_an_empty_split_is_resolved_once():
    log = log_of(a="")
    source = MemorySource(log, start="latest")
    _, data = stopped(source, 1)
    log.append("a", "12")
    with run_of(source, data) as run:
        assert read(run) == "12"


def test_flink_39837_a_split_that_flaps_is_not_new():
    log = log_of(a="12", b="34")
    now_s = [0.0]
    with EmbeddedRun(MemorySource(log), clock=lambda: now_s[0], discovery_interval_s=1.0) as run:
        assert read(run) == "1234"
        for change in (log.hide, log.show):
            change("b")
            now_s[0] += 1.0
            assert read(run) == ""


def test_flink_40362_no_more_splits_before_discovery_has_answered_cannot_be_said():
    driver = Driver(parallelism=1, assignment=LazyEnumerator)
    assert driver.register(0) == []
    assert driver.send(e.SplitRequested(0)) == []
    commands = driver.discovered(split("a", 0, 5), complete=True)
    assert commands == [e.Assign(0, (split("a", 0, 5),)), e.NoMoreSplits(0)]


def test_flink_39514_a_removed_split_is_reported_and_others_continue():
    driver = Driver(parallelism=1, discovery_interval_s=1.0)
    driver.discovered(split("a"), split("b"))
    driver.register(0)
    driver.send(e.DiscoveryDue())
    assert only(driver.discovered(missing=["a"]), e.ReportMissing) == [e.ReportMissing((split("a"),))]
    assert driver.checkpoint(1, r0=[reading("a", 1), reading("b", 2)]).splits == (reading("a", 1), reading("b", 2))


@pytest.mark.parametrize("values", ["", "12"])
def test_flink_28475_a_stop_offset_of_0_stops(values):
    log = log_of(a="")
    source = MemorySource(log, bounded=True)
    with run_of(source) as run:
        log.append("a", values)
        assert read(run) == ""
        assert run.finished
    assert source.boundedness is Boundedness.BOUNDED


def test_iceberg_10208_waiting_splits_are_restored_and_not_planned_again():
    driver = Driver(checkpoint_of(reading("a", 0, 5), finished("b", 5), reading("c", 2, 5), exhausted=True), parallelism=1)
    assert only(driver.commands, e.DiscoverInitial) == []
    assert assigned(driver.register(0)) == {0: [split("a", 0, 5), split("c", 2, 5)]}


def test_fluss_3354_a_checkpoint_without_splits_is_not_a_fresh_start():
    assert Driver(checkpoint_of()).commands == [e.DiscoverLater({})]


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_risingwave_5192_arroyo_910_no_record_comes_twice_however_often_it_is_restored(batch_size):
    source = MemorySource(log_of(a="12345"), batch_size=batch_size)
    values, data = stopped(source, 1)
    for _ in range(6):
        with run_of(source, data) as run:
            batch = run.poll(0.0)
            values += "".join(batch.records.column("value").to_pylist()) if batch is not None else ""
            data = run.checkpoint()
    assert values == "12345"


def test_seatunnel_11677_splits_added_back_wake_a_cached_reader():
    driver = Driver(assignment=LazyEnumerator)
    driver.discovered(split("a", 0, 5), complete=True)
    driver.register(0, 1)
    driver.send(e.SplitRequested(0), e.SplitRequested(1))
    assert assigned(driver.send(e.ReaderLost(0))) == {1: [split("a", 0, 5)]}


def test_nats_92_splits_added_back_are_assigned_with_no_one_starting_anything():
    driver = Driver(parallelism=1)
    driver.discovered(split("a"))
    driver.register(0)
    driver.send(e.ReaderLost(0))
    assert assigned(driver.register(0)) == {0: [split("a")]}


def test_kafka_12478_20539_a_split_found_later_is_read_from_its_first_record_though_the_job_started_at_latest():
    log = log_of(a="12")
    now_s = [0.0]
    source = MemorySource(log, start="latest")
    with EmbeddedRun(source, clock=lambda: now_s[0], discovery_interval_s=1.0) as run:
        assert read(run) == ""
        log.create("b")
        log.append("b", "34")
        now_s[0] = 1.0
        assert read(run) == "34"


class FetchesAhead(MemoryReader):
    """Has everything fetched as soon as it reads; `fetched` is what waits to be delivered."""

    def __init__(self, source, fetched):
        super().__init__(source)
        self.fetched = fetched

    def poll(self, timeout):
        while (batch := super().poll(timeout)) is not None:
            self.fetched.append(batch)
        return self.fetched.popleft() if self.fetched else None


class FetchingSource(MemorySource):
    """Its readers fetch ahead; `shared`: into one place, which outlives them."""

    def __init__(self, log, shared=None):
        super().__init__(log, batch_size=2)
        self.shared, self.readers = shared, []

    def create_reader(self):
        self.readers.append(FetchesAhead(self, deque() if self.shared is None else self.shared))
        return self.readers[-1]


def delivered_around_a_lost_reader(source):
    """What counts: up to the last completed checkpoint before the loss, and everything after it."""
    with run_of(source, parallelism=2) as run:
        kept = [run.poll(0.0)]
        run.checkpoint()
        run.checkpoint_completed()
        run.poll(0.0)  # delivered, but in no completed checkpoint: its output goes with the reader
        (owner,) = (number for number in range(2) if run.coordinator.enumerator.ledger.load(number))
        assert source.readers[owner].fetched  # there is something that must not be delivered
        run.lose_reader(owner)
        run.start_reader(owner)
        kept += [run.poll(0.0) for _ in range(6)]
    return "".join(value for batch in kept if batch is not None for value in batch.records.column("value").to_pylist())


def test_faust_221_what_a_lost_reader_had_fetched_is_not_delivered_after_it():
    assert delivered_around_a_lost_reader(FetchingSource(log_of(a="123456789"))) == "123456789"


def test_faust_221_shows_when_the_next_reader_has_what_the_lost_one_fetched():
    with pytest.raises(ProtocolViolationError, match="split a was delivered, but the split was never assigned to this reader"):
        delivered_around_a_lost_reader(FetchingSource(log_of(a="123456789"), deque()))
