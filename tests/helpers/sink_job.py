"""A job that writes epochs to Kafka exactly once, with no engine: its own write-ahead log, and a kill where it is reported.

    python sink_job.py <json>, with bootstrap, topic, commits, prefix, timeout_ms, state, epochs, tasks, rows, kill, bug

As Spark does, it logs what an epoch holds (`offsets/<epoch>`) before writing it, and that it is committed (`commits/<epoch>`)
after; restarted, it repeats the epoch that is logged and not committed. Ends when `epochs` more are committed, at once with 0.
`kill`: {"owner", "method", "when", "nth", "what"}, as in `tests/faults/kill`, or null. `bug`: an injected bug's name, or null.
"""

import json
import os
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from headrace.connectors.base.commit import JobCommitter, refuse_stale
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.write import sink as kafka
from tests.helpers.sink_rig import kafka_sink, rows
from tests.simulation.bugs import commits, sinks

JOB = "soak"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
BUGS = {bug.__name__: bug for bug in (*commits.ALL, *sinks.ALL)}


def inject(kill: dict[str, Any]) -> None:
    """Die, or be frozen, before or after the n-th call of a method."""
    owner = getattr(kafka, kill["owner"])
    method = getattr(owner, kill["method"])
    calls, turns = 0, threading.RLock()  # threads call one after the other: so "after the first call" is before the second

    def injected(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        with turns:
            calls += 1
            is_due = calls == kill["nth"]
            if is_due and kill["when"] == "before":
                os.kill(os.getpid(), SIGNALS[kill["what"]])
            answer = method(self, *arguments)
            if is_due and kill["when"] == "after":
                os.kill(os.getpid(), SIGNALS[kill["what"]])
            return answer

    setattr(owner, kill["method"], injected)


def log_epoch(directory: Path, epoch: int, content: Any) -> None:
    partial = directory / f".{epoch}"
    partial.write_text(json.dumps(content))
    partial.rename(directory / str(epoch))


def main(settings: dict[str, Any]) -> None:
    if settings["kill"]:
        inject(settings["kill"])
    offsets, commits = (Path(settings["state"]) / name for name in ("offsets", "commits"))
    for directory in (offsets, commits):
        directory.mkdir(parents=True, exist_ok=True)
    given = {"transactional_id_prefix": settings["prefix"], "transaction_timeout_ms": settings["timeout_ms"]}
    sink = kafka_sink(settings["bootstrap"], settings["topic"], settings["commits"], **given)
    committer = JobCommitter(JOB, sink.committer(JOB))
    first = sum(1 for _ in commits.glob("[0-9]*"))
    for epoch in range(first, first + settings["epochs"]):
        if not (offsets / str(epoch)).exists():
            log_epoch(offsets, epoch, [epoch * settings["rows"], (epoch + 1) * settings["rows"]])
        begin, end = json.loads((offsets / str(epoch)).read_text())
        recorded = sink.recorded_epochs().get(JOB, -1)
        refuse_stale(JOB, epoch, recorded)
        handles = []
        for task in range(settings["tasks"] if recorded < epoch else 0):
            with sink.begin(Attempt(JOB, epoch, task, 0)) as transaction:
                transaction.write(rows(str(number) for number in range(begin + task, end, settings["tasks"])))
                handles.append(transaction.prepare())
        committer.commit(epoch, tuple(handle for handle in handles if handle is not None))
        log_epoch(commits, epoch, {})


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    with BUGS[given["bug"]]() if given["bug"] else nullcontext():
        main(given)
