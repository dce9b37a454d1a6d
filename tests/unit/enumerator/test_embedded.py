from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from headrace.enumerator import EagerEnumerator, EmbeddedRun, LazyEnumerator, Source
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.events import SPLITS_AT_ONCE
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.resumed import resumed_discovery, selected
from headrace.enumerator.source import Boundedness, DiscoveryResult, SplitDiscovery, Stage
from headrace.errors import AuthenticationError, DataLossError, DeadlineExceededError, RetriableError, StateError, UsageError
from headrace.testing.memory import MemoryDiscovery, MemoryLog, MemoryPieces, MemoryReader, MemorySource, MemorySplit
from tests.helpers.driving import log_of

BOTH = pytest.mark.parametrize("assignment", [EagerEnumerator, LazyEnumerator])


DISPUTE = RetriableError("whether there is a c is not known")
LOST = TimeoutError("no answer")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def grow(log: MemoryLog, **splits: str) -> None:
    for split_id, values in splits.items():
        log.create(split_id)
        log.append(split_id, values)


def raising(error: Exception):
    def fail(*_):
        raise error

    return fail


def later_gives(monkeypatch: pytest.MonkeyPatch, answers: list[Exception | None]) -> None:
    """Discovery fails so one after the other, or works; a dispute lets it work in part."""
    later = MemoryDiscovery.later

    def answering(self, known):
        error = answers.pop(0) if answers else None
        if error is not None and error is not DISPUTE:
            raise error
        return replace(later(self, known), inconclusive=error)

    monkeypatch.setattr(MemoryDiscovery, "later", answering)


def run_of(source: MemorySource, **options) -> EmbeddedRun:
    return EmbeddedRun(source, **({"clock": Clock()} | options))


def read(run: EmbeddedRun) -> str:
    """Everything there is just now, values in order of their splits."""
    values: list[tuple[str, str]] = []
    while (batch := run.poll(0.0)) is not None:
        values += [(batch.split.split_id, value) for value in batch.records.column("value").to_pylist()]
    return "".join(value for _, value in sorted(values, key=lambda item: item[0]))


@BOTH
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_a_bounded_source_is_read_and_ends(assignment, parallelism):
    source = MemorySource(log_of(a="12345", b="", c="678"), bounded=True)
    with run_of(source, assignment=assignment, parallelism=parallelism) as run:
        assert read(run) == "12345678"
        assert run.finished


@BOTH
def test_no_split_waits_behind_one_without_end(assignment):
    with run_of(MemorySource(log_of(a="1", b="2", c="3")), assignment=assignment) as run:
        assert "".join(read(run) for _ in range(3)) == "123"
        assert not run.finished


def test_a_busy_reader_does_not_starve_the_others():
    with run_of(MemorySource(log_of(a="1111", b="2222")), parallelism=2) as run:
        assert [run.poll(0.0).split.split_id for _ in range(4)] == ["a", "b", "a", "b"]


def test_new_splits_are_looked_for_when_the_time_has_come():
    log, clock = log_of(a="1"), Clock()
    with run_of(MemorySource(log), clock=clock, discovery_interval_s=10.0) as run:
        assert read(run) == "1"
        grow(log, b="2")
        for now_s, values in [(9.9, ""), (10.0, "2")]:
            clock.now_s = now_s
            assert read(run) == values


def test_a_restored_run_continues():
    source = MemorySource(log_of(a="1234", b="56"))
    with run_of(source) as run:
        before = "".join(run.poll(0.0).records.column("value").to_pylist())
        data = run.checkpoint()
        run.checkpoint_completed()
    with run_of(source, checkpoint=data, parallelism=3) as run:
        assert sorted(before + read(run)) == list("123456")


def test_a_checkpoint_says_whose_it_is_and_another_source_does_not_take_it(monkeypatch):
    with run_of(MemorySource(log_of(a="1"))) as run:
        data = run.checkpoint()
    monkeypatch.setattr(MemorySource, "name", "other")
    with pytest.raises(StateError, match="of a 'memory' source and cannot restore a 'other' source"):
        run_of(MemorySource(log_of(a="1")), checkpoint=data)


def test_a_restored_run_looks_for_new_splits_when_the_time_has_come():
    log, clock = log_of(a="1"), Clock()
    source = MemorySource(log)
    with run_of(source) as run:
        data = run.checkpoint()
    with run_of(source, clock=clock, checkpoint=data, discovery_interval_s=10.0) as run:
        assert read(run) == "1"
        grow(log, b="2")
        clock.now_s = 10.0
        assert read(run) == "2"


def test_checkpoint_ids_continue_after_a_restore():
    source = MemorySource(log_of(a="1"))
    with run_of(source) as run:
        data = run.checkpoint()
    with run_of(source, checkpoint=data) as run:
        assert b'"checkpoint_id":2' in run.checkpoint()


def test_positions_are_published_only_when_the_checkpoint_is_durable(monkeypatch):
    published = []
    monkeypatch.setattr(MemorySource, "checkpoint_completed", lambda _, splits: published.append(splits), raising=False)
    with run_of(MemorySource(log_of(a="12"))) as run:
        read(run)
        run.checkpoint()
        run.checkpoint_aborted()
        run.checkpoint()
        assert published == []
        run.checkpoint_completed()
    assert [[split.next_offset for split in splits] for splits in published] == [[2]]


def test_a_checkpoint_asked_for_while_one_is_under_way_is_refused_and_harms_it_not():
    with run_of(MemorySource(log_of(a="12"))) as run:
        run.checkpoint()
        with pytest.raises(StateError, match=r"available now: checkpoint 1 is still under way: call .* or checkpoint_aborted"):
            run.checkpoint()
        run.checkpoint_completed()
        run.checkpoint()
        run.checkpoint_completed()


@pytest.mark.parametrize("end", [EmbeddedRun.checkpoint_completed, EmbeddedRun.checkpoint_aborted])
@pytest.mark.parametrize("started", [False, True], ids=["never started", "aborted"])
def test_a_checkpoint_ends_only_if_it_is_under_way(started, end):
    with run_of(MemorySource(log_of(a="12"))) as run:
        if started:
            run.checkpoint()
            run.checkpoint_aborted()
        with pytest.raises(UsageError, match=r"^no checkpoint is under way: call checkpoint\(\) first$"):
            end(run)


def test_a_reader_that_came_after_the_checkpoint_was_taken_has_reported_nothing():
    with run_of(MemorySource(log_of(a="12"), batch_size=1)) as run:
        run.poll(0.0)
        run.checkpoint()
        run.start_reader(0)
        run.checkpoint_completed()
        assert read(run) == "2"


def test_a_lost_readers_splits_continue_from_the_last_completed_checkpoint():
    with run_of(MemorySource(log_of(a="1234"), batch_size=1)) as run:
        run.poll(0.0)
        run.checkpoint()
        run.checkpoint_completed()
        run.poll(0.0)
        run.lose_reader(0)
        assert run.poll(0.0) is None
        run.start_reader(0)
        assert read(run) == "234"


def test_a_reader_started_over_another_takes_its_place():
    with run_of(MemorySource(log_of(a="12"), batch_size=1)) as run:
        run.poll(0.0)
        run.start_reader(0)
        assert read(run) == "12"


def test_a_reader_lost_after_the_end_takes_the_end_back():
    with run_of(MemorySource(log_of(a="12"), bounded=True)) as run:
        read(run)
        assert run.finished
        run.lose_reader(0)
        assert not run.finished
        run.start_reader(0)
        assert read(run) == "12"
        assert run.finished


def test_a_checkpoint_can_be_taken_of_a_closed_run():
    source = MemorySource(log_of(a="1234"))
    with run_of(source) as run:
        run.poll(0.0)
    with run_of(source, checkpoint=run.checkpoint()) as restored:
        assert read(restored) == "34"


def test_an_end_that_is_durable_stays():
    source = MemorySource(log_of(a="12"), bounded=True)
    with run_of(source) as run:
        read(run)
        data = run.checkpoint()
        run.checkpoint_completed()
        run.lose_reader(0)
        assert run.finished
    with run_of(source, checkpoint=data) as run:
        assert run.finished
        assert read(run) == ""


def counting_closes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    closed: list[str] = []
    monkeypatch.setattr(MemoryDiscovery, "close", lambda _: closed.append("discovery"))
    monkeypatch.setattr(MemoryReader, "close", lambda _: closed.append("reader"))
    return closed


def test_closing_closes_everything_once(monkeypatch):
    closed = counting_closes(monkeypatch)
    run = run_of(MemorySource(log_of(a="12")), parallelism=2)
    run.close()
    run.close()
    assert (sorted(closed), run.poll(0.0)) == (["discovery", "reader", "reader"], None)


@pytest.mark.parametrize("error", [RetriableError("no leader"), UsageError("no such topic")])
def test_a_run_that_cannot_start_raises_what_discovery_did_and_leaves_nothing_open(monkeypatch, error):
    closed = counting_closes(monkeypatch)
    monkeypatch.setattr(MemoryDiscovery, "initial", raising(error))
    with pytest.raises(type(error), match=str(error)):
        run_of(MemorySource(log_of(a="12")))
    assert closed == ["discovery"]


def test_a_later_discovery_that_fails_for_now_is_tried_again(monkeypatch, caplog):
    log, clock = log_of(a="1"), Clock()
    later_gives(monkeypatch, [TimeoutError("no answer")])
    with run_of(MemorySource(log), clock=clock, discovery_interval_s=10.0) as run:
        grow(log, b="2")
        clock.now_s = 10.0
        assert read(run) == "1"
        assert "no answer" in caplog.text
        clock.now_s = 20.0
        assert read(run) == "2"


def test_a_later_discovery_that_is_refused_is_raised_once_and_another_one_follows(monkeypatch):
    log, clock = log_of(a="1"), Clock()
    later_gives(monkeypatch, [AuthenticationError("Describe was revoked")])
    with run_of(MemorySource(log), clock=clock, discovery_interval_s=10.0) as run:
        clock.now_s = 10.0
        with pytest.raises(AuthenticationError, match="Describe was revoked"):
            run.poll(0.0)
        grow(log, b="2")
        assert read(run) == "1"
        clock.now_s = 20.0
        assert read(run) == "2"


def test_a_loss_that_discovery_reports_is_raised_once_and_looks_follow(monkeypatch):
    monkeypatch.setattr(MemorySource, "on_splits_missing", raising(DataLossError("these are gone")), raising=False)
    log, clock = log_of(a="1", b="2"), Clock()
    with run_of(MemorySource(log), clock=clock, discovery_interval_s=10.0) as run:
        log.hide("a")
        clock.now_s = 10.0
        with pytest.raises(DataLossError, match="are gone"):
            run.poll(0.0)
        grow(log, c="3")
        clock.now_s = 20.0
        assert sorted(read(run)) == ["1", "2", "3"]


@pytest.mark.parametrize("answers", [
    [DISPUTE, LOST, DISPUTE, None, None, DISPUTE], [LOST, LOST, None, None, LOST],
], ids=["what is inconclusive", "a failure"])  # fmt: skip
def test_discovery_that_does_not_work_is_said_once_and_so_is_its_end(monkeypatch, caplog, answers):
    clock, error, left = Clock(), answers[0], list(answers)
    later_gives(monkeypatch, left)
    with run_of(MemorySource(log_of(a="1")), clock=clock, discovery_interval_s=10.0) as run:
        while left:
            clock.now_s += 10.0
            run.poll(0.0)
    fails, works = f"discovery of memory failed and will be tried again: {error}", "discovery of memory works again"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [fails, works, fails]


def test_a_reader_that_fails_again_and_again_does_not_stop_another(monkeypatch):
    """Regression: each error started all readers again, of which one needs some calls before it gives something."""
    poll, polls = MemoryReader.poll, dict[MemoryReader, int]()

    def slow(self, timeout):
        polls[self] = polls.get(self, 0) + 1
        if any(split.split_id == "bad" for split in self._splits):
            raise RetriableError("its server is away")
        return poll(self, timeout) if polls[self] > 2 else None

    monkeypatch.setattr(MemoryReader, "poll", slow)
    with run_of(MemorySource(log_of(bad="12", good="34"), batch_size=1), parallelism=2) as run:
        found, errors = "", 0
        for _ in range(40):
            try:
                batch = run.poll(0.0)
            except RetriableError:
                errors += 1
            else:
                found += "" if batch is None else "".join(batch.records.column("value").to_pylist())
    assert (found, errors >= 10) == ("34", True)


@pytest.mark.parametrize("error", [RetriableError("busy"), DeadlineExceededError("late"), ConnectionError("lost")])
def test_positions_that_cannot_be_published_for_now_are_a_warning(monkeypatch, caplog, error):
    monkeypatch.setattr(MemorySource, "checkpoint_completed", raising(error), raising=False)
    with run_of(MemorySource(log_of(a="12"))) as run:
        run.checkpoint()
        run.checkpoint_completed()
        (said,) = caplog.messages
        assert said == f"positions of memory could not be published now, later ones will be tried: {error}"
        run.checkpoint()


def test_positions_that_are_refused_for_good_are_an_error_though_the_checkpoint_is_completed(monkeypatch):
    refused = raising(AuthenticationError("Read was revoked"))
    monkeypatch.setattr(MemorySource, "checkpoint_completed", refused, raising=False)
    with run_of(MemorySource(log_of(a="12"))) as run:
        run.checkpoint()
        with pytest.raises(AuthenticationError, match="Read was revoked"):
            run.checkpoint_completed()
        run.checkpoint()


def test_splits_that_are_missing_are_reported_and_once_gone_are_stored_no_more(monkeypatch):
    log, clock, reported = log_of(a="1", b="2"), Clock(), []
    gone: set[str] = set()
    for name, call in [
        ("on_splits_missing", lambda _, splits: reported.append([s.split_id for s in splits])),
        ("confirm_deleted", lambda _, splits: frozenset(s.split_id for s in splits) & gone),
    ]:
        monkeypatch.setattr(MemorySource, name, call, raising=False)
    with run_of(MemorySource(log), clock=clock, discovery_interval_s=10.0) as run:
        log.hide("a")
        for proven, is_stored in [(set(), True), ({"a"}, False)]:
            gone |= proven
            clock.now_s += 10.0
            read(run)
            assert (b'"id":"a' in run.checkpoint()) is is_stored
            run.checkpoint_completed()
    assert reported == [["a"]]


def test_a_split_that_a_restored_source_selects_no_more_is_reported_and_left_out(monkeypatch):
    log, reported = log_of(a="12", b="34"), []
    with run_of(MemorySource(log)) as run:
        read(run)
        before = run.checkpoint()
    monkeypatch.setattr(MemorySource, "selects", lambda _, split: not split.split_id.startswith("b"), raising=False)
    monkeypatch.setattr(
        MemorySource, "on_splits_missing", lambda _, splits: reported.extend(s.split_id for s in splits), raising=False
    )
    log.append("a", "5")
    log.append("b", "6")
    log.hide("b")  # as its discovery does not select it either
    with run_of(MemorySource(log), checkpoint=before) as run:
        assert read(run) == "5"
        assert b'"id":"b' in before
        assert b'"id":"b' not in run.checkpoint()
    (left_out,) = reported
    assert left_out.startswith("b")


@pytest.mark.parametrize(
    ("log", "shares"), [(log_of(a="1", b="2"), [0.0, 1.5, 1.5]), (MemoryLog(), [1.0, 1.0, 1.0])], ids=["two", "none"]
)
def test_a_wait_is_shared_by_the_readers_that_have_something_to_read(monkeypatch, log, shares):
    waits: list[float] = []
    monkeypatch.setattr(MemoryReader, "poll", lambda _, timeout: waits.append(timeout))
    with run_of(MemorySource(log), parallelism=3) as run:
        assert run.poll(3.0) is None
    assert sorted(waits) == shares


def test_a_split_that_finished_in_a_completed_checkpoint_is_reported_no_more_and_one_that_did_not_is():
    with run_of(MemorySource(log_of(a="12", b="3456"), bounded=True), assignment=EagerEnumerator) as run:
        read(run)
        run.checkpoint()
        assert set(run._slots[0].reported) == {"a", "b"}
        run.checkpoint_completed()
        run.checkpoint()
        assert set(run._slots[0].reported) == set()


def test_a_checkpoint_that_cannot_be_read_is_refused():
    with pytest.raises(StateError):
        run_of(MemorySource(log_of(a="1")), checkpoint=b"not a checkpoint")


def test_a_split_that_its_lost_reader_had_finished_is_read_again_by_the_next():
    """No checkpoint has it. What the lost one had delivered was noted of its successor."""
    with run_of(MemorySource(log_of(a="1"), bounded=True)) as run:
        assert run.poll(0.0).finished
        run.start_reader(0)
        assert not run.finished
        assert read(run) == "1"
        assert run.finished


# --- pieces found by a cursor -------------------------------------------------------------------------------------------
def pieces_of(count: int, **options: Any) -> MemoryPieces:
    return MemoryPieces(log_of(**{f"p{number:04}": "x" for number in range(count)}), **options)


def test_neither_memory_nor_checkpoint_grows_with_a_backlog():
    source = pieces_of(4000, bounded=True)
    with EmbeddedRun(source, clock=Clock(), parallelism=2) as run:
        ledger, read, longest, largest = run.coordinator.enumerator.ledger, 0, 0, 0
        while not run.finished:
            read += run.poll(0.0) is not None
            longest = max(longest, len(ledger))
            if read % 200 == 0:
                largest = max(largest, len(run.checkpoint()))
                run.checkpoint_completed()
        data = run.checkpoint()
        run.checkpoint_completed()
    assert (read, len(ledger), len(data) < 20_000) == (4000, 0, True)
    assert longest < 2 * SPLITS_AT_ONCE + 201
    assert largest < 100_000
    assert sorted(source.log.finished()) == source.log.split_ids()


def test_each_reader_has_a_few_pieces_and_the_splits_of_a_log_are_all_assigned():
    def held(source: Source[Any]) -> list[int]:
        with EmbeddedRun(source, clock=Clock(), parallelism=2) as run:
            return [run.coordinator.enumerator.ledger.load(reader) for reader in range(2)]

    assert held(pieces_of(100)) == [4, 4]
    assert held(MemorySource(pieces_of(100).log, bounded=True)) == [50, 50]


def test_a_restored_run_reports_again_what_was_finished_and_reads_no_piece_twice():
    source = pieces_of(3)
    with EmbeddedRun(source, clock=Clock()) as run:
        run.poll(0.0), run.poll(0.0)
        data = run.checkpoint()  # completed, for all that the restored run knows; and the source was not notified
    log_grows = [split_id for split_id in source.log.split_ids() if split_id not in source.log.finished()]
    assert log_grows == source.log.split_ids()
    with EmbeddedRun(source, clock=Clock(), checkpoint=data) as run:
        assert source.log.finished() == ["p0000", "p0001"]
        assert [run.poll(0.0).split.split_id, run.poll(0.0)] == ["p0002", None]
        run.checkpoint()
        run.checkpoint_completed()
        assert source.log.finished() == ["p0000", "p0001", "p0002"]


def test_a_reader_that_is_lost_with_a_piece_on_its_way_leaves_it_to_the_others():
    with EmbeddedRun(pieces_of(8), clock=Clock(), assignment=LazyEnumerator) as run:
        run.poll(0.0)
        run.lose_reader(0)
        run.start_reader(0)
        assert sorted(run.poll(0.0).split.split_id for _ in range(8)) == [f"p{number:04}" for number in range(8)]


def test_what_refuses_finished_splits_ends_a_call_and_not_what_is_behind_it(monkeypatch):
    with run_of(pieces_of(2)) as run:
        run.poll(0.0)
        run.checkpoint()
        monkeypatch.setattr(MemoryPieces, "checkpoint_completed", raising(UsageError("no group")))
        with pytest.raises(UsageError):
            run.checkpoint_completed()
        assert run.poll(0.0).split.split_id == "p0001"
        assert run.source.log.finished() == ["p0000"]


def test_a_source_of_stages_that_had_an_end_and_has_none_now_is_refused():
    """Its last stage would end the run at once, with nothing read behind that end."""
    stage = Stage(1, "log", None, in_pieces=False, is_found=False)
    ended = Checkpoint(7, (), exhausted=True, stage=stage)
    with pytest.raises(StateError, match="had an end, and now it has none"):
        selected(MemorySource(log_of(a="1")), ended)
    assert selected(MemorySource(log_of(a="1"), bounded=True), ended) == ended


class Whole(MemoryPieces):
    """Its discovery has no cursor."""

    def create_discovery(self):
        return WholeDiscovery(self)


class Endless(Whole):
    """Its splits have no end, so all of them may be found."""

    finite_splits = False

    def create_discovery(self):
        return WholeDiscovery(self, complete=True)


class WholeDiscovery(SplitDiscovery):
    def __init__(self, source: Whole, *, complete: bool = False) -> None:
        self.log, self.complete = source.log, complete or source.boundedness is Boundedness.BOUNDED

    def initial(self):
        return self.later({})

    def later(self, known):
        added = [MemorySplit(each, 0, self.log.end(each)) for each in self.log.split_ids() if each not in known]
        return DiscoveryResult(added, complete=self.complete)


@pytest.mark.parametrize("kind", [Whole, Endless])
def test_a_source_without_cursor_or_log_that_had_an_end_and_has_none_now_is_refused(kind):
    """Regression: the run ended at once, and well; and a job that started at the savepoint read its splits again."""
    log = log_of(a="12")
    with run_of(Whole(log, bounded=True)) as run:
        assert read(run) == "12"
        ended = run.checkpoint()
    endless = kind(log)
    with pytest.raises(StateError, match="had an end, and now it has none"):
        run_of(endless, checkpoint=ended)
    saved = CheckpointSerializer(endless.name, endless.split_serializer).deserialize(ended)
    with pytest.raises(StateError, match="had an end, and now it has none"):
        resumed_discovery(endless, saved)


def test_a_source_all_splits_of_which_are_found_and_have_no_end_continues():
    found = Checkpoint(7, (SplitState(MemorySplit("a", 1), finished=False),), exhausted=True)
    assert selected(Endless(log_of(a="12")), found) == found


def test_a_log_that_had_an_end_continues_without_it_and_the_other_way_round():
    """`headrace run` ended at once, with status 0, or never."""
    log = log_of(a="12", b="3")
    ends, goes_on = MemorySource(log, bounded=True), MemorySource(log)
    with run_of(ends) as run:
        assert read(run) == "123"
        ended = run.checkpoint()
    log.append("a", "4")
    with run_of(goes_on, checkpoint=ended) as run:
        assert read(run) == "4"
        assert not run.finished
        under_way = run.checkpoint()
    log.append("b", "5")
    with run_of(ends, checkpoint=under_way) as run:
        assert read(run) == "5"
        assert run.finished
    with run_of(ends, checkpoint=ended) as run:  # which has the stops that it had
        assert (read(run), run.finished) == ("", True)


def test_a_run_is_not_pickled():
    """Its threads change what would be pickled: there was an error of whatever kind, now and then."""
    with run_of(MemorySource(log_of(a="x"))) as run, pytest.raises(TypeError, match="pickle the source, or what checkpoint"):
        pickle.dumps(run)
