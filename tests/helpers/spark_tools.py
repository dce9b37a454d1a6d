"""For tests with a real Spark: one session, a query that keeps what it was given, a producer with everything a record has."""

import os
import runpy
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from headrace.runners.spark_processes.spark_archive import archive_of_spark
from headrace.testing.servers.kafka import BrokerCluster, add_partitions, create_topic, delete_topic
from tests.helpers.kafka_tools import IDEMPOTENT
from tests.helpers.python_path import ROOT


def numbers(*spans: Iterable[int]) -> list[str]:
    return [str(number) for span in spans for number in span]


def start_session(**settings: str) -> SparkSession:
    """A warm session on two cores, with the JVM connector alongside ours; a failed task is tried again, as on a cluster."""
    from headrace.spark import warm_session_builder

    os.environ["PYSPARK_PYTHON"] = sys.executable
    archive_of_spark().at_hand()
    builder = warm_session_builder().master("local[2,4]").appName("headrace tests")
    jvm_connector = runpy.run_path(str(ROOT / "benchmarks" / "jars.py"))["jvm_connector_jars"]()
    quiet = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.jars": ",".join(jvm_connector)}
    session = builder.config(map={**quiet, **settings}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def stop_session(session: SparkSession) -> None:
    """Stop the session, and the JVM with it: the next one of this process starts its own JVM.

    Nothing is done where another module of the process has had the same session, and has stopped it.
    """
    if SparkContext._active_spark_context is not session.sparkContext:
        return
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = None
    SparkContext._jvm = None


class Topics:
    """Topics of one test, and records in them."""

    def __init__(self, cluster: BrokerCluster, names: Iterator[str]) -> None:
        self.bootstrap = cluster.bootstrap
        self._names = names
        self._sent = 0

    def create(self, partitions: int = 1, **configs: str) -> str:
        name = next(self._names)
        create_topic(self.bootstrap, name, partitions, configs={key.replace("_", "."): v for key, v in configs.items()})
        return name

    def holding(self, values: Sequence[Any], **fields: Any) -> str:
        topic = self.create()
        self.send(topic, values, **fields)
        return topic

    def numbered(self, partitions: int, each: int) -> str:
        """A topic with the numbers from 0 on, this many in each partition, one partition after the other."""
        topic = self.create(partitions)
        for partition in range(partitions):
            self.send(topic, range(partition * each, partition * each + each), partition)
        return topic

    def grow(self, topic: str, partitions: int) -> None:
        add_partitions(self.bootstrap, topic, partitions)

    def delete(self, topic: str) -> None:
        delete_topic(self.bootstrap, topic)

    def send(self, topic: str, values: Sequence[Any], partition: int = 0, **fields: Any) -> None:
        """Write values as text; `fields`: key, headers, timestamp. Returns when all are acknowledged."""
        producer = Producer({"bootstrap.servers": self.bootstrap, **IDEMPOTENT, "linger.ms": 1})
        for value in values:
            data = None if value is None else str(value).encode()
            producer.produce(topic, data, partition=partition, **fields)
        assert producer.flush(60) == 0

    @contextmanager
    def transaction(self) -> Iterator[Producer]:
        """A producer in a transaction; the body commits or aborts it."""
        self._sent += 1
        name = f"test-{os.getpid()}-{id(self)}-{self._sent}"
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name})
        producer.init_transactions(60)
        producer.begin_transaction()
        yield producer

    def options(self, topic: str | None = None, **options: Any) -> dict[str, str]:
        """Options of a read; `__` represents a dot."""
        subscribed = {} if topic is None else {"subscribe": topic}
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        return {"kafka.bootstrap.servers": self.bootstrap, **subscribed, **named}


class Query:
    """A streaming query, its checkpoint, and what each of its batches was given. May be run again and again."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self.spark = spark
        self.checkpoint = checkpoint
        self.batches: dict[int, list[Any]] = {}
        self.fails_in: int | None = None
        self.running: Any = None

    def start(self, options: dict[str, str], source: str = "headrace", **trigger: Any) -> Any:
        return self.start_frame(self.spark.readStream.format(source).options(**options).load(), **trigger)

    def start_frame(self, frame: DataFrame, **trigger: Any) -> Any:
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        self.running = (writer.trigger(**trigger) if trigger else writer).start()
        return self.running

    def run_available(self, options: dict[str, str], source: str = "headrace") -> None:
        self.start(options, source, availableNow=True).awaitTermination()

    def caught_up(self) -> None:
        self.running.processAllAvailable()

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()
            self.running = None

    @property
    def rows(self) -> list[Any]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    @property
    def values(self) -> list[str]:
        return sorted((row["value"].decode() for row in self.rows), key=lambda text: (len(text), text))

    def _keep(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id == self.fails_in:
            raise RuntimeError("injected failure")
        self.batches[batch_id] = frame.collect()
