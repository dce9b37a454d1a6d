"""Who leads of a job's supervisors: the core, transition by transition; and a heartbeat, byte by byte."""
# ruff: noqa: E501 - a case is a line

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.base.lease import Heartbeat, HeartbeatState, parse_heartbeat
from headrace.enumerator.errors import ProtocolViolationError, StateError, UsageError
from headrace.runners.spark.supervision.core import DriverEnd, Ending
from headrace.runners.spark.supervision.lease.core import (
    LEASE_TRANSITIONS,
    CallWanted,
    DriverHeard,
    DriverLost,
    EndLease,
    Follow,
    HeartbeatWritten,
    JobEnded,
    Lead,
    LeaseCore,
    LeasePhase,
    LeaseStarted,
    LeaseStoreFailed,
    LeaseStoreRead,
    LeaseStoreRefused,
    LeaveRequested,
    MayCall,
    ReadDue,
    ReadLeaseStore,
    WriteHeartbeat,
)
from tests.helpers.envelopes import enveloped, resealed, without
from tests.helpers.tables import arrows

GOLDEN = Path(__file__).parents[1] / "golden" / "lease_v1.json"
NOW = 0.0
ME = "m"
TIMEOUT_S = 1.5
LOOKS = 3
STOPPED, FENCED = DriverEnd(Ending.STOPPED, "it was stopped"), DriverEnd(Ending.FENCED, "by whom?")
FAILED, DONE = DriverEnd(Ending.FAILED, "too often"), DriverEnd(Ending.COMPLETED, "all read")
LOST_RECORDS = DriverEnd(Ending.DATA_LOSS, "gone")


def heartbeat(term=1, supervisor="other", number=0, state=HeartbeatState.LEADING, ending="", reason=""):
    return Heartbeat(term, supervisor, number, state, "there" if supervisor != ME else "here", ending, reason)


OWN = heartbeat(1, ME)
FOUND = LeaseStoreRead(NOW, heartbeat(1, "other", 7))
HIGHER = LeaseStoreRead(NOW, heartbeat(2, "other", 0))
NOTHING = LeaseStoreRead(NOW, None)
FAILS, REFUSED = LeaseStoreFailed(NOW, "away"), LeaseStoreRefused(NOW, "no right")
WRITTEN, HEARD, LOST, DUE = HeartbeatWritten(NOW), DriverHeard(NOW), DriverLost(NOW), ReadDue(NOW)
LEAVE, WANTED = LeaveRequested(NOW), CallWanted(NOW, 7)

NEW: list[Any] = []
LOOKING: list[Any] = [LeaseStarted(NOW)]
FOLLOWING: list[Any] = [*LOOKING, FOUND]
CLAIMING: list[Any] = [*LOOKING, NOTHING]
CLAIMED: list[Any] = [*CLAIMING, WRITTEN]
LEADING: list[Any] = [*CLAIMED, LeaseStoreRead(NOW, OWN)]
DISPUTING: list[Any] = [*LEADING, JobEnded(NOW, FENCED)]
LEAVING: list[Any] = [*LEADING, JobEnded(NOW, DONE)]
OVER: list[Any] = [*LEAVING, REFUSED]
PATHS = dict(zip(LeasePhase, (NEW, LOOKING, FOLLOWING, CLAIMING, LEADING, DISPUTING, LEAVING, OVER), strict=True))
EVENTS = [LeaseStarted(NOW), DUE, FOUND, WRITTEN, FAILS, REFUSED, HEARD, LOST, WANTED, JobEnded(NOW, DONE), LEAVE]
DISPUTED: list[Any] = [*DISPUTING, *[DUE, LeaseStoreRead(NOW, OWN)] * (LOOKS - 1), DUE]
AGAIN = heartbeat(2, ME)


def fenced_again(path, own, then):
    """Unresolved, where that is its own heartbeat on the lease store, it leads as `then`, and is unresolved again."""
    led = [*path, LeaseStoreRead(NOW, own), WRITTEN, LeaseStoreRead(NOW, then), JobEnded(NOW, FENCED)]
    return [*led, *[DUE, LeaseStoreRead(NOW, then)] * (LOOKS - 1), DUE]


ONCE_MORE = heartbeat(3, ME)
DISPUTED_TWICE = fenced_again(DISPUTED, OWN, AGAIN)
DISPUTED_THRICE = fenced_again(DISPUTED_TWICE, AGAIN, ONCE_MORE)
TAKEN_OVER: list[Any] = [*FOLLOWING, *[DUE, FOUND] * LOOKS]
LAST = heartbeat(1, "other", 8, HeartbeatState.OVER, "COMPLETED", "all read")
SAID = heartbeat(1, ME, 1, HeartbeatState.OVER, "COMPLETED", "all read")
LATE = NOW + TIMEOUT_S
HELD: list[Any] = [*LEADING, LOST, CallWanted(LATE, 7)]
LOOKED_LATE: list[Any] = [*HELD, ReadDue(LATE)]
HEARTBEATING: list[Any] = [*LEADING, HEARD, DUE, LeaseStoreRead(NOW, OWN)]
FOUND_OWN = LeaseStoreRead(NOW, OWN)
OVER_IN_2 = replace(LAST, term=2)


@dataclass(frozen=True)
class Case:
    """After `path`, `event` gives `commands` and leads to `phase`."""

    name: str
    path: list[Any]
    event: Any
    commands: list[Any]
    phase: LeasePhase


_P = LeasePhase
CASES = [
    Case("it starts with a warm driver, and a check", NEW, LeaseStarted(NOW), [Follow("it has just started"), ReadLeaseStore()], _P.LOOKING),
    Case("the process that finds nothing leads", LOOKING, NOTHING, [WriteHeartbeat(OWN)], _P.CLAIMING),
    Case("and who finds that the last one has left", LOOKING, LeaseStoreRead(NOW, heartbeat(4, state=HeartbeatState.LEFT)), [WriteHeartbeat(heartbeat(5, ME))], _P.CLAIMING),
    Case("who finds a leader follows", LOOKING, FOUND, [], _P.FOLLOWING),
    Case("who cannot see the lease store waits", LOOKING, FAILS, [], _P.LOOKING),
    Case("and looks again", [*LOOKING, FAILS], DUE, [ReadLeaseStore()], _P.LOOKING),
    Case("who may not see it ends", LOOKING, REFUSED, [EndLease(DriverEnd(Ending.WRONG_USE, "no right"))], _P.OVER),
    Case("one that is stopped before it sees it ends", LOOKING, LEAVE, [EndLease(STOPPED)], _P.OVER),
    Case("a follower looks", FOLLOWING, DUE, [ReadLeaseStore()], _P.FOLLOWING),
    Case("what is new is that the leader is alive", [*FOLLOWING, DUE], LeaseStoreRead(NOW, heartbeat(1, "other", 8)), [], _P.FOLLOWING),
    Case("what is not says nothing yet", [*FOLLOWING, DUE], FOUND, [], _P.FOLLOWING),
    Case("too often, and it leads", [*FOLLOWING, *[DUE, FOUND] * (LOOKS - 1), DUE], FOUND, [WriteHeartbeat(AGAIN)], _P.CLAIMING),
    Case("a follower takes over at once from one that has left", FOLLOWING, LeaseStoreRead(NOW, heartbeat(1, "other", 8, HeartbeatState.LEFT)), [WriteHeartbeat(AGAIN)], _P.CLAIMING),
    Case("a follower ends with the job", FOLLOWING, LeaseStoreRead(NOW, heartbeat(1, "other", 8, HeartbeatState.OVER, "COMPLETED", "all read")), [EndLease(DriverEnd(Ending.COMPLETED, "the job has ended on there: all read"))], _P.OVER),
    Case("a follower that is stopped leaves the leader alone", FOLLOWING, LEAVE, [EndLease(STOPPED)], _P.OVER),
    *(Case(f"a follower continues: {type(event).__name__}", FOLLOWING, event, [], _P.FOLLOWING) for event in (FAILS, REFUSED, WRITTEN)),
    Case("a claim is looked at after it is written", CLAIMING, WRITTEN, [ReadLeaseStore()], _P.CLAIMING),
    Case("the only one leads", CLAIMED, LeaseStoreRead(NOW, OWN), [Lead()], _P.LEADING),
    Case("of two that claim the one of the lower rank follows", CLAIMED, LeaseStoreRead(NOW, heartbeat(1, "z")), [], _P.FOLLOWING),
    Case("and the other says it again", CLAIMED, LeaseStoreRead(NOW, heartbeat(1, "a")), [WriteHeartbeat(replace(OWN, number=1))], _P.CLAIMING),
    Case("one that claims ends with the job of the one that led", [*TAKEN_OVER, WRITTEN], LeaseStoreRead(NOW, LAST), [EndLease(DriverEnd(Ending.COMPLETED, "the job has ended on there: all read"))], _P.OVER),
    Case("but not with one that had ended before it came", [*LOOKING, LeaseStoreRead(NOW, LAST), WRITTEN], LeaseStoreRead(NOW, LAST), [WriteHeartbeat(replace(AGAIN, number=1))], _P.CLAIMING),
    Case("a claim that may not have been written is none", CLAIMING, FAILS, [], _P.FOLLOWING),
    Case("who may never write ends", CLAIMING, REFUSED, [EndLease(DriverEnd(Ending.WRONG_USE, "no right"))], _P.OVER),
    Case("who could once continues", [*FOLLOWING, *[DUE, FOUND] * LOOKS], REFUSED, [], _P.FOLLOWING),
    Case("one that is stopped while it claims states that it has left", CLAIMED, LEAVE, [], _P.LEAVING),
    Case("a claim unresolved is not looked at twice", CLAIMED, DUE, [], _P.CLAIMING),
    Case("a leader looks", LEADING, DUE, [ReadLeaseStore()], _P.LEADING),
    Case("and then heartbeats", [*LEADING, DUE], LeaseStoreRead(NOW, OWN), [WriteHeartbeat(replace(OWN, number=1))], _P.LEADING),
    Case("whatever one of a lower rank has written there", [*LEADING, DUE], LeaseStoreRead(NOW, heartbeat(1, "a", 9)), [WriteHeartbeat(replace(OWN, number=1))], _P.LEADING),
    Case("a leader is down for one of a higher rank, and says who it was", [*LEADING, DUE], HIGHER, [WriteHeartbeat(replace(OWN, number=1)), Follow("there leads, in term 2")], _P.FOLLOWING),
    Case("and for one that has left, whose place it takes", [*LEADING, DUE], LeaseStoreRead(NOW, heartbeat(2, state=HeartbeatState.LEFT)), [Follow("there leads, in term 2"), WriteHeartbeat(heartbeat(3, ME))], _P.CLAIMING),
    Case("and it ends with the job of one of a higher rank", [*LEADING, DUE], LeaseStoreRead(NOW, OVER_IN_2), [EndLease(DriverEnd(Ending.COMPLETED, "the job has ended on there: all read"))], _P.OVER),
    *(Case(f"a leader continues: {type(event).__name__}", LEADING, event, [], _P.LEADING) for event in (WRITTEN, FAILS, REFUSED, HEARD, LOST)),
    Case("a leader calls the driver that its job wants", LEADING, WANTED, [MayCall(7)], _P.LEADING),
    Case("but not one that may have been taken for dead", LEADING, CallWanted(LATE, 7), [], _P.LEADING),
    Case("before it has seen the lease store", LOOKED_LATE, LeaseStoreFailed(LATE, "away"), [], _P.LEADING),
    Case("and that no process leads in its place", LOOKED_LATE, LeaseStoreRead(LATE, OWN), [MayCall(7)], _P.LEADING),
    Case("then it also states that it leads, as soon as that driver is alive", [*LOOKED_LATE, DriverHeard(LATE)], LeaseStoreRead(LATE, OWN), [MayCall(7), WriteHeartbeat(replace(OWN, number=1))], _P.LEADING),
    Case("it calls it once", [*LOOKED_LATE, LeaseStoreRead(LATE, OWN), ReadDue(LATE)], LeaseStoreRead(LATE, OWN), [], _P.LEADING),
    Case("no process calls one that has ended", [*LOOKED_LATE, DriverLost(LATE)], LeaseStoreRead(LATE, OWN), [], _P.LEADING),
    Case("what was seen before its host was paused proves nothing", LOOKED_LATE, LeaseStoreRead(LATE + TIMEOUT_S, OWN), [ReadLeaseStore()], _P.LEADING),
    Case("nor may it heartbeat on that: another one may have led meanwhile, and said its last word", [*LEADING, HEARD, DUE], LeaseStoreRead(LATE, OWN), [ReadLeaseStore()], _P.LEADING),
    Case("a heartbeat counts from when it was asked for: the process that was paused since may have been taken for dead", [*HEARTBEATING, HeartbeatWritten(LATE), LOST], CallWanted(LATE, 7), [], _P.LEADING),
    Case("an answer that has waited for its supervisor proves no more than when it came", [*LEADING, DUE, LOST, CallWanted(LATE, 7)], FOUND_OWN, [ReadLeaseStore()], _P.LEADING),
    Case("one in whose place another one leads calls none", LOOKED_LATE, LeaseStoreRead(LATE, HIGHER.found), [WriteHeartbeat(replace(OWN, number=1)), Follow("there leads, in term 2")], _P.FOLLOWING),
    Case("a leader whose job is done says so", LEADING, JobEnded(NOW, DONE), [WriteHeartbeat(heartbeat(1, ME, 1, HeartbeatState.OVER, "COMPLETED", "all read"))], _P.LEAVING),
    Case("a driver that fails while its supervisor is stopped is not an end of the job: that is handed over", LEADING, JobEnded(NOW, FAILED, was_to_stop=True), [WriteHeartbeat(heartbeat(1, ME, 1, HeartbeatState.LEFT, "FAILED", "too often"))], _P.LEAVING),
    Case("as against one that fails too often", LEADING, JobEnded(NOW, FAILED), [WriteHeartbeat(heartbeat(1, ME, 1, HeartbeatState.OVER, "FAILED", "too often"))], _P.LEAVING),
    Case("nor does a stop hide that the job is done", LEADING, JobEnded(NOW, DONE, was_to_stop=True), [WriteHeartbeat(heartbeat(1, ME, 1, HeartbeatState.OVER, "COMPLETED", "all read"))], _P.LEAVING),
    *(Case(f"what is refused may be so on this host alone, and is handed over: {ending.name}", LEADING, JobEnded(NOW, DriverEnd(ending, "it is so")), [WriteHeartbeat(heartbeat(1, ME, 1, HeartbeatState.LEFT, ending.name, "it is so"))], _P.LEAVING) for ending in (Ending.WRONG_USE, Ending.BAD_CHECKPOINT)),
    *(Case(f"records that are lost are so for all: {was_to_stop=}", LEADING, JobEnded(NOW, LOST_RECORDS, was_to_stop), [WriteHeartbeat(heartbeat(1, ME, 1, HeartbeatState.OVER, "DATA_LOSS", "gone"))], _P.LEAVING) for was_to_stop in (False, True)),
    Case("one whose driver was fenced keeps another one warm, and looks by whom", LEADING, JobEnded(NOW, FENCED), [Follow("its driver was fenced")], _P.DISPUTING),
    Case("it looks", DISPUTING, DUE, [ReadLeaseStore()], _P.DISPUTING),
    Case("it follows who leads", DISPUTING, HIGHER, [], _P.FOLLOWING),
    Case("and who does so with a lower term, if that is news", DISPUTING, LeaseStoreRead(NOW, heartbeat(0, "other", 3)), [], _P.FOLLOWING),
    Case("it ends with the job of the process that has fenced it", DISPUTING, LeaseStoreRead(NOW, OVER_IN_2), [EndLease(DriverEnd(Ending.COMPLETED, "the job has ended on there: all read"))], _P.OVER),
    Case("it takes the place of one that has left", DISPUTING, LeaseStoreRead(NOW, heartbeat(2, state=HeartbeatState.LEFT)), [WriteHeartbeat(heartbeat(3, ME))], _P.CLAIMING),
    Case("its own heartbeat shows nothing", DISPUTING, LeaseStoreRead(NOW, OWN), [], _P.DISPUTING),
    *(Case(f"it continues looking: {type(event).__name__}", DISPUTING, event, [], _P.DISPUTING) for event in (WRITTEN, FAILS, REFUSED)),
    Case("it leads again where no process does", DISPUTED, LeaseStoreRead(NOW, OWN), [WriteHeartbeat(AGAIN)], _P.CLAIMING),
    Case("also fenced again: one that is isolated can do that twice", DISPUTED_TWICE, LeaseStoreRead(NOW, AGAIN), [WriteHeartbeat(ONCE_MORE)], _P.CLAIMING),
    Case("fenced by no process for the third time it ends", DISPUTED_THRICE, LeaseStoreRead(NOW, ONCE_MORE), [EndLease(FENCED)], _P.OVER),
    Case("it ends if it is stopped", DISPUTING, LEAVE, [EndLease(STOPPED)], _P.OVER),
    Case("the last word waits for an answer to the previous one", [*LEADING, DUE, JobEnded(NOW, STOPPED)], LeaseStoreRead(NOW, OWN), [WriteHeartbeat(heartbeat(1, ME, 1, HeartbeatState.LEFT, "STOPPED", "it was stopped"))], _P.LEAVING),
    Case("whatever that is: a check that fails", [*LEADING, DUE, JobEnded(NOW, DONE)], FAILS, [WriteHeartbeat(heartbeat(1, ME, 1, HeartbeatState.OVER, "COMPLETED", "all read"))], _P.LEAVING),
    Case("a heartbeat that was written", [*LEADING, DUE, LeaseStoreRead(NOW, OWN), JobEnded(NOW, DONE)], WRITTEN, [WriteHeartbeat(heartbeat(1, ME, 2, HeartbeatState.OVER, "COMPLETED", "all read"))], _P.LEAVING),
    Case("one that was refused", [*LEADING, DUE, LeaseStoreRead(NOW, OWN), JobEnded(NOW, DONE)], REFUSED, [WriteHeartbeat(heartbeat(1, ME, 2, HeartbeatState.OVER, "COMPLETED", "all read"))], _P.LEAVING),
    Case("it ends where it may not say it", LEAVING, REFUSED, [EndLease(DONE)], _P.OVER),
    Case("it waits whether its last word is", LEAVING, WRITTEN, [], _P.LEAVING),
    Case("and says it again where one that is down has written later", [*LEAVING, WRITTEN, DUE], LeaseStoreRead(NOW, heartbeat(0, "other", 8)), [WriteHeartbeat(replace(SAID, number=2))], _P.LEAVING),
    Case("or where the lease store has forgotten it", [*LEAVING, WRITTEN, DUE], NOTHING, [WriteHeartbeat(replace(SAID, number=2))], _P.LEAVING),
    Case("but not for ever", [*LEAVING, WRITTEN, DUE], LeaseStoreRead(NOW + TIMEOUT_S, heartbeat(0, "other", 8)), [EndLease(DONE)], _P.OVER),
    Case("nor does it wait so long", LEAVING, HeartbeatWritten(NOW + TIMEOUT_S), [EndLease(DONE)], _P.OVER),
    Case("and where another one leads", LEAVING, FOUND, [EndLease(DONE)], _P.OVER),
    Case("a last word that may not have been written is tried again", LEAVING, FAILS, [], _P.LEAVING),
    Case("it looks first", [*LEAVING, FAILS], DUE, [ReadLeaseStore()], _P.LEAVING),
    Case("and says it again", [*LEAVING, FAILS, DUE], LeaseStoreRead(NOW, OWN), [WriteHeartbeat(replace(SAID, number=2))], _P.LEAVING),
    Case("unless it is there", [*LEAVING, FAILS, DUE], LeaseStoreRead(NOW, SAID), [EndLease(DONE)], _P.OVER),
    Case("or another one leads", [*LEAVING, FAILS, DUE], HIGHER, [EndLease(DONE)], _P.OVER),
    Case("or no process waits for it any more", [*LEAVING, FAILS, DUE], LeaseStoreFailed(NOW + TIMEOUT_S, "away"), [EndLease(DONE)], _P.OVER),
    Case("or it is instructed to end without", [*LEAVING, FAILS], LEAVE, [EndLease(DONE)], _P.OVER),
    Case("the last word of one that was overtaken is not said", [*LEADING, DUE, JobEnded(NOW, DONE)], HIGHER, [EndLease(DONE)], _P.OVER),
    *(Case(f"an answer that comes late: {type(event).__name__}", OVER, event, [], _P.OVER) for event in (FOUND, WRITTEN, FAILS, REFUSED)),
]  # fmt: skip


def driven(path):
    core = LeaseCore(ME, "here", TIMEOUT_S)
    for event in path:
        core.handle(event)
    return core


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_transition(case):
    core = driven(case.path)
    assert core.handle(case.event) == case.commands
    assert core.phase is case.phase


def test_every_arrow_of_the_table_has_a_case_and_no_case_leads_elsewhere():
    assert {(driven(case.path).phase, type(case.event), case.phase) for case in CASES} == arrows(LEASE_TRANSITIONS)


def test_the_paths_lead_where_they_say_and_miss_no_phase():
    assert {phase: driven(path).phase for phase, path in PATHS.items()} == {phase: phase for phase in LeasePhase}


OUT_OF_PLACE = [(phase, event) for phase in LeasePhase for event in EVENTS if (phase, type(event)) not in LEASE_TRANSITIONS]


@pytest.mark.parametrize(("phase", "event"), OUT_OF_PLACE, ids=lambda given: getattr(given, "name", type(given).__name__))
def test_an_event_that_is_not_in_the_table_is_refused_and_changes_nothing(phase, event):
    core = driven(PATHS[phase])
    before = pickle.dumps(vars(core))
    with pytest.raises(ProtocolViolationError, match=rf"the lease is {phase.name}: {type(event).__name__}"):
        core.handle(event)
    assert pickle.dumps(vars(core)) == before


def looks(core, *answers):
    """One look for each answer, at the times that the core asks for; what it commands."""
    commands = []
    for answer in answers:
        assert core.handle(ReadDue(core.wake_at_s)) == [ReadLeaseStore()]
        commands += core.handle(answer)
        if any(isinstance(command, WriteHeartbeat) for command in commands):
            commands += core.handle(WRITTEN)
    return commands


def test_no_look_is_counted_while_the_lease_store_is_away_and_the_leader_has_the_whole_time_after_it():
    core = driven(FOLLOWING)
    assert looks(core, FOUND, FOUND, FAILS, FOUND, FOUND, *[FAILS] * 100, FOUND, FOUND) == []
    assert looks(core, FOUND)[0] == WriteHeartbeat(AGAIN)


@pytest.mark.parametrize("path", [LEADING, DISPUTING], ids=["leading", "disputing"])
def test_a_job_that_has_ended_elsewhere_is_not_started_again(path):
    """By one that was paused meanwhile, or whose driver was fenced: it followed who had ended, and led when nothing more came."""
    core = driven(path)
    assert looks(core, LeaseStoreRead(NOW, OVER_IN_2)) == [
        EndLease(DriverEnd(Ending.COMPLETED, "the job has ended on there: all read"))
    ]
    assert core.phase is LeasePhase.OVER


@pytest.mark.parametrize("state", [HeartbeatState.OVER, HeartbeatState.LEFT])
def test_the_last_word_of_one_that_was_paused_is_not_taken_for_that_of_who_leads_now(state):
    core = driven([*LOOKING, LeaseStoreRead(NOW, heartbeat(5, "young", 3))])
    late = LeaseStoreRead(NOW, heartbeat(4, "old", 9, state, "FAILED", "too often"))
    assert looks(core, late, LeaseStoreRead(NOW, heartbeat(5, "young", 4)), late) == []
    assert core.phase is LeasePhase.FOLLOWING


def test_a_claim_is_above_all_terms_that_were_seen_and_not_only_the_last():
    core = driven([*LOOKING, LeaseStoreRead(NOW, heartbeat(5, "young", 3))])
    late = LeaseStoreRead(NOW, heartbeat(1, "old", 9))
    assert looks(core, *[late] * LOOKS) == []
    assert looks(core, late)[0] == WriteHeartbeat(heartbeat(6, ME))


def test_a_host_that_was_paused_has_looked_once():
    core = driven(FOLLOWING)
    looks(core, FOUND)
    assert core.handle(ReadDue(3600.0)) == [ReadLeaseStore()]
    assert core.handle(LeaseStoreRead(3600.0, FOUND.found)) == []
    assert core.phase is LeasePhase.FOLLOWING


def test_a_leader_does_not_heartbeat_without_a_word_of_its_driver_and_does_again_with_one():
    core = driven(LEADING)
    core.handle(HEARD)
    own = LeaseStoreRead(NOW, OWN)
    assert len([command for command in looks(core, *[own] * 10) if isinstance(command, WriteHeartbeat)]) == 3
    core.handle(HEARD)
    assert any(isinstance(command, WriteHeartbeat) for command in looks(core, own))
    core.handle(LOST)
    assert looks(core, own, own) == []
    core.handle(HEARD)
    assert any(isinstance(command, WriteHeartbeat) for command in looks(core, own))


def test_a_leader_beats_while_its_first_driver_starts_but_not_for_ever():
    core = driven(LEADING)
    written = [command for command in looks(core, *[LeaseStoreRead(NOW, OWN)] * 200) if isinstance(command, WriteHeartbeat)]
    assert 50 <= len(written) <= 70


def test_who_was_fenced_long_ago_and_led_since_leads_again():
    """Two fences months apart ended the only supervisor with status 67."""
    core = driven([*DISPUTED_TWICE, LeaseStoreRead(NOW, AGAIN), WRITTEN, LeaseStoreRead(NOW, ONCE_MORE)])
    core.handle(HEARD)
    looks(core, *[LeaseStoreRead(NOW, ONCE_MORE)] * (2 * 3600))
    core.handle(JobEnded(NOW, FENCED))
    assert looks(core, *[LeaseStoreRead(NOW, ONCE_MORE)] * LOOKS)[0] == WriteHeartbeat(heartbeat(4, ME))
    assert core.phase is LeasePhase.CLAIMING


@pytest.mark.parametrize("later", [0, 2, 20])
def test_who_was_fenced_by_a_rival_that_it_has_seen_is_not_fenced_by_no_process(later):
    """The rival's last heartbeat is gone when the driver comes to its next commit: its supervisor ended after the second time."""
    core, own = driven(LEADING), OWN
    for term in (1, 2, 3, 4):
        core.handle(HEARD)
        looks(core, LeaseStoreRead(NOW, heartbeat(0, f"rival {term}", 3)), *[LeaseStoreRead(NOW, own)] * later)
        core.handle(JobEnded(NOW, FENCED))
        disputed, own = own, heartbeat(term + 1, ME)
        assert looks(core, *[LeaseStoreRead(NOW, disputed)] * LOOKS)[0] == WriteHeartbeat(own)
        core.handle(LeaseStoreRead(NOW, own))
        assert core.phase is LeasePhase.LEADING


def test_a_rival_of_an_earlier_claim_is_no_excuse():
    core = driven(LEADING)
    looks(core, LeaseStoreRead(NOW, heartbeat(0, "rival", 3)))
    last = heartbeat(4, ME)
    for own, then in [(OWN, AGAIN), (AGAIN, ONCE_MORE), (ONCE_MORE, last)]:
        core.handle(JobEnded(NOW, FENCED))
        assert looks(core, *[LeaseStoreRead(NOW, own)] * LOOKS)[0] == WriteHeartbeat(then)
        core.handle(LeaseStoreRead(NOW, then))
    core.handle(JobEnded(NOW, FENCED))
    assert looks(core, *[LeaseStoreRead(NOW, last)] * LOOKS) == [EndLease(FENCED)]


def test_a_leader_knows_by_its_own_clock_that_it_may_be_taken_for_dead():
    core = driven([*LEADING, DUE, LeaseStoreFailed(0.9, "away"), ReadDue(1.4)])
    assert not core.is_suspect
    core.handle(LeaseStoreRead(1.5, OWN))
    assert (core.is_suspect, core.phase) == (True, LeasePhase.LEADING)
    core.handle(HeartbeatWritten(1.6))
    assert not core.is_suspect


def test_also_while_it_waits_for_an_answer_of_the_lease_store():
    """Looks were counted by their answers: with one in 2.5 s, as where no broker answers, that took five times as long."""
    core = driven([*LEADING, DUE])
    for now_s in (0.5, 1.0):
        core.handle(DriverHeard(now_s))
        assert not core.is_suspect
    core.handle(DriverHeard(1.5))
    assert core.is_suspect


def test_a_leader_that_was_paused_for_longer_may_have_been_taken_for_dead():
    core = driven(LEADING)
    core.handle(DriverHeard(3600.0))
    assert core.is_suspect


def test_a_driver_waits_from_the_time_that_it_is_wanted_until_it_is_called_or_its_supervisor_does_not_lead():
    core = driven(LEADING)
    core.handle(WANTED)
    assert core.waiting is None
    core = driven(HELD)
    assert core.waiting == 7
    looks(core, LeaseStoreRead(LATE, HIGHER.found))
    assert core.waiting is None
    again = driven(
        [*HELD, JobEnded(LATE, FENCED), *[DUE, LeaseStoreRead(LATE, OWN)] * LOOKS, WRITTEN, LeaseStoreRead(LATE, AGAIN)]
    )
    assert (again.phase, again.waiting) == (LeasePhase.LEADING, None)


def test_a_leader_that_is_truncated_takes_the_job_from_who_has_taken_over_with_none_of_its_next_drivers():
    """Each of them fenced the healthy one, which saw no heartbeat of another: fenced twice by no process it ended with status 67."""
    core = driven(LEADING)
    for number in range(2, 6):
        core.handle(DriverLost(number * 10.0))
        assert core.handle(CallWanted(number * 10.0, number)) == []
        assert looks(core, *[FAILS] * 5) == []
    assert looks(core, LeaseStoreRead(core.wake_at_s, OWN)) == [MayCall(5)]


def test_the_lease_store_is_asked_one_question_at_a_time_and_not_too_often():
    core = driven(FOLLOWING)
    assert core.wake_at_s == 0.5
    core.handle(ReadDue(0.5))
    assert core.wake_at_s is None
    core.handle(LeaseStoreRead(0.7, FOUND.found))
    assert core.wake_at_s == 1.2


def test_what_is_wrong_with_the_lease_store_is_reported_until_it_answers():
    core = driven([*FOLLOWING, DUE, FAILS])
    assert core.trouble == "away"
    looks(core, FOUND)
    assert core.trouble is None


@pytest.mark.parametrize("timeout_s", [1.4, 0, -1, float("inf"), float("nan")])
def test_a_timeout_that_makes_no_sense_is_refused(timeout_s):
    with pytest.raises(UsageError, match=r"at least 1\.5 s"):
        LeaseCore(ME, "here", timeout_s)


# --- a heartbeat -------------------------------------------------------------------------------------------------------------

STORED = heartbeat(3, "ab12", 41, HeartbeatState.OVER, "COMPLETED", "all its queries have ended")


def test_the_golden_heartbeat_is_read_and_written():
    assert parse_heartbeat(GOLDEN.read_text(), "here") == STORED
    assert STORED.serialize() == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("null", "without a format"),
        ("[" * 100_000, "not JSON"),
        (resealed(STORED.serialize(), term="3").decode(), "damaged"),
        (resealed(STORED.serialize(), state="asleep").decode(), "damaged"),
        (without(STORED.serialize(), "host").decode(), "damaged"),
        (STORED.serialize().replace("COMPLETED", "COMPLETER"), "checksum"),
        (enveloped(STORED.serialize(), format="x").decode(), "its format is 'x'"),
        (enveloped(STORED.serialize(), version=2).decode(), "a newer headrace"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_heartbeat_is_refused_and_the_place_is_named(text, says):
    with pytest.raises(StateError, match=f"^over there: the lease cannot be read: .*{says}"):
        parse_heartbeat(text, "over there")
