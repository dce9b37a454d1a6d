"""`make demo`, `make demo-changes`: they pass, see what is wrong, and fail by the bugs that headrace exists to prevent."""

import importlib
import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest
from confluent_kafka.admin import AdminClient

from headrace.testing.servers.kafka import create_topic
from tests.helpers.python_path import ROOT, python_path

FLIGHTS, CHANGES = ROOT / "examples" / "flights", ROOT / "examples" / "changes"
REINITIALISE, LOG_END = (ROOT / "tests" / "faults" / name for name in ("reinitialise", "log_end"))
COUNT = 30_000
OUTAGES = re.compile(r"outages: \d+\.\d s until the standby had taken over; \d+\.\d s from a cold start")
LAST_LINE = re.compile(r"headrace demo: (\d+) records in, (\d+) out, (\d+) duplicates, (\d+) lost, (\d+) restores")
pytestmark = pytest.mark.broker


def run_demo(bootstrap, output, injected=()):
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": bootstrap, "PYTHONPATH": python_path(*injected)}
    command = [sys.executable, FLIGHTS / "demo.py", "--flights", str(COUNT), "--output", output]
    done = subprocess.run(command, cwd=output, env=environment, capture_output=True, text=True, check=False)
    found = LAST_LINE.fullmatch(done.stdout.rstrip().rpartition("\n")[2])
    assert found, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert OUTAGES.search(done.stdout), done.stdout
    return done.returncode, [int(group) for group in found.groups()]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_flight_is_written_once_through_kills_and_new_partitions(broker, tmp_path):
    assert run_demo(broker.bootstrap, tmp_path) == (0, [COUNT, COUNT, 0, 0, 2])
    assert (tmp_path / "throughput.png").stat().st_size > 10_000
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    assert not [name for name in topics if name.startswith("flights-")]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_restore_that_initialises_again_is_seen_as_duplicates(broker, tmp_path):
    status, (records_in, records_out, duplicates, lost, _) = run_demo(broker.bootstrap, tmp_path, [REINITIALISE])
    assert status == 1
    assert (records_in, lost) == (COUNT, 0)
    assert duplicates == records_out - COUNT > 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("injected", [[], [LOG_END]], ids=["", "log read from its end"])
def test_tables_are_copied_through_kills_and_lost_changes_are_seen(tmp_path, injected):
    options = ["--accounts", "100000", "--transactions", "500", "--output", tmp_path / "out"]
    environment = {**os.environ, "PYTHONPATH": python_path(*injected)}
    done = subprocess.run(
        [sys.executable, CHANGES / "demo.py", *options], env=environment, capture_output=True, text=True, check=False
    )
    last = done.stdout.rstrip().rpartition("\n")[2]
    found = re.fullmatch(r"headrace demo: 3 kills in the snapshot, 3 in the log, ([\d,]+) different", last)
    assert found, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert (done.returncode, found[1] != "0") == (bool(injected), bool(injected))


@pytest.fixture
def oracle(monkeypatch):
    monkeypatch.syspath_prepend(FLIGHTS)
    return importlib.import_module("oracle")


@pytest.fixture(scope="module")
def flights(broker):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FLIGHTS)
        producer, data = importlib.import_module("producer"), importlib.import_module("flights")
    name = f"thousand-flights-{os.urandom(4).hex()}"
    create_topic(broker.bootstrap, name, 3)
    with producer.FlightProducer(broker.bootstrap, name, data.flights(1000), rate=100_000) as flights:
        flights.wait()
    return name


def replaced(table, column, row, value):
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values, table.schema.field(column).type))


@pytest.mark.parametrize(("change", "duplicates", "lost", "altered"), [
    (lambda rows: rows, 0, 0, 0), (lambda rows: pa.concat_tables([rows, rows.slice(7, 1)]), 1, 0, 0),
    (lambda rows: rows.slice(1), 0, 1, 0), (lambda rows: pa.concat_tables([rows.slice(1), rows.slice(7, 1)]), 1, 1, 0),
    (lambda rows: replaced(rows, "id", 3, 10**6), 0, 1, 1), (lambda rows: replaced(rows, "dest", 3, None), 0, 0, 1),
    (lambda rows: replaced(rows, "offset", 3, 10**6), 0, 0, 1),
], ids=["nothing", "duplicate", "missing", "both", "unknown", "content", "offset"])  # fmt: skip
def test_the_oracle_sees(broker, flights, oracle, tmp_path, change, duplicates, lost, altered):
    rows = oracle.read_topic(broker.bootstrap, flights)
    write_output(tmp_path, change(rows))
    outcome = oracle.judge(broker.bootstrap, flights, tmp_path)
    assert (outcome.records_in, outcome.duplicates, outcome.lost, outcome.altered) == (1000, duplicates, lost, altered)
    assert outcome.is_good == (not (duplicates or lost or altered))


def write_output(directory, *tables):
    """Each table as a file of a batch, as Spark's file sink logs them; alongside them one that a killed batch left."""
    log = directory / "_spark_metadata"
    log.mkdir()
    for batch, table in enumerate(tables):
        file = directory / f"part-{batch}.parquet"
        pyarrow.parquet.write_table(table, file)
        (log / str(batch)).write_text("v1\n" + json.dumps({"path": file.as_uri(), "action": "add"}))
    pyarrow.parquet.write_table(tables[0], directory / "part-killed.parquet")


def test_the_files_of_a_compacted_log_are_counted_once(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FLIGHTS)
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    entries = [json.dumps({"path": f"file:///a/part%20{batch}", "action": "add"}) for batch in range(12)]
    for batch in (*range(9), 10, 11):
        (log / str(batch)).write_text(f"v1\n{entries[batch]}")
    (log / "9.compact").write_text("\n".join(["v1", *entries[:10]]))
    (log / ".11.crc").write_bytes(b"")
    files = importlib.import_module("files").committed_files(tmp_path)
    assert [str(file) for file in files] == [f"/a/part {batch}" for batch in range(12)]
