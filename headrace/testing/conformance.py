"""The conformance kit: what every connector must pass, on every runner. The cases of Flink's SourceTestSuiteBase, and more.

A connector is put in by a subclass with a factory, in a file that pytest collects:

    class TestKafkaConformance(SourceConformance):
        def create_external_context(self) -> ExternalContext:
            return KafkaContext(bootstrap)

        poll_timeout_s = 0.5   # a real system needs time to answer; the kit itself never sleeps
        quiet_polls = 4        # that many polls without records mean that none will come

A runner is put in by overriding `create_run`. What the context makes must be its own, so that cases do not meet each other
(for Kafka: a topic with a random name, a partition per split).
"""

from __future__ import annotations

import json
import pickle
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from typing import Any

import pyarrow as pa
import pytest

from headrace.enumerator import (
    Boundedness,
    DiscoveryResult,
    EagerEnumerator,
    EmbeddedRun,
    IncrementalDiscovery,
    Source,
    SourceReader,
    SplitBatch,
    SplitDiscovery,
    SplitEnumerator,
    SplitSerializer,
)
from headrace.enumerator.errors import DataLossError
from headrace.enumerator.ledger import Assigned
from headrace.enumerator.source import JsonObject, Stage, StagedDiscovery

DISCOVERY_INTERVAL_S = 10.0
PER_SPLIT = 7
"""Records written to a split at a time: more than one batch, and no multiple of the usual batch sizes."""


class ExternalContext(ABC):
    """The external system of one case: empty at first, closed at the end."""

    splits_grow = True
    """False where a split has an end, and what `write` adds to one makes another: in order is then what one `write` adds."""

    @abstractmethod
    def create_source(self, boundedness: Boundedness) -> Source[Any]:
        """A source that reads all of it: fresh from the first record; bounded up to what is there when it first discovers."""

    @abstractmethod
    def create_split(self) -> str:
        """Make a new, empty split there and return its split id."""

    @abstractmethod
    def write(self, split_id: str, values: Sequence[str]) -> None:
        """Append one record for each value, in this order; readable when this returns."""

    @abstractmethod
    def values(self, batch: pa.RecordBatch) -> list[str]:
        """The values of the records in a batch, in order."""

    @abstractmethod
    def golden_splits(self) -> Sequence[tuple[int, str, Any]]:
        """At least one (version, JSON text it wrote, the split) for every version of the split serializer. Literals."""

    def remove_split(self, split_id: str) -> None:
        """Let discovery see the split no longer. Need not be implemented where splits cannot vanish."""
        pytest.skip("splits cannot be removed here")

    def close(self) -> None:  # noqa: B027 - optional to implement
        """Remove what was made."""


class Run(ABC):
    """One run of a source on some runner, with an output that is transactional per checkpoint."""

    @abstractmethod
    def step(self, timeout_s: float) -> bool:
        """Let the runner work for up to about this long; True when records were delivered."""

    @abstractmethod
    def delivered(self) -> list[pa.RecordBatch]:
        """What was delivered in this run, in order, without what was rolled back since."""

    @abstractmethod
    def checkpoint(self) -> bytes:
        """Take a checkpoint of what was delivered, and make it durable with the output. The bytes restore a run."""

    @abstractmethod
    def lose_reader(self) -> None:
        """Kill one reader and start it again: what it delivered since the last checkpoint is rolled back."""

    @abstractmethod
    def look_for_splits(self) -> None:
        """Let the periodic discovery happen at the next step."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True when the source has ended by itself."""

    @abstractmethod
    def close(self) -> None:
        """Stop without a checkpoint: a crash. May be called more than once."""


class _EmbeddedKitRun(Run):
    """The kit's default runner."""

    def __init__(
        self, source: Source[Any], checkpoint: bytes | None, parallelism: int, assignment: type[SplitEnumerator[Any]]
    ) -> None:
        self._now_s = 0.0
        self._run: EmbeddedRun[Any] = EmbeddedRun(
            source,
            clock=lambda: self._now_s,
            checkpoint=checkpoint,
            parallelism=parallelism,
            assignment=assignment,
            discovery_interval_s=DISCOVERY_INTERVAL_S,
        )
        self._output: list[tuple[int | None, pa.RecordBatch]] = []
        """Batches, with the reader that may still take them back."""

    def step(self, timeout_s: float) -> bool:
        batch = self._run.poll(timeout_s)
        if batch is None:
            return False
        ledger = self._run.coordinator.enumerator.ledger
        slots = range(self._run.coordinator.enumerator.parallelism)
        held = [reader for reader in slots if batch.split.split_id in ledger.held_by(reader)]
        assert len(held) == 1, f"split {batch.split} is held by the readers {held}"
        self._output.append((held[0], batch.records))
        return True

    def delivered(self) -> list[pa.RecordBatch]:
        return [batch for _, batch in self._output]

    def checkpoint(self) -> bytes:
        data = self._run.checkpoint()
        self._run.checkpoint_completed()
        self._output = [(None, batch) for _, batch in self._output]
        return data

    def lose_reader(self) -> None:
        places = [entry.place for entry in self._run.coordinator.enumerator.ledger]
        busy = next((place.reader for place in places if isinstance(place, Assigned)), 0)
        self._run.lose_reader(busy)
        self._output = [(reader, batch) for reader, batch in self._output if reader != busy]
        self._run.start_reader(busy)

    def look_for_splits(self) -> None:
        self._now_s += DISCOVERY_INTERVAL_S

    @property
    def finished(self) -> bool:
        return self._run.finished

    def close(self) -> None:
        self._run.close()


class _Observed:
    """What a source was asked for. Only for runners that use the source object itself, in this process."""

    def __init__(self) -> None:
        self.initial: Counter[int] = Counter()  # by stage
        self.missing: list[str] = []
        self.published: dict[str, Any] = {}
        self.finished: set[str] = set()


class _ObservedDiscovery(SplitDiscovery[Any]):
    _inner: SplitDiscovery[Any]

    def __init__(self, inner: SplitDiscovery[Any], observed: _Observed, stage: int = 0) -> None:
        self._inner = inner
        self._observed = observed
        self._stage = stage

    def initial(self) -> DiscoveryResult[Any]:
        self._observed.initial[self._stage] += 1
        return self._inner.initial()

    def later(self, known: Mapping[str, Any]) -> DiscoveryResult[Any]:
        return self._inner.later(known)

    def close(self) -> None:
        self._inner.close()


class _ObservedIncrementalDiscovery(_ObservedDiscovery, IncrementalDiscovery[Any]):
    _inner: IncrementalDiscovery[Any]

    def after(self, cursor: JsonObject | None, limit: int) -> DiscoveryResult[Any]:
        self._observed.initial[self._stage] += cursor is None
        return self._inner.after(cursor, limit)


class _ObservedStagedDiscovery(StagedDiscovery[Any]):
    def __init__(self, inner: StagedDiscovery[Any], observed: _Observed) -> None:
        self._inner, self._observed = inner, observed

    def at(self, stage: Stage | None) -> SplitDiscovery[Any]:
        return _observed_discovery(self._inner.at(stage), self._observed, 0 if stage is None else stage.number)

    def following(self, stage: Stage, cursor: JsonObject | None, splits: Sequence[Any]) -> Stage:
        return self._inner.following(stage, cursor, splits)

    def close(self) -> None:
        self._inner.close()


def _observed_discovery(inner: SplitDiscovery[Any], observed: _Observed, stage: int = 0) -> SplitDiscovery[Any]:
    if isinstance(inner, StagedDiscovery):
        return _ObservedStagedDiscovery(inner, observed)
    kind = _ObservedIncrementalDiscovery if isinstance(inner, IncrementalDiscovery) else _ObservedDiscovery
    return kind(inner, observed, stage)


class _ObservedSource(Source[Any]):
    def __init__(self, inner: Source[Any]) -> None:
        self._inner = inner
        self.name: str = inner.name
        self.schema: pa.Schema = inner.schema
        self.observed: _Observed = _Observed()

    @property
    def boundedness(self) -> Boundedness:
        return self._inner.boundedness

    @property
    def split_serializer(self) -> SplitSerializer[Any]:
        return self._inner.split_serializer

    @property
    def finite_splits(self) -> bool:
        return self._inner.finite_splits

    def create_discovery(self) -> SplitDiscovery[Any]:
        return _observed_discovery(self._inner.create_discovery(), self.observed)

    def create_reader(self) -> SourceReader[Any]:
        return self._inner.create_reader()

    def on_splits_missing(self, splits: Sequence[Any]) -> None:
        self.observed.missing += [split.split_id for split in splits]
        self._inner.on_splits_missing(splits)

    def checkpoint_completed(self, splits: Sequence[Any]) -> None:
        self.observed.published.update((split.split_id, split) for split in splits)
        self._inner.checkpoint_completed(splits)

    def splits_finished(self, splits: Sequence[Any]) -> None:
        self.observed.finished |= {split.split_id for split in splits}
        self._inner.splits_finished(splits)


class _Log:
    """What a case has written, and what came out of its runs so far, counted only where it is durable."""

    def __init__(self, external: ExternalContext, splits: int = 0) -> None:
        self._external = external
        self.written: dict[str, list[str]] = {}
        self._writes: list[list[str]] = []
        self.committed: list[str] = []
        for _ in range(splits):
            self.new_split()

    def new_split(self, count: int = PER_SPLIT) -> str:
        split_id = self._external.create_split()
        self.written[split_id] = []
        self.write(split_id, count)
        return split_id

    def write(self, split_id: str, count: int = PER_SPLIT) -> None:
        values = self.written[split_id]
        fresh = [f"{split_id}/{number}" for number in range(len(values), len(values) + count)]
        values += fresh
        self._writes.append(fresh)
        if fresh:
            self._external.write(split_id, fresh)

    def write_unread(self, split_id: str) -> None:
        """Records that the case must never see."""
        self._external.write(split_id, ["must not be read"])

    def look_where_writes_are_splits(self, run: Run) -> None:
        if not self._external.splits_grow:
            run.look_for_splits()

    @property
    def total(self) -> int:
        return sum(map(len, self.written.values()))

    def values_of(self, run: Run) -> list[str]:
        return [value for batch in run.delivered() for value in self._external.values(batch)]

    def commit(self, run: Run) -> bytes:
        """Take a checkpoint; what the run has delivered counts from now on."""
        data = run.checkpoint()
        self.committed += self.values_of(run)
        run.close()
        return data

    def assert_exactly_once(self, read: Sequence[str]) -> None:
        expected = [value for values in self.written.values() for value in values]
        counts, wanted = Counter(read), Counter(expected)
        assert counts == wanted, f"lost: {sorted(wanted - counts)}; duplicated or foreign: {sorted(counts - wanted)}"
        for values in self.written.values() if self._external.splits_grow else self._writes:
            in_split = set(values)
            in_order = [value for value in read if value in in_split]
            assert in_order == values, f"out of order: {in_order}"


class SourceConformance(ABC):
    """Subclass it, see the module. Each case is a method; `external` is the fixture that calls the factory."""

    assignment: type[SplitEnumerator[Any]] = EagerEnumerator
    poll_timeout_s: float = 0.0
    quiet_polls = 3
    """This many steps in a row without records mean that none will come."""
    timeout_polls = 20
    """This many steps in a row without records, while some are owed, are a failure."""
    observes_source = True
    """False for a runner that copies the source to other processes: the cases that count its calls are skipped then."""

    @abstractmethod
    def create_external_context(self) -> ExternalContext:
        """A new external system, or a part of one that no other process uses."""

    def create_run(self, source: Source[Any], *, checkpoint: bytes | None, parallelism: int) -> Run:
        """A run on the runner under test: fresh, or restored from the bytes of `Run.checkpoint`."""
        return _EmbeddedKitRun(source, checkpoint, parallelism, self.assignment)

    @pytest.fixture
    def external(self) -> Iterator[ExternalContext]:
        """The factory's product, closed after the case, like the runs that the case has left by failing."""
        context = self.create_external_context()
        yield context
        self.close_runs()
        context.close()

    @cached_property
    def _runs(self) -> ExitStack:
        return ExitStack()

    def start_run(self, source: Source[Any], *, checkpoint: bytes | None = None, parallelism: int = 1) -> Run:
        """What the cases call: `create_run`, and the run is closed at the case's end at the latest."""
        run = self.create_run(source, checkpoint=checkpoint, parallelism=parallelism)
        self._runs.callback(run.close)
        return run

    def close_runs(self) -> None:
        """Close what the case has left. Only needed where a case is called by hand."""
        self._runs.close()

    # --- steps of a case ----------------------------------------------------------------------------------------------

    def read(self, run: Run, log: _Log, count: int) -> None:
        """Until this run has delivered at least `count` records."""
        quiet = 0
        while len(log.values_of(run)) < count:
            quiet = 0 if run.step(self.poll_timeout_s) else quiet + 1
            if quiet:
                log.look_where_writes_are_splits(run)
            assert quiet < self.timeout_polls, f"{len(log.values_of(run))} of {count} records came, and no more do"

    def read_to_end(self, run: Run) -> None:
        """Until the source ends by itself."""
        quiet = 0
        while not run.finished:
            quiet = 0 if run.step(self.poll_timeout_s) else quiet + 1
            assert quiet < self.timeout_polls, "a bounded source does not end"

    def assert_quiet(self, run: Run, log: _Log) -> None:
        """Nothing more comes."""
        before = len(log.values_of(run))
        for _ in range(self.quiet_polls):
            run.step(self.poll_timeout_s)
        assert log.values_of(run)[before:] == []

    def finish(self, run: Run, log: _Log) -> None:
        """The rest is read; then everything written has come exactly once, over all runs, and nothing more does."""
        self.read(run, log, log.total - len(log.committed))
        self.assert_quiet(run, log)
        log.assert_exactly_once(log.committed + log.values_of(run))
        run.close()

    def observe(self, source: Source[Any]) -> _ObservedSource:
        """The same source, with its calls counted."""
        if not self.observes_source:
            pytest.skip("this runner copies the source")
        return _ObservedSource(source)

    # --- Flink's cases ------------------------------------------------------------------------------------------------

    def test_single_split(self, external: ExternalContext) -> None:
        """Every record of one split comes once, in order, in the schema that the source declares."""
        log = _Log(external, 1)
        source = external.create_source(Boundedness.UNBOUNDED)
        run = self.start_run(source)
        self.read(run, log, log.total)
        assert all(batch.schema.equals(source.schema) for batch in run.delivered())
        self.finish(run, log)

    def test_multiple_splits(self, external: ExternalContext) -> None:
        """Every record of several splits, over several readers."""
        log = _Log(external)
        for count in (PER_SPLIT, 1, 3 * PER_SPLIT, 0):
            log.new_split(count)
        self.finish(self.start_run(external.create_source(Boundedness.UNBOUNDED), parallelism=2), log)

    def test_savepoint(self, external: ExternalContext) -> None:
        """A run stopped in the middle continues where it stopped."""
        self._restored_at(external, 2, 2)

    def test_scale_up(self, external: ExternalContext) -> None:
        """Restored at higher parallelism."""
        self._restored_at(external, 1, 4)

    def test_scale_down(self, external: ExternalContext) -> None:
        """Restored at lower parallelism: no split stays behind (Beam #25975)."""
        self._restored_at(external, 4, 1)

    def _restored_at(self, external: ExternalContext, before: int, after: int) -> None:
        log = _Log(external, 4)
        source = external.create_source(Boundedness.UNBOUNDED)
        run = self.start_run(source, parallelism=before)
        self.read(run, log, log.total // 2)
        checkpoint = log.commit(run)
        for split_id in log.written:
            log.write(split_id)
        self.finish(self.start_run(source, checkpoint=checkpoint, parallelism=after), log)

    def test_idle_reader(self, external: ExternalContext) -> None:
        """More readers than splits: the idle ones do not keep a bounded source from ending."""
        log = _Log(external, 1)
        run = self.start_run(external.create_source(Boundedness.BOUNDED), parallelism=4)
        self.read_to_end(run)
        self.finish(run, log)

    @pytest.mark.parametrize("parallelism", [1, 2])
    def test_reader_failure(self, external: ExternalContext, parallelism: int) -> None:
        """A reader is lost after a checkpoint and some more records: they come again, and nothing else."""
        log = _Log(external, 3)
        run = self.start_run(external.create_source(Boundedness.UNBOUNDED), parallelism=parallelism)
        self.read(run, log, PER_SPLIT)
        run.checkpoint()
        for split_id in log.written:
            log.write(split_id)
        self.read(run, log, 2 * PER_SPLIT)
        run.lose_reader()
        self.finish(run, log)

    def test_reader_failure_before_any_checkpoint(self, external: ExternalContext) -> None:
        """A reader is lost before the first checkpoint: its splits start over."""
        log = _Log(external, 1)
        run = self.start_run(external.create_source(Boundedness.UNBOUNDED))
        self.read(run, log, 1)
        run.lose_reader()
        self.finish(run, log)

    def test_reader_failure_of_a_bounded_source(self, external: ExternalContext) -> None:
        """A reader is lost after it has finished its splits, with no checkpoint since: they are read again, and it ends."""
        log = _Log(external, 2)
        run = self.start_run(external.create_source(Boundedness.BOUNDED), parallelism=2)
        self.read_to_end(run)
        run.lose_reader()
        self.read_to_end(run)
        self.finish(run, log)

    # --- the end of a bounded source ----------------------------------------------------------------------------------

    def test_bounded_ends_by_itself(self, external: ExternalContext) -> None:
        """It ends, also when a split is empty, and reads nothing that was written after it had started."""
        log = _Log(external, 1)
        log.new_split(0)
        log.new_split(1)
        run = self.start_run(external.create_source(Boundedness.BOUNDED), parallelism=2)
        for split_id in log.written:
            log.write_unread(split_id)
        self.read_to_end(run)
        self.finish(run, log)

    def test_finished_source_restored(self, external: ExternalContext) -> None:
        """It ends again and reads nothing (FLINK-31006)."""
        log = _Log(external, 1)
        (split_id,) = log.written
        source = external.create_source(Boundedness.BOUNDED)
        run = self.start_run(source)
        self.read_to_end(run)
        checkpoint = log.commit(run)
        log.write_unread(split_id)
        restored = self.start_run(source, checkpoint=checkpoint, parallelism=2)
        self.read_to_end(restored)
        assert log.values_of(restored) == []
        self.finish(restored, log)

    def test_bounded_source_restored_midway(self, external: ExternalContext) -> None:
        """It reads the rest, up to the end that was fixed when it first started, and ends."""
        log = _Log(external, 3)
        source = external.create_source(Boundedness.BOUNDED)
        run = self.start_run(source, parallelism=2)
        self.read(run, log, PER_SPLIT + 1)
        checkpoint = log.commit(run)
        for split_id in log.written:
            log.write_unread(split_id)
        restored = self.start_run(source, checkpoint=checkpoint)
        self.read_to_end(restored)
        self.finish(restored, log)

    # --- restores -----------------------------------------------------------------------------------------------------

    def test_restored_never_initialises(self, external: ExternalContext) -> None:
        """The one thing no restore may do (Beam #31313, #34890)."""
        log = _Log(external, 1)
        for boundedness in Boundedness:
            source = self.observe(external.create_source(boundedness))
            run = self.start_run(source)
            self.read(run, log, 1)
            checkpoint = run.checkpoint()
            run.close()
            restored = self.start_run(source, checkpoint=checkpoint)
            self.read(restored, log, 1)
            restored.close()
            assert set(source.observed.initial.values()) == {1}

    def test_checkpoint_before_anything_was_read(self, external: ExternalContext) -> None:
        """It holds the splits at their resolved start, and what is written meanwhile is read."""
        log = _Log(external, 1)
        (split_id,) = log.written
        source = external.create_source(Boundedness.UNBOUNDED)
        checkpoint = log.commit(self.start_run(source))
        log.write(split_id)
        self.finish(self.start_run(source, checkpoint=checkpoint), log)

    def test_two_restores_of_one_checkpoint(self, external: ExternalContext) -> None:
        """Both read the same."""
        log = _Log(external, 2)
        source = external.create_source(Boundedness.UNBOUNDED)
        run = self.start_run(source)
        self.read(run, log, 3)
        checkpoint = log.commit(run)
        for _ in range(2):
            self.finish(self.start_run(source, checkpoint=checkpoint), log)

    def test_crash_goes_back_to_the_checkpoint(self, external: ExternalContext) -> None:
        """What was delivered after the checkpoint, and lost with the crash, comes again."""
        log = _Log(external)
        log.new_split(4 * PER_SPLIT)
        source = external.create_source(Boundedness.UNBOUNDED)
        run = self.start_run(source)
        self.read(run, log, 2)
        committed = log.values_of(run)
        checkpoint = run.checkpoint()
        self.read(run, log, len(committed) + 1)
        run.close()
        log.committed += committed
        self.finish(self.start_run(source, checkpoint=checkpoint), log)

    def test_restart_after_every_batch(self, external: ExternalContext) -> None:
        """Positions are next offsets: however often it is restarted, nothing is lost or read twice (I3)."""
        log = _Log(external, 2)
        source = external.create_source(Boundedness.UNBOUNDED)
        checkpoint: bytes | None = None
        while len(log.committed) < log.total:
            run = self.start_run(source, checkpoint=checkpoint)
            self.read(run, log, 1)
            checkpoint = log.commit(run)
        self.finish(self.start_run(source, checkpoint=checkpoint), log)

    # --- splits that come and go --------------------------------------------------------------------------------------

    def test_split_added_while_running(self, external: ExternalContext) -> None:
        """It is read from its first record, also of those written before it was discovered."""
        log = _Log(external, 1)
        run = self.start_run(external.create_source(Boundedness.UNBOUNDED), parallelism=2)
        self.read(run, log, log.total)
        log.new_split()
        run.look_for_splits()
        self.read(run, log, log.total)
        run.look_for_splits()
        self.finish(run, log)

    def test_split_added_while_down(self, external: ExternalContext) -> None:
        """A restored run reads it from its first record, and the others where they were (Beam #20836)."""
        log = _Log(external, 1)
        source = external.create_source(Boundedness.UNBOUNDED)
        run = self.start_run(source)
        self.read(run, log, log.total)
        checkpoint = log.commit(run)
        log.new_split()
        self.finish(self.start_run(source, checkpoint=checkpoint), log)

    def test_split_added_between_checkpoint_and_crash(self, external: ExternalContext) -> None:
        """Discovered and read, but in no checkpoint: the restored run reads it from its first record."""
        log = _Log(external, 1)
        source = external.create_source(Boundedness.UNBOUNDED)
        run = self.start_run(source)
        self.read(run, log, log.total)
        checkpoint = run.checkpoint()
        log.committed += log.values_of(run)
        log.new_split()
        run.look_for_splits()
        self.read(run, log, log.total)
        run.close()
        self.finish(self.start_run(source, checkpoint=checkpoint), log)

    def test_removed_split_is_reported(self, external: ExternalContext) -> None:
        """`on_splits_missing` is called once for it; the others are read on, unless the source stops the job over it."""
        log = _Log(external, 2)
        kept, removed = log.written
        source = self.observe(external.create_source(Boundedness.UNBOUNDED))
        run = self.start_run(source)
        self.read(run, log, log.total)
        external.remove_split(removed)
        log.write(kept)
        try:
            for _ in range(2):
                run.look_for_splits()
                self.assert_quiet_or_read(run)
            self.finish(run, log)
        except DataLossError:
            run.close()
        assert source.observed.missing == [removed]

    def assert_quiet_or_read(self, run: Run) -> None:
        """A few steps, whatever they bring."""
        for _ in range(self.quiet_polls):
            run.step(self.poll_timeout_s)

    # --- the parts of a connector -------------------------------------------------------------------------------------

    def test_positions_are_published_when_durable(self, external: ExternalContext) -> None:
        """`checkpoint_completed` hears of every split, and only after the checkpoint."""
        log = _Log(external, 2)
        source = self.observe(external.create_source(Boundedness.UNBOUNDED))
        run = self.start_run(source)
        self.read(run, log, log.total)
        assert source.observed.published == {}
        run.checkpoint()
        assert source.observed.published.keys() >= log.written.keys()
        run.close()

    def test_finished_splits_are_reported_when_that_is_durable(self, external: ExternalContext) -> None:
        """`splits_finished` hears of every split that was read to its end, after the checkpoint and not before."""
        log = _Log(external, 2)
        source = self.observe(external.create_source(Boundedness.BOUNDED))
        with closing(source.create_discovery()) as discovery:
            found = {split.split_id for split in discovery.initial().added}
        run = self.start_run(source)
        self.read_to_end(run)
        assert source.observed.finished == set()
        run.checkpoint()
        assert source.observed.finished == found
        assert len(found) == len(log.written)
        run.close()

    def test_split_serializer_round_trip(self, external: ExternalContext) -> None:
        """A split comes back from JSON text as it was: as discovered, and as read on."""
        _Log(external).new_split()
        source = external.create_source(Boundedness.UNBOUNDED)
        with closing(source.create_discovery()) as discovery, source.create_reader() as reader:
            (split,) = discovery.initial().added
            reader.add_splits([split])
            moved = next(batch.split for batch in self._polls(reader) if batch is not None)
        assert moved != split
        serializer = source.split_serializer
        for item in (split, moved):
            text = json.dumps(serializer.serialize(item))
            assert serializer.deserialize(serializer.version, json.loads(text)) == item

    def _polls(self, reader: SourceReader[Any]) -> Iterator[SplitBatch[Any] | None]:
        for _ in range(self.timeout_polls):
            yield reader.poll(self.poll_timeout_s)

    def test_golden_splits(self, external: ExternalContext) -> None:
        """What any version wrote is read the same for ever, and the current version writes the same text."""
        serializer = external.create_source(Boundedness.UNBOUNDED).split_serializer
        golden = external.golden_splits()
        assert {version for version, _, _ in golden} == set(range(1, serializer.version + 1))
        for version, text, split in golden:
            assert serializer.deserialize(version, json.loads(text)) == split
            if version == serializer.version:
                assert serializer.serialize(split) == json.loads(text)

    def test_damaged_splits_are_refused(self, external: ExternalContext) -> None:
        """A damaged split raises KeyError, TypeError or ValueError, so that a damaged checkpoint is refused as such."""
        serializer = external.create_source(Boundedness.UNBOUNDED).split_serializer
        with pytest.raises((KeyError, TypeError, ValueError)):
            serializer.deserialize(serializer.version, {})
        for _, text, _ in external.golden_splits():
            with pytest.raises((KeyError, TypeError, ValueError)):
                serializer.deserialize(serializer.version + 1, json.loads(text))

    def test_source_is_picklable(self, external: ExternalContext) -> None:
        """A copy reads the same."""
        log = _Log(external, 1)
        source: Source[Any] = pickle.loads(pickle.dumps(external.create_source(Boundedness.UNBOUNDED)))  # noqa: S301
        self.finish(self.start_run(source), log)

    def test_constructor_contacts_no_process(self, external: ExternalContext, monkeypatch: pytest.MonkeyPatch) -> None:
        """A source is made, pickled and unpickled where the network is out of reach."""

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("the source opens a connection before it is used")

        for name in ("connect", "connect_ex"):
            monkeypatch.setattr(socket.socket, name, refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        for boundedness in Boundedness:
            source = external.create_source(boundedness)
            assert pickle.loads(pickle.dumps(source)).boundedness is boundedness  # noqa: S301

    def test_close_is_idempotent(self, external: ExternalContext) -> None:
        """A reader can be closed twice, with and without splits."""
        _Log(external).new_split()
        source = external.create_source(Boundedness.UNBOUNDED)
        with closing(source.create_discovery()) as discovery:
            splits = discovery.initial().added
        for given in ([], splits):
            reader = source.create_reader()
            reader.add_splits(given)
            reader.close()
            reader.close()
