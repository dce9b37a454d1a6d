"""Checkpoints of a Kafka source: whole, and as a body whose checksum holds. The first byte states which."""

import json

from headrace.connectors.kafka.read.split import KafkaSplit, KafkaSplitSerializer
from headrace.enumerator.checkpoint import CHECKPOINT, CheckpointSerializer
from headrace.enumerator.errors import StateError
from tests.fuzz.target import GOLDEN, Target
from tests.helpers.envelopes import sealed

_SERIALIZER: CheckpointSerializer[KafkaSplit] = CheckpointSerializer("kafka", KafkaSplitSerializer())


def _check(data: bytes) -> None:
    stored = data[1:] if data[0] & 1 else _in_an_envelope(data[1:])
    try:
        found = _SERIALIZER.deserialize(stored)
    except StateError:
        return
    assert _SERIALIZER.deserialize(_SERIALIZER.serialize(found)) == found


def _in_an_envelope(body: bytes) -> bytes:
    """Under a checksum that holds. What is not JSON is put in as a text."""
    try:
        return sealed(CHECKPOINT.name, json.loads(body))
    except (ValueError, RecursionError):
        return sealed(CHECKPOINT.name, body.decode("latin-1"))


def _seeds() -> dict[str, bytes]:
    splits = json.loads((GOLDEN / "kafka_splits_v1.json").read_text())
    items = [{"finished": False, "split": split} for split in splits]
    body = {"source": "kafka", "checkpoint_id": 7, "exhausted": False, "split_version": 1, "splits": items}
    data = json.dumps(body).encode()
    golden = (GOLDEN / "checkpoint_v1.json").read_bytes()
    return {"splits": b"\0" + data, "whole": b"\1" + _in_an_envelope(data), "golden": b"\1" + golden}


WORDS = (b"Infinity", b"NaN", b"-1", b"null", b"true", b"1e999", b"[", b"{}", b'""', b"9" * 30)
"""What JSON knows and a reader may not."""

TARGET = Target(
    "checkpoint", _check, _seeds,
    (
        "headrace.enumerator.checkpoint", "headrace.enumerator.envelope", "headrace.connectors.kafka.read.split",
        "json.decoder", "json.scanner",
    ),
    (*WORDS, b'"split_version":', b'"stop_offset":', b'"topic_id":'),
)  # fmt: skip
