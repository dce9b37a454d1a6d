"""What a run's curves say: outage, recovery, and what was delivered meanwhile. Pure; seconds are monotonic, counts are records.

Two curves are given as times, ascending, one for each record: when it was produced (acknowledged), and when it first became
visible under read_committed. The lag is the difference of their counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

HOLD_S = 5.0
"""For so long after "caught up" the lag must not leave its level, or it was not caught up."""

SLACK = 1.25
SLACK_S = 0.1
"""How much more than before the kill the lag may be: its peak by that factor, and the load of this many seconds; its lower
quartile by the latter alone."""

LOWER_QUARTILE = 0.25
LAG_STEP_S = 0.01

ECHO_S = 0.2
"""What was committed by processes now dead may reach the probe so much later; a step then is none of the restored job's."""

FIRST_S = 30.0
SERIES_STEP_S = 0.1


@dataclass(frozen=True)
class Curve:
    """A count that grows: at `at[i]` it became `total[i]`. Both ascending."""

    at: np.ndarray
    total: np.ndarray

    @classmethod
    def of_events(cls, times: np.ndarray) -> Curve:
        """Of one event at each of these times, which ascend."""
        last = np.flatnonzero(np.append(times[1:] > times[:-1], np.ones(min(1, len(times)), np.bool_)))
        return cls(times[last], last + 1)

    def value(self, at: np.ndarray | float) -> np.ndarray:
        """The count at these times, steps included."""
        place = np.searchsorted(self.at, at, "right")
        return np.concatenate([[0], self.total])[place]


@dataclass(frozen=True)
class Restore:
    """What one kill cost. `caught_up_s` None: the lag did not come back to its level while it was watched."""

    outage_s: float | None
    recovery_s: float | None
    delivered: int
    """Distinct records that became visible from the kill until the lag was back (or until watching ended)."""
    throughput: float
    """`delivered` per second: DFRT, if nothing is wrong with the output."""
    catching_up: float | None
    """Distinct records per second from the first new one until the lag was back."""
    first_30_s: float
    """Distinct records per second in the 30 s from the kill: an outage shows here whatever the load."""
    steady: float
    """Distinct records per second before the kill."""
    level: int
    """The largest lag before the kill."""


@dataclass(frozen=True)
class Level:
    """Lags of a time. Output comes in steps, between which the lag grows: `peak` is the highest, `low` the lower quartile."""

    peak: int
    low: float


def lag_level(produced: Curve, visible: Curve, since: float, until: float) -> Level:
    """The level of this time."""
    peak = int(_lags(produced, visible, since, until)[1].max())
    at = np.arange(since, until, LAG_STEP_S)
    return Level(peak, float(np.quantile(produced.value(at) - visible.value(at), LOWER_QUARTILE)))


def caught_up_at(produced: Curve, visible: Curve, level: Level, rate: float, since: float, until: float) -> float | None:
    """The first step from `since` on that brings the lag down to its lower quartile, and after which it keeps below its peak.

    To be below the peak is not enough: a restore that is shorter than the time between two steps never leaves it.
    None if that is less than HOLD_S before `until`.
    """
    at, lags = _lags(produced, visible, since, until)
    above = at[lags > level.peak * SLACK + rate * SLACK_S]
    earliest = above[-1] if len(above) else since
    steps = visible.at[(visible.at >= earliest) & (visible.at <= until)]
    low = steps[produced.value(steps) - visible.value(steps) <= level.low + rate * SLACK_S]
    if len(low) == 0 or until - low[0] < HOLD_S:
        return None
    return float(low[0])


def _lags(produced: Curve, visible: Curve, since: float, until: float) -> tuple[np.ndarray, np.ndarray]:
    """Times and lags: just before every step of `visible`, where the lag is largest, and at both ends."""
    steps = visible.at[(visible.at > since) & (visible.at <= until)]
    just_before = np.nextafter(steps, -np.inf)
    at = np.sort(np.concatenate([[since], just_before, [until]]))
    return at, produced.value(at) - visible.value(at)


@dataclass(frozen=True)
class Moments:
    """When what happened. `dead`: no killed process is left; `watched_until`: the load continues until then, or longer."""

    steady_since: float
    killed: float
    dead: float
    watched_until: float


def restore(produced: Curve, visible: Curve, moments: Moments) -> Restore:
    """What the kill cost."""
    steady_since, killed_at, watched_until = moments.steady_since, moments.killed, moments.watched_until
    rate = float(produced.value(killed_at) - produced.value(steady_since)) / (killed_at - steady_since)
    level = lag_level(produced, visible, steady_since, killed_at)
    later = visible.at[visible.at > moments.dead + ECHO_S]
    first_new = float(later[0]) if len(later) else None
    caught_up = None
    if first_new is not None:
        caught_up = caught_up_at(produced, visible, level, rate, first_new, watched_until)
    end = watched_until if caught_up is None else caught_up
    delivered = int(visible.value(end) - visible.value(killed_at))
    catching_up = None
    if first_new is not None and caught_up is not None and caught_up > first_new:
        before_first = visible.value(np.nextafter(first_new, -np.inf))
        catching_up = float(visible.value(caught_up) - before_first) / (caught_up - first_new)
    window_end = min(killed_at + FIRST_S, watched_until)
    return Restore(
        outage_s=None if first_new is None else first_new - killed_at,
        recovery_s=None if caught_up is None else caught_up - killed_at,
        delivered=delivered,
        throughput=delivered / (end - killed_at),
        catching_up=catching_up,
        first_30_s=float(visible.value(window_end) - visible.value(killed_at)) / (window_end - killed_at),
        steady=float(visible.value(killed_at) - visible.value(steady_since)) / (killed_at - steady_since),
        level=level.peak,
    )


def series(produced: Curve, visible: Curve, since: float, until: float, zero: float) -> dict[str, list[float]]:
    """Both curves on a grid, for plots: seconds since `zero`, and counts since `since`."""
    at = np.arange(since, until + SERIES_STEP_S, SERIES_STEP_S)
    return {
        "s": [round(float(t), 2) for t in at - zero],
        "produced": (produced.value(at) - produced.value(since)).tolist(),
        "visible": (visible.value(at) - visible.value(since)).tolist(),
    }
