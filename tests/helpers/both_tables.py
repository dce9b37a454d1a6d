"""What the tests of tables of both formats share: sinks, epochs of batches, and what is in a table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.connectors.base.commit import JobCommitter
from headrace.delta import DeltaSink
from headrace.iceberg import IcebergSink
from headrace.sinks import Attempt
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_table
from tests.helpers.table_rig import JOB, driver

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


def sink_of(kind: str, folder: Path, **options: Any) -> Any:
    return (
        DeltaSink(f"{folder}/table", **options) if kind == "delta" else IcebergSink(TABLE, catalog_of(str(folder)), **options)
    )


def rows_of(kind: str, folder: Path) -> pa.Table:
    return DeltaTable(f"{folder}/table").to_pyarrow_table() if kind == "delta" else iceberg_table(str(folder)).scan().to_arrow()


def prepared_rows(sink: Any, epoch: int, task: int, *batches: pa.RecordBatch) -> Any:
    with sink.begin(Attempt(JOB, epoch, task, 0)) as transaction:
        for batch in batches:
            transaction.write(batch)
        return transaction.prepare()


def commit_rows(sink: Any, epoch: int, *batches: pa.RecordBatch) -> None:
    """An epoch of one task."""
    driver(sink).commit(epoch, (prepared_rows(sink, epoch, 0, *batches),))


def taken_over_by(newer: JobCommitter[Any]) -> Callable[[int, Callable[[], None]], None]:
    """Another driver takes the job over before the second commit."""

    def around(number: int, commit: Callable[[], None]) -> None:
        if number == 2:
            newer.recover()
        commit()

    return around
