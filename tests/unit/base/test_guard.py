"""A transaction that has ended, or failed half-way, takes no rows and gives no handle: no row is lost without an error."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.delta import DeltaSink
from headrace.enumerator.errors import HeadraceError, UsageError
from headrace.files import FileSink
from headrace.kafka import KafkaSink
from headrace.sinks import Attempt
from headrace.testing import FakeKafka

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


def test_an_error_half_way_through_a_batch_leaves_no_half_of_it():
    with FakeKafka() as kafka:
        kafka.create_topic("t")
        sink = KafkaSink(kafka.bootstrap, properties={"default.api.timeout.ms": "2000"})
        with sink.begin(Attempt("q", 0, 0, 0)) as transaction:
            with pytest.raises(HeadraceError):
                transaction.write(OF_TWO_TOPICS)
            with pytest.raises(UsageError, match="was given up after an error"):
                transaction.prepare()


def test_a_batch_for_a_database_is_whole_or_refused(tmp_path, monkeypatch):
    sa = pytest.importorskip("sqlalchemy")
    from headrace.connectors.sql import rows
    from headrace.sql import UpsertSink

    monkeypatch.setattr(rows, "_CHUNK_ROWS", 2)
    url = f"sqlite:///{tmp_path / 'some.db'}"
    with sa.create_engine(url).connect() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with UpsertSink(url, "t", ("id",)).begin(Attempt("q", 0, 0, 0)) as transaction:
        with pytest.raises(UsageError, match="must not be null"):
            transaction.write(pa.record_batch({"id": [1, 2, None]}))
        with pytest.raises(UsageError, match="was given up after an error"):
            transaction.prepare()
