"""What grows while a Beam pipeline reads 100 partitions on Flink for an hour: the memory of each process, and the checkpoints.

    python -m benchmarks.beam_growth [--minutes 60] [--rate 1000]

The result is `benchmarks/results/beam-growth.json`, written after every look, and a plot alongside it. Beam's Flink runner of
before July 2026 keeps what every call of a splittable DoFn leaves, for ever (Beam #27648). `--rate 0`: idle partitions.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import apache_beam as beam
import matplotlib.pyplot as plt
import psutil
import typer
from apache_beam.options.pipeline_options import PipelineOptions
from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console

from benchmarks.environment import environment
from benchmarks.figures import save
from benchmarks.stored import write_whole
from headrace.beam import ReadFromKafka
from headrace.testing.servers.flink import FlinkCluster, start_flink
from headrace.testing.servers.kafka import create_topic, start_broker

PARTITIONS = 100
CHECKPOINT_MS = 2000
LOOK_S = 10.0
QUICK_MINUTES = 3.0
TICK_S = 0.1
VALUE = b"x" * 100
TOPIC, GROUP = "growth", "growth"
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
JVMS = ("job manager", "task manager", "job server")
WORKERS = "workers"
TASK_MANAGER_HEAP = "Status.JVM.Memory.Heap.Used"
console = Console()


@dataclass(frozen=True, slots=True)
class Look:
    """What there is this many seconds after the first look. Memory is resident, in bytes; of the newest checkpoint size and
    time.

    `workers`: of all Python workers together. `heap`: what the task manager's JVM uses of its heap, garbage included. `behind`:
    records that were written and are not covered by the offsets that the job has committed.
    """

    at_s: float
    memory: Mapping[str, int]
    workers: int
    heap: int
    checkpoint: int
    checkpoint_bytes: int
    checkpoint_ms: int
    behind: int


class Load:
    """Writes this many records a second, to the partitions one after another, in its own thread."""

    def __init__(self, bootstrap: str, rate: float) -> None:
        """Writes a record to each partition at once."""
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
        self._rate = rate
        self._stop = threading.Event()
        self.written = 0
        """Records that were handed to the producer."""
        self._write(PARTITIONS)
        self._producer.flush(60)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Write meanwhile."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self._producer.flush(60)
            del self._producer  # before its broker, or it complains

    def _run(self) -> None:
        started_s, before = time.monotonic(), self.written
        while not self._stop.wait(TICK_S):
            self._write(before + int((time.monotonic() - started_s) * self._rate) - self.written)

    def _write(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(TOPIC, VALUE, partition=self.written % PARTITIONS)
            self.written += 1
        self._producer.poll(0)


class Watcher:
    """Looks at a job and at the processes that run it."""

    def __init__(self, flink: FlinkCluster, job_id: str, load: Load, bootstrap: str) -> None:
        """Looks at nothing yet."""
        self._flink = flink
        self._job_id = job_id
        self._load = load
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
        self._started_s = time.monotonic()

    def look(self) -> Look:
        """One look. Raises PeerError for a job that has failed, RuntimeError for one that was restarted."""
        if (view := self._flink.job(self._job_id)).failure is not None:
            raise RuntimeError(f"the job is {view.state}: {view.failure[1]}")
        last = self._flink.checkpoints(self._job_id)[0]
        return Look(
            at_s=round(time.monotonic() - self._started_s, 1),
            memory={name: _resident(self._flink.pid(name)) for name in JVMS},
            workers=sum(map(_resident, _children(self._flink.pid(WORKERS)))),
            heap=int(self._flink.rest.metric(TASK_MANAGER_HEAP)),
            checkpoint=last.number,
            checkpoint_bytes=last.state_bytes,
            checkpoint_ms=last.took_ms,
            behind=self._load.written - self._committed(),
        )

    def close(self) -> None:
        """Give the connection up."""
        self._consumer.close()

    def _committed(self) -> int:
        partitions = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        return sum(max(0, found.offset) for found in self._consumer.committed(partitions, timeout=60))


def _resident(pid: int | None) -> int:
    """Of one that has ended, nothing."""
    if pid is None:
        return 0
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def _children(pid: int | None) -> list[int]:
    return [] if pid is None else [child.pid for child in psutil.Process(pid).children(recursive=True)]


def submit(flink: FlinkCluster, bootstrap: str) -> str:
    """A job that reads, and drops what it reads; every task of it runs, and it has completed a checkpoint."""
    pipeline = beam.Pipeline(options=PipelineOptions(flink.options(checkpoint_ms=CHECKPOINT_MS)))
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "group.id": GROUP}
    read = ReadFromKafka(config, [TOPIC], output="arrow", columns=["offset"], commit_offset_in_finalize=True)
    _ = pipeline | read | beam.Map(lambda _: None)
    job_id = flink.submit(pipeline)
    flink.wait_running(job_id)
    flink.wait_checkpoint(job_id)
    return job_id


def looks(watcher: Watcher, seconds: float) -> Iterator[Look]:
    """One every ten seconds, for so long."""
    started_s = time.monotonic()
    for number in range(int(seconds / LOOK_S) + 1):
        time.sleep(max(0.0, started_s + number * LOOK_S - time.monotonic()))
        yield watcher.look()


def growth(found: Sequence[Look]) -> dict[str, float]:
    """What each grows by in an hour, by the second half of the looks: in the first the processes come to what they need."""
    late = found[len(found) // 2 :]
    parts = {
        "checkpoint_bytes": [look.checkpoint_bytes for look in late],
        "workers_bytes": [look.workers for look in late],
        "heap_bytes": [look.heap for look in late],
        **{f"{name.replace(' ', '_')}_bytes": [look.memory[name] for look in late] for name in JVMS},
    }
    return {name: round(_slope([look.at_s / 3600 for look in late], values)) for name, values in parts.items()}


def _slope(at: Sequence[float], values: Sequence[float]) -> float:
    """The least squares' line's."""
    middle_at, middle = sum(at) / len(at), sum(values) / len(values)
    spread = sum((x - middle_at) ** 2 for x in at)
    return sum((x - middle_at) * (y - middle) for x, y in zip(at, values, strict=True)) / spread if spread else 0.0


def draw(found: Sequence[Look], title: str, file: Path) -> None:
    """Memory, checkpoints' sizes, and how long they took, over the minutes."""
    minutes = [look.at_s / 60 for look in found]
    figure, (memory, size, took) = plt.subplots(3, 1, figsize=(9, 8), sharex=True, layout="constrained")
    for name in JVMS:
        memory.plot(minutes, [look.memory[name] / 2**20 for look in found], label=f"{name} (JVM)")
    memory.plot(minutes, [look.workers / 2**20 for look in found], label="Python workers, together", linewidth=2)
    memory.set_ylabel("resident memory, MiB")
    memory.set_title(title, loc="left", fontsize=11, fontweight="bold")
    memory.legend(fontsize=8, frameon=False, ncols=2)
    size.plot(minutes, [look.checkpoint_bytes / 1e6 for look in found], color="#0b6e99")
    size.set_ylabel("a checkpoint, MB")
    took.plot(minutes, [look.checkpoint_ms for look in found], color="#7a8f5a")
    took.set_ylabel("its duration, ms")
    took.set_xlabel("minutes")
    for axes in (memory, size, took):
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, file)


def main(
    minutes: Annotated[float, typer.Option(min=0.5, help="How long.")] = 60.0,
    rate: Annotated[float, typer.Option(min=0, help="Records of 100 bytes a second, over all partitions.")] = 1000.0,
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Three minutes, into results/quick.")] = False,  # noqa: FBT002
) -> None:
    """Start a broker and Flink, look every ten seconds, keep and draw what was seen."""
    file = (RESULTS / "quick" if quick else RESULTS) / "beam-growth.json"
    seconds = 60 * (QUICK_MINUTES if quick else minutes)
    facts = {"partitions": PARTITIONS, "slots": 2, "rate": rate, "environment": environment("local")}
    found: list[Look] = []
    with start_broker(1) as broker, start_flink(environment={"PYTHONPATH": str(ROOT)}) as flink:
        create_topic(broker.bootstrap, TOPIC, partitions=PARTITIONS)
        load = Load(broker.bootstrap, rate)
        job_id = submit(flink, broker.bootstrap)
        with contextlib.closing(Watcher(flink, job_id, load, broker.bootstrap)) as watcher, load.running():
            for look in looks(watcher, seconds):
                found.append(look)
                document: dict[str, Any] = {**facts, "an_hour_adds": growth(found), "looks": [asdict(each) for each in found]}
                write_whole(file, json.dumps(document) + "\n")
        flink.cancel(job_id)
    draw(
        found,
        f"{PARTITIONS} partitions, {rate:g} records/s, a checkpoint every {CHECKPOINT_MS / 1000:g} s",
        file.with_suffix(".svg"),
    )
    console.print_json(data={"an_hour_adds": growth(found), "last": asdict(found[-1])})


if __name__ == "__main__":
    typer.run(main)
