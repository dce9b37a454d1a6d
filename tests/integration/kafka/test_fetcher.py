"""Fetching from real brokers, which are killed, isolated, frozen and emptied meanwhile. Records are decoded by kafka-python."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from uuid import uuid4

import pytest
from kafka.record import MemoryRecords

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import OffsetOutOfRangeError, TopicRecreatedError
from headrace.connectors.kafka.client.positions import Latest
from headrace.connectors.kafka.client.properties import ClientConfig, Isolation
from headrace.connectors.kafka.client.topology import Broker
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.protocol import FetchRequest
from headrace.connectors.kafka.read.fetcher import FetchedData, Fetcher, FetchFailed, FetchFrom
from headrace.enumerator.errors import DataLossError
from headrace.testing.servers.kafka import BrokerCluster, create_topic, delete_topic
from tests.helpers import kafka_rig as rig
from tests.helpers.kafka_tools import Proxy, created, produce, proxy_to
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.broker
TIMEOUT_S = 120.0
SMALL_BATCHES = {"batch.size": 10_000}  # so that a topic is not read by a handful of requests


def records_of(data: FetchedData) -> list[tuple[int, bytes]]:
    """(offset, value) from the fetch offset on; control batches left out."""
    found, memory = [], MemoryRecords(bytes(data.records))
    while memory.has_next():
        batch = memory.next_batch()
        if not batch.is_control_batch:
            found += [(record.offset, record.value) for record in batch if record.offset >= data.fetch_offset]
    return found


class Reader:
    """Polls a fetcher as a reader does, and checks that no record comes twice and none is left out."""

    def __init__(self, fetcher: Fetcher, sources: Iterable[FetchFrom]) -> None:
        self.fetcher = fetcher
        self.sources = {source.key: source for source in sources}
        self.next = {key: source.offset for key, source in self.sources.items()}
        self.values: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.failures: list[FetchFailed] = []

    def poll(self) -> FetchedData | FetchFailed | None:
        item = self.fetcher.poll(0.2)
        if isinstance(item, FetchFailed):
            self.failures.append(item)
        elif item is not None:
            key = (item.topic, item.partition)
            assert item.fetch_offset == self.next[key], "a gap, or records twice"
            self.next[key] = item.next_offset
            stop = self.sources[key].stop
            self.values[key] += [value for offset, value in records_of(item) if stop is None or offset < stop]
        return item

    def read_while(self, going_on: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while going_on():
            self.poll()
            assert time.monotonic() < deadline, f"stuck at {self.next}, failures {self.failures}"

    def read_all(self) -> dict[int, list[bytes]]:
        self.read_while(lambda: not self.fetcher.done)
        assert not self.failures, self.failures[0].error
        return {partition: values for (_, partition), values in sorted(self.values.items())}


def values(partitions: int, count: int, size: int = 100) -> dict[int, list[bytes]]:
    return {p: [b"%d-%d" % (p, n) + b"." * size for n in range(count)] for p in range(partitions)}


def filled(cluster: BrokerCluster, topic: Callable[[], str], partitions: int, count: int, size: int = 100, **settings):
    name, written = created(cluster.bootstrap, topic, partitions=partitions), values(partitions, count, size)
    produce(cluster.bootstrap, name, written, **settings)
    return name, written


def whole(kafka: KafkaCluster, topic: str) -> list[FetchFrom]:
    found = kafka.topics([topic])[topic]
    ends = kafka.list_offsets({(topic, p): Latest() for p in found.partitions}, Isolation.READ_UNCOMMITTED)
    return [FetchFrom(topic, p, 0, topic_id=found.topic_id, stop=ends[topic, p].offset) for p in found.partitions]


def read(kafka: KafkaCluster, sources: list[FetchFrom], **given) -> dict[int, list[bytes]]:
    with Fetcher(kafka, sources, **given) as fetcher:
        return Reader(fetcher, sources).read_all()


def config(cluster: BrokerCluster, **given) -> ClientConfig:
    return ClientConfig(bootstrap=cluster.bootstrap, **given)


@pytest.fixture
def kafka(broker):
    with KafkaCluster(config(broker)) as cluster:
        yield cluster


def test_every_record_once_and_in_order(broker, kafka, topic):
    name, written = filled(broker, topic, 3, 5000)
    assert read(kafka, whole(kafka, name)) == written


def test_a_stop_in_the_middle_of_a_batch_is_reached_and_then_nothing_more_is_fetched(broker, kafka, topic):
    name, written = filled(broker, topic, 1, 1000)
    assert read(kafka, [FetchFrom(name, 0, 300, stop=777)]) == {0: written[0][300:777]}


@pytest.mark.parametrize("version", [4, 5, 7, 11, 12, 13, 16, 18])
def test_every_version_of_fetch(broker, kafka, topic, version, monkeypatch):
    plain = Fetcher._request

    def pinned(self, *arguments):
        message = plain(self, *arguments)
        message.API_VERSION = version
        return message

    monkeypatch.setattr(Fetcher, "_request", pinned)
    name, written = filled(broker, topic, 2, 500)
    assert read(kafka, whole(kafka, name)) == written


def test_compressed_batches_pass_unopened(broker, kafka, topic):
    name, written = filled(broker, topic, 1, 300, **{"compression.type": "gzip"})
    assert read(kafka, whole(kafka, name)) == written


def test_records_written_later_arrive(broker, kafka, topic):
    name = created(broker.bootstrap, topic, partitions=2)
    sources = [FetchFrom(name, 0, 0), FetchFrom(name, 1, 0)]
    with Fetcher(kafka, sources) as fetcher:
        reader = Reader(fetcher, sources)
        for number in range(3):
            assert fetcher.poll(0) is None
            produce(broker.bootstrap, name, {0: [b"a%d" % number], 1: [b"b%d" % number]})
            reader.read_while(lambda: min(reader.next.values()) <= number)  # noqa: B023 - called within the loop
    assert reader.values[name, 0] == [b"a0", b"a1", b"a2"]


class CountingCluster(KafkaCluster):
    """Counts the Fetch requests on its connections."""

    fetches = 0

    def lease(self, broker: Broker) -> Connection:
        connection, plain = super().lease(broker), Connection.send

        def send(message):
            self.fetches += isinstance(message, FetchRequest)
            return plain(connection, message)

        connection.send = send  # type: ignore[method-assign]
        return connection


def test_a_small_batch_over_many_partitions_is_one_request(broker, topic):
    name, written = filled(broker, topic, 100, 1)
    with CountingCluster(config(broker, fetch_max_wait_ms=30_000)) as kafka:
        sources = whole(kafka, name)
        started = time.monotonic()
        assert read(kafka, sources) == written
        assert kafka.fetches == 1
        assert time.monotonic() - started < 10


def test_batches_larger_than_every_limit_still_arrive(broker, topic):
    name, written = filled(broker, topic, 3, 5, size=50_000)
    with KafkaCluster(config(broker, fetch_max_bytes=1000, max_partition_fetch_bytes=100)) as kafka:
        assert read(kafka, whole(kafka, name), budget_bytes=1000) == written


def test_no_more_is_fetched_ahead_than_the_budget(broker, kafka, topic):
    name, written = filled(broker, topic, 2, 8000, size=1000)
    sources, budget = whole(kafka, name), 4 << 20
    with Fetcher(kafka, sources, budget_bytes=budget) as fetcher:
        reader, ahead = Reader(fetcher, sources), 0
        deadline = time.monotonic() + TIMEOUT_S
        while not ahead or fetcher._asked_bytes:  # until the threads rest, with nothing polled yet
            with fetcher._lock:
                ahead = fetcher._queued_bytes
            assert time.monotonic() < deadline
        assert budget / 4 < ahead <= budget
        assert reader.read_all() == written


def test_fetching_continues_where_it_is_reported(broker, kafka, topic):
    name, written = filled(broker, topic, 2, 100)
    with Fetcher(kafka, [FetchFrom(name, 0, 0), FetchFrom(name, 1, 0)]) as fetcher:
        assert isinstance(fetcher.poll(TIMEOUT_S), FetchedData)
        fetcher.finish(name, 1)
        again = FetchFrom(name, 0, 40, stop=60)
        fetcher.assign([again])
        assert Reader(fetcher, [again]).read_all() == {0: written[0][40:60]}


def open_transaction(bootstrap: str, topic: str, count: int):
    writer = rig.transactional(bootstrap, uuid4().hex)
    writer.producer.begin_transaction()
    writer.write(topic, [{"value": b"t%d" % number} for number in range(count)])
    return writer.producer


def test_read_committed_stops_at_an_open_transaction_and_shows_what_was_aborted(broker, topic):
    name = created(broker.bootstrap, topic)
    open_transaction(broker.bootstrap, name, 3).abort_transaction(30)
    produce(broker.bootstrap, name, {0: [b"plain"]})
    still_open = open_transaction(broker.bootstrap, name, 1)
    source = FetchFrom(name, 0, 0)
    with KafkaCluster(config(broker, isolation=Isolation.READ_COMMITTED)) as kafka, Fetcher(kafka, [source]) as fetcher:
        seen: list[FetchedData] = []
        deadline = time.monotonic() + TIMEOUT_S
        while not seen or seen[-1].next_offset < 5:
            item = fetcher.poll(0.2)
            assert not isinstance(item, FetchFailed)
            seen += [item] if item else []
            assert time.monotonic() < deadline
        assert [first for item in seen for _, first in item.aborted or ()] == [0]
        assert seen[-1].last_stable_offset == 5
        assert fetcher.poll(0.2) is None, "past the last stable offset"
        still_open.commit_transaction(30)
        item = None
        while item is None:
            item = fetcher.poll(0.2)
            assert time.monotonic() < deadline
        assert isinstance(item, FetchedData)
        assert records_of(item) == [(5, b"t0")]


def fails(kafka: KafkaCluster, source: FetchFrom) -> FetchFailed:
    with Fetcher(kafka, [source]) as fetcher:
        item = fetcher.poll(TIMEOUT_S)
        assert fetcher.done
    assert isinstance(item, FetchFailed), item
    assert isinstance(item.error, DataLossError)
    assert (item.topic, item.partition, item.offset) == (*source.key, source.offset)
    return item


def test_deleted_records_are_data_loss_with_the_lost_range_and_others_continue(broker, kafka, topic):
    name, written = filled(broker, topic, 2, 100)
    sources = whole(kafka, name)
    rig.delete_records(broker.bootstrap, name, before=30)
    error = fails(kafka, sources[0]).error
    assert isinstance(error, OffsetOutOfRangeError)
    assert (error.wanted, error.earliest, error.latest) == (0, 30, 100)
    with Fetcher(kafka, sources) as fetcher:
        reader = Reader(fetcher, sources)
        reader.read_while(lambda: not fetcher.done)
    assert [failed.partition for failed in reader.failures] == [0]
    assert reader.values[name, 1] == written[1]


def test_an_offset_past_the_end_is_data_loss_too(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    produce(broker.bootstrap, name, values(1, 10))
    error = fails(kafka, FetchFrom(name, 0, 11)).error
    assert isinstance(error, OffsetOutOfRangeError)
    assert (error.wanted, error.earliest, error.latest) == (11, 0, 10)


def test_the_end_itself_is_a_fine_offset(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    produce(broker.bootstrap, name, values(1, 10))
    with Fetcher(kafka, [FetchFrom(name, 0, 10)]) as fetcher:
        assert fetcher.poll(1) is None
        assert not fetcher.done
        produce(broker.bootstrap, name, {0: [b"next"]})
        item = fetcher.poll(TIMEOUT_S)
        assert isinstance(item, FetchedData)
        assert records_of(item) == [(10, b"next")]


def test_a_topic_made_again_is_data_loss_naming_both_ids(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    produce(broker.bootstrap, name, values(1, 10))
    (source,) = whole(kafka, name)
    delete_topic(broker.bootstrap, name)
    create_topic(broker.bootstrap, name)
    produce(broker.bootstrap, name, values(1, 10))  # the same size, so the offset alone would raise no suspicion
    error = fails(kafka, source).error
    assert isinstance(error, TopicRecreatedError)
    assert error.expected == str(source.topic_id)
    assert error.found == str(kafka.topics([name])[name].topic_id)


def test_a_topic_made_again_while_it_is_read_is_noticed(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    produce(broker.bootstrap, name, values(1, 10))
    source = FetchFrom(name, 0, 0)
    with Fetcher(kafka, [source]) as fetcher:
        reader = Reader(fetcher, [source])
        reader.read_while(lambda: reader.next[source.key] < 10)
        delete_topic(broker.bootstrap, name)
        create_topic(broker.bootstrap, name)
        produce(broker.bootstrap, name, values(1, 20))
        reader.read_while(lambda: not reader.failures)
    assert isinstance(reader.failures[0].error, TopicRecreatedError)
    assert reader.next[source.key] == 10, "records of the new topic were taken for the old one's"


def test_a_deleted_topic_is_data_loss(broker, kafka, topic):
    name = created(broker.bootstrap, topic)
    (source,) = whole(kafka, name)
    delete_topic(broker.bootstrap, name)
    error = fails(kafka, FetchFrom(name, 0, 0, topic_id=source.topic_id)).error
    assert isinstance(error, TopicRecreatedError)
    assert error.found is None


class ThroughProxy(KafkaCluster):
    proxy: Proxy

    def lease(self, broker: Broker) -> Connection:
        return Connection("127.0.0.1", self.proxy.port, self.config)

    def give_back(self, connection: Connection) -> None:
        connection.close() if connection.address.endswith(f":{self.proxy.port}") else super().give_back(connection)


@pytest.fixture
def through_proxy(broker, topic):
    """A topic of 3 partitions, and a cluster whose fetches go through a proxy."""
    name, written = filled(broker, topic, 3, 3000, **SMALL_BATCHES)
    with KafkaCluster(config(broker)) as plain:
        sources = whole(plain, name)
    made = config(broker, request_timeout_ms=1000, fetch_max_bytes=50_000)
    with proxy_to(broker.address(1)) as proxy, ThroughProxy(made) as kafka:
        kafka.proxy = proxy
        yield kafka, proxy, sources, written


@pytest.mark.parametrize("after", [1, 50_000, 300_000])
def test_a_connection_cut_in_the_middle_of_an_answer_loses_and_repeats_nothing(through_proxy, after):
    kafka, proxy, sources, written = through_proxy
    proxy.cut_after(after)
    assert read(kafka, sources) == written
    assert proxy.cuts == 1
    assert proxy.connections >= 2


def test_a_connection_that_goes_silent_is_replaced(through_proxy):
    kafka, proxy, sources, written = through_proxy
    with Fetcher(kafka, sources, budget_bytes=100_000) as fetcher:
        reader = Reader(fetcher, sources)
        reader.read_while(lambda: not reader.values)
        proxy.freeze()
        reader.read_while(lambda: not proxy.swallowed)
        proxy.thaw()
        assert reader.read_all() == written
    assert proxy.connections >= 2


def test_closing_wakes_a_fetch_that_waits(broker, topic):
    name = created(broker.bootstrap, topic)
    with CountingCluster(config(broker, fetch_max_wait_ms=60_000, request_timeout_ms=60_000)) as kafka:
        fetcher = Fetcher(kafka, [FetchFrom(name, 0, 0)])
        eventually(lambda: kafka.fetches)
        fetching = threading.active_count()
        started = time.monotonic()
        fetcher.close()
        assert time.monotonic() - started < 3
        assert threading.active_count() == fetching - 2  # the one that looks up, and one for the broker
        assert fetcher.poll(5) is None
        fetcher.close()


@pytest.mark.parametrize("method", ["_digest", "_look_up"])
def test_a_bug_in_a_thread_is_raised_and_not_waited_for(broker, kafka, topic, method, monkeypatch):
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Fetcher, method, bug)
    name = created(broker.bootstrap, topic)
    with Fetcher(kafka, [FetchFrom(name, 0, 0)]) as fetcher, pytest.raises(RuntimeError) as caught:
        fetcher.poll(TIMEOUT_S)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_connections_outlive_the_fetcher_and_are_used_again(broker, kafka, topic, monkeypatch):
    name, written = filled(broker, topic, 1, 10)
    sources = whole(kafka, name)
    assert read(kafka, sources) == written
    monkeypatch.setattr("headrace.connectors.kafka.client.wire.pool.Connection", None)  # connecting again would fail
    assert read(kafka, sources) == written


def test_leaders_that_die_and_come_back_lose_and_repeat_nothing(three: BrokerCluster, topic):
    name, written = created(three.bootstrap, topic, partitions=6, replication=3), values(6, 4000)
    produce(three.bootstrap, name, written, **SMALL_BATCHES)
    with KafkaCluster(config(three, fetch_max_bytes=20_000, request_timeout_ms=5000)) as kafka:
        sources = whole(kafka, name)
        with Fetcher(kafka, sources, budget_bytes=200_000) as fetcher:
            reader = Reader(fetcher, sources)
            for _ in range(2):
                reader.read_while(lambda: len(reader.values) < 6)
                # The one furthest behind: of what others lead all may have been read while the first one was replaced.
                victim = kafka.leader(*min(reader.next, key=lambda key: reader.next[key])).broker.node_id
                led = {source.key for source in sources if kafka.leader(*source.key).broker.node_id == victim}
                before = dict(reader.next)
                three.kill(victim)
                assert not three.is_running(victim)
                unfinished = {s.key for s in sources if s.key in led and before[s.key] < (s.stop or 0)}
                assert unfinished, "all was read before the leader died: the test tests nothing"
                reader.read_while(lambda: any(reader.next[key] <= before[key] for key in unfinished))  # noqa: B023
                three.restart(victim)
            assert reader.read_all() == written


def test_a_broker_that_freezes_is_waited_for_or_replaced(three: BrokerCluster, topic):
    name, written = created(three.bootstrap, topic, partitions=3, replication=3), values(3, 4000)
    produce(three.bootstrap, name, written, **SMALL_BATCHES)
    with KafkaCluster(config(three, fetch_max_bytes=20_000, request_timeout_ms=2000)) as kafka:
        sources = whole(kafka, name)
        with Fetcher(kafka, sources, budget_bytes=100_000) as fetcher:
            reader = Reader(fetcher, sources)
            reader.read_while(lambda: len(reader.values) < 3)
            laggard = min(reader.next, key=lambda key: reader.next[key])
            victim = kafka.leader(*laggard).broker.node_id
            three.pause(victim)
            try:
                assert reader.next[laggard] < 2000, "nearly all was read before the broker froze: the test tests nothing"
                assert reader.read_all() == written
                assert kafka.leader(*laggard).broker.node_id != victim
            finally:
                three.resume(victim)
