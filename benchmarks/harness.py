"""Measuring systems side by side, A B A B, each in its own process; what was measured is kept as JSON, cell by cell."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import psutil

from benchmarks.stored import write_whole

CALL_TIMEOUT_S = 900.0
WARM_UPS = 2
END_TIMEOUT_S = 30.0
LOG_LINES = 15

Unit = Literal["records/s", "ms", "s", "MB"]


@dataclass(frozen=True)
class Context:
    """What a task is reported: which system it is to drive, against which broker (or on what data), and its own directory."""

    system: str
    bootstrap: str
    scratch: str


@contextmanager
def new_folder(context: Context) -> Iterator[Path]:
    """A folder in the task's directory, such as for a checkpoint. It is removed at the end, as far as that can be done."""
    with tempfile.TemporaryDirectory(dir=context.scratch, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Measurement:
    """One run: the figure that is compared, and whether the work was done at all (`records` must be `expected`)."""

    value: float
    records: int
    expected: int
    detail: Mapping[str, Any] = field(default_factory=dict)


Task = Callable[[Context, Any], Measurement]
Setting = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Target:
    """What our figure must be, set against another system's: a ratio, or a difference in the cell's unit.

    "at most by itself" is a figure in the cell's unit, whatever the other system's.
    """

    against: str
    kind: Literal["at least", "at most", "at most more", "at most by itself"]
    bound: float


@dataclass(frozen=True)
class Cell:
    """One row of the results: the same work, done by several systems one after another.

    `task` runs in each system's process with `work`, while the context that `setting` makes for a broker's address is held.
    With `fresh` every run has a new process, and the first run of each system is a warm-up; otherwise the systems' processes
    live through all cells of a group, and the first two runs in each cell are: the JVM compiles for several seconds of work.
    """

    group: str
    name: str
    title: str
    unit: Unit
    systems: tuple[str, ...]
    task: Task
    work: Any
    targets: tuple[Target, ...]
    setting: Setting
    fresh: bool = False

    @property
    def key(self) -> str:
        """The name of its file."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.group} {self.name}".lower()).strip("-")


class Child:
    """A process that runs functions for us, one after the other. Its output goes to a log file. Not thread-safe."""

    def __init__(self, log: Path) -> None:
        """Start it."""
        self._log = log
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, str(log)), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, function: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 - whatever the function returns
        """Run the function there; RuntimeError when it raises, dies or takes longer than 15 minutes."""
        self._connection.send((function, args))
        try:
            if not self._connection.poll(CALL_TIMEOUT_S):
                raise RuntimeError(f"no answer within {CALL_TIMEOUT_S:g} s")
            done, answer = self._connection.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError("the process ended by itself:\n" + self._tail()) from None
        if not done:
            raise RuntimeError(answer)
        return answer

    def cpu_s(self) -> float:
        """CPU seconds so far, of the process and all below it that are alive: of the JVM and Spark's Python workers too."""
        root = psutil.Process(self._process.pid)
        total = 0.0
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def close(self) -> None:
        """End it, and with it the JVM it may have started."""
        self._connection.close()
        self._process.join(END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def _serve(connection: Connection, log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):  # standard output and error
        os.dup2(output, descriptor)
    while True:
        try:
            function, args = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, function(*args)))
        except Exception:  # noqa: BLE001 - whatever it is goes to the parent
            connection.send((False, traceback.format_exc()))


class Fleet:
    """The systems' processes: kept between cells of one group, renewed for another group or after a failure."""

    def __init__(self, scratch: Path, bootstrap: str) -> None:
        """Starts nothing yet. Logs and working directories go below `scratch`."""
        self._scratch, self._bootstrap = scratch, bootstrap
        self._children: dict[str, Child] = {}
        self._group = ""

    def run(self, cell: Cell, system: str) -> tuple[Measurement, float]:
        """One run, and the CPU seconds it took in the system's processes. Raises RuntimeError when it fails."""
        if cell.group != self._group:
            self.close()
            self._group = cell.group
        directory = self._scratch / cell.key / system
        directory.mkdir(parents=True, exist_ok=True)
        child = self._children.pop(system, None) or Child(self._scratch / f"{cell.group}-{system}.log")
        try:
            before = child.cpu_s()
            measured: Measurement = child.call(cell.task, Context(system, self._bootstrap, str(directory)), cell.work)
            cpu_s = child.cpu_s() - before
        except BaseException:
            child.close()
            raise
        if cell.fresh:
            child.close()
        else:
            self._children[system] = child
        return measured, cpu_s

    def close(self) -> None:
        """End all processes."""
        for child in self._children.values():
            child.close()
        self._children.clear()


@contextmanager
def fleet(scratch: Path, bootstrap: str) -> Iterator[Fleet]:
    """A fleet that is ended, and its directory removed, with the context."""
    made = Fleet(scratch, bootstrap)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(scratch, ignore_errors=True)


def measure(
    ships: Fleet,
    cell: Cell,
    rounds: int,
    environment: Mapping[str, Any],
    report: Callable[[str], None],
    complain: Callable[[str], None],
) -> dict[str, Any]:
    """Warm up, then every system one after another, `rounds` times; a round with an invalid run is the last. Returns the cell's
    document.

    `report` is reported each step, `complain` whatever goes wrong.
    """
    runs: list[dict[str, Any]] = []
    warm_ups = 1 if cell.fresh else WARM_UPS
    for number in range(1 - warm_ups, rounds + 1):
        for system in cell.systems:
            report(f"{'warm-up' if number < 1 else f'{number}/{rounds}'} {system}")
            run = {"system": system, "round": number, **_run(ships, cell, system, complain)}
            if number > 0 or not run["valid"]:
                runs.append(run)
        if not all(run["valid"] for run in runs):
            break
    return {
        "group": cell.group,
        "name": cell.name,
        "title": cell.title,
        "unit": cell.unit,
        "systems": list(cell.systems),
        "targets": [asdict(target) for target in cell.targets],
        "rounds": rounds,
        "environment": dict(environment),
        "runs": runs,
    }


def _run(ships: Fleet, cell: Cell, system: str, complain: Callable[[str], None]) -> dict[str, Any]:
    before: dict[str, Any] = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load": os.getloadavg()}
    try:
        measured, cpu_s = ships.run(cell, system)
    except RuntimeError as error:
        complain(f"{cell.key}, {system}: {error}")
        return {**before, "valid": False, "error": "failed"}  # the message may hold paths, which stay out of results
    valid = measured.records == measured.expected
    if not valid:
        complain(f"{cell.key}, {system}: read {measured.records} records, not {measured.expected}")
    return {**before, "valid": valid, **asdict(measured), "cpu_s": round(cpu_s, 2)}


def save(directory: Path, cell: Cell, document: Mapping[str, Any]) -> None:
    """Keep a cell's document."""
    write_whole(directory / f"{cell.key}.json", json.dumps(document, indent=1) + "\n")


def is_finished(directory: Path, cell: Cell, rounds: int) -> bool:
    """Whether there is a document of at least this many rounds, all valid."""
    file = directory / f"{cell.key}.json"
    if not file.is_file():
        return False
    document = json.loads(file.read_text())
    return document["rounds"] >= rounds and all(run["valid"] for run in document["runs"])
