"""Assignment among the workers that are alive: what a lost worker held goes to the others, and does not wait for its return."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from headrace.enumerator.enumerator import SplitEnumerator
from headrace.enumerator.events import Assign
from headrace.enumerator.split import SplitT


class BalancedEnumerator(SplitEnumerator[SplitT]):
    """Assigns every split at once, each to the registered reader that holds the fewest. Nothing before `release`."""

    _released = False

    def release(self) -> None:
        """The first readers are there. Before, the first of them would get everything."""
        self._released = True

    def assignments(self, readers: Sequence[int]) -> list[Assign[SplitT]]:
        if not self._released or not readers or not self.ledger.unassigned:
            return []
        loads = [(self.ledger.load(reader), reader) for reader in readers]
        heapq.heapify(loads)
        given: dict[int, list[SplitT]] = {}
        for split_id in list(self.ledger.unassigned):
            load, reader = loads[0]
            given.setdefault(reader, []).append(self.ledger.assign(split_id, reader))
            heapq.heapreplace(loads, (load + 1, reader))
        return [Assign(reader, tuple(splits)) for reader, splits in given.items()]
