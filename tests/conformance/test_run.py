"""The kit on `headrace run`: its real processes, frozen between the steps of a case, on a Kafka of this process.

The output is a topic with the batches as they were delivered. A checkpoint is a savepoint: a run of another name starts
with it, so it may be restored more than once, as no checkpoint of a run can. Of a bounded source it is a copy of the folder.
"""

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from headrace.enumerator import Boundedness, Source
from headrace.enumerator.errors import RetriableError, StateError
from headrace.kafka import KafkaSource
from headrace.runners.local.savepoints import take_savepoint
from headrace.runners.local.storage.places import run_files
from headrace.testing import ExternalContext, FakeKafka, Run, SourceConformance
from tests.helpers.python_path import python_path

from .test_kafka import PartitionPerSplit, TopicPerSplit
from .test_memory import ServedHybrid, ServedPieces

DISCOVERY_S = 0.1
TIMEOUT_S = 60.0
LOOK_S = 0.01

JOB = """
import pickle
from pathlib import Path

from headrace import Pipeline
from headrace.kafka import KafkaSink
from tests.conformance.test_run import whole

source, bootstrap, topic = pickle.loads(Path(__file__).with_name("job.pickle").read_bytes())
pipeline = Pipeline(source, KafkaSink(bootstrap, topic=topic), whole)
"""


def whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.record_batch({"value": pa.array([stream.getvalue().to_pybytes()], pa.binary())})


class ProcessRun(Run):
    """The processes stand still but in `step`. What is visible then is what the newest checkpoint has committed."""

    def __init__(self, source: Source[Any], kafka: FakeKafka, checkpoint: bytes | None, parallelism: int) -> None:
        self._kafka, self._topic = kafka, f"out-{uuid.uuid4().hex}"
        kafka.create_topic(self._topic)
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-kit-"))
        job = (source, kafka.bootstrap, self._topic)
        (self._folder / "job.pickle").write_bytes(pickle.dumps(job))
        (self._folder / "job.py").write_text(JOB)
        options = ["--workers", str(parallelism), "--checkpoints", str(self._folder / "checkpoints")]
        for name, value in {"execution.checkpointing.interval": "50 ms", "restart-strategy.fixed-delay.delay": "50 ms"}.items():
            options += ["--config", f"{name}={value}"]
        if checkpoint is not None:
            options += self._restored(*pickle.loads(checkpoint), source)
        command = [sys.executable, "-c", "from headrace.cli import main; main()", "run", f"{self._folder / 'job.py'}:pipeline"]
        self._log = self._folder / "log"
        with self._log.open("wb") as log:
            self._process = psutil.Popen(
                [*command, *options, "--config", "restart-strategy.type=fixed-delay"], stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": python_path()},
            )  # fmt: skip
        self._until(self._is_settled)

    def _restored(self, savepoint: bytes, files: dict[str, bytes], source: Source[Any]) -> list[str]:
        """The options. With a savepoint a bounded source ends where it is to end now, not where the first run ended."""
        if source.boundedness is Boundedness.UNBOUNDED:
            (self._folder / "savepoint.json").write_bytes(savepoint)
            return ["--from-savepoint", str(self._folder / "savepoint.json")]
        (self._folder / "checkpoints").mkdir()
        for name, data in files.items():
            (self._folder / "checkpoints" / name).write_bytes(data)
        return []

    def step(self, timeout_s: float) -> bool:
        before, deadline_s = len(self.delivered()), time.monotonic() + timeout_s
        self._until(lambda: len(self.delivered()) > before or time.monotonic() > deadline_s)
        return len(self.delivered()) > before

    def delivered(self) -> list[pa.RecordBatch]:
        batches = []
        for record in self._kafka.records(self._topic):
            assert record.value is not None
            with pa.ipc.open_stream(record.value) as reader:
                batches += list(reader)
        return batches

    def checkpoint(self) -> bytes:
        files = run_files(str(self._folder / "checkpoints"))
        with tempfile.TemporaryDirectory() as folder:
            savepoint = take_savepoint(files, Path(folder)).read_bytes()
        return pickle.dumps((savepoint, {name: files.read(name) for name in files.names()}))

    def lose_reader(self) -> None:
        """What it has read since the last checkpoint was committed is visible nowhere."""
        if self.finished:
            return
        workers = [process for process in self._processes() if not process.children()]
        workers[0].kill()
        self._until(lambda: not workers[0].is_running())
        assert "its process ended with status -9" in self._log.read_text()

    def look_for_splits(self) -> None:
        """It looks all the time."""

    @property
    def finished(self) -> bool:
        ended = self._process.poll()
        assert ended in (None, 0), self._log.read_text()
        return ended == 0

    def close(self) -> None:
        for process in [*self._processes(), self._process]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _until(self, condition: Any) -> None:
        """Let it run until this holds and nothing is half committed, or it has ended."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            self._signal("resume")
            while not (self.finished or condition()):
                assert time.monotonic() < deadline_s, self._log.read_text()
                time.sleep(LOOK_S)
            self._signal("suspend")
            if self.finished or self._is_settled():
                return

    def _is_settled(self) -> bool:
        try:
            self.checkpoint()
        except (RetriableError, StateError, FileNotFoundError):  # a process that does not stand yet has removed one
            return False
        return True

    def _signal(self, what: str) -> None:
        """Parents first, so that none starts another meanwhile."""
        known: set[int] = set()
        while fresh := [process for process in [self._process, *self._processes()] if process.pid not in known]:
            for process in fresh:
                known.add(process.pid)
                with suppress(psutil.NoSuchProcess):
                    getattr(process, what)()

    def _processes(self) -> list[psutil.Process]:
        try:
            return list(self._process.children(recursive=True))
        except psutil.NoSuchProcess:
            return []


class OnRun(SourceConformance):
    poll_timeout_s = 0.3
    quiet_polls = 2
    timeout_polls = 100
    observes_source = False
    context: type[PartitionPerSplit] | type[TopicPerSplit] = PartitionPerSplit

    @pytest.fixture(autouse=True)
    def reach(self, fake_kafka: FakeKafka) -> None:
        self.kafka = fake_kafka

    def create_external_context(self) -> ExternalContext:
        return self.context(self.kafka.bootstrap)

    def create_run(self, source: Source[Any], *, checkpoint: bytes | None, parallelism: int) -> Run:
        if isinstance(source, KafkaSource):
            source = replace(source, discovery_interval_s=DISCOVERY_S)
        return ProcessRun(source, self.kafka, checkpoint, parallelism)


@pytest.mark.long
@pytest.mark.timeout(300)
class TestOneTopic(OnRun):
    pass


@pytest.mark.long
@pytest.mark.timeout(300)
class TestTopicsOfAPattern(OnRun):
    context = TopicPerSplit


@pytest.mark.long
@pytest.mark.timeout(300)
class TestPieces(OnRun):
    def create_external_context(self) -> ServedPieces:
        return ServedPieces()


@pytest.mark.long
@pytest.mark.timeout(300)
class TestHybrid(OnRun):
    def create_external_context(self) -> ServedHybrid:
        return ServedHybrid()
