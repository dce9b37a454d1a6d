"""The kit on folders of files: what one `write` adds is a file, as a file that was found does not grow."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors.files.read.split import FileSplit
from headrace.enumerator import Boundedness, LazyEnumerator, SharingEnumerator
from headrace.files import FileSource
from headrace.testing import ExternalContext, SourceConformance

GOLDEN = Path(__file__).parents[1] / "unit" / "golden" / "file_split_v1.json"
SPLIT = FileSplit("day=1/a b\udcff.csv", 2000, 1_795_837_143_766_000_001, 1000, 1500, "0123456789abcdef", 3)


class TextContext(ExternalContext):
    """Lines of text."""

    splits_grow = False
    ending = "txt"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._names, self._writes = itertools.count(), itertools.count(1)

    def create_source(self, boundedness: Boundedness) -> FileSource:
        return self.source(watch=boundedness is Boundedness.UNBOUNDED)

    def source(self, **more: Any) -> FileSource:
        schema = pa.schema([("value", pa.string())])
        return FileSource(self._folder.name, format="text", schema=schema, batch_rows=2, **more)

    def create_split(self) -> str:
        return f"{next(self._names):03d}"

    def write(self, split_id: str, values: Sequence[str]) -> None:
        number = next(self._writes)
        path = Path(self._folder.name) / f"{split_id}+{number}.{self.ending}"
        self.write_file(Path(f"{self._folder.name}/.new"), values)
        os.utime(f"{self._folder.name}/.new", (number, number))
        Path(f"{self._folder.name}/.new").rename(path)

    def write_file(self, path: Path, values: Sequence[str]) -> None:
        path.write_text("".join(f"{value}\n" for value in values))

    def values(self, batch: pa.RecordBatch) -> list[str]:
        return batch.column("value").to_pylist()

    def golden_splits(self) -> Sequence[tuple[int, str, Any]]:
        return [(1, GOLDEN.read_text(), SPLIT)]

    def remove_split(self, split_id: str) -> None:
        pytest.skip("a file that was found is not looked for again")

    def close(self) -> None:
        self._folder.cleanup()


class ParquetContext(TextContext):
    """Row groups of two rows."""

    ending = "parquet"

    def source(self, **more: Any) -> FileSource:
        return FileSource(self._folder.name, schema=pa.schema([("value", pa.string())]), batch_rows=2, **more)

    def write_file(self, path: Path, values: Sequence[str]) -> None:
        pq.write_table(pa.table({"value": values}), path, row_group_size=2)


class TestText(SourceConformance):
    assignment = SharingEnumerator

    def create_external_context(self) -> TextContext:
        return TextContext()

    def found(self, external: ExternalContext) -> set[str]:
        with closing(external.create_source(Boundedness.BOUNDED).create_discovery()) as discovery:
            return {split.split_id for split in discovery.initial().added}

    def test_positions_are_published_when_durable(self, external: ExternalContext) -> None:
        """As the kit has it; but the id of a piece is not known before the file is there."""
        external.write("a", ["a", "b"])
        external.write("b", ["c"])
        pieces = self.found(external)
        source = self.observe(external.create_source(Boundedness.BOUNDED))
        run = self.start_run(source)
        self.read_to_end(run)
        assert (source.observed.published, source.observed.finished) == ({}, set())
        run.checkpoint()
        assert source.observed.published.keys() == source.observed.finished == pieces
        run.close()

    def test_finished_splits_are_reported_when_that_is_durable(self, external: ExternalContext) -> None:
        """See above."""


class TestTextAskedFor(TestText):
    assignment = LazyEnumerator


class TestParquet(TestText):
    def create_external_context(self) -> ParquetContext:
        return ParquetContext()

    def test_split_serializer_round_trip(self, external: ExternalContext) -> None:
        """It is of splits, and not of formats."""
