"""The split enumerator: discovery and assignment of splits (FLIP-27, SplitEnumerator), without I/O, clock or thread.

Two ways to make one, and they are different on purpose:

- `create_enumerator` makes a fresh one. Its first act is DiscoverInitial.
- `restore_enumerator` makes one from a checkpoint. No transition leads from RESTORED to INITIALISING, so it cannot ask for
  DiscoverInitial: what it discovers is compared with the ledger (Beam #31313, #34890).
"""

from __future__ import annotations

import heapq
import sys
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
from headrace.enumerator.source import DiscoveryResult, JsonObject, Stage, is_before
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
    STAGE_FOUND = auto()  # no split of this stage will ever be added, and another stage follows when all are read
    SWITCHING = auto()  # the initial discovery of the next stage is under way
    SWITCH_PAUSED = auto()  # it has failed, and is to be tried again
    EXHAUSTED = auto()  # no split will ever be added


class Trigger(Enum):
    """What moves discovery on."""

    START = auto()
    ANSWER = auto()
    LAST_ANSWER = auto()  # an answer that says it is complete
    ANSWER_WITH_MORE = auto()  # an answer that says there is more now
    ANSWER_OF_STAGE = auto()  # an answer that is the last of its stage
    FAILURE = auto()
    DUE = auto()
    DUE_AT_CURSOR = auto()  # the same of an incremental discovery
    CAPACITY = auto()  # few splits are unfinished
    STAGE_READ = auto()  # every split is read to its end


# The whole lifetime of discovery. RESTORED, AT_CURSOR and STAGE_FOUND cannot reach INITIALISING: a test walks this table to
# prove it. From SWITCHING no way leads back to STAGE_FOUND but with the next stage, or past a failure: a stage is entered once.
DISCOVERY_TRANSITIONS: Mapping[tuple[Discovery, Trigger], Discovery] = {
    (Discovery.NEW, Trigger.START): Discovery.INITIALISING,
    (Discovery.INITIALISING, Trigger.ANSWER): Discovery.IDLE,
    (Discovery.INITIALISING, Trigger.LAST_ANSWER): Discovery.EXHAUSTED,
    (Discovery.INITIALISING, Trigger.ANSWER_WITH_MORE): Discovery.BEHIND,
    (Discovery.INITIALISING, Trigger.ANSWER_OF_STAGE): Discovery.STAGE_FOUND,
    (Discovery.RESTORED, Trigger.START): Discovery.DISCOVERING,
    (Discovery.DISCOVERING, Trigger.ANSWER): Discovery.IDLE,
    (Discovery.DISCOVERING, Trigger.LAST_ANSWER): Discovery.EXHAUSTED,
    (Discovery.DISCOVERING, Trigger.ANSWER_WITH_MORE): Discovery.BEHIND,
    (Discovery.DISCOVERING, Trigger.ANSWER_OF_STAGE): Discovery.STAGE_FOUND,
    (Discovery.DISCOVERING, Trigger.FAILURE): Discovery.IDLE,
    (Discovery.IDLE, Trigger.DUE): Discovery.DISCOVERING,
    (Discovery.IDLE, Trigger.DUE_AT_CURSOR): Discovery.BEHIND,
    (Discovery.AT_CURSOR, Trigger.START): Discovery.BEHIND,
    (Discovery.BEHIND, Trigger.CAPACITY): Discovery.DISCOVERING,
    (Discovery.STAGE_FOUND, Trigger.START): Discovery.STAGE_FOUND,
    (Discovery.STAGE_FOUND, Trigger.STAGE_READ): Discovery.SWITCHING,
    (Discovery.SWITCHING, Trigger.ANSWER): Discovery.IDLE,
    (Discovery.SWITCHING, Trigger.LAST_ANSWER): Discovery.EXHAUSTED,
    (Discovery.SWITCHING, Trigger.ANSWER_WITH_MORE): Discovery.BEHIND,
    (Discovery.SWITCHING, Trigger.ANSWER_OF_STAGE): Discovery.STAGE_FOUND,
    (Discovery.SWITCHING, Trigger.FAILURE): Discovery.SWITCH_PAUSED,
    (Discovery.SWITCH_PAUSED, Trigger.DUE): Discovery.STAGE_FOUND,
    (Discovery.SWITCH_PAUSED, Trigger.DUE_AT_CURSOR): Discovery.STAGE_FOUND,
    (Discovery.EXHAUSTED, Trigger.START): Discovery.EXHAUSTED,
}


class SplitEnumerator(ABC, Generic[SplitT]):
    """Owns the ledger. Subclasses say only which waiting split goes to which reader."""

    cursor: JsonObject | None = None
    """How far an incremental discovery has come: it has given one with each of its answers. None of any other."""
    stage: Stage | None = None
    """Where a source of several stages is. None of any other, and before the first answer."""

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
    def waits_for_ends(self) -> bool:
        """True when all splits of a stage are read, and the next waits for a checkpoint that has their ends."""
        is_found = self._discovery is Discovery.STAGE_FOUND and self.stage is not None and self.stage.needs_ends
        return is_found and self.ledger.all_finished and not self.ledger.all_finished_durably

    @property
    def is_behind(self) -> bool:
        """True when there may be more to find now, or in the next stage: the next round is what `continued` gives."""
        return self._discovery in (Discovery.BEHIND, Discovery.STAGE_FOUND)

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
        self._move(_kind_of(findings))
        self.ledger.add(findings.added)
        previous, self.cursor, self.stage = self.stage, findings.cursor, findings.stage
        if previous is not None and self.stage is not None and previous.number < self.stage.number:
            self.ledger.forget(split.split_id for split in self.ledger.reported() if self.forgets(split))
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
        """A discovery has raised. A first one must succeed; a later one, or a switch, may be tried again when the error is
        transient.

        An error that is not ends the job. A caller that continues all the same looks again when it is time.
        """
        if self._discovery not in (Discovery.DISCOVERING, Discovery.SWITCHING):
            return [ev.Fail(error)]
        self._move(Trigger.FAILURE)
        if not is_retriable(error):
            return [ev.ScheduleDiscovery(self._pauses.after_failure()), ev.Fail(error)]
        return [ev.ReportDiscoveryFailure(error), ev.ScheduleDiscovery(self._pauses.after_failure())]

    def continued(self) -> list[Command[SplitT]]:
        """The next round of a discovery that is behind, if few splits are unfinished; the next stage, if none is. Asked for
        after every event.

        So neither the ledger nor a checkpoint grows with what there is to read.
        """
        if self._discovery is Discovery.STAGE_FOUND:
            return self._switch() if self.ledger.all_finished and not self.waits_for_ends else []
        if not self.is_behind or self.ledger.unfinished >= ev.SPLITS_AT_ONCE:
            return []
        self._move(Trigger.CAPACITY)
        return self._discover()

    def finished_reported(self, split_ids: Iterable[str]) -> None:
        """The source is notified of these. Those that no discovery will find again are forgotten."""
        self.ledger.forget(split.split_id for split in self.ledger.mark_reported(split_ids) if self.forgets(split))

    def forgets(self, split: SplitT) -> bool:
        """Whether such a split leaves the ledger when it is finished, as an incremental discovery and a later stage do not
        find it again.
        """
        return self.cursor is not None or (self.stage is not None and is_before(split, self.stage))

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
            return [ev.DiscoverLater(self.ledger.known(), self.stage)]
        return [ev.DiscoverAfter(self.cursor, ev.SPLITS_AT_ONCE, self.stage)]

    def _switch(self) -> list[Command[SplitT]]:
        assert self.stage is not None
        self._move(Trigger.STAGE_READ)
        splits = () if self.cursor is not None else tuple(self.ledger.known().values())
        return [ev.SwitchStage(self.stage, self.cursor, splits, ev.SPLITS_AT_ONCE)]


def _kind_of(findings: DiscoveryResult[SplitT]) -> Trigger:
    if findings.complete:
        return Trigger.LAST_ANSWER
    if findings.stage is not None and findings.stage.is_found:
        return Trigger.ANSWER_OF_STAGE
    return Trigger.ANSWER_WITH_MORE if findings.more else Trigger.ANSWER


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
        """The oldest splits first. In a stage of splits that are not pieces all at once, and in it also what an earlier one
        left.
        """
        at_once = self.at_once if self.stage is None or self.stage.in_pieces else sys.maxsize
        loads = [(load, reader) for reader in readers if (load := self.ledger.reading(reader)) < at_once]
        heapq.heapify(loads)
        capacity = sum(at_once - load for load, _ in loads)
        given: dict[int, list[SplitT]] = {}
        for split_id in list(islice(self.ledger.unassigned, min(capacity, len(self.ledger.unassigned)))):
            load, reader = loads[0]
            given.setdefault(reader, []).append(self.ledger.assign(split_id, reader))
            heapq.heapreplace(loads, (load + 1, reader))
        return [Assign(reader, tuple(splits)) for reader, splits in given.items()]


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
    if checkpoint.exhausted:
        discovery = Discovery.EXHAUSTED
    elif checkpoint.stage is not None and checkpoint.stage.is_found:
        discovery = Discovery.STAGE_FOUND
    else:
        discovery = Discovery.RESTORED if checkpoint.cursor is None else Discovery.AT_CURSOR
    enumerator = assignment(Ledger(checkpoint.splits), discovery, parallelism, discovery_interval_s)
    enumerator.cursor, enumerator.stage = checkpoint.cursor, checkpoint.stage
    return enumerator
