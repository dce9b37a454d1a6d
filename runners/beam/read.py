"""The reading stage, and the transform: enumerate -> reshuffle -> read. Batches cross stages, and records come last."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import BytesCoder
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from headrace.enumerator.errors import DeadlineExceededError, UsageError, is_retriable
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import Boundedness, LogSource, Source, SourceReader
from headrace.enumerator.split import SplitT
from headrace.runners.beam import worker as workers
from headrace.runners.beam.coders import Element, SplitStateFormat
from headrace.runners.beam.enumerate import EnumerateBounded, EnumerateUnbounded
from headrace.runners.beam.event_time import IDLE_LAG, EventTime, ProcessingTime, SplitWatermark, bounds
from headrace.runners.beam.limited import Limit, ReadLimited
from headrace.runners.beam.publication import Proof
from headrace.runners.beam.restrictions import EncodedTracker, OffsetSplitTracker, SplitTracker

log = logging.getLogger(__name__)

READ_S = 1.0
"""How long one call of `process` reads, in seconds. A runner takes no checkpoint while it lasts."""

WAIT_S = 0.1
"""How long a call waits for records that are not there, in seconds. Fetching goes on between calls: waiting gains nothing."""

IDLE_S = 0.25
"""Pause before a split that had no records is looked at again, in seconds."""

DISCOVERY_INTERVAL_S = 300.0
"""How often new splits are looked for, in seconds: Flink's default."""

_ONE_STAGE_AFTER_THE_OTHER = {"FnApiRunner", "BundleBasedDirectRunner"}
_FINALISE_AS_BEAM_HAS_IT = {"DirectRunner", "SwitchingDirectRunner", "FnApiRunner", "PrismRunner", "DataflowRunner"}


@dataclass(frozen=True, slots=True)
class Reading(Generic[SplitT]):
    """How to read a source. Picklable. `transform` names it in a worker process."""

    source: Source[SplitT]
    transform: str
    proof: Proof
    event_time: EventTime
    read_s: float
    publishes: bool


class _Read(beam.DoFn, RestrictionProvider, WatermarkEstimatorProvider):
    """Reads one split for a while, then hands it on where it stands. Elements and restrictions are states of splits."""

    def __init__(self, reading: Reading[Any]) -> None:
        """Travels to the workers by pickle."""
        self._reading = reading
        self._format: SplitStateFormat[Any] = SplitStateFormat(reading.source)

    def setup(self) -> None:
        """Once per instance."""
        self._worker = workers.join(self._reading.transform)

    def teardown(self) -> None:
        """Once per instance, unless the process is killed."""
        workers.leave(self._reading.transform)

    def initial_restriction(self, element: Element) -> bytes:
        """The split as it was discovered. Once in its life."""
        return element.state

    def create_tracker(self, restriction: bytes) -> EncodedTracker:
        """For one call of `process`, or to look at a restriction. Raises StateError for one that cannot be read."""
        return EncodedTracker(self._tracker(self._format.decode(restriction)), self._format.encode)

    def _tracker(self, state: SplitState[Any]) -> SplitTracker[Any] | OffsetSplitTracker:
        source = self._reading.source
        if not isinstance(source, LogSource):
            return SplitTracker(state, bounded=source.boundedness is Boundedness.BOUNDED)
        ends, split_id = self._worker.ends if hasattr(self, "_worker") else {}, state.split.split_id
        # Positions of a later part must not be published while an earlier one is still being read: no parts then.
        return OffsetSplitTracker(state, end=lambda: ends.get(split_id), divisible=not self._reading.publishes)

    def restriction_size(self, element: Element, restriction: bytes) -> float:
        """The offsets that are left, as far as is known: the backlog."""
        return self.create_tracker(restriction).current_progress().remaining_work

    def restriction_coder(self) -> BytesCoder:
        """Versioned bytes, see `coders`."""
        return BytesCoder()

    def initial_estimator_state(self, element: Element, restriction: bytes) -> None:
        """Everything is held back until something is known of the split."""

    def create_watermark_estimator(self, estimator_state: Timestamp | None) -> SplitWatermark:
        """Moves on with the records, and with the clock while the split is caught up."""
        return SplitWatermark(estimator_state)

    def _read(self, finalizer: Any, tracker: Any, watermark: Any) -> Iterator[TimestampedValue]:
        start = self._format.decode(tracker.current_restriction())
        state, pause_s = start, 0.0
        if start.finished:
            return
        with self._reader(start.split) as held:
            heard_s = time.monotonic()
            deadline_s = heard_s + self._reading.read_s
            while not state.finished:
                batch = held.reader.poll(WAIT_S)
                if batch is None:
                    # a reader may also say so between two batches, without having waited
                    if time.monotonic() - heard_s < WAIT_S:
                        continue
                    pause_s = IDLE_S
                    break
                heard_s = time.monotonic()
                if not tracker.try_claim(SplitState(batch.split, batch.finished)):
                    # it reaches into what is another call's now; what is left to this one is read anew, up to there
                    state = self._format.decode(tracker.current_restriction())
                    held.begin(state.split)
                    continue
                state = SplitState(batch.split, self._format.decode(tracker.current_restriction()).finished)
                held.delivered(batch.split)
                if batch.records.num_rows:
                    yield self._timestamped(batch.records, watermark)
                if heard_s >= deadline_s:
                    break
            held.end(finished=state.finished)
        self._look_at_end(state, watermark, idle=pause_s > 0)
        self._publish(start.split, state.split, finalizer)
        if not state.finished:
            tracker.defer_remainder(Duration(seconds=pause_s))

    @contextmanager
    def _reader(self, split: Any) -> Iterator[_Held[Any]]:
        held = _Held(self._reading.source.create_reader, self._worker.readers, split)
        try:
            yield held
        except BaseException:
            held.reader.close()
            raise

    def _timestamped(self, records: pa.RecordBatch, watermark: Any) -> TimestampedValue:
        now = Timestamp.now()
        times = self._reading.event_time.micros(records)
        if times is None:
            watermark.advance(now)
            return TimestampedValue(records, now)
        earliest, latest = bounds(times)
        # It counts when the call has ended, thus after this batch.
        watermark.advance(min(latest, now))
        return TimestampedValue(records, earliest)

    def _look_at_end(self, state: SplitState[Any], watermark: Any, *, idle: bool) -> None:
        """The backlog; and a split that is caught up, by position, holds no watermark back."""
        source, now = self._reading.source, Timestamp.now()
        if isinstance(self._reading.event_time, ProcessingTime):
            watermark.advance(now)
        if not isinstance(source, LogSource) or state.finished:
            return
        try:
            end = source.end_offsets([state.split])[state.split.split_id]
        except Exception as error:
            if not (is_retriable(error) or isinstance(error, DeadlineExceededError)):
                raise
            log.debug("where %s ends is not known now: %s", state.split, error)
            return
        self._worker.ends[state.split.split_id] = end
        if idle and state.split.next_offset >= end:
            watermark.advance(now - IDLE_LAG)

    def _publish(self, start: Any, end: Any, finalizer: Any) -> None:
        if not self._reading.publishes:
            return
        publication = self._worker.publication(end.split_id, self._reading.proof)
        ticket = publication.register(start, end)
        if ticket is not None:
            finalizer.register(lambda: self._finalised(publication.finalised(ticket)))

    def _finalised(self, split: Any) -> None:
        """In a thread of the runner's choice."""
        if split is None:
            return
        try:
            self._reading.source.checkpoint_completed([split])
        except Exception as error:
            if not (is_retriable(error) or isinstance(error, DeadlineExceededError)):
                raise
            log.warning("the position of %s could not be published now, a later one will be: %s", split, error)


class _Held(Generic[SplitT]):
    """The reader of one call, parked or new, and where its split stands."""

    def __init__(
        self, create: Callable[[], SourceReader[SplitT]], parked: workers.ParkedReaders[SplitT], split: SplitT
    ) -> None:
        self._create = create
        self._parked = parked
        self._split = split
        reader = parked.take(split)
        self.reader = self._begin(split) if reader is None else reader

    def begin(self, split: SplitT) -> None:
        """Read from here instead."""
        self.reader.close()
        self._split = split
        self.reader = self._begin(split)

    def delivered(self, split: SplitT) -> None:
        """It stands here now."""
        self._split = split

    def end(self, *, finished: bool) -> None:
        """The call is over."""
        if finished:
            self.reader.close()
        else:
            self._parked.park(self.reader, self._split)

    def _begin(self, split: SplitT) -> SourceReader[SplitT]:
        reader = self._create()
        try:
            reader.add_splits([split])
        except BaseException:
            reader.close()
            raise
        return reader


class ReadBounded(_Read):
    """Of a source that ends by itself."""

    def process(
        self,
        element: Element,
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - Beam's way to ask for it
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(),  # noqa: B008 - Beam's way to ask for it
    ) -> Iterator[Any]:
        """Read for a while."""
        return self._read(finalizer, tracker, watermark)


class ReadUnbounded(_Read):
    """Of a source without an end."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Element,
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - Beam's way to ask for it
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(),  # noqa: B008 - Beam's way to ask for it
    ) -> Iterator[Any]:
        """Read for a while."""
        return self._read(finalizer, tracker, watermark)


Rows = Callable[[pa.RecordBatch], Iterable[Any]]


def as_dicts(batch: pa.RecordBatch) -> Iterable[dict[str, Any]]:
    """A record as a dict of its columns."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


class ToRecords(beam.DoFn):
    """Arrow batches to records, each with its own event time."""

    def __init__(self, rows: Rows, event_time: EventTime) -> None:
        """`rows` makes the records of a batch, in order."""
        self._rows = rows
        self._event_time = event_time

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        """In processing time records keep the batch's."""
        times = self._event_time.micros(element)
        if times is None:
            return iter(self._rows(element))
        pairs = zip(self._rows(element), times.to_pylist(), strict=True)
        return (TimestampedValue(row, Timestamp(micros=micros)) for row, micros in pairs)


def _check_streams(runner: str) -> None:
    """A source without an end needs a runner whose stages run beside each other, or not one record comes out, in silence."""
    wanted = "read up to a stop or a limit, or use Prism (--runner=PrismRunner), Flink, or another runner that streams"
    if runner in _ONE_STAGE_AFTER_THE_OTHER:
        raise UsageError(f"{runner} ends one stage before it begins the next, and this source has no end: {wanted}")
    if runner == "SwitchingDirectRunner":
        log.warning("DirectRunner reads a source without an end only where Beam can fetch its program Prism; else %s", wanted)


def to_records(rows: Rows, event_time: EventTime, record_type: Any) -> Any:
    """The transform from Arrow batches to records of this type, which `rows` makes."""
    return beam.ParDo(ToRecords(rows, event_time)).with_output_types(record_type)


class ReadFromSource(beam.PTransform):
    """Any headrace source, read in a Beam pipeline.

    - `output`: "records" (default; `rows` makes them, by default a dict per record) or "arrow": record batches, which is what
      crosses stages.
    - `event_time`: ProcessingTime() (default) or what the batches say, see `headrace.runners.beam.event_time`. A batch has the
      time of its earliest record.
    - `discovery_interval_s`: seconds between two looks for new splits (default 300); None looks at the start and after a
      restore only.
    - `publish`: tell the source which positions are durable (a Kafka source with a group commits them). Default: false.
    - `limit`: end after so many records or seconds: for tests and demos. Then it is one bounded read that nobody restores.
    - `read_s`: how long one call reads, in seconds (default 1); no checkpoint is taken meanwhile.

    A bounded source ends by itself. A restored pipeline, from a checkpoint or a savepoint in a new submission, goes on where
    every split stood; a source that was configured otherwise meanwhile takes effect by discovery. Raises UsageError for an
    argument that cannot be.
    """

    def __init__(
        self,
        source: Source[Any],
        *,
        output: Literal["records", "arrow"] = "records",
        rows: Rows = as_dicts,
        record_type: Any = Any,
        event_time: EventTime | None = None,
        discovery_interval_s: float | None = DISCOVERY_INTERVAL_S,
        publish: bool = False,
        limit: Limit | None = None,
        read_s: float = READ_S,
    ) -> None:
        """Contacts nobody. `record_type` is the type hint of what `rows` makes."""
        super().__init__()
        if output not in ("records", "arrow"):
            raise UsageError(f'output must be "records" or "arrow", not {output!r}')
        if discovery_interval_s is not None and discovery_interval_s <= 0:
            raise UsageError(f"discovery_interval_s must be positive seconds or None, not {discovery_interval_s}")
        if read_s <= 0:
            raise UsageError(f"read_s must be positive seconds, not {read_s}")
        self._source = source
        self._output = output
        self._rows = rows
        self._record_type = record_type
        self._event_time: EventTime = event_time if event_time is not None else ProcessingTime()
        self._interval_s = discovery_interval_s
        self._publishes = publish
        self._limit = limit
        self._read_s = read_s

    def expand(self, pbegin: Any) -> Any:
        """Called by Beam."""
        batches = self._read(pbegin) if self._limit is None else self._read_limited(pbegin, self._limit)
        if self._output == "arrow":
            return batches
        return batches | "ToRecords" >> to_records(self._rows, self._event_time, self._record_type)

    def stages(self, proof: Proof) -> tuple[EnumerateBounded | EnumerateUnbounded, ReadBounded | ReadUnbounded]:
        """The two splittable DoFns, under a name of their own: for `expand`, and for tests that do what a runner does."""
        transform = uuid.uuid4().hex
        reading = Reading(self._source, transform, proof, self._event_time, self._read_s, self._publishes)
        if self._source.boundedness is Boundedness.BOUNDED:
            return EnumerateBounded(self._source, transform, self._interval_s), ReadBounded(reading)
        return EnumerateUnbounded(self._source, transform, self._interval_s), ReadUnbounded(reading)

    def _read(self, pbegin: Any) -> Any:
        runner = type(pbegin.pipeline.runner).__name__
        if self._source.boundedness is Boundedness.UNBOUNDED:
            _check_streams(runner)
        finalises_as_told = runner in _FINALISE_AS_BEAM_HAS_IT
        enumerate_fn, read_fn = self.stages(Proof.OWN_BUNDLE if finalises_as_told else Proof.EARLIER_BUNDLES)
        return (
            pbegin
            | "Impulse" >> beam.Impulse()
            | "Begin" >> beam.Map(Element).with_output_types(Element)
            | "Enumerate" >> beam.ParDo(enumerate_fn).with_output_types(Element)
            | "Distribute" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(read_fn).with_output_types(pa.RecordBatch)
        )

    def _read_limited(self, pbegin: Any, limit: Limit) -> Any:
        read_fn = ReadLimited(self._source, limit, self._event_time)
        return pbegin | "Impulse" >> beam.Impulse() | "ReadLimited" >> beam.ParDo(read_fn).with_output_types(pa.RecordBatch)
