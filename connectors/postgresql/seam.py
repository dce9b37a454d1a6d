"""Which changes of the log are in the chunks of the snapshot already. No I/O.

A chunk is read in its own transaction, which sees the effects of some transactions (`pg_current_snapshot`). A change
of the log is in the chunk of its row if that transaction sees the change's. This is exact. Commits become visible in another
order than the log has them, so no LSN says what a snapshot has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.connectors.postgresql.splits import Key, Seam, TableSeam
from headrace.connectors.postgresql.visible import Visible, full_xid

ChunkOf = Callable[[str, TableSeam, Sequence[Key]], Sequence[int]]
"""Asks the server, which knows the order of keys, for the numbers of the chunks of these keys of a table."""


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
