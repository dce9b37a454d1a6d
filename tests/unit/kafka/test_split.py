"""Kafka splits: positions are numbers, identity is the topic's id, and what was written is read for ever."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kafka.read.split import KafkaSplit, KafkaSplitSerializer
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import StateError
from headrace.enumerator.ledger import SplitState

A = UUID("00112233-4455-6677-8899-aabbccddeeff")
GOLDEN_SPLITS = [
    KafkaSplit("flights", A, 0, 0),
    KafkaSplit("flights", A, 3, 42, 100, 7),
    KafkaSplit("a.b-c_d", None, 2**31 - 1, 2**62, 2**63 - 1, 0),
]

serializer = KafkaSplitSerializer()
offsets = st.integers(0, 2**63 - 1)
splits = st.builds(
    KafkaSplit, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.none() | st.uuids(), st.integers(0, 2**31 - 1),
    offsets, st.none() | offsets, st.none() | st.integers(0, 2**31 - 1),
)  # fmt: skip


def test_the_golden_splits_are_read_and_written():
    """A difference here means that the format has changed, and needs a new version."""
    written = json.loads((Path(__file__).parents[1] / "golden" / "kafka_splits_v1.json").read_text())
    assert [serializer.deserialize(1, data) for data in written] == GOLDEN_SPLITS
    assert serializer.version == 1
    assert [serializer.serialize(split) for split in GOLDEN_SPLITS] == written


@given(splits)
def test_what_is_written_is_read_back(split):
    assert serializer.deserialize(1, json.loads(json.dumps(serializer.serialize(split)))) == split
    assert pickle.loads(pickle.dumps(split)) == split


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_is_refused(version):
    with pytest.raises(ValueError, match="version"):
        serializer.deserialize(version, serializer.serialize(GOLDEN_SPLITS[0]))


@pytest.mark.parametrize("damage", [
    {"next_offset": -1}, {"next_offset": None}, {"next_offset": "x"}, {"next_offset": float("inf")}, {"stop_offset": -5},
    {"stop_offset": []}, {"partition": -1}, {"partition": {}}, {"topic_id": "no-id"}, {"topic_id": 5},
    {"last_epoch": "x"},
], ids=str)  # fmt: skip
def test_damage_makes_a_checkpoint_unreadable_and_says_so(damage):
    def written(split_data):
        class Damaging(KafkaSplitSerializer):
            def serialize(self, split):
                return {**super().serialize(split), **split_data}

        states = (SplitState(GOLDEN_SPLITS[1], finished=False),)
        return CheckpointSerializer("kafka", Damaging()).serialize(Checkpoint(1, states, exhausted=False))

    reader = CheckpointSerializer("kafka", serializer)
    assert reader.deserialize(written({})).splits[0].split == GOLDEN_SPLITS[1]
    with pytest.raises(StateError, match="damaged"):
        reader.deserialize(written(damage))


@pytest.mark.parametrize("field", ["topic", "topic_id", "partition", "next_offset", "stop_offset", "last_epoch"])
def test_a_missing_field_is_damage(field):
    data = dict(serializer.serialize(GOLDEN_SPLITS[1]))
    del data[field]
    with pytest.raises(KeyError):
        serializer.deserialize(1, data)


def test_identity_is_topic_id_and_partition_and_never_the_position():
    split = KafkaSplit("t", A, 0, 5)
    assert (split.split_id, split.between(7, 9).split_id) == (f"t-0@{A}", split.split_id)
    other = UUID(int=1)
    assert len({KafkaSplit("t", topic_id, n, 5).split_id for topic_id in (A, other, None) for n in (0, 1)}) == 6


def test_names_that_look_alike_are_not_taken_for_each_other():
    assert KafkaSplit("t-1", None, 0, 0).split_id != KafkaSplit("t", None, 10, 0).split_id


@pytest.mark.parametrize("numbers", [(-1, 0, None), (0, -1, None), (0, 0, -1)])
def test_a_position_is_never_symbolic(numbers):
    with pytest.raises(ValueError, match="negative"):
        KafkaSplit("t", A, *numbers)


@pytest.mark.parametrize(("at", "stop", "exhausted"), [
    (0, 0, True), (5, 5, True), (6, 5, True), (0, None, False), (2**62, None, False), (4, 5, False)
])  # fmt: skip
def test_a_split_is_exhausted_at_its_stop_and_not_before(at, stop, exhausted):
    assert KafkaSplit("t", A, 0, at, stop).exhausted is exhausted


def test_a_part_of_a_split_keeps_the_epoch_only_where_it_holds():
    split = KafkaSplit("t", A, 0, 5, None, 7)
    assert split.between(5, 9) == KafkaSplit("t", A, 0, 5, 9, 7)
    assert split.between(6, 9) == KafkaSplit("t", A, 0, 6, 9, None)
