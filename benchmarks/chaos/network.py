"""The network between clients and brokers, and among brokers: TCP proxies that can hold, slow down and cut.

A connection has a source (a broker's number as text, HARNESS, or JOB) and a target (a broker's number). The source is informed
by the client id of its first request: so a partition can cut one broker off from the others and leave its clients alone, and
what the harness asks and counts is never disturbed.

Bytes of a partition are held, not swallowed: once it is healed they arrive, late, as TCP's retransmissions do.
"""

from __future__ import annotations

import asyncio
import re
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET, socket
from typing import Any, TypeVar

T = TypeVar("T")
HOST = "127.0.0.1"
CHUNK = 1 << 16
HARNESS, JOB = "harness", "job"
HARNESS_CLIENTS = ("chaos-harness", "headrace-broker")
"""How the client ids of this process start: those of load, output check and admin, and those of `headrace.testing.servers`."""

BROKER_CLIENT = re.compile(r"(?:broker-|raft-client-)?(\d+)(?:-.*)?")
"""Replica fetchers and what sends transaction markers, the metadata quorum, and what talks to the controller."""

_CLIENT_ID = 12  # after size, API key, version and correlation id
_ANSWER_S = 10.0
_END_S = 0.1
_RESET = struct.pack("ii", 1, 0)  # closing sends RST


@dataclass(frozen=True)
class Condition:
    """Of one direction of a connection. `bytes_per_s`: 0 is not a limit. `delay_s`: before each chunk of up to 64 KiB."""

    holds: bool = False
    bytes_per_s: float = 0.0
    delay_s: float = 0.0


GOOD = Condition()
HELD = Condition(holds=True)


@dataclass(frozen=True)
class Weather:
    """`out`: from who connected to the broker, requests. `back`: answers."""

    out: Condition = GOOD
    back: Condition = GOOD


CALM = Weather()
_STRANDED = Weather(out=HELD)
Where = Callable[[str, int], bool]
"""(source, target): whether a connection between them is meant."""


@dataclass(eq=False)
class _Connection:
    """`source` is not known before the first request; no process's connection is disturbed."""

    target: int
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    source: str = ""
    is_stranded: bool = False

    def reset(self) -> None:
        for writer in (self.client, self.server):
            found: socket | None = writer.get_extra_info("socket")
            if found is not None and found.fileno() >= 0:
                with suppress(OSError):
                    found.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
            writer.transport.abort()


@dataclass
class Counts:
    """What has been done to connections so far: bytes that were held or slowed down, connections that were cut."""

    held: int = 0
    slowed: int = 0
    cut: int = 0


@dataclass
class Network:
    """All proxies, in their own thread.

    `proxy` is called before the servers start. `disturb`, `cut` and `calm` may be called from any thread.
    """

    counts: Counts = field(default_factory=Counts)
    _weather: Weather = CALM
    _where: Where = lambda _source, _target: False
    _connections: set[_Connection] = field(default_factory=set)
    _servers: list[asyncio.Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def proxy(self, target: int, _listener: str, address: str) -> str:
        """Listen for one listener of a broker; gives the `host:port` of the proxy. Fits `start_broker(advertise=...)`."""
        host, _, port = address.rpartition(":")

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(target, (host, int(port)), reader, writer)

        server = self._call(asyncio.start_server(accept, HOST, 0))
        self._servers.append(server)
        return f"{HOST}:{server.sockets[0].getsockname()[1]}"

    def disturb(self, where: Where, weather: Weather) -> None:
        """From now on; it replaces what was before."""
        self._call(self._set(where, weather))

    def calm(self) -> None:
        """Everything flows again, and what was held is delivered."""
        self.disturb(lambda _source, _target: False, CALM)

    def strand(self, where: Where) -> int:
        """Hold what is requested on the connections that there are now, and no others, until `calm`; how many."""
        return self._call(self._strand(where))

    def cut(self, where: Where) -> int:
        """Reset the connections that are there; how many."""
        return self._call(self._reset(where))

    def close(self) -> None:
        """End the thread; connections are cut."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ANSWER_S)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_ANSWER_S)

    async def _set(self, where: Where, weather: Weather) -> None:
        self._where, self._weather = where, weather
        for connection in self._connections:
            connection.is_stranded = False
        self._changed.set()
        self._changed = asyncio.Event()

    async def _strand(self, where: Where) -> int:
        meant = [each for each in self._connections if where(each.source, each.target)]
        for connection in meant:
            connection.is_stranded = True
        return len(meant)

    async def _end(self) -> None:
        for listener in (each for server in self._servers for each in server.sockets):
            # No more are accepted; the server itself is closed last, as a connection that was accepted just now still needs it.
            self._loop.remove_reader(listener.fileno())
        await self._set(lambda _source, _target: False, CALM)
        while serving := asyncio.all_tasks() - {asyncio.current_task()}:
            await self._reset(lambda _source, _target: True)
            await asyncio.wait(serving, timeout=_END_S)
        for server in self._servers:
            server.close()

    async def _reset(self, where: Where) -> int:
        meant = [each for each in self._connections if where(each.source, each.target)]
        for connection in meant:
            connection.reset()
        self._connections.difference_update(meant)
        self.counts.cut += len(meant)
        return len(meant)

    async def _serve(
        self, target: int, address: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            back, out = await asyncio.open_connection(*address)
        except OSError:  # the broker is dead: so is the connection to it
            writer.transport.abort()
            await _closed(writer)
            return
        connection = _Connection(target, writer, out)
        self._connections.add(connection)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(connection, reader, out, lambda weather: weather.out))
                pumps.create_task(self._pump(connection, back, writer, lambda weather: weather.back))
        except* (OSError, _EndedError):
            pass
        finally:
            for end in (writer, out):
                end.close()  # after what is still to be sent
            await _closed(writer, out)
            self._connections.discard(connection)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        side: Callable[[Weather], Condition],
    ) -> None:
        """Until one end closes: then both are closed, as no party here uses half of a connection."""
        while data := await reader.read(CHUNK):
            connection.source = connection.source or source_of(data)
            condition = self._condition(connection, side)
            if condition.holds:
                self.counts.held += len(data)
            while condition.holds:
                await self._changed.wait()
                condition = self._condition(connection, side)
            if condition != GOOD:
                self.counts.slowed += len(data)
                await asyncio.sleep(condition.delay_s + (len(data) / condition.bytes_per_s if condition.bytes_per_s else 0))
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                if not connection.is_stranded:  # else the client is gone, and its requests are still to arrive
                    raise
        raise _EndedError

    def _condition(self, connection: _Connection, side: Callable[[Weather], Condition]) -> Condition:
        if connection.is_stranded:
            return side(_STRANDED)
        return side(self._weather) if self._where(connection.source, connection.target) else GOOD


async def _closed(*writers: asyncio.StreamWriter) -> None:
    """Wait until the sockets are closed. A loop that ends before leaves them open, as closing is its last work for them."""
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


class _EndedError(Exception):
    """One end has closed."""


def source_of(request: bytes) -> str:
    """Who sends this, the first request of a connection: by the client id in its header (KIP-482 has not moved it)."""
    length = int.from_bytes(request[_CLIENT_ID : _CLIENT_ID + 2], "big", signed=True)
    name = request[_CLIENT_ID + 2 : _CLIENT_ID + 2 + max(length, 0)].decode(errors="replace")
    if name.startswith(HARNESS_CLIENTS):
        return HARNESS
    found = BROKER_CLIENT.fullmatch(name)
    return found[1] if found else JOB


@contextmanager
def network() -> Iterator[Network]:
    """A network that ends with the context."""
    found = Network()
    try:
        yield found
    finally:
        found.close()
