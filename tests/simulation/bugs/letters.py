"""Bugs of the replay of dead letters, for the search to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from headrace.cli.dead import replay as replaying
from headrace.cli.dead import replayed as notes
from headrace.cli.dead.dead import Letter
from headrace.cli.dead.replay import Replay, read_replayed
from headrace.cli.dead.replayed import Replayed
from headrace.connectors.base.commit import JobCommitter


@contextmanager
def letters_are_written_without_their_note() -> Iterator[None]:
    with patch.object(Replay, "_notes", lambda self, pages: replaying.pa.RecordBatch.from_pylist([], schema=replaying._ROWS)):
        yield


@contextmanager
def notes_are_read_before_the_other_replay_is_shut_out() -> Iterator[None]:
    recover = JobCommitter.recover
    read = replaying.read_replayed

    def begin(self: Any) -> None:
        self._claim()
        self._replayed = read(self._sink, self._topic)
        recover(self._driver)
        self._epoch = self._sink.recorded_epochs().get(self._job, -1) + 1

    with patch.object(Replay, "begin", begin):
        yield


@contextmanager
def the_other_replay_is_not_shut_out() -> Iterator[None]:
    with patch.object(JobCommitter, "recover", lambda self: None):
        yield


@contextmanager
def epochs_begin_anew() -> Iterator[None]:
    begin = Replay.begin

    def from_zero(self: Any) -> None:
        begin(self)
        self._epoch = 0

    with patch.object(Replay, "begin", from_zero):
        yield


@contextmanager
def a_page_forgets_what_it_had() -> Iterator[None]:
    def with_these(self: Any, positions: Any) -> dict[tuple[int, int], int]:
        changed: dict[tuple[int, int], int] = {}
        for partition, offset in positions:
            page = (partition, offset // notes.PAGE)
            changed[page] = changed.get(page, 0) | 1 << offset % notes.PAGE
        return changed

    with patch.object(Replayed, "with_these", with_these):
        yield


@contextmanager
def pages_of_all_partitions_are_one() -> Iterator[None]:
    record = Replayed.record
    with patch.object(Replayed, "record", lambda self, page, bits: record(self, (0, page[1]), bits)):
        yield


@contextmanager
def a_topic_made_anew_has_the_notes_of_the_one_before() -> Iterator[None]:
    with patch.object(Replayed, "_beginning", property(lambda self: f"-.{self.topic.encode().hex()}.")):
        yield


@contextmanager
def replays_are_not_counted() -> Iterator[None]:
    add = Replay.add

    def take_all(self: Any, batch: Any) -> None:
        self._plan = replaying.Plan(self._plan.wanted, 1 << 30, self._plan.to)
        add(self, batch)

    with patch.object(Replay, "add", take_all):
        yield


@contextmanager
def the_letter_that_fills_a_transaction_is_left_out() -> Iterator[None]:
    def take(self: Any, letter: Letter) -> None:
        if len(self._waiting) >= replaying.MOST_LETTERS:
            self.flush()
            return
        self._waiting.append(letter)

    with patch.object(Replay, "_take", take):
        yield


@contextmanager
def what_was_written_stays_unknown() -> Iterator[None]:
    """The pages of a transaction are not taken over: the next one of the same page writes it without them."""
    flush = Replay.flush

    def forgetful(self: Any) -> None:
        pages = dict(self._replayed.pages)
        flush(self)
        self._replayed.pages = pages

    with patch.object(Replay, "flush", forgetful):
        yield


@contextmanager
def a_leader_that_is_cut_off_is_believed() -> Iterator[None]:
    """What was replayed is read without a write that proves it."""
    read = Replay._read_decided
    with patch.object(Replay, "_read_decided", lambda self, _: read(self, -1)):
        yield


@contextmanager
def topics_are_not_claimed() -> Iterator[None]:
    with patch.object(Replay, "_claim", lambda self: read_replayed(self._sink, self._topic).refuse_unfenced()):
        yield


INJECTED: tuple[Callable[[], AbstractContextManager[None]], ...] = (
    letters_are_written_without_their_note,
    notes_are_read_before_the_other_replay_is_shut_out,
    the_other_replay_is_not_shut_out,
    epochs_begin_anew,
    a_page_forgets_what_it_had,
    pages_of_all_partitions_are_one,
    a_topic_made_anew_has_the_notes_of_the_one_before,
    replays_are_not_counted,
    the_letter_that_fills_a_transaction_is_left_out,
    what_was_written_stays_unknown,
    topics_are_not_claimed,
    a_leader_that_is_cut_off_is_believed,
)
"""Each breaks a promise in some history."""
