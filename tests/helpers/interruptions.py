"""An exception at any bytecode of the package, as by Ctrl-C in a notebook, or a MemoryError."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from headrace.enumerator import embedded

OURS = str(Path(embedded.__file__).resolve().parents[1])
"""The package's folder."""


class Interruption:
    """Raises `error` at the `nth` bytecode, from 0, that this thread executes in these folders.

    Not between the end of a `with` and the call of its `__exit__`, where Python looks for no signal: a lock would stay locked.
    """

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
        if event == "opcode" and frame.f_lasti not in _ends_of_with(frame.f_code):
            if self._left == 0:
                self.happened = True
                raise self._error
            self._left -= 1
        return self._trace


@cache
def _resolved(path: str) -> str:
    return Path(path).resolve().as_posix()


@cache
def _ends_of_with(code: CodeType) -> frozenset[int]:
    """The places of what calls `__exit__`: with three times None, or with what was raised."""
    found = [each for each in dis.get_instructions(code) if each.opname not in ("PRECALL", "CACHE")]
    names = [(each.opname, each.argval) for each in found]
    places: set[int] = set()
    for at, (name, _) in enumerate(names):
        if names[at : at + 4] == [("LOAD_CONST", None)] * 3 + [("CALL", 2)]:
            first = at - (at > 0 and names[at - 1][0] == "SWAP")  # of what is returned
            places.update(range(found[first].offset, found[at + 3].offset + 1))
        if name == "WITH_EXCEPT_START":
            places.update(range(found[at - 1].offset, found[at].offset + 1))
    return frozenset(places)
