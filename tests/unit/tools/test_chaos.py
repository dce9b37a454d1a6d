"""The harness of `make chaos`, without servers: its network, its output check, its schedule, its results."""

import gc
import json
import queue
import random
import select
import socket
import struct
import threading
import types
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from benchmarks.chaos import trial
from benchmarks.chaos.databases import LARGEST, PRODUCTS, Places, Product, TableOutput
from benchmarks.chaos.faults import KINDS
from benchmarks.chaos.faults.databases import Frozen, Killed, Restarted
from benchmarks.chaos.faults.fault import NotHappenedError
from benchmarks.chaos.faults.links import clients, everybody, peers
from benchmarks.chaos.load import Load
from benchmarks.chaos.losses import Due, Losses, Report, gone, of_aged, of_deleted, of_truncated, reports
from benchmarks.chaos.network import GOOD, HARNESS, HELD, JOB, Condition, Network, Weather, network
from benchmarks.chaos.oracle import VALUE_BYTES, WRONG, OutputCheck, phantoms
from benchmarks.chaos.report import bars, table, write
from benchmarks.chaos.run import PARTITIONS, TRIES, Campaign, Journal, Servers, Session, kinds_of, next_kind
from benchmarks.chaos.subject import LOSSY, SYSTEMS, Subject
from benchmarks.chaos.testbed import CLIENT_ID
from benchmarks.chaos.trial import Trial, is_exact, is_good, told_last
from benchmarks.restore.oracle import Log
from benchmarks.restore.process import LOG
from benchmarks.restore.records import SEQUENCE_BITS, RecordMaker
from headrace.enumerator.errors import DeadlineExceededError, RetriableError, UsageError
from headrace.testing import FakeKafka
from headrace.testing.servers.databases import Database
from headrace.testing.servers.kafka.metadata import ask
from headrace.testing.servers.ports import HOST
from tests.helpers.waiting import eventually

NODE = 2
UNREAD = 1 << 25  # bytes, more than the sockets take
TIMEOUT_S = 10.0


def records(origin: int, first: int, count: int) -> list[bytes]:
    return [row.tobytes() for row in RecordMaker(VALUE_BYTES).values(origin, first, count)]


def request(client_id: str | None) -> bytes:
    """ApiVersions, as far as its header goes."""
    name = b"" if client_id is None else client_id.encode()
    body = struct.pack(">hhih", 18, 3, 1, -1 if client_id is None else len(name)) + name
    return struct.pack(">i", len(body)) + body


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self.received: queue.Queue[bytes] = queue.Queue()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(client,), daemon=True).start()

    def _echo(self, client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(1024):
                    self.received.put(data)
                    client.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as found:
        yield found


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def answer(client: socket.socket, count: int = 4) -> bytes:
    found = b""
    while len(found) < count and (data := client.recv(count - len(found))):
        found += data
    return found


def until_held(net: Network, count: int) -> None:
    eventually(lambda: net.counts.held == count, lambda: f"{net.counts.held} bytes are held", seconds=TIMEOUT_S)


def nothing_comes(client: socket.socket) -> bool:
    return not select.select([client], [], [], 0.02)[0]


class TestTheNetwork:
    def test_what_is_held_arrives_when_the_partition_is_healed(self, net, echo):
        with connected(net.proxy(NODE, "PLAINTEXT", echo.address)) as client:
            client.sendall(b"past")
            assert answer(client) == b"past"
            net.disturb(clients(NODE), Weather(HELD, HELD))
            client.sendall(b"late")
            until_held(net, 4)
            assert nothing_comes(client)
            net.calm()
            assert answer(client) == b"late"

    def test_a_one_way_partition_lets_the_other_way_through(self, net, echo):
        with connected(net.proxy(NODE, "PLAINTEXT", echo.address)) as client:
            net.disturb(clients(NODE), Weather(GOOD, HELD))
            client.sendall(b"once")
            until_held(net, 4)  # the answer: so the request has arrived
            assert nothing_comes(client)

    def test_only_the_connections_that_are_meant_are_disturbed(self, net, echo):
        with connected(net.proxy(NODE, "PLAINTEXT", echo.address)) as client:
            net.disturb(clients(NODE + 1), Weather(HELD, HELD))
            client.sendall(b"here")
            assert answer(client) == b"here"
            assert net.counts.held == 0

    def test_what_is_stranded_arrives_when_its_sender_is_gone_and_a_new_connection_is_free(self, net, echo):
        address = net.proxy(NODE, "PLAINTEXT", echo.address)
        with connected(address) as old:
            old.sendall(b"past")
            assert answer(old) == b"past"
            assert net.strand(clients(NODE)) == 1
            old.sendall(b"late")
            until_held(net, 4)
        with connected(address) as new:
            new.sendall(b"free")
            assert answer(new) == b"free"
        assert [echo.received.get(timeout=TIMEOUT_S) for _ in range(2)] == [b"past", b"free"]
        net.calm()
        assert echo.received.get(timeout=TIMEOUT_S) == b"late"

    def test_a_slow_link_is_slow_and_loses_nothing(self, net, echo):
        with connected(net.proxy(NODE, "PLAINTEXT", echo.address)) as client:
            net.disturb(clients(NODE), Weather(Condition(delay_s=0.01), Condition(bytes_per_s=1e6)))
            client.sendall(b"slow")
            assert answer(client) == b"slow"
            assert net.counts.slowed == 8

    def test_a_reset_reaches_the_client_and_is_counted(self, net, echo):
        with connected(net.proxy(NODE, "PLAINTEXT", echo.address)) as client:
            client.sendall(b"past")
            assert answer(client) == b"past"
            assert net.cut(clients(NODE)) == 1
            with pytest.raises(ConnectionError):
                client.recv(4)
            assert net.cut(lambda _source, _target: True) == 0

    @pytest.mark.parametrize(("client_id", "source"), [
        ("broker-3-fetcher-0", "3"), ("raft-client-2", "2"), ("1", "1"), (CLIENT_ID, HARNESS), ("headrace-broker", HARNESS),
        ("headrace", JOB), ("consumer-spark-kafka-source-1", JOB), (None, JOB),
    ])  # fmt: skip
    def test_the_source_is_reported_by_the_first_request(self, net, echo, client_id, source):
        with connected(net.proxy(NODE, "PLAINTEXT", echo.address)) as client:
            data = request(client_id)
            client.sendall(data)
            assert answer(client, len(data)) == data
            assert net.cut(lambda found, target: (found, target) == (source, NODE)) == 1

    def test_its_end_closes_what_a_client_does_not_read(self):
        net = Network()
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server((HOST, 0)))
            client = stack.enter_context(connected(net.proxy(NODE, "PLAINTEXT", f"{HOST}:{listener.getsockname()[1]}")))
            server = stack.enter_context(listener.accept()[0])
            client.sendall(b"here")
            assert answer(server) == b"here"
            (connection,) = net._connections
            connection.client.transport.set_write_buffer_limits(UNREAD)  # so that the proxy waits for no process
            server.sendall(bytes(UNREAD))
            server.close()
            eventually(connection.client.is_closing, seconds=TIMEOUT_S)
            assert connection.client.transport.get_write_buffer_size()
            net.close()
            assert connection.client.get_extra_info("socket").fileno() == -1

    def test_its_end_closes_a_connection_that_was_accepted_just_before(self, echo):
        net, gate = Network(), threading.Event()
        address = net.proxy(NODE, "PLAINTEXT", echo.address)
        net._loop.call_soon_threadsafe(gate.wait, TIMEOUT_S)
        with connected(address) as client:  # by the kernel: the loop finds it together with the order to end
            end = threading.Thread(target=net.close)
            end.start()
            eventually(lambda: net._loop._ready)  # work was handed to the loop, which does not look yet
            gate.set()
            end.join(TIMEOUT_S)
            assert not end.is_alive()
            gc.collect()  # a socket still open is reported here
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""

    def test_a_dead_broker_ends_the_connection_to_its_proxy(self, net):
        with socket.create_server(("127.0.0.1", 0)) as gone:
            address = f"127.0.0.1:{gone.getsockname()[1]}"
        with connected(net.proxy(NODE, "PLAINTEXT", address)) as client:
            assert client.recv(4) == b""


@pytest.mark.parametrize(("place", "cut_off"), [
    (clients, {(JOB, 2)}), (peers, {("1", 2), ("3", 2), ("2", 1), ("2", 3)}),
    (everybody, {(JOB, 2), ("1", 2), ("3", 2), ("2", 1), ("2", 3)}),
])  # fmt: skip
def test_a_partition_is_between_whom_it_says_and_never_before_the_harness(place, cut_off):
    links = {(source, target) for source in (JOB, HARNESS, "1", "2", "3") for target in (1, 2, 3)}
    assert {link for link in links if place(2)(*link)} == cut_off


class TestTheOutputCheck:
    def test_every_record_once_is_nothing_missing(self):
        output_check = OutputCheck(2)
        output_check.add([*records(0, 0, 5), *records(1, 0, 3)], 1.0)
        assert (output_check.missing([5, 3]), output_check.duplicates, output_check.records) == (0, 0, 8)

    def test_a_lost_record_is_missing(self):
        output_check = OutputCheck(2)
        output_check.add([*records(0, 0, 2), *records(0, 3, 2)], 1.0)
        assert output_check.missing([5, 0]) == 1

    def test_a_record_that_comes_twice_is_a_duplicate_whenever_it_comes(self):
        output_check = OutputCheck(1)
        output_check.add([*records(0, 0, 3), *records(0, 2, 1)], 1.0)
        output_check.add(records(0, 0, 1), 2.0)
        assert (output_check.duplicates, output_check.records) == (2, 3)

    def test_a_damaged_record_is_no_record(self):
        output_check = OutputCheck(1)
        output_check.add([b"x" * VALUE_BYTES, *records(3, 0, 1)], 1.0)  # there is no partition 3
        assert (output_check.damaged, output_check.records) == (2, 0)

    def test_what_was_shown_and_is_not_committed_is_a_phantom(self):
        output_check = OutputCheck(1)
        output_check.add(records(0, 0, 3), 1.0)
        assert phantoms(output_check, {0: Log(np.arange(2), np.array([0, 2]) | (0 << SEQUENCE_BITS))}) == 1

    def test_the_longest_gap_reaches_to_the_first_new_record_after_the_end(self):
        output_check = OutputCheck(1)
        for number, at in enumerate((1.0, 2.0, 4.0, 9.0)):
            output_check.add(records(0, number, 1), at)
        assert output_check.longest_gap(1.5, 5.0) == 5.0
        assert output_check.longest_gap(1.5, 3.0) == 2.0


TOPIC = "in"
MOVED = (
    f"{TOPIC}-{{}}: the log was truncated; offsets {{}} to {{}} were read already, and the log now holds other records there"
)
ENDED = f"{TOPIC}-{{}} (topic id old, read up to offset {{}}): topic '{TOPIC}' was deleted and created again: its id is now new"


def moved(partition: int, first: int, last: int) -> str:
    """As a job logs it that goes back."""
    return f"12:00 WARNING reader: {MOVED.format(partition, first, last)}; continuing at offset {first}\n"


def ended(partition: int, read_to: int) -> str:
    """As a job logs it that leaves a partition of a topic recreated."""
    return f"12:00 WARNING reader: {ENDED.format(partition, read_to)}; continuing without the rest of it\n"


def aged(partition: int, first: int, last: int) -> str:
    """As a job logs it that finds its records deleted."""
    range_ = (
        f"available are {last + 1} to 200 (exclusive); offsets {first} to {last} were deleted (by retention or DeleteRecords)"
    )
    where = f"{TOPIC}-{partition}: offset {first} is out of range"
    return f"{where}, {range_} before they were read; continuing at offset {last + 1}\n"


def input_log(*sequences: int) -> dict[int, Log]:
    """Of partition 0, as it is now."""
    return {0: Log(np.arange(len(sequences)), np.array(sequences, np.int64))}


class TestLosses:
    """Of ten records of partition 0 at offsets 100 to 109 those from 104 on are gone; the job has read up to 107."""

    @pytest.fixture
    def output_check(self) -> OutputCheck:
        found = OutputCheck(1)
        found.add(records(0, 0, 7), 1.0)
        return found

    def losses(self, output_check: OutputCheck, due: Due) -> Losses:
        found = Losses(TOPIC, gone([np.arange(100, 110)], input_log(0, 1, 2, 3), output_check.gone), due)
        found.excuse(output_check)
        return found

    def test_what_is_gone_need_not_come_and_all_else_has_to(self, output_check):
        assert output_check.missing([10]) == 3
        self.losses(output_check, of_truncated).accuse(output_check)
        assert output_check.missing([10]) == 0
        assert output_check.missing([12]) == 2
        assert output_check.missing([8]) == 0

    def test_a_record_that_was_left_out_before_one_that_came_is_missing_though_it_is_gone(self):
        output_check = OutputCheck(1)
        output_check.add([*records(0, 0, 5), *records(0, 6, 1)], 1.0)
        self.losses(output_check, of_truncated).accuse(output_check)
        assert output_check.missing([10]) == 1

    def test_what_comes_out_late_accuses_what_was_left_out_before_it(self, monkeypatch):
        monkeypatch.setattr(trial, "REPORT_S", 0.1)
        monkeypatch.setattr(trial, "LOOK_S", 0.01)
        output_check = OutputCheck(1)
        output_check.add(records(0, 0, 5), 1.0)
        losses = self.losses(output_check, of_truncated)
        comes = iter([records(0, 6, 1)])
        subject = types.SimpleNamespace(
            output_check=output_check, look=lambda: output_check.add(next(comes, []), 2.0), said=list, hear=list
        )
        judge = Trial(None, subject, None)
        judge._account(losses)
        assert output_check.missing([10]) == 1
        output_check.add(records(0, 8, 1), 3.0)
        judge.accuse()
        assert output_check.missing([10]) == 2

    def test_what_was_gone_before_is_no_loss_of_the_next_fault(self, output_check):
        self.losses(output_check, of_truncated)
        assert gone([np.arange(100, 110)], input_log(0, 1, 2, 3), output_check.gone) == []

    def test_in_a_topic_recreated_nothing_is_left(self, output_check):
        (part,) = gone([np.arange(10)], {}, output_check.gone)
        assert part.numbers.tolist() == list(range(10))

    @pytest.mark.parametrize(
        ("due", "log"), [(of_truncated, moved(0, 104, 106)), (of_deleted, ended(0, 107)), (of_aged, aged(0, 107, 109))]
    )
    def test_the_exact_report_is_good(self, output_check, due, log):
        line = self.losses(output_check, due).line(output_check, [log])
        assert line["lost"] == [{"partition": 0, "from": 104, "to": 110, "records": 6, "read": 3}]
        assert is_exact(line)

    @pytest.mark.parametrize(("due", "log"), [
        (of_truncated, ""), (of_truncated, moved(0, 105, 106)), (of_truncated, moved(0, 104, 105)),
        (of_truncated, moved(0, 103, 106)), (of_truncated, moved(0, 104, 107)), (of_truncated, moved(1, 104, 106)),
        (of_truncated, moved(0, 104, 106).replace("offset 104", "offset 107")),
        (of_truncated, moved(0, 104, 106) + moved(0, 102, 103)), (of_truncated, moved(0, 104, 106) + moved(3, 1, 2)),
        (of_deleted, ""), (of_deleted, ended(0, 106)), (of_deleted, ended(0, 108)), (of_deleted, ended(0, 107) + ended(1, 5)),
        (of_deleted, moved(0, 104, 106)), (of_aged, ""), (of_aged, aged(0, 106, 109)), (of_aged, aged(0, 107, 108)),
    ])  # fmt: skip
    def test_a_report_that_is_missing_or_too_small_or_too_large_or_of_another_partition_is_not(self, output_check, due, log):
        line = self.losses(output_check, due).line(output_check, [log])
        assert not is_good({"missing": 0, "duplicates": 0, "damaged": 0, **line})

    def test_of_what_the_job_has_not_read_of_a_truncated_log_nothing_is_due(self):
        output_check = OutputCheck(1)
        output_check.add(records(0, 0, 3), 1.0)
        line = self.losses(output_check, of_truncated).line(output_check, [""])
        assert (line["lost"][0]["records"], line["lost"][0]["read"], line["due"]) == (6, 0, [])
        assert is_exact(line)

    def test_the_end_of_a_topic_is_due_though_all_of_it_was_read(self, output_check):
        output_check.add(records(0, 7, 3), 2.0)
        assert self.losses(output_check, of_deleted).due_reports(output_check) == [Report(0, 110, None)]

    def test_a_process_that_continues_from_an_older_checkpoint_has_the_last_word(self):
        assert reports([moved(0, 104, 108) + moved(1, 5, 6), moved(0, 104, 106)], TOPIC) == [
            Report(0, 104, 107),
            Report(1, 5, 7),
        ]

    def test_a_log_that_is_too_short_is_a_report(self):
        there = "available are 0 to 7 (exclusive); the log is shorter"
        text = f"{TOPIC}-2: offset 9 is out of range, {there}; continuing at offset 7\n"
        assert reports([text], TOPIC) == [Report(2, 7, 9)]

    def test_another_topic_is_none_of_it(self):
        assert reports([moved(0, 104, 106)], "other") == []


def test_what_a_job_says_is_reported_by_process_and_once(tmp_path):
    log = tmp_path / LOG
    log.write_text("first\n")
    subject = Subject(SYSTEMS["embedded-losses"], None, None, tmp_path, None, OutputCheck(1), None)
    subject._begins += [0, 6]
    log.write_text("first\nsecond\n")
    assert subject.said() == subject.hear() == ["first\n", "second\n"]
    log.write_text("first\nsecond\nthird\n")
    assert subject.hear() == ["third\n"]


class TestThePlaces:
    def test_what_has_not_been_seen_is_asked_for_below_the_last_one_too(self):
        places = Places()
        assert places.condition == f"place BETWEEN 1 AND {LARGEST}"
        for place in (2, 5, 3):
            places.see(place)
        assert places.condition == f"place BETWEEN 1 AND 1 OR place BETWEEN 4 AND 4 OR place BETWEEN 6 AND {LARGEST}"
        for place in (4, 1, 6):
            places.see(place)
        assert places.condition == f"place BETWEEN 7 AND {LARGEST}"


class DeadDatabase:
    """It has ended before, with whatever status a fault would prove itself by."""

    def __init__(self, status: int) -> None:
        self.status, self.restarts = status, 0

    def is_running(self) -> bool:
        return False

    def pids(self) -> tuple[int, ...]:
        return ()

    def kill(self) -> None:
        """Nothing is there."""

    stop = pause = resume = kill

    def restart(self) -> None:
        self.restarts += 1


@pytest.mark.parametrize(("kind", "status"), [(Killed, -9), (Restarted, 0), (Frozen, 1)])
def test_a_database_that_was_down_already_suffers_nothing_and_is_started(kind, status):
    output = TableOutput.__new__(TableOutput)
    output.database = database = DeadDatabase(status)
    fault = kind(None, types.SimpleNamespace(output=output), random.Random(1))
    with pytest.raises(NotHappenedError, match=f"had ended before, with {status}"):
        fault.apply()
    fault.heal()
    assert database.restarts == 1


@pytest.mark.parametrize("error", [DeadlineExceededError, RetriableError, TimeoutError])
def test_a_fault_whose_healing_fails_is_wrong_and_the_campaign_continues(error):
    def heal() -> None:
        raise error("it does not come back")

    fault = types.SimpleNamespace(apply=lambda: "x", prove=lambda: "y", heal=heal)
    found = Trial(None, types.SimpleNamespace(look=lambda: None), None)._suffer(fault, 0.01)
    assert found == {"hit": "x", "proof": "y", "wrong": f"{error.__name__}: it does not come back"}


@pytest.fixture
def lite(tmp_path) -> Database:
    return Database(f"sqlite:///{tmp_path / 'table.db'}", lambda: None)


def product(sessions: str) -> Product:
    return Product(
        ExitStack, "sqlite", "place INTEGER PRIMARY KEY, key BLOB, value BLOB", "SELECT 7", sessions, "SELECT {}", ""
    )


def test_a_database_that_cannot_be_asked_for_its_sessions_is_no_end_of_the_campaign(lite):
    output = TableOutput(lite, product("SELECT id FROM nowhere"), "out")
    with pytest.raises(RetriableError, match="nowhere"):
        output.cut()
    output.close()


def test_a_watcher_that_is_about_to_know_its_session_is_not_cut(lite):
    watches, asks, knows = threading.Event(), threading.Event(), threading.Event()

    class Slow(TableOutput):
        def _me(self, connection: object) -> int:
            if threading.current_thread().name != "table":
                asks.set()
                return 8
            watches.set()
            knows.wait()
            return 7

    output = Slow(lite, product("SELECT 7 WHERE (SELECT count(*) FROM out) = 0"), "out")
    assert watches.wait(10)
    with ThreadPoolExecutor(1) as pool:
        cut = pool.submit(output.cut)
        assert asks.wait(10)
        knows.set()
        with suppress(DeadlineExceededError):  # what it takes for the job's does not end
            assert cut.result() == 0
            output.close()
            return
    pytest.fail("the watcher's session was to be ended")


def test_a_load_continues_with_a_new_producer_whatever_happened_while_it_rested():
    load = Load.__new__(Load)
    load._writing, load._settings, load._flush = threading.Lock(), {"bootstrap.servers": "127.0.0.1:1"}, lambda: None
    load._producer = before = object()
    with pytest.raises(RetriableError), load.resting():
        raise RetriableError("meanwhile")
    assert load._producer is not before


class TestTheSchedule:
    def test_the_next_kind_is_one_that_has_happened_least_often(self):
        kinds = kinds_of("embedded", Servers.REAL)
        generator, lines = random.Random(1), []
        for _ in range(3 * len(kinds)):
            lines.append({"kind": next_kind(kinds, lines, generator).name, "proof": "seen"})
        assert set(Counter(line["kind"] for line in lines).values()) == {3}
        assert [line["kind"] for line in lines[: len(kinds)]] != [line["kind"] for line in lines[len(kinds) : 2 * len(kinds)]]

    def test_what_leaves_no_trace_is_tried_thrice_and_then_keeps_no_process_waiting(self):
        kinds = kinds_of("embedded", Servers.REAL)
        others = [{"kind": kind.name, "proof": "seen"} for kind in kinds[1:]]
        tried: list[dict[str, str]] = []
        while next_kind(kinds, others + tried, random.Random(1)) is kinds[0]:
            tried.append({"kind": kinds[0].name, "not_happened": "no leader"})
        assert len(tried) == TRIES

    def test_every_system_has_faults_of_every_process_tree_and_of_databases_where_it_writes_to_one(self):
        trees = {kind.tree for kind in KINDS.values() if not kind.loses}
        for system in SYSTEMS.keys() - LOSSY:
            others = set() if system in PRODUCTS else {"databases"}
            assert {kind.tree for kind in kinds_of(system, Servers.REAL)} == trees - others

    def test_a_job_into_a_table_has_no_fault_of_an_output_topic_or_of_kafkas_transactions(self):
        left_out = {"output reassigned", "transaction log reassigned"}
        left_out |= {"transaction coordinator killed", "transaction coordinator frozen"}
        into_topic = {kind.name for kind in kinds_of("embedded", Servers.REAL)}
        for system in PRODUCTS:
            assert into_topic - {kind.name for kind in kinds_of(system, Servers.REAL)} == left_out

    def test_records_are_lost_only_to_systems_that_are_there_to_report_it(self):
        assert {kind.tree for kind in kinds_of("embedded-losses", Servers.REAL)} == {"losses"}
        assert not kinds_of("embedded", Servers.REAL, "losses")

    def test_the_journal_continues_behind_its_last_fault(self, tmp_path):
        journal = Journal(tmp_path / "results" / "embedded.jsonl")
        assert journal.faults() == []
        journal.add({"kind": "leader killed"})
        journal.add({"verdict": {}})
        assert Journal(tmp_path / "results" / "embedded.jsonl").faults() == [{"kind": "leader killed"}]


@pytest.mark.parametrize("bad", [{"missing": 1}, {"duplicates": 2}, {"damaged": 1}, {"wrong": "it continued"}])
def test_a_fault_after_which_anything_is_wrong_is_not_stood(bad):
    line = {"missing": 0, "duplicates": 0, "damaged": 0}
    assert is_good(line)
    assert not is_good({**line, **bad})


@pytest.mark.parametrize("name", WRONG)
def test_a_result_that_is_not_clean_is_bad_for_the_exit_status(name):
    campaign = Campaign("embedded", Servers.FAKE, "", 1, 0, float("inf"), Path("unused"))

    def bad(outcome: dict[str, int]) -> int:
        return campaign._session(types.SimpleNamespace(judge=lambda: {"verdict": outcome}), None, random.Random(1))

    clean = {"records_in": 5, "records_out": 5, "out_of_order": 1, "gone": 2}
    assert bad(clean) == 0
    assert bad({**clean, name: 1}) == 1


def test_a_job_that_doubles_is_found_out_by_its_kill_and_by_no_other_fault(tmp_path):
    """The whole harness on FakeKafka: its own job process, load, output check, proxies, and the result on the whole output."""
    journal = Journal(tmp_path / "injected.jsonl")
    with ExitStack() as stack:
        session = Session("planted-doubles", Servers.FAKE, journal, stack)
        generator = random.Random(1)
        harmless, kill = (session.suffer(KINDS[name], generator) for name in ("connections reset", "job killed"))
        outcome = session.judge()["verdict"]
    assert "proof" in harmless
    assert is_good(harmless)
    assert "proof" in kill
    assert kill["duplicates"] == outcome["duplicates"] > 0
    assert (outcome["lost"], outcome["aborted_seen"]) == (0, 0)
    assert [line["kind"] for line in journal.faults()] == ["connections reset", "job killed"]


def test_the_loss_of_a_topic_recreated_is_reported_exactly_and_nothing_else_is_lost(tmp_path):
    """The whole harness again; the job was frozen meanwhile, and has not read what was written then."""
    journal = Journal(tmp_path / "losses.jsonl")
    with ExitStack() as stack:
        session = Session("embedded-losses", Servers.FAKE, journal, stack)
        line = session.suffer(KINDS["input recreated, job frozen"], random.Random(1))
        outcome = session.judge()["verdict"]
    assert "proof" in line
    assert is_good(line)
    assert [report[0] for report in line["reported"]] == list(range(PARTITIONS))
    unread = sum(part["records"] - part["read"] for part in line["lost"])
    assert outcome["records_in"] - outcome["records_out"] == unread > 0
    assert (outcome["lost"], outcome["torn"], outcome["duplicates"]) == (0, 0, 0)


def test_fake_kafka_advertises_what_it_is_reported_and_nothing_elsewhere(net):
    with FakeKafka(2, advertise=net.proxy) as kafka:
        assert kafka.bootstrap == f"{kafka.address(1)},{kafka.address(2)}"
        (broker, other) = ask(kafka.address(2), ()).brokers
        assert [f"{HOST}:{each.port}" for each in (broker, other)] == [kafka.address(1), kafka.address(2)]
    with pytest.raises(UsageError, match="proxies"):
        FakeKafka(advertise=lambda _node, _listener, _address: "broker.example:9092")


def line(kind: str, stall_s: float, **more: object) -> dict[str, object]:
    whole = {"missing": 0, "duplicates": 0, "damaged": 0, "ended": [], "stall_s": stall_s, "load_stall_s": 0.1, "proof": "seen"}
    return {"kind": kind, **whole, **more}


class TestTheReport:
    def test_a_row_has_the_longest_stall_and_what_was_lost_and_a_fault_without_proof_is_not_counted(self):
        unproven = line("leader killed", 99.0)
        del unproven["proof"]
        lines = [line("leader killed", 2.0), line("leader killed", 4.0, missing=3, ended=["x"]), unproven]
        text = table({"embedded": lines, "embedded-fake": [line("far link", 1.0)]})
        assert "| leader killed | headrace in a script | 2 | 3 | 0 | 1 | 3.0 | 4.0 | 0.1 |" in text
        assert "| far link | headrace in a script, on FakeKafka | 1 |" in text
        assert "2 faults (1 more left no trace and are not counted), after 1 of which something was wrong" in text

    def test_what_was_lost_and_whether_the_report_was_exact_is_said_of_systems_that_lose(self):
        lost = [{"partition": 0, "from": 5, "to": 15, "records": 10, "read": 7}]
        exact = line("unclean election", 2.0, lost=lost, due=[[0, 5, 12]], reported=[[0, 5, 12]])
        text = table({"embedded-losses": [exact, {**exact, "reported": []}], "embedded": [line("far link", 1.0)]})
        assert "2 faults (0 more left no trace and are not counted), after 1 of which something was wrong" in text
        assert "20 acknowledged records, 6 of which it had not read; what it reported of them was exact 1 times of 2." in text
        assert text.count("Gone") == 1

    @pytest.mark.parametrize("name", WRONG)
    def test_a_result_that_is_not_clean_is_reported(self, name):
        clean = {"verdict": dict.fromkeys(("records_in", "records_out", *WRONG[:-1]), 0)}
        text = table({"embedded": [line("far link", 1.0), clean, {"verdict": {**clean["verdict"], name: 7}}]})
        assert f"7 {name.replace('_', ' ')}" in text
        assert "; 1 not clean." in text

    def test_the_plot_is_of_real_brokers(self):
        found = bars({"embedded": [line("leader killed", 2.0)], "embedded-fake": [line("far link", 1.0)]})
        assert list(found) == ["leader killed"]

    def test_the_plot_has_space_for_every_system(self, tmp_path):
        for name, system in SYSTEMS.items():
            if not system.ablation:
                (tmp_path / f"{name}.jsonl").write_text(json.dumps(line("job killed", 2.0)) + "\n")
        write(tmp_path)
        drawn = (tmp_path / "stalls.svg").read_text()
        assert all(system.title in drawn for system in SYSTEMS.values() if not system.ablation)
        assert (tmp_path / "TABLE.md").read_text().count("| job killed |") == sum(
            not each.ablation for each in SYSTEMS.values()
        )

    def test_the_reason_of_an_end_is_the_line_with_the_error(self):
        log = 'File "x.py", line 3\n  raise it\nDeadlineExceededError: gave up\n\nbye\n'
        assert told_last(log) == "DeadlineExceededError: gave up"
