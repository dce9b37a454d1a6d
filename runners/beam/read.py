"""The reading stage, and the transform: enumerate -> reshuffle -> read. Batches cross stages, and records come last."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, Generic, Literal

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import BytesCoder
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from headrace.connectors.base.arguments import at_least_one, seconds, truth
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import UsageError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import Boundedness, LogSource, Source, check_needs_no_ends, check_needs_no_finished
from headrace.enumerator.split import OffsetSplit, SplitT
from headrace.runners.beam import capabilities, flink_options
from headrace.runners.beam import worker as workers
from headrace.runners.beam.capabilities import Stages
from headrace.runners.beam.coders import Element, ReaderFormat
from headrace.runners.beam.enumerate import EnumerateBounded, EnumerateUnbounded
from headrace.runners.beam.event_time import IDLE_LAG, EventTime, ProcessingTime, SplitWatermark, bounds
from headrace.runners.beam.flink_options import Promise
from headrace.runners.beam.flink_placement import Subtasks
from headrace.runners.beam.publisher import PUBLISH_TIMEOUT_S, Publisher
from headrace.runners.beam.read_limit import POSITIONS, Limit, ReadLimited
from headrace.runners.beam.reader_cache import HeldReader
from headrace.runners.beam.reader_restriction import Claim, ReaderRestriction, ReaderTracker
from headrace.runners.beam.resume_delay import pause
from headrace.runners.beam.split_restriction import EncodedTracker, OffsetSplitTracker, SplitTracker
from headrace.runners.local.savepoints import fetch_savepoint

log = logging.getLogger(__name__)

READ_S = 1.0
"""How long one call of `process` reads, in seconds. A runner takes no checkpoint while it lasts."""

WAIT_S = 0.1
"""A call that has delivered something ends when nothing more comes for so long, in seconds: what it has continues then."""

PUBLISH_S = 1.0
"""Pause between two looks whether the last positions of splits that have ended are published, in seconds."""

DISCOVERY_INTERVAL_S = 300.0
"""How often new splits are looked for, in seconds: Flink's default."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[SplitT]):
    """How to read a source. Picklable. `transform` names it in a worker process."""

    source: Source[SplitT]
    transform: str
    event_time: EventTime
    read_s: float
    publishes: bool
    publish_timeout_s: float = PUBLISH_TIMEOUT_S
    reports_finished: bool = True
    """Whether a split whose last position is published was read to its end."""


class ReadBounded(beam.DoFn, RestrictionProvider, WatermarkEstimatorProvider):
    """Reads some splits for a while, then hands them on where they are. Its restrictions are `ReaderRestriction`s.

    Of a source that ends by itself.
    """

    def __init__(self, reading: Reading[Any]) -> None:
        self._reading = reading
        self._format: ReaderFormat[Any] = ReaderFormat(reading.source)

    def setup(self) -> None:
        self._worker = workers.join(self._reading.transform)
        self._publisher = Publisher(
            self._reading.source, self._worker, self._reading.publish_timeout_s, reports_finished=self._reading.reports_finished
        )
        self._known: set[str] = set()

    def teardown(self) -> None:
        workers.leave(self._reading.transform)

    def initial_restriction(self, element: Element) -> bytes:
        """The splits as they were discovered. Once in their lifetime."""
        return element.state

    def create_tracker(self, restriction: bytes) -> EncodedTracker:
        """For one call of `process`, or to look at a restriction. Raises StateError for one that cannot be read."""
        inner = ReaderTracker(self._format.decode(restriction), self._tracker, publishes=self._reading.publishes)
        return EncodedTracker(inner, self._format.encode)

    def _tracker(self, state: SplitState[Any]) -> SplitTracker[Any] | OffsetSplitTracker:
        source = self._reading.source
        if not isinstance(source, LogSource):
            return SplitTracker(state, bounded=source.boundedness is Boundedness.BOUNDED)
        end: Callable[[], int | None] = lambda: None  # noqa: E731 - the backlog is not known where no worker was joined
        if hasattr(self, "_worker"):
            end = partial(self._worker.ends.offset, state.split.split_id)
        # Positions of a later part must not be published while an earlier one is still being read: no parts then.
        return OffsetSplitTracker(state, end=end, divisible=not self._reading.publishes)

    def restriction_size(self, element: Element, restriction: bytes) -> float:
        """The offsets that are left, as far as is known: the backlog."""
        return self.create_tracker(restriction).current_progress().remaining_work

    def restriction_coder(self) -> BytesCoder:
        return BytesCoder()

    def initial_estimator_state(self, element: Element, restriction: bytes) -> None:
        """Everything is held back until something is known of every split."""

    def create_watermark_estimator(self, estimator_state: Timestamp | None) -> SplitWatermark:
        return SplitWatermark(estimator_state)

    def process(
        self,
        element: Element,
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - Beam's way to ask for it
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(),  # noqa: B008 - Beam's way to ask for it
    ) -> Iterator[Any]:
        started = self._selected(tracker)
        with HeldReader(self._reading.source.create_reader, self._worker.readers, started.reading) as held:
            yield from self._deliver(held, tracker)
        self._follow(held, watermark)
        if self._reading.publishes:
            self._publisher.note(started, {**held.positions, **held.ended}, tracker, finalizer)
        # a call that found nothing has waited for it; nothing is left of one that has read all
        tracker.defer_remainder(pause(0.0 if held.positions else PUBLISH_S))

    def _selected(self, tracker: Any) -> ReaderRestriction[Any]:
        """What is to be read. Splits that the source selects no more, as it was changed since, end here."""
        source = self._reading.source
        started: ReaderRestriction[Any] = self._format.decode(tracker.current_restriction())
        left_out = [split for split in started.reading if not self._selects(split)]
        if not left_out:
            return started
        self._worker.report_missing(source, left_out)
        for split in left_out:
            tracker.try_claim(Claim(split, finished=True))
        ended: ReaderRestriction[Any] = self._format.decode(tracker.current_restriction())
        return ended

    def _selects(self, split: Any) -> bool:
        if split.split_id not in self._known:  # asked once, and not at every call
            if not self._reading.source.selects(split):
                return False
            self._known.add(split.split_id)
        return True

    def _deliver(self, held: HeldReader[Any], tracker: Any) -> Iterator[TimestampedValue]:
        """Until the call's time is over; or nothing more comes after something did; or nothing is left to read.

        Waiting for the first records is shared with the other readers of this process: they may be of the same thread.
        """
        heard_s = time.monotonic()
        deadline_s = heard_s + self._reading.read_s
        timeout_s = max(WAIT_S, self._reading.read_s / (1 + len(self._worker.readers)))
        while held.positions:
            batch = held.poll(timeout_s)
            if batch is None:
                # a reader may also say so between two batches, without having waited
                if time.monotonic() - heard_s < timeout_s:
                    continue
                return
            heard_s = time.monotonic()
            claim = Claim(batch.split, batch.finished)
            if tracker.try_claim(claim):
                held.granted(batch, claim.left)
                timeout_s = WAIT_S
                if batch.records.num_rows:
                    yield self._timestamped(batch.records, batch.split.split_id, held)
            else:
                held.refused(self._format.decode(tracker.current_restriction()).reading)
            if heard_s >= deadline_s:
                return

    def _timestamped(self, records: pa.RecordBatch, split_id: str, held: HeldReader[Any]) -> TimestampedValue:
        now = Timestamp.now()
        times = self._reading.event_time.micros(records)
        earliest, latest = (now, now) if times is None else bounds(times)
        held.happened(split_id, min(latest, now))
        return TimestampedValue(records, earliest)

    def _follow(self, held: HeldReader[Any], watermark: Any) -> None:
        """How far the slowest split has come. Counts when the call has ended, thus after its batches."""
        source, now = self._reading.source, Timestamp.now()
        splits = list(held.positions.values())
        times = [self._reached(split, held) for split in splits]
        if isinstance(self._reading.event_time, ProcessingTime) or not splits:
            watermark.advance(now)
        elif len(known := [time for time in times if time is not None]) == len(times):
            watermark.advance(min(known))
        if isinstance(source, LogSource):
            # of the whole split: a runner may have divided it, and its parts have one id
            self._worker.ends.ask([split.between(split.next_offset, None) for split in splits], source.end_offsets)

    def _reached(self, split: Any, held: HeldReader[Any]) -> Timestamp | None:
        """The time of the split's latest record; or a little before the clock, where nothing came and it was caught up."""
        latest = held.latest.get(split.split_id)
        end = self._worker.ends.of(split.split_id) if isinstance(self._reading.source, LogSource) else None
        if end is None or split.split_id in held.delivered or split.next_offset < _end_of_part(split, end.offset):
            return latest
        caught_up: Timestamp = end.asked - IDLE_LAG
        return caught_up if latest is None else max(caught_up, latest)


def _end_of_part(split: OffsetSplit, end: int) -> int:
    return end if split.stop_offset is None else min(end, split.stop_offset)


class ReadUnbounded(ReadBounded):
    """Of a source without an end."""

    @beam.DoFn.unbounded_per_element()
    @wraps(ReadBounded.process)  # Beam reads the parameters from the signature
    def process(self, *given: Any, **named: Any) -> Iterator[Any]:
        return super().process(*given, **named)


Rows = Callable[[pa.RecordBatch], Iterable[Any]]


def as_dicts(batch: pa.RecordBatch) -> Iterable[dict[str, Any]]:
    return batch.to_pylist()  # type: ignore[no-any-return]


class ToRecords(beam.DoFn):
    """Arrow batches to records, each with its own event time."""

    def __init__(self, rows: Rows, event_time: EventTime) -> None:
        self._rows = rows
        self._event_time = event_time

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        """In processing time records keep the batch's."""
        times = self._event_time.micros(element)
        if times is None:
            return iter(self._rows(element))
        pairs = zip(self._rows(element), times.to_pylist(), strict=True)
        return (TimestampedValue(row, Timestamp(micros=micros)) for row, micros in pairs)


def _check_splittable(pipeline: Any, options: Mapping[str, Any]) -> None:
    """Raise UsageError where what a splittable DoFn hands on would be lost."""
    runner, name = capabilities.of_runner(pipeline), capabilities.name_of(pipeline)
    if not runner.has_splittable:
        raise UsageError(
            f"{name} does not run Beam's splittable DoFns to their end: use DirectRunner, or read to a limit without offsets "
            "that are committed"
        )
    workers = options.get("direct_num_workers") or 0
    if runner.has_one_worker and workers != 1:
        raise UsageError(
            f"with direct_num_workers={workers} {name} drops what a splittable DoFn hands on, and records would be lost: leave "
            "it at 1, or use PrismRunner"
        )


def _check_streams(pipeline: Any) -> None:
    """A source without an end needs a runner whose stages run in parallel, or not one record comes out, silently."""
    wanted = "read up to a stop or a limit, or use Prism (--runner=PrismRunner), Flink, or another runner that streams"
    stages = capabilities.of_runner(pipeline).stages
    if stages is Stages.ONE_BY_ONE:
        runner = capabilities.name_of(pipeline)
        raise UsageError(f"{runner} ends one stage before it starts the next, and this source has no end: {wanted}")
    if stages is Stages.DEPENDS:
        log.warning("DirectRunner reads a source without an end only where Beam can fetch its program Prism; else %s", wanted)


def to_records(rows: Rows, event_time: EventTime, record_type: Any) -> Any:
    """The transform from Arrow batches to records of this type, which `rows` makes."""
    return beam.ParDo(ToRecords(rows, event_time)).with_output_types(record_type)


class ReadFromSource(beam.PTransform[Any, Any]):
    """Any headrace source, read in a Beam pipeline.

    - `output`: "records" (default; `rows` makes them, by default a dict per record) or "arrow": record batches, which is what
      crosses stages.
    - `event_time`: ProcessingTime() (default) or what the batches say, see `headrace.runners.beam.event_time`. A batch has the
      time of its earliest record.
    - `discovery_interval_s`: seconds between two looks for new splits (default 300); None looks at the start and after a
      restore only.
    - `publish`: report to the source which positions are durable (a Kafka source with a group commits them), and which splits
      are read to their end, which files with `after_read` need. Default: false.
    - `limit`: end after this many records or seconds: for tests and demos. Then it is one bounded read, which is not
      restored.
    - `read_s`: how long one call reads, or waits for a first record, in seconds (default 1); no checkpoint is taken meanwhile.
    - `start_from_savepoint`: path or URI of a savepoint of `headrace run` that the job starts with, in place of where the
      source would start. It is read when the pipeline is built; a job that continues from state of its own does not look at it.
    - `num_readers`: how many readers share the splits that one look for splits finds. Default: what the pipeline's option
      --parallelism says, else 4. Each is an element of the pipeline: it has one reader for all of its splits.

    A bounded source ends by itself. A restored pipeline, from a checkpoint or a savepoint in a new submission, continues where
    every split was; a source that was configured otherwise meanwhile takes effect by discovery. Raises UsageError for an
    argument that cannot be, and StateError for a savepoint of another source or a damaged one.
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
        num_readers: int | None = None,
        start_from_savepoint: str | None = None,
    ) -> None:
        """Reads the savepoint, if there is one. `record_type` is the type hint of what `rows` makes."""
        super().__init__()
        if not isinstance(source, Source):
            raise UsageError(f"ReadFromSource reads a headrace Source, not {type(source).__name__}")
        source = source.in_one_stage()
        check_needs_no_ends(source, "Beam")
        if output not in ("records", "arrow"):
            raise UsageError(f'output must be "records" or "arrow", not {output!r}')
        if discovery_interval_s is not None:
            seconds("discovery_interval_s", discovery_interval_s)
        seconds("read_s", read_s)
        truth("publish", publish)
        if not publish:
            check_needs_no_finished(source, "read it with publish=True, or without that argument")
        if not isinstance(limit, Limit | None):
            raise UsageError(f"limit must be a Limit(records, seconds), not {limit!r}")
        if not callable(rows):
            raise UsageError(f"rows must be a function of a batch, not {rows!r}")
        if num_readers is not None:
            at_least_one("num_readers", num_readers)
        self._source = source
        self._output = output
        self._rows = rows
        self._record_type = record_type
        self._event_time: EventTime = event_time if event_time is not None else ProcessingTime()
        self._interval_s = discovery_interval_s
        self._publishes = publish
        self._limit = limit
        self._read_s = read_s
        self._readers = num_readers
        self._start_at: Checkpoint[Any] | None = None
        if start_from_savepoint is not None:
            serializer = CheckpointSerializer(source.name, source.split_serializer)
            self._start_at = fetch_savepoint(start_from_savepoint).positions(serializer)

    def expand(self, pbegin: Any) -> Any:
        """Called by Beam."""
        options = pbegin.pipeline.options.get_all_options(retain_unknown_options=True)
        runner = capabilities.of_runner(pbegin.pipeline)
        if not runner.is_durable:
            name = capabilities.name_of(pbegin.pipeline)
            check_needs_no_finished(
                self._source, f"{name} may lose the rows of a pipeline that fails: run on Flink, or without it"
            )
        check_options = runner.check_options
        if self._publishes and check_options is not None:
            unbounded = self._source.boundedness is Boundedness.UNBOUNDED and self._limit is None
            check_options(Promise.OFFSETS, flink_options.Options(options, unbounded=unbounded))
        batches = self._read(pbegin, options) if self._limit is None else self._read_limited(pbegin, self._limit, options)
        if self._output == "arrow":
            return batches
        return batches | "ToRecords" >> to_records(self._rows, self._event_time, self._record_type)

    def stages(self, options: Mapping[str, Any]) -> tuple[EnumerateBounded | EnumerateUnbounded, ReadBounded | ReadUnbounded]:
        """The two splittable DoFns, under their own name: for `expand`, and for tests that do what a runner does.

        Raises UsageError for an option of the pipeline that cannot be.
        """
        given = self._given(options)
        reading, parallelism = self._reading(options), given.number("parallelism", 0)
        readers = self._readers or (parallelism if parallelism > 0 else 4)
        subtasks = Subtasks.of(parallelism, given.number("max_parallelism", 0)) if parallelism > 0 else None
        enumeration = (self._source, reading.transform, self._interval_s, readers, subtasks, self._start_at)
        if self._source.boundedness is Boundedness.BOUNDED:
            return EnumerateBounded(*enumeration), ReadBounded(reading)
        return EnumerateUnbounded(*enumeration), ReadUnbounded(reading)

    def _given(self, options: Mapping[str, Any]) -> flink_options.Options:
        return flink_options.Options(options, unbounded=self._source.boundedness is Boundedness.UNBOUNDED)

    def _reading(self, options: Mapping[str, Any]) -> Reading[Any]:
        timeout_s = max(PUBLISH_TIMEOUT_S, 3 * self._given(options).number("checkpointing_interval", 0) / 1000)
        return Reading(self._source, uuid.uuid4().hex, self._event_time, self._read_s, self._publishes, timeout_s)

    def _read(self, pbegin: Any, options: Mapping[str, Any]) -> Any:
        _check_splittable(pbegin.pipeline, options)
        if self._source.boundedness is Boundedness.UNBOUNDED:
            _check_streams(pbegin.pipeline)
        enumerate_fn, read_fn = self.stages(options)
        return (
            pbegin
            | "Impulse" >> beam.Impulse()
            | "Begin" >> beam.Map(Element).with_output_types(Element)
            | "Enumerate" >> beam.ParDo(enumerate_fn).with_output_types(Element)
            | "Distribute" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(read_fn).with_output_types(pa.RecordBatch)
        )

    def _read_limited(self, pbegin: Any, limit: Limit, options: Mapping[str, Any]) -> Any:
        limited = ReadLimited(self._source, limit, self._event_time, self._start_at)
        read_fn = beam.ParDo(limited).with_output_types(pa.RecordBatch)
        outputs = pbegin | "Impulse" >> beam.Impulse() | "ReadLimited" >> read_fn.with_outputs(POSITIONS, main="batches")
        if self._publishes:
            _check_splittable(pbegin.pipeline, options)
            # as what a restored reader finds that has read all, but does not know that it was published
            left = outputs[POSITIONS] | "Positions" >> beam.Map(Element).with_output_types(Element)
            # the positions are of splits that were read in part, too, but for sources that need to know
            reading = replace(self._reading(options), reports_finished=self._source.needs_finished)
            _ = left | "Distribute" >> beam.Reshuffle() | "Publish" >> beam.ParDo(ReadBounded(reading))
        return outputs["batches"]
