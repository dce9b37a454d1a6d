"""Fetch requests, and a single Fetch of one partition for the readers of logs that need no fetching ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from headrace.connectors.kafka.client.api_versions import FETCH_BY_NAME
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import broker_error
from headrace.connectors.kafka.client.positions import Latest
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.client.wire.protocol import FetchRequest, Message
from headrace.connectors.kafka.format.fetch_protocol import FetchAnswer, PartitionAnswer
from headrace.connectors.kafka.format.record_batch import StoredBatch, stored_batches
from headrace.enumerator.errors import CorruptDataError, RetriableError

_FETCH_BYTES = 8 * 1024 * 1024
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """One partition in a Fetch request, from `offset`, at most `max_bytes` of it.

    `leader_epoch` lets a deposed leader refuse, `last_epoch`, that of the last batch read, shows a truncated log (KIP-320).
    """

    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int | None = None
    last_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class SessionPart:
    """A request's part of a fetch session (KIP-227). `forgotten`: the broker is to remember these no more."""

    session_id: int
    epoch: int
    forgotten: Sequence[PartitionFetch] = ()


NO_SESSION = SessionPart(0, -1)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How long a broker waits, in ms, for how many bytes, and how many it sends at most over all partitions."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


def fetch_request(
    wanted: Iterable[PartitionFetch],
    limits: FetchLimits,
    isolation: Isolation,
    rack: str | None,
    session: SessionPart = NO_SESSION,
) -> Message:
    """A Fetch request, by topic id if all ids are known. `rack` finds a follower nearby (KIP-392)."""
    by_topic = _by_topic(wanted)
    has_ids = all(topic_id is not None for _, topic_id in by_topic)
    return FetchRequest(
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=isolation.wire_value,
        session_id=session.session_id,
        session_epoch=session.epoch,
        rack_id=rack or "",
        topics=[
            FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=[_wire_partition(item) for item in items])
            for (topic, topic_id), items in by_topic.items()
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=[item.partition for item in items])
            for (topic, topic_id), items in _by_topic(session.forgotten).items()
        ],
        **({} if has_ids else FETCH_BY_NAME.limits),
    )


def _by_topic(fetches: Iterable[PartitionFetch]) -> dict[tuple[str, UUID | None], list[PartitionFetch]]:
    found: dict[tuple[str, UUID | None], list[PartitionFetch]] = {}
    for item in fetches:
        found.setdefault((item.topic, item.topic_id), []).append(item)
    return found


def _wire_partition(item: PartitionFetch) -> Message:
    return FetchRequest.FetchTopic.FetchPartition(
        partition=item.partition,
        current_leader_epoch=_UNKNOWN if item.leader_epoch is None else item.leader_epoch,
        fetch_offset=item.offset,
        last_fetched_epoch=_UNKNOWN if item.last_epoch is None else item.last_epoch,
        log_start_offset=_UNKNOWN,
        partition_max_bytes=item.max_bytes,
    )


def fetch_once(
    cluster: KafkaCluster,
    topic: str,
    partition: int,
    offset: int,
    isolation: Isolation,
    *,
    last_epoch: int | None = None,
    max_bytes: int = _FETCH_BYTES,
) -> PartitionAnswer:
    """One partition's answer to one Fetch from its leader, without waiting; retriable errors are retried.

    `max_bytes`: 8 MiB by default; a first batch that is larger comes whole. With `last_epoch`, that of the batch before the
    offset, the answer's `diverging` is set where the log was truncated (KIP-320). Its `error` is NONE or
    OFFSET_OUT_OF_RANGE. Raises BrokerError for others, UnknownTopicError, DeadlineExceededError.
    """
    where = f"reading {topic}-{partition} at offset {offset}"
    limits = FetchLimits(max_wait_ms=0, min_bytes=0, max_bytes=max_bytes)

    def ask() -> PartitionAnswer:
        leader = cluster.leader(topic, partition)
        wanted = PartitionFetch(topic, cluster.topic_id(topic), partition, offset, max_bytes, leader.epoch, last_epoch)
        answer: FetchAnswer = cluster.call(leader.broker, fetch_request([wanted], limits, isolation, rack=None))
        if not answer.error and not answer.partitions:
            raise RetriableError(f"{where}: {leader.broker} left the partition out of its answer, as one that throttles does")
        code = answer.error or answer.partitions[0].error
        if code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            cluster.invalidate(topic)
            raise broker_error(code, where)
        return answer.partitions[0]

    return cluster.retrying(where, ask)


def fetch_there(
    cluster: KafkaCluster,
    topic: str,
    partition: int,
    offset: int,
    isolation: Isolation,
    *,
    last_epoch: int | None = None,
    max_bytes: int = _FETCH_BYTES,
) -> PartitionAnswer:
    """`fetch_once` at an offset that was there: it brings nothing only if the leader states that its log ends before.

    A new leader brings nothing of what it has as long as it does not know its high watermark; asked where its log ends, it
    refuses to answer meanwhile (KAFKA-7703).
    """

    def ask() -> PartitionAnswer:
        answer = fetch_once(cluster, topic, partition, offset, isolation, last_epoch=last_epoch, max_bytes=max_bytes)
        if not answer.error and answer.diverging is None and not len(answer.records):
            end = cluster.list_offsets({(topic, partition): Latest()}, isolation)[topic, partition].offset
            if end is not None and end > offset:
                raise RetriableError(f"{topic}-{partition} ends at {end}, and nothing was brought of offset {offset}")
        return answer

    return cluster.retrying(f"reading {topic}-{partition} at offset {offset}", ask)


def intact(where: str, position: int, fetch: Callable[[], PartitionAnswer]) -> tuple[PartitionAnswer, list[StoredBatch]]:
    """What `fetch` brings, and its whole batches from the one that holds `position` on, their checksums and order compared.

    A damaged answer is not a damaged log: it is asked for again. Raises CorruptDataError, naming `where`, for the second one,
    and where records came of which no batch is whole. No batches: the answer is empty, or its `error` says why.
    """
    try:
        return _checked(where, position, fetch())
    except CorruptDataError:
        return _checked(where, position, fetch())


def _checked(where: str, position: int, answer: PartitionAnswer) -> tuple[PartitionAnswer, list[StoredBatch]]:
    floor, found = 0, list[StoredBatch]()
    for batch in stored_batches(answer.records):
        if not batch.is_intact:
            raise CorruptDataError(f"{where}, record batch at offset {batch.base_offset}: its checksum (CRC32C) is not right")
        if not floor <= batch.base_offset <= batch.last_offset:
            raise CorruptDataError(
                f"{where}, record batch at offset {batch.base_offset}: it ends at {batch.last_offset}, "
                f"and the batch before it at {floor - 1}"
            )
        floor = batch.last_offset + 1
        if batch.last_offset >= position:
            found.append(batch)
    if len(answer.records) and not found:
        raise CorruptDataError(f"{where}: {len(answer.records)} bytes came for offset {position}, and no whole batch of it")
    return answer, found
