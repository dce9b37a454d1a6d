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


@dataclass(frozen=True, slots=True)
class TaskManagerMemory:
    """In MiB. Started without Flink's scripts, a TaskManager wants every part given, and its JVM the same limits."""

    heap: int
    framework_heap: int
    off_heap: int
    framework_off_heap: int
    network: int
    managed: int
    metaspace: int
    overhead: int

    def settings(self) -> dict[str, str]:
        memory = {
            "taskmanager.memory.task.heap.size": self.heap,
            "taskmanager.memory.framework.heap.size": self.framework_heap,
            "taskmanager.memory.task.off-heap.size": self.off_heap,
            "taskmanager.memory.framework.off-heap.size": self.framework_off_heap,
            "taskmanager.memory.network.min": self.network,
            "taskmanager.memory.network.max": self.network,
            "taskmanager.memory.managed.size": self.managed,
            "taskmanager.memory.jvm-metaspace.size": self.metaspace,
            "taskmanager.memory.jvm-overhead.min": self.overhead,
            "taskmanager.memory.jvm-overhead.max": self.overhead,
        }
        return {"taskmanager.cpu.cores": "1.0", **{name: f"{size}m" for name, size in memory.items()}}

    def java_options(self) -> tuple[str, ...]:
        return (
            f"-Xmx{self.heap + self.framework_heap}m",
            f"-XX:MaxDirectMemorySize={self.off_heap + self.framework_off_heap + self.network}m",
            f"-XX:MaxMetaspaceSize={self.metaspace}m",
        )


_MEMORY = TaskManagerMemory(
    heap=320, framework_heap=64, off_heap=64, framework_off_heap=64, network=64, managed=64, metaspace=160, overhead=128
)
TASK_MANAGER_OPTIONS = _MEMORY.java_options()


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
        **_MEMORY.settings(),
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


def _recovery() -> dict[str, str]:
    return {
        "heartbeat.interval": "1000",
        "heartbeat.timeout": "10000",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": str(2**31 - 1),
        "restart-strategy.fixed-delay.delay": "1 s",
    }
