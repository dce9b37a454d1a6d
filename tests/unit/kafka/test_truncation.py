"""A log that was truncated between two looks at its end: noticed by the leader epochs, never by the numbers alone (KIP-320)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import LogTruncatedError
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.offsets import OffsetAnswer
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.client.topology import Broker, PartitionMetadata, TopicMetadata, TopicViews
from headrace.connectors.kafka.read import reader
from headrace.connectors.kafka.read import source as source_module
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import DataLossError
from headrace.kafka import At, Committed, Earliest, KafkaSource, Latest
from headrace.runners.spark.log_read import LogRead
from headrace.runners.spark.stream import StreamPlanner
from headrace.spark.kafka_offsets import KafkaOffsets
from headrace.testing.fake_kafka import FakeKafka, Rewrite
from tests.helpers.kafka_rig import flip_a_bit

ID = UUID(int=1)


@dataclass
class PretendedCluster:
    """The leader of t-0, by its log: the leader epoch of each record. It leads in the last of `epochs`.

    `stable`: where a transaction is open, at which the log ends for a reader of what is committed.
    """

    log: list[int]
    leads: int
    stable: int | None = None
    asked: list[int] = field(default_factory=list)
    committed: dict = field(default_factory=dict)

    def list_offsets(self, positions, isolation=None):
        seen = len(self.log) if self.stable is None or isolation is Isolation.READ_UNCOMMITTED else self.stable
        ends = {tp: 0 if position == Earliest() else seen for tp, position in positions.items()}
        return {tp: OffsetAnswer(end, None, self.leads) for tp, end in ends.items()}

    def epoch_ends(self, epochs):
        """As a leader answers: where the records of this epoch and of the previous ones end."""
        self.asked += epochs.values()
        return {tp: sum(1 for record in self.log if record <= epoch) for tp, epoch in epochs.items()}

    def find_topics(self, names):
        return {name: TopicMetadata(name, ID, {0: PartitionMetadata(1, self.leads)}) for name in names}

    topics = find_topics

    def find_topics_everywhere(self, names):
        return self.topic_views(names).complete()

    def topic_views(self, names):
        return TopicViews([(Broker(1, "b", 9092), self.find_topics(names))] * 3)

    def retrying(self, what, operation):
        return operation()

    def commit_offsets_by_id(self, group, offsets):
        self.committed |= offsets


@pytest.fixture
def lead(monkeypatch):
    """Have a leader of this log."""

    def become(log, leads):
        cluster = PretendedCluster(log, leads)
        monkeypatch.setattr(source_module, "shared_cluster", lambda _: cluster)
        return cluster

    return become


@pytest.fixture
def source():
    return KafkaSource("nowhere:1", topics=["t"])


def look(source, split):
    return source.at_end([split])[split.split_id]


def named(name, numbers):
    return [f"{name}-{number}".encode() for number in numbers]


READ_TO_10 = KafkaSplit("t", ID, 0, 10, last_epoch=3)


def test_the_end_carries_the_epoch_of_the_leader_that_reported_it(source, lead):
    lead([1] * 4 + [3] * 6, leads=3)
    end = look(source, KafkaSplit("t", ID, 0, 0))
    assert end == KafkaSplit("t", ID, 0, 10, last_epoch=3)
    assert source.moved(end, 6) == KafkaSplit("t", ID, 0, 6, last_epoch=3)


def test_no_process_is_asked_while_the_leader_is_the_same(source, lead):
    cluster = lead([3] * 12, leads=3)
    assert (look(source, READ_TO_10).next_offset, cluster.asked) == (12, [])


def test_a_leader_that_has_all_that_was_read_is_believed(source, lead):
    cluster = lead([3] * 11 + [5], leads=5)
    assert (look(source, READ_TO_10), cluster.asked) == (replace(READ_TO_10, next_offset=12, last_epoch=5), [3])


def test_a_leader_whose_epoch_wrote_nothing_yet_is_believed(source, lead):
    lead([1] * 10, leads=4)
    assert look(source, replace(READ_TO_10, last_epoch=3)).next_offset == 10, "read under epoch 3, which wrote nothing"


@pytest.mark.parametrize("log", [[3] * 7 + [5] * 3, [3] * 7 + [5] * 9], ids=["to the same end", "beyond it"])
def test_a_log_that_was_truncated_and_grew_again_between_two_batches_is_data_loss(source, lead, log):
    """Regression: the offsets alone say that nothing happened, and 7 to 9 of the new leader were never read."""
    lead(log, leads=5)
    with pytest.raises(LogTruncatedError, match=r"t-0: the log was truncated; offsets 7 to 9 were read already") as raised:
        look(source, READ_TO_10)
    assert "failOnDataLoss" in "".join(raised.value.__notes__)


def test_or_a_warning_once_and_the_query_continues_where_the_logs_part(lead, caplog):
    lead([3] * 7 + [5] * 9, leads=5)
    lax = KafkaSource("nowhere:1", topics=["t"], fail_on_data_loss=False)
    end = look(lax, READ_TO_10)
    assert end == replace(READ_TO_10, next_offset=7, last_epoch=5), "where the new leader's own records start"
    assert (look(lax, end).next_offset, caplog.text.count("the log was truncated")) == (16, 1)


def test_a_log_that_ends_before_the_position_is_data_loss_as_ever(source, lead, monkeypatch):
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    lead([3] * 7, leads=5)
    with pytest.raises(DataLossError, match="the partition ends at 7, but was already read up to 10"):
        look(source, READ_TO_10)


def test_a_position_behind_an_open_transaction_is_not_lost(source, lead, monkeypatch):
    """Regression: of a checkpoint of a reader under read_uncommitted, or a start offset."""
    slept = []
    monkeypatch.setattr("tenacity.nap.time.sleep", slept.append)
    cluster = lead([3] * 12, leads=3)
    cluster.stable = 4
    assert (source.end_offsets([READ_TO_10]), look(source, READ_TO_10)) == ({READ_TO_10.split_id: 10}, READ_TO_10)
    source.check_readable([READ_TO_10])
    assert slept == []
    cluster.stable = None
    assert look(source, READ_TO_10).next_offset == 12
    cluster.log, cluster.stable = [3] * 7, 4
    with pytest.raises(DataLossError, match="the partition ends at 4, but was already read up to 10"):
        look(source, READ_TO_10)


def test_an_offset_of_before_without_an_epoch_is_believed(source, lead):
    cluster = lead([3] * 7 + [5] * 9, leads=5)
    assert look(source, replace(READ_TO_10, last_epoch=None)).last_epoch == 5
    assert cluster.asked == []


def test_a_leader_that_cannot_tell_proves_nothing(source, lead, monkeypatch):
    cluster = lead([3] * 7 + [5] * 9, leads=5)
    monkeypatch.setattr(cluster, "epoch_ends", dict.fromkeys)
    assert look(source, READ_TO_10).next_offset == 16


def test_a_group_is_committed_with_the_epoch(lead):
    cluster = lead([], leads=3)
    KafkaSource("nowhere:1", topics=["t"], group="g").checkpoint_completed([READ_TO_10])
    assert cluster.committed == {(ID, "t", 0): CommittedOffset(10, leader_epoch=3)}


class TestAStartWhereAGroupHasCommitted:
    """The epoch is committed with the offset, so a log that was truncated since is noticed as from a checkpoint (KIP-320)."""

    @pytest.fixture
    def truncated(self, ten):
        """The group has read all ten, by a job whose checkpoint completed; then 6 to 9 were lost, and others are there."""
        with KafkaSource(ten.bootstrap, topics=["t"], group="g").batches() as batches:
            read = 0
            while read < 10:
                read += next(batches).num_rows
            batches.checkpoint()
            batches.checkpoint_completed()
        ten.lose_records("t", from_offset=6)
        ten.append("t", *(b"new-%d" % number for number in range(6, 12)))
        return ten

    @staticmethod
    def values(source):
        with source.batches() as batches:
            return [value for batch in batches for value in batch.column("value").to_pylist()]

    @pytest.mark.parametrize("partitions", [{"topics": ["t"]}, {"partitions": {"t": [0]}}], ids=["topics", "partitions"])
    def test_notices_a_log_that_was_truncated_since(self, truncated, partitions):
        source = KafkaSource(truncated.bootstrap, **partitions, start=Committed("g"), stop=Latest())
        with pytest.raises(LogTruncatedError, match="offsets 6 to 9 were read already"):
            self.values(source)

    def test_continues_where_the_logs_part_if_a_loss_is_allowed(self, truncated):
        source = KafkaSource(truncated.bootstrap, topics=["t"], start=Committed("g"), fail_on_data_loss=False)
        with source.batches() as batches:
            assert next(batches).column("value").to_pylist() == [b"new-%d" % number for number in range(6, 12)]

    def test_so_does_one_of_a_partition_that_is_discovered_later(self, truncated):
        source = KafkaSource(truncated.bootstrap, topics=["t"], start_of_new_partitions=Committed("g"))
        (found,) = source.create_discovery().later({}).added
        assert (found.next_offset, found.last_epoch) == (10, 0)

    def test_of_which_the_epoch_is_not_known_is_believed(self, ten):
        with KafkaCluster(KafkaSource(ten.bootstrap, topics=["t"]).config) as cluster:
            cluster.commit_offsets("g", {("t", 0): CommittedOffset(4)})
        assert self.values(KafkaSource(ten.bootstrap, topics=["t"], start=Committed("g"), stop=Latest()))[0] == b"old-4"

    def test_has_no_epoch_where_the_group_has_committed_nothing(self, ten):
        (split,) = KafkaSource(ten.bootstrap, topics=["t"], start=Committed("g")).create_discovery().initial().added
        assert (split.next_offset, split.last_epoch) == (0, None)


class TestASparkQuery:
    @pytest.fixture
    def planner(self):
        """Of a new run, whatever ran before."""
        source = KafkaSource("nowhere:1", topics=["t"])
        read = LogRead(source=source, offsets=KafkaOffsets(source), columns=("value",))
        return lambda: StreamPlanner(read, lambda: 0.0)

    def test_stores_the_epoch_with_a_position_before_the_end(self, planner, lead):
        lead([3] * 10, leads=3)
        first = planner()
        end = first.next_offsets(first.initial_offsets(), 4, None)
        (split,) = KafkaOffsets(KafkaSource("nowhere:1", topics=["t"])).from_json(end).splits.values()
        assert split == KafkaSplit("t", ID, 0, 4, last_epoch=3)
        ((task,),) = first.tasks(first.initial_offsets(), end)
        assert task == KafkaSplit("t", ID, 0, 0, 4), "of a record's own epoch nothing is known"

    @pytest.mark.parametrize("restarts", [False, True], ids=["between batches", "while it was down"])
    def test_notices_a_log_that_was_truncated_below_its_position(self, planner, lead, restarts):
        lead([3] * 10, leads=3)
        run = planner()
        end = run.next_offsets(run.initial_offsets(), None, None)
        lead([3] * 7 + [5] * 9, leads=5)
        with pytest.raises(LogTruncatedError, match="offsets 7 to 9"):
            (planner() if restarts else run).next_offsets(end, None, None)

    def test_continues_under_another_leader_that_lost_nothing(self, planner, lead):
        lead([3] * 10, leads=3)
        run = planner()
        end = run.next_offsets(run.initial_offsets(), None, None)
        lead([3] * 10 + [5] * 2, leads=5)
        ((task,),) = run.tasks(end, run.next_offsets(end, None, None))
        assert (task.next_offset, task.stop_offset) == (10, 12)


class TestATask:
    """It reads what was planned, or states that it is gone: the next look at the ends may never come (AvailableNow)."""

    @staticmethod
    def planned(kafka, source):
        """The task of a last batch, 60 to 100 of t-0."""
        planner = StreamPlanner(LogRead(source=source, offsets=KafkaOffsets(source), columns=("value",)), lambda: 0.0)
        planner.pin_end()
        middle = planner.next_offsets(planner.initial_offsets(), 60, None)
        ((task,),) = planner.tasks(middle, planner.next_offsets(middle, None, None))
        assert (task.next_offset, task.stop_offset) == (60, 100)
        return task

    @staticmethod
    def read(source, task):
        values: list[bytes] = []
        with closing(source.create_reader()) as reader:
            reader.add_splits([task])
            while True:
                batch = reader.poll(1.0)
                if batch is not None:
                    values += batch.records.column("value").to_pylist()
                    if batch.finished:
                        return values

    @pytest.fixture
    def kafka(self):
        with FakeKafka(brokers=3) as cluster:
            cluster.create_topic("t")
            for first in range(0, 100, 10):
                cluster.append("t", *(b"old-%d" % number for number in range(first, first + 10)))
            yield cluster

    def test_of_a_log_that_was_truncated_and_grew_again_after_it_was_planned_is_data_loss(self, kafka):
        source = KafkaSource(kafka.bootstrap, topics=["t"])
        task = self.planned(kafka, source)
        kafka.lose_records("t", from_offset=50)
        kafka.append("t", *(b"new-%d" % number for number in range(70)))
        with pytest.raises(DataLossError, match="t-0: this read was planned up to offset 100, and what is at offset 60 now"):
            self.read(source, task)
        assert self.read(KafkaSource(kafka.bootstrap, topics=["t"], fail_on_data_loss=False), task) == []

    def test_so_is_one_of_which_a_damaged_batch_is_asked_for_again(self, kafka, monkeypatch):
        """The second look did not know up to which epoch the read was planned."""
        source = KafkaSource(kafka.bootstrap, topics=["t"])
        task = replace(self.planned(kafka, source), last_epoch=None)  # as where it starts with the log
        spoilt = kafka.fault("Fetch", Rewrite(flip_a_bit), times=1)
        fetch, cuts = reader.fetch_there, []

        def after_an_unclean_election(*arguments, **limits):
            if not cuts:
                cuts.append(kafka.lose_records("t", from_offset=50))
                kafka.append("t", *(b"new-%d" % number for number in range(70)))
            return fetch(*arguments, **limits)

        monkeypatch.setattr(reader, "fetch_there", after_an_unclean_election)
        with pytest.raises(DataLossError, match="t-0: this read was planned up to offset 100, and what is at offset 60 now"):
            self.read(source, task)
        assert spoilt.fired == len(cuts) == 1

    def test_keeps_what_comes_before_the_truncation_where_a_loss_is_allowed(self, kafka, caplog):
        source = KafkaSource(kafka.bootstrap, topics=["t"], fail_on_data_loss=False)
        task = self.planned(kafka, source)
        kafka.lose_records("t", from_offset=80)
        kafka.append("t", *(b"new-%d" % number for number in range(70)))
        assert self.read(source, task) == [b"old-%d" % number for number in range(60, 80)]
        assert "what is at offset 80 now was written later" in caplog.text

    def test_is_read_as_planned_under_another_leader_that_lost_nothing(self, kafka):
        source = KafkaSource(kafka.bootstrap, topics=["t"])
        task = self.planned(kafka, source)
        kafka.move_leader("t", to=kafka.leader("t")[0] % 3 + 1)
        kafka.append("t", b"later")
        assert self.read(source, task) == [b"old-%d" % number for number in range(60, 100)]
        assert task.between(70, 90).stop_epoch == task.stop_epoch is not None
        assert task.between(70, 101).stop_epoch is None


class TestAReaderThatGoesBack:
    """What an unclean election leaves to be read is in a log that may lose more."""

    def test_notices_a_second_election_before_it_has_read_anything_of_the_first_ones_leader(self, ten, caplog):
        """It had forgotten the epoch of what it had read: 4 to 6 of the last leader were left out, silently."""
        source = KafkaSource(ten.bootstrap, topics=["t"], fail_on_data_loss=False)
        (split,) = source.create_discovery().initial().added
        with closing(source.create_reader()) as reader:
            reader.add_splits([split])
            assert read_to(reader, b"old-9") == named("old", range(10))
            ten.lose_records("t", from_offset=7)
            while "offsets 7 to 9 were read already" not in caplog.text:
                assert reader.poll(0.05) is None
            ten.lose_records("t", from_offset=4)
            ten.append("t", *named("new", range(4, 9)))
            assert read_to(reader, b"new-8") == named("new", range(4, 9))
        assert "offsets 4 to 6 were read already" in caplog.text

    def test_leaves_nothing_out_where_the_leader_has_more_of_an_older_epoch(self, ten, caplog):
        """The records of epoch 0 end at 10, above the six that were read of another leader's; 6 to 9 were left out."""
        for _ in range(2):
            ten.move_leader("t", to=ten.leader("t")[0] % 3 + 1)
        ten.append("t", b"new-10")
        source = KafkaSource(ten.bootstrap, topics=["t"], fail_on_data_loss=False)
        (split,) = source.create_discovery().initial().added
        with closing(source.create_reader()) as reader:
            reader.add_splits([replace(split, next_offset=6, last_epoch=1)])
            assert read_to(reader, b"new-10") == [*named("old", range(6, 10)), b"new-10"]
        assert "offset 5, and maybe offsets before it, were read already" in caplog.text


@pytest.fixture
def ten():
    """A batch for each record."""
    with FakeKafka(brokers=3) as cluster:
        cluster.create_topic("t")
        for number in range(10):
            cluster.append("t", b"old-%d" % number)
        yield cluster


def read_to(reader, last):
    """Values, up to this one."""
    values: list[bytes] = []
    while not values or values[-1] != last:
        batch = reader.poll(0.05)
        values += batch.records.column("value").to_pylist() if batch is not None else []
    return values


@pytest.fixture
def truncated():
    """A cluster, and a checkpoint behind 100 records of which the log lacks the last 40."""
    with FakeKafka(brokers=3) as kafka:
        kafka.create_topic("t", partitions=1)
        kafka.append("t", *named("a", range(60)))
        kafka.append("t", *named("a", range(60, 100)))
        _, checkpoint = read_on(KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest()), None)
        kafka.lose_records("t", from_offset=60)
        yield kafka, checkpoint


def read_on(source, checkpoint):
    with source.batches(checkpoint) as batches:
        values = [value for batch in batches for value in batch["value"].to_pylist()]
        return values, batches.checkpoint()


@pytest.mark.parametrize("more", [0, 10, 80])
def test_a_read_with_a_stop_that_continues_reports_a_truncation_wherever_the_log_ends_now(truncated, more):
    """Regression: it fetched nothing up to a stop before its position, and ended without a word."""
    kafka, checkpoint = truncated
    for value in named("b", range(more)):
        kafka.append("t", value)
    with pytest.raises(DataLossError, match=r"records were lost|the log was truncated; offsets 60 to 99"):
        read_on(KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest()), checkpoint)


def test_or_a_warning_and_it_reads_what_was_written_since_and_the_next_one_what_follows(truncated, caplog):
    """Regression: each time it ended where it was, as the checkpoint kept the previous epoch."""
    kafka, checkpoint = truncated
    source = KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest(), fail_on_data_loss=False)
    for first, last in ((0, 10), (10, 80), (80, 81)):
        kafka.append("t", *named("b", range(first, last)))
        values, checkpoint = read_on(source, checkpoint)
        assert values == named("b", range(first, last))
    assert caplog.text.count("continuing at offset 60") == caplog.text.count("records were lost") == 1


def test_a_stop_of_the_users_before_the_position_is_no_loss(truncated):
    kafka, _ = truncated
    _, checkpoint = read_on(KafkaSource(kafka.bootstrap, topics=["t"], stop=At(50)), None)
    assert read_on(KafkaSource(kafka.bootstrap, topics=["t"], stop=At(40)), checkpoint)[0] == []
