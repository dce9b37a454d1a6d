"""The fake broker is held to the real one: the same requests to both, and the answers are the same."""

import pytest

from headrace.testing.fake_kafka import FakeKafka
from headrace.testing.servers.kafka import start_broker
from tests.helpers.kafka_scenarios import SCENARIOS, played, recorded
from tests.helpers.leader_scenario import leaders_that_move

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def real():
    """One of its own: scenarios move the cluster's transaction.version."""
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100", "group.initial.rebalance.delay.ms": "0"}
    with start_broker(config=config) as cluster:
        yield cluster.bootstrap


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_answer_the_same(real, name):
    expected = played(name, real)
    with FakeKafka() as kafka:
        assert played(name, kafka.bootstrap) == expected
    assert recorded()[name] == expected, "record again what the real broker says: tests/helpers/kafka_scenarios.py"


class Fake:
    """The fake cluster, by the words of the real one."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.address, self.stop, self.restart = kafka.address, kafka.stop_broker, kafka.start_broker


def test_both_answer_the_same_while_a_leader_goes_and_comes_back(cluster3):
    expected = leaders_that_move(cluster3)
    with FakeKafka(brokers=3) as kafka:
        assert leaders_that_move(Fake(kafka)) == expected
