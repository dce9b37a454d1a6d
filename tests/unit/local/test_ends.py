"""How a run of `headrace run` ends: its last checkpoint, group offsets and savepoint, and what its terminal is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress

import pytest

from headrace.kafka import At, KafkaSink, KafkaSource, Latest
from headrace.run import Pipeline
from headrace.runners.local.rescale import request_rescale
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka import NewRecord, Refuse
from tests.helpers.python_path import python_path
from tests.unit.local.test_processes import COMMAND, Run, living, produce, seen

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]

COORDINATOR_LOAD_IN_PROGRESS = 14
UNKNOWN_MEMBER_ID = 25
GROUP_AUTHORIZATION_FAILED = 30

JOB = """
from headrace import Pipeline
from headrace.kafka import KafkaSink, KafkaSource, Latest
{0}
source = KafkaSource({1!r}, topics=["in"], columns=["key", "value"], group="g", stop={2})
pipeline = Pipeline(source, KafkaSink({1!r}, topic="out"), {3})
"""

NOTES = """
from pathlib import Path
def note(batch):
    if b"30" in batch.column("value").to_pylist():
        Path(__file__).with_name("has 30").touch()
    return batch
"""


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, partitions=3)
        produce(cluster, 0, 30)
        yield cluster


def job(kafka, imports="", stop="Latest()", function="None"):
    return JOB.format(imports, kafka.bootstrap, stop, function)


def ended(run):
    return run.process.wait(100), run.log.read_text()


def test_a_run_that_ends_waits_until_its_group_has_the_last_positions(kafka, tmp_path):
    """The coordinator of a group is being loaded: the run is over, and the only try for its last positions fails."""
    refused = kafka.fault("OffsetCommit", Refuse(COORDINATOR_LOAD_IN_PROGRESS), times=8)
    status, log = ended(Run(kafka, tmp_path, workers=1, job=job(kafka)))
    assert refused.fired == 8
    assert (status, log) == (0, "")
    assert kafka.committed("g") == {("in", each): 10 for each in range(3)}


def test_a_run_that_ends_says_which_positions_its_group_does_not_have(kafka, tmp_path):
    refused = kafka.fault("OffsetCommit", Refuse(GROUP_AUTHORIZATION_FAILED), times=1000)
    status, log = ended(Run(kafka, tmp_path, workers=1, job=job(kafka)))
    assert refused.fired
    assert status == 0
    assert "the positions of the last checkpoint are not published" in log
    assert seen(kafka) == Counter(range(30))


@pytest.mark.parametrize("code", [GROUP_AUTHORIZATION_FAILED, UNKNOWN_MEMBER_ID])
def test_a_group_that_refuses_offsets_for_a_while_is_one_warning_of_a_run(kafka, tmp_path, code):
    """Regression: a right that was taken away ended the run, a consumer of the group restarted it at each checkpoint."""
    refused = kafka.fault("OffsetCommit", Refuse(code), times=5)
    with Run(kafka, tmp_path, workers=1, job=job(kafka, stop="None")) as run:
        run.wait(lambda: refused.fired == 5, "commits that are refused")
        run.wait(lambda: set(kafka.committed("g").values()) == {10}, "the commit of the same positions again")
        run.stop()
    log = run.log.read_text()
    assert (log.count("could not be published now"), log.count("are published again")) == (1, 1)
    assert "starts again" not in log
    assert seen(kafka) == Counter(range(30))


def test_a_stop_takes_its_checkpoint_at_once_whatever_the_minimum_pause(kafka, tmp_path):
    """Flink's savepoints are forced checkpoints: `execution.checkpointing.min-pause` is not for them."""
    noted = job(kafka, NOTES, stop="None", function="note")
    run = Run(kafka, tmp_path, "--config", "execution.checkpointing.min-pause=1 h", workers=1, job=noted)
    checkpoints = (tmp_path / "checkpoints").glob
    run.wait(lambda: any(checkpoints("checkpoint-*.json")), "the first checkpoint, of whatever was read by then")
    produce(kafka, 30, 3)
    run.wait((tmp_path / "has 30").exists, "a record that no checkpoint has")
    assert not seen(kafka)[30]
    run.stop()
    assert seen(kafka)[30] == 1
    assert not run.log.read_text().count("failed")


def test_a_stop_while_a_rescale_starts_its_workers_takes_its_checkpoint(kafka, tmp_path):
    """A job that is imported for more than a second is waited for, as it has run before."""
    slow = "import pathlib, time; again = pathlib.Path(__file__).with_name('again'); time.sleep(3 if again.exists() else 0)"
    with Run(kafka, tmp_path, "--savepoints", str(tmp_path / "s"), workers=1, job=job(kafka, slow, stop="None")) as run:
        run.wait(lambda: seen(kafka) == Counter(range(30)), "the first checkpoint")
        first = run.group(1)[0]
        (tmp_path / "again").touch()
        request_rescale(tmp_path / "checkpoints", 2)
        run.wait(lambda: first not in living(), "the end of the coordinator before")
        run.process.terminate()
        status, log = ended(run)
    assert (status, log.count("failed")) == (0, 0)
    assert list((tmp_path / "s").iterdir())


@pytest.mark.parametrize("place", ["file", "file/in"])
def test_a_savepoint_folder_that_cannot_be_one_is_refused_before_anything_is_read(kafka, tmp_path, place):
    (tmp_path / "file").touch()
    status, log = ended(Run(kafka, tmp_path, "--savepoints", str(tmp_path / place), workers=1, job=job(kafka)))
    assert status == 2
    assert f"the folder for savepoints {tmp_path / place} cannot be used" in log
    assert not kafka.records("out")


def test_a_savepoint_folder_that_is_gone_for_good_at_the_end_is_an_error_and_no_restart(kafka, tmp_path):
    folder = tmp_path / "savepoints"
    run = Run(kafka, tmp_path, "--savepoints", str(folder), workers=1, job=job(kafka, stop="None"))
    run.wait(lambda: seen(kafka) == Counter(range(30)), "the first checkpoint")
    folder.rmdir()
    folder.touch()
    run.process.terminate()
    status, log = ended(run)
    assert (status, "cannot be used" in log, "starts again" in log) == (2, True, False)


def test_a_module_in_the_folder_of_the_job_is_found_as_it_is_by_python(kafka, tmp_path):
    (tmp_path / "module_of_this_job.py").write_text("")
    status, log = ended(Run(kafka, tmp_path, workers=2, job=job(kafka, "import module_of_this_job")))
    assert (status, log) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_without_standard_streams_is_as_any_other(kafka, tmp_path, closed):
    """What is opened next gets the number of a stream that is closed, and everything that is logged."""
    file = tmp_path / "job_of_this_test.py"
    file.write_text(job(kafka))
    command = f'exec {sys.executable} -c "{COMMAND}" run {file}:pipeline --checkpoints {tmp_path}/checkpoints {closed}'
    environment = os.environ | {"PYTHONPATH": python_path()}
    assert subprocess.run(["/bin/sh", "-c", command], env=environment, check=False, timeout=100).returncode == 0
    assert seen(kafka) == Counter(range(30))


def test_a_run_in_a_script_ends_with_its_groups_positions_too(kafka, tmp_path):
    refused = kafka.fault("OffsetCommit", Refuse(COORDINATOR_LOAD_IN_PROGRESS), times=8)
    source = KafkaSource(kafka.bootstrap, topics=["in"], columns=["key", "value"], group="g", stop=Latest(), start=At(0))
    Pipeline(source, KafkaSink(kafka.bootstrap, topic="out")).run(checkpoints=str(tmp_path))
    assert refused.fired == 8
    assert set(kafka.committed("g").values()) == {10}


# --- bad records ---------------------------------------------------------------------------------------------------------

BAD = """
import pyarrow as pa
from headrace import Pipeline
from headrace.files import FileSource
from headrace.formats import AvroFormat
from headrace.kafka import KafkaSource, Latest
from headrace.sinks import FunctionSink

pipeline = Pipeline({0}, FunctionSink(len))
"""
SCHEMA = "schema=pa.schema([('a', pa.int64())])"


@pytest.mark.parametrize(("source", "named"), [
    (f"FileSource(FOLDER, format='jsonl', {SCHEMA})", "a, record 0: is not JSON"),
    (f"FileSource(FOLDER, format='parquet', {SCHEMA})", "a, record 0: the file cannot be read here"),
    ("FileSource(FOLDER, format='jsonl')", "a: no schema can be inferred"),
    ("""KafkaSource(KAFKA, topics=['in'], stop=Latest(), value=AvroFormat('"string"'))""", "the value cannot be decoded"),
    ("KafkaSource(KAFKA, topics=['far'], stop=Latest())", "timestamp does not fit"),
], ids=["line", "file", "inference", "value", "time"])  # fmt: skip
def test_a_bad_record_ends_a_run_at_once_where_it_fails(kafka, tmp_path, source, named):
    """Every worker would read it: the run restarted without end."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a").write_text("{bad\n")
    kafka.create_topic("far")
    kafka.append("far", NewRecord(b"x", timestamp_ms=2**62))
    written = BAD.format(source.replace("FOLDER", repr(str(tmp_path / "files"))).replace("KAFKA", repr(kafka.bootstrap)))
    with Run(kafka, tmp_path, workers=1, job=written) as run:
        status, log = run.process.wait(30), run.log.read_text()
    assert (status, named in log, "starts again" in log, "started in" in log) == (1, True, False, False), log


# --- a stop at the start ---------------------------------------------------------------------------------------------------

AWAY = """
import pyarrow as pa
from headrace import Pipeline
from headrace.files import FileSink, FileSource
from headrace.kafka import KafkaSink, KafkaSource

kafka = KafkaSource({0!r}, topics=["in"], columns=["value"])
files = FileSource({1!r}, format="jsonl", schema=pa.schema([("value", pa.string())]))
pipeline = Pipeline({2}, {3})
"""


@pytest.fixture
def silent():
    """The address of a server that accepts connections, and answers nothing. How many it has accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[socket.socket] = []

        def accept():
            with suppress(OSError):
                while True:
                    accepted.append(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", accepted
        server.shutdown(socket.SHUT_RDWR)
        for each in accepted:
            each.close()


@pytest.mark.parametrize(("source", "sink", "options"), [
    ("kafka", "FileSink(OUT)", {}),  # at the first discovery
    ("files", "KafkaSink(SERVER, topic='out')", {}),  # as it recovers
    ("files", "FileSink(OUT)", {"checkpoints": "http://{}/run"}),  # before it has its checkpoints
], ids=["source", "sink", "checkpoints"])  # fmt: skip
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_heeded_while_a_run_that_starts_waits_for_a_server(tmp_path, silent, source, sink, options, number):
    """It was for a minute, until the server was given up, and the run failed then."""
    server, accepted = silent
    (tmp_path / "in").mkdir()
    sink = sink.replace("OUT", repr(str(tmp_path / "out"))).replace("SERVER", repr(server))
    given = {name: value.format(server) for name, value in options.items()}
    written = AWAY.format(server, str(tmp_path / "in"), source, sink)
    with Run(None, tmp_path, workers=1, job=written, **given) as run:
        run.wait(lambda: accepted, "a connection")
        run.process.send_signal(number)
        assert run.process.wait(20.0) == 0, run.log.read_text()
        assert "Traceback" not in run.log.read_text()


def test_a_savepoint_that_a_stop_at_the_start_does_not_write_is_missed(tmp_path, silent):
    server, accepted = silent
    written = AWAY.format(server, str(tmp_path), "files", f"FileSink({str(tmp_path / 'out')!r})")
    asked = ("--savepoints", str(tmp_path / "savepoints"))
    with Run(None, tmp_path, *asked, workers=1, job=written, checkpoints=f"http://{server}/run") as run:
        run.wait(lambda: accepted, "a connection")
        run.process.terminate()
        status, log = ended(run)
    assert (status, "stopped, without a savepoint, before" in log) == (1, True)
