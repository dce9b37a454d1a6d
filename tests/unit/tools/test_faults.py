"""The ablations that demo and benchmark run with: injected as a restarted query's process injects them, each does its harm."""

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from headrace.connectors.kafka.read.discovery import KafkaDiscovery
from headrace.runners.spark.stream import StreamPlanner
from headrace.spark.kafka_offsets import KafkaOffsets
from headrace.spark.kafka_read import Mode, kafka_read

FAULTS = Path(__file__).parents[3] / "tests" / "faults"


@pytest.fixture
def inject(monkeypatch):
    """Runs a fault's sitecustomize as Spark's planner does at its start; what it has changed is undone."""
    monkeypatch.setattr(KafkaOffsets, "from_json", KafkaOffsets.from_json)
    monkeypatch.setattr(KafkaDiscovery, "later", KafkaDiscovery.later)
    monkeypatch.delenv("HEADRACE_PHASE", raising=False)

    def inject(name: str, process: str = "pyspark.sql.streaming.python_streaming_source_runner") -> None:
        monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", process])
        runpy.run_path(str(FAULTS / name / "sitecustomize.py"))

    return inject


class Job:
    """A query that has read ten records of one partition, and is down while another partition comes, with five."""

    def __init__(self, kafka):
        self.kafka = kafka
        kafka.create_topic("t")
        kafka.append("t", *[b"x"] * 10)
        planner = self.planner()
        self.stored = planner.next_offsets(planner.initial_offsets(), None, None)
        kafka.add_partitions("t", 2)
        kafka.append("t", *[b"y"] * 5, partition=1)

    def planner(self) -> StreamPlanner:
        options = {"kafka.bootstrap.servers": self.kafka.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
        return StreamPlanner(kafka_read(options, Mode.STREAM), lambda: 0.0)

    def restarted(self) -> list[tuple[str, int, int]]:
        """What the first two batches after the restart read."""
        planner, start, read = self.planner(), self.stored, []
        for _ in range(2):
            self.kafka.append("t", b"z")
            self.kafka.append("t", b"z", partition=1)
            end = planner.next_offsets(start, None, None)
            read += [(str(s), s.next_offset, s.stop_offset) for task in planner.tasks(start, end) for s in task]
            start = end
        return sorted(read)


@pytest.fixture
def job(fake_kafka):
    return Job(fake_kafka)


HONEST = [("t-0", 10, 11), ("t-0", 11, 12), ("t-1", 0, 6), ("t-1", 6, 7)]


def test_without_a_fault_each_record_is_read_once(job):
    assert job.restarted() == HONEST


@pytest.mark.parametrize("name", ["no_discovery", "reinitialise"])
def test_nothing_is_injected_in_other_processes(job, inject, name):
    inject(name, "pyspark.daemon")
    assert job.restarted() == HONEST


def test_without_discovery_across_a_restore_a_partition_added_meanwhile_is_never_read(job, inject):
    inject("no_discovery")
    assert job.restarted() == [("t-0", 10, 11), ("t-0", 11, 12)]


def test_a_restore_that_initialises_again_reads_everything_twice(job, inject):
    inject("reinitialise")
    assert job.restarted()[0][:2] == ("t-0", 0)
