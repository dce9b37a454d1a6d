"""What a decoder makes of bytes, as a value that can be compared."""

from types import ModuleType
from typing import Any

import pyarrow as pa

from headrace.enumerator.errors import CorruptDataError


def outcome(records: ModuleType, data: bytes, **options: Any) -> tuple[list[Any], list[int], str | None]:
    """All that decoding gives: rows, positions, and the message of the CorruptDataError. Any other error passes through."""
    rows: list[Any] = []
    positions: list[int] = []
    try:
        for each in records.decode(data, topic="topic", partition=3, **options):
            each.records.validate(full=True)
            rows += zip(*(_plain(each.records.column(name)).to_pylist() for name in each.records.schema.names), strict=True)
            positions.append(each.next_offset)
    except CorruptDataError as error:
        return rows, positions, str(error)
    return rows, positions, None


def _plain(column: pa.Array) -> pa.Array:
    """Timestamps as numbers: Python's end with the year 9999, Arrow's do not."""
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
