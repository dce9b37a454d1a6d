"""Values that a database would store as others without an error: what columns of some types do not keep.

A rule takes the normalised values of a column, and returns what is wrong with one of them; None if all are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql

from headrace.connectors.sql.url import Product

Rule = Callable[[pa.Array], str | None]

_YEAR_DIGITS = 4
_NUMBER = r"\A\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\s*\z"
_ESCAPED = {"n": "\n", "r": "\r", "0": "\0"}
_WHOLE = r"\A(?:0|-?[1-9][0-9]{0,17})\z"
# In bytes: what is longer is cut if it is spaces, and an error otherwise.
_LONGEST_BYTES: tuple[tuple[type, int], ...] = (
    (mysql.TINYTEXT, 2**8 - 1),
    (mysql.MEDIUMTEXT, 2**24 - 1),
    (sql.TEXT, 2**16 - 1),
)


class LimitedRecord(sql.UserDefinedType[Any]):
    """A composite type of PostgreSQL's with a field that rounds or cuts."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """For messages."""
        return "a composite type"


def refused_text(column: sql.TypeEngine[Any], product: Product) -> str | None:
    """Why no text goes into a column of this type; None if texts do, maybe by a rule."""
    if product is Product.MYSQL and isinstance(column, mysql.BIT):
        return "its bytes would become the bits"
    if product is not Product.POSTGRESQL:
        return None
    if type(column) is sql.String:  # the types "char" and name
        return "PostgreSQL cuts texts that are too long for it"
    if isinstance(column, LimitedRecord):
        return "one of its fields rounds or cuts"
    if isinstance(column, sql.ARRAY):
        item = column.item_type
        if isinstance(item, sql.String) and not isinstance(item, sql.Enum) and item.length is not None:
            return "PostgreSQL cuts spaces at the end of its texts, or adds some"
        is_limited = isinstance(item, sql.Numeric | sql.DateTime | sql.Time) and getattr(item, "precision", None) is not None
        return "the column rounds" if is_limited or isinstance(item, sql.REAL) else refused_text(item, product)
    if isinstance(column, postgresql.MONEY) or (
        isinstance(column, postgresql.INTERVAL)
        and (column.precision is not None or not (column.fields or "second").lower().endswith("second"))
    ):
        return "the column rounds"
    return None


def rule_of(column: sql.TypeEngine[Any], product: Product, *, binary: bool) -> Rule | None:
    """For texts, or for bytes, in a column of this type."""
    if product is Product.SQLITE:
        return _no_number if isinstance(column, sql.JSON) else None
    if binary:
        is_padded = product is Product.MYSQL and isinstance(column, sql.BINARY)
        return partial(_exact_bytes, column.length or 1) if is_padded else None  # type: ignore[attr-defined] # of BINARY
    if product is Product.MYSQL:
        if isinstance(column, mysql.ENUM):
            values = _unescaped(column.enums)
            return partial(_each_value, frozenset(values).__contains__, f"one of {', '.join(values)}")
        if isinstance(column, mysql.SET):
            members = _unescaped(column.values)
            return partial(_each_value, partial(_is_set, members), f"some of {','.join(members)}, in this order")
        if isinstance(column, mysql.YEAR):
            return partial(_each_value, _is_year, "a year of four digits")
        longest = next((most for kind, most in _LONGEST_BYTES if isinstance(column, kind)), None)
        if longest is not None:
            return partial(_no_cut_spaces, longest, pc.binary_length)
    if isinstance(column, sql.CHAR | sql.NCHAR):
        if product is Product.POSTGRESQL and column.length is not None:
            return partial(_all_padded, column.length)
        return _no_trailing_space
    if isinstance(column, sql.VARCHAR | sql.NVARCHAR) and column.length is not None:
        return partial(_no_cut_spaces, column.length, pc.utf8_length)
    return None


def _no_number(values: pa.Array) -> str | None:
    """Whole numbers stay as they are."""
    if not _any(pc.and_not(pc.match_substring_regex(values, _NUMBER), pc.match_substring_regex(values, _WHOLE))):
        return None
    return "SQLite stores a text that is a number as one, with fewer digits, in a JSON column: declare the column as TEXT"


def _exact_bytes(length: int, values: pa.Array) -> str | None:
    found = pc.min_max(pc.binary_length(values)).as_py()
    if found["min"] in (None, length) and found["max"] in (None, length):
        return None
    return f"BINARY({length}) of the table pads values with zero bytes, and there are some of another length: use VARBINARY"


def _no_trailing_space(values: pa.Array) -> str | None:
    if not _any(pc.ends_with(values, pattern=" ")):
        return None
    return "the table's CHAR does not keep spaces at the end, and there are values that end with one: use VARCHAR, or trim them"


def _all_padded(length: int, values: pa.Array) -> str | None:
    """PostgreSQL gives each value padded to the length, as another one of its CHAR columns has it. Others are as without."""
    return None if pc.all(pc.equal(pc.utf8_length(values), length)).as_py() else _no_trailing_space(values)


def _no_cut_spaces(most: int, measure: Callable[[pa.Array], pa.Array], values: pa.Array) -> str | None:
    if (pc.max(pc.binary_length(values)).as_py() or 0) <= most:  # there are no more characters than bytes
        return None
    if not _any(pc.and_(pc.greater(measure(values), most), pc.ends_with(values, pattern=" "))):
        return None  # one that is too long otherwise is the database's to refuse
    return f"a value is longer than the table's column, {most}, and ends with spaces, which would be cut: trim it"


def _each_value(is_kept: Callable[[str], bool], wanted: str, values: pa.Array) -> str | None:
    other = next((value for value in pc.unique(values).to_pylist() if value is not None and not is_kept(value)), None)
    return None if other is None else f"the table's column takes {wanted}, and would take {other!r} for another value"


def _unescaped(values: Sequence[str]) -> tuple[str, ...]:
    """SQLAlchemy gives them as MariaDB and MySQL show them in the table's definition, in every sql_mode."""
    return tuple(re.sub(r"\\(.)", lambda found: _ESCAPED.get(found[1], found[1]), value) for value in values)


def _is_set(members: Sequence[str], value: str) -> bool:
    parts = value.split(",") if value else []
    return parts == [member for member in members if member in parts]


def _is_year(value: str) -> bool:
    return len(value) == _YEAR_DIGITS and value.isascii() and value.isdigit()


def _any(found: pa.Array) -> bool:
    return bool(pc.any(found).as_py())
