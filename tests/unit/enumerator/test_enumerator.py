from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import product

import pytest

from headrace.enumerator import (
    DiscoveryResult,
    EagerEnumerator,
    LazyEnumerator,
    Ledger,
    SharingEnumerator,
    create_enumerator,
    restore_enumerator,
)
from headrace.enumerator import events as e
from headrace.enumerator.enumerator import DISCOVERY_TRANSITIONS, Discovery, Trigger
from headrace.enumerator.errors import PeerError, ProtocolViolationError, RetriableError, UsageError
from headrace.enumerator.pauses import DISCOVERY_RETRY_S
from headrace.enumerator.source import SplitDiscovery, Stage
from headrace.testing.memory import MemorySplit
from tests.helpers.driving import Driver, assigned, assigned_splits, checkpoint_of, finished, only, reading, split

BOTH = pytest.mark.parametrize("assignment", [EagerEnumerator, LazyEnumerator])
OLD = Stage(0, "memory", None, in_pieces=False, is_found=True)
NEW = Stage(1, "memory", {"at": 3}, in_pieces=False, is_found=False)
DISPUTE = RetriableError("whether there is a c is not known")


def splits(names: str) -> list[MemorySplit]:
    return [split(name) for name in names]


def driver_with(names: str, *readers: int, **options) -> Driver:
    """These splits are found, and these readers registered."""
    driver = Driver(**options)
    driver.discovered(*splits(names))
    driver.register(*readers)
    return driver


def lazy(*readers: int) -> Driver:
    driver = Driver(assignment=LazyEnumerator)
    driver.register(*readers)
    return driver


# --- discovery --------------------------------------------------------------------------------------------------------
def reachable(start: Discovery) -> set[Discovery]:
    found, todo = {start}, [start]
    while todo:
        state = todo.pop()
        following = {after for (before, _), after in DISCOVERY_TRANSITIONS.items() if before is state}
        todo += following - found
        found |= following
    return found


def test_no_way_leads_from_restored_to_initialising():
    """Beam #31313, #34890: the reason for this package."""
    later = {Discovery.DISCOVERING, Discovery.IDLE, Discovery.BEHIND, Discovery.EXHAUSTED}
    later |= {Discovery.STAGE_FOUND, Discovery.SWITCHING, Discovery.SWITCH_PAUSED}
    for restored in (Discovery.RESTORED, Discovery.AT_CURSOR, Discovery.STAGE_FOUND):
        assert reachable(restored) == {restored, *later}
    assert Discovery.INITIALISING not in reachable(Discovery.EXHAUSTED)


def test_a_fresh_enumerator_initialises_and_never_again():
    ways_in = [key for key, after in DISCOVERY_TRANSITIONS.items() if after is Discovery.INITIALISING]
    assert ways_in == [(Discovery.NEW, Trigger.START)]
    assert Discovery.NEW not in DISCOVERY_TRANSITIONS.values()


def test_one_way_leads_to_the_next_stage_and_it_is_that_all_of_this_one_is_read():
    ways_in = [key for key, after in DISCOVERY_TRANSITIONS.items() if after is Discovery.SWITCHING]
    assert ways_in == [(Discovery.STAGE_FOUND, Trigger.STAGE_READ)]


@BOTH
@pytest.mark.parametrize(("state", "trigger"), [key for key in product(Discovery, Trigger) if key not in DISCOVERY_TRANSITIONS])
def test_every_other_step_of_discovery_is_refused_and_changes_nothing(assignment, state, trigger):
    ledger: Ledger[MemorySplit] = Ledger()
    enumerator = assignment(ledger, state, 1, None)
    act = {
        Trigger.START: enumerator.start, Trigger.ANSWER: lambda: enumerator.discovered(DiscoveryResult([split("a")])),
        Trigger.LAST_ANSWER: lambda: enumerator.discovered(DiscoveryResult([split("a")], complete=True)),
        Trigger.ANSWER_WITH_MORE: lambda: enumerator.discovered(DiscoveryResult([split("a")], cursor={}, more=True)),
        Trigger.DUE: enumerator.discovery_due, Trigger.CAPACITY: lambda: enumerator._move(Trigger.CAPACITY),
        Trigger.DUE_AT_CURSOR: lambda: enumerator._move(Trigger.DUE_AT_CURSOR),
        Trigger.FAILURE: lambda: enumerator._move(Trigger.FAILURE),
        Trigger.STAGE_READ: lambda: enumerator._move(Trigger.STAGE_READ),
        Trigger.ANSWER_OF_STAGE: lambda: enumerator.discovered(DiscoveryResult([split("a")], stage=OLD)),
    }[trigger]  # fmt: skip
    with pytest.raises(ProtocolViolationError, match=state.name):
        act()
    assert enumerator._discovery is state
    assert len(ledger) == 0


def test_a_fresh_enumerator_asks_for_the_initial_discovery():
    enumerator = create_enumerator(EagerEnumerator, parallelism=1)
    assert (enumerator.start(), enumerator.initialised) == ([e.DiscoverInitial()], False)


def test_a_restored_enumerator_looks_for_what_it_does_not_know():
    enumerator = restore_enumerator(EagerEnumerator, checkpoint_of(reading("a", 3), finished("b", 2)), parallelism=1)
    assert enumerator.start() == [e.DiscoverLater({"a": split("a", 3), "b": split("b", 2, 2)})]
    assert enumerator.initialised


def test_a_restored_enumerator_whose_discovery_was_done_does_not_look():
    enumerator = restore_enumerator(EagerEnumerator, checkpoint_of(reading("a", 3), exhausted=True), parallelism=1)
    assert (enumerator.start(), enumerator.exhausted) == ([], True)


@BOTH
def test_discovery_is_periodic_only_when_asked_for(assignment):
    once, periodic = Driver(assignment=assignment), Driver(assignment=assignment, discovery_interval_s=30.0)
    assert only(once.discovered(split("a")), e.ScheduleDiscovery) == []
    assert only(periodic.discovered(split("a")), e.ScheduleDiscovery) == [e.ScheduleDiscovery(30.0)]
    assert periodic.send(e.DiscoveryDue()) == [e.DiscoverLater({"a": split("a")})]


def test_a_complete_discovery_is_not_repeated():
    assert only(Driver(discovery_interval_s=30.0).discovered(split("a"), complete=True), e.ScheduleDiscovery) == []


def test_a_failed_initial_discovery_fails_the_job():
    error = RetriableError("no leader")
    assert Driver().send(e.DiscoveryFailed(error)) == [e.Fail(error)]


@pytest.mark.parametrize(("interval_s", "delay_s"), [(None, DISCOVERY_RETRY_S), (30.0, 30.0)])
def test_a_later_discovery_that_fails_for_now_is_tried_again(interval_s, delay_s):
    driver = Driver(checkpoint_of(reading("a", 3)), discovery_interval_s=interval_s)
    error = RetriableError("no leader")
    assert driver.send(e.DiscoveryFailed(error)) == [e.ReportDiscoveryFailure(error), e.ScheduleDiscovery(delay_s)]
    assert only(driver.send(e.DiscoveryDue()), e.DiscoverLater) == [e.DiscoverLater({"a": split("a", 3)})]


@pytest.mark.parametrize(("interval_s", "delay_s"), [(None, DISCOVERY_RETRY_S), (30.0, DISCOVERY_RETRY_S), (0.5, 0.5)])
def test_what_a_discovery_could_decide_counts_and_the_rest_is_looked_for_again(interval_s, delay_s):
    driver = Driver(checkpoint_of(reading("a", 3)), discovery_interval_s=interval_s)
    commands = driver.send(e.SplitsDiscovered(DiscoveryResult([split("b")], frozenset({"a"}), inconclusive=DISPUTE)))
    assert only(commands, e.ReportMissing) == [e.ReportMissing((split("a", 3),))]
    assert commands[:2] == [e.ReportDiscoveryFailure(DISPUTE), e.ScheduleDiscovery(delay_s)]
    assert only(driver.send(e.DiscoveryDue()), e.DiscoverLater) == [e.DiscoverLater({"a": split("a", 3), "b": split("b")})]


def test_the_pause_before_another_try_grows_to_a_minute_and_starts_over_once_a_look_is_complete():
    driver = Driver(checkpoint_of(reading("a", 3)))
    error, pauses = DISPUTE, []
    for number in range(9):
        event = e.DiscoveryFailed(error) if number % 2 else e.SplitsDiscovered(DiscoveryResult([], inconclusive=error))
        pauses += [item.delay_s for item in only(driver.send(event), e.ScheduleDiscovery)]
        driver.send(e.DiscoveryDue())
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert only(driver.discovered(), e.ScheduleDiscovery) == []
    driver.send(e.DiscoveryDue())
    assert only(driver.send(e.DiscoveryFailed(error)), e.ScheduleDiscovery) == [e.ScheduleDiscovery(1.0)]
    driver = Driver(checkpoint_of(reading("a", 3)), discovery_interval_s=7.0)
    for _ in range(2):
        assert only(driver.send(e.DiscoveryFailed(error)), e.ScheduleDiscovery) == [e.ScheduleDiscovery(7.0)]
        driver.send(e.DiscoveryDue())


def test_an_outage_of_any_number_of_looks_is_ridden_out():
    driver = Driver(checkpoint_of(reading("a", 3)))
    for _ in range(2000):
        commands = driver.send(e.DiscoveryFailed(RetriableError("no leader")))
        driver.send(e.DiscoveryDue())
    assert only(commands, e.ScheduleDiscovery) == [e.ScheduleDiscovery(60.0)]


def test_who_looks_once_is_notified_of_what_is_inconclusive():
    class Half(SplitDiscovery):
        def initial(self):
            raise AssertionError

        def later(self, known):
            return DiscoveryResult([split("b")], inconclusive=None if known else DISPUTE)

    assert Half().later_or_raise({"a": split("a", 3)}).added == [split("b")]
    with pytest.raises(RetriableError, match="whether there is a c"):
        Half().later_or_raise({})


@pytest.mark.parametrize(("interval_s", "delay_s"), [(None, DISCOVERY_RETRY_S), (30.0, 30.0)])
def test_a_later_discovery_that_fails_for_good_fails_the_job_and_whoever_goes_on_looks_again(interval_s, delay_s):
    error = PeerError("not authorised")
    driver = Driver(checkpoint_of(), discovery_interval_s=interval_s)
    assert driver.send(e.DiscoveryFailed(error)) == [e.ScheduleDiscovery(delay_s), e.Fail(error)]
    assert driver.send(e.DiscoveryDue()) == [e.DiscoverLater({})]


def test_missing_splits_are_reported_once():
    driver = Driver(checkpoint_of(reading("a", 3), reading("b", 1)), discovery_interval_s=1.0)
    commands = driver.discovered(missing=["a"])
    assert only(commands, e.ReportMissing) == [e.ReportMissing((split("a", 3),))]
    assert commands[0] == e.ScheduleDiscovery(1.0), "as the report may raise"
    driver.send(e.DiscoveryDue())
    assert only(driver.discovered(missing=["a"]), e.ReportMissing) == []


def test_proof_is_asked_for_while_a_split_is_missing_and_not_gone():
    driver = Driver(checkpoint_of(reading("a", 3), reading("b", 1)), discovery_interval_s=1.0)
    for _ in range(2):
        assert only(driver.discovered(missing=["a"]), e.ProveGone) == [e.ProveGone((split("a", 3),))]
        driver.send(e.DiscoveryDue())
    driver.send(e.SplitsGone(frozenset({"a"})))
    assert only(driver.commands, e.DiscoverLater)[-1].known == {"a": split("a", 3), "b": split("b", 1)}
    assert only(driver.discovered(missing=["a"]), e.ProveGone) == []
    assert only(driver.send(e.DiscoveryDue()), e.DiscoverLater) == [e.DiscoverLater({"b": split("b", 1)})]


def test_no_checkpoint_holds_a_split_that_is_gone_while_its_reader_may_continue():
    driver = Driver(checkpoint_of(reading("a", 3), reading("b", 1)), discovery_interval_s=1.0, parallelism=1)
    driver.register(0)
    driver.discovered(missing=["a"])
    driver.send(e.SplitsGone(frozenset({"a"})))
    stored = driver.checkpoint(2, r0=[reading("a", 5), reading("b", 4)])
    assert [state.split for state in stored.splits] == [split("b", 4)]
    assert only(driver.send(e.CheckpointCompleted(2)), e.PublishPositions) == [e.PublishPositions((split("b", 4),))]
    driver.send(e.ReaderLost(0))
    assert assigned_splits(driver.register(0)) == [split("a", 5), split("b", 4)]


def test_a_split_that_was_gone_and_is_found_all_the_same_continues_where_it_was():
    driver = Driver(checkpoint_of(reading("a", 3)), discovery_interval_s=1.0)
    driver.discovered(missing=["a"])
    driver.send(e.SplitsGone(frozenset({"a"})), e.DiscoveryDue())
    driver.discovered(split("a", 0))
    assert [state.split for state in driver.checkpoint(2).splits] == [split("a", 3)]


@pytest.mark.parametrize(("parallelism", "interval_s", "said"), [
    (0, None, r"^parallelism must be at least 1, not 0$"), (-1, None, r"^parallelism must be at least 1, not -1$"),
    (1, 0.0, r"^the discovery interval must be positive seconds or None, not 0\.0$"), (1, -1.0, r"None, not -1\.0$"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused_with_their_value(parallelism, interval_s, said):
    with pytest.raises(UsageError, match=said):
        create_enumerator(EagerEnumerator, parallelism=parallelism, discovery_interval_s=interval_s)
    assert create_enumerator(EagerEnumerator, parallelism=1, discovery_interval_s=0.5).parallelism == 1


def test_what_discovery_refuses_is_said_with_where_it_is():
    with pytest.raises(ProtocolViolationError, match=r"^discovery is NEW: DUE is not possible now$"):
        create_enumerator(EagerEnumerator, parallelism=1).discovery_due()


# --- eager ------------------------------------------------------------------------------------------------------------
def test_eager_gives_each_reader_its_share_as_it_registers():
    driver = driver_with("abcde")
    assert assigned(driver.register(1)) == {1: splits("bd")}
    assert assigned(driver.register(0)) == {0: splits("ace")}


def test_eager_gives_a_new_split_to_the_reader_with_least_to_do():
    driver = driver_with("abc", 0, 1, discovery_interval_s=1.0)
    driver.send(e.DiscoveryDue())
    assert assigned(driver.discovered(split("d"))) == {1: [split("d")]}


def test_eager_evens_out_what_two_readers_have_to_do():
    ledger: Ledger[MemorySplit] = Ledger()
    enumerator = EagerEnumerator(ledger, Discovery.IDLE, 2, None)
    ledger.add(splits("ab"))
    for name in "ab":
        ledger.assign(name, 0)
    ledger.add(splits("efgh"))
    assert enumerator.assignments([0, 1]) == [e.Assign(0, (split("g"),)), e.Assign(1, tuple(splits("efh")))]


def test_eager_replans_what_a_lost_reader_held():
    driver = driver_with("abcd", 0, 1)
    assert assigned_splits(driver.send(e.ReaderLost(0)) + driver.register(0)) == splits("ac")


def test_eager_counts_what_is_planned_for_a_reader_that_has_not_started():
    driver = driver_with("abc", 0, discovery_interval_s=1.0)
    driver.send(e.DiscoveryDue())
    assert assigned(driver.discovered(*splits("de"))) == {0: [split("e")]}
    assert assigned(driver.register(1)) == {1: splits("bd")}


def test_eager_gives_what_was_planned_for_a_lost_reader_to_its_successor_once():
    driver = driver_with("abcd")
    driver.send(e.ReaderLost(0))
    driver.register(0)
    driver.send(e.ReaderLost(0))
    assert assigned_splits(driver.register(0, 1)) == splits("abcd")


@pytest.mark.parametrize("parallelism", [1, 3, 8])
def test_eager_restores_at_any_parallelism(parallelism):
    states = [reading(f"{number:02}", number) for number in range(20)]
    commands = Driver(checkpoint_of(*states), parallelism=parallelism).register(*range(parallelism))
    assert assigned_splits(commands) == [state.split for state in states]
    sizes = [len(splits) for splits in assigned(commands).values()]
    assert max(sizes) - min(sizes) <= 1


# --- lazy -------------------------------------------------------------------------------------------------------------
def test_lazy_gives_one_split_for_each_request():
    driver = driver_with("abc", assignment=LazyEnumerator)
    assert assigned(driver.register(0, 1)) == {}
    assert [assigned(driver.send(e.SplitRequested(1))) for _ in range(2)] == [{1: [split("a")]}, {1: [split("b")]}]


def test_lazy_remembers_a_request_until_a_split_is_discovered():
    """FLINK-40362"""
    driver = lazy(0)
    driver.send(e.SplitRequested(0))
    assert assigned(driver.discovered(*splits("ab"))) == {0: [split("a")]}


def test_lazy_answers_the_oldest_request_first():
    driver = lazy(0, 1)
    driver.send(e.SplitRequested(1), e.SplitRequested(0))
    assert assigned(driver.discovered(split("a"))) == {1: [split("a")]}


def test_lazy_wakes_a_waiting_reader_when_another_is_lost():
    """seatunnel #11677"""
    driver = Driver(assignment=LazyEnumerator)
    driver.discovered(split("a", 0, 5), complete=True)
    driver.register(0, 1)
    driver.send(e.SplitRequested(0), e.SplitRequested(1))
    assert assigned(driver.send(e.ReaderLost(0))) == {1: [split("a", 0, 5)]}


def test_lazy_forgets_the_request_of_a_lost_reader():
    driver = lazy(0)
    driver.send(e.SplitRequested(0), e.ReaderLost(0))
    driver.register(0)
    assert assigned(driver.discovered(split("a"))) == {}
    assert assigned(driver.send(e.SplitRequested(0))) == {0: [split("a")]}


@pytest.mark.parametrize("ended", ["reader_lost", "reader_registered"])
def test_lazy_by_itself_forgets_a_request_at_the_end_of_a_lifetime_and_at_the_beginning_of_the_next(ended):
    ledger: Ledger[MemorySplit] = Ledger()
    enumerator = LazyEnumerator(ledger, Discovery.IDLE, 1, None)
    enumerator.split_requested(0)
    getattr(enumerator, ended)(0)
    ledger.add([split("a")])
    assert enumerator.assignments([0]) == []
    enumerator.split_requested(0)
    assert enumerator.assignments([0]) == [e.Assign(0, (split("a"),))]


def test_lazy_keeps_the_request_of_a_reader_that_is_not_there_for_no_one():
    driver = lazy(0, 1)
    driver.send(e.SplitRequested(0))
    driver.register(0)
    assert assigned(driver.discovered(split("a"))) == {}
    assert assigned(driver.send(e.SplitRequested(1))) == {1: [split("a")]}


@pytest.mark.parametrize("parallelism", [1, 4])
def test_lazy_restores_at_any_parallelism(parallelism):
    states = [reading(name, 1, 5) for name in "abcdefgh"]
    driver = Driver(checkpoint_of(*states, finished("z", 3)), parallelism=parallelism, assignment=LazyEnumerator)
    commands = driver.register(*range(parallelism))
    for request in range(8):
        commands += driver.send(e.SplitRequested(request % parallelism))
    assert assigned_splits(commands) == [state.split for state in states]


# --- scale ------------------------------------------------------------------------------------------------------------
class CountedSplit:
    """A split that counts how often any process asks who it is: what work on a split comes down to."""

    reads = 0

    def __init__(self, number: int) -> None:
        self._id = f"split-{number}"

    @property
    def split_id(self) -> str:
        CountedSplit.reads += 1
        return self._id


class CountedDict(OrderedDict):
    """Counts the entries that any process walks over."""

    steps = 0

    def __iter__(self):
        return self._counted(super().__iter__())

    def items(self):
        return self._counted(super().items())

    def values(self):
        return self._counted(super().values())

    def _counted(self, walk):
        for each in walk:
            CountedDict.steps += 1
            yield each


def steps_of_a_restore(count: int, readers: int) -> int:
    """Restore `count` splits, register readers, and look once: how many splits were touched."""
    from headrace.enumerator import Checkpoint, Coordinator, SplitState

    CountedSplit.reads = CountedDict.steps = 0
    states = tuple(SplitState(CountedSplit(number), finished=False) for number in range(count))
    enumerator = restore_enumerator(EagerEnumerator, Checkpoint(1, states, exhausted=False), parallelism=readers)
    for name in ("_entries", "_unassigned"):
        setattr(enumerator.ledger, name, CountedDict(getattr(enumerator.ledger, name)))
    coordinator = Coordinator(enumerator)
    coordinator.handle(e.Started())
    added = [CountedSplit(count + number) for number in range(10)]
    events = [*(e.ReaderRegistered(reader) for reader in range(readers)), e.SplitsDiscovered(DiscoveryResult(added))]
    commands = [command for event in events for command in coordinator.handle(event)]
    assert sum(len(assign.splits) for assign in only(commands, e.Assign)) == count + 10
    return CountedSplit.reads + CountedDict.steps


def test_restoring_100_000_splits_and_looking_once_is_linear_in_the_splits():
    steps = steps_of_a_restore(100_000, readers=64)
    assert steps < 12 * 100_000
    assert steps < 11 * steps_of_a_restore(10_000, readers=64)


# --- discovery by a cursor --------------------------------------------------------------------------------------------
def pieces(*numbers: int) -> list[MemorySplit]:
    return [split(f"p{number}", 0, 1) for number in numbers]


def found(driver: Driver, *numbers: int, at: int, more: bool = False, **others) -> list:
    return driver.send(e.SplitsDiscovered(DiscoveryResult(pieces(*numbers), cursor={"at": at}, more=more, **others)))


def after(at: int) -> e.DiscoverAfter:
    return e.DiscoverAfter({"at": at}, e.SPLITS_AT_ONCE)


def test_while_there_is_more_the_next_look_comes_at_once_and_then_after_the_interval():
    driver = Driver(discovery_interval_s=30.0)
    assert found(driver, 1, at=1, more=True) == [after(1)]
    assert found(driver, 2, at=2) == [e.ScheduleDiscovery(30.0)]
    assert driver.send(e.DiscoveryDue()) == [after(2)]
    assert found(driver, at=2, complete=True) == []


@BOTH
def test_no_look_is_made_while_many_splits_are_unfinished(assignment, monkeypatch):
    monkeypatch.setattr(e, "SPLITS_AT_ONCE", 2)
    driver = Driver(assignment=assignment, parallelism=1, discovery_interval_s=30.0)
    driver.send(e.ReaderRegistered(0), e.SplitRequested(0))
    assert only(found(driver, 1, 2, 3, at=3, more=True), e.DiscoverAfter) == []
    driver.send(e.SplitFinished(0, "p1")), driver.send(e.SplitRequested(0))
    assert only(driver.send(e.SplitFinished(0, "p2")), e.DiscoverAfter) == [after(3)]
    found(driver, 4, at=4)
    assert driver.send(e.DiscoveryDue()) == [], "nor when it is time"
    driver.send(e.SplitRequested(0))
    assert only(driver.send(e.SplitFinished(0, "p3")), e.DiscoverAfter) == [after(4)]


def test_a_restored_enumerator_continues_at_the_cursor_once_there_is_capacity(monkeypatch):
    monkeypatch.setattr(e, "SPLITS_AT_ONCE", 2)
    assert Driver(checkpoint_of(reading("p1", 0, 1), cursor={"at": 1})).commands == [after(1)]
    full = Driver(checkpoint_of(reading("p1", 0, 1), reading("p2", 0, 1), cursor={"at": 2}), parallelism=1)
    assert full.commands == []
    full.register(0)
    assert full.send(e.SplitFinished(0, "p1")) == [after(2)]


def test_what_is_inconclusive_does_not_hold_up_what_is_behind_the_cursor():
    driver = Driver()
    assert found(driver, 1, at=1, more=True, inconclusive=DISPUTE) == [e.ReportDiscoveryFailure(DISPUTE), after(1)]
    assert driver.send(e.DiscoveryFailed(DISPUTE)) == [e.ReportDiscoveryFailure(DISPUTE), e.ScheduleDiscovery(2.0)]
    assert driver.send(e.DiscoveryDue()) == [after(1)]


# --- few at a time ----------------------------------------------------------------------------------------------------
def test_each_reader_gets_a_few_splits_and_the_next_when_it_has_finished_one():
    driver = Driver(assignment=SharingEnumerator)
    driver.register(0, 1)
    given = assigned(driver.discovered(*(split(f"p{number}", 0, 1) for number in range(20))))
    assert {reader: len(splits) for reader, splits in given.items()} == {0: 4, 1: 4}
    assert assigned(driver.send(e.SplitFinished(1, given[1][0].split_id))) == {1: [split("p8", 0, 1)]}
    assert len(driver.ledger.held_by(1)) == 5, "what is finished counts no more"
    again = driver.send(e.ReaderLost(1))
    assert assigned(again) == {}, "the other has enough"
    assert [len(splits) for splits in assigned(driver.register(1)).values()] == [4]


def test_a_stage_that_needs_ends_is_over_when_a_checkpoint_has_them():
    """The next one is made from them, so none of them may be read again, to another end."""
    driver, stage = Driver(parallelism=1), replace(OLD, needs_ends=True)
    driver.send(e.SplitsDiscovered(DiscoveryResult([split("a", 0, 2), split("b", 0, 1)], stage=stage)))
    driver.register(0)
    assert not only(driver.send(e.SplitFinished(0, "a"), e.SplitFinished(0, "b")), e.SwitchStage)
    enumerator = driver.coordinator.enumerator
    assert (enumerator.ledger.all_finished, enumerator.waits_for_ends) == (True, True)
    driver.checkpoint(1, r0=[finished("a", 2), finished("b", 1)])
    (switch,) = only(driver.send(e.CheckpointCompleted(1)), e.SwitchStage)
    assert switch.splits == (split("a", 2, 2), split("b", 1, 1))
