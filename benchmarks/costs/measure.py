"""One measurement: a job between its topics, under a load, without data, or from its start to a restore."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.costs.brokers import Broker
from benchmarks.costs.gauges import Visible, checkpoint_bytes, cpu_s, memory, peak_memory
from benchmarks.restore.load import Controls, Load, Writer
from benchmarks.restore.process import ProcessTree
from benchmarks.restore.records import RecordMaker
from benchmarks.restore.systems import BY_NAME, HERE, Job, System
from headrace.kafka import Earliest, KafkaSource, Latest
from headrace.testing.servers.kafka import add_partitions, create_topic, delete_topic

INTERVAL_MS = 1000
"""Between checkpoints or commits, of those that have them: Spark's connectors start a batch as soon as there is data."""

DISCOVERY_S = 300
"""Between looks for new partitions: the default of Flink, and of headrace without an engine. Spark's connectors look for each
batch."""

MOST_AT_ONCE = 5_000
"""Partitions: a controller refuses to make 10,000 by one request."""

OUTPUTS = 8
START_S = 600.0
DRAIN_S = 180.0
VALUE_BYTES = 100
PER_TRIGGER = 1_000_000


@dataclass(frozen=True)
class Seconds:
    """How long is waited before a window, and how long it is."""

    warm_up: float
    window: float


@dataclass
class Bench:
    """A system between two topics, on one broker."""

    broker: Broker
    system: System
    partitions: int
    folder: Path

    def __post_init__(self) -> None:
        """Make the topics."""
        name = f"cost-{uuid.uuid4().hex[:10]}"
        self.source, self.target = f"{name}-in", f"{name}-out"
        create_topic(self.broker.bootstrap, self.source, min(self.partitions, MOST_AT_ONCE))
        for total in range(2 * MOST_AT_ONCE, self.partitions + 1, MOST_AT_ONCE):
            add_partitions(self.broker.bootstrap, self.source, total)
        create_topic(self.broker.bootstrap, self.target, OUTPUTS)
        self.state = self.folder / "state"
        self.state.mkdir()
        self._job = Job(
            self.broker.bootstrap, self.source, self.target, name, str(self.state), str(self.folder / "marks.jsonl"),
            self.system.parallelism, PER_TRIGGER,
        )  # fmt: skip
        self.visible = Visible(self.broker.bootstrap, self.target, OUTPUTS)
        self.tree: ProcessTree | None = None

    def start(self) -> ProcessTree:
        """The job's first process, which starts the others."""
        settings = {**asdict(self._job), **self.system.more(), "interval_ms": INTERVAL_MS, "discovery_s": DISCOVERY_S}
        command = [str(self.system.python()), str(HERE / "jobs" / self.system.script), json.dumps(settings)]
        environment = self.system.environment(None, self.folder, traced=False)
        self.tree = ProcessTree(command, environment, self.folder)
        return self.tree

    def close(self) -> None:
        """Nothing is left of it."""
        if self.tree is not None:
            self.tree.end()
        self.visible.close()
        for topic in (self.source, self.target):
            delete_topic(self.broker.bootstrap, topic)

    def window(self, tree: ProcessTree, seconds: float) -> dict[str, Any]:
        """What the job takes in this many seconds, and what the broker is asked meanwhile."""
        asked, used, at = self.broker.answered(), cpu_s(tree), time.monotonic()
        with peak_memory(tree) as peak:
            time.sleep(seconds)
        took_s = time.monotonic() - at
        used, later = cpu_s(tree) - used, self.broker.answered()
        tree.check()
        rates = None if asked is None or later is None else _rates(later - asked, took_s)
        return {
            "seconds": round(took_s, 2),
            "cpu_s": round(used, 3),
            "memory_bytes": peak.seen,
            "requests_per_s": rates,
            "checkpoint_bytes": checkpoint_bytes(self.state),
        }


def _rates(counted: Counter[str], seconds: float) -> dict[str, float]:
    return {name: round(count / seconds, 2) for name, count in sorted(counted.items()) if count}


@contextmanager
def bench(broker: Broker, system: str, partitions: int) -> Iterator[Bench]:
    """A bench of which nothing is left."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-cost-"))
    made = Bench(broker, BY_NAME[system], partitions, folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


def under_load(made: Bench, rate: float, seconds: Seconds) -> dict[str, Any]:
    """Processor time and memory at a steady load. `records`: what became visible in the window, with a marker a commit."""
    controls = Controls()
    controls.partitions.value, controls.rate.value = made.partitions, rate
    tree = made.start()
    with Load(made.broker.bootstrap, made.source, VALUE_BYTES, made.folder / "load.stamps", controls) as running:
        made.visible.wait(1, tree, START_S)
        time.sleep(seconds.warm_up)
        before = made.visible.end()
        found = made.window(tree, seconds.window)
        records = made.visible.end() - before
        written = sum(running.stop())
    copied = _copied(made, written, tree)
    return {**found, "rate": rate, "records": records, "valid": copied == written, "copied": copied, "written": written}


def _copied(made: Bench, written: int, tree: ProcessTree) -> int:
    """How many records came out, once all have, or the time for it is over."""
    deadline = time.monotonic() + DRAIN_S
    while True:
        source = KafkaSource(
            made.broker.bootstrap,
            topics=[made.target],
            start=Earliest(),
            stop=Latest(),
            isolation_level="read_committed",
            columns=["offset"],
        )
        copied: int = sum(batch.num_rows for batch in source.batches())
        if copied >= written or time.monotonic() > deadline:
            return copied
        tree.check()
        time.sleep(1.0)


def idle(made: Bench, seconds: Seconds) -> dict[str, Any]:
    """Without data: a record in each partition was copied before."""
    tree = made.start()
    _write(made)
    made.visible.wait(made.partitions, tree, START_S)
    time.sleep(seconds.warm_up)
    return {**made.window(tree, seconds.window), "valid": True}


def growth(made: Bench, seconds: Seconds) -> dict[str, Any]:
    """From the start to a restore: seconds until a record of each partition is copied, and the processor time until then."""
    _write(made)
    start = _until_copied(made, made.partitions)
    assert made.tree is not None
    time.sleep(seconds.warm_up)
    found = made.window(made.tree, seconds.window)
    a_round = _round(made, made.tree)
    held = memory(made.tree)
    made.tree.kill()
    before = made.visible.end()
    _write(made)
    restore = _until_copied(made, before + made.partitions)
    return {
        **found,
        "start": start,
        "copied": a_round,
        "restore": restore,
        "memory_bytes": max(held, found["memory_bytes"]),
        "valid": True,
    }


def _until_copied(made: Bench, beyond: int) -> dict[str, float]:
    at = time.monotonic()
    tree = made.start()
    made.visible.wait(beyond, tree, START_S)
    return {"seconds": round(time.monotonic() - at, 2), "cpu_s": round(cpu_s(tree), 2)}


def _round(made: Bench, tree: ProcessTree) -> dict[str, float]:
    """A record of each partition, written at once and copied: for Spark that is a trigger."""
    before, used, at = made.visible.end(), cpu_s(tree), time.monotonic()
    _write(made)
    made.visible.wait(before + made.partitions, tree, START_S)
    return {"seconds": round(time.monotonic() - at, 2), "cpu_s": round(cpu_s(tree) - used, 2)}


def _write(made: Bench) -> None:
    """A record into each partition of the input."""
    writer = Writer(made.broker.bootstrap, made.source, RecordMaker(VALUE_BYTES))
    writer.resize(made.partitions)
    writer.write(made.partitions)
