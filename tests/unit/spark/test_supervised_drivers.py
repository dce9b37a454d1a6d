"""Drivers as processes: what a supervisor does to them, and they to it, and what their errors mean. No Spark in here."""

from __future__ import annotations

import errno
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest
from pyspark.sql import SparkSession

from headrace.cli.supervise import seconds_or_never, strategy_settings
from headrace.connectors.base.commit import StaleEpochError
from headrace.enumerator.errors import (
    BadRecordError,
    CorruptDataError,
    DataLossError,
    FencedError,
    OutageError,
    RetriableError,
    UsageError,
)
from headrace.runners.restarts import FixedDelay
from headrace.runners.spark import submitted
from headrace.runners.spark.session import REDACTION
from headrace.runners.spark.submitted import as_it_was_submitted
from headrace.runners.spark.supervision.core import DriverEnd, Ending, SupervisionLimits
from headrace.runners.spark.supervision.driver import DriverOrder, stage_of
from headrace.runners.spark.supervision.exit_causes import end_by
from headrace.runners.spark.supervision.jobs import FunctionName, load, load_job
from headrace.runners.spark.supervision.process_tree import TREE_VARIABLE, kill_tree, members, new_tree
from headrace.runners.spark.supervision.processes import DriverProcess
from headrace.runners.spark.supervision.queries import ProgressOfQueries, WatchedQuery, queries_of
from headrace.runners.spark.supervision.standby import StandbyCore, StandbyLimits
from headrace.runners.spark.supervision.status import StatusFile
from headrace.runners.spark.supervision.supervisor import supervise
from headrace.runners.waiting import wait_until
from headrace.spark import run
from headrace.spark.format import headrace_format
from tests.helpers import supervised_job
from tests.helpers.python_path import python_path

JOB = Path(supervised_job.__file__)
LONG_S = 60

pytestmark = [pytest.mark.full, pytest.mark.skipif(sys.platform != "linux", reason="supervision is for Linux")]


def order(function):
    return DriverOrder(FunctionName(str(JOB), function), FunctionName.of(headrace_format), FunctionName(str(JOB), "session"))


def core(strategy, standbys=0):
    return StandbyCore(strategy, SupervisionLimits(), StandbyLimits(standbys))


@pytest.fixture
def history(tmp_path, monkeypatch):
    monkeypatch.setenv("HISTORY", str(tmp_path / "history"))
    monkeypatch.setenv("PYTHONPATH", python_path())
    return tmp_path / "history"


def ready(descriptor):
    return bool(select.select([descriptor], [], [], LONG_S)[0])


def test_an_error_of_unknown_kind_is_seen_in_the_text_that_spark_leaves_of_it():
    last = "headrace.enumerator.errors.UnclassifiedError: writing to table 't': odd"
    assert end_by(RuntimeError(TRACEBACK.format(last=last))).is_unclassified
    assert not end_by(OutageError("away")).is_unclassified


def test_a_job_is_started_again_after_each_failure_and_stopped_after_its_batch(history, tmp_path):
    status = StatusFile(tmp_path / "status.json")
    strategy = FixedDelay(attempts=5, delay_s=0.01)
    end = supervise(order("fails_twice_and_then_runs"), lambda: core(strategy), status)
    assert end == DriverEnd(Ending.STOPPED, "it was stopped")
    request = [line for line in history.read_text().splitlines() if not line.startswith("child")]
    first = ["attempt 0", "attempt 1", "the child is gone", "attempt 2", "the child is gone"]
    assert request == [*first, "instructed to start no further batch", "batch ended", "stopped", "session stopped"]
    shown = json.loads(status.path.read_text())
    assert (shown["state"], shown["active"], shown["standbys"], shown["drivers_started"]) == ("OVER", None, [], 3)
    assert shown["last_failure"] == "ConnectionError: no broker answers"
    assert shown["ended"] == {"ending": "STOPPED", "exit_status": 143, "reason": "it was stopped"}
    assert [path.name for path in tmp_path.glob(".status*") if path.suffix != ".lock"] == []


def test_a_job_that_has_ended_well_and_cannot_be_given_back_has_ended_well(history, monkeypatch):
    """Its sink was away: the driver waited for it until `--stop-timeout`, was killed, and the job had failed."""
    monkeypatch.setenv("ENDS", "is stopped")
    limits = SupervisionLimits(stop_s=3.0), StandbyLimits(0)
    end = supervise(order("cannot_be_given_back"), lambda: StandbyCore(FixedDelay(attempts=1, delay_s=1.0), *limits), None)
    assert end == DriverEnd(Ending.STOPPED, "it was stopped")
    assert history.read_text().splitlines()[-2:] == ["stopped", "gives back"]


def test_a_job_that_is_done_and_whose_session_cannot_be_stopped_is_done(history, monkeypatch):
    """Its JVM had died meanwhile, or did so then: a job that was done was started again."""
    monkeypatch.setenv("ENDS", "completes")
    end = supervise(order("has_a_session_that_cannot_be_stopped"), lambda: core(FixedDelay(attempts=1, delay_s=0.01)), None)
    assert end == DriverEnd(Ending.COMPLETED, "all its queries have ended")
    assert history.read_text().splitlines() == ["attempt", "stops its session"]


def test_a_job_that_forgets_to_return_its_query_is_refused_and_has_not_completed(history):
    """It ended at once, with status 0, and the query with it."""
    end = supervise(order("forgets_to_return_its_query"), lambda: core(FixedDelay(attempts=1, delay_s=0.01)), None)
    assert end.ending is Ending.WRONG_USE
    assert "the job has started a query (flights) that runs, and has not returned it" in end.reason
    assert history.read_text().splitlines() == ["attempt"]


def test_a_driver_that_is_frozen_is_killed(history):
    driver = DriverProcess(order("runs_and_freezes"))
    driver.call()
    while {"queries": ["the query"]} not in driver.news():
        assert ready(driver.reports)
    os.waitid(os.P_PID, driver.pid, os.WSTOPPED | os.WNOWAIT)  # it has stopped
    driver.kill()
    assert ready(driver.process)
    assert driver.end() == DriverEnd(Ending.FAILED, "the driver was killed by SIGKILL")


def test_a_driver_that_a_nameless_signal_has_killed_is_a_failure_like_others(history):
    driver = DriverProcess(order("runs_and_freezes"))
    os.kill(driver.pid, signal.SIGRTMIN + 1)
    assert ready(driver.process)
    assert driver.end() == DriverEnd(Ending.FAILED, f"the driver was killed by signal {signal.SIGRTMIN + 1}")


def test_the_plans_of_a_dry_run_hide_what_those_of_the_job_hide():
    """The sink's options are in them, and a login may be. A new session of Spark's has not what was set in the first one."""
    session = MagicMock(spec=SparkSession)
    session.conf = SimpleNamespace(get={REDACTION: "(?i)url|jaas"}.__getitem__)
    stage = stage_of(session)
    assert stage is session.newSession.return_value
    stage.conf.set.assert_called_once_with(REDACTION, "(?i)url|jaas")


REPORTS_TO_NOBODY = """
import os, subprocess, threading
from headrace.runners.spark.supervision.driver import DriverOrder, _Driver
from headrace.runners.spark.supervision.jobs import FunctionName
from headrace.spark.format import headrace_format
child = subprocess.Popen(["sh", "-c", "echo there; sleep 600"], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
gone, reports = os.pipe()
os.close(gone)
order = DriverOrder(FunctionName("x", "y"), FunctionName.of(headrace_format))
_Driver(order, headrace_format(), reports, threading.Event())._report(armed=True)
"""


def test_a_driver_that_reports_just_as_its_supervisor_dies_leaves_no_process():
    """It ended with a BrokenPipeError before the thread that reads its orders had seen anything."""
    command, environment = [sys.executable, "-c", REPORTS_TO_NOBODY], {**os.environ, TREE_VARIABLE: new_tree()}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as driver:
        child = os.pidfd_open(int(driver.stdout.readline()))
        assert driver.wait() == -signal.SIGKILL
    assert ready(child)
    os.close(child)


def test_a_driver_and_all_its_processes_end_with_the_supervisor(history):
    arguments = ["supervise", f"{JOB}:runs_with_a_child", "--session", f"{JOB}:session"]
    command = [sys.executable, "-c", "from headrace.cli import main; main()", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        driver, child = (os.pidfd_open(int(pid)) for pid in supervisor.stdout.readline().split())
        supervisor.kill()
    assert ready(driver)
    assert ready(child)
    os.close(driver)
    os.close(child)


@pytest.mark.parametrize(("unguarded", "status", "attempts"), [("", 65, 1), ("yes", 2, 0)])
def test_a_program_that_supervises_itself_ends_with_the_status_of_its_job(history, unguarded, status, attempts):
    """Unguarded, the driver, too, wants to supervise: the file that it imports says so unsuccessfully."""
    environment = {**os.environ, "UNGUARDED": unguarded}
    command = [sys.executable, str(JOB)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == status, done.stderr
    assert len(history.read_text().split() if history.exists() else []) == attempts
    assert ("offsets 3 to 7 of t-0 are gone" if status == 65 else "WRONG_USE") in done.stderr


def test_a_program_that_is_a_module_of_a_package_imports_its_neighbours_in_its_driver_too(history, tmp_path):
    (tmp_path / "flights").mkdir()
    (tmp_path / "flights" / "__init__.py").touch()
    (tmp_path / "flights" / "names.py").write_text('NAME = "attempt"')
    (tmp_path / "flights" / "logging.py").write_text("raise ImportError('this is flights.logging, and not logging')")
    (tmp_path / "flights" / "job.py").write_text(
        "from headrace.spark import run\n"
        "from tests.helpers.supervised_job import session, tell\n"
        "from .names import NAME\n\n\n"
        "def job(spark):\n    tell(NAME)\n\n\n"
        'if __name__ == "__main__":\n    run(job, session=session)\n'
    )
    command = [sys.executable, "-m", "flights.job"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert (done.returncode, history.read_text().splitlines()) == (0, ["attempt", "session stopped"]), done.stderr


def supervised_status(history, ends, *options):
    """Of `headrace supervise`, and how often the job was tried."""
    arguments = ["supervise", f"{JOB}:ends_as_told", "--session", f"{JOB}:session", *options]
    command = [sys.executable, "-c", "from headrace.cli import main; main()", *arguments]
    environment = {**os.environ, "ENDS": ends}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG_S, check=False)
    return done.returncode, history.read_text().splitlines().count("attempt")


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("completes", 0),
        ("fails", 1),
        ("is used wrongly", 2),
        ("loses data", 65),
        ("has an older checkpoint", 66),
        ("is fenced", 67),
        ("is stopped", 143),
    ],
)
def test_each_way_to_end_has_its_exit_status(history, ends, status):
    assert supervised_status(history, ends, "--restart", "none") == (status, 1)


def test_a_supervisor_that_is_a_containers_first_process_lets_go_of_what_its_drivers_leave(history):
    """Each restart left the numbers of the dead JVM and of workers taken, until the container had none."""
    first = "import ctypes; assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0"  # PR_SET_CHILD_SUBREAPER: it gets the orphans
    settings = ("attempts=2", "delay=10 ms")
    named = [word for setting in settings for word in ("--config", f"restart-strategy.fixed-delay.{setting}")]
    arguments = ["supervise", f"{JOB}:leaves_a_child", "--session", f"{JOB}:session", "--restart", "fixed-delay", *named]
    command = [sys.executable, "-c", f"{first}; from headrace.cli import main; main()", *arguments]
    assert subprocess.run(command, capture_output=True, timeout=LONG_S, check=False).returncode == 1
    assert history.read_text().splitlines() == ["attempt", "zombies: 0"] * 3


@pytest.mark.parametrize(
    ("strategy", "settings", "tries"),
    [
        ("none", {}, 1),
        ("fixed-delay", {"attempts": "2", "delay": "10 ms"}, 3),
        ("failure-rate", {"max-failures-per-interval": "1", "failure-rate-interval": "1 h", "delay": "10 ms"}, 2),
        ("exponential-delay", {"initial-backoff": "10 ms", "attempts-before-reset-backoff": "1"}, 2),
    ],
)
def test_each_restart_strategy_is_kept_by_its_name(history, strategy, settings, tries):
    named = [f"restart-strategy.{strategy}.{name}={value}" for name, value in settings.items()]
    options = [word for setting in named for word in ("--config", setting)]
    assert supervised_status(history, "fails", "--restart", strategy, *options) == (1, tries)


def test_of_a_process_tree_that_has_ended_no_process_is_left():
    tree = f"a process tree {uuid.uuid4()}"

    def starts():
        if members(tree) != [child.pid]:
            raise RetriableError("not yet")

    with subprocess.Popen(["sleep", "600"], env={**os.environ, TREE_VARIABLE: tree}, start_new_session=True) as child:
        try:
            wait_until(starts, "a program that has just started has no environment for a moment")
            assert members(tree[:-1]) == []
            assert kill_tree(tree) == 1
            assert child.wait() == -signal.SIGKILL
            assert kill_tree(tree) == 0
        finally:
            child.kill()


# --- errors -----------------------------------------------------------------------------------------------------------

TRACEBACK = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed
Traceback (most recent call last):
  File "/x/headrace/connectors/base/commit.py", line 1, in _run
headrace.enumerator.errors.RetriableError: the first

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/headrace/connectors/base/commit.py", line 2, in _run
{last}
 SQLSTATE: XXKST
"""


class AnalysisException(Exception):  # noqa: N818 - PySpark's name
    pass


class IllegalArgumentException(Exception):  # noqa: N818 - PySpark's name
    pass


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (DataLossError("gone"), Ending.DATA_LOSS),
        (StaleEpochError("older copy"), Ending.BAD_CHECKPOINT),
        (FencedError("another"), Ending.FENCED),
        (UsageError("wrong"), Ending.WRONG_USE),
        (BadRecordError("t-0, offset 3"), Ending.WRONG_USE),
        (CorruptDataError("t-0, a checksum"), Ending.FAILED),
        (RuntimeError(TRACEBACK.format(last="headrace.enumerator.errors.BadRecordError: t-0, offset 3")), Ending.WRONG_USE),
        (OutageError("away"), Ending.FAILED),
        (ConnectionError("away"), Ending.FAILED),
        (MemoryError(), Ending.FAILED),
        (AnalysisException("no such column"), Ending.WRONG_USE),
        (RuntimeError("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."), Ending.FENCED),
        (RuntimeError("[STREAM_FAILED] java.io.IOException: disk full"), Ending.FAILED),
        (RuntimeError(TRACEBACK.format(last="headrace.enumerator.errors.DataLossError: t-0 is gone")), Ending.DATA_LOSS),
        (RuntimeError(TRACEBACK.format(last="headrace.connectors.base.commit.StaleEpochError: old")), Ending.BAD_CHECKPOINT),
        (AnalysisException(TRACEBACK.format(last="headrace.enumerator.errors.OutageError: away")), Ending.FAILED),
        (RuntimeError(TRACEBACK.format(last="headrace.nowhere.DataLossError: t-0 is gone")), Ending.FAILED),
        (RuntimeError(TRACEBACK.format(last="ValueError: headrace.enumerator.errors.FencedError: quoted")), Ending.FAILED),
    ],
)
def test_errors_say_whether_another_try_can_help_whichever_way_they_come(error, ending):
    assert end_by(error).ending is ending


HIVE = "org.apache.hadoop.hive.ql.metadata"
NO_METASTORE = f"{HIVE}.HiveException: java.lang.RuntimeException: Unable to instantiate {HIVE}.SessionHiveMetaStoreClient"


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (IllegalArgumentException("java.net.UnknownHostException: namenode"), Ending.FAILED),
        (AnalysisException(NO_METASTORE), Ending.FAILED),
        (AnalysisException("org.apache.thrift.transport.TTransportException: Connection refused"), Ending.FAILED),
        (IllegalArgumentException("java.net.URISyntaxException: Relative path in absolute URI: a:b"), Ending.WRONG_USE),
        (IllegalArgumentException("Wrong FS: hdfs://n/c, expected: file:///"), Ending.WRONG_USE),
        (AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/java.io/in"), Ending.WRONG_USE),
    ],
)
def test_names_and_metastores_that_are_away_are_outages_though_spark_refuses_a_plan_or_setting(error, ending):
    assert end_by(error).ending is ending


def failed_at_start(cause, progress=None):
    """A query that has failed as Spark reports it, after this progress."""
    query = supervised_job.Query()
    query.lastProgress = progress
    error = RuntimeError("[STREAM_FAILED] Query terminated with exception: requirement failed")
    error._cause = cause  # as PySpark's
    query.when_awaited = Mock(side_effect=error)
    return query, error


def test_what_spark_refuses_of_a_query_in_its_own_thread_is_wrong_use():
    query, _ = failed_at_start(IllegalArgumentException("requirement failed: headrace does not support Update mode."))
    with pytest.raises(UsageError, match=f"Spark refuses query {query.id}: .*does not support Update mode") as refused:
        WatchedQuery(query).has_ended(0.1)
    assert end_by(refused.value).ending is Ending.WRONG_USE


@pytest.mark.parametrize(
    ("cause", "progress"),
    [
        (None, None),
        (RuntimeError("disk full"), None),
        (IllegalArgumentException("java.net.UnknownHostException: namenode"), None),
        (IllegalArgumentException("requirement failed"), {"batchId": 3}),
    ],
)
def test_a_failure_that_may_pass_or_comes_later_is_no_refusal(cause, progress):
    query, error = failed_at_start(cause, progress)
    with pytest.raises(RuntimeError) as raised:
        WatchedQuery(query).has_ended(0.1)
    assert raised.value is error


def test_an_end_is_reported_in_one_line_that_names_the_error():
    error = RuntimeError(TRACEBACK.format(last="headrace.enumerator.errors.DataLossError: t-0 is gone"))
    assert end_by(error) == DriverEnd(Ending.DATA_LOSS, "DataLossError: t-0 is gone")
    assert len(end_by(RuntimeError("x" * 10_000)).reason) < 500


# --- names, queries, settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["job", "job.py", ":job", "job.py:", "nowhere.py:job", "a:b c"])
def test_a_job_that_cannot_be_found_is_refused_by_name(text):
    with pytest.raises(UsageError, match="job"):
        FunctionName.parse(text)


def test_a_job_without_a_name_that_another_process_can_find_is_refused():
    with pytest.raises(UsageError, match="not a function at the top of a file"):
        run(lambda spark: None)


def test_a_function_is_found_by_its_name_and_what_is_no_function_is_refused(tmp_path):
    assert load(FunctionName.of(end_by)) is end_by
    with pytest.raises(UsageError, match="there is no function 'nothing' in"):
        load(FunctionName("headrace.spark", "nothing"))
    with pytest.raises(UsageError, match="cannot be loaded: ModuleNotFoundError"):
        load(FunctionName("no_such_module", "job"))
    (tmp_path / "other.py").write_text("def job(): pass\ndef good(spark, n=1): pass\n")
    assert load_job(FunctionName(str(tmp_path / "other.py"), "good"))
    with pytest.raises(UsageError, match="the job job is called with the session alone: too many positional arguments"):
        load_job(FunctionName(str(tmp_path / "other.py"), "job"))
    (tmp_path / "broken.py").write_text("def job(:")
    with pytest.raises(UsageError, match="cannot be loaded: SyntaxError"):
        load(FunctionName(str(tmp_path / "broken.py"), "job"))
    half = FunctionName(str(tmp_path / "half.py"), "job")
    (tmp_path / "half.py").write_text("def job(): pass\n1 / 0\n")
    for _ in range(2):  # what has failed halfway is not a module, the second time neither
        with pytest.raises(ZeroDivisionError):
            load(half)


def test_an_order_is_the_same_after_its_journey():
    sent = DriverOrder(FunctionName("a", "b"), FunctionName("e", "f"), FunctionName("c.py", "d"), {"spark.master": "local[2]"})
    assert DriverOrder.from_line(sent.to_line()) == sent
    assert DriverOrder.from_line(order("x").to_line()) == order("x")


def test_a_job_returns_queries_or_nothing():
    query = supervised_job.Query()
    assert queries_of(None) == []
    assert queries_of(query) == [query]
    assert queries_of((query, query)) == [query, query]
    for other in (7, "query", [query, 7]):
        with pytest.raises(UsageError, match="a job returns a streaming query"):
            queries_of(other)


def test_a_driver_gets_on_when_all_its_queries_do():
    slow, fast, progress = supervised_job.Query(), supervised_job.Query(), ProgressOfQueries()
    slow.id = "slow"
    assert progress.look([slow, fast])
    fast.lastProgress = {"batchId": 8}
    assert not progress.look([slow, fast])
    slow.status = {"isTriggerActive": False}  # nothing to do
    assert progress.look([slow, fast])
    assert not progress.look([fast])
    assert progress.batches == {"slow": 7, "the query": 8}


def test_a_query_that_is_instructed_to_end_has_not_ended_while_its_batch_is_under_way():
    query = supervised_job.Query()
    watched = WatchedQuery(query)
    assert not watched.has_ended(0.1)
    watched.tell_to_end()
    watched.tell_to_end()
    assert query.awaitTermination(0.1)  # as Spark says
    assert [watched.has_ended(0.1) for _ in range(2)] == [False, True]


def test_a_query_that_fails_in_its_last_batch_has_failed():
    query = supervised_job.Query()
    watched = WatchedQuery(query)
    watched.tell_to_end()
    query.when_awaited = Mock(side_effect=RuntimeError("in the last batch"))
    with pytest.raises(RuntimeError, match="in the last batch"):
        watched.has_ended(0.1)


def test_a_query_that_cannot_be_ended_after_its_batch_is_interrupted_and_that_is_said(caplog):
    query = supervised_job.Query()
    del query._jsq  # as Spark Connect's
    watched = WatchedQuery(query)
    watched.tell_to_end()
    assert "cannot be ended after its batch" in caplog.text
    assert watched.has_ended(0.1)


def test_the_strategy_is_given_once():
    assert strategy_settings("none", {}) == {"restart-strategy.type": "none"}
    with pytest.raises(UsageError, match="given twice"):
        strategy_settings("none", {"restart-strategy.type": "fixed-delay"})


def test_a_status_that_cannot_be_written_is_refused_before_a_driver_starts(tmp_path):
    for path in (tmp_path / "nowhere" / "status", tmp_path):
        with pytest.raises(UsageError, match="the status cannot be written"):
            StatusFile(path).check()


def test_a_status_is_its_writers_until_that_ends(tmp_path, caplog):
    """A second start of a job that runs is refused, and had its own end shown as that of the first one."""
    path = tmp_path / "status"
    first, second = StatusFile(path), StatusFile(path)
    first.write({"state": "RUNNING"})
    second.write({"state": "OVER"})
    second.write({"state": "OVER"})
    assert json.loads(path.read_text())["state"] == "RUNNING"
    assert caplog.text.count("another supervisor writes its status") == 1
    del first
    assert second.write({"state": "OVER"})
    assert json.loads(path.read_text())["state"] == "OVER"


def test_a_status_that_a_full_disk_has_refused_is_not_taken_for_written(tmp_path, monkeypatch, caplog):
    status = StatusFile(tmp_path / "status")
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
        assert [status.write({}), status.write({})] == [False, False]
    assert caplog.text.count("the status could not be written") == 1
    assert status.write({})


def test_where_a_supervisor_cannot_be_is_said(monkeypatch):
    what = order("loses_data"), lambda: core(FixedDelay()), None
    with ThreadPoolExecutor() as threads, pytest.raises(UsageError, match="only the main thread"):
        threads.submit(supervise, *what).result()


@pytest.fixture
def submission(monkeypatch):
    """As spark-submit has set its program's environment, with a JVM that says what was submitted."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", "secret")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    settings = {"spark.master": "local[2]", "spark.hadoop.fs.s3a.secret.key": "a=b :c\\d"}
    monkeypatch.setattr(submitted, "submitted_settings", lambda: settings)
    return settings


def test_drivers_of_a_submitted_supervisor_start_jvms_of_their_own_with_the_settings_of_the_submission(submission):
    before = dict(os.environ)
    with as_it_was_submitted():
        assert "PYSPARK_GATEWAY_PORT" not in os.environ
        assert "PYSPARK_GATEWAY_SECRET" not in os.environ
        option, file, shell = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        assert (option, shell) == ("--properties-file", "pyspark-shell")
        text = subprocess.run(["cat", file], capture_output=True, text=True, check=True).stdout  # as a JVM of a driver
    assert text == "spark.master=local[2]\nspark.hadoop.fs.s3a.secret.key=a\\=b\\ \\:c\\\\d\n"
    assert not Path(file).exists()
    assert dict(os.environ) == before


def test_in_cluster_mode_a_supervisor_is_refused(submission):
    submission["spark.submit.deployMode"] = "cluster"
    with pytest.raises(UsageError, match="cluster mode"), as_it_was_submitted():
        pytest.fail("it continues")


def test_the_settings_of_a_submission_are_in_no_file_that_another_process_could_remove(submission):
    """As systemd-tmpfiles does in /tmp after ten days: from then on no driver could be started."""
    with as_it_was_submitted():
        _, file, _ = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        assert Path(file).is_file()  # as the JVM asks
        assert os.readlink(file).startswith("/memfd:")


@pytest.mark.parametrize(("failing", "pipes"), [("pipe", 1), ("Popen", 2), ("pidfd_open", 2)])
def test_a_driver_that_could_not_be_started_leaves_no_descriptor_and_no_process(history, monkeypatch, failing, pipes):
    made, started, pipe = [], [], os.pipe

    def one_more():
        if failing == "pipe" and made:
            return fail()
        ends = pipe()
        made.append(os.fstat(ends[0]).st_ino)
        return ends

    def fail(*arguments, **_):
        started.extend(arguments if failing == "pidfd_open" else ())
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", one_more)
    if failing != "pipe":
        monkeypatch.setattr(subprocess if failing == "Popen" else os, failing, fail)
    with pytest.raises(OSError, match="Too many open files"):
        DriverProcess(order("loses_data"))
    assert len(made) >= pipes  # Popen has one of its own
    assert {f"pipe:[{number}]" for number in made}.isdisjoint(opened())
    assert len(started) == (failing == "pidfd_open")
    for pid in started:
        with pytest.raises(ChildProcessError):  # it was waited for
            os.waitpid(pid, os.WNOHANG)


def opened():
    """What the descriptors of this process are of."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{name}")


OUT_OF_DESCRIPTORS = """
import os, resource, subprocess, sys, threading
from headrace.runners.spark.supervision import driver
jvm = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
ready = threading.Event()
orders = int(sys.argv[1])
threading.Thread(target=driver._take_orders, args=[orders, driver.CALL, ready]).start()
ready.wait()  # it has what it needs
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError:
    print(jvm.pid, flush=True)
threading.Event().wait()
"""


def test_a_driver_that_may_open_no_more_files_ends_with_its_supervisor_and_so_do_its_processes():
    orders, supervisors = os.pipe()
    environment = {**os.environ, TREE_VARIABLE: new_tree(), "PYTHONPATH": python_path()}
    command = [sys.executable, "-c", OUT_OF_DESCRIPTORS, str(orders)]
    driver = subprocess.Popen(command, pass_fds=[orders], env=environment, stdout=subprocess.PIPE, text=True)
    os.close(orders)
    jvm = os.pidfd_open(int(driver.stdout.readline()))
    os.close(supervisors)
    assert driver.wait(LONG_S) == -signal.SIGKILL
    assert ready(jvm)
    os.close(jvm)
    driver.stdout.close()


def test_a_timeout_of_silence_is_a_number_or_never():
    assert seconds_or_never("never", "--silence-timeout") is None
    assert seconds_or_never("7.5", "--silence-timeout") == 7.5
    assert seconds_or_never("2 min", "--silence-timeout") == 120.0
    with pytest.raises(UsageError, match=r"--silence-timeout, unless it is never, must be a duration such as .*, not 'off'"):
        seconds_or_never("off", "--silence-timeout")


def test_settings_for_a_session_that_the_job_makes_itself_are_refused():
    with pytest.raises(UsageError, match="not to both"):
        run(end_by, session=supervised_job.session, conf={"spark.master": "local"})
