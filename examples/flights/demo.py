"""Flights through Kafka and Spark, with everything going wrong on the way; then an oracle counts. See README.md."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import pandas as pd
import pyarrow.parquet
from display import Display, History, Sample
from files import committed_files, is_committed, offsets_read
from flights import FLIGHTS, airlines, flights
from oracle import CopyResult, OracleResult, judge, judge_copy, read_output
from producer import FlightProducer
from report import delays, draw
from rich.console import Console
from supervised import DemoError, SupervisedJob

from headrace.testing.servers.kafka import add_partitions, create_topic, delete_topic, start_broker

T = TypeVar("T")

PARTITIONS, PARTITIONS_WHILE_RUNNING, PARTITIONS_WHILE_DOWN = 3, 6, 9  # carriers hash to each of those added
FIRST_KILL, GROWTH, SECOND_KILL = 0.25, 0.45, 0.65  # shares of the flights that are out by then
BATCHES_AT_LEAST = 15
HOLD_SHARE = 0.25  # of the flights: production waits when it is so far ahead, so that no machine is too slow for the plan
POLL_S = 0.01
SAMPLE_S = 0.25
STALL_S = 180.0


class Demo:
    """One run: what happens to it when, and how far it is."""

    def __init__(self, bootstrap: str, topic: str, copy: str, total: int, directory: Path, console: Console) -> None:
        """Prepare to bring `total` flights from `topic` to Parquet files in `directory`, and to the topic `copy`."""
        self._bootstrap = bootstrap
        self._topic, self._copy = topic, copy
        self._total = total
        self._output, self._checkpoint = directory / "flights", directory / "checkpoint" / "parquet"
        self._partitions = PARTITIONS
        self._state = "starting"
        self.history = History()
        self._display = Display(console, self.history, total)
        self._copied = directory / "checkpoint" / "kafka"
        self._waits_for_standby = False
        self.outages: list[str] = []
        """What was lost by each kill, as the last lines say it."""

        settings = {"bootstrap": bootstrap, "topic": topic, "output": str(self._output), "copy": copy}
        settings |= {"checkpoint": str(directory / "checkpoint"), "records_per_batch": str(total // BATCHES_AT_LEAST)}
        self._job = SupervisedJob(settings, directory)

    def run(self, rate: float) -> None:
        """Produce and read at the same time, kill twice, add partitions twice, restore, finish."""
        produced = flights(self._total)
        self.history.started_at = time.monotonic()
        with FlightProducer(self._bootstrap, self._topic, produced, rate) as self._producer, self._job, self._display:
            self._job.start()
            self._wait_until_out(FIRST_KILL)
            self._wait_for_standby()
            self._take_over()
            self._wait_until_out(GROWTH)
            self._add_partitions(PARTITIONS_WHILE_RUNNING)
            self._wait_until_out(SECOND_KILL)
            self._start_again()
            self._wait("the end of production", self._producer.is_done)
            self._state = "finishing"
            self._wait("every flight in both outputs", self._is_all_out)
            self._job.finish()
            self._wait("the job's end", self._job.has_finished)
            self._sample()

    def judge(self) -> OracleResult:
        """Ask the oracle."""
        return judge(self._bootstrap, self._topic, self._output)

    def judge_copy(self) -> CopyResult:
        """Ask the oracle about the other topic."""
        return judge_copy(self._bootstrap, self._topic, self._copy)

    def verify(self) -> bool:
        """Ask `headrace verify` about it; what it says is shown."""
        command = [Path(sys.executable).with_name("headrace"), "verify", "--bootstrap", self._bootstrap]
        return subprocess.run([*command, "--input", self._topic, "--output", self._copy], check=False).returncode == 0  # noqa: S603 - our own

    def output(self) -> pd.DataFrame:
        """Every row written."""
        return read_output(self._output).to_pandas()

    def _wait_until_out(self, share: float) -> None:
        self._wait(f"{share:.0%} of the flights in the output", lambda: self._last.records_out >= share * self._total)

    def _wait_for_standby(self) -> None:
        """No flight is produced meanwhile, so that there is something left to be killed in."""
        self._waits_for_standby = True
        self._wait("an armed standby", lambda: self._job.has_standby)
        self._waits_for_standby = False

    def _take_over(self) -> None:
        """Kill the driver running: the standby is restored when it has committed the batch that the other was killed in."""
        kill = self._job.kill_active_within_batch
        batch = self._wait("a batch to be under way", lambda: kill(self._checkpoint, self._output))
        self._state = "down"
        self._display.event("kill", "killed", f"killed the driver running (SIGKILL) within batch {batch}")
        seconds = self._restored(batch, self.history.now)
        self._display.event(
            "restore", f"taken over, {seconds:.1f} s", f"the standby has done batch {batch}, {seconds:.1f} s later"
        )
        self.outages.append(f"{seconds:.1f} s until the standby had taken over")

    def _start_again(self) -> None:
        """Kill everything, the standby and the supervisor too; add partitions while nothing runs; start from the checkpoint."""
        kill = self._job.kill_all_within_batch
        batch = self._wait("a batch to be under way", lambda: kill(self._checkpoint, self._output))
        self._state = "down"
        self._display.event("kill", "all killed", f"killed everything (SIGKILL) within batch {batch}")
        self._add_partitions(PARTITIONS_WHILE_DOWN)
        self._job.start()
        seconds = self._restored(batch, self.history.now)
        text = f"restored: batch {batch} is done, {seconds:.1f} s after the start"
        self._display.event("restore", f"restored, {seconds:.1f} s", text)
        self.outages.append(f"{seconds:.1f} s from a cold start")

    def _restored(self, batch: int, since: float) -> float:
        """Wait for this batch, which is to be done again; how long it took, in seconds."""
        self._state = "restoring"
        self._wait(f"batch {batch}, to be done again,", lambda: is_committed(self._checkpoint, batch))
        self._state = "running"
        return self.history.now - since

    def _is_all_out(self) -> bool:
        if self._last.records_out < self._total:
            return False
        copied = offsets_read(self._copied, self._topic)
        return all(copied.get(partition) == count for partition, count in self._producer.acknowledged.items())

    def _add_partitions(self, total: int) -> None:
        """Grow the topic; return when every new partition holds flights."""
        add_partitions(self._bootstrap, self._topic, total)
        added = range(self._partitions, total)
        text = f"added partitions {added.start} to {added.stop - 1} while the job is {self._state}"
        self._display.event("partitions", f"+{len(added)} partitions", text)
        self._partitions = total
        self._wait("flights in every new partition", lambda: all(self._producer.acknowledged[number] for number in added))

    def _wait(self, what: str, condition: Callable[[], T | None]) -> T:
        """Look after everything until the condition gives something true."""
        progress, deadline = -1, 0.0
        while not (found := condition()):
            self._look()
            if self._last.records_out != progress:
                progress, deadline = self._last.records_out, time.monotonic() + STALL_S
            if time.monotonic() > deadline:
                raise DemoError(f"nothing moved for {STALL_S:.0f} s while waiting for {what}:\n{self._job.log_tail()}")
            time.sleep(POLL_S)
        return found

    def _look(self) -> None:
        """Notice a process or thread that died; sample and show, when it is time."""
        is_running = self._job.is_running
        self._producer.is_done()
        if self.history.now >= self._last.at + SAMPLE_S:
            self._sample()
            if self._state == "starting" and self._last.records_out:
                self._state = "running"
            lag = self._last.records_in - self._last.records_out
            self._producer.hold = self._waits_for_standby or (is_running and lag > HOLD_SHARE * self._total)
            self._display.update(self._state, self._partitions)

    def _sample(self) -> None:
        """Note how far everything is."""
        records_in = self._producer.acknowledged.total()
        self.history.samples.append(Sample(self.history.now, records_in, sum(map(_rows, committed_files(self._output)))))

    @property
    def _last(self) -> Sample:
        return self.history.samples[-1]


@cache
def _rows(file: Path) -> int:
    return int(pyarrow.parquet.read_metadata(file).num_rows)


@contextmanager
def new_topics(bootstrap: str) -> Iterator[tuple[str, str]]:
    """Give two topics of unique names, deleted with the context."""
    name = f"flights-{uuid.uuid4().hex[:8]}"
    copy = f"{name}-copy"
    create_topic(bootstrap, name, PARTITIONS)
    create_topic(bootstrap, copy, PARTITIONS)
    try:
        yield name, copy
    finally:
        delete_topic(bootstrap, name)
        delete_topic(bootstrap, copy)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Flights through Kafka and Spark, with kills, restores and new partitions.")
    parser.add_argument("--flights", type=int, default=FLIGHTS, help="how many (default: all %(default)s)")
    parser.add_argument("--rate", type=float, default=3500.0, help="flights produced per second (default: %(default)g)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="directory (default: %(default)s)")
    return parser.parse_args(arguments)


def prepare(directory: Path) -> Path:
    """Make the output directory, without what an earlier run left there."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("flights", "checkpoint"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in ("job.log", "status.json", "throughput.png"):
        (directory / name).unlink(missing_ok=True)
    return directory.resolve()


def main(arguments: Sequence[str]) -> int:
    """Run the demo; give the exit status: 0 if the oracle found every flight in the output exactly once, and as it was."""
    options = parse(arguments)
    console = Console()
    directory = prepare(options.output)
    console.print("starting Kafka")
    with start_broker() as cluster, new_topics(cluster.bootstrap) as (topic, copy):
        demo = Demo(cluster.bootstrap, topic, copy, options.flights, directory, console)
        demo.run(options.rate)
        console.print("the oracle reads the topic and the output")
        outcome, copied = demo.judge(), demo.judge_copy()
        console.print("and `headrace verify` the two topics:")
        is_verified = demo.verify()
    console.print(delays(demo.output(), airlines()))
    picture = directory / "throughput.png"
    draw(demo.history, picture)
    console.print(f"throughput over time: {picture}", soft_wrap=True, highlight=False)
    is_whole = outcome.records_in == options.flights
    if not is_whole or outcome.altered:
        console.print(f"of {options.flights} flights {outcome.records_in} are in the topic; rows altered: {outcome.altered}")
    in_kafka = (
        f"in Kafka, exactly once: {copied.records_in} records in, {copied.records_out} out, {copied.duplicates} duplicates, "
        f"{copied.lost} lost, {copied.foreign} foreign"
    )
    console.print(in_kafka, soft_wrap=True, highlight=False)
    console.print(f"outages: {'; '.join(demo.outages)}", soft_wrap=True, highlight=False)
    last = (
        f"headrace demo: {outcome.records_in} records in, {outcome.records_out} out, {outcome.duplicates} duplicates, "
        f"{outcome.lost} lost, {demo.history.restores} restores"
    )
    console.print(last, soft_wrap=True, highlight=False)
    return 0 if outcome.is_good and is_whole and copied.is_good and is_verified else 1


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(main(sys.argv[1:]))
    except DemoError as error:
        sys.exit(f"headrace demo: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
