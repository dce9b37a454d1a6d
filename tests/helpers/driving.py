"""Short ways to drive a coordinator by hand, for tests that replay a sequence of events."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from headrace import enumerator as enumeration
from headrace.enumerator import Checkpoint, CheckpointSerializer, Coordinator, DiscoveryResult, SplitEnumerator, SplitState
from headrace.enumerator import events as e
from headrace.enumerator.source import Stage
from headrace.testing.memory import MemoryLog, MemorySplit, MemorySplitSerializer

SERIALIZER = CheckpointSerializer("memory", MemorySplitSerializer())
CommandT = TypeVar("CommandT")


def split(split_id: str, next_offset: int = 0, stop_offset: int | None = None) -> MemorySplit:
    return MemorySplit(split_id, next_offset, stop_offset)


def reading(split_id: str, next_offset: int, stop_offset: int | None = None) -> SplitState[MemorySplit]:
    return SplitState(split(split_id, next_offset, stop_offset), finished=False)


def finished(split_id: str, stop_offset: int) -> SplitState[MemorySplit]:
    return SplitState(split(split_id, stop_offset, stop_offset), finished=True)


def checkpoint_of(
    *states: SplitState[Any], exhausted: bool = False, cursor: Mapping[str, Any] | None = None, stage: Stage | None = None
) -> Checkpoint[Any]:
    return Checkpoint(7, states, exhausted, cursor, stage)


def log_of(**splits: str) -> MemoryLog:
    log = MemoryLog()
    for split_id, values in splits.items():
        log.create(split_id)
        log.append(split_id, values)
    return log


class Driver:
    """A started coordinator, and every command it gave."""

    def __init__(
        self, checkpoint: Checkpoint[MemorySplit] | None = None, *, parallelism: int = 2,
        assignment: type[SplitEnumerator[Any]] = enumeration.EagerEnumerator, discovery_interval_s: float | None = None,
    ) -> None:  # fmt: skip
        options: dict[str, Any] = {"parallelism": parallelism, "discovery_interval_s": discovery_interval_s}
        enumerator: SplitEnumerator[MemorySplit]
        if checkpoint is None:
            enumerator = enumeration.create_enumerator(assignment, **options)
        else:
            through_bytes = SERIALIZER.deserialize(SERIALIZER.serialize(checkpoint))
            enumerator = enumeration.restore_enumerator(assignment, through_bytes, **options)
        self.coordinator = Coordinator(enumerator)
        self.commands: list[Any] = []
        self.send(e.Started())

    @property
    def ledger(self) -> Any:
        return self.coordinator.enumerator.ledger

    def send(self, *events: Any) -> list[Any]:
        commands = [command for event in events for command in self.coordinator.handle(event)]
        self.commands += commands
        return commands

    def discovered(self, *splits: MemorySplit, complete: bool = False, missing: Iterable[str] = ()) -> list[Any]:
        return self.send(e.SplitsDiscovered(DiscoveryResult(splits, frozenset(missing), complete)))

    def register(self, *readers: int) -> list[Any]:
        return self.send(*(e.ReaderRegistered(reader) for reader in readers))

    def snapshot(self, reader: int, checkpoint_id: int, *states: SplitState[MemorySplit]) -> list[Any]:
        reported = {state.split.split_id: state for state in states}
        return self.send(e.ReaderSnapshotted(reader, checkpoint_id, reported))

    def checkpoint(self, checkpoint_id: int, **reports: list[SplitState[MemorySplit]]) -> Checkpoint[MemorySplit]:
        """Triggered, answered (r0=[...], r1=[...]) and not completed yet: the checkpoint to persist."""
        commands = self.send(e.CheckpointTriggered(checkpoint_id))
        for reader, states in reports.items():
            commands += self.snapshot(int(reader[1:]), checkpoint_id, *states)
        (persist,) = only(commands, e.PersistCheckpoint)
        return persist.checkpoint


def only(commands: list[Any], kind: type[CommandT]) -> list[CommandT]:
    return [command for command in commands if isinstance(command, kind)]


def assigned(commands: list[Any]) -> dict[int, list[MemorySplit]]:
    given: dict[int, list[MemorySplit]] = {}
    for assign in only(commands, e.Assign):
        given.setdefault(assign.reader, []).extend(assign.splits)
    return given


def assigned_splits(commands: list[Any]) -> list[MemorySplit]:
    return sorted((s for splits in assigned(commands).values() for s in splits), key=lambda s: s.split_id)
