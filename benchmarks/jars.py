"""Jars that Spark has beside ours: its Kafka connector, spark-avro, Delta. From Maven Central, into the user's cache."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from headrace.harness.jars import Bundle, cache_directory, find_ivy, find_java, installed
from headrace.harness.kafka.jars import KAFKA

CONNECTOR_VERSION = "4.2.0"
AVRO_VERSION = "4.1.1"
"""The newest of spark-avro that Maven Central has."""

AVRO = Bundle(
    f"spark-avro {AVRO_VERSION}", f"spark-avro-{AVRO_VERSION}", (f"org.apache.spark:spark-avro_2.13:{AVRO_VERSION}",), 5, "7 MB"
)

DELTA = Bundle(
    name="Delta for Spark 4.4.0",
    folder="delta-spark-4.4.0",
    modules=("io.delta:delta-spark_4.2_2.13:4.4.0",),
    jars=6,
    size="20 MB",
    without=("org.apache.spark", "org.scala-lang", "com.fasterxml.jackson.core", "com.fasterxml.jackson.module", "org.slf4j"),
)

# What `--packages` would bring, less what is in Spark already. The token provider has no 4.2.0 on Maven Central.
_MODULES = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)

_IVY_FILE = """\
<ivy-module version="2.0">
  <info organisation="headrace" module="jvm-connector"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


def jvm_connector_jars() -> list[str]:
    """Paths for `spark.jars`; downloads them (10 MB) when they are not there yet. Raises RuntimeError when that fails."""
    jars = cache_directory() / f"spark-kafka-{CONNECTOR_VERSION}"
    jars.parent.mkdir(parents=True, exist_ok=True)
    with jars.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            _download(jars)
    return sorted(str(jar) for jar in jars.glob("*.jar"))


def delta_jars() -> list[str]:
    """The same of Delta's own jars for Spark. Raises PeerError when the download fails."""
    return sorted(str(jar) for jar in installed(DELTA).glob("*.jar"))


def spark_avro_jar() -> Path:
    """The jar of from_avro; downloads it when it is not there yet. Spark itself has what it needs besides."""
    return installed(AVRO) / AVRO.main_jar


def _download(jars: Path) -> None:
    partial = jars.with_suffix(".partial")
    partial.mkdir(exist_ok=True)
    dependencies = "\n".join(
        f'    <dependency org="{org}" name="{name}" rev="{version}" conf="default->master"/>' for org, name, version in _MODULES
    )
    (partial / "ivy.xml").write_text(_IVY_FILE.format(dependencies=dependencies))
    command: list[str | Path] = [
        find_java(KAFKA.name),
        "-cp",
        find_ivy(KAFKA),
        "org.apache.ivy.Main",
        "-cache",
        partial / "ivy",
    ]
    command += ["-ivy", partial / "ivy.xml", "-retrieve", f"{partial}/jars/[artifact]-[revision].[ext]"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)  # noqa: S603 - our own command
    found = list((partial / "jars").glob("*.jar"))
    if done.returncode or len(found) != len(_MODULES):
        raise RuntimeError("downloading Spark's Kafka connector failed:\n" + "\n".join(done.stdout.splitlines()[-20:]))
    (partial / "jars").rename(jars)
    shutil.rmtree(partial)
