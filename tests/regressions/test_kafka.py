"""Regression suite: the sequences by which real systems lost or doubled records, on KafkaSource and a real broker."""

import logging
import socket
from dataclasses import replace

import pytest

from headrace.connectors.kafka.client.cluster import KafkaCluster, shared_cluster
from headrace.connectors.kafka.client.errors import TopicRecreatedError
from headrace.connectors.kafka.client.offsets import OffsetAnswer
from headrace.connectors.kafka.client.positions import Latest as LatestOffset
from headrace.connectors.kafka.client.topology import TopicViews
from headrace.connectors.kafka.read import reader as reader_module
from headrace.connectors.kafka.read.fetcher import FetchedData, Fetcher, FetchFrom
from headrace.enumerator import LazyEnumerator
from headrace.enumerator.errors import CorruptDataError, DataLossError
from headrace.kafka import At, Committed, Earliest, KafkaSource, Latest
from headrace.testing.servers.kafka import add_partitions, create_topic, delete_topic
from tests.helpers import kafka_rig as rig
from tests.helpers.envelopes import body_of
from tests.helpers.kafka_rig import TEN, Reading, committed, read_all, transactional, wait_for_end, write, write_batches
from tests.helpers.kafka_tools import created

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


# --- I2: resolved once --------------------------------------------------------------------------------------------------
def test_kafka_12478_kafka_20539_latest_and_a_partition_added_before_it_is_discovered(bootstrap, ten):
    with Reading(KafkaSource(bootstrap, topics=[ten], start=Latest())) as reading:
        add_partitions(bootstrap, ten, 2)
        write(bootstrap, ten, [b"produced", b"before discovery"], partition=1)
        reading.look()
        assert reading.until_rows(2) == [(ten, 1, 0, b"produced"), (ten, 1, 1, b"before discovery")]


@pytest.mark.parametrize("count", [0, 10], ids=["empty partition", "ten records"])
def test_flink_28303_latest_of_an_empty_partition_is_not_resolved_again(bootstrap, topic, count):
    name = created(bootstrap, topic)
    write(bootstrap, name, TEN[:count])
    source = KafkaSource(bootstrap, topics=[name], start=Latest())
    with Reading(source) as reading:
        stored = reading.store()
    assert body_of(stored)["splits"][0]["split"]["next_offset"] == count, "a number, and no sentinel"
    write(bootstrap, name, [b"while it was down"])
    with Reading(source, stored) as restored:
        assert restored.until_rows(1) == [(name, 0, count, b"while it was down")]


def test_risingwave_19443_a_rebuilt_reader_does_not_seek_to_latest(bootstrap, ten):
    """Nor does it mistake what the lost reader had fetched ahead for its own (SPARK-25495)."""
    with Reading(KafkaSource(bootstrap, topics=[ten], start=Latest())) as reading:
        write_batches(bootstrap, ten, [[b"a", b"b"], [b"c"]])
        reading.run.lose_reader(0)
        write(bootstrap, ten, [b"d"])
        reading.run.start_reader(0)
        reading.until_rows(4)
        assert reading.values == [b"a", b"b", b"c", b"d"]


# --- I3: the next offset --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
def test_flink_34470_the_end_offset_is_a_control_record(bootstrap, ten, is_committed):
    transactional(bootstrap, ten).transaction(ten, [b"t"], commit=is_committed)
    wait_for_end(bootstrap, ten, 12)
    (split,) = KafkaSource(bootstrap, topics=[ten], stop=Latest()).create_discovery().initial().added
    assert split.stop_offset == 12, "behind the marker, at 11"
    assert len(read_all(KafkaSource(bootstrap, topics=[ten], stop=Latest()))) == 10 + is_committed
    assert len(read_all(KafkaSource(bootstrap, topics=[ten], stop=At(11)))) == 10 + is_committed


@pytest.mark.parametrize("earliest", [0, 4])
def test_flink_28475_a_stop_at_offset_0(bootstrap, ten, earliest):
    if earliest:
        rig.delete_records(bootstrap, ten, earliest)
    assert read_all(KafkaSource(bootstrap, topics=[ten], stop=At(0))) == []


def test_spark_23685_gaps_of_markers_and_aborted_records_are_no_data_loss(bootstrap, topic):
    name = created(bootstrap, topic)
    writer = transactional(bootstrap, name)
    for value in (b"a", b"b", b"c"):
        writer.transaction(name, [b"aborted", b"too"], commit=False)
        writer.transaction(name, [value])
    wait_for_end(bootstrap, name, 15)
    source = KafkaSource(bootstrap, topics=[name], stop=Latest(), fail_on_data_loss=True)
    assert read_all(source) == [(name, 0, 3, b"a"), (name, 0, 8, b"b"), (name, 0, 13, b"c")]
    for start in range(16):
        from_there = KafkaSource(bootstrap, topics=[name], start=At(start), stop=Latest())
        assert [row[2] for row in read_all(from_there)] == [offset for offset in (3, 8, 13) if offset >= start]


def test_beam_25962_the_position_moves_over_records_that_yield_nothing(bootstrap, ten):
    source = KafkaSource(bootstrap, topics=[ten], start=Latest())
    with Reading(source) as reading:
        transactional(bootstrap, ten).transaction(ten, [b"aborted"] * 5, commit=False)
        wait_for_end(bootstrap, ten, 16)
        reading.until(lambda: reading.store() and reading.positions() == {(ten, 0): 16})
        assert reading.rows == []
        stored = reading.store()
    rig.delete_records(bootstrap, ten, 16)
    with Reading(source, stored) as restored:
        write(bootstrap, ten, [b"next"])
        assert restored.until_rows(1) == [(ten, 0, 16, b"next")]


def test_risingwave_5192_arroyo_910_one_restore_per_record_and_no_duplicate(bootstrap, topic):
    name = created(bootstrap, topic)
    write_batches(bootstrap, name, [[value] for value in TEN[:6]])
    source = KafkaSource(bootstrap, topics=[name], properties=rig.ONE_BATCH_PER_FETCH)
    stored, values = None, []
    for _ in range(6):
        with Reading(source, stored) as reading:
            reading.until_rows(1)
            values += reading.values
            stored = reading.store()
    assert values == TEN[:6]


def test_librdkafka_1_7_an_aborted_empty_transaction_hides_nothing_behind_it(bootstrap, topic):
    """The abort is remembered for its producer; the producer's later, committed records must come all the same."""
    name = created(bootstrap, topic, partitions=2)
    writer = transactional(bootstrap, name)
    writer.transaction(name, [b"aborted"], commit=False)
    writer.producer.begin_transaction()
    writer.end(commit=False)
    writer.producer.begin_transaction()  # empty in partition 0, so that it gets no marker there
    writer.write(name, [{"value": b"elsewhere"}], 1)
    writer.end(commit=False)
    writer.transaction(name, [b"committed"])
    wait_for_end(bootstrap, name, 4)
    assert read_all(KafkaSource(bootstrap, partitions={name: [0]}, stop=Latest())) == [(name, 0, 2, b"committed")]


def test_librdkafka_4636_what_was_asked_before_a_seek_is_not_given_after_it(bootstrap, topic):
    name = created(bootstrap, topic)
    write_batches(bootstrap, name, [[b"%d" % n] for n in range(30)])
    source = KafkaSource(bootstrap, topics=[name], properties=rig.ONE_BATCH_PER_FETCH)
    with Fetcher(shared_cluster(source.config), [FetchFrom(name, 0, 0)], budget_bytes=1 << 20) as fetcher:
        for seek in (20, 3, 29, 0, 15):
            rig.eventually(lambda: fetcher.poll(0.2), "nothing came")
            fetcher.assign([FetchFrom(name, 0, seek)])  # with data in the queue and a request in flight
            for expected in range(seek, min(seek + 3, 30)):
                data = rig.eventually(lambda: fetcher.poll(0.2), "nothing came")
                assert isinstance(data, FetchedData)
                assert (data.fetch_offset, data.next_offset) == (expected, expected + 1)
            if seek == 29:
                fetcher.assign([FetchFrom(name, 0, 0)])


def test_librdkafka_4844_an_error_moves_no_position(bootstrap, topic, monkeypatch):
    name = created(bootstrap, topic)
    write_batches(bootstrap, name, [[b"0", b"1"], [b"2", b"3"], [b"4"]])
    source = KafkaSource(bootstrap, topics=[name], properties=rig.ONE_BATCH_PER_FETCH, group=name)
    decode, failures = reader_module.decode, []

    def failing(data, *, start, **others):
        if start == 2:
            failures.append(start)

            def corrupt():
                raise CorruptDataError("injected")
                yield

            return corrupt()
        return decode(data, start=start, **others)

    with monkeypatch.context() as patch, Reading(source) as reading:
        patch.setattr(reader_module, "decode", failing)
        for _ in range(3):
            with pytest.raises(CorruptDataError, match="injected"):
                reading.until(lambda: False)
        assert failures == [2, 2, 2]  # tried again from the same position
        stored = reading.store()
    assert committed(bootstrap, name, (name, 0)) == [2]
    with Reading(source, stored) as restored:
        restored.until_rows(3)
        assert reading.values + restored.values == [b"0", b"1", b"2", b"3", b"4"]


# --- I4: a reset needs proof ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("start", [Earliest(), Latest()], ids=str)
def test_librdkafka_a_transient_disconnect_resets_no_position(broker, ten, start, monkeypatch):
    """Cut amid answers, then refused, then nameless: no record twice (a reset to earliest), none lost (to latest)."""
    values = [b"%05d" % n + bytes(2000) for n in range(400)]
    impatient = {"client.id": f"cut-{start}", "reconnect.backoff.max.ms": "100", "retry.backoff.max.ms": "100"}
    source = KafkaSource(broker.bootstrap, topics=[ten], start=start, properties=impatient)
    with rig.through_proxy(monkeypatch, broker.bootstrap) as proxy, Reading(source) as reading:
        if start == Earliest():
            reading.until_rows(10)
        before = len(reading.rows)
        for number in range(4):
            cuts = proxy.cuts
            proxy.cut_after(50_000)
            proxy.refusals += [ConnectionRefusedError(), socket.gaierror(socket.EAI_AGAIN, "no name")] * 2
            write(broker.bootstrap, ten, values[number * 100 : number * 100 + 100])
            reading.until(lambda seen=cuts: proxy.cuts > seen and not proxy.refusals)
        reading.until_rows(before + 400)
        assert reading.values[before:] == values
        assert [row[2] for row in reading.rows[before:]] == list(range(10, 410))
        assert proxy.cuts == 4


def test_spark_26267_kafka_7703_an_end_that_briefly_answers_earliest(bootstrap, ten, monkeypatch):
    """A new leader that knew its high watermark not yet answered 0. Real brokers now say so (78); older ones are faked here."""
    source = KafkaSource(bootstrap, topics=[ten])
    (split,) = source.create_discovery().initial().added
    there = split.between(10, None)
    list_offsets, lies = KafkaCluster.list_offsets, []

    def lying(self, positions, isolation=None):
        answers = list_offsets(self, positions, isolation)
        if set(positions.values()) == {LatestOffset()} and len(lies) < 3:
            lies.append(positions)
            return {tp: OffsetAnswer(0) for tp in answers}
        return answers

    monkeypatch.setattr(KafkaCluster, "list_offsets", lying)
    assert source.end_offsets([there]) == {split.split_id: 10}
    assert len(lies) == 3
    always_0 = OffsetAnswer(0)
    monkeypatch.setattr(KafkaCluster, "list_offsets", lambda self, asked, isolation=None: dict.fromkeys(asked, always_0))
    with pytest.raises(DataLossError, match="ends at 0, but was already read up to 10"):
        source.end_offsets([there])
    lax = replace(source, fail_on_data_loss=False)
    assert lax.end_offsets([there]) == {split.split_id: 10}, "never back, whatever the answer"


# --- I5: a topic is its id --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [3, 10], ids=["smaller", "same size"])
def test_materialize_20141_a_topic_recreated_under_a_running_reader(bootstrap, ten, count):
    """Smaller: a panic there. Same size: it stopped silently. Here both are informed by the id."""
    with Reading(KafkaSource(bootstrap, topics=[ten], discovery_interval_s=None)) as reading:
        reading.until_rows(10)
        rig.recreate(bootstrap, ten, TEN[:count])
        with pytest.raises(TopicRecreatedError, match="deleted and created again"):
            reading.until(lambda: False)
        assert len(reading.rows) == 10


def test_franz_go_1426_old_offsets_are_not_committed_to_a_recreated_topic(bootstrap, ten):
    source = KafkaSource(bootstrap, topics=[ten], start=Committed(), group=ten, fail_on_data_loss=False)
    with Reading(source) as reading:
        reading.until_rows(10)
        rig.recreate(bootstrap, ten, [b"new %d" % n for n in range(20)])
        reading.store()  # before the run has noticed
        assert committed(bootstrap, ten, (ten, 0)) == [None]
        reading.look()
        reading.until_rows(30)
        reading.store()
        assert committed(bootstrap, ten, (ten, 0)) == [20]
    with Reading(source) as started_again:
        write(bootstrap, ten, [b"last"])
        assert started_again.until_rows(1) == [(ten, 0, 20, b"last")]


def test_flink_35228_a_topic_removed_and_added_again_is_read(bootstrap, topic):
    stem = topic()
    kept, flickering = f"{stem}.kept", f"{stem}.flickering"
    for name in (kept, flickering):
        create_topic(bootstrap, name)
        write(bootstrap, name, [b"first"])
    source = KafkaSource(bootstrap, pattern=f"{stem}.*", fail_on_data_loss=False)
    with Reading(source) as reading:
        reading.until_rows(2)
        delete_topic(bootstrap, flickering)
        reading.look()
        create_topic(bootstrap, flickering)
        write(bootstrap, flickering, [b"second"])
        reading.look()
        assert reading.until_rows(3)[2:] == [(flickering, 0, 0, b"second")]


# --- I1: one place ----------------------------------------------------------------------------------------------------------
def flapping(monkeypatch, name, looks):
    """For this many looks, at one broker or at each, metadata shows one partition of the topic less."""
    find_topics, topic_views, flaps = KafkaCluster.find_topics, KafkaCluster.topic_views, []

    def less(answers):
        if name in answers[0] and len(flaps) < looks:
            flaps.append(name)
            for found in answers:
                found[name] = replace(found[name], partitions={0: found[name].partitions[0]})
        return answers

    monkeypatch.setattr(KafkaCluster, "find_topics", lambda self, names: less([find_topics(self, names)])[0])

    def less_of(views):
        brokers, answers = zip(*views.answers, strict=True)
        return TopicViews(list(zip(brokers, less(list(answers)), strict=True)), views.failures)

    monkeypatch.setattr(KafkaCluster, "topic_views", lambda self, names: less_of(topic_views(self, names)))
    return flaps


def test_flink_39837_metadata_that_flaps_adds_nothing_again(bootstrap, topic, monkeypatch):
    name = created(bootstrap, topic, partitions=2)
    write(bootstrap, name, [b"a", b"b"], partition=1)
    with Reading(KafkaSource(bootstrap, topics=[name])) as reading:
        reading.until_rows(2)
        for looks in (1, 2, 3):
            with monkeypatch.context() as patch:
                flaps = flapping(patch, name, looks)
                reading.look()
                assert len(flaps) == looks
        write(bootstrap, name, [b"c"], partition=1)
        assert reading.until_rows(3)[2:] == [(name, 1, 2, b"c")]


def test_flink_39837_nor_when_it_flaps_for_long(bootstrap, topic, monkeypatch, caplog):
    name = created(bootstrap, topic, partitions=2)
    write(bootstrap, name, [b"a", b"b"], partition=1)
    source = KafkaSource(bootstrap, topics=[name], fail_on_data_loss=False)
    with Reading(source) as reading, Reading(replace(source, fail_on_data_loss=True)) as strict:
        reading.until_rows(2)
        for each in (reading, strict):
            with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
                flaps = flapping(patch, name, 100)
                if each is strict:
                    with pytest.raises(DataLossError, match=f"{name}-1"):
                        each.look()
                else:
                    each.look()
                    assert f"{name}-1" in caplog.text
                assert len(flaps) >= 4, "this many looks before it is believed"
        reading.look()
        write(bootstrap, name, [b"c"], partition=1)
        assert reading.until_rows(3)[2:] == [(name, 1, 2, b"c")]


def test_seatunnel_11677_a_cached_reader_is_woken_by_splits_that_come_back(bootstrap, topic):
    name = created(bootstrap, topic)
    with Reading(KafkaSource(bootstrap, topics=[name]), parallelism=2, assignment=LazyEnumerator) as reading:
        assert [reading.poll(0.0) for _ in range(4)] == [None] * 4
        ledger = reading.run.coordinator.enumerator.ledger
        busy = next(slot for slot in range(2) if ledger.held_by(slot))
        reading.run.lose_reader(busy)
        assert ledger.held_by(1 - busy)
        write(bootstrap, name, [b"woken"])
        assert reading.until_rows(1) == [(name, 0, 0, b"woken")]


# --- I7: nothing is committed before it is durable --------------------------------------------------------------------------
def test_beam_21742_without_a_checkpoint_the_group_does_not_move(bootstrap, ten):
    source = KafkaSource(bootstrap, topics=[ten], stop=Latest(), group=ten, start=Committed())
    with Reading(source) as reading:
        assert len(reading.until_finished()) == 10
    with source.batches() as batches:
        assert sum(batch.num_rows for batch in batches) == 10
    assert committed(bootstrap, ten, (ten, 0)) == [None]


def test_beam_26884_the_last_checkpoint_of_a_run_commits_the_end(bootstrap, ten):
    transactional(bootstrap, ten).transaction(ten, [b"t"])
    wait_for_end(bootstrap, ten, 12)
    source = KafkaSource(bootstrap, topics=[ten], stop=Latest(), group=ten, start=Committed())
    batches = source.batches()
    assert sum(batch.num_rows for batch in batches) == 11
    batches.checkpoint()
    batches.checkpoint_completed()
    assert committed(bootstrap, ten, (ten, 0)) == [12]
    assert list(source.batches()) == []


def test_beam_20836_partitions_added_between_two_runs(bootstrap, ten):
    source = KafkaSource(bootstrap, topics=[ten])
    with Reading(source) as reading:
        reading.until_rows(10)
        stored = reading.store()
    add_partitions(bootstrap, ten, 3)
    write(bootstrap, ten, [b"x"], partition=2)
    with Reading(source, stored) as restored:
        assert rig.by_partition(restored.until_rows(1)) == {(ten, 2): [0]}
        assert rig.end_of(bootstrap, ten, 2) == 1
