"""What reads a table's rows and its log: ours, Debezium's engine and Flink CDC, each in a new process, from its slot.

Debezium's engine gives JSON without schemas, Flink CDC the rows of its SQL connector, ours Arrow batches. All count them;
`headrace run` commits them to a Delta table each second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
import pyarrow.parquet as pq

from benchmarks.changes_job import Job, delays_ms, quantiles
from benchmarks.sampling import repeated
from headrace.runners.user_cache import find_java
from headrace.testing.servers.jars import Bundle, installed

SYSTEMS = ("headrace", "debezium", "flink-cdc", "headrace-run")
DEBEZIUM_VERSION, FLINK_CDC_VERSION, FLINK_VERSION = "3.6.1.Final", "3.5.0", "1.20.1"
"""The newest of Flink CDC that Maven Central has with this connector, and a Flink that it is made for. On the 2.2.1 of the
other benchmarks its reader ends by a NoSuchMethodError: the constructor of `SingleThreadFetcherManager` that takes a
`FutureCompletingBlockingQueue` and a `Supplier` is gone."""
_HEAP = "-Xmx1g"
_TIMEOUT_S, _SAMPLE_S, _LOOK_S = 600.0, 0.25, 0.05
_SOURCES = Path(__file__).with_name("sources") / "changes"

DEBEZIUM = Bundle(
    f"Debezium's engine {DEBEZIUM_VERSION}",
    f"debezium-engine-{DEBEZIUM_VERSION}",
    (f"io.debezium:debezium-embedded:{DEBEZIUM_VERSION}", f"io.debezium:debezium-connector-postgres:{DEBEZIUM_VERSION}"),
    68,
    "40 MB",
)
FLINK_CDC = Bundle(
    f"Flink CDC {FLINK_CDC_VERSION}",
    f"flink-cdc-{FLINK_CDC_VERSION}-flink-{FLINK_VERSION}",
    (
        f"org.apache.flink:flink-sql-connector-postgres-cdc:{FLINK_CDC_VERSION}",
        *(f"org.apache.flink:flink-{part}:{FLINK_VERSION}" for part in ("clients", "connector-base", "table-runtime")),
    ),
    50,
    "100 MB",
)


@dataclass(frozen=True)
class Found:
    """What a process has read. `seconds` and `records` leave out what came first, but for `headrace`.

    `cpu_s`: meanwhile, where one process knows it. `whole_cpu_s` and `peak_mb` are those of all its processes, from their start
    on, pages that they share counted once.
    """

    records: int
    per_s: float
    first_s: float
    cpu_s: float | None
    whole_cpu_s: float
    peak_mb: float
    p50_ms: float
    p99_ms: float


def read(system: str, job: Job, started: Callable[[], None] = lambda: None) -> Found:
    """Start a system, have it read what the job says, and end it. `started` is called once it runs.

    Raises RuntimeError when it fails or takes longer than ten minutes.
    """
    command = _COMMANDS[system](job)
    log = Path(job.folder, "log")
    since_s = time.time()
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)  # noqa: S603 - our own
    with _killed_at_the_end(process), _sampled(process.pid) as sample:
        started()
        answer = _committed(job, process, since_s) if job.is_run else _answered(process, log)
    since = answer.get("since", answer["first"])
    per_s = (answer["records"] - answer["first_records"]) / (answer["last"] - since)
    quantiles = answer.get("p50_ms", 0.0), answer.get("p99_ms", 0.0)
    first_s, cpu_s = answer["first"] - since_s, answer.get("cpu_s")
    return Found(int(answer["records"]), per_s, first_s, cpu_s, sample.cpu_s, sample.peak_mb, *quantiles)


def _answered(process: subprocess.Popen[bytes], log: Path) -> dict[str, float]:
    timer = threading.Timer(_TIMEOUT_S, process.kill)
    timer.start()
    assert process.stdout is not None
    lines = process.stdout.read().decode().splitlines()
    timer.cancel()
    if process.wait() or not lines:
        raise RuntimeError(f"it ended with status {process.returncode}: {log.read_text(errors='replace')[-2000:]}")
    return dict(json.loads(lines[-1]))


def _committed(job: Job, process: subprocess.Popen[bytes], since_s: float) -> dict[str, float]:
    """By the commits of its table, and when each was there."""
    records, first, first_records, last = 0, 0.0, 0, 0.0
    delays: list[np.ndarray] = []
    commits = Path(job.folder, "table", "_delta_log")
    version = 0
    while records < job.expected:
        file = commits / f"{version:020}.json"
        if not file.is_file():
            if process.poll() is not None or time.time() - since_s > _TIMEOUT_S:
                raise RuntimeError(f"it read {records} records: {Path(job.folder, 'log').read_text(errors='replace')[-2000:]}")
            time.sleep(_LOOK_S)
            continue
        last, version = file.stat().st_mtime, version + 1
        for action in filter(None, (json.loads(line).get("add") for line in file.read_text().splitlines())):
            count = json.loads(action["stats"])["numRecords"]
            first, first_records = (first, first_records) if records else (last, count)
            records += count
            if job.with_delays:
                delays.append(delays_ms(pq.read_table(commits.parent / action["path"], columns=["at_us"]), last))
    found = quantiles(np.concatenate(delays)) if delays else {}
    if last == first:  # one commit has all of them: measured from the start of the process, which makes it slower
        return {"since": since_s, "first": first, "last": last, "first_records": 0, "records": records, **found}
    return {"first": first, "last": last, "first_records": first_records, "records": records, **found}


# --- the processes ----------------------------------------------------------------------------------------------------


def _ours(job: Job) -> list[str]:
    return [sys.executable, "-m", "benchmarks.changes_job", json.dumps(asdict(job))]


def _debezium(job: Job) -> list[str]:
    place = urlsplit(job.url)
    properties = {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": f"{job.folder}/offsets",
        "offset.flush.interval.ms": 1000,
        "database.hostname": place.hostname,
        "database.port": place.port,
        "database.user": place.username,
        "database.password": place.password,
        "database.dbname": place.path[1:],
        "topic.prefix": "bench",
        "plugin.name": "pgoutput",
        "slot.name": job.slot,
        "publication.name": job.publication,
        "publication.autocreate.mode": "disabled",
        "table.include.list": f"public.{job.table}",
        "snapshot.mode": "initial_only" if job.snapshot == "only" else "no_data",
        "tombstones.on.delete": "false",
        "converter.schemas.enable": "false",
        # Not the default of 500, for which a batch that is not full waits. Larger batches are not faster.
        "poll.interval.ms": 10,
    }
    return _java(DEBEZIUM, "DebeziumCount", job, properties)


def _flink(job: Job) -> list[str]:
    place = urlsplit(job.url)
    properties = {
        "host": place.hostname,
        "port": place.port,
        "user": place.username,
        "password": place.password,
        "database": place.path[1:],
        "table": job.table,
        "slot": job.slot,
        "publication": job.publication,
        "start": "snapshot" if job.snapshot == "only" else "committed",
    }
    return _java(FLINK_CDC, "FlinkCount", job, properties)


_COMMANDS: dict[str, Callable[[Job], list[str]]] = {
    "headrace": _ours,
    "headrace-run": _ours,
    "debezium": _debezium,
    "flink-cdc": _flink,
}


def _java(bundle: Bundle, name: str, job: Job, properties: dict[str, Any]) -> list[str]:
    file = Path(job.folder, "properties")
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    path = f"{compiled(bundle, name)}:{installed(bundle)}/*"
    delays = "delays" if job.with_delays else ""
    return [str(find_java(bundle.name)), _HEAP, "-cp", path, name, str(file), str(job.expected), delays]


def compiled(bundle: Bundle, name: str) -> Path:
    """The folder with the classes of a program, compiled where they are older than it. Downloads what it needs."""
    folder = installed(bundle) / "classes"
    sources = [_SOURCES / "Count.java", _SOURCES / f"{name}.java"]
    made = folder / f"{name}.class"
    if not made.is_file() or made.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        javac = find_java(bundle.name).resolve().with_name("javac")
        subprocess.run([javac, "-nowarn", "-cp", f"{installed(bundle)}/*", "-d", folder, *sources], check=True)  # noqa: S603 - our own
    return folder


@contextmanager
def _killed_at_the_end(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """With all that is in its session."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass
class _Sample:
    cpu_s: float = 0.0
    peak_mb: float = 0.0


@contextmanager
def _sampled(pid: int) -> Iterator[_Sample]:
    """What a process and all below it use, several times a second."""
    sample, cpu_s = _Sample(), dict[int, float]()

    def look() -> None:
        memory = 0
        with suppress(psutil.Error):
            for each in (first := psutil.Process(pid), *first.children(recursive=True)):
                with suppress(psutil.Error):
                    cpu_s[each.pid] = sum(each.cpu_times()[:2])
                    memory += each.memory_full_info().pss
        sample.cpu_s, sample.peak_mb = sum(cpu_s.values()), max(sample.peak_mb, memory / 1e6)

    with repeated(look, _SAMPLE_S):
        yield sample
