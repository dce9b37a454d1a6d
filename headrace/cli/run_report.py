"""What a run reports of itself: as a table and as lines, printed while it runs: for people on stderr, as JSON on stdout.

Lines are printed by the process that supervises the run, between two of its waits. A run does not depend on them: a line that
its reader has no space for is left out, and a reader that is gone ends them.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from headrace.cli.output import one_line
from headrace.enumerator.errors import RetriableError, StateError
from headrace.runners.local.monitoring.status import RESTARTING, largest_of, read_status

if TYPE_CHECKING:
    from rich.table import Table

STALE_S = 5.0  # a coordinator reports itself each second

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Point:
    """What was counted up to a checkpoint. `at_s`: when it was committed, in seconds of the epoch."""

    coordinator: int
    checkpoint_id: int
    at_s: float
    counts: Mapping[str, int]


class Rates:
    """Records per second. Counts move with checkpoints, so a rate is what came between the last two of them."""

    def __init__(self) -> None:
        self._points: tuple[_Point, ...] = ()

    def update(self, status: Status) -> None:
        last = status["checkpoints"]["last"]
        checkpoint_id, at_s = (0, status["since"]) if last is None else (last["id"], last["at"])
        counts = {name: status[name] for name in ("records_in", "records_out")}
        point = _Point(status["coordinator"], checkpoint_id, at_s, counts)
        of_its_lifetime = [before for before in self._points if before.coordinator == point.coordinator]
        if not of_its_lifetime or of_its_lifetime[-1].checkpoint_id != checkpoint_id:
            self._points = (*of_its_lifetime[-1:], point)

    def of(self, name: str, now_s: float) -> float | None:
        """Of `records_in` or `records_out`; None while it is not known. It falls while the next checkpoint is overdue."""
        if len(self._points) < 2:
            return None
        before, last = self._points
        took_s = max(last.at_s - before.at_s, now_s - last.at_s)
        return (last.counts[name] - before.counts[name]) / took_s if took_s > 0 else None


def table_of(status: Status, rates: Rates, now_s: float) -> Table:
    """For a terminal. `now_s` is in seconds of the epoch. Nothing in it is taken for markup or for a code of the terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(one_line(status["run"])), show_header=False)
    for name, value in _rows(status, rates, now_s):
        table.add_row(name, Text(one_line(value)))
    return table


def line_of(status: Status, rates: Rates, now_s: float) -> str:
    """What matters most of the table, for a log. `now_s` is in seconds of the epoch."""
    shown = dict(_rows(status, rates, now_s))
    most = "; ".join(f"{name} {shown[name]}" for name in ("records in", "records out", "lag", "last checkpoint"))
    return one_line(f"{shown['phase']}; {most}; {len(status['workers'])} workers")


def _rows(status: Status, rates: Rates, now_s: float) -> Iterator[tuple[str, str]]:
    old_s = now_s - status["at"]
    last = status["checkpoints"]["last"]
    if status["phase"] == RESTARTING:
        yield "phase", f"restarting; what follows was reported {max(0.0, old_s):,.0f} s ago"
    elif old_s > STALE_S:
        yield "phase", f"{status['phase'].lower()}, as was reported {old_s:,.0f} s ago: the coordinator is late"
    else:
        yield "phase", status["phase"].lower()
    yield "up", f"{status['at'] - status['since']:,.0f} s"
    yield "records in", _counted(status, rates, "records_in")
    yield "records out", _counted(status, rates, "records_out")
    yield "lag", _lag(status.get("lag"), status["at"])
    yield "transactions", f"{status['committables']:,} committed"
    counts = status["checkpoints"]
    yield "checkpoints", f"{counts['completed']:,} committed, {counts['failed']:,} failed"
    yield "last checkpoint", "none yet" if last is None else _last(last, status["at"])
    yield "workers", ", ".join(f"{worker['number']} ({worker['splits']} splits)" for worker in status["workers"]) or "none"
    yield "workers lost", f"{status['workers_lost']:,}"
    lost = status["last_lost"]
    ago = "" if lost is None else f"after worker {lost['number']} was lost, {status['at'] - lost['at']:,.0f} s ago"
    yield "last worker restarted", ago or "none since the coordinator started"
    yield "run restarted", f"{status['restarted']:,} times"


def _lag(lag: Status | None, now_s: float) -> str:
    if lag is None:
        return "not known"
    most = [f"{split_id} {records:,}" for split_id, records in largest_of(lag["splits"], 3) if records]
    whole = f"{lag['records']:,} records, {now_s - lag['at']:.0f} s ago"
    return f"{whole}; most: {', '.join(most)}" if most else whole


def _last(last: Status, now_s: float) -> str:
    size = "" if last["bytes"] is None else f", {last['bytes']:,} bytes"
    return f"{last['id']}, {now_s - last['at']:.1f} s ago, took {last['duration_s']:.3f} s{size}"


def _counted(status: Status, rates: Rates, name: str) -> str:
    rate = rates.of(name, status["at"])
    return f"{status[name]:,}" if rate is None else f"{status[name]:,} ({rate:,.0f}/s)"


# --- lines ------------------------------------------------------------------------------------------------------------


class JsonLines:
    """Each status once, as a line of JSON."""

    def __init__(self, to: TextIO) -> None:
        self._to = to
        self._last: tuple[object, object] = (None, None)

    def __call__(self, status: Status | None) -> None:
        """Print what is known now, if anything. Raises OSError where the reader is gone."""
        if status is None or (status["at"], status["phase"]) == self._last:
            return
        self._last = status["at"], status["phase"]
        print(json.dumps(status), file=self._to, flush=True)


def json_report(folder: Path, to: TextIO) -> Callable[[], None]:
    """Call it often: each second it prints the status of the run of this folder."""
    return _reporting(folder, 1.0, to, JsonLines(to))


def text_report(folder: Path) -> Callable[[], None]:
    """Call it often: every ten seconds it prints a line on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        return lambda: None
    rates = Rates()

    def show(status: Status) -> None:
        rates.update(status)
        print(line_of(status, rates, time.time()), file=sys.stderr, flush=True)  # noqa: T201 - of the command, for people

    return _reporting(folder, 10.0, sys.stderr, show)


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
