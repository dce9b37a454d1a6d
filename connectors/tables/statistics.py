"""What a table's log reports about the values in a file, so that readers is transient the file over. What is not certain is
left out.
"""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

__all__ = ["delta_statistics"]

MOST_COLUMNS = 32  # Delta's own number: wide tables have long logs otherwise
LONGEST_TEXT = 64

Bounds = tuple[Any, Any]


def delta_statistics(footer: pq.FileMetaData, schema: pa.Schema, with_nan: frozenset[str]) -> str:
    """Delta's JSON: numbers of rows and nulls, least and greatest values, of the first 32 columns, from a file's footer."""
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for field, index in _columns(footer, schema)[:MOST_COLUMNS]:
        groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if any(group is None or group.null_count is None for group in groups):
            continue
        nulls[field.name] = sum(group.null_count for group in groups)
        bounds = None if field.name in with_nan else _bounds(groups)
        if bounds is not None:
            low, high = _low(bounds[0]), _high(bounds[1])
            least |= {} if low is None else {field.name: low}
            greatest |= {} if high is None else {field.name: high}
    found = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _columns(footer: pq.FileMetaData, schema: pa.Schema) -> list[tuple[pa.Field, int]]:
    places = {footer.schema.column(index).path: index for index in range(len(footer.schema))}
    flat = [field for field in schema if not types.is_nested(field.type)]
    return [(field, places[field.name]) for field in flat if field.name in places]


def _bounds(groups: list[Any]) -> Bounds | None:
    """Of all row groups; None if one has none, though it has values."""
    valued = [group for group in groups if group.num_values]
    if not valued or not all(group.has_min_max for group in valued):
        return None
    return min(group.min for group in valued), max(group.max for group in valued)


def _low(value: Any) -> Any:  # noqa: ANN401 - a value of any column
    """At most the value, in JSON; None where there is no form."""
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    if isinstance(value, datetime):
        return _milliseconds(value)
    return _plain(value)


def _high(value: Any) -> Any:  # noqa: ANN401 - a value of any column
    """At least the value, in JSON; None where there is no form."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else None
    if isinstance(value, datetime):
        floor = value.replace(microsecond=value.microsecond // 1000 * 1000)
        try:
            return _milliseconds(value if floor == value else floor + timedelta(milliseconds=1))
        except OverflowError:
            return None
    return _plain(value)


def _milliseconds(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if value.tzinfo is None else f"{text}Z"  # Parquet's are in UTC


def _plain(value: Any) -> Any:  # noqa: ANN401 - a value of any column
    if isinstance(value, bool) or not isinstance(value, (int, float, date)):
        return None
    if isinstance(value, float):
        return value if value - value == 0 else None  # JSON has no infinity
    return value.isoformat() if isinstance(value, date) else value
