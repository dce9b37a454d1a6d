"""The committables of each job as stored in the commit topic: the transactions that must be committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.enumerator.errors import StateError

if TYPE_CHECKING:
    from headrace.connectors.kafka.client.cluster import KafkaCluster
    from headrace.connectors.kafka.write.handles import KafkaHandle
    from headrace.connectors.sink import CommitList


@dataclass(frozen=True, slots=True)
class DurableLists:
    """Job to its list of committables. `unreadable`: job to the reason (damaged, or written by a newer headrace)."""

    topic: str
    lists: Mapping[str, CommitList[KafkaHandle]] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def incomplete(self) -> dict[str, CommitList[KafkaHandle]]:
        """The lists whose transactions are not all committed yet."""
        return {job: commits for job, commits in self.lists.items() if not commits.completed}

    def holder(self, transactional_id: str) -> tuple[str, int] | None:
        """The job and epoch whose list names this transactional id; None when no list does."""
        for job, commits in self.incomplete().items():
            if any(handle.transactional_id == transactional_id for handle in commits.handles):
                return job, commits.epoch
        return None


def read_lists(cluster: KafkaCluster, topic: str) -> DurableLists:
    """All lists in a commit topic; empty if the topic does not exist. Waits until open writes to it have ended."""
    from headrace.connectors.kafka.write.commit_log import CommitLog

    return parse_lists(topic, CommitLog(cluster, topic).read())


def parse_lists(topic: str, records: Mapping[str, bytes]) -> DurableLists:
    """Parse the records of a commit topic, given by job."""
    from headrace.connectors.kafka.write.handles import KafkaHandleSerializer
    from headrace.connectors.sink import CommitListSerializer

    serializer = CommitListSerializer(KafkaHandleSerializer())
    lists: dict[str, CommitList[KafkaHandle]] = {}
    unreadable: dict[str, str] = {}
    for job, data in sorted(records.items()):
        try:
            lists[job] = serializer.deserialize(data, f"{topic}, job {job!r}")
        except StateError as error:
            unreadable[job] = str(error)
    return DurableLists(topic, lists, unreadable)
