"""Checkpoints of a Kafka source: whole, and as a body whose checksum holds. The first byte states which."""

from __future__ import annotations

import json
import zlib

from headrace.connectors.kafka.read.split import KafkaSplit, KafkaSplitSerializer
from headrace.enumerator.checkpoint import FORMAT, VERSION, CheckpointSerializer
from headrace.enumerator.errors import StateError
from tests.fuzz.target import GOLDEN, Target

_SERIALIZER: CheckpointSerializer[KafkaSplit] = CheckpointSerializer("kafka", KafkaSplitSerializer())


def _check(data: bytes) -> None:
    if not data:
        return
    stored = data[1:] if data[0] & 1 else _in_an_envelope(data[1:])
    try:
        found = _SERIALIZER.deserialize(stored)
    except StateError:
        return
    assert _SERIALIZER.deserialize(_SERIALIZER.serialize(found)) == found


def _in_an_envelope(body: bytes) -> bytes:
    text = body.decode("latin-1")
    return json.dumps({"format": FORMAT, "version": VERSION, "crc32": zlib.crc32(text.encode()), "body": text}).encode()


def _body(version: int) -> bytes:
    splits = [json.loads((GOLDEN / f"kafka_splits_v{version}.json").read_text())]
    items = [{"finished": False, "split": split} for split in (splits[0] if isinstance(splits[0], list) else splits)]
    body = {"source": "kafka", "checkpoint_id": 7, "exhausted": False, "split_version": version, "splits": items}
    return json.dumps(body).encode()


def _seeds() -> dict[str, bytes]:
    bodies = {f"splits-v{version}": _body(version) for version in (1, 2)}
    whole = {f"whole-{name}": b"\1" + _in_an_envelope(body) for name, body in bodies.items()}
    golden = {"golden": b"\1" + (GOLDEN / "checkpoint_v1.json").read_bytes()}
    return {name: b"\0" + body for name, body in bodies.items()} | whole | golden


WORDS = (b"Infinity", b"NaN", b"-1", b"null", b"true", b"1e999", b"[", b"{}", b'""', b"9" * 30)
"""What JSON knows and a reader may not."""

TARGET = Target(
    "checkpoint",
    _check,
    _seeds,
    ("headrace.enumerator.checkpoint", "headrace.connectors.kafka.read.split", "json.decoder", "json.scanner"),
    (*WORDS, b'"split_version":', b'"stop_offset":', b'"topic_id":'),
)
