"""What a run at work shows: its status beside the checkpoints, the page for Prometheus, `headrace top`."""

from __future__ import annotations

import fcntl
import io
import json
import re
import urllib.error
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

pytest.importorskip("prometheus_client", reason="needs headrace[metrics]")

from prometheus_client.parser import text_string_to_metric_families

from headrace.cli.watching import follow, table_of
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import RetriableError, StateError, UsageError
from headrace.enumerator.ledger import SplitState
from headrace.runners.local.core import (
    CheckpointCommitted,
    CommitCheckpoint,
    ReportCheckpointFailure,
    ReportWorkerLost,
    RunSchedule,
    TakeSnapshot,
    WorkerSnapshotted,
)
from headrace.runners.local.storage.lock import LOCK
from headrace.runners.local.watching.lag import ASK_S, STALE_S, LagWatch, RunLag
from headrace.runners.local.watching.page import RunPage
from headrace.runners.local.watching.status import RunStatus, read_status, remove_status
from headrace.testing import MemoryLog, MemorySource, MemorySplit

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
ADDRESS = "unix:/run/coordinator"
METRIC = re.compile(r"\bheadrace_run_\w+")


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
    status = RunStatus("run-x", folder, clock.now_s - 60, ADDRESS, lambda number: 77, clock)
    status.did(ReportWorkerLost(1, "killed", 0.0))
    status.did(ReportCheckpointFailure(1, "a reader was lost"))
    for number in range(2, 2 + checkpoints):
        status.did(TakeSnapshot(2, number))
        clock.now_s += 0.25
        status.saw(WorkerSnapshotted(2, number, {}, (), 10, 8))
        status.did(CommitCheckpoint(Checkpoint(number, (), False), ("one", "two")))
        clock.now_s += 0.25
        status.saw(CheckpointCommitted(number))
    status.show("RUNNING", {2: 3, 3: 1}, RunLag(clock.now_s, {"a": 7, "b": 0, "c": 1200}))
    return status


def test_the_status_of_a_run_is_in_its_folder_as_long_as_it_is_at_work(folder):
    shown(folder, Clock())
    found = read_status(folder)
    assert (found["records_in"], found["records_out"], found["workers_lost"]) == (10, 8, 1)
    assert found["address"] == ADDRESS
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


def printed_table(status, before):
    console = Console(width=100, file=io.StringIO())
    console.print(table_of(status, before))
    return console.file.getvalue()


def test_the_table_tells_when_a_worker_was_last_restarted_and_which(folder):
    clock = Clock()
    status = shown(folder, clock)
    clock.now_s += 3
    status.did(ReportWorkerLost(7, "killed", 0.0))
    clock.now_s += 42
    status.show("RUNNING", {}, None)
    assert read_status(folder)["last_lost"] == {"number": 7, "at": clock.now_s - 42}
    assert "after worker 7 was lost, 42 s ago" in printed_table(status.shown, None)


def test_a_restart_that_is_not_known_is_another_thing_than_none(folder):
    status = RunStatus("run-x", folder, 0.0, ADDRESS, {}.get, Clock())
    status.show("RUNNING", {}, None)
    assert "none since the coordinator started" in printed_table(status.shown, None)
    earlier = {name: value for name, value in status.shown.items() if name != "last_lost"}
    assert re.search(r"last restart\W+not known", printed_table(earlier, None))


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
        "successfulCommittables_total": 4,
        "pendingRecords": 1207,
        "uptime": 1,
        "workers": 2,
        "lastCheckpointId": 3,
        "lastCheckpointDuration": 0.5,
        "lastCheckpointSize": 77,
        "lastCheckpointTimestamp": 1001,
    }
    assert found[f"{prefix}assigned_partitions", "2"] == 3
    assert [found[f"{prefix}records_lag", split] for split in "abc"] == [7, 0, 1200]


def test_a_lag_that_is_not_known_is_not_told(folder):
    status = shown(folder, Clock())
    status.show("RUNNING", {}, None)
    assert not re.search("lag|pending", got(page(lambda: status.shown).port, "/metrics"))
    assert read_status(folder)["lag"] is None
    assert "not known" in printed_table(status.shown, None)


def test_the_file_has_the_splits_that_are_furthest_behind_and_the_page_all(folder):
    status = RunStatus("run-x", folder, 0.0, ADDRESS, {}.get, Clock())
    status.show("RUNNING", {}, RunLag(1.0, {f"s{number:03}": number for number in range(100)}))
    assert len(status.shown["lag"]["splits"]) == 100
    lag = read_status(folder)["lag"]
    assert lag == {"at": 1.0, "records": 4950, "splits": {f"s{number:03}": number for number in range(80, 100)}}


def test_the_dashboard_is_about_metrics_that_there_are(folder):
    status = shown(folder, Clock())
    there = set(re.findall(r"^(headrace_run_\w+)", got(page(lambda: status.shown).port, "/metrics"), re.MULTILINE))
    board = json.loads((MONITORING / "run-dashboard.json").read_text())
    shown_there = {name for panel in board["panels"] for target in panel["targets"] for name in METRIC.findall(target["expr"])}
    assert {name for name in there if not name.endswith("_created")} - shown_there == {"headrace_run_lastCheckpointId"}
    assert shown_there <= there


class TestLag:
    """What lies between the positions of the last checkpoint and the ends."""

    @pytest.fixture(autouse=True)
    def log(self):
        self.memory, self.clock, self.waiting = MemoryLog(), Clock(), []
        for name in "ab":
            self.memory.create(name)
            self.memory.append(name, ["x"] * 10)

    def watch(self, source=None, restored=None):
        return LagWatch(source or MemorySource(self.memory), restored, 10.0, self.waiting.append, self.clock, self.clock)

    def answer(self):
        count = len(self.waiting)
        while self.waiting:
            self.waiting.pop()()
        return count

    def positions(self, a, b, *, finished=False):
        return Checkpoint(1, (SplitState(MemorySplit("a", a), finished), SplitState(MemorySplit("b", b), False)), False)

    def test_each_split_is_behind_by_what_lies_between_its_position_and_its_end(self):
        watch = self.watch()
        watch.look()
        assert (self.answer(), watch.lag) == (0, None)  # no positions yet
        watch.moved(self.positions(4, 10))
        assert self.answer() == 1
        assert (watch.lag, watch.lag.records) == (RunLag(self.clock.now_s, {"a": 6, "b": 0}), 6)
        self.clock.now_s += ASK_S
        watch.moved(self.positions(4, 9, finished=True))
        self.answer()
        assert watch.lag.splits == {"b": 1}
        watch.moved(Checkpoint(2, (SplitState(MemorySplit("a", 10), finished=True),), exhausted=True))
        assert (self.answer(), watch.lag.splits) == (0, {})

    def test_a_run_that_goes_on_is_behind_by_its_restored_positions(self):
        watch = self.watch(restored=self.positions(3, 9))
        assert not self.waiting  # its start is not disturbed
        watch.look()
        assert (self.answer(), watch.lag.splits) == (1, {"a": 7, "b": 1})

    def test_the_ends_are_asked_once_a_checkpoint_and_not_while_they_are_asked(self):
        watch = self.watch()
        watch.moved(self.positions(0, 0))
        self.clock.now_s += 100 * STALE_S
        watch.moved(self.positions(1, 1))
        watch.look()
        assert self.answer() == 1
        self.clock.now_s += ASK_S / 2
        watch.moved(self.positions(2, 2))
        self.clock.now_s = 1000.0 + 100 * STALE_S + ASK_S
        assert self.answer() == 1  # the last question was ten minutes ago

    def test_the_lag_of_a_run_that_takes_no_checkpoint_grows(self):
        watch = self.watch()
        watch.moved(self.positions(10, 10))
        self.answer()
        self.memory.append("a", ["x"] * 5)
        self.clock.now_s += STALE_S - 1
        watch.look()
        assert (self.answer(), watch.lag.records) == (0, 0)
        self.clock.now_s += 1
        watch.look()
        assert (self.answer(), watch.lag.records) == (1, 5)

    def test_a_source_that_does_not_answer_is_no_lag_of_0_and_ends_nothing(self):
        away = MemorySource(self.memory)
        away.end_offsets = Mock(side_effect=[RetriableError("away"), {"a": 10, "b": 10}])
        watch = self.watch(away)
        watch.moved(self.positions(10, 10))
        assert (self.answer(), watch.lag) == (1, None)
        self.clock.now_s += ASK_S
        watch.moved(self.positions(10, 10))
        assert (self.answer(), watch.lag.records) == (1, 0)


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
    # the last checkpoint was committed by a coordinator before
    again = RunStatus("run-x", folder, clock.now_s - 100, ADDRESS, {}.get, clock)
    again.show("RUNNING", {}, None)
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
                status.show("COLLECTING", {2: 4}, None)
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
    text = printed_table(later, before)
    assert "4,010 (2,000/s)" in text
    assert "2, 2.0 s ago, took 0.500 s, 77 bytes" in text
    assert "2 (3 splits), 3 (1 splits)" in text
    assert "1,207 records, 2 s ago; most: c 1,200, a 7" in text
    assert "2 committed" in text
    assert "none yet" in printed_table({**later, "checkpoints": {"completed": 0, "failed": 0, "last": None}}, None)
