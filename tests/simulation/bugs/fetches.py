"""Injected bugs in the fetch plan; the simulated simulation of fetches must find each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.connectors.kafka.read import fetch_plan, topic_ids
from headrace.connectors.kafka.read.fetch_plan import FetchPlan

Injected = Callable[[], AbstractContextManager[None]]


def _instead(name: str, value: Any, called: str, why: str, owner: Any = FetchPlan) -> Injected:
    """A bug that is one other method."""

    @contextmanager
    def injected() -> Iterator[None]:
        with patch.object(owner, name, value):
            yield

    injected.__name__, injected.__doc__ = called, why
    return injected


def _sent_away_anywhere(self: Any, partition: Any, preferred: Any, now: float) -> None:
    if preferred is not None:
        partition.replica, partition.nearby_until = preferred, now + self._max_age_s


sent_to_an_unknown_broker = _instead(
    "_sent_away",
    _sent_away_anywhere,
    "sent_to_an_unknown_broker",
    "findings, Source 3: a redirect to a broker that the metadata lacks is an empty success, for ever.",
)


def _ended_at_once(self: Any, partition: Any, now: float) -> None:
    error = fetch_plan.TopicRecreatedError(partition.source.topic, "", None)
    self.gone.append(self._end(partition, error))


_landed = FetchPlan.landed


def _out_of_range_is_final(self: Any, asked: Any, answer: Any, preferred: Any, now: float) -> Any:
    self.gone = []
    outcome = _landed(self, asked, answer, preferred, now)
    return self.gone[0] if self.gone else outcome


@contextmanager
def out_of_range_is_believed() -> Iterator[None]:
    """librdkafka: one broker's "out of range", a lagging follower's too, ends the partition (I4)."""
    with patch.object(FetchPlan, "_out_of_range", _ended_at_once), patch.object(FetchPlan, "landed", _out_of_range_is_final):
        yield


def _missing_at_once(self: Any, partition: Any, error: Any, now: float) -> Any:
    return self._end(partition, error)


unknown_topic_is_believed = _instead(
    "_missing", _missing_at_once, "unknown_topic_is_believed", "findings, Source 10: metadata that flaps ends a partition."
)

_failed = FetchPlan._failed


def _failed_for_good(self: Any, partition: Any, error: Any, now: float) -> Any:
    return self._end(partition, error)


retriable_errors_are_final = _instead(
    "_failed", _failed_for_good, "retriable_errors_are_final", "findings, Source 4 and 5: what passes ends the job."
)

small_fetches_stay_small = _instead(
    "_note_empty", lambda self, *_: None, "small_fetches_stay_small", "A batch larger than a partition's share never comes."
)

lost_requests_are_forgotten = _instead(
    "lost", lambda self, asked, error, now: [], "lost_requests_are_forgotten", "A partition stays in flight for ever."
)

refused_by_quota_is_forgotten = _instead(
    "put_back", lambda self, asked: None, "refused_by_quota_is_forgotten", "findings, Source 1: after a quota nothing is asked."
)

_leader_found = FetchPlan.leader_found


def _ready_whatever_it_was(self: Any, source: Any, leader: Any, topic_id: Any, now: float) -> Any:
    outcome = _leader_found(self, source, leader, topic_id, now)
    partition = self._current(source)
    if partition is not None and partition.state is fetch_plan._State.IN_FLIGHT:
        partition.state = fetch_plan._State.READY
        self._settle(partition)
    return outcome


found_again_in_flight = _instead(
    "leader_found",
    _ready_whatever_it_was,
    "found_again_in_flight",
    "librdkafka #4636: a look-up alongside a request makes the partition be asked for twice.",
)


def _any_topic_id(self: Any, source: Any, leader: Any, topic_id: Any, now: float) -> Any:
    partition = self._current(source)
    if partition is not None:
        partition.topic_id = topic_id
    return _leader_found(self, source, leader, topic_id, now)


@contextmanager
def topics_are_known_by_name() -> Iterator[None]:
    """Whatever topic has the name is read on from the position in the previous one (I5)."""
    any_id = patch.object(FetchPlan, "topic_id_of", lambda self, source: None)
    with any_id, patch.object(FetchPlan, "leader_found", _any_topic_id):
        yield


_absence = topic_ids.absence


@contextmanager
def one_broker_proves_absence() -> Iterator[None]:
    """Two looks of one broker that lags behind, 3 s apart, and the partition is given up."""
    with patch.object(topic_ids, "absence", lambda *what: _absence(*what[:-1], what[-1][:1])):
        yield


def _forgetting_the_epoch(self: Any, asked: Any, answer: Any, preferred: Any, now: float) -> Any:
    outcome = _landed(self, asked, answer, preferred, now)
    asked.partition.last_epoch = None
    return outcome


epoch_of_what_was_read_is_forgotten = _instead(
    "landed",
    _forgetting_the_epoch,
    "epoch_of_what_was_read_is_forgotten",
    "A mutant: the last epoch is overwritten with None, and a truncation goes unnoticed (KIP-320).",
)


def _diverging_ignored(self: Any, asked: Any, answer: Any, preferred: Any, now: float) -> Any:
    return _landed(self, asked, replace(answer, diverging=None), preferred, now)


diverging_logs_are_read_on = _instead(
    "landed", _diverging_ignored, "diverging_logs_are_read_on", "The broker says where the log parted, and is not heard."
)

_ask = FetchPlan._ask


def _one_further(self: Any, partition: Any, share: int, now: float) -> Any:
    asked = _ask(self, partition, share, now)
    return replace(asked, offset=asked.offset + 1) if partition.last_epoch is not None else asked


one_offset_skipped = _instead("_ask", _one_further, "one_offset_skipped", "Off by one behind every batch.")


def _whole_answer(self: Any, partition: Any, asked: Any, answer: Any, *now: float) -> Any:
    data = _advance(self, partition, asked, answer, *now)
    return replace(data, records=answer.records) if isinstance(data, fetch_plan.FetchedData) else data


_advance = FetchPlan._advance
cut_off_batches_are_handed_out = _instead(
    "_advance", _whole_answer, "cut_off_batches_are_handed_out", "SPARK-25495: half of a batch is taken for a whole one."
)


def _whoever_waits(self: Any, asked: Any, answer: Any, preferred: Any, now: float) -> Any:
    current = self._partitions.get(asked.partition.source.key)
    if current is not None and current is not asked.partition:
        asked = replace(asked, partition=current)
    return _landed(self, asked, answer, preferred, now)


late_answers_are_taken = _instead(
    "landed",
    _whoever_waits,
    "late_answers_are_taken",
    "faust #221, librdkafka #3471: an answer to a request from before the partition was started over.",
)

stops_are_ignored = _instead(
    "ended",
    property(lambda partition: False),
    "stops_are_ignored",
    "FLINK-28475: a partition with a stop is read on.",
    owner=fetch_plan._Partition,
)

followers_for_ever = _instead(
    "_out_of_range",
    lambda self, partition, now: setattr(partition, "state", fetch_plan._State.READY),
    "followers_for_ever",
    "KIP-392: a follower that lags is asked again and again.",
)

IN_FETCHES: tuple[Injected, ...] = (
    sent_to_an_unknown_broker,
    out_of_range_is_believed,
    unknown_topic_is_believed,
    retriable_errors_are_final,
    small_fetches_stay_small,
    lost_requests_are_forgotten,
    refused_by_quota_is_forgotten,
    found_again_in_flight,
    epoch_of_what_was_read_is_forgotten,
    diverging_logs_are_read_on,
    one_offset_skipped,
    cut_off_batches_are_handed_out,
    late_answers_are_taken,
    stops_are_ignored,
    followers_for_ever,
    topics_are_known_by_name,
    one_broker_proves_absence,
)
"""Those that the simulation of fetches must find."""
