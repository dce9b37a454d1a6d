"""The Flink job that is killed, without PyFlink: its settings and its statements, whatever cluster it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHECKPOINT_MS = 500
RESTART_DELAY = "100 ms"
TABLE = "CREATE TABLE {name} (k BYTES, v BYTES) WITH ({options})"
COPY = "INSERT INTO output_topic SELECT k, v FROM input_topic"


def checkpoints(request: dict[str, Any]) -> Path:
    """Where its checkpoints are."""
    directory = Path(request["state"], "checkpoints")
    directory.mkdir(exist_ok=True)
    return directory


def settings(request: dict[str, Any]) -> dict[str, str]:
    """Of the job: two cores, a checkpoint twice a second, or every `interval_ms`."""
    return {
        "pipeline.object-reuse": "true",
        "parallelism.default": str(request["parallelism"]),
        "execution.checkpointing.interval": f"{request.get('interval_ms', CHECKPOINT_MS)} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": checkpoints(request).as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.num-retained": "3",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": RESTART_DELAY,
    }


def tables(request: dict[str, Any]) -> list[str]:
    """The statements that declare both topics. COPY is the job."""
    looks = f"{request.get('discovery_s', 1)} s"
    reading = {"scan.startup.mode": "earliest-offset", "scan.topic-partition-discovery.interval": looks}
    writing = {
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": request["name"],
        "properties.transaction.timeout.ms": "900000",
    }
    return [
        _table("input_topic", request, request["source"], reading),
        _table("output_topic", request, request["target"], writing),
    ]


def _table(name: str, request: dict[str, Any], topic: str, options: dict[str, str]) -> str:
    given = {
        "connector": "kafka",
        "topic": topic,
        "properties.bootstrap.servers": request["bootstrap"],
        "key.format": "raw",
        "key.fields": "k",
        "value.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
        **options,
    }
    return TABLE.format(name=name, options=", ".join(f"'{key}' = '{value}'" for key, value in given.items()))
