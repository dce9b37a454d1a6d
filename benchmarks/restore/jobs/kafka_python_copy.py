"""A plain consume-transform-produce loop with kafka-python.

    python kafka_python_copy.py <json>, a Job (systems.py) with "transactions": whether offsets and records are one commit

As confluent_copy.py, with the other client.
"""

from __future__ import annotations

import time
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from marks import mark
from members import run_members

CHUNK = 5_000
POLL_MS = 50
COMMIT_EVERY_S = 0.5
LOOK_EVERY_S = 1.0


class Copier:
    """One member of the group."""

    def __init__(self, settings: dict[str, Any], member: int) -> None:
        """Contacts the cluster; with transactions, its predecessor's transaction is ended before offsets are read."""
        self._told = settings
        self._sent: list[Any] = []
        identity = f"{settings['name']}-{member}"
        self._producer = KafkaProducer(
            bootstrap_servers=settings["bootstrap"],
            transactional_id=identity if settings["transactions"] else None,
            linger_ms=5,
            batch_size=256 << 10,
        )
        if settings["transactions"]:
            self._producer.init_transactions()
            self._producer.begin_transaction()
        self._consumer = KafkaConsumer(
            bootstrap_servers=settings["bootstrap"],
            group_id=settings["name"],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            metadata_max_age_ms=1000,
            max_poll_records=CHUNK,
        )
        self._member = member
        self._positions: dict[TopicPartition, int] = {}
        self._looked_at = 0.0

    def run(self) -> None:
        """Until killed."""
        committed_at, first = time.monotonic(), True
        while True:
            self._look_for_partitions()
            for partition, records in self._consumer.poll(POLL_MS).items():
                for record in records:
                    self._sent.append(self._producer.send(self._told["target"], record.value, record.key))
                self._positions[partition] = records[-1].offset + 1
            if self._sent and time.monotonic() - committed_at >= COMMIT_EVERY_S:
                self.commit()
                committed_at = time.monotonic()
                if first:
                    mark(self._told, "first commit")
                    first = False

    def _look_for_partitions(self) -> None:
        """Those of this member that it has not: all of them at its start, added ones later."""
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        source = self._told["source"]
        found = self._consumer.partitions_for_topic(source) or ()
        mine = {TopicPartition(source, number) for number in found if number % self._told["parallelism"] == self._member}
        if mine != self._consumer.assignment():
            self._consumer.assign(sorted(mine))
            for partition, position in self._positions.items():
                self._consumer.seek(partition, position)
        self._looked_at = time.monotonic()

    def commit(self) -> None:
        """What was consumed is produced, and says so."""
        if not self._sent:
            return
        offsets = {partition: OffsetAndMetadata(offset, "", -1) for partition, offset in self._positions.items()}
        if self._told["transactions"]:
            self._producer.send_offsets_to_transaction(offsets, self._consumer.group_metadata())
            self._producer.commit_transaction()
            self._producer.begin_transaction()
        else:
            self._producer.flush()
            self._consumer.commit(offsets)
        for future in self._sent:
            future.get(0)
        self._sent.clear()


if __name__ == "__main__":
    run_members(lambda settings, member: Copier(settings, member).run())
