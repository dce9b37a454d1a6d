"""The envelope of what is stored: each error, and every stored format, which refuses what is damaged with the same text."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.lease import parse_heartbeat
from headrace.connectors.base.sink import HandleSerializer
from headrace.connectors.files.handles import FileHandleSerializer
from headrace.connectors.kafka.write.handles import KafkaHandleSerializer
from headrace.connectors.kafka.write.list_records import split, whole
from headrace.connectors.sql.handles import SqlHandleSerializer
from headrace.connectors.tables.handles import TableHandleSerializer
from headrace.enumerator.envelope import Envelope, readable_version
from headrace.enumerator.errors import StateError
from headrace.runners.beam.coders import EnumerationFormat, ReaderFormat
from headrace.runners.beam.shard import ShardStateSerializer
from headrace.runners.beam.table_epochs import CommitterStateSerializer
from headrace.runners.local.checkpoints import RUN, RunCheckpointSerializer
from headrace.runners.local.savepoints import Savepoint
from headrace.runners.local.storage.object_log import ObjectLog
from headrace.runners.spark.log_offsets import OFFSETS
from headrace.runners.spark.split_state import ENDS, SPLITS, STAGE
from headrace.spark.kafka_offsets import OURS, parse, parse_ours
from headrace.testing.memory import MemoryLog, MemorySource
from headrace.testing.memory_sink import MemoryHandleSerializer
from tests.helpers.driving import SERIALIZER
from tests.helpers.envelopes import body_of, enveloped, sealed

GOLDEN = Path(__file__).parents[1] / "golden"
PLAN = Envelope("headrace-plan", "plan")
BODY = {"name": "ünï", "number": 2**70, "share": 0.1, "parts": [None, True, {}]}
PLACE = "Check that this is the place that was meant"
COPY = "Put back a copy that is not damaged"
EITHER = f"{PLACE}, or put back a copy that is not damaged"
NEWER = "Continue with the headrace that wrote it, or with a newer one"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


# --- the envelope -------------------------------------------------------------------------------------------------------
def test_an_envelope_is_one_line_of_json_with_four_fields():
    data = PLAN.seal({"a": [1]})
    assert data == b'{"format":"headrace-plan","version":1,"checksum":%d,"body":{"a":[1]}}' % zlib.crc32(b'{"a":[1]}')
    assert PLAN.seal(BODY).isascii()


@given(st.dictionaries(st.text(max_size=5), values, max_size=4))
def test_a_body_comes_back_as_it_was(body):
    data = PLAN.seal(body)
    assert b"\n" not in data
    assert PLAN.open(data, "here") == PLAN.open(data.decode(), "here") == body


def test_an_envelope_that_was_indented_is_whole():
    assert PLAN.open(json.dumps(json.loads(PLAN.seal(BODY)), indent=2), "here") == BODY


@pytest.mark.parametrize(("data", "problem", "what_to_do"), [
    (b"", "it is not JSON (Expecting value: line 1 column 1 (char 0))", EITHER),
    (PLAN.seal(BODY)[:-1], f"it is not JSON (Expecting ',' delimiter: line 1 column {len(PLAN.seal(BODY))}", EITHER),
    (b"\xff\xfe", "it is not JSON (", EITHER), (b"[" * 100_000, "it is not JSON (", EITHER),
    (b"[]", "headrace did not write it: it is a JSON list without a format", EITHER),
    (b"{}", "headrace did not write it: it is a JSON dict without a format", EITHER),
    (sealed("headrace-map", BODY), "its format is 'headrace-map', not 'headrace-plan'", PLACE),
    (enveloped(PLAN.seal(BODY), format=None), "its format is None, not 'headrace-plan'", PLACE),
    (Envelope("headrace-plan", "", 2).seal(BODY), "a newer headrace wrote it: version 2, and this one reads up to 1", NEWER),
    (enveloped(PLAN.seal(BODY), version=0), "it is damaged (ValueError: version 0)", COPY),
    (enveloped(PLAN.seal(BODY), version=True), "it is damaged (ValueError: version True)", COPY),
    (enveloped(PLAN.seal(BODY), version="1"), "it is damaged (ValueError: version '1')", COPY),
    (b'{"format":"headrace-plan"}', "it is damaged (KeyError: 'version')", COPY),
    (enveloped(PLAN.seal(BODY), checksum=7), "it is damaged (ValueError: its checksum does not match)", COPY),
    (PLAN.seal(BODY).replace(b"0.1", b"0.2"), "it is damaged (ValueError: its checksum does not match)", COPY),
    (sealed("headrace-plan", [1]), "it is damaged (TypeError: its body is a JSON list)", COPY),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_with_what_is_wrong_and_what_to_do(data, problem, what_to_do):
    with pytest.raises(StateError) as refused:
        PLAN.open(data, "/a/b.json")
    said = str(refused.value)
    assert said.startswith(f"/a/b.json: the plan cannot be read: {problem}")
    assert said.endswith(f". {what_to_do}")


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), ValueError("x"), AttributeError("x"), OverflowError("x")])
def test_what_a_reader_raises_for_the_body_is_refused_the_same_way(error):
    with pytest.raises(StateError, match=r"^here: the plan cannot be read: it is damaged \(.*Error: .*x.*\)\. Put back a copy"):  # noqa: SIM117
        with PLAN.reading("here"):
            raise error


def test_a_newer_part_of_the_body_is_refused_as_a_newer_version():
    with pytest.raises(StateError, match=rf"^here: the plan cannot be read: a newer headrace wrote it: version 3, .* {NEWER}$"):  # noqa: SIM117
        with PLAN.reading("here"):
            readable_version(3, 2)


def test_what_the_reader_says_itself_and_errors_of_the_program_pass():
    for error in (StateError("of another run"), RuntimeError("a bug")):
        with pytest.raises(type(error), match=re.escape(str(error))), PLAN.reading("here"):
            raise error


# --- every stored format ------------------------------------------------------------------------------------------------
def list_of(handles: HandleSerializer) -> Callable[[bytes, str], object]:
    return CommitListSerializer(handles).deserialize


def run_checkpoint(data: bytes, where: str) -> object:
    return RunCheckpointSerializer(SERIALIZER, MemoryHandleSerializer()).deserialize("run-golden", data, where)


STORED = {
    "checkpoint_v1.json": SERIALIZER.deserialize, "commit_list_v1.json": list_of(MemoryHandleSerializer()),
    "commit_list_claimed_v1.json": list_of(FileHandleSerializer()),
    "kafka_commit_list_v1.json": list_of(KafkaHandleSerializer()),
    "sql_commit_list_v1.json": list_of(SqlHandleSerializer()),
    "table_commit_list_v1.json": list_of(TableHandleSerializer()),
    "lease_v1.json": lambda data, where: parse_heartbeat(data.decode(), where), "run-checkpoint-v1.json": run_checkpoint,
    "run-roster-v1.json": RUN.open, "run-savepoint-v1.json": Savepoint.deserialize,
    "beam_writer_v1.json": ShardStateSerializer(KafkaHandleSerializer()).deserialize,
    "beam_epochs_v1.json": CommitterStateSerializer(TableHandleSerializer()).deserialize,
    "split_reading_v1.json": SPLITS.open, "split_ends_v1.json": ENDS.open, "log_offsets_v1.json": OFFSETS.open,
    "stage_offset_v1.json": STAGE.open,
}  # fmt: skip
"""The golden files that are an envelope as it is, and their readers."""


def other_value(data: bytes) -> bytes:
    """The first number, name or truth of the body is another one, under the checksum of the old one."""
    head, body = data.split(b'"body":', 1)
    others = {b"true": b"false", b"false": b"true", b"1": b"2"}
    return head + b'"body":' + re.sub(rb"\d|true|false", lambda found: others.get(found[0], b"1"), body, count=1)


DAMAGES = {
    "another value": (other_value, "its checksum does not match"),
    "truncated": (lambda data: data[: len(data) // 2], "it is not JSON"),
    "nothing": (lambda _: b"", "it is not JSON"),
    "newer": (lambda data: enveloped(data, version=2), "a newer headrace wrote it: version 2"),
    "another format": (lambda data: enveloped(data, format="other"), "its format is 'other'"),
    "of others": (lambda _: b'{"kind": "theirs"}', "headrace did not write it"),
}


def refused(noun: str, problem: str, place: str = "/some/place") -> str:
    return rf"^{place}: the {noun} cannot be read: .*{re.escape(problem)}.*\. (Put back|Check|Continue)"


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_every_stored_format_is_refused_with_the_one_text(name, damage):
    data, (change, problem) = (GOLDEN / name).read_bytes(), DAMAGES[damage]
    STORED[name](data, "/some/place")
    assert change(data) != data
    with pytest.raises(StateError, match=refused("[a-z ]+", problem)):
        STORED[name](change(data), "/some/place")


def test_every_golden_envelope_is_of_version_1_and_has_a_reader_here():
    found = {path.name for path in GOLDEN.glob("*.json") if b'"checksum"' in path.read_bytes()[:200]}
    others = {"commit_list_completed_v1.json", "run-checkpoint-outputs-v1.json", "run-log-v1.json"}  # as some of the others
    assert found - others == STORED.keys()
    assert {json.loads((GOLDEN / name).read_bytes())["version"] for name in STORED} == {1}


@pytest.mark.parametrize("kind", [EnumerationFormat, ReaderFormat])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_what_beam_keeps_packed_is_refused_with_the_one_text(kind, damage):
    coder, name = kind(MemorySource(MemoryLog())), "ledger" if kind is EnumerationFormat else "reader"
    data, (change, problem) = (GOLDEN / f"beam_{name}_v1.bin").read_bytes(), DAMAGES[damage]
    with pytest.raises(StateError, match=refused("state of a source.*", problem, "the runner's checkpoint")):
        coder.decode(zlib.compress(change(zlib.decompress(data))))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_offsets_in_a_querys_checkpoint_is_refused_with_the_one_text(damage):
    text, (change, problem) = (GOLDEN / "kafka_offsets_v1.json").read_text(), DAMAGES[damage]
    document = json.loads(text)
    (own,) = (key for key in document if key.startswith(OURS))
    changed = change(own.removeprefix(OURS).encode()).decode()
    with pytest.raises(StateError, match=refused("offset of a batch", problem, "the query's checkpoint")):
        parse_ours({**{key: value for key, value in document.items() if key != own}, OURS + changed: {}})
    assert parse_ours(parse(text)) is not None


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_an_entry_of_a_runs_log_is_refused_with_the_one_text(damage):
    change, problem = DAMAGES[damage]
    stored = {name: text.encode() for name, text in json.loads((GOLDEN / "run-log-v1.json").read_text()).items()}
    head, _, rest = stored["log/000000000002"].partition(b"\n")
    changed = {**stored, "log/000000000002": change(head) + b"\n" + rest}

    class Objects:
        def names(self, folder):
            return [name.removeprefix(f"{folder}/") for name in changed]

        def read(self, name):
            return changed[name]

    with pytest.raises(StateError, match=refused("entry of a run's log", problem, "mem://x/log/000000000002")):
        ObjectLog("mem://x", Objects())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_list_in_parts_whose_head_is_damaged_is_no_list_that_can_be_read(damage):
    change, _ = DAMAGES[damage]
    stored = (GOLDEN / "kafka_commit_list_v1.json").read_bytes() + b" " * (1 << 20)
    records = {key: value for key, value in split("key", stored, ()).items() if value is not None}
    assert whole("key", records) == stored
    assert body_of(records["key"])["parts"] == len(records) - 1
    damaged = whole("key", {**records, "key": change(records["key"])})
    with pytest.raises(StateError, match=refused("list of transactions", "")):
        list_of(KafkaHandleSerializer())(damaged, "/some/place")
