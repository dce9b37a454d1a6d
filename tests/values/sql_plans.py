"""Plans of the search over the history of tables in PostgreSQL, MariaDB and SQLite: their types, alterations, and jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa

PG, MY, LITE = "postgresql", "mariadb", "sqlite"
NAMES = ("plain", "T two", 'Q"uo`te', "per%cent", "ünï", "select")
UUID = "00000000-0000-0000-0000-00000000000"


@dataclass(frozen=True)
class Column:
    """Its Arrow type, its type by product, a wider and a narrower one, and values that the first keeps.

    Of a key the values are groups: those of a group are equal to the table, by its collation.
    """

    arrow: pa.DataType
    types: dict[str, str]
    values: tuple[Any, ...]
    wider: dict[str, str]
    narrower: dict[str, str]


def _column(arrow: pa.DataType, types: str, values: list[Any], wider: str = "", narrower: str = "") -> Column:
    """Types are those of PostgreSQL | MariaDB | SQLite; where there is none it is empty, or left out."""
    made = [dict(zip((PG, MY, LITE), map(str.strip, text.split("|")), strict=False)) for text in (types, wider, narrower)]
    types_of, wider_of, narrower_of = ({product: found for product, found in each.items() if found} for each in made)
    return Column(arrow, types_of, tuple(values), wider_of, narrower_of)


_MOMENTS = [datetime(2024, 2, 29, 12, 0, 0, 123456), datetime(1999, 12, 31), datetime(2024, 1, 1, 0, 0, 0, 500_000), None]
PAYLOAD = {
    "int": _column(pa.int32(), "INT|INT|INTEGER", [0, 1, -5, 70_000, None], "BIGINT|BIGINT", "SMALLINT|SMALLINT"),
    "decimal": _column(
        pa.decimal128(12, 3),
        "NUMERIC(12, 3)|DECIMAL(12, 3)",
        [Decimal("1.250"), Decimal("0.000"), Decimal("-7.500"), Decimal("12345678.000"), None],
        "NUMERIC(20, 5)|DECIMAL(20, 5)",
        "NUMERIC(9, 1)|DECIMAL(9, 1)",
    ),
    "text": _column(
        pa.string(),
        "VARCHAR(8)|VARCHAR(8)|TEXT",
        ["", "a", "a   ", "é", "\\N", "'\"", "%s", "abcdefgh", "a\tb\n", None],
        "TEXT|VARCHAR(80)",
        "VARCHAR(3)|VARCHAR(3)",
    ),
    "local": _column(pa.timestamp("us"), "TIMESTAMP(6)|DATETIME(6)", _MOMENTS, narrower="TIMESTAMP(0)|DATETIME(0)"),
    "instant": _column(
        pa.timestamp("us", "UTC"),
        "TIMESTAMPTZ|DATETIME(6)",
        [each and each.replace(tzinfo=UTC) for each in _MOMENTS],
        narrower="TIMESTAMPTZ(3)|DATETIME(3)",
    ),
    "binary": _column(pa.binary(), "BYTEA|VARBINARY(8)|BLOB", [b"", b"\0\xff", b"\\", None], "|VARBINARY(80)", "|BINARY(2)"),
    "bool": _column(pa.bool_(), "BOOLEAN|BOOLEAN|BOOLEAN", [True, False, None], narrower="TEXT"),
    "double": _column(pa.float64(), "DOUBLE PRECISION|DOUBLE|REAL", [0.1, -1e300, 2.0, None]),
    "date": _column(pa.date32(), "DATE|DATE", [date(2024, 2, 29), date(1970, 1, 1), None], narrower="TEXT"),
}
KEYS = {
    "int": _column(pa.int64(), "BIGINT|BIGINT|INTEGER", [[0], [1], [2], [-3], [10**12]]),
    "any case": _column(
        pa.string(),
        "TEXT COLLATE any_case|VARCHAR(20) COLLATE utf8mb4_general_ci|TEXT COLLATE NOCASE",
        [["a", "A"], ["b", "B"], ["%s"], ["\\N"], ["c d", "C d", "c D"]],
        'TEXT COLLATE "C"|VARCHAR(20) COLLATE utf8mb4_nopad_bin',
    ),
    "exact": _column(
        pa.string(),
        'TEXT COLLATE "C"|VARCHAR(20) COLLATE utf8mb4_nopad_bin|TEXT',
        [["a"], ["A"], ["a "], ["é"], ["e\u0301"], ["'"]],
        "TEXT COLLATE any_case|VARCHAR(20) COLLATE utf8mb4_general_ci",
    ),
    "padded": _column(pa.string(), "|VARCHAR(20) COLLATE utf8mb4_bin", [["a", "a "], ["b", "b  "], ["c"]]),
    "decimal": _column(
        pa.decimal128(10, 2),
        "NUMERIC(10, 2)|DECIMAL(10, 2)",
        [[Decimal("1.50")], [Decimal("0.00")], [Decimal("-2.25")], [Decimal("3.00")]],
        "NUMERIC(18, 4)|DECIMAL(18, 4)",
    ),
    "uuid": _column(
        pa.string(), "UUID|UUID", [[UUID + "a", UUID + "A", (UUID + "a").replace("-", "")], [UUID + "b"], [UUID + "0"]]
    ),
    "date": _column(pa.date32(), "DATE|DATE", [[date(2024, 2, 29)], [date(1970, 1, 1)], [date(2030, 1, 1)]]),
    "instant": _column(
        pa.timestamp("us", "UTC"), "TIMESTAMPTZ|DATETIME(6)", [[each.replace(tzinfo=UTC)] for each in _MOMENTS if each]
    ),
    "binary": _column(pa.binary(), "BYTEA|VARBINARY(8)|BLOB", [[b""], [b"a"], [b"A"], [b"\0"]]),
    "bool": _column(pa.bool_(), "BOOLEAN|BOOLEAN", [[True], [False]]),
}


@dataclass(frozen=True)
class Alteration:
    """Statements on `{t}`, and those that undo them. `refuses`: columns of which a job may be refused for it, that gives them;
    "*" any job, "-" one that does not give the column `x`, "upsert" one by key.
    """

    do: str
    undo: str
    refuses: tuple[str, ...] = ()


def alteration(what: str, product: str, name: str, column: Column, key: Column, keys: str, suffix: str) -> Alteration | None:
    """None where the product has none. `name`: the payload column's, of which `column` is the description.

    `keys`: the columns of the table's key. `suffix`: for names that are the table's own.
    """
    is_my = product == MY
    base, q = column.types[product], '"' if product != MY else "`"
    modify = "MODIFY {0} {1}" if is_my else "ALTER {0} TYPE {1} USING {0}::{1}"
    alter = "ALTER TABLE {t} "
    drop_index = f"DROP INDEX ux_{suffix}" + (" ON {t}" if is_my else "")

    def typed(column_name: str, old: str, new: str | None, refuses: tuple[str, ...] = ()) -> Alteration | None:
        if new is None or product == LITE:
            return None
        return Alteration(alter + modify.format(column_name, new), alter + modify.format(column_name, old), refuses)

    simple = {
        "add": Alteration(alter + "ADD x INT", alter + "DROP COLUMN x"),
        "add default": Alteration(alter + "ADD x INT DEFAULT 5 NOT NULL", alter + "DROP COLUMN x"),
        "drop": Alteration(alter + f"DROP COLUMN {name}", alter + f"ADD {name} {base}", (name,)),
        "drop other": Alteration(alter + "DROP COLUMN d", alter + "ADD d INT DEFAULT 7", ("d",)),
        "rename": Alteration(
            alter + f"RENAME COLUMN {name} TO {q}p 9{q}", alter + f"RENAME COLUMN {q}p 9{q} TO {name}", (name,)
        ),
        "unique": Alteration(f"CREATE UNIQUE INDEX ux_{suffix} ON {{t}} (u)", drop_index, ("u",) if is_my else ()),
        "index": Alteration(f"CREATE INDEX ux_{suffix} ON {{t}} (n)", drop_index),
        "truncate": Alteration("DELETE FROM {t}" if product == LITE else "TRUNCATE TABLE {t}", ""),
    }
    served = {
        "add required": Alteration(alter + "ADD x INT NOT NULL", alter + "DROP COLUMN x", ("-",)),
        "default": Alteration(alter + "ALTER d SET DEFAULT 9", alter + "ALTER d SET DEFAULT 7"),
        "no key": Alteration(
            alter + ("DROP PRIMARY KEY" if is_my else f"DROP CONSTRAINT pk_{suffix}"),
            alter + f"ADD CONSTRAINT pk_{suffix} PRIMARY KEY ({keys})",
            ("upsert",),
        ),
        "not null": Alteration(
            alter + (f"MODIFY {name} {base} NOT NULL" if is_my else f"ALTER {name} SET NOT NULL"),
            alter + (f"MODIFY {name} {base} NULL" if is_my else f"ALTER {name} DROP NOT NULL"),
            ("-" + name,),
        ),
    }
    match what:
        case "widen":
            return typed(name, base, column.wider.get(product))
        case "narrow":
            return typed(name, base, column.narrower.get(product), (name,))
        case "collation":
            return typed("k0", key.types[product], key.wider.get(product)) if keys == "k0" else None
    return simple.get(what) or (None if product == LITE else served.get(what))


ALTERATIONS = (
    *("add", "add default", "drop", "drop other", "rename", "unique", "index", "truncate"),
    *("add required", "default", "no key", "not null", "widen", "narrow", "narrow", "narrow", "collation"),
)

STEPS = ("epoch",) * 7 + ("alter",) * 3 + ("hand",) * 2 + ("revoke", "parent")
ACTIONS = ("crash",) * 6 + ("cut",) * 2 + ("alter",) * 3 + ("hand", "lock", "restart", "late")
MOMENTS = ("started",) * 4 + ("written", "prepared", "check", "record", "recorded", "end", "ended", "clean_up", "fence")
AFTER = ("ended", "clean_up")
"""Rows are in the table, and not in the mirror yet."""
STYLES = (
    {"write": "insert", "delete": "delete"},
    {"write": "+U", "delete": "-D", "before": "-U"},
    {"write": False, "delete": True},
)
Row: TypeAlias = dict[str, Any]
Step: TypeAlias = tuple[str, tuple[Any, ...]]


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

    def kind(self, name: str) -> Column:
        return (
            (KEYS[self.keys[int(name[1])]] if name[0] == "k" else PAYLOAD[self.payload[int(name[1])]])
            if name[1:]
            else PAYLOAD["int"]
        )


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
        chance.choice(["PRIMARY KEY", "PRIMARY KEY", "UNIQUE", "", ""]),
        chance.random() < 0.2 and not is_partitioned,
        is_partitioned,
        chance.random() < 0.3 and not is_partitioned,
        chance.random() < 0.3 and product != LITE,
        chance.choice(["", "ALWAYS", "BY DEFAULT"]),
        (),
    )
    modes = ["upsert", "changes"] if product == LITE else ["append", "upsert", "changes"]
    jobs = [chance.choice(modes if plan.unique else modes[:1]) for _ in range(2)]
    return replace(plan, steps=tuple(_step(chance, plan, jobs, modes) for _ in range(chance.randint(4, 9))))


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


def _row(chance: Random, plan: Plan, group: int, *, has_nulls: bool = False, spelling: int | None = None) -> Row:
    """`group`: of the key's values, so that tasks have none in common. `spelling`: which of a group, else any."""
    row: Row = {}
    for at, name in enumerate(plan.keys):
        groups = KEYS[name].values
        same = groups[group % len(groups)] if at == 0 else chance.choice(groups)
        row[f"k{at}"] = chance.choice(same) if spelling is None else same[spelling % len(same)]
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
    # Which spelling a key has that is deleted and written in one epoch depends on how batches are cut.
    rows, spelling = [], chance.randrange(9) if mode == "changes" else None
    for task in range(tasks):
        made: list[Row] = []
        for _ in range(chance.choice([0, 1, 2, 3, 5])):
            group = task + tasks * chance.randrange(3)
            row = _row(chance, plan, group, has_nulls=chance.random() < 0.1, spelling=spelling)
            if mode == "append" and plan.keys[0] == "int" and chance.random() < 0.8:
                row["k0"] = chance.randrange(10**6)
            op = chance.choice(["write", "write", "delete", "before"]) if mode == "changes" else "write"
            made.append({**row, "op": op})
            if op == "before":
                made.append({**_row(chance, plan, group, spelling=spelling), "op": "write"})
        rows.append(tuple(made))
    key = chance.choice(["k"] * 12 + ["u", "n"]) if is_restart else "k"
    moment = chance.choice(MOMENTS)
    action = _action(chance, plan, chance.choice(ACTIONS))
    if moment == "started" and chance.random() < 0.5:
        action = (
            "alter",
            (
                chance.choice(["narrow", "narrow", "narrow", "no key", chance.choice(ALTERATIONS)]),
                chance.randrange(len(plan.payload)),
            ),
        )
    is_unordered = (moment == "written" and action[0] == "hand") or (moment in AFTER and action[0] in ("hand", "alter"))
    if chance.random() < 0.3 or is_unordered:  # which was first, the job or the action, is not known then
        moment = ""
    return Epoch(job, mode, tuple(columns), key, chance.randrange(2**32), is_restart, tuple(rows), moment, action)
