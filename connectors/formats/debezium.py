"""Debezium's envelope as rows that change a table, and the reverse."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.connectors.base.nested import plain_rows, record_fields
from headrace.enumerator.errors import UsageError

_PARTS = ("before", "after", "op")
_OF_ROWS = ("c", "r", "u", "d")
_CODES = {"snapshot": "r", "insert": "c", "update": "u", "delete": "d", "truncate": "t"}
_ABOUT_CHANGES = ("_op", "_lsn", "_xid", "_committed_at", "_table", "_unchanged", "_before")
_UNAVAILABLE = "__debezium_unavailable_value"
_MARKS = (
    _UNAVAILABLE,
    base64.b64encode(_UNAVAILABLE.encode()).decode(),  # of bytes, in JSON
    _UNAVAILABLE.encode().hex(),
    json.dumps({_UNAVAILABLE: _UNAVAILABLE}, separators=(",", ":")),  # of hstore
    str(uuid.UUID(bytes=hashlib.md5(_UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3)),  # in lists of them
)
"""The texts that it becomes."""


def debezium_changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that changes are about: the fields of `value.after`, of a delete those of `value.before`, and `op`. A field that
    only `after` has is null in a delete.

    Ahead of an update is the row before it, where `before` is there, with the `op` `-U`: sinks delete it if the update has
    another key. A value that the log leaves out (`__debezium_unavailable_value`) is that of `before`.

    `value` is a struct with before, after and op, as a format of `headrace.formats` decodes it; the batch's other columns stay,
    such as `offset`. Records without a value (tombstones after a delete) are left out. Raises UsageError for another `value`,
    for a change that is of no row (`t`, a truncated table; `m`, a message), or lacks it, for a field that is named as another
    column, and for a value that neither `after` nor `before` has. A function of a `Pipeline`.
    """
    place = batch.schema.get_field_index("value")
    kind = batch.schema.field(place).type if place >= 0 else None
    parts = {each.name: each.type for each in kind} if kind is not None and types.is_struct(kind) else {}
    if not parts.keys() >= {*_PARTS} or not types.is_struct(parts["after"]):
        raise UsageError(
            "Debezium's envelope is a column 'value' with before, after and op, of which after is a struct: decode it by a "
            "format of the source"
        )
    rows = plain_rows(batch).filter(pc.is_valid(batch.column(place)))
    before, after, op = (rows.column("value").field(part) for part in _PARTS)  # no value is null
    op = op.cast(pa.string())
    known = pc.fill_null(pc.is_in(op, pa.array(_OF_ROWS)), fill_value=False)
    if not pc.all(known, min_count=0).as_py():
        raise UsageError(f"a change of Debezium is c, r, u or d, and this one is {op.filter(pc.invert(known))[0].as_py()!r}")
    has_old = any(_has(before.type, each.name) for each in after.type)
    of_before = pc.and_(pc.equal(op, "d"), pc.is_valid(before) if has_old else pa.scalar(value=True))
    has_row = pc.or_(pc.is_valid(after), of_before)
    if not pc.all(has_row, min_count=0).as_py():
        raise UsageError(
            f"a change of Debezium has no row: it is {op.filter(pc.invert(has_row))[0].as_py()!r}; c, r and u need 'after', "
            "and d needs 'before': leave such records out"
        )
    replaced = pc.and_(pc.equal(op, "u"), pc.is_valid(before) if has_old else pa.scalar(value=False))
    places = np.repeat(np.arange(rows.num_rows), np.where(replaced.to_numpy(zero_copy_only=False), 2, 1))
    if len(places) > rows.num_rows:
        rows = rows.take(pa.array(places))
        before, after, op = (part.take(pa.array(places)) for part in (before, after, op))
    is_before = pa.array(np.diff(places, append=-1) == 0)
    is_old = pc.or_(is_before, pc.is_null(after))  # of a delete
    old = dict(zip(before.type.names, record_fields(before), strict=True)) if types.is_struct(before.type) else {}
    new = dict(zip(after.type.names, record_fields(after), strict=True))
    columns = {name: _value(name, column, old.get(name), is_old) for name, column in new.items()}
    columns["op"] = pc.if_else(is_before, "-U", op)
    others = [name for name in batch.schema.names if name != "value"]
    twice = sorted(set(others) & columns.keys())
    if twice or "op" in [field.name for field in after.type]:
        raise UsageError(
            f"rows have fields that are named as other columns are: {', '.join(twice) or 'op'}; ask the source for fewer"
        )
    return pa.RecordBatch.from_pydict(columns | {name: rows.column(name) for name in others})


def _value(name: str, new: pa.Array, old: pa.Array | None, is_old: pa.BooleanArray) -> pa.Array:
    """A field of `after`, or of `before`, which may have fewer: in old rows, and where the log leaves it out after a change."""
    old = pa.nulls(len(new), new.type) if old is None else old
    try:
        same = old if old.type == new.type else old.cast(new.type)
        value = pc.if_else(is_old, same, new)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"field {name!r} is {old.type} before a change and {new.type} after it: {error}") from error
    left_out = _is_left_out(value)
    if not pc.any(left_out, min_count=0).as_py():
        return value
    value = pc.if_else(left_out, same, value)
    if pc.any(pc.and_(left_out, pc.or_(pc.is_null(value), _is_left_out(value)))).as_py():
        raise UsageError(
            f"field {name!r} of a change is large and as before, so that the log leaves it out ({_UNAVAILABLE}), and 'before' "
            "does not have it: have all values in the log (REPLICA IDENTITY FULL), or ask the source for fewer fields"
        )
    return value


def _has(kind: pa.DataType, name: str) -> bool:
    return bool(types.is_struct(kind) and kind.get_field_index(name) >= 0)


def _is_left_out(column: pa.Array) -> pa.BooleanArray:
    """Which values are Debezium's marks, in any of its forms; never null."""
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        found = pc.is_in(column.cast(pa.large_string()), pa.array(_MARKS, pa.large_string()))
    elif types.is_binary(kind) or types.is_large_binary(kind):
        found = pc.equal(column.cast(pa.large_binary()), pa.scalar(_UNAVAILABLE.encode(), pa.large_binary()))
    elif types.is_map(kind) and types.is_string(kind.key_type) and types.is_string(kind.item_type):
        found = pc.equal(pc.map_lookup(column, pa.scalar(_UNAVAILABLE), "first"), _UNAVAILABLE)
    elif types.is_list(kind) or types.is_large_list(kind):
        return _are_left_out(column)
    else:
        return pa.repeat(pa.scalar(value=False), len(column))
    return pc.fill_null(found, fill_value=False)


def _are_left_out(lists: pa.Array) -> pa.BooleanArray:
    """Of lists: the mark alone in one, or each byte of it as a number."""
    kind, sizes = lists.type.value_type, pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    is_number = types.is_integer(kind) or types.is_floating(kind)
    found = sizes == (len(_UNAVAILABLE) if is_number else 1)
    likely = lists.filter(pa.array(found))
    if is_number:
        found[found] = [each == [*_UNAVAILABLE.encode()] for each in likely.to_pylist()]
    else:
        found[found] = _is_left_out(pc.list_flatten(likely)).to_numpy(zero_copy_only=False)
    return pa.array(found)


def debezium_envelope(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """Rows of one table of a `ChangesSource` as Debezium's envelope: `key`, a struct of these columns, and `value`.

    `value` is a struct: before, after, op (r, c, u, d, t), ts_ms (of the commit), and source (connector, schema, table, txId,
    lsn, ts_ms, snapshot). What the source's `metadata` leaves out is null; take `_committed_at`, `_table`, `_xid` and `_before`
    for all of it. Without `_before`, a delete has the keys there, and an update nothing. A delete is followed by a record
    without a value, for topics that are compacted. A text that the log leaves out (`_unchanged`) is
    `__debezium_unavailable_value`, as are bytes, and the one item of a list of these. The formats of a `KafkaSink` encode both.

    Raises UsageError for a batch without `_op` or one of the keys, and where a value of another type is left out. A function of
    a `Pipeline`.
    """
    if missing := [name for name in ("_op", *keys) if name not in batch.schema.names]:
        raise UsageError(f"Debezium's envelope needs the column {missing[0]!r}, and there are {', '.join(batch.schema.names)}")
    about = {name: batch.column(name) for name in batch.schema.names if name in _ABOUT_CHANGES}
    own = [name for name in batch.schema.names if name not in _ABOUT_CHANGES]
    left_out = _left_out(about["_unchanged"]) if "_unchanged" in about else {}
    columns = {name: _with_unavailable(batch.column(name), name, left_out.get(name)) for name in own}
    op, is_delete = about["_op"], pc.equal(about["_op"], "delete")
    if len(others := op.filter(pc.invert(pc.is_in(op, pa.array(_CODES, pa.string()))))):
        raise UsageError(f"'_op' is one of {', '.join(_CODES)}, and not {others[0].as_py()!r}")
    truncated = pc.equal(op, "truncate")
    key = _struct({name: columns[name] for name in keys}, truncated)
    only_keys = {name: column if name in keys else pa.nulls(len(column), column.type) for name, column in columns.items()}
    before = _struct(only_keys, pc.invert(is_delete))
    if "_before" in about:
        before = pc.if_else(pc.is_valid(about["_before"]), about["_before"].cast(before.type), before)
    committed_ms = _or_null(about, "_committed_at", pa.timestamp("ms", "UTC")).cast(pa.int64())
    value = _struct(
        {
            "before": before,
            "after": _struct(columns, pc.or_(is_delete, truncated)),
            "op": pa.array(_CODES.values(), pa.string()).take(pc.index_in(op, pa.array(_CODES, pa.string()))),
            "ts_ms": committed_ms,
            "source": _source(about, committed_ms),
        },
        None,
    )
    copies = np.repeat(np.arange(batch.num_rows), np.where(is_delete.to_numpy(zero_copy_only=False), 2, 1))
    is_tombstone = np.diff(copies, prepend=-1) == 0
    places = pa.array(copies)
    values = value.take(pa.array(copies, mask=is_tombstone))
    return pa.RecordBatch.from_pydict({"key": key.take(places), "value": values})


def _struct(columns: dict[str, pa.Array], is_null: pa.BooleanArray | None) -> pa.StructArray:
    return pa.StructArray.from_arrays([*columns.values()], [*columns], mask=is_null)


def _or_null(about: dict[str, pa.Array], name: str, kind: pa.DataType) -> pa.Array:
    return about[name].cast(kind, safe=False) if name in about else pa.nulls(len(about["_op"]), kind)


def _source(about: dict[str, pa.Array], committed_ms: pa.Int64Array) -> pa.StructArray:
    names = pc.split_pattern(_or_null(about, "_table", pa.string()), ".", max_splits=1)
    count = len(committed_ms)
    return _struct(
        {
            "connector": pa.array(["postgresql"] * count, pa.string()),
            "schema": pc.list_element(names, 0) if count else pa.nulls(0, pa.string()),
            "table": pc.list_element(names, 1) if count else pa.nulls(0, pa.string()),
            "txId": _or_null(about, "_xid", pa.int64()),
            "lsn": _or_null(about, "_lsn", pa.int64()),
            "ts_ms": committed_ms,
            "snapshot": pc.if_else(pc.equal(about["_op"], "snapshot"), "true", "false"),
        },
        None,
    )


def _left_out(unchanged: pa.ListArray) -> dict[str, npt.NDArray[np.bool_]]:
    """Names of columns -> of which rows the log leaves out their values."""
    names, rows = pc.list_flatten(unchanged), pc.list_parent_indices(unchanged)
    found = {name: np.zeros(len(unchanged), bool) for name in pc.unique(names).to_pylist()}
    for name, is_left_out in found.items():
        is_left_out[rows.filter(pc.equal(names, name)).to_numpy()] = True
    return found


def _with_unavailable(column: pa.Array, name: str, left_out: npt.NDArray[np.bool_] | None) -> pa.Array:
    if left_out is None:
        return column
    value = _unavailable(column.type)
    if value is None:
        raise UsageError(
            f"a change leaves out the value of {name!r}, which is large and as before, and Debezium marks no {column.type}: "
            "have all values in the log (REPLICA IDENTITY FULL), or leave such rows out"
        )
    marks = pa.array([value], column.type).take(pa.nulls(len(column), pa.int64()).fill_null(0))
    return pc.if_else(pa.array(left_out), marks, column)


def _unavailable(kind: pa.DataType) -> Any:  # noqa: ANN401 - a value of the type
    """What marks a value that is not there; None of a type that has no such value."""
    if types.is_list(kind):
        item = _unavailable(kind.value_type)
        return None if item is None else [item]
    return _UNAVAILABLE if types.is_string(kind) else _UNAVAILABLE.encode() if types.is_binary(kind) else None
