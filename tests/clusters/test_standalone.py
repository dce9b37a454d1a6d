"""Jobs on a standalone cluster of Spark: master, workers, brokers and driver each on a host of its own.

The faults come one after another to one job, whose output is compared after each.
"""

import signal
from dataclasses import dataclass

import pytest

from tests.clusters.jobs import BAKED, START_S, Copy
from tests.clusters.rack import Program
from tests.clusters.servers import Standalone
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.timeout(1800)
EXECUTOR, WORKER, TASKS = "CoarseGrainedExecutorBackend", "deploy.worker.Worker", "pyspark.daemon"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "5s",
    "spark.task.maxFailures": "10",
    "spark.decommission.enabled": "true",
}


@dataclass
class Running:
    """A copy that a job makes, and its driver."""

    copy: Copy
    driver: Program

    def survives(self) -> None:
        self.copy.advance(self.driver.check)
        self.copy.check(self.driver.check)

    def wait_for(self, text: str) -> None:
        """Until the driver's log has it."""
        eventually(
            lambda: text in self.driver.text(), f"no {text!r} in the driver's log", seconds=START_S, check=self.driver.check
        )


@pytest.fixture(scope="module")
def spark(rack):
    return Standalone(rack, 2, **BAKED)


@pytest.fixture(scope="module")
def job(rack, brokers, spark):
    with Copy(rack, brokers) as copy:
        job = Running(copy, copy.submit(rack.host("driver"), "--master", spark.url, conf=SPECULATION, **BAKED))
        copy.advance(job.driver.check, START_S)
        yield job


def test_stalled_tasks_are_run_elsewhere_and_what_they_write_once_they_continue_does_not_count(spark, job):
    host = spark.workers[0]
    assert host.signal(TASKS, signal.SIGSTOP)
    job.wait_for("speculative")
    job.copy.advance(job.driver.check)
    host.signal(TASKS, signal.SIGCONT)
    job.survives()


def test_a_worker_is_cut_off_from_the_brokers(rack, brokers, spark, job):
    for broker in brokers.hosts:
        rack.cut(spark.workers[0], broker)
    job.survives()
    for broker in brokers.hosts:
        rack.mend(spark.workers[0], broker)
    job.survives()


def test_a_worker_is_cut_off_from_the_driver_and_not_from_the_brokers(rack, spark, job):
    driver = rack.host("driver")
    executors = spark.workers[0].pids(EXECUTOR)
    assert executors
    rack.cut(spark.workers[0], driver)
    job.wait_for("Lost executor")
    job.survives()
    rack.mend(spark.workers[0], driver)
    job.survives()


def test_executors_are_decommissioned_and_a_worker_is_killed(rack, spark, job):
    assert spark.workers[0].signal(EXECUTOR, signal.SIGPWR)
    job.wait_for("Decommission")
    job.survives()
    spark.workers[1].lose()
    spark.start_worker(rack.host("worker3"))
    job.survives()
    eventually(lambda: rack.host("worker3").pids(EXECUTOR), seconds=START_S)
    job.survives()
