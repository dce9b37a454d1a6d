"""Where each leader epoch of a partition starts (KIP-101, KIP-279): by this a client finds where two histories part."""

from __future__ import annotations

NONE = (-1, -1)


class LeaderEpochs:
    """(epoch, first offset), ascending in both."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = [(0, 0)]
        self.latest: int = 0

    def begin(self, epoch: int, offset: int) -> None:
        """A leader takes over at `offset`; epochs in which nothing was written are forgotten."""
        self._entries = [(old, start) for old, start in self._entries if old < epoch and start < offset]
        self._entries.append((epoch, offset))
        self.latest = epoch

    def at(self, offset: int) -> int:
        """The epoch in which `offset` was written, or would be."""
        return max((epoch for epoch, start in self._entries if start <= offset), default=self.latest)

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """As OffsetForLeaderEpoch (23) answers: the greatest epoch up to the asked one, and the offset after its last record.

        (-1, -1) for an epoch that is not known.
        """
        if epoch == self.latest:
            return epoch, log_end
        if epoch > self.latest or epoch < 0:
            return NONE
        later = next((at for at, (started, _) in enumerate(self._entries) if started > epoch), None)
        if later is None:
            return NONE
        if later == 0:
            return epoch, self._entries[0][1]
        return self._entries[later - 1][0], self._entries[later][1]

    def drop_before(self, start_offset: int) -> None:
        earlier = [(epoch, start) for epoch, start in self._entries if start <= start_offset]
        later = [(epoch, start) for epoch, start in self._entries if start > start_offset]
        self._entries = [(earlier[-1][0], start_offset), *later] if earlier else later

    def drop_from(self, end_offset: int) -> None:
        self._entries = [(epoch, start) for epoch, start in self._entries if start < end_offset] or [(self.latest, end_offset)]
        self.latest = self._entries[-1][0]
