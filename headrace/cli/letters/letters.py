"""Dead letters of a topic: read, chosen, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.cli.output import instant
from headrace.connectors.base.dead_letters import DeadLetter, letter_of
from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.cli.letters.replayed import Replayed

COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp")
"""What is read of a topic of dead letters."""
COUNT_COLUMNS = ("topic", "reason", "letters", "replayed", "first", "last")


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as it lies in its topic. `time_ms`: when it was written there, if that is known."""

    partition: int
    offset: int
    time_ms: int | None
    key: bytes | None
    value: bytes | None
    origin: DeadLetter


def letters_in(batch: pa.RecordBatch) -> Iterator[Letter]:
    """The dead letters of a batch with COLUMNS; records that are none are skipped."""
    times = batch.column("timestamp").cast("int64").to_pylist()
    others = batch.drop_columns(["timestamp"]).to_pylist()
    for row, micros in zip(others, times, strict=True):
        origin = letter_of((each["key"], each["value"]) for each in row["headers"] or ())
        if origin is not None:
            time_ms = None if micros is None else micros // 1000
            yield Letter(row["partition"], row["offset"], time_ms, row["key"], row["value"], origin)


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters are meant: of these topics (none: of any), with this text in their reason, written in this time.

    `since_ms` is inclusive, `until_ms` exclusive; a letter without a time is in none.
    """

    topics: frozenset[str] = frozenset()
    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, letter: Letter) -> bool:
        """Whether it is one of them."""
        if self.topics and letter.origin.topic not in self.topics:
            return False
        if self.reason is not None and self.reason.lower() not in (letter.origin.reason or "").lower():
            return False
        return self._in_time(letter.time_ms)

    def _in_time(self, time_ms: int | None) -> bool:
        if self.since_ms is None and self.until_ms is None:
            return True
        if time_ms is None:
            return False
        return (self.since_ms is None or time_ms >= self.since_ms) and (self.until_ms is None or time_ms < self.until_ms)


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
    """Letters of one topic and reason, and how many of them were replayed."""

    letters: int = 0
    replayed: int = 0
    first_ms: int | None = None
    last_ms: int | None = None

    def add(self, letter: Letter, *, was_replayed: bool) -> None:
        """One more."""
        self.letters += 1
        self.replayed += was_replayed
        if letter.time_ms is not None:
            self.first_ms = letter.time_ms if self.first_ms is None else min(self.first_ms, letter.time_ms)
            self.last_ms = letter.time_ms if self.last_ms is None else max(self.last_ms, letter.time_ms)


@dataclass(slots=True)
class Counts:
    """All that was counted. `others`: records that are not dead letters."""

    by_reason: dict[tuple[str, str], Count] = field(default_factory=dict)
    others: int = 0

    def add(self, batch: pa.RecordBatch, wanted: LetterFilter, replayed: Replayed) -> None:
        """The letters of a batch that are wanted."""
        found = list(letters_in(batch))
        self.others += batch.num_rows - len(found)
        for letter in found:
            if wanted.takes(letter):
                key = (letter.origin.topic, letter.origin.reason or letter.origin.exception or "")
                count = self.by_reason.setdefault(key, Count())
                count.add(letter, was_replayed=replayed.has(letter.partition, letter.offset))

    def rows(self) -> list[Sequence[object]]:
        """The cells of COUNT_COLUMNS, the most frequent first within each topic."""
        ordered = sorted(self.by_reason.items(), key=lambda item: (item[0][0], -item[1].letters, item[0][1]))
        return [
            (topic, reason, each.letters, each.replayed, instant(each.first_ms), instant(each.last_ms))
            for (topic, reason), each in ordered
        ]


def origins(letters: Iterable[Letter]) -> Counter[str]:
    """How many letters come from each topic."""
    return Counter(letter.origin.topic for letter in letters)
