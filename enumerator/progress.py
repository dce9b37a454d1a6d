"""The reader's side of a checkpoint: what this reader has delivered of each split it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic

from headrace.enumerator.errors import ProtocolViolationError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import SplitBatch
from headrace.enumerator.split import SplitT


class ReaderProgress(Generic[SplitT]):
    """Positions by what was *delivered*, so a batch that was fetched but not delivered is not in a checkpoint.

    Owned by the thread that polls the reader. Holds a finished split until a completed checkpoint has it (FLINK-37416).
    """

    def __init__(self) -> None:
        self._states: dict[str, SplitState[SplitT]] = {}
        self._moved: dict[str, SplitState[SplitT]] = {}

    def assigned(self, splits: Iterable[SplitT]) -> None:
        for split in splits:
            self._states[split.split_id] = SplitState(split, finished=False)
            self._moved.pop(split.split_id, None)

    def delivered(self, batch: SplitBatch[SplitT]) -> None:
        """The batch was handed downstream. Raises ProtocolViolationError, a bug, when the split was never assigned."""
        split_id = batch.split.split_id
        if split_id not in self._states:
            raise ProtocolViolationError(
                f"a batch of split {split_id} was delivered, but the split was never assigned to this reader"
            )
        self._states[split_id] = self._moved[split_id] = SplitState(batch.split, batch.finished)

    def snapshot(self) -> Mapping[str, SplitState[SplitT]]:
        """What this reader must report: the splits it reads, and those finished since the last completed checkpoint."""
        return dict(self._states)

    def moved(self) -> Mapping[str, SplitState[SplitT]]:
        """The part of the report that no completed checkpoint has: a report of many splits is mostly what it was."""
        return dict(self._moved)

    def checkpoint_completed(self, reported: Mapping[str, SplitState[SplitT]]) -> None:
        """The checkpoint that has this report is durable: the splits finished in it need no reporting again."""
        for split_id, state in reported.items():
            if self._moved.get(split_id) is state:
                del self._moved[split_id]
            if state.finished:
                self._states.pop(split_id, None)
