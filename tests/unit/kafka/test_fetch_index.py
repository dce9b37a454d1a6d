"""Which partitions are due: the index alone, with partitions that are nothing but their place."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.connectors.kafka.client.topology import Broker
from headrace.connectors.kafka.read.fetch_index import FetchIndex, Place, Work

ONE, TWO = Broker(1, "one", 9092), Broker(2, "two", 9092)


@dataclass(eq=False)
class Item:
    """A partition."""

    order: int = 0
    place: Place = field(default_factory=Place)


def index_of(*places: tuple[Item, Place]) -> FetchIndex[Item]:
    index: FetchIndex[Item] = FetchIndex()
    for item, place in places:
        index.put(item, place)
    return index


def test_those_that_have_waited_longest_are_ready_first_at_their_broker_only():
    late, early, other = Item(7), Item(3), Item(1)
    index = index_of((late, Place(ONE, True)), (early, Place(ONE, True)), (other, Place(TWO, True)))
    assert (index.ready(ONE), index.ready(TWO)) == ([early, late], [other])
    assert index.ready(Broker(3, "three", 9092)) == []
    assert (index.changed(), index.changed()) == ({ONE, TWO}, set())


def test_what_is_asked_for_is_ready_no_more_and_still_at_home_there():
    item, beside = Item(), Item()
    index = index_of((item, Place(ONE, True)), (beside, Place(ONE, True)))
    index.changed()
    index.put(item, Place(ONE))
    assert index.ready(ONE) == [beside]
    index.put(beside, Place(ONE))
    assert index.ready(ONE) == []
    assert index.changed() == set(), "no process has got anything to do by that"
    assert index.brokers() == {ONE}
    assert index.belongs(ONE)


def test_a_broker_that_nothing_belongs_to_any_more_is_reported_and_only_then():
    item, beside = Item(), Item()
    index = index_of((item, Place(ONE)), (beside, Place(ONE)))
    assert index.changed() == set()
    index.put(item, Place(TWO))
    assert (index.changed(), index.brokers()) == (set(), {ONE, TWO})
    index.put(beside, Place())
    assert (index.changed(), index.brokers()) == ({ONE}, {TWO})
    assert not index.belongs(ONE)
    assert index.belongs(TWO)


def test_what_is_ready_without_a_broker_belongs_to_none():
    item = Item()
    index = index_of((item, Place(None, True)))
    assert (index.changed(), index.brokers()) == (set(), set())
    index.put(item, Place(ONE, True))
    assert index.ready(ONE) == [item]
    assert index.belongs(ONE)


def test_doubts_are_reported_until_they_are_over():
    item = Item()
    index = index_of((item, Place(in_dispute=True)))
    assert index.changed() == {Work.RANGES}
    assert index.unresolved() == index.unresolved() == [item]
    index.put(item, Place())
    index.put(item, Place())
    assert (index.unresolved(), index.changed()) == ([], set())


def test_look_ups_are_due_at_their_time_and_until_they_have_ended():
    first, second = Item(), Item()
    index = index_of((second, Place(lookup_at=2.0)), (first, Place(lookup_at=1.0)))
    assert (index.changed(), index.next_lookup(), index.lookups(0.9)) == ({Work.LOOKUPS}, 1.0, [])
    assert index.lookups(1.0) == index.lookups(1.9) == [first]
    assert index.lookups(2.0) == [first, second]
    index.put(first, Place(lookup_at=3.0))
    assert (index.changed(), index.next_lookup(), index.lookups(2.5)) == ({Work.LOOKUPS}, 2.0, [second])
    index.put(second, Place())
    assert (index.changed(), index.next_lookup(), index.lookups(3.0)) == (set(), 3.0, [first])
    index.put(first, Place())
    assert (index.next_lookup(), index.lookups(9.0)) == (None, [])


def test_a_look_up_at_the_same_time_is_no_news_and_is_due_once():
    item = Item()
    index = index_of((item, Place(lookup_at=0.0)))
    index.changed()
    index.put(item, Place(ONE, lookup_at=0.0))
    assert (index.changed(), index.lookups(0.0), index.next_lookup()) == (set(), [item], 0.0)


def test_two_look_ups_at_one_time_are_due_in_the_order_in_which_they_came():
    """Partitions are not compared with each other: they have no order but that of fetching."""
    items = [Item() for _ in range(3)]
    index = index_of(*((item, Place(lookup_at=1.0)) for item in items))
    assert index.lookups(1.0) == index.lookups(1.0) == items
