"""Keeps a Flink job's cluster: starts what is missing, as an operator's process manager would, and says what is running.

Nothing is submitted a second time and no process is notified of a death: who leads is ZooKeeper's affair, the restore is
Flink's.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from benchmarks.restore.flink_cluster import REST_LEADER, Command, Places, Programs, client_settings, flink_settings, lay_out
from benchmarks.restore.flink_pair import DRY_RUN_S, Kind, Look, Pair, rest_port
from benchmarks.stored import write_whole
from headrace.enumerator.errors import PeerError, RetriableError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.flink.rest import FlinkRest
from headrace.testing.servers.ports import HOST, Ports, is_listening, reserved_ports
from headrace.testing.servers.processes import ServerProcess, guarded

LOOK_S, CALM_LOOK_S = 0.1, 0.5
"""Between two looks; the latter while a standby waits, so that looking takes no time from the job."""

TURN_S = 0.02
"""Between two looks at which processes live."""

LOG_LINES = 40
Note = Callable[[str], None]


class Lookout:
    """Looks again and again, in its own thread: an answer may be long in coming, and a death must be seen meanwhile."""

    def __init__(self, zookeeper_port: int, rest_ports: Callable[[], Mapping[str, int]]) -> None:
        """`rest_ports` gives every JobManager's there ever was, by name. Raises kazoo's TimeoutError without ZooKeeper."""
        often = KazooRetry(max_tries=-1, delay=LOOK_S, max_delay=LOOK_S)  # by default it waits for up to a minute
        self._zookeeper = KazooClient(f"{HOST}:{zookeeper_port}", connection_retry=often)
        self._zookeeper.start()
        self._rest_ports = rest_ports
        self._job_id: str | None = None
        self.latest = Look()
        """What was seen last."""
        self.pause_s = LOOK_S
        """Until the next look."""
        threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        while True:
            self.latest = self._look()
            time.sleep(self.pause_s)

    def _look(self) -> Look:
        ports = self._rest_ports()
        serving = frozenset(name for name, port in ports.items() if is_listening(f"{HOST}:{port}"))
        leader = self._leader(ports)
        if leader is None or leader not in serving:
            return Look(leader, serving)
        rest = FlinkRest(HOST, ports[leader])
        try:
            self._job_id = self._job_id or next(iter(rest.job_ids()), None)
            running_on = frozenset() if self._job_id is None else rest.hosts(self._job_id)
            return Look(leader, serving, rest.free_slots(), running_on)
        except (RetriableError, PeerError):  # it leads and has no job yet: 503, or 404
            return Look(leader, serving)

    def _leader(self, ports: Mapping[str, int]) -> str | None:
        with suppress(KazooException, KazooTimeoutError):
            port = rest_port(self._zookeeper.get(REST_LEADER)[0])
            return next((name for name, its in ports.items() if its == port), None)
        return None


class Cluster:
    """The processes, by name; one that was started has its own name for ever. Used by one thread, but for `rest_ports`."""

    def __init__(self, programs: Programs, logs: Path, ports: Ports, group: int) -> None:
        """Starts nothing. `group`: a guardian's process group."""
        self._programs, self._logs, self._ports, self._group = programs, logs, ports, group
        self._processes: dict[str, tuple[Kind, ServerProcess]] = {}
        self._rest_ports: dict[str, int] = {}

    def start_zookeeper(self, port: int) -> None:
        """Start it, and wait until it serves. Raises DeadlineExceededError when it does not."""
        server = ServerProcess(self._programs.zookeeper(), self._logs / "zookeeper.log", self._group)
        server.start()

        def serves() -> None:
            if not is_listening(f"{HOST}:{port}"):
                raise RetriableError(server.log_tail(LOG_LINES))

        wait_until(serves, "ZooKeeper does not serve")

    def start(self, kind: Kind) -> str:
        """Start one more; its name."""
        name = f"{kind.value.replace(' ', '-')}-{1 + len(self._processes)}"
        process = ServerProcess(self._command(kind, name), self._logs / f"{name}.log", self._group)
        process.start()
        self._processes[name] = (kind, process)
        return name

    def stop(self) -> None:
        """End them all, by SIGTERM."""
        for _, process in self._processes.values():
            process.stop()

    def living(self) -> dict[str, Kind]:
        """Those that run now."""
        return {name: kind for name, (kind, process) in self._processes.items() if process.is_running()}

    def pids(self) -> dict[str, int]:
        """Of every process there ever was."""
        return {name: process.pid for name, (_, process) in self._processes.items() if process.pid is not None}

    def rest_ports(self) -> Mapping[str, int]:
        """Of every JobManager there ever was."""
        return dict(self._rest_ports)

    def log_tails(self) -> str:
        """The ends of what they wrote."""
        return "\n".join(process.log_tail(LOG_LINES) for _, process in self._processes.values())

    def _command(self, kind: Kind, name: str) -> Command:
        if kind is Kind.TASK_MANAGER:
            return self._programs.task_manager(name)
        self._rest_ports[name] = self._ports.reserve()
        return self._programs.job_manager(self._rest_ports[name])


class Supervision:
    """The loop: who is alive, what is missing, and the status for the harness. `note` is informed what happens."""

    def __init__(self, cluster: Cluster, lookout: Lookout, slots: int, status: Path, note: Note) -> None:
        self._cluster, self._lookout, self._slots, self._status, self._note = cluster, lookout, slots, status, note
        self._living: Mapping[str, Kind] = {}
        self._running_since: float | None = None
        self._seen = Look()
        self._written: dict[str, Any] = {}

    def turn(self, now: float) -> float:
        """Look once; for how many seconds the job has been running. The status is written before anything is started."""
        living, look = self._cluster.living(), self._lookout.latest
        pair = Pair(living, look, self._slots)
        self._note_changes(living, look)
        self._running_since = (now if self._running_since is None else self._running_since) if pair.runs() else None
        running_for_s = 0.0 if self._running_since is None else now - self._running_since
        self._tell(pair)
        for kind in pair.missing(running_for_s):
            self._note(f"{self._cluster.start(kind)} is started")
        return running_for_s

    def _note_changes(self, living: Mapping[str, Kind], look: Look) -> None:
        for name in self._living.keys() - living.keys():
            self._note(f"{name} died")
        if look.leader != self._seen.leader:
            self._note(f"{look.leader} leads")
        for name in look.free.keys() - self._seen.free.keys():
            self._note(f"{name} has registered")
        if look.running_on != self._seen.running_on:
            self._note(f"the job runs on {', '.join(sorted(look.running_on)) or 'none'}")
        self._living, self._seen = living, look

    def _tell(self, pair: Pair) -> None:
        status = pair.status(self._cluster.pids())
        if status != self._written:
            write_whole(self._status, json.dumps(status))
            self._written = status
        self._lookout.pause_s = CALM_LOOK_S if pair.has_standby() else LOOK_S


def supervise(settings: Mapping[str, Any], submit: Path, status: Path, note: Note) -> None:
    """Until killed. `settings`: a Job (systems.py) with "python", "home" and "jar"; `submit` is run by that Python, once.

    Raises RuntimeError when the job cannot be submitted, or its classes are not kept.
    """
    state = Path(settings["state"])
    with ExitStack() as stack:
        ports = stack.enter_context(reserved_ports())
        places = Places(state, state.parent / "cluster", ports.reserve())
        slots = int(settings["parallelism"])
        lay_out(places, Path(settings["home"]), Path(settings["jar"]), flink_settings(places, slots))
        group = stack.enter_context(guarded(places.scratch))
        programs = Programs(places)
        cluster = Cluster(programs, places.logs, ports, group)
        cluster.start_zookeeper(places.zookeeper_port)
        note("zookeeper")
        supervision = Supervision(cluster, Lookout(places.zookeeper_port, cluster.rest_ports), slots, status, note)
        supervision.turn(time.monotonic())
        _submit(settings, submit, places, cluster)
        note("query")
        while supervision.turn(time.monotonic()) < DRY_RUN_S:
            time.sleep(TURN_S)
        cluster.stop()
        if not programs.kept():
            raise RuntimeError(f"the first processes did not keep their classes: {cluster.log_tails()}")
        note("classes are kept")
        while True:
            supervision.turn(time.monotonic())
            time.sleep(TURN_S)


def _submit(settings: Mapping[str, Any], submit: Path, places: Places, cluster: Cluster) -> None:
    """By Flink's client, which ends when the cluster has the job."""
    # PyFlink goes by the other folders only where it is notified of the first.
    folders = {
        "FLINK_HOME": settings["home"],
        "FLINK_LIB_DIR": str(places.library),
        "FLINK_CONF_DIR": str(places.configuration),
    }
    text = json.dumps({**settings, "client": client_settings(places)})
    done = subprocess.run([settings["python"], submit, text], env={**os.environ, **folders}, check=False)  # noqa: S603 - our own command
    if done.returncode:
        raise RuntimeError(f"the job could not be submitted; the ends of the cluster's logs:\n{cluster.log_tails()}")
