"""The file sink on a real disk: processes killed in the middle, readers alongside, and every type that Spark gives."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from headrace.connectors.base.sink import Attempt
from headrace.connectors.files import FileFormat, FileSink
from headrace.enumerator.errors import UsageError
from tests.helpers.file_rig import JOB, WORK, batch_of, job_committer, left_over, prepared, published, visible
from tests.helpers.python_path import python_path

TIMEOUT_S = 60.0

WRITER = """
import os, sys
from tests.helpers.file_rig import batch_of
from headrace.connectors.files import FileFormat, FileSink
from headrace.connectors.base.sink import Attempt

transaction = FileSink(sys.argv[1], FileFormat(sys.argv[2]), row_group_bytes=1).begin(Attempt("job", 0, 0, 0))
while True:
    transaction.write(batch_of([os.urandom(50).hex() for _ in range(1000)]))
    print("wrote", flush=True)
"""

COMMITTER = """
import sys, time
from tests.helpers.file_rig import job_committer, prepared
from headrace.connectors.files import FileCommitter, FileFormat, FileSink

end, ended = FileCommitter.end, []

def end_and_wait(self, handle):
    if len(ended) == int(sys.argv[3]):
        print("waiting", flush=True)
        time.sleep(3600)
    ended.append(handle)
    return end(self, handle)

FileCommitter.end = end_and_wait
sink = FileSink(sys.argv[1], FileFormat(sys.argv[2]))
job_committer(sink).commit(0, tuple(prepared(sink, 0, task, [f"row-{task}"]) for task in range(3)))
"""


def kill_after_line(code: str, line: str, times: int, *arguments: str) -> None:
    """Run the code in a process, wait until it has printed the line this many times, and kill it."""
    environment = os.environ | {"PYTHONPATH": python_path()}
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            assert [process.stdout.readline().strip() for _ in range(times)] == [line] * times
        finally:
            watchdog.cancel()
            process.kill()
    assert process.returncode == -9


@pytest.mark.parametrize("file_format", FileFormat)
def test_a_writer_killed_in_the_middle(tmp_path, file_format):
    sink = FileSink(str(tmp_path), file_format)
    kill_after_line(WRITER, "wrote", 5, sink.path, file_format.value)
    (torn,) = left_over(sink)
    assert (tmp_path / WORK / JOB / torn).stat().st_size > 0
    assert visible(sink) == []
    job_committer(sink).commit(0, (prepared(sink, 0, 0, ["a", "b"]),))
    assert visible(sink) == ["a", "b"]
    assert left_over(sink) == []


@pytest.mark.parametrize("file_format", FileFormat)
@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_driver_killed_between_two_renames(tmp_path, file_format, ended):
    sink = FileSink(str(tmp_path), file_format)
    kill_after_line(COMMITTER, "waiting", 1, sink.path, file_format.value, str(ended))
    assert visible(sink) == [f"row-{task}" for task in range(ended)]
    assert sink.recorded_epochs() == {JOB: 0}
    replay = tuple(prepared(sink, 0, task, rows, number=1) for task, rows in enumerate([["row-0", "row-1"], ["row-2"]]))
    job_committer(sink).commit(0, replay)
    assert visible(sink) == ["row-0", "row-1", "row-2"]
    assert left_over(sink) == []


class Reader(threading.Thread):
    """Reads the folder again and again, as a stranger does, and keeps what it should never have seen."""

    def __init__(self, sink: FileSink, rows_of_a_file: int) -> None:
        super().__init__()
        self._sink = sink
        self._rows_of_a_file = rows_of_a_file
        self.over = threading.Event()
        self.looks: Counter[int] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                self._look()
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self.error = error

    def _look(self) -> None:
        files = Counter(visible(self._sink))  # every row of a file has the file's epoch and task
        recorded = self._sink.recorded_epochs().get(JOB, -1)  # read later: a list is durable before its files are published
        for name, rows in files.items():
            assert rows == self._rows_of_a_file, f"a partially committed file, or one twice: {name} has {rows} rows"
            assert not name.endswith("loser")
            assert int(name.split(".")[0]) <= recorded, f"{name} is not committed"
        self.looks[len(files)] += 1


@pytest.mark.parametrize("file_format", FileFormat)
def test_a_reader_alongside_it_sees_only_whole_files_of_committed_epochs(tmp_path, file_format):
    epochs, tasks, rows = 25, 3, 2000
    sink = FileSink(str(tmp_path), file_format)
    reader = Reader(sink, rows)
    reader.start()
    try:
        committer = job_committer(sink)
        for epoch in range(epochs):
            prepared(sink, epoch, 0, [f"{epoch}.0.loser"] * rows, number=1)
            committer.commit(epoch, tuple(prepared(sink, epoch, task, [f"{epoch}.{task}"] * rows) for task in range(tasks)))
    finally:
        reader.over.set()
        reader.join(TIMEOUT_S)
    if reader.error is not None:
        raise reader.error
    assert len(reader.looks) > 3, "the reader has seen the folder grow"
    assert Counter(visible(sink)) == {f"{epoch}.{task}": rows for epoch in range(epochs) for task in range(tasks)}


# --- every type that Spark gives ----------------------------------------------------------------------------------------
NEW_YORK = ZoneInfo("America/New_York")
VARIANT = pa.struct([pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)])
MOMENT = datetime(2024, 2, 29, 23, 59, 59, 123456)

# type, value, and what a JSON line says
VALUES: list[tuple[pa.DataType, Any, str]] = [
    (pa.null(), None, "null"), (pa.bool_(), True, "true"), (pa.int8(), -128, "-128"), (pa.int16(), 32767, "32767"),
    (pa.int32(), -(2**31), "-2147483648"), (pa.int64(), 2**63 - 1, "9223372036854775807"), (pa.float32(), 0.1, "0.1"),
    (pa.float32(), float("nan"), '"NaN"'), (pa.float64(), 1e300, "1e+300"), (pa.float64(), float("inf"), '"Infinity"'),
    (pa.float64(), float("-inf"), '"-Infinity"'),
    (pa.decimal128(38, 18), Decimal("12345678901234567890.000000000000000001"), "12345678901234567890.000000000000000001"),
    (pa.decimal128(10, 0), Decimal(7), "7"), (pa.string(), 'é"\n\\\u2028😀', '"é\\"\\n\\\\\u2028😀"'),
    (pa.large_string(), "", '""'), (pa.binary(), b"\x00\xff", '"AP8="'), (pa.large_binary(), b"", '""'),
    (pa.date32(), date(9999, 12, 31), '"9999-12-31"'),
    (pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=ZoneInfo("UTC")), '"2024-02-29T23:59:59.123456Z"'),
    (pa.timestamp("us", "America/New_York"), MOMENT.replace(tzinfo=NEW_YORK), '"2024-03-01T04:59:59.123456Z"'),
    (pa.timestamp("us"), MOMENT, '"2024-02-29T23:59:59.123456"'),
    (pa.time64("ns"), time(23, 59, 59, 123456), '"23:59:59.123456000"'),
    (pa.duration("us"), timedelta(days=1, hours=2, microseconds=5), "\"INTERVAL '1 02:00:00.000005' DAY TO SECOND\""),
    (pa.duration("us"), -timedelta(hours=25), "\"INTERVAL '-1 01:00:00' DAY TO SECOND\""),
    (pa.list_(pa.int32()), [1, None, 3], "[1,null,3]"), (pa.large_list(pa.string()), [], "[]"),
    (pa.list_(pa.list_(pa.string())), [["a"], None, []], '[["a"],null,[]]'),
    (pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": 1, "b": None}, '{"a":1,"b":null}'), (pa.struct([]), {}, "{}"),
    (pa.map_(pa.string(), pa.int32()), [("k", 1), ("l", None)], '{"k":1,"l":null}'),
    (pa.map_(pa.int32(), pa.list_(pa.bool_())), [(1, [True])], '{"1":[true]}'),
    (VARIANT, {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}, '{"value":"DAE=","metadata":"AQAA"}'),
]  # fmt: skip
IN_PARQUET = [(data_type, value) for data_type, value, _ in VALUES if data_type != pa.struct([])]


def named_by_type(item: Any) -> str:
    return str(item) if isinstance(item, pa.DataType) else ""


def written(sink: FileSink, batch: pa.RecordBatch) -> Path:
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(batch)
        transaction.write(batch.slice(1, 1))  # Arrow's slices have offsets, which are easily forgotten
        handle = transaction.prepare()
    assert handle is not None
    job_committer(sink).commit(0, (handle,))
    (name,) = published(sink)
    return Path(sink.path) / name


@pytest.mark.parametrize(("data_type", "value", "text"), VALUES, ids=named_by_type)
def test_json_lines_of_every_type(tmp_path, data_type, value, text):
    batch = pa.record_batch([pa.array([None, value, None, value], data_type)], names=["the column"])
    lines = written(FileSink(str(tmp_path), FileFormat.JSON_LINES), batch).read_bytes().decode().split("\n")
    assert lines == [f'{{"the column":{found}}}' for found in ("null", text, "null", text, text)] + [""]
    assert all(json.loads(line).keys() == {"the column"} for line in lines[:-1])


@pytest.mark.parametrize(("data_type", "value"), IN_PARQUET, ids=named_by_type)
def test_parquet_of_every_type(tmp_path, data_type, value):
    batch = pa.record_batch([pa.array([None, value, None, value], data_type)], names=["the column"])
    found = pq.read_table(written(FileSink(str(tmp_path)), batch))
    assert found.schema.field(0).type == data_type
    wanted = pa.chunked_array([batch.column(0), batch.column(0).slice(1, 1)])
    assert str(found["the column"].to_pylist()) == str(wanted.to_pylist())  # as text: NaN is not equal to itself


def test_columns_side_by_side(tmp_path):
    names = [f"c{number}" for number in range(len(VALUES))]
    arrays = [pa.array([value, None], data_type) for data_type, value, _ in VALUES]
    path = written(FileSink(str(tmp_path), FileFormat.JSON_LINES), pa.record_batch(arrays, names=names))
    first = path.read_text().split("\n")[0]
    assert first == "{" + ",".join(f'"{name}":{text}' for name, (_, _, text) in zip(names, VALUES, strict=True)) + "}"


@pytest.mark.parametrize(("file_format", "data_type"), [
    (FileFormat.JSON_LINES, pa.month_day_nano_interval()),
    (FileFormat.JSON_LINES, pa.list_(pa.struct([("x", pa.month_day_nano_interval())]))),
    (FileFormat.PARQUET, pa.month_day_nano_interval()), (FileFormat.PARQUET, pa.struct([])),
], ids=str)  # fmt: skip
def test_a_type_that_the_format_cannot_hold_is_refused_and_the_column_is_named(tmp_path, file_format, data_type):
    sink = FileSink(str(tmp_path), file_format)
    batch = pa.record_batch([pa.array([1]), pa.array([None], data_type)], names=["fine", "the column"])
    with pytest.raises(UsageError, match="column 'the column'"), sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(batch)
    assert left_over(sink) == []


@pytest.mark.parametrize("file_format", FileFormat)
@pytest.mark.parametrize("names", [["a", "b", "a"], ["s"]])
def test_what_is_named_twice_is_not_written(tmp_path, file_format, names):
    """Readers take one of the two, or refuse the folder."""
    struct = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    batch = pa.record_batch([struct] if names == ["s"] else [pa.array([1])] * 3, names=names)
    with pytest.raises(UsageError, match="once; 'a' comes twice"):
        FileSink(str(tmp_path), file_format).begin(Attempt(JOB, 0, 0, 0)).write(batch)


def test_a_duration_with_more_digits_than_an_interval_is_not_cut(tmp_path):
    with pytest.raises(UsageError, match=r"a duration is written in microseconds.*would lose data"):
        FileSink(str(tmp_path), FileFormat.JSON_LINES).begin(Attempt(JOB, 0, 0, 0)).write(
            pa.record_batch({"d": pa.array([1], pa.duration("ns"))})
        )


def test_row_groups_are_made_of_many_batches(tmp_path):
    sink = FileSink(str(tmp_path), compression="zstd", row_group_bytes=10_000)
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        for _ in range(100):
            transaction.write(batch_of(["x" * 90] * 10))
        handle = transaction.prepare()
    assert handle is not None
    job_committer(sink).commit(0, (handle,))
    metadata = pq.ParquetFile(tmp_path / handle.published).metadata
    assert 5 < metadata.num_row_groups < 20
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert metadata.num_rows == handle.rows == 1000
    assert handle.size == (tmp_path / handle.published).stat().st_size


@pytest.mark.parametrize("file_format", FileFormat)
def test_a_filesystem_of_fsspec(file_format):
    fsspec = pytest.importorskip("fsspec")
    sink = FileSink(f"memory://{uuid4().hex}", file_format)
    committer = job_committer(sink)
    for epoch in range(3):
        prepared(sink, epoch, 0, ["loser"], number=1)
        committer.commit(epoch, tuple(prepared(sink, epoch, task, [f"{epoch}.{task}"] * 10) for task in range(2)))
    wanted = {f"{epoch}.{task}": 10 for epoch in range(3) for task in range(2)}
    assert Counter(visible(sink)) == wanted
    assert left_over(sink) == []
    root, kind = "/" + sink.path.removeprefix("memory://"), "parquet" if file_format is FileFormat.PARQUET else "json"
    found = ds.dataset(root, format=kind, filesystem=fsspec.filesystem("memory")).to_table()
    assert Counter(found["value"].to_pylist()) == wanted
