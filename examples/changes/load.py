"""A bank whose clients transfer money: concurrent transactions, some of which are undone, or lost with the server."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self

import psycopg
from psycopg import errors

TABLES = {
    "accounts": {"branch": "integer", "account": "bigint", "balance": "numeric(12, 2) NOT NULL", "note": "text"},
    "tellers": {"name": "text", "balance": "numeric(12, 2) NOT NULL", "seen_at": "timestamptz"},
    "transfers": {"id": "uuid", "account": "bigint", "amount": "numeric(12, 2)", "tags": "text[]", "details": "jsonb"},
}
KEYS = {"accounts": "branch, account", "tellers": "name", "transfers": "id"}
BRANCHES, TELLERS = 10, 100
PAUSE_S = 0.02
logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of rollbacks that the server's death prevents
_UNDONE = (errors.DeadlockDetected, errors.UniqueViolation)

_PAID = "UPDATE accounts SET balance = balance + %(amount)s WHERE branch = %(branch)s AND account = %(account)s"
_TAKEN = "UPDATE tellers SET balance = balance - %(amount)s, seen_at = clock_timestamp() WHERE name = %(teller)s"
_NOTED = (
    "INSERT INTO transfers VALUES (gen_random_uuid(), %(account)s, %(amount)s, ARRAY[%(teller)s, NULL], "
    "jsonb_build_object('branch', %(branch)s, 'note', 'it''s \"paid\"'))"
)
_MOVED = "UPDATE accounts SET branch = (branch + 1) %% {branches} WHERE branch = %(branch)s AND account = %(account)s"
_OPENED = "INSERT INTO accounts VALUES (%(branch)s, {accounts} + %(new)s, 0, NULL)"
_CLOSED = "DELETE FROM accounts WHERE branch = %(branch)s AND account = %(account)s"
_FORGOTTEN = "DELETE FROM transfers WHERE id IN (SELECT id FROM transfers LIMIT 3)"


def prepare(url: str, accounts: int) -> None:
    """Make the tables, with their first rows, and the publication."""
    with psycopg.connect(url, autocommit=True) as connection:
        for table, columns in TABLES.items():
            listed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            connection.execute(f"CREATE TABLE {table} ({listed}, PRIMARY KEY ({KEYS[table]}))")
        connection.execute(
            "INSERT INTO accounts SELECT n %% %s, n, 1000, 'opened' FROM generate_series(1, %s) AS n", [BRANCHES, accounts]
        )
        connection.execute("INSERT INTO tellers SELECT 'teller ' || n, 0, NULL FROM generate_series(1, %s) AS n", [TELLERS])
        connection.execute(f"CREATE PUBLICATION bank FOR TABLE {', '.join(TABLES)}")


class Load:
    """Clients, each with its own connection and thread, until the context is left or `stop` is called."""

    def __init__(self, url: str, accounts: int, clients: int) -> None:
        """Started with the context."""
        self._url, self._accounts = url, accounts
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(clients)]
        self.counts: Counter[str] = Counter()
        """Transactions: `committed`, `rolled back`, and `interrupted` by kills, of which some may be committed."""

    def __enter__(self) -> Self:
        """Start them."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop them."""
        self.stop()

    def stop(self) -> None:
        """Returns when no transaction is open."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        moves = random.Random(number)  # noqa: S311 - a load that can be repeated
        while not self._ended.is_set():
            try:
                with psycopg.connect(self._url, autocommit=True, connect_timeout=5) as connection:
                    while not self._ended.is_set():
                        self._count(self._transfer(connection, moves))
                        time.sleep(PAUSE_S)
            except (psycopg.OperationalError, psycopg.Rollback):  # of a rollback when the server was killed, too
                self._count("interrupted")
                time.sleep(0.2)

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.counts[outcome] += 1

    def _transfer(self, connection: psycopg.Connection, moves: random.Random) -> str:
        """One transaction; how it has ended."""
        account = moves.randrange(1, self._accounts + 1)
        given = {
            "account": account,
            "branch": account % BRANCHES if moves.random() < 0.8 else moves.randrange(BRANCHES),
            "teller": f"teller {moves.randrange(TELLERS) + 1}",
            "amount": moves.randrange(-10_000, 10_000) / 100,
            "new": moves.randrange(self._accounts),
        }
        rare = moves.choice((_MOVED.format(branches=BRANCHES), _OPENED.format(accounts=self._accounts), _CLOSED, _FORGOTTEN))
        is_undone = moves.random() < 0.1
        try:
            with connection.transaction() as whole:
                for statement in (_PAID, _TAKEN, _NOTED):
                    connection.execute(statement, given)
                with connection.transaction() as savepoint:
                    connection.execute(rare, given)
                    if moves.random() < 0.3:
                        raise psycopg.Rollback(savepoint)
                if is_undone:
                    raise psycopg.Rollback(whole)
        except _UNDONE:
            is_undone = True
        return "rolled back" if is_undone else "committed"
