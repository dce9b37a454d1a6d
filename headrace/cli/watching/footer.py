"""A table at the bottom of a terminal on which other processes write, too.

The terminal scrolls the lines above it only (DECSTBM), so what any process writes continues there, a warning as well as what a
user's function prints, and needs to know nothing of the table. Each frame is one write, which puts the cursor back where it
was: also into the middle of a line that another process has started.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.cli.watching.table import Rates, table_of

__all__ = ["RESET", "Footer", "TableBelow", "frame", "released", "reserved"]

LEAST_ABOVE = 6
"""This many lines are left to what scrolls."""

LEAST_SHOWN = 4

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_DOWN = "\x1bD"
"""A line down in the same column; at the bottom everything scrolls up."""
_WHOLE = "\x1b[r"
_ERASE = "\x1b[2K"

RESET = f"{_SAVE}{_WHOLE}{_RESTORE}"
"""All of the terminal scrolls again, whatever is shown at its bottom."""


def reserved(lines: int, height: int) -> str:
    """Keep this many lines at the bottom; what is there scrolls up first."""
    return f"{_DOWN * lines}\x1b[{lines}A{_SAVE}\x1b[1;{height - lines}r{_RESTORE}"


def frame(lines: Sequence[str], height: int) -> str:
    """These lines, at the bottom."""
    first = height - len(lines) + 1
    return _SAVE + "".join(f"\x1b[{first + place};1H{_ERASE}{line}" for place, line in enumerate(lines)) + _RESTORE


def released(lines: int, height: int) -> str:
    """Nothing is kept at the bottom, and nothing of the table is left there."""
    return f"{frame([''] * lines, height)}{RESET}"


class Footer:
    """The last lines of a terminal. Owned by one thread of one process."""

    def __init__(self, terminal: int) -> None:
        """`terminal`: a file descriptor. Nothing is written yet."""
        self._terminal = terminal
        self._kept: tuple[int, os.terminal_size] | None = None

    def width(self) -> int:
        """Columns that a line may have: one less than there are, so that no line wraps. Raises OSError."""
        return max(1, os.get_terminal_size(self._terminal).columns - 1)

    def draw(self, lines: Sequence[str]) -> None:
        """As many of these lines, none of which has a code of a terminal, as the terminal has space for. Raises OSError.

        Nothing while the terminal is another job's, as when this one is in the background.
        """
        size = os.get_terminal_size(self._terminal)
        headroom = max(
            0, size.lines - LEAST_ABOVE
        )  # a container's terminal to which no process is attached has no lines at all
        shown = [line[: max(0, size.columns - 1)] for line in lines[:headroom]]
        if len(shown) < min(LEAST_SHOWN, len(lines)) or not self._is_ours():
            self.clear()
            return
        started = ""
        if self._kept != (len(shown), size):
            has_shrunk = self._kept is not None and size.lines < self._kept[1].lines  # and has moved its lines up
            started = (RESET if has_shrunk else self._released()) + reserved(len(shown), size.lines)
        self._kept = (len(shown), size)
        self._write(started + frame(shown, size.lines))

    def clear(self) -> None:
        """As if there had been nothing. Raises OSError."""
        text = self._released()
        self._kept = None
        if text:
            self._write(text)

    def _released(self) -> str:
        return "" if self._kept is None else released(self._kept[0], self._kept[1].lines)

    def _is_ours(self) -> bool:
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:  # it is a terminal, and not the one that jobs are controlled by
            return True

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._terminal, data) :]


class TableBelow:
    """The table of `headrace top`, below what a run writes on the terminal."""

    def __init__(self, footer: Footer) -> None:
        """Nothing is shown yet."""
        self._footer = footer
        self._rates = Rates()
        self._last: Mapping[str, Any] | None = None

    def show(self, status: Mapping[str, Any] | None) -> None:
        """What is known now; where nothing is, the previous one, as old as it is. Raises OSError where the terminal is gone."""
        if status is not None:
            self._rates.update(status)
            self._last = status
        if self._last is not None:
            self._footer.draw(self._drawn(self._last))

    def close(self) -> None:
        """The terminal is as it was. Raises OSError."""
        self._footer.clear()

    def _drawn(self, status: Mapping[str, Any]) -> list[str]:
        from rich.console import Console

        table = table_of(status, self._rates, time.time())
        for column in table.columns:  # else a long line would push others out
            column.no_wrap, column.overflow = True, "ellipsis"
        text = io.StringIO()
        Console(file=text, width=self._footer.width(), color_system=None).print(table)
        return text.getvalue().splitlines()
