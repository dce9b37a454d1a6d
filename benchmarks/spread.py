"""A median and its quartiles."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A median and its quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Collection[float]) -> Spread:
        """Of at least one value."""
        if len(values) == 1:
            (only,) = values
            return cls(only, only, only)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)

    def text(self, unit: str) -> str:
        """The median with its quartiles, as written in a table."""
        scale, digits = {"records/s": (1e6, 2), "ms": (1, 0), "x": (1, 2), "MB": (1, 2)}.get(unit, (1, 1))
        numbers = (f"{value / scale:.{digits}f}" for value in (self.median, self.low, self.high))
        return "{} ({} to {})".format(*numbers)
