"""The delay section of RESULTS.md, its plot, and the table on the screen, all from the kept runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from rich.table import Table

from benchmarks.delay.judge import PERCENTILES
from benchmarks.delay.systems import SUBJECTS
from benchmarks.figures import save
from benchmarks.restore.plots import INK, OTHERS, OURS, PALE
from benchmarks.stored import Document

EXPLAINED = """\
Milliseconds from when a record of 100 B was due at its producer to a reader of the copy under `read_committed`, by one clock.
Of all records that were due in the time, also those that the load itself wrote late. **Load**: the 99th percentile of the time
until the load's records were acknowledged, which is part of every delay. **Kill**: records that were due from a SIGKILL, and
immediate restart, until the lag was small again (at most two minutes). Anomalies are of the whole run."""

MARKERS = dict(zip(PERCENTILES, ("o", "D", "s", "x"), strict=True))


STEPS = {
    "begin": "a worker starts its next transaction (looks for a free id, asks for a producer id)",
    "prepare": "a worker writes the rest of its rows, and has the answers",
    "collect": "the coordinator has asked for a snapshot, and has those of all workers",
    "check": "the coordinator looks whether the transactions are prepared",
    "store": "a checkpoint's file is on the disk (once with the list, once as completed)",
    "record": "the list's epoch is written to the commit topic, in a separate transaction",
    "end": "the workers' transactions are ended",
    "commit": "all that from `check` on",
    "checkpoint": "all of a checkpoint",
}


def runs_in(results: Path) -> list[Document]:
    """The kept runs, in the order of the systems."""
    order = [subject.name for subject in SUBJECTS]
    found = [json.loads(file.read_text()) for file in (results / "delay").glob("*.json")]
    return sorted((run for run in found if run["system"] in order), key=lambda run: order.index(run["system"]))


def section(results: Path, target: Path) -> list[str]:
    """The lines of the report; the plot goes alongside the runs. Empty without runs."""
    runs = [run for run in runs_in(results) if run["valid"]]
    if not runs:
        return []
    file = results / "delay.svg"
    _plot(runs, file)
    lines = ["", "## Delay", "", EXPLAINED]
    for name, rate in dict.fromkeys((window["name"], window["rate"]) for run in runs for window in run["windows"]):
        title = f"{rate:,} records/s" + (", through a kill" if name == "kill" else "")
        lines += ["", f"### {title}", "", *_table(runs, name, rate)]
    seconds = sorted({run["steady_s"] for run in runs})
    loads = [run["load_average"][0] for run in runs]
    facts = f"{' or '.join(f'{each:g}' for each in seconds)} s at each rate. Load average before the runs: {min(loads):.1f} to"
    lines += ["", f"{facts} {max(loads):.1f}.", "", f"![Delay]({file.relative_to(target)})"]
    return [*lines, *commit_section(results)]


def commit_section(results: Path) -> list[str]:
    """What a commit of `headrace run` consists of. Empty without a result."""
    file = results / "delay-commit.json"
    if not file.is_file():
        return []
    found = json.loads(file.read_text())
    delay = found["delay_ms"]
    lines = [
        "", "### What a commit consists of", "",
        f"`headrace run` at {found['rate']:,} records/s with a checkpoint every {found['interval_ms']} ms, "
        f"{found['seconds']:g} s: {found['checkpoints_per_s']:g} checkpoints/s, delay p50 {delay['p50']:.0f} ms, "
        f"p99 {delay['p99']:.0f} ms.",
        "", "| step | ms, p50 | p99 |", "|---|---|---|",
    ]  # fmt: skip
    rows = ((explained, found["steps"][step]) for step, explained in STEPS.items())
    return [*lines, *(f"| {explained} | {row['p50']:.1f} | {row['p99']:.1f} |" for explained, row in rows)]


def _table(runs: Sequence[Document], name: str, rate: int) -> Iterator[str]:
    yield f"| system | {' | '.join(PERCENTILES)} | load | duplicates | lost |"
    yield "|---" * (4 + len(PERCENTILES)) + "|"
    for run in runs:
        for window in run["windows"]:
            if (window["name"], window["rate"]) == (name, rate):
                delays = " | ".join(_ms(window["delay_ms"].get(each)) for each in PERCENTILES)
                flaws = " | ".join(f"{run['flaws'][each]:,}" for each in ("duplicates", "lost"))
                yield f"| {run['title']} ({run['guarantee']}) | {delays} | {_ms(window['load_ms'].get('p99'))} | {flaws} |"


def summary(documents: Sequence[Document]) -> Table:
    """Runs for the screen."""
    table = Table("system", "window", *PERCENTILES, "load p99", "processor s", "duplicates", "lost", "valid")
    for run in documents:
        for window in run["windows"]:
            table.add_row(
                run["system"],
                f"{window['name']} {window['rate']:,}",
                *(_ms(window["delay_ms"].get(each)) for each in PERCENTILES),
                _ms(window["load_ms"].get("p99")),
                f"{sum(window['cpu_s'].values()):.1f}",
                *(str(run["flaws"][each]) for each in ("duplicates", "lost")),
                "yes" if run["valid"] else "no",
            )
    return table


def _plot(runs: Sequence[Document], file: Path) -> None:
    """A row a system, a panel a rate: from the median to the worst, on a logarithmic axis."""
    rates = list(dict.fromkeys(window["rate"] for run in runs for window in run["windows"] if window["name"] == "steady"))
    figure, panels = plt.subplots(
        1, len(rates), sharey=True, squeeze=False, figsize=(9, 1.4 + 0.36 * len(runs)), layout="constrained"
    )
    for axes, rate in zip(panels[0], rates, strict=True):
        for row, run in enumerate(runs):
            colour = OURS if run["title"].startswith("headrace") else OTHERS
            for window in run["windows"]:
                delays = window["delay_ms"]
                if window["name"] != "steady" or window["rate"] != rate or not delays:
                    continue
                axes.plot([delays["p50"], delays["worst"]], [row, row], color=colour, linewidth=2, alpha=0.5)
                for name, marker in MARKERS.items():
                    axes.plot(delays[name], row, marker, color=colour, markersize=5, label=name if row == 0 else None)
        axes.set_xscale("log")
        axes.set_xlabel(f"ms at {rate:,} records/s (less is better)", fontsize=9, color=INK)
        axes.grid(axis="x", color=PALE, linewidth=0.8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[0][0].set_yticks(range(len(runs)), [run["title"] for run in runs], fontsize=8.5)
    panels[0][0].invert_yaxis()
    panels[0][0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(MARKERS), frameon=False, fontsize=9)
    save(figure, file)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
