"""Processes of the harness next to a system: they are watched while it runs, and gone when the context is left."""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Callable, Iterable
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

POLL_S = 0.05
STOP_S = 60.0


@functools.cache
def spawning() -> SpawnContext:
    """What makes the processes, and what they share."""
    return multiprocessing.get_context("spawn")


class WatchedProcess:
    """A process, from the harness's side. `name`: what it is, for messages."""

    def __init__(self, name: str, run: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 - of `run`
        """Start it."""
        self._name = name
        self._process = spawning().Process(target=run, args=arguments, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def check(self) -> None:
        """Raise RuntimeError if it has ended by itself."""
        if not self._process.is_alive():
            raise RuntimeError(f"{self._name} ended by itself; what it said is above")

    def kill(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class LoadProcess(WatchedProcess):
    """One that writes until `stop` is set, and then sends how many records each input partition got: its last argument."""

    def __init__(self, run: Callable[..., None], *arguments: Any, stop: Any) -> None:  # noqa: ANN401 - of `run`, an event
        """Start it."""
        self._stop = stop
        self._counts, theirs = spawning().Pipe()
        super().__init__("the load generator", run, *arguments, theirs)
        theirs.close()

    def stop(self) -> list[int]:
        """End it; how many records each input partition got, all acknowledged. Raises RuntimeError when it failed."""
        self._stop.set()
        if not self._counts.poll(STOP_S):
            raise RuntimeError(f"{self._name} did not end")
        try:
            found: list[int] = self._counts.recv()
        except EOFError:
            raise RuntimeError(f"{self._name} ended by itself; what it said is above") from None
        self._process.join()
        return found


class Checked(Protocol):
    """What may end by itself."""

    def check(self) -> None: ...


def wait_for(
    condition: Callable[[], bool], seconds: float, processes: Iterable[Checked], each: Callable[[], None] = lambda: None
) -> bool:
    """Until it is so, at most so long; whether it is. Raises RuntimeError when a process has ended by itself.

    `each` is called before each look.
    """
    deadline = time.monotonic() + seconds
    while True:
        for process in processes:
            process.check()
        each()
        if condition():
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)


def whole_rows(file: Path, row: npt.DTypeLike) -> npt.NDArray[np.void]:
    """What a process has noted until now; it may be in the middle of a row."""
    kind = np.dtype(row)
    raw = file.read_bytes()
    return np.frombuffer(raw[: len(raw) // kind.itemsize * kind.itemsize], kind)
