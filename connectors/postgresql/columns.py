"""The names of a table's columns by their numbers, which stay: one whose number has another name was renamed.

A name that has another number is of a column that was created again: it is null in all old rows, and a copy has old values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from headrace.connectors.postgresql.errors import NEW_SNAPSHOT
from headrace.enumerator.envelope import checksum, stored_number, stored_text
from headrace.enumerator.errors import UsageError

Names = tuple[str | None, ...]
"""Of the columns that are read, by their numbers from 1 on (attnum). None: dropped, or not read. In a checkpoint, dropped ones
keep theirs."""


class NamesSum(NamedTuple):
    """Names as each chunk of a table has them: up to which number, how many of these have none, and a checksum."""

    last: int
    unnamed: int
    checksum: int

    @classmethod
    def of(cls, names: Names) -> NamesSum:
        return cls(len(names), names.count(None), checksum(json.dumps(names)))

    def may_be_of(self, names: Names) -> bool:
        """Whether no column is known to be renamed or created again, before the log compares all names by `check_all`.

        Where several were dropped, one that was added may be one of them. A dropped one hides that another is renamed.
        """
        before, added = names[: self.last], names[self.last :]
        now = NamesSum.of(before)
        gone = now.unnamed - self.unnamed
        if now.last < self.last:
            return True
        if gone == 1:
            places = [place for place, name in enumerate(before) if name is None]
            back = ((*before[:place], name, *before[place + 1 :]) for place in places for name in added)
            return all(NamesSum.of(each) != self for each in back)
        return not any(added) if gone else now == self

    def lacks_one_of(self, names: Names) -> bool:
        """Whether a column is read now that was there then, and was not."""
        return names[: self.last].count(None) + max(0, self.last - len(names)) < self.unnamed


def check_sum(table: str, known: NamesSum | None, now: Names) -> None:
    """Raise UsageError where a column was renamed, or may have been created again.

    `known`: None in checkpoints of headrace before it was kept.
    """
    if known is not None and known.lacks_one_of(now):
        raise _unread(table, "a column")
    if known is not None and not known.may_be_of(now):
        raise UsageError(
            f"a column of {table} was renamed, or dropped and (as far as is known) created again, since its snapshot started: "
            f"undo a renaming, or {NEW_SNAPSHOT}"
        )


def check_names(table: str, known: Names, now: Names) -> None:
    """Raise UsageError where a number has another name, or a name another number. `known`: empty where it was not kept."""
    both = zip(known, now, strict=False)
    if renamed := ", ".join(f"{old} is {new} now" for old, new in both if None not in (old, new) and old != new):
        raise UsageError(
            f"a column of {table} was renamed ({renamed}), and what was read has its old name: rename it back, or "
            f"{NEW_SNAPSHOT}"
        )
    numbers = {name: number for number, name in enumerate(known) if name is not None}
    if again := ", ".join(name for number, name in enumerate(now) if name is not None and numbers.get(name, number) != number):
        raise UsageError(
            f"a column of {table} was dropped and created again ({again}), and what was read has its old values, which the log "
            f"does not clear: rename the new one, or {NEW_SNAPSHOT}"
        )


def changed(table: str, difference: str) -> UsageError:
    """The error for a table with other columns than the source knows."""
    return UsageError(
        f"the table {table} has changed: {difference}. Start again, with a new ChangesSource where it is the same process, to "
        "read it with its new columns"
    )


def check_read(table: str, known: Names, now: Names) -> None:
    """Raise UsageError where a column is read that was there before, and was not: one that was generated is plain now."""
    found = [new for old, new in zip(known, now, strict=False) if new is not None and old is None and new not in known]
    if found:
        raise _unread(table, ", ".join(found))


def _unread(table: str, columns: str) -> UsageError:
    return UsageError(
        f"the log has {columns} of {table} now, and had not before, as it has none that is generated: what was read lacks its "
        f"values, so {NEW_SNAPSHOT}"
    )


def with_dropped(known: Names, now: Names) -> Names:
    """The names of now, and the last ones of columns that are gone, in case these are created again."""
    return tuple(new if new is not None else old for old, new in zip_longest(known, now))


def check_all(table: str, read: Sequence[Names], now: Names) -> Names:
    """The names to keep of a table whose rows were read by these. Raises UsageError as `check_names` and `check_read` do."""
    kept = now
    for known in read:
        check_names(table, known, now)
        check_read(table, known, now)
        kept = with_dropped(known, kept)
    return kept


def read_sum(data: Any) -> NamesSum | None:  # noqa: ANN401 - JSON
    """What a chunk has stored. TypeError and ValueError mean damaged data."""
    return None if data is None else NamesSum(*map(stored_number, data))


def stored_columns(columns: Sequence[tuple[int, Names]]) -> dict[str, list[str | None]]:
    """Of tables, by their oids, as a JSON object, whose names are texts."""
    return {str(oid): list(names) for oid, names in columns}


def read_columns(data: Any) -> tuple[tuple[int, Names], ...]:  # noqa: ANN401 - JSON
    """What `stored_columns` gave. TypeError, AttributeError and ValueError mean damaged data."""
    return tuple((int(oid), read_names(names)) for oid, names in data.items())


def read_names(data: Any) -> Names:  # noqa: ANN401 - JSON
    """Of a stored table. TypeError means damaged data."""
    return tuple(None if name is None else stored_text(name) for name in data)
