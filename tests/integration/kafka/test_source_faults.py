"""KafkaSource against a real broker that deletes, re-creates, compacts, dies, gives corrupt bytes; and restores anywhere."""

import logging
from pathlib import Path

import pytest

from headrace.connectors.kafka.client.cluster import shared_cluster
from headrace.connectors.kafka.client.errors import GroupInUseError, OffsetOutOfRangeError, TopicRecreatedError
from headrace.enumerator.errors import CorruptDataError, DataLossError
from headrace.kafka import At, Committed, KafkaSource, Latest
from headrace.testing.servers.kafka import create_topic, delete_topic
from tests.helpers import kafka_rig as rig
from tests.helpers.kafka_rig import ONE_BATCH_PER_FETCH, TEN, Reading, committed, read_all, write, write_batches
from tests.helpers.kafka_tools import created, set_config
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]


def id_of(source, name):
    return shared_cluster(source.config).topics([name])[name].topic_id


# --- restores -----------------------------------------------------------------------------------------------------------
def write_puzzle(bootstrap, name):
    """Two partitions of small batches, markers, an aborted transaction, and an empty end."""
    create_topic(bootstrap, name, partitions=3)
    writer = rig.transactional(bootstrap, name)
    write_batches(bootstrap, name, [[b"a0", b"a1"], [b"a2"]])
    writer.transaction(name, [b"a3", b"a4", b"a5"])
    writer.transaction(name, [b"gone"], commit=False)
    write_batches(bootstrap, name, [[b"a6"], [b"a7", b"a8", b"a9"]])
    write_batches(bootstrap, name, [[b"b0"], [b"b1", b"b2", b"b3"], [b"b4"]], partition=1)
    writer.transaction(name, [b"gone too"], 1, commit=False)
    for partition in (0, 1):
        rig.wait_for_end(bootstrap, name, rig.end_of(bootstrap, name, partition, "read_uncommitted"), partition)


@pytest.mark.parametrize("stop", [Latest(), None], ids=["bounded", "unbounded"])
def test_restored_at_every_cut_nothing_is_lost_or_read_twice(bootstrap, topic, stop):
    name = topic()
    write_puzzle(bootstrap, name)
    wanted = sorted([b"a%d" % n for n in range(10)] + [b"b%d" % n for n in range(5)])
    source = KafkaSource(bootstrap, topics=[name], stop=stop, properties=ONE_BATCH_PER_FETCH, discovery_interval_s=None)
    ends = {(name, partition): rig.end_of(bootstrap, name, partition) for partition in range(3)}
    cuts: dict[tuple[int, ...], tuple[bytes, int]] = {}
    with Reading(source) as reading:

        def has_cut_everything() -> bool:
            stored = reading.store()
            cuts[tuple(reading.positions().values())] = (stored, len(reading.rows))
            return reading.positions() == ends

        reading.until(has_cut_everything)
    assert sorted(reading.values) == wanted
    assert {count for _, count in cuts.values()} >= {0, len(wanted)}
    assert len(cuts) >= 12, "one batch per poll: cuts between all of them"
    for number, (stored, count) in enumerate(cuts.values()):
        with Reading(source, stored, parallelism=1 + number % 3) as restored:
            restored.until(lambda run=restored, count=count: len(run.rows) + count >= len(wanted))
            if stop is not None:
                restored.until_finished()
        assert sorted(reading.values[:count] + restored.values) == wanted


def test_batches_continue_from_their_checkpoint(bootstrap, ten):
    """The interface for people, all of it: iterate, checkpoint, restore, where the stop is asked for again."""
    source = KafkaSource(bootstrap, topics=[ten], stop=Latest(), properties=ONE_BATCH_PER_FETCH)
    write(bootstrap, ten, [b"10"])
    with source.batches() as batches:
        first = next(batches)
        stored = batches.checkpoint()
        batches.checkpoint_completed()
        assert first.column("offset").to_pylist() == list(range(10))
        write(bootstrap, ten, [b"behind the stop of then"])
        assert [batch.column("offset").to_pylist() for batch in batches] == [[10]]
    with source.batches(stored) as restored:
        assert [batch.column("offset").to_pylist() for batch in restored] == [[10], [11]]
        at_end = restored.checkpoint()
    assert list(source.batches(at_end)) == []


def test_a_lost_reader_is_taken_over_from_the_last_checkpoint(bootstrap, topic):
    name = created(bootstrap, topic, partitions=4)
    for partition in range(4):
        write(bootstrap, name, [b"x", b"y"], partition)
    with Reading(KafkaSource(bootstrap, topics=[name], stop=Latest()), parallelism=2) as reading:
        reading.until_rows(8)
        reading.store()
        for partition in range(4):
            write(bootstrap, name, [b"behind the stop"], partition)
        reading.run.lose_reader(0)
        reading.run.start_reader(0)
        assert len(reading.until_finished()) == 8


# --- groups -------------------------------------------------------------------------------------------------------------
def test_group_offsets_move_when_a_checkpoint_completes_and_never_otherwise(bootstrap, ten, topic):
    group, partition = topic(), (ten, 0)
    source = KafkaSource(bootstrap, topics=[ten], start=Committed(), group=group)
    with Reading(source) as reading:
        reading.until_rows(10)
        assert committed(bootstrap, group, partition) == [None]
        reading.run.checkpoint()
        assert committed(bootstrap, group, partition) == [None]
        reading.run.checkpoint_aborted()
        assert committed(bootstrap, group, partition) == [None]
        reading.run.checkpoint()
        write(bootstrap, ten, [b"after the checkpoint"])
        reading.until_rows(11)
        reading.run.checkpoint_completed()
        assert committed(bootstrap, group, partition) == [10]
    assert committed(bootstrap, group, partition) == [10]
    with Reading(source) as started_again:
        assert started_again.until_rows(1) == [(ten, 0, 10, b"after the checkpoint")]


def test_a_group_with_live_members_is_not_overwritten(bootstrap, ten, topic):
    group = topic()
    with rig.member_of(bootstrap, group, ten), Reading(KafkaSource(bootstrap, topics=[ten], group=group)) as reading:
        reading.until_rows(10)
        with pytest.raises(GroupInUseError, match=group):
            reading.store()
    assert committed(bootstrap, group, (ten, 0)) == [None]


# --- topics that go -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [0, 3, 10, 25], ids=["empty", "smaller", "same size", "larger"])
def test_a_topic_recreated_while_stopped_is_reported_by_its_id(bootstrap, ten, count):
    source = KafkaSource(bootstrap, topics=[ten])
    with Reading(source) as reading:
        reading.until_rows(10)
        stored = reading.store()
    old = id_of(source, ten)
    rig.recreate(bootstrap, ten, [b"new"] * count)
    new = id_of(source, ten)
    assert old != new
    with pytest.raises(DataLossError, match=rf"{ten}-0 \(topic id {old}, checkpoint at offset 10\): .* {new}"):
        Reading(source, stored)


def test_where_loss_is_allowed_a_topic_recreated_is_read_from_its_first_record(bootstrap, ten, caplog):
    source = KafkaSource(bootstrap, topics=[ten], fail_on_data_loss=False)
    with Reading(source) as reading:
        reading.until_rows(10)
        stored = reading.store()
    rig.recreate(bootstrap, ten, [b"new %d" % n for n in range(12)])
    with caplog.at_level(logging.WARNING), Reading(source, stored) as restored:
        assert restored.until_rows(12) == [(ten, 0, n, b"new %d" % n) for n in range(12)]
        stored = restored.store()
    assert str(id_of(source, ten)) in caplog.text
    with Reading(source, stored) as again:
        write(bootstrap, ten, [b"more"])
        assert again.until_rows(1) == [(ten, 0, 12, b"more")]


def test_a_topic_recreated_while_reading_is_reported_by_its_id(bootstrap, ten, caplog):
    strict = KafkaSource(bootstrap, topics=[ten], discovery_interval_s=None)
    lax = KafkaSource(bootstrap, topics=[ten], fail_on_data_loss=False)
    old = id_of(strict, ten)
    with Reading(strict) as first, Reading(lax) as second:
        first.until_rows(10)
        second.until_rows(10)
        rig.recreate(bootstrap, ten, TEN)
        with pytest.raises(TopicRecreatedError, match=str(old)) as raised:
            first.until(lambda: False)
        assert raised.value.found == str(id_of(strict, ten))
        second.look()
        assert second.until_rows(20)[10:] == [(ten, 0, n, value) for n, value in enumerate(TEN)]
    assert "re-created" in caplog.text or "created again" in caplog.text


def test_a_topic_deleted_while_reading(bootstrap, ten, topic, caplog):
    other = created(bootstrap, topic)
    strict = KafkaSource(bootstrap, topics=[ten, other], discovery_interval_s=None)
    lax = KafkaSource(bootstrap, topics=[ten, other], fail_on_data_loss=False, group=other)
    with Reading(strict) as first, Reading(lax) as second:
        first.until_rows(10)
        second.until_rows(10)
        before = second.store()
        delete_topic(bootstrap, ten)
        with pytest.raises(TopicRecreatedError, match=f"'{ten}' was deleted"):
            first.until(lambda: False)
        second.look()
        write(bootstrap, other, [b"others go on"])
        assert second.until_rows(11)[10:] == [(other, 0, 0, b"others go on")]
        stored = second.store()
        assert committed(bootstrap, other, (other, 0)) == [1]
    assert f"{ten}-0" in caplog.text
    with pytest.raises(DataLossError, match=rf"{ten}-0 .*was deleted"):
        Reading(strict, before)
    assert ten.encode() not in stored  # its loss was tolerated, and it can never come back
    with Reading(strict, stored) as restored:
        write(bootstrap, other, [b"still"])
        assert restored.until_rows(1) == [(other, 0, 1, b"still")]


# --- offsets that go ------------------------------------------------------------------------------------------------------
def test_records_deleted_before_they_were_read(bootstrap, ten, caplog):
    strict = KafkaSource(bootstrap, topics=[ten], start=At(2))
    with Reading(strict) as reading:
        stored = reading.store()
    rig.delete_records(bootstrap, ten, 6)
    with Reading(strict, stored) as restored, pytest.raises(OffsetOutOfRangeError) as raised:
        restored.until(lambda: False)
    error = raised.value
    assert (error.topic, error.partition, error.wanted, error.earliest, error.latest) == (ten, 0, 2, 6, 10)
    assert f"{ten}-0: offset 2 is out of range, available are 6 to 10 (exclusive); offsets 2 to 5 were deleted" in str(error)
    assert any("fail_on_data_loss" in note for note in error.__notes__)
    lax = KafkaSource(bootstrap, topics=[ten], fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING), Reading(lax, stored) as going_on:
        assert rig.by_partition(going_on.until_rows(4)) == {(ten, 0): [6, 7, 8, 9]}
    assert "continuing at offset 6" in caplog.text


def test_records_deleted_past_a_stop_end_the_partition(bootstrap, ten):
    source = KafkaSource(bootstrap, topics=[ten], stop=At(4), fail_on_data_loss=False)
    with Reading(source) as reading:
        stored = reading.store()
    rig.delete_records(bootstrap, ten, 6)
    with Reading(source, stored) as restored:
        # What was fetched ahead in the first run is of no use to the second.
        assert restored.until_finished() == []
    assert read_all(KafkaSource(bootstrap, topics=[ten], stop=At(4))) == []


@pytest.mark.parametrize("wanted", [At(11), {"partition": At(11)}], ids=["one", "by partition"])
def test_a_start_out_of_range_is_refused_or_moved(bootstrap, ten, wanted, caplog):
    rig.delete_records(bootstrap, ten, 3)
    start = wanted if isinstance(wanted, At) else {(ten, 0): wanted["partition"]}
    with pytest.raises(DataLossError, match=f"{ten}-0: offset 11 is wanted, but only 3 to 10"):
        read_all(KafkaSource(bootstrap, topics=[ten], start=start, stop=Latest()))
    with pytest.raises(DataLossError, match=f"{ten}-0: offset 1 is wanted, but only 3 to 10"):
        read_all(KafkaSource(bootstrap, topics=[ten], start=At(1), stop=Latest()))
    lax = KafkaSource(bootstrap, topics=[ten], start=At(1), stop=Latest(), fail_on_data_loss=False)
    assert rig.by_partition(read_all(lax)) == {(ten, 0): list(range(3, 10))}
    assert "continuing at 3" in caplog.text


def test_a_position_beyond_the_end(bootstrap, ten, topic, caplog):
    """A restored position that the leader does not have: the log is shorter than what was read from it."""
    strict = KafkaSource(bootstrap, topics=[ten], discovery_interval_s=None)
    lax = KafkaSource(bootstrap, topics=[ten], discovery_interval_s=None, fail_on_data_loss=False)
    (split,) = strict.create_discovery().initial().added
    for source in (strict, lax):
        reader = source.create_reader()
        reader.add_splits([split.between(15, None)])
        with reader:
            if source is strict:
                with pytest.raises(OffsetOutOfRangeError, match=r"offset 15 is out of range, available are 0 to 10 .*shorter"):
                    eventually(lambda found=reader: found.poll(0.2), "nothing came")
                with pytest.raises(OffsetOutOfRangeError):
                    reader.poll(0.0)
            else:
                warned = "continuing at offset 10"
                eventually(lambda r=reader, text=warned: r.poll(0.2) is None and text in caplog.text, "no warning")
                write(bootstrap, ten, [b"new"])
                batch = eventually(lambda found=reader: found.poll(0.2), "nothing came")
                assert batch.records.column("offset").to_pylist() == [10]
                assert batch.split.next_offset == 11
    with pytest.raises(DataLossError, match="ends at 11, but was already read up to 15"):
        strict.end_offsets([split.between(15, None)])
    assert lax.end_offsets([split.between(15, None)]) == {split.split_id: 15}


# --- gaps -----------------------------------------------------------------------------------------------------------------
def compact(broker, name):
    """Write keys again and again into their own segments, and wait until the cleaner has left gaps."""
    tidy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "60000", "delete.retention.ms": "0"}
    create_topic(broker.bootstrap, name, configs=tidy)
    hour_ms = 3_600_000
    for turn in range(4):  # every batch is an hour later than the previous one, so it opens a new segment
        keys = [b"a", b"b"] if turn % 2 else [b"a", b"c", b"d"]
        records = [{"key": key, "value": b"%s%d" % (key, turn), "timestamp": 1_000_000 + turn * hour_ms} for key in keys]
        rig.write_records(broker.bootstrap, name, records)
    writer = rig.transactional(broker.bootstrap, name)
    writer.producer.begin_transaction()
    writer.write(name, [{"key": b"e", "value": b"e", "timestamp": 1_000_000 + 5 * hour_ms}])
    writer.end(commit=True)
    rig.write_records(broker.bootstrap, name, [{"key": b"a", "value": b"last", "timestamp": 1_000_000 + 9 * hour_ms}])
    return eventually(lambda: (rows := rig.consume(broker.bootstrap, name)) and len(rows) <= 6 and rows, "never compacted")


@pytest.fixture
def eager_cleaner(broker):
    set_config(broker.bootstrap, "broker", str(broker.nodes[0]), log__cleaner__backoff__ms="100")
    yield
    set_config(broker.bootstrap, "broker", str(broker.nodes[0]), log__cleaner__backoff__ms=None)


def test_gaps_that_compaction_leaves_are_no_loss(broker, topic, eager_cleaner):
    name = topic()
    rows = compact(broker, name)
    offsets = [offset for offset, _ in rows]
    assert offsets != list(range(offsets[0], offsets[0] + len(offsets))), "there are gaps"
    for isolation in ("read_committed", "read_uncommitted"):
        given = {"isolation_level": isolation, "properties": ONE_BATCH_PER_FETCH}
        source = KafkaSource(broker.bootstrap, topics=[name], stop=Latest(), **given)
        cuts = {}
        with Reading(source) as reading:
            reading.until(lambda run=reading, cuts=cuts: cuts.update({len(run.rows): run.store()}) or run.run.finished)
        assert [(row[2], row[3]) for row in reading.rows] == rows
        assert len(cuts) > 2
        for count, stored in cuts.items():
            assert reading.rows[:count] + read_all(source, stored) == reading.rows
    into_a_gap = next(offset for offset in range(1, offsets[-1]) if offset not in offsets)
    source = KafkaSource(broker.bootstrap, topics=[name], start=At(into_a_gap), stop=Latest())
    assert [row[2] for row in read_all(source)] == [offset for offset in offsets if offset > into_a_gap]
    source = KafkaSource(broker.bootstrap, topics=[name], stop=At(into_a_gap))
    assert [row[2] for row in read_all(source)] == [offset for offset in offsets if offset < into_a_gap]


# --- size -----------------------------------------------------------------------------------------------------------------
def test_what_is_fetched_ahead_stays_within_the_budget(bootstrap, topic):
    name, budget = created(bootstrap, topic, partitions=2), 2 << 20
    values = [bytes(64_000)] * 200
    for partition in (0, 1):
        write(bootstrap, name, values, partition, **{"batch.size": 200_000})
    source = KafkaSource(bootstrap, topics=[name], stop=Latest(), fetch_budget_bytes=budget, columns=("offset",))
    reader = source.create_reader()
    splits = source.create_discovery().initial().added
    rows, most = 0, 0
    with reader:
        reader.add_splits(splits)
        fetcher = reader._fetcher
        eventually(lambda: fetcher._queued_bytes > budget // 2, "it never fetched ahead")
        finished = 0
        while finished < len(splits):
            with fetcher._lock:
                most = max(most, fetcher._queued_bytes + fetcher._asked_bytes)
            batch = reader.poll(10.0)
            if batch is not None:
                rows, finished = rows + batch.records.num_rows, finished + batch.finished
    assert rows == 400
    assert budget // 2 < most <= budget


def test_records_larger_than_every_limit(bootstrap, topic):
    name = created(bootstrap, topic, configs={"max.message.bytes": "20000000"})
    values = [b"small", bytes(3 << 20), b"small too", bytes(12 << 20), b"last"]
    for value in values:
        write(bootstrap, name, [value], **{"message.max.bytes": 20_000_000})
    for properties in ({}, {"max.partition.fetch.bytes": "1000"}, {"fetch.max.bytes": "1000"}):
        source = KafkaSource(bootstrap, topics=[name], stop=Latest(), fetch_budget_bytes=1 << 20, properties=properties)
        with Reading(source) as reading:
            reading.until_finished()
        assert reading.values == values


# --- brokers that die ---------------------------------------------------------------------------------------------------
def leader_of(source, name):
    return shared_cluster(source.config).topics([name])[name].partitions[0].leader


def test_the_leader_is_killed_while_reading(cluster3, topic):
    name = created(cluster3.bootstrap, topic, replication=3, configs={"min.insync.replicas": "2"})
    batches = [[b"%d.%d" % (n, m) for m in range(10)] for n in range(60)]
    write_batches(cluster3.bootstrap, name, batches[:30], acks="all")
    source = KafkaSource(cluster3.bootstrap, topics=[name], properties=ONE_BATCH_PER_FETCH, fetch_budget_bytes=1 << 20)
    expected = [value for batch in batches for value in batch]
    with Reading(source) as reading:
        reading.until(lambda: len(reading.rows) >= 50)
        leader = leader_of(source, name)
        cluster3.kill(leader)
        try:
            assert not cluster3.is_running(leader)
            write_batches(cluster3.bootstrap, name, batches[30:], acks="all")
            reading.until(lambda: len(reading.rows) >= len(expected))
            assert leader_of(source, name) != leader
            stored = reading.store()
        finally:
            cluster3.restart(leader)
        write(cluster3.bootstrap, name, [b"after the restart"], acks="all")
        reading.until_rows(len(expected) + 1)
    assert reading.values == [*expected, b"after the restart"]
    assert [row[2] for row in reading.rows] == list(range(len(reading.rows)))
    with Reading(source, stored) as restored:
        assert restored.until_rows(1)[0][3] == b"after the restart"


def test_the_only_broker_is_restarted_while_reading(broker, ten):
    source = KafkaSource(broker.bootstrap, topics=[ten])
    with Reading(source) as reading:
        reading.until_rows(10)
        broker.kill(1)
        assert not broker.is_running(1)
        assert reading.poll(0.5) is None
        broker.restart(1)
        write(broker.bootstrap, ten, [b"after"])
        reading.until_rows(11)
    assert [row[2] for row in reading.rows] == list(range(11))


def test_corrupt_bytes_on_the_brokers_disk(broker, topic):
    name = created(broker.bootstrap, topic)
    write_batches(broker.bootstrap, name, [[b"good"] * 3, [b"flipped"] * 3, [b"behind"] * 3])
    directory = getattr(broker._nodes[1], "_directory", None)
    segment = directory and Path(directory) / "data" / f"{name}-0" / f"{0:020}.log"
    if segment is None or not segment.is_file():
        pytest.skip("the broker's disk is not at hand")
    broker.stop(1)
    data = bytearray(segment.read_bytes())
    data[data.index(b"flipped")] ^= 0x01
    segment.write_bytes(data)
    broker.restart(1)
    source = KafkaSource(broker.bootstrap, topics=[name])
    with Reading(source) as reading:
        with pytest.raises(CorruptDataError, match=rf"{name}.*partition 0.*offset 3.*CRC"):
            reading.until(lambda: False)
        with pytest.raises(CorruptDataError):
            reading.poll()
        assert reading.values == [b"good"] * 3
        reading.store()
        assert reading.positions() == {(name, 0): 3}
    after_it = KafkaSource(broker.bootstrap, topics=[name], start=At(6), stop=Latest())
    assert [row[3] for row in read_all(after_it)] == [b"behind"] * 3
