"""Secrets in a query's options are in nothing that Spark shows or keeps: plans, logs, the event log, checkpoints, errors."""

import json
import os
import subprocess
import sys

import pytest

from headrace.testing import FakeKafka
from tests.helpers.python_path import ROOT, python_path
from tests.helpers.schema_registry import FakeRegistry
from tests.helpers.secret_search import PASSWORD, REGISTRY_PASSWORD, SCHEMA, USER, files_with, login

PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nhunter4\n-----END PRIVATE KEY-----"


@pytest.fixture
def registry():
    with FakeRegistry(user=f"me:{REGISTRY_PASSWORD}") as registry:
        registry.register("in-value", SCHEMA)
        registry.register("out-value", SCHEMA)
        yield registry


def typed(registry):
    given = {"valueFormat": "avro", "schemaRegistryUrl": registry.url}
    return {**given, "schema.registry.basic.auth.user.info": f"me:{REGISTRY_PASSWORD}"}


def as_options(properties):
    return {f"kafka.{name}": value for name, value in properties.items()}


def test_a_plan_shows_no_login_of_a_registry_and_no_private_key(spark, registry, capsys):
    options = {**typed(registry), **as_options(login(PASSWORD)), "kafka.bootstrap.servers": "127.0.0.1:1"}
    options |= {"kafka.ssl.keystore.key": PRIVATE_KEY, "kafka.ssl.keystore.certificate.chain": "of-the-key"}
    spark.readStream.format("headrace").options(**options, subscribe="in").load().explain(extended=True)
    shown = capsys.readouterr().out
    assert "kafka.bootstrap.servers=127.0.0.1:1" in shown  # so options are shown
    assert not [secret for secret in (PASSWORD, REGISTRY_PASSWORD, "hunter4") if secret in shown]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_secret_is_in_plans_logs_the_event_log_the_checkpoint_and_errors(registry, tmp_path):
    (tmp_path / "events").mkdir()
    with FakeKafka(users={USER: PASSWORD}) as kafka:
        for topic in ("in", "out", "letters"):
            kafka.create_topic(topic, partitions=1)
        kafka.append("in", b"\0" + registry.register("in-value", SCHEMA).to_bytes(4, "big") + b"\2", b"bad")
        settings = {
            "kafka": {**as_options(login(PASSWORD)), "kafka.bootstrap.servers": kafka.bootstrap},
            "wrong": as_options(login(f"{PASSWORD}-of-before")), "typed": typed(registry), "folder": str(tmp_path),
        }  # fmt: skip
        job = ROOT / "tests" / "helpers" / "spark_secret_job.py"
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": python_path()}
        with (tmp_path / "log").open("wb") as log:
            done = subprocess.run(
                [sys.executable, job], input=json.dumps(settings).encode(), stdout=log, stderr=log, check=False, env=environment
            )
        assert done.returncode == 0, (tmp_path / "log").read_text()[-4000:]
        assert kafka.records("out")
        assert [record.value for record in kafka.records("letters")] == [b"bad"]
    log = (tmp_path / "log").read_text()
    for part in ("StreamingRelationV2", "== Physical Plan ==", "the broker refused our credentials", "INFO"):
        assert part in log
    assert any(b"SparkListenerSQLExecutionStart" in path.read_bytes() for path in (tmp_path / "events").rglob("events_*"))
    assert list((tmp_path / "checkpoint" / "offsets").iterdir())
    assert files_with([PASSWORD, REGISTRY_PASSWORD], tmp_path) == []
