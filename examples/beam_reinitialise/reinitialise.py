"""The bug that headrace started with, and its absence: a pipeline is killed and restored; what it reads after that is counted.

    python examples/beam_reinitialise/reinitialise.py

First Beam's own Flink runner 2.62, in Java; then headrace in a Python pipeline on the same runner. See README.md.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from headrace.beam import ReadFromKafka
from headrace.enumerator.errors import RetriableError
from headrace.testing.servers import wait_until
from headrace.testing.servers.flink import start_flink
from headrace.testing.servers.flink.programs import FLINK, OPENED, RUNNER_VERSION
from headrace.testing.servers.jars import find_java, installed
from headrace.testing.servers.kafka import create_topic, start_broker

HERE = Path(__file__).parent
NUMBERS = 3000  # that each run reads before it ends
LONG_READ = 2000  # numbers below were read and checkpointed long before the end
PER_SECOND = 1000
TIMEOUT_S = 180.0
TOPIC = "numbers"


def beams_own(directory: Path) -> list[int]:
    """The numbers that Beam's Flink runner reads after a restore."""
    jars = f"{installed(FLINK)}/*"
    java = find_java(FLINK.name)
    subprocess.run([java.with_name("javac"), "-cp", jars, "-d", directory, HERE / "Reinitialise.java"], check=True)  # noqa: S603 - our own
    conf, checkpoints = directory / "conf", directory / "checkpoints"
    conf.mkdir()
    settings = {"state.checkpoints.dir": checkpoints.as_uri()}

    def run(output: Path) -> None:
        (conf / "config.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = [java, "-cp", f"{jars}:{directory}", *opened, quiet, "Reinitialise", output, conf, str(NUMBERS)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own

    run(directory / "before")
    completed = [metadata.parent for metadata in checkpoints.glob("*/chk-*/_metadata")]  # one under way has none yet
    settings["execution.savepoint.path"] = max(completed, key=lambda path: int(path.name[4:])).as_uri()
    run(directory / "after")
    return numbers_in(directory / "after")


class WriteDown(beam.DoFn):
    """Appends every number of a batch to a file."""

    def __init__(self, file: str) -> None:
        """`file` is on this machine, as the workers are."""
        self._file = file

    def process(self, element: pa.RecordBatch) -> None:
        """In a worker."""
        with open(self._file, "a") as file:
            file.writelines(value.decode() + "\n" for value in element.column("value").to_pylist())


def headraces(directory: Path) -> list[int]:
    """The numbers that headrace reads after a restore, on the same runner."""
    with start_broker() as kafka, counting(kafka.bootstrap), start_flink() as flink:

        def run(output: Path, savepoint: str | None) -> str:
            pipeline = beam.Pipeline(options=PipelineOptions(flink.options(checkpoint_ms=1000, savepoint=savepoint)))
            config = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}
            read = ReadFromKafka(consumer_config=config, topics=[TOPIC], output="arrow")
            _ = pipeline | read | beam.ParDo(WriteDown(str(output)))
            job = flink.submit(pipeline)
            wait_until(lambda: _has(output, NUMBERS), "the pipeline reads too few numbers", TIMEOUT_S)
            return flink.savepoint(job)

        savepoint = run(directory / "before", None)
        run(directory / "after", savepoint)
    return numbers_in(directory / "after")


@contextmanager
def counting(bootstrap: str) -> Iterator[None]:
    """Count up into the topic while the context lasts."""
    create_topic(bootstrap, TOPIC, 1)
    producer, ended = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}), threading.Event()

    def produce() -> None:
        number = 0
        while not ended.wait(0.1):
            for _ in range(PER_SECOND // 10):
                producer.produce(TOPIC, str(number))
                number += 1
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def numbers_in(file: Path) -> list[int]:
    """What was written down, in its order."""
    return [int(line) for line in file.read_text().splitlines()]


def _has(file: Path, count: int) -> None:
    there = len(numbers_in(file)) if file.exists() else 0
    if there < count:
        raise RetriableError(f"there are {there} of {count}")


def main() -> int:
    """Run both, show what came of it; 0 if Beam's has the bug, and headrace has not."""
    table = Table(title=f"After reading {NUMBERS:,} numbers, a kill and a restore")
    for column in ("", "numbers read", "of them read again from the beginning", "verdict"):
        table.add_column(column)
    counts = []
    for name, read in ((f"Beam's runner {RUNNER_VERSION}, in Java", beams_own), ("headrace on it, in Python", headraces)):
        with tempfile.TemporaryDirectory(prefix="headrace-reinitialise-") as directory:
            after = read(Path(directory))
        again = sum(number < LONG_READ for number in after)
        counts.append(again)
        outcome = "initialised again" if again else "continued"
        table.add_row(name, f"{len(after):,}", f"{again:,}", outcome)
    Console().print(table)
    return 0 if counts[0] and not counts[1] else 1


if __name__ == "__main__":
    raise SystemExit(main())
