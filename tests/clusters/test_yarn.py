"""Jobs on YARN with their checkpoints in HDFS: Hadoop's servers, brokers and drivers each on its own host."""

import json
import signal
import sys

import pytest

from tests.clusters.hadoop import Hadoop
from tests.clusters.jobs import BAKED, ON_EXECUTORS, SCRIPT, START_S, Copy, settings
from tests.clusters.rack import wrong_clock
from tests.clusters.servers import SPARK
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.timeout(1800)
EXECUTOR, MASTER = "YarnCoarseGrainedExecutorBackend", "yarn.ApplicationMaster"
ON_YARN = {
    **ON_EXECUTORS,
    "spark.yarn.jars": f"local:{SPARK}/jars/*",
    "spark.yarn.am.memory": "512m",
    "spark.executor.instances": "2",
    "spark.executor.memoryOverhead": "256m",
    "spark.executor.maxNumFailures": "100",
}

ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
}


@pytest.fixture(scope="module")
def hadoop(rack):
    return Hadoop(rack, 2)


def running(hadoop, text):
    return sorted(pid for node in hadoop.nodes for pid in node.pids(text))


def test_in_client_mode_executors_come_and_go_and_are_killed(rack, brokers, hadoop):
    driver = rack.host("driver")
    with Copy(rack, brokers, hadoop.url) as copy:
        job = copy.submit(driver, "--master", "yarn", conf={**ON_YARN, **ALLOCATION}, HADOOP_CONF_DIR=str(hadoop.conf), **BAKED)
        copy.advance(job.check, START_S)
        eventually(lambda: "due to idle timeout" in job.text(), "no executor was idle", seconds=START_S, check=job.check)
        eventually(lambda: sum(node.signal(EXECUTOR) for node in hadoop.nodes), "no executor was killed", seconds=START_S)
        copy.advance(job.check)
        copy.check(job.check)
        driver.signal(copy.name)


def test_in_cluster_mode_an_application_master_that_is_killed_is_started_again_and_continues(rack, brokers, hadoop):
    client = rack.host("client")
    conf = {**ON_YARN, "spark.yarn.maxAppAttempts": "2"}
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
        assert sum(node.signal(MASTER) for node in hadoop.nodes)
        assert job.wait(START_S) != 0


class Supervised:
    """A supervisor of the copy on a host, with others on other hosts."""

    def __init__(self, host, copy, hadoop, **variables):
        self.host = host
        lease = ("--lease", copy.bootstrap, "--lease-timeout", "10", "--lease-group", copy.name)
        conf = {**ON_YARN, **copy.conf, "spark.master": "yarn", "spark.executor.instances": "1"}
        words = ("supervise", f"{SCRIPT}:job", *lease, "--status", "/tmp/status.json", *settings(host, conf))
        main = (sys.executable, "-c", "from headrace.cli import main; main()")
        self.program = host.start("supervisor", *main, *words, HADOOP_CONF_DIR=str(hadoop.conf), **BAKED, **variables)

    def is_so(self, state, standby=None):
        file = self.host.folder / "status.json"
        status = json.loads(file.read_text()) if file.exists() else {}
        standbys = [one["state"] for one in status.get("standbys", ())]
        return (status.get("lease") or {}).get("state") == state and standby in (None, *standbys)

    def wait_for(self, state, standby=None):
        eventually(lambda: self.is_so(state, standby), self.program.tail, seconds=START_S, check=self.program.check)


def test_a_standby_on_another_host_continues_when_the_leader_is_cut_off_and_when_its_host_is_lost(rack, brokers, hadoop):
    with Copy(rack, brokers, hadoop.url) as copy:
        first = Supervised(rack.host("driver1"), copy, hadoop)
        copy.advance(first.program.check, START_S)
        first.wait_for("LEADING")
        second = Supervised(rack.host("driver2"), copy, hadoop, **wrong_clock(rack, -3600))
        second.wait_for("FOLLOWING", "ARMED")
        for other in (*brokers.hosts, second.host):
            rack.cut(first.host, other)
        copy.advance(second.program.check)
        second.wait_for("LEADING")
        copy.check(second.program.check)
        for other in (*brokers.hosts, second.host):
            rack.repair(first.host, other)
        first.wait_for("FOLLOWING", "ARMED")
        second.host.lose()
        copy.advance(first.program.check)
        first.wait_for("LEADING")
        copy.check(first.program.check)
