"""Columns that were renamed are found by their numbers."""

import pytest

from headrace.connectors.postgresql.columns import Names, NamesSum, check_names, check_sum
from headrace.errors import UsageError

KNOWN: Names = ("id", None, "a", "b")
RENAMED: list[Names] = [("id", None, "a", "c"), ("id", None, "b", "a"), ("id", None, "a", "c", "b")]


@pytest.mark.parametrize("now", RENAMED)
def test_a_column_whose_number_has_another_name_was_renamed(now: Names) -> None:
    with pytest.raises(UsageError, match=r"a column of public.t was renamed \(.*\bb is [ac] now.*take a new snapshot"):
        check_names("public.t", KNOWN, now)
    with pytest.raises(UsageError, match=r"a column of public.t was renamed since its snapshot started: .*take a new snapshot"):
        check_sum("public.t", NamesSum.of(KNOWN), now)


@pytest.mark.parametrize(
    "now",
    [KNOWN, (*KNOWN, "c"), ("id", None, None, "b"), ("id", None, "a"), ("id", None, None, "b", "a"), ("id", "other", "a", "b")],
    ids=["same", "added", "dropped", "last one dropped", "dropped and added again", "published"],
)
def test_other_changes_of_a_tables_columns_rename_none(now: Names) -> None:
    check_names("public.t", KNOWN, now)
    check_sum("public.t", NamesSum.of(KNOWN), now)


def test_where_no_names_were_kept_nothing_is_refused() -> None:
    check_names("public.t", (), KNOWN)
    check_sum("public.t", None, KNOWN)
