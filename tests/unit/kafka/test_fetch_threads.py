"""Regression tests: which threads and sockets fetching takes, what wakes them, and what must not hold up what."""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import pairwise

import pytest

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import ConnectionLostError
from headrace.connectors.kafka.client.positions import Latest
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.topology import Broker, Leader
from headrace.connectors.kafka.client.wire import pool
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.protocol import FetchRequest
from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.read.fetch_plan import FetchFrom, FetchPlan
from headrace.connectors.kafka.read.fetch_session import FORGOTTEN
from headrace.connectors.kafka.read.fetcher import FetchedData, Fetcher
from headrace.enumerator.errors import RetriableError
from headrace.testing.fake_kafka import CutBefore, ErrorCode, FakeKafka, LoseAnswer, Rewrite, Throttle

DEADLINE_S = 30.0


@pytest.fixture
def kafka():
    with FakeKafka(brokers=3) as cluster:
        cluster.create_topic("t")
        cluster.create_topic("u")
        yield cluster


@pytest.fixture
def cluster(kafka):
    with KafkaCluster(ClientConfig(bootstrap=kafka.bootstrap, fetch_max_wait_ms=20)) as client:
        yield client


def poll(fetcher: Fetcher) -> FetchedData:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        item = fetcher.poll(0.1)
        if item is not None:
            assert isinstance(item, FetchedData), item
            return item
    raise AssertionError("nothing was fetched")


def fetch_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("headrace-fetch")}


def wait_for(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


# --- the plan ---------------------------------------------------------------------------------------------------------------
class _NobodyLooksThrough(dict):
    """Partitions by key, which no process may go through."""

    def _refuse(self, *_: object) -> None:
        raise AssertionError("all partitions were looked through")

    __iter__ = values = items = keys = _refuse


def test_what_one_of_five_thousand_partitions_needs_is_found_without_a_look_at_the_others():
    one, two = Broker(1, "a", 1), Broker(2, "b", 1)
    plan = FetchPlan(ClientConfig(bootstrap="a:1"))
    sources = [FetchFrom("t", number, 0) for number in range(5000)]
    for number, source in enumerate(sources):
        plan.add(source)
        plan.leader_found(source, Leader(two if number else one, 1), None, 0.0)
    plan._partitions = _NobodyLooksThrough(plan._partitions)
    (asked,) = plan.take(one, 0.0, 1 << 20)
    assert plan.take(one, 0.0, 1 << 20) == []
    assert plan.changed() >= {one, two}
    answer = PartitionAnswer("t", None, 0, 0, 0, 0, 0, None, None, None, None, memoryview(b""))
    plan.landed(asked, answer, None, 0.0)
    assert plan.changed() == {one}
    assert (plan.next_due(one), plan.leaderless(0.0), plan.unresolved()) == (0.0, [], [])
    plan.lost(plan.take(one, 0.0, 1 << 20), RetriableError("gone"), 1.0)
    assert (plan.next_due(None), plan.leaderless(1.2)) == (pytest.approx(1.1), [sources[0]])
    assert plan.replicas() == {one, two}


# --- threads and sockets ----------------------------------------------------------------------------------------------------
def test_a_thread_ends_when_nothing_is_fetched_from_its_broker_any_more_and_comes_back_with_it(kafka, cluster):
    old = kafka.leader("t")[0]
    new = old % 3 + 1
    with Fetcher(cluster, [FetchFrom("t", 0, 0)]) as fetcher:
        for turn, (leader, former) in enumerate([(old, new), (new, old), (old, new)]):
            if turn:
                kafka.move_leader("t", to=leader)
            kafka.append("t", b"x")
            assert poll(fetcher).fetch_offset == turn
            wait_for(lambda leader=leader, former=former: (
                f"headrace-fetch-{leader}" in fetch_threads() and f"headrace-fetch-{former}" not in fetch_threads()
            ))  # fmt: skip


def fetch_times(kafka) -> list[float]:
    """When each Fetch request came, from now on."""
    times: list[float] = []
    kafka.fault("Fetch", LoseAnswer(), when=lambda request: times.append(time.monotonic()) is not None).optional()
    return times


def test_what_comes_soon_after_an_answer_waits_for_more(kafka, cluster):
    times = fetch_times(kafka)
    with Fetcher(cluster, [FetchFrom("t", 0, 0)], linger_s=0.4) as fetcher:
        for turn in range(4):
            kafka.append("t", b"x")
            assert poll(fetcher).fetch_offset == turn
    assert len(times) >= 4
    # half of it: a broker that is late to note a request makes the time to the next one shorter
    assert all(later - earlier > 0.2 for earlier, later in pairwise(times))


@pytest.mark.parametrize("limit", [{"fetch_max_bytes": 1000}, {"max_partition_fetch_bytes": 1000}])
def test_a_backlog_is_fetched_without_a_pause(kafka, limit):
    for _ in range(4):
        kafka.append("t", b"x" * 700)
    config = ClientConfig(bootstrap=kafka.bootstrap, fetch_max_wait_ms=20, **limit)
    with KafkaCluster(config) as cluster, Fetcher(cluster, [FetchFrom("t", 0, 0)], linger_s=3600.0) as fetcher:
        assert [poll(fetcher).fetch_offset for _ in range(4)] == [0, 1, 2, 3]


def test_a_reader_that_is_woken_does_not_wait_for_records(kafka, cluster):
    with Fetcher(cluster, [FetchFrom("t", 0, 0)]) as fetcher:
        fetcher.wake_up()
        started_s = time.monotonic()
        assert fetcher.poll(600.0) is None
        waking = threading.Timer(0.1, fetcher.wake_up)
        waking.start()
        assert fetcher.poll(600.0) is None
        waking.join()
        fetcher.wake_up()
        kafka.append("t", b"x")
        wait_for(lambda: poll(fetcher) is not None)
        assert time.monotonic() - started_s < 300.0


def test_sockets_that_a_broker_has_closed_do_not_stay_half_closed(kafka, cluster, monkeypatch):
    monkeypatch.setattr(pool, "_CLEAN_UP_S", 0.0)
    host, _, port = kafka.address(1).rpartition(":")
    gone = Broker(1, host, int(port))
    surplus = [cluster.lease(gone) for _ in range(3)]
    for connection in surplus:
        cluster.give_back(connection)
    kafka.stop_broker(1)
    wait_for(lambda: not any(connection.is_quiet() for connection in surplus))
    host, _, port = kafka.address(2).rpartition(":")
    cluster.give_back(cluster.lease(Broker(2, host, int(port))))
    assert [connection.usable for connection in surplus] == [False] * 3


def test_a_connection_whose_session_nears_its_end_does_not_stay_on_loan(cluster, monkeypatch):
    """The pool kept it and its buffers for as long as there was one: one more at each session's end."""
    lease, leased = cluster.lease, []

    def lease_shortly(broker):
        connection = lease(broker)
        connection.expires_at = time.monotonic() + 0.01
        leased.append(connection)
        return connection

    monkeypatch.setattr(cluster, "lease", lease_shortly)
    with Fetcher(cluster, [FetchFrom("t", 0, 0)]):
        wait_for(lambda: len(leased) > 10)
    assert len(set(leased)) > 10
    assert not cluster._pool._lent & set(leased)


# --- who waits for whom -----------------------------------------------------------------------------------------------------
def test_a_leader_that_does_not_say_what_it_has_holds_up_no_other_partition(kafka, cluster):
    kafka.append("u", b"x")
    silent = kafka.fault("ListOffsets", LoseAnswer())
    with Fetcher(cluster, [FetchFrom("t", 0, 99)]) as fetcher:  # which is out of range
        wait_for(lambda: silent.fired)
        fetcher.assign([FetchFrom("u", 0, 0)])
        started = time.monotonic()
        assert poll(fetcher).topic == "u"
        assert time.monotonic() - started < 15.0  # less than the request timeout
        started = time.monotonic()
    assert time.monotonic() - started < 4.0  # nor is it waited for at the end
    cluster.close()  # which wakes that thread
    wait_for(lambda: not fetch_threads())


def test_partitions_that_are_assigned_together_look_through_what_was_fetched_once(monkeypatch):
    """Thousands at once, by a reader that is behind, kept the lock that fetching needs for many seconds."""

    class Looked(deque):
        looks = 0

        def __iter__(self):
            Looked.looks += 1
            return super().__iter__()

    over = threading.Event()
    monkeypatch.setattr(KafkaCluster, "warm", lambda *_: set() if over.wait(DEADLINE_S) else None)
    fetcher = Fetcher(KafkaCluster(ClientConfig(bootstrap="127.0.0.1:1")), [])
    old = [FetchedData(topic, 0, 0, 1, ((0, 0),), memoryview(b"x"), 1, 1, 0, None) for topic in ("u", "v")]
    with fetcher._lock:
        fetcher._queue, fetcher._queued_bytes = Looked(old), 2
    fetcher.assign([FetchFrom("t", number, 0) for number in range(4000)] + [FetchFrom("v", 0, 7)])
    assert (Looked.looks, len(fetcher._plan)) == (1, 4001)
    assert [fetcher.poll(0.0), fetcher.poll(0.0)] == [old[0], None], "of v what was fetched is dropped"
    over.set()
    fetcher.close()


def test_a_new_leader_that_the_old_one_names_is_asked_at_once(kafka, cluster):
    old = kafka.leader("t")[0]
    new, hints = old % 3 + 1, []

    def name_leader(response) -> None:  # KIP-951, which the fake broker does for NOT_LEADER_OR_FOLLOWER only
        part = response.responses[0].partitions[0]
        if part.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            part.current_leader = type(part).LeaderIdAndEpoch(leader_id=new, leader_epoch=kafka.leader("t")[1])
            part.tags = {"current_leader"}
            hints.append(new)

    kafka.append("t", b"a")
    kafka.fault("Fetch", Rewrite(name_leader), broker=old, times=None)
    with Fetcher(cluster, [FetchFrom("t", 0, 0)]) as fetcher:
        poll(fetcher)
        no_metadata = kafka.fault("Metadata", CutBefore(), times=None).optional()  # it is not needed
        kafka.move_leader("t", to=new)
        kafka.append("t", b"b")
        assert poll(fetcher).fetch_offset == 1
        assert hints
        no_metadata.stop()


# --- what is asked for ------------------------------------------------------------------------------------------------------
@pytest.fixture
def asked(monkeypatch):
    """Each Fetch request that was sent: how many partitions it names, how many it has forgotten, and its session's epoch."""
    sent: list[tuple[int, int, int]] = []
    send = Connection.send

    def record(connection, message):
        if isinstance(message, FetchRequest):
            named, forgotten = (
                [n for topic in topics for n in topic.partitions] for topics in (message.topics, message.forgotten_topics_data)
            )
            sent.append((len(named), len(forgotten), message.session_epoch))
        return send(connection, message)

    monkeypatch.setattr(Connection, "send", record)
    return sent


@pytest.fixture
def wide(kafka):
    """A topic of 100 partitions that one broker leads."""
    kafka.create_topic("wide", partitions=100)
    for partition in range(100):
        kafka.move_leader("wide", partition, to=1)
    return [FetchFrom("wide", partition, 0) for partition in range(100)]


def test_partitions_that_nothing_happens_to_are_asked_for_once(kafka, cluster, wide, asked):
    """Each request named all of them: twice a second at least, for as long as the reader was there."""
    with Fetcher(cluster, wide) as fetcher:
        wait_for(lambda: len(asked) > 20)
        kafka.append("wide", b"x", partition=7)
        assert (found := poll(fetcher)).partition == 7
        kafka.append("wide", b"y", partition=7)
        assert poll(fetcher).fetch_offset == found.next_offset == 1
        wait_for(lambda: len(asked) > 30)
    assert asked[0] == (100, 0, 0)
    assert sum(named for named, _, _ in asked[1:]) < 20
    assert [epoch for _, _, epoch in asked] == list(range(len(asked)))


def test_a_partition_that_another_broker_leads_is_forgotten_by_the_old_one_and_comes_from_the_new_one(
    kafka, cluster, wide, asked
):
    with Fetcher(cluster, wide) as fetcher:
        wait_for(lambda: len(asked) > 5)
        kafka.move_leader("wide", 7, to=2)
        kafka.append("wide", b"x", partition=7)
        kafka.append("wide", b"y", partition=8)
        assert {poll(fetcher).partition for _ in range(2)} == {7, 8}
        wait_for(lambda: any(forgotten for _, forgotten, _ in asked))
    assert sum(forgotten for _, forgotten, _ in asked) == 1


def test_partitions_that_are_finished_or_start_over_are_right_in_the_session(kafka, cluster, wide, asked):
    kafka.append("wide", b"x", b"y", partition=7)
    with Fetcher(cluster, wide) as fetcher:
        assert poll(fetcher).next_offset == 2
        fetcher.finish("wide", 8)
        fetcher.assign([FetchFrom("wide", 7, 1)])
        assert (poll(fetcher).fetch_offset, fetcher.poll(0.1)) == (1, None)
        kafka.append("wide", b"z", partition=8)
        kafka.append("wide", b"z", partition=7)
        assert (poll(fetcher).partition, fetcher.poll(0.1)) == (7, None)
    assert sum(forgotten for _, forgotten, _ in asked) == 1


@pytest.mark.parametrize("code", FORGOTTEN)
def test_a_session_that_the_broker_has_forgotten_starts_again_and_reading_continues(kafka, cluster, wide, asked, code):
    def refuse(response) -> None:
        response.error_code, response.responses = code, []

    with Fetcher(cluster, wide) as fetcher:
        wait_for(lambda: len(asked) > 5)
        fault = kafka.fault("Fetch", Rewrite(refuse))
        wait_for(lambda: fault.fired and len([epoch for *_, epoch in asked if not epoch]) == 2)
        kafka.append("wide", b"x", partition=7)
        assert poll(fetcher).partition == 7
    assert not fetcher._plan.outages.news(time.monotonic())
    assert [named for named, _, epoch in asked if not epoch] == [100, 100]


def test_a_read_with_an_end_takes_no_session_and_ends_the_one_that_there_is(kafka, cluster, wide, asked):
    with Fetcher(cluster, wide[:50]) as fetcher:
        wait_for(lambda: len(asked) > 5)
        fetcher.assign([FetchFrom("wide", 99, 0, stop=1)])
        kafka.append("wide", b"x", partition=99)
        assert poll(fetcher).partition == 99
        kafka.append("wide", b"x", partition=7)
        assert poll(fetcher).partition == 7
    assert (51, 0, -1) in asked


# --- closing ----------------------------------------------------------------------------------------------------------------
def test_closing_a_cluster_wakes_the_process_that_waits_out_a_throttle_of_it(kafka):
    client = KafkaCluster(ClientConfig(bootstrap=kafka.address(1)))
    throttled = kafka.fault("Metadata", Throttle(60_000))
    client.topics(["t"])
    assert throttled.fired
    lost: list[BaseException] = []

    def ask() -> None:
        try:
            client.list_offsets({("t", 0): Latest()})
            client.topics(["t"])  # over the throttled connection, in any case
        except ConnectionLostError as error:
            lost.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: any(connection._throttled_until > time.monotonic() for connection in client._pool._lent))
    client.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert len(lost) == 1
