"""Jars of other systems: Spark's Kafka connector, spark-avro, Delta, Kafka Streams. From Maven, into the user's cache."""

from __future__ import annotations

from pathlib import Path

from headrace.testing.servers.jars import Bundle, installed

CONNECTOR_VERSION = "4.2.0"
AVRO_VERSION = "4.1.1"
"""The newest of spark-avro that Maven Central has."""

AVRO = Bundle(
    f"spark-avro {AVRO_VERSION}", f"spark-avro-{AVRO_VERSION}", (f"org.apache.spark:spark-avro_2.13:{AVRO_VERSION}",), 5, "7 MB"
)

STREAMS = Bundle(
    name="Kafka Streams 4.3.1",
    folder="kafka-streams-4.3.1",
    modules=("org.apache.kafka:kafka-streams:4.3.1", "org.slf4j:slf4j-simple:2.0.17"),
    jars=11,
    size="90 MB",
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
CONNECTOR = Bundle(
    name=f"Spark's Kafka connector {CONNECTOR_VERSION}",
    folder=f"spark-kafka-{CONNECTOR_VERSION}",
    modules=(
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
    jars=4,
    size="10 MB",
    configuration="master",
)


def jvm_connector_jars() -> list[str]:
    """Paths for `spark.jars`; downloads them when they are not there yet. Raises PeerError when that fails."""
    return sorted(str(jar) for jar in installed(CONNECTOR).glob("*.jar"))


def delta_jars() -> list[str]:
    """The same of Delta's own jars for Spark."""
    return sorted(str(jar) for jar in installed(DELTA).glob("*.jar"))


def spark_avro_jar() -> Path:
    """The jar of from_avro; downloads it when it is not there yet. Spark itself has what it needs besides."""
    return installed(AVRO) / AVRO.main_jar
