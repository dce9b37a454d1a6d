"""Types and columns of tables, as a server's catalog has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PgType:
    """A type, with those that it is made of.

    `name` is what format_type gives without a modifier: `integer`, `character varying`, `myschema.mood`. `element` is that of
    an array, range or multirange, and what a domain is based on; `fields` are those of a composite, `labels` of an enum.
    """

    oid: int
    name: str
    kind: Literal["base", "array", "enum", "domain", "composite", "range", "multirange"]
    element: PgType | None = None
    fields: tuple[Column, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or a field of a composite type. `in_key`: it is in the table's replica identity."""

    name: str
    type: PgType
    modifier: int = -1
    nullable: bool = True
    in_key: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the columns that are published. `key` has those of its primary key, in the key's order."""

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]
    identity: Literal["default", "full", "index", "nothing"]
    key: tuple[str, ...]
