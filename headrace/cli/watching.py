"""`headrace top`: a run at work, as a table or as lines of JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.serving import until_interrupted
from headrace.enumerator.errors import StateError
from headrace.runners.local.watching.status import largest_of, read_status

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["follow", "table_of"]


def follow(folder: Path, every_s: float) -> None:
    """Until the run ends. Raises StateError where none is at work at first."""
    read_status(folder)
    with until_interrupted():
        if not sys.stdout.isatty():
            for status in _statuses(folder, every_s):
                print(json.dumps(status), flush=True)  # noqa: T201 - the command's output
            return
        from rich.live import Live

        with Live(auto_refresh=False) as live:
            before: Mapping[str, Any] | None = None
            for status in _statuses(folder, every_s):
                live.update(table_of(status, before), refresh=True)
                before = status


def _statuses(folder: Path, every_s: float) -> Iterator[Mapping[str, Any]]:
    """Each status once."""
    shown_at = None
    while True:
        try:
            status = read_status(folder)
        except StateError:
            return
        if status is not None and status["at"] != shown_at:
            shown_at = status["at"]
            yield status
        time.sleep(every_s)


def table_of(status: Mapping[str, Any], before: Mapping[str, Any] | None) -> Table:
    """What a terminal shows. `before`: an earlier status, for the rates."""
    from rich.table import Table

    last = status["checkpoints"]["last"]
    table = Table(title=status["run"], show_header=False)
    rows = {
        "phase": status["phase"].lower(),
        "up": f"{status['at'] - status['since']:,.0f} s",
        "records in": _counted(status, before, "records_in"),
        "records out": _counted(status, before, "records_out"),
        "lag": _lag(status["lag"], status["at"]),
        "transactions": f"{status['committables']:,} committed",
        "checkpoints": f"{status['checkpoints']['completed']:,} committed, {status['checkpoints']['failed']:,} failed",
        "last checkpoint": "none yet" if last is None else _last(last, status["at"]),
        "workers": ", ".join(f"{worker['number']} ({worker['splits']} splits)" for worker in status["workers"]),
        "workers lost": f"{status['workers_lost']:,}",
        "last restart": _last_restart(status),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


_MOST_BEHIND = 3


def _lag(lag: Mapping[str, Any] | None, now_s: float) -> str:
    if lag is None:
        return "not known"
    most = [f"{split_id} {records:,}" for split_id, records in largest_of(lag["splits"], _MOST_BEHIND) if records]
    whole = f"{lag['records']:,} records, {now_s - lag['at']:.0f} s ago"
    return f"{whole}; most: {', '.join(most)}" if most else whole


def _last(last: Mapping[str, Any], now_s: float) -> str:
    size = "" if last["bytes"] is None else f", {last['bytes']:,} bytes"
    return f"{last['id']}, {now_s - last['at']:.1f} s ago, took {last['duration_s']:.3f} s{size}"


def _last_restart(status: Mapping[str, Any]) -> str:
    if "last_lost" not in status:  # a run of an earlier version
        return "not known"
    lost = status["last_lost"]
    if lost is None:
        return "none since the coordinator started"
    return f"after worker {lost['number']} was lost, {status['at'] - lost['at']:,.0f} s ago"


def _counted(status: Mapping[str, Any], before: Mapping[str, Any] | None, name: str) -> str:
    total = f"{status[name]:,}"
    if before is None or before["coordinator"] != status["coordinator"] or status["at"] <= before["at"]:
        return total
    return f"{total} ({(status[name] - before[name]) / (status['at'] - before['at']):,.0f}/s)"
