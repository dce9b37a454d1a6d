"""Jobs on YARN with their checkpoints in HDFS: Hadoop's servers, brokers and drivers each on a host of their own."""

import signal

import pytest

from tests.clusters.hadoop import Hadoop
from tests.clusters.jobs import BAKED, START_S, Copy
from tests.clusters.servers import SPARK
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.timeout(1800)
EXECUTOR, MASTER = "YarnCoarseGrainedExecutorBackend", "yarn.ApplicationMaster"
ON_YARN = {
    "spark.yarn.jars": f"local:{SPARK}/jars/*",
    "spark.yarn.am.memory": "512m",
    "spark.executor.instances": "2",
    "spark.executor.memoryOverhead": "256m",
    "spark.executor.maxNumFailures": "100",
}


@pytest.fixture(scope="module")
def hadoop(rack):
    return Hadoop(rack, 2)


def running(hadoop, text):
    return sorted(pid for node in hadoop.nodes for pid in node.pids(text))


def test_in_client_mode_a_killed_executor_loses_and_repeats_nothing(rack, brokers, hadoop):
    driver = rack.host("driver")
    with Copy(rack, brokers, hadoop.url) as copy:
        job = copy.submit(driver, "--master", "yarn", conf=ON_YARN, HADOOP_CONF_DIR=str(hadoop.conf), **BAKED)
        copy.advance(job.check, START_S)
        assert sum(node.signal(EXECUTOR) for node in hadoop.nodes) >= 2
        copy.advance(job.check)
        copy.check(job.check)
        driver.signal(copy.name)


def test_in_cluster_mode_an_application_master_that_is_killed_is_started_again_and_continues(rack, brokers, hadoop):
    client = rack.host("client")
    conf = {**ON_YARN, "spark.yarn.maxAppAttempts": "3"}
    with Copy(rack, brokers, hadoop.url) as copy:
        job = copy.submit(
            client, "--master", "yarn", "--deploy-mode", "cluster", conf=conf, HADOOP_CONF_DIR=str(hadoop.conf), **BAKED
        )
        copy.advance(job.check, START_S)
        masters = running(hadoop, MASTER)
        assert sum(node.signal(MASTER, signal.SIGKILL) for node in hadoop.nodes) >= 1
        copy.advance(job.check)
        assert eventually(lambda: set(running(hadoop, MASTER)) - set(masters))
        copy.check(job.check)
