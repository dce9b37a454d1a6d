"""The last checkpoint of a run and the sinks of its outputs, as its commits know them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic

from headrace.connectors.base import capabilities
from headrace.connectors.base.outputs import DEFAULT_OUTPUT, Outputs, Sinks
from headrace.connectors.base.sink import Attempt, HandleT, TwoPhaseSink
from headrace.enumerator.split import SplitT
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpoint, WorkerRegistry
from headrace.runners.local.commit.per_worker import PerWorkerCommit, RecordedCommit
from headrace.runners.local.commit.strategy import CommitStrategy, PerRunCommit, SinkEpochs
from headrace.runners.local.events import WorkerHandle


def first_attempt(sink: TwoPhaseSink[Any], registry: WorkerRegistry, number: int, output: str = DEFAULT_OUTPUT) -> Attempt:
    """A worker's first transaction of an output; its epochs count on from it. No other worker of the run ever has its name."""
    if isinstance(sink, capabilities.SingleCommit):
        return Attempt(registry.run_at(output), 0, number, 0)
    return Attempt(registry.job(number, output), 0, 0, 0)


class RunOutput:
    """One of the run's sinks."""

    def __init__(self, name: str, sink: TwoPhaseSink[Any], registry: Callable[[], WorkerRegistry], number: int) -> None:
        """`number`: the coordinator's own."""
        self.name, self.sink = name, sink
        self.run = registry().run_at(name)
        self.driver = sink.committer(self.run)
        self.records_all_epochs = capabilities.records_all_epochs(sink)
        per_worker = RecordedCommit if isinstance(sink, capabilities.EpochRecord) else PerWorkerCommit
        self.strategy: CommitStrategy[Any] = (
            PerRunCommit(self.driver)
            if isinstance(sink, capabilities.SingleCommit)
            else per_worker(sink, lambda writer: registry().job(writer, name), number, self.driver)
        )

    @property
    def of(self) -> str:
        return "the sink" if self.name == DEFAULT_OUTPUT else f"the sink of the output {self.name!r}"


class CommitState(Generic[SplitT, HandleT]):
    """What a takeover and the commits after it share. Owned by the commit thread."""

    def __init__(
        self, store: CheckpointStore[SplitT, HandleT], sinks: Sinks, stored: RunCheckpoint[SplitT, HandleT] | None, number: int
    ) -> None:
        """`stored`: the last checkpoint. `number`: the coordinator's own."""
        self.store, self.stored = store, stored
        self.sinks = Outputs(sinks)
        self.outputs = [RunOutput(name, self.sinks.sinks[name], lambda: store.registry, number) for name in self.sinks.in_order]

    @property
    def epoch(self) -> int:
        """The epoch that sinks record, or are to record, for the last checkpoint with handles."""
        return 0 if self.stored is None else self.stored.epoch

    @property
    def listed(self) -> Sequence[WorkerHandle[Any]]:
        return () if self.stored is None else self.stored.handles

    def epochs(self, output: RunOutput) -> SinkEpochs:
        stored = self.stored
        return SinkEpochs() if stored is None else SinkEpochs(*stored.reported(output.name), stored.completed, stored.replaced)

    def own(self, output: RunOutput, handles: Collection[WorkerHandle[Any]]) -> list[WorkerHandle[Any]]:
        own = (listed for listed in handles if self.sinks.output_of(listed.handle) == output.name)
        return [WorkerHandle(listed.number, self.sinks.plain(listed.handle)) for listed in own]

    def write(self, checkpoint: RunCheckpoint[SplitT, HandleT]) -> None:
        self.store.write(checkpoint)
        self.stored = checkpoint
