"""Who counts, while it happens: each numbered record that becomes visible, once, twice or not at all.

A census is fed the values that librdkafka reads under read_committed (or the rows of a table), and knows at any moment which
numbers of which input partition it has seen how often. Nothing of headrace is used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks.chaos.world import CLIENT_ID
from benchmarks.restore.oracle import Log, Seen, judge, read_log
from benchmarks.restore.records import SEQUENCE_BITS, Ints, identify

VALUE_BYTES = 100
CHUNK = 10_000
_SEQUENCES = (1 << SEQUENCE_BITS) - 1


@dataclass
class Census:
    """How often each record was seen. `moments`: when new ones were (monotonic seconds), and how many had been seen by then."""

    partitions: int
    seen: list[Ints] = field(init=False)
    duplicates: int = 0
    damaged: int = 0
    records: int = 0
    moments: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is seen yet."""
        self.seen = [np.zeros(1024, np.int64) for _ in range(self.partitions)]

    def add(self, values: Sequence[bytes], at: float) -> None:
        """Values that have become visible at this moment."""
        if not values:
            return
        found = identify(values, VALUE_BYTES)
        ids = found.ids[found.intact]
        self.damaged += len(values) - len(ids)
        before = self.records
        for origin in np.unique(ids >> SEQUENCE_BITS).tolist():
            self._count(origin, ids[(ids >> SEQUENCE_BITS) == origin] & _SEQUENCES)
        if self.records > before:
            self.moments.append((at, self.records))

    def _count(self, origin: int, sequences: Ints) -> None:
        if origin >= self.partitions:
            self.damaged += len(sequences)
            return
        counts = self.seen[origin]
        if (most := int(sequences.max())) >= len(counts):
            counts = self.seen[origin] = np.concatenate([counts, np.zeros(most + 1, np.int64)])
        known = int((counts > 0).sum())
        np.add.at(counts, sequences, 1)
        new = int((counts > 0).sum()) - known
        self.records += new
        self.duplicates += len(sequences) - new

    def missing(self, produced: Sequence[int]) -> int:
        """How many of these have not been seen: so many of each input partition, from its first."""
        return sum(count - int((seen[:count] > 0).sum()) for count, seen in zip(produced, self.seen, strict=True))

    def longest_gap(self, begin: float, end: float) -> float:
        """Seconds without a new record, between two moments and up to the first new one after `end`."""
        after = next((at for at, _ in self.moments if at > end), None)
        inside = [at for at, _ in self.moments if begin < at <= end]
        return float(np.diff([begin, *inside, end if after is None else after]).max())

    def first_after(self, moment: float) -> float | None:
        """When the first new record after this moment was seen."""
        return next((at for at, _ in self.moments if at > moment), None)


class Output(Protocol):
    """Where a job writes to, as it becomes visible."""

    def look(self) -> list[bytes]:
        """The values that became visible since the last look; does not wait."""

    def verdict(self, produced: Sequence[int], census: Census) -> Mapping[str, int]:
        """All of it read again, from the start, when nothing comes any more."""

    def close(self) -> None:
        """Stop watching."""


class TopicOutput:
    """A topic under read_committed, by librdkafka."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        """From its first record."""
        self._bootstrap, self._topic = bootstrap, topic
        settings = {
            "group.id": "chaos-census",
            "client.id": CLIENT_ID,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        quick = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "fetch.queue.backoff.ms": 1}
        lasting = {"auto.offset.reset": "error", "topic.metadata.refresh.interval.ms": 1000}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 0, **settings, **quick, **lasting})
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])

    def look(self) -> list[bytes]:
        """Errors of its connections are librdkafka's to ride out."""
        return [message.value() or b"" for message in self._consumer.consume(CHUNK, 0) if message.error() is None]

    def verdict(self, produced: Sequence[int], census: Census) -> Mapping[str, int]:
        """By the oracle of the restores: what is committed, what is written; and what the census was shown and is not there."""
        committed, written = (
            partial(read_log, self._bootstrap, self._topic, isolation, VALUE_BYTES)
            for isolation in ("read_committed", "read_uncommitted")
        )
        nothing = np.empty(0, np.int64)
        logs = committed()
        found = judge(produced, logs, written, Seen(np.empty(0), nothing, nothing, nothing, nothing)).counts()
        kept = ("records_in", "records_out", "duplicates", "lost", "torn", "out_of_order", "damaged", "foreign")
        return {**{name: found[name] for name in kept}, "aborted_seen": phantoms(census, logs)}

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


def phantoms(census: Census, committed: Mapping[int, Log]) -> int:
    """Records that the census was shown, and that the log does not have as committed."""
    ids = np.concatenate([log.ids for log in committed.values()]) if committed else np.empty(0, np.int64)
    found = 0
    for origin, seen in enumerate(census.seen):
        mine = ids[(ids >= 0) & (ids >> SEQUENCE_BITS == origin)] & _SEQUENCES
        there = np.bincount(mine, minlength=len(seen))[: len(seen)]
        found += int(np.maximum(seen - there, 0).sum())
    return found


def now() -> float:
    """Monotonic seconds."""
    return time.monotonic()


Line = dict[str, Any]
