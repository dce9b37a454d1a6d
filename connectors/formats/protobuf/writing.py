"""Checks a column before ptars writes it: ptars takes what a message cannot hold for what is not there, and says nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.nested import plain
from headrace.connectors.formats.protobuf.columns import DATE
from headrace.connectors.formats.value_format import check_values, exactly
from headrace.enumerator.errors import UsageError


def writable(values: pa.Array, message: Any, kind: pa.DataType) -> pa.Array:  # noqa: ANN401 - a Descriptor
    """A column of structs as one of `kind`, which is ptars' type of the message with enums as numbers, and dates as messages.

    Fields are found by their names; those that the column lacks are not set. Raises UsageError, which names the field and the
    first bad row, for a field that the message does not have and for what the message cannot hold.
    """
    check_values(values)
    return _message(_Place("", None), plain(values), message, kind)


@dataclass(frozen=True)
class _Place:
    """The dotted name of a field, and for each of its values the row that it is in; None if they are the rows."""

    path: str
    rows: pa.Array | None

    def refuse(self, wrong: pa.Array, what: str) -> None:
        """Raise UsageError if any of these is true."""
        if pc.any(wrong).as_py():
            index = pc.index(wrong, True).as_py()
            row = index if self.rows is None else self.rows[index].as_py()
            raise UsageError(f"row {row} cannot be written as Protobuf: {self.named} {what}")

    @property
    def named(self) -> str:
        """For messages."""
        return f"field {self.path!r}" if self.path else "the value"

    def inside(self, name: str) -> _Place:
        """Of a field."""
        return _Place(f"{self.path}.{name}" if self.path else name, self.rows)

    def items(self, suffix: str, parents: pa.Array) -> _Place:
        """Of what is in lists, each of which is at one of `parents`."""
        return _Place(self.path + suffix, parents if self.rows is None else self.rows.take(parents))


def _message(place: _Place, values: pa.Array, message: Any, kind: pa.DataType) -> pa.Array:  # noqa: ANN401 - a Descriptor
    if not pa.types.is_struct(values.type):
        raise UsageError(f"{place.named} is {values.type}; the message {message.full_name} takes a struct")
    surplus = [each.name for each in values.type if each.name not in kind.names]
    union = next((each.name for each in values.type if pa.types.is_union(each.type)), None)
    if surplus or union is not None:
        said = f"has no field {', '.join(surplus)}" if surplus else f"cannot hold the union {union}"
        raise UsageError(f"{place.named} is to be the message {message.full_name}, which {said}")
    given = dict(zip(values.type.names, values.flatten(), strict=True))
    columns = []
    for each in kind:
        field, inside = message.fields_by_name[each.name], place.inside(each.name)
        column = given[each.name] if each.name in given else pa.nulls(len(values), each.type)
        if field.is_required:
            inside.refuse(pc.and_(column.is_null(), values.is_valid()), "is required, and null")
        columns.append(_field(inside, column, field, each.type))
    for oneof in message.oneofs:
        members = [columns[kind.get_field_index(each.name)] for each in oneof.fields if each.name in given]
        if len(members) > 1:
            there = [each.is_valid().cast(pa.int32()) for each in members]
            wrong = pc.greater(_sum(there), 1)
            place.refuse(wrong, f"has more than one of {', '.join(each.name for each in oneof.fields)}, which are alternatives")
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=values.is_null())


def _sum(columns: list[pa.Array]) -> pa.Array:
    total = columns[0]
    for each in columns[1:]:
        total = pc.add(total, each)
    return total


def _field(place: _Place, column: pa.Array, field: Any, kind: pa.DataType) -> pa.Array:  # noqa: ANN401 - a FieldDescriptor
    if pa.types.is_map(kind):
        return _map(place, column, field.message_type, kind)
    if pa.types.is_list(kind) and field.is_repeated:
        return _list(place, column, kind, lambda inside, items: _one(inside, items, field, kind.value_type))
    return _one(place, column, field, kind)


def _one(place: _Place, column: pa.Array, field: Any, kind: pa.DataType) -> pa.Array:  # noqa: ANN401 - a FieldDescriptor
    if field.enum_type is not None:
        return _enum(place, column, field.enum_type)
    if field.message_type is not None and field.message_type.full_name == DATE:
        return _date(place, column, kind)
    if field.message_type is not None and pa.types.is_struct(kind):
        return _message(place, column, field.message_type, kind)
    if field.message_type is not None and pa.types.is_binary(kind) and field.message_type.full_name != _BYTES:
        place.refuse(column.is_valid(), f"is a message {field.message_type.full_name} within itself, which cannot be written")
        return pa.nulls(len(column), kind)
    made = _cast(place, column, kind)
    if field.message_type is not None and (allowed := _RANGES.get(field.message_type.full_name)):
        micros, (first, after) = made.cast(pa.int64()), allowed
        outside = pc.or_(pc.less(micros, first * 10**6), pc.greater_equal(micros, after * 10**6))
        place.refuse(outside, f"is beyond what a {field.message_type.full_name} may be")
    return made


def _date(place: _Place, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Years, months and days. ptars writes none of these for 1970-01-01."""
    if column.type == kind and column.null_count == len(column):  # of a field that is not given
        return column
    made = _cast(place, column, pa.date32())
    days, (first, last) = made.view(pa.int32()), _DAYS
    place.refuse(pc.or_(pc.less(days, first), pc.greater(days, last)), f"is beyond what a {DATE} may be")
    parts = pc.year_month_day(made)
    columns = [parts.field(each.name).cast(each.type) for each in kind]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=made.is_null())


_DAYS = (-719_162, 2_932_896)
"""From 0001-01-01 to 9999-12-31."""
_BYTES = "google.protobuf.BytesValue"
_RANGES = {
    "google.protobuf.Timestamp": (-62_135_596_800, 253_402_300_800),
    "google.protobuf.Duration": (-315_576_000_000, 315_576_000_001),
}
"""The first second, and the one after the last: the years 1 to 9999, and 10,000 years either way."""


def _list(place: _Place, column: pa.Array, kind: pa.DataType, of_items: Callable[[_Place, pa.Array], pa.Array]) -> pa.Array:
    if not _is_list(column.type):
        raise UsageError(f"{place.named} is {column.type}; this repeated field takes a list")
    column = column if pa.types.is_list(column.type) else column.cast(pa.list_(column.type.value_type))
    inside = place.items("[]", pc.list_parent_indices(column))
    items = column.flatten()
    inside.refuse(items.is_null(), "is null, which no repeated field can hold")
    return pa.ListArray.from_arrays(_offsets(pc.list_value_length(column)), of_items(inside, items), type=kind)


def _is_list(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _map(place: _Place, column: pa.Array, entry: Any, kind: pa.DataType) -> pa.Array:  # noqa: ANN401 - a Descriptor
    if pa.types.is_null(column.type):
        column = column.cast(kind)
    if not pa.types.is_map(column.type):
        raise UsageError(f"{place.named} is {column.type}; this map field takes a map")
    plain = column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))
    inside, entries = place.items("{}", pc.list_parent_indices(plain)), plain.flatten()
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    keys, items = entries.field("key"), entries.field("value")
    inside.refuse(items.is_null(), "is null, which no map field can hold")
    made = [_one(inside, keys, key, kind.key_type), _one(inside, items, value, kind.item_type)]
    inside.refuse(_repeated(pc.list_parent_indices(plain), made[0]), "has a key twice, of which a map field keeps the last")
    return pa.MapArray.from_arrays(_offsets(pc.list_value_length(plain)), *made, type=kind)


def _repeated(maps: pa.Array, keys: pa.Array) -> pa.Array:
    """Which keys there are before in the same map."""
    entries = pa.table([maps, keys, np.arange(len(keys))], names=["map", "key", "place"])
    first = entries.group_by(["map", "key"]).aggregate([("place", "min")])["place_min"]
    return pa.array(np.isin(np.arange(len(keys)), first.to_numpy(), invert=True))


def _offsets(lengths: pa.Array) -> pa.Array:
    ends = pc.cumulative_sum(pc.fill_null(lengths, 0).cast(pa.int32()))
    return pa.concat_arrays([pa.array([0], pa.int32()), ends])


def _enum(place: _Place, column: pa.Array, enum: Any) -> pa.Array:  # noqa: ANN401 - an EnumDescriptor
    """Its symbols, or their numbers; a number without a symbol may be a text, too, as it is when it was read."""
    if pa.types.is_integer(column.type):
        return _cast(place, column, pa.int32())
    texts = _cast(place, column, pa.string())
    symbols = pa.array([each.name for each in enum.values], pa.string())
    numbers = pa.array([each.number for each in enum.values], pa.int32()).take(pc.index_in(texts, value_set=symbols))
    others = pc.and_(numbers.is_null(), texts.is_valid())
    if not pc.any(others).as_py():
        return numbers
    bare = pc.match_substring_regex(texts, r"^-?[0-9]{1,10}$") if not enum.is_closed else pa.array([False] * len(texts))
    given = pc.if_else(pc.and_(others, bare), texts, pa.scalar(None, pa.string())).cast(pa.int64())
    fits = pc.and_(pc.greater_equal(given, -(1 << 31)), pc.less(given, 1 << 31)).fill_null(fill_value=False)
    place.refuse(pc.and_not(others, fits), f"has a value that is not a symbol of the enum {enum.full_name}")
    return pc.coalesce(numbers, given.cast(pa.int32()))


def _cast(place: _Place, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column if column.type == kind else exactly(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"{place.named} is {column.type}; this field takes {kind}: {error}") from error
