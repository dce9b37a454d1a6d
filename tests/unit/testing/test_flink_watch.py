"""What Beam and Flink leave silent is found from the looks at a job alone: no cluster, no clock."""

from dataclasses import replace

import pytest

from headrace.testing.servers.flink.rest import FlinkCheckpoint, JobView
from headrace.testing.servers.flink.watch import Timeouts, Trouble, Watch

TIMEOUT = Timeouts(worker_seconds=10.0, stall_seconds=20.0)
RUNNING = JobView(
    job_id="a", name="flights", state="RUNNING", started_ms=0, tasks={"0: read": "RUNNING", "1: write": "RUNNING"},
    checkpoint_interval_ms=1000, completed=0, failed=0, in_progress=1, latest=None, failure=None,
)  # fmt: skip
WAITING = replace(RUNNING, tasks={"0: read": "RUNNING", "1: write": "INITIALIZING"})


def troubles(*looks: tuple[float, JobView]) -> list[list[Trouble]]:
    watch = Watch(TIMEOUT)
    return [[finding.trouble for finding in watch.observe(view, now)] for now, view in looks]


def test_a_task_that_initialises_for_too_long_has_no_worker() -> None:
    watch = Watch(TIMEOUT)
    assert watch.observe(WAITING, 0.0) == []
    assert watch.observe(WAITING, 9.9) == []
    (finding,) = watch.observe(WAITING, 10.0)
    assert finding.trouble is Trouble.NO_WORKER
    for expected in ("'flights'", "'1: write'", "1 of 2 tasks", "PYTHONPATH"):
        assert expected in finding.text


def test_timeout_starts_over_with_each_time_a_task_initialises() -> None:
    assert troubles((0.0, WAITING), (9.0, RUNNING), (12.0, WAITING), (21.0, WAITING)) == [[], [], [], []]


def test_a_finding_is_given_once_and_again_after_it_had_passed() -> None:
    looks = [(0.0, WAITING), (10.0, WAITING), (11.0, WAITING), (12.0, RUNNING), (13.0, WAITING), (23.0, WAITING)]
    assert troubles(*looks) == [[], [Trouble.NO_WORKER], [], [], [], [Trouble.NO_WORKER]]


def test_a_job_that_runs_without_completing_checkpoints_is_stalled() -> None:
    watch = Watch(TIMEOUT)
    assert watch.observe(RUNNING, 0.0) == []
    assert watch.observe(replace(RUNNING, completed=3), 15.0) == []
    assert watch.observe(replace(RUNNING, completed=3), 34.9) == []
    (finding,) = watch.observe(replace(RUNNING, completed=3, failed=2), 35.0)
    assert finding.trouble is Trouble.NO_CHECKPOINT
    for expected in ("'flights'", "20 s", "3 completed", "2 failed", "defer_remainder", "--finish_bundle_before_checkpointing"):
        assert expected in finding.text


def test_a_long_checkpoint_interval_is_waited_for() -> None:
    slow = replace(RUNNING, checkpoint_interval_ms=60_000)
    assert troubles((0.0, slow), (599.0, slow), (600.0, slow)) == [[], [], [Trouble.NO_CHECKPOINT]]


@pytest.mark.parametrize("view", [replace(RUNNING, checkpoint_interval_ms=None), WAITING, replace(RUNNING, state="RESTARTING")])
def test_no_checkpoint_is_missed_where_none_can_be(view: JobView) -> None:
    first, later = troubles((0.0, view), (100.0, view))
    assert Trouble.NO_CHECKPOINT not in first + later


def test_time_in_which_a_job_did_not_run_is_no_stall() -> None:
    restarting = replace(RUNNING, state="RESTARTING")
    assert troubles((0.0, RUNNING), (5.0, restarting), (19.0, RUNNING), (38.0, RUNNING)) == [[], [], [], []]


def test_every_failure_is_reported_once_with_its_text() -> None:
    watch = Watch(TIMEOUT)
    first, second = replace(RUNNING, failure=(7, "the task manager is gone")), replace(RUNNING, failure=(9, "again"))
    assert [finding.text for finding in watch.observe(first, 0.0)] == [
        "job 'flights' failed and is RUNNING: the task manager is gone"
    ]
    assert watch.observe(first, 1.0) == []
    assert [finding.trouble for finding in watch.observe(second, 2.0)] == [Trouble.FAILURE]


def test_a_job_runs_when_every_task_of_it_does() -> None:
    assert RUNNING.is_running
    assert replace(RUNNING, tasks={"0: impulse": "FINISHED", "1: read": "RUNNING"}).is_running
    assert not WAITING.is_running
    assert not replace(RUNNING, state="RESTARTING").is_running
    assert replace(RUNNING, latest=FlinkCheckpoint(1, "file:///x", 5, 100, 7)).is_running
