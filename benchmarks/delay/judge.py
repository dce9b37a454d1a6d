"""What a probe has seen: delays as percentiles, and which records came twice or not at all. Pure.

A delay is from the time at which a record was *due*, by the schedule of the load, to the first time that a reader under
`read_committed` was given it. So a load that is held up makes delays longer, and leaves none out (coordinated omission).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.restore.records import SEQUENCE_BITS, Ints

PERCENTILES = {"p50": 500, "p99": 990, "p99.9": 999, "worst": 1000}
"""Of a thousand."""

_MS = 1e6


@dataclass(frozen=True)
class Seen:
    """What the probe was given, in its order: ids, due times, times of sight; monotonic nanoseconds."""

    ids: Ints
    due_ns: Ints
    at_ns: Ints


@dataclass(frozen=True)
class Flaws:
    """Counts. `duplicates`: copies beyond the first. `foreign`: never produced."""

    records_in: int
    records_out: int
    duplicates: int
    lost: int
    foreign: int

    @property
    def clean(self) -> bool:
        """Every record once."""
        return not (self.duplicates or self.lost or self.foreign)

    def counts(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


def judge(produced: Sequence[int], seen: Seen) -> Flaws:
    """`produced`: how many records each input partition got, all acknowledged."""
    origin, sequence = seen.ids >> SEQUENCE_BITS, seen.ids & ((1 << SEQUENCE_BITS) - 1)
    counts = np.asarray([*produced, 0], np.int64)
    known = (seen.ids >= 0) & (sequence < counts[np.minimum(origin, len(produced))])
    distinct = len(np.unique(seen.ids[known]))
    of_produced = int(np.count_nonzero(known))
    return Flaws(sum(produced), len(seen.ids), of_produced - distinct, sum(produced) - distinct, len(seen.ids) - of_produced)


def delays_ms(seen: Seen, since_ns: int, until_ns: int) -> dict[str, float]:
    """Of the records that were due in this time; empty for none. The first sight counts."""
    _, first = np.unique(seen.ids, return_index=True)  # stable: the first of each
    due = seen.due_ns[first]
    chosen = first[(due >= since_ns) & (due < until_ns)]
    return percentiles((seen.at_ns[chosen] - seen.due_ns[chosen]) / _MS)


def percentiles(values: np.ndarray) -> dict[str, float]:
    """Each is a value that was measured, and that at least this share is not above. Empty for none."""
    if not len(values):
        return {}
    ordered, count = np.sort(values), len(values)
    return {name: round(float(ordered[-(-count * share // 1000) - 1]), 2) for name, share in PERCENTILES.items()}
