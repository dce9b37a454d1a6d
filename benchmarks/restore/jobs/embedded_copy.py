"""A script without an engine, to be killed: copies key and value of a topic to another, or to a table, for ever, exactly once.

    python embedded_copy.py <json>, a Job (systems.py), with "properties" of the client, "url": of the database whose table
    `target` is, or null for a topic; perhaps "injected": a bug that the oracle has to find; perhaps "fail_on_data_loss": false,
    for an input whose losses are logged and tolerated

For each epoch it stores the source's checkpoint under the epoch's number, then commits the epoch. Whether an epoch happened is
what the sink has recorded: started again, it continues from the checkpoint of the recorded epoch, and what a later one has
stored is void. Injected: "doubles" continues from the epoch before the recorded one, "loses" from what was stored last.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from marks import mark

EPOCH_S = 0.4
POLL_S = 0.05
DISCOVERY_S = 1.0
CONSUMED = ("request.timeout.ms", "default.api.timeout.ms")


def store(directory: Path, epoch: int, checkpoint: bytes) -> None:
    """Durably, and whole or not at all."""
    partial = directory / f".{epoch}"
    with partial.open("wb") as file:
        file.write(checkpoint)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(directory / str(epoch))
    for old in directory.glob("[0-9]*"):
        if int(old.name) < epoch - 1:
            old.unlink()


def make_sink(settings: dict[str, Any]) -> Any:  # noqa: ANN401 - of a topic or a table
    """Where the copy goes."""
    if settings["url"]:
        from headrace.sql import SqlSink

        return SqlSink(settings["url"], settings["target"])
    from headrace.kafka import KafkaSink

    names = {"transactional_id_prefix": settings["name"], "commit_topic": f"{settings['name']}-commits"}
    return KafkaSink(settings["bootstrap"], topic=settings["target"], properties=settings["properties"], **names)


def copy_epoch(run: Any, sink: Any, attempt: Any) -> Any:  # noqa: ANN401 - headrace is imported late
    """Rows of one epoch, prepared; None when none came."""
    deadline = time.monotonic() + EPOCH_S
    with sink.begin(attempt) as transaction:
        while time.monotonic() < deadline:
            batch = run.poll(POLL_S)
            if batch is not None and batch.records.num_rows:
                transaction.write(batch.records)
        return transaction.prepare()


def resumed(injected: str | None, recorded: int, state: Path) -> int:
    """Of which epoch the checkpoint is that the job continues from: the recorded one, if no bug is injected."""
    if injected == "doubles":
        return max(0, recorded - 1)
    if injected == "loses":
        return max(int(file.name) for file in state.glob("[0-9]*"))
    return recorded


def main(settings: dict[str, Any]) -> None:
    """Until killed."""
    mark(settings, "python")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from headrace.enumerator import EmbeddedRun
    from headrace.kafka import Earliest, KafkaSource
    from headrace.sinks import Attempt, JobCommitter

    name, state = settings["name"], Path(settings["state"])
    sink = make_sink(settings)
    committer = JobCommitter(name, sink.committer(name))
    committer.recover()
    recorded = sink.recorded_epochs().get(name, -1)
    found = (state / str(resumed(settings.get("injected"), recorded, state))).read_bytes() if recorded >= 0 else None
    properties = {key: value for key, value in settings["properties"].items() if key in CONSUMED}
    source = KafkaSource(
        settings["bootstrap"],
        topics=[settings["source"]],
        start=Earliest(),
        group=name,
        columns=("key", "value"),
        properties=properties,
        fail_on_data_loss=settings.get("fail_on_data_loss", True),
    )
    with EmbeddedRun(source, clock=time.monotonic, checkpoint=found, discovery_interval_s=DISCOVERY_S) as run:
        mark(settings, "query")
        epoch = recorded + 1
        while True:
            handle = copy_epoch(run, sink, Attempt(name, epoch, 0, 0))
            if handle is not None:
                store(state, epoch, run.checkpoint())
                committer.commit(epoch, (handle,))
                run.checkpoint_completed()
                epoch += 1


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
