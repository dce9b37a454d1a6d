"""The fetch plan, driven through its states by hand: no sockets, no threads, and a clock that is a number."""

import struct
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.topology import Broker, Leader
from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.format.record_batch import AFTER_LENGTH
from headrace.connectors.kafka.read.fetch_index import Work
from headrace.connectors.kafka.read.fetch_plan import Asked, FetchedData, FetchFailed, FetchFrom, FetchPlan
from headrace.enumerator.errors import CorruptDataError, DataLossError, DeadlineExceededError, RetriableError
from headrace.errors import LogTruncatedError, OffsetOutOfRangeError, TopicRecreatedError, UnknownTopicError

CONFIG = ClientConfig(bootstrap="b:1", default_api_timeout_ms=10_000, retry_backoff_ms=100, retry_backoff_max_ms=1000)
ONE, TWO = Broker(1, "one", 9092), Broker(2, "two", 9092)
ID, OTHER_ID = UUID(int=1), UUID(int=2)
HEADROOM = 8 << 20


def batches(base: int, count: int, epoch: int = 3) -> memoryview:
    rest = struct.pack(">ibIhi", epoch, 2, 0, 0, count - 1)
    return memoryview(struct.pack(">qi", base, len(rest)) + rest)


def answer(records: memoryview | bytes = b"", **given) -> PartitionAnswer:
    fields = dict.fromkeys(PartitionAnswer.__slots__) | {"partition": 0, "error": 0, "records": memoryview(records)}
    return PartitionAnswer(**(fields | given))


def plan_of(*sources: FetchFrom, config: ClientConfig = CONFIG) -> FetchPlan:
    plan = FetchPlan(config)
    for source in sources:
        plan.add(source)
        assert plan.leader_found(source, Leader(ONE, 5), source.topic_id or ID, 0.0) is None
    return plan


def planned(source: FetchFrom, now: float = 0.0, densities: dict[tuple[str, int], float] | None = None) -> FetchPlan:
    """Its leader is not found yet."""
    plan = FetchPlan(CONFIG, densities)
    plan.add(source, now)
    return plan


def in_flight(config: ClientConfig = CONFIG, **source) -> tuple[FetchPlan, FetchFrom, Asked]:
    """From offset 10, unless the source is given another one."""
    wanted = FetchFrom("t", 0, **{"offset": 10, **source})
    plan = plan_of(wanted, config=config)
    return plan, wanted, *plan.take(ONE, 0.0, HEADROOM)


def failure(outcome: object, kind: type[Exception] = Exception) -> Any:
    assert isinstance(outcome, FetchFailed)
    assert isinstance(outcome.error, kind)
    return outcome.error


def fetched(outcome: object) -> FetchedData:
    assert isinstance(outcome, FetchedData)
    return outcome


def test_a_partition_is_homeless_until_its_leader_is_found():
    plan = planned(source := FetchFrom("t", 0, 10))
    assert (plan.leaderless(0.0), plan.take(ONE, 0.0, HEADROOM)) == ([source], [])
    plan.leader_found(source, Leader(ONE, 5), ID, 0.0)
    assert plan.leaderless(0.0) == []
    (asked,) = plan.take(ONE, 0.0, HEADROOM)
    assert (asked.topic, asked.topic_id, asked.index, asked.offset, asked.leader_epoch) == ("t", ID, 0, 10, 5)
    assert plan.take(TWO, 0.0, HEADROOM) == []


def test_a_partition_in_flight_is_not_asked_for_again():
    plan, _, _ = in_flight()
    assert plan.take(ONE, 0.0, HEADROOM) == []


def test_data_moves_the_offset_to_after_the_last_batch():
    plan, _, asked = in_flight()
    data = fetched(plan.landed(asked, answer(batches(8, 5), high_watermark=50), None, 0.0))
    assert (data.fetch_offset, data.next_offset, data.epochs, data.high_watermark) == (10, 13, ((8, 3),), 50)
    (again,) = plan.take(ONE, 0.0, HEADROOM)
    assert (again.offset, again.last_epoch) == (13, 3)


def test_a_batch_that_was_truncated_is_not_handed_out():
    plan, _, asked = in_flight()
    data = fetched(plan.landed(asked, answer(bytes(batches(10, 5)) + bytes(batches(15, 5))[:-1]), None, 0.0))
    assert (bytes(data.records), data.next_offset) == (bytes(batches(10, 5)), 15)


def test_the_partition_ends_when_its_stop_is_reached():
    plan, _, asked = in_flight(stop=13)
    fetched(plan.landed(asked, answer(batches(10, 5)), None, 0.0))
    assert len(plan) == 0


@pytest.mark.parametrize(("offset", "stop"), [(13, 13), (14, 13), (0, 0)])
def test_a_partition_at_or_past_its_stop_is_not_fetched_at_all(offset, stop):
    assert len(planned(FetchFrom("t", 0, offset, stop=stop))) == 0


def test_who_was_served_goes_to_the_end_of_the_line():
    plan = plan_of(*(FetchFrom("t", number, 0) for number in range(3)))
    asked = plan.take(ONE, 0.0, HEADROOM)
    assert [each.index for each in asked] == [0, 1, 2]
    for each, records in zip(asked, [batches(0, 1), b"", b""], strict=True):
        plan.landed(each, answer(records), None, 0.0)
    assert [asked.index for asked in plan.take(ONE, 0.0, HEADROOM)] == [1, 2, 0]


def test_little_is_asked_for_when_little_is_left():
    plan = plan_of(FetchFrom("t", 0, 0, stop=100), FetchFrom("t", 1, 0))
    few, many = plan.take(ONE, 0.0, HEADROOM)
    assert few.max_bytes < 256 * 1024 < many.max_bytes
    assert not plan.wants_wait([few, many])
    assert plan.wants_wait([many])


@pytest.mark.parametrize("records", [b"", bytes(batches(0, 5))[:-1]])
def test_the_size_is_raised_when_no_whole_batch_fitted_and_reset_after(records):
    plan, _, asked = in_flight(offset=0, stop=10)
    assert plan.landed(asked, answer(records, high_watermark=10), None, 0.0) is None
    (again,) = plan.take(ONE, 0.0, HEADROOM)
    assert (again.offset, again.max_bytes) == (0, asked.max_bytes * 2)
    plan.landed(again, answer(batches(0, 5), high_watermark=10), None, 0.0)
    (after,) = plan.take(ONE, 0.0, HEADROOM)
    assert after.max_bytes < again.max_bytes


@pytest.mark.parametrize("nothing", [
    {"high_watermark": 10}, {"high_watermark": 20, "last_stable_offset": 10, "aborted": []},
], ids=["at the end", "not stable yet under read committed"])  # fmt: skip
def test_the_size_is_not_raised_when_there_is_nothing(nothing):
    plan, _, asked = in_flight()
    assert plan.landed(asked, answer(**nothing), None, 0.0) is None
    assert plan.take(ONE, 0.0, HEADROOM)[0].max_bytes == asked.max_bytes


@pytest.mark.parametrize("code", [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID,
])  # fmt: skip
def test_a_retriable_error_looks_up_the_leader_again_after_a_backoff(code):
    plan, source, asked = in_flight()
    assert plan.landed(asked, answer(error=code), None, 1.0) is None
    assert (plan.leaderless(1.05), plan.next_due(None)) == ([], pytest.approx(1.1))
    assert plan.leaderless(1.1) == [source]
    plan.leader_found(source, Leader(TWO, 6), ID, 1.1)
    (again,) = plan.take(TWO, 1.1, HEADROOM)
    assert (again.offset, again.leader_epoch) == (10, 6)


def test_errors_without_a_success_between_end_at_the_deadline():
    plan, source, asked = in_flight()
    now, tries = 0.0, 1
    while (outcome := plan.landed(asked, answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER), None, now)) is None:
        now = plan.next_due(None)
        plan.leader_found(source, Leader(ONE, 5), ID, now)
        (asked,) = plan.take(ONE, now, HEADROOM)
        tries += 1
    assert "NOT_LEADER_OR_FOLLOWER" in str(failure(outcome, DeadlineExceededError))
    assert 10.0 <= now <= 11.0
    assert tries < 20
    assert (outcome.topic, outcome.partition, outcome.offset, len(plan)) == ("t", 0, 10, 0)


def test_a_success_starts_the_deadline_again():
    plan = plan_of(source := FetchFrom("t", 0, 10))
    for now in (0.0, 9.0, 18.0, 27.0):
        (asked,) = plan.take(ONE, now, HEADROOM)
        assert plan.landed(asked, answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER), None, now) is None
        plan.leader_found(source, Leader(ONE, 5), ID, now + 1)
        plan.landed(*plan.take(ONE, now + 1, HEADROOM), answer(), None, now + 1)


def test_a_lost_connection_keeps_the_offset():
    plan = plan_of(FetchFrom("t", 0, 10), FetchFrom("t", 1, 20))
    assert plan.lost(plan.take(ONE, 0.0, HEADROOM), RetriableError("gone"), 0.0) == []
    assert {source.key for source in plan.leaderless(0.2)} == {("t", 0), ("t", 1)}


def test_an_error_that_does_not_pass_ends_one_partition_and_no_other():
    plan = plan_of(FetchFrom("t", 0, 10), FetchFrom("t", 1, 20))
    first, second = plan.take(ONE, 0.0, HEADROOM)
    failure(plan.landed(first, answer(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED), None, 0.0))
    fetched(plan.landed(second, answer(batches(20, 1)), None, 0.0))
    assert [asked.index for asked in plan.take(ONE, 0.0, HEADROOM)] == [1]


def test_out_of_range_is_a_dispute_and_no_result():
    plan, source, asked = in_flight()
    assert plan.landed(asked, answer(error=ErrorCode.OFFSET_OUT_OF_RANGE), None, 0.0) is None
    assert plan.unresolved() == [(source, 10)]
    assert plan.cleared(source, RetriableError("in range after all"), 0.0) is None
    assert (plan.unresolved(), plan.leaderless(1.0)) == ([], [source])


def test_out_of_range_ends_the_partition_when_proven():
    plan, source, asked = in_flight()
    plan.landed(asked, answer(error=ErrorCode.OFFSET_OUT_OF_RANGE), None, 0.0)
    failure(plan.cleared(source, OffsetOutOfRangeError("t", 0, 10, 20, 30), 0.0), OffsetOutOfRangeError)


def test_out_of_range_at_a_follower_asks_the_leader_first():
    plan, _, asked = in_flight()
    plan.landed(asked, answer(preferred_replica=2), TWO, 0.0)
    assert plan.take(ONE, 0.0, HEADROOM) == []
    plan.landed(*plan.take(TWO, 0.0, HEADROOM), answer(error=ErrorCode.OFFSET_OUT_OF_RANGE), None, 0.0)
    assert (plan.unresolved(), len(plan.take(ONE, 0.0, HEADROOM))) == ([], 1)


RECREATED = TopicRecreatedError("t", str(ID), str(OTHER_ID))
"""What `identity.absence` makes of the answers of all brokers."""


def test_a_topic_with_another_id_is_believed_only_when_it_stays_so():
    plan = planned(source := FetchFrom("t", 0, 10, topic_id=ID))
    assert plan.lookup_failed(source, RECREATED, 0.0) is None
    assert not plan.is_ready(source)
    assert plan.lookup_failed(source, RECREATED, 2.9) is None
    error = failure(plan.lookup_failed(source, RECREATED, 3.0), TopicRecreatedError)
    assert (error.expected, error.found) == (str(ID), str(OTHER_ID))


NOWHERE = TopicRecreatedError("t", str(ID), None)
"""No broker knows the topic."""


def looked_up_at(plan: FetchPlan, until: float, error: Exception) -> dict[float, int]:
    """When partitions are looked up, and how many at once, where that fails so each time."""
    looks: dict[float, int] = {}
    while (now := plan.next_due(None)) is not None and now < until:
        sources = plan.leaderless(now)
        looks[now] = len(sources)
        for source in sources:
            assert plan.lookup_failed(source, error, now) is None
    return looks


def test_what_is_awaited_is_looked_up_more_and_more_rarely_and_all_at_one_time():
    """Topics that were deleted, a loss being allowed: each partition was looked up for ever, several times a second."""
    plan = FetchPlan(CONFIG)
    for number in range(100):
        plan.add(FetchFrom(f"t-{number}", 0, 10, topic_id=ID, awaited=True), 1000.25 + number / 100)
    looks = looked_up_at(plan, 10_000.0, NOWHERE)
    assert next(iter(looks)) == 1001.0
    assert all(count == 100 for at, count in looks.items() if at > 1600.0)
    assert len(looks) < 60


@pytest.mark.parametrize("error", [None, RECREATED], ids=["it comes back", "it was created again"])
def test_one_that_is_awaited_and_comes_back_continues_and_one_that_was_created_again_ends(error):
    plan = planned(source := FetchFrom("t", 0, 10, topic_id=ID, last_epoch=2, awaited=True), 100.0)
    assert looked_up_at(plan, 500.0, NOWHERE)
    now = plan.next_due(None)
    if error is None:
        plan.leader_found(source, Leader(ONE, 5), ID, now)
        (asked,) = plan.take(ONE, now, HEADROOM)
        assert (asked.offset, asked.last_epoch) == (10, 2)
    else:
        assert plan.lookup_failed(source, error, now) is None
        assert failure(plan.lookup_failed(source, error, now + 3.0)) is error


def test_one_that_is_awaited_is_not_said_to_fail_for_long():
    plan, source = FetchPlan(ClientConfig(bootstrap="b:1")), FetchFrom("t", 0, 10, topic_id=ID, awaited=True)
    plan.add(source, 100.0)
    for now in range(101, 120):
        plan.lookup_failed(source, RetriableError("no broker answers"), float(now))
    assert "nothing can be fetched of t-0" in str(plan.outages.news(120.0))
    plan.lookup_failed(source, NOWHERE, 121.0)
    assert "every partition is fetched again" in str(plan.outages.news(121.0))


def test_a_broker_that_lags_behind_is_forgiven():
    plan = planned(source := FetchFrom("t", 0, 10, topic_id=ID))
    plan.lookup_failed(source, RECREATED, 0.0)
    plan.leader_found(source, Leader(ONE, 0), ID, 1.0)
    plan.landed(*plan.take(ONE, 1.2, HEADROOM), answer(error=ErrorCode.UNKNOWN_TOPIC_ID), None, 1.2)
    assert plan.lookup_failed(source, RECREATED, 3.5) is None  # a new dispute, with a new grace


def test_one_broker_that_names_another_id_proves_nothing_however_often():
    plan = planned(source := FetchFrom("t", 0, 10, topic_id=ID))
    for second in range(9):
        assert plan.leader_found(source, Leader(ONE, 0), OTHER_ID, float(second)) is None
        assert not plan.is_ready(source)
    plan.leader_found(source, Leader(ONE, 0), ID, 9.5)
    assert plan.is_ready(source)


def test_a_topic_id_once_learnt_is_held_on_to():
    plan, source, asked = in_flight()
    plan.landed(asked, answer(error=ErrorCode.UNKNOWN_TOPIC_ID), None, 0.0)
    plan.leader_found(source, Leader(ONE, 0), OTHER_ID, 1.0)
    assert (plan.topic_id_of(source), plan.is_ready(source)) == (ID, False)


@pytest.mark.parametrize(("topic_id", "kind"), [(ID, TopicRecreatedError), (None, UnknownTopicError)])
def test_a_topic_that_stays_away_is_gone(topic_id, kind):
    plan = planned(source := FetchFrom("t", 0, 10, topic_id=topic_id))
    missing = UnknownTopicError(frozenset({"t"}))
    assert [plan.lookup_failed(source, missing, now) for now in (0.0, 2.0)] == [None, None]
    failure(plan.lookup_failed(source, missing, 3.0), kind)


def test_a_truncated_log_is_data_loss():
    plan, _, asked = in_flight(last_epoch=3)
    assert asked.last_epoch == 3
    error = failure(plan.landed(asked, answer(diverging=(2, 7)), None, 0.0), LogTruncatedError)
    assert (error.diverges_at, error.epoch) == (7, 2)


@pytest.mark.parametrize("end", [10, 20])
def test_a_log_with_more_of_an_older_epoch_leaves_nothing_out(end):
    """Reading continued at the end of that epoch, which lay above what was read, and what is between was left out."""
    plan, _, asked = in_flight(last_epoch=3)
    error = failure(plan.landed(asked, answer(diverging=(2, end)), None, 0.0), LogTruncatedError)
    assert (error.diverges_at, error.epoch) == (10, 2)
    assert "offset 9, and maybe offsets before it, were read already" in str(error)


def short(plan, now, **given):
    """The broker has nothing at offset 10, although the stop is 20; whether that is a dispute now."""
    (asked,) = plan.take(ONE, now, HEADROOM)
    assert plan.landed(asked, answer(**{"high_watermark": 10, **given}), None, now) is None
    return plan.unresolved() == [(asked.partition.source, 10)]


def test_a_log_that_ends_before_the_stop_is_a_dispute_after_three_seconds_and_again_after_three():
    plan = plan_of(source := FetchFrom("t", 0, 10, stop=20))
    assert [short(plan, now) for now in (0.0, 1.5, 2.9, 3.0)] == [False, False, False, True]
    assert plan.cleared(source, RetriableError("in range after all"), 3.0) is None
    plan.leader_found(source, Leader(ONE, 5), ID, 4.0)
    assert [short(plan, now) for now in (4.0, 5.9, 6.0)] == [False, False, True]


@pytest.mark.parametrize(("stop", "answered"), [
    (20, {"high_watermark": 20, "last_stable_offset": 10, "aborted": []}), (None, {}),
], ids=["a stop behind an open transaction", "no stop"])  # fmt: skip
def test_a_log_that_ends_is_no_dispute_for(stop, answered):
    plan = plan_of(FetchFrom("t", 0, 10, stop=stop))
    assert not any(short(plan, float(now), **answered) for now in range(9))


def test_a_new_leader_whose_high_watermark_lags_behind_for_a_moment_is_no_dispute():
    plan = plan_of(FetchFrom("t", 0, 10, stop=20))
    assert [short(plan, 0.0), short(plan, 2.0), short(plan, 2.5, high_watermark=20)] == [False] * 3
    assert [short(plan, 3.0), short(plan, 5.0)] == [False] * 2


def test_an_answer_to_a_question_of_before_is_ignored():
    plan, _, asked = in_flight()
    plan.add(FetchFrom("t", 0, 99))
    assert plan.landed(asked, answer(batches(10, 5)), None, 0.0) is None
    assert plan.lost([asked], CorruptDataError("no"), 0.0) == []
    assert [source.offset for source in plan.leaderless(0.0)] == [99]


def test_what_was_looked_up_for_a_question_of_before_is_ignored():
    plan = planned(old := FetchFrom("t", 0, 10))
    plan.add(new := FetchFrom("t", 0, 99))
    assert plan.leader_found(old, Leader(ONE, 0), ID, 0.0) is None
    assert plan.lookup_failed(old, CorruptDataError("no"), 0.0) is None
    assert plan.cleared(old, OffsetOutOfRangeError("t", 0, 10, 20, 30), 0.0) is None
    assert plan.leaderless(0.0) == [new]


def test_an_answer_for_a_removed_partition_is_ignored():
    plan, source, asked = in_flight()
    plan.remove(source.key)
    assert (plan.landed(asked, answer(batches(10, 5)), None, 0.0), len(plan)) == (None, 0)


def test_batches_that_end_before_the_offset_are_corruption_and_no_endless_loop():
    plan, _, asked = in_flight()
    assert "t-0" in str(failure(plan.landed(asked, answer(batches(5, 5)), None, 0.0), CorruptDataError))


def test_a_bounded_partition_is_asked_for_about_what_it_holds_as_plans_before_found_it():
    densities: dict[tuple[str, int], float] = {}
    asked_bytes = []
    for _ in range(2):
        plan = planned(source := FetchFrom("t", 0, 10, stop=10_010), densities=densities)
        plan.leader_found(source, Leader(ONE, 5), ID, 0.0)
        (asked,) = plan.take(ONE, 0.0, 64 << 20)
        asked_bytes.append(asked.max_bytes)
        plan.landed(asked, answer(batches(10, 5000)), None, 0.0)
    guessed, known = asked_bytes
    assert guessed > 10_000 * 1000
    assert known < 100_000 < guessed
    assert densities[("t", 0)] < 1


# --- looking leaders up again ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("config", "age_s"), [
    (CONFIG, 300.0),
    (replace(CONFIG, metadata_max_age_ms=7), 0.1),  # no more often than failed requests are repeated
    (replace(CONFIG, metadata_max_age_ms=7, retry_backoff_ms=8), 0.05),
])  # fmt: skip
def test_a_leader_is_looked_up_again_once_it_is_known_for_long(config, age_s):
    plan = plan_of(source := FetchFrom("t", 0, 10), config=config)
    assert (plan.next_due(None), plan.leaderless(age_s)) == (age_s, [source])
    plan.leader_found(source, Leader(ONE, 5), ID, age_s)
    assert (plan.next_due(None), len(plan.take(ONE, age_s, HEADROOM))) == (2 * age_s, 1)


def test_who_is_looked_up_again_in_vain_is_fetched_on():
    plan = plan_of(source := FetchFrom("t", 0, 10))
    for error in (RetriableError("no broker answers"), UnknownTopicError(frozenset({"t"}))):
        assert plan.lookup_failed(source, error, 400.0) is None
        assert (plan.is_ready(source), plan.next_due(None)) == (True, 700.0)
    assert len(plan.take(ONE, 400.0, HEADROOM)) == 1


def test_while_a_partition_is_in_flight_its_answer_shows_what_is_wrong():
    plan, source, asked = in_flight(topic_id=ID)
    for now in (1.0, 5.0):
        assert (plan.lookup_failed(source, RECREATED, now), plan.next_due(None)) == (None, now + 300.0)
    assert plan.is_ready(source)
    assert (plan.leader_found(source, Leader(ONE, 5), OTHER_ID, 6.0), plan.is_ready(source)) == (None, True)
    fetched(plan.landed(asked, answer(batches(10, 5)), None, 6.0))


def test_a_partition_in_flight_continues_at_the_leader_that_was_found_meanwhile():
    plan, source, asked = in_flight()
    assert plan.leader_found(source, Leader(TWO, 6), ID, 1.0) is None
    assert (plan.take(TWO, 1.0, HEADROOM), plan.next_due(None)) == ([], 301.0)
    plan.landed(asked, answer(batches(10, 5)), None, 1.0)
    assert plan.take(ONE, 1.0, HEADROOM) == []
    assert [again.leader_epoch for again in plan.take(TWO, 1.0, HEADROOM)] == [6]


def test_a_leader_that_has_moved_takes_over_from_the_follower_and_one_that_has_not_does_not():
    plan, source, asked = in_flight()
    plan.landed(asked, answer(preferred_replica=2), TWO, 0.0)
    plan.leader_found(source, Leader(ONE, 5), ID, 1.0)
    assert plan.replicas() == {TWO}
    plan.leader_found(source, Leader(three := Broker(3, "three", 9092), 6), ID, 2.0)
    assert (plan.replicas(), plan.fetches_from(three), plan.fetches_from(TWO)) == ({three}, True, False)


def test_a_dispute_stays_one_though_the_leader_is_found_again():
    plan, source, asked = in_flight()
    plan.landed(asked, answer(error=ErrorCode.OFFSET_OUT_OF_RANGE), None, 0.0)
    assert plan.next_due(None) is None, "no process looks its leader up meanwhile"
    plan.leader_found(source, Leader(ONE, 5), ID, 1.0)
    assert (plan.unresolved(), plan.take(ONE, 1.0, HEADROOM)) == ([(source, 10)], [])


def test_a_ready_partition_of_a_topic_that_was_recreated_is_fetched_no_more():
    plan = plan_of(source := FetchFrom("t", 0, 10, topic_id=ID))
    assert (plan.lookup_failed(source, RECREATED, 300.0), plan.is_ready(source)) == (None, False)
    failure(plan.lookup_failed(source, RECREATED, 303.0), TopicRecreatedError)


@pytest.mark.parametrize(("missing", "expected"), [
    ("t", TopicRecreatedError("t", str(ID), None)), ("u", UnknownTopicError(frozenset({"u"}))),
])  # fmt: skip
def test_a_topic_that_is_gone_is_reported_by_its_id_where_the_error_is_about_it(missing, expected):
    plan = planned(source := FetchFrom("t", 0, 10, topic_id=ID))
    plan.lookup_failed(source, UnknownTopicError(frozenset({missing})), 0.0)
    error = failure(plan.lookup_failed(source, UnknownTopicError(frozenset({missing})), 3.0), type(expected))
    assert str(error) == str(expected)


def test_the_time_that_a_topic_is_unknown_starts_over_after_any_other_answer():
    missing = UnknownTopicError(frozenset({"t"}))
    plan = planned(source := FetchFrom("t", 0, 10))
    plan.lookup_failed(source, missing, 0.0)
    plan.lookup_failed(source, RetriableError("no process could be asked"), 2.0)
    assert [plan.lookup_failed(source, missing, now) for now in (4.0, 6.9)] == [None, None]
    failure(plan.lookup_failed(source, missing, 7.0), UnknownTopicError)


def test_one_broker_with_another_id_is_said_when_time_is_over():
    plan = planned(source := FetchFrom("t", 0, 10, topic_id=ID))
    plan.leader_found(source, Leader(ONE, 0), OTHER_ID, 0.0)
    error = failure(plan.leader_found(source, Leader(ONE, 0), OTHER_ID, 10.0))
    assert "the topic 't' has another id at one broker" in str(error)


def test_what_is_removed_is_unknown():
    plan = plan_of(source := FetchFrom("t", 0, 10, topic_id=ID))
    assert plan.changed() == {ONE, Work.LOOKUPS}
    for _ in range(2):
        plan.remove(source.key)
    assert plan.changed() == {ONE}
    assert (plan.is_ready(source), plan.topic_id_of(source), plan.replicas(), plan.next_due(None)) == (False, ID, set(), None)
    assert (plan.next_due(ONE), plan.take(ONE, 0.0, HEADROOM)) == (None, [])


# --- requests -------------------------------------------------------------------------------------------------------------
def test_the_space_of_a_request_is_shared_and_no_share_is_below_a_mebibyte():
    for count, share in [(2, 4 << 20), (3, (8 << 20) // 3), (8, 1 << 20), (16, 1 << 20)]:
        plan = plan_of(*(FetchFrom("t", number, 0) for number in range(count)))
        assert [asked.max_bytes for asked in plan.take(ONE, 0.0, HEADROOM)] == [share] * count


def test_a_limit_that_the_user_sets_goes_before_the_share():
    plan = plan_of(FetchFrom("t", 0, 0), config=replace(CONFIG, max_partition_fetch_bytes=77_000))
    assert plan.take(ONE, 0.0, HEADROOM)[0].max_bytes == 77_000


def test_what_is_asked_for_up_to_a_stop_is_what_is_guessed_and_a_little_more():
    plan = plan_of(FetchFrom("t", 0, 10, stop=110))
    assert plan.take(ONE, 0.0, HEADROOM)[0].max_bytes == 100 * 1024 * 5 // 4 + 65_536


def test_the_size_is_doubled_up_to_the_largest_fetch_and_never_lowered():
    for headroom, sizes in [(20 << 20, [20 << 20, 40 << 20, 52_428_800, 52_428_800]), (64 << 20, [64 << 20] * 2)]:
        plan = plan_of(FetchFrom("t", 0, 0))
        for size in sizes:
            (asked,) = plan.take(ONE, 0.0, headroom)
            assert asked.max_bytes == size
            plan.landed(asked, answer(high_watermark=10), None, 0.0)


def test_a_failure_is_waited_for_though_the_leader_is_known_again():
    plan = plan_of(source := FetchFrom("t", 0, 10))
    plan.lost(plan.take(ONE, 1.0, HEADROOM), RetriableError("gone"), 1.0)
    plan.leader_found(source, Leader(ONE, 5), ID, 1.0)
    assert (plan.next_due(ONE), plan.take(ONE, 1.09, HEADROOM)) == (pytest.approx(1.1), [])
    assert len(plan.take(ONE, 1.1, HEADROOM)) == 1


@pytest.mark.parametrize(("config", "waits"), [
    (CONFIG, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]), (replace(CONFIG, retry_backoff_ms=300, retry_backoff_max_ms=200), [0.3, 0.3])
])  # fmt: skip
def test_each_failure_in_a_row_waits_twice_as_long_up_to_a_limit_and_a_success_starts_over(config, waits):
    plan = plan_of(source := FetchFrom("t", 0, 10), config=config)
    for wait in (*waits, None, *waits[:2]):
        (asked,) = plan.take(ONE, 1.0, HEADROOM)
        if wait is None:
            plan.landed(asked, answer(), None, 1.0)
            continue
        plan.landed(asked, answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER), None, 0.0)
        assert plan.next_due(None) == pytest.approx(wait)
        plan.leader_found(source, Leader(ONE, 5), ID, 0.0)


def test_what_a_quota_refused_is_asked_for_again_and_what_was_removed_is_not():
    plan = plan_of(FetchFrom("t", 0, 10), FetchFrom("t", 1, 20))
    asked = plan.take(ONE, 0.0, HEADROOM)
    plan.add(FetchFrom("t", 0, 10))
    plan.changed()
    plan.put_back(asked)
    assert plan.changed() == {ONE}
    assert [again.offset for again in plan.take(ONE, 0.0, HEADROOM)] == [20]


# --- answers --------------------------------------------------------------------------------------------------------------
def test_all_that_an_answer_says_is_handed_on():
    plan, _, asked = in_flight()
    said = {"high_watermark": 50, "last_stable_offset": 40, "log_start_offset": 5, "aborted": [(7, 11)]}
    data = fetched(plan.landed(asked, answer(batches(10, 5), **said), None, 0.0))
    assert (data.topic, data.partition, bytes(data.records)) == ("t", 0, bytes(batches(10, 5)))
    assert {name: getattr(data, name) for name in said} == said


def test_the_epoch_before_an_offset_is_that_of_the_last_batch_that_starts_before_it():
    plan, _, asked = in_flight()
    data = fetched(plan.landed(asked, answer(bytes(batches(8, 5)) + bytes(batches(13, 2, epoch=4))), None, 0.0))
    assert [data.epoch_before(offset) for offset in (8, 9, 13, 14, 15)] == [None, 3, 3, 4, 4]


def test_data_that_says_nothing_of_its_epoch_leaves_the_one_that_is_known():
    """Message format 1 has none."""
    plan, _, asked = in_flight(last_epoch=3)
    rest = struct.pack(">IbbqII", 0, 1, 0, 0, 0, 0)
    plan.landed(asked, answer(struct.pack(">qi", 10, len(rest)) + rest), None, 0.0)
    (again,) = plan.take(ONE, 0.0, HEADROOM)
    assert (again.offset, again.last_epoch) == (11, 3)


def test_the_density_that_was_found_is_that_of_whole_batches_over_what_was_wanted():
    densities: dict[tuple[str, int], float] = {}
    plan = planned(source := FetchFrom("t", 0, 10), densities=densities)
    plan.leader_found(source, Leader(ONE, 5), ID, 0.0)
    part = bytes(batches(5, 15)) + bytes(batches(20, 5))[:-1]
    plan.landed(*plan.take(ONE, 0.0, HEADROOM), answer(part), None, 0.0)
    assert densities == {("t", 0): len(batches(5, 15)) / 10}


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH])
@pytest.mark.parametrize("known", [5, None])
def test_a_later_leader_that_an_answer_names_is_asked_at_once(error, known):
    plan = planned(source := FetchFrom("t", 0, 10))
    plan.leader_found(source, Leader(ONE, known), ID, 0.0)
    (asked,) = plan.take(ONE, 0.0, HEADROOM)
    assert plan.landed(asked, answer(error=error), None, 1.0, hint=Leader(TWO, 6)) is None
    assert plan.next_due(None) == 301.0
    assert [(again.offset, again.leader_epoch) for again in plan.take(TWO, 1.0, HEADROOM)] == [(10, 6)]


@pytest.mark.parametrize(("error", "hint"), [
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, Leader(TWO, 5)), (ErrorCode.NOT_LEADER_OR_FOLLOWER, Leader(TWO, None)),
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, None), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Leader(TWO, 6)),
])  # fmt: skip
def test_no_other_leader_that_an_answer_names_is_believed(error, hint):
    plan, source, asked = in_flight()
    assert plan.landed(asked, answer(error=error), None, 1.0, hint=hint) is None
    assert (plan.take(TWO, 1.0, HEADROOM), plan.leaderless(1.1)) == ([], [source])


def test_a_follower_gives_way_to_the_leader_after_the_age_of_metadata():
    plan = plan_of(FetchFrom("t", 0, 10))
    (asked,) = plan.take(ONE, 1.0, HEADROOM)
    assert asked.may_be_nearby
    plan.landed(asked, answer(preferred_replica=2), TWO, 1.0)
    for now, broker in [(300.9, TWO), (301.0, ONE)]:
        (asked,) = plan.take(TWO, now, HEADROOM)
        plan.landed(asked, answer(batches(asked.offset, 1)), None, now)
        assert plan.replicas() == {broker}


def is_asked_for_followers_from(plan, then):
    """A second after it was not: the leader must serve us meanwhile."""
    for now, may_be_nearby in [(then - 0.1, False), (then, True)]:
        (asked,) = plan.take(ONE, now, HEADROOM)
        assert asked.may_be_nearby is may_be_nearby
        plan.landed(asked, answer(), None, now)


def test_a_leader_that_names_an_unknown_follower_is_looked_up_and_must_serve_us_meanwhile():
    plan = plan_of(source := FetchFrom("t", 0, 10))
    (asked,) = plan.take(ONE, 2.0, HEADROOM)
    assert plan.landed(asked, answer(preferred_replica=9), None, 2.0) is None
    assert plan.leaderless(2.0) == [source]
    plan.leader_found(source, Leader(ONE, 5), ID, 2.0)
    is_asked_for_followers_from(plan, 3.0)


def test_a_follower_that_lags_is_not_gone_back_to_at_once():
    plan, _, asked = in_flight()
    plan.landed(asked, answer(preferred_replica=2), TWO, 0.0)
    plan.landed(*plan.take(TWO, 4.0, HEADROOM), answer(error=ErrorCode.OFFSET_OUT_OF_RANGE), None, 4.0)
    is_asked_for_followers_from(plan, 5.0)


@pytest.mark.parametrize(("given", "said"), [
    (answer(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED), "the broker answered TOPIC_AUTHORIZATION_FAILED (29)"),
    (answer(batches(5, 5)), "the broker answered with batches that end before, at 10"),
    (answer(b"\0" * 30), "a record batch claims a length of 0 bytes"),
])  # fmt: skip
def test_what_was_asked_of_whom_is_said_of_an_error(given, said):
    plan, _, asked = in_flight()
    error = failure(plan.landed(asked, given, None, 0.0))
    assert str(error).startswith("fetching t-0 at offset 10 from broker 1 (one:9092): " + said)


def test_where_a_log_diverges_is_said():
    plan = plan_of(FetchFrom("t", 3, 10, last_epoch=3))
    outcome = plan.landed(*plan.take(ONE, 0.0, HEADROOM), answer(diverging=(2, 7)), None, 0.0)
    assert str(failure(outcome, LogTruncatedError)) == str(LogTruncatedError("t", 3, 10, 7))


def test_a_deadline_says_how_long_how_often_and_what_was_last():
    plan, error = plan_of(source := FetchFrom("t", 0, 10)), RetriableError("gone")
    for now in (0.0, 3.0, 9.999):
        assert plan.lost(plan.take(ONE, 20.0, HEADROOM), error, now) == []
        plan.leader_found(source, Leader(ONE, 5), ID, now)
    (failed,) = plan.lost(plan.take(ONE, 20.0, HEADROOM), error, 10.0)
    assert str(failed.error) == "t-0: no successful fetch for 10 s (3 tries); the last error was: gone"
    assert failed.error.__cause__ is error


def test_without_a_deadline_a_retriable_error_never_ends_a_partition():
    plan = plan_of(source := FetchFrom("t", 0, 10), config=replace(CONFIG, default_api_timeout_ms=None))
    for now in range(0, 10**6, 10**5):
        assert plan.lost(plan.take(ONE, 1e9, HEADROOM), RetriableError("gone"), float(now)) == []
        plan.leader_found(source, Leader(ONE, 5), ID, float(now))


def test_a_request_that_cannot_be_repeated_ends_each_of_its_partitions_that_is_still_wanted():
    plan = plan_of(*(FetchFrom("t", number, 10) for number in range(3)))
    asked = plan.take(ONE, 0.0, HEADROOM)
    plan.remove(("t", 0))
    failed = plan.lost(asked, CorruptDataError("no"), 0.0)
    assert [(outcome.partition, str(outcome.error)) for outcome in failed] == [(1, "no"), (2, "no")]
    assert len(plan) == 0


def test_data_ends_the_time_in_which_the_log_is_said_to_end_early():
    plan = plan_of(FetchFrom("t", 0, 10, stop=20))
    assert not short(plan, 0.0)
    plan.landed(*plan.take(ONE, 1.0, HEADROOM), answer(batches(10, 1), high_watermark=11), None, 1.0)
    for now in (2.0, 4.9):
        plan.landed(*plan.take(ONE, now, HEADROOM), answer(high_watermark=11), None, now)
        assert plan.unresolved() == []


@pytest.mark.parametrize("end", [
    lambda plan, source: plan.landed(*plan.take(ONE, 9.0, HEADROOM), answer(), None, 9.0),
    lambda plan, source: plan.remove(source.key),
], ids=["by data", "by removal"])  # fmt: skip
def test_what_fails_for_long_is_news_until_it_is_over_however_it_ends(end):
    plan = plan_of(source := FetchFrom("t", 0, 10))
    plan.lost(plan.take(ONE, 2.0, HEADROOM), RetriableError("gone"), 2.0)
    plan.leader_found(source, Leader(ONE, 5), ID, 3.0)
    assert plan.outages.news(11.9) is None
    assert plan.outages.news(12.0) == "nothing can be fetched of t-0 for 10 s; trying on. The last error was: gone"
    end(plan, source)
    assert plan.outages.news(13.0) == "every partition is fetched again, after 11 s"


def rewritten(data: bytes, **source) -> object:
    plan, _, asked = in_flight(**source)
    return plan.landed(asked, answer(data), None, 0.0)


@pytest.mark.parametrize(("base", "first"), [(8, 10), (10, 10), (12, 12), (19, 19)])
def test_what_was_written_before_the_stop_after_the_read_was_planned_is_data_loss(base, first):
    error = failure(rewritten(bytes(batches(base, 5, epoch=4)), stop=20, stop_epoch=3), DataLossError)
    assert str(error) == (
        f"t-0: this read was planned up to offset 20, and what is at offset {first} now was written later: the log was "
        "truncated meanwhile, and what was planned from there on is gone"
    )


@pytest.mark.parametrize(("base", "source"), [
    (10, {"stop": 20, "stop_epoch": 4}), (20, {"stop": 20, "stop_epoch": 3}), (10, {"stop": 20}), (10, {"stop_epoch": 3})
])  # fmt: skip
def test_no_other_epoch_is_a_loss(base, source):
    fetched(rewritten(bytes(batches(base, 5, epoch=4)), **source))


def test_what_lies_before_that_is_handed_out_first():
    plan, _, asked = in_flight(stop=20, stop_epoch=3)
    data = fetched(plan.landed(asked, answer(bytes(batches(10, 5)) + bytes(batches(15, 5, epoch=4))), None, 0.0))
    assert (data.next_offset, bytes(data.records)) == (15, bytes(batches(10, 5)))
    failure(plan.landed(*plan.take(ONE, 0.0, HEADROOM), answer(batches(15, 5, epoch=4)), None, 0.0))


def asked_until(plan, reply, seconds):
    """What came of asking for so long, every 10 ms at most, and how often."""
    now, asks = 0.0, 0
    while now < seconds:
        for asked in plan.take(ONE, now, HEADROOM):
            asks += 1
            outcome = plan.landed(asked, reply, None, now)
            if outcome is not None:
                return outcome, asks, now
        now += 0.01
    return None, asks, now


def test_a_batch_that_never_comes_whole_is_corrupt_data():
    """It was asked for as fast as brokers answer, for ever."""
    plan = plan_of(FetchFrom("t", 0, 10))
    outcome, asks, now = asked_until(plan, answer(batches(10, 5)[:-1], high_watermark=50), 20.0)
    said = str(failure(outcome, CorruptDataError))
    assert f"a batch of {len(batches(10, 5))} bytes that never comes whole" in said
    assert 3.0 <= now < 4.0
    assert asks < 60


def test_a_batch_of_which_only_the_length_comes_is_corrupt_data_after_three_seconds():
    plan = plan_of(FetchFrom("t", 0, 10))
    length_alone = answer(batches(10, 5)[:AFTER_LENGTH], high_watermark=50)
    times = (0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.5, 3.0)
    *before, last = (plan.landed(*plan.take(ONE, now, HEADROOM), length_alone, None, now) for now in times)
    assert before == [None] * 7
    assert f"a batch of {len(batches(10, 5))} bytes that never comes whole" in str(failure(last, CorruptDataError))


def test_a_log_that_continues_and_brings_nothing_is_asked_again_ever_later_and_reported_of():
    plan = plan_of(FetchFrom("t", 0, 10))
    outcome, asks, now = asked_until(plan, answer(high_watermark=50), 60.0)
    assert outcome is None
    assert asks < 120
    news = plan.outages.news(now) or ""
    assert "nothing can be fetched of t-0" in news
    assert "brings no whole batch from offset 10 on" in news
    later = now + 1.0
    fetched(plan.landed(*plan.take(ONE, later, HEADROOM), answer(batches(10, 5), high_watermark=50), None, later))
    assert "fetched again" in (plan.outages.news(later) or "")
    plan.landed(*plan.take(ONE, later, HEADROOM), answer(high_watermark=50), None, later)
    assert len(plan.take(ONE, later, HEADROOM)) == 1  # again: at once


def test_a_partition_that_others_leave_no_space_for_waits_an_eighth_longer_at_most():
    plan = plan_of(FetchFrom("t", 0, 10))
    for now in (0.0, 0.4):
        plan.landed(*plan.take(ONE, now, HEADROOM), answer(high_watermark=50), None, now)
    assert (plan.take(ONE, 0.449, HEADROOM), len(plan.take(ONE, 0.451, HEADROOM))) == ([], 1)
