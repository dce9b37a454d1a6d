"""A search for rows that jobs into a table lose, double or change while others alter it: a table like it is the oracle.

In the history of a table two jobs write into it, exactly once or by key. Their drivers and connections are killed, their
options are edited, and others alter the table, write into it, lock it and take away rights. A second table, the mirror, is
altered likewise, and has each row by a plain statement. What is refused has a reason in the plan; once that is undone, the
same rows go through, once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt
from headrace.connectors.sql.url import driver_engine
from headrace.enumerator.errors import HeadraceError
from headrace.sql import SqlSink, UpsertSink
from tests.helpers.databases import mariadb, postgresql
from tests.helpers.sql_rig import Crash
from tests.values.budget import by_number, explore, find, noted
from tests.values.bugs import sql_history as bugs
from tests.values.sql_mirror import ROLE, START, Pair, Stopped, key_of
from tests.values.sql_plans import LITE, MY, PG, Epoch, Plan, Row, Step, plan_of

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Unknown schema content"),  # SQLAlchemy does not read a quoted name
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # sessions that are killed in mid-connect
]

COUNTS: Counter[str] = Counter()
TABLES = 60
"""Examples of the default budget."""
PRODUCTS = (PG, MY, LITE)


@dataclass(frozen=True)
class Server:
    """A database. `sink_url`: by which the sinks come. `kill` and `restart`: None where there is no server."""

    url: str
    sink_url: str
    kill: Callable[[], None] | None = None
    restart: Callable[[], None] = lambda: None


@dataclass
class Job:
    name: str
    epoch: int = 0
    driver: JobCommitter[Any] | None = None


@dataclass
class Try:
    """What has happened while an epoch is written."""

    epoch: Epoch
    pending: Step | None
    is_disturbed: bool = False


class History:
    """A table, and the jobs that write to it."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self.server, self.plan = server, plan
        self.pair = Pair(server.url, plan)
        self.jobs = [Job(f"h{self.pair.number}-{at}") for at in range(2)]
        self.now: Try | None = None

    def play(self) -> None:
        with suppress(Stopped):
            for step, arguments in self.plan.steps:
                if step == "epoch":
                    self.epoch(*arguments)
                else:
                    self.act((step, arguments))
                COUNTS["cells"] += self.pair.compare()
        COUNTS["tables"] += 1

    def act(self, step: Step) -> None:
        """Locks are waited for where no job holds one for long."""
        pair = self.pair
        pair.be_patient(2 if self.now is None else 0)
        match step:
            case "alter", (what, _) if self.has_prepared() and (what == "default" or self.plan.product == MY):
                pass  # the rows have the old default already; MariaDB may not wait for them
            case "alter", (what, place):
                COUNTS["alterations"] += pair.alter(what, place)
            case "hand", (what, row):
                pair.hand(what, row)
            case "parent", (key,):
                with suppress(DBAPIError):
                    pair.execute(f"DELETE FROM {pair.parent} WHERE id = {key}")
            case "revoke", _ if pair.is_pg:
                pair.revoke()
            case "lock", _:
                pair.lock()
            case "cut", _:
                pair.cut()
            case "restart", _ if self.server.kill is not None:
                self.server.kill()
                self.server.restart()
                pair.connect()
            case "crash", _ if self.now is not None:
                raise Crash
        if self.now is not None and step[0] in ("lock", "cut", "restart"):
            self.now.is_disturbed = True

    def has_prepared(self) -> bool:
        return self.now is not None and self.now.epoch.moment not in ("started", "written")

    def sink(self, epoch: Epoch) -> Any:
        table = f"{self.plan.schema}.{self.pair.name}" if self.plan.schema else self.pair.name
        if epoch.form % 2 and not self.plan.schema:
            table = {PG: "public.", MY: "warehouse.", LITE: "main."}[self.plan.product] + table
        if epoch.mode == "append":
            return SqlSink(self.server.sink_url, table, lock_timeout_s=0.3)
        key = key_of(self.plan, epoch)
        change = "_op" if epoch.mode == "changes" else None
        return UpsertSink(self.server.sink_url, table, key, change, lock_timeout_s=0.3)

    def batches(self, epoch: Epoch, rows: tuple[Row, ...]) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow has them: in other orders of columns, typed and cut otherwise; empty batches between them."""
        chance = Random(epoch.form)
        columns = {name: pa.array([row[name] for row in rows], self.plan.kind(name).arrow) for name in epoch.columns}
        if epoch.mode == "changes":
            columns["_op"] = pa.array([epoch.style.get(row["op"], epoch.style["delete"]) for row in rows])
        for name, column in columns.items():
            is_text = pa.types.is_string(column.type)
            if chance.random() < 0.2 and not pa.types.is_boolean(column.type):
                columns[name] = column.dictionary_encode()
            elif is_text and chance.random() < 0.4:
                columns[name] = column.cast(chance.choice([pa.large_string(), pa.string_view()]))
            elif pa.types.is_int32(column.type) and chance.random() < 0.3:
                columns[name] = column.cast(pa.int64())
        order = chance.sample([*columns], len(columns))
        whole = pa.record_batch({name: columns[name] for name in order})
        at = 0
        while at < len(rows):
            if chance.random() < 0.2:
                yield whole.slice(0, 0)
            count = chance.choice([1, 2, 9])
            yield whole.slice(at, count)
            at += count

    def moment(self, name: str) -> None:
        now = self.now
        if now is not None and now.pending is not None and now.epoch.moment == name:
            step, now.pending = now.pending, None
            self.act(step)

    def driver(self, job: Job, sink: Any) -> JobCommitter[Any]:
        """One that has recovered."""
        if job.driver is None:
            committer = sink.committer(job.name)

            def timed(call: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
                def timed_call(*arguments: Any) -> Any:
                    self.moment(before)
                    result = call(*arguments)
                    self.moment(after)
                    return result

                return timed_call

            for name, before, after in (
                ("fence", "fence", ""),
                ("check", "check", ""),
                ("record", "record", "recorded"),
                ("end", "end", "ended"),
                ("clean_up", "clean_up", ""),
            ):
                setattr(committer, name, timed(getattr(committer, name), before, after))
            job.driver = JobCommitter(job.name, committer)
            job.driver.recover()
        return job.driver

    def dismiss(self, job: Job) -> None:
        if job.driver is not None:
            job.driver.close()
        job.driver = None

    def write(self, now: Try) -> None:
        """Write and commit the epoch, as far as it is not; then it is in the mirror, too."""
        epoch, job = now.epoch, self.jobs[now.epoch.job]
        sink = self.sink(epoch)
        driver = self.driver(job, sink)
        if not is_recorded(driver, job):
            handles = []
            for task, rows in enumerate(epoch.rows):
                with sink.begin(Attempt(job.name, job.epoch, task, 0)) as transaction:
                    self.moment("started")
                    for batch in self.batches(epoch, rows):
                        transaction.write(batch)
                    self.moment("written")
                    handles.append(transaction.prepare())
                if epoch.mode != "append":
                    self.pair.write(epoch, rows)
                self.moment("prepared")
            driver.commit(job.epoch, tuple(handle for handle in handles if handle is not None))
        if epoch.mode == "append":
            self.pair.write(epoch, tuple(itertools.chain(*epoch.rows)))
        job.epoch += 1

    def epoch(self, epoch: Epoch) -> None:
        job = self.jobs[epoch.job]
        if epoch.is_restart:
            self.dismiss(job)
        epoch = replace(epoch, columns=tuple(name for name in epoch.columns if name in self.pair.given))
        late, first = self.late(job, epoch) if epoch.action[0] == "late" and any(epoch.rows) else None, job.epoch
        self.now = now = Try(epoch, epoch.action if epoch.moment else None)
        for _ in range(6):
            now.is_disturbed = False
            try:
                self.write(now)
                COUNTS.update({"epochs": 1, "rows": sum(map(len, epoch.rows))})
                break
            except Crash:
                COUNTS["crashes"] += 1
                self.dismiss(job)
            except HeadraceError as error:
                self.dismiss(job)
                COUNTS["refusals"] += 1
                if now.is_disturbed:
                    self.pair.unlock()
                elif not self.explained(now, error):
                    break
        else:
            raise AssertionError("six tries were not enough")
        self.now = None
        self.pair.unlock()
        if late is not None:
            transaction, old = late
            with transaction, closing(old):
                if job.epoch > first:
                    self.come_late(job, epoch, transaction, old)

    def late(self, job: Job, epoch: Epoch) -> tuple[Any, JobCommitter[Any]] | None:
        """A transaction of the epoch, and its driver: another one takes its place meanwhile."""
        try:
            old, transaction = self.driver(job, self.sink(epoch)), self.sink(epoch).begin(Attempt(job.name, job.epoch, 0, 1))
        except HeadraceError:
            return None
        job.driver = None
        return transaction, old

    def come_late(self, job: Job, epoch: Epoch, transaction: Any, old: JobCommitter[Any]) -> None:
        """Nothing of it may come into the table."""
        number = job.epoch - 1
        with suppress(HeadraceError):
            for batch in self.batches(epoch, next(filter(None, epoch.rows))):
                transaction.write(batch)
            handle = transaction.prepare()
            old.commit(number, (handle,))
            raise AssertionError("a driver that was replaced has committed")
        COUNTS["late"] += 1
        self.dismiss(job)
        with suppress(HeadraceError):
            self.driver(job, self.sink(epoch))

    def explained(self, now: Try, error: HeadraceError) -> bool:
        """Whether to try the rows again, as what explains the refusal is undone. False: the mirror refuses the rows, too."""
        epoch, job = now.epoch, self.jobs[now.epoch.job]
        now.pending = None
        reasons, is_edited = self.reasons(epoch), self.pair.is_revoked or epoch.key != "k"
        if self.is_recorded(job, epoch):
            return True
        if is_edited or self.pair.altered:
            assert reasons or self.refuses(epoch), f"nothing explains: {error!r}; altered: {[*self.pair.altered]}"
            self.pair.repair()
            now.epoch = replace(epoch, key="k")
            COUNTS["repairs"] += 1
            return True
        assert reasons or self.refuses(epoch), f"nothing explains: {error!r}"
        COUNTS["dropped"] += 1
        return False

    def is_recorded(self, job: Job, epoch: Epoch) -> bool:
        """Whether the job's rows are in the table for good; what is prepared of it otherwise is ended."""
        self.pair.grant()
        try:
            return is_recorded(self.driver(job, self.sink(replace(epoch, key="k"))), job)
        except HeadraceError as error:
            raise AssertionError(f"no recovery: {error!r}") from error

    def refuses(self, epoch: Epoch) -> bool:
        """Whether the database refuses the rows, by hand."""
        for rows in epoch.rows if epoch.mode != "append" else (tuple(itertools.chain(*epoch.rows)),):
            try:
                self.pair.write(epoch, rows)
            except DBAPIError:
                return True
        return False

    def reasons(self, epoch: Epoch) -> set[str]:
        """Why the epoch may be refused, though the database takes its rows."""
        found = {what for what, (ours, _) in self.pair.altered.items() if any(concerns(each, epoch) for each in ours.refuses)}
        is_by_key = epoch.mode != "append"
        if self.pair.is_revoked:
            found.add("revoked")
        is_unique = self.plan.is_unique_u and not self.pair.is_my and epoch.key == "u" and "u" in epoch.columns
        if is_by_key and epoch.key != "k" and not is_unique:
            found.add("key")
        if is_by_key and any(row[name] is None for rows in epoch.rows for row in rows for name in key_of(self.plan, epoch)):
            found.add("null in the key")
        if is_by_key and not self.plan.unique:
            found.add("no key")
        if is_by_key and self.pair.is_my and self.plan.is_unique_u and "u" in epoch.columns:
            found.add("another key")
        return found

    def close(self) -> None:
        for job in self.jobs:
            self.dismiss(job)
        self.pair.close()


def concerns(refused: str, epoch: Epoch) -> bool:
    match refused:
        case "upsert":
            return epoch.mode != "append"
        case _ if refused[0] == "-":
            return refused[1:] not in epoch.columns
    return refused in epoch.columns and (refused != "u" or epoch.mode != "append")


def is_recorded(driver: JobCommitter[Any], job: Job) -> bool:
    return driver.recorded_epoch is not None and driver.recorded_epoch >= job.epoch


_SET_T = f"{START} NEW.t := coalesce(NEW.n, 0) + 1; RETURN NEW; END"


@pytest.fixture(scope="module")
def servers(tmp_path_factory) -> Iterator[Callable[[str], Server]]:
    with ExitStack() as stack:

        def started(product: str) -> Server:
            if product == LITE:
                url = f"sqlite:///{tmp_path_factory.mktemp('history') / 'tables.db'}"
                return Server(url, url)
            database = stack.enter_context({PG: postgresql, MY: mariadb}[product]())
            sink_url = database.url
            if product == PG:
                prepare_postgresql(database.url)
                sink_url = database.url.replace("writer:", f"{ROLE}:")
            return Server(database.url, sink_url, database.kill, database.restart)

        yield cache(started)


def prepare_postgresql(url: str) -> None:
    engine = sa.create_engine(driver_engine(url, 5).url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in (
            "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
            f"CREATE FUNCTION set_t() RETURNS trigger AS $$ {_SET_T} $$ LANGUAGE plpgsql",
            f"CREATE ROLE {ROLE} LOGIN PASSWORD 'not-a-secret'",
            f"GRANT ALL ON SCHEMA public TO {ROLE}",
            'CREATE SCHEMA "S one"',
            f'GRANT USAGE ON SCHEMA "S one" TO {ROLE}',
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()


def check(server: Server, plan: Plan) -> None:
    with closing(History(server, plan)) as history, noted(lambda: repr(plan)):
        history.play()


def tables(server: Server, product: str) -> Callable[[], None]:
    return by_number(lambda number: check(server, plan_of(product, number)))


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_short_run_of_sql_history(servers, product):
    find(tables(servers(product), product), 3)


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_table_is_as_by_plain_statements(servers, product):
    server = servers(product)
    explore(lambda: tables(server, product), TABLES, f"sql history: {product}", COUNTS)


@pytest.mark.parametrize(("product", "bug"), bugs.OF_SQL_HISTORY)
def test_a_bug_of_sql_history_is_found(servers, product, bug):
    with bug(), pytest.raises(AssertionError):
        find(tables(servers(product), product), TABLES)
