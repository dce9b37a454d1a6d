"""Whether a topic is still the one that was read: what brokers answer by name, judged. No I/O.

Names are used again, and one broker may lag behind for as long as it likes. So no broker is believed alone: a topic is gone
when no broker knows it under its id, and offsets that were asked for by name count only if it was the same topic after that
(I5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from headrace.connectors.kafka.client.errors import (
    OffsetOutOfRangeError,
    TopicRecreatedError,
    UnknownPartitionError,
    UnknownTopicError,
)
from headrace.connectors.kafka.client.topology import TopicMetadata
from headrace.enumerator.errors import DataLossError, HeadraceError, RetriableError

Answers = Sequence[Mapping[str, TopicMetadata | None]]
"""What every live broker knows of some topics, each for itself: see `KafkaCluster.find_topics_everywhere`."""


def absence(topic: str, partition: int, topic_id: UUID | None, answers: Answers) -> HeadraceError:
    """What it means that one broker did not know this partition of the topic with this id (None: not learnt yet).

    RetriableError while any broker knows it; else TopicRecreatedError, or UnknownTopicError when there is no such name or
    no such partition.
    """
    known = [found for answer in answers if (found := answer[topic]) is not None]
    own = [found for found in known if topic_id is None or found.topic_id == topic_id]
    if any(partition in found.partitions for found in own):
        return RetriableError(f"some brokers do not know {topic}-{partition}, and others do")
    if known and not own:
        other = known[0].topic_id
        return TopicRecreatedError(topic, str(topic_id), None if other is None else str(other))
    return UnknownPartitionError(topic, partition) if own else UnknownTopicError({topic})


def is_same(topic: str, topic_id: UUID | None, answers: Answers) -> bool:
    """Whether what was asked for by name before these answers were given was said of the topic with this id.

    The leader of another topic of that name knew that one's id, and is among those that answer now.
    """
    known = {found.topic_id for answer in answers if (found := answer[topic]) is not None}
    return topic_id is None or known == {topic_id}


def range_outcome(
    topic: str, partition: int, offset: int, stop: int | None, bounds: tuple[int | None, int | None]
) -> HeadraceError:
    """What it means that an offset was refused, now that the leader has said which offsets it has (earliest, next)."""
    earliest, latest = bounds
    if stop is not None and latest == offset:
        return DataLossError(
            f"{topic}-{partition}: the log ends at offset {latest}, and this read was planned up to "
            f"{stop}: offsets {latest} to {stop - 1} are gone, the log was truncated meanwhile"
        )
    if earliest is None or latest is None or earliest <= offset <= latest:
        return RetriableError(f"{topic}-{partition}: offset {offset} is in range after all")
    return OffsetOutOfRangeError(topic, partition, offset, earliest, latest)
