"""Which files were found: small whatever their number, and exact for those within a horizon.

Files are found in the order of their modification time, then of a digest of their path. Behind the horizon nothing is
remembered, and nothing is found. Ahead of it each found file is remembered by 64 bits of its path and its time in milliseconds.
So a file that appears late, by a rename or in a listing, is found as long as its time is ahead of the horizon.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from headrace.connectors.files.read.folders import FoundFile
from headrace.connectors.files.read.split import quoted
from headrace.enumerator.errors import StateError
from headrace.enumerator.source import JsonObject

MOST_REMEMBERED = 60_000
"""Files. Each takes some 14 bytes of a checkpoint."""
_FAR = 1 << 62
_NEVER = (-_FAR, 0)

Key: TypeAlias = tuple[int, int]
"""The place of a file in the order: its time in milliseconds, and the digest of its path."""


class Finding(Enum):
    """What a listed file is to a cursor."""

    NEW = auto()
    FOUND = auto()
    CHANGED = auto()
    BEHIND = auto()


def key_of(file: FoundFile) -> Key:
    """Its place in the order."""
    digest = blake2b(quoted(file.path).encode(), digest_size=8).digest()
    return file.modified_ns // 1_000_000, int.from_bytes(digest, "little")


def age_order(file: FoundFile) -> tuple[int, str]:
    """The order that people expect; the other one has it but for files of one millisecond."""
    return file.modified_ns, file.path


@dataclass
class Remembered:
    """The files found so far. Of a bounded source: where it is, and the last file that was there when it started.

    `horizon`: the last file that is forgotten. `times`: by digest of the path, of each file that is remembered.
    """

    horizon: Key = _NEVER
    times: dict[int, int] = field(default_factory=dict)
    end: Key | None = None

    def finding(self, key: Key) -> Finding:
        """What a file with this key is."""
        known = self.times.get(key[1])
        if known is not None:
            return Finding.FOUND if known == key[0] else Finding.CHANGED
        if key <= self.horizon or (self.end is not None and key > self.end):
            return Finding.BEHIND
        return Finding.NEW

    def add(self, keys: Iterable[Key], now_ms: int, age_ms: float) -> None:
        """These are found. What is older than `age_ms` is forgotten; and more than MOST_REMEMBERED are, the oldest first.

        The age is counted from the newest file, or from now if that claims to be of the future.
        """
        if self.end is not None:
            self.horizon = max([self.horizon, *keys])
            return
        self.times.update((digest, time) for time, digest in keys)
        if not self.times:
            return
        oldest = min(max(self.times.values()), now_ms) - age_ms
        ordered = sorted((time, digest) for digest, time in self.times.items())
        kept = [key for key in ordered if key[0] >= oldest][-MOST_REMEMBERED:]
        if len(kept) < len(ordered):
            self.horizon = max(self.horizon, ordered[-len(kept) - 1] if kept else ordered[-1])
            self.times = {digest: time for time, digest in kept}
        if oldest > self.horizon[0]:
            self.horizon = (int(oldest), 0)

    def stored(self) -> dict[str, Any]:
        """As JSON has it: the times as differences, as those are alike."""
        ordered = sorted((time, digest) for digest, time in self.times.items())
        steps = [later[0] - earlier[0] for earlier, later in pairwise([(0, 0), *ordered])]
        return {
            "horizon": list(self.horizon),
            "times": _packed("q", steps),
            "paths": _packed("Q", [digest for _, digest in ordered]),
            "end": None if self.end is None else list(self.end),
        }

    @classmethod
    def restored(cls, data: JsonObject) -> Remembered:
        """What `stored` gave. Raises StateError for anything else."""
        try:
            horizon, end = data["horizon"], data["end"]
            times = accumulate(_unpacked("q", data["times"]))
            found = dict(zip(_unpacked("Q", data["paths"]), times, strict=True))
            return cls((int(horizon[0]), int(horizon[1])), found, None if end is None else (int(end[0]), int(end[1])))
        except (KeyError, TypeError, ValueError, IndexError, zlib.error, struct.error) as error:
            raise StateError(f"what a checkpoint has of the files that were found cannot be read: {error!r}") from error


def _packed(kind: str, numbers: list[int]) -> str:
    return b64encode(zlib.compress(struct.pack(f"<{len(numbers)}{kind}", *numbers), 1)).decode()


def _unpacked(kind: str, text: str) -> tuple[int, ...]:
    data = zlib.decompress(b64decode(text, validate=True))
    return struct.unpack(f"<{len(data) // 8}{kind}", data)
