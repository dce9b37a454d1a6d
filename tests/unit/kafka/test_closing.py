"""A reader that is closed from within: by a signal handler, which runs between any two lines of what its thread does."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from headrace.connectors.kafka.read import fetcher
from headrace.connectors.kafka.read import reader as reader_module
from headrace.connectors.kafka.read.reader import KafkaReader
from headrace.kafka import Earliest, KafkaSource
from headrace.testing.fake_kafka import FakeKafka
from tests.helpers.forked import in_child
from tests.helpers.interruptions import OURS, Interruption

DEADLINE_S = 10.0
_MODULES = (reader_module.__file__, fetcher.__file__, threading.__file__)


@pytest.fixture(scope="module")
def kafka():
    with FakeKafka() as cluster:
        cluster.create_topic("t")
        cluster.create_topic("empty")
        for number in range(3):
            cluster.append("t", b"%d" % number)
        yield cluster


class Handler:
    """Closes the reader at the nth line that its thread comes to, as a signal handler would."""

    def __init__(self, reader: KafkaReader, nth: int) -> None:
        self._reader, self._left = reader, nth

    @property
    def has_run(self) -> bool:
        return self._left < 0

    def __call__(self, frame, event, _argument):
        if frame.f_code.co_filename not in _MODULES:
            return None
        if event == "line":
            self._left -= 1
            if self._left == -1:
                self._reader.close()
        return self


def is_full(reader: KafkaReader) -> bool:
    return bool(reader._fetcher and reader._fetcher._queue)


def new_reader(kafka: FakeKafka, topic: str | None, ready: Callable[[KafkaReader], bool]) -> KafkaReader:
    source = KafkaSource(kafka.bootstrap, topics=[topic or "t"], start=Earliest())
    reader = source.create_reader()
    assert isinstance(reader, KafkaReader)
    reader.add_splits(source.create_discovery().initial().added if topic else [])
    until = time.monotonic() + DEADLINE_S
    while not ready(reader):
        assert time.monotonic() < until
        time.sleep(0.001)
    return reader


@pytest.mark.parametrize(("topic", "ready"), [
    (None, lambda _: True), ("empty", lambda _: True), ("t", is_full)
], ids=["without splits", "without records", "with records"])  # fmt: skip
def test_a_signal_handler_may_close_a_reader_at_any_line_of_a_poll(kafka, topic, ready):
    """It waited for a lock that its own thread had, below it, for ever."""
    errors: list[Exception] = []
    for nth in range(1000):
        reader = new_reader(kafka, topic, ready)
        handler = Handler(reader, nth)

        def poll(reader=reader, handler=handler) -> None:
            sys.settrace(handler)
            try:
                reader.poll(0.02)
                reader.poll(0.02)
            except Exception as error:  # noqa: BLE001 - raised in the test's own thread
                errors.append(error)
            finally:
                sys.settrace(None)

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), f"line {nth}"
        assert errors == []
        reader.close()
        if not handler.has_run:
            break
    assert nth > 10


def test_a_close_that_was_interrupted_at_any_bytecode_may_be_repeated(kafka):
    """Regression: an interrupt between the lock and its block left it locked, and no thread ever ended."""
    for nth in range(1000):
        reader = new_reader(kafka, "t", is_full)
        threads = list(reader._fetcher._threads.values())
        interruption = Interruption(nth, KeyboardInterrupt, OURS)
        with suppress(KeyboardInterrupt), interruption:
            reader.close()
        reader.close()
        assert not any(thread.is_alive() for thread in threads), f"bytecode {nth}"
        if not interruption.happened:
            break
    assert nth > 50


def test_a_forked_child_closes_a_reader_though_a_thread_of_its_parent_had_the_lock(kafka):
    """The thread is not there, and never gives it back. Connections are the parent's, which reads on."""
    reader = new_reader(kafka, "t", is_full)
    held, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with reader._fetcher._lock:
            held.set()
            ended.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert in_child(reader.wake_up) == in_child(reader.close) == "None"
    ended.set()
    thread.join()
    batch = reader.poll(DEADLINE_S)
    assert batch is not None
    assert batch.records.num_rows == 3
    reader.close()
