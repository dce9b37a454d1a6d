"""The heart under random histories: a plain loop of seeds, Hypothesis, and the planted bugs that both must catch."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from headrace.enumerator.coordinator import CHECKPOINT_TRANSITIONS, CheckpointPhase, Coordinator
from headrace.enumerator.errors import ProtocolViolationError
from headrace.enumerator.events import CheckpointAborted, ReaderSnapshotted
from tests.helpers import planted
from tests.helpers.simulator import (
    ASSIGNMENTS,
    SLOTS_AT_MOST,
    SPLITS_AT_MOST,
    Simulation,
    begin_missing,
    close,
    delete,
    grow,
    hide,
    run_history,
)
from tests.helpers.tables import arrows, arrows_followed

# A runner may tell the outcome of a checkpoint twice; the simulated one does not. tests/unit/test_coordinator.py does.
NEWS_COMES_LATE = {
    (CheckpointPhase.COLLECTING, CheckpointAborted, CheckpointPhase.COLLECTING),
    (CheckpointPhase.PERSISTING, CheckpointAborted, CheckpointPhase.PERSISTING),
    (CheckpointPhase.PERSISTING, ReaderSnapshotted, CheckpointPhase.PERSISTING),
}
HISTORIES = 3000
SEEDS_UNTIL_CAUGHT = 6000
CAUGHT = (AssertionError, ProtocolViolationError)  # anything else would be a mistake in the planted bug itself

numbers = st.integers(0, 63)


def run_histories(first: int, count: int) -> dict[str, int]:
    total: dict[str, int] = {}
    for seed in range(first, first + count):
        for what, times in run_history(seed).items():
            total[what] = total.get(what, 0) + times
    return total


def test_every_record_exactly_once_in_every_history_and_the_arrows_of_the_table_are_followed():
    with arrows_followed(Coordinator) as followed:
        total = run_histories(0, HISTORIES)
    assert total["histories"] == HISTORIES
    assert arrows(CHECKPOINT_TRANSITIONS) - followed == NEWS_COMES_LATE


def test_histories_are_eventful():
    """The faults are really met: a simulation that crashes nobody proves nothing."""
    total = run_histories(0, 500)
    for what in ("crash", "reader lost", "completed", "aborted", "declined", "ReportMissing", "ReportDiscoveryFailure"):
        assert total.get(what, 0) >= 5, what


def test_the_same_seed_gives_the_same_history():
    assert run_history(11) == run_history(11)


@pytest.mark.parametrize("bug", planted.IN_THE_HEART, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: planted.Planted):
    with bug(), pytest.raises(CAUGHT):
        run_histories(0, SEEDS_UNTIL_CAUGHT)


def test_the_planted_bugs_leave_no_trace():
    for bug in planted.IN_THE_HEART + planted.IN_A_CONNECTOR:
        with bug():
            pass
    run_histories(0, 100)


class Histories(RuleBasedStateMachine):
    """The same simulation, driven by Hypothesis, which shrinks a failing history to the few steps that matter."""

    @initialize(bounded=st.booleans(), latest=st.booleans(), first_splits=st.integers(0, SPLITS_AT_MOST))
    def begin(self, bounded: bool, latest: bool, first_splits: int) -> None:
        self.simulation = Simulation(bounded=bounded, latest=latest, first_splits=first_splits)

    @rule(which=numbers, by=st.integers(1, 5))
    def grow(self, which: int, by: int) -> None:
        grow(self.simulation, which, by)

    @rule(size=st.integers(0, 7))
    def create(self, size: int) -> None:
        self.simulation.world.create(size)

    @rule(which=numbers)
    def hide(self, which: int) -> None:
        hide(self.simulation, which)

    @rule()
    def show(self) -> None:
        self.simulation.world.hidden.clear()

    @rule(which=numbers)
    def delete(self, which: int) -> None:
        delete(self.simulation, which, 0)

    @rule()
    def close(self) -> None:
        close(self.simulation, 0)

    @rule()
    def run_discovery(self) -> None:
        self.simulation.run_discovery()

    @rule()
    def fail_discovery(self) -> None:
        self.simulation.fail_discovery()

    @rule()
    def answer_discovery(self) -> None:
        self.simulation.answer_discovery()

    @rule()
    def discovery_due(self) -> None:
        self.simulation.discovery_due()

    @rule(slot=numbers)
    def reader_sends(self, slot: int) -> None:
        self.simulation.reader_sends(slot)

    @rule(slot=numbers)
    def reader_receives(self, slot: int) -> None:
        self.simulation.reader_receives(slot)

    @rule(slot=numbers, which=numbers, size=st.integers(0, 3))
    def reader_polls(self, slot: int, which: int, size: int) -> None:
        self.simulation.reader_polls(slot, which, size)

    @rule(slot=numbers, drop_messages=st.booleans())
    def lose_reader(self, slot: int, drop_messages: bool) -> None:
        self.simulation.lose_reader(slot, drop_messages=drop_messages)

    @rule(slot=numbers)
    def begin_reader(self, slot: int) -> None:
        self.simulation.begin_reader(slot)

    @rule()
    def begin_missing(self) -> None:
        begin_missing(self.simulation)

    @rule()
    def trigger(self) -> None:
        self.simulation.trigger()

    @rule(notify=st.booleans())
    def complete(self, notify: bool) -> None:
        self.simulation.complete(notify=notify)

    @rule()
    def abort(self) -> None:
        self.simulation.abort()

    @rule()
    def exchange(self) -> None:
        """Everything under way arrives: so that a short history gets far."""
        self.simulation.run_discovery()
        self.simulation.answer_discovery()
        self.simulation.exchange()

    @rule(stored=st.booleans(), parallelism=st.integers(0, SLOTS_AT_MOST - 1), assignment=st.integers(0, len(ASSIGNMENTS) - 1))
    def crash(self, stored: bool, parallelism: int, assignment: int) -> None:
        self.simulation.crash(stored=stored, parallelism=parallelism, assignment=assignment)

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.drain()


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=60)


@pytest.mark.parametrize(
    "bug", [planted.reinitialise_on_restore, planted.splits_of_lost_reader_dropped], ids=lambda b: b.__name__
)
def test_hypothesis_catches_a_planted_bug(bug: planted.Planted):
    search = settings(max_examples=2000, stateful_step_count=60, database=None, derandomize=True, phases=[Phase.generate])
    with bug(), pytest.raises(CAUGHT):
        run_state_machine_as_test(Histories, settings=search)
