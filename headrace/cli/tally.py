"""Comparing two topics, record by record, in bounded memory. Sans-IO.

**How.** Each record's identity (its value, its key, or some headers) becomes a hash of 128 bits. The input's are counted up,
then the output's counted down. What stays above nothing is lost, what goes below is a duplicate, what was never counted is
foreign.

**What that tells.** Records of one identity are counted, not told apart: where the input itself has an identity twice, the loss
of one and a duplicate of the other would cancel out. A change of anything but the identity is not seen.

**Order.** Only where the output's records have headers with the topic, partition and offset that they came from: then offsets
of an input partition must not fall within an output partition. Between output partitions there is no order to compare.

**Memory** is about 150 bytes for each identity of the input, whatever the records' size: some tens of millions fit a laptop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

HASH_BYTES = 16

# --- identities --------------------------------------------------------------------------------------------------------


class RecordField(StrEnum):
    """Which part of a record says which it is."""

    VALUE = "value"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells records apart: a field, or (if any are named) the values of these headers together, the last of each name."""

    field: RecordField = RecordField.VALUE
    headers: tuple[str, ...] = ()

    @property
    def column(self) -> str:
        """The column that it is made from."""
        return "headers" if self.headers else self.field.value

    def parts(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, ...]]:
        """Each record's identity, uncompressed."""
        for item in batch.column(self.column).to_pylist():
            if self.headers:
                named = header_values(item)
                yield tuple(named.get(name) for name in self.headers)
            else:
                yield (item,)

    def hashes(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Each record's identity as a hash."""
        return map(identity_hash, self.parts(batch))


def identity_hash(parts: tuple[bytes | None, ...]) -> bytes:
    """128 bits of BLAKE2b. Where one part ends and the next begins counts, and so does whether a part is there at all."""
    if len(parts) == 1 and parts[0] is not None:
        return blake2b(parts[0], digest_size=HASH_BYTES).digest()
    framed = b"".join(b"\0" if part is None else b"\1" + len(part).to_bytes(8) + part for part in parts)
    return blake2b(framed, digest_size=HASH_BYTES, person=b"parts").digest()


def header_values(headers: Sequence[Mapping[str, Any]] | None) -> dict[str, bytes | None]:
    """By name, the last of each."""
    return {item["key"]: item["value"] for item in headers or ()}


# --- counting ----------------------------------------------------------------------------------------------------------


class RecordFault(StrEnum):
    """What is wrong with a record."""

    DUPLICATE = "duplicate"
    LOST = "lost"
    FOREIGN = "foreign"


@dataclass(slots=True)
class Tally:
    """The counts. All of the input goes in first."""

    records_in: int = 0
    records_out: int = 0
    duplicates: int = 0
    foreign: int = 0
    repeated: int = 0
    """Records of the input beyond the first of their identity."""
    _balance: dict[bytes, int] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Records of the input that the output has not."""
        return sum(count for count in self._balance.values() if count > 0)

    def add_input(self, hashes: Iterable[bytes]) -> None:
        """Count up."""
        balance = self._balance
        for item in hashes:
            count = balance.get(item, 0)
            balance[item] = count + 1
            self.records_in += 1
            self.repeated += count > 0

    def add_output(self, hashes: Iterable[bytes]) -> Iterator[tuple[int, RecordFault]]:
        """Count down; gives the index of each record that should not be there."""
        balance = self._balance
        for index, item in enumerate(hashes):
            count = balance.get(item)
            self.records_out += 1
            if count is None:
                self.foreign += 1
                yield index, RecordFault.FOREIGN
                continue
            balance[item] = count - 1
            if count <= 0:
                self.duplicates += 1
                yield index, RecordFault.DUPLICATE

    def lost_among(self, hashes: Iterable[bytes]) -> Iterator[int]:
        """Read the input again with this: the index of each record that is lost. Of equal ones the first are taken to be."""
        for index, item in enumerate(hashes):
            if self._balance.get(item, 0) > 0:
                self._balance[item] -= 1
                yield index

    def summary(self, lost: int) -> str:
        """The last line of the report."""
        return (
            f"{self.records_in} records in, {self.records_out} out, {self.duplicates} duplicates, {lost} lost, "
            f"{self.foreign} foreign"
        )


@dataclass(slots=True)
class OrderCheck:
    """Whether the records of an input partition keep their order within each output partition, by three headers of theirs."""

    names: tuple[str, str, str]
    violations: int = 0
    unmarked: int = 0
    """Records without these headers, or with an offset that is no number."""
    _last: dict[tuple[int, bytes, bytes], int] = field(default_factory=dict)

    def add(self, partition: int, headers: Sequence[Mapping[str, Any]] | None) -> bool:
        """The next record of an output partition; True if it comes after one that it should come before."""
        named = header_values(headers)
        topic, origin, offset = (named.get(name) for name in self.names)
        if topic is None or origin is None or offset is None or not offset.isdigit():
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
