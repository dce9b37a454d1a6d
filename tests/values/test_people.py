"""What people do with iterators and transactions: interrupt anywhere, go on, checkpoint, close twice, fork, use what is closed.

A model has what each object has to give. After every step it is either that, or an error; and an error after which an
object cannot be used on is final. A call that was interrupted has taken nothing, or all that it was given.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from glob import glob
from itertools import count
from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headrace.connectors.base.sink import Attempt
from headrace.delta import DeltaSink
from headrace.enumerator import EagerEnumerator, EmbeddedRun, LazyEnumerator
from headrace.enumerator.errors import DataLossError, HeadraceError, RetriableError, StateError
from headrace.files import FileSink
from headrace.kafka import KafkaSink, KafkaSource, Latest
from headrace.sql import UpsertSink
from headrace.testing import FakeKafka
from headrace.testing.memory import MemoryLog, MemoryReader, MemorySource
from tests.helpers.forked import in_child
from tests.helpers.interruptions import OURS, Interruption
from tests.helpers.table_rig import JOB, driver
from tests.values.budget import explore, find
from tests.values.bugs import people as bugs

# a call that was interrupted may leave a socket to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

COUNTS: dict[str, Counter[str]] = {"reading": Counter(), "writing": Counter()}
READINGS, WRITINGS = 60, 80
"""Examples of the default budget."""
FOLDERS = tuple(f"{OURS}/{part}" for part in ("enumerator", "connectors"))
MOMENTS = st.none() | st.integers(0, 300) | st.integers(0, 3000) | st.integers(0, 12_000)
"""The bytecode at which a call is interrupted, if any."""
ERRORS = RetriableError, DataLossError
"""Of a source that does not answer."""
PARTITIONS = 2
_numbers = count()


@cache
def kafka() -> FakeKafka:
    """Of all searches."""
    return FakeKafka()


@dataclass
class Answer:
    """What a call has returned, or raised; `interrupted` if it was, on whatever way it ended."""

    value: Any = None
    error: BaseException | None = None
    interrupted: bool = False


def called(call: Callable[[], Any], moment: int | None = None) -> Answer:
    interruption = Interruption(-1 if moment is None else moment, KeyboardInterrupt, *FOLDERS)
    try:
        with interruption:
            return Answer(call(), None, interruption.happened)
    except (HeadraceError, StopIteration, KeyboardInterrupt, sa.exc.SQLAlchemyError) as error:
        return Answer(None, error, interruption.happened)


def is_picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except (TypeError, AttributeError, pickle.PicklingError):
        return False
    return True


# --- reading -----------------------------------------------------------------------------------------------------------


@dataclass
class Reader:
    """An object that reads, and what was taken of each partition. `ends`: where it ends; None if it does not."""

    batches: Any
    taken: list[int]
    ends: list[int]
    may_refuse: bool = False
    """It was interrupted: it may refuse to go on."""
    is_refused: bool = False
    is_closed: bool = False
    pending: list[int] | None = None
    """Of the checkpoint that is under way."""


class Reading(RuleBasedStateMachine):
    """Readers of one log, each from the start or from a checkpoint of another."""

    keeps_ends: ClassVar[bool]
    """Whether what continues from a checkpoint ends where the reading before was to end."""

    def __init__(self) -> None:
        super().__init__()
        self.number = next(_numbers)
        self.written = [0] * PARTITIONS
        self.readers: list[Reader] = []
        self.checkpoints: list[tuple[bytes, list[int], list[int]]] = []
        self.failure: Exception | None = None
        """What a reader raises."""
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def append(self, partition: int, values: list[int]) -> None:
        raise NotImplementedError

    def opened(self, checkpoint: bytes | None) -> Any:
        raise NotImplementedError

    def take(self, batches: Any) -> list[tuple[int, int]] | None:
        """Partition and number of each record; None if there was nothing. Raises StopIteration at the end."""
        raise NotImplementedError

    @rule(partition=st.integers(0, PARTITIONS - 1), records=st.integers(1, 12))
    def write(self, partition: int, records: int) -> None:
        first = self.written[partition]
        self.written[partition] += records
        self.append(partition, list(range(first, first + records)))

    @rule(at=st.integers(0, 9))
    def open(self, at: int) -> None:
        fresh = (None, [0] * PARTITIONS, self.written)
        state, taken, ends = self.checkpoints[-1 - at % len(self.checkpoints)] if self.checkpoints and at else fresh
        self.readers.append(Reader(self.opened(state), list(taken), list(ends if self.keeps_ends else self.written)))
        COUNTS["reading"]["readers"] += 1

    def reader(self, at: int) -> Reader:
        return self.readers[-1 - at % len(self.readers)]

    @precondition(lambda self: self.readers)
    @rule(at=st.integers(0, 2), moment=MOMENTS | st.sampled_from(ERRORS))
    def next_one(self, at: int, moment: int | type[HeadraceError] | None) -> None:
        if isinstance(moment, type):
            with self.fails(moment):
                self.next(at, None)
        else:
            self.next(at, moment)

    def fails(self, error: type[HeadraceError]) -> AbstractContextManager[Any]:
        """Meanwhile the source raises this `failure`, if it can."""
        return nullcontext()

    def next(self, at: int, moment: int | None) -> None:
        reader = self.reader(at)
        answer = called(lambda: self.take(reader.batches), moment)
        reader.may_refuse |= answer.interrupted
        match answer.error:
            case None:
                assert not reader.is_refused
                self.check(reader, answer.value or [])
            case StopIteration():
                assert reader.is_closed or (reader.taken == reader.ends and not reader.is_refused), "records are lost"
            case StateError():
                self.check_refused(reader, answer)
            case error:
                assert isinstance(error, KeyboardInterrupt) or error is self.failure, error
        COUNTS["reading"]["interrupted" if answer.interrupted else "calls"] += 1

    def check(self, reader: Reader, records: list[tuple[int, int]]) -> None:
        assert not (records and reader.is_closed), "records of a reader that is closed"
        for partition, number in records:
            assert number == reader.taken[partition] < reader.ends[partition]
            reader.taken[partition] += 1
        COUNTS["reading"]["records"] += len(records)

    def check_refused(self, reader: Reader, answer: Answer) -> None:
        assert reader.may_refuse, answer.error
        assert "continue with a new one" in str(answer.error)
        reader.is_refused = True

    @precondition(lambda self: self.readers)
    @rule(at=st.integers(0, 2), moment=MOMENTS)
    def checkpoint(self, at: int, moment: int | None) -> None:
        reader = self.reader(at)
        answer = called(reader.batches.checkpoint, moment)
        reader.may_refuse |= answer.interrupted
        if answer.error is None:
            assert not reader.is_refused
            self.checkpoints.append((answer.value, list(reader.taken), reader.ends))
            reader.pending = list(reader.taken)
        elif "no checkpoint is available" in str(answer.error):
            assert reader.pending or reader.may_refuse
        elif isinstance(answer.error, StateError):
            self.check_refused(reader, answer)

    @precondition(lambda self: any(reader.pending for reader in self.readers))
    @rule(moment=MOMENTS)
    def completed(self, moment: int | None) -> None:
        reader = next(reader for reader in self.readers if reader.pending)
        answer = called(reader.batches.checkpoint_completed, moment)
        reader.may_refuse |= answer.interrupted
        if answer.error is None:
            self.published(reader.pending or [])
        else:
            assert reader.may_refuse, answer.error
        reader.pending = None

    def published(self, taken: list[int]) -> None:
        """A checkpoint of these is durable."""

    @precondition(lambda self: self.readers)
    @rule(at=st.integers(0, 2), moment=MOMENTS)
    def close(self, at: int, moment: int | None) -> None:
        reader = self.reader(at)
        answer = called(reader.batches.close, moment)
        reader.may_refuse |= answer.interrupted
        assert answer.error is None or answer.interrupted
        if not answer.interrupted:
            reader.is_closed = True
        else:  # it may be closed, or not
            reader.batches.close()
            reader.is_closed = True

    @precondition(lambda self: self.readers)
    @rule(at=st.integers(0, 2), moments=st.lists(MOMENTS, min_size=1, max_size=6))
    def next_ones(self, at: int, moments: list[int | None]) -> None:
        for moment in moments:
            self.next(at, moment)

    @precondition(lambda self: self.readers)
    @rule(at=st.integers(0, 2), chance=st.integers(0, 3))
    def fork(self, at: int, chance: int) -> None:
        reader = self.reader(at)
        if chance:  # it takes longer than all else
            return
        said = in_child(lambda: self.take(reader.batches))
        if said != "None" and not said.startswith("error"):
            records = eval(said)
            self.check(Reader(None, list(reader.taken), reader.ends), records)
        COUNTS["reading"]["forks"] += 1

    @precondition(lambda self: self.readers)
    @rule(at=st.integers(0, 2))
    def pickled(self, at: int) -> None:
        """An object with connections is not."""
        assert not is_picklable(self.reader(at).batches)

    def teardown(self) -> None:
        if self.checkpoints:
            self.open(len(self.checkpoints))  # the last one
        for reader in self.readers:
            if not (reader.is_closed or reader.is_refused):
                self.finish(reader)
            reader.batches.close()

    def finish(self, reader: Reader) -> None:
        """Whatever was done to it, it gives the rest, or refuses."""
        for _ in range(100 + 2 * sum(reader.ends)):
            answer = called(lambda: self.take(reader.batches))
            if answer.error is not None:
                break
            self.check(reader, answer.value or [])
        if isinstance(answer.error, StateError):
            self.check_refused(reader, answer)
        else:
            assert isinstance(answer.error, StopIteration)
            assert reader.taken == reader.ends, "records are lost"


class OfKafka(Reading):
    """`KafkaSource.batches`, of a group."""

    keeps_ends = False

    def begin(self) -> None:
        self.topic = f"t{self.number}"
        kafka().create_topic(self.topic, PARTITIONS)
        self.source = KafkaSource(kafka().bootstrap, topics=[self.topic], stop=Latest(), group=f"g{self.number}")
        assert pickle.loads(pickle.dumps(self.source)) == self.source

    def append(self, partition: int, values: list[int]) -> None:
        kafka().append(self.topic, *(b"%d" % value for value in values), partition=partition)

    def opened(self, checkpoint: bytes | None) -> Any:
        return self.source.batches(checkpoint)

    def take(self, batches: Any) -> list[tuple[int, int]] | None:
        batch = next(batches)
        return list(zip(batch["partition"].to_pylist(), map(int, batch["value"].to_pylist()), strict=True))

    def published(self, taken: list[int]) -> None:
        committed = kafka().committed(f"g{self.number}")
        assert [committed.get((self.topic, partition), 0) for partition in range(PARTITIONS)] == taken


class OfRun(Reading):
    """`EmbeddedRun` over a log in memory, with two readers."""

    keeps_ends = True
    assignment: ClassVar[Any] = EagerEnumerator

    def begin(self) -> None:
        self.log = MemoryLog()
        for partition in range(PARTITIONS):
            self.log.create(str(partition))
        self.source = MemorySource(self.log, bounded=True)

    def append(self, partition: int, values: list[int]) -> None:
        self.log.append(str(partition), map(str, values))

    def opened(self, checkpoint: bytes | None) -> Any:
        return EmbeddedRun(self.source, clock=lambda: 0.0, checkpoint=checkpoint, parallelism=2, assignment=self.assignment)

    def fails(self, error: type[HeadraceError]) -> AbstractContextManager[Any]:
        """Once, of a reader that has taken the split from those that it will look at."""
        self.failure, real, left = error("planned"), MemoryReader._read, [True]

        def failing(reader: MemoryReader, split: Any) -> Any:
            if left:
                left.clear()
                raise self.failure
            return real(reader, split)

        return patch.object(MemoryReader, "_read", failing)

    def take(self, batches: Any) -> list[tuple[int, int]] | None:
        if batches.finished:
            raise StopIteration
        before = batches.handed
        try:
            batch = batches.poll(0.0)
        except KeyboardInterrupt:  # which may have come while the batch was returned
            batches.take_back(before)
            raise
        if batch is None:
            return None
        rows = batch.records
        return [
            (int(split), int(value)) for split, value in zip(rows["split"].to_pylist(), rows["value"].to_pylist(), strict=True)
        ]


class OfLazyRun(OfRun):
    """The same, with splits given one by one."""

    assignment = LazyEnumerator


# --- writing -----------------------------------------------------------------------------------------------------------


@dataclass
class Target:
    """A sink, rows of numbers for it, rows that it refuses, and the numbers that are visible there."""

    sink: Any
    rows: Callable[[list[int]], pa.RecordBatch]
    refused: Callable[[list[int]], pa.RecordBatch]
    visible: Callable[[], list[int]]


def numbered(numbers: list[int | None]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(numbers, pa.int64())})


def with_another_column(numbers: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(map(str, numbers)), "other": pa.array(numbers)})


def files(folder: str) -> Target:
    sink = FileSink(folder)
    return Target(
        sink,
        numbered,
        with_another_column,
        lambda: ds.dataset(folder).to_table().column("id").to_pylist() if glob(f"{folder}/*.parquet") else [],
    )


def delta(folder: str) -> Target:
    sink = DeltaSink(f"{folder}/t")
    sink.create_table(numbered([]).schema)
    return Target(
        sink, numbered, with_another_column, lambda: DeltaTable(f"{folder}/t").to_pyarrow_table().column("id").to_pylist()
    )


def database(folder: str) -> Target:
    """One that is not asked whether rows fit before a part of them was written."""
    url = f"sqlite:///{folder}/t.db"
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)

    def asked(text: str) -> list[int]:
        with engine.connect() as connection:
            found = connection.exec_driver_sql(text)
            return [row[0] for row in found] if found.returns_rows else []

    asked("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    sink = UpsertSink(url, "t", ("id",))
    return Target(sink, numbered, lambda numbers: numbered([*numbers, *numbers, None]), lambda: asked("SELECT id FROM t"))


def topics(_: str) -> Target:
    name = f"w{next(_numbers)}"
    kafka().create_topic(name, PARTITIONS)

    def rows(numbers: list[int], *others: str) -> pa.RecordBatch:
        values = [b"%d" % number for number in numbers]
        return pa.record_batch({"topic": [name] * len(values) + list(others), "value": values + [b"" for _ in others]})

    sink = KafkaSink(kafka().bootstrap, properties={"default.api.timeout.ms": "2000"}, transactional_id_prefix=name)
    return Target(
        sink,
        rows,
        lambda numbers: rows(numbers, "no such topic"),
        lambda: [int(row.value or b"") for row in kafka().records(name)],
    )


class Writing(RuleBasedStateMachine):
    """Transactions of one sink, one after the other, and their commits."""

    targets: ClassVar[tuple[Callable[[str], Target], ...]] = (files, delta, database, topics)

    @initialize(at=st.integers(0, 3))
    def begin_job(self, at: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="headrace-values-")
        self.target = self.targets[at % len(self.targets)](self.folder.name)
        assert pickle.loads(pickle.dumps(self.target.sink)) == self.target.sink
        self.numbers, self.epoch = count(), 0
        self.certain: list[int] = []
        """Numbers that are to be visible."""
        self.whole: list[list[int]] = []
        """All of each, or none."""
        self.transaction: Any = None

    def fresh(self, most: int) -> list[int]:
        return [next(self.numbers) for _ in range(most)]

    @precondition(lambda self: self.transaction is None)
    @rule(moment=MOMENTS)
    def begin(self, moment: int | None) -> None:
        attempt = Attempt(JOB, self.epoch, 0, self.epoch)
        answer = called(lambda: self.target.sink.begin(attempt), moment)
        assert answer.interrupted or answer.error is None, answer.error
        self.transaction, self.handles = answer.value, []
        self.written: list[int] = []
        self.unsure: list[list[int]] = []
        self.may_refuse = self.is_ended = self.has_given = self.may_commit = False
        COUNTS["writing"]["transactions"] += answer.value is not None

    has_begun = precondition(lambda self: self.transaction is not None)

    @has_begun
    @rule(rows=st.integers(0, 5), moments=st.lists(MOMENTS, min_size=1, max_size=4))
    def write_some(self, rows: int, moments: list[int | None]) -> None:
        for moment in moments:
            self.write(rows, moment)

    def write(self, rows: int, moment: int | None) -> None:
        numbers = self.fresh(rows)
        batch = self.target.rows(numbers)
        answer = called(lambda: self.transaction.write(batch), moment)
        if answer.error is None:
            assert not (self.is_ended and rows), "rows are taken by what has ended"
            self.written += numbers
        else:
            assert self.may_refuse or self.is_ended or answer.interrupted, answer.error
            self.may_refuse |= answer.interrupted
            self.unsure.append(numbers)
        COUNTS["writing"]["interrupted" if answer.interrupted else "calls"] += 1

    @has_begun
    @rule()
    def write_what_is_refused(self) -> None:
        answer = called(lambda: self.transaction.write(self.target.refused(self.fresh(2))))
        if self.written or self.target.refused is not with_another_column:
            assert answer.error is not None
        else:  # to files it is the first batch that decides of which columns all are
            self.is_ended |= answer.error is None
            called(self.transaction.abort)
        self.may_refuse = True

    @has_begun
    @rule(moment=MOMENTS)
    def prepare(self, moment: int | None) -> None:
        answer = called(self.transaction.prepare, moment)
        if answer.error is None and answer.value is None and not self.written:  # there was nothing to prepare
            self.may_refuse = True
            return
        if answer.error is None:
            assert not (self.is_ended and self.written), "there is no error, and rows are not written"
            assert not self.has_given or answer.value is None
            self.handles += [] if answer.value is None else [answer.value]
            self.has_given = True
        else:
            assert self.may_refuse or self.is_ended or answer.interrupted, answer.error
            if answer.interrupted and not self.has_given:  # a database may have committed, or not
                self.unsure.append(self.written)
                self.written = []
        self.is_ended |= not answer.interrupted
        self.may_refuse |= answer.interrupted
        self.may_commit = True

    @has_begun
    @rule(moment=MOMENTS, leaves=st.booleans())
    def abort(self, moment: int | None, leaves: bool) -> None:
        end = (lambda: self.transaction.__exit__(None, None, None)) if leaves else self.transaction.abort
        answer = called(end, moment)
        assert answer.interrupted or answer.error is None
        if answer.interrupted:
            self.transaction.abort()
        self.is_ended = self.may_commit = True

    @has_begun
    @rule(aborts=st.booleans())
    def fork(self, aborts: bool) -> None:
        """A child that ends what it has of its parent's, as with what `multiprocessing` forks in a `with` block."""
        batch = self.target.rows(self.fresh(2))
        said = in_child(self.transaction.abort if aborts else lambda: self.transaction.write(batch))
        assert said == "None" if aborts else said.startswith("error")
        COUNTS["writing"]["forks"] += 1

    @precondition(lambda self: self.transaction is not None and self.written and not self.is_ended)
    @rule()
    def pickled(self) -> None:
        assert not is_picklable(self.transaction)

    @precondition(lambda self: self.transaction is not None and self.may_commit)
    @rule(moment=MOMENTS)
    def commit(self, moment: int | None) -> None:
        if not self.is_ended:
            self.transaction.abort()
        answer = called(lambda: driver(self.target.sink).commit(self.epoch, tuple(self.handles)), moment)
        if answer.error is None:
            self.certain += self.written if self.has_given else []
        else:
            assert self.may_refuse or answer.interrupted, answer.error
            called(lambda: driver(self.target.sink))
            self.whole.append(self.written)
        self.whole += self.unsure
        self.transaction, self.epoch = None, self.epoch + 1
        self.check()

    def check(self) -> None:
        found = self.target.visible()
        COUNTS["writing"]["read-backs"] += 1
        assert len(found) == len(set(found)), "rows are there twice"
        assert set(self.certain) <= set(found), "rows are lost"
        assert all(number in self.certain or any(number in each for each in self.whole) for number in found), "rows too many"
        for each in self.whole:
            assert set(each) <= set(found) or not set(each) & set(found) - set(self.certain), "a part of a batch is there"

    def teardown(self) -> None:
        if self.transaction is not None:
            self.transaction.abort()
            self.whole += [*self.unsure, self.written]  # a database has committed what it prepared
        self.check()
        self.folder.cleanup()


# --- the searches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [OfKafka, OfRun, Writing])
def test_a_short_run_of_people(machine):
    find(machine, 6)


@pytest.mark.parametrize("machine", [OfKafka, OfRun, OfLazyRun])
def test_whoever_reads_gets_right_records_or_an_error(machine):
    explore(lambda: machine, READINGS, f"people: {machine.__name__}", COUNTS["reading"])


def test_whoever_writes_gets_right_rows_or_an_error():
    explore(lambda: Writing, WRITINGS, "people: writing", COUNTS["writing"])


@pytest.mark.parametrize(
    ("machine", "bug"), [(OfRun, bug) for bug in bugs.OF_READERS] + [(Writing, bug) for bug in bugs.OF_WRITERS]
)
def test_a_bug_of_what_people_use_is_found(machine, bug):
    with bug(), pytest.raises(AssertionError):
        find(machine, 4 * READINGS)
