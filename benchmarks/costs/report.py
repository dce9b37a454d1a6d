"""The cost section of RESULTS.md and the table on the screen, all from the kept measurements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

from rich.table import Table

from benchmarks.spread import Spread
from benchmarks.stored import Document, read_lines

EXPLAINED = """\
Of all processes of the job, broker apart; a checkpoint each second where there are checkpoints. **CPU**: processor seconds per
million records, or without data the share of a core. **Memory**: the most that was seen, PSS. **Requests**: those that the
broker has answered per second, by its own counters. **Checkpoint**: the newest; of Spark the offsets of a batch."""

GROWTH = """\
From the start to a restore. **Start**, **restore**: until a record of each partition is copied; **copied**: such a record each,
while the job runs (on Spark a trigger). Seconds, and processor seconds behind them. **Steeper**: what has grown by more than
the number of partitions from one row to the next."""

TITLES = {
    "headrace": "headrace on Spark",
    "headrace-run": "headrace run",
    "jvm": "Spark's JVM connector",
    "flink": "Flink SQL",
    "confluent-txn": "confluent-kafka, transactions",
}
TARGETS = (("headrace-run", "flink", "CPU", 0.6), ("headrace-run", "flink", "memory", 0.4), ("headrace", "jvm", "CPU", 0.8))
_NOISE = 1.2
"""A figure may grow by this factor more before that says something."""

Figure = Callable[[Document], float | None]


def kept(results: Path) -> list[Document]:
    """Every measurement, by system."""
    return [line for file in sorted((results / "cost").glob("*.jsonl")) for line in read_lines(file)]


def cpu(line: Document) -> float:
    """Seconds per million records; without data, percent of a core."""
    scale: float = 1e6 / line["records"] if line["kind"] == "load" else 100 / line["seconds"]
    return float(line["cpu_s"]) * scale


def memory(line: Document) -> float:
    """In MiB."""
    return float(line["memory_bytes"]) / 2**20


def asked(line: Document) -> float | None:
    """Requests per second."""
    return None if line["requests_per_s"] is None else float(sum(line["requests_per_s"].values()))


def stored(line: Document) -> float | None:
    """KiB of the newest checkpoint."""
    return None if line["checkpoint_bytes"] is None else float(line["checkpoint_bytes"]) / 1024


FIGURES: dict[str, Figure] = {"CPU": cpu, "memory": memory, "requests": asked, "checkpoint": stored}
_STEPS: dict[str, Figure] = {
    f"{step} {what}": lambda line, step=step, name=name: float(line[step][name])  # type: ignore[misc]
    for step in ("start", "copied", "restore")
    for what, name in (("s", "seconds"), ("CPU s", "cpu_s"))
}
GROWING = {**_STEPS, "idle CPU %": cpu, "memory MiB": memory, "requests/s": asked, "checkpoint KiB": stored}


def _text(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = Spread.of(known)
    digits = 0 if spread.median >= 100 else 1 if spread.median >= 10 else 2
    alone = f"{spread.median:.{digits}f}"
    return alone if len(known) == 1 else f"{alone} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def _valid(lines: Iterable[Document], kind: str) -> list[Document]:
    return [line for line in lines if line["valid"] and line["kind"] == kind]


def _rows(lines: Sequence[Document], kind: str) -> Iterable[tuple[str, ...]]:
    chosen = _valid(lines, kind)
    for partitions in sorted({line["partitions"] for line in chosen}):
        for system in (name for name in TITLES if any(line["system"] == name for line in chosen)):
            own = [line for line in chosen if (line["system"], line["partitions"]) == (system, partitions)]
            if own:
                yield (TITLES[system], f"{partitions:,}", *(_text(map(figure, own)) for figure in FIGURES.values()))


def ratios(lines: Sequence[Document]) -> Iterable[tuple[str, float, float]]:
    """What is compared, the ratio under load (paired, round by round: its median), and the target."""
    for ours, theirs, name, bound in TARGETS:
        found = {
            system: {line["round"]: FIGURES[name](line) for line in _valid(lines, "load") if line["system"] == system}
            for system in (ours, theirs)
        }
        both = found[ours].keys() & found[theirs].keys()
        pairs = [(found[ours][number], found[theirs][number]) for number in both]
        reached = [mine / other for mine, other in pairs if mine is not None and other]
        if reached:
            yield f"{name}, {TITLES[ours]} against {TITLES[theirs]}", median(reached), bound


def steeper(lines: Sequence[Document], system: str) -> list[str]:
    """What has grown by more than the number of partitions did."""
    own = sorted((line for line in _valid(lines, "growth") if line["system"] == system), key=lambda line: line["partitions"])
    found: list[str] = []
    for before, after in itertools.pairwise(own):
        for name, figure in GROWING.items():
            old, new = figure(before), figure(after)
            more = after["partitions"] / before["partitions"]
            if old and new and new / old > _NOISE * more:
                power = math.log(new / old) / math.log(more)
                found.append(f"{name} from {before['partitions']:,} to {after['partitions']:,} (power {power:.1f})")
    return found


def summary(lines: Sequence[Document]) -> Table:
    """For the screen."""
    table = Table("kind", "system", "partitions", "CPU", "memory MiB", "requests/s", "checkpoint KiB")
    for kind in ("load", "idle", "growth"):
        for row in _rows(lines, kind):
            table.add_row(kind, *row)
    for what, reached, bound in ratios(lines):
        table.add_row("ratio", what, "", f"{reached:.2f}, at most {bound:g}", "", "", "")
    return table


def section(results: Path) -> list[str]:
    """The lines of the report; none without measurements."""
    lines = kept(results)
    if not lines:
        return []
    found = ["", "## What a copy costs", "", EXPLAINED]
    for kind, title, unit in (
        ("load", "Under a steady load", "s per million records"),
        ("idle", "Without data", "% of a core"),
    ):
        rows = list(_rows(lines, kind))
        if rows:
            heads = ("", "partitions", f"CPU, {unit}", "memory, MiB", "requests/s", "checkpoint, KiB")
            found += ["", f"### {title}", "", *_table(heads, rows)]
    compared = [
        (what, f"{reached:.2f}", f"≤ {bound:g}", "met" if reached <= bound else "missed")
        for what, reached, bound in ratios(lines)
    ]
    if compared:
        found += ["", *_table(("", "ratio under load", "target", "result"), compared)]
    return found + _growth(lines)


def _growth(lines: Sequence[Document]) -> list[str]:
    chosen = sorted(_valid(lines, "growth"), key=lambda line: line["partitions"])
    if not chosen:
        return []
    rows = [
        (TITLES[system], f"{line['partitions']:,}", *(_text([figure(line)]) for figure in GROWING.values()))
        for system in TITLES
        for line in chosen
        if line["system"] == system
    ]
    found = ["", "### By the number of partitions", "", GROWTH, "", *_table(("", "partitions", *GROWING), rows), ""]
    for system in dict.fromkeys(line["system"] for line in chosen):
        steep = steeper(lines, system)
        found.append(f"Steeper, {TITLES[system]}: {', '.join(steep) if steep else 'nothing'}.")
        found.append("")
    return found[:-1]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
