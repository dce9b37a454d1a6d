"""Where leader epochs end in the logs as they are now: OffsetForLeaderEpoch, one request per leader (KIP-101, KIP-320)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from headrace.connectors.kafka.client.calls import Calls
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import broker_error
from headrace.connectors.kafka.client.metadata import Metadata
from headrace.connectors.kafka.client.retries import Retries
from headrace.connectors.kafka.client.topology import Broker, TopicPartition
from headrace.connectors.kafka.client.wire.protocol import Message, OffsetForLeaderEpochRequest
from headrace.enumerator.errors import RetriableError

__all__ = ["EpochEnds"]

_NO_LEADER_EPOCH = -1
_CONSUMER = -1


class EpochEnds:
    """Asks the leaders of partitions. Thread-safe; has no state of its own."""

    def __init__(self, calls: Calls, retries: Retries, metadata: Metadata) -> None:
        """Contacts nothing."""
        self._calls, self._retries, self._metadata = calls, retries, metadata

    def ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See `KafkaCluster.epoch_ends`. A try asks only for what the tries before it have not answered."""
        answers: dict[TopicPartition, int | None] = {}

        def ask() -> dict[TopicPartition, int | None]:
            failures: list[RetriableError] = []
            pending = {tp: epoch for tp, epoch in epochs.items() if tp not in answers}
            for leader, partitions in self._by_leader(pending, failures).items():
                try:
                    self._ask(leader, partitions, answers, failures)
                except RetriableError as error:
                    self._metadata.invalidate({topic for topic, _ in partitions})
                    failures.append(error)
            if failures:
                raise failures[0]
            return answers

        return self._retries.run("looking up leader epochs", ask)

    def _by_leader(
        self, epochs: Mapping[TopicPartition, int], failures: list[RetriableError]
    ) -> dict[Broker, dict[TopicPartition, tuple[int, int]]]:
        """For each leader its partitions, with the epoch that is asked for and the one that we know it to lead in."""
        self._metadata.warm({topic for topic, _ in epochs})
        grouped: dict[Broker, dict[TopicPartition, tuple[int, int]]] = defaultdict(dict)
        for tp, epoch in epochs.items():
            try:
                leader = self._metadata.leader(*tp)
            except RetriableError as error:
                failures.append(error)
            else:
                grouped[leader.broker][tp] = (epoch, _NO_LEADER_EPOCH if leader.epoch is None else leader.epoch)
        return grouped

    def _ask(
        self,
        broker: Broker,
        partitions: Mapping[TopicPartition, tuple[int, int]],
        answers: dict[TopicPartition, int | None],
        failures: list[RetriableError],
    ) -> None:
        for topic in self._calls.call(broker, _request(partitions)).topics:
            for item in topic.partitions:
                tp = (topic.topic, item.partition)
                if item.error_code == ErrorCode.NONE:
                    answers[tp] = item.end_offset if item.end_offset >= 0 and item.leader_epoch >= 0 else None
                    continue
                self._metadata.invalidate([topic.topic])
                error = broker_error(item.error_code, f"looking up a leader epoch of {tp[0]}-{tp[1]} at {broker}")
                if not isinstance(error, RetriableError):
                    raise error
                failures.append(error)


def _request(partitions: Mapping[TopicPartition, tuple[int, int]]) -> Message:
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for (topic, partition), (epoch, current) in partitions.items():
        by_topic[topic].append(
            topic_class.OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
        )
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER, topics=[topic_class(topic=topic, partitions=items) for topic, items in by_topic.items()]
    )
