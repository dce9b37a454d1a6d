"""The restore in pictures: what became visible over time, one curve a system; and bars of outage and DFRT with their spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from benchmarks.figures import save
from benchmarks.spread import Spread
from benchmarks.stored import Document

OURS, OTHERS, BAD = "#0b6e99", "#8a9299", "#c8553d"
INK, PALE = "#333333", "#e6e6e6"
SMOOTH_S = 1.0


def plot_time(runs: Mapping[str, Document], file: Path) -> None:
    """Throughput over time, a row a system on one time axis: the kill, the first new record, caught up."""
    figure, rows = plt.subplots(
        len(runs), 1, sharex=True, figsize=(9, 0.7 + 1.15 * len(runs)), layout="constrained", squeeze=False
    )
    for axes, (title, run) in zip(rows[:, 0], runs.items(), strict=True):
        _one_time(axes, title, run)
    rows[-1, 0].set_xlabel("seconds since the kill", fontsize=9, color=INK)
    rows[0, 0].set_title(
        "Thousand distinct records per second that became visible (grey line: the load)\n"
        "dashed: killed; dot: first new record; diamond: caught up",
        loc="left", fontsize=9, color=INK,
    )  # fmt: skip
    save(figure, file)


def _one_time(axes: Axes, title: str, run: Document) -> None:
    at, visible = np.array(run["series"]["s"]), np.array(run["series"]["visible"])
    step = max(1, round(SMOOTH_S / (at[1] - at[0])))
    rate = (visible[step:] - visible[:-step]) / (at[step:] - at[:-step]) / 1000
    colour = _colour(run)
    axes.fill_between(at[step:], rate, color=colour, alpha=0.35, linewidth=0)
    axes.plot(at[step:], rate, color=colour, linewidth=0.8)
    axes.axhline(run["rate"] / 1000, color=OTHERS, linewidth=0.7)
    axes.axvline(0, color=INK, linestyle="--", linewidth=1)
    result = run["restore"]
    for seconds, marker in ((result["outage_s"], "o"), (result["recovery_s"], "D")):
        if seconds is not None:
            axes.plot([seconds], [0], marker, color=INK, markersize=5, clip_on=False)
    flaws = ", ".join(f"{run['verdict'][name]:,} {name}" for name in ("duplicates", "lost", "torn") if run["verdict"][name])
    axes.text(0.995, 0.9, f"{title}{': ' + flaws if flaws else ''}", transform=axes.transAxes, ha="right", va="top", fontsize=8,
              color=BAD if flaws else INK)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def plot_bars(runs: Mapping[str, Sequence[Document]], file: Path) -> None:
    """Outage and DFRT side by side: medians, whiskers from quartile to quartile, a cross at the worst."""
    figure, (left, right) = plt.subplots(1, 2, sharey=True, figsize=(9, 1.1 + 0.42 * len(runs)), layout="constrained")
    for row, documents in enumerate(runs.values()):
        outages = [document["restore"]["outage_s"] for document in documents]
        known = [outage for outage in outages if outage is not None]
        _bar(left, row, known, max(known, default=None), documents[0])
        dfrt = [document["dfrt"] / 1000 for document in documents]
        _bar(right, row, dfrt, min(dfrt), documents[0])
    left.set_yticks(range(len(runs)), list(runs), fontsize=8.5)
    left.invert_yaxis()
    left.set_xlabel("outage, seconds (less is better)", fontsize=9, color=INK)
    right.set_xlabel("DFRT, thousand records per second (more is better)", fontsize=9, color=INK)
    for axes in (left, right):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlim(left=0)
    save(figure, file)


def _bar(axes: Axes, row: int, found: Sequence[float], worst: float | None, document: Document) -> None:
    if not found or worst is None:
        return
    spread = Spread.of(found)
    axes.barh(row, spread.median, 0.6, color=_colour(document))
    errors = [[spread.median - spread.low], [spread.high - spread.median]]
    axes.errorbar(spread.median, row, xerr=errors, color=INK, capsize=2, linewidth=1)
    axes.plot([worst], [row], "x", color=BAD, markersize=5)
    place = max(spread.high, worst)
    axes.annotate(f"{spread.median:.1f}", (place, row), (6, 0), textcoords="offset points", va="center", fontsize=8, color=INK)


def _colour(document: Document) -> str:
    return OURS if document["system"].startswith("headrace") else OTHERS
