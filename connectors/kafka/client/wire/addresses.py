"""The addresses of the bootstrap servers, as `client.dns.lookup` has them (KIP-235)."""

from __future__ import annotations

import socket

from headrace.connectors.kafka.client.errors import ConnectionLostError
from headrace.connectors.kafka.client.properties import ClientConfig, DnsLookup


def bootstrap_addresses(config: ClientConfig) -> tuple[tuple[str, int], ...]:
    """(host, port) of each. Asks the name service where canonical names are wanted, and raises `ConnectionLostError` if no
    name has an address.
    """
    if config.client_dns_lookup is DnsLookup.USE_ALL_DNS_IPS:
        return config.bootstrap_servers
    found: dict[tuple[str, int], None] = {}
    failure: OSError | None = None
    for host, port in config.bootstrap_servers:
        try:
            found |= dict.fromkeys((name, port) for name in _canonical_names(host, port))
        except OSError as error:
            failure = error
    if not found:
        raise ConnectionLostError(f"no address of {config.bootstrap} is known to the name service: {failure}") from failure
    return tuple(found)


def _canonical_names(host: str, port: int) -> list[str]:
    """The name of each IP address of this host; the IP address itself where it has no name."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [socket.getnameinfo(address, 0)[0] for *_, address in addresses]
