"""The Flink cluster for Beam against the real thing: pipelines run, survive kills, restore; what Beam leaves silent is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from headrace.enumerator.errors import PeerError, UsageError
from headrace.testing.servers.flink import FlinkCluster, start_flink
from headrace.testing.servers.flink.watch import Timeouts
from tests.helpers.flink_rig import Numbers, job, kill_and_restart
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.flink, pytest.mark.timeout(300)]
CLI = [sys.executable, "-P", "-c", "from headrace.cli import main; main()", "beam"]


class InOrder(beam.DoFn):
    """State: the next number that must come. Writes what came after what, as `expected got`, when they differ."""

    NEXT = ReadModifyWriteStateSpec("next", VarIntCoder())

    def __init__(self, seen: str) -> None:
        self.seen = seen

    def process(self, element: tuple[int, int], following=beam.DoFn.StateParam(NEXT)):  # noqa: B008 - as above
        _, number = element
        expected = following.read() or 0
        following.write(number + 1)
        with open(self.seen, "a") as file:
            file.write(f"{expected} {number}\n")
        sys.stdout.write("." * 2000 + "\n")  # 64 KB would block a worker whose output no process reads


def counting(folder: Path):
    def build(pipeline: beam.Pipeline) -> None:
        numbers = pipeline | beam.Impulse() | beam.ParDo(Numbers(str(folder / "begun")))
        keyed = numbers | beam.Map(lambda number: (0, number)).with_output_types(tuple[int, int])
        keyed | beam.ParDo(InOrder(str(folder / "seen")))

    return build


def seen(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "seen").read_text().splitlines() if line.count(" ") == 1]


def assert_exact(folder: Path) -> None:
    """Whatever was replayed, state and source went back together: each number met the state that expected it."""
    pairs = seen(folder)
    assert len(pairs) > 40
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


@pytest.mark.long
def test_state_is_exact_through_a_kill_and_a_savepoint_and_nothing_starts_again(flink: FlinkCluster, tmp_path: Path) -> None:
    with job(flink, counting(tmp_path)) as first:
        covered = flink.wait_checkpoint(first).number
        before = len(seen(tmp_path))
        kill_and_restart(flink, first)
        eventually(lambda: len(seen(tmp_path)) > before)
        assert flink.wait_checkpoint(first).number > covered
        savepoint = flink.savepoint(first)
        assert flink.job(first).state == "CANCELED"
    highest = max(int(number) for _, number in seen(tmp_path))
    with job(flink, counting(tmp_path), savepoint=savepoint):
        eventually(lambda: int(seen(tmp_path)[-1][1]) > highest)
    assert_exact(tmp_path)
    assert (tmp_path / "begun").read_text() == "begun\n"


class Fails(beam.DoFn):
    def process(self, element: object) -> None:
        raise RuntimeError("the injected failure")


def test_a_failure_is_reported_in_pythons_own_words(flink: FlinkCluster, tmp_path: Path) -> None:
    def build(pipeline: beam.Pipeline) -> None:
        pipeline | beam.Impulse() | beam.ParDo(Numbers(str(tmp_path / "begun"))) | beam.ParDo(Fails())

    with job(flink, build) as failing:
        eventually(lambda: flink.job(failing).failure is not None)
        assert "the injected failure" in flink.job(failing).failure[1]


class Stubborn(Numbers):
    """Never returns from `process`: no checkpoint can complete."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: bytes, tracker=beam.DoFn.RestrictionParam()):  # noqa: B008 - Beam's way to ask for it
        number = tracker.current_restriction().start
        while tracker.try_claim(number):
            yield number
            number += 1
            time.sleep(0.01)


def test_a_checkpoint_that_cannot_complete_is_said_and_fails_no_job_for_an_hour(flink: FlinkCluster, tmp_path: Path) -> None:
    def build(pipeline: beam.Pipeline) -> None:
        pipeline | beam.Impulse() | beam.ParDo(Stubborn(str(tmp_path / "begun")))

    flink.timeout = Timeouts(stall_seconds=3.0)
    try:
        with job(flink, build, checkpoint_ms=100) as stalled:
            with pytest.raises(PeerError, match="completed no checkpoint for 3 s"):
                flink.wait_checkpoint(stalled)
            assert flink.rest._ask("GET", f"/jobs/{stalled}/checkpoints/config")["timeout"] == 3_600_000
    finally:
        flink.timeout = Timeouts()


# Beam's pool starts workers as `python -c "... SdkHarness ..."`: these end at once, as one with a broken installation would.
BROKEN_WORKER = """\
import os, sys
if any("SdkHarness" in argument for argument in sys.orig_argv):
    print("injected: this worker cannot start", file=sys.stderr, flush=True)
    os._exit(3)
"""


@contextmanager
def command(folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`headrace beam` with its temporary files in the folder."""
    arguments, variables = [*CLI, "--patience", "5"], {**os.environ, "TMPDIR": str(folder), **environment}
    given = {"env": variables, "stdout": subprocess.PIPE, "text": True}
    with (folder / "stderr").open("w") as stderr, subprocess.Popen(arguments, stderr=stderr, **given) as process:
        try:
            yield process
        finally:
            process.kill()


def processes_of(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in line + environment:
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.long
def test_the_command_gives_options_says_that_workers_do_not_start_and_leaves_nothing(tmp_path: Path) -> None:
    broken, temporary = tmp_path / "broken", tmp_path / "temporary"
    broken.mkdir()
    temporary.mkdir()
    (broken / "sitecustomize.py").write_text(BROKEN_WORKER)
    with command(temporary, PYTHONPATH=str(broken)) as process:
        assert process.stdout is not None
        flags = [process.stdout.readline().strip() for _ in range(11)]
        assert flags[0] == "--runner=PortableRunner"
        assert all(flag.startswith("--") for flag in flags)
        pipeline = beam.Pipeline(options=PipelineOptions(flags))
        counting(tmp_path)(pipeline)
        pipeline.run()
        eventually(lambda: "injected: this worker cannot start" in (temporary / "stderr").read_text(), seconds=120)
        assert "has waited 5 s for its Python workers" in (temporary / "stderr").read_text()
        assert list(temporary.rglob("blob_*")) == []  # the job server's jars would be: 170 uploads, 15 s
        assert len(processes_of(temporary)) > 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert processes_of(temporary) == []
        assert [path.name for path in temporary.iterdir()] == ["stderr"]


def test_workers_that_could_not_import_what_they_need_are_refused_at_once(tmp_path, monkeypatch):
    venv.create(tmp_path / "empty", symlinks=True)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # which may name the checkout
    monkeypatch.setattr(sys, "executable", str(tmp_path / "empty" / "bin" / "python"))
    with pytest.raises(UsageError, match=r"cannot import apache_beam and headrace.*headrace\[beam\]"), start_flink():
        pass


def test_without_java_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="Java 17"), start_flink():
        pass


def test_a_server_that_cannot_start_is_said_with_its_log() -> None:
    message = r"(?s)the (job|task) manager.* ended.*taskmanager\.numberOfTaskSlots"
    with pytest.raises(PeerError, match=message), start_flink(config={"taskmanager.numberOfTaskSlots": "many"}):
        pass


def test_servers_are_named(flink: FlinkCluster) -> None:
    with pytest.raises(UsageError, match="'no such'"):
        flink.log_tail("no such")
    with pytest.raises(UsageError, match="at least 1"), start_flink(slots=0):
        pass
