"""The retry policy, that of the Java client: exponential backoff with jitter, up to `default.api.timeout.ms`.

Its default, 60 s, bounds a call and not a job: `OutageError` is retriable, and whoever can goes on. A limit that somebody set
is one: `DeadlineExceededError`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import tenacity

from headrace.connectors.kafka.client.errors import UnknownTopicError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.enumerator.errors import DeadlineExceededError, OutageError, is_retriable

__all__ = ["Retries"]

T = TypeVar("T")

_LONGEST_CALL_S = 60.0
_UNKNOWN_TOPIC_GRACE_S = 3.0  # a topic just created is not known to every broker at once


class _Grace:
    """How long a topic has been unknown without a break. What no broker could be asked in between proves nothing."""

    def __init__(self) -> None:
        self._since: float | None = None

    def ends_with(self, error: BaseException) -> bool:
        if not isinstance(error, UnknownTopicError):
            self._since = None
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since > _UNKNOWN_TOPIC_GRACE_S


class Retries:
    """Runs operations until they raise no retriable error. Thread-safe; after `close` nothing is tried again."""

    def __init__(self, config: ClientConfig) -> None:
        """`retry.backoff.ms`, `retry.backoff.max.ms` and `default.api.timeout.ms` are taken from the configuration."""
        self._config = config
        self._closed = threading.Event()

    def close(self) -> None:
        """Wake every thread that waits between two tries; its operation then fails with the last error."""
        self._closed.set()

    def start_afresh(self) -> None:
        """In a forked child: a thread of the parent may have held the event's lock."""
        self._closed = threading.Event()

    def run(self, what: str, operation: Callable[[], T]) -> T:
        """See `KafkaCluster.retrying`."""
        started = time.monotonic()
        limit_ms = self._config.default_api_timeout_ms
        grace = _Grace()

        def worth_another_try(error: BaseException) -> bool:
            return not grace.ends_with(error) and is_retriable(error) and not self._closed.is_set()

        def give_up(state: tenacity.RetryCallState) -> T:
            assert state.outcome is not None
            error = state.outcome.exception()
            waited = time.monotonic() - started
            kind = OutageError if limit_ms is None else DeadlineExceededError
            raise kind(
                f"{what}: gave up after {state.attempt_number} tries in {waited:.1f} s; the last error was: {error}"
            ) from error

        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(worth_another_try),
            stop=tenacity.stop_before_delay(_LONGEST_CALL_S if limit_ms is None else limit_ms / 1000),
            wait=lambda state: self._backoff_s(state.attempt_number),
            sleep=self._pause,
            retry_error_callback=give_up,
        )
        return tries(operation)

    def back_off(self, attempt: int) -> None:
        """See `KafkaCluster.back_off`."""
        self._pause(self._backoff_s(attempt))

    def _backoff_s(self, attempt: int) -> float:
        longest = max(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        milliseconds = min(self._config.retry_backoff_ms * 2 ** min(attempt - 1, 30), longest)
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 - as Java's (KIP-580); it is no secret
        return float(milliseconds / 1000 * jitter)

    def _pause(self, seconds: float) -> None:
        self._closed.wait(seconds)
