"""Replays of dead letters, several at a time: killed anywhere, fenced, with transactions that expire and a topic recreated.

Ours: `Replay` with its notes (`Replayed`), commit and recovery. Modelled: the topic of dead letters, the sink's transactions
(`MemorySink`), and the topics that a replay writes to, of which committed rows are seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pyarrow as pa

from headrace.cli.letters import replay as replaying
from headrace.cli.letters import replayed
from headrace.cli.letters.letters import LetterFilter
from headrace.cli.letters.notes import Notes
from headrace.cli.letters.replay import Plan, Replay, job_of
from headrace.cli.letters.replayed import REPLAYS_TOPIC, Replayed
from headrace.connectors.base.commit import StaleEpochError
from headrace.connectors.base.dead_letters import REPLAYS
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.write import commit_log
from headrace.enumerator.errors import FencedError, HeadraceError, PeerError, RetriableError, StateError
from headrace.testing.memory_sink import LoggedTransaction, MemoryCommitter, MemorySink, MemoryTransaction, State
from tests.simulation.commit import FusedLog, KilledError
from tests.simulation.search import Adversary

TOPIC, TARGET = "letters", "orders"
PREFIXES = ("headrace", "other")
COMMIT_TOPIC = "headrace-commits"
TRIES = 5
JOB = job_of(TOPIC)
PARTITIONS, RUNS_AT_MOST, LETTERS_AT_MOST = 2, 3, 24
LETTERS_OF_A_TRANSACTION, OFFSETS_OF_A_PAGE = 3, 8
"""Instead of 1,000 and 4,096: transactions and pages that are full happen often."""

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        *(("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS), ("partition", pa.int32())),
        *(("offset", pa.int64()), ("timestamp", pa.timestamp("us"))),
    ]
)


@dataclass(frozen=True)
class Lying:
    """A dead letter in its topic. `replays`: how often its record was replayed before."""

    name: bytes
    replays: int

    @property
    def headers(self) -> list[dict[str, Any]]:
        settings = {"__connect.errors.topic": TARGET.encode(), "__connect.errors.partition": b"0"}
        settings |= {REPLAYS: b"%d" % self.replays} if self.replays else {}
        return [{"key": key, "value": value} for key, value in settings.items()]


class Log(FusedLog):
    """A log in the middle of whose changes something else happens, once."""

    def __init__(self) -> None:
        super().__init__()
        self.hook: Callable[[], None] | None = None
        self.hook_at = 0

    def changing(self) -> None:
        if self.hook is not None:
            self.hook_at -= 1
            if self.hook_at < 0:
                hook, self.hook = self.hook, None
                hook()
        super().changing()


@dataclass
class Sink:
    """What a replay needs of a `KafkaSink`. Each prefix has its own names: those of two do not shut out each other."""

    simulation: LettersSimulation
    transactional_id_prefix: str
    commit_topic = COMMIT_TOPIC
    properties, sasl = None, None

    def __post_init__(self) -> None:
        self._sink = MemorySink(self.simulation.log)

    @property
    def bootstrap(self) -> LettersSimulation:
        """Handed to the sink of claims, which finds the simulation by it."""
        return self.simulation

    def name(self, job: str) -> str:
        return f"{self.transactional_id_prefix}_{job}"

    def committer(self, job: str) -> MemoryCommitter:
        return self._sink.committer(self.name(job))

    def begin(self, attempt: Attempt) -> MemoryTransaction:
        return self._sink.begin(replace(attempt, job=self.name(attempt.job)))

    def recorded_epochs(self) -> dict[str, int]:
        return {name.partition("_")[2]: epoch for name, epoch in self._sink.recorded_epochs().items() if name == self.name(JOB)}

    def cluster(self) -> Any:
        return SimpleNamespace(topics=self._topics, retrying=retrying, invalidate=lambda _: None, simulation=self.simulation)

    def _topics(self, names: Collection[str]) -> dict[str, Any]:
        return dict.fromkeys(names, SimpleNamespace(topic_id=self.simulation.topic_id))


def retrying(what: str, operation: Callable[[], Any]) -> Any:
    """As `KafkaCluster.retrying`, without waiting."""
    for _ in range(TRIES):
        try:
            return operation()
        except RetriableError as error:
            last = error
    raise AssertionError(f"{what}: {last}")


class ClaimSink:
    """As `AtLeastOnceKafkaSink`, into the topic of notes: a claim is there at once."""

    def __init__(self, simulation: LettersSimulation, *, topic: str, properties: object, sasl: object) -> None:
        assert (topic, properties, sasl) == (REPLAYS_TOPIC, None, None)
        self._simulation = simulation

    def begin(self, _attempt: Attempt) -> Any:
        """A transaction that is none."""
        return nullcontext(SimpleNamespace(write=self._write, prepare=lambda: None))

    def _write(self, batch: pa.RecordBatch) -> None:
        self._simulation.log.changing()
        for row in batch.to_pylist():
            self._simulation.claims[row["key"].decode()] = row["value"]


def read_notes(cluster: Any) -> Notes:
    """As `notes.read_notes`, of the simulation."""
    simulation = cluster.simulation
    if simulation.believed:
        simulation.believed -= 1
        return simulation.before
    return notes_of(simulation)


class Claimed:
    """As `CommitLog`, of the topic of notes: what is written there, all others have."""

    def __init__(self, cluster: Any, *_: object, **__: object) -> None:
        self._simulation = cluster.simulation

    def create(self) -> None:
        """It is there."""

    def write_nothing(self) -> int:
        self._simulation.end += 1
        return int(self._simulation.end) - 1


def notes_of(simulation: LettersSimulation) -> Notes:
    """As all in-sync replicas have them."""
    under_way = (entry for entry in simulation.log.entries if entry.unended)
    rows = [(entry.number, row) for entry in under_way for row in entry.rows if row["topic"] == REPLAYS_TOPIC]
    return Notes(simulation.notes(), {row["key"].decode(): number for number, row in rows}, simulation.end)


@dataclass(eq=False)
class Run:
    """One process of `headrace dead-letters replay`. `left`: what it has yet to read, of what there was when it started."""

    replay: Replay
    left: list[tuple[int, int, Lying]] = field(default_factory=list)
    has_started: bool = False


class LettersSimulation:
    """One history. `checked`: the log's changes when all was looked at last."""

    def __init__(self, most_replays: int, letters: int) -> None:
        self.happened: Counter[str] = Counter()
        self.log = Log()
        self.claims: dict[str, bytes] = {}
        self.plan = Plan(LetterFilter(), 1 + most_replays % 3)
        self.topic_id = UUID(int=1)
        self.topic: list[list[Lying]] = [[] for _ in range(PARTITIONS)]
        self.names = 0
        self.due: set[bytes] = set()
        self.runs: list[Run] = []
        self.checked = 0
        self.end, self.believed = 0, 0
        self.before = notes_of(self)
        self.append(0, letters)

    # --- what happens -------------------------------------------------------------------------------------------------

    def append(self, partition: int, count: int) -> None:
        """More records cannot be decoded."""
        for _ in range(1 + count % 5):
            self.lay_down(partition, 0)

    def lay_down(self, partition: int, replays: int) -> None:
        if self.names < LETTERS_AT_MOST:
            self.names += 1
            name = b"bad %d" % self.names
            self.topic[partition % PARTITIONS].append(Lying(name, replays))
            if replays < self.plan.most_replays:
                self.due.add(name)

    def fail_again(self, which: int, partition: int) -> None:
        """A record that was replayed is a dead letter again, under its own name here."""
        rows = self.seen(TARGET)
        if rows:
            headers = {each["key"]: each["value"] for each in rows[which % len(rows)]["headers"]}
            self.lay_down(partition, int(headers[REPLAYS]))
            self.happened["dead again"] += 1

    def cut_off(self, answers: int) -> None:
        """The leader of the notes loses sight of the others, and is taken for it for some answers more."""
        self.happened["isolated"] += 1
        self.before, self.believed = notes_of(self), 1 + answers % (TRIES - 1)

    def make_anew(self) -> None:
        """The topic is another one of the same name. The process that reads it fails; who has read all of it continues."""
        self.happened["topic recreated"] += 1
        self.topic_id = UUID(int=self.topic_id.int + 1)
        self.topic = [[] for _ in range(PARTITIONS)]
        self.runs = [run for run in self.runs if run.has_started and not run.left]

    def start(self, prefix: int) -> None:
        if len(self.runs) < RUNS_AT_MOST:
            self.runs.append(self.new_run(PREFIXES[prefix % 4 == 0]))
            self.happened["second replay" if len(self.runs) > 1 else "replay"] += 1

    def begin(self, which: int, fuse: int, meanwhile: int) -> None:
        run = self.run(which)
        if run is not None and not run.has_started:
            self.troubled(run, lambda: self._begin(run), fuse, meanwhile)

    def _begin(self, run: Run) -> None:
        run.replay.begin()
        run.has_started = True
        run.left = [(number, at, letter) for number, part in enumerate(self.topic) for at, letter in enumerate(part)]

    def read(self, which: int, count: int, fuse: int, meanwhile: int) -> None:
        """The next letters; a transaction is written and committed where enough of them wait."""
        run = self.run(which)
        if run is not None and run.has_started and run.left:
            batch, run.left = run.left[: 1 + count % 4], run.left[1 + count % 4 :]
            self.troubled(run, lambda: run.replay.add(batch_of(batch)), fuse, meanwhile)

    def finish(self, which: int, fuse: int, meanwhile: int) -> None:
        run = self.run(which)
        if run is not None and run.has_started and not run.left:
            self.troubled(run, run.replay.flush, fuse, meanwhile)
            if run in self.runs:
                self.runs.remove(run)
                self.happened["finished"] += 1

    def whole(self) -> None:
        """A replay from its beginning to its end, under the prefix that the topic is claimed by."""
        run = self.new_run(self.claimed_by())
        self._begin(run)
        run.replay.add(batch_of(run.left))
        run.replay.flush()

    def kill(self, which: int) -> None:
        run = self.run(which)
        if run is not None:
            self.runs.remove(run)
            self.happened["killed"] += 1

    def expire(self, which: int) -> None:
        unended = self.unended()
        if unended:
            entry = unended[which % len(unended)]
            self.happened[f"expired {'listed' if entry.number in self.log.listed else entry.state.name}"] += 1
            self.log.expire(entry.number)

    # --- how ----------------------------------------------------------------------------------------------------------

    def new_run(self, prefix: str) -> Run:
        sink: Any = Sink(self, prefix)
        return Run(Replay(sink, TOPIC, self.plan))

    def claimed_by(self) -> str:
        claims = Replayed.parse(TOPIC, self.topic_id, "", self.notes()).claims
        return claims[0].partition(" ")[0] if claims else PREFIXES[0]

    def unended(self) -> list[LoggedTransaction]:
        return [entry for prefix in PREFIXES for entry in self.log.unended(f"{prefix}_{JOB}")]

    def run(self, which: int) -> Run | None:
        return self.runs[which % len(self.runs)] if self.runs else None

    def troubled(self, run: Run, act: Callable[[], object], fuse: int, meanwhile: int) -> None:
        """It dies in the middle, or something else happens there; what it raises ends it."""
        self.log.fuse = meanwhile % 8 if fuse % 4 == 1 else None
        if fuse % 4 == 2:
            self.log.hook_at, self.log.hook = meanwhile % 8, lambda: self.meanwhile(meanwhile // 8)
        try:
            act()
        except (KilledError, FencedError, PeerError) as error:
            self.happened[type(error).__name__] += 1
            self.runs.remove(run)
        except StateError as error:
            assert "give the same, so that two replays" in str(error), str(error)  # noqa: PT017
            self.happened["refused"] += 1
            self.runs.remove(run)
        except StaleEpochError:  # another one has come in the middle of its beginning
            self.happened["StaleEpochError"] += 1
            self.runs.remove(run)
            if not self.happened["meanwhile"]:
                raise
        except HeadraceError as error:
            raise AssertionError(repr(error)) from error
        finally:
            self.log.fuse = self.log.hook = None

    def meanwhile(self, what: int) -> None:
        """In the middle of another's work."""
        self.happened["meanwhile"] += 1
        fuse, self.log.fuse = self.log.fuse, None
        if what % 3 == 0:
            self.expire(what)
        else:
            with suppress(StateError):  # of another prefix, that has claimed the topic meanwhile
                self.whole()
        self.log.fuse = fuse

    # --- what must be true --------------------------------------------------------------------------------------------

    def seen(self, topic: str) -> list[dict[str, Any]]:
        """Committed rows, in the order in which they were written."""
        committed = (entry for entry in self.log.entries if entry.state is State.COMMITTED)
        return [row for entry in committed for row in entry.rows if row["topic"] == topic]

    def notes(self) -> dict[str, bytes]:
        """The topic of notes, by key."""
        return self.claims | {row["key"].decode(): row["value"] for row in self.seen(REPLAYS_TOPIC)}

    def replayed(self) -> Counter[bytes]:
        return Counter(row["value"] for row in self.seen(TARGET))

    def check(self) -> None:
        """No letter twice, none that was replayed too often; and each that is there again has its note."""
        if self.log.changes == self.checked:
            return
        self.checked = self.log.changes
        found = self.replayed()
        assert not [name for name, times in found.items() if times > 1], "letters were replayed twice"
        assert found.keys() <= self.due, f"{found.keys() - self.due} were replayed too often"
        noted = Replayed.parse(TOPIC, self.topic_id, "", self.notes())
        for number, letters in enumerate(self.topic):
            for offset, letter in enumerate(letters):
                assert noted.has(number, offset) == (letter.name in found), f"{letter} and its note are at odds"

    def drain(self) -> None:
        """A replay that nothing happens to: every letter is there again, and nothing of its prefix is still open."""
        self.runs.clear()
        try:
            self.whole()
        except HeadraceError as error:
            raise AssertionError(f"the replay does not continue: {error!r}") from error
        self.check()
        lost = {letter.name for letters in self.topic for letter in letters} & self.due - self.replayed().keys()
        assert not lost, f"{lost} are not replayed"
        own = f"{self.claimed_by()}_{JOB}"  # another prefix may have had the topic before it was recreated
        assert not self.log.unended(own), "something is still open"


def batch_of(letters: Collection[tuple[int, int, Lying]]) -> pa.RecordBatch:
    rows = [
        {"key": b"k", "value": letter.name, "headers": letter.headers, "partition": number, "offset": offset, "timestamp": None}
        for number, offset, letter in letters
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@contextmanager
def small() -> Iterator[None]:
    """Transactions and pages are small, and the notes are the simulation's."""
    with (
        patch.object(replaying, "MOST_LETTERS", LETTERS_OF_A_TRANSACTION),
        patch.object(replayed, "PAGE", OFFSETS_OF_A_PAGE),
        patch.object(commit_log, "CommitLog", Claimed),
        patch.object(replaying, "AtLeastOnceKafkaSink", ClaimSink),
        patch.object(replaying, "read_notes", read_notes),
        patch.object(replaying, "find_topic", lambda *_: SimpleNamespace(partitions=range(PARTITIONS))),
    ):
        yield


LETTERS = Adversary(
    "letters",
    LettersSimulation,
    2,
    {
        "append": (LettersSimulation.append, 2),
        "fail_again": (LettersSimulation.fail_again, 2),
        "make_anew": (LettersSimulation.make_anew, 0),
        "cut_off": (LettersSimulation.cut_off, 1),
        "start": (LettersSimulation.start, 1),
        "begin": (LettersSimulation.begin, 3),
        "read": (LettersSimulation.read, 4),
        "finish": (LettersSimulation.finish, 3),
        "kill": (LettersSimulation.kill, 1),
        "expire": (LettersSimulation.expire, 1),
    },
    (
        {"append": 5, "fail_again": 3, "cut_off": 2, "start": 6, "begin": 8, "read": 14, "finish": 8, "kill": 1, "expire": 2},
        {"append": 8, "fail_again": 3, "make_anew": 2, "cut_off": 1, "start": 6, "begin": 8, "read": 14, "finish": 8}
        | {"expire": 1},
    ),
    longest=60,
    around=small,
)  # fmt: skip
