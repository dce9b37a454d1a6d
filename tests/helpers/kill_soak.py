"""The exactly-once sink under many SIGKILLs, spread over the phases of a commit; then an oracle of another make counts.

    python tests/helpers/kill_soak.py [--kills 300] [--seed 1] [--result FILE]

Every run of the job (`sink_job.py`) is killed before or after some call, in its first epochs or in its recovery; every
OUTAGE-th kill is followed by an outage longer than the transaction timeout. Tasks vary in number from run to run. Half of the
kills happen under version 1 of the transaction protocol, half under version 2. Exit status 0: no duplicate, none lost, none
foreign, none torn.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from rich.progress import Progress
from sink_rig import eventually, kafka_sink, read_all, set_transaction_version

from headrace.connectors.kafka.broker import create_topic, start_broker
from headrace.connectors.kafka.broker.jars import KAFKA_VERSION
from headrace.connectors.kafka.transactions import Transactions

HERE = Path(__file__).parent
PHASES = [
    *(("KafkaTransaction", "write", when) for when in ("before", "after")),
    *(("KafkaTransaction", "prepare", when) for when in ("before", "after")),
    *(("KafkaCommitter", step, when) for step in ("fence", "check", "record", "end", "sweep") for when in ("before", "after")),
    *(("KafkaCommitter", "copy", when) for when in ("before", "after")),
]
MOST_CALLS = 4
ROWS = 60
EPOCHS = 4
OUTAGE = 12
TIMEOUT_MS = 4000
JOB_SECONDS = 90.0


class Soak:
    """One job, killed again and again under one version of the protocol."""

    def __init__(self, bootstrap: str, directory: Path, generator: random.Random) -> None:
        self.bootstrap, self.generator = bootstrap, generator
        name = f"soak-{uuid.uuid4().hex[:8]}"
        create_topic(bootstrap, name, 4)
        self.told: dict[str, Any] = {
            "bootstrap": bootstrap,
            "topic": name,
            "commits": f"{name}-commits",
            "prefix": name,
            "timeout_ms": TIMEOUT_MS,
            "state": str(directory / name),
            "rows": ROWS,
        }
        self.kills: Counter[str] = Counter()
        self.outages = 0
        self.runs = 0

    def run(self, kill: dict[str, Any] | None, epochs: int) -> int:
        """One run of the job; gives its exit status. Raises RuntimeError for one that failed by itself."""
        told = {**self.told, "tasks": self.generator.randint(1, 4), "epochs": epochs, "kill": kill}
        command = [sys.executable, str(HERE / "sink_job.py"), json.dumps(told)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_SECONDS, check=False)
        self.runs += 1
        if done.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the job failed by itself (kill: {kill}):\n{done.stderr[-3000:]}")
        return done.returncode

    def kill_once(self) -> bool:
        """A run with a kill planted; whether it came to that."""
        owner, method, when = self.generator.choice(PHASES)
        kill = {"owner": owner, "method": method, "when": when, "nth": self.generator.randint(1, MOST_CALLS)}
        if self.run(kill, EPOCHS) == 0:
            return False  # no copy was needed, for instance
        self.kills[f"{when} {method}"] += 1
        if self.kills.total() % OUTAGE == 0:
            self.wait_out()
        return True

    def wait_out(self) -> None:
        """An outage: until every transaction that the job has left open has timed out."""
        sink = kafka_sink(self.bootstrap, self.told["topic"], self.told["commits"], prefix=self.told["prefix"])
        eventually(lambda: Transactions(sink.cluster()).ongoing(self.told["prefix"]), [])
        self.outages += 1

    def judge(self) -> dict[str, int]:
        """Let the job finish, then count its output, read_committed."""
        self.run(None, 2)
        epochs = len(list((Path(self.told["state"]) / "commits").glob("[0-9]*")))
        wanted = {str(number) for number in range(epochs * ROWS)}
        found = Counter(read_all(self.bootstrap, self.told["topic"]))
        seen = [sum(str(epoch * ROWS + row) in found for row in range(ROWS)) for epoch in range(epochs)]
        uncommitted = read_all(self.bootstrap, self.told["topic"], "read_uncommitted")
        return {
            "epochs": epochs,
            "records": len(wanted),
            "duplicates": sum(count - 1 for count in found.values()),
            "lost": len(wanted - found.keys()),
            "foreign": len(found.keys() - wanted),
            "torn": sum(0 < count < ROWS for count in seen),
            "uncommitted_records_in_the_log": len(uncommitted) - found.total(),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    document: dict[str, Any] = {"kafka": KAFKA_VERSION, "seed": options.seed, "timeout_ms": TIMEOUT_MS, "protocols": {}}
    with (
        tempfile.TemporaryDirectory() as scratch,
        start_broker(config={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}) as cluster,
        Progress() as progress,
    ):
        for level in (1, 2):
            set_transaction_version(cluster.bootstrap, level)
            soak = Soak(cluster.bootstrap, Path(scratch), random.Random(options.seed + level))
            began = time.monotonic()
            bar = progress.add_task(f"protocol version {level}", total=options.kills // 2)
            while soak.kills.total() < options.kills // 2:
                progress.advance(bar, soak.kill_once())
            document["protocols"][f"v{level}"] = {
                "kills": soak.kills.total(),
                "by_phase": dict(sorted(soak.kills.items())),
                "outages": soak.outages,
                "runs": soak.runs,
                **soak.judge(),
                "seconds": round(time.monotonic() - began),
            }
    print(json.dumps(document, indent=1))  # noqa: T201 - the command's output
    if options.result is not None:
        options.result.write_text(json.dumps(document, indent=1) + "\n")
    verdicts = document["protocols"].values()
    return int(any(verdict[bad] for verdict in verdicts for bad in ("duplicates", "lost", "foreign", "torn")))


if __name__ == "__main__":
    sys.exit(main())
