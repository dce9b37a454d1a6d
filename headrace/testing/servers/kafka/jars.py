"""Apache Kafka's jars."""

from __future__ import annotations

from pathlib import Path

from headrace.testing.servers.jars import Bundle, installed

KAFKA_VERSION = "4.3.1"

KAFKA = Bundle(
    name=f"Apache Kafka {KAFKA_VERSION}",
    folder=f"kafka-{KAFKA_VERSION}",
    # Kafka's own dependencies hold no logging back end; without one a broker that fails would not say why.
    modules=(f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36"),
    jars=45,
    size="44 MB",
    instead=("; or start a Docker engine and install testcontainers; or set HEADRACE_BOOTSTRAP to a broker that runs already"),
)


def kafka_jars() -> Path:
    """The directory holding Apache Kafka's jars, as `headrace.testing.servers.jars.installed` gives it."""
    return installed(KAFKA)
