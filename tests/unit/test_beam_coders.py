"""How Arrow batches and restrictions of the Beam transform are encoded."""

from __future__ import annotations

import json
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kafka.format.decode import arrow_schema
from headrace.enumerator.errors import StateError
from headrace.runners.beam.coders import EnumerationFormat, ReaderFormat, RecordBatchCoder
from headrace.runners.beam.reader_restriction import ReaderRestriction
from headrace.runners.beam.restrictions import Enumerated, Fresh, HandedOn
from headrace.testing.memory import MemoryLog, MemorySource
from tests.helpers.beam_rig import on_direct
from tests.helpers.driving import checkpoint_of, reading, split

SOURCE = MemorySource(MemoryLog())
CODER = RecordBatchCoder()

rows = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.binary(max_size=20),
            "value": st.none() | st.binary(max_size=20),
            "headers": st.none() | st.just([{"key": "k", "value": None}, {"key": "", "value": b"v"}]),
            "offset": st.integers(0, 2**62),
        }
    ),
    max_size=20,
)


@given(rows=rows, cut=st.integers(0, 20))
def test_a_batch_comes_back_as_it_was_also_a_slice_of_one(rows, cut):
    schema = arrow_schema(["key", "value", "headers", "offset"])
    batch = pa.RecordBatch.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema=schema)
    for item in (batch, batch.slice(cut)):
        decoded = CODER.decode(CODER.encode(item))
        assert decoded.equals(item)
        assert decoded.schema.equals(item.schema)
        assert CODER.encode(decoded) == CODER.encode(item)


def test_the_same_rows_have_the_same_bytes_wherever_they_lie():
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b", b"c", None]})
    again = pa.RecordBatch.from_pydict({"value": [b"x", b"a", b"b", b"c", None]}).slice(1)
    assert CODER.is_deterministic()
    assert CODER.encode(batch) == CODER.encode(again)


def test_beam_uses_it_for_record_batches():
    assert isinstance(beam.coders.registry.get_coder(pa.RecordBatch), RecordBatchCoder)


def test_batches_cross_the_stages_of_a_pipeline():
    batch = pa.RecordBatch.from_pydict({"value": [b"a", None]})
    with on_direct() as pipeline:
        batches = pipeline | beam.Create([0, 1]) | beam.Map(lambda _: batch).with_output_types(pa.RecordBatch)
        values = batches | beam.Reshuffle() | beam.FlatMap(lambda batch: batch.column("value").to_pylist())
        assert_that(values, equal_to([b"a", None, b"a", None]))


@pytest.mark.parametrize(
    "state", [Fresh(), HandedOn(), Enumerated(checkpoint_of()), Enumerated(checkpoint_of(reading("a", 3), exhausted=True))]
)
def test_an_enumeration_comes_back_as_it_was(state):
    coder = EnumerationFormat(SOURCE)
    assert coder.decode(coder.encode(state)) == state


def test_a_ledger_without_splits_is_not_fresh():
    """Null and empty must not be confused (fluss #3354)."""
    coder = EnumerationFormat(SOURCE)
    assert coder.decode(coder.encode(Enumerated(checkpoint_of()))) != Fresh()


def test_what_a_reader_has_to_do_comes_back_as_it_was():
    coder = ReaderFormat(SOURCE)
    restriction = ReaderRestriction((split("a", 3, 9), split("b", 0)), (split("c", 7, 7),))
    assert coder.decode(coder.encode(restriction)) == restriction


READER = ReaderRestriction((split("a", 3, 9), split("b", 0)), (split("c", 7, 7),))
GOLDEN_READER = Path(__file__).parent / "golden" / "beam_reader_v2.txt"
GOLDEN_FRESH = b'{"format": "headrace-fresh", "version": 1}'
GOLDEN_SPLIT = (
    b'{"format":"headrace-checkpoint","version":1,"crc32":1696104943,"body":"{\\"source\\":\\"memory\\",\\"checkpoint_id\\":0,'
    b'\\"exhausted\\":true,\\"split_version\\":1,\\"splits\\":[{\\"finished\\":false,\\"split\\":'
    b'{\\"id\\":\\"a\\",\\"next\\":3,\\"stop\\":9}}]}"}'
)

GOLDEN_FINISHED = (
    b'{"format":"headrace-checkpoint","version":1,"crc32":2480911286,"body":"{\\"source\\":\\"memory\\",\\"checkpoint_id\\":0,'
    b'\\"exhausted\\":true,\\"split_version\\":1,\\"splits\\":[{\\"finished\\":true,\\"split\\":'
    b'{\\"id\\":\\"a\\",\\"next\\":9,\\"stop\\":9}}]}"}'
)


def test_what_was_written_once_is_read_for_ever():
    assert EnumerationFormat(SOURCE).decode(GOLDEN_FRESH) == Fresh()
    assert ReaderFormat(SOURCE).decode(GOLDEN_SPLIT) == ReaderRestriction((split("a", 3, 9),))
    assert ReaderFormat(SOURCE).decode(GOLDEN_FINISHED) == ReaderRestriction(())
    assert ReaderFormat(SOURCE).decode(GOLDEN_READER.read_bytes()) == READER
    assert EnumerationFormat(SOURCE).encode(Fresh()) == GOLDEN_FRESH
    assert ReaderFormat(SOURCE).encode(READER) == GOLDEN_READER.read_bytes()


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (b"", "not JSON"),
        (b"{}", "not a headrace checkpoint"),
        (json.dumps({"format": "headrace-fresh", "version": 2}).encode(), "not a headrace checkpoint"),
        (GOLDEN_SPLIT.replace(b'next\\":3', b'next\\":4'), "checksum"),
        (GOLDEN_SPLIT.replace(b'"version":1', b'"version":2'), "version 2"),
    ],
)
def test_what_is_damaged_or_newer_is_refused(encoded, message):
    for coder in (EnumerationFormat(SOURCE), ReaderFormat(SOURCE)):
        with pytest.raises(StateError, match=message):
            coder.decode(encoded)


def test_what_a_newer_reader_has_left_is_refused():
    with pytest.raises(StateError, match="up to version 2, and these are of version '3'"):
        ReaderFormat(SOURCE).decode(GOLDEN_READER.read_bytes().replace(b"headrace-reader 2", b"headrace-reader 3"))


def test_state_of_another_source_is_refused():
    class Other(MemorySource):
        name = "other"

    with pytest.raises(StateError, match="'memory' source and cannot restore a 'other' source"):
        ReaderFormat(Other(MemoryLog())).decode(GOLDEN_SPLIT)
