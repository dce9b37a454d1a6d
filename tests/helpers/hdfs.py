"""A small HDFS on this machine: name node and data node of Hadoop's own test jar, in one Java process with Spark's jars."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from headrace.enumerator.errors import PeerError, RetriableError
from headrace.runners.user_cache import find_java
from headrace.runners.waiting import wait_until
from headrace.testing.servers.jars import Bundle, installed
from headrace.testing.servers.ports import HOST, reserved_ports
from headrace.testing.servers.processes import JAVA_OPTIONS, ServerProcess, guarded

_ASSERTIONS = (
    "org.junit.jupiter:junit-jupiter-api:5.8.2",
    "org.junit.platform:junit-platform-commons:1.8.2",
    "org.opentest4j:opentest4j:1.2.0",
)
"""It makes its folders by a method of tests."""


def spark_jars() -> Path:
    """Which have Hadoop's client, and what it needs."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "jars")


def hadoop_version() -> str:
    (jar,) = spark_jars().glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def minicluster() -> Path:
    """The folder of its jars, downloaded once."""
    version = hadoop_version()
    bundle = Bundle(
        name=f"Hadoop's minicluster {version}", folder=f"hadoop-minicluster-{version}",
        modules=(f"org.apache.hadoop:hadoop-client-minicluster:{version}", *_ASSERTIONS), jars=4, size="30 MB",
        configuration="master",
    )  # fmt: skip
    return installed(bundle)


@contextmanager
def started_hdfs(directory: Path) -> Iterator[str]:
    """Its address, as in `hdfs://127.0.0.1:1234`. All of it goes with the context."""
    jars, details = minicluster(), directory / "details.json"
    with reserved_ports() as ports, guarded(directory) as group:
        port = ports.reserve()
        server = ServerProcess(
            [
                *(
                    find_java("HDFS"), *JAVA_OPTIONS, "-Xmx512m", f"-Dtest.build.data={directory}",
                    f"-Dhadoop.tmp.dir={directory}",
                ),
                *("-cp", f"{jars}/*:{spark_jars()}/*", "org.apache.hadoop.test.MiniDFSClusterManager"),
                *("-format", "-datanodes", "1", "-nnport", str(port), "-writeDetails", details),
            ],
            directory / "hdfs.log", group,
        )  # fmt: skip
        server.start()
        try:
            wait_until(lambda: _check(server, details, directory / "hdfs.log"), "HDFS has not started")
            yield f"hdfs://{HOST}:{port}"
        finally:
            server.kill()


def _check(server: ServerProcess, details: Path, log: Path) -> None:
    if not server.is_running:
        raise PeerError(f"HDFS has ended: {log.read_text(errors='replace')[-3000:]}")
    if not details.exists() or not details.read_text().strip():
        raise RetriableError("it has not written where it is")
