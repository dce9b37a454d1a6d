"""Texts of PostgreSQL's values as Arrow arrays: type by type, out of range, damaged, and against psycopg's loaders."""

import math
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("psycopg", reason="needs headrace[sql]")

from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Format

from headrace.connectors.postgresql.types import TEXT, OutOfRange, PgColumn, PgType, arrow_array, arrow_type, numeric_modifier
from headrace.enumerator.errors import CorruptDataError, UsageError

OIDS = {
    "boolean": 16, "bytea": 17, "bigint": 20, "smallint": 21, "integer": 23, "text": 25, "oid": 26, "json": 114, "real": 700,
    "double precision": 701, "money": 790, "date": 1082, "time without time zone": 1083, "timestamp without time zone": 1114,
    "timestamp with time zone": 1184, "interval": 1186, "time with time zone": 1266, "bit": 1560, "numeric": 1700, "uuid": 2950,
    "box": 603,
}  # fmt: skip


def base(name: str) -> PgType:
    return PgType(OIDS.get(name, 99999), name, "base", delimiter=";" if name == "box" else ",")


def array(element: PgType) -> PgType:
    return PgType(99998, f"{element.name}[]", "array", element)


PAIR = PgType(99997, "pair", "composite", fields=(PgColumn("n", base("integer")), PgColumn("t", base("text"))))
MOOD = PgType(99996, "mood", "enum", labels=("sad", "ok"))
SHORT = PgType(99995, "short", "domain", base("numeric"), modifier=numeric_modifier(3, 1))
GRID = PgType(99994, "grid", "domain", array(base("integer")), dimensions=2)


def column(kind: PgType | str, modifier: int = -1, dimensions: int = 0) -> PgColumn:
    return PgColumn("c", base(kind) if isinstance(kind, str) else kind, modifier, dimensions=dimensions)


def converted(column: PgColumn, *texts: str | None, out_of_range: OutOfRange = "error") -> pa.Array:
    """As an array, and the same of a slice of strings of another width."""
    found = arrow_array(column, pa.array(texts, pa.large_string()), out_of_range)
    found.validate(full=True)
    assert found.type == arrow_type(column)
    sliced = pa.array([None, *texts, "x"], pa.string()).slice(1, len(texts))
    assert found.equals(arrow_array(column, sliced, out_of_range)) or "nan" in str(found)
    return found


def numeric(precision: int, scale: int) -> PgColumn:
    return column("numeric", numeric_modifier(precision, scale))


def lists(kind: pa.DataType, dimensions: int) -> pa.DataType:
    return lists(pa.list_(kind), dimensions - 1) if dimensions else kind


def pair(number: int | None, text: str | None) -> dict[str, object]:
    return {"n": number, "t": text}


TIME, LOCAL, INSTANT = "time without time zone", "timestamp without time zone", "timestamp with time zone"
INTEGERS, TEXTS, HSTORE = array(base("integer")), array(base("text")), "public.hstore"
RECORD, MAP = pa.struct([("n", pa.int32()), ("t", pa.string())]), pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("column", "kind", "texts", "values"),
    [
        (column("boolean"), pa.bool_(), ["t", "f"], [True, False]),
        (column("smallint"), pa.int16(), ["-32768", "32767"], [-32768, 32767]),
        (column("bigint"), pa.int64(), ["-9223372036854775808"], [-(2**63)]),
        (column("oid"), pa.int64(), ["4294967295"], [2**32 - 1]),
        (column("real"), pa.float32(), ["1e+10", "-0", "Infinity"], [1e10, -0.0, math.inf]),
        (column("double precision"), pa.float64(), ["5e-324", "-Infinity", "0.1"], [5e-324, -math.inf, 0.1]),
        (column("numeric"), pa.string(), ["1.10", "NaN", "-Infinity"], ["1.10", "NaN", "-Infinity"]),
        (numeric(5, 2), pa.decimal128(5, 2), ["-999.99"], [Decimal("-999.99")]),
        (numeric(38, 0), pa.decimal128(38, 0), ["9" * 38], [Decimal("9" * 38)]),
        (numeric(39, 9), pa.decimal256(39, 9), ["1.000000001"], [Decimal("1.000000001")]),
        (numeric(77, 0), pa.string(), ["9" * 77], ["9" * 77]),
        (numeric(3, -2), pa.decimal128(5, 0), ["99900"], [Decimal(99900)]),
        (numeric(3, 5), pa.decimal128(5, 5), ["0.00999"], [Decimal("0.00999")]),
        (column("money"), pa.decimal128(19, 2), ["-$92,233,720,368,547,758.08"], [Decimal("-92233720368547758.08")]),
        (column("text"), pa.string(), ["", "a'b\\\n\té😀"], ["", "a'b\\\n\té😀"]),
        (column("bytea"), pa.binary(), ["\\x", "\\x00ff5C"], [b"", b"\0\xff\\"]),
        (column("date"), pa.date32(), ["0001-01-01", "9999-12-31"], [date(1, 1, 1), date(9999, 12, 31)]),
        (column(TIME), pa.time64("us"), ["00:00:00", "23:59:59.999999"], [time(), time.max]),
        (column(LOCAL), pa.timestamp("us"), ["2024-02-29 01:02:03.5"], [datetime(2024, 2, 29, 1, 2, 3, 500000)]),
        (column(INSTANT), pa.timestamp("us", "UTC"), ["0001-01-01 00:00:00+00"], [datetime(1, 1, 1, tzinfo=UTC)]),
        (column("interval"), pa.string(), ["P1Y2M3DT4H5M6.789S"], ["P1Y2M3DT4H5M6.789S"]),
        (column("public.citext"), pa.string(), ["Any"], ["Any"]),
        (column(MOOD), pa.string(), ["ok"], ["ok"]),
        (column(SHORT), pa.decimal128(3, 1), ["1.5"], [Decimal("1.5")]),
        (column(INTEGERS), pa.list_(pa.int32()), ["{}", "{1,NULL}", "[0:1]={5,6}"], [[], [1, None], [5, 6]]),
        (column(INTEGERS), pa.list_(pa.int32()), ["{}", "{1,NULL}", "{7}"], [[], [1, None], [7]]),
        (column(array(base("numeric")), numeric_modifier(3, 1)), pa.list_(pa.decimal128(3, 1)), ["{1.5}"], [[Decimal("1.5")]]),
        (column(TEXTS), pa.list_(pa.string()), [r'{a,"NULL",NULL,"","a\"\\,{}"}'], [["a", "NULL", None, "", r'a"\,{}']]),
        (column(array(base("bytea"))), pa.list_(pa.binary()), [r'{"\\x00ff","\\x",NULL}'], [[b"\0\xff", b"", None]]),
        (column(array(base("box"))), pa.list_(pa.string()), ["{(1,1),(0,0);(2,2),(0,0)}"], [["(1,1),(0,0)", "(2,2),(0,0)"]]),
        (column(INTEGERS, dimensions=2), lists(pa.int32(), 2), ["{{1,2},{3,NULL}}", "{}"], [[[1, 2], [3, None]], []]),
        (column(TEXTS, dimensions=3), lists(pa.string(), 3), ['[0:0][1:1][2:2]={{{"a b"}}}'], [[[["a b"]]]]),
        (column(GRID), lists(pa.int32(), 2), ["{{1},{2}}"], [[[1], [2]]]),
        (
            column(PAIR),
            RECORD,
            [r'(1,"a ""b"" \\,()")', "(,)", '(2,"")'],
            [pair(1, r'a "b" \,()'), pair(None, None), pair(2, "")],
        ),
        (column(array(PAIR)), pa.list_(RECORD), [r'{"(1,\"a,b\")",NULL}'], [[pair(1, "a,b"), None]]),
        (column(HSTORE), MAP, [r'"a"=>"1", "b\"\\"=>NULL', ""], [[("a", "1"), ('b"\\', None)], []]),
    ],
)
def test_values_are_those_of_their_texts_and_nulls_stay(column, kind, texts, values):
    found = converted(column, *texts, None)
    assert found.type == kind
    assert found.to_pylist() == [*values, None]
    assert converted(column, None, None).to_pylist() == [None, None]
    assert len(converted(column)) == 0


def test_dates_and_timestamps_before_christ_and_after_9999_are_held():
    days = converted(column("date"), "4713-11-24 BC", "0001-12-31 BC", "5874897-12-31", "2000-01-01", None)
    assert days.cast(pa.int32()).to_pylist() == [-2440222, -719163, 2145042905, 10957, None]
    moments = converted(column(INSTANT), "0001-12-31 23:59:59.5+00 BC", "10000-01-01 00:00:00+00", None)
    assert moments.cast(pa.int64()).to_pylist() == [-62135596800500000, 253402300800000000, None]
    last = converted(column(LOCAL), "294247-01-10 04:00:54.775807")
    assert last.cast(pa.int64()).to_pylist() == [2**63 - 1]


@pytest.mark.parametrize(
    ("column", "text", "usual"),
    [
        (column("date"), "infinity", "2024-01-01"),
        (column(LOCAL), "-infinity", "2024-01-01 00:00:00"),
        (column(LOCAL), "294276-12-31 23:59:59.999999", "2024-01-01 00:00:00"),
        (column(INSTANT), "infinity", "2024-01-01 00:00:00+00"),
        (column(TIME), "24:00:00", "00:00:00"),
        (numeric(5, 2), "NaN", "1.00"),
        (numeric(5, 2), "1.001", "1.00"),
        (numeric(5, 2), "1000.00", "1.00"),
        (column(array(base("integer"))), "{{1},{2}}", "{1}"),
        (column(array(base("date"))), "{infinity,2024-01-01}", "{2024-01-01}"),
    ],
)
def test_what_no_arrow_type_holds_is_an_error_that_names_it_or_a_null(column, text, usual):
    expected = converted(column, usual, None, usual)
    with pytest.raises(UsageError, match=r"column 'c': the value '.*' of the type .* is out of range"):
        converted(column, usual, text)
    found = converted(column, usual, text, usual, out_of_range="null").to_pylist()
    assert [found[0], found[2]] == [expected[0].as_py(), expected[2].as_py()]
    assert found[1] in (None, [None, date(2024, 1, 1)])
    assert converted(PgColumn("c", TEXT), text).to_pylist() == [text]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (column("boolean"), "yes"),
        (column("integer"), "2147483648"),
        (column("double precision"), "1,5"),
        (numeric(5, 2), "1,5"),
        (column("money"), "1.234,56 €"),
        (column("bytea"), "abc"),
        (column("bytea"), "\\x0"),
        (column("bytea"), "\\xgg"),
        (column("date"), "01/02/2024"),
        (column("date"), "2024-13-01"),
        (column(INSTANT), "2024-01-01 00:00:00"),
        (column(TIME), "25:00:00"),
        (column(TEXTS), "a"),
        (column(TEXTS), '{"a'),
        (column(TEXTS), "{a}{b}"),
        (column(TEXTS, dimensions=2), "{{a}"),
        (column(PAIR), "(1,a"),
        (column(PAIR), "(1,a)b"),
        (column(PAIR), "1,a"),
        (column(HSTORE), '"a"=>1'),
    ],
)
def test_a_text_that_is_not_of_the_type_is_corrupt(column, text):
    with pytest.raises(CorruptDataError, match="column 'c'"):
        converted(column, text, out_of_range="null")


def test_a_type_that_no_column_can_have_is_refused_by_the_columns_name():
    for kind in (PgType(1, "nothing", "composite"), PgType(2, "unknown", "domain")):
        with pytest.raises(UsageError, match="column 'c'"):
            arrow_type(column(kind))


# --- psycopg's dumpers write the texts, its loaders read them -----------------------------------------------------------

_TRANSFORMER = Transformer()
_STRINGS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["", "NULL", "null", '"', "\\", "{}", "a,b", "(", " ", "\n"]
)


def dumped(value: Any) -> str:
    if isinstance(value, bytes):  # without a server, psycopg writes them in the older way
        return f"\\x{value.hex()}"
    dumper = _TRANSFORMER.get_dumper(value, PyFormat.TEXT)
    text = dumper.dump(value)
    assert text is not None
    return bytes(text).decode()


@given(values=st.lists(st.lists(st.none() | _STRINGS, min_size=2, max_size=2), min_size=1, max_size=3))
def test_arrays_of_texts_are_what_psycopg_reads(values):
    text = dumped(values)
    assert _TRANSFORMER.get_loader(1009, Format.TEXT).load(text.encode()) == values
    assert converted(column(TEXTS, dimensions=2), text).to_pylist() == [values]
    assert converted(column(TEXTS), dumped(values[0])).to_pylist() == [values[0]]


@given(values=st.tuples(st.none() | st.integers(-9, 9), st.none() | _STRINGS))
def test_composites_are_what_psycopg_reads(values):
    text = dumped(values)
    loaded = _TRANSFORMER.get_loader(2249, Format.TEXT).load(text.encode())
    assert converted(column(PAIR), text).to_pylist() == [{"n": None if loaded[0] is None else int(loaded[0]), "t": loaded[1]}]


@pytest.mark.parametrize("text", ["(1)", "(1,a,b)"])
def test_a_composite_type_that_was_altered_ends_the_job_and_says_so(text):
    with pytest.raises(UsageError, match="has not the 2 fields of the type pair: ALTER TYPE has changed it"):
        converted(column(PAIR), text)


_DATES = st.dates().map(lambda day: ("date", day))
_TIMES = st.times().map(lambda at: ("time without time zone", at))
_MOMENTS = st.datetimes().map(lambda at: ("timestamp without time zone", at))
_BYTES = st.binary().map(lambda content: ("bytea", content))
_FLOATS = st.floats().map(lambda number: ("double precision", number))


@given(st.lists(_DATES | _TIMES | _MOMENTS | _BYTES | _FLOATS, max_size=5))
def test_scalars_are_what_psycopg_reads(pairs):
    for name, value in pairs:
        (found,) = converted(column(name), dumped(value)).to_pylist()
        loaded = _TRANSFORMER.get_loader(OIDS[name], Format.TEXT).load(dumped(value).encode())
        assert found == loaded or (math.isnan(found) and math.isnan(loaded))


@example(texts=["("])
@given(texts=st.lists(st.text(st.sampled_from('{}",\\ax()N=>[]:1'), max_size=12), max_size=3))
def test_damaged_texts_of_arrays_composites_and_maps_are_refused_as_such(texts):
    for kind in (TEXTS, PAIR, base(HSTORE), array(PAIR)):
        with suppress(CorruptDataError, UsageError):
            converted(column(kind), *texts)
