"""Offsets of a whole Kafka source as one line of JSON: what Spark stores in a query's checkpoint.

Version 1, ours:

    {"headrace": 1, "offsets": {"t": {"0": 123}}, "began": {"t": {"0": 7}}, "topic_ids": {"t": "<uuid>"}, "initial": true}

`initial` is there only when true. A topic that was re-created has two ids under one name, so the key in the maps is then
`t@<uuid>`; in the common case it is the bare name, which people can read. The JVM connector's `{"t": {"0": 123}}` is read as
version 0: it names topics only, and the ids are those of the topics that exist when it is taken over.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headrace.connectors.kafka.read.reader import ALLOW_LOSS
from headrace.connectors.kafka.read.source import KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import DataLossError, StateError
from headrace.runners.spark.log_read import LogOffsets

VERSION = 1

PartitionOffsets = dict[str, dict[str, int]]


@dataclass(frozen=True)
class KafkaOffsets:
    """The offsets of one source's queries. Picklable, as its source is. Driver process."""

    source: KafkaSource

    def to_json(self, offsets: LogOffsets[KafkaSplit]) -> str:
        """The offsets in the newest version; the same text for the same offsets."""
        ordered = sorted(offsets.splits.values(), key=lambda split: (split.topic, str(split.topic_id), split.partition))
        names = {(split.topic, split.topic_id) for split in ordered}
        incarnations = Counter(topic for topic, _ in names)
        keys = {name: name[0] if incarnations[name[0]] == 1 else f"{name[0]}@{name[1]}" for name in names}
        positions: PartitionOffsets = {}
        began: PartitionOffsets = {}
        for split in ordered:
            key = keys[split.topic, split.topic_id]
            positions.setdefault(key, {})[str(split.partition)] = split.next_offset
            began.setdefault(key, {})[str(split.partition)] = offsets.began[split.split_id]
        document: dict[str, Any] = {
            "headrace": VERSION,
            "offsets": positions,
            "began": began,
            "topic_ids": {keys[name]: str(name[1]) for name in sorted(names, key=str) if name[1] is not None},
        }
        if offsets.initial:
            document["initial"] = True
        return json.dumps(document, separators=(",", ":"))

    def from_json(self, text: str) -> LogOffsets[KafkaSplit]:
        """Our own offsets, or those of Spark's JVM connector, whose topics are identified by asking the cluster.

        Raises StateError for anything else, and DataLossError when the other connector's partitions are gone.
        """
        document = parse(text)
        return from_document(document) if is_ours(document) else self._taken_over(parse_jvm(document))

    def ends_to_json(self, ends: Mapping[str, int], splits: Mapping[str, KafkaSplit]) -> str:
        """End offsets as the JVM connector shows them: {"topic": {"0": 123}}."""
        document: PartitionOffsets = {}
        for split in sorted(splits.values(), key=lambda split: (split.topic, split.partition)):
            document.setdefault(split.topic, {})[str(split.partition)] = ends[split.split_id]
        return json.dumps(document, separators=(",", ":"))

    def _taken_over(self, positions: Mapping[tuple[str, int], int]) -> LogOffsets[KafkaSplit]:
        identities = self.source.create_discovery().topic_ids(positions)
        gone = sorted(f"{topic}-{partition}" for topic, partition in positions.keys() - identities.keys())
        if gone and self.source.fail_on_data_loss:
            raise DataLossError(
                f"the checkpoint of Spark's Kafka connector names partitions that are gone: {', '.join(gone)}. {ALLOW_LOSS}"
            )
        found = [KafkaSplit(tp[0], identities[tp], tp[1], at) for tp, at in positions.items() if tp in identities]
        if not found and positions:
            raise StateError(f"none of the checkpoint's partitions is among those subscribed to: {', '.join(gone)}")
        return LogOffsets({split.split_id: split for split in found}, began={})


def parse(text: str) -> Mapping[str, Any]:
    """The JSON object in the text. Raises StateError when there is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"the checkpoint's offset is not JSON ({error}): {text[:200]!r}") from error
    if not isinstance(document, dict):
        raise StateError(f"the checkpoint's offset is not a JSON object: {text[:200]!r}")
    return document


def is_ours(document: Mapping[str, Any]) -> bool:
    """False for the JVM connector's form, whose only keys are topics (one of which may be called "headrace")."""
    return isinstance(document.get("headrace"), int)


def from_document(document: Mapping[str, Any]) -> LogOffsets[KafkaSplit]:
    """Offsets of any version of ours. Raises StateError for a newer version or a damaged document."""
    version = document["headrace"]
    if version != VERSION:
        raise StateError(
            f"the checkpoint's offset has version {version}, and this headrace reads version {VERSION}; "
            "continue it with the headrace that wrote it, or a newer one"
        )
    try:
        splits: dict[str, KafkaSplit] = {}
        began: dict[str, int] = {}
        for key, partitions in document["offsets"].items():
            text_id = document["topic_ids"].get(key)
            topic_id = UUID(text_id) if text_id is not None else None
            topic = key.rsplit("@", 1)[0]  # no topic name has an @
            for partition, offset in partitions.items():
                split = KafkaSplit(topic, topic_id, int(partition), int(offset))
                splits[split.split_id] = split
                began[split.split_id] = int(document["began"][key][partition])
        return LogOffsets(splits, began, initial=bool(document.get("initial", False)))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StateError(f"the checkpoint's offset is damaged: {type(error).__name__}: {error}") from error


def parse_jvm(document: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """(topic, partition) -> next offset, from the JVM connector's form. Raises StateError when it is not of that form."""
    try:
        offsets = {
            (topic, int(partition)): int(offset)
            for topic, partitions in document.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise StateError(f"the checkpoint's offset is neither headrace's nor Spark's Kafka connector's: {document}") from error
    if any(offset < 0 for offset in offsets.values()):
        raise StateError(f"the checkpoint's offset holds negative offsets: {document}")
    return offsets
