"""A server's process: what pause and kill have done by the time they return."""

import sys
from pathlib import Path

from headrace.runners.waiting import wait_until
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
