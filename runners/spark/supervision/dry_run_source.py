"""What `format("headrace")` does in a dry run (supervision/dry run.py): it reads a few records, and writes none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.connectors.base import capabilities
from headrace.connectors.base.sink import TwoPhaseSink

log = logging.getLogger(__name__)

DRY_RUN = "headraceDryRun"  # the option that a standby sets on what its job reads and writes
ROWS = 1000  # about this many records are read in a batch of a dry run


def is_dry_run(options: Mapping[str, str]) -> bool:
    """Spark hands options over with their names in lower case."""
    return any(name.lower() == DRY_RUN.lower() for name in options)


@contextmanager
def under_way() -> Iterator[None]:
    """Meanwhile this process calls a job for a dry run. In its main thread."""
    global _under_way  # noqa: PLW0603 - of the process, as the job is
    _under_way = True
    try:
        yield
    finally:
        _under_way = False


def is_under_way() -> bool:
    return _under_way


_under_way = False


def looked(look: Callable[[TwoPhaseSink[Any]], None], sink: TwoPhaseSink[Any]) -> None:
    """Have a sink look at its destination in this process. What it fails with is for the job that writes to meet."""
    try:
        look(sink)
    except Exception as error:  # noqa: BLE001 - whatever a sink raises
        log.debug("a dry run continues without a check at where it would write: %s", error)


class DryRunWriter(DataSourceStreamArrowWriter):
    """Takes rows and drops them. Each process that it comes to, as a real one would, only looks at the destination."""

    def __init__(self, sink: TwoPhaseSink[Any]) -> None:
        self._sink = sink

    def __getstate__(self) -> dict[str, Any]:
        looked(capabilities.warm_driver, self._sink)
        return {"_sink": self._sink}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        looked(capabilities.warm, self._sink)
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        looked(capabilities.warm_driver, self._sink)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver. There is nothing to abort."""
