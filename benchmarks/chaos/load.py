"""The producer of numbered records: librdkafka, idempotent, each record acknowledged by all replicas that are in sync.

It runs in the harness's process, whose connections the network never disturbs: what is still for want of input is shown by
its own longest gap between acknowledgements.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from confluent_kafka import KafkaError, Message, Producer

from benchmarks.chaos.testbed import CLIENT_ID
from benchmarks.restore.records import HEAD_BYTES, Ints, RecordMaker

TICK_S = 0.25
MOST_WAITING = 20_000
DELIVERY_MS = 3_600_000
FLUSH_S = 120.0


class Load:
    """Writes to all partitions of a topic one after another, at a steady rate, from its own thread."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: float, value_bytes: int) -> None:
        """Starts at once. `rate`: records per second, of all partitions together."""
        self._topic, self._rate = topic, rate
        self._maker = RecordMaker(value_bytes)
        self._sent = [0] * partitions
        self._offsets: list[list[int]] = [[] for _ in range(partitions)]
        self._moments: list[float] = [time.monotonic()]
        self._failed: list[str] = []
        self._stopped = threading.Event()
        settings = {"enable.idempotence": True, "message.timeout.ms": DELIVERY_MS, "linger.ms": 5, "log_level": 0}
        quick = {
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 50,
            "request.timeout.ms": 5000,
        }
        known = {"topic.metadata.refresh.interval.ms": 1000}
        self._settings = {"bootstrap.servers": bootstrap, "client.id": CLIENT_ID, **settings, **quick, **known}
        self._producer = Producer(self._settings)
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def produced(self) -> list[int]:
        """How many of each partition are acknowledged: those numbered from 0. Raises RuntimeError when one was refused."""
        if self._failed:
            raise RuntimeError(f"the load could not write: {self._failed[0]}")
        return [len(offsets) for offsets in self._offsets]

    def written(self) -> list[int]:
        """How many of each partition are acknowledged or on their way."""
        return list(self._sent)

    def offsets(self) -> list[Ints]:
        """Where each acknowledged record is, or was before it was lost: by partition, in the order of their numbers."""
        return [np.array(offsets, np.int64) for offsets in self._offsets]

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Nothing is on its way in between; then a new producer continues, as brokers may know the old one's past no more.

        Raises RuntimeError when something stays on its way.
        """
        with self._writing:
            self._flush()
            try:
                yield
            finally:
                self._producer = Producer(self._settings)

    def longest_gap(self, begin: float, end: float) -> float:
        """Seconds between two acknowledgements."""
        inside = [at for at in self._moments if begin < at <= end]
        return float(np.diff([begin, *inside, end]).max())

    def stop(self) -> Sequence[int]:
        """No more; what each partition has got, all acknowledged."""
        self._stopped.set()
        self._thread.join()
        self._flush()
        return self.produced()

    def _flush(self) -> None:
        if left := self._producer.flush(FLUSH_S):
            raise RuntimeError(f"{left} records of the load were not acknowledged within {FLUSH_S:g} s")

    def _run(self) -> None:
        last, owed = time.monotonic(), 0.0
        while not self._stopped.wait(TICK_S):
            moment = time.monotonic()
            owed, last = owed + self._rate * (moment - last), moment
            each = int(owed / len(self._sent))
            owed -= each * len(self._sent)  # what there is no space for is not owed
            with self._writing:
                if each and len(self._producer) < MOST_WAITING:
                    self._write(each)
                self._producer.poll(0)

    def _write(self, each: int) -> None:
        for partition, first in enumerate(self._sent):
            for row in self._maker.values(partition, first, each):
                value = row.tobytes()
                self._producer.produce(self._topic, value, value[:HEAD_BYTES], partition=partition, on_delivery=self._delivered)
            self._sent[partition] += each

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(str(error))
            return
        self._offsets[message.partition() or 0].append(message.offset() or 0)
        self._moments.append(time.monotonic())
