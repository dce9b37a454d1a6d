"""The probe: a process that reads the output under read_committed, and notes when it was given which record."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.delay.judge import Seen
from benchmarks.delay.records import read_back
from benchmarks.restore.watched import WatchedProcess, spawning, whole_rows
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


class Probe(WatchedProcess):
    """The process, from the harness's side. `visible`: how many records it was given."""

    def __init__(self, bootstrap: str, topic: str, file: Path) -> None:
        """Start it."""
        self._file, self.visible = file, spawning().Value("q", 0)
        super().__init__("the probe", _run, bootstrap, topic, str(file), self.visible)

    def seen(self) -> Seen:
        """What it was given until now."""
        data = whole_rows(self._file, ROW)
        return Seen(data["id"].copy(), data["due_ns"].copy(), data["at_ns"].copy())
