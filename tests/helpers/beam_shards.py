"""A runner of one shard of Beam's exactly-once writer that is moved by hand: its calls, its checkpoints, its crashes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.connectors.base.sink import TwoPhaseSink
from headrace.runners.beam.coders import RecordBatchCoder
from headrace.runners.beam.shard import BundleFinalised, Shard, ShardState, ShardStateSerializer
from headrace.runners.beam.write import _Performer
from tests.helpers.sink_rig import rows


class Runner:
    """Keeps a shard's state, and takes checkpoints of it. A value is a row of the column `value`."""

    def __init__(self, sink: TwoPhaseSink[Any]) -> None:
        self.sink = sink
        self.shard: Shard[Any] = Shard()
        self.process = 1
        self.state: ShardState[Any] = ShardState(uuid.uuid4().hex)
        self.job = f"{self.state.run}-0"
        self.checkpoint = self.state
        self.outstanding: list[Callable[[], object]] = []
        self.now_s = 0.0

    def call(self, values: Sequence[str] = ()) -> None:
        data = RecordBatchCoder().encode(rows(values)) if values else b""
        call = self.shard.call(self.state, self.now_s, has_rows=bool(values))
        returned = _Performer(self.sink, self.job, data, self.process).perform(call)
        self.state = returned.state
        if returned.awaits_finalisation:
            self.outstanding.append(partial(call.handle, BundleFinalised()))

    def checkpointed(self) -> None:
        serializer = ShardStateSerializer(self.sink.handles)
        self.checkpoint = serializer.deserialize(serializer.serialize(self.state), "the checkpoint")
        outstanding, self.outstanding = self.outstanding, []
        for finalised in outstanding:
            finalised()

    def restored(self) -> None:
        self.state, self.shard, self.outstanding = self.checkpoint, Shard(), []
        self.process += 1

    def quiet(self) -> None:
        """Calls without rows, and checkpoints, until whatever is prepared is committed."""
        for _ in range(3):
            self.call()
            self.checkpointed()
        self.call()
