"""A function of a batch as a sink, at least once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors.base.immediate import ImmediateSink
from headrace.connectors.base.sink import Attempt, Transaction
from headrace.enumerator.errors import UsageError


@dataclass(frozen=True)
class FunctionSink(ImmediateSink):
    """Calls `function` with each batch of rows, in the processes that write. When it returns, they count as written.

    It returns None, raises where rows were not written, and is called again with rows of an epoch that has failed: at least
    once, or effectively once where writing a row again changes nothing. Other processes have to find it: a function at the top
    of a module. Raises UsageError for what is not a function.
    """

    function: Callable[[pa.RecordBatch], None]

    def __post_init__(self) -> None:
        """Refuse what cannot be called."""
        if not callable(self.function):
            raise UsageError(f"a FunctionSink is made of a function of a batch, not {self.function!r}")

    def begin(self, attempt: Attempt) -> Transaction[Any]:
        """Nothing starts."""
        return _Calls(self.function)


class _Calls(Transaction[Any]):
    def __init__(self, function: Callable[[pa.RecordBatch], object]) -> None:
        self._function = function

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        answer = self._function(batch)
        if answer is not None:  # such as a generator, which has done nothing yet
            raise UsageError(
                f"a sink's function writes the rows and returns None; this one has returned {type(answer).__name__}"
            )

    def prepare(self) -> None:
        """It is written."""

    def abort(self) -> None:
        """It is written, and may be written again."""
