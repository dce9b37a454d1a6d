"""SASL sessions that end, as `connections.max.reauth.ms` says (KIP-368)."""

import time

import pytest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import ConnectionLostError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.protocol import MetadataRequest
from headrace.testing.fake_kafka import ErrorCode, FakeKafka, StoppedClock

SESSION_S = 60
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="p";',
}


@pytest.fixture
def kafka():
    sessions = {"connections.max.reauth.ms": str(SESSION_S * 1000)}
    with FakeKafka(users={"a": "p", "b": "q"}, tokens={"token": "a"}, clock=StoppedClock(), config=sessions) as kafka:
        kafka.create_topic("t")
        yield kafka


@pytest.fixture
def config(kafka):
    return ClientConfig.from_properties({"bootstrap.servers": kafka.bootstrap, **LOGIN})


@pytest.fixture
def connection(kafka, config):
    host, port = kafka.address(1).split(":")
    opened = Connection(host, int(port), config)
    yield opened
    opened.close()


def asks(connection):
    return connection.request(MetadataRequest(topics=[])).brokers


def authenticates(connection, mechanism, message):
    assert connection.request(SaslHandshakeRequest(mechanism=mechanism)).error_code == ErrorCode.NONE
    return connection.request(SaslAuthenticateRequest(auth_bytes=message))


def test_clients_are_reported_how_long_a_session_is(connection):
    assert connection.expires_at - time.monotonic() <= 0.85 * SESSION_S
    assert connection.expires_at - time.monotonic() > 0.7 * SESSION_S - 10


def test_a_session_that_has_ended_is_truncated_when_it_is_used(kafka, connection):
    kafka.clock.advance(SESSION_S)
    assert asks(connection)
    kafka.clock.advance(0.001)
    with pytest.raises(ConnectionLostError):
        asks(connection)


@pytest.mark.parametrize("late_s", [0, 1])
@pytest.mark.parametrize(("mechanism", "message"), [("PLAIN", b"\0a\0p"), ("OAUTHBEARER", b"n,,\x01auth=Bearer token\x01\x01")])
def test_who_authenticates_again_continues_also_after_its_end(kafka, connection, late_s, mechanism, message):
    kafka.clock.advance(SESSION_S + late_s)
    answer = authenticates(connection, mechanism, message)
    assert (answer.error_code, answer.session_lifetime_ms) == (ErrorCode.NONE, SESSION_S * 1000)
    kafka.clock.advance(SESSION_S)
    assert asks(connection)


def test_no_process_becomes_another_process_else_by_it(connection):
    answer = authenticates(connection, "PLAIN", b"\0b\0q")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "Cannot change principals" in answer.error_message


def test_a_cluster_connects_again_where_its_sessions_have_ended(kafka, config):
    with KafkaCluster(config) as cluster:
        assert "t" in cluster.topics(["t"])
        kafka.clock.advance(SESSION_S + 1)
        assert "t" in cluster.topics(["t"])


def test_by_default_sessions_have_no_end():
    with FakeKafka(users={"a": "p"}, clock=StoppedClock()) as kafka:
        host, port = kafka.address(1).split(":")
        opened = Connection(host, int(port), ClientConfig.from_properties({"bootstrap.servers": kafka.bootstrap, **LOGIN}))
        assert opened.expires_at is None
        kafka.clock.advance(1e6)
        assert asks(opened)
        opened.close()
