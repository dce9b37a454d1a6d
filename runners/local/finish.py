"""What a run that has died orphaned, ended without starting it again: so its positions can move to another engine."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from headrace.connectors.base.commit import JobCommitter
from headrace.enumerator.checkpoint import CheckpointSerializer
from headrace.enumerator.errors import StateError
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpointSerializer, has_run
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.storage.places import run_files
from headrace.runners.pipeline import PipelineSpec


def finish(pipeline: PipelineSpec, checkpoints: str) -> None:
    """Commit what the newest checkpoint lists, and abort what its workers have left, as the run's next start would.

    `checkpoints`: as in RunSettings. Called in the caller's process; they are locked meanwhile. Raises FencedError while the
    run is running on this machine, StateError for checkpoints of no run, where nothing is made, or that cannot be read or are
    an older copy, and what the sink raises. A run of another machine, with checkpoints in a store, is ended by it.
    """
    if not has_run(run_files(checkpoints)):
        raise StateError(f"{checkpoints}: no run has worked with these checkpoints; name those of the run")
    source = pipeline.source
    positions = CheckpointSerializer(source.name, source.split_serializer)
    serializer = RunCheckpointSerializer(positions, pipeline.outputs.handles)
    # How many checkpoints are kept is for the run to say: here all are.
    with closing(CheckpointStore[Any, Any](checkpoints, serializer, retained=1 << 30)) as store:
        number = store.registry.next_number
        store.add_worker(number)
        with closing(
            RunCommitter(store, pipeline.sink, store.latest(), number, lambda _: None, source.check_readable)
        ) as committer:
            JobCommitter(store.registry.run, committer).recover()
