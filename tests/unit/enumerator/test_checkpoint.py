from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.enumerator import Checkpoint, CheckpointSerializer
from headrace.enumerator.checkpoint import VERSION
from headrace.enumerator.errors import StateError
from headrace.testing.memory import MemorySplitSerializer
from tests.helpers.driving import SERIALIZER, checkpoint_of, finished, reading

GOLDEN = Path(__file__).parents[1] / "golden"
GOOD = checkpoint_of(reading("a", 3), finished("b", 9), reading("ünï", 2**62, 2**63), exhausted=True)

# What each version wrote, and what it means. A file is never written again: a new version adds a new one.
GOLDEN_CHECKPOINTS = {1: GOOD}


def with_body(**changes: object) -> bytes:
    """A well-formed envelope around a body with something changed, or taken out (None)."""
    body = json.loads(json.loads(SERIALIZER.serialize(GOOD))["body"]) | changes
    text = json.dumps({key: value for key, value in body.items() if value is not None})
    return envelope(body=text, crc32=zlib.crc32(text.encode()))


def envelope(**changes: object) -> bytes:
    return json.dumps(json.loads(SERIALIZER.serialize(GOOD)) | changes).encode()


@pytest.mark.parametrize("checkpoint", [GOOD, Checkpoint(0, (), exhausted=False)])
def test_a_checkpoint_comes_back_as_it_was(checkpoint):
    assert SERIALIZER.deserialize(SERIALIZER.serialize(checkpoint)) == checkpoint


def test_there_is_a_golden_file_of_every_version():
    assert GOLDEN_CHECKPOINTS.keys() == set(range(1, VERSION + 1))


@pytest.mark.parametrize("version", GOLDEN_CHECKPOINTS)
def test_what_any_version_wrote_is_read(version):
    assert SERIALIZER.deserialize((GOLDEN / f"checkpoint_v{version}.json").read_bytes()) == GOLDEN_CHECKPOINTS[version]


def test_the_current_version_writes_its_golden_file():
    """A difference here means that the format has changed, and needs a new version."""
    assert SERIALIZER.serialize(GOOD) == (GOLDEN / f"checkpoint_v{VERSION}.json").read_bytes()


def test_a_newer_checkpoint_is_refused_and_says_what_to_do():
    with pytest.raises(StateError, match=r"version 2.*reads versions \[1\].*or a newer one"):
        SERIALIZER.deserialize(envelope(version=VERSION + 1))


def test_newer_splits_are_refused():
    with pytest.raises(StateError, match="splits have version 2"):
        SERIALIZER.deserialize(with_body(split_version=MemorySplitSerializer.version + 1))


def test_another_sources_checkpoint_is_refused():
    other = CheckpointSerializer("kafka", MemorySplitSerializer())
    with pytest.raises(StateError, match="'kafka' source and cannot restore a 'memory' source"):
        SERIALIZER.deserialize(other.serialize(GOOD))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"7",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"format": "flink-savepoint", "version": 1}',
        envelope(version=None),
        envelope(version="1"),
        envelope(version=[1]),
        envelope(version=0),
        envelope(version=1.5),
        envelope(crc32=1),
        envelope(crc32=None),
        envelope(body=None),
        envelope(body=[1]),
        envelope(body="{}", crc32=zlib.crc32(b"{}")),
        envelope(body="[]", crc32=zlib.crc32(b"[]")),
        envelope(body="{", crc32=zlib.crc32(b"{")),
        with_body(source=None),
        with_body(splits=None),
        with_body(splits=7),
        with_body(splits=[7]),
        with_body(splits=["text"]),
        with_body(splits=[{"finished": False}]),
        with_body(splits=[{"finished": False, "split": 7}]),
        with_body(splits=[{"finished": False, "split": {"id": "a", "next": "far", "stop": None}}]),
        with_body(splits=[{"finished": False, "split": {"id": "a", "next": 1, "stop": None}}] * 2),
        with_body(split_version="1"),
        with_body(split_version=0),
        with_body(checkpoint_id=float("inf")),
        with_body(checkpoint_id=float("nan")),
        with_body(checkpoint_id=[1]),
        SERIALIZER.serialize(GOOD)[:-1],
        SERIALIZER.serialize(GOOD) * 2,
    ],
)
def test_what_is_no_checkpoint_is_refused_as_such(data):
    with pytest.raises(StateError):
        SERIALIZER.deserialize(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            envelope(version=2),
            "the checkpoint has version 2, and this headrace reads versions [1]; restore it with the headrace that wrote it, "
            "or a newer one",
        ),
        (b'{"format": "flink"}', "this is not a headrace checkpoint: its format is 'flink'"),
        (b"{}", "this is not a headrace checkpoint: its format is None"),
        (b"[]", "the checkpoint is damaged: it is a JSON list, not an object"),
        (
            b"{",
            "the checkpoint is damaged: it is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 "
            "(char 1))",
        ),
        (envelope(crc32=1), "the checkpoint is damaged: its checksum does not match"),
        (envelope(body="7", crc32=zlib.crc32(b"7")), "the checkpoint's body is damaged: it is a JSON int, not an object"),
        (envelope(body="{}", crc32=zlib.crc32(b"{}")), "the checkpoint is damaged: KeyError: 'source'"),
        (with_body(source="kafka"), "the checkpoint is of a 'kafka' source and cannot restore a 'memory' source"),
        (with_body(split_version=2), "the checkpoint's splits have version 2, and this headrace reads up to 1"),
        (
            with_body(splits=[{"finished": False, "split": {"id": "a", "next": 1, "stop": None}}] * 2),
            "the checkpoint is damaged: it holds a split twice",
        ),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_said_in_full(data, said):
    with pytest.raises(StateError) as raised:
        SERIALIZER.deserialize(data)
    assert str(raised.value) == said


def test_a_changed_digit_in_the_body_is_noticed():
    data = SERIALIZER.serialize(GOOD)
    changed = data.replace(b'\\"next\\":3', b'\\"next\\":4')
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
FIELDS = ["source", "checkpoint_id", "exhausted", "split_version", "splits"]


@given(st.sampled_from(FIELDS), JSON)
@example("checkpoint_id", float("inf"))
def test_any_json_in_a_well_formed_body_parses_or_is_a_state_error(field, value):
    parses_or_state_error(with_body(**{field: value}))


@given(JSON)
def test_any_json_as_a_split_parses_or_is_a_state_error(value):
    parses_or_state_error(with_body(splits=[{"finished": False, "split": value}]))
