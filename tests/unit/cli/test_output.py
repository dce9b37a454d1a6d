"""What commands print: tables on terminals, tab-separated lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.cli.output import Listing, cell, epoch_ms, escaped, instant, plain_line, show
from headrace.enumerator.errors import UsageError

TABLE = Listing("thing", "Things", ("name", "count", "age s"), [("a[b]", 3, 1.25), (None, None, None)])


def shown(table, **settings):
    out = io.StringIO()
    show(table, Console(file=out, markup=False, highlight=False, width=80, **settings))
    return out.getvalue()


def test_scripts_get_a_line_for_each_item_and_nothing_else():
    assert shown(TABLE) == "thing\ta[b]\t3\t1.2\nthing\t-\t-\t-\n"
    assert shown(Listing("thing", "Things", ("name",))) == ""


def test_people_get_a_table():
    text = shown(TABLE, force_terminal=True)
    assert all(word in text for word in ("Things", "name", "a[b]", "1.2"))
    assert "\t" not in text
    assert shown(Listing("thing", "Things", ("name",)), force_terminal=True) == ""


def test_a_cell_cannot_break_the_line():
    assert plain_line("kind", ["a\tb\nc\rd"]) == "kind\ta\\tb\\nc\\rd"
    assert [cell(value) for value in (None, "", 0, 0.0, False)] == ["-", "-", "0", "0.0", "False"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (b"", ""),
        (b"plain", "plain"),
        ("flüge ✈".encode(), "flüge ✈"),
        (b"a\tb\nc\x00", "a\\tb\\nc\\x00"),
        (b"\\n", "\\\\n"),
        (b"\xff\xfe\x41", "\\xff\\xfeA"),
    ],
)
def test_bytes_are_shown_on_one_line(value, text):
    assert escaped(value) == text


def test_long_values_are_cut_and_say_so():
    assert escaped(b"x" * 60) == "x" * 60
    assert escaped(b"x" * 61) == "x" * 60 + "... (61 bytes)"
    assert escaped("✈".encode() * 1000, 10) == "✈" * 10 + "... (3000 bytes)"


@pytest.mark.parametrize("text", ["9" * 5000, "²", "noon", "2026-11-22T10:00:00"])
def test_what_is_no_time_is_refused(text):
    """Regression: more digits than Python reads as a number ended in a traceback."""
    with pytest.raises(UsageError, match="is not a time"):
        epoch_ms(text)


def test_instants_are_utc():
    assert instant(0) == "1970-01-01T00:00:00.000Z"
    assert instant(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert (instant(None), instant(-1)) == (None, None)
    assert instant(2**62) == f"{2**62} ms"
