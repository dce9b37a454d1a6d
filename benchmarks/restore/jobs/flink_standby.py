"""A Flink cluster with a hot standby, whose leading JobManager and TaskManager running are to be killed: flink_copy.py's job.

    python flink_standby.py <json>, a Job (systems.py) with "jar", "python" of PyFlink's environment, and "home", Flink's folder

`status.json` alongside the job's state states which processes are running, and whether a standby waits. What dies is started
again by this process, as by a process manager; the job continues where the standby JobManager finds it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from marks import mark

from benchmarks.restore.flink_supervisor import supervise


def main(settings: dict[str, Any]) -> None:
    """Until killed."""
    mark(settings, "python")
    status = Path(settings["state"]).parent / "status.json"
    supervise(settings, Path(__file__).with_name("flink_submit.py"), status, lambda name: mark(settings, name))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
