"""The kit on KafkaSource and a broker: a partition per split, a topic per split; and injected bugs, which it must catch."""

import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.connectors.kafka.client.cluster import shared_cluster
from headrace.enumerator import Boundedness, LazyEnumerator
from headrace.enumerator.errors import UsageError
from headrace.kafka import KafkaSource, KafkaSplit, Latest
from headrace.testing import ExternalContext, SourceConformance
from headrace.testing.servers.kafka import add_partitions, create_topic, delete_topic
from tests.helpers.kafka_rig import write
from tests.simulation.bugs import core

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
GOLDEN = [
    (
        1,
        '{"topic":"flights","topic_id":"00112233-4455-6677-8899-aabbccddeeff","partition":3,"next_offset":42,'
        '"stop_offset":null,"last_epoch":null}',
        KafkaSplit("flights", TOPIC_ID, 3, 42),
    ),
    (
        1,
        '{"topic":"a.b-c_d","topic_id":null,"partition":0,"next_offset":0,"stop_offset":9223372036854775807,"last_epoch":7}',
        KafkaSplit("a.b-c_d", None, 0, 0, 2**63 - 1, 7),
    ),
]


class KafkaContext(ExternalContext):
    """Split ids are known when the splits are made: their topic's id is asked for."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.stem = f"conformance-{uuid.uuid4().hex[:10]}"
        self.made: dict[str, tuple[str, int]] = {}

    def source(self, boundedness: Boundedness, **selected: Any) -> KafkaSource:
        stop = Latest() if boundedness is Boundedness.BOUNDED else None
        small = {"fetch.max.wait.ms": "50", "max.partition.fetch.bytes": "1"}
        return KafkaSource(self.bootstrap, stop=stop, properties=small, fetch_budget_bytes=1 << 20, **selected)

    def made_split(self, topic: str, partition: int) -> str:
        source = self.source(Boundedness.UNBOUNDED, topics=[topic])
        split_id = f"{topic}-{partition}@{shared_cluster(source.config).topics([topic])[topic].topic_id}"
        self.made[split_id] = (topic, partition)
        return split_id

    def write(self, split_id: str, values: Sequence[str]) -> None:
        topic, partition = self.made[split_id]
        half = len(values) // 2  # two batches
        for some in (values[:half], values[half:]):
            write(self.bootstrap, topic, [value.encode() for value in some], partition)

    def values(self, batch: pa.RecordBatch) -> list[str]:
        return [value.decode() for value in batch.column("value").to_pylist()]

    def golden_splits(self) -> Sequence[tuple[int, str, Any]]:
        return GOLDEN

    def close(self) -> None:
        for topic in {topic for topic, _ in self.made.values()}:
            with suppress(UsageError):  # deleted already
                delete_topic(self.bootstrap, topic)


class PartitionPerSplit(KafkaContext):
    def create_source(self, boundedness: Boundedness) -> KafkaSource:
        return self.source(boundedness, topics=[self.stem])

    def create_split(self) -> str:
        count = len(self.made)
        if count:
            add_partitions(self.bootstrap, self.stem, count + 1)
        else:
            create_topic(self.bootstrap, self.stem)
        return self.made_split(self.stem, count)


class TopicPerSplit(KafkaContext):
    def create_source(self, boundedness: Boundedness) -> KafkaSource:
        return self.source(boundedness, pattern=rf"{re.escape(self.stem)}\..*")

    def create_split(self) -> str:
        name = f"{self.stem}.{len(self.made)}"
        create_topic(self.bootstrap, name)
        return self.made_split(name, 0)

    def remove_split(self, split_id: str) -> None:
        delete_topic(self.bootstrap, self.made[split_id][0])


class OnKafka(SourceConformance):
    poll_timeout_s = 0.2
    quiet_polls = 2
    timeout_polls = 100
    context: type[KafkaContext] = PartitionPerSplit

    @pytest.fixture(autouse=True)
    def reach(self, broker):
        self.bootstrap = broker.bootstrap

    def create_external_context(self) -> KafkaContext:
        return self.context(self.bootstrap)


@pytest.mark.broker
@pytest.mark.timeout(120)
class TestPartitionPerSplit(OnKafka):
    pass


@pytest.mark.broker
@pytest.mark.timeout(120)
class TestTopicPerSplit(OnKafka):
    context = TopicPerSplit
    assignment = LazyEnumerator


CAUGHT_BY = {
    core.reinitialise_on_restore: "test_savepoint", core.initial_discovery_on_restore: "test_restored_never_initialises",
    core.checkpoint_without_positions: "test_crash_goes_back_to_the_checkpoint", core.last_read_offset_stored: "test_savepoint",
}  # fmt: skip


@pytest.fixture
def on_fake(fake_kafka):
    """A function that runs one case of the kit, against a fake broker and with the timeout of the other tests here."""
    contexts, kit = [], OnKafka()
    kit.bootstrap = fake_kafka.bootstrap

    def run(case: str) -> None:
        contexts.append(kit.create_external_context())
        getattr(kit, case)(contexts[-1])

    yield run
    kit.close_runs()
    for context in contexts:
        context.close()


@pytest.mark.parametrize("bug", CAUGHT_BY, ids=lambda bug: bug.__name__)
def test_the_kit_catches(bug, on_fake):
    with bug(), pytest.raises(AssertionError):
        on_fake(CAUGHT_BY[bug])


@pytest.mark.parametrize("case", sorted(set(CAUGHT_BY.values())))
def test_the_same_case_passes_without_a_bug(case, on_fake):
    on_fake(case)
