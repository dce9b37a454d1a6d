"""Bars with their spread, one figure for a group of cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import matplotlib.pyplot as plt

from benchmarks.figures import save

COLOURS = ("#0b6e99", "#c8553d", "#b9bec4", "#7a8f5a", "#e0a458", "#6c5b9e", "#4f9d8f", "#8c6d5a", "#d08fa8", "#5c6670")
ROW_LETTERS, MARK_LETTERS, ROW_POINTS = 140, 8, 16  # of the legend
BAR, GAP = 0.26, 0.22
INK = "#333333"


class Spread(Protocol):
    """A median and its quartiles."""

    @property
    def low(self) -> float:
        """The lower quartile."""

    @property
    def median(self) -> float:
        """The median."""

    @property
    def high(self) -> float:
        """The upper quartile."""


def plot(bars: Mapping[str, Mapping[str, Spread]], title: str, unit: str, file: Path, notes: Mapping[str, str]) -> None:
    """Draw cells as groups of bars, one bar a system, whiskers from quartile to quartile."""
    scale, digits, label = {"records/s": (1e6, 2, "million records per second"), "s": (1.0, 1, "seconds")}.get(
        unit, (1.0, 0, unit)
    )
    systems = list(dict.fromkeys(system for group in bars.values() for system in group))
    columns = min(len(systems), max(1, ROW_LETTERS // (max(map(len, systems)) + MARK_LETTERS)))
    figure, axes = plt.subplots(figsize=(9, 1.1 + (GAP + BAR * len(systems)) * 0.95 * len(bars)), layout="constrained")
    thick = min(BAR, (1 - GAP) / len(systems))  # rows are 1 apart
    longest = max(spread.high for group in bars.values() for spread in group.values()) / scale
    for place, system in enumerate(systems):
        labelled = next(row for row, group in enumerate(bars.values()) if system in group)
        for row, group in enumerate(bars.values()):
            if system not in group:
                continue
            spread = group[system]
            middle, low, high = spread.median / scale, spread.low / scale, spread.high / scale
            at = row + (place - (len(systems) - 1) / 2) * thick
            axes.barh(at, middle, thick * 0.9, color=COLOURS[place], label=system if row == labelled else None)
            axes.errorbar(middle, at, xerr=[[middle - low], [high - middle]], color=INK, capsize=2, linewidth=1)
            axes.text(max(middle, high) + longest * 0.012, at, f"{middle:.{digits}f}", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(bars)), [f"{name}\n{notes[name]}" for name in bars], fontsize=8.5, linespacing=1.4)
    axes.set_ylim(len(bars) - 0.5, -0.5)  # the first on top
    axes.set_xlim(0, longest * 1.1)
    axes.set_xlabel(f"{label} (median; whiskers: quartiles)", fontsize=9, color=INK)
    axes.set_title(
        title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=10 + ROW_POINTS * math.ceil(len(systems) / columns)
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, frameon=False, fontsize=9)
    save(figure, file)
