"""Injected bugs of sinks into tables: what is known of a table is old, and a recovery knows nothing of what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from headrace.connectors.sql import commits, sink, table, table_sink

Injected = Callable[[], AbstractContextManager[Any]]


def the_table_is_looked_at_once() -> AbstractContextManager[Any]:
    """Of each name."""
    look = table.read_table
    known: dict[str, Any] = {}

    def read(connection: Any, name: str, product: Any) -> Any:
        if name not in known:
            known[name] = look(connection, name, product)
        return known[name]

    return patch.object(table_sink, "read_table", read)


def a_recovery_finds_no_list() -> AbstractContextManager[Any]:
    taken = commits.CommitStore.take_over

    def take_over(store: Any, job: str, driver: str) -> None:
        taken(store, job, driver)

    return patch.object(commits.CommitStore, "take_over", take_over)


def a_recovery_aborts_what_is_recorded() -> AbstractContextManager[Any]:
    clean_up = sink.SqlCommitter.clean_up

    def all_of_it(committer: Any, keep: Collection[Any]) -> None:
        clean_up(committer, ())

    return patch.object(sink.SqlCommitter, "clean_up", all_of_it)


OF_SQL_HISTORY: tuple[tuple[str, Injected], ...] = (
    ("mariadb", the_table_is_looked_at_once),
    ("mariadb", a_recovery_finds_no_list),
    ("postgresql", a_recovery_aborts_what_is_recorded),
)
