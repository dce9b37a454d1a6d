"""KafkaSource as a value: what contradicts itself is refused when it is made, it can be pickled, and it does no I/O."""

from __future__ import annotations

import pickle
import re
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.read.discovery import Partitions, Pattern, Topics
from headrace.enumerator import Boundedness
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import UsageError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.resumed import selected
from headrace.kafka import At, Committed, Earliest, KafkaSource, KafkaSplit, Latest, Timestamp
from headrace.testing import FakeKafka
from tests.helpers.python_path import printed

NOBODY = "127.0.0.1:1"


def make(**arguments):
    return KafkaSource(NOBODY, **({"topics": ["t"]} | arguments))


REFUSED = {
    "nothing to read": ({"topics": None}, "exactly one of topics, pattern and partitions, not none"),
    "topics and a pattern": ({"pattern": "t.*"}, "not topics and pattern"),
    "all three": ({"pattern": "t", "partitions": {"t": [0]}}, "not topics and pattern and partitions"),
    "a name instead of names": ({"topics": "t"}, "topics must be a non-empty list"),
    "no names": ({"topics": []}, "topics must be a non-empty list"),
    "an empty name": ({"topics": ["t", ""]}, "topics must be a non-empty list"),
    "a pattern that is none": ({"topics": None, "pattern": "("}, "not a regular expression"),
    "an empty pattern": ({"topics": None, "pattern": ""}, "pattern must not be empty"),
    "an empty text for partitions": ({"topics": None, "partitions": {"t": ""}}, "partitions must be like"),
    "a negative partition": ({"topics": None, "partitions": {"t": [-1]}}, "partitions must be like"),
    "a partition that is not a number": ({"topics": None, "partitions": {"t": ["0"]}}, "partitions must be like"),
    "a partition that is a truth": ({"topics": None, "partitions": {"t": [True]}}, "partitions must be like"),
    "a word for a start": ({"start": "earliest"}, "start must be one of Earliest, Latest, At"),
    "a class for a start": ({"start": Earliest}, "start must be one of"),
    "a word among starts": ({"start": {("t", 0): 5}}, "start must be one of"),
    "starts by topic": ({"start": {"t": Earliest()}}, r"'t' is not \(topic, partition\)"),
    "stops by odd keys": ({"stop": {("t", "0"): Latest()}}, r"\('t', '0'\) is not \(topic, partition\)"),
    "a stop at the beginning": ({"stop": Earliest()}, "stop must be one of Latest, At, Timestamp, Committed"),
    "a later start by partition": ({"start_of_new_partitions": {("t", 0): Latest()}},
        "start_of_new_partitions must be one position"),
    "a word for a later start": ({"start_of_new_partitions": "latest"}, "start_of_new_partitions must be one of"),
    "a start of no group": ({"start": Committed()}, "Committed.. needs a group"),
    "a stop of no group": ({"stop": {("t", 0): Committed()}}, "Committed.. needs a group"),
    "an unknown isolation": ({"isolation_level": "serializable"}, "isolation.level must be read_uncommitted or read_committed"),
    "two isolations": ({"properties": {"isolation.level": "read_uncommitted"}}, "contradicts the property isolation.level"),
    "two clusters": ({"properties": {"Bootstrap.Servers": "other:9092"}}, "contradicts the property bootstrap.servers"),
    "two groups": ({"group": "a", "properties": {"group.id": "b"}}, "group='a' contradicts the property group.id='b'"),
    "an empty group": ({"group": ""}, "group.id must not be empty"),
    "an unknown property": ({"properties": {"max.partition.fetch.byte": "1"}}, "did you mean 'max.partition.fetch.bytes'"),
    "a property of Java": ({"properties": {"key.deserializer": "x"}}, "key.deserializer"),
    "an unknown column": ({"columns": ["value", "valeu"]}, "valeu"),
    "no column": ({"columns": []}, "columns"),
    "a word for no match": ({"no_match": "earliest"}, "no_match must be 'error' or 'latest'"),
    "no list of names": ({"topics": 5}, "topics must be a non-empty list"),
    "names of bytes": ({"topics": [b"t"]}, "topics must be a non-empty list"),
    "a pattern of Python": ({"topics": None, "pattern": re.compile("t")}, "pattern must be a string"),
    "partitions without a topic": ({"topics": None, "partitions": [0, 1]}, "partitions must be like"),
    "one partition": ({"topics": None, "partitions": {"t": 0}}, "partitions must be like"),
    "a topic that is a number": ({"topics": None, "partitions": {1: [0]}}, "partitions must be like"),
    "unhashable partitions": ({"topics": None, "partitions": {"t": [[0]]}}, "partitions must be like"),
    "a group that is a list": ({"group": ["g"]}, "group must be a string"),
    "an isolation that is a number": ({"isolation_level": 1}, "isolation_level must be a string"),
    "no properties": ({"properties": None}, "properties must be a mapping .* not NoneType"),
    "properties as pairs": ({"properties": [("client.id", "x")]}, "properties must be a mapping .* not list"),
    "a property of no value": ({"properties": {"client.id": None}}, "the property client.id must be a string, .* not NoneType"),
    "a property of bytes": ({"properties": {"client.id": b"x"}}, "the property client.id must be a string, .* not bytes"),
    "a property without a name": ({"properties": {1: "x"}}, "the names of properties are strings, not 1"),
    "a property twice": ({"properties": {"Client.Id": "a", "client.id": "b"}}, "client.id is given twice"),
    "a number of Python": ({"properties": {"fetch.max.bytes": "1_000"}}, "fetch.max.bytes must be a whole number"),
    "a number of 5000 digits": ({"properties": {"fetch.max.bytes": "9" * 5000}}, "fetch.max.bytes must be a whole number"),
    "a number with a point": ({"properties": {"fetch.max.bytes": 1000.0}}, "fetch.max.bytes must be a whole number"),
    "no login": ({"sasl": {"mechanism": "PLAIN"}}, "sasl must be a SaslConfig or None, not dict"),
    "a word for a truth": ({"fail_on_data_loss": "false"}, "fail_on_data_loss must be True or False, not 'false'"),
    "one column": ({"columns": "value"}, "columns must be a list of names, not 'value'"),
    "a budget with a point": ({"fetch_budget_bytes": 1e9}, "fetch_budget_bytes must be a whole number"),
    "an interval without end": ({"discovery_interval_s": float("inf")}, "discovery_interval_s must be positive .* not inf"),
    "an interval that is not a number": ({"discovery_interval_s": float("nan")}, "discovery_interval_s must be positive"),
    "a word for an interval": ({"discovery_interval_s": "5"}, "discovery_interval_s must be positive .* not '5'"),
    "a tiny budget": ({"fetch_budget_bytes": 1000}, "at least 1 MiB"),
    "an interval of nothing": ({"discovery_interval_s": 0}, "discovery_interval_s must be positive"),
    "a negative interval": ({"discovery_interval_s": -1.0}, "discovery_interval_s must be positive"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_contradiction_is_refused_when_it_is_made(arguments, message):
    with pytest.raises(UsageError, match=message):
        make(**arguments)


@pytest.mark.parametrize("bootstrap", ["", "host", "host:port", "host:0", ","])
def test_an_address_that_is_none_is_refused(bootstrap):
    with pytest.raises(UsageError, match=r"bootstrap"):
        KafkaSource(bootstrap, topics=["t"])


def test_what_is_said_twice_the_same_way_is_no_contradiction():
    properties = {"isolation.level": "read_committed", "group.id": "g", "bootstrap.servers": NOBODY}
    assert make(group="g", properties=properties).config == make(group="g").config


def test_a_group_in_the_properties_serves_committed_but_is_never_committed_to():
    source = make(start=Committed(), properties={"group.id": "g"})
    assert source.config.group_id == "g"
    source.checkpoint_completed([KafkaSplit("t", None, 0, 1)])  # would fail, as no process is there


def test_defaults_lose_nothing():
    source = make()
    assert (source.start, source.start_of_new_partitions) == (Earliest(), Earliest())
    assert source.config.isolation is Isolation.READ_COMMITTED
    assert source.fail_on_data_loss
    assert source.boundedness is Boundedness.UNBOUNDED
    assert make(stop=Latest()).boundedness is Boundedness.BOUNDED


def test_what_is_read_is_one_tagged_value():
    assert make(topics=["b", "a", "b"]).subscription == Topics(("b", "a"))
    assert make(topics=None, pattern="a.*").subscription == Pattern("a.*")
    assert make(topics=None, partitions={"a": [1, 0, 1]}).subscription == Partitions((("a", 1), ("a", 0)))


@pytest.mark.parametrize("partitions", [{}, {"t": []}])
def test_an_assignment_without_partitions_has_no_records(partitions):
    """Regression: it was refused, and Spark's own connector reads an empty frame."""
    with FakeKafka() as kafka:
        kafka.create_topic("t", partitions=1)
        kafka.append("t", b"1")
        assert list(KafkaSource(kafka.bootstrap, partitions=partitions, stop=Latest()).batches()) == []


def test_the_schema_is_that_of_sparks_own_source():
    assert make().schema == pa.schema([
        ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()),
        ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC")), ("timestampType", pa.int32()),
    ])  # fmt: skip
    assert make(columns=["headers", "value"]).schema.names == ["value", "headers"]
    assert make().with_columns(["offset", "key"]).schema.names == ["key", "offset"]


def test_a_copy_is_equal_and_works_without_a_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    source = make(
        start={("t", 0): At(3), ("t", 1): Timestamp(5)}, stop=Committed("g", At(0)), group="g",
        properties={"security.protocol": "SSL"}, discovery_interval_s=None,
    )  # fmt: skip
    copy = pickle.loads(pickle.dumps(source))
    assert copy == source
    assert (copy.config, copy.subscription, copy.schema) == (source.config, source.subscription, source.schema)
    copy.create_discovery().close()
    with copy.create_reader() as reader:
        assert reader.poll(0.0) is None
    copy.create_reader().close()


def test_its_text_shows_no_secret():
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hunter2";'
    source = make(properties={"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas})
    assert "hunter2" not in repr(source) + repr(source.config)


ENGINES = ("pyspark", "apache_beam", "confluent_kafka", "testcontainers")
CLIENTS = ("kafka", "cramjam", "tenacity")


@pytest.mark.parametrize(("module", "unwanted"), [
    *((name, ENGINES + CLIENTS) for name in ("headrace", "headrace.enumerator", "headrace.testing.memory")),
    ("headrace.kafka", ENGINES),
])  # fmt: skip
def test_importing_headrace_imports_no_engine_and_no_client(module, unwanted):
    code = f"import sys, {module}; print([name for name in {unwanted} if name in sys.modules])"
    assert printed(code, Path(__file__).parent) == "[]"


@pytest.mark.parametrize(("named", "said"), [
    ({"topics": ["t", "u"]}, "u: not read"),
    ({"topics": ["t"]}, None),
    ({"topics": None, "partitions": {"t": [0, 1]}}, "t-1: not read"),
    ({"topics": None, "pattern": ".*"}, None),
])  # fmt: skip
def test_what_is_named_and_no_discovery_will_find_is_warned_of(named, said, caplog):
    """Regression: a read with a stop that continued with one more topic never read it, and did not report it."""
    source = make(stop=Latest(), **named)
    states = (SplitState(KafkaSplit("t", None, 0, 3, 3), finished=True),)
    selected(source, Checkpoint(1, states, exhausted=True))
    if said is None:
        assert not caplog.records
    else:
        assert f"{said}, as the checkpoint is of a read with a stop that" in caplog.text
