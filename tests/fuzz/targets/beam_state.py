"""What Beam keeps of a Kafka source: the enumerating stage's restriction, and a reader's.

The first byte states which, and whether what follows is to be put into an envelope first.
"""

from __future__ import annotations

import json
import zlib

from headrace.enumerator.errors import StateError
from headrace.kafka import KafkaSource
from headrace.runners.beam.coders import EnumerationFormat, ReaderFormat
from tests.fuzz.target import GOLDEN, Target
from tests.fuzz.targets import checkpoint

_SOURCE = KafkaSource("127.0.0.1:1", topics=["t"])
_FORMATS = (EnumerationFormat(_SOURCE), ReaderFormat(_SOURCE))
_HEADS = (b"headrace-ledger 2\n", b"headrace-reader 3\n")


def _check(data: bytes) -> None:
    if not data:
        return
    which = data[0] & 1
    stored = _HEADS[which] + zlib.compress(data[1:], 1) if data[0] & 2 else data[1:]
    try:
        found = _FORMATS[which].decode(stored)
    except StateError:
        return
    assert _FORMATS[which].decode(_FORMATS[which].encode(found)) == found


def _seeds() -> dict[str, bytes]:
    enumerations = {
        "ledger": (GOLDEN / "beam_ledger_v2.bin").read_bytes(),
        "fresh": b'{"format": "headrace-fresh", "version": 1}',
    }
    readers = {name: (GOLDEN / name).read_bytes() for name in ("beam_reader_v2.txt", "beam_reader_v3.bin")}
    packed = {f"{name}-packed-{which}": data[1:] for which in (0, 1) for name, data in checkpoint.TARGET.seeds().items()}
    return {
        **{name: b"\0" + data for name, data in enumerations.items()},
        **{name: b"\1" + data for name, data in readers.items()},
        **{name: bytes([2 | int(name[-1])]) + data for name, data in packed.items()},
        "handed on": b"\0" + json.dumps({"format": "headrace-handed-on", "version": 1}).encode(),
    }


TARGET = Target(
    "beam_state",
    _check,
    _seeds,
    ("headrace.runners.beam.coders", "headrace.enumerator.checkpoint", "headrace.connectors.kafka.read.split"),
    (*checkpoint.WORDS, *_HEADS, b"headrace-reader 2\n"),
)
