"""Searches on all cores, from seeds that no search has had: `python -m tests.simulation.soak --schedules 100000`.

The result says from which seed the next search continues. A schedule that fails is made short and printed as a test; that
simulation is searched no further. The order of sets is another in each run; the run of a failure is repeated with its
PYTHONHASHSEED.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.simulation.search import BrokenScheduleError, as_test, shortened
from tests.simulation.simulations import SIMULATIONS

FIRST_SEED = 1_000_000
"""Those below are the tests'."""

CHUNK = 500
RESULT = Path(__file__).parents[1] / "simulation" / "soak.json"
_ADVERSARIES = {simulation.adversary.name: simulation.adversary for simulation in SIMULATIONS}


def search_chunk(task: tuple[str, int]) -> tuple[Counter[str], str | None]:
    """One process's piece: what happened, and the test of the schedule that failed."""
    name, first = task
    adversary = _ADVERSARIES[name]
    try:
        return adversary.search(first, CHUNK), None
    except BrokenScheduleError as error:
        schedule = shortened(adversary, adversary.draw(error.seed), type(error.error))
        order = os.environ["PYTHONHASHSEED"]
        text = as_test(adversary, schedule, f"schedule_{error.seed}_of_{name}")
        return Counter(), f"# {error}; PYTHONHASHSEED={order}\n{text}"


def soak(name: str, schedules: int, before: dict[str, Any], processes: int) -> dict[str, Any]:
    started_at, first = time.monotonic(), before.get("next_seed", FIRST_SEED)
    happened, played, failure = Counter(before.get("happened", {})), 0, None
    chunks = [(name, seed) for seed in range(first, first + schedules, CHUNK)]
    with multiprocessing.Pool(processes) as pool:
        for counts, failed in pool.imap(search_chunk, chunks):
            happened.update(counts)
            failure = failed
            if failure is not None:
                break
            played += CHUNK
    rate = round(played / (time.monotonic() - started_at))
    print(f"{name}: {played} schedules, {rate}/s, {failure or 'every promise kept'}", flush=True)  # noqa: T201
    return {
        "next_seed": first + played, "schedules": before.get("schedules", before.get("histories", 0)) + played,
        "failure": failure,
        "happened": dict(sorted(happened.items())),
    }  # fmt: skip


def with_an_order_of_sets() -> None:
    """Start this program again, with an order that can be determined."""
    if "PYTHONHASHSEED" not in os.environ:
        seed = str(random.randrange(1 << 32))
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": seed})


def main() -> int:
    with_an_order_of_sets()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000, help="of each simulation")
    parser.add_argument("--simulation", choices=sorted(_ADVERSARIES), action="append", help="default: all of them")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--result", type=Path, default=RESULT)
    arguments = parser.parse_args()
    result = json.loads(arguments.result.read_text()) if arguments.result.exists() else {}
    for name in arguments.simulation or list(_ADVERSARIES):
        result[name] = soak(name, arguments.schedules, result.get(name, {}), arguments.processes)
        arguments.result.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if any(entry["failure"] for entry in result.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
