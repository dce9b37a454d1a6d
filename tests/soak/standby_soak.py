"""A supervised job with a standby under load, on real Spark and Kafka: takeovers of all kinds, and an oracle that counts.

    python -m tests.soak.standby_soak [--takeovers 200] [--session 20] [--jobs 1] [--rate 2000] [--only TEXT] [--result FILE]

The kinds take turns: SIGKILL of all processes of the active driver; of its own process alone; of its JVM alone; SIGSTOP for
longer than the supervisor bears, and SIGCONT once it is given up; a second SIGKILL while the next standby warms; a broker that
restarts meanwhile; partitions that are added meanwhile; SIGKILL of the supervisor, which is started again. Each takes the job
from one driver to another, whose first commit of a record that was sent after the kill ends the outage.

A session is one broker and one job; `--jobs` of them run at once. A result file that is there is added to, session by session,
until it has this many takeovers. Unless JDK_JAVA_OPTIONS says otherwise, JVMs have no optimizing compiler, as in the tests: no
driver lasts until it has paid for itself. Exit status 0: each record once, none lost, none foreign, and no epoch's list names
the transactions of two drivers.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from benchmarks.environment import environment
from headrace.runners.spark.session import QUICK_JVM
from headrace.runners.spark.supervision.process_tree import members, tree_of
from headrace.runners.spark_processes.spark_archive import archive_of_spark
from headrace.testing.servers.kafka import add_partitions, create_topic, start_broker
from headrace.testing.servers.kafka.brokers import BrokerCluster
from tests.helpers.python_path import python_path
from tests.helpers.sink_rig import read_pairs
from tests.soak import standby_job

PARTITIONS = 4
START_S, ARMED_S, TAKEOVER_S, DRAIN_S = 120.0, 240.0, 120.0, 60.0
SILENCE_S = 4.0
POLL_S = 0.02
WRONG = ("lost", "foreign", "duplicates", "epochs_of_two_drivers")
"""What a result may not have."""

CONF = {
    "spark.master": "local[2,4]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g", "spark.log.level": "ERROR",
}  # fmt: skip


class Traffic:
    """Records with numbers go in; those that come out under read_committed are counted. Two threads."""

    def __init__(self, bootstrap: str, source: str, target: str, rate: float) -> None:
        self.sent_at: list[float] = []
        self.seen: dict[int, int] = {}
        self.seen_at: list[float] = []
        self.foreign = 0
        self._last_seen = -1
        self._first_news: dict[int, float] = {}
        self._rate = rate
        self._bootstrap, self._source, self._target = bootstrap, source, target
        self._changed = threading.Condition()
        self._is_sending, self._is_reading = True, True
        self._threads = [threading.Thread(target=run) for run in (self._send, self._read)]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_sending = self._is_reading = False
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "topic.metadata.refresh.interval.ms": 500}
        producer = Producer({**settings, "linger.ms": 5, "message.timeout.ms": 120_000, "partitioner": "random"})
        started_at = time.monotonic()
        while self._is_sending:
            due = int((time.monotonic() - started_at) * self._rate)
            for number in range(len(self.sent_at), due):
                producer.produce(self._source, b"%d" % number)
                self.sent_at.append(time.monotonic())
                if number % 500 == 0:
                    producer.poll(0)
            producer.poll(POLL_S)
        assert producer.flush(120) == 0

    def _read(self) -> None:
        group = {"group.id": "none", "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer({"bootstrap.servers": self._bootstrap, **group, "fetch.wait.max.ms": 20})
        consumer.assign([TopicPartition(self._target, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        while self._is_reading:
            self._take([message.value() for message in consumer.consume(10_000, POLL_S) if message.error() is None])
        consumer.close()

    def _take(self, values: list[bytes]) -> None:
        if not values:
            return
        with self._changed:
            self.seen_at.append(time.monotonic())
            for number in map(int, values):
                self.seen[number] = self.seen.get(number, 0) + 1
                self._last_seen = max(self._last_seen, number)
            self._changed.notify_all()

    def wait_for(self, number: int, seconds: float, check: Callable[[], None] = lambda: None) -> float:
        """Until a record of this number or a later one is out; when. Raises TimeoutError, and what `check` raises meanwhile."""
        deadline = time.monotonic() + seconds
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._last_seen >= number, 1.0):
                    return time.monotonic()
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no record from {number} on has come out for {seconds:g} s")

    def stop_sending(self) -> int:
        self._is_sending = False
        self._threads[0].join()
        return len(self.sent_at)


class SupervisedJob:
    """`headrace supervise` with a standby, and what its status file says."""

    settings: Sequence[str] = (
        *(word for setting, value in CONF.items() for word in ("--conf", f"{setting}={value}")),
        *("--silence-timeout", str(SILENCE_S)),
        *("--restart", "fixed-delay", "--config", "restart-strategy.fixed-delay.attempts=100000"),
    )

    def __init__(
        self, directory: Path, bootstrap: str, standbys: int = 1, checkpoint: str | None = None,
        like: "SupervisedJob | None" = None,
    ) -> None:  # fmt: skip
        """`like`: another supervisor of the same job."""
        name = f"standby-{uuid.uuid4().hex[:8]}" if like is None else like.source.removesuffix("-in")
        self.source, self.target = f"{name}-in", f"{name}-out"
        for topic in (self.source, self.target) if like is None else ():
            create_topic(bootstrap, topic, PARTITIONS)
        self.status_file, self.log = directory / "status.json", directory / "job.log"
        self.commits = f"{name}-commits"
        request = {"bootstrap": bootstrap, "source": self.source, "target": self.target, "commits": self.commits}
        self._told = json.dumps({**request, "checkpoint": checkpoint or str(directory / "checkpoint")})
        self._variables: dict[str, str] = {}
        options = ["--standby", str(standbys), "--status", str(self.status_file)]
        self._command = ["supervise", f"{standby_job.__file__}:job", *options, *self.settings]
        self._directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        archive_of_spark().at_hand()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from headrace.cli import main; main()", *self._command],
                env={
                    **os.environ, **self._variables, "PYTHONPATH": python_path(), "STANDBY_JOB": self._told,
                    "TMPDIR": str(self._directory),
                },
                stdout=log, stderr=log,
            )  # fmt: skip

    def check(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"the supervisor has ended with status {self.process.returncode}: {self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.status_file.read_text()) if self.status_file.exists() else {}
        return found

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
        """Until the status is so; the status. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not condition(status := self.status()):
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the status is {status}: {self.tail()}")
            time.sleep(POLL_S)
        return status

    def wait_armed(self) -> dict[str, Any]:
        """Until a driver runs the job and all standbys wait."""

        def is_armed(status: dict[str, Any]) -> bool:
            if status.get("supervisor", {}).get("pid") != (self.process and self.process.pid):
                return False
            standbys = [standby["state"] for standby in status["standbys"]]
            return bool(status["active"]) and status["active"]["state"] == "ACTIVE" and standbys == ["ARMED"]

        return self.wait_for(is_armed, ARMED_S)

    def stop(self) -> int:
        """End it, after the batch under way; its exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(120)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def send_signal(number: int, pids: list[int]) -> None:
    sent = 0
    for pid in pids:
        with suppress(ProcessLookupError):  # one that Spark has forked for a moment, and that has ended since
            os.kill(pid, number)
            sent += 1
    if not sent:
        raise RuntimeError(f"none of the processes {pids} is there to get signal {number}")


def jvm_of(tree: str) -> list[int]:
    return [pid for pid in members(tree) if _program(pid) == "java"]


def _program(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


@contextmanager
def running(
    directory: Path, bootstrap: str, rate: float, kind: type[SupervisedJob] = SupervisedJob
) -> Iterator[tuple[SupervisedJob, Traffic]]:
    job = kind(directory, bootstrap)
    with ExitStack() as stack:
        stack.callback(job.end)
        job.start()
        traffic = stack.enter_context(Traffic(bootstrap, job.source, job.target, rate))
        traffic.wait_for(0, START_S, job.check)
        yield job, traffic


def outcome(job: SupervisedJob, traffic: Traffic) -> dict[str, int]:
    """What the oracle counts, once all is out or nothing more comes."""
    sent = traffic.stop_sending()
    deadline = time.monotonic() + DRAIN_S
    while len(traffic.seen) < sent and time.monotonic() < deadline:
        job.check()
        time.sleep(POLL_S)
    job.stop()
    time.sleep(0.5)  # what is committed twice comes late, too
    return {
        "records": sent,
        "lost": sent - sum(number < sent for number in traffic.seen),
        "foreign": sum(number >= sent for number in traffic.seen),
        "duplicates": sum(count - 1 for count in traffic.seen.values()),
    }


def take_over(job: SupervisedJob, traffic: Traffic, strike: Callable[[str], None]) -> float:
    """Strike the active driver, given its process tree; seconds until a record that was sent later is committed."""
    tree = tree_of(job.wait_armed()["active"]["pid"])
    assert tree is not None
    started_at = time.monotonic()
    strike(tree)
    return traffic.wait_for(len(traffic.sent_at), TAKEOVER_S, job.check) - started_at


# --- the soak -----------------------------------------------------------------------------------------------------------
class Soak:
    """Takeovers of one job. `kinds`: what is done to the active driver's process tree; the first word of a result."""

    def __init__(self, job: SupervisedJob, traffic: Traffic, broker: BrokerCluster, chances: random.Random) -> None:
        self.job, self.traffic, self.broker, self.chances = job, traffic, broker, chances
        self.partitions = PARTITIONS
        self.outages: dict[str, list[float]] = {}
        self.kinds: dict[str, Callable[[str], None]] = {
            "all killed": self.kill_all, "stopped, and continued once it is given up": self.stop_and_continue,
            "killed, and again while the next one warms": self.kill_all, "driver's process killed": self.kill_driver,
            "JVM killed": self.kill_jvm, "broker restarted meanwhile": self.restart_broker,
            "partitions added meanwhile": self.add_partitions, "JVM stopped": self.stop_jvm,
            "supervisor killed": self.kill_supervisor, "driver stopped, then its supervisor killed": self.orphan,
        }  # fmt: skip

    def round(self, kind: str) -> float:
        """One takeover, or two; the longest outage. Raises RuntimeError where a driver of earlier is still there."""
        time.sleep(self.chances.random())  # at any point of a batch
        tree = tree_of(self.job.wait_armed()["active"]["pid"])
        assert tree is not None
        outage_s = take_over(self.job, self.traffic, self.kinds[kind])
        if "again" in kind:
            outage_s = max(outage_s, self.kill_the_next())
        if members(tree):
            raise RuntimeError(f"the job was taken over, and of {tree} there are {members(tree)}")
        self.outages.setdefault(kind, []).append(outage_s)
        return outage_s

    def kill_all(self, tree: str) -> None:
        send_signal(signal.SIGKILL, members(tree))

    def kill_driver(self, tree: str) -> None:
        send_signal(signal.SIGKILL, [self.job.status()["active"]["pid"]])

    def kill_jvm(self, tree: str) -> None:
        send_signal(signal.SIGKILL, jvm_of(tree))

    def stop_all(self, tree: str) -> None:
        send_signal(signal.SIGSTOP, members(tree))

    def stop_and_continue(self, tree: str) -> None:
        """What of it is left when another driver is called continues; nothing may be."""
        active = self.job.status()["active"]["pid"]
        self.stop_all(tree)
        self.job.wait_for(lambda status: not status["active"] or status["active"]["pid"] != active, TAKEOVER_S)
        for pid in members(tree):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop_jvm(self, tree: str) -> None:
        send_signal(signal.SIGSTOP, jvm_of(tree))

    def kill_the_next(self) -> float:
        """No standby is armed by now: this is a start of one that warms."""
        status = self.job.wait_for(lambda status: bool(status["active"]) and status["active"]["state"] == "ACTIVE", START_S)
        started_at = time.monotonic()
        send_signal(signal.SIGKILL, members(str(tree_of(status["active"]["pid"]))))
        return self.traffic.wait_for(len(self.traffic.sent_at), TAKEOVER_S, self.job.check) - started_at

    def restart_broker(self, tree: str) -> None:
        self.kill_all(tree)
        self.broker.restart(1)

    def add_partitions(self, tree: str) -> None:
        self.kill_all(tree)
        self.partitions += 1
        add_partitions(self.broker.bootstrap, self.job.source, self.partitions)

    def kill_supervisor(self, tree: str) -> None:
        assert self.job.process is not None
        self.job.process.kill()
        self.job.process.wait()
        self.job.start()

    def orphan(self, tree: str) -> None:
        self.stop_all(tree)
        self.kill_supervisor(tree)


def two_lists(bootstrap: str, topic: str) -> int:
    """How many epochs were recorded with one driver's transactions, and again with others, as by two drivers running."""
    first: dict[tuple[bytes | None, int], str] = {}
    twice: set[tuple[bytes | None, int]] = set()
    for key, value in read_pairs(bootstrap, topic):
        found = json.loads(value) if value else {}
        handles = found.get("handles")
        if handles:
            epoch = (key, found["epoch"])
            if first.setdefault(epoch, json.dumps(handles, sort_keys=True)) != json.dumps(handles, sort_keys=True):
                twice.add(epoch)
    assert first, f"{topic} has no list of transactions"
    return len(twice)


@dataclass(frozen=True)
class Session:
    """What one process is to do: this many takeovers of one job, on one broker."""

    seed: int
    takeovers: int
    rate: float
    only: str

    def run(self) -> dict[str, Any]:
        """The document; `outages_s` by kind."""
        with tempfile.TemporaryDirectory() as directory, start_broker() as broker:
            return self._run(broker, Path(directory))

    def _run(self, broker: BrokerCluster, directory: Path) -> dict[str, Any]:
        started_at = time.time()
        with running(directory, broker.bootstrap, self.rate) as (job, traffic):
            made = Soak(job, traffic, broker, random.Random(self.seed))
            kinds = [kind for kind in made.kinds if self.only in kind]
            for number in range(self.takeovers):
                kind = kinds[number % len(kinds)]
                sys.stderr.write(f"{self.seed}, {number + 1}: {kind}: {made.round(kind):.2f} s\n")
            counted = outcome(job, traffic)
        return {
            "seed": self.seed, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_at)), "takeovers": self.takeovers,
            "seconds": round(time.time() - started_at), "load_average": os.getloadavg(), **counted,
            "epochs_of_two_drivers": two_lists(broker.bootstrap, job.commits),
            "outages_s": {kind: [round(each, 2) for each in found] for kind, found in made.outages.items()},
        }  # fmt: skip


def summed(sessions: list[dict[str, Any]], rate: float) -> dict[str, Any]:
    """The result's document: all sessions, and what they have in sum."""
    outages: dict[str, list[float]] = {}
    for session in sessions:
        for kind, found in session["outages_s"].items():
            outages.setdefault(kind, []).extend(found)
    counts = ("takeovers", "records", *WRONG)
    return {
        **{what: sum(session[what] for session in sessions) for what in counts},
        "rate": rate,
        "silence_s": SILENCE_S,
        **environment("local"),
        "outages_s": {
            kind: {"count": len(found), "median": round(statistics.median(found), 2), "worst": max(found)}
            for kind, found in outages.items()
        },
        "sessions": sessions,
    }


def soak(arguments: argparse.Namespace) -> dict[str, Any]:
    """Sessions until there are this many takeovers; the document, which the result file has after each session."""
    result: Path | None = arguments.result
    sessions = json.loads(result.read_text())["sessions"] if result is not None and result.exists() else []
    left = arguments.takeovers - sum(session["takeovers"] for session in sessions)
    sizes = [min(arguments.session, left - done) for done in range(0, left, arguments.session)]
    tasks = [Session(len(sessions) + place, size, arguments.rate, arguments.only) for place, size in enumerate(sizes)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for done in as_completed([pool.submit(task.run) for task in tasks]):
            if (error := done.exception()) is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                raise error
            sessions.append(done.result())
            if result is not None:
                result.write_text(f"{json.dumps(summed(sessions, arguments.rate), indent=2)}\n")
    return summed(sessions, arguments.rate)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--takeovers", type=int, default=200, help="until the result has this many")
    parser.add_argument("--session", type=int, default=20, help="takeovers of one broker and job")
    parser.add_argument("--jobs", type=int, default=1, help="sessions at once")
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--only", default="", help="kinds with this text in them")
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("JDK_JAVA_OPTIONS", QUICK_JVM)
    document = soak(arguments)
    sys.stdout.write(f"{json.dumps({what: document[what] for what in document if what != 'sessions'}, indent=2)}\n")
    raise SystemExit(1 if any(document[what] for what in WRONG) else 0)


if __name__ == "__main__":
    main()
