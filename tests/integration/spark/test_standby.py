"""A job with a standby on real Spark and Kafka: its active driver is killed under load, and the standby continues."""

import signal

import pytest

from headrace.runners.spark.supervision.process_tree import members
from tests.soak.standby_soak import outcome, running, send_signal, take_over

pytestmark = pytest.mark.timeout(600)
RATE = 1000.0


def test_a_standby_continues_when_all_processes_of_the_active_driver_are_killed(tmp_path, broker, capsys):
    with running(tmp_path, broker.bootstrap, RATE) as (job, traffic):
        before = job.wait_armed()
        assert before["standbys"][0]["no_dry_run"] is None, job.tail()
        outage_s = take_over(job, traffic, lambda tree: send_signal(signal.SIGKILL, members(tree)))
        after = job.status()
        assert (after["takeovers"], after["active"]["pid"]) == (1, before["standbys"][0]["pid"])
        counted = outcome(job, traffic)
    with capsys.disabled():
        print(f"\nthe standby's first commit of a later record came {outage_s:.2f} s after the kill")  # noqa: T201 - a figure
    assert counted["records"] > RATE
    assert {**counted, "records": 0} == {"records": 0, "lost": 0, "foreign": 0, "duplicates": 0}
    assert not list(tmp_path.glob("headrace-dry-run-*"))
