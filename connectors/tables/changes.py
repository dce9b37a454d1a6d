"""Rows that change a table's rows, which are distinguished by keys: what a task keeps of them, and which of them count. No I/O.

A task stores changes as they come (`Changes.staged`), in columns of the table and a few of headrace. The driver reads those of
an epoch and keeps the last change of each key (`last_of_each_key`); `merging` brings them into the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.connectors.base.arguments import names, text
from headrace.connectors.base.change_types import check_one_column, deleted_rows
from headrace.connectors.base.nested import plain, plain_type
from headrace.connectors.tables.rows import fitted, fitting_schema, row_numbers
from headrace.connectors.tables.text_lengths import is_char
from headrace.enumerator.envelope import stored_text
from headrace.enumerator.errors import UsageError

_DELETED = "_headrace_deleted"
_SEQUENCE = "_headrace_sequence_"
_CHANGE, _ROW = "__headrace_change", "__headrace_row"
_OURS = ("_headrace_", "__headrace_")


@dataclass(frozen=True)
class Changes:
    """Rows are changes of the table's rows with the same keys: the last one counts, and takes the place of the whole row.

    - `keys`: columns that tell rows apart; of text, bytes, integers, booleans, dates, timestamps or decimals, and never null.
    - `sequence`: columns that say which change of a key is the later one within an epoch, `offset` by default: changes of a key
      are in one partition. They are written if the table has them. Of equal ones the last that was read counts. Empty: a key
      that comes twice in an epoch is refused. A change of a later epoch is always the later one.
    - `change_type`: a column that says what becomes of the row, which is not written: Debezium's `op` (c, r, u, d), the row
      kinds of changelogs (+I, -U, +U, -D), Delta's `_change_type` (insert, update_preimage, update_postimage, delete), or a
      boolean that is true for a delete. Of a delete only the keys count. A preimage or -U deletes, unless another change of its
      key has the same sequence. None: every row is inserted, or takes the place of another.

    Raises UsageError for what contradicts itself.
    """

    keys: tuple[str, ...]
    sequence: tuple[str, ...] = ("offset",)
    change_type: str | None = None

    def __post_init__(self) -> None:
        """Lists become tuples, so that it can be hashed."""
        object.__setattr__(self, "keys", names("keys", self.keys))
        object.__setattr__(self, "sequence", names("sequence", self.sequence))
        if not self.keys or len(set(self.keys)) != len(self.keys):
            raise UsageError(f"rows are distinguished by one key or more, each named once, not {self.keys!r}")
        if self.change_type is not None and text("change_type", self.change_type) in (*self.keys, *self.sequence):
            raise UsageError(f"column {self.change_type!r} cannot be the change type and a key or sequence too")

    def new_table(self, rows: pa.Schema) -> pa.Schema:
        """The columns of a table that is made for such rows."""
        return pa.schema([field for field in rows if field.name != self.change_type])

    def table_columns(self, rows: pa.Schema, table: pa.Schema, sources: Sequence[str], where: str) -> pa.Schema:
        """The table's fields that are written of these rows. Raises UsageError naming the column that is missing or unfit."""
        self._check_columns(rows, where)
        if (own := next((name for name in rows.names if name.startswith(_OURS)), None)) is not None:
            raise UsageError(f"{where}: column {own!r} is named as those that headrace adds while it merges changes: rename it")
        left_out = {self.change_type, *(set(self.sequence) - set(table.names))}
        wanted = pa.schema([field for field in rows if field.name not in left_out])
        schema = fitting_schema(wanted, table, sources, where)
        for name in self.keys:
            kind = schema.field(name).type
            if not _can_be_key(kind):
                raise UsageError(f"{where}: column {name!r} is {kind}, and no key of that type can be compared")
            if is_char(schema.field(name)):
                raise UsageError(
                    f"{where}: column {name!r} is CHAR in the table, whose texts are padded or not, so that no keys can be "
                    "compared: make it STRING, and take the blanks from the ends of its texts (rtrim)"
                )
        for name in self.sequence:
            kind = plain_type(rows.field(name).type)
            if not _can_be_sorted(kind):
                raise UsageError(f"{where}: column {name!r} is {kind}, and changes cannot be sorted by that type: cast it")
        return schema

    def deleted(self, batch: pa.RecordBatch, where: str) -> pa.BooleanArray:
        """For each row whether it is deleted. Null: it is, unless a change of the same key and sequence takes its place.

        Raises UsageError naming a column that is missing, and for a value that no change type has.
        """
        self._check_columns(batch.schema, where)
        if self.change_type is None:
            return pa.repeat(pa.scalar(value=False), batch.num_rows)
        return deleted_rows(batch, self.change_type, where)

    def staged(self, batch: pa.RecordBatch, deleted: pa.BooleanArray, schema: pa.Schema, where: str) -> pa.RecordBatch:
        """Rows as a task stores them: columns of `table_columns`, what is `deleted`, and the sequence.

        Raises UsageError for a null in a key or sequence, and in a column of a row that is not deleted, for a null or a longer
        text than the table allows.
        """
        nullable = pa.schema([pa.field(field.name, field.type, field.name not in self.keys) for field in schema])
        written = fitted(batch, nullable, where)
        fitted(written.filter(pc.invert(deleted)), schema, where)
        columns = {name: written.column(name) for name in schema.names} | {_DELETED: deleted}
        for at, name in enumerate(self.sequence):
            column = plain(batch.column(name))
            if column.null_count:
                raise UsageError(f"{where}: column {name!r} states which change is the later one, and a row has a null there")
            columns[f"{_SEQUENCE}{at}"] = column
        return pa.RecordBatch.from_pydict(columns, schema=self.staged_schema(batch.schema, schema))

    def staged_schema(self, rows: pa.Schema, schema: pa.Schema) -> pa.Schema:
        """The columns of what `staged` gives of such rows. All may be null: of a deleted row only the keys count."""
        order = [(f"{_SEQUENCE}{at}", plain_type(rows.field(name).type)) for at, name in enumerate(self.sequence)]
        return pa.schema([*((field.name, field.type) for field in schema), (_DELETED, pa.bool_()), *order])

    def _check_columns(self, rows: pa.Schema, where: str) -> None:
        for name in (*self.keys, *self.sequence, *([self.change_type] if self.change_type else [])):
            check_one_column(rows, name, where)

    def stored(self) -> Mapping[str, Any]:
        """As JSON."""
        return {"keys": list(self.keys), "sequence": list(self.sequence), "change_type": self.change_type}

    @classmethod
    def from_stored(cls, value: Any) -> Changes:  # noqa: ANN401 - any JSON value
        """What `stored` gave. Raises KeyError, TypeError or ValueError for anything else."""
        keys, sequence = (tuple(map(stored_text, value[name])) for name in ("keys", "sequence"))
        kind = value["change_type"]
        try:
            return cls(keys, sequence, None if kind is None else stored_text(kind))
        except UsageError as error:
            raise ValueError(str(error)) from error


def last_of_each_key(changes: Changes, staged: pa.Table, where: str) -> tuple[pa.Table, pa.Table]:
    """The keys that are changed, and the rows that are there afterwards, of an epoch's staged rows.

    Raises UsageError for a key with two changes of which nothing states which is the later one.
    """
    order = [*(f"{_SEQUENCE}{at}" for at in range(len(changes.sequence))), _CHANGE]
    rows = staged.append_column(_CHANGE, pc.is_valid(staged[_DELETED])).sort_by([(name, "ascending") for name in order])
    names = _numbered(changes.keys)
    keys = rows.select([*changes.keys, _CHANGE]).rename_columns([*names, _CHANGE])
    keys = keys.append_column(_ROW, row_numbers(rows.num_rows))
    groups = keys.group_by(names, use_threads=False).aggregate([(_ROW, "max"), (_CHANGE, "sum")])
    twice = groups.filter(pc.greater(groups[f"{_CHANGE}_sum"], 1)).select(names).rename_columns(changes.keys)
    if not changes.sequence and twice.num_rows:
        (first,) = twice.slice(0, 1).to_pylist()
        raise UsageError(f"{where}: {first} has more than one change in an epoch, and no sequence states which is the last")
    last = rows.take(groups[f"{_ROW}_max"].sort())
    there = last.filter(pc.invert(last[_DELETED]))
    ours = [name for name in staged.column_names if name == _DELETED or name.startswith(_SEQUENCE)]
    return last.select(changes.keys), there.drop_columns([*ours, _CHANGE])


def without_keys(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows that have none of these keys, in their order."""
    names = _numbered(keys.column_names)
    own = rows.select(keys.column_names)
    kept = (
        own.rename_columns(names)
        .append_column(_ROW, row_numbers(rows.num_rows))
        .join(keys.cast(own.schema).rename_columns(names), names, join_type="left anti")
    )
    return rows if kept.num_rows == rows.num_rows else rows.take(kept[_ROW].sort())


def _numbered(names: Sequence[str]) -> list[str]:
    """Arrow takes a name that starts with a dot for a path."""
    return [str(at) for at in range(len(names))]


def _can_be_key(kind: pa.DataType) -> bool:
    texts = types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind)
    numbers = types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    return bool(texts or numbers or types.is_date(kind) or types.is_timestamp(kind))


def _can_be_sorted(kind: pa.DataType) -> bool:
    try:
        pa.table([pa.nulls(2, kind)], names=["sequence"]).sort_by("sequence")
    except pa.ArrowException:
        return False
    return True
