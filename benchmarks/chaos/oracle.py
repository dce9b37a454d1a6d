"""Who counts, while it happens: each numbered record that becomes visible, once, twice or not at all.

An output check is fed the values that librdkafka reads under read_committed (or the rows of a table), and knows at any moment
which numbers of which input partition it has seen how often. Nothing of headrace is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks.chaos.testbed import CLIENT_ID
from benchmarks.restore.oracle import Log, Seen, judge, read_log
from benchmarks.restore.records import SEQUENCE_BITS, Bools, Ints, identify, record_ids

VALUE_BYTES = 100
CHUNK = 10_000
WRONG = ("duplicates", "lost", "torn", "aborted_seen", "damaged", "foreign", "prepared")
"""What a clean result has none of. Only tables have `prepared`."""
_SEQUENCES = (1 << SEQUENCE_BITS) - 1


@dataclass
class OutputCheck:
    """How often each record was seen. `moments`: when new ones were (monotonic seconds), and how many had been seen by then.

    `gone`: numbers of each input partition's records that are in its log no more; `excused`: those that need not be seen.
    """

    partitions: int
    seen: list[Ints] = field(init=False)
    gone: list[Ints] = field(init=False)
    excused: list[Ints] = field(init=False)
    duplicates: int = 0
    damaged: int = 0
    records: int = 0
    moments: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is seen yet."""
        self.seen = [np.zeros(1024, np.int64) for _ in range(self.partitions)]
        self.gone = [np.empty(0, np.int64) for _ in range(self.partitions)]
        self.excused = [np.empty(0, np.int64) for _ in range(self.partitions)]

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
        """How many of these have not been seen, and are not excused: this many of each input partition, from its first."""
        return sum(self._missing(partition, count) for partition, count in enumerate(produced))

    def _missing(self, partition: int, count: int) -> int:
        excused = self.excused[partition]
        unseen = ~self.is_seen(partition, excused[excused < count])
        return count - int((self.seen[partition][:count] > 0).sum()) - int(unseen.sum())

    def is_seen(self, partition: int, numbers: Ints) -> Bools:
        """Which of these records of an input partition have been seen."""
        seen = self.seen[partition]
        found: Bools = np.isin(numbers, np.flatnonzero(seen))
        return found

    def last_seen(self, partition: int, numbers: Ints) -> int:
        """Place of the last one among these that has been seen; -1 when none has."""
        places = np.flatnonzero(self.is_seen(partition, numbers))
        return int(places[-1]) if len(places) else -1

    def excused_ids(self) -> Ints:
        """Of all input partitions."""
        return np.concatenate([record_ids(np.full(len(each), number), each) for number, each in enumerate(self.excused)])

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

    def outcome(self, produced: Sequence[int], output_check: OutputCheck) -> Mapping[str, int]:
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

    def outcome(self, produced: Sequence[int], output_check: OutputCheck) -> Mapping[str, int]:
        """By the oracle of the restores: what is committed, what is written; and what the output check was shown and is not
        there.
        """
        committed, written = (
            partial(read_log, self._bootstrap, self._topic, isolation, VALUE_BYTES)
            for isolation in ("read_committed", "read_uncommitted")
        )
        return judged(produced, output_check, committed(), written)

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


def judged(
    produced: Sequence[int], output_check: OutputCheck, committed: Mapping[int, Log], written: Callable[[], Mapping[int, Log]]
) -> Mapping[str, int]:
    """An output that was read as a whole, by the oracle of the restores, and compared with what the output check was shown."""
    nothing = np.empty(0, np.int64)
    unprobed = Seen(np.empty(0), nothing, nothing, nothing, nothing)
    found = judge(produced, committed, written, unprobed, output_check.excused_ids()).counts()
    kept = ("records_in", "records_out", "duplicates", "lost", "torn", "out_of_order", "damaged", "foreign")
    gone = sum(map(len, output_check.gone))
    return {**{name: found[name] for name in kept}, "aborted_seen": phantoms(output_check, committed), "gone": gone}


def is_clean(outcome: Mapping[str, int]) -> bool:
    """Whether a whole output has each record once, and nothing else."""
    return not any(outcome.get(name) for name in WRONG)


def phantoms(output_check: OutputCheck, committed: Mapping[int, Log]) -> int:
    """Records that the output check was shown, and that the log does not have as committed."""
    ids = np.concatenate([log.ids for log in committed.values()]) if committed else np.empty(0, np.int64)
    found = 0
    for origin, seen in enumerate(output_check.seen):
        mine = ids[(ids >= 0) & (ids >> SEQUENCE_BITS == origin)] & _SEQUENCES
        there = np.bincount(mine, minlength=len(seen))[: len(seen)]
        found += int(np.maximum(seen - there, 0).sum())
    return found


def now() -> float:
    """Monotonic seconds."""
    return time.monotonic()


Line = dict[str, Any]
