"""What Spark's Python processes count, from where it happens to the page: real parts, a Kafka of this process, no Spark."""

from __future__ import annotations

import json
import os
import socket
import threading
import urllib.request
from contextlib import closing
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from headrace.connectors.base.counters import COUNTERS, Counted, ProcessCounters
from headrace.enumerator.errors import UsageError
from headrace.kafka import KafkaSink
from headrace.runners.spark import readers, reports, writers
from headrace.runners.spark.metrics.collector import SPARK_METRICS, JobStatus, SinkWatch
from headrace.runners.spark.metrics.exporter import metrics
from headrace.runners.spark.reports import REPORTS_VARIABLE, ReportListener, own_address, report
from headrace.runners.spark.supervision.status import StatusFile
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka import Throttle
from pyspark_headrace import DefaultSource
from tests.helpers.sink_rig import kafka_sink, prepared

QUERY = "6f0c2a0e-0000-4000-8000-000000000000"
LONG_S = 30

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="reports are for Linux")


@pytest.fixture(autouse=True)
def counters(monkeypatch):
    """Of this process, with nothing in them, and an address of this test."""
    COUNTERS.take()
    reports._OUTBOX._begin()
    own_address.cache_clear()
    monkeypatch.setenv(REPORTS_VARIABLE, own_address())


@pytest.fixture
def kafka():
    with FakeKafka() as kafka:
        for topic in ("in", "out"):
            kafka.create_topic(topic, partitions=1)
        yield kafka


class Context(SimpleNamespace):
    """A task of the query."""

    properties = {reports.QUERY_ID: QUERY, "streaming.sql.batchId": "0"}  # noqa: RUF012 - nothing changes it

    @classmethod
    def get(cls):
        numbers = dict.fromkeys(("partitionId", "taskAttemptId", "attemptNumber"), lambda: 0)
        return cls(getLocalProperty=cls.properties.__getitem__, **numbers)


class Session:
    def __init__(self):
        self.streams = SimpleNamespace(addListener=self.listen, removeListener=lambda _: None)

    def listen(self, listener):
        listener.onQueryStarted(SimpleNamespace(id=QUERY, runId="1", name="flights"))


def page(served):
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=LONG_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def eventually(read, name, wanted):
    """The page once it has this value: reports come in their own thread."""
    waiting = threading.Event()
    for _ in range(LONG_S * 100):
        found = read()
        if found.get(name) == wanted:
            return found
        waiting.wait(0.01)
    raise AssertionError(f"{name} is {found.get(name)} instead of {wanted}")


def read_a_batch(kafka, **options):
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "in", "startingOffsets": "earliest", **options}
    source = DefaultSource(given)
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    return sum(batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part))


def write_a_batch(kafka, values):
    source = DefaultSource({"kafka.bootstrap.servers": kafka.bootstrap, "topic": "out"})
    writer = source.streamWriter(StructType([StructField("value", StringType())]), overwrite=False)
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": values})]))], 0)


@pytest.mark.parametrize(
    ("handling", "metric", "rows"),
    [("skip", "headrace_source_skipped_records_total", 3), ("keep", "headrace_source_bad_records_total", 5)],
)
def test_bad_records_commits_and_throttling_are_on_the_page_after_a_known_load(monkeypatch, kafka, handling, metric, rows):
    for module in (readers, writers):
        monkeypatch.setattr(module, "TaskContext", Context)
    kafka.append("in", b"1", b"\xff", b"2", b"\xfe", b"3")
    throttle = kafka.fault("Fetch", Throttle(125))
    with closing(metrics(Session(), port=0)) as served:
        read = read_a_batch(kafka, valueFormat="string", onBadRecord=handling)
        write_a_batch(kafka, ["a", "b"])
        found = eventually(lambda: page(served), "headrace_sink_commits_total", 1)
        found = eventually(lambda: page(served), metric, 2)
    assert read == rows
    assert throttle.fired == 1
    assert found["headrace_throttled_seconds_total"] == 0.125
    assert found["headrace_sink_transactions_total"] == 1
    assert 0 < found["headrace_sink_commit_seconds_total"] < LONG_S


def test_what_was_lost_and_tolerated_is_on_the_page(monkeypatch, kafka):
    monkeypatch.setattr(readers, "TaskContext", Context)
    kafka.append("in", *[b"%d" % number for number in range(10)])
    given = {"subscribe": "in", "failOnDataLoss": "false", "startingOffsets": "earliest"}
    source = DefaultSource({"kafka.bootstrap.servers": kafka.bootstrap, **given})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    kafka.delete_records("in", before=4)
    with closing(metrics(Session(), port=0)) as served:
        assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 6
        eventually(lambda: page(served), "headrace_source_lost_offsets_total", 4)


# --- open transactions ------------------------------------------------------------------------------------------------


def test_open_transactions_of_a_destination_are_listed_with_their_ages(kafka):
    sink, other = (kafka_sink(kafka.bootstrap, topic, "commits") for topic in ("out", "in"))
    prepared(sink, "job", 0, ["a"], ["b"])
    prepared(other, "job", 0, ["elsewhere"])
    found = KafkaSink(kafka.bootstrap, topic="out").open_transactions()
    assert {job: len(ages) for job, ages in found.items()} == {"job": 2}
    assert all(0 <= age < LONG_S for age in found["job"])
    sink.committer("job").clean_up(())
    assert sink.open_transactions() == {}


class ListsWhatItIsTold:
    destination = "out"

    def __init__(self, *answers):
        self._answers = iter(answers)
        self.asked = threading.Semaphore(0)

    def open_transactions(self):
        self.asked.release()
        answer = next(self._answers, {})
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_sink_is_shown_as_it_was_seen_last_and_when_it_cannot_be_asked(caplog):
    with closing(metrics(Session(), port=0, sinks=[ListsWhatItIsTold({"job": [3.0, 8.0]})])) as served:
        found = eventually(lambda: page(served), "headrace_sink_open_transactions", 2)
    assert (found["headrace_sink_reachable"], found["headrace_sink_oldest_transaction_seconds"]) == (1, 8)
    sink = ListsWhatItIsTold({"job": [3.0]}, {}, ConnectionError("no broker"), ConnectionError("no broker"))
    with closing(SinkWatch(sink, interval_s=0.001)) as watch:
        for _ in range(6):
            assert sink.asked.acquire(timeout=LONG_S)
    assert caplog.text.count("cannot be listed") == 1
    assert watch.last_seen.is_reachable


def test_a_job_whose_transactions_have_ended_is_shown_with_none_once():
    sink = ListsWhatItIsTold({"job": [3.0]}, {}, {})
    watch = SinkWatch.__new__(SinkWatch)
    watch.last_seen, watch.destination, watch._sink = None, "out", sink
    seen = []
    for _ in range(3):
        watch.last_seen = watch._look()
        seen.append(watch.last_seen.ages_s)
    assert seen == [{"job": [3.0]}, {"job": ()}, {}]


# --- the job, by its supervisor's file --------------------------------------------------------------------------------


def test_restarts_takeovers_and_standbys_are_those_of_the_status_file(tmp_path):
    path = tmp_path / "status.json"
    with closing(metrics(Session(), port=0, status=path)) as served:
        assert "headrace_job_drivers_started_total" not in page(served)  # there is none yet
        lease = {"state": "LEADING", "leader": "host-a", "term": 4, "suspect": True, "trouble": None}
        status = {"drivers_started": 3, "takeovers": 2, "standbys": [{"pid": 7, "state": "ARMED"}], "lease": lease}
        StatusFile(path).write(status)
        found = page(served)
    shown = {name: value for name, value in found.items() if name.startswith("headrace_job")}
    assert shown == {
        "headrace_job_drivers_started_total": 3,
        "headrace_job_takeovers_total": 2,
        "headrace_job_standbys": 1,
        "headrace_job_lease_term": 4,
        "headrace_job_lease_suspect": 1,
    }


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"drivers_started": "?"}', '{"drivers_started": 1, "standbys": [3]}'])
def test_a_file_that_is_no_status_shows_nothing(tmp_path, text):
    (tmp_path / "status.json").write_text(text)
    assert JobStatus(tmp_path / "status.json").read() == []


# --- reports ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def heard():
    taken = []
    arrived = threading.Semaphore(0)

    def take(query, counts):
        taken.append((query, counts))
        arrived.release()

    listener = ReportListener(own_address(), take)
    yield SimpleNamespace(taken=taken, arrived=arrived)
    listener.close()


def test_a_count_is_reported_once(heard):
    COUNTERS.add(Counted.RECORDS_SKIPPED, 2)
    report("q")
    report("q")  # nothing new: not sent
    COUNTERS.add(Counted.RECORDS_SKIPPED)
    report("q")
    for _ in range(2):
        assert heard.arrived.acquire(timeout=LONG_S)
    assert heard.taken == [("q", {"records_skipped": 2}), ("q", {"records_skipped": 1})]


def test_what_no_process_hears_is_kept_for_the_next_time(request):
    COUNTERS.add(Counted.RECORDS_SKIPPED, 2)
    report("q")
    heard = request.getfixturevalue("heard")
    report("q")
    assert heard.arrived.acquire(timeout=LONG_S)
    assert heard.taken == [("q", {"records_skipped": 2})]


def test_what_was_counted_for_one_query_is_never_reported_of_another(request):
    """As of a standby's dry runs, which no process hears: when it takes over, its workers continue with the job's own query."""
    COUNTERS.add(Counted.RECORDS_SKIPPED, 2)
    report("dry_run")
    heard = request.getfixturevalue("heard")
    COUNTERS.add(Counted.RECORDS_SKIPPED)
    report("q")
    for _ in range(2):
        assert heard.arrived.acquire(timeout=LONG_S)
    assert heard.taken == [("dry_run", {"records_skipped": 2}), ("q", {"records_skipped": 1})]


def test_counts_of_queries_that_no_process_hears_of_are_not_kept_without_end(request):
    for number in range(500):
        COUNTERS.add(Counted.COMMITS)
        report(str(number))
    assert len(reports._OUTBOX._unsent) == reports._MOST_QUERIES


@pytest.mark.parametrize(
    "said",
    [
        *(b"", b"{", b"[]", b'"x"', b'{"secret": 3}', json.dumps({"secret": "guessed", "query": "q", "counts": {}}).encode()),
        pytest.param(b"[" * 60_000, id="regression: nested too deep"),
    ],
)
def test_what_others_say_to_the_socket_is_left_out(heard, said):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.sendto(said, f"\0{own_address().partition(':')[0]}")
    COUNTERS.add(Counted.COMMITS)
    report(None)
    assert heard.arrived.acquire(timeout=LONG_S)
    assert heard.taken == [(None, {"commits": 1})]


def test_a_forked_process_counts_from_nothing():
    counters = ProcessCounters()
    counters.add(Counted.COMMITS, 5)
    ours, its = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(its, json.dumps(counters.take()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 100) == b"{}"
    for descriptor in (ours, its):
        os.close(descriptor)
    assert counters.take() == {"commits": 5}


# --- OpenTelemetry ----------------------------------------------------------------------------------------------------


def test_opentelemetry_is_reported_the_same(tmp_path):
    reader = InMemoryMetricReader()
    StatusFile(tmp_path / "status").write({"drivers_started": 2})
    with closing(metrics(Session(), meter_provider=MeterProvider([reader]), status=tmp_path / "status")) as served:
        found = points(reader)
    assert served.port is None
    assert found["headrace_query_starts"] == [({"query_id": QUERY, "query_name": "flights"}, 1)]
    assert found["headrace_job_drivers_started"] == [({}, 2)]
    assert found.keys() <= {kind.name for kind in SPARK_METRICS}
    assert points(reader) == {}  # it is closed


def points(reader):
    data = reader.get_metrics_data()
    found = {}
    for resource in [] if data is None else data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = [(dict(point.attributes), point.value) for point in metric.data.data_points]
    return {name: values for name, values in found.items() if values}


def test_metrics_that_no_process_can_see_are_refused():
    with pytest.raises(UsageError, match=r"give port=\.\.\."):
        metrics(Session())
