"""A sink and a transform of runs into a table in tests: their processes import them from here."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.connectors.base.sink import Attempt
from headrace.connectors.sql.handles import SqlHandle
from headrace.connectors.sql.sink import SqlTransaction
from headrace.sql import SqlSink


def rows_of_a_table(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A number in each value: `id` and `name`."""
    values = batch.column("value").cast(pa.string())
    return pa.record_batch({"id": values.cast(pa.int64()), "name": values})


@dataclass(frozen=True, repr=False)
class DiesPreparedSink(SqlSink):
    """While the file `armed` is there the first worker that has prepared is killed, before it can tell any process."""

    armed: str = ""

    def begin(self, attempt: Attempt) -> SqlTransaction:
        transaction = super().begin(attempt)
        prepare = transaction.prepare

        def killed() -> SqlHandle | None:
            handle = prepare()
            try:
                Path(self.armed).unlink()
            except FileNotFoundError:
                return handle
            os.kill(os.getpid(), signal.SIGKILL)
            return None

        transaction.prepare = killed  # type: ignore[method-assign]
        return transaction
