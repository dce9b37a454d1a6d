"""A session that starts sooner: its JVM from kept classes, its Python processes from one that has everything loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from headrace.runners.spark_processes.spark_archive import SUBMIT_OPTIONS, archive_of_spark
from tests.helpers.kafka_tools import created, produce

pytestmark = pytest.mark.timeout(420)
ROOT = Path(__file__).parents[3]

JOB = """
import json, sys
import psutil
from headrace.spark import session_builder
settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
spark = session_builder().config(map=settings).getOrCreate()
reader = spark.read.format("headrace").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
values = sorted(bytes(row.value).decode() for row in reader.load().select("value").collect())
def reported(rows):
    import os, pyarrow as pa
    for row in rows:
        pass
    with open(f"/proc/{os.getpid()}/cmdline") as file:
        yield pa.RecordBatch.from_pydict({"line": [file.read()]})
workers = [row.line for row in spark.range(2).mapInArrow(reported, "line string").collect()]
stream = spark.readStream.format("headrace").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
query = stream.option("startingOffsets", "earliest").load().writeStream.format("noop").start()
query.processAllAvailable()
rows = sum(progress["numInputRows"] for progress in query.recentProgress)
def command_of(process):
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return []
running = {process: command_of(process) for process in psutil.Process().children(recursive=True)}
found = [process for process, command in running.items() if command and command[-1].endswith("source_runner")]
planners = [" ".join(running[process]) for process in found]
query.stop()
_, alive = psutil.wait_procs(found, 60)
print(json.dumps({"values": values, "workers": workers, "rows": rows, "planners": planners, "alive": len(alive)}))
"""


def test_classes_and_python_processes_are_taken_over_and_the_answer_is_the_same(broker, topic, tmp_path, monkeypatch):
    file = archive_of_spark().at_hand()
    name = created(broker.bootstrap, topic, 1)
    produce(broker.bootstrap, name, {0: [b"a", b"b", b"c"]})
    loaded = tmp_path / "loaded"
    monkeypatch.setenv(SUBMIT_OPTIONS, f"-Xlog:class+load:file={loaded}")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "jupyter")  # as notebooks have it: it must not be what runs the source
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    command = [sys.executable, "-c", JOB, broker.bootstrap, name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["values"] == ["a", "b", "c"]
    assert all("spark_processes.zygote" in line for line in found["workers"])
    assert found["rows"] == 3
    assert len(found["planners"]) == 1
    assert "headrace.runners.spark_processes.daemon" in found["planners"][0]  # it waits for the fork, and ends with it
    assert found["alive"] == 0
    # what is made at run time cannot be kept
    lines = [line for line in loaded.read_text().splitlines() if " org.apache.spark." in line and "$$Lambda" not in line]
    shared = [line for line in lines if "shared objects file (top)" in line]
    assert file.is_file()
    assert len(shared) > 0.8 * len(lines) > 0


SMALL_JOB = """
import json, sys
from headrace.spark import {builder}
settings = {{"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}}
spark = {builder}().master("local[2]").config(map=settings).getOrCreate()
reader = spark.read.format("headrace").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
frame = reader.load()
values = sorted(bytes(row.value).decode() for row in frame.select("value").collect())
print(json.dumps({{"values": values, "tasks": frame.rdd.getNumPartitions()}}))
"""


@pytest.fixture
def four(broker, topic):
    """A topic of four partitions, 300 records each: more than share a task unless it is known that two run at once."""
    name = created(broker.bootstrap, topic, 4)
    produce(broker.bootstrap, name, {partition: [b"%d" % partition] * 300 for partition in range(4)})
    return name


def ran(command, **environment):
    chosen = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    done = subprocess.run(command, cwd=ROOT, env=chosen, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.long
def test_a_library_starts_a_thread_in_the_zygote_and_spark_still_finds_its_python(broker, four, tmp_path):
    """Regression: the zygote gave up and took Spark's Python with it, so Spark found no data source."""
    command = [sys.executable, "-c", SMALL_JOB.format(builder="warm_session_builder"), broker.bootstrap, four]
    found, said = ran(command, OPENBLAS_NUM_THREADS="2", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "not forking" in said
    assert found == {"values": sorted(str(partition) for partition in range(4) for _ in range(300)), "tasks": 2}


@pytest.mark.long
def test_under_spark_submit_the_data_source_is_found_though_the_jvms_python_lacks_it(broker, four, tmp_path):
    """Regression: the builder set variables for a JVM that was running already."""
    for name in ("python3", "python"):
        bare = tmp_path / name
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
        bare.chmod(0o755)
    job = tmp_path / "job.py"
    job.write_text(SMALL_JOB.format(builder="session_builder"))
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    # the program itself runs in ours, as in an image whose entry point names it; the JVM's environment says nothing
    ours = ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
    found, _ = ran(
        [submit, "--master", "local[2]", *ours, str(job), broker.bootstrap, four], PATH=f"{tmp_path}:{os.environ['PATH']}",
        PYSPARK_PYTHON=None, PYSPARK_DRIVER_PYTHON=None,
    )  # fmt: skip
    assert found == {"values": sorted(str(partition) for partition in range(4) for _ in range(300)), "tasks": 2}
