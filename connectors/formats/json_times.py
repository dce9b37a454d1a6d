"""Texts of times in columns that were read from JSON, as timestamps: ISO 8601, with a zone or in one that is given.

What Spark's `from_json` does is done: a text with a zone does not fit a type without one, digits beyond the type's unit are
cut, a time that a clock leaves out is the one that it would have shown without the change, and of a time that it shows twice
the earlier one is meant.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.enumerator.errors import UsageError

_DAY = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_ZONE = r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d|:[0-5]\d:[0-5]\d)?)"
_SECONDS = r"(?P<sign>[+-])\d\d:[0-5]\d:(?P<seconds>[0-5]\d)\z"  # of a zone, as all were before they had whole minutes
_CLOCK = r"[ T](?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.\d+)?)?)?"
_TIME = rf"\A{_DAY}(?:{_CLOCK}{_ZONE}?)?\z"
_LOCAL_TIME = rf"\A{_DAY}(?:{_CLOCK})?\z"
_ZONED = rf"[ T].*{_ZONE}\z"
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d\d?)(?::?(\d\d))?")
_LONGEST_GAP = pa.scalar(24 * 3600, pa.duration("s"))  # that a clock leaves out: a day, across the date line


class UnfitTimes(NamedTuple):
    """Values that are not times: the rows that have them, the dotted name of their field, and the type that it is to have."""

    rows: pa.Array
    path: str
    kind: pa.DataType


def as_texts(kind: pa.DataType) -> pa.DataType:
    """The type with strings in place of timestamps."""
    return with_times(kind, pa.string())


def with_times(kind: pa.DataType, time: pa.DataType) -> pa.DataType:
    """The type with another in place of timestamps."""
    if pa.types.is_timestamp(kind):
        return time
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(with_times(each.type, time)) for each in kind])
    return pa.list_(with_times(kind.value_type, time)) if pa.types.is_list(kind) else kind


def as_times(
    values: pa.Array, kind: pa.DataType, zone: str | Callable[[], str], unfit: list[UnfitTimes], path: str = ""
) -> pa.Array:
    """A column of `as_texts(kind)` as one of `kind`. Other texts are null there, and added to `unfit`.

    `zone`: that of texts without one, or what returns it. Raises UsageError if it is needed, and unknown.
    """
    if values.type == kind:
        return values
    if pa.types.is_timestamp(kind):
        return _timestamps(values, kind, zone, unfit, path)
    nulls = values.is_null() if values.null_count else None
    if pa.types.is_struct(kind):
        fields = [
            as_times(values.field(index), each.type, zone, unfit, f"{path}.{each.name}" if path else each.name)
            for index, each in enumerate(kind)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=nulls)
    inside: list[UnfitTimes] = []
    flat = as_times(values.flatten(), kind.value_type, zone, inside, f"{path}[]")
    parents = pc.list_parent_indices(values)
    unfit += [each._replace(rows=parents.take(each.rows)) for each in inside]
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(values), 0))
    offsets = pa.concat_arrays([pa.array([0], ends.type), ends])
    return pa.ListArray.from_arrays(offsets, flat, type=kind, mask=nulls)


@functools.cache
def check_zone(zone: str) -> str:
    """A zone by its name in the IANA's list, or by its offset as Spark has them (`+02:00`, `GMT+2`), as Arrow has it.

    Raises UsageError for another.
    """
    offset = _OFFSET.fullmatch(zone)
    name = "UTC" if zone in ("Z", "GMT") else zone if offset is None else f"{offset[1]}{offset[2]:0>2}:{offset[3] or '00'}"
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("s")), name)
    except pa.ArrowInvalid as error:
        raise UsageError(f"time zone {zone!r} is not known: name it as Europe/Berlin, or as +02:00") from error
    return name


def _timestamps(
    texts: pa.Array, kind: pa.TimestampType, zone: str | Callable[[], str], unfit: list[UnfitTimes], path: str
) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:  # not all have a zone, or one has, or digits are to be cut, or one does not fit
        pass
    fitting = pc.if_else(pc.match_substring_regex(texts, _TIME if kind.tz is not None else _LOCAL_TIME), texts, None)
    digits = _DIGITS[kind.unit]
    surplus = rf"(\.\d{{{digits}}})\d+" if digits else r"()\.\d+"
    if pc.any(pc.match_substring_regex(fitting, surplus)).as_py():
        fitting = pc.replace_substring_regex(fitting, surplus, r"\1")
    has_zone = pc.match_substring_regex(fitting, _ZONED)
    times = _zoned(pc.if_else(has_zone, fitting, None), kind.unit).cast(kind)
    if not pc.all(has_zone, min_count=0).as_py():
        local = _cast(pc.if_else(has_zone, None, fitting), pa.timestamp(kind.unit))
        times = pc.coalesce(times, local if kind.tz is None else instants(local, zone).cast(kind))
    if times.null_count > texts.null_count:
        unfit.append(UnfitTimes(pc.indices_nonzero(pc.and_(times.is_null(), texts.is_valid())), path, kind))
    return times


def _zoned(texts: pa.Array, unit: str) -> pa.Array:
    """In UTC, as `_cast` has it. Arrow takes no seconds of a zone."""
    kind, found = pa.timestamp(unit, "UTC"), pc.extract_regex(texts, _SECONDS)
    if found.null_count == len(found):
        return _cast(texts, kind)
    times = _cast(pc.if_else(found.is_valid(), pc.utf8_slice_codeunits(texts, 0, -3), texts), kind)
    seconds = pc.cast(pc.struct_field(found, "seconds"), pa.int64())
    ahead = pc.if_else(pc.equal(pc.struct_field(found, "sign"), "-"), pc.negate(seconds), seconds)
    ahead = pc.fill_null(ahead, 0)
    moved = pc.subtract(times, ahead.cast(pa.duration("s")).cast(pa.duration(unit)))
    has_turned = pc.not_equal(pc.less(moved, times), pc.greater(ahead, 0))
    return pc.if_else(has_turned, None, moved)


def _cast(texts: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """Null for what 64 bits of the unit do not hold."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, kind)
    half = len(texts) // 2
    return pa.concat_arrays([_cast(texts.slice(0, half), kind), _cast(texts.slice(half), kind)])


def instants(local: pa.Array, time_zone: str | Callable[[], str]) -> pa.Array:
    """Timestamps without a zone as they are in this one. Raises UsageError where there is none of that name."""
    zone = check_zone(time_zone if isinstance(time_zone, str) else time_zone())
    assume = functools.partial(pc.assume_timezone, timezone=zone, ambiguous="earliest")
    before, after = (assume(local, nonexistent=which) for which in ("earliest", "latest"))
    left_out = pc.not_equal(before, after)
    if not pc.any(left_out, min_count=0).as_py():
        return after
    gap = _LONGEST_GAP.cast(pa.duration(local.type.unit))
    return pc.if_else(left_out, pc.add(assume(pc.subtract(local, gap), nonexistent="latest"), gap), after)
