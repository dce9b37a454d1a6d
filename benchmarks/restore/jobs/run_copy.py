"""`headrace run`: a topic copied exactly once, without an engine, with a checkpoint every 100 ms, or every `interval_ms`.

    python run_copy.py <json>, a Job (systems.py)

This process becomes the command line, for the pipeline of run_pipeline.py. A restart continues from the last checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

INTERVAL_MS = 100
COMMAND_LINE = "from headrace.cli import main; main()"


def main(settings: dict[str, Any]) -> None:
    """Does not return."""
    pipeline = Path(__file__).with_name(settings.get("pipeline", "run_pipeline.py"))
    arguments = ["run", f"{pipeline}:pipeline", "--workers", str(settings["parallelism"])]
    arguments += ["--checkpoints", str(Path(settings["state"], "checkpoints"))]
    arguments += ["--config", f"execution.checkpointing.interval={settings.get('interval_ms', INTERVAL_MS)} ms"]
    if "max_delay_ms" in settings:
        arguments += ["--config", f"execution.checkpointing.max-delay={settings['max_delay_ms']} ms"]
    command = [sys.executable, "-c", COMMAND_LINE, *arguments]
    os.execve(sys.executable, command, os.environ | {"RESTORE_JOB": json.dumps(settings)})  # noqa: S606 - ourselves


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
