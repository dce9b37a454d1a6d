"""How Arrow batches and restrictions of the Beam transform are encoded."""

from __future__ import annotations

import zlib
from pathlib import Path
from uuid import UUID

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kafka.format.decode import arrow_schema
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import StateError
from headrace.kafka import KafkaSource
from headrace.runners.beam.coders import EnumerationFormat, ReaderFormat, RecordBatchCoder
from headrace.runners.beam.reader_restriction import ReaderRestriction
from headrace.runners.beam.split_restriction import Enumerated, Fresh, HandedOn
from headrace.testing.memory import MemoryLog, MemorySource
from tests.helpers.beam_rig import on_direct
from tests.helpers.driving import checkpoint_of, reading, split
from tests.helpers.envelopes import sealed

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


def test_the_size_of_a_batch_is_estimated_without_encoding_it(monkeypatch):
    """Beam asks for it wherever a stage gives a batch."""
    batch = pa.RecordBatch.from_pydict({"value": [b"x" * 1000] * 1000}).slice(300, 500)
    encoded = len(CODER.encode(batch))
    monkeypatch.setattr(RecordBatchCoder, "encode", None)
    assert encoded - 1000 < CODER.get_impl().estimate_size(batch) <= encoded


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
LEDGER = Enumerated(checkpoint_of(reading("a", 3, 9), reading("b", 0)))
GOLDEN_READER, GOLDEN_LEDGER = (Path(__file__).parents[1] / "golden" / f"beam_{name}_v1.bin" for name in ("reader", "ledger"))


def test_the_golden_files_are_read_and_written():
    """A difference here means that the format has changed, and needs a new version. Another zlib may pack otherwise."""
    assert ReaderFormat(SOURCE).decode(GOLDEN_READER.read_bytes()) == READER
    assert EnumerationFormat(SOURCE).decode(GOLDEN_LEDGER.read_bytes()) == LEDGER
    assert zlib.decompress(ReaderFormat(SOURCE).encode(READER)) == zlib.decompress(GOLDEN_READER.read_bytes())
    assert zlib.decompress(EnumerationFormat(SOURCE).encode(LEDGER)) == zlib.decompress(GOLDEN_LEDGER.read_bytes())


def test_a_reader_with_fifty_partitions_is_smaller_than_two_kilobytes():
    """Beam's Flink runner keeps what every call leaves, for ever (#27648): 20 KB a call they were."""
    source = KafkaSource("localhost:9092", topics=["flights"])
    topic_id = UUID("00112233-4455-6677-8899-aabbccddeeff")
    splits = [KafkaSplit("flights", topic_id, number, 10**6 + 7919 * number**3, last_epoch=number % 5) for number in range(50)]
    assert len(ReaderFormat(source).encode(ReaderRestriction(tuple(splits)))) < 2000


def test_white_space_behind_it_says_nothing_and_anything_else_is_damage():
    encoded = ReaderFormat(SOURCE).encode(READER)
    assert ReaderFormat(SOURCE).decode(encoded + b"   ") == READER
    for damaged in (encoded + b"x", encoded[:-1], encoded[:20]):
        with pytest.raises(StateError, match="damaged"):
            ReaderFormat(SOURCE).decode(damaged)


def changed(state, old, new):
    """The same state with other bytes, packed again."""
    coder = ReaderFormat(SOURCE) if isinstance(state, ReaderRestriction) else EnumerationFormat(SOURCE)
    whole = zlib.decompress(coder.encode(state))
    assert old in whole
    return coder, zlib.compress(whole.replace(old, new, 1))


@pytest.mark.parametrize("state", [READER, LEDGER], ids=["reader", "ledger"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"next', b'"text', "checksum"),
        (b'"version":1', b'"version":2', "a newer headrace wrote it: version 2"),
        (b"headrace-", b"headrace+", "its format is"),
        (b'{"format"', b'{"former"', "without a format"),
        (b"{", b"", "not JSON"),
    ],
)
def test_what_is_damaged_or_newer_is_refused(state, old, new, message):
    coder, encoded = changed(state, old, new)
    with pytest.raises(StateError, match=f"^the runner's checkpoint: the state of a source.* cannot be read: .*{message}"):
        coder.decode(encoded)


@pytest.mark.parametrize("encoded", [b"", b"{}", b'{"format": "headrace-ledger", "version": 1}'])
def test_what_is_not_packed_is_refused(encoded):
    for coder in (EnumerationFormat(SOURCE), ReaderFormat(SOURCE)):
        with pytest.raises(StateError, match="damaged"):
            coder.decode(encoded)


def test_a_state_that_is_not_known_is_damage():
    with pytest.raises(StateError, match=r"damaged .*a state 'lost'"):
        EnumerationFormat(SOURCE).decode(zlib.compress(sealed("headrace-ledger", {"state": "lost"})))


def test_state_of_another_source_is_refused():
    class Other(MemorySource):
        name = "other"

    with pytest.raises(StateError, match="'memory' source and cannot restore a 'other' source"):
        ReaderFormat(Other(MemoryLog())).decode(GOLDEN_READER.read_bytes())
