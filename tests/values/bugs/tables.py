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


def columns_with_nan_or_infinity_have_no_bounds() -> AbstractContextManager[Any]:
    made = statistics.delta_statistics

    def injected(rows: int, columns: Any, structs: Any, measured: Any) -> str:
        known = [(name, ends) for measures in measured for name, (_, ends) in measures.items() if ends is not None]
        odd = {name for name, ends in known if types.is_floating(ends.type) and pc.any(pc.is_inf(ends)).as_py()}
        left = [{name: (nulls, None if name in odd else ends) for name, (nulls, ends) in each.items()} for each in measured]
        return made(rows, columns, structs, left)

    return patch.object(delta, "delta_statistics", injected)


def structs_have_no_bounds() -> AbstractContextManager[Any]:
    made = statistics.delta_statistics
    return patch.object(delta, "delta_statistics", lambda rows, columns, structs, measured: made(rows, columns, (), measured))


def bounds_are_those_of_the_first_row_group() -> AbstractContextManager[Any]:
    made = statistics.delta_statistics
    return patch.object(
        delta, "delta_statistics", lambda rows, columns, structs, measured: made(rows, columns, structs, measured[:1])
    )


def a_bound_of_one_row_group_is_that_of_the_file() -> AbstractContextManager[Any]:
    """The library takes those that there are."""

    def injected(footer: Any, index: int, wanted: Any) -> bool:
        groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        return all(statistics.has_bounds(group) or not group.has_min_max for group in groups)

    return patch.object(iceberg, "_has_bounds", injected)


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
    columns_with_nan_or_infinity_have_no_bounds,
    structs_have_no_bounds,
    bounds_are_those_of_the_first_row_group,
    a_bound_of_one_row_group_is_that_of_the_file,
    times_after_the_calendar_are_a_bare_error,
)
CHANGED: Sequence[Injected] = (a_missing_statistic_is_a_bound, null_lists_become_empty_in_a_rewrite)
OF_PARTITIONS: Sequence[Injected] = (rows_of_partitions_alone_are_lost,)
