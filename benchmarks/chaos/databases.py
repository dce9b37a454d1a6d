"""A table as a job's output: watched from a thread, isolated from its writers, and judged as a whole.

A row gets its place, the next number of a sequence, when it is written, and becomes visible when its transaction is committed.
So places become visible in any order, late or never: the watcher knows which ones it has not seen yet, all of those below the
last one too, and asks for them each time.

Nothing of headrace is used for what is counted.
"""

from __future__ import annotations

import queue
import threading
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from benchmarks.chaos.oracle import VALUE_BYTES, OutputCheck, judged
from benchmarks.restore.oracle import Log
from benchmarks.restore.records import identify
from headrace.enumerator.errors import RetriableError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.databases import Database, mariadb, postgresql

LOOK_S = 0.05
END_S = 10.0
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Product:
    """What the databases say differently, in their SQL. `me`: this session; `sessions`: all of clients; `end`: one of them."""

    start: Callable[[], AbstractContextManager[Database]]
    driver: str
    columns: str
    me: str
    sessions: str
    end: str
    prepared: str


PRODUCTS: Mapping[str, Product] = {
    "embedded-postgresql": Product(
        postgresql,
        "postgresql+psycopg",
        "place BIGSERIAL PRIMARY KEY, key BYTEA, value BYTEA",
        "SELECT pg_backend_pid()",
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'",
        "SELECT pg_terminate_backend({})",
        "SELECT gid FROM pg_prepared_xacts",
    ),
    "embedded-mariadb": Product(
        mariadb,
        "mariadb+pymysql",
        "place BIGINT AUTO_INCREMENT PRIMARY KEY, `key` VARBINARY(100), value VARBINARY(1000)",
        "SELECT connection_id()",
        "SELECT id FROM information_schema.processlist WHERE user = substring_index(current_user(), '@', 1)",
        "KILL {}",
        "XA RECOVER",
    ),
}
"""By the system that writes there."""


class Places:
    """Which places of a sequence have not been seen: ranges of them, ascending, the last of which has no end."""

    def __init__(self) -> None:
        """All."""
        self._unseen = [(1, LARGEST)]

    @property
    def condition(self) -> str:
        """SQL: that a row is at one of them."""
        return " OR ".join(f"place BETWEEN {first} AND {last}" for first, last in self._unseen)

    def see(self, place: int) -> None:
        """One that had not been seen."""
        at = bisect(self._unseen, (place, LARGEST)) - 1
        first, last = self._unseen[at]
        self._unseen[at : at + 1] = [part for part in ((first, place - 1), (place + 1, last)) if part[0] <= part[1]]


class TableOutput:
    """its own table. `cut` may be called from any thread; what the database suffers is ridden out."""

    def __init__(self, database: Database, product: Product, name: str) -> None:
        """Make the table, and watch it from its first row."""
        self.database, self.name = database, name
        self._product = product
        url = sa.make_url(database.url).set(drivername=product.driver)
        self._engine = sa.create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with self._engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE TABLE {name} ({product.columns})")
        self._places = Places()
        self._session: int | None = None
        self._connecting = threading.Lock()
        self._found: queue.SimpleQueue[Sequence[bytes]] = queue.SimpleQueue()
        self._failed: list[Exception] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="table", daemon=True)
        self._thread.start()

    def look(self) -> list[bytes]:
        """What the watcher has found; nothing while the database is away. Raises RuntimeError if the watcher has failed."""
        if self._failed:
            raise RuntimeError("the table is not watched any more") from self._failed[0]
        values: list[bytes] = []
        with suppress(queue.Empty):
            while True:
                values += self._found.get_nowait()
        return values

    def outcome(self, produced: Sequence[int], output_check: OutputCheck) -> Mapping[str, int]:
        """By the oracle of the restores. What is not visible is lost: none of it is instructed to be partially committed.

        `prepared`: transactions that are still unresolved, though the job has caught up.
        """
        with self._engine.connect() as connection:
            places, values = self._rows(connection, "TRUE")
            prepared = connection.exec_driver_sql(self._product.prepared).all()
        log = {0: Log(np.array(places, np.int64), identify(values, VALUE_BYTES).ids)} if places else {}
        return {**judged(produced, output_check, log, dict), "prepared": len(prepared)}

    def cut(self) -> int:
        """Let the server end all sessions but the harness's, and wait until they are gone; how many there were.

        Raises RetriableError when the database cannot be asked.
        """
        try:
            return self._cut()
        except DBAPIError as error:
            raise RetriableError(str(error)) from error

    def _cut(self) -> int:
        with self._engine.connect() as connection:
            me = self._me(connection)
            with self._connecting:  # the watcher has no session of which it does not know
                ended = self._sessions(connection) - {self._session, me}
            for session in ended:
                with suppress(DBAPIError):  # it may have ended by itself
                    connection.exec_driver_sql(self._product.end.format(session))

            def check() -> None:
                if left := ended & self._sessions(connection):
                    raise RetriableError(f"sessions {left} are there")

            wait_until(check, "ending sessions", END_S)
        return len(ended)

    def close(self) -> None:
        """Stop watching. A watcher whose database is frozen ends with that."""
        self._ended.set()
        self._thread.join(END_S)

    def _watch(self) -> None:
        try:
            while not self._ended.wait(LOOK_S):
                with suppress(DBAPIError), ExitStack() as stack:
                    with self._connecting:
                        connection = stack.enter_context(self._engine.connect())
                        self._session = self._me(connection)
                    self._follow(connection)
        except Exception as error:  # noqa: BLE001 - reported by the next look, in the thread that can do something about it
            self._failed.append(error)

    def _follow(self, connection: Connection) -> None:
        while not self._ended.wait(LOOK_S):
            places, values = self._rows(connection, self._places.condition)
            for place in places:
                self._places.see(place)
            if values:
                self._found.put(values)

    def _rows(self, connection: Connection, condition: str) -> tuple[list[int], list[bytes]]:
        asked = f"SELECT place, value FROM {self.name} WHERE {condition} ORDER BY place"  # noqa: S608 - all of it is ours
        rows = connection.exec_driver_sql(asked).all()
        return [row.place for row in rows], [row.value or b"" for row in rows]

    def _me(self, connection: Connection) -> int:
        return int(connection.exec_driver_sql(self._product.me).scalar_one())

    def _sessions(self, connection: Connection) -> set[int]:
        return set(connection.exec_driver_sql(self._product.sessions).scalars())


@contextmanager
def table(system: str, name: str) -> Iterator[TableOutput]:
    """One in a database that runs as long as the context."""
    product = PRODUCTS[system]
    with product.start() as database:
        yield TableOutput(database, product, name)
