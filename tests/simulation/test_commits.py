"""Commit and recovery under random histories: a plain loop of seeds, Hypothesis, and the planted bugs that both must catch."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from headrace.connectors.commit import COMMIT_TRANSITIONS, CommitCore, CommitPhase, Recorded
from headrace.enumerator.errors import ProtocolViolationError
from tests.helpers import planted_commits
from tests.helpers.commit_simulator import CommitSimulation, run_commit_history
from tests.helpers.tables import arrows, arrows_followed

# An engine whose checkpoint is right asks for an unfinished epoch again, not for the next; tests/unit/test_commit.py does.
EPOCH_AFTER_AN_UNFINISHED_ONE = {
    (CommitPhase.COMPLETING, Recorded, CommitPhase.CHECKING),
    (CommitPhase.COMPLETING, Recorded, CommitPhase.COMPLETING),
}
HISTORIES = 3000
SEEDS_UNTIL_CAUGHT = 6000
CAUGHT = (AssertionError, ProtocolViolationError)  # anything else would be a mistake in the planted bug itself

numbers = st.integers(0, 63)


def run_histories(first: int, count: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in range(first, first + count):
        total.update(run_commit_history(seed))
    return total


def test_every_row_of_every_completed_epoch_exactly_once_in_every_history_and_the_arrows_of_the_table_are_followed():
    with arrows_followed(CommitCore) as followed:
        run_histories(0, HISTORIES)
    assert arrows(COMMIT_TRANSITIONS) - followed == EPOCH_AFTER_AN_UNFINISHED_ONE


def test_histories_are_eventful():
    """The faults are really met: a simulation in which nothing expires or is killed proves nothing."""
    total = run_histories(0, 1000)
    killed = {f"killed {phase}" for phase in ("FENCING", "RECORDING", "ENDING", "COPYING", "SWEEPING", "CONFIRMING")}
    for what in killed | {
        "commit completed",
        "Copy",
        "fenced",
        "check failed",
        "stale epoch refused",
        "tasks refused",
        "epoch skipped",
        "again",
        "expired PREPARED",
        "expired OPEN",
        "expired listed",
    }:
        assert total[what] >= 5, what


def test_the_same_seed_gives_the_same_history():
    assert run_commit_history(11) == run_commit_history(11)


@pytest.mark.parametrize("bug", planted_commits.ALL, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: planted_commits.Planted):
    with bug(), pytest.raises(CAUGHT):
        run_histories(0, SEEDS_UNTIL_CAUGHT)


def test_the_planted_bugs_leave_no_trace():
    for bug in planted_commits.ALL:
        with bug():
            pass
    run_histories(0, 100)


class Commits(RuleBasedStateMachine):
    """The same simulation, driven by Hypothesis, which shrinks a failing history to the few steps that matter."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation = CommitSimulation()

    @rule(zombie=numbers, recover=numbers)
    def restart(self, zombie: int, recover: int) -> None:
        self.simulation.restart(zombie, recover)

    @precondition(lambda self: self.simulation.log.recorded() > 0)
    @rule(back=numbers, fates=numbers)
    def rewind(self, back: int, fates: int) -> None:
        self.simulation.rewind(back, fates)

    @rule(which=numbers, size=numbers, tasks=numbers, look=numbers, fates=numbers)
    def write(self, which: int, size: int, tasks: int, look: int, fates: int) -> None:
        self.simulation.write(which, size, tasks, look, fates)

    @rule(which=numbers)
    def request(self, which: int) -> None:
        self.simulation.request(which)

    @rule(which=numbers)
    def step(self, which: int) -> None:
        self.simulation.step(which)

    @rule(which=numbers, fuse=numbers)
    def interrupt(self, which: int, fuse: int) -> None:
        self.simulation.interrupt(which, fuse)

    @rule(which=numbers)
    def finish(self, which: int) -> None:
        self.simulation.finish(which)

    @rule(size=numbers, tasks=numbers, fates=numbers)
    def epoch(self, size: int, tasks: int, fates: int) -> None:
        """A whole epoch at once, so that a short history gets far."""
        self.simulation.write(0, size, tasks, 1, fates)
        self.simulation.request(0)
        self.simulation.finish(0)
        self.simulation.store()

    @precondition(lambda self: self.simulation.current.committed)
    @rule()
    def store(self) -> None:
        self.simulation.store()

    @precondition(lambda self: self.simulation.current.committed)
    @rule()
    def again(self) -> None:
        self.simulation.again()

    @rule()
    def recover_again(self) -> None:
        self.simulation.recover_again()

    @precondition(lambda self: self.simulation.zombies)
    @rule(which=numbers)
    def kill_zombie(self, which: int) -> None:
        self.simulation.kill_zombie(which)

    @rule(which=numbers)
    def expire(self, which: int) -> None:
        self.simulation.expire(which)

    @precondition(lambda self: self.simulation.attempts)
    @rule(which=numbers, prepare=numbers)
    def zombie_task(self, which: int, prepare: int) -> None:
        self.simulation.zombie_task(which, prepare)

    @invariant()
    def holds(self) -> None:
        self.simulation.check()

    def teardown(self) -> None:
        self.simulation.drain()


TestCommits = Commits.TestCase
TestCommits.settings = settings(stateful_step_count=60)


@pytest.mark.parametrize("bug", planted_commits.ALL, ids=lambda bug: bug.__name__)
def test_hypothesis_catches_a_planted_bug(bug: planted_commits.Planted):
    search = settings(max_examples=2000, stateful_step_count=60, database=None, derandomize=True, phases=[Phase.generate])
    with bug(), pytest.raises(CAUGHT):
        run_state_machine_as_test(Commits, settings=search)
