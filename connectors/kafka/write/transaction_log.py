"""What the log itself says about a transaction, once its coordinator no longer does: its outcome, and its records.

EndTxn's "fenced" is not an answer: it may come after a commit as after an abort. The partitions know. A fetch under
read_committed at a transaction's first offset shows whether it is still open (the last stable offset has not passed it), was
aborted (it is in the list of aborted transactions) or committed (it is not, and its batch is still there) (KIP-98).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from uuid import UUID

from crc32c import crc32c

from headrace.connectors.base.sink import Outcome
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.fetch import fetch_once, fetch_there, intact
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.client.retries import giving_up_when
from headrace.connectors.kafka.client.topology import TopicMetadata, TopicPartition
from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.format.record_batch import CRC_AT, CRC_FROM, HEADER, LOG_APPEND_TIME, StoredBatch, stored_batches
from headrace.connectors.kafka.write.handles import KafkaHandle, WrittenRange
from headrace.connectors.kafka.write.produce import OutBatch
from headrace.connectors.kafka.write.topics import find_topic
from headrace.connectors.kafka.write.transactions import Producer, Transactions
from headrace.enumerator.errors import DataLossError, HeadraceError, RetriableError, is_retriable

_WAY_OUT = "to continue without it, see headrace transactions accept-loss"

# --- outcome ----------------------------------------------------------------------------------------------------------


def outcome_of(cluster: KafkaCluster, handle: KafkaHandle) -> Outcome:
    """What became of a transaction that is no longer its coordinator's. Waits while it is still being ended.

    Raises DataLossError when the log no longer shows: all its batches were deleted or compacted away.
    """
    for written in handle.ranges:
        if _is_there(cluster, written):
            why_open = open_transactions(cluster, (written.topic, written.partition))
            ask = functools.partial(_ask, cluster, handle, written, why_open)
            outcome = cluster.retrying(f"asking {written} for the outcome of a transaction", ask)
            if outcome is not None:
                return outcome
    raise DataLossError(
        f"the transaction of {handle.transactional_id!r} (producer {handle.producer.producer_id}) "
        "is no longer known to its coordinator, and its records are no longer in the log, so whether they were ever visible "
        f"cannot be determined: {'; '.join(map(str, handle.ranges))}; {_WAY_OUT}"
    )


def _is_there(cluster: KafkaCluster, written: WrittenRange) -> bool:
    def is_it(found: TopicMetadata) -> bool:
        return _same(written.topic_id, found.topic_id) and written.partition in found.partitions

    return find_topic(cluster, written.topic, is_it) is not None


def _same(expected: UUID | None, found: UUID | None) -> bool:
    return expected is None or found is None or expected == found


def _ask(cluster: KafkaCluster, handle: KafkaHandle, written: WrittenRange, why_open: Callable[[int], str]) -> Outcome | None:
    answer, batches = _fetch(cluster, written, written.first, Isolation.READ_COMMITTED)
    if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
        return None
    if answer.last_stable_offset is not None and answer.last_stable_offset <= written.first:
        cluster.invalidate(written.topic)  # to a leader that is isolated from the others it is open for ever
        raise RetriableError(why_open(answer.last_stable_offset))
    if (handle.producer.producer_id, written.first) in (answer.aborted or ()):
        return Outcome.ABORTED
    first = next(iter(batches), None)
    if first is not None and first.base_offset <= written.first <= first.last_offset and _belongs_to(first, handle.producer):
        return Outcome.COMMITTED
    return None


def _fetch(
    cluster: KafkaCluster, written: WrittenRange, position: int, isolation: Isolation
) -> tuple[PartitionAnswer, list[StoredBatch]]:
    """What one Fetch brings. That it brings nothing of what is decided is said by no leader that another broker knows is none.

    Raises CorruptDataError.
    """
    key = (written.topic, written.partition)
    where = f"{written.topic}-{written.partition}"

    def ask() -> tuple[PartitionAnswer, list[StoredBatch]]:
        epoch = cluster.leader(*key).epoch  # before, as it may be another one after
        answer, batches = intact(where, position, lambda: fetch_there(cluster, *key, position, isolation))
        stable = answer.last_stable_offset
        is_open = isolation is Isolation.READ_COMMITTED and stable is not None and stable <= position
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE or not (batches or is_open):
            _refuse_deposed(cluster, key, epoch)
        return answer, batches

    return cluster.retrying(f"reading {where} at offset {position}", ask)


def _refuse_deposed(cluster: KafkaCluster, key: TopicPartition, epoch: int | None) -> None:
    """Raise RetriableError if some live broker knows of a later leader than that of this epoch.

    One that is isolated from the others answers as a leader, and lacks what they have since. The one in its place knows it.
    """
    topic, partition = key
    there = [answer[topic] for answer in cluster.find_topics_everywhere([topic])]
    known = [found.partitions[partition].leader_epoch for found in there if found is not None and partition in found.partitions]
    newest = max((each for each in known if each is not None), default=None)
    if epoch is not None and newest is not None and epoch < newest:
        cluster.invalidate(topic)
        raise RetriableError(
            f"{topic}-{partition} has a leader of epoch {newest}, and the one of epoch {epoch} was asked, which may be "
            "isolated from the others"
        )


def open_transactions(cluster: KafkaCluster, key: TopicPartition) -> Callable[[int], str]:
    """For who waits for a partition's last stable offset: says whose transaction starts at such an offset, and what ends it.

    Another application's may hang: its coordinator does not know it (any more), so that no timeout ends it (KIP-664). Each
    offset is looked up once; what it says raises RetriableError when that cannot be done now.
    """
    command = f"kafka-transactions.sh --bootstrap-server {cluster.config.bootstrap}"
    where = f"--topic {key[0]} --partition {key[1]}"

    @functools.cache
    def tell(first: int) -> str:
        return (
            f"a transaction that starts at offset {first} of {key[0]}-{key[1]} is still open{_whose(cluster, key, first)}. It "
            f"ends by its own timeout, or it hangs: `{command} describe-producers {where}` says whose it is, and `{command} "
            f"abort {where} --start-offset {first}` ends it"
        )

    return tell


def _whose(cluster: KafkaCluster, key: TopicPartition, first: int) -> str:
    """In words, and nothing where one may not ask. Raises RetriableError for what cannot be asked now."""
    try:
        with giving_up_when(lambda: True):
            answer = fetch_once(cluster, *key, first, Isolation.READ_UNCOMMITTED)
            batch = next(stored_batches(answer.records), None)
            if batch is None:
                return ""
            listed = Transactions(cluster).listing("", producer_ids=[batch.producer_id])
    except HeadraceError as error:
        if is_retriable(error):
            raise
        return ""
    ids = ", ".join(repr(each.transactional_id) for each in listed)
    known = f"transactional id {ids}" if ids else "which no coordinator knows a transactional id of"
    return f": of producer {batch.producer_id}, epoch {batch.producer_epoch}, {known}"


# --- copying ----------------------------------------------------------------------------------------------------------


class BatchCopier:
    """Copies the batches of aborted transactions, with their records as they are, into a transaction of one producer."""

    def __init__(self, cluster: KafkaCluster, producer: Producer) -> None:
        self._cluster = cluster
        self._producer = producer
        self._sequences: Counter[TopicPartition] = Counter()

    def copies(self, handle: KafkaHandle) -> Iterator[tuple[str, OutBatch]]:
        """Topic and batch, partition by partition. Raises DataLossError, naming the range, when records are gone."""
        for written in handle.ranges:
            if not _is_there(self._cluster, written):
                raise DataLossError(f"{_LOST}: {written}; {_NO_TOPIC}; {_WAY_OUT}")
            found = 0
            for batch in _own_batches(self._cluster, handle, written):
                found += batch.records
                yield written.topic, self._copied(batch, (written.topic, written.partition))
            if found != written.records:
                raise DataLossError(f"{_LOST}: {written}; {_only(found)}; {_WAY_OUT}")

    def _copied(self, batch: StoredBatch, key: TopicPartition) -> OutBatch:
        data = bytearray(batch.data)
        head = list(HEADER.unpack_from(data))
        head[0], head[2] = 0, -1
        head[5] &= ~LOG_APPEND_TIME  # producers only ever send create time; the broker stamps it again if the topic says so
        head[9:12] = self._producer.producer_id, self._producer.epoch, self._sequences[key]
        HEADER.pack_into(data, 0, *head)
        data[CRC_AT:CRC_FROM] = crc32c(memoryview(data)[CRC_FROM:]).to_bytes(4, "big")
        self._sequences[key] += batch.records
        return OutBatch(key[1], data, batch.records)


def why_lost(cluster: KafkaCluster, handle: KafkaHandle, written: WrittenRange) -> str | None:
    """Why the records of one range of an aborted transaction cannot be copied, all of them; None if they can."""
    if not _is_there(cluster, written):
        return _NO_TOPIC
    found = sum(batch.records for batch in _own_batches(cluster, handle, written))
    return None if found == written.records else _only(found)


def _only(found: int) -> str:
    return f"the log still has {found} of its records, retention or compaction took the others"


_NO_TOPIC = "the topic was deleted or created again since"
_LOST = "a transaction timed out before it could be committed, and what it wrote cannot be copied"


def _own_batches(cluster: KafkaCluster, handle: KafkaHandle, written: WrittenRange) -> Iterator[StoredBatch]:
    """Compared with their checksums: a copy is sealed again, and would make damage on the way good. Raises CorruptDataError."""
    position = written.first
    while position <= written.last:
        answer, batches = _fetch(cluster, written, position, Isolation.READ_UNCOMMITTED)
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE or not batches:
            return
        for batch in batches:
            position = batch.last_offset + 1
            mine = _belongs_to(batch, handle.producer) and not batch.is_control
            if mine and written.first <= batch.base_offset and batch.last_offset <= written.last:
                yield batch


def _belongs_to(batch: StoredBatch, producer: Producer) -> bool:
    return (batch.producer_id, batch.producer_epoch) == (producer.producer_id, producer.epoch)
