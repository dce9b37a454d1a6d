"""The enumerating stage: one element, whose restriction is the ledger. It looks for splits now and then, and hands them on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Generic

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from headrace.enumerator import events as ev
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.enumerator import EagerEnumerator, SplitEnumerator, create_enumerator, restore_enumerator
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.resumed import restaged, resumed_discovery
from headrace.enumerator.source import Boundedness, Source, SplitDiscovery, Stage
from headrace.enumerator.source_driver import SourceDriver
from headrace.enumerator.split import SplitT
from headrace.runners.beam import worker as workers
from headrace.runners.beam.coders import Element, EnumerationFormat, ReaderFormat
from headrace.runners.beam.event_time import IDLE_LAG, SplitWatermark
from headrace.runners.beam.flink_placement import Subtasks, placed
from headrace.runners.beam.reader_restriction import deal
from headrace.runners.beam.resume_delay import pause
from headrace.runners.beam.split_restriction import EncodedTracker, Enumerated, Enumeration, EnumerationTracker, Fresh, HandedOn

log = logging.getLogger(__name__)

PIECES = 8
"""About this many finite splits make an element, if there are more of them than readers."""

WAKE_S = 5.0
"""At most so long, in seconds, until a process that has taken the enumeration over by a restore looks for splits."""


@dataclass(frozen=True, slots=True)
class Look(Generic[SplitT]):
    """What one look has found: the ledger as it is now, the splits that are new in it, those that are newly missing.

    The ledger of an incremental discovery is its cursor alone: the splits before it are with the readers. `more`: there may be
    more behind it now, or in the next stage. `failure`: why it is not complete, and is to be repeated.
    """

    checkpoint: Checkpoint[SplitT]
    added: Sequence[SplitT]
    missing: Sequence[SplitT]
    more: bool = False
    failure: Exception | None = None


def look(enumeration: Enumeration[SplitT], driver: SourceDriver[SplitT]) -> Look[SplitT]:
    """One look for splits: the initial one if there was none yet, never otherwise. Raises what discovery raises.

    A later look that fails with an error that is transient finds nothing. Of a source of several stages the next one starts
    when all splits of a stage are found: that they are read, no reader can report here.
    """
    enumerator: SplitEnumerator[SplitT]
    match enumeration:
        case Fresh():
            enumerator = create_enumerator(EagerEnumerator, parallelism=1)
            looks, stage = 1, None
        case HandedOn():
            raise ValueError("this enumeration was handed on")
        case _:
            enumerator = restore_enumerator(EagerEnumerator, enumeration.checkpoint, parallelism=1)
            looks, stage = enumeration.checkpoint.checkpoint_id + 1, enumeration.checkpoint.stage
    known = {entry.durable.split_id for entry in enumerator.ledger}
    missing: list[SplitT] = []
    failure: Exception | None = None
    for command in (*enumerator.start(), *enumerator.continued()):
        for answer in _discover(command, enumerator, driver):
            match answer:
                case ev.Fail(error):
                    raise error
                case ev.ReportDiscoveryFailure(error):
                    driver.perform(answer)
                    failure = error
                case ev.ReportMissing(splits):
                    missing += splits
    added = [entry.durable for entry in enumerator.ledger if entry.durable.split_id not in known]
    return Look(_handed_on(enumerator, looks, stage), added, missing, enumerator.is_behind, failure)


def _handed_on(enumerator: SplitEnumerator[SplitT], looks: int, previous: Stage | None) -> Checkpoint[SplitT]:
    """Of a stage that is found its splits count as read; once the next has started, they are not needed any more."""
    stage = enumerator.stage
    is_found = stage is not None and stage.is_found
    has_switched = previous is not None and stage is not None and previous.number < stage.number
    left = [entry.durable for entry in enumerator.ledger if not (has_switched and enumerator.forgets(entry.durable))]
    states = tuple(SplitState(split, is_found) for split in left) if enumerator.cursor is None else ()
    return Checkpoint(looks, states, enumerator.exhausted, enumerator.cursor, stage)


def beginning(source: Source[SplitT], start_at: Checkpoint[SplitT] | None) -> SplitDiscovery[SplitT]:
    """The source's discovery, whose initial answer is that of the source, or where a checkpoint of another job is."""
    return source.create_discovery() if start_at is None else resumed_discovery(source, start_at)


def _discover(
    command: ev.Command[SplitT], enumerator: SplitEnumerator[SplitT], driver: SourceDriver[SplitT]
) -> list[ev.Command[SplitT]]:
    if not isinstance(command, ev.DiscoverInitial | ev.DiscoverLater | ev.DiscoverAfter | ev.SwitchStage):
        return []
    match driver.perform(command):
        case ev.SplitsDiscovered(findings):
            return enumerator.discovered(findings)
        case ev.DiscoveryFailed(error):
            return enumerator.discovery_failed(error)
    return []


class EnumerateBounded(beam.DoFn, RestrictionProvider, WatermarkEstimatorProvider):
    """Looks for splits and emits the new ones, as what readers have to read. Its restriction continues with the ledger.

    Of a source that ends by itself.
    """

    def __init__(
        self,
        source: Source[Any],
        transform: str,
        discovery_interval_s: float | None,
        readers: int,
        subtasks: Subtasks | None,
        start_at: Checkpoint[Any] | None = None,
    ) -> None:
        """Travels to the workers by pickle, with the source: so a changed configuration takes effect by discovery.

        What one look finds is dealt out to this many readers: an element is what one of them has to read. Splits that are found
        later cannot join an element that is under way, so they make new ones. `subtasks`: of Flink, to spread them evenly.
        `start_at`: where a job without state starts, in place of what the source says.
        """
        self._source = source
        self._transform = transform
        self._interval_s = discovery_interval_s
        self._format: EnumerationFormat[Any] = EnumerationFormat(source)
        self._restrictions: ReaderFormat[Any] = ReaderFormat(source)
        self._readers = readers
        self._subtasks = subtasks
        self._start_at = start_at

    def setup(self) -> None:
        self._worker = workers.join(self._transform)
        self._driver = SourceDriver(self._source, beginning(self._source, self._start_at), self._worker.discovery_failures)

    def teardown(self) -> None:
        self._driver.close()
        workers.leave(self._transform)

    def initial_restriction(self, element: Element) -> bytes:
        """Once in the lifetime of a job: a restored one continues with what `process` has handed on."""
        return self._format.encode(Fresh())

    def create_tracker(self, restriction: bytes) -> EncodedTracker:
        """For one call of `process`. Raises StateError for a restriction that cannot be read."""
        bounded = self._source.boundedness is Boundedness.BOUNDED
        return EncodedTracker(EnumerationTracker(self._format.decode(restriction), bounded=bounded), self._format.encode)

    def restriction_size(self, element: Element, restriction: bytes) -> float:
        return 1.0

    def restriction_coder(self) -> BytesCoder:
        return BytesCoder()

    def initial_estimator_state(self, element: Element, restriction: bytes) -> None:
        """Everything is held back until the first splits are found."""

    def create_watermark_estimator(self, estimator_state: Timestamp | None) -> SplitWatermark:
        return SplitWatermark(estimator_state)

    def process(
        self,
        element: Element,
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - Beam's way to ask for it
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(),  # noqa: B008 - Beam's way to ask for it
    ) -> Iterator[Any]:
        now_s, now = time.monotonic(), Timestamp.now()
        enumeration = self._format.decode(tracker.current_restriction())
        if self._due(enumeration, now_s):
            found = look(self._restaged(enumeration), self._driver)
            if found.failure is None:
                self._worker.pauses.after_success()
            else:
                self._worker.pauses.after_failure()
            self._worker.report_missing(self._source, found.missing)
            if not tracker.try_claim(self._without_gone(found)):
                return
            self._worker.last_look = workers.LastPoll(found.checkpoint.checkpoint_id, time.monotonic(), found.more)
            for work in self._dealt(found):
                # the first splits hold the watermark back until they are read; those found later cannot
                time_of_split = watermark.current_watermark()
                yield work if time_of_split is None else TimestampedValue(work, time_of_split)
            if found.checkpoint.exhausted:
                return
        watermark.advance(now - IDLE_LAG)
        tracker.defer_remainder(pause(self._pause_s(time.monotonic())))

    def _restaged(self, enumeration: Enumeration[Any]) -> Enumeration[Any]:
        """A restored one may be of other stages."""
        match enumeration:
            case Enumerated(checkpoint):
                return Enumerated(restaged(self._source, checkpoint))
        return enumeration

    def _without_gone(self, found: Look[Any]) -> Checkpoint[Any]:
        """The ledger without splits that can never come back, or that the source selects no more.

        The process that reads them has them in its own restriction.
        """
        gone = self._driver.confirm_gone(found.missing)
        gone |= {split.split_id for split in found.missing if not self._source.selects(split)}
        left = tuple(state for state in found.checkpoint.splits if state.split.split_id not in gone)
        return replace(found.checkpoint, splits=left)

    def _dealt(self, found: Look[Any]) -> Iterator[Element]:
        known = max(0, len(found.checkpoint.splits) - len(found.added))
        elements = self._readers
        if (found.checkpoint.stage or self._source).in_pieces:
            # few in each: a runner is slowed down by elements that no reader takes
            elements = max(elements, len(found.added) // PIECES)
        for number, restriction in enumerate(deal(found.added, elements)):
            work = self._restrictions.encode(restriction)
            yield Element(work if self._subtasks is None else placed(work, known + number, self._subtasks))

    def _due(self, enumeration: Enumeration[Any], now_s: float) -> bool:
        """A ledger that is not of this process's own last look comes from a restore: then it looks at once."""
        last = self._worker.last_look
        if last is None and self._start_at is not None and isinstance(enumeration, Enumerated):
            log.warning("the job continues from its own state; its savepoint of headrace run is not looked at")
        if last is None or not isinstance(enumeration, Enumerated) or enumeration.checkpoint.checkpoint_id != last.number:
            return True
        wait_s = 0.0 if last.more else self._wait_s
        return wait_s is not None and now_s - last.at_s >= wait_s

    def _pause_s(self, now_s: float) -> float:
        last, wait_s = self._worker.last_look, self._wait_s
        if last is not None and last.more:
            return 0.0
        if last is None or wait_s is None:
            return WAKE_S
        return min(WAKE_S, max(0.0, last.at_s + wait_s - now_s))

    @property
    def _wait_s(self) -> float | None:
        """From the last look to the next; None if there is none in this process."""
        waits_s = [wait_s for wait_s in (self._worker.pauses.retry_s, self._interval_s) if wait_s is not None]
        return min(waits_s, default=None)


class EnumerateUnbounded(EnumerateBounded):
    """Of a source without an end."""

    @beam.DoFn.unbounded_per_element()
    @wraps(EnumerateBounded.process)  # Beam reads the parameters from the signature
    def process(self, *given: Any, **named: Any) -> Iterator[Any]:
        return super().process(*given, **named)
