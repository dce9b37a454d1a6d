"""A job of several processes: the first member starts the others, which run the same script."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from marks import mark


def run_members(run: Callable[[dict[str, Any], int], None]) -> None:
    """What the script was reported, as many members as its "parallelism" says. Until killed."""
    settings, member = json.loads(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    mark(settings, "python")
    others = range(1, settings["parallelism"]) if member == 0 else ()
    children = [subprocess.Popen([sys.executable, sys.argv[0], json.dumps(settings), str(number)]) for number in others]  # noqa: S603 - ourselves
    run(settings, member)
    for child in children:
        child.wait()
