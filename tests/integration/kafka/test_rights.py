"""Which rights a user of a broker that enforces ACLs needs, and what is said of one that lacks."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.lease import Heartbeat, HeartbeatState
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.client.errors import RefusedByBrokerError
from headrace.kafka import AtLeastOnceKafkaSink, Committed, Earliest, KafkaLease, KafkaSink, KafkaSource, Latest
from headrace.testing.servers.kafka import BrokerCluster, create_topic, start_broker
from tests.helpers.kafka_tools import produce
from tests.helpers.sink_rig import read_all

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]
USER, PASSWORD = "alice", "a-password"
LOGIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{USER}" password="{PASSWORD}";'
PROPERTIES = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": LOGIN}
ENFORCED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # who comes to the listener without a login
}


@dataclass(frozen=True)
class Right:
    """Of the test's user. `name` is without what all names of one test start with; that of an id is what the id starts with."""

    kind: ResourceType
    name: str
    operation: AclOperation

    def binding(self, prefix: str) -> AclBinding:
        is_id = self.kind is ResourceType.TRANSACTIONAL_ID
        pattern = ResourcePatternType.PREFIXED if is_id else ResourcePatternType.LITERAL
        return AclBinding(
            self.kind, prefix + self.name, pattern, f"User:{USER}", "*", self.operation, AclPermissionType.ALLOW
        )  # fmt: skip


READ_IN = Right(ResourceType.TOPIC, "in", AclOperation.READ)
READ_GROUP = Right(ResourceType.GROUP, "group", AclOperation.READ)
WRITE_OUT = Right(ResourceType.TOPIC, "out", AclOperation.WRITE)
WRITE_IDS = Right(ResourceType.TRANSACTIONAL_ID, "id", AclOperation.WRITE)
READ_COMMITS = Right(ResourceType.TOPIC, "commits", AclOperation.READ)
WRITE_COMMITS = Right(ResourceType.TOPIC, "commits", AclOperation.WRITE)
CREATE_COMMITS = Right(ResourceType.TOPIC, "commits", AclOperation.CREATE)


class Rig:
    """The topics of one test, `in` with two records, and what its user does there."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.prefix = uuid.uuid4().hex[:8]
        self._cluster, self._login = cluster, cluster.listeners["SASL_PLAINTEXT"]
        for topic in ("in", "out"):
            create_topic(cluster.bootstrap, self.prefix + topic)
        produce(cluster.bootstrap, self.prefix + "in", {0: [b"one", b"two"]})

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0})

    def grant(self, *rights: Right) -> None:
        for right in rights:
            (done,) = self._admin.create_acls([right.binding(self.prefix)]).values()
            done.result(30)

    def revoke(self, right: Right) -> None:
        one = right.binding(self.prefix)
        parts = (one.restype, one.name, one.resource_pattern_type, one.principal, one.host, one.operation, one.permission_type)
        for done in self._admin.delete_acls([AclBindingFilter(*parts)]).values():
            assert len(done.result(30)) == 1

    def source(self, **more: object) -> KafkaSource:
        return KafkaSource(self._login, columns=["value"], start=Earliest(), properties=PROPERTIES, **more)

    def topics(self, *names: str) -> list[str]:
        return [self.prefix + name for name in names]

    def read(self) -> None:
        assert sum(batch.num_rows for batch in self.source(topics=self.topics("in"), stop=Latest()).batches()) == 2

    def read_by_the_group(self) -> None:
        """Commits offsets, then starts from them."""
        grouped = self.source(topics=self.topics("in"), stop=Latest(), group=self.prefix + "group")
        with closing(grouped.batches()) as batches:
            assert sum(batch.num_rows for batch in batches) == 2
            batches.checkpoint()
            batches.checkpoint_completed()
        assert not list(replace(grouped, start=Committed()).batches())

    def write_exactly_once(self) -> None:
        prefixes = {"commit_topic": self.prefix + "commits", "transactional_id_prefix": self.prefix + "id"}
        sink = KafkaSink(self._login, topic=self.prefix + "out", properties=PROPERTIES, **prefixes)
        driver = JobCommitter("job", sink.committer("job"))
        driver.recover()
        with sink.begin(Attempt("job", 0, 0, 0)) as transaction:
            transaction.write(pa.record_batch({"value": [b"row"]}))
            handle = transaction.prepare()
        driver.commit(0, (handle,))
        assert sink.recorded_epochs() == {"job": 0}
        assert read_all(self._cluster.bootstrap, self.prefix + "out") == ["row"]

    def write_at_least_once(self) -> None:
        sink = AtLeastOnceKafkaSink(self._login, topic=self.prefix + "out", properties=PROPERTIES)
        with sink.begin(Attempt("job", 0, 0, 0)) as transaction:
            transaction.write(pa.record_batch({"value": [b"row"]}))
            transaction.prepare()
        assert read_all(self._cluster.bootstrap, self.prefix + "out") == ["row"]

    def lead(self) -> None:
        lease = KafkaLease(
            self._login, self.prefix + "group", commit_topic=self.prefix + "commits", properties=PROPERTIES, timeout_s=30
        )  # fmt: skip
        heartbeat = Heartbeat(0, "supervisor", 0, HeartbeatState.LEADING, "host")
        lease.write(heartbeat)
        assert lease.read() == heartbeat


ENOUGH = [
    (Rig.read, [READ_IN]),
    (Rig.read_by_the_group, [READ_IN, READ_GROUP]),
    (Rig.write_exactly_once, [WRITE_OUT, WRITE_IDS, READ_COMMITS, WRITE_COMMITS, CREATE_COMMITS]),
    (Rig.write_at_least_once, [WRITE_OUT]),
    (Rig.lead, [READ_GROUP, READ_COMMITS, CREATE_COMMITS]),
]
"""What the table in docs/how-to/security.md lists. Read and Write contain Describe."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[BrokerCluster]:
    if "HEADRACE_BOOTSTRAP" in os.environ:
        pytest.skip("an external cluster has its own users")
    with start_broker(security=("SASL_PLAINTEXT",), users={USER: PASSWORD}, config=ENFORCED) as started:
        yield started


@pytest.fixture
def rig(cluster):
    return Rig(cluster)


@pytest.mark.parametrize(("work", "rights"), ENOUGH, ids=lambda value: getattr(value, "__name__", ""))
def test_the_rights_of_the_table_are_enough(rig, work: Callable[[Rig], None], rights: list[Right]):
    rig.grant(*rights)
    work(rig)


LACKING = [
    pytest.param(work, rights, lacking, id=f"{work.__name__}-{lacking.operation.name}-{lacking.name}")
    for work, rights in ENOUGH
    for lacking in rights
]


@pytest.mark.parametrize(("work", "rights", "lacking"), LACKING)
def test_a_right_that_lacks_is_named(rig, work, rights, lacking):
    """At once, and not tried again. Regression: who could not write was advised to ask for the right to read."""
    rig.grant(*(right for right in rights if right != lacking))
    with pytest.raises(RefusedByBrokerError) as caught:
        work(rig)
    text = str(caught.value)
    assert rig.prefix + lacking.name in text
    assert lacking.operation.name.capitalize() in text.partition("grant this user ")[2] or "create it beforehand" in text


@pytest.mark.parametrize("subscribed", ["pattern", "topics"])
def test_a_topic_whose_right_is_revoked_is_not_taken_for_deleted(rig, cluster, subscribed):
    """A broker leaves a topic that a user may not see out of its list, as one that is gone. Granted again, it is read on."""
    right = Right(ResourceType.TOPIC, "out", AclOperation.READ)
    rig.grant(READ_IN, right)
    given = {"pattern": rig.prefix + "(in|out)", "topics": rig.topics("in", "out")}[subscribed]
    source = rig.source(discovery_interval_s=0.2, **{subscribed: given})
    with closing(source.batches()) as batches:
        assert next(batches).num_rows == 2
        checkpoint = batches.checkpoint()
        rig.revoke(right)
        with pytest.raises(RefusedByBrokerError, match="grant this user Read on the topic"):
            next(batches)
    rig.grant(right)
    produce(cluster.bootstrap, rig.prefix + "out", {0: [b"later"]})
    with closing(source.batches(checkpoint)) as batches:
        assert next(batches).column("value").to_pylist() == [b"later"]
