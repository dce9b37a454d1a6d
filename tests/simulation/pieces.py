"""The core with a source of finite pieces that are found by a cursor: as `tests.simulation.core`, with another source.

The source keeps which pieces it was notified of as finished, as an archive would. A piece may leave checkpoints only when it is
read to its end, durably, and the source knows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from headrace import enumerator as enumeration
from headrace.enumerator import Checkpoint, DiscoveryResult, EagerEnumerator
from headrace.enumerator import events as e
from headrace.testing.memory import MemorySplit
from tests.simulation.core import CORE, ExternalState, Simulation
from tests.simulation.search import Adversary, taking

PIECES_AT_MOST = 24
AT_ONCE = 3
"""Few, so that discovery is behind often."""


class Pieces(ExternalState):
    """Pieces of a fixed size, in the order in which they were created."""

    most = PIECES_AT_MOST

    def __init__(self, *, bounded: bool, latest: bool) -> None:
        super().__init__(bounded=bounded, latest=latest)
        self.reported: set[str] = set()

    def find_after(self, found: int, limit: int) -> DiscoveryResult[MemorySplit]:
        added = [MemorySplit(split_id, 0, self.ends[split_id]) for split_id in list(self.ends)[found : found + limit]]
        found += len(added)
        more = found < len(self.ends)
        complete = self.bounded and self.closed and not more
        return DiscoveryResult(added, complete=complete, cursor={"found": found}, more=more)


class PieceSimulation(Simulation):
    """One history."""

    source = Pieces
    assignments = (EagerEnumerator, enumeration.LazyEnumerator, enumeration.SharingEnumerator)
    external_state: Pieces

    def start(self, *, parallelism: int, assignment: int) -> None:
        self.reports: list[tuple[MemorySplit, ...]] = []
        self.is_behind = False
        super().start(parallelism=parallelism, assignment=assignment)
        if self.durable is not None:
            self.is_behind = not self.coordinator.enumerator.exhausted

    def carry_out(self, command: Any) -> None:
        match command:
            case e.DiscoverAfter(cursor, limit):
                assert self.coordinator.enumerator.ledger.unfinished < AT_ONCE, "looked, with much to read still"
                assert (cursor, limit) == (self.coordinator.enumerator.cursor, AT_ONCE)
                self.asked.append(command)
            case e.ReportFinished(splits):
                unread = [split for split in splits if self.done[split.split_id] != split.stop_offset]
                assert not unread, f"reported as finished: {unread}"
                self.reports.append(splits)
            case _:
                super().carry_out(command)

    def run_discovery(self) -> None:
        if self.asked:
            command = self.asked.pop()
            found = 0 if isinstance(command, e.DiscoverInitial) else command.cursor["found"]
            self.discovery.append(self.external_state.find_after(found, AT_ONCE))

    def answer_discovery(self) -> None:
        if self.discovery:
            answer = self.discovery[-1]
            self.is_behind = isinstance(answer, DiscoveryResult) and answer.more
            self.happened["more"] += self.is_behind
        super().answer_discovery()

    def report(self, outcome: int) -> None:
        """The source is notified, or cannot be. It may know, and the job die before it hears of that."""
        if not self.reports:
            return
        split_ids = frozenset(split.split_id for split in self.reports.pop(0))
        if is_done := outcome % 4 > 0:
            self.happened["reported again"] += bool(split_ids & self.external_state.reported)
            self.external_state.reported |= split_ids
        self.happened["reported" if is_done else "not reported"] += 1
        if outcome % 8 == 7:
            self.crash(stored=False, parallelism=outcome, assignment=outcome)
        else:
            self.handle(e.FinishedReported(split_ids, is_done))

    def round(self) -> None:
        super().round()
        self.report(1)

    def drain_round(self) -> None:
        super().drain_round()
        while self.reports:
            self.report(1)

    def check(self) -> None:
        """Where there is more to find, and little to read, discovery is under way."""
        if self.is_behind and self.coordinator.enumerator.ledger.unfinished < AT_ONCE:
            assert self.asked or self.discovery, "discovery is behind, and not under way"

    def check_checkpoint(self, checkpoint: Checkpoint[MemorySplit]) -> None:
        """I1: every piece before the cursor is there once, or was reported as finished; and none behind it."""
        ids = [state.split.split_id for state in checkpoint.splits]
        assert len(set(ids)) == len(ids), f"I1: a split twice in {checkpoint}"
        assert checkpoint.cursor is not None
        before = set(list(self.external_state.ends)[: checkpoint.cursor["found"]])
        assert before - set(ids) <= self.external_state.reported, f"I1: pieces are in no place of {checkpoint}"
        assert set(ids) <= before, f"I1: pieces behind the cursor of {checkpoint}"

    def is_complete(self) -> bool:
        ends = self.external_state.ends
        return super().is_complete() and self.external_state.reported == ends.keys() and len(self.durable or b"") < 1000


@contextmanager
def few_at_once() -> Iterator[None]:
    with patch.object(e, "SPLITS_AT_ONCE", AT_ONCE):
        yield


_LEFT_OUT = ("grow", "hide", "show", "delete")
PIECES = Adversary(
    "pieces",
    PieceSimulation,
    3,
    tuple(
        {name: weight for name, weight in mix.items() if name not in _LEFT_OUT} | {"create": 8, "report": 4}
        for mix in CORE.mixes
    ),
    around=few_at_once,
    actions={**CORE.actions, **taking(PieceSimulation.report)},
)
