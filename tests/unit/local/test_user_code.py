"""`headrace run` with functions that hang, raise, end their process, fork and print; and while disk or broker are away."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest

from headrace.runners.local.checkpoints import newest_body
from headrace.runners.local.storage.places import run_files
from headrace.testing.fake_kafka import Before, FakeKafka
from tests.unit.local.test_processes import TIMEOUT_S, Run, produce, seen

pytestmark = [pytest.mark.full, pytest.mark.timeout(280)]

HEAD = """
import asyncio
import os
import re
import sys
import threading
import time
from pathlib import Path

from headrace import Pipeline
from headrace.kafka import KafkaSink, KafkaSource

def is_told(order, folder=Path({1!r})):
    try:
        (folder / order).unlink()
    except FileNotFoundError:
        return False
    return True

"""
QUICK = {"default.api.timeout.ms": "1000", "request.timeout.ms": "500"}
LONGEST_TIMEOUT_S = 8.0
PIPELINE = """
pipeline = Pipeline(
    KafkaSource({0!r}, topics=["in"], columns=["key", "value", "partition"], properties={2!r}),
    KafkaSink({0!r}, topic="out", properties={2!r}),
"""
BAD = (
    HEAD
    + """
def bad(batch):
    if is_told("forks") and os.fork() == 0:
        os.setsid()
        Path({1!r}, "forked").write_text(str(os.getpid()))
        while True:
            time.sleep(60)
    if is_told("has a fork that exits"):
        if (child := os.fork()) == 0:
            sys.exit(0)
        os.waitpid(child, 0)
    if is_told("raises"):
        raise ValueError("a bug of the user's")
    if is_told("is cancelled"):
        raise asyncio.CancelledError("a task of asyncio")
    if is_told("calls exit"):
        sys.exit(3)
    if is_told("ends the process"):
        print("printed by", "a process that ends")
        os._exit(4)
    if is_told("keeps the lock of Python"):
        re.match("(a+)+$", "a" * 64 + "b")
    if is_told("waits"):
        threading.Event().wait()
    if is_told("prints"):
        print("printed by", "a function")
    return batch

"""
    + PIPELINE
    + "    bad,\n)\n"
)
SAID = {
    "forks": "",
    "has a fork that exits": "",
    "prints": "",
    "raises": r"worker \d+: the transform failed on a batch of .*: ValueError: a bug of the user's \(.*of_this_test.py:\d+\)",
    "is cancelled": r"worker \d+: the transform failed on a batch of .*: CancelledError: a task of asyncio",
    "calls exit": r"worker \d+: the transform failed on a batch of .*: SystemExit: 3 \(.*job_of_this_test.py:\d+\)",
    "ends the process": r"worker \d+: its process ended with status 4; its splits go to the others",
    "keeps the lock of Python": r"worker \d+: nothing was heard of it for 2 s; its splits go to the others",
    "waits": r"starts again .*: it was not complete after 6 s; worker \d+ did not prepare for it in that time",
}

FULL = (
    HEAD
    + """
def fsync(file, real=os.fsync, full=Path({1!r}, "full")):
    if full.exists():
        full.with_name("refused").touch()
        raise OSError(28, "No space left on device")
    real(file)

os.fsync = fsync
"""
    + PIPELINE
    + ")\n"
)
COPY = HEAD + PIPELINE + ")\n"


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, partitions=3)
        yield cluster


class Written:
    """What was produced, and is to come out."""

    def __init__(self, kafka, run):
        self._kafka, self._run, self.count = kafka, run, 0

    def go_on(self, run):
        self._run = run

    def produce(self):
        produce(self._kafka, self.count, 300)
        self.count += 300

    def wait(self, what):
        self._run.wait(lambda: seen(self._kafka).keys() >= set(range(self.count)), what)

    def check(self):
        assert seen(self._kafka) == Counter(range(self.count))


def job(text, kafka, folder, properties=None):
    return text.format(kafka.bootstrap, str(folder), properties or {})


def test_a_function_that_misbehaves_is_named_and_loses_nothing(kafka, tmp_path):
    options = ("--config", "execution.checkpointing.timeout=6 s")
    run = Run(kafka, tmp_path, *options, workers=2, job=job(BAD, kafka, tmp_path))
    try:
        written = Written(kafka, run)
        for order, said in SAID.items():
            (tmp_path / order).touch()
            written.produce()
            written.wait(f"all records, when a function {order}")
            assert not (tmp_path / order).exists()
            assert re.search(said, run.log.read_text()), run.log.read_text()
        started_at = time.monotonic()
        run.stop()
        assert time.monotonic() - started_at < 20  # what has left its group holds up no process
        os.kill(int((tmp_path / "forked").read_text()), 0)
        assert "printed by a function" in run.log.read_text()
        assert "printed by a process that ends" in run.log.read_text()
        written.check()
    finally:
        run.kill()
        with suppress(OSError, ValueError):
            os.kill(int((tmp_path / "forked").read_text()), signal.SIGKILL)


def test_a_file_that_ends_its_process_when_it_is_loaded_is_an_error_and_not_started_again(kafka, tmp_path):
    with Run(kafka, tmp_path, workers=1, job="import sys\n\nsys.exit(0)\n") as run:
        assert run.process.wait(TIMEOUT_S) == 2
        assert re.search(
            r"job_of_this_test.py cannot be loaded: SystemExit: 0 \(.*job_of_this_test.py:3\)", run.log.read_text()
        )
        assert "starts again" not in run.log.read_text()


@pytest.mark.parametrize(("tolerable", "said"), [("1000", "the run continues"), ("0", "starts again")])
def test_a_disk_that_is_full_is_said_and_when_it_has_space_the_run_has_lost_nothing(kafka, tmp_path, tolerable, said):
    options = ("--config", f"execution.checkpointing.tolerable-failed-checkpoints={tolerable}")
    with Run(kafka, tmp_path, *options, workers=1, job=job(FULL, kafka, tmp_path)) as run:
        written = Written(kafka, run)
        written.produce()
        written.wait("the first records")
        # The records are there before their checkpoint is marked as committed. Where that mark fails, the run does.
        run.wait(lambda: newest_body(run_files(str(tmp_path / "checkpoints")))[0]["completed"], "a mark as committed")
        (tmp_path / "full").touch()
        written.produce()
        run.wait((tmp_path / "refused").exists, "a write that is refused")
        failed = rf"checkpoint \d+ has failed: .*No space left on device.*{said}|{said}.*No space left on device"
        run.wait(lambda: re.search(failed, run.log.read_text()), "a word of it")
        assert len(seen(kafka)) < written.count
        (tmp_path / "full").unlink()
        written.wait("the records of meanwhile")
        run.stop()
        written.check()


def test_a_run_whose_checkpoints_are_removed_ends_and_does_not_start_over(kafka, tmp_path):
    """Its next coordinator found an empty folder, and wrote all records again."""
    run, checkpoints = Run(kafka, tmp_path, workers=1, job=job(COPY, kafka, tmp_path)), tmp_path / "checkpoints"
    try:
        written = Written(kafka, run)
        written.produce()
        written.wait("the first records")
        checkpoints.rename(tmp_path / "elsewhere")
        written.produce()
        assert run.process.wait(TIMEOUT_S) == 1
        gone = r"checkpoints: the checkpoints of this run, run-\w+, were removed while it was running"
        assert re.search(gone, run.log.read_text())
        assert not checkpoints.exists()
        shutil.move(tmp_path / "elsewhere", checkpoints)
        run = Run(kafka, tmp_path, workers=1, job=job(COPY, kafka, tmp_path))
        written.go_on(run)
        written.wait("the records of meanwhile")
        run.stop()
        written.check()
    finally:
        run.kill()


@pytest.mark.long
@pytest.mark.parametrize("api", ["Produce", "EndTxn"])
def test_an_outage_of_the_broker_longer_than_every_timeout_loses_nothing(kafka, tmp_path, api):
    """It starts while a transaction is written, and while one is committed that a checkpoint lists."""
    options = ("--config", f"execution.checkpointing.timeout={LONGEST_TIMEOUT_S:g} s")
    with Run(kafka, tmp_path, *options, workers=2, job=job(COPY, kafka, tmp_path, QUICK)) as run:
        written = Written(kafka, run)
        written.produce()
        written.wait("the first records")
        away = kafka.fault(api, Before(lambda: kafka.stop_broker(1)))
        written.produce()
        run.wait(lambda: away.fired, "the outage")
        started_at = time.monotonic()
        run.wait(lambda: time.monotonic() - started_at > 2 * LONGEST_TIMEOUT_S, "an outage that is long enough")
        kafka.clock.advance(3600)  # the transactions' timeout too is over
        kafka.start_broker(1)
        written.produce()
        written.wait("the records of meanwhile")
        run.stop()
        written.check()
