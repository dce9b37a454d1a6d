"""The pipeline of run_pipeline.py, whose commits are timed: a line `<step> <start> <end>` each, in ns, in the job's `steps`."""

from __future__ import annotations

import functools
import json
import os
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.connectors.kafka.write.committer import KafkaCommitter
from headrace.connectors.kafka.write.transaction import KafkaTransaction
from headrace.runners.local.checkpoints import CheckpointStore
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.coordinator import _Coordination
from headrace.runners.local.core import RunCore, RunPhase
from headrace.runners.local.events import CheckpointCommitted

STEPS = {
    "begin": (KafkaTransaction, "_begun"),
    "prepare": (KafkaTransaction, "prepare"),
    "check": (RunCommitter, "check"),
    "store": (CheckpointStore, "write"),
    "record": (KafkaCommitter, "record"),
    "end": (RunCommitter, "end_all"),
    "commit": (_Coordination, "_commit"),
}
LEAST_NS = 100_000
"""What takes less has had nothing to do."""

_file = os.open(json.loads(os.environ["RESTORE_JOB"])["steps"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(step: str, since_ns: int) -> None:
    """One write, which other processes' do not mix with."""
    if (now_ns := time.monotonic_ns()) - since_ns >= LEAST_NS:
        os.write(_file, f"{step} {since_ns} {now_ns}\n".encode())


def timed(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, noted at its end."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as the function's
        since_ns = time.monotonic_ns()
        try:
            return function(*arguments, **named)
        finally:
            note(step, since_ns)

    return call


def phased(handle: Callable[..., Any]) -> Callable[..., Any]:
    """`RunCore.handle`, which notes how long the workers were waited for, and a whole checkpoint."""
    started_ns = 0

    @functools.wraps(handle)
    def call(core: RunCore[Any, Any], event: Any) -> Any:  # noqa: ANN401 - as the function's
        nonlocal started_ns
        before = core.phase
        if isinstance(event, CheckpointCommitted):
            note("checkpoint", started_ns)
        found = handle(core, event)
        if core.phase is RunPhase.COLLECTING and before is not core.phase:
            started_ns = time.monotonic_ns()
        if before is RunPhase.COLLECTING and core.phase is RunPhase.STORING:
            note("collect", started_ns)
        return found

    return call


for _step, (_owner, _name) in STEPS.items():
    setattr(_owner, _name, timed(_step, getattr(_owner, _name)))
RunCore.handle = phased(RunCore.handle)  # type: ignore[method-assign]

pipeline = runpy.run_path(str(Path(__file__).with_name("run_pipeline.py")))["pipeline"]
