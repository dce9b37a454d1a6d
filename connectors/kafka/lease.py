"""A lease store in Kafka: the heartbeat is the metadata of an offset that its own consumer group has committed.

The group has no members. Its coordinator keeps the last commit alone, in a topic that no job reads; so twice a second costs
next to nothing, and what a heartbeat replaces is gone. Brokers take offsets of topics only that are there: the commit topic is,
and no program reads it by a group. Kafka's own tools may still reset the group's offsets. They leave no metadata, which is as
if nothing was written yet: the leader replaces it with its next heartbeat, and for a follower it is a poll without a heartbeat.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.connectors.base.arguments import seconds, text
from headrace.connectors.base.lease import LEAST_TIMEOUT_S, Heartbeat, LeaseStore, parse_heartbeat
from headrace.connectors.kafka.client.arguments import client_config
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.properties import ClientConfig, Isolation
from headrace.connectors.kafka.client.sasl import SaslConfig
from headrace.connectors.kafka.write.commit_log import CommitLog
from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC
from headrace.enumerator.errors import StateError, UsageError

DEFAULT_LEASE_TIMEOUT_S = 5.0
_PARTITION = 0
_LONGEST_CALL_MS = 2_000


@dataclass(frozen=True)
class KafkaLease(LeaseStore):
    """Where the supervisors of one job say which of them leads. Arguments, all but the first two by keyword:

    - `bootstrap`: `host:port`, several with commas between.
    - `group`: the consumer group that represents the job: the same on all hosts, and no other job's. It takes the right to Read
      it, and the commit topic.
    - `timeout_s`: a leader that has said nothing new for this many seconds is taken for dead; 5 by default, at least 1.5.
    - `commit_topic`: the topic whose offset is committed; default "headrace-commits". Made if need be.
    - `properties`, `sasl`: as `KafkaSink`.

    A value that is checked when made; does no I/O. Raises UsageError for what contradicts itself.
    """

    bootstrap: str
    group: str
    timeout_s: float = field(default=DEFAULT_LEASE_TIMEOUT_S, kw_only=True)
    commit_topic: str = field(default=DEFAULT_COMMIT_TOPIC, kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False, hash=False)
    sasl: SaslConfig | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not isinstance(self.group, str) or not self.group.strip():
            raise UsageError(f"a lease needs the name of a consumer group, not {self.group!r}")
        text("commit_topic", self.commit_topic)
        seconds("timeout_s", self.timeout_s)
        if self.timeout_s < LEAST_TIMEOUT_S:
            raise UsageError(f"the lease's timeout must be at least {LEAST_TIMEOUT_S:g} s, not {self.timeout_s}")
        _ = self.config

    @functools.cached_property
    def config(self) -> ClientConfig:
        """Of calls that end long before the timeout: an answer that comes later is of no use."""
        given = client_config(self.bootstrap, self.properties, {}, sasl=self.sasl)
        longest_ms = min(_LONGEST_CALL_MS, int(self.timeout_s * 500))
        call_ms = min(longest_ms, given.default_api_timeout_ms or longest_ms)
        return replace(
            given,
            default_api_timeout_ms=call_ms,
            request_timeout_ms=min(given.request_timeout_ms, call_ms),
            isolation=Isolation.READ_UNCOMMITTED,  # no transaction of another process's is waited for
        )

    @property
    def where(self) -> str:
        """The group and the cluster."""
        return f"the lease in group {self.group!r} at {self.bootstrap}"

    @functools.cached_property
    def _cluster(self) -> KafkaCluster:
        return KafkaCluster(self.config)

    def read(self) -> Heartbeat | None:
        """Ask the group's coordinator. None also for an offset that was reset. Raises StateError for what is not a
        heartbeat.
        """
        key = (self.commit_topic, _PARTITION)
        found = self._cluster.committed_offsets(self.group, [key])[key]
        if found is None or not found.metadata:
            return None
        try:
            return parse_heartbeat(found.metadata, self.where)
        except StateError as error:
            raise StateError(f"{error}. {self._advice}") from error

    @property
    def _advice(self) -> str:
        """What to do about metadata that is not a heartbeat of this version: no leader writes over it."""
        return (
            "Supervisors of one job run the same headrace. If another program commits offsets of this group, give the job a "
            "group of its own (--lease-group); if none does any more, delete what it has left: kafka-consumer-groups.sh "
            f"--delete-offsets --group {self.group} --topic {self.commit_topic}"
        )

    def write(self, heartbeat: Heartbeat) -> None:
        """Commit it at the group's coordinator. The offset counts heartbeats, for who looks with other tools."""
        if not heartbeat.number:
            CommitLog(self._cluster, self.commit_topic).create()
        self._cluster.commit_offsets(
            self.group, {(self.commit_topic, _PARTITION): CommittedOffset(heartbeat.number, metadata=heartbeat.serialize())}
        )
