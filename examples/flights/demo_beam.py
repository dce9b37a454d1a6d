"""Flights through Kafka and a Beam pipeline on Flink, everything going wrong on the way; an oracle counts. See README.md."""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from beam_follow import Follower
from beam_pipeline import build
from flights import FLIGHTS, airlines, flights
from oracle import judge_copy
from producer import FlightProducer
from rich.console import Console
from rich.table import Table

from headrace.testing.servers.flink import FlinkCluster, start_flink
from headrace.testing.servers.kafka import add_partitions, create_topic, delete_topic, start_broker

HERE = Path(__file__).parent
PARTITIONS, PARTITIONS_WHILE_DOWN, PARTITIONS_WHILE_RUNNING, PARTITIONS_BETWEEN = 3, 5, 7, 9
FIRST_KILL, GROWTH, SECOND_KILL, SAVEPOINT = 0.15, 0.3, 0.45, 0.6  # shares of the flights that are out by then
HOLD_SHARE = 0.2  # of the flights: production waits when it is so far ahead, so that no machine is too slow for the plan
STALL_S = 300.0
CHECKPOINT_MS = 2000


class DemoError(Exception):
    """The demo could not do what it is there to show."""


class Demo:
    """One run: a topic that fills, a job that is killed and moved, and what readers of its output see."""

    def __init__(self, bootstrap: str, flink: FlinkCluster, topics: tuple[str, str, str], total: int, console: Console) -> None:
        """Everything is running, but the job. `topics`: flights, their copy, the delays."""
        self._bootstrap = bootstrap
        self._flink = flink
        self._topics = topics
        self._total = total
        self._console = console
        self._began = time.monotonic()
        self._follower = Follower(bootstrap, *topics[1:])
        self._partitions = PARTITIONS
        self.restores = 0

    def run(self, rate: float) -> Follower:
        """Produce the flights, and have everything go wrong meanwhile; what the output's readers saw by the end."""
        producer = FlightProducer(self._bootstrap, self._topics[0], flights(self._total), rate)
        producer.hold = True  # until the job runs
        with self._follower as follower, producer:
            self._producer = producer
            job = self._submit(None)
            self._reach(FIRST_KILL)
            self._kill(job, lambda: self._add_partitions(PARTITIONS_WHILE_DOWN, "while the task manager is down"))
            self._reach(GROWTH)
            self._add_partitions(PARTITIONS_WHILE_RUNNING, "while the job runs")
            self._reach(SECOND_KILL)
            self._kill(job, lambda: None)
            self._reach(SAVEPOINT)
            producer.hold = True
            savepoint = self._flink.savepoint(job)
            self._say("the job was ended with a savepoint")
            self._add_partitions(PARTITIONS_BETWEEN, "while there is no job at all")
            job = self._submit(savepoint)
            self.restores += 1
            self._wait("every flight", lambda: follower.copied >= self._total and follower.flights.total() >= self._total)
            self._say("every flight is in the output")
            self._flink.cancel(job)
        return follower

    def _submit(self, savepoint: str | None) -> str:
        options = PipelineOptions(self._flink.options(checkpoint_ms=CHECKPOINT_MS, savepoint=savepoint))
        pipeline = beam.Pipeline(options=options)
        build(pipeline, self._bootstrap, *self._topics)
        job = self._flink.submit(pipeline)
        self._flink.wait_running(job)
        self._say("a job runs" if savepoint is None else "a new submission runs, from the savepoint")
        return job

    def _kill(self, job: str, meanwhile: Callable[[], None]) -> None:
        failure = self._flink.job(job).failure
        self._flink.kill_task_manager()
        self._say("killed the task manager (SIGKILL)")
        meanwhile()
        self._producer.hold = True
        self._flink.start_task_manager()
        self._wait("the job to fail", lambda: self._flink.job(job).failure != failure, ahead=0.0)
        self._flink.wait_running(job)
        self.restores += 1
        self._say("restored")

    def _add_partitions(self, total: int, moment: str) -> None:
        add_partitions(self._bootstrap, self._topics[0], total)
        added = range(self._partitions, total)
        self._partitions = total
        self._wait(
            "flights in a new partition", lambda: any(self._producer.acknowledged[number] for number in added), ahead=1.0
        )
        self._producer.hold = True
        self._say(f"added partitions {added.start} to {added.stop - 1} {moment}")

    def _reach(self, share: float) -> None:
        """Wait until so much of the flights is out."""
        self._wait(f"{share:.0%} of the flights", lambda: self._follower.copied >= share * self._total)

    def _wait(self, what: str, condition: Callable[[], object], ahead: float = HOLD_SHARE) -> None:
        """Follow the output until the condition holds. Production is so far ahead at most, as a share of the flights."""
        seen, since = -1, time.monotonic()
        while not condition():
            self._follower.look()
            self._producer.is_done()  # or it raises why not
            self._producer.hold = self._producer.acknowledged.total() - self._follower.copied > ahead * self._total
            if self._follower.copied + self._follower.flights.total() != seen:
                seen, since = self._follower.copied + self._follower.flights.total(), time.monotonic()
            if time.monotonic() - since > STALL_S:
                raise DemoError(f"nothing moved for {STALL_S:.0f} s while waiting for {what}")

    def _say(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        out = f"{self._producer.acknowledged.total()} flights in, {self._follower.copied} out"
        self._console.print(f"{seconds:6.1f} s  {text} ({out})", soft_wrap=True, highlight=False)


@contextmanager
def new_topics(bootstrap: str) -> Iterator[tuple[str, str, str]]:
    """Give three topics of unique names, deleted with the context."""
    name = f"flights-{uuid.uuid4().hex[:8]}"
    topics = (name, f"{name}-copy", f"{name}-delays")
    for topic in topics:
        create_topic(bootstrap, topic, PARTITIONS)
    try:
        yield topics
    finally:
        for topic in topics:
            delete_topic(bootstrap, topic)


def delays(follower: Follower) -> Table:
    """The delays by carrier, as the job has totalled them."""
    names = dict(airlines().itertuples(index=False))
    table = Table("carrier", "flights", "minutes late on arrival, on average")
    for carrier, count in follower.flights.most_common():
        table.add_row(names.get(carrier, carrier), str(count), f"{follower.minutes[carrier] / count:.1f}")
    return table


def main(arguments: Sequence[str]) -> int:
    """Run the demo; give the exit status: 0 if the oracle found every flight in the output exactly once."""
    parser = argparse.ArgumentParser(description="Flights through Kafka, Beam and Flink, with kills and new partitions.")
    parser.add_argument("--flights", type=int, default=FLIGHTS, help="how many (default: all %(default)s)")
    parser.add_argument("--rate", type=float, default=3000.0, help="flights produced per second (default: %(default)g)")
    options = parser.parse_args(arguments)
    console = Console()
    console.print("starting Kafka and Flink")
    workers = {"PYTHONPATH": str(HERE)}
    with start_broker() as cluster, start_flink(environment=workers) as flink, new_topics(cluster.bootstrap) as topics:
        demo = Demo(cluster.bootstrap, flink, topics, options.flights, console)
        follower = demo.run(options.rate)
        console.print("the oracle reads both topics")
        outcome = judge_copy(cluster.bootstrap, *topics[:2])
    console.print(delays(follower))
    totalled = follower.flights.total()
    if totalled != options.flights:
        console.print(f"the delays are of {totalled} flights, and there are {options.flights}", highlight=False)
    last = (
        f"headrace demo: {outcome.records_in} records in, {outcome.records_out} out, {outcome.duplicates} duplicates, "
        f"{outcome.lost} lost, {demo.restores} restores"
    )
    console.print(last, soft_wrap=True, highlight=False)
    return 0 if outcome.is_good and outcome.records_in == totalled == options.flights else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except DemoError as error:
        sys.exit(f"headrace demo: {error}")
