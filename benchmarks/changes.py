"""PostgreSQL's rows and changes: headrace alongside Debezium's engine and Flink CDC, in one run, on one server and one table.

    python -m benchmarks.changes [--quick] [--rounds 5] [--only headrace,debezium] [--work snapshot,log,delay]

In each round all systems read the same rows, then the same backlog of changes, each from its slot, which was made
ahead of it, then changes under a steady load. A change's delay is from the clock in its statement, which commits by itself, to
the program that counts it, or to the commit of the Delta table. Results go where `read_throughput.py` has its own.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer
from rich.console import Console

from benchmarks.changes_job import Job
from benchmarks.changes_systems import DEBEZIUM_VERSION, FLINK_CDC_VERSION, FLINK_VERSION, SYSTEMS, read
from benchmarks.environment import environment
from benchmarks.harness import Target
from benchmarks.read_throughput import HERE
from benchmarks.report import report, summary
from benchmarks.stored import write_whole
from headrace.testing.servers import databases

ROWS, LOGGED, LOADED = "bench_rows", "bench_log", "bench_load"
"""The table of the snapshot, of the backlog and of the load."""
WRITERS = 4
SETTINGS = ("wal_level=logical", "max_wal_senders=30", "max_replication_slots=30", "max_wal_size=8GB", "shared_buffers=512MB")
console = Console()

COLUMNS = (
    "id bigint PRIMARY KEY, at_us bigint NOT NULL, customer integer, amount numeric(12, 2), is_paid boolean, "
    "created timestamptz, name text, note text"
)
VALUES = (
    "n, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, (n % 10007)::int, (n % 1000000) / 100.0, n % 3 = 0, "
    "timestamptz '2026-01-01 00:00:00+00' + n * interval '1 second', 'customer ' || n % 10007, "
    "CASE WHEN n % 5 = 0 THEN NULL ELSE repeat(md5(n::text), 2) END"
)
BACKLOG = f"""
    CREATE PROCEDURE write_backlog(first bigint, transactions bigint) LANGUAGE plpgsql AS $$
    BEGIN
        FOR i IN 1 .. transactions LOOP
            INSERT INTO {LOGGED} SELECT {VALUES} FROM generate_series(first, first + 5) AS g(n);
            UPDATE {LOGGED} SET amount = amount + 1, is_paid = NOT is_paid WHERE id BETWEEN first AND first + 2;
            DELETE FROM {LOGGED} WHERE id = first + 5;
            first := first + 6;
            COMMIT;
        END LOOP;
    END $$
"""  # noqa: S608
PER_TRANSACTION = 10
"""Six inserts, three updates and a delete."""


@dataclass(frozen=True)
class Size:
    """Of a round; and how many there are, by default. `load`: changes a second, for `load_s` seconds."""

    rounds: int
    rows: int
    changes: int
    load: int
    load_s: int


FULL = Size(5, 2_000_000, 1_000_000, 500, 30)
QUICK = Size(2, 300_000, 200_000, 500, 8)


@dataclass
class Bench:
    """A server with the tables, and what was measured so far, by the kind of work."""

    url: str
    size: Size
    systems: list[str]
    scratch: Path
    runs: dict[str, list[dict[str, Any]]]

    def prepare(self) -> None:
        """The tables, and the rows of the snapshot."""
        tables = ROWS, LOGGED, LOADED
        self.ask(
            *(f"CREATE TABLE {table} ({COLUMNS})" for table in tables),
            f"CREATE PUBLICATION bench FOR TABLE {', '.join(tables)}",
        )
        self.ask(BACKLOG, f"INSERT INTO {ROWS} SELECT {VALUES} FROM generate_series(1, {self.size.rows}) AS g(n)")  # noqa: S608
        self.ask(f"VACUUM ANALYZE {ROWS}", "CHECKPOINT")

    def ask(self, *statements: str) -> None:
        """Each in a transaction."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def snapshot(self, number: int) -> None:
        """Of a table that is not written."""
        for system in self.order(number):
            self.measure("snapshot", number, system, self.job(system, ROWS, "only", self.size.rows))

    def log(self, number: int) -> None:
        """A backlog, written at once by several connections after all slots were made."""
        self.ask(f"TRUNCATE {LOGGED}")
        with self.slots():
            each = self.size.changes // PER_TRANSACTION // WRITERS
            calls = [f"CALL write_backlog({1 + writer * each * 6}, {each})" for writer in range(WRITERS)]
            threads = [threading.Thread(target=self.ask, args=(call,)) for call in calls]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for system in self.order(number):
                self.measure("log", number, system, self.job(system, LOGGED, "never", each * WRITERS * PER_TRANSACTION))

    def delay(self, number: int) -> None:
        """Changes that come one by one, while a system reads."""
        count = self.size.load * self.size.load_s
        for system in self.order(number):
            with self.slots():
                self.ask(f"TRUNCATE {LOADED}")
                self.ask(f"SELECT pg_replication_slot_advance('{slot_of(system)}', pg_current_wal_lsn())")
                job = replace(self.job(system, LOADED, "never", count), with_delays=True)
                writer = threading.Thread(target=self.write_steadily, args=(system, count))
                self.measure("delay", number, system, job, writer.start)
                writer.join()

    def write_steadily(self, system: str, count: int) -> None:
        """From when the system reads its slot."""
        values = VALUES.replace("%", "%%")  # psycopg reads those as places for arguments
        insert = f"INSERT INTO {LOADED} SELECT {values} FROM (VALUES (%s::bigint)) AS g(n)"  # noqa: S608
        with psycopg.connect(self.url, autocommit=True) as connection:
            is_read = f"SELECT true FROM pg_replication_slots WHERE slot_name = '{slot_of(system)}' AND active"  # noqa: S608
            while connection.execute(is_read).fetchone() is None:
                time.sleep(0.05)
            started = time.monotonic()
            for number in range(count):
                connection.execute(insert, [number], prepare=True)
                time.sleep(max(0.0, started + number / self.size.load - time.monotonic()))

    def measure(self, work: str, number: int, system: str, job: Job, started: Callable[[], None] = lambda: None) -> None:
        """One run, which is kept."""
        before = {"system": system, "round": number, "load": os.getloadavg()}
        before["at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            found = read(system, job, started)
        except RuntimeError as error:
            console.print(f"{work}, {system}: {error}", markup=False)
            self.runs[work].append({**before, "valid": False, "error": "failed"})
            return
        is_valid = found.records == job.expected
        self.runs[work].append({**before, "valid": is_valid, "expected": job.expected, **asdict(found)})
        console.print(f"{number} {work} {system}: {found}", markup=False, highlight=False, soft_wrap=True)

    def job(self, system: str, table: str, snapshot: Any, expected: int) -> Job:  # noqa: ANN401 - of two texts
        folder = tempfile.mkdtemp(dir=self.scratch)
        place = {"url": self.url, "table": table, "publication": "bench", "slot": slot_of(system), "folder": folder}
        return Job(**place, snapshot=snapshot, expected=expected, with_delays=False, is_run=system == "headrace-run")

    def order(self, number: int) -> list[str]:
        """Another one first in each round."""
        at = number % len(self.systems)
        return self.systems[at:] + self.systems[:at]

    @contextmanager
    def slots(self) -> Iterator[None]:
        """One of each system, at the end of the log."""
        self.drop_slots()  # Flink CDC makes one for its snapshot
        self.ask(*(f"SELECT pg_create_logical_replication_slot('{slot_of(system)}', 'pgoutput')" for system in self.systems))
        try:
            yield
        finally:
            self.drop_slots()

    def drop_slots(self) -> None:
        """All that there are."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            while connection.execute("SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots").fetchone() != (
                0,
            ):
                time.sleep(0.1)
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def slot_of(system: str) -> str:
    """Its own."""
    return f"headrace_{system.replace('-', '_')}"


TWICE = (Target("debezium", "at least", 2.0), Target("flink-cdc", "at least", 1.0))
IN_PROCESS = ("headrace", "debezium", "flink-cdc")

Pick = Callable[[dict[str, Any]], float]


def _processor(run: dict[str, Any]) -> float:
    return float(run["cpu_s"]) * 1e6 / float(run["records"])


def _field(name: str, run: dict[str, Any]) -> float:
    return float(run[name])


KINDS: tuple[tuple[str, str, str, str, str, tuple[Target, ...], Pick], ...] = (
    ("changes rate", "snapshot", "rows of a snapshot", "snapshot", "records/s", TWICE, partial(_field, "per_s")),
    ("changes rate", "log", "a backlog, 10 changes a transaction", "log", "records/s", TWICE, partial(_field, "per_s")),
    ("changes delay", "p50", "500 changes a second, p50", "delay", "ms", (), partial(_field, "p50_ms")),
    ("changes delay", "p99", "500 changes a second, p99", "delay", "ms", (), partial(_field, "p99_ms")),
    ("changes restart", "log", "from the start to the first change", "log", "s", (), partial(_field, "first_s")),
    ("changes memory", "snapshot", "rows of a snapshot", "snapshot", "MB", (), partial(_field, "peak_mb")),
    ("changes memory", "log", "a backlog", "log", "MB", (), partial(_field, "peak_mb")),
    ("changes processor", "snapshot", "1,000,000 rows of a snapshot", "snapshot", "s", (), _processor),
    ("changes processor", "log", "1,000,000 changes of a backlog", "log", "s", (), _processor),
)
"""Group, name, title, work, unit, targets, and what of a run is the figure."""


def save(bench: Bench, rounds: int, results: Path) -> None:
    """A document for each kind of figure."""
    facts = environment("none")
    with psycopg.connect(bench.url) as connection:
        postgresql = str(connection.info.parameter_status("server_version"))
    peers = {"debezium engine": DEBEZIUM_VERSION, "flink cdc": f"{FLINK_CDC_VERSION} on Flink {FLINK_VERSION}"}
    facts["versions"] |= {"postgresql": postgresql, **peers}
    for group, name, title, work, unit, targets, pick in KINDS:
        systems = [system for system in bench.systems if group != "changes processor" or system in IN_PROCESS]
        runs = [run for run in bench.runs[work] if run["system"] in systems]
        document = {
            "group": group, "name": name, "title": title, "unit": unit, "systems": systems,
            "targets": [asdict(target) for target in targets if target.against in systems],
            "rounds": rounds, "environment": facts,
            "runs": [{**run, "value": pick(run)} if run["valid"] else run for run in runs],
        }  # fmt: skip
        if runs:
            key = f"{group} {name}".replace(" ", "-")
            write_whole(results / f"{key}.json", json.dumps(document, indent=1) + "\n")


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Eight minutes at most: little data.")] = False,  # noqa: FBT002
    only: Annotated[str, typer.Option(help="Only these systems, with commas between them.")] = ",".join(SYSTEMS),
    work: Annotated[str, typer.Option(help="Only this, of snapshot, log, delay.")] = "snapshot,log,delay",
    rounds: Annotated[int, typer.Option(min=0, help="0: 5, quick 2.")] = 0,
) -> None:
    """Measure, then write the tables and plots."""
    size = QUICK if quick else FULL
    rounds = rounds or size.rounds
    results = HERE / "results" / "quick" if quick else HERE / "results"
    arguments = [argument for setting in SETTINGS for argument in ("-c", setting)]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch, databases.postgresql(*arguments) as server:
        bench = Bench(server.url, size, only.split(","), Path(scratch), {"snapshot": [], "log": [], "delay": []})
        bench.prepare()
        for number in range(1, rounds + 1):
            for kind in work.split(","):
                {"snapshot": bench.snapshot, "log": bench.log, "delay": bench.delay}[kind](number)
        save(bench, rounds, results)
    report(results, HERE if results.parent == HERE else results)
    console.print(summary(results, [file.stem for file in results.glob("changes-*.json")]))


if __name__ == "__main__":
    typer.run(main)
