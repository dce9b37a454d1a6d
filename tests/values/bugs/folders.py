"""Injected bugs of folders: files and positions that a job forgets when it starts again, and files that it removes too soon."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.connectors.files.read import reader
from headrace.connectors.files.read.cursor import Remembered
from headrace.connectors.files.read.formats import ReadFormat

Injected = Callable[[], AbstractContextManager[Any]]


def only_the_newest_file_is_remembered() -> AbstractContextManager[Any]:
    """So a file that appears with an older time is not read behind a restart."""
    real = Remembered.restored

    def restored(data: Any) -> Remembered:
        made = real(data)
        made.horizon = max([made.horizon, *zip(*made._columns, strict=True)])
        return made

    return patch.object(Remembered, "restored", restored)


def a_position_is_not_compared_with_the_format() -> AbstractContextManager[Any]:
    return patch.object(ReadFormat, "check_position", lambda *_: None)


def blank_lines_are_not_counted() -> AbstractContextManager[Any]:
    """A position is behind the rows, and not behind the lines."""
    real = reader._OpenPiece._batch

    def batch(self: Any, found: Any) -> Any:
        return real(self, replace(found, records=found.rows))

    return patch.object(reader._OpenPiece, "_batch", batch)


def a_file_is_removed_when_it_is_read() -> AbstractContextManager[Any]:
    """Ahead of the checkpoint."""
    real = reader._OpenPiece.close

    def close(self: Any) -> Any:
        self._plan.remove([self.split])
        return real(self)

    return patch.object(reader._OpenPiece, "close", close)


OF_FOLDERS: tuple[Injected, ...] = (
    only_the_newest_file_is_remembered,
    a_position_is_not_compared_with_the_format,
    blank_lines_are_not_counted,
    a_file_is_removed_when_it_is_read,
)
