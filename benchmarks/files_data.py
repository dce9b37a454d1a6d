"""The files that are read: what is in them, and a fast way to write them. The same rows in each format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from benchmarks.stored import write_whole

NUMBER = "f0"
"""The column with the number of the record; of text, its first digits."""
DIGITS = 8
_WORDS = pa.array([f"item-{number:04d}" for number in range(2000)])
_KINDS = (pa.int64(), pa.float64(), pa.string(), pa.int32(), pa.bool_())

Kind = Literal["parquet", "jsonl", "csv", "text"]
_TITLES: Mapping[Kind, str] = {"parquet": "Parquet", "jsonl": "JSON lines", "csv": "CSV", "text": "lines of text"}


@dataclass(frozen=True)
class Files:
    """A folder of files with this many records in all, and how many fields are asked for. Text has lines, and no fields."""

    kind: Kind
    records: int
    files: int
    fields: int = 50
    wanted: int | None = None

    @property
    def schema(self) -> pa.Schema:
        """Of all fields."""
        return pa.schema([(f"f{number}", _KINDS[number % len(_KINDS)]) for number in range(self.fields)])

    @property
    def asked(self) -> pa.Schema:
        """Of the fields that are asked for: spread over all of them, the number always."""
        if self.wanted is None:
            return self.schema
        names = (f"f{place * self.fields // self.wanted}" for place in range(self.wanted))
        return pa.schema([self.schema.field(name) for name in names])

    def folder(self, base: str) -> Path:
        """Where they are, below the folder of all files."""
        return Path(base, f"{self.kind}-{self.records}-{self.files}-{self.fields}")

    def write(self, base: str) -> None:
        """Write them, if that is not done."""
        folder = self.folder(base)
        if (folder / "_DONE").exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        for number, rows in enumerate(self._parts()):
            _WRITERS[self.kind](rows, folder / f"part-{number:05d}.{self.kind}")
        write_whole(folder / "_DONE", "")

    def _parts(self) -> Iterator[pa.Table]:
        """The rows of each file."""
        for number in range(self.files):
            first, stop = (self.records * place // self.files for place in (number, number + 1))
            yield self._rows(first, stop - first)

    def _rows(self, first: int, count: int) -> pa.Table:
        random = np.random.default_rng(first)
        columns = [pa.array(np.arange(first, first + count))]
        columns += [_column(random, kind, count) for kind in self.schema.types[1:]]
        return pa.table(columns, schema=self.schema)

    def __str__(self) -> str:
        """For people."""
        fields = "" if self.kind == "text" else f", {'all' if self.wanted is None else self.wanted} of {self.fields} fields"
        return f"{_TITLES[self.kind]}{fields}"


def _column(random: np.random.Generator, kind: pa.DataType, count: int) -> pa.Array:
    if kind == pa.string():
        return _WORDS.take(pa.array(random.integers(0, len(_WORDS), count)))
    if kind == pa.bool_():
        return pa.array(random.random(count) < 0.5)
    if kind == pa.float64():
        return pa.array(np.round(random.random(count) * 1000, 3))
    return pa.array(random.integers(0, 10**12 if kind == pa.int64() else 1000, count), kind)


def _objects(rows: pa.Table) -> pa.ChunkedArray:
    """Each row as an object of JSON."""
    parts: list[str | pa.ChunkedArray] = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        quote = '"' if column.type == pa.string() else ""
        end = parts.pop() if parts else "{"
        parts += [f'{end}{"," if len(parts) else ""}"{name}":{quote}', column.cast(pa.string()), quote]
    return pc.binary_join_element_wise(*parts, "}", "")


def _lines(rows: pa.Table) -> pa.ChunkedArray:
    """Each row as a line of text, of about 100 bytes."""
    numbers = pc.utf8_lpad(rows.column(NUMBER).cast(pa.string()), DIGITS, "0")
    return pc.binary_join_element_wise(numbers, rows.column("f2"), "x" * 80, " ")


def _write_lines(lines: pa.ChunkedArray, file: Path) -> None:
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines.combine_chunks())
    write_whole(file, pc.binary_join(whole, "\n")[0].as_py() + "\n")


_WRITERS: Mapping[Kind, Callable[[pa.Table, Path], None]] = {
    "parquet": pa.parquet.write_table,
    "jsonl": lambda rows, file: _write_lines(_objects(rows), file),
    "csv": pa.csv.write_csv,
    "text": lambda rows, file: _write_lines(_lines(rows), file),
}
