"""Spark's Kafka options: what they mean, which win, which are refused and how. No process is contacted."""

import json
import pickle
import re
from dataclasses import replace
from enum import StrEnum

import pytest

from headrace.connectors.kafka.client.positions import At, Committed, Earliest, Latest, Timestamp
from headrace.connectors.kafka.read.discovery import java_pattern
from headrace.enumerator.errors import StateError, UsageError
from headrace.spark.files_read import OPTIONS as FILE_OPTIONS
from headrace.spark.jvm_checkpoint import JvmCheckpoint
from headrace.spark.kafka_options import SINK_OPTIONS
from headrace.spark.kafka_options import SOURCE_OPTIONS as OPTIONS
from headrace.spark.kafka_read import Mode, any_read, kafka_read
from headrace.spark.kafka_write import kafka_write
from headrace.spark.options import (
    REPEATED_WRITE,
    Option,
    OptionTable,
    SinkWrite,
    boolean,
    choice,
    integer,
    json_object,
    json_texts,
    sink_write,
    text,
    verbatim,
    warn_once,
)

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
OFFSETS = '{"t":{"0":23,"1":-1,"2":-2}}'
BY_GROUP = {"startingOffsets": "group"}
BY_TIME = {"startingOffsetsByTimestamp": '{"t":{"0":5}}'}


def read(mode=Mode.STREAM, **options):
    return kafka_read({**BASE, **{name.replace("__", "."): value for name, value in options.items()}}, mode)


def test_streaming_starts_at_latest_and_has_no_end():
    source = read().source
    assert (source.start, source.stop, source.start_of_new_partitions) == (Latest(), None, Earliest())


def test_batch_reads_from_earliest_to_latest():
    source = read(Mode.BATCH).source
    assert (source.start, source.stop) == (Earliest(), Latest())


def test_defaults_are_those_of_sparks_source():
    job = read()
    assert job.source.fail_on_data_loss
    assert job.source.isolation_level == "read_uncommitted"
    assert job.source.no_match == "error"
    assert job.source.group is None
    assert "headers" not in job.columns
    assert job.limits.max_delay_s == 900
    assert (job.limits.max_offsets, job.limits.min_offsets, job.min_tasks, job.max_task_offsets) == (None,) * 4


def test_names_ignore_case():
    job = kafka_read({"KAFKA.Bootstrap.Servers": "local:9092", "SUBSCRIBE": "t", "StartingOFFSETS": "Earliest"}, Mode.STREAM)
    assert job.source.start == Earliest()


@pytest.mark.parametrize(
    ("options", "attribute", "value"),
    [
        ({"subscribe": " a , b,"}, "topics", ("a", "b")),
        ({"subscribePattern": "a.*"}, "pattern", ".*(?:a.*).*"),
        ({"assign": '{"a":[0,1],"b":[2]}'}, "partitions", {"a": (0, 1), "b": (2,)}),
        ({"assign": "{}"}, "partitions", {}),
    ],
)
def test_subscriptions(options, attribute, value):
    source = kafka_read({"kafka.bootstrap.servers": "localhost:9092", **options}, Mode.STREAM).source
    assert getattr(source, attribute) == value


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "earliest"}, Earliest()),
        ({"startingOffsets": OFFSETS}, {("t", 0): At(23), ("t", 1): Latest(), ("t", 2): Earliest()}),
        ({"startingTimestamp": "7"}, Timestamp(7)),
        (BY_TIME, {("t", 0): Timestamp(5)}),
        ({**BY_TIME, "startingOffsets": "earliest"}, {("t", 0): Timestamp(5)}),
        ({"startingTimestamp": "7", **BY_TIME, "startingOffsets": "earliest"}, Timestamp(7)),
        ({**BY_GROUP, "kafka.group.id": "g"}, Committed("g", Earliest())),
        ({**BY_GROUP, "commitOffsetsToGroup": "g"}, Committed("g", Earliest())),
        ({**BY_GROUP, "kafka.group.id": "old", "commitOffsetsToGroup": "new"}, Committed("old", Earliest())),
        ({**BY_GROUP, "kafka.group.id": "g", "startingOffsetsWithoutCommit": "latest"}, Committed("g", Latest())),
    ],
)
def test_where_a_stream_starts(options, start):
    assert kafka_read({**BASE, **options}, Mode.STREAM).source.start == start


@pytest.mark.parametrize(
    ("options", "stop"),
    [
        ({"endingOffsets": '{"t":{"0":9,"1":-1}}'}, {("t", 0): At(9), ("t", 1): Latest()}),
        ({"endingTimestamp": "9"}, Timestamp(9)),
        ({"endingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsets": "latest"}, {("t", 0): Timestamp(5)}),
        ({"endingTimestamp": "9", "endingOffsetsByTimestamp": '{"t":{"0":5}}'}, Timestamp(9)),
    ],
)
def test_where_a_batch_ends(options, stop):
    assert kafka_read({**BASE, **options}, Mode.BATCH).source.stop == stop


def test_everything_else_arrives_where_it_belongs():
    job = read(
        includeHeaders="TRUE",
        failOnDataLoss="false",
        maxOffsetsPerTrigger="100",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="2m",
        maxRecordsPerPartition="50",
        minPartitions="8",
        commitOffsetsToGroup="g",
        startingOffsetsByTimestampStrategy="latest",
        startingOffsetsOfNewPartitions="latest",
        kafkaConsumer__pollTimeoutMs="1500",
        kafka__isolation__level="read_committed",
        kafka__client__id="me",
        jvmCheckpoint="/ck",
    )
    assert job.columns[-1] == "headers"
    assert (job.limits.max_offsets, job.limits.min_offsets, job.limits.max_delay_s) == (100, 10, 120)
    assert (job.min_tasks, job.max_task_offsets, job.poll_timeout_s) == (8, 50, 1.5)
    assert job.predecessor == JvmCheckpoint("/ck")
    source = job.source
    assert (source.group, source.fail_on_data_loss, source.no_match) == ("g", False, "latest")
    assert (source.start_of_new_partitions, source.isolation_level) == (Latest(), "read_committed")
    assert source.config.client_id == "me"


def test_the_job_can_be_pickled():
    assert pickle.loads(pickle.dumps(read())) == read()


@pytest.mark.parametrize(
    ("text", "seconds"), [("100", 0.1), ("100ms", 0.1), ("5s", 5), ("15m", 900), ("2min", 120), ("1h", 3600), ("1d", 86400)]
)
def test_times(text, seconds):
    assert read(maxTriggerDelay=text).limits.max_delay_s == pytest.approx(seconds)


@pytest.mark.parametrize("option", sorted(option.name for option in OPTIONS))
def test_a_misspelt_option_is_refused_with_the_nearest_known_one(option):
    misspelt = option[:3] + option[4:]
    with pytest.raises(UsageError, match=f"did you mean '{option}'"):
        read(**{misspelt: "1"})


def test_an_option_like_no_other_is_refused_with_all_there_are():
    with pytest.raises(UsageError, match="there are: subscribe, subscribePattern"):
        read(zzzzzzzz="1")


@pytest.mark.parametrize("option", ["path", "checkpointLocation"])
def test_what_spark_adds_is_tolerated(option):
    assert read(**{option: "/x"}) == read()


NO_PARTITIONS = ('{"t":"x"}', '{"t":3}', '{"t":"12"}', '{"t":[1.7]}', '{"t":[true]}', '{"t":[-1]}', '{"t":[2147483648]}')
NO_OFFSETS = [f'{{"t":{{{each}}}}}' for each in ('"0":1.9', '"0":"5"', '"0":Infinity', '"0":NaN', '"-1":1', '"1_0":1')]
NOT_SUPPORTED = "auto.offset.reset=latest key.deserializer=x value.deserializer=x enable.auto.commit=true interceptor.classes=x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "One of the following options must be specified for Kafka source"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "Only one of the following options can be specified"),
        ({"subscribe": "t", "subscribePattern": "t"}, "Only one of the following options can be specified"),
        ({"subscribe": " , "}, "No topics to subscribe to"),
        ({"subscribePattern": " "}, "Pattern to subscribe is empty"),
        ({"assign": ""}, "No topicpartitions to assign"),
        ({"assign": "t:0"}, "No topicpartitions to assign"),
        *[({"assign": text}, "assign.*must be JSON like") for text in NO_PARTITIONS],
        *[
            ({"subscribe": "t", "startingOffsets": text}, "startingOffsets.*must be JSON like")
            for text in [*NO_OFFSETS, '{"t":5}', '{"t":' * 9999]
        ],
        ({"subscribe": "t", "startingOffsets": "[" * 9999}, "startingOffsets.*must be earliest"),
        ({"subscribe": "t", "startingTimestamp": "-5"}, "timestamp in milliseconds must be between 0"),
        ({"subscribe": "t", "startingTimestamp": "1_0"}, "Expected a single long value, got 1_0"),
        ({"subscribe": "t", "startingTimestamp": "9" * 5000}, "Expected a single long value"),
        ({"subscribe": "t", "startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "ByTimestamp', t-0: a timestamp in milliseconds"),
        ({"subscribe": "t", "startingOffsetsWithoutCommit": "latest"}, "means nothing without startingOffsets=group"),
        ({"subscribe": "t", "minPartitions": "1_0"}, "must be a whole number"),
        ({"subscribe": "t", "startingOffsets": "middle"}, "startingOffsets.*must be earliest, latest, group, or JSON"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":-3}}'}, "offset must be between 0"),
        ({"subscribe": "t", "startingOffsets": "group"}, "set kafka.group.id, or commitOffsetsToGroup"),
        ({"subscribe": "t", "startingTimestamp": "noon"}, "Expected a single long value, got noon"),
        ({"subscribe": "t", "startingOffsetsByTimestamp": "5"}, "must be JSON like"),
        ({"subscribe": "t", "startingOffsetsByTimestampStrategy": "guess"}, "must be error or latest"),
        ({"subscribe": "t", "failOnDataLoss": "perhaps"}, "must be true or false"),
        ({"subscribe": "t", "minPartitions": "0"}, "minPartitions must be positive"),
        ({"subscribe": "t", "minPartitions": "a"}, "must be a whole number"),
        ({"subscribe": "t", "maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be positive"),
        ({"subscribe": "t", "maxTriggerDelay": "soon"}, "must be a duration such as"),
        ({"subscribe": "t", "fetchOffset.numRetries": "-1"}, "must be at least 0"),
        ({"subscribe": "t", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, r"minOffsetPerTrigger\(9\) is"),
        *[
            ({"subscribe": "t", f"kafka.{name}": text}, f"{name}' is not supported")
            for name, text in (pair.split("=") for pair in NOT_SUPPORTED.split())
        ],
        ({"subscribe": "t", "kafka.fetch.max.byte": "1"}, "did you mean 'fetch.max.bytes'"),
    ],
)
@pytest.mark.parametrize("mode", [Mode.STREAM, Mode.BATCH])
def test_refused_in_every_kind_of_query(options, message, mode):
    with pytest.raises(UsageError, match=message):
        kafka_read({"kafka.bootstrap.servers": "localhost:9092", **options}, mode)


def test_bootstrap_servers_are_needed():
    reads, writes = lambda: kafka_read({"subscribe": "t"}, Mode.STREAM), lambda: kafka_write({"topic": "t"})
    for missing, client in ((reads, "consumer"), (writes, "producer")):
        with pytest.raises(UsageError) as caught:
            missing()
        assert str(caught.value) == f"Option 'kafka.bootstrap.servers' must be specified for configuring Kafka {client}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "auto.offset.reset",
            "Kafka option 'auto.offset.reset' is not supported.\nInstead set the source option 'startingoffsets'",
        ),
        ("key.deserializer", "Kafka option 'key.deserializer' is not supported as keys are deserialized as byte arrays"),
        ("value.deserializer", "Kafka option 'value.deserializer' is not supported as values are deserialized as byte arrays"),
        ("key.serializer", "Kafka option 'key.serializer' is not supported as keys are serialized"),
        ("value.serializer", "Kafka option 'value.serializer' is not supported as values are serialized"),
        ("enable.auto.commit", "Kafka option 'enable.auto.commit' is not supported"),
        ("interceptor.classes", "Kafka option 'interceptor.classes' is not supported"),
    ],
)
@pytest.mark.parametrize("plan", [lambda options: kafka_read(options, Mode.STREAM), kafka_write])
def test_what_sparks_connector_refuses_is_refused_in_its_words(name, message, plan):
    with pytest.raises(UsageError) as caught:
        plan({**BASE, f"kafka.{name}": "true"})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("option", ["includeHeaders", "failOnDataLoss", "startingOffsets", "maxOffsetsPerTrigger"])
def test_an_option_of_the_source_means_nothing_to_the_sink_and_says_so(option, caplog):
    warn_once.cache_clear()
    write = {"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}
    assert kafka_write({**write, option.upper(): "true"}) == kafka_write(write)
    assert f"option '{option}' means nothing to the sink, and is ignored" in caplog.text


@pytest.mark.parametrize("option", ["topic", "delivery", "transactionalIdPrefix", "commitTopic", "txnAppId", "txnVersion"])
def test_an_option_of_the_sink_means_nothing_to_the_source_and_says_so(option, caplog):
    warn_once.cache_clear()
    assert read(**{option: "1"}) == read()
    assert caplog.text.count(f"option '{option}' means nothing to headrace's source, and is ignored") == 1
    assert read(**{option: "1"}) == read()
    assert caplog.text.count("is ignored") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":5}}'}, "ending timestamp not valid in streaming queries"),
        ({"endingTimestamp": "5"}, "ending timestamp not valid in streaming queries"),
    ],
)
def test_refused_in_streaming_queries(options, message):
    with pytest.raises(UsageError, match=message):
        kafka_read({**BASE, **options}, Mode.STREAM)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 can't be latest for batch"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "ending offset for t-0 can't be earliest for batch"),
        ({"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":9}}'}, "must name the same partitions: t-0, t-1"),
        ({"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'}, "offset 5 of t-0 is greater than"),
        ({**BY_TIME, "endingOffsetsByTimestamp": '{"t":{"0":4}}'}, "timestamp 5 of t-0 is greater than"),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "startingTimestamp 5 is greater than endingTimestamp 4"),
    ],
)
def test_refused_in_batch_queries(options, message):
    with pytest.raises(UsageError, match=message):
        kafka_read({**BASE, **options}, Mode.BATCH)


@pytest.mark.parametrize(
    ("option", "value"), [("maxOffsetsPerTrigger", "5"), ("jvmCheckpoint", "/x"), ("startingOffsetsOfNewPartitions", "latest")]
)
def test_options_of_streams_are_ignored_in_batch_queries_with_a_warning(option, value, caplog):
    read(Mode.BATCH, **{option: value})
    assert f"{option} option ignored in batch queries" in caplog.text


def test_a_strategy_without_a_timestamp_is_ignored_as_in_sparks_connector_and_that_is_said(caplog):
    read(startingOffsetsByTimestampStrategy="latest", startingTimestamp="5")
    assert caplog.text == ""
    read(startingOffsetsByTimestampStrategy="latest")
    assert "'startingOffsetsByTimestampStrategy' means nothing without a timestamp, and is ignored" in caplog.text


AT_LEAST_ONCE = {"kafka.bootstrap.servers": "localhost:9092", "topic": "t", "delivery": "at-least-once"}


def test_a_write_that_is_not_to_be_written_again_is_refused_without_transactions():
    """It was written again."""
    with pytest.raises(UsageError, match="'txnAppId' needs transactions, and delivery=at-least-once has none"):
        kafka_write({**AT_LEAST_ONCE, "txnAppId": "a", "txnVersion": "1"})


@pytest.mark.parametrize("option", ["transactionalIdPrefix", "commitTopic"])
def test_where_transactions_are_kept_means_nothing_without_them_and_that_is_said(option, caplog):
    warn_once.cache_clear()
    assert kafka_write({**AT_LEAST_ONCE, option: "x"}) == kafka_write(AT_LEAST_ONCE)
    assert f"option '{option}' means nothing with delivery=at-least-once, and is ignored" in caplog.text


def test_the_schema_can_be_asked_for_before_the_kind_of_query_is_known():
    assert any_read({**BASE, "endingOffsets": "latest"}).source.stop == Latest()
    assert any_read({**BASE, "startingOffsets": "latest"}).source.start == Latest()
    with pytest.raises(UsageError, match="did you mean"):
        any_read({**BASE, "startingOfsets": "latest"})


class TestJvmCheckpoint:
    @pytest.fixture
    def stored(self, tmp_path):
        """The file of its first source."""
        (tmp_path / "sources" / "0").mkdir(parents=True)
        return tmp_path / "sources" / "0" / "0"

    def test_its_file_is_read(self, stored, tmp_path):
        stored.write_bytes(b'\0v1\n{"t":{"0":5}}')
        assert JvmCheckpoint(str(tmp_path)).initial_offsets() == '{"t":{"0":5}}'
        assert JvmCheckpoint(f"file://{tmp_path}/sources/0").initial_offsets() == '{"t":{"0":5}}'

    def test_the_form_of_spark_21_is_read(self, stored, tmp_path):
        stored.write_bytes(b'\0{"t":{"0":5}}')
        assert JvmCheckpoint(str(tmp_path)).initial_offsets() == '{"t":{"0":5}}'

    def test_a_newer_version_is_refused(self, stored, tmp_path):
        stored.write_bytes(b'\0v99999\n{"t":{"0":5}}')
        with pytest.raises(StateError, match="v99999"):
            JvmCheckpoint(str(tmp_path)).initial_offsets()

    def test_a_directory_without_it_is_named(self, tmp_path):
        with pytest.raises(StateError, match="sources/0/0"):
            JvmCheckpoint(str(tmp_path)).initial_offsets()


@pytest.mark.parametrize(("regex", "found"), [
    ("N", ["N", "N-eu", "old-N"]), ("^N$", ["N"]), ("^N", ["N", "N-eu"]), ("N$", ["N", "old-N"]),
    ("(?i)n", ["N", "N-eu", "old-N"]), ("eu|old", ["N-eu", "old-N"]), ("n", []),
    (r"\QN-\E.", ["N-eu"]), (r"\QN-", ["N-eu"]), ("(?<x>l)d", ["old-N"]), ("(?x) old # c", ["old-N"]),
])  # fmt: skip
def test_a_pattern_is_looked_for_within_names_as_by_sparks_own_connector(regex, found):
    source = kafka_read({"kafka.bootstrap.servers": "localhost:9092", "subscribePattern": regex}, Mode.STREAM).source
    assert [name for name in ("N", "N-eu", "old-N") if java_pattern(source.pattern).fullmatch(name)] == found


# --- the text of one option -------------------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"
    DARK_BLUE = "dark-blue"


def parsers():
    """Made in the test: what is made before it starts is not a mutant's."""
    return {
        "verbatim": verbatim,
        "text": text,
        "boolean": boolean,
        "from 1": integer(1),
        "from 0": integer(0),
        "from 5": integer(5),
        "object": json_object('{"a":1}'),
        "texts": json_texts('{"a":"b"}'),
        "choice": choice(Colour),
        **{option.name: option.parse for table in (OPTIONS, SINK_OPTIONS) for option in table},
    }


def parsed(kind, value):
    parse = parsers()[kind]
    return parse(Option(kind, parse, "what it is for"), value)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("verbatim", " a ", " a "),
        ("text", " a ", "a"),
        ("boolean", " TRUE ", True),
        ("boolean", "False", False),
        ("from 1", " 1 ", 1),
        ("from 1", "+7", 7),
        ("from 0", "-0", 0),
        ("from 5", "5", 5),
        ("from 1", "9" * 19, int("9" * 19)),
        ("object", '{"a": [1]}', {"a": [1]}),
        ("texts", '{"a": "1"}', {"a": "1"}),
        ("texts", "{}", {}),
        ("choice", " Dark-BLUE ", Colour.DARK_BLUE),
        ("subscribePattern", " t.* ", ".*(?:t.*).*"),
        ("assign", ' {"t":[0,2147483647]}', {"t": (0, 2147483647)}),
        ("startingOffsets", " EARLIEST ", Earliest()),
        ("startingOffsets", '{"t":{"2147483647":5}}', {("t", 2147483647): At(5)}),
        ("startingOffsets", f'{{"t":{{"{"0" * 19}":-2}}}}', {("t", 0): Earliest()}),
        ("startingOffsets", "{}", {}),
        ("endingTimestamp", " 5 ", Timestamp(5)),
        ("startingOffsetsOfNewPartitions", " Latest ", Latest()),
        ("startingOffsetsWithoutCommit", "earliest", Earliest()),
        ("startingOffsetsByTimestampStrategy", " ERROR ", "error"),
        ("startingOffsetsByTimestampStrategy", "Latest", "latest"),
        ("badTimestamps", " Error ", "error"),
        ("badTimestamps", "NULL", "null"),
        ("badBatches", " Skip ", "skip"),
        ("badBatches", "error", "error"),
        ("maxTriggerDelay", " 7 US ", 7e-6),
        ("maxTriggerDelay", "12 min", 720.0),
        ("txnAppId", " job-1 ", "job-1"),
        ("txnVersion", " 007 ", 7),
    ],
)
def test_what_the_text_of_an_option_means(kind, value, found):
    assert parsed(kind, value) == found
    assert type(parsed(kind, value)) is type(found)


OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}} (-1 is latest, -2 is earliest)'
TIMES_EXAMPLE = '{"topicA":{"0":1000,"1":1000},"topicB":{"0":2000}}'
OF_A_WRITE = "0123456789ab4cde8f0123456789abcd"
PARTITIONS_EXAMPLE = '{"topicA":[0,1],"topicB":[2,4]}'


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("boolean", "yes", "true or false"),
        ("from 1", "x", "a whole number"),
        ("from 1", "9" * 20, "a whole number"),
        ("from 0", "-1", "at least 0"),
        ("from 5", "4", "at least 5"),
        ("choice", "green", "red or dark-blue"),
        ("assign", "{", f"JSON like {PARTITIONS_EXAMPLE}"),
        ("assign", '{"t":[0],"u":0}', f"JSON like {PARTITIONS_EXAMPLE}"),
        ("startingOffsets", "x", f"earliest, latest, group, or JSON like {OFFSETS_EXAMPLE}"),
        ("endingOffsets", "group", f"latest, or JSON like {OFFSETS_EXAMPLE}"),
        ("startingOffsets", "{1}", f"JSON like {OFFSETS_EXAMPLE}"),
        ("startingOffsets", '{"t":1}', f"JSON like {OFFSETS_EXAMPLE}"),
        ("startingOffsets", f'{{"t":{{"{"0" * 20}":1}}}}', f"JSON like {OFFSETS_EXAMPLE}"),
        ("startingOffsets", '{"t":{"2147483648":1}}', f"JSON like {OFFSETS_EXAMPLE}"),
        ("startingOffsetsByTimestamp", '{"t":{"0":true}}', f"JSON like {TIMES_EXAMPLE}"),
        ("startingOffsetsOfNewPartitions", "group", "earliest or latest"),
        ("startingOffsetsByTimestampStrategy", "x", "error or latest"),
        ("badTimestamps", "x", "error or null"),
        ("badBatches", "keep", "error or skip"),
        ("maxTriggerDelay", "1 y", "a duration such as '10 s', '500 ms' or '1 min' (a number alone: ms)"),
        ("txnVersion", "1.5", "a whole number from 0"),
        ("txnVersion", "²", "a whole number from 0"),
        ("txnVersion", "9" * 5000, "a whole number from 0"),
        ("txnVersion", "é", "a whole number from 0"),
        ("txnAppId", f"batch-{OF_A_WRITE}", "of another form than the names of writes that are never repeated"),
    ],
)
def test_what_an_option_must_be_is_said_in_full(kind, value, wanted):
    with pytest.raises(UsageError) as raised:
        parsed(kind, value)
    assert str(raised.value) == f"option '{kind}' must be {wanted}, not '{value}'"


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("verbatim", " ", "option 'verbatim' must not be empty"),
        ("text", "", "option 'text' must not be empty"),
        ("from 1", "0", "from 1 must be positive"),
        ("object", "[1]", "option 'object' must be JSON like {\"a\":1}"),
        ("object", "x", "option 'object' must be JSON like {\"a\":1}"),
        ("texts", '{"a":1}', 'option \'texts\' must be JSON like {"a":"b"}, with texts as values'),
        ("texts", "[]", 'option \'texts\' must be JSON like {"a":"b"}, with texts as values'),
        ("subscribe", " , ", "No topics to subscribe to as specified value for option 'subscribe' is ' , '"),
        ("subscribePattern", " ", "Pattern to subscribe is empty as specified value for option 'subscribePattern' is ' '"),
        ("assign", "t", "No topicpartitions to assign as specified value for option 'assign' is 't'"),
        ("endingTimestamp", " noon ", "Expected a single long value, got noon"),
    ],
)
def test_what_else_is_wrong_with_an_option_is_said_in_full(kind, value, said):
    with pytest.raises(UsageError) as raised:
        parsed(kind, value)
    assert str(raised.value) == said


def test_where_a_position_is_out_of_range_is_said():
    with pytest.raises(UsageError, match=r"^option 'startingOffsets', t-3: an offset must be between 0") as raised:
        parsed("startingOffsets", '{"t":{"3":-3}}')
    assert raised.value.__cause__ is None


def test_a_glob_that_matches_no_name_is_refused_by_its_option():
    with pytest.raises(UsageError, match=r"^option 'pathGlobFilter' must be a glob for names of files, .*: its `{` has no end"):
        FILE_OPTIONS.parse({"path": "/in", "pathGlobFilter": "*.{json"})
    parsed_options, _ = FILE_OPTIONS.parse({"path": "/in", "pathGlobFilter": " *.{json,jsonl} "})
    assert parsed_options["pathGlobFilter"] == "*.{json,jsonl}"


# --- a table ----------------------------------------------------------------------------------------------------------------

PLAIN = OptionTable(
    [Option("wingSpan", integer(1), "how wide it is"), Option("colour", choice(Colour), "of its feathers")],
    "the plain sink",
    "this sink",
    ignored=frozenset({"passedover"}),
    other_side=[Option("beakLength", integer(1), "how long"), Option("tail", text, "whether it has one")],
)


def test_a_table_without_a_prefix_has_no_properties():
    assert PLAIN.parse({"WINGSPAN": "7", "PassedOver": "x", "queryName": "q"}) == ({"wingSpan": 7}, {})
    assert [option.name for option in PLAIN] == ["wingSpan", "colour"]


def test_options_of_a_group_are_given_together_by_their_names_in_lower_case():
    table = OptionTable([Option("rack", text, "where")], "the oven", "this oven", groups=("heat.", "grill."))
    written = {"Heat.Upper": "Much", "HEAT.lower": "1", "rack": "2", "grill.heat.x": "on"}
    assert table.parse(written) == ({"heat.": {"upper": "Much", "lower": "1"}, "rack": "2", "grill.": {"heat.x": "on"}}, {})


@pytest.mark.parametrize("name", ["txnAppId", "txnVersion", "choice"])
def test_an_empty_text_is_refused_by_its_option(name):
    with pytest.raises(UsageError, match=f"^option '{name}' must not be empty$"):
        parsed(name, " ")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("wingSpam", "option 'wingSpam' is not known to the plain sink; did you mean 'wingSpan'?"),
        ("bootstrap.servers", "option 'bootstrap.servers' is not known to the plain sink"),
        ("zzz", "option 'zzz' is not known to the plain sink"),
    ],
)
def test_an_option_that_a_table_lacks_is_refused_in_full(written, said):
    with pytest.raises(UsageError) as raised:
        PLAIN.parse({written: "1"})
    assert str(raised.value) == said


def test_a_property_without_its_prefix_is_refused_with_it():
    with pytest.raises(UsageError, match=r"not known to headrace; did you mean 'kafka\.bootstrap\.servers'\?$"):
        read(kafkabootstrap__servers="x")


def test_each_option_of_the_other_side_is_warned_of_by_its_name(caplog):
    warn_once.cache_clear()
    assert PLAIN.parse({"TAIL": "1", "beaklength": "x"}) == ({}, {})
    assert [record.message for record in caplog.records] == [
        "option 'tail' means nothing to this sink, and is ignored",
        "option 'beakLength' means nothing to this sink, and is ignored",
    ]


def test_what_a_missing_option_is_for_is_said():
    table = replace(PLAIN, required=("wingSpan", "colour"))
    assert set(table.parse({"wingSpan": "1", "colour": next(iter(Colour))})[0]) == {"wingSpan", "colour"}
    with pytest.raises(UsageError, match=re.escape("option 'colour' is missing: of its feathers") + "$"):
        table.parse({"wingSpan": "1"})


def test_the_two_options_of_a_repeated_write_go_together():
    sink, both = object(), {"txnAppId": "a", "txnVersion": 3}
    assert [option.name for option in REPEATED_WRITE] == list(both)
    assert sink_write(sink, both) == SinkWrite(sink, "a", 3)
    assert sink_write(sink, {}) == SinkWrite(sink, None, None)
    for name in both:
        with pytest.raises(UsageError, match=r"^options 'txnAppId' and 'txnVersion' go together$"):
            sink_write(sink, {name: both[name]})


# --- references of a schema -----------------------------------------------------------------------------------------------

(REFERENCES,) = [option for option in SINK_OPTIONS.options if option.name == "valueSchemaReferences"]
CITY = {"name": "air.City", "subject": "city-value", "version": 1}


def test_references_of_a_schema_are_names_subjects_and_versions():
    found = REFERENCES.parse(REFERENCES, json.dumps([CITY, {**CITY, "name": "air.Leg", "version": 12}]))
    fields = [(each.name, each.subject, each.version) for each in found]
    assert fields == [("air.City", "city-value", 1), ("air.Leg", "city-value", 12)]
    assert REFERENCES.parse(REFERENCES, "[]") == ()


@pytest.mark.parametrize(
    "document",
    [
        CITY,
        ["air.City"],
        [CITY, {**CITY, "name": 1}],
        *[[{**CITY, "version": version}] for version in (0, -1, True, "1")],
        *[[{**CITY, "subject": None}], [{**CITY, "more": "x"}]],
        *[[{name: CITY[name] for name in CITY if name != missing}] for missing in CITY],
    ],
)
def test_other_references_are_refused_with_their_form(document):
    refused_reference(json.dumps(document))


@pytest.mark.parametrize("written", ["", "[", "{'name': 1}", "[" * 100_000])
def test_references_that_are_no_json_are_refused_with_their_form(written):
    refused_reference(written)


def refused_reference(written):
    with pytest.raises(UsageError) as raised:
        REFERENCES.parse(REFERENCES, written)
    form = 'a JSON list of objects like {"name": "air.City", "subject": "city-value", "version": 1}'
    assert str(raised.value) == f"option 'valueSchemaReferences' must be {form}, not {written!r}"
