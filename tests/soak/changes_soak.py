"""PostgreSQL's changes into Delta tables by `headrace run`, under SIGKILLs of workers, coordinators, everything and the server.

    python -m tests.soak.changes_soak [--kills 300] [--changes 5000000] [--seed 1] [--result FILE]

In each round 20 tables with rows are copied while connections write to them: transactions with savepoints, some undone, and
some that do not wait for the disk. Kills come in the snapshot, at the seam (its changes are read again, up to where the last
chunk was) and in the log. At quiet points, when all that was written is read, psycopg reads the tables, deltalake the copies,
and all changes that came are replayed: no row may come that is there, or go that is not, and no LSN may fall. A result file
that is there is added to. Exit status 0: nothing is different, and the job has never ended by itself.
"""

import argparse
import json
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from rich.progress import Progress

from headrace.enumerator.checkpoint import CHECKPOINT
from headrace.errors import RetriableError, StateError
from headrace.runners.local.checkpoints import newest_body
from headrace.runners.local.storage.places import run_files
from headrace.testing.servers import databases
from tests.soak.changes_job import CHANGES, PUBLICATION, SLOT, VARIABLE, Settings
from tests.soak.changes_tables import SHAPES, Writers, rows_of
from tests.soak.files_soak import is_coordinator, is_run_worker
from tests.soak.hybrid_soak import Processes
from tests.soak.results import kept

KILLS = {"snapshot": 4, "seam": 2, "log": 6}
"""By phase, of a round; there are fewer where the phase is over before."""
VICTIMS = {"worker": 3, "coordinator": 2, "everything": 2, "server": 3}
"""Who is killed, and how often in proportion."""
KILLS_BETWEEN_COMPARISONS = 3
ROWS, CONNECTIONS = 1500, 4
BAD = ("different", "twice", "missing", "disordered", "replayed", "ended")
LAZY = ("wal_writer_delay=10s", "wal_writer_flush_after=1GB", "wal_buffers=64MB")
"""By these a kill undoes the commits of ten seconds that did not wait for the disk."""
SERVER = ("wal_level=logical", "max_wal_senders=20", "max_replication_slots=20", *LAZY)
CONFIG = {
    "execution.checkpointing.interval": "500 ms", "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000", "restart-strategy.fixed-delay.delay": "300 ms",
}  # fmt: skip
LOOK_S, MOST_DELAY_S, MOST_OUTAGE_S, TIMEOUT_S = 0.1, 2.0, 1.0, 480.0

CHANGE = ("name", "op", "lsn", "key", "v")
Change = tuple[str, str, int, str, int | None]
"""Of the table, operation, LSN, key, version."""


class Round:
    """New tables, a new slot and a new job."""

    def __init__(self, server: databases.Database, folder: Path, moves: random.Random, stack: ExitStack) -> None:
        self._server, self._folder, self._moves = server, folder, moves
        chunk_rows, transaction_bytes = moves.choice((40, 100, 250)), moves.choice((500_000, 256 << 20))
        settings = Settings(server.url, str(folder), chunk_rows, transaction_bytes, pause_s=0.03)
        self._ask(f"CREATE PUBLICATION {PUBLICATION}")
        for shape in SHAPES:
            self._ask(*shape.statements(ROWS), f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {shape.name}")
        settings.create_tables()
        self.writers = Writers(server.url, ROWS, moves)
        self._job = stack.enter_context(closing(OnRun(settings)))
        self.kills, self.found = Counter[str](), Counter[str](dict.fromkeys(("comparisons", "elsewhere", *BAD), 0))
        self._killed_whole = 0

    def run(self, kills: Mapping[str, int], changes: int, report: Callable[[], None]) -> None:
        """Until there were at most these kills by phase, and this many changes. `report`: of each kill."""
        self._report = report
        with self.writers.writing(CONNECTIONS):
            for phase in ("snapshot", "seam"):
                self._kill(phase, kills[phase])
        left = kills["log"]
        while left or not self.found["comparisons"]:
            now = min(left, KILLS_BETWEEN_COMPARISONS)
            left -= now
            with self.writers.writing(CONNECTIONS):
                self._kill("log", now)
                part = changes if left == 0 else changes * (kills["log"] - left) // kills["log"]
                self._until(lambda part=part: self.writers.counts["changes"] >= part, "enough changes")
            self._compare()
            if any(self.found[kind] for kind in BAD):
                break
        self.found.update(starts=self._job.starts, ended=self._job.starts - 1 - self._killed_whole)

    def close(self) -> None:
        """Nothing of it is left at the server."""
        self._job.close()
        dropped = f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        self._until(lambda: not self._ask("SELECT FROM pg_replication_slots WHERE active"), "the slot", keep=False)
        self._ask(dropped, f"DROP PUBLICATION {PUBLICATION}", f"DROP TABLE {', '.join(shape.name for shape in SHAPES)}")

    def _kill(self, phase: str, times: int) -> None:
        """At most this many times, while the phase lasts."""
        before: tuple[str, int] | None = None
        for _ in range(times):
            self._until(lambda before=before: self._is_reached(phase, before), f"something to be killed in the {phase}")
            time.sleep(self._moves.uniform(0.0, MOST_DELAY_S))
            victim = self._moves.choices(list(VICTIMS), list(VICTIMS.values()))[0]
            if self._place()[0] != phase:
                return
            if not self._is_killed(victim):
                continue
            # A worker's death ends nothing else, so the phase may be another by now: it is not known in which it has died.
            before = self._place()
            if before[0] == phase:
                self.kills[f"{phase}: {victim}"] += 1
                self._report()
            else:
                self.found["elsewhere"] += 1
            if victim == "server":
                time.sleep(self._moves.uniform(0.0, MOST_OUTAGE_S))
                self._server.restart()

    def _is_killed(self, victim: str) -> bool:
        """Whether it was alive, and is not now."""
        if victim == "server":
            was_alive = self._server.is_running()
            self._server.kill()
            return was_alive and self._server.status == -signal.SIGKILL
        if not self._job.is_alive() or not self._job.kill(victim, self._moves):
            return False
        self._killed_whole += victim == "everything"
        return True

    def _is_reached(self, phase: str, before: tuple[str, int] | None) -> bool:
        """The job has come further in the phase since the last kill, or the phase is over. At the seam it reads again."""
        now = self._place()
        if now[0] != phase:
            return list(KILLS).index(now[0]) > list(KILLS).index(phase)
        if phase == "seam":
            return bool(self._ask("SELECT FROM pg_replication_slots WHERE active"))
        return now != before and now[1] > 0

    def _place(self) -> tuple[str, int]:
        """The phase by the newest checkpoint, and how far it is: chunks that are read, or an LSN."""
        with suppress(StateError, RetriableError, OSError):
            body, where = newest_body(run_files(str(self._folder / "checkpoints")))
            source = CHECKPOINT.open(body["source"], where)
            splits = [state["split"] for state in source["splits"]]
            for log in splits:
                if "position" in log:
                    return "log" if log["seam"] is None else "seam", log["position"]["lsn"]
            read = sum(state["finished"] for state in source["splits"])
            return "seam" if read == len(splits) > 0 or source["stage"]["source"] == "log" else "snapshot", read
        return "snapshot", 0

    def _compare(self) -> None:
        """Once all is read and committed that was written."""
        ((end,),) = self._ask("SELECT pg_current_wal_insert_lsn()::text")
        read = f"SELECT FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND confirmed_flush_lsn >= '{end}'"
        self._until(lambda: self._place()[0] == "log" and self._ask(read), "the end of the log")
        there, replay = self._tables(), replayed(in_order(self._folder / CHANGES))
        for shape in SHAPES:
            copied = self._rows(shape.name, list(shape.columns))
            self.found["different"] += difference(there[shape.name], copied)
            versions = ((row[1],) for row in there[shape.name])
            self.found["replayed"] += difference(versions, ((version,) for version in replay.rows[shape.name].values()))
        self.found.update({**replay.wrong, "comparisons": len(SHAPES)})

    def _tables(self) -> dict[str, list[tuple[Any, ...]]]:
        with psycopg.connect(self._server.url) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return {shape.name: rows_of(connection, shape) for shape in SHAPES}

    def _rows(self, table: str, names: list[str]) -> Iterator[tuple[Any, ...]]:
        """As deltalake reads them."""
        return tuples(DeltaTable(self._folder / table).to_pyarrow_table(columns=names))

    def _until(self, is_so: Callable[[], Any], what: str, *, keep: bool = True) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not is_so():
            if self.writers.failure is not None:
                raise self.writers.failure
            if keep:
                self._job.keep()
            time.sleep(LOOK_S)
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no {what} in {TIMEOUT_S:g} s: see {self._folder}")

    def _ask(self, *statements: str) -> list[Any]:
        """The rows of the last statement."""
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)  # type: ignore[arg-type] # composed
            return cursor.fetchall() if cursor.description is not None else []


class OnRun(Processes):
    """The job, by the same command each time."""

    def __init__(self, settings: Settings) -> None:
        folder = Path(settings.folder)
        command = ["-c", "from headrace.cli import main; main()", "run", "--workers", "2"]
        command += [f"{Path(__file__).with_name('changes_job.py')}:pipeline", "--checkpoints", str(folder / "checkpoints")]
        command += [part for name, value in CONFIG.items() for part in ("--config", f"{name}={value}")]
        victims = {"coordinator": is_coordinator, "worker": is_run_worker}
        super().__init__(folder / "log", command, {VARIABLE: json.dumps(asdict(settings))}, victims)

    def is_alive(self) -> bool:
        return self._process.poll() is None


def difference(there: Iterable[tuple[Any, ...]], copied: Iterable[tuple[Any, ...]]) -> int:
    """How many rows are in one of them only."""
    one, other = (Counter(map(shown, rows)) for rows in (there, copied))
    return (one - other).total() + (other - one).total()


def shown(row: tuple[Any, ...]) -> str:
    """Moments of one zone are of several classes."""
    return repr([value.isoformat() if hasattr(value, "isoformat") else value for value in row])


def tuples(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def in_order(table: Path) -> Iterator[Change]:
    """The rows of a Delta table to which rows were only appended, as they were committed."""
    for version in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, version.read_text().splitlines()):
            if "add" in action:
                yield from tuples(pq.read_table(table / action["add"]["path"], columns=list(CHANGE)))


class Replay:
    """What a reader of all changes has: the version of each key, by table. `wrong`: what cannot be if each came once."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, int | None]] = {shape.name: {} for shape in SHAPES}
        self.wrong = Counter[str](twice=0, missing=0, disordered=0)
        self._written: set[tuple[str, str, int | None]] = set()
        self._lsns = dict.fromkeys(self.rows, 0)

    def apply(self, change: Change) -> None:
        name, op, lsn, key, version = change
        table = self.rows[name]
        if op != "snapshot":
            # Of one batch the tables come one after the other.
            self.wrong["disordered"] += lsn < self._lsns[name]
            self._lsns[name] = lsn
        is_new = op in ("snapshot", "insert")
        self.wrong["twice"] += is_new and key in table
        self.wrong["missing"] += not is_new and key not in table
        if op == "delete":
            table.pop(key, None)
            return
        # No statement writes a row twice, and none has the version of another.
        self.wrong["twice"] += (name, key, version) in self._written and not (is_new and key in table)
        self._written.add((name, key, version))
        table[key] = version


def replayed(changes: Iterable[Change]) -> Replay:
    """In this order."""
    replay = Replay()
    for change in changes:
        replay.apply(change)
    return replay


def soaked(kills: int, changes: int, seed: int) -> Iterator[dict[str, Any]]:
    """Rounds, until there were this many kills and changes or something is wrong. Gives after each what all have found."""
    moves, started_s = random.Random(seed), time.monotonic()
    done, sums = Counter[str](), Counter[str]()
    rounds = math.ceil(kills / sum(KILLS.values()))
    found = sorted(set(databases.initdbs()))
    settings = [argument for setting in SERVER for argument in ("-c", setting)]
    with databases.postgresql(*settings, initdb=found[seed % len(found)]) as server, Progress() as bar:
        with psycopg.connect(server.url) as connection:
            version = connection.info.server_version // 10_000
        task = bar.add_task("kills", total=kills)
        while (done.total() < kills or sums["changes"] < changes) and not any(sums[kind] for kind in BAD):
            folder = Path(tempfile.mkdtemp(prefix="headrace-changes-"))
            with ExitStack() as stack:
                current = Round(server, folder, moves, stack)
                stack.callback(current.close)
                current.run(KILLS, changes // rounds, lambda: bar.advance(task))
            if not any(current.found[kind] for kind in BAD):
                shutil.rmtree(folder, ignore_errors=True)
            done.update(current.kills)
            sums.update({**current.found, **current.writers.counts, "rounds": 1})
            seconds = round(time.monotonic() - started_s)
            yield {"seed": seed, "postgresql": version, "kills": dict(sorted(done.items())), **sums, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--changes", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left of it
    result = kept(soaked(arguments.kills, arguments.changes, arguments.seed), arguments.result)
    sys.exit(any(result[kind] for kind in BAD))


if __name__ == "__main__":
    main()
