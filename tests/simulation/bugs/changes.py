"""Injected bugs of the seam between a table's chunks and its log, which the simulation of changes must catch."""

from dataclasses import replace
from typing import Any

import numpy as np

from headrace.connectors.postgresql import splits as splits_module
from headrace.connectors.postgresql.added import Settling
from headrace.connectors.postgresql.seam import SeamFilter
from headrace.connectors.postgresql.splits import LogSplit, Seen
from headrace.connectors.postgresql.stages import LogStage
from headrace.connectors.postgresql.visible import Visible
from tests.simulation import changes as simulation
from tests.simulation.bugs.injecting import bugs_of, instead_of
from tests.simulation.changes import AddedSimulation, ChangesSimulation


@instead_of(SeamFilter, "is_new")
def no_seam(_: Any, self: Any, table: str, xids: Any, keys: Any) -> Any:
    """All that the log has since the slot was made."""
    return np.ones(len(xids), bool)


@instead_of(Visible, "sees")
def running_transactions_are_seen(_: Any, self: Any, xid: int) -> bool:
    """A commit that lies between the low and the high watermark of a chunk."""
    return xid < self.xmax


@instead_of(Visible, "sees")
def recent_transactions_are_not_seen(_: Any, self: Any, xid: int) -> bool:
    return xid < self.xmin


@instead_of(simulation, "chunk_of")
def a_chunks_window_is_off_by_one(chunk_of: Any, table: str, seam: Any, keys: Any) -> Any:
    """A bound belongs to the chunk before it."""
    return chunk_of(table, seam, [(f"{int(key) - 1}",) for (key,) in keys])


@instead_of(SeamFilter, "is_new")
def a_row_that_moves_stays_in_its_chunk(is_new: Any, self: Any, table: str, xids: Any, keys: Any) -> Any:
    """All changes are compared with the first chunk."""
    return is_new(self, table, xids, lambda numbers: [("-1",) for _ in numbers])


@instead_of(SeamFilter, "truncated")
def rows_behind_a_truncation_are_in_their_chunks(_: Any, self: Any, table: str, xid: int) -> bool:
    return True


@instead_of(SeamFilter, "truncated")
def a_truncation_is_new_though_all_chunks_have_it(_: Any, self: Any, table: str, xid: int) -> bool:
    self._visible.pop(table, None)
    return True


@instead_of(LogSplit, "at")
def the_seam_ends_early(at: Any, self: Any, lsn: int, skip: int = 0) -> Any:
    """With the first transaction that is read."""
    return replace(at(self, lsn, skip), seam=None)


@instead_of(splits_module, "stored_seam")
def snapshots_are_stored_by_their_ends(stored_seam: Any, seam: Any) -> Any:
    """What ran then is forgotten by a restore."""
    stored = stored_seam(seam)
    for table in stored["tables"].values():
        table["snapshots"] = [text[: text.rindex(":") + 1] for text in table["snapshots"]]
    return stored


@instead_of(ChangesSimulation, "switch")
def switched_before_a_checkpoint_had_the_chunks(_: Any, self: Any, *numbers: int) -> None:
    """A chunk is read again after a crash, and the seam is of the first time."""
    if self.log is None and all(chunk.seen for chunk in self.chunks):
        self.log = LogSplit(1, self.chunks[0].slot, seam=splits_module.seam_of(self.chunks))
        self.durable = self.state(), self.durable[1]


@instead_of(ChangesSimulation, "checkpoint")
def the_slot_moves_before_the_checkpoint(checkpoint: Any, self: Any, chance: int) -> None:
    if self.log is not None:
        self.database.slot = self.log.position.lsn
    if chance % 2:
        checkpoint(self, chance)


@instead_of(ChangesSimulation, "read_chunk")
def a_chunk_is_read_after_its_snapshot(read_chunk: Any, self: Any, which: int) -> None:
    """What it has seen is noted first, and a transaction becomes visible in between."""
    before = self.database.snapshot(), self.database.log_end
    waiting = [number for number, chunk in enumerate(self.chunks) if chunk.seen is None]
    if which % 2 and waiting:
        self.become_visible(0)
    read_chunk(self, which)
    if waiting and self.log is None:
        number = waiting[which % len(waiting)]
        self.chunks[number] = replace(self.chunks[number], seen=Seen(*before))


INJECTED = bugs_of(globals())


@instead_of(Settling, "step")
def rows_are_read_while_older_transactions_run(_: Any, self: Any, *place: Any) -> bool:
    """What they have written before the table was published is in no chunk, and not in the log."""
    return True


@instead_of(simulation.Asked, "start")
def a_snapshots_end_is_taken_for_the_next_transaction(_: Any, self: Any) -> int:
    """Some that run may be behind it."""
    return int(self.database.latest) + 1


@instead_of(Settling, "passed_over")
def what_was_passed_over_is_not_waited_for(_: Any, self: Any, xids: Any) -> None:
    """It is in the log, and others do not see it yet."""


@instead_of(AddedSimulation, "is_new")
def changes_come_before_the_rows_do(_: Any, self: Any, seam: Any, xid: int, change: Any) -> Any:
    return ChangesSimulation.is_new(self, seam, xid, change)


@instead_of(AddedSimulation, "read_log")
def the_log_goes_on_between_chunks(_: Any, self: Any, count: int) -> None:
    ChangesSimulation.read_log(self, count)


@instead_of(simulation, "with_chunk")
def a_chunk_forgets_those_before_it(with_chunk: Any, split: Any, table: str, oid: int, own: Any, *chunk: Any) -> Any:
    """The seam has the last one's snapshot for all of them."""
    split = with_chunk(split, table, oid, own, *chunk)
    (own,) = (each for name, each in split.seam.tables if name == table)
    same = replace(own, snapshots=own.snapshots[-1:] * len(own.snapshots))
    return replace(split, seam=replace(split.seam, tables=((table, same),)))


@instead_of(LogStage, "repeats")
def a_task_that_reads_rows_does_not_keep_them(_: Any, self: Any, splits: Any) -> bool:
    return True


IN_ADDED = [bug for bug in bugs_of(globals()) if bug not in INJECTED]
