"""Batch reads against a real broker, with Spark's JVM connector as the measure (KafkaRelationSuite)."""

import json
import operator
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import AnalysisException

from tests.helpers.spark_tools import Topics, numbers

LONG_AGO = 1_600_000_000_000


@pytest.fixture
def read(spark, topics):
    def read(topic=None, *, source="headrace", schema=None, **options):
        reader = spark.read.format(source).options(**topics.options(topic, **options))
        return (reader.schema(schema) if schema else reader).load()

    return read


def values(frame):
    return sorted((row["value"].decode() for row in frame.select("value").collect()), key=lambda text: (len(text), text))


@pytest.fixture
def filled(topics):
    return topics.numbered(3, 10)


def test_default_starting_and_ending_offsets(read, filled):
    assert values(read(filled)) == numbers(range(30))


def test_columns_types_and_contents_equal_the_jvm_connectors(read, topics):
    topic = topics.create(2)
    topics.send(topic, ["a", None, ""], 0, key=b"k", headers=[("h", b"1"), ("h", None), ("g", b"")], timestamp=LONG_AGO)
    topics.send(topic, ["b"], 1)
    theirs, ours = (read(topic, source=source, includeHeaders="true") for source in ("kafka", "headrace"))
    assert ours.schema == theirs.schema
    rows = ours.orderBy("partition", "offset").collect()
    assert rows == theirs.orderBy("partition", "offset").collect()
    assert len(rows) == 4
    assert rows[0]["headers"][0].asDict() == {"key": "h", "value": b"1"}


def test_without_headers_the_schema_equals_the_jvm_connectors(read, filled):
    assert read(filled).schema == read(filled, source="kafka").schema


def test_explicit_offsets(read, topics, filled):
    start = json.dumps({filled: {"0": -2, "1": 3, "2": 5}})
    stop = json.dumps({filled: {"0": -1, "1": 7, "2": -1}})
    assert values(read(filled, startingOffsets=start, endingOffsets=stop)) == numbers(range(10), range(13, 17), range(25, 30))


def test_offsets_must_name_every_partition(read, filled):
    with pytest.raises(AnalysisException, match="must name every partition"):
        read(filled, startingOffsets=json.dumps({filled: {"0": -2}})).collect()


def test_offsets_may_not_name_a_partition_that_is_not_there(read, filled):
    offsets = {filled: dict.fromkeys(map(str, range(4)), -2)}
    with pytest.raises(AnalysisException, match="not there"):
        read(filled, startingOffsets=json.dumps(offsets)).collect()


def test_a_frame_keeps_its_end_and_a_new_one_reads_what_has_come_since(read, topics):
    """Spark plans a Python source once per frame. (The JVM connector plans again for every action.)"""
    topic = topics.create()
    frame = read(topic)
    topics.send(topic, range(5))
    assert frame.count() == 5
    topics.send(topic, range(5, 8))
    assert frame.count() == 5
    assert read(topic).count() == 8


def test_assign(read, filled):
    assert values(read(assign=json.dumps({filled: [0, 2]}))) == numbers(range(10), range(20, 30))


def test_subscribe_pattern(read, topics):
    first, second = topics.create(), topics.create()
    topics.send(first, [1])
    topics.send(second, [2])
    assert values(read(subscribePattern=first.rpartition("-")[0] + "-.*")) == ["1", "2"]


def test_several_topics(read, topics):
    first, second = topics.create(), topics.create()
    topics.send(first, [1])
    topics.send(second, [2])
    assert values(read(f"{first},{second}")) == ["1", "2"]


def test_a_missing_topic_is_named(read):
    with pytest.raises(AnalysisException, match="no such topic or partition"):
        read("headrace-no-such-topic").collect()


def test_an_empty_topic_has_no_rows(read, topics):
    assert read(topics.create(2)).collect() == []


class TestTimestamps:
    @pytest.fixture
    def timed(self, topics):
        topic = topics.create(2)
        for number in range(5):
            for partition in range(2):
                topics.send(topic, [partition * 10 + number], partition, timestamp=LONG_AGO + number * 1000)
        return topic

    def test_global(self, read, timed):
        frame = read(timed, startingTimestamp=LONG_AGO + 1001, endingTimestamp=LONG_AGO + 4000)
        assert values(frame) == numbers(range(2, 4), range(12, 14))

    def test_by_partition(self, read, timed):
        start = json.dumps({timed: {"0": LONG_AGO + 3000, "1": LONG_AGO + 4000}})
        assert values(read(timed, startingOffsetsByTimestamp=start)) == numbers(range(3, 5), range(14, 15))

    def test_timestamps_win_over_offsets(self, read, timed):
        assert values(read(timed, startingTimestamp=LONG_AGO + 4000, startingOffsets="earliest")) == ["4", "14"]

    def test_no_match_is_an_error(self, read, timed):
        with pytest.raises(AnalysisException, match="no offset matches"):
            read(timed, startingTimestamp=LONG_AGO + 10**7).collect()

    def test_no_match_can_mean_the_end(self, read, timed):
        frame = read(timed, startingTimestamp=LONG_AGO + 10**7, startingOffsetsByTimestampStrategy="latest")
        assert frame.collect() == []

    def test_an_end_without_match_is_the_end(self, read, timed):
        assert len(values(read(timed, endingTimestamp=LONG_AGO + 10**7))) == 10


class TestIsolation:
    @pytest.fixture
    def transacted(self, topics):
        topic = topics.create()
        for first, commit in ((0, True), (5, False), (10, True)):
            with topics.transaction() as producer:
                for number in range(first, first + 5):
                    producer.produce(topic, str(number), partition=0)
                producer.flush()
                (producer.commit_transaction if commit else producer.abort_transaction)()
        return topic

    def test_read_committed_leaves_out_aborted_records(self, read, transacted):
        frame = read(transacted, kafka__isolation__level="read_committed")
        assert values(frame) == numbers(range(5), range(10, 15))

    def test_the_default_is_read_uncommitted(self, read, transacted):
        assert values(read(transacted)) == values(read(transacted, source="kafka")) == numbers(range(15))


class TestTasks:
    def test_min_partitions_splits_ranges(self, read, filled):
        frame = read(filled, minPartitions=6)
        assert frame.rdd.getNumPartitions() == 6
        assert values(frame) == numbers(range(30))

    def test_max_records_per_partition_bounds_tasks(self, read, filled):
        frame = read(filled, maxRecordsPerPartition=4)
        assert max(len(part) for part in frame.rdd.glom().collect()) == 4
        assert values(frame) == numbers(range(30))

    def test_small_ranges_share_a_task(self, read, filled):
        assert read(filled).rdd.getNumPartitions() == 1


class TestColumns:
    def test_only_those_of_the_users_schema(self, read, filled):
        frame = read(filled, schema="offset bigint, value binary")
        assert frame.columns == ["offset", "value"]
        assert values(frame) == numbers(range(30))

    def test_headers_need_no_option_then(self, read, topics):
        topic = topics.holding([1], headers=[("a", b"b")])
        (row,) = read(topic, schema="headers array<struct<key:string,value:binary>>").collect()
        assert row["headers"][0]["value"] == b"b"

    @pytest.mark.parametrize(("schema", "message"), [
        ("valu binary", "cannot read valu binary"), ("value string", "cannot read value string"),
        ("value binary not null", "cannot read value binary not null"),
        ("headers array<struct<key:string not null,value:binary>>", "cannot read headers array<.*>> not null"),
    ])  # fmt: skip
    def test_others_are_refused_with_those_there_are(self, read, filled, schema, message):
        with pytest.raises(AnalysisException, match=rf"{message}; it may hold these columns.*timestampType int"):
            read(filled, schema=schema).collect()


@pytest.fixture(scope="module")
def timed(broker):
    """Two partitions of six records a second apart; the second partition's times go down."""
    topics = Topics(broker, iter([f"test-filters-{uuid.uuid4().hex[:8]}"]))
    topic = topics.create(2)
    for number in range(6):
        for partition in range(2):
            at = LONG_AGO + (number if partition == 0 else 5 - number) * 1000
            topics.send(topic, [partition * 10 + number], partition, timestamp=at)
    return topic


class TestFilters:
    """Spark applies every filter; its filter pushdown for Python changes nothing, also where a user has set it."""

    @pytest.fixture(params=["true", "false"], autouse=True)
    def pushdown(self, spark, request):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", request.param)
        yield
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    @pytest.mark.parametrize(("condition", "holds"), [
        ("partition = 1", lambda partition, offset: partition == 1),
        ("partition <> 1", lambda partition, offset: partition != 1),
        ("partition in (0, 5)", lambda partition, offset: partition == 0),
        ("topic like 'test%'", lambda partition, offset: True), ("topic = 'another'", lambda partition, offset: False),
        ("offset >= 2 and offset < 4", lambda partition, offset: 2 <= offset < 4),
        ("offset = 3", lambda partition, offset: offset == 3), ("offset > 100", lambda partition, offset: False),
        ("offset < -1", lambda partition, offset: False), ("offset in (1, 4)", lambda partition, offset: offset in (1, 4)),
        ("offset <> 2", lambda partition, offset: offset != 2),
        ("value = cast('3' as binary)", lambda partition, offset: (partition, offset) == (0, 3)),
        ("partition = 0 or offset = 1", lambda partition, offset: partition == 0 or offset == 1),
    ])  # fmt: skip
    def test_by_place(self, read, timed, condition, holds):
        frame = read(timed).where(condition)
        assert values(frame) == [str(p * 10 + o) for p in range(2) for o in range(6) if holds(p, o)]

    @pytest.mark.parametrize("shift_us", [0, 1, -1])
    @pytest.mark.parametrize("sign", [">", ">=", "<", "<=", "="])
    def test_by_time(self, read, timed, sign, shift_us):
        compare = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "=": operator.eq}[sign]
        moment = datetime.fromtimestamp(LONG_AGO / 1000 + 3, UTC) + timedelta(microseconds=shift_us)
        frame = read(timed).where(f"timestamp {sign} timestamp'{moment.isoformat()}'")
        up = [number for number in range(6) if compare(number * 1_000_000, 3_000_000 + shift_us)]
        assert values(frame) == numbers(up, sorted(15 - number for number in up))

    def test_a_frame_that_is_used_in_several_ways_has_all_its_rows_in_each(self, spark, read, timed):
        frame = read(timed)
        first, second = frame.where("partition = 0"), frame.where("partition = 1")
        assert [first.count(), frame.count(), second.count(), frame.count()] == [6, 12, 6, 12]
        assert values(first.union(second)) == values(frame)
        assert first.alias("a").join(second.alias("b"), "offset").count() == 6
        assert frame.where("offset < 3").join(frame.where("offset >= 1"), ["partition", "offset"]).count() == 4

    def test_a_view_that_is_used_in_several_subqueries_has_all_its_rows_in_each(self, spark, read, timed):
        read(timed).createOrReplaceTempView("timed")
        counts = [f"(select count(*) from timed where {condition})" for condition in ("partition = 0", "offset > 3", "true")]
        assert [*spark.sql(f"select {', '.join(counts)}").collect()[0]] == [6, 4, 12]

    def test_a_cached_frame_keeps_the_rows_that_a_filtered_use_left_out(self, read, timed):
        frame = read(timed)
        assert frame.where("partition = 0").count() == 6
        cached = frame.cache()
        try:
            assert [cached.count(), cached.where("offset = 0").count()] == [12, 2]
        finally:
            cached.unpersist()


def test_options_that_cannot_be_honoured_fail_when_loaded(read):
    with pytest.raises(AnalysisException, match="did you mean 'startingOffsets'"):
        read("t", startingOffset="earliest")


def test_a_full_value_survives(read, topics):
    topic = topics.create(1, max_message_bytes=str(4 << 20))
    big = "x" * (3 << 20)
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": topics.bootstrap, "message.max.bytes": 4 << 20})
    producer.produce(topic, big)
    assert producer.flush(60) == 0
    assert values(read(topic)) == [big]


def test_read_after_the_broker_was_restarted(read, topics, broker, filled):
    assert read(filled).count() == 30
    broker.kill(broker.nodes[0])
    assert not broker.is_running(broker.nodes[0])
    broker.restart(broker.nodes[0])
    assert values(read(filled)) == numbers(range(30))
