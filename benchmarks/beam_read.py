"""Reading Kafka in Beam pipelines, on Beam's runner in Python and on Flink: headrace alongside what Python users have
otherwise.

    python -m benchmarks.beam_read [--quick] [--only TEXT] [--again]

Results go where `read_throughput.py` has its own, and into the same RESULTS.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from benchmarks.beam_systems import BEAM_SYSTEMS, BeamRead, Runner, beam_read
from benchmarks.harness import Cell, Target
from benchmarks.read_throughput import HERE, run
from benchmarks.topics import Shape, fill

VALUE_BYTES = 100
PARTITIONS = 4


@dataclass(frozen=True)
class Size:
    """How many records are read as batches, and how many one by one; and how often, by default."""

    rounds: int
    batched: int
    single: int


# So that the first element is followed by others for about ten seconds.
FULL = Size(5, 12_000_000, 800_000)
QUICK = Size(3, 1_000_000, 100_000)


def beam_cells(size: Size) -> list[Cell]:
    """A cell for each runner."""
    return [_read("direct", "Beam's runner in Python", size), _read("flink", "Flink", size)]


def _read(runner: Runner, title: str, size: Size) -> Cell:
    work = BeamRead(
        runner, Shape(size.batched, VALUE_BYTES, partitions=PARTITIONS), Shape(size.single, VALUE_BYTES, partitions=PARTITIONS)
    )
    return Cell(
        "beam",
        runner,
        f"{VALUE_BYTES} B, {title}",
        "records/s",
        BEAM_SYSTEMS,
        beam_read,
        work,
        tuple(Target(system, "at least", 5.0) for system in ("confluent", "kafkaio")),
        partial(_filled, work),
    )


@contextmanager
def _filled(work: BeamRead, bootstrap: str) -> Iterator[None]:
    for shape in (work.batches, work.records):
        fill(bootstrap, shape)
    yield


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="A few minutes: little data.")] = False,  # noqa: FBT002
    only: Annotated[str, typer.Option(help="Only cells whose key has this in it: beam-direct or beam-flink.")] = "",
    again: Annotated[bool, typer.Option(help="Measure finished cells again.")] = False,  # noqa: FBT002
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of a cell; 0: 5, quick 3.")] = 0,
) -> None:
    """Measure what is not measured yet, then write the tables and plots."""
    size = QUICK if quick else FULL
    wanted = [cell for cell in beam_cells(size) if only in cell.key]
    run(wanted, rounds or size.rounds, HERE / "results" / "quick" if quick else HERE / "results", again=again)


if __name__ == "__main__":
    typer.run(main)
