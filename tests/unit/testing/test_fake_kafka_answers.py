"""The fake broker answers as a real one did when it was last asked (test_fake_kafka_against_kafka.py)."""

import pytest

from headrace.testing.fake_kafka import ErrorCode, FakeKafka, Refuse
from tests.helpers.kafka_scenarios import SCENARIOS, played, recorded


@pytest.mark.parametrize("name", SCENARIOS)
def test_it_answers_as_a_real_broker_did(name):
    with FakeKafka() as kafka:
        assert played(name, kafka.bootstrap) == recorded()[name]


def test_every_recorded_answer_is_of_a_scenario():
    assert set(recorded()) == set(SCENARIOS)


@pytest.mark.parametrize(("name", "api", "code"), [
    ("fetches", "Fetch", ErrorCode.OFFSET_OUT_OF_RANGE), ("sequences", "Produce", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("offsets_by_time", "ListOffsets", ErrorCode.NOT_LEADER_OR_FOLLOWER),
])  # fmt: skip
def test_one_wrong_answer_is_seen(name, api, code):
    with FakeKafka() as kafka:
        kafka.fault(api, Refuse(code), nth=5)
        assert played(name, kafka.bootstrap) != recorded()[name]
