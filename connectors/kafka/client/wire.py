"""The one module that touches kafka-python: its connection layer shakes hands, then we take the socket over.

kafka-python connects, negotiates API versions, and does TLS and SASL; its protocol classes encode requests and decode
responses. Its socket loop is not used after the handshake: reading into one large buffer is three to four times faster.
None of that is its public API, hence the version bound, checked at import.

**Threads and forks.** A `Connection` belongs to one thread at a time; only `abort` may be called from another. After a fork
the child must not use its parent's connections (`KafkaCluster` sees to that).
"""

from __future__ import annotations

import io
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import kafka.errors as kafka_python_errors
from kafka.net.connection import KafkaConnection
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    IncrementalAlterConfigsRequest,
    ListTransactionsRequest,
    UpdateFeaturesRequest,
)
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)
from kafka.version import __version__ as kafka_python_version

from headrace.connectors.kafka.client.errors import ConnectionLostError, TlsError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.tls import ssl_context
from headrace.connectors.kafka.format.fetch_protocol import parse_fetch_response
from headrace.enumerator.errors import AuthenticationError, CorruptDataError, HeadraceError, PeerError, UsageError

__all__ = [
    "AddPartitionsToTxnRequest",
    "ApiVersionsRequest",
    "Connection",
    "CreatePartitionsRequest",
    "CreateTopicsRequest",
    "DeleteRecordsRequest",
    "DeleteTopicsRequest",
    "DescribeClusterRequest",
    "DescribeConfigsRequest",
    "DescribeProducersRequest",
    "DescribeTransactionsRequest",
    "EndTxnRequest",
    "FetchRequest",
    "FindCoordinatorRequest",
    "IncrementalAlterConfigsRequest",
    "InitProducerIdRequest",
    "ListOffsetsRequest",
    "ListTransactionsRequest",
    "Message",
    "MetadataRequest",
    "OffsetCommitRequest",
    "OffsetFetchRequest",
    "OffsetForLeaderEpochRequest",
    "ProduceRequest",
    "UpdateFeaturesRequest",
]


Message = Any
"""A request or response of kafka-python's protocol classes, which have no types."""


def _check_version(version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if not (3, 0, 12) <= numbers < (3, 1):
        raise ImportError(
            f"headrace needs kafka-python >=3.0.12,<3.1 and found {version}: it uses parts that are not kafka-python's public "
            "API. Install it with: pip install 'kafka-python>=3.0.12,<3.1'"
        )


_check_version(kafka_python_version)

_MAX_FRAME_BYTES = 256 * 1024 * 1024  # less than any four bytes of HTTP or of a TLS alert, read as a length
_SMALLEST_POOLED = 64 * 1024
_BUFFER_STEP = 1024 * 1024
_MOST_SLACK = 8  # times what is needed: a small answer does not hold on to a large buffer
_IDLE_BUFFERS = 8  # as many as a fetcher's default budget fills: a new one costs a page fault for every 4 KiB
_REPLACED_AT = 0.85  # of the lifetime of a SASL session (KIP-368), as the Java client does


class _BufferPool:
    """Receive buffers that are reused once nobody looks at them any more.

    Python itself keeps count: a bytearray with a live view refuses to change its size. So a view (or an Arrow buffer made from
    one) may be kept for as long as one likes, and nothing needs to be given back by hand.
    """

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """A view of exactly `size` bytes, of a buffer that nobody else sees."""
        if size < _SMALLEST_POOLED:
            return memoryview(bytearray(size))
        idle = sorted((buffer for buffer in self._buffers if _unseen(buffer)), key=len)
        for buffer in idle:
            if size <= len(buffer) <= _MOST_SLACK * size:
                return memoryview(buffer)[:size]
        dropped = {id(buffer) for buffer in idle[: -_IDLE_BUFFERS + 1]}
        self._buffers = [buffer for buffer in self._buffers if id(buffer) not in dropped]
        self._buffers.append(bytearray(-(-size // _BUFFER_STEP) * _BUFFER_STEP))
        return memoryview(self._buffers[-1])[:size]


def _unseen(buffer: bytearray) -> bool:
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True


class Connection:
    """A connection to one broker: synchronous requests, or `send` and `receive` apart so that one can be in flight.

    Made ready to use: connected, API versions known, TLS and SASL done, within
    `config.socket_connection_setup_timeout_ms` for connecting and `config.request_timeout_ms` for the rest. Raises
    `ConnectionLostError` (retriable), `AuthenticationError`, `TlsError`, or `UsageError` for stores that cannot be read.
    """

    def __init__(self, host: str, port: int, config: ClientConfig) -> None:
        """Connect and shake hands; blocks the calling thread."""
        self.address = f"{host}:{port}"
        self._timeout_s = config.request_timeout_ms / 1000
        self._client_id = config.client_id
        adopted = _shake_hands(host, port, config)
        self._socket: socket.socket = adopted.socket
        self._versions = adopted.versions
        self._pool = _BufferPool()
        self._head = bytearray(4)
        self._correlation_id = 0
        self._in_flight: deque[tuple[int, Callable[[memoryview], Any]]] = deque()
        self._alive = True
        self._pid = os.getpid()
        self.last_used = time.monotonic()
        self.expires_at = adopted.expires_at
        """When to replace this connection, on `time.monotonic`'s clock: 85 % of the SASL session's life. None: never."""

    def __repr__(self) -> str:
        """As error messages name it."""
        return f"<Connection to {self.address}{'' if self._alive else ' (closed)'}>"

    @property
    def usable(self) -> bool:
        """False once it was closed or lost, when its SASL session nears its end, and in a forked child of its process."""
        return self._alive and self._pid == os.getpid() and (self.expires_at is None or time.monotonic() < self.expires_at)

    def is_quiet(self) -> bool:
        """True while the broker has sent nothing unasked: an idle connection that turns readable was closed by the broker."""
        if self._in_flight:
            return False
        poll = select.poll()  # not select(), which cannot look at descriptors from 1024 up
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    @property
    def in_flight(self) -> int:
        """Number of requests sent whose responses were not yet received."""
        return len(self._in_flight)

    def version_of(self, request: Message) -> int:
        """The highest version of a request (class or instance) that this broker and kafka-python both speak.

        Raises `PeerError` when there is none: the broker is too old or too new.
        """
        try:
            return int(self._versions.api_version(request))
        except kafka_python_errors.IncompatibleBrokerVersion as error:
            raise PeerError(f"{self.address}: {error.args[0] if error.args else error}") from None

    def supports(self, request: Message) -> tuple[int, int] | None:
        """The lowest and highest version of this request that the broker itself offers; None when it does not know it."""
        versions: tuple[int, int] | None = self._versions.api_versions.get(request.API_KEY)
        return versions

    def request(self, message: Message, timeout_s: float | None = None) -> Message:
        """Send a request and wait for its response, at most `timeout_s` (default: `request.timeout.ms`) without a byte.

        A FetchRequest is answered by a `FetchAnswer`, any other by kafka-python's response object. Raises
        `ConnectionLostError`; whether the request took effect is then unknown. Error codes in the response are the caller's.
        """
        if self._in_flight:
            raise RuntimeError("request() while another request is in flight; receive() its response first")
        self.send(message)
        return self.receive(timeout_s)

    def send(self, message: Message) -> int:
        """Send a request without waiting; `receive` returns responses in the order of sending. Returns the correlation id."""
        if message.API_VERSION is None:
            message.API_VERSION = self.version_of(message)
        self._correlation_id = (self._correlation_id + 1) % 2**31
        message.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        decode = _decoder(message)
        data = message.encode(header=True, framed=True)
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error
        self._in_flight.append((self._correlation_id, decode))
        return self._correlation_id

    def receive(self, timeout_s: float | None = None) -> Message:
        """The response to the oldest request in flight. Raises `ConnectionLostError` when `timeout_s` pass without a byte."""
        correlation_id, decode = self._in_flight[0]
        try:
            frame = self._read_frame(self._timeout_s if timeout_s is None else timeout_s)
        except OSError as error:
            raise self._lost(error) from error
        self._in_flight.popleft()
        received = int.from_bytes(frame[:4], "big")
        if received != correlation_id:
            self.close()
            raise PeerError(f"{self.address}: a response to request {received} came where {correlation_id} was due")
        self.last_used = time.monotonic()
        return decode(frame)

    def finalized_features(self) -> dict[str, int]:
        """The cluster's finalised feature levels, asked now: for instance `transaction.version` (KIP-584)."""
        response = self.request(ApiVersionsRequest(client_software_name="headrace", client_software_version="0"))
        return {item.name: item.max_version_level for item in response.finalized_features or ()}

    def abort(self) -> None:
        """Shut the socket down, so that a thread waiting in `receive` wakes with `ConnectionLostError`. From any thread."""
        self._alive = False
        if self._pid == os.getpid():  # a forked child shares the socket: shutting it down would break the parent's
            try:
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            except OSError:
                return

    def close(self) -> None:
        """Close the connection. Harmless when repeated, and in a forked child."""
        self.abort()
        self._socket.close()

    def _read_frame(self, timeout_s: float) -> memoryview:
        self._socket.settimeout(timeout_s)
        self._fill(memoryview(self._head))
        size = int.from_bytes(self._head, "big", signed=True)
        if not 4 <= size <= _MAX_FRAME_BYTES:
            self.close()
            raise CorruptDataError(f"{self.address}: {_not_a_frame(size)}")
        frame = self._pool.take(size)
        self._fill(frame)
        return frame

    def _fill(self, view: memoryview) -> None:
        receive_into, position, end = self._socket.recv_into, 0, len(view)
        while position < end:
            count = receive_into(view[position:])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            position += count

    def _lost(self, error: OSError) -> HeadraceError:
        self.close()
        return _explain(error, self.address)


def _decoder(message: Message) -> Callable[[memoryview], Any]:
    response_class = message.header.get_response_class()
    version: int = message.API_VERSION
    if isinstance(message, FetchRequest):
        start = 5 if message.flexible_version_q(version) else 4  # correlation id, and from version 12 an empty tag section
        return lambda frame: parse_fetch_response(frame, version, start)

    def decode(frame: memoryview) -> Message:
        try:
            return response_class.decode(frame, version=version, header=True)
        except (ValueError, IndexError, io.UnsupportedOperation) as error:
            raise CorruptDataError(f"the broker's {response_class.__name__} cannot be decoded: {error}") from error

    return decode


# --- the handshake, by kafka-python's connection layer -----------------------------------------------------------------


class _Adopted:
    """What is taken over from kafka-python after its handshake."""

    def __init__(self, transport: Message, connection: Message, net: Message) -> None:
        for task in (transport._read_task, transport._write_task):
            if task is not None:
                net.cancel(task)
        self.socket, transport._sock = transport._sock, None
        self.versions = connection.broker_version_data
        session = connection._reauth
        session.cancel()
        self.expires_at = None
        if session.session_lifetime_ms:
            self.expires_at = session.authenticated_at + session.session_lifetime_ms / 1000 * _REPLACED_AT


def _shake_hands(host: str, port: int, config: ClientConfig) -> _Adopted:
    context = ssl_context(config.tls) if config.tls else None
    try:
        raw = _open_socket(host, port, config)
    except OSError as error:
        raise ConnectionLostError(f"{host}:{port}: no connection: {_first_line(error)}") from error
    net = NetworkSelector(client_id=config.client_id, slow_task_threshold_secs=0)
    _quiet.here = True
    try:
        future = net.call_soon_with_future(_introduce, net, raw, host, config, context)
        net.poll(timeout_ms=config.request_timeout_ms, future=future)
        if not future.is_done:
            raise ConnectionLostError(
                f"{host}:{port}: connected, but no answer to the handshake in {config.request_timeout_ms} ms"
            )
        if future.exception is not None:
            raise _explain_handshake(future.exception, f"{host}:{port}") from future.exception
        adopted: _Adopted = future.value
        return adopted
    except BaseException:
        raw.close()
        raise
    finally:
        net.close()
        _quiet.here = False


class _LastWords:
    """Hears a broker out that answers and hangs up at once: kafka-python forgets the answer when the end comes with it.

    That answer is why we were refused; without it, wrong credentials would look like a lost connection and be tried again.
    """

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        data, error = super()._sock_recv()  # type: ignore[misc] # of kafka-python's transports
        return (data, None) if data else (data, error)


class _TcpTransport(_LastWords, KafkaTCPTransport):  # type: ignore[misc]
    pass


class _TlsTransport(_LastWords, KafkaSSLTransport):  # type: ignore[misc]
    pass


def _open_socket(host: str, port: int, config: ClientConfig) -> socket.socket:
    """A TCP connection to the first address of `host` that answers, not blocking, as kafka-python wants it."""
    failure: OSError = ConnectionError("the name has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if config.receive_buffer_bytes is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
            if config.send_buffer_bytes is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
            opened.settimeout(config.socket_connection_setup_timeout_ms / 1000)
            opened.connect(address)
        except OSError as error:
            opened.close()
            failure = error
        else:
            opened.settimeout(0)
            return opened
    raise failure


async def _introduce(
    net: Message, raw: socket.socket, host: str, config: ClientConfig, context: ssl.SSLContext | None
) -> _Adopted:
    if context is None:
        transport = _TcpTransport(net, raw, host=host)
    else:
        transport = _TlsTransport(net, raw, host=host, ssl_context=context)
    try:
        await transport.handshake()
        connection = KafkaConnection(net, node_id=host, **_settings(config))
        connection.connection_made(transport)
        await connection.initialize(timeout_at=time.monotonic() + config.request_timeout_ms / 1000)
        await connection
        return _Adopted(transport, connection, net)
    except BaseException:
        transport.abort()
        raise


def _settings(config: ClientConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "client_id": config.client_id,
        "client_software_name": "headrace",
        "client_software_version": "0",
        "receive_message_max_bytes": _MAX_FRAME_BYTES,
        "request_timeout_ms": config.request_timeout_ms,
        "security_protocol": config.security_protocol,
    }
    if config.sasl is not None:
        settings |= {
            "sasl_mechanism": config.sasl.mechanism,
            "sasl_plain_username": config.sasl.username,
            "sasl_plain_password": config.sasl.password,
            "sasl_kerberos_service_name": config.sasl.kerberos_service_name,
        }
        if config.sasl.token_provider is not None:
            settings["sasl_oauth_token_provider"] = _Tokens(config.sasl.token_provider)
    return settings


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Any object with `token()` as kafka-python's abstract class."""

    def __init__(self, provider: Message) -> None:
        super().__init__()
        self._provider = provider

    def token(self) -> str:
        return str(self._provider.token())

    def extensions(self) -> dict[str, str]:
        extensions = getattr(self._provider, "extensions", None)
        return dict(extensions()) if callable(extensions) else {}


class _Quiet(threading.local):
    """True in `here` while this thread shakes hands."""

    here = False


_quiet = _Quiet()


class _NotOurHandshake(logging.Filter):
    """Drops kafka-python's log records of our handshakes: at DEBUG they hold passwords, and failures are raised anyway.

    Records of other threads, such as those of an application's own kafka-python clients, pass.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return not _quiet.here


for _name in ("net.connection", "net.transport", "net.selector", "net.compat", "net.sasl.plain", "net.sasl.scram",
              "net.sasl.oauth", "net.sasl.gssapi", "net.sasl.msk", "protocol.parser", "protocol", "future"):  # fmt: skip
    logging.getLogger(f"kafka.{_name}").addFilter(_NotOurHandshake())


# --- what went wrong, in our terms -------------------------------------------------------------------------------------


def _explain_handshake(error: BaseException, address: str) -> HeadraceError:
    explained = _explain(error, address)
    if isinstance(explained, ConnectionLostError):
        return ConnectionLostError(f"{explained}, during the handshake; if it always ends so, check security.protocol")
    return explained


def _explain(error: BaseException, address: str) -> HeadraceError:
    """The error of ours that says what this one of a socket, of OpenSSL or of kafka-python means."""
    if isinstance(error, HeadraceError):
        return error
    tls_error = _find_tls_error(error)
    if tls_error is not None:
        return _explain_tls(tls_error, address)
    if isinstance(error, kafka_python_errors.UnsupportedSaslMechanismError):
        return AuthenticationError(f"{address}: the broker does not offer this sasl.mechanism ({error})")
    if isinstance(error, kafka_python_errors.IllegalSaslStateError):
        return AuthenticationError(f"{address}: the listener at this port expects no SASL; check security.protocol")
    if isinstance(error, (kafka_python_errors.SaslAuthenticationFailedError, kafka_python_errors.AuthorizationError)):
        return AuthenticationError(f"{address}: the broker refused our credentials ({_first_line(error)})")
    if isinstance(error, kafka_python_errors.InvalidReceiveError):
        size = int("".join(c for c in str(error.args[0]).rsplit(":", 1)[-1] if c.isdigit() or c == "-") or 0)
        return CorruptDataError(f"{address}: {_not_a_frame(size)}")
    if isinstance(error, TimeoutError):
        return ConnectionLostError(f"{address}: no byte came from the broker within the request timeout")
    if isinstance(error, (OSError, kafka_python_errors.RetriableError)):
        return ConnectionLostError(f"{address}: {_first_line(error)}")
    if isinstance(error, kafka_python_errors.IncompatibleBrokerVersion):
        return PeerError(f"{address}: {_first_line(error)}; is it the port of a controller instead of a broker's?")
    if isinstance(error, (ImportError, kafka_python_errors.KafkaConfigurationError)):
        return UsageError(f"{address}: this sasl.mechanism cannot be used here: {_first_line(error)}")
    return AuthenticationError(f"{address}: the handshake failed: {type(error).__name__}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def _find_tls_error(error: BaseException | None) -> ssl.SSLError | None:
    seen = 0
    while error is not None and seen < 8:
        if isinstance(error, ssl.SSLError):
            return error
        inner = next((item for item in error.args if isinstance(item, BaseException)), None)
        error, seen = inner or error.__cause__, seen + 1
    return None


def _explain_tls(error: ssl.SSLError, address: str) -> HeadraceError:
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return ConnectionLostError(f"{address}: the broker closed the TLS connection ({error.reason or 'EOF'})")
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        what = error.verify_message or reason
        if "ostname" in what or "IP address" in what:
            hint = "connect by a name that it holds, or set ssl.endpoint.identification.algorithm to empty"
        else:
            hint = "give the authority that signed it in ssl.truststore.location (or ssl.truststore.certificates)"
        return TlsError(f"{address}: the broker's certificate is not trusted ({what}); {hint}")
    if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason or "RECORD_LAYER" in reason:
        return TlsError(f"{address}: no TLS is spoken at this port ({reason}); check security.protocol")
    if "CERTIFICATE" in reason.upper() or "HANDSHAKE_FAILURE" in reason.upper():
        hint = "the broker asks for a client certificate it trusts: check ssl.keystore.location"
        return TlsError(f"{address}: the broker refused the TLS handshake ({reason}); {hint}")
    return TlsError(f"{address}: TLS failed ({reason})")


def _not_a_frame(size: int) -> str:
    head = (size & 0xFFFFFFFF).to_bytes(4, "big")
    if head[:2] == b"\x15\x03":
        return "TLS is spoken at this port; set security.protocol to SSL or SASL_SSL"
    if head == b"HTTP":
        return "this is the port of an HTTP server, not of a Kafka broker"
    return f"the response claims a length of {size} bytes, which no Kafka response has; is this a Kafka broker's port?"
