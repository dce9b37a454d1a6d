"""Our side of `changes.py`: a table's rows or its log, counted in a process that ends with a line of JSON, or by `headrace run`
into a Delta table.

python -m benchmarks.changes_job SETTINGS    # JSON: the fields of `Job`
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace import Pipeline
from headrace.delta import DeltaSink
from headrace.enumerator import EmbeddedRun
from headrace.postgresql import ChangesSource

INTERVAL_S = 1.0
WARM_UP = 5
"""The first of this many parts of the delays is left out."""


@dataclass(frozen=True)
class Job:
    """What is read, and how many records that is. `is_run`: by `headrace run`, which does not end by itself."""

    url: str
    table: str
    publication: str
    slot: str
    snapshot: Literal["only", "never"]
    expected: int
    with_delays: bool
    folder: str
    is_run: bool

    def source(self) -> ChangesSource:
        """Its columns are the change's and the table's."""
        place = {"tables": [self.table], "publication": self.publication, "slot": self.slot}
        return ChangesSource(self.url, snapshot=self.snapshot, **place)  # type: ignore[arg-type]


def quantiles(delays_ms: np.ndarray) -> dict[str, float]:
    """By the delays in the order of the changes."""
    counted = delays_ms[len(delays_ms) // WARM_UP :]
    found = np.quantile(counted, (0.5, 0.99)) if len(counted) else (0.0, 0.0)
    return {"p50_ms": float(found[0]), "p99_ms": float(found[1])}


def delays_ms(rows: pa.RecordBatch | pa.Table, at: float) -> np.ndarray:
    """Of rows that were there at this time."""
    return np.asarray(at * 1e3 - rows.column("at_us").to_numpy() / 1e3)


def in_process(job: Job) -> dict[str, float]:
    """Counts the rows. A checkpoint a second is kept in a file, and moves the slot. The start of the run is counted, too."""
    file = Path(job.folder, "checkpoint")
    delays: list[np.ndarray] = []
    records, first, kept = 0, 0.0, time.monotonic()
    since, cpu_s = time.time(), time.process_time()
    with EmbeddedRun(job.source(), clock=time.monotonic) as run:
        while records < job.expected:
            batch = run.poll(0.1)
            if batch is not None and batch.records.num_rows:
                first = first or time.time()
                records += batch.records.num_rows
                if job.with_delays:
                    delays.append(delays_ms(batch.records, time.time()))
            if time.monotonic() - kept > INTERVAL_S:
                kept = time.monotonic()
                file.write_bytes(run.checkpoint())
                run.checkpoint_completed()
        last, cpu_s = time.time(), time.process_time() - cpu_s
    found = quantiles(np.concatenate(delays)) if delays else {}
    return {"first": first, "since": since, "last": last, "first_records": 0, "records": records, "cpu_s": cpu_s, **found}


def by_run(job: Job) -> None:
    """Until it is killed."""
    source, sink = job.source(), DeltaSink(f"{job.folder}/table")
    sink.create_table(source.schema)
    Pipeline(source, sink).run(checkpoints=f"{job.folder}/checkpoints", workers=1, interval_s=INTERVAL_S)


if __name__ == "__main__":
    given = Job(**json.loads(sys.argv[1]))
    if given.is_run:
        by_run(given)
    else:
        sys.stdout.write(json.dumps(in_process(given)) + "\n")
