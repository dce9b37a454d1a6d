"""The job of `run_soak`: a copy of a topic, with dead letters, whose processes kill one another where a plan says so.

`HEADRACE_RUN_SOAK` is JSON: `bootstrap`, `folder` (of the plans), `timeout_ms`, `bug` (an injected one, or null). A plan is the
file `plan` there: `{"owner", "method", "when", "victims", "supervisor"}`. The process that comes to it takes it, writes into
`done` who is killed, and kills.
"""

import faulthandler
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from headrace import Pipeline
from headrace.connectors.base.dead_letters import DEAD_LETTER
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.connectors.kafka.write.committer import KafkaCommitter
from headrace.connectors.kafka.write.transaction import KafkaTransaction
from headrace.formats import JsonFormat
from headrace.kafka import DeadLetters, KafkaSink, KafkaSource
from headrace.runners.local.checkpoints import CheckpointStore
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.wire.messages import RunMessages

TOLD = json.loads(os.environ["HEADRACE_RUN_SOAK"])
FOLDER = Path(TOLD["folder"])


def inject(owner: type, method: str) -> None:
    """Look for a plan before and after each call."""
    original = getattr(owner, method)

    def watched(self: Any, *arguments: Any) -> Any:
        reached(owner.__name__, method, "before")
        answer = original(self, *arguments)
        reached(owner.__name__, method, "after")
        return answer

    setattr(owner, method, watched)


def reached(owner: str, method: str, when: str) -> None:
    """Carry the plan out if it is for here, and if no other process does."""
    taken = FOLDER / f"taken-{os.getpid()}"
    try:
        plan = json.loads((FOLDER / "plan").read_text())
        if (plan["owner"], plan["method"], plan["when"]) != (owner, method, when):
            return
        (FOLDER / "plan").rename(taken)
    except FileNotFoundError:
        return
    try:
        victims = chosen(plan)
    except psutil.NoSuchProcess:  # one of them has ended meanwhile
        victims = []
    if not victims:
        taken.rename(FOLDER / "plan")  # for the process that comes next
        return
    taken.write_text(json.dumps(victims))
    taken.rename(FOLDER / "done")
    for victim in victims:
        os.kill(victim, signal.SIGKILL)


def chosen(plan: dict[str, Any]) -> list[int]:
    """Process ids, our own last: who is dead kills no process."""
    leader = os.getpgrp()
    workers = [child.pid for child in psutil.Process(leader).children(recursive=True) if child.ppid() != leader]
    own = os.getpid()
    one = [own] if own in workers else workers[:1]
    found = {"worker": one, "coordinator": [leader], "everything": [plan["supervisor"], leader, *workers]}
    return sorted(found[plan["victims"]], key=lambda victim: victim == own)


def positions_of_the_checkpoint_before() -> None:
    """A checkpoint has the right handles, and positions that are one checkpoint old."""
    write, positions = CheckpointStore.write, []

    def late(self: Any, checkpoint: Any) -> None:
        number = checkpoint.positions.checkpoint_id
        positions.append(checkpoint.positions)
        old = next((each for each in reversed(positions) if each.checkpoint_id < number), checkpoint.positions)
        write(self, replace(checkpoint, positions=replace(old, checkpoint_id=number)))

    CheckpointStore.write = late  # type: ignore[method-assign]


def dead_workers_are_not_cleaned_up() -> None:
    """What they have left stays so."""
    RunCommitter.retire = lambda self, number: None  # type: ignore[method-assign]


def letters_go_their_own_way() -> None:
    """They are written by a producer alongside the sink, and not in its transactions."""
    write = KafkaTransaction.write

    def beside(self: Any, batch: pa.RecordBatch) -> None:
        if DEAD_LETTER not in batch.schema.names:
            write(self, batch)
            return
        transaction = AtLeastOnceKafkaSink(TOLD["bootstrap"]).begin(Attempt("beside", 0, 0, 0))
        transaction.write(batch)
        transaction.prepare()

    KafkaTransaction.write = beside  # type: ignore[method-assign]


_BUGS = (positions_of_the_checkpoint_before, dead_workers_are_not_cleaned_up, letters_go_their_own_way)
BUGS = {bug.__name__: bug for bug in _BUGS}
_OF_THE_SINK = {
    KafkaTransaction: ("write", "push", "prepare"),
    KafkaCommitter: ("fence", "stage", "check", "record", "end", "clean_up"),
}
for patched, methods in {**_OF_THE_SINK, CheckpointStore: ("write",), RunMessages: ("reported",)}.items():
    for name in methods:
        inject(patched, name)
faulthandler.register(signal.SIGUSR1)
if TOLD["bug"] is not None:
    BUGS[TOLD["bug"]]()

pipeline = Pipeline(
    KafkaSource(
        TOLD["bootstrap"], topics=["in"], columns=["key", "value", "partition", DEAD_LETTER], value=JsonFormat(pa.int64()),
        on_bad_record="keep",
    ),
    KafkaSink(TOLD["bootstrap"], topic="out", transaction_timeout_ms=TOLD["timeout_ms"], value=JsonFormat(pa.int64())),
    DeadLetters("letters"),
)  # fmt: skip
