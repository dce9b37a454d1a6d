"""The oracle of the restore benchmark: every anomaly is injected, and is found and named; the times it gives are right."""

from dataclasses import asdict

import numpy as np
import pytest

from benchmarks.restore import oracle
from benchmarks.restore.oracle import Log, Seen, first_seen
from benchmarks.restore.records import RESIDUE, RecordMaker, batch, identify, record_ids
from benchmarks.restore.timeline import ECHO_S, HOLD_S, Curve, Level, Moments, caught_up_at, lag_level, restore

PRODUCED = [4, 3]


def ids(*pairs: tuple[int, int]) -> np.ndarray:
    """Records by input partition and sequence."""
    return record_ids(np.array([p for p, _ in pairs], np.int64), np.array([s for _, s in pairs], np.int64))


def log(*pairs: tuple[int, int], first: int = 0) -> Log:
    return Log(np.arange(first, first + len(pairs)), ids(*pairs))


def seen(*stamps: tuple[float, int, int, int, int]) -> Seen:
    columns = list(zip(*stamps, strict=True))
    return Seen(np.array(columns[0]), *(np.array(column, np.int64) for column in columns[1:]))


GOOD = {0: log((0, 0), (1, 0), (0, 1), (1, 1)), 1: log((0, 2), (1, 2), (0, 3))}
SEEN = seen((1.0, 0, 0, 1, 2), (2.0, 1, 0, 2, 3), (3.0, 0, 2, 3, 2))


def judge(produced, committed, written, seen):
    return oracle.judge(produced, committed, lambda: written, seen)


def anomalies(outcome) -> dict[str, int]:
    counted = {name: count for name, count in asdict(outcome).items() if not name.startswith("records")}
    return {name: count for name, count in counted.items() if count}


def with_partition_1(*pairs: tuple[int, int]) -> dict[int, Log]:
    return {**GOOD, 1: log(*pairs)}


def all_seen(logs: dict[int, Log]) -> Seen:
    return seen(*((1.0, p, int(one.offsets[0]), int(one.offsets[-1]), len(one.offsets)) for p, one in logs.items()))


def test_an_output_with_every_record_once_is_clean():
    outcome = judge(PRODUCED, GOOD, GOOD, SEEN)
    assert outcome.clean
    assert anomalies(outcome) == {}
    assert (outcome.records_in, outcome.records_out) == (7, 7)


def test_a_record_that_the_input_has_lost_is_not_looked_for_and_may_have_come_all_the_same():
    without = with_partition_1((0, 2), (0, 3))
    found = oracle.judge(PRODUCED, without, lambda: GOOD, all_seen(without), ids((1, 2), (1, 1)))
    assert (anomalies(found), found.records_out) == ({}, 6)


@pytest.mark.parametrize(("committed", "expected"), [
    (with_partition_1((0, 2), (1, 2), (0, 3), (0, 3)), {"duplicates": 1}),
    (with_partition_1((0, 2), (1, 2), (0, 3), (0, 2), (0, 2)), {"duplicates": 2}),
    (with_partition_1((0, 2), (0, 3)), {"lost": 1}), (with_partition_1((0, 3), (1, 2), (0, 2)), {"out_of_order": 1}),
    (with_partition_1((0, 2), (1, 2), (0, 3), (0, 4)), {"foreign": 1}),
    (with_partition_1((0, 2), (1, 2), (0, 3), (2, 0)), {"foreign": 1}),
])  # fmt: skip
def test_a_injected_anomaly_is_found_and_named(committed, expected):
    outcome = judge(PRODUCED, committed, committed, all_seen(committed))
    assert anomalies(outcome) == expected
    assert outcome.clean == (expected.keys() == {"out_of_order"})


def test_a_duplicate_in_another_output_partition_counts_too():
    committed = {**GOOD, 2: log((0, 0))}
    assert anomalies(judge(PRODUCED, committed, committed, all_seen(committed))) == {"duplicates": 1}


def test_a_record_that_was_written_and_is_not_visible_is_partially_committed_and_not_lost():
    committed = with_partition_1((0, 2), (1, 2))
    outcome = judge(PRODUCED, committed, GOOD, all_seen(committed))
    assert anomalies(outcome) == {"torn": 1}
    assert not outcome.clean


def test_what_an_aborted_transaction_wrote_and_a_later_one_wrote_again_is_no_anomaly():
    written = {0: log((0, 0), (1, 0), (0, 0), (1, 0), (0, 1), (1, 1)), 1: GOOD[1]}
    committed = {0: log((0, 0), (1, 0), (0, 1), (1, 1), first=2), 1: GOOD[1]}
    assert anomalies(judge(PRODUCED, committed, written, all_seen(committed))) == {}


def test_an_aborted_record_that_a_read_committed_reader_was_given_is_found():
    committed = {0: Log(np.array([2, 3, 4, 5]), GOOD[0].ids), 1: GOOD[1]}
    outcome = judge(PRODUCED, committed, committed, seen((1.0, 0, 0, 5, 6), (1.0, 1, 0, 2, 3)))
    assert anomalies(outcome) == {"aborted_seen": 2}
    assert not outcome.clean


def test_a_partition_that_nothing_is_committed_in_is_aborted_when_the_probe_saw_it():
    given = seen((1.0, 0, 0, 3, 4), (1.0, 1, 0, 2, 3), (1.0, 7, 0, 4, 5))
    assert anomalies(judge(PRODUCED, GOOD, GOOD, given)) == {"aborted_seen": 5}


def test_a_committed_record_that_the_probe_was_not_given_is_counted():
    assert anomalies(judge(PRODUCED, GOOD, GOOD, seen((1.0, 0, 0, 3, 4)))) == {"unseen": 3}


def test_a_damaged_record_is_counted_and_is_missing_as_itself():
    committed = {**GOOD, 1: Log(np.arange(3), np.array([*ids((0, 2), (1, 2)), -1]))}
    assert anomalies(judge(PRODUCED, committed, committed, all_seen(committed))) == {"damaged": 1, "lost": 1}


def test_an_output_that_is_empty_has_lost_everything():
    assert anomalies(judge(PRODUCED, {}, {}, seen((1.0, 0, 0, 0, 0)))) == {"lost": 7}


def test_records_read_back_are_who_they_are():
    rows = RecordMaker(100).values(3, 2**33, 5000)
    found = identify([row.tobytes() for row in rows], 100)
    assert found.intact.all()
    assert (found.ids == record_ids(np.full(5000, 3), np.arange(2**33, 2**33 + 5000))).all()


@pytest.mark.parametrize("at", [0, 5, 50, 99])
def test_a_flipped_bit_anywhere_is_noticed(at):
    value = bytearray(RecordMaker(100).values(0, 0, 1)[0].tobytes())
    value[at] ^= 1
    assert identify([bytes(value)], 100).ids.tolist() == [-1]


def test_a_value_of_another_size_is_damaged():
    value = RecordMaker(100).values(0, 0, 1)[0].tobytes()
    assert identify([value, value[:99], b"", value + b"\0"], 100).intact.tolist() == [True, False, False, False]


def test_the_residue_is_that_of_zlib():
    import zlib

    assert zlib.crc32(b"anything" + zlib.crc32(b"anything").to_bytes(4, "little")) == RESIDUE


def test_a_batch_for_the_encoder_has_key_value_and_partition():
    made = batch(5, RecordMaker(64).values(5, 7, 3))
    assert made.column("partition").to_pylist() == [5, 5, 5]
    assert [value[:12] for value in made.column("value").to_pylist()] == made.column("key").to_pylist()


def test_each_record_is_first_seen_when_its_first_copy_was():
    logs = {0: log((0, 0), (0, 1), (0, 0)), 1: log((0, 1))}
    assert first_seen([2], logs, seen((1.0, 0, 0, 0, 1), (2.0, 1, 0, 0, 1), (3.0, 0, 1, 2, 2))).tolist() == [1.0, 2.0]


def test_what_was_never_produced_and_what_is_damaged_is_not_first_seen():
    logs = {0: Log(np.arange(4), np.array([*ids((0, 0), (0, 7), (5, 0)), -1]))}
    assert first_seen([2], logs, seen((1.0, 0, 0, 3, 4))).tolist() == [1.0]


def test_what_is_only_written_is_not_read_where_nothing_is_missing():
    assert anomalies(oracle.judge(PRODUCED, GOOD, lambda: pytest.fail("it is read"), SEEN)) == {}


def test_a_curve_of_events_steps_once_for_all_that_happened_at_one_time():
    curve = Curve.of_events(np.array([1.0, 2.0, 2.0, 5.0]))
    assert (curve.at.tolist(), curve.total.tolist()) == ([1.0, 2.0, 5.0], [1, 3, 4])
    assert len(Curve.of_events(np.empty(0)).at) == 0


# --- times -------------------------------------------------------------------------------------------------------------
def line(since: float, until: float, rate: float, step_s: float, total: float = 0) -> Curve:
    """Grows by `rate` per second, in steps."""
    at = np.arange(since, until, step_s)
    return Curve(at, (total + rate * (at - since)).astype(np.int64))


def joined(*curves: Curve) -> Curve:
    return Curve(np.concatenate([c.at for c in curves]), np.concatenate([c.total for c in curves]))


PRODUCED_CURVE = line(0, 60, 1000, 0.01)
BEFORE = Curve(np.arange(1, 20), np.arange(1, 20) * 1000 - 200)  # once a second, 200 behind
MOMENTS = Moments(steady_since=10, killed=19.5, dead=19.6, watched_until=59)


def test_a_restore_is_measured_from_the_kill_to_the_first_record_and_to_the_old_lag():
    catching_up = Curve(np.array([30.0, 31.0, 32.0]), np.array([22000, 27000, 31800]))
    after = Curve(np.arange(33, 60), np.arange(33, 60) * 1000 - 200)
    found = restore(PRODUCED_CURVE, joined(BEFORE, catching_up, after), MOMENTS)
    assert found.outage_s == 10.5
    assert found.recovery_s == 12.5
    assert found.delivered == 31800 - 18800
    assert found.throughput == pytest.approx(13000 / 12.5)
    assert found.catching_up == pytest.approx((31800 - 18800) / 2)
    assert found.steady == pytest.approx((18800 - 9800) / 9.5)
    assert found.first_30_s == pytest.approx((48800 - 18800) / 30)


def test_what_the_dead_had_committed_is_not_the_first_record_of_the_restored():
    echo = Curve(np.array([19.6 + ECHO_S / 2]), np.array([18900]))
    after = Curve(np.arange(30, 60), np.arange(30, 60) * 1000 - 200)
    assert restore(PRODUCED_CURVE, joined(BEFORE, echo, after), MOMENTS).outage_s == 10.5


def test_a_system_that_never_catches_up_has_no_recovery_and_is_measured_to_the_end():
    found = restore(PRODUCED_CURVE, joined(BEFORE, Curve(np.arange(30.0, 60), 18800 + np.arange(30) * 900)), MOMENTS)
    assert found.recovery_s is None
    assert found.throughput == pytest.approx((18800 + 29 * 900 - 18800) / (59 - 19.5))


def test_a_system_that_never_comes_back_has_no_outage_and_no_throughput():
    found = restore(PRODUCED_CURVE, BEFORE, MOMENTS)
    assert (found.outage_s, found.recovery_s, found.throughput) == (None, None, 0)


def test_a_lag_that_comes_back_for_a_moment_only_is_not_caught_up():
    brief = Curve(np.array([30.0]), np.array([29900]))
    pause = Curve(np.arange(36, 60), np.arange(36, 60) * 1000 - 200)
    assert caught_up_at(PRODUCED_CURVE, joined(BEFORE, brief, pause), Level(1200, 450), 1000, 30.0, 59.0) == 36.0


def test_being_back_for_less_than_the_hold_does_not_count():
    curve = joined(BEFORE, Curve(np.arange(30, 60), np.arange(30, 60) * 1000 - 200))
    assert caught_up_at(PRODUCED_CURVE, curve, Level(1200, 450), 1000, 30.0, 30.0 + HOLD_S - 0.1) is None
    assert caught_up_at(PRODUCED_CURVE, curve, Level(1200, 450), 1000, 30.0, 30.0 + HOLD_S + 0.1) == 30.0


def test_a_lag_within_its_peak_is_not_caught_up_before_a_step_brings_it_to_its_lower_quartile():
    partly = Curve(np.array([20.5]), np.array([19400]))  # 1,100 behind, after the step
    after = Curve(np.arange(21, 60), np.arange(21, 60) * 1000 - 200)
    found = restore(PRODUCED_CURVE, joined(BEFORE, partly, after), MOMENTS)
    assert found.outage_s == 1.0
    assert found.recovery_s == 1.5


def test_the_level_of_a_lag_is_its_peak_and_its_lower_quartile():
    found = lag_level(PRODUCED_CURVE, BEFORE, 10.5, 18.5)
    assert found.peak == 1190
    assert found.low == pytest.approx(200 + 0.25 * 1000, abs=20)
