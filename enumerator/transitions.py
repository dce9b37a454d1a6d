"""Transition tables: which events a state machine takes in which phase, and the phases that each may lead to.

Every core without I/O here has the same form. Its events and its commands are frozen dataclasses, each of a closed union;
`handle(event)` returns the commands to carry out, in order; and a table like this says what is legal. The tables are data:
`handle` enforces them, tests walk them, and `tests/helpers/draw_tables.py` draws them into docs/design/state-machines.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from headrace.enumerator.errors import ProtocolViolationError

PhaseT = TypeVar("PhaseT", bound=Enum)

Transitions = Mapping[tuple[PhaseT, type[object]], tuple[PhaseT, ...]]
"""(phase, event's class) -> the phases that may follow. A pair that is not a key is refused."""


def allowed_after(transitions: Transitions[PhaseT], phase: PhaseT, event: object, machine: str) -> tuple[PhaseT, ...]:
    """The phases that may follow this event. Raises ProtocolViolationError, naming `machine`, where the table has none."""
    following = transitions.get((phase, type(event)))
    if following is None:
        raise ProtocolViolationError(f"{machine} is {phase.name}: {event} is not possible now")
    return following
