"""`FakeKafka`: what a test holds in its hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NamedTuple

from headrace.connectors.kafka.client.error_codes import error_name
from headrace.enumerator.errors import UsageError
from headrace.testing.fake_kafka.clock import Clock
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.dispatch import Dispatcher
from headrace.testing.fake_kafka.faults import Action, Fault, Rewrite, Script, key_of
from headrace.testing.fake_kafka.protocol import Message
from headrace.testing.fake_kafka.server import BrokerServer
from headrace.testing.fake_kafka.state.cluster import ClusterState
from headrace.testing.fake_kafka.state.logs.batches import NewRecord, read_batch, record_batch
from headrace.testing.fake_kafka.state.logs.cleaning import compact, spans
from headrace.testing.fake_kafka.state.logs.log import Log
from headrace.testing.fake_kafka.state.topics import Partition, Topic
from headrace.testing.fake_kafka.state.users import Users
from headrace.testing.servers.ports import HOST, reserved_ports


class ReadRecord(NamedTuple):
    """A record as it lies in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class FakeKafka:
    """A Kafka cluster in this process, over real sockets, for any client: no Java, no Docker, ready in milliseconds.

        with FakeKafka(brokers=3) as kafka:
            kafka.create_topic("orders", partitions=4)
            job(kafka.bootstrap)
            assert [record.value for record in kafka.records("orders")] == [b"..."]

    It keeps everything in memory, and goes by the rules of Kafka 4: see docs/how-to/test-your-job.md for what it
    speaks and what it does not. Its methods may be called from any thread. Everything ends with `close`, or the process.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        clock: Clock | None = None,
        config: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        tokens: Mapping[str, str] | None = None,
        advertise: Callable[[int, str, str], str] | None = None,
    ) -> None:
        """Start the brokers, ids from 1, listening on free ports of 127.0.0.1.

        clock: default the machine's; a `StoppedClock` moves only by `advance`.
        config: broker settings as in `server.properties`. Defaults are Kafka's, but for `auto.create.topics.enable=false`
        and `group.initial.rebalance.delay.ms=0`.
        users: passwords by name; with any, clients have to log in by SASL_PLAINTEXT: PLAIN or SCRAM.
        tokens: names by bearer token; with any, clients have to log in, and may by OAUTHBEARER.
        advertise: called with each broker's id, "PLAINTEXT" and the `host:port` where it listens; clients get what it
        returns instead, a port of 127.0.0.1: that of a proxy.

        Raises UsageError for an unknown setting, no brokers, or an address that is not of 127.0.0.1.
        """
        if brokers < 1:
            raise UsageError(f"a cluster of {brokers} brokers: at least 1 is needed")
        self.clock: Clock = clock or Clock()
        self._state = ClusterState(brokers, self.clock, config or {}, Users(users or {}, tokens or {}))
        self._script = Script()
        self._dispatcher = Dispatcher(self._state, self._script)
        self._changed = self._dispatcher.changed
        self._servers: dict[int, BrokerServer] = {}
        self.clock.on_advance(self._look_at_clock)
        with ExitStack() as stack:
            ports = stack.enter_context(reserved_ports())
            for broker in self._state.brokers.values():
                broker.listens_at = broker.port = ports.reserve()
                if advertise is not None:
                    broker.port = _port_of(advertise(broker.id, "PLAINTEXT", f"{HOST}:{broker.port}"))
                self._servers[broker.id] = BrokerServer(broker, self._dispatcher)
            self._reservations = stack.pop_all()

    def __enter__(self) -> FakeKafka:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close; after a body without an error, fail for scripted faults that never happened."""
        self.close()
        if kind is None:
            self.check_faults()

    def close(self) -> None:
        """Stop all brokers. Harmless when repeated."""
        for server in self._servers.values():
            server.stop()
        self._servers.clear()
        self._reservations.close()

    # --- where it is ----------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, comma-separated: `bootstrap.servers`."""
        return ",".join(self.address(broker) for broker in self._state.brokers)

    @property
    def brokers(self) -> tuple[int, ...]:
        """The brokers' ids, running or not."""
        return tuple(self._state.brokers)

    def address(self, broker: int) -> str:
        """`host:port` of one broker; the same over restarts."""
        return f"{HOST}:{self._state.broker(broker).port}"

    # --- topics and records ---------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, *, replicas: int | None = None, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic; `replicas` of each partition, default: as many as there are brokers, 3 at most.

        Raises UsageError where CreateTopics would be refused.
        """
        with self._changing():
            count = min(len(self._state.members()), 3) if replicas is None else replicas
            topic = Topic(name, self._state.place(name, 0, partitions, count), dict(configs or {}))
            self._state.create_topic(topic)

    def delete_topic(self, name: str) -> None:
        """With all that it holds. A topic of that name that is created later is another one, with another id."""
        with self._changing():
            self._state.delete_topic(self._state.topics.named(name))

    def add_partitions(self, topic: str, count: int) -> None:
        """Until there are `count` in all."""
        with self._changing():
            found = self._state.topics.named(topic)
            have = len(found.partitions)
            found.partitions += self._state.place(topic, have, count - have, len(found.partitions[0].replicas))

    def append(self, topic: str, *records: bytes | NewRecord, partition: int = 0) -> int:
        """Write one batch of records, values or whole `NewRecord`s, as a producer without idempotence would.

        Returns the first one's offset.
        """
        whole = [record if isinstance(record, NewRecord) else NewRecord(record) for record in records]
        if not whole:
            raise UsageError("append needs at least one record")
        with self._changing():
            batch = read_batch(record_batch(whole, self.clock.now_ms()))
            return self._log(topic, partition).append(batch)

    def records(self, topic: str, partition: int | None = None, *, isolation_level: str = "read_committed") -> list[ReadRecord]:
        """What a consumer would read by now, of one partition or of all, one after the other.

        isolation_level: `read_committed` (default) or `read_uncommitted`.
        """
        if isolation_level not in {"read_committed", "read_uncommitted"}:
            raise UsageError(f"isolation_level is read_committed or read_uncommitted, got {isolation_level!r}")
        with self._changing():
            partitions = self._state.topics.named(topic).partitions
            chosen = [each for each in partitions if partition is None or each.index == partition]
            return [record for each in chosen for record in _read(each, committed=isolation_level == "read_committed")]

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int, int]:
        """(log start offset, last stable offset, high watermark)."""
        with self._changing():
            log = self._log(topic, partition)
            return log.start_offset, log.last_stable_offset, log.high_watermark

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed, by (topic, partition); empty for a group that there is not."""
        with self._changing():
            found = self._state.groups.by_id.get(group)
            return {} if found is None else {key: value.offset for key, value in found.offsets.committed.items()}

    # --- leaders and brokers --------------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """(broker, leader epoch); the broker is -1 while there is none."""
        with self._changing():
            found = self._state.topics.partition(topic, partition)
            return found.leader, found.epoch

    def move_leader(self, topic: str, partition: int = 0, *, to: int) -> None:
        """Make another broker the leader, in the next epoch; it becomes a replica if it was none."""
        with self._changing():
            self._state.broker(to)
            found = self._state.topics.partition(topic, partition)
            if to not in found.replicas:
                found.replicas.append(to)
            if to not in found.isr:
                found.isr.append(to)
            found.lead(to)

    def lose_records(self, topic: str, partition: int = 0, *, from_offset: int) -> None:
        """An unclean election: the next leader never had the records from `from_offset` on (KIP-101, KIP-320)."""
        with self._changing():
            found = self._state.topics.partition(topic, partition)
            found.log.truncate(from_offset)
            found.log.release_high_watermark()
            others = [broker for broker in found.replicas if broker != found.leader and self._state.broker(broker).is_member]
            found.lead(others[0] if others else found.leader)

    def delete_records(self, topic: str, partition: int = 0, *, before: int) -> None:
        """As retention would: the log starts at `before`."""
        with self._changing():
            self._log(topic, partition).delete_before(before)

    def hold_high_watermark(self, topic: str, partition: int = 0) -> None:
        """What is written from now on is not replicated: no consumer sees it until `release_high_watermark`."""
        with self._changing():
            self._log(topic, partition).hold_high_watermark()

    def release_high_watermark(self, topic: str, partition: int = 0) -> None:
        """The followers have caught up."""
        with self._changing():
            self._log(topic, partition).release_high_watermark()

    def stop_broker(self, broker: int) -> None:
        """Cut its connections and stop listening; partitions that it led go to other replicas that are in sync."""
        found = self._state.broker(broker)
        with self._changing():
            found.is_running = False
            found.isolation = None
            self._state.elect()
        server = self._servers.pop(broker, None)
        if server is not None:
            server.stop()

    def start_broker(self, broker: int) -> None:
        """Listen again, on the same port, with everything that was kept on disk; fetch sessions were not."""
        found = self._state.broker(broker)
        if broker in self._servers:
            raise UsageError(f"broker {broker} is running already")
        with self._changing():
            found.is_running = True
            found.sessions = type(found.sessions)()
            self._state.elect()
        self._servers[broker] = BrokerServer(found, self._dispatcher)

    def rolling_restart(self, while_down: Callable[[int], object] | None = None) -> None:
        """Stop and start each broker, one after the other; `while_down` is called with its id while it is down."""
        for broker in self.brokers:
            self.stop_broker(broker)
            if while_down is not None:
                while_down(broker)
            self.start_broker(broker)

    def isolate_broker(self, broker: int) -> None:
        """Cut a broker off from the others but not from its clients: it continues with the leaders and logs that it knew.

        The others elect new leaders. What it accepts meanwhile (acks=1) is lost when it rejoins; acks=all times out.
        """
        with self._changing():
            found = self._state.broker(broker)
            if not found.is_member:
                raise UsageError(f"broker {broker} is stopped or isolated already")
            self._state.isolate(found)

    def rejoin_broker(self, broker: int) -> None:
        """Undo `isolate_broker`."""
        with self._changing():
            self._state.rejoin(self._state.broker(broker))

    # --- what continues in the background ---------------------------------------------------------------------------------

    def apply_retention(self) -> None:
        """Delete what retention.ms and retention.bytes of each topic let go; by itself every five minutes of the clock."""
        with self._changing():
            self._state.apply_retention()

    def compact(self, topic: str) -> None:
        """Keep the last record of each key, and no tombstones."""
        with self._changing():
            for partition in self._state.topics.named(topic).partitions:
                compact(partition.log)

    @contextmanager
    def markers_held(self) -> Iterator[None]:
        """While this lasts, EndTxn succeeds and nothing comes of it: not visible, and the id busy (CONCURRENT_TRANSACTIONS)."""
        with self._changing():
            self._state.transactions.hold_markers()
        try:
            yield
        finally:
            with self._changing():
                self._state.transactions.release_markers()

    def set_quota(
        self, key: str, bytes_per_second: float | None, *, user: str | None = None, client_id: str | None = None
    ) -> None:
        """`producer_byte_rate` or `consumer_byte_rate` of a user, a client id, or both; None removes it."""
        named = (("user", user), ("client-id", client_id))
        with self._changing():
            entity = frozenset((kind, name) for kind, name in named if name is not None)
            self._state.quotas.alter(entity, [(key, bytes_per_second)])

    def set_transaction_version(self, level: int) -> None:
        """The cluster's finalised `transaction.version`: 2 is KIP-890's protocol, which is the default."""
        with self._changing():
            self._state.update_feature("transaction.version", level)

    # --- faults ---------------------------------------------------------------------------------------------------------

    def fault(
        self,
        api: str | None,
        action: Action,
        *,
        broker: int | None = None,
        nth: int = 1,
        times: int | None = 1,
        when: Callable[[Message], bool] | None = None,
    ) -> Fault:
        """Script a fault: `action` happens to requests of that name (`Fetch`, `EndTxn`, ...; None: any).

        broker: at that one only. when: to requests for which it is true. nth: from the nth of these on. times: to this many,
        default 1; None: to all. Its `fired` says how often it happened; leaving the cluster's `with` fails if it never did,
        unless it is `optional()`.
        """
        key = None if api is None else key_of(api)
        with self._changing():
            return self._script.add(Fault(action, key, broker, nth, times, when))

    def flap_metadata(self, topic: str, shown: Sequence[int | None], *, broker: int | None = None) -> list[Fault]:
        """The next Metadata answers about a topic show this many partitions, a number for each; None: unknown topic."""
        faults = []
        for nth, count in enumerate(shown, 1):
            faults.append(self.fault("Metadata", Rewrite(_shows(topic, count)), broker=broker, nth=nth, when=_asks_for(topic)))
        return faults

    def check_faults(self) -> None:
        """Raise UnfiredFaultError for scripted faults that never happened."""
        self._script.check_fired()

    # --- inside ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Have the state to oneself, and wake who waits for a change. What the state refuses is the caller's mistake."""
        with self._changed:
            self._state.tick()
            try:
                yield
            except RefusedError as error:
                raise UsageError(f"{error_name(error.code)}: {error}") from error
            finally:
                self._changed.notify_all()

    def _look_at_clock(self) -> None:
        with self._changing():
            pass

    def _log(self, topic: str, partition: int) -> Log:
        return self._state.topics.partition(topic, partition).log


def _read(partition: Partition, *, committed: bool) -> Iterator[ReadRecord]:
    log = partition.log
    until = log.last_stable_offset if committed else log.high_watermark
    for batch in log.batches:
        if batch.is_control or batch.base_offset >= until or (committed and log.producers.is_aborted(batch)):
            continue
        for offset, timestamp, record in spans(batch):
            if offset >= log.start_offset:
                yield ReadRecord(partition.topic, partition.index, offset, timestamp, record.key, record.value, record.headers)


def _asks_for(topic: str) -> Callable[[Message], bool]:
    return lambda request: request.topics is None or any(item.name == topic for item in request.topics)


def _shows(topic: str, count: int | None) -> Callable[[Message], object]:
    def change(response: Message) -> None:
        for item in response.topics:
            if item.name == topic and count is None:
                item.error_code, item.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
            elif item.name == topic:
                item.partitions = item.partitions[:count]

    return change


def _port_of(address: str) -> int:
    host, _, port = address.rpartition(":")
    if host != HOST:
        raise UsageError(f"advertise gave {address!r}: brokers of FakeKafka are at {HOST}, and so are the proxies before them")
    return int(port)
