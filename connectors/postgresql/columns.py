"""The names of a table's columns by their numbers, which stay: one whose number has another name was renamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.connectors.postgresql.errors import NEW_SNAPSHOT
from headrace.enumerator.envelope import checksum, stored_number, stored_text
from headrace.enumerator.errors import UsageError

Names = tuple[str | None, ...]
"""Of the columns that are read, by their numbers from 1 on (attnum). None: dropped, or not read."""


class NamesSum(NamedTuple):
    """Names as each chunk of a table has them: up to which number, how many of these have none, and a checksum."""

    last: int
    unnamed: int
    checksum: int

    @classmethod
    def of(cls, names: Names) -> NamesSum:
        return cls(len(names), names.count(None), checksum(json.dumps(names)))

    def may_be_of(self, names: Names) -> bool:
        """Whether no column is known to be renamed. Added ones do not matter; where one was dropped, nothing is known."""
        now = NamesSum.of(names[: self.last])
        return now[:2] != self[:2] or now == self


def check_sum(table: str, known: NamesSum | None, now: Names) -> None:
    """Raise UsageError where a column was renamed. `known`: None in checkpoints of headrace before it was kept."""
    if known is not None and not known.may_be_of(now):
        raise UsageError(f"{_renamed(table)} since its snapshot started: rename it back, or {NEW_SNAPSHOT}")


def check_names(table: str, known: Names, now: Names) -> None:
    """Raise UsageError where a number has another name. `known`: empty where it was not kept."""
    both = zip(known, now, strict=False)
    if renamed := ", ".join(f"{old} is {new} now" for old, new in both if None not in (old, new) and old != new):
        raise UsageError(
            f"{_renamed(table)} ({renamed}), and what was read has its old name: rename it back, or {NEW_SNAPSHOT}"
        )


def _renamed(table: str) -> str:
    return f"a column of {table} was renamed"


def read_sum(data: Any) -> NamesSum | None:  # noqa: ANN401 - JSON
    """What a chunk has stored. TypeError and ValueError mean damaged data."""
    return None if data is None else NamesSum(*map(stored_number, data))


def stored_columns(columns: Sequence[tuple[int, Names]]) -> dict[str, list[str | None]]:
    """Of tables, by their oids, as a JSON object, whose names are texts."""
    return {str(oid): list(names) for oid, names in columns}


def read_columns(data: Any) -> tuple[tuple[int, Names], ...]:  # noqa: ANN401 - JSON
    """What `stored_columns` gave. TypeError, AttributeError and ValueError mean damaged data."""
    return tuple(
        (int(oid), tuple(None if name is None else stored_text(name) for name in names)) for oid, names in data.items()
    )
