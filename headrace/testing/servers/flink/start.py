"""Starting the cluster: its directory, ports, settings and processes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from headrace.enumerator.errors import UsageError
from headrace.testing.servers.flink.programs import commands
from headrace.testing.servers.flink.servers import WORKERS, FlinkCluster
from headrace.testing.servers.flink.settings import Places, flink_settings, write_settings
from headrace.testing.servers.flink.watch import Timeouts
from headrace.testing.servers.ports import reserved_ports
from headrace.testing.servers.processes import ServerProcess, guarded

NEEDED_BY_WORKERS = ("apache_beam", "headrace")


@contextmanager
def start_flink(
    *,
    slots: int = 2,
    state: Path | None = None,
    environment: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    timeout: Timeouts | None = None,
) -> Iterator[FlinkCluster]:
    """Give a Flink cluster that is ready for Beam's pipelines; end it when the context, or this process, ends.

    slots: how many the TaskManager has, by default 2.
    state: the folder for checkpoints and savepoints; by default one that is gone afterwards.
    environment: variables for the Python workers, alongside ours; their Python is the one that runs this.
    config: settings of Flink, which win over ours.
    timeout: how long a job may look well and do nothing, until that is called an error.

    Raises UsageError where Java, PySpark (which downloads) or Beam is missing, PeerError with the end of the log when a server
    fails to start, DeadlineExceededError when one does not serve within 120 s.
    """
    if slots < 1:
        raise UsageError(f"a task manager with {slots} slots: at least 1 is needed")
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="headrace-flink-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        of_workers = worker_environment(directory / "bin", environment or {})
        scratch, state = directory / "scratch", (state or directory / "state").absolute()
        scratch.mkdir()
        ports = stack.enter_context(reserved_ports())
        places = Places(ports.reserve(), ports.reserve(), ports.reserve(), ports.reserve(), state, scratch)
        write_settings(directory / "conf", flink_settings(places, slots, config or {}))
        command_lines = commands(directory / "conf", places)
        logs = directory / "logs"
        logs.mkdir()
        group = stack.enter_context(guarded(directory))
        servers = {
            name: ServerProcess(command, logs / name, group, of_workers if name == WORKERS else None)
            for name, command in command_lines.items()
        }
        cluster = FlinkCluster(servers, places, slots, timeout or Timeouts())
        # Their state is kept or goes with them, so a clean shutdown would only take time.
        stack.callback(cluster.kill_all)
        cluster.start()
        yield cluster


def worker_environment(bin_folder: Path, additions: Mapping[str, str]) -> dict[str, str]:
    """Ours, with a `python` first in the PATH that is our own Python: Beam's pool starts workers by that bare name.

    A script and not a link, as a linked Python would not find its virtual environment. What a worker prints goes to the log:
    the pool gives it a pipe that nothing reads, so that it would block for ever after 64 KB. Raises UsageError when a worker
    of this environment could not start.
    """
    bin_folder.mkdir()
    python = bin_folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@" >&2\n')
    python.chmod(0o755)
    found = {**os.environ, **additions}
    found["PATH"] = f"{bin_folder}{os.pathsep}{found.get('PATH', os.defpath)}"
    _check_workers(found, bin_folder)
    return found


def _check_workers(environment: Mapping[str, str], folder: Path) -> None:
    """A worker that cannot start makes a job wait for ever, without an error: so look now, from a folder that is not ours."""
    code = f"import importlib.util as u; print(*(m for m in {NEEDED_BY_WORKERS!r} if u.find_spec(m) is None))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode:
        raise UsageError(f"the Python of the workers, {sys.executable}, does not start:\n{done.stderr}")
    if missing := done.stdout.split():
        raise UsageError(
            f"Python workers would not start: {sys.executable} cannot import {' and '.join(missing)} outside of this folder. "
            "Install it there (pip install 'headrace[beam]')"
        )
