"""A consumer group's offsets move only when a checkpoint completes; what a killed job repeats is what came after it.

    python examples/exactly_once/group_offsets.py

A Spark job copies a topic with at-least-once delivery, so that what is repeated can be counted in its output. Its option
commitOffsetsToGroup lets lag tools follow it. It is killed in the middle of its third batch, started again, and finishes.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from experiment import ExperimentError, Job, Kafka, Reader, check, kafka_and_scratch, say, wait_until

RECORDS, PARTITIONS, BATCH = 1000, 2, 200
SLOW = "501"  # in the third batch, in the second task


class Group:
    """The group of the job, alongside the job's checkpoint."""

    def __init__(self, kafka: Kafka, topic: str, checkpoint: Path) -> None:
        """It bears the topic's name."""
        self.name = topic
        self.stages = [0]
        """How many records were behind its offsets, whenever that had changed."""
        self._kafka, self._checkpoint = kafka, checkpoint

    def look(self) -> int:
        """The records behind its offsets. Raises ExperimentError if they are not all behind the last checkpoint, too."""
        records = self._kafka.group_offset(self.name, self.name, PARTITIONS)
        completed = len(list((self._checkpoint / "commits").glob("[0-9]*"))) * BATCH
        if records > completed:
            raise ExperimentError(f"the group is at {records}, and the last checkpoint at {completed}")
        if records != self.stages[-1]:
            self.stages.append(records)
        return records


def experiment(kafka: Kafka, scratch: Path) -> None:
    """Raises ExperimentError if it comes out otherwise than it should."""
    source, output = kafka.topic("group-in", PARTITIONS), kafka.topic("group-out")
    kafka.send(source, range(RECORDS), PARTITIONS)
    hold, checkpoint = scratch / "hold", scratch / "checkpoint"
    hold.touch()
    group = Group(kafka, source, checkpoint)
    # minPartitions: so few records would share a task
    read = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH), "minPartitions": str(PARTITIONS)}
    arguments = {
        "read": {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": source, "commitOffsetsToGroup": group.name, **read},
        "write": {"kafka.bootstrap.servers": kafka.bootstrap, "topic": output, "delivery": "at-least-once"},
        "checkpoint": str(checkpoint),
        "slow": SLOW,
        "while": str(hold),
    }
    with Reader(kafka.bootstrap, output, "read_committed") as reader:
        with Job("copy_job.py", scratch, arguments) as job:
            say("the job runs, until one task of its third batch has written and the other is slow")
            job.wait_for("the third batch", lambda: (group.look(), reader.count)[1] == 2 * BATCH + BATCH // PARTITIONS)
            say("the job is killed")
        out, at = reader.count, group.look()
        check(at == 2 * BATCH, f"{out} records are out, and the group is at {at}, where the second batch ends")
        hold.unlink()
        with Job("copy_job.py", scratch, arguments) as job:
            say("the job is started again, and finishes")
            job.finish()
        wait_until("the last records", lambda: len(reader.seen) == RECORDS)
        repeated = reader.seen - Counter(range(RECORDS))
        check(
            repeated.total() == out - at,
            f"{repeated.total()} records came twice: as many as were out since the last checkpoint",
        )
        check(group.look() == RECORDS, f"the group is at the end; it was seen at {', '.join(map(str, group.stages))}")
        check(
            all(stage % BATCH == 0 for stage in group.stages), "it was never seen within a batch, nor ahead of the checkpoint"
        )


def main() -> int:
    """Run it."""
    with kafka_and_scratch() as (kafka, scratch):
        try:
            experiment(kafka, scratch)
        except ExperimentError as error:
            say(f"FAILED: {error}")
            return 1
    say("group_offsets: they follow the checkpoint")
    return 0


if __name__ == "__main__":
    sys.exit(main())
