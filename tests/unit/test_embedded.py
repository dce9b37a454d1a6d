from __future__ import annotations

import pytest

from headrace.enumerator import EagerEnumerator, EmbeddedRun, LazyEnumerator
from headrace.enumerator.errors import RetriableError, StateError, UsageError
from headrace.testing.memory import MemoryDiscovery, MemoryLog, MemoryReader, MemorySource

BOTH = pytest.mark.parametrize("assignment", [EagerEnumerator, LazyEnumerator])


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def log_of(**splits: str) -> MemoryLog:
    log = MemoryLog()
    for split_id, values in splits.items():
        log.create(split_id)
        log.append(split_id, values)
    return log


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
        log.create("b")
        log.append("b", "2")
        clock.now_s = 9.9
        assert read(run) == ""
        clock.now_s = 10.0
        assert read(run) == "2"


def test_a_restored_run_goes_on():
    log = log_of(a="1234", b="56")
    source = MemorySource(log)
    with run_of(source) as run:
        before = "".join(run.poll(0.0).records.column("value").to_pylist())
        data = run.checkpoint()
        run.checkpoint_completed()
    with run_of(source, checkpoint=data, parallelism=3) as run:
        assert sorted(before + read(run)) == list("123456")


def test_checkpoint_ids_go_on_after_a_restore():
    source = MemorySource(log_of(a="1"))
    with run_of(source) as run:
        data = run.checkpoint()
    with run_of(source, checkpoint=data) as run:
        assert b'checkpoint_id\\":2' in run.checkpoint()


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
        with pytest.raises(StateError, match="still under way"):
            run.checkpoint()
        run.checkpoint_completed()
        run.checkpoint()
        run.checkpoint_completed()


@pytest.mark.parametrize("end", [EmbeddedRun.checkpoint_completed, EmbeddedRun.checkpoint_aborted])
def test_a_checkpoint_ends_only_if_it_began(end):
    with run_of(MemorySource(log_of(a="12"))) as run, pytest.raises(UsageError, match="no checkpoint is under way"):
        end(run)


def test_a_lost_readers_splits_go_on_from_the_last_completed_checkpoint():
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
    assert sorted(closed) == ["discovery", "reader", "reader"]
    assert run.poll(0.0) is None


def test_a_run_that_cannot_start_leaves_nothing_open(monkeypatch):
    closed = counting_closes(monkeypatch)

    def fail(_: MemoryDiscovery) -> None:
        raise RetriableError("no leader")

    monkeypatch.setattr(MemoryDiscovery, "initial", fail)
    with pytest.raises(RetriableError):
        run_of(MemorySource(log_of(a="12")))
    assert closed == ["discovery"]


def test_a_later_discovery_that_fails_for_now_is_tried_again(monkeypatch, caplog):
    log, clock = log_of(a="1"), Clock()
    later = MemoryDiscovery.later
    answers = [TimeoutError("no answer"), None]

    def flaky(self, known):
        error = answers.pop(0)
        if error is not None:
            raise error
        return later(self, known)

    monkeypatch.setattr(MemoryDiscovery, "later", flaky)
    with run_of(MemorySource(log), clock=clock, discovery_interval_s=10.0) as run:
        log.create("b")
        log.append("b", "2")
        clock.now_s = 10.0
        assert read(run) == "1"
        assert "no answer" in caplog.text
        clock.now_s = 20.0
        assert read(run) == "2"


def test_a_checkpoint_that_cannot_be_read_is_refused():
    with pytest.raises(StateError):
        run_of(MemorySource(log_of(a="1")), checkpoint=b"not a checkpoint")
