"""TCP ports that stay ours from before a server starts, through its death, until its restart."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headrace.enumerator.errors import UsageError

HOST = "127.0.0.1"
CONNECT_S = 5.0


class Ports:
    """Reserves ports of 127.0.0.1. A reservation is a socket that is bound and never listens.

    Linux lets a server bind the same port alongside it (both set SO_REUSEADDR, only one listens), while no outgoing
    connection and no other process asking for a free port is given it. Other systems refuse the second bind, so there
    the port is only found, not held, and a start that loses the race is made again with other ports.
    """

    def __init__(self, stack: ExitStack) -> None:
        """Reservations end with `stack`."""
        self._stack = stack

    def reserve(self, port: int | None = None) -> int:
        """Reserve `port`, or any free one. Raises UsageError when that port is taken."""
        reservation = self._stack.enter_context(socket.socket())
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reservation.bind((HOST, port or 0))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "there are 65535"
            raise UsageError(f"port {port} of {HOST} cannot be used: {why}") from error
        number: int = reservation.getsockname()[1]
        if sys.platform != "linux":
            reservation.close()
        return number


@contextmanager
def reserved_ports() -> Iterator[Ports]:
    """Give a `Ports` whose reservations end with the context."""
    with ExitStack() as stack:
        yield Ports(stack)


def is_listening(address: str) -> bool:
    """Whether anything accepts connections at `host:port`: cheaper to ask than a client that backs off."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True
