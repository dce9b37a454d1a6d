"""The split enumerator: discovery and assignment of splits (FLIP-27, SplitEnumerator), without I/O, clock or thread.

Two ways to make one, and they are different on purpose:

- `create_enumerator` makes a fresh one. Its first act is DiscoverInitial.
- `restore_enumerator` makes one from a checkpoint. No transition leads from RESTORED to INITIALISING, so it cannot ask for
  DiscoverInitial: what it discovers is compared with the ledger (Beam #31313, #34890).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Generic

from headrace.enumerator import events as ev
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import ProtocolViolationError, UsageError, is_retriable
from headrace.enumerator.events import Assign, Command
from headrace.enumerator.ledger import Ledger
from headrace.enumerator.pauses import DiscoveryPauses
from headrace.enumerator.source import DiscoveryResult
from headrace.enumerator.split import SplitT


class Discovery(Enum):
    """Where an enumerator is with discovery."""

    NEW = auto()  # fresh, not started
    RESTORED = auto()  # from a checkpoint, not started
    INITIALISING = auto()  # the initial discovery is under way
    DISCOVERING = auto()  # a later discovery is under way
    IDLE = auto()  # between two discovery rounds, or after the only one of this run
    EXHAUSTED = auto()  # no split will ever be added


class Trigger(Enum):
    """What moves discovery on."""

    START = auto()
    ANSWER = auto()
    LAST_ANSWER = auto()  # an answer that says it is complete
    FAILURE = auto()
    DUE = auto()


# The whole lifetime of discovery. RESTORED cannot reach INITIALISING: a test walks this table to prove it.
DISCOVERY_TRANSITIONS: Mapping[tuple[Discovery, Trigger], Discovery] = {
    (Discovery.NEW, Trigger.START): Discovery.INITIALISING,
    (Discovery.INITIALISING, Trigger.ANSWER): Discovery.IDLE,
    (Discovery.INITIALISING, Trigger.LAST_ANSWER): Discovery.EXHAUSTED,
    (Discovery.RESTORED, Trigger.START): Discovery.DISCOVERING,
    (Discovery.DISCOVERING, Trigger.ANSWER): Discovery.IDLE,
    (Discovery.DISCOVERING, Trigger.LAST_ANSWER): Discovery.EXHAUSTED,
    (Discovery.DISCOVERING, Trigger.FAILURE): Discovery.IDLE,
    (Discovery.IDLE, Trigger.DUE): Discovery.DISCOVERING,
    (Discovery.EXHAUSTED, Trigger.START): Discovery.EXHAUSTED,
}


class SplitEnumerator(ABC, Generic[SplitT]):
    """Owns the ledger. Subclasses say only which waiting split goes to which reader."""

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

    def start(self) -> list[Command[SplitT]]:
        """The runner is ready."""
        self._move(Trigger.START)
        return self._discover()

    def discovery_due(self) -> list[Command[SplitT]]:
        """The scheduled time has come."""
        self._move(Trigger.DUE)
        return self._discover()

    def discovered(self, findings: DiscoveryResult[SplitT]) -> list[Command[SplitT]]:
        """A discovery has answered. New splits are entered, known ones left as they are."""
        self._move(Trigger.LAST_ANSWER if findings.complete else Trigger.ANSWER)
        self.ledger.add(findings.added)
        commands: list[Command[SplitT]] = []  # first the next round: to report what is missing may raise, and the caller go on
        if findings.inconclusive is not None:
            commands += _again(findings.inconclusive, self._pauses.after_inconclusive())
        elif (pause_s := self._pauses.after_success()) is not None and not findings.complete:
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
        return _again(error, self._pauses.after_failure())

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
        return [ev.DiscoverLater(self.ledger.known())] if self._discovery is Discovery.DISCOVERING else []


def _again(error: Exception, pause_s: float) -> list[Command[SplitT]]:
    return [ev.ReportDiscoveryFailure(error), ev.ScheduleDiscovery(pause_s)]


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


Assignment = Callable[[Ledger[SplitT], Discovery, int, float | None], SplitEnumerator[SplitT]]
"""EagerEnumerator, LazyEnumerator, or another way to assign."""


def create_enumerator(
    assignment: Assignment[SplitT], *, parallelism: int, discovery_interval_s: float | None = None
) -> SplitEnumerator[SplitT]:
    """A fresh enumerator, which will discover its splits initially. For a job that has no checkpoint.

    `assignment` is EagerEnumerator or LazyEnumerator; `parallelism` the number of reader slots; with
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

    Discovers splits that appeared meanwhile, at once, unless discovery had reported that there will be none.
    Arguments as for `create_enumerator`.
    """
    discovery = Discovery.EXHAUSTED if checkpoint.exhausted else Discovery.RESTORED
    return assignment(Ledger(checkpoint.splits), discovery, parallelism, discovery_interval_s)
