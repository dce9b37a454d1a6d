"""Output of the commands: tables on a terminal; for scripts one line per item, cells separated by tabs.

A plain line starts with the kind of its item, so that a command may print several kinds. Notes and progress go to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

import typer

from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

NOTHING = "-"
_SEPARATORS = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class Listing:
    """Items of one kind. A cell is text, a number, or None for a missing value. `title` is shown on terminals only."""

    kind: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]] = field(default_factory=list)


def cell(value: object) -> str:
    """A value on one line: `-` for None and for an empty text, floats with one decimal."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value).translate(_SEPARATORS)


def plain_line(kind: str, row: Iterable[object]) -> str:
    return "\t".join([kind, *map(cell, row)])


def rich_table(table: Listing) -> RichTable:
    from rich.table import Table as RichTable

    drawn = RichTable(title=table.title, title_justify="left", show_header=any(table.columns))
    for index, column in enumerate(table.columns):
        numbers = all(isinstance(row[index], int | float | None) for row in table.rows)
        drawn.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(cell, row))
    return drawn


def console() -> Console:
    """The console for results; nothing is interpreted as markup."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


def show(table: Listing, to: Console | None = None) -> None:
    out = console() if to is None else to
    if out.is_terminal:
        if table.rows:
            out.print(rich_table(table))
        return
    for row in table.rows:
        out.file.write(plain_line(table.kind, row) + "\n")
    out.file.flush()


def show_all(listings: Sequence[Listing], *, is_json: bool) -> None:
    """One after the other, or as one JSON object: a list of objects for each kind."""
    if not is_json:
        for listing in listings:
            show(listing)
        return
    names = {listing.kind: [name.replace(" ", "_") for name in listing.columns] for listing in listings}
    document = {each.kind: [dict(zip(names[each.kind], row, strict=True)) for row in each.rows] for each in listings}
    typer.echo(json.dumps(document, indent=2))


def machine_output() -> TextIO:
    """What was stdout, for this command alone: what user code prints goes to stderr, in processes that start later, too."""
    found = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return found


def note(text: str) -> None:
    typer.echo(text, err=True)


def confirm(question: str) -> None:
    """Return only after a yes; else, and at the end of stdin, raise typer.Abort. Asks on stderr: stdout is for results."""
    typer.echo(f"{question} [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal. Yields a function to call with the number of items completed."""
    from rich.console import Console
    from rich.progress import Progress

    terminal = Console(stderr=True)
    with Progress(console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def instant(epoch_ms: int | None) -> str | None:
    """Epoch milliseconds as ISO 8601 in UTC; None for None and for the broker's -1."""
    if epoch_ms is None or epoch_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    except (ValueError, OverflowError):  # a producer may claim any time
        return f"{epoch_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_ms(text: str) -> int:
    """From epoch milliseconds, or ISO 8601 with a zone, as `instant` gives it. Raises UsageError."""
    if re.fullmatch("[0-9]{1,18}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(f"{text!r} is not a time: write 2026-11-22T10:00:00Z, or epoch milliseconds")
    return int(moment.timestamp() * 1000)


def escaped(value: bytes | None, longest: int = 60) -> str:
    r"""Bytes as text on one line: unprintable bytes as `\x..`; at most `longest` characters, then the total size."""
    if value is None:
        return "null"
    head = value[: 4 * longest]  # UTF-8 has at most four bytes to a character
    shown = "".join(_printable(letter) for letter in head.decode("utf-8", "surrogateescape"))
    if len(shown) <= longest and len(head) == len(value):
        return shown
    return f"{shown[:longest]}... ({len(value)} bytes)"


def one_line(text: str) -> str:
    """Text without letters that a terminal or a script would take for something else."""
    return "".join(letter if letter == "\\" else _printable(letter) for letter in text)


def _printable(letter: str) -> str:
    if letter == "\\":
        return "\\\\"
    if "\udc80" <= letter <= "\udcff":  # a byte that is not a UTF-8
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()
