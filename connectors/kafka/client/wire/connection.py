"""A connection to one broker: framing, correlation and decoding, on a socket that a handshake has made ready.

kafka-python's own socket loop is not used: reading into one large buffer is three to four times faster.

**Threads and forks.** A `Connection` belongs to one thread at a time; only `abort` may be called from another. After a fork
the child must not use its parent's connections (`KafkaCluster` sees to that).
"""

from __future__ import annotations

import copy
import io
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.wire.buffers import BufferPool
from headrace.connectors.kafka.client.wire.failures import MAX_FRAME_BYTES, explain, not_a_frame
from headrace.connectors.kafka.client.wire.handshake import shake_hands
from headrace.connectors.kafka.client.wire.protocol import (
    ApiVersionsRequest,
    FetchRequest,
    IncompatibleBrokerVersion,
    Message,
    versions_of,
)
from headrace.connectors.kafka.client.wire.throttles import Throttles
from headrace.connectors.kafka.format.fetch_protocol import parse_fetch_response
from headrace.enumerator.errors import CorruptDataError, HeadraceError, PeerError, ProtocolViolationError

_shutdown = socket.socket.shutdown  # the socket's own, below TLS, whose orderly goodbye could block


class Connection:
    """A connection to one broker: synchronous requests, or `send` and `receive` apart so that one can be in flight.

    Made ready to use: connected, API versions known, TLS and SASL done, within
    `config.socket_connection_setup_timeout_ms` for connecting and `config.request_timeout_ms` for the rest. Raises
    `ConnectionLostError` (retriable), `AuthenticationError`, `TlsError`, or `UsageError` for stores that cannot be read.
    An answer with a throttle time (KIP-219) holds back the next `send` for as long; `throttles` counts it.
    """

    def __init__(self, host: str, port: int, config: ClientConfig, throttles: Throttles | None = None) -> None:
        """Connect and shake hands; blocks the calling thread."""
        self.address: str = f"{host}:{port}"
        self._timeout_s = config.request_timeout_ms / 1000
        self._client_id = config.client_id
        adopted = shake_hands(host, port, config)
        self._socket: socket.socket = adopted.socket
        self._versions = adopted.versions
        self._pool = BufferPool()
        self._head = bytearray(4)
        self._correlation_id = 0
        self._in_flight: deque[tuple[int, Callable[[memoryview], Any]]] = deque()
        self._alive = True
        self._aborted = threading.Event()
        self._throttles = throttles or Throttles()
        self._throttled_until = 0.0
        self._pid = os.getpid()
        self.last_used: float = time.monotonic()
        self.expires_at: float | None = adopted.expires_at
        """When to replace this connection, on `time.monotonic`'s clock: 85 % of the SASL session's lifetime. None: never."""

    def __repr__(self) -> str:
        return f"<Connection to {self.address}{'' if self._alive else ' (closed)'}>"

    @property
    def usable(self) -> bool:
        """False once it was closed or lost, when its SASL session nears its end, and in a forked child of its process."""
        return self._alive and self._pid == os.getpid() and (self.expires_at is None or time.monotonic() < self.expires_at)

    def is_quiet(self) -> bool:
        """True while an idle connection has nothing to read: one that turns readable was closed by the broker."""
        if self._in_flight:
            return False
        poll = select.poll()  # not select(), which cannot take descriptors from 1024 up
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def version_of(self, request: Message) -> int:
        """The highest version of a request (class or instance) that this broker and this client both speak (`api_versions`).

        Raises `PeerError` when there is none: the broker is too old or too new.
        """
        own = versions_of(request)
        try:
            return int(self._versions.api_version(request, own.lowest, own.highest))
        except IncompatibleBrokerVersion as error:
            raise PeerError(f"{self.address}: {error.args[0] if error.args else error}") from None

    def request(self, message: Message, timeout_s: float | None = None) -> Message:
        """Send a request and wait for its response, at most `timeout_s` (default: `request.timeout.ms`) without a byte.

        A FetchRequest is answered by a `FetchAnswer`, any other by kafka-python's response object. Raises
        `ConnectionLostError`; whether the request took effect is then unknown. Error codes in the response are the caller's.
        Raises `ProtocolViolationError`, which is a bug of the caller, while another request is in flight.
        """
        if self._in_flight:
            raise ProtocolViolationError("request() while another request is in flight; receive() its response first")
        self.send(message)
        return self.receive(timeout_s)

    def send(self, message: Message) -> int:
        """Send a request without waiting; `receive` returns responses in the order of sending. Returns the correlation id."""
        message = copy.copy(message)  # the caller's may go to another broker, which speaks another version of it
        if message.API_VERSION is None:
            message.API_VERSION = self.version_of(message)
        self._correlation_id = (self._correlation_id + 1) % 2**31
        message.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        decode = _decoder(message)
        data = message.encode(header=True, framed=True)
        self._aborted.wait(max(0.0, self._throttled_until - time.monotonic()))
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
        answer = decode(frame)
        self._note_throttle(answer)
        return answer

    def finalized_features(self) -> dict[str, int]:
        """The cluster's finalised feature levels, asked now: for instance `transaction.version` (KIP-584)."""
        response = self.request(ApiVersionsRequest(client_software_name="headrace", client_software_version="0"))
        return {item.name: item.max_version_level for item in response.finalized_features or ()}

    def abort(self) -> None:
        """Shut the socket down, so that a thread waiting in `receive` wakes with `ConnectionLostError`. From any thread."""
        self._alive = False
        self._aborted.set()
        if self._pid == os.getpid():  # a forked child shares the socket: shutting it down would break the parent's
            try:
                _shutdown(self._socket, socket.SHUT_RDWR)
            except OSError:
                return

    def close(self) -> None:
        """Close the connection. Harmless when repeated, and in a forked child."""
        self.abort()
        self._socket.close()

    def _note_throttle(self, answer: Message) -> None:
        milliseconds: int = getattr(answer, "throttle_time_ms", None) or 0
        if milliseconds > 0:
            self._throttled_until = time.monotonic() + milliseconds / 1000
            self._throttles.note(self.address, milliseconds)

    def _read_frame(self, timeout_s: float) -> memoryview:
        self._socket.settimeout(timeout_s)
        self._fill(memoryview(self._head))
        size = int.from_bytes(self._head, "big", signed=True)
        if not 4 <= size <= MAX_FRAME_BYTES:
            self.close()
            raise CorruptDataError(f"{self.address}: {not_a_frame(size)}")
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
        return explain(error, self.address)


def _decoder(message: Message) -> Callable[[memoryview], Any]:
    response_class = message.header.get_response_class()
    version: int = message.API_VERSION
    if isinstance(message, FetchRequest):
        start = 5 if message.flexible_version_q(version) else 4  # correlation id, and from version 12 an empty tag section
        return lambda frame: parse_fetch_response(frame, version, start)

    def decode(frame: memoryview) -> Message:
        try:
            return response_class.decode(frame, version=version, header=True)
        except (ValueError, IndexError, TypeError, struct.error, io.UnsupportedOperation) as error:
            raise CorruptDataError(f"the broker's {response_class.__name__} cannot be decoded: {error}") from error

    return decode
