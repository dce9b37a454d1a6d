"""The lines of the guide against a real server: a table is copied into Delta while it is written, and the job killed."""

import re
import signal
import subprocess
from collections.abc import Callable
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


def lines_of_the_guide(url: str, table: Path, checkpoints: Path) -> str:
    """With these in place of its address and folders, small chunks, and checkpoints oftener than every 10 s."""
    guide = (ROOT / "docs" / "how-to" / "postgresql-changes.md").read_text()
    (lines,) = re.findall(r"```python\n(# job.py\n.*?)```", guide, re.DOTALL)
    names = {
        "postgresql://app@db/shop": url,
        'slot="headrace_orders"': 'slot="headrace_orders", chunk_rows=100',
        "/tables/orders": str(table),
        "/var/lib/headrace/orders": str(checkpoints),
        "workers=2": "workers=2, interval_s=0.3",
    }
    for there, here in names.items():
        assert there in lines
        lines = lines.replace(there, here)
    return lines


def copied(table: Path) -> dict[int, str]:
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


def test_a_table_is_copied_through_kills_in_the_snapshot_and_in_the_log(server: Database, tmp_path: Path) -> None:
    psql(
        server.url,
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, value text)",
        f"INSERT INTO public.orders SELECT n, 'old' FROM generate_series(1, {ROWS}) AS n",
        "CREATE PUBLICATION orders FOR TABLE public.orders",
    )
    job, log, table = tmp_path / "job.py", tmp_path / "log", tmp_path / "table"
    job.write_text(lines_of_the_guide(server.url, table, tmp_path / "checkpoints"))

    def has(wanted: Callable[[dict[int, str]], bool]) -> Callable[[], None]:
        def check() -> None:
            assert run.poll() is None, log.read_text()
            if not wanted(copied(table)):
                raise RetriableError(log.read_text()[-3000:])

        return check

    run = started(job, log)
    try:
        wait_until(has(lambda rows: len(rows) > 0), "the first chunks", TIMEOUT_S)
        psql(server.url, "UPDATE public.orders SET value = 'new' WHERE id % 7 = 0")
        psql(server.url, "DELETE FROM public.orders WHERE id % 11 = 0")
        run.send_signal(signal.SIGKILL)
        run.wait()
        run = started(job, log)
        psql(server.url, "UPDATE public.orders SET id = -id WHERE id % 13 = 0")
        wait_until(has(lambda rows: any(key < 0 for key in rows)), "the log", TIMEOUT_S)
        ((in_the_log,),) = psql(server.url, "SELECT pg_current_wal_lsn()::text")
        psql(server.url, "INSERT INTO public.orders SELECT n, 'more' FROM generate_series(5001, 7000) AS n")
        kill_a_worker(run)
        psql(server.url, "DELETE FROM public.orders WHERE id % 17 = 0")
        wanted = dict(psql(server.url, "SELECT id, value FROM public.orders"))
        wait_until(has(lambda rows: rows == wanted), "all changes", TIMEOUT_S)
        run.send_signal(signal.SIGTERM)
        assert run.wait(TIMEOUT_S) == 0, log.read_text()
    finally:
        run.kill()
        run.wait()
    place = "SELECT confirmed_flush_lsn >= %s::pg_lsn, active FROM pg_replication_slots"
    assert psql(server.url, place.replace("%s", f"'{in_the_log}'")) == [(True, False)], "its slot keeps what was read"
