"""Injected bugs of PostgreSQL's changes: columns that were altered are not noticed, keys that move are not deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from headrace.connectors.postgresql import columns, discovery, log_reader, rows, snapshot, source

Injected = Callable[[], AbstractContextManager[Any]]


def columns_behind_chunks_are_not_looked_at() -> AbstractContextManager[Any]:
    return patch.object(source, "check_unaltered", lambda *_: None)


@contextmanager
def names_are_not_looked_at() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (discovery, log_reader, snapshot):
            stack.enter_context(patch.object(module, "check_names", lambda *_: None))
        yield


@contextmanager
def names_that_chunks_were_read_by_are_forgotten() -> Iterator[None]:
    with patch.object(source, "check_sum", lambda *_: None), patch.object(discovery, "check_all", lambda _, __, now: now):
        yield


@contextmanager
def a_column_that_was_generated_is_read() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (columns, log_reader):
            stack.enter_context(patch.object(module, "check_read", lambda *_: None))
        yield


def a_key_that_moves_is_updated() -> AbstractContextManager[Any]:
    return patch.object(rows, "_moved", lambda *_: pa.array([], pa.int64()))


OF_CHANGES: tuple[Injected, ...] = (
    columns_behind_chunks_are_not_looked_at,
    names_are_not_looked_at,
    names_that_chunks_were_read_by_are_forgotten,
    a_column_that_was_generated_is_read,
    a_key_that_moves_is_updated,
)
