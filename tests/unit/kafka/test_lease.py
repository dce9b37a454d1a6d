"""A lease store in Kafka's protocol: what one supervisor writes another one sees, and what cannot be is an error soon."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from headrace.connectors.base.lease import Heartbeat, HeartbeatState
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.enumerator.errors import DeadlineExceededError, RetriableError, StateError, UsageError
from headrace.kafka import KafkaLease
from headrace.testing import FakeKafka

HEARTBEAT = Heartbeat(1, "a", 0, HeartbeatState.LEADING, "host-a")


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        yield cluster


def test_what_one_host_writes_the_other_sees_and_only_the_last(kafka):
    one, other = (KafkaLease(kafka.bootstrap, "job") for _ in range(2))
    assert one.read() is other.read() is None
    for number in range(3):
        one.write(Heartbeat(1, "a", number, HeartbeatState.LEADING, "host-a"))
    assert other.read() == Heartbeat(1, "a", 2, HeartbeatState.LEADING, "host-a")
    other.write(Heartbeat(2, "b", 0, HeartbeatState.LEADING, "host-b"))
    assert one.read() == Heartbeat(2, "b", 0, HeartbeatState.LEADING, "host-b")


def test_jobs_are_apart(kafka):
    KafkaLease(kafka.bootstrap, "one").write(HEARTBEAT)
    assert KafkaLease(kafka.bootstrap, "another").read() is None


def test_a_lease_store_that_is_away_is_said_to_be_long_before_the_timeout(kafka):
    lease = KafkaLease(kafka.bootstrap, "job", timeout_s=2.0)
    lease.write(HEARTBEAT)
    kafka.close()
    for ask in (lease.read, lambda: lease.write(HEARTBEAT)):
        started_at = time.monotonic()
        with pytest.raises((RetriableError, DeadlineExceededError)):
            ask()
        assert time.monotonic() - started_at < 2.0


def committed_by_another(kafka, metadata):
    """The lease store after it was written to by a supervisor, and then by a program that knows nothing of leases."""
    lease = KafkaLease(kafka.bootstrap, "job")
    lease.write(HEARTBEAT)
    lease._cluster.commit_offsets("job", {("headrace-commits", 0): CommittedOffset(7, metadata=metadata)})
    return lease


def test_offsets_that_another_process_has_reset_are_as_none_and_the_next_heartbeat_replaces_them(kafka):
    """As by `kafka-consumer-groups.sh --reset-offsets`. It was an error for ever, and no process could take over."""
    lease = committed_by_another(kafka, metadata="")
    assert lease.read() is None
    lease.write(replace(HEARTBEAT, number=1))
    assert lease.read() == replace(HEARTBEAT, number=1)


def test_a_group_of_another_program_is_no_lease_store_and_the_error_says_what_to_do(kafka):
    lease = committed_by_another(kafka, metadata="its own")
    with pytest.raises(StateError, match=r"the lease in group 'job'.*--lease-group.*--delete-offsets --group job --topic head"):
        lease.read()


@pytest.mark.parametrize(("group", "how", "says"), [
    ("", {}, "name of a consumer group"), ("j", {"timeout_s": 1.0}, r"at least 1\.5 s"),
    ("j", {"properties": {"x.y": "z"}}, "x.y"),
])  # fmt: skip
def test_what_cannot_be_is_refused_without_a_contact(group, how, says):
    with pytest.raises(UsageError, match=says):
        KafkaLease("127.0.0.1:1", group, **how)
