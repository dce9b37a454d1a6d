"""Lines about a run, printed while it runs: for people on stderr, as JSON on stdout.

They are printed by the process that supervises the run, between two of its waits. A run does not depend on them: a line that
its reader has no space for is left out, and a reader that is gone ends them.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from headrace.cli.run_table import Rates, line_of
from headrace.enumerator.errors import RetriableError, StateError
from headrace.runners.local.monitoring.status import read_status

JSON_EVERY_S = 1.0
TEXT_EVERY_S = 10.0

Status = Mapping[str, Any]


class JsonLines:
    """Each status once, as a line of JSON on stdout."""

    _last: tuple[object, object] = (None, None)

    def __call__(self, status: Status | None) -> None:
        """Print what is known now, if anything. Raises OSError where stdout is gone."""
        if status is None or (status["at"], status["phase"]) == self._last:
            return
        self._last = status["at"], status["phase"]
        print(json.dumps(status), flush=True)  # noqa: T201 - the command's output


def json_report(folder: Path) -> Callable[[], None]:
    """Call it often: each second it prints the status of the run of this folder on stdout."""
    return _reporting(folder, JSON_EVERY_S, sys.stdout, JsonLines())


def text_report(folder: Path) -> Callable[[], None]:
    """Call it often: every ten seconds it prints a line on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        return lambda: None
    rates = Rates()

    def show(status: Status) -> None:
        rates.update(status)
        print(line_of(status, rates, time.time()), file=sys.stderr, flush=True)  # noqa: T201 - of the command, for people

    return _reporting(folder, TEXT_EVERY_S, sys.stderr, show)


def _reporting(folder: Path, every_s: float, to: TextIO, show: Callable[[Status], None]) -> Callable[[], None]:
    """A function that shows the status, if a line is due and something is known, until `to` is gone. It raises nothing."""
    due_s = time.monotonic()

    def print_if_due() -> None:
        nonlocal due_s
        now_s = time.monotonic()
        if now_s < due_s:
            return
        try:
            status = read_status(folder)
        except (StateError, RetriableError):  # it starts, or its status cannot be read
            return
        if status is None:
            return
        due_s = now_s + every_s
        try:
            if select.select((), (to,), (), 0)[1]:  # a reader that is paused is not waited for
                show(status)
        except OSError:
            due_s = math.inf
            with suppress(OSError), open(os.devnull, "wb") as nowhere:  # its buffer would be an error when the process ends
                os.dup2(nowhere.fileno(), to.fileno())

    return print_if_due
