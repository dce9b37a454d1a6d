"""How the fake broker says no: an error code of Kafka's protocol, raised as an exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.connectors.kafka.client.error_codes import ErrorCode, error_name

__all__ = ["ErrorCode", "RefusedError", "code_of", "outcome_of"]


class RefusedError(Exception):
    """What the broker answers instead of doing what was asked: a code, and where the protocol has space for it a sentence."""

    def __init__(self, code: int, message: str | None = None, *, about: str | None = None) -> None:
        """`code` is an ErrorCode, but for a number that a script made up; `message` is what clients print.

        `about` is for a test that works on the cluster: a broker says no more than the code.
        """
        super().__init__(message or about or error_name(code))
        self.code = code
        self.message = message


def code_of(act: Callable[[], object]) -> int:
    """Do it, and return the code that it was refused with, or NONE."""
    return int(outcome_of(act)["error_code"])


def outcome_of(act: Callable[[], object]) -> dict[str, Any]:
    """As `code_of`, with the sentence, as fields of an answer."""
    try:
        act()
    except RefusedError as error:
        return {"error_code": error.code, "error_message": error.message}
    return {"error_code": ErrorCode.NONE, "error_message": None}
