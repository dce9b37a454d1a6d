"""Assignment among the workers that are alive: what a lost worker held goes to the others, and does not wait for its return."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from headrace.enumerator.enumerator import SharingEnumerator
from headrace.enumerator.events import Assign
from headrace.enumerator.split import SplitT


class BalancedPieces(SharingEnumerator[SplitT]):
    """Assigns a few splits to each registered reader. Nothing before `release`."""

    _released = False

    def release(self) -> None:
        """The first readers are there. Before, the first of them would get everything."""
        self._released = True

    def assignments(self, readers: Sequence[int]) -> list[Assign[SplitT]]:
        return super().assignments(readers) if self._released and self.ledger.unassigned else []


class BalancedEnumerator(BalancedPieces[SplitT]):
    """Assigns every split at once, each to the registered reader that reads the fewest."""

    at_once = sys.maxsize
