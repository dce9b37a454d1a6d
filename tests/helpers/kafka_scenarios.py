"""The same requests to any broker, and its answers without what differs from run to run. A scenario takes a `Rig`."""

import json
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.connectors.kafka.format.record_batch import stored_batches
from tests.helpers.raw_kafka import TIME_MS, TIMEOUT_S, TRANSACTIONAL, RawKafka, batch

Facts = list[Any]
RECORDING = Path(__file__).parents[1] / "unit" / "testing" / "kafka_answers.json"
Scenario = Callable[["Rig"], Iterable[Any]]
SCENARIOS: dict[str, Scenario] = {}
CONCURRENT = 51
NEVER = frozenset({
    "throttle_time_ms", "port", "host", "error_message", "message", "cluster_id", "node_endpoints", "session_id", "client_host",
    "current_leader", "brokers", "controller_id", "low_watermark_timestamp", "documentation", "authorized_operations",
    "coordinator_epoch", "last_timestamp", "transaction_start_time_ms", "rack", "configs", "log_append_time_ms",
    "record_errors",
})  # fmt: skip
_NOW_MS = 1_750_000_000_000


def scenario(play: Scenario) -> Scenario:
    SCENARIOS[play.__name__] = play
    return play


class Rig:
    """A broker, and names that no other process uses there."""

    def __init__(self, raw: RawKafka) -> None:
        self.raw = raw
        self.address = raw.address
        self.prefix = f"s{uuid.uuid4().hex[:10]}-"
        self._seen: dict[Any, int] = {}
        ids = {"producer_id": -1, "producer_epoch": -1}
        raw("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000, **ids)  # so that no process has id 0

    def name(self, text: str) -> str:
        return self.prefix + text

    def topic(self, text: str = "t", partitions: int = 1, **configs: str) -> str:
        name = self.name(text)
        lasting = {"retention_ms": "-1", "segment_ms": str((1 << 63) - 1)}  # our records are years old
        settings = [{"name": key.replace("_", "."), "value": value} for key, value in {**lasting, **configs}.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": settings}
        answer = self.raw("CreateTopics", 7, topics=[topic], timeout_ms=10_000, validate_only=False)
        assert answer.topics[0].error_code == 0, answer
        self.until(lambda: self._is_led(name, partitions))
        return name

    def _is_led(self, name: str, partitions: int) -> bool:
        parts = [{"partition_index": index, "timestamp": -1, "current_leader_epoch": -1} for index in range(partitions)]
        answer = self.raw("ListOffsets", 6, isolation_level=0, topics=[{"name": name, "partitions": parts}])
        return all(each.error_code == 0 for each in answer.topics[0].partitions)

    def topic_id(self, name: str) -> uuid.UUID:
        return self.raw("Metadata", 12, topics=[{"name": name, "topic_id": uuid.UUID(int=0)}]).topics[0].topic_id

    def produce(self, topic: str, data: bytes, version: int = 9, transactional_id: str | None = None, acks: int = -1) -> Any:
        named = {"topic_id": self.topic_id(topic)} if version >= 13 else {"name": topic}
        parts = [{**named, "partition_data": [{"index": 0, "records": data}]}]
        fields = {"acks": acks, "timeout_ms": 5000, "transactional_id": transactional_id}
        return self.raw("Produce", version, topic_data=parts, **fields).responses[0].partition_responses[0]

    def written(self, topic: str, *values: bytes, **shape: int) -> None:
        assert self.produce(topic, batch(*values, **shape)).error_code == 0

    def fetch(self, topic: str, offset: int, version: int = 12, **fields: Any) -> Any:
        return self.fetch_answer(topic, offset, version, **fields).responses[0].partitions[0]

    def fetch_answer(self, topic: str, offset: int, version: int = 12, **fields: Any) -> Any:
        named = {"topic_id": self.topic_id(topic)} if version >= 13 else {"topic": topic}
        whole = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
        part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        part |= {key: fields.pop(key) for key in list(fields) if key in _OF_PARTITIONS}
        return self.raw("Fetch", version, **{**whole, **fields}, topics=[{**named, "partitions": [part]}])

    def coordinator(self, name: str, kind: int) -> None:
        """Wait until another process looks after this group (0) or transactional id (1)."""
        self.until(lambda: self.found_coordinator(name, kind).error_code == 0)

    def found_coordinator(self, name: str, kind: int) -> Any:
        return self.raw("FindCoordinator", 4, key_type=kind, coordinator_keys=[name]).coordinators[0]

    def patient(self, ask: Callable[[], Any]) -> Any:
        """The answer once it is no longer CONCURRENT_TRANSACTIONS, nor that the coordinator is only starting."""
        found: list[Any] = []

        def ready() -> bool:
            found[:] = [ask()]
            return found[0].error_code not in {CONCURRENT, 14, 15, 16}

        self.until(ready)
        return found[0]

    @staticmethod
    def until(ready: Callable[[], bool]) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not ready():
            assert time.monotonic() < end, "the broker did not become ready"

    def asked(self, api: str, version: int, **fields: Any) -> Any:
        return self.facts(self.raw(api, version, **fields))

    def facts(self, value: Any) -> Any:
        """What stays the same from run to run."""
        if hasattr(value, "_struct"):
            value = {name: getattr(value, name) for name, field in value._struct.fields.items() if _is_there(value, field)}
        if isinstance(value, dict):
            return {key: self._named(key, each) for key, each in value.items() if key not in NEVER}
        if isinstance(value, (list, tuple)):
            return sorted((self.facts(each) for each in value), key=_place)
        if isinstance(value, uuid.UUID):
            return f"id {self._number(value)}" if value.int else "no id"
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value).hex()
        if isinstance(value, str):
            return value.replace(self.prefix, "")
        return "now" if isinstance(value, int) and value > _NOW_MS and value < 1 << 62 else value

    def _named(self, key: str, value: Any) -> Any:
        if key == "producer_id" and isinstance(value, int) and value >= 0:
            return f"producer {self._number(('producer', value))}"
        if key in {"member_id", "leader"} and value:
            return f"member {self._number(('member', value))}"
        if key == "records" and isinstance(value, (bytes, bytearray, memoryview)):
            return {"bytes": len(value), "batches": [self._batch(each) for each in stored_batches(memoryview(value))]}
        return self.facts(value)

    def _batch(self, each: Any) -> list[Any]:
        producer = self._named("producer_id", each.producer_id)
        return [each.base_offset, each.last_offset, each.leader_epoch, each.attributes, producer, each.producer_epoch]

    def _number(self, key: Any) -> int:
        return self._seen.setdefault(key, len(self._seen))


_PLACES = ("index", "partition_index", "partition", "group_id", "member_id")


def _place(fact: Any) -> tuple[Any, ...]:
    """Brokers answer some lists in no order."""
    return next(((fact[key],) for key in _PLACES if key in fact), ()) if isinstance(fact, dict) else ()


_OF_PARTITIONS = {"partition_max_bytes", "current_leader_epoch", "last_fetched_epoch"}


def _is_there(value: Any, field: Any) -> bool:
    return value.version is None or field.for_version_q(value.version)


# --- transactions -----------------------------------------------------------------------------------------------------------
class Producer:
    """A transactional producer of one version of the protocol, request by request."""

    def __init__(self, rig: Rig, name: str, version: int, timeout_ms: int = 60_000) -> None:
        self.rig, self.id, self.version, self.timeout_ms = rig, rig.name(name), version, timeout_ms
        rig.coordinator(self.id, 1)
        self.pid, self.epoch, self.sequence = -1, -1, 0

    def init(self, **fields: Any) -> Any:
        asked = {"producer_id": -1, "producer_epoch": -1, **fields}
        request = {"transactional_id": self.id, "transaction_timeout_ms": self.timeout_ms, **asked}
        answer = self.rig.patient(lambda: self.rig.raw("InitProducerId", 5, **request))
        if answer.error_code == 0:
            self.pid, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return answer

    def add(self, topic: str, **changes: int) -> int:
        who = {"v3_and_below_producer_id": self.pid, "v3_and_below_producer_epoch": self.epoch, **changes}

        def ask() -> Any:
            topics = [{"name": topic, "partitions": [0]}]
            asked = {"v3_and_below_transactional_id": self.id, "v3_and_below_topics": topics, **who}
            answer = self.rig.raw("AddPartitionsToTxn", 3, **asked)
            found = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
            return SimpleNamespace(error_code=found.partition_error_code)

        return int(self.rig.patient(ask).error_code)

    def write(self, topic: str, value: bytes = b"x", **shape: int) -> int:
        """The error code; a write that succeeds counts in the sequence. Version 1 adds the partition first."""
        if self.version == 1:
            code = self.add(topic)
            if code:
                return code
        return self.write_only(topic, value, **shape)

    def write_only(self, topic: str, value: bytes = b"x", **shape: int) -> int:
        who = {"producer_id": self.pid, "producer_epoch": self.epoch, "base_sequence": self.sequence, **shape}
        data = batch(value, attributes=TRANSACTIONAL, **who)
        api = 12 if self.version == 2 else 11
        answer = self.rig.patient(lambda: self.rig.produce(topic, data, api, self.id))
        if answer.error_code == 0:
            self.sequence += 1
        return int(answer.error_code)

    def end(self, commit: bool, epoch: int | None = None, version: int | None = None, **changes: Any) -> list[Any]:
        """[error code, how far the epoch moved]."""
        sent = self.epoch if epoch is None else epoch
        request = {"transactional_id": self.id, "producer_id": self.pid, "producer_epoch": sent, "committed": commit, **changes}
        api = (5 if self.version == 2 else 4) if version is None else version
        answer = self.rig.patient(lambda: self.rig.raw("EndTxn", api, **request))
        return [answer.error_code, answer.producer_epoch - sent if answer.error_code == 0 and api >= 5 else None]

    def describe(self) -> Any:
        (found,) = self.rig.raw("DescribeTransactions", 0, transactional_ids=[self.id]).transaction_states
        return found

    def settled(self) -> Any:
        """As described once no marker is on its way."""
        self.rig.until(lambda: not self.describe().transaction_state.startswith("Prepare"))
        return self.rig.facts(self.describe())


def _both_versions(play: Callable[[Rig, int], Iterable[Any]]) -> None:
    for version in (1, 2):

        def one(rig: Rig, version: int = version) -> Iterable[Any]:
            if _transaction_version(rig) == version:
                return play(rig, version)
            direction = 1 if version == 2 else 2  # upgrade, safe downgrade
            update = [{"feature": "transaction.version", "max_version_level": version, "upgrade_type": direction}]
            answer = rig.raw("UpdateFeatures", 1, feature_updates=update, timeout_ms=10_000, validate_only=False)
            assert answer.error_code == 0, answer
            rig.until(lambda: _transaction_version(rig) == version)
            return play(rig, version)

        SCENARIOS[f"{play.__name__}_v{version}"] = one


def _transaction_version(rig: Rig) -> int:
    answer = rig.raw("ApiVersions", 3, client_software_name="x", client_software_version="1")
    return next((each.max_version_level for each in answer.finalized_features if each.name == "transaction.version"), 0)


@_both_versions
def end_txn(rig: Rig, version: int) -> Iterator[Any]:
    """The table of what EndTxn answers."""
    topic = rig.topic()

    def started(name: str) -> Generator[Any, None, Producer]:
        producer = Producer(rig, name, version)
        producer.init()
        yield [name, producer.epoch, producer.write(topic)]
        return producer

    one = yield from started("commit twice")
    yield from [one.end(True), one.end(True), one.settled()]
    yield from [["abort, same epoch", one.end(False)], ["commit again", one.end(True)]]
    yield from [["abort, next epoch", one.end(False, one.epoch + 1)], ["commit after that", one.end(True)], one.settled()]
    two = yield from started("abort twice")
    yield from [two.end(False), two.end(False), two.end(True), two.settled()]
    for commit in (True, False):
        empty = Producer(rig, f"empty {commit}", version)
        empty.init()
        yield from [["empty", commit, empty.end(commit), empty.end(commit)], empty.settled()]
    three = yield from started("taken over while open")
    yield from [_other(three), three.end(True), three.end(False), three.settled()]
    four = yield from started("taken over after commit")
    yield from [four.end(True), _other(four), four.end(True), four.end(False)]
    five = yield from started("unknown")
    yield from [five.end(True, producer_id=five.pid + 1_000_000), five.end(True, transactional_id=rig.name("nobody"))]
    yield from [five.end(True, five.epoch + 1), five.end(True, five.epoch - 1), five.end(True)]


@_both_versions
def versions_of_end_txn_mixed(rig: Rig, version: int) -> Iterator[Any]:
    topic = rig.topic()
    for first, then in ((4, 5), (5, 4)):
        for commit in (True, False):
            producer = Producer(rig, f"{first} {then} {commit}", version)
            producer.init()
            yield [first, then, commit, producer.write(topic), producer.end(commit, version=first)]
            for again in (commit, not commit):
                for epoch in (0, 1):
                    yield [again, epoch, producer.end(again, producer.epoch + epoch, version=then)]
            yield producer.settled()


def _other(producer: Producer) -> int:
    other = Producer(producer.rig, "", producer.version)
    other.id = producer.id
    return int(other.init().producer_epoch) - producer.epoch


@_both_versions
def transactions_after_each_other(rig: Rig, version: int) -> Iterator[Any]:
    topic = rig.topic()
    producer = Producer(rig, "chain", version)
    yield rig.facts(producer.init())
    for commit in (True, False, True):
        yield from [producer.write(topic), producer.write(topic)]
        late = producer.epoch
        answer = producer.end(commit)
        yield answer
        producer.settled()
        if version == 2:
            producer.epoch, producer.sequence = producer.epoch + answer[1], 0
        yield ["late write", _late(producer, topic, late)]
    yield from [rig.facts(rig.fetch(topic, 0, isolation_level=1)), rig.facts(rig.fetch(topic, 0, isolation_level=0))]


def _late(producer: Producer, topic: str, epoch: int) -> int:
    """A write of the transaction that has ended, which the network has kept."""
    who = {"producer_id": producer.pid, "producer_epoch": epoch, "base_sequence": 2}
    data = batch(b"late", attributes=TRANSACTIONAL, **who)
    if producer.version == 1:
        return -1  # not distinguished from the next one's under version 1 before KIP-890's verification: see zombies
    return int(producer.rig.patient(lambda: producer.rig.produce(topic, data, 12, producer.id)).error_code)


@_both_versions
def zombies(rig: Rig, version: int) -> Iterator[Any]:
    topic = rig.topic()
    old = Producer(rig, "zombie", version)
    old.init()
    yield from [old.write(topic), _other(old), old.write(topic), old.write_only(topic), old.end(True)]
    yield rig.facts(old.describe())
    unadded = Producer(rig, "unadded", version)
    unadded.init()
    yield ["write that was not announced", unadded.write_only(topic)]
    yield ["wrong producer id", unadded.add(topic, v3_and_below_producer_id=unadded.pid + 1_000_000)]
    yield ["wrong epoch", unadded.add(topic, v3_and_below_producer_epoch=unadded.epoch + 1)]
    yield ["unknown topic", unadded.add(rig.name("nowhere"))]


@_both_versions
def producers_that_renew_themselves(rig: Rig, version: int) -> Iterator[Any]:
    producer = Producer(rig, "renewing", version)
    producer.init()
    pid, epoch = producer.pid, producer.epoch
    yield from [rig.facts(producer.init(producer_id=pid, producer_epoch=epoch)) for _ in range(3)]
    yield rig.facts(producer.init(producer_id=pid, producer_epoch=epoch + 5))
    yield rig.facts(producer.init(producer_id=pid + 1_000_000, producer_epoch=epoch))
    yield rig.facts(producer.init(producer_id=pid))
    for timeout in (0, -1, 2**31 - 1):
        producer.timeout_ms = timeout
        yield rig.facts(producer.init())
    producer.timeout_ms, producer.id = 1000, ""
    yield rig.facts(producer.init())


@_both_versions
def timed_out(rig: Rig, version: int) -> Iterator[Any]:
    topic = rig.topic()
    producer = Producer(rig, "slow", version, timeout_ms=300)
    producer.init()
    yield producer.write(topic)
    rig.until(lambda: producer.describe().transaction_state == "CompleteAbort")
    for api in (4, 5):
        yield from [[api, producer.end(True, version=api), producer.end(False, version=api)]]
    yield from [producer.write_only(topic), rig.facts(producer.describe())]


@scenario
def what_is_told_of_transactions(rig: Rig) -> Iterator[Any]:
    topic = rig.topic(partitions=2)
    producer = Producer(rig, "described", 1)
    yield rig.facts(producer.describe())
    producer.init()
    yield rig.facts(producer.describe())
    producer.write(topic)
    yield rig.facts(producer.describe())
    asked = [{"name": topic, "partition_indexes": [0, 1, 7]}, {"name": rig.name("nowhere"), "partition_indexes": [0]}]
    yield rig.asked("DescribeProducers", 0, topics=asked)
    for state, pattern in (("Ongoing", None), ("Empty", None), ("Nonsense", None), ("Ongoing", "described"), ("Ongoing", ".*")):
        filters = {"state_filters": [state], "producer_id_filters": [producer.pid], "duration_filter": -1}
        yield rig.asked("ListTransactions", 2, transactional_id_pattern=pattern, **filters)
    yield rig.asked("ListTransactions", 2, state_filters=[], producer_id_filters=[], transactional_id_pattern="(")
    yield producer.end(True)


@_both_versions
def offsets_in_transactions(rig: Rig, version: int) -> Iterator[Any]:
    topic = rig.topic()
    producer = Producer(rig, "offsets", version)
    group = rig.name("group")
    rig.coordinator(group, 0)
    producer.init()

    def commit(offset: int, **changes: Any) -> Any:
        parts = [{"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "m"}]
        who = {"producer_id": producer.pid, "producer_epoch": producer.epoch, **changes}
        topics = [{"name": topic, "partitions": parts}]
        api = 5 if version == 2 else 4
        ids = {"transactional_id": producer.id, "group_id": group, "generation_id": -1, "member_id": "", **who}

        def ask() -> Any:
            found = rig.raw("TxnOffsetCommit", api, topics=topics, **ids).topics[0].partitions[0]
            return SimpleNamespace(error_code=found.error_code)

        return rig.patient(ask).error_code

    def fetched(stable: bool) -> Any:
        groups = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}]
        return rig.asked("OffsetFetch", 8, groups=groups, require_stable=stable)

    def add() -> Any:
        ids = {"transactional_id": producer.id, "group_id": group, "producer_id": producer.pid}
        return rig.patient(lambda: rig.raw("AddOffsetsToTxn", 3, producer_epoch=producer.epoch, **ids)).error_code

    probe = Group(rig)
    rig.until(lambda: probe("Heartbeat", 4, member_id="x", generation_id=1).error_code == 25)
    if version == 1:
        yield add()
    yield from [commit(5), fetched(False), fetched(True), ["wrong epoch", commit(6, producer_epoch=producer.epoch + 3)]]
    yield from [["old epoch", commit(6, producer_epoch=producer.epoch - 1)], producer.end(True)]
    rig.until(lambda: fetched(True)["groups"][0]["topics"][0]["partitions"][0]["error_code"] == 0)
    yield from [fetched(True), producer.settled()]


# --- producing ---------------------------------------------------------------------------------------------------------------
@scenario
def sequences(rig: Rig) -> Iterator[Any]:
    topic = rig.topic()
    found = rig.raw("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1)
    pid = found.producer_id
    yield found.producer_epoch

    def write(epoch: int, sequence: int, count: int = 1, producer_id: int = pid) -> list[Any]:
        data = batch(*[b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        answer = rig.produce(topic, data)
        return [epoch, sequence, count, answer.error_code, answer.base_offset, answer.log_start_offset]

    yield from [write(0, 0, 2), write(0, 2), write(0, 0, 2), write(0, 2), write(0, 4), write(0, 1)]
    yield from [write(0, sequence) for sequence in range(3, 9)]
    yield from [write(0, 0, 2), write(0, 8), write(1, 5), write(1, 0), write(0, 9), write(1, 1), write(1, 0)]
    yield from [write(0, sequence, producer_id=pid + 500_000) for sequence in (5, 6, 9)]  # no one knows it
    yield from [write(3, 7, producer_id=pid + 500_001), write(2, 8, producer_id=pid + 500_001)]


@scenario
def sequences_that_wrap(rig: Rig) -> Iterator[Any]:
    topic = rig.topic()
    for sequence, count in ((2**31 - 3, 2), (2**31 - 1, 1), (0, 1), (1, 1), (2**31 - 1, 1)):
        data = batch(*[b"v"] * count, producer_id=7_000_000, producer_epoch=0, base_sequence=sequence)
        answer = rig.produce(topic, data)
        yield [sequence, answer.error_code, answer.base_offset]


@scenario
def refused_writes(rig: Rig) -> Iterator[Any]:
    topic = rig.topic(max_message_bytes="2000")
    compacted = rig.topic("compacted", cleanup_policy="compact")
    good = batch(b"x")
    broken = good[:-1] + bytes([good[-1] ^ 1])
    keyless = _keyless()

    def write(what: str, data: bytes, to: str = topic, version: int = 9, **fields: Any) -> list[Any]:
        return [what, rig.facts(rig.produce(to, data, version, **fields))]

    yield from [write("good", good), write("crc", broken), write("isolated", good[:-5]), write("two batches", good + good)]
    yield from [write("too large", batch(bytes(2100))), write("acks", good, acks=7)]
    yield from [write("control", batch(b"x", attributes=0x20)), write("append time", batch(b"x", attributes=0x08))]
    sequenced = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    yield write("transactional without id", batch(b"x", attributes=TRANSACTIONAL, **sequenced))
    yield from [write("without key", keyless, compacted), write("with key", good, compacted), write("empty", b"")]
    yield write("by id", good, version=13)
    part = {"partition_data": [{"index": 9, "records": good}, {"index": -1, "records": good}]}
    whole = {"acks": -1, "timeout_ms": 1000, "transactional_id": None}
    yield rig.asked("Produce", 9, topic_data=[{"name": topic, **part}], **whole)
    yield rig.asked("Produce", 9, topic_data=[{"name": rig.name("nowhere"), **part}], **whole)
    yield rig.asked("Produce", 13, topic_data=[{"topic_id": uuid.UUID(int=77), **part}], **whole)


def _keyless() -> bytes:
    from headrace.testing.fake_kafka.state.logs.batches import NewRecord, record_batch

    return bytes(record_batch([NewRecord(b"x", None, timestamp_ms=TIME_MS)], TIME_MS))


@scenario
def more_replicas_in_sync_than_there_are(rig: Rig) -> Iterator[Any]:
    topic = rig.topic(min_insync_replicas="3")
    yield from [rig.facts(rig.produce(topic, batch(b"x"), acks=acks)) for acks in (-1, 1)]


@scenario
def the_time_of_appending(rig: Rig) -> Iterator[Any]:
    topic = rig.topic(message_timestamp_type="LogAppendTime")
    rig.written(topic, b"a", b"b")
    yield rig.facts(rig.fetch(topic, 0))
    answer = rig.produce(topic, batch(b"c"))
    yield [answer.error_code, answer.base_offset, answer.log_append_time_ms > _NOW_MS]


# --- reading -----------------------------------------------------------------------------------------------------------------
@scenario
def fetches(rig: Rig) -> Iterator[Any]:
    topic = rig.topic()
    for values in ((b"a", b"b"), (b"c" * 500,), (b"d",)):
        rig.written(topic, *values)
    for offset in (0, 1, 2, 3, 4, 5, -1, 100):
        yield [offset, rig.facts(rig.fetch(topic, offset))]
    for most in (0, 1, 50, 75, 200, 600, 650, 700):
        yield ["partition bytes", most, rig.facts(rig.fetch(topic, 0, partition_max_bytes=most))]
        yield ["bytes", most, rig.facts(rig.fetch(topic, 0, max_bytes=most))]
    for epoch in (-1, 0, 1, 5):
        yield ["leader epoch", epoch, rig.facts(rig.fetch(topic, 0, current_leader_epoch=epoch))]
        yield ["last epoch", epoch, rig.facts(rig.fetch(topic, 1, last_fetched_epoch=epoch))]
    yield rig.facts(rig.fetch(topic, 100, last_fetched_epoch=0))
    for version in (4, 7, 11, 13, 16):
        yield [version, rig.facts(rig.fetch(topic, 1, version))]


@scenario
def fetches_of_what_is_not_there(rig: Rig) -> Iterator[Any]:
    topic = rig.topic()
    part = {"fetch_offset": 0, "partition_max_bytes": 1000}
    whole = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0}
    for named in (topic, rig.name("nowhere")):
        asked = [{"topic": named, "partitions": [{"partition": 3, **part}]}]
        yield rig.asked("Fetch", 12, topics=asked, **whole)
        yield rig.asked("Fetch", 12, topics=asked, **{**whole, "isolation_level": 1})
    asked = [{"topic_id": uuid.UUID(int=77), "partitions": [{"partition": 0, **part}]}]
    yield rig.asked("Fetch", 13, topics=asked, **whole)
    asked = [{"topic_id": rig.topic_id(topic), "partitions": [{"partition": 4, **part}]}]
    yield rig.asked("Fetch", 13, topics=asked, **whole)


@scenario
def several_partitions_at_once(rig: Rig) -> Iterator[Any]:
    topic = rig.topic(partitions=3)
    for index, count in ((0, 3), (1, 1), (2, 2)):
        for _ in range(count):
            parts = [{"name": topic, "partition_data": [{"index": index, "records": batch(b"v" * 100)}]}]
            rig.raw("Produce", 9, topic_data=parts, acks=-1, timeout_ms=1000, transactional_id=None)
    for most, each in ((1 << 20, 1 << 20), (1, 1), (200, 1 << 20), (1 << 20, 200), (400, 300)):
        parts = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": each} for n in (0, 1, 2)]
        asked = [{"topic": topic, "partitions": parts}]
        yield [most, each, rig.asked("Fetch", 12, max_wait_ms=0, min_bytes=1, max_bytes=most, topics=asked)]


@scenario
def reading_what_is_committed(rig: Rig) -> Iterator[Any]:
    topic = rig.topic()
    first, second = Producer(rig, "first", 1), Producer(rig, "second", 1)
    first.init(), second.init()
    rig.written(topic, b"plain")
    yield from [first.write(topic), second.write(topic), first.write(topic)]
    for level in (0, 1):
        yield rig.facts(rig.fetch(topic, 0, isolation_level=level))
    yield from [second.end(False), second.settled()["transaction_state"]]
    for offset in (0, 1, 2):
        yield [offset, rig.facts(rig.fetch(topic, offset, isolation_level=1))]
    yield from [_offsets(rig, topic), first.end(True), first.settled()["transaction_state"]]
    for offset in range(7):
        yield [offset, rig.facts(rig.fetch(topic, offset, isolation_level=1))]
        yield [offset, rig.facts(rig.fetch(topic, offset, isolation_level=1, partition_max_bytes=100))]
    yield _offsets(rig, topic)


def _offsets(rig: Rig, topic: str) -> Any:
    facts = []
    for level in (0, 1):
        for timestamp in (-1, -2, -3, -4, 0, TIME_MS, TIME_MS + 1, TIME_MS + 3, TIME_MS + 4, 2**50):
            parts = [{"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}]
            answer = rig.raw("ListOffsets", 8, isolation_level=level, topics=[{"name": topic, "partitions": parts}])
            facts.append([level, timestamp, rig.facts(answer.topics[0].partitions[0])])
    return facts


@scenario
def offsets_by_time(rig: Rig) -> Iterator[Any]:
    topic = rig.topic()
    yield _offsets(rig, topic)
    rig.written(topic, b"a", b"b", b"c")
    rig.written(topic, b"d", b"e")
    yield _offsets(rig, topic)
    for epoch in (0, 1, 4):
        parts = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch}]
        yield rig.asked("ListOffsets", 6, isolation_level=0, topics=[{"name": topic, "partitions": parts}])
    for name, index in ((topic, 5), (rig.name("nowhere"), 0)):
        parts = [{"partition_index": index, "timestamp": -1, "current_leader_epoch": -1}]
        yield rig.asked("ListOffsets", 6, isolation_level=0, topics=[{"name": name, "partitions": parts}])
    parts = [{"partition_index": 0, "timestamp": -5, "current_leader_epoch": -1}]
    yield rig.asked("ListOffsets", 9, isolation_level=0, topics=[{"name": topic, "partitions": parts}])


@scenario
def leader_epochs(rig: Rig) -> Iterator[Any]:
    topic = rig.topic()
    rig.written(topic, b"a", b"b")
    for current, epoch in ((-1, 0), (0, 0), (1, 0), (-1, 1), (-1, 5), (-1, -1)):
        parts = [{"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}]
        answer = rig.raw("OffsetForLeaderEpoch", 4, replica_id=-1, topics=[{"topic": topic, "partitions": parts}])
        yield [current, epoch, rig.facts(answer)]
    parts = [{"partition": 8, "current_leader_epoch": -1, "leader_epoch": 0}]
    yield rig.asked("OffsetForLeaderEpoch", 4, replica_id=-1, topics=[{"topic": topic, "partitions": parts}])


@scenario
def fetch_sessions(rig: Rig) -> Iterator[Any]:
    topic = rig.topic(partitions=2)
    rig.written(topic, b"a")

    def ask(session: int, epoch: int, offsets: dict[int, int], forgotten: tuple[int, ...] = ()) -> Any:
        parts = [{"partition": n, "fetch_offset": at, "partition_max_bytes": 1 << 20} for n, at in offsets.items()]
        gone = [{"topic": topic, "partitions": list(forgotten)}] if forgotten else []
        return rig.raw(
            "Fetch", 12, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_id=session, session_epoch=epoch,
            topics=[{"topic": topic, "partitions": parts}] if parts else [], forgotten_topics_data=gone,
        )  # fmt: skip

    first = ask(0, 0, {0: 0, 1: 0})
    session = first.session_id
    yield from [session > 0, rig.facts(first), rig.facts(ask(session, 1, {}))]
    yield from [rig.facts(ask(session, 2, {0: 1})), rig.facts(ask(session, 3, {}))]
    rig.written(topic, b"b")
    yield from [rig.facts(ask(session, 4, {})), rig.facts(ask(session, 4, {})), rig.facts(ask(session, 7, {}))]
    yield from [rig.facts(ask(session, 5, {0: 2}, (1,))), rig.facts(ask(session, 6, {1: 0}))]
    yield rig.facts(ask(session, 7, {0: 99}))
    yield from [rig.facts(ask(session, 8, {})), rig.facts(ask(session + 1, 3, {})), rig.facts(ask(0, -1, {0: 0}))]
    again = ask(session, 0, {0: 0})
    yield from [again.session_id not in {0, session}, rig.facts(again), rig.facts(ask(session, 9, {}))]
    yield from [rig.facts(ask(again.session_id, -1, {})), rig.facts(ask(again.session_id, 1, {}))]


# --- groups -----------------------------------------------------------------------------------------------------------------
class Group:
    def __init__(self, rig: Rig, text: str = "group") -> None:
        self.rig, self.id, self.raw = rig, rig.name(text), rig.raw
        rig.coordinator(self.id, 0)

    def __call__(self, api: str, version: int, **fields: Any) -> Any:
        return self.raw(api, version, group_id=self.id, **fields)

    def send(self, api: str, version: int, **fields: Any) -> None:
        self.raw.send(api, version, group_id=self.id, **fields)

    def join(self, member: str = "", version: int = 9, **fields: Any) -> Any:
        return self("JoinGroup", version, **self._joining(member, **fields))

    def send_join(self, member: str) -> None:
        self.send("JoinGroup", 9, **self._joining(member))

    @staticmethod
    def _joining(member: str, **fields: Any) -> dict[str, Any]:
        given = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer"}
        protocols = [{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}, {"name": "other", "metadata": b"x"}]
        return {**given, "member_id": member, "protocols": protocols, **fields}

    def sync(self, **fields: Any) -> Any:
        return self("SyncGroup", 5, **{**_protocol(), "assignments": [], **fields})

    def joined(self) -> Any:
        invited = self.join()
        assert invited.error_code == 79, invited
        return self.join(invited.member_id)


@scenario
def a_group_of_one(rig: Rig) -> Iterator[Any]:
    group = Group(rig)
    yield rig.facts(group.join("nobody"))
    invited = group.join()
    yield rig.facts(invited)
    joined = group.join(invited.member_id)
    yield rig.facts(joined)
    member, generation = joined.member_id, joined.generation_id
    who = {"member_id": member, "generation_id": generation}
    yield ["early heartbeat", group("Heartbeat", 4, **who).error_code]
    yield ["wrong protocol", rig.facts(group("SyncGroup", 5, **who, protocol_type="other", assignments=[]))]
    share = [{"member_id": member, "assignment": b"share"}]
    yield from [rig.facts(group.sync(**who, assignments=share)), rig.facts(group("SyncGroup", 5, **who, assignments=[]))]
    yield ["heartbeat", group("Heartbeat", 4, **who).error_code]
    yield ["old generation", group("Heartbeat", 4, member_id=member, generation_id=generation - 1).error_code]
    yield ["stranger", group("Heartbeat", 4, member_id="x", generation_id=generation).error_code]
    yield rig.asked("DescribeGroups", 5, groups=[group.id, rig.name("no group")])
    yield rig.asked("DescribeGroups", 6, groups=[rig.name("no group")])
    yield ["other protocol", rig.facts(group.join(protocol_type="connect"))]
    yield ["no common protocol", rig.facts(group.join(protocols=[{"name": "new", "metadata": b""}]))]
    yield ["busy", rig.asked("DeleteGroups", 2, groups_names=[group.id, rig.name("no group")])]
    left = [{"member_id": "stranger"}, {"member_id": member}]
    yield from [rig.facts(group("LeaveGroup", 4, members=left)), ["after", group("Heartbeat", 4, **who).error_code]]
    yield rig.asked("DescribeGroups", 5, groups=[group.id])
    rejoined = group.joined()
    yield [rejoined.generation_id, group("LeaveGroup", 2, member_id=rejoined.member_id).error_code]
    listed = rig.raw("ListGroups", 5, states_filter=["Empty"], types_filter=[])
    yield [rig.facts(each) for each in listed.groups if each.group_id == group.id]
    yield rig.asked("DeleteGroups", 2, groups_names=[group.id])


@scenario
def a_group_of_two(rig: Rig) -> Iterator[Any]:
    group = Group(rig)
    first = group.joined()
    who = {"member_id": first.member_id, "generation_id": first.generation_id}
    group.sync(**who, assignments=[{"member_id": first.member_id, "assignment": b"all"}])
    with RawKafka(rig.address) as other_raw:
        other = Group(rig)
        other.raw = other_raw
        other.send_join(other.join().member_id)
        rig.until(lambda: group("Heartbeat", 4, **who).error_code == 27)
        yield ["its sync", group.sync(**who).error_code]
        again = group.join(first.member_id)
        second = other_raw.receive("JoinGroup", 9)
        yield from [rig.facts(again), rig.facts(second)]
        later = {"generation_id": again.generation_id}
        other.send("SyncGroup", 5, **_protocol(), member_id=second.member_id, assignments=[], **later)
        shares = [{"member_id": first.member_id, "assignment": b"1"}, {"member_id": second.member_id, "assignment": b"2"}]
        yield rig.facts(group.sync(member_id=first.member_id, assignments=shares, **later))
        yield rig.facts(other_raw.receive("SyncGroup", 5))
        yield ["the same again", rig.facts(other.join(second.member_id))["generation_id"] - again.generation_id]
        yield rig.facts(other("LeaveGroup", 4, members=[{"member_id": second.member_id}]))
        yield ["the other", group("Heartbeat", 4, member_id=first.member_id, **later).error_code]
        yield rig.facts(group.join(first.member_id))


def _protocol() -> dict[str, str]:
    return {"protocol_type": "consumer", "protocol_name": "range"}


@scenario
def bad_joins(rig: Rig) -> Iterator[Any]:
    group = Group(rig)
    for timeout in (0, 10, 2**31 - 1):
        yield [timeout, rig.facts(group.join(session_timeout_ms=timeout))]
    yield from [rig.facts(group.join(protocols=[])), rig.facts(group.join(protocol_type=""))]
    yield ["before version 4", rig.facts(group.join(version=3))["error_code"]]
    group.id = ""
    yield ["nameless", rig.facts(group.join())]


@scenario
def static_members(rig: Rig) -> Iterator[Any]:
    group = Group(rig)
    first = group.join(group_instance_id="one")
    yield rig.facts(first)
    who = {"member_id": first.member_id, "generation_id": first.generation_id, "group_instance_id": "one"}
    share = [{"member_id": first.member_id, "assignment": b"share"}]
    yield rig.facts(group.sync(**who, assignments=share))
    again = group.join(group_instance_id="one")
    yield from [rig.facts(again), ["the previous one", group("Heartbeat", 4, **who).error_code]]
    who["member_id"] = again.member_id
    yield from [["the new one", group("Heartbeat", 4, **who).error_code], rig.facts(group.sync(**who))]
    yield ["unknown instance", group("Heartbeat", 4, **{**who, "group_instance_id": "two"}).error_code]
    yield rig.facts(group("LeaveGroup", 4, members=[{"member_id": "", "group_instance_id": "two"}]))
    yield rig.facts(group("LeaveGroup", 4, members=[{"member_id": "", "group_instance_id": "one"}]))


@scenario
def offsets_of_groups(rig: Rig) -> Iterator[Any]:
    topic = rig.topic(partitions=2)
    group = Group(rig)

    def commit(
        what: str, offset: int = 3, metadata: str = "m", generation: int = -1, member: str = "", index: int = 0, **n: Any
    ) -> list[Any]:
        position = {"committed_offset": offset, "committed_leader_epoch": 0, "committed_metadata": metadata}
        parts = [{"partition_index": index, **position}]
        who = {"generation_id_or_member_epoch": generation, "member_id": member}
        topics = [{"name": topic, "partitions": parts, **n}]
        return [what, rig.facts(group("OffsetCommit", 9, topics=topics, **who))]

    def fetched(**fields: Any) -> Any:
        asked = [{"group_id": group.id, "topics": [{"name": topic, "partition_indexes": [0, 1, 7]}], **fields}]
        return rig.asked("OffsetFetch", 9, groups=asked, require_stable=False)

    yield from [fetched(), commit("a stranger of no group", generation=4, member="x"), commit("by hand")]
    yield from [commit("too much metadata", metadata="m" * 5000), commit("no partition", index=9)]
    yield from [commit("no topic", name=rig.name("nowhere")), commit("a generation", generation=0, member="x")]
    yield from [fetched(), fetched(topics=None)]
    joined = group.joined()
    yield commit("by hand while there are members", 4)
    yield commit("before its assignment", 4, generation=joined.generation_id, member=joined.member_id)
    share = [{"member_id": joined.member_id, "assignment": b"share"}]
    who = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    group.sync(**who, assignments=share)
    yield commit("by a member", 5, generation=joined.generation_id, member=joined.member_id)
    yield commit("by a member of an older generation", 6, generation=joined.generation_id - 1, member=joined.member_id)
    yield from [commit("by a stranger", 6, generation=joined.generation_id, member="x"), fetched()]
    group("LeaveGroup", 4, members=[{"member_id": joined.member_id}])
    deleted = [{"name": topic, "partitions": [{"partition_index": 0}, {"partition_index": 9}]}]
    yield rig.facts(group("OffsetDelete", 0, topics=deleted))
    yield from [fetched(topics=None), rig.asked("OffsetDelete", 0, group_id=rig.name("no group"), topics=deleted)]
    old = {"group_id": group.id, "topics": [{"name": topic, "partition_indexes": [0]}]}
    yield rig.asked("OffsetFetch", 5, **old)


# --- topics ------------------------------------------------------------------------------------------------------------------
@scenario
def metadata_of_topics(rig: Rig) -> Iterator[Any]:
    topic = rig.topic(partitions=2)
    none = uuid.UUID(int=0)
    for name in (topic, rig.name("nowhere"), "bad name!", ""):
        yield rig.asked("Metadata", 12, topics=[{"name": name, "topic_id": none}], allow_auto_topic_creation=False)
    yield rig.asked("Metadata", 12, topics=[{"name": None, "topic_id": rig.topic_id(topic)}])
    yield rig.asked("Metadata", 12, topics=[{"name": None, "topic_id": uuid.UUID(int=77)}])
    yield from [rig.asked("Metadata", 12, topics=[]), rig.asked("Metadata", 5, topics=[{"name": topic}])]
    for kind, key in ((0, "g"), (1, "t"), (7, "x")):
        yield rig.patient(lambda kind=kind, key=key: rig.found_coordinator(key, kind)).error_code


@scenario
def creating_topics(rig: Rig) -> Iterator[Any]:
    topic = rig.topic()

    def create(what: str, **changes: Any) -> list[Any]:
        validate = changes.pop("validate_only", False)
        wanted = {"name": rig.name(what), "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        answer = rig.raw("CreateTopics", 7, topics=[{**wanted, **changes}], timeout_ms=5000, validate_only=validate)
        return [what, rig.facts(answer)]

    yield from [create("taken", name=topic), create("bad", name="bad name!"), create("dots", name="..")]
    yield from [create("long", name="x" * 250), create("none", num_partitions=0), create("less", num_partitions=-2)]
    yield from [create("copies", replication_factor=5), create("nocopies", replication_factor=0)]
    yield create("setting", configs=[{"name": "no.such", "value": "1"}])
    yield create("value", configs=[{"name": "retention.ms", "value": "soon"}])
    yield create("policy", configs=[{"name": "cleanup.policy", "value": "compact,delete"}])
    yield create("badpolicy", configs=[{"name": "cleanup.policy", "value": "shred"}])
    yield create("both", assignments=[{"partition_index": 0, "broker_ids": [1]}])
    place = {"num_partitions": -1, "replication_factor": -1}
    yield create("placed", assignments=[{"partition_index": 0, "broker_ids": [1]}], **place)
    yield create("misplaced", assignments=[{"partition_index": 0, "broker_ids": [99]}], **place)
    yield from [create("hole", assignments=[{"partition_index": 1, "broker_ids": [1]}], **place), create("default", **place)]
    yield from [create("trial", validate_only=True), create("trial")]


@scenario
def changing_topics(rig: Rig) -> Iterator[Any]:
    topic = rig.topic(partitions=2)
    soon = {"timeout_ms": 5000}

    def described() -> Any:
        asked = [{"resource_type": 2, "resource_name": topic, "configuration_keys": ["retention.ms", "cleanup.policy"]}]
        found = rig.raw("DescribeConfigs", 4, resources=asked).results[0].configs
        return sorted([each.name, each.value, each.config_source, each.config_type] for each in found)

    for name, count in ((topic, 2), (topic, 1), (topic, 0), (topic, 3), (rig.name("nowhere"), 3)):
        wanted = [{"name": name, "count": count, "assignments": None}]
        yield [count, rig.asked("CreatePartitions", 3, topics=wanted, timeout_ms=5000, validate_only=False)]
    for key, operation, value in (
        ("retention.ms", 0, "1000"), ("retention.ms", 0, "x"), ("no.such", 0, "1"), ("cleanup.policy", 2, "compact"),
        ("cleanup.policy", 3, "delete"), ("retention.ms", 2, "5"), ("retention.ms", 1, None), ("no.such", 1, None),
    ):  # fmt: skip
        configs = [{"name": key, "config_operation": operation, "value": value}]
        wanted = [{"resource_type": 2, "resource_name": topic, "configs": configs}]
        before = described()
        answer = rig.raw("IncrementalAlterConfigs", 1, resources=wanted, validate_only=False)
        yield [key, operation, value, rig.facts(answer)]
        yield _changed(described, before) if answer.responses[0].error_code == 0 and key != "no.such" else before
    asked = [{"resource_type": 2, "resource_name": rig.name("nowhere"), "configuration_keys": None}]
    yield rig.asked("DescribeConfigs", 4, resources=asked)
    yield rig.asked("DeleteTopics", 6, topics=[{"name": rig.name("nowhere"), "topic_id": uuid.UUID(int=0)}], **soon)
    yield rig.asked("DeleteTopics", 6, topics=[{"name": None, "topic_id": uuid.UUID(int=77)}], **soon)
    yield rig.asked("DeleteTopics", 6, topics=[{"name": None, "topic_id": rig.topic_id(topic)}], **soon)
    yield rig.asked("DeleteTopics", 5, topic_names=[topic], **soon)


def _changed(ask: Callable[[], Any], before: Any) -> Any:
    """What is reported once it is no longer what it was: a broker hears of new settings a little later."""
    end = time.monotonic() + TIMEOUT_S
    while (found := ask()) == before:
        assert time.monotonic() < end, "nothing changed"
    return found


@scenario
def deleting_records(rig: Rig) -> Iterator[Any]:
    topic = rig.topic()
    for values in ((b"a", b"b"), (b"c", b"d")):
        rig.written(topic, *values)
    for offset in (0, 1, 3, 2, 9, -2, -1):
        parts = [{"partition_index": 0, "offset": offset}]
        yield [offset, rig.asked("DeleteRecords", 2, topics=[{"name": topic, "partitions": parts}], timeout_ms=5000)]
        yield from [_offsets(rig, topic)[1], rig.facts(rig.fetch(topic, 0)), rig.facts(rig.fetch(topic, 3))]
    for name, index in ((topic, 6), (rig.name("nowhere"), 0)):
        parts = [{"partition_index": index, "offset": 0}]
        yield rig.asked("DeleteRecords", 2, topics=[{"name": name, "partitions": parts}], timeout_ms=5000)


@scenario
def quotas(rig: Rig) -> Iterator[Any]:
    client = [{"entity_type": "client-id", "entity_name": rig.name("client")}]

    def alter(what: str, entity: Any, key: str, value: float, remove: bool = False) -> list[Any]:
        entries = [{"entity": entity, "ops": [{"key": key, "value": value, "remove": remove}]}]
        return [what, rig.asked("AlterClientQuotas", 1, entries=entries, validate_only=False)]

    def described() -> Any:
        part = [{"entity_type": "client-id", "match_type": 0, "match": rig.name("client")}]
        return rig.asked("DescribeClientQuotas", 1, components=part, strict=True)

    yield alter("set", client, "producer_byte_rate", 1000.0)
    rig.until(lambda: bool(described()["entries"]))
    yield from [described(), alter("unknown key", client, "beauty", 1.0)]
    yield alter("unknown entity", [{"entity_type": "planet", "entity_name": "x"}], "producer_byte_rate", 1.0)
    yield alter("remove", client, "producer_byte_rate", 0.0, remove=True)
    rig.until(lambda: not described()["entries"])


def played(name: str, address: str) -> Facts:
    """One scenario at one broker, as JSON holds it."""
    with RawKafka(address) as raw:
        facts: Facts = json.loads(json.dumps(list(SCENARIOS[name](Rig(raw)))))
    return facts


def recorded() -> dict[str, Facts]:
    """What a real broker answered, when it was last asked."""
    found: dict[str, Facts] = json.loads(RECORDING.read_text())
    return found


def record(address: str) -> None:
    """Ask a real broker again: python -c "from tests.helpers.kafka_scenarios import record; record('127.0.0.1:9092')"."""
    lines = [f"{json.dumps(name)}: {json.dumps(played(name, address))}" for name in SCENARIOS]
    RECORDING.write_text("{\n" + ",\n".join(lines) + "\n}\n")
