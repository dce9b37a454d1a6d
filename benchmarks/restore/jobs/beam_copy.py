"""A Beam pipeline on its own Flink, to be killed: copies key and value of a topic to another, for ever, exactly once.

    python beam_copy.py <json>, a Job (systems.py)

It starts a dead TaskManager again at once, as a supervisor would. Started again itself, it submits the pipeline with the newest
complete checkpoint that the previous one has left.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from checkpoints import newest_checkpoint
from marks import mark

CHECKPOINT_MS = 500
READ_S = 0.25
"""A call of the reader lasts so long, and a checkpoint waits for it."""

SHARDS = 2
"""A divisor of the number of partitions, with those that are added and without: so each is written by one shard."""

DISCOVERY_S = 1.0
LOOK_S = 0.05


def build(pipeline: Any, settings: dict[str, Any]) -> None:  # noqa: ANN401 - Beam is imported late
    """Source and sink."""
    from headrace.beam import ReadFromKafka, WriteToKafka

    servers = {"bootstrap.servers": settings["bootstrap"]}
    batches = pipeline | ReadFromKafka(
        {**servers, "auto.offset.reset": "earliest"},
        [settings["source"]],
        output="arrow",
        columns=["key", "value"],
        dynamic_read_poll_interval_seconds=DISCOVERY_S,
        read_s=settings.get("read_s", READ_S),
    )
    prefix = settings["name"]
    _ = batches | WriteToKafka(
        servers, settings["target"], delivery="exactly-once", transactional_id_prefix=prefix, num_shards=SHARDS
    )


def main(settings: dict[str, Any]) -> None:
    """Until killed."""
    mark(settings, "python")
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from headrace.enumerator.errors import PeerError
    from headrace.testing.servers.flink import start_flink

    mark(settings, "imported")
    state = Path(settings["state"])
    config = {"restart-strategy.fixed-delay.delay": "100 ms"}  # as Flink's own job has it
    with start_flink(slots=settings["parallelism"], state=state, config=config) as flink:
        mark(settings, "session")
        newest = newest_checkpoint(state / "checkpoints")
        savepoint = None if newest is None else newest.as_uri()
        flags = flink.options(checkpoint_ms=settings.get("interval_ms", CHECKPOINT_MS), savepoint=savepoint)
        pipeline = beam.Pipeline(options=PipelineOptions([*flags, *settings.get("flags", [])]))
        build(pipeline, settings)
        flink.submit(pipeline)
        mark(settings, "query")
        while True:
            if "task manager" in flink.ended():
                mark(settings, "task manager died")
                with suppress(PeerError):  # killed again while it starts: it is started again
                    flink.start_task_manager()
                    mark(settings, "task manager is back")
            time.sleep(LOOK_S)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
