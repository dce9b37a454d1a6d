"""What a run running shows: its status alongside the checkpoints, the page for Prometheus, `headrace top`."""

from __future__ import annotations

import fcntl
import io
import json
import multiprocessing
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

pytest.importorskip("prometheus_client", reason="needs headrace[metrics]")

from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from headrace.cli import app, top
from headrace.cli.run_report import Rates, table_of
from headrace.cli.top import follow
from headrace.connectors.base.hybrid import HybridSplit
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import DeadlineExceededError, RetriableError, StateError, UsageError
from headrace.enumerator.ledger import SplitState
from headrace.runners.local import events
from headrace.runners.local.core import RunSchedule
from headrace.runners.local.monitoring import metrics_page
from headrace.runners.local.monitoring.lag import ASK_S, STALE_S, LagWatch, RunLag
from headrace.runners.local.monitoring.metrics_page import OneThreadServer, RunPage
from headrace.runners.local.monitoring.status import NoRunError, RunStatus, last_progress_s, read_status, remove_status
from headrace.runners.local.monitoring.supervised import is_held, is_supervised, supervised
from headrace.runners.local.rescale import is_requested
from headrace.runners.local.settings import RunSettings
from headrace.runners.local.storage.lock import LOCK
from headrace.runners.local.supervisor import page_between
from headrace.sources import Hybrid
from headrace.testing import MemoryLog, MemorySource, MemorySplit
from headrace.testing.memory import MemoryPieces
from tests.helpers.split_sources import Feed, Shelf

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring"
METRIC = re.compile(r"\bheadrace_run_\w+")


@pytest.fixture
def folder(tmp_path):
    """Of a run that is running: its lock is held."""
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield tmp_path


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def shown(folder, clock, checkpoints=1):
    """The status of a run that has read 10 records and written 8 for each of this many checkpoints, and lost a worker."""
    status = RunStatus("run-x", folder, clock.now_s - 60, lambda number: 77, clock)
    status.record_command(events.ReportWorkerLost(1, "killed", 0.0))
    status.record_command(events.ReportCheckpointFailure(1, "a reader was lost"))
    for number in range(2, 2 + checkpoints):
        status.record_command(events.TakeSnapshot(2, number))
        clock.now_s += 0.25
        status.record_event(events.WorkerSnapshotted(2, number, {}, (), {"records_in": 10, "records_out": 8}))
        status.record_command(events.CommitCheckpoint(Checkpoint(number, (), False), ("one", "two")))
        clock.now_s += 0.25
        status.record_event(events.CheckpointCommitted(number))
    status.show("RUNNING", {2: 3, 3: 1}, RunLag(clock.now_s, {"a": 7, "b": 0, "c": 1200}), {})
    return status


def test_the_status_of_a_run_is_in_its_folder_as_long_as_it_is_running(folder):
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


def test_a_run_that_has_died_is_not_rescaled_and_is_not_waited_for(tmp_path, monkeypatch):
    """Nor one that dies before it has carried the request out, which is withdrawn."""
    (tmp_path / LOCK).touch()
    refused = CliRunner().invoke(app, ["rescale", str(tmp_path), "3"])
    assert isinstance(refused.exception, NoRunError)
    monkeypatch.setattr("headrace.runners.local.monitoring.status.is_held", Mock(side_effect=[True, True, False]))
    refused = CliRunner().invoke(app, ["rescale", str(tmp_path), "3"])
    assert isinstance(refused.exception, NoRunError)
    assert "the request is withdrawn" in refused.stderr
    assert not is_requested(tmp_path)


def printed_table(*statuses, now_s=None):
    """Of the last of them, as a terminal shows it that has been shown the others."""
    rates = Rates()
    for status in statuses:
        rates.update(status)
    console = Console(width=120, file=io.StringIO())
    console.print(table_of(statuses[-1], rates, statuses[-1]["at"] if now_s is None else now_s))
    return console.file.getvalue()


def test_the_table_shows_when_a_worker_was_last_restarted_and_which(folder):
    clock = Clock()
    status = shown(folder, clock)
    clock.now_s += 3
    status.record_command(events.ReportWorkerLost(7, "killed", 0.0))
    clock.now_s += 42
    status.show("RUNNING", {}, None, {})
    assert read_status(folder)["last_lost"] == {"number": 7, "at": clock.now_s - 42}
    assert "after worker 7 was lost, 42 s ago" in printed_table(status.shown)


def test_no_restart_is_shown_as_none(folder):
    status = RunStatus("run-x", folder, 0.0, {}.get, Clock())
    status.show("RUNNING", {}, None, {})
    assert "none since the coordinator started" in printed_table(status.shown)


def test_the_table_shows_how_often_the_run_was_restarted(folder):
    RunStatus("run-x", folder, 0.0, {}.get, Clock(), restarted=2).show("RUNNING", {}, None, {})
    assert re.search(r"run restarted\W+2 times", printed_table(read_status(folder)))


def page(read, healthy_s=60.0):
    return RunPage(read, "127.0.0.1", 0, healthy_s)


def got(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read().decode()


def test_the_page_has_the_metrics_of_the_table(folder):
    status = shown(folder, Clock(), checkpoints=2)
    text = got(page(lambda: status.shown).port, "/metrics")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    prefix = "headrace_run_"
    alone = {name[0].removeprefix(prefix): value for name, value in found.items() if len(name) == 1}
    assert 0 <= alone.pop("uptime_seconds") < 60
    assert alone == {
        "input_records_total": 20,
        "output_records_total": 16,
        "completed_checkpoints_total": 2,
        "failed_checkpoints_total": 1,
        "lost_workers_total": 1,
        "committed_transactions_total": 4,
        "lag_records": 1207,
        "workers": 2,
        "last_checkpoint_id": 3,
        "last_checkpoint_duration_seconds": 0.5,
        "last_checkpoint_size_bytes": 77,
        "last_checkpoint_timestamp_seconds": 1001,
    }
    assert found[f"{prefix}assigned_splits", "2"] == 3
    assert [found[f"{prefix}split_lag_records", split] for split in "abc"] == [7, 0, 1200]


def test_a_lag_that_is_not_known_is_not_reported(folder):
    status = shown(folder, Clock())
    status.show("RUNNING", {}, None, {})
    assert not re.search("lag|pending", got(page(lambda: status.shown).port, "/metrics"))
    assert read_status(folder)["lag"] is None
    assert "not known" in printed_table(status.shown)


def test_measures_of_the_source_are_metrics(folder):
    status = shown(folder, Clock())
    status.show("RUNNING", {}, None, {"slot_lag_bytes": 7.0})
    assert "\nheadrace_run_slot_lag_bytes 7.0\n" in got(page(lambda: status.shown).port, "/metrics")
    assert read_status(folder)["measures"] == {"slot_lag_bytes": 7.0}


def test_the_file_has_the_splits_that_are_furthest_behind_and_the_page_all(folder):
    status = RunStatus("run-x", folder, 0.0, {}.get, Clock())
    status.show("RUNNING", {}, RunLag(1.0, {f"s{number:03}": number for number in range(100)}), {})
    assert len(status.shown["lag"]["splits"]) == 100
    lag = read_status(folder)["lag"]
    assert lag == {"at": 1.0, "records": 4950, "splits": {f"s{number:03}": number for number in range(80, 100)}}


def test_the_dashboard_is_about_metrics_that_there_are(folder):
    status = shown(folder, Clock())
    there = set(re.findall(r"^(headrace_run_\w+)", got(page(lambda: status.shown).port, "/metrics"), re.MULTILINE))
    lease_store = json.loads((MONITORING / "run-dashboard.json").read_text())
    targets = [target for panel in lease_store["panels"] for target in panel["targets"]]
    shown_there = {name for target in targets for name in METRIC.findall(target["expr"])}
    assert {name for name in there if not name.endswith("_created")} - shown_there == {"headrace_run_last_checkpoint_id"}
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

    def test_a_stage_that_is_a_log_is_behind_and_one_of_pieces_is_not(self):
        """Regression: a hybrid source was never asked."""
        log = MemorySource(self.memory)
        watch = self.watch(Hybrid(MemoryPieces(self.memory, bounded=True), then=log))
        for stage, lag in ((0, None), (1, {"1:a": 6})):
            split = HybridSplit(stage, {} if stage else None, MemorySplit("a", 4))
            watch.moved(Checkpoint(1, (SplitState(split, finished=False),), exhausted=False))
            self.answer()
            assert (watch.lag and watch.lag.splits) == lag
            self.clock.now_s += ASK_S
        watch.moved(Checkpoint(2, (), exhausted=True))
        assert (self.answer(), watch.lag.splits) == (0, {})

    def test_a_run_that_continues_is_behind_by_its_restored_positions(self):
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

    def test_asking_takes_a_twentieth_of_the_time_at_most(self):
        watch = self.watch()
        watch.moved(self.positions(0, 0))
        self.clock.now_s += 0.5  # with very many splits
        assert self.answer() == 1
        for later_s, asked in ((9.0, 0), (0.5, 1)):
            self.clock.now_s += later_s
            watch.moved(self.positions(1, 1))
            assert len(self.waiting) == asked
        self.clock.now_s += 10 * STALE_S  # an outage
        self.answer()
        watch.look()
        assert len(self.waiting) == 1

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

    def test_measures_of_a_source_without_offsets_are_asked_and_not_known_while_it_is_away(self):
        class Measured(Feed):
            measures = Mock(side_effect=[{"slot_lag_bytes": 7.0}, RetriableError("away")])

        watch = self.watch(Measured(Shelf()))
        watch.moved(self.positions(1, 1))
        assert (self.answer(), watch.lag, watch.measures) == (1, None, {"slot_lag_bytes": 7.0})
        self.clock.now_s += ASK_S
        watch.moved(self.positions(2, 2))
        assert (self.answer(), watch.measures) == (1, {})
        unmeasured = self.watch(Feed(Shelf()))
        unmeasured.moved(self.positions(1, 1))
        assert self.answer() == 0

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
    assert "has not started" in refused.value.read().decode()
    assert "headrace_run" not in got(port, "/metrics")
    status = shown(folder, clock).shown
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:  # the clock's time is long ago
        got(port, "/healthz")
    assert "no checkpoint was committed for" in refused.value.read().decode()
    status = {**status, "progress_at": 10**12}
    assert json.loads(got(port, "/healthz")) == {"healthy": True, "problem": None}


def test_a_run_that_hangs_is_not_well_once_the_clock_is_set_back(folder, monkeypatch):
    clock = Clock()
    status = shown(folder, clock).shown
    steady = Clock()
    monkeypatch.setattr(metrics_page, "time", Mock(time=clock, monotonic=steady))
    served = page(lambda: status)
    assert json.loads(got(served.port, "/healthz"))["healthy"]
    clock.now_s -= 3600
    steady.now_s += 61
    with pytest.raises(urllib.error.HTTPError, match="503"):
        got(served.port, "/healthz")


def test_checkpoints_without_a_worker_are_no_progress(folder):
    """They are while each worker crashes as soon as it starts."""
    clock = Clock()
    status = shown(folder, clock)
    clock.now_s += 100
    status.record_command(events.NoteUnchanged(4))
    status.record_command(events.CommitCheckpoint(Checkpoint(5, (), False), ()))
    status.record_event(events.CheckpointCommitted(5))
    status.show("RUNNING", {}, None, {})
    assert status.shown["progress_at"] == clock.now_s - 100
    status.record_event(events.WorkerSnapshotted(4, 6, {}, (), {}))
    status.record_command(events.NoteUnchanged(6))
    status.show("RUNNING", {}, None, {})
    assert status.shown["progress_at"] == clock.now_s


def test_a_run_that_starts_again_and_again_is_not_well_for_having_just_started(folder):
    clock = Clock()
    # the last checkpoint was committed by a coordinator before
    again = RunStatus("run-x", folder, clock.now_s - 100, {}.get, clock)
    again.show("RUNNING", {}, None, {})
    assert (again.shown["since"], again.shown["progress_at"]) == (1000, 900)
    assert shown(folder, clock).shown["progress_at"] == again.shown["since"] + 0.5


def test_a_checkpoint_whose_time_is_yet_to_come_is_no_progress():
    """Written by a machine whose clock is ahead, it had a run that hangs be well for so long."""
    assert last_progress_s(1000.0, None, 1001.0) == 1000.0
    assert last_progress_s(1000.0, 900.0, 1001.0) == 1000.0
    assert last_progress_s(1000.0, 1000.5, 1001.0) == 1000.5
    assert last_progress_s(1000.0, 9000.0, 1001.0) == 1000.0


def test_a_run_is_well_while_a_minimum_pause_lasts():
    assert RunSchedule(10, min_pause_s=1800, timeout_s=600).longest_gap_s == 2400
    assert RunSchedule(10, timeout_s=600).longest_gap_s == 610


def test_a_port_that_is_taken_is_named():
    taken = page(dict).port
    with pytest.raises(UsageError, match=f"metrics cannot be served at 127.0.0.1:{taken}"):
        RunPage(dict, "127.0.0.1", taken, 60.0)


def test_a_client_that_never_ends_its_request_does_not_hold_the_next_start(monkeypatch):
    """Regression: the supervisor waited for it, and neither started the run again nor stopped."""
    monkeypatch.setattr(metrics_page, "_ANSWER_S", 0.1)
    monkeypatch.setattr(metrics_page._Quiet, "timeout", None)
    served = RunPage(dict, "127.0.0.1", 0, 60.0, OneThreadServer)
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        until_s = time.monotonic() + 10
        while served._server._client is None:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        closing = threading.Thread(target=served.close, daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive()
    RunPage(dict, "127.0.0.1", served.port, 60.0, OneThreadServer).close()


def test_top_writes_lines_of_json_in_a_pipe_until_the_run_ends(tmp_path, capsys):
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, clock = shown(tmp_path, Clock()), Clock()
        printed = []

        def sleep(_):
            printed.append(capsys.readouterr().out)
            clock.now_s += 1
            if len(printed) == 1:
                status.show("COLLECTING", {2: 4}, None, {})
            if len(printed) == 3:
                fcntl.flock(lock, fcntl.LOCK_UN)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headrace.cli.top.time.sleep", sleep)
            patch.setattr("headrace.cli.top.until_interrupted", nullcontext)  # whose handler of SIGTERM stays
            status._clock = clock
            follow(tmp_path, 1.0)
    lines = [json.loads(line) for line in "".join(printed).splitlines()]
    assert [line["phase"] for line in lines] == ["RUNNING", "COLLECTING"]  # what has not changed is not reported again


def after(status, seconds, records):
    """The status when the next checkpoint is committed, this many seconds and records later."""
    last = status["checkpoints"]["last"]
    later = {**last, "id": last["id"] + 1, "at": last["at"] + seconds}
    return {
        **status,
        "at": later["at"],
        "records_in": status["records_in"] + records,
        "checkpoints": {**status["checkpoints"], "last": later},
    }


def test_the_table_has_what_the_run_shows(folder):
    status = shown(folder, Clock()).shown
    text = printed_table(status)
    assert "2, 0.0 s ago, took 0.500 s, 77 bytes" in text
    assert "2 (3 splits), 3 (1 splits)" in text
    assert "1,207 records, 0 s ago; most: c 1,200, a 7" in text
    assert "2 committed" in text
    assert "none yet" in printed_table({**status, "checkpoints": {"completed": 0, "failed": 0, "last": None}})


def test_a_rate_is_of_what_came_between_two_checkpoints_though_looks_are_more_often(folder):
    """It was of what came between two looks: 0 in nine of ten seconds, and ten times too high in the other."""
    first = shown(folder, Clock()).shown
    second = after(first, 10, 20_000)
    assert "20,010 (2,000/s)" in printed_table(first, second)
    assert "20,010 (2,000/s)" in printed_table(first, second, {**second, "at": second["at"] + 5})
    assert "20,010 (500/s)" in printed_table(first, second, {**second, "at": second["at"] + 40})
    assert re.search(r"records in\W+7 ", printed_table(first, second, {**second, "coordinator": 0, "records_in": 7}))
    assert "/s" not in printed_table(first)


def test_names_are_shown_as_they_are_and_not_taken_for_markup_or_codes_of_the_terminal(folder):
    status = shown(folder, Clock()).shown
    text = printed_table({**status, "run": "[bold]x[/bold]", "lag": {"at": 1000, "records": 9, "splits": {"[/]\x1b[2J": 9}}})
    assert "[bold]x[/bold]" in text
    assert "[/]\\x1b[2J 9" in text


def test_a_status_that_is_not_renewed_is_not_shown_as_if_it_were_of_now(folder):
    status = shown(folder, Clock()).shown
    assert "the coordinator is late" not in printed_table(status, now_s=status["at"] + 2)
    assert "running, as was reported 12 s ago: the coordinator is late" in printed_table(status, now_s=status["at"] + 12)


@pytest.fixture
def restarting(tmp_path):
    """The folder of a run whose coordinator is dead, and whose supervisor is alive."""
    shown(tmp_path, Clock())
    (tmp_path / LOCK).touch()
    with supervised(tmp_path) as is_first:
        assert is_first
        yield tmp_path


def test_between_two_coordinators_a_run_is_restarting_and_not_over(restarting):
    """`headrace top` ended with the first coordinator that died."""
    status = read_status(restarting)
    assert (status["phase"], status["workers"], status["records_in"]) == ("RESTARTING", [], 10)
    assert "restarting; what follows was reported 7 s ago" in printed_table(status, now_s=status["at"] + 7)
    remove_status(restarting)
    assert read_status(restarting) is None


def test_between_two_coordinators_the_supervisor_answers_and_lets_go_of_the_port_before_it_forks(restarting):
    """Regression: nothing listened while a run waited to start again, for up to a minute."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = RunSettings(str(restarting), metrics_port=port, interval_s=1e12)
    before = threading.active_count()
    for _ in range(2):
        with page_between(settings):
            assert "headrace_run_input_records_total 10.0" in got(port, "/metrics")
            assert json.loads(got(port, "/healthz")) == {"healthy": True, "problem": None}
        assert threading.active_count() <= before
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass


def test_a_port_that_is_taken_does_not_keep_a_supervisor_from_another_start(restarting):
    with page_between(RunSettings(str(restarting), metrics_port=page(dict).port)):
        assert read_status(restarting)["phase"] == "RESTARTING"


def test_a_run_whose_supervisor_has_ended_too_is_over(tmp_path):
    with supervised(tmp_path):
        pass
    with pytest.raises(NoRunError):
        read_status(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_second_supervisor_is_not_the_first_one_and_leaves_its_file_alone(restarting):
    with supervised(restarting) as is_first:
        assert not is_first
    assert read_status(restarting)["phase"] == "RESTARTING"


def answer_and_wait(connection):
    connection.send("it has started")
    connection.recv()


def test_a_process_that_the_supervisor_has_forked_does_not_hold_what_says_that_it_lives(tmp_path):
    with supervised(tmp_path):
        context = multiprocessing.get_context("fork")
        ours, its = context.Pipe()
        forked = context.Process(target=answer_and_wait, args=(its,))
        forked.start()
        ours.recv()
        assert is_supervised(tmp_path)
        (tmp_path / "supervisor").rename(tmp_path / "kept")
    try:
        assert forked.is_alive()
        assert not is_held(tmp_path / "kept")
    finally:
        ours.send(None)
        forked.join()


def test_a_folder_that_cannot_be_made_is_for_the_coordinator_to_name(tmp_path):
    (tmp_path / "file").touch()
    with supervised(tmp_path / "file" / "checkpoints") as is_first:
        assert not is_first


def test_a_status_that_is_damaged_is_one_error_after_some_seconds_and_not_a_traceback(folder, monkeypatch):
    shown(folder, Clock())
    (folder / "status.json").write_text((folder / "status.json").read_text()[:40])
    with pytest.raises(RetriableError, match=r"status\.json is damaged"):
        read_status(folder)
    monkeypatch.setattr(top, "DAMAGED_S", 0.2)
    with pytest.raises(DeadlineExceededError, match=r"a whole status of the run: .*status\.json is damaged"):
        follow(folder, 1.0)


def test_a_status_that_is_whole_again_is_shown(folder):
    whole = shown(folder, Clock())
    (folder / "status.json").write_text("{")
    looks = top._looks(folder, 0.0)

    def mend(condition, what, seconds):
        with pytest.raises(RetriableError):
            condition()
        whole.show("RUNNING", {}, None, {})
        condition()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top, "wait_until", mend)
        assert next(looks)["phase"] == "RUNNING"


def test_a_status_of_another_version_is_named(folder):
    (folder / "status.json").write_text("[]")
    with pytest.raises(StateError, match="is not a status of a run, but a JSON list"):
        read_status(folder)
    shown(folder, Clock())
    (folder / "status.json").write_text(json.dumps({**json.loads((folder / "status.json").read_text()), "since": None}))
    with pytest.raises(StateError, match="of another version of headrace: 'since' is None"):
        read_status(folder)


def test_a_status_that_may_not_be_read_is_named(folder):
    shown(folder, Clock())
    (folder / "status.json").unlink()
    (folder / "status.json").mkdir()
    with pytest.raises(StateError, match=r"what the run reports itself cannot be read: .*status\.json"):
        read_status(folder)
