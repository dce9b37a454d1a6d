"""Produces flights at a steady rate, in its own thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

TICK_S = 0.05
FLUSH_S = 30.0


class FlightProducer:
    """Leave the context to stop it, whether it is done or not. Its public members may be used by any thread."""

    def __init__(self, bootstrap: str, topic: str, records: Iterable[tuple[str, str]], rate: float) -> None:
        """Produce `records` (key and value) at `rate` per second, once the context is entered."""
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "partitioner": "murmur2_random",  # the Java client's: the key decides
                "topic.metadata.refresh.interval.ms": 500,  # to notice new partitions soon
                "delivery.timeout.ms": 60_000,
                "log_level": 2,  # what matters comes back through `_delivered`
            }
        )
        self._topic = topic
        self._records = iter(records)
        self._chunk = max(1, round(rate * TICK_S))
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1, "producer")
        self.acknowledged: Counter[int] = Counter()
        """Records the brokers have acknowledged, by partition."""
        self.hold = False
        """Set to make it wait, and unset to let it continue."""

    def __enter__(self) -> Self:
        """Start."""
        self._done = self._pool.submit(self._run)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop."""
        self._stopped.set()
        self._pool.shutdown()

    def is_done(self) -> bool:
        """Whether every record has been acknowledged. Raises what ended the thread, if anything did."""
        return self._done.done() and self._done.result()

    def wait(self) -> None:
        """Wait until every record has been acknowledged. Raises what ended the thread, if anything did."""
        self._done.result()

    def _run(self) -> bool:
        while chunk := list(islice(self._records, self._chunk)):
            for key, value in chunk:
                self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
            self._producer.poll(0)
            while not self._stopped.wait(TICK_S) and self.hold:
                self._producer.poll(0)
            if self._stopped.is_set():
                self._producer.purge()
                return False
        if left := self._producer.flush(FLUSH_S):
            raise TimeoutError(f"{left} flights were not acknowledged within {FLUSH_S:.0f} s")
        return True

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and not self._stopped.is_set():
            raise KafkaException(error)
        partition = message.partition()
        if error is None and partition is not None:
            self.acknowledged[partition] += 1
