"""A Beam pipeline on Flink under many SIGKILLs of the task manager: its state, its output and its group offsets.

    python tests/soak/beam_soak.py [--kills 50] [--seed 1] [--result FILE]

Kafka is read and written exactly once while records keep coming. Every kill comes at a random moment, and every third while the
job is still restoring from the previous one; in every fourth the workers of the dead task manager are frozen, and continue when
the job has been restored with others. The state knows which offset must come next; the group's committed offsets are
compared with where reading starts again; at the end another client reads the output. Exit status 0: the state is exact, no
record is lost or doubled, no offset was ahead, no transaction is still open, and the kills did make transactions be aborted.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
from rich.progress import Progress

from headrace.beam import ReadFromKafka, WriteToKafka
from headrace.connectors.kafka.client.cluster import shared_cluster
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.write.transactions import Transactions
from headrace.testing.servers.flink import FlinkCluster
from headrace.testing.servers.flink.programs import FLINK_VERSION, RUNNER_VERSION
from headrace.testing.servers.kafka import create_topic, start_broker
from headrace.testing.servers.kafka.jars import KAFKA_VERSION
from tests.helpers.beam_jobs import Flow, OracleResult, Witness
from tests.helpers.flink_rig import flink_cluster, frozen_workers, job
from tests.helpers.kafka_rig import committed
from tests.helpers.sink_rig import read_all
from tests.helpers.waiting import eventually

PARTITIONS = 4
CHECKPOINT_MS = 2000
LONGEST_PAUSE_S = 12.0
WHILE_RESTORING, ZOMBIES = 3, 4
TIMEOUT_S = 300.0


def identities(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What is written for each record: its partition and offset, which no other has."""
    pairs = zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    return pa.RecordBatch.from_pydict({"value": [f"{partition}-{offset}" for partition, offset in pairs]})


@dataclass
class Counts:
    """What was found. `ahead`: kills after which a group offset was ahead of where its partition was read on."""

    kills: int = 0
    while_restoring: int = 0
    with_zombies: int = 0
    records: int = 0
    aborted: int = 0
    duplicates: int = 0
    lost: int = 0
    foreign: int = 0
    wrong_in_state: int = 0
    ahead: list[dict[str, Any]] = field(default_factory=list)
    offsets_compared: int = 0
    open_transactions: int = 0

    @property
    def is_good(self) -> bool:
        """Nothing is wrong, and the kills had something to do."""
        bad = (self.duplicates, self.lost, self.foreign, self.wrong_in_state, len(self.ahead), self.open_transactions)
        return not any(bad) and self.aborted > 0 and self.offsets_compared > 0


class Soak:
    """One job, and what is known of it."""

    def __init__(self, flink: FlinkCluster, bootstrap: str, directory: Path, generator: random.Random) -> None:
        self.flink, self.bootstrap, self.random = flink, bootstrap, generator
        name = uuid.uuid4().hex[:8]
        self.source, self.target, self.group, self.prefix = (f"{what}-{name}" for what in ("in", "out", "group", "soak"))
        for topic in (self.source, self.target):
            create_topic(bootstrap, topic, partitions=PARTITIONS)
        self.witness = Witness(directory / "notes")
        self.flow = Flow(bootstrap)
        self.record_counts = Counts()
        for partition in range(PARTITIONS):
            self.flow.add(self.source, partition)

    def build(self, pipeline: beam.Pipeline) -> None:
        """Read, note, write."""
        config = {"bootstrap.servers": self.bootstrap, "auto.offset.reset": "earliest", "group.id": self.group}
        batches = pipeline | ReadFromKafka(
            config, [self.source], commit_offset_in_finalize=True, output="arrow", columns=["topic", "partition", "offset"],
            read_s=0.5,
        )  # fmt: skip
        self.witness.read(batches)
        _ = (
            batches
            | beam.Map(identities).with_output_types(pa.RecordBatch)
            | WriteToKafka(
                {"bootstrap.servers": self.bootstrap}, self.target, delivery="exactly-once", transactional_id_prefix=self.prefix
            )
        )

    def kill(self, job_id: str) -> None:
        """One kill, and the comparison of offsets once every partition is read again."""
        restores = self.record_counts.kills % WHILE_RESTORING == WHILE_RESTORING - 1
        if not restores:
            self.flink.wait_running(job_id, TIMEOUT_S)
            since_s = time.time()
            eventually(lambda: self.witness.first_since(since_s), seconds=TIMEOUT_S)  # it reads
            time.sleep(self.random.uniform(0, LONGEST_PAUSE_S))  # the moment of a kill, not a wait for something
            eventually(self.open_transactions, seconds=TIMEOUT_S)  # so that there is something to go wrong
        self.record_counts.while_restoring += restores
        zombies = not restores and self.record_counts.kills % ZOMBIES == 0
        self.record_counts.with_zombies += zombies
        with frozen_workers(self.flink) if zombies else nullcontext():
            self.strike(job_id)

    def strike(self, job_id: str) -> None:
        self.flink.kill_task_manager()
        published = self.published()
        since_s = time.time()
        self.flink.start_task_manager()
        self.record_counts.kills += 1
        if self.record_counts.kills % WHILE_RESTORING == WHILE_RESTORING - 1:
            return  # the next one comes meanwhile
        eventually(lambda: published.keys() <= self.witness.first_since(since_s).keys(), seconds=TIMEOUT_S)
        restored = self.witness.first_since(since_s)
        self.record_counts.offsets_compared += len(published)
        self.record_counts.ahead += [
            {"kill": self.record_counts.kills, "partition": name, "published": offset, "restored": restored[name]}
            for name, offset in published.items()
            if offset > restored[name]
        ]

    def published(self) -> dict[str, int]:
        """The group's offsets, by partition."""
        partitions = [(self.source, partition) for partition in range(PARTITIONS)]
        offsets = committed(self.bootstrap, self.group, *partitions)
        return {f"{self.source}-{number}": offset for number, offset in enumerate(offsets) if offset is not None}

    def open_transactions(self) -> list[str]:
        """The names of those that the job has not ended."""
        return Transactions(shared_cluster(ClientConfig(bootstrap=self.bootstrap))).ongoing(f"{self.prefix}.")

    def finish(self) -> None:
        """No more records; once all are written, they are counted."""
        written = self.flow.stop()
        expected = {f"{name.rpartition('-')[2]}-{offset}" for name, count in written.items() for offset in range(count)}
        self.record_counts.records = len(expected)
        counts = {name: OracleResult(count, 0) for name, count in written.items()}
        eventually(lambda: {name: v.count for name, v in self.witness.outcomes().items()} == written, seconds=TIMEOUT_S)
        self.record_counts.wrong_in_state = sum(v.wrong for v in self.witness.outcomes().values())
        assert self.record_counts.wrong_in_state or self.witness.outcomes() == counts
        eventually(lambda: len(read_all(self.bootstrap, self.target)) >= len(expected), seconds=TIMEOUT_S)
        eventually(lambda: self.open_transactions() == [], seconds=TIMEOUT_S)
        self.record_counts.open_transactions = len(self.open_transactions())
        found = Counter(read_all(self.bootstrap, self.target))
        self.record_counts.duplicates = sum(times - 1 for times in found.values())
        self.record_counts.lost, self.record_counts.foreign = len(expected - found.keys()), len(found.keys() - expected)
        self.record_counts.aborted = len(read_all(self.bootstrap, self.target, "read_uncommitted")) - found.total()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    started_s = time.monotonic()
    with start_broker() as broker, flink_cluster() as flink, tempfile.TemporaryDirectory() as directory, Progress() as bar:
        soak = Soak(flink, broker.bootstrap, Path(directory), random.Random(arguments.seed))
        with job(flink, soak.build, checkpoint_ms=CHECKPOINT_MS) as job_id:
            eventually(lambda: len(soak.published()) == PARTITIONS, seconds=TIMEOUT_S)
            for _ in bar.track(range(arguments.kills), description="SIGKILLs of the task manager"):
                soak.kill(job_id)
            soak.finish()
    result = {
        **asdict(soak.record_counts), "seed": arguments.seed, "seconds": round(time.monotonic() - started_s),
        "versions": {
            "beam": version("apache-beam"), "flink": FLINK_VERSION, "runner": RUNNER_VERSION, "kafka": KAFKA_VERSION,
            "python": platform.python_version(),
        },
    }  # fmt: skip
    print(json.dumps(result, indent=2))  # noqa: T201 - the command's output
    if arguments.result is not None:
        arguments.result.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if soak.record_counts.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
