"""Faults by script, brokers that come and go, and the clock: what the fake broker does on purpose."""

import threading
import time

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.enumerator.errors import UsageError
from headrace.kafka import Earliest, KafkaSource, Latest
from headrace.testing.fake_kafka import (
    Before,
    Between,
    CutAfter,
    CutBefore,
    Delay,
    ErrorCode,
    FakeKafka,
    LoseAnswer,
    NewRecord,
    Refuse,
    Repeat,
    Rewrite,
    StoppedClock,
    Throttle,
    UnfiredFaultError,
)
from tests.helpers.kafka_rig import read_all
from tests.helpers.kafka_scenarios import Group, Rig
from tests.helpers.kafka_scenarios import Producer as RawProducer
from tests.helpers.raw_kafka import RawKafka, batch

SECONDS = 30.0


@pytest.fixture
def kafka():
    with FakeKafka(brokers=3) as cluster:
        cluster.create_topic("t")
        yield cluster


@pytest.fixture
def raw(kafka):
    """A connection to the leader of t-0."""
    with RawKafka(kafka.address(kafka.leader("t")[0])) as connection:
        yield connection


def produced(raw: RawKafka, value: bytes = b"x") -> int:
    return raw(
        "Produce", 9, acks=-1, timeout_ms=1000, transactional_id=None,
        topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": batch(value)}]}],
    ).responses[0].partition_responses[0].error_code  # fmt: skip


def fetched(raw: RawKafka, offset: int = 0, **fields: int):
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    part |= {key: fields.pop(key) for key in ("current_leader_epoch", "last_fetched_epoch") if key in fields}
    whole = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    return raw("Fetch", 12, topics=[{"topic": "t", "partitions": [part]}], **whole).responses[0].partitions[0]


# --- the script -------------------------------------------------------------------------------------------------------------
def test_the_nth_request_is_refused_and_the_others_are_not(kafka, raw):
    fault = kafka.fault("Produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS), nth=2, times=2)
    assert [produced(raw) for _ in range(5)] == [0, 19, 19, 0, 0]
    assert (fault.seen, fault.fired) == (5, 2)
    assert kafka.offsets("t")[2] == 3


def test_a_refusal_is_of_one_topic_or_partition_where_it_says_so(kafka, raw):
    other = kafka.fault("Produce", Refuse(ErrorCode.INVALID_RECORD, topic="other")).optional()
    this = kafka.fault("Produce", Refuse(ErrorCode.MESSAGE_TOO_LARGE, topic="t", partition=0))
    assert produced(raw) == ErrorCode.MESSAGE_TOO_LARGE
    assert (other.fired, this.fired) == (0, 1)


def test_a_fault_is_of_one_broker_where_it_says_so(kafka):
    fault = kafka.fault("Metadata", Refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic="t"), broker=2, times=None)
    codes = []
    for broker in kafka.brokers:
        with RawKafka(kafka.address(broker)) as raw:
            codes.append(raw("Metadata", 12, topics=[{"name": "t"}]).topics[0].error_code)
    assert codes == [0, 3, 0]
    assert fault.fired == 1


def test_every_top_level_request_can_be_refused(kafka, raw):
    kafka.fault("InitProducerId", Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    kafka.fault("EndTxn", Refuse(ErrorCode.CONCURRENT_TRANSACTIONS))
    ids = {"producer_id": -1, "producer_epoch": -1}
    assert raw("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000, **ids).error_code == 14
    assert raw("EndTxn", 4, transactional_id="x", producer_id=1, producer_epoch=0, committed=True).error_code == 51


def test_a_code_that_kafka_does_not_have_can_be_answered(kafka, raw):
    kafka.fault("Fetch", Refuse(200))
    kafka.fault("Metadata", Refuse(201, topic="t"))
    assert fetched(raw).error_code == 200
    assert raw("Metadata", 12, topics=None).topics[0].error_code == 201


def test_a_request_that_is_refused_several_times_over_counts_once(kafka, raw):
    kafka.create_topic("pair", partitions=2)
    fault = kafka.fault("ListOffsets", Refuse(ErrorCode.REQUEST_TIMED_OUT))
    parts = [{"partition_index": index, "timestamp": -1, "current_leader_epoch": -1} for index in (0, 1)]
    answer = raw("ListOffsets", 6, isolation_level=0, topics=[{"name": "pair", "partitions": parts}])
    assert [part.error_code for part in answer.topics[0].partitions] == [7, 7]
    assert fault.fired == 1


def test_a_cut_before_has_no_effect_and_a_cut_after_has(kafka):
    address = kafka.address(kafka.leader("t")[0])
    for action, end in ((CutBefore(), 0), (CutAfter(), 1)):
        fault = kafka.fault("Produce", action)
        with RawKafka(address) as raw, pytest.raises(ConnectionResetError):
            produced(raw)
        assert fault.fired == 1
        assert kafka.offsets("t")[2] == end


def test_a_lost_answer_leaves_the_connection_and_the_effect(kafka, raw):
    kafka.fault("Produce", LoseAnswer())
    raw.send(
        "Produce", 9, acks=-1, timeout_ms=1000, transactional_id=None,
        topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": batch(b"lost")}]}],
    )  # fmt: skip
    raw.send("ApiVersions", 0)
    assert raw.receive("ApiVersions", 0).error_code == 0  # the answer to the second request is the first to come
    assert [record.value for record in kafka.records("t")] == [b"lost"]


def test_an_idempotent_producer_survives_what_is_done_twice_cut_or_lost(kafka):
    faults = [kafka.fault("Produce", action, nth=nth) for nth, action in ((1, Repeat()), (2, CutAfter()), (4, CutBefore()))]
    settings = {"enable.idempotence": True, "linger.ms": 0, "retry.backoff.ms": 1, "log_level": 0}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, **settings})
    for number in range(6):
        producer.produce("t", b"%d" % number)
        assert producer.flush(SECONDS) == 0
    assert [fault.fired for fault in faults] == [1, 1, 1]
    assert [record.value for record in kafka.records("t")] == [b"%d" % number for number in range(6)]


def test_a_producer_without_idempotence_writes_twice_what_is_done_twice(kafka, raw):
    kafka.fault("Produce", Repeat())
    assert produced(raw, b"double") == 0
    assert [record.value for record in kafka.records("t")] == [b"double", b"double"]


def test_a_delay_is_kept(kafka, raw):
    kafka.fault("Metadata", Delay(0.2))
    started = time.monotonic()
    raw("Metadata", 12, topics=[])
    assert time.monotonic() - started >= 0.2


def test_a_request_that_is_held_up_holds_up_its_own_connection_only(kafka, raw):
    gate = threading.Event()
    fault = kafka.fault("Metadata", Before(gate.wait))
    raw.send("Metadata", 12, topics=[])
    with RawKafka(kafka.address(1)) as other:
        assert other("ApiVersions", 0).error_code == 0
    gate.set()
    raw.receive("Metadata", 12)
    assert fault.fired == 1


def test_a_throttle_is_reported_and_kept(kafka, raw):
    kafka.fault("Metadata", Throttle(200))
    started = time.monotonic()
    assert raw("Metadata", 12, topics=[]).throttle_time_ms == 200
    raw("ApiVersions", 0)
    assert time.monotonic() - started >= 0.2


def test_a_leader_moves_between_two_bytes_of_an_answer(kafka, raw):
    kafka.append("t", b"whole")
    leader, epoch = kafka.leader("t")
    target = next(broker for broker in kafka.brokers if broker != leader)
    kafka.fault("Fetch", Between(lambda: kafka.move_leader("t", to=target)))
    assert len(fetched(raw).records) > 0
    assert kafka.leader("t") == (target, epoch + 1)
    assert fetched(raw, current_leader_epoch=epoch).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_an_answer_can_be_rewritten(kafka, raw):
    def claim(response) -> None:
        response.responses[0].partitions[0].high_watermark = 77

    kafka.fault("Fetch", Rewrite(claim))
    assert [fetched(raw).high_watermark for _ in range(2)] == [77, 0]


def test_metadata_flaps_as_it_is_instructed_to(kafka, raw):
    kafka.create_topic("many", partitions=4)
    faults = kafka.flap_metadata("many", [4, None, 3, 4])
    seen = [raw("Metadata", 12, topics=[{"name": "many"}]).topics[0] for _ in range(5)]
    assert [len(topic.partitions) for topic in seen] == [4, 0, 3, 4, 4]
    assert [topic.error_code for topic in seen] == [0, 3, 0, 0, 0]
    assert all(fault.fired for fault in faults)


def test_a_fault_that_never_happened_fails_at_the_end():
    with pytest.raises(UnfiredFaultError, match=r"Fetch at broker 1, from number 3 on.*seen 0 times"), FakeKafka() as kafka:
        kafka.fault("Fetch", CutAfter(), broker=1, nth=3)


def test_an_error_of_the_test_is_not_hidden_by_a_fault_that_never_happened():
    def divide(kafka: FakeKafka) -> None:
        with kafka:
            kafka.fault("Fetch", CutAfter())
            assert 1 / 0

    with pytest.raises(ZeroDivisionError):
        divide(FakeKafka())


def test_a_script_that_makes_no_sense_is_refused(kafka):
    with pytest.raises(UsageError, match=r"speaks no 'Fetsh'; it speaks .*Fetch"):
        kafka.fault("Fetsh", CutAfter())
    with pytest.raises(UsageError, match="count from 1"):
        kafka.fault("Fetch", CutAfter(), nth=0)
    with pytest.raises(UsageError, match="no broker 9"):
        kafka.stop_broker(9)
    with pytest.raises(UsageError, match=r"no setting no\.such"):
        FakeKafka(config={"no.such": "1"})


# --- leaders, brokers, logs ---------------------------------------------------------------------------------------------------
def test_a_stopped_brokers_partitions_continue_elsewhere_and_it_comes_back_at_its_port(kafka):
    kafka.append("t", b"kept")
    leader, epoch = kafka.leader("t")
    address = kafka.address(leader)
    kafka.stop_broker(leader)
    with pytest.raises(ConnectionRefusedError):
        RawKafka(address)
    successor, later = kafka.leader("t")
    assert successor != leader
    assert later == epoch + 1
    with RawKafka(kafka.address(successor)) as raw:
        topic = raw("Metadata", 12, topics=[{"name": "t"}])
        assert [broker.node_id for broker in topic.brokers] == [each for each in kafka.brokers if each != leader]
        assert leader in topic.topics[0].partitions[0].offline_replicas
        assert produced(raw) == 0
    kafka.start_broker(leader)
    with RawKafka(address) as raw:
        assert produced(raw) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(fetched(raw).records) > 0  # a follower serves clients


def test_a_partition_without_replicas_left_has_no_leader_until_one_returns():
    with FakeKafka(brokers=2) as kafka:
        kafka.create_topic("t", replicas=1)
        leader, epoch = kafka.leader("t")
        kafka.stop_broker(leader)
        assert kafka.leader("t") == (-1, epoch + 1)
        with RawKafka(kafka.address(3 - leader)) as raw:
            partition = raw("Metadata", 12, topics=[{"name": "t"}]).topics[0].partitions[0]
            assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        kafka.start_broker(leader)
        assert kafka.leader("t") == (leader, epoch + 2)


def test_our_source_reads_on_through_a_rolling_restart(kafka):
    kafka.append("t", *[b"%d" % number for number in range(10)])
    down: list[int] = []

    def roll() -> None:
        kafka.rolling_restart(down.append)

    kafka.fault("Fetch", Before(roll))
    source = KafkaSource(kafka.bootstrap, topics=["t"], start=Earliest(), stop=Latest())
    assert read_all(source) == [("t", 0, number, b"%d" % number) for number in range(10)]
    assert down == [1, 2, 3]


def test_what_a_broker_that_is_truncated_accepts_is_lost_when_it_rejoins(kafka):
    leader, epoch = kafka.leader("t")
    kafka.append("t", b"before")
    kafka.isolate_broker(leader)
    successor, _ = kafka.leader("t")
    assert successor != leader
    with RawKafka(kafka.address(leader)) as raw:
        partition = raw("Metadata", 12, topics=[{"name": "t"}]).topics[0].partitions[0]
        assert (partition.leader_id, partition.leader_epoch) == (leader, epoch)
        accepted = raw(
            "Produce", 9, acks=1, timeout_ms=1000, transactional_id=None,
            topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": batch(b"astray")}]}],
        )  # fmt: skip
        assert accepted.responses[0].partition_responses[0].error_code == 0
        assert produced(raw) == ErrorCode.REQUEST_TIMED_OUT
        assert fetched(raw).high_watermark == 1
    kafka.append("t", b"after")
    kafka.rejoin_broker(leader)
    assert [record.value for record in kafka.records("t")] == [b"before", b"after"]


def test_a_client_learns_where_its_history_and_the_logs_part(kafka, raw):
    _, epoch = kafka.leader("t")
    kafka.append("t", b"0", b"1")
    kafka.append("t", b"2", b"3")
    kafka.lose_records("t", from_offset=2)
    successor, later = kafka.leader("t")
    kafka.append("t", b"other 2", b"other 3", b"other 4")
    assert later == epoch + 1
    with RawKafka(kafka.address(successor)) as connection:
        answer = fetched(connection, 4, current_leader_epoch=later, last_fetched_epoch=epoch)
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (epoch, 2)
        parts = [{"partition": 0, "current_leader_epoch": later, "leader_epoch": epoch}]
        found = connection("OffsetForLeaderEpoch", 4, replica_id=-1, topics=[{"topic": "t", "partitions": parts}])
        assert found.topics[0].partitions[0].end_offset == 2


def test_producers_of_lost_records_write_them_again(kafka):
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0})
    for value in (b"a", b"b"):
        producer.produce("t", value)
        assert producer.flush(SECONDS) == 0
    kafka.lose_records("t", from_offset=1)
    assert [record.value for record in kafka.records("t")] == [b"a"]


def test_a_held_high_watermark_hides_what_is_not_replicated(kafka, raw):
    kafka.append("t", b"seen")
    kafka.hold_high_watermark("t")
    assert produced(raw) == 0
    assert kafka.offsets("t") == (0, 1, 1)
    kafka.release_high_watermark("t")
    assert kafka.offsets("t") == (0, 2, 2)


def test_retention_in_the_middle_of_a_read_is_out_of_range(kafka, raw):
    kafka.append("t", b"old")
    kafka.append("t", b"new")
    kafka.fault("Fetch", Before(lambda: kafka.delete_records("t", before=1)))
    assert fetched(raw).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched(raw, 1).log_start_offset == 1


# --- waiting ------------------------------------------------------------------------------------------------------------------
def test_a_fetch_waits_for_enough_bytes_and_no_longer_than_it_may(kafka, raw):
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(fetched(raw, max_wait_ms=20_000, min_bytes=100)))
    started = time.monotonic()
    waiting.start()
    kafka.append("t", b"small")
    kafka.append("t", b"enough")
    waiting.join(SECONDS)
    assert len(answers[0].records) > 100
    assert time.monotonic() - started < 15
    started = time.monotonic()
    assert fetched(raw, 2, max_wait_ms=200, min_bytes=100).error_code == 0
    assert time.monotonic() - started >= 0.2


def test_a_read_committed_fetch_waits_for_the_end_of_the_transaction():
    with FakeKafka() as kafka, RawKafka(kafka.bootstrap) as raw, RawKafka(kafka.bootstrap) as reader:
        kafka.create_topic("t")
        producer = RawProducer(Rig(raw), "p", 2)
        producer.init()
        assert producer.write("t") == 0
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(fetched(reader, 0, max_wait_ms=20_000, isolation_level=1)))
        waiting.start()
        assert producer.end(True)[0] == 0
        waiting.join(SECONDS)
        assert len(answers[0].records) > 0


# --- the clock ----------------------------------------------------------------------------------------------------------------
@pytest.fixture
def alone():
    """One broker whose clock is still."""
    with FakeKafka(clock=StoppedClock()) as kafka, RawKafka(kafka.bootstrap) as raw:
        kafka.create_topic("t")
        rig = Rig(raw)
        rig.prefix = ""
        yield kafka, rig


def test_a_transaction_times_out_when_the_clock_says_so(alone):
    kafka, rig = alone
    producer = RawProducer(rig, "p", 2, timeout_ms=60_000)
    producer.init()
    assert producer.write("t") == 0
    kafka.clock.advance(59)
    assert producer.describe().transaction_state == "Ongoing"
    kafka.clock.advance(1)
    assert producer.describe().transaction_state == "CompleteAbort"
    assert producer.end(True)[0] == ErrorCode.INVALID_TXN_STATE
    assert kafka.records("t") == []


def test_a_transactional_id_is_forgotten_after_a_week(alone):
    kafka, rig = alone
    producer = RawProducer(rig, "p", 2)
    producer.init()
    kafka.clock.advance(7 * 86_400)
    assert producer.describe().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert producer.end(True)[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_member_that_gives_no_sign_of_lifetime_is_lost(alone):
    kafka, rig = alone
    group = Group(rig, "g")
    joined = group.joined()
    who = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    group.sync(**who)
    kafka.clock.advance(9)
    assert group("Heartbeat", 4, **who).error_code == 0
    kafka.clock.advance(9)
    assert group("Heartbeat", 4, **who).error_code == 0
    kafka.clock.advance(10)
    assert group("Heartbeat", 4, **who).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_retention_follows_the_clock(alone):
    kafka, _ = alone
    kafka.create_topic("short", configs={"retention.ms": "60000"})
    kafka.append("short", b"old")
    kafka.clock.advance(59)
    kafka.append("short", b"new")
    kafka.clock.advance(2)
    kafka.apply_retention()
    assert [record.value for record in kafka.records("short")] == [b"new"]
    kafka.clock.advance(600)
    assert kafka.records("short") == []  # by itself, as brokers do every five minutes


def test_retention_by_size_keeps_the_newest(alone):
    kafka, _ = alone
    kafka.create_topic("small", configs={"retention.bytes": "100"})
    for value in (b"a", b"b", b"c"):
        kafka.append("small", value)
    kafka.apply_retention()
    assert [record.value for record in kafka.records("small")] == [b"b", b"c"]


def test_compaction_keeps_the_last_of_each_key_at_its_offset(alone):
    kafka, _ = alone
    kafka.create_topic("table", configs={"cleanup.policy": "compact"})
    first = [NewRecord(b"1", b"a"), NewRecord(b"1", b"b"), NewRecord(b"1", b"c", headers=[("h", b"x"), ("n", None)])]
    kafka.append("table", *first)
    kafka.append("table", NewRecord(b"2", b"a"), NewRecord(None, b"b"))
    kafka.compact("table")
    kept = [(record.offset, record.key, record.value, tuple(record.headers)) for record in kafka.records("table")]
    assert kept == [(2, b"c", b"1", (("h", b"x"), ("n", None))), (3, b"a", b"2", ())]
    assert kafka.offsets("table") == (0, 5, 5)
    source = KafkaSource(kafka.bootstrap, topics=["table"], start=Earliest(), stop=Latest())
    assert [row[2:] for row in read_all(source)] == [(2, b"1"), (3, b"2")]


def test_a_transaction_outlives_a_topic_that_it_wrote_to(alone):
    kafka, rig = alone
    kafka.create_topic("doomed")
    producer = RawProducer(rig, "p", 2)
    producer.init()
    assert [producer.write("t"), producer.rig.produce("doomed", tagged(producer), 12, "p").error_code] == [0, 0]
    kafka.delete_topic("doomed")
    assert producer.end(True)[0] == 0
    assert len(kafka.records("t")) == 1


def tagged(producer: RawProducer) -> bytes:
    return batch(b"x", attributes=0x10, producer_id=producer.pid, producer_epoch=producer.epoch, base_sequence=0)


def test_held_markers_keep_a_committed_transaction_unseen_and_its_id_busy(alone):
    kafka, rig = alone
    producer = RawProducer(rig, "p", 2)
    producer.init()
    assert producer.write("t") == 0
    with kafka.markers_held():
        assert producer.end(True)[0] == 0
        assert kafka.records("t") == []
        ids = {"producer_id": -1, "producer_epoch": -1}
        answer = rig.raw("InitProducerId", 4, transactional_id="p", transaction_timeout_ms=1000, **ids)
        assert answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert [record.value for record in kafka.records("t")] == [b"x"]


def test_quotas_throttle_who_takes_more(alone):
    kafka, rig = alone
    kafka.set_quota("producer_byte_rate", 1000, client_id="raw")
    parts = [{"name": "t", "partition_data": [{"index": 0, "records": batch(bytes(1200))}]}]
    answer = rig.raw("Produce", 9, acks=-1, timeout_ms=1000, transactional_id=None, topic_data=parts)
    assert 200 <= answer.throttle_time_ms <= 400


def test_an_expired_transaction_of_a_real_client_cannot_be_committed():
    with FakeKafka() as kafka:
        kafka.create_topic("t")
        settings = {"transactional.id": "slow", "transaction.timeout.ms": 60_000, "log_level": 0}
        producer = Producer({"bootstrap.servers": kafka.bootstrap, **settings})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.produce("t", b"late")
        assert producer.flush(SECONDS) == 0
        kafka.clock.advance(61)
        with pytest.raises(KafkaException) as raised:
            producer.commit_transaction(SECONDS)
        assert raised.value.args[0].code() == KafkaError._FENCED
        assert kafka.records("t") == []


def test_a_test_that_names_what_is_not_there_is_reported_what(kafka):
    with pytest.raises(UsageError, match="UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'u'"):
        kafka.append("u", b"x")
    with pytest.raises(UsageError, match="topic 't' has no partition 7"):
        kafka.hold_high_watermark("t", 7)
