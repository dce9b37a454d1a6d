"""The records of the commit topic that are one list: a long list is split, below what a broker takes as one record."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from uuid import uuid4

import pyarrow as pa

from headrace.enumerator.envelope import Envelope
from headrace.enumerator.errors import StateError

SEPARATOR = "/"
"""Between a list's key and the number of a part, in the key of that part's record."""
_PART_BYTES = 1 << 19
"""A longer list is split: well below what a broker takes as one record, whatever compression makes of it."""
_PARTS = Envelope("headrace-commit-list-parts", "head of a list of transactions")
_HEAD_BYTES = 100
_ROW = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def split(key: str, value: bytes | None, before: Collection[str]) -> dict[str, bytes | None]:
    """Key to value of the records that are the list; those of `before` that are not part of it are removed.

    All are of one transaction. Parts start with the id of their list, which the record under the list's own key names.
    """
    gone: dict[str, bytes | None] = dict.fromkeys(before)
    if value is None or len(value) <= _PART_BYTES:
        return {**gone, key: value}
    list_id = uuid4().hex
    parts = [value[start : start + _PART_BYTES] for start in range(0, len(value), _PART_BYTES)]
    named = {f"{key}{SEPARATOR}{index}": list_id.encode() + part for index, part in enumerate(parts)}
    return {**gone, **named, key: _PARTS.seal({"id": list_id, "parts": len(parts)})}


def whole_lists(records: Mapping[str, bytes]) -> dict[str, bytes]:
    return {key: whole(key, records) for key in records if SEPARATOR not in key}


def list_of(key: str, records: Mapping[str, bytes]) -> bytes | None:
    return whole(key, records) if key in records else None


def whole(key: str, records: Mapping[str, bytes]) -> bytes:
    """What `split` was given; a list whose parts are not there as it is, which is then no list that can be read."""
    value = records[key]
    if _PARTS.name.encode() not in value[:_HEAD_BYTES]:
        return value
    try:
        head = _PARTS.open(value, key)
        with _PARTS.reading(key):
            list_id = head["id"].encode()
            parts = [records[f"{key}{SEPARATOR}{index}"] for index in range(head["parts"])]
    except StateError:
        return value
    if not all(part.startswith(list_id) for part in parts):
        return value
    return b"".join(part[len(list_id) :] for part in parts)


def record_rows(records: Mapping[str, bytes | None]) -> pa.RecordBatch:
    """Keys and values as rows for a `RecordEncoder`; None is a tombstone."""
    columns = [_binary([key.encode() for key in records]), _binary(list(records.values()))]
    return pa.RecordBatch.from_arrays(columns, schema=_ROW)


def _binary(values: Sequence[bytes | None]) -> pa.Array:
    """Not by `pa.array`: for a list that imports pandas where it is installed, half a second in a driver's first commit."""
    known = sum((value is not None) << place for place, value in enumerate(values))
    ends = array("i", accumulate((len(value or b"") for value in values), initial=0))
    buffers = (known.to_bytes(len(values) // 8 + 1, "little"), ends, b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(pa.binary(), len(values), [pa.py_buffer(buffer) for buffer in buffers])
