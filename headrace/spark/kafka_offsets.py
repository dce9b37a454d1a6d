"""Offsets of a whole Kafka source as one line of JSON: what Spark stores in a query's checkpoint, and shows in its progress.

Spark's own Kafka connector writes the same, so what reads that (listeners that compute lags, the connector itself) reads ours:

    {"t": {"0": 123}, "headrace:{\\"format\\":\\"headrace-offsets\\",\\"version\\":1,...}": {}}

No topic has a colon in its name, and this one has no partitions. The key is the rest, in an envelope
(`headrace.enumerator.envelope`) of version 1:

    {"shown": <checksum of what others read>, "began": {"t": {"0": 7}}, "topic_ids": {"t": "<uuid>"},
     "epochs": {"t": {"0": 5}}, "offsets": {}, "formats": {}, "initial": true}

The second map has the offset that each partition's first batch started from; `epochs`, where known, that of the leader whose
log held all before the position (KIP-320). A topic that was re-created has two ids under one name. Then the key in the maps is
`t@<uuid>`, and the positions are in `offsets`: what others read names a topic once. `formats` is not empty for a query that
decodes keys or values: it has by `key` and `value` what `kafka_formats.TypedFormat` pins, which a restart is compared with:

    "formats": {"value": {"format": "avro", "id": "7", "fingerprint": "0123456789abcdef", "type": {"a": "int32"}}}

The JVM connector's `{"t": {"0": 123}}` is read, too. It names topics only, and the ids are those of the topics that exist when
it is taken over.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from headrace.connectors.formats.value_format import ValueFormat
from headrace.connectors.kafka.read.reader import ALLOW_LOSS
from headrace.connectors.kafka.read.source import KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.envelope import Envelope, checksum, compact
from headrace.enumerator.errors import DataLossError, StateError
from headrace.runners.spark.log_read import LogOffsets
from headrace.spark.kafka_formats import Field, TypedFormat, check_pinned

_REST = Envelope("headrace-offsets", "offset of a batch")
_WHERE = "the query's checkpoint"

OURS = "headrace:"

PartitionNumbers = dict[str, dict[str, int]]  # topic -> partition -> an offset, or a leader epoch


@dataclass(frozen=True)
class KafkaOffsets:
    """The offsets of one source's queries. Picklable, as its source is. Driver process."""

    source: KafkaSource

    def to_json(self, offsets: LogOffsets[KafkaSplit]) -> str:
        return offsets_to_json(offsets, {field: each.pinned for field, each in self._formats().items()})

    def from_json(self, text: str) -> LogOffsets[KafkaSplit]:
        """Our own offsets, or those of Spark's JVM connector, whose topics are identified by asking the cluster.

        Raises StateError for anything else, and where keys or values were decoded otherwise than they are now; DataLossError
        when the other connector's partitions are gone.
        """
        document = parse(text)
        rest = _rest(document)
        check_pinned({} if rest is None else rest["formats"], self._formats())
        return self._taken_over(parse_jvm(document)) if rest is None else _offsets(document, rest)

    def _formats(self) -> dict[Field, TypedFormat]:
        found: dict[Field, ValueFormat | None] = {"key": self.source.key, "value": self.source.value}
        return {field: each for field, each in found.items() if isinstance(each, TypedFormat)}

    def ends_to_json(self, ends: Mapping[str, int], splits: Mapping[str, KafkaSplit]) -> str:
        document: PartitionNumbers = {}
        for split in sorted(splits.values(), key=lambda split: (split.topic, split.partition)):
            document.setdefault(split.topic, {})[str(split.partition)] = ends[split.split_id]
        return compact(document)

    def first_offsets(self, found: Sequence[KafkaSplit], known: Mapping[str, KafkaSplit]) -> Mapping[str, int]:
        """The first record of each, whatever startingOffsetsOfNewPartitions says: the JVM connector knows no other start.

        The end itself where the partition is gone, or starts behind it now. Raises OutageError while it is not known which are.
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
        return LogOffsets({split.split_id: split for split in found}, started_at={})


def offsets_to_json(offsets: LogOffsets[KafkaSplit], formats: Mapping[Any, Mapping[str, Any]]) -> str:
    """The same text for the same offsets. `formats`: what `pinned_formats` gives."""
    ordered = sorted(offsets.splits.values(), key=lambda split: (split.topic, str(split.topic_id), split.partition))
    names = sorted({(split.topic, split.topic_id) for split in ordered}, key=str)
    driver_ids = Counter(topic for topic, _ in names)
    keys = {name: name[0] if driver_ids[name[0]] == 1 else f"{name[0]}@{name[1]}" for name in names}
    shown: PartitionNumbers = {}
    rest: dict[str, Any] = {"began": {}, "epochs": {}, "offsets": {}, "formats": dict(formats), "initial": offsets.initial}
    for split in ordered:
        key, partition = keys[split.topic, split.topic_id], str(split.partition)
        positions = shown if key == split.topic else rest["offsets"]
        positions.setdefault(key, {})[partition] = split.next_offset
        rest["began"].setdefault(key, {})[partition] = offsets.started_at[split.split_id]
        if split.last_epoch is not None:
            rest["epochs"].setdefault(key, {})[partition] = split.last_epoch
    rest["topic_ids"] = {keys[name]: str(name[1]) for name in names if name[1] is not None}
    rest["shown"] = checksum(compact(shown))
    return compact({**shown, f"{OURS}{_REST.seal(rest).decode()}": {}})


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
    """Offsets of headrace; None for the JVM connector's. Raises StateError for a newer version or a damaged document."""
    rest = _rest(document)
    return None if rest is None else _offsets(document, rest)


def pinned_formats(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """What offsets of headrace pin of the formats of keys and values; nothing for others. Raises StateError as `parse_ours`."""
    rest = _rest(document)
    return {} if rest is None else cast("Mapping[str, Mapping[str, Any]]", rest["formats"])


def _rest(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What is not shown; None for the JVM connector's offsets."""
    own = [key for key in document if key.startswith(OURS)]
    if not own:
        return None
    rest = _REST.open(own[0].removeprefix(OURS), _WHERE)
    with _REST.reading(_WHERE):
        if len(own) > 1:
            raise ValueError("it is there twice")
        if checksum(compact(_shown(document))) != rest["shown"]:
            raise ValueError("the positions are not those that were stored")
        if not all(isinstance(each, dict) for each in rest["formats"].values()):
            raise ValueError("its formats are not objects")
    return rest


def _shown(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return {key: partitions for key, partitions in document.items() if not key.startswith(OURS)}


def _offsets(document: Mapping[str, Any], rest: Mapping[str, Any]) -> LogOffsets[KafkaSplit]:
    splits: dict[str, KafkaSplit] = {}
    started_at: dict[str, int] = {}
    with _REST.reading(_WHERE):
        for key, partitions in {**_shown(document), **rest["offsets"]}.items():
            text_id = rest["topic_ids"].get(key)
            topic_id = UUID(text_id) if text_id is not None else None
            topic = key.rsplit("@", 1)[0]  # no topic name has an @
            for partition, offset in partitions.items():
                epoch = rest["epochs"].get(key, {}).get(partition)
                known = None if epoch is None else int(epoch)
                split = KafkaSplit(topic, topic_id, int(partition), int(offset), last_epoch=known)
                splits[split.split_id] = split
                started_at[split.split_id] = int(rest["began"][key][partition])
        return LogOffsets(splits, started_at, initial=bool(rest["initial"]))


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
