"""A search for rows that jobs into a table lose, double or change while others alter it: a table like it is the oracle.

In the history of a table two jobs write into it, exactly once or by key. Their drivers and connections are killed, their
options are edited, and others alter the table, write into it, lock it and take away rights. A second table, the mirror, is
altered likewise, and has each row by a plain statement. What is refused has a reason in the plan; once that is undone, the
same rows go through, once.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt
from headrace.connectors.sql.url import driver_engine
from headrace.enumerator.errors import HeadraceError
from headrace.sql import SqlSink, UpsertSink
from tests.helpers.databases import mariadb, postgresql
from tests.helpers.sql_rig import Crash
from tests.helpers.waiting import eventually
from tests.values.budget import explore, find
from tests.values.bugs import table_histories as bugs
from tests.values.sql_tables import ALTERATIONS, KEYS, LITE, MY, NAMES, PAYLOAD, PG, Alteration, alteration

pytestmark = pytest.mark.timeout(300)

COUNTS: Counter[str] = Counter()
HISTORIES = 60
"""Examples of the default budget."""
PRODUCTS = (PG, MY, LITE)
STEPS = ("epoch",) * 7 + ("alter",) * 3 + ("hand",) * 2 + ("revoke", "parent")
ACTIONS = ("crash",) * 3 + ("cut",) * 2 + ("alter",) * 4 + ("hand", "lock", "restart", "late")
MOMENTS = ("begun", "begun", "begun", "begun", "written", "prepared", "check", "record", "recorded", "end", "ended", "clean_up", "fence")
STYLES = ({"write": "insert", "delete": "delete"}, {"write": "+U", "delete": "-D", "before": "-U"}, {"write": False, "delete": True})
Row = dict[str, Any]
Step = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Epoch:
    """What a job writes. `rows`: by task. `key`: by which an edited job writes, that has been "k" before. `form`: a seed of how
    batches are cut and typed. `moment`: when `action` happens.
    """

    job: int
    mode: str
    columns: tuple[str, ...]
    key: str
    form: int
    is_restart: bool
    rows: tuple[tuple[Row, ...], ...]
    moment: str
    action: Step

    @property
    def style(self) -> dict[str, Any]:
        """How it says what becomes of a row."""
        return Random(self.form).choice(STYLES)


@dataclass(frozen=True)
class Plan:
    """A table of `product`, and what happens. `unique`: its constraint of the key, and `is_unique_u` another one."""

    product: str
    name: str
    schema: str
    keys: tuple[str, ...]
    payload: tuple[str, ...]
    unique: str
    is_unique_u: bool
    is_partitioned: bool
    has_parent: bool
    has_trigger: bool
    identity: str
    steps: tuple[Step, ...]

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(f"k{at}" for at in range(len(self.keys)))

    def kind(self, name: str) -> Any:
        return (KEYS[self.keys[int(name[1])]] if name[0] == "k" else PAYLOAD[self.payload[int(name[1])]]) if name[1:] else PAYLOAD["int"]


def plan_of(product: str, number: int) -> Plan:
    """One of many: Hypothesis' own draws are much alike, and few of them alter a table that a job is writing to."""
    chance = Random(number)
    keys = [name for name, column in KEYS.items() if product in column.types]
    payload = [name for name, column in PAYLOAD.items() if product in column.types]
    is_partitioned = chance.random() < 0.2 and product != LITE
    plan = Plan(
        product,
        chance.choice(NAMES),
        chance.choice(["", "", "S one"]) if product != LITE else "",
        tuple(chance.choices(keys, k=chance.choice([1, 1, 2]))),
        tuple(chance.choices(payload, k=chance.randint(1, 3))),
        chance.choice(["PRIMARY KEY", "PRIMARY KEY", "UNIQUE", ""]),
        chance.random() < 0.2 and not is_partitioned,
        is_partitioned,
        chance.random() < 0.3 and not is_partitioned,
        chance.random() < 0.3 and product != LITE,
        chance.choice(["", "ALWAYS", "BY DEFAULT"]),
        (),
    )
    modes = ["upsert", "changes"] if product == LITE else ["append", "upsert", "changes"]
    jobs = [chance.choice(modes if plan.unique else modes[:1]) for _ in range(2)]
    return replace(plan, steps=tuple(_step(chance, plan, jobs, modes) for _ in range(chance.randint(5, 14))))


def _step(chance: Random, plan: Plan, jobs: list[str], modes: list[str]) -> Step:
    what = chance.choice(STEPS)
    if what == "epoch":
        return what, (_epoch(chance, plan, jobs, modes),)
    return _action(chance, plan, what)


def _action(chance: Random, plan: Plan, what: str) -> Step:
    arguments: dict[str, tuple[Any, ...]] = {
        "alter": (chance.choice(ALTERATIONS), chance.randrange(len(plan.payload))),
        "hand": (chance.choice(["insert", "update", "delete"]), _row(chance, plan, chance.randrange(4))),
        "parent": (chance.randrange(5),),
    }
    return what, arguments.get(what, ())


def _row(chance: Random, plan: Plan, group: int, *, has_nulls: bool = False) -> Row:
    """`group`: of the key's values, so that tasks have none in common."""
    row: Row = {}
    for at, name in enumerate(plan.keys):
        groups = KEYS[name].values
        row[f"k{at}"] = chance.choice(groups[group % len(groups)] if at == 0 else chance.choice(groups))
        if has_nulls and chance.random() < 0.05:
            row[f"k{at}"] = None
    for at, name in enumerate(plan.payload):
        row[f"p{at}"] = chance.choice(PAYLOAD[name].values)
    numbers = {"n": chance.choice([None, *range(9)]), "u": chance.choice([None, *range(40)]), "d": chance.choice([1, None])}
    return row | numbers | {"f": chance.choice([None, 0, 1, 2, 3])}


def _epoch(chance: Random, plan: Plan, jobs: list[str], modes: list[str]) -> Epoch:
    job = chance.randrange(2)
    is_restart = chance.random() < 0.4
    if is_restart and chance.random() < 0.2:
        jobs[job] = chance.choice(modes)
    mode, tasks = jobs[job], chance.choice([1, 1, 2])
    columns = [*plan.key, *(f"p{at}" for at in range(len(plan.payload)) if chance.random() < 0.8)]
    columns += [name for name in ("n", "u", "d", *("f" * plan.has_parent)) if chance.random() < 0.4]
    rows = []
    for task in range(tasks):
        made: list[Row] = []
        for _ in range(chance.choice([0, 1, 2, 3, 5])):
            group = task + tasks * chance.randrange(3)
            row = _row(chance, plan, group, has_nulls=chance.random() < 0.1)
            if mode == "append" and plan.keys[0] == "int" and chance.random() < 0.8:
                row["k0"] = chance.randrange(10**6)
            op = chance.choice(["write", "write", "delete", "before"]) if mode == "changes" else "write"
            made.append({**row, "op": op})
            if op == "before":
                made.append({**_row(chance, plan, group), "op": "write"})
        rows.append(tuple(made))
    key = chance.choice(["k"] * 12 + ["u", "n"]) if is_restart else "k"
    moment = chance.choice(MOMENTS)
    action = _action(chance, plan, "alter" if moment == "begun" and chance.random() < 0.5 else chance.choice(ACTIONS))
    if chance.random() < 0.3 or (moment == "written" and action[0] == "hand"):  # which was first is not known then
        moment = ""
    return Epoch(job, mode, tuple(columns), key, chance.randrange(2**32), is_restart, tuple(rows), moment, action)


class Stopped(Exception):  # noqa: N818 - not an error: what was altered cannot be undone
    """The history ends here."""


@dataclass
class Job:
    name: str
    epoch: int = 0
    driver: JobCommitter[Any] | None = None


@dataclass
class Try:
    """What has happened while an epoch is written."""

    epoch: Epoch
    pending: Step | None
    mirrored: int = 0
    is_disturbed: bool = False


class History:
    """The table and its mirror, and who writes to them."""

    _numbers = itertools.count(time.time_ns() % 10**9)

    def __init__(self, server: Server, plan: Plan) -> None:
        self.server, self.plan = server, plan
        self.number = next(self._numbers)
        self.is_pg, self.is_my = plan.product == PG, plan.product == MY
        self.engine = sa.create_engine(driver_engine(server.url, 5).url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self.quote = self.engine.dialect.identifier_preparer.quote_identifier
        self.name = f"{plan.name}{self.number}"
        self.table, self.mirror, self.parent = (self.full(self.name + end) for end in ("", " m", " p"))
        self.jobs = [Job(f"h{self.number}-{at}") for at in range(2)]
        self.altered: dict[str, tuple[Alteration, Alteration]] = {}
        self.locker: Any = None
        self.is_revoked = False
        self.now: Try | None = None
        self.connect()
        self.create()

    # --- the table and its mirror ---------------------------------------------------------------------------------------

    def full(self, name: str) -> str:
        schema = f"{self.quote(self.plan.schema)}." if self.plan.schema else ""
        return (schema + self.quote(name)).replace("%%", "%")

    def connect(self) -> None:
        self.db = self.engine.connect()
        if self.is_pg:
            self.execute("SET TIME ZONE 'UTC'")
        if self.plan.product == LITE:
            self.execute("PRAGMA busy_timeout = 50")

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """With the signs of the product in place of values."""
        if self.plan.product != LITE:
            statement = statement.replace("%", "%%").replace("?", "%s")
        result = self.db.exec_driver_sql(statement, values)
        return [tuple(row) for row in result] if result.returns_rows else []

    def create(self) -> None:
        plan = self.plan
        if plan.schema:
            self.execute(f"CREATE SCHEMA IF NOT EXISTS {self.quote(plan.schema)}")
        self.execute(f"CREATE TABLE {self.parent} (id INT PRIMARY KEY)")
        self.execute(f"INSERT INTO {self.parent} VALUES (0), (1), (2), (3)")
        for table, end in ((self.table, "a"), (self.mirror, "b")):
            columns = [f"{name} {plan.kind(name).types[plan.product]}" for name in self.given if name[1:]]
            columns += ["n INT", "u INT" + " UNIQUE" * plan.is_unique_u, "d INT DEFAULT 7"]
            columns += ["g BIGINT GENERATED ALWAYS AS (n * 2) STORED", "t INT", "f INT"]
            if plan.has_parent:
                columns.append(f"FOREIGN KEY (f) REFERENCES {self.parent} (id) ON DELETE CASCADE")
            if plan.identity and self.is_pg:
                columns.append(f"i BIGINT GENERATED {plan.identity} AS IDENTITY")
            if plan.identity and self.is_my and not plan.is_partitioned:
                columns.append("i BIGINT AUTO_INCREMENT UNIQUE")
            if plan.unique:
                columns.append(f"CONSTRAINT pk_{self.number}{end} {plan.unique} ({', '.join(plan.key)})")
            by = {PG: "HASH (k0)", MY: "KEY (k0) PARTITIONS 2"}.get(plan.product, "")
            self.execute(f"CREATE TABLE {table} ({', '.join(columns)})" + f" PARTITION BY {by}" * plan.is_partitioned)
            for part in range(2 if plan.is_partitioned and self.is_pg else 0):
                values = f"FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
                self.execute(f"CREATE TABLE {self.full(f'{self.number}{end}{part}')} PARTITION OF {table} {values}")
            if plan.has_trigger:
                self.trigger(table, end)
        if self.is_pg:
            self.execute(f"GRANT ALL ON {self.table}, {self.parent} TO {ROLE}")

    def trigger(self, table: str, end: str) -> None:
        name = f"tr_{self.number}{end}"
        if self.is_pg:
            self.execute(f"CREATE TRIGGER {name} BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION set_t()")
            return
        schema = f"{self.quote(self.plan.schema)}." if self.plan.schema else ""
        for when in ("INSERT", "UPDATE"):
            self.execute(f"CREATE TRIGGER {schema}{name}{when} BEFORE {when} ON {table} FOR EACH ROW SET NEW.t = coalesce(NEW.n, 0) + 1")

    @property
    def given(self) -> tuple[str, ...]:
        """The columns that jobs may give."""
        return (*self.plan.key, *(f"p{at}" for at in range(len(self.plan.payload))), "n", "u", "d", "f")

    def alteration(self, what: str, place: int) -> tuple[Alteration, Alteration] | None:
        plan = self.plan
        made = [
            alteration(what, plan.product, f"p{place}", plan.kind(f"p{place}"), plan.kind("k0"), ", ".join(plan.key), f"{self.number}{end}")
            for end in "ab"
        ]
        if None in made or (what == "no key" and plan.unique != "PRIMARY KEY"):
            return None
        return made[0], made[1]  # type: ignore[return-value]

    def alter(self, what: str, place: int) -> None:
        """Nothing if the table cannot be altered so, or not now."""
        found = self.alteration(what, place)
        if found is None or (self.altered and what in self.altered):
            return
        others = {name for name, _ in self.altered.items()} & {"drop", "rename", "narrow", "widen", "not null"}
        if others and what in {"drop", "rename", "narrow", "widen", "not null"}:
            return
        ours, theirs = found
        try:
            self.execute(ours.do.replace("{t}", self.table))
        except DBAPIError:
            return
        COUNTS["alterations"] += 1
        self.execute(theirs.do.replace("{t}", self.mirror))
        if what == "narrow":  # what is written later stays as it was given
            self.execute(theirs.undo.replace("{t}", self.mirror))
        if ours.undo:
            self.altered[what] = found

    def repair(self) -> None:
        """Undo what was altered, and give back what was taken away."""
        self.unlock()
        self.grant()
        for what, (ours, theirs) in reversed([*self.altered.items()]):
            try:
                self.execute(ours.undo.replace("{t}", self.table))
                if what != "narrow":
                    self.execute(theirs.undo.replace("{t}", self.mirror))
            except DBAPIError as error:
                raise Stopped(str(error)) from error
        self.altered.clear()

    def grant(self) -> None:
        if self.is_revoked:
            self.execute(f"GRANT INSERT ON {self.table} TO {ROLE}")
        self.is_revoked = False

    def unlock(self) -> None:
        if self.locker is not None:
            with suppress(DBAPIError):
                self.locker.exec_driver_sql("UNLOCK TABLES" if self.is_my else "ROLLBACK")
            self.locker.close()
        self.locker = None

    def act(self, step: Step) -> None:
        """Locks are waited for where no job holds one for long."""
        seconds = 0 if self.now is not None else 2
        if self.is_pg:
            self.execute(f"SET lock_timeout = '{seconds or 0.05}s'")
        if self.is_my:
            self.execute(f"SET lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}")
        match step:
            case "alter", (what, place):
                self.alter(what, place)
            case "hand", (what, row):
                self.hand(what, row)
            case "parent", (key,):
                with suppress(DBAPIError):
                    self.execute(f"DELETE FROM {self.parent} WHERE id = {key}")
            case "revoke", _ if self.is_pg:
                self.execute(f"REVOKE INSERT ON {self.table} FROM {ROLE}")
                self.is_revoked = True
            case "lock", _:
                self.locker = self.engine.connect()
                with suppress(DBAPIError):
                    lock = f"LOCK TABLE {self.table} IN ACCESS EXCLUSIVE MODE" if self.is_pg else f"LOCK TABLES {self.table} WRITE"
                    if self.is_pg:
                        self.locker.exec_driver_sql("BEGIN")
                        self.locker.exec_driver_sql("SET lock_timeout = '50ms'")
                    if self.is_my:
                        self.locker.exec_driver_sql("SET lock_wait_timeout = 0")
                    self.locker.exec_driver_sql("BEGIN IMMEDIATE" if self.plan.product == LITE else lock.replace("%", "%%"))
                self.disturbed()
            case "cut", _ if self.plan.product != LITE:
                self.cut()
            case "restart", _ if self.server.kill is not None:
                self.server.kill()
                self.server.restart()
                self.connect()
                self.locker = None
                self.disturbed()
            case "crash", _ if self.now is not None:
                raise Crash

    def disturbed(self) -> None:
        if self.now is not None:
            self.now.is_disturbed = True

    def cut(self) -> None:
        """All sessions of others."""
        if self.is_pg:
            self.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
        else:
            for (number,) in self.execute(_OTHERS):
                with suppress(DBAPIError):
                    self.execute(f"KILL {number}")
            eventually(lambda: not self.execute(_OTHERS), "sessions that were killed are there")
        self.locker = None
        self.disturbed()

    def hand(self, what: str, row: Row) -> None:
        """A statement in both tables, by hand. In the first it may be refused, and have to wait for locks."""
        with suppress(DBAPIError):
            for table in (self.table, self.mirror):
                match what:
                    case "insert":
                        self.insert(table, {name: row[name] for name in (*self.plan.key, "n")})
                    case "update":
                        self.execute(f"UPDATE {table} SET d = ?", row["n"])
                    case "delete":
                        found = " AND ".join(f"{name} = ?" for name in self.plan.key)
                        self.execute(f"DELETE FROM {table} WHERE {found}", *(self.bound(row[name]) for name in self.plan.key))

    def insert(self, table: str, row: Row) -> None:
        self.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", *map(self.bound, row.values()))

    def bound(self, value: Any) -> Any:
        """MariaDB's times have no zone."""
        return value.replace(tzinfo=None) if self.is_my and getattr(value, "tzinfo", None) else value

    def key_of_job(self, epoch: Epoch) -> tuple[str, ...]:
        return self.plan.key if epoch.key == "k" or epoch.mode == "append" else (epoch.key,)

    # --- jobs -----------------------------------------------------------------------------------------------------------

    def mirrored(self, epoch: Epoch, rows: tuple[Row, ...]) -> None:
        """Write rows into the mirror, each by a statement, in a transaction. Raises DBAPIError."""
        key = self.key_of_job(epoch)
        found = " AND ".join(f"{name} = ?" for name in key)
        names = [name for name in epoch.columns if name not in key]
        self.execute("BEGIN")
        try:
            for at, row in enumerate(rows):
                there = "" if epoch.mode == "append" else f"FROM {self.mirror} WHERE {found}"
                values = [self.bound(row[name]) for name in key]
                if row["op"] == "before" and "before" in epoch.style and all(row[name] == rows[at + 1][name] for name in key):
                    continue  # the row that takes its place
                if row["op"] != "write":
                    self.execute(f"DELETE {there}", *values)
                elif there and self.execute(f"SELECT 1 {there}", *values):
                    if names:
                        changes = ", ".join(f"{name} = ?" for name in names)
                        values = [*(self.bound(row[name]) for name in names), *values]
                        self.execute(f"UPDATE {self.mirror} SET {changes} WHERE {found}", *values)
                else:
                    self.insert(self.mirror, {name: row[name] for name in epoch.columns})
        except DBAPIError:
            self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def sink(self, epoch: Epoch) -> Any:
        table = f"{self.plan.schema}.{self.name}" if self.plan.schema else self.name
        if epoch.form % 2 and not self.plan.schema:
            table = {PG: "public.", MY: "warehouse.", LITE: "main."}[self.plan.product] + table
        if epoch.mode == "append":
            return SqlSink(self.server.sink_url, table, lock_timeout_s=0.3)
        key = self.key_of_job(epoch)
        change = "_op" if epoch.mode == "changes" else None
        return UpsertSink(self.server.sink_url, table, key, change, lock_timeout_s=0.3)

    def batches(self, epoch: Epoch, rows: tuple[Row, ...]) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow has them: in other orders of columns, typed and cut otherwise; empty batches between them."""
        chance = Random(epoch.form)
        columns = {name: pa.array([row[name] for row in rows], self.plan.kind(name).arrow) for name in epoch.columns}
        if epoch.mode == "changes":
            columns["_op"] = pa.array([epoch.style.get(row["op"], epoch.style["delete"]) for row in rows])
        for name, column in columns.items():
            is_text = pa.types.is_string(column.type)
            if chance.random() < 0.2 and not pa.types.is_boolean(column.type):
                columns[name] = column.dictionary_encode()
            elif is_text and chance.random() < 0.4:
                columns[name] = column.cast(chance.choice([pa.large_string(), pa.string_view()]))
            elif pa.types.is_int32(column.type) and chance.random() < 0.3:
                columns[name] = column.cast(pa.int64())
        order = chance.sample([*columns], len(columns))
        whole = pa.record_batch({name: columns[name] for name in order})
        at = 0
        while at < len(rows):
            if chance.random() < 0.2:
                yield whole.slice(0, 0)
            count = chance.choice([1, 2, 9])
            yield whole.slice(at, count)
            at += count

    def moment(self, name: str) -> None:
        now = self.now
        if now is not None and now.pending is not None and now.epoch.moment == name:
            step, now.pending = now.pending, None
            self.act(step)

    def driver(self, job: Job, sink: Any) -> JobCommitter[Any]:
        """One that has recovered."""
        if job.driver is None:
            committer = sink.committer(job.name)

            def timed(call: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
                def timed_call(*arguments: Any) -> Any:
                    self.moment(before)
                    result = call(*arguments)
                    self.moment(after)
                    return result

                return timed_call

            for name, before, after in (
                ("fence", "fence", ""),
                ("check", "check", ""),
                ("record", "record", "recorded"),
                ("end", "end", "ended"),
                ("clean_up", "clean_up", ""),
            ):
                setattr(committer, name, timed(getattr(committer, name), before, after))
            job.driver = JobCommitter(job.name, committer)
            job.driver.recover()
        return job.driver

    def dismiss(self, job: Job) -> None:
        if job.driver is not None:
            job.driver.close()
        job.driver = None

    def write(self, now: Try) -> None:
        """Write and commit the epoch, as far as it is not; then it is in the mirror, too."""
        epoch, job = now.epoch, self.jobs[now.epoch.job]
        sink = self.sink(epoch)
        driver = self.driver(job, sink)
        if not is_recorded(driver, job):
            handles = []
            for task, rows in enumerate(epoch.rows):
                with sink.begin(Attempt(job.name, job.epoch, task, 0)) as transaction:
                    self.moment("begun")
                    for batch in self.batches(epoch, rows):
                        transaction.write(batch)
                    self.moment("written")
                    handles.append(transaction.prepare())
                if epoch.mode != "append":
                    self.mirrored(epoch, rows)
                self.moment("prepared")
            driver.commit(job.epoch, tuple(handle for handle in handles if handle is not None))
        if epoch.mode == "append":
            self.mirrored(epoch, tuple(itertools.chain(*epoch.rows)))
        job.epoch += 1

    def epoch(self, epoch: Epoch) -> None:
        job = self.jobs[epoch.job]
        if epoch.is_restart:
            self.dismiss(job)
        epoch = replace(epoch, columns=tuple(name for name in epoch.columns if name in self.given))
        late, first = self.late(job, epoch) if epoch.action[0] == "late" and any(epoch.rows) else None, job.epoch
        self.now = now = Try(epoch, epoch.action if epoch.moment else None)
        for number in range(6):
            now.is_disturbed = False
            try:
                self.write(now)
                COUNTS.update({"epochs": 1, "rows": sum(map(len, epoch.rows))})
                break
            except Crash:
                COUNTS["crashes"] += 1
                self.dismiss(job)
            except HeadraceError as error:
                self.dismiss(job)
                COUNTS["refusals"] += 1
                if now.is_disturbed:
                    self.unlock()
                elif not self.explained(now, error, number):
                    break
        else:
            raise AssertionError("six tries were not enough")
        self.now = None
        self.unlock()
        if late is not None:
            with late[0]:
                if job.epoch > first:
                    self.come_late(job, epoch, *late)

    def late(self, job: Job, epoch: Epoch) -> tuple[Any, JobCommitter[Any]] | None:
        """A transaction of the epoch, and its driver: another one takes its place meanwhile."""
        try:
            old, transaction = self.driver(job, self.sink(epoch)), self.sink(epoch).begin(Attempt(job.name, job.epoch, 0, 1))
        except HeadraceError:
            return None
        job.driver = None
        return transaction, old

    def come_late(self, job: Job, epoch: Epoch, transaction: Any, old: JobCommitter[Any]) -> None:
        """Nothing of it may come into the table."""
        number = job.epoch - 1
        with suppress(HeadraceError):
            for batch in self.batches(epoch, next(filter(None, epoch.rows))):
                transaction.write(batch)
            handle = transaction.prepare()
            old.commit(number, (handle,))
            raise AssertionError("a driver that was replaced has committed")
        COUNTS["late"] += 1
        old.close()
        self.dismiss(job)
        with suppress(HeadraceError):
            self.driver(job, self.sink(epoch))

    def explained(self, now: Try, error: HeadraceError, number: int) -> bool:
        """Whether to try the rows again, as what explains the refusal is undone. False: the mirror refuses the rows, too."""
        epoch, job = now.epoch, self.jobs[now.epoch.job]
        now.pending = None
        reasons, is_edited = self.reasons(epoch), self.is_revoked or epoch.key != "k"
        if self.is_recorded(job, epoch):
            return True
        if is_edited or self.altered:
            assert reasons or self.refuses(epoch), f"nothing explains: {error!r}; altered: {[*self.altered]}"
            self.repair()
            now.epoch = replace(epoch, key="k")
            COUNTS["repairs"] += 1
            return True
        assert reasons or self.refuses(epoch), f"nothing explains: {error!r}"
        COUNTS["dropped"] += 1
        return False

    def is_recorded(self, job: Job, epoch: Epoch) -> bool:
        """Whether the job's rows are in the table for good; what is prepared of it otherwise is ended."""
        self.grant()
        return is_recorded(self.driver(job, self.sink(replace(epoch, key="k"))), job)

    def refuses(self, epoch: Epoch) -> bool:
        """Whether the database refuses the rows, by hand."""
        for rows in epoch.rows if epoch.mode != "append" else (tuple(itertools.chain(*epoch.rows)),):
            try:
                self.mirrored(epoch, rows)
            except DBAPIError:
                return True
        return False

    def reasons(self, epoch: Epoch) -> set[str]:
        """Why the epoch may be refused, though the database takes its rows."""
        found = {what for what, (ours, _) in self.altered.items() if any(self.concerns(each, epoch) for each in ours.refuses)}
        is_by_key = epoch.mode != "append"
        if self.is_revoked:
            found.add("revoked")
        is_unique = self.plan.is_unique_u and not self.is_my and epoch.key == "u" and "u" in epoch.columns
        if is_by_key and epoch.key != "k" and not is_unique:
            found.add("key")
        if is_by_key and any(row[name] is None for rows in epoch.rows for row in rows for name in self.key_of_job(epoch)):
            found.add("null in the key")
        if is_by_key and not self.plan.unique:
            found.add("no key")
        if is_by_key and self.is_my and self.plan.is_unique_u and "u" in epoch.columns:
            found.add("another key")
        return found

    def concerns(self, refused: str, epoch: Epoch) -> bool:
        match refused:
            case "upsert":
                return epoch.mode != "append"
            case _ if refused[0] == "-":
                return refused[1:] not in epoch.columns
        return refused in epoch.columns and (refused != "u" or epoch.mode != "append")

    # --- the oracle -----------------------------------------------------------------------------------------------------

    def play(self) -> None:
        with suppress(Stopped):
            for step, arguments in self.plan.steps:
                if step == "epoch":
                    self.epoch(*arguments)
                else:
                    self.act((step, arguments))
                self.compare()
        COUNTS["tables"] += 1

    def compare(self) -> None:
        names = [name for name in self.names(self.mirror) if name != "i"]
        assert {*names} == {*self.names(self.table)} - {"i"}
        cast = {PG: "CAST({} AS TEXT)", MY: "CAST({} AS BINARY)", LITE: "quote({})"}[self.plan.product]
        listed = ", ".join(cast.format(self.quote(name).replace("%%", "%")) for name in names)
        ours, theirs = (Counter(map(texts, self.execute(f"SELECT {listed} FROM {table}"))) for table in (self.table, self.mirror))
        COUNTS["cells"] += ours.total() * len(names)
        assert ours == theirs, f"of {names}: {[*(ours - theirs).elements()]} for {[*(theirs - ours).elements()]}"

    def names(self, table: str) -> list[str]:
        statement = f"SELECT * FROM {table} WHERE 1 = 0"
        return [*self.db.exec_driver_sql(statement if self.plan.product == LITE else statement.replace("%", "%%")).keys()]

    def close(self) -> None:
        self.unlock()
        for job in self.jobs:
            self.dismiss(job)
        self.cut() if self.plan.product != LITE else None
        self.db.close()


def is_recorded(driver: JobCommitter[Any], job: Job) -> bool:
    return driver.recorded_epoch is not None and driver.recorded_epoch >= job.epoch


def texts(row: tuple[Any, ...]) -> tuple[str | None, ...]:
    """Without the zeros at the end of decimals, of which an altered column has others."""
    found = [value.decode("latin1") if isinstance(value, bytes) else value for value in row]
    return tuple(value and re.sub(r"^([-\d :]+?)(\.\d*?)0*(\+00)?$", _without_zeros, value) for value in found)


def _without_zeros(found: re.Match[str]) -> str:
    return found[1] + found[2].rstrip(".") + (found[3] or "")


@dataclass(frozen=True)
class Server:
    """A database. `sink_url`: by which the sinks come. `kill` and `restart`: None where there is no server."""

    url: str
    sink_url: str
    kill: Callable[[], None] | None = None
    restart: Callable[[], None] = lambda: None


_OTHERS = "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = 'writer'"
ROLE = "histories"
_SET_T = "BEGIN NEW.t := coalesce(NEW.n, 0) + 1; RETURN NEW; END"


@pytest.fixture(scope="module")
def servers(tmp_path_factory) -> Iterator[Callable[[str], Server]]:
    with ExitStack() as stack:

        def started(product: str) -> Server:
            if product == LITE:
                url = f"sqlite:///{tmp_path_factory.mktemp('histories') / 'tables.db'}"
                return Server(url, url)
            database = stack.enter_context({PG: postgresql, MY: mariadb}[product]())
            sink_url = database.url
            if product == PG:
                prepare_postgresql(database.url)
                sink_url = database.url.replace("writer:", f"{ROLE}:")
            return Server(database.url, sink_url, database.kill, database.restart)

        yield cache(started)


def prepare_postgresql(url: str) -> None:
    engine = sa.create_engine(driver_engine(url, 5).url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in (
            "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
            f"CREATE FUNCTION set_t() RETURNS trigger AS $$ {_SET_T} $$ LANGUAGE plpgsql",
            f"CREATE ROLE {ROLE} LOGIN PASSWORD 'not-a-secret'",
            f"GRANT ALL ON SCHEMA public TO {ROLE}",
            'CREATE SCHEMA "S one"',
            f'GRANT USAGE ON SCHEMA "S one" TO {ROLE}',
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()


def check(server: Server, plan: Plan) -> None:
    history = History(server, plan)
    try:
        history.play()
    except AssertionError as error:
        error.add_note(repr(plan))
        raise
    finally:
        history.close()


def histories(server: Server, product: str) -> Callable[[], None]:
    return given(st.integers(0, 2**32 - 1))(lambda number: check(server, plan_of(product, number)))


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_short_run_of_table_histories(servers, product):
    find(histories(servers(product), product), 6)


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_table_is_as_by_plain_statements(servers, product):
    server = servers(product)
    explore(lambda: histories(server, product), HISTORIES, f"table histories: {product}", COUNTS)


@pytest.mark.parametrize(("product", "bug"), bugs.OF_TABLE_HISTORIES)
def test_a_bug_of_table_histories_is_found(servers, product, bug):
    with bug(), pytest.raises(AssertionError):
        find(histories(servers(product), product), HISTORIES)
