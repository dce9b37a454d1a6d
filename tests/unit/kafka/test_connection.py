"""Connections to servers that are no good Kafka brokers."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from headrace.connectors.kafka.client.errors import ConnectionLostError, TlsError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.wire import connection as connection_module
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.handshake import _TcpTransport
from headrace.connectors.kafka.client.wire.protocol import MetadataRequest
from headrace.connectors.security.tls import TlsConfig
from headrace.enumerator.errors import CorruptDataError, HeadraceError, ProtocolViolationError, is_retriable


@contextlib.contextmanager
def server(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that accepts one connection and talks like this; gives its port."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            with client:
                talk(client)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def connect(port: int, **given) -> HeadraceError:
    config = ClientConfig(bootstrap="unused:1", request_timeout_ms=500, **given)
    with pytest.raises(HeadraceError) as caught:
        Connection("127.0.0.1", port, config)
    return caught.value


def says(data: bytes) -> Callable[[socket.socket], None]:
    def talk(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(data)
        client.recv(1000)

    return talk


@pytest.mark.parametrize(("data", "hint"), [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP server"), (b"\x15\x03\x03\x00\x02\x02\x46", "TLS is spoken at this port"),
    (b"\x7f\xff\xff\xff", "a length of 2147483647 bytes"), (b"\xff\xff\xff\xff", "a length of -1 bytes"),
])  # fmt: skip
def test_what_is_no_kafka_is_named_and_nothing_huge_is_allocated(data, hint):
    with server(says(data)) as port:
        error = connect(port)
    assert isinstance(error, CorruptDataError)
    assert hint in str(error)
    assert f"127.0.0.1:{port}" in str(error)


def test_tls_to_a_port_that_speaks_none():
    with server(says(b"\x00\x00\x00\x05hello")) as port:
        error = connect(port, tls=TlsConfig())
    assert isinstance(error, TlsError)
    assert not is_retriable(error)
    assert "no TLS is spoken at this port" in str(error)


def test_a_server_that_hangs_up_may_be_tried_again():
    with server(lambda client: None) as port:
        error = connect(port)
    assert isinstance(error, ConnectionLostError)
    assert is_retriable(error)


@pytest.mark.parametrize("tls", [None, TlsConfig()])
def test_a_server_that_says_nothing_is_given_up_after_the_timeout(tls):
    with server(lambda client: client.recv(100) and client.recv(100_000) and client.recv(1)) as port:
        started = time.monotonic()
        error = connect(port, tls=tls)
    assert isinstance(error, ConnectionLostError)
    assert 0.4 < time.monotonic() - started < 5


def test_a_port_where_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = connect(port)
    assert isinstance(error, ConnectionLostError)
    assert "refused" in str(error)


def test_a_name_without_an_address():
    with pytest.raises(ConnectionLostError, match=r"no\.such\.host\.invalid:9092"):
        Connection("no.such.host.invalid", 9092, ClientConfig(bootstrap="unused:1"))


def test_the_last_words_of_a_broker_that_hangs_up_are_heard():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        transport = _TcpTransport(None, ours)
        theirs.sendall(b"refused, and this is why")
        theirs.close()
        assert transport._sock_recv() == (b"refused, and this is why", None)
        assert isinstance(transport._sock_recv()[1], Exception)


def test_a_request_while_another_is_in_flight_is_a_bug_of_the_caller(monkeypatch):
    ours, theirs = socket.socketpair()
    versions = SimpleNamespace(api_version=lambda request, lowest, highest: 4)
    adopted = SimpleNamespace(socket=ours, versions=versions, expires_at=None)
    monkeypatch.setattr(connection_module, "shake_hands", lambda *_: adopted)
    with theirs, contextlib.closing(Connection("broker", 9092, ClientConfig(bootstrap="unused:1"))) as connection:
        connection.send(MetadataRequest(topics=[], allow_auto_topic_creation=False))
        with pytest.raises(ProtocolViolationError, match="another request is in flight"):
            connection.request(MetadataRequest(topics=[], allow_auto_topic_creation=False))
        assert connection.in_flight == 1


def test_failed_handshakes_leave_no_descriptor_open():
    def count() -> int:
        return len(os.listdir("/dev/fd"))

    before = count()
    for _ in range(5):
        with server(says(b"HTTP")) as port:
            connect(port)
        with server(lambda client: None) as port:
            connect(port, tls=TlsConfig())
    assert count() <= before
