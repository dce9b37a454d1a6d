"""Runs many histories, fast: `python tests/helpers/simulate.py --histories 100000 --first 0`. Stops at the first that fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.helpers.simulator import run_history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    began = time.perf_counter()
    for seed in range(arguments.first, arguments.first + arguments.histories):
        try:
            total.update(run_history(seed))
        except Exception as error:
            print(f"history {seed} fails: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
            raise
    elapsed_s = time.perf_counter() - began
    print(f"{arguments.histories} histories in {elapsed_s:.1f} s: {dict(total)}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
