"""The judge: reads the whole output with librdkafka, nothing of headrace, and classifies what is wrong with it.

It shares no code with the oracle of the flights (`examples/flights/oracle.py`), so that neither has the other's mistakes.

`judge` is pure. `read_log` reads a topic under one isolation level. What the words mean:

- duplicate: a record seen more than once under read_committed; each copy beyond the first counts.
- lost: produced, and not in the log at all.
- partially committed: written, and not visible under read_committed once the job has caught up: its batch became visible in
  part.
- out of order: within an output partition, a record that comes after a later one of its input partition; copies beyond the
  first are left out, as they are counted as duplicates.
- damaged: its checksum is wrong. foreign: intact, and never produced.
- aborted seen: the live probe was given it under read_committed, and it is not committed.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from benchmarks.restore.records import SEQUENCE_BITS, Bools, Ints, identify

FETCH = 50_000
POLL_S = 0.2
ANSWER_S = 30.0
NOBODY: Ints = np.empty(0, np.int64)


@dataclass(frozen=True)
class Log:
    """One output partition as read: offsets ascending, and which record is at each (-1: damaged)."""

    offsets: Ints
    ids: Ints


@dataclass(frozen=True)
class Seen:
    """What the probe was given, batch by batch: seconds (monotonic), output partition, first and last offset, rows."""

    at: np.ndarray
    partition: Ints
    first: Ints
    last: Ints
    rows: Ints


@dataclass(frozen=True)
class OracleResult:
    """Counts; see the module."""

    records_in: int
    records_out: int
    duplicates: int
    lost: int
    torn: int
    out_of_order: int
    damaged: int
    foreign: int
    aborted_seen: int
    unseen: int
    """Committed, and not given to the probe: then the probe's times are worth nothing."""

    @property
    def clean(self) -> bool:
        """Every record once. Order is reported and not part of it."""
        return not any((self.duplicates, self.lost, self.torn, self.damaged, self.foreign, self.aborted_seen))

    def counts(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


def judge(
    produced: Sequence[int],
    committed: Mapping[int, Log],
    written: Callable[[], Mapping[int, Log]],
    seen: Seen,
    excused: Ints = NOBODY,
) -> OracleResult:
    """`produced`: how many records each input partition got. `committed` and `written`: the output by partition, under
    read_committed and read_uncommitted; the second is asked for where something is missing in the first. `excused`: ids of
    records that the input has lost, and that need not come out."""
    ids = _all_ids(committed)
    intact = int(np.count_nonzero(ids >= 0))
    known = _places(ids, produced)
    is_there = np.zeros(sum(produced), np.bool_)
    is_there[known] = True
    is_due = np.ones_like(is_there)
    is_due[_places(excused, produced)] = False
    missing = np.flatnonzero(~is_there & is_due)
    torn = _how_many_of(missing, _places(_all_ids(written()), produced), len(is_there)) if len(missing) else 0
    aborted_seen, unseen = _compare_with_probe(committed, seen)
    return OracleResult(
        records_in=sum(produced),
        records_out=len(ids),
        duplicates=len(known) - int(np.count_nonzero(is_there)),
        lost=len(missing) - torn,
        torn=torn,
        out_of_order=sum(_disorder(log.ids) for log in committed.values()),
        damaged=len(ids) - intact,
        foreign=intact - len(known),
        aborted_seen=aborted_seen,
        unseen=unseen,
    )


def _all_ids(logs: Mapping[int, Log]) -> Ints:
    return np.concatenate([log.ids for log in logs.values()]) if logs else np.empty(0, np.int64)


def _places(ids: Ints, produced: Sequence[int]) -> Ints:
    """Of those that were produced, each one's number among all that were, by input partition and sequence.

    Tables by that number in place of sorted ids: a run at full load has a hundred million records.
    """
    ids = ids[_are_known(ids, produced)]
    earliest = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(produced, np.int64))])
    found: Ints = earliest[ids >> SEQUENCE_BITS] + (ids & ((1 << SEQUENCE_BITS) - 1))
    return found


def _are_known(ids: Ints, produced: Sequence[int]) -> Bools:
    """Which of these are intact, and were produced."""
    counts = np.asarray([*produced, 0], np.int64)
    origin, sequence = ids >> SEQUENCE_BITS, ids & ((1 << SEQUENCE_BITS) - 1)
    known: Bools = (ids >= 0) & (sequence < counts[np.minimum(origin, len(produced))])
    return known


def _how_many_of(wanted: Ints, found: Ints, size: int) -> int:
    is_found = np.zeros(size, np.bool_)
    is_found[found] = True
    return int(np.count_nonzero(is_found[wanted]))


def _disorder(ids: Ints) -> int:
    """How many of one output partition's records come after a later one of their input partition."""
    ids = ids[ids >= 0]
    origins = ids >> SEQUENCE_BITS
    found = 0
    for origin in np.unique(origins):
        mine = ids[origins == origin]
        if (mine[1:] > mine[:-1]).all():
            continue  # as it should be: nothing to be sorted
        _, first = np.unique(mine, return_index=True)
        mine = mine[np.sort(first)]
        found += int((mine < np.maximum.accumulate(mine)).sum())
    return found


def _compare_with_probe(committed: Mapping[int, Log], seen: Seen) -> tuple[int, int]:
    """Rows given to the probe beyond those committed in the same offsets; and committed ones it was not given."""
    phantoms = shown = 0
    for partition, log in committed.items():
        mine = seen.partition == partition
        earliest = np.searchsorted(log.offsets, seen.first[mine], "left")
        ends = np.searchsorted(log.offsets, seen.last[mine], "right")
        there = ends - earliest
        phantoms += int(np.maximum(seen.rows[mine] - there, 0).sum())
        shown += int(np.minimum(seen.rows[mine], there).sum())
    strays = ~np.isin(seen.partition, list(committed))
    return phantoms + int(seen.rows[strays].sum()), len(_all_ids(committed)) - shown


def first_seen(produced: Sequence[int], committed: Mapping[int, Log], seen: Seen) -> np.ndarray:
    """When each record that was produced first became visible, ascending: seconds, monotonic."""
    first = np.full(sum(produced), np.inf)
    for partition, log in committed.items():
        mine = seen.partition == partition
        if not mine.any():
            continue
        order = np.argsort(seen.last[mine], kind="stable")
        lasts, stamps = seen.last[mine][order], seen.at[mine][order]
        is_known = _are_known(log.ids, produced)
        stamp = np.minimum(np.searchsorted(lasts, log.offsets[is_known], "left"), len(lasts) - 1)
        np.minimum.at(first, _places(log.ids, produced), stamps[stamp])
    return np.sort(first[np.isfinite(first)])


def read_logs(bootstrap: str, topic: str, isolation: str, value_bytes: int) -> dict[int, Log]:
    """The topic by partition, from its first record to where it ends now under this isolation level. By two processes."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "restore-oracle"})
    partitions = sorted(consumer.list_topics(topic, ANSWER_S).topics[topic].partitions)
    consumer.close()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        shares = [pool.submit(read_log, bootstrap, topic, isolation, value_bytes, partitions[half::2]) for half in range(2)]
        return {partition: log for share in shares for partition, log in share.result().items()}


def read_log(
    bootstrap: str, topic: str, isolation: str, value_bytes: int, partitions: Collection[int] | None = None
) -> dict[int, Log]:
    """As `read_logs`, these partitions or all, in this process."""
    offsets: dict[int, list[Ints]] = {}
    ids: dict[int, list[Ints]] = {}
    for messages in _chunks(bootstrap, topic, isolation, partitions):
        found = identify([message.value() or b"" for message in messages], value_bytes).ids
        origins = np.fromiter((message.partition() for message in messages), np.int64, len(messages))
        places = np.fromiter((message.offset() for message in messages), np.int64, len(messages))
        for partition in np.unique(origins).tolist():
            mine = origins == partition
            offsets.setdefault(partition, []).append(places[mine])
            ids.setdefault(partition, []).append(found[mine])
    return {partition: Log(np.concatenate(offsets[partition]), np.concatenate(ids[partition])) for partition in offsets}


def _chunks(bootstrap: str, topic: str, isolation: str, partitions: Collection[int] | None) -> Iterator[list[Message]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "restore-oracle",  # must be given, is not used
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.queue.backoff.ms": 1,
            "queued.min.messages": 1_000_000,
        }
    )
    try:
        known = consumer.list_topics(topic, ANSWER_S).topics[topic].partitions
        waiting = set(known if partitions is None else partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in waiting])
        last = time.monotonic()
        while waiting:
            messages = consumer.consume(FETCH, POLL_S)
            if messages:
                last = time.monotonic()
            elif time.monotonic() > last + ANSWER_S:
                raise TimeoutError(f"nothing from partitions {sorted(waiting)} of {topic} for {ANSWER_S:.0f} s")
            good = [message for message in messages if message.error() is None]
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(message.partition())
                elif error is not None:
                    raise KafkaException(error)
            if good:
                yield good
    finally:
        consumer.close()
