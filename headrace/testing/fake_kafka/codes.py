"""How the fake broker says no: an error code of Kafka's protocol, raised as an exception."""

from __future__ import annotations

from headrace.connectors.kafka.client.error_codes import ErrorCode

__all__ = ["ErrorCode", "RefusedError"]


class RefusedError(Exception):
    """What the broker answers instead of doing what was asked: a code, and where the protocol has room for it a sentence."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        """`message` is what clients print."""
        super().__init__(message or code.name)
        self.code = code
        self.message = message
