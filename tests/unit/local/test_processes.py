"""`headrace run` in real processes, which are killed and frozen, between topics of a Kafka in this process."""

from __future__ import annotations

import itertools
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from headrace.cli import app
from headrace.errors import RetriableError, RunFailedError
from headrace.files import FileSink
from headrace.kafka import DeadLetters, KafkaSink, KafkaSource, Latest
from headrace.run import FixedDelay, Pipeline
from headrace.runners.local.monitoring.status import read_status
from headrace.runners.local.processes import WorkerProcesses
from headrace.runners.local.rescale import is_requested, request_rescale
from headrace.runners.local.savepoints import fetch_savepoint, take_savepoint
from headrace.runners.local.storage.places import run_files
from headrace.runners.waiting import wait_until
from headrace.testing import FakeKafka
from tests.helpers import run_jobs
from tests.helpers.object_store import object_store
from tests.helpers.python_path import python_path

pytestmark = [pytest.mark.full, pytest.mark.timeout(280)]

PARTITIONS = 3
TIMEOUT_S = 120.0

JOB = """
from headrace import Pipeline
from headrace.formats import StringFormat
from headrace.kafka import DeadLetters, KafkaSink, KafkaSource
from tests.helpers.run_jobs import narrow

pipeline = Pipeline(
    KafkaSource(
        {0!r},
        topics=["in"],
        columns=["key", "value", "partition", "deadLetter"],
        value=StringFormat(),
        on_bad_record="keep",
    ),
    KafkaSink({0!r}, topic="out"),
    DeadLetters("letters", narrow),
)
"""
NO_TEXT = b"\xff"
"""What a bad record starts with."""


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        for topic in ("in", "out", "letters"):
            cluster.create_topic(topic, partitions=PARTITIONS)
        yield cluster


def produce(kafka, first, count, bad=()):
    for number in range(first, first + count):
        kafka.append("in", (NO_TEXT if number in bad else b"") + b"%d" % number, partition=number % PARTITIONS)


def seen(kafka, topic="out"):
    return Counter(int(record.value) for record in kafka.records(topic))


def dead(kafka):
    assert all(record.value.startswith(NO_TEXT) for record in kafka.records("letters"))
    return Counter(int(record.value.removeprefix(NO_TEXT)) for record in kafka.records("letters"))


def living():
    """Process id -> (its parent, its group), of all that are not dead yet."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(folder.name)] = (int(fields[1]), int(fields[2]))
    return found


def processes_of(parent):
    """Coordinators that `parent` has started, each with itself and its workers."""
    found = living()
    children = {parent}
    while more := {pid for pid, (above, _) in found.items() if above in children} - children:
        children |= more
    own_group = found[parent][1]
    groups = {}
    for pid in children - {parent}:
        above, group = found[pid]
        if group not in (own_group, above):  # the worker processes is a child of the leader
            groups.setdefault(group, set()).add(pid)
    return groups


def check_gone(group):
    """Raise RetriableError while a process of the group is alive."""
    if any(its_group == group for _, its_group in living().values()):
        raise RetriableError("some live")


COMMAND = "from headrace.cli import main; main()"


class Run:
    def __init__(
        self, kafka, folder, *options, workers, job=JOB, checkpoints=None, environment=None, program=COMMAND, interval="200 ms"
    ):
        """`checkpoints`: by default a folder in `folder`. `interval`: of checkpoints."""
        self.folder = folder
        file = folder / "job_of_this_test.py"
        file.write_text(job.format(kafka.bootstrap) if job is JOB else job)
        settings = {
            "execution.checkpointing.interval": interval,
            "heartbeat.interval": "100 ms",
            "heartbeat.timeout": "2 s",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "200",
            "restart-strategy.fixed-delay.delay": "100 ms",
        }
        command = [sys.executable, "-c", program, "run", f"{file}:pipeline", "--workers", str(workers)]
        command += ["--checkpoints", checkpoints or str(folder / "checkpoints"), *options]
        for name, value in settings.items():
            command += ["--config", f"{name}={value}"]
        self.log = folder / "log"
        with self.log.open("ab") as log:
            environment = os.environ | {"PYTHONPATH": python_path()} | (environment or {})
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def group(self, workers):
        """The coordinator's process id and those of its workers, once all of them are there."""
        found = []

        def complete():
            found[:] = [(leader, members - {leader}) for leader, members in processes_of(self.process.pid).items()]
            return len(found) == 1 and len(found[0][1]) == workers

        self.wait(complete, f"a coordinator and {workers} workers")
        return found[0]

    def wait(self, condition, what):
        def check():
            assert self.process.poll() is None, self.log.read_text()
            if not condition():
                raise RetriableError(self.log.read_text())

        wait_until(check, what, TIMEOUT_S)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(TIMEOUT_S) == 0, self.log.read_text()

    def kill(self):
        if self.process.poll() is None:
            for group in processes_of(self.process.pid):
                os.killpg(group, signal.SIGKILL)
            self.process.kill()
            self.process.wait()


def test_killed_and_frozen_processes_neither_lose_a_record_or_a_dead_letter_nor_write_one_twice(kafka, tmp_path):
    """A worker is killed, another frozen, the coordinator killed, then everything; it continues with fewer workers."""
    bad = range(0, 6000, 4)
    run = Run(kafka, tmp_path, workers=2)
    try:
        produced = 0

        def more(what):
            nonlocal produced
            produce(kafka, produced, 300, bad)
            produced += 300
            wanted = set(range(produced))
            run.wait(lambda: seen(kafka).keys() | dead(kafka).keys() >= wanted, what)

        more("the first records")
        _, workers = run.group(2)
        killed, frozen = sorted(workers)
        produce(kafka, produced, 300, bad)
        produced += 300
        os.kill(killed, signal.SIGKILL)
        more("what a killed worker had read")
        run.group(2)
        os.kill(frozen, signal.SIGSTOP)
        more("what a frozen worker had read")
        assert frozen not in run.group(2)[1]  # SIGKILL reaches it, and its place is taken
        coordinator, workers = run.group(2)
        os.kill(coordinator, signal.SIGKILL)
        more("what was read under a coordinator that was killed")
        following, successors = run.group(2)
        assert following != coordinator
        assert not successors & workers
        run.process.kill()
        run.process.wait()
        wait_until(lambda: check_gone(following), "the end of what the supervisor had started", TIMEOUT_S)
        deleted = "execution.checkpointing.externalized-checkpoint-retention=DELETE_ON_CANCELLATION"
        run = Run(kafka, tmp_path, "--savepoints", str(tmp_path / "savepoints"), "--config", deleted, workers=1)
        more("what came after everything was killed")
        run.stop()
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["lock"]
        (savepoint,) = (tmp_path / "savepoints").iterdir()
        assert fetch_savepoint(savepoint).checkpoint_id > 1
        assert str(savepoint) in run.log.read_text()
        assert seen(kafka) == Counter(range(produced)) - Counter(bad)
        assert dead(kafka) == Counter(range(0, produced, 4))
        log = run.log.read_text()
        assert "its process ended with status -9" in log
        assert "nothing was heard of it for 2 s" in log
        assert "the coordinator's process ended with status -9" in log
    finally:
        run.kill()


TWO_OUTPUTS = """
import os
import signal
from pathlib import Path

from headrace import Pipeline
from headrace.kafka import KafkaSink, KafkaSource
from headrace.runners.local.commit import per_worker
from tests.helpers.run_jobs import narrow, parted

for method in ("listed", "end_all"):  # of one output; the first one's is through then, the second one's is not

    def dying(self, *arguments, real=getattr(per_worker.PerWorkerCommit, method), order=Path({1!r}, method)):
        if self._driver._job.endswith("odd") and order.exists():
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *arguments)

    setattr(per_worker.PerWorkerCommit, method, dying)

pipeline = Pipeline(
    KafkaSource({0!r}, topics=["in"], columns=["key", "value", "partition"]),
    {{"even": KafkaSink({0!r}, topic="out"), "odd": KafkaSink({0!r}, topic="letters")}},
    parted,
)
"""


def test_two_outputs_are_committed_together_though_workers_and_coordinators_are_killed_between_them(kafka, tmp_path):
    orders = [tmp_path / method for method in ("listed", "end_all")]
    with Run(kafka, tmp_path, workers=2, job=TWO_OUTPUTS.format(kafka.bootstrap, str(tmp_path))) as run:
        produced = 0

        def more(what):
            nonlocal produced
            produce(kafka, produced, 300)
            produced += 300
            run.wait(lambda: (seen(kafka) | seen(kafka, "letters")).keys() >= set(range(produced)), what)

        more("the first records")
        os.kill(min(run.group(2)[1]), signal.SIGKILL)
        more("what a killed worker had read")
        for order in orders:
            run.group(2)
            order.touch()
            more(f"what was committed to one output when the coordinator died before {order.name} of the other")
            assert not order.exists()
        run.stop()
        assert seen(kafka) == Counter(range(0, produced, 2))
        assert seen(kafka, "letters") == Counter(range(1, produced, 2))
        assert run.log.read_text().count("the coordinator's process ended with status -9") == len(orders)


def test_of_two_runs_on_copies_of_one_folder_one_continues_and_the_other_ends_with_an_error(kafka, tmp_path):
    """An older copy is refused, and disturbs no process; one that has all that was committed fences the other."""
    checkpoints = [tmp_path / name / "checkpoints" for name in ("first", "older", "copy")]
    for folder in checkpoints:
        folder.parent.mkdir()
    first, *others = (folder.parent for folder in checkpoints)
    runs = [Run(kafka, first, workers=1)]
    try:
        produce(kafka, 0, 300)
        runs[0].wait(lambda: seen(kafka).keys() >= set(range(300)), "the first records")
        copied(checkpoints[0], checkpoints[1])
        produce(kafka, 300, 300)
        runs[0].wait(lambda: seen(kafka).keys() >= set(range(600)), "what the older copy does not know")
        copied(checkpoints[0], checkpoints[2])
        known = last_checkpoint(checkpoints[2])
        runs += [Run(kafka, folder, workers=1) for folder in others]
        assert runs[1].process.wait(TIMEOUT_S) == 1
        assert "it is an older copy" in runs[1].log.read_text()
        runs[2].wait(lambda: last_checkpoint(checkpoints[2]) > known, "a checkpoint of the copy that has taken over")
        produce(kafka, 600, 300)
        assert runs[0].process.wait(TIMEOUT_S) == 1
        assert "claimed it: this one must stop" in runs[0].log.read_text()
        runs[2].wait(lambda: seen(kafka).keys() >= set(range(900)), "the last records")
        runs[2].stop()
        assert seen(kafka) == Counter(range(900))
    finally:
        for run in runs:
            run.kill()


def test_a_coordinator_that_stood_still_continues_with_its_workers(kafka, tmp_path):
    """It took them for silent, killed all of them, and counted each as a failure: with few restarts the run was over."""
    with Run(kafka, tmp_path, workers=2) as run:
        produce(kafka, 0, 300)
        run.wait(lambda: seen(kafka).keys() >= set(range(300)), "the first records")
        coordinator, workers = run.group(2)
        os.kill(coordinator, signal.SIGSTOP)
        started_at = time.monotonic()
        run.wait(lambda: time.monotonic() - started_at > 4.0, "twice the heartbeat timeout")
        os.kill(coordinator, signal.SIGCONT)
        produce(kafka, 300, 300)
        run.wait(lambda: seen(kafka).keys() >= set(range(600)), "the records of meanwhile")
        assert run.group(2) == (coordinator, workers)
        assert re.search(r"the coordinator was still for \d\.\d s; its workers are given", run.log.read_text())
        run.stop()
        assert "nothing was heard" not in run.log.read_text()
        assert seen(kafka) == Counter(range(600))


def test_checkpoints_in_a_store_bear_kills_and_lost_answers_and_a_run_of_another_machine_takes_over(kafka, tmp_path):
    """its own temporary folder makes a machine: nothing else of it keeps two runs apart."""
    url, runs = "s3://bucket/copies/of-in", []
    with ExitStack() as machines_of_this_test, object_store() as store:
        # A socket's path is short.
        machines = [Path(machines_of_this_test.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        store.client().create_bucket(Bucket="bucket")
        login = {"FSSPEC_S3_ENDPOINT_URL": store.address, "FSSPEC_S3_KEY": "key", "FSSPEC_S3_SECRET": "secret"}

        def start(machine, name):
            folder = machine / name
            folder.mkdir(parents=True)
            runs.append(Run(kafka, folder, workers=2, checkpoints=url, environment={**login, "TMPDIR": str(machine)}))
            return runs[-1]

        def wrote(run, produced):
            produce(kafka, produced - 300, 300)
            run.wait(lambda: seen(kafka).keys() >= set(range(produced)), f"{produced} records")

        try:
            first = start(machines[0], "first")
            wrote(first, 300)
            store.fail("lost", 4, "PUT", "copies")
            wrote(first, 600)
            assert store.failed() == 4
            os.kill(first.group(2)[0], signal.SIGKILL)
            wrote(first, 900)
            second = start(machines[0], "second")
            assert second.process.wait(TIMEOUT_S) == 1
            assert f"{url}: another run works with these checkpoints" in second.log.read_text()
            third = start(machines[1], "third")
            assert first.process.wait(TIMEOUT_S) == 1, third.log.read_text()
            assert re.search("were claimed by process|claimed it", first.log.read_text())
            wrote(third, 1200)
            command = [sys.executable, "-c", "from headrace.cli import main; main()", "savepoint", url, str(tmp_path)]
            here = os.environ | login | {"PYTHONPATH": python_path()}
            found = subprocess.run(command, env=here, capture_output=True, text=True, check=True)
            assert fetch_savepoint(Path(found.stdout.strip())).checkpoint_id > 1
            third.stop()
            assert seen(kafka) == Counter(range(1200))
            kept = store.client().list_objects_v2(Bucket="bucket")["Contents"]
            assert len(kept) <= 5, kept
        finally:
            for run in runs:
                run.kill()


def copied(folder, target):
    """A copy of a folder of checkpoints in use, as if all its files were copied at one moment."""

    def copy():
        shutil.rmtree(target, ignore_errors=True)
        before = sorted(os.listdir(folder))
        try:
            shutil.copytree(folder, target)
        except shutil.Error as error:
            raise RetriableError("a file is gone meanwhile") from error
        if sorted(os.listdir(folder)) != before or any(not path.stat().st_size for path in target.glob("*.json")):
            raise RetriableError("it has changed meanwhile")

    wait_until(copy, "a moment without a new checkpoint", TIMEOUT_S)


def last_checkpoint(folder):
    return max(int(path.stem.split("-")[1]) for path in folder.glob("checkpoint-*.json"))


def lag(folder):
    """Partition -> records behind, as `headrace top` shows it; None while it is not known."""
    status = read_status(folder)
    request = None if status is None else status["lag"]
    return None if request is None else {split_id.partition("@")[0]: records for split_id, records in request["splits"].items()}


def phase(folder):
    status = read_status(folder)
    return None if status is None else status["phase"]


def test_a_run_running_is_rescaled_and_neither_loses_a_record_nor_writes_one_twice(kafka, tmp_path):
    """1 worker, 8, 1, under load; a coordinator that dies with the request before it finds it again; then it is stopped."""
    run = Run(kafka, tmp_path, "--savepoints", str(tmp_path / "savepoints"), workers=1)
    folder, produced = tmp_path / "checkpoints", 0
    try:
        for workers in (8, 1):
            run.group(9 - workers)
            run.wait(lambda: phase(folder) == "RUNNING", "a run that has recovered")
            written = len(kafka.records("out"))
            produce(kafka, produced, 600)
            produced += 600
            run.wait(lambda least=written: len(kafka.records("out")) > least, "some of the records")
            leader, before = run.group(9 - workers)
            if workers == 1:
                os.kill(leader, signal.SIGSTOP)
                request_rescale(folder, workers)
                os.kill(leader, signal.SIGKILL)
            done = CliRunner().invoke(app, ["rescale", str(folder), str(workers)])
            assert done.exit_code == 0, done.output
            following, after = run.group(workers)
            assert following != leader
            assert not after & before
            assert not is_requested(folder)
        run.wait(lambda: seen(kafka).keys() >= set(range(produced)), "all of the records")
        run.wait(lambda: lag(folder) == dict.fromkeys(("in-0", "in-1", "in-2"), 0), "no lag of any split")
        run.stop()
        assert seen(kafka) == Counter(range(produced))
        assert len(list((tmp_path / "savepoints").iterdir())) == 1
        log = run.log.read_text()
        assert "rescaling from 1 to 8 workers" in log
        assert "rescaling from 8 to 1 workers" in log
    finally:
        run.kill()


def bounded(kafka, sink, transform=None):
    columns = ["key", "value", "headers"]
    return Pipeline(KafkaSource(kafka.bootstrap, topics=["in"], stop=Latest(), columns=columns), sink, transform)


def test_a_bounded_source_is_copied_once_and_a_failing_transform_is_named(kafka, tmp_path):
    produce(kafka, 0, 300)
    sink = KafkaSink(kafka.bootstrap, topic="out")
    settings = {"checkpoints": str(tmp_path / "checkpoints"), "workers": 2, "interval_s": 0.5, "restart": FixedDelay(1, 0.1)}
    where = r"the transform failed on a batch of 100 rows of in-\d, offsets 0 up to 100"
    what = r"ValueError: a bug of the user's \(.*run_jobs.py:\d+\)"
    with pytest.raises(RunFailedError, match=rf"{where}: {what}; not restarted: fixed-delay"):
        bounded(kafka, sink, run_jobs.fails).run(**settings)
    assert not seen(kafka)
    savepoint = bounded(kafka, sink).run(**settings, savepoints=str(tmp_path / "savepoints"))
    assert seen(kafka) == Counter(range(300))
    assert savepoint == take_savepoint(run_files(str(tmp_path / "checkpoints")), tmp_path / "savepoints")
    bounded(kafka, sink).run(checkpoints=str(tmp_path / "moved"), from_savepoint=str(savepoint))
    assert seen(kafka) == Counter(range(300))  # all of it was read before the savepoint


def test_rows_become_visible_after_max_delay_and_not_at_the_interval(kafka, tmp_path):
    delay = ["--config", "execution.checkpointing.max-delay=10ms"]
    with Run(kafka, tmp_path, *delay, workers=2, interval="1 h") as run:
        for first in (0, 100):
            produce(kafka, first, 100)
            run.wait(lambda first=first: len(seen(kafka)) == first + 100, f"{first + 100} records")
        run.stop()
    assert seen(kafka) == Counter(range(200))


UNGUARDED = """
import sys

from headrace import Pipeline
from headrace.kafka import KafkaSink, KafkaSource, Latest

print("loaded", flush=True)
columns = ["key", "value", "headers"]
source = KafkaSource({0!r}, topics=["in"], stop=Latest(), columns=columns)
Pipeline(source, KafkaSink({0!r}, topic="out")).run(checkpoints={1!r})
"""


def test_a_script_that_calls_run_at_its_top_is_reported_so_and_not_run_again_and_again(kafka, tmp_path):
    """Each start of the coordinator imports the script, which did all again that it does, and was started again for ever."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(kafka.bootstrap, str(tmp_path / "checkpoints")))
    environment = os.environ | {"PYTHONPATH": python_path()}
    command = [sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("call it under if __name__ == '__main__'")
    assert "starts again" not in done.stderr
    assert done.stdout.splitlines().count("loaded") == 2
    assert not kafka.records("out")


GUARDED = """
from headrace import Pipeline
from headrace.kafka import KafkaSink, KafkaSource, Latest

if __name__ == "__main__":
    def copied(batch):
        return batch

    source = KafkaSource({0!r}, topics=["in"], stop=Latest(), columns=["key", "value"])
    Pipeline(source, KafkaSink({0!r}, topic="out"), copied).run(checkpoints={1!r})
"""


@pytest.mark.parametrize(
    ("given", "said"), [("a file", "cannot find a part"), ("-c", "cannot find a part"), ("-", "comes from standard input")]
)
def test_a_function_that_no_other_process_finds_ends_the_run_at_once(kafka, tmp_path, given, said):
    """Of a notebook, or under the guard: the coordinator died of it before it could tell, and was started again for ever."""
    code = GUARDED.format(kafka.bootstrap, str(tmp_path / "checkpoints"))
    (tmp_path / "script.py").write_text(code)
    arguments = {"a file": [tmp_path / "script.py"], "-c": ["-c", code], "-": ["-"]}[given]
    command, environment = [sys.executable, *arguments], os.environ | {"PYTHONPATH": python_path()}
    done = subprocess.run(command, input=code, capture_output=True, text=True, check=False, env=environment, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert "starts again" not in done.stderr


IN_A_POOL = """
from {0} import {1} as Pool

from headrace import Pipeline
from headrace.files import FileSink, FileSource

def copy(number):
    Pipeline(FileSource({2!r}, format="text"), FileSink({2!r} + f"-{{number}}")).run(checkpoints={2!r} + f"-c{{number}}")

if __name__ == "__main__":
    copy(0)
    with Pool(2) as pool:
        print(len(list(pool.map(copy, [1, 2]))))
"""


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [("concurrent.futures", "ProcessPoolExecutor", "2"), ("multiprocessing", "Pool", "use ProcessPoolExecutor")],
)
def test_a_script_runs_a_pipeline_itself_and_others_in_processes(tmp_path, module, name, said):
    """A fork of the script took the script's fork server for its own, could start nothing, and tried for ever."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file.txt").write_text("line\n")
    (tmp_path / "script.py").write_text(IN_A_POOL.format(module, name, str(tmp_path / "in")))
    command, environment = [sys.executable, tmp_path / "script.py"], os.environ | {"PYTHONPATH": python_path()}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=TIMEOUT_S)
    assert said in (done.stdout or done.stderr).splitlines()[-1]
    assert parquet.read_table(tmp_path / "in-0").num_rows == 1
    assert [(tmp_path / f"in-{number}").exists() for number in (1, 2)] == [bool(done.stdout)] * 2


INTO_A_TABLE = """
import deltalake
import pyarrow as pa
from headrace import Pipeline
from headrace.delta import DeltaSink
from headrace.kafka import KafkaSource, Latest

source = KafkaSource({0!r}, topics=["in"], stop=Latest(), columns=["value"])
sink = DeltaSink({1!r})
sink.create_table(source.schema)
{2}
pipeline = Pipeline(source, sink)
if __name__ == "__main__":
    pipeline.run(checkpoints={1!r} + "-checkpoints")
    # not by reading it: Arrow's threads have ended a process by SIGABRT as it exited
    print(sum(pa.table(deltalake.DeltaTable({1!r}).get_add_actions()).column("num_records").to_pylist()))
"""


@pytest.mark.parametrize(("more", "said"), [("", "3"), ("deltalake.DeltaTable({1!r})", "do that under if __name__")])
def test_a_script_that_makes_its_table_as_it_is_loaded_runs(kafka, tmp_path, more, said):
    """deltalake does not work in a fork of a process that has used it: each worker died of it, and started again for ever."""
    produce(kafka, 0, 3)
    place = kafka.bootstrap, str(tmp_path / "table")
    (tmp_path / "script.py").write_text(INTO_A_TABLE.format(*place, more.format(*place)))
    command, environment = [sys.executable, tmp_path / "script.py"], os.environ | {"PYTHONPATH": python_path()}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=TIMEOUT_S)
    assert said in (done.stdout or done.stderr).splitlines()[-1]
    assert done.returncode == (0 if done.stdout else 1)
    assert "starts again" not in done.stderr


def test_what_no_worker_can_do_ends_the_run_without_a_restart(kafka, tmp_path):
    produce(kafka, 0, 3)
    source = KafkaSource(kafka.bootstrap, topics=["in"], columns=["key", "timestamp"])
    pipeline = Pipeline(source, KafkaSink(kafka.bootstrap, topic="out"))
    with pytest.raises(RunFailedError, match=r"UsageError: rows for Kafka have a column 'value'.*got .*'timestamp'"):
        pipeline.run(checkpoints=str(tmp_path / "a"), restart=FixedDelay(1000, 0.0))
    pipeline = Pipeline(source, KafkaSink(kafka.bootstrap, topic="out"), DeadLetters("dead"))
    with pytest.raises(RunFailedError, match="UsageError: DeadLetters needs the column 'deadLetter'"):
        pipeline.run(checkpoints=str(tmp_path / "b"), restart=FixedDelay(1000, 0.0))


def test_files_take_every_row_once(kafka, tmp_path):
    produce(kafka, 0, 300)
    bounded(kafka, FileSink(str(tmp_path / "out"))).run(checkpoints=str(tmp_path / "checkpoints"), workers=2, interval_s=0.2)
    assert Counter(map(int, parquet.read_table(tmp_path / "out").column("value").to_pylist())) == Counter(range(300))


def child_of_worker_processes(_):
    """A worker's whole lifetime."""


def open_files(pid):
    return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())


@pytest.fixture
def worker_processes():
    made = WorkerProcesses()
    yield made
    made.close(0.0)


def test_a_process_that_cannot_be_started_is_one_worker_that_failed_and_takes_no_other_along(worker_processes):
    """It ended the process that all are forked from, and with it every worker, without a reason."""
    request, gone = queue.SimpleQueue(), queue.SimpleQueue()
    worker_processes.watch(lambda number, how: request.put((number, how)), gone.put)
    pid = worker_processes._process.pid
    worker_processes.start(0, time.sleep, 3600)
    wait_until(lambda: check_has_child(pid), "the first worker", TIMEOUT_S)
    worker, files = children_of(pid), open_files(pid)
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    free = (number for number in itertools.count() if number not in files)
    limit = next(itertools.islice(free, 3, None))  # three are left: the first of two pipes is made
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    for number in range(1, 30):
        worker_processes.start(number, child_of_worker_processes, None)
        assert request.get(timeout=TIMEOUT_S) == (number, "its process could not be started: [Errno 24] Too many open files")
    assert open_files(pid) == files
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
    worker_processes.start(30, child_of_worker_processes, None)
    assert request.get(timeout=TIMEOUT_S) == (30, "its process ended with status 0")
    assert children_of(pid) == worker
    assert gone.empty()


def children_of(parent):
    return [pid for pid, (above, _) in living().items() if above == parent]


def check_has_child(parent):
    if not children_of(parent):
        raise RetriableError("none yet")


FIRST_OF_A_CONTAINER = """
import ctypes, os, sys
from pathlib import Path

from headrace.cli import main

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
try:
    main()
finally:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    dead = [pid for pid in children if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"]
    print("left dead:", len(dead), flush=True)
"""


def test_a_run_that_is_a_containers_first_process_waits_for_what_its_coordinators_leave(kafka, tmp_path):
    """Each restart kept the numbers of the worker processes and the workers, until the container would have had none."""
    with Run(kafka, tmp_path, workers=2, program=FIRST_OF_A_CONTAINER) as run:
        for count in (1, 2):
            produce(kafka, 100 * (count - 1), 100)
            run.wait(lambda count=count: seen(kafka).keys() >= set(range(100 * count)), f"{count} is alive")
            os.kill(run.group(2)[0], signal.SIGKILL)
        produce(kafka, 200, 100)
        run.wait(lambda: seen(kafka) == Counter(range(300)), "the third lifetime")
        run.stop()
        assert "left dead: 0" in run.log.read_text()
