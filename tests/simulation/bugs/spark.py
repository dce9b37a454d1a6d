"""Injected bugs in what runs under Spark, each found here or in a system like ours: the simulation must find it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.connectors.base import commit as commit_module
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.positions import Latest
from headrace.connectors.kafka.read import source as source_module
from headrace.connectors.kafka.read.discovery import KafkaDiscovery
from headrace.connectors.kafka.read.source import KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import FencedError, RetriableError
from headrace.runners.spark import planning, tasks, writers
from headrace.runners.spark.stream import StreamPlanner
from headrace.runners.spark.writers import StreamWriter
from headrace.spark.kafka_offsets import KafkaOffsets
from tests.simulation.bugs.injecting import bug, bugs_of, by_name, instead_of


# --- the planner ----------------------------------------------------------------------------------------------------------
@instead_of(StreamPlanner, "_starts")
def replayed_batch_0_initialises_again(_: Any, self: Any, first: Any, last: Any) -> Any:
    """findings, Spark 3: where batch 0 started is asked again when it is run again."""
    started = self._started(first)
    return {**last.started_at, **{split_id: split.next_offset for split_id, split in started.splits.items()}}


@instead_of(KafkaDiscovery, "_missing")
def _trusted_where_losses_pass(missing: Any, self: Any, absent: Any) -> Any:
    return missing(self, absent) if self._plan.fail_on_data_loss else frozenset(split.split_id for split in absent)


@instead_of(StreamPlanner, "_present", _trusted_where_losses_pass)
def missing_split_leaves_the_offsets(present: Any, self: Any, offsets: Any) -> Any:
    """FLINK-39837: a split that is out of sight is forgotten, and comes back as new."""
    there = present(self, offsets)
    self._retired |= {split_id: split for split_id, split in offsets.splits.items() if split_id in self._missing}
    return there


@instead_of(StreamPlanner, "_present", _trusted_where_losses_pass)
def a_split_that_is_back_stays_missing(present: Any, self: Any, offsets: Any) -> Any:
    """A mutant of `_missing`: what came back is read no more in this run."""
    missing = self._missing
    there = present(self, offsets)
    self._missing |= missing
    return {split_id: split for split_id, split in there.items() if split_id not in self._missing}


@instead_of(KafkaOffsets, "to_json")
def began_is_not_kept(to_json: Any, self: Any, offsets: Any) -> Any:
    """The offsets hold where a batch ends, and not where its splits started."""
    ends = {split_id: split.next_offset for split_id, split in offsets.splits.items()}
    return to_json(self, replace(offsets, started_at=ends))


@instead_of(StreamPlanner, "_starts")
def batches_begin_where_the_query_began(starts: Any, self: Any, first: Any, last: Any) -> Any:
    """`started` wins over where the batch before ended."""
    return {**starts(self, first, last), **last.started_at}


@instead_of(StreamPlanner, "next_offsets")
def planned_positions_are_published(next_offsets: Any, self: Any, start: str, most: Any, least: Any) -> Any:
    """Beam #21742: the end of a batch is published when it is planned (I7)."""
    end = next_offsets(self, start, most, least)
    if end != start:
        self._publish(self._parse(end))
    return end


@instead_of(StreamPlanner, "_is_news")
def the_group_stays_ahead_after_a_loss(_: Any, self: Any, split: Any) -> Any:
    """A mutant: where the log was truncated the published position does not go back with the batch."""
    return split.next_offset > self._published.get(split.split_id, -1)


@instead_of(StreamPlanner, "_waits_for_more")
def delay_never_ends(_: Any, self: Any, backlog: Any, offsets: Any, least: Any) -> Any:
    """minOffsetsPerTrigger without maxTriggerDelay."""
    return least is not None and not offsets.initial and backlog.size < least


@instead_of(planning, "_cut")
def pieces_overlap(cut: Any, item: Any, parts: int) -> Any:
    """Off by one where a range is cut into tasks."""
    return [replace(piece, start=max(item.start, piece.start - 1)) for piece in cut(item, parts)]


@instead_of(KafkaSource, "moved")
def leader_epochs_are_not_stored(_: Any, self: Any, at_end: Any, offset: int) -> Any:
    """findings, Source 24: a log that was truncated and has grown again is read on silently."""
    return replace(at_end, next_offset=offset, stop_offset=None, last_epoch=None)


@instead_of(KafkaSource, "checkpoint_completed")
def one_broker_tells_a_group_its_topics(_: Any, self: Any, splits: Any) -> None:
    """Regression: a broker that lags behind knows the topic by its old id; its positions become those of its successor."""
    cluster = source_module.shared_cluster(self.config)
    found = cluster.find_topics({split.topic for split in splits})
    there = {(name, topic.topic_id) for name, topic in found.items() if topic is not None}
    own = [split for split in splits if (split.topic, split.topic_id) in there]
    cluster.commit_offsets(self.group or "", {(s.topic, s.partition): CommittedOffset(s.next_offset) for s in own})


# --- discovery and the source ---------------------------------------------------------------------------------------------
@instead_of(KafkaDiscovery, "retired", _trusted_where_losses_pass)
def one_broker_retires_a_topic(_: Any, self: Any, splits: Any) -> Any:
    """What one broker does not know is gone for good: its splits leave the offsets."""
    there = {(name, topic.topic_id) for name, topic in self._cluster.find_topics({s.topic for s in splits}).items() if topic}
    return frozenset(split.split_id for split in splits if (split.topic, split.topic_id) not in there)


@instead_of(KafkaDiscovery, "_dispute")
def a_broker_out_of_reach_ends_a_dispute(dispute: Any, self: Any, name: Any, settings: Any, known: Any, views: Any) -> Any:
    """Regression: while one cannot be asked, what the others say against a topic's id counts for nothing."""
    return None if views.failures else dispute(self, name, settings, known, views)


@instead_of(KafkaDiscovery, "_missing")
def absence_in_an_outage(missing: Any, self: Any, absent: Any) -> Any:
    """A broker that cannot be asked is taken for one that knows nothing."""
    try:
        self._cluster.find_topics_everywhere({split.topic for split in absent})
    except RetriableError:
        return frozenset(split.split_id for split in absent)
    return missing(self, absent)


@instead_of(KafkaDiscovery, "later")
def new_partitions_begin_at_their_end(later: Any, self: Any, known: Any) -> Any:
    """KAFKA-12478: what was written before a partition was found is lost."""
    plan, self._plan = self._plan, replace(self._plan, start_of_new_partitions=Latest())
    try:
        return later(self, known)
    finally:
        self._plan = plan


@instead_of(KafkaDiscovery, "later")
def topics_are_told_by_name(later: Any, self: Any, known: Any) -> Any:
    """FLINK-35228: a topic recreated is not read (I5)."""
    findings = later(self, known)
    names = {(split.topic, split.partition) for split in known.values()}
    return replace(findings, missing=frozenset(), added=[s for s in findings.added if (s.topic, s.partition) not in names])


@instead_of(KafkaDiscovery, "later")
def new_partitions_are_not_looked_for(later: Any, self: Any, known: Any) -> Any:
    """SPARK-53560 and others: the partitions of the first day are those for ever."""
    return replace(later(self, known), added=[])


@bug
def one_look_at_the_end() -> Iterator[None]:
    """SPARK-26267, KAFKA-7703: an end too low for a moment is believed. That of all that is written is another look."""
    with patch.object(source_module, "END_LOOKS", 1), patch.object(KafkaSource, "_behind_what_is_open", lambda *_: {}):
        yield


@instead_of(KafkaOffsets, "from_json")
def last_offset_read_is_taken_for_the_next(from_json: Any, self: Any, text: str) -> Any:
    """arroyo #910, risingwave #5192: the offset last read is stored, not the next one (I3)."""
    offsets = from_json(self, text)
    back = {split_id: replace(split, next_offset=max(0, split.next_offset - 1)) for split_id, split in offsets.splits.items()}
    return replace(offsets, splits=back)


# --- tasks ----------------------------------------------------------------------------------------------------------------
@instead_of(tasks, "well_sized")
def last_row_of_a_task_dropped(well_sized: Any, batches: Any) -> Any:
    """What waits to be put together is not handed out."""
    previous = None
    for batch in well_sized(batches):
        if previous is not None:
            yield previous
        previous = batch
    if previous is not None and previous.num_rows > 1:
        yield previous.slice(0, previous.num_rows - 1)


# --- writers --------------------------------------------------------------------------------------------------------------
@instead_of(writers, "_abort")
def abort_fences_whoever_goes_on(_: Any, sink: Any, job: str, epoch: int, handles: Any, driver_id: str | None) -> Any:
    """findings, Sinks 13: the abort of a driver that was replaced fences the one that took its place."""
    return writers._recover(sink, job, handles, driver_id)


@instead_of(writers, "_attempt")
def attempts_are_named_by_their_number(_: Any, context: Any, job: str, epoch: int) -> Attempt:
    """SPARK-24552, findings, Sinks 3: attempt numbers start over with each attempt at a stage."""
    return Attempt(job, epoch, context.partitionId(), context.attemptNumber(), context.attemptNumber())


@instead_of(writers, "_abort")
def abort_ends_what_is_recorded(_: Any, sink: Any, job: str, epoch: int, handles: Any, driver_id: str | None) -> None:
    """An abort ends every transaction of the job, listed or not."""
    for entry in sink.log.unended(job):
        sink.log.abort(entry.number)


@instead_of(commit_module, "refuse_stale")
def stale_epochs_are_written(*_: Any) -> None:
    """An older copy of a checkpoint writes its epochs again."""


@instead_of(writers, "_commit")
def committer_is_kept_after_a_failure(_: Any, sink: Any, job: str, asked: Any, driver_id: str | None) -> None:
    """A driver's process continues with a commit that has failed."""
    writers._committer(sink, job, driver_id).commit_requested(asked)


def _commit_once(self: Any, messages: Any, batch: int) -> None:
    prepared = writers._of_tasks(messages)
    if prepared:
        content = writers._content(self._offsets, batch)
        asked = writers._requested(batch, prepared, content)
        writers._commit(self.sink, prepared[0].job, asked, self._driver_id)


@instead_of(StreamWriter, "commit")
def siblings_fence_each_other(_: Any, self: Any, messages: Any, batch: int) -> None:
    """Spark commits in several processes alternately: each is fenced by the other, and gives up."""
    _commit_once(self, messages, batch)


@instead_of(StreamWriter, "commit")
def fenced_is_taken_for_committed(_: Any, self: Any, messages: Any, batch: int) -> None:
    """FLINK-8086: a fenced commit is taken for one that was done before."""
    try:
        _commit_once(self, messages, batch)
    except FencedError:
        return


@instead_of(writers, "_requested")
def only_one_task_is_committed(requested: Any, epoch: int, prepared: Any, content: Any) -> Any:
    """The rows of the other tasks are lost."""
    return requested(epoch, prepared[:1], content)


@instead_of(writers, "_while_owner")
def owners_give_up(_: Any, act: Any) -> None:
    """A supervised driver that was fenced by a previous one ends, and no process continues."""
    act()


@instead_of(StreamWriter, "_started")
def planned_batches_are_taken_for_recorded(started: Any, self: Any, job: str, last_batch: Any, begin: Any) -> Any:
    """What is in the offset log was started, and need not have come to the sink."""
    started(self, job, last_batch, begin)
    return last_batch()


IN_SPARK = bugs_of(globals()) + by_name(
    # maxOffsetsPerTrigger below the number of splits: none gets any offset.
    share_rounded_down=(planning, "_share", lambda _, size, total, limit: min(size, limit * size // total)),
    # Regression: a task reads what was written after it was planned, where the log was cut meanwhile; so does the next.
    rewritten_records_are_read=(KafkaSplit, "_epoch_up_to", lambda *_: None),
    # findings, Spark 4: one broker that lags behind is believed.
    one_look_proves_absence=(KafkaDiscovery, "_missing", lambda _, self, absent: frozenset(split.split_id for split in absent)),
    # Regression: one that lags behind reports a topic that was deleted before; it is taken for a re-created one.
    one_broker_brings_a_deleted_topic_back=(KafkaDiscovery, "_dispute", lambda *_: None),
    # SPARK-26267: an end before what was read is gone back to, and nothing proves it (I3, I4).
    ends_go_back=(KafkaSource, "_never_behind", lambda _, self, splits, ends, parted: ends),
    # failOnDataLoss, and a topic is deleted.
    losses_are_not_told=(KafkaSource, "on_splits_missing", lambda *_: None),
    # KIP-320 is not asked.
    truncations_are_not_told=(KafkaSource, "_diverged", lambda *_: iter(())),
    # Regression: a copy of a checkpoint plans its next batch again, with another end, and it is skipped as a replay.
    batches_are_told_by_number=(writers, "_content", lambda *_: None),
    # Who was fenced fences again, whosever the job is: two drivers do so alternately.
    driver_ids_are_ignored=(commit_module, "refuse_another", lambda *_: None),
)
"""Those that the simulation of Spark must find."""
