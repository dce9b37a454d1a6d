"""An exception at any bytecode of the package, as by Ctrl-C in a notebook, or a MemoryError."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.enumerator import embedded

OURS = str(Path(embedded.__file__).resolve().parents[1])
"""The package's folder."""


class Interruption:
    """Raises `error` at the `nth` bytecode, from 0, that this thread executes in these folders."""

    def __init__(self, nth: int, error: type[BaseException], *folders: str) -> None:
        self._left, self._error, self._folders = nth, error, folders
        self.happened = False

    def __enter__(self) -> Interruption:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if not _resolved(frame.f_code.co_filename).startswith(self._folders):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            if self._left == 0:
                self.happened = True
                raise self._error
            self._left -= 1
        return self._trace


@cache
def _resolved(path: str) -> str:
    return Path(path).resolve().as_posix()
