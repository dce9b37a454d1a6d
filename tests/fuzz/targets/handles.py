"""Handles of every sink, as JSON values. The first byte: whose, and which version."""

import json
from typing import Any

from headrace.connectors.base.sink import HandleSerializer
from headrace.connectors.files.handles import FileHandleSerializer
from headrace.connectors.kafka.write.handles import KafkaHandleSerializer
from headrace.connectors.sql.handles import SqlHandleSerializer
from headrace.connectors.tables.handles import TableHandleSerializer
from tests.fuzz.target import GOLDEN, Target
from tests.fuzz.targets.checkpoint import WORDS
from tests.helpers.envelopes import body_of

SERIALIZERS: dict[str, HandleSerializer[Any]] = {
    "kafka": KafkaHandleSerializer(), "sql": SqlHandleSerializer(), "file": FileHandleSerializer(),
    "table": TableHandleSerializer(),
}  # fmt: skip
_NAMES = tuple(SERIALIZERS)
LISTS = ("kafka_commit_list_v1", "sql_commit_list_v1", "table_commit_list_v1")


def _check(data: bytes) -> None:
    serializer, version = SERIALIZERS[_NAMES[data[0] & 3]], data[0] >> 2 & 3
    try:
        value = json.loads(data[1:])
    except (ValueError, RecursionError):
        return  # the process that reads them has parsed the JSON before
    try:
        handle = serializer.deserialize(version, value)
    except (KeyError, TypeError, ValueError):
        return
    hash(handle)  # committers keep them in sets
    assert serializer.deserialize(serializer.version, json.loads(json.dumps(serializer.serialize(handle)))) == handle


def _seeds() -> dict[str, bytes]:
    found = {"file": b"\6" + (GOLDEN / "file_handle_v1.json").read_bytes()}
    for name in LISTS:
        stored, kind = body_of((GOLDEN / f"{name}.json").read_bytes()), _NAMES.index(name.split("_", maxsplit=1)[0])
        for number, handle in enumerate(stored["handles"]):
            found[f"{name}-{number}"] = bytes([kind | stored["handle_version"] << 2]) + json.dumps(handle).encode()
    return found


TARGET = Target(
    "handles", _check, _seeds,
    (
        "headrace.connectors.kafka.write.handles", "headrace.connectors.sql.handles", "headrace.connectors.files.handles",
        "headrace.connectors.tables.handles", "headrace.enumerator.envelope",
    ),
    WORDS,
)  # fmt: skip
