"""Which changes of the log are in a snapshot's chunks: by what each chunk's transaction has seen."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.postgresql.added import AddedTables
from headrace.connectors.postgresql.catalog import PublicationOptions
from headrace.connectors.postgresql.columns import NamesSum
from headrace.connectors.postgresql.discovery import start_of_log
from headrace.connectors.postgresql.seam import SeamFilter
from headrace.connectors.postgresql.snapshot import Followed
from headrace.connectors.postgresql.splits import (
    ChangesSplitSerializer,
    ChunkSplit,
    Key,
    LogSplit,
    Origin,
    Seam,
    Seen,
    TableSeam,
    seam_of,
)
from headrace.connectors.postgresql.types import PgTable
from headrace.connectors.postgresql.visible import Moment, Visible, full_xid

NOW = Moment(100, Visible(10, 10, ()))
ORDERS = "public.orders"
PLACE = Origin("7", 1, 100)


def seam(*snapshots: str, until: int = 900) -> Seam:
    """Chunks of ten keys each."""
    bounds = tuple((str(10 * number),) for number in range(1, len(snapshots)))
    return Seam(((ORDERS, TableSeam(("id",), bounds, snapshots)),), until)


def asked(table: str, of: TableSeam, keys: Sequence[Key]) -> Sequence[int]:
    assert table == ORDERS
    return [sum(int(bound) <= int(key) for (bound,) in of.bounds) for (key,) in keys]


def keys(*ids: int) -> Callable[[npt.NDArray[np.int64]], Sequence[Key]]:
    return lambda numbers: [(str(ids[number]),) for number in numbers]


@pytest.mark.parametrize(
    ("snapshot", "seen", "not_seen"), [("10:10:", (1, 9), (10, 11)), ("10:14:10,12", (9, 11, 13), (10, 12, 14))]
)
def test_a_snapshot_sees_what_was_committed_before_it(snapshot: str, seen: Sequence[int], not_seen: Sequence[int]) -> None:
    visible = Visible.parsed(snapshot)
    assert all(map(visible.sees, seen))
    assert not any(map(visible.sees, not_seen))


@given(st.integers(2**31, 2**40), st.integers(-(2**31), 2**31 - 1))
def test_a_transaction_of_the_log_is_the_one_of_its_number_that_is_nearest(near: int, distance: int) -> None:
    assert full_xid((near + distance) % 2**32, near) == near + distance


def test_a_change_is_in_the_chunk_of_its_row_or_in_none() -> None:
    """The first chunk has seen transaction 11 and not 10, which ran then; the second has seen both."""
    new = SeamFilter(seam("10:12:10", "12:12:"), asked).is_new(
        ORDERS, [10, 10, 11, 11, 12, 12, 9], keys(5, 15, 5, 15, 5, 15, 5)
    )
    assert new.tolist() == [True, False, False, False, True, True, False]


def test_keys_are_asked_for_where_chunks_disagree_only() -> None:
    def none(numbers: npt.NDArray[np.int64]) -> Sequence[Key]:
        raise AssertionError(numbers)

    assert SeamFilter(seam("10:12:10", "12:12:"), asked).is_new(ORDERS, [9, 12], none).tolist() == [False, True]


def test_no_changes_are_none() -> None:
    assert SeamFilter(seam("10:12:10"), asked).is_new(ORDERS, [], keys()).tolist() == []


def test_a_table_that_has_no_chunks_has_only_new_changes() -> None:
    assert SeamFilter(seam("10:12:10"), asked).is_new("public.other", [1, 99], keys()).tolist() == [True, True]


def test_ids_that_have_wrapped_around_are_told_apart() -> None:
    turn = 2**32
    snapshot = f"{turn + 5}:{turn + 5}:"
    new = SeamFilter(seam(snapshot), asked).is_new(ORDERS, [turn - 1, 4, 5], keys(1, 1, 1))
    assert new.tolist() == [False, False, True]


def test_after_a_truncation_that_a_chunk_lacks_all_is_new() -> None:
    """The second chunk was read behind it: its rows are written again by the log, after the truncation."""
    filtered = SeamFilter(seam("10:10:", "12:12:"), asked)
    assert filtered.truncated(ORDERS, 10)
    assert filtered.is_new(ORDERS, [11], keys(15)).tolist() == [True]
    assert filtered.seam.tables == ()


def test_a_truncation_that_all_chunks_have_is_left_out() -> None:
    filtered = SeamFilter(seam("12:12:", "12:12:"), asked)
    assert not filtered.truncated(ORDERS, 10)
    assert filtered.is_new(ORDERS, [11, 12], keys(1, 1)).tolist() == [False, True]


def chunk(number: int, lower: str | None, upper: str | None, seen: Seen | None) -> ChunkSplit:
    bounds = [None if bound is None else (bound,) for bound in (lower, upper)]
    return ChunkSplit(0, ORDERS, 16385, number, ("id",), *bounds, PLACE, 90, seen, (16390,))


FIRST, SECOND = chunk(0, None, "10", Seen("10:12:10", 300)), chunk(1, "10", None, Seen("12:12:", 400))


def test_the_seam_is_made_of_chunks_that_are_read() -> None:
    assert seam_of([SECOND, FIRST]) == Seam(((ORDERS, TableSeam(("id",), (("10",),), ("10:12:10", "12:12:"))),), until=400)
    with pytest.raises(ValueError, match=r"chunk 0:public.orders:1 is not read"):
        seam_of([FIRST, chunk(1, "10", None, None)])
    with pytest.raises(ValueError, match=r"chunks of public.orders are missing"):
        seam_of([SECOND])


def test_the_log_has_the_seam_until_it_is_passed() -> None:
    split = LogSplit(1, PLACE, seam=seam_of([FIRST, SECOND]))
    assert split.at(400).seam is not None
    assert split.at(401).seam is None


NAMES = ("id", None, "value")


def test_a_chunk_that_is_read_by_other_names_has_these() -> None:
    read = replace(SECOND, columns=NamesSum.of(NAMES))
    assert read.read_by(NAMES) == read
    other = read.read_by((*NAMES, "more"))
    assert other.names == ((*NAMES, "more"),)
    assert start_of_log([replace(FIRST, names=(NAMES,)), other])["columns"] == {"16385": [list(NAMES), [*NAMES, "more"]]}


def test_chunks_that_an_older_headrace_cut_have_the_checksum_alone() -> None:
    """Regression: behind such chunks no column was known to be renamed."""
    older = [replace(each, columns=NamesSum.of(NAMES)) for each in (FIRST, SECOND)]
    assert start_of_log(older)["sums"] == {"16385": [*NamesSum.of(NAMES)]}
    assert start_of_log([replace(older[0], names=(NAMES,)), older[1]])["sums"] == {}


OPTIONS = PublicationOptions("orders", "app", ("delete", "insert"), 742, True, ("update",))
SPLITS = {
    "read": FIRST,
    "not read": chunk(3, "x", None, None),
    "with a seam": LogSplit(1, PLACE, ((ORDERS, 16385),), 3, seam_of([FIRST, SECOND]), ((16385, (16390, 16391)),)),
    "with some chunks": LogSplit(0, PLACE, (), 0, Seam(((ORDERS, TableSeam(("id",), (("10",),), ("10:12:10",))),), 300)),
    "without": LogSplit(0, PLACE),
    "not read, with columns": replace(chunk(3, "x", None, None), columns=NamesSum.of(NAMES)),
    "read by other names": replace(FIRST, columns=NamesSum.of(NAMES), names=(NAMES, (*NAMES, "more"))),
    "with columns": LogSplit(0, PLACE, columns=((16385, NAMES),)),
    "not read, with options": replace(chunk(3, "x", None, None), options=OPTIONS),
    "with options": LogSplit(0, PLACE, options=OPTIONS),
}
GOLDEN = Path(__file__).parents[1] / "golden" / "changes_splits_v1.json"


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_is_read_and_written_as_in_the_golden_file(name: str) -> None:
    """A difference here means that the format has changed, and needs a new version."""
    serializer, stored = ChangesSplitSerializer(), json.loads(GOLDEN.read_text())[name]
    assert serializer.deserialize(1, stored) == SPLITS[name]
    assert json.loads(json.dumps(serializer.serialize(SPLITS[name]))) == stored


ALL = OPTIONS._replace(operations=("delete", "insert", "update"), version=743, missing=())
NONE = ALL._replace(operations=(), version=744)


def test_operations_that_were_seen_to_be_missing_stay_so() -> None:
    assert NONE.since(ALL).missing == ALL.since(NONE.since(ALL)).missing == ("delete", "insert", "update")
    assert ALL.since(NONE).missing == ()
    assert NONE._replace(operations=("insert",)).since(OPTIONS).missing == ("delete", "update")


@pytest.mark.parametrize(
    ("known", "may_have"),
    [
        (ALL, False),
        (ALL._replace(version=9), True),
        (ALL._replace(version=9, missing=("truncate",)), True),
        (ALL._replace(version=9, via_root=False), False),
        (ALL._replace(version=9, owner="other"), False),
        (NONE, False),
    ],
)
def test_only_a_version_shows_that_a_publication_may_have_hidden_changes(known: PublicationOptions, may_have: bool) -> None:
    assert ALL.may_have_hidden(known) is may_have


@pytest.mark.parametrize(("lsn", "known", "taken_over"), [(100, ALL, NONE.since(ALL)), (101, ALL, ALL), (101, None, NONE)])
def test_a_start_notes_what_is_missing_unless_a_later_one_has_read_on(
    lsn: int, known: PublicationOptions | None, taken_over: PublicationOptions
) -> None:
    orders = PgTable(16385, "public", "orders", (), "default", ())
    followed = Followed(orders, None, is_partitioned=False, known=NOW, published_by=(9,), options=NONE)
    split = LogSplit(0, replace(PLACE, lsn=lsn), published_by=((16385, (9,)),), options=known)
    assert AddedTables("", [followed], 1).taken_over(split).options == taken_over


@pytest.mark.parametrize(("known", "now", "kept"), [
    ((7, 9), (9,), (9,)), ((9,), (7, 9), (9,)), ((7,), (9,), (7,)), ((), (9,), (9,)),
])  # fmt: skip
def test_entries_that_have_published_what_is_read_are_kept_also_of_a_table_that_is_partly_read(
    known: tuple[int, ...], now: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    """A start forgot them for a table of which some chunks were read, and whose changes were then left out."""
    orders = PgTable(16385, "public", "orders", (), "default", ())
    added = AddedTables("", [Followed(orders, None, is_partitioned=False, known=NOW, published_by=now)], 1)
    whole = LogSplit(0, PLACE, ((ORDERS, 16385),), published_by=((16385, known),))
    partly = replace(whole, tables=(), seam=Seam(((ORDERS, TableSeam(("id",), (("10",),), ("10:12:10",))),), 300))
    assert [added.taken_over(split).published_by for split in (whole, partly)] == [((16385, kept),)] * 2
    assert added.taken_over(replace(whole, tables=())).published_by == ((16385, now),)


@pytest.mark.parametrize("name", SPLITS)
def test_a_damaged_split_is_refused(name: str) -> None:
    """Each field, left out or of another type. Without columns or options it is one of an older headrace."""
    serializer, stored = ChangesSplitSerializer(), json.loads(GOLDEN.read_text())[name]
    for field in stored.keys() - {"position"}:
        left_out = {key: value for key, value in stored.items() if key != field}
        for damaged in ({**stored, field: 1.5}, *([] if field in ("columns", "options", "names") else [left_out])):
            with pytest.raises((KeyError, TypeError, ValueError)):
                serializer.deserialize(1, damaged)
