"""A job with supervisors on two hosts, on real Spark, Kafka and HDFS: its leader is paused, wakes, and loses its power."""

import signal
import time
from contextlib import ExitStack

import pytest

from tests.helpers.hdfs import started_hdfs
from tests.helpers.lease_hosts import Host
from tests.soak.standby_soak import ARMED_S, START_S, TAKEOVER_S, Traffic, outcome

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

RATE = 500.0


@pytest.fixture
def hdfs(tmp_path):
    folder = tmp_path / "hdfs"
    folder.mkdir()
    with started_hdfs(folder) as address:
        yield address


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
