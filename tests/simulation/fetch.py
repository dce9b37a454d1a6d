"""The fetch plan against brokers that misbehave: leaders move, metadata flaps, requests are lost or late, logs are cut.

Ours: `FetchPlan`, `span_of_batches`, `identity.absence`. Modelled: the brokers, each with its own metadata; the fetcher's
threads, with requests under way at the same time and answers in any order; its look-ups, which ask one broker, and all of them
where that one does not know the topic by its id. The oracle: what is handed out of a partition follows on what was handed out
before, is what lies in its log, and in the end is all of it; a partition is given up only where its records are gone.
"""

import struct
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import (
    ConnectionLostError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    UnknownTopicError,
)
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.topology import Broker, Leader, PartitionMetadata, TopicMetadata
from headrace.connectors.kafka.format.fetch_protocol import PartitionAnswer
from headrace.connectors.kafka.read import topic_ids
from headrace.connectors.kafka.read.fetch_plan import Asked, FetchedData, FetchFailed, FetchFrom, FetchPlan
from headrace.enumerator.errors import DataLossError, RetriableError
from tests.simulation.search import Adversary

CONFIG = ClientConfig(
    bootstrap="b:1", retry_backoff_ms=100, retry_backoff_max_ms=1000, metadata_max_age_ms=1000, max_partition_fetch_bytes=150,
    fetch_max_bytes=4000,
)  # fmt: skip
BROKERS = tuple(Broker(number, f"b{number}", 9092) for number in range(3))
UNKNOWN_BROKER = 77
PARTITIONS = 3
HEADROOM = 4000
CALM_ROUNDS = 150
_ABSENCES = {UnknownTopicError: "unknown topic", TopicRecreatedError: "another topic"}
LONGEST_SILENCE_S = 2.0
"""Metadata forgets a topic for shorter than the plan's grace of 3 s."""


@dataclass
class Batch:
    """Offsets `base` up to, not including, `stop`."""

    base: int
    stop: int
    epoch: int
    padding: int

    @property
    def data(self) -> bytes:
        size = 49 + self.padding
        head = struct.pack(">qiibIhi", self.base, size, self.epoch, 2, 0, 0, self.stop - self.base - 1)
        return head + bytes(size + 12 - len(head))


@dataclass
class View:
    """What one broker's metadata reports about a topic: its id (None: it does not know the topic) and its leader."""

    topic_id: UUID | None
    leader: Broker = BROKERS[0]
    epoch: int = 0


@dataclass
class Log:
    """As the leader has it; a follower has `followed` batches. `successor`: the id of the topic made after this one."""

    topic: str
    topic_id: UUID
    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    epoch: int = 0
    leader: Broker = BROKERS[0]
    views: list[View] = field(default_factory=list)
    successor: UUID | None = None
    followed: int = 0
    nearest: int | None = None
    is_gone: bool = False
    was_cut: bool = False
    cut_to: int | None = None
    forgotten_until: float = -1.0
    seen_at: float = 0.0

    def __post_init__(self) -> None:
        self.views = [View(self.topic_id) for _ in BROKERS]

    @property
    def id_of_today(self) -> UUID | None:
        return self.successor if self.is_gone else self.topic_id

    def tell(self, broker: int) -> None:
        """This broker hears what is true."""
        self.views[broker] = View(self.id_of_today, self.leader, self.epoch)

    def settings(self, now: float) -> list[View]:
        return [View(None)] * len(self.views) if now < self.forgotten_until else self.views

    @property
    def end(self) -> int:
        return self.batches[-1].stop if self.batches else self.start

    def append(self, records: int, padding: int) -> None:
        self.batches.append(Batch(self.end, self.end + records, self.epoch, padding))

    def epoch_end(self, epoch: int) -> int:
        return next((batch.base for batch in self.batches if batch.epoch > epoch), self.end)


@dataclass
class Request:
    broker: Broker
    asked: list[Asked]


class FetchSimulation:
    def __init__(self, stops: int, starts: int) -> None:
        self.happened: Counter[str] = Counter()
        self.now = 0.0
        self.plan = FetchPlan(CONFIG)
        self.logs = [Log(f"t{number}", UUID(int=number + 1)) for number in range(PARTITIONS)]
        self.flight: list[Request] = []
        self.position: dict[str, int] = {}
        self.stop: dict[str, int | None] = {}
        self.failed: set[str] = set()
        self.read_epochs: dict[str, int | None] = {}
        for number, log in enumerate(self.logs):
            log.append(1 + number, 10)
            stop = 6 + number if (stops + number) % 3 == 0 else None
            self._begin(log, (starts + number) % 2, stop)

    def _begin(self, log: Log, offset: int, stop: int | None) -> None:
        self.position[log.topic], self.stop[log.topic] = offset, stop
        epoch = next((batch.epoch for batch in reversed(log.batches) if batch.stop <= offset), None)
        self.read_epochs[log.topic] = epoch
        self.plan.add(FetchFrom(log.topic, 0, offset, log.topic_id, stop, epoch))

    # --- the fetcher --------------------------------------------------------------------------------------------------
    def look_up(self, trouble: int) -> None:
        """Every leader that is to be looked up; and the range of those unresolved."""
        for source in self.plan.leaderless(self.now):
            log = self._log(source.topic)
            if trouble % 5 == 1:
                self._outcome(log, self.plan.lookup_failed(source, RetriableError("no broker answers"), self.now))
            else:
                self._look_up_at(log, source, trouble // 5 % len(BROKERS))
        for source, offset in self.plan.unresolved():
            self._clear(source, offset)

    def _look_up_at(self, log: Log, source: FetchFrom, broker: int) -> None:
        """As the fetcher does it: one broker is asked, and all of them about what that one does not know."""
        view = log.settings(self.now)[broker]
        if view.topic_id is not None and self.plan.topic_id_of(source) in (None, view.topic_id):
            log.seen_at = self.now
            found = self.plan.leader_found(source, Leader(view.leader, view.epoch), view.topic_id, self.now)
            self._outcome(log, found)
            return
        settings = log.settings(self.now)
        views = (*settings[broker:], *settings[:broker])  # who was asked first
        answers = [{log.topic: _metadata(log.topic, view)} for view in views]
        error = topic_ids.absence(log.topic, 0, self.plan.topic_id_of(source), answers)
        self.happened[_ABSENCES.get(type(error), "one broker lags behind")] += 1
        self._outcome(log, self.plan.lookup_failed(source, error, self.now))

    def _clear(self, source: FetchFrom, offset: int) -> None:
        log = self._log(source.topic)
        if log.start <= offset <= log.end:
            self.happened["in range after all"] += 1
            self.plan.cleared(source, RetriableError("in range after all"), self.now)
        else:
            error = OffsetOutOfRangeError(source.topic, 0, offset, log.start, log.end)
            self._outcome(log, self.plan.cleared(source, error, self.now))

    def send(self, broker: int) -> None:
        target = BROKERS[broker % len(BROKERS)]
        asked = self.plan.take(target, self.now, HEADROOM)
        busy = {item.topic for request in self.flight for item in request.asked if self._is_current(item)}
        twice = busy & {item.topic for item in asked}
        assert not twice, f"{twice} are asked for twice at the same time"
        if asked:
            self.flight.append(Request(target, asked))

    def land(self, which: int, trouble: int) -> None:
        """An answer: as it should be, or lost, refused for a quota, or without one of the partitions."""
        if not self.flight:
            return
        request = self.flight.pop(which % len(self.flight))
        match trouble % 8:
            case 1:
                self.happened["request lost"] += 1
                self._lost(request.asked)
            case 2:
                self.happened["quota"] += 1
                self.plan.put_back(request.asked)
            case 3:
                self.happened["left out"] += 1
                self._lost(request.asked[:1])
                self._answer(request.broker, request.asked[1:], trouble)
            case _:
                self._answer(request.broker, request.asked, trouble)

    def _lost(self, asked: list[Asked]) -> None:
        for failed in self.plan.lost(asked, ConnectionLostError("simulated"), self.now):
            self._outcome(self._log(failed.topic), failed)

    def _answer(self, broker: Broker, asked: list[Asked], trouble: int) -> None:
        for number, item in enumerate(asked):
            log = self._log(item.topic)
            answer = self._answered(log, broker, item, is_first=number == 0, trouble=trouble)
            known = answer.preferred_replica is not None and answer.preferred_replica < len(BROKERS)
            preferred = BROKERS[answer.preferred_replica] if known and answer.preferred_replica is not None else None
            current = self._is_current(item)
            outcome = self.plan.landed(item, answer, preferred, self.now)
            is_own = item.topic_id == log.topic_id or not isinstance(outcome, FetchedData)
            assert is_own, f"records of another topic called {log.topic} are handed out"
            assert current or outcome is None, f"an answer for {item.topic} is taken, and no process waits for it"
            self._outcome(log, outcome, item)

    def _answered(self, log: Log, broker: Broker, asked: Asked, *, is_first: bool, trouble: int) -> PartitionAnswer:
        leads = broker == log.leader
        if asked.topic_id is None or asked.topic_id != log.id_of_today:
            return _said(error=ErrorCode.UNKNOWN_TOPIC_ID)
        if trouble % 8 == 4:
            return _said(error=ErrorCode.UNKNOWN_SERVER_ERROR)
        if asked.leader_epoch is not None and asked.leader_epoch < log.epoch:
            return _said(error=ErrorCode.FENCED_LEADER_EPOCH)
        if not leads and log.nearest != broker.node_id:
            return _said(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leads and asked.may_be_nearby and log.nearest is not None and log.nearest != broker.node_id:
            self.happened["sent to a follower"] += 1
            return _said(preferred_replica=log.nearest, high_watermark=log.end)
        batches = log.batches if leads else log.batches[: log.followed]
        end = batches[-1].stop if batches else log.start
        if not log.start <= asked.offset <= end:
            return _said(error=ErrorCode.OFFSET_OUT_OF_RANGE)
        if asked.last_epoch is not None and log.epoch_end(asked.last_epoch) < asked.offset:
            return _said(diverging=(asked.last_epoch, log.epoch_end(asked.last_epoch)))
        wanted = b"".join(batch.data for batch in batches if batch.stop > asked.offset)
        first = next((len(batch.data) for batch in batches if batch.stop > asked.offset), 0)
        limit = max(asked.max_bytes, first) if is_first else asked.max_bytes
        return _said(records=wanted[:limit], high_watermark=end)

    def _outcome(self, log: Log, outcome: FetchedData | FetchFailed | None, asked: Asked | None = None) -> None:
        if isinstance(outcome, FetchFailed):
            self.happened[f"gave up: {type(outcome.error).__name__}"] += 1
            self.failed.add(log.topic)
            lost = log.is_gone or log.was_cut or self.position[log.topic] < log.start
            assert lost, f"{log.topic} is given up, and nothing is gone: {outcome.error}"
            assert isinstance(outcome.error, DataLossError | UnknownTopicError), f"{outcome.error!r}"
        elif outcome is not None:
            self._delivered(log, outcome)

    def _delivered(self, log: Log, data: FetchedData) -> None:
        at, stop = self.position[log.topic], self.stop[log.topic]
        self.happened["data"] += 1
        assert data.fetch_offset == at, f"{log.topic}: data from {data.fetch_offset} is handed out, {at} is next"
        assert stop is None or at < stop, f"{log.topic}: data behind the stop {stop}"
        assert log.cut_to is None or at <= log.cut_to, f"{log.topic} was truncated to {log.cut_to}, read on at {at}"
        batches = [batch for batch in log.batches if at < batch.stop <= data.next_offset]
        whole = b"".join(batch.data for batch in batches)
        assert bytes(data.records) == whole, f"{log.topic}: partially committed data at {at}"
        self.position[log.topic], self.read_epochs[log.topic] = data.next_offset, batches[-1].epoch

    # --- what happens to the brokers ----------------------------------------------------------------------------------
    def append(self, which: int, records: int, padding: int) -> None:
        log = self.logs[which % PARTITIONS]
        if not log.is_gone:
            log.append(1 + records % 4, padding * 8)

    def new_leader(self, which: int, broker: int, cut: int) -> None:
        """With all records; or, an unclean election, without those behind a batch that lies before what was read."""
        log = self.logs[which % PARTITIONS]
        log.leader, log.epoch = BROKERS[broker % len(BROKERS)], log.epoch + 1
        log.nearest = None
        self.happened["new leader"] += 1
        if cut % 8 == 0 and len(log.batches) > 1 and log.cut_to is None:
            log.batches = log.batches[: 1 + cut // 8 % (len(log.batches) - 1)]
            log.was_cut = True
            if log.end < self.position[log.topic] and self.read_epochs[log.topic] is not None:
                log.cut_to = log.end
            self.happened["truncated"] += 1

    def news(self, which: int, broker: int) -> None:
        """One broker, or all, has heard how things stand."""
        log = self.logs[which % PARTITIONS]
        for number in range(len(BROKERS)):
            if broker % (len(BROKERS) + 1) in (number, len(BROKERS)):
                log.tell(number)

    def unlearn(self, which: int, broker: int) -> None:
        """A broker that was just started does not know the topic, for as long as it likes; the first never is."""
        self.logs[which % PARTITIONS].views[1 + broker % (len(BROKERS) - 1)] = View(None)

    def follow(self, which: int, follower: int, batches: int) -> None:
        """A replica nearer to the reader, that may lag behind; or one that the metadata does not know."""
        log = self.logs[which % PARTITIONS]
        number = follower % 4
        log.nearest = None if number == log.leader.node_id else number if number < len(BROKERS) else UNKNOWN_BROKER
        log.followed = max(0, len(log.batches) - batches % 3)

    def forget(self, which: int) -> None:
        """The metadata lacks the topic for a while; not for longer, and not again before another process has seen it."""
        log = self.logs[which % PARTITIONS]
        if log.seen_at > log.forgotten_until:
            log.forgotten_until = self.now + LONGEST_SILENCE_S

    def delete(self, which: int, again: int) -> None:
        """Seldom. Another topic of the name may come at once; it holds records, too."""
        log = self.logs[which % PARTITIONS]
        if again % 4 == 0 and not log.is_gone:
            log.is_gone = True
            self.happened["deleted"] += 1
            if again // 4 % 2:
                log.successor = UUID(int=log.topic_id.int + 100)
                self.happened["recreated"] += 1
            log.tell(0)

    def expire(self, which: int, batches: int) -> None:
        log = self.logs[which % PARTITIONS]
        gone = min(batches % 3, len(log.batches) - 1)
        if gone > 0 and log.batches[gone - 1].stop <= self.position[log.topic]:
            log.start = log.batches[gone - 1].stop
            log.batches, log.followed = log.batches[gone:], max(0, log.followed - gone)
            if log.start == self.position[log.topic]:
                # Nothing that is there reports a truncation before: the epochs that the leader knows start here now.
                log.cut_to = None
            self.happened["expired"] += 1

    def seek(self, which: int, back: int) -> None:
        """The partition is started over, at a batch that was read before."""
        log = self.logs[which % PARTITIONS]
        if log.topic not in self.failed and log.cut_to is None and not log.is_gone:
            earlier = [batch.base for batch in log.batches if batch.base <= self.position[log.topic]]
            if earlier:
                self._begin(log, earlier[back % len(earlier)], self.stop[log.topic])
                self.happened["started over"] += 1

    def wait(self, hundredths: int) -> None:
        self.now += hundredths / 50

    def step(self, trouble: int) -> None:
        self.look_up(5 * trouble)
        for number in range(len(BROKERS)):
            self.send(number)
        while self.flight:
            self.land(trouble, 0)

    # --- what must be true --------------------------------------------------------------------------------------------
    def check(self) -> None:
        """A position never passes the end of what was there."""

    def drain(self) -> None:
        """The brokers are well, but for the metadata that may lack a replica: everything there is comes."""
        for log in self.logs:
            log.forgotten_until = -1.0
            for broker in range(len(BROKERS)):
                log.tell(broker)
            log.followed = len(log.batches)
            log.append(1, 40)
        for _ in range(CALM_ROUNDS):
            self.now += 0.2
            self.step(0)
            for log in self.logs:
                log.followed = len(log.batches)
            if all(self._is_done(log) for log in self.logs):
                return
        behind = {log.topic: (self.position[log.topic], log.end) for log in self.logs if not self._is_done(log)}
        raise AssertionError(f"these stand still: {behind}")

    def _is_done(self, log: Log) -> bool:
        if log.topic in self.failed:
            return True
        stop = self.stop[log.topic]
        if stop is not None and self.position[log.topic] >= stop:
            return True
        return self.position[log.topic] == log.end and not log.is_gone and log.cut_to is None

    def _log(self, topic: str) -> Log:
        return next(log for log in self.logs if log.topic == topic)

    def _is_current(self, asked: Asked) -> bool:
        return self.plan._partitions.get((asked.topic, 0)) is asked.partition


def _metadata(topic: str, view: View) -> TopicMetadata | None:
    if view.topic_id is None:
        return None
    return TopicMetadata(topic, view.topic_id, {0: PartitionMetadata(view.leader.node_id, view.epoch)})


def _said(records: bytes = b"", **given: object) -> PartitionAnswer:
    fields = dict.fromkeys(PartitionAnswer.__slots__) | {"partition": 0, "error": 0, "records": memoryview(records)}
    return PartitionAnswer(**(fields | given))  # type: ignore[arg-type]


FETCH = Adversary(
    "fetch", FetchSimulation, 2,
    (
        {
            "look_up": 8, "send": 14, "land": 14, "append": 10, "new_leader": 2, "news": 6, "unlearn": 1, "follow": 2,
            "forget": 1, "expire": 1, "seek": 1, "wait": 6, "step": 2,
        },
        {
            "look_up": 3, "send": 4, "land": 4, "append": 10, "new_leader": 4, "news": 6, "unlearn": 2, "follow": 3,
            "forget": 2, "expire": 2, "seek": 2, "wait": 6, "step": 10, "delete": 1,
        },
    ),
)  # fmt: skip
