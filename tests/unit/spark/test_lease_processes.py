"""Supervisors of one job as processes, with a lease in Kafka's protocol and a query that is in for Spark's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest

from headrace.runners.spark.supervision.process_tree import members, tree_of
from headrace.testing import FakeKafka
from tests.helpers import supervised_job
from tests.helpers.python_path import python_path

pytestmark = [pytest.mark.full, pytest.mark.skipif(sys.platform != "linux", reason="supervision is for Linux")]

LONG_S = 120.0
HEADRACE = [sys.executable, "-c", "from headrace.cli import main; main()"]


class Host:
    def __init__(self, folder, bootstrap, *arguments):
        folder.mkdir()
        self.name, self.status_file = folder.name, folder / "status"
        self.history = folder.parent / "history"
        job, session = (f"{supervised_job.__file__}:{name}" for name in ("runs_on_a_host", "session"))
        lease = ("--lease", bootstrap, "--lease-timeout", "3")
        command = ("supervise", job, "--session", session, "--status", str(self.status_file), *lease, *arguments)
        environment = {"STATUS": str(self.status_file), "HISTORY": str(self.history), "PYTHONPATH": python_path()}
        environment = {**os.environ, **environment, "XDG_CACHE_HOME": str(folder)}
        self.process = subprocess.Popen([*HEADRACE, *command], env=environment, stderr=subprocess.PIPE, text=True)

    def status(self):
        return json.loads(self.status_file.read_text()) if self.status_file.exists() else {}

    def wait_for(self, state, *, runs=False):
        """Until its lease is so, with a driver that waits, or runs the job."""
        deadline = time.monotonic() + LONG_S
        while True:
            status = self.status()
            active, standbys = status.get("active"), status.get("standbys")
            waiting = [one["state"] for one in standbys or ()]
            is_there = (active or {}).get("state") == "ACTIVE" if runs else waiting == ["ARMED"]
            if (status.get("lease") or {}).get("state") == state and is_there:
                return status
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < deadline, status
            time.sleep(0.02)

    def signal_all(self, number):
        status = self.status()
        drivers = [driver for driver in (status["active"], *status["standbys"]) if driver]
        os.kill(self.process.pid, number)
        for tree in {tree_of(driver["pid"]) for driver in drivers} - {None}:
            for pid in members(tree):
                os.kill(pid, number)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def hosts(tmp_path, kafka, *arguments):
    """Two of them: the first leads, and the second follows."""
    with ExitStack() as stack:
        made = []
        for name in ("one", "other"):
            made.append(Host(tmp_path / name, kafka.bootstrap, *arguments))
            stack.callback(made[-1].end)
            made[-1].wait_for("FOLLOWING" if len(made) > 1 else "LEADING", runs=len(made) == 1)
        yield made


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        yield cluster


def ran_on(tmp_path):
    return [line.split()[-1] for line in (tmp_path / "history").read_text().splitlines() if line.startswith("runs on")]


def test_the_other_host_takes_over_from_one_that_is_dead(tmp_path, kafka):
    with hosts(tmp_path, kafka) as (one, other):
        assert other.status()["lease"]["leader"] == one.status()["lease"]["leader"]
        one.signal_all(signal.SIGKILL)
        assert other.wait_for("LEADING", runs=True)["lease"]["term"] == 2
    assert ran_on(tmp_path) == ["one", "other"]


def test_a_host_that_was_paused_finds_another_one_in_its_place_kills_its_driver_and_follows(tmp_path, kafka):
    with hosts(tmp_path, kafka) as (one, other):
        driver = one.status()["active"]["pid"]
        one.signal_all(signal.SIGSTOP)
        other.wait_for("LEADING", runs=True)
        one.signal_all(signal.SIGCONT)
        one.wait_for("FOLLOWING")
        assert tree_of(driver) is None
        assert other.status()["lease"]["state"] == "LEADING"
        assert ran_on(tmp_path) == ["one", "other"]  # before they are ended, one after the other


def test_a_leader_that_is_stopped_hands_over_at_once_and_the_last_one_ends_the_job(tmp_path, kafka):
    with hosts(tmp_path, kafka, "--lease-group", "its-own") as (one, other):
        one.process.terminate()
        assert one.process.wait(LONG_S) == 143
        other.wait_for("LEADING", runs=True)
        other.process.terminate()
        assert other.process.wait(LONG_S) == 143
    assert (tmp_path / "history").read_text().splitlines().count("batch ended") == 2


def test_a_follower_that_is_stopped_leaves_the_leader_alone(tmp_path, kafka):
    with hosts(tmp_path, kafka) as (one, other):
        other.process.terminate()
        assert other.process.wait(LONG_S) == 143
        assert one.status()["lease"]["state"] == "LEADING"
    assert ran_on(tmp_path) == ["one"]


@pytest.mark.parametrize("option", [("--property", "a=b"), ("--lease-group", "g"), ("--lease-timeout", "3")])
def test_options_of_a_lease_without_one_are_refused(option):
    command = [*HEADRACE, "supervise", f"{supervised_job.__file__}:runs_on_a_host", *option]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert f"{option[0]}" in ended.stderr
    assert "for --lease, which is not given" in ended.stderr
