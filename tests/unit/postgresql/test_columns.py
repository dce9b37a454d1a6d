"""Columns that were renamed or created again are found by their numbers."""

import pytest

from headrace.connectors.postgresql.columns import Names, NamesSum, check_all, check_names, check_read, check_sum, with_dropped
from headrace.errors import UsageError

KNOWN: Names = ("id", None, "a", "b")
RENAMED: list[Names] = [("id", None, "a", "c"), ("id", None, "b", "a"), ("id", None, "a", "c", "b")]


@pytest.mark.parametrize("now", RENAMED)
def test_a_column_whose_number_has_another_name_was_renamed(now: Names) -> None:
    with pytest.raises(UsageError, match=r"a column of public.t was renamed \(.*\bb is [ac] now.*take a new snapshot"):
        check_names("public.t", KNOWN, now)
    with pytest.raises(
        UsageError, match=r"a column of public.t was renamed, or .* since its snapshot started: .*take a new snapshot"
    ):
        check_sum("public.t", NamesSum.of(KNOWN), now)


@pytest.mark.parametrize(
    "now",
    [KNOWN, (*KNOWN, "c"), ("id", None, None, "b"), ("id", None, "a"), ("id", None, None, "b", "c")],
    ids=["same", "added", "dropped", "last one dropped", "one dropped and one added"],
)
def test_other_changes_of_a_tables_columns_rename_none(now: Names) -> None:
    check_names("public.t", KNOWN, now)
    check_read("public.t", KNOWN, now)
    check_sum("public.t", NamesSum.of(KNOWN), now)


def test_a_column_that_was_there_and_is_read_only_now_is_refused() -> None:
    """Regression: one that was generated, and is plain, was null in all rows that were read before."""
    now = ("id", "other", "a", "b")
    check_names("public.t", KNOWN, now)  # all that there are are compared so, too
    with pytest.raises(UsageError, match=r"has other of public.t now, and had not before, .*take a new snapshot"):
        check_read("public.t", KNOWN, now)
    with pytest.raises(UsageError, match=r"has a column of public.t now, and had not before"):
        check_sum("public.t", NamesSum.of(KNOWN), now)
    check_sum("public.t", NamesSum.of(("id", None, "a", None)), ("id", None, "a"))  # the last one, which was not read, is gone


@pytest.mark.parametrize("now", [("id", None, None, "b", "a"), ("id", None, "a", None, "c", "b")], ids=["in between", "last"])
def test_a_column_that_was_dropped_and_created_again_is_refused(now: Names) -> None:
    """It is null in older rows, and the log has no changes of them."""
    with pytest.raises(UsageError, match=r"column of public.t was dropped and created again \([ab]\).*take a new snapshot"):
        check_names("public.t", KNOWN, now)
    with pytest.raises(UsageError, match=r"created again \([ab]\)"):
        check_all("public.t", [KNOWN], now)
    with pytest.raises(UsageError, match=r"renamed, or dropped and .* created again, since .*take a new snapshot"):
        check_sum("public.t", NamesSum.of(KNOWN), now)


def test_of_several_that_were_dropped_in_a_snapshot_one_that_was_added_may_be_one() -> None:
    check_sum("public.t", NamesSum.of(KNOWN), ("id", None, None, None))
    with pytest.raises(UsageError, match="created again"):
        check_sum("public.t", NamesSum.of(KNOWN), ("id", None, None, None, "a"))


def test_a_drop_hides_a_renaming_from_the_checksum_only() -> None:
    """Regression: of chunks there was no more, and values were in the copy under the old name."""
    now = ("id", None, None, "c")
    check_sum("public.t", NamesSum.of(KNOWN), now)
    with pytest.raises(UsageError, match="b is c now"):
        check_all("public.t", [KNOWN], now)


def test_chunks_may_have_been_read_by_several_names() -> None:
    """Regression: a column that came and went within the snapshot was not known to the log that came after it."""
    between = (*KNOWN, "c")
    kept = check_all("public.t", [KNOWN, between], (*KNOWN, None))
    assert kept == between
    for now in ((*KNOWN, None, "c"), (*KNOWN, "d")):
        with pytest.raises(UsageError, match=r"created again \(c\)|c is d now"):
            check_all("public.t", [KNOWN, between], now)


def test_the_name_of_a_dropped_column_is_kept() -> None:
    kept = with_dropped(KNOWN, ("id", None, None, "b", "c"))
    assert kept == ("id", None, "a", "b", "c")
    with pytest.raises(UsageError, match=r"created again \(a\)"):
        check_names("public.t", kept, ("id", None, None, "b", "c", "a"))


def test_where_no_names_were_kept_nothing_is_refused() -> None:
    check_names("public.t", (), KNOWN)
    check_sum("public.t", None, KNOWN)
