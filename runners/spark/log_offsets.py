"""Offsets of any log source as one line of JSON, for sources without a form that others read (Kafka has one).

In the envelope of `headrace.enumerator.envelope`, version 1:

    {"source": "memory", "initial": false, "split_version": 1, "splits": [{...}], "started_at": {"a": 0}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from headrace.enumerator.envelope import Envelope, compact, readable_version, stored_number, stored_truth
from headrace.enumerator.errors import StateError
from headrace.enumerator.source import LogSource
from headrace.enumerator.split import OffsetSplitT
from headrace.runners.spark.log_read import WHERE, LogOffsets, check_source

OFFSETS = Envelope("headrace-log-offsets", "offset of a batch")


@dataclass(frozen=True)
class SplitOffsets(Generic[OffsetSplitT]):
    """The offsets of one source's queries, each split as the source serializes it. Picklable. Driver process."""

    source: LogSource[OffsetSplitT]

    def to_json(self, offsets: LogOffsets[OffsetSplitT]) -> str:
        serializer = self.source.split_serializer
        ordered = sorted(offsets.splits.values(), key=lambda split: split.split_id)
        body = {
            "source": self.source.name,
            "initial": offsets.initial,
            "split_version": serializer.version,
            "splits": [serializer.serialize(split) for split in ordered],
            "started_at": {split.split_id: offsets.started_at[split.split_id] for split in ordered},
        }
        return OFFSETS.seal(body).decode()

    def from_json(self, text: str) -> LogOffsets[OffsetSplitT]:
        """What `to_json` wrote. Raises StateError for anything else, such as another source's."""
        body = OFFSETS.open(text, WHERE)
        with OFFSETS.reading(WHERE):
            check_source(body["source"], self.source)
            serializer = self.source.split_serializer
            version = readable_version(body["split_version"], serializer.version)
            splits = [serializer.deserialize(version, item) for item in body["splits"]]
            started_at = {str(split_id): stored_number(offset) for split_id, offset in body["started_at"].items()}
            return LogOffsets({split.split_id: split for split in splits}, started_at, stored_truth(body["initial"]))

    def first_offsets(self, found: Sequence[OffsetSplitT], known: Mapping[str, OffsetSplitT]) -> Mapping[str, int]:
        """Raises StateError: no other connector writes such offsets."""
        names = ", ".join(split.split_id for split in found)
        raise StateError(f"{WHERE} does not say where these splits started (it does of {len(known)} others): {names}")

    def ends_to_json(self, ends: Mapping[str, int], splits: Mapping[str, OffsetSplitT]) -> str:
        return compact({split_id: ends[split_id] for split_id in sorted(splits)})
