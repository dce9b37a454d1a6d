"""KafkaSource against a real broker: where it starts, where it stops, and what it finds between."""

from datetime import UTC, datetime, timedelta

import pytest

from headrace.enumerator.errors import UsageError
from headrace.kafka import At, Committed, Earliest, KafkaSource, Latest, Timestamp
from headrace.testing.servers.kafka import add_partitions, create_topic
from tests.helpers import kafka_rig as rig
from tests.helpers.kafka_rig import TEN, Reading, by_partition, commit, end_of, read_all, transactional, write, write_records
from tests.helpers.kafka_tools import created

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


@pytest.fixture
def timed(bootstrap, topic):
    """Ten records in partition 0, at 1000 s, 1001 s, ...; partition 1 is empty."""
    name = created(bootstrap, topic, partitions=2)
    write_records(bootstrap, name, [{"value": value, "timestamp": 1_000_000 + 1000 * n} for n, value in enumerate(TEN)])
    return name


# --- start ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("start", "first"), [
    (Earliest(), 0), (At(0), 0), (At(4), 4), (At(9), 9), (At(10), 10), (Timestamp(0), 0), (Timestamp(1_003_000), 3),
    (Timestamp(1_003_001), 4), (Timestamp(1_009_001), 10), (Latest(), 10),
], ids=str)  # fmt: skip
def test_a_start_position_is_where_reading_starts(bootstrap, timed, start, first):
    source = KafkaSource(bootstrap, partitions={timed: [0]}, start=start, stop=Latest())
    assert read_all(source) == [(timed, 0, n, TEN[n]) for n in range(first, 10)]


def test_latest_reads_what_is_written_after_the_first_discovery(bootstrap, timed):
    with Reading(KafkaSource(bootstrap, topics=[timed], start=Latest())) as reading:
        write(bootstrap, timed, [b"new"])
        write(bootstrap, timed, [b"new too"], partition=1)
        assert sorted(reading.until_rows(2)) == [(timed, 0, 10, b"new"), (timed, 1, 0, b"new too")]


def test_a_timestamp_without_match_can_be_refused(bootstrap, timed):
    source = KafkaSource(bootstrap, topics=[timed], start=Timestamp(1_005_000), no_match="error", stop=Latest())
    with pytest.raises(UsageError, match=rf"{timed}-1 Timestamp"):
        read_all(source)


def test_committed_offsets_with_a_fallback_where_there_are_none(bootstrap, timed, topic):
    group = topic()
    write(bootstrap, timed, [b"x", b"y"], partition=1)
    commit(bootstrap, group, {(timed, 0): 7})
    from_earliest = KafkaSource(bootstrap, topics=[timed], start=Committed(group), stop=Latest())
    assert by_partition(read_all(from_earliest)) == {(timed, 0): [7, 8, 9], (timed, 1): [0, 1]}
    from_latest = KafkaSource(bootstrap, topics=[timed], start=Committed(group, Latest()), stop=Latest())
    assert by_partition(read_all(from_latest)) == {(timed, 0): [7, 8, 9]}
    own_group = KafkaSource(bootstrap, topics=[timed], start=Committed(fallback=At(1)), stop=Latest(), group=group)
    assert by_partition(read_all(own_group)) == {(timed, 0): [7, 8, 9], (timed, 1): [1]}


def test_positions_by_partition(bootstrap, timed):
    write(bootstrap, timed, [b"x", b"y"], partition=1)
    start = {(timed, 0): Timestamp(1_008_000), (timed, 1): At(1)}
    found = read_all(KafkaSource(bootstrap, topics=[timed], start=start, stop=Latest()))
    assert by_partition(found) == {(timed, 0): [8, 9], (timed, 1): [1]}


@pytest.mark.parametrize("what", ["start", "stop"])
def test_positions_by_partition_must_name_every_partition_and_no_other(bootstrap, timed, what):
    positions = {(timed, 0): At(1), (timed, 7): At(1)}
    source = KafkaSource(bootstrap, topics=[timed], **{"stop": Latest(), what: positions})
    with pytest.raises(UsageError, match=rf"{what} .*missing \[{timed}-1\], not there \[{timed}-7\]"):
        read_all(source)


def test_what_does_not_exist_is_refused_by_name(bootstrap, timed, topic):
    nowhere = topic()
    with pytest.raises(UsageError, match=nowhere):
        read_all(KafkaSource(bootstrap, topics=[timed, nowhere], stop=Latest()))
    with pytest.raises(UsageError, match=f"{timed}-5"):
        read_all(KafkaSource(bootstrap, partitions={timed: [0, 5]}, stop=Latest()))


# --- stop -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("stop", "end"), [
    (Latest(), 10), (At(0), 0), (At(6), 6), (At(10), 10), (Timestamp(1_002_500), 3), (Timestamp(0), 0),
    (Timestamp(2_000_000), 10),
], ids=str)  # fmt: skip
def test_a_stop_is_where_reading_ends(bootstrap, timed, stop, end):
    source = KafkaSource(bootstrap, partitions={timed: [0]}, stop=stop)
    assert read_all(source) == [(timed, 0, n, TEN[n]) for n in range(end)]


def test_what_is_written_after_the_first_discovery_lies_behind_the_stop(bootstrap, timed):
    with Reading(KafkaSource(bootstrap, topics=[timed], stop=Latest())) as reading:
        write(bootstrap, timed, [b"late"])
        write(bootstrap, timed, [b"late"], partition=1)
        assert by_partition(reading.until_finished()) == {(timed, 0): list(range(10))}


def test_a_stop_by_partition_and_one_by_a_groups_offsets(bootstrap, timed, topic):
    stop = {(timed, 0): At(2), (timed, 1): At(0)}
    assert by_partition(read_all(KafkaSource(bootstrap, topics=[timed], stop=stop))) == {(timed, 0): [0, 1]}
    group = topic()
    commit(bootstrap, group, {(timed, 0): 3, (timed, 1): 0})
    assert by_partition(read_all(KafkaSource(bootstrap, topics=[timed], stop=Committed(group)))) == {(timed, 0): [0, 1, 2]}


def test_a_stop_before_the_start_is_nothing_to_read(bootstrap, timed):
    source = KafkaSource(bootstrap, topics=[timed], start=Latest(), stop=Timestamp(1_002_000))
    assert read_all(source) == []
    splits = source.create_discovery().initial().added
    assert source.end_offsets(splits) == {split.split_id: split.next_offset for split in splits}


def test_empty_partitions_end_at_once(bootstrap, topic):
    name = created(bootstrap, topic, partitions=5)
    write(bootstrap, name, [b"only"], partition=3)
    assert read_all(KafkaSource(bootstrap, topics=[name], stop=Latest()), parallelism=3) == [(name, 3, 0, b"only")]


@pytest.mark.parametrize("is_committed", [True, False], ids=["commit marker", "abort marker"])
def test_a_control_record_at_the_end(bootstrap, topic, is_committed):
    name = created(bootstrap, topic)
    transactional(bootstrap, name).transaction(name, [b"a", b"b"], commit=is_committed)
    rig.wait_for_end(bootstrap, name, 3)
    expected = [(name, 0, 0, b"a"), (name, 0, 1, b"b")]
    with Reading(KafkaSource(bootstrap, topics=[name], stop=Latest())) as reading:
        assert reading.until_finished() == (expected if is_committed else [])
        assert reading.run.checkpoint()
        reading.run.checkpoint_completed()
        assert reading.positions() == {(name, 0): 3}
    assert read_all(KafkaSource(bootstrap, topics=[name], stop=Latest(), isolation_level="read_uncommitted")) == expected


# --- which partitions ---------------------------------------------------------------------------------------------------
def test_a_pattern_is_matched_against_the_whole_name(bootstrap, topic):
    first, second, other = (f"{topic()}.{end}" for end in ("in", "in", "out"))
    for name in (first, second, other):
        create_topic(bootstrap, name)
        write(bootstrap, name, [b"x"])
    stem = first.split("-test")[0].rsplit("-", 2)[0]
    source = KafkaSource(bootstrap, pattern=rf"\Q{stem}\E.*\.in", stop=Latest())
    assert by_partition(read_all(source)) == {(first, 0): [0], (second, 0): [0]}


def test_a_pattern_that_matches_nothing_yet(bootstrap, topic):
    assert read_all(KafkaSource(bootstrap, pattern=topic(), stop=Latest())) == []


def test_explicit_partitions_stay_those(bootstrap, timed):
    write(bootstrap, timed, [b"x"], partition=1)
    with Reading(KafkaSource(bootstrap, partitions={timed: [1]})) as reading:
        add_partitions(bootstrap, timed, 3)
        write(bootstrap, timed, [b"y"], partition=2)
        reading.look()
        write(bootstrap, timed, [b"z"], partition=1)
        assert reading.until_rows(2) == [(timed, 1, 0, b"x"), (timed, 1, 1, b"z")]


def test_an_internal_topic_is_read_by_name_only(bootstrap, timed, topic):
    commit(bootstrap, topic(), {(timed, 0): 1})
    assert read_all(KafkaSource(bootstrap, topics=["__consumer_offsets"], stop=Latest()))
    assert read_all(KafkaSource(bootstrap, pattern="__consumer_.*", stop=Latest())) == []


# --- discovery ----------------------------------------------------------------------------------------------------------
def test_a_partition_added_while_reading_is_read_from_its_first_record(bootstrap, timed):
    with Reading(KafkaSource(bootstrap, topics=[timed], start=Latest())) as reading:
        add_partitions(bootstrap, timed, 3)
        write(bootstrap, timed, [b"before discovery"], partition=2)
        reading.look()
        write(bootstrap, timed, [b"after"], partition=2)
        assert reading.until_rows(2) == [(timed, 2, 0, b"before discovery"), (timed, 2, 1, b"after")]


def test_new_partitions_have_a_position_of_their_own(bootstrap, timed):
    source = KafkaSource(bootstrap, topics=[timed], start=Earliest(), start_of_new_partitions=Latest())
    with Reading(source) as reading:
        reading.until_rows(10)
        add_partitions(bootstrap, timed, 3)
        write(bootstrap, timed, [b"skipped"], partition=2)
        reading.look()
        write(bootstrap, timed, [b"read"], partition=2)
        assert reading.until_rows(11)[10:] == [(timed, 2, 1, b"read")]


def test_a_partition_added_between_checkpoint_and_restore(bootstrap, timed):
    source = KafkaSource(bootstrap, topics=[timed], start=Latest())
    with Reading(source) as reading:
        write(bootstrap, timed, [b"first"])
        reading.until_rows(1)
        stored = reading.store()
    add_partitions(bootstrap, timed, 3)
    write(bootstrap, timed, [b"second"])
    write(bootstrap, timed, [b"third"], partition=2)
    with Reading(source, stored, parallelism=2) as restored:
        assert sorted(restored.until_rows(2)) == [(timed, 0, 11, b"second"), (timed, 2, 0, b"third")]
        assert restored.positions() == {(timed, 0): 11, (timed, 1): 0, (timed, 2): 0}


def test_a_partition_found_right_after_a_checkpoint_is_found_again(bootstrap, timed):
    """It is in no checkpoint, was read, and the run dies: the restored run must read it from its first record."""
    source = KafkaSource(bootstrap, topics=[timed], start=Latest())
    with Reading(source) as reading:
        stored = reading.store()
        add_partitions(bootstrap, timed, 3)
        write(bootstrap, timed, [b"a", b"b"], partition=2)
        reading.look()
        reading.until_rows(2)
    with Reading(source, stored) as restored:
        assert restored.until_rows(2) == [(timed, 2, 0, b"a"), (timed, 2, 1, b"b")]


def test_a_topic_created_later_that_matches_the_pattern(bootstrap, topic):
    stem = topic()
    first, second = f"{stem}.a", f"{stem}.b"
    create_topic(bootstrap, first)
    with Reading(KafkaSource(bootstrap, pattern=f"{stem}.*", start=Latest())) as reading:
        create_topic(bootstrap, second, partitions=2)
        write(bootstrap, second, [b"x"], partition=1)
        reading.look()
        reading.until_rows(1)
        write(bootstrap, second, [b"y"])
        assert reading.until_rows(2) == [(second, 1, 0, b"x"), (second, 0, 0, b"y")]


def test_without_an_interval_discovery_happens_at_restore_only(bootstrap, timed):
    source = KafkaSource(bootstrap, topics=[timed], start=Latest(), discovery_interval_s=None)
    with Reading(source) as reading:
        add_partitions(bootstrap, timed, 3)
        write(bootstrap, timed, [b"x"], partition=2)
        reading.now_s = 1e9
        write(bootstrap, timed, [b"y"])
        assert reading.until_rows(1) == [(timed, 0, 10, b"y")]
        stored = reading.store()
    with Reading(source, stored) as restored:
        assert restored.until_rows(1) == [(timed, 2, 0, b"x")]


# --- transactions -------------------------------------------------------------------------------------------------------
def write_interleaved(bootstrap, name):
    """Committed, aborted, interleaved and plain; then one that stays open, and something plain behind it."""
    first, second, third = (transactional(bootstrap, f"{name}.{n}") for n in range(3))
    first.transaction(name, [b"c0", b"c1"])
    first.transaction(name, [b"aborted 0", b"aborted 1"], commit=False)
    first.producer.begin_transaction()
    second.producer.begin_transaction()
    first.write(name, [{"value": b"x0"}])
    second.write(name, [{"value": b"aborted y0"}])
    first.write(name, [{"value": b"x1"}])
    second.end(commit=False)
    write(bootstrap, name, [b"p0"])
    first.write(name, [{"value": b"x2"}])
    first.end(commit=True)
    rig.wait_for_end(bootstrap, name, end_of(bootstrap, name, isolation="read_uncommitted"))
    third.producer.begin_transaction()
    third.write(name, [{"value": b"open"}])
    write(bootstrap, name, [b"p1"])
    return third


def test_transactions_committed_aborted_interleaved_and_open(bootstrap, topic):
    name = created(bootstrap, topic)
    open_one = write_interleaved(bootstrap, name)
    uncommitted = KafkaSource(bootstrap, topics=[name], stop=Latest(), isolation_level="read_uncommitted")
    with Reading(uncommitted) as everything:
        everything.until_finished()
    order = b"c0|c1|aborted 0|aborted 1|x0|aborted y0|x1|p0|x2|open|p1".split(b"|")
    assert everything.values == order
    stable = [value for value in order[:-2] if not value.startswith(b"aborted")]
    with Reading(KafkaSource(bootstrap, topics=[name], stop=Latest())) as committed_ones:
        committed_ones.until_finished()
    assert committed_ones.values == stable
    with Reading(KafkaSource(bootstrap, topics=[name])) as reading:
        reading.until_rows(len(stable))
        stored = reading.store()
        # nothing lies between the markers read and the open transaction: the position is the last stable offset
        reading.until(lambda: reading.store() and reading.positions()[name, 0] == end_of(bootstrap, name))
        stored_at_end = reading.store()
    open_one.end(commit=True)
    for checkpoint in (stored, stored_at_end):
        with Reading(KafkaSource(bootstrap, topics=[name]), checkpoint) as restored:
            restored.until_rows(2)
            assert restored.values == [b"open", b"p1"]


def test_an_aborted_open_transaction_lets_reading_continue(bootstrap, topic):
    name = created(bootstrap, topic)
    writer = transactional(bootstrap, name)
    writer.producer.begin_transaction()
    writer.write(name, [{"value": b"never"}])
    write(bootstrap, name, [b"behind it"])
    with Reading(KafkaSource(bootstrap, topics=[name])) as reading:
        assert reading.poll(0.0) is None
        writer.end(commit=False)
        assert reading.until_rows(1) == [(name, 0, 1, b"behind it")]


# --- what records hold ----------------------------------------------------------------------------------------------------
def test_every_compression(bootstrap, topic):
    name = created(bootstrap, topic)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    values = [b"%s %d " % (codec.encode(), n) * 50 for codec in codecs for n in range(20)]
    for at, codec in enumerate(codecs):
        write(bootstrap, name, values[20 * at : 20 * at + 20], **{"compression.type": codec})
    assert read_all(KafkaSource(bootstrap, topics=[name], stop=Latest())) == [(name, 0, n, v) for n, v in enumerate(values)]


def test_keys_values_and_headers_that_are_null_empty_or_repeated(bootstrap, topic):
    name = created(bootstrap, topic)
    headers = [("same", b"1"), ("same", b"2"), ("null", None), ("empty", b""), ("żółć", b"\xff")]
    records = [{"key": b"k", "value": b"v", "headers": headers}, {"key": None, "value": None}, {"key": b"", "value": b""}]
    write_records(bootstrap, name, records)
    columns = ("headers", "key", "value", "offset")
    source = KafkaSource(bootstrap, topics=[name], stop=Latest(), columns=columns)
    found = [row for batch in source.batches() for row in batch.to_pylist()]
    assert [(row["key"], row["value"], row["offset"]) for row in found] == [(b"k", b"v", 0), (None, None, 1), (b"", b"", 2)]
    assert [(item["key"], item["value"]) for item in found[0]["headers"]] == headers
    assert found[1]["headers"] is None
    assert set(found[0]) == set(columns)


@pytest.mark.parametrize(("kind", "number"), [("CreateTime", 0), ("LogAppendTime", 1)])
def test_timestamps_of_both_types(bootstrap, topic, kind, number):
    name = created(bootstrap, topic, configs={"message.timestamp.type": kind})
    started_at = datetime.now(UTC) - timedelta(minutes=5)
    write_records(bootstrap, name, [{"value": b"v", "timestamp": 1_234_567}])
    (batch,) = KafkaSource(bootstrap, topics=[name], stop=Latest()).batches()
    (row,) = batch.to_pylist()
    assert row["timestampType"] == number
    if kind == "CreateTime":
        assert row["timestamp"] == datetime.fromtimestamp(1234.567, UTC)
    else:
        assert started_at < row["timestamp"] < datetime.now(UTC) + timedelta(minutes=5)


def test_the_schema_is_what_the_batches_have(bootstrap, timed):
    source = KafkaSource(bootstrap, topics=[timed], stop=Latest())
    some = source.with_columns(["offset", "value"])
    for one in (source, some):
        batches = list(one.batches())
        assert batches
        assert all(batch.schema == one.schema for batch in batches)
    assert some.schema.names == ["value", "offset"]
