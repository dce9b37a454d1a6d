"""What two readers see of a job that is killed in the middle of a transaction: one reads uncommitted, the other committed.

    python examples/exactly_once/isolation.py

A Spark job copies a topic with exactly-once delivery, in batches of two tasks. In the second batch one task has written its
transaction when the job is killed; the other never gets so far. The job is started again, and finishes.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from experiment import ExperimentError, Job, Kafka, Reader, check, kafka_and_scratch, say, wait_until

RECORDS, PARTITIONS, BATCH = 1000, 2, 200
SLOW = "301"  # in the second batch, in the second task


def markers(bootstrap: str, topic: str) -> Counter[str]:
    """What ended the transactions in the topic's log, by `headrace dump`."""
    command = [Path(sys.executable).with_name("headrace"), "dump", topic, "--bootstrap", bootstrap]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()  # noqa: S603 - our own
    kinds = [line.split("\t")[8] for line in lines if line.startswith("batch\t")]
    return Counter(kind for kind in kinds if kind in ("COMMIT", "ABORT"))


def experiment(kafka: Kafka, scratch: Path, delivery: str) -> None:
    """Raises ExperimentError if it comes out otherwise than it should."""
    source, output = kafka.topic("isolation-in", PARTITIONS), kafka.topic("isolation-out")
    kafka.send(source, range(RECORDS), PARTITIONS)
    hold = scratch / "hold"
    hold.touch()
    # minPartitions: so few records would share a task
    read = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH), "minPartitions": str(PARTITIONS)}
    write = {"topic": output, "delivery": delivery, "commitTopic": f"{output}-commits"}
    arguments = {
        "read": {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": source, **read},
        "write": {"kafka.bootstrap.servers": kafka.bootstrap, **write},
        "checkpoint": str(scratch / "checkpoint"),
        "slow": SLOW,
        "while": str(hold),
    }
    kafka.topics.append(write["commitTopic"])
    with (
        Reader(kafka.bootstrap, output, "read_uncommitted") as uncommitted,
        Reader(kafka.bootstrap, output, "read_committed") as committed,
    ):
        with Job("copy_job.py", scratch, arguments) as job:
            say("the job runs, until one task of its second batch has written and the other is slow")
            job.wait_for("the transaction of the second batch", lambda: uncommitted.count == BATCH + BATCH // PARTITIONS)
            say("the job is killed")
        before = uncommitted.seen.copy()
        check(committed.count == BATCH, f"read_uncommitted has seen {before.total()} records, read_committed {BATCH}")
        hold.unlink()
        with Job("copy_job.py", scratch, arguments) as job:
            say("the job is started again, and finishes")
            job.finish()
        wait_until("the last commit to be seen", lambda: len(committed.seen) == RECORDS)
        wanted = Counter(range(RECORDS))
        aborted = uncommitted.seen - wanted
        check(committed.seen == wanted, f"read_committed has seen each of {RECORDS} records once")
        check(
            aborted.total() == BATCH // PARTITIONS and aborted <= before,
            f"read_uncommitted has seen {uncommitted.count}: {aborted.total()} of them twice, first in the aborted transaction",
        )
        ended = markers(kafka.bootstrap, output)
        check(
            ended["COMMIT"] == PARTITIONS * RECORDS // BATCH and ended["ABORT"] == 1,
            f"the log has {ended['COMMIT']} COMMIT markers and {ended['ABORT']} ABORT marker (headrace dump)",
        )


def main(delivery: str = "exactly-once") -> int:
    """`delivery` at-least-once shows what happens without transactions: the experiment fails."""
    with kafka_and_scratch() as (kafka, scratch):
        try:
            experiment(kafka, scratch, delivery)
        except ExperimentError as error:
            say(f"FAILED: {error}")
            return 1
    say("isolation: each record once")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
