"""SIGKILLs of jobs that write to Delta and Iceberg tables, and DuckDB, which reads the tables by its code, as the judge.

    python -m benchmarks.tables_soak [--kills 300] [--minutes 9] [--systems delta,iceberg,...] [--result FILE]

A run of the job (`tables_job.py`, no engine) is killed before, during or after some call: while it writes files, prepares,
lists, commits, before and after the commit's answer, cleans up, or takes over. Of five kills one comes while another driver of
the job is alive, frozen before or in its commit and then let continue, and one in a run with a rival writer's commit right
before one of its own, if it comes so far (appends, compactions, new columns, checkpoints of the log, expired snapshots). After
every kill the table is read: no row may be there twice, and no epoch in part. Every table sees 25 kills, then one run to its
end, after which no row may be missing, and no mark or list may be remaining. The libraries' own ways are killed in the same
manner, around their one call that writes.

It continues where it was stopped; `--minutes` ends it at the next table. Exit status 1 if one of our sinks failed, 75 if there
is more to do.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import duckdb
from duckdb import DuckDBPyConnection
from rich.progress import Progress

from benchmarks.tables_job import CHANGELOGS, COMMITS, JOB, REFUSED, RIVALS, SYSTEMS, Fault, Told, create, main

RESULTS = Path(__file__).parent / "results" / "tables-soak.json"
KILLS_A_TABLE = 25
EPOCHS, MOST_TASKS, ROWS = 3, 4, 40
TIMEOUT_S = 120.0
LONGEST_CALL_S = 0.03  # a kill "during" a call comes within this time after it started
ALONE, TWO_DRIVERS, RIVAL = "alone", "two drivers", "rival"
KINDS = (ALONE, TWO_DRIVERS, ALONE, RIVAL, ALONE)
BAD = ("duplicates", "lost", "foreign", "torn", "rival_rows_lost", "left_over")
TO_GO_ON = 75

PHASES: dict[str, tuple[tuple[str, str], ...]] = {
    "write files": (("task", "write"), ("work", "open"), ("work", "create"), ("file", "_flush"), ("file", "close")),
    "prepare": (("task", "prepare"),),
    "list": (("work", "write_list"), ("work", "_write")),
    "commit": (("commit", "commit"),),
    "clean_up": (("work", "mark_cleaned_up"), ("work", "remove_data"), ("work", "close"), ("work", "remove_list")),
    "steps": (("committer", "fence"), ("committer", "check"), ("committer", "record"), ("committer", "end")),
}
OWN_PHASES: dict[str, tuple[tuple[str, str], ...]] = {
    "commit": (("commit", "append"), ("commit", "append"), ("commit", "log_commit"))
}

Totals = dict[str, Any]


# --- the judge ---------------------------------------------------------------------------------------------------------


class Reader:
    """DuckDB. Its extensions come with their packages: nothing is downloaded."""

    def __init__(self) -> None:
        """Loads it."""
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-duckdb-")
        self._connection: DuckDBPyConnection = duckdb.connect(config={"extension_directory": self._folder.name})
        for name in ("avro", "delta", "iceberg"):
            package = Path(
                str(importlib.metadata.distribution(f"duckdb-extension-{name}").locate_file(f"duckdb_extension_{name}"))
            )
            self._connection.load_extension(str(next(package.rglob("*.duckdb_extension"))))

    def close(self) -> None:
        """Remove what it needs."""
        self._connection.close()
        self._folder.cleanup()

    def rows(self, system: str, folder: str) -> Counter[tuple[int, int]]:
        """How often each (epoch, number) is in the table's newest version."""
        text = "SELECT epoch, number, count(*) FROM {} WHERE epoch IS NOT NULL GROUP BY ALL"
        return Counter({(epoch, number): count for epoch, number, count in self.query(text, system, folder).fetchall()})

    def query(self, text: str, system: str, folder: str) -> DuckDBPyConnection:
        """The answer to a query of the table's newest version, which represents {}."""
        if system.startswith("delta"):
            table = f"delta_scan('{folder}/table')"
        else:
            with sqlite3.connect(f"{folder}/catalog.db") as catalog:
                ((location,),) = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
            table = f"iceberg_scan('{location.removeprefix('file://')}')"
        return self._connection.execute(text.format(table))


def left_over(system: str, folder: str) -> int:
    """Marks of open transactions, and what is about to be removed, of a job that has run to its end."""
    table = Path(folder) / ("table" if system.startswith("delta") else "soak/rows")
    job = table / "_headrace" / JOB
    return sum(1 for path in job.glob("*") if path.name.endswith((".open", ".swept", ".json")))


# --- one table ---------------------------------------------------------------------------------------------------------


class World:
    """A table, its job, and KILLS_A_TABLE kills."""

    epochs, rows, keys = EPOCHS, ROWS, 0
    kinds_of_kills: tuple[str, ...] = KINDS
    phases = PHASES
    longest_call_s = LONGEST_CALL_S
    latest_call = 4
    """A fault comes at one of this many first calls of its method."""

    def __init__(self, system: str, folder: str, generator: random.Random, reader: Reader) -> None:
        """Makes the table."""
        self.system, self.folder, self._generator, self._reader = system, folder, generator, reader
        self.kills: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.rivals: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.torn: set[int] = set()
        self.runs = 0
        self._context = multiprocessing.get_context("forkserver")
        created = self._context.Process(target=create, args=(system, folder))
        created.start()
        created.join()
        if created.exitcode:
            raise RuntimeError(f"the table of {system} could not be made")

    def round(self) -> int:
        """One fault; how many kills have come of it."""
        kind = self.kinds_of_kills[self.kills.total() % len(self.kinds_of_kills)]
        phases = self.phases if self._is_ours else OWN_PHASES
        phase = self._generator.choice(list(phases))
        fault = self._fault(phases[phase])
        is_killed = {ALONE: self._alone, TWO_DRIVERS: self._beside_another, RIVAL: self._after_a_rival}[kind](fault)
        if not is_killed:
            return 0
        self.kills[f"{fault.when} {phase}"] += 1
        self.kinds[kind] += 1
        self._look()
        return 1

    def judge(self) -> Totals:
        """Run the job to its end, and count."""
        while not self._is_done(self._start(None)):
            pass
        found, epochs = self._reader.rows(self.system, self.folder), len(list(Path(self.folder, "commits").iterdir()))
        wanted = {(epoch, number) for epoch in range(epochs) for number in range(epoch * ROWS, (epoch + 1) * ROWS)}
        of_rivals = {(-1, int(path.name)) for path in Path(self.folder, "rivals").iterdir()}
        return {
            "kills": self.kills.total(),
            "tables": 1,
            "runs": self.runs,
            "epochs": epochs,
            "rows": len(wanted),
            "rival_rows": len(of_rivals),
            "duplicates": sum(count - 1 for count in found.values()),
            "lost": len(wanted - found.keys()),
            "foreign": sum(1 for epoch, number in found.keys() - wanted if epoch >= 0),
            "torn": len(self.torn),
            "rival_rows_lost": len(of_rivals - found.keys()),
            "left_over": left_over(self.system, self.folder) if self._is_ours else None,
            "by_phase": dict(self.kills),
            "by_kind": dict(self.kinds),
            "by_rival": dict(self.rivals),
            "refused": dict(self.refused),
        }

    # --- faults -------------------------------------------------------------------------------------------------------

    @property
    def _is_ours(self) -> bool:
        return self.system in ("delta", "iceberg", *CHANGELOGS)

    def _fault(self, calls: tuple[tuple[str, str], ...], what: str = "kill") -> Fault:
        owner, method = self._generator.choice(calls)
        when = self._generator.choice(("before", "during", "after"))
        delay_s = self._generator.uniform(0, self.longest_call_s)
        return Fault(owner, method, when, self._generator.randint(1, self.latest_call), what, delay_s)

    def _alone(self, fault: Fault) -> bool:
        before = self.refused.total()
        is_killed = self._is_killed(self._start(fault))
        if self._is_ours and self.refused.total() > before:
            raise RuntimeError(f"a job of {self.system} that is alone was refused ({fault}): {dict(self.refused)}")
        return is_killed

    def _after_a_rival(self, fault: Fault) -> bool:
        action = self._generator.choice(RIVALS[self.system.partition("-")[0]])
        nth = self._generator.randint(1, 3)
        if fault.owner == "commit" and fault.method == COMMITS[self.system]:
            fault = Fault(fault.owner, fault.method, fault.when, nth, fault.what, fault.delay_s)
        is_killed = self._is_killed(self._start(fault, action, nth))
        self.rivals[action] += is_killed
        return is_killed

    def _beside_another(self, fault: Fault) -> bool:
        """One is frozen, the next is killed, and the first continues: after that, or at the same time."""
        phase = "commit" if not self._is_ours else self._generator.choice(("commit", "list", "clean_up", "steps"))
        frozen = self._start(self._fault((self.phases if self._is_ours else OWN_PHASES)[phase], "stop"))
        if not frozen.is_stopped():
            self._is_killed(frozen)
            return False
        younger = self._start(fault)
        if self._generator.random() < 0.5:
            frozen.thaw()
        is_killed = self._is_killed(younger)
        frozen.thaw()
        self._is_killed(frozen)
        return is_killed

    def _start(self, fault: Fault | None, rival: str | None = None, rival_at: int = 1) -> Run:
        tasks = self._generator.randint(1, MOST_TASKS)
        self.runs += 1
        settings = Told(self.system, self.folder, self.epochs, tasks, self.rows, fault, rival, rival_at, self.keys)
        return Run(self._context, settings)

    def _is_killed(self, run: Run) -> bool:
        status, said = run.end()
        if status == REFUSED:
            self.refused[said] += 1
        elif status not in (0, -signal.SIGKILL):
            log = Path(self.folder, "job.log").read_text(errors="replace")
            raise RuntimeError(f"a job of {self.system} ended by itself with {status} ({run.settings}):\n{log[-4000:]}")
        return status == -signal.SIGKILL

    def _is_done(self, run: Run) -> bool:
        status, said = run.end()
        if status not in (0, REFUSED):
            raise RuntimeError(f"a job of {self.system} without a fault ended with {status}")
        self.refused[said] += status == REFUSED
        return status == 0

    def _look(self) -> None:
        """A reader at any time sees each epoch whole."""
        found = self._reader.rows(self.system, self.folder)
        epochs = Counter(epoch for epoch, _ in found if epoch >= 0)
        self.torn |= {epoch for epoch, count in epochs.items() if count != ROWS}


class Run:
    """A run of the job, in its own process."""

    def __init__(self, context: Any, settings: Told) -> None:  # noqa: ANN401 - multiprocessing's
        """Starts it."""
        self.settings = settings
        self._messages: Connection
        self._messages, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=main, args=(settings, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def is_stopped(self) -> bool:
        """Whether it has been frozen, once it is or has ended."""
        wait([self._messages, self._process.sentinel], TIMEOUT_S)
        return bool(self._messages.poll() and self._received() == "stopped")

    def thaw(self) -> None:
        """Let it continue, if it is still there."""
        if self._process.is_alive():
            os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> tuple[int, str]:
        """Its exit status, once it has ended, and what it has said last. Raises RuntimeError if it does not end."""
        self._process.join(TIMEOUT_S)
        if self._process.exitcode is None:
            self._process.kill()
            raise RuntimeError(f"a job does not end: {self.settings}")
        said = "nothing"
        while self._messages.poll() and (message := self._received()) is not None:
            said = message
        self._messages.close()
        return int(self._process.exitcode), said

    def _received(self) -> str | None:
        try:
            return str(self._messages.recv())
        except EOFError:
            return None


# --- all of them -------------------------------------------------------------------------------------------------------


def added(totals: Totals, more: Totals) -> Totals:
    """The sums, also of the counts within."""
    merged = dict(totals)
    for name, value in more.items():
        if isinstance(value, dict):
            merged[name] = dict(sorted((Counter(totals.get(name, {})) + Counter(value)).items()))
        else:
            merged[name] = value if value is None else totals.get(name, 0) + value
    return merged


@contextmanager
def bar_of(document: dict[str, Any], systems: list[str], kills: int) -> Iterator[Any]:
    """A progress bar of all kills."""
    with Progress() as progress:
        done = sum(document["systems"].get(system, {}).get("kills", 0) for system in systems)
        task = progress.add_task("kills", total=kills * len(systems), completed=done)
        yield lambda count: progress.advance(task, count)


def soaked(system: str, seed: str, reader: Reader, kills: int, advance: Any) -> Totals:  # noqa: ANN401 - a function
    """One table's totals."""
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as folder:
        world = World(system, folder, random.Random(seed), reader)  # noqa: S311 - a seeded schedule
        while world.kills.total() < kills:
            advance(world.round())
        return {**world.judge(), "seconds": round(time.monotonic() - started_at)}


def is_bad(totals: Totals) -> bool:
    """Whether a sink has broken its promise."""
    return any(totals[name] for name in BAD if totals[name] is not None)


def run(options: argparse.Namespace) -> int:
    """All that is asked for and not done yet, as far as the time goes."""
    document: dict[str, Any] = json.loads(options.result.read_text()) if options.result.exists() else {"systems": {}}
    names = ("deltalake", "pyiceberg", "pyarrow", "duckdb")
    document["versions"] = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}
    document["seed"] = options.seed
    reader, until = Reader(), time.monotonic() + options.minutes * 60
    multiprocessing.set_forkserver_preload(["benchmarks.tables_job"])
    systems = options.systems.split(",")
    with bar_of(document, systems, options.kills) as advance:
        for system in systems:
            while (done := document["systems"].get(system, {}).get("kills", 0)) < options.kills:
                if time.monotonic() > until:
                    return TO_GO_ON
                totals = soaked(
                    system, f"{options.seed} {system} {done}", reader, min(KILLS_A_TABLE, options.kills - done), advance
                )
                document["systems"][system] = added(document["systems"].get(system, {}), totals)
                options.result.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(is_bad(document["systems"][system]) for system in systems if system in ("delta", "iceberg")))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="for each system")
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="no table is started after this many")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run(parsed()))
