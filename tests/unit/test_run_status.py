"""What a run at work shows: its status beside the checkpoints, the page for Prometheus, `headrace top`."""

from __future__ import annotations

import fcntl
import io
import json
import urllib.error
import urllib.request
from contextlib import nullcontext

import pytest
from rich.console import Console

pytest.importorskip("prometheus_client", reason="needs headrace[metrics]")

from prometheus_client.parser import text_string_to_metric_families

from headrace.cli.watching import follow, table_of
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import StateError, UsageError
from headrace.runners.local.checkpoints import LOCK
from headrace.runners.local.core import (
    CheckpointCommitted,
    CommitCheckpoint,
    ReportCheckpointFailure,
    ReportWorkerLost,
    RunSchedule,
    TakeSnapshot,
    WorkerSnapshotted,
)
from headrace.runners.local.watching.page import RunPage
from headrace.runners.local.watching.status import RunStatus, read_status, remove_status


@pytest.fixture
def folder(tmp_path):
    """Of a run that is at work: its lock is held."""
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield tmp_path


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def shown(folder, clock, checkpoints=1):
    """The status of a run that has read 10 records and written 8 for each of so many checkpoints, and lost a worker."""
    status = RunStatus("run-x", folder, clock.now_s - 60, clock)
    status.did(ReportWorkerLost(1, "killed", 0.0))
    status.did(ReportCheckpointFailure(1, "a reader was lost"))
    for number in range(2, 2 + checkpoints):
        (folder / f"checkpoint-{number:012d}.json").write_bytes(b"x" * 77)
        status.did(TakeSnapshot(2, number))
        clock.now_s += 0.25
        status.saw(WorkerSnapshotted(2, number, {}, (), 10, 8))
        status.did(CommitCheckpoint(Checkpoint(number, (), False), ()))
        clock.now_s += 0.25
        status.saw(CheckpointCommitted(number))
    status.show("RUNNING", {2: 3, 3: 1})
    return status


def test_the_status_of_a_run_is_in_its_folder_as_long_as_it_is_at_work(folder):
    shown(folder, Clock())
    found = read_status(folder)
    assert (found["records_in"], found["records_out"], found["workers_lost"]) == (10, 8, 1)
    assert found["workers"] == [{"number": 2, "splits": 3}, {"number": 3, "splits": 1}]
    last = {"id": 2, "at": 1000.5, "duration_s": 0.5, "bytes": 77}
    assert found["checkpoints"] == {"completed": 1, "failed": 1, "last": last}
    remove_status(folder)
    assert read_status(folder) is None


def test_a_status_that_a_killed_run_has_left_is_not_shown(tmp_path):
    shown(tmp_path, Clock())
    with pytest.raises(StateError, match="no run works with these checkpoints"):
        read_status(tmp_path)
    (tmp_path / LOCK).touch()
    with pytest.raises(StateError, match="no run works with these checkpoints"):
        follow(tmp_path, 0.1)


def page(read, healthy_s=60.0):
    return RunPage(read, "127.0.0.1", 0, healthy_s)


def got(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read().decode()


def test_the_page_has_the_names_of_flinks_and_kafkas_metrics(folder):
    status = shown(folder, Clock(), checkpoints=2)
    text = got(page(lambda: status.shown).port, "/metrics")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    prefix = "headrace_run_"
    assert {name[0].removeprefix(prefix): value for name, value in found.items() if len(name) == 1} == {
        "numRecordsIn_total": 20,
        "numRecordsOut_total": 16,
        "numberOfCompletedCheckpoints_total": 2,
        "numberOfFailedCheckpoints_total": 1,
        "numRestarts_total": 1,
        "uptime": 1,
        "workers": 2,
        "lastCheckpointId": 3,
        "lastCheckpointDuration": 0.5,
        "lastCheckpointSize": 77,
        "lastCheckpointTimestamp": 1001,
    }
    assert found[f"{prefix}assigned_partitions", "2"] == 3


def test_a_run_is_well_while_its_last_checkpoint_is_not_too_long_ago(folder):
    status, clock = {}, Clock()
    port = page(lambda: status).port
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        got(port, "/healthz")
    assert "has not begun" in refused.value.read().decode()
    assert "headrace_run" not in got(port, "/metrics")
    status = shown(folder, clock).shown
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:  # the clock's time is long ago
        got(port, "/healthz")
    assert "no checkpoint was committed for" in refused.value.read().decode()
    status = {**status, "progress_at": 10**12}
    assert json.loads(got(port, "/healthz")) == {"healthy": True, "problem": None}


def test_seen_here_a_run_that_starts_again_and_again_is_not_well_for_having_just_started(folder):
    clock = Clock()
    again = RunStatus("run-x", folder, clock.now_s - 100, clock)  # the last checkpoint was committed by a coordinator before
    again.show("RUNNING", {})
    assert (again.shown["since"], again.shown["progress_at"]) == (1000, 900)
    assert shown(folder, clock).shown["progress_at"] == again.shown["since"] + 0.5


def test_seen_here_a_run_is_well_while_a_minimum_pause_lasts():
    assert RunSchedule(10, min_pause_s=1800, timeout_s=600).longest_gap_s == 2400
    assert RunSchedule(10, timeout_s=600).longest_gap_s == 610


def test_a_port_that_is_taken_is_named():
    taken = page(dict).port
    with pytest.raises(UsageError, match=f"metrics cannot be served at 127.0.0.1:{taken}"):
        RunPage(dict, "127.0.0.1", taken, 60.0)


def test_top_writes_lines_of_json_in_a_pipe_until_the_run_ends(tmp_path, capsys):
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, clock = shown(tmp_path, Clock()), Clock()
        printed = []

        def sleep(_):
            printed.append(capsys.readouterr().out)
            clock.now_s += 1
            if len(printed) == 1:
                status.show("COLLECTING", {2: 4})
            if len(printed) == 3:
                fcntl.flock(lock, fcntl.LOCK_UN)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headrace.cli.watching.time.sleep", sleep)
            patch.setattr("headrace.cli.watching.until_interrupted", nullcontext)  # whose handler of SIGTERM stays
            status._clock = clock
            follow(tmp_path, 1.0)
    lines = [json.loads(line) for line in "".join(printed).splitlines()]
    assert [line["phase"] for line in lines] == ["RUNNING", "COLLECTING"]  # what has not changed is not told again


def test_the_table_has_rates_of_what_came_between_two_looks(folder):
    clock = Clock()
    before = shown(folder, clock).shown
    later = {**before, "at": before["at"] + 2, "records_in": 4010}
    console = Console(width=100, file=io.StringIO())
    console.print(table_of(later, before))
    text = console.file.getvalue()
    assert "4,010 (2,000/s)" in text
    assert "2, 2.0 s ago, took 0.500 s, 77 bytes" in text
    assert "2 (3 splits), 3 (1 splits)" in text
    console.print(table_of({**later, "checkpoints": {"completed": 0, "failed": 0, "last": None}}, None))
    assert "none yet" in console.file.getvalue()
