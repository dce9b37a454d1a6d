"""Records that Arrow cannot represent, and batches larger than is usual: what may be done about them on each engine."""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial

import pyarrow as pa
import pytest
from crc32c import crc32c

from headrace.beam.kafka_records import as_kafka_records
from headrace.connectors.base.counters import COUNTERS, Counted
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.format.encode import RecordEncoder
from headrace.connectors.kafka.format.record_batch import CRC_AT, CRC_FROM, HEADER, stored_batches
from headrace.connectors.kafka.read import reader
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.connectors.kafka.write.produce import OutBatch, transactional_sender
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.connectors.kafka.write.transactions import TransactionResult, Transactions
from headrace.enumerator.errors import CorruptDataError, DataLossError, RetriableError, UsageError
from headrace.kafka import KafkaSource, Latest
from headrace.runners.beam.event_time import ColumnTime
from headrace.spark.kafka_read import Mode, kafka_read
from headrace.testing.fake_kafka import FakeKafka, NewRecord, Refuse, Rewrite
from tests.helpers.kafka_rig import flip_a_bit

NANOSECONDS = 1_700_000_000_000_000_000  # of a producer that counts in them


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        cluster.create_topic("t")
        cluster.append("t", b"good")
        cluster.append("t", *(NewRecord(b"bad-%d" % number, timestamp_ms=NANOSECONDS) for number in range(3)))
        cluster.append("t", b"last")
        yield cluster


def write(sink: AtLeastOnceKafkaSink, value: bytes) -> None:
    task = sink.begin(Attempt(job="j", epoch=0, task=0, number=0))
    task.write(pa.RecordBatch.from_pydict({"value": [value]}))
    task.prepare()


def read(source: KafkaSource):
    with source.batches() as batches:
        return list(batches)


def source_of(kafka, topic="t", **given):
    return KafkaSource(kafka.bootstrap, topics=[topic], stop=Latest(), **given)


def read_column(name, kafka, topic="t", **given):
    return [item for batch in read(source_of(kafka, topic, columns=[name], **given)) for item in batch[name].to_pylist()]


read_offsets, read_values = partial(read_column, "offset"), partial(read_column, "value")


def parts_of(response):
    """The partitions of an answer that bring records."""
    return [part for topic in response.responses for part in topic.partitions if part.records]


def batches_of(part):
    return [bytearray(each.data) for each in stored_batches(memoryview(bytes(part.records)))]


def test_a_timestamp_in_nanoseconds_is_an_error_that_names_its_place_by_default(kafka):
    with pytest.raises(CorruptDataError, match=r"topic 't', partition 0, .*offset 1: .*timestamp"):
        read(source_of(kafka))


def test_a_timestamp_in_nanoseconds_may_be_null_and_its_record_is_kept_and_counted(kafka, caplog):
    with caplog.at_level(logging.WARNING):
        batches = read(source_of(kafka, bad_timestamps="null"))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"good", b"bad-0", b"bad-1", b"bad-2", b"last"]
    assert [row["timestamp"] is None for row in rows] == [False, True, True, True, False]
    assert "3 records so far have a timestamp that does not fit" in caplog.text


def test_in_spark_it_is_an_option(kafka):
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "t"}
    assert kafka_read(options, Mode.BATCH).source.bad_timestamps == "error"
    made = kafka_read(options | {"badTimestamps": "NULL", "maxUncompressedBatchBytes": "1000000000"}, Mode.BATCH).source
    assert (made.bad_timestamps, made.max_uncompressed_batch_bytes) == ("null", 1_000_000_000)
    assert sum(batch.column("timestamp").null_count for batch in read(made)) == 3
    with pytest.raises(UsageError, match="error or null"):
        kafka_read(options | {"badTimestamps": "skip"}, Mode.BATCH)


def test_in_beam_it_is_minus_one_and_at_the_beginning_of_time(kafka):
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    batches = read(source_of(kafka, bad_timestamps="null", columns=columns))
    records = [record for batch in batches for record in as_kafka_records(batch)]
    assert [record.timestamp == -1 for record in records] == [False, True, True, True, False]
    times = [micros for batch in batches for micros in ColumnTime("timestamp").micros(batch).to_pylist()]
    assert len(set(times[1:4])) == 1
    assert times[1] < 0


def test_the_limit_of_what_a_batch_may_unpack_to_can_be_raised(kafka):
    kafka.create_topic("big")
    write(AtLeastOnceKafkaSink(kafka.bootstrap, topic="big", properties={"compression.type": "gzip"}), b"x" * 3_000_000)
    with pytest.raises(CorruptDataError, match=r"topic 'big'.*at most 1048576 bytes .the limit is max_uncompressed"):
        read_values(kafka, "big", max_uncompressed_batch_bytes=1 << 20)
    assert [len(each) for each in read_values(kafka, "big", max_uncompressed_batch_bytes=1 << 22)] == [3_000_000]


# --- batches of records that cannot be decoded ------------------------------------------------------------------------
@pytest.fixture
def batches():
    """Offsets 0 to 8 in three batches of three."""
    with FakeKafka() as cluster:
        cluster.create_topic("t")
        for first in (0, 3, 6):
            cluster.append("t", *(b"%d" % number for number in range(first, first + 3)))
        yield cluster


def spoil(kafka, number, change, *, seal=True, times=None):
    """In every answer, or this many, this batch is as `change` makes it, by default with a checksum that is right again."""

    def rewrite(response):
        for part in parts_of(response):
            found = batches_of(part)
            for hit in (each for each in found if int.from_bytes(each[:8], "big") == 3 * number):
                change(hit)
                if seal:
                    hit[CRC_AT:CRC_FROM] = crc32c(memoryview(hit)[CRC_FROM:]).to_bytes(4, "big")
            part.records = b"".join(found)

    return kafka.fault("Fetch", Rewrite(rewrite), times=times)


def flip(batch):
    batch[-1] ^= 1


def unknown_codec(batch):
    batch[22] |= 7


def bad_length_of_the_second_record(batch):
    batch[HEADER.size + 1 + (batch[HEADER.size] >> 1)] = 0x7F


def setting(at, value):
    def change(batch):
        batch[at : at + len(value)] = value

    return change


DAMAGE = {
    "flip": flip, "no_magic": setting(16, b"\1"), "too_large": setting(9, b"\1"), "of_no_size": setting(8, bytes(4)),
    "too_long": setting(26, b"d"),  # the first of the size, and the last offset delta
}  # fmt: skip


SPOILT = {
    "checksum": (flip, False, "CRC32C is", 3),
    "codec": (unknown_codec, True, "compression codec 7 is not known", 3),
    "lengths": (bad_length_of_the_second_record, True, "the record's length", 2),
}


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("kind", SPOILT)
def test_a_batch_that_cannot_be_decoded_is_refused_with_its_offsets_or_skipped_and_counted(
    batches, caplog, kind, number, isolation
):
    """findings: Source 12. There was no way on but to start behind it."""
    change, sealed, why, lost = SPOILT[kind]
    spoilt = spoil(batches, number, change, seal=sealed)
    reading = {"columns": ["value", "offset"], "isolation_level": isolation}
    first = 3 * number
    refused = rf"topic 't', partition 0, .*offset {first}: {why}.*has offsets {first} to {first + 2}\. .*badBatches=skip"
    with pytest.raises(CorruptDataError, match=refused):
        read(source_of(batches, **reading))
    COUNTERS.take()
    with caplog.at_level(logging.WARNING):
        skipping = read(source_of(batches, **reading, bad_batches="skip"))
        rows = [offset for batch in skipping for offset in batch.column("offset").to_pylist()]
    missing = range(first + 3 - lost, first + 3)
    assert rows == [offset for offset in range(9) if offset not in missing]
    assert COUNTERS.take()[Counted.RECORDS_SKIPPED.value] == lost
    assert f"Skipped: {lost} offsets from {missing[0]} on; batches skipped so far: 1" in caplog.text
    assert spoilt.fired > 1


def test_so_is_one_that_unpacks_to_more_than_is_allowed(kafka):
    kafka.create_topic("big")
    sink = AtLeastOnceKafkaSink(kafka.bootstrap, topic="big", properties={"compression.type": "gzip"})
    for value in (b"a", b"x" * 3_000_000, b"b"):
        write(sink, value)
    assert read_values(kafka, "big", max_uncompressed_batch_bytes=1 << 20, bad_batches="skip") == [b"a", b"b"]


def test_a_checkpoint_between_the_good_records_of_a_batch_and_the_bad_ones_continues_behind_them(batches):
    spoil(batches, 1, bad_length_of_the_second_record)
    source = source_of(batches, columns=["offset"], bad_batches="skip")
    seen, states = [], []
    with source.batches() as reading:
        for batch in reading:
            seen.append(batch.column("offset").to_pylist())
            states.append(reading.checkpoint())
            reading.checkpoint_completed()
    assert [offset for part in seen for offset in part] == [0, 1, 2, 3, 6, 7, 8]
    for number, state in enumerate(states):
        with source.batches(state) as reading:
            rest = [offset for batch in reading for offset in batch.column("offset").to_pylist()]
        assert rest == [offset for part in seen[number + 1 :] for offset in part]


@pytest.mark.parametrize("change", ["no_magic", "too_long"])
def test_what_cannot_be_reported_apart_from_the_rest_is_never_skipped(batches, change):
    spoil(batches, 2, DAMAGE[change], seal=False)
    with pytest.raises(CorruptDataError, match="cannot be skipped"):
        read(source_of(batches, bad_batches="skip"))


@pytest.mark.parametrize("bad_batches", ["error", "skip"])
@pytest.mark.parametrize("change", DAMAGE)
def test_an_answer_that_is_damaged_once_is_no_damaged_log(batches, change, bad_batches):
    """One bit on the way: what was there was skipped for good, or ended the job."""
    spoilt = spoil(batches, 1, DAMAGE[change], seal=False, times=1)
    assert (read_offsets(batches, bad_batches=bad_batches), spoilt.fired) == (list(range(9)), 1)


def test_a_leader_that_cannot_read_its_log_once_is_asked_again(batches):
    """CORRUPT_MESSAGE ended the read at the first answer, though Java's client has it as an error that passes."""
    refused = batches.fault("Fetch", Refuse(ErrorCode.CORRUPT_MESSAGE))
    assert (read_offsets(batches), refused.fired) == (list(range(9)), 1)


@pytest.mark.parametrize("bad_batches", ["error", "skip"])
def test_one_that_never_can_is_reported_by_its_answer(batches, bad_batches):
    batches.fault("Fetch", Refuse(ErrorCode.CORRUPT_MESSAGE), times=None)
    with pytest.raises(CorruptDataError, match="CORRUPT_MESSAGE"):
        read(source_of(batches, bad_batches=bad_batches))


def test_a_damaged_end_of_the_last_batch_of_a_fetch_takes_nothing_of_what_follows(kafka):
    """Its last offset was believed: 50 batches behind it were skipped with it."""
    kafka.create_topic("small")
    for number in range(60):
        kafka.append("small", b"%03d" % number * 50)

    def end_at_50(response):
        for part in parts_of(response):
            data = bytearray(part.records)
            if data[:8] == bytes(8):
                data[26] = 50
            part.records = bytes(data)

    spoilt = kafka.fault("Fetch", Rewrite(end_at_50), times=None)
    small = {"max.partition.fetch.bytes": "100", "fetch.max.bytes": "100"}
    COUNTERS.take()
    assert read_offsets(kafka, "small", bad_batches="skip", properties=small) == list(range(1, 60))
    assert COUNTERS.take()[Counted.RECORDS_SKIPPED.value] == 1
    assert spoilt.fired > 1


def before_second_looks(monkeypatch, call):
    """Have this called before each of them, with their number; returns what they brought."""
    looks, fetch = [], reader.fetch_there

    def looked(*arguments, **limits):
        looks.append(None)
        call(len(looks))
        looks[-1] = fetch(*arguments, **limits)
        return looks[-1]

    monkeypatch.setattr(reader, "fetch_there", looked)
    return looks


def test_where_the_leader_is_away_for_the_second_look_the_batch_is_fetched_again(batches, monkeypatch):
    def away(number):
        if number == 1:
            raise RetriableError("away")

    spoilt = spoil(batches, 1, flip, seal=False, times=2)
    looks = before_second_looks(monkeypatch, away)
    assert (read_offsets(batches), spoilt.fired, len(looks)) == (list(range(9)), 2, 2)


def test_a_log_that_was_truncated_between_a_damaged_answer_and_the_second_look_is_data_loss(batches, monkeypatch):
    """The second look asked without the last epoch, and read on in another log."""

    def unclean_election(number):
        if number == 1:
            batches.lose_records("t", from_offset=2)
            for _ in range(4):
                batches.append("t", b"new", b"new", b"new")

    spoilt = spoil(batches, 1, flip, seal=False, times=1)
    looks = before_second_looks(monkeypatch, unclean_election)
    with pytest.raises(DataLossError, match="was truncated; offsets 2 to 2"):
        read_offsets(batches)
    assert spoilt.fired == 1
    assert looks


def test_a_second_look_brings_little_more_than_the_batch(kafka, monkeypatch):
    """It asked for 8 MiB, for each damaged batch."""
    kafka.create_topic("large")
    for _ in range(30):
        kafka.append("large", b"x" * 20_000)
    spoilt = kafka.fault("Fetch", Rewrite(flip_a_bit), times=1)
    looks = before_second_looks(monkeypatch, lambda _: None)
    assert (read_offsets(kafka, "large"), spoilt.fired) == (list(range(30)), 1)
    assert [len(look.records) <= 64 * 1024 for look in looks] == [True]


@pytest.mark.parametrize("spoilt", ["the marker", "what is behind it"])
def test_what_a_producer_has_committed_after_an_abort_is_read_though_a_batch_between_is_skipped(kafka, spoilt):
    """It must not be taken for a part of the transaction that was aborted."""
    kafka.create_topic("txn")
    sink = KafkaSink(kafka.bootstrap, topic="txn", commit_topic="commits")
    transactions = Transactions(sink.cluster())
    producer = FakeTransaction(transactions, sink)
    producer.write(b"aborted")
    producer.end(TransactionResult.ABORT)
    kafka.append("txn", b"another's")
    producer.write(b"committed")
    producer.end(TransactionResult.COMMIT)
    kafka.append("txn", b"last")

    markers = []

    def unreadable(response):
        for part in parts_of(response):
            found = batches_of(part)
            markers[:] = markers or [int.from_bytes(each[:8], "big") for each in found if each[22] & 0x20]
            wanted = markers[0] if spoilt == "the marker" else markers[0] + 1
            for each in found:
                if int.from_bytes(each[:8], "big") == wanted:
                    flip(each)
            part.records = b"".join(found)

    answers = kafka.fault("Fetch", Rewrite(unreadable), times=None)
    kept = [b"another's"] if spoilt == "the marker" else []
    assert read_values(kafka, "txn", bad_batches="skip") == [*kept, b"committed", b"last"]
    assert answers.fired


class FakeTransaction:
    """One producer's transactions, batch by batch."""

    def __init__(self, transactions, sink):
        self._transactions, self._cluster = transactions, sink.cluster()
        self._protocol, self._producer = transactions.protocol(), transactions.init("writer", 60_000)

    def write(self, value):
        producer = self._producer
        encoder = RecordEncoder(1, producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=True)
        encoded = [*encoder.append(pa.RecordBatch.from_pydict({"value": [value]}), 1), *encoder.flush()]
        with closing(transactional_sender(self._cluster, self._transactions, producer, self._protocol)) as sender:
            sender.send("txn", [OutBatch(batch.partition, batch.data, batch.records) for batch in encoded])
            sender.flush()

    def end(self, result):
        _, self._producer = self._transactions.end(self._producer, self._protocol, result)
