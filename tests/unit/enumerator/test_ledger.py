from __future__ import annotations

import pytest

from headrace.enumerator import Ledger, SplitState
from headrace.enumerator.errors import ProtocolViolationError
from headrace.enumerator.ledger import FINISHED, UNASSIGNED, Assigned, FinishedBy
from headrace.testing.memory import MemorySplit
from tests.helpers.driving import finished, reading, split


def ledger_of(*splits: MemorySplit, **readers: int) -> Ledger[MemorySplit]:
    """The splits, and which of them a reader holds."""
    ledger: Ledger[MemorySplit] = Ledger()
    ledger.add(splits)
    for split_id, reader in readers.items():
        ledger.assign(split_id, reader)
    return ledger


def test_an_empty_ledger_has_finished_everything():
    assert Ledger().all_finished


def test_a_discovered_split_is_unassigned_in_order_of_discovery():
    ledger = ledger_of(split("b"), split("a"))
    assert list(ledger.unassigned) == ["b", "a"]
    assert not ledger.all_finished


def test_adding_a_known_split_changes_nothing():
    ledger = ledger_of(split("a", 5), a=0)
    assert ledger.add([split("a", 0), split("b")]) == ["b"]
    assert (ledger["a"].durable, ledger["a"].place) == (split("a", 5), Assigned(0))


def test_an_assigned_split_waits_no_longer():
    ledger = ledger_of(split("a", 3))
    assert ledger.assign("a", 1) == split("a", 3)
    assert (list(ledger.unassigned), ledger.held_by(1), ledger.load(1)) == ([], ["a"], 1)


def test_a_split_is_assigned_to_one_reader_only():
    with pytest.raises(ProtocolViolationError, match="should be Unassigned"):
        ledger_of(split("a"), a=0).assign("a", 1)


def test_an_unknown_split_is_refused():
    with pytest.raises(ProtocolViolationError, match="not in the ledger"):
        ledger_of().assign("a", 0)


def test_only_its_reader_finishes_a_split():
    ledger = ledger_of(split("a"), a=0)
    with pytest.raises(ProtocolViolationError, match="reader 1 finished split a"):
        ledger.finish("a", 1)
    ledger.finish("a", 0)
    assert (ledger["a"].place, ledger.all_finished) == (FinishedBy(0), True)


def test_a_split_finishes_once():
    ledger = ledger_of(split("a"), a=0)
    ledger.finish("a", 0)
    with pytest.raises(ProtocolViolationError, match="should be Assigned"):
        ledger.finish("a", 0)


def test_what_a_lost_reader_held_waits_at_its_durable_position():
    ledger = ledger_of(split("a", 2), split("b"), split("c"), a=0, b=0, c=1)
    ledger.finish("b", 0)
    assert (ledger.release(0), list(ledger.unassigned), ledger.all_finished) == (["a", "b"], ["a", "b"], False)
    assert ledger.assign("a", 1) == split("a", 2)


def test_a_reader_that_holds_nothing_is_lost_without_effect():
    assert ledger_of(split("a")).release(4) == []


def test_a_snapshot_has_every_split_once():
    ledger = ledger_of(split("a"), split("b"), split("c", 0, 4), split("d", 0, 4), a=0, c=0, d=1)
    ledger.finish("c", 0)
    ledger.make_durable({"c": finished("c", 4)})
    assert ledger.snapshot({"a": reading("a", 9)}) == [reading("a", 9), reading("b", 0), finished("c", 4), reading("d", 0, 4)]


def test_a_reported_position_is_durable_only_once_it_is_said_to_be():
    ledger = ledger_of(split("a"), a=0)
    ledger.snapshot({"a": reading("a", 9)})
    assert ledger["a"].durable == split("a", 0)
    ledger.make_durable({"a": reading("a", 9)})
    assert (ledger["a"].durable, ledger["a"].place) == (split("a", 9), Assigned(0))


def test_a_split_that_finished_durably_is_not_lost_with_its_reader():
    ledger = ledger_of(split("a", 0, 4), a=0)
    ledger.finish("a", 0)
    ledger.make_durable({"a": finished("a", 4)})
    assert (ledger["a"].place, ledger.held_by(0), ledger.release(0)) == (FINISHED, [], [])
    assert ledger.all_finished


def test_a_split_finished_in_a_checkpoint_stays_so_when_its_reader_was_lost_meanwhile():
    ledger = ledger_of(split("a", 0, 4), a=0)
    ledger.finish("a", 0)
    ledger.release(0)
    ledger.make_durable({"a": finished("a", 4)})
    assert (ledger["a"].place, list(ledger.unassigned), ledger.all_finished) == (FINISHED, [], True)


def test_a_finish_reported_twice_is_harmless():
    ledger = Ledger([finished("a", 4)])
    ledger.make_durable({"a": finished("a", 4)})
    assert ledger.all_finished


def test_a_split_that_is_being_read_cannot_be_finished_durably():
    with pytest.raises(ProtocolViolationError, match="finished in a completed checkpoint"):
        ledger_of(split("a", 0, 4), a=0).make_durable({"a": finished("a", 4)})


def test_a_restored_ledger_has_unfinished_splits_waiting():
    ledger = Ledger([finished("a", 4), reading("b", 2), SplitState(split("c"), finished=False)])
    assert list(ledger.unassigned) == ["b", "c"]
    assert not ledger.all_finished
    assert (ledger.known(), len(ledger)) == ({"a": split("a", 4, 4), "b": split("b", 2), "c": split("c")}, 3)
    assert "a" in ledger


def test_a_split_twice_in_a_restored_ledger_is_refused():
    with pytest.raises(ProtocolViolationError, match="twice"):
        Ledger([reading("a", 1), reading("a", 2)])


def test_a_split_is_reported_missing_once_until_it_has_been_seen_again():
    ledger = ledger_of(split("a"), split("b"))
    assert (ledger.mark_missing({"a", "unknown"}), ledger.mark_missing({"a"})) == ([split("a")], [])
    assert (ledger.mark_missing(()), ledger.mark_missing({"a"})) == ([], [split("a")])


def test_a_missing_split_keeps_its_place_and_position():
    ledger = ledger_of(split("a", 3), a=0)
    ledger.mark_missing({"a"})
    assert (ledger["a"].missing, ledger["a"].place) == (True, Assigned(0))
    ledger.mark_missing(())
    assert (ledger.add([split("a", 0)]), ledger["a"].durable) == ([], split("a", 3))
    assert UNASSIGNED not in [entry.place for entry in ledger]


def test_each_unfinished_split_counts_until_the_last_is_finished():
    ledger = ledger_of(split("a", 0, 4), split("b", 0, 4), split("c", 0, 4), a=0, b=0, c=0)
    ended = []
    for split_id in "abc":
        ledger.finish(split_id, 0)
        ended.append(ledger.all_finished)
    assert ended == [False, False, True]
    ledger.release(0)
    for split_id in "abc":
        ledger.assign(split_id, 1)
        assert not ledger.all_finished
        ledger.finish(split_id, 1)
    assert ledger.all_finished


def test_of_two_splits_whose_reader_was_lost_the_one_that_is_not_in_the_checkpoint_is_still_to_be_read():
    ledger = ledger_of(split("a", 0, 4), split("b", 0, 4), a=0, b=0)
    for split_id in "ab":
        ledger.finish(split_id, 0)
    ledger.release(0)
    ledger.make_durable({"a": finished("a", 4), "b": reading("b", 2, 4)})
    assert (list(ledger.unassigned), ledger.all_finished) == (["b"], False)
    ledger.assign("b", 0)
    ledger.finish("b", 0)
    assert ledger.all_finished


def test_what_is_wrong_is_said_with_the_split_and_its_place():
    ledger = ledger_of(split("a"), split("b"), a=0)
    for wrong, said in [
        (lambda: ledger.assign("a", 1), r"^split a should be Unassigned but is Assigned\(reader=0\)$"),
        (lambda: ledger.finish("b", 1), r"^split b should be Assigned but is Unassigned\(\)$"),
        (lambda: ledger.finish("a", 1), r"^reader 1 finished split a, which is Assigned\(reader=0\)$"),
        (lambda: ledger.assign("c", 1), r"^split c is not in the ledger$"),
        (lambda: Ledger([reading("a", 1), reading("a", 2)]), r"^split a is in the ledger twice$"),
        (
            lambda: ledger.make_durable({"a": finished("a", 4)}),
            r"^split a is finished in a completed checkpoint but is Assigned\(reader=0\)$",
        ),
    ]:
        with pytest.raises(ProtocolViolationError, match=said):
            wrong()


def test_a_split_that_is_gone_is_known_and_stored_no_more_and_no_longer_missing():
    ledger = ledger_of(split("a", 3), split("b"))
    ledger.mark_missing({"a", "b"})
    assert ledger.missing() == [split("a", 3), split("b")]
    ledger.mark_gone(["a"])
    assert (ledger.missing(), ledger.known()) == ([split("b")], {"b": split("b")})
    assert ledger.snapshot({}) == [reading("b", 0)]
    assert (ledger["a"].missing, ledger["a"].gone, ledger["b"].gone) == (True, True, False)
    assert ledger.mark_missing(()) == []
    assert ledger.mark_missing({"a"}) == [], "it is not reported again"
    assert "a" in ledger


def test_a_gone_split_that_is_found_again_continues_where_it_was_with_its_reader():
    ledger = ledger_of(split("a", 3), a=0)
    ledger.mark_gone(["a"])
    assert ledger.add([split("a", 0)]) == []
    assert (ledger["a"].durable, ledger["a"].place) == (split("a", 3), Assigned(0))
    assert (ledger["a"].missing, ledger["a"].gone) == (False, False)


def test_what_is_missing_or_gone_stays_so_when_it_is_assigned():
    ledger = ledger_of(split("a"), split("b"))
    ledger.mark_missing({"a"})
    ledger.mark_gone(["b"])
    for split_id in "ab":
        ledger.assign(split_id, 0)
    assert [(entry.missing, entry.gone) for entry in ledger] == [(True, False), (True, True)]


def test_a_reader_that_never_had_a_split_holds_none():
    ledger = ledger_of(split("a"))
    assert (ledger.load(3), ledger.held_by(3)) == (0, [])
