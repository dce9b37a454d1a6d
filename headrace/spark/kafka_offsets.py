"""Offsets of a whole Kafka source as one line of JSON: what Spark stores in a query's checkpoint, and shows in its progress.

Version 2, ours, is also what Spark's own Kafka connector writes, so what reads that (listeners that compute lags, the connector
itself) reads ours:

    {"t": {"0": 123}, "headrace:{\\"version\\":2,...}": {}}

No topic has a colon in its name, and this one has no partitions. The key is the rest, as JSON:

    {"version": 2, "started": {"t": {"0": 7}}, "topic_ids": {"t": "<uuid>"}, "epochs": {"t": {"0": 5}}, "offsets": {},
     "initial": true}

`started` is the offset that each partition's first batch started from; `epochs`, where known, that of the leader whose log held
all before the position (KIP-320); `initial` is there only when true. A topic that was re-created has two ids under one name.
Then the key in the maps is `t@<uuid>`, and the positions are in `offsets`: what others read names a topic once.

Version 3 is version 2 of a query that decodes keys or values. The rest has `formats` besides: by `key` and `value` what
`kafka_formats.TypedFormat` pins, which a restart is compared with:

    "formats": {"value": {"format": "avro", "id": "7", "fingerprint": "0123456789abcdef", "type": {"a": "int32"}}}

Version 1 was an object of ours alone, and is read:

    {"headrace": 1, "offsets": {"t": {"0": 123}}, "started": {"t": {"0": 7}}, "topic_ids": {"t": "<uuid>"}, "initial": true}

The JVM connector's `{"t": {"0": 123}}` is read as version 0: it names topics only, and the ids are those of the topics that
exist when it is taken over.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headrace.connectors.formats.value_format import ValueFormat
from headrace.connectors.kafka.read.reader import ALLOW_LOSS
from headrace.connectors.kafka.read.source import KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import DataLossError, StateError
from headrace.runners.spark.log_read import LogOffsets
from headrace.spark.kafka_formats import Field, TypedFormat, check_pinned

VERSION = 3
PLAIN_VERSION = 2
"""Written where nothing is decoded, so that an older headrace can continue with the query."""

OURS = "headrace:"

PartitionNumbers = dict[str, dict[str, int]]
"""Topic -> partition -> an offset, or a leader epoch."""


@dataclass(frozen=True)
class KafkaOffsets:
    """The offsets of one source's queries. Picklable, as its source is. Driver process."""

    source: KafkaSource

    def to_json(self, offsets: LogOffsets[KafkaSplit]) -> str:
        """The offsets in the newest version; the same text for the same offsets."""
        return offsets_to_json(offsets, {field: each.pinned for field, each in self._formats().items()})

    def from_json(self, text: str) -> LogOffsets[KafkaSplit]:
        """Our own offsets, or those of Spark's JVM connector, whose topics are identified by asking the cluster.

        Raises StateError for anything else, and where keys or values were decoded otherwise than they are now; DataLossError
        when the other connector's partitions are gone.
        """
        document = parse(text)
        found = parse_ours(document)
        check_pinned(pinned_formats(document), self._formats())
        return self._taken_over(parse_jvm(document)) if found is None else found

    def _formats(self) -> dict[Field, TypedFormat]:
        found: dict[Field, ValueFormat | None] = {"key": self.source.key, "value": self.source.value}
        return {field: each for field, each in found.items() if isinstance(each, TypedFormat)}

    def ends_to_json(self, ends: Mapping[str, int], splits: Mapping[str, KafkaSplit]) -> str:
        """End offsets as the JVM connector shows them: {"topic": {"0": 123}}."""
        document: PartitionNumbers = {}
        for split in sorted(splits.values(), key=lambda split: (split.topic, split.partition)):
            document.setdefault(split.topic, {})[str(split.partition)] = ends[split.split_id]
        return _compact(document)

    def begins(self, found: Sequence[KafkaSplit], known: Mapping[str, KafkaSplit]) -> Mapping[str, int]:
        """The first record of each, whatever startingOffsetsOfNewPartitions says: the JVM connector knows no other start.

        The end itself where the partition is gone, or starts behind it by now. Raises OutageError while it is not known which
        are gone.
        """
        firsts = self.source.create_discovery().first_offsets(found)
        return {split.split_id: min(firsts.get(split.split_id, split.next_offset), split.next_offset) for split in found}

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


def offsets_to_json(offsets: LogOffsets[KafkaSplit], formats: Mapping[Any, Mapping[str, Any]]) -> str:
    """The offsets in the newest version; the same text for the same offsets. `formats`: what `pinned_formats` gives."""
    ordered = sorted(offsets.splits.values(), key=lambda split: (split.topic, str(split.topic_id), split.partition))
    names = sorted({(split.topic, split.topic_id) for split in ordered}, key=str)
    driver_ids = Counter(topic for topic, _ in names)
    keys = {name: name[0] if driver_ids[name[0]] == 1 else f"{name[0]}@{name[1]}" for name in names}
    shown: PartitionNumbers = {}
    rest: dict[str, Any] = {
        "version": VERSION if formats else PLAIN_VERSION,
        "began": {},
        "topic_ids": {},
        "epochs": {},
        "offsets": {},
    }
    for split in ordered:
        key, partition = keys[split.topic, split.topic_id], str(split.partition)
        positions = shown if key == split.topic else rest["offsets"]
        positions.setdefault(key, {})[partition] = split.next_offset
        rest["began"].setdefault(key, {})[partition] = offsets.began[split.split_id]
        if split.last_epoch is not None:
            rest["epochs"].setdefault(key, {})[partition] = split.last_epoch
    rest["topic_ids"] = {keys[name]: str(name[1]) for name in names if name[1] is not None}
    if formats:
        rest["formats"] = dict(formats)
    if offsets.initial:
        rest["initial"] = True
    return _compact({**shown, f"{OURS}{_compact(rest)}": {}})


def parse(text: str) -> Mapping[str, Any]:
    """The JSON object in the text. Raises StateError when there is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"the checkpoint's offset is not JSON ({error}): {text[:200]!r}") from error
    if not isinstance(document, dict):
        raise StateError(f"the checkpoint's offset is not a JSON object: {text[:200]!r}")
    return document


def parse_ours(document: Mapping[str, Any]) -> LogOffsets[KafkaSplit] | None:
    """Offsets of any version of ours; None for the JVM connector's form, whose only keys are topics.

    One of these may be called "headrace", and is a map. Raises StateError for a newer version or a damaged document.
    """
    own = [key for key in document if key.startswith(OURS)]
    if not own and not isinstance(document.get("headrace"), int):
        return None
    rest = parse(own[0].removeprefix(OURS)) if own else document
    version = rest.get("version") if own else document["headrace"]
    if len(own) > 1 or type(version) is not int or version not in ((PLAIN_VERSION, VERSION) if own else (1,)):
        raise StateError(
            f"the checkpoint's offset has version {version}, and this headrace reads versions 1 to {VERSION}; "
            "continue it with the headrace that wrote it, or a newer one"
        )
    try:
        if not own:
            return _offsets(rest["offsets"], rest, {})
        shown = {key: partitions for key, partitions in document.items() if not key.startswith(OURS)}
        return _offsets({**shown, **rest["offsets"]}, rest, rest["epochs"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StateError(f"the checkpoint's offset is damaged: {type(error).__name__}: {error}") from error


def pinned_formats(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """What offsets of version 3 pin of the formats of keys and values; nothing for others. Raises StateError for damage."""
    own = [key for key in document if key.startswith(OURS)]
    formats = parse(own[0].removeprefix(OURS)).get("formats", {}) if own else {}
    if not isinstance(formats, dict) or not all(isinstance(each, dict) for each in formats.values()):
        raise StateError("the checkpoint's offset is damaged: its formats are not objects")
    return formats


def _offsets(
    positions: Mapping[str, Mapping[str, Any]], rest: Mapping[str, Any], epochs: Mapping[str, Mapping[str, Any]]
) -> LogOffsets[KafkaSplit]:
    splits: dict[str, KafkaSplit] = {}
    began: dict[str, int] = {}
    for key, partitions in positions.items():
        text_id = rest["topic_ids"].get(key)
        topic_id = UUID(text_id) if text_id is not None else None
        topic = key.rsplit("@", 1)[0]  # no topic name has an @
        for partition, offset in partitions.items():
            epoch = epochs.get(key, {}).get(partition)
            known = None if epoch is None else int(epoch)
            split = KafkaSplit(topic, topic_id, int(partition), int(offset), last_epoch=known)
            splits[split.split_id] = split
            began[split.split_id] = int(rest["began"][key][partition])
    return LogOffsets(splits, began, initial=bool(rest.get("initial", False)))


def _compact(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


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
