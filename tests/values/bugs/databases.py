"""Injected bugs of upserts: rows of other keys are overwritten, columns that rows do not have lose their values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from headrace.connectors.sql import arrow, table, upsert

Injected = Callable[[], AbstractContextManager[Any]]


def _other_statement(old: str, new: str) -> AbstractContextManager[Any]:
    made = upsert._upsert
    return patch.object(upsert, "_upsert", lambda *arguments: made(*arguments).split(old)[0] + new)


def other_unique_keys_are_not_looked_at() -> AbstractContextManager[Any]:
    return patch.object(upsert, "check_other_keys", lambda *_: None)


def the_first_row_of_a_key_stays() -> AbstractContextManager[Any]:
    return _other_statement("DO UPDATE", "DO NOTHING")


def a_row_is_replaced_whole() -> AbstractContextManager[Any]:
    made = upsert._upsert
    return patch.object(
        upsert, "_upsert", lambda *arguments: made(*arguments).split(" ON DUPLICATE")[0].replace("INSERT INTO", "REPLACE INTO")
    )


def the_last_column_is_not_changed() -> AbstractContextManager[Any]:
    return patch.object(upsert, "_upsert", _without_last(upsert._upsert))


def _without_last(made: Callable[..., str]) -> Callable[..., str]:
    return lambda *arguments: made(*arguments).rpartition(", ")[0]


def decimals_of_a_second_are_cut() -> AbstractContextManager[Any]:
    return patch.object(arrow, "_check_digits", lambda *_: None)


def spaces_at_the_end_are_not_kept() -> AbstractContextManager[Any]:
    return patch.object(table, "rule_of", lambda *_, **__: None)


OF_UPSERTS: tuple[tuple[str, Injected], ...] = (
    ("mariadb", other_unique_keys_are_not_looked_at),
    ("postgresql", the_first_row_of_a_key_stays),
    ("mariadb", a_row_is_replaced_whole),
    ("postgresql", the_last_column_is_not_changed),
    ("mariadb", decimals_of_a_second_are_cut),
    ("postgresql", spaces_at_the_end_are_not_kept),
)
