"""What a Spark session needs for headrace: the right PySpark, and processes that run the right Python.

Spark's JVM looks data sources up, plans and commits with the Python of its own environment: PYSPARK_DRIVER_PYTHON, else
PYSPARK_PYTHON, else `python3`. So these are set before the JVM starts. Where it runs already (spark-submit, a hosted notebook),
they cannot be, and the data source is registered with the session instead: a registered one runs the session's own Python.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from headrace.enumerator.errors import UsageError
from headrace.runners.spark import private
from headrace.runners.spark.planning import PARALLELISM_VARIABLE
from headrace.runners.spark.reports import REPORTS_VARIABLE, own_address
from headrace.runners.spark.version import require_pyspark
from headrace.runners.spark_processes.daemon import ZYGOTE_VARIABLE
from headrace.runners.spark_processes.spark_archive import SUBMIT_OPTIONS, archive_of_spark, use_archive
from headrace.runners.spark_processes.zygote import HASH_SEED, SEED
from headrace.runners.user_cache import cache_directory

log = logging.getLogger(__name__)

WORKERS, DRIVER, GATEWAY = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT"
MASTER, DEFAULT_MASTER = "spark.master", "local[*]"
SPARK_HOME, LAUNCHER_OPTIONS = "SPARK_HOME", "SPARK_LAUNCHER_OPTS"
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FORKING = "spark.headrace.python.fork"
"""The setting that, when it is false, leaves Spark to start its Python processes in its own way."""

PROCESSES = "headrace.runners.spark_processes"
LAUNCHER = "spark-python-"  # what the name of the file starts with that Spark runs as its Python in a warm session
PIPELINES = "headrace_pipeline_"  # what the names of the formats start with that a pipeline registers for itself (pipeline.py)
SETTINGS: dict[str, bool | float | int | str | None] = {"spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false"}
REDACTION, SPARKS_REDACTION = "spark.sql.redaction.options.regex", "(?i)url"
HIDDEN_OPTIONS = r"(?i)url|user\.info|jaas\.config|keystore\.key|storageOptions|^catalog$"
"""Options that may hold a secret, and are not to be in plans. What names a secret, a password or a token Spark hides itself."""


@dataclass(frozen=True, slots=True)
class DataSourceFormat:
    """`preload` imports what the Python processes of its queries import: a function that is found by its module and name."""

    data_source: type[DataSource]
    preload: Callable[[], None]


class HeadraceBuilder(SparkSession.Builder):
    """Spark's own builder of sessions, for one that finds headrace; a warm one where the master is `local`, Spark's default."""

    def __init__(self, spark_format: DataSourceFormat, *, registers: bool) -> None:
        """`registers`: the JVM would start a Python without headrace."""
        super().__init__()
        self._format, self._registers = spark_format, registers

    def getOrCreate(self) -> SparkSession:  # noqa: N802 - Spark's name
        """The session. Raises UsageError for a warm one on a cluster, and what Spark raises."""
        master = expected_master(private.builder_options(self))
        if master is not None:
            self._check(master)
            _tell_parallelism(os.environ, _local_cores(master))
        os.environ[REPORTS_VARIABLE] = own_address()
        with ExitStack() as started:
            started.enter_context(_quick_launch())
            launcher = self._launcher(master)
            if launcher is not None:
                started.enter_context(_launched_by(launcher))
            session = super().getOrCreate()
        if session.conf.get(REDACTION) == SPARKS_REDACTION:
            session.conf.set(REDACTION, HIDDEN_OPTIONS)
        context = private.active_context()
        if context is None:
            return session  # of Spark Connect
        try:
            self._check(str(context.master))
            if launcher is not None and not is_local(str(context.master)):
                raise UsageError(f"the session's master is {context.master}, by other means than the builder's: name it there")
        except UsageError:
            session.stop()
            raise
        if self._registers:
            self._register(session, context, context.defaultParallelism)
        elif (cores := _local_cores(str(context.master))) is not None and _was_told(context) != str(cores):
            self._register(session, context, cores)  # the JVM is an earlier session's, or had started when the master was known
        return session

    def _register(self, session: SparkSession, context: SparkContext, parallelism: int) -> None:
        """A data source that is registered has its own environment, and not that of the JVM."""
        _tell_parallelism(context.environment, parallelism)
        context.environment[REPORTS_VARIABLE] = own_address()
        session.dataSource.register(self._format.data_source)

    def _launcher(self, master: str | None) -> Path | None:
        """What Spark is to run as its Python; None for what it is given already."""
        if private.builder_options(self).get(FORKING, "true").lower() == "false" or not _may_fork(master):
            return None
        return _warm_python(self._format.preload)

    def _check(self, master: str) -> None:
        """Raise UsageError where a session with this master is not what was asked for."""


class WarmBuilder(HeadraceBuilder):
    """For a session that is to be a warm one, or none."""

    def __init__(self, spark_format: DataSourceFormat, *, registers: bool) -> None:
        """Starts the process that Spark's are forked from, while the caller continues."""
        super().__init__(spark_format, registers=registers)
        self._started = _warm_python(spark_format.preload)

    def _launcher(self, master: str | None) -> Path | None:
        return self._started

    def _check(self, master: str) -> None:
        if not is_local(master):
            raise UsageError(
                f"warm_session_builder() is for sessions on one machine (local[...]), and the master is {master}: its "
                "Python processes would be looked for on machines that do not have them. Use session_builder()"
            )


def session_builder(spark_format: DataSourceFormat) -> SparkSession.Builder:
    """See `headrace.spark.session_builder`. `spark_format`: what its sessions find, and its Python processes have loaded."""
    return _builder(HeadraceBuilder, spark_format)


def warm_session_builder(spark_format: DataSourceFormat) -> SparkSession.Builder:
    if GATEWAY in os.environ:
        log.warning(
            "the JVM runs already, so this session starts as ever: warm_session_builder() cannot help under spark-submit"
        )
        return session_builder(spark_format)
    _ = archive_of_spark().file  # raises without Java, which is not to wait for the session
    return _builder(WarmBuilder, spark_format)


def _builder(kind: type[HeadraceBuilder], spark_format: DataSourceFormat) -> SparkSession.Builder:
    require_pyspark()
    found = os.environ.get(DRIVER) or os.environ.get(WORKERS)
    asked = found or ("python3" if GATEWAY in os.environ else sys.executable)
    is_found = _has_headrace(asked)
    os.environ.setdefault(WORKERS, sys.executable)
    if not is_found:
        os.environ[DRIVER] = sys.executable
    active = private.active_context()
    if active is not None and not _has_headrace(active.pythonExec):
        raise UsageError(
            f"the active Spark session runs {active.pythonExec} in its workers, which cannot import headrace: "
            f"stop it and set PYSPARK_PYTHON, for instance to {sys.executable}, before it starts"
        )
    _warn_of_two_paths(os.environ[WORKERS], os.environ.get(DRIVER))
    return kind(spark_format, registers=GATEWAY in os.environ and not is_found).config(map=SETTINGS)


def _warn_of_two_paths(workers: str, driver: str | None) -> None:
    """Where the executors' Python is not on this machine, as from `--archives`, no path is valid on both sides."""
    if driver is not None and driver != workers and shutil.which(workers) is None:
        log.warning(
            "Spark plans and reads a Python data source with one path, here PYSPARK_DRIVER_PYTHON (%s); PYSPARK_PYTHON (%s) is "
            "not on this machine. Tasks fail unless %s is on the executors, too: make one path valid on both sides",
            driver,
            workers,
            driver,
        )


@functools.cache
def _has_headrace(python: str) -> bool:
    """Whether this is a Python (`jupyter` and `ipython` are none) that can import headrace. Runs it, unless it is this one."""
    found = shutil.which(python)
    if found is None:
        return False
    if Path(found).absolute() == Path(sys.executable).absolute():
        return True
    try:
        done = subprocess.run(  # noqa: S603 - what Spark would run
            [found, "-c", _PROBE], stdin=subprocess.DEVNULL, capture_output=True, timeout=60.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == b"found"


_PROBE = """\
import importlib.util, sys
if sys.argv == ["-c"] and importlib.util.find_spec("headrace") and importlib.util.find_spec("pyspark_headrace"):
    print("found")
"""


def _was_told(context: SparkContext) -> str | None:
    """The parallelism that the session's Python processes are given: by its JVM, or the data source registered with it."""
    reported: str | None = context.environment.get(PARALLELISM_VARIABLE)
    return private.jvm_variable(context, PARALLELISM_VARIABLE) if reported is None else reported


def told_parallelism_of(session: SparkSession) -> int | None:
    """The tasks that the session runs at once, as its Python processes are given; None where they are not, or over Connect."""
    context = private.active_context()
    if context is None or not isinstance(session, SparkSession):
        return None
    reported = _was_told(context)
    return int(reported) if reported and reported.isdecimal() else None


def expected_master(options: Mapping[str, Any]) -> str | None:
    """The master of a session with these options; None where it is decided elsewhere, or there is a session.

    Spark takes the option, else spark-submit's, else its configuration's, else the variable MASTER, else `local[*]`.
    """
    if (given := options.get(MASTER)) is not None:
        return str(given)
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    is_submitted = GATEWAY in os.environ or any(word in arguments for word in ("master", "remote", "properties-file"))
    is_remote = "spark.remote" in options or "SPARK_REMOTE" in os.environ
    if is_submitted or is_remote or _has_configuration() or private.active_context() is not None:
        return None
    return os.environ.get("MASTER", DEFAULT_MASTER)


def _has_configuration() -> bool:
    """Whether Spark has files that may set a master. PySpark's own package has none."""
    home = os.environ.get(SPARK_HOME) or Path(pyspark.__file__).parent
    folder = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"))
    return any((folder / name).is_file() for name in ("spark-defaults.conf", "spark-env.sh"))


def why_cold(session: object) -> str | None:
    """Why a takeover in this session waits for Python processes that Spark starts then; None for a warm session."""
    context = private.active_context()
    if context is None or not isinstance(session, SparkSession):
        return "it is a session of Spark Connect"
    if Path(context.pythonExec).name.startswith(LAUNCHER):
        return None
    own_way = "Spark starts its Python processes in its own way"
    return own_way if is_local(str(context.master)) else f"its master is {context.master}"


def is_local(master: str) -> bool:
    """Whether a session with this master is in one process of this machine, so that it may be a warm one."""
    return _local_cores(master) is not None


def _local_cores(master: str) -> int | None:
    """The tasks that a `local` master runs at once; None for any other."""
    match = re.fullmatch(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*[0-9]+\s*)?\])?", master)
    if match is None:
        return None
    return os.cpu_count() if match[1] == "*" else int(match[1] or 1)


def _tell_parallelism(environment: MutableMapping[str, str], parallelism: int | None) -> None:
    if parallelism is None:
        environment.pop(PARALLELISM_VARIABLE, None)
    else:
        environment[PARALLELISM_VARIABLE] = str(parallelism)


def _may_fork(master: str | None) -> bool:
    """Whether all of the session is known to be on this machine, and of one Python."""
    if sys.platform != "linux" or GATEWAY in os.environ or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        return False
    is_here = master is not None and is_local(master)
    return is_here and shutil.which(os.environ[WORKERS]) == shutil.which(os.environ.get(DRIVER, os.environ[WORKERS]))


@contextmanager
def _launched_by(launcher: Path) -> Iterator[None]:
    """Have Spark run the launcher as its Python, in a session that starts meanwhile. Later ones start as usual."""
    with environment_kept(WORKERS, DRIVER, SUBMIT_OPTIONS):
        os.environ[WORKERS] = str(launcher)
        os.environ.pop(DRIVER, None)
        with suppress(UsageError):  # without Java: then Spark says so
            use_archive()
        yield


@contextmanager
def _quick_launch() -> Iterator[None]:
    """Have Spark's scripts start the JVM sooner, in a session that starts meanwhile.

    They run a Python to find out where PySpark is, and then a JVM that says only how the real one is to be started: with these
    options, from the jar that it is in, not from the one behind 200 others that it would be looked for in.
    """
    home = Path(pyspark.__file__).parent
    jars = sorted((home / "jars").glob("spark-launcher_*.jar"))
    with environment_kept(LAUNCHER_OPTIONS, SPARK_HOME):
        os.environ.setdefault(SPARK_HOME, str(home))
        if os.environ[SPARK_HOME] == str(home) and jars and " " not in str(home):
            os.environ.setdefault(LAUNCHER_OPTIONS, f"{QUICK_JVM} -Xbootclasspath/a:{jars[0]}")
        yield


@contextmanager
def environment_kept(*names: str) -> Iterator[None]:
    """These variables are afterwards what they are now, whatever is done to them meanwhile."""
    before = {name: os.environ[name] for name in names if name in os.environ}
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


@functools.cache
def _warm_python(preload: Callable[[], None]) -> Path | None:
    """What Spark shall run as its Python, once the process is started that daemons are forked from; None where that fails.

    `spark.python.daemon.module` would not do: Spark heeds it for tasks, and not where it plans, writes and commits.
    """
    python = os.environ[WORKERS] if _has_headrace(os.environ[WORKERS]) else sys.executable
    try:
        launcher = _launcher(python)
        _start_zygote(python, preload)
    except (OSError, RuntimeError) as error:
        log.warning("Spark's Python processes start as ever, since no process can be made that they are forked from: %s", error)
        return None
    return launcher


def _launcher(python: str) -> Path:
    """What Spark runs as its Python. In the cache, for all sessions: nothing that ends may remove it. Raises OSError."""
    text = _LAUNCHER.format(python=shlex.quote(python), daemon=f"{PROCESSES}.daemon")
    launcher = cache_directory() / f"{LAUNCHER}{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not launcher.is_file() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        made = launcher.with_name(f"{launcher.name}.{os.getpid()}")
        made.write_text(text)
        made.chmod(0o700)
        made.rename(launcher)
    if not os.access(launcher, os.X_OK):
        raise PermissionError(f"{launcher} cannot be run")
    return launcher


def _start_zygote(python: str, preload: Callable[[], None]) -> None:
    """Start the process that daemons are forked from, which ends when the pipe to it closes, and name it to them."""
    address = Path(tempfile.mkdtemp(prefix="headrace-zygote-"), "socket")
    command = [python, "-m", f"{PROCESSES}.zygote", str(address), f"{preload.__module__}:{preload.__qualname__}"]
    environment = {**os.environ, HASH_SEED: SEED, "OMP_NUM_THREADS": "1"}  # as Spark sets them for its workers
    _alive.append(
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own
    )
    os.environ[ZYGOTE_VARIABLE] = str(address)


def end_processes(timeout_s: float) -> None:
    """End the JVM that this process has started, and the process that its Python daemons are forked from: they remove their
    temporary files, within this many seconds. For a process that is about to end without its own clean-up."""
    started = [process for process in (private.jvm_process(), *_alive) if process is not None]
    for process in started:
        if process.stdin is not None:
            process.stdin.close()  # at which they end
    deadline = time.monotonic() + timeout_s
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


_LAUNCHER = """\
#!/bin/sh
case "$1 $2" in
  "-m pyspark.daemon" | "-m pyspark.sql.streaming.python_streaming_source_runner")
    shift
    set -- -m {daemon} "$@" ;;
esac
exec {python} "$@"
"""

_alive: list[subprocess.Popen[bytes]] = []  # keeps the pipes open for as long as this process is alive
