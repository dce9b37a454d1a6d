"""Offsets of a source in memory as JSON, as Spark's runner stores them."""

import json
from collections.abc import Mapping, Sequence

from headrace.enumerator.errors import StateError
from headrace.runners.spark.log_read import LogOffsets
from headrace.testing.memory import MemorySplit, MemorySplitSerializer


class MemoryOffsets:
    def to_json(self, offsets: LogOffsets[MemorySplit]) -> str:
        """{"splits": [...], "started": {...}, "initial": false}."""
        splits = [MemorySplitSerializer().serialize(offsets.splits[split_id]) for split_id in sorted(offsets.splits)]
        body = {"splits": splits, "began": dict(offsets.started_at), "initial": offsets.initial}
        return json.dumps(body, separators=(",", ":"), sort_keys=True)

    def from_json(self, text: str) -> LogOffsets[MemorySplit]:
        try:
            body = json.loads(text)
            splits = [MemorySplitSerializer().deserialize(1, data) for data in body["splits"]]
            started_at = {str(split_id): int(offset) for split_id, offset in body["began"].items()}
            return LogOffsets({split.split_id: split for split in splits}, started_at, bool(body["initial"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"these are not offsets of a memory source: {error!r}") from error

    def first_offsets(self, found: Sequence[MemorySplit], known: Mapping[str, MemorySplit]) -> Mapping[str, int]:
        return {split.split_id: 0 for split in found}

    def ends_to_json(self, ends: Mapping[str, int], splits: Mapping[str, MemorySplit]) -> str:
        """{"a": 3}."""
        return json.dumps({split_id: ends[split_id] for split_id in splits}, separators=(",", ":"), sort_keys=True)
