"""A pipeline of Beam on a session cluster of Flink: job manager, task managers and brokers each on its own host.

The faults come one after another to one job, whose output is compared after each.
"""

import sys
from contextlib import suppress

import pytest

from tests.clusters.flink import SLOTS, Flink
from tests.clusters.jobs import BAKED, BEAM_SCRIPT, START_S, Copy
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.timeout(1800)
STALL_S = 10.0


class Job:
    """A copy that a pipeline makes."""

    def __init__(self, copy, flink):
        self.copy, self._flink = copy, flink
        command = (sys.executable, BEAM_SCRIPT, copy.request, *flink.options)
        self._submitted = flink.master.start(copy.name, *command, PYTHONPATH=BAKED["PYTHONPATH"])
        self.advance()
        (self._id,) = flink.rest.job_ids()

    def runs_on(self, *hosts):
        names = {host.name for host in hosts}
        missing = f"the job does not run on {names}"
        eventually(lambda: self._flink.rest.hosts(self._id) == names, missing, seconds=START_S, check=self._submitted.check)

    def advance(self, seconds=START_S):
        self.copy.advance(self._submitted.check, seconds)

    def survives(self):
        self.copy.survives(self._submitted.check)


@pytest.fixture(scope="module")
def flink(rack):
    return Flink(rack, 2)


@pytest.fixture(scope="module")
def job(rack, brokers, flink):
    with Copy(rack, brokers) as copy:
        job = Job(copy, flink)
        job.runs_on(*flink.managers)
        yield job


def test_a_task_manager_is_cut_off_from_the_brokers(rack, brokers, flink, job):
    for broker in brokers.hosts:
        rack.cut(flink.managers[0], broker)
    with suppress(TimeoutError):  # until no checkpoint completes without all tasks
        while True:
            job.advance(STALL_S)
    for broker in brokers.hosts:
        rack.repair(flink.managers[0], broker)
    job.survives()


def test_a_task_manager_is_cut_off_from_the_job_manager_and_not_from_the_brokers(rack, flink, job):
    rack.cut(flink.master, flink.managers[0])
    job.runs_on(flink.managers[1])
    job.survives()
    rack.repair(flink.master, flink.managers[0])
    eventually(lambda: flink.rest.free_slots().get(flink.managers[0].name) == SLOTS, seconds=START_S)
    job.survives()


def test_the_host_of_a_task_manager_is_lost(flink, job):
    flink.managers[1].lose()
    job.runs_on(flink.managers[0])
    job.survives()
