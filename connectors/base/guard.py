"""A task's rows are whole or not used: after an error, and after its end, a transaction takes no rows and gives no handle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from headrace.enumerator.errors import HeadraceError, PeerError, UsageError

_OF_VALUES = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeError)
"""What Arrow raises for values that a destination cannot hold: they never will be others."""


def check_values(rows: pa.RecordBatch, where: str) -> None:
    """Raise UsageError naming a column with a value that its type does not have, such as a text that is not UTF-8.

    Arrow looks at values only where it is asked to, and engines cast any bytes to text. Other readers refuse the whole file, or
    table, in which such a value is.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise UsageError(f"{where}: column {name!r} has a value that is not of the type {column.type}: {error}") from error


class AllOrNothing:
    """Of one transaction, used by its thread."""

    def __init__(self, where: str, name: str, abort: Callable[[], None]) -> None:
        """`where` and `name`, the destination and the transaction, are for messages; `abort` removes what is written."""
        self._where, self._name, self._abort = where, name, abort
        self._failed = self._ended = False
        self._process = os.getpid()

    def check(self) -> None:
        """Raise UsageError after an error, after the end, and in a process that was forked since it started."""
        if os.getpid() != self._process:
            raise UsageError(f"{self._where}: {self._name} belongs to the process that started it: start another one here")
        if self._failed or self._ended:
            why = "was given up after an error" if self._failed else "has ended"
            raise UsageError(f"{self._where}: {self._name} {why}, and takes and gives no rows: start another one")

    def check_rows(self, batch: object) -> None:
        """As `check`, before rows are written. Raises UsageError for what is not a RecordBatch, such as a Table."""
        self.check()
        if not isinstance(batch, pa.RecordBatch):
            how = ": write each of its to_batches()" if isinstance(batch, pa.Table) else ""
            raise UsageError(f"{self._where}: what is written is a pyarrow.RecordBatch, not {type(batch).__name__}{how}")

    def end(self) -> bool:
        """It was prepared or aborted. False where all of it is another process's, which continues it."""
        self._ended = True
        return os.getpid() == self._process

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Steps after which all is there. After an error in them it is aborted: rows may be missing.

        Raises UsageError for values that cannot be written, PeerError for what the store refuses.
        """
        try:
            yield
        except BaseException as error:
            self._failed = True
            self._abort()
            if isinstance(error, HeadraceError) or not isinstance(error, (OSError, pa.ArrowException, *_OF_VALUES)):
                raise
            kind = UsageError if isinstance(error, _OF_VALUES) else PeerError
            raise kind(f"{self._where}: cannot write {self._name}: {error}") from error
