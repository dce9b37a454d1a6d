"""TLS and SASL against a real broker."""

import logging
import os
import socket
import time
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import ConnectionLostError, TlsError
from headrace.connectors.kafka.client.positions import Latest
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.protocol import MetadataRequest
from headrace.connectors.kafka.read.fetcher import FetchedData, Fetcher, FetchFrom
from headrace.enumerator.errors import AuthenticationError, CorruptDataError, is_retriable
from headrace.testing.servers.kafka import start_broker
from headrace.testing.servers.kafka.security import make_certificates
from tests.helpers.kafka_tools import created, produce

pytestmark = pytest.mark.broker
USER, PASSWORD = "alice", "s;e'c r#et-hunter2"
SESSION_MS = 3000
MODULES = {"PLAIN": "plain.PlainLoginModule"}
MODULES |= dict.fromkeys(("SCRAM-SHA-256", "SCRAM-SHA-512"), "scram.ScramLoginModule")


@pytest.fixture(scope="module")
def secured():
    if "HEADRACE_BOOTSTRAP" in os.environ:
        pytest.skip("an external cluster has its own listeners and users")
    config = {"connections.max.reauth.ms": str(SESSION_MS)}
    with start_broker(security=("SSL", "SASL_PLAINTEXT", "SASL_SSL"), users={USER: PASSWORD}, config=config) as cluster:
        yield cluster


def client(cluster, protocol: str, mechanism: str = "PLAIN", password: str = PASSWORD, **more: str) -> ClientConfig:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    assert cluster.certificates is not None
    return ClientConfig.from_properties(
        {
            "bootstrap.servers": cluster.listeners[protocol],
            "security.protocol": protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(cluster.certificates.ca),
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"org.apache.kafka.common.security.{MODULES[mechanism]} required "
            f'username="{USER}" password="{quoted}";',
            "default.api.timeout.ms": "10000",
            "request.timeout.ms": "5000",
        }
        | {name.replace("_", "."): value for name, value in more.items()}
    )


def connect(config: ClientConfig) -> Connection:
    return Connection(*config.bootstrap_servers[0], config)


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [("SSL", "PLAIN")] + [(protocol, mechanism) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MODULES],
)
def test_reading_over_every_protocol_and_mechanism(secured, topic, protocol, mechanism):
    name, written = created(secured.bootstrap, topic), [b"%d" % number * 200 for number in range(2000)]
    produce(secured.bootstrap, name, {0: written})
    with KafkaCluster(client(secured, protocol, mechanism)) as kafka:
        end = kafka.list_offsets({(name, 0): Latest()})[name, 0].offset
        assert end == len(written)
        size, reached = 0, 0
        with Fetcher(kafka, [FetchFrom(name, 0, 0, stop=end)]) as fetcher:
            while not fetcher.done:
                item = fetcher.poll(10)
                assert isinstance(item, FetchedData)
                assert item.fetch_offset == reached
                reached, size = item.next_offset, size + len(item.records)
    assert reached == len(written)
    assert size > sum(map(len, written))


@pytest.mark.parametrize("mechanism", MODULES)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_wrong_password_is_refused_at_once_and_shown_to_no_process(secured, protocol, mechanism, caplog):
    caplog.set_level(logging.DEBUG)
    started = time.monotonic()
    wrong = client(secured, protocol, mechanism, password="wrong-hunter3")
    with KafkaCluster(wrong) as kafka, pytest.raises(AuthenticationError) as caught:
        kafka.topics(["t"])
    assert not is_retriable(caught.value)
    assert time.monotonic() - started < 5
    shown = caplog.text + str(caught.value) + repr(caught.value.__cause__)
    assert "hunter3" not in shown
    assert "wrong" not in shown


@pytest.mark.parametrize("mechanism", MODULES)
def test_the_password_is_not_logged_even_at_debug(secured, mechanism, caplog):
    caplog.set_level(logging.DEBUG)
    connect(client(secured, "SASL_SSL", mechanism)).close()
    assert "hunter2" not in caplog.text
    logging.getLogger("kafka.protocol.parser").debug("still heard")
    assert "still heard" in caplog.text, "kafka-python's loggers are silenced outside our handshakes too"


def test_a_mechanism_that_the_broker_has_not(secured):
    plain = client(secured, "SASL_SSL")
    assert plain.sasl is not None
    provider = type("T", (), {"token": lambda _: "x"})()
    odd = replace(plain, sasl=replace(plain.sasl, mechanism="OAUTHBEARER", token_provider=provider))
    with pytest.raises(AuthenticationError, match=r"sasl\.mechanism"):
        connect(odd)


def test_an_authority_that_is_not_trusted(secured, tmp_path):
    strange = make_certificates(tmp_path / "strange")
    with pytest.raises(TlsError, match=r"not trusted.*ssl\.truststore\.location") as caught:
        connect(client(secured, "SSL", ssl_truststore_location=str(strange.ca)))
    assert not is_retriable(caught.value)


def test_a_host_name_that_the_certificate_does_not_hold(secured, monkeypatch):
    plain, port = socket.getaddrinfo, client(secured, "SSL").bootstrap_servers[0][1]
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **named: plain("127.0.0.1", *rest, **named))
    with pytest.raises(TlsError, match=r"ssl\.endpoint\.identification\.algorithm"):
        Connection("broker.example", port, client(secured, "SSL"))
    Connection("broker.example", port, client(secured, "SSL", ssl_endpoint_identification_algorithm="")).close()


def test_the_system_authorities_do_not_trust_a_private_one(secured):
    config = ClientConfig.from_properties({"bootstrap.servers": secured.listeners["SSL"], "security.protocol": "SSL"})
    with pytest.raises(TlsError, match="not trusted"):
        connect(config)


def test_a_client_certificate(secured, tmp_path):
    pem = secured.certificates.client
    connect(client(secured, "SSL", ssl_keystore_type="PEM", ssl_keystore_location=str(pem))).close()
    key = serialization.load_pem_private_key(pem.read_bytes(), None)
    own, *others = x509.load_pem_x509_certificates(pem.read_bytes())
    store = pkcs12.serialize_key_and_certificates(b"me", key, own, others, serialization.BestAvailableEncryption(b"changeit"))
    (tmp_path / "me.p12").write_bytes(store)
    with_store = {"ssl_keystore_location": str(tmp_path / "me.p12"), "ssl_keystore_password": "changeit"}
    connect(client(secured, "SSL", **with_store)).close()


def test_a_client_certificate_of_a_strange_authority_is_refused(secured, tmp_path):
    strange = make_certificates(tmp_path / "strange")
    with pytest.raises(TlsError, match=r"client certificate.*ssl\.keystore\.location"):
        connect(client(secured, "SSL", ssl_keystore_type="PEM", ssl_keystore_location=str(strange.client)))


def test_no_tls_at_a_tls_port_and_tls_at_a_plain_one(secured):
    plain = ClientConfig(bootstrap=secured.listeners["SSL"])
    with pytest.raises(CorruptDataError, match=r"TLS is spoken at this port; set security\.protocol"):
        connect(plain)
    tls = replace(client(secured, "SSL"), bootstrap=secured.bootstrap)
    with pytest.raises((TlsError, ConnectionLostError), match=r"security\.protocol"):
        connect(tls)


def test_sasl_at_a_port_that_expects_none(secured):
    config = replace(client(secured, "SASL_PLAINTEXT"), bootstrap=secured.bootstrap)
    with pytest.raises(AuthenticationError, match=r"security\.protocol"):
        connect(config)


def test_a_connection_is_replaced_before_its_sasl_session_ends(secured, topic):
    name = created(secured.bootstrap, topic)
    config = client(secured, "SASL_SSL", "SCRAM-SHA-256", fetch_max_wait_ms="100")
    connection = connect(config)
    assert connection.expires_at is not None
    left = connection.expires_at - time.monotonic()
    assert 0.8 * SESSION_MS / 1000 < left + 0.5 <= 0.85 * SESSION_MS / 1000 + 0.5
    connection.close()
    with KafkaCluster(config) as kafka, Fetcher(kafka, [FetchFrom(name, 0, 0)]) as fetcher:
        seen, number = set(), 0
        deadline = time.monotonic() + 2.5 * SESSION_MS / 1000
        while time.monotonic() < deadline:
            produce(secured.bootstrap, name, {0: [b"x"]})
            item = None
            while item is None:
                item = fetcher.poll(5)
            assert isinstance(item, FetchedData), item
            assert item.fetch_offset == number
            number = item.next_offset
            seen |= {id(c) for c in fetcher._connections.values()}
            kafka.find_topics([name])
    assert len(seen) >= 2, "the connection was never replaced, so nothing was tried"


def test_an_expired_session_would_be_cut_by_the_broker(secured):
    """The fault that the test above defends against does happen."""
    connection = connect(client(secured, "SASL_PLAINTEXT"))
    started = time.monotonic()

    def ask_for_ever() -> None:
        while time.monotonic() - started < 3 * SESSION_MS / 1000:
            connection.request(MetadataRequest(topics=[], allow_auto_topic_creation=False))

    with pytest.raises(ConnectionLostError, match="closed"):
        ask_for_ever()
    assert not connection.usable
    assert time.monotonic() - started >= SESSION_MS / 1000 * 0.9
