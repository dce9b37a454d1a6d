"""Idle connections, kept for the next caller: one owner at a time, so no connection is ever shared by two threads."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import defaultdict
from dataclasses import dataclass

from headrace.connectors.kafka.client.errors import ConnectionLostError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.wire.connection import Connection
from headrace.connectors.kafka.client.wire.throttles import Throttles

Address = tuple[str, int]
_CLEAN_UP_S = 10.0


@dataclass(slots=True)
class _Failures:
    count: int
    not_before: float


class ConnectionPool:
    """Lends connections by address. Thread-safe; safe in forked children, which never touch their parent's connections.

    A broker that refused a connection is not tried again before `reconnect.backoff.ms`, doubled per failure up to
    `reconnect.backoff.max.ms`. Connections idle for `connections.max.idle.ms`, and those that brokers have closed, are closed
    at the next lease of any connection, every 10 s at most.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._closed = threading.Event()
        self.throttles = Throttles()
        self._start_afresh()
        _pools.add(self)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Address, list[Connection]] = defaultdict(list)
        self._lent: weakref.WeakSet[Connection] = weakref.WeakSet()  # weak: what is never given back is forgotten
        self._failures: dict[Address, _Failures] = {}
        self._cleaned_up_at = time.monotonic()

    def lease(self, address: Address) -> Connection:
        """A live connection that is the caller's alone until `give_back`, if it is given back.

        Waits out the reconnect backoff of this address. Raises what `Connection` raises.
        """
        self._clean_up()
        while (connection := self._pop(address)) is not None:
            if self._fit(connection):
                return self._lend(connection)
            connection.close()
        return self._lend(self._connect(address))

    def is_failing(self, address: Address) -> bool:
        return address in self._failures

    def give_back(self, connection: Connection) -> None:
        """Return a leased connection. One that is broken, or still has a request in flight, is closed instead."""
        with self._lock:
            self._lent.discard(connection)
        if self._closed.is_set() or connection.in_flight or not connection.usable:
            connection.close()
            return
        host, _, port = connection.address.rpartition(":")
        with self._lock:
            self._idle[host, int(port)].append(connection)

    def close(self) -> None:
        """Close the idle connections, and cut those on loan: a thread that waits for an answer, a quota or a backoff wakes."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, defaultdict(list)
            lent = list(self._lent)
        for connection in lent:
            connection.abort()
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _lend(self, connection: Connection) -> Connection:
        with self._lock:
            self._lent.add(connection)
        if self._closed.is_set():
            connection.abort()
        return connection

    def _clean_up(self) -> None:
        """Close what was idle for too long, of any address: brokers go, and their sockets would stay half closed."""
        with self._lock:
            if time.monotonic() - self._cleaned_up_at < _CLEAN_UP_S:
                return
            self._cleaned_up_at = time.monotonic()
            unfit = [each for idle in self._idle.values() for each in idle if not self._fit(each)]
            self._idle = defaultdict(list, {a: [each for each in idle if each not in unfit] for a, idle in self._idle.items()})
        for connection in unfit:
            connection.close()

    def _pop(self, address: Address) -> Connection | None:
        with self._lock:
            return self._idle[address].pop() if self._idle[address] else None

    def _fit(self, connection: Connection) -> bool:
        most_ms, idle_s = self._config.connections_max_idle_ms, time.monotonic() - connection.last_used
        return connection.usable and (most_ms is None or idle_s < most_ms / 1000) and connection.is_quiet()

    def _connect(self, address: Address) -> Connection:
        failures = self._failures.get(address)
        if failures is not None:
            self._closed.wait(max(0.0, failures.not_before - time.monotonic()))
        if self._closed.is_set():
            raise ConnectionLostError(f"{address[0]}:{address[1]}: the client was closed")
        try:
            connection = Connection(*address, self._config, self.throttles)
        except Exception:
            count = failures.count + 1 if failures else 1
            longest = max(self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms)
            backoff_ms = min(self._config.reconnect_backoff_ms * 2 ** min(count - 1, 30), longest)
            self._failures[address] = _Failures(count, time.monotonic() + backoff_ms / 1000)
            raise
        self._failures.pop(address, None)
        return connection


_pools: weakref.WeakSet[ConnectionPool] = weakref.WeakSet()


def _forget_inherited() -> None:
    # A forked child starts with empty pools. Closing its copies of the file descriptors says nothing on the
    # wire, so the parent is not disturbed. Locks are new, since a thread of the parent may have held the old ones.
    for pool in _pools:
        for connections in pool._idle.values():
            for connection in connections:
                connection.close()
        pool._closed = threading.Event()
        pool._start_afresh()


os.register_at_fork(after_in_child=_forget_inherited)
