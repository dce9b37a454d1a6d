"""The split enumerator: discovery and assignment of splits (FLIP-27, SplitEnumerator), without I/O, clock or thread.

Two ways to make one, and they are different on purpose:

- `create_enumerator` makes a fresh one. Its first act is DiscoverInitial.
- `restore_enumerator` makes one from a checkpoint. No transition leads from RESTORED to INITIALISING, so it cannot ask for
  DiscoverInitial: what it discovers is compared with the ledger (Beam #31313, #34890).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Generic

from headrace.enumerator import events as ev
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import ProtocolViolationError, UsageError, is_retriable
from headrace.enumerator.events import Assign, Command
from headrace.enumerator.ledger import Ledger
from headrace.enumerator.pauses import DiscoveryPauses
from headrace.enumerator.source import DiscoveryResult, JsonObject, LogSource, Source
from headrace.enumerator.split import SplitT


class Discovery(Enum):
    """Where an enumerator is with discovery."""

    NEW = auto()  # fresh, not started
    RESTORED = auto()  # from a checkpoint, not started
    AT_CURSOR = auto()  # from a checkpoint of an incremental discovery, not started
    INITIALISING = auto()  # the initial discovery is under way
    DISCOVERING = auto()  # a later discovery is under way
    IDLE = auto()  # between two discovery rounds, or after the only one of this run
    BEHIND = auto()  # there may be more to find now, and the next round is due once the ledger has capacity for it
    EXHAUSTED = auto()  # no split will ever be added


class Trigger(Enum):
    """What moves discovery on."""

    START = auto()
    ANSWER = auto()
    LAST_ANSWER = auto()  # an answer that says it is complete
    ANSWER_WITH_MORE = auto()  # an answer that says there is more now
    FAILURE = auto()
    DUE = auto()
    DUE_AT_CURSOR = auto()  # the same of an incremental discovery
    CAPACITY = auto()  # few splits are unfinished


# The whole lifetime of discovery. RESTORED and AT_CURSOR cannot reach INITIALISING: a test walks this table to prove it.
DISCOVERY_TRANSITIONS: Mapping[tuple[Discovery, Trigger], Discovery] = {
    (Discovery.NEW, Trigger.START): Discovery.INITIALISING,
    (Discovery.INITIALISING, Trigger.ANSWER): Discovery.IDLE,
    (Discovery.INITIALISING, Trigger.LAST_ANSWER): Discovery.EXHAUSTED,
    (Discovery.INITIALISING, Trigger.ANSWER_WITH_MORE): Discovery.BEHIND,
    (Discovery.RESTORED, Trigger.START): Discovery.DISCOVERING,
    (Discovery.DISCOVERING, Trigger.ANSWER): Discovery.IDLE,
    (Discovery.DISCOVERING, Trigger.LAST_ANSWER): Discovery.EXHAUSTED,
    (Discovery.DISCOVERING, Trigger.ANSWER_WITH_MORE): Discovery.BEHIND,
    (Discovery.DISCOVERING, Trigger.FAILURE): Discovery.IDLE,
    (Discovery.IDLE, Trigger.DUE): Discovery.DISCOVERING,
    (Discovery.IDLE, Trigger.DUE_AT_CURSOR): Discovery.BEHIND,
    (Discovery.AT_CURSOR, Trigger.START): Discovery.BEHIND,
    (Discovery.BEHIND, Trigger.CAPACITY): Discovery.DISCOVERING,
    (Discovery.EXHAUSTED, Trigger.START): Discovery.EXHAUSTED,
}


class SplitEnumerator(ABC, Generic[SplitT]):
    """Owns the ledger. Subclasses say only which waiting split goes to which reader."""

    cursor: JsonObject | None = None
    """How far an incremental discovery has come: it has given one with each of its answers. None of any other."""

    def __init__(
        self, ledger: Ledger[SplitT], discovery: Discovery, parallelism: int, discovery_interval_s: float | None
    ) -> None:
        """Not for callers: see `create_enumerator` and `restore_enumerator`."""
        if parallelism < 1:
            raise UsageError(f"parallelism must be at least 1, not {parallelism}")
        if discovery_interval_s is not None and discovery_interval_s <= 0:
            raise UsageError(f"the discovery interval must be positive seconds or None, not {discovery_interval_s}")
        self.ledger = ledger
        self.parallelism = parallelism
        self._discovery = discovery
        self._pauses = DiscoveryPauses(discovery_interval_s)

    @property
    def initialised(self) -> bool:
        """True once every split has a resolved position, so that a checkpoint means something (I2)."""
        return self._discovery not in (Discovery.NEW, Discovery.INITIALISING)

    @property
    def exhausted(self) -> bool:
        """True when no split will ever be added."""
        return self._discovery is Discovery.EXHAUSTED

    @property
    def is_behind(self) -> bool:
        """True when there may be more to find now: the next round is what `continued` gives."""
        return self._discovery is Discovery.BEHIND

    def start(self) -> list[Command[SplitT]]:
        """The runner is ready."""
        self._move(Trigger.START)
        return self._discover()

    def discovery_due(self) -> list[Command[SplitT]]:
        """The scheduled time has come."""
        self._move(Trigger.DUE if self.cursor is None else Trigger.DUE_AT_CURSOR)
        return self._discover()

    def discovered(self, findings: DiscoveryResult[SplitT]) -> list[Command[SplitT]]:
        """A discovery has answered. New splits are entered, known ones left as they are."""
        is_behind = findings.more and not findings.complete
        self._move(Trigger.LAST_ANSWER if findings.complete else Trigger.ANSWER_WITH_MORE if is_behind else Trigger.ANSWER)
        self.ledger.add(findings.added)
        self.cursor = findings.cursor
        commands: list[Command[SplitT]] = []  # first the next round: to report what is missing may raise, and the caller go on
        if findings.inconclusive is not None:
            commands.append(ev.ReportDiscoveryFailure(findings.inconclusive))
            pause_s: float | None = self._pauses.after_inconclusive()
        else:
            pause_s = self._pauses.after_success()
        if pause_s is not None and self._discovery is Discovery.IDLE:
            commands.append(ev.ScheduleDiscovery(pause_s))
        if missing := self.ledger.mark_missing(findings.missing):
            commands.append(ev.ReportMissing(tuple(missing)))
        if unresolved := self.ledger.missing():
            commands.append(ev.ProveGone(tuple(unresolved)))
        return commands

    def discovery_failed(self, error: Exception) -> list[Command[SplitT]]:
        """A discovery has raised. A first one must succeed; a later one may be tried again when the error is transient.

        An error that is not ends the job. A caller that continues all the same looks again when it is time.
        """
        if self._discovery is not Discovery.DISCOVERING:
            return [ev.Fail(error)]
        self._move(Trigger.FAILURE)
        if not is_retriable(error):
            return [ev.ScheduleDiscovery(self._pauses.after_failure()), ev.Fail(error)]
        return [ev.ReportDiscoveryFailure(error), ev.ScheduleDiscovery(self._pauses.after_failure())]

    def continued(self) -> list[Command[SplitT]]:
        """The next round of a discovery that is behind, if few splits are unfinished. Asked for after every event.

        So neither the ledger nor a checkpoint grows with what there is to read.
        """
        if not self.is_behind or self.ledger.unfinished >= ev.SPLITS_AT_ONCE:
            return []
        self._move(Trigger.CAPACITY)
        return self._discover()

    def finished_reported(self, split_ids: Iterable[str]) -> None:
        """The source is notified of these. An incremental discovery will not find them again, so they are forgotten."""
        if self.cursor is None:
            self.ledger.mark_reported(split_ids)
        else:
            self.ledger.forget(split_ids)

    def reader_registered(self, reader: int) -> None:
        """A reader has started, without splits. Default: nothing to do."""

    def split_requested(self, reader: int) -> None:
        """A reader asks for a split. Default: nothing to do, as it is given all that is its own unasked."""

    @abstractmethod
    def assignments(self, readers: Sequence[int]) -> list[Assign[SplitT]]:
        """Take from the ledger what can be assigned to these readers now."""

    def reader_lost(self, reader: int) -> None:
        """Put back what the reader held."""
        self.ledger.release(reader)

    def _move(self, trigger: Trigger) -> None:
        state = DISCOVERY_TRANSITIONS.get((self._discovery, trigger))
        if state is None:
            raise ProtocolViolationError(f"discovery is {self._discovery.name}: {trigger.name} is not possible now")
        self._discovery = state

    def _discover(self) -> list[Command[SplitT]]:
        if self._discovery is Discovery.INITIALISING:
            return [ev.DiscoverInitial()]
        if self._discovery is not Discovery.DISCOVERING:
            return []
        if self.cursor is None:
            return [ev.DiscoverLater(self.ledger.known())]
        return [ev.DiscoverAfter(self.cursor, ev.SPLITS_AT_ONCE)]


class EagerEnumerator(SplitEnumerator[SplitT]):
    """Assigns every split as soon as its reader has started, to the reader slot with the fewest unfinished splits."""

    def __init__(
        self, ledger: Ledger[SplitT], discovery: Discovery, parallelism: int, discovery_interval_s: float | None
    ) -> None:
        """Not for callers: see `create_enumerator` and `restore_enumerator`."""
        super().__init__(ledger, discovery, parallelism, discovery_interval_s)
        self._planned: list[dict[str, None]] = [{} for _ in range(parallelism)]

    def reader_lost(self, reader: int) -> None:
        """Put back what the reader held, to be planned again."""
        super().reader_lost(reader)
        self._planned[reader].clear()

    def assignments(self, readers: Sequence[int]) -> list[Assign[SplitT]]:
        """Plan every waiting split, then hand each of these readers what is planned for it."""
        self._plan()
        assigns: list[Assign[SplitT]] = []
        for reader in readers:
            if planned := self._planned[reader]:
                splits = tuple(self.ledger.assign(split_id, reader) for split_id in planned)
                planned.clear()
                assigns.append(Assign(reader, splits))
        return assigns

    def _plan(self) -> None:
        if len(self.ledger.unassigned) == sum(map(len, self._planned)):
            return
        planned_already = {split_id for slot in self._planned for split_id in slot}
        fresh = [split_id for split_id in self.ledger.unassigned if split_id not in planned_already]
        loads = [(self.ledger.load(slot) + len(self._planned[slot]), slot) for slot in range(self.parallelism)]
        heapq.heapify(loads)
        for split_id in fresh:
            load, slot = loads[0]
            self._planned[slot][split_id] = None
            heapq.heapreplace(loads, (load + 1, slot))


class LazyEnumerator(SplitEnumerator[SplitT]):
    """Gives a reader its next split when it asks. For many splits of unequal size (files).

    A reader has to ask when it has nothing to read just now, or splits wait for ever behind one that has no end.
    """

    def __init__(
        self, ledger: Ledger[SplitT], discovery: Discovery, parallelism: int, discovery_interval_s: float | None
    ) -> None:
        """Not for callers: see `create_enumerator` and `restore_enumerator`."""
        super().__init__(ledger, discovery, parallelism, discovery_interval_s)
        # A request outlives the moment: splits may be discovered, or come back, after it was made (FLINK-40362).
        self._asking: dict[int, None] = {}

    def reader_registered(self, reader: int) -> None:
        """A reader starts without a request; the one made in its earlier lifetime is void."""
        self._asking.pop(reader, None)

    def split_requested(self, reader: int) -> None:
        """Remember the request."""
        self._asking[reader] = None

    def reader_lost(self, reader: int) -> None:
        """Put back what the reader held, and forget its request."""
        super().reader_lost(reader)
        self._asking.pop(reader, None)

    def assignments(self, readers: Sequence[int]) -> list[Assign[SplitT]]:
        """One split for each of these readers that asked, oldest request and oldest split first."""
        allowed = set(readers)
        asking = [reader for reader in self._asking if reader in allowed]
        oldest = list(islice(self.ledger.unassigned, len(asking)))
        assigns: list[Assign[SplitT]] = []
        for reader, split_id in zip(asking, oldest, strict=False):
            del self._asking[reader]
            assigns.append(Assign(reader, (self.ledger.assign(split_id, reader),)))
        return assigns


class SharingEnumerator(SplitEnumerator[SplitT]):
    """Assigns splits unasked, each to the registered reader that reads the fewest just now, and to none of them many at once.

    For many splits that all have an end (files): the next one comes when one is finished. So a reader may read ahead, and a
    slow one keeps few of them from the others.
    """

    at_once = 4
    """A reader has this many unfinished splits at most."""

    def assignments(self, readers: Sequence[int]) -> list[Assign[SplitT]]:
        """The oldest splits first."""
        loads = [(load, reader) for reader in readers if (load := self.ledger.reading(reader)) < self.at_once]
        heapq.heapify(loads)
        capacity = sum(self.at_once - load for load, _ in loads)
        given: dict[int, list[SplitT]] = {}
        for split_id in list(islice(self.ledger.unassigned, min(capacity, len(self.ledger.unassigned)))):
            load, reader = loads[0]
            given.setdefault(reader, []).append(self.ledger.assign(split_id, reader))
            heapq.heapreplace(loads, (load + 1, reader))
        return [Assign(reader, tuple(splits)) for reader, splits in given.items()]


def has_pieces(source: Source[SplitT]) -> bool:
    """Whether the splits are pieces of work, to be shared out a few at a time. Those of a log are read side by side."""
    return source.finite_splits and not isinstance(source, LogSource)


Assignment = Callable[[Ledger[SplitT], Discovery, int, float | None], SplitEnumerator[SplitT]]
"""EagerEnumerator, LazyEnumerator, SharingEnumerator, or another way to assign."""


def create_enumerator(
    assignment: Assignment[SplitT], *, parallelism: int, discovery_interval_s: float | None = None
) -> SplitEnumerator[SplitT]:
    """A fresh enumerator, which will discover its splits initially. For a job that has no checkpoint.

    `assignment` is EagerEnumerator, LazyEnumerator or SharingEnumerator; `parallelism` the number of reader slots; with
    `discovery_interval_s` the seconds between two discovery rounds; None (default) for a single round.
    """
    return assignment(Ledger(), Discovery.NEW, parallelism, discovery_interval_s)


def restore_enumerator(
    assignment: Assignment[SplitT],
    checkpoint: Checkpoint[SplitT],
    *,
    parallelism: int,
    discovery_interval_s: float | None = None,
) -> SplitEnumerator[SplitT]:
    """An enumerator that continues from a checkpoint, at the same or another parallelism. It cannot initialise.

    Discovers splits that appeared meanwhile, at once, unless discovery had reported that there will be none; an incremental one
    once there is capacity for them. Arguments as for `create_enumerator`.
    """
    at_start = Discovery.RESTORED if checkpoint.cursor is None else Discovery.AT_CURSOR
    discovery = Discovery.EXHAUSTED if checkpoint.exhausted else at_start
    enumerator = assignment(Ledger(checkpoint.splits), discovery, parallelism, discovery_interval_s)
    enumerator.cursor = checkpoint.cursor
    return enumerator
