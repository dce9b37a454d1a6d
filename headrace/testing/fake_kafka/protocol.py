"""The one module of the fake that touches kafka-python: requests decoded, responses encoded, both by its protocol classes.

They are not its public API; `headrace.connectors.kafka.client.wire`, which is imported first, checks the version.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from kafka.protocol import admin, consumer, metadata, producer, sasl

import headrace.connectors.kafka.client.wire  # noqa: F401  it checks kafka-python's version

__all__ = [
    "Header",
    "Message",
    "admin",
    "consumer",
    "decode_request",
    "encode_response",
    "metadata",
    "parse_header",
    "producer",
    "sasl",
]

Message = Any
"""A request or response of kafka-python's protocol classes, which have no types."""

_FIXED = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id


class Header(NamedTuple):
    """A request's header (https://kafka.apache.org/protocol#protocol_messages), and where its body starts."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    end: int


def _requests() -> dict[int, Message]:
    found = {}
    for module in (admin, consumer, metadata, producer, sasl):
        for name in module.__all__:
            kind = getattr(module, name)
            if name.endswith("Request") and hasattr(kind, "valid_versions"):
                found[int(kind.API_KEY)] = kind
    return found


_REQUESTS = _requests()


def parse_header(frame: memoryview) -> Header:
    """Without the tags of a flexible header, which are empty from every client that there is. Raises struct.error."""
    key, version, correlation_id, size = _FIXED.unpack_from(frame)
    end = _FIXED.size + max(size, 0)
    client_id = None if size < 0 else str(frame[_FIXED.size : end], "utf-8")
    return Header(key, version, correlation_id, client_id, end)


def decode_request(header: Header, frame: memoryview) -> Message:
    """The body of a request. Raises ValueError, IndexError or struct.error for bytes that are none."""
    kind = _REQUESTS[header.key]
    start = header.end + 1 if kind.flexible_version_q(header.version) else header.end
    return kind.decode(frame[start:], version=header.version)


def encode_response(response: Message, version: int, correlation_id: int) -> bytearray:
    """A response with its header and its length, ready to be sent."""
    response.API_VERSION = version  # before the header, which has none
    response.with_header(correlation_id=correlation_id)
    encoded: bytearray = response.encode(header=True, framed=True)
    return encoded
