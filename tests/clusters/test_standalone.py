"""Jobs on a standalone cluster of Spark: master, workers, brokers and driver each on a host of its own.

The faults come one after another to one job, whose output is compared after each.
"""

import shutil
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clusters.jobs import BAKED, ON_EXECUTORS, SCRIPT, START_S, Copy, settings
from tests.clusters.rack import Program, listening
from tests.clusters.servers import SPARK, Standalone
from tests.helpers.python_path import ROOT
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.timeout(1800)
EXECUTOR, WORKER, TASKS = "CoarseGrainedExecutorBackend", "deploy.worker.Worker", "pyspark.daemon"
SPECULATION = {
    **ON_EXECUTORS,
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

    def written(self) -> int:
        """How long the driver's log is."""
        return len(self.driver.text())

    def wait_for(self, text: str, after: int) -> None:
        """Until the driver has logged it, behind this place."""
        missing = f"no {text!r} in the driver's log"
        eventually(lambda: text in self.driver.text()[after:], missing, seconds=START_S, check=self.driver.check)


@pytest.fixture(scope="module")
def spark(rack):
    return Standalone(rack, 2)


@pytest.fixture(scope="module")
def job(rack, brokers, spark):
    with Copy(rack, brokers) as copy:
        job = Running(copy, copy.submit(rack.host("driver"), "--master", spark.url, conf=SPECULATION, **BAKED))
        copy.advance(job.driver.check, START_S)
        yield job


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """An environment with headrace, as the how-to packs one; what headrace needs is borrowed from ours by a path."""
    folder = tmp_path_factory.mktemp("archive")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "env")}))
    for name in ("headrace", "pyspark_headrace"):
        shutil.copytree(ROOT / name, packages / name)
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run(["tar", "-czf", folder / "env.tar.gz", "-C", folder / "env", "."], check=True)
    return folder / "env.tar.gz"


def test_an_environment_in_an_archive(rack, brokers, spark, archive):
    driver = rack.host("driver")
    shutil.copy(archive, driver.folder)
    subprocess.run(driver.command("sh", "-c", "mkdir env && tar -xzf env.tar.gz -C env"), check=True)
    with Copy(rack, brokers) as copy:
        words = ("--master", spark.url, "--archives", "/tmp/env.tar.gz#env")
        job = copy.submit(driver, *words, PYSPARK_PYTHON="./env/bin/python")
        copy.advance(job.check, START_S)
        assert all(worker.pids("env/bin/python -m pyspark.daemon") for worker in spark.workers)
        copy.check(job.check)
        driver.signal(copy.name)


def test_spark_has_no_cluster_mode_for_python_on_a_standalone_cluster(rack, brokers, spark):
    driver = rack.host("driver")
    with Copy(rack, brokers) as copy:
        job = copy.submit(driver, "--master", spark.url, "--deploy-mode", "cluster", **BAKED)
        assert job.wait(START_S) != 0
    assert "Cluster deploy mode is currently not supported for python applications on standalone clusters" in job.text()


def test_a_client_of_spark_connect_without_a_jvm_starts_the_query(rack, brokers, spark):
    server, client = rack.host("connect"), rack.host("client")
    with Copy(rack, brokers) as copy:
        conf = {
            **ON_EXECUTORS,
            **copy.conf,
            "spark.driver.host": server.address,
            "spark.connect.grpc.binding.address": "0.0.0.0",
        }
        main = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal")
        program = server.start(
            "connect", SPARK / "bin" / "spark-submit", *settings(server, conf), "--master", spark.url, *main, **BAKED
        )
        address = listening(server, 15002, program, START_S)
        code = (
            f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import copy_job; from pyspark.sql import SparkSession\n"
            f"copy_job.job(SparkSession.builder.remote('sc://{address}').getOrCreate()).awaitTermination()"
        )
        job = client.start("job", sys.executable, "-c", code, PYTHONPATH=BAKED["PYTHONPATH"])
        copy.advance(job.check, START_S)
        assert client.pids("java") == []
        copy.check(job.check)
        client.signal("copy_job")
        server.signal("SparkConnectServer")


def test_stalled_tasks_are_run_elsewhere_and_what_they_write_once_they_continue_does_not_count(spark, job):
    host, before = spark.workers[0], job.written()
    assert host.signal(TASKS, signal.SIGSTOP)
    job.wait_for("as speculatable", before)
    job.copy.advance(job.driver.check)
    host.signal(TASKS, signal.SIGCONT)
    job.survives()


def test_a_worker_is_cut_off_from_the_brokers(rack, brokers, spark, job):
    before = job.written()
    for broker in brokers.hosts:
        rack.cut(spark.workers[0], broker)
    job.wait_for("as speculatable", before)
    job.survives()
    for broker in brokers.hosts:
        rack.mend(spark.workers[0], broker)
    job.survives()


def test_a_worker_is_cut_off_from_the_driver_and_not_from_the_brokers(rack, spark, job):
    driver = rack.host("driver")
    before = job.written()
    rack.cut(spark.workers[0], driver)
    job.wait_for("Lost executor", before)
    job.survives()
    rack.mend(spark.workers[0], driver)
    job.survives()


def test_executors_are_decommissioned_and_a_worker_is_killed(rack, spark, job):
    before = job.written()
    assert spark.workers[0].signal(EXECUTOR, signal.SIGPWR)
    job.wait_for("Decommission", before)
    job.survives()
    spark.workers[1].lose()
    spark.start_worker(rack.host("worker3"))
    job.survives()
    eventually(lambda: rack.host("worker3").pids(EXECUTOR), seconds=START_S)
    job.survives()
