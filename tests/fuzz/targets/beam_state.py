"""What Beam keeps of a Kafka source. The first byte: whose restriction, and whether it is put into an envelope first."""

from __future__ import annotations

import zlib

from headrace.enumerator.errors import StateError
from headrace.kafka import KafkaSource
from headrace.runners.beam.coders import EnumerationFormat, ReaderFormat
from tests.fuzz.target import GOLDEN, Target
from tests.fuzz.targets import checkpoint
from tests.helpers.envelopes import sealed

_SOURCE = KafkaSource("127.0.0.1:1", topics=["t"])
_FORMATS = (EnumerationFormat(_SOURCE), ReaderFormat(_SOURCE))
_NAMES = ("headrace-ledger", "headrace-reader")


def _check(data: bytes) -> None:
    which = data[0] & 1
    stored = zlib.compress(_sealed(which, data[1:]), 1) if data[0] & 2 else data[1:]
    try:
        found = _FORMATS[which].decode(stored)
    except StateError:
        return
    assert _FORMATS[which].decode(_FORMATS[which].encode(found)) == found


def _sealed(which: int, checkpoint: bytes) -> bytes:
    return sealed(_NAMES[which], {"state": "enumerated", "checkpoint": checkpoint.decode("latin-1")})


def _seeds() -> dict[str, bytes]:
    golden = {name: bytes([n]) + (GOLDEN / f"beam_{name}_v1.bin").read_bytes() for n, name in enumerate(("ledger", "reader"))}
    fresh = {f"ledger-{state}": b"\0" + zlib.compress(sealed(_NAMES[0], {"state": state})) for state in ("fresh", "handed on")}
    checkpoints = checkpoint.TARGET.seeds().items()
    packed = {f"{name}-packed-{which}": bytes([2 | which]) + data[1:] for which in (0, 1) for name, data in checkpoints}
    return {**golden, **fresh, **packed}


TARGET = Target(
    "beam_state", _check, _seeds,
    (
        "headrace.runners.beam.coders", "headrace.enumerator.checkpoint", "headrace.enumerator.envelope",
        "headrace.connectors.kafka.read.split",
    ),
    (*checkpoint.WORDS, *(name.encode() for name in _NAMES)),
)  # fmt: skip
