"""A search over the history of Delta and Iceberg tables: jobs write, while other tools write, alter, rewrite and restore.

Each epoch has to be in the table once and whole, each value in its column, by each reader; or it is refused by an error of
headrace for something that has come in between. Then the rows are written as the table is now, and that has to succeed.
A number makes the whole history, as it is the seed of all choices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import types
from pyiceberg import expressions

from benchmarks.tables_soak import Reader
from headrace.connectors.base.sink import Attempt
from headrace.connectors.tables import committer, writing
from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.committer import TableCommitter
from headrace.connectors.tables.delta import _LoadedDelta
from headrace.connectors.tables.iceberg import _LoadedIceberg
from headrace.connectors.tables.log import OutdatedError
from headrace.enumerator.errors import HeadraceError
from tests.helpers.iceberg_rig import iceberg_table
from tests.helpers.table_rig import JOB, KilledError, driver
from tests.values.budget import explore, find, noted
from tests.values.bugs import table_history as bugs
from tests.values.table_tools import ALTERING, NAMES, TYPES, Others, OthersOfDelta, OthersOfIceberg, Row, Rows
from tests.values.test_tables import quoted, sql_of, table_of

COUNTS: Counter[str] = Counter()
TABLES = 60
"""Examples of the default budget."""
ENDS = ("commit", "commit", "again", "restart", "abort", "killed", "unrecorded", "lost", "raced", "raced")
EVOLUTIONS = ("follow", "follow", "add", "drop", "wider", "nested", "order", "alike")
"""Of the rows that the job has."""
KEYS: tuple[tuple[pa.DataType, Callable[[int], Any]], ...] = (
    (pa.int64(), lambda number: number),
    (pa.int32(), lambda number: number),
    (pa.string(), lambda number: f"k{number}"),
    (pa.decimal128(9, 2), lambda number: Decimal(number * 25).scaleb(-2)),
)
WIDER = ((pa.int64(), pa.int32()), (pa.float64(), pa.float32()), (pa.decimal128(12, 2), pa.decimal128(9, 2)))


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_string(wanted) or types.is_large_string(wanted):
        return found in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))
    if types.is_nested(found) and found.id == wanted.id and found.num_fields == wanted.num_fields:
        pairs = [(found.field(at), wanted.field(at)) for at in range(found.num_fields)]
        same = not types.is_struct(found) or all(one.name == other.name for one, other in pairs)
        return same and all(fits(one.type, other.type) for one, other in pairs)
    return found == wanted or (wanted, found) in WIDER or {found, wanted} == {pa.binary(), pa.large_binary()}


class RefusedForGood(Exception):  # noqa: N818
    """PyIceberg cannot replace files whose partition's column is gone."""


class History:
    """A table, the sink of a job, and what it is to hold."""

    others: Others

    def __init__(self, duckdb: Reader, kind: str, number: int) -> None:
        self.duckdb, self.kind, self.chance = duckdb, kind, Random(number)
        self.story: list[str] = []
        self.rows, self.epoch, self.offset = Rows(), 0, 0
        key, self.key = self.chance.choice(KEYS)
        self.has_changes = self.chance.random() < 0.5
        self.merges = self.chance.random() < 0.5
        self.source = pa.schema([pa.field("n", pa.int64(), self.chance.random() < 0.7), pa.field("id", key, nullable=False)])
        for _ in range(self.chance.randint(1, 3)):
            self.evolve("add")
        self.partitioned = self.chance.choice([field for field in self.source if field.name != "n"]).name
        self.partitions = [self.partition(self.source.field(self.partitioned).type)] if self.chance.random() < 0.4 else []
        self.partitions = [each for each in self.partitions if each]

    def partition(self, kind: pa.DataType) -> str:
        """What a table can be partitioned by, of the column `partitioned`."""
        name, is_plain = self.partitioned, types.is_string(kind) or types.is_integer(kind) or types.is_date(kind)
        found = [name] if is_plain else [""]
        if self.kind == "iceberg":
            found += [f"truncate(2, {name})"] if types.is_string(kind) or types.is_integer(kind) else []
            found += [f"day({name})", f"year({name})"] if types.is_temporal(kind) else []
            found += [f"bucket(3, {name})"] if is_plain or types.is_decimal(kind) or types.is_temporal(kind) else []
        return self.chance.choice(found)

    def options(self) -> dict[str, Any]:
        changes = Changes(("id",), ("offset",), "op") if self.has_changes else None
        return {"changes": changes, "merge_schema": self.merges}

    def new_key(self, chance: Random) -> Any:
        return self.key(chance.randrange(12))

    def play(self) -> None:
        kind_of_others = OthersOfDelta if self.kind == "delta" else OthersOfIceberg
        with (
            table_of(self.kind, **self.options()) as (self.sink, self.folder),
            patch.object(committer, "TIMEOUT_S", 5.0),
            patch.object(writing, "ROW_GROUP_BYTES", self.chance.choice([1, 64 << 20])),
            patch.object(writing, "MOST_OPEN_FILES", self.chance.choice([1, 64])),
        ):
            self.others = kind_of_others(self.folder, self.chance, self.rows, self.new_key)
            if self.chance.random() < 0.2:
                self.others.make(self.source)
            self.sink.create_table(self.source, self.partitions)
            self.driver = driver(self.sink)
            for _ in range(self.chance.randint(3, 10)):
                match self.chance.choice(["epoch", "epoch", "epoch", "others", "others", "source"]):
                    case "epoch":
                        self.write_epoch()
                        self.check()
                    case "others":
                        self.step()
                    case "source":
                        self.evolve(self.chance.choice(EVOLUTIONS))
                        self.restart()
            self.follow()
            self.write_epoch()
            self.check()
            self.driver = driver(self.sink)
            self.driver.recover()
            self.check()
            assert not [*Path(self.folder).rglob("_headrace/job/*.open")], "transactions are marked as open at the end"
        COUNTS.update({"tables": 1, f"tables of {self.kind}": 1, "peers' refusals": len(self.others.refusals)})

    def step(self, **but: Any) -> str | None:
        what = next(filter(None, (self.others.step(**but) for _ in range(4))), None)
        self.story.append(f"others: {what}")
        COUNTS[f"{self.kind}: {what}"] += 1
        return what

    # --- what the job writes ----------------------------------------------------------------------------------------------

    def evolve(self, what: str) -> None:
        """The rows to come have other columns."""
        if what == "follow":
            self.follow()
            return
        fields = {field.name: field for field in self.source}
        name = self.chance.choice(NAMES)
        field = fields.get(name)
        match what:
            case "add" if field is None:
                fields[name] = pa.field(name, self.chance.choice(TYPES), self.chance.random() < 0.9)
            case "drop":
                fields.pop(name, None)
            case "wider" if field is not None:
                pairs = [pair for pair in WIDER if field.type in pair]
                fields[name] = field.with_type(self.chance.choice(pairs)[0]) if pairs else field
            case "alike" if field is not None and types.is_string(field.type):
                others = [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
                fields[name] = field.with_type(self.chance.choice(others))
            case "nested" if field is not None and types.is_struct(field.type):
                fields[name] = field.with_type(pa.struct([*field.type, pa.field("z", pa.float64())]))
            case "order":
                fields = dict(self.chance.sample(list(fields.items()), len(fields)))
        self.source = pa.schema(fields.values())
        self.story.append(f"source: {what}: {self.source}")

    def follow(self) -> None:
        """Columns as the table has them, some of them left out."""
        table, needed = self.others.schema(), {"n", "id", *self.sink.log().load().files.sources}
        kept = [field for field in table if field.name in needed or not field.nullable or self.chance.random() < 0.8]
        self.source = pa.schema([field.remove_metadata() for field in self.chance.sample(kept, len(kept))])
        self.story.append(f"source: follow: {list(self.source)}")

    def restart(self) -> None:
        """Another process, with the checkpoint."""
        self.sink = type(self.sink)(**{**vars(self.sink), "merge_schema": self.merges})
        self.driver = driver(self.sink)
        if self.merges:
            wanted, table = self.source, self.others.schema()
            try:
                self.sink.create_table(wanted, self.partitions if self.partitioned in wanted.names else [])
            except HeadraceError as error:
                self.story.append(f"create_table: {error}")
                is_name_taken = self.others.taken() & (set(wanted.names) - set(table.names))
                if self.is_fitting(table, widened=True) and not self.others.obstacles() and not is_name_taken:
                    raise AssertionError("refused for no reason") from error
            else:
                self.story.append("create_table")
                self.rows.past[self.others.version()] = list(self.rows.now)

    def is_fitting(self, table: pa.Schema, *, widened: bool = False) -> bool:
        there = {field.name: field for field in table}
        if any(not field.nullable and field.name not in self.source.names for field in table):
            return False
        return all(
            fits(field.type, there[field.name].type) if field.name in there else widened for field in self.source
        ) and all(name in self.source.names for name in self.sink.log().load().files.sources)

    def batches(self) -> tuple[list[Row], list[list[pa.RecordBatch]]]:
        """Rows of one or two tasks."""
        table = self.others.schema()
        required = [field.name for field in table if not field.nullable]
        schema = pa.schema([f.with_nullable(f.nullable and f.name not in required) for f in self.source])
        rows, shares = [], []
        for _ in range(self.chance.randint(1, 2)):
            share = []
            for _ in range(self.chance.randint(1, 2)):
                made = self.others.made(schema, self.chance.randint(1, 3))
                columns = self.chance.sample(list(schema), len(schema))
                if self.has_changes:
                    for row in made:
                        self.offset += 1
                        row.update(offset=self.offset, op=self.chance.choice("cuud"))
                    columns += [pa.field("offset", pa.int64()), pa.field("op", pa.string())]
                rows += made
                share.append(pa.RecordBatch.from_pylist(made, pa.schema(columns)))
            shares.append(share)
        return [dict(row) for row in rows], shares

    # --- epochs ---------------------------------------------------------------------------------------------------------

    def write_epoch(self) -> None:
        rows, shares = self.batches()
        self.rows.prepared = [dict(row) for row in rows]
        self.happened: set[str] = set()
        shape = self.others.shape(self.source.names) if self.is_fitting(self.others.schema()) else []
        end = self.chance.choice(ENDS)
        try:
            handles = self.prepare(shares)
            self.between(self.chance.choice([0, 0, 1, 2]))
            self.finish(end, handles, rows, shares)
        except HeadraceError as error:
            self.story.append(f"epoch {self.epoch}: {end}: {type(error).__name__}: {error}")
            COUNTS["refused"] += 1
            if not self.is_explained(shape):
                raise AssertionError("refused for no reason") from error
            self.repair()
            return
        self.story.append(f"epoch {self.epoch}: {end}")
        self.recorded()

    def is_explained(self, shape: list[str]) -> bool:
        """Whether what the rows had to fit was never there, or is another one."""
        if self.others.obstacles() or self.is_full() or self.others.shape(self.source.names) != shape:
            return True
        return bool(self.happened & (ALTERING if self.has_changes else {"vacuum", "upgrade"}))

    def is_full(self) -> bool:
        """Whether a partition has an empty text, which Delta does not tell from a null."""
        names = self.partitions if self.kind == "delta" else []
        return any(row.get(name) == "" for name in names for row in self.rows.prepared)

    def between(self, count: int, **but: Any) -> None:
        for _ in range(count):
            self.happened.add(self.step(**but) or "")

    def prepare(self, shares: list[list[pa.RecordBatch]]) -> tuple[Any, ...]:
        handles = []
        for task, share in enumerate(shares):
            with self.sink.begin(Attempt(JOB, self.epoch, task, 0)) as transaction:
                for batch in share:
                    transaction.write(batch)
                handles.append(transaction.prepare())
        serializer = self.sink.handles
        return tuple(serializer.deserialize(1, serializer.serialize(each)) for each in handles if each is not None)

    def finish(self, end: str, handles: tuple[Any, ...], rows: list[Row], shares: list[list[pa.RecordBatch]]) -> None:
        if end == "restart":
            self.restart()
        if end == "abort":
            self.restart()
            self.driver.recover()
            self.rows.prepared = rows
            handles = self.prepare(shares)
        if end in ("killed", "unrecorded"):
            step = "end" if end == "killed" else "record"
            with patch.object(TableCommitter, step, side_effect=KilledError), pytest.raises(KilledError):
                self.driver.commit(self.epoch, handles)
            if end == "killed":
                self.add()
                self.between(1)
            self.driver = driver(self.sink)
        with self.around(end):
            self.driver.commit(self.epoch, handles)
        if end == "again":
            self.driver = driver(self.sink)
            self.driver.commit(self.epoch, handles)

    def around(self, end: str) -> AbstractContextManager[Any]:
        """What comes in the moment of the table's commit."""
        if end not in ("lost", "raced"):
            return nullcontext()
        loaded = _LoadedDelta if self.kind == "delta" else _LoadedIceberg
        inner, calls = loaded.commit, iter([end])

        def commit(table: Any, job: str, marker: Any, added: Any, removed: Any = None) -> None:
            now = next(calls, "") if added else ""
            if now == "raced":
                self.between(1, but=("vacuum",))
            inner(table, job, marker, added, removed)
            if now == "lost":
                raise OutdatedError("injected")

        return patch.object(loaded, "commit", commit)

    def recorded(self) -> None:
        COUNTS["epochs"] += 1
        self.epoch += 1
        self.add()

    def add(self) -> None:
        for row in self.rows.prepared:
            op = row.pop("op", None)
            row.pop("offset", None)
            if op is not None:
                self.rows.keep(lambda other, key=row["id"]: other["id"] != key)
            if op != "d":
                self.rows.now = [*self.rows.now, row]
        self.rows.prepared = []
        self.rows.past[self.others.version()] = list(self.rows.now)

    def repair(self) -> None:
        """The rows are written as the table is now, unless it has them."""
        self.others.repair()
        self.restart()
        self.driver.recover()
        if self.driver.recorded_epoch == self.epoch:
            self.recorded()
            return
        self.rows.prepared = []
        self.check()
        self.follow()
        self.restart()
        self.rows.prepared, shares = self.batches()
        try:
            self.driver.commit(self.epoch, self.prepare(shares))
        except HeadraceError as error:
            if self.has_changes and self.others.has_lost_a_source():
                raise RefusedForGood from error
            if not self.is_full():
                raise
            self.driver = driver(self.sink)
            return
        self.story.append(f"epoch {self.epoch}, written again")
        self.recorded()

    # --- what others read ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        table = self.others.schema()
        COUNTS["read-backs"] += 1
        wanted = Counter(plain(row, table) for row in self.rows.now)
        names = ", ".join(map(quoted, table.names))
        own = DeltaTable(f"{self.folder}/table") if self.kind == "delta" else iceberg_table(self.folder)
        found = own.to_pyarrow_table() if self.kind == "delta" else own.scan().to_arrow()
        empty = self.kind == "iceberg"  # PyIceberg makes null lists empty, also in files that it rewrites
        alike(same(found, table, empty), loose(wanted, empty), "by the format's library")
        if self.others.has_lost_a_source():  # which ends DuckDB's process
            return
        found = self.duckdb.query(f"SELECT {names} FROM {{}}", self.kind, self.folder).to_arrow_table()
        alike(same(found, table, empty), loose(wanted, empty), "by DuckDB")
        for _ in range(2):
            self.check_filter(table, own)

    def check_filter(self, table: pa.Schema, own: Any) -> None:
        COUNTS["filters"] += 1
        name = self.chance.choice([field.name for field in table if not types.is_nested(field.type)])
        values = [row[name] for row in self.rows.now if row.get(name) is not None]
        bound = self.chance.choice(values) if values and self.chance.random() < 0.8 else None
        sign = self.chance.choice(["=", "<=", ">="])
        scalar = pa.scalar(bound, table.field(name).type)
        literal = "NULL" if bound is None else sql_of(scalar)
        if self.kind == "iceberg" and types.is_timestamp(scalar.type) and bound is not None and bound.year < 1970:
            literal = None  # of a partition by days DuckDB takes the next day
        if bound is None:
            rows = [row["n"] for row in self.rows.now if row.get(name) is None]
        else:
            compare = {"=": lambda v: v == bound, "<=": lambda v: v <= bound, ">=": lambda v: v >= bound}[sign]
            rows = [row["n"] for row in self.rows.now if row.get(name) is not None and compare(row[name])]
        if literal is not None:
            text = f"SELECT n FROM {{}} WHERE {quoted(name)} " + ("IS NULL" if bound is None else f"{sign} {literal}")
            found = self.duckdb.query(text, self.kind, self.folder).fetchall()
            assert Counter(number for (number,) in found) == Counter(rows), f"by DuckDB: {text}"
            if self.kind == "delta" and "make_" not in text:
                found = pa.table(QueryBuilder().register("t", own).execute(text.format("t")))
                assert Counter(found["n"].to_pylist()) == Counter(rows), f"by deltalake: {text}"
        if self.kind == "iceberg":
            bound = bound.isoformat() if types.is_timestamp(scalar.type) and bound is not None else bound
            of = {"=": expressions.EqualTo, "<=": expressions.LessThanOrEqual, ">=": expressions.GreaterThanOrEqual}[sign]
            found = own.scan(row_filter=expressions.IsNull(name) if bound is None else of(name, bound)).to_arrow()
            assert Counter(found["n"].to_pylist()) == Counter(rows), f"by PyIceberg: {name} {sign} {bound}"


def alike(found: Counter[Any], wanted: Counter[Any], where: str) -> None:
    assert found == wanted, f"{where}: {[*(found - wanted).elements()]} in place of {[*(wanted - found).elements()]}"


def same(found: pa.Table, table: pa.Schema, empty: bool = False) -> Counter[Any]:
    return loose(Counter(plain(row, table) for row in found.to_pylist()), empty)


def loose(rows: Counter[Any], empty: bool) -> Counter[Any]:
    return Counter({str(row).replace("()", "None"): count for row, count in rows.items()}) if empty else rows


def plain(row: Row, table: pa.Schema) -> Any:
    return tuple((field.name, of_type(row.get(field.name), field.type)) for field in table)


def of_type(value: Any, kind: pa.DataType) -> Any:
    """A value as it is compared: fields that are not there are null."""
    if value is None:
        return None
    if types.is_struct(kind):
        return tuple((field.name, of_type(value.get(field.name), field.type)) for field in kind)
    if types.is_map(kind):
        return tuple(sorted((key, of_type(each, kind.item_type)) for key, each in dict(value).items()))
    if types.is_list(kind) or types.is_large_list(kind):
        return tuple(of_type(each, kind.value_type) for each in value)
    return value.isoformat() if types.is_temporal(kind) else value.normalize() if types.is_decimal(kind) else value


def check(duckdb: Reader, kind: str, number: int) -> None:
    history = History(duckdb, kind, number)
    with noted(lambda: "\n".join([f"{kind} {number}", *history.story])), suppress(RefusedForGood):
        history.play()


def searched(duckdb: Reader) -> Callable[[], None]:
    numbers = st.integers(0, 2**32 - 1)
    return given(st.sampled_from(["delta", "iceberg"]), numbers)(lambda kind, number: check(duckdb, kind, number))


def test_a_short_run_over_table_history(duckdb):
    find(searched(duckdb), 6)


def test_the_table_is_what_its_history_makes_it(duckdb):
    explore(lambda: searched(duckdb), TABLES, "table history", COUNTS)


@pytest.mark.parametrize("bug", bugs.OF_TABLE_HISTORY)
def test_a_bug_of_a_tables_history_is_found(duckdb, bug):
    with bug(), pytest.raises(AssertionError):
        find(searched(duckdb), TABLES)
