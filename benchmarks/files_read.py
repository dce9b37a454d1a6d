"""Reading folders of files: headrace alongside pyarrow in one process, Spark's own file source, and Beam's own sources; looking
for new files among many, and what a checkpoint has of them.

    python -m benchmarks.files_read [--quick] [--only TEXT] [--again]

Results go where `read_throughput.py` has its own, and into the same RESULTS.md. Needs no broker.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Protocol

import typer

from benchmarks.beam_systems import Runner
from benchmarks.files_beam import BEAM_FILE_SYSTEMS, BeamFiles, beam_files
from benchmarks.files_data import Files
from benchmarks.files_systems import (
    LISTING_SYSTEMS,
    LOCAL_FILE_SYSTEMS,
    STATE_SYSTEMS,
    STREAM_FILE_SYSTEMS,
    Found,
    Listing,
    find_new,
    local_files,
    state_size,
    stream_files,
)
from benchmarks.harness import Cell, Target
from benchmarks.read_throughput import HERE, run

TWO = 2
LONGER = 4


@dataclass(frozen=True)
class Size:
    """How many records of 50 fields, or lines, are read; one by one in Beam; how many files are listed, or found."""

    rounds: int
    parquet: int
    lines: int
    text: int
    single: int
    listed: int
    found: int


FULL = Size(5, 3_000_000, 600_000, 6_000_000, 60_000, 100_000, 1_000_000)
QUICK = Size(3, 300_000, 60_000, 600_000, 10_000, 10_000, 100_000)


def file_cells(size: Size) -> list[Cell]:
    """All cells that are measured several times."""
    parquet, objects, rows = (Files("parquet", size.parquet, 8), Files("jsonl", size.lines, 8), Files("csv", size.lines, 8))
    # Longer, as they take less: what a query takes to start is not what is measured.
    two = Files("parquet", size.parquet * LONGER, 8 * LONGER, wanted=TWO)
    return [
        *(_local(files) for files in (parquet, two, objects, rows)),
        *(_stream(files) for files in (parquet, two, objects, replace(objects, wanted=TWO))),
        _stream(Files("parquet", size.parquet // 10, 200)),
        *(_beam(runner, Files("parquet", size.parquet // 3, 8), size.single) for runner in _RUNNERS),
        *(_beam(runner, Files("text", size.text, 8), size.single * 5) for runner in _RUNNERS),
        _discovery(Listing(size.listed)),
    ]


_RUNNERS: dict[Runner, str] = {"direct": "Beam's runner in Python", "flink": "Flink"}


def _local(files: Files) -> Cell:
    name = files.kind if files.wanted is None else f"{files.kind} {files.wanted}"
    target = (Target("pyarrow", "at least", 0.9),)
    setting = partial(_written, (files,))
    return Cell("files local", name, str(files), "records/s", LOCAL_FILE_SYSTEMS, local_files, files, target, setting)


def _stream(files: Files) -> Cell:
    name = " ".join([files.kind, *([] if files.wanted is None else [str(files.wanted)]), f"{files.files} files"])
    title, target = f"{files}, {files.files} files", (Target("spark", "at least", 1.0),)
    setting = partial(_written, (files,))
    return Cell("files stream", name, title, "records/s", STREAM_FILE_SYSTEMS, stream_files, files, target, setting)


def _beam(runner: Runner, batches: Files, single: int) -> Cell:
    work = BeamFiles(runner, batches, replace(batches, records=single))
    targets = tuple(Target(system, "at least", 1.0) for system in ("beam-batched", "beam") if system in _systems(batches))
    setting = partial(_written, (work.batches, work.records))
    group, title = f"files beam {batches.kind}", _RUNNERS[runner]
    return Cell(group, runner, title, "records/s", _systems(batches), beam_files, work, targets, setting)


def _systems(files: Files) -> tuple[str, ...]:
    return BEAM_FILE_SYSTEMS[files.kind]


def _discovery(work: Listing) -> Cell:
    title, target = f"ten new among {work.files:,} files", (Target("scandir", "at most", 1.2),)
    setting = partial(_written, (work,))
    return Cell("files discovery", "ten new", title, "ms", LISTING_SYSTEMS, find_new, work, target, setting)


def _state(work: Found) -> Cell:
    title, target = f"behind {work.files:,} files", (Target("names", "at most by itself", 1.0),)
    setting = partial(_written, ())
    return Cell("files state", "checkpoint", title, "MB", STATE_SYSTEMS, state_size, work, target, setting, fresh=True)


class Written(Protocol):
    """What is written once, and then read by several cells."""

    def write(self, base: str) -> None:
        """Below the folder of all files, if it is not there."""


@contextmanager
def _written(data: tuple[Written, ...], base: str) -> Iterator[None]:
    for each in data:
        each.write(base)
    yield


@contextmanager
def folder() -> Iterator[tuple[str, str]]:
    """For all files, until the context ends; there is no broker."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-files-") as base:
        yield base, "none"


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="A few minutes: little data.")] = False,  # noqa: FBT002
    only: Annotated[str, typer.Option(help="Only cells whose key has this in it, as files-local or files-beam.")] = "",
    again: Annotated[bool, typer.Option(help="Measure finished cells again.")] = False,  # noqa: FBT002
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of a cell; 0: 5, quick 3.")] = 0,
) -> None:
    """Measure what is not measured yet, then write the tables and plots."""
    size = QUICK if quick else FULL
    results = HERE / "results" / "quick" if quick else HERE / "results"
    for cells, times in ((file_cells(size), rounds or size.rounds), ([_state(Found(size.found))], 1)):  # its size never differs
        run([cell for cell in cells if only in cell.key], times, results, again=again, data=folder)


if __name__ == "__main__":
    typer.run(main)
