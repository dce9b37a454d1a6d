"""What a run reports of itself, as a table and as one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.output import one_line
from headrace.runners.local.monitoring.status import RESTARTING, largest_of

if TYPE_CHECKING:
    from rich.table import Table

STALE_S = 5.0
"""A coordinator reports itself each second."""


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

    def update(self, status: Mapping[str, Any]) -> None:
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


def table_of(status: Mapping[str, Any], rates: Rates, now_s: float) -> Table:
    """For a terminal. `now_s` is in seconds of the epoch. Nothing in it is taken for markup or for a code of the terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(one_line(status["run"])), show_header=False)
    for name, value in _rows(status, rates, now_s):
        table.add_row(name, Text(one_line(value)))
    return table


def line_of(status: Mapping[str, Any], rates: Rates, now_s: float) -> str:
    """What matters most of the table, for a log. `now_s` is in seconds of the epoch."""
    shown = dict(_rows(status, rates, now_s))
    most = "; ".join(f"{name} {shown[name]}" for name in ("records in", "records out", "lag", "last checkpoint"))
    return one_line(f"{shown['phase']}; {most}; {len(status['workers'])} workers")


def _rows(status: Mapping[str, Any], rates: Rates, now_s: float) -> Iterator[tuple[str, str]]:
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


def _lag(lag: Mapping[str, Any] | None, now_s: float) -> str:
    if lag is None:
        return "not known"
    most = [f"{split_id} {records:,}" for split_id, records in largest_of(lag["splits"], 3) if records]
    whole = f"{lag['records']:,} records, {now_s - lag['at']:.0f} s ago"
    return f"{whole}; most: {', '.join(most)}" if most else whole


def _last(last: Mapping[str, Any], now_s: float) -> str:
    size = "" if last["bytes"] is None else f", {last['bytes']:,} bytes"
    return f"{last['id']}, {now_s - last['at']:.1f} s ago, took {last['duration_s']:.3f} s{size}"


def _counted(status: Mapping[str, Any], rates: Rates, name: str) -> str:
    rate = rates.of(name, status["at"])
    return f"{status[name]:,}" if rate is None else f"{status[name]:,} ({rate:,.0f}/s)"
