"""How the fake broker says no: an error code of Kafka's protocol, raised as an exception."""

from __future__ import annotations

from headrace.connectors.kafka.client.error_codes import ErrorCode, error_name

__all__ = ["ErrorCode", "RefusedError"]


class RefusedError(Exception):
    """What the broker answers instead of doing what was asked: a code, and where the protocol has space for it a sentence."""

    def __init__(self, code: int, message: str | None = None, *, about: str | None = None) -> None:
        """`code` is an ErrorCode, but for a number that a script made up; `message` is what clients print.

        `about` is for a test that works on the cluster: a broker says no more than the code.
        """
        super().__init__(message or about or error_name(code))
        self.code = code
        self.message = message
