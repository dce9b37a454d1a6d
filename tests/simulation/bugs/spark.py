"""Injected bugs in what runs under Spark: planner, discovery, offsets, tasks and writers.

Each was found here or in a system like ours, or survived as a mutant; the simulated simulation of Spark must find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.connectors.base import commit as commit_module
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.positions import Latest
from headrace.connectors.kafka.read import discovery as discovery_module
from headrace.connectors.kafka.read import source as source_module
from headrace.connectors.kafka.read.discovery import KafkaDiscovery
from headrace.connectors.kafka.read.source import KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import FencedError, RetriableError
from headrace.runners.spark import planning, tasks, writers
from headrace.runners.spark.log_read import LogOffsets
from headrace.runners.spark.stream import StreamPlanner
from headrace.spark import kafka_offsets

Injected = Callable[[], AbstractContextManager[None]]


def _instead(owner: Any, name: str, value: Any, called: str, why: str) -> Injected:
    """A bug that is one other value in one place."""

    @contextmanager
    def injected() -> Iterator[None]:
        with patch.object(owner, name, value):
            yield

    injected.__name__, injected.__doc__ = called, why
    return injected


# --- the planner ----------------------------------------------------------------------------------------------------------


def _replay_begins_anew(self: StreamPlanner[Any], first: Any, last: Any) -> Any:
    started = self._started(first)
    return {**last.started_at, **{split_id: split.next_offset for split_id, split in started.splits.items()}}


replayed_batch_0_initialises_again = _instead(
    StreamPlanner,
    "_begins",
    _replay_begins_anew,
    "replayed_batch_0_initialises_again",
    "findings, Spark 3: where batch 0 started is asked again when it is run again.",
)

_present = StreamPlanner._present


def _forgets_missing(self: StreamPlanner[Any], offsets: Any) -> Any:
    present = _present(self, offsets)
    self._retired |= {split_id: split for split_id, split in offsets.splits.items() if split_id in self._missing}
    return present


def _trusted_where_losses_pass(self: KafkaDiscovery, absent: Any) -> frozenset[str]:
    return _missing(self, absent) if self._plan.fail_on_data_loss else frozenset(split.split_id for split in absent)


_missing = KafkaDiscovery._missing


@contextmanager
def missing_split_leaves_the_offsets() -> Iterator[None]:
    """FLINK-39837: a split that is out of sight is forgotten, and comes back as new."""
    with (
        patch.object(StreamPlanner, "_present", _forgets_missing),
        patch.object(KafkaDiscovery, "_missing", _trusted_where_losses_pass),
    ):
        yield


def _flapping_stays_missing(self: StreamPlanner[Any], offsets: Any) -> Any:
    missing = self._missing
    present = _present(self, offsets)
    self._missing |= missing
    return {split_id: split for split_id, split in present.items() if split_id not in self._missing}


@contextmanager
def a_split_that_is_back_stays_missing() -> Iterator[None]:
    """A mutant of `_missing`: what came back is read no more in this run."""
    with (
        patch.object(StreamPlanner, "_present", _flapping_stays_missing),
        patch.object(KafkaDiscovery, "_missing", _trusted_where_losses_pass),
    ):
        yield


def _next_without_began(text: str, offsets: LogOffsets[Any]) -> LogOffsets[Any]:
    return replace(offsets, started_at={split_id: split.next_offset for split_id, split in offsets.splits.items()})


_to_json = kafka_offsets.KafkaOffsets.to_json
began_is_not_kept = _instead(
    kafka_offsets.KafkaOffsets,
    "to_json",
    lambda self, offsets: _to_json(self, _next_without_began("", offsets)),
    "began_is_not_kept",
    "The offsets hold where a batch ends, and not where its splits started.",
)

_begins = StreamPlanner._begins
batches_begin_where_the_query_began = _instead(
    StreamPlanner,
    "_begins",
    lambda self, first, last: {**_begins(self, first, last), **last.started_at},
    "batches_begin_where_the_query_began",
    "`started` wins over where the batch before ended.",
)

_next_offsets = StreamPlanner.next_offsets


def _publishes_the_end(self: StreamPlanner[Any], start: str, most: Any, least: Any) -> str:
    end = _next_offsets(self, start, most, least)
    if end != start:
        self._publish(self._parse(end))
    return end


planned_positions_are_published = _instead(
    StreamPlanner,
    "next_offsets",
    _publishes_the_end,
    "planned_positions_are_published",
    "Beam #21742: the end of a batch is published when it is planned (I7).",
)


def _never_overdue(self: StreamPlanner[Any], backlog: Any, offsets: Any, least: Any) -> bool:
    return least is not None and not offsets.initial and backlog.size < least


delay_never_ends = _instead(
    StreamPlanner, "_waits_for_more", _never_overdue, "delay_never_ends", "minOffsetsPerTrigger without maxTriggerDelay."
)

share_rounded_down = _instead(
    planning,
    "_share",
    lambda size, total, limit: min(size, limit * size // total),
    "share_rounded_down",
    "maxOffsetsPerTrigger below the number of splits: none gets any offset.",
)


def _cut_overlapping(item: Any, parts: int) -> Any:
    pieces = _cut(item, parts)
    return [replace(piece, start=max(item.start, piece.start - 1)) for piece in pieces]


_cut = planning._cut
pieces_overlap = _instead(planning, "_cut", _cut_overlapping, "pieces_overlap", "Off by one where a range is cut into tasks.")


def _between(self: Any, at_end: Any, offset: int) -> Any:
    return replace(at_end, next_offset=offset, stop_offset=None, last_epoch=None)


leader_epochs_are_not_stored = _instead(
    KafkaSource,
    "moved",
    _between,
    "leader_epochs_are_not_stored",
    "findings, Source 24: a log that was truncated and has grown again is read on silently.",
)

rewritten_records_are_read = _instead(
    KafkaSplit,
    "_epoch_up_to",
    lambda self, stop: None,
    "rewritten_records_are_read",
    "Regression: a task reads what was written after it was planned, where the log was cut meanwhile; so does the next batch.",
)


@contextmanager
def one_broker_tells_a_group_its_topics() -> Iterator[None]:
    """Regression: a broker that lags behind knows the topic by its old id; its positions become those of its successor."""

    def completed(self: KafkaSource, splits: Any) -> None:
        cluster = source_module.shared_cluster(self.config)
        found = cluster.find_topics({split.topic for split in splits})
        there = {(name, topic.topic_id) for name, topic in found.items() if topic is not None}
        own = [split for split in splits if (split.topic, split.topic_id) in there]
        cluster.commit_offsets(self.group or "", {(s.topic, s.partition): CommittedOffset(s.next_offset) for s in own})

    with patch.object(KafkaSource, "checkpoint_completed", completed):
        yield


# --- discovery and the source ---------------------------------------------------------------------------------------------

one_look_proves_absence = _instead(
    discovery_module.KafkaDiscovery,
    "_missing",
    lambda self, absent: frozenset(split.split_id for split in absent),
    "one_look_proves_absence",
    "findings, Spark 4: one broker that lags behind is believed.",
)


def _retired_by_one(self: KafkaDiscovery, splits: Any) -> frozenset[str]:
    there = {(name, topic.topic_id) for name, topic in self._cluster.find_topics({s.topic for s in splits}).items() if topic}
    return frozenset(split.split_id for split in splits if (split.topic, split.topic_id) not in there)


@contextmanager
def one_broker_retires_a_topic() -> Iterator[None]:
    """What one broker does not know is gone for good: its splits leave the offsets."""
    with (
        patch.object(KafkaDiscovery, "_missing", _trusted_where_losses_pass),
        patch.object(KafkaDiscovery, "retired", _retired_by_one),
    ):
        yield


one_broker_brings_a_deleted_topic_back = _instead(
    KafkaDiscovery,
    "_dispute",
    lambda *_: None,
    "one_broker_brings_a_deleted_topic_back",
    "Regression: one that lags behind reports a topic that was deleted before; it is taken for a re-created one.",
)

_dispute = KafkaDiscovery._dispute

a_broker_out_of_reach_ends_a_dispute = _instead(
    KafkaDiscovery,
    "_dispute",
    lambda self, name, settings, known, views: None if views.failures else _dispute(self, name, settings, known, views),
    "a_broker_out_of_reach_ends_a_dispute",
    "Regression: while one cannot be asked, what the others say against a topic's id counts for nothing.",
)


def _absent_in_an_outage(self: KafkaDiscovery, absent: Any) -> frozenset[str]:
    try:
        self._cluster.find_topics_everywhere({split.topic for split in absent})
    except RetriableError:
        return frozenset(split.split_id for split in absent)
    return _missing(self, absent)


absence_in_an_outage = _instead(
    KafkaDiscovery,
    "_missing",
    _absent_in_an_outage,
    "absence_in_an_outage",
    "A broker that cannot be asked is taken for one that knows nothing.",
)

_later = KafkaDiscovery.later


def _later_at_latest(self: KafkaDiscovery, known: Any) -> Any:
    plan, self._plan = self._plan, replace(self._plan, start_of_new_partitions=Latest())
    try:
        return _later(self, known)
    finally:
        self._plan = plan


new_partitions_begin_at_their_end = _instead(
    KafkaDiscovery,
    "later",
    _later_at_latest,
    "new_partitions_begin_at_their_end",
    "KAFKA-12478: what was written before a partition was found is lost.",
)


def _known_by_name(self: KafkaDiscovery, known: Any) -> Any:
    findings = _later(self, known)
    names = {(split.topic, split.partition) for split in known.values()}
    return replace(findings, missing=frozenset(), added=[s for s in findings.added if (s.topic, s.partition) not in names])


topics_are_told_by_name = _instead(
    KafkaDiscovery, "later", _known_by_name, "topics_are_told_by_name", "FLINK-35228: a topic recreated is not read (I5)."
)

new_partitions_are_not_looked_for = _instead(
    KafkaDiscovery,
    "later",
    lambda self, known: replace(_later(self, known), added=[]),
    "new_partitions_are_not_looked_for",
    "SPARK-53560 and others: the partitions of the first day are those for ever.",
)

one_look_at_the_end = _instead(
    source_module, "END_LOOKS", 1, "one_look_at_the_end", "SPARK-26267, KAFKA-7703: an end too low for a moment is believed."
)


ends_go_back = _instead(
    KafkaSource,
    "_never_behind",
    lambda self, splits, ends, parted: ends,
    "ends_go_back",
    "SPARK-26267: an end before what was read is gone back to, and nothing proves it (I3, I4).",
)

losses_are_not_told = _instead(
    KafkaSource,
    "on_splits_missing",
    lambda self, splits: None,
    "losses_are_not_told",
    "failOnDataLoss, and a topic is deleted.",
)

truncations_are_not_told = _instead(
    KafkaSource, "_diverged", lambda self, splits, ends: iter(()), "truncations_are_not_told", "KIP-320 is not asked."
)

_from_json = kafka_offsets.KafkaOffsets.from_json


def _one_offset_back(self: Any, text: str) -> Any:
    offsets = _from_json(self, text)
    back = {split_id: replace(split, next_offset=max(0, split.next_offset - 1)) for split_id, split in offsets.splits.items()}
    return replace(offsets, splits=back)


last_offset_read_is_taken_for_the_next = _instead(
    kafka_offsets.KafkaOffsets,
    "from_json",
    _one_offset_back,
    "last_offset_read_is_taken_for_the_next",
    "arroyo #910, risingwave #5192: the offset last read is stored, not the next one (I3).",
)

# --- tasks ----------------------------------------------------------------------------------------------------------------


def _without_the_last(batches: Any) -> Any:
    previous = None
    for batch in _well_sized(batches):
        if previous is not None:
            yield previous
        previous = batch
    if previous is not None and previous.num_rows > 1:
        yield previous.slice(0, previous.num_rows - 1)


_well_sized = tasks.well_sized
last_row_of_a_task_dropped = _instead(
    tasks, "well_sized", _without_the_last, "last_row_of_a_task_dropped", "What waits to be put together is not handed out."
)

# --- writers --------------------------------------------------------------------------------------------------------------

_in_dispute = writers._recover
abort_fences_whoever_goes_on = _instead(
    writers,
    "_abort",
    lambda sink, job, epoch, driver_id: _in_dispute(sink, job, driver_id),
    "abort_fences_whoever_goes_on",
    "findings, Sinks 13: the abort of a driver that was replaced fences the one that took its place.",
)


def _attempt_by_number(context: Any, job: str, epoch: int) -> Attempt:
    return Attempt(job, epoch, context.partitionId(), context.attemptNumber(), context.attemptNumber())


attempts_are_named_by_their_number = _instead(
    writers,
    "_attempt",
    _attempt_by_number,
    "attempts_are_named_by_their_number",
    "SPARK-24552, findings, Sinks 3: attempt numbers start over with each attempt at a stage.",
)


def _abort_all(sink: Any, job: str, epoch: int, driver_id: str | None) -> None:
    for entry in sink.log.unended(job):
        sink.log.abort(entry.number)


abort_ends_what_is_recorded = _instead(
    writers, "_abort", _abort_all, "abort_ends_what_is_recorded", "An abort ends every transaction of the job, listed or not."
)


@contextmanager
def stale_epochs_are_written() -> Iterator[None]:
    """An older copy of a checkpoint writes its epochs again."""
    with patch.object(writers, "refuse_stale", lambda *_: None), patch.object(commit_module, "refuse_stale", lambda *_: None):
        yield


batches_are_told_by_number = _instead(
    writers,
    "_content",
    lambda offsets, batch: None,
    "batches_are_told_by_number",
    "Regression: a copy of a checkpoint plans its next batch again, with another end, and it is skipped as a replay.",
)


def _kept_for_ever(sink: Any, job: str, asked: Any, driver_id: str | None) -> None:
    writers._committer(sink, job, driver_id).commit_requested(asked)


committer_is_kept_after_a_failure = _instead(
    writers,
    "_commit",
    _kept_for_ever,
    "committer_is_kept_after_a_failure",
    "A driver's process continues with a commit that has failed.",
)


def _commit_once(self: Any, messages: Any, batch: int) -> None:
    prepared = writers._of_tasks(messages)
    if prepared:
        content = writers._content(self._offsets, batch)
        asked = commit_module.CommitRequested(batch, writers._handles(prepared), content, writers._skipped(prepared))
        writers._commit(self._sink, prepared[0].job, asked, self._driver_id)


siblings_fence_each_other = _instead(
    writers.StreamWriter,
    "commit",
    _commit_once,
    "siblings_fence_each_other",
    "Spark commits in several processes alternately: each is fenced by the other, and gives up.",
)


def _success_when_fenced(self: Any, messages: Any, batch: int) -> None:
    try:
        _commit_once(self, messages, batch)
    except FencedError:
        return


fenced_is_taken_for_committed = _instead(
    writers.StreamWriter,
    "commit",
    _success_when_fenced,
    "fenced_is_taken_for_committed",
    "FLINK-8086: a fenced commit is taken for one that was done before.",
)


def _first_messages_only(prepared: Any) -> Any:
    return tuple(message.handle for message in prepared[:1] if message.handle is not None)


only_one_task_is_committed = _instead(
    writers, "_handles", _first_messages_only, "only_one_task_is_committed", "The rows of the other tasks are lost."
)

the_group_stays_ahead_after_a_loss = _instead(
    StreamPlanner,
    "_is_news",
    lambda self, split: split.next_offset > self._published.get(split.split_id, -1),
    "the_group_stays_ahead_after_a_loss",
    "A mutant: where the log was truncated the published position does not go back with the batch.",
)


def _once(act: Any) -> None:
    act()


owners_give_up = _instead(
    writers,
    "_while_owner",
    _once,
    "owners_give_up",
    "A supervised driver that was fenced by a previous one ends, and no process continues.",
)

driver_ids_are_ignored = _instead(
    commit_module,
    "refuse_another",
    lambda *_: None,
    "driver_ids_are_ignored",
    "Who was fenced fences again, whosever the job is: two drivers do so alternately.",
)


@contextmanager
def planned_batches_are_taken_for_recorded() -> Iterator[None]:
    """What is in the offset log was started, and need not have come to the sink."""
    started = writers.StreamWriter._started

    def always(self: Any, job: str, last_batch: Callable[[], int | None], begin: Any) -> int | None:
        started(self, job, last_batch, begin)
        return last_batch()

    with patch.object(writers.StreamWriter, "_started", always):
        yield


IN_SPARK: tuple[Injected, ...] = (
    replayed_batch_0_initialises_again,
    missing_split_leaves_the_offsets,
    a_split_that_is_back_stays_missing,
    began_is_not_kept,
    batches_begin_where_the_query_began,
    planned_positions_are_published,
    the_group_stays_ahead_after_a_loss,
    delay_never_ends,
    share_rounded_down,
    pieces_overlap,
    leader_epochs_are_not_stored,
    rewritten_records_are_read,
    one_broker_tells_a_group_its_topics,
    one_look_proves_absence,
    one_broker_retires_a_topic,
    one_broker_brings_a_deleted_topic_back,
    a_broker_out_of_reach_ends_a_dispute,
    absence_in_an_outage,
    new_partitions_begin_at_their_end,
    topics_are_told_by_name,
    new_partitions_are_not_looked_for,
    one_look_at_the_end,
    ends_go_back,
    losses_are_not_told,
    truncations_are_not_told,
    last_offset_read_is_taken_for_the_next,
    last_row_of_a_task_dropped,
    abort_fences_whoever_goes_on,
    attempts_are_named_by_their_number,
    abort_ends_what_is_recorded,
    stale_epochs_are_written,
    batches_are_told_by_number,
    committer_is_kept_after_a_failure,
    siblings_fence_each_other,
    fenced_is_taken_for_committed,
    only_one_task_is_committed,
    owners_give_up,
    driver_ids_are_ignored,
    planned_batches_are_taken_for_recorded,
)
"""Those that the simulation of Spark must find."""
