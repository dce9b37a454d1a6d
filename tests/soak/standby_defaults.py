"""A supervised job with a standby and no other setting, on real Spark and Kafka: kills of the active driver under load.

    python -m tests.soak.standby_defaults [--kills 5] [--rate 5000] [--result FILE]

As a user starts it: `headrace supervise job.py:job --standby 1`, a session with the defaults of Spark and Java. A gap is the
longest time without a committed record, from a second before the kill until the next standby waits. Exit status 0: no record
is lost or duplicated.
"""

import argparse
import bisect
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from headrace.runners.spark.supervision.process_tree import members
from headrace.testing.servers.kafka import start_broker
from tests.soak.standby_soak import WRONG, SupervisedJob, Traffic, outcome, running, send_signal, take_over

CALM_S = 10.0
BEFORE_S = 1.0


class DefaultJob(SupervisedJob):
    """Started with no setting but the number of standbys (and where its status is to be seen)."""

    settings = ()


def longest_gap(traffic: Traffic, from_s: float) -> float:
    """Between two looks at the output that found records, since then."""
    return max(later - earlier for earlier, later in pairwise(traffic.seen_at[bisect.bisect(traffic.seen_at, from_s) :]))


def killed(job: SupervisedJob, traffic: Traffic) -> dict[str, float]:
    job.wait_armed()
    calm_from = time.monotonic()
    time.sleep(CALM_S)
    calm_s = longest_gap(traffic, calm_from)
    killed_at = time.monotonic()
    outage_s = take_over(job, traffic, lambda tree: send_signal(signal.SIGKILL, members(tree)))
    job.wait_armed()
    return {
        "gap_before_s": round(calm_s, 2),
        "gap_s": round(longest_gap(traffic, killed_at - BEFORE_S), 2),
        "next_record_s": round(outage_s, 2),
    }


def measured(kills: int, rate: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as directory,
        start_broker() as broker,
        running(Path(directory), broker.bootstrap, rate, DefaultJob) as (job, traffic),
    ):
        found = []
        for _ in range(kills):
            found.append(killed(job, traffic))
            sys.stderr.write(f"{found[-1]}\n")
        counted = outcome(job, traffic)
    gaps = [each["gap_s"] for each in found]
    return {
        "command": "headrace supervise job.py:job --standby 1", "rate": rate, "load_average": os.getloadavg(), **counted,
        "gap_s": {"median": statistics.median(gaps), "worst": max(gaps)}, "kills": found, **environment("local"),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--rate", type=float, default=5000.0, help="records per second")
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    document = measured(arguments.kills, arguments.rate)
    text = json.dumps(document, indent=2) + "\n"
    sys.stdout.write(text)
    if arguments.result is not None:
        arguments.result.write_text(text)
    return 1 if any(document.get(what) for what in WRONG) else 0


if __name__ == "__main__":
    sys.exit(main())
