"""Reading folders of files in a Beam pipeline: on Beam's runner in Python and on Flink. Runs in a child of the harness.

`headrace` gives Arrow batches and `beam-batched` (ReadFromParquetBatched) Arrow tables; `headrace-records` and `beam`
(ReadFromParquet, ReadFromText) an element for every record. Behind each is the same stage, which counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.io import ReadFromText
from apache_beam.io.parquetio import ReadFromParquet, ReadFromParquetBatched

from benchmarks.beam_parts import KEY, Count
from benchmarks.beam_systems import Runner, run_counted
from benchmarks.files_data import DIGITS, NUMBER, Files
from benchmarks.harness import Context, Measurement
from headrace.beam import ReadFromSource
from headrace.files import FileSource

BEAM_FILE_SYSTEMS = {
    "parquet": ("headrace", "beam-batched", "headrace-records", "beam"),
    "text": ("headrace", "headrace-records", "beam"),
}
BATCHED = ("headrace", "beam-batched")

Numbers = Callable[[Any], "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class BeamFiles:
    """The files for batches, and the fewer for systems that emit every record: what counts is records per second."""

    runner: Runner
    batches: Files
    records: Files


def beam_files(context: Context, work: BeamFiles) -> Measurement:
    """One pipeline that reads the whole folder. Records per second between the first element counted and the last."""
    files = work.batches if context.system in BATCHED else work.records
    counted = Path(tempfile.mkdtemp(dir=context.scratch))
    source = _SOURCES[context.system, files.kind](files, str(files.folder(context.bootstrap)))
    numbers = _NUMBERS[context.system, files.kind]

    def build(pipeline: beam.Pipeline) -> None:
        _ = pipeline | "Source" >> source | "Count" >> beam.ParDo(CountNumbers(counted, numbers))

    return run_counted(work.runner, build, counted, files.records)


class CountNumbers(Count):
    """Of whatever elements these numbers are found in."""

    def __init__(self, folder: Path, numbers: Numbers) -> None:
        super().__init__(folder)
        self._numbers = numbers

    def process(self, element: Any) -> None:  # noqa: ANN401 - of several systems
        """A batch, a table or a record."""
        numbers = self._numbers(element)
        if not self._keys:
            self._begin(len(numbers))
        self._keys.append(numbers.astype(KEY).tobytes())


def _of_rows(rows: pa.RecordBatch | pa.Table) -> np.ndarray[Any, Any]:
    return rows.column(NUMBER).to_numpy()  # type: ignore[no-any-return]


def _of_lines(rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
    return pc.utf8_slice_codeunits(rows.column("value"), 0, DIGITS).cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]


def _of_row(row: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    return np.array([row[NUMBER]])


def _of_line(line: str) -> np.ndarray[Any, Any]:
    return np.array([int(line[:DIGITS])])


def _of_line_row(row: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    return _of_line(row["value"])


def _headrace(files: Files, folder: str) -> ReadFromSource:
    return ReadFromSource(_source(files, folder), output="arrow", discovery_interval_s=None)


def _headrace_records(files: Files, folder: str) -> ReadFromSource:
    return ReadFromSource(_source(files, folder), discovery_interval_s=None)


def _source(files: Files, folder: str) -> FileSource:
    schema = pa.schema([("value", pa.string())]) if files.kind == "text" else files.schema
    return FileSource(folder, format=files.kind, schema=schema)


_SOURCES: Mapping[tuple[str, str], Callable[[Files, str], Any]] = {
    ("headrace", "parquet"): _headrace,
    ("headrace", "text"): _headrace,
    ("headrace-records", "parquet"): _headrace_records,
    ("headrace-records", "text"): _headrace_records,
    ("beam-batched", "parquet"): lambda _, folder: ReadFromParquetBatched(f"{folder}/part-*"),
    ("beam", "parquet"): lambda _, folder: ReadFromParquet(f"{folder}/part-*"),
    ("beam", "text"): lambda _, folder: ReadFromText(f"{folder}/part-*"),
}
_NUMBERS: Mapping[tuple[str, str], Numbers] = {
    ("headrace", "parquet"): _of_rows,
    ("headrace", "text"): _of_lines,
    ("headrace-records", "parquet"): _of_row,
    ("headrace-records", "text"): _of_line_row,
    ("beam-batched", "parquet"): _of_rows,
    ("beam", "parquet"): _of_row,
    ("beam", "text"): _of_line,
}
