"""The programs of the cluster: where they come from, how they are called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.runners.user_cache import find_java
from headrace.testing.servers.jars import Bundle, installed
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
OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.text",
    "java.base/java.time",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.util.concurrent.locks",
    "java.base/sun.net.util",
    "java.base/sun.nio.ch",
)
JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
JOB_SERVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
JOB_MANAGER_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1")
JOB_SERVER_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1")

Command = Sequence[str | Path]


class Programs:
    """The command lines of one cluster."""

    def __init__(self, configuration: Path) -> None:
        """`configuration` is the folder with Flink's config.yaml.

        Raises UsageError without Java or PySpark (which downloads), PeerError when the download fails.
        """
        jars = installed(FLINK)
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
        self._java: list[str | Path] = [find_java(FLINK.name), "-cp", f"{jars}/*", *JAVA_OPTIONS, *LOGGING_OPTIONS, *opened]
        self._configuration = configuration

    def job_manager(self) -> Command:
        return [*self._java, *JOB_MANAGER_OPTIONS, JOB_MANAGER, "--configDir", self._configuration]

    def task_manager(self, options: Sequence[str]) -> Command:
        return [*self._java, *options, TASK_MANAGER, "--configDir", self._configuration]

    def job_server(self, host: str, port: int, rest: str, artifacts: Path) -> Command:
        """Beam's job server, which submits pipelines to the cluster at `rest`."""
        places = {"job-host": host, "job-port": port, "artifact-port": 0, "expansion-port": 0, "flink-master": rest}
        flags = [f"--{name}={value}" for name, value in places.items()]
        return [
            *self._java,
            *JOB_SERVER_OPTIONS,
            JOB_SERVER,
            *flags,
            f"--flink-conf-dir={self._configuration}",
            f"--artifacts-dir={artifacts}",
        ]

    @staticmethod
    def worker_pool(python: Path, port: int) -> Command:
        """What starts a Python worker whenever a TaskManager asks for one: Beam's EXTERNAL environment."""
        return [python, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
