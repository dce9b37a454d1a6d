"""How far a job has come, for the breakdown of a restore: lines of JSON with monotonic seconds, which all processes share."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def mark(settings: dict[str, Any], name: str, **detail: object) -> None:
    """Append a line to the job's file of marks."""
    with Path(settings["marks"]).open("a") as file:
        file.write(json.dumps({"name": name, "at": time.monotonic(), "pid": os.getpid(), **detail}) + "\n")
