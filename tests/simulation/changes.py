"""A database's table that is read in chunks, then by its log, while transactions write it; and a job that crashes.

Run for real: the chunks, the seam between them and the log, and positions, as they are stored. Played: a database whose
commits are in the log before others see them, and become visible in another order; its slot; a strict copy of the table.

What must be true: a row of a chunk, or an insert, is of a key that the copy does not have, any other change of one that it has.
In the end the copy is the table. The slot never moves past what a checkpoint has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from headrace.connectors.postgresql.added import Settling, partly_read, with_chunk
from headrace.connectors.postgresql.seam import SeamFilter
from headrace.connectors.postgresql.splits import (
    ChangesSplitSerializer,
    ChunkSplit,
    Key,
    LogSplit,
    Origin,
    Seen,
    TableSeam,
    seam_of,
)
from headrace.connectors.postgresql.stages import LogStage
from headrace.connectors.postgresql.visible import Visible
from tests.simulation.search import Adversary

TABLE = "public.t"
KEYS = 24
_FOLLOWED: Any = SimpleNamespace(table=SimpleNamespace(oid=7))
_WHOLE: Any = SimpleNamespace(name="t", snapshot="initial", discovery_interval_s=None, followed=[_FOLLOWED])
STAGE = LogStage(_WHOLE, 0, None)
"""Of a source that follows the table."""
FIRST_XID = (1 << 32) - 9
"""So that the log's 32 bits wrap around."""
TRUNCATE = -1

Change = tuple[str, int, int]
"""What happens, to which key, and the value."""


@dataclass(eq=False)
class Writer:
    """A transaction: `committed` once the log has it, `visible` once others see it and its locks are gone.

    `unpublished`: how many of its changes it has made before the table was published. The log has none of those.
    """

    xid: int
    changes: list[Change] = field(default_factory=list)
    unpublished: int = 0
    is_committed: bool = False


class Database:
    """Locks are on keys, or on the table (TRUNCATE)."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {key: -key for key in range(0, KEYS, 2)}
        self.next_xid = FIRST_XID
        self.latest = FIRST_XID - 1
        self.writers: list[Writer] = []
        self.log: list[tuple[int, int, tuple[Change, ...]]] = []
        self.slot = 0

    @property
    def log_end(self) -> int:
        return len(self.log) + 1

    def snapshot(self) -> str:
        """Its xmax is behind the latest transaction that has ended: later ones may be running."""
        running = sorted(writer.xid for writer in self.writers if writer.xid <= self.latest)
        return f"{running[0] if running else self.latest + 1}:{self.latest + 1}:{','.join(map(str, running))}"

    def end(self, writer: Writer) -> None:
        self.writers.remove(writer)
        self.latest = max(self.latest, writer.xid)

    def locked(self, mine: Writer) -> set[int]:
        return {key for writer in self.writers if writer is not mine for _, key, _ in writer.changes}

    def seen_by(self, writer: Writer) -> dict[int, int]:
        """The rows with the transaction's own changes."""
        rows = dict(self.rows)
        for change in writer.changes:
            apply(rows, change)
        return rows


def apply(rows: dict[int, int], change: Change) -> None:
    what, key, value = change
    if what == "truncate":
        rows.clear()
    elif what == "delete":
        del rows[key]
    else:
        rows[key] = value


class ChangesSimulation:
    """One history. `chunk`: how many keys a chunk has."""

    def __init__(self, chunk: int) -> None:
        self.happened: Counter[str] = Counter()
        self.database = Database()
        size = 2 + chunk % 9
        bounds: list[Key | None] = [None, *((f"{key}",) for key in range(size, KEYS, size)), None]
        place = Origin("1", 1, 1)
        self.chunks = [
            ChunkSplit(0, TABLE, 7, number, ("id",), lower, upper, place, 0)
            for number, (lower, upper) in enumerate(pairwise(bounds))
        ]
        self.log: LogSplit | None = None
        self.copy: dict[int, int] = {}
        self.durable = self.state(), dict(self.copy)

    # --- the database -------------------------------------------------------------------------------------------------

    def begin(self, chance: int) -> None:
        if len(self.database.writers) < 1 + chance % 5:
            self.database.writers.append(Writer(self.database.next_xid))
            self.database.next_xid += 1

    def write(self, which: int, key: int, what: int, other: int) -> None:
        """An insert, update, delete, or a key that moves."""
        open_ones = [writer for writer in self.database.writers if not writer.is_committed]
        if not open_ones:
            return
        writer = open_ones[which % len(open_ones)]
        locked, rows = self.database.locked(writer), self.database.seen_by(writer)
        key, other, value = key % KEYS, other % KEYS, 1000 + writer.xid * 100 + len(writer.changes)
        if TRUNCATE in locked or key in locked or (what % 4 == 3 and other in locked):
            return
        match what % 4:
            case 0 if key not in rows:
                writer.changes.append(("insert", key, value))
            case 1 if key in rows:
                writer.changes.append(("update", key, value))
            case 2 if key in rows:
                writer.changes.append(("delete", key, 0))
            case 3 if key in rows and other not in rows:
                writer.changes += [("delete", key, 0), ("insert", other, rows[key])]
                self.happened["moved"] += 1

    def truncate(self, which: int, chance: int) -> None:
        """It waits for all who write the table."""
        open_ones = [writer for writer in self.database.writers if not writer.is_committed]
        if chance % 6 or not open_ones:
            return
        writer = open_ones[which % len(open_ones)]
        if not self.database.locked(writer):
            writer.changes.append(("truncate", TRUNCATE, 0))
            self.happened["truncate"] += 1

    def commit(self, which: int) -> None:
        """The log has it; others do not see it yet."""
        open_ones = [writer for writer in self.database.writers if not writer.is_committed]
        if open_ones:
            writer = open_ones[which % len(open_ones)]
            writer.is_committed = True
            self.database.log.append((self.database.log_end, writer.xid, tuple(writer.changes[writer.unpublished :])))

    def become_visible(self, which: int) -> None:
        committed = [writer for writer in self.database.writers if writer.is_committed]
        if committed:
            writer = committed[which % len(committed)]
            self.happened["out of order"] += which % len(committed) != 0
            self.database.rows = self.database.seen_by(writer)
            self.database.end(writer)

    def roll_back(self, which: int) -> None:
        open_ones = [writer for writer in self.database.writers if not writer.is_committed]
        if open_ones:
            self.database.end(open_ones[which % len(open_ones)])

    # --- the job ------------------------------------------------------------------------------------------------------

    def read_chunk(self, which: int) -> None:
        waiting = [number for number, chunk in enumerate(self.chunks) if chunk.seen is None]
        if not waiting or self.log is not None:
            return
        number = waiting[which % len(waiting)]
        chunk = self.chunks[number]
        for key, value in sorted(self.database.rows.items()):
            if (chunk.lower is None or int(chunk.lower[0]) <= key) and (chunk.upper is None or key < int(chunk.upper[0])):
                self.take(("snapshot", key, value))
        self.chunks[number] = replace(chunk, seen=Seen(self.database.snapshot(), self.database.log_end))
        self.happened["chunk"] += 1

    def switch(self) -> None:
        """When a checkpoint has all chunks as they were read."""
        durable, _ = self.durable
        if self.log is None and durable == self.state() and all(chunk.seen for chunk in self.chunks):
            self.log = LogSplit(1, self.chunks[0].slot, seam=seam_of(self.chunks))
            self.happened["switch"] += 1

    def read_log(self, count: int) -> None:
        """Some transactions."""
        if self.log is None:
            return
        seam = None if self.log.seam is None else SeamFilter(self.log.seam, chunk_of)
        for lsn, xid, changes in [each for each in self.database.log if each[0] >= self.log.position.lsn][: 1 + count % 4]:
            for change in changes:
                if self.is_new(seam, xid, change):
                    self.take(change)
            self.log = replace(self.log, seam=None if seam is None else seam.seam).at(lsn + 1)
            seam = None if self.log.seam is None else seam

    def is_new(self, seam: SeamFilter | None, xid: int, change: Change) -> bool:
        what, key, _ = change
        if seam is None:
            return True
        short = xid % (1 << 32)
        if what == "truncate":
            return seam.truncated(TABLE, short)
        is_new = bool(seam.is_new(TABLE, [short], lambda numbers: [(f"{key}",) for _ in numbers])[0])
        self.happened["in a chunk"] += not is_new
        return is_new

    def take(self, change: Change) -> None:
        what, key, _ = change
        if what != "truncate":
            assert (key in self.copy) == (what in ("update", "delete")), f"{change}: the copy has {self.copy}"
        apply(self.copy, change)

    def checkpoint(self, chance: int) -> None:
        """Stored; the slot moves after that, if there is time."""
        self.durable = self.state(), dict(self.copy)
        if self.log is not None and chance % 3:
            self.database.slot = self.log.position.lsn

    def crash(self) -> None:
        serializer = ChangesSplitSerializer()
        state, rows = self.durable
        splits = [serializer.deserialize(1, each) for each in json.loads(state)]
        self.chunks = [split for split in splits if isinstance(split, ChunkSplit)]
        self.log = next((split for split in splits if isinstance(split, LogSplit)), None)
        self.copy = dict(rows)
        self.happened["crash in the log" if self.log else "crash in the snapshot"] += 1
        if self.log is not None:
            assert self.database.slot <= self.log.position.lsn, "the slot has moved past the checkpoint"

    def state(self) -> str:
        splits = [self.log] if self.log is not None else self.chunks
        return json.dumps([ChangesSplitSerializer().serialize(split) for split in splits])

    def check(self) -> None:
        """Each change is checked when it is taken."""

    def drain(self) -> None:
        for number in range(len(self.database.writers)):
            self.commit(number)
        while self.database.writers:
            self.become_visible(0)
        while any(chunk.seen is None for chunk in self.chunks) and self.log is None:
            self.read_chunk(0)
        self.checkpoint(1)
        self.switch()
        assert self.log is not None, "no switch"
        while self.log.position.lsn < self.database.log_end:
            self.read_log(3)
        assert self.copy == self.database.rows, f"{self.copy}, and the table has {self.database.rows}"


@dataclass
class Asked:
    """By a reader that waits for transactions."""

    database: Database

    def start(self) -> int:
        self.database.latest = self.database.next_xid
        self.database.next_xid += 1
        return self.database.latest

    def end_of_log(self) -> int:
        return self.database.log_end


class AddedSimulation(ChangesSimulation):
    """A table that is published while its log is read, by which its rows are read, too. A sender of the log knows what is
    published by the transaction that it has seen last. Tasks of an engine read on where the previous one has ended, each by a
    new reader, and a later attempt has the same: what the first one has kept, where the log alone would not have it.
    """

    def __init__(self, chunk: int) -> None:
        self.size, self.is_published = 2 + chunk % 9, False
        super().__init__(chunk)
        self.chunks = []
        self.log = LogSplit(0, Origin("1", 1, 1), ())
        self.durable = (self.state(), {})
        self._start_task()

    def publish(self, chance: int) -> None:
        if not self.is_published and not chance % 4:
            self.is_published = True
            for writer in self.database.writers:
                writer.unpublished = len(writer.changes)
                self.happened["written before"] += bool(writer.changes)

    def write(self, which: int, key: int, what: int, other: int) -> None:
        """Before the table is published none of it is in the log."""
        super().write(which, key, what, other)
        self._unpublish()

    def truncate(self, which: int, chance: int) -> None:
        super().truncate(which, chance)
        self._unpublish()

    def _unpublish(self) -> None:
        if not self.is_published:
            for writer in self.database.writers:
                writer.unpublished = len(writer.changes)

    def read_chunk(self, which: int) -> None:
        """The next one, if it may be read."""
        assert self.log is not None
        if not self.is_published or self.log.has_rows_of(7) or not self._may_read(self.log):
            return
        own = partly_read(self.log, TABLE) or TableSeam(("id",), (), ())
        lower = int(own.bounds[-1][0]) if own.bounds else 0
        upper = lower + self.size if lower + self.size < KEYS else None
        for key, value in sorted(self.database.rows.items()):
            if lower <= key and (upper is None or key < upper):
                self.take(("snapshot", key, value))
        seen = Seen(self.database.snapshot(), self.database.log_end)
        self.log = with_chunk(self.log, TABLE, 7, own, None if upper is None else (f"{upper}",), seen)
        self.happened["chunk"] += 1

    def _may_read(self, split: LogSplit) -> bool:
        seen = Visible.parsed(self.database.snapshot())
        return partly_read(split, TABLE) is not None or self.settling.step(seen, split.position.lsn, Asked(self.database))

    def read_log(self, count: int) -> None:
        """While chunks are read the log is not."""
        assert self.log is not None
        if partly_read(self.log, TABLE) is None:
            super().read_log(count)

    def is_new(self, seam: SeamFilter | None, xid: int, change: Change) -> bool:
        assert self.log is not None
        if not self.log.has_rows_of(7):
            self.settling.passed_over([xid % (1 << 32)])
            return False
        return super().is_new(seam, xid, change)

    def _start_task(self) -> None:
        assert self.log is not None
        self.settling, self.start, self.start_copy = Settling(), self.log, dict(self.copy)

    def end_task(self, chance: int) -> None:
        """Some have another attempt before the next one starts: it has nothing to read where the first has kept its rows."""
        assert self.log is not None
        if chance % 2 and STAGE.repeats([self.start]):
            self._read_again(self.log, self.copy)
        self._start_task()

    def _read_again(self, *first: Any) -> None:
        self.log, self.copy = self.start, dict(self.start_copy)
        while self.log.position.lsn < first[0].position.lsn:
            super().read_log(0)
        assert (self.log, self.copy) == first, f"{self.log}, {self.copy}, and the first attempt had {first}"
        self.happened["another attempt"] += self.log != self.start

    def crash(self) -> None:
        super().crash()
        self._start_task()
        assert self.log is not None
        self.happened["crash between chunks"] += partly_read(self.log, TABLE) is not None

    def drain(self) -> None:
        """All transactions end, and the table is published at last."""
        assert self.log is not None
        for number in range(len(self.database.writers)):
            self.commit(number)
        while self.database.writers:
            self.become_visible(0)
        self.is_published = True
        while not self.log.has_rows_of(7):
            self.read_chunk(0)
            self.read_log(3)
        while self.log.position.lsn < self.database.log_end:
            self.end_task(1)
            self.read_log(3)
        self.end_task(1)
        assert self.copy == self.database.rows, f"{self.copy}, and the table has {self.database.rows}"


def chunk_of(table: str, seam: TableSeam, keys: Sequence[Key]) -> Sequence[int]:
    bounds = [int(bound) for (bound,) in seam.bounds]
    return [int(np.searchsorted(bounds, int(key), side="right")) for (key,) in keys]


_WRITES: Mapping[str, Any] = {"begin": 8, "write": 20, "commit": 6, "become_visible": 6, "roll_back": 1, "truncate": 2}
CHANGES = Adversary(
    "changes",
    ChangesSimulation,
    1,
    (
        {**_WRITES, "read_chunk": 5, "switch": 2, "read_log": 3, "checkpoint": 3, "crash": 1},
        {**_WRITES, "read_chunk": 3, "switch": 4, "read_log": 2, "checkpoint": 4, "crash": 3},
    ),
)
ADDED = Adversary(
    "added",
    AddedSimulation,
    1,
    (
        {**_WRITES, "publish": 4, "read_chunk": 12, "read_log": 8, "checkpoint": 3, "crash": 1, "end_task": 1},
        {**_WRITES, "publish": 8, "read_chunk": 16, "read_log": 4, "checkpoint": 4, "crash": 3, "end_task": 1},
    ),
)
