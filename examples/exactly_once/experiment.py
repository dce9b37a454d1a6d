"""What the experiments share: a Kafka, a job that can be killed, and readers that know nothing of headrace."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import psutil
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headrace.enumerator.errors import UsageError
from headrace.testing.servers.kafka import create_topic, delete_topic, start_broker

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
TIMEOUT_S = 300.0
POLL_S = 0.1
NO_COORDINATOR_YET = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
"""What a cluster answers to its first question about any group."""


class ExperimentError(Exception):
    """The experiment did not come out as it should."""


def check(holds: bool, what: str) -> None:  # noqa: FBT001 - an assertion of the experiment
    """Say what was found. Raises ExperimentError if it does not hold."""
    if not holds:
        raise ExperimentError(f"it does not hold that {what}")
    print(f"  {what}", flush=True)  # noqa: T201 - the experiment's output


def say(what: str) -> None:
    """One step of the experiment."""
    print(what, flush=True)  # noqa: T201 - the experiment's output


class Kafka:
    """A cluster, with topics of this experiment."""

    def __init__(self, bootstrap: str) -> None:
        """Its address."""
        self.bootstrap = bootstrap
        self.topics: list[str] = []

    def topic(self, name: str, partitions: int = 1) -> str:
        """A new topic, of a unique name that starts with this one."""
        unique = f"{name}-{uuid.uuid4().hex[:8]}"
        create_topic(self.bootstrap, unique, partitions)
        self.topics.append(unique)
        return unique

    def send(self, topic: str, numbers: Iterable[int], partitions: int) -> None:
        """Each number as a record, to the partitions one after another."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0})
        for number in numbers:
            producer.produce(topic, str(number).encode(), partition=number % partitions)
        if producer.flush(TIMEOUT_S):
            raise ExperimentError("the input could not be produced")

    def group_offset(self, group: str, topic: str, partitions: int) -> int:
        """How many records of the topic are behind the offsets that the group has committed."""
        wanted = [TopicPartition(topic, partition) for partition in range(partitions)]
        deadline = time.monotonic() + TIMEOUT_S
        with _closing_consumer(self.bootstrap, group) as consumer:
            while True:
                try:
                    committed = consumer.committed(wanted, TIMEOUT_S)
                except KafkaException as error:
                    if error.args[0].code() not in NO_COORDINATOR_YET or time.monotonic() > deadline:
                        raise
                    time.sleep(POLL_S)
                else:
                    return sum(max(0, partition.offset) for partition in committed)


@contextmanager
def kafka_and_scratch() -> Iterator[tuple[Kafka, Path]]:
    """The Kafka at HEADRACE_BOOTSTRAP, else a throwaway one; and a directory that goes away."""
    with start_broker() as cluster, TemporaryDirectory(prefix="headrace-experiment-") as scratch:
        kafka = Kafka(cluster.bootstrap)
        try:
            yield kafka, Path(scratch)
        finally:
            for topic in kafka.topics:
                with suppress(UsageError):  # a job that failed early has not made all of them
                    delete_topic(cluster.bootstrap, topic)


@contextmanager
def _closing_consumer(bootstrap: str, group: str, isolation: str = "read_committed") -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        yield consumer
    finally:
        consumer.close()


class Reader:
    """Reads a topic all the time, in its own thread, with librdkafka."""

    def __init__(self, bootstrap: str, topic: str, isolation: str) -> None:
        """`isolation`: read_uncommitted or read_committed."""
        self.seen: Counter[int] = Counter()
        self._topic, self._isolation, self._bootstrap = topic, isolation, bootstrap
        self._stop = threading.Event()
        self._error: KafkaException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Start at the first record."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join()

    @property
    def count(self) -> int:
        """How many records it has seen, the same one twice counted twice."""
        if self._error is not None:
            raise self._error
        return self.seen.total()

    def _run(self) -> None:
        with _closing_consumer(self._bootstrap, f"reader-{uuid.uuid4().hex[:8]}", self._isolation) as consumer:
            partitions = consumer.list_topics(self._topic, TIMEOUT_S).topics[self._topic].partitions
            consumer.assign([TopicPartition(self._topic, partition, 0) for partition in partitions])
            while not self._stop.is_set():
                message = consumer.poll(POLL_S)
                if message is None:
                    continue
                if message.error() is not None:
                    self._error = KafkaException(message.error())
                    return
                self.seen[int(message.value() or b"-1")] += 1


class Job:
    """A Spark job in its own process, with its JVM and its Python workers. Leave the context to end them."""

    def __init__(self, script: str, directory: Path, arguments: dict[str, Any], **environment: str) -> None:
        """Starts it: `script` is a file alongside this one; what it prints goes to `job.log` in `directory`."""
        self._log = directory / "job.log"
        command = [sys.executable, str(HERE / script), json.dumps(arguments)]
        with self._log.open("a") as log:
            # In the checkout Spark finds pyspark_headrace, which an editable install hides from it.
            self._process = psutil.Popen(
                command, cwd=CHECKOUT, env={**_environment(), **environment}, stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self) -> Self:
        """It runs already."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End whatever still runs."""
        self.kill()

    def kill(self) -> None:
        """SIGKILL to all of it at once: first all are frozen, so that none can tidy up when it sees another die."""
        frozen: set[psutil.Process] = set()
        while new := self._tree() - frozen:
            for process in new:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            frozen |= new
        for process in frozen:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(TIMEOUT_S)

    def wait(self) -> int:
        """Until it ends; its exit status."""
        status: int = self._process.wait(TIMEOUT_S)
        return status

    def finish(self) -> None:
        """Until it ends. Raises ExperimentError if it failed."""
        if self.wait():
            raise ExperimentError(f"the job failed:\n{self._tail()}")

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """While it runs. Raises ExperimentError if it ends before, or if that takes too long."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if self._process.poll() is not None:
                raise ExperimentError(f"the job has ended before {what}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise ExperimentError(f"waited unsuccessfully for {what}:\n{self._tail()}")
            time.sleep(POLL_S)

    def _tree(self) -> set[psutil.Process]:
        try:
            return {psutil.Process(self._process.pid), *self._process.children(recursive=True)}
        except psutil.NoSuchProcess:
            return set()

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable}


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Raises ExperimentError if that takes too long."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise ExperimentError(f"waited unsuccessfully for {what}")
        time.sleep(POLL_S)
