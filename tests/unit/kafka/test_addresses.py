"""The bootstrap addresses, by name or by canonical name."""

from __future__ import annotations

import socket

import pytest

from headrace.connectors.kafka.client.errors import ConnectionLostError
from headrace.connectors.kafka.client.properties import ClientConfig, DnsLookup
from headrace.connectors.kafka.client.wire.addresses import bootstrap_addresses
from headrace.kafka import KafkaSource, Latest
from headrace.testing.fake_kafka import FakeKafka
from tests.helpers.kafka_rig import read_all

CANONICAL = DnsLookup.RESOLVE_CANONICAL_BOOTSTRAP_SERVERS_ONLY
NAMES = {"10.0.0.1": "one.example", "10.0.0.2": "two.example"}


@pytest.fixture
def names(monkeypatch):
    """A name service that knows one alias."""

    def addresses(host, port, **_):
        if host != "alias":
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in NAMES]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    monkeypatch.setattr(socket, "getnameinfo", lambda address, _: (NAMES[address[0]], str(address[1])))


def test_an_alias_is_left_as_it_is_by_default(names):
    assert bootstrap_addresses(ClientConfig(bootstrap="alias:1")) == (("alias", 1),)


def test_the_canonical_names_of_all_addresses_of_an_alias_take_its_place(names):
    config = ClientConfig(bootstrap="gone:7,alias:1", client_dns_lookup=CANONICAL)
    assert bootstrap_addresses(config) == (("one.example", 1), ("two.example", 1))


def test_an_alias_that_the_name_service_does_not_know_is_an_error_that_may_pass(names):
    with pytest.raises(ConnectionLostError, match=r"no address of gone:1 .*unknown"):
        bootstrap_addresses(ClientConfig(bootstrap="gone:1", client_dns_lookup=CANONICAL))


def test_a_topic_is_read_through_canonical_names_and_with_other_values_that_java_takes():
    with FakeKafka() as kafka:
        kafka.create_topic("t")
        kafka.append("t", b"x")
        others = {"connections.max.idle.ms": "-1", "fetch.min.bytes": "0"}
        properties = {"client.dns.lookup": "resolve_canonical_bootstrap_servers_only", **others}
        source = KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest(), properties=properties)
        assert [value for *_, value in read_all(source)] == [b"x"]


@pytest.mark.parametrize(("excluded", "topics"), [("true", set()), ("false", {"__consumer_offsets"})])
def test_a_pattern_matches_internal_topics_where_they_are_not_excluded(excluded, topics):
    with FakeKafka() as kafka:
        kafka.create_topic("__consumer_offsets")
        source = KafkaSource(kafka.bootstrap, pattern=".*", properties={"exclude.internal.topics": excluded})
        assert {split.topic for split in source.create_discovery().initial().added} == topics
