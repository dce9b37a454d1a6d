"""Which changes of the log are in the chunks of the snapshot already. No I/O.

A chunk is read in its own transaction, which sees the effects of some transactions (`pg_current_snapshot`). A change
of the log is in the chunk of its row if that transaction sees the change's. This is exact. Commits become visible in another
order than the log has them, so no LSN says what a snapshot has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.connectors.postgresql.splits import Key, Seam, TableSeam

_EPOCH = 1 << 32

ChunkOf = Callable[[str, TableSeam, Sequence[Key]], Sequence[int]]
"""Asks the server, which knows the order of keys, for the numbers of the chunks of these keys of a table."""


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


def full_xid(xid: int, near: int) -> int:
    """The 64-bit id of a transaction, of which the log has 32 bits, by one that is less than two billion away from it."""
    candidate = near - near % _EPOCH + xid
    half = _EPOCH // 2
    return candidate + (_EPOCH if candidate < near - half else -_EPOCH if candidate >= near + half else 0)


class SeamFilter:
    """Finds what of the log is in no chunk. Of one reader."""

    def __init__(self, seam: Seam, chunk_of: ChunkOf) -> None:
        self.seam = seam
        self._chunk_of = chunk_of
        self._visible = {name: tuple(map(Visible.parsed, table.snapshots)) for name, table in seam.tables}

    def is_new(
        self, table: str, xids: Sequence[int], keys: Callable[[npt.NDArray[np.int64]], Sequence[Key]]
    ) -> npt.NDArray[np.bool_]:
        """For each of these changes of a table, in order, whether no chunk has it.

        `xids`: of their transactions, 32 bits. `keys` gives the keys of the changes with these numbers, and is asked for those
        only that not all chunks agree about.
        """
        visible = self._visible.get(table)
        if visible is None:
            return np.ones(len(xids), bool)
        different, places = np.unique(np.asarray(xids, np.int64), return_inverse=True)
        full = [full_xid(int(xid), visible[0].xmax) for xid in different]
        by_all, by_some = min(each.xmin for each in visible), max(each.xmax for each in visible)
        new = np.array([xid >= by_some for xid in full], bool)[places]
        unsure = np.flatnonzero(np.array([by_all <= xid < by_some for xid in full], bool)[places])
        if len(unsure):
            chunks = self._chunk_of(table, dict(self.seam.tables)[table], keys(unsure))
            for number, chunk in zip(unsure, chunks, strict=True):
                new[number] = not visible[chunk].sees(full[places[number]])
        return new

    def truncated(self, table: str, xid: int) -> bool:
        """The log has a TRUNCATE of the table. Whether a chunk lacks it, so that it and all that follows it is new.

        A chunk that was read before it has rows that are gone. One that was read after it has none but those that the log
        repeats: so they are no longer distinguished.
        """
        visible = self._visible.get(table)
        if visible is not None and all(each.sees(full_xid(xid, each.xmax)) for each in visible):
            return False
        self._visible.pop(table, None)
        self.seam = replace(self.seam, tables=tuple(each for each in self.seam.tables if each[0] != table))
        return True
