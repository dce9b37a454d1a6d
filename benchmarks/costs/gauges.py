"""What is read off a job: memory, processor time, the size of a checkpoint, how far its output goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.restore.process import ProcessTree
from benchmarks.sampling import repeated
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.positions import Latest
from headrace.connectors.kafka.client.properties import ClientConfig, Isolation

MEMORY_EVERY_S = 1.0


def memory(tree: ProcessTree) -> int:
    """Bytes of all its processes (PSS: what several share counts once in all)."""
    total = 0
    for process in tree.members():
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


@dataclass
class Peak:
    """The most memory that was seen, in bytes."""

    seen: int = 0


@contextmanager
def peak_memory(tree: ProcessTree) -> Iterator[Peak]:
    """Looks once a second, meanwhile."""
    peak = Peak()

    def look() -> None:
        peak.seen = max(peak.seen, memory(tree))

    with repeated(look, MEMORY_EVERY_S):
        yield peak


def cpu_s(tree: ProcessTree) -> float:
    """Of all its processes so far."""
    return sum(tree.cpu_seconds().values())


def checkpoint_bytes(state: Path) -> int | None:
    """Of the newest checkpoint: a run's file, a folder of Flink, the offsets of Spark's last batch. None without any."""
    runs = list(state.glob("checkpoints/checkpoint-*.json"))
    flink = [file.parent for file in state.glob("checkpoints/*/chk-*/_metadata")]
    spark = [file for file in state.glob("checkpoint/offsets/*") if file.name.isdigit()]
    newest = max((*runs, *flink, *spark), key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return None
    files = newest.iterdir() if newest.is_dir() else [newest]
    return sum(file.stat().st_size for file in files)


class Visible:
    """How far a topic goes for a reader under read_committed: offsets, and so markers of transactions, too."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        """Asks nothing yet."""
        self._cluster = KafkaCluster(ClientConfig.from_properties({"bootstrap.servers": bootstrap}))
        self._latest = {(topic, number): Latest() for number in range(partitions)}

    def end(self) -> int:
        """Now, over all partitions."""
        return sum(found.offset or 0 for found in self._cluster.list_offsets(self._latest, Isolation.READ_COMMITTED).values())

    def wait(self, beyond: int, tree: ProcessTree, timeout_s: float) -> None:
        """Until the end is there, at least. Raises RuntimeError when the job ends by itself, or in time it is not."""
        deadline = time.monotonic() + timeout_s
        while self.end() < beyond:
            tree.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the output did not grow to {beyond} within {timeout_s:g} s:\n{tree.log_tail()}")
            time.sleep(0.1)

    def close(self) -> None:
        """Give the connections up."""
        self._cluster.close()
