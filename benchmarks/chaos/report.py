"""The results of chaos as a table and a plot: how often each kind of fault came, what was wrong, and the longest stall.

python -m benchmarks.chaos.report
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chaos.faults import KINDS
from benchmarks.chaos.oracle import WRONG, is_clean
from benchmarks.chaos.run import RESULTS, Servers, file_name
from benchmarks.chaos.subject import SYSTEMS
from benchmarks.chaos.trial import is_exact, is_good
from benchmarks.plot import plot

FAKE = f"-{Servers.FAKE.value}"
Lines = Sequence[Mapping[str, Any]]
HEAD = "| fault | system | faults | missing | doubled | gave up | stall, median s | longest s | of the load itself, longest s |"


@dataclass(frozen=True)
class Quartiles:
    """Of seconds."""

    low: float
    median: float
    high: float


def title_of(name: str) -> str:
    """What a file of lines is about, by its name."""
    system, _, servers = name.partition(FAKE)
    return SYSTEMS[system].title + (f", on FakeKafka{servers.replace('-', ' ')}" if FAKE in name else "")


def happened(lines: Lines) -> dict[str, list[Mapping[str, Any]]]:
    """Faults by their kind, without those that left no trace."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        if "kind" in line and "proof" in line:
            found[line["kind"]].append(line)
    return dict(found)


def table(systems: Mapping[str, Lines]) -> str:
    """Markdown: a row for each kind and system; then sums, and the results on whole outputs."""
    rows = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    by_kind = {name: happened(lines) for name, lines in systems.items()}
    for kind in KINDS:
        rows += [_row(kind, title_of(name), kinds[kind]) for name, kinds in by_kind.items() if kind in kinds]
    return "\n".join([*rows, "", *(_summary(name, lines) for name, lines in systems.items()), ""])


def _row(kind: str, title: str, lines: Lines) -> str:
    stalls = [line["stall_s"] for line in lines]
    counts = [len(lines), *(sum(line[name] for line in lines) for name in ("missing", "duplicates"))]
    gave_up = sum(len(line["ended"]) for line in lines)
    times = [np.median(stalls), max(stalls), max(line["load_stall_s"] for line in lines)]
    return "| " + " | ".join([kind, title, *map(str, [*counts, gave_up]), *(f"{seconds:.1f}" for seconds in times)]) + " |"


def _summary(name: str, lines: Lines) -> str:
    faults = [line for line in lines if "kind" in line]
    proven = [line for line in faults if "proof" in line]
    outcomes = [line["verdict"] for line in lines if "verdict" in line]
    sums = {key: sum(each.get(key, 0) for each in outcomes) for key in ("records_in", *WRONG)}
    unclean = sum(not is_clean(each) for each in outcomes)
    settings = ", ".join(f"{count:,} {key.replace('_', ' ')}" for key, count in sums.items())
    wrong = sum(not is_good(line) for line in faults)
    return (
        f"- {title_of(name)}: {len(proven)} faults ({len(faults) - len(proven)} more left no trace and are not counted), "
        f"after {wrong} of which something was wrong. The outputs of {len(outcomes)} sessions, read again as a whole: "
        f"{settings}; "
        f"{unclean} not clean." + _losses([line for line in proven if "lost" in line])
    )


def _losses(lines: Lines) -> str:
    """Of the input's records that were acknowledged and are gone, and of their reports; nothing where none is looked for."""
    if not lines:
        return ""
    parts = [part for line in lines for part in line["lost"]]
    records, read = (sum(part[key] for part in parts) for key in ("records", "read"))
    exact = sum(is_exact(line) for line in lines)
    return (
        f" Gone from its input: {records:,} acknowledged records, {records - read:,} of which it had not read; "
        f"what it reported of them was exact {exact} times of {len(lines)}."
    )


def bars(systems: Mapping[str, Lines]) -> dict[str, dict[str, Quartiles]]:
    """Stalls by kind and system, with real brokers."""
    by_kind = {title_of(name): happened(lines) for name, lines in systems.items() if FAKE not in name}
    found: dict[str, dict[str, Quartiles]] = {}
    for kind in KINDS:
        group = {
            title: Quartiles(*np.percentile([line["stall_s"] for line in kinds[kind]], (25, 50, 75)).tolist())
            for title, kinds in by_kind.items()
            if kind in kinds
        }
        if group:
            found[kind] = group
    return found


def write(folder: Path) -> None:
    """`TABLE.md` and `stalls.svg` alongside the lines."""
    names = [file_name(name, servers) for name, system in SYSTEMS.items() if not system.ablation for servers in Servers]
    systems = {
        name: [json.loads(line) for line in file.read_text().splitlines()]
        for name in names
        if (file := folder / f"{name}.jsonl").exists()
    }
    (folder / "TABLE.md").write_text(table(systems))
    found = bars(systems)
    if found:
        real = [happened(lines) for name, lines in systems.items() if FAKE not in name]
        counts = {kind: sum(len(kinds.get(kind, ())) for kinds in real) for kind in found}
        notes = {kind: f"{count} faults" for kind, count in counts.items()}
        plot(found, "How long no new record came out, by kind of fault", "s", folder / "stalls.svg", notes)


if __name__ == "__main__":
    write(RESULTS)
