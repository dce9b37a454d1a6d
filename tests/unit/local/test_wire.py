"""The gRPC server of a run's coordinator, as its workers see it."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from pathlib import Path

import grpc
import pytest

from headrace.errors import StateError, UsageError
from headrace.runners.local.checkpoints import WorkerRegistry
from headrace.runners.local.events import StopWorker, WorkerJoined, WorkerWrote
from headrace.runners.local.settings import RunSettings
from headrace.runners.local.wire import run_pb2 as pb
from headrace.runners.local.wire import run_pb2_grpc, server
from headrace.runners.local.wire.client import WorkerStream
from headrace.runners.local.wire.messages import RunMessages, check_welcome, hello
from headrace.runners.local.wire.server import CoordinationServer
from headrace.runners.local.worker_pool import WorkerPool
from headrace.runners.pipeline import PickledPipeline, PipelineSpec
from headrace.testing.memory import MemoryLog, MemorySource, MemorySplitSerializer
from headrace.testing.memory_sink import MemoryHandleSerializer, MemorySink, MemoryTransactionLog

TIMEOUT_S = 30.0
VERSION = "1.2.3"
MESSAGES = RunMessages(MemorySplitSerializer(), MemoryHandleSerializer())


class Coordinator:
    """A server, for two workers."""

    def __init__(self, socket):
        self.events = queue.SimpleQueue()
        self.server = CoordinationServer(socket, MESSAGES, VERSION, 2, self.events.put, lambda number, failed: None)
        self.channel = grpc.insecure_channel(self.server.address)

    def join(self, number, *messages):
        """As a worker, which sends these; returns what it is given."""
        said = queue.SimpleQueue()
        for message in (hello(number, VERSION), *messages):
            said.put(message)
        settings = run_pb2_grpc.CoordinationStub(self.channel).Work(iter(said.get, None), timeout=TIMEOUT_S)
        assert next(settings).WhichOneof("message") == "welcome"
        assert self.events.get(timeout=TIMEOUT_S) == WorkerJoined(number)
        return settings


@pytest.fixture
def coordinator():
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        coordinator = Coordinator(Path(folder) / "coordinator")
        try:
            yield coordinator
        finally:
            coordinator.channel.close()
            coordinator.server.close()


def test_a_server_that_closes_sends_what_it_was_given(coordinator, monkeypatch):
    monkeypatch.setattr(server, "_STOP_S", TIMEOUT_S)
    settings = coordinator.join(1)
    left = []
    listening = threading.Thread(target=lambda: left.extend(message.WhichOneof("message") for message in settings))
    listening.start()
    for number in range(100):
        coordinator.server.send(1, pb.ToWorker(checkpoint_stored=pb.CheckpointStored(checkpoint_id=number)))
    started_s = time.monotonic()
    coordinator.server.close()
    assert time.monotonic() - started_s < TIMEOUT_S
    listening.join(TIMEOUT_S)
    assert left == ["checkpoint_stored"] * 100


def test_first_rows_are_an_event(coordinator):
    settings = coordinator.join(1, pb.FromWorker(rows_written=pb.RowsWritten()))
    assert coordinator.events.get(timeout=TIMEOUT_S) == WorkerWrote(1)
    assert settings.is_active()  # else the stream ends with the last name of it


def test_what_comes_wakes_the_worker(coordinator):
    stream, woken = WorkerStream(coordinator.server.address, 1, VERSION, TIMEOUT_S), threading.Event()
    assert coordinator.events.get(timeout=TIMEOUT_S) == WorkerJoined(1)
    stream.wakes(woken.set)
    coordinator.server.send(1, pb.ToWorker(take_snapshot=pb.TakeSnapshot(checkpoint_id=1)))
    assert woken.wait(TIMEOUT_S)
    stream.close(0.0)


def test_a_worker_of_another_version_is_refused(coordinator):
    said = iter([hello(1, "0.0.1")])
    with pytest.raises(grpc.RpcError) as caught:
        next(run_pb2_grpc.CoordinationStub(coordinator.channel).Work(said, timeout=TIMEOUT_S))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "0.0.1" in caught.value.details()
    assert VERSION in caught.value.details()
    assert coordinator.events.empty()


def test_a_worker_refuses_a_coordinator_of_another_version():
    check_welcome(pb.Welcome(version=VERSION), VERSION)
    with pytest.raises(StateError, match=r"the coordinator is of headrace 0\.0\.1, and its worker of 1\.2\.3"):
        check_welcome(pb.Welcome(version="0.0.1"), VERSION)


def test_a_socket_in_a_folder_with_too_long_a_name_is_an_error_and_not_tried_for_ever(tmp_path):
    folder = tmp_path / ("x" * 100)
    with pytest.raises(UsageError, match=r"a socket's path has at most 107 bytes. Set TMPDIR to a folder with a shorter name"):
        Coordinator(folder / "coordinator")


class Recording:
    """In place of processes: what is asked of them."""

    def __init__(self):
        self.asked = []

    def start(self, number, target, argument):
        self.asked.append(("start", number))

    def kill(self, number):
        self.asked.append(("kill", number))

    def close(self, timeout_s):
        self.asked.append(("close", timeout_s))


def test_a_worker_that_has_not_said_hello_at_the_end_is_killed_and_not_waited_for():
    """Regression: a stop at the start of a run waited ten seconds for a worker that could not know of it."""
    spec = PipelineSpec(MemorySource(MemoryLog()), MemorySink(MemoryTransactionLog()))
    processes, events = Recording(), queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        settings = RunSettings(folder, workers=2)
        job, socket = PickledPipeline.of(spec), Path(folder) / "coordinator"
        pool = WorkerPool(job, spec, settings, VERSION, socket, processes, events.put)
        for number in (1, 2):
            pool.start(number, WorkerRegistry("run"))
        stream = WorkerStream(f"unix:{socket}", 2, VERSION, TIMEOUT_S)
        assert events.get(timeout=TIMEOUT_S) == WorkerJoined(2)
        for number in (1, 2):
            pool.send(StopWorker(number))
        stream.close(0.0)  # else it ends its process when the coordinator is gone
        pool.close(10.0)
    assert processes.asked == [("start", 1), ("start", 2), ("kill", 1), ("close", 10.0)]
