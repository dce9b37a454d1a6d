"""A driver: the process that runs the job's function under a supervisor.

    python -m headrace.runners.spark.supervision.driver ORDERS REPORTS

The descriptors of two pipes. From ORDERS it reads one line, what to run; then that pipe stays open for as long as the
supervisor lives, and when it closes, all processes of the driver are killed. To REPORTS it writes a line of JSON for whatever
the supervisor has to know. SIGTERM ends the queries after the batches under way.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.enumerator.supervision import EXIT_STATUSES, DriverEnd, Ending
from headrace.runners.spark.session import end_processes, session_builder, warm_session_builder
from headrace.runners.spark.supervision.endings import end_by
from headrace.runners.spark.supervision.families import FAMILY_VARIABLE, kill_family
from headrace.runners.spark.supervision.jobs import FunctionName, load
from headrace.runners.spark.supervision.queries import ProgressOfQueries, RunningQuery, WatchedQuery, queries_of

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

__all__ = ["DriverOrder"]

POLL_S = 0.5
CLEAN_UP_S = 5.0
MASTER = "spark.master"


@dataclass(frozen=True, slots=True)
class DriverOrder:
    """What a driver runs. `session`: the function that makes the session; None for headrace's builders with `conf`."""

    job: FunctionName
    session: FunctionName | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def to_line(self) -> bytes:
        """JSON, ended by a line's end."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> DriverOrder:
        """What `to_line` has made."""
        given: dict[str, Any] = json.loads(line)
        session = given["session"]
        return cls(FunctionName(**given["job"]), None if session is None else FunctionName(**session), given["conf"])


_STOPPED = DriverEnd(Ending.STOPPED, "it was stopped")


class _Driver:
    """The main thread's part."""

    def __init__(self, order: DriverOrder, reports: int) -> None:
        self._order = order
        self._reports = reports
        self._is_to_stop = False

    def run(self) -> DriverEnd:
        """Run the job to its end, which is reported."""
        signal.signal(signal.SIGTERM, self._stop)
        try:
            end = self._run()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is reported
            end = end_by(error)
        self._report(end=end.ending.name, reason=end.reason)
        return end

    def _run(self) -> DriverEnd:
        job = load(self._order.job)
        session = load(self._order.session)() if self._order.session is not None else _session(self._order.conf)
        if self._is_to_stop:
            return _STOPPED
        queries = queries_of(job(session))
        self._report(queries=[query.id for query in queries])
        end = _STOPPED if self._watch(queries) else DriverEnd(Ending.COMPLETED, "all its queries have ended")
        session.stop()
        return end

    def _watch(self, queries: list[RunningQuery]) -> bool:
        """Wait for the end of all; whether it was a stop. Raises what a query fails with."""
        progress = ProgressOfQueries()
        watched = [WatchedQuery(query) for query in queries]
        active = watched
        while active := [one for one in active if not one.has_ended(POLL_S / len(watched))]:
            if self._is_to_stop:
                for one in active:
                    one.tell_to_end()
            if progress.look([one.query for one in active]):
                self._report(batches=progress.batches)
        return any(one.is_told for one in watched)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_to_stop = True

    def _report(self, **what: object) -> None:
        os.write(self._reports, json.dumps(what).encode() + b"\n")


def _session(conf: Mapping[str, str]) -> SparkSession:
    """A session of headrace's builders: a warm one where the settings say that all is on this machine."""
    builder = warm_session_builder() if conf.get(MASTER, "").startswith("local") else session_builder()
    return builder.config(map=dict(conf)).getOrCreate()


def _end_with_supervisor(orders: int) -> None:
    """In a thread. Whatever the main thread does then, nothing of this driver is left."""
    while os.read(orders, 1):
        continue
    kill_family(os.environ[FAMILY_VARIABLE])
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """See the module."""
    orders, reports = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (orders, reports):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - as it is defined
    line = b""
    while not line.endswith(b"\n"):
        if not (read := os.read(orders, 1 << 16)):
            return  # the supervisor is gone
        line += read
    threading.Thread(target=_end_with_supervisor, args=[orders], daemon=True).start()
    end = _Driver(DriverOrder.from_line(line), reports).run()
    end_processes(CLEAN_UP_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_STATUSES[end.ending])  # whatever threads there are; the supervisor kills what is left


if __name__ == "__main__":
    main()
