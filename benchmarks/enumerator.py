"""How long the enumerator takes with many splits: `python -m benchmarks.enumerator [--splits 100000]`.

Prints, for each step, the median and the range over the repeats, and writes them to benchmarks/results/enumerator.json: by the
clock (wall_s), and in CPU seconds (cpu_s), which other work on the machine disturbs less. The goal is a restore within 1 s by
the clock. The load average is recorded too, because a busy machine cannot show whether that is met.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from headrace.enumerator import (
    Checkpoint,
    CheckpointSerializer,
    Coordinator,
    DiscoveryResult,
    EagerEnumerator,
    LazyEnumerator,
    SplitState,
)
from headrace.enumerator import events as e
from headrace.enumerator.enumerator import restore_enumerator
from headrace.testing.memory import MemorySplit, MemorySplitSerializer

RESULTS = Path(__file__).parent / "results" / "enumerator.json"
REPEATS = 15
READERS = 64
SERIALIZER = CheckpointSerializer("memory", MemorySplitSerializer())


Times = dict[str, list[tuple[float, float]]]


def timed(times: Times, name: str, act: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it returns
    """Call `act` and note how long it took: by the clock, and of the CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = act()
    times.setdefault(name, []).append((time.perf_counter() - wall, time.process_time() - cpu))
    return result


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


def restore(data: bytes) -> tuple[Coordinator[MemorySplit], int]:
    """From the checkpoint's bytes to every split assigned; returns how many were."""
    checkpoint = SERIALIZER.deserialize(data)
    coordinator = Coordinator(restore_enumerator(EagerEnumerator, checkpoint, parallelism=READERS))
    coordinator.handle(e.Started())
    assigned = 0
    for reader in range(READERS):
        assigned += sum(len(c.splits) for c in coordinator.handle(e.ReaderRegistered(reader)) if isinstance(c, e.Assign))
    return coordinator, assigned


def checkpoint(coordinator: Coordinator[MemorySplit]) -> bytes:
    """Every reader reports; the bytes are made."""
    ledger = coordinator.enumerator.ledger
    coordinator.handle(e.CheckpointTriggered(2))
    commands: list[Any] = []
    for reader in range(READERS):
        states = {split_id: SplitState(ledger[split_id].durable, finished=False) for split_id in ledger.held_by(reader)}
        commands = coordinator.handle(e.ReaderSnapshotted(reader, 2, states))
    data = SERIALIZER.serialize(commands[0].checkpoint)
    coordinator.handle(e.CheckpointCompleted(2))
    return data


def assign_lazily(data: bytes) -> None:
    """Restored, every split asked for one by one."""
    checkpoint = SERIALIZER.deserialize(data)
    coordinator = Coordinator(restore_enumerator(LazyEnumerator, checkpoint, parallelism=1))
    coordinator.handle(e.Started())
    coordinator.handle(e.ReaderRegistered(0))
    while coordinator.enumerator.ledger.unassigned:
        coordinator.handle(e.SplitRequested(0))


def checkpoint_bytes(splits: int) -> bytes:
    """A checkpoint of this many splits."""
    states = (SplitState(MemorySplit(f"topic-{number}", number), finished=False) for number in range(splits))
    return SERIALIZER.serialize(Checkpoint(1, tuple(states), exhausted=False))


def measure(splits: int) -> dict[str, Any]:
    """How long a restore, a discovery round, a checkpoint and lazy assignment take."""
    data = checkpoint_bytes(splits)
    found = DiscoveryResult([MemorySplit(f"new-{number}", 0) for number in range(100)], frozenset({"topic-0"}))
    times: Times = {}
    for _ in range(REPEATS):
        coordinator, assigned = timed(times, "restore", lambda: restore(data))
        assert assigned == splits
        timed(times, "discovery", partial(coordinator.handle, e.SplitsDiscovered(found)))
        timed(times, "checkpoint", partial(checkpoint, coordinator))
        timed(times, "restore_and_assign_lazily", partial(assign_lazily, data))
        del coordinator  # a process restores into an empty heap, and so shall the next round
    return {
        name: {"wall_s": spread([wall for wall, _ in pairs]), "cpu_s": spread([cpu for _, cpu in pairs])}
        for name, pairs in times.items()
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=100_000)
    splits = parser.parse_args().splits
    result = {
        "splits": splits,
        "readers": READERS,
        "repeats": REPEATS,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        **measure(splits),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
