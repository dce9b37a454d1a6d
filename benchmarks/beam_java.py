"""Java's KafkaIO for Python pipelines: what expands it, and what runs its part of a pipeline, with no Docker."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from headrace.enumerator.errors import PeerError, RetriableError
from headrace.runners.user_cache import find_java
from headrace.runners.waiting import wait_until
from headrace.testing.servers.jars import Bundle, installed
from headrace.testing.servers.ports import HOST, is_listening, reserved_ports
from headrace.testing.servers.processes import JAVA_OPTIONS, LOGGING_OPTIONS, ServerProcess, guarded

VERSION = "2.70.0"
# Beam's wrapper would download it all in one jar, which is not everywhere to be had; so it is put together from its parts.
KAFKA_IO = Bundle(
    name=f"Beam's KafkaIO {VERSION} and its expansion service",
    folder=f"beam-kafka-io-{VERSION}",
    modules=(
        f"org.apache.beam:beam-sdks-java-io-kafka:{VERSION}",
        f"org.apache.beam:beam-sdks-java-expansion-service:{VERSION}",
        f"org.apache.beam:beam-sdks-java-harness:{VERSION}",
        "org.apache.kafka:kafka-clients:3.9.2",
        "com.github.jbellis:jamm:0.4.0",
        "org.slf4j:slf4j-simple:2.0.17",
    ),
    jars=134,
    size="141 MB, some minutes",
    without=("io.confluent",),  # for the schema registry; not on Maven Central
)
SERVICE = "org.apache.beam.sdk.expansion.service.ExpansionService"
WORKERS = "org.apache.beam.fn.harness.ExternalWorkerService"
LOG_LINES = 40


@contextmanager
def expansion_service() -> Iterator[str]:
    """Give its `host:port`, for `expansion_service=`; end it with the context or this process.

    What it expands is run by a second process of Java, on whatever runner: Docker would be the default. Raises UsageError
    without Java or PySpark (which downloads), PeerError when the download fails or one of them ends.
    """
    jars = installed(KAFKA_IO)
    java: list[str | Path] = [find_java(KAFKA_IO.name), "-cp", f"{jars}/*", "-Xmx512m", *JAVA_OPTIONS, *LOGGING_OPTIONS]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-kafkaio-")))
        group, ports = stack.enter_context(guarded(directory)), stack.enter_context(reserved_ports())

        def serve(port: int, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
            server = ServerProcess([*java, *arguments], directory / f"{port}.log", group, environment)
            server.start()
            stack.callback(server.kill)
            wait_until(partial(_look, server, port), f"{arguments[0]} did not start")
            return f"{HOST}:{port}"

        port = ports.reserve()
        options = json.dumps({"beam:option:environment_options:v1": [f"external_service_address={HOST}:{port}"]})
        workers = serve(port, WORKERS, environment={**os.environ, "PIPELINE_OPTIONS": options})
        port = ports.reserve()
        yield serve(port, SERVICE, str(port), "--defaultEnvironmentType=EXTERNAL", f"--defaultEnvironmentConfig={workers}")


def _look(server: ServerProcess, port: int) -> None:
    if not server.is_running():
        raise PeerError(f"{KAFKA_IO.name} ended. The end of its log:\n{server.log_tail(LOG_LINES)}")
    if not is_listening(f"{HOST}:{port}"):
        raise RetriableError("nothing listens")
