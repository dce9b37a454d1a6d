"""Dead letters of a topic: read, filtered, counted, and turned back into the records that they were."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.cli.output import instant, one_line
from headrace.connectors.base.dead_letters import DeadLetter, letter_of, replayed_headers
from headrace.connectors.base.outputs import WrongOutputError
from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC
from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    from headrace.connectors.kafka.write.sink import KafkaSink

log = logging.getLogger(__name__)

COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp")  # what is read of a topic of dead letters

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_ROWS = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)]
)


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A record of a topic of dead letters. `time_ms`: when it was written there, if that is known."""

    partition: int
    offset: int
    time_ms: int | None
    key: bytes | None
    value: bytes | None
    origin: DeadLetter


def dead_letters_in(batch: pa.RecordBatch) -> Iterator[DeadLetterRecord]:
    """The dead letters of a batch with COLUMNS; other records are skipped."""
    times = batch.column("timestamp").cast("int64").to_pylist()
    others = batch.drop_columns(["timestamp"]).to_pylist()
    for row, micros in zip(others, times, strict=True):
        origin = letter_of((each["key"], each["value"]) for each in row["headers"] or ())
        if origin is not None:
            time_ms = None if micros is None else micros // 1000
            yield DeadLetterRecord(row["partition"], row["offset"], time_ms, row["key"], row["value"], origin)


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters. `since_ms` is inclusive, `until_ms` exclusive; one without a time is in no period."""

    topics: frozenset[str] = frozenset()
    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, record: DeadLetterRecord) -> bool:
        if self.topics and record.origin.topic not in self.topics:
            return False
        if self.reason is not None and self.reason.lower() not in (record.origin.reason or "").lower():
            return False
        if record.time_ms is None:
            return self.since_ms is None and self.until_ms is None
        is_late_enough = self.since_ms is None or record.time_ms >= self.since_ms
        return is_late_enough and (self.until_ms is None or record.time_ms < self.until_ms)


def moment_ms(option: str, text: str | None) -> int | None:
    """Milliseconds since 1970 of a date or time in ISO 8601; without a zone it is UTC. Raises UsageError."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} must be a time such as 2026-11-23T10:00:00Z, not {text!r}") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


@dataclass(slots=True)
class Count:
    """Dead letters of one topic and reason."""

    records: int = 0
    first_ms: int | None = None
    last_ms: int | None = None

    def add(self, time_ms: int | None) -> None:
        self.records += 1
        if time_ms is not None:
            self.first_ms = min(time_ms, time_ms if self.first_ms is None else self.first_ms)
            self.last_ms = max(time_ms, time_ms if self.last_ms is None else self.last_ms)


@dataclass(slots=True)
class DeadLetterCounts:
    """All that was counted. `others`: records that are not dead letters."""

    by_reason: dict[tuple[str, str], Count] = field(default_factory=dict)
    others: int = 0

    def add(self, batch: pa.RecordBatch, wanted: DeadLetterFilter) -> None:
        found = list(dead_letters_in(batch))
        self.others += batch.num_rows - len(found)
        for record in filter(wanted.takes, found):
            key = (record.origin.topic, record.origin.reason or record.origin.exception or "")
            self.by_reason.setdefault(key, Count()).add(record.time_ms)

    def rows(self) -> Sequence[Sequence[object]]:
        """Topic, reason, count, first and last time, the most frequent first within each topic."""
        found = sorted(self.by_reason.items(), key=lambda each: (each[0][0], -each[1].records, each[0][1]))
        return [(*map(one_line, key), each.records, instant(each.first_ms), instant(each.last_ms)) for key, each in found]


@dataclass(frozen=True)
class Replay:
    """A pipeline's function that turns dead letters into rows for a Kafka sink: the records that they were.

    `topic`: where the dead letters are. `to`: a topic for all; None: each goes to the topic and partition that it came from.
    `max_replays`: a record that was replayed this often is left out. Raises WrongOutputError for a dead letter whose topic
    does not exist, or must not be written to; UsageError for a `to` that no topic can have as its name.
    """

    sink: KafkaSink
    topic: str
    wanted: DeadLetterFilter
    max_replays: int
    to: str | None = None

    def __post_init__(self) -> None:
        from headrace.connectors.kafka.write.sink import check_topic

        if self.to is not None:
            check_topic("--to", self.to)
        if self.to in self._closed_topics:
            raise UsageError(f"--to {self.to} {self._closed_topics[self.to]}")

    @property
    def selection(self) -> str:
        """What is replayed, as text: two replays with the same text replay the same dead letters to the same places."""
        wanted = {name: value for name, value in asdict(self.wanted).items() if value}
        topics = {"topics": sorted(self.wanted.topics)} if self.wanted.topics else {}
        return json.dumps({"topic": self.topic, "to": self.to, "max_replays": self.max_replays, **wanted, **topics})

    @property
    def _closed_topics(self) -> dict[str, str]:
        lists = dict.fromkeys((DEFAULT_COMMIT_TOPIC, self.sink.commit_topic), "holds the lists of transactions")
        return {**lists, self.topic: "is the topic of the dead letters themselves"}

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        wanted = list(filter(self.wanted.takes, dead_letters_in(batch)))
        due = [record for record in wanted if record.origin.replays < self.max_replays]
        if len(due) < len(wanted):
            left = len(wanted) - len(due)
            log.warning("%d records of %s were replayed %d times before and are left there", left, self.topic, self.max_replays)
        if due:
            partitions = self._partitions(due)
            yield pa.RecordBatch.from_pylist([self._row(record, partitions) for record in due], schema=_ROWS)

    def _partitions(self, due: Sequence[DeadLetterRecord]) -> dict[str, int]:
        from headrace.connectors.kafka.write.sink import is_topic_name
        from headrace.connectors.kafka.write.topics import find_topic

        partitions = {}
        for record in due:
            name = record.origin.topic if self.to is None else self.to
            if name in partitions:
                continue
            place = f"offset {record.offset} of {self.topic}-{record.partition}"
            what = f"the dead letter at {place} is for the topic {name!r}, which"
            advice = "leave it out with --from-topic, or choose another topic with --to"
            if name in self._closed_topics:
                raise WrongOutputError(f"{what} {self._closed_topics[name]}: {advice}")
            if not is_topic_name(name):  # such as a file's path: dead letters of files name it
                raise WrongOutputError(f"{what} no topic can have as its name: {advice}")
            found = find_topic(self.sink.cluster(), name)
            if found is None:
                raise WrongOutputError(f"{what} does not exist: create it, {advice}")
            partitions[name] = len(found.partitions)
        return partitions

    def _row(self, record: DeadLetterRecord, partitions: dict[str, int]) -> dict[str, object]:
        """The key chooses the partition where the original one does not exist any more."""
        origin = record.origin
        topic = origin.topic if self.to is None else self.to
        is_there = self.to is None and origin.partition is not None and origin.partition < partitions[topic]
        headers = [{"key": name, "value": value} for name, value in replayed_headers(origin)]
        partition = origin.partition if is_there else None
        return {"topic": topic, "partition": partition, "key": record.key, "value": record.value, "headers": headers}
