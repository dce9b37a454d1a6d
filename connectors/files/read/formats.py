"""The formats by their names, which of them can be packed or cut, and how a piece of a file is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from headrace.connectors.base.arguments import zone
from headrace.connectors.files.read.columnar import ArrowIpc, Avro, ColumnarFormat, Parquet
from headrace.connectors.files.read.columns import FileColumns, FileRows, plain_schema
from headrace.connectors.files.read.lines import (
    Csv,
    LineFormat,
    LinesOfCsv,
    LinesOfJson,
    LinesOfText,
    UpToDamage,
    read_csv_rows,
    read_lines,
    sample_lines,
)
from headrace.connectors.files.read.split import FileSplit, shown
from headrace.connectors.formats.json_times import check_zone
from headrace.enumerator.errors import StateError, UsageError

_COLUMNAR: dict[str, ColumnarFormat] = {"parquet": Parquet(), "arrow": ArrowIpc(), "avro": Avro()}
NAMES = (*_COLUMNAR, "jsonl", "text", "csv")
_PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""What is unpacked: files of lines, by the ending of their names. The other formats pack by themselves."""


@dataclass(frozen=True)
class ReadFormat:
    """A format by its name, how CSV is written, and the zone of times that have none. Raises UsageError for what is none."""

    name: str
    csv: Csv
    time_zone: str | Callable[[], str] = "UTC"

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        if self.name not in NAMES:
            raise UsageError(f"format must be one of {', '.join(NAMES)}, or Csv(...), not {self.name!r}")
        zone("time_zone", self.time_zone)
        if isinstance(self.time_zone, str):
            check_zone(self.time_zone)

    def can_cut(self, path: str) -> bool:
        """Whether this file can be read in ranges."""
        if self.name in _COLUMNAR:
            return _COLUMNAR[self.name].is_cut
        return self._codec(path) is None and not (self.name == "csv" and self.csv.newlines_in_values)

    @property
    def counted(self) -> str:
        """What the position in a file counts: with other arguments it is another place. For a split's `counted`."""
        if self.name in _COLUMNAR:
            return "rows"
        if self.name != "csv":
            return "lines"
        counted = f"rows of CSV by {self.csv.delimiter} and {self.csv.quote}" if self.csv.newlines_in_values else "lines"
        return f"{counted} behind a header" if self.csv.header else counted

    def check_position(self, split: FileSplit) -> None:
        """Raise StateError for a piece, or a position in one, that was made with arguments by which it is another."""
        if self.name == "csv" and self.csv.newlines_in_values and not split.is_whole:
            raise StateError(
                f"{shown(split.path)} was cut into pieces, and with newlines_in_values=True each would be the whole file: "
                "leave that out, or start with a new checkpoint"
            )
        if split.delivered and split.counted not in ("", self.counted):
            raise StateError(
                f"{shown(split.path)}: the position {split.delivered} counts {split.counted}, and now {self.counted} are read: "
                "give the format as it was, or start with a new checkpoint"
            )

    def inferred(self, file: pa.NativeFile, path: str) -> pa.Schema:
        """The schema of a file, or what its first lines suggest. All texts have the same one, damaged or not."""
        if self.name == "text":
            return LinesOfText(()).inferred(b"")
        if self.name in _COLUMNAR:
            return plain_schema(_COLUMNAR[self.name].schema(file))
        return plain_schema(self._lines(()).inferred(sample_lines(self._unpacked(file, path))))

    def read(self, file: pa.NativeFile, split: FileSplit, columns: FileColumns, batch_rows: int) -> Iterator[FileRows]:
        """The rows of a piece of a file behind those that were delivered."""
        wanted = columns.wanted
        if self.name in _COLUMNAR:
            return _COLUMNAR[self.name].read(file, split, columns, batch_rows)
        unpacked = partial(self._unpacked, file, split.path)
        if self.name == "csv" and self.csv.newlines_in_values:
            return read_csv_rows(unpacked, split, LinesOfCsv(self.csv, columns.names), wanted, batch_rows)
        return read_lines(unpacked(), split, self._lines(columns.names), wanted, batch_rows)

    def _lines(self, names: Sequence[str]) -> LineFormat:
        if self.name == "csv":
            return LinesOfCsv(self.csv, names)
        return LinesOfText(names) if self.name == "text" else LinesOfJson(self.time_zone)

    @staticmethod
    def _codec(path: str) -> str | None:
        return next((codec for ending, codec in _PACKED.items() if path.endswith(ending)), None)

    def _unpacked(self, file: pa.NativeFile, path: str) -> pa.NativeFile:
        """From its start. The file is closed when what unpacks it is."""
        file.seek(0)
        codec = self._codec(path)
        return file if codec is None else UpToDamage(pa.CompressedInputStream(file, codec))
