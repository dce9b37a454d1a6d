"""Which files were found: small whatever their number, and exact for those within a horizon.

Files are found in the order of their modification time, then of a digest of their path. Behind the horizon nothing is
remembered, and nothing is found. Ahead of it each found file is remembered by 64 bits of its path, its time, and 16 bits of its
size.
So a file that appears late, by a rename or in a listing, is found as long as its time is ahead of the horizon.
"""

from __future__ import annotations

import os
import zlib
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import blake2b
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.files.read.folders import FoundFile
from headrace.enumerator.envelope import stored_text
from headrace.enumerator.errors import StateError
from headrace.enumerator.source import JsonObject

MOST_REMEMBERED = 50_000
"""Files. Each takes some 14 bytes of a checkpoint."""
_FAR = 1 << 62
NEVER = (-_FAR, 0, 0)
"""Ahead of all files."""

Key: TypeAlias = tuple[int, int, int]
"""A file's place in the order: its time in milliseconds, the digest of its path, and 16 bits of its size and exact time."""

Place: TypeAlias = tuple[str, Key]
"""How far a read is: a path and NEVER by name, "" and a file's key by time."""
START: Place = ("", NEVER)


@dataclass(frozen=True, slots=True)
class Period:
    """A pattern, and what it was in force for: what is behind `start`, up to `end` if there is one."""

    pattern: str | None
    start: Place = START
    end: Place | None = None

    def has(self, place: Place) -> bool:
        """Whether it was in force there."""
        return self.start < place and (self.end is None or place <= self.end)

    def stored(self) -> list[Any]:
        """As JSON has its places."""
        return [None if place is None else [place[0], list(place[1])] for place in (self.start, self.end)]

    @classmethod
    def restored(cls, pattern: str | None, places: Any) -> Period:  # noqa: ANN401 - JSON
        """What `stored` gave. Raises TypeError or ValueError for anything else."""
        start, end = places
        return cls(pattern, _restored_place(start), None if end is None else _restored_place(end))


class FileStatus(Enum):
    """What a listed file is to a cursor."""

    NEW = auto()
    FOUND = auto()
    CHANGED = auto()
    BEHIND = auto()


def key_of(file: FoundFile) -> Key:
    """Its place in the order."""
    digest = blake2b(os.fsencode(file.path), digest_size=8).digest()
    version = zlib.crc32(f"{file.size} {file.modified_ns}".encode()) & 0xFFFF
    return file.modified_ns // 1_000_000, int.from_bytes(digest, "little"), version


def age_order(file: FoundFile) -> tuple[int, str]:
    """The order that people expect; the other one has it but for files of one millisecond."""
    return file.modified_ns, file.path


class Remembered:
    """The files found so far. Of a bounded source: where it is, and the last file that was there when it started.

    `horizon`: the last file that is forgotten. Of a bounded source `end` is the last one, and `left` counts those up to it that
    were not found yet.
    """

    def __init__(self, horizon: Key = NEVER, end: Key | None = None) -> None:
        self.horizon, self.end = horizon, end
        self.left: int | None = None
        self._known: dict[int, tuple[int, int]] = {}  # digest of a path to time and version
        self._times, self._digests, self._versions = _arrays()  # of the same files, in order: what is stored

    @property
    def is_in_use(self) -> bool:
        """Whether a file was found by its time."""
        return bool(self._times) or self.horizon != NEVER

    @property
    def newest_ms(self) -> int | None:
        """The time of the newest file that was found by its time, or of the last one of a bounded source."""
        if self.end is not None:
            return self.end[0]
        return self.newest[0] if self.is_in_use else None

    @property
    def newest(self) -> Key:
        """The newest file that was found by its time, or the horizon."""
        return max([self.horizon, *zip(*(column[-1:] for column in self._columns), strict=True)])

    def finding(self, key: Key) -> FileStatus:
        """What a file with this key is."""
        known = self._known.get(key[1])
        if known is not None:
            return FileStatus.FOUND if known == (key[0], key[2]) else FileStatus.CHANGED
        if key <= self.horizon or (self.end is not None and key > self.end):
            return FileStatus.BEHIND
        return FileStatus.NEW

    def add(self, keys: Iterable[Key], now_ms: int, age_ms: float) -> None:
        """These are found. What is older than `age_ms` is forgotten; and more than MOST_REMEMBERED are, the oldest first.

        The age is counted from the newest file, or from now if that claims to be of the future.
        """
        if self.end is not None:
            self.horizon = max([self.horizon, *keys])
            return
        for key in keys:
            self._insert(key)
        if not self._times:
            return
        oldest = int(min(self._times[-1], now_ms) - age_ms)
        forgotten = max(bisect_left(self._times, oldest), len(self._times) - MOST_REMEMBERED)
        if forgotten > 0:
            last = forgotten - 1
            self.horizon = max(self.horizon, (self._times[last], self._digests[last], self._versions[last]))
            for digest in self._digests[:forgotten]:
                del self._known[digest]
            for column in self._columns:
                del column[:forgotten]
        self.horizon = max(self.horizon, (oldest, 0, 0))

    @property
    def _columns(self) -> tuple[array[int], array[int], array[int]]:
        return self._times, self._digests, self._versions

    def _insert(self, key: Key) -> None:
        time, digest, version = key
        if digest in self._known:  # of a file that has changed
            at = self._place(self._known[digest][0], digest)
            for column in self._columns:
                del column[at]
        at = self._place(time, digest)
        for column, value in zip(self._columns, key, strict=True):
            column.insert(at, value)
        self._known[digest] = (time, version)

    def _place(self, time: int, digest: int) -> int:
        first, last = bisect_left(self._times, time), bisect_right(self._times, time)
        return bisect_left(self._digests, digest, first, last)

    def stored(self) -> dict[str, Any]:
        """As JSON has it: the times as differences, which are alike and small."""
        times = pa.Array.from_buffers(pa.int64(), len(self._times), [None, pa.py_buffer(self._times.tobytes())])
        steps = pc.fill_null(pc.pairwise_diff(times), times[0]) if len(times) else times
        return {
            "horizon": list(self.horizon),
            "end": None if self.end is None else list(self.end),
            "times": b64encode(zlib.compress(steps.buffers()[1] or b"", 1)).decode(),
            "paths": b64encode(self._digests.tobytes()).decode(),
            "versions": b64encode(self._versions.tobytes()).decode(),
        } | ({} if self.left is None else {"left": self.left})

    @classmethod
    def restored(cls, data: JsonObject) -> Remembered:
        """What `stored` gave. Raises StateError for anything else."""
        try:
            end = data["end"]
            made = cls(restored_key(data["horizon"]), None if end is None else restored_key(end))
            made.left = int(data["left"]) if "left" in data else None
            steps = array("q", zlib.decompress(b64decode(data["times"], validate=True)))
            made._times = array("q", accumulate(steps))
            made._digests = array("Q", b64decode(data["paths"], validate=True))
            made._versions = array("H", b64decode(data["versions"], validate=True))
            made._known = {digest: (time, version) for time, digest, version in zip(*made._columns, strict=True)}
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, zlib.error) as error:
            raise StateError(f"what a checkpoint has of the files that were found cannot be read: {error!r}") from error
        return made


def _arrays() -> tuple[array[int], array[int], array[int]]:
    return array("q"), array("Q"), array("H")


def _restored_place(data: Any) -> Place:  # noqa: ANN401 - JSON
    """What a list of it was. Raises TypeError or ValueError for anything else."""
    path, key = data
    return stored_text(path), restored_key(key)


def restored_key(data: Any) -> Key:  # noqa: ANN401 - JSON
    """What a list of it was. Raises TypeError or ValueError for anything else."""
    time, digest, version = data
    return int(time), int(digest), int(version)
