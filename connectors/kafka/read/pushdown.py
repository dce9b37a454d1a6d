"""Skipping Kafka records before they are read, by topic, partition, offset, and a little of time.

Topic, partition and offset are resolved exactly. Of time, only a lower bound is of use: the broker's first offset at or after
a timestamp has nothing but older records before it. Nothing of the kind holds for an upper bound, as producers set timestamps
in any order, and even a broker's own clock jumps back when the leader changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.connectors.base.predicates import Operator, Predicate
from headrace.connectors.kafka.client.cluster import shared_cluster
from headrace.connectors.kafka.client.positions import Latest, Timestamp
from headrace.connectors.kafka.client.topology import TopicPartition
from headrace.connectors.kafka.read.source import KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})

_HOLDS: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQUAL: lambda value, wanted: bool(value == wanted),
    Operator.LESS: lambda value, wanted: bool(value < wanted),
    Operator.LESS_OR_EQUAL: lambda value, wanted: bool(value <= wanted),
    Operator.GREATER: lambda value, wanted: bool(value > wanted),
    Operator.GREATER_OR_EQUAL: lambda value, wanted: bool(value >= wanted),
    Operator.IN: lambda value, wanted: value in wanted,
    Operator.STARTS_WITH: lambda value, wanted: str(value).startswith(wanted),
}


@dataclass(frozen=True)
class KafkaPruner:
    """What the predicates on a read of this source let it skip. Picklable."""

    source: KafkaSource

    def decides(self, predicate: Predicate) -> bool:
        """True for every predicate on topic or partition, and for ranges of offsets."""
        if predicate.operator is Operator.NOT_NULL:
            return predicate.column in _NEVER_NULL and not predicate.negated
        match predicate.column:
            case "topic" | "partition":
                return True
            case "offset":
                return not predicate.negated and predicate.operator not in (Operator.IN, Operator.STARTS_WITH)
            case _:
                return False

    def prune(self, splits: Sequence[KafkaSplit], predicates: Sequence[Predicate]) -> Sequence[KafkaSplit]:
        """The splits that may hold wanted records, each cut to the offsets that may."""
        kept = [split for split in splits if all(_partition_wanted(split, predicate) for predicate in predicates)]
        for predicate in predicates:
            if predicate.column == "offset" and not predicate.negated and predicate.operator is not Operator.NOT_NULL:
                kept = [_cut(split, *_offset_range(predicate)) for split in kept]
        since = max((_since_ms(predicate) for predicate in predicates), default=0)
        kept = [split for split in kept if not split.exhausted]
        return self._from(kept, since) if since > 0 else kept

    def _from(self, splits: Sequence[KafkaSplit], since_ms: int) -> list[KafkaSplit]:
        asked: dict[TopicPartition, Latest | Timestamp] = {(s.topic, s.partition): Timestamp(since_ms) for s in splits}
        answers = shared_cluster(self.source.config).list_offsets(asked)
        firsts = {tp: answer.offset for tp, answer in answers.items()}
        # No answer: no record is that young. The stop was fixed before the question, so what came since is not read anyhow.
        cut = [_cut(s, s.stop_offset if (at := firsts[s.topic, s.partition]) is None else at, None) for s in splits]
        return [split for split in cut if not split.exhausted]


def _partition_wanted(split: KafkaSplit, predicate: Predicate) -> bool:
    if predicate.column not in ("topic", "partition") or predicate.operator is Operator.NOT_NULL:
        return True
    value = split.topic if predicate.column == "topic" else split.partition
    return _HOLDS[predicate.operator](value, predicate.value) != predicate.negated


def _offset_range(predicate: Predicate) -> tuple[int | None, int | None]:
    """The offsets from, inclusive, and to, exclusive, between which every wanted record lies."""
    value = predicate.value
    match predicate.operator:
        case Operator.EQUAL:
            return value, value + 1
        case Operator.LESS:
            return None, value
        case Operator.LESS_OR_EQUAL:
            return None, value + 1
        case Operator.GREATER:
            return value + 1, None
        case Operator.GREATER_OR_EQUAL:
            return value, None
        case Operator.IN if value:
            return min(value), max(value) + 1
        case _:
            return None, None


def _cut(split: KafkaSplit, start: int | None, stop: int | None) -> KafkaSplit:
    assert split.stop_offset is not None
    low = max(split.next_offset, start if start is not None else 0)
    high = min(split.stop_offset, stop if stop is not None else split.stop_offset)
    return split.between(min(low, split.stop_offset), max(high, min(low, split.stop_offset)))


def _since_ms(predicate: Predicate) -> int:
    """No wanted record has a Kafka timestamp, in whole milliseconds, before this; 0 when nothing can be said."""
    if predicate.column != "timestamp" or predicate.negated:
        return 0
    match predicate.operator:
        case Operator.GREATER:
            return _floor_ms(predicate.value) + 1
        case Operator.GREATER_OR_EQUAL | Operator.EQUAL:
            return _ceil_ms(predicate.value)
        case Operator.IN if predicate.value:
            return _ceil_ms(min(predicate.value))
        case _:
            return 0


def _floor_ms(value: datetime) -> int:
    return (value - _EPOCH) // _MS


def _ceil_ms(value: datetime) -> int:
    return -((_EPOCH - value) // _MS)
