"""Regression tests of the Kafka source, on a fake broker: faults that once ended a job, lost records or read them twice."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

from headrace.connectors.kafka.client import retries
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import ConnectionLostError, TopicRecreatedError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.topology import Broker
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.protocol import MetadataRequest
from headrace.connectors.kafka.client.wire.throttles import Throttles
from headrace.connectors.kafka.read import fetch_plan, fetcher
from headrace.connectors.kafka.read import reader as reader_module
from headrace.connectors.kafka.read.discovery import java_pattern
from headrace.enumerator.errors import CorruptDataError, DeadlineExceededError, OutageError, UsageError
from headrace.kafka import Earliest, KafkaSource, Latest, Timestamp
from headrace.runners.spark.log_read import LogRead
from headrace.runners.spark.stream import StreamPlanner
from headrace.spark.kafka_offsets import KafkaOffsets
from headrace.testing.fake_kafka import Before, Delay, ErrorCode, FakeKafka, NewRecord, Refuse, Rewrite, Throttle

DEADLINE_S = 30.0
NEAR = {"client.rack": "near", "metadata.max.age.ms": "300"}
WITHOUT_PARTITIONS = Rewrite(lambda response: setattr(response, "responses", []))


@pytest.fixture
def kafka():
    with FakeKafka(brokers=3) as cluster:
        cluster.create_topic("t")
        yield cluster


def source_of(kafka: FakeKafka, **fields) -> KafkaSource:
    return KafkaSource(kafka.bootstrap, **({"topics": ["t"], "start": Earliest(), "stop": Latest()} | fields))


def read_all(source: KafkaSource, checkpoint: bytes | None = None) -> list[bytes]:
    values: list[bytes] = []
    with source.batches(checkpoint) as batches:
        for batch in batches:
            values += batch.column("value").to_pylist()
    return values


# --- quotas -----------------------------------------------------------------------------------------------------------------
def test_a_fetch_quota_empties_the_answer_and_the_reader_waits_as_reported_and_continues(kafka):
    for number in range(10):
        kafka.append("t", b"%d" % number)
    kafka.fault("Fetch", WITHOUT_PARTITIONS, times=2)
    throttle = kafka.fault("Fetch", Throttle(300), times=2)
    started = time.monotonic()
    assert (read_all(source_of(kafka)), throttle.fired) == ([b"%d" % number for number in range(10)], 2)
    assert time.monotonic() - started >= 0.6


def test_a_partition_left_out_of_an_answer_is_asked_for_again(kafka):
    kafka.append("t", b"x")
    kafka.fault("Fetch", WITHOUT_PARTITIONS)
    assert read_all(source_of(kafka)) == [b"x"]


def test_a_throttle_longer_than_the_request_timeout_costs_no_connection_and_is_counted(kafka):
    throttles, config = Throttles(), ClientConfig(bootstrap=kafka.bootstrap, request_timeout_ms=150)
    kafka.fault("Metadata", Throttle(400))
    with closing(Connection(*address_of(kafka, 1), config, throttles)) as connection:
        for _ in range(2):
            assert connection.request(MetadataRequest(topics=[], allow_auto_topic_creation=False)).brokers
    assert throttles.milliseconds == {kafka.address(1): 400}


def test_closing_wakes_the_process_that_waits_out_a_throttle(kafka):
    kafka.append("t", b"x")
    kafka.fault("Fetch", WITHOUT_PARTITIONS)
    throttle = kafka.fault("Fetch", Throttle(60_000))
    batches = source_of(kafka).batches()
    while not throttle.fired:
        batches._run.poll(0.01)
    started = time.monotonic()
    batches.close()
    assert time.monotonic() - started < DEADLINE_S


# --- leader epochs ----------------------------------------------------------------------------------------------------------
def test_a_leader_changes_inside_one_answer_and_a_checkpoint_between_two_of_its_batches_has_the_epoch_of_its_position(kafka):
    kafka.append("t", b"first")
    source = source_of(kafka, stop=None)
    batches = source.batches()
    seen = next(batches).column("value").to_pylist()
    kafka.hold_high_watermark("t")
    for number in range(3):
        kafka.append("t", *(bytes([number]) * 1_000_000 for _ in range(2)))  # so much that an answer makes several batches
        kafka.move_leader("t", to=kafka.leader("t")[0] % 3 + 1)
    kafka.release_high_watermark("t")
    expected = [b"first", *(bytes([number]) * 1_000_000 for number in range(3) for _ in range(2))]
    middles = 0
    while len(seen) < len(expected):
        seen += next(batches).column("value").to_pylist()
        middles += len(seen) < len(expected)
        with source.batches(batches.checkpoint()) as restored:
            again = list(seen)
            while len(again) < len(expected):
                again += next(restored).column("value").to_pylist()
        assert again == expected
        batches._run.checkpoint_aborted()
    assert middles > 1
    batches.close()


# --- followers and old leaders ----------------------------------------------------------------------------------------------
def _partition_of(response):
    return response.responses[0].partitions[0]


def _sends_to(broker: int):
    def change(response) -> None:
        _partition_of(response).preferred_read_replica = broker
        _partition_of(response).records = b""

    return change


def _in_a_rack(request) -> bool:
    return request.rack_id == "near"


def test_the_leader_names_a_follower_that_no_metadata_has_and_the_leader_is_read_meanwhile(kafka):
    kafka.append("t", b"x")
    redirect = kafka.fault("Fetch", Rewrite(_sends_to(99)), when=_in_a_rack, times=None)
    assert read_all(source_of(kafka, properties=NEAR)) == [b"x"]
    assert 1 <= redirect.fired < 10
    redirect.stop()


def test_a_follower_that_gives_nothing_any_more_is_left_for_the_leader_when_the_metadata_is_old(kafka):
    kafka.append("t", b"x")
    leader = kafka.leader("t")[0]
    follower = leader % 3 + 1
    kafka.fault("Fetch", Rewrite(_sends_to(follower)), broker=leader, when=_in_a_rack)
    nothing = Rewrite(lambda response: setattr(_partition_of(response), "records", b""))
    silent = kafka.fault("Fetch", nothing, broker=follower, times=None)
    assert read_all(source_of(kafka, properties=NEAR)) == [b"x"]
    assert silent.fired


def test_a_leader_that_is_truncated_and_knows_of_no_other_is_left_when_the_metadata_is_old(kafka):
    with reading(kafka, properties={"metadata.max.age.ms": "300"}) as run:
        kafka.isolate_broker(kafka.leader("t")[0])
        kafka.append("t", b"y")
        assert poll_until(run, bool) == [b"y"]


# --- error codes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("api", ["Fetch", "ListOffsets"])
def test_a_broker_answers_unknown_server_error_and_is_asked_again(kafka, api):
    kafka.append("t", b"x")
    kafka.fault(api, Refuse(ErrorCode.UNKNOWN_SERVER_ERROR, topic="t"), times=3)
    assert read_all(source_of(kafka)) == [b"x"]


# --- outages ----------------------------------------------------------------------------------------------------------------
def _fast_clock(times: float) -> SimpleNamespace:
    """`time.monotonic`, this many times as fast, for the retry policy alone: waits stay as they are."""
    started = time.monotonic()
    return SimpleNamespace(monotonic=lambda: started + (time.monotonic() - started) * times)


def stop_all(kafka: FakeKafka) -> None:
    for broker in kafka.brokers:
        kafka.stop_broker(broker)


def start_all(kafka: FakeKafka) -> None:
    for broker in kafka.brokers:
        kafka.start_broker(broker)


def poll_until(run, condition) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while not condition(values):
        assert time.monotonic() < deadline
        batch = run.poll(0.05)
        values += [] if batch is None else batch.records.column("value").to_pylist()
    return values


@contextmanager
def reading(kafka: FakeKafka, **fields):
    """A run that has read the record `before`."""
    kafka.append("t", b"before")
    with closing(source_of(kafka, **({"stop": None} | fields)).batches()._run) as run:
        assert poll_until(run, bool) == [b"before"]
        yield run


def address_of(kafka: FakeKafka, broker: int) -> tuple[str, int]:
    host, _, port = kafka.address(broker).rpartition(":")
    return host, int(port)


def test_every_broker_is_away_for_longer_than_a_minute_and_the_reader_continues(kafka, monkeypatch, caplog):
    monkeypatch.setattr(fetcher, "time", _fast_clock(100))
    with reading(kafka) as run:
        started_at = time.monotonic()
        stop_all(kafka)
        assert poll_until(run, lambda _: time.monotonic() - started_at > 1.0) == []  # 100 s of the fetcher's clock
        start_all(kafka)
        kafka.append("t", b"after")
        assert poll_until(run, bool) == [b"after"]
    away, back = (record.message for record in caplog.records if "fetched" in record.message)
    assert "nothing can be fetched of t-0" in away
    assert "every partition is fetched again" in back


def test_an_outage_that_comes_as_an_error_code_of_the_partition_is_said_too(kafka, monkeypatch, caplog):
    monkeypatch.setattr(fetcher, "time", _fast_clock(100))
    with closing(source_of(kafka, stop=None).batches()._run) as run:
        refused = kafka.fault("Fetch", Refuse(ErrorCode.KAFKA_STORAGE_ERROR, topic="t"), times=1000)
        poll_until(run, lambda _: "nothing can be fetched of t-0" in caplog.text)
        assert refused.fired > 1
        assert "KAFKA_STORAGE_ERROR" in caplog.text


def test_the_limit_of_an_outage_is_the_one_that_was_set(kafka):
    with reading(kafka, properties={"default.api.timeout.ms": "300"}) as run:
        stop_all(kafka)
        with pytest.raises(DeadlineExceededError, match="t-0"):
            poll_until(run, lambda _: False)


def test_discovery_is_due_while_every_broker_is_away_and_the_run_continues(kafka, monkeypatch, caplog):
    monkeypatch.setattr(retries, "_LONGEST_CALL_S", 0.3)
    with reading(kafka, discovery_interval_s=0.05) as run:
        stop_all(kafka)
        poll_until(run, lambda _: "will be tried again" in caplog.text)
        poll_until(run, lambda _: run._due_at is not None)
        start_all(kafka)
        kafka.append("t", b"after")
        assert poll_until(run, bool) == [b"after"]
        poll_until(run, lambda _: "works again" in caplog.text)
        assert caplog.text.count("will be tried again") == 1


def test_every_broker_is_away_while_a_batch_is_planned_and_the_query_finds_nothing_new_until_they_are_back(
    kafka, monkeypatch, caplog
):
    monkeypatch.setattr(retries, "_LONGEST_CALL_S", 0.3)
    kafka.append("t", b"before")
    source = source_of(kafka, stop=None)
    planner = StreamPlanner(LogRead(source=source, offsets=KafkaOffsets(source), columns=("value",)), time.monotonic)
    end = planner.next_offsets(planner.initial_offsets(), None, None)
    stop_all(kafka)
    assert [planner.next_offsets(end, None, None) for _ in range(2)] == [end, end]
    start_all(kafka)
    kafka.append("t", b"after")
    assert planner.next_offsets(end, None, None) != end
    assert caplog.text.count("finds nothing new until this is over") == 1
    assert caplog.text.count("the source answers again") == 1
    planner.pin_end()
    stop_all(kafka)
    with pytest.raises(OutageError):  # AvailableNow
        planner.next_offsets(end, None, None)


def test_a_checkpoint_is_durable_while_the_coordinator_is_away_and_its_completion_is_no_error(kafka, caplog):
    kafka.append("t", b"x")
    batches = source_of(kafka, stop=None, group="g", properties={"default.api.timeout.ms": "300"}).batches()
    next(batches)
    first = batches.checkpoint()
    away = kafka.fault("FindCoordinator", Refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE), times=None)
    batches.checkpoint_completed()
    assert "could not be published now" in caplog.text
    away.stop()
    assert batches.checkpoint() != first
    batches.checkpoint_completed()
    assert kafka.committed("g") == {("t", 0): 1}
    batches.close()


# --- topics and leaders that are not there ----------------------------------------------------------------------------------
def test_every_broker_does_not_know_a_topic_for_longer_than_three_seconds_and_a_loss_allowed_does_not_end_its_partition(
    kafka, monkeypatch, caplog
):
    monkeypatch.setattr(fetch_plan, "_UNKNOWN_TOPIC_GRACE_S", 0.2)
    with reading(kafka, fail_on_data_loss=False) as run:
        unknown = kafka.fault("Metadata", Refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic="t"), times=None)
        moved = kafka.fault("Fetch", Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, topic="t"))
        assert poll_until(run, lambda _: "waiting for it to come back" in caplog.text) == []
        assert moved.fired
        unknown.stop()
        kafka.append("t", b"after")
        assert poll_until(run, bool) == [b"after"]


def test_topics_that_are_gone_cost_next_to_no_requests_where_a_loss_is_allowed(kafka, monkeypatch, caplog):
    """Each partition asked every broker by itself, several times a second and for ever."""
    monkeypatch.setattr(fetch_plan, "_UNKNOWN_TOPIC_GRACE_S", 0.2)
    for number in range(30):
        kafka.create_topic(f"d-{number}")
    with reading(kafka, topics=None, pattern="d-.*|t", fail_on_data_loss=False) as run:
        for number in range(30):
            kafka.delete_topic(f"d-{number}")
        assert poll_until(run, lambda _: caplog.text.count("waiting for it to come back") == 30) == []
        asked = kafka.fault("Metadata", Delay(0.0), times=None)
        until = time.monotonic() + 4.0
        poll_until(run, lambda _: time.monotonic() > until)
    assert asked.fired <= 6 * 4, "at 1 s, 2 s and 4 s after, and a few that were out of step: one broker, then all three"


def test_a_topic_of_many_partitions_that_is_gone_is_asked_for_as_one(kafka):
    kafka.create_topic("big", partitions=200)
    with closing(source_of(kafka, topics=["big", "t"], stop=None).batches()._run) as run:
        kafka.append("big", b"x", partition=199)
        assert poll_until(run, bool) == [b"x"]
        asked = kafka.fault("Metadata", Delay(0.0), times=None)
        kafka.delete_topic("big")
        with pytest.raises(TopicRecreatedError):
            poll_until(run, lambda _: False)
    assert asked.fired < 1000, "each partition for itself would ask five brokers six times in 3 s: 6,000"


def test_one_broker_does_not_know_a_topic_and_the_others_are_asked(kafka, monkeypatch):
    monkeypatch.setattr(fetch_plan, "_UNKNOWN_TOPIC_GRACE_S", 0.2)
    with reading(kafka) as run:
        unknown = kafka.fault("Metadata", Refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic="t"), broker=1, times=None)
        moved = kafka.fault("Fetch", Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, topic="t"), times=None)
        kafka.append("t", b"after")
        seen = poll_until(run, lambda _: unknown.fired)  # which broker is asked is drawn; a fetch may have been under way
        moved.stop()
        seen += poll_until(run, lambda values: seen or values)
        assert seen == [b"after"]


def test_two_hundred_of_three_hundred_partitions_have_no_leader_and_one_try_asks_once(kafka):
    kafka.create_topic("wide", partitions=300)

    def leaderless(response) -> None:
        for partition in (each for topic in response.topics for each in topic.partitions if each.partition_index < 200):
            partition.leader_id = -1

    asked = kafka.fault("Metadata", Rewrite(leaderless), times=None)
    config = ClientConfig(bootstrap=kafka.bootstrap, default_api_timeout_ms=1)
    with KafkaCluster(config) as cluster, pytest.raises(DeadlineExceededError, match="no leader"):
        cluster.list_offsets({("wide", number): Latest() for number in range(300)})
    assert asked.fired <= 2


def test_a_log_is_cut_and_grows_again_and_a_loss_allowed_reads_what_was_written_after_the_cut(kafka):
    kafka.append("t", *(b"old-%d" % number for number in range(10)))
    source = source_of(kafka, stop=None, fail_on_data_loss=False)
    with source.batches() as batches:
        next(batches)
        stored = batches.checkpoint()
    kafka.lose_records("t", from_offset=5)
    kafka.append("t", b"new-5", b"new-6")
    with source.batches(stored) as batches:
        assert next(batches).column("value").to_pylist() == [b"new-5", b"new-6"]


@pytest.mark.parametrize("at", [2, 3])
def test_a_record_that_comes_while_a_start_at_a_timestamp_becomes_an_offset_is_read(kafka, at):
    kafka.append("t", NewRecord(b"old", timestamp_ms=1000))
    late = kafka.fault("ListOffsets", Before(lambda: kafka.append("t", NewRecord(b"new", timestamp_ms=5000))), nth=at)
    (split,) = source_of(kafka, start=Timestamp(4000), stop=None).create_discovery().initial().added
    assert (split.next_offset, late.fired) == (1, 1)


# --- readers that no process reads ------------------------------------------------------------------------------------------
def test_nothing_is_assigned_and_a_poll_waits(kafka):
    reader = source_of(kafka).create_reader()
    started = time.monotonic()
    assert reader.poll(0.2) is None
    reader.add_splits([])
    assert reader.poll(0.2) is None
    assert time.monotonic() - started >= 0.4
    reader.close()


def test_one_that_was_closed_starts_no_thread_when_it_is_collected(kafka, monkeypatch):
    """Each did, whenever that came: in the worker of an engine one for every task."""
    opened = []
    monkeypatch.setattr(reader_module, "_close_beside", opened.append)
    kafka.append("t", b"x")
    with source_of(kafka).batches() as batches:
        next(batches)
    del batches
    gc.collect()
    assert opened == []


def test_a_reader_is_dropped_in_the_middle_and_its_threads_end(kafka):
    kafka.append("t", b"x")
    before = set(threading.enumerate())
    for _ in range(3):
        for _ in source_of(kafka, stop=None).batches():
            break
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("headrace-fetch"):
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


# --- bytes and names --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pattern", ["orders-[a-z&&[^x]]+", "[a-c[x-z]]", "[^a&&b]"])
def test_a_java_pattern_with_a_class_in_a_class_is_refused_and_selects_no_other_topics(pattern):
    with pytest.raises(UsageError, match="class in a class"):
        java_pattern(pattern)


@pytest.mark.parametrize(("pattern", "name"), [(r"[a-z\[]+", "a["), ("a&&b", "a&&b"), (r"\[[a&]\]", "[&]"), (r"x[^\]]", "x[")])
def test_brackets_and_ampersands_elsewhere_are_what_they_were(pattern, name):
    assert java_pattern(pattern).fullmatch(name)


def test_a_batch_shorter_than_its_own_header_is_corrupt_data_and_no_bug_of_the_fetching_thread(kafka):
    kafka.append("t", b"x")

    def shorten(response) -> None:
        short = bytearray(_partition_of(response).records[:26])
        short[8:12] = (14).to_bytes(4, "big")
        _partition_of(response).records = bytes(short)

    kafka.fault("Fetch", Rewrite(shorten), times=None)
    with pytest.raises(CorruptDataError, match="t-0"):
        read_all(source_of(kafka))


def test_a_request_that_went_to_a_newer_broker_goes_to_an_older_one_in_the_version_of_that(kafka, monkeypatch):
    asked = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    sent = []
    for broker, version in ((1, 12), (2, 9)):
        with closing(Connection(*address_of(kafka, broker), ClientConfig(bootstrap=kafka.bootstrap))) as connection:
            monkeypatch.setattr(connection, "version_of", lambda _, version=version: version)
            sent.append(connection.request(asked).API_VERSION)
    assert sent == [12, 9]


def test_a_broker_that_could_not_be_reached_is_asked_last(kafka, monkeypatch):
    with KafkaCluster(ClientConfig(bootstrap=kafka.bootstrap)) as cluster:
        kafka.stop_broker(1)
        address = address_of(kafka, 1)
        with pytest.raises(ConnectionLostError):
            cluster.lease(Broker(1, *address))
        connect = cluster._pool._connect
        tried = []
        monkeypatch.setattr(cluster._pool, "_connect", lambda address: (tried.append(address), connect(address))[1])
        for _ in range(20):
            cluster._calls.learn(())  # so that there are the bootstrap addresses only, in random order
            cluster.brokers()
        assert address not in tried
