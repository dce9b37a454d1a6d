"""Whether rows fit a table, by their types alone, so that it is known before any task runs; and how they are made to fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.connectors.base.nested import cast_nested, plain, plain_type
from headrace.connectors.tables.column_types import has_empty_struct
from headrace.connectors.tables.text_lengths import check_lengths
from headrace.enumerator.errors import UsageError

_ROW = "__headrace_row"
_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def fitting_schema(rows: pa.Schema, table: pa.Schema, partitioning: Collection[str], where: str) -> pa.Schema:
    """The table's fields for these columns, in the table's order.

    Raises UsageError naming the column that the table has not, has in another type that cannot hold every value, or needs.
    """
    check_columns(table, rows.names, where)
    if len(set(rows.names)) != len(rows.names):
        raise UsageError(f"{where}: a column comes twice; the columns are {', '.join(rows.names)}")
    for name in partitioning:
        if name not in rows.names:
            raise UsageError(f"{where}: the table is partitioned by {name!r}, which the rows do not have")
    for field in table:
        if field.name not in rows.names:
            if not field.nullable:
                raise UsageError(f"{where}: column {field.name!r} of the table must not be null, and the rows do not have it")
        elif has_empty_struct(field.type):
            raise UsageError(
                f"{where}: column {field.name!r} has a struct without fields, which Parquet does not have: drop it"
            )
        elif not _holds(field.type, plain_type(rows.field(field.name).type)):
            found = rows.field(field.name).type
            raise UsageError(f"{where}: column {field.name!r} is {field.type} in the table, and {found} in the rows: cast it")
    return pa.schema([field for field in table if field.name in rows.names])


def check_columns(schema: pa.Schema, columns: Collection[str], where: str) -> None:
    """Raise UsageError naming the first of these columns that the table has not."""
    for name in columns:
        if name not in schema.names:
            raise UsageError(f"{where}: the table has no column {name!r}; its columns are {', '.join(schema.names)}")


def check_no_twins(added: Iterable[pa.Field], present: Collection[str], where: str) -> None:
    """Raise UsageError for a new column that differs from another one in upper and lower case alone; also for fields in it."""
    known = {name.lower(): name for name in present}
    for field in added:
        twin = known.setdefault(field.name.lower(), field.name)
        if twin != field.name:
            raise UsageError(
                f"{where}: columns {twin!r} and {field.name!r} differ in upper and lower case alone: Delta, and engines that "
                "read tables, take them for one. Rename one of them"
            )
        check_no_twins(map(field.type.field, range(field.type.num_fields)), (), f"{where}, column {field.name!r}")


def check_spelling(found: Iterable[pa.Field], wanted: Collection[pa.Field], where: str) -> None:
    """Raise UsageError for a column or field that a file has in another case alone.

    Engines that compare names without regard to case find it; Arrow does not, and its values would be nulls.
    """
    known, names = {field.name: field for field in found}, {field.name for field in wanted}
    others = {name.lower(): name for name in known if name not in names}
    for field in wanted:
        if field.name in known:
            _check_spelling_within(known[field.name].type, field.type, where)
        elif field.name.lower() in others:
            raise UsageError(
                f"{where} has {others[field.name.lower()]!r} for the table's {field.name!r}, which Arrow does not find. Let "
                "the engine that has written the file write it again"
            )


def _check_spelling_within(found: pa.DataType, wanted: pa.DataType, where: str) -> None:
    if types.is_struct(found) and types.is_struct(wanted):
        check_spelling(found, list(wanted), where)
    elif types.is_map(found) and types.is_map(wanted):
        _check_spelling_within(found.key_type, wanted.key_type, where)
        _check_spelling_within(found.item_type, wanted.item_type, where)
    elif hasattr(found, "value_type") and hasattr(wanted, "value_type"):
        _check_spelling_within(found.value_type, wanted.value_type, where)


def can_partition(kind: pa.DataType) -> bool:
    """Whether a table can be partitioned by such a column as it is."""
    return bool(types.is_string(kind) or types.is_integer(kind) or types.is_boolean(kind) or types.is_date(kind))


def check_partition_columns(schema: pa.Schema, partition_by: Collection[str], where: str) -> None:
    """Raise UsageError naming what a new table of these columns cannot be partitioned by."""
    for name in partition_by:
        check_is_column(schema, name, where)
        if not can_partition(schema.field(name).type):
            kind = schema.field(name).type
            raise UsageError(f"{where}: {name!r} is {kind}: partitions are by text, integers, booleans or dates")
    if len(set(partition_by)) < len(partition_by):
        raise UsageError(f"{where}: partitions are by columns, each named once, not {', '.join(partition_by)}")


def check_is_column(schema: pa.Schema, name: str, where: str) -> None:
    """Raise UsageError for what a new table cannot be partitioned by, as it is no column or a field in one."""
    if schema.names.count(name) == 1:
        return
    outer = name.partition(".")[0]
    if outer in schema.names:
        raise UsageError(
            f"{where}: {name!r} is a field in column {outer!r}, and partitions are made of whole columns: add a column with "
            "its values, and partition by that"
        )
    raise UsageError(f"{where}: {name!r} is not among the columns, of which partitions are made: {', '.join(schema.names)}")


def fitted(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """The rows in the types of a `fitting_schema`. Raises UsageError for a null, or a longer text, than it may have."""
    columns = []
    for field in schema:
        column = plain(batch.column(field.name))
        if column.null_count and not field.nullable:
            raise UsageError(f"{where}: column {field.name!r} of the table must not be null, and a row has a null there")
        columns.append(column if column.type == field.type else _cast(column, field, where))
        check_lengths(columns[-1], field, where)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def new_columns(rows: pa.Schema, table: pa.Schema) -> pa.Schema:
    """The columns of rows that the table does not have, nullable."""
    return pa.schema([field.with_nullable(nullable=True) for field in rows if field.name not in table.names])


def as_now(rows: pa.Table, schema: pa.Schema, path: str) -> pa.Table:
    """Rows of a file as the table has them now. Raises UsageError where they have nulls that it no longer allows."""
    try:
        return rows.cast(schema)
    except ValueError as error:
        raise UsageError(
            f"headrace cannot replace rows of the file {path!r}, which does not fit the table: {error}. Alter the table, or "
            "let the engine that has altered it change the file"
        ) from error


def completed(rows: _Rows, schema: pa.Schema) -> _Rows:
    """The columns of this schema; those that the rows do not have are null."""
    names = frozenset(rows.schema.names)
    columns = [rows.column(field.name) if field.name in names else pa.nulls(rows.num_rows, field.type) for field in schema]
    return type(rows).from_arrays(columns, schema=schema)


def partitions_of(batch: pa.RecordBatch, keys: Sequence[pa.Array]) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    """The values of these columns, which are as long as the batch, and the rows that have them, in their order."""
    if not keys:
        yield (), batch
        return
    names = [str(at) for at in range(len(keys))]
    numbered = pa.table([*keys, row_numbers(batch.num_rows)], names=[*names, _ROW])
    groups = numbered.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    for group in range(groups.num_rows):
        values = tuple(_value(groups.column(name)[group]) for name in names)
        yield values, batch.take(groups.column(f"{_ROW}_list")[group].values)


def _value(partition: pa.Scalar) -> object:
    try:
        return partition.as_py()
    except OverflowError as error:
        raise UsageError(f"a date of a partition, {partition.value} days after 1970, is not in the years 1 to 9999") from error


def row_numbers(count: int) -> pa.Array:
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)


def _cast(column: pa.Array, field: pa.Field, where: str) -> pa.Array:
    try:
        if isinstance(field.type, pa.UuidType):
            return pa.array([None if text is None else UUID(text).bytes for text in column.to_pylist()], field.type)
        # safe: it raises where a value would change
        return cast_nested(column, field.type) if types.is_nested(column.type) else pc.cast(column, field.type)
    except (pa.ArrowException, ValueError, UsageError) as error:
        raise UsageError(f"{where}: column {field.name!r}: {error}") from error


def _holds(wanted: pa.DataType, found: pa.DataType) -> bool:
    """Whether every value of `found` is one of `wanted`; of timestamps, every one that is not finer than the table's."""
    if wanted == found:
        return True
    if isinstance(wanted, pa.UuidType):
        return _is_text(found)
    if types.is_fixed_size_binary(wanted):  # the length is checked value by value
        return bool(types.is_binary(found) or types.is_large_binary(found))
    for is_kind in _LIKE:
        if is_kind(wanted):
            return bool(is_kind(found))
    if types.is_timestamp(wanted):
        return bool(types.is_timestamp(found) and (wanted.tz is None) == (found.tz is None))
    if types.is_decimal(wanted) and types.is_decimal(found):
        return bool(wanted.scale >= found.scale and wanted.precision - wanted.scale >= found.precision - found.scale)
    if types.is_struct(wanted) or types.is_map(wanted) or _is_list(wanted):
        return _holds_nested(wanted, found)
    return _is_wider(wanted, found)


def _holds_nested(wanted: pa.DataType, found: pa.DataType) -> bool:
    if types.is_struct(wanted) and types.is_struct(found):
        if [field.name for field in wanted] != [field.name for field in found]:
            return False
        return all(_holds(wanted.field(at).type, found.field(at).type) for at in range(wanted.num_fields))
    if types.is_map(wanted) and types.is_map(found):
        return _holds(wanted.key_type, found.key_type) and _holds(wanted.item_type, found.item_type)
    return _is_list(wanted) and _is_list(found) and _holds(wanted.value_type, found.value_type)


def _is_wider(wanted: pa.DataType, found: pa.DataType) -> bool:
    if types.is_integer(found) and types.is_decimal(wanted):
        most_digits = len(str(2 ** (found.bit_width - types.is_signed_integer(found))))
        return bool(wanted.precision - wanted.scale >= most_digits)
    if types.is_unsigned_integer(found):
        return bool(types.is_signed_integer(wanted) and wanted.bit_width > found.bit_width)
    if types.is_signed_integer(wanted):
        return bool(types.is_signed_integer(found) and wanted.bit_width > found.bit_width)
    if types.is_floating(wanted):
        return bool(types.is_floating(found) and wanted.bit_width >= found.bit_width)
    if types.is_time(wanted):
        return bool(types.is_time(found))  # a finer one is checked value by value, as timestamps are
    return bool(types.is_date32(wanted) and types.is_date64(found))


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


_LIKE = (_is_text, _is_bytes)
