"""The fetch plan, driven through its states by hand: no sockets, no threads, and a clock that is a number."""

import struct
from uuid import UUID

import pytest

from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import (
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    UnknownTopicError,
)
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.topology import Broker, Leader
from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.read.fetch_plan import FetchedData, FetchFailed, FetchFrom, FetchPlan
from headrace.enumerator.errors import CorruptDataError, DeadlineExceededError, RetriableError

CONFIG = ClientConfig(bootstrap="b:1", default_api_timeout_ms=10_000, retry_backoff_ms=100, retry_backoff_max_ms=1000)
ONE, TWO = Broker(1, "one", 9092), Broker(2, "two", 9092)
ID, OTHER_ID = UUID(int=1), UUID(int=2)
ROOM = 8 << 20


def batches(base: int, count: int) -> memoryview:
    rest = struct.pack(">ibIhi", 3, 2, 0, 0, count - 1)
    return memoryview(struct.pack(">qi", base, len(rest)) + rest)


def answer(records: memoryview | bytes = b"", **given) -> PartitionAnswer:
    fields = dict.fromkeys(PartitionAnswer.__slots__) | {"partition": 0, "error": 0, "records": memoryview(records)}
    return PartitionAnswer(**(fields | given))


def plan_of(*sources: FetchFrom) -> FetchPlan:
    plan = FetchPlan(CONFIG)
    for source in sources:
        plan.add(source)
        assert plan.leader_found(source, Leader(ONE, 5), source.topic_id or ID, 0.0) is None
    return plan


def test_a_partition_is_homeless_until_its_leader_is_found():
    plan, source = FetchPlan(CONFIG), FetchFrom("t", 0, 10)
    plan.add(source)
    assert plan.leaderless(0.0) == [source]
    assert plan.take(ONE, 0.0, ROOM) == []
    plan.leader_found(source, Leader(ONE, 5), ID, 0.0)
    assert plan.leaderless(0.0) == []
    (asked,) = plan.take(ONE, 0.0, ROOM)
    assert (asked.topic, asked.topic_id, asked.index, asked.offset, asked.leader_epoch) == ("t", ID, 0, 10, 5)
    assert plan.take(TWO, 0.0, ROOM) == []


def test_a_partition_in_flight_is_not_asked_for_again():
    plan = plan_of(FetchFrom("t", 0, 10))
    assert len(plan.take(ONE, 0.0, ROOM)) == 1
    assert plan.take(ONE, 0.0, ROOM) == []


def test_data_moves_the_offset_to_after_the_last_batch():
    plan = plan_of(FetchFrom("t", 0, 10))
    (asked,) = plan.take(ONE, 0.0, ROOM)
    data = plan.landed(asked, answer(batches(8, 5), high_watermark=50), None, 0.0)
    assert isinstance(data, FetchedData)
    assert (data.fetch_offset, data.next_offset, data.epochs, data.high_watermark) == (10, 13, ((8, 3),), 50)
    (again,) = plan.take(ONE, 0.0, ROOM)
    assert (again.offset, again.last_epoch) == (13, 3)


def test_a_batch_that_was_cut_off_is_not_handed_out():
    plan = plan_of(FetchFrom("t", 0, 10))
    (asked,) = plan.take(ONE, 0.0, ROOM)
    data = plan.landed(asked, answer(bytes(batches(10, 5)) + bytes(batches(15, 5))[:-1]), None, 0.0)
    assert isinstance(data, FetchedData)
    assert (bytes(data.records), data.next_offset) == (bytes(batches(10, 5)), 15)


def test_the_partition_ends_when_its_stop_is_reached():
    plan = plan_of(FetchFrom("t", 0, 10, stop=13))
    (asked,) = plan.take(ONE, 0.0, ROOM)
    assert isinstance(plan.landed(asked, answer(batches(10, 5)), None, 0.0), FetchedData)
    assert len(plan) == 0


@pytest.mark.parametrize("offset", [13, 14])
def test_a_partition_at_or_past_its_stop_is_not_fetched_at_all(offset):
    plan = FetchPlan(CONFIG)
    plan.add(FetchFrom("t", 0, offset, stop=13))
    assert len(plan) == 0


def test_a_stop_of_zero_ends_at_once():
    plan = FetchPlan(CONFIG)
    plan.add(FetchFrom("t", 0, 0, stop=0))
    assert len(plan) == 0


def test_who_was_served_goes_to_the_end_of_the_line():
    plan = plan_of(*(FetchFrom("t", number, 0) for number in range(3)))
    first, second, third = plan.take(ONE, 0.0, ROOM)
    assert (first.index, second.index, third.index) == (0, 1, 2)
    plan.landed(first, answer(batches(0, 1)), None, 0.0)
    plan.landed(second, answer(), None, 0.0)
    plan.landed(third, answer(), None, 0.0)
    assert [asked.index for asked in plan.take(ONE, 0.0, ROOM)] == [1, 2, 0]


def test_little_is_asked_for_when_little_is_left():
    plan = plan_of(FetchFrom("t", 0, 0, stop=100), FetchFrom("t", 1, 0))
    few, many = plan.take(ONE, 0.0, ROOM)
    assert few.max_bytes < 256 * 1024 < many.max_bytes
    assert not plan.wants_wait([few, many])
    assert plan.wants_wait([many])


@pytest.mark.parametrize("records", [b"", bytes(batches(0, 5))[:-1]])
def test_the_size_is_raised_when_no_whole_batch_fitted_and_reset_after(records):
    plan = plan_of(FetchFrom("t", 0, 0, stop=10))
    (asked,) = plan.take(ONE, 0.0, ROOM)
    assert plan.landed(asked, answer(records, high_watermark=10), None, 0.0) is None
    (again,) = plan.take(ONE, 0.0, ROOM)
    assert (again.offset, again.max_bytes) == (0, asked.max_bytes * 2)
    plan.landed(again, answer(batches(0, 5), high_watermark=10), None, 0.0)
    (after,) = plan.take(ONE, 0.0, ROOM)
    assert after.max_bytes < again.max_bytes


def test_the_size_is_not_raised_when_there_is_nothing():
    plan = plan_of(FetchFrom("t", 0, 10))
    (asked,) = plan.take(ONE, 0.0, ROOM)
    assert plan.landed(asked, answer(high_watermark=10), None, 0.0) is None
    (again,) = plan.take(ONE, 0.0, ROOM)
    assert again.max_bytes == asked.max_bytes


def test_under_read_committed_what_is_not_stable_yet_does_not_raise_the_size():
    plan = plan_of(FetchFrom("t", 0, 10))
    (asked,) = plan.take(ONE, 0.0, ROOM)
    plan.landed(asked, answer(high_watermark=20, last_stable_offset=10, aborted=[]), None, 0.0)
    assert plan.take(ONE, 0.0, ROOM)[0].max_bytes == asked.max_bytes


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    ],
)
def test_a_retriable_error_looks_up_the_leader_again_after_a_backoff(code):
    source = FetchFrom("t", 0, 10)
    plan = plan_of(source)
    (asked,) = plan.take(ONE, 0.0, ROOM)
    assert plan.landed(asked, answer(error=code), None, 1.0) is None
    assert plan.leaderless(1.05) == []
    assert plan.next_due(None) == pytest.approx(1.1)
    assert plan.leaderless(1.1) == [source]
    plan.leader_found(source, Leader(TWO, 6), ID, 1.1)
    (again,) = plan.take(TWO, 1.1, ROOM)
    assert (again.offset, again.leader_epoch) == (10, 6)


def test_errors_without_a_success_between_end_at_the_deadline():
    source = FetchFrom("t", 0, 10)
    plan = plan_of(source)
    now, outcome, tries = 0.0, None, 0
    while outcome is None:
        (asked,) = plan.take(ONE, now, ROOM)
        outcome = plan.landed(asked, answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER), None, now)
        tries += 1
        if outcome is None:
            now = plan.next_due(None)
            plan.leader_found(source, Leader(ONE, 5), ID, now)
    assert isinstance(outcome, FetchFailed)
    assert isinstance(outcome.error, DeadlineExceededError)
    assert "NOT_LEADER_OR_FOLLOWER" in str(outcome.error)
    assert 10.0 <= now <= 11.0
    assert tries < 20
    assert (outcome.topic, outcome.partition, outcome.offset, len(plan)) == ("t", 0, 10, 0)


def test_a_success_starts_the_deadline_anew():
    source = FetchFrom("t", 0, 10)
    plan = plan_of(source)
    for now in (0.0, 9.0, 18.0, 27.0):
        (asked,) = plan.take(ONE, now, ROOM)
        assert plan.landed(asked, answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER), None, now) is None
        plan.leader_found(source, Leader(ONE, 5), ID, now + 1)
        (asked,) = plan.take(ONE, now + 1, ROOM)
        plan.landed(asked, answer(), None, now + 1)


def test_a_lost_connection_keeps_the_offset():
    plan = plan_of(FetchFrom("t", 0, 10), FetchFrom("t", 1, 20))
    asked = plan.take(ONE, 0.0, ROOM)
    assert plan.lost(asked, RetriableError("gone"), 0.0) == []
    assert {source.key for source in plan.leaderless(0.2)} == {("t", 0), ("t", 1)}


def test_an_error_that_does_not_pass_ends_one_partition_and_no_other():
    plan = plan_of(FetchFrom("t", 0, 10), FetchFrom("t", 1, 20))
    first, second = plan.take(ONE, 0.0, ROOM)
    failed = plan.landed(first, answer(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED), None, 0.0)
    assert isinstance(failed, FetchFailed)
    assert isinstance(plan.landed(second, answer(batches(20, 1)), None, 0.0), FetchedData)
    assert [asked.index for asked in plan.take(ONE, 0.0, ROOM)] == [1]


def test_out_of_range_is_a_doubt_and_no_verdict():
    source = FetchFrom("t", 0, 10)
    plan = plan_of(source)
    (asked,) = plan.take(ONE, 0.0, ROOM)
    assert plan.landed(asked, answer(error=ErrorCode.OFFSET_OUT_OF_RANGE), None, 0.0) is None
    assert plan.doubtful() == [(source, 10)]
    assert plan.cleared(source, RetriableError("in range after all"), 0.0) is None
    assert plan.doubtful() == []
    assert plan.leaderless(1.0) == [source]


def test_out_of_range_ends_the_partition_when_proven():
    source = FetchFrom("t", 0, 10)
    plan = plan_of(source)
    (asked,) = plan.take(ONE, 0.0, ROOM)
    plan.landed(asked, answer(error=ErrorCode.OFFSET_OUT_OF_RANGE), None, 0.0)
    failed = plan.cleared(source, OffsetOutOfRangeError("t", 0, 10, 20, 30), 0.0)
    assert isinstance(failed, FetchFailed)
    assert isinstance(failed.error, OffsetOutOfRangeError)


def test_out_of_range_at_a_follower_asks_the_leader_first():
    source = FetchFrom("t", 0, 10)
    plan = plan_of(source)
    (asked,) = plan.take(ONE, 0.0, ROOM)
    plan.landed(asked, answer(preferred_replica=2), TWO, 0.0)
    assert plan.take(ONE, 0.0, ROOM) == []
    (asked,) = plan.take(TWO, 0.0, ROOM)
    plan.landed(asked, answer(error=ErrorCode.OFFSET_OUT_OF_RANGE), None, 0.0)
    assert plan.doubtful() == []
    assert len(plan.take(ONE, 0.0, ROOM)) == 1


RECREATED = TopicRecreatedError("t", str(ID), str(OTHER_ID))
"""What `identity.absence` makes of the answers of all brokers."""


def test_a_topic_with_another_id_is_believed_only_when_it_stays_so():
    source = FetchFrom("t", 0, 10, topic_id=ID)
    plan = FetchPlan(CONFIG)
    plan.add(source)
    assert plan.lookup_failed(source, RECREATED, 0.0) is None
    assert not plan.is_ready(source)
    assert plan.lookup_failed(source, RECREATED, 2.9) is None
    failed = plan.lookup_failed(source, RECREATED, 3.0)
    assert isinstance(failed, FetchFailed)
    assert isinstance(failed.error, TopicRecreatedError)
    assert (failed.error.expected, failed.error.found) == (str(ID), str(OTHER_ID))


def test_a_broker_that_lags_behind_is_forgiven():
    source = FetchFrom("t", 0, 10, topic_id=ID)
    plan = FetchPlan(CONFIG)
    plan.add(source)
    plan.lookup_failed(source, RECREATED, 0.0)
    plan.leader_found(source, Leader(ONE, 0), ID, 1.0)
    (asked,) = plan.take(ONE, 1.2, ROOM)
    plan.landed(asked, answer(error=ErrorCode.UNKNOWN_TOPIC_ID), None, 1.2)
    assert plan.lookup_failed(source, RECREATED, 3.5) is None  # a new doubt, with a new grace


def test_one_broker_that_names_another_id_proves_nothing_however_often():
    source = FetchFrom("t", 0, 10, topic_id=ID)
    plan = FetchPlan(CONFIG)
    plan.add(source)
    for second in range(9):
        assert plan.leader_found(source, Leader(ONE, 0), OTHER_ID, float(second)) is None
        assert not plan.is_ready(source)
    plan.leader_found(source, Leader(ONE, 0), ID, 9.5)
    assert plan.is_ready(source)


def test_a_topic_id_once_learnt_is_held_on_to():
    source = FetchFrom("t", 0, 10)
    plan = plan_of(source)
    (asked,) = plan.take(ONE, 0.0, ROOM)
    plan.landed(asked, answer(error=ErrorCode.UNKNOWN_TOPIC_ID), None, 0.0)
    plan.leader_found(source, Leader(ONE, 0), OTHER_ID, 1.0)
    assert plan.topic_id_of(source) == ID
    assert not plan.is_ready(source)


@pytest.mark.parametrize(("topic_id", "kind"), [(ID, TopicRecreatedError), (None, UnknownTopicError)])
def test_a_topic_that_stays_away_is_gone(topic_id, kind):
    source = FetchFrom("t", 0, 10, topic_id=topic_id)
    plan = FetchPlan(CONFIG)
    plan.add(source)
    missing = UnknownTopicError(frozenset({"t"}))
    assert plan.lookup_failed(source, missing, 0.0) is None
    assert plan.lookup_failed(source, missing, 2.0) is None
    failed = plan.lookup_failed(source, missing, 3.0)
    assert isinstance(failed, FetchFailed)
    assert isinstance(failed.error, kind)


def test_a_truncated_log_is_data_loss():
    plan = plan_of(FetchFrom("t", 0, 10, last_epoch=3))
    (asked,) = plan.take(ONE, 0.0, ROOM)
    assert asked.last_epoch == 3
    failed = plan.landed(asked, answer(diverging=(2, 7)), None, 0.0)
    assert isinstance(failed, FetchFailed)
    assert isinstance(failed.error, LogTruncatedError)
    assert failed.error.diverges_at == 7


def short(plan, now, **given):
    """The broker has nothing at offset 10, although the stop is 20; whether that is a doubt now."""
    (asked,) = plan.take(ONE, now, ROOM)
    assert plan.landed(asked, answer(**{"high_watermark": 10, **given}), None, now) is None
    return plan.doubtful() == [(asked.partition.source, 10)]


def test_a_log_that_ends_before_the_stop_is_a_doubt_after_three_seconds_and_again_after_three():
    source = FetchFrom("t", 0, 10, stop=20)
    plan = plan_of(source)
    assert [short(plan, now) for now in (0.0, 1.5, 2.9, 3.0)] == [False, False, False, True]
    assert plan.cleared(source, RetriableError("in range after all"), 3.0) is None
    plan.leader_found(source, Leader(ONE, 5), ID, 4.0)
    assert [short(plan, now) for now in (4.0, 5.9, 6.0)] == [False, False, True]


def test_a_stop_behind_an_open_transaction_is_no_doubt():
    plan = plan_of(FetchFrom("t", 0, 10, stop=20))
    assert not any(short(plan, float(now), high_watermark=20, last_stable_offset=10, aborted=[]) for now in range(9))


def test_a_new_leader_whose_high_watermark_lags_behind_for_a_moment_is_no_doubt():
    plan = plan_of(FetchFrom("t", 0, 10, stop=20))
    assert [short(plan, 0.0), short(plan, 2.0), short(plan, 2.5, high_watermark=20)] == [False] * 3
    assert [short(plan, 3.0), short(plan, 5.0)] == [False] * 2


def test_without_a_stop_a_log_that_ends_is_no_doubt():
    plan = plan_of(FetchFrom("t", 0, 10))
    assert not any(short(plan, float(now)) for now in range(9))


def test_an_answer_to_a_question_of_before_is_ignored():
    plan = plan_of(FetchFrom("t", 0, 10))
    (asked,) = plan.take(ONE, 0.0, ROOM)
    plan.add(FetchFrom("t", 0, 99))
    assert plan.landed(asked, answer(batches(10, 5)), None, 0.0) is None
    assert plan.lost([asked], CorruptDataError("no"), 0.0) == []
    assert [source.offset for source in plan.leaderless(0.0)] == [99]


def test_what_was_looked_up_for_a_question_of_before_is_ignored():
    old, new = FetchFrom("t", 0, 10), FetchFrom("t", 0, 99)
    plan = FetchPlan(CONFIG)
    plan.add(old)
    plan.add(new)
    assert plan.leader_found(old, Leader(ONE, 0), ID, 0.0) is None
    assert plan.lookup_failed(old, CorruptDataError("no"), 0.0) is None
    assert plan.cleared(old, OffsetOutOfRangeError("t", 0, 10, 20, 30), 0.0) is None
    assert plan.leaderless(0.0) == [new]


def test_an_answer_for_a_removed_partition_is_ignored():
    plan = plan_of(FetchFrom("t", 0, 10))
    (asked,) = plan.take(ONE, 0.0, ROOM)
    plan.remove(("t", 0))
    assert plan.landed(asked, answer(batches(10, 5)), None, 0.0) is None
    assert len(plan) == 0


def test_batches_that_end_before_the_offset_are_corruption_and_no_endless_loop():
    plan = plan_of(FetchFrom("t", 0, 10))
    (asked,) = plan.take(ONE, 0.0, ROOM)
    failed = plan.landed(asked, answer(batches(5, 5)), None, 0.0)
    assert isinstance(failed, FetchFailed)
    assert isinstance(failed.error, CorruptDataError)
    assert "t-0" in str(failed.error)


def test_a_bounded_partition_is_asked_for_about_what_it_holds_as_plans_before_found_it():
    densities: dict[tuple[str, int], float] = {}
    asked_bytes = []
    for _ in range(2):
        plan = FetchPlan(CONFIG, densities)
        source = FetchFrom("t", 0, 10, stop=10_010)
        plan.add(source)
        plan.leader_found(source, Leader(ONE, 5), ID, 0.0)
        (asked,) = plan.take(ONE, 0.0, 64 << 20)
        asked_bytes.append(asked.max_bytes)
        plan.landed(asked, answer(batches(10, 5000)), None, 0.0)
    guessed, known = asked_bytes
    assert guessed > 10_000 * 1000
    assert known < 100_000 < guessed
    assert densities[("t", 0)] < 1
