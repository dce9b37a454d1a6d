import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kafka.client.errors import ConnectionLostError
from headrace.connectors.kafka.client.properties import ClientConfig, DnsLookup, Isolation
from headrace.connectors.kafka.client.sasl import SaslConfig, parse_jaas
from headrace.connectors.kafka.client.wire.handshake import shake_hands
from headrace.connectors.security.tls import TlsConfig
from headrace.enumerator.errors import UsageError
from headrace.kafka import KafkaSource

BOOTSTRAP = {"bootstrap.servers": "broker:9092"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def config(**properties: str) -> ClientConfig:
    return ClientConfig.from_properties(BOOTSTRAP | {name.replace("_", "."): value for name, value in properties.items()})


@pytest.mark.parametrize(("name", "value", "field", "expected"), [
    ("client.id", "me", "client_id", "me"), ("client.rack", "r1", "client_rack", "r1"),
    ("group.id", "g", "group_id", "g"), ("isolation.level", "read_committed", "isolation", Isolation.READ_COMMITTED),
    ("request.timeout.ms", "5000", "request_timeout_ms", 5000),
    ("default.api.timeout.ms", "7000", "default_api_timeout_ms", 7000),
    ("retry.backoff.ms", "10", "retry_backoff_ms", 10), ("retry.backoff.max.ms", "20", "retry_backoff_max_ms", 20),
    ("reconnect.backoff.ms", "30", "reconnect_backoff_ms", 30), ("metadata.max.age.ms", "40", "metadata_max_age_ms", 40),
    ("fetch.min.bytes", "50", "fetch_min_bytes", 50), ("fetch.max.bytes", "60", "fetch_max_bytes", 60),
    ("fetch.max.wait.ms", "0", "fetch_max_wait_ms", 0),
    ("max.partition.fetch.bytes", "80", "max_partition_fetch_bytes", 80), ("batch.size", "0", "batch_size", 0),
    ("max.request.size", "100000", "max_request_size", 100_000),
    ("delivery.timeout.ms", "40000", "delivery_timeout_ms", 40_000),
    ("receive.buffer.bytes", "-1", "receive_buffer_bytes", None),
    ("receive.buffer.bytes", "65536", "receive_buffer_bytes", 65536),
    ("connections.max.idle.ms", "90", "connections_max_idle_ms", 90),
    ("connections.max.idle.ms", "-1", "connections_max_idle_ms", None), ("fetch.min.bytes", "0", "fetch_min_bytes", 0),
    ("exclude.internal.topics", "false", "exclude_internal_topics", False),
    ("client.dns.lookup", "use_all_dns_ips", "client_dns_lookup", DnsLookup.USE_ALL_DNS_IPS),
    ("client.dns.lookup", "resolve_canonical_bootstrap_servers_only", "client_dns_lookup",
        DnsLookup.RESOLVE_CANONICAL_BOOTSTRAP_SERVERS_ONLY),
    ("compression.type", "zstd", "compression_type", "zstd"),
])  # fmt: skip
def test_a_property_reaches_its_field(name, value, field, expected):
    assert getattr(ClientConfig.from_properties(BOOTSTRAP | {name: value}), field) == expected
    assert getattr(ClientConfig.from_properties(BOOTSTRAP | {name.upper(): f" {value} "}), field) == expected


def test_the_defaults_are_those_of_the_java_client():
    made = ClientConfig(bootstrap="broker:9092")
    assert made == ClientConfig.from_properties(BOOTSTRAP)
    assert (made.request_timeout_ms, made.default_api_timeout_ms, made.fetch_max_bytes) == (30_000, None, 52_428_800)
    assert made.isolation is Isolation.READ_UNCOMMITTED
    assert made.security_protocol == "PLAINTEXT"


@pytest.mark.parametrize("name", ["max.poll.records", "session.timeout.ms", "linger.ms", "heartbeat.interval.ms"])
def test_what_only_tunes_the_java_client_is_accepted(name):
    assert ClientConfig.from_properties(BOOTSTRAP | {name: "7"}) == ClientConfig.from_properties(BOOTSTRAP)


@pytest.mark.parametrize(("name", "message"), [
    ("auto.offset.reset", "Kafka option 'auto.offset.reset' is not supported: say where reading starts"),
    ("key.deserializer", "Kafka option 'key.deserializer' is not supported: keys and values are bytes"),
    ("value.deserializer", "Kafka option 'value.deserializer' is not supported: keys and values are bytes"),
    ("key.serializer", "Kafka option 'key.serializer' is not supported: keys and values are bytes"),
    ("value.serializer", "Kafka option 'value.serializer' is not supported: keys and values are bytes"),
    ("enable.auto.commit", "Kafka option 'enable.auto.commit' is not supported: positions are committed to"),
    ("interceptor.classes", "Kafka option 'interceptor.classes' is not supported: it names a Java class"),
    ("transactional.id", "Kafka option 'transactional.id' is not supported: the exactly-once sink chooses"),
    ("sasl.login.class", "Kafka option 'sasl.login.class' is not supported: it names a Java class"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(name, message):
    with pytest.raises(UsageError) as caught:
        ClientConfig.from_properties(BOOTSTRAP | {name: "true"})
    assert str(caught.value).startswith(message)


def test_an_unknown_property_is_refused_with_the_nearest_known_one():
    with pytest.raises(UsageError, match=r"'fetch.max.byte' is not known; did you mean 'fetch.max.bytes'\?"):
        ClientConfig.from_properties(BOOTSTRAP | {"fetch.max.byte": "1"})
    with pytest.raises(UsageError, match=r"'qqqqqqqq' is not known$"):
        ClientConfig.from_properties(BOOTSTRAP | {"qqqqqqqq": "1"})


def test_a_value_that_is_always_so_may_be_said_and_its_opposite_not():
    assert ClientConfig.from_properties(BOOTSTRAP | {"acks": "all"})
    with pytest.raises(UsageError, match="'acks' may only be"):
        ClientConfig.from_properties(BOOTSTRAP | {"acks": "1"})


@pytest.mark.parametrize(("name", "value", "why"), [
    ("check.crcs", "false", "always checked"), ("allow.auto.create.topics", "true", "create it beforehand"),
    ("ssl.protocol", "TLSv1.2", r"ssl\.enabled\.protocols"), ("ssl.provider", "BCFIPS", "OpenSSL"),
])  # fmt: skip
def test_what_cannot_be_switched_is_refused_by_name_with_the_reason(name, value, why):
    with pytest.raises(UsageError, match=f"'{name}'.*{why}"):
        ClientConfig.from_properties(BOOTSTRAP | {name: value})


@pytest.mark.parametrize(("properties", "level"), [
    ({}, None), ({"compression.zstd.level": "7"}, None),
    ({"compression.type": "zstd", "compression.zstd.level": "7", "compression.gzip.level": "2"}, 7),
    ({"compression.type": "zstd", "compression.zstd.level": "-1"}, -1),
    ({"compression.type": "gzip", "compression.gzip.level": "-1"}, None),  # as Java writes "the default"
    ({"compression.type": "lz4", "compression.lz4.level": "17"}, 17),
    ({"compression.type": "snappy", "compression.lz4.level": "17"}, None),
])  # fmt: skip
def test_the_level_is_that_of_the_compression_type(properties, level):
    assert ClientConfig.from_properties(BOOTSTRAP | properties).compression_level == level


def test_a_level_for_a_type_without_levels_is_refused():
    with pytest.raises(UsageError, match="snappy has no levels"):
        ClientConfig(bootstrap="b:1", compression_type="snappy", compression_level=3)


def test_bootstrap_servers_are_required():
    with pytest.raises(UsageError, match=r"^the property bootstrap.servers is missing"):
        ClientConfig.from_properties({})


@pytest.mark.parametrize(("text", "addresses"), [
    ("a:1", (("a", 1),)), ("a:1, b.example:2,", (("a", 1), ("b.example", 2))), ("[::1]:9092", (("::1", 9092),)),
    ("PLAINTEXT://a:1", (("a", 1),)),
])  # fmt: skip
def test_bootstrap_addresses(text, addresses):
    assert ClientConfig(bootstrap=text).bootstrap_servers == addresses


@pytest.mark.parametrize("text", ["", ",", "a", "a:", "a:x", "a:0", "a:65536", ":9092", "a b:1", "a:1;b:2"])
def test_addresses_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match=r"bootstrap.servers"):
        ClientConfig(bootstrap=text)


@pytest.mark.parametrize(("name", "value"), [
    ("request.timeout.ms", "0"), ("request.timeout.ms", "soon"), ("fetch.max.bytes", "2147483648"),
    ("isolation.level", "serializable"), ("check.crcs", "yes"), ("connections.max.idle.ms", "-2"),
    ("exclude.internal.topics", "no"), ("client.dns.lookup", "default"), ("batch.size", "-1"), ("max.request.size", "0"),
    ("delivery.timeout.ms", "0"), ("compression.gzip.level", "0"), ("compression.lz4.level", "18"),
    ("compression.zstd.level", "fast"), ("compression.type", "lzma"), ("security.protocol", "TLS"),
])  # fmt: skip
def test_a_value_out_of_range_is_refused_by_its_java_name(name, value):
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        ClientConfig.from_properties(BOOTSTRAP | {name: value})


@pytest.mark.parametrize(("protocol", "tls", "sasl"), [
    ("PLAINTEXT", False, False), ("SSL", True, False), ("SASL_PLAINTEXT", False, True), ("sasl_ssl", True, True)
])  # fmt: skip
def test_the_security_protocol_decides_what_is_spoken(protocol, tls, sasl):
    jaas = f'{PLAIN} required username="u" password="p";'
    login = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas, "ssl.truststore.location": "/ca.pem"}
    made = ClientConfig.from_properties(BOOTSTRAP | login | {"security.protocol": protocol})
    assert (made.tls is not None, made.sasl is not None) == (tls, sasl)
    assert made.security_protocol == protocol.upper()


@pytest.mark.parametrize(("value", "checked"), [("https", True), ("", False)])
def test_the_check_of_the_host_name_can_be_switched_off(value, checked):
    properties = BOOTSTRAP | {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": value}
    assert ClientConfig.from_properties(properties).tls.check_hostname is checked


@pytest.mark.parametrize(("text", "mechanism", "user", "password"), [
    (f'{PLAIN} required username="alice" password="secret";', "PLAIN", "alice", "secret"),
    (f"{PLAIN} required username='alice' password='se\"cret' ;", "PLAIN", "alice", 'se"cret'),
    (f'{SCRAM} required\n  username="a=b"\n  password="p;w \\"x\\" \\\\";\n', "SCRAM-SHA-512", "a=b", 'p;w "x" \\'),
    (f"{SCRAM} required username=alice password=secret;", "SCRAM-SHA-256", "alice", "secret"),
    (f'kafkashaded.{PLAIN} required username="u" password="";', "PLAIN", "u", ""),
])  # fmt: skip
def test_jaas(text, mechanism, user, password):
    options = parse_jaas(text, mechanism)
    assert (options["username"], options["password"]) == (user, password)


@pytest.mark.parametrize("text", [
    f'{PLAIN} required username="u" password="hunter2"',  # no semicolon
    f'{PLAIN} required username="u" password="hunter2;',  # no closing quote
    f'{PLAIN} required username="u" password="hunter2"; {PLAIN} required;',
    'com.example.OtherModule required username="u" password="hunter2";',
    f'{SCRAM} required username="u" password="hunter2";',  # not PLAIN's module
    "hunter2",
])  # fmt: skip
def test_bad_jaas_is_refused_without_repeating_the_password(text):
    with pytest.raises(UsageError) as caught:
        parse_jaas(text, "PLAIN")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("text", "mechanism", "message"), [
    ("com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab=hunter2;", "GSSAPI", "keyTab.*KRB5_CLIENT"),
    ("com.sun.security.auth.module.Krb5LoginModule required principal=hunter2;", "GSSAPI", "principal.*kinit"),
    ("software.amazon.msk.auth.iam.IAMLoginModule required awsStsRegion=hunter2;", "AWS_MSK_IAM", "AWS_REGION"),
    (f"{PLAIN} required username=u password=p user_bob=hunter2;", "PLAIN", "user_bob.*leave it out"),
])  # fmt: skip
def test_login_options_that_would_be_ignored_are_refused_without_their_values(text, mechanism, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse_jaas(text, mechanism)
    assert "hunter2" not in str(caught.value)


def test_login_options_that_change_no_credentials_are_taken():
    text = 'com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true renewTGT=true serviceName="kafka";'
    assert parse_jaas(text, "GSSAPI")["serviceName"] == "kafka"


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30))
def test_any_password_survives_quoting(password):
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_jaas(f'{PLAIN} required username="u" password="{quoted}";', "PLAIN")["password"] == password


def secretive() -> ClientConfig:
    return ClientConfig(
        bootstrap="broker:9092",
        tls=TlsConfig(
            truststore_location="/t", truststore_password="hunter2", keystore_key="hunter2", keystore_certificate_chain="c",
            key_password="hunter2", keystore_password="hunter2",
        ),
        sasl=SaslConfig(mechanism="PLAIN", username="alice", password="hunter2"),
    )  # fmt: skip


def test_repr_and_str_hide_secrets():
    assert "alice" in repr(secretive())
    assert "hunter2" not in repr(secretive()) + str(secretive())


def test_a_configuration_is_a_value_that_travels():
    copy = pickle.loads(pickle.dumps(secretive()))
    assert (copy, hash(copy), copy.sasl.password) == (secretive(), hash(secretive()), "hunter2")


@pytest.mark.parametrize("make", [
    lambda: SaslConfig(mechanism="PLAIN", username="u"), lambda: SaslConfig(mechanism="SCRAM-SHA-256", password="p"),
    lambda: SaslConfig(mechanism="DIGEST-MD5", username="u", password="p"), lambda: SaslConfig(mechanism="OAUTHBEARER"),
    lambda: TlsConfig(truststore_location="/t", truststore_certificates="pem"), lambda: TlsConfig(keystore_key="pem"),
    lambda: TlsConfig(truststore_type="BKS"), lambda: TlsConfig(enabled_protocols=("TLSv1.1",)),
])  # fmt: skip
def test_security_that_contradicts_itself_is_refused(make):
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize("host", ["a..b", ".a", "x" * 64, "a." + "x" * 64, "a..b:1,c"])
def test_a_host_that_is_no_name_is_named(host):
    with pytest.raises(UsageError, match=r"bootstrap.servers: '.*' cannot be the name of a host"):
        ClientConfig(bootstrap=f"{host}:9092")


def test_a_brokers_host_that_is_no_name_is_a_lost_connection():
    with pytest.raises(ConnectionLostError, match="no connection"):
        shake_hands("a..b", 9092, ClientConfig(bootstrap="a:1"))


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.jaas.config", "ssl.truststore.location", "ssl.keystore.key"])
def test_security_that_would_be_ignored_is_refused(name):
    given = {name: "PLAIN"}
    with pytest.raises(UsageError, match=f"Kafka option '{name}' has no effect without security.protocol: set that to S"):
        ClientConfig.from_properties(BOOTSTRAP | given)
    made = ClientConfig.from_properties(BOOTSTRAP | given | {"security.protocol": "PLAINTEXT"})  # which says so itself
    assert (made.tls, made.sasl) == (None, None)


def test_a_login_with_stores_of_tls_says_whether_it_speaks_tls():
    """By its default the password would go over the wire in clear, though a trust store was given."""
    sasl = SaslConfig(mechanism="PLAIN", username="a", password="b")
    with pytest.raises(UsageError, match=r"'ssl.truststore.location' has no effect without security.protocol"):
        KafkaSource("b:1", topics=["t"], sasl=sasl, properties={"ssl.truststore.location": "ca.pem"})
