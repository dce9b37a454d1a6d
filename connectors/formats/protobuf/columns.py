"""Arrow columns around ptars: what it makes as our types have it, and what it is given checked before.

ptars' columns say of most fields that they are never null. Ours are nullable everywhere, so that a type does not change with
the way in which a message was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.enumerator.errors import UsageError

DATE, _TIME = "google.type.Date", "google.type.TimeOfDay"
_EXTREMES = pa.array([-(2**63), 2**63 - 1], pa.int64())


def picked(kind: pa.DataType, fields: dict[str, Any]) -> pa.DataType:
    """A struct with only these fields, in the order of the type; a field's own fields likewise, and all if there are none."""
    if pa.types.is_list(kind):
        return pa.list_(picked(kind.value_type, fields))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, picked(kind.item_type, fields))
    if not pa.types.is_struct(kind):
        raise UsageError(f"fields {', '.join(map(repr, fields))} were asked for of a column that is {kind}, and has no fields")
    kept = [each for each in kind if each.name in fields]
    return pa.struct([each.with_type(picked(each.type, fields[each.name])) if fields[each.name] else each for each in kept])


def struct_of(batch: pa.RecordBatch, kind: pa.DataType, valid: pa.Array) -> pa.Array:
    """A batch as one column of structs, null where `valid` is false; `kind` may leave fields out."""
    children = [as_kind(batch.column(each.name), each.type) for each in kind]
    return pa.Array.from_buffers(kind, len(valid), [valid.buffers()[1]], offset=valid.offset, children=children)


def as_kind(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values, without a copy, in a type that differs in what may be null, or leaves fields out. No slice."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        buffers, children = 1, [as_kind(array.field(each.name), each.type) for each in kind]
    elif pa.types.is_map(kind):
        entries = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
        keys, items = as_kind(array.keys, kind.key_type), as_kind(array.items, kind.item_type)
        inner = pa.Array.from_buffers(entries, len(keys), [None], 0, children=[keys, items])
        buffers, children = 2, [inner]
    else:
        buffers, children = 2, [as_kind(array.values, kind.value_type)]
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:buffers], array.null_count, children=children)


def beyond(array: pa.Array) -> bool:
    """Whether a time or a duration anywhere in a column is one that ptars has put in place of what does not fit 64 bits."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return bool(pc.any(pc.is_in(array.view(pa.int64()), value_set=_EXTREMES)).as_py())
    return any(beyond(child) for child in _children(array))


def has_dates_or_times(descriptor: Any) -> bool:  # noqa: ANN401 - the runtime has no types
    """Whether a message may have in it what `invalid_date_or_time` looks at."""
    found, waiting = {descriptor.full_name}, [descriptor]
    while waiting:
        new = [field.message_type for field in waiting.pop().fields if field.message_type is not None]
        waiting += [each for each in new if each.full_name not in found]
        found |= {each.full_name for each in new}
    return not found.isdisjoint((DATE, _TIME))


def invalid_date_or_time(message: Any, around: frozenset[str] = frozenset()) -> str | None:  # noqa: ANN401 - of any type
    """Why a message has in it a date or a time of the day that Arrow has not; None if all are right.

    Google's types allow more: a date without a year, or without a day, and 24:00. ptars makes other moments of these.
    `around`: the types of the messages that it is in; none for a value itself, which is not a date in a column. What is of one
    of these stays bytes, and is not looked at.
    """
    name = message.DESCRIPTOR.full_name
    if around and name == DATE:
        try:
            date(message.year, message.month, message.day)
        except ValueError:
            return f"a {DATE} in it is not a date"
    if around and name == _TIME:
        parts = (message.hours, message.minutes, message.seconds, message.nanos)
        if not all(0 <= part < end for part, end in zip(parts, (24, 60, 60, 1_000_000_000), strict=True)):
            return f"a {_TIME} in it is not a time of a day"
    around |= {name}
    inner = (each for each in _within(message) if each.DESCRIPTOR.full_name not in around)
    return next(filter(None, (invalid_date_or_time(each, around) for each in inner)), None)


def _within(message: Any) -> Iterator[Any]:  # noqa: ANN401 - of any type
    """The messages that are set in this one."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if isinstance(value, Mapping):
            if field.message_type.fields_by_name["value"].message_type is not None:
                yield from value.values()
        elif isinstance(value, Sequence):
            yield from value
        else:
            yield value


def _children(array: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(array.type):
        return [array.field(i) for i in range(array.type.num_fields)]
    if pa.types.is_map(array.type):
        return [array.keys, array.items]
    return [array.values] if pa.types.is_list(array.type) else []
