"""The programs of the cluster: where they come from, how they are called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.runners.user_cache import find_java
from headrace.testing.servers.flink import servers
from headrace.testing.servers.flink.settings import TASK_MANAGER_OPTIONS, Places
from headrace.testing.servers.jars import Bundle, installed
from headrace.testing.servers.ports import HOST
from headrace.testing.servers.processes import JAVA_OPTIONS, LOGGING_OPTIONS

FLINK_VERSION = "1.19.0"
RUNNER_VERSION = "2.62.0"

# Maven Central lacks the one-jar job server; the newer runner (2.70.0) has no job service of its own version there, and works
# only with an older one and without a part of that one's dependencies.
FLINK = Bundle(
    name=f"Flink {FLINK_VERSION} with Beam's runner {RUNNER_VERSION}",
    # Beam's job server uploads every jar of its class path to Flink, 15 s for each job, but for those whose path has these two
    # names (PipelineResources.isStageable), and Flink's processes have the same class path anyway.
    folder=f"gradle/wrapper/flink-{FLINK_VERSION}-beam-{RUNNER_VERSION}",
    modules=(f"org.apache.beam:beam-runners-flink-1.19:{RUNNER_VERSION}", "org.slf4j:slf4j-simple:1.7.36"),
    jars=170,
    size="155 MB, some minutes",
)

# What Flink's own scripts open for Java 17.
_PACKAGES = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.text java.time java.util java.util.concurrent "
    "java.util.concurrent.atomic java.util.concurrent.locks sun.net.util sun.nio.ch"
)
OPENED = tuple(f"java.base/{package}" for package in _PACKAGES.split())
JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
_JOB_SERVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_WORKER_POOL = "apache_beam.runners.worker.worker_pool_main"
_SMALL = ("-Xmx256m", "-XX:TieredStopAtLevel=1")

Command = Sequence[str | Path]


def commands(configuration: Path, places: Places) -> dict[str, Command]:
    """The command line of each server, by its name. `configuration` is the folder with Flink's config.yaml.

    Raises UsageError without Java or PySpark (which downloads), PeerError when the download fails.
    """
    jars = installed(FLINK)
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
    java: list[str | Path] = [find_java(FLINK.name), "-cp", f"{jars}/*", *JAVA_OPTIONS, *LOGGING_OPTIONS, *opened]
    flags = {
        "job-host": HOST,
        "job-port": places.job_server,
        "artifact-port": 0,
        "expansion-port": 0,
        "flink-master": f"{HOST}:{places.rest}",
        "flink-conf-dir": configuration,
        "artifacts-dir": places.scratch / "artifacts",
    }
    return {
        servers.JOB_MANAGER: [*java, *_SMALL, JOB_MANAGER, "--configDir", configuration],
        servers.TASK_MANAGER: [*java, *TASK_MANAGER_OPTIONS, TASK_MANAGER, "--configDir", configuration],
        servers.JOB_SERVER: [*java, *_SMALL, _JOB_SERVER, *(f"--{name}={value}" for name, value in flags.items())],
        # Starts a Python worker whenever a TaskManager asks for one: Beam's EXTERNAL environment.
        servers.WORKERS: [sys.executable, "-m", _WORKER_POOL, f"--service_port={places.workers}"],
    }
