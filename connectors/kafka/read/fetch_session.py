"""A fetch session (KIP-227): the broker remembers which partitions it is asked for, and answers with those that have news.

So neither a request nor its answer grows with partitions that nothing happens to. Sans-I/O; owned by the thread that fetches
from its broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.fetch import PartitionFetch, SessionPart
from headrace.connectors.kafka.client.topology import TopicPartition
from headrace.connectors.kafka.format.fetch_protocol import FetchAnswer, PartitionAnswer
from headrace.connectors.kafka.read.fetch_plan import Asked

_NO_ID, _FIRST_EPOCH, _FINAL_EPOCH, _LAST_EPOCH = 0, 0, -1, 2**31 - 1

FORGOTTEN = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""The broker has the session no more, or another state of it: a new one starts, and nothing is lost."""


@dataclass(slots=True)
class FetchSession:
    """What one broker remembers. `asked` are the partitions in flight: those of which it has reported nothing since."""

    asked: dict[TopicPartition, Asked] = field(default_factory=dict)
    _id: int = _NO_ID
    _epoch: int = _FIRST_EPOCH
    _remembered: dict[TopicPartition, PartitionFetch] = field(default_factory=dict)
    _topics: dict[UUID | None, str] = field(default_factory=dict)
    _answered: set[TopicPartition] = field(default_factory=set)

    @property
    def is_incremental(self) -> bool:
        """Whether the next request, or the one under way, is about changes."""
        return self._epoch > _FIRST_EPOCH

    def next(self, taken: Iterable[Asked]) -> tuple[list[PartitionFetch], SessionPart]:
        """What is to be sent to fetch `taken` and all that is in flight."""
        wanted: list[PartitionFetch] = []
        forgotten: list[PartitionFetch] = []
        for item in taken:
            fetch, before = item.fetch(), self._remembered.get(item.key)
            if fetch != before:
                wanted.append(fetch)
            if before is not None and before.topic_id != fetch.topic_id:
                forgotten.append(before)
            self._remembered[item.key], self.asked[item.key] = fetch, item
            self._topics[item.topic_id] = item.topic
            self._answered.discard(item.key)
        forgotten += [self._remembered.pop(key) for key in self._answered]
        self._answered.clear()
        return wanted, SessionPart(self._id, self._epoch, forgotten)

    def answered(self, answer: FetchAnswer) -> tuple[list[tuple[Asked, PartitionAnswer]], list[Asked]]:
        """Partitions with what was answered, and those that a full answer leaves out. Neither is in flight any more."""
        found: list[tuple[Asked, PartitionAnswer]] = []
        for part in answer.partitions:
            topic = self._topics.get(part.topic_id) if part.topic is None else part.topic
            item = None if topic is None else self.asked.get((topic, part.partition))
            if item is not None and (part.topic is not None or item.topic_id == part.topic_id):
                self.leave(item.key)
                found.append((item, part))
        if self.is_incremental:
            self._epoch = self._epoch % _LAST_EPOCH + 1
            return found, []
        left_out = list(self.asked.values())
        if answer.session_id == _NO_ID or left_out:
            self.reset()
        else:
            self._id, self._epoch = answer.session_id, _FIRST_EPOCH + 1
        return found, left_out

    def leave(self, key: TopicPartition) -> Asked | None:
        """The partition is not in flight any more; the next request has the broker forget it, unless it is taken again."""
        item = self.asked.pop(key, None)
        if item is not None:
            self._answered.add(key)
        return item

    def reset(self) -> list[Asked]:
        """The next request starts another session. Returns what was in flight."""
        asked = list(self.asked.values())
        for kept in (self.asked, self._remembered, self._topics, self._answered):
            kept.clear()
        self._id, self._epoch = _NO_ID, _FIRST_EPOCH
        return asked

    def end(self) -> list[Asked]:
        """The next request is without a session, and closes the one that there is. Returns what was in flight."""
        session_id = self._id
        asked = self.reset()
        self._id, self._epoch = session_id, _FINAL_EPOCH
        return asked
