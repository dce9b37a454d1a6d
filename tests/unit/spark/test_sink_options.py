"""Options of the sinks in Spark: what they mean, which are refused and how; no secret is shown. No process is contacted."""

import json
import pickle
import shutil
from dataclasses import replace
from datetime import time, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VariantType,
    YearMonthIntervalType,
)

from headrace.connectors.base.jobs import one_off_job
from headrace.connectors.files import FileFormat, FileSink
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.delta import DeltaSink
from headrace.connectors.tables.iceberg import IcebergSink
from headrace.enumerator.errors import UsageError
from headrace.spark.arrow_types import arrow_schema
from headrace.spark.connectors import planned_batch_write, planned_stream_write, reading
from headrace.spark.files_read import file_reader, file_stream_reader
from headrace.spark.files_write import file_write
from headrace.spark.kafka_write import kafka_write
from headrace.spark.table_write import delta_write, iceberg_write
from tests.helpers.batch_writes import written

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

from sqlalchemy.engine import make_url

from headrace.spark.sql_write import sql_write
from headrace.sql import SqlSink, UpsertSink

SECRET = "s3cr%t/@:?"
ONE_OFF = one_off_job()
QUOTED = "s3cr%25t%2F%40%3A%3F"
URL = "postgresql://host:5432/shop"
KAFKA = {"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}
SCHEMA = StructType([StructField("value", StringType())])


def sql_sink(**options):
    return sql_write({"url": URL, "dbtable": "orders", **options}).sink


def refused(write, complaint):
    """With this complaint, and without a secret in any of its causes."""
    with pytest.raises(UsageError, match=complaint) as caught:
        write()
    seen: BaseException | None = caught.value
    while seen is not None:
        assert not [secret for secret in (SECRET, QUOTED, "s3cret") if secret in f"{seen} {seen!r}"]
        seen = seen.__cause__


class TestConnector:
    def test_kafka_is_the_default(self):
        reads, options = reading({"kafka.bootstrap.servers": "h:1", "subscribe": "t"})
        assert "timestampType" in reads.schema(options)[0].names
        assert isinstance(planned_batch_write(KAFKA, SCHEMA, overwrite=False)[0].sink, KafkaSink)

    def test_it_is_named_by_an_option_whose_case_is_ignored(self, tmp_path):
        for options in ({"connector": "files"}, {"CONNECTOR": " Files "}):
            write, columns = planned_batch_write({**options, "path": str(tmp_path)}, SCHEMA, overwrite=False)
            assert isinstance(write.sink, FileSink)
            assert write.sink.path == str(tmp_path)
            assert columns == ["value"]

    def test_an_unknown_one_is_refused_with_the_list(self):
        for plan in (
            reading,
            lambda options: planned_batch_write(options, SCHEMA, overwrite=False),
            lambda options: planned_stream_write(options, SCHEMA, complete=False),
        ):
            with pytest.raises(
                UsageError, match="must be one of kafka, sql, files, delta, iceberg, postgresql-changes, not 'jdbc'"
            ):
                plan({"connector": "jdbc"})

    @pytest.mark.parametrize("options", [{}, {"path": "file:/warehouse/t"}])
    def test_a_table_of_the_catalog_has_no_options(self, options):
        """Kafka's were asked for, whatever the table was made with."""
        for plan in (reading, lambda options: planned_batch_write(options, SCHEMA, overwrite=False)):
            with pytest.raises(UsageError, match=r"no options have reached headrace: .* use a temporary view, and save\(\)"):
                plan(options)

    @pytest.mark.parametrize("name", ["sql", "delta", "iceberg"])
    def test_tables_are_not_read(self, name):
        with pytest.raises(UsageError, match=f"connector '{name}' cannot be read, only written; .*kafka.*files"):
            reading({"connector": name})

    def test_changes_are_not_written(self):
        with pytest.raises(UsageError, match=r"connector 'postgresql-changes' cannot be written, only read; .*kafka, sql"):
            planned_batch_write({"connector": "postgresql-changes"}, SCHEMA, overwrite=False)

    @pytest.mark.parametrize("name", ["sql", "files", "delta", "iceberg"])
    def test_nothing_is_overwritten(self, name):
        with pytest.raises(UsageError, match=rf"Overwrite not allowed for connector '{name}'.*\.mode\(\"append\"\)"):
            planned_batch_write({"connector": name}, SCHEMA, overwrite=True)
        with pytest.raises(UsageError, match=f"complete not allowed for connector '{name}'"):
            planned_stream_write({"connector": name}, SCHEMA, complete=True)

    @pytest.mark.parametrize("name", ["files", "delta"])
    @pytest.mark.parametrize(
        ("kind", "said"),
        [
            (VariantType(), "variant would be written as Spark keeps it"),
            (MapType(StringType(), ArrayType(VariantType())), "variant would be written as Spark keeps it"),
            (YearMonthIntervalType(), "interval year to month cannot be read or written"),
            (ArrayType(NullType(), containsNull=False), "array<void> cannot be read or written"),
        ],
    )
    def test_a_column_that_rows_do_not_have_is_named(self, tmp_path, name, kind, said):
        schema = StructType([StructField("fine", LongType()), StructField("odd", kind)])
        with pytest.raises(UsageError, match=f"column 'odd': {said}"):
            planned_stream_write({"connector": name, "path": str(tmp_path / "table")}, schema, complete=False)
        assert not (tmp_path / "table").exists()

    @pytest.mark.parametrize("kind", [YearMonthIntervalType(), ArrayType(YearMonthIntervalType())])
    def test_kafka_refuses_an_interval_of_years_also_where_it_is_not_written(self, kind):
        """Spark sends none to Python: each task failed, with a number for a reason."""
        value = StructType([StructField("odd", kind)])
        for schema, more in (
            (StructType([StructField("value", StringType()), StructField("odd", kind)]), {}),
            (StructType([StructField("value", value)]), {"valueFormat": "json"}),
        ):
            with pytest.raises(UsageError, match=r"column '(odd|value)': .*interval year.* cannot be read or written"):
                planned_batch_write(KAFKA | more, schema, overwrite=False)
        schema = StructType([StructField("value", StringType()), StructField("odd", ArrayType(NullType(), containsNull=False))])
        assert planned_batch_write(KAFKA, schema, overwrite=False)[1] == ["value"]

    @pytest.mark.parametrize(
        ("name", "kind"), [("_metadata", StringType()), ("badReason", LongType()), ("badValue", StringType())]
    )
    def test_a_column_that_the_source_of_files_adds_has_its_type_unless_files_have_one(self, tmp_path, name, kind):
        """Files lack it, and it was null in all rows."""
        schema = StructType([StructField("a", LongType()), StructField(name, kind)])
        options = {"path": str(tmp_path), "fileFormat": "json", "onBadRecord": "keep"}
        for text in ("", '{"a": 1}'):
            (tmp_path / "file.json").write_text(text)
            with pytest.raises(UsageError, match=f"column '{name}' is .* in the schema, and the source adds it as"):
                file_reader(options, schema, None)
        (tmp_path / "file.json").write_text(json.dumps({"a": 1, name: 2}))
        file_reader(options, schema, None)
        file_stream_reader(options | {"discoveryInterval": "1s"}, schema, None)

    def test_kafka_takes_whole_results_as_sparks_sink_does(self):
        assert isinstance(planned_stream_write(KAFKA, SCHEMA, complete=True)[0].sink, KafkaSink)


@pytest.mark.parametrize("write", [kafka_write, sql_write, file_write, lambda options: delta_write(options, SCHEMA)[0]])
class TestEverySink:
    def options(self, write, **more):
        needed = {kafka_write: KAFKA, sql_write: {"url": URL, "dbtable": "orders"}, file_write: {"path": "/tmp/out"}}
        return needed.get(write, {"path": "/tmp/table"}) | more

    def test_a_repeated_write_has_a_name_and_a_number(self, write):
        repeated = write(self.options(write, txnappid="app", txnVERSION="7"))
        assert (repeated.job, repeated.epoch) == ("app", 7)
        once = write(self.options(write))
        assert (once.job, once.epoch) == (None, None)

    @pytest.mark.parametrize(
        ("more", "complaint"),
        [
            ({"txnAppId": "app"}, "go together"),
            ({"txnVersion": "1"}, "go together"),
            ({"txnAppId": "app", "txnVersion": "-1"}, "'txnVersion' must be a whole number from 0, not '-1'"),
            ({"txnAppId": "a b", "txnVersion": "1"}, "a job's name"),
            ({"txnApId": "app"}, "'txnApId' is not known to the sink; did you mean 'txnAppId'"),
            ({"wholly-other": "x"}, "'wholly-other' is not known to the sink$"),
            ({"txnAppId": ONE_OFF, "txnVersion": "1"}, "of another form than the names of writes that are never repeated"),
            ({"txnAppId": " "}, "'txnAppId' must not be empty"),
        ],
    )
    def test_what_is_wrong_is_named(self, write, more, complaint):
        with pytest.raises(UsageError, match=complaint):
            write(self.options(write, **more))

    def test_what_spark_adds_is_ignored(self, write):
        write(self.options(write, checkpointLocation="/tmp/c", provider="headrace", __datasource_name="h", queryName="q"))


class TestSql:
    def test_defaults(self):
        assert sql_sink() == SqlSink(URL, "orders")

    def test_a_table_in_a_schema_and_a_lock_timeout(self):
        assert sql_sink(DBTABLE="sales.orders", locktimeout="2.5") == SqlSink(URL, "sales.orders", lock_timeout_s=2.5)

    def test_upserts(self):
        assert sql_sink(delivery="upsert", upsertKeys="region, id") == UpsertSink(URL, "orders", ("region", "id"))
        changes = {"delivery": "upsert", "upsertKeys": "id", "changeTypeColumn": "op"}
        assert sql_sink(**changes) == UpsertSink(URL, "orders", ("id",), "op")

    @pytest.mark.parametrize("kind", ["postgresql", "mysql", "mariadb"])
    def test_a_jdbc_address_means_the_same(self, kind):
        assert sql_sink(url=f"jdbc:{kind}://host:1234/shop") == sql_sink(url=f"{kind}://host:1234/shop")

    @pytest.mark.parametrize(
        "options",
        [
            {"user": "u", "password": SECRET},
            {"url": f"postgresql://u:{QUOTED}@host:5432/shop"},
            {"url": "postgresql://u@host:5432/shop", "password": SECRET},
            {"url": f"jdbc:postgresql://host:5432/shop?user=u&password={QUOTED}"},
        ],
    )
    def test_who_logs_in(self, options):
        assert sql_sink(**options) == SqlSink(f"postgresql://u:{QUOTED}@host:5432/shop", "orders")

    def test_a_password_is_taken_as_it_is(self):
        assert make_url(sql_sink(user="u", password=" p ").url).password == " p "

    def test_parameters_that_both_drivers_of_postgresql_know(self):
        assert sql_sink(url=f"jdbc:{URL}?sslmode=require") == sql_sink(url=f"{URL}?sslmode=require")

    def test_no_secret_is_shown(self):
        write = sql_write({"url": URL, "dbtable": "orders", "user": "u", "password": SECRET})
        assert SECRET not in repr(write)
        assert QUOTED not in repr(write)
        assert pickle.loads(pickle.dumps(write)) == write

    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            ({"url": f"jdbc:postgresql://u:{QUOTED}@host:port/shop"}, "must look like"),
            ({"url": f"postgresql:{QUOTED}"}, "must look like"),
            ({"url": "jdbc:postgresql://a:1,b:2/shop", "password": SECRET}, "must look like"),
            ({"url": "jdbc:oracle:thin:@host", "password": SECRET}, "must look like"),
            ({"url": f"jdbc:sqlserver://u:{QUOTED}@host/shop"}, "of the kind 'sqlserver' cannot be written"),
            ({"url": f"jdbc:mysql://host/shop?password={QUOTED}&useSSL=true"}, "no meaning here: useSSL"),
            ({"url": "jdbc:mysql://host/shop?sslmode=require"}, "no meaning here: sslmode"),
            ({"url": f"jdbc:postgresql://host/shop?password={QUOTED}", "password": SECRET}, "the password is given twice"),
            ({"url": f"postgresql://u:{QUOTED}@host/shop", "user": "v"}, "the user is given twice"),
            ({"url": f"jdbc:postgresql://host/shop?password={QUOTED}&password=x"}, "the password is given twice"),
            ({"delivery": "at-least-once", "password": SECRET}, "must be exactly-once or upsert, not 'at-least-once'"),
            ({"delivery": "upsert"}, "needs the option 'upsertKeys'"),
            ({"upsertKeys": "id"}, "'upsertKeys' is for delivery 'upsert'"),
            ({"changeTypeColumn": "op"}, "'changeTypeColumn' is for delivery 'upsert'"),
            ({"delivery": "upsert", "upsertKeys": "id,,x"}, "name columns"),
            ({"lockTimeout": "soon"}, "a number of seconds, not 'soon'"),
            ({"lockTimeout": "inf"}, "lock_timeout_s must be positive seconds"),
            ({"lockTimeout": "0"}, "lock_timeout_s must be positive seconds"),
            ({"dbtable": "a.b.c"}, "a table is named as in"),
            ({"path": "/tmp/x"}, "'path' is not known"),
            ({"url": "sqlite:////tmp/x.db"}, "no two-phase commit"),
        ],
    )
    def test_what_is_wrong_is_named_and_no_secret_shown(self, options, complaint):
        refused(lambda: sql_sink(**options), complaint)

    @pytest.mark.parametrize("missing", ["url", "dbtable"])
    def test_what_is_missing_is_named(self, missing):
        options = {"url": URL, "dbtable": "orders"}
        del options[missing]
        with pytest.raises(UsageError, match=f"option '{missing}' is missing"):
            sql_write(options)


class TestFiles:
    def test_defaults(self):
        assert file_write({"path": "/tmp/out"}).sink == FileSink("/tmp/out", FileFormat.PARQUET)

    def test_a_path_is_quoted_as_spark_has_it(self):
        """Not at all, unlike the URLs of programs: a partition's folder is `file:/t/city=a%2Fb` to Spark."""
        for path in ("file:/t/city=a%2Fb", "file:///t/city=a%2Fb", "/t/city=a%2Fb"):
            assert file_write({"path": path}).sink.path == "/t/city=a%2Fb"
            assert file_stream_reader({"path": path}, StructType(), None)._job.source.plan.path == "/t/city=a%2Fb"

    def test_options_of_streams_are_ignored_in_batch_queries_with_a_warning(self, caplog):
        file_reader({"path": "/t", "cleanSource": "delete"}, SCHEMA, None)
        assert "cleanSource option ignored in batch queries" in caplog.text
        with pytest.raises(UsageError, match="'startFromSavepoint' is for streaming queries"):
            file_reader({"path": "/t", "startFromSavepoint": "/s"}, SCHEMA, None)

    def test_json(self):
        assert file_write({"path": "/tmp/out", "fileformat": "json"}).sink == FileSink("/tmp/out", FileFormat.JSON_LINES)

    def test_parquet_states_the_frames_types_where_spark_looks_for_them(self, tmp_path):
        """Regression: an interval came back as a number, a `time(6)` as a `time(9)`, and a collation was lost."""
        inner = StructType([StructField("took", DayTimeIntervalType()), StructField("at", TimeType())])
        kinds = [DayTimeIntervalType(), TimeType(), TimeType(9), StringType("UTF8_LCASE"), NullType(), ArrayType(inner)]
        schema = StructType([StructField(f"c{place}", kind) for place, kind in enumerate(kinds)])
        write, _ = planned_batch_write({"connector": "files", "path": str(tmp_path)}, schema, overwrite=False)
        rows = arrow_schema(schema)
        took, at = timedelta(hours=1), time(1, 2, 3, 4)
        values = [{"c0": took, "c1": at, "c2": at, "c3": "a", "c5": [{"took": took, "at": at}, None]}]
        written(write.sink, "app", 0, pa.RecordBatch.from_pylist(values, schema=rows))
        (file,) = tmp_path.glob("*.parquet")
        found = pq.read_table(file)
        assert StructType.fromJson(json.loads(found.schema.metadata[b"org.apache.spark.sql.parquet.row.metadata"])) == schema
        assert found.schema.metadata[b"org.apache.spark.version"] == pyspark.__version__.encode()
        assert [found.schema.field(name).type for name in ("c1", "c2")] == [pa.time64("us"), pa.time64("ns")]
        assert found.schema.field("c5").type.value_type.field("at").type == pa.time64("us")
        assert found.drop_columns("c4").to_pylist() == values

    def test_tasks_need_no_types_of_the_users(self, tmp_path):
        """Regression: they imported the modules of these, which executors may not have."""
        schema = StructType([StructField("at", TimeType())])
        write, _ = planned_batch_write({"connector": "files", "path": str(tmp_path)}, schema, overwrite=False)
        sink = replace(write.sink, columns='{"type": "udt"}')
        written(sink, "app", 0, pa.record_batch([pa.array([1000], pa.time64("ns"))], names=["at"]))
        assert len([*tmp_path.glob("*.parquet")]) == 1

    def test_a_time_with_more_digits_than_its_column_is_refused(self, tmp_path):
        schema = StructType([StructField("at", TimeType())])
        write, _ = planned_batch_write({"connector": "files", "path": str(tmp_path)}, schema, overwrite=False)
        with pytest.raises(UsageError, match=r"column 'at' has a value that its type does not have: .* would lose data"):
            written(write.sink, "app", 0, pa.record_batch([pa.array([1], pa.time64("ns"))], names=["at"]))

    def test_what_fsspec_is_reported_is_not_shown(self):
        write = file_write({"path": "s3://bucket/out", "storageOptions": '{"key": "k", "secret": "s3cret", "anon": false}'})
        assert write.sink.storage_options == {"key": "k", "secret": "s3cret", "anon": False}
        assert "s3cret" not in repr(write)

    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            ({}, "option 'path' is missing"),
            ({"path": "/o", "fileFormat": "orc"}, "'fileFormat' must be parquet or json, not 'orc'"),
            ({"path": "/o", "compression": "best"}, "no compression 'best'"),
            ({"path": "/o", "fileFormat": "json", "compression": "gzip"}, "compression 'gzip' is for Parquet"),
            ({"path": "/o", "storageOptions": '{"secret": "s3cret"}'}, r"no storage options; got \['secret'\]"),
            ({"path": "s3://b/o", "storageOptions": '"s3cret"'}, "must be JSON like"),
            ({"path": "s3://b/o", "storageOptions": '{"secret": "s3cret"'}, "must be JSON like"),
        ],
    )
    def test_what_is_wrong_is_named_and_no_secret_shown(self, options, complaint):
        refused(lambda: file_write(options), complaint)


class TestDelta:
    def test_options(self):
        write, partition_by = delta_write(
            {"path": "s3://b/t", "PARTITIONBY": "a, b", "targetFileSize": "5", "compression": "zstd"}, SCHEMA
        )
        assert write.sink == DeltaSink("s3://b/t", target_file_bytes=5, compression="zstd")
        assert partition_by == ("a", "b")

    def test_a_table_is_made_where_the_write_is_planned(self, tmp_path):
        options = {"connector": "delta", "path": str(tmp_path / "t"), "partitionBy": "value"}
        schema = StructType([StructField("id", LongType(), nullable=False), StructField("value", StringType())])
        write, columns = planned_batch_write(options, schema, overwrite=False)
        assert columns == ["id", "value"]
        assert write.sink.recorded_epochs() == {}
        shutil.rmtree(tmp_path / "t")  # as in a notebook that starts over: the process is the same one
        assert planned_batch_write(options, schema, overwrite=False)[0].sink.recorded_epochs() == {}
        with pytest.raises(UsageError, match="no column 'other'"):
            planned_batch_write(options, StructType([StructField("other", LongType()), *schema.fields]), overwrite=False)

    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            ({}, "option 'path' is missing"),
            ({"path": "/t", "targetFileSize": "0"}, "targetFileSize must be positive"),
            ({"path": "/t", "changeTypeColumn": "op"}, "'changeTypeColumn' is about changes by key: it needs upsertKeys"),
            ({"path": "/t", "mergeSchema": "yes"}, "'mergeSchema' must be true or false"),
            ({"path": "s3://b/t", "storageOptions": '{"secret": 1, "other": "s3cret"}'}, "must be JSON like"),
        ],
    )
    def test_what_is_wrong_is_named_and_no_secret_shown(self, options, complaint):
        refused(lambda: delta_write(options, SCHEMA), complaint)

    def test_a_path_of_hadoop_is_not_quoted(self):
        assert delta_write({"path": "file:/x/100%"}, SCHEMA)[0].sink == DeltaSink("/x/100%")
        refused(lambda: delta_write({"path": "file:/x/a%20b"}, SCHEMA), "takes this for another place because of '%20'")

    def test_changes_are_put_in_order_by_the_offset_where_there_is_one(self):
        given = {"path": "/t", "upsertKeys": "id, city", "changeTypeColumn": "op", "mergeSchema": "TRUE"}
        frame = StructType([StructField("id", LongType()), StructField("offset", LongType())])
        sink = delta_write(given, frame)[0].sink
        assert sink == DeltaSink("/t", merge_schema=True, changes=Changes(("id", "city"), ("offset",), "op"))
        assert delta_write({**given, "sequenceBy": "ts, n"}, frame)[0].sink.changes.sequence == ("ts", "n")
        assert delta_write(given, SCHEMA)[0].sink.changes.sequence == ()

    def test_a_table_gets_the_columns_that_it_lacks_where_that_is_asked_for(self, tmp_path):
        options = {"connector": "delta", "path": str(tmp_path / "t")}
        planned_batch_write(options, StructType([StructField("id", LongType())]), overwrite=False)
        wider = StructType([StructField("id", LongType()), StructField("name", StringType())])
        write, columns = planned_batch_write({**options, "mergeSchema": "true"}, wider, overwrite=False)
        assert columns == ["id", "name"]
        write.sink.check_rows(pa.schema([("id", pa.int64()), ("name", pa.string())]))


class TestIceberg:
    def test_options(self):
        given = {"table": "a.b", "catalog": '{"uri": "s3cret"}', "targetFileSize": "5", "compression": "snappy"}
        write, partition_by = iceberg_write({**given, "partitionBy": "bucket(4, day), city"}, SCHEMA)
        assert partition_by == ("bucket(4, day)", "city")
        assert write.sink == IcebergSink("a.b", {"uri": "s3cret"}, target_file_bytes=5, compression="snappy")
        assert "s3cret" not in repr(write)

    def test_a_table_is_made_where_the_write_is_planned(self, tmp_path):
        catalog = {"name": "c", "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
        options = {"connector": "iceberg", "table": "a.b", "catalog": json.dumps(catalog)}
        write, columns = planned_batch_write(options, SCHEMA, overwrite=False)
        assert columns == SCHEMA.names
        assert write.sink.recorded_epochs() == {}
        load_catalog(**catalog).drop_table("a.b")
        assert planned_stream_write(options, SCHEMA, complete=False)[0].sink.recorded_epochs() == {}
        with pytest.raises(UsageError, match="no column 'other'"):
            planned_batch_write(options, StructType([StructField("other", LongType())]), overwrite=False)

    @pytest.mark.parametrize(
        ("options", "complaint"),
        [({"table": "a.b"}, "option 'catalog' is missing"), ({"table": "a.b", "catalog": "s3cret"}, "must be JSON like")],
    )
    def test_what_is_wrong_is_named_and_no_secret_shown(self, options, complaint):
        refused(lambda: iceberg_write(options, SCHEMA), complaint)
