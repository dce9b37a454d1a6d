"""The producer of numbered records: librdkafka, idempotent, each record acknowledged by all replicas that are in sync.

It runs in the harness's process, whose connections the network never disturbs: what stands still for want of input is shown by
its own longest gap between acknowledgements.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
from confluent_kafka import KafkaError, Message, Producer

from benchmarks.chaos.world import CLIENT_ID
from benchmarks.restore.records import HEAD_BYTES, RecordMaker

TICK_S = 0.25
MOST_WAITING = 20_000
DELIVERY_MS = 3_600_000
FLUSH_S = 120.0


class Load:
    """Writes to all partitions of a topic in turn, at a steady rate, from a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: float, value_bytes: int) -> None:
        """Starts at once. `rate`: records per second, of all partitions together."""
        self._topic, self._rate = topic, rate
        self._maker = RecordMaker(value_bytes)
        self._sent = [0] * partitions
        self._acknowledged = [0] * partitions
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
        self._producer = Producer({"bootstrap.servers": bootstrap, "client.id": CLIENT_ID, **settings, **quick, **known})
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def produced(self) -> list[int]:
        """How many of each partition are acknowledged: those numbered from 0. Raises RuntimeError when one was refused."""
        if self._failed:
            raise RuntimeError(f"the load could not write: {self._failed[0]}")
        return list(self._acknowledged)

    def longest_gap(self, begin: float, end: float) -> float:
        """Seconds between two acknowledgements."""
        inside = [at for at in self._moments if begin < at <= end]
        return float(np.diff([begin, *inside, end]).max())

    def stop(self) -> Sequence[int]:
        """No more; what each partition has got, all acknowledged."""
        self._stopped.set()
        self._thread.join()
        if left := self._producer.flush(FLUSH_S):
            raise RuntimeError(f"{left} records of the load were not acknowledged within {FLUSH_S:g} s")
        return self.produced()

    def _run(self) -> None:
        last, owed = time.monotonic(), 0.0
        while not self._stopped.wait(TICK_S):
            moment = time.monotonic()
            owed, last = owed + self._rate * (moment - last), moment
            each = int(owed / len(self._sent))
            if each and len(self._producer) < MOST_WAITING:
                self._write(each)
            owed -= each * len(self._sent)  # what there is no room for is not owed
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
        self._acknowledged[message.partition() or 0] += 1
        self._moments.append(time.monotonic())
