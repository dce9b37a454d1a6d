"""A plain consume-transform-produce loop with confluent-kafka, at its best settings.

    python confluent_copy.py <json>, a Job (systems.py) with "transactions": whether offsets and records are committed together

Without transactions it commits offsets once the records are acknowledged, which is at least once. Partitions are assigned by
hand: a member of a group would wait after a SIGKILL until its predecessor's session ends, or, as a static one, be given its
predecessor's partitions and never those that were added meanwhile.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from marks import mark
from members import run_members

CHUNK = 10_000
POLL_S = 0.05
COMMIT_EVERY_MS = 500
LOOK_EVERY_S = 1.0
TIMEOUT_S = 60.0
PASSING = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
"""What goes away by itself."""


class Copier:
    """One member of the group."""

    def __init__(self, settings: dict[str, Any], member: int) -> None:
        """Contacts the cluster; with transactions, its predecessor's transaction is ended before offsets are read."""
        self._told = settings
        self._failed: KafkaError | None = None
        identity = f"{settings['name']}-{member}"
        producing: dict[str, Any] = {"bootstrap.servers": settings["bootstrap"], "enable.idempotence": True, "linger.ms": 5}
        producing |= {"partitioner": "murmur2_random", "queue.buffering.max.messages": 1_000_000}
        if settings["transactions"]:
            producing["transactional.id"] = identity
        self._producer = Producer(producing)
        if settings["transactions"]:
            self._producer.init_transactions(TIMEOUT_S)
            self._producer.begin_transaction()
        self._consumer = Consumer(
            {
                "bootstrap.servers": settings["bootstrap"],
                "group.id": settings["name"],
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.queue.backoff.ms": 1,
                "queued.min.messages": 1_000_000,
            }
        )
        self._member = member
        self._every_s = settings.get("interval_ms", COMMIT_EVERY_MS) / 1000
        self._assigned: set[int] = set()
        self._looked_at = 0.0

    def run(self) -> None:
        """Until killed."""
        committed_at, copied, first = time.monotonic(), 0, True
        while True:
            self._look_for_partitions()
            for message in self._consumer.consume(CHUNK, min(POLL_S, self._every_s / 4)):
                if (error := message.error()) is not None:
                    if error.code() in PASSING:
                        continue
                    raise RuntimeError(str(error))
                self._send(message.value(), message.key())
                copied += 1
            self._producer.poll(0)
            if copied and time.monotonic() - committed_at >= self._every_s:
                self.commit()
                committed_at, copied = time.monotonic(), 0
                if first:
                    mark(self._told, "first commit")
                    first = False

    def _look_for_partitions(self) -> None:
        """Those of this member that it has not: all of them at its start, added ones later."""
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        source = self._told["source"]
        found = self._consumer.list_topics(source, TIMEOUT_S).topics[source].partitions
        mine = {number for number in found if number % self._told["parallelism"] == self._member}
        if mine - self._assigned:
            self._consumer.incremental_assign(
                self._positions([TopicPartition(source, number) for number in mine - self._assigned])
            )
        self._assigned |= mine
        self._looked_at = time.monotonic()

    def _positions(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where the group is. Asked for here, as an assignment that asks while a new broker makes its topic of offsets
        can wait for ever (librdkafka 2.16)."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                committed = self._consumer.committed(partitions, TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)
            else:
                return [
                    TopicPartition(p.topic, p.partition, p.offset if p.offset >= 0 else OFFSET_BEGINNING) for p in committed
                ]

    def commit(self) -> None:
        """What was consumed is produced, and says so."""
        if self._told["transactions"]:
            positions = self._consumer.position(self._consumer.assignment())
            known = [position for position in positions if position.offset >= 0]
            self._producer.send_offsets_to_transaction(known, self._consumer.consumer_group_metadata())
            self._producer.commit_transaction(TIMEOUT_S)
            self._producer.begin_transaction()
            return
        if self._producer.flush(TIMEOUT_S) or self._failed is not None:
            raise RuntimeError(f"records were not acknowledged: {self._failed}")
        positions = [position for position in self._consumer.position(self._consumer.assignment()) if position.offset >= 0]
        if positions:
            self._consumer.commit(offsets=positions, asynchronous=False)

    def _send(self, value: bytes, key: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._told["target"], value, key, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.01)
            else:
                return

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        self._failed = self._failed or error


if __name__ == "__main__":
    run_members(lambda settings, member: Copier(settings, member).run())
