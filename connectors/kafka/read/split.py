"""A Kafka split: one partition of one topic, identified by the topic's id (invariant I5), with its resolved position."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self
from uuid import UUID

from headrace.enumerator.envelope import readable_version
from headrace.enumerator.source import JsonObject, SplitSerializer


@lru_cache(maxsize=1024)
def _shown(topic_id: UUID) -> str:
    """The id's text, which is asked for with each split that is planned, read or committed."""
    return str(topic_id)


@dataclass(frozen=True, slots=True)
class KafkaSplit:
    """Partition `partition` of `topic`, to be read from `next_offset` up to, not including, `stop_offset` (None: without end).

    `topic_id` is None only for brokers older than 2.8, which have no topic ids; a re-created topic cannot be determined then.
    `last_epoch` is the leader epoch of the batch that holds the record before `next_offset`, if known: with it a log that was
    truncated is noticed (KIP-320). An engine that plans by ends does not see batches; it has the epoch of the leader whose log
    held all before `next_offset`. `stop_epoch` is then the same of the stop, for the task that reads up to it: no record before
    the stop is of a later epoch, unless the log was truncated meanwhile. It is not stored: a restored job plans again.
    """

    topic: str
    topic_id: UUID | None
    partition: int
    next_offset: int
    stop_offset: int | None = None
    last_epoch: int | None = None
    stop_epoch: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Positions are numbers by now (I2): ValueError for anything that cannot be one."""
        if self.partition < 0 or self.next_offset < 0 or (self.stop_offset is not None and self.stop_offset < 0):
            raise ValueError(f"negative partition or offset in {self}")

    @property
    def split_id(self) -> str:
        """`<topic>-<partition>@<topic id>`."""
        return f"{self.topic}-{self.partition}@{'' if self.topic_id is None else _shown(self.topic_id)}"

    @property
    def exhausted(self) -> bool:
        """True when everything up to the stop has been read. A stop of 0 stops at once (FLINK-28475)."""
        return self.stop_offset is not None and self.next_offset >= self.stop_offset

    def between(self, start: int, stop: int | None) -> Self:
        """The same partition, to be read from `start` up to, not including, `stop`."""
        epoch = self.last_epoch if start == self.next_offset else None
        return replace(self, next_offset=start, stop_offset=stop, last_epoch=epoch, stop_epoch=self._epoch_up_to(stop))

    def _epoch_up_to(self, stop: int | None) -> int | None:
        if stop is None:
            return None
        if stop <= self.next_offset and self.last_epoch is not None:
            return self.last_epoch
        return self.stop_epoch if self.stop_offset is not None and stop <= self.stop_offset else None

    def __str__(self) -> str:
        """For messages."""
        return f"{self.topic}-{self.partition}"


class KafkaSplitSerializer(SplitSerializer[KafkaSplit]):
    """Version 1: {"topic", "topic_id", "partition", "next_offset", "stop_offset", "last_epoch"}.

    Id, stop and epoch may be null.
    """

    version = 1

    def serialize(self, split: KafkaSplit) -> JsonObject:
        """The split as a JSON object."""
        return {
            "topic": split.topic,
            "topic_id": str(split.topic_id) if split.topic_id else None,
            "partition": split.partition,
            "next_offset": split.next_offset,
            "stop_offset": split.stop_offset,
            "last_epoch": split.last_epoch,
        }

    def deserialize(self, version: int, data: JsonObject) -> KafkaSplit:
        """The split that `serialize` wrote."""
        readable_version(version, self.version)
        topic_id = data["topic_id"]
        return KafkaSplit(
            topic=str(data["topic"]),
            topic_id=UUID(topic_id) if topic_id is not None else None,
            partition=int(data["partition"]),
            next_offset=int(data["next_offset"]),
            stop_offset=_int_or_none(data["stop_offset"]),
            last_epoch=_int_or_none(data["last_epoch"]),
        )


def _int_or_none(value: int | None) -> int | None:
    return None if value is None else int(value)
