"""Values of PostgreSQL's types, read by the source and written by a sink, as other readers of the target see them."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import fastavro
import psycopg
import pyarrow as pa
import pytest

from headrace.connectors.sql.table_sink import TableSink
from headrace.delta import DeltaSink
from headrace.enumerator import EmbeddedRun
from headrace.errors import UsageError
from headrace.formats import AvroFormat
from headrace.iceberg import IcebergSink
from headrace.kafka import KafkaSink
from headrace.postgresql import ChangesSource
from headrace.sinks import Attempt
from headrace.sql import SqlSink, UpsertSink
from headrace.testing.servers.databases import Database
from tests.helpers.databases import psql
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_table
from tests.helpers.kafka_rig import consume
from tests.helpers.kafka_tools import created
from tests.helpers.table_rig import JOB, driver
from tests.integration.postgresql.test_log import TYPES, VALUES, has_xml

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:Did not recognize type"),  # SQLAlchemy's
]


def name_of(kind: str) -> str:
    """Of the column of this type: a name that every format takes."""
    return re.sub(r"\W+", "_", kind.format(s="s").replace("[]", " array")).strip("_") + ("_1" if '"' in kind else "")


TARGETS: dict[str, Callable[[str, str], TableSink]] = {"inserted": SqlSink, "upserted": partial(UpsertSink, key=("number",))}
CHANGED: dict[str, list[str]] = {"inserted": [], "upserted": ["date", "timestamp", "timestamptz"]}
"""The columns with values that a sink refuses: years that Python has not."""


@pytest.fixture(scope="module")
def typed(server: Database) -> str:
    """The address of a database with a table that has a column for each type, and a row for each of its values."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE typed")
    url = f"{server.url.rpartition('/')[0]}/typed"
    with psycopg.connect(url, autocommit=True) as connection:
        kinds = [kind for kind in VALUES if kind != "xml" or has_xml(connection)]
        columns = ", ".join(f"{name_of(kind)} {kind.format(s='s')}" for kind in kinds)
        for statement in ("CREATE SCHEMA s", *(each.format(s="s") for each in TYPES)):
            connection.execute(statement)
        for table in ("source", *TARGETS):
            connection.execute(f"CREATE TABLE public.{table} (number serial PRIMARY KEY, {columns})")
        for kind in kinds:
            for text in VALUES[kind]:
                connection.execute(f"INSERT INTO public.source ({name_of(kind)}) VALUES (%s)", [text])
        connection.execute("CREATE PUBLICATION typed FOR TABLE public.source")
    return url


@pytest.fixture(scope="module")
def rows(typed: str) -> pa.RecordBatch:
    source = ChangesSource(
        typed, tables=["source"], publication="typed", slot="headrace_typed", snapshot="only", metadata=[], out_of_range="null"
    )
    with EmbeddedRun(source, clock=time.monotonic) as run:
        batch = run.poll(5.0)
    assert batch is not None
    return batch.records.sort_by("number")


def written(sink: Any, rows: pa.RecordBatch) -> None:
    with sink.begin(Attempt(JOB, 1, 0, 0)) as transaction:
        transaction.write(rows)
        handle = transaction.prepare()
    committer = driver(sink)
    committer.commit(1, () if handle is None else (handle,))
    committer.close()


def refused(rows: pa.RecordBatch, check: Callable[[str, pa.Schema], None]) -> set[str]:
    """The columns that a sink refuses by their names."""
    found = set()
    for name in rows.schema.names[1:]:
        try:
            check(name, rows.select(["number", name]).schema)
        except UsageError as error:
            if f"column {name!r}" not in str(error):
                raise
            found.add(name)
    return found


def check_same(found: pa.Table, rows: pa.RecordBatch) -> None:
    found = found.sort_by("number")
    for name in rows.schema.names:
        column, wanted = found[name].combine_chunks(), rows.column(name)
        if pa.types.is_temporal(wanted.type):  # also what Python has no value for
            assert column.cast(wanted.type).equals(wanted), name
        else:
            assert str(column.to_pylist()) == str(wanted.to_pylist()), name


def test_a_delta_table_has_them_all_but_times_and_very_long_numbers(rows: pa.RecordBatch, tmp_path: Path) -> None:
    no = refused(rows, lambda name, schema: DeltaSink(str(tmp_path / f"try-{name}")).create_table(schema))
    assert no == {"numeric_60_10", "time"}
    rows = rows.drop_columns(sorted(no))
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(rows.schema)
    written(sink, rows)
    check_same(deltalake.DeltaTable(sink.uri).to_pyarrow_table(), rows)


def test_an_iceberg_table_has_them_all_but_very_long_numbers(rows: pa.RecordBatch, tmp_path: Path) -> None:
    def check(name: str, schema: pa.Schema) -> None:
        IcebergSink(f"shop.t{rows.schema.get_field_index(name)}", catalog_of(str(tmp_path))).create_table(schema)

    no = refused(rows, check)
    assert no == {"numeric_60_10"}
    rows = rows.drop_columns([*no, "s_pair_array"])  # PyIceberg reads a null list of structs as an empty one
    sink = IcebergSink(TABLE, catalog_of(str(tmp_path)))
    sink.create_table(rows.schema)
    written(sink, rows)
    check_same(iceberg_table(str(tmp_path)).scan().to_arrow(), rows)


AVRO: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean", pa.int16(): "int", pa.int32(): "int", pa.int64(): "long", pa.float32(): "float",
    pa.float64(): "double", pa.string(): "string", pa.binary(): "bytes", pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
}  # fmt: skip


def avro_of(kind: pa.DataType, name: str) -> Any:
    """The Avro schema of an Arrow type, with nulls everywhere. `name`: of a record."""
    if pa.types.is_struct(kind):
        fields = [{"name": field.name, "type": ["null", avro_of(field.type, f"{name}_{field.name}")]} for field in kind]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", avro_of(kind.value_type, f"{name}_item")]}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return AVRO[kind]


def without_times(kind: pa.DataType) -> pa.DataType:
    """With the integers of dates and times, for which Python may have no value."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, without_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(without_times(kind.value_type))
    return {32: pa.int32(), 64: pa.int64()}[kind.bit_width] if pa.types.is_temporal(kind) else kind


def test_a_topic_of_avro_has_them_all(rows: pa.RecordBatch, bootstrap: str, topic: Callable[[], str]) -> None:
    schema = json.dumps(avro_of(pa.struct(list(rows.schema)), "Row"))
    sink = KafkaSink(bootstrap, topic=created(bootstrap, topic), value=AvroFormat(schema))
    as_value = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
    written(sink, pa.record_batch({"value": as_value}))
    # The numbers as they are, whatever their logical types say: fastavro has no value for a date before Christ.
    parsed = fastavro.parse_schema(json.loads(re.sub(r', "logicalType": "[^"]*(date|time)[^"]*"', "", schema)))
    found = [fastavro.schemaless_reader(io.BytesIO(value), parsed) for _, value in consume(bootstrap, str(sink.topic))]
    wanted = [row.as_py() for row in as_value.cast(without_times(as_value.type))]
    assert sorted(map(str, found)) == sorted(map(str, wanted))
    assert len(found) == rows.num_rows


def test_a_column_that_an_avro_schema_cannot_hold_is_refused_by_name(rows: pa.RecordBatch) -> None:
    """With its batch, of which nothing is written."""
    for name in rows.drop_columns(["number", "boolean"]).schema.names:
        schema = {"type": "record", "name": "Row", "fields": [{"name": name, "type": ["null", "boolean"]}]}
        sink = KafkaSink("127.0.0.1:1", topic="typed", value=AvroFormat(json.dumps(schema)))
        with pytest.raises(UsageError, match=f"field {name!r}"):
            sink.encoded(pa.record_batch({"value": pa.StructArray.from_arrays([rows.column(name)], [name])}))


@pytest.mark.parametrize("target", TARGETS)
def test_another_postgresql_has_the_same_texts(rows: pa.RecordBatch, typed: str, target: str) -> None:
    sink = TARGETS[target](typed, target)
    no = refused(rows, lambda _, schema: sink.check_rows(schema))
    composites = {"s_pair", "s_pair_array", "s_nested"}
    assert no == {"char_1", "name", "money", "oid", "numeric_80_0", "box_array", *composites} & set(rows.schema.names)
    rows = rows.drop_columns([*no, *CHANGED[target]])
    written(sink, rows)
    for name in rows.schema.names[1:]:
        texts = f"SELECT number, format('%s', {name}) FROM public.{{}} WHERE {name} IS NOT NULL ORDER BY number"
        wanted = [(number, text.removeprefix("[0:1]=")) for number, text in psql(typed, texts.format("source"))]
        assert psql(typed, texts.format(target)) == wanted, name
