"""The load: a process that writes records by a schedule, and never skips one that it is late for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.delay.records import RecordMaker
from benchmarks.restore.records import Ints
from benchmarks.restore.watched import LoadProcess, spawning, whole_rows
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.format.encode import RecordEncoder
from headrace.connectors.kafka.write.produce import OutBatch, idempotent_sender
from headrace.connectors.kafka.write.transactions import Transactions

TICK_S = 0.004
MOST_A_TICK = 5_000
NS = 1_000_000_000

STAMPS = np.dtype([("due_ns", "<i8"), ("acknowledged_ns", "<i8"), ("records", "<i8")])


class Schedule:
    """When which record is due: one after the other at a rate, from a moment on. Times are monotonic nanoseconds."""

    def __init__(self, rate: float, now_ns: int) -> None:
        self.rate, self._start_ns, self._sent = rate, now_ns, 0

    def due(self, now_ns: int, most: int) -> Ints:
        """The due times of those that are due and were not given yet, at most `most`; all of them, however late."""
        count = min(int((now_ns - self._start_ns) / NS * self.rate) - self._sent, most)
        times = self._start_ns + np.arange(self._sent, self._sent + count) * (NS / self.rate)
        self._sent += count
        return times.astype(np.int64)


class Writer:
    """An idempotent producer that writes each tick's records to one partition, as Kafka's sticky partitioner does."""

    def __init__(self, bootstrap: str, topic: str, value_bytes: int, partitions: int) -> None:
        cluster = KafkaCluster(ClientConfig.from_properties({"bootstrap.servers": bootstrap}))
        producer = Transactions(cluster).init_idempotent()
        self._topic, self._maker, self._next = topic, RecordMaker(value_bytes), 0
        self._sender = idempotent_sender(cluster)
        self._encoder = RecordEncoder(
            partitions, producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=False
        )
        self.counts = [0] * partitions

    def write(self, due_ns: Ints) -> None:
        """Returns once all are acknowledged."""
        partition, self._next = self._next, (self._next + 1) % len(self.counts)
        rows = self._maker.batch(partition, self.counts[partition], due_ns)
        encoded = [*self._encoder.append(rows, time.time_ns() // 1_000_000), *self._encoder.flush()]
        self._sender.send(self._topic, [OutBatch(item.partition, item.data, item.records) for item in encoded])
        self._sender.flush()
        self.counts[partition] += len(due_ns)


def _run(bootstrap: str, topic: str, value_bytes: int, partitions: int, file: str, rate: Any, stop: Any, counts: Any) -> None:  # noqa: ANN401
    writer = Writer(bootstrap, topic, value_bytes, partitions)
    schedule = Schedule(rate.value, time.monotonic_ns())
    with Path(file).open("wb", buffering=0) as stamps:
        while not stop.is_set():
            started_ns = time.monotonic_ns()
            if rate.value != schedule.rate:
                schedule = Schedule(rate.value, started_ns)
            due = schedule.due(started_ns, MOST_A_TICK)
            if len(due):
                writer.write(due)
                stamps.write(np.array([(due[0], time.monotonic_ns(), len(due))], STAMPS).tobytes())
            if len(due) < MOST_A_TICK:
                time.sleep(max(0.0, TICK_S - (time.monotonic_ns() - started_ns) / NS))
    counts.send(writer.counts)


class Load(LoadProcess):
    """The process, from the harness's side. `rate`: records per second, which may be set."""

    def __init__(self, bootstrap: str, topic: str, value_bytes: int, partitions: int, file: Path, rate: float) -> None:
        """Start it."""
        self._file, self.rate, over = file, spawning().Value("d", rate), spawning().Event()
        super().__init__(_run, bootstrap, topic, value_bytes, partitions, str(file), self.rate, over, stop=over)

    def stamps(self) -> np.ndarray:
        """By tick: when its first record was due, when all were acknowledged, how many they were."""
        return whole_rows(self._file, STAMPS)
