"""Supervisors of one job as if each were on its own host: apart are their lock folders, and all processes of each.

A host is known by its cache folder, which all of its processes have in their environment.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

from headrace.runners.spark.supervision.process_tree import members, tree_of
from headrace.runners.user_cache import cache_directory
from tests.soak.standby_soak import SupervisedJob


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
