"""What the figures depend on besides the code: versions and the machine. No paths."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from benchmarks.jars import AVRO_VERSION, CONNECTOR_VERSION
from headrace.runners.user_cache import find_java
from headrace.testing.servers.kafka.jars import KAFKA, KAFKA_VERSION

PACKAGES = ("headrace", "pyspark", "apache-beam", "pyarrow", "kafka-python", "confluent-kafka", "cramjam", "crc32c", "fastavro")


def environment(broker: str) -> dict[str, Any]:
    """`broker` says where the broker comes from: "local", "external" or "none"."""
    return {
        "machine": {
            "processor": _processor(),
            "cpus": psutil.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            "python": platform.python_version(),
            "java": _first_line([str(find_java(KAFKA.name)), "-version"]),
            **({} if broker == "none" else {"kafka broker": KAFKA_VERSION if broker == "local" else "external"}),
            "spark-sql-kafka": CONNECTOR_VERSION,
            "spark-avro": AVRO_VERSION,
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "commit": _first_line(["git", "describe", "--always", "--dirty"]),
        "broker": broker,
    }


def _first_line(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603 - our own commands
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=Path(__file__).parent
    )
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else "unknown"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
