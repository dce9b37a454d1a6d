"""How long runners pause: between two discovery rounds, and in one poll of a reader. Seconds, without a clock.

A round is unsuccessful if it failed, or left something inconclusive. The pause doubles with each such round in a row.
"""

from __future__ import annotations

DISCOVERY_RETRY_S = 1.0
"""The first pause after an unsuccessful discovery round."""

DISCOVERY_RETRY_MAX_S = 60.0
"""The longest such pause. A round may last as long as a silent server is waited for, and holds up reading meanwhile."""

POLL_TIMEOUT_S = 0.5
"""How long one poll of a reader waits for records, where the caller has nothing else to do but to look at the clock."""


class DiscoveryPauses:
    """The pauses between the discovery rounds of one run."""

    def __init__(self, interval_s: float | None = None) -> None:
        """`interval_s`: the pause after a round that found all there is; None if such a round is the last."""
        self._interval_s = interval_s
        self.retry_s: float | None = None
        """The pause after the last round if that was unsuccessful, whatever the interval; None if it was not."""

    def after_success(self) -> float | None:
        """After a round that found all there is; None if no other is due."""
        self.retry_s = None
        return self._interval_s

    def after_inconclusive(self) -> float:
        """After a round that left something inconclusive: the next one is soon, however long the interval is."""
        retry_s = self._longer()
        return min(self._interval_s or retry_s, retry_s)

    def after_failure(self) -> float:
        """After a round that failed: the interval, or a retry where there is none."""
        retry_s = self._longer()
        return self._interval_s or retry_s

    def _longer(self) -> float:
        self.retry_s = DISCOVERY_RETRY_S if self.retry_s is None else min(2 * self.retry_s, DISCOVERY_RETRY_MAX_S)
        return self.retry_s
