"""What a standby does and what it may not: the lock with real processes, dry runs on PySpark's own classes. No JVM here."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import MagicMock, Mock, patch

import pyarrow as pa
import pytest
from py4j.java_gateway import CallbackServer, CallbackServerParameters
from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql.catalog import Catalog
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.merge import MergeIntoWriter
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.enumerator.errors import FencedError, RetriableError, UsageError
from headrace.kafka import KafkaSink
from headrace.runners.restarts import FixedDelay
from headrace.runners.spark import pipeline
from headrace.runners.spark.metrics.exporter import metrics
from headrace.runners.spark.offset_log import OffsetLog
from headrace.runners.spark.pipeline import PipelineSinkFormat, PipelineWrite
from headrace.runners.spark.supervision import driver as drivers
from headrace.runners.spark.supervision import dry_run as dry_runs
from headrace.runners.spark.supervision import dry_run_source, process_tree
from headrace.runners.spark.supervision import lock as locks
from headrace.runners.spark.supervision.core import DriverEnd, Ending, SupervisionLimits
from headrace.runners.spark.supervision.driver import DriverOrder, refuse_connect
from headrace.runners.spark.supervision.dry_run import DryRun
from headrace.runners.spark.supervision.dry_run_source import DryRunWriter
from headrace.runners.spark.supervision.jobs import FunctionName
from headrace.runners.spark.supervision.lock import CheckpointLock
from headrace.runners.spark.supervision.process_tree import TREE_VARIABLE, Process, new_tree, supervisor_of, tree_of
from headrace.runners.spark.supervision.query_hooks import StartedQuery, intercepted
from headrace.runners.spark.supervision.standby import StandbyCore, StandbyLimits
from headrace.runners.spark.supervision.status import StatusFile
from headrace.runners.spark.supervision.supervisor import supervise
from headrace.runners.spark.supervision.takeover import Takeover, check_peers, check_standby, checkpoint_of, resolved
from headrace.runners.spark.writers import StreamWriter
from headrace.sinks import FunctionSink
from headrace.spark.connectors import reading
from headrace.spark.format import headrace_format
from headrace.spark.kafka_read import Mode, kafka_read
from headrace.testing import FakeKafka
from pyspark_headrace import DefaultSource
from tests.helpers import supervised_job
from tests.helpers.python_path import python_path
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.full, pytest.mark.skipif(sys.platform != "linux", reason="supervision is for Linux")]

# --- takeovers, with a query that is in for Spark's -----------------------------------------------------------------


def test_a_standby_takes_over_when_the_active_is_killed_and_the_next_one_warms(tmp_path, monkeypatch):
    monkeypatch.setenv("HISTORY", str(tmp_path / "history"))
    monkeypatch.setenv("STATUS", str(tmp_path / "status"))
    monkeypatch.setenv("PYTHONPATH", python_path())
    job = FunctionName(supervised_job.__file__, "is_taken_over")
    order = DriverOrder(job, FunctionName.of(headrace_format), FunctionName(supervised_job.__file__, "session"), standbys=1)
    core = StandbyCore(FixedDelay(attempts=1, delay_s=3600.0), SupervisionLimits(), StandbyLimits(1, settle_s=0.0))
    status = StatusFile(tmp_path / "status")
    assert supervise(order, lambda: core, status) == DriverEnd(Ending.STOPPED, "it was stopped")
    shown = json.loads(status.path.read_text())
    assert (shown["takeovers"], shown["drivers_started"]) == (1, 3)
    assert shown["last_failure"] == "the driver was killed by SIGKILL"
    assert shown["standbys"] == []
    pids = [line.split()[2] for line in (tmp_path / "history").read_text().splitlines() if line.startswith("runs in")]
    assert len(set(pids)) == 2


# --- the lock -----------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from headrace.runners.spark.supervision.lock import CheckpointLock
CheckpointLock(sys.argv[1]).take(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@contextmanager
def holder(location, tree, **environment):
    """A driver's process that has the lock."""
    command, pipe = [sys.executable, "-c", HOLD, location, tree], subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": python_path(), TREE_VARIABLE: tree, **environment}
    held = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
    try:
        assert held.stdout.readline() == "held\n"
        yield held
    finally:
        held.kill()
        held.communicate()


@contextmanager
def running(*command, tree="", **settings):
    """A process of this process tree, by default one that sleeps."""
    environment = {**os.environ, TREE_VARIABLE: tree}
    with subprocess.Popen(command or ["sleep", "600"], env=environment, start_new_session=True, **settings) as process:
        try:
            eventually(lambda: process_tree._environment(process.pid) or process.poll() is not None)  # it is being executed
            yield process
        finally:
            process.kill()


def ended():
    """A process that was and is no more."""
    with running() as gone:
        return Process.of(gone.pid)


def tree_by(supervisor):
    """A process tree's name that this supervisor of this host would give."""
    return "-".join([str(supervisor.pid), str(supervisor.started), *new_tree().split("-")[2:]])


@pytest.fixture
def place(tmp_path):
    """Where a checkpoint is to be."""
    return str(tmp_path / "c")


def test_a_checkpoint_that_a_living_supervisor_has_is_refused_by_its_name(place):
    with running() as supervisor, holder(place, tree_by(Process.of(supervisor.pid))):
        with pytest.raises(FencedError, match=f"another supervisor, process {supervisor.pid}, runs this job"):
            CheckpointLock(place).take(new_tree())
        CheckpointLock(f"{place}-another").take(new_tree())  # another checkpoint


def test_an_orphan_that_is_stopped_loses_the_lock_with_its_lifetime_and_never_continues(place):
    with holder(place, tree_by(ended())) as held:
        held.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, held.pid, os.WSTOPPED | os.WNOWAIT)
        CheckpointLock(place).take(new_tree())
        assert held.wait() == -signal.SIGKILL


def test_of_a_process_tree_whose_driver_is_dead_the_rest_is_killed_before_the_lock_counts(place):
    tree = tree_by(ended())
    with holder(place, tree):
        pass  # and is killed
    program, pipe = ("sh", "-c", "echo there; read line"), subprocess.PIPE
    with running(*program, tree=tree, stdin=pipe, stdout=pipe) as jvm:
        assert jvm.stdout.readline() == b"there\n"  # so it has its environment, which a program that just starts has not
        CheckpointLock(place).take(new_tree())
        assert jvm.wait() == -signal.SIGKILL


def test_a_lock_of_a_process_that_is_no_driver_is_refused(place):
    with holder(place, ""), pytest.raises(FencedError, match="not a driver"):
        CheckpointLock(place).take(new_tree())


def test_a_process_tree_says_who_has_started_it_and_a_process_of_it_says_its_process_tree(place):
    tree = new_tree()
    assert supervisor_of(tree).process == Process.of(os.getpid())
    assert supervisor_of(tree).process.is_alive
    assert not Process(os.getpid(), 0).is_alive
    with holder(place, tree) as child:  # which has said something, so it has its environment
        assert tree_of(child.pid) == tree
    assert tree_of(child.pid) is None


def test_one_that_is_just_being_replaced_by_another_program_is_killed_too(monkeypatch):
    """For a moment it has no environment."""
    tree = new_tree()
    looks = [[], [Process(7, 1)], [], []]
    monkeypatch.setattr(process_tree, "_living", lambda *_: looks.pop(0))
    monkeypatch.setattr(process_tree, "_kill", lambda process: None)
    assert process_tree.kill_tree(tree) == 1
    assert looks == []


LOSES_ITS_ENVIRONMENT = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
bare = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={}, start_new_session=True)
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])
with open("/proc/self/mem", "r+b", 0) as memory:  # as setproctitle does
    memory.seek(start)
    memory.write(bytes(end - start))
print(child.pid, bare.pid, flush=True)
sys.stdin.read()
"""


def loses_its_environment(tree):
    program, pipe = (sys.executable, "-c", LOSES_ITS_ENVIRONMENT), subprocess.PIPE
    return running(*program, tree=tree, stdin=pipe, stdout=pipe, text=True)


def test_a_driver_that_has_written_over_its_environment_is_still_of_its_process_tree():
    """And so is what it has started without one."""
    tree = new_tree()
    with loses_its_environment(tree) as driver:
        child, bare = map(int, driver.stdout.readline().split())
        assert TREE_VARIABLE.encode() not in Path(f"/proc/{driver.pid}/environ").read_bytes()
        assert sorted(process_tree.members(tree)) == sorted([driver.pid, child, bare])
        assert tree_of(driver.pid) == tree
        assert process_tree.kill_tree(tree) == 3
        assert driver.wait() == -signal.SIGKILL


def is_dead(pid: int) -> bool:
    """The process that has started it need not have waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_driver_without_environment_and_children_is_killed_by_who_knows_it():
    tree = new_tree()
    with loses_its_environment(tree) as driver:
        children = [int(pid) for pid in driver.stdout.readline().split()]
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        while not all(map(is_dead, children)):
            os.sched_yield()
        assert process_tree.kill_tree(tree) == 0
        assert process_tree.kill_tree(tree, Process.of(driver.pid)) == 1
        assert driver.wait() == -signal.SIGKILL


def test_a_process_that_is_killed_and_does_not_end_is_waited_for_and_named(monkeypatch, caplog):
    """As one that waits for a server of files. Nothing may continue meanwhile, and no one knew why."""
    stuck = Process.of(os.getpid())
    looks = [[stuck]] * 5 + [[], []]
    monkeypatch.setattr(process_tree, "_living", lambda *_: looks.pop(0))
    monkeypatch.setattr(process_tree, "_kill", lambda process: None)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert process_tree.kill_tree("a process tree") == 1
    said = zip((2, 4), caplog.records, strict=True)
    assert [f"for {waited} s so far" in record.message for waited, record in said] == [True, True]
    assert f"process {stuck.pid} of a driver was killed and has not ended (state R" in caplog.text


MAIN_THREAD_ENDS = """
import ctypes, os, threading
def goes_on():
    while " Z " not in open(f"/proc/self/task/{os.getpid()}/stat").read():
        os.sched_yield()
    print("it has ended", flush=True)
    threading.Event().wait()
threading.Thread(target=goes_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_main_thread_has_ended_lives_while_another_thread_does():
    """As a JVM that was killed while one of its threads waits for a server of files."""
    tree = new_tree()
    with running(sys.executable, "-c", MAIN_THREAD_ENDS, tree=tree, stdout=subprocess.PIPE) as jvm:
        assert jvm.stdout.readline() == b"it has ended\n"
        was = Process.of(jvm.pid)
        assert was.is_alive
        assert process_tree._states(was) not in ("Z", "ended")
        assert process_tree.members(tree) == [jvm.pid]
        assert tree_of(jvm.pid) == tree
        assert process_tree.kill_tree(tree) == 1
        assert not was.is_alive  # though no process has waited for it yet
    assert jvm.returncode == -signal.SIGKILL


def test_a_process_that_ends_and_has_the_lock_still_is_waited_for_and_not_taken_for_one_that_is_no_driver(place, monkeypatch):
    """It has given its environment back, and its files not yet: no process can tell its process tree."""
    with running(sys.executable, "-c", MAIN_THREAD_ENDS, stdout=subprocess.PIPE) as ending:
        assert ending.stdout.readline() == b"it has ended\n"
        monkeypatch.setattr(CheckpointLock, "_process", lambda _: ending.pid)
        assert Process.lifetimes(ending.pid)
        assert CheckpointLock(place)._holder() is None


def test_what_was_killed_is_waited_for_though_it_has_no_environment_any_more(monkeypatch):
    """The kernel takes that away before the last thread has ended."""
    tree, kill, killed = new_tree(), process_tree._kill, []

    def loses_its_environment_first(process):
        killed.append(process)
        if len(killed) > 1:
            kill(process)
        monkeypatch.setattr(process_tree, "_environment", lambda pid: b"")

    monkeypatch.setattr(process_tree, "_kill", loses_its_environment_first)
    with running(tree=tree) as stuck:
        assert process_tree.kill_tree(tree) == 1
        assert killed == [Process(stuck.pid, killed[0].started)] * 2
        assert not killed[0].is_alive


def test_a_process_of_another_user_is_left_alone_with_a_warning_and_the_others_are_killed(monkeypatch, caplog):
    """As a program of root's that the job has started."""
    tree, send = new_tree(), signal.pidfd_send_signal
    with running(tree=tree) as roots, running(tree=tree) as own:

        def refuse(descriptor, number):
            if f"Pid:\t{roots.pid}\n" in Path(f"/proc/self/fdinfo/{descriptor}").read_text():
                raise PermissionError(errno.EPERM, "Operation not permitted")
            send(descriptor, number)

        monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
        assert process_tree.kill_tree(tree) == 1
        assert own.wait() == -signal.SIGKILL
        assert roots.poll() is None
    assert caplog.text.count(f"process {roots.pid} of a driver runs as another user and is left alone") == 1


def test_a_pid_that_has_become_anothers_since_it_was_looked_at_is_not_killed():
    with running() as another:
        process_tree._kill(Process(another.pid, 1))
        assert another.poll() is None


def test_two_users_with_caches_of_their_own_have_one_lock(place, monkeypatch, tmp_path):
    with holder(place, new_tree()):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
        with pytest.raises(FencedError, match="another supervisor"):
            CheckpointLock(place).take(tree_by(ended()))
    assert CheckpointLock(place).path == Path(place, ".headrace.lock")
    assert CheckpointLock("hdfs://n/c").path.is_relative_to(tmp_path / "another cache")


def test_a_lock_whose_file_was_removed_is_worth_nothing_and_the_one_in_its_place_is_taken(place):
    first, second = CheckpointLock(place), CheckpointLock(place)
    Path(place, ".headrace.lock").unlink()
    first.take(new_tree())
    assert os.path.samestat(os.stat(place + "/.headrace.lock"), os.fstat(first._file))
    locks._close(first._file)
    second.take(new_tree())
    assert os.path.samestat(os.stat(place + "/.headrace.lock"), os.fstat(second._file))


def test_a_driver_whose_lock_was_removed_takes_it_again_and_a_second_driver_is_refused(place, caplog):
    """By another process who cleans up, or restores the checkpoint in place."""
    lock, file = CheckpointLock(place), Path(place, ".headrace.lock")
    tree = new_tree()
    lock.take(tree)
    lock.keep()
    assert caplog.text == ""
    file.unlink()
    lock.keep()
    assert "was removed while this driver is running, and is recreated" in caplog.text
    assert file.read_text().startswith(f"{tree} ")
    command, environment = [sys.executable, "-c", HOLD, place, tree_by(ended())], {**os.environ, "PYTHONPATH": python_path()}
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert re.search(rf"FencedError: .*{os.getpid()}", second.stderr)  # it is named
    with pytest.raises(UsageError, match="by another name"):
        CheckpointLock(place).take(tree)


def test_of_two_drivers_that_both_had_the_lock_the_first_one_is_instructed_to_end(place):
    lock = CheckpointLock(place)
    lock.take(new_tree())
    Path(place, ".headrace.lock").unlink()
    with holder(place, new_tree()):  # which has come before the first one has looked
        for _ in range(2):
            with pytest.raises(FencedError, match=rf"{place}/.headrace.lock, was removed .* another one has taken it since"):
                lock.keep()
    lock.keep()


def driver_of(reports):
    order = DriverOrder(FunctionName("x", "y"), FunctionName.of(headrace_format))
    return drivers._Driver(order, headrace_format(), reports, threading.Event())


def test_a_driver_that_another_one_has_shut_out_kills_all_that_it_has_started_and_says_why(monkeypatch):
    tree = new_tree()
    monkeypatch.setenv(TREE_VARIABLE, tree)
    reports, writes = os.pipe()
    done = []
    monkeypatch.setattr(drivers, "kill_tree", done.append)
    monkeypatch.setattr(os, "_exit", done.append)
    driver = driver_of(writes)
    monkeypatch.setattr(driver._takeover, "keep_locks", Mock(side_effect=FencedError("injected")))
    driver._keep_locks()
    assert json.loads(os.read(reports, 1 << 16)) == {"end": "FENCED", "reason": "FencedError: injected"}
    assert done == [tree, 67]
    os.close(reports)
    os.close(writes)


def test_what_may_pass_at_the_lock_of_a_driver_running_is_said_once(monkeypatch, caplog):
    monkeypatch.setenv(TREE_VARIABLE, new_tree())
    driver = driver_of(-1)
    monkeypatch.setattr(driver._takeover, "keep_locks", Mock(side_effect=RetriableError("injected: the store is away")))
    driver._keep_locks()
    driver._keep_locks()
    assert caplog.text.count("injected: the store is away; it is tried again") == 1


def test_a_copy_of_a_checkpoint_kills_no_process_of_the_process_tree_whose_lock_came_with_it(place, tmp_path):
    tree = tree_by(ended())
    with running(tree=tree) as jvm:
        with holder(place, tree):
            shutil.copytree(place, tmp_path / "copy")
            CheckpointLock(str(tmp_path / "copy")).take(new_tree())
            assert jvm.poll() is None
        CheckpointLock(place).take(new_tree())
        assert jvm.wait() == -signal.SIGKILL


def test_a_fresh_copy_of_a_checkpoint_is_refused_while_the_driver_of_the_other_one_is_running(place, tmp_path):
    """It is as new as that one, so no sink can tell it apart; and it would take over from the query running."""
    copies = [tmp_path / name for name in ("copy", "elsewhere", "later")]
    with running() as supervisor, holder(place, tree_by(Process.of(supervisor.pid))):
        for copy in copies:
            shutil.copytree(place, copy)
        for _ in range(2):
            with pytest.raises(FencedError, match=f"is a copy of another one, .* of supervisor {supervisor.pid} is running"):
                CheckpointLock(str(copies[0])).take(new_tree())
        Path(copies[1], ".headrace.lock").unlink()
        CheckpointLock(str(copies[1])).take(new_tree())
    CheckpointLock(str(copies[2])).take(new_tree())  # that one has ended


def test_a_checkpoint_that_was_moved_is_taken(place, tmp_path):
    """Also to another file system, where its files are others."""
    with holder(place, new_tree()):
        pass
    shutil.copytree(place, tmp_path / "moved")
    shutil.rmtree(place)
    CheckpointLock(str(tmp_path / "moved")).take(new_tree())


COPIES_ITS_CHECKPOINT = HOLD.replace(
    'print("held"', 'import shutil; shutil.copytree(sys.argv[1], sys.argv[1] + "-copy"); print("held"'
)


def test_a_driver_that_copies_its_checkpoint_still_has_the_lock(place, monkeypatch):
    """It has closed the file of the lock once, at which the kernel gives up a lock that is the process's."""
    monkeypatch.setitem(globals(), "HOLD", COPIES_ITS_CHECKPOINT)
    with running() as supervisor, holder(place, tree_by(Process.of(supervisor.pid))) as held:
        assert Path(f"{place}-copy", ".headrace.lock").exists()
        with pytest.raises(FencedError, match=f"another supervisor, process {supervisor.pid}"):
            CheckpointLock(place).take(new_tree())
        supervisor.kill()
        supervisor.wait()
        CheckpointLock(place).take(new_tree())  # of an orphan
        assert held.wait() == -signal.SIGKILL


def test_two_names_of_one_checkpoint_are_one_query_too_many(place):
    tree = new_tree()
    CheckpointLock(place).take(tree)
    with pytest.raises(UsageError, match=r"this job has the checkpoint .* already, by another name"):
        CheckpointLock(place).take(tree)


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOLCK, RetriableError), (errno.EOPNOTSUPP, UsageError)])
def test_a_file_system_without_locks_is_named(place, monkeypatch, code, kind):
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError(code, os.strerror(code))))
    message = f"no lock is available of the checkpoint {place}, at {place}/.headrace.lock: .*{os.strerror(code)}"
    with pytest.raises(kind, match=message):
        CheckpointLock(place).take(new_tree())


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENFILE])
def test_an_error_at_the_lock_that_may_pass_is_tried_again_and_the_next_try_has_the_lock(place, monkeypatch, code):
    for module, name in ((fcntl, "fcntl"), (os, "open")):
        with monkeypatch.context() as fault:
            fault.setattr(module, name, Mock(side_effect=OSError(code, os.strerror(code))))
            with pytest.raises(RetriableError, match=os.strerror(code)):
                CheckpointLock(place).take(new_tree())
    CheckpointLock(place).take(new_tree())


def test_a_place_where_no_lock_can_be_kept_is_refused(place):
    Path(place).write_text("a file")
    with pytest.raises(UsageError, match="cannot be kept"):
        CheckpointLock(place)


def test_a_start_that_has_failed_at_the_lock_takes_it_when_the_job_tries_again(place, monkeypatch):
    tree, query = new_tree(), StartedQuery(Frame(), "noop", "append", {"checkpointlocation": f"file:{place}"})
    takeover, opened = Takeover(tree, DefaultSource, 0), len(os.listdir("/proc/self/fd"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as fault:
        fault.setattr(os, "pwrite", full)  # the last step: both locks are taken
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                takeover.start(query, lambda: pytest.fail("it runs without the lock"))
    assert len(os.listdir("/proc/self/fd")) == opened
    with running(tree=tree) as jvm:
        assert takeover.start(query, lambda: "it runs") == "it runs"
        assert jvm.poll() is None  # its own
        assert Path(place, ".headrace.lock").read_text().startswith(tree)


FORKS = HOLD.replace(
    'print("held"',
    "import os; child = os.fork(); child or (sys.stdin.read(), os._exit(0))\n"
    'open(sys.argv[1] + "-child", "w").write(str(child)); print("held"',
)
PASSES_IT_ON = HOLD.replace(
    'print("held"',
    "import subprocess; from headrace.runners.spark.supervision import lock\n"
    'child = subprocess.Popen(["cat"], env={}, pass_fds=lock._files, start_new_session=True).pid\n'
    'open(sys.argv[1] + "-child", "w").write(str(child)); print("held"',
)


@pytest.fixture
def outlived(place):
    """A driver that has the lock runs this program, and dies; a process that it has started is alive, and names no tree."""

    @contextmanager
    def run(program):
        with patch.dict(globals(), HOLD=program), holder(place, tree_by(ended()), **{TREE_VARIABLE: ""}) as held:
            held.kill()
            held.wait()
            yield int(Path(f"{place}-child").read_text())

    return run


def test_a_forked_child_of_a_dead_driver_does_not_keep_the_lock(place, outlived):
    with outlived(FORKS) as child:
        CheckpointLock(place).take(new_tree())
        assert Process.lifetimes(child)


def test_a_lock_that_no_process_known_holds_is_not_waited_for_without_end_and_silently(place, outlived, monkeypatch):
    with outlived(PASSES_IT_ON) as child:
        with monkeypatch.context() as impatience:
            impatience.setattr(locks, "_TRIES_IN_SILENCE", 2)
            with pytest.raises(RetriableError, match=rf"`fuser {place}/.headrace.lock` reports which"):
                CheckpointLock(place).take(new_tree())
        assert Process.lifetimes(child)
    CheckpointLock(place).take(new_tree())


def test_a_process_that_is_waited_for_at_the_lock_is_named(place, monkeypatch, caplog):
    lock = CheckpointLock(place)
    with holder(place, new_tree()) as held:
        lock._say_who_is_waited_for()
    assert f"process {held.pid} holds it" in caplog.text


def test_a_lock_of_a_process_that_cannot_be_seen_from_here_is_refused(place, monkeypatch):
    """The kernel shows pid 0 of one in another container."""
    unseen = struct.pack(locks._FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: unseen)
    monkeypatch.setattr(CheckpointLock, "_try", lambda _: False)
    with pytest.raises(FencedError, match="a process of another container, or of another host, holds the lock"):
        CheckpointLock(place).take(new_tree())


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("/a/b/../c/", "/a/c"),
        ("file:/a/c", "/a/c"),
        ("file:///a//c/", "/a/c"),
        ("hdfs://n:8020/c/", "hdfs://n:8020/c"),
        ("s3a://b/c", "s3a://b/c"),
    ],
)
def test_one_checkpoint_has_one_name(given, name):
    assert resolved(given) == name


def test_a_checkpoint_by_a_link_is_the_same(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "link").symlink_to("c")
    assert resolved(str(tmp_path / "link")) == resolved(f"file://{tmp_path}/c") == str(tmp_path / "c")


@pytest.mark.parametrize("scheme", ["s3a", "s3", "gs", "abfss", "dbfs"])
def test_a_takeover_is_refused_where_something_of_the_dead_may_still_arrive(scheme):
    with pytest.raises(UsageError, match=f"a standby cannot take over a checkpoint at {scheme}:"):
        check_standby("headrace", f"{scheme}://bucket/checkpoint")


def test_a_takeover_is_refused_without_a_checkpoint_and_to_a_table_in_the_drivers_memory():
    with pytest.raises(UsageError, match="needs the option checkpointLocation"):
        check_standby("headrace", None)
    with pytest.raises(UsageError, match="sink 'memory'"):
        check_standby("memory", "/c")


def started_with_a_standby(tmp_path, sink, **options):
    """What a driver reports about a query that it starts, which is in for Spark's."""
    location = {"checkpointlocation": f"file:{tmp_path}/{sink}"}
    rows = SimpleNamespace(schema=StructType([StructField("value", StringType())]))
    query = StartedQuery(rows, sink, options=location | options)
    assert Takeover(new_tree(), DefaultSource, 1).start(query, lambda: "it runs") == "it runs"


KAFKA = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "out"}


def test_a_checkpoint_that_another_host_need_not_have_is_refused_where_one_may_take_over(tmp_path):
    query = StartedQuery(SimpleNamespace(), "parquet", options={"checkpointlocation": f"file:{tmp_path}"})
    with pytest.raises(UsageError, match="on another host cannot take over a local checkpoint"):
        Takeover(new_tree(), DefaultSource, 0, has_peers=True).start(query, lambda: pytest.fail("it has started"))
    check_peers("hdfs://there/c")


def test_a_session_of_connect_is_refused():
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(UsageError, match="classic PySpark"):
        refuse_connect(connect())
    refuse_connect(SimpleNamespace())


@pytest.mark.parametrize(("sink", "is_told"), [("iceberg", True), ("delta", False), ("foreachBatch", True)])
def test_what_two_drivers_on_two_hosts_may_write_twice_is_said(monkeypatch, tmp_path, caplog, sink, is_told):
    monkeypatch.setattr(CheckpointLock, "take", lambda *_: None)
    query = StartedQuery(SimpleNamespace(), sink, options={"checkpointlocation": "hdfs://there/c"})
    Takeover(new_tree(), DefaultSource, 0, has_peers=True).start(query, lambda: None)
    assert ("is written at least once" in caplog.text) is is_told


def test_what_a_takeover_may_repeat_is_said(tmp_path, caplog):
    started_with_a_standby(tmp_path, "headrace", **KAFKA)
    for sink in ("delta", "parquet"):
        started_with_a_standby(tmp_path, sink)
    assert caplog.text == ""
    started_with_a_standby(tmp_path, "foreachBatch")
    assert "the sink 'foreachBatch' is written at least once" in caplog.text


def test_so_it_is_of_sinks_of_ours_that_are_written_at_least_once(tmp_path, caplog):
    started_with_a_standby(tmp_path, "headrace", delivery="at-least-once", **KAFKA)
    assert "the sink 'AtLeastOnceKafkaSink' is written at least once" in caplog.text
    sink = PipelineSinkFormat.of(PipelineWrite(FunctionSink(print), iter, pa.schema([]), OffsetLog("/c")))
    with patch.dict(pipeline._sinks, {sink.name(): sink}):
        started_with_a_standby(tmp_path, sink.name())
    assert "the sink 'FunctionSink' is written at least once: a takeover repeats the batch" in caplog.text


# --- what a job starts --------------------------------------------------------------------------------------------------


class Frame:
    """What is used of a streaming DataFrame."""

    schema = None

    def __init__(self, **conf: str) -> None:
        self.store = conf.pop("store", "file:///")
        hadoop = SimpleNamespace(fs=SimpleNamespace(Path=self.path))
        jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
        state = SimpleNamespace(newHadoopConf=lambda: {"fs.defaultFS": self.store})
        self.sparkSession = SimpleNamespace(conf=conf, _jvm=jvm, _jsparkSession=SimpleNamespace(sessionState=lambda: state))
        self.deleted = []

    def path(self, path):
        """Hadoop's, of the default file system."""
        delete = lambda there, all_below: self.deleted.append((there.name, all_below))  # noqa: E731
        system = SimpleNamespace(makeQualified=lambda there: f"{self.store.rstrip('/')}{there.name}", delete=delete)
        return SimpleNamespace(name=path, getFileSystem=lambda configuration: system)

    @property
    def writeStream(self):  # noqa: N802 - PySpark's
        return writer_of(self)


JAVA = MagicMock()


def writer_of(frame):
    """PySpark's own writer, with nothing behind it."""
    writer = DataStreamWriter.__new__(DataStreamWriter)
    writer._df, writer._jwrite, writer._spark = frame, JAVA, SimpleNamespace(_sc=None)
    return writer


@pytest.fixture(autouse=True)
def java(monkeypatch):
    JAVA.reset_mock(side_effect=True, return_value=True)
    for name in ("format", "option", "outputMode", "queryName", "trigger"):
        getattr(JAVA, name).return_value = JAVA
    JAVA.start.return_value = JAVA
    JAVA.exception.return_value = SimpleNamespace(isDefined=lambda: False)
    JAVA.lastProgress.return_value = None
    return JAVA


class Noting:
    """A starter that notes what it is asked, and does it."""

    def __init__(self):
        self.asked = []

    def load(self, source, mark, load):
        self.asked.append(source)
        return load()

    def start(self, started, start):
        self.asked.append(started)
        return start()

    def write(self, what):
        self.asked.append(what)

    wait = write

    def listen(self, add):
        self.asked.append("a listener")
        add()


def test_a_started_query_is_known_by_what_the_job_has_called(java):
    noting, frame = Noting(), Frame()
    with intercepted(noting):
        writer = writer_of(frame).format("headrace").option("checkpointLocation", "/c").options(Topic="t", flag=True)
        writer.outputMode("Update").queryName("q").start()
        writer_of(frame).start("/out", "json", "append", None, "r", checkpointLocation="/d")
        writer_of(frame).toTable("t", checkpointLocation="/e")
    first, second, third = noting.asked
    assert first == StartedQuery(frame, "headrace", "update", {"checkpointlocation": "/c", "topic": "t", "flag": "true"}, "q")
    assert second == StartedQuery(frame, "json", "append", {"checkpointlocation": "/d", "path": "/out"}, "r")
    assert third.sink == "table"
    assert [call.args for call in java.start.call_args_list] == [(), ("/out",)]
    assert java.toTable.call_args.args == ("t",)
    writer_of(frame).start()  # no longer watched
    assert len(noting.asked) == 3


def test_a_default_place_of_checkpoints_counts_for_a_query_with_a_name():
    frame = Frame(**{"spark.sql.streaming.checkpointLocation": "/all/"})
    assert checkpoint_of(StartedQuery(frame, name="q")) == "/all/q"
    assert checkpoint_of(StartedQuery(frame)) is None
    assert checkpoint_of(StartedQuery(frame, options={"checkpointlocation": "/c/"}, name="q")) == "/c"


def test_a_checkpoint_by_a_bare_path_is_where_the_default_file_system_has_it():
    at = lambda path, store: checkpoint_of(StartedQuery(Frame(store=store), options={"checkpointlocation": path}))  # noqa: E731
    assert at("/data/c", "hdfs://n:8020/") == "hdfs://n:8020/data/c"
    assert at("file:/data/c", "hdfs://n:8020") == at("/data/c", "file:///") == "/data/c"
    assert at("s3a://b/c/", "hdfs://n:8020") == "s3a://b/c"
    with pytest.raises(UsageError, match="a standby cannot take over a checkpoint at s3a:"):
        check_standby("headrace", at("/data/c", "s3a://bucket"))


@pytest.fixture
def dry_run(tmp_path):
    return DryRun(tmp_path / "dry_run", DefaultSource, threading.Event())


def ran(java):
    """The query has ended its fifth batch."""
    java.lastProgress.return_value = SimpleNamespace(json=lambda: '{"batchId": 4}')


def test_a_dry_run_starts_every_query_in_a_form_that_writes_nothing(dry_run, java, tmp_path):
    started = []

    def job():
        started.append(writer_of(Frame()).format("headrace").options(topic="t", checkpointLocation="/mine").start())
        started.append(writer_of(Frame()).format("delta").option("checkpointLocation", "/mine").toTable("t"))
        java.start.side_effect = None

    with patch.object(dry_runs, "_has_run", lambda query, batches: batches == 5):
        assert dry_run.first(job) is None
    assert len(started) == 2
    assert not java.toTable.called
    of_dry_run = [call.args for call in java.option.call_args_list if call.args[1] != "/mine"]
    places = [value for name, value in of_dry_run if name == "checkpointLocation"]
    assert places == [f"file://{tmp_path}/dry_run/1", f"file://{tmp_path}/dry_run/2"]  # wherever bare paths lead
    assert ("headraceDryRun", "true") in of_dry_run
    assert [call.args[0] for call in java.format.call_args_list] == ["headrace", "headrace", "delta", "noop"]
    assert java.stop.call_count == 2


def test_on_a_cluster_a_dry_run_checkpoint_is_removed_from_the_default_file_system(dry_run, java, tmp_path):
    frame = Frame(**{"spark.master": "yarn", "store": "hdfs://n"})
    with patch.object(dry_runs, "_has_run", lambda query, batches: True):
        assert dry_run.first(lambda: writer_of(frame).format("headrace").start()) is None
    assert ("checkpointLocation", str(tmp_path / "dry_run" / "1")) in [call.args for call in java.option.call_args_list]
    assert frame.deleted == [(str(tmp_path / "dry_run"), True)]


def test_a_job_that_starts_threads_is_not_rehearsed_as_they_would_outlive_it(dry_run):
    ran = []

    def job():
        with ThreadPoolExecutor() as threads:
            threads.submit(ran.append, "written, alongside the driver running").result()

    assert "it starts a thread (ThreadPoolExecutor" in dry_run.first(job)
    assert ran == []
    job()  # called to run it
    assert len(ran) == 1


def test_threads_that_spark_starts_for_a_job_do_not_stand_in_the_way_of_its_dry_run(dry_run):
    """Such as the one that hears the JVM call `foreachBatch`."""
    server = CallbackServer(MagicMock(), MagicMock(), callback_server_parameters=CallbackServerParameters(port=0))
    ran = threading.Event()
    with patch.object(CallbackServer, "run", lambda _: ran.set()):
        assert dry_run.first(server.start) is None
        assert ran.wait(60)
    server.server_socket.close()


def test_a_listener_hears_of_the_job_and_not_of_its_dry_run(dry_run):
    added = []
    with patch.object(StreamingQueryManager, "addListener", lambda manager, listener: added.append(listener)):
        manager = StreamingQueryManager(None)
        assert dry_run.first(lambda: manager.addListener("of the dry run")) is None
        with intercepted(Takeover(new_tree(), DefaultSource, 1)):
            manager.addListener("of the job")
    assert added == ["of the job"]


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (lambda: reader().format("kafka").load(), "it reads a stream of format 'kafka'"),
        (lambda: reader().parquet("/in"), "it reads a stream of format 'parquet'"),
        (lambda: DataFrameWriter.save(None, "/out"), r"it calls DataFrameWriter.save\(\)"),
        ("DROP TABLE t", "it calls the SQL statement DROP"),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", "it calls the SQL statement WITH"),
        ("WITH a AS (SELECT 1) UPDATE `a b`.t AS x\nSET c = 1", "the SQL statement WITH"),
        ("WITH a AS (SELECT 1) MERGE WITH SCHEMA EVOLUTION INTO t USING a ON true", "the SQL statement WITH"),
        ("CREATE OR REPLACE GLOBAL TEMPORARY VIEW v AS SELECT 1", "the SQL statement CREATE"),
        (lambda: MergeIntoWriter.merge(None), r"it calls MergeIntoWriter.merge\(\)"),
        (lambda: SparkSession.stop(None), r"it calls SparkSession.stop\(\)"),  # with which its warm driver would be cold
        # a query of a dry run never ends: the driver would wait for it still when it is called
        (lambda: StreamingQuery(JAVA).awaitTermination(), r"it calls StreamingQuery.awaitTermination\(\): it is to return"),
        (lambda: StreamingQuery(JAVA).awaitTermination(10), r"it calls StreamingQuery.awaitTermination\(\)"),
        (lambda: StreamingQuery(JAVA).processAllAvailable(), r"it calls StreamingQuery.processAllAvailable\(\)"),
        (lambda: StreamingQueryManager(JAVA).awaitAnyTermination(), r"StreamingQueryManager.awaitAnyTermination\(\)"),
    ],
)
def test_a_job_that_writes_or_reads_what_no_process_knows_is_not_rehearsed_and_nothing_is_done(dry_run, does, reason):
    done = []

    def job():
        try:
            SparkSession.sql(None, does) if isinstance(does, str) else does()
        except Exception:  # noqa: BLE001 - as a job may
            done.append("the job continues")
        done.append("done")

    assert re.search(reason, dry_run.first(job))
    assert done == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Catalog, name) for name in ("createTable", "createExternalTable", "recoverPartitions", "truncateTable", "analyzeTable")]
    + [(Catalog, name) for name in ("createDatabase", "dropDatabase", "dropTable", "dropView")]
    + [(DataFrame, name) for name in ("createGlobalTempView", "createOrReplaceGlobalTempView")],
)
def test_no_dry_run_changes_a_catalog(dry_run, owner, name):
    if not hasattr(owner, name):
        pytest.skip(f"this PySpark has no {name}()")
    assert f"it calls {owner.__name__}.{name}()" in (dry_run.first(lambda: getattr(owner, name)(None, "t")) or "")


def test_statements_that_change_nothing_outside_of_their_session_are_rehearsed(dry_run):
    done, selects = [], "SELECT /*+ MERGE(a) */ update_time, settings FROM a JOIN b"
    statements = ("CREATE OR REPLACE TEMP VIEW v AS SELECT 1", selects, "SET a.b = c")
    with patch.object(SparkSession, "sql", lambda _, statement: done.append(statement)):
        assert dry_run.first(lambda: [SparkSession.sql(None, statement) for statement in statements]) is None
    assert done == list(statements)


def reader():
    made = DataStreamReader.__new__(DataStreamReader)
    made._jreader = MagicMock()
    return made


def test_what_a_job_fails_with_in_a_dry_run_is_reported_and_not_raised(dry_run):
    def job():
        assert dry_run_source.is_under_way()
        assert metrics(MagicMock(), port=1).port is None  # the active driver has it
        raise ConnectionError("no broker answers")

    assert dry_run.first(job) == "ConnectionError: no broker answers"
    assert not dry_run_source.is_under_way()


def test_a_dry_run_ends_at_once_when_the_driver_is_called(dry_run, java):
    dry_run._called.set()
    assert dry_run.first(lambda: writer_of(Frame()).start()) is None  # its query never ends a batch
    assert not java.stop.called  # in a thread, when the job runs
    dry_run.end()


# --- what is read and written in one ------------------------------------------------------------------------------------


def test_a_dry_run_reads_a_few_of_the_first_records_and_commits_to_no_group():
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "headracedryrun": "true", "kafka.group.id": "g"}
    changed = {"startingOffsets": "latest", "commitOffsetsToGroup": "g", "maxoffsetspertrigger": "7", "jvmCheckpoint": "/j"}
    read = reading({**given, **changed, "minOffsetsPerTrigger": "5", "startingTimestamp": "1"})[1]
    kept = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "kafka.group.id": "g"}
    assert read == {**kept, "startingoffsets": "earliest", "maxoffsetspertrigger": "1000"}


def test_a_query_that_starts_with_a_savepoint_is_rehearsed_from_the_first_records():
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "headraceDryRun": "true"}
    for name in ("startFromSavepoint", "startfromsavepoint"):
        read = reading({**given, name: "/savepoint"})[1]
        assert name not in read
        assert kafka_read(read, Mode.STREAM).savepoint is None
    assert read["startingoffsets"] == "earliest"


def test_a_dry_run_reads_one_file_at_a_time_and_leaves_it_where_it_is():
    given = {"connector": "files", "path": "/in", "headraceDryRun": "true"}
    changed = {"cleanSource": "delete", "maxFilesPerTrigger": "50", "startFromSavepoint": "/savepoint"}
    assert reading({**given, **changed})[1] == {"path": "/in", "maxfilespertrigger": "1"}


class WatchedSink:
    """That of a job, whose calls are noted; nothing but a check is allowed."""

    looks: ClassVar[list[str]] = []

    def warm(self):
        self.looks.append(sys._getframe(3).f_code.co_name)
        raise ConnectionError("no broker answers")

    def warm_driver(self):
        self.looks.append(f"{sys._getframe(3).f_code.co_name}, for a driver")
        raise ConnectionError("no broker answers")


def test_a_dry_run_writes_nothing_and_each_of_its_processes_looks_at_the_destination_once():
    WatchedSink.looks.clear()
    writer = pickle.loads(pickle.dumps(DryRunWriter(WatchedSink())))
    rows = iter(["a batch", "another"])
    writer.write(rows)
    assert list(rows) == []
    writer.commit([], 0)
    writer.abort([], 0)
    assert WatchedSink.looks == ["__getstate__, for a driver", "write", "commit, for a driver"]


def test_the_writer_of_a_dry_run_has_the_sink_of_the_job(tmp_path):
    options = {"headraceDryRun": "true", "connector": "files", "path": str(tmp_path / "out")}
    writer = DefaultSource(options).streamWriter(StructType([StructField("a", LongType())]), overwrite=False)
    assert isinstance(writer, DryRunWriter)
    assert writer._sink.path == str(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_kafkas_look_changes_nothing_and_does_not_wait_for_brokers_that_are_away():
    with FakeKafka() as kafka:
        kafka.create_topic("out")
        sink = KafkaSink(kafka.bootstrap, topic="out")
        sink.warm()
        sink.warm_driver()
        assert sink.cluster().find_topics([sink.commit_topic, "out"])[sink.commit_topic] is None
    began_s = time.monotonic()
    with pytest.raises(RetriableError):
        KafkaSink(kafka.bootstrap, topic="out", properties={"client.id": "another"}).warm_driver()
    assert time.monotonic() - began_s < 30


# --- before a query starts ----------------------------------------------------------------------------------------------


def test_what_the_last_driver_left_is_recovered_under_the_lock_and_before_spark_starts(tmp_path, java):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id":"q-1"}')
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "7").write_text("")
    order = []
    write = SimpleNamespace(claim=lambda job, last_batch: order.append(f"claimed {job} at {last_batch()}"), sink=None)
    with (
        patch.object(CheckpointLock, "take", lambda *_: order.append("locked")),
        patch.object(DefaultSource, "streamWriter", lambda *_: write),
        intercepted(Takeover(new_tree(), DefaultSource, 1)),
    ):
        java.start.side_effect = lambda: order.append("started")
        writer_of(Frame()).format("headrace").option("checkpointLocation", str(checkpoint)).start()
        writer_of(Frame()).format("parquet").option("checkpointLocation", str(checkpoint)).start()
    assert order == ["locked", "claimed q-1 at 7", "started", "started"]


def test_a_query_whose_path_is_an_argument_of_start_is_recovered_there(tmp_path, java):
    (tmp_path / "metadata").write_text('{"id":"q-1"}')
    frame, recovered = Frame(), []
    frame.schema = StructType([StructField("a", StringType())])
    with (
        patch.object(StreamWriter, "claim", lambda writer, job, last: recovered.append((writer.sink.path, job, last()))),
        intercepted(Takeover(new_tree(), DefaultSource, 0)),
    ):
        writer = writer_of(frame).format("headrace").option("connector", "files").option("checkpointLocation", str(tmp_path))
        writer.start(str(tmp_path / "out"))
    assert recovered == [(str(tmp_path / "out"), "q-1", None)]
    assert java.start.call_args.args == (str(tmp_path / "out"),)


def test_a_path_of_one_start_is_not_that_of_the_next():
    noting = Noting()
    with intercepted(noting):
        writer = writer_of(Frame())
        writer.start("/one")
        writer.start()
    assert [started.options for started in noting.asked] == [{"path": "/one"}, {}]


def test_a_query_that_a_standby_could_not_take_over_is_refused_before_it_starts(java):
    with intercepted(Takeover(new_tree(), DefaultSource, 1)), pytest.raises(UsageError, match="checkpointLocation"):
        writer_of(Frame()).format("headrace").start()
    assert not java.start.called
    with intercepted(Takeover(new_tree(), DefaultSource, 0)):
        writer_of(Frame()).format("headrace").start()
    assert java.start.called


def test_a_job_that_waits_for_its_queries_itself_is_reported_what_that_means_and_waits(java, caplog):
    with intercepted(Takeover(new_tree(), DefaultSource, 0)):
        for _ in range(2):
            writer_of(Frame()).format("noop").start().awaitTermination()
    assert java.awaitTermination.call_count == 2
    assert caplog.text.count("the job calls StreamingQuery.awaitTermination(): until its function returns, SIGTERM") == 1


def test_queries_that_have_ended_need_not_be_returned(java):
    takeover = Takeover(new_tree(), DefaultSource, 0)
    java.isActive.return_value = False
    with intercepted(takeover):
        writer_of(Frame()).format("noop").start()
    takeover.refuse_unreturned([])


def test_a_query_that_has_never_started_has_no_id(tmp_path):
    assert OffsetLog(str(tmp_path)).query_id() is None
    Path(tmp_path, "metadata").write_text("")
    assert OffsetLog(str(tmp_path)).query_id() is None
