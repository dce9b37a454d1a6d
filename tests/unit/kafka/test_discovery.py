"""Discovery against a cluster that is only pretended: which splits it finds, and which looks and answers it believes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import UnknownTopicError
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.offsets import OffsetAnswer
from headrace.connectors.kafka.client.properties import ClientConfig, Isolation
from headrace.connectors.kafka.client.topology import Broker, PartitionMetadata, TopicMetadata, TopicViews
from headrace.connectors.kafka.read.discovery import KafkaDiscovery, Partitions, Pattern, PositionPlan, Topics
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import DataLossError, RetriableError, UsageError
from headrace.kafka import At, Committed, Earliest, KafkaSource, Latest, Timestamp

A, B = UUID(int=1), UUID(int=2)


@dataclass
class PretendedCluster:
    """Topic name -> (id, number of partitions). Every log has offsets 2 to 9; timestamps are 10 times the offset."""

    there: dict[str, tuple[UUID, int]]
    config: ClientConfig = field(default_factory=lambda: ClientConfig(bootstrap="nowhere:1"))
    groups: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    asked: list[tuple[object, Isolation | None]] = field(default_factory=list)
    looks: int = 0
    pauses: list[int] = field(default_factory=list)

    def topics(self, wanted):
        if hasattr(wanted, "fullmatch"):
            return {name: self._topic(name) for name in self.there if wanted.fullmatch(name)}
        unknown = frozenset(wanted) - self.there.keys()
        if unknown:
            raise UnknownTopicError(unknown)
        return {name: self._topic(name) for name in wanted}

    def find_topics(self, names):
        self.looks += 1
        return {name: self._topic(name) if name in self.there else None for name in names}

    def find_topics_everywhere(self, names):
        """As by two brokers, both of which know all there is."""
        return self.topic_views(names).complete()

    def topic_views(self, names):
        return TopicViews([(Broker(number, "b", 9092), self.find_topics(names)) for number in (1, 2)])

    def back_off(self, attempt):
        self.pauses.append(attempt)

    def retrying(self, what, operation):
        return operation()

    def list_offsets(self, positions, isolation=None):
        self.asked += [(position, isolation) for position in positions.values()]
        return {tp: OffsetAnswer(_offset(position)) for tp, position in positions.items()}

    def committed_offsets(self, group, partitions):
        found = self.groups.get(group, {})
        return {tp: CommittedOffset(found[tp]) if tp in found else None for tp in partitions}

    def _topic(self, name):
        topic_id, count = self.there[name]
        return TopicMetadata(name, topic_id, {n: PartitionMetadata(1, 0) for n in reversed(range(count))})


def _offset(position):
    match position:
        case Earliest():
            return 2
        case Latest():
            return 9
        case Timestamp(ms):
            return next((offset for offset in range(2, 9) if offset * 10 >= ms), None)


def discovery(cluster, subscription=Topics(("t",)), **plan):  # noqa: B008 - a value
    defaults = {
        "start": Earliest(), "start_of_new_partitions": Earliest(), "stop": None, "isolation": Isolation.READ_COMMITTED,
        "no_match": "latest", "fail_on_data_loss": True,
    }  # fmt: skip
    return KafkaDiscovery(cluster, subscription, PositionPlan(**(defaults | plan)))


def of(findings):
    return {(split.topic, split.partition): (split.next_offset, split.stop_offset) for split in findings.added}


def known(*splits):
    return {split.split_id: split for split in splits}


# --- initial ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("position", "offset"), [
    (Earliest(), 2), (Latest(), 9), (At(5), 5), (At(2), 2), (At(9), 9), (Timestamp(30), 3), (Timestamp(31), 4),
    (Timestamp(99), 9), (Committed("g"), 7), (Committed("none"), 2), (Committed("none", Latest()), 9),
    (Committed("none", At(4)), 4), (Committed("none", Timestamp(40)), 4),
], ids=str)  # fmt: skip
def test_every_position_becomes_a_number(position, offset):
    cluster = PretendedCluster({"t": (A, 1)}, groups={"g": {("t", 0): 7}})
    assert of(discovery(cluster, start=position).initial()) == {("t", 0): (offset, None)}


def test_a_start_is_asked_for_at_the_sources_isolation():
    cluster = PretendedCluster({"t": (A, 1)})
    discovery(cluster, start=Latest(), isolation=Isolation.READ_UNCOMMITTED).initial()
    assert cluster.asked == [(Latest(), Isolation.READ_UNCOMMITTED)]


def test_splits_carry_the_topics_id_and_come_in_order():
    found = discovery(PretendedCluster({"b": (B, 2), "a": (A, 1)}), Pattern(".*")).initial()
    assert [split.split_id for split in found.added] == [f"a-0@{A}", f"b-0@{B}", f"b-1@{B}"]
    assert (found.missing, found.complete) == (frozenset(), False)


def test_with_a_stop_discovery_is_complete():
    found = discovery(PretendedCluster({"t": (A, 2)}), stop={("t", 0): At(4), ("t", 1): Latest()}).initial()
    assert of(found) == {("t", 0): (2, 4), ("t", 1): (2, 9)}
    assert found.complete


@pytest.mark.parametrize(("start", "stop"), [(At(5), At(3)), (Latest(), Timestamp(20)), (Earliest(), At(0))], ids=str)
def test_a_stop_before_the_start_is_an_empty_split(start, stop):
    (split,) = discovery(PretendedCluster({"t": (A, 1)}), start=start, stop=stop).initial().added
    assert split.exhausted
    assert split.stop_offset == split.next_offset


@pytest.mark.parametrize("offset", [1, 10])
def test_a_start_out_of_range_is_loss_or_a_warning(offset, caplog):
    cluster = PretendedCluster({"t": (A, 1)})
    with pytest.raises(DataLossError, match=f"t-0: offset {offset} is wanted, but only 2 to 9 are there"):
        discovery(cluster, start=At(offset)).initial()
    with pytest.raises(DataLossError):
        discovery(PretendedCluster({"t": (A, 1)}, groups={"g": {("t", 0): offset}}), start=Committed("g")).initial()
    with caplog.at_level(logging.WARNING):
        lax = discovery(cluster, start=At(offset), fail_on_data_loss=False).initial()
    assert of(lax) == {("t", 0): (2 if offset < 2 else 9, None)}
    assert "continuing at" in caplog.text


def test_a_stop_beyond_the_end_is_loss():
    with pytest.raises(DataLossError, match="offset 10 is wanted"):
        discovery(PretendedCluster({"t": (A, 1)}), stop=At(10)).initial()


def test_a_stop_where_a_group_has_committed_nothing_is_the_users_mistake():
    """The name may be wrong, or the offsets expired: it read nothing, and ended well."""
    message = r"the group 'typo' has committed nothing in t-0, t-1, which gives no stop.* Committed\('typo', fallback=Latest"
    with pytest.raises(UsageError, match=message):
        discovery(PretendedCluster({"t": (A, 2)}), stop=Committed("typo")).initial()
    source = KafkaSource("nowhere:1", topics=["t"], stop=Committed("typo"))
    with pytest.raises(UsageError, match=message):
        discovery(PretendedCluster({"t": (A, 2)}), stop=source.stop).stops([KafkaSplit("t", A, 0, 4), KafkaSplit("t", A, 1, 4)])


@pytest.mark.parametrize(("fallback", "stop"), [(Latest(), 9), (At(4), 4), (At(0), 2), (Timestamp(50), 5)], ids=str)
def test_unless_it_has_a_fallback(fallback, stop):
    (split,) = discovery(PretendedCluster({"t": (A, 1)}), stop=Committed("none", fallback)).initial().added
    assert split.stop_offset == stop


def test_of_a_partition_in_which_the_group_has_read_nothing_nothing_is_read():
    cluster = PretendedCluster({"t": (A, 2)}, groups={"g": {("t", 0): 7}})
    assert of(discovery(cluster, stop=Committed("g")).initial()) == {("t", 0): (2, 7), ("t", 1): (2, 2)}


def test_a_timestamp_without_match_can_be_an_error():
    with pytest.raises(UsageError, match=r"t-0 Timestamp\(ms=99\)"):
        discovery(PretendedCluster({"t": (A, 1)}), start=Timestamp(99), no_match="error").initial()


@pytest.mark.parametrize(("subscription", "absent"), [
    (Topics(("t", "u", "v")), "u, v"), (Partitions((("t", 0), ("t", 4))), "t-4"), (Partitions((("u", 0),)), "u")
])  # fmt: skip
def test_what_is_not_there_is_the_users_mistake_at_first(subscription, absent):
    with pytest.raises(UsageError, match=f"no such topic or partition on nowhere:1: {absent}$"):
        discovery(PretendedCluster({"t": (A, 2)}), subscription).initial()


def test_a_pattern_may_match_nothing_yet():
    assert discovery(PretendedCluster({}), Pattern("x")).initial().added == []


# --- later ----------------------------------------------------------------------------------------------------------------
def test_later_only_what_is_not_known_is_found_and_positions_are_not_looked_at():
    cluster = PretendedCluster({"t": (A, 3)})
    found = discovery(cluster, start=Latest()).later(known(KafkaSplit("t", A, 0, 5), KafkaSplit("t", A, 2, 700)))
    assert of(found) == {("t", 1): (2, None)}
    assert (found.missing, found.complete) == (frozenset(), False)
    assert cluster.pauses == []


def test_new_partitions_have_their_own_position():
    found = discovery(PretendedCluster({"t": (A, 1)}), start_of_new_partitions=Latest()).later({})
    assert of(found) == {("t", 0): (9, None)}


def test_a_recreated_topic_is_new_and_the_old_one_missing():
    old = KafkaSplit("t", A, 0, 5)
    found = discovery(PretendedCluster({"t": (B, 1)})).later(known(old))
    assert [split.split_id for split in found.added] == [f"t-0@{B}"]
    assert found.missing == {old.split_id}


def test_a_deleted_topic_is_missing_and_no_error():
    old = KafkaSplit("t", A, 0, 5)
    for subscription in (Topics(("t", "u")), Pattern("t"), Partitions((("t", 0), ("u", 0)))):
        assert discovery(PretendedCluster({"u": (B, 1)}), subscription).later(known(old)).missing == {old.split_id}


@pytest.mark.parametrize(("hidden_for", "rounds"), [(1, 1), (2, 1), (3, 2), (4, 2), (6, 3)])
def test_a_partition_that_is_back_within_the_looks_is_not_missing(hidden_for, rounds):
    class Flapping(PretendedCluster):
        def find_topics(self, names):
            self.there = {"t": (A, 1 if self.looks < hidden_for else 2)}
            return super().find_topics(names)

    cluster = Flapping({})
    found = discovery(cluster).later(known(KafkaSplit("t", A, 0, 5), KafkaSplit("t", A, 1, 5)))
    assert (found.added, found.missing) == ([], frozenset())
    assert (cluster.looks, cluster.pauses) == (1 + 2 * rounds, [1, 2, 3][:rounds])


def test_what_stays_away_for_all_looks_is_missing():
    cluster, gone = PretendedCluster({"t": (A, 1)}), KafkaSplit("t", A, 1, 5)
    assert discovery(cluster).later(known(KafkaSplit("t", A, 0, 5), gone)).missing == {gone.split_id}
    assert cluster.looks == 1 + 2 * 3


def test_a_passing_error_while_looking_is_passed_on_as_such():
    class Down(PretendedCluster):
        def find_topics(self, names):
            raise RetriableError("no process is there")

    with pytest.raises(RetriableError):
        discovery(Down({})).later({})


def test_the_ids_of_what_is_selected():
    cluster = PretendedCluster({"t": (A, 2)})
    assert discovery(cluster, Topics(("t", "gone"))).topic_ids({("t", 0)}) == {("t", 0): A}
    assert discovery(cluster, Partitions((("t", 1),))).topic_ids({("t", 0), ("t", 1)}) == {("t", 1): A}
    assert cluster.pauses == []


class OneForgets(PretendedCluster):
    """The first answers of one broker are as if these were not there."""

    forgets = frozenset({"t"})
    forgetful_answers = 1

    def find_topics(self, names):
        found = super().find_topics(names)
        if self.looks <= self.forgetful_answers:
            found |= dict.fromkeys(self.forgets & found.keys())
        return found

    def topics(self, wanted):
        return {name: topic for name, topic in super().topics(wanted).items() if name not in self.forgets}


@pytest.mark.parametrize("subscription", [Topics(("t", "u")), Pattern("[tu]"), Partitions((("t", 0), ("t", 1), ("u", 0)))])
@pytest.mark.parametrize("forgetful_answers", [1, 2, 3])
def test_one_look_that_misses_what_a_checkpoint_names_is_no_proof_that_it_is_gone(subscription, forgetful_answers):
    """Regression: a checkpoint of the JVM connector was taken over, and one broker's look lacked a topic that it names."""
    cluster = OneForgets({"t": (A, 2), "u": (B, 1)})
    cluster.forgetful_answers = forgetful_answers
    found = discovery(cluster, subscription).topic_ids({("t", 0), ("t", 1), ("u", 0)})
    assert found == {("t", 0): A, ("t", 1): A, ("u", 0): B}


def test_what_no_broker_knows_for_long_is_gone_and_what_is_not_selected_is_not_asked_for():
    cluster = PretendedCluster({"t": (A, 2), "u": (B, 1)})
    assert discovery(cluster, Topics(("t",))).topic_ids({("t", 0), ("t", 7), ("u", 0)}) == {("t", 0): A}
    assert cluster.pauses == [1, 2, 3]


# --- what can never come back -------------------------------------------------------------------------------------------
def retired(cluster, *splits, subscription=Topics(("t",))):  # noqa: B008 - a value
    found = discovery(cluster, subscription).retired(splits)
    return {str(split) for split in splits if split.split_id in found}


def test_a_partition_of_a_deleted_or_recreated_topic_is_gone_for_good():
    there, recreated, deleted = KafkaSplit("t", A, 0, 1), KafkaSplit("t", B, 1, 1), KafkaSplit("u", B, 0, 1)
    assert retired(PretendedCluster({"t": (A, 2)}), there, recreated, deleted) == {"t-1", "u-0"}


def test_a_partition_that_one_broker_still_knows_is_not():
    cluster = OneForgets({"t": (A, 1)})
    assert (retired(cluster, KafkaSplit("t", A, 0, 1)), cluster.looks) == (set(), 2)


@pytest.mark.parametrize("subscription", [Topics(("u",)), Pattern("u.*"), Partitions((("t", 1),))])
def test_a_partition_that_the_subscription_leaves_out_is(subscription):
    assert retired(PretendedCluster({"t": (A, 2)}), KafkaSplit("t", A, 0, 1), subscription=subscription) == {"t-0"}


def test_a_partition_without_an_id_is_while_no_topic_bears_its_name():
    assert retired(PretendedCluster({"t": (A, 1)}), KafkaSplit("t", None, 0, 1), KafkaSplit("u", None, 0, 1)) == {"u-0"}


def test_nothing_is_while_a_broker_cannot_be_asked(monkeypatch, caplog):
    def down(self, names):
        away = RetriableError("broker 2 is away")
        return TopicViews([(Broker(1, "b", 9092), dict.fromkeys(names))], dict.fromkeys(names, away))

    monkeypatch.setattr(KafkaCluster, "topic_views", down)
    source = KafkaSource("127.0.0.1:1", topics=["t"], fail_on_data_loss=False)
    assert source.retired([KafkaSplit("t", A, 0, 1)]) == frozenset()
    assert "not known yet: broker 2 is away" in caplog.text
