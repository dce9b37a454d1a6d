"""Durable lists of every sink, and a Beam writer's state. The first byte: which. A list's records are separated by a byte 0."""

import json

from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.kafka.write.list_records import split, whole
from headrace.enumerator.errors import StateError
from headrace.runners.beam.shard import ShardStateSerializer
from tests.fuzz.target import GOLDEN, Target
from tests.fuzz.targets.checkpoint import WORDS
from tests.fuzz.targets.handles import LISTS, SERIALIZERS
from tests.helpers.envelopes import body_of, resealed

_LISTS = [CommitListSerializer(handles) for handles in SERIALIZERS.values()]
_NAMES = tuple(SERIALIZERS)
_STATES = ShardStateSerializer(SERIALIZERS["kafka"])
_PARTED, _SHARD = 8, 4
_WHERE = "somewhere"


def _check(data: bytes) -> None:
    which, stored = data[0], data[1:]
    if which & _PARTED:
        head, *parts = stored.split(b"\0")
        stored = whole("key", {"key": head, **{f"key/{number}": part for number, part in enumerate(parts)}})
    said = ""
    serializer = _STATES if which & _SHARD else _LISTS[which & 3]
    try:
        found = serializer.deserialize(stored, _WHERE)
    except StateError as error:
        found, said = None, str(error)
    if found is None:
        assert said.startswith(_WHERE)
    else:
        assert serializer.deserialize(serializer.serialize(found), _WHERE) == found


def _seeds() -> dict[str, bytes]:
    found = {name: bytes([_NAMES.index(name.split("_", maxsplit=1)[0])]) + _golden(name) for name in LISTS}
    found["file"] = b"\2" + resealed(_golden("commit_list_v1"), handles=[json.loads(_golden("file_handle_v1"))])
    found["completed"] = b"\0" + _golden("commit_list_completed_v1")
    found["writer"] = bytes([_SHARD]) + _golden("beam_writer_v1")
    parts = split("key", _golden("kafka_commit_list_v1") + b" " * 2_000_000, ())
    head = parts["key"] or b""
    records = [resealed(head, parts=1), body_of(head)["id"].encode() + _golden("kafka_commit_list_v1")]
    found["in parts"] = bytes([_PARTED]) + b"\0".join(records)
    return found


def _golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


TARGET = Target(
    "lists", _check, _seeds,
    (
        "headrace.connectors.base.commit_list", "headrace.enumerator.envelope", "headrace.runners.beam.shard",
        "headrace.connectors.kafka.write.list_records", "headrace.connectors.kafka.write.handles",
        "headrace.connectors.files.handles",
    ),
    (*WORDS, b'"handle_version":', b'"targets":', b'"destination":', b'"parts":'),
)  # fmt: skip
