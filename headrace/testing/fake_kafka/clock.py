"""The broker's clock, which a test can move: transaction timeouts, sessions of groups, retention and expiry follow it."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.enumerator.errors import UsageError


class Clock:
    """Goes as the machine's clock goes, and jumps ahead on demand. May be moved from any thread.

    How long a Fetch waits for data is real time in any case: it is the client's timeout, not the broker's.
    """

    def __init__(self) -> None:
        self._ahead_ms = 0
        self._listeners: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._base_ms() + self._ahead_ms

    def advance(self, seconds: float) -> None:
        """Jump ahead; what is due by then (an expired transaction, a lost member of a group) happens now.

        Raises UsageError for a step back: no broker has one to offer.
        """
        if seconds < 0:
            raise UsageError(f"a clock goes ahead only, not by {seconds} s")
        self._ahead_ms += round(seconds * 1000)
        for listener in self._listeners:
            listener()

    def on_advance(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def _base_ms(self) -> int:
        return time.time_ns() // 1_000_000


class StoppedClock(Clock):
    """Is still but for `advance`: nothing ever expires by itself."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        """At this time, milliseconds since 1970; default: a day in November 2023."""
        super().__init__()
        self._at_ms = now_ms

    def _base_ms(self) -> int:
        return self._at_ms
