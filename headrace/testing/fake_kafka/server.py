"""The sockets of one broker: a thread that accepts, and one for each connection, which is served a request at a time."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from headrace.testing.fake_kafka.calls import Peer
from headrace.testing.fake_kafka.dispatch import Dispatcher, HangUpError, Outgoing
from headrace.testing.fake_kafka.state.brokers import HOST, BrokerState

_MOST_FRAME = 100 * 1024 * 1024  # socket.request.max.bytes
_LENGTH = 4


class BrokerServer:
    """One run of a broker: listens from its making to `stop`."""

    def __init__(self, broker: BrokerState, dispatcher: Dispatcher) -> None:
        """Listen on the broker's port, which the caller has reserved; serve in threads of its own."""
        self._broker = broker
        self._dispatcher = dispatcher
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.is_over: bool = False
        self._listener = socket.create_server((HOST, broker.listens_at), backlog=128)
        threading.Thread(target=self._accept, name=f"fake-kafka-{broker.id}", daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            self.is_over = True
            open_now = list(self._connections)
        _close(self._listener)
        for connection in open_now:
            _close(connection)
        with self._dispatcher.changed:
            self._dispatcher.changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self.is_over:
                    _close(connection)
                    return
                self._connections.add(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = f"fake-kafka-{self._broker.id}-connection"
            threading.Thread(target=self._serve, args=(connection, address[0]), name=name, daemon=True).start()

    def _serve(self, connection: socket.socket, host: str) -> None:
        needs_login = self._dispatcher.state.users.must_log_in
        peer = Peer(host, is_authenticated=not needs_login)
        try:
            while True:
                frame = _read_frame(connection)
                delivery = self._dispatcher.answer(frame, peer, self._broker, self)
                if delivery is not None:
                    self._send(connection, delivery)
        except (OSError, HangUpError):
            pass
        finally:
            _close(connection)
            with self._lock:
                self._connections.discard(connection)

    def _send(self, connection: socket.socket, delivery: Outgoing) -> None:
        data = memoryview(delivery.data)
        if delivery.between:
            half = len(data) // 2
            connection.sendall(data[:half])
            for do in delivery.between:
                do()
            data = data[half:]
        connection.sendall(data)
        if delivery.mute_ms:
            self._dispatcher.pause(delivery.mute_ms / 1000, self)


def _read_frame(connection: socket.socket) -> memoryview:
    size = int.from_bytes(_read(connection, _LENGTH), "big", signed=True)
    if not 0 < size <= _MOST_FRAME:
        raise HangUpError(f"a request of {size} bytes")
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> memoryview:
    view = memoryview(bytearray(size))
    at = 0
    while at < size:
        count = connection.recv_into(view[at:])
        if not count:
            raise HangUpError("the client closed the connection")
        at += count
    return view


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
