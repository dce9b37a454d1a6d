"""Waiting for a server, by looking."""

from __future__ import annotations

from collections.abc import Callable

from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from headrace.enumerator.errors import DeadlineExceededError, RetriableError

POLL_S = 0.05
WAIT_S = 120.0


def wait_until(check: Callable[[], None], what: str, seconds: float = WAIT_S, pause_s: float = POLL_S) -> None:
    """Call `check`, by default every 50 ms, until it no longer raises RetriableError.

    Raises DeadlineExceededError, beginning with `what`, after `seconds`; and at once whatever else `check` raises.
    """
    attempts = Retrying(retry=retry_if_exception_type(RetriableError), stop=stop_after_delay(seconds), wait=wait_fixed(pause_s))
    try:
        attempts(check)
    except RetryError as error:
        last = error.last_attempt.exception()
        raise DeadlineExceededError(f"{what}: not within {seconds:.0f} s; last seen: {last}") from last
