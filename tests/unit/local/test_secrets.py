"""What a run leaves lying about holds no secret: it is searched for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.errors import RetriableError
from headrace.runners.local.monitoring.status import read_status
from headrace.runners.waiting import wait_until
from headrace.testing import FakeKafka
from tests.helpers.python_path import python_path
from tests.helpers.schema_registry import FakeRegistry
from tests.helpers.secret_search import PASSWORD, REGISTRY_PASSWORD, SCHEMA, USER, files_with

TIMEOUT_S = 60.0
JOB = """
import os

from headrace import Pipeline
from headrace.formats import RegisteredAvroFormat, SchemaRegistry
from headrace.kafka import DeadLetters, KafkaSink, KafkaSource
from tests.helpers.secret_search import login

registry = SchemaRegistry({registry!r}, {{"basic.auth.user.info": "me:" + os.environ["OF_REGISTRY"]}})
value, properties = RegisteredAvroFormat.of_subject(registry, "in-value"), login(os.environ["OF_KAFKA"])
columns = ["value", "deadLetter"]
source = KafkaSource(
    {kafka!r}, topics=["in"], columns=columns, value=value, on_bad_record="keep", properties=properties
)
pipeline = Pipeline(source, KafkaSink({kafka!r}, topic="out", value=value, properties=properties), DeadLetters("letters"))
"""


def started(folder: Path, password: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "run", f"{folder / 'job.py'}:pipeline"]
    command += ["--workers", "2", "--checkpoints", str(folder / "checkpoints"), "--savepoints", str(folder / "savepoints")]
    command += ["--config", "execution.checkpointing.interval=100 ms", "--config", "restart-strategy.type=none"]
    environment = os.environ | {"PYTHONPATH": python_path(), "OF_KAFKA": password, "OF_REGISTRY": REGISTRY_PASSWORD}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def copied_if_there(file: str, target: str) -> None:
    """A checkpoint may be removed meanwhile."""
    with suppress(FileNotFoundError):
        shutil.copy(file, target)


@pytest.mark.full
@pytest.mark.timeout(180)
def test_no_secret_is_in_the_folder_the_status_the_savepoint_and_the_output_of_headrace_run(tmp_path):
    with FakeKafka(users={USER: PASSWORD}) as kafka, FakeRegistry(user=f"me:{REGISTRY_PASSWORD}") as registry:
        for topic in ("in", "out", "letters"):
            kafka.create_topic(topic, partitions=2)
        kafka.append("in", b"\0" + registry.register("in-value", SCHEMA).to_bytes(4, "big") + b"\2", b"bad")
        (tmp_path / "job.py").write_text(JOB.format(kafka=kafka.bootstrap, registry=registry.url))
        run = started(tmp_path, PASSWORD)

        def check() -> None:
            assert run.poll() is None, (tmp_path / "log").read_text()
            if not (kafka.records("out") and kafka.records("letters") and read_status(tmp_path / "checkpoints")):
                raise RetriableError("nothing was written yet")

        try:
            wait_until(check, "what is written, and the status", TIMEOUT_S)
            shutil.copytree(tmp_path / "checkpoints", tmp_path / "meanwhile", copy_function=copied_if_there)
            run.send_signal(signal.SIGTERM)
            assert run.wait(TIMEOUT_S) == 0, (tmp_path / "log").read_text()
        finally:
            run.kill()
            run.wait()
        assert started(tmp_path, f"{PASSWORD}-of-before").wait(TIMEOUT_S) != 0
    assert "the broker refused our credentials" in (tmp_path / "log").read_text()
    assert len(list((tmp_path / "savepoints").iterdir())) == 1
    assert len(list((tmp_path / "meanwhile").iterdir())) > 2
    assert files_with([PASSWORD, REGISTRY_PASSWORD], tmp_path) == []


def test_the_search_finds_a_secret(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "log").write_bytes(b"\xff" + PASSWORD.encode())
    (tmp_path / "other").write_text("nothing")
    assert files_with([PASSWORD], tmp_path) == ["below/log"]
