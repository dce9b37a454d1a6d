"""`headrace run` and `headrace top` in real processes, looked at while coordinators are killed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from collections import Counter

import pytest

from headrace.errors import RetriableError
from headrace.runners.waiting import wait_until
from headrace.testing import FakeKafka
from tests.helpers.python_path import python_path
from tests.helpers.terminal import Terminal
from tests.unit.local.test_processes import TIMEOUT_S, Run, living, produce, seen

pytestmark = pytest.mark.timeout(280)

COPY = """
from headrace import Pipeline
from headrace.kafka import KafkaSink, KafkaSource

pipeline = Pipeline(KafkaSource({0!r}, topics=["in"], columns=["key", "value", "partition"]), KafkaSink({0!r}, topic="out"))
"""


SETTINGS = {
    "execution.checkpointing.interval": "200 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "200",
    "restart-strategy.fixed-delay.delay": "100 ms",
}


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, partitions=3)
        yield cluster


class Copy(Run):
    """`headrace run` of a pipeline that copies the topic, with these streams in place of its log."""

    def __init__(self, kafka, folder, *options, **streams):
        self.folder, self.log = folder, folder / "log"
        self._kafka, self._produced = kafka, 0
        (folder / "copy_of_this_test.py").write_text(COPY.format(kafka.bootstrap))
        command = ["run", f"{folder / 'copy_of_this_test.py'}:pipeline", "--checkpoints", str(folder / "checkpoints"), *options]
        for name, value in SETTINGS.items():
            command += ["--config", f"{name}={value}"]
        with self.log.open("ab") as log:
            self.process = headrace(*command, **{"stdout": log, "stderr": log, **streams})

    def more(self, what):
        """Produce some records, and wait for them."""
        produce(self._kafka, self._produced, 30)
        self._produced += 30
        self.wait(lambda: seen(self._kafka).keys() >= set(range(self._produced)), what)

    def viewer(self):
        """The process that shows it: the one child that is in its own group."""
        (found,) = [
            pid for pid, (parent, group) in living().items() if parent == self.process.pid and group == self.process.pid
        ]
        return found


def headrace(*arguments, **streams):
    """The command in its own process, which leads a session."""
    command = [sys.executable, "-c", "from headrace.cli import main; main()", *arguments]
    environment = os.environ | {"PYTHONPATH": python_path(), "TERM": "xterm"}
    return subprocess.Popen(command, env=environment, start_new_session=True, **streams)


def test_top_continues_while_a_coordinator_that_was_killed_is_replaced(kafka, tmp_path):
    """It ended with the first coordinator."""
    run = Copy(kafka, tmp_path)
    try:
        run.more("the first records")
        settings = tmp_path / "told"
        with settings.open("w") as file:
            top = headrace("top", str(tmp_path / "checkpoints"), "--every", "0.2", stdout=file)

        def lines():
            return [json.loads(line) for line in settings.read_text().splitlines(keepends=True) if line.endswith("\n")]

        run.wait(lambda: any(line["phase"] == "RUNNING" for line in lines()), "what top shows")
        killed, _ = run.group(1)
        run.process.send_signal(signal.SIGSTOP)  # so that it does not start the next one before top has looked
        os.kill(killed, signal.SIGKILL)
        run.wait(lambda: lines()[-1]["phase"] == "RESTARTING", "that the run starts again")
        run.process.send_signal(signal.SIGCONT)
        assert (lines()[-1]["coordinator"], lines()[-1]["workers"]) == (killed, [])
        run.wait(lambda: lines()[-1]["phase"] == "RUNNING" and lines()[-1]["coordinator"] != killed, "another coordinator")
        assert lines()[-1]["restarted"] == 1
        run.stop()
        assert top.wait(TIMEOUT_S) == 0
        assert not {"supervisor", "status.json"} & set(os.listdir(tmp_path / "checkpoints"))
    finally:
        run.kill()
        top.kill()
        top.wait()


@pytest.fixture
def terminal():
    made = Terminal(40, 200)
    yield made
    made.close()


def controlled():
    """In the new process: its terminal's Ctrl-C is for it."""
    fcntl.ioctl(2, termios.TIOCSCTTY, 0)


def test_on_a_terminal_a_run_has_its_table_below_whole_warnings_and_ctrl_c_stops_it_with_its_savepoint(
    kafka, tmp_path, terminal
):
    options = ("--savepoints", str(tmp_path / "savepoints"))
    run = Copy(kafka, tmp_path, *options, stderr=terminal.end, preexec_fn=controlled)

    def shows(*texts):
        terminal.read()
        return all(text in terminal.text for text in texts)

    try:
        run.more("the first records")
        run.wait(lambda: shows("records in", "30 (", "running"), "the table")
        killed, workers = run.group(1)
        os.kill(*workers, signal.SIGKILL)
        lost = "its process ended with status -9; its splits go to the others, and another one is started in 0.1 s"
        run.wait(lambda: shows(lost), "the warning")
        os.kill(killed, signal.SIGKILL)
        again = "the run has failed and starts again in 0.1 s: the coordinator's process ended with status -9"
        run.wait(lambda: shows(again), "the other warning")
        run.more("more records")
        run.wait(lambda: shows("records in", "running"), "the table of the next coordinator")
        terminal.type(b"\x03")
        assert run.process.wait(TIMEOUT_S) == 0
        terminal.read()
        lines = [line.removeprefix("^C") for line in terminal.text.splitlines()]
        assert lines[0].endswith(lost)
        settings = [line for line in lines[1:] if not line.startswith("checkpoint ")]  # one may have been under way
        assert settings == [again, "SIGINT: stopping with a last checkpoint"]
        assert terminal.bottom == len(terminal.screen) - 1
        (savepoint,) = (tmp_path / "savepoints").iterdir()
        assert run.log.read_text() == f"{savepoint}\n"
        assert seen(kafka) == Counter(range(60))
    finally:
        run.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_viewer_that_is_killed_or_frozen_does_the_run_no_harm(kafka, tmp_path, terminal, number):
    run = Copy(kafka, tmp_path, stderr=terminal.end)
    try:
        run.more("the first records")
        whole = terminal.bottom

        def check():
            terminal.read()
            return terminal.bottom < whole

        run.wait(check, "the table")
        viewer = run.viewer()
        os.kill(viewer, number)
        run.more("records that no process has shown")
        run.stop()
        assert viewer not in living()
        terminal.read()
        assert terminal.bottom == whole
        assert seen(kafka) == Counter(range(60))
    finally:
        run.kill()


def test_a_viewer_ends_with_a_run_that_is_killed(kafka, tmp_path, terminal):
    run = Copy(kafka, tmp_path, stderr=terminal.end)
    try:
        run.more("the first records")
        viewer = run.viewer()
        run.process.kill()
        run.process.wait()
        wait_until(lambda: check_gone(viewer), "the end of the viewer", TIMEOUT_S)
        terminal.read()
        assert terminal.bottom == len(terminal.screen) - 1
    finally:
        run.kill()


def check_gone(pid):
    if pid in living():
        raise RetriableError("it is alive")


def test_in_a_pipe_a_run_shows_nothing_unless_it_is_asked_to_and_then_lines_of_json(kafka, tmp_path):
    for folder, options in ((tmp_path / "silent", ()), (tmp_path / "telling", ("--progress", "json"))):
        folder.mkdir()
        run = Copy(kafka, folder, "--savepoints", str(folder / "savepoints"), *options, stdout=subprocess.PIPE)
        try:
            run.wait(lambda run=run: (run.folder / "checkpoints" / "status.json").exists(), "a status")
            settings = [json.loads(run.process.stdout.readline())] if options else []
            run.stop()
            rest = run.process.stdout.read().decode().splitlines()
            (savepoint,) = map(str, (folder / "savepoints").iterdir())
            if options:
                settings += map(json.loads, rest)
                assert settings[0]["run"].startswith("run-")
                assert settings[-1] == {"savepoint": savepoint}
            else:
                assert rest == [savepoint]
            assert run.log.read_text() == "SIGTERM: stopping with a last checkpoint\n"
        finally:
            run.kill()
            run.process.stdout.close()


def test_a_run_whose_reader_of_lines_has_gone_continues(kafka, tmp_path):
    run = Copy(kafka, tmp_path, "--progress", "json", stdout=subprocess.PIPE)
    try:
        run.process.stdout.readline()
        run.process.stdout.close()
        viewer = run.viewer()
        run.more("records that are instructed to no process")
        wait_until(lambda: check_gone(viewer), "the end of the viewer", TIMEOUT_S)
        run.more("more records")
        run.stop()
        assert seen(kafka) == Counter(range(60))
        assert run.log.read_text() == "SIGTERM: stopping with a last checkpoint\n"
    finally:
        run.kill()
