"""The restore benchmark's Flink with a standby: who is running, what is started when, and what a kill of it hits."""

import json
import os
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

pytest.importorskip("psutil")

import psutil

from benchmarks.restore.flink_cluster import (
    HEARTBEAT_MS,
    SESSION_MS,
    SILENCE_MS,
    TICK_MS,
    Places,
    Programs,
    client_settings,
    flink_settings,
    lay_out,
)
from benchmarks.restore.flink_pair import DRY_RUN_S, SETTLE_S, Kind, Look, Pair, rest_port
from benchmarks.restore.process import ProcessTree
from headrace.testing.servers.flink.programs import JOB_MANAGER, TASK_MANAGER
from headrace.testing.servers.flink.rest import FlinkRest
from tests.helpers.waiting import eventually

SLOTS = 2
JOB, TASK = Kind.JOB_MANAGER, Kind.TASK_MANAGER
ALL = {"jm-1": JOB, "tm-2": TASK, "jm-3": JOB, "tm-4": TASK}
AT_WORK = Look("jm-1", frozenset({"jm-1", "jm-3"}), {"tm-2": 0, "tm-4": 2}, frozenset({"tm-2"}))


def pair(*names: str, look: Look = AT_WORK) -> Pair:
    return Pair({name: ALL[name] for name in names or ALL}, look, SLOTS)


class TestWhoIsAtWork:
    def test_it_is_the_job_manager_that_leads_and_the_task_manager_that_runs_the_job(self):
        assert pair().active() == {"jm-1", "tm-2"}
        assert pair().runs()
        assert pair().has_standby()

    def test_after_a_kill_it_is_those_that_are_left_whatever_is_still_said_of_the_dead(self):
        left = pair("jm-3", "tm-4")
        assert left.active() == {"jm-3", "tm-4"}
        assert not left.runs()
        assert not left.has_standby()

    def test_it_cannot_be_reported_while_two_task_managers_live_and_none_runs_the_job(self):
        assert pair(look=Look("jm-1", AT_WORK.serving, {"tm-2": 2, "tm-4": 2})).active() == frozenset()

    def test_it_cannot_be_reported_of_a_job_that_both_task_managers_run(self):
        look = Look("jm-1", AT_WORK.serving, {"tm-2": 1, "tm-4": 1}, frozenset({"tm-2", "tm-4"}))
        assert pair(look=look).active() == frozenset()
        assert not pair(look=look).has_standby()

    def test_a_job_does_not_run_that_one_dead_task_manager_ran(self):
        assert not pair("jm-1", "jm-3", "tm-4").runs()

    def test_a_job_does_not_run_whose_leader_is_dead(self):
        assert not pair("jm-3", "tm-2", "tm-4").runs()


class TestAStandby:
    @pytest.mark.parametrize("dead", ["jm-3", "tm-4"])
    def test_needs_another_of_each_kind(self, dead):
        assert not pair(*(ALL.keys() - {dead})).has_standby()

    def test_needs_a_job_manager_that_is_up(self):
        assert not pair(look=Look("jm-1", frozenset({"jm-1"}), AT_WORK.free, AT_WORK.running_on)).has_standby()

    @pytest.mark.parametrize("free", [{"tm-2": 0}, {"tm-2": 0, "tm-4": 1}, {"tm-2": 2, "tm-4": 0}])
    def test_needs_a_task_manager_with_all_the_slots_of_the_job(self, free):
        assert not pair(look=Look("jm-1", AT_WORK.serving, free, AT_WORK.running_on)).has_standby()


class TestWhatIsStarted:
    def test_at_first_one_of_each(self):
        assert Pair({}, Look(), SLOTS).missing(0.0) == [JOB, TASK]

    def test_the_second_of_each_once_the_job_has_resolved(self):
        first = pair("jm-1", "tm-2")
        assert first.missing(0.0) == []
        assert first.missing(SETTLE_S - 0.1) == []
        assert first.missing(SETTLE_S) == [JOB, TASK]

    def test_nothing_where_both_of_each_live(self):
        assert pair().missing(SETTLE_S) == []

    def test_what_has_no_other_at_once(self):
        assert pair("jm-1", "jm-3").missing(0.0) == [TASK]
        assert pair("jm-3", "tm-2", "tm-4").missing(0.0) == []


class TestTheStatus:
    def test_names_the_processes_running_and_those_that_wait(self):
        status = pair().status({name: number for number, name in enumerate(ALL)})
        assert status == {
            "active": [{"name": "jm-1", "pid": 0}, {"name": "tm-2", "pid": 1}],
            "standbys": [{"name": "jm-3", "pid": 2, "state": "ARMED"}, {"name": "tm-4", "pid": 3, "state": "ARMED"}],
        }

    def test_says_while_the_standby_is_not_ready(self):
        (standby,) = pair("jm-1", "tm-2", "jm-3").status(dict.fromkeys(ALL, 7))["standbys"]
        assert standby["state"] == "WARMING"


class TestSettings:
    @pytest.fixture
    def places(self, tmp_path) -> Places:
        return Places(tmp_path / "state", tmp_path / "scratch", 2181)

    def test_what_is_short_leaves_space_for_a_message_that_is_late(self):
        assert SESSION_MS >= 2 * TICK_MS  # ZooKeeper's least
        assert SILENCE_MS >= 3 * HEARTBEAT_MS

    def test_what_a_restart_needs_is_in_the_state(self, places):
        settings = flink_settings(places, SLOTS)
        assert settings["high-availability.storageDir"].startswith(places.state.as_uri())
        assert settings["taskmanager.numberOfTaskSlots"] == "2"

    def test_the_connector_lies_among_flinks_own_jars(self, places, tmp_path):
        jar = tmp_path / "home" / "lib" / "flink-dist.jar"
        jar.parent.mkdir(parents=True)
        for file in (jar, tmp_path / "connector.jar"):
            file.touch()
        lay_out(places, tmp_path / "home", tmp_path / "connector.jar", flink_settings(places, SLOTS))
        assert sorted(file.name for file in places.library.iterdir()) == ["connector.jar", "flink-dist.jar"]
        assert f"dataDir={places.state / 'zookeeper'}\n" in (places.configuration / "zoo.cfg").read_text()
        assert 'high-availability.type: "zookeeper"\n' in (places.configuration / "config.yaml").read_text()

    def test_the_client_finds_the_leader_as_the_cluster_does(self, places):
        client = client_settings(places)
        assert client.pop("execution.target") == "remote"
        assert client.items() <= flink_settings(places, SLOTS).items()

    def test_the_first_processes_keep_their_classes_and_later_ones_start_with_them(self, places):
        programs = Programs(places)
        commands = [lambda: programs.job_manager(8081), lambda: programs.task_manager("tm-1")]
        for program, command in zip((JOB_MANAGER, TASK_MANAGER), commands, strict=True):
            file = places.classes(program)
            assert f"-XX:ArchiveClassesAtExit={file}" in command()
            assert not programs.kept()
            file.parent.mkdir(exist_ok=True)
            file.touch()
            assert f"-XX:SharedArchiveFile={file}" in command()
        assert programs.kept()

    def test_the_first_processes_are_replaced_before_they_have_a_standby(self):
        assert DRY_RUN_S < SETTLE_S

    @pytest.mark.parametrize(
        ("connection", "port"), [(b"\xac\xed\x00\x05w\x17\x00\x15http://127.0.0.1:8081sr\x00", 8081), (b"", None)]
    )
    def test_the_leader_is_known_by_its_rest_port(self, connection, port):
        assert rest_port(connection) == port


JOBS = {
    "/taskmanagers": {"taskmanagers": [{"id": "tm-2", "freeSlots": 0}, {"id": "tm-4", "freeSlots": 2}]},
    "/jobs/a": {"state": "RUNNING", "vertices": [{"id": "v", "status": "RUNNING"}, {"id": "w", "status": "RUNNING"}]},
    "/jobs/a/vertices/v/taskmanagers": {"taskmanagers": [{"taskmanager-id": "tm-2"}]},
    "/jobs/a/vertices/w/taskmanagers": {"taskmanagers": [{"taskmanager-id": "tm-2"}, {"taskmanager-id": "tm-4"}]},
    "/jobs/b": {"state": "RUNNING", "vertices": [{"id": "v", "status": "RUNNING"}, {"id": "w", "status": "INITIALIZING"}]},
    "/jobs/c": {"state": "RESTARTING", "vertices": [{"id": "v", "status": "RUNNING"}]},
}


class TestWhatFlinkSays:
    @pytest.fixture
    def rest(self) -> FlinkRest:
        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(JOBS[self.path]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            yield FlinkRest("127.0.0.1", server.server_port)
            server.shutdown()

    def test_slots_are_by_task_manager(self, rest):
        assert rest.free_slots() == {"tm-2": 0, "tm-4": 2}

    def test_a_job_is_hosted_by_every_task_manager_that_runs_a_part_of_it(self, rest):
        assert rest.hosts("a") == {"tm-2", "tm-4"}

    @pytest.mark.parametrize("job", ["b", "c"])
    def test_a_job_is_hosted_by_none_while_it_or_a_task_does_not_run(self, rest, job):
        assert rest.hosts(job) == frozenset()


class FakeCluster:
    def __init__(self) -> None:
        self.lifetimes: dict[str, Kind] = {}

    def start(self, kind: Kind) -> str:
        name = f"{kind.value}-{1 + len(self.lifetimes)}"
        self.lifetimes[name] = kind
        return name

    def living(self) -> dict[str, Kind]:
        return dict(self.lifetimes)

    def pids(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.lifetimes)}


class TestTheSupervisor:
    @pytest.fixture
    def rig(self, tmp_path):
        supervisor = pytest.importorskip("benchmarks.restore.flink_supervisor")
        cluster, lookout, notes = FakeCluster(), SimpleNamespace(latest=Look(), pause_s=None), []
        return cluster, lookout, notes, supervisor.Supervision(cluster, lookout, SLOTS, tmp_path / "status.json", notes.append)

    def test_starts_a_pair_and_then_its_standby_and_looks_less_often_once_that_waits(self, rig, tmp_path):
        cluster, lookout, notes, supervision = rig
        assert supervision.turn(100.0) == 0.0
        leader, worker = cluster.lifetimes
        lookout.latest = Look(leader, frozenset({leader}), {worker: 0}, frozenset({worker}))
        assert [supervision.turn(at) for at in (101.0, 103.0)] == [0.0, 2.0]
        assert len(cluster.lifetimes) == 2
        supervision.turn(101.0 + SETTLE_S)
        standby, spare = list(cluster.lifetimes)[2:]
        often = lookout.pause_s
        lookout.latest = Look(leader, frozenset({leader, standby}), {worker: 0, spare: 2}, frozenset({worker}))
        supervision.turn(110.0)
        status = json.loads((tmp_path / "status.json").read_text())
        assert {each["state"] for each in status["standbys"]} == {"ARMED"}
        assert lookout.pause_s > often
        assert notes[0] == f"{leader} is started"

    def test_says_at_once_who_is_left_after_a_kill_and_starts_nothing_alongside_it(self, rig, tmp_path):
        cluster, lookout, notes, supervision = rig
        cluster.lifetimes = dict(ALL)
        lookout.latest = AT_WORK
        supervision.turn(100.0)
        supervision.turn(100.0 + SETTLE_S)
        del cluster.lifetimes["jm-1"], cluster.lifetimes["tm-2"]
        assert supervision.turn(106.0) == 0.0
        status = json.loads((tmp_path / "status.json").read_text())
        assert [each["name"] for each in status["active"]] == ["jm-3", "tm-4"]
        assert {"jm-1 died", "tm-2 died"} <= set(notes)
        assert list(cluster.lifetimes) == ["jm-3", "tm-4"]


TIMEOUT_S = 60.0
PARENT = """\
import json, pathlib, subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(4)]
at_work, waiting = ([{"pid": child.pid, "state": "ARMED"} for child in half] for half in (children[:2], children[2:]))
status = pathlib.Path(sys.argv[1])
status.with_suffix(".partial").write_text(json.dumps({"active": at_work, "standbys": waiting}))
status.with_suffix(".partial").rename(status)
for child in children:
    child.wait()
"""


def alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


class TestTheKill:
    @pytest.fixture
    def tree(self, tmp_path):
        tree = ProcessTree([sys.executable, "-c", PARENT, str(tmp_path / "status.json")], os.environ, tmp_path)
        yield tree
        tree.end()

    def test_hits_every_process_that_is_active_and_no_other(self, tree, tmp_path):
        eventually(tree.has_standby)
        status = json.loads((tmp_path / "status.json").read_text())
        active, waiting = ([psutil.Process(each["pid"]) for each in status[key]] for key in ("active", "standbys"))
        at, dead = tree.kill_active()
        assert at <= dead
        assert not any(alive(process) for process in active)
        assert all(alive(process) for process in waiting)
        tree.check()

    @pytest.mark.parametrize("which", [0, 1], ids=["that was waited for", "that no process has waited for yet"])
    def test_of_an_active_process_that_has_ended_by_itself_is_an_error_and_hits_none(self, tree, tmp_path, which):
        eventually(tree.has_standby)
        active = [psutil.Process(each["pid"]) for each in json.loads((tmp_path / "status.json").read_text())["active"]]
        active[which].kill()
        eventually(lambda: psutil.pid_exists(active[which].pid) == bool(which) and not alive(active[which]))
        with pytest.raises(RuntimeError, match=f"process {active[which].pid}.* had ended by itself"):
            tree.kill_active()
        assert alive(active[1 - which])

    def test_of_nothing_active_is_an_error(self, tree, tmp_path):
        eventually(tree.has_standby)
        (tmp_path / "status.json").write_text(json.dumps({"active": [], "standbys": []}))
        with pytest.raises(RuntimeError, match="no active"):
            tree.kill_active()
        assert not tree.has_standby()

    def test_a_worker_that_has_ended_meanwhile_does_not_keep_the_others_from_their_kill(self, tree, tmp_path, monkeypatch):
        eventually(tree.has_standby)
        workers = [psutil.Process(each["pid"]) for each in json.loads((tmp_path / "status.json").read_text())["active"]]
        workers[0].kill()
        eventually(lambda: not psutil.pid_exists(workers[0].pid))
        monkeypatch.setattr(tree, "_workers", lambda: workers)
        tree.kill_workers(None)
        assert not any(map(alive, workers))
        with pytest.raises(RuntimeError, match="no worker to kill"):
            tree.kill_workers(workers[0].pid)
