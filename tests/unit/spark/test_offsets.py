"""The JSON of offsets: what Spark stores in a query's checkpoint."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.envelope import checksum, compact
from headrace.enumerator.errors import DataLossError, StateError
from headrace.formats import StringFormat
from headrace.kafka import KafkaSource, Latest
from headrace.runners.spark.log_read import LogOffsets
from headrace.spark import kafka_offsets as offsets_json
from headrace.spark.kafka_formats import TypedFormat
from headrace.spark.kafka_offsets import KafkaOffsets
from headrace.testing.fake_kafka import FakeKafka
from tests.helpers.envelopes import body_of, enveloped, sealed

FORMAT = KafkaOffsets(KafkaSource("127.0.0.1:1", topics=["t"]))
GOLDEN, GOLDEN_TYPED = (
    Path(__file__).parents[1] / "golden" / name for name in ("kafka_offsets_v1.json", "kafka_offsets_typed_v1.json")
)
DAMAGED = "^the query's checkpoint: the offset of a batch cannot be read: it is damaged"
GOLDEN_TEXT = GOLDEN.read_text()
A = UUID("00112233-4455-6677-8899-aabbccddeeff")
B = UUID("ffeeddcc-bbaa-9988-7766-554433221100")


def offsets(*lines, initial=False):
    """Of (split, where it started)."""
    started = {split.split_id: started_at for split, started_at in lines}
    return LogOffsets({split.split_id: split for split, _ in lines}, started, initial=initial)


GOLDEN_OFFSETS = offsets(
    (KafkaSplit("flights", A, 0, 123, last_epoch=5), 7),
    (KafkaSplit("flights", A, 1, 0, last_epoch=0), 0),
    (KafkaSplit("flights", A, 10, 2**62), 5),
    (KafkaSplit("twice", A, 0, 10, last_epoch=2), 10),
    (KafkaSplit("twice", B, 0, 3, last_epoch=0), 0),
    (KafkaSplit("without-id", None, 0, 1), 1),
    initial=True,
)


def read(text):
    found = offsets_json.parse_ours(offsets_json.parse(text))
    assert found is not None
    return found


def own(text):
    """What is ours alone, in its envelope."""
    (key,) = (key for key in json.loads(text) if ":" in key)
    return key.removeprefix("headrace:")


def with_own(text, changed):
    return json.dumps({**shown(text), f"headrace:{changed}": {}})


def shown(text):
    return {key: value for key, value in json.loads(text).items() if ":" not in key}


def rest(text):
    return body_of(own(text))


def with_rest(text, changed):
    """Under checksums that hold."""
    if isinstance(changed, dict) and "shown" in changed:
        changed = changed | {"shown": checksum(compact(shown(text)))}
    return with_own(text, sealed("headrace-offsets", changed).decode())


def test_the_golden_offsets_are_read_and_written():
    """A difference here means that the format has changed, and needs a new version."""
    assert read(GOLDEN_TEXT) == GOLDEN_OFFSETS
    assert FORMAT.to_json(GOLDEN_OFFSETS) == GOLDEN_TEXT


PINNED = {
    "format": "avro",
    "id": "7",
    "fingerprint": "0123456789abcdef",
    "type": {"a": "int32", "b": ["list", {"c": "string"}], "d": ["map", "timestamp[ms, tz=UTC]"]},
}
TYPED_VALUE = TypedFormat(StringFormat(), PINNED, pa.string())
TYPED_KEY = TypedFormat(StringFormat(), {"format": "string"}, pa.string())
TYPED = KafkaOffsets(KafkaSource("127.0.0.1:1", topics=["t"], value=TYPED_VALUE, key=TYPED_KEY))


def test_the_golden_offsets_with_formats_are_read_and_written():
    text = GOLDEN_TYPED.read_text()
    assert TYPED.from_json(text) == GOLDEN_OFFSETS
    assert TYPED.to_json(GOLDEN_OFFSETS) == text
    with pytest.raises(StateError, match="there is no keyFormat now"):
        FORMAT.from_json(text)


def test_offsets_without_formats_continue_with_formats():
    assert TYPED.from_json(GOLDEN_TEXT) == GOLDEN_OFFSETS


def test_formats_that_are_no_objects_are_damage():
    text = GOLDEN_TYPED.read_text()
    with pytest.raises(StateError, match=rf"{DAMAGED} .*formats are not objects"):
        FORMAT.from_json(with_rest(text, rest(text) | {"formats": {"value": "avro"}}))


def test_offsets_in_progress_reports_are_read_as_the_jvm_connectors_are():
    """Regression: they were an object of headrace, and listeners that compute a lag from it fell over.

    What these do with `endOffset`: topics to partitions to offsets, all of it, as maps of numbers.
    """
    text = FORMAT.to_json(GOLDEN_OFFSETS)
    found = [
        (topic, int(partition), offset)
        for topic, partitions in json.loads(text).items()
        for partition, offset in partitions.items()
    ]
    assert found == [("flights", 0, 123), ("flights", 1, 0), ("flights", 10, 2**62), ("without-id", 0, 1)]
    assert offsets_json.parse_jvm(offsets_json.parse(text)) == {
        (topic, partition): offset for topic, partition, offset in found
    }


def test_what_is_ours_alone_is_under_a_key_that_no_topic_can_have():
    text = FORMAT.to_json(offsets((KafkaSplit("t", A, 0, 123, last_epoch=5), 7)))
    (key,) = json.loads(text).keys() - {"t"}
    assert re.fullmatch(r"[a-zA-Z0-9._-]+", key) is None
    assert json.loads(text)["t"] == {"0": 123}
    assert rest(text) == {
        "shown": checksum('{"t":{"0":123}}'),
        "began": {"t": {"0": 7}},
        "topic_ids": {"t": str(A)},
        "epochs": {"t": {"0": 5}},
        "offsets": {},
        "formats": {},
        "initial": False,
    }


def test_a_recreated_topic_has_two_ids_under_one_name():
    both = offsets((KafkaSplit("t", A, 0, 10), 10), (KafkaSplit("t", B, 0, 3), 0))
    text = FORMAT.to_json(both)
    assert rest(text)["offsets"] == {f"t@{A}": {"0": 10}, f"t@{B}": {"0": 3}}
    assert read(text) == both


@pytest.mark.parametrize("version", [2, 99])
def test_a_newer_version_is_refused_with_advice(version):
    with pytest.raises(
        StateError, match=rf": a newer headrace wrote it: version {version}, .* up to 1\. Continue with .* newer one$"
    ):
        read(with_own(GOLDEN_TEXT, enveloped(own(GOLDEN_TEXT), version=version).decode()))


@pytest.mark.parametrize("version", [0, -1, None, True, "1"])
def test_what_is_no_version_is_damage(version):
    with pytest.raises(StateError, match="damaged"):
        read(with_own(GOLDEN_TEXT, enveloped(own(GOLDEN_TEXT), version=version).decode()))


def test_a_changed_position_is_damage_though_others_read_it_without_the_rest():
    for old, new in (('"0":123', '"0":124'), ('\\"0\\":7', '\\"0\\":8')):
        assert GOLDEN_TEXT.count(old) == 1
        with pytest.raises(StateError, match=DAMAGED):
            read(GOLDEN_TEXT.replace(old, new))


def test_two_parts_of_ours_are_damage():
    document = json.loads(GOLDEN_TEXT)
    with pytest.raises(StateError):
        read(json.dumps(document | {"headrace:{}": {}}))


splits = st.builds(
    KafkaSplit,
    st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True),
    st.none() | st.uuids(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    last_epoch=st.none() | st.integers(0, 2**31 - 1),
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


def test_the_jvm_connectors_form_is_reported_from_ours():
    document = offsets_json.parse('{"flights":{"0":123,"10":0},"headrace":{"0":5}}')
    assert offsets_json.parse_ours(document) is None
    assert offsets_json.parse_jvm(document) == {("flights", 0): 123, ("flights", 10): 0, ("headrace", 0): 5}


PARTITIONS_DAMAGED = ('{"0":-1}', '{"0":-2}', '{"x":1}', '{"0":null}', '{"0":Infinity}', '{"0":NaN}', "5", "[1]", "null")


@pytest.mark.parametrize("text", [f'{{"t":{damaged}}}' for damaged in PARTITIONS_DAMAGED])
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


DOCUMENT = {**json.loads(GOLDEN_TEXT), "rest": rest(GOLDEN_TEXT)}
"""With what is ours alone in the clear, to be damaged; the damaged goes where it belongs."""

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def written(document):
    if "rest" not in document:
        return json.dumps(document)
    return with_rest(json.dumps({key: value for key, value in document.items() if key != "rest"}), document["rest"])


@given(st.sampled_from(list(paths(DOCUMENT))), anything, st.booleans())
@example(("flights", "0"), float("inf"), False)
@example(("rest", "epochs", "flights"), 5, False)
@example(("rest", "epochs", "flights", "0"), "x", False)
@example(("rest", "began", "flights", "0"), float("-inf"), False)
@example(("rest", "topic_ids", "flights"), 5, False)
@example(("rest", "offsets"), [], False)
@example(("rest", "offsets"), None, True)
@example(("rest",), None, False)
def test_damage_is_a_state_error_and_nothing_else(path, value, is_removed):
    document = json.loads(json.dumps(DOCUMENT))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    if is_removed:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    text = written(document)
    with suppress(StateError):
        found = offsets_json.parse_ours(offsets_json.parse(text))
        if found is None:
            offsets_json.parse_jvm(offsets_json.parse(text))
        else:
            assert read(FORMAT.to_json(found)) == found


@given(st.integers(0, len(GOLDEN_TEXT) - 1), st.integers(0, 127))
def test_a_changed_or_missing_byte_is_a_state_error_or_harmless(at, byte):
    for damaged in (GOLDEN_TEXT[:at], GOLDEN_TEXT[:at] + chr(byte) + GOLDEN_TEXT[at + 1 :]):
        with suppress(StateError):
            parsed = offsets_json.parse(damaged)
            if offsets_json.parse_ours(parsed) is None:
                offsets_json.parse_jvm(parsed)


@pytest.mark.parametrize("missing", ["shown", "offsets", "began", "topic_ids", "epochs", "formats", "initial"])
def test_a_missing_part_is_damage(missing):
    with pytest.raises(StateError, match="damaged"):
        read(with_rest(GOLDEN_TEXT, {key: value for key, value in rest(GOLDEN_TEXT).items() if key != missing}))


# --- what is said, and the order of what is written ---


@pytest.mark.parametrize(
    ("text", "what"), [("{" + "x" * 300, "is not JSON"), ("[" + "1," * 300 + "1]", "is not a JSON object")]
)
def test_an_offset_that_is_no_object_is_shown_by_its_first_200_characters(text, what):
    with pytest.raises(StateError) as raised:
        offsets_json.parse(text)
    assert str(raised.value).startswith(f"the checkpoint's offset {what}")
    assert str(raised.value).endswith(f": {text[:200]!r}")


def test_damage_is_said_with_the_kind_of_error_and_its_place():
    with pytest.raises(StateError, match=r"^the query's checkpoint: .*it is damaged \(KeyError: 'began'\)\. Put back a copy"):
        read(with_rest(GOLDEN_TEXT, {key: value for key, value in rest(GOLDEN_TEXT).items() if key != "began"}))


@pytest.mark.parametrize(
    ("document", "what"), [({"t": 5}, "neither headrace's nor Spark's"), ({"t": {"0": -1}}, "negative offsets")]
)
def test_what_is_not_the_jvm_connectors_is_shown(document, what):
    with pytest.raises(StateError, match=what) as raised:
        offsets_json.parse_jvm(document)
    assert str(raised.value).endswith(f": {document}")


def test_two_topics_of_one_name_are_written_in_one_order():
    lines = [(KafkaSplit("t", topic_id, partition, 1), 0) for partition in (0, 1) for topic_id in (B, A)]
    assert FORMAT.to_json(offsets(*lines)) == FORMAT.to_json(offsets(*reversed(lines)))


def test_a_topic_without_an_id_and_its_successor_with_one_are_two():
    """As of brokers that were too old for ids, and were replaced."""
    both = offsets((KafkaSplit("t", None, 0, 3), 1), (KafkaSplit("t", A, 0, 5), 2))
    assert FORMAT.from_json(FORMAT.to_json(both)) == both


# --- a checkpoint of the JVM connector, over a Kafka of this process ---


@pytest.fixture(scope="module")
def kafka():
    with FakeKafka() as cluster:
        for topic in ("t", "u"):
            cluster.create_topic(topic, partitions=2)
        cluster.append("t", *(b"%d" % number for number in range(5)))
        cluster.delete_records("t", before=2)
        yield cluster


def over(kafka, *topics, **fields):
    quick = {"retry.backoff.ms": "1", "retry.backoff.max.ms": "1"}
    return KafkaOffsets(KafkaSource(kafka.bootstrap, topics=topics or ("t",), properties=quick, **fields))


def id_of(kafka, topic):
    (topic_id,) = {split.topic_id for split in over(kafka, topic).source.create_discovery().initial().added}
    return topic_id


def test_a_checkpoint_of_the_jvm_connector_is_taken_over_with_the_ids_of_today(kafka):
    taken = [KafkaSplit("t", id_of(kafka, "t"), 0, 3), KafkaSplit("t", id_of(kafka, "t"), 1, 0)]
    assert over(kafka).from_json('{"t":{"0":3,"1":0}}') == LogOffsets({split.split_id: split for split in taken}, started_at={})


def test_an_empty_checkpoint_of_the_jvm_connector_has_no_splits(kafka):
    assert over(kafka).from_json("{}") == LogOffsets({}, started_at={})


def test_our_own_offsets_are_read_without_asking_a_broker():
    assert FORMAT.from_json(GOLDEN_TEXT) == GOLDEN_OFFSETS


def test_partitions_that_are_gone_are_named_when_a_checkpoint_is_taken_over(kafka):
    with pytest.raises(DataLossError, match=r"names partitions that are gone: t-7, t-8\. .*fail") as raised:
        over(kafka).from_json('{"t":{"8":1,"0":3,"7":0}}')
    assert str(raised.value).startswith("the checkpoint of Spark's Kafka connector names")


def test_partitions_that_are_gone_are_left_out_when_loss_is_allowed(kafka):
    found = over(kafka, "t", "u", fail_on_data_loss=False).from_json('{"t":{"8":1,"0":3},"u":{"1":0}}')
    assert [str(split) for split in found.splits.values()] == ["t-0", "u-1"]


def test_a_checkpoint_of_which_nothing_is_subscribed_to_is_refused_though_loss_is_allowed(kafka):
    with pytest.raises(StateError, match=r"^none of the checkpoint's partitions is among those subscribed to: u-0, u-1$"):
        over(kafka, fail_on_data_loss=False).from_json('{"u":{"1":1,"0":3}}')


def test_what_the_jvm_connector_found_while_it_planned_started_at_its_first_record(kafka):
    """And at its end if that lies before the first record by now, or if the partition is gone."""
    t, u = id_of(kafka, "t"), id_of(kafka, "u")
    found = [KafkaSplit("t", t, 0, 5), KafkaSplit("u", u, 0, 0), KafkaSplit("gone", A, 0, 9)]
    known = {split.split_id: split for split in [KafkaSplit("t", t, 1, 0)]}
    whatever = over(kafka, "t", "u", start_of_new_partitions=Latest())
    assert whatever.first_offsets(found, known) == {f"t-0@{t}": 2, f"u-0@{u}": 0, f"gone-0@{A}": 9}
    assert whatever.first_offsets([KafkaSplit("t", t, 0, 1)], known) == {f"t-0@{t}": 1}
