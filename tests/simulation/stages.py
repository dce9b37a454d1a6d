"""The core with a source of three stages: pieces that a cursor finds; a log that ends, or more pieces; a log that may not end.

As `tests.simulation.core`, with other promises: a stage is entered when every split of the earlier ones was read, once in all
that follows from a checkpoint, and with the same end. Splits of earlier stages leave checkpoints when they are finished.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.enumerator import Checkpoint, CheckpointSerializer, DiscoveryResult, IncrementalDiscovery, SplitDiscovery
from headrace.enumerator import events as e
from headrace.enumerator.enumerator import Discovery
from headrace.enumerator.source import JsonObject, Stage, StagedDiscovery
from headrace.enumerator.source_driver import SourceDriver
from headrace.testing.memory import MemoryLog, MemorySource, MemorySplit, MemorySplitSerializer
from tests.simulation.core import CORE, Simulation
from tests.simulation.pieces import PIECES, Pieces, PieceSimulation
from tests.simulation.search import Adversary

STAGES = 3


def stage_of(split_id: str) -> int:
    return int(split_id[1:]) % STAGES


@dataclass(frozen=True, slots=True)
class StageSplit(MemorySplit):
    """Its stage follows from its id."""

    @property
    def stage(self) -> int:
        return stage_of(self.split_id)


class StageSplitSerializer(MemorySplitSerializer):
    def deserialize(self, version: int, data: JsonObject) -> StageSplit:
        split = super().deserialize(version, data)
        return StageSplit(split.split_id, split.next_offset, split.stop_offset)


class Stages(Pieces):
    """`ended`: splits appear in this stage and those behind it."""

    def __init__(self, *, bounded: bool, latest: bool) -> None:
        self.ended = 0
        super().__init__(bounded=bounded, latest=latest)

    @property
    def open(self) -> int:
        return STAGES if self.closed else self.ended

    def of(self, stage: int) -> list[str]:
        return [split_id for split_id in self.ends if stage_of(split_id) == stage]

    def create(self, size: int) -> None:
        stages = range(self.open, STAGES)
        if stages and len(self.ends) < self.most:
            stage = stages[size % len(stages)]
            self.ends[f"s{len(self.of(stage)) * STAGES + stage}"] = size % 8

    def answer(self, stage: Stage, found: Sequence[str], start: int | None = 0, **more: Any) -> DiscoveryResult[Any]:
        is_last = stage.number == STAGES - 1
        stops = not is_last or self.bounded
        added = [
            StageSplit(each, self.ends[each] if start is None else start, self.ends[each] if stops else None) for each in found
        ]
        is_over = self.open > stage.number and stops and not more.get("more")
        entered = Stage(stage.number, stage.source, stage.end, stage.in_pieces, is_over and not is_last, stage.needs_ends)
        return DiscoveryResult(added, complete=is_over and is_last, stage=entered, **more)


class PiecesOfStage(IncrementalDiscovery[Any]):
    def __init__(self, external: Stages, stage: Stage) -> None:
        self._external, self._stage = external, stage

    def after(self, cursor: JsonObject | None, limit: int) -> DiscoveryResult[Any]:
        found, there = 0 if cursor is None else cursor["found"], self._external.of(self._stage.number)
        here = there[found : found + limit]
        found += len(here)
        return self._external.answer(self._stage, here, cursor={"found": found}, more=found < len(there))


class LogOfStage(SplitDiscovery[Any]):
    def __init__(self, external: Stages, stage: Stage) -> None:
        self._external, self._stage = external, stage

    def initial(self) -> DiscoveryResult[Any]:
        at_end = self._external.latest and not self._external.bounded and self._stage.number == STAGES - 1
        return self._external.answer(self._stage, self._external.of(self._stage.number), None if at_end else 0)

    def later(self, known: Mapping[str, Any]) -> DiscoveryResult[Any]:
        there = self._external.of(self._stage.number)
        return self._external.answer(self._stage, [split_id for split_id in there if split_id not in known])


class StagesDiscovery(StagedDiscovery[Any]):
    def __init__(self, external: Stages) -> None:
        self._external = external

    def at(self, stage: Stage | None) -> SplitDiscovery[Any]:
        if stage is None:
            return PiecesOfStage(self._external, Stage(0, "s0", None, in_pieces=True, is_found=False))
        expected = None if stage.number == 0 else {"count": len(self._external.of(stage.number - 1))}
        assert stage.end == expected, f"{stage} was made from another end than {expected}"
        in_pieces = stage.number == 0 or (stage.number == 1 and self._external.latest)
        return PiecesOfStage(self._external, stage) if in_pieces else LogOfStage(self._external, stage)

    def following(self, stage: Stage, cursor: JsonObject | None, splits: Sequence[Any]) -> Stage:
        count = len([split for split in splits if split.stage == stage.number]) if cursor is None else cursor["found"]
        number = stage.number + 1
        needs_ends = number == 1 and not self._external.latest  # else it has a cursor
        return Stage(number, f"s{number}", {"count": count}, in_pieces=False, is_found=False, needs_ends=needs_ends)


class StageSimulation(PieceSimulation):
    """One history."""

    source = Stages
    external_state: Stages

    def __init__(self, *setup: int) -> None:
        super().__init__(*setup)
        self.serializer = CheckpointSerializer("simulated", StageSplitSerializer())

    def start(self, *, parallelism: int, assignment: int) -> None:
        self.read_to_end: set[str] = set()
        self.entered: set[int] = set()
        self.reports: list[tuple[MemorySplit, ...]] = []
        self.driver: SourceDriver[Any] = SourceDriver(
            MemorySource(MemoryLog()),  # type: ignore[arg-type]  # not asked for anything here
            StagesDiscovery(self.external_state),
        )
        if self.durable is not None and (stage := self.serializer.deserialize(self.durable).stage) is not None:
            self.happened[f"restored in stage {stage.number}"] += 1
        Simulation.start(self, parallelism=parallelism, assignment=assignment)

    def crash(self, *, stored: bool, parallelism: int, assignment: int) -> None:
        self.happened[f"crash in {self.coordinator.enumerator._discovery.name}"] += 1
        super().crash(stored=stored, parallelism=parallelism, assignment=assignment)

    def carry_out(self, command: Any) -> None:
        if isinstance(command, e.SwitchStage):
            read = {split_id for split_id, end in self.external_state.ends.items() if self.done.get(split_id) == end}
            earlier = {each for number in range(command.stage.number + 1) for each in self.external_state.of(number)}
            assert earlier <= read | self.read_to_end, f"not read before the switch: {earlier - read - self.read_to_end}"
            if command.stage.needs_ends:
                self.happened["switch with ends"] += 1
                states = () if self.durable is None else self.serializer.deserialize(self.durable).splits
                uncertain = set(command.splits) - {state.split for state in states if state.finished}
                assert not uncertain, f"no checkpoint has them at their ends: {uncertain}"
            self.asked.append(command)
        else:
            super().carry_out(command)

    def run_discovery(self) -> None:
        if not self.asked:
            return
        command, stored = self.asked.pop(), None if self.durable is None else self.serializer.deserialize(self.durable).stage
        if isinstance(command, e.DiscoverInitial):
            assert stored is None, f"discovered initially, behind {stored}"
        if isinstance(command, e.SwitchStage):
            assert stored is None or stored.number <= command.stage.number, f"{command.stage} ends again, behind {stored}"
        answer = self.driver.perform(command)
        match answer:
            case e.DiscoveryFailed(error):
                raise error
            case e.SplitsDiscovered(findings):
                self.discovery.append(findings)

    def answer_discovery(self) -> None:
        is_switch = self.coordinator.enumerator._discovery is Discovery.SWITCHING
        answer = self.discovery[-1] if self.discovery else None
        if is_switch and isinstance(answer, DiscoveryResult) and answer.stage is not None:
            assert answer.stage.number not in self.entered, f"{answer.stage} is entered twice"
            self.entered.add(answer.stage.number)
            # where an earlier lifetime has entered it, without a checkpoint, does not count
            self.done = {key: at for key, at in self.done.items() if stage_of(key) < answer.stage.number}
            self.happened[f"switch to {answer.stage.number}"] += 1
        elif is_switch and answer is not None:
            self.happened["switch failed"] += 1
        Simulation.answer_discovery(self)

    def reader_polls(self, slot_number: int, which: int, size: int) -> None:
        super().reader_polls(slot_number, which, size)
        reader = self.slots[slot_number % len(self.slots)].living
        states = {} if reader is None else reader.progress.snapshot()
        self.read_to_end |= {split_id for split_id, state in states.items() if state.finished}

    def check(self) -> None:
        """A stage that is read does not wait."""
        enumerator = self.coordinator.enumerator
        if enumerator._discovery is Discovery.SWITCHING:
            assert self.asked or self.discovery, "a switch is not under way"
        ledger, needs_ends = enumerator.ledger, enumerator.stage is not None and enumerator.stage.needs_ends
        is_read = ledger.all_finished_durably if needs_ends else ledger.all_finished
        assert enumerator._discovery is not Discovery.STAGE_FOUND or not is_read, "no switch"

    def check_checkpoint(self, checkpoint: Checkpoint[MemorySplit]) -> None:
        """I1: every split is there once, or was reported as finished."""
        ids = [state.split.split_id for state in checkpoint.splits]
        assert len(set(ids)) == len(ids), f"I1: a split twice in {checkpoint}"
        stored = set() if self.durable is None else {s.split.split_id for s in self.serializer.deserialize(self.durable).splits}
        known = {entry.durable.split_id for entry in self.coordinator.enumerator.ledger}
        missing = (known | stored) - set(ids) - self.external_state.reported
        assert not missing, f"I1: {missing} are in no place of {checkpoint}"

    def is_complete(self) -> bool:
        """Nothing of the earlier stages is left in the state."""
        if not Simulation.is_complete(self):
            return False
        earlier = {split_id for split_id in self.external_state.ends if stage_of(split_id) < STAGES - 1}
        stored = {state.split.split_id for state in self.serializer.deserialize(self.durable or b"").splits}
        return earlier <= self.external_state.reported and not earlier & stored


def end_stage(simulation: StageSimulation, chance: int) -> None:
    external = simulation.external_state
    if chance == 0 and external.ended < STAGES - (not external.bounded):
        external.ended += 1


def grow_last(simulation: StageSimulation, which: int, by: int) -> None:
    """The last stage gets more records."""
    last = simulation.external_state.of(STAGES - 1)
    if last and not simulation.external_state.bounded:
        simulation.external_state.ends[last[which % len(last)]] += 1 + by % 5


_LEFT_OUT = ("hide", "show", "delete")
STAGED = Adversary(
    "stages",
    StageSimulation,
    3,
    tuple(
        {name: weight for name, weight in mix.items() if name not in _LEFT_OUT}
        | {"create": 6, "close": 12, "report": 4, "fail_discovery": 2}
        for mix in CORE.mixes
    ),
    around=PIECES.around,
    actions={
        **PIECES.actions,
        "create": (lambda w, size: w.external_state.create(size), 1),
        "close": (lambda w, chance: end_stage(w, chance % 4), 1),
        "grow": (grow_last, 2),
        "polls": (StageSimulation.reader_polls, 3),
    },
)
