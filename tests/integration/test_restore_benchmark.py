"""The restore benchmark's harness, end to end, with a real broker and the smallest real system."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.restore.broker_bytes import BrokerBytes, broker_bytes, free_port
from benchmarks.restore.capacity import capacity
from benchmarks.restore.load import Controls, Load
from benchmarks.restore.oracle import Log, judge, read_log
from benchmarks.restore.probe import Probe
from benchmarks.restore.run import Timing, Work, run
from benchmarks.restore.scenarios import Scenario
from benchmarks.restore.systems import BY_NAME
from benchmarks.restore.timeline import Curve
from tests.helpers.kafka_tools import created
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.broker
TIMEOUT_S = 60.0
RATE = 500.0
SHORT = Timing(warm_up_s=1.0, steady_s=1.0, restore_s=60.0)


@pytest.fixture(scope="module")
def counters() -> Iterator[BrokerBytes]:
    with broker_bytes(free_port()) as found:
        yield found


@pytest.fixture(autouse=True)
def _on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose machine had other things to do has worthless figures, but the harness must work there too."""
    monkeypatch.setattr("benchmarks.restore.run.MOST_STOLEN", 1.0)
    monkeypatch.setattr("benchmarks.restore.run.MOST_BEHIND_S", TIMEOUT_S)


SCENARIOS = [
    pytest.param(Scenario("by the clock"), marks=pytest.mark.long),
    pytest.param(Scenario("partitions added, more parallelism", added=2, more=1), marks=pytest.mark.long),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_loop_with_transactions_is_killed_comes_back_and_is_found_without_a_flaw(broker, counters, tmp_path, scenario):
    system = replace(BY_NAME["confluent-txn"], scenarios=lambda _number: scenario)
    steps: list[str] = []
    document = run(broker.bootstrap, counters, Work(system, 100, RATE, 0, SHORT), tmp_path, steps.append)
    assert document["verdict"]["clean"], document["verdict"]
    assert document["valid"], document["wrong"]
    assert document["verdict"]["records_in"] == document["verdict"]["records_out"] > RATE
    assert document["restore"]["outage_s"] > 0
    assert document["dfrt"] == document["restore"]["throughput"] > 0
    assert [mark["name"] for mark in document["marks"]].count("python") == 2 + scenario.more  # it was started again
    assert any(step.startswith("is killed") for step in steps)
    json.dumps(document)


def test_what_a_loop_bears_is_found_and_whose_processor_time_it_takes(broker, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.restore.capacity.MEASURED_S", 3.0)
    monkeypatch.setattr("benchmarks.restore.capacity.STILL_GROWING", 100.0)  # two spans are enough here
    found = capacity(broker.bootstrap, Work(BY_NAME["confluent-txn"], 100, 0.0, 0, SHORT), tmp_path, lambda _step: None)
    assert found.records_per_s > RATE
    assert found.processors_us.keys() == {"Java", "Python", "load", "probe", "broker and others"}
    assert found.processors_us["Java"] == 0
    assert all(budget > 0 for name, budget in found.processors_us.items() if name != "Java")


def test_what_the_load_says_it_wrote_is_in_the_topic_and_the_probe_sees_it_all(broker, topic, tmp_path):
    name = created(broker.bootstrap, topic, 3)
    controls = Controls()
    controls.partitions.value, controls.rate.value = 3, 2000.0
    seeing = Probe(broker.bootstrap, name, tmp_path / "probe", controls)
    with seeing as watching, Load(broker.bootstrap, name, 100, tmp_path / "load", controls) as running:
        eventually(lambda: controls.produced.value >= 3000, seconds=TIMEOUT_S, check=running.check)
        counts = running.stop()
        eventually(lambda: controls.visible.value >= sum(counts), seconds=TIMEOUT_S, check=watching.check)
        watching.kill()
        written = read_log(broker.bootstrap, name, "read_committed", 100)
        outcome = judge(counts, written, lambda: written, watching.seen())
    assert outcome.clean
    assert outcome.unseen == outcome.out_of_order == 0
    assert outcome.records_out == sum(counts) == int(running.curve().total[-1])
    without_one = {**written, 0: Log(written[0].offsets[1:], written[0].ids[1:])}
    assert judge(counts, without_one, lambda: without_one, watching.seen()).lost == 1
    assert isinstance(running.curve(), Curve)
