"""Injected bugs of the switch from one stage to the next, which the simulation of stages must catch."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.enumerator import Ledger, SplitEnumerator
from headrace.enumerator import coordinator as coordinator_module
from headrace.enumerator import events as e
from headrace.enumerator.coordinator import Coordinator
from headrace.enumerator.enumerator import Discovery
from tests.simulation.bugs.injecting import bugs_of, instead_of


@instead_of(SplitEnumerator, "discovered")
def switched_twice(discovered: Any, self: Any, findings: Any) -> Any:
    """The answer to a switch leaves the enumerator in the stage that has ended."""
    ended, is_switch = self.stage, self._discovery is Discovery.SWITCHING
    commands = discovered(self, findings)
    if is_switch and self._discovery is Discovery.IDLE:
        self.stage, self._discovery = ended, Discovery.STAGE_FOUND
    return [command for command in commands if not isinstance(command, e.ScheduleDiscovery)]


@instead_of(SplitEnumerator, "continued")
def switched_before_all_was_read(continued: Any, self: Any) -> Any:
    """The last splits of a stage may be under way, and nothing is waiting."""
    if self._discovery is Discovery.STAGE_FOUND and not self.ledger.unassigned:
        return self._switch()
    return continued(self)


@instead_of(SplitEnumerator, "continued")
def switched_before_the_ends_were_durable(continued: Any, self: Any) -> Any:
    """The next stage is made from splits that may be read again, and end otherwise."""
    return self._switch() if self.waits_for_ends else continued(self)


@instead_of(coordinator_module, "Checkpoint")
def end_not_stored(checkpoint_type: Any, number: int, splits: Any, exhausted: bool, cursor: Any, stage: Any) -> Any:
    """A restored enumerator does not know what its stage was made from."""
    return checkpoint_type(number, splits, exhausted, cursor, stage and replace(stage, end=None))


@instead_of(coordinator_module, "Checkpoint")
def next_stage_not_stored(checkpoint_type: Any, number: int, splits: Any, exhausted: bool, cursor: Any, stage: Any) -> Any:
    """A checkpoint behind the switch says that the previous stage is found: it is switched again after a restore."""
    if stage is not None and stage.number == 1 and not exhausted:
        stage, cursor = replace(stage, number=0, end=None, is_found=True), {"found": stage.end["count"]}
    return checkpoint_type(number, splits, exhausted, cursor, stage)


@instead_of(SplitEnumerator, "start")
def initial_discovery_of_the_stage_after_a_restore(start: Any, self: Any) -> Any:
    """A restored enumerator enters its stage again, and does not compare what it finds with the ledger."""
    if self._discovery is not Discovery.RESTORED or self.stage.number == 0:
        return start(self)
    previous = replace(self.stage, number=self.stage.number - 1, end=None, is_found=True)
    self.stage, self._discovery = previous, Discovery.STAGE_FOUND
    return self._switch()


@instead_of(Coordinator, "_persist_if_complete")
def checkpoint_in_the_switch_is_empty(persist: Any, self: Any) -> Any:
    """FLINK-39645: before the switch is answered a checkpoint has no split."""
    if self.enumerator._discovery is not Discovery.SWITCHING:
        return persist(self)
    with patch.object(Ledger, "snapshot", lambda *_: []):
        return persist(self)


@instead_of(SplitEnumerator, "forgets")
def finished_splits_of_the_stage_are_forgotten(_: Any, self: Any, split: Any) -> bool:
    """They are found again, where no cursor is behind them."""
    return True


@instead_of(SplitEnumerator, "forgets")
def finished_splits_of_earlier_stages_are_kept(_: Any, self: Any, split: Any) -> bool:
    """They are in every checkpoint, for ever."""
    return self.cursor is not None


@instead_of(SplitEnumerator, "discovery_due")
def failed_switch_is_not_tried_again(due: Any, self: Any) -> Any:
    """The next stage never starts."""
    return [] if self._discovery is Discovery.SWITCH_PAUSED else due(self)


INJECTED = bugs_of(globals())
