"""The arguments of the Kafka sinks: how they and the properties make one configuration, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pyarrow as pa
import pytest

from headrace.connectors.base.dead_letters import parted
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.write.encoding import each_to_its_own
from headrace.enumerator.errors import UsageError
from headrace.kafka import AtLeastOnceKafkaSink, KafkaSink, KafkaSource, SaslConfig

NOBODY = "nowhere:1"
SINKS = [KafkaSink, AtLeastOnceKafkaSink]


class Tokens:
    def token(self) -> str:
        return "x"


OAUTH = SaslConfig(mechanism="OAUTHBEARER", token_provider=Tokens())


@pytest.mark.parametrize(("arguments", "wanted_ms"), [
    ({}, 900_000), ({"properties": {"transaction.timeout.ms": "7000"}}, 7000),
    ({"properties": {"Transaction.Timeout.MS": "7000"}}, 7000), ({"transaction_timeout_ms": 8000}, 8000),
    ({"transaction_timeout_ms": 8000, "properties": {"transaction.timeout.ms": "8000"}}, 8000),
])  # fmt: skip
def test_the_transaction_timeout_is_the_arguments_else_the_propertys_else_15_minutes(arguments, wanted_ms):
    assert KafkaSink(NOBODY, **arguments).config.transaction_timeout_ms == wanted_ms


def test_a_delivery_has_the_limit_that_was_set_and_none_otherwise():
    """findings: Sinks 19. One that is shorter than a request may take is refused (see below)."""
    assert KafkaSink(NOBODY).config.longest_delivery_ms is None
    given = {"request.timeout.ms": "5000", "delivery.timeout.ms": "5000"}
    assert KafkaSink(NOBODY, properties=given).config.longest_delivery_ms == 5000


REFUSED = {
    "two timeouts": ({"transaction_timeout_ms": 1, "properties": {"transaction.timeout.ms": "2"}},
        r"^transaction_timeout_ms=1 contradicts the property transaction.timeout.ms='2'; give only transaction_timeout_ms$"),
    "two clusters": ({"properties": {"bootstrap.servers": "other:1"}}, "^bootstrap='nowhere:1' contradicts the property"),
    "a prefix with a dot": ({"transactional_id_prefix": "a.b"}, "letters, digits"),
    "an unknown property": ({"properties": {"compression.typ": "zstd"}}, "did you mean 'compression.type'"),
    "a codec of no process": ({"properties": {"compression.type": "rar"}}, "compression.type must be one of"),
    "a timeout of nothing": ({"transaction_timeout_ms": 0}, "transaction.timeout.ms must be a whole number from 1"),
    "a delivery that no request can take": ({"properties": {"delivery.timeout.ms": "29999"}},
        r"^delivery.timeout.ms \(29999\) must not be shorter than request.timeout.ms \(30000\)"),
    "no properties": ({"properties": None}, "^properties must be a mapping .* not NoneType$"),
    "properties that have no names": ({"properties": {1: "2"}}, "^the names of properties are strings, not 1$"),
    "a topic without a name": ({"topic": ""}, "^topic must be a topic's name"),
    "a topic that no broker takes": ({"topic": "a b"}, "^topic must be a topic's name"),
    "several topics": ({"topic": ["a", "b"]},
        r"^topic must be .* not \['a', 'b'\]: one name; rows for several topics have a column"),
    "no topic for the lists": ({"commit_topic": None}, "^commit_topic must be a topic's name"),
    "one topic for rows and lists": ({"topic": "t", "commit_topic": "t"}, "^topic and commit_topic are both 't'"),
    "no prefix": ({"transactional_id_prefix": None}, "letters, digits"),
    "two logins": ({"sasl": OAUTH, "properties": {"sasl.mechanism": "PLAIN"}},
        "sasl=.* contradicts the property sasl.mechanism"),
    "a login without its protocol": ({"sasl": OAUTH, "properties": {"security.protocol": "SSL"}},
        "needs security.protocol SASL"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_contradiction_is_refused_when_it_is_made(arguments, message):
    with pytest.raises(UsageError, match=message):
        KafkaSink(NOBODY, **arguments)


@pytest.mark.parametrize("arguments", [
    {"properties": None}, {"topic": ""}, {"topic": ["a"]}, {"topic": b"a"}
], ids=["properties", "empty", "list", "bytes"])  # fmt: skip
def test_so_does_the_other_sink(arguments):
    with pytest.raises(UsageError, match=next(iter(arguments))):
        AtLeastOnceKafkaSink(NOBODY, **arguments)


@pytest.mark.parametrize("make", [*SINKS, lambda bootstrap: KafkaSource(bootstrap, topics=["t"])])
@pytest.mark.parametrize("bootstrap", ["", "host", None, ClientConfig(bootstrap=NOBODY)])
def test_an_address_that_is_none_is_refused(make, bootstrap):
    with pytest.raises(UsageError, match=r"bootstrap"):
        make(bootstrap)


@pytest.mark.parametrize("make", [*SINKS, lambda *args, **given: KafkaSource(*args, topics=["t"], **given)])
def test_a_token_provider_reaches_the_client(make):
    assert make(NOBODY, sasl=OAUTH).config.security_protocol == "SASL_PLAINTEXT"
    made = make(NOBODY, sasl=OAUTH, properties={"security.protocol": "SASL_SSL"}).config
    assert (made.sasl, made.security_protocol) == (OAUTH, "SASL_SSL")


@pytest.mark.parametrize("sink", SINKS)
def test_a_sink_is_a_value_that_can_be_hashed_and_pickled_and_shows_no_secret(sink):
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required username='u' password='hidden';"
    properties = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    made = sink(NOBODY, topic="t", properties=properties)
    assert copy.copy(made) == made == pickle.loads(pickle.dumps(made))
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))
    assert made != sink(NOBODY, topic="t")
    assert "hidden" not in repr(made)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_rows_name_their_topics_in_any_kind_of_text(kind):
    rows = pa.record_batch({"value": pa.array(["a", None, "c"], pa.string_view()), "topic": pa.array(["t", "u", "t"], kind)})
    assert KafkaSink("nowhere:1").targets_of(rows) == {"t", "u"}
    plain, dead = parted(rows)
    assert [(name, part.column("value").to_pylist()) for name, part in each_to_its_own(plain)] == [
        ("t", ["a", "c"]),
        ("u", [None]),
    ]
    assert dead is None


@pytest.mark.parametrize(("names", "message"), [
    (pa.array([1, 2]), "^column 'topic' must be string, and is int64; cast it$"),
    (pa.array(["t", None]), "^null topic present in the data: 1 of 2 rows have none$"),
])  # fmt: skip
def test_rows_that_name_no_topic_are_refused(names, message):
    with pytest.raises(UsageError, match=message):
        KafkaSink("nowhere:1").targets_of(pa.record_batch({"value": ["a", "b"], "topic": names}))
