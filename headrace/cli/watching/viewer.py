"""A process that shows a run alongside it, as long as the run lasts.

A process, since the one that supervises a run has a single thread, and forks. The run needs nothing of it: a viewer that is
killed, frozen, or cannot write shows nothing, and that is all.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from headrace.cli.output import note
from headrace.cli.watching.footer import RESET, Footer, TableBelow
from headrace.cli.watching.lines import JsonLines
from headrace.cli.watching.progress import Progress
from headrace.enumerator.errors import RetriableError, StateError
from headrace.runners.local.monitoring.status import read_status
from headrace.runners.local.processes import PROCESS_NAME, pipe

__all__ = ["shown"]

EVERY_S = 1.0

END_S = 2.0
"""The run is over: a viewer that takes longer to leave is killed."""


class Screen(Protocol):
    """What statuses are shown on. Raises OSError where that is gone."""

    def show(self, status: Mapping[str, Any] | None) -> None:
        """What is known now, if anything."""

    def close(self) -> None:
        """Nothing will come any more."""


@contextmanager
def shown(folder: Path, progress: Progress) -> Iterator[None]:
    """Show the run of this folder while the body runs, from a process that is forked now: this one has a single thread still.

    Called before the run is started. Raises nothing of its own.
    """
    if progress is Progress.JSON:
        with _beside(folder, JsonLines, _nothing):
            yield
    elif progress is Progress.AUTO and _has_terminal():
        with _beside(folder, lambda: TableBelow(Footer(sys.stderr.fileno())), _whole_terminal):
            yield
    else:
        yield


def _has_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _nothing() -> None:
    pass


def _whole_terminal() -> None:
    with suppress(OSError):
        os.write(sys.stderr.fileno(), RESET.encode())


@contextmanager
def _beside(folder: Path, screen: Callable[[], Screen], undo: Callable[[], None]) -> Iterator[None]:
    """`undo` is called for a viewer that could not end by itself."""
    try:
        viewer, lifeline = _started(folder, screen)
    except OSError as error:
        note(f"the run is not shown: {error}")
        yield
        return
    try:
        yield
    finally:
        lifeline.close()
        viewer.join(END_S)
        if viewer.exitcode != 0:
            viewer.kill()
            viewer.join()
            undo()


def _started(folder: Path, screen: Callable[[], Screen]) -> tuple[BaseProcess, Connection]:
    """The viewer, and what ends it when it is closed. Raises OSError."""
    ours, its = pipe()
    viewer = multiprocessing.get_context("fork").Process(target=_view, args=(folder, screen, its), name=f"{PROCESS_NAME}viewer")
    with its:
        try:
            viewer.start()
        except OSError:
            ours.close()
            raise
    return viewer, ours


def _view(folder: Path, screen: Callable[[], Screen], ended: Connection) -> None:
    """In the viewer's process, until the other end of `ended` is closed, by whom or what ever."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTTOU):  # it ends with the run, which these may stop
        signal.signal(number, signal.SIG_IGN)
    shown_on = screen()
    try:
        while not ended.poll(EVERY_S):
            shown_on.show(_known(folder))
        shown_on.close()
    except OSError:
        os._exit(0)  # what it is shown on is gone, and with it what would be flushed


def _known(folder: Path) -> Mapping[str, Any] | None:
    """None where nothing is known now: the run starts, or it writes nothing, or nothing that can be read."""
    try:
        return read_status(folder)
    except (StateError, RetriableError):
        return None
