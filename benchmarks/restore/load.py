"""The load: a process that writes records at a fixed rate, or as fast as the output keeps up, noting when.

It uses headrace's encoder, which costs a fraction of what a client costs that makes an object of each record: on a small
machine the load must not take the processor from what is measured. The oracle checks what it writes, record by record.
"""

from __future__ import annotations

import math
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.restore.records import RecordMaker, batch
from benchmarks.restore.timeline import Curve
from benchmarks.restore.watched import LoadProcess, spawning, whole_rows
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.format.encode import RecordEncoder
from headrace.connectors.kafka.write.produce import OutBatch, idempotent_sender
from headrace.connectors.kafka.write.transactions import Transactions

TICK_S = 0.01
MOST_A_TICK = 20_000
NO_WINDOW = math.inf
OUTLASTING_MS = "3600000"
"""The load outlasts the outage that it is there to measure."""

_STAMP = struct.Struct("<dQ")


def _shared(kind: str, value: float) -> Any:  # noqa: ANN401 - a ctypes value
    return spawning().Value(kind, value)


@dataclass
class Controls:
    """Shared memory. The harness sets the first three, the load and the probe the others.

    `rate`: records per second. `window`: at most this many records that are not visible yet (closed loop, to measure capacity).
    `partitions`: of the input topic. `behind`: the most records that the load was ever late with.
    """

    rate: Any = field(default_factory=lambda: _shared("d", 0.0))
    window: Any = field(default_factory=lambda: _shared("d", NO_WINDOW))
    partitions: Any = field(default_factory=lambda: _shared("q", 0))
    stop: Any = field(default_factory=lambda: spawning().Event())
    produced: Any = field(default_factory=lambda: _shared("q", 0))
    visible: Any = field(default_factory=lambda: _shared("q", 0))
    behind: Any = field(default_factory=lambda: _shared("q", 0))

    @property
    def lag(self) -> int:
        """Produced and not visible yet; negative with duplicates."""
        return int(self.produced.value - self.visible.value)


class Writer:
    """Writes to the topic's partitions one after another, as an idempotent producer; a new one when partitions are added."""

    def __init__(self, bootstrap: str, topic: str, maker: RecordMaker) -> None:
        self._bootstrap, self._topic, self._maker = bootstrap, topic, maker
        self.counts: list[int] = []

    def resize(self, partitions: int) -> None:
        """Start over with this many partitions; sequences continue."""
        self.counts += [0] * (partitions - len(self.counts))
        properties = {"bootstrap.servers": self._bootstrap, "delivery.timeout.ms": OUTLASTING_MS}
        cluster = KafkaCluster(ClientConfig.from_properties(properties))
        producer = Transactions(cluster).init_idempotent()
        self._sender = idempotent_sender(cluster)
        self._encoder = RecordEncoder(
            partitions, producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=False
        )

    def write(self, records: int) -> int:
        """About this many records, the same number to each partition; returns how many, once all are acknowledged."""
        each = max(1, records // len(self.counts))
        now_ms = time.time_ns() // 1_000_000
        for partition, first in enumerate(self.counts):
            rows = batch(partition, self._maker.values(partition, first, each))
            encoded = [*self._encoder.append(rows, now_ms), *self._encoder.flush()]
            self._sender.send(self._topic, [OutBatch(item.partition, item.data, item.records) for item in encoded])
        self._sender.flush()
        self.counts = [count + each for count in self.counts]
        return each * len(self.counts)


def _run(bootstrap: str, topic: str, value_bytes: int, file: str, controls: Controls, counts: Any) -> None:  # noqa: ANN401
    writer = Writer(bootstrap, topic, RecordMaker(value_bytes))
    last, owed = time.monotonic(), 0.0
    with Path(file).open("wb", buffering=0) as stamps:
        while not controls.stop.is_set():
            if controls.partitions.value != len(writer.counts):
                writer.resize(controls.partitions.value)
            now = time.monotonic()
            owed, last = owed + controls.rate.value * (now - last), now
            owed = min(owed, max(0.0, controls.window.value - controls.lag))  # what there is no space for is not owed
            records = int(min(owed, MOST_A_TICK))
            if records >= len(writer.counts):
                sent = writer.write(records)
                owed -= sent
                controls.behind.value = max(controls.behind.value, int(owed))
                controls.produced.value += sent
                stamps.write(_STAMP.pack(time.monotonic(), controls.produced.value))
            time.sleep(max(0.0, TICK_S - (time.monotonic() - now)))
    counts.send(writer.counts)


class Load(LoadProcess):
    """The process, from the harness's side."""

    def __init__(self, bootstrap: str, topic: str, value_bytes: int, file: Path, controls: Controls) -> None:
        """Start it."""
        self._file = file
        super().__init__(_run, bootstrap, topic, value_bytes, str(file), controls, stop=controls.stop)

    def curve(self) -> Curve:
        """When how many were acknowledged, until now."""
        data = whole_rows(self._file, [("at", "<f8"), ("total", "<u8")])
        return Curve(data["at"].copy(), data["total"].astype(np.int64))
