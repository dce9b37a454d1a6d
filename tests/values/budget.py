"""How long a search over values lasts: few examples, always the same, or HEADRACE_VALUES_MINUTES of others; its counts."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

MINUTES = float(os.environ.get("HEADRACE_VALUES_MINUTES", "0"))
"""Of one search."""
RESULTS = Path(__file__).parent / "results.json"
_A_ROUND = 50
_ALL = tuple(HealthCheck)


Search: TypeAlias = Callable[[], None] | type[RuleBasedStateMachine]
"""Decorated with `@given`, or a state machine."""


def explore(make: Callable[[], Search], examples: int, part: str, counts: Counter[str]) -> None:
    """Run the search that `make` makes; a long run adds `counts` to the results under the name of the part."""
    given = settings(deadline=None, database=None, suppress_health_check=_ALL, max_examples=examples, derandomize=True)
    if not MINUTES:
        _run(make(), given)
        return
    end, rounds = time.monotonic() + MINUTES * 60, 0
    fresh = settings(given, derandomize=False, max_examples=_A_ROUND)
    while time.monotonic() < end:
        _run(seed(rounds)(make()), fresh)
        rounds += 1
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[part] = dict(sorted(counts.items()))
    RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


def find(search: Search, examples: int) -> None:
    """The same without shrinking what is found, and never longer: for injected bugs."""
    phases = (Phase.generate,)
    short = settings(
        deadline=None,
        database=None,
        suppress_health_check=_ALL,
        max_examples=examples,
        derandomize=True,
        phases=phases,
        report_multiple_bugs=False,
    )
    _run(search, short)


def by_number(check: Callable[[int], None]) -> Callable[[], None]:
    """A search whose examples are each made of a number."""
    return given(st.integers(0, 2**32 - 1))(check)


@contextmanager
def noted(story: Callable[[], str]) -> Iterator[None]:
    """What was searched is in the error."""
    try:
        yield
    except Exception as error:
        error.add_note(story())
        raise


def _run(search: Search, chosen: settings) -> None:
    if isinstance(search, type):
        run_state_machine_as_test(search, settings=chosen)
    else:
        chosen(search)()
