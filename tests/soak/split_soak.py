"""Streams on Spark of splits that Spark cannot cut, under SIGKILLs of driver, executors and Python workers, with speculation.

    python -m tests.soak.split_soak [--kills 300] [--seed 1] [--result FILE]

Text files grow, and whole files come: under other names first, some with a time in the past. Each kill comes at a random moment
after a stream has planned another batch. A result file that is there is added to. Exit status 0: no line lost, none twice.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pyarrow.parquet as pq
from rich.progress import Progress

from tests.helpers.page_connector import write_lines_module
from tests.helpers.python_path import ROOT, python_path
from tests.soak.results import kept

KINDS = ("lines", "files")
GROWING = 6
LOOK_S = 0.2
MOST_DELAY_S = 3.0
TIMEOUT_S = 300.0
VICTIMS = {"driver": 1, "executor": 2, "worker": 3}
"""Who is killed, and how often in proportion: a driver takes ten seconds to start."""

Victim: TypeAlias = Callable[[psutil.Process], bool]


class Input:
    """What the streams read, and what they have to write."""

    def __init__(self, folder: Path, moves: random.Random) -> None:
        self._folder, self._random = folder, moves
        self.written: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        for kind in KINDS:
            (folder / kind).mkdir()

    def grow(self) -> None:
        name = f"{self._random.randrange(GROWING)}.txt"
        self._write("lines", self._folder / "lines" / name, "a")
        number = len(list((self._folder / "files").iterdir()))
        hidden = self._folder / "files" / f".{number}.txt"
        self._write("files", hidden, "w")
        if self._random.random() < 0.3:  # it was written a while ago, and is moved here now
            past = time.time() - self._random.uniform(0.0, 60.0)
            os.utime(hidden, (past, past))
        hidden.rename(hidden.with_name(f"{number}.txt"))

    def _write(self, kind: str, path: Path, mode: str) -> None:
        lines = [f"{path.name} {self.written[kind].total() + number}" for number in range(self._random.randrange(1, 40))]
        with path.open(mode) as file:
            file.writelines(f"{line}\n" for line in lines)
        self.written[kind].update(lines)


class Job:
    """A Python program, and what it starts; started again whenever it has ended.

    `victims`: which of its processes have these names. The name of any other victim is that of the whole job.
    """

    def __init__(
        self, log: Path, arguments: Sequence[str], environment: Mapping[str, str], victims: Mapping[str, Victim]
    ) -> None:
        self._log, self._arguments, self._victims = log, arguments, victims
        self._environment = {**os.environ, "PYTHONPATH": python_path(), **environment}
        self.starts = 0
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, *self._arguments]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, start_new_session=True)
        self.starts += 1

    def keep(self) -> None:
        if self._process.poll() is not None:
            self._kill_group()
            self._start()

    def kill(self, victim: str, moves: random.Random) -> bool:
        """Whether there was one."""
        if victim not in self._victims:
            self._kill_group()
            self._process.wait(60)
            return True
        found = [process for process in self._processes() if _is(self._victims[victim], process)]
        if not found:
            return False
        with suppress(psutil.NoSuchProcess):
            moves.choice(found).kill()
            return True
        return False

    def close(self) -> None:
        self._kill_group()
        self._process.wait(60)

    def _processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def _kill_group(self) -> None:
        processes = self._processes()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _is(victim: Victim, process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
        return victim(process)
    return False


def is_executor(process: psutil.Process) -> bool:
    return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())


def is_python_worker(process: psutil.Process) -> bool:
    """Of Python's only those that run tasks, or have run some: forked from a daemon."""
    parent = process.parent()
    return parent is not None and all("daemon" in " ".join(each.cmdline()) for each in (process, parent))


SPARK = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
ON_SPARK: Mapping[str, Victim] = {"executor": is_executor, "worker": is_python_worker}


def started(folder: Path) -> Job:
    modules = folder / "modules"
    modules.mkdir()
    write_lines_module(modules)
    arguments = [str(ROOT / "tests" / "soak" / "split_job.py"), str(folder)]
    return Job(folder / "log", arguments, {**SPARK, "PYTHONPATH": python_path(modules)}, ON_SPARK)


def newest(folder: Path) -> list[int]:
    found = [[int(path.name) for path in (folder / f"{kind}-checkpoint" / "offsets").glob("[0-9]*")] for kind in KINDS]
    return [max(names, default=-1) for names in found]


def output(folder: Path, kind: str) -> Counter[str]:
    tables = [pq.read_table(path, columns=["value"]) for path in (folder / f"{kind}-out").glob("*.parquet")]
    return Counter(value for table in tables for value in table.column("value").to_pylist())


def run(folder: Path, kills: int, moves: random.Random) -> dict[str, Any]:
    incoming, done, failed = Input(folder, moves), Counter[str](), 0
    job = started(folder)
    try:
        with Progress() as progress:
            task = progress.add_task("kills", total=kills)
            while done.total() < kills:
                before, until = newest(folder), time.monotonic() + TIMEOUT_S
                while newest(folder) == before:
                    job.keep()
                    incoming.grow()
                    time.sleep(LOOK_S)
                    if time.monotonic() > until:
                        raise TimeoutError(f"no batch in {TIMEOUT_S:g} s")
                time.sleep(moves.uniform(0.0, MOST_DELAY_S))
                victim = moves.choices(list(VICTIMS), list(VICTIMS.values()))[0]
                if job.kill(victim, moves):
                    done[victim] += 1
                    progress.advance(task)
                else:
                    failed += 1
        found = checked(folder, incoming, job)
    finally:
        job.close()
    return {"kills": dict(done), "not there": failed, "starts": job.starts, "batches": sum(newest(folder)) + 2, **found}


def checked(folder: Path, incoming: Input, job: Job) -> dict[str, Any]:
    """What is wrong with the output, once it holds as much as was written."""
    until = time.monotonic() + TIMEOUT_S
    while any(output(folder, kind).total() < incoming.written[kind].total() for kind in KINDS) and time.monotonic() < until:
        job.keep()
        time.sleep(1.0)
    time.sleep(10.0)  # whatever comes twice comes now
    found: dict[str, Any] = {"lines": sum(incoming.written[kind].total() for kind in KINDS)}
    for kind in KINDS:
        written, read = incoming.written[kind], output(folder, kind)
        found[f"{kind}: lost"] = (written - read).total()
        found[f"{kind}: twice or foreign"] = (read - written).total()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-splits-", ignore_cleanup_errors=True) as folder:
        is_right = False
        try:
            result = run(Path(folder), arguments.kills, random.Random(arguments.seed))
            is_right = not any(count for what, count in result.items() if what.endswith(("lost", "foreign")))
        finally:
            if not is_right:
                left = Path(tempfile.mkdtemp(prefix="headrace-splits-kept-"))
                Path(folder).rename(left / "run")
                print("kept:", left)  # noqa: T201 - a command
    kept([{"seed": arguments.seed, **result}], arguments.result)
    raise SystemExit(0 if is_right else 1)


if __name__ == "__main__":
    main()
