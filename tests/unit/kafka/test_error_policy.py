"""Every error code of every API that we call has a decision, and it is what is done."""

from __future__ import annotations

import pytest

from headrace.connectors.kafka.client.cluster import shared_cluster
from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import BrokerError, broker_error
from headrace.enumerator.errors import is_retriable
from headrace.kafka import Committed, Earliest, KafkaSource, Latest
from headrace.testing.fake_kafka import FakeKafka, Refuse, Rewrite
from tests.helpers.error_policy import DECISIONS, ErrorAction, decision

RETRIED = (ErrorAction.RETRY, ErrorAction.REFRESH)
READING = ("FindCoordinator", "Fetch", "ListOffsets", "OffsetFetch", "OffsetCommit")
LOOKED_AT_AGAIN = {("Fetch", ErrorCode.CORRUPT_MESSAGE), ("Fetch", ErrorCode.INVALID_RECORD)}  # one answer is not a damaged log
GOES_AWAY = {"Metadata": {ErrorCode.REBOOTSTRAP_REQUIRED}}  # of the whole answer, and not of a topic


def cases(apis):
    for api in apis:
        for code in ErrorCode:
            if decision(api, code) is not ErrorAction.ANSWER and code not in GOES_AWAY.get(api, ()):
                yield pytest.param(api, code, id=f"{api}-{code.name}")


@pytest.mark.parametrize("api", DECISIONS)
def test_what_is_retried_is_of_the_class_that_is_retried_and_what_is_refused_is_not(api):
    for code, made in DECISIONS[api].items():
        if made is not ErrorAction.ANSWER:
            assert is_retriable(broker_error(code, "asking")) == (made in RETRIED), code.name


def test_a_code_that_no_table_has_is_refused():
    assert decision("Fetch", 4711) is ErrorAction.REFUSE
    assert decision("Fetch", ErrorCode.DUPLICATE_VOTER) is ErrorAction.REFUSE


@pytest.fixture(scope="module")
def kafka():
    with FakeKafka() as cluster:
        cluster.create_topic("t")
        cluster.append("t", b"x")
        yield cluster


def read_and_commit(kafka: FakeKafka) -> int:
    """With every API that reading calls. Returns the number of rows."""
    source = KafkaSource(
        kafka.bootstrap, topics=["t"], start={("t", 0): Earliest()}, stop=Latest(), group="g",
        properties={"default.api.timeout.ms": "2000", "retry.backoff.ms": "1", "retry.backoff.max.ms": "1", "client.id": "d"},
    )  # fmt: skip
    with source.batches() as batches:
        rows = sum(batch.num_rows for batch in batches)
        batches.checkpoint()
        batches.checkpoint_completed()
    committed = KafkaSource(kafka.bootstrap, topics=["t"], start=Committed("g"), stop=Latest(), properties=source.properties)
    with committed.batches() as batches:
        return rows + sum(batch.num_rows for batch in batches)


@pytest.mark.parametrize(("api", "code"), list(cases(READING)))
def test_a_broker_answers_it_once_and_it_is_asked_again_or_refused_by_name(kafka, api, code):
    shared_cluster.cache_clear()  # which knows the coordinator
    fault = kafka.fault(api, Refuse(code))
    if decision(api, code) in RETRIED or (api, code) in LOOKED_AT_AGAIN:
        assert read_and_commit(kafka) == 1
    else:
        with pytest.raises(BrokerError, match=rf"{code.name} \({int(code)}\)"):
            read_and_commit(kafka)
    assert fault.fired == 1


@pytest.mark.parametrize(("api", "code"), sorted(LOOKED_AT_AGAIN))
def test_what_is_looked_at_again_and_is_still_damaged_is_refused_by_name(kafka, api, code):
    shared_cluster.cache_clear()
    fault = kafka.fault(api, Refuse(code), times=2)
    with pytest.raises(BrokerError, match=rf"{code.name} \({int(code)}\)"):
        read_and_commit(kafka)
    assert fault.fired == 2


def test_a_broker_asks_for_a_new_bootstrap_and_gets_it(kafka):
    shared_cluster.cache_clear()

    def change(response) -> None:
        response.error_code, response.topics = ErrorCode.REBOOTSTRAP_REQUIRED, []

    fault = kafka.fault("Metadata", Rewrite(change))
    assert (read_and_commit(kafka), fault.fired) == (1, 1)
