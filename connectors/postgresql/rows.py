"""Rows of a source of changes: of what was decoded from the log, and of what a snapshot has read.

The first columns say what happened, the others are the table's, after it; `_before` has the values before it, where the
table's replica identity is its full row. An update that changes the key is a delete of the old key, then an insert of the new
one: what the log leaves out of that insert (`_unchanged`) is in the row of the old key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.postgresql.columns import changed
from headrace.connectors.postgresql.errors import NEW_SNAPSHOT
from headrace.connectors.postgresql.pgoutput import DELETE, INSERT, TRUNCATE, UPDATE, LoggedChanges, LoggedRelation, Tuples
from headrace.connectors.postgresql.types import OutOfRange, PgColumn, PgTable, arrow_array, arrow_type
from headrace.connectors.postgresql.visible import Moment, full_xid
from headrace.enumerator.errors import CorruptDataError, DataLossError, UsageError

SNAPSHOT = "snapshot"
_OPERATIONS = {INSERT: "insert", UPDATE: "update", DELETE: "delete", TRUNCATE: "truncate"}
_CODES = pa.array(_OPERATIONS, pa.uint8())
_NAMES = pa.array(_OPERATIONS.values(), pa.string())

_SYSTEM = (
    pa.field("_op", pa.string()),
    pa.field("_lsn", pa.int64()),
    pa.field("_xid", pa.int64()),
    pa.field("_committed_at", pa.timestamp("us", "UTC")),
    pa.field("_table", pa.string()),
    pa.field("_unchanged", pa.list_(pa.string())),
)
_BEFORE = "_before"
_NONE: pa.Int64Array = pa.array([], pa.int64())
_MOST_BYTES = (1 << 31) - 1
"""Of a column of texts or bytes."""
METADATA = (*(field.name for field in _SYSTEM), _BEFORE)
"""The columns ahead of the table's."""


class TableRows:
    """Rows of one table. Raises UsageError for a column that no Arrow type holds, or that is named as our columns.

    `known`: when these columns were asked for. Older changes may be of other columns, as `changes` says.
    """

    def __init__(self, table: PgTable, out_of_range: OutOfRange = "error", known: Moment | None = None) -> None:
        self.table = table
        self._known = known
        self._out_of_range = out_of_range
        self.values: pa.StructType = pa.struct([pa.field(column.name, arrow_type(column)) for column in table.columns])
        ours = {*METADATA}
        if taken := [column.name for column in table.columns if column.name in ours]:
            raise UsageError(
                f"the table {table.full_name} has a column {taken[0]!r}, as our rows have: rename it, or leave it out of the "
                "publication"
            )
        if not table.columns:
            raise UsageError(f"the table {table.full_name} has no columns, and so no values: leave it out of the tables")
        self.schema: pa.Schema = pa.schema([*_SYSTEM, pa.field(_BEFORE, self.values), *self.values])

    def changes(self, changes: LoggedChanges) -> pa.RecordBatch:
        """Rows of the changes, in their order.

        If they are older than what is known of the table, columns that were added since are null, those that were dropped
        since are left out, and values of a column that was another type then are read as of its type now. Raises UsageError
        for a column that may have been renamed, and for changes of after that with other columns: start again to read those.
        DataLossError where a partition has logged old rows by another key.

        What the log leaves out of an update's new row is taken from the old one, if that has it: the key, or the full row
        as the replica identity. It is never null, so a null is a value that the old row lacks, as that of a partition whose
        identity is not the full row, where that of its root is.
        """
        return self.placed(changes)[0]

    def placed(self, changes: LoggedChanges) -> tuple[pa.RecordBatch, pa.Int64Array]:
        """Also the place of each row among all changes of its batch. Raises as `changes` does."""
        difference = self._check_columns(changes)
        if self.table.is_partitioned:
            self._check_old_rows(changes)
        numbers = {column.name: number for number, column in enumerate(changes.relation.columns)}
        order = [numbers.get(column.name) for column in self.table.columns]
        new, old = _texts_of(changes.new, order), _texts_of(changes.old, order)
        unchanged = [_NONE if number is None else changes.new.unchanged[number] for number in order]
        is_full = changes.relation.identity == "full"
        rows = _rows(changes, _key_columns(self.table, changes.relation))
        if is_full and rows.changes is not None and self.table.is_deferrable:
            raise UsageError(
                f"an update of {self.table.full_name} changes its key, which is deferrable: in a transaction rows may pass "
                f"each other, and changes by key would lose some. Make the key one that is not deferrable, and {NEW_SNAPSHOT}"
            )
        if is_full and self.table.is_partitioned:
            rows = rows._replace(before=self._where_full(old, rows.before, len(changes.new.changes)))
        if any(map(len, unchanged)):
            old_rows = pc.index_in(changes.new.changes, changes.old.changes)
            previous = [texts.take(old_rows) for texts in old]
            new = [_filled(*column) for column in zip(new, unchanged, previous, strict=True)]
            unchanged = [at.filter(texts.take(at).is_null()) for at, texts in zip(unchanged, previous, strict=True)]
        try:
            values = [
                arrow_array(column, _joined(after, before), self._out_of_range)
                for column, after, before in zip(self.table.columns, new, old, strict=True)
            ]
        except CorruptDataError as error:
            if difference is None:
                raise
            raise UsageError(
                f"the log has changes of {self.table.full_name} made before it was altered ({difference}): their values are "
                f"none of the types that it has now: {error}. So {NEW_SNAPSHOT}"
            ) from error
        before = _struct(self.values, [_taken(array, rows.before) for array in values], rows.before) if is_full else None
        batch = self._batch(
            _NAMES.take(pc.index_in(rows.operations, _CODES)),
            _taken(changes.lsns, rows.changes),
            _taken(changes.xids, rows.changes),
            _taken(changes.committed_at, rows.changes),
            _unchanged_names(self.table, [_where(at, rows.values) for at in unchanged], len(rows.operations)),
            before,
            [_taken(array, rows.values) for array in values],
        )
        return batch, _taken(changes.places, rows.changes)

    def _where_full(self, old: Sequence[pa.LargeStringArray], places: pa.Int64Array, first: int) -> pa.Int64Array:
        """The places, from `first` on, of old rows that have values besides the key's. In others only the key may be logged:
        of a partition whose identity is not the full row, as its root's is.
        """
        others = (texts for column, texts in zip(self.table.columns, old, strict=True) if column.name not in self.table.key)
        has_more = pa.repeat(pa.scalar(value=False), len(old[0]))
        for texts in others:
            has_more = pc.or_(has_more, texts.is_valid())
        return pc.if_else(has_more.take(pc.subtract(places, first)), places, pa.scalar(None, pa.int64()))

    def _check_columns(self, changes: LoggedChanges) -> str | None:
        """In which columns changes that can be read are of another table than it is now."""
        difference = difference_of(self.table, changes.relation)
        if difference is None:
            return None
        is_older = self._is_older(changes)
        known = [column.name for column in self.table.columns]
        found = [column.name for column in changes.relation.columns]
        both = {*known} & {*found}
        is_moved = [name for name in known if name in both] != [name for name in found if name in both]
        may_be_renamed = is_moved or bool({*known} - both and {*found} - both)
        loses_old_rows = self._loses_old_rows(changes, is_older=is_older)
        if is_older and not may_be_renamed and not loses_old_rows:
            return difference
        if is_moved or (is_older and may_be_renamed):
            raise UsageError(
                f"the log has changes of {self.table.full_name} with other columns than it has now ({difference}). One that "
                f"was renamed cannot be found: {NEW_SNAPSHOT}"
            )
        if loses_old_rows:
            raise UsageError(
                f"the table {self.table.full_name} has changed: {difference}. A copy by the old one keeps rows that are gone: "
                f"{NEW_SNAPSHOT}"
            )
        raise changed(self.table.full_name, difference)

    def _is_older(self, changes: LoggedChanges) -> bool:
        """Whether all are of transactions that had ended: those of one that was open then are before it in the log, too."""
        known = self._known
        if known is None or pc.max(changes.lsns).as_py() > known.lsn:
            return False
        return all(known.visible.sees(full_xid(xid, known.visible.xmax)) for xid in changes.xids.unique().to_pylist())

    def _check_old_rows(self, changes: LoggedChanges) -> None:
        """Raise DataLossError where the log lacks an old row's key, or may: it does not say in which partition a change is."""
        key = self.table.change_key
        partitions = [each for each in changes.relation.partitions if _lacks(each, key)]
        if not partitions and changes.relation.identity == "full":
            return
        numbers = [number for number, column in enumerate(changes.relation.columns) if column.name in key]
        is_lost = any(changes.old.columns[number].null_count for number in numbers)
        if partitions and not is_lost:
            is_update = pc.equal(changes.operations, UPDATE)
            with_old_row = is_update.take(changes.old.changes)
            is_lost = pc.sum(is_update, min_count=0).as_py() > pc.sum(with_old_row, min_count=0).as_py()
        if is_lost:
            named = ", ".join(f"{each.schema}.{each.name}" for each in partitions) or "one"
            raise DataLossError(
                f"the log has updates or deletes of {self.table.full_name} that lack {', '.join(key)} of the old row, by which "
                f"changes are read: among its partitions {named} had another REPLICA IDENTITY, which they do not inherit. Give "
                f"it the same, and {NEW_SNAPSHOT}"
            )

    def _loses_old_rows(self, changes: LoggedChanges, *, is_older: bool) -> bool:
        """Whether rows were found by another key than now. Older ones are if they have this one too, or are inserts only."""
        keys = _keys_of(self.table, changes.relation)
        if keys is None or not is_older:
            return keys is not None
        has_old_rows = pc.any(pc.is_in(changes.operations, pa.array([UPDATE, DELETE], pa.uint8()))).as_py()
        return bool(has_old_rows) and not keys[0] <= keys[1]

    def snapshot(self, texts: Sequence[pa.LargeStringArray], lsn: int) -> pa.RecordBatch:
        """Rows that were read from the table, by the texts of its columns. `lsn`: where the log was then."""
        count = len(texts[0])
        columns = zip(self.table.columns, texts, strict=True)
        return self._batch(
            pa.repeat(pa.scalar(SNAPSHOT), count),
            pa.repeat(pa.scalar(lsn, pa.int64()), count),
            pa.nulls(count, pa.int64()),
            pa.nulls(count, pa.timestamp("us", "UTC")),
            _unchanged_names(self.table, [], count),
            None,
            [self._read(column, column_texts) for column, column_texts in columns],
        )

    def _read(self, column: PgColumn, texts: pa.LargeStringArray) -> pa.Array:
        """Of a chunk, whose rows come in one batch."""
        try:
            return arrow_array(column, texts, self._out_of_range)
        except CorruptDataError as error:
            size = pc.sum(pc.binary_length(texts)).as_py() or 0
            if size <= _MOST_BYTES:
                raise
            raise UsageError(
                f"column {column.name!r} of {len(texts)} rows of {self.table.full_name} has {size:,} bytes, and one of Arrow's "
                f"has less than 2 GiB. Set chunk_rows lower, and {NEW_SNAPSHOT}"
            ) from error

    def _batch(
        self,
        operations: pa.Array,
        lsns: pa.Array,
        xids: pa.Array,
        times: pa.Array,
        unchanged: pa.Array,
        before: pa.Array | None,
        values: Sequence[pa.Array],
    ) -> pa.RecordBatch:
        count = len(operations)
        tables = pa.repeat(pa.scalar(self.table.full_name), count)
        before = pa.nulls(count, self.values) if before is None else before
        return pa.record_batch([operations, lsns, xids, times, tables, unchanged, before, *values], self.schema)


class OneTableRows:
    """Rows of the only table of a source: its columns are those of the rows."""

    def __init__(self, rows: TableRows) -> None:
        self.tables: Mapping[int, TableRows] = {rows.table.oid: rows}
        self.schema: pa.Schema = rows.schema

    def merged(self, parts: Sequence[tuple[int, pa.RecordBatch, pa.Int64Array]]) -> pa.RecordBatch:
        """The rows of tables, by their oids, in the order of the places among all changes that `TableRows.placed` gives."""
        batch = pa.Table.from_batches([self.widened(oid, batch) for oid, batch, _ in parts], self.schema)
        if len(parts) > 1:
            batch = batch.take(pc.sort_indices(pa.chunked_array([places for _, _, places in parts])))
        (*batches,) = batch.combine_chunks().to_batches()
        return batches[0] if batches else pa.record_batch([pa.array([], field.type) for field in self.schema], self.schema)

    def snapshot(self, oid: int, texts: Sequence[pa.LargeStringArray], lsn: int) -> pa.RecordBatch:
        """As that of `TableRows`, of the table with this oid."""
        return self.widened(oid, self.tables[oid].snapshot(texts, lsn))

    def widened(self, oid: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a table as those of all."""
        return batch


class SeveralTablesRows(OneTableRows):
    """Rows of several tables. Each has a column, named as the table, with its columns; the same in `_before`."""

    def __init__(self, tables: Sequence[TableRows]) -> None:
        self.tables = {rows.table.oid: rows for rows in tables}
        structs = [pa.field(rows.table.full_name, rows.values) for rows in tables]
        if len({field.name for field in structs}) < len(structs):
            names = ", ".join(field.name for field in structs)
            raise UsageError(f"two tables have one name, as theirs or their schemas' have dots: {names}. Leave one out")
        self.schema = pa.schema([*_SYSTEM, pa.field(_BEFORE, pa.struct(structs)), *structs])

    def widened(self, oid: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = self.tables[oid]
        count, first = batch.num_rows, len(_SYSTEM)
        own = pa.StructArray.from_arrays(batch.columns[first + 1 :], fields=list(rows.values))
        before_field = self.schema.field(_BEFORE)
        has_none = batch.column(first).is_null()
        befores = [
            batch.column(first) if field.name == rows.table.full_name else pa.nulls(count, field.type)
            for field in before_field.type
        ]
        before = pa.StructArray.from_arrays(befores, fields=list(before_field.type), mask=has_none)
        structs = [
            own if field.name == rows.table.full_name else pa.nulls(count, field.type)
            for field in list(self.schema)[first + 1 :]
        ]
        return pa.record_batch([*batch.columns[:first], before, *structs], self.schema)


def table_rows(batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
    """The rows of one table (`schema.name`) of a batch of several: the columns about the change, then the table's.

    `_before` is that of the table. Raises UsageError for a batch that does not have the table.
    """
    if table not in batch.schema.names or "_table" not in batch.schema.names:
        raise UsageError(f"the batch has no rows of the table {table!r}: its columns are {', '.join(batch.schema.names)}")
    own = batch.filter(pc.equal(batch.column("_table"), table))
    columns = {name: own.column(name) for name in own.schema.names if name in METADATA}
    if _BEFORE in columns:
        columns[_BEFORE] = pc.struct_field(columns[_BEFORE], [table])
    values = own.column(table)
    columns |= {field.name: pc.struct_field(values, [place]) for place, field in enumerate(values.type)}
    return pa.RecordBatch.from_pydict(columns)


def difference_of(table: PgTable, relation: LoggedRelation) -> str | None:
    """In which columns the log's description of the table is another one; None if in none."""
    known = {column.name: (column.type.oid, column.modifier) for column in table.columns}
    found = {column.name: (column.type_oid, column.modifier) for column in relation.columns}
    parts = (
        ("added", found.keys() - known.keys()),
        ("dropped", known.keys() - found.keys()),
        ("of another type", {name for name in known.keys() & found.keys() if known[name] != found[name]}),
    )
    said = [f"columns {what}: {', '.join(sorted(names))}" for what, names in parts if names]
    if not said and [*known] != [*found]:  # PostgreSQL moves none
        said.append(f"columns that were renamed or created again, as their order says: {', '.join(found)}")
    if (keys := _keys_of(table, relation)) is not None:
        before, after = (", ".join(sorted(names)) for names in keys)
        said.append(f"another key: {after}, and no longer {before}")
    return "; ".join(said) or None


def _keys_of(table: PgTable, relation: LoggedRelation) -> tuple[set[str], set[str]] | None:
    """By which columns rows were found and are found, if these are others. A full row says nothing of the key."""
    before = {*table.change_key}
    after = set() if relation.identity == "full" else {column.name for column in relation.columns if column.in_key}
    return (before, after) if before and after and before != after else None


def _lacks(partition: LoggedRelation, key: Sequence[str]) -> bool:
    """Whether the log of the partition has old rows without a part of this key. A list of columns may hide what it has."""
    return bool(partition.key) and any(not column.in_key and column.name in key for column in partition.columns)


def _texts_of(tuples: Tuples, order: Sequence[int | None]) -> list[pa.LargeStringArray]:
    """The columns with these numbers, null where there is none."""
    count = len(tuples.changes)
    return [pa.nulls(count, pa.large_string()) if number is None else tuples.columns[number] for number in order]


def _key_columns(table: PgTable, relation: LoggedRelation) -> list[int]:
    """The numbers of the columns, in the relation, by which a change finds its row."""
    key = table.change_key if relation.identity == "full" else [column.name for column in relation.columns if column.in_key]
    return [number for number, column in enumerate(relation.columns) if column.name in key]


class _Rows(NamedTuple):
    """Which change each row is of, and where its values and the previous ones are: among the new rows, then the old ones.

    `changes` and `values` are None where there is a row for each of them, in their order.
    """

    operations: pa.UInt8Array
    changes: pa.Int64Array | None
    values: pa.Int64Array | None
    before: pa.Int64Array


def _rows(changes: LoggedChanges, key: Sequence[int]) -> _Rows:
    count, news = len(changes.lsns), len(changes.new.changes)
    every = _numbers(count)
    new, old = _places_of(changes.new, every), pc.add(_places_of(changes.old, every), news)
    operations = changes.operations
    is_delete = pc.equal(operations, DELETE)
    if news == count and not len(changes.old.changes):
        return _Rows(operations, None, None, old)
    values = pc.if_else(is_delete, old, new)
    moved = _moved(changes, key)
    if not len(moved):
        return _Rows(operations, None, values, old)
    # The delete comes ahead of the insert, in the place of the update.
    order = pc.sort_indices(pa.concat_arrays([pc.multiply(moved, 2), pc.add(pc.multiply(every, 2), 1)]))
    of_changes = pa.concat_arrays([moved, every])
    is_moved = pc.is_in(every, moved)
    inserts = pc.if_else(is_moved, pa.scalar(INSERT, pa.uint8()), operations)
    deletes = pa.repeat(pa.scalar(DELETE, pa.uint8()), len(moved))
    gone = old.take(moved)
    return _Rows(
        pa.concat_arrays([deletes, inserts]).take(order),
        of_changes.take(order),
        pa.concat_arrays([gone, values]).take(order),
        pa.concat_arrays([gone, pc.if_else(is_moved, pa.scalar(None, pa.int64()), old)]).take(order),
    )


def _moved(changes: LoggedChanges, key: Sequence[int]) -> pa.Int64Array:
    """The updates that change the key."""
    updated = changes.old.changes.filter(pc.equal(changes.operations.take(changes.old.changes), UPDATE))
    new, old = pc.index_in(updated, changes.new.changes), pc.index_in(updated, changes.old.changes)
    differs = pa.repeat(pa.scalar(value=False), len(updated))
    for number in key:
        # A part of the key that the log leaves out of the new row is the same.
        other = pc.not_equal(changes.new.columns[number].take(new), changes.old.columns[number].take(old))
        differs = pc.or_(differs, pc.fill_null(other, fill_value=False))
    return updated.filter(differs)


def _numbers(count: int) -> pa.Int64Array:
    return pa.array(range(count), pa.int64())


def _places_of(tuples: Tuples, every: pa.Int64Array) -> pa.Int64Array:
    """Where the row of each change is among these, null where it has none."""
    return every if len(tuples.changes) == len(every) else pc.index_in(every, tuples.changes).cast(pa.int64())


def _taken(array: pa.Array, places: pa.Int64Array | None) -> pa.Array:
    return array if places is None else array.take(places)


def _where(values: pa.Int64Array, among: pa.Int64Array | None) -> pa.Array:
    return values if among is None or not len(values) else pc.index_in(values, among)


def _joined(new: pa.LargeStringArray, old: pa.LargeStringArray) -> pa.LargeStringArray:
    return pa.concat_arrays([new, old]) if len(old) else new


def _filled(new: pa.LargeStringArray, unchanged: pa.Int64Array, previous: pa.LargeStringArray) -> pa.LargeStringArray:
    """The new values, with the previous ones where they did not change."""
    return pc.if_else(pc.is_in(_numbers(len(new)), unchanged), previous, new) if len(unchanged) else new


def _struct(kind: pa.StructType, values: Sequence[pa.Array], places: pa.Int64Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(values, fields=list(kind), mask=places.is_null())


def _unchanged_names(table: PgTable, unchanged: Sequence[pa.Int64Array], count: int) -> pa.ListArray:
    """For each row the names of the columns that the log leaves out, of the rows of each column."""
    names = pa.array([column.name for column in table.columns], pa.string())
    found = [(rows, number) for number, rows in enumerate(unchanged) if len(rows)]
    if not found:
        return pa.ListArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count + 1), names.slice(0, 0))
    rows = pa.concat_arrays([rows.cast(pa.int64()) for rows, _ in found])
    columns = pa.concat_arrays([pa.repeat(pa.scalar(number), len(rows)) for rows, number in found])
    order = pc.sort_indices(pc.add(pc.multiply(rows, len(names)), columns))
    counted = pc.value_counts(rows)
    counts = pc.fill_null(counted.field("counts").take(pc.index_in(_numbers(count), counted.field("values"))), 0)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
    return pa.ListArray.from_arrays(ends, names.take(columns.take(order)))
