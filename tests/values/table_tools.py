"""What other tools do to a table of Delta or Iceberg, and what it makes of the rows, which are dicts of columns.

A step returns its name, or None where the tool has refused it. Steps of ALTERING may be a reason to refuse changes by key.
"""

from __future__ import annotations

import datetime as dt
import decimal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake import Schema as DeltaSchema
from pyarrow import types
from pyiceberg import expressions, transforms
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from headrace.connectors.base.sink import Attempt, TwoPhaseSink
from headrace.connectors.tables.handles import TableHandle
from headrace.delta import DeltaSink
from headrace.iceberg import IcebergSink
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_table
from tests.helpers.table_rig import driver

Row: TypeAlias = dict[str, Any]
STRUCT = pa.struct([("x", pa.int32()), ("y", pa.string())])
TYPES = (
    *(pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.string(), pa.date32(), pa.bool_(), pa.binary()),
    *(pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(9, 2), pa.decimal128(9, 2)),
    *(STRUCT, STRUCT, STRUCT, pa.list_(STRUCT), pa.map_(pa.string(), STRUCT), pa.struct([("s", STRUCT), ("y", pa.string())])),
)
NAMES = ("a", "b", "c", "d")
ALTERING = frozenset(
    {"rename", "drop", "type", "required", "nested", "schema_overwrite", "spec", "restore", "vacuum", "upgrade"}
)


WIDER = {pa.int32(): LongType(), pa.float32(): DoubleType(), pa.decimal128(9, 2): DecimalType(12, 2)}


def value_of(chance: Random, kind: pa.DataType, *, nullable: bool = True) -> Any:
    if nullable and chance.random() < 0.25:
        return None
    if types.is_struct(kind):
        return {field.name: value_of(chance, field.type, nullable=field.nullable) for field in kind}
    if types.is_map(kind):
        return [(key, value_of(chance, kind.item_type)) for key in chance.sample(["", "k", "l"], chance.randrange(3))]
    if types.is_list(kind) or types.is_large_list(kind):
        return [value_of(chance, kind.value_type) for _ in range(chance.randrange(3))]
    if types.is_integer(kind):
        return chance.choice([0, 1, -1, 7, 2 ** (kind.bit_width - 1) - 1, -(2 ** (kind.bit_width - 1))])
    small = chance.randint(-9, 9)
    if types.is_floating(kind):
        return small / 4
    if types.is_decimal(kind):
        return decimal.Decimal(small * chance.choice([1, 100, 10_000])).scaleb(-kind.scale)
    if types.is_boolean(kind):
        return small > 0
    if types.is_date32(kind):
        return dt.date(2000 + small, 1, 31)
    if types.is_timestamp(kind):
        zone = None if kind.tz is None else dt.UTC
        return dt.datetime(1990, 1, 1, tzinfo=zone) + dt.timedelta(days=small * 3000, microseconds=small + 9)
    text = chance.choice(["", "a", "b", "é", "x" * 40 + "y" * chance.randrange(3), "'"])
    return text.encode() if types.is_binary(kind) or types.is_large_binary(kind) else text


class Rows:
    """Of a table as a plain list: also those of a prepared epoch, and of versions that may come back."""

    def __init__(self) -> None:
        self.now: list[Row] = []
        self.prepared: list[Row] = []
        self.past: dict[int, list[Row]] = {}
        self.last = 0

    def rename(self, name: str, to: str | None, inner: str | None = None) -> None:
        for row in {id(row): row for rows in (self.now, self.prepared, *self.past.values()) for row in rows}.values():
            if inner is not None:
                row[name] = _renamed(row.get(name), inner, to)
            elif (value := row.pop(name, None)) is not None and to is not None:
                row[to] = value

    def keep(self, where: Callable[[Row], bool]) -> None:
        self.now = [row for row in self.now if where(row)]


def _renamed(value: Any, name: str, to: str | None) -> Any:
    if isinstance(value, list):  # of structs, or a map's pairs
        return [_renamed(each, name, to) for each in value]
    if isinstance(value, tuple):
        return value[0], _renamed(value[1], name, to)
    if not isinstance(value, dict):
        return value
    return {(to if key == name else key): each for key, each in value.items() if key != name or to is not None}


class Others:
    """The tools of one format."""

    steps: Sequence[str]

    def __init__(self, folder: str, chance: Random, rows: Rows, new_key: Callable[[Random], Any]) -> None:
        self.folder, self.chance, self.rows, self.new_key = folder, chance, rows, new_key
        self.refusals: dict[str, str] = {}
        self.done: set[str] = set()

    def schema(self) -> pa.Schema:
        raise NotImplementedError

    def step(self, *, but: Sequence[str] = ()) -> str | None:
        what = self.chance.choice([step for step in self.steps if step not in but])
        before = self.version()
        try:
            getattr(self, what)()
        except Exception as error:
            if self.version() != before:
                raise
            self.refusals[what] = f"{type(error).__name__}: {error}"
            return None
        self.done.add(what)
        self.rows.past[self.version()] = list(self.rows.now)
        return what

    def shape(self, names: Sequence[str]) -> list[str]:
        """What rows of these columns have to fit."""
        raise NotImplementedError

    def obstacles(self) -> set[str]:
        """What the table has that a sink may refuse."""
        raise NotImplementedError

    def repair(self) -> None:
        """Take that away."""
        raise NotImplementedError

    def version(self) -> int:
        raise NotImplementedError

    def make(self, schema: pa.Schema) -> None:
        """Make the table."""

    def job(self) -> None:
        """Another job of headrace adds rows."""
        rows, data = self.some()
        sink = self.sink()
        with sink.begin(Attempt("other", self.rows.last, 0, 0)) as transaction:
            transaction.write(data.combine_chunks().to_batches()[0])
            handle = transaction.prepare()
        driver(sink, "other").commit(self.rows.last, (handle,))
        self.rows.now = self.rows.now + rows

    def sink(self) -> TwoPhaseSink[TableHandle]:
        raise NotImplementedError

    def made(self, schema: pa.Schema, count: int) -> list[Row]:
        """New rows."""
        made = []
        for _ in range(count):
            self.rows.last += 1
            row = {each.name: value_of(self.chance, each.type, nullable=each.nullable) for each in schema}
            made.append({**row, "n": self.rows.last, "id": self.new_key(self.chance)})
        return made

    def taken(self) -> set[str]:
        """Names that no new column can have."""
        return set()

    def has_lost_a_source(self) -> bool:
        """Whether the column of a partition is gone."""
        return False

    def some(self) -> tuple[list[Row], pa.Table]:
        """New rows, of which columns are missing now and then."""
        schema = self.schema()
        kept = [field for field in schema if field.name in ("n", "id") or not field.nullable or self.chance.random() < 0.8]
        rows = self.made(pa.schema(kept), self.chance.randint(1, 4))
        return rows, pa.Table.from_pylist(rows, pa.schema(kept))

    def column(self, is_kind: Callable[[pa.DataType], bool] = lambda _: True) -> pa.Field:
        return self.chance.choice([field for field in self.schema() if field.name in NAMES and is_kind(field.type)])

    def free(self) -> str:
        return self.chance.choice([name for name in NAMES if name not in self.schema().names])

    def least(self) -> int:
        return self.chance.randint(0, self.rows.last + 1)


class OthersOfDelta(Others):
    steps = (
        *("job", "append", "append", "merge", "overwrite", "schema_overwrite", "delete", "delete", "update", "compact"),
        *("compact", "order", "vacuum", "checkpoint", "checkpoint", "cleanup", "restore", "restore", "constraint", "property"),
        *("optional", "add", "nested", "nested", "feature", "job"),
    )

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(f"{self.folder}/table")

    def schema(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    def shape(self, names: Sequence[str]) -> list[str]:
        columns = [str(field) for field in self.schema() if field.name in names or not field.nullable]
        return sorted([*columns, str(self.table.metadata().partition_columns)])

    def version(self) -> int:
        return self.table.version()

    def made(self, schema: pa.Schema, count: int) -> list[Row]:
        """An empty text is a null in partitions, which deltalake does not know."""
        by = self.table.metadata().partition_columns
        made = super().made(schema, count)
        return [{name: "a" if name in by and value == "" else value for name, value in row.items()} for row in made]

    def append(self) -> None:
        rows, data = self.some()
        write_deltalake(self.table, data, mode="append", schema_mode="merge")
        self.rows.now = self.rows.now + rows

    def merge(self) -> None:
        """Rows with a column that the table does not have."""
        data = pa.schema([*self.schema(), pa.field(self.free(), self.chance.choice(TYPES))])
        rows = self.made(data, 2)
        write_deltalake(self.table, pa.Table.from_pylist(rows, data), mode="append", schema_mode="merge")
        self.rows.now = self.rows.now + rows

    def overwrite(self) -> None:
        rows, data = self.some()
        least = self.least()
        write_deltalake(self.table, data, mode="overwrite", schema_mode="merge", predicate=f"n >= {least}")
        self.rows.now = [row for row in self.rows.now if row["n"] < least] + rows

    def schema_overwrite(self) -> None:
        """What the table has is gone, with its columns."""
        columns = [pa.field(name, self.chance.choice(TYPES)) for name in self.chance.sample(NAMES, 2)]
        own = [field for field in self.schema() if field.name in ("n", "id", *self.table.metadata().partition_columns)]
        data = pa.schema({field.name: field for field in [*columns, *own]}.values())
        rows = self.made(data, 2)
        write_deltalake(self.table, pa.Table.from_pylist(rows, data), mode="overwrite", schema_mode="overwrite")
        self.rows.now = rows

    def delete(self) -> None:
        least = self.least()
        if self.chance.random() < 0.5:
            name = self.column().name
            self.table.delete(f'"{name}" IS NULL AND n >= {least}')
            self.rows.keep(lambda row: row.get(name) is not None or row["n"] < least)
            return
        self.table.delete(f"n >= {least}")
        self.rows.keep(lambda row: row["n"] < least)

    def update(self) -> None:
        least, field = self.least(), self.column(types.is_integer)
        self.table.update({f'"{field.name}"': "5"}, predicate=f"n >= {least}")
        self.rows.now = [row if row["n"] < least else {**row, field.name: 5} for row in self.rows.now]

    def compact(self) -> None:
        self.table.optimize.compact()

    def order(self) -> None:
        self.table.optimize.z_order(["n"])

    def vacuum(self) -> None:
        self.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def checkpoint(self) -> None:
        self.table.create_checkpoint()

    def cleanup(self) -> None:
        self.table.cleanup_metadata()

    def sink(self) -> TwoPhaseSink[TableHandle]:
        return DeltaSink(f"{self.folder}/table")

    def restore(self) -> None:
        version = self.chance.choice(list(self.rows.past))
        self.table.restore(version)
        self.rows.now = list(self.rows.past[version])

    def constraint(self) -> None:
        self.table.alter.add_constraint({"positive": "n >= 0"})

    def property(self) -> None:
        name, value = self.chance.choice(
            [
                *(("delta.appendOnly", "true"), ("delta.enableChangeDataFeed", "true"), ("delta.checkpointInterval", "2")),
                *(("delta.dataSkippingNumIndexedCols", "1"), ("delta.logRetentionDuration", "interval 0 days")),
                ("delta.deletedFileRetentionDuration", "interval 0 days"),
            ]
        )
        self.table.alter.set_table_properties({name: value})

    def optional(self) -> None:
        self.table.alter.drop_column_not_null(self.chance.choice([f.name for f in self.schema() if not f.nullable]))

    def feature(self) -> None:
        """One of which a writer that follows the table's schema has nothing to do."""
        names = "AppendOnly ChangeDataFeed CheckConstraints GeneratedColumns Invariants TimestampWithoutTimezone"
        feature = getattr(TableFeatures, self.chance.choice(names.split()))
        self.table.alter.add_feature(feature, allow_protocol_versions_increase=True)

    def add(self) -> None:
        field = pa.field(self.free(), self.chance.choice(TYPES))
        self.table.alter.add_columns(DeltaSchema.from_arrow(pa.schema([field])).fields)

    def nested(self) -> None:
        """Rows with a field that a struct of the table does not have."""
        field = self.column(types.is_struct)
        wider = pa.struct([*field.type, pa.field(self.chance.choice(["z", "u"]), pa.float64())])
        data = pa.schema([pa.field(f.name, wider, f.nullable) if f.name == field.name else f for f in self.schema()])
        rows = self.made(data, 2)
        write_deltalake(self.table, pa.Table.from_pylist(rows, data), mode="append", schema_mode="merge")
        self.rows.now = self.rows.now + rows

    def obstacles(self) -> set[str]:
        found = self.table.metadata().configuration
        constraints = {name for name in found if name.startswith("delta.constraints.")}
        return constraints | {name for name in ("delta.appendOnly", "delta.enableChangeDataFeed") if found.get(name) == "true"}

    def repair(self) -> None:
        for name in self.obstacles():
            if name.startswith("delta.constraints."):
                self.table.alter.drop_constraint(name.removeprefix("delta.constraints."))
            else:
                self.table.alter.set_table_properties({name: "false"})


class OthersOfIceberg(Others):
    steps = (
        *("job", "append", "files", "files", "overwrite", "rewrite", "delete", "delete", "add", "nested", "nested", "rename"),
        *("nested", "rename", "drop"),
        *("type", "type", "upgrade", "optional", "required", "spec", "spec", "property", "expire", "restore", "restore"),
    )

    @property
    def table(self) -> Table:
        return iceberg_table(self.folder)

    def schema(self) -> pa.Schema:
        return self.table.schema().as_arrow()

    def taken(self) -> set[str]:
        return {field.name for spec in self.table.specs().values() for field in spec.fields}

    def has_lost_a_source(self) -> bool:
        fields = [field for spec in self.table.specs().values() for field in spec.fields]
        return any(self.table.schema().find_column_name(field.source_id) is None for field in fields)

    def shape(self, names: Sequence[str]) -> list[str]:
        columns = [str(field) for field in self.table.schema().fields if field.name in names or field.required]
        return sorted([*columns, str(self.table.spec())])

    def version(self) -> int:
        snapshot = self.table.current_snapshot()
        return -1 if snapshot is None else snapshot.snapshot_id

    def append(self) -> None:
        rows, data = self.some()
        self.table.append(data)
        self.rows.now = self.rows.now + rows

    def overwrite(self) -> None:
        rows, data = self.some()
        least = self.least()
        self.table.overwrite(data, overwrite_filter=expressions.GreaterThanOrEqual("n", least))
        self.rows.now = [row for row in self.rows.now if row["n"] < least] + rows

    def sink(self) -> TwoPhaseSink[TableHandle]:
        return IcebergSink(TABLE, catalog_of(self.folder))

    def make(self, schema: pa.Schema) -> None:
        """Of format version 1."""
        catalog = load_catalog(**catalog_of(self.folder))
        catalog.create_namespace_if_not_exists(TABLE.partition(".")[0])
        catalog.create_table(TABLE, schema, properties={"format-version": "1"})

    def files(self) -> None:
        """Files without ids: a column that is added after it was dropped has the values of a file with its name."""
        assert not self.done & {"drop", "nested", "rename"}
        rows, data = self.some()
        path = f"{self.folder}/added-{self.rows.last}-{time.time_ns()}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, pa.schema([field.remove_metadata() for field in data.schema])), path)
        self.table.add_files([path])
        self.rows.now = self.rows.now + rows

    def rewrite(self) -> None:
        """As a compaction does."""
        self.table.overwrite(pa.Table.from_pylist(self.rows.now, self.schema()))

    def delete(self) -> None:
        least = self.least()
        if self.chance.random() < 0.5:
            name = self.column(lambda kind: not types.is_nested(kind)).name
            self.table.delete(expressions.And(expressions.IsNull(name), expressions.GreaterThanOrEqual("n", least)))
            self.rows.keep(lambda row: row.get(name) is not None or row["n"] < least)
            return
        self.table.delete(expressions.GreaterThanOrEqual("n", least))
        self.rows.keep(lambda row: row["n"] < least)

    def add(self) -> None:
        name = self.free()
        with self.table.update_schema() as update:
            update.union_by_name(pa.schema([pa.field(name, self.chance.choice(TYPES))]))
        if self.chance.random() < 0.3:
            with self.table.update_schema() as update:
                update.move_first(name)

    def nested(self) -> None:
        assert "files" not in self.done
        field = self.column(types.is_nested)
        inside = field.type
        path = (field.name,)
        if not types.is_struct(field.type):
            path = (field.name, "value" if types.is_map(field.type) else "element")
            inside = field.type.item_type if types.is_map(field.type) else field.type.value_type
        what, inner = self.chance.choice(["add", "rename", "drop"]), self.chance.choice([each.name for each in inside])
        free = self.chance.choice([name for name in "xyzu" if name not in [each.name for each in inside]])
        with self.table.update_schema(allow_incompatible_changes=True) as update:
            if what == "add":
                update.add_column((*path, free), self.chance.choice([LongType(), StringType(), DoubleType()]))
            elif what == "rename":
                update.rename_column((*path, inner), free)
            else:
                assert len(list(inside)) > 1  # DuckDB reads no struct without fields
                update.delete_column((*path, inner))
        if what != "add":
            self.rows.rename(field.name, free if what == "rename" else None, inner)

    def rename(self) -> None:
        assert "files" not in self.done
        name, to = self.column().name, self.free()
        with self.table.update_schema() as update:
            update.rename_column(name, to)
        self.rows.rename(name, to)

    def drop(self) -> None:
        assert "files" not in self.done
        name = self.column().name
        with self.table.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column(name)
        self.rows.rename(name, None)

    def type(self) -> None:
        fields = [field for field in self.schema() if field.type in WIDER]
        field = self.chance.choice(fields)
        with self.table.update_schema() as update:
            update.update_column(field.name, field_type=WIDER[field.type])

    def optional(self) -> None:
        with self.table.update_schema() as update:
            update.make_column_optional(self.chance.choice([f.name for f in self.schema() if not f.nullable]))

    def required(self) -> None:
        name = self.column().name
        assert all(row.get(name) is not None for rows in (self.rows.now, *self.rows.past.values()) for row in rows)
        with self.table.update_schema(allow_incompatible_changes=True) as update:
            update.update_column(name, required=True)

    def spec(self) -> None:
        fields = self.table.spec().fields
        if fields and self.chance.random() < 0.5:
            with self.table.update_spec() as update:
                update.remove_field(self.chance.choice(fields).name)
            return
        field = self.column(lambda kind: not types.is_nested(kind) and not types.is_floating(kind))
        by = [transforms.BucketTransform(3), transforms.IdentityTransform(), transforms.VoidTransform()]
        by += [transforms.DayTransform()] if types.is_temporal(field.type) else []
        by += [transforms.TruncateTransform(2)] if field.type in (pa.string(), pa.int64(), pa.binary()) else []
        with self.table.update_spec() as update:
            update.add_field(field.name, self.chance.choice(by), f"p{len(self.table.specs())}")

    def property(self) -> None:
        mode = self.chance.choice(["none", "counts", "truncate(1)", "full"])
        merged = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
        with self.table.transaction() as transaction:
            transaction.set_properties(self.chance.choice([{"write.metadata.metrics.default": mode}, merged]))

    def upgrade(self) -> None:
        with self.table.transaction() as transaction:
            transaction.upgrade_table_version(2)

    def expire(self) -> None:
        self.table.maintenance.expire_snapshots().older_than(dt.datetime.now()).commit()
        there = {each.snapshot_id for each in self.table.snapshots()}
        self.rows.past = {version: rows for version, rows in self.rows.past.items() if version in there}

    def restore(self) -> None:
        version = self.chance.choice(list(self.rows.past))
        with self.table.manage_snapshots() as snapshots:
            snapshots.set_current_snapshot(version)
        self.rows.now = list(self.rows.past[version])

    def obstacles(self) -> set[str]:
        """Partitions of columns that are gone, or of another type, and such without values of a column that has to have one."""
        schema, found = self.table.schema(), set()
        for part in self.table.spec().fields:
            name = schema.find_column_name(part.source_id)
            field = None if name is None else schema.find_field(part.source_id)
            is_plain = isinstance(part.transform, transforms.IdentityTransform)
            kinds = BooleanType if is_plain else DecimalType | TimestampType | TimestamptzType
            is_void = isinstance(part.transform, transforms.VoidTransform)
            can = StringType | IntegerType | LongType | DateType | kinds
            if field is None or (field.required if is_void else not isinstance(field.field_type, can)):
                found.add(part.name)
        return found

    def repair(self) -> None:
        """A table of format version 1 keeps a partition without values, which needs its column."""
        if self.has_lost_a_source() and self.table.format_version == 1:
            self.upgrade()
        for field in self.table.spec().fields:
            with suppress(ValueError), self.table.update_spec() as update:
                update.remove_field(field.name)
        sources = [self.table.schema().find_column_name(field.source_id) for field in self.table.spec().fields]
        with self.table.update_schema() as update:
            for name in filter(None, sources):
                update.make_column_optional(name)
