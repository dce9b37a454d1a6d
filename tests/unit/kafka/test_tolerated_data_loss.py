"""What `fail_on_data_loss` means, and that it means the same embedded, in Beam and in Spark: over a Kafka of this process."""

from __future__ import annotations

import re
import time
from contextlib import closing
from dataclasses import replace

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("apache_beam")

from headrace.connectors.kafka.client.errors import TopicRecreatedError
from headrace.connectors.kafka.read import fetch_plan
from headrace.enumerator.errors import DataLossError
from headrace.kafka import Earliest, KafkaSource, Latest
from headrace.runners.spark.stream import StreamPlanner
from headrace.runners.spark.tasks import read_splits
from headrace.spark.kafka_read import Mode, kafka_read
from headrace.testing.fake_kafka import FakeKafka
from tests.helpers.beam_rig import BeamRun

TEN = [b"%d" % number for number in range(10)]


@pytest.fixture
def kafka(monkeypatch):
    monkeypatch.setattr(fetch_plan, "_CUT_SHORT_GRACE_S", 0.1)
    with FakeKafka(brokers=3) as kafka:
        kafka.create_topic("t", partitions=1)
        for record in TEN:  # a batch each, as truncation goes by batches
            kafka.append("t", record)
        yield kafka


class Spark:
    """A query with its checkpoint, over any number of runs."""

    def __init__(self, kafka, **options):
        self._options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "t", "startingOffsets": "earliest", **options}
        self.offset_log = []
        self.restart()

    def restart(self, **options):
        self._options |= options
        self.read = kafka_read(self._options, Mode.STREAM)
        self.planner = StreamPlanner(self.read, lambda: 0.0)

    def plan(self):
        """The tasks of the next batch; None when there is nothing to do."""
        start = self.offset_log[-1] if self.offset_log else self.planner.initial_offsets()
        end = self.planner.next_offsets(start, None, None)
        if end == start:
            return None
        self.offset_log.append(end)
        return self.planner.tasks(start, end)

    def offsets_of(self, tasks):
        found = [read_splits(self.read.source, task, list(self.read.columns), 30.0) for task in tasks]
        return [offset for batches in found for batch in batches for offset in batch.column("offset").to_pylist()]

    def all(self):
        """Every offset until there is nothing to do."""
        offsets = []
        while (tasks := self.plan()) is not None:
            offsets += self.offsets_of(tasks)
        return offsets


def embedded(source, checkpoint, upto):
    with source.batches(checkpoint) as batches:
        offsets = []
        while not offsets or offsets[-1] != upto:
            offsets += next(batches).column("offset").to_pylist()
        return offsets, batches.checkpoint()


def beam(source, checkpoint, upto):
    with closing(BeamRun(source, checkpoint, publish=False, read_s=0.3)) as run:
        while not run.batches or run.batches[-1].column("offset")[-1].as_py() != upto:
            run.step(0.3)
        return [offset for batch in run.batches for offset in batch.column("offset").to_pylist()], run.snapshot()


class TestALogThatWasTruncatedBelowTheCheckpoint:
    """Offsets 0 to 9 were read, the log was cut to 7, and 7 and 8 were written since."""

    @pytest.mark.parametrize("read", [embedded, beam])
    def test_continues_where_it_is_no_more_what_was_read_at_every_restart(self, kafka, read):
        source = KafkaSource(kafka.bootstrap, topics=["t"], start=Earliest(), fail_on_data_loss=False)
        offsets, checkpoint = read(source, None, upto=9)
        assert offsets == list(range(10))
        kafka.lose_records("t", from_offset=7)
        kafka.append("t", b"new", b"new")
        for _ in range(2):
            assert read(source, checkpoint, upto=8)[0] == [7, 8]

    @pytest.mark.parametrize("written", [2, 9], ids=["to before the position", "beyond it"])
    @pytest.mark.parametrize("available_now", [False, True])
    def test_a_spark_query_leaves_out_nothing_that_was_written_since(self, kafka, written, available_now):
        query = Spark(kafka, failOnDataLoss="false", commitOffsetsToGroup="g")
        assert query.all() == list(range(10))
        query.planner.committed(query.offset_log[-1])
        kafka.lose_records("t", from_offset=7)
        kafka.append("t", *[b"new"] * written)
        query.restart()
        if available_now:
            query.planner.pin_end()
        assert query.all() == list(range(7, 7 + written))
        query.planner.committed(query.offset_log[-1])
        assert kafka.committed("g") == {("t", 0): 7 + written}
        query.restart(failOnDataLoss="true")
        assert query.plan() is None, "what was tolerated is past"


class TestAReadWithAStop:
    """Of a log that is truncated below the stop after the read was planned."""

    @pytest.mark.parametrize("restarts", [False, True])
    def test_a_batch_of_a_query_that_is_cut_is_data_loss_and_does_not_wait_for_ever(self, kafka, restarts):
        query = Spark(kafka)
        tasks = query.plan()
        kafka.lose_records("t", from_offset=5)
        if restarts:
            query.restart()
        message = r"t-0: the log ends at offset 5, .* up to 10: offsets 5 to 9 are gone"
        with pytest.raises(DataLossError, match=message) as raised:
            query.offsets_of(tasks)
        assert "failOnDataLoss=false" in "".join(raised.value.__notes__)

    def test_or_ends_with_what_is_there_and_the_next_batch_continues_there(self, kafka, caplog):
        query = Spark(kafka, failOnDataLoss="false")
        tasks = query.plan()
        kafka.lose_records("t", from_offset=5)
        assert query.offsets_of(tasks) == [0, 1, 2, 3, 4]
        assert "offsets 5 to 9 are gone" in caplog.text
        assert query.all() == []
        kafka.append("t", b"new", b"new")
        assert query.all() == [5, 6]

    def test_no_piece_of_a_partition_starts_before_its_own_start(self, kafka):
        query = Spark(kafka, failOnDataLoss="false", minPartitions="2")
        first, second = query.plan()
        assert [split.next_offset for split in (*first, *second)] == [0, 5]
        kafka.lose_records("t", from_offset=3)
        assert query.offsets_of([second, first]) == [0, 1, 2]

    @pytest.mark.parametrize("read", [embedded, beam])
    def test_ends_embedded_and_in_beam_too(self, kafka, read):
        source = KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest(), fail_on_data_loss=False)
        checkpoint = planned(source, read)
        kafka.lose_records("t", from_offset=5)
        if read is embedded:
            with source.batches(checkpoint) as batches:
                assert sum(batch.num_rows for batch in batches) == 5
            return
        with closing(BeamRun(source, checkpoint, publish=False, read_s=0.3)) as run:
            while not run.finished:
                run.step(0.3)
            assert sum(batch.num_rows for batch in run.batches) == 5


def test_a_topic_that_was_deleted_leaves_the_checkpoint_of_an_embedded_run(kafka):
    """findings: Source 6. Afterwards no loss need be tolerated any more, and topics that come and go leave nothing behind."""
    kafka.create_topic("t-old")
    kafka.append("t-old", b"a")
    quick = {"retry.backoff.ms": "1", "retry.backoff.max.ms": "1"}
    source = KafkaSource(kafka.bootstrap, pattern="t.*", start=Earliest(), fail_on_data_loss=False, properties=quick)
    with source.batches() as batches:
        assert sum(next(batches).num_rows for _ in range(2)) == 11
        before = batches.checkpoint()
    kafka.delete_topic("t-old")
    with source.batches(before) as batches:
        after = batches.checkpoint()
    assert b"t-old" in before
    assert b"t-old" not in after
    kafka.append("t", b"last")
    with replace(source, fail_on_data_loss=True).batches(after) as batches:
        assert next(batches).column("value").to_pylist() == [b"last"]


SUBSCRIPTIONS = pytest.mark.parametrize(("both", "one"), [
    ({"topics": ["t", "u"]}, {"topics": ["t"]}), ({"pattern": "[tu]"}, {"pattern": "t"}),
    ({"partitions": {"t": [0], "u": [0]}}, {"partitions": {"t": [0]}}),
], ids=["topics", "pattern", "partitions"])  # fmt: skip


class TestATopicThatIsSubscribedToNoMore:
    """Left out of the subscription at a restore: the log said that it is left out, and it was still read."""

    @pytest.fixture
    def both_read(self, kafka):
        kafka.create_topic("u")
        kafka.append("u", b"u0")
        return lambda read, both: read(KafkaSource(kafka.bootstrap, **both), None)

    @staticmethod
    def embedded(source, checkpoint, quiet_s=0.7):
        values, ends_at = [], time.monotonic() + quiet_s
        with source.batches(checkpoint) as batches:
            while time.monotonic() < ends_at and not batches._run.finished:
                if (batch := batches._run.poll(0.05)) is not None and batch.records.num_rows:
                    values += batch.records.column("value").to_pylist()
                    ends_at = time.monotonic() + quiet_s
            state = batches.checkpoint()
            batches.checkpoint_completed()
        return values, state

    @staticmethod
    def beam(source, checkpoint, quiet_s=0.7):
        seen, ends_at = 0, time.monotonic() + quiet_s
        with closing(BeamRun(source, checkpoint, publish=source.group is not None, read_s=0.1)) as run:
            while time.monotonic() < ends_at and not run.finished:
                run.step(0.1)
                if len(run.batches) > seen:
                    seen, ends_at = len(run.batches), time.monotonic() + quiet_s
            return [value for batch in run.batches for value in batch.column("value").to_pylist()], run.snapshot()

    @SUBSCRIPTIONS
    @pytest.mark.parametrize(("name", "stop"), [("embedded", None), ("embedded", Latest()), ("beam", None)])
    def test_is_read_no_more_where_that_is_tolerated(self, kafka, both_read, caplog, both, one, name, stop):
        read = getattr(self, name)
        values, checkpoint = both_read(read, both)
        assert sorted(values) == [*TEN, b"u0"]
        kafka.append("t", b"t1")
        kafka.append("u", b"u1")
        source = KafkaSource(kafka.bootstrap, **one, stop=stop, fail_on_data_loss=False, group="g")
        values, checkpoint = read(source, checkpoint)
        assert values == [b"t1"]
        assert "the source no longer selects the partition; continuing without them" in caplog.text
        assert caplog.text.count("continuing without them") == 1
        if name == "embedded":
            assert kafka.committed("g") == {("t", 0): 11}
            strict = replace(source, fail_on_data_loss=True)
            assert read(strict, checkpoint)[0] == [], "what was tolerated is past"

    @SUBSCRIPTIONS
    @pytest.mark.parametrize("name", ["embedded", "beam"])
    def test_is_data_loss_where_it_is_not(self, kafka, both_read, both, one, name):
        read = getattr(self, name)
        _, checkpoint = both_read(read, both)
        with pytest.raises(DataLossError, match=r"u-0 .* the source no longer selects the partition"):
            read(KafkaSource(kafka.bootstrap, **one), checkpoint)

    @pytest.mark.parametrize("name", ["embedded", "beam"])
    def test_is_found_again_when_it_is_subscribed_to_again(self, kafka, both_read, name):
        """Its position is forgotten, so it starts where new partitions do: nothing is left out."""
        read = getattr(self, name)
        _, checkpoint = both_read(read, {"topics": ["t", "u"]})
        _, checkpoint = read(KafkaSource(kafka.bootstrap, topics=["t"], fail_on_data_loss=False), checkpoint)
        kafka.append("u", b"u1")
        assert read(KafkaSource(kafka.bootstrap, topics=["t", "u"]), checkpoint)[0] == [b"u0", b"u1"]


def test_a_reader_shows_of_a_topic_recreated_up_to_where_each_partition_was_read(kafka, caplog):
    """It said no partition and no offset; what is notified of missing partitions has the positions of the last checkpoint."""
    source = KafkaSource(kafka.bootstrap, topics=["t"], fail_on_data_loss=False, discovery_interval_s=0.05)
    (old,) = source.create_discovery().initial().added
    with source.batches() as batches:
        assert next(batches).num_rows == 10
        made_anew(kafka)
        assert next(batches).num_rows > 0
    (settings,) = re.findall(
        r"t-0 \(topic id (\S+), read up to offset (\d+)\): topic 't' was .*; continuing without the rest", caplog.text
    )
    assert settings == (str(old.topic_id), "10")
    assert f"t-0 (topic id {old.topic_id}, checkpoint at offset 0): the topic was deleted" in caplog.text


def test_so_does_the_error(kafka):
    source = KafkaSource(kafka.bootstrap, topics=["t"])
    (split,) = source.create_discovery().initial().added
    with closing(source.create_reader()) as reader:
        reader.add_splits([split])
        read_to(reader, 10)
        made_anew(kafka)
        with pytest.raises(TopicRecreatedError) as raised:
            read_to(reader, 11)
    assert "t-0 was read up to offset 10" in "".join(raised.value.__notes__)


def read_to(reader, offset):
    """Until it has delivered what is before that offset."""
    while (batch := reader.poll(0.05)) is None or batch.split.next_offset < offset:
        pass


def planned(source, read):
    """A checkpoint of a read that has started and delivered nothing."""
    if read is embedded:
        with source.batches() as batches:
            return batches.checkpoint()
    with closing(BeamRun(source, None, publish=False)) as run:
        return run.snapshot()


# --- whether a position can be gone back to ---------------------------------------------------------------------------------
def made_anew(kafka):
    kafka.delete_topic("t")
    kafka.create_topic("t", partitions=1)
    for record in TEN:
        kafka.append("t", record)


@pytest.mark.parametrize(("loses", "story"), [
    (lambda kafka: kafka.delete_records("t", before=5),
        "t-0: offset 3 is out of range, available are 5 to 10 .* offsets 3 to 4 were deleted"),
    (made_anew, "partitions are gone: t-0"),
    (lambda kafka: kafka.lose_records("t", from_offset=2), "the partition ends at 2, but was already read up to 3"),
], ids=["retention", "recreated", "cut"])  # fmt: skip
def test_what_is_gone_after_a_position_is_reported_before_any_process_reads(kafka, caplog, loses, story):
    source = KafkaSource(kafka.bootstrap, topics=["t"], properties={"retry.backoff.ms": "1", "retry.backoff.max.ms": "1"})
    (found,) = source.create_discovery().initial().added
    split = replace(found, next_offset=3)
    source.check_readable([split])
    source.check_readable([])
    loses(kafka)
    with pytest.raises(DataLossError, match=story):
        source.check_readable([split])
    assert caplog.text == ""
    replace(source, fail_on_data_loss=False).check_readable([split])
    assert re.search(story, caplog.text)
