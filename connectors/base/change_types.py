"""Which values of a column say that a row is written, and which that it is deleted: one vocabulary for all sinks. No I/O."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.enumerator.errors import UsageError

_UPSERTS = ("c", "r", "u", "+I", "+U", "insert", "update", "upsert", "update_postimage", "snapshot", "false")
_DELETES = ("d", "-D", "delete", "true")
_FOLLOWED = ("-U",)
"""What comes before the row that takes its place: nothing is to be done for it."""
_BEFORE = ("update_preimage",)
"""What was there before a change of Delta's feed, which may give the row another key: then the old one goes."""


def check_one_column(rows: pa.Schema, name: str, where: str) -> None:
    """Raise UsageError unless rows have exactly one column of this name."""
    if rows.names.count(name) != 1:
        raise UsageError(f"{where}: changes need the column {name!r}; the columns are {', '.join(rows.names)}")


def applied_changes(batch: pa.RecordBatch, column: str, where: str) -> tuple[pa.RecordBatch, pa.BooleanArray]:
    """Without the rows that their new values follow, and for each row that is left whether it is deleted, by this column.

    Null: it is a preimage. Raises UsageError for a null, and for a value that no change type has.
    """
    kinds = batch.column(column)
    if types.is_boolean(kinds.type):
        if kinds.null_count:
            raise UsageError(f"{where}: column {column!r} says whether a row is deleted, and is null in one")
        return batch, kinds
    kinds = pc.cast(kinds, pa.string())
    known = pc.is_in(kinds, pa.array([*_UPSERTS, *_DELETES, *_FOLLOWED, *_BEFORE]))
    if not pc.all(known, min_count=0).as_py():
        (found, *_) = kinds.filter(pc.invert(known)).to_pylist()
        said = ", ".join((*_UPSERTS, *_DELETES))
        raise UsageError(f"{where}: column {column!r} says what becomes of a row by {said}, and not by {found!r}")
    followed, deletes = pc.is_in(kinds, pa.array([*_FOLLOWED])), pc.is_in(kinds, pa.array([*_DELETES]))
    deleted = pc.if_else(pc.is_in(kinds, pa.array([*_BEFORE])), pa.scalar(None, pa.bool_()), deletes)
    if not pc.any(followed, min_count=0).as_py():
        return batch, deleted
    kept = pc.invert(followed)
    return batch.filter(kept), deleted.filter(kept)
