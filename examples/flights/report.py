"""What is left of a run: the delays by carrier, and a picture of the throughput."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from display import EventKind, History
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter
from rich.table import Table

BIN_S = 2.0
COLOURS = {"in": "#9aa5b1", "out": "#1f6fb4", "kill": "#c62828", "restore": "#2e7d32", "partitions": "#e08e0b"}
LABEL_HEIGHTS: dict[EventKind, float] = {"kill": 0.98, "partitions": 0.91, "restore": 0.84}  # apart, for events that are close
LABELS: dict[EventKind, str] = {"kill": "driver killed", "restore": "restored", "partitions": "partitions added"}


def delays(flights: pd.DataFrame, airlines: pd.DataFrame) -> Table:
    """Flights and mean delays by carrier, the most delayed first."""
    by_carrier = flights.groupby("carrier")[["dep_delay", "arr_delay"]].mean()
    by_carrier["flights"] = flights.groupby("carrier").size()
    rows = by_carrier.join(airlines.set_index("carrier")["name"]).sort_values("arr_delay", ascending=False)
    table = Table(title="Mean delays by carrier in minutes, from the output", title_justify="left")
    table.add_column("Carrier", no_wrap=True)
    for header in ("Flights", "Departure", "Arrival"):
        table.add_column(header, justify="right")
    for row in rows.itertuples():
        table.add_row(f"{row.name}", f"{row.flights:,}", f"{row.dep_delay:.1f}", f"{row.arr_delay:.1f}")
    return table


def draw(history: History, path: Path) -> None:
    """Write a PNG: records per second in and out, and the lag, over time, with every event marked."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 6.2), dpi=130, layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
        _draw_rates(above, history)
        _draw_lag(below, history)
        for axes in (above, below):
            _mark(axes, history)
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axes.set_ylim(bottom=0)
            axes.set_xlim(0, history.samples[-1].at)
            axes.grid(axis="y", alpha=0.25)
        _label(above, history)
        above.set_ylim(top=above.get_ylim()[1] * 1.25)
        above.set_title("Flights through Kafka and Spark by headrace: throughput through kills, restores and new partitions")
        figure.legend(handles=_legend(history), loc="outside lower center", ncols=6, frameon=False)
        figure.savefig(path)


def _draw_rates(axes: Axes, history: History) -> None:
    at, records_in, records_out = _columns(history)
    edges = np.arange(0, at[-1] + BIN_S, BIN_S)
    rate_in, rate_out = (np.diff(np.interp(edges, at, counts)) / BIN_S for counts in (records_in, records_out))
    axes.stairs(rate_out, edges, color=COLOURS["out"], fill=True, alpha=0.85)
    axes.stairs(rate_in, edges, color=COLOURS["in"], linewidth=1.8)
    axes.set_ylabel("records per second")


def _draw_lag(axes: Axes, history: History) -> None:
    at, records_in, records_out = _columns(history)
    axes.plot(at, records_in - records_out, color=COLOURS["out"])
    axes.set_ylabel("lag, records")
    axes.set_xlabel("seconds since the start")


def _columns(history: History) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = np.array([(sample.at, sample.records_in, sample.records_out) for sample in history.samples], dtype=float)
    return rows[:, 0], rows[:, 1], rows[:, 2]


def _mark(axes: Axes, history: History) -> None:
    killed_at = None
    for event in history.events:
        axes.axvline(event.at, color=COLOURS[event.kind], linestyle="--" if event.kind == "partitions" else "-", linewidth=1.4)
        if event.kind == "kill":
            killed_at = event.at
        elif event.kind == "restore" and killed_at is not None:
            axes.axvspan(killed_at, event.at, color=COLOURS["kill"], alpha=0.08, linewidth=0)


def _label(axes: Axes, history: History) -> None:
    for event in history.events:
        axes.annotate(
            event.label,
            (event.at, LABEL_HEIGHTS[event.kind]),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            verticalalignment="top",
            fontsize=8.5,
            color=COLOURS[event.kind],
        )


def _legend(history: History) -> list[Line2D | Patch]:
    kinds = {event.kind for event in history.events}
    marks = [
        Line2D([], [], color=COLOURS[kind], linestyle="--" if kind == "partitions" else "-", label=label)
        for kind, label in LABELS.items()
        if kind in kinds
    ]
    return [
        Line2D([], [], color=COLOURS["in"], linewidth=1.8, label="produced"),
        Patch(color=COLOURS["out"], alpha=0.85, label="written"),
        *marks,
        Patch(color=COLOURS["kill"], alpha=0.08, label="down"),
    ]
