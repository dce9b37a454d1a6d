"""`format("headrace")` with `connector=sql`: exactly once into a table, and upserts; what does not fit is refused."""

from datetime import datetime

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from headrace.testing.servers.databases import PASSWORD
from tests.helpers.databases import SERVERS, servers
from tests.helpers.spark_jobs import finish_driver, kill_driver
from tests.helpers.sql_rig import SqlRig

ROWS = [(1, "one"), (2, None)]
WRONG = "wr0ng-s3cret"


@pytest.fixture(scope="module")
def server():
    with servers() as by_name:
        yield by_name


def new_rig(server, name):
    rig = SqlRig(server(name).url)
    yield rig
    rig.drop()


@pytest.fixture
def rig(server):
    yield from new_rig(server, "postgresql")


@pytest.fixture(params=SERVERS)
def any_rig(server, request):
    yield from new_rig(server, request.param)


def options_of(rig, **more):
    return {"connector": "sql", "url": rig.url, "dbtable": rig.table, **more}


def write(frame, options, mode="append"):
    frame.write.format("headrace").options(**options).mode(mode).save()


ID = "CAST(CAST(value AS STRING) AS BIGINT) AS id"


class TestBatch:
    def test_rows_are_added(self, spark, any_rig):
        any_rig.create()
        frame = spark.createDataFrame(ROWS, "id BIGINT, name STRING")
        write(frame, options_of(any_rig))
        write(frame.selectExpr("id + 2 AS id", "name"), options_of(any_rig))  # and are not replaced
        assert any_rig.rows() == [(1, "one"), (2, None), (3, "one"), (4, None)]
        assert not any_rig.prepared()

    def test_times_with_and_without_a_zone(self, spark, rig):
        rig.create("instant TIMESTAMPTZ, local TIMESTAMP")
        noon = "TIMESTAMP'2024-02-29 12:00:00+01:00' AS instant, TIMESTAMP_NTZ'2024-02-29 12:00:00' AS local"
        write(spark.sql(f"SELECT {noon}"), options_of(rig))
        assert rig.rows("instant AT TIME ZONE 'UTC', local") == [(datetime(2024, 2, 29, 11), datetime(2024, 2, 29, 12))]

    def test_the_address_as_sparks_jdbc_sink_has_it(self, spark, any_rig):
        any_rig.create()
        kind, rest = any_rig.url.split("://")
        login, place = rest.split("@")
        user, password = login.split(":")
        options = options_of(any_rig, url=f"jdbc:{kind}://{place}", user=user, password=password)
        write(spark.createDataFrame(ROWS, "id BIGINT, name STRING"), options)
        assert any_rig.rows() == ROWS

    def test_upserts(self, spark, any_rig):
        any_rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
        options = options_of(any_rig, delivery="upsert", upsertKeys="id")
        write(spark.createDataFrame(ROWS, "id BIGINT, name STRING"), options)
        write(spark.createDataFrame([(2, "two")], "id BIGINT, name STRING"), options)
        assert any_rig.rows() == [(1, "one"), (2, "two")]
        changes = spark.createDataFrame([(1, None, "d"), (3, "three", "c")], "id BIGINT, name STRING, op STRING")
        write(changes, {**options, "changeTypeColumn": "op"})
        assert any_rig.rows() == [(2, "two"), (3, "three")]

    def test_nothing_is_seen_when_a_task_fails(self, spark, any_rig):
        any_rig.create()
        frame = spark.range(0, 100, 1, 4).selectExpr("IF(id = 99, raise_error('injected'), id) AS id")
        with pytest.raises(PySparkException, match="injected"):
            write(frame, options_of(any_rig))
        assert any_rig.rows() == []
        assert not any_rig.prepared()

    def test_an_empty_frame(self, spark, rig):
        rig.create()
        write(spark.createDataFrame([], "id BIGINT"), options_of(rig))
        assert rig.rows() == []

    def test_a_repeated_write_is_written_once(self, spark, rig):
        rig.create()
        for number in (0, 0, 1, 1):
            frame = spark.createDataFrame([(number, "n")], "id BIGINT, name STRING")
            write(frame, options_of(rig, txnAppId=rig.table, txnVersion=str(number)))
        assert rig.ids() == [0, 1]


class TestRefused:
    @pytest.mark.parametrize(("columns", "complaint"), [
        ("id BIGINT, nmae STRING", r"'nmae' \(string\) is not in the table.*have id int64, nmae string; the table has id"),
        ("id STRING", r"column 'id': string does not go into BIGINT"),
        ("id ARRAY<BIGINT>", r"'id': list<.*> does not go into BIGINT"),
    ])  # fmt: skip
    def test_columns_that_do_not_fit_before_any_task_has_run(self, spark, rig, columns, complaint):
        rig.create()
        empty = spark.createDataFrame([], columns)
        with pytest.raises(PySparkException, match=complaint):
            write(empty, options_of(rig))

    @pytest.mark.parametrize(("more", "complaint"), [
        ({"dbtable": "nowhere"}, "there is no table 'nowhere'"),
        ({"connector": "jdbc"}, "must be one of kafka, sql, files, delta, iceberg, postgresql-changes, not 'jdbc'"),
        ({"dbtabel": "x"}, "did you mean 'dbtable'"),
        ({"delivery": "upsert", "upsertKeys": "name"}, "has no unique key of the columns"),
        ({"delivery": "upsert", "upsertKeys": "other"}, "has no unique key of the columns"),
    ])  # fmt: skip
    def test_options_by_name(self, spark, rig, more, complaint):
        rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
        with pytest.raises(PySparkException, match=complaint) as caught:
            write(spark.createDataFrame([], "id BIGINT, name STRING"), options_of(rig, **more))
        assert PASSWORD not in str(caught.value)

    def test_overwriting(self, spark, rig):
        with pytest.raises(PySparkException, match="Overwrite not allowed for connector 'sql'"):
            write(spark.range(1), options_of(rig), mode="overwrite")

    def test_reading(self, spark, rig):
        with pytest.raises(PySparkException, match="connector 'sql' cannot be read, only written"):
            spark.read.format("headrace").options(**options_of(rig)).load()

    def test_a_wrong_password_which_is_not_shown(self, spark, any_rig):
        any_rig.create()
        url = any_rig.url.replace(PASSWORD, WRONG)
        with pytest.raises(PySparkException, match="AuthenticationError") as caught:
            write(spark.range(1), options_of(any_rig, url=url))
        assert WRONG not in str(caught.value)


class TestStream:
    def copy(self, spark, topics, topic, options, checkpoint):
        read = topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=30)
        frame = spark.readStream.format("headrace").options(**read)
        writer = frame.load().selectExpr(ID).writeStream.format("headrace").options(**options)
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    def test_a_topic_is_copied_and_the_query_continues(self, spark, topics, numbers, rig, tmp_path):
        rig.create()
        self.copy(spark, topics, numbers, options_of(rig), tmp_path)
        assert rig.ids() == list(range(100))
        topics.send(numbers, range(100, 120), 1)
        self.copy(spark, topics, numbers, options_of(rig), tmp_path)
        assert rig.ids() == list(range(120))
        assert not rig.prepared()

    def test_totals_are_kept_up_to_date_by_key_in_foreach_batch(self, spark, topics, numbers, rig, tmp_path):
        rig.create("odd BIGINT PRIMARY KEY, total BIGINT")
        options = options_of(rig, delivery="upsert", upsertKeys="odd", txnAppId=rig.table)

        def upsert(frame, number):
            write(frame, {**options, "txnVersion": str(number)})

        source = topics.options(numbers, startingOffsets="earliest", maxOffsetsPerTrigger=60)
        ids = spark.readStream.format("headrace").options(**source).load().selectExpr(ID).selectExpr("id % 2 AS odd", "id")
        totals = ids.groupBy("odd").agg({"id": "sum"}).withColumnRenamed("sum(id)", "total")
        writer = totals.writeStream.foreachBatch(upsert).outputMode("update")
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
        assert rig.rows() == [(0, sum(range(0, 100, 2))), (1, sum(range(1, 100, 2)))]

    def test_whole_results_are_refused(self, spark, topics, numbers, rig, tmp_path):
        rig.create("count BIGINT")
        frame = spark.readStream.format("headrace").options(**topics.options(numbers)).load().groupBy().count()
        writer = frame.writeStream.format("headrace").options(**options_of(rig)).outputMode("complete")
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        with pytest.raises((StreamingQueryException, PySparkException), match="complete not allowed for connector 'sql'"):
            writer.start().awaitTermination()


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_driver_killed_after_its_list_was_durable(topics, numbers, rig, tmp_path):
    rig.create()
    read = topics.options(numbers, startingOffsets="earliest", maxOffsetsPerTrigger=50)
    arguments = {"read": read, "select": [ID], "write": options_of(rig)}
    kill_driver(tmp_path, arguments, "headrace.connectors.sql.sink", "SqlCommitter", "record", "after", 1)
    assert rig.prepared()
    assert rig.ids() == []
    finish_driver(tmp_path, arguments, lambda: len(rig.ids()) >= 100)
    assert rig.ids() == list(range(100))
    assert not rig.prepared()
