"""Whether a query can continue from a checkpoint: what Spark would ask of its logs when it starts, asked beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from uuid import UUID

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import StateError
from headrace.spark.checkpoints.logs import COMMITS, METADATA, OFFSETS, SourceOffsets, SparkCheckpoint
from headrace.spark.checkpoints.positions import OffsetForm, StoredPositions, stored_positions


class FindingKind(Enum):
    """DAMAGED: a file that cannot be read. REFUSED: a query does not start, or loses records. NOTE: worth knowing."""

    DAMAGED = "damaged"
    REFUSED = "refused"
    NOTE = "note"

    @property
    def prevents_restore(self) -> bool:
        return self is not FindingKind.NOTE


@dataclass(frozen=True, slots=True)
class CheckpointFinding:
    """`where`: a file of the checkpoint, or a partition."""

    kind: FindingKind
    where: str
    what: str


def findings_of(checkpoint: SparkCheckpoint) -> list[CheckpointFinding]:
    """What the files themselves say. Does no I/O."""
    found = [CheckpointFinding(FindingKind.DAMAGED, file.name, file.why) for file in checkpoint.damaged]
    if checkpoint.query_id is None and not any(file.name == METADATA for file in checkpoint.damaged):
        what = "it is not there: Spark makes a new query id, and exactly-once sinks take the query for another"
        found.append(CheckpointFinding(FindingKind.REFUSED, METADATA, what))
    found += _of_logs(checkpoint)
    for number, batch in sorted(checkpoint.planned.items()):
        for source in batch.sources:
            try:
                stored_positions(source.text)
            except StateError as error:
                where = f"{OFFSETS}/{number}, source {source.name}"
                found.append(CheckpointFinding(FindingKind.DAMAGED, where, str(error)))
    if checkpoint.state_operators:
        what = f"the state of {len(checkpoint.state_operators)} operators is there; its files are not looked at"
        found.append(CheckpointFinding(FindingKind.NOTE, "state", what))
    return found


def _of_logs(checkpoint: SparkCheckpoint) -> Iterator[CheckpointFinding]:
    planned, committed = checkpoint.last_planned, checkpoint.last_committed
    if planned is None:
        if committed is not None:
            what = "batches are committed, and the offset log is empty: the query would start over"
            yield CheckpointFinding(FindingKind.REFUSED, OFFSETS, what)
        else:
            yield CheckpointFinding(FindingKind.NOTE, OFFSETS, "no batch was planned yet: the query starts at startingOffsets")
        return
    if planned > 0 and planned - 1 not in checkpoint.planned:
        what = f"batch {planned} starts where batch {planned - 1} ends, and the entry of that is not readable"
        yield CheckpointFinding(FindingKind.REFUSED, f"{OFFSETS}/{planned - 1}", what)
    done = -1 if committed is None else committed
    if done > planned:
        what = f"batch {done} is committed, and the last one planned is {planned}: the offset log is an older copy"
        yield CheckpointFinding(FindingKind.REFUSED, f"{COMMITS}/{done}", what)
    elif done == planned - 1:
        what = f"batch {planned} is planned and not committed: the next start runs it again, from the same offsets"
        yield CheckpointFinding(FindingKind.NOTE, f"{OFFSETS}/{planned}", what)
    elif done < planned - 1:
        what = (
            f"batch {planned} is planned, and the last one committed is {done}; Spark keeps such gaps with async progress only"
        )
        yield CheckpointFinding(FindingKind.REFUSED, f"{COMMITS}/{planned - 1}", what)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One stored position, and what the cluster has: its log's first and end offset, None where they cannot be determined.

    `topic_id`: of the topic that has this name now; None when it is gone. `is_there`: whether the partition exists.
    """

    split: KafkaSplit
    topic_id: UUID | None
    first: int | None
    end: int | None
    is_there: bool

    @property
    def is_of_another_topic(self) -> bool:
        return None not in (self.split.topic_id, self.topic_id) and self.split.topic_id != self.topic_id

    @property
    def lag(self) -> int | None:
        """Offsets that were not planned yet. None where they cannot be determined."""
        return None if self.end is None or self.is_of_another_topic else max(0, self.end - self.split.next_offset)


def partition_states(cluster: KafkaCluster, positions: StoredPositions) -> list[PartitionState]:
    """What the cluster has of them now. A topic is gone when no broker knows it."""
    answers = cluster.find_topics_everywhere({split.topic for split in positions})
    states = []
    for split in positions:
        known = next((topic for answer in answers if (topic := answer.get(split.topic)) is not None), None)
        is_there = known is not None and split.partition in known.partitions
        first, end = cluster.offset_range(split.topic, split.partition) if is_there else (None, None)
        states.append(PartitionState(split, None if known is None else known.topic_id, first, end, is_there))
    return states


def findings_in_cluster(cluster: KafkaCluster, checkpoint: SparkCheckpoint) -> list[CheckpointFinding]:
    """Whether what is read next is still there: the last batch, if it runs again, and what follows. Asks the cluster."""
    if checkpoint.last_planned is None:
        return []
    found = []
    for source in checkpoint.batch(None).sources:
        positions = stored_positions(source.text)
        if positions.form is not OffsetForm.OTHER:
            earliest = _begins_of_next_run(checkpoint, source)
            states = partition_states(cluster, positions)
            found += [one for state in states if (one := _of_partition(state, earliest.get(state.split.split_id)))]
    return found


def _begins_of_next_run(checkpoint: SparkCheckpoint, source: SourceOffsets) -> Mapping[str, int]:
    """Where the last batch starts, if it is not committed: at the previous one's end, or where headrace first found a split."""
    number = checkpoint.last_planned
    if number is None or number in checkpoint.committed:
        return {}
    positions = stored_positions(source.text)
    earlier = checkpoint.planned[number - 1].sources if number - 1 in checkpoint.planned else ()
    before = stored_positions(next((one.text for one in earlier if one.name == source.name), None))
    # the JVM connector's batches have no topic ids
    place: Callable[[KafkaSplit], str] = attrgetter("split_id") if before.form is positions.form else str
    ended = {place(split): split.next_offset for split in before}
    started_at = positions.offsets.started_at
    earliest = {split.split_id: ended.get(place(split), started_at.get(split.split_id)) for split in positions}
    return {split_id: at for split_id, at in earliest.items() if at is not None}


def _of_partition(state: PartitionState, begin: int | None) -> CheckpointFinding | None:
    """The second argument: where the partition is to be read again from; None for where it is."""
    split = state.split
    first_read = split.next_offset if begin is None else min(begin, split.next_offset)
    if not state.is_there:
        what = "it is gone, which is data loss"
    elif state.is_of_another_topic:
        what = f"the topic was deleted and created again: {split.topic_id} is stored, and {state.topic_id} is there"
    elif state.first is not None and first_read < state.first:
        what = f"offset {first_read} is next, and the log starts at {state.first}: what is between is lost"
    elif state.end is not None and split.next_offset > state.end:
        what = f"offset {split.next_offset} is next, and the log ends at {state.end}: it was truncated, or recreated"
    else:
        return None
    return CheckpointFinding(FindingKind.REFUSED, f"{split.topic}-{split.partition}", what)
