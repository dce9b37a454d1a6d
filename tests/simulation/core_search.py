"""The core's simulation (`tests.simulation.core`), with what restores often, and restores of older checkpoints."""

from collections import Counter
from typing import Any

from headrace.enumerator.coordinator import CheckpointPhase
from headrace.enumerator.events import CheckpointAborted
from tests.simulation.core import SPLITS_AT_MOST, Simulation, begin_missing, close, delete, grow, hide
from tests.simulation.search import Adversary, taking

KEPT = 4
"""This many completed checkpoints are kept, to go back to."""


class CoreSimulation(Simulation):
    """The simulation of the core; what happened is counted by phase, too."""

    def __init__(self, bounded: int, latest: int, first_splits: int) -> None:
        self.kept: list[tuple[bytes, dict[str, int]]] = []
        self.orphan: tuple[Any, bytes] | None = None
        super().__init__(bounded=bounded % 2 == 1, latest=latest % 3 == 0, first_splits=first_splits % SPLITS_AT_MOST)

    @property
    def happened(self) -> Counter[str]:  # type: ignore[override]
        return Counter(self.counts)

    def check(self) -> None:
        """Every completed checkpoint is checked when it completes (`check_split`)."""

    def start(self, *, parallelism: int, assignment: int) -> None:
        self.orphan = None
        if self.durable is not None:
            self.count("restore")
        super().start(parallelism=parallelism, assignment=assignment)

    def crash(self, *, stored: bool, parallelism: int, assignment: int) -> None:
        """As `Simulation.crash`; also, what was reported as aborted may turn out to be durable."""
        phase = self.coordinator.phase
        self.count(f"crash in {phase.name}")
        if stored and self.persisting is None and self.orphan is not None:
            self.persisting, self.persisting_bytes = self.orphan
            self.count("aborted, yet durable")
        super().crash(stored=stored, parallelism=parallelism, assignment=assignment)

    def abort(self) -> None:
        if self.persisting is not None:
            self.orphan = self.persisting, self.persisting_bytes
        super().abort()

    def commit(self) -> list[Any]:
        self.orphan = None
        readers = super().commit()
        assert self.durable is not None
        self.kept = [*self.kept, (self.durable, dict(self.done))][-KEPT:]
        return readers

    def rewind(self, back: int, parallelism: int) -> None:
        """The job is started from an older checkpoint, and its output goes back with it."""
        if self.kept:
            del self.kept[len(self.kept) - back % len(self.kept) :]
            self.durable, done = self.kept[-1]
            self.done = dict(done)
            self.persisting = None
            self.count("rewind")
            self.crash(stored=False, parallelism=parallelism, assignment=back)

    def round(self) -> None:
        self.discovery_due()
        self.run_discovery()
        self.answer_discovery()
        self.exchange()

    def whole_checkpoint(self, notify: int) -> None:
        """A checkpoint from its trigger to its end; what a reader delivers next comes after it."""
        self.round()
        self.trigger()
        self.exchange()
        self.complete(notify=notify % 5 > 0)

    def lost_while_persisting(self, slot: int, outcome: int) -> None:
        """A reader dies and another takes over while a checkpoint is being stored; it may be lost or stored after all."""
        self.trigger()
        self.exchange()
        if self.coordinator.phase is not CheckpointPhase.PERSISTING:
            return
        self.reader_polls(slot, outcome, 3)
        self.lose_reader(slot, drop_messages=outcome % 2 == 1)
        begin_missing(self)
        self.exchange()
        self.count("lost while persisting")
        if outcome % 3 == 0:
            self.abort()
        elif outcome % 3 == 1:
            self.complete(notify=True)

    def late_news(self) -> None:
        """The end of a checkpoint that was given up long ago is reported again."""
        if self.last_checkpoint_id > 1:
            pending = self.coordinator._pending
            number = self.last_checkpoint_id if pending is None else pending.checkpoint_id - 1
            self.handle(CheckpointAborted(number))


CORE = Adversary(
    "core",
    CoreSimulation,
    3,
    (
        {  # whole exchanges and checkpoints: gets far in a few steps, and restores often
            "grow": 4, "create": 3, "hide": 2, "show": 2, "delete": 4, "close": 2, "round": 8, "discovery_due": 2,
            "run_discovery": 2, "answer_discovery": 2, "polls": 6, "sends": 3, "receives": 3, "lose": 3, "begin": 2,
            "begin_missing": 3, "whole_checkpoint": 8, "trigger": 2, "complete": 2, "abort": 1, "late_news": 1, "crash": 4,
            "rewind": 1, "lost_while_persisting": 3, "fail_discovery": 1,
        },
        {  # message by message: every interleaving, more seldom far
            "grow": 4, "create": 2, "hide": 2, "show": 2, "delete": 4, "close": 1, "run_discovery": 6, "fail_discovery": 1,
            "answer_discovery": 6, "discovery_due": 3, "sends": 24, "receives": 20, "polls": 20, "lose": 3, "begin": 1,
            "begin_missing": 3, "trigger": 8, "complete": 10, "abort": 2, "late_news": 1, "crash": 2, "rewind": 1,
        },
        {  # both: whole checkpoints, and trouble in the middle of them
            "grow": 4, "create": 2, "hide": 2, "show": 2, "close": 1, "round": 3, "run_discovery": 3, "answer_discovery": 3,
            "discovery_due": 2, "sends": 12, "receives": 10, "polls": 10, "lose": 5, "begin": 2, "begin_missing": 3,
            "trigger": 6, "complete": 6, "abort": 2, "whole_checkpoint": 4, "crash": 5, "rewind": 1, "lost_while_persisting": 2,
        },
    ),
    actions={
        "grow": (lambda w, which, by: grow(w, which, 1 + by % 5), 2),
        "create": (lambda w, size: w.external_state.create(size % 8), 1),
        "show": (lambda w: w.external_state.hidden.clear(), 0),
        "delete": (lambda w, which, chance: delete(w, which, chance % 8), 2),
        "close": (lambda w, chance: close(w, chance % 4), 1),
        "sends": (CoreSimulation.reader_sends, 1),
        "receives": (CoreSimulation.reader_receives, 1),
        "polls": (CoreSimulation.reader_polls, 3),
        "lose": (lambda w, slot, drop: w.lose_reader(slot, drop_messages=drop % 2 == 1), 2),
        "begin": (CoreSimulation.begin_reader, 1),
        "complete": (lambda w, notify: w.complete(notify=notify % 5 > 0), 1),
        "crash": (lambda w, s, p, a: w.crash(stored=s % 2 == 1, parallelism=p, assignment=a), 3),
        **taking(hide, begin_missing),
    },
)  # fmt: skip
