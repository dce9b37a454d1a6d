"""A supervised Spark job with a standby: `spark_copy.py`'s query, whose active driver is to be killed.

    python spark_standby.py <json>, as for spark_copy.py, with "standbys": how many there are

With the setting that the how-to gives for a sooner takeover: Spark forks a `chmod` for each checksum file of its checkpoint.

`status.json` alongside the job's state states which driver is active, and whether the standby waits.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from marks import mark
from spark_copy import settings, start_query

TOLD = "RESTORE_JOB"
SOONER = {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"}


def job(spark: Any) -> Any:  # noqa: ANN401 - Spark's
    """In a driver: called for the dry run, and when it runs the job."""
    request = json.loads(os.environ[TOLD])
    mark(request, "called")
    query = start_query(spark, request)
    mark(request, "query")
    return query


def main(request: dict[str, Any]) -> None:
    """Until killed."""
    from headrace.run import FixedDelay
    from headrace.spark import run

    os.environ[TOLD] = json.dumps(request)
    status = Path(request["state"]).parent / "status.json"
    run(job, standby=request["standbys"], restart=FixedDelay(attempts=1000), conf=settings(request) | SOONER, status=status)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
