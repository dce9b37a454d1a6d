"""The kit of sinks on KafkaSink and a real broker; and injected bugs, which it must catch."""

import uuid
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.connectors.kafka.write.handles import KafkaHandle, WrittenRange
from headrace.connectors.kafka.write.transactions import Producer, TransactionProtocol, Transactions
from headrace.kafka import KafkaSink
from headrace.testing import SinkConformance, SinkContext
from headrace.testing.servers.kafka import create_topic, delete_topic
from tests.helpers.sink_rig import kafka_sink, ongoing, read_all, rows, take_over
from tests.simulation.bugs.in_sinks import CAUGHT_BY, PassingSink, assert_caught

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
GOLDEN = (
    '{"id":"headrace.query.1.3.0","pid":4000,"epoch":7,"protocol":2,"started":1700000000000,"timeout":900000,'
    '"topics":[["out","00112233-4455-6677-8899-aabbccddeeff",[[0,10,19,10]]],["old",null,[[2,0,0,1]]]]}'
)
HANDLE = KafkaHandle(
    Producer("headrace.query.1.3.0", 4000, 7), TransactionProtocol.V2, 1_700_000_000_000, 900_000,
    (WrittenRange("out", TOPIC_ID, 0, 10, 19, 10), WrittenRange("old", None, 2, 0, 0, 1)),
)  # fmt: skip
PARTITIONS = 2
ENDING = ("PrepareCommit", "PrepareAbort")


class KafkaContext(SinkContext):
    """A topic, a commit topic and its own prefix."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = f"kit-{uuid.uuid4().hex[:10]}"
        create_topic(bootstrap, self.name, PARTITIONS)

    def create_sink(self) -> KafkaSink:
        return self.sink()

    def sink(self) -> KafkaSink:
        return kafka_sink(self.bootstrap, self.name, f"{self.name}-commits", transactional_id_prefix=self.name)

    def batch(self, values: Sequence[str]) -> pa.RecordBatch:
        return rows(values)

    def visible(self) -> list[str]:
        transactions = Transactions(self.sink().cluster())
        while transactions.listing(f"{self.name}.", ENDING):  # answered, and its markers on their way
            continue
        return read_all(self.bootstrap, self.name)

    def unended(self, job: str) -> int:
        sink = self.sink()
        return len(set(ongoing(sink, job)) - {sink.names(job).driver})

    def golden_handles(self) -> Sequence[tuple[int, str, Any]]:
        return [(1, GOLDEN, HANDLE)]

    def abort_prepared(self, handle: KafkaHandle) -> None:
        take_over(self.sink(), handle)

    def close(self) -> None:
        delete_topic(self.bootstrap, self.name)


class OnKafka(SinkConformance):
    timeout_s = 10.0

    @pytest.fixture(autouse=True)
    def reach(self, broker):
        self.bootstrap = broker.bootstrap

    def create_external_context(self) -> KafkaContext:
        return KafkaContext(self.bootstrap)


@pytest.mark.broker
@pytest.mark.timeout(120)
class TestKafkaSink(OnKafka):
    pass


@pytest.mark.full
@pytest.mark.timeout(120)
@pytest.mark.parametrize("bug", CAUGHT_BY, ids=lambda bug: bug.__name__)
def test_the_kit_catches(bug: type[PassingSink], fake_kafka):
    kit = OnKafka()
    kit.bootstrap = fake_kafka.bootstrap
    kit.timeout_s = 0.5  # what a fake broker has committed is visible at once; the case is shown to pass without the bug
    assert_caught(kit, bug)
