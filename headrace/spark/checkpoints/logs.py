"""What is in the checkpoint of a streaming query: its id, and the logs of planned and of committed batches.

    metadata        {"id": "<query id>"}
    offsets/<n>     batch n was planned: `v1` or `v2`, its metadata as JSON, then a line for each source: its offsets, or `-`.
                    In v2 (Spark 4.1 and later, sources with names) the line starts with the source's name and a colon
    commits/<n>     batch n is done: `v1` to `v3`, and JSON
    .<name>.crc     alongside each file, where Hadoop's local filesystem has written it: the file's checksums

Nothing is contacted but the store: a local folder, or any that fsspec knows (extra `files`).
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.connectors.files.store import Store, normal_path, open_store
from headrace.enumerator.errors import StateError, UsageError

METADATA, OFFSETS, COMMITS, STATE = "metadata", "offsets", "commits", "state"
NO_OFFSETS = "-"
NAMED = 2  # the version of the offset log in which sources have names
_OFFSET_VERSIONS, _COMMIT_VERSIONS = (1, NAMED), (1, 2, 3)
_CRC_HEAD = b"crc\0"


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """What one source has stored: its name (`0`, `1`, ... in v1), and its text; None where it had nothing yet."""

    name: str
    text: str | None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """An entry of the offset log. `planned_ms`, `watermark_ms`: epoch milliseconds."""

    version: int
    head: str
    sources: tuple[SourceOffsets, ...]
    planned_ms: int | None
    watermark_ms: int | None

    def content(self, sources: tuple[SourceOffsets, ...]) -> bytes:
        """The entry as Spark writes it, with the offsets of these sources in place of its own."""
        texts = [(source.name, NO_OFFSETS if source.text is None else source.text) for source in sources]
        lines = [f"{name}:{text}" if self.version >= NAMED else text for name, text in texts]
        return "\n".join([f"v{self.version}", self.head, *lines]).encode()


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file that Spark cannot read, by its name in the checkpoint, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class SparkCheckpoint:
    """All of a checkpoint but the contents of state. Batches that Spark has purged are not there."""

    location: str
    query_id: str | None
    planned: Mapping[int, PlannedBatch]
    committed: Collection[int]
    damaged: tuple[DamagedFile, ...]
    state_operators: tuple[str, ...]

    @property
    def last_planned(self) -> int | None:
        return max(self.planned, default=None)

    @property
    def last_committed(self) -> int | None:
        return max(self.committed, default=None)

    def batch(self, number: int | None) -> PlannedBatch:
        """A batch of the offset log, the last one for None. Raises UsageError when it is not there."""
        number = self.last_planned if number is None else number
        if number is None or number not in self.planned:
            there = f"{min(self.planned)} to {max(self.planned)}" if self.planned else "none"
            raise UsageError(f"the offset log in {self.location} has no readable batch {number}; it has {there}")
        return self.planned[number]


def read_checkpoint(location: str) -> SparkCheckpoint:
    """Read it. A path, or an address that fsspec knows; `s3a:` is taken for `s3:`. What is damaged is in `damaged`.

    Raises UsageError where there is no checkpoint, and OSError where the store refuses.
    """
    reader = _Reader(open_store(normal_path(fsspec_address(location)), {}))
    query_id = reader.parsed(METADATA, _query_id)
    planned = {number: entry for number in reader.batches(OFFSETS) if (entry := reader.parsed(f"{OFFSETS}/{number}", _planned))}
    committed = [number for number in reader.batches(COMMITS) if reader.parsed(f"{COMMITS}/{number}", _is_commit)]
    if not reader.found:
        raise UsageError(f"there is no checkpoint in {location}: neither {METADATA} nor {OFFSETS}/0 or the like")
    operators = tuple(sorted(name for name in reader.store.names(STATE) if not name.startswith(".")))
    return SparkCheckpoint(location, query_id, planned, committed, tuple(reader.damaged), operators)


def fsspec_address(location: str) -> str:
    """As fsspec names it: Hadoop's `s3a:` and `s3n:` are `s3:`."""
    scheme, colon, rest = location.partition(":")
    return f"s3:{rest}" if colon and scheme in ("s3a", "s3n") else location


class _Reader:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.found = False
        self.damaged: list[DamagedFile] = []

    def batches(self, log: str) -> list[int]:
        return sorted(int(name) for name in self.store.names(log) if name.isascii() and name.isdigit())

    def parsed(self, name: str, parse: Any) -> Any:  # noqa: ANN401 - what `parse` gives
        """None where there is no such file, or it is damaged, which is noted."""
        try:
            data = self.store.read(name)
        except FileNotFoundError:
            return None
        self.found = True
        folder, slash, last = name.rpartition("/")
        try:
            with suppress(FileNotFoundError):
                _check_sums(data, self.store.read(f"{folder}{slash}.{last}.crc"))
            return parse(data.decode())
        except (StateError, ValueError) as error:  # JSON's and UTF-8's errors are ValueErrors
            self.damaged.append(DamagedFile(name, str(error)))
            return None


def _check_sums(data: bytes, sums: bytes) -> None:
    """Hadoop's: a head, the bytes for each sum, and CRC-32s. Raises StateError where Hadoop would refuse to read the file."""
    if not sums.startswith(_CRC_HEAD) or len(sums) < len(_CRC_HEAD) + 4:
        return  # of another filesystem
    (step,) = struct.unpack_from(">I", sums, len(_CRC_HEAD))
    found = b"".join(struct.pack(">I", zlib.crc32(data[at : at + step])) for at in range(0, len(data), step)) if step else b""
    if found != sums[len(_CRC_HEAD) + 4 :]:
        raise StateError("its contents do not match the checksums alongside it (.crc): it was changed, or is damaged")


def _query_id(text: str) -> str:
    found = _object(text).get("id")
    if not isinstance(found, str):
        raise StateError("it holds no query id")
    return found


def _planned(text: str) -> PlannedBatch:
    version, rest = _versioned(text, _OFFSET_VERSIONS)
    head, _, body = rest.partition("\n")
    metadata = _object(head) if head else {}
    lines = body.split("\n") if body else []
    if not lines:
        raise StateError("it ends before the first source's offsets")
    sources = tuple(_source(version, number, line) for number, line in enumerate(lines))
    times = (metadata.get(name) for name in ("batchTimestampMs", "batchWatermarkMs"))
    return PlannedBatch(version, head, sources, *(found if type(found) is int else None for found in times))


def _source(version: int, number: int, line: str) -> SourceOffsets:
    name, text = str(number), line
    if version >= NAMED:
        name, colon, text = line.partition(":")
        if not colon:
            raise StateError(f"line {number + 1} of the sources names no source")
    return SourceOffsets(name, None if text == NO_OFFSETS else text)


def _is_commit(text: str) -> bool:
    _, rest = _versioned(text, _COMMIT_VERSIONS)
    _object(rest or "{}")
    return True


def _versioned(text: str, known: tuple[int, ...]) -> tuple[int, str]:
    first, newline, rest = text.partition("\n")
    if not first:
        raise StateError("it is empty: it was never written to its end")
    if not re.fullmatch("v[0-9]{1,19}", first) or not newline:
        raise StateError(f"it starts with {first[:20]!r}, and not with a version and a line's end")
    if int(first[1:]) not in known:
        raise StateError(f"it has version {first}, and v{known[0]} to v{known[-1]} are known here: of a newer Spark?")
    return int(first[1:]), rest


def _object(text: str) -> Mapping[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise StateError(f"it holds {text[:40]!r}, which is not a JSON object")
    return found
