"""Submits the Flink job to a cluster. Run by the Python of PyFlink's own environment, with FLINK_HOME and FLINK_LIB_DIR.

    python flink_submit.py <json>, a Job (systems.py) with "client": what Flink's client needs to find the cluster

It ends when the cluster has the job.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from flink_job import COPY, settings, tables
from pyflink.table import EnvironmentSettings, TableEnvironment  # pyright: ignore[reportMissingImports] - has its own environment

FOR_EVER = {"restart-strategy.fixed-delay.attempts": str(2**31 - 1)}
"""By default a job is restarted once."""


def main(request: dict[str, Any]) -> None:
    """Once in a run: after a kill the standby JobManager finds the job in the store of high availability."""
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in {**request["client"], **settings(request), **FOR_EVER}.items():
        environment.get_config().set(key, value)
    for statement in tables(request):
        environment.execute_sql(statement)
    environment.execute_sql(COPY)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
