"""The committables of each job as stored in the commit topic: the transactions that must be committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC, TransactionName, parse_key
from headrace.enumerator.errors import StateError

if TYPE_CHECKING:
    from headrace.connectors.base.sink import CommitList
    from headrace.connectors.kafka.client.cluster import KafkaCluster
    from headrace.connectors.kafka.write.handles import KafkaHandle


@dataclass(frozen=True, slots=True)
class DurableLists:
    """Key to list of committables, see `names.py`. `unreadable`: key to the reason (damaged, or newer)."""

    topic: str
    lists: Mapping[str, CommitList[KafkaHandle]] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def incomplete(self) -> dict[str, CommitList[KafkaHandle]]:
        return {key: commits for key, commits in self.lists.items() if not commits.completed}

    def unreadable_of(self, name: TransactionName) -> str | None:
        """Why a list that may name this transaction cannot be read; None when there is none such."""
        for key, reason in self.unreadable.items():
            found = parse_key(key)
            if (found.job, found.digest) == (name.job, name.digest):
                return reason
        return None

    def holder(self, transactional_id: str) -> tuple[str, int] | None:
        """The job and epoch whose list names this transactional id; None when no list does."""
        for key, commits in self.incomplete().items():
            if commits.epoch is not None and any(handle.transactional_id == transactional_id for handle in commits.handles):
                return parse_key(key).job, commits.epoch
        return None


def read_lists(cluster: KafkaCluster, topic: str) -> DurableLists:
    """All lists in a commit topic. Waits until open writes to it have ended.

    The default topic has none where it does not exist. Another one was named: raises UnknownTopicError, as a transaction on a
    list must not be taken for one on none.
    """
    from headrace.connectors.kafka.write.commit_log import CommitLog

    records = CommitLog(cluster, topic).read()
    if not records and topic != DEFAULT_COMMIT_TOPIC:
        cluster.topics([topic])
    return parse_lists(topic, records)


def parse_lists(topic: str, records: Mapping[str, bytes]) -> DurableLists:
    from headrace.connectors.base.commit_list import CommitListSerializer
    from headrace.connectors.kafka.write.handles import KafkaHandleSerializer

    serializer = CommitListSerializer(KafkaHandleSerializer())
    lists: dict[str, CommitList[KafkaHandle]] = {}
    unreadable: dict[str, str] = {}
    for key, data in sorted(records.items()):
        try:
            lists[key] = serializer.deserialize(data, f"{topic}, key {key!r}")
        except StateError as error:
            unreadable[key] = str(error)
    return DurableLists(topic, lists, unreadable)
