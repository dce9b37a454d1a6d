"""One run of the job of `tables_soak` or `tables_changes`: a driver with its tasks in one process.

It writes by a sink's contract, or by a library's own means. It plays the runner: what an epoch holds is logged
(`offsets/<epoch>`, made once, by the process that comes first) before it is written, and that it is committed
(`commits/<epoch>`) after; restarted, it repeats what is logged and not committed. Faults are injected around calls of the sink:
SIGKILL before, during or after one, SIGSTOP, and a rival writer's commit in between.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import CommitProperties, Transaction
from pyiceberg.catalog import load_catalog
from pyiceberg.types import LongType

from headrace.connectors.base.commit import JobCommitter, StaleEpochError, refuse_stale
from headrace.connectors.base.sink import Attempt, TwoPhaseSink
from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.committer import TableCommitter
from headrace.connectors.tables.delta import DeltaSink, _LoadedDelta
from headrace.connectors.tables.handles import TableHandle
from headrace.connectors.tables.iceberg import IcebergSink, _LoadedIceberg
from headrace.connectors.tables.metadata_folder import WorkFolder
from headrace.connectors.tables.writing import TableTransaction, _File
from headrace.enumerator.errors import FencedError, PeerError

__all__ = [
    "BY_ID",
    "CHANGELOGS",
    "CHANGES_SCHEMA",
    "COMMITS",
    "JOB",
    "RIVALS",
    "SCHEMA",
    "SYSTEMS",
    "TABLE",
    "Fault",
    "Told",
    "catalog_of",
    "changes_of",
    "create",
    "main",
]

JOB, TABLE = "soak", "soak.rows"
SCHEMA = pa.schema([("epoch", pa.int64()), ("number", pa.int64())])
CHANGES_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("op", pa.string()), ("offset", pa.int64())])
BY_ID = Changes(("id",), ("offset",), "op")
OPERATIONS, SHARES = ("c", "u", "d"), (0.2, 0.7, 0.1)
RIVAL = -1
"""The epoch of a rival's rows."""

RIVALS = {"delta": ("append", "compact", "schema", "checkpoint"), "iceberg": ("append", "rewrite", "schema", "expire")}
"""What a rival writer does, by table format."""

REFUSED = 3
"""The exit status of a driver that was replaced, or whose epoch is to be written again."""


@dataclass(frozen=True, slots=True)
class Fault:
    """At the nth call of a method: `what` is kill or stop, `when` before, during (`delay_s` after it started) or after."""

    owner: str
    method: str
    when: str
    nth: int
    what: str = "kill"
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a run is to do. `system` is one of SYSTEMS or CHANGELOGS, of `keys` keys; an epoch has this many `rows`.

    `rival`, if any, comes before the run's `rival_at`-th commit.
    """

    system: str
    folder: str
    epochs: int
    tasks: int
    rows: int
    fault: Fault | None = None
    rival: str | None = None
    rival_at: int = 1
    keys: int = 0

    @property
    def is_ours(self) -> bool:
        """Whether it is a sink of headrace."""
        return self.system in ("delta", "iceberg", *CHANGELOGS)


def catalog_of(folder: str) -> dict[str, str]:
    """A SQL catalog in the folder."""
    return {"name": "soak", "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def create(system: str, folder: str) -> None:
    """Make the table."""
    for name in ("offsets", "commits", "rivals"):
        (Path(folder) / name).mkdir(parents=True)
    _sink(system, folder).create_table(CHANGES_SCHEMA if system in CHANGELOGS else SCHEMA)


def main(settings: Told, parent: Connection) -> None:
    """The process. Exit status 0, or REFUSED after a message that says why."""
    with open(f"{settings.folder}/job.log", "a") as log:
        os.dup2(log.fileno(), 2)
    job = {**SYSTEMS, **CHANGELOGS}[settings.system](settings, parent)
    try:
        job.run()
    except (FencedError, StaleEpochError, PeerError) as error:
        parent.send(type(error).__name__)
        sys.exit(REFUSED)
    except Exception as error:
        if settings.is_ours:
            raise
        parent.send(type(error).__name__)  # a library's own way of refusing: the oracle judges what it has done
        sys.exit(REFUSED)


# --- faults ------------------------------------------------------------------------------------------------------------


def inject(owner: type[Any], fault: Fault, parent: Connection) -> None:
    """The fault at the nth call of the owner's method."""
    method = getattr(owner, fault.method)
    calls = 0

    def injected(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - any method's
        nonlocal calls
        calls += 1
        if calls != fault.nth:
            return method(self, *arguments, **named)
        if fault.when == "before":
            _strike(fault, parent)
        if fault.when == "during":
            timer = threading.Timer(fault.delay_s, _strike, (fault, parent))
            timer.daemon = True
            timer.start()
        answer = method(self, *arguments, **named)
        if fault.when == "after":
            _strike(fault, parent)
        return answer

    setattr(owner, fault.method, injected)


def _strike(fault: Fault, parent: Connection) -> None:
    if fault.what == "stop":
        parent.send("stopped")
    os.kill(os.getpid(), signal.SIGKILL if fault.what == "kill" else signal.SIGSTOP)


def before_nth(owner: type[Any], method: str, nth: int, act: Callable[[], None]) -> None:
    """Act before the nth call of the owner's method."""
    real = getattr(owner, method)
    calls = 0

    def acting(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - any method's
        nonlocal calls
        calls += 1
        if calls == nth:
            act()
        return real(self, *arguments, **named)

    setattr(owner, method, acting)


# --- rivals ------------------------------------------------------------------------------------------------------------


def _appended(folder: str, append: Callable[[pa.Table], None]) -> None:
    """A row of a rival's, noted once it is in the table."""
    number = uuid.uuid4().int >> 66
    append(pa.table({"epoch": [RIVAL], "number": [number]}, schema=SCHEMA))
    (Path(folder) / "rivals" / str(number)).touch()


def rival_of_delta(folder: str, action: str) -> None:
    """One commit, or a checkpoint of the log, by the library's own means."""
    table = DeltaTable(f"{folder}/table")
    match action:
        case "append":
            _appended(folder, lambda rows: write_deltalake(table, rows, mode="append", schema_mode="merge"))
        case "compact":
            table.optimize.compact()
        case "schema":
            write_deltalake(
                table, pa.table({f"more_{uuid.uuid4().hex[:6]}": pa.array([], pa.int64())}), mode="append", schema_mode="merge"
            )
        case "checkpoint":
            table.create_checkpoint()


def rival_of_iceberg(folder: str, action: str) -> None:
    """The same."""
    table = load_catalog(**catalog_of(folder)).load_table(TABLE)
    match action:
        case "append":
            wider = table.schema().as_arrow()
            _appended(folder, lambda rows: table.append(_widened(rows, wider)))
        case "rewrite":
            rows = table.scan().to_arrow()
            if rows.num_rows:
                table.overwrite(rows)
        case "schema":
            with table.update_schema() as update:
                update.add_column(f"more_{uuid.uuid4().hex[:6]}", LongType())
        case "expire":
            old = [shot.snapshot_id for shot in table.metadata.snapshots if shot != table.current_snapshot()]
            if old:
                table.maintenance.expire_snapshots().by_ids(old).commit()


def _widened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [rows[field.name] if field.name in rows.column_names else pa.nulls(len(rows), field.type) for field in schema]
    return pa.Table.from_arrays(columns, names=schema.names)


# --- jobs --------------------------------------------------------------------------------------------------------------


class Job(ABC):
    """One run."""

    def __init__(self, settings: Told, parent: Connection) -> None:
        """Injects what is reported."""
        self.settings = settings
        self.state = Path(settings.folder)
        if settings.rival is not None:
            action, act = settings.rival, rival_of_delta if settings.system.startswith("delta") else rival_of_iceberg
            owner, method = self.owners()["commit"], COMMITS[settings.system]
            before_nth(owner, method, settings.rival_at, lambda: act(settings.folder, action))
        if settings.fault is not None:
            inject(self.owners()[settings.fault.owner], settings.fault, parent)

    @abstractmethod
    def owners(self) -> dict[str, type[Any]]:
        """The classes that faults name; "commit" has the method that COMMITS names."""

    @abstractmethod
    def write(self, epoch: int, begin: int, end: int, content: str) -> None:
        """Write the epoch, unless it is there."""

    def run(self) -> None:
        """This many epochs more than are committed."""
        first = sum(1 for _ in (self.state / "commits").iterdir())
        for epoch in range(first, first + self.settings.epochs):
            begin, end, content = self.plan(epoch)
            self.write(epoch, begin, end, content)
            self.log_commit(epoch)

    def plan(self, epoch: int) -> tuple[int, int, str]:
        """First number, the one after the last, and the digest of the plan, which the first who asks has made."""
        path = self.state / "offsets" / str(epoch)
        if not path.exists():
            made = {"begin": epoch * self.settings.rows, "end": (epoch + 1) * self.settings.rows, "by": uuid.uuid4().hex}
            partial = self.state / f"offsets-{made['by']}"
            partial.write_text(json.dumps(made))
            with suppress(FileExistsError):  # another driver was first, and its plan counts
                os.link(partial, path)
            partial.unlink()
        text = path.read_bytes()
        plan = json.loads(text)
        return plan["begin"], plan["end"], f"sha256:{hashlib.sha256(text).hexdigest()}"

    def log_commit(self, epoch: int) -> None:
        """It is committed."""
        (self.state / "commits" / str(epoch)).touch()

    def rows_of(self, epoch: int, begin: int, end: int, step: int = 1) -> pa.RecordBatch:
        """The epoch's rows from `start`, or each `step`-th of them."""
        numbers = list(range(begin, end, step))
        return pa.RecordBatch.from_pydict({"epoch": [epoch] * len(numbers), "number": numbers}, schema=SCHEMA)


class SinkJob(Job):
    """By the sink's contract."""

    def __init__(self, settings: Told, parent: Connection) -> None:
        super().__init__(settings, parent)
        self.sink: TwoPhaseSink[TableHandle] = _sink(settings.system, settings.folder)
        self._committer = JobCommitter(JOB, self.sink.committer(JOB))

    def owners(self) -> dict[str, type[Any]]:
        """The sink's own classes."""
        loaded = _LoadedDelta if self.settings.system.startswith("delta") else _LoadedIceberg
        return {"task": TableTransaction, "file": _File, "work": WorkFolder, "committer": TableCommitter, "commit": loaded}

    def write(self, epoch: int, begin: int, end: int, content: str) -> None:
        """As a runner does."""
        recorded = self.sink.recorded_epochs().get(JOB, -1)
        refuse_stale(JOB, epoch, recorded)
        handles = []
        for task in range(self.settings.tasks if recorded < epoch else 0):
            with self.sink.begin(Attempt(JOB, epoch, task, 0)) as transaction:
                rows = self.rows_of(epoch, begin + task, end, self.settings.tasks)
                half = len(rows) // 2
                transaction.write(rows[:half])
                transaction.write(rows[half:])
                handles.append(transaction.prepare())
        self._committer.commit(epoch, tuple(handle for handle in handles if handle is not None), content)


class ChangesJob(SinkJob):
    """The same with changes by key, which merge into the table."""

    def rows_of(self, epoch: int, begin: int, end: int, step: int = 1) -> pa.RecordBatch:
        """Each `step`-th change of the epoch from `start`: those of a key are in several tasks."""
        first = epoch * self.settings.rows
        numbers = np.arange(begin - first, end - first, step)
        return changes_of(epoch, self.settings.rows, self.settings.keys).take(pa.array(numbers))


def changes_of(epoch: int, rows: int, keys: int) -> pa.RecordBatch:
    """The changes of an epoch of a changelog, always the same ones; `offset` counts those of all epochs."""
    chance = np.random.default_rng(epoch)
    ids, offsets = chance.integers(0, keys, rows), np.arange(epoch * rows, (epoch + 1) * rows)
    names = pc.binary_join_element_wise(pc.cast(pa.array(ids), pa.string()), pc.cast(pa.array(offsets), pa.string()), ":")
    columns = {"id": ids, "name": names, "op": chance.choice(OPERATIONS, rows, p=SHARES), "offset": offsets}
    return pa.RecordBatch.from_pydict(columns, schema=CHANGES_SCHEMA)


class OwnWay(Job):
    """By the library alone, with the same write-ahead log. What is committed is not asked."""

    def owners(self) -> dict[str, type[Any]]:
        """Itself."""
        return {"commit": type(self)}

    def write(self, epoch: int, begin: int, end: int, content: str) -> None:
        """Append it."""
        self.append(pa.Table.from_batches([self.rows_of(epoch, begin, end)]), epoch)

    @abstractmethod
    def append(self, rows: pa.Table, epoch: int) -> None:
        """In one commit."""


class DeltaAppend(OwnWay):
    """`write_deltalake`, with the epoch as the application's version, which no process asks."""

    def append(self, rows: pa.Table, epoch: int) -> None:
        """In one commit."""
        properties = CommitProperties(app_transactions=[Transaction(JOB, epoch)])
        write_deltalake(f"{self.settings.folder}/table", rows, mode="append", schema_mode="merge", commit_properties=properties)


class DeltaAsked(DeltaAppend):
    """The same, and the table is asked for the application's version first."""

    def write(self, epoch: int, begin: int, end: int, content: str) -> None:
        """Unless the table states that it is there."""
        version = DeltaTable(f"{self.settings.folder}/table").transaction_version(JOB)
        if version is None or version < epoch:
            super().write(epoch, begin, end, content)


class IcebergAppend(OwnWay):
    """`Table.append`, with the epoch in the snapshot's summary, which no process asks."""

    def append(self, rows: pa.Table, epoch: int) -> None:
        """In one commit."""
        self._append(load_catalog(**catalog_of(self.settings.folder)).load_table(TABLE), rows, epoch)

    def _append(self, table: Any, rows: pa.Table, epoch: int) -> None:  # noqa: ANN401 - PyIceberg's
        table.append(_widened(rows, table.schema().as_arrow()), snapshot_properties={"epoch": str(epoch)})


class IcebergAsked(IcebergAppend):
    """The same, and the snapshots of the loaded table are asked first; it is the same object that is then written to."""

    def write(self, epoch: int, begin: int, end: int, content: str) -> None:
        """Unless a snapshot states that it is there."""
        self._table = load_catalog(**catalog_of(self.settings.folder)).load_table(TABLE)
        summaries = [shot.summary for shot in self._table.metadata.snapshots]
        if all(summary is None or summary["epoch"] != str(epoch) for summary in summaries):
            self.append(pa.Table.from_batches([self.rows_of(epoch, begin, end)]), epoch)

    def append(self, rows: pa.Table, epoch: int) -> None:
        """In one commit."""
        self._append(self._table, rows, epoch)


def _sink(system: str, folder: str) -> Any:  # noqa: ANN401 - one of two
    changes = BY_ID if system in CHANGELOGS else None
    if system.startswith("delta"):
        return DeltaSink(f"{folder}/table", changes=changes)
    return IcebergSink(TABLE, catalog_of(folder), changes=changes)


SYSTEMS: dict[str, type[Job]] = {
    "delta": SinkJob,
    "iceberg": SinkJob,
    "delta-append": DeltaAppend,
    "delta-asked": DeltaAsked,
    "iceberg-append": IcebergAppend,
    "iceberg-asked": IcebergAsked,
}
"""By name: the sinks, and the libraries' own ways."""

CHANGELOGS: dict[str, type[Job]] = {"delta-changes": ChangesJob, "iceberg-changes": ChangesJob}
"""By name: the sinks with changes by key."""

COMMITS = {name: "commit" if job is SinkJob else "append" for name, job in SYSTEMS.items()}
"""The method that commits to the table."""
