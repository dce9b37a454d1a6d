"""`headrace top`: a run running, as a table or as lines of JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.cli.run_report import JsonLines, Rates, table_of
from headrace.cli.servers import until_interrupted
from headrace.runners.local.monitoring.status import NoRunError, read_status
from headrace.runners.waiting import wait_until

DAMAGED_S = 5.0  # a status that is damaged for this long stays damaged: a run writes it each second


def follow(folder: Path, every_s: float) -> None:
    """Until the run ends, not between two coordinators. Raises NoRunError for none at first, else as `_status`."""
    _status(folder)
    with until_interrupted():
        if not sys.stdout.isatty():
            lines = JsonLines(sys.stdout)
            for status in _looks(folder, every_s):
                lines(status)
            return
        from rich.live import Live

        rates = Rates()
        with Live(auto_refresh=False) as live:
            for status in _looks(folder, every_s):
                if status is not None:
                    rates.update(status)
                    live.update(table_of(status, rates, time.time()), refresh=True)


def _looks(folder: Path, every_s: float) -> Iterator[Mapping[str, Any] | None]:
    while True:
        try:
            yield _status(folder)
        except NoRunError:
            return
        time.sleep(every_s)


def _status(folder: Path) -> Mapping[str, Any] | None:
    found: list[Mapping[str, Any] | None] = []
    wait_until(lambda: found.append(read_status(folder)), "a whole status of the run", DAMAGED_S)
    return found[0]
