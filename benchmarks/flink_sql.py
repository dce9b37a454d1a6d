"""Flink's side of the benchmarks: topics copied by Flink SQL. Run by PyFlink's own environment (flink_systems.py).

Reads one JSON request a line (`source`, `sink`, `bootstrap`), copies key and value of the whole source topic exactly once, and
answers with a line of JSON: the seconds from the statement to the end of its job, when the last transactions are committed.
"""

from __future__ import annotations

import json
import sys
import time
import uuid

from pyflink.table import EnvironmentSettings, TableEnvironment  # pyright: ignore[reportMissingImports] - has its own environment

PARALLELISM = 2
CHECKPOINT_INTERVAL = "1 s"
COLUMNS = "k BYTES, v BYTES"


def table(name: str, bootstrap: str, topic: str, options: dict[str, str]) -> str:
    """The statement that declares a topic."""
    given = {
        "connector": "kafka",
        "topic": topic,
        "properties.bootstrap.servers": bootstrap,
        "key.format": "raw",
        "key.fields": "k",
        "value.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
        **options,
    }
    options_sql = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    return f"CREATE TABLE {name} ({COLUMNS}) WITH ({options_sql})"


def copy(tables: TableEnvironment, bootstrap: str, source: str, sink: str) -> float:
    """Copy the topic as it is now; gives the seconds it took."""
    reading = {"scan.startup.mode": "earliest-offset", "scan.bounded.mode": "latest-offset"}
    # No longer than the broker allows by default; Flink's own default is longer than that and is refused.
    writing = {
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": f"bench-{uuid.uuid4().hex}",
        "properties.transaction.timeout.ms": "900000",
    }
    for name, topic, options in (("source", source, reading), ("sink", sink, writing)):
        tables.execute_sql(f"DROP TABLE IF EXISTS {name}_topic")
        tables.execute_sql(table(f"{name}_topic", bootstrap, topic, options))
    started = time.perf_counter()
    tables.execute_sql("INSERT INTO sink_topic SELECT k, v FROM source_topic").wait()
    return time.perf_counter() - started


def main(jar: str) -> None:
    """Answer requests until the input ends."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        "pipeline.jars": f"file://{jar}",
        "parallelism.default": str(PARALLELISM),
        "execution.checkpointing.interval": CHECKPOINT_INTERVAL,
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "pipeline.object-reuse": "true",
    }
    for key, value in settings.items():
        tables.get_config().set(key, value)
    for line in sys.stdin:
        request = json.loads(line)
        seconds = copy(tables, request["bootstrap"], request["source"], request["sink"])
        sys.stdout.write(json.dumps({"seconds": seconds}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
