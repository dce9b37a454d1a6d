"""Transition tables in tests: the arrows of one, and those that a test has followed."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any
from unittest.mock import patch

from headrace.enumerator.transitions import Transitions

Arrow = tuple[Enum, type, Enum]


def arrows(transitions: Transitions[Any]) -> set[Arrow]:
    return {(phase, event, after) for (phase, event), following in transitions.items() for after in following}


@contextmanager
def arrows_followed(machine: type[Any]) -> Iterator[set[Arrow]]:
    """The arrows that machines of this class follow meanwhile, for what they handle without an error."""
    handle, followed = machine.handle, set()

    def handled(self: Any, event: Any) -> Any:
        before = self.phase
        commands = handle(self, event)
        followed.add((before, type(event), self.phase))
        return commands

    with patch.object(machine, "handle", handled):
        yield followed
