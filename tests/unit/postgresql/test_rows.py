"""Rows of decoded changes, against a plain model of what each change means."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.postgresql import rows as rows_module
from headrace.connectors.postgresql.pgoutput import Decoder, LoggedChanges
from headrace.connectors.postgresql.rows import SeveralTablesRows, TableRows
from headrace.connectors.postgresql.types import PgColumn, PgTable, PgType
from headrace.connectors.postgresql.visible import Moment, Visible
from headrace.enumerator.errors import CorruptDataError, DataLossError, UsageError
from tests.helpers.pgoutput import COLUMNS, LSN, OID, XID, commit, delete, insert, relation, start, truncate, update

IDENTITIES = {"default": "d", "full": "f", "keys of partitions": "f"}
"""The last one is that of a root whose partitions have their keys."""
SEEN = Visible(XID + 1, XID + 1, ())
BY_NOW = Moment(LSN, SEEN)
"""The transaction has ended by then."""
SYSTEM = ["_op", "_lsn", "_xid", "_committed_at", "_table", "_unchanged", "_before"]


def table(identity: str = "default", name: str = "items", oid: int = OID, key: Sequence[str] = ("id",)) -> PgTable:
    types = {23: "integer", 25: "text"}
    columns = tuple(PgColumn(name, PgType(kind, types[kind], "base"), in_key=in_key) for name, kind, in_key in COLUMNS)
    return PgTable(oid, "public", name, columns, identity, tuple(key))  # type: ignore[arg-type]  # a Literal


def decoded(*messages: bytes, identity: str = "default") -> Sequence[LoggedChanges]:
    flags = [(name, kind, in_key or identity != "default") for name, kind, in_key in COLUMNS]
    described = relation(flags, IDENTITIES[identity])
    (batch,) = Decoder().decode([start(), described, *messages, commit()])
    return batch.changes


def rows(*messages: bytes, identity: str = "default") -> list[dict[str, Any]]:
    (changes,) = decoded(*messages, identity=identity)
    is_partitioned = identity == "keys of partitions"
    batch = TableRows(replace(table("full"), is_partitioned=True) if is_partitioned else table(identity)).changes(changes)
    batch.validate(full=True)
    return batch.to_pylist()


def short(row: dict[str, Any]) -> tuple[Any, ...]:
    before = row["_before"] and tuple(row["_before"].values())
    return row["_op"], (row["id"], row["name"], row["data"]), row["_unchanged"], before


def test_the_schema_has_our_columns_first_and_then_the_tables():
    schema = TableRows(table()).schema
    assert schema.names == [*SYSTEM, "id", "name", "data"]
    assert schema.field("_before").type == pa.struct([("id", pa.int32()), ("name", pa.string()), ("data", pa.string())])


def test_a_row_says_where_and_when_it_changed():
    (row,) = rows(insert(b"1", b"a", None, lsn=LSN + 5))
    assert (row["_lsn"], row["_xid"], row["_table"], str(row["_committed_at"])) == (
        LSN + 5,
        XID,
        "public.items",
        "2000-01-01 00:00:00.000005+00:00",
    )


def test_with_a_key_as_identity_a_delete_has_the_key_and_a_changed_key_is_a_delete_and_an_insert():
    found = rows(
        insert(b"1", b"a", b"b"),
        update((b"1", b"c", ...)),
        update((b"2", b"d", ...), (b"1", None, None)),
        update((b"2", b"e", None), (b"2", None, None)),
        delete(b"2", None, None),
        truncate(OID),
    )
    assert [short(row) for row in found] == [
        ("insert", (1, "a", "b"), [], None),
        ("update", (1, "c", None), ["data"], None),
        ("delete", (1, None, None), [], None),
        ("insert", (2, "d", None), ["data"], None),
        ("update", (2, "e", None), [], None),
        ("delete", (2, None, None), [], None),
        ("truncate", (None, None, None), [], None),
    ]


def test_with_the_full_row_as_identity_values_before_are_known_and_none_is_left_out():
    old = (b"1", b"a", b"b")
    found = rows(
        insert(*old),
        update((b"1", b"c", ...), old, b"O"),
        update((b"2", None, ...), (b"1", b"c", b"b"), b"O"),
        delete(b"2", None, b"b", kind=b"O"),
        identity="full",
    )
    assert [short(row) for row in found] == [
        ("insert", (1, "a", "b"), [], None),
        ("update", (1, "c", "b"), [], (1, "a", "b")),
        ("delete", (1, "c", "b"), [], (1, "c", "b")),
        ("insert", (2, None, "b"), [], None),
        ("delete", (2, None, "b"), [], (2, None, "b")),
    ]


def test_without_a_primary_key_a_full_rows_update_stays_one():
    (changes,) = decoded(update((b"2", b"a", b"b"), (b"1", b"a", b"b"), b"O"), identity="full")
    (row,) = TableRows(table("full", key=())).changes(changes).to_pylist()
    assert short(row) == ("update", (2, "a", "b"), [], (1, "a", "b"))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([*COLUMNS, ("more", 25, False)], "columns added: more"),
        (COLUMNS[:2], "columns dropped: data"),
        ([("id", 20, True), *COLUMNS[1:]], "columns of another type: id"),
        ([COLUMNS[0], COLUMNS[1], ("renamed", 25, False)], "columns added: renamed; columns dropped: data"),
        (
            [("id", 23, False), ("name", 25, True), COLUMNS[2]],
            "another key: name, and no longer id. A copy by the old one keeps",
        ),
    ],
)
def test_changes_of_a_table_that_was_altered_are_refused(columns, said):
    (batch,) = Decoder().decode([start(), relation(columns), insert(*(b"1" for _ in columns)), commit()])
    with pytest.raises(UsageError, match=f"public.items has changed: {said}"):
        TableRows(table()).changes(batch.changes[0])


@pytest.mark.parametrize(
    ("columns", "values", "row"),
    [
        ([*COLUMNS, ("more", 25, False)], [b"1", b"a", b"b", b"c"], (1, "a", "b")),
        (COLUMNS[:2], [b"1", b"a"], (1, "a", None)),
        ([("id", 20, True), *COLUMNS[1:]], [b"1", b"a", b"b"], (1, "a", "b")),
        ([("id", 23, False), ("name", 25, True), COLUMNS[2]], [b"1", b"a", b"b"], (1, "a", "b")),
    ],
    ids=["dropped since", "added since", "of another type then", "another key then"],
)
def test_changes_of_before_a_table_was_altered_are_rows_of_it_as_it_is(columns, values, row):
    (batch,) = Decoder().decode([start(), relation(columns), insert(*values), commit()])
    (found,) = TableRows(table(), known=BY_NOW).changes(batch.changes[0]).to_pylist()
    assert short(found) == ("insert", row, [], None)


@pytest.mark.parametrize(
    "known",
    [Moment(LSN, Visible(XID, XID + 2, (XID,))), Moment(LSN, Visible(XID, XID, ())), Moment(LSN - 1, SEEN)],
    ids=["open", "later", "later, with an id that was given before"],
)
def test_changes_of_a_transaction_that_is_not_known_by_then_are_not_taken_for_older_ones(known):
    """Regression: of one that was open at the start, values in its new column were lost."""
    (batch,) = Decoder().decode([start(), relation([*COLUMNS, ("more", 25, False)]), insert(b"1", b"a", b"b", b"c"), commit()])
    with pytest.raises(UsageError, match=r"public.items has changed: columns added: more. Start again"):
        TableRows(table(), known=known).changes(batch.changes[0])


def test_changes_of_before_a_table_had_its_key_end_the_job_if_their_old_rows_lack_it():
    """The copy kept the old row of an update, silently."""
    by_name = relation([("id", 23, False), ("name", 25, True), COLUMNS[2]])
    (batch,) = Decoder().decode([start(), by_name, update((b"2", b"a", b"b")), commit()])
    with pytest.raises(UsageError, match=r"another key: name, and no longer id. A copy by the old one keeps rows"):
        TableRows(table(), known=BY_NOW).changes(batch.changes[0])
    by_both = relation([COLUMNS[0], ("name", 25, True), COLUMNS[2]])
    (batch,) = Decoder().decode([start(), by_both, update((b"2", b"a", b"b"), (b"1", b"a", None)), commit()])
    found = TableRows(table(), known=BY_NOW).changes(batch.changes[0]).to_pylist()
    assert [(row["_op"], row["id"]) for row in found] == [("delete", 1), ("insert", 2)]


def test_a_key_that_was_an_indexs_is_that_of_a_full_row_too():
    (changes,) = decoded(update((b"2", b"a", b"b"), (b"1", b"a", b"b"), b"O"), identity="full")
    found = TableRows(table("index", key=("name",))).changes(changes).to_pylist()
    assert [(row["_op"], row["id"]) for row in found] == [("delete", 1), ("insert", 2)]


@pytest.mark.parametrize(
    ("columns", "known"),
    [
        ([COLUMNS[0], COLUMNS[1], ("renamed", 25, False)], BY_NOW),
        ([COLUMNS[0], COLUMNS[2], COLUMNS[1]], BY_NOW),
        ([COLUMNS[0], COLUMNS[2], COLUMNS[1]], None),
        ([COLUMNS[0], COLUMNS[2], COLUMNS[1], ("more", 25, False)], BY_NOW),
    ],
    ids=["another name", "names that were swapped", "swapped while it is read", "a column that was dropped and added again"],
)
def test_a_column_that_may_have_been_renamed_is_refused(columns, known):
    (batch,) = Decoder().decode([start(), relation(columns), insert(*[b"1", b"a", b"b", b"c"][: len(columns)]), commit()])
    with pytest.raises(UsageError, match=r"One that was renamed cannot be found: take a new snapshot"):
        TableRows(table(), known=known).changes(batch.changes[0])


def test_values_of_before_that_are_none_of_a_columns_type_now_end_the_job():
    """They will never be others: it would be started again for ever."""
    described = relation([("id", 25, True), *COLUMNS[1:]])
    (batch,) = Decoder().decode([start(), described, insert(b"one", b"a", b"b"), commit()])
    with pytest.raises(UsageError, match=r"before it was altered \(columns of another type: id\): .* So take a new snapshot"):
        TableRows(table(), known=BY_NOW).changes(batch.changes[0])
    (batch,) = Decoder().decode([start(), relation(), insert(b"one", b"a", b"b"), commit()])
    with pytest.raises(CorruptDataError, match="'one'"):
        TableRows(table(), known=BY_NOW).changes(batch.changes[0])


def test_an_update_that_changes_a_deferrable_key_is_refused():
    """Of keys 1 and 2 that become 2 and 3, the second update would delete what the first has made."""
    moved, kept = (
        (update((b"%d" % (n + 1), b"a", None), (b"%d" % n, b"a", None), b"O") for n in (1, 2)),
        insert(b"9", b"a", None),
    )
    (changes,) = decoded(*moved, identity="full")
    with pytest.raises(UsageError, match=r"an update of public.items changes its key, which is deferrable: .* lose some"):
        TableRows(replace(table("full"), is_deferrable=True)).changes(changes)
    (changes,) = decoded(kept, update((b"9", b"b", None), (b"9", b"a", None), b"O"), identity="full")
    assert TableRows(replace(table("full"), is_deferrable=True)).changes(changes).num_rows == 2


IN_KEY = {"id": ("id",), "name": ("name",), "both": ("id", "name"), "none": (), "listed": ("data",)}
OF_A_PARTITION = {
    "insert": insert(b"1", b"a", b"b"),
    "update": update((b"1", b"a", b"b")),
    "moved": update((b"2", b"a", b"b"), (b"1", None, None)),
    "delete": delete(b"1", None, None),
    "moved by name": update((b"1", b"a", b"b"), (None, b"c", None)),
    "delete by name": delete(None, b"a", None),
}


@pytest.mark.parametrize(("partition", "identity", "change", "is_lost"), [
    ("name", "d", "insert", False), ("name", "d", "update", True), ("name", "d", "moved", False),
    ("name", "d", "delete", False), ("name", "d", "moved by name", True),
    ("name", "d", "delete by name", True), ("id", "d", "update", False),
    ("both", "d", "update", False), ("none", "d", "update", False), ("listed", "d", "update", False),
    ("listed", "d", "moved by name", True), ("name", "f", "update", True), ("name", "f", "delete by name", True),
    ("id", "f", "update", False),
])  # fmt: skip
def test_changes_of_a_partition_whose_old_rows_lack_the_key_are_data_loss(
    partition: str, identity: str, change: str, is_lost: bool
) -> None:
    """They were updates without a key, and the copy kept the old row. `listed`: a list of columns hides its key."""
    flags = [(name, kind, in_key or identity == "f") for name, kind, in_key in COLUMNS]
    of_partition = [
        (name, kind, name in IN_KEY[partition]) for name, kind, _ in COLUMNS if (name, partition) != ("id", "listed")
    ]
    described = [relation(flags, identity), relation(of_partition, oid=OID + 1, name="part")]
    (batch,) = Decoder().decode([start(), *described, OF_A_PARTITION[change], commit()])
    root = replace(table("full" if identity == "f" else "default"), is_partitioned=True)
    said = r"public.items that lack id of the old row, .* had another REPLICA IDENTITY"
    with pytest.raises(DataLossError, match=said) if is_lost else nullcontext():
        assert TableRows(root).changes(batch.changes[0]).num_rows


def test_two_tables_whose_names_with_dots_are_the_same_are_refused():
    tables = [replace(table(oid=1), schema="a.b", name="c"), replace(table(oid=2), schema="a", name="b.c")]
    with pytest.raises(UsageError, match=r"two tables have one name, as theirs or their schemas' have dots: a\.b\.c, a\.b\.c"):
        SeveralTablesRows(list(map(TableRows, tables)))


def test_a_column_named_as_ours_is_refused():
    taken = PgTable(1, "public", "t", (PgColumn("_before", PgType(25, "text", "base")),), "default", ())
    with pytest.raises(UsageError, match=r"public\.t has a column '_before'"):
        TableRows(taken)


def test_a_table_without_columns_is_refused():
    with pytest.raises(UsageError, match=r"public.items has no columns"):
        TableRows(replace(table(), columns=()))


def test_a_chunk_whose_values_no_column_holds_says_what_to_set(monkeypatch):
    """Of 2 GiB; here of what Arrow refuses for another reason."""
    monkeypatch.setattr(rows_module, "_MOST_BYTES", 5)
    texts = [pa.array(["one"], pa.large_string()), *[pa.array(["a"], pa.large_string())] * 2]
    with pytest.raises(CorruptDataError, match="'one'"):
        TableRows(table()).snapshot(texts, 0)
    texts[0] = pa.array(["thousand"], pa.large_string())
    with pytest.raises(UsageError, match=r"'id' of 1 rows of public.items has 8 bytes, .*Set chunk_rows lower, and take a new"):
        TableRows(table()).snapshot(texts, 0)


def test_a_snapshot_has_the_same_schema():
    source = TableRows(table())
    texts = [pa.array(column, pa.large_string()) for column in (["1", "2"], ["a", None], [None, ""])]
    batch = source.snapshot(texts, LSN)
    batch.validate(full=True)
    assert batch.schema == source.schema
    assert [(short(row), row["_lsn"], row["_xid"]) for row in batch.to_pylist()] == [
        (("snapshot", (1, "a", None), [], None), LSN, None),
        (("snapshot", (2, None, ""), [], None), LSN, None),
    ]


def test_rows_of_several_tables_are_in_the_logs_order_each_in_its_tables_column():
    source = SeveralTablesRows([TableRows(table("full")), TableRows(table(name="other", oid=8))])
    full = [(name, kind, True) for name, kind, _ in COLUMNS]
    (batch,) = Decoder().decode([
        start(), relation(full, "f"), relation(oid=8, name="other"), relation(oid=9, name="not ours"),
        insert(b"1", b"a", b"b"), insert(b"2", b"c", b"d", oid=8), insert(b"0", None, None, oid=9),
        update((b"3", b"a", b"b"), (b"1", b"a", b"b"), b"O"), delete(b"2", None, None, oid=8),
        update((b"3", b"x", b"b"), (b"3", b"a", b"b"), b"O"), truncate(8, OID), commit(),
    ])  # fmt: skip
    ours = [part for part in batch.changes if part.relation.oid in source.tables]
    found = source.merged([(part.relation.oid, *source.tables[part.relation.oid].placed(part)) for part in ours])
    found.validate(full=True)
    assert found.schema == source.schema
    names = ["public.items", "public.other"]
    assert found.schema.names == [*SYSTEM, *names]
    rows = found.to_pylist()
    ids = [(row["_table"][7:], row["_op"], *(row[name] and row[name]["id"] for name in names)) for row in rows]
    assert ids == [
        ("items", "insert", 1, None), ("other", "insert", None, 2), ("items", "delete", 1, None), ("items", "insert", 3, None),
        ("other", "delete", None, 2), ("items", "update", 3, None), ("other", "truncate", None, None),
        ("items", "truncate", None, None),
    ]  # fmt: skip
    assert [row["_before"] and row["_before"]["public.items"]["name"] for row in rows] == [
        None, None, "a", None, None, "a", None, None
    ]  # fmt: skip
    snapshot = source.snapshot(8, [pa.array(["1"]), pa.array(["a"]), pa.array(["b"])], 5)
    assert (snapshot.schema, snapshot.to_pylist()[0]["public.other"]["id"]) == (source.schema, 1)
    assert source.merged([]).num_rows == 0


_TEXTS = st.none() | st.sampled_from(["", "a", "b"])
_KEYS = st.integers(1, 3)
_STEPS = st.lists(st.tuples(st.sampled_from(["insert", "update", "delete", "truncate"]), _KEYS, _KEYS, _TEXTS, st.booleans()))


@given(steps=_STEPS, identity=st.sampled_from(sorted(IDENTITIES)))
def test_rows_are_those_of_a_plain_model(steps, identity):
    """A table of one row each time: what a server would log of it, and what a reader should see."""
    messages, expected = [], []
    for operation, key, other, text, is_unchanged in steps:
        old = (key, "n", "old")
        before = old if identity == "full" else None
        sent_old = [b"%d" % key, b"n", b"old"] if identity == "full" else [b"%d" % key, None, None]
        kind = b"K" if identity == "default" else b"O"
        name = None if text is None else text.encode()
        if operation == "insert":
            messages.append(insert(b"%d" % key, name, name))
            expected.append(("insert", (key, text, text), [], None))
        elif operation == "delete":
            messages.append(delete(*sent_old, kind=kind))
            expected.append(("delete", old if before else (key, None, None), [], before))
        elif operation == "truncate":
            messages.append(truncate(OID))
            expected.append(("truncate", (None, None, None), [], None))
        else:
            sends_old = before is not None or key != other
            messages.append(update((b"%d" % other, name, ... if is_unchanged else name), sent_old if sends_old else None, kind))
            data, left_out = (("old", []) if before else (None, ["data"])) if is_unchanged else (text, [])
            if key != other:
                expected.append(("delete", old if before else (key, None, None), [], before))
            expected.append(
                ("insert" if key != other else "update", (other, text, data), left_out, before if key == other else None)
            )
    if messages:
        assert [short(row) for row in rows(*messages, identity=identity)] == expected
