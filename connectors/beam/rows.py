"""What Beam's sources give, as Arrow: one column for plain values, a column for each name of rows, Arrow as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from apache_beam.pvalue import Row

from headrace.enumerator.errors import UsageError

__all__ = ["inferred_schema", "record_batch", "table_of"]

VALUE = "value"
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)


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
    columns = []
    for place, field in enumerate(schema):
        try:
            columns.append(_column([row[place] for row in rows], field.type))
        except (*_UNFIT, OverflowError) as error:
            raise UsageError(f"column {field.name!r} cannot hold what the source gives as {field.type}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: Sequence[object], wanted: pa.DataType) -> pa.Array:
    """The values in this type. Raises ArrowInvalid or ArrowTypeError where one would change, but by rounding to a float."""
    try:
        plain = pa.array(values)
    except _UNFIT:  # of several kinds, or of one that only the wanted type shows, such as maps
        return pa.array(values, wanted)
    if plain.type == wanted:
        return plain
    column = pa.array(values, wanted)  # which cuts 1.5 to an integer 1, and a datetime to its date, without a word
    with suppress(pa.ArrowNotImplementedError, pa.ArrowTypeError):
        plain.cast(wanted)
        if not pa.types.is_floating(wanted) and not column.cast(plain.type).equals(plain):
            raise pa.ArrowInvalid(f"values of {plain.type} would be cut")
    return column


def inferred_schema(elements: Sequence[object]) -> pa.Schema:
    """The schema of elements of one kind, at least one. Raises UsageError where they do not agree, or say too little."""
    first = elements[0]
    table = table_of(first)
    if table is not None:
        return table.schema
    fields = _fields(first)
    if fields is None and isinstance(first, tuple):
        raise UsageError("the fields of a tuple have no names: give the schema")
    names = [VALUE] if fields is None else list(fields)
    rows = [_values(element, names) for element in elements]
    columns = {}
    for place, name in enumerate(names):
        try:
            columns[name] = pa.array([row[place] for row in rows])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UsageError(f"the type of column {name!r} cannot be determined ({error}): give the schema") from error
        if pa.types.is_null(columns[name].type):
            raise UsageError(f"the first {len(rows)} values of column {name!r} are null: give the schema")
    return pa.schema([(name, column.type) for name, column in columns.items()])


def _fields(element: object) -> Mapping[str, Any] | None:
    """A row's fields by name; None for what is not a row, and for a plain tuple."""
    if isinstance(element, Mapping):
        return element
    if isinstance(element, Row):
        return dict(element.as_dict())
    as_dict = getattr(element, "_asdict", None) if isinstance(element, tuple) else None
    return None if as_dict is None else dict(as_dict())


def _values(element: object, names: Sequence[str]) -> Sequence[Any]:
    fields = _fields(element)
    if fields is not None:
        missing = [name for name in names if name not in fields]
        if missing:
            raise UsageError(f"a row of the source has no {', '.join(missing)}; it has {', '.join(fields)}")
        return [fields[name] for name in names]
    values = element if isinstance(element, tuple) else (element,)
    if len(values) != len(names):
        raise UsageError(f"the source gives {type(element).__name__}s of {len(values)} for the columns {', '.join(names)}")
    return values
