"""Offsets in Spark's checkpoints, ours and the JVM connector's. The first byte: the whole text, or our part alone."""

import json

from headrace.enumerator.envelope import checksum, compact
from headrace.enumerator.errors import StateError
from headrace.kafka import KafkaSource
from headrace.spark.jvm_checkpoint import _parse as parse_initial_offsets
from headrace.spark.kafka_offsets import OURS, KafkaOffsets, parse, parse_jvm, parse_ours
from tests.fuzz.target import GOLDEN, Target
from tests.fuzz.targets.checkpoint import WORDS
from tests.helpers.envelopes import body_of, sealed

_FORMAT = KafkaOffsets(KafkaSource("127.0.0.1:1", topics=["t"]))
_SHOWN = {"flights": {"0": 123}, "t": {"0": 1}}


def _check(data: bytes) -> None:
    text = data[1:].decode("utf-8", "replace")
    if data[0] & 1:
        text = json.dumps({**_SHOWN, OURS + _sealed(text): {}})
    try:
        found = parse_ours(parse(text))
        if found is None:
            parse_jvm(parse(text))
    except StateError:
        found = None
    if found is not None:
        assert parse_ours(parse(_FORMAT.to_json(found))) == found
    try:
        parse_initial_offsets(data[1:], "a file")
    except StateError:
        return


def _sealed(text: str) -> str:
    """Under checksums that hold, if it is a JSON object; else as it is."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(body, dict):
        return text
    return sealed("headrace-offsets", {**body, "shown": checksum(compact(_SHOWN))}).decode()


def _seeds() -> dict[str, bytes]:
    whole = {name: (GOLDEN / f"{name}.json").read_bytes() for name in ("kafka_offsets_v1", "kafka_offsets_typed_v1")}
    (own,) = (key for key in json.loads(whole["kafka_offsets_v1"]) if key.startswith(OURS))
    return {
        **{name: b"\0" + data for name, data in whole.items()},
        "ours": b"\1" + compact(body_of(own.removeprefix(OURS))).encode(),
        "jvm": b'\0{"flights":{"0":123,"10":0},"headrace":{"0":5}}',
        "initial": b'\0\0v1\n{"t":{"0":1}}',
    }


TARGET = Target(
    "offsets_json", _check, _seeds,
    ("headrace.spark.kafka_offsets", "headrace.spark.jvm_checkpoint", "headrace.connectors.kafka.read.split"),
    (*WORDS, b'"headrace:{', b'"began":', b'"epochs":', b'"topic_ids":', b"@"),
)  # fmt: skip
