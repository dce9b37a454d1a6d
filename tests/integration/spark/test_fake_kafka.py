"""The Java clients, by Spark's JVM connector and by themselves, read and write the fake broker; in transactions, too."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from headrace import Pipeline
from headrace.kafka import KafkaSink, KafkaSource, Latest
from headrace.spark import read_source, with_dead_letters
from headrace.testing.fake_kafka import CutAfter, ErrorCode, FakeKafka, Refuse
from tests.helpers.avro_evolution import CHANGES, Read
from tests.helpers.schema_registry import FakeRegistry

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def kafka():
    with FakeKafka(brokers=3) as cluster:
        cluster.create_topic("in", partitions=3)
        cluster.create_topic("out", partitions=3)
        yield cluster


@pytest.fixture
def java_producer(spark, kafka):
    """A function that makes a Java KafkaProducer of strings with these settings."""
    made = []

    def make(**settings: str):
        jvm = spark._jvm
        properties = jvm.java.util.Properties()
        properties.setProperty("bootstrap.servers", kafka.bootstrap)
        for name, value in settings.items():
            properties.setProperty(name.replace("_", "."), value)
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        serializer = loader.loadClass("org.apache.kafka.common.serialization.StringSerializer")
        producer_class = loader.loadClass("org.apache.kafka.clients.producer.KafkaProducer")
        properties.setProperty("key.serializer", serializer.getName())
        properties.setProperty("value.serializer", serializer.getName())
        types = spark.sparkContext._gateway.new_array(jvm.java.lang.Class, 1)
        types[0] = properties.getClass()
        arguments = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 1)
        arguments[0] = properties
        made.append(producer_class.getConstructor(types).newInstance(arguments))
        return made[-1]

    yield make
    for producer in made:
        producer.close()


def java_record(spark, topic: str, value: str):
    return spark._jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, value)


def test_sparks_own_connector_writes_and_reads_it(spark, kafka):
    rows = spark.range(1000).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    options = {"kafka.bootstrap.servers": kafka.bootstrap}
    rows.write.format("kafka").options(**options, topic="in").save()
    assert len(kafka.records("in")) == 1000
    read = spark.read.format("kafka").options(**options, subscribe="in").load()
    assert {row["value"] for row in read.select("value").collect()} == {b"%d" % number for number in range(1000)}


def test_sparks_own_connector_streams_from_it_to_it(spark, kafka, tmp_path):
    kafka.append("in", b"a", b"b")
    options = {"kafka.bootstrap.servers": kafka.bootstrap}
    stream = spark.readStream.format("kafka").options(**options, subscribe="in", startingOffsets="earliest").load()
    writer = stream.select("value").writeStream.format("kafka").options(**options, topic="out")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        kafka.append("in", b"c", partition=2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(record.value for record in kafka.records("out")) == [b"a", b"b", b"c"]


def test_both_connectors_read_the_same_from_it(spark, kafka):
    for partition in range(3):
        kafka.append("in", b"%d" % partition, partition=partition)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in"}
    found = [sorted(map(tuple, spark.read.format(name).options(**options).load().collect())) for name in ("kafka", "headrace")]
    assert found[0] == found[1]
    assert len(found[0]) == 3


def test_the_java_producer_commits_and_aborts_transactions(spark, kafka, java_producer):
    producer = java_producer(transactional_id="java")
    producer.initTransactions()
    commit, abort = producer.commitTransaction, producer.abortTransaction
    for value, end in (("kept", commit), ("dropped", abort), ("kept too", commit)):
        producer.beginTransaction()
        producer.send(java_record(spark, "out", value)).get()
        end()
    assert sorted(record.value for record in kafka.records("out")) == [b"kept", b"kept too"]
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "out"}
    committed = spark.read.format("kafka").options(**options, **{"kafka.isolation.level": "read_committed"}).load()
    assert sorted(row["value"] for row in committed.select("value").collect()) == [b"kept", b"kept too"]


def test_a_second_java_producer_fences_the_first(spark, kafka, java_producer):
    first = java_producer(transactional_id="one")
    first.initTransactions()
    first.beginTransaction()
    first.send(java_record(spark, "out", "lost")).get()
    java_producer(transactional_id="one").initTransactions()
    with pytest.raises(Exception, match="ProducerFenced"):
        first.commitTransaction()
    assert kafka.records("out") == []


def test_the_java_producer_writes_once_though_an_answer_is_lost(spark, kafka, java_producer):
    fault = kafka.fault("Produce", CutAfter(), nth=2)
    producer = java_producer(enable_idempotence="true")
    for number in range(4):
        producer.send(java_record(spark, "out", str(number))).get()
    assert fault.fired == 1
    assert sorted(record.value for record in kafka.records("out")) == [b"0", b"1", b"2", b"3"]


def test_seatunnel_10574_a_prepare_that_fails_persists_no_position_of_the_source(spark, kafka, tmp_path):
    """There the position was stored, and what was read before it was never written."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap}

    def copy() -> list[bytes]:
        stream = spark.readStream.format("headrace").options(**options, subscribe="in", startingOffsets="earliest").load()
        writer = stream.select("value").writeStream.format("headrace").options(**options, topic="out", commitTopic="lists")
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
        return sorted(record.value for record in kafka.records("out"))

    def committed_batches() -> list[str]:
        return sorted(path.name for path in (tmp_path / "commits").glob("[0-9]*"))

    kafka.append("in", b"a")
    assert copy() == [b"a"]
    before = committed_batches()
    kafka.append("in", b"b")
    refused = kafka.fault("Produce", Refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "out"), times=None)
    with pytest.raises(StreamingQueryException, match="TOPIC_AUTHORIZATION_FAILED"):
        copy()
    assert refused.fired > 0
    assert committed_batches() == before
    refused.stop()
    kafka.append("in", b"c")
    assert copy() == [b"a", b"b", b"c"]


def test_schemas_that_javas_judge_finds_compatible_are_those_whose_values_are_read(spark):
    """It is what a schema registry asks before it takes a new version."""
    parser, judge = spark._jvm.org.apache.avro.Schema.Parser, spark._jvm.org.apache.avro.SchemaCompatibility

    def outcome(reader: object, writer: object) -> bool:
        schemas = [parser().parse(json.dumps(each)) for each in (reader, writer)]
        return judge.checkReaderWriterCompatibility(*schemas).getType().toString() == "COMPATIBLE"

    for name, change in CHANGES.items():
        found = [outcome(change.new, change.old), outcome(change.old, change.new)]
        assert found == [isinstance(each, Read) or not each.by_java for each in (change.backward, change.forward)], name


def test_typed_values_of_a_registry_are_rows_in_a_batch_and_in_a_stream_that_continues(spark, kafka, query):
    symbols = {"type": "enum", "name": "E", "symbols": ["x", "y"]}
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    kinds = {
        "number": "long", "symbol": symbols, "at": {"type": "long", "logicalType": "timestamp-millis"},
        "day": {"type": "int", "logicalType": "date"}, "price": decimal, "raw": {"type": "fixed", "name": "F", "size": 2},
        "many": {"type": "array", "items": ["null", "string"]}, "named": {"type": "map", "values": "double"},
    }  # fmt: skip
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    later = {**schema, "fields": [*schema["fields"], {"name": "more", "type": "string", "default": "?"}]}
    value = b"\2" + b"\2" + b"\xd0\x0f" + b"\4" + b"\4\x04\xd2" + b"ab" + b"\4\2\2z\0\0" + b"\2\2k" + b"\0" * 8 + b"\0"
    with FakeRegistry() as registry:
        registry.register("in-value", schema)
        kafka.append("in", b"\0\0\0\0\1" + value, b"bad", partition=1)
        typed = {"valueFormat": "avro", "schemaRegistryUrl": registry.url, "onBadRecord": "keep"}
        options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in", "startingOffsets": "earliest", **typed}
        frame = spark.read.format("headrace").options(**options).load()
        rows = frame.where("partition = 1").selectExpr("CAST(value AS STRING) AS shown", "value.*", "badValue").collect()
        (good,) = (row for row in rows if row.badValue is None)
        shown = (good.number, good.symbol, good.day.isoformat(), str(good.price), bytes(good.raw), good.many, good.named)
        assert shown == (1, "y", "1970-01-03", "12.34", b"ab", ["z", None], {"k": 0.0})
        assert [bytes(row.badValue) for row in rows if row.badValue is not None] == [b"bad"]
        for topic in ("good", "letters"):
            kafka.create_topic(topic, partitions=1)
        sink = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "good", "valueFormat": "json"}
        rows = frame.where("partition = 1").select("value.number", "deadLetter")
        rows = rows.selectExpr("CASE WHEN deadLetter IS NULL THEN STRUCT(number) END AS value", "deadLetter")
        with_dead_letters(rows, "letters").write.format("headrace").mode("append").options(**sink).save()
        assert [json.loads(record.value) for record in kafka.records("good")] == [{"number": 1}]
        ((letter, request),) = [(record.value, dict(record.headers)) for record in kafka.records("letters")]
        assert (letter, request["__connect.errors.topic"], request["__connect.errors.partition"]) == (b"bad", b"in", b"1")
        query.run_available(options)
        registry.register("in-value", later)
        kafka.append("in", b"\0\0\0\0\2" + value + b"\2m")
        query.run_available(options)
        assert [row.value.more for row in query.rows if row.value is not None and "more" in row.value] == ["m"]


def test_a_source_and_a_pipeline_are_of_use_in_each_session_of_a_context(spark, kafka, tmp_path):
    kafka.append("in", b"a", b"b")
    bounded = KafkaSource(kafka.bootstrap, topics=["in"], stop=Latest())
    pipeline = Pipeline(KafkaSource(kafka.bootstrap, topics=["in"], columns=["value"]), KafkaSink(kafka.bootstrap, topic="out"))
    for number, session in enumerate((spark, spark.newSession()), 1):
        assert read_source(session, bounded).count() == 2
        folder = str(tmp_path / str(number))
        pipeline.start_on_spark(session, checkpointLocation=folder, trigger={"availableNow": True}).awaitTermination()
        assert len(kafka.records("out")) == 2 * number
        assert SparkSession.getActiveSession() is spark


def test_a_topic_is_a_view_of_sql_and_no_table_of_the_catalog(spark, kafka):
    """Of which Spark 4.3 would hand over no option when it is read; when it is made each comes twice."""
    kafka.append("in", b"a", b"b")
    made = f"numbers USING headrace OPTIONS (`kafka.bootstrap.servers` '{kafka.bootstrap}', subscribe 'in')"
    with pytest.raises(AnalysisException, match="Make a view: CREATE TEMPORARY VIEW name USING headrace"):
        spark.sql(f"CREATE TABLE {made}")
    spark.sql(f"CREATE TEMPORARY VIEW {made}")
    assert spark.table("numbers").count() == 2
    spark.catalog.dropTempView("numbers")


TIMES = [
    "2020-07-01T12:00:00", "2020-07-01", "2020-07-01 12:00", "2020-07-01T12:00:00Z", "2020-07-01T12:00:00.1234567",
    "2020-07-01T12:00:00.123456789-05:00", "1969-12-31T23:59:59.9999999Z", "2026-03-08T02:30:00", "2026-11-01T01:30:00",
    "1850-01-01T00:00:00", "2020-07-01T25:00:00",
]  # fmt: skip


def test_a_session_without_a_zone_has_that_of_the_drivers_jvm(spark, kafka):
    """As by -Duser.timezone: in local mode tasks are of the same JVM. Each task took the zone of its machine."""
    kafka.append("in", b'{"t": "2020-07-01T12:00:00"}', partition=0)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in", "valueFormat": "json"}
    frame = spark.read.format("headrace").options(**options).schema("value struct<t timestamp>").load()
    zones = spark._jvm.java.util.TimeZone
    was, default = spark.conf.get("spark.sql.session.timeZone"), zones.getDefault()
    try:
        spark.conf.unset("spark.sql.session.timeZone")
        zones.setDefault(zones.getTimeZone("Asia/Tokyo"))
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert frame.selectExpr("unix_seconds(value.t) AS t").collect()[0].t == 1593572400
    finally:
        zones.setDefault(default)
        spark.conf.set("spark.sql.session.timeZone", was)


def test_json_times_are_those_of_from_json_in_the_sessions_zone(spark, kafka, query):
    kafka.append("in", *(b'{"t": "%s"}' % text.encode() for text in TIMES), partition=0)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in", "startingOffsets": "earliest"}
    typed = {**options, "valueFormat": "json", "onBadRecord": "keep"}
    was = spark.conf.get("spark.sql.session.timeZone")
    theirs = spark.read.format("headrace").options(**options).load()
    ours = spark.read.format("headrace").options(**typed).schema("value struct<t timestamp>, offset bigint").load()
    try:
        for zone in ("America/New_York", "+05:30", "UTC"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            wanted = theirs.selectExpr("offset", "unix_micros(from_json(string(value), 't timestamp').t) AS t").collect()
            found = ours.selectExpr("offset", "unix_micros(value.t) AS t").collect()
            assert sorted(found) == sorted(wanted), zone
            assert sum(row.t is None for row in found) == 1
        frames = ours.collect()
        named = spark.read.format("headrace").options(**typed, timeZone=zone).schema(ours.schema).load()
        assert sorted(named.rdd.collect(), key=str) == sorted(frames, key=str)
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        stream = spark.readStream.format("headrace").options(**typed).schema("value struct<t timestamp>").load()
        query.start_frame(stream, availableNow=True).awaitTermination()
        assert query.rows[0].value.t.timestamp() == 1593572400
    finally:
        spark.conf.set("spark.sql.session.timeZone", was)


def test_tasks_of_an_rdd_have_no_zone_of_the_session(spark, kafka):
    """Regression: they read times in the zone of the JVM, whatever the session's was."""
    kafka.append("in", b'{"t": "2020-07-01T12:00:00"}', partition=0)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in", "valueFormat": "json"}
    frame = spark.read.format("headrace").options(**options).schema("value struct<t timestamp>").load()
    for use in (frame.rdd.collect, lambda: frame.foreachPartition(list)):
        with pytest.raises(Exception, match="no session's zone, which a time without one needs: give the option timeZone"):
            use()


FLOATS = ['"NaN"', '"Infinity"', '"+Infinity"', '"+INF"', '"-Infinity"', '"-INF"', '"INF"', '"Inf"', '"nan"', '"1.5"', "1.5"]


@pytest.mark.parametrize(("kind", "values"), [("timestamp_ntz", map(json.dumps, TIMES)), ("double", FLOATS)])
def test_json_times_without_zones_and_floats_are_those_of_from_json(spark, kafka, kind, values):
    kafka.append("in", *(b'{"t": %s}' % text.encode() for text in values), partition=0)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in", "startingOffsets": "earliest"}
    theirs = spark.read.format("headrace").options(**options).load()
    typed = spark.read.format("headrace").options(**options, valueFormat="json", onBadRecord="keep")
    ours = typed.schema(f"value struct<t {kind}>, offset bigint").load().selectExpr("offset", "string(value.t) AS t").collect()
    wanted = theirs.selectExpr("offset", f"string(from_json(string(value), 't {kind}').t) AS t").collect()
    assert sorted(ours) == sorted(wanted)
    assert {True, False} == {row.t is None for row in ours}


def test_a_registrys_secret_by_reference_is_in_no_plan_no_checkpoint_and_no_error_of_spark(spark, kafka, query, tmp_path):
    """A task reads it from its file by itself, as it meets an id that the query did not know."""
    (tmp_path / "login").write_text("me:hunter2\n")
    secret = {
        "config.providers": "dir",
        "config.providers.dir.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
        "basic.auth.user.info": f"${{dir:{tmp_path}:login}}",
    }
    with FakeRegistry(user="me:hunter2") as registry:
        registry.register("in-value", '"long"')
        kafka.append("in", b"\0\0\0\0\1\2", b"\0\0\0\0\7\2")
        typed = {"valueFormat": "avro", "schemaRegistryUrl": registry.url, "onBadRecord": "keep"}
        typed |= {f"schema.registry.{name}": value for name, value in secret.items()}
        options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in", "startingOffsets": "earliest", **typed}
        frame = spark.read.format("headrace").options(**options).load().select("value", "badReason")
        request = frame._jdf.queryExecution().toString()
        assert "headrace" in request.lower()
        assert [tuple(row) for row in frame.collect()] == [(1, None), (None, "value: the schema registry has no schema 7")]
        assert "GET /schemas/ids/7" in registry.asked
        query.run_available(options)
        assert [row.value for row in query.rows] == [1, None]
        kept = [path.read_bytes() for path in query.checkpoint.rglob("*") if path.is_file()]
        assert any(b"fingerprint" in each for each in kept)
        (tmp_path / "login").write_text("me:hunter3")
        with pytest.raises(Exception, match="answered 401") as raised:
            spark.read.format("headrace").options(**options).load()
        for each in [request.encode(), *kept, str(raised.value).encode()]:
            assert b"hunter" not in each
            assert b"bWU6aHVudGVy" not in each  # as HTTP sends it


FLIGHT_PROTO = 'syntax = "proto3"; message Flight { string carrier = 1; optional int32 delay = 2; repeated string legs = 3; }'
FLIGHT_JSON = {
    "type": "object", "required": ["carrier", "legs"],
    "properties": {
        "carrier": {"type": "string"}, "delay": {"type": ["null", "integer"]},
        "legs": {"type": "array", "items": {"type": "string"}},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "schema", "number"),
    [("protobuf", "PROTOBUF", FLIGHT_PROTO, "int"), ("json-schema", "JSON", FLIGHT_JSON, "bigint")],
)
def test_protobuf_and_json_of_a_registry_are_written_and_read_as_rows(spark, kafka, name, kind, schema, number):
    with FakeRegistry() as registry:
        registry.register("out-value", schema, kind=kind)
        typed = {"kafka.bootstrap.servers": kafka.bootstrap, "valueFormat": name, "schemaRegistryUrl": registry.url}
        made = f"STRUCT(ARRAY('Rome', 'Oslo') AS legs, 'UA' AS carrier, CAST(id AS {number}) AS delay) AS value"
        rows = spark.range(2).selectExpr(made)
        rows.write.format("headrace").mode("append").options(**typed, topic="out").save()
        kafka.append("out", b"bad", partition=1)
        options = {**typed, "subscribe": "out", "startingOffsets": "earliest", "onBadRecord": "keep"}
        frame = spark.read.format("headrace").options(**options).load()
        found = frame.selectExpr("value.*", "badValue").orderBy("delay").collect()
        assert [tuple(row) for row in found] == [
            (None, None, None, bytearray(b"bad")), ("UA", 0, ["Rome", "Oslo"], None), ("UA", 1, ["Rome", "Oslo"], None),
        ]  # fmt: skip
        only = spark.read.format("headrace").options(**{**options, "onBadRecord": "skip"})
        delays = only.schema(f"value struct<delay {number}>").load().collect()
        assert sorted(row.value.delay for row in delays) == [0, 1]


def test_rows_of_a_frame_come_in_the_same_order_at_each_use(spark):
    """From several brokers, in tasks of several partitions: by the order `limit`, `sample` and ids give the same rows."""
    with FakeKafka(brokers=3) as kafka:
        kafka.create_topic("ordered", partitions=8)
        for number in range(4000):
            kafka.append("ordered", b"v%d" % number, partition=number % 8)
        options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "ordered"}
        frame = spark.read.format("headrace").options(**options).load().select("value")
        assert frame.rdd.getNumPartitions() < 8, "tasks have several partitions each"
        looks = [[row["value"] for row in frame.collect()] for _ in range(5)]
        assert len(set(looks[0])) == 4000
        assert looks == looks[:1] * 5
        first = frame.limit(1500)
        assert frame.exceptAll(first).union(first).distinct().count() == 4000
