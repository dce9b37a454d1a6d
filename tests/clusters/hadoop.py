"""HDFS and YARN on the hosts of a rack: Hadoop's own servers, each in its own process."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from headrace.runners.user_cache import find_java
from headrace.testing.servers.processes import JAVA_OPTIONS
from tests.clusters.rack import Host, Program, Rack, listening
from tests.helpers.hadoop import hadoop_classes

HDFS_PORT, MANAGER_PORT, NODE_PORT = 9000, 8032, 8041
SERVER = "org.apache.hadoop.hdfs.server", "org.apache.hadoop.yarn.server"


class Hadoop:
    """HDFS on one host, YARN's resource manager on another, and node managers on others."""

    def __init__(self, rack: Rack, nodes: int, **variables: str) -> None:
        """`variables`: of the node managers, which pass them to all containers."""
        self.conf = rack.folder / "hadoop"
        self.conf.mkdir()
        self.hdfs, self.manager = rack.host("hdfs"), rack.host("yarn")
        self.nodes = [rack.host(f"node{number}") for number in range(1, nodes + 1)]
        self.url = f"hdfs://{self.hdfs.address}:{HDFS_PORT}"
        _write(self.conf / "core-site.xml", {"fs.defaultFS": self.url, "hadoop.tmp.dir": "/tmp/hadoop"})
        _write(self.conf / "hdfs-site.xml", self._of_hdfs())
        _write(self.conf / "yarn-site.xml", self._of_yarn(variables))
        _write(self.conf / "capacity-scheduler.xml", QUEUES)
        self._classes = hadoop_classes()
        formatted = subprocess.run(
            self.hdfs.command(*self._java("hdfs.server.namenode.NameNode"), "-format", "-force", "-nonInteractive"),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert formatted.returncode == 0, formatted.stdout + formatted.stderr
        name = self._start(self.hdfs, "hdfs.server.namenode.NameNode")
        manager = self._start(self.manager, "yarn.server.resourcemanager.ResourceManager")
        listening(self.hdfs, HDFS_PORT, name)
        data = self._start(self.hdfs, "hdfs.server.datanode.DataNode")
        listening(self.hdfs, 9866, data)
        listening(self.manager, MANAGER_PORT, manager)
        started = [self._start(host, "yarn.server.nodemanager.NodeManager", **variables) for host in self.nodes]
        for host, node in zip(self.nodes, started, strict=True):
            listening(host, NODE_PORT, node)

    def _of_hdfs(self) -> dict[str, str]:
        return {
            "dfs.replication": "1",
            "dfs.namenode.rpc-address": f"{self.hdfs.address}:{HDFS_PORT}",
            "dfs.datanode.address": f"{self.hdfs.address}:9866",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.permissions.enabled": "false",
        }

    def _of_yarn(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {
            "yarn.resourcemanager.hostname": self.manager.address,
            "yarn.resourcemanager.am.max-attempts": "4",
            "yarn.am.liveness-monitor.expiry-interval-ms": "120000",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "60000",
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
            "yarn.nodemanager.address": f"0.0.0.0:{NODE_PORT}",
            "yarn.nodemanager.log-dirs": "/tmp/containers",
            "yarn.nodemanager.resource.memory-mb": "4096",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.delete.debug-delay-sec": "3600",
            "yarn.nodemanager.env-whitelist": ",".join(["JAVA_HOME", *variables]),
            "yarn.scheduler.minimum-allocation-mb": "128",
        }

    def _java(self, main: str) -> list[str]:
        options = (*JAVA_OPTIONS, "-Xmx256m", "-Dlog4j2.level=INFO", "-cp", f"{self.conf}:{self._classes}")
        return [*map(str, (find_java("Hadoop"), *options)), f"org.apache.hadoop.{main}"]

    def _start(self, host: Host, main: str, **variables: str) -> Program:
        return host.start(main.rsplit(".", 1)[1].lower(), *self._java(main), **variables)


QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    "yarn.scheduler.capacity.resource-calculator": "org.apache.hadoop.yarn.util.resource.DefaultResourceCalculator",
}


def _write(path: Path, settings: Mapping[str, str]) -> None:
    items = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>\n" for name, value in settings.items()
    )
    path.write_text(f"<configuration>\n{items}</configuration>\n")
