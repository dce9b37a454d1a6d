"""The kit of sinks on folders: local ones of both formats, and fsspec's; and injected bugs, which it must catch."""

import json
import tempfile
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.files import FileHandle
from headrace.connectors.files.store import open_store
from headrace.files import FileFormat, FileSink
from headrace.sinks import Attempt
from headrace.testing import SinkConformance, SinkContext
from tests.helpers.file_rig import WORK, batch_of, visible
from tests.simulation.bugs.in_sinks import CAUGHT_BY, PassingSink, assert_caught

GOLDEN = {
    "job": "query-1", "epoch": 7, "task": 3, "number": 1, "token": "0123456789abcdef", "format": "parquet", "rows": 1000,
    "size": 1 << 40,
}  # fmt: skip


class FileContext(SinkContext):
    def __init__(self, path: str, file_format: FileFormat) -> None:
        self.path, self.format = path, file_format

    def create_sink(self) -> FileSink:
        return self.sink()

    def sink(self) -> FileSink:
        return FileSink(self.path, self.format)

    def batch(self, values: Sequence[str]) -> pa.RecordBatch:
        return batch_of(values)

    def visible(self) -> list[str]:
        return visible(self.sink())

    def unended(self, job: str) -> int:
        return len(list(self._store().names(f"{WORK}/{job}")))

    def golden_handles(self) -> Sequence[tuple[int, str, Any]]:
        handle = FileHandle(Attempt("query-1", 7, 3, 1), "0123456789abcdef", FileFormat.PARQUET, 1000, 1 << 40)
        return [(1, json.dumps(GOLDEN), handle)]

    def abort_prepared(self, handle: FileHandle) -> None:
        self._store().remove(f"{WORK}/{handle.attempt.job}/{handle.temporary}")

    def _store(self) -> Any:
        return open_store(self.path, {})


class LocalContext(FileContext):
    def __init__(self, file_format: FileFormat) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="headrace-kit-")
        super().__init__(self.folder.name, file_format)

    def close(self) -> None:
        self.folder.cleanup()


class TestParquet(SinkConformance):
    def create_external_context(self) -> FileContext:
        return LocalContext(FileFormat.PARQUET)


class TestJsonLines(SinkConformance):
    def create_external_context(self) -> FileContext:
        return LocalContext(FileFormat.JSON_LINES)


class TestFsspec(SinkConformance):
    def create_external_context(self) -> FileContext:
        return FileContext(f"memory://kit-{uuid.uuid4().hex[:8]}", FileFormat.PARQUET)


@pytest.mark.parametrize("bug", CAUGHT_BY, ids=lambda bug: bug.__name__)
def test_the_kit_catches(bug: type[PassingSink]):
    assert_caught(TestParquet(), bug)
