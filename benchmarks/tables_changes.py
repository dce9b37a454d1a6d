"""A changelog by key through SIGKILLs, into a Delta and an Iceberg table; DuckDB's reader and a plain replay are the judges.

    python -m benchmarks.tables_changes [--changes 5000000] [--keys 200000] [--kills 50] [--systems delta-changes,...]

The job is that of `tables_soak`, killed in the same manner; changes of a key are in several tasks of an epoch. After every kill
the table has to be what a dictionary has after some whole number of epochs, and at the end after all of them.

A system that is done is not done again; `--again` does all again. Exit status 1 if a table was ever another one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from benchmarks.stored import write_whole
from benchmarks.tables_job import CHANGELOGS, changes_of
from benchmarks.tables_soak import ALONE, PHASES, TWO_DRIVERS, Reader, Totals, World, left_over

RESULTS = Path(__file__).parent / "results" / "tables-changes.json"
EPOCH_ROWS = 25_000
MERGE = {"merge": (("work", "open_data"), ("file", "close"), ("commit", "files_with"), ("commit", "commit"))}
TEXT = 'SELECT id, name, "offset" FROM {} ORDER BY id'


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("offset", pa.int64())])


class Replay:
    """What a table has after whole epochs: a dictionary of each key's last change."""

    def __init__(self, rows: int, keys: int) -> None:
        """Before the first epoch."""
        self._rows, self._keys = rows, keys
        self._there: dict[int, tuple[str, int]] = {}
        self.epochs = 0
        self.table = self._sorted()

    def step(self) -> None:
        """One epoch more."""
        for change in changes_of(self.epochs, self._rows, self._keys).to_pylist():
            if change["op"] == "d":
                self._there.pop(change["id"], None)
            else:
                self._there[change["id"]] = change["name"], change["offset"]
        self.epochs += 1
        self.table = self._sorted()

    def _sorted(self) -> pa.Table:
        rows = sorted((key, *row) for key, row in self._there.items())
        return pa.table({name: [row[at] for row in rows] for at, name in enumerate(SCHEMA.names)}, schema=SCHEMA)


class ChangesWorld(World):
    """A table of keys, and a changelog whose epochs are written two in a run."""

    epochs, rows = 2, EPOCH_ROWS
    kinds_of_kills = (ALONE, TWO_DRIVERS, ALONE, ALONE, ALONE)
    phases = PHASES | MERGE
    longest_call_s = 0.3
    latest_call = 2

    def __init__(self, system: str, folder: str, generator: random.Random, reader: Reader, keys: int) -> None:
        """Makes the table."""
        super().__init__(system, folder, generator, reader)
        self.keys = keys
        self.looks = 0
        self.wrong: list[str] = []
        self._replay = Replay(self.rows, keys)

    @property
    def committed(self) -> int:
        """Epochs that are known to be committed."""
        return sum(1 for _ in Path(self.folder, "commits").iterdir())

    def finish(self, epochs: int) -> None:
        """Write what is left, without a fault."""
        while self.committed < epochs:
            self.epochs = epochs - self.committed
            self._is_done(self._start(None))

    def judge(self) -> Totals:
        """What was found in all looks, and at the end."""
        self._look()
        return {
            "kills": self.kills.total(),
            "changes": self.committed * self.rows,
            "keys": self.keys,
            "epochs": self.committed,
            "rows": self._found().num_rows,
            "runs": self.runs,
            "looks": self.looks,
            "wrong": self.wrong,
            "left_over": left_over(self.system, self.folder),
            "by_phase": dict(sorted(self.kills.items())),
            "by_kind": dict(self.kinds),
            "refused": dict(+self.refused),
        }

    def _look(self) -> None:
        """The table is the replay after all epochs that are known to be committed, or one more."""
        self.looks += 1
        found, known = self._found(), self.committed
        while self._replay.epochs < known or (self._replay.epochs == known and not found.equals(self._replay.table)):
            self._replay.step()
        if not found.equals(self._replay.table):
            self.wrong.append(f"after {self.kills.total()} kills, {known} epochs committed: {found.num_rows} rows")

    def _found(self) -> pa.Table:
        return self._reader.query(TEXT, self.system, self.folder).to_arrow_table().cast(SCHEMA)


# --- all of them -------------------------------------------------------------------------------------------------------


def soaked(system: str, options: argparse.Namespace, reader: Reader, tell: Callable[[str], None]) -> Totals:
    """One table's totals. Raises RuntimeError if the changelog is over before this many kills."""
    started_at, epochs = time.monotonic(), options.changes // EPOCH_ROWS
    with tempfile.TemporaryDirectory(prefix="headrace-changes-") as folder:
        generator = random.Random(f"{options.seed} {system}")  # noqa: S311 - a seeded schedule
        world = ChangesWorld(system, folder, generator, reader, options.keys)
        while (kills := world.kills.total()) < options.kills:
            world.finish(epochs * kills // options.kills)  # so that they are spread over the changelog
            if world.committed + world.epochs > epochs:
                raise RuntimeError(f"{kills} kills in {world.committed} epochs: more changes are needed")
            world.round()
            tell(f"{system}: {world.kills.total()} kills, {world.committed} of {epochs} epochs")
        world.finish(epochs)
        return {**world.judge(), "seconds": round(time.monotonic() - started_at)}


def run(options: argparse.Namespace) -> int:
    """All that is asked for and not done yet."""
    started = options.result.exists() and not options.again
    document: dict[str, Any] = json.loads(options.result.read_text()) if started else {"systems": {}}
    names = ("deltalake", "pyiceberg", "pyarrow", "duckdb")
    document["versions"] = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}
    document["seed"] = options.seed
    multiprocessing.set_forkserver_preload(["benchmarks.tables_job"])
    reader = Reader()
    for system in options.systems.split(","):
        if system not in document["systems"]:
            document["systems"][system] = soaked(system, options, reader, Console().print)
            write_whole(options.result, json.dumps(document, indent=1) + "\n")
    return int(any(found["wrong"] or found["left_over"] for found in document["systems"].values()))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=5_000_000, help=f"a multiple of {EPOCH_ROWS}")
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=50, help="for each system")
    parser.add_argument("--systems", default=",".join(CHANGELOGS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--result", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run(parsed()))
