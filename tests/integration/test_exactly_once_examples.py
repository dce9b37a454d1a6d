"""The experiments of `examples/exactly_once`, as a user runs them; and that they see what they are there to see."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.properties import ClientConfig
from tests.helpers.databases import mariadb, postgresql

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]
EXAMPLES = Path(__file__).parents[2] / "examples" / "exactly_once"


def run(broker, script, *arguments):
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": broker.bootstrap}
    command = [sys.executable, str(EXAMPLES / f"{script}.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "outcome"),
    [("isolation", "isolation: each record once"), ("group_offsets", "group_offsets: they follow the checkpoint")],
)
def test_the_experiment_comes_out_as_it_should(broker, script, outcome):
    done = run(broker, script)
    assert done.stdout.splitlines()[-1:] == [outcome], done.stdout + done.stderr
    assert done.returncode == 0


PHASES = [
    "when a task has prepared",
    "when the list of a batch's transactions is durable",
    "after the last commit of a batch, before Spark has noted it",
]
"""Of three sinks in one batch. The others are those of one sink: the tests of the Kafka sink and of the SQL sink."""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_three_sinks_have_each_record_once_though_the_job_is_killed(broker):
    kills = [word for phase in PHASES for word in ("--kill", phase)]
    with mariadb() as one, postgresql() as other:
        done = run(broker, "three_sinks", "--mariadb", one.url, "--postgresql", other.url, *kills)
    assert done.stdout.splitlines()[-1:] == ["three_sinks: each record once in each"], done.stdout + done.stderr
    killed = [line for line in done.stdout.splitlines() if line.startswith("  killed ")]
    assert killed == [f"  killed {phase}" for phase in PHASES]
    assert done.returncode == 0


@pytest.mark.long
def test_without_transactions_a_reader_sees_what_a_killed_job_left(broker):
    done = run(broker, "isolation", "at-least-once")
    assert "FAILED: it does not hold that read_" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


def test_a_group_ahead_of_the_checkpoint_is_seen(broker, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLES)
    experiment, group_offsets = (importlib.import_module(name) for name in ("experiment", "group_offsets"))
    kafka = experiment.Kafka(broker.bootstrap)
    topic = kafka.topic("group-ahead", group_offsets.PARTITIONS)
    kafka.send(topic, range(group_offsets.BATCH), group_offsets.PARTITIONS)
    group = group_offsets.Group(kafka, topic, tmp_path)
    assert group.look() == 0
    with KafkaCluster(ClientConfig(bootstrap=broker.bootstrap)) as cluster:
        cluster.commit_offsets(topic, {(topic, 0): CommittedOffset(1)})
    with pytest.raises(experiment.ExperimentError, match="the group is at 1, and the last checkpoint at 0"):
        group.look()
