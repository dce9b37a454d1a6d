"""The lines of the guide against a real server: a table is copied while it is written, and the job killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import deltalake
import psutil
import psycopg
import pyarrow as pa
import pytest

from headrace.delta import DeltaSink
from headrace.errors import RetriableError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.databases import Database
from tests.helpers.databases import drop_slots, psql
from tests.helpers.python_path import ROOT, started

pytestmark = [pytest.mark.full, pytest.mark.timeout(480)]
TIMEOUT_S = 240.0
ROWS = 4000


def lines_of_the_guide(file: str, names: dict[str, str]) -> str:
    """With these in place of its address and folders, and its defaults."""
    guide = (ROOT / "docs" / "how-to" / "postgresql-changes.md").read_text()
    (lines,) = re.findall(rf"```python\n(# {file}\n.*?)```", guide, re.DOTALL)
    for there, here in names.items():
        assert there in lines
        lines = lines.replace(there, here)
    return str(lines)


def job_of_the_guide(url: str, folder: Path) -> Path:
    """With small chunks, and checkpoints oftener than every 10 s."""
    names = {
        "postgresql://app@db/shop": url,
        'slot="headrace_orders"': 'slot="headrace_orders", chunk_rows=100',
        "/tables/orders": str(folder / "table"),
        "/var/lib/headrace/orders": str(folder / "checkpoints"),
        "workers=2": "workers=2, interval_s=0.3",
    }
    job = folder / "job.py"
    job.write_text(lines_of_the_guide("job.py", names))
    return job


def spark_job_of_the_guide(url: str, folder: Path) -> Path:
    """With a few chunks to a batch."""
    job_of_the_guide(url, folder)
    names = {'"/var/lib/headrace/spark"': f"{str(folder / 'spark')!r}, maxSplitsPerTrigger=4"}
    job = folder / "spark_job.py"
    job.write_text(lines_of_the_guide("spark_job.py", names))
    return job


def copy_job_of_the_guide(url: str, folder: Path) -> Path:
    """As `job_of_the_guide`, into a database, which is made."""
    psql(url, "CREATE DATABASE copy")
    psql(copy_of(url), "CREATE TABLE public.orders (id bigint PRIMARY KEY, value text NOT NULL)")
    names = {
        "postgresql://app@db/shop": url,
        "**table": "**table, chunk_rows=100",
        "mysql://app@other/shop": copy_of(url),
        "/var/lib/headrace/copy": str(folder / "checkpoints"),
        "workers=2": "workers=2, interval_s=0.3",
    }
    job = folder / "copy_job.py"
    job.write_text(lines_of_the_guide("copy_job.py", names))
    return job


def copy_of(url: str) -> str:
    return f"{url.rpartition('/')[0]}/copy"


ADDED_JOB = """
import pyarrow as pa
from headrace import Pipeline
from headrace.delta import DeltaSink
from headrace.postgresql import ChangesSource, table_rows

def rows(batch):
    for name in [name for name in batch.schema.names if name.startswith("public.")]:
        own = table_rows(batch, name)
        yield pa.RecordBatch.from_pydict(
            {{"name": pa.array([name] * own.num_rows, pa.string()), **{{each: own[each] for each in ("_op", "id", "value")}}}}
        )

source = ChangesSource({0!r}, tables=["*"], publication="orders", slot="headrace_added", chunk_rows=100)
source.discovery_interval_s = 0.3
pipeline = Pipeline(source, DeltaSink({1!r}), rows)
"""
RUN = """
import sys
from headrace.cli import main
sys.argv = ["headrace", "run", {0!r} + ":pipeline", "--checkpoints", {1!r}, "--workers", "2", "--config",
            "execution.checkpointing.interval=200 ms"]
main()
"""


def added_job(url: str, folder: Path) -> Path:
    """A script that runs a pipeline by its file. It appends what it reads of all tables to one table, which is made."""
    columns = {"name": pa.string(), "_op": pa.string(), "id": pa.int64(), "value": pa.int64()}
    DeltaSink(str(folder / "table")).create_table(pa.schema(columns))
    (folder / "added.py").write_text(ADDED_JOB.format(url, str(folder / "table")))
    run = folder / "run.py"
    run.write_text(RUN.format(str(folder / "added.py"), str(folder / "checkpoints")))
    return run


JOBS = {"run": job_of_the_guide, "spark": spark_job_of_the_guide, "copy": copy_job_of_the_guide}


def in_database(url: str) -> dict[int, str]:
    return dict(psql(url, "SELECT id, value FROM public.orders"))


def in_delta(table: Path) -> dict[int, str]:
    """What readers of the Delta table see."""
    if not deltalake.DeltaTable.is_deltatable(str(table)):
        return {}
    rows = deltalake.DeltaTable(table).to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["value"] for row in rows}


def kill_a_worker(run: subprocess.Popen[bytes]) -> None:
    """Children of the run are coordinators, theirs are what starts workers."""
    coordinators = psutil.Process(run.pid).children()
    workers = [worker for each in coordinators for starts in each.children() for worker in starts.children()]
    assert workers
    workers[0].kill()


@dataclass
class Job:
    """A script that runs in its own session. A context, after which it does not."""

    script: Path
    log: Path

    def __enter__(self) -> Job:
        self.run = started(self.script, self.log)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.run.pid, signal.SIGKILL)
        self.run.wait()

    def kill_and_start(self) -> None:
        """With all that is in its session, such as the JVM."""
        os.killpg(self.run.pid, signal.SIGKILL)
        assert self.run.wait() == -signal.SIGKILL
        self.run = started(self.script, self.log)

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """It runs meanwhile."""

        def check() -> None:
            assert self.run.poll() is None, self.log.read_text()
            if not is_so():
                raise RetriableError(self.log.read_text()[-3000:])

        wait_until(check, what, TIMEOUT_S)

    def stop(self) -> None:
        self.run.send_signal(signal.SIGTERM)
        assert self.run.wait(TIMEOUT_S) == 0, self.log.read_text()


@pytest.mark.parametrize(
    ("server", "engine"),
    [
        ("oldest", "run"),
        pytest.param("oldest", "copy", marks=pytest.mark.long),
        ("newest", "run"),
        ("newest", "copy"),
        pytest.param("newest", "spark", marks=pytest.mark.spark),
    ],
    indirect=["server"],
)
def test_a_table_is_copied_through_kills_in_the_snapshot_and_in_the_log(
    server: Database, tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(forget, server))
    psql(
        server.url,
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, value text NOT NULL)",
        f"INSERT INTO public.orders SELECT n, 'old' FROM generate_series(1, {ROWS}) AS n",
        "CREATE PUBLICATION orders FOR TABLE public.orders",
    )
    copied = partial(in_database, copy_of(server.url)) if engine == "copy" else partial(in_delta, tmp_path / "table")
    with Job(JOBS[engine](server.url, tmp_path), tmp_path / "log") as job:
        job.wait_until(lambda: len(copied()) > 0, "the first chunks")
        psql(server.url, "UPDATE public.orders SET value = 'new' WHERE id % 7 = 0")
        psql(server.url, "DELETE FROM public.orders WHERE id % 11 = 0")
        assert len(copied()) < ROWS * 10 // 11, "it is past the snapshot already"
        job.kill_and_start()
        psql(server.url, "UPDATE public.orders SET id = -id WHERE id % 13 = 0")
        job.wait_until(lambda: any(key < 0 for key in copied()), "the log")
        ((in_the_log,),) = psql(server.url, "SELECT pg_current_wal_lsn()::text")
        psql(server.url, "INSERT INTO public.orders SELECT n, 'more' FROM generate_series(5001, 7000) AS n")
        if engine != "spark":
            kill_a_worker(job.run)
        else:
            job.kill_and_start()
        psql(server.url, "DELETE FROM public.orders WHERE id % 17 = 0")
        wanted = in_database(server.url)
        job.wait_until(lambda: copied() == wanted, "all changes")
        place = f"SELECT confirmed_flush_lsn >= '{in_the_log}'::pg_lsn FROM pg_replication_slots"
        wait_until(lambda: moved(psql(server.url, place)), "the slot", TIMEOUT_S)
        if engine != "spark":
            job.stop()


@contextmanager
def counting_up(url: str, *tables: str) -> Iterator[None]:
    """A writer: each of its transactions adds a row to each table, and 1 to the value of some rows."""
    ended = threading.Event()

    def write() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for number in count(ROWS):
                if ended.wait(0.01):
                    return
                with connection.transaction():
                    for table in tables:
                        connection.execute(f"INSERT INTO {table} VALUES ({number}, 0)")
                        connection.execute(f"UPDATE {table} SET value = value + 1 WHERE id % 97 = {number % 97}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def values_of(table: Path, name: str) -> dict[int, list[int]]:
    """The values that each row of a table has had, as they were read."""
    found: dict[int, list[int]] = {}
    for row in deltalake.DeltaTable(table).to_pyarrow_table().to_pylist():
        if row["name"] == name:
            found.setdefault(row["id"], []).append(row["value"])
    return {key: sorted(values) for key, values in found.items()}


@pytest.mark.parametrize("server", [pytest.param("oldest", marks=pytest.mark.long), "newest"], indirect=True)
def test_a_table_that_is_published_while_the_run_runs_is_copied_by_itself_through_kills(
    server: Database, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(forget, server))
    psql(
        server.url,
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, value bigint NOT NULL)",
        "INSERT INTO public.orders VALUES (1, 0)",
        "CREATE PUBLICATION orders FOR TABLE public.orders",
    )
    log, copy = tmp_path / "log", tmp_path / "table"
    started_again = "starting again after a checkpoint, as publication orders has public.lines now"
    with Job(added_job(server.url, tmp_path), log) as job:
        job.wait_until(lambda: len(values_of(copy, "public.orders")) == 1, "the first table")
        psql(server.url, "CREATE TABLE public.lines (id bigint PRIMARY KEY, value bigint NOT NULL)")
        psql(server.url, f"INSERT INTO public.lines SELECT n, 0 FROM generate_series(1, {ROWS - 1}) AS n")
        with counting_up(server.url, "public.orders", "public.lines"):
            psql(server.url, "ALTER PUBLICATION orders ADD TABLE public.lines")
            job.wait_until(lambda: started_again in log.read_text(), "that it is found")
            job.kill_and_start()
            job.wait_until(lambda: len(values_of(copy, "public.lines")) > 0, "its first chunks")
            assert len(values_of(copy, "public.lines")) < ROWS - 1, "it is past its chunks already"
            job.kill_and_start()
            job.wait_until(lambda: len(values_of(copy, "public.lines")) > ROWS, "its changes")
        for table in ("public.orders", "public.lines"):
            wanted = dict(psql(server.url, f"SELECT id, value FROM {table}"))

            def is_whole(table: str = table, wanted: dict[int, int] = wanted) -> bool:
                return {key: values[-1] for key, values in values_of(copy, table).items()} == wanted

            job.wait_until(is_whole, f"all of {table}")
            found = values_of(copy, table)
            assert {key: values for key, values in found.items() if values != list(range(values[0], values[-1] + 1))} == {}
        job.stop()


def moved(found: list[tuple[object, ...]]) -> None:
    if found != [(True,)]:
        raise RetriableError(f"its slot keeps what was read: {found}")


def forget(server: Database) -> None:
    """For the next test of this server."""
    drop_slots(server.url)
    psql(
        server.url,
        "DROP PUBLICATION orders",
        "DROP TABLE public.orders",
        "DROP TABLE IF EXISTS public.lines",
        "DROP DATABASE IF EXISTS copy",
    )
