"""`headrace run` and `headrace top` in real processes, looked at while coordinators are killed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.runners.local.monitoring.status import read_status
from headrace.testing import FakeKafka
from tests.helpers.python_path import python_path
from tests.unit.local.test_processes import TIMEOUT_S, Run, produce, seen

pytestmark = [pytest.mark.full, pytest.mark.timeout(280)]

COPY = """
from headrace import Pipeline
from headrace.kafka import KafkaSink, KafkaSource

pipeline = Pipeline(KafkaSource({0!r}, topics=["in"], columns=["key", "value", "partition"]), KafkaSink({0!r}, topic="out"))
"""


PROGRESS = re.compile(r"running; records in \d+.*; records out \d+.*; lag .*; last checkpoint .*; 1 workers")
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

    code = COPY

    def __init__(self, kafka, folder, *options, **streams):
        self.folder, self.log = folder, folder / "log"
        self._kafka, self._produced = kafka, 0
        (folder / "copy_of_this_test.py").write_text(self.code.format(kafka.bootstrap))
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


class Terminal:
    """One end for a process (`end`); the other one collects what is written."""

    def __init__(self):
        self._ours, self.end = pty.openpty()
        self._data = b""

    @property
    def text(self):
        """All that was written so far."""
        while select.select([self._ours], [], [], 0)[0]:
            self._data += os.read(self._ours, 1 << 16)
        return self._data.decode()

    def type(self, key):
        os.write(self._ours, key)

    def close(self):
        for end in (self._ours, self.end):
            os.close(end)


@pytest.fixture
def terminal():
    made = Terminal()
    yield made
    made.close()


def controlled():
    """In the new process: its terminal's Ctrl-C is for it."""
    fcntl.ioctl(2, termios.TIOCSCTTY, 0)


def test_on_a_terminal_a_run_reports_whole_lines_and_ctrl_c_stops_it_with_its_savepoint(kafka, tmp_path, terminal):
    options = ("--savepoints", str(tmp_path / "savepoints"))
    with Copy(kafka, tmp_path, *options, stderr=terminal.end, preexec_fn=controlled) as run:
        run.more("the first records")
        run.wait(lambda: PROGRESS.search(terminal.text), "a line")
        killed, workers = run.group(1)
        os.kill(*workers, signal.SIGKILL)
        lost = "its process ended with status -9; its splits go to the others, and another one is started in 0.1 s"
        run.wait(lambda: lost in terminal.text, "the warning")
        os.kill(killed, signal.SIGKILL)
        again = "the run has failed and starts again in 0.1 s: the coordinator's process ended with status -9"
        run.wait(lambda: again in terminal.text, "the other warning")
        run.more("more records")
        terminal.type(b"\x03")
        assert run.process.wait(TIMEOUT_S) == 0
        lines = [line.removeprefix("^C") for line in terminal.text.splitlines()]
        settings = [line for line in lines if not line.startswith("checkpoint ")]  # one may have been under way
        warnings = [line for line in settings if not re.match(r"\w+; records in ", line)]
        assert warnings[0].endswith(lost)
        assert warnings[1:] == [again, "SIGINT: stopping with a last checkpoint"]
        assert len(settings) > len(warnings)
        assert "\x1b" not in terminal.text
        (savepoint,) = (tmp_path / "savepoints").iterdir()
        assert run.log.read_text() == f"{savepoint}\n"
        assert seen(kafka) == Counter(range(60))


def test_in_a_pipe_a_run_shows_nothing_unless_it_is_asked_to_and_then_lines_of_json(kafka, tmp_path):
    for folder, options in ((tmp_path / "silent", ()), (tmp_path / "telling", ("--progress", "json"))):
        folder.mkdir()
        savepoints = ("--savepoints", str(folder / "savepoints"))
        with Copy(kafka, folder, *savepoints, *options, stdout=subprocess.PIPE) as run, run.process.stdout:
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


class Printing(Copy):
    code = f"{COPY}\nprint('printed by the file')\n"


def test_what_user_code_prints_is_not_among_the_lines_of_json(kafka, tmp_path):
    with Printing(kafka, tmp_path, "--progress", "json", stdout=subprocess.PIPE) as run, run.process.stdout:
        run.more("records")
        run.stop()
        assert all(isinstance(json.loads(line), dict) for line in run.process.stdout.read().splitlines())
        assert "printed by the file\n" in run.log.read_text()


def test_the_status_has_what_workers_have_read_and_written(kafka, tmp_path):
    with Copy(kafka, tmp_path) as run:
        run.more("records")
        counts, folder = {"records_in": 30, "records_out": 30}, tmp_path / "checkpoints"
        run.wait(lambda: counts.items() <= (read_status(folder) or {}).items(), "their counts")


def test_a_run_whose_reader_of_lines_has_gone_continues(kafka, tmp_path):
    with Copy(kafka, tmp_path, "--progress", "json", stdout=subprocess.PIPE) as run:
        run.process.stdout.readline()
        run.process.stdout.close()
        run.more("records that are reported to no process")
        run.more("more records")
        run.stop()
        assert seen(kafka) == Counter(range(60))
        assert run.log.read_text() == "SIGTERM: stopping with a last checkpoint\n"


def test_a_run_whose_reader_of_lines_is_paused_starts_again_and_continues(kafka, tmp_path):
    with Copy(kafka, tmp_path, "--progress", "json", stdout=subprocess.PIPE) as run, run.process.stdout:
        run.more("the first records")
        end, files = os.readlink(f"/proc/self/fd/{run.process.stdout.fileno()}"), Path(f"/proc/{run.process.pid}/fd")
        (lines,) = [each for each in files.iterdir() if os.readlink(each) == end]
        file = os.open(lines, os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(file, b"x" * 4096)
        os.close(file)
        os.kill(run.group(1)[0], signal.SIGKILL)
        run.more("records after a restart")
        run.stop()
        assert seen(kafka) == Counter(range(60))
