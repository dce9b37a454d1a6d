"""What the terminal shows while the demo runs, and the record of it that becomes the picture."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_S = 5.0
RATE_S = 5.0

EventKind = Literal["kill", "restore", "partitions"]


@dataclass(frozen=True)
class Sample:
    """How far the run was, `at` seconds after its start."""

    at: float
    records_in: int
    records_out: int


@dataclass(frozen=True)
class Event:
    """Something that was done to the run, or that it did."""

    at: float
    kind: EventKind
    label: str


@dataclass
class History:
    """The run so far. Times are seconds since it started."""

    samples: list[Sample] = field(default_factory=lambda: [Sample(0, 0, 0)])
    events: list[Event] = field(default_factory=list)
    started_at: float = field(default_factory=time.monotonic)

    @property
    def now(self) -> float:
        """Seconds since the run started."""
        return time.monotonic() - self.started_at

    @property
    def restores(self) -> int:
        """How often the job continued from its checkpoint."""
        return sum(event.kind == "restore" for event in self.events)

    def rates(self) -> tuple[float, float]:
        """Records per second, in and out, over the last seconds."""
        last = self.samples[-1]
        first = next(sample for sample in self.samples if sample.at >= last.at - RATE_S)
        seconds = max(last.at - first.at, 0.1)
        return (last.records_in - first.records_in) / seconds, (last.records_out - first.records_out) / seconds


class Display:
    """One line that is kept up to date in a terminal, or is written every few seconds where there is none."""

    def __init__(self, console: Console, history: History, total: int) -> None:
        """Show `history`, on its way to `total` records."""
        self._console = console
        self._history = history
        self._total = total
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._written_at = 0.0

    def __enter__(self) -> Self:
        """Take the terminal."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        if self._live is not None:
            self._live.stop()

    def update(self, state: str, partitions: int) -> None:
        """Show the last sample."""
        line = self._line(state, partitions)
        if self._live is not None:
            self._live.update(self._bar(line))
        elif self._history.now >= self._written_at + LINE_S:
            self._written_at = self._history.now
            self._write(line)

    def event(self, kind: EventKind, label: str, text: str) -> None:
        """Note an event under its label for the picture, and show its text, to stay."""
        self._history.events.append(Event(self._history.now, kind, label))
        self._write(text)

    def _write(self, text: str) -> None:
        minutes, seconds = divmod(int(self._history.now), 60)
        self._console.print(Text(f"{minutes:02}:{seconds:02}  {text}"), soft_wrap=True)

    def _line(self, state: str, partitions: int) -> str:
        last = self._history.samples[-1]
        rate_in, rate_out = self._history.rates()
        return (
            f"{state:<9} in {last.records_in:>7,} ({rate_in:>6,.0f}/s)  out {last.records_out:>7,} ({rate_out:>6,.0f}/s)  "
            f"lag {last.records_in - last.records_out:>7,}  partitions {partitions}  restores {self._history.restores}"
        )

    def _bar(self, line: str) -> Table:
        table = Table.grid(expand=True)
        table.add_row(Text(line, style="bold"))
        table.add_row(ProgressBar(total=self._total, completed=self._history.samples[-1].records_out))
        return table
