"""Which types a new table's columns have, so that they hold every value of the rows they are made for."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyarrow import types

from headrace.connectors.base.nested import plain_type
from headrace.enumerator.errors import UsageError

OwnType = Callable[[pa.DataType], "pa.DataType | None"]
"""What a table format makes of a type of fixed length or a time; None if it has no such type."""

_MOST_DIGITS = 38


def table_schema(rows: pa.Schema, own: OwnType, where: str) -> pa.Schema:
    """Unsigned integers get a wider type, timestamps are microseconds, with a zone in UTC.

    Without metadata: where the rows are of another table, it has rules and ids of that one.
    Raises UsageError naming a column of a type that the format does not have.
    """
    fields = []
    if len(set(rows.names)) < len(rows.names):
        raise UsageError(f"{where}: a table has each column once; the columns are {', '.join(rows.names)}")
    for field in rows:
        kind = _table_type(plain_type(field.type), own)
        if kind is None or has_empty_struct(kind):
            why = "a struct without fields" if has_empty_struct(field.type) else str(field.type)
            raise UsageError(
                f"{where}: column {field.name!r} is {why}, which a table of this format cannot have: cast or drop it"
            )
        fields.append(_plain(field, kind))
    return pa.schema(fields)


def has_empty_struct(kind: pa.DataType) -> bool:
    """Parquet has none, at any depth."""
    if types.is_struct(kind) and not kind.num_fields:
        return True
    return any(has_empty_struct(kind.field(at).type) for at in range(kind.num_fields)) if types.is_nested(kind) else False


def _plain(field: pa.Field, kind: pa.DataType) -> pa.Field:
    said = {key: text for key, text in (field.metadata or {}).items() if key in (b"comment", b"doc")}
    return pa.field(field.name, kind, field.nullable, said or None)


def _table_type(kind: pa.DataType, own: OwnType) -> pa.DataType | None:
    if types.is_nested(kind):
        return _nested_type(kind, own)
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType):
        return None  # those that a user defines in Python have no hash
    if kind in _WIDENED:
        return _WIDENED[kind]
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if types.is_decimal(kind):
        is_had = kind.precision <= _MOST_DIGITS and 0 <= kind.scale <= kind.precision
        return pa.decimal128(kind.precision, kind.scale) if is_had else None
    if types.is_fixed_size_binary(kind) or types.is_time(kind) or isinstance(kind, pa.UuidType):
        return own(kind)
    return kind if any(is_kind(kind) for is_kind in _AS_THEY_ARE) else None


def _nested_type(kind: pa.DataType, own: OwnType) -> pa.DataType | None:
    if types.is_map(kind):
        key, item = _table_type(kind.key_type, own), _table_type(kind.item_type, own)
        return None if key is None or item is None else pa.map_(_plain(kind.key_field, key), _plain(kind.item_field, item))
    found = [_table_type(kind.field(at).type, own) for at in range(kind.num_fields)]
    fields = [_plain(kind.field(at), made) for at, made in enumerate(found) if made is not None]
    if len(fields) < len(found) or len({field.name for field in fields}) < len(fields):
        return None
    if types.is_struct(kind):
        return pa.struct(fields)
    return pa.list_(fields[0]) if types.is_list(kind) or types.is_large_list(kind) else None


_WIDENED = {
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}
_AS_THEY_ARE = (types.is_boolean, types.is_signed_integer, types.is_floating, types.is_date32, types.is_string, types.is_binary)
