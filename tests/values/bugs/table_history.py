"""Injected bugs of tables with a history: what an answer that is lost, or a change in the moment of a commit, makes of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from headrace.connectors.tables import merging
from headrace.connectors.tables.committer import TableCommitter
from headrace.connectors.tables.delta import _LoadedDelta
from headrace.connectors.tables.iceberg import _LoadedIceberg

Injected = Callable[[], AbstractContextManager[Any]]


def a_lost_answer_is_a_refusal() -> AbstractContextManager[Any]:
    """The epoch is committed again, although the table has it."""
    own = TableCommitter._own

    def injected(self: Any) -> Any:
        loaded, marker = own(self)
        return loaded, replace(marker, following=0)

    return patch.object(TableCommitter, "_own", injected)


@contextmanager
def a_merge_is_of_any_version() -> Iterator[None]:
    """One that was made before another process has committed is committed after it."""
    with patch.object(_LoadedDelta, "version", 0), patch.object(_LoadedIceberg, "version", 0):
        yield


def a_rewrite_has_the_columns_of_changes_alone() -> AbstractContextManager[Any]:
    """Other rows of the file lose the columns that the changes, and so the job's rows, do not have."""
    made = merging.completed

    def injected(rows: Any, schema: pa.Schema) -> Any:
        merging_names.clear()
        merging_names.update(rows.schema.names)
        return made(rows, schema)

    kept = merging.without_keys
    merging_names: set[str] = set()

    def without(rows: pa.Table, keys: pa.Table) -> pa.Table:
        found = kept(rows, keys)
        columns = [
            column if field.name in merging_names or not field.nullable else pa.nulls(found.num_rows, field.type)
            for field, column in zip(found.schema, found.columns, strict=True)
        ]
        return pa.table(columns, schema=found.schema)

    @contextmanager
    def both() -> Iterator[None]:
        with patch.object(merging, "completed", injected), patch.object(merging, "without_keys", without):
            yield

    return both()


OF_TABLE_HISTORY: tuple[Injected, ...] = (
    a_lost_answer_is_a_refusal,
    a_merge_is_of_any_version,
    a_rewrite_has_the_columns_of_changes_alone,
)
