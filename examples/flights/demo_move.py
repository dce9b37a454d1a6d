"""Flights copied by the JVM connector, headrace run, Spark, the run, Beam on Flink and the run one after another. See
README.md.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import apache_beam as beam
import psutil
from apache_beam.options.pipeline_options import PipelineOptions
from beam_follow import Follower
from confluent_kafka import Consumer, TopicPartition
from flights import FLIGHTS, flights
from oracle import judge_copy
from producer import FlightProducer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from headrace import Pipeline
from headrace.kafka import KafkaSource, Latest
from headrace.spark import session_builder
from headrace.testing.servers.flink import FlinkCluster, start_flink
from headrace.testing.servers.kafka import add_partitions, create_topic, delete_topic, start_broker

HERE = Path(__file__).parent
WAYS = 6
PARTITIONS, MORE = 3, 1
STALL_S = 300.0
CHECKPOINT_MS = 2000
ANSWER_S = 30.0
SETTLE_S = 1.0
"""What was on its way when the producer was held has arrived by then."""


class DemoError(Exception):
    """The demo could not do what it is there to show."""


class Demo:
    """One run: a topic that fills by and by, and each way to continue copying it from where the previous one has stopped."""

    def __init__(self, bootstrap: str, flink: FlinkCluster, topics: tuple[str, str], total: int, console: Console) -> None:
        """Kafka and Flink are running. `topics`: flights and their copy. `total`: how many flights there will be."""
        self._bootstrap, self._flink, self._total, self._console = bootstrap, flink, total, console
        self._topic, self._copy = topics
        self._began = time.monotonic()
        self._partitions, self._ways = PARTITIONS, 0
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
        self._pipeline: Pipeline = import_module("move_job").pipeline  # now that the environment says where
        self.moves = 0

    def run(self, rate: float) -> None:
        """Have all of it copied, a sixth by each."""
        producer = FlightProducer(self._bootstrap, self._topic, flights(self._total), rate)
        spark = _session()
        with producer:
            self._producer = producer
            checkpoint = self._jvm_connector(spark)
            savepoint = self._run("--from-savepoint", self._exported(checkpoint))
            checkpoint = self._spark(spark, savepoint)
            savepoint = self._run("--from-savepoint", self._exported(checkpoint))
            self._beam(savepoint)
            self._run(pipeline="after_beam")
        spark.stop()

    # --- the ways -----------------------------------------------------------------------------------------------------

    def _jvm_connector(self, spark: SparkSession) -> str:
        folder = self._next("Spark's own Kafka connector")
        options = {"kafka.bootstrap.servers": self._bootstrap}
        stream = spark.readStream.format("kafka").options(**options, subscribe=self._topic, startingOffsets="earliest").load()
        writer = stream.select("key", "value").writeStream.format("kafka").options(**options, topic=self._copy)
        query = writer.option("checkpointLocation", folder).start()
        return self._stopped(query, folder)

    def _spark(self, spark: SparkSession, savepoint: str) -> str:
        folder = self._next("headrace on Spark, from the run's savepoint")
        query = self._pipeline.start_on_spark(spark, checkpointLocation=folder, startFromSavepoint=savepoint)
        return self._stopped(query, folder)

    def _stopped(self, query: StreamingQuery, folder: str) -> str:
        try:
            self._copied(query.exception)
            query.processAllAvailable()  # its last batch is committed
        finally:
            query.stop()
        return folder

    def _exported(self, checkpoint: str) -> str:
        words = ["checkpoint", "export", "--to", "run", checkpoint, str(self._folder), "--stopped"]
        return _headrace(*words, "--bootstrap", self._bootstrap)

    def _run(self, *options: str, pipeline: str = "pipeline") -> str:
        folder = self._next("headrace run, with two workers, one of which is killed")
        words = ["run", f"{HERE / 'move_job.py'}:{pipeline}", "--workers", "2", "--checkpoints", folder]
        words += ["--savepoints", str(self._folder), "--config", "execution.checkpointing.interval=1 s", *options]
        command = _command(*words)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
            try:
                self._wait("two workers", lambda: len(_leaves(process.pid)) == 2, process.poll)
                _leaves(process.pid)[0].kill()
                self._copied(process.poll)
            finally:
                process.send_signal(signal.SIGTERM)
                printed, _ = process.communicate()
        if process.returncode != 0:
            raise DemoError(f"headrace run ended with status {process.returncode}")
        return printed.strip()

    def _beam(self, savepoint: str) -> None:
        self._next("headrace on Beam and Flink, from the run's savepoint")
        source = self._pipeline.source
        assert isinstance(source, KafkaSource)
        self._produce()
        bounded = replace(self._pipeline, source=replace(source, stop=Latest(), group=self._topic))
        built = beam.Pipeline(options=PipelineOptions(self._flink.options(checkpoint_ms=CHECKPOINT_MS)))
        bounded.expand_on_beam(built, start_from_savepoint=savepoint)
        job = self._flink.submit(built)
        self._flink.wait_running(job)
        self._copied(lambda: None)
        self._wait("the group to have all positions", self._group_is_at_the_end, lambda: None)
        self._flink.cancel(job)

    # --- what all of them need ----------------------------------------------------------------------------------------

    def _next(self, name: str) -> str:
        """More partitions, and the next sixth of the flights; the name of a new folder."""
        if self._ways:
            self.moves += 1
            self._partitions += MORE
            for topic in (self._topic, self._copy):
                add_partitions(self._bootstrap, topic, self._partitions)
        self._ways += 1
        self._producer.hold = False
        self._say(f"{name}; {self._partitions} partitions")
        return str(self._folder / f"way-{self._ways}")

    def _wanted(self) -> int:
        return self._total * self._ways // WAYS

    def _produce(self) -> None:
        """Wait until this sixth is in the topic."""
        self._wait("the flights of this way", lambda: self._producer.acknowledged.total() >= self._wanted(), lambda: None)
        self._producer.hold = self._ways < WAYS
        if self._ways == WAYS:
            self._producer.wait()
        settled = -1
        while settled != (settled := self._producer.acknowledged.total()):
            time.sleep(SETTLE_S)

    def _copied(self, failed: Callable[[], object]) -> None:
        """Wait until all that was produced is in the copy, as a reader under read_committed sees it."""
        self._produce()
        with Follower(self._bootstrap, self._copy, self._copy) as follower:

            def complete() -> bool:
                follower.look()
                return follower.copied >= self._producer.acknowledged.total()

            self._wait("every flight of this way in the copy", complete, failed)
        self._say("all of it is copied")

    def _group_is_at_the_end(self) -> bool:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self._topic, "log_level": 2})
        try:
            wanted = [TopicPartition(self._topic, number) for number in range(self._partitions)]
            found = consumer.committed(wanted, ANSWER_S)
            return all(each.offset == consumer.get_watermark_offsets(each, ANSWER_S)[1] for each in found)
        finally:
            consumer.close()

    def _wait(self, what: str, condition: Callable[[], object], failed: Callable[[], object]) -> None:
        since = time.monotonic()
        while not condition():
            self._producer.is_done()  # or it raises why not
            if (why := failed()) is not None:
                raise DemoError(f"while waiting for {what}: {why}")
            if time.monotonic() - since > STALL_S:
                raise DemoError(f"{what}: not within {STALL_S:.0f} s")
            time.sleep(0.1)

    def _say(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:6.1f} s  {text}", soft_wrap=True, highlight=False)


def _session() -> SparkSession:
    jars = runpy.run_path(str(HERE.parents[1] / "benchmarks" / "jars.py"))["jvm_connector_jars"]()
    settings = {"spark.jars": ",".join(jars), "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    session = session_builder().master("local[2]").appName("headrace demo").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from headrace.cli import main; main()", *words]


def _headrace(*words: str) -> str:
    done = subprocess.run(_command(*words), stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - our own
    return done.stdout.strip()


def _leaves(pid: int) -> list[psutil.Process]:
    """The processes below it that have none below them: a run's workers, once it has started them."""
    found = psutil.Process(pid).children(recursive=True)
    parents = {process.ppid() for process in found}
    return [process for process in found if process.pid not in parents and process.ppid() != pid]


def main(arguments: Sequence[str]) -> int:
    """Run the demo; give the exit status: 0 if the oracle found every flight in the copy exactly once."""
    parser = argparse.ArgumentParser(
        description="Flights copied by five engines one after another, each from where the last has stopped."
    )
    parser.add_argument("--flights", type=int, default=FLIGHTS, help="how many (default: all %(default)s)")
    parser.add_argument("--rate", type=float, default=5000.0, help="flights produced per second (default: %(default)g)")
    options = parser.parse_args(arguments)
    console = Console()
    console.print("starting Kafka and Flink")
    name = f"flights-{uuid.uuid4().hex[:8]}"
    topics = (name, f"{name}-copy")
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    with start_broker() as cluster:
        request = {
            "PYTHONPATH": paths,
            "FLIGHTS_BOOTSTRAP": cluster.bootstrap,
            "FLIGHTS_TOPIC": name,
            "FLIGHTS_COPY": topics[1],
        }
        os.environ |= request
        for topic in topics:
            create_topic(cluster.bootstrap, topic, PARTITIONS)
        try:
            with start_flink(environment=request) as flink:
                demo = Demo(cluster.bootstrap, flink, topics, options.flights, console)
                demo.run(options.rate)
            console.print("the oracle reads both topics")
            outcome = judge_copy(cluster.bootstrap, *topics)
        finally:
            for topic in topics:
                delete_topic(cluster.bootstrap, topic)
    last = (
        f"headrace demo: {outcome.records_in} records in, {outcome.records_out} out, {outcome.duplicates} duplicates, "
        f"{outcome.lost} lost, {demo.moves} moves"
    )
    console.print(last, soft_wrap=True, highlight=False)
    return 0 if outcome.is_good and outcome.records_in == options.flights else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except DemoError as error:
        sys.exit(f"headrace demo: {error}")
