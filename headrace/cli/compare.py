"""Comparing a topic with another, or with a table, record by record, in bounded memory. Sans-I/O.

**How.** Each record's identity (its value, its key, or some headers) becomes a hash of 128 bits. The input's are counted up,
then the output's counted down. A count that stays above zero is a loss, one that falls below zero is a duplicate, an
identity that was never counted is foreign.

**Limits.** Records of one identity are counted, not distinguished: where the input itself has an identity twice, the loss
of one and a duplicate of the other cancel out. A change in anything but the identity is not detected.

**Order.** Only where the output's records have headers with the topic, partition and offset that they came from: then the
offsets of an input partition must not decrease within an output partition. Order is not defined between output partitions.

**Memory** is about 150 bytes for each identity of the input, whatever the records' size: tens of millions fit on a laptop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa


class RecordField(StrEnum):
    """The part of a record that identifies it."""

    VALUE = "value"
    KEY = "key"
    POSITION = "position"  # partition and offset, which a table may have as columns


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies a record: a field or, if headers are named, the last value of each of these headers."""

    field: RecordField = RecordField.VALUE
    headers: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        if self.headers:
            return ("headers",)
        return ("partition", "offset") if self.field is RecordField.POSITION else (self.field.value,)

    @property
    def nothing(self) -> bytes | None:
        """The hash of a record without the key, or without all of the headers. A value that is null is one, a tombstone."""
        if not self.headers and self.field is not RecordField.KEY:
            return None
        return identity_hash((None,) * max(1, len(self.headers)))

    def parts(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, ...]]:
        if not self.headers:
            yield from cells_of(batch, self.columns)
            return
        for item in batch.column("headers").to_pylist():
            named = header_values(item)
            yield tuple(named.get(name) for name in self.headers)

    def hashes(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        return map(identity_hash, self.parts(batch))


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """What identifies a row of a table: the columns that hold what identifies the record, in that order."""

    columns: tuple[str, ...]

    def parts(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, ...]]:
        return cells_of(batch, self.columns)

    def hashes(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        return map(identity_hash, self.parts(batch))


def cells_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[bytes | None, ...]]:
    """The cells of these columns as bytes: texts as UTF-8, whole numbers as digits. Raises UsageError for other types."""
    import pyarrow as pa

    for name in columns:
        kind = batch.schema.field(name).type
        if not any(getattr(pa.types, f"is_{each}")(kind) for each in _COMPARABLE):
            raise UsageError(f"column {name!r} is {kind}: what identifies a record is bytes, a text or a whole number")
    cells = [map(_as_bytes, batch.column(name).to_pylist()) for name in columns]
    return zip(*cells, strict=True)


_COMPARABLE = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "integer")


def _as_bytes(value: bytes | str | int | None) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def identity_hash(parts: tuple[bytes | None, ...]) -> bytes:
    """128 bits of BLAKE2b. The boundaries between parts, and whether a part is missing, are part of the hash."""
    if len(parts) == 1 and parts[0] is not None:
        return blake2b(parts[0], digest_size=16).digest()
    framed = b"".join(b"\0" if part is None else b"\1" + len(part).to_bytes(8) + part for part in parts)
    return blake2b(framed, digest_size=16, person=b"parts").digest()


def header_values(headers: Sequence[Mapping[str, Any]] | None) -> dict[str, bytes | None]:
    return {item["key"]: item["value"] for item in headers or ()}


class RecordFault(StrEnum):
    """What is wrong with a record."""

    DUPLICATE = "duplicate"
    LOST = "lost"
    FOREIGN = "foreign"


@dataclass(slots=True)
class TopicCounts:
    """The counts. Add all of the input first. `nothing`: the hash of a record that is not identified (`Identity.nothing`)."""

    nothing: bytes | None = None
    records_in: int = 0
    records_out: int = 0
    duplicates: int = 0
    foreign: int = 0
    repeated: int = 0  # records of the input beyond the first of their identity
    unidentified: int = 0  # records of both
    _balance: dict[bytes, int] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        return sum(count for count in self._balance.values() if count > 0)

    def add_input(self, hashes: Iterable[bytes]) -> None:
        balance = self._balance
        for item in hashes:
            count = balance.get(item, 0)
            balance[item] = count + 1
            self.records_in += 1
            self.repeated += count > 0
            self.unidentified += item == self.nothing

    def add_output(self, hashes: Iterable[bytes]) -> Iterator[tuple[int, RecordFault]]:
        """Count down; yields the index of each unexpected record."""
        balance = self._balance
        for index, item in enumerate(hashes):
            count = balance.get(item)
            self.records_out += 1
            self.unidentified += item == self.nothing
            if count is None:
                self.foreign += 1
                yield index, RecordFault.FOREIGN
                continue
            balance[item] = count - 1
            if count <= 0:
                self.duplicates += 1
                yield index, RecordFault.DUPLICATE

    def lost_among(self, hashes: Iterable[bytes]) -> Iterator[int]:
        """For a second skip the input: the index of each lost record. Of equal records the first ones count as lost."""
        for index, item in enumerate(hashes):
            if self._balance.get(item, 0) > 0:
                self._balance[item] -= 1
                yield index

    def summary(self, lost: int) -> str:
        return (
            f"{self.records_in} records in, {self.records_out} out, {self.duplicates} duplicates, {lost} lost, "
            f"{self.foreign} foreign"
        )


@dataclass(slots=True)
class OrderCheck:
    """Checks, by three headers, that records of an input partition keep their order within each output partition."""

    names: tuple[str, str, str]
    violations: int = 0
    unmarked: int = 0  # records without these headers, or whose offset is not a number
    _last: dict[tuple[int, bytes, bytes], int] = field(default_factory=dict)

    def add(self, partition: int, headers: Sequence[Mapping[str, Any]] | None) -> bool:
        """Add the next record of an output partition; True if it is out of order."""
        named = header_values(headers)
        topic, origin, offset = (named.get(name) for name in self.names)
        if topic is None or origin is None or offset is None or not re.fullmatch(rb"[0-9]{1,19}", offset):
            self.unmarked += 1
            return False
        key, number = (partition, topic, origin), int(offset)
        falls = number < self._last.get(key, -1)
        self.violations += falls
        self._last[key] = number
        return falls


def parse_origin(text: str | None) -> OrderCheck | None:
    """From `TOPIC,PARTITION,OFFSET`. Raises UsageError."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) != 3 or not all(names):
        raise UsageError("--origin-headers names three headers, as TOPIC,PARTITION,OFFSET")
    topic, partition, offset = names
    return OrderCheck((topic, partition, offset))
