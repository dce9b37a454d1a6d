"""A source that starts where a checkpoint of another job is, in an engine that keeps the positions itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Generic

from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import StateError, UsageError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import (
    Boundedness,
    DiscoveryResult,
    IncrementalDiscovery,
    JsonObject,
    LogSource,
    Source,
    SplitDiscovery,
    Stage,
    StagedDiscovery,
    StagedSource,
    is_before,
)
from headrace.enumerator.split import OffsetSplitT, SplitT


class ResumedDiscovery(SplitDiscovery[SplitT], Generic[SplitT]):
    """Its initial answer has the checkpoint's splits at their positions, and those that have appeared since.

    These start where splits start that are discovered later. Called as the source's own discovery.
    """

    def __init__(
        self, source: Source[SplitT], checkpoint: Checkpoint[SplitT], discovery: SplitDiscovery[SplitT] | None = None
    ) -> None:
        """`discovery`: in place of the source's own."""
        self._source, self._checkpoint = source, checkpoint
        self._discovery = discovery or source.create_discovery()

    def initial(self) -> DiscoveryResult[SplitT]:
        """Raises UsageError where a split was read to its end and others may appear: it would be found again."""
        left = {state.split.split_id: state.split for state in self._checkpoint.splits if not state.finished}
        stage = self._checkpoint.stage
        if self._checkpoint.exhausted:
            _tell_final(self._source, self._checkpoint)
            return DiscoveryResult(list(left.values()), complete=True, stage=stage)
        finished = [state.split for state in self._checkpoint.splits if state.finished]
        earlier = [split for split in finished if stage is not None and is_before(split, stage)]
        ended = [split for split in finished if split not in earlier]
        is_found = stage is not None and stage.is_found
        if ended and not (is_found and isinstance(_source_of(self._source, stage), LogSource)):
            raise UsageError(f"source {self._source.name!r} cannot start there: {ended[0].split_id} was read to its end")
        if earlier:
            self._source.splits_finished(earlier)
        if is_found:  # the end of a log is that of all its splits
            return DiscoveryResult([*left.values(), *ended], stage=stage)
        found = self._discovery.later_or_raise(left)
        return DiscoveryResult([*left.values(), *found.added], found.missing, found.complete, stage=found.stage)

    def later(self, known: Mapping[str, SplitT]) -> DiscoveryResult[SplitT]:
        return self._discovery.later(known)

    def close(self) -> None:
        self._discovery.close()


class ResumedLogDiscovery(ResumedDiscovery[OffsetSplitT]):
    """The same of a log. Where reading ends is for the source to say, and not for the checkpoint, whose job had its own end.

    Without a stop each split continues from its position, also one that was read to its stop; with one, up to what that is now.
    """

    _source: LogSource[OffsetSplitT]

    def initial(self) -> DiscoveryResult[OffsetSplitT]:
        """Raises what discovery raises, but of the start, which is not looked at; with a stop as `LogSource.at_end`."""
        known = {state.split.split_id: state.split for state in self._checkpoint.splits}
        found = self._discovery.later_or_raise(known)
        started = {**known, **{split.split_id: split for split in found.added}}
        if self._source.boundedness is Boundedness.UNBOUNDED:
            return DiscoveryResult(
                [split.between(split.next_offset, None) for split in started.values()], found.missing, found.complete
            )
        there = [split.between(split.next_offset, None) for split in started.values() if split.split_id not in found.missing]
        # A log that was truncated below a position is looked for here: up to a stop before it, nothing would be fetched.
        ends = self._source.at_end(there)
        started |= {split_id: end for split_id, end in ends.items() if end.next_offset < started[split_id].next_offset}
        stops = self._source.stop_offsets(there)
        # one that is missing has nothing to read, and is reported
        added = [split.between(at := split.next_offset, max(at, stops.get(split.split_id, at))) for split in started.values()]
        return DiscoveryResult(added, found.missing, complete=True)


class ResumedIncrementalDiscovery(IncrementalDiscovery[SplitT]):
    """The same of an incremental discovery: it continues behind the checkpoint's cursor."""

    def __init__(
        self, source: Source[SplitT], checkpoint: Checkpoint[SplitT], discovery: SplitDiscovery[SplitT] | None = None
    ) -> None:
        """`discovery`: in place of the source's own. Raises StateError if that is of another kind."""
        discovery = discovery or source.create_discovery()
        if not isinstance(discovery, IncrementalDiscovery):
            raise StateError(
                f"source {source.name!r} cannot start there: it does not continue at the cursor {checkpoint.cursor}"
            )
        self._source, self._checkpoint, self._discovery = source, checkpoint, discovery

    def after(self, cursor: JsonObject | None, limit: int) -> DiscoveryResult[SplitT]:
        """First what the checkpoint has. Its finished splits may not be reported to the source yet, so that is done here."""
        if cursor is not None:
            return self._discovery.after(cursor, limit)
        finished = [state.split for state in self._checkpoint.splits if state.finished]
        if finished:
            self._source.splits_finished(finished)
        left = [state.split for state in self._checkpoint.splits if not state.finished]
        is_over = _is_over(self._source, self._checkpoint)
        if is_over:
            _tell_final(self._source, self._checkpoint)
        return DiscoveryResult(
            left, complete=is_over, cursor=self._checkpoint.cursor, more=not is_over, stage=self._checkpoint.stage
        )

    def close(self) -> None:
        self._discovery.close()


class ResumedStagedDiscovery(StagedDiscovery[SplitT]):
    """The same of a source of several stages: it continues in the checkpoint's."""

    def __init__(self, source: Source[SplitT], checkpoint: Checkpoint[SplitT]) -> None:
        """Raises StateError if the source has no stages."""
        discovery = source.create_discovery()
        if not isinstance(discovery, StagedDiscovery):
            raise StateError(f"source {source.name!r} cannot start there: it has no stages, as {checkpoint.stage}")
        self._source, self._checkpoint, self._stages = source, checkpoint, discovery

    def at(self, stage: Stage | None) -> SplitDiscovery[SplitT]:
        """The first is the one that resumes."""
        if stage is not None:
            return self._stages.at(stage)
        kind = ResumedDiscovery if self._checkpoint.cursor is None else ResumedIncrementalDiscovery
        return kind(self._source, self._checkpoint, self._stages.at(self._checkpoint.stage))

    def following(self, stage: Stage, cursor: JsonObject | None, splits: Sequence[SplitT]) -> Stage:
        return self._stages.following(stage, cursor, splits)

    def close(self) -> None:
        self._stages.close()


def resumed_discovery(source: Source[SplitT], checkpoint: Checkpoint[SplitT]) -> SplitDiscovery[SplitT]:
    """The source's discovery for an engine that starts where this checkpoint is. Raises StateError for one of another kind."""
    checkpoint = _staged(source, checkpoint)
    if checkpoint.stage is not None:
        return ResumedStagedDiscovery(source, checkpoint)
    if checkpoint.cursor is not None:
        return ResumedIncrementalDiscovery(source, checkpoint)
    return ResumedLogDiscovery(source, checkpoint) if isinstance(source, LogSource) else ResumedDiscovery(source, checkpoint)


def _is_over(source: Source[SplitT], positions: Checkpoint[SplitT]) -> bool:
    """A source without an end continues at the cursor where one with an end had come to it."""
    return positions.exhausted and source.boundedness is Boundedness.BOUNDED


def _tell_final(source: Source[SplitT], positions: Checkpoint[SplitT]) -> None:
    """A cursor is one of the stage's source, splits are those of all."""
    if positions.cursor is None:
        source.on_positions_final(None, [state.split for state in positions.splits])
        return
    _source_of(source, positions.stage).on_positions_final(positions.cursor, ())


def _source_of(source: Source[SplitT], stage: Stage | None) -> Source[SplitT]:
    """That of the stage, if there are stages."""
    return source.source_of(stage.number, stage.end) if stage is not None and isinstance(source, StagedSource) else source


def _followed(source: Source[SplitT], positions: Checkpoint[SplitT]) -> Checkpoint[SplitT]:
    """All of their stage is found, and if it is not the last one any more, that is not all there is. If it is the last one
    now, that is all.
    """
    stage = positions.stage
    if stage is None or not isinstance(source, StagedSource):
        return positions
    if stage.is_found and stage.number == source.last_stage and not stage.needs_ends:
        return replace(positions, exhausted=True, stage=replace(stage, is_found=False))
    if not positions.exhausted or stage.number >= source.last_stage or source.needs_ends:
        return positions  # of which the last splits may be of another kind
    source.on_stage_followed(stage)
    return replace(positions, exhausted=False, stage=replace(stage, is_found=True))


def _staged(source: Source[SplitT], positions: Checkpoint[SplitT]) -> Checkpoint[SplitT]:
    """These positions by the stages that there are now. Raises StateError for an end that is none now, without a cursor."""
    found = _followed(source, positions)
    is_endless = source.boundedness is Boundedness.UNBOUNDED
    if found.cursor is None and found.exhausted and is_endless and _had_end(source, found):
        raise StateError(
            f"the checkpoint is of a job whose source {source.name!r} had an end, and now it has none: nothing behind that end "
            "would be read. Give the source that end again, or start without this checkpoint"
        )
    return found


def restaged(source: Source[SplitT], positions: Checkpoint[SplitT]) -> Checkpoint[SplitT]:
    """These positions by the stages and the end that the source has now. Raises StateError as `selected`."""
    found = _staged(source, positions)
    return found if found.cursor is None else replace(found, exhausted=_is_over(source, found))


def _had_end(source: Source[SplitT], positions: Checkpoint[SplitT]) -> bool:
    """All splits of a source without an end may be found, too, if they have none; and a log continues without its stops."""
    if positions.stage is not None:
        return True
    if isinstance(source, LogSource):
        return False
    return source.finite_splits or any(state.finished for state in positions.splits)


def resumed(source: Source[SplitT], positions: Checkpoint[SplitT]) -> Checkpoint[SplitT]:
    """Where a run of this source starts with these positions: a log ends where the source says, and not where that job ended.

    So a run without a stop continues after one that had one, and the other way round. Contacts a log's source. Raises what its
    discovery raises, and what it reports about splits that are missing.
    """
    positions = _selected(source, positions)
    return _continued(source, positions) if positions.cursor is None and isinstance(source, LogSource) else positions


def _continued(source: LogSource[OffsetSplitT], positions: Checkpoint[OffsetSplitT]) -> Checkpoint[OffsetSplitT]:
    with closing(ResumedLogDiscovery(source, positions)) as discovery:
        found = discovery.initial()
    lost = [split for split in found.added if split.split_id in found.missing]
    if lost and found.complete:  # there is no later discovery
        source.on_splits_missing(lost)
    states = tuple(SplitState(split, finished=False) for split in found.added)
    return Checkpoint(positions.checkpoint_id, states, found.complete)


def selected(source: Source[SplitT], positions: Checkpoint[SplitT]) -> Checkpoint[SplitT]:
    """These positions without the splits that the source selects no more, as its subscription was changed.

    What it selects now and did not before is for discovery to find; where none follows, the source reports it. A stage that was
    the last one is followed by those that the source has behind it now. A source without an end continues behind the cursor of
    one that had an end; a log continues without its stops, or gets stops if it had none, for which it is contacted. Stops that
    there are stay as they are. Raises what the source reports about splits that it does not tolerate to be left out, and
    StateError for another source, without a cursor, that had an end.
    """
    found = _selected(source, positions)
    if found.exhausted:
        _tell_final(source, found)
    return found


def _selected(source: Source[SplitT], positions: Checkpoint[SplitT]) -> Checkpoint[SplitT]:
    positions = restaged(source, positions)
    is_bounded = source.boundedness is Boundedness.BOUNDED
    left_out = [state.split for state in positions.splits if not source.selects(state.split)]
    if left_out:
        source.on_splits_missing(left_out)
        positions = replace(positions, splits=tuple(state for state in positions.splits if source.selects(state.split)))
    has_other_end = positions.cursor is None and positions.stage is None and positions.exhausted != is_bounded
    return _continued(source, positions) if has_other_end and isinstance(source, LogSource) else positions
