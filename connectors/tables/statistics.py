"""What a table's log reports about the values in a file, so that readers may skip the file. What is not certain is
left out.
"""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

MOST_COLUMNS = 32  # Delta's own number: wide tables have long logs otherwise
LONGEST_TEXT = 64
_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000

Bounds = tuple[Any, Any]


def delta_statistics(footer: pq.FileMetaData, schema: pa.Schema, with_nan: frozenset[str]) -> str:
    """Delta's JSON: numbers of rows and nulls, least and greatest values, of the first 32 columns, from a file's footer.

    Decimals have all their digits. Texts are cut after 64 characters, the greatest one rounded up.
    """
    nulls: dict[str, str] = {}
    least: dict[str, str] = {}
    greatest: dict[str, str] = {}
    for field, index in _columns(footer, schema)[:MOST_COLUMNS]:
        groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if any(group is None or group.null_count is None for group in groups):
            continue
        nulls[field.name] = str(sum(group.null_count for group in groups))
        bounds = None if field.name in with_nan else _bounds(groups)
        if bounds is not None:
            low, high = _low(bounds[0]), _high(bounds[1])
            least |= {} if low is None else {field.name: low}
            greatest |= {} if high is None else {field.name: high}
    found = {"minValues": least, "maxValues": greatest, "nullCount": nulls}
    return _object({"numRecords": str(footer.num_rows), **{name: _object(values) for name, values in found.items()}})


def _object(values: dict[str, str]) -> str:
    """Of values that are JSON already: Python's encoder has no decimals."""
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{value}" for name, value in values.items()) + "}"


def _columns(footer: pq.FileMetaData, schema: pa.Schema) -> list[tuple[pa.Field, int]]:
    places = {footer.schema.column(index).path: index for index in range(len(footer.schema))}
    flat = [field for field in schema if not types.is_nested(field.type)]
    return [(field, places[field.name]) for field in flat if field.name in places]


def has_bounds(group: pq.Statistics | None) -> bool:
    """Whether a row group's column without values, or its statistics have both bounds, which Python can hold.

    Arrow leaves out texts over 4,096 bytes; Python's calendar ends with the year 9999.
    """
    if group is None:
        return False
    try:
        return not group.num_values or (group.has_min_max and group.min is not None and group.max is not None)
    except (OverflowError, ValueError):
        return False


def _bounds(groups: list[pq.Statistics]) -> Bounds | None:
    """Of all row groups; None if one has none, though it has values."""
    valued = [group for group in groups if group.num_values]
    if not valued or not all(map(has_bounds, valued)):
        return None
    return min(group.min for group in valued), max(group.max for group in valued)


def _low(value: Any) -> str | None:  # noqa: ANN401 - a value of any column
    """At most the value, as JSON; None where there is no form."""
    if isinstance(value, str):
        return _text(value[:LONGEST_TEXT])
    if isinstance(value, datetime):
        return _milliseconds(value)
    return _plain(value)


def _high(value: Any) -> str | None:  # noqa: ANN401 - a value of any column
    """At least the value, as JSON; None where there is no form."""
    if isinstance(value, str):
        rounded = value if len(value) <= LONGEST_TEXT else _rounded_up(value[:LONGEST_TEXT])
        return None if rounded is None else _text(rounded)
    if isinstance(value, datetime):
        floor = value.replace(microsecond=value.microsecond // 1000 * 1000)
        try:
            return _milliseconds(value if floor == value else floor + timedelta(milliseconds=1))
        except OverflowError:
            return _milliseconds(floor)  # the last one: Delta's readers add a millisecond
    return _plain(value)


def _rounded_up(text: str) -> str | None:
    """The least text of this length or a smaller one that is greater than all that start with this one; None without one."""
    kept = text.rstrip("\U0010ffff")
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_AFTER_SURROGATES if following == _FIRST_SURROGATE else following)


def _milliseconds(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return _text(text if value.tzinfo is None else f"{text}Z")  # Parquet's are in UTC


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> str | None:  # noqa: ANN401 - a value of any column
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and value - value != 0:
        return None  # JSON has no infinity
    if isinstance(value, date):
        return _text(value.isoformat())
    return json.dumps(value) if isinstance(value, (bool, int, float)) else None
