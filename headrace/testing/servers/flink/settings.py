"""What Flink's config.yaml says: a small cluster that notices a dead process within seconds and restarts its jobs for ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.testing.servers.ports import HOST


@dataclass(frozen=True, slots=True)
class Places:
    """Ports of 127.0.0.1, and directories."""

    rpc: int
    rest: int
    job_server: int
    workers: int
    state: Path
    scratch: Path


def memory_sizes(heap: tuple[int, int], off_heap: tuple[int, int], *, metaspace: int, overhead: int) -> dict[str, int]:
    """Of a TaskManager, in MiB: each part, which it wants given where Flink's scripts do not start it.

    `heap`, `off_heap`: of tasks, and of the framework.
    """
    return {
        **dict(zip(("task.heap.size", "framework.heap.size"), heap, strict=True)),
        **dict(zip(("task.off-heap.size", "framework.off-heap.size"), off_heap, strict=True)),
        **dict.fromkeys(("network.min", "network.max", "managed.size"), 64),
        "jvm-metaspace.size": metaspace,
        **dict.fromkeys(("jvm-overhead.min", "jvm-overhead.max"), overhead),
    }


def memory_settings(sizes: Mapping[str, int]) -> dict[str, str]:
    return {"taskmanager.cpu.cores": "1.0", **{f"taskmanager.memory.{name}": f"{size}m" for name, size in sizes.items()}}


def memory_options(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The same limits for the TaskManager's JVM."""
    heap, off_heap = (sizes[f"task.{kind}.size"] + sizes[f"framework.{kind}.size"] for kind in ("heap", "off-heap"))
    return (
        f"-Xmx{heap}m",
        f"-XX:MaxDirectMemorySize={off_heap + sizes['network.max']}m",
        f"-XX:MaxMetaspaceSize={sizes['jvm-metaspace.size']}m",
    )


_MEMORY = memory_sizes((320, 64), (64, 64), metaspace=160, overhead=128)
TASK_MANAGER_OPTIONS = memory_options(_MEMORY)


def flink_settings(places: Places, slots: int, config: Mapping[str, str]) -> dict[str, str]:
    """All settings; `config` wins over what is chosen here."""
    return {
        "jobmanager.rpc.address": HOST,
        "jobmanager.rpc.port": str(places.rpc),
        "jobmanager.bind-host": HOST,
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "rest.port": str(places.rest),
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "taskmanager.numberOfTaskSlots": str(slots),
        **memory_settings(_MEMORY),
        "heartbeat.interval": "1000",
        "heartbeat.timeout": "10000",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": str(2**31 - 1),
        "restart-strategy.fixed-delay.delay": "1 s",
        "execution.checkpointing.dir": places.state.joinpath("checkpoints").as_uri(),
        "state.checkpoints.dir": places.state.joinpath("checkpoints").as_uri(),
        "state.savepoints.dir": places.state.joinpath("savepoints").as_uri(),
        "io.tmp.dirs": str(places.scratch),
        # A checkpoint waits for brokers that are away; one that expires, after ten minutes by default, fails the job.
        "execution.checkpointing.timeout": "1 h",
        # Every class is on the class path of the processes; a job brings none.
        "classloader.resolve-order": "parent-first",
        "classloader.check-leaked-classloader": "false",
        **config,
    }


def write_settings(folder: Path, settings: Mapping[str, str]) -> None:
    """Write the folder's config.yaml. JSON's strings are YAML's."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{name}: {json.dumps(value)}" for name, value in settings.items())
    (folder / "config.yaml").write_text("\n".join(lines) + "\n")
