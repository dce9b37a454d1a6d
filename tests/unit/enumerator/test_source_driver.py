"""The driver of a source: what it answers, what it tolerates, and what is logged once."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from headrace.enumerator import DiscoveryResult
from headrace.enumerator import events as ev
from headrace.enumerator.errors import (
    AuthenticationError,
    CorruptDataError,
    DataLossError,
    DeadlineExceededError,
    ProtocolViolationError,
    RetriableError,
    StateError,
)
from headrace.enumerator.pauses import DISCOVERY_RETRY_MAX_S, DISCOVERY_RETRY_S, DiscoveryPauses
from headrace.enumerator.source import IncrementalDiscovery, SplitDiscovery
from headrace.enumerator.source_driver import FailureLog, PositionPublisher, SourceDriver, is_refusal
from headrace.testing.memory import MemorySplit

LOST = RetriableError("no leader")
DISPUTE = RetriableError("whether there is a c is not known")
A, B = MemorySplit("a", 0), MemorySplit("b", 0)


@dataclass
class ScriptedSource:
    """Does what the test says: `fails` is raised by the next calls, one each; None lets a call pass."""

    name: str = "scripted"
    fails: list[Exception | None] = field(default_factory=list)
    gone_ids: frozenset[str] = frozenset()
    calls: list[tuple[str, object]] = field(default_factory=list)

    def on_splits_missing(self, splits):
        self._called("missing", splits)

    def confirm_deleted(self, splits):
        self._called("confirm_deleted", splits)
        return self.gone_ids

    def checkpoint_completed(self, splits):
        self._called("publish", splits)

    def splits_finished(self, splits):
        self._called("finished", splits)

    def _called(self, what, splits):
        self.calls.append((what, splits))
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error


class ScriptedDiscovery(SplitDiscovery[MemorySplit]):
    """Each round gives the next of these findings, or raises the next of these errors."""

    def __init__(self, *rounds):
        self.rounds, self.asked, self.is_closed = list(rounds), [], False

    def initial(self):
        return self.later("initial")

    def later(self, known):
        self.asked.append(known)
        found = self.rounds.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self):
        self.is_closed = True


def driver_of(*rounds, source=None, failures=None):
    return SourceDriver(source or ScriptedSource(), ScriptedDiscovery(*rounds), failures)


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


# --- pauses -----------------------------------------------------------------------------------------------------------
def test_pauses_double_up_to_the_longest_and_are_short_again_after_a_success():
    pauses = DiscoveryPauses()
    waits = [pauses.after_failure() if number % 2 else pauses.after_inconclusive() for number in range(10)]
    assert (waits[0], waits[-1]) == (DISCOVERY_RETRY_S, DISCOVERY_RETRY_MAX_S)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
    assert pauses.retry_s == DISCOVERY_RETRY_MAX_S
    assert [pauses.after_success(), pauses.retry_s, pauses.after_failure()] == [None, None, DISCOVERY_RETRY_S]


def test_a_thousand_rounds_in_vain_end_in_the_longest_pause():
    pauses = DiscoveryPauses()
    for _ in range(2000):
        wait_s = pauses.after_inconclusive()
    assert wait_s == DISCOVERY_RETRY_MAX_S


def test_what_is_inconclusive_is_asked_again_soon_and_what_failed_at_the_interval():
    pauses = DiscoveryPauses(interval_s=30.0)
    assert pauses.after_success() == 30.0
    assert [pauses.after_inconclusive() for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert pauses.retry_s == DISCOVERY_RETRY_MAX_S  # for a runner that takes the shorter one, whatever the round ended in
    assert [pauses.after_failure(), pauses.after_success(), pauses.after_inconclusive()] == [30.0, 30.0, 1.0]


def test_an_interval_shorter_than_a_retry_stays_the_pause():
    pauses = DiscoveryPauses(interval_s=0.5)
    assert [pauses.after_inconclusive(), pauses.after_failure(), pauses.after_success()] == [0.5, 0.5, 0.5]


# --- what is logged ---------------------------------------------------------------------------------------------------
def test_a_failure_is_to_be_logged_when_it_is_the_first_and_its_end_when_there_was_one():
    failures = FailureLog()
    assert not failures.is_failing
    assert [failures.worked(), failures.failed(), failures.failed(), failures.is_failing] == [False, True, False, True]
    assert [failures.worked(), failures.worked(), failures.is_failing] == [True, False, False]
    assert [failures.failed(), failures.worked()] == [True, True]


# --- discovery --------------------------------------------------------------------------------------------------------
def test_a_fresh_run_is_answered_by_the_initial_discovery_and_a_later_one_with_what_is_known():
    found, later = DiscoveryResult([A]), DiscoveryResult([B])
    driver = driver_of(found, later)
    assert driver.perform(ev.DiscoverInitial()) == ev.SplitsDiscovered(found)
    assert driver.perform(ev.DiscoverLater({"a": A})) == ev.SplitsDiscovered(later)
    assert driver._discovery.asked == ["initial", {"a": A}]


@pytest.mark.parametrize("error", [LOST, CorruptDataError("rubbish"), ConnectionError("lost"), ValueError("a bug")])
@pytest.mark.parametrize("command", [ev.DiscoverInitial(), ev.DiscoverLater({})])
def test_what_discovery_raises_is_the_answer_and_the_enumerator_decides(caplog, command, error):
    assert driver_of(error).perform(command) == ev.DiscoveryFailed(error)
    assert caplog.text == ""


def test_discovery_that_fails_is_logged_once_and_so_is_its_end(caplog):
    driver = driver_of(LOST, LOST, DiscoveryResult([]), DiscoveryResult([]), LOST)
    for _ in range(5):
        if isinstance(answer := driver.perform(ev.DiscoverLater({})), ev.DiscoveryFailed):
            assert driver.perform(ev.ReportDiscoveryFailure(answer.error)) is None
    fails, works = f"discovery of scripted failed and will be tried again: {LOST}", "discovery of scripted works again"
    assert warnings(caplog) == [fails, works, fails]


def test_repeats_are_for_debugging_only(caplog):
    caplog.set_level(logging.DEBUG)
    driver = driver_of()
    for _ in range(3):
        driver.perform(ev.ReportDiscoveryFailure(LOST))
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG", "DEBUG"]


def test_discovery_does_not_work_again_while_something_is_inconclusive(caplog):
    driver = driver_of(
        DiscoveryResult([A], inconclusive=DISPUTE), LOST, DiscoveryResult([], inconclusive=DISPUTE), DiscoveryResult([])
    )
    for error in (DISPUTE, LOST, DISPUTE):
        driver.perform(ev.DiscoverLater({}))
        driver.perform(ev.ReportDiscoveryFailure(error))
    assert len(warnings(caplog)) == 1
    driver.perform(ev.DiscoverLater({}))
    assert warnings(caplog)[1:] == ["discovery of scripted works again"]


def test_drivers_that_come_and_go_in_one_process_share_what_is_logged(caplog):
    """Beam makes new DoFn instances as it likes."""
    failures = FailureLog()
    for _ in range(2):
        driver_of(failures=failures).perform(ev.ReportDiscoveryFailure(LOST))
    driver_of(DiscoveryResult([]), failures=failures).perform(ev.DiscoverLater({}))
    assert len(warnings(caplog)) == 2
    assert not failures.is_failing


def test_closing_closes_the_discovery():
    driver = driver_of()
    driver.close()
    assert driver._discovery.is_closed


# --- missing splits ---------------------------------------------------------------------------------------------------
def test_missing_splits_are_reported_to_the_source_which_may_stop_the_job():
    source = ScriptedSource(fails=[None, DataLossError("a is gone")])
    driver = driver_of(source=source)
    assert driver.perform(ev.ReportMissing((A,))) is None
    with pytest.raises(DataLossError, match="a is gone"):
        driver.perform(ev.ReportMissing((A, B)))
    assert source.calls == [("missing", (A,)), ("missing", (A, B))]


def test_splits_are_gone_only_by_proof_of_the_source():
    source = ScriptedSource()
    driver = driver_of(source=source)
    assert driver.perform(ev.ProveGone((A, B))) is None
    source.gone_ids = frozenset({"b"})
    assert driver.perform(ev.ProveGone((A, B))) == ev.SplitsGone(frozenset({"b"}))
    assert driver.confirm_gone((A, B)) == {"b"}


def test_without_missing_splits_the_source_is_not_asked():
    source = ScriptedSource()
    assert driver_of(source=source).confirm_gone(()) == frozenset()
    assert source.calls == []


# --- publishing -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [RetriableError("busy"), DeadlineExceededError("late"), ConnectionError("lost")])
def test_positions_that_are_not_published_for_now_are_logged_once_and_so_is_the_end(caplog, error):
    source = ScriptedSource(fails=[None, error, error, None, None, error])
    driver = driver_of(source=source)
    for _ in range(6):
        assert driver.perform(ev.PublishPositions((A, B))) is None
    fails = f"positions of scripted could not be published now, later ones will be tried: {error}"
    assert warnings(caplog) == [fails, "positions of scripted are published again", fails]
    assert source.calls == [("publish", (A, B))] * 6


@pytest.mark.parametrize("error", [AuthenticationError("Read was revoked"), ValueError("a bug")])
def test_positions_that_are_refused_for_good_are_an_error(caplog, error):
    driver = driver_of(source=ScriptedSource(fails=[LOST, error, None]))
    driver.perform(ev.PublishPositions((A,)))
    with pytest.raises(type(error), match=str(error)):
        driver.perform(ev.PublishPositions((A,)))
    assert len(warnings(caplog)) == 1
    driver.perform(ev.PublishPositions((A,)))
    assert warnings(caplog)[1:] == ["positions of scripted are published again"]


def test_a_publisher_says_whether_positions_are_published_so_that_a_runner_can_keep_them():
    """Beam keeps what is not published for the next bundle."""
    publisher = PositionPublisher(ScriptedSource(fails=[LOST, None]), FailureLog())
    assert [publisher.publish([A]), publisher.publish([A])] == [False, True]


def test_a_runner_may_tolerate_more(caplog):
    """No failure to publish stops a query of Spark or `headrace run`, but for a bug."""
    refused, bug = AuthenticationError("Read was revoked"), ValueError("a bug")
    source = ScriptedSource(fails=[refused, bug])
    publisher = PositionPublisher(source, FailureLog(), is_refusal)
    assert not publisher.publish([A])
    assert publisher.failure is refused
    with pytest.raises(ValueError, match="a bug"):
        publisher.publish([A])
    assert len(warnings(caplog)) == 1


def test_failures_of_discovery_and_of_publishing_do_not_hide_each_other(caplog):
    driver = driver_of(DiscoveryResult([]), source=ScriptedSource(fails=[LOST, None]))
    driver.perform(ev.ReportDiscoveryFailure(LOST))
    driver.perform(ev.PublishPositions((A,)))
    driver.perform(ev.DiscoverLater({}))
    driver.perform(ev.PublishPositions((A,)))
    assert len(warnings(caplog)) == 4


def test_the_last_positions_can_be_tried_again_where_no_later_ones_come():
    source = ScriptedSource(fails=[LOST, None])
    driver = driver_of(source=source)
    assert driver.publisher.publish_again()  # there is nothing to do
    driver.perform(ev.PublishPositions((A,)))
    assert [driver.publisher.has_unpublished, driver.publisher.publish_again(), driver.publisher.has_unpublished] == [
        True,
        True,
        False,
    ]
    assert driver.publisher.publish_again()
    assert source.calls == [("publish", (A,))] * 2


def test_positions_that_were_refused_for_good_stay_unpublished():
    driver = SourceDriver(ScriptedSource(fails=[AuthenticationError("no"), AuthenticationError("no")]), ScriptedDiscovery())
    with pytest.raises(AuthenticationError):
        driver.perform(ev.PublishPositions((A,)))
    assert driver.publisher.has_unpublished
    with pytest.raises(AuthenticationError):
        driver.publisher.publish_again()


class ByCursor(IncrementalDiscovery[MemorySplit]):
    def __init__(self, cursor):
        self.cursor, self.asked = cursor, []

    def after(self, cursor, limit):
        self.asked.append((cursor, limit))
        return DiscoveryResult([A], cursor=self.cursor)


def test_an_incremental_discovery_is_asked_for_what_is_behind_a_cursor_the_first_time_behind_none():
    driver = SourceDriver(ScriptedSource(), discovery := ByCursor({"at": 1}))
    found = ev.SplitsDiscovered(DiscoveryResult([A], cursor={"at": 1}))
    assert [driver.perform(each) for each in (ev.DiscoverInitial(), ev.DiscoverAfter({"at": 1}, 7))] == [found, found]
    assert discovery.asked == [(None, ev.SPLITS_AT_ONCE), ({"at": 1}, 7)]


@pytest.mark.parametrize(("discovery", "command", "error", "said"), [
    (ByCursor(None), ev.DiscoverInitial(), ProtocolViolationError, "ByCursor of source scripted .* gives no cursor"),
    (ByCursor({}), ev.DiscoverLater({}), ProtocolViolationError, "continues at a cursor"),
    (ScriptedDiscovery(), ev.DiscoverAfter({"at": 1}, 7), StateError, "is of a scripted source that is read by a cursor"),
])  # fmt: skip
def test_a_discovery_of_the_other_kind_fails_and_says_so(discovery, command, error, said):
    answer = SourceDriver(ScriptedSource(), discovery).perform(command)
    assert isinstance(answer, ev.DiscoveryFailed)
    with pytest.raises(error, match=said):
        raise answer.error


def test_finished_splits_are_reported_and_a_failure_that_can_pass_is_logged_once(caplog):
    source = ScriptedSource(fails=[LOST, LOST, None, CorruptDataError("no")])
    driver = SourceDriver(source, ScriptedDiscovery())
    report = ev.ReportFinished((A, B))
    answers = [driver.perform(report) for _ in range(3)]
    assert answers == [ev.FinishedReported(frozenset("ab"), is_done) for is_done in (False, False, True)]
    assert warnings(caplog) == [
        "that 2 splits of scripted are finished is reported to it later: no leader",
        "finished splits of scripted are reported to it again",
    ]
    with pytest.raises(CorruptDataError):
        driver.perform(report)
