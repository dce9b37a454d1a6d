"""The Kafka positions that a source has stored in a checkpoint, whichever connector has written them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import StateError
from headrace.runners.spark.log_read import LogOffsets
from headrace.spark.kafka_offsets import offsets_to_json, parse, parse_jvm, parse_ours, pinned_formats


class OffsetForm(Enum):
    """Who has written a source's offsets."""

    HEADRACE = "headrace"
    JVM = "jvm"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class StoredPositions:
    """One source's offsets of one batch. The JVM connector's have no topic ids. `formats`: what ours pin of keys and values."""

    form: OffsetForm
    offsets: LogOffsets[KafkaSplit]
    formats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[KafkaSplit]:
        return iter(sorted(self.offsets.splits.values(), key=lambda split: (split.topic, str(split.topic_id), split.partition)))

    def changed(self, splits: Mapping[str, KafkaSplit]) -> StoredPositions:
        started_at = {split_id: at for split_id, at in self.offsets.started_at.items() if split_id in splits}
        return replace(self, offsets=LogOffsets(splits, started_at, self.offsets.initial))

    def to_text(self, form: OffsetForm | None = None) -> str:
        """As the connector of that form writes them; None for their own. Raises StateError where it cannot."""
        if (form or self.form) is OffsetForm.HEADRACE:
            return offsets_to_json(self.offsets, self.formats)
        if self.offsets.initial:
            raise StateError("the batch was not planned yet: it has no positions that another connector could continue from")
        document: dict[str, dict[str, int]] = {}
        for split in self:
            partitions = document.setdefault(split.topic, {})
            if str(split.partition) in partitions:
                raise StateError(
                    f"topic {split.topic} was created again, and positions of both are stored; the JVM connector knows a topic "
                    "by its name alone. Let headrace read on until the older one is dropped"
                )
            partitions[str(split.partition)] = split.next_offset
        return json.dumps(document, separators=(",", ":"))


_NOT_KAFKAS = StoredPositions(OffsetForm.OTHER, LogOffsets({}, {}))


def stored_positions(text: str | None) -> StoredPositions:
    """From the text in the offset log. OTHER for a source that is not Kafka's. Raises StateError where it is damaged."""
    if text is None or not text.startswith("{"):
        return _NOT_KAFKAS
    document = parse(text)
    ours = parse_ours(document)
    if ours is not None:
        return StoredPositions(OffsetForm.HEADRACE, ours, pinned_formats(document))
    if not all(map(_is_by_partition, document.values())):
        return _NOT_KAFKAS
    splits = [KafkaSplit(topic, None, partition, at) for (topic, partition), at in parse_jvm(document).items()]
    return StoredPositions(OffsetForm.JVM, LogOffsets({split.split_id: split for split in splits}, {}))


def _is_by_partition(offsets: object) -> bool:
    """Whether these may be one topic's. Spark's files have `{"logOffset": 3}`, Kinesis `{"shard": {"iteratorType": "x"}}`."""
    return isinstance(offsets, dict) and all(
        partition.isascii() and partition.isdigit() and type(at) is int for partition, at in offsets.items()
    )


def moved(split: KafkaSplit, to: int) -> KafkaSplit:
    """The split at another position: of which leader epoch what is before it is, is not known."""
    return replace(split, next_offset=to, last_epoch=None)
