"""What a table's log reports about the values in a file, so that readers may skip it. What is not certain is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

LONGEST_TEXT = 64
_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000
_FIRST, _LAST = datetime.min, datetime(9999, 12, 31, 23, 59, 59, 999_000)
"""`deltalake` takes a bound before or after these for a null, and finds no row of the file. The last one is no bound to it."""
_EPOCH, _MILLISECOND = datetime(1970, 1, 1), timedelta(milliseconds=1)

Measures = Mapping[str, tuple[int, pa.Array | None]]
"""Of a column: how many nulls, and the least and the greatest value; None for a type that has no order."""


def measures_of(rows: pa.Table, columns: Sequence[str]) -> Measures:
    """Of these columns, if they are there. By the values: Parquet has no bounds of long texts."""
    found = {name: rows[name] for name in columns if name in rows.column_names}
    return {name: (column.null_count, _ends(column)) for name, column in found.items()}


def _ends(column: pa.ChunkedArray) -> pa.Array | None:
    kind = column.type
    numbers = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if not (numbers or types.is_string(kind) or types.is_date(kind) or types.is_timestamp(kind)):
        return None
    if types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        # NaN as the greatest, as others write it, hides all rows of the file from filters of `deltalake`, and so does no bound.
        return pa.array([-math.inf, math.inf], kind)
    return pa.array(list(pc.min_max(column).values()), kind)


def delta_statistics(rows: int, columns: Sequence[str], structs: Sequence[str], measured: Sequence[Measures]) -> str:
    """Delta's JSON: numbers of rows and nulls, least and greatest values, by the measures of each row group.

    A column without measures is null in all rows. A struct has bounds without fields: where it has none, `deltalake` finds no
    null. Decimals have all their digits. Texts are cut after 64 characters, the greatest one rounded up.
    """
    nulls: dict[str, str | None] = dict.fromkeys(columns, str(rows))
    least: dict[str, str | None] = dict.fromkeys(structs, "{}")
    greatest = dict(least)
    for name in measured[0]:
        counts, ends = zip(*(measures[name] for measures in measured), strict=True)
        nulls[name] = str(sum(counts))
        if ends[0] is not None:
            low, high = pc.min_max(pa.concat_arrays(ends)).values()
            least[name], greatest[name] = _low(low), _high(high)
    found = {"minValues": least, "maxValues": greatest, "nullCount": nulls}
    return _object({"numRecords": str(rows), **{name: _object(values) for name, values in found.items()}})


def _object(values: Mapping[str, str | None]) -> str:
    """Of values that are JSON already, or None: Python's encoder has no decimals."""
    there = {json.dumps(name, ensure_ascii=False): value for name, value in values.items() if value is not None}
    return "{" + ",".join(f"{name}:{value}" for name, value in there.items()) + "}"


def has_bounds(group: pq.Statistics | None) -> bool:
    """Whether a row group's column has no values, or its statistics have both bounds, which Python can hold.

    Arrow leaves out texts over 4,096 bytes; Python's calendar ends with the year 9999.
    """
    if group is None:
        return False
    try:
        return not group.num_values or (group.has_min_max and group.min is not None and group.max is not None)
    except (OverflowError, ValueError):
        return False


def within_calendar(value: pa.Scalar) -> pa.Scalar:
    """The bound that represents a date or timestamp before the year 1 or after 9999; others are their own."""
    if not (types.is_date(value.type) or types.is_timestamp(value.type)) or not value.is_valid:
        return value
    first, last = (pa.scalar(end.date() if types.is_date(value.type) else end, value.type) for end in (_FIRST, _LAST))
    return pa.scalar(min(max(value.value, first.value), last.value), value.type)


def _low(value: pa.Scalar) -> str | None:
    """At most the value, as JSON; None for a null."""
    if types.is_timestamp(value.type) and value.is_valid:
        return _milliseconds(value.value // 1000, value.type)
    plain = within_calendar(value).as_py()
    if isinstance(plain, float):
        return _number(plain or -0.0)  # readers that order by bits have it below 0.0
    return _text(plain[:LONGEST_TEXT]) if isinstance(plain, str) else _plain(plain)


def _high(value: pa.Scalar) -> str | None:
    """At least the value, as JSON; None for a null."""
    if types.is_timestamp(value.type) and value.is_valid:
        return _milliseconds(-(-value.value // 1000), value.type)
    plain = within_calendar(value).as_py()
    if isinstance(plain, float):
        return _number(plain or 0.0)
    if isinstance(plain, str) and len(plain) > LONGEST_TEXT:
        plain = _rounded_up(plain[:LONGEST_TEXT]) or plain
    return _plain(plain)


def _rounded_up(text: str) -> str | None:
    """The least text of this length or a smaller one that is greater than all that start with this one; None without one."""
    kept = text.rstrip("\U0010ffff")
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_AFTER_SURROGATES if following == _FIRST_SURROGATE else following)


def _milliseconds(since: int, kind: pa.TimestampType) -> str:
    first, last = ((end - _EPOCH) // _MILLISECOND for end in (_FIRST, _LAST))
    text = (_EPOCH + min(max(since, first), last) * _MILLISECOND).isoformat(timespec="milliseconds")
    return _text(text if kind.tz is None else f"{text}Z")


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    return json.dumps(value) if math.isfinite(value) else _text("Infinity" if value > 0 else "-Infinity")  # as Spark writes it


def _plain(value: Any) -> str | None:  # noqa: ANN401 - a value of any column
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, date):
        return _text(value.isoformat())
    return None if value is None else json.dumps(value, ensure_ascii=False)
