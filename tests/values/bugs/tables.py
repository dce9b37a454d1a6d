"""Injected bugs of tables: what the log has of values, which files a change looks into, what a rewrite makes of other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan

from headrace.connectors.tables import delta, iceberg, statistics, writing

Injected = Callable[[], AbstractContextManager[Any]]


def a_missing_statistic_is_a_bound() -> AbstractContextManager[Any]:
    """Of the file that has it: a change by key skips the file. Booleans and long texts have none."""
    filled = SimpleNamespace(**vars(pc))
    filled.fill_null = lambda values, fill_value: pc.fill_null(values, not fill_value)
    return _both(
        _without_ends(lambda column: types.is_boolean(column.type) or _longest(column) > 64), patch.object(delta, "pc", filled)
    )


def booleans_have_no_bounds() -> AbstractContextManager[Any]:
    return _without_ends(lambda column: types.is_boolean(column.type))


def long_texts_have_no_bounds() -> AbstractContextManager[Any]:
    """As in Parquet's footer."""
    return _without_ends(lambda column: _longest(column) > 4096)


def structs_have_no_bounds() -> AbstractContextManager[Any]:
    made = statistics.delta_statistics
    return patch.object(delta, "delta_statistics", lambda rows, columns, structs, measured: made(rows, columns, (), measured))


def bounds_are_those_of_the_first_row_group() -> AbstractContextManager[Any]:
    made = statistics.delta_statistics
    return patch.object(
        delta, "delta_statistics", lambda rows, columns, structs, measured: made(rows, columns, structs, measured[:1])
    )


def times_after_the_calendar_are_a_bare_error() -> AbstractContextManager[Any]:
    return patch.object(iceberg, "has_bounds", lambda group: bool(group.num_values and group.has_min_max and group.max) or True)


def rows_of_partitions_alone_are_lost() -> AbstractContextManager[Any]:
    def injected(self: Any, schema: pa.Schema) -> pa.Schema:
        return pa.schema([column for column in schema if column.name not in self._partitioning])

    flush = writing._File._flush

    def flushed(self: Any) -> None:
        if len(self._schema):
            flush(self)
        else:
            self._measured.append({})

    return _both(patch.object(delta._DeltaFiles, "columns", injected), patch.object(writing._File, "_flush", flushed))


def null_lists_become_empty_in_a_rewrite() -> AbstractContextManager[Any]:
    """By the library's own scan."""

    def injected(table: Any, task: Any) -> pa.Table:
        return ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task])

    return patch.object(iceberg, "read_as_it_is", injected)


def _without_ends(is_left_out: Callable[[pa.ChunkedArray], bool]) -> AbstractContextManager[Any]:
    ends = statistics._ends
    return patch.object(statistics, "_ends", lambda column: pa.nulls(2, column.type) if is_left_out(column) else ends(column))


def _longest(column: pa.ChunkedArray) -> int:
    return (pc.max(pc.binary_length(column)).as_py() or 0) if types.is_string(column.type) else 0


@contextmanager
def _both(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> Iterator[None]:
    with first, second:
        yield


APPENDED: Sequence[Injected] = (
    booleans_have_no_bounds,
    long_texts_have_no_bounds,
    structs_have_no_bounds,
    bounds_are_those_of_the_first_row_group,
    times_after_the_calendar_are_a_bare_error,
)
CHANGED: Sequence[Injected] = (a_missing_statistic_is_a_bound, null_lists_become_empty_in_a_rewrite)
OF_PARTITIONS: Sequence[Injected] = (rows_of_partitions_alone_are_lost,)
