"""What the planners of streaming queries share: where a query starts, and what is done while a source does not answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Generic

from headrace.enumerator.checkpoint import CheckpointSerializer
from headrace.enumerator.resumed import resumed_discovery
from headrace.enumerator.source import DiscoveryResult, Source, SplitDiscovery
from headrace.enumerator.source_driver import FailureLog, PositionPublisher, is_refusal
from headrace.enumerator.split import SplitT

log = logging.getLogger(__name__)

IDLE_SHARE = 0.1
"""Of the time of a query without data, looks take no more than this, as long as LOOK_S allows it."""

LOOK_S = 0.1
"""The longest pause between two looks, in seconds."""


class Pace:
    """Of the looks of one run of a query: Spark asks a hundred times a second as long as there is no data.

    One that soon follows another without news has to wait. In a query with another source, which has news, none does.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._clock, self._sleep = clock, sleep
        self._not_before: float | None = None

    def look(self, start: str, find: Callable[[], str]) -> str:
        """What `find` returns, where the next batch ends: `start` if there is nothing to be read."""
        if self._not_before is not None and (early_s := self._not_before - self._clock()) > 0:
            self._sleep(early_s)
        before = self._clock()
        end = find()
        after = self._clock()
        self._not_before = after + min(LOOK_S, (after - before) * (1 / IDLE_SHARE - 1)) if end == start else None
        return end


class SourcePlanner(Generic[SplitT]):
    """The base of planners, each of one run of a query. Exists in the driver's Python process; called by one thread, as Spark
    does.
    """

    def __init__(self, source: Source[SplitT], savepoint: str | None) -> None:
        """`savepoint`: path or URI of a savepoint of a run with which a query without a checkpoint starts."""
        self._source, self._savepoint = source, savepoint
        self._discovery = source.create_discovery()
        self._outages, self._inconclusive = FailureLog(), FailureLog()
        self._publisher = PositionPublisher(source, FailureLog(), is_refusal)
        self._pins_end = False
        self._savepoint_is_unused = savepoint is not None

    def pin_end(self) -> None:
        """AvailableNow: what the next look finds is all that this run reads; what comes later waits for the next run."""
        self._pins_end = True

    def close(self) -> None:
        self._discovery.close()

    def _starting(self) -> SplitDiscovery[SplitT]:
        """The discovery whose initial answer a query without a checkpoint starts with."""
        if self._savepoint is None:
            return self._discovery
        from headrace.runners.local.savepoints import fetch_savepoint, shown  # which Spark's processes are spared else

        self._savepoint_is_unused = False
        serializer = CheckpointSerializer(self._source.name, self._source.split_serializer)
        positions = fetch_savepoint(self._savepoint).positions(serializer)
        log.warning("the query starts where savepoint %s is", shown(self._savepoint))
        return resumed_discovery(self._source, positions)

    def _pass_savepoint_over(self) -> None:
        """The query has a checkpoint. Said once, and not where this run has started with the savepoint."""
        if self._savepoint is not None and self._savepoint_is_unused:
            from headrace.runners.local.savepoints import shown

            log.warning("the query continues from its checkpoint; savepoint %s is not looked at", shown(self._savepoint))
            self._savepoint_is_unused = False

    def _find_later(self, known: Mapping[str, SplitT]) -> DiscoveryResult[SplitT]:
        """What is inconclusive now is for the next batch to find; AvailableNow may have none."""
        if self._pins_end:
            return self._discovery.later_or_raise(known)
        return self._noted(self._discovery.later(known))

    def _noted(self, found: DiscoveryResult[SplitT]) -> DiscoveryResult[SplitT]:
        """The same; that it is inconclusive is logged once, and that it is so no longer."""
        if found.inconclusive is None:
            if self._inconclusive.worked():
                log.warning("the query finds what is new again")
        elif self._inconclusive.failed():
            log.warning("the query continues without what may be new until this is over: %s", found.inconclusive)
        return found

    def _ride_out(self, error: Exception, failures: FailureLog) -> None:
        """No batch for now, said once. AvailableNow cannot wait: without a batch it would end, as if there were nothing."""
        if self._pins_end:
            raise error
        if failures.failed():
            log.warning("the query continues, but finds nothing new until this is over: %s", error)
