"""The tables of `changes_soak`, and what is written to them: keys of four kinds, values of five, each with each.

Every statement gives the rows that it writes another version (`v`). A row's key and values are made of its number (`n`).
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

Columns = dict[str, tuple[str, str]]
"""The type of each, and what makes its value."""

KEYS: dict[str, Columns] = {
    "int": {"id": ("bigint", "{n}")},
    "text": {"id": ("text", "'Key ' || md5(({n})::text)")},
    "uuid": {"id": ("uuid", "md5(({n})::text)::uuid")},
    "two": {"part": ("integer", "({n}) % 7"), "id": ("varchar(40)", "'k' || ({n})")},
}
VALUES: dict[str, Columns] = {
    "numbers": {
        "exact": ("numeric(20, 4)", "({n}) * {v} / 7.0"),
        "unlimited": ("numeric", "({v})::numeric / 3"),
        "inexact": ("double precision", "({n}) / ({v} + 0.1)::float8"),
        "tiny": ("smallint", "NULLIF({v} % 100, 5)"),
        "is_odd": ("boolean", "{v} % 2 = 1"),
    },
    "documents": {
        "binary_json": ("jsonb", "jsonb_build_object('v', {v}, 'said', 'it''s \"\u00e9\"', 'none', NULL)"),
        "json": ("json", "(' {{\"b\": ' || ({v}) || ', \"a\": [1, 2]}}')::json"),
        "odd": ("text", "CASE {v} % 4 WHEN 0 THEN '' WHEN 1 THEN NULL ELSE E'\\\\N,\"\\n\\t' || ({v}) END"),
        "bytes": ("bytea", "decode(md5(({v})::text), 'hex')"),
    },
    "arrays": {
        "ints": ("integer[]", "ARRAY[({v})::int % 100, NULL, 7]"),
        "texts": ("text[]", "CASE {v} % 3 WHEN 0 THEN ARRAY[]::text[] ELSE ARRAY['a,b', NULL, '', 'NULL', '\"' || ({v})] END"),
    },
    "times": {
        "local": ("timestamp", "timestamp '1999-12-31 23:59:59.123456' + {v} * interval '1 second'"),
        "zoned": ("timestamptz", "timestamptz '2026-03-29 00:30:00+01' + {v} * interval '1 minute'"),
        "day": ("date", "date '2000-02-28' + ({v})::int % 9999"),
    },
    "large": {"body": ("text", "repeat(md5(({n})::text || {v}), 150)"), "short": ("text", "'s' || ({v})")},
}
ROWS = {"large": 300}
"""Of a table, where they are fewer."""
CASTS = {"uuid": "text", "numeric": "text", "json": "text", "jsonb": "text"}
"""What is read as which type, as Arrow has none like it."""


@dataclass(frozen=True)
class Shape:
    """A table."""

    key: str
    values: str
    is_full: bool

    @property
    def name(self) -> str:
        return f"{self.values}_by_{self.key}"

    @property
    def columns(self) -> Columns:
        return {"n": ("bigint", "{n}"), "v": ("bigint", "{v}"), **KEYS[self.key], **VALUES[self.values]}

    def statements(self, rows: int) -> Iterator[str]:
        """That make it, with its first rows."""
        listed = ", ".join(f"{name} {kind}" for name, (kind, _) in self.columns.items())
        yield f"CREATE TABLE {self.name} ({listed}, PRIMARY KEY ({', '.join(KEYS[self.key])}))"
        yield f"CREATE INDEX ON {self.name} (n)"
        yield f"ALTER TABLE {self.name} REPLICA IDENTITY {'FULL' if self.is_full else 'DEFAULT'}"
        if self.values == "large":
            yield f"ALTER TABLE {self.name} ALTER COLUMN body SET STORAGE EXTERNAL"
        yield self.insert(0, self.rows(rows) - 1, 0)

    def rows(self, rows: int) -> int:
        return min(rows, ROWS.get(self.values, rows))

    def insert(self, first: int, last: int, version: int) -> str:
        """Of those that are not there, unless another transaction inserts them meanwhile."""
        made = ", ".join(value.format(n="n", v=version) for _, value in self.columns.values())
        missing = f"NOT EXISTS (SELECT FROM {self.name} AS o WHERE o.n = g.n)"
        return (
            f"INSERT INTO {self.name} ({', '.join(self.columns)}) SELECT {made} "
            f"FROM generate_series({first}, {last}) AS g(n) WHERE {missing}"
        )

    def update(self, first: int, last: int, version: int, names: Sequence[str]) -> str:
        return self._set(dict.fromkeys(names, "n"), first, last, version)

    def move(self, first: int, last: int, version: int, by: int) -> str:
        """To other keys that are free."""
        free = f" AND NOT EXISTS (SELECT FROM {self.name} AS o WHERE o.n = {self.name}.n + {by})"
        return self._set(dict.fromkeys(("n", *KEYS[self.key]), f"n + {by}"), first, last, version) + free

    def delete(self, first: int, last: int) -> str:
        return f"DELETE FROM {self.name} WHERE n BETWEEN {first} AND {last}"

    def select(self) -> str:
        """All but the number, as the copy has it."""
        columns = (f"{name}::{CASTS[kind]}" if kind in CASTS else name for name, (kind, _) in self.columns.items())
        return f"SELECT {', '.join(columns)} FROM {self.name}"

    def _set(self, numbers: dict[str, str], first: int, last: int, version: int) -> str:
        made = [f"{name} = {self.columns[name][1].format(n=n, v=version)}" for name, n in numbers.items()]
        return f"UPDATE {self.name} SET v = {version}, {', '.join(made)} WHERE n BETWEEN {first} AND {last}"


SHAPES = tuple(
    Shape(key, values, is_full=values == "large" or (row + column) % 2 == 0)
    for column, key in enumerate(KEYS)
    for row, values in enumerate(VALUES)
)

_UNDONE = (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation)
_WIDTHS, _WHOLE_TABLE, _ROLLED_BACK, _OUTAGE_S = (1, 40), 0.005, 0.08, 0.2
_CHANGES_PER_S = 500
"""Of a connection, at most: the tables' sinks merge a few thousand in a second."""
_versions = itertools.count(1)


def write(connection: psycopg.Connection, moves: random.Random, rows: int) -> int:
    """A transaction of some statements in some tables, each in a savepoint; how many changes it has committed."""
    changes = 0
    try:
        with connection.transaction() as whole:
            for _ in range(moves.randrange(1, 6)):
                counted = 0
                with connection.transaction() as part:
                    for statement in _statements(moves, moves.choice(SHAPES), rows):
                        counted += connection.execute(statement).rowcount  # type: ignore[arg-type] # composed
                    if moves.random() < _ROLLED_BACK:
                        counted = 0
                        raise psycopg.Rollback(part)
                changes += counted
            if moves.random() < _ROLLED_BACK:
                changes = 0
                raise psycopg.Rollback(whole)
    except _UNDONE:
        return 0
    return changes


def _statements(moves: random.Random, shape: Shape, rows: int) -> Iterator[str]:
    count, version = shape.rows(rows), next(_versions)
    first, width = moves.randrange(2 * count), moves.randrange(*_WIDTHS)
    if moves.random() < _WHOLE_TABLE:
        first, width = 0, 2 * count
    last = first + width - 1
    match moves.randrange(8):
        case 0 | 1:
            yield shape.insert(first, last, version)
        case 2 | 3 | 4:
            names = moves.sample(list(VALUES[shape.values]), moves.randrange(1, len(VALUES[shape.values]) + 1))
            yield shape.update(first, last, version, names)
        case 5:
            yield shape.move(first, last, version, count if first < count else -count)
        case 6:
            yield shape.delete(first, last)
        case 7:
            yield shape.delete(first, last)
            yield shape.insert(first, last, version)


class Writers:
    """What the connections have done. `failure`: what has ended one that nothing may end.

    Either all or every other one do not wait for the disk when they commit.
    """

    def __init__(self, url: str, rows: int, moves: random.Random) -> None:
        self._url, self._rows, self._moves = url, rows, moves
        self._are_all_asynchronous = moves.random() < 0.5
        self._ended, self._lock = threading.Event(), threading.Lock()
        self.counts = Counter[str](changes=0, transactions=0, interrupted=0)
        self.failure: BaseException | None = None

    @contextmanager
    def writing(self, connections: int) -> Iterator[None]:
        """Until the block ends."""
        self._ended.clear()
        seeds = [self._moves.random() for _ in range(connections)]
        given = [(random.Random(seed), self._are_all_asynchronous or number % 2 == 1) for number, seed in enumerate(seeds)]
        threads = [threading.Thread(target=self._run, args=each, daemon=True) for each in given]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def _run(self, moves: random.Random, is_asynchronous: bool) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self._write(moves, is_asynchronous)
                except (psycopg.OperationalError, psycopg.Rollback):  # the server was killed, perhaps after a commit
                    self.counts["interrupted"] += 1
                    time.sleep(_OUTAGE_S)
        except BaseException as error:
            self.failure = error
            raise

    def _write(self, moves: random.Random, is_asynchronous: bool) -> None:
        with psycopg.connect(self._url, autocommit=True, connect_timeout=5) as connection:
            if is_asynchronous:
                connection.execute("SET synchronous_commit = off")
            while not self._ended.is_set():
                changes = write(connection, moves, self._rows)
                with self._lock:
                    self.counts.update(changes=changes, transactions=1)
                self._ended.wait(changes / _CHANGES_PER_S)


def rows_of(connection: psycopg.Connection, shape: Shape) -> list[tuple[Any, ...]]:
    """As psycopg reads them."""
    return connection.execute(shape.select()).fetchall()  # type: ignore[arg-type] # composed
