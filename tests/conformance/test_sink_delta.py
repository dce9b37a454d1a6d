"""The kit of sinks on Delta tables; and injected bugs, which it must catch."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.handles import DataFile, TableHandle
from headrace.delta import DeltaSink
from headrace.sinks import Attempt
from headrace.testing import SinkConformance, SinkContext
from tests.helpers.table_rig import VALUES, batch_of, delta_paths, delta_values, open_marks, unadded_transactions
from tests.simulation.bugs.in_sinks import CAUGHT_BY, PassingSink, assert_caught

GOLDEN = {
    "job": "query-1", "epoch": 7, "task": 3, "number": 1, "token": "0123456789abcdef",
    "table": "f3009e8c-fd18-4ecf-94d0-d8591a2f697a", "columns": [["value", "string"], ["day", "date32[day]"]],
    "partitioning": ["day"],
    "files": [["part-query-1/7-3-1-0123456789abcdef/00000.parquet", 1 << 40, 1000, [["day", None]], '{"numRecords":1000}']],
    "changes": None,
}  # fmt: skip
HANDLE = TableHandle(
    Attempt("query-1", 7, 3, 1), "0123456789abcdef", "f3009e8c-fd18-4ecf-94d0-d8591a2f697a",
    (("value", "string"), ("day", "date32[day]")), ("day",),
    (DataFile("part-query-1/7-3-1-0123456789abcdef/00000.parquet", 1 << 40, 1000, (("day", None),), '{"numRecords":1000}'),),
)  # fmt: skip


def golden_handles() -> Sequence[tuple[int, str, Any]]:
    changes = {"keys": ["value"], "sequence": ["offset"], "change_type": "op"}
    staged = replace(HANDLE, changes=Changes(("value",), ("offset",), "op"))
    return [(1, json.dumps(GOLDEN), HANDLE), (1, json.dumps({**GOLDEN, "changes": changes}), staged)]


class DeltaContext(SinkContext):
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="headrace-kit-")
        self.create_sink().create_table(VALUES)

    def create_sink(self) -> DeltaSink:
        return DeltaSink(self.folder.name)

    def batch(self, values: Sequence[str]) -> pa.RecordBatch:
        return batch_of(values)

    def visible(self) -> list[str]:
        return delta_values(self.folder.name)

    def unended(self, job: str) -> int:
        return len(open_marks(self.folder.name, job) | unadded_transactions(self.folder.name, job))

    def golden_handles(self) -> Sequence[tuple[int, str, Any]]:
        return golden_handles()

    def abort_prepared(self, handle: TableHandle) -> None:
        if handle.files[0].path in delta_paths(self.folder.name):
            pytest.skip("what is recorded is committed to the table: there is nothing left to abort")
        for file in handle.files:
            (Path(self.folder.name) / file.path).unlink()

    def close(self) -> None:
        self.folder.cleanup()


class TestDelta(SinkConformance):
    def create_external_context(self) -> DeltaContext:
        return DeltaContext()


HARMLESS = {
    # an epoch is committed when it is recorded: `end` has nothing left to do, and nothing is left that could be aborted
    "EndDoesNothing",
    "AbortedTakenForCommitted",
}


@pytest.mark.parametrize("bug", [bug for bug in CAUGHT_BY if bug.__name__ not in HARMLESS], ids=lambda bug: bug.__name__)
def test_the_kit_catches(bug: type[PassingSink]):
    assert_caught(TestDelta(), bug)
