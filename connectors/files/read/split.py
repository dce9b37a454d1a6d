"""A file, or a range of its bytes, and how much of it was delivered.

A range has what starts in it: the lines, or the row groups and record batches by their share of the file. So discovery can cut
a file without opening it. The position is a number of records from the range's start, those included that are bad or blank.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from headrace.enumerator.envelope import readable_version
from headrace.enumerator.source import JsonObject, SplitSerializer


@dataclass(frozen=True, slots=True)
class FileSplit:
    """Bytes from `start` up to, not including, `stop` of one version of a file, of which `delivered` records were handed on.

    `path`: below the source's folder; bytes that are not UTF-8 as Python's file names have them. `modified_ns`: epoch
    nanoseconds by the store. `schema`: a digest of the schema that was inferred, empty where it was given. `counted`: what the
    records were (`ReadFormat.counted`); empty where none was delivered, or an older version has stored it.
    """

    path: str
    size: int
    modified_ns: int
    start: int
    stop: int
    schema: str = ""
    delivered: int = 0
    counted: str = ""

    @property
    def split_id(self) -> str:
        """Another one for each version of the file, and for each range."""
        return f"{quoted(self.path)}@{self.modified_ns}.{self.size}:{self.start}-{self.stop}"

    @property
    def size_bytes(self) -> int:
        """Of the range, as it is stored."""
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        """Whether the range is all of the file."""
        return self.start == 0 and self.stop == self.size

    def share(self, parts: int) -> range:
        """Which of a file's parts, such as its row groups, are in this range: each is in one of the file's ranges."""
        first, last = (-(-place * parts // self.size) for place in (self.start, self.stop))
        return range(first, last)


class FileSplitSerializer(SplitSerializer[FileSplit]):
    """Version 1: {"path": "a%20b.csv", "size": 9, "modified_ns": 1, "range": [0, 9], "schema": "", "delivered": 3}.

    And "counted": "lines" where that is known.
    """

    version = 1

    def serialize(self, split: FileSplit) -> JsonObject:
        """The split as a JSON object."""
        return {
            "path": quoted(split.path),
            "size": split.size,
            "modified_ns": split.modified_ns,
            "range": [split.start, split.stop],
            "schema": split.schema,
            "delivered": split.delivered,
        } | ({"counted": split.counted} if split.counted else {})

    def deserialize(self, version: int, data: Any) -> FileSplit:  # noqa: ANN401 - any JSON value
        """What `serialize` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        readable_version(version, self.version)
        start, stop = data["range"]
        numbers = (data["size"], data["modified_ns"], start, stop, data["delivered"])
        texts = (data["path"], data["schema"], counted := data.get("counted", ""))
        if not all(isinstance(each, str) for each in texts) or any(type(each) is not int for each in numbers):
            raise ValueError(f"not a piece of a file: {data!r}")
        if not 0 <= start < stop <= data["size"] or data["delivered"] < 0:
            raise ValueError(f"not a range of a file: {data!r}")
        path = os.fsdecode(unquote_to_bytes(data["path"]))
        return FileSplit(path, data["size"], data["modified_ns"], start, stop, data["schema"], data["delivered"], counted)


def quoted(path: str) -> str:
    """A path as ASCII, whatever its bytes are, as in a URL."""
    return quote_from_bytes(os.fsencode(path), safe="/=+,:@")


def shown(path: str) -> str:
    """A path as text, for columns and messages: bytes that are not UTF-8 are written as `\\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")
