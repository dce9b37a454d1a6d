"""Times in JSON values: zones, digits, and what a text has to look like, compared with what Arrow reads."""

from __future__ import annotations

import itertools
import json
import pickle
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.connectors.formats import json_times
from headrace.errors import UsageError
from headrace.formats import JsonFormat

UTC = pa.timestamp("us", "UTC")


def decoded(texts: list[str | None], kind: pa.DataType = UTC, **options: Any) -> tuple[list[str | None], list[int]]:
    values = pa.array([None if text is None else f'{{"t":"{text}"}}' for text in texts])
    column, bad = JsonFormat(pa.struct([("t", kind)]), **options).decode(values)
    times = pc.struct_field(column, 0).cast(pa.timestamp(kind.unit)).cast(pa.string()).to_pylist()
    return [None if each is None else each.removesuffix(".000000") for each in times], [each.row for each in bad]


DATES = itertools.product(("0000", "1900", "2000", "2023", "9996"), (0, 1, 2, 4, 9, 12, 13), (0, 1, 28, 29, 30, 31, 32))
DAYS = [f"{year}-{month:02}-{day:02}" for year, month, day in DATES]
CLOCKS = ["", "1", "00", "23", "24", "12:0", "12:00", "12:60", "12:59:59", "12:59:60"]
CLOCKS += ["12:00:00.", "12:00:00.1", "1200", "12.5"]
ZONES = ["", "Z", "z", "+1", "+01", "-0130", "+01:30", "+24:00", "+23:59", "+23:60", "+01:3", " Z", "UTC"]


@pytest.mark.parametrize("among_others", [False, True])
def test_what_arrow_takes_for_a_time_is_one(among_others: bool):
    clocks = (f"2020-01-01{mark}{clock}{zone}" for mark, clock, zone in itertools.product("T t", CLOCKS, ZONES))
    texts = [*DAYS, *clocks, "", "x"]

    def alone(text: str) -> int | None:
        for kind in (UTC, pa.timestamp("us")):
            try:
                return int(pa.array([text]).cast(kind).cast(pa.int64())[0].as_py())
            except pa.ArrowInvalid:
                continue
        return None

    wanted = [alone(text) for text in texts]
    assert {True, False} == {each is None for each in wanted}
    groups = [texts] if among_others else [[text] for text in texts]
    found = [json_times.as_times(pa.array(group), UTC, "UTC", []).cast(pa.int64()) for group in groups]
    assert pa.chunked_array(found).to_pylist() == wanted


def test_a_time_without_a_zone_is_in_the_one_that_is_given():
    texts = ["2020-07-01T12:00:00", "2020-07-01", "2020-07-01T12:00:00Z", "2020-01-01 12:00:00-01:00", None, "2020-07-01T25"]
    found = decoded(texts, time_zone="America/New_York")
    assert found == (
        ["2020-07-01 16:00:00", "2020-07-01 04:00:00", "2020-07-01 12:00:00", "2020-01-01 13:00:00", None, None],
        [5],
    )
    assert decoded(texts[:2])[0] == ["2020-07-01 12:00:00", "2020-07-01 00:00:00"]
    naive = decoded(texts[:2], pa.timestamp("us"), time_zone="America/New_York")[0]
    assert naive == ["2020-07-01 12:00:00", "2020-07-01 00:00:00"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("others", [[], ["2020-07-01T12:00:00.1234567891"], ["x"]], ids=["good", "cut", "bad"])
def test_a_text_with_a_zone_is_no_time_of_a_type_without_one(unit: str, others: list[str]):
    """As for `from_json` of Spark, for which it is malformed: which clock it is on is not known."""
    texts = [f"2020-07-01{clock}{zone}" for clock in ("T12", " 12:00:00.5") for zone in ("Z", "+02:00", "-0130")]
    kind = pa.struct([("l", pa.list_(pa.timestamp(unit)))])
    values = pa.array([f'{{"l":["2020-07-01","{text}"]}}' for text in [*texts, *others, "2020-07-01T12:00"]])
    column, bad = JsonFormat(kind).decode(values)
    assert [each.row for each in bad][: len(texts)] == list(range(len(texts)))
    assert bad[0].reason == f"does not fit the type: field 'l[]' is a string that is not timestamp[{unit}] without a zone"
    assert [each.row for each in bad][len(texts) :] == [len(texts)] * ("x" in others)
    assert column[len(values) - 1].as_py()["l"] == [datetime(2020, 7, 1), datetime(2020, 7, 1, 12)]


def test_a_time_that_a_clock_leaves_out_is_as_it_would_have_been_and_of_two_the_earlier_one():
    texts = ["2026-03-08T01:59:59", "2026-03-08T02:30:00", "2026-03-08T03:00:00", "2026-11-01T01:30:00"]
    found = ["2026-03-08 06:59:59", "2026-03-08 07:30:00", "2026-03-08 07:00:00", "2026-11-01 05:30:00"]
    assert decoded(texts, time_zone="America/New_York") == (found, [])
    assert decoded(["2011-12-30T12:00:00"], time_zone="Pacific/Apia") == (["2011-12-30 22:00:00"], [])


@pytest.mark.parametrize(("unit", "shown"), [("s", ""), ("ms", ".123"), ("us", ".123456"), ("ns", ".123456789")])
def test_digits_beyond_the_unit_are_cut(unit: str, shown: str):
    for end in ("Z", ""):
        texts = [f"2020-07-01T12:00:00.12345678987{end}", f"1969-12-31T23:59:59.99999999999{end}"]
        times, bad = decoded(texts, pa.timestamp(unit, "UTC"))
        nines = "." + "9" * (len(shown) - 1) if shown else ""
        assert (times, bad) == ([f"2020-07-01 12:00:00{shown}", f"1969-12-31 23:59:59{nines}"], [])


def test_a_year_that_nanoseconds_do_not_reach_is_bad():
    assert decoded(["1500-01-01", "2020-07-01", "2500-01-01Z"], pa.timestamp("ns", "UTC"))[1] == [0, 2]


def test_a_bad_time_within_lists_and_structs_is_named():
    kind = pa.struct([("l", pa.list_(pa.struct([("t", pa.timestamp("ms", "UTC")), ("n", pa.int8())])))])
    items = [
        '{"l":[{"t":"2020-01-01","n":1},null]}', "{}", '{"l":[]}', '{"l":[{},{"t":"2020-01-01T25:00:00"}]}', "null",
        '{"l":[{"t":"2020-01-02T00:00:00Z"}]}', None,
    ]  # fmt: skip
    column, bad = JsonFormat(kind).decode(pa.array(items))
    column.validate(full=True)
    shown = [row and (row["l"] and [each and each["t"] and each["t"].day for each in row["l"]]) for row in column.to_pylist()]
    assert (column.type, shown) == (kind, [[1, None], None, [], None, None, [2], None])
    assert bad == [(3, "does not fit the type: field 'l[].t' is a string that is not timestamp[ms, tz=UTC]")]


def test_zones_have_the_names_that_spark_has():
    names = ["UTC", "Z", "GMT", "GMT+2", "+02:00", "-7", "UTC-0330", "Europe/Berlin"]
    offsets = ["12", "12", "12", "10", "10", "19", "15", "10"]
    for name, hour in zip(names, offsets, strict=True):
        (time,), _ = decoded(["2020-07-01T12"], time_zone=name)
        assert datetime.fromisoformat(str(time)).hour == int(hour), name
    with pytest.raises(UsageError, match="time zone 'Berlin' is not known: name it as Europe/Berlin"):
        decoded(["2020-07-01T12:00:00"], time_zone="Berlin")
    assert decoded(["2020-07-01T12:00:00Z"], time_zone="Berlin") == (["2020-07-01 12:00:00"], [])


def tokyo() -> str:
    return "Asia/Tokyo"


def test_a_zone_that_is_looked_up_is_looked_up_where_values_are_decoded():
    found = pickle.loads(pickle.dumps(JsonFormat(UTC, time_zone=tokyo))).decode(pa.array(['"2020-07-01T12:00:00"'])).values
    assert found.cast(pa.string()).to_pylist() == ["2020-07-01 03:00:00.000000Z"]


def test_zones_have_seconds_as_before_they_had_whole_minutes():
    """Regression: Spark writes such times, and they were bad."""
    texts = ["0001-01-01T00:00:00-04:56:02", "1900-01-01T00:00:00.5+05:53:28", "2020-01-01T00:00:00Z"]
    shown = ["0001-01-01 04:56:02.000000Z", "1899-12-31 18:06:32.500000Z", "2020-01-01 00:00:00.000000Z"]
    found = JsonFormat(UTC).decode(pa.array([json.dumps(text) for text in texts]))
    assert found.values.cast(pa.string()).to_pylist() == shown


def test_a_time_that_its_zones_seconds_take_beyond_64_bits_is_bad():
    """Regression: it turned to the other end of time."""
    at_end, fits = "2262-04-11T23:47:16.854775807-00:00:30", "2262-04-11T23:46:16.854775807-00:00:30"
    found = JsonFormat(pa.timestamp("ns", "UTC")).decode(pa.array([json.dumps(at_end), json.dumps(fits)]))
    assert found.values.cast(pa.int64()).to_pylist() == [None, 2**63 - 1 - 30 * 10**9]
    assert [bad.row for bad in found.bad] == [0]
