"""The reader of one call: cached by an earlier one or new, and where each of its splits is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from apache_beam.utils.timestamp import Timestamp

from headrace.enumerator.source import SourceReader, SplitBatch
from headrace.enumerator.split import SplitT
from headrace.runners.beam.worker import Cached, CachedReaders


class HeldReader(Generic[SplitT]):
    """Holds the reader of some splits for one call. Leaving it caches the reader, or closes it when the call has failed."""

    def __init__(
        self, create: Callable[[], SourceReader[SplitT]], cached: CachedReaders[SplitT], splits: Sequence[SplitT]
    ) -> None:
        """Takes the cached reader that is where these splits do, or creates one when it is first needed."""
        self._create = create
        self._cached = cached
        self.positions = {split.split_id: split for split in splits}
        """The splits that are read, where they are."""
        self.ended: dict[str, SplitT] = {}
        """Those that are read no more, where this call left them."""
        self.delivered: set[str] = set()
        """Those of which this call has delivered something."""
        found = cached.take(self.positions)
        self._reader: SourceReader[SplitT] | None = None if found is None else found.reader
        self.latest: dict[str, Timestamp] = {} if found is None else dict(found.latest)
        """When the latest record happened that each split has delivered, since this reader started."""

    def __enter__(self) -> HeldReader[SplitT]:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        """The call is over. A generator that is left in the middle has failed, too."""
        if self._reader is not None and failed is None and self.positions:
            self._cached.cache(Cached(self._reader, self.positions, self.latest))
        else:
            self._close()

    def poll(self, timeout_s: float) -> SplitBatch[SplitT] | None:
        if self._reader is None:
            self._reader = self._create()
            self._reader.add_splits(list(self.positions.values()))
        return self._reader.poll(timeout_s)

    def granted(self, batch: SplitBatch[SplitT], left: SplitT | None) -> None:
        """The batch is delivered. `left`: what the call has still to read of the split; None for nothing."""
        split_id = batch.split.split_id
        self.delivered.add(split_id)
        if left is not None:
            self.positions[split_id] = batch.split
            return
        del self.positions[split_id]
        self.ended[split_id] = batch.split
        if not batch.finished:  # it ends earlier now than the reader knows
            self._close()

    def refused(self, left: Sequence[SplitT]) -> None:
        """A batch reached into what is another call's now. `left` is what this one has still to read, and where it ends now."""
        positions = {split.split_id: split for split in left}
        self.ended.update((split_id, split) for split_id, split in self.positions.items() if split_id not in positions)
        self.positions = positions
        self._close()

    def happened(self, split_id: str, latest: Timestamp) -> None:
        self.latest[split_id] = max(latest, self.latest.get(split_id, latest))

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
