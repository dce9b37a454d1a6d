"""The fake broker's clients: kafka-python, librdkafka and our own read from it and write to it, in transactions too."""

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from headrace.kafka import Earliest, KafkaSource, Latest, Timestamp
from headrace.testing.fake_kafka import FakeKafka, NewRecord
from tests.helpers.kafka_rig import read_all
from tests.helpers.python_path import printed
from tests.helpers.sink_rig import committer, kafka_sink, ongoing, prepared

SECONDS = 30.0


@pytest.fixture
def kafka():
    with FakeKafka(brokers=3) as cluster:
        cluster.create_topic("in", partitions=2)
        yield cluster


def consumed(kafka: FakeKafka, topic: str, **settings: str) -> list[bytes]:
    """All of partition 0 by librdkafka, up to where its log ends for the isolation level."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "none", "enable.partition.eof": True, "log_level": 0, **settings}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        message = consumer.poll(1.0)
        if message is not None and message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        if message is not None:
            values.append(message.value())
    consumer.close()
    return values


def rdkafka(kafka: FakeKafka, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "log_level": 0, **settings})


def test_a_cluster_starts_within_50_milliseconds():
    times = []
    for _ in range(5):
        started = time.perf_counter()
        with FakeKafka(brokers=3):
            times.append(time.perf_counter() - started)
    assert min(times) < 0.05


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_writes_idempotently_and_reads_back(kafka, codec):
    producer = rdkafka(kafka, **{"enable.idempotence": True, "compression.type": codec})
    sent = [b"value %d" % number for number in range(500)]
    for value in sent:
        producer.produce("in", value, key=b"key", partition=0)
    assert producer.flush(SECONDS) == 0
    assert consumed(kafka, "in") == sent
    assert [record.value for record in kafka.records("in", 0)] == sent


def test_a_record_of_a_far_time_is_looked_up_by_time_and_kept_by_compaction(kafka):
    """A broker's thread died of it, as Arrow's microseconds end before Kafka's milliseconds."""
    for value, time_ms in ((b"far", 2**62), (b"near", 1_700_000_000_000)):
        kafka.append("in", NewRecord(value, value, timestamp_ms=time_ms), partition=0)
    start = {("in", 0): Timestamp(1_700_000_000_000), ("in", 1): Earliest()}
    source = KafkaSource(kafka.bootstrap, topics=["in"], start=start, stop=Latest(), bad_timestamps="null", columns=["value"])
    assert [row["value"] for batch in source.batches() for row in batch.to_pylist()] == [b"far", b"near"]
    kafka.compact("in")
    assert [record.timestamp_ms for record in kafka.records("in")] == [2**62, 1_700_000_000_000]


def test_librdkafka_reads_only_what_was_committed_unless_it_wants_otherwise(kafka):
    producer = rdkafka(kafka, **{"transactional.id": "writer"})
    producer.init_transactions(SECONDS)
    for name, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce("in", name, partition=0)
        assert producer.flush(SECONDS) == 0
        end(SECONDS)
    assert consumed(kafka, "in", **{"isolation.level": "read_committed"}) == [b"kept"]
    assert consumed(kafka, "in", **{"isolation.level": "read_uncommitted"}) == [b"kept", b"dropped"]
    assert [record.value for record in kafka.records("in", 0)] == [b"kept"]


def test_a_group_of_librdkafka_continues_where_it_has_committed(kafka):
    kafka.append("in", *[b"%d" % number for number in range(10)])
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest", "log_level": 0}
    first = Consumer(settings)
    first.subscribe(["in"])
    seen = [message.value() for message in first.consume(4, SECONDS)]
    first.commit(offsets=[TopicPartition("in", 0, len(seen))], asynchronous=False)
    first.close()
    assert kafka.committed("readers")["in", 0] == 4
    second = Consumer(settings)
    second.subscribe(["in"])
    seen += [message.value() for message in second.consume(6, SECONDS)]
    second.close()
    assert seen == [b"%d" % number for number in range(10)]


def test_two_members_of_a_group_share_the_partitions(kafka):
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "pair", "log_level": 0, "heartbeat.interval.ms": 100}
    members = [Consumer(settings) for _ in range(2)]
    for member in members:
        member.subscribe(["in"])
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and sorted(len(member.assignment()) for member in members) != [1, 1]:
        for member in members:
            member.poll(0.1)
    shares = [{part.partition for part in member.assignment()} for member in members]
    for member in members:
        member.close()
    assert sorted(map(sorted, shares)) == [[0], [1]]


def test_offsets_of_a_transaction_count_once_it_commits(kafka):
    kafka.append("in", b"one", b"two")
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "copier", "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe(["in"])
    assert len(consumer.consume(2, SECONDS)) == 2
    producer = rdkafka(kafka, **{"transactional.id": "copier"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition("in", 0, 2)], consumer.consumer_group_metadata(), SECONDS)
    assert kafka.committed("copier") == {}
    producer.commit_transaction(SECONDS)
    consumer.close()
    assert kafka.committed("copier") == {("in", 0): 2}


def test_kafka_python_writes_and_reads(kafka):
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all")
    for number in range(20):
        producer.send("in", b"%d" % number, partition=1, headers=[("h", b"x")])
    producer.flush(SECONDS)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=30000)
    consumer.assign([PythonTopicPartition("in", 1)])
    seen = [next(consumer) for _ in range(20)]
    consumer.close()
    assert [record.value for record in seen] == [b"%d" % number for number in range(20)]
    assert list(seen[0].headers) == [("h", b"x")]


def test_kafka_python_writes_in_transactions_and_reads_in_a_group(kafka):
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id="python", retry_backoff_ms=10)
    producer.init_transactions()
    for name, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.send("in", name, partition=0)
        producer.flush(SECONDS)
        end()
    producer.close()
    kafka.append("in", b"last")
    consumer = KafkaConsumer(
        "in", bootstrap_servers=kafka.bootstrap, group_id="python", auto_offset_reset="earliest",
        isolation_level="read_committed", consumer_timeout_ms=30000,
    )  # fmt: skip
    seen = [next(consumer).value for _ in range(2)]
    consumer.close()
    assert seen == [b"kept", b"last"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_log_in_by_their_password_and_no_process_else_does(mechanism):
    with FakeKafka(users={"alice": "secret"}) as kafka:
        kafka.create_topic("in")
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": "alice"}
        producer = rdkafka(kafka, **login, **{"sasl.password": "secret"})
        producer.produce("in", b"in")
        assert producer.flush(SECONDS) == 0
        errors: list[KafkaError] = []
        refused = rdkafka(kafka, **login, **{"sasl.password": "guess", "error_cb": errors.append})
        end = time.monotonic() + SECONDS
        while not errors and time.monotonic() < end:
            refused.poll(0.1)
        assert errors[0].code() == KafkaError._AUTHENTICATION
        assert [record.value for record in kafka.records("in")] == [b"in"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_python_and_our_client_log_in(mechanism):
    with FakeKafka(users={"alice": "sec,ret="}) as kafka:
        kafka.create_topic("in")
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
        named = {"sasl_plain_username": "alice", "sasl_plain_password": "sec,ret="}
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, **login, **named)
        producer.send("in", b"x").get(SECONDS)
        producer.close()
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        jaas = f'org.apache.kafka.common.security.{module} required username="alice" password="sec,ret=";'
        properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
        source = KafkaSource(kafka.bootstrap, topics=["in"], start=Earliest(), stop=Latest(), properties=properties)
        assert read_all(source) == [("in", 0, 0, b"x")]


def test_the_fixture_is_a_cluster_of_one_broker(fake_kafka):
    fake_kafka.create_topic("in")
    assert fake_kafka.append("in", b"one", b"two") == 0
    assert fake_kafka.append("in", b"three") == 2
    assert [record.offset for record in fake_kafka.records("in")] == [0, 1, 2]
    assert fake_kafka.brokers == (1,)


def test_the_plugin_costs_a_run_of_pytest_nothing_before_its_fixture_is_used():
    code = (
        "import sys, headrace.pytest_plugin; print([m for m in ('pyarrow', 'kafka', 'headrace.testing') if m in sys.modules])"
    )
    assert printed(code) == "[]"


def test_importing_the_package_imports_neither_pytest_nor_the_fake():
    code = "import sys, headrace.testing; print([m for m in ('pytest', 'headrace.testing.fake_kafka') if m in sys.modules])"
    assert printed(code) == "[]"


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_our_source_reads_what_lies_there(kafka, isolation):
    kafka.append("in", *[NewRecord(b"%d" % number, key=b"k") for number in range(100)])
    producer = rdkafka(kafka, **{"transactional.id": "writer"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("in", b"aborted", partition=0)
    assert producer.flush(SECONDS) == 0
    producer.abort_transaction(SECONDS)
    source = KafkaSource(kafka.bootstrap, topics=["in"], start=Earliest(), stop=Latest(), isolation_level=isolation)
    aborted = [] if isolation == "read_committed" else [("in", 0, 100, b"aborted")]
    assert sorted(read_all(source)) == sorted([*(("in", 0, n, b"%d" % n) for n in range(100)), *aborted])


@pytest.mark.parametrize("version", [1, 2])
def test_our_sink_commits_and_a_new_driver_completes_what_is_on_the_list(kafka, version):
    kafka.set_transaction_version(version)
    sink = kafka_sink(kafka.bootstrap, "in", "commits")
    committer(sink, "job").commit(0, prepared(sink, "job", 0, ["a", "b"], ["c"]))
    assert sorted(record.value for record in kafka.records("in")) == [b"a", b"b", b"c"]
    lost = prepared(sink, "job", 1, ["never committed"])
    committer(sink, "job").recover()
    assert ongoing(sink, "job") == []
    assert len(lost) == 1
    assert sorted(record.value for record in kafka.records("in")) == [b"a", b"b", b"c"]
