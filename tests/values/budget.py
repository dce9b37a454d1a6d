"""How long a search over values lasts: few examples, always the same, or HEADRACE_VALUES_MINUTES of others; its counts."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings

MINUTES = float(os.environ.get("HEADRACE_VALUES_MINUTES", "0"))
"""Of one search."""
RESULTS = Path(__file__).parent / "results.json"
_A_ROUND = 50
_ALL = tuple(HealthCheck)


def explore(make: Callable[[], Callable[[], None]], examples: int, part: str, counts: Counter[str]) -> None:
    """Run the `@given` search that `make` makes; a long run adds `counts` to the results under the name of the part."""
    given = settings(deadline=None, database=None, suppress_health_check=_ALL, max_examples=examples, derandomize=True)
    if not MINUTES:
        given(make())()
        return
    end, rounds = time.monotonic() + MINUTES * 60, 0
    fresh = settings(given, derandomize=False, max_examples=_A_ROUND)
    while time.monotonic() < end:
        seed(rounds)(fresh(make()))()
        rounds += 1
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[part] = dict(sorted(counts.items()))
    RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


def find(search: Callable[[], None], examples: int) -> None:
    """The same without shrinking what is found, and never longer: for injected bugs."""
    phases = (Phase.generate,)
    settings(
        deadline=None,
        database=None,
        suppress_health_check=_ALL,
        max_examples=examples,
        derandomize=True,
        phases=phases,
        report_multiple_bugs=False,
    )(search)()
