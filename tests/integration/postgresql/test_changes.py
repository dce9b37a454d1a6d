"""A table's rows and its changes by a real server: every row and every change once, whatever is written meanwhile."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from headrace.beam import ReadFromSource
from headrace.connectors.postgresql import log_reader, replication, snapshot, waiting
from headrace.connectors.postgresql.discovery import LogDiscovery, start_of_log
from headrace.connectors.postgresql.replication import LogConnection
from headrace.connectors.postgresql.source import Seam, Snapshot
from headrace.connectors.postgresql.splits import ChangesSplitSerializer, LogSplit, Origin
from headrace.enumerator import EmbeddedRun, Source
from headrace.enumerator.checkpoint import CheckpointSerializer
from headrace.errors import DataLossError, RetriableError, StateError, UsageError
from headrace.postgresql import ChangesSource, table_rows
from headrace.runners.metrics import METRICS
from headrace.runners.spark.split_stream import SplitPlanner, SplitRead
from headrace.runners.spark.split_tasks import TaskLimits
from headrace.sources import Hybrid
from headrace.testing.servers.databases import Database
from tests.helpers.databases import drop_slots, psql
from tests.helpers.table_copy import Copy

TABLE = "public.orders"
SLOT = "headrace_orders"
METADATA = ["_op", "_lsn", "_table"]


def write(connection: psycopg.Connection, moves: random.Random, number: int) -> None:
    """A transaction of some statements: inserts, updates, keys that move, deletes. Some are undone, some take their time."""
    with connection.transaction() as whole:
        for _ in range(moves.randrange(1, 5)):
            key, other = moves.randrange(3000), moves.randrange(3000)
            with connection.transaction() as part:
                match moves.randrange(11):
                    case 0 | 1 | 2 | 3:
                        insert = "INSERT INTO public.orders VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
                        connection.execute(insert, [key, f"p{other % 3}", f"{number}"])
                    case 4 | 5 | 6:
                        connection.execute("UPDATE public.orders SET value = %s WHERE id = %s", [f"{number}", key])
                    case 7 | 8:
                        moved = "UPDATE public.orders SET id = id + 3000 + %s WHERE id = %s AND part = 'p0'"
                        connection.execute(moved, [6000 * number, key])
                    case 9 | 10:
                        connection.execute("DELETE FROM public.orders WHERE id BETWEEN %s AND %s + 3", [key, key])
                if moves.random() < 0.1:
                    raise psycopg.Rollback(part)
        if moves.random() < 0.2:
            time.sleep(moves.uniform(0.0, 0.3))
        if moves.random() < 0.1:
            raise psycopg.Rollback(whole)


@contextmanager
def writing(url: str, threads: int = 3) -> Iterator[Callable[[int], None]]:
    """Concurrent writers, until the block ends. Gives a function that waits for a number of their transactions."""
    ended, failures = threading.Event(), list[BaseException]()
    written = threading.Semaphore(0)

    def run(seed: int) -> None:
        moves = random.Random(seed)
        with psycopg.connect(url, autocommit=True) as connection:
            number = seed
            while not ended.is_set():
                number += threads
                try:
                    write(connection, moves, number)
                    written.release()
                except psycopg.errors.DeadlockDetected:
                    continue
                except BaseException as error:
                    failures.append(error)
                    raise

    started = [threading.Thread(target=run, args=(seed,)) for seed in range(threads)]
    for thread in started:
        thread.start()

    def more(count: int) -> None:
        while written.acquire(blocking=False):
            pass  # earlier ones do not count
        for _ in range(count):
            assert written.acquire(timeout=30.0), failures

    try:
        yield more
    finally:
        ended.set()
        for thread in started:
            thread.join()
    assert not failures


@pytest.fixture
def url(server: Database) -> Iterator[str]:
    """A table of 3,000 rows, which is published."""
    psql(
        server.url,
        "CREATE TABLE public.orders (id bigint, part text, value text, PRIMARY KEY (id, part))",
        "INSERT INTO public.orders SELECT n, 'p' || n % 3, 'old' FROM generate_series(0, 2999) AS n",
        "CREATE PUBLICATION orders FOR TABLE public.orders",
    )
    yield server.url
    drop_slots(server.url)
    psql(server.url, "DROP PUBLICATION orders", "DROP TABLE public.orders")


def source_of(url: str, **options: Any) -> ChangesSource:
    return ChangesSource(url, tables=[TABLE], publication="orders", slot=SLOT, **options)


def table_of(url: str) -> dict[tuple[int, str], str]:
    return {(number, part): value for number, part, value in psql(url, "SELECT * FROM public.orders")}


def read_until(run: EmbeddedRun[Any], copy: Copy, url: str) -> None:
    """Until the copy is the table, which has no writers now."""
    wanted, until = table_of(url), time.monotonic() + 60.0
    while copy.rows != wanted and time.monotonic() < until:
        batch = run.poll(0.2)
        if batch is not None:
            copy.apply(batch.records.to_pylist())
    assert copy.rows == wanted


@pytest.mark.timeout(120)
@pytest.mark.parametrize("truncated_after", [None, 900], ids=["", "truncated"])
def test_the_seam_is_exact_under_writers(url: str, truncated_after: int | None) -> None:
    """Chunks are read one after another, while three writers change their rows, and move them to others."""
    copy = Copy()
    with EmbeddedRun(source_of(url, chunk_rows=100), clock=time.monotonic) as run:
        with writing(url) as more:
            while run.coordinator.enumerator.stage.source == "snapshot":
                batch = run.poll(0.2)
                if batch is not None:
                    copy.apply(batch.records.to_pylist())
                more(10)
                if truncated_after is not None and copy.seen > truncated_after:
                    psql(url, "TRUNCATE public.orders")
                    truncated_after = None
        read_until(run, copy, url)


@pytest.mark.timeout(180)
def test_a_restore_continues_where_the_checkpoint_was(url: str) -> None:
    """In the snapshot, at the seam and in the log: each time the copy goes back with the checkpoint."""
    moves, copy, state = random.Random(4), Copy(), None
    with writing(url, 2):
        for _ in range(12):
            kept = dict(copy.rows)
            with EmbeddedRun(source_of(url, chunk_rows=100), clock=time.monotonic, checkpoint=state) as run:
                for _ in range(moves.randrange(2, 12)):
                    batch = run.poll(0.2)
                    if batch is not None:
                        copy.apply(batch.records.to_pylist())
                if moves.random() < 0.8:
                    state = run.checkpoint()
                    run.checkpoint_completed()
                elif state is None:
                    copy.rows = {}
                else:
                    copy.rows = kept
    with EmbeddedRun(source_of(url, chunk_rows=100), clock=time.monotonic, checkpoint=state) as run:
        read_until(run, copy, url)


def test_available_now_reads_a_row_behind_much_that_others_have_written(url: str, tmp_path: Path) -> None:
    """The server is on its way to it for longer than a query waits for records."""
    read = SplitRead(
        source=source_of(url, snapshot="never").source_of(0, None), checkpoint=str(tmp_path), limits=TaskLimits(seconds=0.01)
    )
    (tmp_path / "metadata").touch()  # as Spark does
    planner = SplitPlanner(read)
    offset = planner.next_offsets(planner.initial_offsets())
    planner.close()
    psql(
        url,
        "CREATE TABLE public.noise (value text)",
        *["INSERT INTO public.noise SELECT repeat('x', 200) FROM generate_series(1, 300)"] * 1000,
        "INSERT INTO public.orders VALUES (5000, 'p0', 'behind it')",
    )
    planner, rows = SplitPlanner(read), list[str]()
    planner.pin_end()
    while (end := planner.next_offsets(offset)) != offset:
        offset = end
        for batch in (batch for task in planner.tasks(end) for batch in read.open_task(task).read()):
            rows += batch.column("value").to_pylist()
    planner.close()
    psql(url, "DROP TABLE public.noise")
    assert rows == ["behind it"]


def test_what_the_slot_keeps_is_measured(url: str) -> None:
    source = source_of(url)
    assert source.measures() == {}, "there is no slot yet"
    with EmbeddedRun(source, clock=time.monotonic) as run:
        run.poll(1.0)
    before = source.measures()
    psql(url, "UPDATE public.orders SET value = repeat('x', 1000)")
    after = source.measures()
    assert after["slot_lag_bytes"] > before["slot_lag_bytes"] + 3_000_000
    assert after["slot_retained_bytes"] >= after["slot_lag_bytes"]
    assert {f"headrace_run_{name}" for name in after} <= METRICS.keys()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seam", ["exact", "overlapping"])
def test_what_a_failed_attempt_has_written_is_changed_again_behind_an_overlapping_seam(url: str, seam: Seam) -> None:
    """Rows that are gone when their chunk is read again: a sink that writes at least once has them for good otherwise."""
    rows: dict[tuple[int, str], Any] = {}

    def written(run: EmbeddedRun[Any]) -> None:
        batch = run.poll(0.2)
        for row in [] if batch is None else batch.records.to_pylist():
            key = row["id"], row["part"]
            rows.pop(key, None) if row["_op"] == "delete" else rows.update({key: row["value"]})

    source = source_of(url, chunk_rows=1000, seam=seam)
    with EmbeddedRun(source, clock=time.monotonic) as run:
        state = run.checkpoint()
        while len(rows) < 3000:
            written(run)
    psql(
        url,
        "DELETE FROM public.orders WHERE id < 10",
        "UPDATE public.orders SET id = id + 10000 WHERE id < 20",
        "UPDATE public.orders SET value = 'new' WHERE id < 30",
    )
    with EmbeddedRun(source, clock=time.monotonic, checkpoint=state) as run:
        while run.coordinator.enumerator.stage.source == "snapshot":
            written(run)
        psql(url, "INSERT INTO public.orders VALUES (5000, 'p0', 'last')")
        while (5000, "p0") not in rows:
            written(run)
    assert len(rows.keys() - table_of(url).keys()) == (0 if seam == "overlapping" else 20)
    assert {key: rows[key] for key in table_of(url)} == table_of(url)


@pytest.mark.timeout(120)
def test_a_restore_behind_a_truncation_at_the_seam_repeats_what_follows_it(url: str) -> None:
    """A chunk that was read behind the truncation has the rows that came then; the log has them again, after it."""
    copy, state = Copy(), None
    with EmbeddedRun(source_of(url, chunk_rows=1000), clock=time.monotonic) as run:
        while copy.seen < 2000:
            batch = run.poll(0.2)
            if batch is not None:
                copy.apply(batch.records.to_pylist())
        psql(url, "TRUNCATE public.orders", "INSERT INTO public.orders VALUES (2999, 'p2', 'first')")
        while "truncated" not in copy.rows:
            batch = run.poll(0.2)
            if batch is not None:
                copy.apply(batch.records.to_pylist())
                if batch.records.num_rows and batch.records.column("_op")[0].as_py() == "truncate":
                    break
        state = run.checkpoint()
    psql(url, "INSERT INTO public.orders VALUES (2998, 'p1', 'second')")
    with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
        read_until(run, copy, url)


@pytest.fixture
def lazy(server: Database) -> Iterator[None]:
    """Its log is on its disk when a commit waits for that, and 10 s later otherwise."""
    psql(server.url, "ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()", "CHECKPOINT")
    yield
    psql(server.url, "ALTER SYSTEM RESET wal_writer_delay", "SELECT pg_reload_conf()")


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_chunk_has_seen_nothing_that_a_crash_of_the_server_undoes(server: Database, url: str, end: str) -> None:
    """A commit that does not wait for the disk would be undone, and the id of a transaction would be given to another one."""
    copy = Copy()
    with EmbeddedRun(source_of(url, chunk_rows=1000), clock=time.monotonic) as run:
        copy.apply(run.poll(1.0).records.to_pylist())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            for statement in ("START TRANSACTION", "INSERT INTO public.orders VALUES (5000, 'p', 'first')", end):
                connection.execute(statement)
        while copy.seen < 3000:
            copy.apply(run.poll(1.0).records.to_pylist())
        state = run.checkpoint()
        server.kill()
    server.restart()
    psql(url, "INSERT INTO public.orders VALUES (6000, 'p', 'later')")
    with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
        read_until(run, copy, url)


@pytest.mark.timeout(120)
def test_changes_of_a_key_are_ordered_by_their_lsn_where_the_new_row_is_written_before_the_old_one_is_deleted(url: str) -> None:
    """A key that is checked when the row is there: here at the commit, elsewhere a moment after the row was written."""
    deferred = "ALTER TABLE public.orders ADD PRIMARY KEY (id, part) DEFERRABLE INITIALLY DEFERRED"
    psql(url, "ALTER TABLE public.orders DROP CONSTRAINT orders_pkey, REPLICA IDENTITY FULL", deferred)
    copy = Copy()
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        read_until(run, copy, url)
        with psycopg.connect(url) as second:
            second.execute("INSERT INTO public.orders VALUES (1, 'p1', 'new')")
            psql(url, "DELETE FROM public.orders WHERE id = 1")
        rows = read_some(run, 2)
    assert [row["_op"] for row in sorted(rows, key=lambda row: row["_lsn"])] == ["delete", "insert"]


@pytest.mark.timeout(120)
def test_a_transaction_that_is_too_large_is_read_in_parts_and_continued_in_it(url: str) -> None:
    moves, copy, state, parts = random.Random(8), Copy(), None, 0
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        read_until(run, copy, url)
        state = run.checkpoint()
        run.checkpoint_completed()
    psql(url, "INSERT INTO public.orders SELECT n, 'p', 'large' FROM generate_series(10000, 13999) AS n")
    while len(copy.rows) < 7000:
        with EmbeddedRun(source_of(url, max_transaction_bytes=10_000), clock=time.monotonic, checkpoint=state) as run:
            for _ in range(moves.randrange(1, 12)):
                batch = run.poll(0.5)
                if batch is not None:
                    copy.apply(batch.records.to_pylist())
            state = run.checkpoint()
            parts += b'"skip":0' not in state
    assert parts > 1
    assert copy.rows == table_of(url)


@pytest.mark.timeout(120)
def test_several_tables_are_read_by_one_slot(url: str) -> None:
    psql(url, "CREATE TABLE public.lines (line text PRIMARY KEY, number int)")
    psql(url, "ALTER PUBLICATION orders ADD TABLE public.lines", "INSERT INTO public.lines VALUES ('a', 1), ('b', 2)")
    source = ChangesSource(url, tables=["orders", "lines"], publication="orders", slot=SLOT)
    orders, lines, state = Copy(), list[tuple[str, str, int | None]](), None
    for more in (2, 4):
        with EmbeddedRun(source, clock=time.monotonic, checkpoint=state) as run:
            psql(url, "UPDATE public.orders SET value = 'x' WHERE id = 1", "UPDATE public.lines SET number = number + 1")
            wanted, until = table_of(url), time.monotonic() + 60.0
            while (orders.rows != wanted or len(lines) < more) and time.monotonic() < until:
                batch = run.poll(0.2)
                if batch is not None and batch.records.num_rows:
                    orders.apply(table_rows(batch.records, "public.orders").to_pylist())
                    rows = table_rows(batch.records, "public.lines").to_pylist()
                    lines += [(row["_op"], row["line"], row["number"]) for row in rows]
            assert orders.rows == wanted
            state = run.checkpoint()
            run.checkpoint_completed()
    assert sorted(lines) == [("snapshot", "a", 2), ("snapshot", "b", 3), ("update", "a", 3), ("update", "b", 4)]
    psql(url, "DROP TABLE public.lines")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("is_first", [True, False], ids=["as all tables in one stage", "next to one that is read"])
def test_a_table_that_the_log_lacks_is_read_by_its_reader(url: str, is_first: bool) -> None:
    """Under writers, with restores between its chunks, and transactions that were open when it was published."""
    psql(url, "CREATE TABLE public.lines (id int PRIMARY KEY)", "ALTER PUBLICATION orders DROP TABLE public.orders")
    psql(url, "ALTER PUBLICATION orders ADD TABLE public.lines", "INSERT INTO public.lines VALUES (1)")
    copy, moves, starts = Copy(), random.Random(6), 0

    def source(*tables: str) -> Any:
        changes = ChangesSource(url, tables=tables, publication="orders", slot=SLOT, chunk_rows=300, metadata=METADATA)
        return changes.in_one_stage() if is_first else changes

    with EmbeddedRun(source("lines"), clock=time.monotonic) as run:
        assert [row["id"] for row in read_some(run, 1)] == [1]
        state = b""
        while b'"tables":{' not in state:
            run.poll(0.1)
            state = run.checkpoint()
            run.checkpoint_completed()
    with writing(url) as more, psycopg.connect(url) as open_one:
        open_one.execute("INSERT INTO public.orders VALUES (100000, 'p', 'written before it is published')")
        psql(url, "ALTER PUBLICATION orders ADD TABLE public.orders")
        more(5)
        open_one.execute("INSERT INTO public.orders VALUES (100001, 'p', 'written after')")
        while len(copy.rows) < 2000:
            starts += 1
            assert starts < 40
            kept = dict(copy.rows)
            with EmbeddedRun(source("lines", "orders"), clock=time.monotonic, checkpoint=state) as run:
                for _ in range(moves.randrange(2, 9)):
                    batch = run.poll(0.2)
                    if batch is not None and batch.records.num_rows:
                        copy.apply(table_rows(batch.records, TABLE).to_pylist())
                    if starts > 2:
                        open_one.commit()
                    assert starts > 2 or not copy.rows, "a transaction is open that was when it was published"
                    more(2)
                if moves.random() < 0.7:
                    state = run.checkpoint()
                    run.checkpoint_completed()
                else:
                    copy.rows = kept
    with EmbeddedRun(source("lines", "orders"), clock=time.monotonic, checkpoint=state) as run:
        wanted, until = table_of(url), time.monotonic() + 60.0
        while copy.rows != wanted and time.monotonic() < until:
            batch = run.poll(0.2)
            if batch is not None and batch.records.num_rows:
                copy.apply(table_rows(batch.records, TABLE).to_pylist())
        assert copy.rows == wanted
        assert {(100000, "p"), (100001, "p")} <= wanted.keys()
    psql(url, "DROP TABLE public.lines")


def test_a_wait_for_open_transactions_is_said(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that another program had left open kept a job from its start, which said nothing."""
    monkeypatch.setattr(waiting, "_FIRST_S", 0.3)
    monkeypatch.setattr(waiting, "_AGAIN_S", 0.3)

    def said(start: str) -> int:
        wanted = rf"waiting: {start} when all .* have ended .* now: process {pid} since \d.*; prepared transaction 'left' since"
        return sum(bool(re.match(wanted, record.message)) for record in caplog.records if record.levelname == "WARNING")

    def source(*tables: str) -> ChangesSource:
        return ChangesSource(url, tables=tables, publication="orders", slot=SLOT)

    psql(url, "CREATE TABLE public.lines (id int PRIMARY KEY)", "INSERT INTO public.lines VALUES (1)")
    with psycopg.connect(url) as open_one, ThreadPoolExecutor(1) as pool:
        pid = open_one.info.backend_pid
        open_one.execute("CREATE TABLE public.any ()")
        psql(url, "BEGIN", "CREATE TABLE public.other ()", "PREPARE TRANSACTION 'left'")
        made = pool.submit(lambda: EmbeddedRun(source("orders"), clock=time.monotonic))
        until = time.monotonic() + 20.0
        while said(f"slot {SLOT} is made") < 2 and time.monotonic() < until:
            time.sleep(0.1)
        psql(url, "ROLLBACK PREPARED 'left'")
        open_one.rollback()
        with made.result() as run:
            state = state_of_log(run)
        assert said(f"slot {SLOT} is made") >= 2
        psql(url, "ALTER PUBLICATION orders ADD TABLE public.lines")
        open_one.execute("CREATE TABLE public.any ()")
        psql(url, "BEGIN", "CREATE TABLE public.other ()", "PREPARE TRANSACTION 'left'")
        with EmbeddedRun(source("orders", "lines"), clock=time.monotonic, checkpoint=state) as run:
            while said(r"the rows of public\.lines are read") < 2 and time.monotonic() < until:
                run.poll(0.1)
            psql(url, "ROLLBACK PREPARED 'left'")
            open_one.rollback()
            assert [row["public.lines"]["id"] for row in read_some(run, 1)] == [1]
        assert said(r"the rows of public\.lines are read") >= 2
    psql(url, "DROP TABLE public.lines")


@pytest.mark.timeout(240)
def test_a_table_that_the_log_lacks_is_read_by_tasks_of_spark_and_their_later_attempts_have_the_same_rows(
    url: str, tmp_path: Path
) -> None:
    """Under writers, with queries that start again. A batch that is older than the table's entry has none of its rows again."""
    psql(url, "CREATE TABLE public.lines (id int PRIMARY KEY)", "ALTER PUBLICATION orders DROP TABLE public.orders")
    psql(url, "ALTER PUBLICATION orders ADD TABLE public.lines", "INSERT INTO public.lines VALUES (1)")
    (tmp_path / "metadata").touch()  # as Spark does
    copy, moves = Copy(), random.Random(8)

    def query(*tables: str) -> SplitRead[Any]:
        source = ChangesSource(url, tables=tables, publication="orders", slot=SLOT, chunk_rows=300, metadata=METADATA)
        limits = TaskLimits(records=moves.randrange(1, 900), seconds=0.5)
        return SplitRead(source=source.source_of(1, end), checkpoint=str(tmp_path), limits=limits, stall_s=10.0)

    def read(query: SplitRead[Any], planner: SplitPlanner[Any], offset: str) -> list[dict[str, Any]]:
        (task,) = planner.tasks(offset)
        return [row for batch in query.open_task(task).read() for row in batch.to_pylist()]

    rows = ChangesSource(url, tables=["lines"], publication="orders", slot=SLOT).source_of(0, None)
    with closing(rows.create_reader()) as reader:
        reader.add_splits(rows.create_discovery().initial().added)
        end = start_of_log([chunk.split for chunk in [reader.poll(0.0)] if chunk is not None])
    before = query("lines")
    with closing(SplitPlanner(before)) as planner:
        psql(url, "INSERT INTO public.lines VALUES (2)")
        first, found = planner.initial_offsets(), list[dict[str, Any]]()
        while not found:  # a task waits only so long for its first rows
            first = planner.next_offsets(first)
            found = read(before, planner, first)
        assert [row["id"] for row in found] == [2]
    with writing(url) as more, psycopg.connect(url) as open_one:
        open_one.execute("INSERT INTO public.orders VALUES (100000, 'p', 'written before it is published')")
        psql(url, "ALTER PUBLICATION orders ADD TABLE public.orders")
        more(5)
        open_one.execute("INSERT INTO public.orders VALUES (100001, 'p', 'written after')")
        offset, later = first, query("lines", "orders")
        planner = SplitPlanner(later)
        assert [row["public.lines"]["id"] for row in read(later, planner, first)] == [2]
        for batch in range(60):
            more(2)
            following = planner.next_offsets(offset)
            if following != offset:
                offset = following
                found = read(later, planner, offset)
                more(2)
                assert read(later, planner, offset) == found, "another attempt"
                copy.apply({**row, **row[TABLE]} for row in found if row["_table"] == TABLE)
            if batch > 3:
                open_one.commit()
            assert batch > 3 or not copy.rows, "a transaction is open that was when it was published"
            if moves.random() < 0.3:
                planner.close()
                later = query("lines", "orders")
                planner = SplitPlanner(later)
            if len(copy.rows) > 2000:
                break
    planner.pin_end()
    while (following := planner.next_offsets(offset)) != offset:
        offset = following
        copy.apply({**row, **row[TABLE]} for row in read(later, planner, offset) if row["_table"] == TABLE)
    (task,) = planner.tasks(offset)
    planner.close()
    ((last,),) = (ends.ends.values() for ends in [later.open_task(task).log.find(task.name)])
    with closing(later.source.create_replay_reader()) as reader:
        reader.add_splits([replace(last.split, tables=oids_of(url, "public.lines"))])
        rows_again = [batch.records.num_rows for _ in range(20) if (batch := reader.poll(0.1)) is not None]
    assert sum(rows_again) == 0, "it reads rows of a table that it had not read"
    assert copy.rows == table_of(url)
    assert {(100000, "p"), (100001, "p")} <= copy.rows.keys()
    psql(url, "DROP TABLE public.lines")


@pytest.mark.timeout(120)
def test_a_promotion_is_followed_and_one_that_lacks_what_was_read_is_data_loss(server: Database, url: str) -> None:
    copy = Copy()
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        read_until(run, copy, url)
        psql(url, "INSERT INTO public.orders VALUES (5000, 'p0', 'before')")
        read_until(run, copy, url)
        state = run.checkpoint()
        run.checkpoint_completed()
    ((data, timeline),) = psql(url, "SELECT current_setting('data_directory'), timeline_id FROM pg_control_checkpoint()")
    server.stop()
    Path(data, "standby.signal").touch()
    server.restart()
    psql(url, "SELECT pg_promote()", "INSERT INTO public.orders VALUES (5001, 'p0', 'after')")
    with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
        read_until(run, copy, url)
        assert f'"timeline":{timeline + 1}'.encode() in run.checkpoint()
    ((lsn,),) = psql(url, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
    with closing(LogConnection(url, SLOT, ["orders"])) as connection:
        with pytest.raises(
            DataLossError, match=f"on timeline {timeline}, .* left that timeline at .*: the server that was prom"
        ):
            connection.start(lsn, timeline=timeline)
        with pytest.raises(DataLossError, match="was never on that timeline"):
            connection.start(lsn, timeline=timeline + 7)


def rows_alone(source: ChangesSource) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with EmbeddedRun(source, clock=time.monotonic) as run:
        while not run.finished:
            batch = run.poll(0.1)
            found += [] if batch is None else batch.records.to_pylist()
    return found


def test_rows_alone_are_read_in_a_beam_pipeline(url: str, tmp_path: Path) -> None:
    with beam.Pipeline("FnApiRunner") as pipeline:
        rows = pipeline | ReadFromSource(source_of(url, snapshot="only", chunk_rows=700))
        _ = rows | beam.Map(lambda row: f"{row['_op']} {row['id']}") | beam.io.WriteToText(str(tmp_path / "rows"))
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted(f"snapshot {number}" for number in range(3000))


def test_rows_alone_need_no_slot_and_infinite_times_may_be_null(url: str) -> None:
    psql(url, "ALTER TABLE public.orders ADD COLUMN due timestamp", "UPDATE public.orders SET due = 'infinity' WHERE id = 7")
    with pytest.raises(UsageError, match=r"'due': the value 'infinity' .* is out of range"):
        rows_alone(source_of(url, snapshot="only"))
    found = rows_alone(source_of(url, snapshot="only", out_of_range="null"))
    assert (len(found), {row["due"] for row in found}) == (3000, {None})
    assert psql(url, "SELECT slot_name FROM pg_replication_slots") == []


def test_a_large_value_that_the_log_leaves_out_is_an_error_a_name_or_there(url: str) -> None:
    psql(
        url,
        "ALTER TABLE public.orders ADD COLUMN large text",
        "ALTER TABLE public.orders ALTER COLUMN large SET STORAGE EXTERNAL",
        "DELETE FROM public.orders WHERE id > 0",
        "UPDATE public.orders SET large = repeat('x', 9000)",
    )
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        read_some(run, 1)
        state = run.checkpoint()
    psql(url, "UPDATE public.orders SET value = 'second'")
    with (
        EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run,
        pytest.raises(
            UsageError, match=r'leaves out the value of .large., .*ALTER TABLE "public"."orders" REPLICA IDENTITY FULL'
        ),
    ):
        read_some(run, 1)
    source = source_of(url, metadata=["_op", "_unchanged"])
    with EmbeddedRun(source, clock=time.monotonic, checkpoint=state) as run:
        (row,) = read_some(run, 1)
        assert (row["value"], row["large"], row["_unchanged"]) == ("second", None, ["large"])
        state = run.checkpoint()
    psql(url, "ALTER TABLE public.orders REPLICA IDENTITY FULL", "UPDATE public.orders SET value = 'third'")
    source = source_of(url, metadata=["_op", "_before"])
    with EmbeddedRun(source, clock=time.monotonic, checkpoint=state) as run:
        (row,) = read_some(run, 1)
        assert (row["large"], row["_before"]["value"]) == ("x" * 9000, "second")


def test_a_partition_does_not_inherit_that_its_full_row_is_logged(url: str) -> None:
    """The log has it as its root has it, and the key alone."""
    psql(
        url,
        "CREATE TABLE public.parts (id int, part int, value text, large text, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
        "CREATE TABLE public.part PARTITION OF public.parts DEFAULT",
        "ALTER TABLE public.part ALTER COLUMN large SET STORAGE EXTERNAL",
        "ALTER TABLE public.parts REPLICA IDENTITY FULL",
        "ALTER PUBLICATION orders SET (publish_via_partition_root = true)",
        "ALTER PUBLICATION orders SET TABLE public.parts",
    )

    def source(*metadata: str) -> ChangesSource:
        return ChangesSource(
            url, tables=["public.parts"], publication="orders", slot=SLOT, snapshot="never", metadata=["_op", *metadata]
        )

    with EmbeddedRun(source("_unchanged", "_before"), clock=time.monotonic) as run:
        run.poll(0.1)
        state = run.checkpoint()
        psql(
            url,
            "INSERT INTO public.parts VALUES (1, 1, 'a', repeat('x', 9000))",
            "UPDATE public.parts SET id = 2",
            "ALTER TABLE public.part REPLICA IDENTITY FULL",
            "UPDATE public.parts SET id = 3",
        )
        rows = [{**row, "large": len(row["large"] or "")} for row in read_some(run, 5)]
    assert [(row["_op"], row["id"], row["large"], row["_unchanged"]) for row in rows] == [
        ("insert", 1, 9000, []), ("delete", 1, 0, []), ("insert", 2, 0, ["large"]),
        ("delete", 2, 9000, []), ("insert", 3, 9000, []),
    ]  # fmt: skip
    assert [row["_before"] and row["_before"]["value"] for row in rows] == [None, None, None, "a", None]
    with (
        EmbeddedRun(source(), clock=time.monotonic, checkpoint=state) as run,
        pytest.raises(UsageError, match=r'"public"."parts" REPLICA IDENTITY FULL, and the same of each partition'),
    ):
        read_some(run, 5)
    psql(url, "DROP TABLE public.parts")


def test_a_partition_of_whose_old_rows_the_log_lacks_the_key_is_refused(url: str) -> None:
    """An update of the key left the old row: the partition's log has it by another index than its root's key."""
    psql(
        url,
        "CREATE TABLE public.parts (id int, part int, mail text NOT NULL, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
        "CREATE TABLE public.part PARTITION OF public.parts DEFAULT",
        "CREATE UNIQUE INDEX by_mail ON public.part (mail)",
        "ALTER TABLE public.part REPLICA IDENTITY USING INDEX by_mail",
        "ALTER PUBLICATION orders SET (publish_via_partition_root = true)",
        "ALTER PUBLICATION orders SET TABLE public.parts",
    )
    source = partial(ChangesSource, url, tables=["public.parts"], publication="orders", slot=SLOT)
    with pytest.raises(UsageError, match=r"public.parts are read by id, part, and of its partition public.part .* by mail"):
        _ = source().followed
    psql(url, "ALTER PUBLICATION orders SET (publish = 'insert')")
    assert source().followed
    psql(url, "ALTER PUBLICATION orders SET (publish = 'insert, update')", "ALTER TABLE public.part REPLICA IDENTITY FULL")
    assert source().followed
    psql(url, "DROP TABLE public.parts")


@contextmanager
def following_parts(url: str, state: bytes | None = None) -> Iterator[tuple[EmbeddedRun, Callable[[], None]]]:
    """A run of a partitioned table whose identity is an index, and what lets it look at the catalog."""
    if state is None:
        psql(
            url,
            "CREATE TABLE public.parts (id int, part int, mail text NOT NULL, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
            "CREATE UNIQUE INDEX by_mail ON public.parts (mail, part)",
            "ALTER TABLE public.parts REPLICA IDENTITY USING INDEX by_mail",
            "CREATE TABLE public.one PARTITION OF public.parts FOR VALUES IN (1)",
            "ALTER TABLE public.one REPLICA IDENTITY USING INDEX one_mail_part_idx",
            "INSERT INTO public.parts VALUES (1, 1, 'a')",
            "ALTER PUBLICATION orders SET (publish_via_partition_root = true)",
            "ALTER PUBLICATION orders SET TABLE public.parts",
        )
    source, now = ChangesSource(url, tables=["public.parts"], publication="orders", slot=SLOT), [0.0]
    with EmbeddedRun(source, clock=lambda: now[0], discovery_interval_s=1.0, checkpoint=state) as run:

        def look() -> None:
            now[0] += 5.0
            run.poll(0.1)

        if state is None:
            read_some(run, 1)
            look()
        yield run, look


MADE = "CREATE TABLE public.two PARTITION OF public.parts FOR VALUES IN (2)"
SAME = "ALTER TABLE public.two REPLICA IDENTITY USING INDEX two_mail_part_idx"


@pytest.fixture
def parts_url(url: str) -> Iterator[str]:
    yield url
    psql(url, "DROP TABLE public.parts")


def test_a_partition_that_is_made_while_the_job_runs_has_to_have_its_roots_identity(
    parts_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A start refuses it, a look says so. What was inserted into it until then is read."""
    with following_parts(parts_url) as (run, look):
        psql(parts_url, MADE, SAME)
        look()
        psql(parts_url, "INSERT INTO public.parts VALUES (2, 2, 'b')", "UPDATE public.parts SET mail = 'c' WHERE id = 2")
        assert [(row["_op"], row["mail"]) for row in read_some(run, 3)] == [("insert", "b"), ("delete", "b"), ("insert", "c")]
        state = run.checkpoint()
        psql(parts_url, "ALTER TABLE public.two REPLICA IDENTITY DEFAULT", "INSERT INTO public.parts VALUES (3, 2, 'd')")
        look()
        refused = r"read by part, mail, and of its partition public.two .* by id, part"
        assert re.search(refused, caplog.text)
    with pytest.raises(UsageError, match=refused), following_parts(parts_url, state):
        pass
    psql(parts_url, SAME, "UPDATE public.parts SET mail = 'e' WHERE id = 3", "UPDATE public.parts SET id = 4 WHERE id = 3")
    with following_parts(parts_url, state) as (run, _):
        rows = [(row["_op"], row["mail"]) for row in read_some(run, 4)]
    assert rows == [("insert", "d"), ("delete", "d"), ("insert", "e"), ("update", "e")]


@pytest.mark.parametrize("change", ["UPDATE public.parts SET mail = 'c' WHERE id = 2", "DELETE FROM public.parts WHERE id = 2"])
def test_a_change_of_a_partition_without_the_key_of_the_old_row_is_data_loss(parts_url: str, change: str) -> None:
    """The copy kept the old row. It is found before it is given, whether or not the catalog was looked at."""
    with following_parts(parts_url) as (run, _):
        psql(parts_url, MADE, "INSERT INTO public.parts VALUES (2, 2, 'b')")
        assert [row["mail"] for row in read_some(run, 1)] == ["b"]
        psql(parts_url, "UPDATE public.parts SET mail = 'x' WHERE id = 1")
        assert len(read_some(run, 2)) == 2
        psql(parts_url, change)
        with pytest.raises(
            DataLossError, match=r"parts that lack part, mail of the old row, .* public.two had another REPLICA"
        ):
            read_some(run, 1)


def test_a_partition_that_is_in_no_log_ends_a_running_job(parts_url: str) -> None:
    with following_parts(parts_url) as (_, look):
        psql(parts_url, MADE.replace("TABLE", "UNLOGGED TABLE", 1), SAME)
        with pytest.raises(DataLossError, match=r"are unlogged or foreign now, .*: public.two\. Detach them or SET LOGGED"):
            look()


def test_a_table_whose_key_is_not_published_is_read_as_one_without(url: str) -> None:
    """As it may be where only inserts are published."""
    psql(
        url, "ALTER TABLE public.orders DROP COLUMN part, ADD key int GENERATED ALWAYS AS (1) STORED, ADD PRIMARY KEY (id, key)"
    )
    assert len(rows_alone(source_of(url, snapshot="only", chunk_rows=3000))) == 3000
    psql(
        url,
        "ALTER TABLE public.orders ADD part text NOT NULL DEFAULT 'p', ADD same int GENERATED ALWAYS AS (id) STORED NOT NULL",
        "CREATE UNIQUE INDEX by_part ON public.orders (part, same)",
        "ALTER TABLE public.orders REPLICA IDENTITY USING INDEX by_part",
    )
    with pytest.raises(UsageError, match="to cut it into chunks"):  # a part of a key cuts nothing
        rows_alone(source_of(url, snapshot="only", chunk_rows=5))


def test_a_table_without_a_key_is_read_as_a_whole_or_refused(url: str) -> None:
    psql(url, "ALTER TABLE public.orders DROP CONSTRAINT orders_pkey")
    assert len(rows_alone(source_of(url, snapshot="only", chunk_rows=3000))) == 3000
    with pytest.raises(UsageError, match=r"public.orders has no primary key .*, and more than 2999 rows"):
        rows_alone(source_of(url, snapshot="only", chunk_rows=2999))


def test_a_table_that_is_altered_is_read_on_after_a_restart(url: str) -> None:
    """Also what was written before, which comes after the last checkpoint."""
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        read_some(run, 3000)
        run.poll(0.1)
        state = run.checkpoint()
        psql(
            url,
            "INSERT INTO public.orders VALUES (9000, 'p', 'before')",
            "ALTER TABLE public.orders ADD COLUMN more int",
            "INSERT INTO public.orders VALUES (9001, 'p', 'between', 1)",
            "ALTER TABLE public.orders ALTER COLUMN value TYPE varchar(99)",
            "INSERT INTO public.orders VALUES (9002, 'p', 'after', 2)",
        )
        with pytest.raises(UsageError, match=r"has changed: columns added: more.* Start again, with a new ChangesSource"):
            read_some(run, 3)
    with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
        found = read_some(run, 3)
    assert [(row["id"], row["value"], row["more"]) for row in found] == [
        (9000, "before", None),
        (9001, "between", 1),
        (9002, "after", 2),
    ]


def test_what_a_transaction_writes_that_was_open_at_a_start_is_read_with_the_columns_that_it_has_added(url: str) -> None:
    """Regression: its changes are before that start in the log, so they were taken for older ones, without the column."""
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        state = state_of_log(run)
    migration, started = psycopg.connect(url), threading.Event()
    migration.execute("ALTER TABLE public.orders ADD more text")
    migration.execute("UPDATE public.orders SET more = 'written' WHERE id = 1")

    def end() -> None:
        """Some releases of the server have a start wait for it."""
        while not (started.wait(0.05) or psql(url, "SELECT pid FROM pg_locks WHERE NOT granted")):
            pass
        migration.commit()

    found: list[dict[str, Any]] = []
    with closing(migration), ThreadPoolExecutor() as threads:
        ended = threads.submit(end)
        try:
            while not found:
                with suppress(UsageError), EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
                    started.set()
                    ended.result(60.0)
                    found = read_some(run, 1)
        finally:
            started.set()
    assert [(row["id"], row["more"]) for row in found] == [(1, "written")]


@pytest.mark.parametrize("is_first", [True, False], ids=["ahead of the first chunk", "between two"])
def test_a_column_that_is_added_while_chunks_are_read_ends_the_job(url: str, is_first: bool) -> None:
    """Regression: a chunk without it counted as having what was written into it by then, and the log's change was dropped."""
    source, copy = source_of(url, chunk_rows=1000), dict[int, str]()

    def read(run: EmbeddedRun[Any], count: int) -> None:
        copy.update({row["id"]: row["more"] for row in read_some(run, count) if "more" in row})

    with EmbeddedRun(source, clock=time.monotonic) as run:
        read_some(run, 0 if is_first else 1000)
        state = run.checkpoint()
        psql(url, "ALTER TABLE public.orders ADD more text", "UPDATE public.orders SET more = 'written' WHERE id IN (1, 2999)")
        with pytest.raises(UsageError, match=r"has changed: columns added: more.* Start again"):
            read_some(run, 1)
    with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
        read(run, 3000 if is_first else 2001)
    assert (copy[1], copy[2999]) == ("written", "written")


def test_a_column_whose_type_is_changed_while_chunks_are_read_ends_the_job(url: str) -> None:
    """Regression: a chunk had its value in the old type, and the log's change was dropped."""
    psql(url, "ALTER TABLE public.orders ADD more real")
    with EmbeddedRun(source_of(url, chunk_rows=1000), clock=time.monotonic) as run:
        read_some(run, 1000)
        psql(url, "ALTER TABLE public.orders ALTER more TYPE float", "UPDATE public.orders SET more = 0.1 WHERE id = 2999")
        with pytest.raises(UsageError, match=r"has changed: columns of another type: more.* Start again"):
            read_some(run, 1)


@pytest.mark.parametrize("case", ["rows alone", "an overlapping seam", "a generated column"])
def test_a_column_that_is_added_while_chunks_are_read_ends_no_job_that_loses_nothing(url: str, case: str) -> None:
    options: dict[str, Any] = {"rows alone": {"snapshot": "only"}, "an overlapping seam": {"seam": "overlapping"}}.get(case, {})
    added = "int GENERATED ALWAYS AS (id * 2) STORED" if case == "a generated column" else "int"
    with EmbeddedRun(source_of(url, chunk_rows=1000, **options), clock=time.monotonic) as run:
        read_some(run, 1000)
        psql(url, f"ALTER TABLE public.orders ADD more {added}")
        assert len(read_some(run, 2000)) == 2000


@pytest.mark.parametrize("in_log", [True, False], ids=["in the log", "in the chunks"])
def test_a_generated_column_that_is_plain_now_is_refused(url: str, in_log: bool) -> None:
    """Regression: it was null in all rows that were read before."""
    psql(url, "ALTER TABLE public.orders ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    with EmbeddedRun(source_of(url, chunk_rows=1000), clock=time.monotonic) as run:
        state = state_of_log(run) if in_log else run.checkpoint()
    psql(url, "ALTER TABLE public.orders ALTER twice DROP EXPRESSION", "UPDATE public.orders SET twice = 3 WHERE id = 1")
    with (
        pytest.raises(UsageError, match=r"the log has (twice|a column) of public.orders now.* take a new snapshot"),
        EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run,
    ):
        read_some(run, 1)


SWAPPED = (
    "ALTER TABLE public.orders RENAME value TO x",
    "ALTER TABLE public.orders RENAME more TO value",
    "ALTER TABLE public.orders RENAME x TO more",
)
RENAMED = ("ALTER TABLE public.orders RENAME value TO other",)
AGAIN = ("ALTER TABLE public.orders DROP value", "ALTER TABLE public.orders ADD value text")
LAST_AGAIN = ("ALTER TABLE public.orders DROP more", "ALTER TABLE public.orders ADD more text")


@pytest.mark.parametrize("altered", [SWAPPED, RENAMED, AGAIN, LAST_AGAIN], ids=["swapped", "renamed", "again", "last again"])
@pytest.mark.parametrize("where", ["in the chunks", "behind the chunks", "in the log", "rows alone", "log alone", "one stage"])
def test_a_column_that_was_renamed_or_created_again_before_a_restart_is_refused(
    url: str, where: str, altered: Sequence[str]
) -> None:
    """It was read on by its new name: of two that had swapped theirs, rows had each other's values.

    Of one that was created again a copy kept the old values.
    """
    psql(url, "ALTER TABLE public.orders ADD more text DEFAULT 'more'")
    kinds: dict[str, Snapshot] = {"rows alone": "only", "log alone": "never"}

    def source() -> Any:
        changes = source_of(url, chunk_rows=1000, snapshot=kinds.get(where, "initial"))
        return changes.in_one_stage() if where == "one stage" else changes

    with EmbeddedRun(source(), clock=time.monotonic) as run:
        if where == "in the log":
            state = state_of_log(run)
        else:
            read_some(run, {"behind the chunks": 3000, "log alone": 0}.get(where, 1000))
            state = run.checkpoint()
        assert (b'"position"' in state) == (where in {"in the log", "log alone", "one stage"})
        run.checkpoint_completed()
    psql(url, *altered, "UPDATE public.orders SET part = 'p9' WHERE id = 1")
    for _ in range(2):
        with (
            pytest.raises(UsageError, match=r"a column of public.orders was (renamed|dropped and created again).*take a new"),
            EmbeddedRun(source(), clock=time.monotonic, checkpoint=state) as run,
        ):
            read_some(run, 1)


def test_a_column_that_swaps_its_name_between_two_chunks_ends_the_job(url: str) -> None:
    psql(url, "ALTER TABLE public.orders ADD more text")
    with EmbeddedRun(source_of(url, chunk_rows=1000), clock=time.monotonic) as run:
        read_some(run, 1000)
        psql(url, *SWAPPED)
        with pytest.raises(UsageError, match=r"renamed \(value is more now, more is value now\)"):
            read_some(run, 1)


@pytest.mark.parametrize("in_log", [True, False], ids=["in the log", "in the chunks"])
def test_columns_that_were_added_or_dropped_before_a_restart_are_read(url: str, in_log: bool) -> None:
    psql(url, "ALTER TABLE public.orders ADD more text DEFAULT 'more'")
    with EmbeddedRun(source_of(url, chunk_rows=1000), clock=time.monotonic) as run:
        state = state_of_log(run) if in_log else run.checkpoint()
    psql(
        url,
        "ALTER TABLE public.orders DROP more",
        "ALTER TABLE public.orders ADD last text DEFAULT 'new'",
        "UPDATE public.orders SET value = 'x' WHERE id = 2999",
    )
    with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
        found = read_some(run, 1 if in_log else 3000)
    assert [(row["value"], row["last"], "more" in row) for row in found if row["id"] == 2999] == [("x", "new", False)]


def test_the_last_column_that_is_created_again_ends_a_running_job(url: str) -> None:
    """Its place is the same, so that its changes look as before."""
    now = [0.0]
    psql(url, "ALTER TABLE public.orders ADD more text DEFAULT 'more'")
    with EmbeddedRun(source_of(url), clock=lambda: now[0], discovery_interval_s=1.0) as run:
        state_of_log(run)
        psql(url, *LAST_AGAIN, "UPDATE public.orders SET value = 'x' WHERE id = 1")
        now[0] = 2.0
        with pytest.raises(UsageError, match=r"dropped and created again \(more\)"):
            read_some(run, 3001)


def test_a_column_that_is_created_again_some_starts_after_it_was_dropped_is_refused(url: str) -> None:
    psql(url, "ALTER TABLE public.orders ADD more text DEFAULT 'more'")
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        state = state_of_log(run)
    psql(url, "ALTER TABLE public.orders DROP more", "UPDATE public.orders SET value = 'x' WHERE id = 1")
    for _ in range(2):
        with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
            read_some(run, 1)
            psql(url, "UPDATE public.orders SET value = 'x' WHERE id = 1")
            state = run.checkpoint()
    psql(url, "ALTER TABLE public.orders ADD more text")
    with pytest.raises(UsageError, match=r"dropped and created again \(more\)"):
        EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state)


def test_a_column_that_was_added_is_known_from_then_on_and_a_checkpoint_without_names_is_read(url: str) -> None:
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        state = state_of_log(run)
    psql(url, "ALTER TABLE public.orders ADD last text", "UPDATE public.orders SET value = 'x' WHERE id = 1")
    with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
        read_some(run, 1)
        state = run.checkpoint()
    psql(url, "ALTER TABLE public.orders RENAME last TO latest", "UPDATE public.orders SET value = 'y' WHERE id = 1")
    with pytest.raises(UsageError, match=r"renamed \(last is latest now\)"):
        EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state)
    serializer = CheckpointSerializer("postgresql-changes", ChangesSplitSerializer())
    checkpoint = serializer.deserialize(state)
    splits = tuple(replace(each, split=replace(each.split, columns=())) for each in checkpoint.splits)
    older = serializer.serialize(replace(checkpoint, splits=splits))
    assert b'"columns"' not in older
    with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=older) as run:
        (row,) = read_some(run, 1)
    assert (row["value"], row["latest"]) == ("y", None)


def state_of_log(run: EmbeddedRun[Any]) -> bytes:
    """A checkpoint behind all chunks."""
    read_some(run, 3000)
    run.checkpoint()
    run.checkpoint_completed()
    run.poll(0.1)
    return run.checkpoint()


def test_the_slot_moves_by_checkpoints_also_past_what_is_not_published(url: str) -> None:
    """The log of a quiet table is not kept: other tables write it."""
    place = f"SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
    copy = Copy()
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        read_until(run, copy, url)
        psql(url, "UPDATE public.orders SET value = 'read' WHERE id < 10")
        read_until(run, copy, url)
        ((before,),) = psql(url, place)
        run.checkpoint()
        run.checkpoint_aborted()
        assert psql(url, place) == [(before,)], "it has moved without a checkpoint"
        psql(url, "CREATE TABLE public.other AS SELECT n FROM generate_series(1, 1000) AS n", "DROP TABLE public.other")
        ((wanted,),) = psql(url, "SELECT (pg_current_wal_lsn() - '0/0')::bigint")
        until = time.monotonic() + 30.0
        while psql(url, place)[0][0] < wanted and time.monotonic() < until:
            run.poll(0.1)
            run.checkpoint()
            run.checkpoint_completed()
    ((after,),) = psql(url, place)
    assert before < wanted <= after


def test_the_slot_of_another_server_is_not_moved(url: str) -> None:
    """It may have the same name: an address may be another one's by mistake."""
    stage = source_of(url, snapshot="never").source_of(0, None)
    with closing(stage.create_discovery()) as discovery:
        (split,) = discovery.initial().added
    assert isinstance(split, LogSplit)
    psql(url, "SELECT pg_logical_emit_message(true, '', repeat('x', 100000))")
    ((end,),) = psql(url, "SELECT (pg_current_wal_lsn() - '0/0')::bigint")
    further = split.at(end)

    def moved(position: Origin) -> bool:
        stage.checkpoint_completed([replace(further, position=position)])
        ((lsn,),) = psql(url, "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots")
        return bool(lsn > split.position.lsn)

    assert not moved(replace(further.position, system="7"))
    assert not moved(replace(further.position, timeline=further.position.timeline + 1))
    assert moved(further.position)


def test_a_table_that_is_published_later_is_said_and_read_at_the_next_start(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It matches the names that are given."""

    def source(snapshot: Snapshot = "initial") -> ChangesSource:
        return ChangesSource(url, tables=["*"], publication="orders", slot=SLOT, snapshot=snapshot, chunk_rows=1000)

    now = [0.0]
    with EmbeddedRun(source(), clock=lambda: now[0], discovery_interval_s=1.0) as run:
        read_some(run, 3000)
        run.poll(0.1)
        psql(url, "CREATE TABLE public.later (n int)", "ALTER PUBLICATION orders ADD TABLE public.later")
        for _ in range(2):
            now[0] += 5.0
            run.poll(0.1)
        said = [record.message for record in caplog.records if "publication" in record.message]
        assert said == ["publication orders has public.later now: the job reads it from its next start on"]
        discovery = LogDiscovery(run.source, 1, None)
        assert discovery.later({}).replan == "publication orders has public.later now"
        psql(url, "CREATE TABLE public.large AS SELECT generate_series(1, 2000) AS n")
        psql(url, "ALTER PUBLICATION orders ADD TABLE public.large")
        for _ in range(2):
            assert discovery.later({}).replan is None, "the next start would fail"
        large = [record.message for record in caplog.records if "public.large" in record.message]
        assert len(large) == 1
        assert "start would fail: table public.large has no primary key to cut it into chunks" in large[0]
        psql(url, "DROP TABLE public.large")
        psql(url, "ALTER PUBLICATION orders SET (publish = 'insert, delete')")
        now[0] += 5.0
        run.poll(0.1)
        said = [record.message for record in caplog.records if "does not publish" in record.message]
        assert said == ["publication orders does not publish truncate, update: the copy lacks them"]
        state = run.checkpoint()
    psql(url, "INSERT INTO public.later VALUES (1), (2)", "INSERT INTO public.orders VALUES (9000, 'p', 'read')")
    with EmbeddedRun(source(), clock=time.monotonic, checkpoint=state) as run:
        rows = read_some(run, 3)
        assert [row["public.later"]["n"] for row in rows if row["public.later"]] == [1, 2]
        assert [row["public.orders"]["id"] for row in rows if row["public.orders"]] == [9000]
        state = run.checkpoint()
    assert "are read again" not in caplog.text
    with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:  # without public.later
        psql(url, "INSERT INTO public.orders VALUES (9001, 'p', 'read')")
        read_some(run, 1)
        state = run.checkpoint()
    with EmbeddedRun(source(), clock=time.monotonic, checkpoint=state) as run:
        assert [row["public.later"]["n"] for row in read_some(run, 2)] == [1, 2]
        assert "public.later: the rows are read again; those that were deleted meanwhile stay in the copy" in caplog.text
        state = run.checkpoint()
    psql(url, "DROP TABLE public.later", "CREATE TABLE public.later (n int)", "ALTER PUBLICATION orders ADD TABLE public.later")
    with pytest.raises(DataLossError, match=r"table public.later was dropped and created again"):
        EmbeddedRun(source(), clock=time.monotonic, checkpoint=state)
    psql(url, "DROP TABLE public.later")


def test_a_table_that_a_query_of_spark_has_left_out_for_a_while_is_read_again(url: str) -> None:
    """What was changed meanwhile was lost, and nothing said so."""
    psql(url, "CREATE TABLE public.later (n int PRIMARY KEY)", "ALTER PUBLICATION orders ADD TABLE public.later")
    psql(url, "DELETE FROM public.orders")

    def stage(number: int, end: Any, *tables: str) -> Source[Any]:
        return ChangesSource(url, tables=tables, publication="orders", slot=SLOT).source_of(number, end)

    rows = stage(0, None, "orders", "later")
    with EmbeddedRun(rows, clock=time.monotonic) as run:
        chunks = [batch.split for _ in range(2) if (batch := run.poll(0.2)) is not None]
    end, state, found = start_of_log(chunks), None, list[Any]()
    for number, tables in enumerate([("orders", "later"), ("orders",), ("orders", "later")]):
        with EmbeddedRun(stage(1, end, *tables), clock=time.monotonic, checkpoint=state) as run:
            psql(url, f"INSERT INTO public.later VALUES ({number})", f"INSERT INTO public.orders VALUES ({number}, 'p', '')")
            found += read_some(run, [2, 1, 4][number])
            state = run.checkpoint()
            run.checkpoint_completed()
    read = [(row["_op"], row["public.later"]["n"]) for row in found if row.get("public.later")]
    assert read == [("insert", 0), ("snapshot", 0), ("snapshot", 1), ("snapshot", 2)]
    psql(url, "DROP TABLE public.later")


def test_a_chunk_of_a_table_that_was_added_confirms_nothing_that_is_not_durable(url: str) -> None:
    """The log continues behind it by a new connection, at what was read, and a crash may go back to before that."""

    def source() -> ChangesSource:
        return ChangesSource(url, tables=["*"], publication="orders", slot=SLOT, chunk_rows=1000)

    with EmbeddedRun(source(), clock=time.monotonic) as run:
        read_some(run, 3000)
        run.poll(0.1)
        state = run.checkpoint()
    psql(url, "CREATE TABLE public.later (n int)", "INSERT INTO public.later VALUES (1)")
    psql(url, "ALTER PUBLICATION orders ADD TABLE public.later")
    with EmbeddedRun(source(), clock=time.monotonic, checkpoint=state) as run:
        run.poll(0.2)
        state = run.checkpoint()
        psql(url, "INSERT INTO public.orders VALUES (9000, 'p', 'read')")
        assert len(read_some(run, 2)) == 2
        psql(url, "INSERT INTO public.orders VALUES (9001, 'p', 'read')")
        read_some(run, 1)
        run.checkpoint_completed()
        run.poll(0.2)
    with EmbeddedRun(source(), clock=time.monotonic, checkpoint=state) as run:
        assert len(read_some(run, 3)) == 3
    psql(url, "DROP TABLE public.later")


def test_a_reader_that_has_written_for_longer_than_the_server_waits_continues(url: str) -> None:
    impatient = f"{url}?options=-c%20wal_sender_timeout%3D500ms"
    with EmbeddedRun(source_of(impatient, chunk_rows=3000), clock=time.monotonic) as run:
        read_some(run, 3000)
        run.poll(0.1)
        for number in range(3):
            psql(url, f"INSERT INTO public.orders VALUES ({9000 + number}, 'p', 'read')")
            assert [row["id"] for row in read_some(run, 1)] == [9000 + number]
            run.checkpoint()
            time.sleep(1.5)
            run.checkpoint_completed()


@pytest.mark.parametrize("polled", ["run", "reader"])
def test_a_connection_that_was_lost_once_is_an_error_once(url: str, polled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each later call that came within a second raised the error again."""
    monkeypatch.setattr(log_reader, "_AWAY_S", 3600.0)
    with EmbeddedRun(source_of(url, chunk_rows=3000), clock=time.monotonic) as run:
        read_some(run, 3000)
        psql(url, "INSERT INTO public.orders VALUES (8999, 'p', 'read')")
        read_some(run, 1)
        poll = run.poll if polled == "run" else run._slots[0].reader.poll
        psql(url, f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
        psql(url, "INSERT INTO public.orders VALUES (9000, 'p', 'read')")
        found, errors, deadline = list[int](), 0, time.monotonic() + 30
        while not found and time.monotonic() < deadline:
            try:
                batch = poll(0.1)
            except RetriableError:  # also while the server has not noticed that the slot is free
                errors += 1
            else:
                found += [] if batch is None else batch.records.column("id").to_pylist()
        assert found == [9000]
        assert errors > 0


def test_a_loss_while_a_reader_connects_again_costs_no_transaction(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: what was decoded then was left out by a reader that was polled again."""
    real, refused = log_reader.connect, ["too many connections"] * 2

    def refusing(place: str) -> psycopg.Connection:
        if refused:
            raise RetriableError(refused.pop())
        return real(place)

    monkeypatch.setattr(replication, "RECEIVE_BYTES", 1)  # each transaction alone
    monkeypatch.setattr(log_reader, "_AWAY_S", 0.0)
    monkeypatch.setattr(log_reader, "connect", refusing)  # by which it asks for the chunks of keys
    with EmbeddedRun(source_of(url, chunk_rows=1000), clock=time.monotonic) as run:
        psql(url, "UPDATE public.orders SET value = 'first' WHERE id = 5")
        read_some(run, 1000)
        psql(url, "UPDATE public.orders SET value = 'second' WHERE id = 5")
        psql(url, "UPDATE public.orders SET value = 'third' WHERE id = 5")
        read_some(run, 2000)
        while run._slots[0].reader._log is None:
            run.poll(0.1)
        reader, values, errors, until = run._slots[0].reader, list[str](), 0, time.monotonic() + 30.0
        while "third" not in values and time.monotonic() < until:
            try:
                batch = reader.poll(0.1)
            except RetriableError:
                errors += 1
            else:
                values += [] if batch is None else batch.records.column("value").to_pylist()
        assert values == ["second", "third"]
        assert (errors, refused) == (1, [])


ALTERED = ("ALTER PUBLICATION orders DROP TABLE public.orders", "ALTER PUBLICATION orders ADD TABLE public.orders")
OUT_AND_BACK = {
    "running": ALTERED,
    "down": ALTERED,
    "reading rows": ALTERED,
    "without rows": ALTERED,
    "in a new publication": ("DROP PUBLICATION orders", "CREATE PUBLICATION orders FOR TABLE public.orders"),
}


@pytest.mark.parametrize("case", OUT_AND_BACK)
def test_a_table_that_was_out_of_the_publication_for_a_while_is_data_loss(url: str, case: str) -> None:
    """Also where it is back before the next look. What was changed between is in no log, and only the new entry shows it."""
    out, back = OUT_AND_BACK[case]
    hidden = (out, "UPDATE public.orders SET value = 'hidden' WHERE id = 1", back)
    snapshot: Snapshot = "never" if case == "without rows" else "initial"
    now = [0.0]
    lost = pytest.raises(DataLossError, match=r"public.orders was taken out of publication orders and added again")
    with EmbeddedRun(source_of(url, snapshot=snapshot, chunk_rows=1000), clock=lambda: now[0], discovery_interval_s=1.0) as run:
        run.poll(0.1)
        psql(url, *(hidden if case == "reading rows" else ["ALTER PUBLICATION orders SET TABLE public.orders"]))
        if case != "reading rows":
            psql(url, "INSERT INTO public.orders VALUES (9000, 'p', 'read')")
            read_some(run, 1 if snapshot == "never" else 2001)
            now[0] += 5.0
            run.poll(0.1)  # the same tables were set: nothing is lost
            state = run.checkpoint()
            psql(url, *hidden)
        with nullcontext() if case == "down" else lost:
            read_some(run, 2000 if case == "reading rows" else 0)
            for _ in range(0 if case == "down" else 3):
                now[0] += 5.0
                run.poll(0.1)
    if case != "reading rows":
        with lost:
            EmbeddedRun(source_of(url, snapshot=snapshot), clock=time.monotonic, checkpoint=state)


FILTERED = "TABLE public.orders WHERE (id > 2989)"
COMES = (f"TABLES IN SCHEMA public, {FILTERED}", "DROP TABLES IN SCHEMA public", 3000)
GOES = (FILTERED, "ADD TABLES IN SCHEMA public", 10)


@pytest.mark.parametrize("is_down", [False, True], ids=["running", "down"])
@pytest.mark.parametrize(("first", "then", "rows"), [COMES, GOES], ids=["comes", "goes"])
def test_a_row_filter_that_comes_or_goes_with_another_entry_is_data_loss(
    url: str, first: str, then: str, rows: int, is_down: bool
) -> None:
    """The table's entry stayed, and only that was compared: updates of other rows, or these, never arrived."""
    _with_filters(url)
    psql(url, "DROP PUBLICATION orders", f"CREATE PUBLICATION orders FOR {first}")
    now = [0.0]
    lost = pytest.raises(DataLossError, match=r"public.orders was .*, or has another row filter or list of columns")
    with EmbeddedRun(source_of(url), clock=lambda: now[0], discovery_interval_s=1.0) as run:
        read_some(run, rows)
        for _ in range(2):
            now[0] += 5.0
            run.poll(0.1)
        state = run.checkpoint()
        psql(url, f"ALTER PUBLICATION orders {then}")
        with nullcontext() if is_down else lost:
            for _ in range(0 if is_down else 3):
                now[0] += 5.0
                run.poll(0.1)
    with lost:
        EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state)


def _with_filters(url: str) -> None:
    (number,) = psql(url, "SHOW server_version_num")[0]
    if int(number) < 150000:
        pytest.skip("15 and newer have such publications")


def test_a_filter_of_a_checkpoint_without_it_is_as_it_is_then(url: str) -> None:
    """It had all entries. Those without a filter may come and go, as long as one stays."""
    _with_filters(url)
    psql(url, f"ALTER PUBLICATION orders SET {COMES[0]}")
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        state = state_of_log(run)
    every = "SELECT oid FROM pg_publication_namespace UNION ALL SELECT oid FROM pg_publication_rel"
    schema, table = (oid for (oid,) in psql(url, every))
    serializer = CheckpointSerializer("postgresql-changes", ChangesSplitSerializer())
    checkpoint = serializer.deserialize(state)
    ((oid, entries),) = checkpoint.splits[0].split.published_by
    assert entries == (schema,)
    older = replace(checkpoint.splits[0].split, published_by=((oid, (schema, table)),))
    state = serializer.serialize(replace(checkpoint, splits=(replace(checkpoint.splits[0], split=older),)))
    psql(url, "INSERT INTO public.orders VALUES (9000, 'p', 'read')")
    with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
        read_some(run, 1)
        state = run.checkpoint()
    psql(url, f"ALTER PUBLICATION orders {COMES[1]}")
    with pytest.raises(DataLossError, match="has another row filter"):
        EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state)


OPTIONS = (
    "ALTER PUBLICATION orders SET (publish = 'truncate')",
    "ALTER PUBLICATION orders SET (publish = 'insert, update, delete, truncate')",
    "publication orders did not publish delete, insert, update for a while, so the log lacks such changes of public.orders",
)
UNLOGGED = (
    "ALTER TABLE public.orders SET UNLOGGED",
    "ALTER TABLE public.orders SET LOGGED",
    "public.orders was out of publication orders for a while",
)


@contextmanager
def following(
    url: str, operations: str = "insert, update, delete, truncate"
) -> Iterator[tuple[EmbeddedRun, Callable[[], None]]]:
    """A run of a publication of all tables, and what lets it look at the catalog. Its snapshot has more chunks to come."""
    now = [0.0]
    psql(url, "DROP PUBLICATION orders", f"CREATE PUBLICATION orders FOR ALL TABLES WITH (publish = '{operations}')")
    with EmbeddedRun(source_of(url, chunk_rows=1000), clock=lambda: now[0], discovery_interval_s=1.0) as run:

        def look() -> None:
            for _ in range(2):
                now[0] += 5.0
                run.poll(0.1)

        read_some(run, 1000)
        yield run, look


@pytest.mark.parametrize(("out", "back", "said"), [OPTIONS, UNLOGGED], ids=["options", "unlogged"])
def test_changes_that_the_publication_has_left_out_are_data_loss_also_by_the_same_entries(
    url: str, out: str, back: str, said: str
) -> None:
    """They were lost, with a warning at most. A publication that leaves them out for good is a warning still."""
    with following(url) as (run, look):
        read_some(run, 2000)
        psql(url, out)
        look()
        psql(url, back)
        with pytest.raises(DataLossError, match=said):
            look()


def altered(caplog: pytest.LogCaptureFixture) -> int:
    """How many times it was said that changes may have been left out."""
    return sum("publication orders was altered since the last look" in record.message for record in caplog.records)


def test_changes_that_were_perhaps_left_out_between_looks_are_a_warning(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It was data loss, also where a tool had set the same options again."""
    out, back, _ = OPTIONS
    with following(url) as (run, look):
        psql(url, out, back)  # while rows are read
        read_some(run, 2000)
        look()
        assert altered(caplog) == 1
        psql(url, back)
        for _ in range(2):
            look()
            assert altered(caplog) == 2
        less = "ALTER PUBLICATION orders SET (publish = 'insert, update')"
        psql(url, less)
        look()
        assert altered(caplog) == 2, "this is seen"
        psql(url, out, less)
        look()
        assert altered(caplog) == 3, "of the others, where one is out for good"
        psql(url, "ALTER PUBLICATION orders SET (publish = 'insert')")
        look()
        psql(url, less)
        with pytest.raises(DataLossError, match="did not publish update for a while"):
            look()


def test_more_operations_and_partitions_by_their_root_are_no_loss(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with following(url, "insert") as (run, look):
        read_some(run, 2000)
        for option in ("publish = 'insert, delete'", "publish_via_partition_root = true", "publish = 'insert'"):
            psql(url, f"ALTER PUBLICATION orders SET ({option})")
            look()
        psql(url, "ALTER PUBLICATION orders SET (publish = 'insert, delete')")
        with pytest.raises(DataLossError, match="did not publish delete for a while"):
            look()
    assert not altered(caplog)


def test_a_partitioned_table_that_was_not_published_by_its_root_for_a_while_is_data_loss(url: str) -> None:
    psql(
        url,
        "CREATE TABLE public.parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE public.parted_0 PARTITION OF public.parted DEFAULT",
        "INSERT INTO public.parted VALUES (1)",
        "CREATE PUBLICATION parted FOR TABLE public.parted WITH (publish_via_partition_root = true)",
    )
    now = [0.0]
    source = ChangesSource(url, tables=["public.parted"], publication="parted", slot=SLOT)
    try:
        with EmbeddedRun(source, clock=lambda: now[0], discovery_interval_s=1.0) as run:
            read_some(run, 1)
            run.poll(0.1)
            psql(url, "ALTER PUBLICATION parted SET (publish_via_partition_root = false)")
            now[0] += 5.0
            run.poll(0.1)
            psql(url, "ALTER PUBLICATION parted SET (publish_via_partition_root = true)")
            now[0] += 5.0
            with pytest.raises(DataLossError, match=r"public.parted was out of publication parted for a while"):
                run.poll(0.1)
    finally:
        psql(url, "DROP PUBLICATION parted", "DROP TABLE public.parted")


def test_changes_that_were_left_out_while_the_job_was_down_are_data_loss(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where a start has seen it. Else it is a warning, once."""
    with following(url) as (run, _):
        read_some(run, 2000)
        run.poll(0.1)
        state = run.checkpoint()
    out, back = (f"ALTER PUBLICATION orders SET (publish = 'insert{more}')" for more in ("", ", update, delete, truncate"))
    for number, statements in enumerate([(out, back), (), (out,)]):
        psql(url, *statements, f"INSERT INTO public.orders VALUES ({9000 + number}, 'p', 'read')")
        with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state) as run:
            read_some(run, 1)
            state = run.checkpoint()
        assert altered(caplog) == 1
    psql(url, back)
    with pytest.raises(DataLossError, match="did not publish delete, truncate, update for a while"):
        EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state)


def test_a_publication_of_another_owner_and_a_checkpoint_without_options_continue(url: str) -> None:
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        read_some(run, 3000)
        run.poll(0.1)
        state = run.checkpoint()
    serializer = CheckpointSerializer("postgresql-changes", ChangesSplitSerializer())
    checkpoint = serializer.deserialize(state)
    older = replace(
        checkpoint, splits=tuple(replace(each, split=replace(each.split, options=None)) for each in checkpoint.splits)
    )
    psql(url, "CREATE ROLE another_owner SUPERUSER", "ALTER PUBLICATION orders OWNER TO another_owner")
    try:
        for number, stored in enumerate((state, serializer.serialize(older))):
            psql(url, f"INSERT INTO public.orders VALUES ({9000 + number}, 'p', 'read')")
            with EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=stored) as run:
                read_some(run, 1 + number)
                assert b'"options":["orders","another_owner",' in run.checkpoint()
    finally:
        psql(url, "ALTER PUBLICATION orders OWNER TO CURRENT_USER", "DROP ROLE another_owner")


@pytest.mark.parametrize("of_what", ["TABLE public.orders WHERE (id > 5)", "ALL TABLES", "TABLES IN SCHEMA public"])
def test_another_publication_is_refused_by_the_name_of_the_one_that_was_read(url: str, of_what: str) -> None:
    """It was data loss, as if the table had been taken out of the new one."""
    if "WHERE" in of_what or "SCHEMA" in of_what:
        _with_filters(url)
    psql(url, f"CREATE PUBLICATION others FOR {of_what}")
    try:
        for had, has in (("orders", "others"), ("others", "orders")):
            drop_slots(url)
            source = partial(ChangesSource, url, tables=[TABLE], slot=SLOT)
            with EmbeddedRun(source(publication=had), clock=time.monotonic) as run:
                read_some(run, 2990)
                run.poll(0.1)
                state = run.checkpoint()
            said = f"read table public.orders by publication {had}, and by {has} .*: set publication back"
            with pytest.raises(UsageError, match=said):
                EmbeddedRun(source(publication=has), clock=time.monotonic, checkpoint=state)
    finally:
        psql(url, "DROP PUBLICATION others")


@pytest.mark.parametrize("now", ["only", "never"])
def test_another_kind_of_snapshot_does_not_continue_a_checkpoint(url: str, now: Snapshot) -> None:
    """It was ignored: the log was read on, for ever."""
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        state_of_chunks = run.checkpoint()
        run.checkpoint_completed()
        read_some(run, 3000)
        run.poll(0.1)
        state = run.checkpoint()
    said = f"of a job with snapshot='initial', and its source has snapshot='{now}' now"
    with pytest.raises(StateError, match=said):
        EmbeddedRun(source_of(url, snapshot=now), clock=time.monotonic, checkpoint=state)
    with (
        pytest.raises(StateError, match=said),
        EmbeddedRun(source_of(url, snapshot=now), clock=time.monotonic, checkpoint=state_of_chunks) as run,
    ):
        read_some(run, 1 if now == "never" else 3001)


def test_changes_alone_continue_behind_another_source(url: str) -> None:
    """Regression: the job failed at each start: the discovery of a `Hybrid` asked it for no stage."""
    rows = source_of(url, snapshot="only")
    source = Hybrid(rows, then=ChangesSource(url, tables=[TABLE], publication="orders", slot=SLOT + "_log", snapshot="never"))
    with EmbeddedRun(source, clock=time.monotonic) as run:
        read_some(run, 3000)
        run.poll(0.1)
        state = run.checkpoint()
        run.checkpoint_completed()
    psql(url, "UPDATE public.orders SET value = 'new' WHERE id = 1")
    with EmbeddedRun(source, clock=time.monotonic, checkpoint=state) as run:
        assert [row["value"] for row in read_some(run, 1)] == ["new"]


def test_a_log_that_was_read_without_rows_is_not_continued_with_them(url: str) -> None:
    """They never came."""
    with EmbeddedRun(source_of(url, snapshot="never"), clock=time.monotonic) as run:
        state = run.checkpoint()
    with pytest.raises(StateError, match="with snapshot='never', and its source has snapshot='initial' now"):
        EmbeddedRun(source_of(url), clock=time.monotonic, checkpoint=state)


def test_a_table_that_another_takes_the_place_of_is_said(url: str, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    with EmbeddedRun(source_of(url), clock=lambda: now[0], discovery_interval_s=1.0) as run:
        read_some(run, 3000)
        run.poll(0.1)
        psql(
            url,
            "CREATE TABLE public.new (LIKE public.orders INCLUDING ALL)",
            "ALTER TABLE public.orders RENAME TO old",
            "ALTER TABLE public.new RENAME TO orders",
        )
        for _ in range(3):
            now[0] += 5.0
            run.poll(0.1)
    psql(url, "DROP TABLE public.orders", "ALTER TABLE public.old RENAME TO orders")
    assert [record.message for record in caplog.records if "named" in record.message] == [
        "public.orders is named public.old now: its changes are still read, and those of a table that takes its name are not"
    ]


@pytest.mark.parametrize("action", ["TRUNCATE public.orders", "ALTER TABLE public.orders ALTER COLUMN value TYPE varchar(9)"])
def test_a_table_that_is_rewritten_between_a_chunks_snapshot_and_its_rows_is_read_again(
    url: str, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """The snapshot has none of the rows then."""
    execute, actions = psycopg.Connection.execute, [action]

    def execute_and_act(self: psycopg.Connection, query: Any, *more: Any, **options: Any) -> Any:
        cursor = execute(self, query, *more, **options)
        in_chunk = self.info.transaction_status is TransactionStatus.INTRANS  # and not at the start
        if query == "SELECT pg_current_snapshot()::text" and in_chunk and actions:
            with psycopg.connect(url, autocommit=True) as other:
                execute(other, actions.pop())
        return cursor

    monkeypatch.setattr(psycopg.Connection, "execute", execute_and_act)
    rows = rows_alone(source_of(url, snapshot="only"))
    assert (len(rows), actions) == (0 if "TRUNCATE" in action else 3000, [])


def test_a_chunk_is_parsed_in_blocks_where_it_is_larger_than_arrow_reads_at_a_time(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psql(url, "UPDATE public.orders SET value = E'a,\\n\"b' || id", "UPDATE public.orders SET value = NULL WHERE id = 7")
    monkeypatch.setattr(snapshot, "_BLOCK_BYTES", 1000)
    rows = rows_alone(source_of(url, snapshot="only"))
    assert {row["id"]: row["value"] for row in rows} == {n: None if n == 7 else f'a,\n"b{n}' for n in range(3000)}


def oids_of(url: str, *tables: str) -> tuple[tuple[str, int], ...]:
    return tuple((table, psql(url, f"SELECT '{table}'::regclass::oid::bigint")[0][0]) for table in tables)


def test_a_table_that_is_renamed_at_the_seam_is_refused(url: str) -> None:
    """Changes that its chunks have would come twice."""
    copy = Copy()
    with EmbeddedRun(source_of(url), clock=time.monotonic) as run:
        while copy.seen < 3000:
            batch = run.poll(0.2)
            copy.apply([] if batch is None else batch.records.to_pylist())
        state = run.checkpoint()
    psql(url, "ALTER TABLE public.orders RENAME TO renamed")
    source = ChangesSource(url, tables=["renamed"], publication="orders", slot=SLOT)
    with (
        pytest.raises(UsageError, match=r"public.renamed was not named so when the snapshot read public.orders"),
        EmbeddedRun(source, clock=time.monotonic, checkpoint=state) as run,
    ):
        read_some(run, 1)
    psql(url, "ALTER TABLE public.renamed RENAME TO orders")


def test_tables_that_swap_their_names_are_refused(url: str) -> None:
    """Regression: each had the other's changes in its copy."""
    psql(url, "CREATE TABLE public.other (LIKE public.orders INCLUDING ALL)", "ALTER PUBLICATION orders ADD TABLE public.other")

    def source() -> ChangesSource:
        return ChangesSource(url, tables=["orders", "other"], publication="orders", slot=SLOT)

    with EmbeddedRun(source(), clock=time.monotonic) as run:
        read_some(run, 3000)
        state = state_of_log(run)
    swapped = ("orders RENAME TO swapped", "other RENAME TO orders", "swapped RENAME TO other")
    psql(url, *(f"ALTER TABLE public.{each}" for each in swapped))
    with (
        pytest.raises(DataLossError, match=r"table public.o\w+ was dropped and created again"),
        EmbeddedRun(source(), clock=time.monotonic, checkpoint=state) as run,
    ):
        read_some(run, 1)
    psql(url, *(f"ALTER TABLE public.{each}" for each in swapped), "DROP TABLE public.other")


def test_a_key_that_is_stored_out_of_line_is_read_from_the_old_row(url: str) -> None:
    psql(url, "DELETE FROM public.orders WHERE id > 0", "ALTER TABLE public.orders ALTER part SET STORAGE EXTERNAL")
    psql(url, "UPDATE public.orders SET part = repeat('x', 2600)")
    with EmbeddedRun(source_of(url, metadata=["_op", "_unchanged"]), clock=time.monotonic) as run:
        read_some(run, 1)
        psql(url, "UPDATE public.orders SET value = 'new'")
        (row,) = read_some(run, 1)
    assert (row["_op"], row["part"], row["value"], row["_unchanged"]) == ("update", "x" * 2600, "new", [])


def test_a_table_that_is_created_again_is_data_loss_and_one_that_is_not_published_is_said(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    again = "CREATE TABLE public.orders (id bigint, part text, value text, PRIMARY KEY (id, part))"
    now = [0.0]
    with EmbeddedRun(source_of(url), clock=lambda: now[0], discovery_interval_s=1.0) as run:
        read_some(run, 3000)
        run.poll(0.1)
        psql(url, "DROP TABLE public.orders", again, "INSERT INTO public.orders VALUES (1, 'p', 'new')")
        for _ in range(2):
            now[0] += 5.0
            run.poll(0.1)
        said = [record.message for record in caplog.records if "publication" in record.message]
        assert said == ["publication orders no longer has public.orders: no changes come"]
        psql(url, "ALTER PUBLICATION orders ADD TABLE public.orders", "INSERT INTO public.orders VALUES (2, 'p', 'new')")
        with pytest.raises(
            DataLossError, match=r"public.orders was dropped and created again: take a new snapshot: a new slot, no c"
        ):
            read_some(run, 1)


KEYS = {
    "uuid": "md5(n::text)::uuid",
    "numeric(12,3)": "n * 1.001",
    "timestamptz": "'2000-01-01'::timestamptz + n * interval '1.000001 s'",
    "bytea": "decode(lpad(to_hex(n * 7919 % 65536), 4, '0'), 'hex')",
    "character(6)": "lpad((n * 13 % 1000)::text, 4, 'x')",
    'text COLLATE "und-x-icu"': "chr(97 + n % 26) || CASE WHEN n % 2 = 0 THEN 'Ä' ELSE 'z' END || n",
    "double precision": "CASE WHEN n = 3 THEN 'NaN' WHEN n = 4 THEN 'Infinity' ELSE n / 7.0 END",
    "interval": "n * interval '1 hour 1 s'",
    "integer[]": "ARRAY[n % 10, n]",
    "bit varying(12)": "n::bit(12)",
    "boolean": "n % 2 = 0",
}


@pytest.mark.full
@pytest.mark.parametrize("kind", KEYS)
def test_chunks_are_of_any_key_and_the_server_says_which_one_a_change_is_in(url: str, kind: str) -> None:
    """A transaction that is open when the first chunks are read has changed half of the rows, in all of them."""
    if "icu" in kind and not psql(url, "SELECT 1 FROM pg_collation WHERE collname = 'und-x-icu'"):
        pytest.skip("this server was built without ICU")
    psql(
        url,
        f"CREATE TABLE public.keys (key {kind}, n int, v text, PRIMARY KEY (key, n))",
        f"INSERT INTO public.keys SELECT {KEYS[kind]}, n, 'old' FROM generate_series(1, 300) AS n",
        "ALTER PUBLICATION orders ADD TABLE public.keys",
    )
    source = ChangesSource(url, tables=["keys"], publication="orders", slot=SLOT, chunk_rows=25)
    copy: dict[int, str] = {}
    with psycopg.connect(url) as other, EmbeddedRun(source, clock=time.monotonic) as run:
        other.execute("UPDATE public.keys SET v = 'open' WHERE n % 2 = 0")
        for turn in range(14):
            for row in read_some(run, 1) if turn < 12 else []:
                assert (row["n"] in copy) == (row["_op"] == "update"), row
                copy[row["n"]] = row["v"]
            psql(url, f"UPDATE public.keys SET v = '{turn}' WHERE n % 2 = 1 AND n % 13 = {turn}")
            if turn == 6:
                other.commit()
        wanted = dict(psql(url, "SELECT n, v FROM public.keys"))
        until = time.monotonic() + 30.0
        while copy != wanted and time.monotonic() < until:
            batch = run.poll(0.1)
            copy |= {} if batch is None else {row["n"]: row["v"] for row in batch.records.to_pylist()}
    psql(url, "DROP TABLE public.keys")
    assert copy == wanted


_FOLDED = ("<", "<=", "=", ">=", ">")


@pytest.mark.parametrize(("around", "listed"), [("", "12345"), ("#", "12345"), ("", "134")])
def test_keys_of_a_type_of_an_extension_are_ordered_by_its_own_operators(url: str, around: str, listed: str) -> None:
    """Regression: as by citext: those of text, to which it is cast, order `C` ahead of `a`; hstore's have other names.

    An operator class may lack some.
    """
    made = "LANGUAGE internal IMMUTABLE STRICT"
    psql(
        url,
        "CREATE SCHEMA ext",
        "CREATE TYPE ext.folded",
        f"CREATE FUNCTION ext.read(cstring) RETURNS ext.folded AS 'textin' {made}",
        f"CREATE FUNCTION ext.shown(ext.folded) RETURNS cstring AS 'textout' {made}",
        "CREATE TYPE ext.folded (INPUT = ext.read, OUTPUT = ext.shown, INTERNALLENGTH = VARIABLE)",
        "CREATE CAST (ext.folded AS text) WITHOUT FUNCTION AS IMPLICIT",
        "CREATE FUNCTION ext.order(ext.folded, ext.folded) RETURNS int LANGUAGE sql IMMUTABLE STRICT AS "
        '\'SELECT sign(bttextcmp(lower($1) COLLATE "C", lower($2) COLLATE "C"))::int\'',
        *(
            f"CREATE FUNCTION ext.f{at}(ext.folded, ext.folded) RETURNS bool LANGUAGE sql IMMUTABLE STRICT AS "
            f"'SELECT ext.order($1, $2) {sign} 0'"
            for at, sign in enumerate(_FOLDED)
        ),
        *(
            f"CREATE OPERATOR ext.{around}{sign}{around} (LEFTARG = ext.folded, RIGHTARG = ext.folded, PROCEDURE = ext.f{at})"
            for at, sign in enumerate(_FOLDED)
        ),
        "CREATE OPERATOR CLASS ext.folded DEFAULT FOR TYPE ext.folded USING btree AS "
        "FUNCTION 1 ext.order(ext.folded, ext.folded), "
        + ", ".join(f"OPERATOR {at} ext.{around}{_FOLDED[int(at) - 1]}{around}" for at in listed),
        "CREATE TABLE ext.keys (n int, key ext.folded, PRIMARY KEY (n, key))",
        "CREATE TABLE ext.one (key ext.folded PRIMARY KEY)",
        "INSERT INTO ext.one VALUES ('a'), ('b'), ('C'), ('d'), ('E'), ('f'), ('G'), ('h')",
        "INSERT INTO ext.keys SELECT n, key FROM ext.one, generate_series(1, 2) AS n",
        "ALTER PUBLICATION orders ADD TABLE ext.keys, ext.one",
    )
    for table, count in (("ext.one", 8), ("ext.keys", 16)):
        found = rows_alone(ChangesSource(url, tables=[table], publication="orders", slot=SLOT, snapshot="only", chunk_rows=2))
        assert len({(row.get("n"), row["key"]) for row in found}) == len(found) == count
    psql(url, "DROP SCHEMA ext CASCADE")


@pytest.mark.parametrize("key", ["whole", "whole_of_whole"])
def test_keys_of_a_domain_over_an_enum_are_ordered_as_the_enum(url: str, key: str) -> None:
    """Regression: the server finds no operators of such a domain."""
    psql(
        url,
        "CREATE TYPE public.mood AS ENUM ('z', 'a', 'm', 'b')",
        "CREATE DOMAIN public.whole AS public.mood",
        "CREATE DOMAIN public.whole_of_whole AS public.whole",
        f"CREATE TABLE public.moods (key public.{key} PRIMARY KEY)",
        "INSERT INTO public.moods VALUES ('b'), ('a'), ('z'), ('m')",
        "ALTER PUBLICATION orders ADD TABLE public.moods",
    )
    source = ChangesSource(url, tables=["moods"], publication="orders", slot=SLOT, snapshot="only", chunk_rows=1)
    found = rows_alone(source)
    psql(url, "DROP TABLE public.moods", "DROP TYPE public.mood CASCADE")
    assert sorted(row["key"] for row in found) == ["a", "b", "m", "z"]


@pytest.mark.parametrize("snapshot", ["initial", "only"])
def test_a_column_that_is_renamed_where_one_is_dropped_in_mid_snapshot_is_refused(url: str, snapshot: Snapshot) -> None:
    """Regression: a checksum of all names did not tell them apart, and rows had the values of another column."""
    psql(url, "ALTER TABLE public.orders ADD more text DEFAULT 'more'")
    with EmbeddedRun(source_of(url, chunk_rows=1000, snapshot=snapshot), clock=time.monotonic) as run:
        read_some(run, 1000)
        state = run.checkpoint()
        run.checkpoint_completed()
    psql(url, "ALTER TABLE public.orders DROP value", "ALTER TABLE public.orders RENAME more TO value")

    def read_on() -> None:
        source = source_of(url, chunk_rows=1000, snapshot=snapshot)
        with EmbeddedRun(source, clock=time.monotonic, checkpoint=state) as run:
            read_some(run, 2000)
            run.checkpoint()
            run.checkpoint_completed()

    with pytest.raises(UsageError, match=r"was renamed \(more is value now\)"):
        read_on()


def test_names_that_chunks_are_read_by_are_kept_once(url: str) -> None:
    """Regression: each chunk behind a dropped column had them, and a checkpoint was twenty times as large."""
    psql(url, "ALTER TABLE public.orders ADD more text")
    with EmbeddedRun(source_of(url, chunk_rows=100), clock=time.monotonic) as run:
        read_some(run, 100)
        state = run.checkpoint()
    psql(url, "ALTER TABLE public.orders DROP more")
    with EmbeddedRun(source_of(url, chunk_rows=100), clock=time.monotonic, checkpoint=state) as run:
        read_some(run, 2000)
        assert run.checkpoint().count(b'"names"') == 2


def test_odd_names_and_values_are_read_as_they_are(url: str) -> None:
    """Names with quotes, dots, percent signs and capitals; keys that are compared by a collation."""
    values = ["", "a", "B", "ä", "a b", 'q"uote', "back\\slash", "tab\t", "new\nline", "\u202eright", "NULL", "\\.", "%s"]
    kind, named = '"My Schema"."in%d {}"', '("se%l""ect" text COLLATE "C", "B" text, '
    enum = f"CREATE TYPE {kind} AS ENUM ('%s')"
    table = f'CREATE TABLE "My Schema"."we""ird.%t" {named} e {kind} DEFAULT \'%s\', PRIMARY KEY ("se%l""ect", e))'
    psql(url, 'CREATE SCHEMA "My Schema"', enum, table, 'ALTER PUBLICATION orders ADD TABLE "My Schema"."we""ird.%t"')
    with psycopg.connect(url, autocommit=True) as connection:
        insert = 'INSERT INTO "My Schema"."we""ird.%%t" VALUES (%s, %s)'
        connection.cursor().executemany(insert, [(value, value) for value in values])
        source = ChangesSource(url, tables=['"My Schema"."we""ird.%t"'], publication="orders", slot=SLOT, chunk_rows=2)
        with EmbeddedRun(source, clock=time.monotonic) as run:
            found = read_some(run, 2)
            connection.execute('UPDATE "My Schema"."we""ird.%t" SET "B" = "B" || \'!\'')
            found += read_some(run, len(values) - 2)
            found += read_some(run, 2)
        rows = connection.execute('SELECT "se%l""ect", "B" FROM "My Schema"."we""ird.%t"').fetchall()
    psql(url, 'DROP SCHEMA "My Schema" CASCADE')
    assert len([row for row in found if row["_op"] == "snapshot"]) == len(values)
    assert {row['se%l"ect']: row["B"] for row in found} == dict(rows)


def read_some(run: EmbeddedRun[Any], count: int) -> list[dict[str, Any]]:
    """The next rows, `count` or more."""
    found: list[dict[str, Any]] = []
    until = time.monotonic() + 30.0
    while len(found) < count and time.monotonic() < until:
        batch = run.poll(0.2)
        found += [] if batch is None else batch.records.to_pylist()
    return found
