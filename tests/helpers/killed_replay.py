"""A replay of dead letters in its own process, killed in a phase of its commit."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from headrace.enumerator.errors import RetriableError
from headrace.runners.waiting import wait_until
from tests.helpers.python_path import python_path

TIMEOUT_S = 60.0

STOPPING = """
import json, os, threading
from headrace.connectors.kafka.write import sink

fault = json.loads(os.environ["HEADRACE_STOP"])
owner = getattr(sink, fault["owner"])
real = getattr(owner, fault["method"])

def stop():
    open(fault["mark"], "w").close()
    threading.Event().wait()

def stopping(self, *arguments):
    if fault["when"] == "before":
        stop()
    real(self, *arguments)
    stop()

setattr(owner, fault["method"], stopping)
"""
"""For `sitecustomize.py`: each process of a replay waits in this phase."""


def killed_replay(bootstrap: str, topic: str, checkpoints: Path, scratch: Path, phase: tuple[str, str, str]) -> None:
    """Replay until a process is before or after this call of the sink; then all is killed. `scratch`: a folder to be made."""
    scratch.mkdir()
    (scratch / "sitecustomize.py").write_text(STOPPING)
    mark, log = scratch / "mark", scratch / "log"
    fault = {**dict(zip(("owner", "method", "when"), phase, strict=True)), "mark": str(mark)}
    environment = os.environ | {"PYTHONPATH": python_path(scratch), "HEADRACE_STOP": json.dumps(fault)}
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "dead-letters", "replay", topic]
    command += ["--checkpoints", str(checkpoints), "--bootstrap", bootstrap]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)

    def check() -> None:
        assert process.poll() is None, log.read_text()
        if not mark.exists():
            raise RetriableError(log.read_text())

    try:
        wait_until(check, f"the phase {phase}", TIMEOUT_S)
    finally:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()
