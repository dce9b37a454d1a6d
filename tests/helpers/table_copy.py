"""A table as a reader of its changes knows it."""

from collections.abc import Iterable, Mapping
from typing import Any


class Copy:
    """What a reader of the changes knows of the table. Strict: an insert of a row that is there is a fault, as is a change of
    one that is not.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], Any] = {}
        self.seen = 0

    def apply(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            key, value, op = (row["id"], row["part"]), row["value"], row["_op"]
            self.seen += 1
            if op == "truncate":
                self.rows.clear()
            elif op in ("snapshot", "insert"):
                assert key not in self.rows, f"twice: {row}"
                self.rows[key] = value
            else:
                assert key in self.rows, f"not there: {row}"
                if op == "update":
                    self.rows[key] = value
                else:
                    del self.rows[key]
