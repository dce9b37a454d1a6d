"""`headrace dead-letters`: counting, showing, and putting back exactly once, the process that is killed in whichever phase."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.cli.letters import replay as replaying
from headrace.cli.letters.letters import COLUMNS, LetterFilter, moment_ms
from headrace.cli.letters.replay import Plan, Replay, job_of
from headrace.cli.letters.replayed import PAGE, REPLAYS_TOPIC, Replayed
from headrace.connectors.base.dead_letters import letter_of
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.enumerator.errors import FencedError, HeadraceError, StateError, UsageError
from headrace.kafka import KafkaSource, Latest
from headrace.testing import DyingCommitter, FakeKafka, Killed
from headrace.testing.fake_kafka import NewRecord, Refuse
from tests.helpers.isolated import Isolated

DAY_MS = 86_400_000
EVERYTHING = Plan(LetterFilter(), 3)
GOLDEN = Path(__file__).parents[1] / "golden" / "replayed_v1.json"
GOLDEN_CLAIM = Path(__file__).parents[1] / "golden" / "replay_claim_v1.json"


@pytest.fixture
def kafka():
    with FakeKafka() as kafka:
        for topic in ("orders", "flights", "letters"):
            kafka.create_topic(topic, partitions=2)
        yield kafka


def letter(number, topic="orders", reason="value: is not JSON", replays=0, partition=1):
    settings = {
        "own": b"%d" % number,
        **({"headrace.replays": b"%d" % replays} if replays else {}),
        "__connect.errors.topic": topic.encode(),
        "__connect.errors.partition": b"%d" % partition,
        "__connect.errors.offset": b"%d" % number,
        "__connect.errors.exception.message": reason.encode(),
        "headrace.errors.timestamp": b"5",
    }
    return NewRecord(b"bad %d" % number, key=b"k%d" % number, headers=[*settings.items()], timestamp_ms=number * DAY_MS)


def sink_of(kafka, **given):
    return KafkaSink(kafka.bootstrap, **given)


def replayed(kafka, plan=None, committer=None, **given):
    """A whole run, as the command does it."""
    replay = Replay(sink_of(kafka, **given), "letters", plan or Plan(LetterFilter(), 3), committer)
    replay.begin()
    for batch in KafkaSource(kafka.bootstrap, topics=["letters"], stop=Latest(), columns=COLUMNS).batches():
        replay.add(batch)
    replay.flush()
    return replay.report


def run(kafka, *arguments):
    found = CliRunner().invoke(app, ["dead-letters", *arguments, "--bootstrap", kafka.bootstrap])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return [line.split("\t") for line in found.stdout.splitlines()]


def values(kafka, topic="orders"):
    return Counter(record.value for record in kafka.records(topic))


class TestCommands:
    def test_list_counts_by_topic_and_reason_and_what_was_replayed(self, kafka):
        kafka.append("letters", letter(1), letter(2), letter(3, reason="no schema 7"), letter(4, "flights"), b"no letter")
        json_, schema, flights = (
            ["orders", "value: is not JSON"],
            ["orders", "no schema 7"],
            ["flights", "value: is not JSON"],
        )
        days = [f"1970-01-0{day}T00:00:00.000Z" for day in range(2, 6)]
        assert run(kafka, "list", "letters") == [
            ["letters", *flights, "1", "0", days[3], days[3]],
            ["letters", *json_, "2", "0", days[0], days[1]],
            ["letters", *schema, "1", "0", days[2], days[2]],
        ]
        assert run(kafka, "replay", "letters", "--reason", "Schema 7") == [["replayed", "orders", "1"]]
        assert run(kafka, "list", "letters", "--reason", "schema") == [["letters", *schema, "1", "1", days[2], days[2]]]

    def test_list_makes_no_topic(self, kafka):
        assert run(kafka, "list", "letters") == []
        with pytest.raises(HeadraceError):
            kafka.records(REPLAYS_TOPIC)

    def test_show_prints_the_record_and_its_headers(self, kafka):
        kafka.append("letters", letter(1), letter(2), partition=1)
        record, *headers = run(kafka, "show", "letters", "1", "1")
        assert record == ["record", "1", "1", "1970-01-03T00:00:00.000Z", "k2", "bad 2", "-"]
        assert ["header", "__connect.errors.exception.message", "value: is not JSON"] in headers
        with pytest.raises(UsageError, match="letters-1 has"):
            run(kafka, "show", "letters", "1", "7")
        with pytest.raises(UsageError, match="letters-1 has no record at offset 2"):
            run(kafka, "show", "letters", "1", "2")

    def test_replay_puts_the_record_back_where_it_was_with_a_counter(self, kafka):
        kafka.append("letters", letter(1), letter(2, partition=7))
        assert run(kafka, "replay", "letters") == [["replayed", "orders", "2"]]
        first, second = sorted(kafka.records("orders"), key=lambda record: record.value)
        assert (first.partition, first.key, first.value) == (1, b"k1", b"bad 1")
        assert list(first.headers) == [("own", b"1"), ("headrace.replays", b"1")]
        assert second.partition in (0, 1)  # by its key, as the topic has fewer partitions now
        assert run(kafka, "replay", "letters") == [["already replayed", "2"]]
        assert values(kafka) == {b"bad 1": 1, b"bad 2": 1}

    def test_filters_choose_and_what_one_has_replayed_another_does_not_replay_again(self, kafka):
        kafka.append("letters", *(letter(number, "orders" if number % 2 else "flights") for number in range(10)))
        run(kafka, "replay", "letters", "--from-topic", "orders", "--since", "1970-01-04", "--until", "1970-01-08T00:00:00Z")
        assert values(kafka) == {b"bad 3": 1, b"bad 5": 1}
        run(kafka, "replay", "letters", "--from-topic", "orders")
        run(kafka, "replay", "letters")
        assert values(kafka) + values(kafka, "flights") == Counter(b"bad %d" % number for number in range(10))

    def test_to_another_topic_and_not_to_its_own(self, kafka):
        kafka.append("letters", letter(1))
        assert run(kafka, "replay", "letters", "--to", "flights") == [["replayed", "flights", "1"]]
        assert (values(kafka), values(kafka, "flights")) == ({}, {b"bad 1": 1})
        with pytest.raises(UsageError, match="--to letters is the topic of the dead letters themselves"):
            run(kafka, "replay", "letters", "--to", "letters")

    def test_what_fails_again_and_again_is_left_where_it_is(self, kafka):
        kafka.append("letters", letter(1, replays=2), letter(2, replays=3))
        assert run(kafka, "replay", "letters") == [["replayed", "orders", "1"], ["replayed too often", "1"]]
        assert letter_of([*kafka.records("orders")[0].headers, ("__connect.errors.topic", b"orders")]).replays == 3
        assert run(kafka, "replay", "letters", "--max-replays", "4") == [["replayed", "orders", "1"], ["already replayed", "1"]]

    def test_a_topic_that_is_not_there_is_named_and_nothing_is_written(self, kafka):
        kafka.append("letters", letter(1), letter(2, "gone"))
        with pytest.raises(UsageError, match=r"there is no topic 'gone': make it, or choose another one with --to"):
            run(kafka, "replay", "letters")
        assert values(kafka) == {}
        assert run(kafka, "replay", "letters", "--from-topic", "orders") == [["replayed", "orders", "1"]]

    def test_letters_of_a_topic_that_was_recreated_are_other_letters(self, kafka):
        kafka.append("letters", letter(1))
        run(kafka, "replay", "letters")
        kafka.delete_topic("letters")
        kafka.create_topic("letters", partitions=2)
        kafka.append("letters", letter(2))
        assert run(kafka, "replay", "letters") == [["replayed", "orders", "1"]]
        assert values(kafka) == {b"bad 1": 1, b"bad 2": 1}

    def test_a_prefix_that_would_not_shut_out_an_earlier_replay_is_refused(self, kafka):
        kafka.append("letters", letter(1), letter(2))
        run(kafka, "replay", "letters", "--until", "1970-01-03")
        with pytest.raises(
            StateError, match="are replayed with --prefix headrace --commit-topic headrace-commits: give the same"
        ):
            run(kafka, "replay", "letters", "--prefix", "other")
        assert values(kafka) == {b"bad 1": 1}

    @pytest.mark.parametrize("topic", [REPLAYS_TOPIC, "headrace-commits", "my-lists", "letters"])
    def test_no_letter_is_written_among_our_own_records(self, kafka, topic):
        """A letter says where it came from; one of headrace-replays was taken for a note, and others were never replayed."""
        kafka.append("letters", letter(1), letter(2, topic))
        where = rf"offset 1 of letters-0 states that it came from the topic '{topic}', which .*: leave it out with --from-topic"
        options = ["replay", "letters", "--commit-topic", "my-lists"]
        with pytest.raises(UsageError, match=where):
            run(kafka, *options)
        assert values(kafka) == {}
        with pytest.raises(UsageError, match=f"--to {topic} "):
            run(kafka, *options, "--to", topic)
        assert run(kafka, *options, "--from-topic", "orders") == [["replayed", "orders", "1"]]

    def test_letters_with_times_of_nanoseconds_are_counted_shown_and_replayed(self, kafka):
        far = NewRecord(b"x", headers=letter(1).headers, timestamp_ms=1_700_000_000_000_000_000)
        kafka.append("letters", far)
        kafka.append("letters", letter(1))
        day = "1970-01-02T00:00:00.000Z"
        assert run(kafka, "list", "letters") == [["letters", "orders", "value: is not JSON", "2", "0", day, day]]
        assert run(kafka, "show", "letters", "0", "0")[0] == ["record", "0", "0", "-", "null", "x", "-"]
        assert run(kafka, "replay", "letters") == [["replayed", "orders", "2"]]

    def test_replay_shows_of_records_that_are_no_letters_and_of_what_it_cannot_read(self, kafka):
        kafka.append("letters", letter(1), b"no letter")
        other = sink_of(kafka, topic="letters").begin(Attempt("other", 0, 0, 0))
        other.write(pa.record_batch({"value": [b"open"]}))
        assert other.prepare() is not None
        found = CliRunner().invoke(app, ["dead-letters", "replay", "letters", "--bootstrap", kafka.bootstrap])
        assert found.stdout.splitlines() == ["replayed\torders\t1"]
        assert "1 records of letters are not dead letters" in found.stderr
        assert "an open transaction hides 1 offsets from offset" in found.stderr

    def test_a_topic_that_one_broker_does_not_know_yet_is_asked_for_again(self, kafka):
        kafka.append("letters", letter(1))
        asks_orders = lambda request: "orders" in [each.name for each in request.topics or ()]  # noqa: E731 - a condition
        fault = kafka.fault("Metadata", Refuse(3, "orders"), when=asks_orders)
        assert run(kafka, "replay", "letters") == [["replayed", "orders", "1"]]
        assert fault.fired == 1

    def test_a_time_that_is_none_is_refused(self):
        assert moment_ms("--since", "1970-01-02T01:00:00+01:00") == DAY_MS
        with pytest.raises(UsageError, match="--since must be a time such as"):
            moment_ms("--since", "yesterday")


STEPS = [(step, when) for step in ("fence", "check", "record", "end", "clean_up") for when in ("before", "after")]


class TestKills:
    @pytest.fixture
    def many(self, kafka):
        """This many that a run has three transactions."""
        for number in range(12):
            kafka.append("letters", letter(number), partition=number % 2)
        with patch.object(replaying, "MOST_LETTERS", 5):
            yield Counter(b"bad %d" % number for number in range(12))

    @pytest.mark.parametrize("nth", [1, 2])
    @pytest.mark.parametrize(("step", "when"), STEPS)
    def test_replay_killed_in_any_phase_and_repeated_is_exact(self, kafka, many, step, when, nth):
        dying = []

        def committer(job):
            if not dying:
                dying.append(DyingCommitter(sink_of(kafka).committer(job), step, when, nth))
            return dying[0]

        try:
            replayed(kafka, committer=committer)
        except Killed:
            assert dying[0].died
        assert dying[0].died or (step, nth) == ("fence", 2)  # which comes once
        replayed(kafka)
        assert values(kafka) == many
        assert sum(replayed(kafka).written.values()) == 0

    @pytest.mark.parametrize("writes", [1, 2, 3, 4])
    def test_killed_between_the_records_and_their_note_neither_is_seen(self, kafka, many, writes):
        left = [writes]
        write = replaying.pa.RecordBatch.from_pylist

        def dies(*arguments, **given):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return write(*arguments, **given)

        with patch.object(replaying, "pa", _Arrow(dies)), pytest.raises(Killed):
            replayed(kafka)
        assert left == [0]
        assert sum(values(kafka).values()) in (0, 5)
        replayed(kafka)
        assert values(kafka) == many

    def test_the_oracle_finds_a_note_that_is_not_in_the_transaction_of_the_records(self, kafka, many):
        """An injected bug: nothing is noted, as if a kill had come before its own note."""
        with patch.object(Replayed, "with_these", lambda self, positions: {(0, 99): 1}):
            replayed(kafka)
        replayed(kafka)
        assert values(kafka) != many

    def test_of_two_at_a_time_the_later_continues_and_the_earlier_ends_with_an_error(self, kafka, many):
        first = Replay(sink_of(kafka), "letters", Plan(LetterFilter(), 3))
        first.begin()
        batches = list(KafkaSource(kafka.bootstrap, topics=["letters"], stop=Latest(), columns=COLUMNS).batches())
        letters = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        first.add(letters.slice(0, 7))
        assert sum(values(kafka).values()) == 5
        replayed(kafka)
        with pytest.raises((FencedError, StateError)):
            first.add(letters.slice(7))
        assert values(kafka) == many

    def test_a_transaction_that_expires_before_its_commit_is_repaired_by_the_next(self, kafka, many):
        def committer(job):
            return DyingCommitter(sink_of(kafka).committer(job), "record", "after")

        with pytest.raises(Killed):
            replayed(kafka, committer=committer)
        name = sink_of(kafka).names(job_of("letters")).task(0, 0, 0)
        from headrace.connectors.kafka.write.transactions import Transactions

        Transactions(sink_of(kafka).cluster()).init(name, 10_000)  # aborts it, as its timeout would
        replayed(kafka)
        assert values(kafka) == many


class TestReplaysOfOthers:
    """Two replays whose names differ do not fence each other, and one partition has the notes of all."""

    def test_of_two_first_replays_with_other_prefixes_one_is_refused(self, kafka):
        kafka.append("letters", letter(1))
        first, second = (Replay(sink_of(kafka, transactional_id_prefix=name), "letters", EVERYTHING) for name in "ab")
        first.begin()
        with pytest.raises(StateError, match="are replayed with --prefix a --commit-topic headrace-commits: give the same"):
            second.begin()
        assert replayed(kafka, transactional_id_prefix="a").written == {"orders": 1}
        kafka.compact(REPLAYS_TOPIC)
        with pytest.raises(StateError, match="--prefix a"):
            replayed(kafka, transactional_id_prefix="b")
        assert values(kafka) == {b"bad 1": 1}

    def test_of_two_that_claim_at_the_same_time_the_first_in_the_log_continues(self, kafka, monkeypatch):
        kafka.append("letters", letter(1))
        first, second = (Replay(sink_of(kafka, transactional_id_prefix=name), "letters", EVERYTHING) for name in "ab")
        claim = Replayed.claim

        def overtaken(found):
            monkeypatch.setattr(Replayed, "claim", claim)
            second.begin()
            return claim(found)

        monkeypatch.setattr(Replayed, "claim", overtaken)
        with pytest.raises(StateError, match="--prefix b"):
            first.begin()
        assert replayed(kafka, transactional_id_prefix="b").written == {"orders": 1}
        with pytest.raises(StateError, match="--prefix b"):
            replayed(kafka, transactional_id_prefix="a")

    def test_a_reading_that_lacks_the_own_claim_is_no_permission(self, kafka):
        """Of a leader that does not have it yet, as it may lack one that came before; both continued then."""
        kafka.append("letters", letter(1))
        first, second = (Replay(sink_of(kafka, transactional_id_prefix=name), "letters", EVERYTHING) for name in "ab")
        looks, read = [], replaying.read_replayed

        def of_before(sink, topic):
            if sink is not first._sink:
                return read(sink, topic)
            looks.append(looks[0] if len(looks) == 1 else read(sink, topic))
            if len(looks) == 1:
                second.begin()
            return looks[-1]

        with patch.object(replaying, "read_replayed", of_before), pytest.raises(StateError, match="--prefix b"):
            first.begin()
        assert [found.claims for found in looks] == [[], [], ["b headrace-commits", "a headrace-commits"]]
        assert replayed(kafka, transactional_id_prefix="b").written == {"orders": 1}

    def test_a_topic_is_claimed_once(self, kafka):
        for _ in range(3):
            replayed(kafka)
        assert len([record for record in kafka.records(REPLAYS_TOPIC) if record.value is not None]) == 1

    def test_a_leader_of_the_notes_that_is_isolated_from_the_others_is_not_believed(self):
        """It lacks what was replayed since: those letters were put back a second time."""
        quick = {"default.api.timeout.ms": "20000", "request.timeout.ms": "300", "retry.backoff.max.ms": "50"}
        with FakeKafka(brokers=3) as kafka:
            for topic in ("letters", "orders"):
                kafka.create_topic(topic)
            replayed(kafka, properties=quick)
            kafka.append("letters", letter(1))
            isolated = Isolated(kafka, REPLAYS_TOPIC)
            isolated.cut_off("letters", "orders", DEFAULT_COMMIT_TOPIC)
            assert replayed(kafka, properties=quick).written == {"orders": 1}
            with isolated.heard_by(sink_of(kafka, properties=quick)) as sink:
                report = replayed(kafka, properties=sink.properties)
                assert isolated.is_found_out
            assert (report.written, report.already) == ({}, 1)
            assert len(kafka.records("orders")) == 1

    def test_a_killed_replay_of_one_topic_holds_up_no_process(self, kafka):
        kafka.append("letters", letter(1))
        kafka.create_topic("others")
        kafka.append("others", letter(2))

        def committer(job):
            return DyingCommitter(sink_of(kafka).committer(job), "record", "before")

        with pytest.raises(Killed):
            replayed(kafka, committer=committer)
        day = "1970-01-03T00:00:00.000Z"
        assert run(kafka, "list", "others") == [["letters", "orders", "value: is not JSON", "1", "0", day, day]]
        assert run(kafka, "replay", "others") == [["replayed", "orders", "1"]]
        assert run(kafka, "list", "others") == [["letters", "orders", "value: is not JSON", "1", "1", day, day]]
        found = CliRunner().invoke(app, ["dead-letters", "list", "letters", "--bootstrap", kafka.bootstrap])
        assert found.stdout.split("\t")[3:5] == ["1", "0"]
        assert "a replay of letters is under way, or was killed" in found.stderr
        assert run(kafka, "replay", "letters") == [["replayed", "orders", "1"]]
        assert values(kafka) == {b"bad 1": 1, b"bad 2": 1}

    def test_what_a_replay_that_was_shut_out_writes_later_is_aborted_and_not_waited_for(self, kafka):
        kafka.append("letters", letter(1))
        zombie, late = (Replay(sink_of(kafka), "letters", EVERYTHING) for _ in range(2))
        zombie.begin()
        looks, read = [], replaying.read_replayed

        def overtaken(*arguments):
            if len(looks) == 1:  # the first was for the claim
                (batch,) = KafkaSource(kafka.bootstrap, topics=["letters"], stop=Latest(), columns=COLUMNS).batches()
                zombie.add(batch)
                with patch.object(zombie._driver, "commit", side_effect=Killed), pytest.raises(Killed):
                    zombie.flush()
            looks.append(read(*arguments))
            return looks[-1]

        with patch.object(replaying, "read_replayed", overtaken):
            late.begin()
        assert [found.open_at is None for found in looks] == [True, False, True]
        assert not late._replayed.has(0, 0)
        assert replayed(kafka).written == {"orders": 1}

    def test_readers_of_the_topics_are_held_up_by_a_killed_replay_no_longer_than_a_minute(self, kafka):
        kafka.append("letters", letter(1))
        with patch.object(replaying.JobCommitter, "commit", side_effect=Killed), pytest.raises(Killed):
            run(kafka, "replay", "letters")
        from headrace.connectors.kafka.write.transactions import Transactions

        name = sink_of(kafka).names(job_of("letters")).task(0, 0, 0)
        found = Transactions(sink_of(kafka).cluster()).describe([name])[name]
        assert (found.state, found.timeout_ms) == ("Ongoing", 60_000)


class _Arrow:
    """pyarrow, whose batches of rows are made by another process."""

    def __init__(self, from_pylist):
        self.RecordBatch = type("RecordBatch", (), {"from_pylist": staticmethod(from_pylist)})


class TestPages:
    TOPIC_ID = UUID("0123456789abcdef0123456789abcdef")

    def test_the_golden_page_is_read_and_written(self):
        records = {key: json.dumps(value).encode() for key, value in json.loads(GOLDEN.read_text()).items()}
        found = Replayed.parse("letters", self.TOPIC_ID, "headrace headrace-commits", records)
        assert [offset for offset in range(2 * PAGE) if found.has(3, offset)] == [PAGE, PAGE + 904]
        assert not found.others
        ((page, bits),) = found.pages.items()
        key, value = found.record(page, bits)
        assert {key.decode(): json.loads(value)} == json.loads(GOLDEN.read_text())

    def test_pages_of_other_topics_and_partitions_are_none_of_it(self):
        records = {key: json.dumps(value).encode() for key, value in json.loads(GOLDEN.read_text()).items()}
        for topic, topic_id in [("letter", self.TOPIC_ID), ("letters", UUID(int=1)), ("letters", None)]:
            assert Replayed.parse(topic, topic_id, "", records).pages == {}

    def test_the_golden_claim_is_read_and_written(self):
        golden = {key: json.dumps(value).encode() for key, value in json.loads(GOLDEN_CLAIM.read_text()).items()}
        found = Replayed.parse("letters", self.TOPIC_ID, "a c", golden)
        assert (found.claims, found.others, found.pages) == (["headrace headrace-commits"], {"headrace headrace-commits"}, {})
        key, value = Replayed("letters", self.TOPIC_ID, "headrace headrace-commits").claim()
        ((golden_key, golden_value),) = golden.items()
        assert (len(key), json.loads(value)) == (len(golden_key), json.loads(golden_value))
        assert key.decode().rpartition(".")[0] == golden_key.rpartition(".")[0]

    @pytest.mark.parametrize("change", [{"version": 2}, {"by": None}, {"format": "headrace-replayed"}])
    def test_a_damaged_claim_is_an_error_and_not_none(self, change):
        ((key, value),) = json.loads(GOLDEN_CLAIM.read_text()).items()
        with pytest.raises(StateError, match=r"a newer headrace|is damaged"):
            Replayed.parse("letters", self.TOPIC_ID, "", {key: json.dumps(value | change).encode()})

    def test_without_a_claim_those_who_have_left_pages_may_make_one_and_no_others(self):
        found = Replayed("letters", None, "a c", noted_by={"a c", "b c"})
        assert found.others == set()
        assert Replayed("letters", None, "x c", noted_by={"a c", "b c"}).others == {"a c", "b c"}
        assert Replayed("letters", None, "a c", noted_by={"a c"}, claims=["b c", "a c"]).others == {"b c"}

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"version": 2}, "a newer headrace"),
            ({"bits": "x"}, "is damaged"),
            ({"bits": 3}, "is damaged"),
            ({"by": None}, "damaged"),
        ],
    )
    def test_a_damaged_page_is_an_error_and_not_an_empty_one(self, change, words):
        ((key, value),) = json.loads(GOLDEN.read_text()).items()
        with pytest.raises(StateError, match=words):
            Replayed.parse("letters", self.TOPIC_ID, "", {key: json.dumps(value | change).encode()})

    def test_changed_pages_keep_what_was_in_them_and_change_nothing_before_the_commit(self):
        replayed = Replayed("letters", None, "", {(0, 0): 1})
        assert replayed.with_these([(0, 2), (0, PAGE), (1, 1)]) == {(0, 0): 5, (0, 1): 1, (1, 0): 2}
        assert replayed.pages == {(0, 0): 1}
