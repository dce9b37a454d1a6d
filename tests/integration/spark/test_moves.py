"""One topic is copied by the JVM connector, headrace run, Spark, headrace run, Beam and headrace run, one after the other."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.errors import RetriableError
from headrace.kafka import AtLeastOnceKafkaSink, Committed, Earliest, KafkaSink, KafkaSource, Latest
from headrace.run import Pipeline
from headrace.runners.waiting import wait_until
from headrace.testing import FakeKafka
from tests.helpers import run_jobs
from tests.helpers.beam_rig import on_direct

pytestmark = pytest.mark.timeout(280)
EACH = 300
TIMEOUT_S = 60.0


class Moves:
    """The topics, what was produced into them, and each way to continue copying. A partition is added before each of them."""

    def __init__(self, kafka: FakeKafka, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        self.partitions, self.produced, self.ways = 1, 0, 0
        for topic in ("in", "out"):
            kafka.create_topic(topic, partitions=1)

    def more(self) -> str:
        self.partitions += 1
        self.ways += 1
        for topic in ("in", "out"):
            self.kafka.add_partitions(topic, self.partitions)
        for number in range(self.produced, self.produced + EACH):
            self.kafka.append("in", b"%d" % number, partition=number % self.partitions)
        self.produced += EACH
        return str(self.folder / f"way-{self.ways}")

    def pipeline(self, sink: type = KafkaSink, **source: object) -> Pipeline:
        read = KafkaSource(self.kafka.bootstrap, topics=["in"], **source)
        return Pipeline(read, sink(self.kafka.bootstrap, topic="out"), run_jobs.narrow)

    def check(self) -> None:
        for partition in range(self.partitions):
            written = [int(record.value) for record in self.kafka.records("out", partition)]
            assert written == [int(record.value) for record in self.kafka.records("in", partition)]
        assert Counter(int(record.value) for record in self.kafka.records("out")) == Counter(range(self.produced))

    def run(self, pipeline: Pipeline, **settings: object) -> Path:
        """`headrace run` until everything is copied; then SIGTERM stops it with a savepoint."""
        assert threading.current_thread() is threading.main_thread()  # else no process takes the signal
        folder, over = self.more(), threading.Event()

        def complete() -> None:
            if not over.is_set() and len(self.kafka.records("out")) < self.produced:
                raise RetriableError(f"{len(self.kafka.records('out'))} of {self.produced}")

        def stop() -> None:
            try:
                wait_until(complete, "all records", TIMEOUT_S)
            finally:
                if not over.is_set():  # a run that has failed is not there to take it
                    os.kill(os.getpid(), signal.SIGTERM)

        stopping = threading.Thread(target=stop)
        stopping.start()
        try:
            savepoint = pipeline.run(
                checkpoints=folder, savepoints=str(self.folder / "savepoints"), workers=2, interval_s=0.3, **settings
            )
        finally:
            over.set()
            stopping.join()
        assert savepoint is not None
        self.check()
        return savepoint

    def exported(self, checkpoint: str) -> str:
        """A stopped query's checkpoint as a savepoint."""
        words = ["checkpoint", "export", "--to", "run", checkpoint, str(self.folder / "savepoints"), "--stopped"]
        done = CliRunner().invoke(app, [*words, "--bootstrap", self.kafka.bootstrap])
        assert done.exit_code == 0, done.output
        return done.stdout.strip()


@pytest.fixture
def moves(tmp_path):
    with FakeKafka() as kafka:
        yield Moves(kafka, tmp_path)


def test_a_topic_is_copied_once_and_in_order_the_process_that_continues_with_it(spark, moves):
    options = {"kafka.bootstrap.servers": moves.kafka.bootstrap}
    folder = moves.more()
    stream = spark.readStream.format("kafka").options(**options, subscribe="in", startingOffsets="earliest").load()
    writer = stream.select("value", "partition").writeStream.format("kafka").options(**options, topic="out")
    writer.option("checkpointLocation", folder).trigger(availableNow=True).start().awaitTermination()
    moves.check()

    savepoint = moves.run(moves.pipeline(), from_savepoint=moves.exported(folder))

    folder = moves.more()
    query = moves.pipeline().start_on_spark(spark, checkpointLocation=folder, startFromSavepoint=str(savepoint))
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    moves.check()

    savepoint = moves.run(moves.pipeline(), from_savepoint=moves.exported(folder))

    moves.more()
    with on_direct() as p:
        bounded = moves.pipeline(AtLeastOnceKafkaSink, stop=Latest(), group="beam")
        bounded.expand_on_beam(p, start_from_savepoint=str(savepoint))
    moves.check()

    moves.run(moves.pipeline(start=Committed("beam", fallback=Earliest())))
    assert (moves.ways, moves.produced) == (6, 6 * EACH)
