"""Where a run's coordinator listens for its workers: a Unix socket in a private folder, or a TCP port that asks for a token."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headrace.enumerator.errors import UsageError

__all__ = ["UNIX", "Endpoint", "TcpAddress", "new_token", "tcp_address"]

UNIX = "unix"
_TCP = "tcp"
_LOOPBACK = "127.0.0.1"
_FORMS = "unix, tcp, or tcp://ADDRESS:PORT with an IP address, such as tcp://127.0.0.1:6123 or tcp://[::1]:0"

_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """An IP address of this machine, and a port; 0 is whichever is free."""

    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int

    def __str__(self) -> str:
        """As gRPC takes it."""
        return f"[{self.ip}]:{self.port}" if self.ip.version == 6 else f"{self.ip}:{self.port}"

    def reached_at(self, port: int) -> str:
        """How a process of this machine connects when this port was bound."""
        ip = ipaddress.ip_address("::1" if self.ip.version == 6 else _LOOPBACK) if self.ip.is_unspecified else self.ip
        return str(TcpAddress(ip, port))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A coordinator's server, as its workers reach it.

    `token`: what each call has to bring; None for a socket that no other process can reach. It travels to workers through the
    pipes that they are started by, and is in no argument, environment, file or message.
    """

    address: str
    token: str | None = field(default=None, repr=False)


def tcp_address(listen: str) -> TcpAddress | None:
    """What `RunSettings.listen` says; None for the Unix socket. Raises UsageError for anything else."""
    if listen == UNIX:
        return None
    if listen == _TCP:
        return TcpAddress(ipaddress.ip_address(_LOOPBACK), 0)
    try:
        parts = urlsplit(listen)
        if parts.scheme != _TCP or parts.path or parts.query or parts.fragment or parts.username or parts.port is None:
            raise ValueError(listen)
        return TcpAddress(ipaddress.ip_address(parts.hostname or ""), parts.port)
    except (ValueError, AttributeError, TypeError) as error:  # what a caller gives has no type yet
        raise UsageError(f"listen must be {_FORMS}, not {listen!r}") from error


def new_token() -> str:
    """For one coordinator's lifetime: no process of an earlier one has it."""
    return secrets.token_urlsafe(_TOKEN_BYTES)
