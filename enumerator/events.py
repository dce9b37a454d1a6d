"""The coordinator's events and commands. Plain data; the runner moves them.

The channel between the coordinator and one reader must keep the order of what is sent, in both directions.
A message of a reader that was reported lost, or that another reader has replaced, must not reach the coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import DiscoveryResult, JsonObject, Stage
from headrace.enumerator.split import SplitT

# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The runner is ready. Sent once, first."""


@dataclass(frozen=True, slots=True)
class SplitsDiscovered(Generic[SplitT]):
    """Answer to DiscoverInitial, DiscoverLater, DiscoverAfter or SwitchStage."""

    findings: DiscoveryResult[SplitT]


@dataclass(frozen=True, slots=True)
class DiscoveryFailed:
    """DiscoverInitial, DiscoverLater, DiscoverAfter or SwitchStage raised this."""

    error: Exception


@dataclass(frozen=True, slots=True)
class DiscoveryDue:
    """The time asked for by ScheduleDiscovery has passed."""


@dataclass(frozen=True, slots=True)
class ReaderRegistered:
    """The reader of a slot (0 .. parallelism-1) has started, without splits. An earlier one is lost then (FLINK-40710)."""

    reader: int


@dataclass(frozen=True, slots=True)
class ReaderLost:
    """A reader is gone, and with it everything it did since the last completed checkpoint."""

    reader: int


@dataclass(frozen=True, slots=True)
class SplitRequested:
    """A reader has nothing to read and asks for a split."""

    reader: int


@dataclass(frozen=True, slots=True)
class SplitFinished:
    """A reader has read and delivered a split to its end."""

    reader: int
    split_id: str


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """The runner asks for a checkpoint. Ids grow."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class ReaderSnapshotted(Generic[SplitT]):
    """Answer to SnapshotReader: every split that the reader holds, at what it has delivered, and those it has finished.

    `unmoved`: it holds this many more, which are where the last completed checkpoint has them.
    """

    reader: int
    checkpoint_id: int
    states: Mapping[str, SplitState[SplitT]]
    unmoved: int = 0


@dataclass(frozen=True, slots=True)
class SplitsGone:
    """Answer to ProveGone, where there is proof: these can never come back, and no checkpoint holds them any more."""

    split_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class FinishedReported:
    """Answer to ReportFinished of these. `is_done`: the source has been notified, else that has failed for now."""

    split_ids: frozenset[str]
    is_done: bool


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The checkpoint of PersistCheckpoint is durable, with everything else the runner puts alongside it."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """The checkpoint will not become durable."""

    checkpoint_id: int


SourceAnswer = SplitsDiscovered[SplitT] | DiscoveryFailed | SplitsGone | FinishedReported
"""An event that a call of the source results in."""

Event = (
    Started
    | SourceAnswer[SplitT]
    | DiscoveryDue
    | ReaderRegistered
    | ReaderLost
    | SplitRequested
    | SplitFinished
    | CheckpointTriggered
    | ReaderSnapshotted[SplitT]
    | CheckpointCompleted
    | CheckpointAborted
)

SPLITS_AT_ONCE = 500
"""A round of an incremental discovery is for this many splits, and none starts while this many are unfinished."""

# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiscoverInitial:
    """Call SplitDiscovery.initial, or `after(None, limit)` of an incremental one. Only a fresh coordinator ever asks for it."""

    limit: int = SPLITS_AT_ONCE


@dataclass(frozen=True, slots=True)
class DiscoverLater(Generic[SplitT]):
    """Call SplitDiscovery.later with this: that of the stage, if the source has stages."""

    known: Mapping[str, SplitT]
    stage: Stage | None = None


@dataclass(frozen=True, slots=True)
class DiscoverAfter:
    """Call IncrementalDiscovery.after with these. The cursor is one that the discovery has given, and never None."""

    cursor: JsonObject
    limit: int
    stage: Stage | None = None


@dataclass(frozen=True, slots=True)
class SwitchStage(Generic[SplitT]):
    """Every split of this stage is read: start the initial discovery of the next, as StagedDiscovery.following gives it.

    `cursor` and `splits` are for that, too. Until the answer, checkpoints have this stage, so the answer counts once.
    """

    stage: Stage
    cursor: JsonObject | None
    splits: tuple[SplitT, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class ScheduleDiscovery:
    """Send DiscoveryDue after this many seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Assign(Generic[SplitT]):
    """Give these splits to the reader, to be read from their positions."""

    reader: int
    splits: tuple[SplitT, ...]


@dataclass(frozen=True, slots=True)
class NoMoreSplits:
    """As things stand, no further split will come. Withdrawn by a later Assign. Derived, never stored (I8)."""

    reader: int


@dataclass(frozen=True, slots=True)
class SourceFinished:
    """Every split is read to its end and none will be added. Derived, never stored (I8)."""


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Ask the reader for its positions, in order with what was sent to it before."""

    reader: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class PersistCheckpoint(Generic[SplitT]):
    """Make this durable, then send CheckpointCompleted; or CheckpointAborted when it is certain not to be."""

    checkpoint: Checkpoint[SplitT]


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """No checkpoint is available now; nothing was changed."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class PublishPositions(Generic[SplitT]):
    """Call Source.checkpoint_completed with these: the positions that are durable now."""

    splits: tuple[SplitT, ...]


@dataclass(frozen=True, slots=True)
class ReportFinished(Generic[SplitT]):
    """Call Source.splits_finished with these, then send FinishedReported."""

    splits: tuple[SplitT, ...]


@dataclass(frozen=True, slots=True)
class ReportMissing(Generic[SplitT]):
    """Call Source.on_splits_missing with these."""

    splits: tuple[SplitT, ...]


@dataclass(frozen=True, slots=True)
class ProveGone(Generic[SplitT]):
    """Call Source.confirm_deleted with these, which were reported missing and still are; answer what it confirms, if any."""

    splits: tuple[SplitT, ...]


@dataclass(frozen=True, slots=True)
class ReportDiscoveryFailure:
    """Warn: a periodic discovery failed, or has left something inconclusive, and will be tried again."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop the job with this error."""

    error: Exception


SourceCommand = (
    DiscoverInitial
    | DiscoverLater[SplitT]
    | DiscoverAfter
    | SwitchStage[SplitT]
    | PublishPositions[SplitT]
    | ReportFinished[SplitT]
    | ReportMissing[SplitT]
    | ProveGone[SplitT]
    | ReportDiscoveryFailure
)
"""A command that is carried out by calling the source."""

Command = (
    SourceCommand[SplitT]
    | ScheduleDiscovery
    | Assign[SplitT]
    | NoMoreSplits
    | SourceFinished
    | SnapshotReader
    | PersistCheckpoint[SplitT]
    | DeclineCheckpoint
    | Fail
)
