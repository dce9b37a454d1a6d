"""A Delta table written from Beam on a real Flink, read by DuckDB: exactly once through a SIGKILL and a new submission."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pytest

from benchmarks.tables_soak import Reader
from headrace.beam import WriteExactlyOnce
from headrace.delta import DeltaSink
from headrace.testing.servers.flink import FlinkCluster
from tests.helpers.flink_rig import Numbers, job, kill_and_restart
from tests.helpers.table_rig import delta_paths
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.flink, pytest.mark.timeout(300)]
SCHEMA = pa.schema([("number", pa.int64())])


class Table:
    """A table of numbers, and what DuckDB sees in it."""

    def __init__(self, folder: Path, reader: Reader) -> None:
        self.folder, self._reader = folder, reader
        self.sink = DeltaSink(f"{folder}/table")
        self.sink.create_table(SCHEMA)

    def written_by(self, end: int) -> Callable[[beam.Pipeline], None]:
        started, sink = str(self.folder / "begun"), self.sink

        def build(pipeline: beam.Pipeline) -> None:
            numbers = pipeline | beam.Impulse() | beam.ParDo(Numbers(started, end=end, per_call=50))
            batches = beam.Map(lambda number: pa.RecordBatch.from_pydict({"number": [number]}))
            rows = numbers | batches.with_output_types(pa.RecordBatch)
            _ = rows | WriteExactlyOnce(sink)

        return build

    def numbers(self) -> list[int]:
        rows = self._reader.query("SELECT number FROM {} ORDER BY number", "delta", str(self.folder)).fetchall()
        return [number for (number,) in rows]

    def seen(self) -> int:
        numbers = self.numbers()
        assert len(numbers) == len(set(numbers))
        return len(numbers)

    def files_of_nobody(self) -> set[str]:
        root = Path(self.sink.uri)
        return {str(path.relative_to(root)) for path in root.glob("part-*/**/*.parquet")} - set(delta_paths(str(root)))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    reader = Reader()
    yield Table(tmp_path, reader)
    reader.close()


def test_each_row_is_in_the_table_once_after_a_kill(flink: FlinkCluster, table: Table) -> None:
    end = 250
    with job(flink, table.written_by(end)) as running:
        eventually(table.seen)
        assert table.seen() < end, "nothing is left for after the kill"
        kill_and_restart(flink, running)
        eventually(lambda: table.seen() == end)
    assert table.numbers() == list(range(end))


@pytest.mark.long
def test_each_row_is_in_the_table_once_after_a_kill_a_savepoint_and_a_new_submission(flink, table, tmp_path):
    end = 1000
    with job(flink, table.written_by(end)) as first:
        eventually(table.seen)
        kill_and_restart(flink, first)
        restored = table.seen()
        eventually(lambda: table.seen() > restored)
        assert table.seen() < end, "nothing is left for after the savepoint"
        savepoint = flink.savepoint(first)
    with job(flink, table.written_by(end), savepoint=savepoint):
        eventually(lambda: table.seen() == end, seconds=120)
        assert table.numbers() == list(range(end))
        eventually(lambda: table.files_of_nobody() == set(), seconds=90)
    assert (tmp_path / "begun").read_text() == "begun\n"
