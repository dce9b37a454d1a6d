"""Bearer tokens against Kafka's own validator, which fetches the keys from an authority of the test's."""

import logging
import os
import time

import pyarrow as pa
import pytest

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.security import renewal
from headrace.enumerator.errors import AuthenticationError, RetriableError
from headrace.kafka import KafkaSink, KafkaSource
from headrace.runners.waiting import wait_until
from headrace.testing.servers.kafka import create_topic, start_broker
from headrace.testing.servers.kafka.containers import docker_answers
from tests.soak.token_authority import ENV_PROVIDER, TokenAuthority

LIFETIME_S = 4.0
SECRET = "hunter2-of-the-client"


@pytest.fixture(scope="module")
def authority():
    with TokenAuthority("job", SECRET, LIFETIME_S) as authority:
        yield authority


@pytest.fixture(scope="module")
def cluster(authority):
    if "HEADRACE_BOOTSTRAP" in os.environ or docker_answers():
        pytest.skip("a broker elsewhere cannot fetch the test's keys")
    given = {"config": authority.broker_config(), "jvm_options": authority.jvm_options()}
    with start_broker(security=("SASL_PLAINTEXT",), users={"nobody": "x"}, **given) as cluster:
        create_topic(cluster.bootstrap, "t")
        yield cluster


@pytest.fixture
def properties(authority, monkeypatch):
    renewal.kept.start_afresh()
    monkeypatch.setenv("TOKEN_SECRET", SECRET)
    return authority.properties('clientId="job" clientSecret="${env:TOKEN_SECRET}"') | ENV_PROVIDER


def test_a_script_reads_and_writes_through_many_tokens_with_idle_connections_between(authority, cluster, properties, caplog):
    caplog.set_level(logging.DEBUG)
    bootstrap = cluster.listeners["SASL_PLAINTEXT"]
    sink = KafkaSink(bootstrap, topic="t", properties=properties, commit_topic="commits")
    source = KafkaSource(bootstrap, topics=["t"], properties=properties)
    driver, found, started = JobCommitter("j", sink.committer("j")), [], len(authority.tokens)
    with source.create_reader() as reader:
        reader.add_splits(source.create_discovery().initial().added)

        def read(count: int) -> None:
            batch = reader.poll(0.1)
            found.extend(batch.records.column("value").to_pylist() if batch is not None else [])
            if len(found) < count:
                raise RetriableError("not all are there yet")

        for epoch in range(2):
            transaction = sink.begin(Attempt("j", epoch, 0, 0))
            transaction.write(pa.record_batch([pa.array([b"%d" % epoch])], ["value"]))
            ends = time.monotonic() + LIFETIME_S
            wait_until(lambda ends=ends: _past(ends), "the token to end, with the transaction open")
            transaction.write(pa.record_batch([pa.array([b"%d more" % epoch])], ["value"]))
            driver.commit(epoch, (transaction.prepare(),))
            wait_until(lambda epoch=epoch: read(2 * epoch + 2), "what was written to be read")
    assert found == [b"0", b"0 more", b"1", b"1 more"]
    assert len(authority.tokens) - started >= 2
    shown = caplog.text + repr(source) + repr(sink)
    assert SECRET not in shown
    assert not [token for token in authority.tokens if token in shown]
    assert "outage" not in caplog.text


def _past(moment: float) -> None:
    if time.monotonic() < moment:
        raise RetriableError("not yet")


def test_a_token_that_no_process_of_the_authority_has_signed_is_refused_at_once(authority, cluster, tmp_path):
    head, body, signature = authority.issue().split(".")
    forged = tmp_path / "token"
    forged.write_text(".".join([head, body, signature[::-1]]))
    given = authority.properties("") | {"bootstrap.servers": cluster.listeners["SASL_PLAINTEXT"]}
    given["sasl.oauthbearer.token.endpoint.url"] = forged.as_uri()
    with KafkaCluster(ClientConfig.from_properties(given)) as kafka, pytest.raises(AuthenticationError) as caught:
        kafka.topics(["t"])
    assert signature[::-1] not in str(caught.value)
    forged.write_text(authority.issue())
    with KafkaCluster(ClientConfig.from_properties(given)) as kafka:
        assert "t" in kafka.topics(["t"])
