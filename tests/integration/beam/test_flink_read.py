"""The Beam transform on a real Flink: a task manager killed, partitions added at any time, a savepoint and a new submission.

Two witnesses sit behind the source. One, in the same stage, notes every batch as it is emitted: after a rewind batches come
again, and where they start is where the job was restored. The other keeps in state, which goes back with the source, that every
offset of a partition came once, in order, from the first.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from apache_beam.transforms.window import FixedWindows

from headrace.beam import ReadFromKafka, ReadFromSource
from headrace.files import FileSource
from headrace.kafka import At, KafkaSource, Timestamp
from headrace.sources import Hybrid, SourceEnd
from headrace.testing import MemoryLog, MemoryPieces
from headrace.testing.servers.flink import FlinkCluster
from headrace.testing.servers.kafka import add_partitions, create_topic
from tests.helpers.beam_jobs import Counted, Flow, OracleResult, Witness
from tests.helpers.flink_rig import job, kill_and_restart
from tests.helpers.kafka_rig import committed, write_records
from tests.helpers.kafka_tools import created, produce
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.flink, pytest.mark.timeout(420)]
RESTORED_S = 120.0


class Pipeline:
    """A source that commits its offsets, with its witnesses, and a flow of records to it."""

    def __init__(self, bootstrap: str, path) -> None:
        self.bootstrap = bootstrap
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        self.witness = Witness(path)
        self.flow = Flow(bootstrap)

    def build(self, *topics: str):
        return self._build(topics, commit_offset_in_finalize=True, dynamic_read_poll_interval_seconds=1)

    def build_until(self, offset: int, topic: str):
        """Bounded: each partition up to this offset."""
        return self._build([topic], stop=At(offset), commit_offset_in_finalize=True)

    def _build(self, topics: Sequence[str], **options: Any):
        config = {"bootstrap.servers": self.bootstrap, "auto.offset.reset": "earliest", "group.id": self.group}
        columns = ["topic", "partition", "offset"]
        read = ReadFromKafka(config, list(topics), output="arrow", columns=columns, read_s=0.5, **options)
        return lambda pipeline: self.witness.read(pipeline | read)

    def create(self, topic: str, partitions: int) -> None:
        create_topic(self.bootstrap, topic, partitions=partitions)
        for partition in range(partitions):
            self.flow.add(topic, partition)

    def add(self, topic: str, partition: int) -> None:
        add_partitions(self.bootstrap, topic, partition + 1)
        self.flow.add(topic, partition)

    def positions(self) -> dict[str, int]:
        partitions = list(self.flow.partitions)
        offsets = committed(self.bootstrap, self.group, *partitions)
        named = zip((f"{topic}-{partition}" for topic, partition in partitions), offsets, strict=True)
        return {name: offset for name, offset in named if offset is not None}

    def reads(self, partition: str) -> None:
        eventually(lambda: partition in self.witness.outcomes(), seconds=RESTORED_S)

    def assert_never_ahead(self, published: dict[str, int], since_s: float) -> None:
        """Wait until every partition is read again; where it started is not behind what the group had been reported."""
        eventually(lambda: published.keys() <= self.witness.first_since(since_s).keys(), seconds=RESTORED_S)
        restored = self.witness.first_since(since_s)
        ahead = {name: (offset, restored[name]) for name, offset in published.items() if offset > restored[name]}
        assert not ahead, f"the group's offsets are ahead of where the job was restored: {ahead}"

    def assert_all_read_once(self) -> None:
        """The flow stops; then everything written has come, once, in order, as the job's state has it."""
        written = self.flow.stop()
        expected = {name: OracleResult(count, 0) for name, count in written.items()}
        eventually(lambda: self.witness.outcomes() == expected, seconds=RESTORED_S)

    def assert_published_to_the_end(self) -> None:
        """What is read is published in the end, though nothing more comes."""
        eventually(lambda: self.positions() == {n: v.count for n, v in self.witness.outcomes().items()}, seconds=RESTORED_S)


@pytest.fixture
def pipeline(broker, tmp_path):
    made = Pipeline(broker.bootstrap, tmp_path / "notes")
    yield made
    made.flow.stop()


def test_kills_and_partitions_added_at_any_time(flink: FlinkCluster, pipeline: Pipeline, topic):
    name = topic()
    pipeline.create(name, partitions=2)
    with job(flink, pipeline.build(name)) as job_id:
        pipeline.reads(f"{name}-0")
        pipeline.add(name, 2)  # while it runs
        pipeline.reads(f"{name}-2")
        for number, moment in enumerate(["while it is down", "right after the kill"], start=3):
            before = pipeline.positions()
            eventually(
                lambda before=before: (
                    pipeline.positions().keys() >= {f"{name}-0", f"{name}-1"} and pipeline.positions() != before
                )
            )
            failed = flink.job(job_id).failure
            flink.kill_task_manager()
            if moment == "while it is down":
                pipeline.add(name, number)
            # what the group has been informed by now, the job must be restored at or behind
            published = pipeline.positions()
            since_s = time.time()
            flink.start_task_manager()
            if moment == "right after the kill":
                pipeline.add(name, number)
            pipeline.assert_never_ahead(published, since_s)
            assert flink.job(job_id).failure != failed
            pipeline.reads(f"{name}-{number}")
        pipeline.assert_all_read_once()
        pipeline.assert_published_to_the_end()


def test_a_savepoint_and_a_new_submission_that_reads_one_more_topic(flink: FlinkCluster, pipeline: Pipeline, topic):
    """No split is read again; the new partition, and the topic new in the configuration, are read from the first record."""
    old, new = topic(), topic()
    pipeline.create(old, partitions=2)
    with job(flink, pipeline.build(old)) as job_id:
        for partition in range(2):
            pipeline.reads(f"{old}-{partition}")
        savepoint = flink.savepoint(job_id)
    pipeline.add(old, 2)
    pipeline.create(new, partitions=1)
    published, since_s = pipeline.positions(), time.time()
    with job(flink, pipeline.build(old, new), savepoint=savepoint):
        pipeline.assert_never_ahead(published, since_s)
        before = [f"{old}-{partition}" for partition in range(2)]
        eventually(lambda: pipeline.witness.first_since(since_s).keys() >= set(before), seconds=RESTORED_S)
        assert all(pipeline.witness.first_since(since_s)[name] > 0 for name in before)
        pipeline.reads(f"{old}-2")
        pipeline.reads(f"{new}-0")
        pipeline.assert_all_read_once()


def test_a_bounded_read_ends_at_its_stop_and_a_restore_reads_none_of_it_again(flink: FlinkCluster, pipeline: Pipeline, topic):
    name, stop = created(pipeline.bootstrap, topic, partitions=2), 400
    produce(pipeline.bootstrap, name, {partition: [b"x"] * 2 * stop for partition in range(2)})
    expected = {f"{name}-{partition}": OracleResult(stop, 0) for partition in range(2)}
    with job(flink, pipeline.build_until(stop, name)) as job_id:
        eventually(lambda: pipeline.witness.outcomes() == expected, seconds=RESTORED_S)
        # the last positions, too, though no later bundle of these partitions reads anything (Beam #26884)
        ends = [(name, partition) for partition in range(2)]
        eventually(lambda: committed(pipeline.bootstrap, pipeline.group, *ends) == [stop, stop], seconds=RESTORED_S)
        flink.wait_checkpoint(job_id)
        since_s = time.time()
        kill_and_restart(flink, job_id)
        flink.wait_checkpoint(job_id)
        assert pipeline.witness.first_since(since_s) == {}
        assert pipeline.witness.outcomes() == expected


COLUMNS = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
DAY_MS = 86_400_000


def day_ms(day: int) -> int:
    """Long ago: what is written while a test runs is newer."""
    return 1_700_000_000_000 + day * DAY_MS


def write_days(folder: Path, days: int, rows: int) -> None:
    """A file for each day, modified on that day, as a partition that the witnesses know."""
    folder.mkdir()
    for day in range(days):
        file = folder / f"{day}.jsonl"
        file.write_text("".join(json.dumps({"topic": f"day-{day}", "partition": 0, "offset": n}) + "\n" for n in range(rows)))
        os.utime(file, ns=(day_ms(day) * 1_000_000,) * 2)


def as_partition(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the columns that the witnesses ask for."""
    return pa.record_batch({"topic": batch["split"], "partition": [0] * batch.num_rows, "offset": batch["offset"]})


@pytest.mark.long  # the same kills with offsets are among the others; pieces are in tests/conformance
def test_pieces_found_by_a_cursor_are_read_once_whatever_is_killed(flink: FlinkCluster, tmp_path):
    """They arrive all the time, faster than one look finds them; and each is reported when it is read to its end."""
    log, witness, pieces = MemoryLog(), Witness(tmp_path / "notes"), 0
    log.serve()
    source = MemoryPieces(log, found_at_once=20)

    def add(count: int) -> None:
        nonlocal pieces
        for number in range(pieces, pieces + count):
            log.create(f"p{number}", ["x"] * 3)
        pieces += count

    def build(pipeline: beam.Pipeline) -> None:
        read = ReadFromSource(source, output="arrow", discovery_interval_s=1.0, read_s=0.5, publish=True)
        witness.read(pipeline | read | beam.Map(as_partition).with_output_types(pa.RecordBatch))

    def all_read() -> bool:
        return witness.outcomes() == {f"p{number}-0": OracleResult(3, 0) for number in range(pieces)}

    add(100)
    with job(flink, build) as job_id:
        eventually(all_read, seconds=RESTORED_S)
        add(150)
        eventually(lambda: len(witness.outcomes()) > pieces - 100, seconds=RESTORED_S)
        kill_and_restart(flink, job_id)
        eventually(all_read, seconds=RESTORED_S)
        add(30)
        savepoint = flink.savepoint(job_id)
    add(30)
    with job(flink, build, savepoint=savepoint):
        eventually(all_read, seconds=RESTORED_S)
        eventually(lambda: set(log.finished()) == set(log.split_ids()), seconds=RESTORED_S)


@pytest.mark.long  # three jobs and as many kills; by `headrace run` and Spark it is among the others
def test_files_then_the_topic_they_were_written_from_whatever_is_killed(flink, pipeline, topic, tmp_path):
    """Before, in and after the switch; and moved by savepoints, the first of a job that has not switched yet."""
    bootstrap, days, rows = pipeline.bootstrap, 60, 4
    name = created(bootstrap, topic, partitions=2, configs={"retention.ms": "-1"})
    folder, is_open, switching = tmp_path / "days", tmp_path / "open", tmp_path / "switching"
    write_days(folder, days, rows)
    for partition in range(2):
        records = [{"value": b"x", "timestamp": day_ms(day)} for day in range(days)]
        write_records(bootstrap, name, records, partition)

    def then(end: SourceEnd) -> KafkaSource:
        if not is_open.exists():
            raise ConnectionError("the topic is to be had later")
        switching.touch()
        start = Timestamp(end.newest_modified_ms + 1)
        return KafkaSource(bootstrap, topics=[name], columns=COLUMNS.names, start=start)

    def from_day_zero(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["topic"][0].as_py() != name:
            return batch
        return batch.set_column(2, COLUMNS.field("offset"), pc.subtract(batch["offset"], pa.scalar(days, pa.int64())))

    def build(pipeline_: beam.Pipeline) -> None:
        source = Hybrid(FileSource(str(folder), format="jsonl", schema=COLUMNS, batch_rows=1), then=then)
        batches = pipeline_ | ReadFromSource(source, output="arrow", discovery_interval_s=1.0, read_s=0.5)
        pipeline.witness.read(batches | beam.Map(from_day_zero).with_output_types(pa.RecordBatch))

    with job(flink, build) as job_id:
        eventually(pipeline.witness.outcomes, seconds=RESTORED_S)
        kill_and_restart(flink, job_id)
        savepoint = flink.savepoint(job_id)
    for partition in range(2):
        pipeline.flow.add(name, partition)
    with job(flink, build, savepoint=savepoint) as job_id:
        is_open.touch()
        eventually(switching.exists, seconds=RESTORED_S)
        kill_and_restart(flink, job_id)
        pipeline.reads(f"{name}-1")
        kill_and_restart(flink, job_id)
        savepoint = flink.savepoint(job_id)
    with job(flink, build, savepoint=savepoint):
        written = {f"day-{day}-0": rows for day in range(days)} | pipeline.flow.stop()
        expected = {each: OracleResult(count, 0) for each, count in written.items()}
        eventually(lambda: pipeline.witness.outcomes() == expected, seconds=RESTORED_S)


def test_each_slot_has_a_reader(flink: FlinkCluster, pipeline: Pipeline, topic):
    """Left to chance, the two elements of a reader each come to one of the two slots every other time."""
    name = topic()
    pipeline.create(name, partitions=6)

    def elements(job_id: str) -> list[int]:
        details = flink.rest._ask("GET", f"/jobs/{job_id}")
        (vertex,) = (vertex for vertex in details["vertices"] if "{ReadFromKafka," in vertex["name"])
        subtasks = flink.rest._ask("GET", f"/jobs/{job_id}/vertices/{vertex['id']}")["subtasks"]
        return [subtask["metrics"]["read-records"] for subtask in subtasks]

    with job(flink, pipeline.build(name), parallelism=2) as job_id:
        for partition in range(6):
            pipeline.reads(f"{name}-{partition}")
        eventually(lambda: sum(elements(job_id)) >= 2)
        assert elements(job_id) == [1, 1]


def test_windows_of_create_time_close_though_a_partition_is_empty(flink: FlinkCluster, pipeline: Pipeline, topic):
    """The watermark follows the slowest partition that has records; no record is late, and in the end every window closes."""
    name = created(pipeline.bootstrap, topic, partitions=3)
    for partition in range(2):
        pipeline.flow.add(name, partition)
    read = ReadFromKafka(
        {"bootstrap.servers": pipeline.bootstrap, "auto.offset.reset": "earliest"}, [name],
        timestamp_policy=ReadFromKafka.create_time_policy, read_s=0.5,
    )  # fmt: skip

    def build(begin):
        windows = begin | read | beam.WindowInto(FixedWindows(2))
        return windows | beam.combiners.Count.Globally().without_defaults() | beam.ParDo(Counted(pipeline.witness.path))

    with job(flink, build):
        eventually(lambda: len(pipeline.witness.windows()) >= 3, seconds=RESTORED_S)
        written = sum(pipeline.flow.stop().values())
        eventually(lambda: sum(pipeline.witness.windows().values()) == written, seconds=RESTORED_S)
