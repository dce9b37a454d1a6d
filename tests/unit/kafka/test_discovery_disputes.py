"""Regression tests: brokers differ on which topic bears a name, as one of them lags behind or is isolated."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from dataclasses import replace
from uuid import UUID

import pytest

from headrace.connectors.kafka.client import retries
from headrace.connectors.kafka.client.cluster import shared_cluster
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator import EmbeddedRun
from headrace.enumerator.errors import DeadlineExceededError, OutageError
from headrace.enumerator.source import DiscoveryResult
from headrace.kafka import Earliest, KafkaSource, Latest
from headrace.runners.spark.log_read import LogRead
from headrace.runners.spark.stream import StreamPlanner
from headrace.spark.kafka_offsets import KafkaOffsets
from headrace.testing.fake_kafka import Before, CutBefore, ErrorCode, FakeKafka, Refuse, Rewrite

DELETED = UUID(int=77)
NUMBERS = itertools.count()
QUICK = {"properties": {"default.api.timeout.ms": "300", "retry.backoff.ms": "1", "retry.backoff.max.ms": "10"}}
REFUSED = Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic="t")
UNKNOWN = Refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic="t")


@pytest.fixture
def kafka():
    with FakeKafka(brokers=3) as cluster:
        cluster.create_topic("t")
        cluster.append("t", b"a", b"b", b"c")
        yield cluster


@pytest.fixture
def brief_outages(monkeypatch):
    monkeypatch.setattr(retries, "_LONGEST_CALL_S", 0.3)


def source_of(kafka: FakeKafka, **fields) -> KafkaSource:
    properties = {"retry.backoff.ms": "1", "retry.backoff.max.ms": "10"}
    given = {"bootstrap": kafka.bootstrap, "topics": ["t"], "start": Earliest(), "properties": properties}
    return KafkaSource(**(given | fields))


def asking_first(kafka: FakeKafka, broker: int, **fields) -> KafkaSource:
    """A new client, which knows no other broker yet."""
    properties = {"retry.backoff.ms": "1", "client.id": f"client-{next(NUMBERS)}"}
    return source_of(kafka, bootstrap=kafka.address(broker), properties=properties, **fields)


def telling_of_deleted(name: str) -> Rewrite:
    def tell(response) -> None:
        for topic in response.topics:
            if topic.name == name:
                topic.topic_id = DELETED

    return Rewrite(tell)


def lags(kafka: FakeKafka, broker: int, name: str = "t", times: int | None = None):
    """This broker reports the deleted topic of that name."""
    return kafka.fault("Metadata", telling_of_deleted(name), broker=broker, times=times).optional()


def out_of_reach(kafka: FakeKafka, broker: int, fault=CutBefore(), name: str = "t"):  # noqa: B008 - a value
    """This broker can be asked for all but what it knows of this topic."""
    return kafka.fault("Metadata", fault, broker=broker, when=about(name), times=None)


def about(name: str):
    return lambda request: request.topics is not None and any(item.name == name for item in request.topics)


def the_split(kafka: FakeKafka) -> KafkaSplit:
    (split,) = source_of(kafka).create_discovery().initial().added
    return split


def made_anew(kafka: FakeKafka) -> None:
    kafka.delete_topic("t")
    kafka.create_topic("t")


def ids(splits) -> set[UUID]:
    return {split.topic_id for split in splits}


# --- what is decided --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("end", [{}, {"stop": Latest()}])
def test_a_broker_that_lags_behind_brings_no_deleted_topic_back(kafka, end):
    kafka.create_topic("u")
    discovery = source_of(kafka, topics=["t", "u"], **end).create_discovery()
    (t, u) = sorted(discovery.initial().added, key=lambda split: split.topic)
    fired = 0
    for _ in range(20):  # asked in random order
        stale = lags(kafka, 1, times=3)
        assert ids(discovery.initial().added) == {t.topic_id, u.topic_id}
        assert set(discovery.topic_ids([("t", 0), ("u", 0)]).values()) == {t.topic_id, u.topic_id}
        assert ids(discovery.later_or_raise({t.split_id: t}).added) == {u.topic_id}
        fired += stale.fired
        stale.stop()
    assert fired >= 20


def test_while_brokers_differ_on_a_topics_id_that_is_an_outage_which_names_both(kafka):
    discovery = source_of(kafka, **QUICK).create_discovery()
    lags(kafka, 1)
    both = rf"brokers differ on which topic t is: {DELETED} \(broker 1 \(.*, .*\(broker 3"
    for look in (discovery.initial, lambda: discovery.later_or_raise({}), lambda: discovery.topic_ids([("t", 0)])):
        with pytest.raises(DeadlineExceededError, match=both):
            look()


@pytest.mark.parametrize("fault", [CutBefore(), REFUSED])
def test_what_is_new_is_found_also_while_one_broker_cannot_be_asked(kafka, fault):
    discovery = source_of(kafka, topics=None, pattern="[tu]").create_discovery()
    kafka.create_topic("u")
    (u,) = discovery.later_or_raise({(t := the_split(kafka)).split_id: t}).added
    kafka.add_partitions("u", 2)
    away = out_of_reach(kafka, 3, fault)
    assert {(s.topic, s.partition) for s in discovery.later({u.split_id: u}).added} == {("t", 0), ("u", 1)}
    assert away.fired


# --- what is not decided yet ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", [CutBefore(), REFUSED])
def test_what_one_broker_says_against_an_id_counts_the_process_that_else_cannot_be_asked(kafka, fault):
    t = the_split(kafka)
    stale, away = lags(kafka, 1), out_of_reach(kafka, 3, fault)
    for _ in range(20):  # asked in random order
        discovery = source_of(kafka, topics=None, pattern="t").create_discovery()  # without a memory
        assert (ids(discovery.later({}).added), ids(discovery.later({t.split_id: t}).added)) == (set(), set())
    assert [stale.fired > 0, away.fired > 0] == [True, True]


def test_a_broker_that_refuses_one_topic_is_heard_on_the_others(kafka):
    kafka.create_topic("x")
    lags(kafka, 1)
    refused = [out_of_reach(kafka, broker, Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic="x"), "x") for broker in (2, 3)]
    for _ in range(10):  # asked in random order
        discovery = source_of(kafka, topics=None, pattern="[tx]").create_discovery()
        assert {split.topic for split in discovery.later({}).added} == {"x"}
    assert all(each.fired for each in refused)


def test_a_topic_that_most_brokers_do_not_know_is_not_taken_from_one(kafka):
    kafka.create_topic("u")
    kafka.isolate_broker(1)
    kafka.delete_topic("u")
    found = asking_first(kafka, 1, topics=None, pattern="[tu]").create_discovery().later({})
    assert {split.topic for split in found.added} == {"t"}
    assert "one broker has reported topic u, which 2 others do not know" in str(found.inconclusive)


def test_one_broker_that_does_not_know_a_new_topic_yet_does_not_hold_it_up(kafka):
    unknown = kafka.fault("Metadata", UNKNOWN, broker=1, times=None)
    (found,) = asking_first(kafka, 2, topics=None, pattern="t").create_discovery().later({}).added
    assert found == the_split(kafka)
    assert unknown.fired


def test_a_topic_that_is_deleted_while_it_is_found_holds_up_no_other(kafka, monkeypatch):
    monkeypatch.setattr(retries, "_UNKNOWN_TOPIC_GRACE_S", 0.0)
    kafka.create_topic("u")
    deleted = kafka.fault("ListOffsets", Before(lambda: kafka.delete_topic("u")))
    found = source_of(kafka, topics=["t", "u"]).create_discovery().later({})
    assert {split.topic for split in found.added} == {"t"}
    assert deleted.fired
    assert "reported topic u, and its leader does not know it" in str(found.inconclusive)


def test_an_added_partition_of_a_deleted_topic_is_not_taken(kafka):
    old = the_split(kafka)
    kafka.add_partitions("t", 2)
    kafka.isolate_broker(1)
    made_anew(kafka)
    found = asking_first(kafka, 1).create_discovery().later({old.split_id: old})
    assert found.added == []
    assert "brokers differ on which topic t is" in str(found.inconclusive)


def test_a_dispute_is_over_once_no_broker_knows_the_topic(kafka):
    kafka.create_topic("u")
    discovery = source_of(kafka, topics=None, pattern="[tu]").create_discovery()
    t, stale = the_split(kafka), lags(kafka, 1, "u")
    assert "brokers differ on which topic u is" in str(discovery.later({t.split_id: t}).inconclusive)
    stale.stop()
    kafka.delete_topic("u")
    assert discovery.later({t.split_id: t}) == DiscoveryResult([])
    kafka.create_topic("u")
    away = out_of_reach(kafka, 3, name="u")
    assert {split.topic for split in discovery.later({t.split_id: t}).added} == {"u"}
    assert away.fired


@pytest.mark.parametrize("known", [None, DELETED])
def test_a_topic_without_an_id_is_any_of_its_name(kafka, known):
    """Brokers before Kafka 2.8 have none, also while they are upgraded one by one."""

    def tell_no_ids(response) -> None:
        for topic in response.topics:
            topic.topic_id = UUID(int=0)

    split = KafkaSplit("t", known, 0, 3)
    if known is not None:
        kafka.fault("Metadata", Rewrite(tell_no_ids), times=None)
    assert source_of(kafka).create_discovery().later({split.split_id: split}) == DiscoveryResult([])


def test_brokers_are_asked_at_once_so_that_one_that_is_silent_holds_up_no_other(kafka):
    together = threading.Barrier(3, timeout=10.0)
    answers = [out_of_reach(kafka, broker, Rewrite(lambda _: together.wait())) for broker in kafka.brokers]
    views = shared_cluster(source_of(kafka).config).topic_views(["t"])
    assert [len(views.known("t")), *(each.fired for each in answers)] == [3, 1, 1, 1]


def test_a_successor_of_a_known_topic_waits_for_all_brokers_to_be_asked(kafka):
    t = the_split(kafka)
    made_anew(kafka)
    discovery, away = source_of(kafka).create_discovery(), out_of_reach(kafka, 3)
    found = discovery.later({t.split_id: t})
    assert (found.added, found.missing) == ([], frozenset())
    assert "not every broker can be asked which topic t is now" in str(found.inconclusive)
    assert away.fired
    away.stop()
    found = discovery.later({t.split_id: t})
    assert ids(found.added) == {the_split(kafka).topic_id}
    assert (found.missing, found.inconclusive) == ({t.split_id}, None)


def test_a_dispute_is_not_over_because_a_connection_was_lost(kafka):
    discovery, stale = source_of(kafka).create_discovery(), lags(kafka, 1)
    assert "brokers differ" in str(discovery.later({}).inconclusive)
    away = [out_of_reach(kafka, broker) for broker in (2, 3)]
    found = discovery.later({})
    assert (found.added, stale.fired > 0, all(each.fired for each in away)) == ([], True, True)
    assert "not every broker can be asked" in str(found.inconclusive)
    for each in (stale, *away):
        each.stop()
    assert ids(discovery.later({}).added) == {the_split(kafka).topic_id}


def test_the_ids_of_a_checkpoint_without_them_are_not_known_while_brokers_differ(kafka):
    lags(kafka, 2)
    kafka.fault("Metadata", UNKNOWN, broker=1, times=None).optional()
    for _ in range(5):  # asked in random order
        with pytest.raises(DeadlineExceededError, match="brokers differ on which topic t is"):
            KafkaOffsets(source_of(kafka, **QUICK)).from_json('{"t":{"0":2}}')


def test_brokers_that_tell_of_one_topic_now_and_of_its_successor_then_have_not_decided(kafka):
    t = the_split(kafka)
    before = [kafka.fault("Metadata", telling_of_deleted("t"), broker=broker, when=about("t")) for broker in kafka.brokers]
    assert source_of(kafka).create_discovery().topic_ids([("t", 0), ("t", 1)]) == {("t", 0): t.topic_id}
    assert [each.fired for each in before] == [1, 1, 1]


def two_laggards(kafka: FakeKafka) -> None:
    """A new topic u was deleted and recreated: broker 1 reports the first, 2 of the second, and 3 of none."""
    kafka.create_topic("u")
    kafka.append("u", b"of u")
    lags(kafka, 1, "u")
    kafka.fault("Metadata", replace(UNKNOWN, topic="u"), broker=3, times=None).optional()


def test_who_waits_for_a_decision_is_not_reported_by_a_broker_that_does_not_know_the_topic_that_there_is_none(kafka):
    two_laggards(kafka)
    for _ in range(5):  # asked in random order
        discovery = source_of(kafka, topics=None, pattern="[tu]", **QUICK).create_discovery()
        while discovery.later({}).inconclusive is None:
            pass  # brokers are asked in random order: one of them must be heard of it first
        for look in (discovery.initial, lambda: discovery.later_or_raise({})):  # noqa: B023 - called here
            with pytest.raises(DeadlineExceededError, match="topic u"):
                look()


def test_a_topic_that_was_in_dispute_is_inconclusive_until_it_is_known_or_gone(kafka):
    two_laggards(kafka)
    discovery = source_of(kafka, topics=None, pattern="[tu]").create_discovery()
    while discovery.later({}).inconclusive is None:
        pass  # as above
    assert all(discovery.later({}).inconclusive is not None for _ in range(10))
    kafka.delete_topic("u")
    assert discovery.later({}).inconclusive is None


def test_a_dispute_is_over_where_a_topic_is_recreated_without_the_partition_that_is_selected(kafka):
    kafka.create_topic("u", partitions=2)
    discovery = source_of(kafka, topics=None, partitions={"u": [1]}).create_discovery()
    (first,) = discovery.initial().added
    stale = lags(kafka, 1, "u")
    kafka.delete_topic("u")
    kafka.create_topic("u", partitions=2)
    assert discovery.later({first.split_id: first}).inconclusive is not None
    stale.stop()
    kafka.delete_topic("u")
    kafka.create_topic("u")
    assert discovery.later({first.split_id: first}) == DiscoveryResult([], frozenset({first.split_id}))


def test_a_dispute_is_over_where_the_topic_is_deleted_with_the_right_to_it(kafka):
    kafka.create_topic("u")
    discovery = source_of(kafka, topics=None, pattern="[tu]").create_discovery()
    t, stale = the_split(kafka), lags(kafka, 1, "u")
    assert discovery.later({t.split_id: t}).inconclusive is not None
    stale.stop()
    kafka.delete_topic("u")
    refused = [out_of_reach(kafka, broker, replace(REFUSED, topic="u"), "u") for broker in (1, 2, 3)]
    assert discovery.later({t.split_id: t}) == DiscoveryResult([])
    assert refused[0].fired


def test_an_added_partition_of_a_split_without_an_id_does_not_wait_for_a_broker_out_of_reach(kafka):
    split = KafkaSplit("t", None, 0, 3)
    kafka.add_partitions("t", 2)
    away = out_of_reach(kafka, 3)
    (added,) = source_of(kafka).create_discovery().later({split.split_id: split}).added
    assert (added.partition, away.fired > 0) == (1, True)


def test_a_broker_that_refuses_the_whole_question_has_not_said_that_there_is_no_topic(kafka):
    def start_again(response) -> None:
        response.topics, response.error_code = [], ErrorCode.REBOOTSTRAP_REQUIRED

    refused = [out_of_reach(kafka, broker, Rewrite(start_again), name="t") for broker in (2, 3)]
    views = shared_cluster(source_of(kafka).config).topic_views(["t"])
    assert (views.denials("t"), len(views.known("t")), "t" in views.failures) == (0, 1, True)
    assert all(each.fired for each in refused)


def test_a_look_in_a_thread_that_outlives_the_main_one(kafka, tmp_path):
    """A pool's threads cannot be started any more by then: concurrent.futures ends with the main thread."""
    script = tmp_path / "job.py"
    script.write_text(
        "import threading\n"
        "from headrace.kafka import KafkaSource\n"
        f"discovery = KafkaSource({kafka.bootstrap!r}, topics=['t']).create_discovery()\n"
        "def job():\n"
        "    threading.main_thread().join()\n"
        "    print(discovery.later({}).added[0].topic)\n"
        "threading.Thread(target=job).start()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("t", "")


# --- what continues meanwhile -------------------------------------------------------------------------------------------------
def test_the_others_are_read_while_brokers_differ_on_a_new_topic(kafka, caplog):
    source = source_of(kafka, topics=None, pattern="[tu]", discovery_interval_s=0.01)
    with EmbeddedRun(source, clock=time.monotonic, discovery_interval_s=0.01) as run:
        kafka.create_topic("u")
        kafka.append("u", b"of u")
        stale = lags(kafka, 1, "u")
        while caplog.text.count("brokers differ on which topic u is") < 1:
            run.poll(0.01)
        kafka.append("t", b"d")
        assert read_until(run, b"d")[-1] == b"d"
        stale.stop()
        assert read_until(run, b"of u") == [b"of u"]
    assert caplog.text.count("will be tried again") == caplog.text.count("works again") == 1


def read_until(run: EmbeddedRun, last: bytes) -> list[bytes]:
    values: list[bytes] = []
    while last not in values:
        batch = run.poll(0.01)
        values += [] if batch is None else batch.records["value"].to_pylist()
    return values


def a_query(kafka: FakeKafka, **fields) -> StreamPlanner:
    source = source_of(kafka, topics=None, pattern="[tu]", **fields)
    return StreamPlanner(LogRead(source=source, offsets=KafkaOffsets(source), columns=("value",)), time.monotonic)


def test_so_does_a_query_of_spark_which_says_so_once(kafka, caplog):
    planner = a_query(kafka, **QUICK)
    at = planner.next_offsets(planner.initial_offsets(), None, None)
    kafka.create_topic("u")
    stale = lags(kafka, 1, "u")
    for value in (b"d", b"e"):
        kafka.append("t", value)
        at, before = planner.next_offsets(at, None, None), at
        assert at != before
        assert '"u"' not in at
    assert caplog.text.count("continues without what may be new until this is over: brokers differ on which topic u is") == 1
    stale.stop()
    assert '"u":{"0":0}' in planner.next_offsets(at, None, None)


def test_but_not_one_that_reads_what_is_available_now(kafka, brief_outages):
    planner = a_query(kafka)
    at = planner.next_offsets(planner.initial_offsets(), None, None)
    kafka.create_topic("u")
    stale = lags(kafka, 1, "u")
    planner.pin_end()
    with pytest.raises(OutageError, match="brokers differ on which topic u is"):
        planner.next_offsets(at, None, None)
    stale.stop()
    assert '"u":{"0":0}' in planner.next_offsets(at, None, None)


# --- presence takes one, absence all ----------------------------------------------------------------------------------------
def test_where_a_found_partition_starts_is_its_first_record_also_while_a_broker_lags_behind(kafka):
    t, fired = the_split(kafka), 0
    for _ in range(10):  # asked in random order
        stale = lags(kafka, 1, times=3)
        assert KafkaOffsets(source_of(kafka)).first_offsets([replace(t, next_offset=3)], {}) == {t.split_id: 0}
        fired += stale.fired
        stale.stop()
    assert fired


def test_that_a_partition_is_there_is_known_though_a_broker_cannot_be_asked(kafka):
    t, away = the_split(kafka), out_of_reach(kafka, 3)
    assert KafkaOffsets(source_of(kafka, **QUICK)).first_offsets([replace(t, next_offset=3)], {}) == {t.split_id: 0}
    assert away.fired


def test_where_a_found_partition_starts_is_not_known_while_a_broker_cannot_be_asked_whether_it_is_gone(kafka):
    gone = KafkaSplit("t", DELETED, 0, 3)
    assert KafkaOffsets(source_of(kafka, **QUICK)).first_offsets([gone], {}) == {gone.split_id: 3}
    away = out_of_reach(kafka, 3)
    with pytest.raises(DeadlineExceededError, match="looking up topics at every broker"):
        KafkaOffsets(source_of(kafka, **QUICK)).first_offsets([gone], {})
    assert away.fired


def test_nothing_new_is_nothing_to_ask_every_broker_for(kafka):
    t, discovery = the_split(kafka), source_of(kafka).create_discovery()
    asked = kafka.fault("Metadata", Rewrite(lambda _: None), times=None)
    assert (discovery.later({t.split_id: t}), asked.fired) == (DiscoveryResult([]), 1)
