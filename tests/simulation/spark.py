"""Streaming queries on Spark from Kafka to a transactional sink: all of headrace that decides, and a model of the rest.

Ours: `StreamPlanner`, `KafkaSource` with its discovery and its offsets' JSON, `read_splits`, `StreamWriter`, commit and
recovery. Modelled: the brokers (`brokers.py`), the sink's transactions (`MemorySink`), and Spark. Of Spark: offset and commit
log, which refuse a batch that is there already; the batch without a commit, which is run again; stages that are tried again,
whose attempt numbers start over; tasks that fail, are lost or run twice; drivers that continue though another has taken their
place; a process for each call that commits or aborts, which may be one that was used before.

In half of the schedules drivers are supervised: each has a driver id, and claims the job before it starts. Then the process
that writes the list owns the job by it; and who owns it is never ended by having been fenced, though zombies continue to the
end.

The oracle: whenever a batch is in the commit log, the records up to its end are visible, each once, as they lie in Kafka.
"""

import logging
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pyarrow as pa
import tenacity.nap

from headrace.connectors.base.commit import StaleEpochError
from headrace.connectors.base.sink import Outcome
from headrace.connectors.kafka.client.errors import OffsetOutOfRangeError, TopicRecreatedError
from headrace.connectors.kafka.client.positions import Earliest, Latest
from headrace.connectors.kafka.read import source as source_module
from headrace.connectors.kafka.read.source import KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator import errors
from headrace.enumerator.source import SourceReader, SplitBatch
from headrace.runners.spark import writers
from headrace.runners.spark.log_read import Limits, LogOffsets, LogRead
from headrace.runners.spark.readers import SplitsPartition
from headrace.runners.spark.stream import StreamPlanner
from headrace.runners.spark.tasks import read_splits
from headrace.runners.spark.writers import StreamWriter
from headrace.spark.kafka_offsets import KafkaOffsets, parse, parse_ours
from headrace.testing.memory_sink import MemorySink, State
from tests.simulation.brokers import BROKERS, Brokers, Cluster, PartitionLog
from tests.simulation.commit import FusedLog, KilledError, list_in
from tests.simulation.search import Adversary, taking

NAMES = ("t", "t-1", "u")  # one is the beginning of another
QUERIES = ("q", "q-1")
SCHEMA = pa.schema([("value", pa.int64())])
ZOMBIES_AT_MOST = 3
CALM_BATCHES = 40
RESTARTS_IN_PEACE = 3
SplitKey = tuple[UUID | None, int]


@lru_cache(maxsize=64)
def offsets_in(text: str) -> LogOffsets[KafkaSplit] | None:
    """Of one batch, which is looked at several times."""
    return parse_ours(parse(text))


class QueryFailedError(Exception):
    """A batch has failed: the query ends, its driver may start it again."""


class SimulatedReader(SourceReader[KafkaSplit]):
    """Reads what the brokers have, a few offsets at a time."""

    def __init__(self, source: "SimulatedSource") -> None:
        self._source = source
        self._splits: list[KafkaSplit] = []

    def add_splits(self, splits: Sequence[KafkaSplit]) -> None:
        self._splits += splits

    def poll(self, timeout: float) -> SplitBatch[KafkaSplit] | None:
        split = self._splits.pop()
        brokers = self._source.brokers
        if brokers.is_away:
            raise errors.OutageError("no broker answers")
        log = brokers.log_of(split.topic_id, split.partition)
        assert split.stop_offset is not None
        if log is None:
            return self._lost(split, TopicRecreatedError(split.topic, str(split.topic_id), None))
        if split.next_offset < log.start or split.stop_offset > log.end:
            lost = OffsetOutOfRangeError(split.topic, split.partition, split.next_offset, log.start, log.end)
            self._lost(split, lost)
        first, stop = max(split.next_offset, log.start), min(split.stop_offset, log.end)
        if split.stop_epoch is not None and log.epoch_end(split.stop_epoch) < stop:  # as `FetchPlan` finds in the batches
            stop = log.epoch_end(split.stop_epoch)
            self._lost(split, errors.DataLossError(f"{split}: what is at offset {stop} was written later"))
        values = log.records[first:stop]
        return SplitBatch(split.between(split.stop_offset, split.stop_offset), batch_of(values), finished=True)

    def _lost(self, split: KafkaSplit, error: errors.HeadraceError) -> SplitBatch[KafkaSplit]:
        if self._source.fail_on_data_loss:
            raise error
        return SplitBatch(split.between(split.stop_offset or 0, split.stop_offset), batch_of([]), finished=True)

    def close(self) -> None:
        self._splits.clear()


def batch_of(values: Sequence[int]) -> pa.RecordBatch:
    return _batch_of(tuple(values))


@lru_cache(maxsize=256)
def _batch_of(values: tuple[int, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=SCHEMA)


class SimulatedSource(KafkaSource):
    """Kafka's source, but for the process that reads in the tasks."""

    brokers: Brokers

    def create_reader(self) -> SimulatedReader:  # type: ignore[override]
        return SimulatedReader(self)


@dataclass
class Checkpoint:
    """A query's checkpoint directory: the end of each batch that was planned, and the batches that are done."""

    offsets: list[str] = field(default_factory=list)
    committed: int = 0

    def copy(self, back: int) -> "Checkpoint":
        kept = max(0, self.committed - back)
        return Checkpoint(self.offsets[:kept], kept)


@dataclass(frozen=True)
class CheckpointOffsets:
    """The checkpoint's logs, as a writer finds them. `committed`: this many batches are in the commit log."""

    offsets: tuple[str, ...]
    committed: int

    def digest(self, batch: int) -> str | None:
        return self.offsets[batch] if batch < len(self.offsets) else None

    def is_committed(self, batch: int) -> bool:
        return batch < self.committed


@dataclass
class CommitProcess:
    """A Python process of the driver's that commits: what it keeps between calls is lost with it."""

    committers: Any = field(default_factory=lambda: lru_cache(maxsize=16)(writers._committer.__wrapped__))


@dataclass
class Attempt:
    """One attempt at a task: everything that it needs to continue later, the process that waits for it."""

    writer: bytes
    context: Any
    partition: SplitsPartition[KafkaSplit]
    read: LogRead[KafkaSplit]


@dataclass(eq=False)
class Driver:
    """One run of a query. `stale`: from an older copy of the checkpoint, its own. `driver_id`: if it is supervised."""

    query: "Query"
    checkpoint: Checkpoint
    planner: StreamPlanner[KafkaSplit]
    first_task: int
    stale: bool = False
    driver_id: str | None = None
    batch: int | None = None
    writer: bytes | None = None
    parts: list[SplitsPartition[KafkaSplit]] = field(default_factory=list)
    messages: list[Any] | None = None
    has_committed: bool = False
    processes: list[CommitProcess] = field(default_factory=lambda: [CommitProcess()])

    def start_of(self, batch: int) -> str:
        return self.checkpoint.offsets[batch - 1] if batch else self.planner.initial_offsets()


@dataclass(eq=False)
class Query:
    """A query: its checkpoint, the driver that Spark takes for its own, others that continue, and what it has to read."""

    job: str
    read: LogRead[KafkaSplit]
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    driver: Driver | None = None
    zombies: list[Driver] = field(default_factory=list)
    started_at: dict[SplitKey, int] = field(default_factory=dict)
    done: dict[SplitKey, int] = field(default_factory=dict)
    furthest: dict[SplitKey, int] = field(default_factory=dict)
    is_stopped: bool = False


class SparkSimulation:
    """One history. Queries share the brokers and the place that they write to."""

    latest: "SparkSimulation"
    """The one whose cluster is the process's."""

    def __init__(self, start: int, loss: int, subscription: int, limits: int, queries: int) -> None:
        SparkSimulation.latest = self
        self.happened: Counter[str] = Counter()
        self.now = 1000.0
        self.brokers = Brokers()
        self.brokers.create("t", 2)
        for log in self.brokers.logs():
            self.brokers.append(log, 3)
        self.cluster = Cluster(self.brokers)
        self.log = HookedLog()
        self.sink = MemorySink(self.log)
        self.attempts: list[Attempt] = []
        self.checked = -1
        self.depth = 0
        read = self._read(start, loss, subscription, limits)
        self.may_lose = loss % 2 == 0
        self.from_latest = start % 3 == 0
        self.drivers_go_on = queries % 4 >= 2
        self.is_supervised = queries % 8 >= 4
        self.driver_ids = 0
        self.queries = [Query(job, read) for job in QUERIES[: 1 + queries % 2]]
        for query in self.queries:
            self.restart_query(query, fresh_driver=True)

    def _read(self, start: int, loss: int, subscription: int, limits: int) -> LogRead[KafkaSplit]:
        source = SimulatedSource(
            "simulated:9092", **({"pattern": "t.*|u"} if subscription % 2 else {"topics": ["t"]}),
            start=Latest() if start % 3 == 0 else Earliest(), fail_on_data_loss=loss % 2 == 1, group="g", columns=["value"],
        )  # fmt: skip
        source.__dict__["brokers"] = self.brokers
        return LogRead(
            source=source, offsets=KafkaOffsets(source), columns=("value",),
            limits=Limits((None, 2, 5)[limits % 3], (None, None, 4)[limits // 3 % 3], 60.0),
            max_task_offsets=(None, 2)[limits // 9 % 2],
        )  # fmt: skip

    # --- drivers ------------------------------------------------------------------------------------------------------
    def restart(self, which: int, zombie: int) -> None:
        """A driver is killed, or seems to be, and another takes its place."""
        query = self._query(which)
        if query.driver is not None and zombie % 3 == 0 and len(query.zombies) < ZOMBIES_AT_MOST:
            query.zombies.append(query.driver)
            self.happened["zombie driver"] += 1
        self.restart_query(query, fresh_driver=True, meanwhile=zombie // 3)
        self.happened["restart"] += 1

    def restart_query(self, query: Query, *, fresh_driver: bool, meanwhile: int = 0) -> None:
        before = query.driver
        if query.is_stopped:
            return
        query.driver = self._started(query, query.checkpoint)
        if self.is_supervised:
            self._claim(query.driver, meanwhile)
        elif not fresh_driver and before is not None:  # of the same application: task ids continue, and processes live on
            query.driver.first_task, query.driver.processes = before.first_task, before.processes

    def _started(self, query: Query, checkpoint: Checkpoint, *, stale: bool = False) -> Driver:
        driver = Driver(query, checkpoint, StreamPlanner(query.read, lambda: self.now), 0, stale)
        if self.is_supervised and not stale:
            self.driver_ids += 1
            driver.driver_id = f"driver-{self.driver_ids}"
        return driver

    def _claim(self, driver: Driver, meanwhile: int) -> None:
        """What `Takeover` does: it knows the query once a batch was planned. Others may continue in the middle of it."""
        checkpoint = driver.checkpoint
        if not checkpoint.offsets:
            return
        self.log.fuse = None  # which was the last one's
        if meanwhile % 2 and not self.depth:
            self.log.hook_at, self.log.hook = meanwhile // 2 % 6, lambda: self._meanwhile(3, driver)
        offsets = CheckpointOffsets(tuple(checkpoint.offsets), checkpoint.committed)
        writer = StreamWriter(self.sink, ["value"], offsets, driver.driver_id)
        ended: list[int | None] = []
        try:
            claim = partial(writer.claim, driver.query.job, lambda: len(checkpoint.offsets) - 1)
            self._in_process(CommitProcess(), driver, lambda: ended.append(claim()))
        finally:
            if not self.depth:
                self.log.hook = None
        self.happened["claim"] += 1
        if ended == [checkpoint.committed]:
            checkpoint.committed += 1
            self._check_batch(driver)
            self.happened["completed, and not run again"] += 1

    def rewind(self, which: int, back: int) -> None:
        """Another process starts the query from a copy of its checkpoint that is some batches old."""
        query = self._query(which)
        recorded = self.sink.recorded_epochs().get(query.job, -1)
        committed = query.checkpoint.committed
        if committed > 2 and recorded >= committed - 1 and len(query.zombies) < ZOMBIES_AT_MOST:
            query.zombies.append(self._started(query, query.checkpoint.copy(1 + back % 3), stale=True))
            self.happened["rewind"] += 1

    def new_process(self, which: int, both: int) -> None:
        """Spark ends an idle process, or starts one alongside it."""
        driver = self._driver(which)
        if driver is not None:
            driver.processes = [CommitProcess()] if both % 2 else [*driver.processes[-1:], CommitProcess()]

    # --- a batch ------------------------------------------------------------------------------------------------------
    def plan(self, which: int) -> None:
        """The driver's next batch, or the one that its predecessor has left, up to the tasks."""
        driver = self._driver(which)
        if driver is not None and driver.batch is None:
            self._guarded(driver, lambda: self._plan(driver))

    def _plan(self, driver: Driver) -> None:
        checkpoint = driver.checkpoint
        batch = checkpoint.committed
        if batch == len(checkpoint.offsets) and not self._log_offsets(driver, batch):
            return
        start, end = driver.start_of(batch), checkpoint.offsets[batch]
        tasks = driver.planner.tasks(start, end)
        driver.parts = [SplitsPartition(splits) for splits in tasks] or [SplitsPartition(())]
        offsets = CheckpointOffsets(tuple(checkpoint.offsets), checkpoint.committed)
        driver.writer = pickle.dumps(StreamWriter(self.sink, ["value"], offsets, driver.driver_id))
        driver.batch, driver.messages, driver.has_committed = batch, None, False

    def _log_offsets(self, driver: Driver, batch: int) -> bool:
        """False: there is nothing to do."""
        limits = driver.query.read.limits
        start = driver.start_of(batch)
        end = driver.planner.next_offsets(start, limits.max_offsets, limits.min_offsets)
        if end == start:
            return False
        if len(driver.checkpoint.offsets) != batch:
            self.happened["offset log has it"] += 1
            raise QueryFailedError
        driver.checkpoint.offsets.append(end)
        if not driver.stale:
            self._check_losses_are_told(driver.query, batch)
            self._note_began(driver.query, end)
        if batch:
            driver.planner.committed(driver.checkpoint.offsets[batch - 1])
        return True

    def _check_losses_are_told(self, query: Query, batch: int) -> None:
        """A batch continues after what was read only where that is still in the log, unless losses are tolerated."""
        before = offsets_in(query.checkpoint.offsets[batch - 1]) if batch else None
        for split in before.splits.values() if before is not None and not self.may_lose else ():
            key = (split.topic_id, split.partition)
            if self.brokers.log_of(*key) is None:
                cannot_be_proven = self.brokers.lagging or self.brokers.dead_broker is not None  # yet
                assert cannot_be_proven, f"{split} is gone, and nothing is said"
                continue  # and with it what it lost before
            cuts = [kept for kept, batches in self.brokers.cuts.get(key, ()) if batches[query.job] == batch]
            cut = [kept for kept in cuts if kept < split.next_offset]
            assert not cut, f"{split} was truncated to {cut}, and nothing is said"

    def _note_began(self, query: Query, end: str) -> None:
        """What is first seen of a split in the log of offsets is where it starts."""
        offsets = offsets_in(end)
        assert offsets is not None
        first = not query.started_at
        known = {s.topic: s.topic_id for s in offsets.splits.values() if (s.topic_id, s.partition) in query.started_at}
        for split_id, split in offsets.splits.items():
            key, started_at = (split.topic_id, split.partition), offsets.started_at[split_id]
            if key not in query.started_at:
                is_gone = self.brokers.log_of(*key) is None  # a broker that lags behind has reported it: it has no records
                told_by_one = is_gone and known.get(split.topic) != split.topic_id
                unheard = split.topic not in known and self.brokers.agree_but_for_the_dead(split.topic, split.topic_id)
                assert not told_by_one or unheard, f"{split} is gone, and taken for new"
                resolved = is_gone or (first and self.from_latest)
                assert resolved or started_at <= self.brokers.damaged.get(key, 0), f"{split} starts at {started_at}, and is new"
                query.started_at[key] = query.done[key] = started_at
            elif query.started_at[key] != started_at:
                raise AssertionError(f"I2: {split} started at {query.started_at[key]}, and now at {started_at}")

    def stage(self, which: int, fates: int) -> None:
        """The tasks of the batch: stages tried again, attempts that fail, are lost, or run twice."""
        driver = self._driver(which)
        if driver is None or driver.batch is None or driver.messages is not None:
            return
        dice = random.Random(fates)
        self.is_calm = fates == 0
        rounds = 1 if self.is_calm else dice.choice([1, 1, 1, 2])
        for number in range(rounds):
            messages = [self._task(driver, part, index, dice) for index, part in enumerate(driver.parts)]
            if driver not in self._drivers():
                return
            if number + 1 < rounds:
                self.happened["stage again"] += 1
        if any(message is None for message in messages):
            self._fail(driver, "stage failed")
        else:
            driver.messages = messages

    def _task(self, driver: Driver, part: SplitsPartition[KafkaSplit], index: int, dice: random.Random) -> Any:
        """The message of the attempt that counts; None when every attempt has failed."""
        fates = dice.choices(
            ["fails", "is lost", "runs twice", "hangs"], k=0 if self.is_calm else dice.choice([0, 0, 0, 1, 1, 2])
        )
        for retry, fate in enumerate([*fates, "counts"]):
            attempt = self._attempt(driver, part, index, retry)
            if fate == "hangs":  # the executor is gone, and its process continues later
                self.attempts.append(attempt)
                self.happened["executor lost"] += 1
                continue
            message = self._run(attempt, fails=fate == "fails")
            if fate == "counts" or message is None:
                if fate == "counts":
                    return message
                continue
            if fate == "runs twice":
                self.happened["speculation"] += 1
                other = self._run(self._attempt(driver, part, index, retry + 1))
                return message if dice.random() < 0.5 or other is None else other
        return None

    def _attempt(self, driver: Driver, part: SplitsPartition[KafkaSplit], index: int, retry: int) -> Attempt:
        assert driver.writer is not None
        properties = {"sql.streaming.queryId": driver.query.job, "streaming.sql.batchId": str(driver.batch)}
        task_id, driver.first_task = driver.first_task, driver.first_task + 1
        context = SimpleNamespace(
            driver=driver, getLocalProperty=properties.get, partitionId=lambda: index, taskAttemptId=lambda: task_id,
            attemptNumber=lambda: retry,
        )  # fmt: skip
        return Attempt(driver.writer, context, part, driver.query.read)

    def _run(self, attempt: Attempt, *, fails: bool = False) -> Any:
        """Its message; None when it has failed."""
        writer = pickle.loads(attempt.writer)
        rows = read_splits(attempt.read.source, attempt.partition.splits, ["value"], 10.0)
        self.log.driver = attempt.context.driver
        with patch_attribute(writers, "_context", lambda: attempt.context):
            try:
                return writer.write(_cut(rows, fails=fails))
            except (errors.HeadraceError, KilledError) as error:
                self.happened[f"task: {type(error).__name__}"] += 1
                self._note_loss(error)
                return None
            finally:
                self.log.driver = None

    def late_task(self, which: int, fails: int) -> None:
        if self.attempts:
            attempt = self.attempts.pop(which % len(self.attempts))
            self.happened["late task"] += 1
            self._run(attempt, fails=fails % 4 == 0)

    def commit(self, which: int, process: int, fuse: int, meanwhile: int) -> None:
        """The driver commits; dies in the middle of it, or something else happens in the middle of it."""
        driver = self._driver(which)
        if driver is None or driver.messages is None or driver.has_committed:
            return
        trouble = ("dies", "meanwhile", "meanwhile", None)[fuse % 4] if fuse else None
        self.log.fuse = meanwhile % 6 if trouble == "dies" else None
        if trouble == "meanwhile" and not self.depth:
            self.log.hook_at, self.log.hook = meanwhile % 6, lambda: self._meanwhile(meanwhile // 6, driver)
        try:
            self._guarded(driver, lambda: self._commit(driver, driver.processes[process % len(driver.processes)]))
        finally:
            self.log.fuse, self.log.hook = None, None

    def _commit(self, driver: Driver, process: CommitProcess) -> None:
        """As Spark does: a commit that fails is followed by an abort, in its own process."""
        assert driver.messages is not None
        assert driver.batch is not None
        batch, messages = driver.batch, driver.messages
        try:
            self._in_process(process, driver, lambda: pickle.loads(driver.writer or b"").commit(messages, batch))
        except StaleEpochError:
            assert driver.stale or batch < self.sink.recorded_epochs().get(driver.query.job, -1), "refused, and not stale"
            self.happened["stale epoch refused"] += 1
            raise
        except errors.HeadraceError as error:
            self.happened[f"commit: {type(error).__name__}"] += 1
            self.log.fuse, self.log.hook = None, None
            self._abort(driver, messages, batch)
            raise
        driver.has_committed = True
        self.happened["commit"] += 1
        if driver.stale:
            same = driver.checkpoint.offsets[batch] == driver.query.checkpoint.offsets[batch]
            assert same, "a batch of an older checkpoint was committed, or skipped as a replay of another"
            self.happened["planned again, with the same end"] += 1
            raise QueryFailedError  # from here on both copies are as good as each other

    def _abort(self, driver: Driver, messages: list[Any], batch: int) -> None:
        """An epoch that is recorded has happened: an abort fences no process then; and it never ends what is on the list."""
        job = driver.query.job
        is_recorded = self.sink.recorded_epochs().get(job, -1) >= batch
        fenced, ended = self.log.fenced(job), self.log.listed_and_aborted()
        self._in_process(CommitProcess(), driver, lambda: pickle.loads(driver.writer or b"").abort(messages, batch))
        self.happened["abort of a recorded batch" if is_recorded else "abort"] += 1
        assert not is_recorded or fenced == self.log.fenced(job), "an abort has fenced the process that continues"
        assert ended == self.log.listed_and_aborted(), "an abort has ended what is on the durable list"

    def _in_process(self, process: CommitProcess, driver: Driver, call: Callable[[], None]) -> None:
        acting = driver.driver_id if self.is_supervised else HookedLog.ANYBODY
        with patch_attribute(writers, "_committer", process.committers), patch_attribute(self.log, "acting", acting):
            call()

    def _meanwhile(self, what: int, driver: Driver) -> None:
        self.log.hook, self.depth = None, 1
        self.happened["meanwhile"] += 1
        others = [other for other in self._drivers() if other is not driver]
        try:
            if what % 5 == 0 and driver is driver.query.driver and len(driver.query.zombies) < ZOMBIES_AT_MOST:
                driver.query.zombies.append(driver)
                self.restart_query(driver.query, fresh_driver=True)
                others = [other for other in self._drivers() if other is driver.query.driver]
            if what % 5 == 1:
                self.late_task(what, what)
            elif what % 5 == 2:
                _expire_transaction(self, what)
            elif others:
                self._batch_of(others[0])
        finally:
            self.depth = 0

    def _batch_of(self, driver: Driver) -> None:
        """A whole batch of this driver, as far as it comes."""
        for action in (self.plan, lambda n: self.stage(n, 0), lambda n: self.commit(n, 0, 0, 0), self.store):
            if driver in self._drivers():
                action(self._drivers().index(driver))

    def store(self, which: int) -> None:
        """The batch goes into the commit log: from here on it is never run again."""
        driver = self._driver(which)
        if driver is None or not driver.has_committed:
            return
        if driver.checkpoint.committed != driver.batch:
            self.happened["commit log has it"] += 1
            self._lose(driver)
            return
        driver.checkpoint.committed += 1
        self._check_batch(driver)
        driver.batch, driver.messages, driver.has_committed = None, None, False
        self.happened["batch"] += 1

    def fail_stage(self, which: int) -> None:
        """The query is stopped, or fails, in the middle of a batch: Spark calls abort for what the tasks have reported it."""
        driver = self._driver(which)
        if driver is not None and driver.messages is not None and not driver.has_committed:
            self._fail(driver, "stage cancelled")

    def _fail(self, driver: Driver, why: str) -> None:
        self.happened[why] += 1
        messages, batch = driver.messages or [], driver.batch or 0
        self._abort(driver, messages, batch)
        self._lose(driver, same_application=True)

    def batch(self, which: int, fates: int, fuse: int, meanwhile: int) -> None:
        """A whole batch, with trouble in its commit or without."""
        driver = self._driver(which)
        self.plan(which)
        self.stage(which, fates)
        self.commit(which, fates, fuse if fuse < 24 else 0, meanwhile)
        if driver in self._drivers():
            self.store(which)

    # --- what must be true --------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Nothing twice, nothing that is on no list, nothing of a job that another has ended."""
        if self.log.changes != self.checked:
            self.checked = self.log.changes
            self._check_log()
        for split, published in self.brokers.published().items():
            durable = max(query.furthest.get(split, -1) for query in self.queries)
            assert published <= durable, f"{split}: {published} is published, {durable} is durable"

    def _check_log(self) -> None:
        for query in self.queries:
            seen = self._visible(query)
            assert not [v for v, times in seen.items() if times > 1], "records are visible twice"
        committed = {entry.number for entry in self.log.entries if entry.state is State.COMMITTED}
        assert committed <= self.log.listed, "a transaction was committed that never was on a durable list"

    def _visible(self, query: Query) -> Counter[int]:
        committed = [entry for entry in self.log.entries if entry.state is State.COMMITTED and entry.job == query.job]
        return Counter(row["value"] for entry in committed for row in entry.rows)

    def _check_batch(self, driver: Driver) -> None:
        query = driver.query
        offsets = offsets_in(driver.checkpoint.offsets[driver.checkpoint.committed - 1])
        assert offsets is not None
        seen = self._visible(query)
        for split in offsets.splits.values():
            key = (split.topic_id, split.partition)
            log = self.brokers.log_of(*key)
            before, query.done[key] = query.done[key], split.next_offset
            query.furthest[key] = max(query.furthest.get(key, -1), split.next_offset)
            was_cut = self.may_lose and key in self.brokers.cuts  # it continues where the log parted from what was read
            assert split.next_offset >= before or was_cut, f"I3: {split} goes back from {before}"
            if log is not None:
                self._check_range(query, log, seen, query.started_at[key], split.next_offset)

    def _check_range(self, query: Query, log: PartitionLog, seen: Counter[int], start: int, stop: int) -> None:
        safe = self.brokers.damaged.get(log.split, 0)
        lost = [offset for offset in range(max(start, log.start, safe), min(stop, log.end)) if log.records[offset] not in seen]
        assert not lost, f"{query.job}: the offsets {lost} of {log.split} are lost, up to {stop}"

    def drain(self) -> None:
        """No faults any more: every query continues and reads what there is; nothing stays open."""
        self.brokers.create("t", 0)  # a query that names a topic does not start without it
        self.brokers.settle()
        for log in self.brokers.logs():
            self.brokers.append(log, 1)  # what a driver that was replaced has left is ended with the next batch
        for query in self.queries:
            if not self.is_supervised:
                query.zombies.clear()
            if not self.drivers_go_on or self.is_supervised:
                self.restart_query(query, fresh_driver=True)
        for query in self.queries:
            if not query.is_stopped:
                self._drain(query)
                self.check()
        for query in self.queries:
            if not query.is_stopped:
                assert not self.log.unended(query.job), f"{query.job}: something is still open"

    def _drain(self, query: Query) -> None:
        failures, idle = 0, 0
        for number in range(CALM_BATCHES):
            self.now += 100.0
            driver, before = query.driver, query.checkpoint.committed
            assert driver is not None
            self._calm_batch(driver, number)
            if self.is_supervised:
                self._with_zombies(query, number)
            if query.is_stopped:
                return
            failures += query.driver is not driver
            assert failures <= RESTARTS_IN_PEACE, f"{query.job} fails again and again though nothing is wrong any more"
            idle = idle + 1 if query.checkpoint.committed == before and query.driver is driver else 0
            if idle >= 2 and not (self.is_supervised and number <= ZOMBIES_AT_MOST):
                break
        else:
            raise AssertionError(f"{query.job} has not read everything after {CALM_BATCHES} batches")
        seen = self._visible(query)
        for log in self.brokers.logs():
            name = next(name for name, topic in self.brokers.topics.items() if log in topic)
            if query.read.source.pattern is None and name != "t":
                continue
            assert log.split in query.started_at, f"{query.job}: {name}-{log.number} is never read"
            self._check_range(query, log, seen, query.started_at[log.split], log.end)
        if len(self.queries) == 1 and not self.drivers_go_on:
            self._check_published(query)

    def _with_zombies(self, query: Query, number: int) -> None:
        """They continue for a while alongside the one who owns the job; what they leave is ended with the batch after that."""
        if number < ZOMBIES_AT_MOST:
            for zombie in list(query.zombies):
                self._batch_of(zombie)
        elif number == ZOMBIES_AT_MOST:
            query.zombies.clear()
            for log in self.brokers.logs():
                self.brokers.append(log, 1)

    def _check_published(self, query: Query) -> None:
        """What no other process publishes is where the query is, also after it went back."""
        there, published = {log.split for log in self.brokers.logs()}, self.brokers.published()
        other = {split: (at, query.done[split]) for split, at in published.items() if split in there & query.done.keys()}
        other = {split: ats for split, ats in other.items() if ats[0] != ats[1]}
        assert not other, f"published, and where the query is: {other}"

    def _calm_batch(self, driver: Driver, number: int) -> None:
        """Its commits are made by two processes one after another."""
        driver.processes = [*driver.processes, CommitProcess()][:2]
        for action in (self.plan, lambda n: self.stage(n, 0), lambda n: self.commit(n, number, 0, 0), self.store):
            if driver in self._drivers():
                action(self._drivers().index(driver))

    # --- how ----------------------------------------------------------------------------------------------------------
    def _drivers(self) -> list[Driver]:
        return [driver for query in self.queries for driver in (query.driver, *query.zombies) if driver is not None]

    def _driver(self, which: int) -> Driver | None:
        drivers = self._drivers()
        return drivers[which % len(drivers)] if drivers else None

    def _query(self, which: int) -> Query:
        return self.queries[which % len(self.queries)]

    def _guarded(self, driver: Driver, act: Callable[[], Any]) -> None:
        """What ends a query, or kills its driver."""
        try:
            act()
        except KilledError:
            self.happened["driver killed in a commit"] += 1
            self._lose(driver)
        except QueryFailedError:
            self._lose(driver, same_application=True)
        except errors.ProtocolViolationError as error:
            raise AssertionError(str(error)) from error
        except errors.HeadraceError as error:
            self.happened[f"query: {type(error).__name__}"] += 1
            self._note_loss(error)
            is_owner = self.is_supervised and driver.driver_id == self.log.owner_of(driver.query.job)
            if is_owner and isinstance(error, errors.FencedError):
                raise AssertionError(f"who owns the job has given it up: {error}") from error
            self._lose(driver, same_application=True)

    def _note_loss(self, error: BaseException) -> None:
        """Data loss is an error only where data is lost, and only where that was not tolerated."""
        if isinstance(error, errors.DataLossError):
            assert not self.may_lose, f"data loss was tolerated, and all the same: {error}"
            assert self.brokers.damaged or self.brokers.retired, f"nothing was lost: {error}"
            for query in self.queries:
                query.is_stopped, query.driver, query.zombies = True, None, []
        elif isinstance(error, errors.UsageError):
            assert "no such topic" in str(error), str(error)
            assert "t" not in self.brokers.topics, str(error)

    def _lose(self, driver: Driver, *, same_application: bool = False) -> None:
        query = driver.query
        if driver in query.zombies:
            query.zombies.remove(driver)
        elif driver is query.driver:
            self.restart_query(query, fresh_driver=not same_application)


class HookedLog(FusedLog):
    """A log in the middle of whose changes something else happens, once. `acting`: the driver id of who changes it."""

    ANYBODY = "anybody"

    def __init__(self) -> None:
        super().__init__()
        self.acting: str | None = self.ANYBODY
        self.hook: Callable[[], None] | None = None
        self.hook_at = 0
        self.driver: Driver | None = None
        self.names: set[tuple[Driver, str, str]] = set()

    def _before(self) -> None:
        """Changes are atomic: what happens meanwhile happens before one."""
        if self.hook is not None:
            self.hook_at -= 1
            if self.hook_at < 0:
                self.hook()

    def commit(self, number: int) -> Outcome:
        self._before()
        return super().commit(number)

    def abort(self, number: int) -> None:
        self._before()
        super().abort(number)

    def fence(self, job: str) -> int:
        self._before()
        return super().fence(job)

    def store(self, job: str, generation: int, data: bytes) -> None:
        self._before()
        super().store(job, generation, data)
        owner = self.owner_of(job)
        assert self.acting in (owner, self.ANYBODY), f"{self.acting} has written the list of a job that is {owner}'s"

    def owner_of(self, job: str) -> str | None:
        """Who owns the job by its list."""
        data = self.stored().get(job)
        claim = None if data is None else list_in(data).claim
        return None if claim is None else claim.driver_id

    def fenced(self, job: str) -> int:
        return self._generations.get(job, 0)

    def listed_and_aborted(self) -> set[int]:
        return {number for number in self.listed if self.entries[number].state is State.ABORTED}

    def begin(self, job: str, name: str) -> int:
        if self.driver is not None:
            named = (self.driver, job, name)
            assert named not in self.names, f"two attempts of one driver are called {name}"
            self.names.add(named)
        return super().begin(job, name)


def _cut(batches: Iterator[pa.RecordBatch], *, fails: bool) -> Iterator[pa.RecordBatch]:
    """The batches row by row; one that fails does so after its first row."""
    for batch in batches:
        for row in range(batch.num_rows):
            yield batch.slice(row, 1)
            if fails:
                raise KilledError


@contextmanager
def patch_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`mock.patch.object` without its cost."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# --- what happens to the brokers ------------------------------------------------------------------------------------------
def _grow(simulation: SparkSimulation, which: int, count: int) -> None:
    logs = simulation.brokers.logs()
    if logs:
        simulation.brokers.append(logs[which % len(logs)], 1 + count % 5)


def _new_leader(simulation: SparkSimulation, which: int, cut: int) -> None:
    logs = simulation.brokers.logs()
    if logs:
        batches = {query.job: len(query.checkpoint.offsets) for query in simulation.queries}
        simulation.brokers.new_leader(logs[which % len(logs)], cut // 8 if cut % 4 == 0 else 0, batches)
        simulation.happened["new leader"] += 1


def _expire_records(simulation: SparkSimulation, which: int, count: int) -> None:
    logs = simulation.brokers.logs()
    if logs:
        simulation.brokers.expire(logs[which % len(logs)], count % 4)
        simulation.happened["retention"] += 1


def _delete(simulation: SparkSimulation, which: int, again: int) -> None:
    name = NAMES[which % len(NAMES)]
    if name in simulation.brokers.topics:
        simulation.brokers.delete(name)
        simulation.happened["topic deleted"] += 1
        if again % 2:
            simulation.brokers.create(name, again)
            simulation.happened["topic recreated"] += 1


def _forget(simulation: SparkSimulation, number: int, which: int) -> None:
    simulation.brokers.forget(number, NAMES[which % len(NAMES)])
    simulation.happened["topic forgotten"] += 1


def _outage(simulation: SparkSimulation, kind: int) -> None:
    simulation.brokers.is_away = kind % 3 == 0
    simulation.brokers.dead_broker = kind // 3 % BROKERS if kind % 3 == 1 else None
    simulation.brokers.low_answers = 1 + kind % 2 if kind % 3 == 2 else 0
    simulation.happened["outage"] += 1


def _wait(simulation: SparkSimulation, seconds: int) -> None:
    simulation.now += seconds


def _expire_transaction(simulation: SparkSimulation, which: int) -> None:
    unended = [entry for query in simulation.queries for entry in simulation.log.unended(query.job)]
    if unended:
        entry = unended[which % len(unended)]
        listed = "listed" if entry.number in simulation.log.listed else entry.state.name
        simulation.happened[f"expired {listed}"] += 1
        simulation.log.expire(entry.number)


@contextmanager
def simulated() -> Iterator[None]:
    """The process's cluster is that of the simulation that was made last; no process waits; and nothing is logged."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        cluster = patch.object(source_module, "shared_cluster", lambda _: SparkSimulation.latest.cluster)
        with cluster, patch.object(tenacity.nap, "time", SimpleNamespace(sleep=lambda _: None)):
            yield
    finally:
        logging.disable(disabled)


_TROUBLE = {
    "create": 2, "add_partition": 2, "lag": 2, "forget": 3, "catch_up": 5, "outage": 2, "new_leader": 2, "wait": 3,
    "expire_transaction": 3, "late_task": 3, "new_process": 2,
}  # fmt: skip

SPARK = Adversary(
    "spark",
    SparkSimulation,
    5,
    (
        {  # whole batches, and trouble between them
            "grow": 14, "batch": 14, "plan": 3, "stage": 3, "commit": 4, "store": 2, "restart": 4, "rewind": 1, "fail_stage": 1,
            **_TROUBLE,
        },
        {  # step by step, drivers that overlap
            "grow": 10, "batch": 3, "plan": 14, "stage": 14, "commit": 16, "store": 10, "restart": 7, "rewind": 1,
            "fail_stage": 1, **_TROUBLE,
        },
        {  # records that are lost: topics recreated, truncation, retention
            "grow": 14, "batch": 14, "plan": 4, "stage": 4, "commit": 4, "store": 3, "restart": 4, "delete": 3,
            "expire_records": 1, **_TROUBLE, "new_leader": 4,
        },
        {  # topics are recreated while brokers lag behind
            "grow": 8, "batch": 12, "plan": 2, "stage": 2, "commit": 2, "store": 2, "restart": 2, "rewind": 1, "create": 3,
            "delete": 8, "add_partition": 2, "lag": 6, "forget": 2, "catch_up": 4, "outage": 8,
        },
    ),
    longest=80,
    around=simulated,
    actions={
        "create": (lambda simulation, which, partitions: simulation.brokers.create(NAMES[which % len(NAMES)], partitions), 2),
        "add_partition": (lambda simulation, which: simulation.brokers.add_partition(NAMES[which % len(NAMES)]), 1),
        "lag": (lambda simulation, number: simulation.brokers.lag(number), 1),
        "catch_up": (lambda simulation: simulation.brokers.settle(), 0),
        **taking(_grow, _delete, _new_leader, _expire_records, _forget, _outage, _wait, _expire_transaction),
    },
)  # fmt: skip
