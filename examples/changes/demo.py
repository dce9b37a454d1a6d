"""`make demo-changes`: PostgreSQL's tables and their changes into Delta tables, while everything is killed; then a comparison.

    python examples/changes/demo.py [--accounts 200000] [--transactions 5000] [--output demo-output/changes]

A bank's clients write to a PostgreSQL that is made for it. `headrace run` copies its tables with two workers: first the rows,
then the log. In each of the two phases a worker, the server, and all of `headrace run` are killed (SIGKILL), and started again.
Then psycopg reads the tables, deltalake the copies, and both are compared row by row, without headrace. Exit status 0: every
kill has happened, and 0 rows are different.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, LiteralString, TypeVar

import psutil
import psycopg
from deltalake import DeltaTable
from load import TABLES, Load, prepare
from rich.console import Console
from rich.table import Table

from headrace.testing.servers import databases

T = TypeVar("T")

PLAN = [(phase, victim) for phase in ("snapshot", "log") for victim in ("a worker", "PostgreSQL", "headrace run")]
SERVER = ("wal_level=logical", "max_wal_senders=10", "max_replication_slots=10")
SETTINGS = {
    "execution.checkpointing.interval": "1 s", "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000", "restart-strategy.fixed-delay.delay": "300 ms",
}  # fmt: skip
CLIENTS = 4
MOST_COPIED = 0.9  # of the accounts: with more the snapshot may be over before the kill
SAMPLE_S, LINE_S, STALL_S = 0.2, 5.0, 180.0
JOB = Path(__file__).with_name("job.py")


class DemoError(Exception):
    """The demo could not do what it is there to show."""


class Job:
    """`headrace run` with two workers. What it prints is added to `job.log`."""

    def __init__(self, url: str, folder: Path) -> None:
        """Started by `start`, which continues from the checkpoints in this folder."""
        self._environment = {**os.environ, "CHANGES_JOB": json.dumps({"url": url, "folder": str(folder / "tables")})}
        self._checkpoints, self.log = folder / "checkpoints", folder / "job.log"
        self._process: subprocess.Popen[bytes] | None = None

    def make_tables(self) -> None:
        """The empty Delta tables."""
        subprocess.run([sys.executable, JOB], env=self._environment, check=True)  # noqa: S603 - our own command

    def start(self) -> None:
        """In its own session: a Ctrl-C in the terminal is not for it."""
        config = [part for name, value in SETTINGS.items() for part in ("--config", f"{name}={value}")]
        command = [sys.executable, "-c", "from headrace.cli import main; main()", "run", f"{JOB}:pipeline", "--workers", "2"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*command, "--checkpoints", str(self._checkpoints), *config],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        """Raise DemoError if it has ended by itself."""
        assert self._process is not None
        if self._process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            raise DemoError(f"the job has ended with status {self._process.returncode}. The end of its log:\n{tail}")

    def kill_a_worker(self) -> bool:
        """Whether there was one. Children of the run are coordinators, theirs are what forks workers."""
        assert self._process is not None
        coordinators = psutil.Process(self._process.pid).children()
        workers = [worker for each in coordinators for forks in each.children() for worker in forks.children()]
        if workers:
            workers[-1].kill()
            psutil.wait_procs(workers[-1:], timeout=30)
        return bool(workers) and not workers[-1].is_running()

    def kill(self) -> bool:
        """All of its processes. Whether it was alive."""
        if self._process is None or self._process.poll() is not None:
            return False
        processes = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes[1:], timeout=30)
        return self._process.wait(30) == -signal.SIGKILL

    def finish(self) -> None:
        """End it with a last checkpoint."""
        assert self._process is not None
        self._process.terminate()
        if status := self._process.wait(STALL_S):
            raise DemoError(f"the job was to end, and did so with status {status}: see {self.log}")


class Demo:
    """One run: what is killed when, and how far the copies are."""

    def __init__(self, database: databases.Database, folder: Path, accounts: int, console: Console) -> None:
        """Starts nothing."""
        self._database, self._folder, self._accounts, self._console = database, folder, accounts, console
        self._job, self._load = Job(database.url, folder), Load(database.url, accounts, CLIENTS)
        self._started_at, self._written_at = time.monotonic(), 0.0
        self.kills: Counter[str] = Counter()

    def run(self, transactions: int) -> None:
        """Copy, kill, continue; then stop the clients and wait for the copies to have all."""
        prepare(self._database.url, self._accounts)
        self._job.make_tables()
        self._job.start()
        self._say(f"{self._accounts:,} accounts; {CLIENTS} clients write, headrace run copies with 2 workers")
        try:
            with self._load:
                for phase, victim in PLAN:
                    self._kill(phase, victim)
                wanted = self._load.counts["committed"] + transactions
                self._wait(f"{transactions} more transactions", lambda: self._load.counts["committed"] >= wanted)
            counted = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self._load.counts.items()))
            self._say(f"the clients have stopped: of their transactions {counted}")
            end = self._ask("SELECT pg_current_wal_insert_lsn()::text")
            self._wait(
                "all changes", lambda: self._ask("SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots", end)
            )
            self._say("everything is copied and committed")
            self._job.finish()
        finally:
            self._job.kill()

    def differences(self) -> int:
        """Of rows of the tables and of their copies, as a table for people; how many there are."""
        shown, total = Table("table", "rows in PostgreSQL", "rows in Delta", "different"), 0
        with psycopg.connect(self._database.url) as connection:
            for name in TABLES:
                there, copied = Counter(rows_of_table(connection, name)), Counter(rows_of_copy(self._copy(name), name))
                different = (there - copied).total() + (copied - there).total()
                shown.add_row(name, f"{there.total():,}", f"{copied.total():,}", f"{different:,}")
                total += different
        self._console.print(shown)
        return total

    def _kill(self, phase: str, victim: str) -> None:
        """When the copies have moved on since the last kill, and until they do so again."""
        before = self._version()
        self._wait(f"progress in the {phase}", lambda: self._version() > before and self._is_in(phase))
        copied = self._copied()
        if not self._is_in(phase):
            raise DemoError(f"the {phase} was over before {victim} could be killed in it: give more --accounts")
        where = f"in the {phase}, with {copied:,} accounts in the copy"
        if not self._killed(victim):
            raise DemoError(f"{victim} was to be killed {where}, and was not alive")
        self.kills[phase] += 1
        self._say(f"killed {victim} (SIGKILL) {where}")
        killed_at, before = time.monotonic(), self._version()
        if victim == "PostgreSQL":
            self._database.restart()
        elif victim == "headrace run":
            self._job.start()
        self._wait("the copies to move on", lambda: self._version() > before)
        self._say(f"{time.monotonic() - killed_at:.1f} s later the copies have moved on")

    def _killed(self, victim: str) -> bool:
        if victim == "PostgreSQL":
            self._database.kill()
            return self._database.status == -signal.SIGKILL
        return self._job.kill_a_worker() if victim == "a worker" else self._job.kill()

    def _is_in(self, phase: str) -> bool:
        """Raises DemoError for a snapshot that is almost over."""
        is_log, copied = self._is_log(), self._copied()
        if phase == "snapshot" and (is_log or copied > MOST_COPIED * self._accounts):
            raise DemoError(f"the snapshot was over before all was killed in it: give more than {self._accounts} --accounts")
        return copied > 0 and is_log == (phase == "log")

    def _is_log(self) -> bool:
        """The log is being read where the slot is in use."""
        return bool(self._ask("SELECT active FROM pg_replication_slots"))

    def _wait(self, what: str, condition: Callable[[], T]) -> T:
        """Until it is true, with a line about progress now and then."""
        progress, deadline = (-1, -1), 0.0
        while not (found := condition()):
            self._job.check()
            now, moved = time.monotonic(), (self._version(), self._load.counts["committed"])
            if moved != progress:
                progress, deadline = moved, now + STALL_S
            if now > deadline:
                raise DemoError(f"nothing moved for {STALL_S:.0f} s while waiting for {what}: see {self._job.log}")
            if now > self._written_at + LINE_S:
                self._written_at = now
                copied, phase = self._copied(), "log" if self._is_log() else "snapshot"
                self._say(
                    f"{phase:<8}  accounts copied {copied:>7,}  commits to Delta {moved[0]:>4,}  "
                    f"transactions {moved[1]:>6,}  kills {self.kills.total()}"
                )
            time.sleep(SAMPLE_S)
        return found

    def _copy(self, table: str) -> DeltaTable:
        return DeltaTable(self._folder / "tables" / table)

    def _version(self) -> int:
        return sum(self._copy(name).version() for name in TABLES)

    def _copied(self) -> int:
        return int(self._copy("accounts").to_pyarrow_dataset().count_rows())

    def _ask(self, query: LiteralString, *given: str) -> Any:  # noqa: ANN401 - what the server says
        with psycopg.connect(self._database.url, autocommit=True) as connection:
            row = connection.execute(query, given).fetchone()
        return row[0] if row else None

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._started_at), 60)
        self._console.print(f"{minutes:02}:{seconds:02}  {text}", soft_wrap=True, highlight=False)


AS_TEXT = {"id": "id::text", "details": "details::text"}
"""What is a text in the copy, as Arrow has no such type."""


def rows_of_table(connection: psycopg.Connection, table: str) -> Iterator[str]:
    """As psycopg reads them."""
    listed = ", ".join(AS_TEXT.get(name, name) for name in TABLES[table])
    connection.execute("SET TimeZone = 'UTC'")
    return map(_shown, connection.execute(f"SELECT {listed} FROM {table}"))  # type: ignore[arg-type]  # noqa: S608 - ours


def rows_of_copy(copy: DeltaTable, table: str) -> Iterator[str]:
    """As deltalake reads them."""
    rows = copy.to_pyarrow_table(columns=list(TABLES[table])).to_pylist()
    return (_shown([row[name] for name in TABLES[table]]) for row in rows)


def _shown(row: Sequence[Any]) -> str:
    """Times with a zone are in UTC, of whichever class."""
    return repr([value.isoformat() if hasattr(value, "isoformat") else value for value in row])


def main(arguments: Sequence[str]) -> int:
    """Run the demo; give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accounts", type=int, default=200_000, help="rows of the first table (default: %(default)s)")
    parser.add_argument("--transactions", type=int, default=5000, help="committed after the last kill (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("demo-output/changes"), help="folder (default: %(default)s)")
    options = parser.parse_args(arguments)
    console, folder = Console(), options.output.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console.print("starting PostgreSQL")
    settings = [argument for setting in SERVER for argument in ("-c", setting)]
    with databases.postgresql(*settings, initdb=next(databases.initdbs(), None)) as database:
        demo = Demo(database, folder, options.accounts, console)
        demo.run(options.transactions)
        console.print("psycopg reads the tables, deltalake the copies:")
        different = demo.differences()
    kills = f"{demo.kills['snapshot']} kills in the snapshot, {demo.kills['log']} in the log"
    console.print(f"headrace demo: {kills}, {different} different", highlight=False)
    return 0 if different == 0 and demo.kills.total() == len(PLAN) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main(sys.argv[1:]))
    except (DemoError, databases.NoServerError) as error:
        sys.exit(f"headrace demo: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
