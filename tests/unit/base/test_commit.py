"""The order of commit and recovery, transition by transition; and the durable list, byte by byte."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base.commit import (
    COMMIT_TRANSITIONS,
    Check,
    Checked,
    ClaimRequested,
    CleanedUp,
    CleanUp,
    CommitCore,
    CommitPhase,
    CommitRequested,
    Copied,
    Copy,
    End,
    Ended,
    Fence,
    Fenced,
    JobCommitter,
    Record,
    Recorded,
    RecoveryRequested,
    ReleaseRequested,
    StaleEpochError,
    SupersededError,
    refuse_another,
    refuse_stale,
)
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.sink import Attempt, CommitList, JobClaim, Outcome, content_number, numbered_content
from headrace.enumerator.errors import DataLossError, FencedError, PeerError, ProtocolViolationError, StateError, UsageError
from headrace.testing.memory_sink import MemoryCommitter, MemoryHandle, MemoryHandleSerializer, MemorySink, MemoryTransactionLog
from tests.helpers.envelopes import NO_ENVELOPES, body_of, enveloped, resealed, without
from tests.helpers.tables import arrows

GOLDEN = Path(__file__).parents[1] / "golden"
A, B, C = MemoryHandle(1), MemoryHandle(2), MemoryHandle(3)
LISTS = CommitListSerializer(MemoryHandleSerializer())

LISTED = CommitList(5, (A, B))
DONE = CommitList(5, (), completed=True)
ASKED = CommitRequested(5, (A, B))

# What leads to each phase, for a commit of epoch 5 with A and B, or the recovery of it.
NEW: list[Any] = []
FENCING: list[Any] = [RecoveryRequested()]
CLEARING: list[Any] = [*FENCING, Fenced(LISTED)]
READY: list[Any] = [RecoveryRequested(), Fenced(None), CleanedUp()]
READY_AT_5: list[Any] = [RecoveryRequested(), Fenced(DONE), CleanedUp()]
CHECKING: list[Any] = [*READY, ASKED]
RECORDING: list[Any] = [*CHECKING, Checked()]
ENDING: list[Any] = [*RECORDING, Recorded()]
COPYING: list[Any] = [*ENDING, Ended(A, Outcome.COMMITTED), Ended(B, Outcome.ABORTED)]
CLEANING_UP: list[Any] = [*ENDING, Ended(A, Outcome.COMMITTED), Ended(B, Outcome.COMMITTED)]
COMPLETING: list[Any] = [*CLEANING_UP, CleanedUp()]
CONFIRMING: list[Any] = [*READY_AT_5, CommitRequested(5, (C,))]
# Epoch 6 is asked for, of C or without rows, and the recovery before it has ended all of epoch 5.
RECOVERY_OF_5: list[Any] = [Fenced(LISTED), CleanedUp(), Ended(A, Outcome.COMMITTED), Ended(B, Outcome.COMMITTED), CleanedUp()]
RECOVERED_6: list[Any] = [CommitRequested(6, (C,)), *RECOVERY_OF_5]
RECOVERED_EMPTY_6: list[Any] = [CommitRequested(6, ()), *RECOVERY_OF_5]
DONE_6 = CommitList(6, (), completed=True)
# Of a supervised driver, "mine", and another one.
MINE, HIS, NOBODYS = JobClaim(3, "mine"), JobClaim(2, "his"), JobClaim(4, None)
CLAIMING: list[Any] = [ClaimRequested(), Fenced(replace(DONE, claim=HIS))]
RELEASING: list[Any] = [ReleaseRequested(), Fenced(replace(DONE, claim=MINE)), CleanedUp()]
CLAIMED_UNFINISHED: list[Any] = [ClaimRequested(), Fenced(replace(LISTED, claim=HIS))]
RELEASED_UNFINISHED: list[Any] = [
    *(ReleaseRequested(), Fenced(replace(LISTED, claim=MINE)), CleanedUp()),
    *(Ended(A, Outcome.COMMITTED), Ended(B, Outcome.COMMITTED), CleanedUp()),
]
GIVEN_BACK = replace(DONE, claim=JobClaim(3, None))
PATHS = {
    CommitPhase.CREATED: NEW, CommitPhase.FENCING: FENCING, CommitPhase.CLAIMING: CLAIMING,
    CommitPhase.CLEARING: CLEARING, CommitPhase.READY: READY, CommitPhase.CHECKING: CHECKING,
    CommitPhase.RECORDING: RECORDING, CommitPhase.ENDING: ENDING, CommitPhase.COPYING: COPYING,
    CommitPhase.CLEANING_UP: CLEANING_UP, CommitPhase.COMPLETING: COMPLETING, CommitPhase.CONFIRMING: CONFIRMING,
    CommitPhase.RELEASING: RELEASING,
}  # fmt: skip
EVENTS = [
    *(ClaimRequested(), ReleaseRequested(), RecoveryRequested(), ASKED, Fenced(None), Checked(), Recorded()),
    *(Ended(A, Outcome.COMMITTED), Copied((C,)), CleanedUp()),
]


@dataclass(frozen=True)
class Case:
    """After `path`, `event` gives `commands` and leads to `phase`."""

    name: str
    path: list[Any]
    event: Any
    commands: list[Any]
    phase: CommitPhase


CASES = [
    Case("recovery fences first", NEW, RecoveryRequested(), [Fence()], CommitPhase.FENCING),
    Case("a commit fences first", NEW, ASKED, [Fence()], CommitPhase.FENCING),
    Case("no list: only clean up", FENCING, Fenced(None), [CleanUp(())], CommitPhase.CLEANING_UP),
    Case("a completed list: only clean up", FENCING, Fenced(DONE), [CleanUp(())], CommitPhase.CLEANING_UP),
    Case("before an unfinished list all others are cleaned up", FENCING, Fenced(LISTED), [CleanUp((A, B))],
        CommitPhase.CLEARING),
    Case("but not what is asked for", [CommitRequested(6, (C,))], Fenced(LISTED), [CleanUp((A, B, C))], CommitPhase.CLEARING),
    Case("of a replay it is", [CommitRequested(5, (C,))], Fenced(LISTED), [CleanUp((A, B))], CommitPhase.CLEARING),
    Case("then the list is completed", CLEARING, CleanedUp(), [End(A), End(B)], CommitPhase.ENDING),
    Case("the clean-up keeps what is asked for", [ASKED], Fenced(None), [CleanUp((A, B))], CommitPhase.CLEANING_UP),
    Case("the clean-up keeps no replay", [CommitRequested(5, (C,))], Fenced(DONE), [CleanUp(())], CommitPhase.CLEANING_UP),
    Case("ready after recovery", READY[:-1], CleanedUp(), [], CommitPhase.READY),
    Case("recovery again cleans up", READY, RecoveryRequested(), [CleanUp(())], CommitPhase.CLEANING_UP),
    Case("a commit is checked first", READY, ASKED, [Check((A, B))], CommitPhase.CHECKING),
    Case("a replay is confirmed first", READY_AT_5, CommitRequested(5, (C,)), [Record(DONE)], CommitPhase.CONFIRMING),
    Case("and so is a stale epoch", READY_AT_5, CommitRequested(4, (C,)), [Record(DONE)], CommitPhase.CONFIRMING),
    Case("an empty epoch is recorded first", READY, CommitRequested(5, ()), [Record(DONE)], CommitPhase.CONFIRMING),
    Case("and cleaned up then", CONFIRMING, Recorded(), [CleanUp(())], CommitPhase.CLEANING_UP),
    Case("then a commit after recovery is checked", [ASKED, Fenced(None)], CleanedUp(), [Check((A, B))], CommitPhase.CHECKING),
    Case("then a replay is done", [*CONFIRMING, Recorded()], CleanedUp(), [], CommitPhase.READY),
    Case("then an empty epoch is done", [*READY, CommitRequested(5, ()), Recorded()], CleanedUp(), [], CommitPhase.READY),
    Case("an empty first epoch is recorded", [CommitRequested(5, ()), Fenced(None)], CleanedUp(), [Record(DONE)],
        CommitPhase.COMPLETING),
    Case("the list is made durable", CHECKING, Checked(), [Record(LISTED)], CommitPhase.RECORDING),
    Case("only then it is committed", RECORDING, Recorded(), [End(A), End(B)], CommitPhase.ENDING),
    Case("all are waited for", ENDING, Ended(A, Outcome.COMMITTED), [], CommitPhase.ENDING),
    Case("what is aborted is copied", COPYING[:-1], Ended(B, Outcome.ABORTED), [Copy((B,))], CommitPhase.COPYING),
    Case("the copy takes its place on the list", COPYING, Copied((C,)), [Record(CommitList(5, (C,)))], CommitPhase.RECORDING),
    Case("and is committed then", [*COPYING, Copied((C,))], Recorded(), [End(C)], CommitPhase.ENDING),
    Case("the losers are cleaned up", CLEANING_UP[:-1], Ended(B, Outcome.COMMITTED), [CleanUp(())], CommitPhase.CLEANING_UP),
    Case("at last the list is completed", CLEANING_UP, CleanedUp(), [Record(DONE)], CommitPhase.COMPLETING),
    Case("ready after the commit", COMPLETING, Recorded(), [], CommitPhase.READY),
    Case("a commit after a recovered one is checked", RECOVERED_6, Recorded(), [Check((C,))], CommitPhase.CHECKING),
    Case("an empty epoch after a recovered one", RECOVERED_EMPTY_6, Recorded(), [Record(DONE_6)], CommitPhase.COMPLETING),
    Case("a claim fences first", NEW, ClaimRequested(), [Fence()], CommitPhase.FENCING),
    Case("a claim is recorded, with the next number, before anything else", [ClaimRequested()],
        Fenced(replace(LISTED, claim=HIS)), [Record(replace(LISTED, claim=MINE))], CommitPhase.CLAIMING),
    Case("then an unfinished list is cleared", CLAIMED_UNFINISHED, Recorded(), [CleanUp((A, B))], CommitPhase.CLEARING),
    Case("a completed one is only cleaned up", CLAIMING, Recorded(), [CleanUp(())], CommitPhase.CLEANING_UP),
    Case("what is given back is fenced first", NEW, ReleaseRequested(), [Fence()], CommitPhase.FENCING),
    Case("it is cleaned up, and then it is no process's", RELEASING[:-1], CleanedUp(),
        [Record(replace(DONE, claim=JobClaim(3, None)))], CommitPhase.RELEASING),
    Case("an unfinished list is completed before", RELEASED_UNFINISHED, Recorded(), [Record(GIVEN_BACK)],
        CommitPhase.RELEASING),
    Case("ready after it was given back", RELEASING, Recorded(), [], CommitPhase.READY),
]  # fmt: skip


def driven(path: list[Any]) -> CommitCore[MemoryHandle]:
    """A core that was reported this. One that claims or gives back has a driver id."""
    is_supervised = any(isinstance(event, ClaimRequested | ReleaseRequested) for event in path)
    core: CommitCore[MemoryHandle] = CommitCore("job", "mine" if is_supervised else None)
    for event in path:
        core.handle(event)
    return core


def batch(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)})


@pytest.fixture
def log() -> MemoryTransactionLog:
    return MemoryTransactionLog()


@pytest.fixture
def sink(log: MemoryTransactionLog) -> MemorySink:
    return MemorySink(log)


def driver(sink: MemorySink, name: str | None = None) -> JobCommitter[MemoryHandle]:
    return JobCommitter("job", sink.committer("job"), name)


def prepared(sink: MemorySink, epoch: int, task: int, *values: str, number: int = 0) -> MemoryHandle:
    transaction = sink.begin(Attempt("job", epoch, task, number))
    transaction.write(batch(*values))
    handle = transaction.prepare()
    assert handle is not None
    return handle


def visible(log: MemoryTransactionLog) -> list[str]:
    return [row["value"] for row in log.rows()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_transition(case: Case):
    core = driven(case.path)
    assert core.handle(case.event) == case.commands
    assert core.phase is case.phase


def test_every_arrow_of_the_table_has_a_case_and_no_case_leads_elsewhere():
    assert {(driven(case.path).phase, type(case.event), case.phase) for case in CASES} == arrows(COMMIT_TRANSITIONS)


def test_the_paths_lead_where_they_say_and_miss_no_phase():
    assert {phase: driven(path).phase for phase, path in PATHS.items()} == {phase: phase for phase in CommitPhase}


OUT_OF_PLACE = [(phase, event) for phase in CommitPhase for event in EVENTS if (phase, type(event)) not in COMMIT_TRANSITIONS]


@pytest.mark.parametrize(("phase", "event"), OUT_OF_PLACE, ids=lambda given: getattr(given, "name", type(given).__name__))
def test_an_event_that_is_not_in_the_table_is_refused_and_changes_nothing(phase, event):
    core = driven(PATHS[phase])
    before = pickle.dumps(vars(core))
    with pytest.raises(ProtocolViolationError, match=rf"'job' is {phase.name}: {type(event).__name__}"):
        core.handle(event)
    assert pickle.dumps(vars(core)) == before


@pytest.mark.parametrize("path", [
    [CommitRequested(4, (C,)), Fenced(DONE), CleanedUp()], [*READY_AT_5, CommitRequested(4, (C,)), Recorded(), CleanedUp()]
])  # fmt: skip
def test_a_stale_epoch_is_refused_after_its_transactions_are_cleaned_up(path):
    core = driven(path[:-1])
    with pytest.raises(StaleEpochError, match=r"'job' is to write epoch 4.*committed up to epoch 5.*newest checkpoint"):
        core.handle(path[-1])
    assert core.commits == DONE


@pytest.mark.parametrize(("epoch", "recorded"), [(0, -1), (5, 5), (6, 5)])
def test_no_other_epoch_is_stale(epoch, recorded):
    refuse_stale("job", epoch, recorded)


def test_what_is_to_be_done_about_a_stale_epoch_is_said_in_full():
    with pytest.raises(StaleEpochError) as raised:
        refuse_stale("job", 4, 5)
    assert str(raised.value) == (
        "job 'job' is to write epoch 4, and the sink has committed up to epoch 5 of it: the checkpoint is an older copy, and "
        "its epochs need not hold the rows they held before. Continue from the newest checkpoint, or start a new query with a "
        "new checkpoint"
    )


def test_a_new_core_knows_of_no_list():
    assert driven(NEW).commits is None


def test_a_replay_from_another_plan_does_not_replace_what_is_recorded_before_it_is_refused():
    recorded = replace(DONE, content="sha256:recorded")
    core = driven([RecoveryRequested(), Fenced(recorded), CleanedUp()])
    assert core.handle(CommitRequested(5, (), "sha256:planned again")) == [Record(recorded)]
    core.handle(Recorded())
    with pytest.raises(StaleEpochError, match=r"'job' is to write epoch 5.*already, from another plan"):
        core.handle(CleanedUp())


def recorded_contents(path: list[Any]) -> list[str | None]:
    """What each list of this path is made from, one after the other."""
    core: CommitCore[MemoryHandle] = CommitCore("job")
    commands = [command for event in path for command in core.handle(event)]
    return [command.commits.content for command in commands if isinstance(command, Record)]


@pytest.mark.parametrize("path", [
    [CommitRequested(5, (A,), "c"), Fenced(None), CleanedUp(), Checked(), Recorded(), Ended(A, Outcome.ABORTED), Copied((C,))],
    [CommitRequested(5, (A,), "c"), Fenced(None), CleanedUp(), Checked(), Recorded(), Ended(A, Outcome.COMMITTED), CleanedUp()],
    [CommitRequested(5, (), "c"), Fenced(None), CleanedUp()], [*READY, CommitRequested(5, (), "c")],
], ids=["a copy", "a commit", "an empty epoch after recovery", "an empty epoch"])  # fmt: skip
def test_what_an_epoch_was_made_from_is_recorded_with_it_each_time(path):
    assert set(recorded_contents(path)) == {"c"}


@pytest.mark.parametrize(
    ("asked", "recorded"), [("c", "c"), ("c", numbered_content(content_number("c"))), ("c", None), (None, "c"), (None, None)]
)
def test_a_replay_of_the_same_plan_is_completed_and_so_is_one_whose_plan_is_not_known(asked, recorded):
    path = [RecoveryRequested(), Fenced(replace(DONE, content=recorded)), CleanedUp(), CommitRequested(5, (), asked)]
    core = driven([*path, Recorded()])
    assert (core.handle(CleanedUp()), core.phase) == ([], CommitPhase.READY)


def test_a_replay_of_another_plan_is_refused_with_what_to_do():
    path = [RecoveryRequested(), Fenced(replace(DONE, content="a")), CleanedUp(), CommitRequested(5, (), "b"), Recorded()]
    with pytest.raises(StaleEpochError) as raised:
        driven(path).handle(CleanedUp())
    assert str(raised.value) == (
        "job 'job' is to write epoch 5, which the sink has committed already, from another plan of it: the checkpoint is an "
        "older copy, or its last offsets were removed, and the epoch was planned again. To skip it would lose or repeat rows. "
        "Continue from the newest checkpoint, or start a new query with a new checkpoint"
    )


# --- who owns the job -------------------------------------------------------------------------------------------------
def fenced(request: Any, driver_id: str | None, claim: JobClaim | None) -> CommitCore[MemoryHandle]:
    core: CommitCore[MemoryHandle] = CommitCore("job", driver_id)
    core.handle(request)
    core.handle(Fenced(replace(DONE, claim=claim)))
    return core


AS_OWNER = [RecoveryRequested(), CommitRequested(6, (A,)), ReleaseRequested()]


@pytest.mark.parametrize("request_", AS_OWNER, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("claim", [HIS, JobClaim(9, "his"), NOBODYS, JobClaim(2, numbered_content(7))])
def test_a_supervised_driver_whose_job_is_anothers_is_done_for_before_it_changes_anything(request_, claim):
    with pytest.raises(SupersededError, match=r"'job' is another driver's.*has changed nothing") as raised:
        fenced(request_, "mine", claim)
    assert isinstance(raised.value, FencedError)


@pytest.mark.parametrize("request_", AS_OWNER, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("claim", [MINE, JobClaim(3, numbered_content(content_number("mine")))])
def test_whose_job_it_is_continues_also_where_only_a_number_is_kept(request_, claim):
    assert fenced(request_, "mine", claim).phase is CommitPhase.CLEANING_UP


@pytest.mark.parametrize("request_", [RecoveryRequested(), CommitRequested(6, (A,))], ids=lambda event: type(event).__name__)
def test_a_query_without_supervision_takes_no_job_that_is_claimed_and_says_the_way_out(request_):
    with pytest.raises(SupersededError, match=r"supervised driver, his \(claim 2\).*under supervision once and stop it there"):
        fenced(request_, None, HIS)
    assert fenced(request_, None, None).phase is fenced(request_, None, NOBODYS).phase is CommitPhase.CLEANING_UP


def test_a_supervised_driver_claims_what_no_process_ever_has_before_it_does_anything_else():
    core: CommitCore[MemoryHandle] = CommitCore("job", "mine")
    core.handle(CommitRequested(0, (A,)))
    assert core.handle(Fenced(None)) == [Record(CommitList(None, (), completed=True, claim=JobClaim(1, "mine")))]
    assert core.handle(Recorded()) == [CleanUp((A,))]
    core.handle(CleanedUp())
    assert core.handle(Checked()) == [Record(CommitList(0, (A,), claim=JobClaim(1, "mine")))]
    for request in (RecoveryRequested(), ReleaseRequested()):
        assert fenced(request, "mine", None).phase is CommitPhase.CLAIMING


def test_what_is_nobodys_is_given_back_without_a_record():
    core = fenced(ReleaseRequested(), None, None)
    assert core.handle(CleanedUp()) == []
    assert core.phase is CommitPhase.READY


def test_a_claim_that_is_recorded_already_is_not_made_again():
    assert fenced(ClaimRequested(), "mine", MINE).phase is CommitPhase.CLEANING_UP


@pytest.mark.parametrize("path", [
    [CommitRequested(6, (A,)), Fenced(replace(DONE, claim=MINE)), CleanedUp(), Checked()],
    [CommitRequested(6, ()), Fenced(replace(DONE, claim=MINE)), CleanedUp()],
    [CommitRequested(5, ()), Fenced(replace(DONE, claim=MINE)), CleanedUp(), CommitRequested(6, ())],
    [RecoveryRequested(), Fenced(replace(LISTED, claim=MINE)), CleanedUp(), *COPYING[-2:], Copied((C,))],
    [
        *(RecoveryRequested(), Fenced(replace(LISTED, claim=MINE)), CleanedUp()),
        *(Ended(A, Outcome.COMMITTED), Ended(B, Outcome.COMMITTED), CleanedUp()),
    ],
])  # fmt: skip
def test_every_list_says_whose_the_job_is(path):
    core: CommitCore[MemoryHandle] = CommitCore("job", "mine")
    commands = [command for event in path for command in core.handle(event)]
    assert {command.commits.claim for command in commands if isinstance(command, Record)} == {MINE}


# --- with a log in memory -----------------------------------------------------------------------------------------------
def test_of_two_drivers_that_live_the_younger_continues_and_the_older_is_done_for(log, sink):
    old, young = (driver(sink, name) for name in ("old", "young"))
    old.claim()
    old.commit(0, (prepared(sink, 0, 0, "a"),))
    young.claim()
    under_way = prepared(sink, 1, 0, "b")
    with pytest.raises(FencedError, match="another driver claimed it"):
        old.commit(1, (prepared(sink, 1, 1, "c"),))
    with pytest.raises(SupersededError, match="young"):  # which fences, and changes nothing
        driver(sink, "old").commit(1, (prepared(sink, 1, 1, "c"),))
    with pytest.raises(FencedError):
        young.commit(1, (under_way,))
    driver(sink, "young").commit(1, (under_way,))
    assert visible(log) == ["a", "b"]


def test_a_job_that_was_given_back_is_for_the_process_that_comes_but_not_for_a_driver_of_before(log, sink):
    for name in ("older", "younger"):
        driver(sink, name).claim()
    assert sink.recorded_epochs() == {}
    assert driver(sink, "younger").recorded_epoch is None
    driver(sink, "younger").release()
    with pytest.raises(SupersededError, match=r"which has ended since \(claim 2\)"):
        driver(sink, "older").commit(0, ())
    unsupervised = driver(sink)
    unsupervised.commit(0, (prepared(sink, 0, 0, "a"),))
    assert unsupervised.is_first
    driver(sink, "youngest").claim()
    assert LISTS.deserialize(log.stored()["job"], "here") == CommitList(0, (), completed=True, claim=JobClaim(3, "youngest"))


def test_a_commit_shows_the_rows_and_leaves_nothing_open():
    log = MemoryTransactionLog()
    sink = pickle.loads(pickle.dumps(MemorySink(log)))
    loser = prepared(sink, 0, 0, "a", number=1)
    handles = (prepared(sink, 0, 0, "a"), prepared(sink, 0, 1, "b", "c"))
    committer = driver(sink)
    committer.commit(0, handles)
    assert visible(log) == ["a", "b", "c"]
    assert not log.unended("job")
    assert loser.number not in [handle.number for handle in handles]
    assert sink.recorded_epochs() == {"job": 0}
    committer.forget()
    committer.close()
    assert sink.recorded_epochs() == {}


def test_what_expires_after_it_is_listed_is_copied(log, sink):
    handles = (prepared(sink, 0, 0, "a"), prepared(sink, 0, 1, "b"))
    old = sink.committer("job")
    old.fence()
    old.record(CommitList(0, handles))
    log.expire(handles[1].number)
    driver(sink).recover()
    assert sorted(visible(log)) == ["a", "b"]
    with pytest.raises(FencedError, match="another driver"):
        old.record(CommitList(0, ()))


def test_what_expires_before_it_is_listed_fails_the_epoch_and_a_replay_writes_it(log, sink):
    handle = prepared(sink, 0, 0, "a")
    log.expire(handle.number)
    with pytest.raises(PeerError, match="not prepared any more"):
        driver(sink).commit(0, (handle,))
    driver(sink).commit(0, (prepared(sink, 0, 0, "a"),))
    assert visible(log) == ["a"]


def test_what_became_of_an_unknown_transaction_cannot_be_known():
    with pytest.raises(DataLossError, match="transaction 7 was never prepared"):
        MemorySink(MemoryTransactionLog()).committer("job").end(MemoryHandle(7))


def test_a_transaction_without_rows_has_no_handle_and_leaving_aborts_what_is_not_prepared():
    log = MemoryTransactionLog()
    with MemorySink(log).begin(Attempt("job", 0, 0, 0)) as transaction:
        assert transaction.prepare() is None
    with MemorySink(log).begin(Attempt("job", 0, 1, 0)) as transaction:
        transaction.write(batch("a"))
    assert not log.unended("job")


class Watched(MemoryCommitter):
    """Keeps what it is asked to confirm, and loses the last of several outcomes."""

    def __init__(self, log, job):
        super().__init__(log, job)
        self.confirmed = []

    def confirm(self, handles):
        self.confirmed.append(handles)

    def end_all(self, handles):
        return [self.end(handle) for handle in handles][: max(1, len(handles) - 1)]


def test_the_sink_is_asked_whether_what_was_committed_is_of_the_recorded_write():
    log = MemoryTransactionLog()
    watched = Watched(log, "job")
    handles = (prepared(MemorySink(log), 0, 0, "a"),)
    JobCommitter("job", watched).commit(0, handles)
    assert watched.confirmed == [handles]


def test_what_an_epoch_was_made_from_is_durable(log, sink):
    driver(sink).commit(0, (prepared(sink, 0, 0, "a"),), "sha256:ab12")
    assert LISTS.deserialize(log.stored()["job"], "here").content == "sha256:ab12"


def test_a_sink_that_leaves_out_an_outcome_is_an_error_and_no_completed_epoch(log, sink):
    with pytest.raises(ValueError, match="shorter"):
        JobCommitter("job", Watched(log, "job")).commit(0, (prepared(sink, 0, 0, "a"), prepared(sink, 0, 1, "b")))
    driver(sink).recover()
    assert visible(log) == ["a", "b"]


def test_a_stale_epoch_is_refused_in_the_name_of_its_job():
    log = MemoryTransactionLog()
    driver(MemorySink(log)).commit(5, ())
    with pytest.raises(StaleEpochError, match="'job' is to write epoch 4"):
        driver(MemorySink(log)).commit(4, ())


@pytest.mark.parametrize("job", ["", "a/b", "a.b", "ä", "x" * 101])
def test_a_name_that_cannot_name_a_job(job):
    with pytest.raises(UsageError, match="1 to 100 letters"):
        MemorySink(MemoryTransactionLog()).committer(job)


def test_a_name_that_can_name_a_job():
    assert check_job("Query-1_" + "x" * 92)


# --- the durable list ---------------------------------------------------------------------------------------------------
GOLDEN_LISTS = {
    "commit_list_v1.json": replace(LISTED, content="sha256:ab12", claim=JobClaim(7, "12-34-56-ab12")),
    "commit_list_completed_v1.json": DONE,
    "commit_list_claimed_v1.json": CommitList(None, (), completed=True, claim=JobClaim(1, None)),
}


def changed(**changes: object) -> bytes:
    return resealed(LISTS.serialize(LISTED), **changes)


@pytest.mark.parametrize("name", GOLDEN_LISTS)
def test_the_golden_lists_are_read_and_written(name):
    """A difference here means that the format has changed, and needs a new version."""
    assert LISTS.deserialize((GOLDEN / name).read_bytes(), "here") == GOLDEN_LISTS[name]
    assert LISTS.serialize(GOLDEN_LISTS[name]) == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("newer", [enveloped(LISTS.serialize(LISTED), version=2), changed(handle_version=2)])
def test_a_newer_list_is_refused_and_says_what_it_is(newer):
    with pytest.raises(StateError, match=r"over there: .*: a newer headrace wrote it: version 2, .* up to 1\. Continue with"):
        LISTS.deserialize(newer, "over there")


def test_something_else_is_refused():
    with pytest.raises(StateError, match="over there: the list of transactions cannot be read: its format is 'flink'"):
        LISTS.deserialize(enveloped(LISTS.serialize(LISTED), format="flink"), "over there")


@pytest.mark.parametrize("data", [
    *NO_ENVELOPES, LISTS.serialize(LISTED)[:-1], enveloped(LISTS.serialize(LISTED), version="1"),
    enveloped(LISTS.serialize(LISTED), version=0), enveloped(LISTS.serialize(LISTED), version=None),
    changed(handle_version=0), changed(epoch="five"), changed(epoch=None), changed(epoch=-1), changed(epoch=1.5),
    changed(completed="false"), changed(completed=None), changed(handles=None), changed(handles=7), changed(handles="ab"),
    changed(handles=[{}]), changed(handles=[{"number": "x"}]), changed(destination=7), changed(targets=[1]),
    changed(targets=1), changed(content=7), changed(claim={"number": "1", "driver_id": None}),
    changed(claim={"number": 1, "driver_id": 7}), changed(claim={"number": 1, "driver_id": None}, epoch=None),
    changed(epoch=None, completed=True, handles=[]),
    *(without(LISTS.serialize(LISTED), field) for field in body_of(LISTS.serialize(LISTED))),
], ids=lambda data: data[:40].decode(errors="replace"))  # fmt: skip
def test_a_damaged_list_is_refused_and_the_place_is_named(data):
    with pytest.raises(StateError, match="over there: the list of transactions cannot be read: "):
        LISTS.deserialize(data, "over there")


def test_before_any_call_a_job_is_not_known_to_be_new():
    assert not JobCommitter("job", MemorySink(MemoryTransactionLog()).committer("job")).is_first


# --- what is refused, word by word ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("driver_id", "said"), [
    ("mine", "job 'job' is another driver's, his (claim 2): this one has stopped, and has changed nothing"),
    (None,
        "job 'job' is that of a supervised driver, his (claim 2), and this query is not supervised: which of the two is "
        "the younger cannot be determined, so it has stopped, and has changed nothing. If that one does not run any more, "
        "start the job under supervision once and stop it there, which gives it back"),
])  # fmt: skip
def test_a_job_of_another_driver_is_refused_with_whose_it_is_and_what_to_do(driver_id, said):
    with pytest.raises(SupersededError) as raised:
        refuse_another("job", driver_id, HIS)
    assert str(raised.value) == said


SKIPPED = (
    "tasks of epoch 5 of job 'job' have written nothing, as they found it recorded in the sink, and the driver finds that it "
    "is not: what is recorded was forgotten, or its place was recreated, in between. Nothing was committed; the next try "
    "writes the epoch"
)
ASKED_SKIPPED = CommitRequested(5, (), skipped=True)


@pytest.mark.parametrize("before", [READY, [ASKED_SKIPPED, Fenced(None)]], ids=["ready", "new"])
def test_an_epoch_that_tasks_have_skipped_and_that_is_not_recorded_is_refused(before):
    core = driven(before)
    with pytest.raises(PeerError) as raised:
        core.handle(ASKED_SKIPPED if before is READY else CleanedUp())
    assert str(raised.value) == SKIPPED


@pytest.mark.parametrize("before", [READY_AT_5, [ASKED_SKIPPED, Fenced(DONE)]], ids=["ready", "new"])
def test_a_recorded_epoch_that_tasks_have_skipped_is_done(before):
    core = driven(before)
    core.handle(ASKED_SKIPPED if before is READY_AT_5 else CleanedUp())
    assert core.phase in (CommitPhase.CONFIRMING, CommitPhase.READY)
