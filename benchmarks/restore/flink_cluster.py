"""Flink with a hot standby, as an operator would have it who wants a quick failover: settings and command lines.

ZooKeeper, which is Flink's own build of it; two JobManagers, of which one leads; two TaskManagers, of which one is enough for
the job. Flink's connector is in `lib`, so a failover neither fetches jars nor makes class loaders.

What Flink's documents do not speak of: a standby has run nothing of the job yet, and loading classes took half of its failover.
So the first processes are ended once the job runs, and keep what they have loaded for all that come after (Java's class data
sharing), as headrace does for its JVM on Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.runners.spark_processes.class_archives import QUIET
from headrace.runners.user_cache import find_java
from headrace.testing.servers.flink.programs import JOB_MANAGER, OPENED, TASK_MANAGER
from headrace.testing.servers.flink.settings import memory_options, memory_settings, memory_sizes, write_settings
from headrace.testing.servers.ports import HOST

CLUSTER = "/standby"
ROOT = "/flink"
REST_LEADER = f"{ROOT}{CLUSTER}/leader/rest_server/connection_info"
"""Where in ZooKeeper the leading JobManager states which REST interface is its own."""

TICK_MS = 500
SESSION_MS = 2000
"""A dead JobManager leads until its session ends: ZooKeeper does not go by its connections. Flink's default is 60 s.

On two cores with other work (load average 16) one of 2 s ended once in seven runs though all lived: shorter is not safe."""

HEARTBEAT_MS = 500
SILENCE_MS = 2000

LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} %m%n
# It writes the settings of every client.
logger.kafka.name = org.apache.flink.kafka.shaded
logger.kafka.level = WARN
"""
JAVA_OPTIONS = ("-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true")
ZOOKEEPER = "org.apache.flink.runtime.zookeeper.FlinkZooKeeperQuorumPeer"
SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Of ZooKeeper and the JobManagers. What a standby runs for the first time in a failover is compiled sooner."""

MEMORY = memory_sizes((1024, 128), (64, 128), metaspace=256, overhead=192)
WORK = (*memory_options(MEMORY), "-XX:+UseG1GC")  # as Flink's scripts have it

Command = Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of one cluster. `state` survives all its processes; `scratch` is for what they need while they run."""

    state: Path
    scratch: Path
    zookeeper_port: int

    @property
    def configuration(self) -> Path:
        """For --configDir, and FLINK_CONF_DIR."""
        return self.scratch / "conf"

    @property
    def library(self) -> Path:
        """For the class path, and FLINK_LIB_DIR."""
        return self.scratch / "lib"

    def classes(self, program: str) -> Path:
        """Which ones a program's processes load: written by the first of them as it ends."""
        return self.scratch / f"{program}.jsa"

    @property
    def logs(self) -> Path:
        """A file for each process."""
        return self.scratch / "logs"


def lay_out(places: Places, home: Path, connector: Path, settings: Mapping[str, str]) -> None:
    """Make the folders: Flink's jars and the connector (links), configuration of Flink and ZooKeeper."""
    for folder in (places.library, places.logs, places.scratch / "tmp", places.state / "zookeeper"):
        folder.mkdir(parents=True, exist_ok=True)
    for jar in (*home.joinpath("lib").glob("*.jar"), connector):
        places.library.joinpath(jar.name).symlink_to(jar)
    write_settings(places.configuration, settings)
    (places.configuration / "log4j.properties").write_text(LOGGING)
    (places.configuration / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in _zookeeper(places).items()))


def flink_settings(places: Places, slots: int) -> dict[str, str]:
    """All of the cluster's; the job brings its own."""
    return {
        "jobmanager.rpc.address": HOST,
        "jobmanager.bind-host": HOST,
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        # The job fits into one TaskManager; the other one is the spare.
        "taskmanager.numberOfTaskSlots": str(slots),
        "io.tmp.dirs": str(places.scratch / "tmp"),
        # All classes are in lib: nothing is uploaded, and one loader has them.
        "classloader.resolve-order": "parent-first",
        **_high_availability(places),
        **_failure_detection(),
        **memory_settings(MEMORY),
    }


def client_settings(places: Places) -> dict[str, str]:
    """Of the client that submits the job: it finds the leader by ZooKeeper."""
    return {"execution.target": "remote", **_high_availability(places)}


def _high_availability(places: Places) -> dict[str, str]:
    return {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": f"{HOST}:{places.zookeeper_port}",
        "high-availability.zookeeper.path.root": ROOT,
        "high-availability.cluster-id": CLUSTER,
        "high-availability.storageDir": places.state.joinpath("high-availability").as_uri(),
        # What decides how long a dead JobManager keeps its place.
        "high-availability.zookeeper.client.session-timeout": f"{SESSION_MS} ms",
        # Not more than the session may last, or Curator's own wait comes first. By default 15 s.
        "high-availability.zookeeper.client.connection-timeout": f"{SESSION_MS} ms",
        # By default 5 s: after a connection that broke, a JobManager would be away for longer than its session lasts.
        "high-availability.zookeeper.client.retry-wait": "100 ms",
        "high-availability.zookeeper.client.max-retry-attempts": "20",
        # A connection that breaks and comes back within the session costs no leadership: what is short otherwise may be.
        "high-availability.zookeeper.client.tolerate-suspended-connections": "true",
    }


def _failure_detection() -> dict[str, str]:
    return {
        # By default 10 s and 50 s.
        "heartbeat.interval": f"{HEARTBEAT_MS} ms",
        "heartbeat.timeout": f"{SILENCE_MS} ms",
        # A dead process refuses connections: the first heartbeat that cannot be delivered is enough. By default two.
        "heartbeat.rpc-failure-threshold": "1",
        # How long a TaskManager or a JobMaster waits before it registers again, where the leader does not answer yet: by
        # default up to 30 s, 10 s after an error, 30 s after a refusal.
        "cluster.registration.initial-timeout": "100 ms",
        "cluster.registration.max-timeout": "500 ms",
        "cluster.registration.error-delay": "100 ms",
        "cluster.registration.refused-registration-delay": "100 ms",
        # Calls to the dead are given up sooner. By default 10 s, and 20 s for a connection.
        "pekko.ask.timeout": "5 s",
        "pekko.tcp.timeout": "2 s",
        # So slots are matched to the job as soon as the spare TaskManager has registered. By default 50 ms each.
        "slotmanager.requirement-check.delay": "0 ms",
        "slotmanager.declare-needed-resource.delay": "0 ms",
        # Only the tasks of what has failed are restarted; each task of the job is its own region. The default.
        "jobmanager.execution.failover-strategy": "region",
        # The default for streams. The adaptive one would start with fewer slots, and rescale.
        "jobmanager.scheduler": "Default",
        # Only for who looks (how old the REST interface's answers may be). By default 3 s.
        "web.refresh-interval": "200 ms",
    }


def _zookeeper(places: Places) -> dict[str, str]:
    """A session lasts at least two ticks; its end is noticed within one more."""
    return {
        "tickTime": str(TICK_MS),
        "clientPort": str(places.zookeeper_port),
        "clientPortAddress": HOST,
        "dataDir": str(places.state / "zookeeper"),
        "admin.enableServer": "false",
    }


class Programs:
    """The command lines. Raises UsageError without Java."""

    def __init__(self, places: Places) -> None:
        self._places = places
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
        log = f"-Dlog4j.configurationFile={places.configuration / 'log4j.properties'}"
        temporary = f"-Djava.io.tmpdir={places.scratch / 'tmp'}"
        self._java: list[str | Path] = [
            find_java("Flink"), "-cp", places.library / "*", *JAVA_OPTIONS, log, temporary, *opened
        ]  # fmt: skip

    def zookeeper(self) -> Command:
        """A single server."""
        return [*self._java, *SMALL, ZOOKEEPER, "--zkConfigFile", self._places.configuration / "zoo.cfg", "--peerId", "1"]

    def job_manager(self, rest_port: int) -> Command:
        """One that leads, or waits to. `rest_port` distinguishes it from others in what ZooKeeper knows of the leader."""
        return [*self._java, *self._classes(JOB_MANAGER), *SMALL, JOB_MANAGER, *self._configured(f"rest.port={rest_port}")]

    def task_manager(self, name: str) -> Command:
        """`name` distinguishes it from others in what Flink reports about its TaskManagers."""
        return [
            *self._java,
            *self._classes(TASK_MANAGER),
            *WORK,
            TASK_MANAGER,
            *self._configured(f"taskmanager.resource-id={name}"),
        ]

    def kept(self) -> bool:
        """Whether the classes of both are there."""
        return all(self._places.classes(program).is_file() for program in (JOB_MANAGER, TASK_MANAGER))

    def _classes(self, program: str) -> Command:
        file = self._places.classes(program)
        return [f"-XX:{'SharedArchiveFile' if file.is_file() else 'ArchiveClassesAtExit'}={file}", QUIET]

    def _configured(self, dynamic: str) -> Command:
        return ["--configDir", self._places.configuration, "-D", dynamic]
