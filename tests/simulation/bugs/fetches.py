"""Injected bugs in the fetch plan; the simulated simulation of fetches must find each."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.connectors.kafka.read import fetch_plan, topic_ids
from headrace.connectors.kafka.read.fetch_plan import FetchPlan
from tests.simulation.bugs.injecting import bug, bugs_of, by_name, instead_of


@instead_of(FetchPlan, "_sent_away")
def sent_to_an_unknown_broker(_: Any, self: Any, partition: Any, preferred: Any, now: float) -> None:
    """findings, Source 3: a redirect to a broker that the metadata lacks is an empty success, for ever."""
    if preferred is not None:
        partition.replica, partition.nearby_until = preferred, now + self._max_age_s


@instead_of(FetchPlan, "_out_of_range")
def _ended_at_once(_: Any, self: Any, partition: Any, now: float) -> None:
    self.gone.append(self._end(partition, fetch_plan.TopicRecreatedError(partition.source.topic, "", None)))


@instead_of(FetchPlan, "landed", _ended_at_once)
def out_of_range_is_believed(landed: Any, self: Any, *what: Any) -> Any:
    """librdkafka: one broker's "out of range", a lagging follower's too, ends the partition (I4)."""
    self.gone = []
    outcome = landed(self, *what)
    return self.gone[0] if self.gone else outcome


@instead_of(FetchPlan, "leader_found")
def found_again_in_flight(leader_found: Any, self: Any, source: Any, *found: Any) -> Any:
    """librdkafka #4636: a look-up alongside a request makes the partition be asked for twice."""
    outcome = leader_found(self, source, *found)
    partition = self._current(source)
    if partition is not None and partition.state is fetch_plan._State.IN_FLIGHT:
        partition.state = fetch_plan._State.READY
        self._settle(partition)
    return outcome


@instead_of(FetchPlan, "landed")
def epoch_of_what_was_read_is_forgotten(landed: Any, self: Any, asked: Any, *what: Any) -> Any:
    """A mutant: the last epoch is overwritten with None, and a truncation goes unnoticed (KIP-320)."""
    outcome = landed(self, asked, *what)
    asked.partition.last_epoch = None
    return outcome


@instead_of(FetchPlan, "landed")
def diverging_logs_are_read_on(landed: Any, self: Any, asked: Any, answer: Any, *what: Any) -> Any:
    """The broker says where the log parted, and is not heard."""
    return landed(self, asked, replace(answer, diverging=None), *what)


@instead_of(FetchPlan, "_ask")
def one_offset_skipped(ask: Any, self: Any, partition: Any, share: int, now: float) -> Any:
    """Off by one behind every batch."""
    asked = ask(self, partition, share, now)
    return replace(asked, offset=asked.offset + 1) if partition.last_epoch is not None else asked


@instead_of(FetchPlan, "_advance")
def cut_off_batches_are_handed_out(advance: Any, self: Any, partition: Any, asked: Any, answer: Any, *now: float) -> Any:
    """SPARK-25495: half of a batch is taken for a whole one."""
    data = advance(self, partition, asked, answer, *now)
    return replace(data, records=answer.records) if isinstance(data, fetch_plan.FetchedData) else data


@instead_of(FetchPlan, "landed")
def late_answers_are_taken(landed: Any, self: Any, asked: Any, *what: Any) -> Any:
    """faust #221, librdkafka #3471: an answer to a request from before the partition was started over."""
    current = self._partitions.get(asked.partition.source.key)
    if current is not None and current is not asked.partition:
        asked = replace(asked, partition=current)
    return landed(self, asked, *what)


@bug
def stops_are_ignored() -> Iterator[None]:
    """FLINK-28475: a partition with a stop is read on."""
    with patch.object(fetch_plan._Partition, "ended", property(lambda partition: False)):
        yield


@instead_of(FetchPlan, "_out_of_range")
def followers_for_ever(_: Any, self: Any, partition: Any, now: float) -> None:
    """KIP-392: a follower that lags is asked again and again."""
    partition.state = fetch_plan._State.READY


@instead_of(FetchPlan, "topic_id_of")
def _no_topic_has_an_id(*_: Any) -> None:
    return None


@instead_of(FetchPlan, "leader_found", _no_topic_has_an_id)
def topics_are_known_by_name(leader_found: Any, self: Any, source: Any, leader: Any, topic_id: Any, now: float) -> Any:
    """Whatever topic has the name is read on from the position in the previous one (I5)."""
    partition = self._current(source)
    if partition is not None:
        partition.topic_id = topic_id
    return leader_found(self, source, leader, topic_id, now)


IN_FETCHES = bugs_of(globals()) + by_name(
    # findings, Source 10: metadata that flaps ends a partition.
    unknown_topic_is_believed=(FetchPlan, "_missing", lambda _, self, partition, error, now: self._end(partition, error)),
    # findings, Source 4 and 5: what passes ends the job.
    retriable_errors_are_final=(FetchPlan, "_failed", lambda _, self, partition, error, now: self._end(partition, error)),
    # A batch larger than a partition's share never comes.
    small_fetches_stay_small=(FetchPlan, "_note_empty", lambda *_: None),
    # A partition stays in flight for ever.
    lost_requests_are_forgotten=(FetchPlan, "lost", lambda *_: []),
    # findings, Source 1: after a quota nothing is asked.
    refused_by_quota_is_forgotten=(FetchPlan, "put_back", lambda *_: None),
    # Two looks of one broker that lags behind, 3 s apart, and the partition is given up.
    one_broker_proves_absence=(topic_ids, "absence", lambda absence, *what: absence(*what[:-1], what[-1][:1])),
)
"""Those that the simulation of fetches must find."""
