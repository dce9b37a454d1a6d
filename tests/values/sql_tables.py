"""What tables of PostgreSQL, MariaDB and SQLite are made of in the search over their histories: types, values, alterations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

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
    "local": _column(
        pa.timestamp("us"), "TIMESTAMP(6)|DATETIME(6)", _MOMENTS, narrower="TIMESTAMP(0)|DATETIME(0)"
    ),
    "instant": _column(
        pa.timestamp("us", "UTC"),
        "TIMESTAMPTZ|DATETIME(6)",
        [each and each.replace(tzinfo=UTC) for each in _MOMENTS],
        narrower="TIMESTAMPTZ(3)|DATETIME(3)",
    ),
    "binary": _column(pa.binary(), "BYTEA|VARBINARY(8)|BLOB", [b"", b"\0\xff", b"\\", None], "|VARBINARY(80)", "|BINARY(2)"),
    "bool": _column(pa.bool_(), "BOOLEAN|BOOLEAN|BOOLEAN", [True, False, None], narrower="TEXT"),
    "double": _column(pa.float64(), "DOUBLE PRECISION|DOUBLE|REAL", [0.1, -1e300, 2.0, None], narrower="REAL|FLOAT"),
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
    "uuid": _column(pa.string(), "UUID|UUID", [[UUID + "a", UUID + "A", (UUID + "a").replace("-", "")], [UUID + "b"], [UUID + "0"]]),
    "date": _column(pa.date32(), "DATE|DATE", [[date(2024, 2, 29)], [date(1970, 1, 1)], [date(2030, 1, 1)]]),
    "instant": _column(pa.timestamp("us", "UTC"), "TIMESTAMPTZ|DATETIME(6)", [[each.replace(tzinfo=UTC)] for each in _MOMENTS if each]),
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
        "rename": Alteration(alter + f"RENAME COLUMN {name} TO {q}p 9{q}", alter + f"RENAME COLUMN {q}p 9{q} TO {name}", (name,)),
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
    *("add required", "default", "no key", "not null", "widen", "narrow", "narrow", "collation"),
)
