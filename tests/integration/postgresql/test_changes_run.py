"""The lines of the guide against a real server: a table is copied while it is written, and the job killed."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import deltalake
import psutil
import pytest

from headrace.errors import RetriableError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.databases import Database
from tests.helpers.databases import psql
from tests.helpers.python_path import ROOT, started

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
TIMEOUT_S = 120.0
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


def kill(run: subprocess.Popen[bytes]) -> None:
    """With all that is in its session, such as the JVM."""
    os.killpg(run.pid, signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("server", "engine"),
    [
        ("oldest", "run"),
        ("oldest", "copy"),
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
    log, job = tmp_path / "log", JOBS[engine](server.url, tmp_path)
    copied = partial(in_database, copy_of(server.url)) if engine == "copy" else partial(in_delta, tmp_path / "table")

    def has(wanted: Callable[[dict[int, str]], bool]) -> Callable[[], None]:
        def check() -> None:
            assert run.poll() is None, log.read_text()
            if not wanted(copied()):
                raise RetriableError(log.read_text()[-3000:])

        return check

    run = started(job, log)
    try:
        wait_until(has(lambda rows: len(rows) > 0), "the first chunks", TIMEOUT_S)
        psql(server.url, "UPDATE public.orders SET value = 'new' WHERE id % 7 = 0")
        psql(server.url, "DELETE FROM public.orders WHERE id % 11 = 0")
        assert len(copied()) < ROWS * 10 // 11, "it is past the snapshot already"
        kill(run)
        run = started(job, log)
        psql(server.url, "UPDATE public.orders SET id = -id WHERE id % 13 = 0")
        wait_until(has(lambda rows: any(key < 0 for key in rows)), "the log", TIMEOUT_S)
        ((in_the_log,),) = psql(server.url, "SELECT pg_current_wal_lsn()::text")
        psql(server.url, "INSERT INTO public.orders SELECT n, 'more' FROM generate_series(5001, 7000) AS n")
        if engine != "spark":
            kill_a_worker(run)
        else:
            kill(run)
            run = started(job, log)
        psql(server.url, "DELETE FROM public.orders WHERE id % 17 = 0")
        wanted = in_database(server.url)
        wait_until(has(lambda rows: rows == wanted), "all changes", TIMEOUT_S)
        place = f"SELECT confirmed_flush_lsn >= '{in_the_log}'::pg_lsn FROM pg_replication_slots"
        wait_until(lambda: moved(psql(server.url, place)), "the slot", TIMEOUT_S)
        if engine != "spark":
            run.send_signal(signal.SIGTERM)
            assert run.wait(TIMEOUT_S) == 0, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def moved(found: list[tuple[object, ...]]) -> None:
    if found != [(True,)]:
        raise RetriableError(f"its slot keeps what was read: {found}")


def forget(server: Database) -> None:
    """For the next test of this server."""
    used = "SELECT count(*) = 0 FROM pg_replication_slots WHERE active"
    wait_until(lambda: moved(psql(server.url, used)), "the end of its connections", TIMEOUT_S)
    psql(server.url, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    psql(server.url, "DROP PUBLICATION orders", "DROP TABLE public.orders", "DROP DATABASE IF EXISTS copy")
