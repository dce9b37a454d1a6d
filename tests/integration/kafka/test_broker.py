"""The broker harness against the real thing: it starts, takes faults, and leaves nothing behind."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient

from headrace.enumerator.errors import PeerError, UsageError
from headrace.testing.servers.kafka import BrokerCluster, add_partitions, create_topic, delete_topic, start_broker
from headrace.testing.servers.kafka.metadata import ask
from headrace.testing.servers.ports import Ports, is_listening, reserved_ports
from tests.helpers.kafka_tools import created
from tests.helpers.waiting import eventually

OWN = "HEADRACE_BOOTSTRAP"
USERS = {"alice": "alice-secret", "bob": "bob's secret; 100%"}
CLI = [sys.executable, "-P", "-c", "from headrace.cli import main; main()", "broker"]
pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


def processes_of(directory: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command:
            found.append(command)
    return found


def produce(bootstrap: str, topic: str, values: list[bytes], **client: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), **client)
    try:
        for acknowledged in [producer.send(topic, value, partition=0) for value in values]:
            acknowledged.get(timeout=30)
    finally:
        producer.close()


def consume(bootstrap: str, topic: str, count: int, **client: Any) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), auto_offset_reset="earliest", **client)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        return [next(consumer).value for _ in range(count)]
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def own() -> Iterator[None]:
    """Brokers of our own, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(OWN, raising=False)
        yield


@pytest.fixture(scope="module")
def secured(own: None) -> Iterator[BrokerCluster]:
    with start_broker(security=["SSL", "SASL_PLAINTEXT", "SASL_SSL"], users=USERS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three(own: None) -> Iterator[BrokerCluster]:
    with start_broker(3) as cluster:
        yield cluster


def test_records_written_are_read_back(broker: BrokerCluster, topic: Callable[[], str]) -> None:
    name = created(broker.bootstrap, topic, partitions=2)
    produce(broker.bootstrap, name, [b"a", b"b"])
    assert consume(broker.bootstrap, name, 2) == [b"a", b"b"]


def test_a_group_is_joined_at_once(broker: BrokerCluster, topic: Callable[[], str]) -> None:
    name = created(broker.bootstrap, topic)
    produce(broker.bootstrap, name, [b"a"])
    consumer = KafkaConsumer(name, bootstrap_servers=broker.bootstrap, group_id=name, auto_offset_reset="earliest")
    try:
        assert next(consumer).value == b"a"
        consumer.commit()
    finally:
        consumer.close()


def test_topics_are_made_grown_and_deleted_with_visible_effect(broker: BrokerCluster, topic: Callable[[], str]) -> None:
    name = created(broker.bootstrap, topic, partitions=2, configs={"retention.ms": "3600000"})
    assert len(ask(broker.address(broker.nodes[0]), [name]).topics[0].partitions) == 2
    with pytest.raises(UsageError, match=name):
        create_topic(broker.bootstrap, name)
    add_partitions(broker.bootstrap, name, 5)
    assert len(ask(broker.address(broker.nodes[0]), [name]).topics[0].partitions) == 5
    with pytest.raises(PeerError, match=name):
        add_partitions(broker.bootstrap, name, 3)
    delete_topic(broker.bootstrap, name)
    with pytest.raises(UsageError, match=name):
        delete_topic(broker.bootstrap, name)
    create_topic(broker.bootstrap, name, partitions=1)


def test_a_topic_helper_without_a_broker_says_so() -> None:
    with reserved_ports() as ports, pytest.raises(PeerError, match="nothing listens"):
        create_topic(f"127.0.0.1:{ports.reserve()}", "topic")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_sasl_listeners_know_every_user(secured, topic, protocol, mechanism):
    name = created(secured.bootstrap, topic)
    for user, password in secured.users.items():
        client = sasl(secured, protocol, mechanism, user, password)
        produce(secured.listeners[protocol], name, [user.encode()], **client)
    assert consume(secured.listeners[protocol], name, 2, **client) == [b"alice", b"bob"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused(secured: BrokerCluster, mechanism: str) -> None:
    client = sasl(secured, "SASL_SSL", mechanism, "alice", "wrong")
    connection = KafkaNetClient(bootstrap_servers=[secured.listeners["SASL_SSL"]], **client)
    try:
        with pytest.raises(KafkaError):
            connection.check_version(timeout_ms=3000)
    finally:
        connection.close()


def sasl(cluster: BrokerCluster, protocol: str, mechanism: str, user: str, password: str) -> Mapping[str, Any]:
    assert cluster.certificates is not None
    return {
        "security_protocol": protocol, "sasl_mechanism": mechanism, "sasl_plain_username": user,
        "sasl_plain_password": password, **({"ssl_cafile": str(cluster.certificates.ca)} if protocol == "SASL_SSL" else {}),
    }  # fmt: skip


def test_ssl_is_verified_both_ways(secured: BrokerCluster, topic: Callable[[], str]) -> None:
    name, files = topic(), secured.certificates
    assert files is not None
    create_topic(secured.bootstrap, name)
    client = {
        "security_protocol": "SSL", "ssl_cafile": str(files.ca), "ssl_certfile": str(files.client),
        "ssl_keyfile": str(files.client),
    }  # fmt: skip
    produce(secured.listeners["SSL"], name, [b"a"], **client)
    assert consume(secured.listeners["SSL"], name, 1, **client) == [b"a"]
    host, port = secured.listeners["SSL"].split(":")
    stranger = ssl.create_default_context()
    with socket.create_connection((host, int(port))) as plain, pytest.raises(ssl.SSLCertVerificationError):
        stranger.wrap_socket(plain, server_hostname=host)


def test_records_survive_kill_stop_and_restart(own: None, topic: Callable[[], str]) -> None:
    name = topic()
    with start_broker() as cluster:
        create_topic(cluster.bootstrap, name)
        for end in (cluster.kill, cluster.stop):
            produce(cluster.bootstrap, name, [b"a"])
            end(1)
            assert not cluster.is_running(1)
            assert not is_listening(cluster.bootstrap)
            cluster.restart(1)
        assert consume(cluster.bootstrap, name, 2) == [b"a", b"a"]


def test_a_paused_broker_answers_nothing_until_resumed(own: None) -> None:
    with start_broker() as cluster:
        host, port = cluster.bootstrap.split(":")
        api_versions = bytes.fromhex("0000000a 0012 0000 00000007 ffff")
        cluster.pause(1)
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(api_versions)
            with pytest.raises(TimeoutError):
                connection.recv(4)
            cluster.resume(1)
            connection.settimeout(30)
            assert len(connection.recv(4)) == 4
        cluster.pause(1)
        cluster.kill(1)
        assert not cluster.is_running(1)


def test_two_of_three_brokers_serve_without_the_third(three: BrokerCluster, topic: Callable[[], str]) -> None:
    name = topic()
    assert three.nodes == (1, 2, 3)
    create_topic(three.bootstrap, name, partitions=3, replication=3, configs={"min.insync.replicas": "2"})
    produce(three.bootstrap, name, [b"a"], acks="all")
    leader = ask(three.address(1), [name]).topics[0].partitions[0].leader_id
    three.kill(leader)
    eventually(lambda: ask(three.address(survivor(three, leader)), [name]).topics[0].partitions[0].leader_id != leader)
    produce(",".join(three.address(node) for node in three.nodes if node != leader), name, [b"b"], acks="all")
    three.restart(leader)
    assert consume(three.address(leader), name, 2) == [b"a", b"b"]


def survivor(cluster: BrokerCluster, dead: int) -> int:
    return next(node for node in cluster.nodes if node != dead)


def test_topics_can_be_made_while_a_broker_is_down(three: BrokerCluster, topic: Callable[[], str]) -> None:
    three.stop(1)
    create_topic(three.bootstrap, topic(), partitions=2, replication=2)
    three.restart(1)


def test_clusters_side_by_side_do_not_meet(own: None, three: BrokerCluster, topic: Callable[[], str]) -> None:
    name = topic()
    with start_broker() as one, start_broker() as other:
        create_topic(one.bootstrap, name)
        assert not {one.bootstrap, other.bootstrap} & set(three.bootstrap.split(","))
        create_topic(other.bootstrap, name)


def test_settings_given_win_over_ours(own: None, topic: Callable[[], str]) -> None:
    name = topic()
    with start_broker(config={"auto.create.topics.enable": "true", "num.partitions": "3"}) as cluster:
        produce(cluster.bootstrap, name, [b"a"])
        assert len(ask(cluster.bootstrap, [name]).topics[0].partitions) == 3


def test_nothing_is_left_behind(own: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with start_broker() as cluster:
        assert processes_of(tmp_path)
        address = cluster.bootstrap
    assert_nothing_left(tmp_path, address)


def test_a_broker_that_fails_to_start_shows_the_end_of_its_log(own, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PeerError, match=r"Kafka broker 1 ended while starting(?s:.*)NoSuchOption"):
        start_broker(jvm_options=["-XX:NoSuchOption=1"]).__enter__()
    assert_nothing_left(tmp_path)


def test_a_setting_kafka_refuses_is_named(own: None) -> None:
    with pytest.raises(UsageError, match=r"log\.segment\.bytes"), start_broker(config={"log.segment.bytes": "no"}):
        pass


def test_a_start_that_loses_its_port_takes_another(own: None, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Ports.reserve
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answers = [taken.getsockname()[1]]
        monkeypatch.setattr(Ports, "reserve", lambda self, port=None: answers.pop() if answers else reserve(self, port))
        with start_broker() as cluster:
            assert cluster.bootstrap != f"127.0.0.1:{taken.getsockname()[1]}"
    assert not answers


def test_a_reserved_port_is_given_to_no_process_else() -> None:
    with reserved_ports() as ports:
        port = ports.reserve()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_the_first_port_can_be_chosen(own: None) -> None:
    with reserved_ports() as ports:
        port = ports.reserve()
    with start_broker(port=port) as cluster:
        assert cluster.bootstrap == f"127.0.0.1:{port}"
        with pytest.raises(UsageError, match=str(port)), start_broker(port=port):
            pass


@pytest.mark.parametrize(("wish", "message"), [
    ({"brokers": 0}, "at least 1"), ({"security": ["TLS"]}, "unknown security"), ({"security": ["SASL_SSL"]}, "needs users"),
    ({"security": ["SASL_SSL"], "users": {"alice": 'a"b'}}, "alice"),
])  # fmt: skip
def test_wishes_that_cannot_be_met_are_refused(own: None, wish: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message), start_broker(**wish):
        pass


def test_without_docker_and_pyspark_the_ways_out_are_named(own: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"PySpark(?s:.*)Docker(?s:.*)HEADRACE_BOOTSTRAP"), start_broker():
        pass


def test_without_java_that_is_said(own: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="Java 17"), start_broker():
        pass


def test_an_external_cluster_is_used_and_not_touched(own, three, topic, monkeypatch):
    monkeypatch.setenv(OWN, three.bootstrap)
    with start_broker(2) as cluster:
        assert cluster.nodes == (1, 2, 3)
        create_topic(cluster.bootstrap, topic())
        for fault in (cluster.kill, cluster.stop, cluster.restart, cluster.pause, cluster.resume):
            with pytest.raises(UsageError, match=OWN):
                fault(1)
    with pytest.raises(UsageError, match="4 brokers"), start_broker(4):
        pass
    with pytest.raises(UsageError, match=OWN), start_broker(config={"num.partitions": "3"}):
        pass


def test_an_unknown_node_is_refused(broker: BrokerCluster) -> None:
    with pytest.raises(UsageError, match="no node 99"):
        broker.address(99)


def assert_nothing_left(directory: Path, *addresses: str) -> None:
    eventually(lambda: not processes_of(directory))
    eventually(lambda: not list(directory.glob("headrace-*")))
    eventually(lambda: not any(map(is_listening, addresses)))


@contextmanager
def command(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`headrace broker` in its own process, its temporary files below `directory`."""
    environment = {name: value for name, value in os.environ.items() if name != OWN} | {"TMPDIR": str(directory)}
    process = subprocess.Popen([*CLI, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_instructed_to_stop(tmp_path: Path, topic: Callable[[], str], number: int) -> None:
    name = topic()
    with command(tmp_path, "--config", "num.partitions=2") as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        create_topic(address, name)
        produce(address, name, [b"a"])
        assert consume(address, name, 1) == [b"a"]
        process.send_signal(number)
        assert process.wait(30) == 0
        assert_nothing_left(tmp_path, address)


def test_the_command_stops_while_it_starts(tmp_path: Path) -> None:
    with command(tmp_path) as process:
        eventually(lambda: any("kafka.Kafka" in line for line in processes_of(tmp_path)))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert_nothing_left(tmp_path)


def test_killing_the_command_leaves_no_broker(tmp_path: Path) -> None:
    with command(tmp_path, "--brokers", "3") as process:
        assert process.stdout is not None
        addresses = process.stdout.readline().strip().split(",")
        assert len(addresses) == 3
        process.kill()
        assert_nothing_left(tmp_path, *addresses)


def test_a_cluster_outlives_the_thread_that_started_it(own: None) -> None:
    context, found = start_broker(), []
    thread = threading.Thread(target=lambda: found.append(context.__enter__()))
    thread.start()
    thread.join()
    try:
        assert is_listening(found[0].bootstrap)
    finally:
        context.__exit__(None, None, None)


def test_the_command_ends_when_its_broker_dies(tmp_path: Path) -> None:
    with command(tmp_path) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        os.kill(broker_process(tmp_path), signal.SIGKILL)
        assert process.wait(30) == 1
        assert_nothing_left(tmp_path, address)


def broker_process(directory: Path) -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        command_line = path.read_bytes()
        if str(directory).encode() in command_line and b"kafka.Kafka" in command_line:
            return int(path.parent.name)
    raise AssertionError("no broker runs")


def test_importing_headrace_imports_nothing_heavy() -> None:
    code = "import headrace, headrace.cli, sys; sys.exit(bool({'pyspark', 'apache_beam', 'kafka'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_concurrent_first_uses_download_once(own: None, tmp_path: Path) -> None:
    """Of a small program: all of Kafka is downloaded by the process that has none yet."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    code = (
        "from headrace.testing.servers.jars import Bundle, installed\n"
        "print(installed(Bundle('a logger', 'logger', ('org.slf4j:slf4j-simple:1.7.36',), jars=2, size='60 KB')))"
    )
    command, pipe = [sys.executable, "-P", "-c", code], subprocess.PIPE
    users = [subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) for _ in range(3)]
    printed = [user.communicate() for user in users]
    folder = tmp_path / "headrace" / "logger"
    assert {answer for answer, _ in printed} == {f"{folder}\n".encode()}
    assert sum(said.count(b"Downloading a logger") for _, said in printed) == 1
    assert sorted(path.name for path in folder.parent.iterdir()) == ["logger", "logger.lock"]
    assert sorted(path.name for path in folder.iterdir()) == ["slf4j-api-1.7.36.jar", "slf4j-simple-1.7.36.jar"]


def test_wrong_use_of_the_command_is_one_message_and_status_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = [*CLI, "--port", str(taken.getsockname()[1])]
        environment = {name: value for name, value in os.environ.items() if name != OWN}
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("headrace: port")
    assert "Traceback" not in done.stderr
