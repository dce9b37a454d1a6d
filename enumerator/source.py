"""What a connector implements: a Source, its split discovery, its reader, and the serializer of its splits (FLIP-27).

Discovery is apart from assignment. A connector states which splits exist and how one is read; which reader reads which
split, when, and from which checkpoint on, is decided by the enumerator, in the same way for every connector.

The contract of sinks is `headrace.connectors.base.sink`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, Self

import pyarrow as pa

from headrace.enumerator.errors import ProtocolViolationError, RetriableError, UsageError
from headrace.enumerator.split import OffsetSplitT, SourceSplit, SplitT, StagedSplit

JsonObject = Mapping[str, Any]
ALL_SPLITS = sys.maxsize
"""The limit of a discovery that is to find all there are."""


class Boundedness(Enum):
    """Whether reading ends by itself."""

    BOUNDED = "bounded"
    UNBOUNDED = "unbounded"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a source of several stages is. Checkpoints have it, so a stage is entered once.

    `number`: from 0. `source`: the name of the stage's source. `end`: what the previous stage has ended with, None of the
    first. `in_pieces`: whether its splits are pieces of work, to be shared out a few at a time. `is_found`: no split of it will
    ever be added, and another stage follows when they are read. `needs_ends`: the next is made from the splits as they are when
    they are read, so the switch waits until a checkpoint has all of them.
    """

    number: int
    source: str
    end: JsonObject | None
    in_pieces: bool
    is_found: bool
    needs_ends: bool = False


def is_before(split: SourceSplit, stage: Stage) -> bool:
    """Whether the split is of an earlier stage."""
    return isinstance(split, StagedSplit) and split.stage < stage.number


@dataclass(frozen=True, slots=True)
class DiscoveryResult(Generic[SplitT]):
    """What one discovery round found.

    `added` are splits with resolved positions; one that the ledger already knows is ignored there, so repeating an answer
    is harmless. `missing` are ids of known splits that no longer exist. `complete` states that no split will ever be added.
    `inconclusive`: why this is not all yet, where that holds up nothing else; the next look may tell. Not when `complete`.
    `cursor` and `more` are those of an `IncrementalDiscovery`, which always gives a cursor: the place behind `added`, and
    whether there are further splits behind it now. `stage` is that of a `StagedDiscovery`, in each of its answers.
    `replan`: what has changed so that a job reads it from its next start on only, such as another schema; for people.
    `headrace run` then takes a checkpoint and starts again, once for the same words; others do nothing, so log it, too.
    """

    added: Sequence[SplitT]
    missing: frozenset[str] = frozenset()
    complete: bool = False
    inconclusive: RetriableError | None = None
    cursor: JsonObject | None = None
    more: bool = False
    stage: Stage | None = None
    replan: str | None = None


class SplitDiscovery(ABC, Generic[SplitT]):
    """Finds splits. Runs where the coordinator runs; may block and do IO; is called by one thread at a time.

    The two methods are two paths on purpose: a restored enumerator only ever reaches `later`, so it cannot
    initialise again (Beam #31313, #34890).
    """

    @abstractmethod
    def initial(self) -> DiscoveryResult[SplitT]:
        """Every split there is, at the position the user chose. Once in the lifetime of a job, before its first checkpoint."""

    @abstractmethod
    def later(self, known: Mapping[str, SplitT]) -> DiscoveryResult[SplitT]:
        """Splits not in `known` (id -> split at its last durable position), at the position for splits discovered later."""

    def later_or_raise(self, known: Mapping[str, SplitT]) -> DiscoveryResult[SplitT]:
        """As `later`, for callers that look once. Raises RetriableError while something is inconclusive; may wait for that to
        end.

        Default: does not wait.
        """
        findings = self.later(known)
        if findings.inconclusive is not None:
            raise findings.inconclusive
        return findings

    def close(self) -> None:
        """Release connections. Called once, by the thread that made the discovery."""


class IncrementalDiscovery(SplitDiscovery[SplitT], Generic[SplitT]):
    """Finds splits in a fixed order, and states by a cursor how far it has come. For sources of very many finite splits.

    The cursor is stored in place of the splits that were read to their end: those are forgotten, and are not asked for again.
    A split is never found twice: not behind any cursor that follows one which it was found before.
    """

    @abstractmethod
    def after(self, cursor: JsonObject | None, limit: int) -> DiscoveryResult[SplitT]:
        """About `limit` splits behind the cursor, in order; `None` is the start that the user chose. A file's stay together.

        Called with None once in the lifetime of a job, before its first checkpoint. The cursor is a small JSON object.
        """

    def initial(self) -> DiscoveryResult[SplitT]:
        """All splits that there are now: they have to fit into memory."""
        found = self.after(None, ALL_SPLITS)
        added = [*found.added]
        while found.more:
            found = self.after(found.cursor, ALL_SPLITS)
            added += found.added
        return replace(found, added=added)

    def later(self, known: Mapping[str, SplitT]) -> DiscoveryResult[SplitT]:
        """Not for this kind: raises ProtocolViolationError."""
        raise ProtocolViolationError(f"{type(self).__name__} continues at a cursor, and not by {len(known)} known splits")


class StagedDiscovery(SplitDiscovery[SplitT], Generic[SplitT]):
    """The discoveries of a source of several stages, one after another.

    Splits have the number of their stage as `stage` (`StagedSplit`), and ids that no other stage gives.
    """

    @abstractmethod
    def at(self, stage: Stage | None) -> SplitDiscovery[SplitT]:
        """The discovery of a stage, None for the first. Raises StateError for a stage that the source does not have."""

    @abstractmethod
    def following(self, stage: Stage, cursor: JsonObject | None, splits: Sequence[SplitT]) -> Stage:
        """The next stage, when every split of this one is read.

        `cursor` and `splits` are what a checkpoint has of it: where the stage `needs_ends`, each split at its end. Does no I/O;
        the same for the same arguments.
        """

    def initial(self) -> DiscoveryResult[SplitT]:
        """Of the first stage."""
        return self.at(None).initial()

    def later(self, known: Mapping[str, SplitT]) -> DiscoveryResult[SplitT]:
        """Not for this kind: raises ProtocolViolationError."""
        raise ProtocolViolationError(f"{type(self).__name__} continues in a stage, and not by {len(known)} known splits")


@dataclass(frozen=True, slots=True)
class SplitBatch(Generic[SplitT]):
    """Records of one split, and the split as it is once they are delivered.

    `records` may have no rows while the split still moved (control records, aborted transactions, compaction gaps: I3).
    `is_behind`: there are none, as its reader is on the way to what the source had when it connected. For engines that end, or
    end a task, when nothing comes.
    """

    split: SplitT
    records: pa.RecordBatch
    finished: bool = False
    is_behind: bool = False


class SourceReader(ABC, Generic[SplitT]):
    """Reads the splits it was given. Owned by one thread of a reader process; keeps no durable state of its own.

    The position of a split is that of the last delivered `SplitBatch`, so what a reader has fetched ahead is in no checkpoint.
    """

    @abstractmethod
    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Start to read these, each from its own position. Does not block."""

    @abstractmethod
    def poll(self, timeout: float) -> SplitBatch[SplitT] | None:
        """The next batch, or None when nothing came within `timeout` seconds. The batch with `finished` is a split's last."""

    def linger(self, seconds: float) -> None:
        """Records may wait so long for others, as few large batches cost less than many small ones. Default: none waits.

        Called before `add_splits`, by a runner whose rows wait for a checkpoint in any case (as Kafka's `linger.ms`).
        """

    def wake_up(self) -> None:
        """Have `poll` return soon, the call under way or the next one. Called by any thread. Default: it waits to its end."""

    def checkpoint_completed(self, splits: Sequence[SplitT]) -> None:
        """These are durable positions of its splits, some of which may be finished. For what only their reader can publish.

        Called by `headrace run` and in one process; not by Spark and Beam. Default: does nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop fetching and release connections. May be called more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SplitSerializer(ABC, Generic[SplitT]):
    """Turns splits into JSON objects and back. Keeps a reader for every released version."""

    version: int
    """The version that `serialize` writes. Starts at 1."""

    @abstractmethod
    def serialize(self, split: SplitT) -> JsonObject:
        """The split as a JSON object, position included."""

    @abstractmethod
    def deserialize(self, version: int, data: JsonObject) -> SplitT:
        """The split that `serialize` of that version wrote. KeyError, TypeError and ValueError mean damaged data."""


class Source(ABC, Generic[SplitT]):
    """A source, written once and run by any runner. Picklable; its constructor validates and does no I/O."""

    name: str
    """Stored in every checkpoint, so that state of one kind of source is never given to another."""

    schema: pa.Schema
    """Schema of every record batch the readers yield."""

    discovery_interval_s: float | None = None
    """Seconds between two looks for new splits, for runners that look by themselves; None looks at start and restore only."""

    @property
    @abstractmethod
    def boundedness(self) -> Boundedness:
        """BOUNDED when reading ends by itself."""

    @property
    def finite_splits(self) -> bool:
        """Whether each split has an end, which its reader reaches by itself. Default: if the source is bounded.

        An engine that plans tasks then plans whole splits. Otherwise a task stops where a limit is reached or nothing comes.
        """
        return self.boundedness is Boundedness.BOUNDED

    @property
    def in_pieces(self) -> bool:
        """Whether splits are pieces of work, which a reader gets a few at a time. Default: if they are finite; not of a log."""
        return self.finite_splits

    @property
    def needs_ends(self) -> bool:
        """Whether its discovery continues from how readers have ended its splits (`Stage.needs_ends`). Default: False.

        `headrace run` and one process can do that, and Spark's streams if it is a `StagedSource`; others refuse it.
        """
        return False

    def in_one_stage(self) -> Source[Any]:
        """The source for Beam, whose readers do not report to discovery. Does no I/O. Default: itself."""
        return self

    @property
    def repeatable(self) -> bool:
        """Whether a split gives the same records when it is read again. Default: True.

        Where it does not, an engine that runs a task again keeps what the first attempt has read.
        """
        return True

    def repeats(self, splits: Sequence[SplitT]) -> bool:
        """Whether these splits are repeatable, where others may not be. Default: as `repeatable` is."""
        return self.repeatable

    @property
    @abstractmethod
    def split_serializer(self) -> SplitSerializer[SplitT]:
        """The serializer of this source's splits."""

    @abstractmethod
    def create_discovery(self) -> SplitDiscovery[SplitT]:
        """A discovery for the coordinator's process."""

    @abstractmethod
    def create_reader(self) -> SourceReader[SplitT]:
        """A reader for one reader process."""

    def create_replay_reader(self) -> SourceReader[SplitT]:
        """A reader that gives again what one has given of splits that it `repeats`. Default: as any."""
        return self.create_reader()

    def check_at_least_once(self) -> None:
        """A sink keeps what failed attempts have written. Raise UsageError if what is read again may never make up for that.

        Does no I/O. Default: it does.
        """

    def keyed_by(self, columns: Sequence[str]) -> Source[SplitT]:
        """The source for a sink in which a row takes the place of the one with the same values in these columns.

        Does no I/O: a source that cannot be read into such a sink raises UsageError where it is first used. Default: itself.
        """
        return self

    def selects(self, split: SplitT) -> bool:
        """Whether this source reads such a split, be it there or not. Asked of splits that come from a checkpoint.

        Those that it does not are reported to `on_splits_missing`; where that returns they are left out. Does no I/O. Default:
        True.
        """
        return True

    def on_splits_missing(self, splits: Sequence[SplitT]) -> None:
        """Known splits have vanished. Raise DataLossError to stop the job, or return to continue. Coordinator's process."""

    def on_positions_final(self, cursor: JsonObject | None, splits: Sequence[SplitT]) -> None:
        """A checkpoint with these, as `end` has them, is continued, and nothing else will be discovered. Warn of what is asked
        for now and is not read, or raise StateError.

        Coordinator's process; may contact the source, and raises what that raises. Default: does nothing.
        """

    def confirm_deleted(self, splits: Sequence[SplitT]) -> frozenset[str]:
        """Ids of those of these vanished splits that can never come back, by proof: checkpoints leave them out.

        Called after each discovery, for what `on_splits_missing` has tolerated and is still missing. Coordinator's process.
        Default: none, as what has vanished may only be out of sight.
        """
        return frozenset()

    def check_readable(self, splits: Sequence[SplitT]) -> None:
        """Raise DataLossError, naming them, if records after these positions are gone, and that is not tolerated.

        Asked before a runner goes back to an older checkpoint. Coordinator's process; may contact the source, and raises what
        that raises. Default: no one knows, and the readers tell.
        """

    def lag(self, splits: Sequence[SplitT]) -> Mapping[str, int] | None:
        """Split id -> how many offsets are left to the end, of those of these that are of a log. None: none is.

        Coordinator's process; may contact the source, and raises what that raises. Default: None.
        """
        return None

    def measures(self) -> Mapping[str, float]:
        """Numbers about what is kept for this source until it is read, by the ends of their metrics' names: `headrace_run_...`.

        Coordinator's process, after checkpoints; may contact the source, and raises what that raises. Default: none.
        """
        return {}

    def splits_finished(self, splits: Sequence[SplitT]) -> None:
        """These were read to their end, durably: they may be archived or removed. Coordinator's process.

        Each at least once, also again after a restore. Default: does nothing.
        """

    @property
    def needs_finished(self) -> bool:
        """Whether it was asked for what `splits_finished` does, so that an engine that does not call it refuses the source.

        Default: False.
        """
        return False

    def end(self, cursor: JsonObject | None, splits: Sequence[SplitT]) -> JsonObject:
        """What a source that follows this one can know of its end: a small JSON object. Does no I/O.

        `cursor` is that of an incremental discovery, `splits` are those of any other, when all are read to their end: the
        positions are those of an earlier checkpoint. Default: the cursor, or the splits as they are stored.
        """
        return {"splits": list(map(self.split_serializer.serialize, splits))} if cursor is None else {"cursor": cursor}

    @property
    def publishes(self) -> bool:
        """Whether `checkpoint_completed` or `splits_finished` does anything, for runners where that has a price.

        Default: if one of them is overridden.
        """
        own = type(self)
        is_completed = own.checkpoint_completed is not Source.checkpoint_completed
        return is_completed or own.splits_finished is not Source.splits_finished

    def checkpoint_completed(self, splits: Sequence[SplitT]) -> None:
        """These positions are durable and may now be published (group offsets). Coordinator's process."""


class StagedSource(Source[SplitT], Generic[SplitT]):
    """A source of several stages, each of which is a source, too: for engines that read one source at a time.

    All but the last are bounded, and have the columns of the whole source. What a stage has ended with makes the next one.
    """

    @property
    @abstractmethod
    def last_stage(self) -> int:
        """The number of the last stage; the first is 0."""

    @abstractmethod
    def source_of(self, stage: int, end: JsonObject | None) -> Source[Any]:
        """The source of a stage, made from what the previous one has ended with. In every process; does no I/O.

        Raises UsageError for one that does not fit, and StateError for a stage that there is not.
        """

    def known_stages(self) -> Mapping[int, Source[Any]]:
        """The stages whose sources are known before any is read, by number. Does no I/O. Default: the first one."""
        return {0: self.source_of(0, None)}

    def end_of(self, stage: int, end: JsonObject | None, cursor: JsonObject | None, splits: Sequence[Any]) -> JsonObject:
        """What a stage ends with that was made from `end`, and has come to this cursor or had these splits."""
        return self.source_of(stage, end).end(cursor, splits)

    def on_stage_followed(self, stage: Stage) -> None:
        """This was the last stage when the checkpoint was made, and another follows it now. Does no I/O. Default: nothing."""

    def kept_end(self, stage: int, end: JsonObject | None) -> JsonObject | None:
        """What a stage is made from once its first positions are durable. Default: the same `end`. Stored with every batch."""
        return end


def check_needs_no_ends(source: Source[Any], where: str) -> None:
    """Raise UsageError for a source that `needs_ends`, where readers do not report to discovery."""
    if source.needs_ends:
        raise UsageError(
            f"source {source.name!r} cannot be read by {where} yet: read it by `headrace run`, in one process, or as a stream "
            "of Spark"
        )


def check_needs_no_finished(source: Source[Any], advice: str) -> None:
    """Raise UsageError for a source that `needs_finished`, where what is read to its end is not reported, or not durable."""
    if source.needs_finished:
        raise UsageError(
            f"source {source.name!r} is to archive or delete what was read (after_read), which is not safe here: {advice}"
        )


class LogSource(Source[OffsetSplitT]):
    """A source whose splits are ranges of integer offsets, so that an engine can plan tasks over them by itself."""

    @property
    def in_pieces(self) -> bool:
        """False: the splits of a log are read side by side."""
        return False

    @abstractmethod
    def end_offsets(self, splits: Sequence[OffsetSplitT]) -> Mapping[str, int]:
        """Split id -> offset after the last readable record now (or the split's own stop, if that is lower). Driver process.

        Never behind a split's `next_offset`: a source that has gone back is data loss, which this reports as such.
        """

    def lag(self, splits: Sequence[OffsetSplitT]) -> dict[str, int]:
        """By `end_offsets`."""
        ends = self.end_offsets(splits)
        return {split.split_id: max(0, ends[split.split_id] - split.next_offset) for split in splits}

    def at_end(self, splits: Sequence[OffsetSplitT]) -> Mapping[str, OffsetSplitT]:
        """Split id -> the split as it is at its end now, with what the source wants to know of it later.

        Driver process. Raises as `end_offsets`, whose numbers it has. Override it and `moved` to keep more than a number. An
        end before the position is data loss that the source tolerates, with proof of what is lost: reading continues there.
        """
        ends = self.end_offsets(splits)
        return {split.split_id: split.between(ends[split.split_id], split.stop_offset) for split in splits}

    def moved(self, at_end: OffsetSplitT, offset: int) -> OffsetSplitT:
        """What `at_end` gave, at an earlier offset or the same, without a stop: what is stored when it is read so far."""
        return at_end.between(offset, None)

    def retired(self, splits: Sequence[OffsetSplitT]) -> frozenset[str]:
        """Ids of those of these vanished splits whose state may be forgotten by an engine that plans its own tasks.

        Asked for splits that `on_splits_missing` has tolerated. Default: those that are `confirm_deleted`.
        """
        return self.confirm_deleted(splits)

    def end(self, cursor: JsonObject | None, splits: Sequence[OffsetSplitT]) -> JsonObject:
        """`splits`: as they are stored, each at its stop."""
        return super().end(cursor, [split.between(split.stop_offset or 0, split.stop_offset) for split in splits])

    @abstractmethod
    def stop_offsets(self, splits: Sequence[OffsetSplitT]) -> Mapping[str, int]:
        """Split id -> where reading of each of these splits ends by the source's own stop, asked now; empty without a stop.

        For a source that starts at a checkpoint's positions: its own start is not looked at, and neither are the splits' stops.
        Coordinator's process. Raises what discovery raises of a stop.
        """

    @abstractmethod
    def with_columns(self, columns: Sequence[str]) -> Self:
        """The same source, building only these columns of its schema, in this order."""
