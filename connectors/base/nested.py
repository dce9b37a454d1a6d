"""Columns as others see them: Arrow's casts also look at what is beneath nulls, or outside of a slice."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def without_views(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Columns of text and bytes that Arrow can take rows out of: it does not from views."""
    if _VIEWS.keys().isdisjoint(rows.schema.types):
        return rows
    return rows.cast(pa.schema([field.with_type(_VIEWS.get(field.type, field.type)) for field in rows.schema]))


def visible(values: pa.Array) -> pa.Array:
    """The same values in the same type, with nothing else in their buffers, but for fields that are never null and unions."""
    kind = values.type
    if types.is_struct(kind) and kind.num_fields:
        return pa.StructArray.from_arrays(
            list(map(visible, _fields(values))), fields=list(kind), mask=values.is_null() if values.null_count else None
        )
    if types.is_list(kind) or types.is_large_list(kind):
        return type(values).from_arrays(_offsets(values), visible(values.flatten()), type=kind)
    if types.is_map(kind):
        pairs = pa.StructArray.from_arrays([values.keys, values.items], names=["key", "value"])
        inside = pa.ListArray.from_arrays(values.offsets, pairs).filter(values.is_valid()).flatten()
        return pa.MapArray.from_arrays(_offsets(values), *map(visible, (inside.field(0), inside.field(1))), type=kind)
    return values


def _fields(record: pa.StructArray) -> list[pa.Array]:
    """With nulls where the record is null. (Arrow ends the process where it does that to unions.)"""
    fields = [record.field(place) for place in range(record.type.num_fields)]
    if record.null_count:
        chosen = [place for place, each in enumerate(record.type) if each.nullable and not types.is_union(each.type)]
        names = list(map(str, chosen))
        shown = pa.StructArray.from_arrays([fields[place] for place in chosen], names=names, mask=record.is_null()).flatten()
        for place, field in zip(chosen, shown, strict=True):
            fields[place] = field
    return fields


def _offsets(lists: pa.Array) -> pa.Array:
    """From 0 on, without the items of nulls; that of a null is null."""
    starts, ends = lists.offsets.slice(0, len(lists)), lists.offsets.slice(1)
    lasts = pc.cumulative_sum(pc.if_else(lists.is_valid(), pc.subtract(ends, starts), pa.scalar(0, starts.type)))
    whole = pa.concat_arrays([pa.array([0], starts.type), lasts])
    if not lists.null_count:
        return whole
    return pc.if_else(pa.concat_arrays([lists.is_valid(), pa.array([True])]), whole, pa.scalar(None, starts.type))
