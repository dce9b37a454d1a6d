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


# In MiB. Started without Flink's scripts, a TaskManager wants every part given, and its JVM the same limits.
_MEMORY = {
    "task.heap.size": 320,
    "framework.heap.size": 64,
    "task.off-heap.size": 64,
    "framework.off-heap.size": 64,
    "network.min": 64,
    "network.max": 64,
    "managed.size": 64,
    "jvm-metaspace.size": 160,
    "jvm-overhead.min": 128,
    "jvm-overhead.max": 128,
}
_HEAP, _OFF_HEAP = (_MEMORY[f"task.{kind}.size"] + _MEMORY[f"framework.{kind}.size"] for kind in ("heap", "off-heap"))
TASK_MANAGER_OPTIONS = (
    f"-Xmx{_HEAP}m",
    f"-XX:MaxDirectMemorySize={_OFF_HEAP + _MEMORY['network.max']}m",
    f"-XX:MaxMetaspaceSize={_MEMORY['jvm-metaspace.size']}m",
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
        "taskmanager.cpu.cores": "1.0",
        **{f"taskmanager.memory.{name}": f"{size}m" for name, size in _MEMORY.items()},
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
