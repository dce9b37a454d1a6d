"""A run in the caller's thread that is interrupted anywhere, and is used on: as by Ctrl-C in a notebook, or a MemoryError.

An interruption is raised at each bytecode of the code that is on the way, one in each run. What follows either reads each
record once, or raises an error at each call.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from headrace.enumerator import EagerEnumerator, EmbeddedRun, LazyEnumerator
from headrace.enumerator.checkpoint import CheckpointSerializer
from headrace.enumerator.errors import DataLossError, RetriableError, StateError, UsageError
from headrace.kafka import KafkaSource, Latest
from headrace.testing import FakeKafka
from headrace.testing.memory import MemoryLog, MemoryReader, MemorySource
from tests.helpers.driving import log_of
from tests.helpers.interruptions import OURS, Interruption


def source() -> MemorySource:
    return MemorySource(log_of(a="123", b="45", c="6"), bounded=True)


def read(run: EmbeddedRun[Any], values: list[str]) -> None:
    for _ in range(100):
        if run.finished:
            return
        batch = run.poll(0.0)
        if batch is not None:
            values += batch.records.column("value").to_pylist()
    raise AssertionError("the run does not end")


def read_interrupted(run: EmbeddedRun[Any], interruption: Interruption) -> list[str] | None:
    """What was read in all; None for a run that refuses to continue."""
    values: list[str] = []
    with interruption, suppress(interruption._error):
        read(run, values)
    if not interruption.happened:
        return values
    try:
        run.checkpoint()
        run.checkpoint_aborted()
        read(run, values)
    except StateError:
        with pytest.raises(StateError, match="continue with a new one, from its last checkpoint"):
            run.poll(0.0)
        return None
    return values


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("assignment", [EagerEnumerator, LazyEnumerator])
def test_whatever_is_interrupted_the_next_calls_read_what_is_left(assignment, error):
    outcomes: Counter[str] = Counter()
    nth = 0
    while True:
        interruption = Interruption(nth, error, f"{OURS}/enumerator")
        with EmbeddedRun(source(), clock=lambda: 0.0, assignment=assignment) as run:
            values = read_interrupted(run, interruption)
        if not interruption.happened:
            break
        outcomes["refused" if values is None else "read"] += 1
        if values is not None:
            assert sorted(values) == list("123456"), f"interrupted at bytecode {nth}"
        nth += 97  # a prime: over the parameters no step of a loop is left out
    assert outcomes["read"] > 10, outcomes


@pytest.mark.parametrize("last", ["checkpoint_completed", "checkpoint_aborted"])
def test_no_call_revives_a_run_that_was_interrupted_while_it_decided(last):
    refused = 0
    for nth in range(0, 200, 7):
        with EmbeddedRun(source(), clock=lambda: 0.0) as run:
            with Interruption(nth, KeyboardInterrupt, f"{OURS}/enumerator"), suppress(KeyboardInterrupt):
                run.checkpoint()
            if not is_refused(run.checkpoint):
                continue
            refused += 1
            assert all(map(is_refused, (getattr(run, last), run.checkpoint, partial(run.poll, 0.0))))
    assert refused > 3


def is_refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except StateError as error:
        return "continue with a new one, from its last checkpoint" in str(error)
    return False


def test_a_batch_that_was_interrupted_on_its_way_is_given_again():
    """In the reader, whose position is behind the batch already."""
    with EmbeddedRun(source(), clock=lambda: 0.0) as run:
        slot = run._slots[0]
        real = slot.reader.poll

        def poll(timeout: float) -> Any:
            real(timeout)
            raise KeyboardInterrupt

        slot.reader.poll = poll
        with pytest.raises(KeyboardInterrupt):
            run.poll(0.0)
        values: list[str] = []
        read(run, values)
        assert sorted(values) == list("123456")


def test_an_end_that_was_interrupted_on_its_way_to_the_coordinator_is_not_lost():
    """Or the run waits for ever for a split that its reader has let go of."""
    with EmbeddedRun(MemorySource(log_of(a="1"), bounded=True), clock=lambda: 0.0) as run:
        progress = run._slots[0].progress
        real = progress.delivered

        def delivered(batch: Any) -> None:
            real(batch)
            raise KeyboardInterrupt

        while (batch := run.poll(0.0)) is None or not batch.finished:
            pass
        progress.delivered = delivered
        with pytest.raises(KeyboardInterrupt):
            run.poll(0.0)
        run.take_back(None)
        with pytest.raises(StateError, match="continue with a new one, from its last checkpoint"):
            read(run, [])


@pytest.mark.parametrize(
    "error", [RetriableError("busy"), DataLossError("gone"), OSError("cut"), KeyboardInterrupt(), MemoryError()]
)
@pytest.mark.parametrize("call", ["_read", "add_splits"])
def test_a_split_whose_reader_raised_an_error_is_read_on(monkeypatch, call, error):
    """Regression: after an error of headrace's the reader was kept, and had lost the split."""
    real, left = getattr(MemoryReader, call), [error]

    def failing(reader: MemoryReader, argument: Any) -> Any:
        if left:
            raise left.pop()
        return real(reader, argument)

    log, now_s, values = log_of(a="12"), 0.0, list[str]()
    with EmbeddedRun(MemorySource(log, batch_size=1), clock=lambda: now_s, discovery_interval_s=10.0) as run:
        assert run.poll(0.0) is not None
        log.create("b", "34")
        monkeypatch.setattr(MemoryReader, call, failing)
        now_s = 11.0
        with pytest.raises(type(error)):
            run.poll(0.0)
        for _ in range(6):
            batch = run.poll(0.0)
            values += [] if batch is None else batch.records.column("value").to_pylist()
        assert sorted(values) == ["2", "3", "4"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_look_for_splits_that_was_interrupted_is_repeated(error):
    """Regression: a MemoryError in it was raised again by each later call, for ever."""
    log, now_s = MemoryLog(), 0.0
    log.create("a")
    with EmbeddedRun(MemorySource(log), clock=lambda: now_s, discovery_interval_s=10.0) as run:
        discovery = run._driver._discovery
        real = discovery.later

        def later(_: object) -> Any:
            discovery.later = real
            raise error

        discovery.later = later
        log.create("b")
        log.append("b", "1")
        now_s = 11.0
        with pytest.raises(error):
            run.poll(0.0)
        assert run.checkpoint()  # without another look, which may take long
        run.checkpoint_aborted()
        batches = [run.poll(0.0) for _ in range(3)]
        assert [batch.records.column("value").to_pylist() for batch in batches if batch is not None] == [["1"]]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RetriableError("the queue does not answer")])
def test_a_checkpoint_that_a_reader_cannot_publish_is_completed_all_the_same(monkeypatch, error):
    """Regression: a reader's `checkpoint_completed` that raised once was the end of all checkpoints of the run."""
    heard: list[object] = []

    def completed(reader: object, _: object) -> None:
        heard.append(reader)
        if len(heard) == 1:
            raise error

    published: list[object] = []
    monkeypatch.setattr(MemoryReader, "checkpoint_completed", completed)
    monkeypatch.setattr(MemorySource, "checkpoint_completed", lambda _, splits: published.append(splits))
    with EmbeddedRun(source(), clock=lambda: 0.0, parallelism=2) as run:
        readers = [slot.reader for slot in run._slots.values()]
        values: list[str] = []
        run.checkpoint()
        with pytest.raises(error if isinstance(error, type) else type(error)):
            run.checkpoint_completed()
        read(run, values)
        repeated = [readers[0]] if isinstance(error, type) else []
        assert heard == [readers[0], *repeated, readers[1]]
        assert len(published) == 1
        run.checkpoint()
        run.checkpoint_completed()
        assert sorted(values) == list("123456")
        assert len(published) == 2


def test_a_reader_that_is_lost_does_not_hear_of_the_checkpoint_that_it_could_not_publish(monkeypatch):
    heard: list[object] = []

    def completed(reader: object, _: object) -> None:
        heard.append(reader)
        raise RetriableError("the queue does not answer")

    monkeypatch.setattr(MemoryReader, "checkpoint_completed", completed)
    with EmbeddedRun(source(), clock=lambda: 0.0, parallelism=2) as run:
        run.checkpoint()
        with pytest.raises(RetriableError):
            run.checkpoint_completed()
        run.lose_reader(1)
        run.start_reader(1)
        read(run, [])
        assert len(heard) == 1


def test_a_checkpoint_that_was_interrupted_is_aborted_by_the_next_one(monkeypatch):
    """Regression: each later `checkpoint` raised StateError."""
    published: list[Any] = []
    monkeypatch.setattr(MemorySource, "checkpoint_completed", lambda _, splits: published.append(splits))
    real = CheckpointSerializer.serialize

    def serialize(*_: object) -> bytes:
        monkeypatch.setattr(CheckpointSerializer, "serialize", real)
        raise KeyboardInterrupt

    with EmbeddedRun(MemorySource(log_of(a="123"), batch_size=1), clock=lambda: 0.0) as run:
        for expected in (1, 2):
            run.poll(0.0)
            assert b'"next":%d' % expected in run.checkpoint()
            run.checkpoint_aborted()
        monkeypatch.setattr(CheckpointSerializer, "serialize", serialize)
        with pytest.raises(KeyboardInterrupt):
            run.checkpoint()
        run.poll(0.0)
        run.checkpoint()
        run.checkpoint_completed()
        assert [[split.next_offset for split in splits] for splits in published] == [[3]]
        with pytest.raises(UsageError, match="no checkpoint is under way"):
            run.checkpoint_completed()


def test_a_close_that_was_interrupted_is_completed_by_the_next_one(monkeypatch):
    closed: list[object] = []

    def close(reader: object) -> None:
        closed.append(reader)
        if len(closed) == 1:
            raise KeyboardInterrupt

    run = EmbeddedRun(source(), clock=lambda: 0.0, parallelism=2)
    readers = [slot.reader for slot in run._slots.values()]
    monkeypatch.setattr(MemoryReader, "close", close)
    with pytest.raises(KeyboardInterrupt):
        run.close()
    run.close()
    run.close()
    assert closed == [readers[0], *readers]


@pytest.fixture(scope="module")
def kafka():
    with FakeKafka() as cluster:
        cluster.create_topic("t", partitions=2)
        for number in range(8):
            cluster.append("t", *[b"%d" % each for each in range(number * 10, number * 10 + 10)], partition=number % 2)
        yield cluster


@pytest.mark.timeout(200)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_records_of_kafka_are_read_once_whatever_is_interrupted(kafka, error):
    outcomes: Counter[str] = Counter()
    nth = 0
    while True:
        interruption = Interruption(nth, error, f"{OURS}/enumerator", f"{OURS}/connectors/kafka/read")
        batches = KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest()).batches()
        seen: list[int] = []
        with interruption:
            try:
                while True:
                    seen += map(int, next(batches).column("value").to_pylist())
            except (StopIteration, error):
                pass
        try:
            for batch in batches:
                seen += map(int, batch.column("value").to_pylist())
            assert sorted(seen) == list(range(80)), f"interrupted at bytecode {nth}"
            outcomes["read"] += 1
        except StateError:
            outcomes["refused"] += 1
        batches.close()
        if not interruption.happened:
            break
        nth += 211
    assert outcomes["read"] > 5, outcomes


def test_batches_that_are_closed_have_ended(kafka):
    with KafkaSource(kafka.bootstrap, topics=["t"]).batches() as batches:
        assert next(batches).num_rows
    assert list(batches) == []
    batches.close()


def test_batches_that_have_ended_have_no_more_and_their_checkpoint_continues(kafka):
    kafka.create_topic("later", partitions=1)
    kafka.append("later", b"1")
    source = KafkaSource(kafka.bootstrap, topics=["later"], stop=Latest())
    batches = source.batches()
    assert sum(batch.num_rows for batch in batches) == 1
    kafka.append("later", b"2")
    for _ in range(2):
        assert list(batches) == []
        assert next(batches, None) is None
    batches.close()
    assert [batch.column("value").to_pylist() for batch in source.batches(batches.checkpoint())] == [[b"2"]]


def test_batches_that_another_thread_waits_for_are_refused_and_lose_nothing():
    """Regression: what a call got that a timeout had given up, as in asyncio, counted as taken at the next call."""
    with FakeKafka() as cluster, ThreadPoolExecutor() as threads:
        cluster.create_topic("t")
        with KafkaSource(cluster.bootstrap, topics=["t"]).batches() as batches:
            given_up = threads.submit(next, batches)
            with pytest.raises(TimeoutError):
                given_up.result(0.2)
            for call in (partial(next, batches), batches.checkpoint, batches.checkpoint_completed):
                with pytest.raises(UsageError, match="another thread is in a call"):
                    call()
            cluster.append("t", b"one")
            assert given_up.result(20).num_rows == 1
            cluster.append("t", b"two")
            assert next(batches).column("value").to_pylist() == [b"two"]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_batches_are_refused_in_a_forked_child_and_the_parent_reads_on(kafka):
    """Its threads are the parent's: it would wait for ever."""
    batches = KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest()).batches()
    rows = next(batches).num_rows
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        with suppress(BaseException):
            with pytest.raises(StateError, match="made before a fork"):
                next(batches)
            batches.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert rows + sum(batch.num_rows for batch in batches) == 80


def test_a_days_batches_end_where_that_day_ends_and_not_where_the_day_before_did():
    with FakeKafka() as cluster:
        cluster.create_topic("t", partitions=2)
        source, state, counts = KafkaSource(cluster.bootstrap, topics=["t"], stop=Latest()), None, []
        for _ in range(3):
            cluster.append("t", *[b"x"] * 5)
            batches = source.batches(state)
            counts.append(sum(batch.num_rows for batch in batches))
            state = batches.checkpoint()
        assert counts == [5, 5, 5]


def test_a_source_ends_by_its_own_stop_whatever_was_read_before():
    with FakeKafka() as cluster:
        cluster.create_topic("t", partitions=1)
        cluster.append("t", *[b"x"] * 5)
        endless = KafkaSource(cluster.bootstrap, topics=["t"])
        with endless.batches() as batches:
            assert next(batches).num_rows == 5
            state = batches.checkpoint()
        cluster.append("t", *[b"x"] * 3)
        bounded = KafkaSource(cluster.bootstrap, topics=["t"], stop=Latest()).batches(state)
        assert sum(batch.num_rows for batch in bounded) == 3
        cluster.append("t", *[b"x"] * 2)
        with endless.batches(bounded.checkpoint()) as batches:
            assert next(batches).num_rows == 2
