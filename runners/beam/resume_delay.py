"""How long a call asks to be left alone: what to tell a runner, so that no runner comes back at once."""

from __future__ import annotations

import math

from apache_beam.utils.timestamp import Duration


def pause(seconds: float) -> Duration:
    """At least so long, and less than 1.3 seconds longer; 0 is not a pause.

    Flink's runner drops the fraction of a second (`BundleCheckpointHandlers` in Beam's Java code): of a pause of 1 s, which is
    0.999 s when the runner learns of it, nothing is left.
    """
    # What passes between asking and the end of the call is taken off what was asked for: hence a margin.
    return Duration(seconds=math.ceil(seconds) + 0.25) if seconds > 0 else Duration()
