"""A server's process: what pause and kill have done by the time they return."""

import sys
from pathlib import Path

from headrace.enumerator.errors import PeerError, UsageError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.kafka.nodes import format_error
from headrace.testing.servers.processes import ServerProcess, guarded

BUSY = """
import hashlib, threading
data = bytes(1 << 22)
def work():
    while True:
        hashlib.sha256(data)
for _ in range(8):
    threading.Thread(target=work).start()
"""


def states(pid: int) -> set[str]:
    """Those of its threads: R runs, S waits, T is stopped."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks}


def test_a_paused_process_stands_still_with_all_of_its_threads(tmp_path: Path) -> None:
    with guarded(tmp_path / "data") as group:
        process = ServerProcess([sys.executable, "-c", BUSY], tmp_path / "log", group)
        process.start()
        pid = process.pid
        assert pid is not None
        wait_until(lambda: len([*Path(f"/proc/{pid}/task").iterdir()]) == 9, "its threads")
        for _ in range(20):
            process.pause()
            assert states(pid) == {"T"}
            process.pause()
            process.resume()
        process.pause()
        process.kill()
        assert process.status == -9
        process.pause()


def test_a_setting_that_kafka_refuses_is_one_line_and_a_mistake_of_the_caller() -> None:
    """Regression: it was a stack trace of Java, of a PeerError."""
    stack = "\tat org.apache.kafka.common.config.ConfigDef.parse(ConfigDef.java:527)\n" * 20
    refused = format_error("node-1", f'Exception in thread "main" org.x.ConfigException: Invalid value x\n{stack}')
    assert (type(refused), str(refused)) == (UsageError, "Kafka refuses a setting of the broker: Invalid value x")
    other = format_error("node-1", f"java.io.IOException: No space left\n{stack}")
    assert (type(other), str(other)) == (
        PeerError,
        "Kafka's StorageTool failed for node-1:\njava.io.IOException: No space left",
    )
