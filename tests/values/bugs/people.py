"""Injected bugs of what people use: batches lost or given twice after an interruption, and rows without an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from headrace.connectors.base.guard import AllOrNothing
from headrace.enumerator import EmbeddedRun
from headrace.enumerator.errors import HeadraceError

Injected = Callable[[], AbstractContextManager[Any]]


def _always(name: str, value: object) -> AbstractContextManager[Any]:
    return patch.object(EmbeddedRun, name, property(lambda _: value, lambda *_: None), create=True)


def readers_are_kept_after_an_interruption() -> AbstractContextManager[Any]:
    return _always("_polling", None)


def readers_are_kept_after_an_error_of_theirs() -> AbstractContextManager[Any]:
    real = EmbeddedRun.poll

    def poll(self: Any, timeout: float) -> Any:
        try:
            return real(self, timeout)
        except HeadraceError:
            self._polling = None
            raise

    return patch.object(EmbeddedRun, "poll", poll)


def a_run_goes_on_whose_state_is_half_changed() -> AbstractContextManager[Any]:
    return _always("_is_deciding", False)


def a_checkpoint_lacks_the_last_batch() -> AbstractContextManager[Any]:
    real = EmbeddedRun.checkpoint

    def checkpoint(self: Any) -> bytes:
        handed, self._handed = self._handed, None
        try:
            return real(self)
        finally:
            self._handed = handed

    return patch.object(EmbeddedRun, "checkpoint", checkpoint)


def a_closed_run_reads_on() -> AbstractContextManager[Any]:
    return patch.object(EmbeddedRun, "close", lambda self: None)


def a_transaction_goes_on_after_an_error() -> AbstractContextManager[Any]:
    return patch.object(AllOrNothing, "check", lambda self: None)


OF_READERS: Sequence[Injected] = (
    readers_are_kept_after_an_interruption,
    readers_are_kept_after_an_error_of_theirs,
    a_run_goes_on_whose_state_is_half_changed,
    a_checkpoint_lacks_the_last_batch,
    a_closed_run_reads_on,
)
OF_WRITERS: Sequence[Injected] = (a_transaction_goes_on_after_an_error,)
