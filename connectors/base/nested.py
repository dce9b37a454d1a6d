"""Columns as others see them: Arrow's casts also look at what is beneath nulls, or outside of a slice."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.enumerator.errors import UsageError

_Answer = TypeVar("_Answer")
_MOST_BYTES = 2**31 - 1
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def _cached(ask: Callable[[pa.DataType], _Answer]) -> Callable[[pa.DataType], _Answer]:
    """The function with a cache. Extension types are left out of it: those that a user defines in Python have no hash."""
    remembered = lru_cache(maxsize=1024)(ask)
    return lambda kind: ask(kind) if isinstance(kind, pa.BaseExtensionType) else remembered(kind)


@_cached
def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of what is in dictionaries, runs and views, at any depth: what a sink asks of a type, it asks of this one."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return kind
    if all(plain_type(each.type) == each.type for each in _fields_of(kind)):
        return _VIEWS.get(kind, kind)
    if types.is_fixed_size_list(kind):  # with views Arrow casts it to one of this size only
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    return with_types(kind, plain_type)


def is_view(kind: pa.DataType) -> bool:
    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def plain(values: pa.Array) -> pa.Array:
    """The values in the `plain_type`, in which nulls are counted, and of which Arrow has all kernels."""
    kind = plain_type(values.type)
    if values.type == kind:
        return values
    found = unencoded(values)
    return found if found.type == kind else cast_nested(found, kind)


def plain_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with plain columns."""
    if all(plain_type(kind) == kind for kind in rows.schema.types):
        return rows
    fields = [field.with_type(plain_type(field.type)) for field in rows.schema]
    return pa.RecordBatch.from_arrays(list(map(plain, rows.columns)), schema=pa.schema(fields, rows.schema.metadata))


def visible(values: pa.Array) -> pa.Array:
    """The same values in the same type, with nothing else in their buffers, but for fields that are never null."""
    kind = values.type
    if types.is_struct(kind) and kind.num_fields:
        return pa.StructArray.from_arrays(
            list(map(visible, _fields(values))), fields=list(kind), mask=values.is_null() if values.null_count else None
        )
    if types.is_list(kind) or types.is_large_list(kind):
        return type(values).from_arrays(_offsets(values), visible(_items(values)), type=kind)
    if types.is_map(kind):
        return pa.MapArray.from_arrays(_offsets(values), *map(visible, _keys_and_items(values)), type=kind)
    return values


def record_fields(record: pa.StructArray) -> list[pa.Array]:
    """The fields of records, null where these are. (Arrow ends the process where it does that to a union.)"""
    fields = [record.field(place) for place in range(record.type.num_fields)]
    if not record.null_count:
        return fields
    unions = [place for place, each in enumerate(record.type) if types.is_union(each.type)]
    others = [place for place in range(len(fields)) if place not in unions]
    names = list(map(str, others))
    shown = pa.StructArray.from_arrays([fields[place] for place in others], names=names, mask=record.is_null()).flatten()
    for place, field in zip(others, shown, strict=True):
        fields[place] = field
    for place in unions:
        fields[place] = pc.if_else(record.is_valid(), fields[place], pa.nulls(len(record), fields[place].type))
    return fields


def without_hidden_nulls(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with no null in a field that is never null, where it is hidden as its record is null.

    Engines have such records, and pyarrow's Parquet writer looks at the field alone. Raises UsageError for any other
    null in such a field or column, of which the writer makes an empty list.
    """
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not field.nullable and column.null_count:
            raise _never_null(field)
    if not any(map(_has_required_field, rows.schema.types)):
        return rows
    columns = [
        _required(visible(column), column.type, None) if _has_required_field(column.type) else column for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def cast_nested(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in another type, whose fields that are never null may be null where their record is.

    Raises ArrowInvalid where a value would change, and UsageError for any other null in such a field.
    """
    # Arrow ends the process where it casts a map that was filtered, and not where that was copied.
    cast = pa.concat_arrays([visible(values)]).cast(_nullable(kind))
    return _required(visible(cast), kind, None) if _has_required_field(kind) else cast


def unencoded(values: pa.Array) -> pa.Array:
    """The values without runs, and without dictionaries of more than a number: Arrow casts none, or not of many texts."""
    kind = values.type
    if not _is_encoded(kind):
        return values
    if types.is_run_end_encoded(kind):
        places = pa.RunEndEncodedArray.from_arrays(values.run_ends, pa.array(range(len(values.values)), pa.int64()))
        return _taken(values.values, pc.run_end_decode(places).slice(values.offset, len(values)))
    if types.is_dictionary(kind):
        return _taken(values.dictionary, values.indices)
    if types.is_struct(kind):
        fields = list(map(unencoded, _fields(values)))
        named = [each.with_type(field.type) for each, field in zip(kind, fields, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=named, mask=values.is_null() if values.null_count else None)
    if types.is_map(kind):
        return pa.MapArray.from_arrays(_offsets(values), *map(unencoded, _keys_and_items(values)))
    if types.is_fixed_size_list(kind):  # which Arrow flattens and casts wrong where it is a slice of runs
        whole = pa.FixedSizeListArray.from_arrays(unencoded(values.values), kind.list_size)
        rest = whole.slice(values.offset, len(values))
        return pc.if_else(values.is_valid(), rest, pa.nulls(len(rest), rest.type))
    return type(values).from_arrays(_offsets(values), unencoded(_items(values)))


def _taken(values: pa.Array, places: pa.Array) -> pa.Array:
    """Those at these places. Arrow cannot take them out of runs and views, also within.

    Raises UsageError for more texts than a column can hold: Arrow gives offsets that are too large for their type.
    """
    found = plain(values)
    if types.is_string(found.type) or types.is_binary(found.type):
        sizes = pc.binary_length(found)
        most = (pc.max(sizes).as_py() or 0) * len(places)
        if most > _MOST_BYTES and (pc.sum(sizes.take(places)).as_py() or 0) > _MOST_BYTES:
            raise UsageError(
                f"the texts of a {values.type} dictionary, or of runs, take over 2 GiB in a batch of {len(places)} rows, and a "
                "column cannot hold them: make the batches smaller"
            )
    return found.take(places)


def with_types(kind: pa.DataType, changed: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A record, map or list of the changed types; a list of a fixed size becomes one of any. Other types are as they are."""
    fields = [each.with_type(changed(each.type)) for each in _fields_of(kind)]
    if types.is_struct(kind):
        return pa.struct(fields)
    if types.is_map(kind):
        return pa.map_(*fields)
    if types.is_large_list(kind):
        return pa.large_list(*fields)
    return pa.list_(*fields) if fields else kind


def _fields_of(kind: pa.DataType) -> list[pa.Field]:
    """Those of a record, key and item of a map, and the item of a list."""
    if types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [kind.field(place) for place in range(kind.num_fields)]
    return []


def _nullable(kind: pa.DataType) -> pa.DataType:
    """The type with no field of a record that is never null."""
    if not _has_required_field(kind):
        return kind
    is_record = types.is_struct(kind)
    return with_types(pa.struct([each.with_nullable(nullable=True) for each in kind]) if is_record else kind, _nullable)


def _never_null(field: pa.Field) -> UsageError:
    return UsageError(f"{field.name!r} is declared as never null, and a row has a null there")


@_cached
def _is_encoded(kind: pa.DataType) -> bool:
    if types.is_dictionary(kind):
        inner = kind.value_type
        is_text = is_view(inner) or types.is_string(inner) or types.is_binary(inner)
        return is_text or types.is_nested(inner) or types.is_dictionary(inner) or _is_encoded(inner)
    return types.is_run_end_encoded(kind) or any(_is_encoded(each.type) for each in _fields_of(kind))


@_cached
def _has_required_field(kind: pa.DataType) -> bool:
    """Whether a record in this type has a field that is never null."""
    is_record = types.is_struct(kind)
    return any((is_record and not field.nullable) or _has_required_field(field.type) for field in _fields_of(kind))


def _required(values: pa.Array, kind: pa.DataType, hidden: pa.Array | None) -> pa.Array:
    """In a type with other fields that are never null. `hidden`: the rows that are null as a record around them is."""
    if not _has_required_field(kind):
        return values
    if types.is_struct(kind):
        null = values.is_null() if hidden is None else pc.or_(values.is_null(), hidden)
        fields = [_field(values.field(place), kind.field(place), null) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null() if values.null_count else None)
    if types.is_list(kind) or types.is_large_list(kind):
        return type(values).from_arrays(_offsets(values), _required(_items(values), kind.value_type, None), type=kind)
    if types.is_map(kind):
        keys, items = _required(values.keys, kind.key_type, None), _required(values.items, kind.item_type, None)
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=kind)
    return values


def _field(values: pa.Array, field: pa.Field, null: pa.Array) -> pa.Array:
    """A field of records, of which these are null."""
    found = _required(values, field.type, null)
    if field.nullable or not found.null_count:
        return found
    if not pc.all(pc.or_(null, found.is_valid())).as_py():
        raise _never_null(field)
    return _as_valid(found)


def _as_valid(values: pa.Array) -> pa.Array:
    """The same values, and whatever is there for nulls."""
    kind = values.type
    if types.is_struct(kind):
        return pa.StructArray.from_arrays([values.field(place) for place in range(kind.num_fields)], fields=list(kind))
    if types.is_map(kind):
        return pa.MapArray.from_arrays(values.offsets, values.keys, values.items, type=kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return type(values).from_arrays(values.offsets, values.values, type=kind)
    if types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(_as_valid(values.indices), values.dictionary, ordered=kind.ordered)
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(_as_valid(values.storage))
    if types.is_nested(kind) or types.is_null(kind):
        return values
    return pa.Array.from_buffers(kind, len(values), [None, *values.buffers()[1:]], null_count=0, offset=values.offset)


def _fields(record: pa.StructArray) -> list[pa.Array]:
    """With nulls where the record is null, but in fields that are never null."""
    shown = record_fields(record)
    return [shown[place] if each.nullable else record.field(place) for place, each in enumerate(record.type)]


def _items(lists: pa.Array) -> pa.Array:
    """Of all lists but nulls. Where there are none Arrow makes dictionaries of other indices, or cannot."""
    return lists.flatten() if pc.sum(pc.list_value_length(lists)).as_py() else lists.values.slice(0, 0)


def _keys_and_items(maps: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Of all maps but nulls."""
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items], names=["key", "value"])
    offsets = pa.concat_arrays([maps.offsets])  # Arrow takes no nulls with a slice, and has no filter for views
    inside = _items(pa.ListArray.from_arrays(offsets, pairs, mask=maps.is_null()))
    return inside.field(0), inside.field(1)


def _offsets(lists: pa.Array) -> pa.Array:
    """From 0 on, without the items of nulls; that of a null is null."""
    starts, ends = lists.offsets.slice(0, len(lists)), lists.offsets.slice(1)
    lasts = pc.cumulative_sum(pc.if_else(lists.is_valid(), pc.subtract(ends, starts), pa.scalar(0, starts.type)))
    whole = pa.concat_arrays([pa.array([0], starts.type), lasts])
    if not lists.null_count:
        return whole
    return pc.if_else(pa.concat_arrays([lists.is_valid(), pa.array([True])]), whole, pa.scalar(None, starts.type))
