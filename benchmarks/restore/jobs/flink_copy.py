"""A Flink job to be killed: KafkaSource to KafkaSink in SQL, exactly once. Run by the Python of PyFlink's own environment.

    python flink_copy.py <json>, a Job (systems.py) with "jar"

The cluster is in this process's JVM. A restart continues from the newest complete checkpoint that the previous one has left.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from checkpoints import newest_checkpoint
from flink_job import COPY, checkpoints, settings, tables
from marks import mark
from pyflink.table import EnvironmentSettings, TableEnvironment  # pyright: ignore[reportMissingImports] - has its own environment


def all_settings(request: dict[str, Any]) -> dict[str, str]:
    """The job's, its jar, and what it continues from."""
    chosen = {**settings(request), "pipeline.jars": f"file://{request['jar']}"}
    newest = newest_checkpoint(checkpoints(request))
    return chosen | ({} if newest is None else {"execution.state-recovery.path": f"file://{newest}"})


def main(request: dict[str, Any]) -> None:
    """Until killed."""
    mark(request, "python")
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in all_settings(request).items():
        environment.get_config().set(key, value)
    mark(request, "session")
    for statement in tables(request):
        environment.execute_sql(statement)
    result = environment.execute_sql(COPY)
    mark(request, "query")
    result.wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
