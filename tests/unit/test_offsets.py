"""The JSON of offsets: what Spark stores in a query's checkpoint. Written once, it must be readable for ever."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import StateError
from headrace.kafka import KafkaSource
from headrace.runners.spark.log_read import LogOffsets
from pyspark_headrace import kafka_offsets as offsets_json
from pyspark_headrace.kafka_offsets import KafkaOffsets

FORMAT = KafkaOffsets(KafkaSource("127.0.0.1:1", topics=["t"]))
GOLDEN = Path(__file__).parent / "golden" / "kafka_offsets_v1.json"
A = UUID("00112233-4455-6677-8899-aabbccddeeff")
B = UUID("ffeeddcc-bbaa-9988-7766-554433221100")


def offsets(*lines, initial=False):
    """Of (split, where it began)."""
    return LogOffsets(
        {split.split_id: split for split, _ in lines}, {split.split_id: began for split, began in lines}, initial=initial
    )


GOLDEN_OFFSETS = offsets(
    (KafkaSplit("flights", A, 0, 123), 7),
    (KafkaSplit("flights", A, 1, 0), 0),
    (KafkaSplit("flights", A, 10, 2**62), 5),
    (KafkaSplit("twice", A, 0, 10), 10),
    (KafkaSplit("twice", B, 0, 3), 0),
    (KafkaSplit("without-id", None, 0, 1), 1),
    initial=True,
)


def read(text):
    document = offsets_json.parse(text)
    assert offsets_json.is_ours(document)
    return offsets_json.from_document(document)


def test_version_1_is_read_for_ever_and_written_the_same():
    text = GOLDEN.read_text().rstrip("\n")
    assert read(text) == GOLDEN_OFFSETS
    assert FORMAT.to_json(GOLDEN_OFFSETS) == text


def test_the_common_case_can_be_read_by_people():
    text = FORMAT.to_json(offsets((KafkaSplit("t", A, 0, 123), 7)))
    assert text == f'{{"headrace":1,"offsets":{{"t":{{"0":123}}}},"began":{{"t":{{"0":7}}}},"topic_ids":{{"t":"{A}"}}}}'


def test_a_recreated_topic_has_two_ids_under_one_name():
    both = offsets((KafkaSplit("t", A, 0, 10), 10), (KafkaSplit("t", B, 0, 3), 0))
    document = json.loads(FORMAT.to_json(both))
    assert document["offsets"] == {f"t@{A}": {"0": 10}, f"t@{B}": {"0": 3}}
    assert read(json.dumps(document)) == both


@pytest.mark.parametrize("version", [0, 2, 99, -1])
def test_a_version_that_is_not_known_is_refused_with_advice(version):
    document = json.loads(GOLDEN.read_text()) | {"headrace": version}
    with pytest.raises(StateError, match=rf"version {version}, .* reads version 1; .*newer"):
        read(json.dumps(document))


splits = st.builds(
    KafkaSplit,
    st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True),
    st.none() | st.uuids(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
)
lines = st.lists(st.tuples(splits, st.integers(0, 2**63 - 1)), max_size=8, unique_by=lambda line: line[0].split_id)


@given(lines, st.booleans())
def test_what_is_written_is_read_back(some, initial):
    written = offsets(*some, initial=initial)
    text = FORMAT.to_json(written)
    assert "\n" not in text
    assert read(text) == written
    assert FORMAT.to_json(read(text)) == text
    assert FORMAT.to_json(offsets(*reversed(some), initial=initial)) == text


def test_ends_are_shown_as_the_jvm_connector_shows_them():
    known = {split.split_id: split for split in (KafkaSplit("t", A, 10, 0), KafkaSplit("t", A, 9, 0), KafkaSplit("s", A, 0, 0))}
    ends = {split_id: number for number, split_id in enumerate(known)}
    assert FORMAT.ends_to_json(ends, known) == '{"s":{"0":2},"t":{"9":1,"10":0}}'


# --- the JVM connector's ------------------------------------------------------------------------------------------------


def test_the_jvm_connectors_form_is_told_from_ours():
    document = offsets_json.parse('{"flights":{"0":123,"10":0},"headrace":{"0":5}}')
    assert not offsets_json.is_ours(document)
    assert offsets_json.parse_jvm(document) == {("flights", 0): 123, ("flights", 10): 0, ("headrace", 0): 5}


JVM_DAMAGED = [
    '{"t":{"0":-1}}',
    '{"t":{"0":-2}}',
    '{"t":{"x":1}}',
    '{"t":{"0":null}}',
    '{"t":{"0":Infinity}}',
    '{"t":{"0":NaN}}',
    '{"t":5}',
    '{"t":[1]}',
    '{"t":null}',
]


@pytest.mark.parametrize("text", JVM_DAMAGED)
def test_what_is_neither_ours_nor_the_jvm_connectors_is_refused(text):
    with pytest.raises(StateError):
        offsets_json.parse_jvm(offsets_json.parse(text))


# --- damage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"x"', "1", "[" * 100_000, '{"t":' * 100_000, "\x00", '{"headrace":'])
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(StateError):
        offsets_json.parse(text)


def paths(value, here=()):
    """Where something can be damaged: every key on the way, and every leaf."""
    if here:
        yield here
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from paths(inner, (*here, key))


DOCUMENT = json.loads(GOLDEN.read_text())
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(list(paths(DOCUMENT))), anything, st.booleans())
@example(("offsets", "flights", "0"), float("inf"), False)
@example(("began", "flights", "0"), float("-inf"), False)
@example(("topic_ids", "flights"), 5, False)
@example(("offsets",), None, True)
@example(("headrace",), True, False)
def test_damage_is_a_state_error_and_nothing_else(path, value, is_removed):
    document = json.loads(GOLDEN.read_text())
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    if is_removed:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    source = KafkaSource("127.0.0.1:1", topics=["t"], properties={"default.api.timeout.ms": "1"})
    parsed = offsets_json.parse(json.dumps(document))
    with suppress(StateError):
        if offsets_json.is_ours(parsed):
            found = KafkaOffsets(source).from_json(json.dumps(document))
            assert read(FORMAT.to_json(found)) == found
        else:
            offsets_json.parse_jvm(parsed)


@given(st.integers(0, len(GOLDEN.read_text()) - 1), st.integers(0, 127))
def test_a_changed_or_missing_byte_is_a_state_error_or_harmless(at, byte):
    text = GOLDEN.read_text()
    for damaged in (text[:at], text[:at] + chr(byte) + text[at + 1 :]):
        with suppress(StateError):
            parsed = offsets_json.parse(damaged)
            if offsets_json.is_ours(parsed):
                offsets_json.from_document(parsed)
            else:
                offsets_json.parse_jvm(parsed)


@pytest.mark.parametrize("missing", ["offsets", "began", "topic_ids"])
def test_a_missing_part_is_damage(missing):
    document = {key: value for key, value in DOCUMENT.items() if key != missing}
    with pytest.raises(StateError, match="damaged"):
        read(json.dumps(document))
