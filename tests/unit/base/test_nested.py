"""Nulls of records beneath which fields that are never null have something, or nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors.base import nested
from headrace.connectors.base.nested import cast_nested, plain, plain_rows, record_fields, visible, without_hidden_nulls
from headrace.connectors.formats.json_lines import json_lines, unwritable
from headrace.connectors.formats.value_format import exactly
from headrace.connectors.tables.column_types import table_schema
from headrace.enumerator.errors import UsageError

_STRICT = [
    pa.int64(),
    pa.string(),
    pa.bool_(),
    pa.decimal128(9, 2),
    pa.list_(pa.int64()),
    pa.map_(pa.string(), pa.int32()),
    pa.dictionary(pa.int32(), pa.string()),
    pa.struct([pa.field("x", pa.int64(), nullable=False)]),
]
_VALUES = [7, "text", True, 1, [1, 2], [("k", 3)], "word", {"x": 4}]
_CASES = list(zip(_STRICT, _VALUES, strict=True))


def records(kind: pa.DataType, value: object, *, seen_null: bool = False) -> pa.RecordBatch:
    """The second is null, and in its field nothing is valid, as in Spark's batches."""
    inside = pa.array([value, None, None if seen_null else value, value], kind)
    field = pa.field("a", kind, nullable=False)
    column = pa.StructArray.from_arrays([inside], fields=[field], mask=pa.array([False, True, False, False]))
    return pa.record_batch([column], names=["s"])


def written(rows: pa.RecordBatch) -> list[object]:
    file = io.BytesIO()
    with pq.ParquetWriter(file, rows.schema) as writer:
        writer.write_batch(rows)
    found: list[object] = pq.read_table(io.BytesIO(file.getvalue())).column(0).to_pylist()
    return found


@pytest.mark.parametrize(("kind", "value"), _CASES, ids=str)
def test_a_null_record_is_written_whatever_is_beneath_it(kind, value):
    rows = records(kind, value)
    if not pa.types.is_nested(kind):
        with pytest.raises(pa.ArrowException):  # what it is for
            written(rows)
    for part in (rows, rows.slice(1, 2), rows.slice(1)):
        assert written(without_hidden_nulls(part)) == part.column(0).to_pylist()


@pytest.mark.parametrize(("kind", "value"), _CASES, ids=str)
def test_a_null_that_is_seen_is_refused_by_name(kind, value):
    rows = records(kind, value, seen_null=True)
    for wrong in (rows, pa.record_batch([rows.column(0).field(0)], schema=pa.schema([rows.column(0).type.field(0)]))):
        with pytest.raises(UsageError, match="'a' is declared as never null"):
            without_hidden_nulls(wrong)


@pytest.mark.parametrize("around", ["list", "map", "struct"])
def test_records_in_others_are_seen_to_as_well(around):
    inner = records(pa.int64(), 1).column(0)
    match around:
        case "list":
            column = pa.ListArray.from_arrays(pa.array([0, 3, None, 4], pa.int32()), inner)
        case "map":
            column = pa.MapArray.from_arrays(pa.array([0, 3, 3, 4], pa.int32()), pa.array(["a", "b", "c", "d"]), inner)
        case _:
            column = pa.StructArray.from_arrays([inner], names=["in"], mask=pa.array([False, False, True, False]))
    rows = pa.record_batch([column], names=["s"])
    assert written(without_hidden_nulls(rows)) == column.to_pylist()
    assert written(without_hidden_nulls(rows.slice(1))) == column.slice(1).to_pylist()


def test_rows_without_such_fields_are_the_same_object():
    loose = pa.struct([("a", pa.int64())])
    for kind in (
        loose,
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.string(), loose),
        pa.list_(loose),
        pa.list_(pa.int64(), 2),
    ):
        rows = pa.record_batch([pa.nulls(2, kind)], names=["s"])
        assert without_hidden_nulls(rows) is rows


def test_maps_of_views_are_visible_too():
    """Arrow has no filter for them."""
    kind = pa.map_(pa.string(), pa.string_view())
    values = pa.array([[("a", "b")], None, [("c", None), ("d", "e" * 20)], []], kind)
    for part in (values, values.slice(1), values.slice(1, 1), values.slice(2)):
        assert visible(part).to_pylist() == part.to_pylist()
        assert visible(part).type == kind
    hidden = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), ["a", "b"], ["c", "d"], mask=pa.array([True, False]))
    assert len(visible(hidden).keys) == 1


@pytest.mark.parametrize("around", ["struct", "list", "map", "key"])
def test_a_cast_to_fields_that_are_never_null_minds_no_null_record(around):
    """Rows of Spark have no such fields, and tables may."""
    loose, strict = (pa.struct([pa.field("x", kind, nullable=kind == pa.int32())]) for kind in (pa.int32(), pa.int64()))
    match around:
        case "list":
            found = pa.array([[{"x": 1}, None], None, []], pa.list_(loose))
            wanted = pa.list_(strict)
        case "map":
            found = pa.array([[("k", {"x": 1}), ("j", None)], None], pa.map_(pa.string(), loose))
            wanted = pa.map_(pa.string(), strict)
        case "key":
            found = pa.array([[({"x": 1}, "a"), ({"x": 2}, None)], None], pa.map_(loose, pa.string()))
            wanted = pa.map_(strict, pa.string())
        case _:
            found, wanted = pa.array([{"x": 1}, None], loose), strict
    cast = cast_nested(found, wanted)
    assert (cast.type, cast.to_pylist()) == (wanted, found.to_pylist())
    assert written(pa.record_batch([cast], names=["s"])) == found.to_pylist()
    with pytest.raises(UsageError, match="'x' is declared as never null"):
        cast_nested(pa.array([{"x": None}], loose), strict)


_INNER = [pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64()), pa.struct([("y", pa.string())])]


@pytest.mark.parametrize("inner", _INNER, ids=str)
def test_what_was_cast_can_be_cast_again(inner):
    """Arrow looks for nulls in any field that is never null, whatever is around it."""
    loose, strict = (pa.list_(pa.struct([pa.field("x", inner, nullable=nullable)])) for nullable in (True, False))
    rows = pa.array([[None], None, []], loose)
    again = pa.record_batch([cast_nested(rows, strict)], names=["l"]).cast(pa.schema([("l", strict)]))
    assert again.column(0).to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("is_dense", [False, True])
def test_unions_are_null_where_their_record_is(is_dense):
    """Arrow's own `flatten` and `struct_field` end the process."""
    ids, parts = pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
    if is_dense:
        union = pa.UnionArray.from_dense(ids, pa.array([0, 1, 2], pa.int32()), parts)
    else:
        union = pa.UnionArray.from_sparse(ids, parts)
    record = pa.StructArray.from_arrays([parts[0], union], ["n", "u"], mask=pa.array([False, True, False]))
    for part in (record, record.slice(1), record.slice(2)):
        rows = [row or {"n": None, "u": None} for row in part.to_pylist()]
        assert [each.to_pylist() for each in record_fields(part)] == [[row[name] for row in rows] for name in ("n", "u")]
        assert visible(part).to_pylist() == part.to_pylist()
        assert exactly(part, record.type).equals(part)


_TYPES = [pa.string_view(), pa.binary_view(), pa.string(), pa.float64(), pa.decimal128(9, 2), pa.bool_(), pa.timestamp("s")]
_ENCODED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "as it is": lambda values: values,
    "dictionary": lambda values: pa.DictionaryArray.from_arrays([0, 1, 1, 2], values),
    "runs": lambda values: pa.RunEndEncodedArray.from_arrays(pa.array([1, 3, 4], pa.int16()), values),
    "runs of a dictionary": lambda values: pa.RunEndEncodedArray.from_arrays(
        pa.array([1, 3, 4], pa.int16()), pa.DictionaryArray.from_arrays([0, 1, 2], values)
    ),
}
_WITHIN: dict[str, Callable[[pa.Array], pa.Array]] = {
    "a column": lambda values: values,
    "a list": lambda values: pa.ListArray.from_arrays([0, 1, 1, 3], values, mask=pa.array([False, True, False])),
    "a record": lambda values: pa.StructArray.from_arrays([values], ["a"], mask=pa.array([*[False] * (len(values) - 1), True])),
    "a list of a fixed size": lambda values: pa.FixedSizeListArray.from_arrays(values, 1),
}


@pytest.mark.parametrize("within", _WITHIN)
@pytest.mark.parametrize("encoded", _ENCODED)
@pytest.mark.parametrize("kind", _TYPES, ids=str)
def test_plain_values_are_the_same_and_their_nulls_are_counted(kind, encoded, within):
    """Regression: where a dictionary had views or nulls, or a list had views, sinks failed or took another type for granted."""
    sample = {pa.bool_(): [True, None, False], pa.string_view(): ["a", None, "b"], pa.string(): ["a", None, "b"]}
    values = pa.array(sample.get(kind, [1, None, 2]) if kind != pa.binary_view() else [b"a", None, b"b"], kind)
    column = _WITHIN[within](_ENCODED[encoded](values))
    for part in (column, column.slice(1)):
        found = plain(part)
        assert found.to_pylist() == part.to_pylist()
        assert found.null_count == found.is_null().to_pylist().count(True)
        assert not any(word in str(found.type) for word in ("dictionary", "view", "run_end"))
        assert found.take([0]).to_pylist() == found.filter(pa.array([True] + [False] * (len(found) - 1))).to_pylist()


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.string_view()], ids=str)
def test_more_texts_than_a_column_can_hold_are_an_error(monkeypatch, kind):
    """Regression: Arrow made offsets below 0 of a dictionary whose texts come often, and the process ended."""
    monkeypatch.setattr(nested, "_MOST_BYTES", 10)
    texts = pa.array(["abc", "d", None], kind)
    for places in ([0, 0, 0, 1, 2], [0, 0, 0, 0], [1] * 11):
        column = pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), texts)
        rows = pa.record_batch({"c": column, "l": pa.ListArray.from_arrays([0, *[len(places)] * len(places)], column)})
        if places[-1] == 2 or kind == pa.string_view():  # of views the offsets are large
            assert plain_rows(rows).to_pylist() == rows.to_pylist()
            continue
        for name in rows.schema.names:
            with pytest.raises(UsageError, match=rf"over 2 GiB in a batch of {len(places)} rows"):
                plain(rows.column(name))


class _City(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.string(), "headrace.tests.city")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _: pa.DataType, __: bytes) -> _City:
        return cls()


@pytest.mark.parametrize("within", _WITHIN)
def test_types_that_a_user_defines_are_kept(within):
    """Regression: Python's extension types have no hash, so that each sink failed for them by a TypeError."""
    column = _WITHIN[within](pa.ExtensionArray.from_storage(_City(), pa.array(["a", None, "b"])))
    encoded = pa.DictionaryArray.from_arrays(list(range(len(column))), column)
    assert plain(column) is column
    rows = plain_rows(pa.record_batch({"c": column, "d": encoded}))
    assert rows.schema.types == [column.type, column.type]
    assert rows.to_pylist() == [{"c": value, "d": value} for value in column.to_pylist()]
    assert [json.loads(line) for line in bytes(json_lines(rows)).splitlines()] == rows.to_pylist()
    assert [unwritable(kind) for kind in rows.schema.types] == [None, None]
    assert without_hidden_nulls(rows) is rows


def test_a_table_has_no_types_that_a_user_defines():
    with pytest.raises(UsageError, match=r"column 'c' is extension<headrace.tests.city<_City>>"):
        table_schema(pa.schema({"c": _City()}), lambda _: None, "table")
