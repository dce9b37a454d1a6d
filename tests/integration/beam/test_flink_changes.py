"""A PostgreSQL table and its changes, read by Beam on a real Flink into a Delta table: each once through SIGKILLs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs headrace[sql]")

from deltalake import DeltaTable

from headrace import Pipeline
from headrace.delta import DeltaSink
from headrace.postgresql import ChangesSource
from headrace.testing.servers.databases import Database
from headrace.testing.servers.flink import FlinkCluster
from tests.helpers.databases import logical_postgresql, psql
from tests.helpers.flink_rig import job, kill_and_restart
from tests.helpers.table_copy import Copy
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.flink, pytest.mark.timeout(300)]
SLOT = "headrace_beam"


@pytest.fixture(scope="module")
def server() -> Iterator[Database]:
    with logical_postgresql("newest") as database:
        psql(
            database.url,
            "CREATE TABLE public.orders (id bigint, part text, value text, PRIMARY KEY (id, part))",
            "INSERT INTO public.orders SELECT n, 'p', 'old' FROM generate_series(0, 5999) AS n",
            "CREATE PUBLICATION orders FOR TABLE public.orders",
        )
        yield database


def confirmed(url: str) -> int:
    ((lsn,),) = psql(url, f"SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
    return int(lsn)


def copied(folder: Path) -> Copy:
    """Strict: what comes twice, or is missing, is a fault."""
    rows = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    copy = Copy()
    copy.apply(sorted(rows, key=lambda row: (row["_op"] != "snapshot", row["_lsn"])))
    return copy


def test_a_table_and_its_changes_are_read_once_through_kills(flink: FlinkCluster, server: Database, tmp_path: Path) -> None:
    url, folder = server.url, tmp_path / "table"
    source = ChangesSource(url, tables=["orders"], publication="orders", slot=SLOT, chunk_rows=5)
    sink = DeltaSink(str(folder))
    sink.create_table(source.schema)

    def change(number: int) -> None:
        psql(
            url,
            f"UPDATE public.orders SET value = 'new {number}' WHERE id % 7 = {number}",
            f"DELETE FROM public.orders WHERE id % 11 = {number}",
            f"INSERT INTO public.orders SELECT n, 'q', 'later' FROM generate_series(1, 50) AS n WHERE n % 5 = {number}",
        )

    with job(flink, Pipeline(source, sink).expand_on_beam) as running:
        eventually(lambda: copied(folder).seen > 100)
        change(1)
        seen = copied(folder).seen
        assert seen < 6000, "the kill comes after the snapshot"
        kill_and_restart(flink, running)
        change(2)
        eventually(lambda: copied(folder).rows == table_of(url), seconds=120)
        kill_and_restart(flink, running)
        before = confirmed(url)
        for number in (3, 4):
            change(number)
            time.sleep(1.0)
        eventually(lambda: copied(folder).rows == table_of(url), seconds=60)
        eventually(lambda: confirmed(url) > before, seconds=60)


def table_of(url: str) -> dict[tuple[int, str], str]:
    return {(number, part): value for number, part, value in psql(url, "SELECT * FROM public.orders")}
