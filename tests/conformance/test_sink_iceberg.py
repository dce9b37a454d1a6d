"""The kit of sinks on Iceberg tables in a SQL catalog."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.tables.handles import TableHandle
from headrace.iceberg import IcebergSink
from headrace.testing import SinkConformance, SinkContext
from tests.conformance.test_sink_delta import golden_handles
from tests.helpers.iceberg_rig import catalog_of, iceberg_paths, iceberg_values
from tests.helpers.table_rig import VALUES, batch_of, open_marks


class IcebergContext(SinkContext):
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="headrace-kit-")
        self.create_sink().create_table(VALUES)

    def create_sink(self) -> IcebergSink:
        return IcebergSink("shop.orders", catalog_of(self.folder.name))

    def batch(self, values: Sequence[str]) -> pa.RecordBatch:
        return batch_of(values)

    def visible(self) -> list[str]:
        return iceberg_values(self.folder.name)

    def unended(self, job: str) -> int:
        return len(open_marks(f"{self.folder.name}/shop/orders", job))

    def golden_handles(self) -> Sequence[tuple[int, str, Any]]:
        return golden_handles()

    def abort_prepared(self, handle: TableHandle) -> None:
        paths = [Path(self.folder.name) / "shop" / "orders" / file.path for file in handle.files]
        if paths[0].as_posix() in iceberg_paths(self.folder.name):
            pytest.skip("what is recorded is committed to the table: there is nothing left to abort")
        for path in paths:
            path.unlink()

    def close(self) -> None:
        self.folder.cleanup()


class TestIceberg(SinkConformance):
    def create_external_context(self) -> IcebergContext:
        return IcebergContext()
