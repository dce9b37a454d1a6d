"""The core's events and commands as messages of `run.proto`, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Generic

from headrace.connectors.base.sink import HandleSerializer, HandleT
from headrace.enumerator.errors import StateError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import SplitSerializer
from headrace.enumerator.split import SplitT
from headrace.runners.local.events import WorkerSnapshotted
from headrace.runners.local.wire import run_pb2 as pb

PROTOCOL = 3
"""Raised with every change of what a message means; both sides must have the same."""


def hello(number: int, version: str) -> pb.FromWorker:
    """A worker's first message. `version`: its headrace's."""
    return pb.FromWorker(hello=pb.Hello(protocol=PROTOCOL, version=version, number=number))


def check_hello(message: pb.FromWorker, version: str) -> int:
    """The worker's number. Raises StateError unless this is a hello of our protocol and version."""
    if message.WhichOneof("message") != "hello":
        raise StateError(f"a worker's first message must be its hello, not {message.WhichOneof('message')}")
    greeting = message.hello
    if (greeting.protocol, greeting.version) != (PROTOCOL, version):
        raise StateError(
            f"worker {greeting.number} is of headrace {greeting.version} (protocol {greeting.protocol}), and its coordinator "
            f"of {version} (protocol {PROTOCOL}): the installation has changed while they ran; start the run again"
        )
    return int(greeting.number)


def check_welcome(welcome: pb.Welcome, version: str) -> None:
    """By a worker of this version. Raises StateError for a coordinator of another."""
    if welcome.version != version:
        raise StateError(
            f"the coordinator is of headrace {welcome.version}, and its worker of {version}: the installation has changed "
            "while they ran; start the run again"
        )


class RunMessages(Generic[SplitT, HandleT]):
    """Messages with splits and handles, which travel as JSON of their serializers' newest version."""

    def __init__(self, splits: SplitSerializer[SplitT], handles: HandleSerializer[HandleT]) -> None:
        self._splits = splits
        self._handles = handles

    def assign_splits(self, splits: Sequence[SplitT]) -> pb.ToWorker:
        encoded = [self._split(split) for split in splits]
        return pb.ToWorker(assign_splits=pb.AssignSplits(split_version=self._splits.version, splits=encoded))

    def assigned(self, message: pb.AssignSplits) -> list[SplitT]:
        return [self._splits.deserialize(message.split_version, json.loads(split)) for split in message.splits]

    def worker_snapshotted(self, event: WorkerSnapshotted[SplitT, HandleT]) -> pb.FromWorker:
        states = [pb.SplitState(split=self._split(state.split), finished=state.finished) for state in event.states.values()]
        return pb.FromWorker(
            worker_snapshotted=pb.WorkerSnapshotted(
                checkpoint_id=event.checkpoint_id,
                split_version=self._splits.version,
                states=states,
                handle_version=self._handles.version if event.handles else 0,
                handles=[_json(self._handles.serialize(handle)) for handle in event.handles],
                counts=event.counts,
                unmoved=event.unmoved,
            )
        )

    def reported(self, number: int, message: pb.WorkerSnapshotted) -> WorkerSnapshotted[SplitT, HandleT]:
        states = [
            SplitState(self._splits.deserialize(message.split_version, json.loads(state.split)), bool(state.finished))
            for state in message.states
        ]
        handles = tuple(self._handles.deserialize(message.handle_version, json.loads(handle)) for handle in message.handles)
        by_id = {state.split.split_id: state for state in states}
        return WorkerSnapshotted(number, int(message.checkpoint_id), by_id, handles, dict(message.counts), int(message.unmoved))

    def _split(self, split: SplitT) -> bytes:
        return _json(self._splits.serialize(split))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
