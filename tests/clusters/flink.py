"""A session cluster of Flink on the hosts of a rack, for Beam: each task manager with its own pool of Python workers."""

from __future__ import annotations

from headrace.testing.servers.flink.programs import commands
from headrace.testing.servers.flink.rest import FlinkRest
from headrace.testing.servers.flink.servers import JOB_MANAGER, JOB_SERVER, TASK_MANAGER, WORKERS, FlinkCluster
from headrace.testing.servers.flink.settings import Places, flink_settings, write_settings
from headrace.testing.servers.flink.start import worker_environment
from headrace.testing.servers.flink.watch import Timeouts
from tests.clusters.rack import Host, Program, Rack, listening
from tests.helpers.python_path import python_path
from tests.helpers.waiting import eventually

SLOTS = 2
START_S = 240.0


class Flink:
    """A job manager and Beam's job server on one host, and task managers on others, whose ids are the names of the hosts."""

    def __init__(self, rack: Rack, managers: int) -> None:
        self.master = rack.host("flink")
        self.managers = [rack.host(f"taskmanager{number}") for number in range(1, managers + 1)]
        folder = rack.shared / "flink"
        folder.mkdir()
        places = Places(rpc=6123, rest=8081, job_server=8099, workers=8098, state=folder / "state", scratch=folder)
        everywhere = dict.fromkeys(("jobmanager.bind-host", "rest.bind-address", "taskmanager.bind-host"), "0.0.0.0")
        here = dict.fromkeys(("jobmanager.rpc.address", "rest.address"), self.master.address)
        spread = {"cluster.evenly-spread-out-slots": "true", "io.tmp.dirs": "/tmp"}
        write_settings(folder / "conf", flink_settings(places, SLOTS, {**everywhere, **here, **spread}))
        self._commands = commands(folder / "conf", places)
        found = worker_environment(folder / "bin", {"PYTHONPATH": python_path()})
        self._workers = {name: found[name] for name in ("PATH", "PYTHONPATH")}
        self.options = FlinkCluster({}, places, SLOTS, Timeouts()).options(checkpoint_ms=1000)
        """Of a pipeline, submitted from the job manager's host, for which one task manager has the slots."""
        self.rest = FlinkRest(self.master.address, places.rest)
        """Flink's REST interface."""
        master = self.master.start("jobmanager", *self._commands[JOB_MANAGER])
        self.master.start("jobserver", *self._commands[JOB_SERVER])
        programs = [master, *(program for host in self.managers for program in self._start(host))]
        listening(self.master, places.rest, master)
        eventually(
            lambda: {host.name for host in self.managers} == self.rest.task_managers(),
            "no task manager", seconds=START_S, check=lambda: [program.check() for program in programs],
        )  # fmt: skip

    def _start(self, host: Host) -> tuple[Program, Program]:
        options = (f"-Dtaskmanager.host={host.address}", f"-Dtaskmanager.resource-id={host.name}")
        pool = host.start("workers", *self._commands[WORKERS], **self._workers)
        return pool, host.start("taskmanager", *self._commands[TASK_MANAGER], *options)
