"""A search for rows that upserts lose, change or overwrite in PostgreSQL and MariaDB: a dict is the oracle.

A table has keys of several types, and may have another unique key, a default that rows do not give, a generated column, and a
trigger. The databases' own drivers read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import types

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

from headrace.connectors.base.sink import Attempt
from headrace.connectors.sql.upsert import UpsertSink
from headrace.enumerator.errors import HeadraceError
from tests.helpers.databases import mariadb, postgresql
from tests.helpers.sql_rig import SqlRig
from tests.values import schemas
from tests.values.budget import explore, find
from tests.values.bugs import databases as bugs

COUNTS: Counter[str] = Counter()
UPSERTS = 60
"""Examples of the default budget."""
SERVERS = {"postgresql": postgresql, "mariadb": mariadb}
EXACT = "COLLATE utf8mb4_nopad_bin"
COLUMNS: dict[pa.DataType, tuple[str, str]] = {
    pa.int64(): ("BIGINT", "BIGINT"),
    pa.int16(): ("SMALLINT", "SMALLINT"),
    pa.bool_(): ("BOOLEAN", "BOOLEAN"),
    pa.float64(): ("DOUBLE PRECISION", "DOUBLE"),
    pa.decimal128(20, 5): ("NUMERIC(20, 5)", "DECIMAL(20, 5)"),
    pa.string(): ("TEXT", f"VARCHAR(80) {EXACT}"),
    pa.large_string(): ("CHAR(5)", f"CHAR(5) {EXACT}"),
    pa.binary(): ("BYTEA", "VARBINARY(80)"),
    pa.date32(): ("DATE", "DATE"),
    pa.time64("us"): ("TIME", "TIME(6)"),
    pa.timestamp("us", "UTC"): ("TIMESTAMPTZ", "DATETIME(6)"),
    pa.timestamp("us"): ("TIMESTAMP(3)", "DATETIME(3)"),
}
KEYS = (pa.int64(), pa.bool_(), pa.decimal128(20, 5), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"))
ANY_TEXT = st.sampled_from(
    ["", " ", "a", "A", "a ", "é", "e\u0301", "\\", "\\N", "'", '"', "%s", "\t", "\n", "שלום", "😀", "\0", "x" * 64]
)


@pytest.fixture(scope="module")
def urls() -> Iterator[Callable[[str], str]]:
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(SERVERS[name]()).url)


@dataclass
class Plan:
    """A table, and what is upserted one epoch after the other. `other`: a column that is unique, too."""

    keys: list[pa.DataType]
    payload: list[pa.DataType]
    other: bool
    epochs: list[list[list[Any]]]
    touches: list[bool]

    @property
    def schema(self) -> pa.Schema:
        columns = [(f"k{at}", kind) for at, kind in enumerate(self.keys)] + [
            (f"p{at}", kind) for at, kind in enumerate(self.payload)
        ]
        return pa.schema([*columns, ("n", pa.int32()), ("u", pa.int32())])


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Mostly what both databases keep."""
    found = ANY_TEXT if types.is_string(kind) or types.is_large_string(kind) else schemas.scalars(kind)
    if types.is_date(kind) or types.is_timestamp(kind):
        per_day = 86_400 * 10**6 if types.is_timestamp(kind) else 1
        found = st.one_of(*[st.integers(-352_000, 2_900_000).map(lambda day: day * per_day)] * 6, found)
    kept = found.filter(lambda value: holds("postgresql", kind, value) and holds("mariadb", kind, value))
    return st.integers(0, 30).flatmap(lambda chance: kept if chance else found)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2))
    payload = draw(st.lists(st.sampled_from([*COLUMNS]), min_size=1, max_size=4))
    pools = [draw(st.lists(values(kind), min_size=2, max_size=4)) for kind in keys]
    row = st.tuples(
        *map(st.sampled_from, pools),
        *(values(kind) | st.none() for kind in payload),
        st.integers(-9, 9) | st.none(),
        st.integers(0, 40),
    )
    epochs = draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=2, max_size=4))
    touches = draw(st.lists(st.booleans(), min_size=len(epochs), max_size=len(epochs)))
    return Plan(keys, payload, draw(st.integers(0, 3)) == 0, [[list(each) for each in rows] for rows in epochs], touches)


def created(rig: SqlRig, plan: Plan) -> None:
    at = 0 if rig.is_postgresql else 1
    columns = [f"{field.name} {COLUMNS[field.type][at]}" for field in plan.schema if field.name not in "nu"]
    keys = ", ".join(field.name for field in plan.schema if field.name.startswith("k"))
    extra = [
        "n INT",
        "u INT" + " UNIQUE" * plan.other,
        "d INT DEFAULT 7",
        "g BIGINT GENERATED ALWAYS AS (n * 2) STORED",
        "t INT",
    ]
    rig.create(", ".join([*columns, *extra, f"PRIMARY KEY ({keys})"]))
    if rig.is_postgresql:
        body = f"{'BE'}GIN NEW.t := coalesce(NEW.n, 0) + 1; RETURN NEW; END"
        rig.execute(f"CREATE OR REPLACE FUNCTION values_t() RETURNS trigger AS $$ {body} $$ LANGUAGE plpgsql")
        rig.execute(f"CREATE TRIGGER a BEFORE INSERT OR UPDATE ON {rig.table} FOR EACH ROW EXECUTE FUNCTION values_t()")
        return
    for when in ("INSERT", "UPDATE"):
        rig.execute(
            f"CREATE TRIGGER {rig.table}_{when} BEFORE {when} ON {rig.table} FOR EACH ROW SET NEW.t = coalesce(NEW.n, 0) + 1"
        )


def plain(value: Any) -> Any:
    """As both drivers and Arrow have it. MariaDB has no sign of zero."""
    if isinstance(value, timedelta):
        return (datetime.min + value).time()
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, bytes | memoryview):
        return bytes(value)
    return int(value) if isinstance(value, bool) else repr(value + 0.0) if isinstance(value, float) else value


def unpadded(kind: pa.DataType | None, value: Any) -> Any:
    """PostgreSQL gives texts of CHAR with spaces at the end."""
    return value.rstrip(" ") if kind == pa.large_string() and value is not None else value


def check(url: str, plan: Plan) -> None:
    rig, names = SqlRig(url), plan.schema.names
    created(rig, plan)
    kinds, keys = [field.type for field in plan.schema], [name for name in names if name.startswith("k")]
    there: dict[Any, list[Any]] = {}
    try:
        for epoch, rows in enumerate(plan.epochs):
            batch = pa.RecordBatch.from_arrays(
                [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(plan.schema)], schema=plan.schema
            )
            wanted = dict(there)
            if not refused(rig, epoch, batch, keys):
                for row in zip(*([plain(value) for value in column.to_pylist()] for column in batch.columns), strict=True):
                    key, n = repr(row[: len(keys)]), row[-2]
                    default = wanted[key][len(names)] if key in wanted else 7
                    wanted[key] = [*row, default, None if n is None else n * 2, (n or 0) + 1]
                uniques = [row[len(names) - 1] for row in wanted.values()]
                assert not plan.other or len(set(uniques)) == len(uniques), "a row of another key was overwritten"
                there = wanted
            else:
                COUNTS["refused"] += 1
                assert is_refused_rightly(rig, plan, rows, there)
            if plan.touches[epoch]:
                rig.execute(f"UPDATE {rig.table} SET d = {epoch}")
                there = {key: [*row[: len(names)], epoch, *row[-2:]] for key, row in there.items()}
            found = [
                list(map(unpadded, [*kinds, *[None] * 3], map(plain, row)))
                for row in rig.rows(", ".join([*names, "d", "g", "t"]))
            ]
            COUNTS.update({"upserts": 1, "read-backs": 1, "values": batch.num_rows * batch.num_columns})
            differing = set(map(repr, found)) ^ set(map(repr, there.values()))
            assert len(found) == len(there)
            assert not differing, differing
    finally:
        rig.execute(f"DROP TABLE {rig.table}")


def refused(rig: SqlRig, epoch: int, batch: pa.RecordBatch, keys: list[str]) -> bool:
    try:
        with UpsertSink(rig.url, rig.table, tuple(keys)).begin(Attempt("values", epoch, 0, 0)) as transaction:
            transaction.write(batch)
            transaction.prepare()
    except HeadraceError:
        return True
    return False


def is_refused_rightly(rig: SqlRig, plan: Plan, rows: list[list[Any]], there: dict[Any, list[Any]]) -> bool:
    """What a column cannot hold; another unique key, which MariaDB never takes, and PostgreSQL unless rows meet in it."""
    if plan.other:
        uniques = [row[-1] for row in rows] + [row[len(plan.schema.names) - 1] for row in there.values()]
        if not rig.is_postgresql or len(set(uniques)) < len(uniques):
            return True
    kinds, server = [field.type for field in plan.schema], "postgresql" if rig.is_postgresql else "mariadb"
    return any(
        value is not None and not holds(server, kind, value) for row in rows for kind, value in zip(kinds, row, strict=True)
    )


def holds(server: str, kind: pa.DataType, value: Any) -> bool:
    """Whether a column of the type keeps the value, as far as is known for sure."""
    if types.is_string(kind) or types.is_large_string(kind):
        is_long = types.is_large_string(kind) and (len(value) > 5 or value.endswith(" "))
        return not is_long and not (server == "postgresql" and "\0" in value)
    if types.is_binary(kind):
        return server == "postgresql" or len(value) <= 80
    if types.is_floating(kind):
        return server == "postgresql" or repr(value) not in ("nan", "inf", "-inf")
    if types.is_timestamp(kind) and kind.tz is None and value % 1000:
        return False
    if types.is_timestamp(kind) or types.is_date(kind):
        second = value // 10**6 if types.is_timestamp(kind) else value * 86_400
        least = (
            schemas.FIRST_S if server == "postgresql" else schemas.FIRST_S + 1000 * 366 * 86_400
        )  # of which MariaDB states that it may work
        return least <= second <= schemas.LAST_S - 86_400
    return True


def upserts(url: str) -> Callable[[], None]:
    return given(plans())(lambda plan: check(url, plan))


@pytest.mark.parametrize("server", SERVERS)
def test_a_short_run_over_databases(urls, server):
    find(upserts(urls(server)), 8)


@pytest.mark.parametrize("server", SERVERS)
def test_upserts_are_those_of_a_dict(urls, server):
    url = urls(server)
    explore(lambda: upserts(url), UPSERTS, f"databases: {server}", COUNTS)
    assert COUNTS["refused"] < COUNTS["upserts"] * 2 / 3


@pytest.mark.parametrize(("server", "bug"), bugs.OF_UPSERTS)
def test_a_bug_of_upserts_is_found(urls, server, bug):
    url = urls(server)
    with bug(), pytest.raises(AssertionError):
        find(upserts(url), UPSERTS)
