"""`ReadFromKafka`: Beam's arguments, what becomes of them, and what is refused by name. Nothing is contacted."""

from __future__ import annotations

import inspect
import pickle

import apache_beam as beam
import apache_beam.io.kafka
import pyarrow as pa
import pytest
from apache_beam.coders import RowCoder
from apache_beam.portability.api import schema_pb2
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints.schemas import typing_to_runner_api

from headrace.beam import KafkaHeader, KafkaRecord, ProcessingTime, ReadFromKafka, SplitDeadLetters, WriteToKafka
from headrace.beam.kafka_read import LogAppendTime
from headrace.beam.kafka_records import as_kafka_records, as_pairs
from headrace.connectors.kafka.format.decode import ALL_COLUMNS, arrow_schema
from headrace.enumerator.errors import UsageError
from headrace.formats import JsonFormat
from headrace.kafka import At, Committed, Earliest, Latest, Timestamp
from headrace.testing.fake_kafka import FakeKafka, NewRecord
from tests.helpers.python_path import printed

DESERIALIZER = "key.deserializer"
CONFIG = {"bootstrap.servers": "localhost:9092"}


def source_of(**arguments):
    config = {**CONFIG, **arguments.pop("config", {})}
    return ReadFromKafka(config, **{"topics": ["t"], **arguments})._read._source


def test_it_takes_the_arguments_of_beams_own_by_name_and_by_position_with_the_same_defaults():
    ours = inspect.signature(ReadFromKafka.__init__).parameters
    theirs = inspect.signature(apache_beam.io.kafka.ReadFromKafka.__init__).parameters
    shared = [name for name, parameter in ours.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    assert shared == list(theirs)
    differing = {name for name in shared if ours[name].default != theirs[name].default}
    assert differing == {"topics"}  # a pattern may stand in for it


def test_it_has_the_names_that_pipelines_take_from_beams_class():
    for name in ("byte_array_deserializer", "processing_time_policy", "create_time_policy", "log_append_time"):
        assert getattr(ReadFromKafka, name) == getattr(apache_beam.io.kafka.ReadFromKafka, name)


@pytest.mark.parametrize(
    ("config", "arguments", "start"),
    [
        ({}, {}, Latest()),
        ({"auto.offset.reset": "earliest"}, {}, Earliest()),
        ({"group.id": "g"}, {}, Committed("g", fallback=Latest())),
        ({"group.id": "g", "auto.offset.reset": "earliest"}, {}, Committed("g", fallback=Earliest())),
        ({"group.id": "g", "auto.offset.reset": "earliest"}, {"start_read_time": 1700}, Timestamp(1700)),
        ({"group.id": "g"}, {"start_read_time": 1700, "start": At(5)}, At(5)),
    ],
)
def test_where_reading_starts_is_decided_in_kafkaios_order(config, arguments, start):
    assert source_of(config=config, **arguments).start == start


@pytest.mark.parametrize(
    ("config", "arguments", "isolation"),
    [
        ({}, {}, "read_uncommitted"),
        ({"isolation.level": "read_committed"}, {}, "read_committed"),
        ({"isolation.level": "read_uncommitted"}, {"isolation_level": "read_committed"}, "read_committed"),
    ],
)
def test_isolation_is_the_java_clients_unless_said_otherwise(config, arguments, isolation):
    assert source_of(config=config, **arguments).isolation_level == isolation


def test_other_properties_reach_the_client_and_may_be_numbers_and_booleans():
    config = source_of(config={"fetch.max.wait.ms": 50, "check.crcs": True, "client.id": "me"}).config
    assert (config.fetch_max_wait_ms, config.client_id) == (50, "me")
    with pytest.raises(UsageError, match=r"'check\.crcs' may only be true, not 'false'"):
        source_of(config={"check.crcs": False})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key_deserializer": "org.apache.kafka.common.serialization.LongDeserializer"}, "key_deserializer='org.apache"),
        ({"value_deserializer": "my.Deserializer"}, "value_deserializer='my.Deserializer' is a Java class"),
        ({"consumer_factory_fn_class": "my.Factory"}, "consumer_factory_fn_class names a Java class"),
        ({"config": {DESERIALIZER: "x"}}, f"consumer_config must not hold {DESERIALIZER}: the argument key_deserializer"),
        ({"config": {"auto.offset.reset": "none"}}, "auto.offset.reset must be earliest or latest"),
        ({"config": {"enable.auto.commit": "perhaps"}}, "enable.auto.commit must be true or false"),
        ({"config": {"max.pol.records": "1"}}, "did you mean 'max.poll.records'"),
        ({"commit_offset_in_finalize": True}, "set group.id in consumer_config"),
        ({"config": {"enable.auto.commit": "true"}}, "set group.id in consumer_config"),
        ({"timestamp_policy": "Sometime"}, "timestamp_policy must be one of ProcessingTime, CreateTime, LogAppendTime"),
        ({"output": "pandas"}, 'output must be "records", "arrow" or "rows"'),
        ({"output": "arrow", "with_metadata": True}, 'with_metadata is for output="records"'),
        ({"output": "rows", "with_metadata": True}, 'with_metadata is for output="records"'),
        ({"columns": ["key"]}, 'columns is for output="arrow" and output="rows"'),
        ({"output": "arrow", "columns": ["key"], "timestamp_policy": "CreateTime"}, "needs the columns timestamp"),
        ({"topics": None}, "give exactly one of topics, pattern and partitions"),
        ({"pattern": "t.*"}, "give exactly one of topics, pattern and partitions"),
        ({"topics": "t"}, "topics must be a non-empty list"),
        ({"max_num_records": 0}, "the limit of records must be a whole number, at least 1"),
        ({"max_read_time": -1}, "the limit of time must be positive seconds"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(arguments, message):
    with pytest.raises(UsageError, match=message):
        source_of(**arguments)


def test_bootstrap_servers_are_needed():
    with pytest.raises(UsageError, match=r"consumer_config must hold bootstrap\.servers"):
        ReadFromKafka({}, ["t"])


def test_an_expansion_service_is_ignored_with_a_warning(caplog):
    source_of(expansion_service="localhost:8097")
    assert "ignores expansion_service" in caplog.text


@pytest.mark.parametrize(
    ("config", "arguments", "publishes"),
    [
        ({"group.id": "g"}, {}, False),
        ({"group.id": "g"}, {"commit_offset_in_finalize": True}, True),
        ({"group.id": "g", "enable.auto.commit": True}, {}, True),
        ({"group.id": "g", "enable.auto.commit": "false"}, {}, False),
        ({"group.id": "g"}, {"commit_offset_in_finalize": True, "max_num_records": 5}, True),
    ],
)
def test_offsets_are_committed_when_asked_for_and_auto_commit_is_taken_as_that(config, arguments, publishes):
    assert ReadFromKafka({**CONFIG, **config}, ["t"], **arguments)._read._publishes is publishes


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        ({}, ["key", "value"]),
        ({"timestamp_policy": "CreateTime"}, ["key", "value", "timestamp"]),
        ({"timestamp_policy": "LogAppendTime"}, ["key", "value", "topic", "timestamp", "timestampType"]),
        ({"with_metadata": True}, [*ALL_COLUMNS, "headers"]),
        ({"output": "arrow"}, list(ALL_COLUMNS)),
        ({"output": "arrow", "columns": ["value", "offset"]}, ["value", "offset"]),
    ],
)
def test_only_the_columns_that_are_needed_are_built(arguments, columns):
    assert source_of(**arguments).schema.names == columns


A_NUMBER = JsonFormat(pa.struct([("a", pa.int64())]))


def test_formats_make_typed_batches_and_bad_records_can_be_kept():
    typed = {"value_format": A_NUMBER, "on_bad_record": "keep", "output": "arrow"}
    with FakeKafka() as kafka:
        kafka.create_topic("t", partitions=1)
        kafka.append("t", b'{"a": 1}', b"bad")
        read = ReadFromKafka({"bootstrap.servers": kafka.bootstrap}, ["t"], start=Earliest(), stop=Latest(), **typed)
        source = pickle.loads(pickle.dumps(read._read._source))
        assert source.schema.names == [*ALL_COLUMNS, "badValue", "badReason", "deadLetter"]
        rows = [row for batch in source.batches() for row in batch.to_pylist()]
    assert [(row["value"], row["badValue"]) for row in rows] == [({"a": 1}, None), (None, b"bad")]
    assert source_of(**typed, columns=["offset", "badValue"]).schema.names == ["offset", "badValue"]
    with pytest.raises(UsageError, match='value_format and key_format are for output="arrow"'):
        source_of(value_format=A_NUMBER)


def test_dead_letters_are_an_output_of_their_own_that_can_be_written():
    typed = {"value_format": A_NUMBER, "on_bad_record": "keep", "output": "arrow"}
    with FakeKafka() as kafka:
        for topic in ("t", "letters"):
            kafka.create_topic(topic, partitions=1)
        kafka.append("t", b'{"a": 1}', NewRecord(b"bad", key=b"k", headers=[("h", b"v")]), b'{"a": 2}')
        config = {"bootstrap.servers": kafka.bootstrap}
        with beam.Pipeline() as pipeline:
            read = ReadFromKafka(config, ["t"], start=Earliest(), stop=Latest(), **typed)
            records, dead = pipeline | read | SplitDeadLetters()
            _ = dead | WriteToKafka(config, "letters")
            rows = records | beam.FlatMap(lambda batch: batch.select(["value", "offset"]).to_pylist())
            assert_that(rows, equal_to([{"value": {"a": 1}, "offset": 0}, {"value": {"a": 2}, "offset": 2}]))
            _ = records | beam.Map(lambda batch: _without_bad(batch.schema.names))
        (letter,) = kafka.records("letters")
    assert (letter.key, letter.value, letter.headers[0]) == (b"k", b"bad", ("h", b"v"))
    assert dict(letter.headers)["__connect.errors.offset"] == b"1"


def _without_bad(names):
    assert not {"badValue", "badReason", "deadLetter"} & set(names)


def test_discovery_continues_and_its_interval_can_be_chosen():
    assert source_of().discovery_interval_s == 300
    assert source_of(dynamic_read_poll_interval_seconds=7).discovery_interval_s == 7


def test_a_stop_or_a_limit_makes_it_bounded():
    pipeline = beam.Pipeline()  # never run
    assert not (pipeline | "a" >> ReadFromKafka(CONFIG, ["t"])).is_bounded
    assert (pipeline | "b" >> ReadFromKafka(CONFIG, ["t"], stop=Latest())).is_bounded
    assert (pipeline | "c" >> ReadFromKafka(CONFIG, ["t"], max_num_records=1)).is_bounded


ROWS = {
    "key": [b"k", None],
    "value": [b"v", None],
    "topic": ["t", "t"],
    "partition": [3, 3],
    "offset": [7, 8],
    "timestamp": [1_700_000_000_123_000, 1_700_000_000_124_000],
    "timestampType": [0, 1],
    "headers": [[{"key": "h", "value": None}], None],
}
SCHEMA = arrow_schema([*ALL_COLUMNS, "headers"])
BATCH = pa.RecordBatch.from_arrays([pa.array(ROWS[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def test_records_are_pairs_of_bytes():
    assert list(as_pairs(BATCH)) == [(b"k", b"v"), (None, None)]


def test_records_with_metadata_have_the_fields_of_beams_rows():
    assert list(as_kafka_records(BATCH)) == [
        KafkaRecord("t", 3, 7, 1_700_000_000_123, b"k", b"v", [KafkaHeader("h", None)], 0, "CreateTime"),
        KafkaRecord("t", 3, 8, 1_700_000_000_124, None, None, [], 1, "LogAppendTime"),
    ]


def test_records_with_metadata_are_rows_to_beam():
    coder = beam.coders.registry.get_coder(KafkaRecord)
    assert isinstance(coder, RowCoder)
    for record in as_kafka_records(BATCH):
        assert coder.decode(coder.encode(record)) == record


def test_records_with_metadata_have_a_schema_that_sql_and_other_languages_read():
    def kind(field):
        return field.type.atomic_type or field.type.WhichOneof("type_info")

    schema = typing_to_runner_api(KafkaRecord).row_type.schema
    number, text, octets = schema_pb2.INT64, schema_pb2.STRING, schema_pb2.BYTES
    assert {field.name: (kind(field), field.type.nullable) for field in schema.fields} == {
        **dict.fromkeys(("topic", "timestampTypeName"), (text, False)),
        **dict.fromkeys(("partition", "offset", "timestamp", "timestampTypeId"), (number, False)),
        "key": (octets, True),
        "value": (octets, True),
        "headers": ("array_type", True),
    }
    header = schema.fields[6].type.array_type.element_type.row_type.schema
    fields = {field.name: (kind(field), field.type.nullable) for field in header.fields}
    assert fields == {"key": (text, False), "value": (octets, True)}


def test_log_append_time_is_refused_for_a_topic_without_it():
    assert LogAppendTime().micros(BATCH.slice(1)).to_pylist() == [1_700_000_000_124_000]
    with pytest.raises(UsageError, match="and t has records without it"):
        LogAppendTime().micros(BATCH)


def test_the_transform_is_picklable_and_shows_no_password():
    secret = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hush";',
    }
    transform = ReadFromKafka({**CONFIG, **secret}, ["t"])
    assert "hush" not in repr(transform)
    assert "hush" not in repr(transform._read._source)
    pipeline = beam.Pipeline()  # never run
    _ = pipeline | transform | WriteToKafka({**CONFIG, **secret}, "u")
    steps = pipeline.to_runner_api().components.transforms.values()
    shown = [each.unique_name.encode() for each in steps] + [data.payload for each in steps for data in each.display_data]
    assert len(shown) > len(steps)  # what Flink's page shows, without the pickled functions, which need it
    assert not [each for each in shown if b"hush" in each]
    assert pickle.loads(pickle.dumps(transform._read._source)) == transform._read._source


def test_processing_time_is_the_default():
    assert ReadFromKafka(CONFIG, ["t"])._event_time == ProcessingTime()


def test_importing_headrace_or_its_kafka_does_not_import_beam():
    code = "import sys, headrace, headrace.kafka, headrace.enumerator; print('apache_beam' in sys.modules)"
    assert printed(code) == "False"
