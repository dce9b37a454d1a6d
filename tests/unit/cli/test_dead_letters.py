"""`headrace dead-letters`: counting, showing, and replaying exactly once with a folder of checkpoints."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.cli.dead_letter_records import DeadLetterFilter, Replay, moment_ms
from headrace.cli.dead_letters import FilterOptions
from headrace.connectors.base.dead_letters import letter_of
from headrace.connectors.base.outputs import WrongOutputError
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.format.decode import arrow_schema
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.enumerator.errors import FencedError, HeadraceError, UsageError
from headrace.runners.local.storage.lock import FolderLock
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka import NewRecord, Refuse
from tests.helpers.killed_replay import killed_replay

DAY_MS = 86_400_000

DEAD = "letters"


@pytest.fixture
def kafka():
    with FakeKafka() as kafka:
        for topic in ("orders", "flights", DEAD):
            kafka.create_topic(topic, partitions=2)
        yield kafka


def letter(number, topic="orders", reason="value: is no JSON", replays=0, partition=1):
    headers = {
        "own": b"%d" % number,
        **({"headrace.replays": b"%d" % replays} if replays else {}),
        "__connect.errors.topic": topic.encode(),
        "__connect.errors.partition": b"%d" % partition,
        "__connect.errors.offset": b"%d" % number,
        "__connect.errors.exception.message": reason.encode(),
        "headrace.errors.timestamp": b"5",
    }
    return NewRecord(b"bad %d" % number, key=b"k%d" % number, headers=[*headers.items()], timestamp_ms=number * DAY_MS)


def invoked(kafka, *arguments):
    return CliRunner().invoke(app, ["dead-letters", *arguments, "--bootstrap", kafka.bootstrap])


def run(kafka, *arguments):
    found = invoked(kafka, *arguments)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return [line.split("\t") for line in found.stdout.splitlines()]


def replay(kafka, folder, *options):
    assert run(kafka, "replay", DEAD, "--checkpoints", str(folder), *options) == []


def values(kafka, topic="orders"):
    return Counter(record.value for record in kafka.records(topic))


def numbers(*found):
    return Counter(b"bad %d" % number for number in found)


class TestLooking:
    def test_an_empty_reason_is_refused(self):
        """Regression: of a variable that was not set, and all dead letters were replayed."""
        with pytest.raises(UsageError, match="--reason is empty"):
            FilterOptions(reason="").wanted()

    def test_list_counts_by_topic_and_reason(self, kafka):
        kafka.append("letters", letter(1), letter(2), letter(3, reason="no schema 7"), letter(4, "flights"), b"no letter")
        json_, schema, flights = (["orders", "value: is no JSON"], ["orders", "no schema 7"], ["flights", "value: is no JSON"])
        days = [f"1970-01-0{day}T00:00:00.000Z" for day in range(2, 6)]
        assert run(kafka, "list", "letters") == [
            ["letters", *flights, "1", days[3], days[3]],
            ["letters", *json_, "2", days[0], days[1]],
            ["letters", *schema, "1", days[2], days[2]],
        ]
        assert run(kafka, "list", "letters", "--reason", "Schema 7") == [["letters", *schema, "1", days[2], days[2]]]

    def test_list_reports_other_records_and_those_that_it_cannot_read(self, kafka):
        kafka.append("letters", letter(1), b"no letter")
        other = KafkaSink(kafka.bootstrap, topic="letters").begin(Attempt("other", 0, 0, 0))
        other.write(pa.record_batch({"value": [b"open"]}))
        assert other.prepare() is not None
        found = invoked(kafka, "list", "letters")
        assert "1 records of letters are not dead letters" in found.stderr
        assert "an open transaction hides 1 offsets from offset" in found.stderr

    def test_show_prints_the_record_and_its_headers(self, kafka):
        kafka.append("letters", letter(1), letter(2), partition=1)
        record, *headers = run(kafka, "show", "letters", "1", "1")
        assert record == ["record", "1", "1", "1970-01-03T00:00:00.000Z", "k2", "bad 2", "-"]
        assert ["header", "__connect.errors.exception.message", "value: is no JSON"] in headers
        with pytest.raises(UsageError, match="letters-1 has"):
            run(kafka, "show", "letters", "1", "7")
        with pytest.raises(UsageError, match="letters-1 has no record at offset 2"):
            run(kafka, "show", "letters", "1", "2")

    def test_show_of_a_partition_that_is_not_there_names_those_that_are(self, kafka):
        """Regression: the error named a topic that no broker knew, with exit status 1."""
        found = invoked(kafka, "show", DEAD, "7", "0").exception
        assert (type(found), str(found)) == (UsageError, f"topic {DEAD!r} has the partitions 0 to 1, not 7")

    def test_a_time_that_is_none_is_refused(self):
        assert moment_ms("--since", "1970-01-02T01:00:00+01:00") == DAY_MS
        with pytest.raises(UsageError, match="--since must be a time such as"):
            moment_ms("--since", "yesterday")

    def test_dead_letters_with_times_of_nanoseconds_are_counted_shown_and_replayed(self, kafka, tmp_path):
        kafka.append("letters", NewRecord(b"x", headers=letter(1).headers, timestamp_ms=1_700_000_000_000_000_000))
        kafka.append("letters", letter(1))
        day = "1970-01-02T00:00:00.000Z"
        assert run(kafka, "list", "letters") == [["letters", "orders", "value: is no JSON", "2", day, day]]
        assert run(kafka, "show", "letters", "0", "0")[0] == ["record", "0", "0", "-", "null", "x", "-"]
        replay(kafka, tmp_path)
        assert values(kafka) == {b"x": 1, b"bad 1": 1}


class TestReplay:
    def test_puts_the_record_back_where_it_was_with_a_counter_and_once(self, kafka, tmp_path):
        kafka.append("letters", letter(1), letter(2, partition=7))
        replay(kafka, tmp_path / "new" / "folder")
        first, second = sorted(kafka.records("orders"), key=lambda record: record.value)
        assert (first.partition, first.key, first.value) == (1, b"k1", b"bad 1")
        assert list(first.headers) == [("own", b"1"), ("headrace.replays", b"1")]
        assert second.partition in (0, 1)  # by its key, as the topic has fewer partitions now
        replay(kafka, tmp_path / "new" / "folder")
        assert values(kafka) == numbers(1, 2)

    def test_with_the_same_folder_what_came_since_is_replayed_and_nothing_twice(self, kafka, tmp_path):
        for number in range(4):
            kafka.append("letters", letter(number), partition=number % 2)
            replay(kafka, tmp_path)
            assert values(kafka) == numbers(*range(number + 1))

    def test_filters_choose(self, kafka, tmp_path):
        kafka.append("letters", *(letter(number, "orders" if number % 2 else "flights") for number in range(10)))
        replay(kafka, tmp_path, *["--from-topic", "orders", "--since", "1970-01-04", "--until", "1970-01-08T00:00:00Z"])
        assert values(kafka) + values(kafka, "flights") == numbers(3, 5)

    def test_another_selection_with_the_same_folder_is_refused(self, kafka, tmp_path):
        """It would leave out what the first one has passed."""
        kafka.append("letters", letter(1), letter(2, reason="no schema 7"))
        replay(kafka, tmp_path, "--reason", "schema")
        what = r'has the checkpoints of the replay .*"reason": "schema"}; give .* another folder'
        with pytest.raises(UsageError, match=what):
            replay(kafka, tmp_path)
        assert values(kafka) == numbers(2)

    def test_two_at_a_time_with_one_folder_are_refused(self, kafka, tmp_path):
        lock = FolderLock(tmp_path, str(tmp_path))
        with pytest.raises(FencedError, match="another run works with these checkpoints"):
            replay(kafka, tmp_path)
        lock.close()
        replay(kafka, tmp_path)

    def test_to_another_topic_and_not_to_its_own(self, kafka, tmp_path):
        kafka.append("letters", letter(1))
        replay(kafka, tmp_path, "--to", "flights")
        assert (values(kafka), values(kafka, "flights")) == ({}, numbers(1))
        with pytest.raises(UsageError, match="--to letters is the topic of the dead letters themselves"):
            replay(kafka, tmp_path, "--to", "letters")

    def test_a_topic_of_dead_letters_that_does_not_exist_is_named(self, kafka, tmp_path):
        with pytest.raises(HeadraceError, match="gone"):
            run(kafka, "replay", "gone", "--checkpoints", str(tmp_path))

    def test_a_folder_that_cannot_be_made_is_named(self, kafka, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match=f"the folder {tmp_path / 'file' / 'c'} cannot be used: "):
            replay(kafka, tmp_path / "file" / "c")

    def test_a_destination_that_does_not_exist_is_named_and_nothing_is_written(self, kafka, tmp_path):
        kafka.append("letters", letter(1), letter(2, "gone"))
        what = "at offset 1 of letters-0 is for the topic 'gone', which does not exist: create it, leave it out"
        with pytest.raises(HeadraceError, match=f"the dead letter {what}"):
            replay(kafka, tmp_path / "all")
        assert values(kafka) == {}
        replay(kafka, tmp_path / "orders", "--from-topic", "orders")
        assert values(kafka) == numbers(1)
        kafka.create_topic("gone")
        replay(kafka, tmp_path / "all")
        assert values(kafka, "gone") == numbers(2)

    def test_a_destination_that_can_be_no_topic_is_named_at_once(self, kafka, tmp_path):
        """Dead letters of files name their paths. The worker was started again for ever."""
        kafka.append(DEAD, letter(1, "day=1/x.jsonl"))
        where = f"at offset 0 of {DEAD}-0 is for the topic 'day=1/x.jsonl', which no topic can have as its name: leave it out"
        with pytest.raises(HeadraceError, match=f"the dead letter {where}"):
            replay(kafka, tmp_path)
        for name in ("", "a b"):
            with pytest.raises(UsageError, match=f"--to must be a topic's name .* not '{name}'"):
                replay(kafka, tmp_path, "--to", name)
        replay(kafka, tmp_path / "other", "--to", "flights")
        assert values(kafka, "flights") == numbers(1)

    def test_dead_letters_that_retention_deleted_unread_are_left_out(self, kafka, tmp_path):
        kafka.append("letters", letter(1))
        replay(kafka, tmp_path)
        kafka.append("letters", letter(2), letter(3), partition=0)
        kafka.delete_records("letters", 0, before=2)
        replay(kafka, tmp_path)
        assert values(kafka) == numbers(1, 3)

    def test_dead_letters_of_a_topic_that_was_recreated_are_other_dead_letters(self, kafka, tmp_path):
        kafka.append("letters", letter(1))
        replay(kafka, tmp_path)
        kafka.delete_topic("letters")
        kafka.create_topic("letters", partitions=2)
        kafka.append("letters", letter(2))
        replay(kafka, tmp_path)
        assert values(kafka) == numbers(1, 2)

    def test_records_that_are_not_dead_letters_are_skipped(self, kafka, tmp_path):
        kafka.append("letters", letter(1), b"no letter")
        replay(kafka, tmp_path)
        assert values(kafka) == numbers(1)


def batch_of(*records):
    """A batch of dead letters as the source gives it."""
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "partition": 0,
            "offset": offset,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
            "timestamp": record.timestamp_ms * 1000,
        }
        for offset, record in enumerate(records)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema([*rows[0]]))


class TestTransform:
    def replay(self, kafka, most=3, **given):
        return Replay(KafkaSink(kafka.bootstrap, commit_topic="my-lists"), "letters", DeadLetterFilter(), most, **given)

    def test_records_that_fail_again_and_again_are_left_out_with_a_warning(self, kafka, caplog):
        batch = batch_of(letter(1, replays=2), letter(2, replays=3))
        (rows,) = self.replay(kafka)(batch)
        assert rows.column("value").to_pylist() == [b"bad 1"]
        headers = [(each["key"], each["value"]) for each in rows.column("headers")[0].as_py()]
        assert letter_of([*headers, ("__connect.errors.topic", b"orders")]).replays == 3
        assert caplog.messages == ["1 records of letters were replayed 3 times before and are left there"]
        assert [made.num_rows for made in self.replay(kafka, most=4)(batch)] == [2]

    @pytest.mark.parametrize("topic", ["headrace-commits", "my-lists", "letters"])
    def test_nothing_is_written_among_our_own_records(self, kafka, topic):
        """A dead letter names where it came from; one that named a topic of lists was taken for a list."""
        where = rf"at offset 1 of letters-0 is for the topic '{topic}', which .*: leave it out with --from-topic"
        with pytest.raises(WrongOutputError, match=f"the dead letter {where}"):
            list(self.replay(kafka)(batch_of(letter(1), letter(2, topic))))
        with pytest.raises(UsageError, match=f"--to {topic} "):
            self.replay(kafka, to=topic)

    def test_a_topic_that_one_broker_does_not_know_yet_is_asked_for_again(self, kafka):
        asks_orders = lambda request: "orders" in [each.name for each in request.topics or ()]  # noqa: E731 - a condition
        fault = kafka.fault("Metadata", Refuse(3, "orders"), when=asks_orders)
        assert [made.num_rows for made in self.replay(kafka)(batch_of(letter(1)))] == [1]
        assert fault.fired == 1


class TestKills:
    @pytest.mark.full
    @pytest.mark.parametrize(
        ("owner", "method", "when"),
        [
            ("KafkaTransaction", "write", "after"),
            ("KafkaTransaction", "prepare", "after"),
            *(("KafkaCommitter", method, when) for method in ("record", "end") for when in ("before", "after")),
        ],
    )
    def test_a_replay_killed_in_the_middle_and_repeated_is_exact(self, kafka, tmp_path, owner, method, when):
        folder = tmp_path / "checkpoints"
        for number in range(12):
            kafka.append("letters", letter(number), partition=number % 2)
            if number == 5:
                replay(kafka, folder)
        killed_replay(kafka.bootstrap, "letters", folder, tmp_path / "killed", (owner, method, when))
        replay(kafka, folder)
        assert values(kafka) == numbers(*range(12))

    def test_the_check_sees_what_is_replayed_twice(self, kafka, tmp_path):
        kafka.append("letters", letter(1))
        for folder in ("one", "another"):
            replay(kafka, tmp_path / folder)
        assert values(kafka) == numbers(1, 1)
