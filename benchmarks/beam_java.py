"""Java's KafkaIO for Python pipelines: what expands it, and runs its part of a pipeline in the same process, with no Docker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from headrace.enumerator.errors import PeerError, RetriableError
from headrace.harness.jars import Bundle, find_java, installed
from headrace.harness.ports import HOST, is_listening, reserved_ports
from headrace.harness.processes import JAVA_OPTIONS, LOGGING_OPTIONS, ServerProcess, guarded
from headrace.harness.waiting import wait_until

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
LOG_LINES = 40


@contextmanager
def expansion_service() -> Iterator[str]:
    """Give its `host:port`, for `expansion_service=`; end it with the context or this process.

    Raises UsageError without Java or PySpark (which downloads), PeerError when the download fails or the service ends.
    """
    jars = installed(KAFKA_IO)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-kafkaio-")))
        port = stack.enter_context(reserved_ports()).reserve()
        options = ["-Xmx512m", *JAVA_OPTIONS, *LOGGING_OPTIONS]
        command: list[str | Path] = [
            find_java(KAFKA_IO.name),
            "-cp",
            f"{jars}/*",
            *options,
            SERVICE,
            str(port),
            "--alsoStartLoopbackWorker",
        ]
        server = ServerProcess(command, directory / "log", stack.enter_context(guarded(directory)))
        server.start()
        stack.callback(server.kill)
        address = f"{HOST}:{port}"

        def look() -> None:
            if not server.is_running():
                raise PeerError(f"{KAFKA_IO.name} ended. The end of its log:\n{server.log_tail(LOG_LINES)}")
            if not is_listening(address):
                raise RetriableError("nothing listens")

        wait_until(look, f"{KAFKA_IO.name} did not start")
        yield address
