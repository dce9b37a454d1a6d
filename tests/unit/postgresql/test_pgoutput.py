"""The decoder of pgoutput, compiled and uncompiled: each kind of message, streams, damage, and each other on anything."""

import io
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.postgresql.log_reader import count_of_open
from headrace.connectors.postgresql.pgoutput import Message, RelationColumn
from headrace.enumerator.errors import CorruptDataError
from tests.helpers.pgoutput import (
    LSN,
    OID,
    XID,
    YEAR_2000,
    commit,
    compiled,
    delete,
    insert,
    message,
    plain,
    relation,
    row,
    start,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    text,
    truncate,
    uncompiled,
    update,
    xlog,
)

END = LSN + 100


@pytest.fixture(params=[compiled, uncompiled], ids=["compiled", "uncompiled"])
def pgoutput(request):
    return request.param


def test_both_are_what_they_say():
    assert compiled.__file__.endswith(".so")
    assert uncompiled.__file__.endswith(".py")


def test_each_operation_has_its_rows_with_nulls_and_unchanged_values_apart(pgoutput):
    messages = [
        start(), relation(),
        insert(b"1", b"a", None, lsn=LSN + 1),
        update((b"1", b"", ...), lsn=LSN + 2),
        update((b"2", None, ...), (b"1", None, None), lsn=LSN + 3),
        delete(b"2", None, None, lsn=LSN + 4),
        truncate(OID, lsn=LSN + 5),
        commit(END),
    ]  # fmt: skip
    (decoded,) = pgoutput.Decoder().decode(messages)
    assert (decoded.position, decoded.is_whole, decoded.messages) == (END, True, ())
    (changes,) = decoded.changes
    assert (changes.relation.schema, changes.relation.name, changes.relation.identity) == ("public", "items", "default")
    assert changes.relation.columns[0] == RelationColumn("id", 23, -1, in_key=True)
    assert bytes(changes.operations.to_pylist()) == b"IUUDT"
    assert changes.lsns.to_pylist() == [LSN + number for number in range(1, 6)]
    assert changes.xids.to_pylist() == [XID] * 5
    assert plain(changes.committed_at) == [YEAR_2000 + 5] * 5
    assert changes.places.to_pylist() == [0, 1, 2, 3, 4]
    assert plain(changes.new) == ([0, 1, 2], (["1", "1", "2"], ["a", "", None], [None, None, None]), ([], [], [1, 2]))
    assert plain(changes.old) == ([2, 3], (["1", "2"], [None, None], [None, None]), ([], [], []))


def test_changes_are_ordered_by_lsn_also_of_a_transaction_that_has_written_before_the_previous_one(pgoutput):
    messages = [start(), relation(), delete(b"1", None, None, lsn=LSN + 2), commit(END)]
    messages += [start(), insert(b"1", None, None, lsn=LSN + 1), insert(b"2", None, None, lsn=END + 1), commit(END + 9)]
    (decoded,) = pgoutput.Decoder().decode(messages)
    assert decoded.changes[0].lsns.to_pylist() == [LSN + 2, END, END + 1]
    (decoded,) = pgoutput.Decoder(position=END).decode([start(), relation(), insert(b"1", None, None), commit(END + 9)])
    assert decoded.changes[0].lsns.to_pylist() == [END]


def test_changes_of_two_relations_are_apart_and_ordered_by_their_places(pgoutput):
    other = relation(oid=8, name="other")
    messages = [start(), relation(), insert(b"1", b"a", b"b"), other, insert(b"2", None, None, oid=8), insert(b"3", b"", b"")]
    (decoded,) = pgoutput.Decoder().decode([*messages, truncate(8, OID), commit()])
    assert [(part.relation.name, part.places.to_pylist()) for part in decoded.changes] == [
        ("items", [0, 2, 4]),
        ("other", [1, 3]),
    ]


def test_rows_before_and_after_a_change_of_the_table_are_apart(pgoutput):
    retyped = relation([("id", 20, True), ("name", 25, False)])
    messages = [start(), relation(), insert(b"1", b"a", b"b"), relation(), insert(b"2", b"c", b"d"), commit()]
    messages += [start(), retyped, insert(b"3", b"e"), commit()]
    (decoded,) = pgoutput.Decoder().decode(messages)
    before, after = decoded.changes
    assert (plain(before.new)[1][0], plain(after.new)[1]) == (["1", "2"], (["3"], ["e"]))
    assert [len(part.relation.columns) for part in (before, after)] == [3, 2]


BY_NAME = [("id", 23, False), ("name", 25, True), ("data", 25, False)]


def test_a_partition_with_another_identity_is_known_from_its_first_change_on_until_it_has_the_same(pgoutput):
    """The root is described ahead of it, and the change is the root's."""
    part, same = relation(BY_NAME, oid=8, name="part"), relation(oid=8, name="part")
    one = insert(b"1", b"a", b"b")
    messages = [start(), relation(), relation(oid=9, name="alike"), one, one, relation(), part, one, one, commit()]
    messages += [start(), relation(), relation(oid=10, name="alike too"), one, truncate(OID), commit()]
    messages += [start(), relation(), same, one, commit()]
    (decoded,) = pgoutput.Decoder().decode(messages)
    found = [([each.name for each in part.relation.partitions], len(part.operations)) for part in decoded.changes]
    assert found == [([], 2), (["part"], 4), ([], 1)]
    assert decoded.changes[1].relation.partitions[0].key == {"name"}


@pytest.mark.parametrize(
    "between", [[truncate(OID, 8)], [truncate(OID), insert(b"1", b"a", b"b", oid=8)], [insert(b"1", b"a", b"b", oid=8)]]
)
def test_a_table_that_is_described_behind_another_is_its_partition_by_its_change_only(pgoutput, between):
    """A truncation of several describes one behind another."""
    other, one = relation(BY_NAME, oid=8, name="other"), insert(b"1", b"a", b"b")
    (decoded,) = pgoutput.Decoder().decode([start(), relation(), other, *between, one, commit()])
    assert [part.relation.partitions for part in decoded.changes] == [()] * 2


def test_logical_messages_types_and_origins(pgoutput):
    decoder = pgoutput.Decoder()
    outside = message("heartbeat", b"\0\xff")
    inside = message("note", b"", flags=1)
    kind = xlog(b"Y" + struct.pack(">I", 99) + text("public") + text("mood"))
    origin = xlog(b"O" + struct.pack(">q", 1) + text("elsewhere"))
    (decoded,) = decoder.decode([outside, start(), origin, kind, inside, commit()])
    assert plain(decoded.messages) == (Message(LSN, None, "heartbeat", b"\0\xff"), Message(LSN, XID, "note", b""))
    assert decoder.types == {99: ("public", "mood")}


def test_a_transaction_waits_for_its_commit_and_those_before_it_do_not(pgoutput):
    decoder = pgoutput.Decoder()
    first = [start(), relation(), insert(b"1", b"a", b"b"), commit(END)]
    (decoded,) = decoder.decode([*first, start(), insert(b"2", b"a", b"b")])
    assert (decoded.position, len(decoded.changes[0].lsns)) == (END, 1)
    assert not decoder.is_between_transactions
    assert not list(decoder.decode([insert(b"3", b"a", b"b")]))
    (decoded,) = decoder.decode([commit(END + 50), start(), commit(END + 60)])
    assert (decoded.position, plain(decoded.changes[0].new)[1][0]) == (END + 60, ["2", "3"])
    (decoded,) = decoder.decode([start(), commit(END + 70)])
    assert (decoded.position, decoded.changes, decoder.is_between_transactions) == (END + 70, (), True)
    assert not list(decoder.decode([]))


def test_a_batch_ends_with_a_transaction_once_it_is_large(pgoutput):
    messages = [start(), relation(), commit()]
    for number in range(5):
        messages += [start(), insert(b"%d" % number, b"x" * 100, None), insert(b"", None, None), commit(END + number)]
    batches = list(pgoutput.Decoder(batch_bytes=200).decode(messages))
    assert [(len(batch.changes[0].lsns), batch.position) for batch in batches] == [(4, END + 1), (4, END + 3), (2, END + 4)]


def test_a_transaction_larger_than_its_bound_is_given_in_parts(pgoutput):
    decoder = pgoutput.Decoder(transaction_bytes=1000)
    messages = [start(), relation(), *(insert(b"%d" % number, b"x" * 100, None) for number in range(30))]
    parts = list(decoder.decode(messages))
    assert not any(part.is_whole or part.position for part in parts)
    assert len(parts) > 2
    assert not list(decoder.decode([insert(b"30", None, None)]))
    (last,) = decoder.decode([commit(END)])
    assert (last.is_whole, last.position) == (True, END)
    rows = [value for part in (*parts, last) for value in plain(part.changes[0].new)[1][0]]
    assert rows == [str(number) for number in range(31)]


def test_changes_of_a_transaction_that_has_ended_are_none_of_one_that_starts_with_a_large_message(pgoutput):
    """A restart skips what was read of that one."""
    decoder = pgoutput.Decoder(transaction_bytes=1000)
    before = [start(), relation(), *(insert(b"%d" % number, None, None) for number in range(3)), commit(END)]
    (part,) = decoder.decode([*before, start(XID + 1), message("outbox", b"z" * 1000)])
    assert (part.is_whole, part.position, count_of_open(part)) == (False, END, 0)
    (rest,) = decoder.decode([insert(b"4", b"x" * 1000, None)])
    assert (rest.is_whole, count_of_open(rest)) == (False, 1)


# --- streams ----------------------------------------------------------------------------------------------------------


def streamed(*parts: Sequence[bytes], xid: int = 500) -> list[bytes]:
    framed = [(stream_start(xid, int(number == 0)), *part, stream_stop()) for number, part in enumerate(parts)]
    return [each for part in framed for each in part]


def rows_of(batches: list[Any]) -> list[tuple[int, str]]:
    parts = [part for batch in batches for part in batch.changes]
    return [pair for part in parts for pair in zip(part.xids.to_pylist(), plain(part.new)[1][0], strict=True)]


def test_a_streamed_transaction_comes_with_its_commit_after_others_that_ended_before(pgoutput):
    files: list[io.BytesIO] = []

    def spool() -> io.BytesIO:
        files.append(io.BytesIO())
        return files[-1]

    decoder = pgoutput.Decoder(spool=spool)
    parts = [[relation(xid=500), insert(b"1", None, None, xid=500)], [insert(b"2", None, None, xid=501)]]
    messages = [*streamed(*parts), start(), relation(), insert(b"9", None, None), commit(END)]
    assert rows_of(list(decoder.decode(messages))) == [(XID, "9")]
    assert decoder.is_between_transactions
    (decoded,) = decoder.decode([stream_commit(500, END + 9)])
    assert (rows_of([decoded]), decoded.position, decoded.is_whole) == ([(500, "1"), (500, "2")], END + 9, True)
    assert plain(decoded.changes[0].committed_at) == [YEAR_2000 + 5] * 2
    assert [file.closed for file in files] == [True]


def test_aborted_subtransactions_and_transactions_are_never_seen(pgoutput):
    def one(number: int, xid: int) -> bytes:
        return insert(b"%d" % number, None, None, xid=xid)

    decoder = pgoutput.Decoder()
    # 501 has 502 within it and is rolled back; 503 is kept, and what the transaction does after them
    messages = streamed([relation(xid=500), one(1, 500), one(2, 501), one(3, 502)], [one(4, 501)])
    messages += [stream_abort(500, 502), stream_abort(500, 501), stream_abort(500, 999)]
    messages += [stream_start(500, 0), one(5, 503), one(6, 500), stream_stop()]
    messages += [*streamed([relation(xid=600), one(7, 600)], xid=600), stream_abort(600, 600)]
    assert rows_of(list(decoder.decode([*messages, stream_commit(500)]))) == [(500, "1"), (500, "5"), (500, "6")]


def test_a_large_streamed_transaction_is_given_in_parts(pgoutput):
    messages = [relation(xid=500), *(insert(b"%d" % number, b"x" * 100, None, xid=500) for number in range(30))]
    parts = list(pgoutput.Decoder(transaction_bytes=1000).decode([*streamed(messages), stream_commit(500)]))
    assert [part.is_whole for part in parts] == [False] * (len(parts) - 1) + [True]
    assert [value for _, value in rows_of(parts)] == [str(number) for number in range(30)]


def test_files_of_open_streams_are_closed_with_the_decoder(pgoutput):
    file = io.BytesIO()
    decoder = pgoutput.Decoder(spool=lambda: file)
    list(decoder.decode(streamed([insert(b"1", xid=500)])))
    decoder.close()
    assert file.closed


# --- damage -----------------------------------------------------------------------------------------------------------

WHOLE = [start(), relation(), insert(b"1", b"a", None), commit()]
ROW = struct.pack(">I", OID)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([b""], "byte 0 of a message of 0: it ends too early"),
        ([b"k" + bytes(17)], "it is not XLogData"),
        ([b"w" + bytes(24)], "byte 25 of a message of 25: it ends too early"),
        ([xlog(b"?")], "no message of the kind 63"),
        ([insert(b"1")], "a change is not in a transaction"),
        ([commit()], "a transaction ends that has not started"),
        ([start(), insert(b"1"), commit()], "the relation 7 has not been described"),
        ([start(), relation(), insert(b"1"), commit()], "a row has not the 3 columns of its relation"),
        ([start(), relation(), xlog(b"I" + ROW + b"K" + row([None] * 3)), commit()], "a change has no such row"),
        ([start(), relation(), xlog(b"D" + ROW + b"N" + row([None] * 3)), commit()], "a change has no such row"),
        ([start(), relation(), xlog(b"I" + ROW + b"N" + row([None] * 3) + b"?"), commit()], "bytes follow its last field"),
        ([start(), relation(), xlog(b"I" + ROW + b"N\0\3nnb"), commit()], "neither text, nor null, nor unchanged"),
        ([start(), relation(), xlog(b"I" + ROW + b"N\0\3nnt\0\0\0\5ab"), commit()], "a value is longer than the message"),
        ([start(), relation(), xlog(b"I" + ROW + b"N\0\3nnt\xff\xff\xff\xff"), commit()], "a value is longer than the message"),
        ([start(), relation(), insert(b"1", b"\xff", None), commit()], "the table public.items in the log are not UTF-8"),
        ([start(), relation(identity="x"), commit()], "no such replica identity"),
        ([start(), xlog(b"R" + ROW + b"public"), commit()], "a name has no end"),
        ([start(), xlog(b"R" + ROW + b"\xff\0"), commit()], "a name is not UTF-8"),
        ([start(), xlog(b"T" + struct.pack(">IB", 2**32 - 1, 0) + ROW), commit()], "the relation 7 has not been described"),
        ([xlog(b"M\0" + bytes(8) + b"\0\0\0\0\5ab")], "its content is longer"),
        ([xlog(b"B" + struct.pack(">qqI", 1, 2**63 - 1, 1)), commit()], "a time does not fit"),
        ([xlog(b"B" + struct.pack(">qqI", -1, 1, 1)), commit()], "a position of the log is negative"),
        ([stream_stop()], "a stream ends that has not started"),
        ([stream_start(5), stream_start(6)], "a stream has not ended"),
        ([stream_start(5, 0)], "not the next part of the transaction 5"),
        ([stream_commit(5)], "the transaction 5 is not streamed"),
        ([stream_abort(5, 5)], "the transaction 5 is not streamed"),
        ([*WHOLE[:2], start(), commit()], "a transaction starts within another one"),
    ],
)  # fmt: skip
def test_what_is_not_of_the_protocol_is_refused_with_its_place(pgoutput, messages, said):
    with pytest.raises(CorruptDataError, match=said):
        list(pgoutput.Decoder().decode(messages))


def test_the_place_is_that_of_the_log(pgoutput):
    with pytest.raises(CorruptDataError, match=r"^the log at 1/2C, byte 26 of a message of 26: there is no message"):
        list(pgoutput.Decoder().decode([xlog(b"?", LSN + 44)]))


_VALUES = st.none() | st.just(...) | st.text(max_size=5).map(str.encode) | st.binary(max_size=3)
_ROWS = st.tuples(st.integers(0, 9).map(lambda number: b"%d" % number), _VALUES, _VALUES)
_CHANGES = st.one_of(
    st.builds(lambda values: insert(*values), _ROWS),
    st.builds(lambda values: insert(*values, xid=500), _ROWS),
    st.builds(update, _ROWS, st.none() | _ROWS, st.sampled_from([b"K", b"O"])),
    st.builds(lambda values: delete(*values), _ROWS),
    st.just(truncate(OID)),
    st.sampled_from(
        [
            relation(),
            relation([("id", 23, True), ("name", 25, False), ("other", 25, False)]),
            relation(xid=500),
            relation(BY_NAME, oid=8),
        ]
    ),
    st.builds(message, st.text("ab", max_size=2), st.binary(max_size=3), st.integers(0, 1)),
)
_TRANSACTIONS = st.one_of(
    st.lists(_CHANGES, max_size=4).map(lambda changes: [start(), relation(), *changes, commit()]),
    st.lists(_CHANGES, max_size=4).map(lambda changes: streamed([relation(xid=500), *changes])),
    st.sampled_from([[stream_commit(500)], [stream_abort(500, 500)], [stream_abort(500, 501)], [start()], [commit()]]),
)


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    messages = [each for part in draw(st.lists(_TRANSACTIONS, min_size=1, max_size=5)) for each in part]
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(messages) - 1))
        damaged = bytearray(messages[at])
        for _ in range(draw(st.integers(1, 3))):
            if damaged:
                damaged[draw(st.integers(0, len(damaged) - 1))] = draw(st.integers(0, 255) | st.sampled_from(b"\0\xffNKOtnu"))
        messages[at] = bytes(damaged[: draw(st.sampled_from([len(damaged), draw(st.integers(0, len(damaged)))]))])
    return messages


def outcome(pgoutput: Any, calls: Sequence[Sequence[bytes]], **bounds: int) -> tuple[list[Any], str | None]:
    decoder = pgoutput.Decoder(**bounds)
    found: list[Any] = []
    try:
        for messages in calls:
            found += [plain(batch) for batch in decoder.decode(messages)]
    except CorruptDataError as error:
        return found, str(error)
    return found, None


@given(messages=logs(), at=st.integers(0, 20), batch_bytes=st.sampled_from([1, 60, 1 << 20]))
def test_compiled_and_uncompiled_agree_on_anything_and_refuse_damage_only_as_damage(messages, at, batch_bytes):
    bounds = {"batch_bytes": batch_bytes, "transaction_bytes": 4 * batch_bytes}
    calls = [messages[:at], messages[at:]]
    assert outcome(compiled, calls, **bounds) == outcome(uncompiled, calls, **bounds)


@given(data=st.binary(max_size=60), kind=st.sampled_from(b"BCRIUDTMYOSEcA"))
def test_bytes_of_any_kind_are_refused_or_decoded(data, kind):
    assert outcome(compiled, [[*WHOLE, start(), xlog(bytes([kind]) + data), commit()]]) == outcome(
        uncompiled, [[*WHOLE, start(), xlog(bytes([kind]) + data), commit()]]
    )
