"""A table and its mirror, for the search over their history."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from headrace.connectors.sql.url import driver_engine
from tests.helpers.waiting import eventually
from tests.values.sql_plans import LITE, MY, PG, Alteration, Epoch, Plan, Row, alteration

START = f"{'BE'}GIN"
ROLE = "job_of_tables"
"""Of the jobs that write into PostgreSQL."""
OTHERS = "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = 'writer'"
OF_PAYLOAD = {"drop", "rename", "narrow", "widen", "not null"}
"""Alterations of the same columns, of which there is one at a time."""


class Stopped(Exception):  # noqa: N818 - not an error: what was altered cannot be undone
    """The history ends here."""


def by_key(key: tuple[str, ...], epoch: Epoch, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    last = {tuple(row[name] for name in key): row for row in rows}
    is_known = "before" in epoch.style
    gone = [row for row in rows if row["op"] == "delete" or (row["op"] == "before" and (not is_known or row in last.values()))]
    return (*({**row, "op": "delete"} for row in gone), *(row for row in last.values() if row["op"] == "write"))


class Pair:
    """A table, and its mirror, which has been altered likewise and is written by plain statements. `url`: of who may do all."""

    _numbers = itertools.count(time.time_ns() % 10**9)

    def __init__(self, url: str, plan: Plan) -> None:
        self.plan = plan
        self.number = next(self._numbers)
        self.is_pg, self.is_my = plan.product == PG, plan.product == MY
        unprepared = {"prepare_threshold": None} if plan.product == PG else {}  # of a table that is altered
        self.engine = sa.create_engine(
            driver_engine(url, 5).url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=unprepared
        )
        self.quote = self.engine.dialect.identifier_preparer.quote_identifier
        self.name = f"{plan.name}{self.number}"
        self.table, self.mirror, self.parent = (self.full(self.name + end) for end in ("", " m", " p"))
        self.altered: dict[str, tuple[Alteration, Alteration]] = {}
        self.locker: Any = None
        self.is_revoked = False
        self.db: Any = None
        self.connect()
        self.create()

    def full(self, name: str) -> str:
        schema = f"{self.quote(self.plan.schema)}." if self.plan.schema else ""
        return (schema + self.quote(name)).replace("%%", "%")

    def connect(self) -> None:
        """Also where the server was restarted."""
        if self.db is not None:
            self.db.invalidate()
            self.db.close()
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
            self.execute(
                f"CREATE TRIGGER {schema}{name}{when} BEFORE {when} ON {table} FOR EACH ROW SET NEW.t = coalesce(NEW.n, 0) + 1"
            )

    @property
    def given(self) -> tuple[str, ...]:
        """The columns that jobs may give."""
        return (*self.plan.key, *(f"p{at}" for at in range(len(self.plan.payload))), "n", "u", "d", "f")

    def alteration(self, what: str, place: int) -> tuple[Alteration, Alteration] | None:
        plan, name = self.plan, f"p{place}"
        kinds, key = (plan.kind(name), plan.kind("k0")), ", ".join(plan.key)
        made = [alteration(what, plan.product, name, *kinds, key, f"{self.number}{end}") for end in "ab"]
        if None in made or (what == "no key" and plan.unique != "PRIMARY KEY"):
            return None
        return made[0], made[1]  # type: ignore[return-value]

    def alter(self, what: str, place: int) -> bool:
        """False if the table cannot be altered so, or not now."""
        found = self.alteration(what, place)
        if found is None or what in self.altered or (what in OF_PAYLOAD and not OF_PAYLOAD.isdisjoint(self.altered)):
            return False
        ours, theirs = found
        try:
            self.execute(ours.do.replace("{t}", self.table))
        except DBAPIError:
            return False
        self.be_patient(2)
        self.execute(theirs.do.replace("{t}", self.mirror))
        if what == "narrow":  # what is written later stays as it was given
            self.execute(theirs.undo.replace("{t}", self.mirror))
        if ours.undo:
            self.altered[what] = found
        return True

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
        signs = ", ".join("?" * len(row))
        self.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({signs})", *map(self.bound, row.values()))

    def bound(self, value: Any) -> Any:
        """MariaDB's times have no zone."""
        return value.replace(tzinfo=None) if self.is_my and getattr(value, "tzinfo", None) else value

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

    def be_patient(self, seconds: float) -> None:
        """Wait so long for locks that others hold."""
        if self.is_pg:
            self.execute(f"SET lock_timeout = '{seconds or 0.05}s'")
        if self.is_my:
            self.execute(f"SET lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}")

    def revoke(self) -> None:
        self.execute(f"REVOKE INSERT ON {self.table} FROM {ROLE}")
        self.is_revoked = True

    def grant(self) -> None:
        if self.is_revoked:
            self.execute(f"GRANT INSERT ON {self.table} TO {ROLE}")
        self.is_revoked = False

    def lock(self) -> None:
        """Until `unlock`, for all others; or not at all, where they hold locks now."""
        self.locker = self.engine.connect()
        table = self.table.replace("%", "%%")
        statements = {
            PG: (START, "SET lock_timeout = '50ms'", f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"),
            MY: ("SET lock_wait_timeout = 0", f"LOCK TABLES {table} WRITE"),
            LITE: ("PRAGMA busy_timeout = 50", f"{START} IMMEDIATE"),
        }
        with suppress(DBAPIError):
            for statement in statements[self.plan.product]:
                self.locker.exec_driver_sql(statement)

    def unlock(self) -> None:
        if self.locker is not None:
            with suppress(DBAPIError):
                self.locker.exec_driver_sql("UNLOCK TABLES" if self.is_my else "ROLLBACK")
                self.locker.invalidate()
            self.locker.close()
        self.locker = None

    def cut(self) -> None:
        """All sessions of others."""
        if self.is_pg:
            self.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        elif self.is_my:
            for (number,) in self.execute(OTHERS):
                with suppress(DBAPIError):
                    self.execute(f"KILL {number}")
            eventually(lambda: not self.execute(OTHERS), "sessions that were killed are there")
        self.unlock()

    def write(self, epoch: Epoch, rows: tuple[Row, ...]) -> None:
        """Write rows into the mirror. Changes that are refused in their order are by key. Raises DBAPIError."""
        try:
            self.write_in_order(epoch, rows)
        except DBAPIError:
            if epoch.mode != "changes":
                raise
            self.write_in_order(epoch, by_key(key_of(self.plan, epoch), epoch, rows))

    def write_in_order(self, epoch: Epoch, rows: tuple[Row, ...]) -> None:
        """Each by a statement, in a transaction."""
        key = key_of(self.plan, epoch)
        found = " AND ".join(f"{name} = ?" for name in key)
        names = [name for name in epoch.columns if name not in key]
        self.execute(START)
        try:
            for at, row in enumerate(rows):
                there = "" if epoch.mode == "append" else f"FROM {self.mirror} WHERE {found}"
                values = [self.bound(row[name]) for name in key]
                is_replaced = row["op"] == "before" and "before" in epoch.style
                if is_replaced and all(row[name] == rows[at + 1][name] for name in key):
                    continue
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

    def compare(self) -> int:
        """How many cells both tables have. Raises AssertionError where they differ."""
        names = [name for name in self.names(self.mirror) if name != "i"]
        assert {*names} == {*self.names(self.table)} - {"i"}
        cast = {PG: "CAST({} AS TEXT)", MY: "CAST({} AS BINARY)", LITE: "quote({})"}[self.plan.product]
        listed = ", ".join(cast.format(self.quote(name).replace("%%", "%")) for name in names)
        found = (self.execute(f"SELECT {listed} FROM {table}") for table in (self.table, self.mirror))
        ours, theirs = (Counter(map(texts, rows)) for rows in found)
        assert ours == theirs, f"of {names}: {[*(ours - theirs).elements()]} for {[*(theirs - ours).elements()]}"
        return ours.total() * len(names)

    def names(self, table: str) -> list[str]:
        statement = f"SELECT * FROM {table} WHERE 1 = 0"
        return [*self.db.exec_driver_sql(statement if self.plan.product == LITE else statement.replace("%", "%%")).keys()]

    def close(self) -> None:
        self.unlock()
        self.cut()
        self.db.close()


def key_of(plan: Plan, epoch: Epoch) -> tuple[str, ...]:
    """By which the epoch is written."""
    return plan.key if epoch.key == "k" or epoch.mode == "append" else (epoch.key,)


def texts(row: tuple[Any, ...]) -> tuple[str | None, ...]:
    """Without the zeros at the end of decimals, of which an altered column has others."""
    found = [value.decode("latin1") if isinstance(value, bytes) else value for value in row]
    return tuple(value and re.sub(r"^([-\d :]+?)(\.\d*?)0*(\+00)?$", _without_zeros, value) for value in found)


def _without_zeros(found: re.Match[str]) -> str:
    return found[1] + found[2].rstrip(".") + (found[3] or "")
