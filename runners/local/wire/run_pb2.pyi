from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromWorker(_message.Message):
    __slots__ = ("hello", "heartbeat", "split_finished", "worker_snapshotted", "failed", "rows_written")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FINISHED_FIELD_NUMBER: _ClassVar[int]
    WORKER_SNAPSHOTTED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ROWS_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    split_finished: SplitFinished
    worker_snapshotted: WorkerSnapshotted
    failed: Failed
    rows_written: RowsWritten
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., split_finished: _Optional[_Union[SplitFinished, _Mapping]] = ..., worker_snapshotted: _Optional[_Union[WorkerSnapshotted, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., rows_written: _Optional[_Union[RowsWritten, _Mapping]] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("welcome", "assign_splits", "take_snapshot", "checkpoint_stored", "stop_worker")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_SPLITS_FIELD_NUMBER: _ClassVar[int]
    TAKE_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STORED_FIELD_NUMBER: _ClassVar[int]
    STOP_WORKER_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    assign_splits: AssignSplits
    take_snapshot: TakeSnapshot
    checkpoint_stored: CheckpointStored
    stop_worker: StopWorker
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., assign_splits: _Optional[_Union[AssignSplits, _Mapping]] = ..., take_snapshot: _Optional[_Union[TakeSnapshot, _Mapping]] = ..., checkpoint_stored: _Optional[_Union[CheckpointStored, _Mapping]] = ..., stop_worker: _Optional[_Union[StopWorker, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "version", "number")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    number: int
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SplitFinished(_message.Message):
    __slots__ = ("split_id",)
    SPLIT_ID_FIELD_NUMBER: _ClassVar[int]
    split_id: str
    def __init__(self, split_id: _Optional[str] = ...) -> None: ...

class WorkerSnapshotted(_message.Message):
    __slots__ = ("checkpoint_id", "split_version", "states", "handle_version", "handles", "counts", "unmoved")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    SPLIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    HANDLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    UNMOVED_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    split_version: int
    states: _containers.RepeatedCompositeFieldContainer[SplitState]
    handle_version: int
    handles: _containers.RepeatedScalarFieldContainer[bytes]
    counts: _containers.ScalarMap[str, int]
    unmoved: int
    def __init__(self, checkpoint_id: _Optional[int] = ..., split_version: _Optional[int] = ..., states: _Optional[_Iterable[_Union[SplitState, _Mapping]]] = ..., handle_version: _Optional[int] = ..., handles: _Optional[_Iterable[bytes]] = ..., counts: _Optional[_Mapping[str, int]] = ..., unmoved: _Optional[int] = ...) -> None: ...

class SplitState(_message.Message):
    __slots__ = ("split", "finished")
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    split: bytes
    finished: bool
    def __init__(self, split: _Optional[bytes] = ..., finished: bool = ...) -> None: ...

class RowsWritten(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failed(_message.Message):
    __slots__ = ("error", "final", "unclassified")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    UNCLASSIFIED_FIELD_NUMBER: _ClassVar[int]
    error: str
    final: bool
    unclassified: bool
    def __init__(self, error: _Optional[str] = ..., final: bool = ..., unclassified: bool = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class AssignSplits(_message.Message):
    __slots__ = ("split_version", "splits")
    SPLIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    split_version: int
    splits: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, split_version: _Optional[int] = ..., splits: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TakeSnapshot(_message.Message):
    __slots__ = ("checkpoint_id",)
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    def __init__(self, checkpoint_id: _Optional[int] = ...) -> None: ...

class CheckpointStored(_message.Message):
    __slots__ = ("checkpoint_id",)
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    def __init__(self, checkpoint_id: _Optional[int] = ...) -> None: ...

class StopWorker(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
