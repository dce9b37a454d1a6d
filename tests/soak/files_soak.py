"""Files into Kafka, Delta and PostgreSQL by Spark, `headrace run` and Beam on Flink, under SIGKILLs while the files come.

    python -m tests.soak.files_soak [--engine spark|run|flink] [--files 20000] [--kills 30] [--seed 1] [--result FILE]

Files are small, but some are cut into pieces. They are written in place or renamed, and some are then older than files that
were read. Each kill comes at a random moment after there are more rows in PostgreSQL. Other clients than ours read the outputs.
A result file that is there is added to. Exit status 0: each row is in each output, once.
"""

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from rich.progress import Progress

from headrace.testing.servers import databases
from headrace.testing.servers.flink import FlinkCluster
from headrace.testing.servers.kafka import create_topic, start_broker
from tests.helpers.flink_rig import flink_cluster, job, python_workers, savepoint_at_last
from tests.helpers.sink_rig import read_all
from tests.soak.files_job import FORMATS, NAME, SCHEMA, VARIABLE, Place
from tests.soak.results import kept
from tests.soak.split_soak import ON_SPARK, SPARK, Job

LOOK_S = 0.25
FILES_PER_LOOK = 20
SMALL, LARGE, LARGE_EVERY = (1, 6), 2000, 200
"""Rows of a file, and which has more."""
MOST_DELAY_S = 4.0
CHECKPOINT_MS = 2000
TIMEOUT_S = 900.0
BAD = ("lost", "twice or foreign")


@dataclass(frozen=True)
class Size:
    """How long a run is. `seconds`: no more kills after so long."""

    files: int
    kills: int
    seconds: float


class Input:
    """The files, and the rows that are in them."""

    def __init__(self, folder: Path, moves: random.Random) -> None:
        self._folder, self._random = folder, moves
        self.files = 0
        self.written = Counter[str]()

    def add(self) -> None:
        """One more file: a small one perhaps in place, by one call; others renamed, perhaps with a time in the past."""
        number, format_ = self.files, self._random.choice(FORMATS)
        rows = LARGE if number % LARGE_EVERY == 0 else self._random.randrange(*SMALL)
        values = [f"{number}-{row}" for row in range(rows)]
        path = self._folder / format_ / f"{number}.{format_}"
        way = self._random.choice(("renamed", "late") if rows == LARGE else ("in place", "renamed", "late"))
        written = path if way == "in place" else path.with_name(f".{path.name}")
        written.write_bytes(encoded(values, format_))
        if way == "late":
            past = time.time() - self._random.uniform(0.0, 60.0)
            os.utime(written, (past, past))
        written.rename(path)
        self.files += 1
        self.written.update(values)


def encoded(values: Sequence[str], format_: str) -> bytes:
    if format_ == "jsonl":
        return "".join(f'{{"value": "{value}"}}\n' for value in values).encode()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"value": values}, SCHEMA), sink, row_group_size=LARGE // 10, compression="none")
    return sink.getvalue().to_pybytes()


class Engine(Protocol):
    """What is killed."""

    @property
    def starts(self) -> int:
        """How many times its program was started, or its job submitted."""

    def keep(self) -> None:
        """Start what has ended."""

    def kill(self, victim: str, moves: random.Random) -> bool:
        """Whether there was one."""


class Flink:
    """A job on Flink, whose cluster starts it again itself."""

    def __init__(self, flink: FlinkCluster, place: Place, stack: ExitStack) -> None:
        self._flink, self._place, self._stack = flink, place, stack
        self.starts = 0
        self._submit(None)

    def _submit(self, savepoint: str | None) -> None:
        def build(pipeline: Any) -> None:
            for format_ in FORMATS:
                self._place.pipeline(format_).expand_on_beam(pipeline, label=format_, num_readers=2, num_shards=2)

        self._job = self._stack.enter_context(job(self._flink, build, checkpoint_ms=CHECKPOINT_MS, savepoint=savepoint))
        self.starts += 1

    def keep(self) -> None:
        """It runs, or will run again: anything else is an error."""
        self._flink.job(self._job)

    def kill(self, victim: str, moves: random.Random) -> bool:
        if victim == "savepoint":
            self._submit(savepoint_at_last(self._flink, self._job, TIMEOUT_S))
        elif victim == "worker":
            workers = sorted(python_workers(self._flink))
            if workers:
                os.kill(moves.choice(workers), signal.SIGKILL)
            return bool(workers)
        else:
            self._flink.kill_task_manager()
            self._flink.start_task_manager()
        return True


class Jobs:
    """Processes that are started again."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs

    @property
    def starts(self) -> int:
        return sum(each.starts for each in self._jobs)

    def keep(self) -> None:
        for each in self._jobs:
            each.keep()

    def kill(self, victim: str, moves: random.Random) -> bool:
        return moves.choice(self._jobs).kill(victim, moves)


def is_coordinator(process: psutil.Process) -> bool:
    """The processes of a run are in the group of its coordinator, which the supervisor has started."""
    return os.getpgid(process.pid) == process.pid


def is_run_worker(process: psutil.Process) -> bool:
    """Forked by what the coordinator has started."""
    return os.getpgid(process.pid) not in (process.pid, process.ppid())


@contextmanager
def on_spark(place: Place) -> Iterator[Engine]:
    yield from _kept([Job(_log(place, "spark"), ["-m", "tests.soak.files_job"], {**SPARK, **_told(place)}, ON_SPARK)])


@contextmanager
def on_run(place: Place) -> Iterator[Engine]:
    settings = {"execution.checkpointing.interval": "1 s", "restart-strategy.fixed-delay.attempts": "1000000"}
    settings |= {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "0 ms"}
    config = [part for name, value in settings.items() for part in ("--config", f"{name}={value}")]
    command = ["-c", "from headrace.cli import main; main()", "run", "--workers", "2", *config]
    victims = {"coordinator": is_coordinator, "worker": is_run_worker}
    path = Path(__file__).with_name("files_job.py")
    yield from _kept(
        [
            Job(
                _log(place, format_), [*command, "--checkpoints", f"{place.folder}/{format_}-checkpoints", f"{path}:{format_}"],
                _told(place), victims,
            )
            for format_ in FORMATS
        ]
    )  # fmt: skip


@contextmanager
def on_flink(place: Place) -> Iterator[Engine]:
    with flink_cluster() as flink, ExitStack() as stack:
        yield Flink(flink, place, stack)


def _kept(jobs: Sequence[Job]) -> Iterator[Engine]:
    try:
        yield Jobs(jobs)
    finally:
        for each in jobs:
            each.close()


def _log(place: Place, name: str) -> Path:
    return Path(place.folder) / f"{name}.log"


def _told(place: Place) -> dict[str, str]:
    return {VARIABLE: json.dumps(asdict(place))}


ENGINES: Mapping[str, tuple[Callable[[Place], Any], Mapping[str, int]]] = {
    "spark": (on_spark, {"driver": 1, "executor": 2, "worker": 3}),
    "run": (on_run, {"everything": 1, "coordinator": 2, "worker": 3}),
    "flink": (on_flink, {"savepoint": 1, "worker": 2, "task manager": 4}),
}
"""How each is started, and who is killed, how often in proportion."""


def rows_in(place: Place) -> int:
    """Of PostgreSQL, which is asked for progress."""
    with psycopg.connect(place.url) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {NAME}").fetchall()[0][0])


def outputs(place: Place) -> dict[str, Counter[str]]:
    """What other clients than ours read."""
    with psycopg.connect(place.url) as connection:
        in_sql = connection.execute(f"SELECT value FROM {NAME}").fetchall()
    in_delta = DeltaTable(place.table.uri).to_pyarrow_table()["value"].to_pylist()
    found = {"kafka": read_all(place.bootstrap, NAME), "delta": in_delta, "sql": [value for (value,) in in_sql]}
    return {name: Counter(values) for name, values in found.items()}


def judged(written: Counter[str], found: Mapping[str, Counter[str]]) -> dict[str, int]:
    """What is wrong with each output."""
    wrong: dict[str, int] = {}
    for name, rows in found.items():
        for what, count in zip(BAD, (written - rows, rows - written), strict=True):
            wrong[f"{name}: {what}"] = count.total()
    return wrong


def soaked(place: Place, engine: Engine, victims: Mapping[str, int], size: Size, moves: random.Random) -> dict[str, Any]:
    incoming, done, seconds = Input(Path(place.folder), moves), Counter[str](), time.monotonic()
    with Progress() as progress:
        task = progress.add_task("kills", total=size.kills)
        while done.total() < size.kills and time.monotonic() - seconds < size.seconds:
            _progressed(place, engine, incoming, size.files * (done.total() + 1) // (size.kills + 1))
            time.sleep(moves.uniform(0.0, MOST_DELAY_S))
            victim = moves.choices(list(victims), list(victims.values()))[0]
            while not engine.kill(victim, moves):
                engine.keep()
                time.sleep(LOOK_S)
            done[victim] += 1
            progress.advance(task)
    _progressed(place, engine, incoming, size.files)
    until = time.monotonic() + TIMEOUT_S
    found = outputs(place)
    while any(rows.total() < incoming.written.total() for rows in found.values()) and time.monotonic() < until:
        engine.keep()
        time.sleep(2.0)
        found = outputs(place)
    time.sleep(10.0)  # whatever comes twice comes now
    wrong = judged(incoming.written, outputs(place))
    took = round(time.monotonic() - seconds)
    return {
        "kills": dict(done), "starts": engine.starts, "seconds": took, "files": incoming.files,
        "rows": incoming.written.total(), **wrong,
    }  # fmt: skip


def _progressed(place: Place, engine: Engine, incoming: Input, files: int) -> None:
    """Until there are this many files, and more rows."""
    before, until = rows_in(place), time.monotonic() + TIMEOUT_S
    while incoming.files < files or rows_in(place) == before:
        engine.keep()
        for _ in range(min(FILES_PER_LOOK, files - incoming.files)):
            incoming.add()
        time.sleep(LOOK_S)
        if time.monotonic() > until:
            raise TimeoutError(f"no more than {before} rows in {TIMEOUT_S:g} s: see {place.folder}")


def run(folder: Path, name: str, size: Size, seed: int) -> dict[str, Any]:
    start, victims = ENGINES[name]
    moves = random.Random(seed)
    with start_broker() as broker, databases.postgresql() as database:
        place = Place(str(folder), broker.bootstrap, database.url)
        create_topic(place.bootstrap, NAME, partitions=4)
        place.table.create_table(SCHEMA)
        with psycopg.connect(place.url) as connection:
            connection.execute(f"CREATE TABLE {NAME} (value TEXT)")
        for format_ in FORMATS:
            (folder / format_).mkdir()
        with start(place) as engine:
            return {"engine": name, "seed": seed, **soaked(place, engine, victims, size, moves)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=list(ENGINES), action="append", help="default: all, one after the other")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="kill no more after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    is_right = True
    for engine in arguments.engine or ENGINES:
        folder = Path(tempfile.mkdtemp(prefix=f"headrace-files-{engine}-"))
        result = run(folder, engine, Size(arguments.files, arguments.kills, arguments.seconds), arguments.seed)
        kept([result], arguments.result)
        if any(count for what, count in result.items() if what.endswith(BAD)):
            is_right = False
            print("kept:", folder)  # noqa: T201 - a command
        else:
            shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(0 if is_right else 1)


if __name__ == "__main__":
    main()
