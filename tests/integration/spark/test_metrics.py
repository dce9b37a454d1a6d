"""Metrics of a query on a real Spark: what its listener and its Python processes tell is on the page."""

import threading
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from headrace.spark import metrics
from headrace.testing import FakeKafka
from tests.helpers.sink_rig import eventually


def test_a_query_its_commits_and_its_bad_records_are_on_the_page(spark, topics, tmp_path):
    source, target = topics.create(), topics.create()
    topics.send(source, range(5))
    with topics.transaction() as producer:
        producer.produce(source, b"\xff", partition=0)
        producer.commit_transaction(60)
    served = metrics(spark, port=0)

    def of_query(name):
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    try:
        options = topics.options(source, startingOffsets="earliest", valueFormat="string", onBadRecord="skip")
        rows = spark.readStream.format("headrace").options(**options).load().select("value")
        sink = {"kafka.bootstrap.servers": topics.bootstrap, "topic": target, "commitTopic": f"{target}-commits"}
        writer = rows.writeStream.format("headrace").options(**sink).option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination()
        once = ("query_endings", "query_starts", "source_skipped_records", "sink_commits", "sink_transactions")
        for name, wanted in {**dict.fromkeys(once, 1), "query_input_rows": 5}.items():
            eventually(lambda name=name: of_query(f"headrace_{name}_total"), wanted)
        assert of_query("headrace_query_phase_seconds_total") > of_query("headrace_sink_commit_seconds_total") > 0
    finally:
        served.close()


def test_a_query_that_hangs_is_silent_and_one_that_waits_for_records_is_not(spark, tmp_path):
    told_each = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(told_each, "300ms")
    hangs, goes_on, kept = threading.Event(), threading.Event(), []

    def keep(frame, number):
        kept.extend(frame.collect())
        if len(kept) > 1:
            hangs.set()
            goes_on.wait(60)

    def found(served):
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples}

    served = metrics(spark, port=0)
    try:
        with FakeKafka() as kafka:
            kafka.create_topic("in")
            kafka.append("in", b"first")
            read = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in", "startingOffsets": "earliest"}
            rows = spark.readStream.format("headrace").options(**read).load()
            query = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path)).start()
            try:
                eventually(lambda: found(served).get("headrace_query_batches_total"), 1)
                longest_s = now_s = found(served)["headrace_query_silent_seconds"]
                while now_s >= longest_s:  # until Spark has reported that there is nothing
                    longest_s, now_s = max(longest_s, now_s), found(served)["headrace_query_silent_seconds"]
                kafka.append("in", b"second")
                assert hangs.wait(60)
                eventually(lambda: found(served)["headrace_query_silent_seconds"] > 3, True)
                assert (found(served)["headrace_query_batches_total"], found(served)["headrace_source_lag_records"]) == (1, 0)
            finally:
                goes_on.set()
                query.stop()
    finally:
        served.close()
        spark.conf.unset(told_each)
