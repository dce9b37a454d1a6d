"""One source after another: the next starts where a function of the previous one's end says (FLIP-150, HybridSource).

A stage ends when every split of it is read, and the core then switches (`Discovery.SWITCHING`). A split has the end that its
stage was made from, so every process makes the same source of it.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.connectors.base.arguments import seconds
from headrace.enumerator.envelope import readable_version, stored_number
from headrace.enumerator.errors import HeadraceError, StateError, UsageError
from headrace.enumerator.source import (
    Boundedness,
    DiscoveryResult,
    IncrementalDiscovery,
    JsonObject,
    LogSource,
    Source,
    SourceReader,
    SplitBatch,
    SplitDiscovery,
    SplitSerializer,
    Stage,
    StagedDiscovery,
    StagedSource,
    check_needs_no_ends,
    check_needs_no_finished,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceEnd:
    """What a source has ended with, for the function that makes the next: its facts are attributes.

    Of `FileSource`: `newest_modified_ms`, milliseconds since 1970, None if there were no files. Of others what `Source.end`
    gives: `cursor`, or `splits`, as they are stored.
    """

    facts: JsonObject

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what the source gives
        if name.startswith("__") or name == "facts":  # asked by pickle, before there are any
            raise AttributeError(name)
        if name not in self.facts:
            raise AttributeError(f"the end of this source has {', '.join(self.facts) or 'no facts'}, and not {name!r}")
        return self.facts[name]


NextSource: TypeAlias = Source[Any] | Callable[[SourceEnd], Source[Any]]
"""A source, or a function of the end of the previous one that gives it."""


@dataclass(frozen=True, slots=True)
class HybridSplit:
    """A split of one stage. `end`: what the previous stage has ended with; None of the first."""

    stage: int
    end: JsonObject | None
    split: Any

    @property
    def split_id(self) -> str:
        """The number of the stage, and the id there."""
        return f"{self.stage}:{self.split.split_id}"


class HybridSource(StagedSource[HybridSplit]):
    """Reads one source to its end, then the next: `Hybrid(FileSource(...), then=KafkaSource(...))`.

    - `first`: a source that ends by itself.
    - `then`: the next one, or a function that makes it of the `SourceEnd` of the previous, or several of these in order:
      `then=lambda end: KafkaSource(..., start=Timestamp(end.newest_modified_ms))`. The function is called in every process,
      also after a restore: it does no I/O, and gives the same for the same end; where no reader reports to discovery, without
      `after_read` unless a source that is given has it. Where a source is pickled, it is a function of a module. A job that
      continues may have more sources behind the last one.
    - `boundedness`: of the last one, if a function makes it; UNBOUNDED by default. All others have to end by themselves.
    - `discovery_interval_s`: seconds between two looks for new splits. Default: the shortest of these sources', 300 where a
      function makes one.

    All have the same columns, of the same types. The next stage starts when all splits of the previous one are read; where no
    reader reports to discovery, as soon as all are found, while readers may still read the previous one.
    If a reader is lost after the switch, what it had read of the previous stage since the last checkpoint is read again, while
    others read the next one.

    Raises UsageError for what cannot be chained: columns are compared at the first use.
    """

    # What a source may be asked is passed on to the stages, but for `repeatable`, `repeats` and `create_replay_reader`: an
    # engine that asks for these reads each stage by itself.

    name = "hybrid"

    def __init__(
        self,
        first: Source[Any],
        *,
        then: NextSource | Sequence[NextSource],
        boundedness: Boundedness | None = None,
        discovery_interval_s: float | None = None,
    ) -> None:
        """Raises UsageError as the class says."""
        given = (first, *(then if isinstance(then, Sequence) else (then,)))
        self.stages: tuple[NextSource, ...] = tuple(
            stage for each in given for stage in (each.stages if isinstance(each, HybridSource) else (each,))
        )
        """The first source, then each other one, or the function that makes it."""
        if not isinstance(first, Source):
            raise UsageError(f"a hybrid source starts with a source, not with {first!r}")
        for stage in self.stages[1:]:
            if not (isinstance(stage, Source) or callable(stage)):
                raise UsageError(f"a source is followed by a source or a function that makes one, not by {stage!r}")
        for stage in self.stages:
            if isinstance(stage, Source):
                check_needs_no_ends(stage, "a hybrid source")
        for number, stage in enumerate(self.stages[:-1]):
            if isinstance(stage, Source):
                self._check_end(number, stage)
        last = self.stages[-1]
        if isinstance(last, Source) and boundedness not in (None, last.boundedness):
            raise UsageError(f"source {last.name!r} is {last.boundedness.value}: leave the argument boundedness out")
        self._boundedness = last.boundedness if isinstance(last, Source) else boundedness or Boundedness.UNBOUNDED
        if discovery_interval_s is not None:
            seconds("discovery_interval_s", discovery_interval_s)
        intervals = [each.discovery_interval_s if isinstance(each, Source) else 300.0 for each in self.stages]
        known_s = min((interval for interval in intervals if interval is not None), default=None)
        self.discovery_interval_s: float | None = known_s if discovery_interval_s is None else discovery_interval_s
        self._made: dict[int, tuple[JsonObject | None, Source[Any]]] = {}
        self._schema: pa.Schema | None = None
        self._changes: tuple[Callable[[Source[Any]], Source[Any]], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    @property
    def schema(self) -> pa.Schema:
        """That of the stages; all columns may be null. Raises UsageError where they differ, and what a stage's raises."""
        if self._schema is None:
            for number, source in self.known_stages().items():
                self.check_columns(number, source)
            assert self._schema is not None, "the first stage is a source"
        return self._schema

    @property
    def boundedness(self) -> Boundedness:
        """That of the last stage."""
        return self._boundedness

    @property
    def finite_splits(self) -> bool:
        """True if it is so of all stages."""
        return self.boundedness is Boundedness.BOUNDED or all(
            isinstance(stage, Source) and stage.finite_splits for stage in self.stages
        )

    @property
    def in_pieces(self) -> bool:
        """True: each stage says how its splits are shared out."""
        return True

    def in_one_stage(self) -> HybridSource:
        """Of its sources each as that says. None that a function gives `needs_finished` then, if no other one does."""
        changed = self._changed(methodcaller("in_one_stage"))
        return changed if self.needs_finished else changed._changed(_needs_no_finished)

    def keyed_by(self, columns: Sequence[str]) -> HybridSource:
        """Of its sources each as that says."""
        return self._changed(methodcaller("keyed_by", tuple(columns)))

    def _changed(self, change: Callable[[Source[Any]], Source[Any]]) -> HybridSource:
        """One that has changed sources, also of functions."""
        changed = copy.copy(self)
        changed.stages = tuple(change(stage) if isinstance(stage, Source) else stage for stage in self.stages)
        changed._made, changed._schema, changed._changes = {}, None, (*self._changes, change)
        return changed

    def check_at_least_once(self) -> None:
        """As the sources that no function makes: the others are not known."""
        for source in self.known_stages().values():
            source.check_at_least_once()

    @property
    def split_serializer(self) -> HybridSplitSerializer:
        """JSON objects, with what the stage's own serializer gives."""
        return HybridSplitSerializer(self)

    @property
    def last_stage(self) -> int:
        """The number of the last source; the first is 0."""
        return len(self.stages) - 1

    def source_of(self, stage: int, end: JsonObject | None) -> Source[Any]:
        """The source of a stage, made from what the previous one has ended with (`end_of`).

        Raises UsageError for one that does not fit, and StateError for a stage that there is not.
        """
        if not 0 <= stage < len(self.stages):
            raise StateError(f"the state is in stage {stage} of a hybrid source, and this one has {len(self.stages)} stages")
        factory = self.stages[stage]
        if isinstance(factory, Source):
            return factory
        made = self._made.get(stage)
        if made is None or made[0] != end:
            made = self._made[stage] = end, self._make(stage, factory, end)
        return made[1]

    def known_stages(self) -> dict[int, Source[Any]]:
        """Those that no function makes."""
        return {number: stage for number, stage in enumerate(self.stages) if isinstance(stage, Source)}

    def check_columns_behind(self, stage: int, end: JsonObject | None) -> None:
        """Raise UsageError where the known sources behind a stage that a run was restored in have other columns than that one.

        Files of earlier stages may be gone, and of this one: then the next that is asked has the columns for all.
        """
        with suppress(UsageError):
            self.check_columns(stage, self.source_of(stage, end))
        for number, source in self.known_stages().items():
            if number > stage:
                self.check_columns(number, source)

    def on_stage_followed(self, stage: Stage) -> None:
        """Warn, as one that is put in ahead of a stage is not read, and that stage may be read again."""
        log.warning(
            "source %d of a hybrid one, %r, was its last when the checkpoint was made, and is followed by source %d now. One "
            "can be added behind the last one only: what was put in ahead of it is not read",
            stage.number,
            stage.source,
            stage.number + 1,
        )

    def create_discovery(self) -> HybridDiscovery:
        """The discoveries of the stages, one after another. At the first one columns that differ are refused."""
        return HybridDiscovery(self)

    def create_reader(self) -> HybridReader:
        """A reader that has one of each stage it has splits of."""
        return HybridReader(self)

    def selects(self, split: HybridSplit) -> bool:
        """As the stage's source. Raises StateError for a log's split without a stop where the source has one now."""
        source, inner = self.source_of(split.stage, split.end), split.split
        is_endless = isinstance(source, LogSource) and inner.stop_offset is None
        if is_endless and source.boundedness is Boundedness.BOUNDED:
            raise StateError(
                f"the checkpoint is of a job whose source {source.name!r} had no end, and now it has one, which is not "
                "looked for. Leave its stop out, or start without this checkpoint"
            )
        return source.selects(inner)

    def on_splits_missing(self, splits: Sequence[HybridSplit]) -> None:
        """As the stages' sources."""
        for source, inner in self._by_stage(splits).values():
            source.on_splits_missing(inner)

    def on_positions_final(self, cursor: JsonObject | None, splits: Sequence[HybridSplit]) -> None:
        """As the last one's source."""
        for stage, (source, inner) in self._by_stage(splits).items():
            if stage == self.last_stage:
                source.on_positions_final(cursor, inner)

    def confirm_deleted(self, splits: Sequence[HybridSplit]) -> frozenset[str]:
        """As the stages' sources."""
        by_stage = self._by_stage(splits).items()
        return frozenset(f"{stage}:{gone}" for stage, (source, inner) in by_stage for gone in source.confirm_deleted(inner))

    def check_readable(self, splits: Sequence[HybridSplit]) -> None:
        """As the stages' sources."""
        for source, inner in self._by_stage(splits).values():
            source.check_readable(inner)

    def lag(self, splits: Sequence[HybridSplit]) -> dict[str, int] | None:
        """Of the stages that are logs."""
        found = {stage: source.lag(inner) for stage, (source, inner) in self._by_stage(splits).items()}
        logs = {stage: behind for stage, behind in found.items() if behind is not None}
        return {f"{stage}:{name}": left for stage, behind in logs.items() for name, left in behind.items()} if logs else None

    def measures(self) -> dict[str, float]:
        """Of all sources that are known by now; of a name that several have, the last one's."""
        known = {**self.known_stages(), **{stage: source for stage, (_, source) in [*self._made.items()]}}
        return {name: value for stage in sorted(known) for name, value in known[stage].measures().items()}

    def splits_finished(self, splits: Sequence[HybridSplit]) -> None:
        """As the stages' sources."""
        for source, inner in self._by_stage(splits).values():
            source.splits_finished(inner)

    @property
    def needs_finished(self) -> bool:
        """True if it is so of a stage that no function makes."""
        return any(stage.needs_finished for stage in self.stages if isinstance(stage, Source))

    @property
    def publishes(self) -> bool:
        """True if it is so of a stage, or a function makes one."""
        return any(stage.publishes if isinstance(stage, Source) else True for stage in self.stages)

    def checkpoint_completed(self, splits: Sequence[HybridSplit]) -> None:
        """As the stages' sources."""
        for source, inner in self._by_stage(splits).values():
            source.checkpoint_completed(inner)

    def _by_stage(self, splits: Sequence[HybridSplit]) -> dict[int, tuple[Source[Any], list[Any]]]:
        found: dict[int, tuple[Source[Any], list[Any]]] = {}
        for split in sorted(splits, key=lambda split: split.stage):
            _, own = found.setdefault(split.stage, (self.source_of(split.stage, split.end), []))
            own.append(split.split)
        return found

    def _make(self, stage: int, factory: Callable[[SourceEnd], Source[Any]], end: JsonObject | None) -> Source[Any]:
        if end is None:
            raise StateError(f"the state is in stage {stage} of a hybrid source, and has not what the previous one ended with")
        source = self._called(stage, factory, SourceEnd(end))
        if not isinstance(source, Source) or isinstance(source, HybridSource):
            raise UsageError(f"the function for stage {stage} of a hybrid source has given {source!r}, and not one source")
        check_needs_no_ends(source, "a hybrid source")
        for change in self._changes:
            source = change(source)
        self.check_columns(stage, source)
        if stage < len(self.stages) - 1:
            self._check_end(stage, source)
        elif source.boundedness is not self._boundedness:
            raise UsageError(
                f"source {source.name!r}, which a function has made, is {source.boundedness.value}: give Hybrid the argument "
                f"boundedness=Boundedness.{source.boundedness.name}"
            )
        return source

    def _called(self, stage: int, factory: Callable[[SourceEnd], Source[Any]], end: SourceEnd) -> Source[Any]:
        """What the function raises by mistake is not taken for damage of a checkpoint."""
        try:
            return factory(end)
        except (HeadraceError, OSError, MemoryError):
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise UsageError(f"the function for stage {stage} of a hybrid source has failed with {end}: {problem}") from error

    def _check_end(self, stage: int, source: Source[Any]) -> None:
        if source.boundedness is not Boundedness.BOUNDED:
            raise UsageError(
                f"stage {stage}, source {source.name!r}, has no end, so that nothing can follow it: give it a stop"
            )

    def check_columns(self, stage: int, source: Source[Any]) -> None:
        """Raise UsageError where this source of a stage has other columns than those that are known already, if any are."""
        schema, name = source.schema, source.name
        wanted = self._schema = self._schema or _nullable(schema)
        for place in range(max(len(wanted), len(schema))):
            both = [each.field(place) if place < len(each) else None for each in (wanted, schema)]
            texts = ["no column" if field is None else f"{field.name!r} of {field.type}" for field in both]
            if texts[0] != texts[1]:
                raise UsageError(
                    f"column {place} is {texts[0]} in the first source, and {texts[1]} in stage {stage}, source {name!r}: all "
                    "sources of a hybrid one have the same columns. Give a schema, or choose columns"
                )


class HybridSplitSerializer(SplitSerializer[HybridSplit]):
    """Version 1: {"stage": 1, "end": {...}, "source": "kafka", "version": 1, "split": {...}}."""

    version = 1

    def __init__(self, source: HybridSource) -> None:
        self._source = source

    def serialize(self, split: HybridSplit) -> JsonObject:
        source = self._source.source_of(split.stage, split.end)
        inner = source.split_serializer
        return {
            "stage": split.stage,
            "end": split.end,
            "source": source.name,
            "version": inner.version,
            "split": inner.serialize(split.split),
        }

    def deserialize(self, version: int, data: JsonObject) -> HybridSplit:
        """Raises StateError if the stage is of another kind of source now, or cannot be made."""
        if version != 1:
            raise ValueError(f"no HybridSplit was ever written in version {version}")
        stage, end = stored_number(data["stage"]), data["end"]
        try:
            source = self._source.source_of(stage, end)
        except UsageError as error:  # a ValueError, for which damaged data would be blamed
            raise StateError(f"the source of stage {stage}, of which the state is, cannot be made: {error}") from error
        check_name(stage, data["source"], source)
        inner = source.split_serializer
        return HybridSplit(stage, end, inner.deserialize(readable_version(data["version"], inner.version), data["split"]))


def check_name(stage: int, stored: object, source: Source[Any]) -> None:
    """Raises StateError if the stage's source is not of the kind that the state is of."""
    if stored != source.name:
        raise StateError(f"stage {stage} of the state is of a {stored!r} source, and is a {source.name!r} source now")


class HybridDiscovery(StagedDiscovery[HybridSplit]):
    """Has the discovery of the stage that it was last asked for."""

    def __init__(self, source: HybridSource) -> None:
        self._source = source
        self._current: tuple[int, JsonObject | None, SplitDiscovery[HybridSplit]] | None = None

    def at(self, stage: Stage | None) -> SplitDiscovery[HybridSplit]:
        number, end = (0, None) if stage is None else (stage.number, stage.end)
        if self._current is not None and self._current[:2] == (number, end):
            return self._current[2]
        source = self._source.source_of(number, end)
        if stage is None:
            _ = self._source.schema
        else:
            self._source.check_columns_behind(number, end)
            check_name(number, stage.source, source)
        self.close()
        inner = source.create_discovery()
        place = self._stage(number, end, source)
        kind = _IncrementalStageDiscovery if isinstance(inner, IncrementalDiscovery) else _StageDiscovery
        discovery = kind(inner, place, is_last=number == len(self._source.stages) - 1)
        self._current = number, end, discovery
        return discovery

    def following(self, stage: Stage, cursor: JsonObject | None, splits: Sequence[HybridSplit]) -> Stage:
        own = [split.split for split in splits if split.stage == stage.number]
        number, end = stage.number + 1, self._source.end_of(stage.number, stage.end, cursor, own)
        self._source.check_columns_behind(stage.number, stage.end)
        return self._stage(number, end, self._source.source_of(number, end))

    def close(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current[2].close()

    def _stage(self, number: int, end: JsonObject | None, source: Source[Any]) -> Stage:
        return Stage(number, source.name, end, source.in_pieces, is_found=False)


class _StageDiscovery(SplitDiscovery[HybridSplit]):
    """The discovery of one stage, with its splits as those of the hybrid source."""

    def __init__(self, inner: SplitDiscovery[Any], stage: Stage, *, is_last: bool) -> None:
        self._inner: Any = inner
        self._stage, self._is_last = stage, is_last

    def initial(self) -> DiscoveryResult[HybridSplit]:
        return self._as_hybrid(self._inner.initial())

    def later(self, known: Mapping[str, HybridSplit]) -> DiscoveryResult[HybridSplit]:
        return self._as_hybrid(self._inner.later(self._own(known)))

    def later_or_raise(self, known: Mapping[str, HybridSplit]) -> DiscoveryResult[HybridSplit]:
        return self._as_hybrid(self._inner.later_or_raise(self._own(known)))

    def close(self) -> None:
        self._inner.close()

    def _own(self, known: Mapping[str, HybridSplit]) -> dict[str, Any]:
        return {split.split.split_id: split.split for split in known.values() if split.stage == self._stage.number}

    def _as_hybrid(self, found: DiscoveryResult[Any]) -> DiscoveryResult[HybridSplit]:
        number, end = self._stage.number, self._stage.end
        return replace(
            found,
            added=[HybridSplit(number, end, split) for split in found.added],
            missing=frozenset(f"{number}:{split_id}" for split_id in found.missing),
            complete=found.complete and self._is_last,
            stage=replace(self._stage, is_found=found.complete and not self._is_last),
        )


class _IncrementalStageDiscovery(_StageDiscovery, IncrementalDiscovery[HybridSplit]):
    """The same of one that has a cursor."""

    def after(self, cursor: JsonObject | None, limit: int) -> DiscoveryResult[HybridSplit]:
        return self._as_hybrid(self._inner.after(cursor, limit))


@dataclass(slots=True)
class _StageReader:
    """A stage's reader, and how many splits it has that are not read to their end."""

    reader: SourceReader[Any]
    splits: int = 0


class HybridReader(SourceReader[HybridSplit]):
    """Has a reader of each stage with splits. That of an earlier stage is closed when it has none, and a later one has."""

    def __init__(self, source: HybridSource) -> None:
        self._source = source
        self._readers: dict[int, _StageReader] = {}
        self._ends: dict[int, JsonObject | None] = {}
        self._linger_s = 0.0

    def linger(self, seconds: float) -> None:
        self._linger_s = seconds

    def add_splits(self, splits: Sequence[HybridSplit]) -> None:
        for split in splits:
            stage = self._readers.get(split.stage)
            if stage is None:
                self._ends[split.stage] = split.end
                reader = self._source.source_of(split.stage, split.end).create_reader()
                reader.linger(self._linger_s)
                stage = self._readers[split.stage] = _StageReader(reader)
            stage.reader.add_splits([split.split])
            stage.splits += 1

    def poll(self, timeout: float) -> SplitBatch[HybridSplit] | None:
        last = max(self._readers, default=0)
        for number in [number for number, stage in self._readers.items() if not stage.splits and number < last]:
            self._readers.pop(number).reader.close()
        active = [number for number, stage in self._readers.items() if stage.splits]
        if not active:
            time.sleep(timeout)
        for number in active:
            stage = self._readers[number]
            batch = stage.reader.poll(timeout / len(active))
            if batch is not None:
                self._readers[number] = self._readers.pop(number)  # to the end, so that the others are not starved
                stage.splits -= batch.finished
                split = HybridSplit(number, self._ends[number], batch.split)
                return SplitBatch(split, _relabelled(batch.records), batch.finished, batch.is_behind)
        return None

    def wake_up(self) -> None:
        for stage in [*self._readers.values()]:  # its thread may change them meanwhile
            stage.reader.wake_up()

    def checkpoint_completed(self, splits: Sequence[HybridSplit]) -> None:
        for number, stage in self._readers.items():
            stage.reader.checkpoint_completed([split.split for split in splits if split.stage == number])

    def close(self) -> None:
        while self._readers:
            self._readers.popitem()[1].reader.close()


def _needs_no_finished(source: Source[Any]) -> Source[Any]:
    check_needs_no_finished(
        source, "a function gives it, of which the engine does not know at the start. Give Hybrid the source"
    )
    return source


def _relabelled(records: pa.RecordBatch) -> pa.RecordBatch:
    """A column may not be null in one stage, and may in another."""
    columns = _nullable(records.schema)
    return records if records.schema.equals(columns) else pa.RecordBatch.from_arrays(records.columns, schema=columns)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])
