"""Every simulation: its promises hold in random schedules, what matters happens often, and injected bugs are found."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest

from headrace.connectors.base.commit import COMMIT_TRANSITIONS, CommitCore, CommitPhase, Recorded
from headrace.enumerator.coordinator import CHECKPOINT_TRANSITIONS, CheckpointPhase, Coordinator
from headrace.enumerator.enumerator import DISCOVERY_TRANSITIONS, SplitEnumerator
from headrace.enumerator.errors import ProtocolViolationError, StateError
from headrace.enumerator.events import ReaderSnapshotted
from tests.helpers.tables import arrows, arrows_followed
from tests.simulation.bugs import core
from tests.simulation.commit import COMMITS
from tests.simulation.core import CORE
from tests.simulation.measure import TABLE
from tests.simulation.pieces import PIECES
from tests.simulation.search import BrokenScheduleError, as_test, shortened
from tests.simulation.simulations import SIMULATIONS
from tests.simulation.stages import STAGED

# A runner may report the outcome of a checkpoint twice; the simulated one does not. test_coordinator.py does.
NEWS_COMES_LATE = {(CheckpointPhase.PERSISTING, ReaderSnapshotted, CheckpointPhase.PERSISTING)}
# An engine whose checkpoint is right asks for an unfinished epoch again, not for the next; tests/unit/base/test_commit.py does.
_NEXT = (CommitPhase.CHECKING, CommitPhase.COMPLETING)
_PAIRS = [(simulation, bug) for simulation in SIMULATIONS for bug in simulation.injected]
BUGS = [pytest.param(each, bug, id=f"{each.adversary.name}-{bug.__name__}") for each, bug in _PAIRS]
IDS = [simulation.adversary.name for simulation in SIMULATIONS]
_ROWS = [line.strip("| ").split(" | ") for line in TABLE.read_text().splitlines() if "`" in line and line.startswith("| ")]
FOUND_AT = {(simulation, bug.strip("`")): int(number) for simulation, bug, number in _ROWS}
"""The number of the schedule that has found each bug; "missed" is no number."""


@pytest.fixture(scope="module")
def played():
    """Of a simulation, once for all tests: what happened in its schedules, and the arrows that were followed."""
    done = {}

    def play(simulation):
        name = simulation.adversary.name
        if name not in done:
            with arrows_followed(Coordinator) as coordinated, arrows_followed(CommitCore) as committed, discovered() as moves:
                happened = simulation.adversary.search(0, simulation.schedules)
            done[name] = (happened, coordinated | committed, moves)
        return done[name]

    return play


@contextmanager
def discovered():
    """What leads discovery from where, meanwhile."""
    followed, move = set(), SplitEnumerator._move

    def moved(self, trigger):
        before = self._discovery
        move(self, trigger)
        followed.add((before, trigger))

    with patch.object(SplitEnumerator, "_move", moved):
        yield followed


def simulation_of(adversary):
    return next(simulation for simulation in SIMULATIONS if simulation.adversary is adversary)


@pytest.mark.parametrize("simulation", SIMULATIONS, ids=IDS)
def test_every_promise_is_kept_in_every_history_and_what_matters_happens_often(simulation, played):
    happened, _, _ = played(simulation)
    assert {what: happened[what] for what, times in simulation.often.items() if happened[what] < times} == {}


def search_for(simulation, bug):
    """First where it was found last: mostly it is there again."""
    simulation.adversary.search(max(0, FOUND_AT[simulation.adversary.name, bug.__name__] - 5), 10)
    simulation.adversary.search(0, simulation.schedules)


@pytest.mark.full
@pytest.mark.parametrize(("simulation", "bug"), BUGS)
def test_a_injected_bug_is_found(simulation, bug):
    with bug(), pytest.raises(BrokenScheduleError) as found:
        search_for(simulation, bug)
    # a broken promise, or a run that refuses to continue; anything else would be a mistake in the injected bug itself
    assert isinstance(found.value.error, AssertionError | ProtocolViolationError | StateError)


def test_every_arrow_of_the_tables_is_followed(played):
    (_, followed, moves), (_, with_pieces, with_cursor), (_, _, in_stages) = (
        played(simulation_of(each)) for each in (CORE, PIECES, STAGED)
    )
    assert arrows(CHECKPOINT_TRANSITIONS) - followed - with_pieces == NEWS_COMES_LATE
    assert moves | with_cursor | in_stages == set(DISCOVERY_TRANSITIONS)
    _, followed, _ = played(simulation_of(COMMITS))
    assert arrows(COMMIT_TRANSITIONS) - followed == {(CommitPhase.COMPLETING, Recorded, phase) for phase in _NEXT}


@pytest.mark.parametrize("simulation", SIMULATIONS, ids=IDS)
def test_the_same_seed_gives_the_same_history(simulation):
    adversary = simulation.adversary
    assert adversary.draw(11) == adversary.draw(11)
    assert adversary.play(adversary.draw(11)) == adversary.play(adversary.draw(11))


@pytest.mark.parametrize("simulation", SIMULATIONS, ids=IDS)
def test_the_injected_bugs_leave_no_trace(simulation):
    for bug in simulation.injected:
        with bug():
            pass
    simulation.adversary.search(0, 20)


def test_a_failing_history_becomes_a_short_test():
    with core.splits_of_lost_reader_dropped():
        with pytest.raises(BrokenScheduleError) as found:
            CORE.search(0, 1000)
        schedule = CORE.draw(found.value.seed)
        short = shortened(CORE, schedule, type(found.value.error))
    assert len(short.steps) <= 6 < len(schedule.steps)
    CORE.play(short)  # which passes without the bug
    text = as_test(CORE, short, "the_splits_of_a_lost_reader_are_assigned_again")
    space = {"CORE": CORE, "Schedule": type(short)}
    exec(text, space)
    with core.splits_of_lost_reader_dropped(), pytest.raises(AssertionError):
        space["test_the_splits_of_a_lost_reader_are_assigned_again"]()


def test_the_table_names_every_injected_bug_and_none_was_missed():
    assert list(FOUND_AT) == [(each.adversary.name, bug.__name__) for each in SIMULATIONS for bug in each.injected]
