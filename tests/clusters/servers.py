"""Servers on the hosts of a rack: Kafka's brokers, and a standalone cluster of Spark."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyspark

from headrace.runners.spark_processes.class_archives import QUIET
from headrace.runners.spark_processes.spark_archive import archive_of_spark
from headrace.runners.user_cache import find_java
from headrace.testing.servers.kafka import create_topic
from headrace.testing.servers.kafka.class_archive import archive_options
from headrace.testing.servers.kafka.jars import KAFKA, kafka_jars
from headrace.testing.servers.kafka.security import make_security
from headrace.testing.servers.kafka.settings import CONTROLLER, PLAINTEXT, server_properties, write_properties
from headrace.testing.servers.processes import JAVA_OPTIONS, LOGGING_OPTIONS
from tests.clusters.rack import Host, Program, Rack, listening

HEAP = ("-Xmx384m",)
PORTS = {PLAINTEXT: 9092, CONTROLLER: 9093}
SPARK = Path(pyspark.__file__).parent
MASTER_PORT = 7077
QUICK = f"-XX:SharedArchiveFile={archive_of_spark().file} {QUIET}"
"""Options of a JVM of Spark, which starts in half the time. One that does not fit the file ignores it."""

CONFIG = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.retention.ms": "-1",
    "min.insync.replicas": "2",
}


class Brokers:
    """A broker on each host. Each has all partitions; two have to have a record."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = hosts
        advertised = {
            node: {name: f"{host.address}:{port}" for name, port in PORTS.items()} for node, host in enumerate(hosts, 1)
        }
        jars = kafka_jars()
        java = [find_java(KAFKA.name), "-cp", f"{jars}/*", *JAVA_OPTIONS, *LOGGING_OPTIONS, *archive_options(jars, HEAP), *HEAP]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._programs = [
            _broker(host, node, advertised, [str(word) for word in java], cluster) for node, host in enumerate(hosts, 1)
        ]
        for host, program in zip(hosts, self._programs, strict=True):
            listening(host, PORTS[PLAINTEXT], program)
        self.bootstrap = ",".join(reported[PLAINTEXT] for reported in advertised.values())

    def topic(self, name: str, partitions: int = 4) -> str:
        create_topic(self.bootstrap, name, partitions, len(self.hosts))
        return name


def _broker(host: Host, node: int, advertised: dict, java: Sequence[str], cluster: str) -> Program:
    home = host.folder / "kafka"
    home.mkdir()
    listeners = {"listeners": ",".join(f"{name}://{address}" for name, address in advertised[node].items())}
    plain = make_security((), {}, home)
    settings = home / "server.properties"
    write_properties(
        settings, server_properties(node, PORTS, advertised, Path("/tmp/kafka/data"), plain, {**CONFIG, **listeners})
    )
    format_it = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config", "/tmp/kafka/server.properties"]
    done = subprocess.run(host.command(*java, *format_it), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return host.start("broker", *java, "kafka.Kafka", "/tmp/kafka/server.properties")


class Standalone:
    """A master and workers of Spark, each on its own host."""

    def __init__(self, rack: Rack, workers: int, cores: int = 1) -> None:
        archive_of_spark().at_hand()
        self.master = rack.host("master")
        self.workers = [rack.host(f"worker{number}") for number in range(1, workers + 1)]
        self._cores = cores
        main = self._start(self.master, "Master", "--port", str(MASTER_PORT), "--webui-port", "8080")
        self.url = f"spark://{listening(self.master, MASTER_PORT, main)}"
        for worker in self.workers:
            self.start_worker(worker)

    def start_worker(self, host: Host, **variables: str) -> Program:
        """`variables`: of the worker and its executors."""
        cores = ("--cores", str(self._cores))
        return self._start(host, "Worker", *cores, "--memory", "2g", "--work-dir", "/tmp/work", self.url, **variables)

    def _start(self, host: Host, what: str, *options: str, **variables: str) -> Program:
        main = f"org.apache.spark.deploy.{what.lower()}.{what}"
        small = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK, "SPARK_HOME": str(SPARK)}
        return host.start(
            what.lower(), SPARK / "bin" / "spark-class", main, "--host", host.address, *options, **small, **variables
        )
