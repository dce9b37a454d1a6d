"""The gRPC server of a run's coordinator, as its workers and gRPC's own tools see it."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.runners.local.core import WorkerJoined
from headrace.runners.local.wire import run_pb2 as pb
from headrace.runners.local.wire import run_pb2_grpc, server
from headrace.runners.local.wire.messages import RunMessages, hello
from headrace.runners.local.wire.server import CoordinationServer
from headrace.testing.memory import MemorySplitSerializer
from headrace.testing.memory_sink import MemoryHandleSerializer

PATIENCE_S = 30.0
VERSION = "1.2.3"
SERVICE = "headrace.run.v1.Coordination"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
MESSAGES = RunMessages(MemorySplitSerializer(), MemoryHandleSerializer())


class Coordinator:
    """A server, for two workers."""

    def __init__(self, folder):
        self.events = queue.SimpleQueue()
        self.server = CoordinationServer(
            Path(folder) / "coordinator", MESSAGES, VERSION, 2, self.events.put, lambda number, failed: None
        )
        self.channel = grpc.insecure_channel(self.server.address)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        self.reflection = reflection_pb2_grpc.ServerReflectionStub(self.channel)

    def join(self, number):
        """As a worker; returns what it is told."""
        said = queue.SimpleQueue()
        said.put(hello(number, VERSION))
        told = run_pb2_grpc.CoordinationStub(self.channel).Work(iter(said.get, None), timeout=PATIENCE_S)
        assert next(told).WhichOneof("message") == "welcome"
        assert self.events.get(timeout=PATIENCE_S) == WorkerJoined(number)
        return told

    def status(self, service=""):
        return self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S).status


@pytest.fixture
def coordinator():
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        coordinator = Coordinator(folder)
        try:
            yield coordinator
        finally:
            coordinator.channel.close()
            coordinator.server.close()


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_is_not_serving_until_the_run_serves_and_when_it_ends(coordinator, service):
    assert coordinator.status(service) == NOT_SERVING
    coordinator.server.is_serving = True
    assert coordinator.status(service) == SERVING
    coordinator.server.is_serving = False
    assert coordinator.status(service) == NOT_SERVING


def test_health_of_a_service_that_there_is_not_is_not_found(coordinator):
    with pytest.raises(grpc.RpcError) as caught:
        coordinator.status("another")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_who_watches_health_is_told_of_changes_alone(coordinator):
    watched = coordinator.health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert next(watched).status == NOT_SERVING
    for value in (False, True, True, False):
        coordinator.server.is_serving = value
    assert [next(watched).status for _ in range(2)] == [SERVING, NOT_SERVING]
    coordinator.server.is_serving = True
    assert next(watched).status == SERVING


def test_reflection_names_the_services_and_describes_the_messages(coordinator):
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    listed, described = coordinator.reflection.ServerReflectionInfo(iter(asked), timeout=PATIENCE_S)
    names = [service.name for service in listed.list_services_response.service]
    assert names == ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", SERVICE]
    assert described.file_descriptor_response.file_descriptor_proto == [pb.DESCRIPTOR.serialized_pb]


class Asking:
    """A reflection stream that stays open."""

    def __init__(self, coordinator):
        self.requests = queue.SimpleQueue()
        self.requests.put(reflection_pb2.ServerReflectionRequest(list_services=""))
        self.answers = coordinator.reflection.ServerReflectionInfo(iter(self.requests.get, None), timeout=PATIENCE_S)

    def code(self):
        """OK once it has answered, else why it was refused."""
        try:
            next(self.answers)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_who_keeps_health_and_reflection_open_keeps_no_worker_out(coordinator):
    """Each of these streams could hold one of the server's threads, and workers need theirs."""
    request = health_pb2.HealthCheckRequest()
    watching = [coordinator.health.Watch(request, timeout=PATIENCE_S) for _ in range(20)]
    assert {next(watched).status for watched in watching} == {NOT_SERVING}
    asking = [Asking(coordinator) for _ in range(20)]
    codes = [each.code() for each in asking]
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert codes.count(grpc.StatusCode.OK) == 2
    told = [coordinator.join(number) for number in (1, 2)]
    coordinator.server.send(2, pb.ToWorker(leave=pb.Leave()))
    assert next(told[1]).WhichOneof("message") == "leave"
    for each in asking:
        each.requests.put(None)


def test_a_server_that_closes_sends_what_it_was_given_and_waits_for_no_watcher(coordinator, monkeypatch):
    monkeypatch.setattr(server, "_STOP_S", PATIENCE_S)
    watched = coordinator.health.Watch(health_pb2.HealthCheckRequest(), timeout=2 * PATIENCE_S)
    assert next(watched).status == NOT_SERVING
    told = coordinator.join(1)
    left = []
    listening = threading.Thread(target=lambda: left.extend(message.WhichOneof("message") for message in told))
    listening.start()
    for number in range(100):
        coordinator.server.send(1, pb.ToWorker(checkpoint_stored=pb.CheckpointStored(checkpoint_id=number)))
    begun_s = time.monotonic()
    coordinator.server.close()
    assert time.monotonic() - begun_s < PATIENCE_S
    listening.join(PATIENCE_S)
    assert left == ["checkpoint_stored"] * 100
    with pytest.raises(grpc.RpcError):
        next(watched)
