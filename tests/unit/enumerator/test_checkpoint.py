from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.enumerator import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import StateError
from headrace.enumerator.source import Stage
from headrace.testing.memory import MemorySplitSerializer
from tests.helpers.driving import SERIALIZER, checkpoint_of, finished, reading
from tests.helpers.envelopes import NO_ENVELOPES, enveloped, resealed, sealed, without

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint_v1.json"
STAGE = Stage(1, "memory", {"cursor": {"found": 2}}, in_pieces=True, is_found=False)
GOOD = checkpoint_of(
    reading("a", 3), finished("b", 9), reading("ünï", 2**62, 2**63), exhausted=True, cursor={"found": 3}, stage=STAGE
)

WHERE = "the state to restore: the checkpoint cannot be read: "
COPY = "Put back a copy that is not damaged"
PLACE = "Check that this is the place that was meant"


def with_body(**changes: object) -> bytes:
    """A well-formed envelope around a body with something changed, or taken out (None)."""
    whole = SERIALIZER.serialize(GOOD)
    gone = [name for name, value in changes.items() if value is None]
    return without(resealed(whole, **changes), *gone)


def envelope(**changes: object) -> bytes:
    return enveloped(SERIALIZER.serialize(GOOD), **changes)


@pytest.mark.parametrize(
    "checkpoint",
    [GOOD, Checkpoint(0, (), exhausted=False), replace(GOOD, stage=replace(STAGE, needs_ends=True))],
    ids=["whole", "empty", "needs ends"],
)
def test_a_checkpoint_comes_back_as_it_was(checkpoint):
    assert SERIALIZER.deserialize(SERIALIZER.serialize(checkpoint)) == checkpoint


def test_the_golden_file_is_read_and_written():
    """A difference here means that the format has changed, and needs a new version."""
    assert SERIALIZER.deserialize(GOLDEN.read_bytes()) == GOOD
    assert SERIALIZER.serialize(GOOD) == GOLDEN.read_bytes()


def test_newer_splits_are_refused_and_say_what_to_do():
    with pytest.raises(StateError, match=r"a newer headrace wrote it: version 2, .* up to 1\. Continue with"):
        SERIALIZER.deserialize(with_body(split_version=MemorySplitSerializer.version + 1))


def test_another_sources_checkpoint_is_refused():
    other = CheckpointSerializer("kafka", MemorySplitSerializer())
    with pytest.raises(StateError, match="'kafka' source and cannot restore a 'memory' source"):
        SERIALIZER.deserialize(other.serialize(GOOD))


@pytest.mark.parametrize("data", [
    *NO_ENVELOPES, b'{"format": "flink-savepoint", "version": 1}', envelope(version=None), envelope(version="1"),
    envelope(version=[1]), envelope(version=0), envelope(version=1.5), envelope(checksum=1), envelope(checksum=None),
    envelope(body=None), envelope(body=[1]), sealed("headrace-checkpoint", {}), sealed("headrace-checkpoint", []),
    sealed("headrace-checkpoint", "{"), with_body(source=None), with_body(cursor=[3]), with_body(splits=None),
    with_body(stage=[1]), with_body(stage={**asdict(STAGE), "number": "1"}), with_body(stage={**asdict(STAGE), "end": [1]}),
    with_body(stage={**asdict(STAGE), "is_found": None}), with_body(stage={"number": 1}),
    with_body(splits=7), with_body(splits=[7]), with_body(splits=["text"]), with_body(splits=[{"finished": False}]),
    with_body(splits=[{"finished": False, "split": 7}]),
    with_body(splits=[{"finished": False, "split": {"id": "a", "next": "far", "stop": None}}]),
    with_body(splits=[{"finished": False, "split": {"id": "a", "next": 1, "stop": None}}] * 2),
    with_body(split_version="1"), with_body(split_version=0), with_body(checkpoint_id=float("inf")),
    with_body(checkpoint_id=float("nan")), with_body(checkpoint_id=[1]), SERIALIZER.serialize(GOOD)[:-1],
    SERIALIZER.serialize(GOOD) * 2,
])  # fmt: skip
def test_what_is_no_checkpoint_is_refused_as_such(data):
    with pytest.raises(StateError):
        SERIALIZER.deserialize(data)


@pytest.mark.parametrize(("data", "said"), [
    (envelope(version=2),
        f"{WHERE}a newer headrace wrote it: version 2, and this one reads up to 1. "
        "Continue with the headrace that wrote it, or with a newer one"),
    (b'{"format": "flink"}', f"{WHERE}its format is 'flink', not 'headrace-checkpoint'. {PLACE}"),
    (b"{}",
        f"{WHERE}headrace did not write it: it is a JSON dict without a format. {PLACE}, or put back a copy that is not "
        "damaged"),
    (b"[]",
        f"{WHERE}headrace did not write it: it is a JSON list without a format. {PLACE}, or put back a copy that is not "
        "damaged"),
    (b"{",
        f"{WHERE}it is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)). {PLACE}, "
        "or put back a copy that is not damaged"),
    (envelope(checksum=1), f"{WHERE}it is damaged (ValueError: its checksum does not match). {COPY}"),
    (sealed("headrace-checkpoint", 7), f"{WHERE}it is damaged (TypeError: its body is a JSON int). {COPY}"),
    (sealed("headrace-checkpoint", {}), f"{WHERE}it is damaged (KeyError: 'source'). {COPY}"),
    (with_body(source="kafka"),
        "the state to restore: the checkpoint is of a 'kafka' source and cannot restore a 'memory' source"),
    (with_body(splits=[{"finished": False, "split": {"id": "a", "next": 1, "stop": None}}] * 2),
        f"{WHERE}it is damaged (ValueError: it holds a split twice). {COPY}"),
])  # fmt: skip
def test_what_is_wrong_with_a_checkpoint_is_said_in_full(data, said):
    with pytest.raises(StateError) as raised:
        SERIALIZER.deserialize(data)
    assert str(raised.value) == said


def test_a_changed_digit_in_the_body_is_noticed():
    data = SERIALIZER.serialize(GOOD)
    changed = data.replace(b'"next":3', b'"next":4')
    assert changed != data
    with pytest.raises(StateError, match="checksum"):
        SERIALIZER.deserialize(changed)


def parses_or_state_error(data: bytes) -> None:
    try:
        checkpoint = SERIALIZER.deserialize(data)
    except StateError:
        return
    assert isinstance(checkpoint, Checkpoint)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_one_damaged_byte_gives_the_same_checkpoint_or_a_state_error(place, byte):
    data = bytearray(SERIALIZER.serialize(GOOD))
    data[place % len(data)] = byte
    try:
        checkpoint = SERIALIZER.deserialize(bytes(data))
    except StateError:
        return
    assert checkpoint == GOOD


@given(st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=8), st.integers(0, 40)), max_size=4))
def test_bytes_cut_out_and_put_in_parse_or_are_a_state_error(cuts):
    data = SERIALIZER.serialize(GOOD)
    for place, inserted, length in cuts:
        start = place % (len(data) + 1)
        data = data[:start] + inserted + data[start + length :]
    parses_or_state_error(data)


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_a_state_error(data):
    parses_or_state_error(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["source", "checkpoint_id", "exhausted", "cursor", "split_version", "splits"]), JSON)
@example("checkpoint_id", float("inf"))
def test_any_json_in_a_well_formed_body_parses_or_is_a_state_error(field, value):
    parses_or_state_error(with_body(**{field: value}))


@given(JSON)
def test_any_json_as_a_split_parses_or_is_a_state_error(value):
    parses_or_state_error(with_body(splits=[{"finished": False, "split": value}]))
