"""What operators do: quotas, and partitions that are moved to other brokers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest

from benchmarks.chaos.faults.fault import Fault, Kind, NotHappenedError, has_transactions, is_embedded, writes_topic
from benchmarks.chaos.subject import Subject
from benchmarks.chaos.testbed import CLIENT_ID, GROUPS, TRANSACTIONS, Names, Testbed
from headrace.enumerator.errors import RetriableError
from headrace.runners.waiting import wait_until

ANSWER_MS = 15_000
ASK_S = 120.0
MOVE_S = 60.0
PREFERRED = 0
QUOTAS: Mapping[str, float] = {"consumer_byte_rate": 5_000, "producer_byte_rate": 5_000, "request_percentage": 1}


class Quota(Fault):
    """Every client without its own quota gets one, far below what the job needs. The load has it as well."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random, key: str) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator)
        self._key = key

    def apply(self) -> str:
        """From now on."""
        self._alter(QUOTAS[self._key], remove=False)
        return f"{self._key} {QUOTAS[self._key]:g}"

    def prove(self) -> str:
        """The cluster knows it."""
        if self._known() != {self._key: QUOTAS[self._key]}:
            raise NotHappenedError(f"the quotas are {self._known()}")
        return "the cluster has the quota"

    def heal(self) -> None:
        """No quota."""
        self._alter(0.0, remove=True)

    def _alter(self, value: float, *, remove: bool) -> None:
        entry_of = AlterClientQuotasRequest.EntryData
        everyone = entry_of.EntityData(entity_type="client-id", entity_name=None)
        entry = entry_of(entity=[everyone], ops=[entry_of.OpData(key=self._key, value=value, remove=remove)])
        (answer,) = _send(self.testbed, AlterClientQuotasRequest(entries=[entry], validate_only=False)).entries
        if answer.error_code:
            raise RuntimeError(f"the quota was refused: error {answer.error_code}, {answer.error_message}")

    def _known(self) -> dict[str, float]:
        default = DescribeClientQuotasRequest.ComponentData(entity_type="client-id", match_type=1, match=None)
        entries = _send(self.testbed, DescribeClientQuotasRequest(components=[default], strict=True)).entries
        return {value.key: value.value for entry in entries or () for value in entry.values}


def _send(testbed: Testbed, request: object) -> Any:  # noqa: ANN401 - kafka-python generates the class at run time
    """As often as it takes, each time over its own connection: a broker is slow to answer who has used up its quota."""
    answers: list[Any] = []

    def attempt() -> None:
        try:
            answers.append(_answer(testbed, request))
        except KafkaError as error:
            raise RetriableError(f"{type(error).__name__}: {error}") from error

    wait_until(attempt, "no broker answers about quotas", ASK_S)
    return answers[0]


def _answer(testbed: Testbed, request: object) -> Any:  # noqa: ANN401 - as above
    client = KafkaNetClient(bootstrap_servers=testbed.bootstrap.split(","), request_timeout_ms=ANSWER_MS, client_id=CLIENT_ID)
    try:
        client.check_version(timeout_ms=ANSWER_MS)
        node = next(iter(client.cluster.brokers())).node_id
        return client.send_and_receive(node, request, timeout_ms=ANSWER_MS)
    finally:
        client.close()


class Reassigned(Fault):
    """Every partition of a topic gets other leaders, and is for a while with two replicas of three."""

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random, topic: Callable[[Names], str]) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator)
        self._topic_of = topic
        self._topic = ""
        self._before: dict[int, int] = {}

    def apply(self) -> str:
        """Two replicas; the leader's is not among them."""
        self._topic = self._topic_of(self.subject.names)
        self._before = {number: each.leader_id for number, each in self.testbed.partitions(self._topic).items()}
        self._move({number: [node for node in self.testbed.nodes if node != at] for number, at in self._before.items()})
        return self._topic

    def prove(self) -> str:
        """The leaders are others."""
        now = {number: each.leader_id for number, each in self.testbed.partitions(self._topic).items()}
        same = [number for number, node in self._before.items() if now[number] == node]
        if same:
            raise NotHappenedError(f"partitions {same} are where they were")
        return f"{len(now)} leaders moved"

    def heal(self) -> None:
        """Three replicas again, in their own order each."""
        if self._before:
            self._move({number: self.random.sample(list(self.testbed.nodes), 3) for number in self._before})

    def _move(self, replicas: Mapping[int, list[int]]) -> None:
        wanted = {TopicPartition(self._topic, number): nodes for number, nodes in replicas.items()}
        with self.testbed.admin() as admin:
            refused = {where: error for where, error in admin.alter_partition_reassignments(wanted).items() if error}
        if refused:
            raise RuntimeError(f"the reassignment was refused: {refused}")

        def check() -> None:
            found = self.testbed.partitions(self._topic)
            for number, nodes in replicas.items():
                if set(found[number].replica_nodes) != set(nodes) or found[number].leader_id not in nodes:
                    raise RetriableError(f"partition {number} is on {found[number].replica_nodes}")

        wait_until(check, f"{self._topic} was not moved", MOVE_S)


def _moved(topic: Callable[[Names], str]) -> Callable[[Testbed, Subject, random.Random], Fault]:
    return lambda testbed, subject, generator: Reassigned(testbed, subject, generator, topic)


def _limited(key: str) -> Callable[[Testbed, Subject, random.Random], Fault]:
    return lambda testbed, subject, generator: Quota(testbed, subject, generator, key)


KINDS = (
    *(Kind(f"quota: {key}", "administration", _limited(key), 3, 6) for key in QUOTAS),
    Kind("input reassigned", "administration", _moved(lambda names: names.source), 0.5, 2),
    Kind("output reassigned", "administration", _moved(lambda names: names.target), 0.5, 2, writes_topic),
    Kind("transaction log reassigned", "administration", _moved(lambda _names: TRANSACTIONS), 0.5, 2, has_transactions),
    Kind("group offsets reassigned", "administration", _moved(lambda _names: GROUPS), 0.5, 2, is_embedded),
)
