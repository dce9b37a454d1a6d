"""Arguments of another kind are refused where they are given, by their names; no secret is shown."""

import pyarrow as pa
import pytest

from headrace.delta import DeltaSink
from headrace.errors import UsageError
from headrace.files import Csv, FileSink, FileSource
from headrace.formats import AvroFormat, JsonFormat, JsonSchemaFormat, ProtobufFormat, SchemaRegistry, create_format
from headrace.iceberg import IcebergSink
from headrace.kafka import DeadLetters, KafkaLease, KafkaSource, SaslConfig
from headrace.postgresql import ChangesSource
from headrace.run import ExponentialDelay, FailureRate, FixedDelay
from headrace.sinks import Changes
from headrace.sources import Hybrid
from headrace.sql import SqlSink, UpsertSink
from headrace.testing import MemoryLog, MemorySource

URL = "postgresql://writer:not-a-secret@localhost/shop"
ROWS = pa.schema([("a", pa.int64())])
PROTO = 'syntax = "proto3"; message A { int32 a = 1; }'


def changes(**given):
    return ChangesSource(**{"url": URL, "tables": ["orders"], "publication": "p", "slot": "headrace_s", **given})


@pytest.mark.parametrize(("make", "said"), [
    (lambda: FileSource("/in", watch="false"), "watch must be True or False, not 'false'"),
    (lambda: FileSource("/in", fail_on_data_loss="no"), "fail_on_data_loss must be True or False, not 'no'"),
    (lambda: Csv(header="false"), "header must be True or False, not 'false'"),
    (lambda: Csv(newlines_in_values=1), "newlines_in_values must be True or False, not 1"),
    (lambda: DeltaSink("/t", merge_schema="false"), "merge_schema must be True or False, not 'false'"),
    (lambda: IcebergSink("a.b", {}, merge_schema=0), "merge_schema must be True or False, not 0"),
    (lambda: KafkaSource("h:1", topics=["t"], fail_on_data_loss="no"), "fail_on_data_loss must be True or False, not 'no'"),
])  # fmt: skip
def test_a_text_is_not_a_truth_value(make, said):
    """Any text counts as true where it is only asked whether it does."""
    with pytest.raises(UsageError, match=f"^{said}$"):
        make()


@pytest.mark.parametrize(("make", "said"), [
    (lambda: FileSource(["/a"]), "path must be a string, not list"),
    (lambda: FileSource(b"/a"), "path must be a string, not bytes"),
    (lambda: FileSource("/a", max_file_age_s="7d"), "max_file_age_s must be positive seconds, not '7d'"),
    (lambda: FileSource("/a", split_bytes="1m"), "split_bytes must be a whole number, at least 1, not '1m'"),
    (lambda: FileSource("/a", batch_rows=True), "batch_rows must be a whole number, at least 1, not True"),
    (lambda: FileSource("/a", discovery_interval_s="10s"), "discovery_interval_s must be positive seconds, not '10s'"),
    (lambda: FileSource("/a", storage_options="x"), "storage_options must be a mapping .*, not str"),
    (lambda: FileSource("/a", pattern=["*.json"]), "pattern must be a string, not list"),
    (lambda: FileSource("/a", after_read=5), "after_read must be a string, not int"),
    (lambda: FileSource("/a", filesystem="s3"), "filesystem must be an object of fsspec or pyarrow.fs, not 's3'"),
    (lambda: FileSource("/a", time_zone=5), "time_zone must be a zone's name, .*, not 5"),
    (lambda: Csv(null_values="NA"), "null_values must be a list of names, not 'NA'"),
    (lambda: FileSink(None), "path must be a string, not NoneType"),
    (lambda: FileSink("/a", compression=5), "compression must be a string, not int"),
    (lambda: FileSink("/a", storage_options=[1]), "storage_options must be a mapping .*, not list"),
    (lambda: DeltaSink(["/a"]), "uri must be a string, not list"),
    (lambda: DeltaSink("/a", compression=5), "compression must be a string, not int"),
    (lambda: DeltaSink("/a", storage_options={"timeout": 60}), "storage_options: 'timeout' must be a string, .* not int"),
    (lambda: DeltaSink("/a").create_table({"a": "int"}), "schema must be a pyarrow.Schema, not {'a': 'int'}"),
    (lambda: DeltaSink("/a").create_table(ROWS, "a"), "partition_by must be a list of names, not 'a'"),
    (lambda: IcebergSink(None, {}), "table must be a string, not NoneType"),
    (lambda: IcebergSink("a.b", None), "catalog must be a mapping .*, not NoneType"),
    (lambda: IcebergSink("a.b", {"uri": 5}), "the catalog's uri must be a string, not int"),
    (lambda: Changes(("id",), change_type=["op"]), "change_type must be a string, not list"),
    (lambda: SqlSink(URL, None), "table must be a string, not NoneType"),
    (lambda: SqlSink(None, "t"), "url must be a string, not .*"),
    (lambda: SqlSink(URL, "t", lock_timeout_s="5"), "lock_timeout_s must be positive seconds, not '5'"),
    (lambda: UpsertSink(URL, "t", ("id",), ["op"]), "change_type must be a string, not list"),
    (lambda: changes(url=None), "url must be a string, not NoneType"),
    (lambda: changes(slot=None), "slot must be a string, not .*"),
    (lambda: changes(publication=["p"]), "publication must be a string, not list"),
    (lambda: changes(metadata="_op"), "metadata must be a list of names, not '_op'"),
    (lambda: JsonFormat("a int"), "arrow_type must be a pyarrow.DataType, .*, not 'a int'"),
    (lambda: JsonFormat(ROWS), "arrow_type must be a pyarrow.DataType, .*, not a: int64"),
    (lambda: JsonFormat(pa.int64(), time_zone=None), "time_zone must be a zone's name, .*, not None"),
    (lambda: JsonSchemaFormat({"type": "integer"}), "schema must be a string, not dict"),
    (lambda: JsonSchemaFormat('{"type": "object"}', fields="a"), "fields must be a list of names, not 'a'"),
    (lambda: AvroFormat('"int"', references=["x"]), "references must be a mapping .*, not list"),
    (lambda: AvroFormat('"int"', header_bytes="5"), "header_bytes must be a whole number, at least 0, not '5'"),
    (lambda: ProtobufFormat(5), "schema must be a string, not int"),
    (lambda: ProtobufFormat(PROTO, message=["A"]), "message must be a string, not list"),
    (lambda: ProtobufFormat(PROTO, fields="a"), "fields must be a list of names, not 'a'"),
    (lambda: create_format(["json"]), "name must be a string, not list"),
    (lambda: SchemaRegistry("http://h", deadline_s="5"), "deadline_s must be positive seconds, not '5'"),
    (lambda: SchemaRegistry("http://h", {"bearer.auth.token": 5}), "properties: 'bearer.auth.token' must be a .* not int"),
    (lambda: KafkaLease("h:1", "g", timeout_s="5"), "timeout_s must be positive seconds, not '5'"),
    (lambda: SaslConfig(mechanism="PLAIN", username="u", password=5), "password must be a string, not int"),
    (lambda: DeadLetters(None), "topic must be a string, not NoneType"),
    (lambda: Hybrid(MemorySource(MemoryLog(), bounded=True), then=MemorySource(MemoryLog()), discovery_interval_s="5"),
     "discovery_interval_s must be positive seconds, not '5'"),
    (lambda: FixedDelay("3"), "attempts must be a whole number, at least 1, not '3'"),
    (lambda: FailureRate(delay_s="1 s"), "delay must be at least 0, not '1 s'"),
    (lambda: ExponentialDelay(initial_backoff_s="1 s"), "initial-backoff must be more than 0, not '1 s'"),
])  # fmt: skip
def test_what_is_of_another_kind_is_refused_by_its_name(make, said):
    with pytest.raises(UsageError, match=f"^{said}") as raised:
        make()
    assert "not-a-secret" not in str(raised.value)
