"""Whose effects a snapshot of the server sees, as `pg_current_snapshot` gives it. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

_EPOCH = 1 << 32


@dataclass(frozen=True, slots=True)
class Visible:
    """The transactions that a snapshot sees: those before `xmin`, and those before `xmax` that are not `running`, which is
    sorted.
    """

    xmin: int
    xmax: int
    running: tuple[int, ...]

    @classmethod
    def parsed(cls, text: str) -> Visible:
        """Of what pg_current_snapshot() gives: `xmin:xmax:xip,xip`. Raises ValueError for anything else."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(sorted(map(int, running.split(",")))) if running else ())

    def sees(self, xid: int) -> bool:
        """Whether it sees the effects of this transaction, which was committed: by its 64-bit id."""
        if xid < self.xmin or xid >= self.xmax:
            return xid < self.xmin
        at = bisect_left(self.running, xid)
        return at == len(self.running) or self.running[at] != xid


@dataclass(frozen=True, slots=True)
class Moment:
    """Of a server: first the end of its log, then whose effects were seen. A crash undoes neither."""

    lsn: int
    visible: Visible


def full_xid(xid: int, near: int) -> int:
    """The 64-bit id of a transaction, of which the log has 32 bits, by one that is less than two billion away from it."""
    candidate = near - near % _EPOCH + xid
    half = _EPOCH // 2
    return candidate + (_EPOCH if candidate < near - half else -_EPOCH if candidate >= near + half else 0)
