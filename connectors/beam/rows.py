"""What Beam's sources give, as Arrow: one column for plain values, a column for each name of rows, Arrow as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any

import pyarrow as pa
from apache_beam.utils.timestamp import Duration, Timestamp

from headrace.connectors.beam.values import UNFIT, array_of, cast_exactly, check_nulls, fields_of
from headrace.enumerator.errors import UsageError

VALUE = "value"
_BEAMS: Mapping[type, pa.DataType] = {Timestamp: pa.timestamp("us", "UTC"), Duration: pa.duration("us")}


def table_of(element: object) -> pa.Table | None:
    """An element that is many rows (Beam's Parquet source gives a table for each row group); None for one that is one row."""
    if isinstance(element, pa.Table):
        return element
    return pa.Table.from_batches([element]) if isinstance(element, pa.RecordBatch) else None


def record_batch(elements: Sequence[object], schema: pa.Schema) -> pa.RecordBatch:
    """One row for each of these elements, which are not tables.

    A dict, a Row and a named tuple give their fields by name, a plain tuple gives them by place, and anything else is the only
    column's value. Fields that the schema does not name are left out; values are not changed, but that floating point numbers
    are rounded to the column's. Raises UsageError for what does not fit.
    """
    rows = [_values(element, schema.names) for element in elements]
    return _batch([[row[place] for row in rows] for place in range(len(schema))], schema, _column)


def _column(values: Sequence[Any], wanted: pa.DataType, name: str) -> pa.Array:
    if "date" not in str(wanted):  # Arrow takes a first date for the type of datetimes behind it, too
        with suppress(*UNFIT):
            found = pa.array(values)  # most columns, and the fastest way
            if found.type == wanted:
                return found
    return array_of(values, wanted, name)


def record_batches(table: pa.Table, schema: pa.Schema, rows: int) -> list[pa.RecordBatch]:
    """The table's rows in batches of up to `rows`, by the same rules. Raises UsageError for what does not fit."""
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise UsageError(f"a table of the source has no {', '.join(missing)}; it has {', '.join(table.column_names)}")
    batches = [batch for batch in table.select(schema.names).to_batches(rows) if batch.num_rows]
    return [_batch([batch.column(name) for name in schema.names], schema, cast_exactly) for batch in batches]


def _batch(columns: Sequence[Any], schema: pa.Schema, made: Callable[[Any, pa.DataType, str], pa.Array]) -> pa.RecordBatch:
    arrays = []
    for field, column in zip(schema, columns, strict=True):
        try:
            arrays.append(made(column, field.type, field.name))
            check_nulls(arrays[-1], field, field.name)
        except UNFIT as error:
            raise UsageError(f"column {field.name!r} cannot hold what the source gives as {field.type}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def inferred_schema(elements: Sequence[object]) -> pa.Schema:
    """The schema of elements of one kind, at least one. Raises UsageError where they do not agree, or say too little."""
    first = elements[0]
    table = table_of(first)
    if table is not None:
        return table.schema
    fields = fields_of(first)
    if fields is None and isinstance(first, tuple):
        raise UsageError("the fields of a tuple have no names: give the schema")
    names = [VALUE] if fields is None else list(fields)
    rows = [_values(element, names) for element in elements]
    types = {}
    for place, name in enumerate(names):
        try:
            types[name] = _type([row[place] for row in rows])
        except UNFIT as error:
            raise UsageError(f"the type of column {name!r} cannot be determined ({error}): give the schema") from error
        if pa.types.is_null(types[name]):
            raise UsageError(f"the first {len(rows)} values of column {name!r} are null: give the schema")
    return pa.schema(types.items())


def _type(values: Sequence[Any]) -> pa.DataType:
    kinds = set(map(type, values)) - {NoneType}
    beams = _BEAMS.get(next(iter(kinds))) if len(kinds) == 1 else None
    return pa.array(values).type if beams is None else beams


def _values(element: object, names: Sequence[str]) -> Sequence[Any]:
    fields = fields_of(element)
    if fields is not None:
        missing = [name for name in names if name not in fields]
        if missing:
            raise UsageError(f"a row of the source has no {', '.join(missing)}; it has {', '.join(fields)}")
        return [fields[name] for name in names]
    values = element if isinstance(element, tuple) else (element,)
    if len(values) != len(names):
        raise UsageError(f"the source gives {type(element).__name__}s of {len(values)} for the columns {', '.join(names)}")
    return values
