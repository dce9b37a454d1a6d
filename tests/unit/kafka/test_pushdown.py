"""What predicates let a read of Kafka skip: no wanted record, and every unwanted one where it says so. An oracle looks."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.base.predicates import Operator, Predicate
from headrace.connectors.kafka.read import pushdown
from headrace.connectors.kafka.read.pushdown import KafkaPruner
from headrace.kafka import KafkaSource, KafkaSplit, Latest
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka import NewRecord

AWAY = KafkaSource("127.0.0.1:1", topics=["t"], stop=Latest(), properties={"default.api.timeout.ms": "1"})
"""No broker is there: who asks one is informed so at once."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS = ("orders", "order", "returns")
MARGIN = range(-1, 8)
"""Offsets, partitions and milliseconds that are asked for: there are records at 0 to 6, and none alongside."""


class Record(NamedTuple):
    """A record as a row has it."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime


def at(ms: float) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def wants(predicate: Predicate, record: Record) -> bool:
    """By the definition of a predicate."""
    value = getattr(record, predicate.column)
    compare = {
        Operator.EQUAL: operator.eq,
        Operator.LESS: operator.lt,
        Operator.LESS_OR_EQUAL: operator.le,
        Operator.GREATER: operator.gt,
        Operator.GREATER_OR_EQUAL: operator.ge,
        Operator.IN: lambda each, wanted: each in wanted,
        Operator.STARTS_WITH: lambda each, wanted: each.startswith(wanted),
        Operator.NOT_NULL: lambda each, _: each is not None,
    }
    return bool(compare[predicate.operator](value, predicate.value)) != predicate.negated


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from([*TOPICS, "", "order2", "zebra"]),
    "partition": st.sampled_from(MARGIN),
    "offset": st.sampled_from(MARGIN),
    "timestamp": st.sampled_from([at(ms + part) for ms in MARGIN for part in (0, 0.001, 0.5, 0.999)]),
}


@st.composite
def predicates(draw: st.DrawFn) -> Predicate:
    column = draw(st.sampled_from(sorted(VALUES)))
    kinds = [kind for kind in Operator if kind is not Operator.STARTS_WITH or column == "topic"]
    kind = draw(st.sampled_from(kinds))
    value = {
        Operator.IN: st.lists(VALUES[column], max_size=3).map(tuple),
        Operator.NOT_NULL: st.none(),
    }.get(kind, VALUES[column])
    return Predicate(column, kind, draw(value), draw(st.booleans()))


@pytest.fixture(scope="module")
def log() -> Iterator[tuple[KafkaSource, list[Record]]]:
    """Topics of two partitions; timestamps go up, down, stand still, and jump."""
    times = {0: [0, 1, 1, 2, 4, 5, 6], 1: [5, 3, 3, 0, 6, 2, 2]}
    with FakeKafka() as kafka:
        records = []
        for topic in TOPICS:
            kafka.create_topic(topic, partitions=2)
            for partition, stamps in times.items():
                for offset, ms in enumerate(stamps):
                    kafka.append(topic, NewRecord(b"x", timestamp_ms=ms), partition=partition)
                    records.append(Record(topic, partition, offset, at(ms)))
        yield KafkaSource(kafka.bootstrap, topics=list(TOPICS), stop=Latest()), records


def kept(source: KafkaSource, splits: list[KafkaSplit], wanted: list[Predicate]) -> set[tuple[str, int, int]]:
    """Where the records are that are still read. No split comes twice, and none is empty."""
    found = KafkaPruner(source).prune(splits, wanted)
    assert all(not split.exhausted for split in found)
    places = [(s.topic, s.partition, offset) for s in found for offset in range(s.next_offset, s.stop_offset or 0)]
    assert len(places) == len(set(places))
    return set(places)


def splits_of(source: KafkaSource, start: int, stop: int) -> list[KafkaSplit]:
    found = source.create_discovery().initial().added
    return [split.between(start, stop) for split in found]


def check(source: KafkaSource, records: list[Record], wanted: list[Predicate], start: int = 0, stop: int = 7) -> None:
    splits = splits_of(source, start, stop)
    read = kept(source, splits, wanted)
    there = {record for record in records if start <= record.offset < stop}
    assert read <= {record[:3] for record in there}
    lost = {record for record in there if all(wants(each, record) for each in wanted) and record[:3] not in read}
    assert not lost
    decided = [each for each in wanted if KafkaPruner(source).decides(each)]
    left = {record for record in there if record[:3] in read and not all(wants(each, record) for each in decided)}
    assert not left


@given(wanted=st.lists(predicates(), max_size=3), bounds=st.tuples(st.integers(0, 7), st.integers(0, 7)).map(sorted))
def test_no_wanted_record_is_skipped_and_what_is_decided_leaves_no_other(log, wanted, bounds):
    check(*log, wanted, *bounds)


RANGES = [kind for kind in Operator if kind not in (Operator.IN, Operator.STARTS_WITH, Operator.NOT_NULL)]


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("kind", RANGES)
def test_every_comparison_at_every_edge(log, kind, negated):
    for ms, part in itertools.product(MARGIN, (0, 0.5)):
        check(*log, [Predicate("timestamp", kind, at(ms + part), negated)])
    for number in MARGIN:
        check(*log, [Predicate("offset", kind, number, negated)])
        check(*log, [Predicate("partition", kind, number, negated)])


def test_less_is_read_where_less_is_wanted(log):
    """Or a pruner that prunes nothing would pass."""
    source, _ = log
    splits = splits_of(source, 0, 7)
    assert len(kept(source, splits, [])) == 42
    assert len(kept(source, splits, [Predicate("topic", Operator.STARTS_WITH, "order")])) == 28
    assert len(kept(source, splits, [Predicate("offset", Operator.IN, (2, 4))])) == 18
    young = kept(source, splits, [Predicate("timestamp", Operator.GREATER, at(5))])
    assert {offset for topic, partition, offset in young if partition == 0} == {6}
    assert {offset for topic, partition, offset in young if partition == 1} == {4, 5, 6}


def test_what_it_decides(log):
    pruner = KafkaPruner(log[0])

    def decided(column: str) -> set[Operator]:
        return {kind for kind in Operator if pruner.decides(Predicate(column, kind, None))}

    assert decided("topic") == decided("partition") == set(Operator)
    assert decided("offset") == {*RANGES, Operator.NOT_NULL}
    assert decided("timestamp") == {Operator.NOT_NULL}
    assert decided("value") == decided("key") == set()
    assert pruner.decides(Predicate("offset", Operator.LESS, 3, negated=True)) is False
    assert pruner.decides(Predicate("offset", Operator.NOT_NULL, None, negated=True)) is False
    assert pruner.decides(Predicate("value", Operator.EQUAL, "x")) is False


@pytest.mark.parametrize(
    ("kind", "value", "first"),
    [
        (Operator.GREATER, at(0), 1),
        (Operator.GREATER, at(4), 5),
        (Operator.GREATER, at(4.5), 5),
        (Operator.GREATER_OR_EQUAL, at(1), 1),
        (Operator.GREATER_OR_EQUAL, at(4), 4),
        (Operator.GREATER_OR_EQUAL, at(4.5), 5),
        (Operator.EQUAL, at(5), 5),
        (Operator.IN, (at(5), at(4), at(6)), 4),
        (Operator.IN, (), 0),
        (Operator.LESS, at(4), 0),
        (Operator.LESS_OR_EQUAL, at(4), 0),
        (Operator.NOT_NULL, None, 0),
    ],
)
def test_of_a_time_what_lies_before_the_first_young_record_is_skipped(log, kind, value, first):
    """Partition 0, whose record of 4 ms has offset 4, and that of 1 ms offset 1."""
    source, _ = log
    split = replace(splits_of(source, 0, 7)[0], topic="orders", partition=0)
    assert KafkaPruner(source).prune([split], [Predicate("timestamp", kind, value)]) == [split.between(first, 7)]
    assert KafkaPruner(source).prune([split], [Predicate("timestamp", kind, value, negated=True)]) == [split]


def test_where_no_record_is_young_enough_nothing_is_read(log):
    source, _ = log
    assert kept(source, splits_of(source, 0, 7), [Predicate("timestamp", Operator.GREATER, at(6))]) == set()


@pytest.mark.parametrize(
    "wanted",
    [
        [],
        [Predicate("offset", Operator.IN, ())],
        [Predicate("topic", Operator.NOT_NULL, None), Predicate("offset", Operator.NOT_NULL, None)],
        [Predicate("timestamp", Operator.GREATER, at(5), negated=True), Predicate("timestamp", Operator.LESS, at(5))],
        [Predicate("value", Operator.GREATER_OR_EQUAL, "x")],
    ],
)
def test_without_a_lower_bound_of_time_no_broker_is_asked(wanted):
    split = KafkaSplit("t", None, 0, 2, 9)
    assert KafkaPruner(AWAY).prune([split], wanted) == [split]


def test_no_broker_is_asked_about_splits_that_other_predicates_leave_out():
    split = KafkaSplit("t", None, 0, 2, 9)
    young = Predicate("timestamp", Operator.GREATER, at(5))
    assert KafkaPruner(AWAY).prune([split], [young, Predicate("partition", Operator.EQUAL, 1)]) == []
    assert KafkaPruner(AWAY).prune([split], [young, Predicate("offset", Operator.LESS, 2)]) == []


def test_a_split_is_cut_within_its_bounds_only():
    split = KafkaSplit("t", None, 0, 2, 9)
    for kind, number, bounds in [
        (Operator.GREATER, 0, (2, 9)),
        (Operator.LESS, 20, (2, 9)),
        (Operator.LESS_OR_EQUAL, 8, (2, 9)),
        (Operator.GREATER_OR_EQUAL, 8, (8, 9)),
        (Operator.EQUAL, 2, (2, 3)),
        (Operator.IN, (7, 3, 5), (3, 8)),
    ]:
        assert KafkaPruner(AWAY).prune([split], [Predicate("offset", kind, number)]) == [split.between(*bounds)]
    for kind, number in [(Operator.GREATER, 8), (Operator.GREATER, 30), (Operator.LESS, 0), (Operator.EQUAL, 9)]:
        assert KafkaPruner(AWAY).prune([split], [Predicate("offset", kind, number)]) == []


def is_right(log: tuple[KafkaSource, list[Record]], predicate: Predicate) -> bool:
    try:
        check(*log, [predicate])
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_floor_ms", lambda value: (value - EPOCH) // timedelta(milliseconds=1) + 1),
        ("_ceil_ms", lambda value: (value - EPOCH) // timedelta(milliseconds=1) + 1),
        ("_offset_range", lambda predicate: (predicate.value, predicate.value)),
    ],
    ids=["younger by a millisecond", "a whole millisecond rounded up", "the last offset left out"],
)
def test_a_injected_bug_is_seen(log, monkeypatch, name, wrong):
    monkeypatch.setattr(pushdown, name, wrong)
    young = [Predicate("timestamp", kind, at(ms)) for kind in (Operator.GREATER, Operator.GREATER_OR_EQUAL) for ms in MARGIN]
    last = [Predicate("offset", Operator.LESS_OR_EQUAL, number) for number in range(7)]
    wrongly = [predicate for predicate in (*young, *last) if not is_right(log, predicate)]
    assert wrongly


def test_never_null_is_said_of_columns_that_a_record_always_has():
    """`NOT_NULL` of these is decided: rows of tests/unit/kafka/test_decode.py have each of them."""
    assert frozenset({"topic", "partition", "offset", "timestamp", "timestampType"}) == pushdown._NEVER_NULL
