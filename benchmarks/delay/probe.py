"""The probe: a process that reads the output under read_committed, and notes when it was given which record."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.delay.judge import Seen
from benchmarks.delay.records import read_back
from headrace.kafka import Earliest, KafkaSource

ROW = np.dtype([("id", "<i8"), ("due_ns", "<i8"), ("at_ns", "<i8")])


def _run(bootstrap: str, topic: str, file: str, visible: Any) -> None:  # noqa: ANN401 - a ctypes value
    source = KafkaSource(bootstrap, topics=[topic], start=Earliest(), isolation_level="read_committed", columns=("value",))
    with Path(file).open("wb", buffering=0) as rows:
        for batch in source.batches():
            at_ns = time.monotonic_ns()
            found = read_back(batch.column("value"))
            noted = np.empty(batch.num_rows, ROW)
            noted["id"], noted["due_ns"], noted["at_ns"] = found.ids, found.due_ns, at_ns
            rows.write(noted.tobytes())
            visible.value += batch.num_rows


class Probe:
    """The process, from the harness's side."""

    def __init__(self, bootstrap: str, topic: str, file: Path) -> None:
        """Start it."""
        context = multiprocessing.get_context("spawn")
        self._file, self.visible = file, context.Value("q", 0)
        self._process = context.Process(target=_run, args=(bootstrap, topic, str(file), self.visible), daemon=True)
        self._process.start()

    def check(self) -> None:
        """Raise RuntimeError if it has ended by itself."""
        if not self._process.is_alive():
            raise RuntimeError("the probe ended by itself; what it said is above")

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()

    def seen(self) -> Seen:
        """What it was given until now."""
        raw = self._file.read_bytes()
        data = np.frombuffer(raw[: len(raw) // ROW.itemsize * ROW.itemsize], ROW)
        return Seen(data["id"].copy(), data["due_ns"].copy(), data["at_ns"].copy())


@contextmanager
def probe(bootstrap: str, topic: str, file: Path) -> Iterator[Probe]:
    """A probe that is gone when the context is left."""
    running = Probe(bootstrap, topic, file)
    try:
        yield running
    finally:
        running.kill()
