"""Jobs on a standalone cluster of Spark: master, workers, brokers and driver each on its own host.

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

from tests.clusters.jobs import BAKED, ON_EXECUTORS, PIPELINE_SCRIPT, SCRIPT, START_S, Copy, settings
from tests.clusters.rack import Program, listening, wrong_clock
from tests.clusters.servers import SPARK, Standalone
from tests.helpers.python_path import ROOT
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.timeout(1800)
EXECUTOR, WORKER, TASKS = "CoarseGrainedExecutorBackend", "deploy.worker.Worker", "pyspark.daemon"
PACKAGES = ("headrace", "pyspark_headrace")
SPECULATION = {
    **ON_EXECUTORS,
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "5s",
    "spark.speculation.task.duration.threshold": "10s",
    "spark.task.maxFailures": "10",
    "spark.decommission.enabled": "true",
}


@dataclass
class Running:
    """A copy that a job makes, and its driver."""

    copy: Copy
    driver: Program

    def survives(self) -> None:
        self.copy.survives(self.driver.check)

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


def environment(folder: Path) -> Path:
    """Where the packages are of a new environment, which has what headrace needs by a path to ours, and not headrace."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return packages


def copies(rack, brokers, spark, python, *words, **variables):
    """A job that is submitted with these words copies, and each worker runs its tasks by this Python."""
    host = rack.host("driver")
    with Copy(rack, brokers) as copy:
        job = copy.submit(host, "--master", spark.url, *words, **variables)
        try:
            copy.advance(job.check, START_S)
            for worker in spark.workers:
                eventually(
                    lambda worker=worker: worker.pids(f"{python} -m pyspark.daemon"),
                    lambda worker=worker: f"no {python} on {worker.name}: {worker.commands()}",
                    check=job.check,
                )
            copy.check(job.check)
        finally:
            host.signal(copy.name)  # the next one needs the workers


def test_an_environment_in_an_archive(rack, brokers, spark):
    driver = rack.host("driver")
    packages = environment(driver.folder / "packed")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, packages / name)
    pack = "tar -czf env.tar.gz -C packed . && mkdir env && tar -xzf env.tar.gz -C env"
    subprocess.run(driver.command("sh", "-c", pack), check=True)
    copies(rack, brokers, spark, "./env/bin/python", "--archives", "env.tar.gz#env", PYSPARK_PYTHON="./env/bin/python")


def test_a_zip_on_machines_that_have_what_headrace_needs(rack, brokers, spark):
    driver, python = rack.host("driver"), rack.shared / "env" / "bin" / "python"
    environment(rack.shared / "env")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, driver.folder / "zipped" / name)
    shutil.make_archive(str(driver.folder / "headrace"), "zip", driver.folder / "zipped")
    words = ("--py-files", "headrace.zip")
    copies(rack, brokers, spark, python, *words, PYSPARK_PYTHON=str(python), PYTHONPATH="headrace.zip")


def test_a_module_of_the_users_in_py_files_has_the_function_of_a_pipeline(rack, brokers, spark):
    driver = rack.host("driver")
    (driver.folder / "copying.py").write_text("def copied(batch):\n    return batch.select(['key', 'value'])\n")
    words = ("--py-files", "copying.py")
    copies(rack, brokers, spark, BAKED["PYSPARK_PYTHON"], *words, conf=ON_EXECUTORS, script=PIPELINE_SCRIPT, **BAKED)


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
        rack.repair(spark.workers[0], broker)
    job.survives()


def test_a_broker_is_cut_off_from_a_worker_and_not_from_the_driver(rack, brokers, spark, job):
    before = job.written()
    rack.cut(spark.workers[0], brokers.hosts[0])
    job.wait_for("as speculatable", before)
    job.survives()
    rack.repair(spark.workers[0], brokers.hosts[0])
    job.survives()


def test_a_worker_has_a_slow_link_that_loses_packets(rack, spark, job):
    rack.slow_down(spark.workers[0])
    lost = lambda: rack.lost_packets(spark.workers[0])  # noqa: E731
    eventually(lost, "the link has lost nothing", seconds=START_S, check=job.driver.check)
    job.survives()
    rack.speed_up(spark.workers[0])
    job.survives()


def test_a_worker_is_cut_off_from_the_driver_and_not_from_the_brokers(rack, spark, job):
    driver = rack.host("driver")
    before = job.written()
    rack.cut(spark.workers[0], driver)
    job.wait_for("Lost executor", before)
    job.survives()
    rack.repair(spark.workers[0], driver)
    job.survives()


def test_executors_are_decommissioned_and_a_worker_is_replaced_by_one_with_a_wrong_clock(rack, spark, job):
    before = job.written()
    assert spark.workers[0].signal(EXECUTOR, signal.SIGPWR)
    job.wait_for("Decommission", before)
    job.survives()
    spark.workers[1].lose()
    spark.start_worker(rack.host("worker3"), **wrong_clock(rack, 2400))
    job.survives()
    eventually(lambda: rack.host("worker3").pids(EXECUTOR), seconds=START_S)
    job.survives()


def test_the_host_of_a_broker_is_lost(brokers, job):
    brokers.hosts[1].lose()
    job.survives()
