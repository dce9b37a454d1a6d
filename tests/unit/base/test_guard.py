"""A transaction that has ended, or failed half-way, takes no rows and gives no handle: no row is lost without an error."""

from __future__ import annotations

import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.delta import DeltaSink
from headrace.enumerator.errors import HeadraceError, UsageError
from headrace.files import FileFormat, FileSink
from headrace.kafka import KafkaSink
from headrace.sinks import Attempt
from headrace.sql import UpsertSink
from headrace.testing import FakeKafka
from tests.helpers.both_tables import sink_of
from tests.helpers.forked import in_child
from tests.helpers.table_rig import JOB, driver

ROWS = pa.record_batch({"value": ["a", "b"]})
OF_TWO_TOPICS = pa.record_batch({"topic": ["t", "no topic"], "value": ["a", "b"]})


@pytest.fixture(params=["files", "delta", "kafka", "at least once"])
def sink(request, tmp_path):
    if request.param in ("files", "delta"):
        made: Any = FileSink(str(tmp_path)) if request.param == "files" else DeltaSink(str(tmp_path / "t"))
        if request.param == "delta":
            made.create_table(ROWS.schema)
        yield made
        return
    with FakeKafka() as kafka:
        kafka.create_topic("t")
        yield (KafkaSink if request.param == "kafka" else AtLeastOnceKafkaSink)(kafka.bootstrap, topic="t")


@pytest.mark.parametrize("end", ["prepare", "abort"])
def test_what_has_ended_refuses_rows_and_is_not_prepared_again(sink, end):
    with sink.begin(Attempt("q", 0, 0, 0)) as transaction:
        transaction.write(ROWS)
        getattr(transaction, end)()
        for call in (transaction.prepare, lambda: transaction.write(ROWS)):
            with pytest.raises(UsageError, match="has ended, and takes and gives no rows"):
                call()


def test_what_is_no_batch_is_refused_and_the_transaction_goes_on(sink):
    with sink.begin(Attempt("q", 0, 0, 0)) as transaction:
        with pytest.raises(UsageError, match=r"is a pyarrow\.RecordBatch, not Table: write each of its to_batches\(\)"):
            transaction.write(pa.table(ROWS))
        with pytest.raises(UsageError, match=r"is a pyarrow\.RecordBatch, not list$"):
            transaction.write(ROWS.to_pylist())
        transaction.write(ROWS)
        transaction.prepare()


def test_an_error_half_way_through_a_batch_leaves_no_half_of_it():
    with FakeKafka() as kafka:
        kafka.create_topic("t")
        sink = KafkaSink(kafka.bootstrap, properties={"default.api.timeout.ms": "2000"})
        with sink.begin(Attempt("q", 0, 0, 0)) as transaction:
            with pytest.raises(HeadraceError):
                transaction.write(OF_TWO_TOPICS)
            with pytest.raises(UsageError, match="was given up after an error"):
                transaction.prepare()


NOT_UTF8 = pa.StringArray.from_buffers(1, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff"))


@pytest.mark.parametrize("values", [
    NOT_UTF8, NOT_UTF8.dictionary_encode(), pa.StructArray.from_arrays([NOT_UTF8], ["text"]), pa.array([1], pa.date64()),
])  # fmt: skip
@pytest.mark.parametrize("name", ["parquet", "jsonl", "delta", "iceberg", "sqlite"])
def test_a_value_that_other_readers_refuse_is_refused_by_its_column(tmp_path, name, values):
    """Spark's `CAST(value AS STRING)` checks no text, and a file with one that is not UTF-8 cannot be read."""
    rows = pa.record_batch({"id": [1], "value": values})
    wanted = "'value'.* (has a value that is not of|has no counterpart)"
    with (
        sink_named(name, tmp_path, rows.schema).begin(Attempt("q", 0, 0, 0)) as transaction,
        pytest.raises(UsageError, match=wanted),
    ):
        transaction.write(rows)


def sink_named(name: str, folder: Path, schema: pa.Schema) -> Any:
    if name in ("parquet", "jsonl"):
        return FileSink(str(folder), format=FileFormat(name))
    if name == "sqlite":
        import sqlalchemy as sa

        with sa.create_engine(f"sqlite:///{folder}/some.db").connect() as connection:
            kind = "DATE" if pa.types.is_date(schema.field("value").type) else "TEXT"
            connection.exec_driver_sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, value {kind})")
        return UpsertSink(f"sqlite:///{folder}/some.db", "t", ("id",))
    made = sink_of(name, folder)
    made.create_table(schema)
    return made


@pytest.mark.parametrize(("name", "column"), [
    ("parquet", pa.array([None], pa.int64())), ("delta", pa.array([None], pa.int64())),
    ("parquet", pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([None], pa.string()))),
    ("parquet", pa.array([Decimal(1200)], pa.decimal128(5, -2))),
])  # fmt: skip
def test_what_arrow_cannot_write_is_the_callers_and_not_written_again_for_ever(tmp_path, name, column):
    """A null where the schema allows none, here in a struct, is found where the file is written."""
    inner = pa.field("value", column.type, nullable=False)
    rows = pa.record_batch([pa.StructArray.from_arrays([column], fields=[inner])], names=["row"])
    with sink_named(name, tmp_path, rows.schema).begin(Attempt("q", 0, 0, 0)) as transaction, pytest.raises(UsageError):  # noqa: PT012
        transaction.write(rows)
        transaction.prepare()


@pytest.mark.parametrize("name", ["parquet", "delta", "iceberg", "sqlite"])
def test_a_forked_child_ends_nothing_that_its_parent_has_begun(tmp_path, name):
    """With what `multiprocessing` forks in a `with` block, the child leaves the block as well."""
    rows = pa.record_batch({"id": [1], "value": ["a"]})
    sink = sink_named(name, tmp_path, rows.schema)
    committer = driver(sink)
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(rows)
        assert in_child(transaction.abort) == "None"
        assert "belongs to the process that started it" in in_child(lambda: transaction.write(rows))
        transaction.write(pa.record_batch({"id": [2], "value": ["b"]}))
        with pytest.raises(TypeError, match="pickle the sink"):
            pickle.dumps(transaction)
        handle = transaction.prepare()
    committer.commit(0, () if handle is None else (handle,))
    assert rows_in(name, sink, tmp_path) == 2


def rows_in(name: str, sink: Any, folder: Path) -> int:
    if name == "sqlite":
        import sqlalchemy as sa

        with sa.create_engine(sink.url).connect() as connection:
            return int(connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one())
    if name == "parquet":
        return ds.dataset(str(folder), format="parquet").count_rows()
    return int(sum(batch.num_rows for batch in sink.log().load().batches(["id"])))


def test_a_batch_for_a_database_is_whole_or_refused(tmp_path, monkeypatch):
    sa = pytest.importorskip("sqlalchemy")
    from headrace.connectors.sql import rows

    monkeypatch.setattr(rows, "_CHUNK_ROWS", 2)
    url = f"sqlite:///{tmp_path / 'some.db'}"
    with sa.create_engine(url).connect() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    with UpsertSink(url, "t", ("id",)).begin(Attempt("q", 0, 0, 0)) as transaction:
        with pytest.raises(UsageError, match="must not be null"):
            transaction.write(pa.record_batch({"id": [1, 2, None]}))
        with pytest.raises(UsageError, match="was given up after an error"):
            transaction.prepare()
