"""Dead letters: what a bad record's original and its headers become on each runner, exactly once the process that is killed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.dead_letters import DEAD_LETTER, LETTER_TYPE, addressed, letter_of, parted, replayed_headers
from headrace.connectors.base.sink import Attempt
from headrace.connectors.formats.registry import client
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.enumerator.errors import StateError, UsageError
from headrace.formats import JsonFormat, RegisteredAvroFormat, SchemaRegistry, StringFormat
from headrace.kafka import At, DeadLetters, KafkaSource, Latest
from headrace.run import Pipeline
from headrace.testing import DyingCommitter, FakeKafka, Killed
from headrace.testing.fake_kafka import NewRecord
from tests.helpers.schema_registry import FakeRegistry

VALUES = JsonFormat(pa.struct([("n", pa.int64())]))
PARTITIONS = 2
KEPT = ["key", "value", "headers", DEAD_LETTER]


@pytest.fixture
def kafka():
    with FakeKafka() as kafka:
        for topic in ("in", "out", "letters"):
            kafka.create_topic(topic, partitions=PARTITIONS)
        yield kafka


def kept(kafka, columns=KEPT, **given):
    asked = {"topics": ["in"], "stop": Latest(), "value": VALUES, "on_bad_record": "keep", "columns": columns}
    return KafkaSource(kafka.bootstrap, **(asked | given))


def letters_of(source):
    found = [row for batch in source.batches() for row in batch.column(DEAD_LETTER).to_pylist()]
    return [row and (row["key"], row["value"], [(each["key"], each["value"]) for each in row["headers"]]) for row in found]


def settings(headers):
    return {name: value.decode() for name, value in headers}


class TestTheColumn:
    def test_holds_the_original_and_says_where_it_was_and_what_is_wrong_by_kafka_connects_names(self, kafka):
        own = [("trace", b"\xff"), ("trace", None)]
        kafka.append("in", b'{"n": 1}', NewRecord(b"{", key=b"\xfe", headers=own, timestamp_ms=1234))
        good, (key, value, headers) = letters_of(kept(kafka))
        assert (good, key, value, headers[:2]) == (None, b"\xfe", b"{", own)
        reason = settings(headers[2:]).pop("__connect.errors.exception.message")
        assert reason.startswith("value: is not JSON")
        assert settings(headers[2:]) == {
            "__connect.errors.topic": "in", "__connect.errors.partition": "0", "__connect.errors.offset": "1",
            "__connect.errors.connector.name": "headrace", "__connect.errors.stage": "VALUE_CONVERTER",
            "__connect.errors.exception.class.name": "headrace.errors.CorruptDataError",
            "__connect.errors.exception.message": reason, "headrace.errors.timestamp": "1234",
        }  # fmt: skip

    @pytest.mark.parametrize("columns", [[DEAD_LETTER, "offset"], ["offset", "timestamp", DEAD_LETTER], ["value", DEAD_LETTER]])
    def test_is_whole_whatever_other_columns_are_asked_for(self, kafka, columns):
        kafka.append("in", NewRecord(b"{", key=b"k", headers=[("h", b"v")]))
        source = kept(kafka, columns)
        assert set(source.schema.names) == set(columns)
        ((key, value, headers),) = letters_of(source)
        assert (key, value, headers[0]) == (b"k", b"{", ("h", b"v"))
        assert settings(headers[1:])["headrace.errors.timestamp"].isdigit()

    def test_a_key_that_is_bad_has_its_own_stage_and_both_reasons_are_reported(self, kafka):
        kafka.append("in", NewRecord(b"]", key=b"\xff"), NewRecord(b'{"n": 1}', key=b"\xff"))
        first, second = letters_of(kept(kafka, key=StringFormat()))
        for _, _, headers in (first, second):
            assert settings(headers)["__connect.errors.stage"] == "KEY_CONVERTER"
        assert "; value: " in settings(first[2])["__connect.errors.exception.message"]
        assert (second[0], second[1]) == (b"\xff", b'{"n": 1}')

    def test_names_the_schema_that_the_value_names_whether_or_not_the_registry_knows_it(self, kafka):
        client._known.clear()
        with FakeRegistry() as registry:
            number = registry.register("in-value", {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
            guid = registry.guid(number)
            header = ("__value_schema_id", b"\1" + guid.bytes)
            kafka.append("in", b"\0\0\0\0\1", b"\0\0\0\0\7\2", NewRecord(b"", headers=[header]), b"nothing")
            value = RegisteredAvroFormat.of_subject(SchemaRegistry(registry.url), "in-value")
            ids = [settings(headers).get("headrace.errors.schema.id") for _, _, headers in letters_of(kept(kafka, value=value))
                   for headers in [[each for each in headers if each[0] != "__value_schema_id"]]]  # fmt: skip
        assert ids == ["1", "7", str(guid), None]

    def test_a_timestamp_that_python_has_no_date_for_is_reported(self, kafka):
        kafka.append("in", NewRecord(b"{", timestamp_ms=9_000_000_000_000_000))
        ((_, _, headers),) = letters_of(kept(kafka, bad_timestamps="null"))
        assert settings(headers)["headrace.errors.timestamp"] == "9000000000000000"
        kafka.append("in", NewRecord(b"{", timestamp_ms=1_700_000_000_000_000_000))
        assert "headrace.errors.timestamp" not in settings(letters_of(kept(kafka, bad_timestamps="null"))[1][2])


class TestLetters:
    def test_a_letter_is_read_as_it_was_written_and_replayed_as_the_original_with_a_counter(self, kafka):
        own = [("h", b"v"), ("headrace.replays", b"2")]
        kafka.append("in", NewRecord(b"{", headers=own, timestamp_ms=5))
        letter = letter_of(letters_of(kept(kafka))[0][2])
        assert (letter.topic, letter.partition, letter.offset, letter.timestamp_ms, letter.replays) == ("in", 0, 0, 5, 2)
        assert letter.headers == tuple(own)
        assert list(replayed_headers(letter)) == [("h", b"v"), ("headrace.replays", b"3")]

    def test_of_a_letter_that_became_a_letter_again_the_last_time_counts_and_the_first_is_restored(self, kafka):
        kafka.append("in", b"{")
        first = letters_of(kept(kafka))[0][2]
        kafka.append("letters", NewRecord(b"{", headers=first))
        letter = letter_of(letters_of(kept(kafka, topics=["letters"]))[0][2])
        assert (letter.topic, letter.headers) == ("letters", tuple(first))

    def test_one_of_kafka_connect_is_read_too_and_what_is_none_is_none(self):
        connect = [
            ("h", b"v"), ("__connect.errors.topic", b"orders"), ("__connect.errors.partition", b"3"),
            ("__connect.errors.offset", b"17"), ("__connect.errors.connector.name", b"jdbc"),
            ("__connect.errors.task.id", b"0"),
            ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
            ("__connect.errors.exception.message", None), ("__connect.errors.exception.stacktrace", b"..."),
            ("added", b"later"),
        ]  # fmt: skip
        letter = letter_of(connect)
        assert (letter.topic, letter.partition, letter.offset, letter.reason) == ("orders", 3, 17, None)
        assert (letter.headers, letter_of([("h", b"v")])) == ((("h", b"v"), ("added", b"later")), None)
        assert letter_of([("__connect.errors.topic", None)]) is None
        assert letter_of([("__connect.errors.topic", b"t"), ("__connect.errors.offset", "²".encode())]).offset is None


# --- written ----------------------------------------------------------------------------------------------------------
def shouted(batch):
    """A pipeline's function: it sees no bad record, and none of the columns that tell of them."""
    assert (batch.schema.names, batch.column("value").null_count) == (["key", "value", "headers"], 0)
    return batch


def write(sink, batches, number=0):
    transaction = sink.begin(Attempt("j", 0, 0, number))
    for batch in batches:
        transaction.write(batch)
    return transaction.prepare()


def test_a_sink_without_formats_of_any_kind_writes_letters_as_they_are(kafka):
    kafka.append("in", b'{"n": 1}', NewRecord(b"{", key=b"k"), b"]")
    send = DeadLetters("letters", shouted)
    sink = AtLeastOnceKafkaSink(kafka.bootstrap, topic="out", value=VALUES)
    write(sink, [made for batch in kept(kafka).batches() for made in send(batch)])
    assert [json.loads(record.value) for record in kafka.records("out")] == [{"n": 1}]
    assert sorted((record.key or b"", record.value) for record in kafka.records("letters")) == [(b"", b"]"), (b"k", b"{")]


def test_rows_and_letters_of_one_batch_are_parted_and_each_letter_goes_to_its_own_topic(kafka):
    letter = {"key": None, "value": b"bad", "headers": [{"key": "h", "value": None}]}
    column = addressed(pa.array([None, letter, None], LETTER_TYPE), "letters")
    rows = pa.record_batch(
        [pa.array([b"1", None, b"2"]), pa.array(["out", "in", "out"]), column], ["value", "topic", DEAD_LETTER]
    )
    sink = KafkaSink(kafka.bootstrap, commit_topic="commits")
    assert sink.targets_of(rows) == {"out", "letters"}
    JobCommitter("j", sink.committer("j")).commit(0, [write(sink, [rows])])
    assert sorted(record.value for record in kafka.records("out")) == [b"1", b"2"]
    ((topic, headers),) = [(record.topic, list(record.headers)) for record in kafka.records("letters")]
    assert (topic, headers, kafka.records("in")) == ("letters", [("h", None)], [])
    assert sink.recorded()["j"].targets == ("letters", "out")


def test_letters_that_do_not_say_where_they_go_are_refused(kafka):
    dead = pa.array([{"key": None, "value": b"bad", "headers": []}], LETTER_TYPE)
    rows = pa.record_batch([pa.array([None], pa.binary()), dead], ["value", DEAD_LETTER])
    with pytest.raises(UsageError, match="with the topic that each dead letter goes to"):
        parted(rows)
    nowhere = pa.array([{"topic": None, "key": None, "value": b"", "headers": []}])
    sink = KafkaSink(kafka.bootstrap, topic="out", commit_topic="commits")
    with pytest.raises(UsageError, match="null topic"):
        write(sink, [pa.record_batch([pa.array([None], pa.binary()), nowhere], ["value", DEAD_LETTER])])
    with pytest.raises(UsageError, match="DeadLetters needs the column 'deadLetter'"):
        list(DeadLetters("letters")(rows.select(["value"])))
    with pytest.raises(UsageError, match="then must be a function"):
        DeadLetters("letters", "shouted")


class Job:
    """What an engine does with a planned epoch, again and again until it is committed: two tasks read, part and write it."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.sink = KafkaSink(kafka.bootstrap, topic="out", value=VALUES, commit_topic="commits")
        self.attempts = 0
        self.driver: JobCommitter | None = None

    def task(self, epoch: int, task: int, ends: tuple[int, int], *, dies: bool = False) -> Any:
        start, stop = ends
        source = kept(self.kafka, start=At(start), stop={("in", task): At(stop)}, topics=None, partitions={"in": [task]})
        transaction = self.sink.begin(Attempt("job", epoch, task, self.attempts))
        send = DeadLetters("letters", shouted)
        for batch in source.batches():
            for made in send(batch):
                transaction.write(made)
        if dies:
            raise Killed
        return transaction.prepare()

    def run(self, epoch: int, ends: tuple[int, int], committer: Any = None, *, task_dies: bool = False) -> None:
        self.attempts += 1
        driver = committer or self.sink.committer("job")
        if self.driver is None or committer is not None:
            self.driver = JobCommitter("job", driver)
        recorded = self.sink.recorded_epochs().get("job")
        handles = [] if recorded == epoch else [self.task(epoch, task, ends, dies=task_dies and task == 1) for task in range(2)]
        self.driver.commit(epoch, [handle for handle in handles if handle is not None])

    def killed(self, epoch: int, ends: tuple[int, int], step: str, when: str) -> None:
        dying = DyingCommitter(self.sink.committer("job"), step, when)
        with pytest.raises(Killed):
            self.run(epoch, ends, None if step == "task" else dying, task_dies=step == "task")
        assert step == "task" or dying.died
        self.driver = None


STEPS = [("task", "before"), *product(("fence", "check", "record", "end", "clean_up"), ("before", "after"))]


@pytest.mark.parametrize(
    ("step", "when", "version"), [*((*each, 2) for each in STEPS), ("record", "after", 1), ("end", "after", 1)]
)
def test_outputs_and_dead_letters_are_exact_the_process_that_is_killed_in_whichever_phase(kafka, step, when, version):
    kafka.set_transaction_version(version)
    job, size = Job(kafka), 6
    for number in range(2 * size * PARTITIONS):
        value = b'{"n": %d}' % number if number % 3 else b"bad %d" % number
        kafka.append("in", NewRecord(value, key=b"%d" % number, headers=[("n", b"%d" % number)]), partition=number % PARTITIONS)
    job.killed(0, (0, size), step, when)
    for epoch in range(2):
        job.run(epoch, (epoch * size, (epoch + 1) * size))
    everything = range(2 * size * PARTITIONS)
    assert Counter(json.loads(record.value)["n"] for record in kafka.records("out")) == Counter(n for n in everything if n % 3)
    expected = Counter((b"%d" % n, b"bad %d" % n, b"%d" % n, n % 2, n // 2) for n in everything if not n % 3)
    found = Counter()
    for record in kafka.records("letters"):
        letter = letter_of(record.headers)
        found[(record.key, record.value, dict(letter.headers)["n"], letter.partition, letter.offset)] += 1
    assert found == expected


def test_the_oracle_finds_letters_that_are_written_outside_the_transaction(kafka):
    """An injected bug: the letters of a batch go their own way, as a producer alongside the sink would write them."""
    kafka.append("in", b"bad")
    beside = AtLeastOnceKafkaSink(kafka.bootstrap)
    for _ in range(2):  # the second time after a kill
        write(beside, [made for batch in kept(kafka).batches() for made in DeadLetters("letters")(batch)])
    assert len(kafka.records("letters")) == 2


def test_headrace_run_writes_letters_in_the_transactions_of_its_checkpoints(kafka, tmp_path):
    for number in range(300):
        kafka.append("in", b'{"n": %d}' % number if number % 3 else b"bad %d" % number, partition=number % PARTITIONS)
    source = kept(kafka, ["key", "value", DEAD_LETTER])
    sink = KafkaSink(kafka.bootstrap, topic="out", value=VALUES, commit_topic="commits")
    Pipeline(source, sink, DeadLetters("letters")).run(checkpoints=str(tmp_path), workers=2, interval_s=0.2)
    assert Counter(json.loads(record.value)["n"] for record in kafka.records("out")) == Counter(n for n in range(300) if n % 3)
    assert Counter(record.value for record in kafka.records("letters")) == Counter(b"bad %d" % n for n in range(0, 300, 3))


def test_a_replayed_epoch_with_letters_for_another_topic_is_refused_where_rows_name_their_topics(kafka):
    kafka.append("in", b"bad")
    sink = KafkaSink(kafka.bootstrap, commit_topic="commits")
    made = [made for batch in kept(kafka).batches() for made in DeadLetters("letters")(batch)]
    JobCommitter("j", sink.committer("j")).commit(0, [write(sink, made)])
    others = [made for batch in kept(kafka).batches() for made in DeadLetters("in")(batch)]
    handle = write(sink, others, number=1)
    with pytest.raises(StateError, match="written to letters, and there are rows for in"):
        JobCommitter("j", sink.committer("j")).commit(0, [handle])
