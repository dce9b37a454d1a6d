"""Logins by token: an OAuth 2 token endpoint and AWS's IAM, named by the Java client's properties, tried on a fake broker."""

from __future__ import annotations

import base64
import json
import pickle
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headrace.connectors.kafka.client.cluster import KafkaCluster, shared_cluster
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.sasl import SaslConfig
from headrace.connectors.security import renewal
from headrace.connectors.security.tokens import AZURE_IMDS, ClientCredentials, ManagedIdentity, MskTokens
from headrace.enumerator.errors import AuthenticationError, DeadlineExceededError, RetriableError, UsageError
from headrace.kafka import Earliest, KafkaSource, Latest
from headrace.testing.fake_kafka import Before, FakeKafka
from headrace.testing.servers.kafka.security import make_certificates
from tests.helpers.kafka_rig import read_all
from tests.helpers.token_endpoint import PROVIDERS, TokenEndpoint

OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
IAM = "software.amazon.msk.auth.iam."


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with closing(TokenEndpoint()) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_kept():
    renewal.kept.start_afresh()


@pytest.fixture
def kafka():
    with FakeKafka(tokens={"good": "alice"}) as cluster:
        cluster.create_topic("t")
        cluster.append("t", b"x")
        yield cluster


JAVA = {"sasl.jaas.config": f'{OAUTH_MODULE} required clientId="me" clientSecret="hunter2" scope="kafka";'}
FILE = {"sasl.jaas.config": f"{OAUTH_MODULE} required;"}
JAVA_4_1 = FILE | {
    "sasl.oauthbearer.client.credentials.client.id": "me", "sasl.oauthbearer.scope": "kafka",
    "sasl.oauthbearer.client.credentials.client.secret": "hunter2",
    "sasl.login.callback.handler.class":
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
}  # fmt: skip
LIBRDKAFKA = {
    "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": "hunter2",
    "sasl.oauthbearer.scope": "kafka",
}  # fmt: skip


def by_token(url: str, **more: str) -> dict[str, str]:
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": url}


def config_of(properties: dict[str, str], bootstrap: str = "b:1") -> ClientConfig:
    return ClientConfig.from_properties({"bootstrap.servers": bootstrap} | properties)


def provider_of(properties: dict[str, str], bootstrap: str = "b:1") -> Any:
    return config_of(properties, bootstrap).sasl.token_provider


def logs_in(config: ClientConfig) -> bool:
    with KafkaCluster(config) as cluster:
        return "t" in cluster.topics(["t"])


# --- a token endpoint -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("spelling", [JAVA, JAVA_4_1, LIBRDKAFKA], ids=["Java", "Java 4.1", "librdkafka"])
def test_a_topic_is_read_with_a_token_of_the_endpoint_that_properties_name(kafka, endpoint, spelling):
    source = KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest(), properties=by_token(endpoint.url) | spelling)
    assert [value for *_, value in read_all(source)] == [b"x"]
    ((form, headers),) = endpoint.asked  # one token for all connections
    assert form == {"grant_type": "client_credentials", "scope": "kafka"}
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:hunter2").decode()
    assert "hunter2" not in repr(source.config)


def test_a_token_that_brokers_do_not_take_is_an_error_of_the_login_and_not_tried_again(kafka, endpoint):
    endpoint.body = json.dumps({"access_token": "forged"})
    with pytest.raises(AuthenticationError, match="refused our credentials"):
        logs_in(config_of(by_token(endpoint.url) | JAVA, kafka.bootstrap))


def test_a_kept_token_that_is_refused_is_asked_for_again(kafka, endpoint):
    """Its signer's keys were changed, or the machine slept: by its lifetime it is good, and it was handed out until its end."""
    endpoint.body = json.dumps({"access_token": "of yesterday", "expires_in": 3600})
    config = config_of(by_token(endpoint.url) | JAVA, kafka.bootstrap)
    assert config.sasl.token_provider.token() == "of yesterday"
    endpoint.body = json.dumps({"access_token": "good", "expires_in": 3600})
    assert (logs_in(config), logs_in(config), len(endpoint.asked)) == (True, True, 2)


def test_where_the_endpoint_is_away_after_a_refusal_it_is_waited_for(kafka, endpoint):
    endpoint.body = json.dumps({"access_token": "of yesterday", "expires_in": 3600})
    config = config_of(by_token(endpoint.url) | JAVA, kafka.bootstrap)
    assert config.sasl.token_provider.token() == "of yesterday"
    endpoint.status = 503

    def is_back():
        endpoint.status, endpoint.body = 200, json.dumps({"access_token": "good"})

    kafka.fault("SaslHandshake", Before(is_back), nth=2)
    assert logs_in(config)


def test_a_token_endpoint_that_is_away_is_waited_for(kafka, endpoint):
    endpoint.status, endpoint.body = 503, "busy"
    properties = by_token(endpoint.url) | JAVA | {"default.api.timeout.ms": "2000"}
    with pytest.raises(DeadlineExceededError, match=r"token endpoint .* answered 503"):
        logs_in(config_of(properties, kafka.bootstrap))
    assert len(endpoint.asked) > 1
    with pytest.raises(RetriableError, match="cannot be reached"):
        ClientCredentials(url="http://127.0.0.1:1/", client_id="me", client_secret="x").token()


@pytest.mark.parametrize(("status", "body", "message"), [
    (401, '{"error": "invalid_client", "error_description": "no such client"}', "401 .*invalid_client no such .*'me'"),
    (400, "<html>", "answered 400"), (200, "<html>", "without an access_token"),
    (200, '{"access_token": "a\\u0001b"}', "access_token that is none"), (200, "[]", "without an access_token"),
])  # fmt: skip
def test_a_token_endpoint_that_refuses_is_an_error_of_the_login_without_the_secret(endpoint, status, body, message):
    endpoint.status, endpoint.body = status, body
    with pytest.raises(AuthenticationError, match=message) as caught:
        ClientCredentials(url=endpoint.url, client_id="me", client_secret="hunter2").token()
    assert "hunter2" not in str(caught.value)


def test_the_secret_goes_to_no_other_address_than_the_one_that_was_given(endpoint):
    other = TokenEndpoint()
    endpoint.status, endpoint.headers = 302, {"Location": other.url}
    with pytest.raises(AuthenticationError, match="sends elsewhere"):
        ClientCredentials(url=endpoint.url, client_id="me", client_secret="hunter2").token()
    assert other.asked == []
    other.close()


def test_a_token_is_renewed_after_four_fifths_of_its_lifetime(endpoint, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(renewal.time, "monotonic", lambda: now[0])
    endpoint.body = json.dumps({"access_token": "a", "expires_in": 100})
    without_jitter = renewal.Renewal(window_jitter=0.0)
    provider = ClientCredentials(url=endpoint.url, client_id="me", client_secret="s", renewal=without_jitter)
    assert provider.token() == "a"
    endpoint.body = json.dumps({"access_token": "b", "expires_in": 100})
    now[0] += 79.0
    assert pickle.loads(pickle.dumps(provider)).token() == "a"
    now[0] += 1.0
    assert provider.token() == "b"


def test_encoded_credentials_and_extensions_are_sent_as_java_does(endpoint):
    jaas = f'{OAUTH_MODULE} required clientId="a:b" clientSecret="c d" extension_cluster="lkc-1";'
    properties = by_token(endpoint.url) | {"sasl.jaas.config": jaas, "sasl.oauthbearer.header.urlencode": "true"}
    provider = provider_of(properties | {"sasl.oauthbearer.extensions": "pool=p 1, x=y=z"})
    assert provider.extensions() == {"cluster": "lkc-1", "pool": "p 1", "x": "y=z"}
    provider.token()
    assert endpoint.asked[0][1]["Authorization"] == "Basic " + base64.b64encode(b"a%3Ab:c+d").decode()


class TestRenewal:
    """As Java's ExpiringCredentialRefreshingLogin counts."""

    @pytest.mark.parametrize(("lifetime_s", "chance", "after_s"), [
        (20, 0.0, 16.0),  # too short for the buffer and the least period together, which do not count then
        (20, 1.0, 17.0), (360, 0.0, 288.0),
        (361, 0.0, 61.0),  # 300 s before its end
        (3600, 0.0, 2880.0), (3600, 1.0, 3060.0), (1000, 1.0, 700.0),
    ])  # fmt: skip
    def test_a_token_is_renewed_in_the_window_of_its_lifetime_and_well_before_its_end(self, lifetime_s, chance, after_s):
        assert renewal.Renewal().after_s(lifetime_s, chance) == pytest.approx(after_s)

    def test_the_properties_of_java_say_when(self, endpoint):
        properties = {
            "sasl.login.refresh.window.factor": "0.5", "sasl.login.refresh.window.jitter": "0",
            "sasl.login.refresh.min.period.seconds": "1", "sasl.login.refresh.buffer.seconds": "2",
            "sasl.login.connect.timeout.ms": "1500", "sasl.login.read.timeout.ms": "2500",
        }  # fmt: skip
        provider = provider_of(by_token(endpoint.url) | JAVA | properties)
        assert provider.renewal == renewal.Renewal(window_factor=0.5, window_jitter=0.0, min_period_s=1.0, buffer_s=2.0)
        assert (provider.http.connect_timeout_s, provider.http.read_timeout_s) == (1.5, 2.5)

    @pytest.mark.parametrize("failure", [(503, "busy"), (401, "{}")], ids=["away", "refused"])
    def test_while_a_renewal_fails_the_token_of_before_is_used_until_it_ends(self, endpoint, monkeypatch, caplog, failure):
        now = [100.0]
        monkeypatch.setattr(renewal.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(renewal.random, "random", lambda: 0.0)
        endpoint.body = json.dumps({"access_token": "a", "expires_in": 100})
        provider = ClientCredentials(url=endpoint.url, client_id="me", client_secret="hunter2")
        assert provider.token() == "a"
        endpoint.status, endpoint.body = failure
        now[0] += 80.0
        assert [provider.token(), provider.token()] == ["a", "a"]
        assert len(endpoint.asked) == 2  # and not again for 10 s
        assert "was not renewed, and the previous one is used for 20 s more" in caplog.text
        assert "hunter2" not in caplog.text
        now[0] += 10.0
        assert (provider.token(), len(endpoint.asked)) == ("a", 3)
        now[0] += 10.0
        with pytest.raises((RetriableError, AuthenticationError)):
            provider.token()
        endpoint.status, endpoint.body = 200, json.dumps({"access_token": "b"})
        assert provider.token() == "b"

    def test_who_waits_for_one_endpoint_does_not_wait_for_another(self, endpoint):
        kept, first_asks, second_is_done = renewal.KeptTokens(), threading.Event(), threading.Event()

        def slow():
            first_asks.set()
            assert second_is_done.wait(10.0)
            return "slow", 60.0

        first = threading.Thread(target=kept.get, args=("one", renewal.Renewal(), slow))
        first.start()
        assert first_asks.wait(10.0)
        assert kept.get("another", renewal.Renewal(), lambda: ("quick", 60.0)) == "quick"
        second_is_done.set()
        first.join(10.0)
        assert kept.get("one", renewal.Renewal(), lambda: ("never", 60.0)) == "slow"


def test_an_endpoint_whose_certificate_is_of_its_own_authority_is_asked_with_that_authority_alone(endpoint, tmp_path):
    files = make_certificates(tmp_path / "certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server)
    endpoint._server.socket = context.wrap_socket(endpoint._server.socket, server_side=True)
    url, module = endpoint.url.replace("http:", "https:"), JAVA["sasl.jaas.config"][:-1]
    for properties in (
        {"sasl.jaas.config": f'{module} ssl.truststore.location="{files.ca}" ssl.truststore.type="PEM";'},
        JAVA | {"https.ca.location": str(files.ca)},
    ):
        renewal.kept.start_afresh()
        assert provider_of(by_token(url) | properties).token() == "good"
    renewal.kept.start_afresh()
    with pytest.raises(AuthenticationError, match=r"certificate of the token endpoint .* is not trusted"):
        provider_of(by_token(url) | JAVA).token()


def test_certificates_that_are_not_there_are_named_and_not_waited_for(endpoint):
    with pytest.raises(UsageError, match=r"certificates in /not/there\.pem, and there is no such file here"):
        provider_of(by_token(endpoint.url) | JAVA | {"https.ca.location": "/not/there.pem"}).token()


def test_a_token_in_a_file_is_read_for_every_connection(kafka, tmp_path):
    path = tmp_path / "my token"
    properties = by_token(path.as_uri()) | {"sasl.jaas.config": f'{OAUTH_MODULE} required extension_a="b";'}
    config = config_of(properties, kafka.bootstrap)
    with pytest.raises(RetriableError, match="my token, cannot be read: No such file"):
        config.sasl.token_provider.token()
    path.write_text("good\n")
    assert (config.sasl.token_provider.extensions(), logs_in(config)) == ({"a": "b"}, True)
    path.write_text("a\x01b")
    with pytest.raises(AuthenticationError, match="access_token that is none"):
        config.sasl.token_provider.token()


@pytest.mark.parametrize(("text", "api", "nth"), [
    ("", "SaslHandshake", 2), ("of yesterday", "SaslAuthenticate", 1)
], ids=["empty while it is rewritten", "another token after a refusal"])  # fmt: skip
def test_a_file_whose_text_is_of_no_use_is_read_again(kafka, tmp_path, text, api, nth):
    path = tmp_path / "token"
    path.write_text(text)
    written = kafka.fault(api, Before(lambda: path.write_text("good")), nth=nth)
    assert (logs_in(config_of(by_token(path.as_uri()) | FILE, kafka.bootstrap)), written.fired) == (True, 1)


def test_the_identity_of_a_machine_is_asked_for_as_azure_has_it(kafka, endpoint):
    properties = by_token(endpoint.url) | {
        "sasl.oauthbearer.metadata.authentication.type": "azure_imds",
        "sasl.oauthbearer.config": "query=api-version=2018-02-01&resource=api://kafka&client_id=1-2",
    }
    assert logs_in(config_of(properties, kafka.bootstrap))
    ((asked, headers),) = endpoint.asked
    assert asked == {"api-version": "2018-02-01", "resource": "api://kafka", "client_id": "1-2"}
    assert headers["Metadata"] == "true"
    assert provider_of({**properties, "sasl.oauthbearer.token.endpoint.url": AZURE_IMDS}).url == AZURE_IMDS


# --- secrets by reference ---------------------------------------------------------------------------------------------------


def test_a_secret_is_in_the_environment_or_a_file_and_in_no_property(kafka, endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN_SECRET", "hunter2")
    (tmp_path / "secrets.properties").write_text("client = hunter2\n")
    (tmp_path / "plain").write_text("hunter2")
    for reference in (
        "${env:TOKEN_SECRET}",
        f"${{file:{tmp_path / 'secrets.properties'}:client}}",
        f"${{directory:{tmp_path}:plain}}",
    ):
        renewal.kept.start_afresh()
        jaas = f'{OAUTH_MODULE} required clientId="me" clientSecret="{reference}";'
        properties = by_token(endpoint.url) | PROVIDERS | {"sasl.jaas.config": jaas}
        source = KafkaSource(kafka.bootstrap, topics=["t"], stop=Latest(), properties=properties)
        assert [value for *_, value in read_all(source)] == [b"x"]
        assert endpoint.asked[-1][1]["Authorization"] == "Basic " + base64.b64encode(b"me:hunter2").decode()
        assert "hunter2" not in repr(source) + str(properties)
        monkeypatch.delenv("TOKEN_SECRET", raising=False)
        assert pickle.loads(pickle.dumps(source)).config.sasl == source.config.sasl  # a task has not the driver's environment


@pytest.mark.parametrize(("properties", "words"), [
    ({"client.id": "${env:NOT_THERE}"}, "'client.id' names the environment variable 'NOT_THERE', which is not set here"),
    ({"client.id": "${file:/not/there:key}"}, "names the file /not/there, which cannot be read: FileNotFoundError"),
    ({"config.providers.env.class": "com.example.Vault"}, "config.providers.env.class must be .* not 'com.example.Vault'"),
    ({"config.providers.vault.class": "com.example.Vault"}, "'config.providers.vault.class' is not supported"),
    ({"config.providers.env.param.allowlist.pattern": "KAFKA_.*", "client.id": "${env:HOME}"},
        "the environment variable 'HOME' in a way that is not allowed"),
    ({"config.providers.directory.param.allowed.paths": "/run/secrets", "client.id": "${directory:/run/secrets/..:x}"},
        "which allowed.paths does not allow"),
])  # fmt: skip
def test_a_reference_that_leads_nowhere_is_refused_by_name(properties, words):
    with pytest.raises(UsageError, match=words):
        config_of(PROVIDERS | properties)


@pytest.mark.parametrize(("properties", "text"), [({}, "${env:HOME}"), (PROVIDERS, "${other:HOME}")])
def test_what_looks_like_a_reference_to_no_process_is_left_as_it_is(properties, text):
    assert config_of(properties | {"client.id": text}).client_id == text


# --- Amazon MSK -------------------------------------------------------------------------------------------------------------
MSK_HOST = "b-1.mine.abc.c2.kafka.eu-west-1.amazonaws.com:9098"
MSK_JAVA = {
    "security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": f"{IAM}IAMLoginModule required;",
    "sasl.client.callback.handler.class": f"{IAM}IAMClientCallbackHandler",
}  # fmt: skip
MSK_OAUTH = {
    "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{OAUTH_MODULE} required;",
    "sasl.login.callback.handler.class": f"{IAM}IAMOAuthBearerLoginCallbackHandler",
    "sasl.client.callback.handler.class": f"{IAM}IAMOAuthBearerLoginCallbackHandler",
}  # fmt: skip


def signed(token: str) -> dict[str, str]:
    """The parts of the signed address that a token of MSK is."""
    parts = urllib.parse.urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    return {"host": parts.netloc} | dict(urllib.parse.parse_qsl(parts.query))


@pytest.fixture
def aws(monkeypatch, tmp_path):
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIADEFAULT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    (tmp_path / "credentials").write_text("[other]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = hunter2\n")
    return monkeypatch


@pytest.mark.parametrize("properties", [MSK_JAVA, MSK_OAUTH], ids=["AWS_MSK_IAM", "OAUTHBEARER"])
def test_the_usual_recipe_of_msk_signs_tokens_for_the_region_of_its_brokers(aws, properties):
    config = config_of(properties, MSK_HOST)
    assert config.sasl.wire_mechanism == "OAUTHBEARER"
    token = signed(config.sasl.token_provider.token())
    assert (token["host"], token["Action"]) == ("kafka.eu-west-1.amazonaws.com", "kafka-cluster:Connect")
    assert token["X-Amz-Credential"].startswith("AKIADEFAULT/")


def test_a_profile_that_the_login_module_names_is_the_one_that_signs(aws):
    jaas = {"sasl.jaas.config": f'{IAM}IAMLoginModule required awsProfileName="other";'}
    token = provider_of(MSK_JAVA | jaas, MSK_HOST).token()
    assert signed(token)["X-Amz-Credential"].startswith("AKIAOTHER/")


def test_a_role_that_the_login_module_names_is_assumed(aws, endpoint):
    endpoint.body = (
        '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
        "<AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>st</SessionToken>"
        "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
    )
    aws.setenv("AWS_ENDPOINT_URL_STS", endpoint.url)
    aws.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    jaas = f'{IAM}IAMLoginModule required awsRoleArn="arn:aws:iam::1:role/reader" awsRoleSessionName="job";'
    token = provider_of(MSK_JAVA | {"sasl.jaas.config": jaas}, MSK_HOST).token()
    assert signed(token)["X-Amz-Credential"].startswith("ASIAROLE/")
    ((form, _),) = endpoint.asked
    assert (form["RoleArn"], form["RoleSessionName"]) == ("arn:aws:iam::1:role/reader", "job")


def test_without_a_region_or_credentials_the_login_says_what_to_do(aws):
    provider = SaslConfig(mechanism="AWS_MSK_IAM").token_provider
    with pytest.raises(UsageError, match="set AWS_REGION"):
        provider.token()
    aws.setenv("AWS_REGION", "eu-west-1")
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AuthenticationError, match="no AWS credentials"):
        provider.token()
    with pytest.raises(AuthenticationError, match="missing-profile"):
        MskTokens(profile="missing-profile").token()


# --- what contradicts itself ------------------------------------------------------------------------------------------------
JAAS, MECHANISM = "sasl.jaas.config", "sasl.mechanism"
BARE = by_token("https://h/")
HTTPS = BARE | JAVA
MSK_MODULE = f"{IAM}IAMLoginModule required"
REFUSED = {
    "no endpoint": ({"sasl.mechanism": "OAUTHBEARER"}, "needs the property sasl.oauthbearer.token.endpoint.url"),
    "credentials for a file": (by_token("file:///run/token") | JAVA,
        "option clientId in sasl.jaas.config is for a token endpoint"),
    "a secret for a file": (by_token("file:///run/token") | {"sasl.oauthbearer.client.credentials.client.secret": "hunter2"},
        "client.secret' is for a token endpoint: a token in a file needs none"),
    "a file of another machine": (by_token("file://host/run/token"), "must be like file:///path"),
    "another protocol": (by_token("ftp://h/") | JAVA, "token.endpoint.url must be like https"),
    "another service": (HTTPS | {"sasl.oauthbearer.metadata.authentication.type": "gcp"}, "may be none or azure_imds"),
    "a service without a question": (
        {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.metadata.authentication.type": "azure_imds"},
        "azure_imds needs sasl.oauthbearer.config=query="),
    "a question without a service": (HTTPS | {"sasl.oauthbearer.config": "query=a"},
        "'sasl.oauthbearer.config' needs sasl.oauthbearer.metadata.authentication.type=azure_imds"),
    "a retriever of one's own": (HTTPS | {"sasl.oauthbearer.jwt.retriever.class": "com.example.Mine"},
        "'sasl.oauthbearer.jwt.retriever.class' names a Java class"),
    "a window that ends before it starts": (HTTPS | {"sasl.login.refresh.window.factor": "0.4"},
        "sasl.login.refresh.window.factor must be a number from 0.5 to 1, not '0.4'"),
    "a time that is none": (HTTPS | {"sasl.login.read.timeout.ms": "nan"}, "sasl.login.read.timeout.ms must be a number"),
    "a store that only Java reads": (BARE | {JAAS: JAVA[JAAS][:-1] + ' ssl.truststore.type="JKS";'},
        "ssl.truststore.type in sasl.jaas.config may only be PEM"),
    "a store of keys": (BARE | {JAAS: JAVA[JAAS][:-1] + ' ssl.keystore.location="/k";'},
        "option ssl.keystore.location in sasl.jaas.config is not supported: for the token endpoint's certificate there are"),
    "tokens that nothing signs": (
        {MECHANISM: "OAUTHBEARER", JAAS: f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="me";'},
        "option unsecuredLoginStringClaim_sub in sasl.jaas.config is not supported: it makes tokens that nothing signs"),
    "an assertion": (HTTPS | {"sasl.oauthbearer.assertion.private.key.file": "/k"},
        "'sasl.oauthbearer.assertion.private.key.file' is not supported: tokens are asked for with a client secret"),
    "no client": (BARE | {"sasl.jaas.config": f"{OAUTH_MODULE} required;"}, "needs a client id and a client"),
    "two clients": (HTTPS | {"sasl.oauthbearer.client.id": "b"}, "clientId .* contradict each other"),
    "a class of one's own": ({"sasl.mechanism": "OAUTHBEARER", "sasl.login.callback.handler.class": "com.example.Mine"},
        "sasl.login.callback.handler.class' names a Java class.*token_provider"),
    "a handler for a password": ({MECHANISM: "PLAIN", "sasl.client.callback.handler.class": f"{IAM}IAMClientCallbackHandler"},
        "does not fit sasl.mechanism PLAIN"),
    "AWS's identity at an endpoint": (BARE | {JAAS: f"{OAUTH_MODULE} required awsProfileName=hunter2;"},
        "awsProfileName in sasl.jaas.config is for Amazon MSK"),
    "an endpoint's client at MSK": (MSK_OAUTH | {JAAS: f"{OAUTH_MODULE} required clientSecret=hunter2;"},
        "clientSecret in sasl.jaas.config is for a token endpoint"),
    "two identities of AWS": (MSK_JAVA | {JAAS: f"{MSK_MODULE} awsProfileName=a awsRoleArn=b;"},
        "awsProfileName or awsRoleArn"),
    "a region for STS": (MSK_JAVA | {JAAS: f"{MSK_MODULE} awsStsRegion=a;"},
        "awsStsRegion in sasl.jaas.config is not supported: set AWS_REGION"),
    "MSK in the clear": (MSK_JAVA | {"security.protocol": "SASL_PLAINTEXT"}, "must be SASL_SSL"),
    "another method": (HTTPS | {"sasl.oauthbearer.method": "default"}, "may only be oidc"),
    "extensions without values": (HTTPS | {"sasl.oauthbearer.extensions": "a"}, "must be name=value"),
}  # fmt: skip


@pytest.mark.parametrize(("properties", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_login_that_cannot_be_is_refused_by_name_and_shows_no_secret(properties, message):
    with pytest.raises(UsageError, match=message) as caught:
        config_of({"security.protocol": "SASL_PLAINTEXT"} | properties)
    assert "hunter2" not in str(caught.value)


def test_tokens_for_msk_are_not_sent_in_the_clear_either_when_python_gives_them():
    with pytest.raises(UsageError, match="must be SASL_SSL"):
        KafkaSource("b:1", topics=["t"], sasl=SaslConfig(mechanism="AWS_MSK_IAM"))


# --- a provider of the user's own -------------------------------------------------------------------------------------------
class Tokens:
    def token(self) -> str:
        return "good"


@dataclass
class Changeable(Tokens):
    """Has a value, and no hash."""

    options: list[str]


@dataclass(frozen=True)
class Fixed(Tokens):
    name: str


@dataclass(frozen=True)
class FixedWithAList(Tokens):
    options: list[str]


@pytest.mark.parametrize(
    "provider", [Tokens(), Changeable([]), Fixed("a"), FixedWithAList([])], ids=lambda each: type(each).__name__
)
def test_copies_of_one_login_share_the_connections_of_their_process(kafka, provider):
    logins = kafka.fault("SaslHandshake", Before(lambda: None), times=100)
    sasl = SaslConfig(mechanism="OAUTHBEARER", token_provider=provider)
    source = KafkaSource(kafka.bootstrap, topics=["t"], start=Earliest(), stop=Latest(), sasl=sasl)
    data = pickle.dumps(replace(source, properties={"security.protocol": "SASL_PLAINTEXT"}))
    for _ in range(5):
        assert [value for *_, value in read_all(pickle.loads(data))] == [b"x"]
    assert logins.fired <= 3
    configs = [pickle.loads(data).config for _ in range(2)]
    assert shared_cluster(configs[0]) is shared_cluster(configs[1])


def test_logins_of_different_providers_are_different():
    made = [SaslConfig(mechanism="OAUTHBEARER", token_provider=each) for each in (Tokens(), Tokens(), Fixed("a"), Fixed("b"))]
    assert (len(set(made)), made[2]) == (4, SaslConfig(mechanism="OAUTHBEARER", token_provider=Fixed("a")))
    assert made[0] == SaslConfig(mechanism="OAUTHBEARER", token_provider=made[0].token_provider)


@pytest.mark.parametrize("url", [
    "https://job:hidden@idp.example:80800/token", "htps://job:hidden@idp.example/token?client_secret=hidden",
    "job:hidden@idp.example/token", "https://job:hid@den:hidden@[idp/token", "https://job:hidden/1@idp:x/token#hidden",
    "file://job:hidden@host/token",
])  # fmt: skip
@pytest.mark.parametrize(
    "more", [{}, {"sasl.oauthbearer.metadata.authentication.type": "azure_imds"}], ids=["endpoint", "Azure"]
)
def test_an_address_that_cannot_be_is_shown_without_the_login_in_it(url, more):
    with pytest.raises(UsageError, match=r"sasl.oauthbearer.token.endpoint.url must be like .*(idp|host)") as raised:
        config_of(by_token(url) | (JAVA if not more and not url.startswith("file") else FILE) | more)
    assert "hidden" not in str(raised.value)


def test_no_repr_shows_the_login_in_an_address():
    url = "https://job:hidden@idp.example/token?key=hidden"
    credentials = ClientCredentials(url=url, client_id="me", client_secret="hidden")
    assert "hidden" not in repr((credentials, ManagedIdentity(query="", url=url)))
    with pytest.raises(RetriableError, match=r"the token endpoint https://127.0.0.1:1/token cannot be reached") as raised:
        ClientCredentials(url="https://job:hidden@127.0.0.1:1/token?key=hidden", client_id="me", client_secret="x").token()
    assert "hidden" not in str(raised.value)
