"""The probe: a process that reads the output under read_committed and notes when records become visible.

It uses headrace's reader, which costs a few percent of a core where a client with an object for each record costs as much as
some of the systems. The oracle, which does not, checks that it was given exactly what is committed.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np

from benchmarks.restore.load import Controls
from benchmarks.restore.oracle import Seen
from benchmarks.restore.watched import WatchedProcess, whole_rows
from headrace.kafka import Earliest, KafkaSource

_STAMP = struct.Struct("<dqqqq")
_ROW = np.dtype([("at", "<f8"), ("partition", "<i8"), ("first", "<i8"), ("last", "<i8"), ("rows", "<i8")])


def _run(bootstrap: str, topic: str, file: str, controls: Controls) -> None:
    source = KafkaSource(
        bootstrap, topics=[topic], start=Earliest(), isolation_level="read_committed", columns=("partition", "offset")
    )
    with Path(file).open("wb", buffering=0) as stamps:
        for batch in source.batches():
            at = time.monotonic()
            offsets, rows = batch.column("offset"), batch.num_rows
            stamps.write(_STAMP.pack(at, batch.column("partition")[0].as_py(), offsets[0].as_py(), offsets[-1].as_py(), rows))
            controls.visible.value += rows


class Probe(WatchedProcess):
    """The process, from the harness's side."""

    def __init__(self, bootstrap: str, topic: str, file: Path, controls: Controls) -> None:
        """Start it."""
        self._file = file
        super().__init__("the probe", _run, bootstrap, topic, str(file), controls)

    def seen(self) -> Seen:
        """What it was given until now."""
        data = whole_rows(self._file, _ROW)
        return Seen(*(data[name].copy() for name in ("at", "partition", "first", "last", "rows")))
