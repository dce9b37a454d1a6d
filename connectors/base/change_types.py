"""Which values of a column say that a row is written, and which that it is deleted: one vocabulary for all sinks. No I/O."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.connectors.base.nested import plain
from headrace.enumerator.errors import UsageError

_UPSERTS = ("c", "r", "u", "+I", "+U", "insert", "update", "upsert", "update_postimage", "snapshot", "false")
_TRUNCATIONS = ("t", "truncate")
_DELETES = ("d", "-D", "delete", "true")
PREIMAGE = "update_preimage"
_BEFORE = ("-U", PREIMAGE)
"""What was there before a change, which may give the row another key: then the old one goes."""


def check_one_column(rows: pa.Schema, name: str, where: str) -> None:
    """Raise UsageError unless rows have exactly one column of this name."""
    if rows.names.count(name) != 1:
        raise UsageError(f"{where}: changes need the column {name!r}; the columns are {', '.join(rows.names)}")


def deleted_rows(batch: pa.RecordBatch, column: str, where: str) -> pa.BooleanArray:
    """For each row whether it is deleted, by this column.

    Null: it is what was there before a change, and deleted unless a row of the same key takes its place.

    Raises UsageError for a null, and for a value that no change type has.
    """
    kinds = plain(batch.column(column))
    if types.is_boolean(kinds.type):
        if kinds.null_count:
            raise UsageError(f"{where}: column {column!r} says whether a row is deleted, and is null in one")
        return kinds
    kinds = pc.cast(kinds, pa.string())
    known = pc.is_in(kinds, pa.array([*_UPSERTS, *_DELETES, *_BEFORE]))
    if not pc.all(known, min_count=0).as_py():
        (found, *_) = kinds.filter(pc.invert(known)).to_pylist()
        if found in _TRUNCATIONS:
            raise UsageError(
                f"{where}: the table that is read was truncated (column {column!r} is {found!r}), and no sink by key does so. "
                "Empty this table and start the job over from a new snapshot, or leave such rows out: then its rows stay"
            )
        said = ", ".join((*_UPSERTS, *_DELETES))
        raise UsageError(f"{where}: column {column!r} says what becomes of a row by {said}, and not by {found!r}")
    return pc.if_else(pc.is_in(kinds, pa.array(_BEFORE)), pa.scalar(None, pa.bool_()), pc.is_in(kinds, pa.array(_DELETES)))
