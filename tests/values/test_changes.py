"""A search for rows of PostgreSQL's tables that their changes lose, double or change: the table itself is the oracle.

In the history of a table rows are written in transactions that overlap, columns are added, dropped, altered and renamed, and
the table is rewritten and truncated, while its changes are read, kept in checkpoints, and read again from there. A cell that
was written since its column was last altered has the table's value in the copy.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import pytest

pytest.importorskip("psycopg", reason="needs headrace[sql]")

import psycopg
from psycopg import sql

from headrace.enumerator import EmbeddedRun
from headrace.enumerator.errors import HeadraceError
from headrace.postgresql import ChangesSource, table_rows
from tests.helpers.databases import drop_slots, logical_postgresql, psql
from tests.values.budget import by_number, explore, find, noted
from tests.values.bugs import changes as bugs

COUNTS: Counter[str] = Counter()
TABLES = 100
"""Examples of the default budget."""
KEYS, MARK, LARGE = 40, 10**6, "x" * 3000
TYPES = (
    "int",
    "bigint",
    "text",
    "varchar(9)",
    "numeric(12, 3)",
    "numeric",
    "boolean",
    "date",
    "jsonb",
    "int[]",
    "real",
    "uuid",
)
GENERATED = "int GENERATED ALWAYS AS (id * 2) STORED"
NAMES = ("a", "b", "C d", "e")
STEPS = (
    "write",
    "write",
    "write",
    "poll",
    "poll",
    "checkpoint",
    "checkpoint",
    "restart",
    "alter",
    "alter",
    "open",
    "end",
    "migrate",
)
NEW_SNAPSHOT = {"drop", "type", "rename", "plain"}
"""What columns may go through that no checkpoint continues, with another of the same name or place."""
Step: TypeAlias = tuple[str, tuple[Any, ...]]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with logical_postgresql("newest") as server:
        yield server.url


@dataclass(frozen=True)
class Plan:
    """A table, how it is read, and what happens. `several`: the source may find other tables. `ahead`: batches that are read,
    and in a checkpoint, before the steps.
    """

    rows: int
    columns: tuple[str, ...]
    chunk_rows: int
    is_partitioned: bool
    has_full_rows: bool
    several: bool
    readers: int
    ahead: int
    steps: tuple[Step, ...]


def plan_of(number: int) -> Plan:
    """One of many: Hypothesis' own draws are much alike, and few of them alter a table in the middle of its snapshot."""
    chance = Random(number)
    return Plan(
        chance.randint(15, KEYS),
        tuple(chance.choices((*TYPES, GENERATED, GENERATED), k=chance.randrange(4))),
        chance.choice([5, 5, 11, 100]),
        chance.random() < 0.3,
        chance.random() < 0.3,
        chance.random() < 0.3,
        chance.choice([1, 1, 3]),
        chance.choice([0, 1, 20, 20]),
        (*first(chance), *(step(chance) for _ in range(chance.randint(4, 16)))),
    )


def first(chance: Random) -> list[Step]:
    """Often several, of which one may hide another from the next start."""
    return [altered(chance) for _ in range(chance.choice([1, 1, 2, 3]))]


def step(chance: Random) -> Step:
    what = chance.choice(STEPS)
    match what:
        case "write":
            return what, (writes(chance), chance.choice(["commit", "commit", "rollback", "part"]))
        case "open":
            return what, (writes(chance),)
        case "end":
            return what, (chance.random() < 0.5,)
        case "poll":
            return what, (chance.choice([1, 2, 3, 9]),)
        case "alter":
            return altered(chance)
        case "migrate":
            return what, (alteration(chance), writes(chance))
        case _:
            return what, ()


def altered(chance: Random) -> Step:
    """Followed by an update of the last column."""
    return "alter", (alteration(chance), chance.randrange(KEYS), chance.randrange(10))


def alteration(chance: Random) -> Step:
    what = chance.choice(["add", "add", "add", "drop", "type", "rename", "plain", "full", "default", "rewrite", "truncate"])
    place, kind = chance.randrange(4), chance.choice(TYPES)
    arguments: dict[str, tuple[Any, ...]] = {
        "add": (place, kind, chance.choice(["", "", "default", "generated", "volatile"])),
        "drop": (place,),
        "type": (place, kind),
        "rename": (place, chance.randrange(4)),
        "plain": (place,),
    }
    return what, arguments.get(what, ())


def writes(chance: Random) -> list[Step]:
    return [written(chance) for _ in range(chance.randint(1, 4))]


def written(chance: Random) -> Step:
    what, key = chance.choice(["insert", "update", "enlarge", "delete", "move"]), chance.randrange(KEYS)
    is_large, seed = chance.random() < 0.5, chance.randrange(100)
    arguments: dict[str, tuple[Any, ...]] = {
        "insert": (key, seed, is_large),
        "update": (key, chance.randrange(4), seed),
        "enlarge": (key, is_large),
        "delete": (key,),
        "move": (key, KEYS + chance.randrange(20)),
    }
    return what, arguments[what]


class History:
    """A table and the copy of it."""

    _numbers = itertools.count(time.time_ns() % 10**9)

    def __init__(self, url: str, plan: Plan) -> None:
        self.url, self.plan = url, plan
        self.number = next(self._numbers)
        self.table = f"t{self.number}"
        self.db = psycopg.connect(url, autocommit=True)
        self.other = psycopg.connect(url)
        for connection in (self.db, self.other):
            connection.execute("SET lock_timeout = '50ms'")
            connection.commit()
        self.now = 0
        self.altered: Counter[str] = Counter()
        self.altered_at: dict[str, int] = {}
        self.retyped: set[str] = set()
        self.refusals: list[str] = []
        self.is_read, self.mark = False, MARK
        self.copy: dict[int, dict[str, Any]] = {}
        self.kept: tuple[dict[int, dict[str, Any]], bytes | None] = ({}, None)
        self.run: EmbeddedRun[Any] | None = None
        self.migration: threading.Thread | None = None
        self.create()

    def create(self) -> None:
        columns = "".join(f', "{name}" {kind}' for name, kind in zip(NAMES, self.plan.columns, strict=False))
        partitioned = " PARTITION BY HASH (id)" if self.plan.is_partitioned else ""
        self.db.execute(
            f"CREATE TABLE {self.table} (id bigint PRIMARY KEY, at int, big text STORAGE EXTERNAL{columns}){partitioned}"
        )
        for part in range(2 if self.plan.is_partitioned else 0):
            values = f"FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
            self.db.execute(f"CREATE TABLE {self.table}_{part} PARTITION OF {self.table} {values}")
        if self.plan.has_full_rows:
            self.identity("FULL")
        for key in range(self.plan.rows):
            self.insert(self.db, key, key, large=key % 7 == 0)
        self.db.execute(f"CREATE PUBLICATION p{self.number} FOR TABLE {self.table} WITH (publish_via_partition_root)")

    def source(self) -> ChangesSource:
        return ChangesSource(
            self.url,
            tables=[f"public.{self.table}*" if self.plan.several else self.table],
            publication=f"p{self.number}",
            slot=f"headrace_{self.number}",
            chunk_rows=self.plan.chunk_rows,
            metadata=["_op", "_lsn", "_unchanged", "_table"],
        )

    def close(self) -> None:
        self.stop()
        self.join()
        self.other.close()
        drop_slots(self.url)
        psql(self.url, f"DROP PUBLICATION p{self.number}", f"DROP TABLE {self.table}")
        self.db.close()

    # --- the table ------------------------------------------------------------------------------------------------------

    def columns(self, connection: Any, generated: str = "") -> dict[str, str]:
        """Those that steps are about, with their types. `generated`: how, as in `attgenerated`; by default not at all."""
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated = %s AND attname <> ALL('{id,at,big}')",
            [self.table, generated],
        )
        return dict(found.fetchall())

    def insert(self, connection: Any, key: int, seed: int, *, large: bool) -> None:
        columns = self.columns(connection)
        names = [sql.Identifier(name) for name in ("id", "at", "big", *columns)]
        values = [sql.Literal(each) for each in (key, self.now, LARGE + str(self.now) if large else "small")]
        connection.execute(
            sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING").format(
                sql.Identifier(self.table),
                sql.SQL(", ").join(names),
                sql.SQL(", ").join([*values, *(value_of(kind, seed + place) for place, kind in enumerate(columns.values()))]),
            )
        )

    def write(self, connection: Any, step: Step) -> None:
        what, arguments = step
        t, now = self.table, self.now
        match what, arguments:
            case "insert", (key, seed, large):
                self.insert(connection, key, seed, large=large)
            case "update", (key, column, seed):
                if columns := [*self.columns(connection).items()]:
                    name, kind = columns[column % len(columns)]
                    update = sql.SQL("UPDATE {} SET at = {}, {} = {} WHERE id BETWEEN {} AND {}")
                    values = (sql.Literal(now), sql.Identifier(name), value_of(kind, seed))
                    connection.execute(update.format(sql.Identifier(t), *values, sql.Literal(key), sql.Literal(key + seed % 9)))
            case "enlarge", (key, large):
                big = LARGE + str(now) if large else "small"
                connection.execute(f"UPDATE {t} SET at = {now}, big = '{big}' WHERE id = {key}")
            case "delete", (key,):
                connection.execute(f"DELETE FROM {t} WHERE id BETWEEN {key} AND {key + 2}")
            case "move", (key, other):
                free = f"NOT EXISTS (SELECT FROM {t} WHERE id = {other})"
                connection.execute(f"UPDATE {t} SET at = {now}, id = {other} WHERE id = {key} AND {free}")

    def transaction(self, writes: list[Step], end: str) -> None:
        with suppress(psycopg.Error), self.db.transaction() as whole:
            for step in writes:
                with self.db.transaction() as part:
                    self.write(self.db, step)
                    if end == "part" and step is writes[0]:
                        raise psycopg.Rollback(part)
            if end == "rollback":
                raise psycopg.Rollback(whole)

    def open(self, writes: list[Step]) -> None:
        """The transaction stays open. A run is there: its start would wait for the end."""
        if self.run is None:
            return
        try:
            for step in writes:
                self.write(self.other, step)
        except psycopg.Error:
            self.other.rollback()

    def identity(self, kind: str) -> None:
        parts = [f"{self.table}_{part}" for part in range(2 if self.plan.is_partitioned else 0)]
        for name in (self.table, *parts):
            self.db.execute(f"ALTER TABLE {name} REPLICA IDENTITY {kind}")

    def alter(self, connection: Any, step: Step) -> None:
        """Raises psycopg's errors for what the table does not have, or cannot do."""
        (what, arguments), t = step, self.table
        there = [*self.columns(connection, "s" if what == "plain" else "")]
        free = [name for name in NAMES if name not in there]
        if what in ("drop", "type", "rename", "plain"):
            arguments = (there[arguments[0] % len(there)], *arguments[1:]) if there else ("none", *arguments[1:])
        match what, arguments:
            case "add", (place, kind, how):
                column = free[place % len(free)] if free else "none"
                value = value_of(kind, 3).as_string(connection)
                is_number = kind in ("int", "bigint")
                after = {
                    "": "",
                    "default": f"NOT NULL DEFAULT {value}",
                    "generated": "GENERATED ALWAYS AS (id * 2) STORED" if is_number else "",
                    "volatile": "DEFAULT (random() * 100)::int" if is_number else "",
                }[how]
                connection.execute(f'ALTER TABLE {t} ADD "{column}" {kind} {after}')
                self.altered_at[column] = self.now
                self.altered[what] += 1
            case "drop", (column,):
                connection.execute(f'ALTER TABLE {t} DROP "{column}"')
                self.altered[what] += 1
            case "type", (column, kind):
                connection.execute(f'ALTER TABLE {t} ALTER "{column}" DROP DEFAULT')
                connection.execute(f'ALTER TABLE {t} ALTER "{column}" TYPE {kind} USING "{column}"::text::{kind}')
                self.altered[what] += 1
                self.retyped.add(column)
                self.altered_at[column] = self.now
            case "rename", (column, place):
                name = free[place % len(free)] if free else "none"
                connection.execute(f'ALTER TABLE {t} RENAME "{column}" TO "{name}"')
                self.altered_at[name] = self.altered_at.get(column, -1)
                self.altered[what] += 1
            case "plain", (column,):
                connection.execute(f'ALTER TABLE {t} ALTER "{column}" DROP EXPRESSION')
                self.altered_at[column] = -1
                self.altered[what] += 1
            case (("full" | "default"), _):
                if connection is self.db:
                    self.identity(what.upper())
            case "rewrite", _:
                if connection is self.db:
                    connection.execute(f"VACUUM FULL {t}")
            case "truncate", _:
                connection.execute(f"TRUNCATE {t}")
            case "analyze", _:
                connection.execute(f"ANALYZE {t}")

    def migrate(self, altered: Step, writes: list[Step]) -> None:
        """A transaction that alters and writes, and ends while the next steps run."""
        connection = psycopg.connect(self.url)
        try:
            connection.execute("SET lock_timeout = '50ms'")
            self.alter(connection, altered)
            for step in writes:
                self.write(connection, step)
        except psycopg.Error:
            connection.close()
            return

        def end() -> None:
            time.sleep(0.05)
            connection.commit()
            connection.close()

        self.migration = threading.Thread(target=end)
        self.migration.start()

    def join(self) -> None:
        if self.migration is not None:
            self.migration.join()
            self.migration = None

    # --- its reader -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        if self.run is not None:
            self.run.close()
            self.run = None

    def restart(self) -> None:
        self.stop()
        self.is_read = False
        rows, state = self.kept
        self.copy = {key: dict(row) for key, row in rows.items()}
        if state is None:
            self.other.rollback()  # a slot waits for it
            self.join()
        self.run = EmbeddedRun(self.source(), clock=time.monotonic, checkpoint=state, parallelism=self.plan.readers)

    def poll(self, timeout: float = 0.05) -> bool:
        """Whether something came."""
        if self.run is None:
            self.restart()
        assert self.run is not None
        batch = self.run.poll(timeout)
        if batch is None:
            return False
        records = batch.records
        if self.plan.several:
            records = table_rows(records, f"public.{self.table}")
        for row in records.to_pylist():
            self.apply(row)
        return True

    def apply(self, row: dict[str, Any]) -> None:
        COUNTS["changes"] += 1
        op, unchanged = row["_op"], row["_unchanged"]
        cells = {name: value for name, value in row.items() if not name.startswith("_")}
        key = cells["id"]
        self.is_read = self.is_read or (key == self.mark and op == "insert")
        match op:
            case "truncate":
                self.copy.clear()
            case "delete":
                assert self.copy.pop(key, None) is not None, f"a row that is deleted is not there: {row}"
            case "snapshot" | "insert":
                assert key not in self.copy, f"twice: {row}"
                self.copy[key] = {**cells, **dict.fromkeys(unchanged, ...)}
            case "update":
                assert key in self.copy, f"a row that is updated is not there: {row}"
                self.copy[key] = {**cells, **{name: self.copy[key].get(name, ...) for name in unchanged}}

    def is_in_log(self) -> bool:
        return self.run is not None and self.run.coordinator.enumerator.stage.source != "snapshot"

    def checkpoint(self) -> None:
        if self.run is not None:
            self.kept = {key: dict(row) for key, row in self.copy.items()}, self.run.checkpoint()
            self.run.checkpoint_completed()

    def attempt(self, act: Callable[[], object]) -> bool:
        """Whether it was done. One that is refused is tried again from the last checkpoint at the next step."""
        try:
            act()
        except HeadraceError as error:
            COUNTS["refusals"] += 1
            self.stop()
            self.refusals.append(f"{type(error).__name__}: {error}")
            assert self.altered, self.refusals
            self.copy = {key: dict(row) for key, row in self.kept[0].items()}
            return False
        return True

    def play(self) -> None:
        if self.plan.ahead:
            for _ in range(self.plan.ahead):
                self.poll(0.01)
            self.checkpoint()
        for now, (what, arguments) in enumerate(self.plan.steps, 1):
            self.now = now
            if what in ("write", "open", "checkpoint"):
                self.join()
            match what:
                case "write":
                    self.transaction(*arguments)
                case "open":
                    self.open(*arguments)
                case "end":
                    self.other.commit() if arguments[0] else self.other.rollback()
                case "poll":
                    for _ in range(arguments[0]):
                        self.attempt(self.poll)
                case "checkpoint":
                    self.attempt(self.checkpoint)
                case "restart":
                    self.attempt(self.restart)
                case "migrate":
                    self.join()
                    self.migrate(*arguments)
                case "alter":
                    self.join()
                    with suppress(psycopg.Error):
                        self.alter(self.db, arguments[0])
                        self.write(self.db, ("update", (arguments[1], -1, arguments[2])))
        self.end()

    def end(self) -> None:
        """All is read, or what is refused stays refused, which something in the table's history has to explain."""
        self.join()
        self.other.commit()
        self.now += 1
        until, tries, marked = time.monotonic() + 20.0, 0, None
        while not self.is_read:
            if not self.attempt(self.poll) or not self.attempt(self.checkpoint):
                tries += 1
            if self.is_in_log() and self.run is not marked and not self.is_read:
                marked, self.mark = self.run, MARK + tries
                self.insert(self.db, self.mark, 0, large=False)
            if tries > 8:
                COUNTS["refused for good"] += 1
                assert NEW_SNAPSHOT & set(self.altered), self.refusals
                return
            assert time.monotonic() < until, f"nothing more comes: {self.refusals}"
        self.compare()
        COUNTS.update({"tables": 1, "tables with refusals": bool(self.refusals)})

    def compare(self) -> None:
        names = [name for (name, *_) in self.db.execute(f"SELECT * FROM {self.table} LIMIT 0").description or ()]
        listed = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
        rows = [
            dict(zip(names, row, strict=True))
            for row in self.db.execute(sql.SQL("SELECT {} FROM {}").format(listed, sql.Identifier(self.table)))
        ]
        there = {int(row["id"]): row for row in rows}
        assert there.keys() == self.copy.keys(), f"rows: {there.keys() ^ self.copy.keys()}"
        generated = {name for name in names if name not in (*self.columns(self.db), "id", "at", "big")}
        for key, row in there.items():
            for name, value in row.items():
                ours = self.copy[key].get(name)
                is_older = self.altered_at.get(name, -1) > int(row["at"] or 0)
                if name in generated or ours is ... or (is_older and (ours is None or name in self.retyped)):
                    continue
                COUNTS["cells"] += 1
                assert text_of(ours) == value or is_same(ours, value), f"{name} of {key}: {ours!r} for {value!r}"


def value_of(kind: str, seed: int) -> sql.Composable:
    """A value of the type, now and then null."""
    if seed % 11 == 10:
        return sql.SQL("NULL")
    text = {
        "boolean": str(seed % 2 == 0),
        "date": f"20{seed:02}-01-0{seed % 9 + 1}",
        "jsonb": json.dumps({"n": seed}),
        "int[]": f"{{{seed},NULL}}",
        "integer[]": f"{{{seed},NULL}}",
        "uuid": f"00000000-0000-0000-0000-0000000000{seed:02}",
    }.get(kind, str(seed))
    return sql.SQL("{}::" + kind).format(sql.Literal(text))


def text_of(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "{" + ",".join("NULL" if each is None else str(each) for each in value) + "}"
    return str(value)


def is_same(ours: Any, value: str | None) -> bool:
    """Numbers with other digits."""
    with suppress(TypeError, ValueError):
        return float(ours) == float(value or "")
    return False


def check(url: str, plan: Plan) -> None:
    with closing(History(url, plan)) as history, noted(lambda: repr(plan)):
        history.play()


def tables(url: str) -> Callable[[], None]:
    return by_number(lambda number: check(url, plan_of(number)))


def test_a_short_run_of_changes(url):
    find(tables(url), 8)


def test_the_copy_by_changes_is_the_table(url):
    explore(lambda: tables(url), TABLES, "changes", COUNTS)


@pytest.mark.parametrize("bug", bugs.OF_CHANGES)
def test_a_bug_of_changes_is_found(url, bug):
    with bug(), pytest.raises(AssertionError):
        find(tables(url), TABLES)
