"""Hosts of a rack: each with an address, a name, processes and its own /tmp, at a switch that loses what a test cuts.

A host is a process in new namespaces, which all of its programs share. Namespaces without a name end with their last process,
and their links with them. So a rack leaves nothing behind, also where its test is killed (`guarded`). Needs root, on Linux.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.runners.user_cache import cache_directory
from headrace.testing.servers.processes import guarded, tail

NETWORKS = range(1, 255)
NO_HOST = "02:00:00:00:00:01"
"""A link address that no host has. What is sent there is lost, and no sender gets an error."""

NARROW = ("rate", "512kbit", "burst", "4kb", "limit", "10kb")
"""Of a token bucket filter: what finds ten kilobytes waiting is lost, as at the queue of a router."""

TOOLS = ("gcc", "ip", "tc", "unshare", "nsenter", "mount")
START = """
mount --bind "$1" /tmp && mount --bind "$2" /etc/hosts && hostname "$3" && ip link set lo up && echo up
sleep infinity &
wait
"""
"""The first process of a host. A shell that waits also collects the processes that others have left to it."""


def wrong_clock(rack: Rack, seconds: int) -> dict[str, str]:
    """Variables of programs whose clock is wrong by this. Their pauses and timeouts are as long as ever."""
    library = rack.shared / "wrong_clock.so"
    source = Path(__file__).with_name("wrong_clock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "WRONG_BY": str(seconds)}


def why_none() -> str | None:
    """Why there can be no rack here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a rack of network namespaces needs root on Linux"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"a rack of network namespaces needs {', '.join(missing)}" if missing else None


OF_PYTHON = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


class Host:
    """One host. `folder` is its /tmp as all others see it; paths outside /tmp are those of the machine."""

    def __init__(self, name: str, address: str, init: subprocess.Popen[bytes], folder: Path) -> None:
        self.name, self.address, self.folder = name, address, folder
        self._init, self._programs = init, list[Program]()
        (self.pid,) = (int(pid) for pid in Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split())
        self._namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
        cache = folder / "cache" / "headrace"
        cache.mkdir(parents=True)
        for entry in cache_directory().glob("*"):  # what is downloaded and prepared; locks are a host's own
            if entry.name != "locks":
                (cache / entry.name).symlink_to(entry)

    def command(self, *words: str | Path) -> list[str]:
        """What runs a command on this host, in its /tmp."""
        there = ("--net", "--uts", "--mount", "--pid", f"--wd={self.folder}")
        return ["nsenter", "--target", str(self.pid), *there, "--", *map(str, words)]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Ours, but for what names a Python or its modules; with these, and what Spark and headrace need of a host."""
        ours = {name: value for name, value in os.environ.items() if name not in OF_PYTHON}
        here = {"SPARK_LOCAL_IP": self.address, "XDG_CACHE_HOME": "/tmp/cache", "TMPDIR": "/tmp"}
        return {**ours, **here, **variables}

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def start(self, name: str, *words: str | Path, **variables: str) -> Program:
        """Start a program; what it prints is added to the log of this name."""
        program = Program(self, name, words, variables)
        self._programs.append(program)
        return program

    def commands(self) -> dict[int, str]:
        """This host's processes, but for the first one: the machine's ids, and the command lines."""
        found = {}
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/pid") == self._namespace and pid != self.pid:
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return found

    def pids(self, text: str) -> list[int]:
        """Of those whose command lines have this text."""
        return [pid for pid, command in self.commands().items() if text in command]

    def signal(self, text: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send it to all processes with this text; how many there were."""
        pids = self.pids(text)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(pids)

    def lose(self) -> None:
        """As by a power failure: all processes are gone, and its address does not answer."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._init.wait()
        for program in self._programs:
            program.wait(30)


class Program:
    """A program on a host."""

    def __init__(self, host: Host, name: str, words: Sequence[str | Path], variables: Mapping[str, str]) -> None:
        self.host, self.log = host, host.log(name)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                host.command(*words), env=host.environment(variables), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def status(self) -> int | None:
        """As Popen has it."""
        return self._process.poll()

    def check(self) -> None:
        assert self.status is None, f"{self.log.name} on {self.host.name} has ended with {self.status}:\n{self.tail()}"

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)

    def tail(self) -> str:
        return tail(self.log, 60)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class Rack:
    """Hosts by name, at one switch. Made by `rack`."""

    def __init__(self, folder: Path, group: int) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        """What all hosts see under one path, as a network file system."""
        self.shared.mkdir()
        self._group = group
        self._hosts: dict[str, Host] = {}
        self._names = folder / "hosts"
        self._names.write_text("127.0.0.1 localhost\n")
        self._switch = self._first_process("switch")
        self._network = self._connect_machine()

    def host(self, name: str) -> Host:
        """The host of this name, which is made where there is none."""
        if name not in self._hosts:
            init = self._first_process(name)
            host = Host(name, f"{self._network}.{len(self._hosts) + 2}", init, self.folder / name)
            self._connect(host)
            with self._names.open("a") as names:
                names.write(f"{host.address} {name}\n")
            self._hosts[name] = host
        return self._hosts[name]

    def cut(self, one: Host, other: Host) -> None:
        """From now on what they send to each other is lost, also on connections that exist."""
        for here, there in ((one, other), (other, one)):
            _run("ip", "neigh", "replace", there.address, "lladdr", NO_HOST, "dev", "eth0", "nud", "permanent", at=here.pid)

    def repair(self, one: Host, other: Host) -> None:
        for here, there in ((one, other), (other, one)):
            _run("ip", "neigh", "del", there.address, "dev", "eth0", at=here.pid)

    def slow_down(self, host: Host) -> None:
        """From now on its link is slow in both directions, and loses packets of who sends too much."""
        for at, device in self._ends(host):
            _run("tc", "qdisc", "replace", "dev", device, "root", "tbf", *NARROW, at=at)

    def lost_packets(self, host: Host) -> int:
        """How many a slow link has lost so far."""
        shown = [_run("tc", "-s", "-j", "qdisc", "show", "dev", device, at=at) for at, device in self._ends(host)]
        return sum(queue["drops"] for end in shown for queue in json.loads(end))

    def speed_up(self, host: Host) -> None:
        for at, device in self._ends(host):
            _run("tc", "qdisc", "del", "dev", device, "root", at=at)

    def close(self) -> None:
        for host in self._hosts.values():
            host.lose()
        self._switch.kill()
        self._switch.wait()

    def _first_process(self, name: str) -> subprocess.Popen[bytes]:
        (self.folder / name).mkdir()
        unshare = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*unshare, "sh", "-c", START, "sh", str(self.folder / name), str(self._names), name]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, **streams, stderr=log, process_group=self._group)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"up\n", f"host {name} did not start"
        return process

    def _connect_machine(self) -> str:
        """The switch, and the machine at it under the first address of a network that no other rack has."""
        (switch,) = Path(f"/proc/{self._switch.pid}/task/{self._switch.pid}/children").read_text().split()
        self._switch_pid = int(switch)
        _run("ip", "link", "add", "switch", "type", "bridge", at=self._switch_pid)
        _run("ip", "link", "set", "switch", "up", at=self._switch_pid)
        for number in NETWORKS:
            link = ("link", "add", f"headrace{number}", "type", "veth", "peer", "name", "machine", "netns", switch)
            if subprocess.run(["ip", *link], capture_output=True, check=False).returncode == 0:
                break
        _run("ip", "link", "set", "machine", "master", "switch", "up", at=self._switch_pid)
        _run("ip", "addr", "add", f"10.213.{number}.1/24", "dev", f"headrace{number}")
        _run("ip", "link", "set", f"headrace{number}", "up")
        return f"10.213.{number}"

    def _ends(self, host: Host) -> tuple[tuple[int, str], tuple[int, str]]:
        """Of its link: a process there, and the device."""
        return (host.pid, "eth0"), (self._switch_pid, f"port{host.address.split('.')[-1]}")

    def _connect(self, host: Host) -> None:
        _, (switch, port) = self._ends(host)
        _run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid), at=switch)
        _run("ip", "link", "set", port, "master", "switch", "up", at=switch)
        _run("ip", "addr", "add", f"{host.address}/24", "dev", "eth0", at=host.pid)
        _run("ip", "link", "set", "eth0", "up", at=host.pid)


def _run(*command: str, at: int | None = None) -> str:
    """Run it in the network of a process, by default in the machine's; what it prints."""
    there = [] if at is None else ["nsenter", "--target", str(at), "--net", "--"]
    return subprocess.run([*there, *command], check=True, timeout=30, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def rack() -> Iterator[Rack]:
    # Not in /tmp, which each host has for itself.
    folder = Path(tempfile.mkdtemp(prefix="headrace-rack-", dir="/var/tmp"))
    with guarded(folder) as group:
        made = Rack(folder, group)
        try:
            yield made
        finally:
            made.close()


def listening(host: Host, port: int, program: Program, seconds: float = 240.0) -> str:
    """Wait until the port is served; its address."""
    from headrace.testing.servers.ports import is_listening

    deadline = time.monotonic() + seconds
    while not is_listening(f"{host.address}:{port}"):
        program.check()
        assert time.monotonic() < deadline, f"nothing listens at port {port} of {host.name}:\n{program.tail()}"
        time.sleep(0.1)
    return f"{host.address}:{port}"
