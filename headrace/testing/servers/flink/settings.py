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


# In MiB. Started without Flink's scripts, a TaskManager wants every part given, and its JVM must be told the same.
HEAP, FRAMEWORK_HEAP, OFF_HEAP, FRAMEWORK_OFF_HEAP, NETWORK, MANAGED, METASPACE, OVERHEAD = 320, 64, 64, 64, 64, 64, 160, 128
TASK_MANAGER_OPTIONS = (
    f"-Xmx{HEAP + FRAMEWORK_HEAP}m",
    f"-XX:MaxDirectMemorySize={OFF_HEAP + FRAMEWORK_OFF_HEAP + NETWORK}m",
    f"-XX:MaxMetaspaceSize={METASPACE}m",
)


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
        **_memory(),
        **_recovery(),
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


def _memory() -> dict[str, str]:
    memory = {
        "taskmanager.memory.task.heap.size": HEAP,
        "taskmanager.memory.framework.heap.size": FRAMEWORK_HEAP,
        "taskmanager.memory.task.off-heap.size": OFF_HEAP,
        "taskmanager.memory.framework.off-heap.size": FRAMEWORK_OFF_HEAP,
        "taskmanager.memory.network.min": NETWORK,
        "taskmanager.memory.network.max": NETWORK,
        "taskmanager.memory.managed.size": MANAGED,
        "taskmanager.memory.jvm-metaspace.size": METASPACE,
        "taskmanager.memory.jvm-overhead.min": OVERHEAD,
        "taskmanager.memory.jvm-overhead.max": OVERHEAD,
    }
    return {"taskmanager.cpu.cores": "1.0", **{name: f"{size}m" for name, size in memory.items()}}


def _recovery() -> dict[str, str]:
    return {
        "heartbeat.interval": "1000",
        "heartbeat.timeout": "10000",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": str(2**31 - 1),
        "restart-strategy.fixed-delay.delay": "1 s",
    }
