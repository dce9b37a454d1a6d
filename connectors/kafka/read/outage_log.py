"""Partitions that cannot be fetched for now: said once when it lasts, and once when it is over. Sans-I/O."""

from __future__ import annotations

from headrace.connectors.kafka.client.topology import TopicPartition
from headrace.enumerator.errors import HeadraceError
from headrace.enumerator.source_driver import FailureLog

SAID_AFTER_S = 10.0
"""How long partitions fail before the log says so, in seconds: a leader that moves is not a news."""


class Outages:
    """What fails, since when, and what was said of it. The fetcher guards it with its lock."""

    def __init__(self) -> None:
        self._failing: set[TopicPartition] = set()
        self._since = 0.0
        self._log = FailureLog()
        self._error: HeadraceError | None = None

    def failed(self, key: TopicPartition, error: HeadraceError, now: float) -> None:
        self._error = error
        if not self._failing and not self._log.is_failing:
            self._since = now
        self._failing.add(key)

    def over(self, key: TopicPartition) -> None:
        self._failing.discard(key)

    def news(self, now: float) -> str | None:
        """A line for the log, or None. However it failed: by a lost connection, or by an error code in an answer."""
        waited = now - self._since
        if self._failing and waited >= SAID_AFTER_S and self._log.failed():
            named = ", ".join(f"{topic}-{number}" for topic, number in sorted(self._failing)[:5])
            more = "" if len(self._failing) <= 5 else f" and {len(self._failing) - 5} more"
            return f"nothing can be fetched of {named}{more} for {waited:.0f} s; trying on. The last error was: {self._error}"
        if not self._failing and self._log.worked():
            return f"every partition is fetched again, after {waited:.0f} s"
        return None
