"""`headrace transactions` with a table, and `headrace tables vacuum`: what is listed, completed, removed and left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.connectors.base.commit import JobCommitter, SupersededError
from headrace.connectors.base.sink import Attempt, CommitList
from headrace.connectors.tables.committer import TableCommitter
from headrace.delta import DeltaSink
from headrace.enumerator.errors import FencedError, UsageError
from headrace.iceberg import IcebergSink
from headrace.testing import DyingCommitter, FakeKafka, Killed
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_values
from tests.helpers.table_rig import JOB, VALUES, batch_of, delta_values, driver, open_marks, prepared


class Table:
    """A table of one of the formats, and how commands name it."""

    def __init__(self, kind: str, folder: Path, schema: pa.Schema = VALUES) -> None:
        self._folder = str(folder)
        if kind == "delta":
            self.sink, self.root = DeltaSink(f"{folder}/table"), f"{folder}/table"
            self.options = ["--delta", f"{folder}/table"]
        else:
            self.sink, self.root = IcebergSink(TABLE, catalog_of(self._folder)), f"{folder}/shop/orders"
            pairs = [f"{name}={value}" for name, value in catalog_of(self._folder).items()]
            self.options = ["--iceberg", TABLE, *(word for pair in pairs for word in ("--table-property", pair))]
        self.sink.create_table(schema)

    def values(self) -> list[str]:
        return delta_values(self.root) if isinstance(self.sink, DeltaSink) else iceberg_values(self._folder)

    def run(self, *words: str, answer: str = "") -> tuple[int, list[list[str]], str]:
        """Exit status, the plain lines, and what goes to stderr."""
        done = CliRunner().invoke(app, [*words, *self.options], input=answer)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, [line.split("\t") for line in done.stdout.splitlines()], done.stderr

    def started(self, epoch: int, value: str, job: str = JOB, hours: float = 0.0) -> str:
        """A transaction with a file that no process prepares, started this many hours ago; its id."""
        before = open_marks(self.root, job)
        transaction = self.sink.begin(Attempt(job, epoch, 0, 0))
        transaction.write(batch_of([value]))
        transaction.prepare()
        (place,) = open_marks(self.root, job) - before
        mark = Path(self.root, "_headrace", job, f"{place}.open")
        then = mark.stat().st_mtime - hours * 3600
        os.utime(mark, (then, then))
        return f"{job}/{place}"

    def recorded(self, epoch: int, value: str) -> str:
        """An epoch whose driver has died after the table's commit; the id of its transaction."""
        handle = prepared(self.sink, epoch, 0, [value])
        committer = TableCommitter(self.sink.log(), JOB, self.root)
        committer.fence()
        committer.record(CommitList(epoch, (handle,)))
        return f"{JOB}/{handle.place}"


@pytest.fixture(params=["delta", "iceberg"])
def table(request, tmp_path) -> Table:
    return Table(request.param, tmp_path)


def test_what_is_open_and_what_is_recorded_is_listed(table):
    driver(table.sink).commit(0, (prepared(table.sink, 0, 0, ["a"]),))
    recorded = table.recorded(1, "b")
    left = table.started(7, "c", job="other", hours=2)
    status, lines, _ = table.run("transactions", "list")
    assert status == 0
    rows = {line[1]: line[2:] for line in lines if line[0] == "transaction"}
    assert rows.keys() == {recorded, left}
    assert rows[recorded][:6] == [JOB, "1", "0", "0", "committed", "1"]
    assert rows[left][:6] == ["other", "7", "0", "0", "open", "1"]
    assert 7200 <= float(rows[left][-1]) < 7300
    assert [line for line in lines if line[0] == "list"] == [["list", JOB, "1", "recorded", "1", "2"]]


def test_a_recorded_epoch_is_completed(table):
    table.recorded(0, "a")
    status, lines, said = table.run("transactions", "commit", "--job", JOB)
    assert (status, lines) == (0, [["committed", JOB, "0", "1", "kept"]])
    assert "fenced" in said
    assert open_marks(table.root) == set()
    assert table.values() == ["a"]
    assert "nothing to commit" in table.run("transactions", "commit", "--all")[2]


def test_a_job_that_never_came_here_has_nothing_to_complete(table):
    with pytest.raises(UsageError, match="has recorded nothing here"):
        table.run("transactions", "commit", "--job", "nobody")


def test_the_epoch_of_a_job_that_a_supervised_driver_has_claimed_is_completed_for_that_one(table):
    """A table keeps no more of who owns the job than a number."""
    JobCommitter(JOB, table.sink.committer(JOB), "mine").claim()
    assert table.run("transactions", "list")[1] == []
    dying = DyingCommitter(table.sink.committer(JOB), "end", "before")
    with pytest.raises(Killed):
        JobCommitter(JOB, dying, "mine").commit(0, (prepared(table.sink, 0, 0, ["a"]),))
    status, lines, _ = table.run("transactions", "commit", "--job", JOB)
    assert (status, len(lines), table.values()) == (0, 1, ["a"])
    JobCommitter(JOB, table.sink.committer(JOB), "mine").recover()
    with pytest.raises(SupersededError):
        JobCommitter(JOB, table.sink.committer(JOB), "his").recover()


def test_open_transactions_are_aborted_and_committed_ones_refused(table):
    recorded, loser = table.recorded(0, "a"), table.started(0, "x")
    spared = table.started(0, "y", job="other")
    status, lines, _ = table.run("transactions", "abort", "--job", JOB, "--yes")
    assert status == 1
    assert {line[1]: line[2] for line in lines} == {recorded: "refused", loser: "aborted"}
    assert open_marks(table.root) == {recorded.partition("/")[2]}
    assert open_marks(table.root, "other") == {spared.partition("/")[2]}
    driver(table.sink).recover()
    assert table.values() == ["a"]
    assert table.run("transactions", "abort", spared, answer="n\n")[0] == 1
    assert open_marks(table.root, "other"), "no process said yes"
    assert table.run("transactions", "abort", spared, answer="y\n")[0] == 0
    assert open_marks(table.root, "other") == set()
    status, lines, said = table.run("transactions", "abort", "--job", "misspelt")
    assert (status, lines, said) == (0, [], "job misspelt has no open transactions in the table\n")


def test_a_driver_that_is_still_running_cannot_commit_what_was_aborted(table):
    running = driver(table.sink)
    running.recover()
    handle = prepared(table.sink, 0, 0, ["a"])
    assert table.run("transactions", "abort", f"{JOB}/{handle.place}", "--yes")[0] == 0
    committer = running._committer
    with pytest.raises(FencedError):
        committer.record(CommitList(0, (handle,)))
    assert table.values() == []


def files(table: Table) -> set[str]:
    return {path.relative_to(table.root).parts[1] for path in Path(table.root).glob("part-*/*/**/*.parquet")}


def test_a_vacuum_removes_what_is_old_and_was_never_committed(table):
    """Of every job, also of one that never had a driver; nothing that is young, committed or recorded."""
    driver(table.sink).commit(0, (prepared(table.sink, 0, 0, ["a"]),))
    kept = files(table) | {table.recorded(1, "b").partition("/")[2]}
    old = {table.started(2, "x", hours=30), table.started(0, "y", job="other", hours=25)}
    young = table.started(2, "z", hours=23)
    status, lines, said = table.run("tables", "vacuum")
    assert (status, lines) == (1, [])
    assert all(name in said for name in old)
    assert young not in said
    assert files(table) == kept | {name.partition("/")[2] for name in (*old, young)}, "no process said yes"
    status, lines, _ = table.run("tables", "vacuum", "--yes")
    assert status == 0
    assert {line[1] for line in lines} == old
    assert files(table) == kept | {young.partition("/")[2]}
    driver(table.sink).recover()
    assert table.values() == ["a", "b"]
    assert "nothing to remove" in table.run("tables", "vacuum", "--yes", "--older-than", "1")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["transactions", "list", "--prefix", "p"], "--prefix is for Kafka, and this is about a table"),
        (["transactions", "abort", "--job", JOB, "--bootstrap", "h:1"], "--bootstrap is for Kafka"),
        (["transactions", "commit", "--all", "--commit-topic", "c"], "--commit-topic is for Kafka"),
    ],
)
def test_options_of_kafka_are_refused(tmp_path, words, message):
    with pytest.raises(UsageError, match=message):
        Table("delta", tmp_path).run(*words)


def test_options_of_a_table_without_a_table_are_refused():
    with pytest.raises(UsageError, match="--table-property is for tables, and this is about Kafka") as refused:
        CliRunner().invoke(app, ["transactions", "list", "--table-property", "a=s3cret"], catch_exceptions=False)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(UsageError, match="give --delta or --iceberg"):
        CliRunner().invoke(app, ["tables", "vacuum"], catch_exceptions=False)
    with pytest.raises(UsageError, match="is not name=value") as refused:
        CliRunner().invoke(app, ["tables", "vacuum", "--delta", "t", "--table-property", "s3cret"], catch_exceptions=False)
    assert "s3cret" not in str(refused.value)


# --- verify ------------------------------------------------------------------------------------------------------------

ROWS = pa.schema([("value", pa.string()), ("part", pa.int32()), ("at", pa.int64())])


@pytest.fixture(scope="module")
def topic():
    """Three records; the cluster's address."""
    with FakeKafka() as kafka:
        kafka.create_topic("in", 1)
        kafka.append("in", b"a", b"b", b"c")
        yield kafka.bootstrap


def verified(topic: str, tmp_path: Path, kind: str, rows: list[tuple[str, int]], *words: str) -> tuple[int, list[list[str]]]:
    """Of a table with these values and offsets."""
    folder = tmp_path / "in"
    folder.mkdir()
    table = Table(kind, folder, ROWS)
    with table.sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        found = [{"value": value, "part": 0, "at": offset} for value, offset in rows]
        transaction.write(pa.RecordBatch.from_pylist(found, schema=ROWS))
        handle = transaction.prepare()
    driver(table.sink).commit(0, (handle,))
    status, lines, _ = table.run("verify", "--input", "in", "--bootstrap", topic, *words)
    return status, lines


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_that_has_every_record_once(topic, tmp_path, kind):
    status, lines = verified(topic, tmp_path, kind, [("c", 2), ("a", 0), ("b", 1)])
    assert (status, lines) == (0, [["3 records in, 3 out, 0 duplicates, 0 lost, 0 foreign"]])


@pytest.mark.parametrize("words", [(), ("--by", "position", "--columns", "part,at")], ids=["value", "position"])
def test_a_table_that_lacks_and_repeats_records(topic, tmp_path, words):
    status, lines = verified(topic, tmp_path, "delta", [("a", 0), ("a", 0), ("b", 1), ("x", 9)], *words)
    shown = ("c", "a", "x") if not words else ("0 2", "0 0", "0 9")
    assert status == 1
    assert lines == [
        ["duplicate", "-", "-", "-", shown[1]],
        ["foreign", "-", "-", "-", shown[2]],
        ["lost", "in", "0", "2", shown[0]],
        ["3 records in, 4 out, 1 duplicates, 1 lost, 1 foreign"],
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--columns", "nothing"), "the table has no column 'nothing'"),
        (("--columns", "value,at"), "--columns names 2 column"),
        (("--id-header", "id"), "name the columns of the table that hold the headers"),
        (("--output", "out"), "--output is for Kafka"),
    ],
)
def test_what_cannot_be_compared_is_refused(topic, tmp_path, words, message):
    with pytest.raises(UsageError, match=message):
        verified(topic, tmp_path, "delta", [("a", 0)], *words)


def test_a_topic_is_not_compared_by_position(topic):
    for words in (["--by", "position"], ["--columns", "value"]):
        call = ["verify", "--input", "in", "--output", "out", "--bootstrap", topic, *words]
        with pytest.raises(UsageError, match="are for a table"):
            CliRunner().invoke(app, call, catch_exceptions=False)
    with pytest.raises(UsageError, match="give --output, --delta or --iceberg"):
        CliRunner().invoke(app, ["verify", "--input", "in", "--bootstrap", topic], catch_exceptions=False)
