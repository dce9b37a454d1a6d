"""Jobs that are submitted from a host, and the check of what they have written."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.clusters.rack import Host, Program, Rack
from tests.clusters.servers import QUICK, SPARK, Brokers
from tests.helpers.python_path import python_path
from tests.helpers.sink_rig import read_all
from tests.soak.standby_soak import Traffic

SCRIPT = Path(__file__).with_name("copy_job.py")
BEAM_SCRIPT, PIPELINE_SCRIPT = (Path(__file__).with_name(f"copy_{name}.py") for name in ("beam", "pipeline"))
RATE = 100.0
START_S, CHANGE_S, DRAIN_S = 500.0, 500.0, 300.0
SMALL = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.extraJavaOptions": QUICK,
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.sql.shuffle.partitions": "2",
}
BAKED = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": python_path()}
"""The environment of a driver whose cluster has headrace at the same path on every host."""

ON_EXECUTORS = {"spark.executorEnv.PYTHONPATH": python_path()}
"""And the setting that has the executors find it there."""


def settings(host: Host, conf: Mapping[str, str]) -> list[str]:
    """Options of `spark-submit` and `headrace supervise`."""
    return [
        word for item in {**SMALL, "spark.driver.host": host.address, **conf}.items() for word in ("--conf", "=".join(item))
    ]


class Copy:
    """Numbers go into a topic without a pause; a job copies them into another; each has to be there once. A context."""

    def __init__(self, rack: Rack, brokers: Brokers, checkpoints: str | None = None, **more: str) -> None:
        """`more`: what the job is given besides."""
        self.name = uuid.uuid4().hex[:8]
        self.bootstrap = brokers.bootstrap
        self.source, self.target = brokers.topic(f"{self.name}-in"), brokers.topic(f"{self.name}-out")
        self.request = json.dumps({
            "bootstrap": brokers.bootstrap, "source": self.source, "target": self.target, "commits": f"{self.name}-commits",
            "checkpoint": f"{checkpoints or rack.shared}/{self.name}", **more,
        })  # fmt: skip
        self.conf = {"spark.copy": self.request}
        self.traffic = Traffic(brokers.bootstrap, self.source, self.target, RATE)

    def __enter__(self) -> Copy:
        self.traffic.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.traffic.__exit__()

    def submit(
        self, host: Host, *words: str | Path, conf: Mapping[str, str] | None = None, script: Path = SCRIPT, **variables: str
    ) -> Program:
        """`spark-submit` with the job on a host, whose log has the name of this copy."""
        options = settings(host, {**self.conf, **(conf or {})})
        return host.start(
            self.name, SPARK / "bin" / "spark-submit", *options, *words, script, SPARK_HOME=str(SPARK), **variables
        )

    def advance(self, check: Callable[[], None] = lambda: None, seconds: float = CHANGE_S) -> float:
        """Wait until what is sent from now on comes out; how long that took, in seconds."""
        started_at = time.monotonic()
        return self.traffic.wait_for(len(self.traffic.sent_at), seconds, check) - started_at

    def survives(self, check: Callable[[], None]) -> None:
        """What comes from now on is copied, and all of it once."""
        self.advance(check)
        self.check(check)

    def check(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until all that is sent by now is out, and compare by another reader: none lost, none twice."""
        sent = len(self.traffic.sent_at)
        assert sent > RATE
        deadline = time.monotonic() + DRAIN_S
        while (missing := sum(number not in self.traffic.seen for number in range(sent))) and time.monotonic() < deadline:
            check()
            time.sleep(0.5)
        assert missing == 0
        found = Counter(map(int, read_all(self.bootstrap, self.target)))
        assert [number for number in range(sent) if number not in found] == []
        assert {number: count for number, count in found.items() if count > 1} == {}
