"""The same Pipeline on Spark and on Beam: what becomes of its source, transform and sink, and what is refused by name."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("apache_beam")

import apache_beam as beam
from apache_beam.testing.util import assert_that, equal_to

from headrace.beam import BeamSource, ReadFromKafka, ReadFromSource
from headrace.connectors.base.hybrid import HybridSplit
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import DataLossError, StateError, UsageError
from headrace.enumerator.events import DiscoverAfter, DiscoverInitial
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.resumed import ResumedDiscovery, ResumedLogDiscovery, resumed, resumed_discovery
from headrace.enumerator.source import Stage
from headrace.enumerator.source_driver import SourceDriver
from headrace.files import FileSource
from headrace.formats import JsonFormat
from headrace.kafka import AtLeastOnceKafkaSink, DeadLetters, KafkaSink, KafkaSource, KafkaSplit, Latest, Timestamp
from headrace.run import Pipeline
from headrace.runners.beam import capabilities
from headrace.runners.beam.coders import EnumerationFormat, ReaderFormat
from headrace.runners.beam.enumerate import look
from headrace.runners.beam.event_time import SplitWatermark
from headrace.runners.beam.split_restriction import Enumerated, Fresh
from headrace.runners.local.savepoints import Savepoint
from headrace.runners.spark import writers
from headrace.sinks import FunctionSink
from headrace.sources import Hybrid
from headrace.testing import FakeKafka, MemoryLog, MemoryPieces, MemorySource, MemorySplit
from headrace.testing.fake_kafka.state.logs.batches import NewRecord
from tests.helpers import run_jobs
from tests.helpers.beam_rig import on_direct
from tests.helpers.driving import log_of
from tests.helpers.envelopes import body_of
from tests.helpers.spark_in_process import InProcessSpark
from tests.helpers.split_sources import Feed, Pile, Shelf

GOLDEN = Path(__file__).parents[1] / "golden"
PARTITIONS = 3


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, partitions=PARTITIONS)
        yield cluster
    writers._committer.cache_clear()


@pytest.fixture
def spark():
    return InProcessSpark()


def produce(kafka, first, count, partitions=PARTITIONS):
    for number in range(first, first + count):
        kafka.append("in", b"%d" % number, partition=number % partitions)


def seen(kafka):
    return Counter(int(record.value) for record in kafka.records("out"))


def copying(kafka, transform=run_jobs.narrow, sink=None, **source):
    sink = KafkaSink(kafka.bootstrap, topic="out") if sink is None else sink
    return Pipeline(KafkaSource(kafka.bootstrap, topics=["in"], **source), sink, transform)


def _values(batch):
    return pa.RecordBatch.from_pydict({"value": batch.column("value").cast(pa.binary())})


def _topic_from(bootstrap, end):
    start = Timestamp(end.newest_modified_ms + 1)
    return KafkaSource(bootstrap, topics=["in"], columns=["value"], start=start)


def savepoint_of(kafka, path, offsets, serializer=None, topic="in"):
    """Of a run that has read partition n of the topic up to `offsets[n]`."""
    topic_id = KafkaSource(kafka.bootstrap, topics=[topic]).create_discovery().topic_ids([(topic, 0)])[topic, 0]
    splits = [KafkaSplit(topic, topic_id, number, at) for number, at in enumerate(offsets)]
    states = tuple(SplitState(split, finished=False) for split in splits)
    serializer = CheckpointSerializer("kafka", KafkaSource("x:1", topics=["in"]).split_serializer)
    path.write_bytes(Savepoint("run-a", 7, serializer.serialize(Checkpoint(7, states, exhausted=False)).decode()).serialize())
    return str(path)


@pytest.fixture
def savepoint(kafka, tmp_path):
    """Of a run that has read 14 of 30 records."""
    produce(kafka, 0, 30)
    return savepoint_of(kafka, tmp_path / "savepoint.json", [4, 10, 0])


class TestOnSpark:
    def test_a_topic_is_copied_once_and_the_query_continues(self, kafka, spark, tmp_path):
        produce(kafka, 0, 90)
        copying(kafka).start_on_spark(spark, checkpointLocation=str(tmp_path)).processAllAvailable().stop()
        assert seen(kafka) == Counter(range(90))
        produce(kafka, 90, 30)
        again = copying(kafka).start_on_spark(spark, checkpointLocation=str(tmp_path))
        again.processAllAvailable()
        again.stop()
        assert seen(kafka) == Counter(range(120))

    def test_a_batch_that_was_planned_when_spark_was_killed_is_written_once(self, kafka, spark, tmp_path):
        produce(kafka, 0, 30)
        copying(kafka).start_on_spark(spark, checkpointLocation=str(tmp_path)).plan()
        produce(kafka, 30, 30)
        assert not seen(kafka)
        copying(kafka).start_on_spark(spark, checkpointLocation=str(tmp_path)).processAllAvailable()
        assert seen(kafka) == Counter(range(60))

    def test_a_batch_whose_commit_spark_has_not_logged_is_not_written_again(self, kafka, spark, tmp_path):
        produce(kafka, 0, 30)
        copying(kafka).start_on_spark(spark, checkpointLocation=str(tmp_path)).processAllAvailable()
        (tmp_path / "commits" / "0").unlink()
        copying(kafka).start_on_spark(spark, checkpointLocation=str(tmp_path)).processAllAvailable()
        assert seen(kafka) == Counter(range(30))

    def test_the_transform_gets_batches_of_the_sources_schema_and_may_give_none_or_several_of_any(self, kafka, spark, tmp_path):
        produce(kafka, 0, 30)
        schema = KafkaSource(kafka.bootstrap, topics=["in"]).schema

        def transform(batch):
            assert batch.schema.equals(schema)
            values = [int(value) for value in batch.column("value").to_pylist()]
            if all(value < 30 for value in values):
                return None
            own = [pa.record_batch({"value": [str(value)]}) for value in values]
            return [*own, pa.record_batch({"value": [b"1000"], "key": [b"sum"]}), pa.record_batch({"value": [b""]}).slice(1)]

        query = copying(kafka, transform).start_on_spark(spark, checkpointLocation=str(tmp_path)).processAllAvailable()
        assert not seen(kafka)
        produce(kafka, 30, 30)
        query.processAllAvailable()
        assert seen(kafka) == Counter([1000, *range(30, 60)])

    def test_of_several_sinks_each_is_a_query_of_its_own(self, kafka, spark, tmp_path):
        kafka.create_topic("odd", partitions=1)
        produce(kafka, 0, 30)
        sinks = {name: KafkaSink(kafka.bootstrap, topic=topic) for name, topic in (("even", "out"), ("odd", "odd"))}
        pipeline = copying(kafka, run_jobs.parted, sinks)
        with pytest.raises(UsageError, match="'even', 'odd'\\. Start one query for each output"):
            pipeline.start_on_spark(spark, checkpointLocation=str(tmp_path))
        pipeline.only("even").start_on_spark(spark, checkpointLocation=str(tmp_path)).processAllAvailable().stop()
        assert seen(kafka) == Counter(range(0, 30, 2))
        assert not kafka.records("odd")

    def test_dead_letters_are_written_in_the_transaction_of_their_batch(self, kafka, spark, tmp_path):
        kafka.create_topic("letters", partitions=1)
        kafka.append("in", b'{"a": 1}', b"{", b'{"a": 2}')
        numbers = JsonFormat(pa.struct([("a", pa.int64())]))
        read = {"columns": ["value", "deadLetter"], "value": numbers, "on_bad_record": "keep"}
        pipeline = copying(kafka, DeadLetters("letters"), KafkaSink(kafka.bootstrap, topic="out", value=numbers), **read)
        pipeline.start_on_spark(spark, checkpointLocation=str(tmp_path)).processAllAvailable()
        assert [record.value for record in kafka.records("letters")] == [b"{"]
        assert sorted(json.loads(record.value)["a"] for record in kafka.records("out")) == [1, 2]

    def test_options_of_the_query_reach_it(self, kafka, spark, tmp_path):
        trigger = {"processingTime": "1 second"}
        query = copying(kafka).start_on_spark(
            spark, checkpointLocation=str(tmp_path), queryName="copy", trigger=trigger, maxOffsetsPerTrigger=10, minPartitions=5
        )
        assert query.settings == {"queryName": "copy", **trigger}
        assert query._reader._job.limits.max_offsets == 10
        assert query._reader._job.min_tasks == 5

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"subscribe": "in"}, "'subscribe' is not known to a streaming query of this source"),
            ({"maxOffsetsPerTriger": 1}, "did you mean 'maxOffsetsPerTrigger'"),
            ({"maxOffsetsPerTrigger": 1, "minOffsetsPerTrigger": 2}, "is higher than"),
            ({"checkpointLocation": " "}, "checkpointLocation must be"),
        ],
    )
    def test_an_option_that_cannot_be_is_refused(self, kafka, spark, tmp_path, options, message):
        with pytest.raises(UsageError, match=message):
            copying(kafka).start_on_spark(spark, **{"checkpointLocation": str(tmp_path), **options})

    def test_a_source_of_any_kind_can_be_its_source(self, kafka, spark, tmp_path):
        shelf, memory = Shelf(), MemoryLog()
        memory.create("a")
        memory.append("a", ["log"])
        shelf.add("a", "feed or pile")
        for source in (MemorySource(memory), Feed(shelf), Pile(shelf)):
            pipeline = Pipeline(source, KafkaSink(kafka.bootstrap, topic="out"), _values)
            for _ in range(2):
                checkpoint = str(tmp_path / source.name)
                pipeline.start_on_spark(spark, checkpointLocation=checkpoint).processAllAvailable()
        assert sorted(record.value for record in kafka.records("out")) == [b"feed or pile", b"feed or pile", b"log"]

    def test_one_source_follows_another(self, kafka, spark, tmp_path):
        """Files, then the topic from the time of the newest one on; the second query continues behind the switch."""
        (tmp_path / "files").mkdir()
        for name in ("a", "b", "c"):
            (tmp_path / "files" / name).write_text(f"{name}1\n{name}2\n")
            os.utime(tmp_path / "files" / name, (1000.0, 1000.0))
        for ms in (999_000, 1_000_001, 1_000_002):
            kafka.append("in", NewRecord(b"%d" % ms, timestamp_ms=ms))
        lines = FileSource(str(tmp_path / "files"), format="text", schema=pa.schema([("value", pa.binary())]))
        topic = partial(_topic_from, kafka.bootstrap)
        pipeline = Pipeline(Hybrid(lines, then=topic), KafkaSink(kafka.bootstrap, topic="out"))
        for _ in range(2):
            query = pipeline.start_on_spark(spark, checkpointLocation=str(tmp_path / "checkpoint"), maxSplitsPerTrigger=2)
            query.processAllAvailable()
            kafka.append("in", NewRecord(b"new", timestamp_ms=1_000_003))
        values = Counter(record.value.decode() for record in kafka.records("out"))
        assert values == Counter(["a1", "a2", "b1", "b2", "c1", "c2", "1000001", "1000002", "new"])

    def test_a_log_that_another_source_follows_is_refused(self, spark, tmp_path):
        memory = MemorySource(MemoryLog(), bounded=True)
        pipeline = Pipeline(Hybrid(memory, then=MemorySource(MemoryLog())), KafkaSink("x:1", topic="out"))
        with pytest.raises(UsageError, match="stage 0, source 'memory', is a log"):
            pipeline.start_on_spark(spark, checkpointLocation=str(tmp_path))

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (MemorySource(MemoryLog(), bounded=True), r"stop cannot be carried over.*availableNow"),
            (KafkaSource("x:1", topics=["in"], stop=Latest()), r"stop cannot be carried over.*availableNow"),
            (KafkaSource("x:1", topics=["in"], discovery_interval_s=None), "discovery_interval_s=None cannot be carried over"),
        ],
    )
    def test_what_spark_cannot_carry_over_is_refused_by_name(self, spark, tmp_path, source, message):
        pipeline = Pipeline(source, KafkaSink("x:1", topic="out"))
        with pytest.raises(UsageError, match=message):
            pipeline.start_on_spark(spark, checkpointLocation=str(tmp_path))
        assert not spark.formats

    def test_what_cannot_travel_is_said(self, kafka, spark, tmp_path):
        lock = threading.Lock()
        with pytest.raises(UsageError, match="cannot be sent to Spark's tasks"):
            copying(kafka, lambda batch: batch if lock else None).start_on_spark(spark, checkpointLocation=str(tmp_path))


class TestAQueryThatBeginsWithASavepoint:
    def test_continues_where_it_is_and_reads_what_appeared_since_from_its_first_record(self, kafka, spark, savepoint, tmp_path):
        for topic in ("in", "out"):
            kafka.add_partitions(topic, PARTITIONS + 1)
        kafka.append("in", b"1000", partition=PARTITIONS)
        query = copying(kafka, start=Latest()).start_on_spark(
            spark, checkpointLocation=str(tmp_path / "checkpoint"), startFromSavepoint=savepoint
        )
        query.processAllAvailable()
        left = [number for number in range(30) if number // 3 >= [4, 10, 0][number % 3]]
        assert seen(kafka) == Counter([*left, 1000])

    def test_looks_at_it_only_while_it_has_no_checkpoint(self, kafka, spark, savepoint, tmp_path, caplog):
        folder = str(tmp_path / "checkpoint")
        copying(kafka).start_on_spark(spark, checkpointLocation=folder, startFromSavepoint=savepoint).plan()
        assert "is not looked at" not in caplog.text
        (tmp_path / "savepoint.json").unlink()
        query = copying(kafka).start_on_spark(spark, checkpointLocation=folder, startFromSavepoint=savepoint)
        query.processAllAvailable()
        produce(kafka, 30, 30)
        query.processAllAvailable()
        assert len(seen(kafka)) == 16 + 30
        assert caplog.text.count("is not looked at") == 1

    def test_starts_at_the_same_positions_when_it_was_killed_before_its_first_plan(self, kafka, spark, savepoint, tmp_path):
        for _ in range(2):
            query = copying(kafka).start_on_spark(spark, checkpointLocation=str(tmp_path / "q"), startFromSavepoint=savepoint)
            query._reader.latestOffset(query._reader.initialOffset(), None)
        query.processAllAvailable()
        assert sum(seen(kafka).values()) == len(seen(kafka)) == 16

    def test_fails_where_a_topic_was_created_again(self, kafka, spark, tmp_path):
        savepoint = savepoint_of(kafka, tmp_path / "savepoint.json", [4, 10, 0])
        kafka.delete_topic("in")
        kafka.create_topic("in", partitions=PARTITIONS)
        produce(kafka, 0, 60)
        query = copying(kafka).start_on_spark(spark, checkpointLocation=str(tmp_path / "q"), startFromSavepoint=savepoint)
        with pytest.raises(DataLossError, match="deleted and created again"):
            query.processAllAvailable()

    def test_fails_for_a_file_that_is_none_and_names_the_command_that_makes_one(self, kafka, spark, tmp_path):
        shutil.copy(GOLDEN / "run-checkpoint-v1.json", tmp_path / "checkpoint-000000000001.json")
        for name, kind in (("", UsageError), ("checkpoint-000000000001.json", StateError)):
            query = copying(kafka).start_on_spark(
                spark, checkpointLocation=str(tmp_path / f"q{name}"), startFromSavepoint=str(tmp_path / name)
            )
            with pytest.raises(kind, match=r"headrace savepoint CHECKPOINTS TARGET.*--pipeline"):
                query.processAllAvailable()


def test_a_savepoints_epoch_becomes_a_querys_and_positions_are_by_topic_id(kafka, spark, savepoint, tmp_path):
    query = copying(kafka).start_on_spark(spark, checkpointLocation=str(tmp_path / "q"), startFromSavepoint=savepoint)
    query.processAllAvailable()
    (own,) = (body_of(key.removeprefix("headrace:")) for key in query._end(0) if key.startswith("headrace:"))
    assert own["began"] == {"in": {"0": 4, "1": 10, "2": 0}}
    assert set(own["topic_ids"]) == {"in"}


def append_lines(path, batch):
    with path.open("a") as file:
        file.writelines(f"{int(value)}\n" for value in batch.column("value").to_pylist())


class TestResumed:
    """A source that starts where a checkpoint of another job is."""

    @staticmethod
    def found(source, offsets, *, finished=(), exhausted=False):
        log_splits = source.create_discovery().initial().added
        states = [
            SplitState(split.between(offsets[split.split_id], None), split.split_id in finished)
            for split in log_splits
            if split.split_id in offsets
        ]
        return ResumedLogDiscovery(source, Checkpoint(3, tuple(states), exhausted)).initial()

    @staticmethod
    def log():
        log = MemoryLog()
        for name in "ab":
            log.create(name)
            log.append(name, ["x"] * 10)
        return log

    def test_without_an_end_also_what_was_read_to_its_stop_continues(self):
        found = self.found(MemorySource(self.log()), {"a": 3, "b": 10}, finished={"b"}, exhausted=True)
        assert {s.split_id: (s.next_offset, s.stop_offset) for s in found.added} == {"a": (3, None), "b": (10, None)}
        assert not found.complete

    def test_with_an_end_each_split_ends_where_the_source_says(self):
        found = self.found(MemorySource(self.log(), bounded=True), {"a": 3})
        assert {s.split_id: (s.next_offset, s.stop_offset) for s in found.added} == {"a": (3, 10), "b": (0, 10)}
        assert found.complete

    def test_of_what_is_no_log_only_what_is_left_is_read(self):
        source = BeamSource(beam.io.ReadFromText("none", validate=False))
        splits = [SplitState(KafkaSplit("t", None, number, 0), number == 0) for number in range(2)]
        found = ResumedDiscovery(source, Checkpoint(1, tuple(splits), exhausted=True)).initial()
        assert (found.added, found.complete) == ([splits[1].split], True)
        with pytest.raises(UsageError, match="t-0@ was read to its end"):
            ResumedDiscovery(source, Checkpoint(1, tuple(splits), exhausted=False)).initial()

    @pytest.mark.parametrize(("bounded", "more"), [(False, [True, False]), (True, [False])])
    def test_pieces_continue_at_their_cursor(self, bounded, more):
        """Where discovery was exhausted, a source without an end continues, and one with an end does not."""
        source = MemoryPieces(log_of(a="1", b="2", c="3"), bounded=bounded)
        states = (SplitState(MemorySplit("a", 1, 1), finished=True), SplitState(MemorySplit("b", 0, 1), finished=False))
        saved = Checkpoint(3, states, exhausted=True, cursor={"found": 2, "stop": 2})
        assert resumed(source, saved).exhausted is bounded
        driver = SourceDriver(source, resumed_discovery(source, saved))
        looks = [driver.perform(DiscoverInitial()).findings]
        while looks[-1].more:
            looks.append(driver.perform(DiscoverAfter(looks[-1].cursor, 10)).findings)
        assert [look.more for look in looks] == more
        assert [split.split_id for look in looks for split in look.added] == (["b"] if bounded else ["b", "c"])
        assert source.log.finished() == ["a"], "it may have died before it was reported"

    @pytest.mark.parametrize(("stage", "found"), [
        (Stage(0, "memory-pieces", None, in_pieces=True, is_found=False), [["0:b"], ["0:c"], ["1:d"]]),
        (Stage(0, "memory-pieces", None, in_pieces=True, is_found=True), [["0:b"], ["1:d"]]),
        (Stage(1, "memory", {"cursor": {"found": 2}}, in_pieces=False, is_found=False), [["0:b", "1:d"]]),
    ])  # fmt: skip
    def test_one_source_after_another_continues_in_its_stage(self, stage, found):
        """Each is discovered once, and nothing of the stages before; what is finished is reported."""
        pieces = MemoryPieces(log_of(a="1", b="2", c="3"), bounded=True, found_at_once=2)
        source = Hybrid(pieces, then=MemorySource(log_of(d="4")))
        splits = [SplitState(HybridSplit(0, None, MemorySplit(name, 0, 1)), finished=name == "a") for name in "ab"]
        cursor = {"found": 3 if stage.is_found else 2, "stop": 3} if stage.number == 0 else None
        saved = Checkpoint(3, tuple(splits), exhausted=False, cursor=cursor, stage=stage)
        driver = SourceDriver(source, resumed_discovery(source, saved))
        looks = [look(Fresh(), driver)]
        while looks[-1].more:
            looks.append(look(Enumerated(looks[-1].checkpoint), driver))
        assert [[split.split_id for split in each.added] for each in looks] == found
        assert pieces.log.finished() == ["a"]
        with pytest.raises(StateError, match="it has no stages, as Stage"):
            resumed_discovery(pieces, saved)

    def test_a_cursor_is_not_for_a_source_of_another_kind(self):
        with pytest.raises(StateError, match="source 'memory' cannot start there: it does not continue at the cursor"):
            resumed_discovery(MemorySource(self.log()), Checkpoint(3, (), exhausted=False, cursor={"found": 2}))


class TestOnBeam:
    def expanded(self, pipeline, **arguments):
        with on_direct() as p:
            pipeline.expand_on_beam(p, **arguments)

    def test_a_bounded_stretch_is_copied_from_where_a_savepoint_is(self, kafka, savepoint):
        sink = AtLeastOnceKafkaSink(kafka.bootstrap, topic="out")
        self.expanded(copying(kafka, sink=sink, stop=Latest()), start_from_savepoint=savepoint)
        assert seen(kafka) == Counter(number for number in range(30) if number // 3 >= [4, 10, 0][number % 3])

    def test_a_function_is_a_sink_there_too(self, kafka, tmp_path):
        produce(kafka, 0, 9)
        sink = FunctionSink(partial(append_lines, tmp_path / "lines"))
        self.expanded(Pipeline(KafkaSource(kafka.bootstrap, topics=["in"], stop=Latest()), sink))
        assert Counter(map(int, (tmp_path / "lines").read_text().split())) == Counter(range(9))

    @pytest.mark.parametrize("is_first_of_several", [False, True])
    def test_files_are_archived_once_their_rows_are_durable(self, tmp_path, monkeypatch, is_first_of_several):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "f").write_text("0\n1\n")
        schema = pa.schema([("value", pa.string())])
        source = FileSource(tmp_path / "in", format="text", schema=schema, after_read=f"archive:{tmp_path / 'done'}")
        if is_first_of_several:
            (tmp_path / "last").mkdir()
            source = Hybrid(source, then=FileSource(tmp_path / "last", format="text", schema=schema))
        with pytest.raises(UsageError, match=r"archive or delete what was read .* read it with publish=True"):
            ReadFromSource(source)
        with pytest.raises(UsageError, match="may lose the rows of a pipeline that fails: run on Flink"):
            self.expanded(Pipeline(source, FunctionSink(print)))
        durable = {name: replace(runner, is_durable=True) for name, runner in capabilities.RUNNERS.items()}
        monkeypatch.setattr(capabilities, "RUNNERS", durable)  # as Flink is
        self.expanded(Pipeline(source, FunctionSink(partial(append_lines, tmp_path / "lines"))))
        assert (tmp_path / "lines").read_text().split() == ["0", "1"]
        assert os.listdir(tmp_path / "done") == ["f"]

    def test_each_of_several_sinks_gets_its_own_rows(self, kafka, tmp_path):
        produce(kafka, 0, 9)
        sinks = {name: FunctionSink(partial(append_lines, tmp_path / name)) for name in ("even", "odd")}
        self.expanded(Pipeline(KafkaSource(kafka.bootstrap, topics=["in"], stop=Latest()), sinks, run_jobs.parted))
        for first, name in enumerate(sinks):
            assert Counter(map(int, (tmp_path / name).read_text().split())) == Counter(range(first, 9, 2))

    def test_what_the_runner_cannot_carry_over_is_refused_by_name(self, kafka):
        with pytest.raises(UsageError, match="needs Flink's checkpoints"):
            self.expanded(copying(kafka, stop=Latest()))
        several = {"even": KafkaSink(kafka.bootstrap, topic="out"), "odd": AtLeastOnceKafkaSink(kafka.bootstrap, topic="out")}
        with pytest.raises(UsageError, match="needs Flink's checkpoints"):
            self.expanded(copying(kafka, run_jobs.parted, several, stop=Latest()))
        with pytest.raises(UsageError, match="this source has no end"):
            self.expanded(copying(kafka, sink=AtLeastOnceKafkaSink(kafka.bootstrap, topic="out")))

    @pytest.mark.parametrize("limit", [{"stop": Latest()}, {"max_num_records": 16}])
    def test_read_from_kafka_starts_where_a_savepoint_is_whatever_else_says_where(self, kafka, savepoint, limit):
        config = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "latest"}
        with on_direct() as p:
            pairs = p | ReadFromKafka(config, ["in"], start_from_savepoint=savepoint, **limit)
            expected = [(None, b"%d" % number) for number in range(30) if number // 3 >= [4, 10, 0][number % 3]]
            assert_that(pairs, equal_to(expected))

    def test_a_restored_job_does_not_look_at_the_savepoint_and_says_so(self, kafka, tmp_path, caplog):
        source = KafkaSource(kafka.bootstrap, topics=["in"])
        savepoint = savepoint_of(kafka, tmp_path / "savepoint.json", [4, 10, 0])
        enumerate_fn, _ = ReadFromSource(source, output="arrow", start_from_savepoint=savepoint).stages({})
        enumerate_fn.setup()
        own = EnumerationFormat(source).encode(Enumerated(Checkpoint(1, (), exhausted=False)))
        stage = enumerate_fn.process(None, enumerate_fn.create_tracker(own), SplitWatermark(None))
        found = [next(stage) for _ in range(PARTITIONS)]
        stage.close()
        enumerate_fn.teardown()
        splits = [split for element in found for split in ReaderFormat(source).decode(element.state).reading]
        assert {split.next_offset for split in splits} == {0}
        assert "is not looked at" in caplog.text
