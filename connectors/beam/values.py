"""What Beam's sources and rows hold, as Arrow, with no value changed: Arrow itself cuts a 1.5 to 1, and a datetime to its date.

Beam's own Timestamp is the worst: Arrow takes the whole number of its seconds, in whatever unit the column has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from types import NoneType
from typing import Any, cast

import numpy as np
import pyarrow as pa
from apache_beam.pvalue import Row
from apache_beam.utils.timestamp import Duration, Timestamp

from headrace.connectors.base.nested import record_fields

UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError)
"""What `array_of` and `cast_exactly` raise for values that a type cannot hold as they are."""

Same = Callable[[pa.Array, pa.Array], bool]
"""Says whether values, as they are and as a column holds them, are the same."""

_MICROS = {"s": 1_000_000, "ms": 1000, "us": 1}


def same(given: pa.Array, made: pa.Array) -> bool:
    """But that floating point numbers are rounded to the column's. Raises ArrowInvalid for some that are not."""
    if pa.types.is_integer(given.type) and not (pa.types.is_floating(made.type) or pa.types.is_boolean(made.type)):
        return True  # Arrow refuses those that it would change
    there = given.cast(made.type)
    if pa.types.is_floating(made.type):
        return True
    if pa.types.is_decimal(given.type) and not pa.types.is_decimal(made.type):
        return bool(there.equals(made))  # back, not every number fits a decimal
    return bool(made.cast(given.type).equals(given))


def same_but_for_units(given: pa.Array, made: pa.Array) -> bool:
    """As `same`, but times are cut to the column's unit, as Kafka's clients and those of its formats do it."""
    tests = (pa.types.is_timestamp, pa.types.is_time, pa.types.is_duration)
    return any(test(given.type) and test(made.type) for test in tests) or same(given, made)


def array_of(values: Sequence[Any], wanted: pa.DataType, path: str, unchanged: Same = same) -> pa.Array:
    """The values in this type. Rows, named tuples and mappings are structs or maps; `path` is where they are, for messages.

    Numbers for a time are in the column's unit. Raises one of `UNFIT` where one would not be `unchanged`, and where a struct
    has no field of a name.
    """
    kinds = set(map(type, values)) - {NoneType}
    if not kinds:
        return pa.nulls(len(values), wanted)
    if pa.types.is_struct(wanted):
        return _structs(values, wanted, path, unchanged)
    if pa.types.is_map(wanted):
        pairs = [None if each is None else _pairs(each, path) for each in values]
        offsets, entries = _flat(pairs)
        keys = array_of([key for key, _ in entries], wanted.key_type, f"{path}{{}}", unchanged)
        items = array_of([item for _, item in entries], wanted.item_type, f"{path}{{}}", unchanged)
        if keys.null_count:
            raise pa.ArrowInvalid(f"{path} has a key that is null")
        return pa.MapArray.from_arrays(offsets, keys, items).cast(wanted)
    if _is_list(wanted):
        offsets, items = _flat([None if each is None else _items(each, path) for each in values])
        return pa.ListArray.from_arrays(offsets, array_of(items, wanted.value_type, f"{path}[]", unchanged)).cast(wanted)
    try:
        return _plain(kinds, values, wanted, unchanged)
    except UNFIT as error:
        raise pa.ArrowInvalid(f"{path}: {error}") from error


def cast_exactly(given: pa.Array, wanted: pa.DataType, path: str) -> pa.Array:
    """The array in this type, text parsed. Raises one of `UNFIT` where a value would not be the `same`, or lose a field."""
    made = given.cast(wanted)
    _check(given, made, path)
    return made


def check_nulls(made: pa.Array, field: pa.Field, path: str, expected: int = 0) -> None:
    """Raise ArrowInvalid for nulls beyond those that are `expected`, where the field is not nullable."""
    if not field.nullable and made.null_count > expected:
        raise pa.ArrowInvalid(f"{path} is never null by its schema, and a value of it is")


def fields_of(value: object) -> Mapping[Any, Any] | None:
    """What a row, a named tuple or a mapping has by name; None of anything else."""
    if isinstance(value, Row):
        return cast("Mapping[Any, Any]", value.as_dict())
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return cast("Mapping[Any, Any]", value._asdict())
    return value if isinstance(value, Mapping) else None


def _structs(values: Sequence[Any], wanted: pa.DataType, path: str, unchanged: Same) -> pa.Array:
    names = [field.name for field in wanted]
    found = [None if each is None else _struct(each, names, path) for each in values]
    parts = [
        array_of(
            [None if each is None else each.get(field.name) for each in found], field.type, f"{path}.{field.name}", unchanged
        )
        for field in wanted
    ]
    for part, field in zip(parts, wanted, strict=True):
        check_nulls(part, field, f"{path}.{field.name}", found.count(None))
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=pa.array([each is None for each in found], pa.bool_()))


def _struct(value: object, names: Sequence[str], path: str) -> Mapping[Any, Any]:
    fields = fields_of(value)
    if fields is None and isinstance(value, tuple) and len(value) == len(names):
        return dict(zip(names, value, strict=True))
    if fields is None:
        raise pa.ArrowInvalid(f"{path} has fields, and a {type(value).__name__} has not")
    if unknown := sorted(map(str, fields.keys() - set(names))):
        raise pa.ArrowInvalid(f"{path} has no field {unknown[0]!r} in its format, which has {', '.join(names)}")
    return fields


def _pairs(value: object, path: str) -> Sequence[tuple[Any, Any]]:
    fields = fields_of(value)
    return _items(value, path) if fields is None else list(fields.items())


def _items(value: object, path: str) -> Sequence[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise pa.ArrowInvalid(f"{path} has items, and a {type(value).__name__} has not")
    return list(value)


def _flat(values: Sequence[Sequence[Any] | None]) -> tuple[pa.Array, list[Any]]:
    """Where each has its items, as Arrow's lists say it, and all items."""
    ends = [0, *accumulate(len(each or ()) for each in values)]
    starts = [None if each is None else start for each, start in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32()), [item for each in values for item in each or ()]


def _plain(kinds: set[type], values: Sequence[Any], wanted: pa.DataType, unchanged: Same) -> pa.Array:
    if len(kinds) == 1:
        return _of_kind(kinds.pop(), values, wanted, unchanged)
    # Of several kinds Arrow says no type by which to see what is changed: each by itself.
    places: dict[type, list[int]] = {kind: [] for kind in kinds}
    for place, value in enumerate(values):
        if value is not None:
            places[type(value)].append(place)
    parts = [_of_kind(kind, [values[each] for each in there], wanted, unchanged) for kind, there in places.items()]
    order: list[int | None] = [None] * len(values)
    for index, place in enumerate(place for there in places.values() for place in there):
        order[place] = index
    return pa.concat_arrays(parts).take(pa.array(order, pa.int64()))


def _of_kind(kind: type, values: Sequence[Any], wanted: pa.DataType, unchanged: Same) -> pa.Array:
    given: pa.Array | None = None
    if issubclass(kind, np.generic):
        values, scalars = [None if each is None else each.item() for each in values], values
        if issubclass(kind, np.datetime64 | np.timedelta64):
            if int not in map(type, values):
                return array_of(values, wanted, kind.__name__, unchanged)
            given = pa.array(scalars)  # of nanoseconds, which Python's times do not have
    if issubclass(kind, Timestamp | Duration):
        given, made = _beams_time(kind, [None if each is None else each.micros for each in values], wanted)
    elif given is not None:
        made = given.cast(wanted)
    else:
        with suppress(*UNFIT):  # a number that fits only the wanted type
            given = pa.array(values)
        made = given if given is not None and given.type == wanted else pa.array(values, wanted)
    if given is not None and given.type != wanted and not unchanged(given, made):
        raise pa.ArrowInvalid(f"values of {given.type} would be cut to {wanted}")
    return made


def _beams_time(kind: type, micros: Sequence[int | None], wanted: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """As it is, and as the column has it: by whole numbers, as Beam has times that no datetime has."""
    is_instant = issubclass(kind, Timestamp)
    if not (pa.types.is_timestamp(wanted) if is_instant else pa.types.is_duration(wanted)):
        raise pa.ArrowTypeError(f"a {kind.__name__} of Beam does not fit {wanted}")
    given = pa.array(micros, pa.int64()).cast(pa.timestamp("us", wanted.tz) if is_instant else pa.duration("us"))
    if wanted.unit == "ns":
        return given, given.cast(wanted)
    units = [None if each is None else each // _MICROS[wanted.unit] for each in micros]
    return given, pa.array(units, pa.int64()).cast(wanted)


def _check(given: pa.Array, made: pa.Array, path: str) -> None:
    kind = given.type
    if kind == made.type or pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return
    if pa.types.is_dictionary(kind):
        _check(given.dictionary_decode(), made, path)
    elif pa.types.is_struct(kind) and pa.types.is_struct(made.type):
        fields = dict(zip(made.type.names, record_fields(made), strict=True))
        for name, field in zip(kind.names, record_fields(given), strict=True):
            if name not in fields:
                raise pa.ArrowInvalid(f"{path} has no field {name!r} in its format, which has {', '.join(fields)}")
            _check(field, fields[name], f"{path}.{name}")
    elif pa.types.is_map(kind) and pa.types.is_map(made.type):
        for one, other in zip(_entries(given), _entries(made), strict=True):
            _check(one, other, f"{path}{{}}")
    elif _is_list(kind) and _is_list(made.type):
        _check(given.flatten(), made.flatten(), f"{path}[]")
    elif not same(given, made):
        raise pa.ArrowInvalid(f"{path}: values of {kind} would be cut to {made.type}")


def _is_list(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _entries(maps: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    first, last = (maps.offsets[place].as_py() for place in (0, -1))
    return maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
