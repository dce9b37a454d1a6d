"""Drivers of Spark that write exactly once: one that is killed in a given phase, and one that continues from its checkpoint.

Their sessions are warm: to be killed with everything that belongs to those is harder, and they start in half the time.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.runners.spark_processes.spark_archive import archive_at_hand
from tests.helpers.python_path import ROOT, python_path
from tests.helpers.waiting import eventually

TIMEOUT_S = 240.0


@contextmanager
def _driver(folder: Path, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`spark_sink_driver.py` in its own process group, with its checkpoint in the folder; killed at the end."""
    archive_at_hand()
    own = {"checkpoint": str(folder / "checkpoint"), "done": str(folder / "done"), "session": "warm_session_builder"}
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, ROOT / "tests" / "helpers" / "spark_sink_driver.py", json.dumps({**arguments, **own})],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment}, stdout=log, stderr=log, start_new_session=True,
            cwd=ROOT,
        )  # fmt: skip
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(TIMEOUT_S)


def _log(folder: Path) -> str:
    return (folder / "driver.log").read_text()[-3000:]


def kill_driver(folder: Path, arguments: Mapping[str, Any], module: str, owner: str, method: str, when: str, nth: int) -> None:
    """Run a driver until it is killed, as `tests/faults/kill` says."""
    mark = folder / f"killed-{uuid.uuid4().hex}"  # a folder may see several drivers, each of them killed
    kill = {"module": module, "owner": owner, "method": method, "when": when, "nth": nth, "mark": str(mark)}
    environment = {"HEADRACE_KILL": json.dumps(kill), "PYTHONPATH": python_path(ROOT / "tests" / "faults" / "kill")}
    with _driver(folder, {**arguments, "tasks": 2}, environment) as process:
        process.wait(TIMEOUT_S)
        assert mark.exists(), _log(folder)
        assert process.returncode == -signal.SIGKILL


def finish_driver(folder: Path, arguments: Mapping[str, Any], is_done: Callable[[], bool]) -> None:
    """Run a driver over the same checkpoint, with another number of tasks, until all is written; then end it in good order."""
    with _driver(folder, {**arguments, "tasks": 3}, {}) as process:
        eventually(lambda: process.poll() is not None or is_done(), lambda: _log(folder), seconds=TIMEOUT_S)
        assert process.poll() is None, _log(folder)
        (folder / "done").touch()
        assert process.wait(TIMEOUT_S) == 0, _log(folder)
