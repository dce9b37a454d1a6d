"""Calls a source for a runner: discovers splits, publishes positions, confirms which splits are gone.

It tolerates what is transient, and logs a failure once. Calls may take long: on which thread they run is the runner's decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic

from headrace.enumerator import events as ev
from headrace.enumerator.errors import DeadlineExceededError, HeadraceError, ProtocolViolationError, StateError, is_retriable
from headrace.enumerator.source import (
    DiscoveryResult,
    IncrementalDiscovery,
    JsonObject,
    Source,
    SplitDiscovery,
    Stage,
    StagedDiscovery,
)
from headrace.enumerator.split import SplitT

log: logging.Logger = logging.getLogger(__name__)


class FailureLog:
    """Decides what to log of something that is tried again and again: its first failure, and that it works again.

    The caller writes the lines. Two threads that share one may at worst write a line twice.
    """

    def __init__(self) -> None:
        self.is_failing = False

    def failed(self) -> bool:
        """A try has failed. True if that is to be logged: it is the first failure in a row."""
        is_first, self.is_failing = not self.is_failing, True
        return is_first

    def worked(self) -> bool:
        """A try has worked. True if that is to be logged: the previous one failed."""
        ends_failure, self.is_failing = self.is_failing, False
        return ends_failure


def can_pass(error: BaseException) -> bool:
    return is_retriable(error) or isinstance(error, DeadlineExceededError)


def is_refusal(error: BaseException) -> bool:
    """What a source or its peer may answer, also for good; anything else is a bug."""
    return isinstance(error, HeadraceError | OSError)


class PositionPublisher(Generic[SplitT]):
    """Publishes durable positions. A failure that is tolerated is logged once; the next positions are another try.

    `failure`: what the last try has met, if it was tolerated.
    """

    def __init__(self, source: Source[SplitT], failures: FailureLog, tolerates: Callable[[Exception], bool] = can_pass) -> None:
        """`failures` is for this source's publishing alone. Default of `tolerates`: what is transient."""
        self._source = source
        self._failures = failures
        self._tolerates = tolerates
        self._unpublished: Sequence[SplitT] = ()
        self.failure: Exception | None = None

    @property
    def has_unpublished(self) -> bool:
        return bool(self._unpublished)

    def publish_again(self) -> bool:
        """Another try for the last positions, if they were not published. As `publish`; True where there is nothing to do."""
        return not self._unpublished or self.publish(self._unpublished)

    def publish(self, splits: Sequence[SplitT]) -> bool:
        """Publish these positions. False if that has failed for now. Raises what is not tolerated."""
        self._unpublished, self.failure = splits, None
        try:
            self._source.checkpoint_completed(splits)
        except Exception as error:
            if not self._tolerates(error):
                raise
            self.failure = error
            level = logging.WARNING if self._failures.failed() else logging.DEBUG
            log.log(level, "positions of %s could not be published now, later ones will be tried: %s", self._source.name, error)
            return False
        self._unpublished = ()
        if self._failures.worked():
            log.warning("positions of %s are published again", self._source.name)
        return True


def report_finished(source: Source[SplitT], splits: Sequence[SplitT], failures: FailureLog) -> bool:
    """Call `splits_finished`; False if that has failed for now. Raises what is not transient."""
    try:
        source.splits_finished(splits)
    except Exception as error:
        if not can_pass(error):
            raise
        level = logging.WARNING if failures.failed() else logging.DEBUG
        log.log(level, "that %d splits of %s are finished is reported to it later: %s", len(splits), source.name, error)
        return False
    if failures.worked():
        log.warning("finished splits of %s are reported to it again", source.name)
    return True


class SourceDriver(Generic[SplitT]):
    """Carries out the commands that concern the source. One thread at a time may call `perform` with a discovery command."""

    def __init__(
        self,
        source: Source[SplitT],
        discovery: SplitDiscovery[SplitT],
        discovery_failures: FailureLog | None = None,
        *,
        tolerates: Callable[[Exception], bool] = can_pass,
    ) -> None:
        """`discovery_failures` is for a runner whose drivers share one, as they come and go. Default: one for this driver.

        `tolerates`: what a failure to publish positions may be, see `PositionPublisher`.
        """
        self._source = source
        self._discovery = discovery
        self._discovery_failures = discovery_failures or FailureLog()
        self._finishing_failures = FailureLog()
        self.publisher = PositionPublisher(source, FailureLog(), tolerates)

    def perform(self, command: ev.SourceCommand[SplitT]) -> ev.SourceAnswer[SplitT] | None:
        """Carry out one command. Returns the event that answers it, if any.

        Raises what the source raises of missing splits and, for good, of finished ones; what publishing has met that is not
        tolerated; and MemoryError.
        """
        match command:
            case ev.DiscoverInitial(limit):
                return self._discover(lambda: self._first(None, limit))
            case ev.DiscoverLater(known, stage):
                return self._discover(lambda: self._at(stage).later(known))
            case ev.DiscoverAfter(cursor, limit, stage):
                return self._discover(lambda: self._after(self._at(stage), cursor, limit))
            case ev.SwitchStage():
                return self._discover(lambda: self._switch(command))
            case ev.ReportDiscoveryFailure(error):
                level = logging.WARNING if self._discovery_failures.failed() else logging.DEBUG
                log.log(level, "discovery of %s failed and will be tried again: %s", self._source.name, error)
            case ev.ReportMissing(splits):
                self._source.on_splits_missing(splits)
            case ev.ProveGone(splits):
                return ev.SplitsGone(gone) if (gone := self.confirm_gone(splits)) else None
            case ev.PublishPositions(splits):
                self.publisher.publish(splits)
            case ev.ReportFinished(splits):
                is_done = report_finished(self._source, splits, self._finishing_failures)
                return ev.FinishedReported(frozenset(split.split_id for split in splits), is_done)
        return None

    def confirm_gone(self, splits: Sequence[SplitT]) -> frozenset[str]:
        """Ids of those of these missing splits that can never come back."""
        return self._source.confirm_deleted(splits) if splits else frozenset()

    def close(self) -> None:
        self._discovery.close()

    def _at(self, stage: Stage | None) -> SplitDiscovery[SplitT]:
        """The discovery of this stage. Raises StateError for a stage of another kind of source, and for none of such a one."""
        if isinstance(self._discovery, StagedDiscovery):
            return self._discovery.at(stage)
        if stage is not None:
            raise StateError(f"the state is of a source of several stages, in {stage}, and {self._source.name} has none")
        return self._discovery

    def _first(self, stage: Stage | None, limit: int) -> DiscoveryResult[SplitT]:
        discovery = self._at(stage)
        return self._after(discovery, None, limit) if isinstance(discovery, IncrementalDiscovery) else discovery.initial()

    def _switch(self, switch: ev.SwitchStage[SplitT]) -> DiscoveryResult[SplitT]:
        if not isinstance(self._discovery, StagedDiscovery):
            raise StateError(f"the state is of a source of several stages, in {switch.stage}, and {self._source.name} has none")
        following = self._discovery.following(switch.stage, switch.cursor, switch.splits)
        before = switch.stage
        log.info("%s: stage %d, %s, is read; %s follows", self._source.name, before.number, before.source, following)
        return self._first(following, switch.limit)

    def _after(self, discovery: SplitDiscovery[SplitT], cursor: JsonObject | None, limit: int) -> DiscoveryResult[SplitT]:
        """Raises StateError for a cursor of another kind of discovery, and ProtocolViolationError for an answer without one."""
        name = self._source.name
        if not isinstance(discovery, IncrementalDiscovery):
            raise StateError(f"the state is of a {name} source that is read by a cursor ({cursor}), and this one is not")
        findings = discovery.after(cursor, limit)
        if findings.cursor is None:
            raise ProtocolViolationError(f"{type(discovery).__name__} of source {name} has found splits, and gives no cursor")
        return findings

    def _discover(self, find: Callable[[], DiscoveryResult[SplitT]]) -> ev.SplitsDiscovered[SplitT] | ev.DiscoveryFailed:
        try:
            findings = find()
        except MemoryError:  # of this process, whatever the source is like
            raise
        except Exception as error:  # noqa: BLE001 - the enumerator decides whether it is transient
            return ev.DiscoveryFailed(error)
        if findings.inconclusive is None and self._discovery_failures.worked():
            log.warning("discovery of %s works again", self._source.name)
        return ev.SplitsDiscovered(findings)
