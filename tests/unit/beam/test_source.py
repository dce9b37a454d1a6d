"""Beam's bounded sources as a Source: every record once, from any position; Beam's own checks of sources on our bundles."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

pytest.importorskip("apache_beam", reason="needs headrace[beam]")

import apache_beam as beam
from apache_beam.internal import pickler
from apache_beam.io import source_test_utils
from apache_beam.io.concat_source import ConcatSource
from apache_beam.io.iobase import BoundedSource
from apache_beam.io.range_trackers import OffsetRangeTracker

from headrace.connectors.beam import BeamSource, BundleSplit, BundleSplitSerializer, bounded_source, schema_of
from headrace.enumerator.errors import DataLossError, StateError, UsageError
from headrace.enumerator.source import Boundedness
from tests.helpers import beam_files

BUNDLE_BYTES = 1000
FORMATS = {
    "text": (beam_files.text, None, [{"value": line} for line in beam_files.LINES]),
    "parquet": (beam_files.parquet, beam_files.SCHEMA, beam_files.ROWS),
    "avro": (beam_files.avro, beam_files.SCHEMA, beam_files.ROWS),
}


class Elements(BoundedSource):
    """Gives these, one at each position."""

    def __init__(self, *elements: Any) -> None:
        self.elements = elements

    def estimate_size(self) -> int:
        return len(self.elements)

    def get_range_tracker(self, start: int | None, stop: int | None) -> OffsetRangeTracker:
        return OffsetRangeTracker(start or 0, len(self.elements) if stop is None else stop)

    def read(self, range_tracker: OffsetRangeTracker) -> Iterator[Any]:
        position = range_tracker.start_position()
        while range_tracker.try_claim(position):
            yield self.elements[position]
            position += 1

    def split(self, desired_bundle_size: int, start_position: Any = None, stop_position: Any = None) -> Iterator[Any]:
        for start in range(0, len(self.elements), desired_bundle_size):
            stop = min(start + desired_bundle_size, len(self.elements))
            yield beam.io.iobase.SourceBundle(stop - start, self, start, stop)


class Named(NamedTuple):
    id: int
    name: str


@pytest.fixture(params=FORMATS)
def made(request, tmp_path):
    make, schema, rows = FORMATS[request.param]
    return BeamSource(make(tmp_path / "data"), schema, bundle_bytes=BUNDLE_BYTES), rows


def splits_of(source: BeamSource) -> list[BundleSplit]:
    discovery = source.create_discovery()
    findings = discovery.initial()
    discovery.close()
    assert findings.complete
    return list(findings.added)


def batches_of(source: BeamSource, splits: list[BundleSplit], timeout: float = 1.0) -> Iterator[Any]:
    with source.create_reader() as reader:
        reader.add_splits(splits)
        finished = 0
        while finished < len(splits):
            batch = reader.poll(timeout)
            assert batch is not None
            finished += batch.finished
            yield batch
        assert reader.poll(0) is None


def rows_of(source: BeamSource, splits: list[BundleSplit], timeout: float = 1.0) -> list[dict[str, Any]]:
    return [row for batch in batches_of(source, splits, timeout) for row in batch.records.to_pylist()]


def all_rows(*elements: Any, schema: pa.Schema | None = None, bundle_bytes: int = 100) -> list[dict[str, Any]]:
    source = BeamSource(Elements(*elements), schema, bundle_bytes=bundle_bytes)
    return rows_of(source, splits_of(source))


class TestReading:
    def test_every_record_once_and_in_order_within_a_bundle(self, made):
        source, rows = made
        splits = splits_of(source)
        assert len(splits) > 2
        assert len({split.split_id for split in splits}) == len(splits)
        found = [rows_of(source, [split]) for split in splits]
        found.sort(key=lambda bundle: rows.index(bundle[0]) if bundle else -1)  # Beam takes files in any order
        assert [row for bundle in found for row in bundle] == rows

    def test_batches_have_the_schema_also_an_empty_one(self, made):
        source, _ = made
        batches = list(batches_of(source, splits_of(source), timeout=0))
        assert all(batch.records.schema.equals(source.schema) for batch in batches)
        assert any(batch.records.num_rows == 0 for batch in batches)

    def test_from_every_position_the_rest_is_read_and_nothing_twice(self, made):
        source, _ = made
        for split in splits_of(source)[:3]:
            whole = rows_of(source, [split])
            for batch in batches_of(source, [split], timeout=0):
                assert rows_of(source, [batch.split]) == whole[batch.split.delivered :]

    def test_a_position_in_the_middle_of_a_table(self, tmp_path):
        source = BeamSource(beam_files.parquet(tmp_path / "data"), beam_files.SCHEMA)
        (split,) = splits_of(source)
        for delivered in (0, 1, 49, 50, 51, 299, 300):
            assert rows_of(source, [BundleSplit(split.split_id, split.bundle, delivered)]) == beam_files.ROWS[delivered:]

    def test_a_bundle_that_has_lost_records_is_data_loss(self, made):
        source, _ = made
        split = splits_of(source)[0]
        count = len(rows_of(source, [split]))
        beyond = BundleSplit(split.split_id, split.bundle, count + 1)
        with pytest.raises(DataLossError, match=f"at least {count + 1} rows when they were delivered, and has {count} now"):
            rows_of(source, [beyond])

    def test_a_source_without_records_has_no_bundles(self):
        assert all_rows(schema=pa.schema([("value", pa.int64())])) == []

    def test_sources_in_a_row_of_another_kind_of_position(self):
        joined = ConcatSource([Elements("a", "b"), Elements("c"), Elements("d", "e", "f")])
        source = BeamSource(joined, pa.schema([("value", pa.string())]), bundle_bytes=2)
        assert [row["value"] for row in rows_of(source, splits_of(source))] == list("abcdef")


class TestBeamsOwnChecks:
    """`apache_beam.io.source_test_utils`, on the very bundles that are our splits."""

    def test_our_bundles_together_are_the_source(self, made):
        source, _ = made
        bundles = [pickler.loads(split.bundle) for split in splits_of(source)]
        source_test_utils.assert_sources_equal_reference_source((source.source, None, None), bundles)

    def test_a_bundle_can_be_read_while_it_is_read(self, made):
        source, _ = made
        checked = 0
        for split in splits_of(source):
            bundle = pickler.loads(split.bundle)
            if len(source_test_utils.read_from_source(*bundle)) >= 2:
                source_test_utils.assert_reentrant_reads_succeed(bundle)
                checked += 1
        assert checked or "parquet" in str(source.source._pattern)  # whose bundles are one table each

    def test_we_read_what_beam_reads(self, made):
        source, _ = made
        theirs = source_test_utils.read_from_source(source.source)
        if isinstance(theirs[0], pa.Table):
            theirs = [row for table in theirs for row in table.to_pylist()]
        ours = rows_of(source, splits_of(source))
        assert [row["value"] for row in ours] == theirs if "value" in ours[0] else ours == theirs

    def test_a_bundle_is_split_as_beam_splits_it(self, tmp_path):
        found = bounded_source(beam_files.text(tmp_path / "data"))
        bundle, start, stop = pickler.loads(splits_of(BeamSource(found, bundle_bytes=200))[1].bundle)
        assert (start, stop) != (None, None)
        source_test_utils.assert_split_at_fraction_exhaustive(Elements(*source_test_utils.read_from_source(bundle)[:4]))


class TestSchemas:
    def test_text_is_strings_or_bytes_by_its_coder(self, tmp_path):
        folder = tmp_path / "data"
        assert BeamSource(beam_files.text(folder)).schema == pa.schema([("value", pa.string())])
        source = BeamSource(beam.io.ReadFromText(f"{folder}/0.txt", coder=beam.coders.BytesCoder()))
        assert source.schema == pa.schema([("value", pa.binary())])
        assert rows_of(source, splits_of(source))[0] == {"value": beam_files.LINES[0].encode()}

    def test_what_says_nothing_of_its_records_needs_a_schema(self, tmp_path):
        with pytest.raises(UsageError, match="give their schema, or look at some by schema_of"):
            BeamSource(beam_files.avro(tmp_path / "data"))

    def test_the_first_records_suggest_one(self, tmp_path):
        assert schema_of(beam_files.parquet(tmp_path / "parquet")) == beam_files.SCHEMA
        assert schema_of(beam_files.avro(tmp_path / "avro")) == beam_files.SCHEMA
        assert schema_of(beam_files.text(tmp_path / "text")) == pa.schema([("value", pa.string())])
        assert schema_of(Elements(1.5, 2.5)) == pa.schema([("value", pa.float64())])
        assert schema_of(Elements(Named(1, "a"))) == beam_files.SCHEMA

    def test_a_transform_can_be_asked_for_its_schema_and_then_read(self, tmp_path):
        orders = beam_files.avro(tmp_path / "avro")
        assert BeamSource(orders, schema_of(orders)).schema == beam_files.SCHEMA

    @pytest.mark.parametrize(
        ("elements", "complaint"),
        [
            ((), "no records"),
            ((None, None), "the first 2 values of column 'value' are null"),
            ((1, "a"), "the type of column 'value' cannot be determined"),
            (((1, 2),), "the fields of a tuple have no names"),
            (({"a": 1}, {"b": 1}), "a row of the source has no a; it has b"),
        ],
    )
    def test_they_may_say_too_little(self, elements, complaint):
        with pytest.raises(UsageError, match=complaint):
            schema_of(Elements(*elements))

    @pytest.mark.parametrize(
        "element",
        [{"id": 1, "name": "a"}, {"name": "a", "left out": 2, "id": 1}, beam.Row(id=1, name="a"), Named(1, "a"), (1, "a")],
        ids=["dict", "dict with more", "Row", "named tuple", "tuple"],
    )
    def test_kinds_of_rows(self, element):
        assert all_rows(element, schema=beam_files.SCHEMA) == [{"id": 1, "name": "a"}]

    def test_rows_and_tables_mixed_keep_their_order(self):
        table = pa.table({"id": [2, 3], "name": ["b", "c"]})
        elements = (Named(1, "a"), table, table.slice(0, 0), Named(4, "d"), table.to_batches()[0])
        assert [row["id"] for row in all_rows(*elements, schema=beam_files.SCHEMA)] == [1, 2, 3, 4, 2, 3]

    @pytest.mark.parametrize(
        ("element", "complaint"),
        [
            ({"id": 1}, "a row of the source has no name; it has id"),
            ((1,), "gives tuples of 1 for the columns id, name"),
            (7, "gives ints of 1 for the columns id, name"),
            ({"id": "x", "name": "a"}, "column 'id' cannot hold what the source gives as int64"),
            ({"id": 1.5, "name": "a"}, "column 'id' cannot hold"),
            ({"id": 2**70, "name": "a"}, "column 'id' cannot hold"),
            (pa.table({"id": [1]}), "a table of the source has no name; it has id"),
            (pa.table({"id": ["x"], "name": ["a"]}), "column 'id' cannot hold"),
            ({"id": None, "name": "a"}, "column 'id' cannot hold .* never null"),
            (pa.table({"id": pa.nulls(1, pa.int64()), "name": ["a"]}), "column 'id' cannot hold .* never null"),
        ],
    )
    def test_what_does_not_fit_is_refused_by_name(self, element, complaint):
        with pytest.raises(UsageError, match=complaint):
            all_rows(
                element, schema=pa.schema([beam_files.SCHEMA.field("id").with_nullable(False), beam_files.SCHEMA.field("name")])
            )

    @pytest.mark.parametrize(
        ("value", "wanted"),
        [
            (datetime(2020, 1, 1, 5), pa.date32()),
            (datetime(2020, 1, 1, 5, 0, 0, 1), pa.timestamp("s")),
            (Decimal("1.5"), pa.int64()),
            (Decimal("1.25"), pa.decimal128(10, 1)),
            ([1.5], pa.list_(pa.int64())),
            (True, pa.int64()),
            (1, pa.string()),
            (b"\xff", pa.string()),
        ],
    )
    def test_no_value_is_changed(self, value, wanted):
        with pytest.raises(UsageError, match="column 'value' cannot hold"):
            all_rows(value, schema=pa.schema([("value", wanted)]))

    @pytest.mark.parametrize(
        ("value", "wanted"),
        [
            (datetime(2020, 1, 1), pa.date32()),
            (7, pa.int8()),
            (7, pa.float64()),
            (Decimal("1.5"), pa.decimal128(38, 18)),
            (None, pa.int64()),
            ([("k", 1)], pa.map_(pa.string(), pa.int64())),
            ({"b": 1, "a": [2]}, pa.struct([("a", pa.list_(pa.int64())), ("b", pa.int64())])),
            ("text", pa.large_string()),
            ("text", pa.dictionary(pa.int32(), pa.string())),
        ],
    )
    def test_what_fits_is_taken(self, value, wanted):
        (row,) = all_rows({"value": value}, schema=pa.schema([("value", wanted)]))
        assert row["value"] == (value.date() if isinstance(value, datetime) else value)


class TestSource:
    def test_it_is_bounded_and_has_nothing_to_find_later(self, made):
        source, _ = made
        assert source.boundedness is Boundedness.BOUNDED
        assert source.create_discovery().later({}).added == []
        assert source.create_discovery().later({}).complete

    def test_it_travels_by_pickle_with_what_a_plain_pickle_refuses(self):
        class Local(Elements):
            pass

        source = BeamSource(Local("a"), pa.schema([("value", pa.string())]), bundle_bytes=7)
        copy = pickle.loads(pickle.dumps(source))
        assert (copy.schema, copy.bundle_bytes) == (source.schema, 7)
        assert rows_of(copy, splits_of(copy)) == [{"value": "a"}]

    def test_a_transform_that_does_more_than_read_is_refused(self, tmp_path):
        for transform in (beam.io.ReadFromParquet(f"{tmp_path}/*", validate=False), beam.Create([1])):
            with pytest.raises(UsageError, match="must read one bounded source, and do no more"):
                bounded_source(transform)

    def test_wrong_arguments(self):
        with pytest.raises(UsageError, match="bundle_bytes"):
            BeamSource(Elements("a"), pa.schema([("value", pa.string())]), bundle_bytes=0)
        with pytest.raises(UsageError, match="no columns"):
            BeamSource(Elements("a"), pa.schema([]))

    def test_a_bundle_of_other_code_is_named(self):
        source = BeamSource(Elements("a"), pa.schema([("value", pa.string())]))
        with pytest.raises(StateError, match="bundle 0-abc was pickled by other code"):
            rows_of(source, [BundleSplit("0-abc", b"no pickle")])

    @pytest.mark.parametrize(
        "data",
        [
            {"id": 1, "bundle": "", "delivered": 0},
            {"id": "a", "bundle": "?", "delivered": 0},
            {"id": "a", "bundle": "", "delivered": -1},
            {"id": "a", "bundle": "", "delivered": True},
            {"id": "a", "bundle": ""},
        ],
    )
    def test_damaged_splits_are_refused(self, data):
        with pytest.raises((KeyError, TypeError, ValueError)):
            BundleSplitSerializer().deserialize(1, data)
