"""A job for supervisors, with a query that is none of Spark's: what happens to it is written to the file that HISTORY names."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.connectors.base.commit import StaleEpochError
from headrace.enumerator.errors import DataLossError, FencedError, UsageError
from headrace.runners.spark.supervision.takeover import Takeover
from headrace.spark import run

HISTORY = Path(os.environ.get("HISTORY", "/dev/null"))


def settings() -> list[str]:
    return HISTORY.read_text().split("\n")[:-1] if HISTORY.exists() else []


def tell(what: str) -> None:
    with HISTORY.open("a") as history:
        history.write(f"{what}\n")


class Session:
    def stop(self) -> None:
        tell("session stopped")


def session() -> Session:
    return Session()


class State:
    """Java's reference to what a query's loop asks before each batch, and the classes that are found from there."""

    def __init__(self) -> None:
        self.value = self

    def get(self):
        return self

    set = None

    def getClass(self):  # noqa: N802
        return self

    def getClassLoader(self):  # noqa: N802
        return self

    def getPackageName(self):  # noqa: N802
        return "spark"

    def loadClass(self, name):  # noqa: N802
        return SimpleNamespace(getField=lambda field: SimpleNamespace(get=lambda _: (name, field)))


class Query:
    """Running in batch 7, as Spark's (4.3): `stop()` interrupts a batch. `when_awaited`: what it does when it is waited for."""

    id = "the query"

    def __init__(self, when_awaited=lambda: None) -> None:
        self.when_awaited = when_awaited
        self.state = State()
        self.state.set = self.set_state
        self._jsq = SimpleNamespace(streamingQuery=lambda: SimpleNamespace(state=lambda: self.state))
        self.looks_until_the_batch_ends = None
        self.isActive = True
        self.lastProgress = {"batchId": 7}
        self.status = {"isTriggerActive": True}

    def set_state(self, to) -> None:
        assert to == ("spark.TERMINATED$", "MODULE$")
        tell("instructed to start no further batch")
        self.looks_until_the_batch_ends = 3
        self.isActive = False

    def awaitTermination(self, timeout):  # noqa: N802
        self.when_awaited()
        if self.looks_until_the_batch_ends is not None:
            self.looks_until_the_batch_ends -= 1
            if self.looks_until_the_batch_ends == 0:
                tell("batch ended")
                self.status = {"isTriggerActive": False}  # it waits for its next trigger
        return not self.isActive

    def stop(self) -> None:
        tell("stopped" if not self.status["isTriggerActive"] else "interrupted")
        self.isActive = False
        self.status = {"isTriggerActive": False}


def fails_twice_and_then_runs(spark: Session) -> Query:
    """Killed, with a child in its own session; then an error; then it runs, and has its supervisor instructed to stop."""
    attempt = len([line for line in settings() if line.startswith("attempt")])
    tell(f"attempt {attempt}")
    if attempt == 0:
        tell(f"child {subprocess.Popen(['sleep', '600'], start_new_session=True).pid}")
        os.kill(os.getpid(), signal.SIGKILL)
    (child,) = (line.split()[1] for line in settings() if line.startswith("child"))
    tell("the child is gone" if not Path("/proc", child).exists() or zombie(child) else "the child is there")
    if attempt == 1:
        raise ConnectionError("no broker answers")
    supervisor = os.getppid()
    query = Query()
    query.when_awaited = lambda: (os.kill(supervisor, signal.SIGTERM), setattr(query, "when_awaited", lambda: None))
    return query


def zombie(pid: str) -> bool:
    return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def leaves_a_child(spark: Session) -> None:
    """Says how many dead processes its supervisor has not let go of, and is killed."""
    tell("attempt")
    pids = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    tell(f"zombies: {sum(parent(pid) == os.getppid() and zombie(pid) for pid in pids)}")
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)


def parent(pid: str) -> int | None:
    with suppress(OSError):
        return int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1])
    return None


def runs_and_freezes(spark: Session) -> Query:
    """Its process is stopped (SIGSTOP), once its supervisor knows that it runs."""
    return Query(lambda: os.kill(os.getpid(), signal.SIGSTOP))


def runs_with_a_child(spark: Session) -> Query:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    sys.stdout.write(f"{os.getpid()} {child.pid}\n")
    sys.stdout.flush()
    return Query()


def is_taken_over(spark: Session) -> Query:
    """Its first driver kills itself once a standby waits; the one that takes over has its supervisor instructed to stop."""
    runs = [line for line in settings() if line.startswith("runs in")]
    tell(f"runs in {os.getpid()}")
    query = Query()

    def look() -> None:
        standbys = [standby["state"] for standby in json.loads(Path(os.environ["STATUS"]).read_text())["standbys"]]
        if not runs and standbys == ["ARMED"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if runs and standbys:  # the next one is there
            query.when_awaited = lambda: None
            os.kill(os.getppid(), signal.SIGTERM)

    query.when_awaited = look
    return query


ENDINGS = {
    "fails": ConnectionError("no broker answers"),
    "is used wrongly": UsageError("no such option"),
    "loses data": DataLossError("offsets 3 to 7 of t-0 are gone"),
    "has an older checkpoint": StaleEpochError("it is an older copy"),
    "is fenced": FencedError("another driver has claimed the job"),
}


def ends_as_told(spark: Session) -> Query | None:
    """By the environment's ENDS. What it knows nothing of is a job that has nothing left to do."""
    tell("attempt")
    how = os.environ["ENDS"]
    if how == "is stopped":
        query = Query()

        def stop() -> None:
            query.when_awaited = lambda: None  # a second one would kill
            os.kill(os.getppid(), signal.SIGTERM)

        query.when_awaited = stop
        return query
    if how in ENDINGS:
        raise ENDINGS[how]
    return None


def cannot_be_given_back(spark: Session) -> Query:
    """Is stopped; then its sink is away, for ever."""
    Takeover.release = lambda _: (tell("gives back"), signal.pause())
    return ends_as_told(spark)


def has_a_session_that_cannot_be_stopped(spark: Session) -> Query:
    def stop() -> None:
        tell("stops its session")
        raise ConnectionError("the JVM is gone")

    spark.stop = stop
    return ends_as_told(spark)


def forgets_to_return_its_query(spark: Session) -> None:
    """It is started as Spark's are, with nothing behind it."""
    tell("attempt")
    query = MagicMock(**{"isActive.return_value": True, "name.return_value": "flights"})
    writer = DataStreamWriter.__new__(DataStreamWriter)
    writer._df = SimpleNamespace(sparkSession=SimpleNamespace(conf={}))
    writer._jwrite = MagicMock(**{"start.return_value": query})
    writer.start()


def runs_on_a_host(spark: Session) -> Query:
    """Says on which, by the folder of its status."""
    tell(f"runs on {Path(os.environ['STATUS']).parent.name}")
    return Query()


def loses_data(spark: Session) -> Query:
    tell("attempt")
    raise DataLossError("offsets 3 to 7 of t-0 are gone")


if __name__ == "__main__" or os.environ.get("UNGUARDED"):
    run(loses_data, session=session)
