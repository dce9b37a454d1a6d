"""Connections to servers that are no good Kafka brokers, and the buffers."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace.connectors.kafka.client.errors import ConnectionLostError, TlsError
from headrace.connectors.kafka.client.properties import ClientConfig, TlsConfig
from headrace.connectors.kafka.client.wire import Connection, _BufferPool, _check_version, _TcpTransport
from headrace.enumerator.errors import CorruptDataError, HeadraceError, is_retriable


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


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP server"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS is spoken at this port"),
        (b"\x7f\xff\xff\xff", "a length of 2147483647 bytes"),
        (b"\xff\xff\xff\xff", "a length of -1 bytes"),
    ],
)
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


@pytest.mark.parametrize("version", ["3.0.11", "3.1.0", "2.3.0", "4.0"])
def test_an_untried_kafka_python_is_refused_with_what_to_install(version):
    with pytest.raises(ImportError, match=r"pip install 'kafka-python>=3.0.12,<3.1'"):
        _check_version(version)


@pytest.mark.parametrize("version", ["3.0.12", "3.0.13", "3.0.99.post1"])
def test_a_tried_kafka_python_is_taken(version):
    _check_version(version)


def test_a_buffer_is_used_again_once_nobody_looks_at_it():
    pool = _BufferPool()
    first = pool.take(100_000)
    buffer = id(first.obj)
    part = first[10:20]
    first.release()
    assert id(pool.take(100_000).obj) != buffer  # `part` still looks at it
    del part
    assert buffer in {id(pool.take(size).obj) for size in (100_001, 1 << 20)}


def test_a_small_answer_does_not_hold_on_to_a_large_buffer():
    pool = _BufferPool()
    large = len(pool.take(50 << 20).obj)
    assert len(pool.take(100_000).obj) < large


def test_a_view_keeps_its_bytes_however_much_comes_after():
    pool = _BufferPool()
    kept = pool.take(100_000)
    kept[:3] = b"abc"
    for _ in range(50):
        pool.take(100_000)[:3] = b"xyz"
    assert bytes(kept[:3]) == b"abc"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 1])
def test_a_view_has_the_size_asked_for(size):
    assert len(_BufferPool().take(size)) == size


def test_idle_buffers_are_few():
    pool = _BufferPool()
    views = [pool.take(100_000) for _ in range(50)]
    del views
    pool.take(10 << 20)
    assert len(pool._buffers) <= 8
