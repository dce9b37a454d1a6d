"""Transforms that write Arrow batches to any two-phase-commit sink: at least once on every runner, exactly once on Flink.

`WriteImmediately`: a bundle's rows are acknowledged before the bundle ends.

`WriteExactlyOnce`: rows go to shards, those of one key to the same (`capabilities.RowSharding`): transactions in parallel
have no order. A shard's transactions are prepared while its state is at hand, so that the handles become part of the state
there and then; `headrace.runners.beam.shard` says when they are committed. Every shard is called every second, with rows or
without, by a splittable DoFn that is part of the checkpoint, too: so a restored shard is looked after, though no row may ever
come to it again. A sink that commits by list has one committer in place of shards: `headrace.runners.beam.table_epochs`.
"""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, assert_never
from weakref import WeakKeyDictionary, finalize

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.coders import BytesCoder
from apache_beam.coders.typecoders import registry
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from headrace.connectors.base.arguments import at_least_one
from headrace.connectors.base.capabilities import SingleCommit, WriterCommit, shards_of, transaction_timeout_s
from headrace.connectors.base.commit import CleanedUp, CleanUp, Copied, Copy, End, Ended
from headrace.connectors.base.immediate import ImmediateSink
from headrace.connectors.base.sink import Attempt, CommitList, Committer, HandleT, Transaction, TwoPhaseSink
from headrace.enumerator.errors import UsageError
from headrace.runners.beam import capabilities
from headrace.runners.beam import shard as core
from headrace.runners.beam.coders import FixedCoder, RecordBatchCoder
from headrace.runners.beam.flink_options import Options, Promise, refuse_timeout
from headrace.runners.beam.resume_delay import pause
from headrace.runners.beam.table_committer import HEARTBEAT, EpochWriter, TableWriter

DEFAULT_SHARDS = 4
HEARTBEAT_S = 1.0
"""How often every shard is called, in seconds: the most that a commit comes later than it could."""

PACK_BYTES = 4 << 20
"""Batches are put together up to this size, in bytes, or to their bundle's end: each pack becomes one transaction."""

_FOR_EVER = 1 << 62
_CALLS_BITS = 40
"""Of a heartbeat's position. They count the calls; what is above them is the greatest number of shards that was called."""

_CODER = RecordBatchCoder()


@dataclass(frozen=True, slots=True)
class Shards:
    """How many there are. A type with its own coder, as `headrace.runners.beam.coders.Element` is, and for its reason."""

    count: int


class ShardsCoder(FixedCoder):
    """As decimal text."""

    def encode(self, value: Shards) -> bytes:
        return str(value.count).encode()

    def decode(self, encoded: bytes) -> Shards:
        return Shards(int(encoded))


registry.register_coder(Shards, ShardsCoder)


class WriteImmediately(beam.PTransform[Any, Any]):
    """Writes batches to an `ImmediateSink`, at least once: a bundle that fails is written again. Runs on every runner."""

    def __init__(self, sink: ImmediateSink) -> None:
        super().__init__()
        self._sink = sink

    def expand(self, pcoll: Any) -> Any:
        """Called by Beam."""
        _ = pcoll | "Write" >> beam.ParDo(_ImmediateWriter(self._sink))
        return beam.pvalue.PDone(pcoll.pipeline)


class _ImmediateWriter(beam.DoFn):
    def __init__(self, sink: ImmediateSink) -> None:
        self._sink = sink
        self._transaction: Transaction[Any] | None = None

    def process(self, element: pa.RecordBatch) -> None:
        if self._transaction is None:
            self._transaction = self._sink.begin(Attempt("beam", 0, 0, secrets.randbits(62)))
        self._transaction.write(element)

    def finish_bundle(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.prepare()

    def teardown(self) -> None:
        """Also of an instance whose bundle has failed."""
        if self._transaction is not None:
            self._transaction.abort()


class WriteExactlyOnce(beam.PTransform[Any, Any]):
    """Writes batches to a `TwoPhaseSink`; its readers see each row once, two to three checkpoints after it was read.

    A table gets one commit for all that a checkpoint has made durable (`headrace.runners.beam.table_committer`).

    Needs Flink's runner with checkpoints: raises UsageError for another runner, for options without them, and for a sink whose
    transactions time out within two of them. The job continues
    until it is stopped, whatever its input is. A savepoint continues in one job at a time.
    """

    def __init__(self, sink: TwoPhaseSink[Any], shards: int | None = None) -> None:
        """`shards`: how many transactions are written in parallel, 4 by default; a table has none.

        Raises UsageError for a number below 1, for one given with a table, and for a table that is written by changes of keys.
        """
        super().__init__()
        if not isinstance(sink, TwoPhaseSink):
            raise UsageError(f"WriteExactlyOnce writes to a TwoPhaseSink, not to {type(sink).__name__}")
        if shards is not None:
            at_least_one("shards", shards)
        if isinstance(sink, SingleCommit) and sink.refuses_epochs_by_their_rows:
            raise UsageError(
                f"{type(sink).__name__} with changes by key may refuse an epoch as it is merged, and under Beam a checkpoint "
                "has that epoch by then, whose rows are not read again: from Beam rows can only be added. Write changes by key "
                "from Spark or by headrace run"
            )
        if isinstance(sink, SingleCommit) and shards is not None:
            raise UsageError(f"{type(sink).__name__} is written where its rows are, and has no shards: leave their number out")
        self._sink = sink
        self._shards = DEFAULT_SHARDS if shards is None else shards

    def expand(self, pcoll: Any) -> Any:
        """Called by Beam, for each use of the transform: the names of each use's transactions are its alone."""
        run = uuid.uuid4().hex
        promise = Promise.WRITE_TABLE if isinstance(self._sink, SingleCommit) else Promise.WRITE
        _check_runner(pcoll.pipeline, promise, transaction_timeout_s(self._sink))
        rows = pcoll | "InGlobalWindow" >> beam.WindowInto(GlobalWindows())
        if isinstance(self._sink, SingleCommit):
            files = rows | "WriteFiles" >> beam.ParDo(TableWriter(self._sink, run)).with_output_types(tuple[int, bytes])
            heartbeats = _heartbeats(pcoll.pipeline, 1)
            _ = (files, heartbeats) | beam.Flatten() | "Commit" >> beam.ParDo(EpochWriter(self._sink, run))
        else:
            packs = rows | "Pack" >> beam.ParDo(_Pack(self._sink, self._shards)).with_output_types(tuple[int, bytes])
            heartbeats = _heartbeats(pcoll.pipeline, self._shards)
            _ = (packs, heartbeats) | beam.Flatten() | "Write" >> beam.ParDo(_ShardWriter(self._sink, run))
        return beam.pvalue.PDone(pcoll.pipeline)


def _heartbeats(pipeline: Any, shards: int) -> Any:
    return (
        pipeline
        | "Impulse" >> beam.Impulse()
        | "Shards" >> beam.Map(lambda _: Shards(shards)).with_output_types(Shards)
        | "Heartbeat" >> beam.ParDo(_Heartbeats(shards)).with_output_types(tuple[int, bytes])
    )


def _check_runner(pipeline: Any, promise: Promise, timeout_s: float) -> None:
    check_options = capabilities.of_runner(pipeline).check_options
    if check_options is None:
        name = capabilities.name_of(pipeline)
        raise UsageError(
            f"delivery='exactly-once' needs Flink's checkpoints, and {name} takes none that a sink can follow: "
            "run on Flink (headrace beam starts one), or take delivery='at-least-once'"
        )
    options = Options(pipeline.options.get_all_options(retain_unknown_options=True), unbounded=True)
    check_options(promise, options)
    refuse_timeout(timeout_s, options)


class _Waiting:
    """What a bundle has for one shard. It is made to be added to at once: `fits` and `pack` need a batch."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.bytes = 0

    def fits(self, rows: pa.RecordBatch) -> bool:
        return bool(self.batches[0].schema.equals(rows.schema))

    def add(self, rows: pa.RecordBatch) -> None:
        self.batches.append(rows)
        self.bytes += rows.nbytes

    def pack(self) -> bytes:
        (batch,) = pa.Table.from_batches(self.batches).combine_chunks().to_batches()
        return _CODER.encode(batch)


class _Pack(beam.DoFn):
    """Fewer and greater batches, each for the shard that keeps its rows in order, or for the next one where any will do."""

    def __init__(self, sink: TwoPhaseSink[Any], shards: int) -> None:
        self._sink = sink
        self._shards = shards
        self._turn = secrets.randbelow(shards)
        self._waiting: dict[int, _Waiting] = {}

    def start_bundle(self) -> None:
        self._waiting = {}
        self._turn = (self._turn + 1) % self._shards

    def process(self, element: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
        shards = shards_of(self._sink, element, self._shards).fill_null(self._turn)
        wanted = shards.unique().to_pylist()
        for shard in wanted:
            rows = element if len(wanted) == 1 else element.filter(pc.equal(shards, shard))
            waiting = self._waiting.get(shard)
            if waiting is not None and not waiting.fits(rows):
                yield shard, self._waiting.pop(shard).pack()
            waiting = self._waiting.setdefault(shard, _Waiting())
            waiting.add(rows)
            if waiting.bytes >= PACK_BYTES:
                yield shard, self._waiting.pop(shard).pack()
                self._turn = (self._turn + 1) % self._shards

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for shard, waiting in self._waiting.items():
            yield GlobalWindows.windowed_value_at_end_of_window((shard, waiting.pack()))
        self._waiting = {}


class _Heartbeats(beam.DoFn, RestrictionProvider):
    """Calls every shard every second, for ever. Its element is the number of shards when the job was first started.

    Shards of any earlier time are called after a restore with fewer of them, too: they may have something to commit. The
    element stays what it was, so the restriction has the greatest number since.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards

    def initial_restriction(self, element: Shards) -> OffsetRange:
        return OffsetRange(0, _FOR_EVER)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Shards, restriction: OffsetRange) -> int:
        return 1

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Shards,
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - Beam's way to ask for it
    ) -> Iterator[tuple[int, bytes]]:
        position = max(tracker.current_restriction().start, self._shards << _CALLS_BITS)
        if not tracker.try_claim(position):
            return
        for shard in range(max(element.count, position >> _CALLS_BITS)):
            yield shard, HEARTBEAT
        tracker.defer_remainder(pause(HEARTBEAT_S))


class _ShardWriter(beam.DoFn):
    """A call for a shard: with rows, or a heartbeat."""

    PREPARED = ReadModifyWriteStateSpec("prepared", BytesCoder())

    def __init__(self, sink: TwoPhaseSink[Any], run: str) -> None:
        self._sink = sink
        self._run = run
        self._serializer = core.ShardStateSerializer(sink.handles)

    def process(
        self,
        element: tuple[int, bytes],
        bundle_finalizer: Any = beam.DoFn.BundleFinalizerParam,
        prepared: Any = beam.DoFn.StateParam(PREPARED),  # noqa: B008 - Beam's way to ask for it
    ) -> None:
        number, rows = element
        stored = prepared.read()
        before: core.ShardState[Any] = core.ShardState(self._run)
        if stored is not None:
            before = self._serializer.deserialize(stored, f"shard {number}")
        job = f"{before.run}-{number}"
        call = _shard(job).call(before, time.monotonic(), has_rows=rows != HEARTBEAT)
        returned = _Performer(self._sink, job, rows, _PROCESS).perform(call)
        if returned.state != before or stored is None:
            prepared.write(self._serializer.serialize(returned.state))
        if returned.awaits_finalisation:
            bundle_finalizer.register(partial(_tell, call, core.BundleFinalised()))


class _Performer(Generic[HandleT]):
    """Carries out the commands of one call for a shard."""

    def __init__(self, sink: TwoPhaseSink[HandleT], job: str, rows: bytes, process: int) -> None:
        self._sink = sink
        self._job = job
        self._rows = rows
        self._process = process
        self._committer: Committer[HandleT] | None = None

    def perform(self, call: core.ShardCall[HandleT]) -> core.Return[HandleT]:
        """The whole call. Raises what the sink raises; the call has failed then."""
        commands = deque(_tell(call, core.CallStarted()))
        try:
            while not isinstance(command := commands.popleft(), core.Return):
                commands.extend(_tell(call, self._do(command, call)))
        except BaseException:
            _tell(call, core.CallFailed())
            self._close()
            raise
        if call.lifetime not in _fenced:
            self._close()
        return command

    def _close(self) -> None:
        if self._committer is not None:
            self._committer.close()

    def _do(
        self, command: CleanUp[HandleT] | End[HandleT] | Copy[HandleT] | core.Write, call: core.ShardCall[HandleT]
    ) -> core.ShardEvent[HandleT]:
        match command:
            case CleanUp(keep):
                committer = self._ending(call.lifetime)
                if call.lifetime in _fenced:  # what is kept of earlier transactions is of no use, and an older state comes late
                    committer.record(CommitList(call.lifetime.first(), (), completed=True))
                committer.clean_up(keep)
                return CleanedUp()
            case End(handle):
                return Ended(handle, self._ending(call.lifetime).end(handle))
            case Copy(handles):
                return Copied((self._ending(call.lifetime).copy(handles),))
            case core.Write(slot):
                epoch = call.next if isinstance(self._sink, WriterCommit) else 0
                with self._sink.begin(Attempt(self._job, epoch, slot, self._process, self._process)) as transaction:
                    transaction.write(_CODER.decode(self._rows))
                    return core.RowsWritten(transaction.prepare())
            case _:
                assert_never(command)

    def _ending(self, lifetime: core.ShardLifetime) -> Committer[HandleT]:
        if self._committer is None:
            self._committer = _fenced.get(lifetime) or self._sink.committer(self._job)
            if isinstance(self._sink, WriterCommit) and lifetime not in _fenced:
                self._committer.fence()  # once: a zombie worker, whose shard was restored in another process, stays shut out
                _fenced[lifetime] = self._committer
                finalize(lifetime, self._committer.close)
        return self._committer


_PROCESS = secrets.randbits(62)
"""Part of the names of this process's transactions: no two attempts share one."""

_fenced: WeakKeyDictionary[core.ShardLifetime, Committer[Any]] = WeakKeyDictionary()
"""Of sinks whose committers clean up only after they have fenced: a shard's, for as long as it is not restored."""

_shards: dict[str, core.Shard[Any]] = {}
_lock = threading.Lock()
"""Held in every step of every shard, of calls and of finalisations in any thread. A step takes microseconds and never waits."""


def _shard(job: str) -> core.Shard[Any]:
    """What this process knows of it. Runners make DoFn instances as they like, so it belongs to the process."""
    with _lock:
        return _shards.setdefault(job, core.Shard())


def _tell(call: core.ShardCall[HandleT], event: core.ShardEvent[HandleT]) -> list[core.ShardCommand[HandleT]]:
    with _lock:
        return call.handle(event)
