"""A job with supervisors on two hosts, on real Spark, Kafka and HDFS: its leader is paused, wakes, and loses its power."""

import os
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from headrace.enumerator.errors import PeerError, RetriableError
from headrace.runners.spark.supervision.process_tree import members, tree_of
from headrace.runners.user_cache import cache_directory, find_java
from headrace.runners.waiting import wait_until
from headrace.testing.servers.ports import HOST, reserved_ports
from headrace.testing.servers.processes import JAVA_OPTIONS, ServerProcess, guarded
from tests.helpers.hadoop import hadoop_classes
from tests.soak.standby_soak import ARMED_S, START_S, TAKEOVER_S, SupervisedJob, Traffic, outcome

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
RATE = 500.0


@pytest.fixture
def hdfs(tmp_path):
    """The address of name node and data node of Hadoop's own test jar, in one Java process with Spark's jars."""
    folder = tmp_path / "hdfs"
    folder.mkdir()
    details, log = folder / "details.json", folder / "hdfs.log"

    def check():
        if not server.is_running:
            raise PeerError(f"HDFS has ended: {log.read_text(errors='replace')[-3000:]}")
        if not details.exists() or not details.read_text().strip():
            raise RetriableError("it has not written where it is")

    with reserved_ports() as ports, guarded(folder) as group:
        port = ports.reserve()
        java = (find_java("HDFS"), *JAVA_OPTIONS, "-Xmx512m", f"-Dtest.build.data={folder}", f"-Dhadoop.tmp.dir={folder}")
        program = ("-cp", hadoop_classes(), "org.apache.hadoop.test.MiniDFSClusterManager")
        options = ("-format", "-datanodes", "1", "-nnport", str(port), "-writeDetails", details)
        server = ServerProcess([*java, *program, *options], log, group)
        server.start()
        try:
            wait_until(check, "HDFS has not started")
            yield f"hdfs://{HOST}:{port}"
        finally:
            server.kill()


class Host(SupervisedJob):
    """One with a supervisor of the job `of`, or of a new job. `arguments`: more of the command line."""

    def __init__(self, directory: Path, bootstrap: str, checkpoint: str, *arguments: str, of: "Host | None" = None) -> None:
        directory.mkdir()
        super().__init__(directory, bootstrap, standbys=0, checkpoint=checkpoint, like=of)
        self._command += arguments
        self._cache = directory / "cache"
        self._variables = {"XDG_CACHE_HOME": str(self._cache)}
        (self._cache / "headrace").mkdir(parents=True)
        for entry in cache_directory().iterdir():  # what is downloaded and prepared, but for the locks
            if entry.name != "locks":
                (self._cache / "headrace" / entry.name).symlink_to(entry)

    def pids(self) -> list[int]:
        assert self.process is not None
        status = self.status()
        drivers = [driver for driver in (status.get("active"), *status.get("standbys", ())) if driver and driver["pid"]]
        trees = {tree for driver in drivers if (tree := tree_of(driver["pid"])) is not None}
        return [self.process.pid, *{pid for tree in trees for pid in members(tree)}]

    def signal_all(self, number: int) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def lose_power(self) -> None:
        self.signal_all(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def state(self) -> str:
        return str((self.status().get("lease") or {}).get("state"))

    def follows(self) -> bool:
        return self.state() == "FOLLOWING" and [one["state"] for one in self.status()["standbys"]] == ["ARMED"]


def test_a_follower_takes_over_from_a_paused_leader_which_follows_when_it_wakes_and_takes_over_from_a_dead_one(
    tmp_path, broker, hdfs, capsys
):
    arguments = ["--lease", broker.bootstrap, "--lease-timeout", "3", "--lease-group", f"lease-{tmp_path.name}"]
    checkpoint = f"{hdfs}/checkpoint"
    outages_s = []
    with ExitStack() as stack:
        one = Host(tmp_path / "one", broker.bootstrap, checkpoint, *arguments)
        other = Host(tmp_path / "other", broker.bootstrap, checkpoint, *arguments, of=one)
        for host in (one, other):
            stack.callback(host.end)
            stack.callback(lambda host=host: host.process and host.process.poll() is None and host.signal_all(signal.SIGKILL))
        one.start()
        traffic = stack.enter_context(Traffic(broker.bootstrap, one.source, one.target, RATE))
        traffic.wait_for(0, 2 * START_S, one.check)
        assert one.state() == "LEADING"
        other.start()
        other.wait_for(lambda _: other.follows(), ARMED_S)

        started_at, stopped = time.monotonic(), one.pids()
        one.signal_all(signal.SIGSTOP)
        traffic.wait_for(len(traffic.sent_at), TAKEOVER_S, other.check)
        outages_s.append(time.monotonic() - started_at)
        assert other.state() == "LEADING"
        assert len(stopped) > 2

        one.signal_all(signal.SIGCONT)
        one.wait_for(lambda _: one.follows(), ARMED_S)
        traffic.wait_for(len(traffic.sent_at), TAKEOVER_S, other.check)
        assert other.state() == "LEADING"

        started_at = time.monotonic()
        other.lose_power()
        traffic.wait_for(len(traffic.sent_at), TAKEOVER_S, one.check)
        outages_s.append(time.monotonic() - started_at)
        assert one.state() == "LEADING"
        counted = outcome(one, traffic)
    with capsys.disabled():
        print(f"\nthe first commits of later records came {', '.join(f'{took:.1f} s' for took in outages_s)} after")  # noqa: T201
    assert counted["records"] > RATE
    assert {**counted, "records": 0} == {"records": 0, "lost": 0, "foreign": 0, "duplicates": 0}
