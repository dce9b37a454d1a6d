"""Reading folders of files in one process and as a stream of Spark; looking for new files; and what a checkpoint has of them.

Systems: `headrace`; `pyarrow`, its dataset for Parquet, and its readers of JSON and CSV, a file at a time; `spark`, Spark's own
file source; `ceiling`, a Python source that yields a ready-made batch of these columns, and reads nothing. Runs in a child of
the harness, whose `bootstrap` is the folder of all files.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs as arrow_fs

from benchmarks.files_data import NUMBER, Files
from benchmarks.harness import Context, Measurement
from headrace.connectors.files.read.discovery import FileDiscovery
from headrace.connectors.files.read.split import FileSplit
from headrace.enumerator import EmbeddedRun
from headrace.enumerator.source import JsonObject, SourceReader, SplitBatch
from headrace.files import FileSource

LOCAL_FILE_SYSTEMS = ("headrace", "pyarrow")
STREAM_FILE_SYSTEMS = ("headrace", "spark", "ceiling")
LISTING_SYSTEMS = ("headrace", "scandir", "pyarrow")
STATE_SYSTEMS = ("headrace", "names")
_TEXT = pa.schema([("value", pa.string())])
_NO_LINES = pa.record_batch([pa.array([], pa.string())], schema=_TEXT)


# --- one process ------------------------------------------------------------------------------------------------------


def local_files(context: Context, work: Files) -> Measurement:
    """All records as Arrow batches, and the sum of their numbers. Records per second."""
    records, total, names = 0, 0, work.asked.names
    started = time.perf_counter()
    for batch in _LOCAL[context.system](work, str(work.folder(context.bootstrap))):
        records += batch.num_rows
        total += pc.sum(batch.column(NUMBER)).as_py()
        if batch.schema.names != names:
            raise RuntimeError(f"{context.system} gave {batch.schema.names}")
    seconds = time.perf_counter() - started
    right = total == work.records * (work.records - 1) // 2
    return Measurement(work.records / seconds, records if right else -1, work.records, {"seconds": seconds})


def _headrace(work: Files, folder: str) -> Iterator[pa.RecordBatch]:
    source = FileSource(folder, format=work.kind, schema=work.schema, columns=work.asked.names)
    with EmbeddedRun(source, clock=time.monotonic) as run:
        while not run.finished:
            batch = run.poll(1.0)
            if batch is not None and batch.records.num_rows:
                yield batch.records


def _pyarrow(work: Files, folder: str) -> Iterator[pa.RecordBatch | pa.Table]:
    if work.kind == "parquet":
        import pyarrow.dataset as ds

        yield from ds.dataset(folder, format="parquet", schema=work.schema).to_batches(columns=work.asked.names)
        return
    for file in sorted(Path(folder).glob("part-*")):
        yield _WHOLE[work.kind](file, work)


def _whole_json(file: Path, work: Files) -> pa.Table:
    from pyarrow import json as arrow_json

    options = arrow_json.ParseOptions(explicit_schema=work.asked, unexpected_field_behavior="ignore")
    return arrow_json.read_json(file, parse_options=options)


def _whole_csv(file: Path, work: Files) -> pa.Table:
    from pyarrow import csv

    return csv.read_csv(file, convert_options=csv.ConvertOptions(column_types=work.schema, include_columns=work.asked.names))


_WHOLE: Mapping[str, Callable[[Path, Files], pa.Table]] = {"jsonl": _whole_json, "csv": _whole_csv}
_LOCAL: Mapping[str, Callable[[Files, str], Iterator[Any]]] = {"headrace": _headrace, "pyarrow": _pyarrow}


# --- Spark ------------------------------------------------------------------------------------------------------------


def stream_files(context: Context, work: Files) -> Measurement:
    """One query over the whole folder, AvailableNow, to the noop sink, from `start` to its end. Records per second."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from benchmarks.spark_systems import CORES, run_to_noop, session

    spark = session(context.system)
    reader = spark.readStream.schema(from_arrow_schema(work.asked))
    form = {"jsonl": "json"}.get(work.kind, work.kind)
    match context.system:
        case "headrace":
            reader = reader.format("headrace").option("connector", "files").option("fileFormat", form)
        case "ceiling":
            reader = reader.format("ceiling").option("records", work.records).option("tasks", CORES)
        case _:
            reader = reader.format(form)
    return run_to_noop(context, reader.load(str(work.folder(context.bootstrap))), work.records)


# --- looking for new files --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """A folder with this many files, and how many come between two looks."""

    files: int
    new: int = 10
    looks: int = 9

    def folder(self, base: str) -> Path:
        """Where they are."""
        return Path(base, f"listing-{self.files}")

    def write(self, base: str) -> None:
        """Write those that are there from the start."""
        folder = self.folder(base)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(self.files):
            (folder / f"part-{number:06d}.txt").write_text("a line\n")


def find_new(context: Context, work: Listing) -> Measurement:
    """The median time of a search, in ms: each time ten files are new. They are removed afterwards."""
    folder = work.folder(context.bootstrap)
    look = _look(context.system, str(folder), work.files)
    times, found = [], 0
    for _ in range(work.looks):
        added = _added(folder, work.new)
        started = time.perf_counter()
        found += look()
        times.append((time.perf_counter() - started) * 1000)
        for file in added:
            file.unlink()
    return Measurement(statistics.median(times), found, work.looks * work.new, {"looks_ms": times})


def _added(folder: Path, count: int) -> list[Path]:
    names = [folder / f"new-{time.time_ns()}-{number}.txt" for number in range(count)]
    for name in names:
        hidden = name.with_name(f"_{name.name}")
        hidden.write_text("a line\n")
        hidden.rename(name)
    return names


@functools.cache
def _look(system: str, folder: str, files: int) -> Callable[[], int]:
    """A search for what is new since the last one, where this many are known. Of a listing: how many are more than those."""
    if system == "headrace":
        return _Discovering(folder, files)
    return lambda: len(_LISTINGS[system](folder)) - files


class _Discovering:
    """The source's own discovery, which has found all that are there, and keeps running."""

    def __init__(self, folder: str, files: int) -> None:
        source = FileSource(folder, format="text", schema=_TEXT, watch=True)
        self._discovery: FileDiscovery = source.create_discovery()
        self._cursor: JsonObject | None = None
        if (found := self()) != files:
            raise RuntimeError(f"found {found} files, not {files}")

    def __call__(self) -> int:
        """All that is new."""
        found = 0
        while True:
            result = self._discovery.after(self._cursor, 10_000)
            self._cursor = result.cursor
            found += len(result.added)
            if not result.more:
                return found


def _scandir(folder: str) -> Sequence[object]:
    """Name, size and time of each file, as fast as Python can."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat()
            found.append((entry.name, status.st_size, status.st_mtime_ns))
    return found


def _selected(folder: str) -> Sequence[object]:
    """The same by pyarrow."""
    return arrow_fs.LocalFileSystem().get_file_info(arrow_fs.FileSelector(folder))  # type: ignore[no-any-return]


_LISTINGS: Mapping[str, Callable[[str], Sequence[object]]] = {"scandir": _scandir, "pyarrow": _selected}


# --- what a checkpoint has of them ------------------------------------------------------------------------------------

FOLDER = "incoming"
_START_S, _STEP_S = 1_700_000_000.0, 0.7


@dataclass(frozen=True)
class Found:
    """How many files were found and read, in this many looks."""

    files: int
    looks: int = 10


def state_size(context: Context, work: Found) -> Measurement:
    """The size of a checkpoint behind all of them, in MB. `names`: of a list of names and times, as Spark's source keeps."""
    store = _Store()
    if context.system == "names":
        store.add(work.files)
        listed = [{"path": path, "timestamp": int(each["mtime"] * 1000), "batchId": 0} for path, each in store.infos.items()]
        return Measurement(len(json.dumps(listed, separators=(",", ":"))) / 1e6, len(listed), work.files)
    now = read = 0
    store.add(work.files // work.looks)
    source = _Unread(FOLDER, format="text", schema=_TEXT, watch=True, filesystem=store)
    started = time.perf_counter()
    with EmbeddedRun(source, clock=lambda: now, discovery_interval_s=source.discovery_interval_s) as run:
        for look in range(1, work.looks + 1):
            store.add(work.files * look // work.looks - len(store.infos))
            now += int(source.discovery_interval_s or 0)
            read += _read_on(run)
            state = run.checkpoint()
            run.checkpoint_completed()
        state = run.checkpoint()
    detail = {"seconds": time.perf_counter() - started}
    return Measurement(len(state) / 1e6, read, work.files, detail)


def _read_on(run: EmbeddedRun[FileSplit]) -> int:
    """How many files were read until there are no more: the first poll that finds none asks for the next."""
    read = idle = 0
    while idle < 2:
        is_one = run.poll(0.0) is not None
        read, idle = read + is_one, 0 if is_one else idle + 1
    return read


class _Unread(FileSource):
    """Its reader does not open the files."""

    def create_reader(self) -> Any:  # noqa: ANN401 - not the source's own
        """One that has read them at once."""
        return _NoReader()


class _NoReader(SourceReader[FileSplit]):
    def __init__(self) -> None:
        self._splits: list[FileSplit] = []

    def add_splits(self, splits: Sequence[FileSplit]) -> None:
        self._splits += splits

    def poll(self, timeout: float) -> SplitBatch[FileSplit] | None:
        return SplitBatch(self._splits.pop(), _NO_LINES, finished=True) if self._splits else None

    def close(self) -> None:
        """Nothing is open."""


class _Store:
    """What the source asks of fsspec's filesystems to list files. It has names, sizes and times, and keeps all files."""

    protocol = "benchmark"

    def __init__(self) -> None:
        self.infos: dict[str, dict[str, float]] = {}

    def add(self, count: int) -> None:
        """As many new files."""
        for number in range(len(self.infos), len(self.infos) + count):
            path = f"{FOLDER}/part-{number:08d}.txt"
            jitter = zlib.crc32(path.encode())
            self.infos[path] = {"size": jitter % 7919 + 1, "mtime": _START_S + _STEP_S * number + jitter % 1000 / 1000}

    def invalidate_cache(self) -> None:
        """There is none."""

    def info(self, path: str) -> Mapping[str, float]:
        """Of one file. Raises FileNotFoundError."""
        if path not in self.infos:
            raise FileNotFoundError(path)
        return self.infos[path]

    def find(self, _path: str, *, detail: bool) -> Mapping[str, Mapping[str, float]]:
        """All files."""
        assert detail
        return self.infos
