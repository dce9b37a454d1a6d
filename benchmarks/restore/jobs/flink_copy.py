"""A Flink job to be killed: KafkaSource to KafkaSink in SQL, exactly once. Run by the Python of PyFlink's own environment.

    python flink_copy.py <json>, a Job (systems.py) with "jar"

The cluster is in this process's JVM. A restart goes on from the newest complete checkpoint that the one before has left.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from checkpoints import newest_checkpoint
from marks import mark
from pyflink.table import EnvironmentSettings, TableEnvironment  # pyright: ignore[reportMissingImports] - has its own environment

CHECKPOINT_INTERVAL = "500 ms"
TABLE = "CREATE TABLE {name} (k BYTES, v BYTES) WITH ({options})"


def settings(told: dict[str, Any]) -> dict[str, str]:
    """Flink's configuration: two cores, a checkpoint twice a second."""
    directory = Path(told["state"], "checkpoints")
    directory.mkdir(exist_ok=True)
    chosen = {
        "pipeline.jars": f"file://{told['jar']}",
        "pipeline.object-reuse": "true",
        "parallelism.default": str(told["parallelism"]),
        "execution.checkpointing.interval": CHECKPOINT_INTERVAL,
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{directory}",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.num-retained": "3",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": "100 ms",
    }
    newest = newest_checkpoint(directory)
    return chosen | ({} if newest is None else {"execution.state-recovery.path": f"file://{newest}"})


def table(told: dict[str, Any], topic: str, options: dict[str, str]) -> str:
    """The options of a topic's table."""
    given = {
        "connector": "kafka",
        "topic": topic,
        "properties.bootstrap.servers": told["bootstrap"],
        "key.format": "raw",
        "key.fields": "k",
        "value.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
        **options,
    }
    return ", ".join(f"'{key}' = '{value}'" for key, value in given.items())


def main(told: dict[str, Any]) -> None:
    """Until killed."""
    mark(told, "python")
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in settings(told).items():
        tables.get_config().set(key, value)
    mark(told, "session")
    reading = {"scan.startup.mode": "earliest-offset", "scan.topic-partition-discovery.interval": "1 s"}
    writing = {
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": told["name"],
        "properties.transaction.timeout.ms": "900000",
    }
    tables.execute_sql(TABLE.format(name="input_topic", options=table(told, told["source"], reading)))
    tables.execute_sql(TABLE.format(name="output_topic", options=table(told, told["target"], writing)))
    result = tables.execute_sql("INSERT INTO output_topic SELECT k, v FROM input_topic")
    mark(told, "query")
    result.wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
