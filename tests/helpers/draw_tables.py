"""Draws the transition tables into docs/design/state-machines.md: `python -m tests.helpers.draw_tables`, in the checkout."""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from headrace.connectors.base.commit import COMMIT_TRANSITIONS
from headrace.enumerator.coordinator import CHECKPOINT_TRANSITIONS
from headrace.enumerator.enumerator import DISCOVERY_TRANSITIONS
from headrace.runners.beam.shard import SHARD_TRANSITIONS
from headrace.runners.local.core import RUN_TRANSITIONS
from headrace.runners.spark.supervision.core import SUPERVISION_TRANSITIONS
from headrace.runners.spark.supervision.lease.core import LEASE_TRANSITIONS
from headrace.runners.spark.supervision.standby import DRIVER_TRANSITIONS

STATE_MACHINES = Path(__file__).parents[2] / "docs" / "design" / "state-machines.md"
Table = Mapping[tuple[Enum, Enum | type], Enum | tuple[Enum, ...]]

TABLES: Mapping[str, Table] = {
    "DISCOVERY_TRANSITIONS": DISCOVERY_TRANSITIONS, "CHECKPOINT_TRANSITIONS": CHECKPOINT_TRANSITIONS,
    "COMMIT_TRANSITIONS": COMMIT_TRANSITIONS, "SHARD_TRANSITIONS": SHARD_TRANSITIONS, "RUN_TRANSITIONS": RUN_TRANSITIONS,
    "DRIVER_TRANSITIONS": DRIVER_TRANSITIONS, "SUPERVISION_TRANSITIONS": SUPERVISION_TRANSITIONS,
    "LEASE_TRANSITIONS": LEASE_TRANSITIONS,
}  # fmt: skip

_MARKED = re.compile(r"(<!-- drawn from (\w+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def diagram(table: Table) -> str:
    """A Mermaid state diagram, with an arrow for each two phases, named by the events. Phases no arrow leads to come first."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (phase, event), following in table.items():
        for after in following if isinstance(following, tuple) else (following,):
            name = event.__name__ if isinstance(event, type) else event.name
            arrows.setdefault((phase.name, after.name), []).append(name)
    entered = {after for before, after in arrows if before != after}
    first = dict.fromkeys(before for before, _ in arrows if before not in entered)
    lines = [f"    [*] --> {phase}" for phase in first]
    lines += [f"    {before} --> {after}: {',<br>'.join(events)}" for (before, after), events in arrows.items()]
    return "\n".join(['<!--- skip: next "a diagram" -->', "```mermaid", "stateDiagram-v2", *lines, "```", ""])


def drawn(text: str, tables: Mapping[str, Table] = TABLES) -> str:
    """The text with every marked diagram as its table has it. KeyError for a mark that names no table."""
    return _MARKED.sub(lambda mark: f"{mark[1]}{diagram(tables[mark[2]])}{mark[3]}", text)


def marked(text: str) -> set[str]:
    """The tables that the text has a place for."""
    return {mark[2] for mark in _MARKED.finditer(text)}


if __name__ == "__main__":
    STATE_MACHINES.write_text(drawn(STATE_MACHINES.read_text()))
