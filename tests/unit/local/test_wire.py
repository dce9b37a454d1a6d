"""The gRPC server of a run's coordinator, as its workers and gRPC's own tools see it."""

from __future__ import annotations

import queue
import socket
import tempfile
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.errors import StateError, UsageError
from headrace.runners.local.core import WorkerJoined
from headrace.runners.local.listening import Endpoint, new_token, tcp_address
from headrace.runners.local.wire import run_pb2 as pb
from headrace.runners.local.wire import run_pb2_grpc, server
from headrace.runners.local.wire.client import WorkerStream
from headrace.runners.local.wire.messages import RunMessages, check_welcome, hello
from headrace.runners.local.wire.server import CoordinationServer
from headrace.runners.local.wire.tokens import token_metadata
from headrace.testing.memory import MemorySplitSerializer
from headrace.testing.memory_sink import MemoryHandleSerializer

TIMEOUT_S = 30.0
VERSION = "1.2.3"
SERVICE = "headrace.run.v1.Coordination"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
MESSAGES = RunMessages(MemorySplitSerializer(), MemoryHandleSerializer())


class Coordinator:
    """A server, for two workers."""

    def __init__(self, at):
        self.events = queue.SimpleQueue()
        self.server = CoordinationServer(at, MESSAGES, VERSION, 2, self.events.put, lambda number, failed: None)
        self.channel = grpc.insecure_channel(self.server.endpoint.address)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        self.reflection = reflection_pb2_grpc.ServerReflectionStub(self.channel)

    def join(self, number):
        """As a worker; returns what it is given."""
        said = queue.SimpleQueue()
        said.put(hello(number, VERSION))
        brought = token_metadata(self.server.endpoint.token)
        work = run_pb2_grpc.CoordinationStub(self.channel).Work
        settings = work(iter(said.get, None), timeout=TIMEOUT_S, metadata=brought)
        assert next(settings).WhichOneof("message") == "welcome"
        assert self.events.get(timeout=TIMEOUT_S) == WorkerJoined(number)
        return settings

    def status(self, service=""):
        return self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S).status


@pytest.fixture
def coordinator():
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        coordinator = Coordinator(Path(folder) / "coordinator")
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


def test_who_watches_health_is_notified_of_changes_alone(coordinator):
    watched = coordinator.health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
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
    listed, described = coordinator.reflection.ServerReflectionInfo(iter(asked), timeout=TIMEOUT_S)
    names = [service.name for service in listed.list_services_response.service]
    assert names == ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", SERVICE]
    assert described.file_descriptor_response.file_descriptor_proto == [pb.DESCRIPTOR.serialized_pb]


class Asking:
    """A reflection stream that stays open."""

    def __init__(self, coordinator):
        self.requests = queue.SimpleQueue()
        self.requests.put(reflection_pb2.ServerReflectionRequest(list_services=""))
        self.answers = coordinator.reflection.ServerReflectionInfo(iter(self.requests.get, None), timeout=TIMEOUT_S)

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
    watching = [coordinator.health.Watch(request, timeout=TIMEOUT_S) for _ in range(20)]
    assert {next(watched).status for watched in watching} == {NOT_SERVING}
    asking = [Asking(coordinator) for _ in range(20)]
    codes = [each.code() for each in asking]
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert codes.count(grpc.StatusCode.OK) == 2
    settings = [coordinator.join(number) for number in (1, 2)]
    coordinator.server.send(2, pb.ToWorker(leave=pb.Leave()))
    assert next(settings[1]).WhichOneof("message") == "leave"
    for each in asking:
        each.requests.put(None)


def test_a_server_that_closes_sends_what_it_was_given_and_waits_for_no_watcher(coordinator, monkeypatch):
    monkeypatch.setattr(server, "_STOP_S", TIMEOUT_S)
    watched = coordinator.health.Watch(health_pb2.HealthCheckRequest(), timeout=2 * TIMEOUT_S)
    assert next(watched).status == NOT_SERVING
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
    with pytest.raises(grpc.RpcError):
        next(watched)


# --- TCP ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_tcp():
    coordinator = Coordinator(tcp_address("tcp"))
    try:
        yield coordinator
    finally:
        coordinator.channel.close()
        coordinator.server.close()


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


METHODS = (
    f"/{SERVICE}/Work",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/another/method",
)


def brought_by_strangers(token):
    """What calls bring that are to be refused."""
    other = new_token()
    right = bearer(token)[0]
    return {
        "nothing": (),
        "another token": bearer(other),
        "a part of it": bearer(token[:-1]),
        "more than it": bearer(token + "x"),
        "another scheme": (("authorization", f"Basic {token}"),),
        "another name": (("token", token),),
        "two": (right, bearer(other)[0]),
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_stranger_without_the_token_is_refused_by_every_method_before_it_has_said_anything(on_tcp, method):
    token = on_tcp.server.endpoint.token
    call = on_tcp.channel.stream_stream(method, lambda data: data, lambda data: data)
    for what, brought in brought_by_strangers(token).items():
        said = queue.SimpleQueue()
        with pytest.raises(grpc.RpcError) as caught:
            next(call(iter(said.get, None), metadata=brought, timeout=TIMEOUT_S))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, what
        assert token not in str(caught.value)
        said.put(None)
    assert on_tcp.events.empty()


def test_with_the_token_workers_join_and_health_and_reflection_answer(on_tcp):
    on_tcp.server.is_serving = True
    token = token_metadata(on_tcp.server.endpoint.token)
    request = health_pb2.HealthCheckRequest()
    assert on_tcp.health.Check(request, metadata=token, timeout=TIMEOUT_S).status == SERVING
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    (listed,) = on_tcp.reflection.ServerReflectionInfo(asked, metadata=token, timeout=TIMEOUT_S)
    assert SERVICE in [service.name for service in listed.list_services_response.service]
    on_tcp.join(1)


def test_strangers_that_say_nothing_keep_no_worker_out(on_tcp):
    said = queue.SimpleQueue()
    call = on_tcp.channel.stream_unary("/grpc.health.v1.Health/Check", lambda data: data, lambda data: data)
    strangers = [call.future(iter(said.get, None), timeout=2 * TIMEOUT_S) for _ in range(50)]
    on_tcp.join(1)
    assert {stranger.exception(TIMEOUT_S).code() for stranger in strangers} == {grpc.StatusCode.UNAUTHENTICATED}
    for _ in strangers:
        said.put(None)


def test_a_worker_of_another_version_is_refused_though_it_has_the_token(on_tcp):
    token = token_metadata(on_tcp.server.endpoint.token)
    said = iter([hello(1, "0.0.1")])
    with pytest.raises(grpc.RpcError) as caught:
        next(run_pb2_grpc.CoordinationStub(on_tcp.channel).Work(said, metadata=token, timeout=TIMEOUT_S))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "0.0.1" in caught.value.details()
    assert VERSION in caught.value.details()
    assert on_tcp.events.empty()


def test_a_worker_refuses_a_coordinator_of_another_version():
    check_welcome(pb.Welcome(version=VERSION), VERSION)
    with pytest.raises(StateError, match=r"the coordinator is of headrace 0\.0\.1, and its worker of 1\.2\.3"):
        check_welcome(pb.Welcome(version="0.0.1"), VERSION)


def test_the_token_is_another_one_each_time_and_is_in_no_log_and_no_representation(on_tcp, caplog):
    token = on_tcp.server.endpoint.token
    assert len({token, new_token(), new_token()}) == 3
    with caplog.at_level("DEBUG"):
        for brought in brought_by_strangers(token).values():
            with pytest.raises(grpc.RpcError):
                on_tcp.health.Check(health_pb2.HealthCheckRequest(), metadata=brought, timeout=TIMEOUT_S)
    assert [record.levelname for record in caplog.records if "without this run's token" in record.message] == ["WARNING"]
    assert token not in caplog.text
    assert token not in repr(on_tcp.server.endpoint)


def test_tcp_is_for_this_machine_alone_unless_an_address_is_given(on_tcp):
    host, _, port = on_tcp.server.endpoint.address.rpartition(":")
    assert host == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), timeout=TIMEOUT_S).close()


def test_an_address_for_other_machines_is_warned_of_and_workers_use_the_loopback(caplog):
    coordinator = Coordinator(tcp_address("tcp://0.0.0.0:0"))
    try:
        assert coordinator.server.endpoint.address.startswith("127.0.0.1:")
        coordinator.join(1)
    finally:
        coordinator.channel.close()
        coordinator.server.close()
    assert "which other machines may reach" in caplog.text


def test_a_socket_in_a_folder_with_too_long_a_name_is_an_error_and_not_tried_for_ever(tmp_path):
    folder = tmp_path / ("x" * 100)
    with pytest.raises(UsageError, match=r"a socket's path has at most 107 bytes. Set TMPDIR .* or use --listen tcp"):
        Coordinator(folder / "coordinator")


def test_a_port_that_is_taken_is_named(on_tcp):
    taken = f"tcp://{on_tcp.server.endpoint.address}"
    with pytest.raises(UsageError, match=f"cannot listen at {taken}"):
        Coordinator(tcp_address(taken))


def test_a_worker_shows_its_token_to_no_proxy(on_tcp, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    stream = WorkerStream(on_tcp.server.endpoint, 1, VERSION, TIMEOUT_S)
    assert on_tcp.events.get(timeout=TIMEOUT_S) == WorkerJoined(1)
    stream.close(TIMEOUT_S)


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("unix", None),
        ("tcp", "127.0.0.1:0"),
        ("tcp://127.0.0.1:6123", "127.0.0.1:6123"),
        ("tcp://[::1]:0", "[::1]:0"),
        ("tcp://0.0.0.0:6123", "0.0.0.0:6123"),
    ],
)
def test_listen_says_where(listen, address):
    found = tcp_address(listen)
    assert (None if found is None else str(found)) == address


@pytest.mark.parametrize(
    "listen",
    ["", "TCP", "http://127.0.0.1:1", "tcp://", "tcp://127.0.0.1", "tcp://localhost:1", "tcp://127.0.0.1:70000", "tcp://:1",
     "tcp://127.0.0.1:1/path", "tcp://me@127.0.0.1:1", "unix:/socket", None, 1],
)  # fmt: skip
def test_another_listen_is_refused_with_the_forms_there_are(listen):
    with pytest.raises(UsageError, match=r"listen must be unix, tcp, or tcp://ADDRESS:PORT"):
        tcp_address(listen)


def test_an_endpoint_of_a_socket_has_no_token(coordinator):
    address = coordinator.server.endpoint.address
    assert coordinator.server.endpoint == Endpoint(address, None)
    assert address.startswith("unix:/")
