"""Debezium's envelope, decoded by a format, as rows that change a table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.enumerator.errors import UsageError

_PARTS = ("before", "after", "op")
_OF_ROWS = ("c", "r", "u", "d")


def debezium_changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that changes are about: the fields of `value.after`, of a delete those of `value.before`, and `op`.

    `value` is a struct with before, after and op, as a format of `headrace.formats` decodes it; the batch's other columns stay,
    such as `offset`. Records without a value (tombstones after a delete) are left out. Raises UsageError for another `value`,
    for a change that is of no row (`t`, a truncated table; `m`, a message), and for a field that is named as another column.
    A function of a `Pipeline`.
    """
    place = batch.schema.get_field_index("value")
    kind = batch.schema.field(place).type if place >= 0 else None
    if kind is None or not types.is_struct(kind) or any(kind.get_field_index(part) < 0 for part in _PARTS):
        raise UsageError(
            "Debezium's envelope is a column 'value' with before, after and op: decode it by a format of the source"
        )
    rows = batch.filter(pc.is_valid(batch.column(place)))
    before, after, op = (pc.struct_field(rows.column("value"), part) for part in _PARTS)
    known = pc.fill_null(pc.is_in(op, pa.array(_OF_ROWS, op.type)), fill_value=False)
    if not pc.all(known, min_count=0).as_py():
        raise UsageError(f"a change of Debezium is c, r, u or d, and this one is {op.filter(pc.invert(known))[0].as_py()!r}")
    found = pc.if_else(pc.is_valid(after), after, before)
    columns = {field.name: pc.struct_field(found, field.name) for field in after.type} | {"op": op}
    others = [name for name in batch.schema.names if name != "value"]
    twice = sorted(set(others) & columns.keys())
    if twice or "op" in [field.name for field in after.type]:
        raise UsageError(
            f"rows have fields that are named as other columns are: {', '.join(twice) or 'op'}; ask the source for fewer"
        )
    return pa.RecordBatch.from_pydict(columns | {name: rows.column(name) for name in others})
