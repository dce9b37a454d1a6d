"""How plots are drawn and kept: as SVG, the same bytes for the same data, so that a new report changes what has changed."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no display
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

ID_SALT = "headrace"
"""Without a salt the ids of clip paths and markers are random."""

UNDATED = {"Date": None, "Creator": None}
"""No time of day, and no version of matplotlib."""


def save(figure: Figure, file: Path) -> None:
    """Write a figure as SVG, and close it."""
    with mpl.rc_context({"svg.hashsalt": ID_SALT}):
        figure.savefig(file, format="svg", metadata=UNDATED)
    plt.close(figure)
