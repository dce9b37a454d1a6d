"""Metrics of Spark's queries: what listeners are reported becomes what a Prometheus server reads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.connectors.base.counters import Counted
from headrace.enumerator.errors import RetriableError, UsageError
from headrace.runners.spark.metrics.collector import SPARK_METRICS, MetricSource
from headrace.runners.spark.metrics.exporter import QueryListener, metrics
from headrace.runners.spark.metrics.prometheus import SessionCollector
from headrace.runners.spark.metrics.queries import MOST_ENDED, KnownQueries
from headrace.runners.spark.split_state import SPLITS
from headrace.runners.spark.supervision.core import Ending
from headrace.runners.spark.supervision.exit_causes import end_by

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring"
QUERY = {"query_id": "q", "query_name": "flights"}
ORDER = ("source", "topic", "partition", "phase", "ending")


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queries(clock):
    return KnownQueries(clock)


def progress(batch=0, position=5, end=9, **changes):
    """As Spark 4.3 shows it, with headrace's own key among the offsets."""
    offsets = json.dumps({"t": {"0": position, "1": 3}, "headrace:{}": {}})
    source = {"startOffset": None, "endOffset": offsets, "latestOffset": json.dumps({"t": {"0": end, "1": 3}})}
    return {
        "id": "q",
        "name": "flights",
        "batchId": batch,
        "timestamp": "2026-11-22T10:00:00.500Z",
        "numInputRows": 7,
        "durationMs": {"addBatch": 250, "triggerExecution": 400},
        "eventTime": {"watermark": "2026-11-22T09:59:00.000Z"},
        "stateOperators": [{"numRowsTotal": 2, "memoryUsedBytes": 100}, {"numRowsTotal": 3, "memoryUsedBytes": 50}],
        "sources": [source],
        **changes,
    }


def page(queries):
    registry = CollectorRegistry()
    registry.register(SessionCollector(MetricSource(queries)))
    return generate_latest(registry).decode()


def samples(queries):
    """Of queries. By name and the labels alongside the query's, as Prometheus' own parser reads them."""
    found = {}
    for family in text_string_to_metric_families(page(queries)):
        for sample in family.samples:
            if sample.name == "headrace_throttled_seconds_total":
                continue  # the session's
            labels = tuple(sample.labels[name] for name in ORDER if name in sample.labels)
            assert {name: sample.labels[name] for name in QUERY} == QUERY
            found[sample.name, *labels] = sample.value
    return found


NEVER = ("completed", "wrong_use", "data_loss", "bad_checkpoint", "fenced")
COUNTED = (
    *(f"headrace_sink_{what}_total" for what in ("commits", "commit_seconds", "transactions")),
    *(f"headrace_source_{what}_total" for what in ("skipped_records", "bad_records", "lost_offsets")),
)


def test_every_metric_has_the_value_of_a_known_load(queries):
    queries.started("q", "1", "flights")
    queries.progressed(progress(0, 2))
    queries.progressed(progress(1, 5))
    queries.terminated("q", "1", Ending.FAILED)
    queries.started("q", "2", "flights")
    queries.progressed(progress(2, 6))
    place = ("0", "t", "0")
    other = ("0", "t", "1")
    assert samples(queries) == {
        ("headrace_query_active",): 1,
        ("headrace_query_batch_id",): 2,
        ("headrace_query_last_batch_timestamp_seconds",): pytest.approx(1795341600.5),
        ("headrace_query_watermark_timestamp_seconds",): pytest.approx(1795341540),
        ("headrace_query_state_rows",): 5,
        ("headrace_query_state_bytes",): 150,
        ("headrace_query_starts_total",): 2,
        ("headrace_query_batches_total",): 3,
        ("headrace_query_input_rows_total",): 21,
        ("headrace_query_phase_seconds_total", "addBatch"): 0.75,
        ("headrace_query_phase_seconds_total", "triggerExecution"): pytest.approx(1.2),
        ("headrace_query_endings_total", "failed"): 1,
        **{("headrace_query_endings_total", ending): 0 for ending in NEVER},
        **{(name,): 0 for name in COUNTED},
        ("headrace_query_silent_seconds",): 0,
        ("headrace_source_position", *place): 6,
        ("headrace_source_position", *other): 3,
        ("headrace_source_end", *place): 9,
        ("headrace_source_end", *other): 3,
        ("headrace_source_lag_records", *place): 3,
        ("headrace_source_lag_records", *other): 0,
        ("headrace_source_lag_seconds", *place): 0,
        ("headrace_source_lag_seconds", *other): 0,
    }


def test_a_counter_is_there_before_it_counts_as_prometheus_sees_no_increase_in_one_that_starts_with_it(queries):
    queries.started("q", "1", "flights")
    first = samples(queries)
    queries.counted("q", {Counted.OFFSETS_LOST.value: 37.0})
    queries.terminated("q", "1", Ending.DATA_LOSS)
    for key, value in {("headrace_source_lost_offsets_total",): 37, ("headrace_query_endings_total", "data_loss"): 1}.items():
        assert (first[key], samples(queries)[key]) == (0, value)


def test_a_query_that_hangs_after_it_has_caught_up_is_silent_though_it_is_not_behind(queries, clock):
    def silent_s():
        return samples(queries).get(("headrace_query_silent_seconds",))

    queries.started("q", "1", "flights")
    clock.now_s += 5
    assert silent_s() == 5  # in its first batch
    queries.progressed(progress(0, position=9, end=9))
    assert silent_s() == 0
    clock.now_s += 10
    queries.idle("q")
    assert silent_s() == 0
    clock.now_s += 900
    assert (silent_s(), lag_s(queries)) == (900, 0)
    queries.terminated("q", "1", Ending.FAILED)
    assert silent_s() is None
    queries.started("q", "1", "flights")
    assert silent_s() == 0


def test_the_end_of_a_run_that_is_reported_late_is_not_that_of_the_run_which_has_started_since(queries):
    """Spark reports a start at once, and of an end by a queue."""
    queries.started("q", "1", "flights")
    queries.started("q", "2", "flights")
    queries.progressed(progress())
    queries.terminated("q", "1", Ending.FAILED)
    found = samples(queries)
    assert (found["headrace_query_active",], found["headrace_query_endings_total", "failed"]) == (1, 1)
    assert found["headrace_source_position", "0", "t", "0"] == 5
    queries.terminated("q", "2", Ending.FAILED)
    assert samples(queries)["headrace_query_active",] == 0


def lag_s(queries):
    return samples(queries)["headrace_source_lag_seconds", "0", "t", "0"]


def test_the_lag_in_seconds_is_since_when_the_oldest_unread_record_was_seen(queries, clock):
    queries.progressed(progress(0, position=5, end=10))
    assert lag_s(queries) == 0
    clock.now_s += 3
    queries.progressed(progress(1, position=7, end=20))
    assert lag_s(queries) == 3  # 7 to 9 were there 3 s ago
    clock.now_s += 4
    queries.progressed(progress(2, position=10, end=30))
    assert lag_s(queries) == 4  # 10 to 19 have come since
    clock.now_s += 1
    queries.progressed(progress(3, position=30, end=30))
    assert lag_s(queries) == 0


def test_a_query_that_never_catches_up_keeps_little_and_its_lag_grows(queries, clock):
    for batch in range(1000):
        queries.progressed(progress(batch, position=5, end=10 + batch))
        clock.now_s += 1
    assert lag_s(queries) == 999
    kept = []
    queries.read(lambda query: kept.append(sum(map(len, query.ends_seen.values()))))
    assert kept[0] < 300


def test_an_idle_query_that_has_read_all_is_not_behind(queries):
    queries.progressed(progress(0, position=9, end=9))
    queries.idle("q")
    queries.idle("nobody's")
    assert lag_s(queries) == 0


def test_partitions_that_are_gone_are_no_longer_shown(queries):
    queries.progressed(progress(0))
    queries.progressed(progress(1, sources=[{"endOffset": '{"t":{"1":4}}', "latestOffset": None}]))
    found = samples(queries)
    assert ("headrace_source_position", "0", "t", "0") not in found
    assert ("headrace_source_lag_records", "0", "t", "1") not in found  # its end is not known
    queries.terminated("q", "1", Ending.COMPLETED)
    assert not [name for name, *place in samples(queries) if name.startswith("headrace_source") and place]
    assert samples(queries)["headrace_query_active",] == 0


@pytest.mark.parametrize(
    "offset",
    [None, "", "17", "{", '{"logOffset":3}', '{"t":{"0":"x"}}', SPLITS.seal({"sequence": 7}).decode(), {"t": {"0": 4}}],
)
def test_offsets_of_any_form_are_taken_or_skipped(queries, offset):
    queries.progressed(progress(0, sources=[{"endOffset": offset, "latestOffset": offset}]))
    shown = [key for key in samples(queries) if key[0] == "headrace_source_position"]
    assert shown == ([("headrace_source_position", "0", "t", "0")] if isinstance(offset, dict) else [])


def test_a_progress_without_times_and_state_is_taken(queries):
    queries.progressed({"id": "q", "name": None, "batchId": 0, "timestamp": "?", "sources": []})
    lines = [line for line in page(queries).splitlines() if not line.startswith("#")]
    assert 'headrace_query_batches_total{query_id="q",query_name=""} 1.0' in lines


def test_queries_that_have_ended_are_not_kept_without_end(queries):
    for number in range(MOST_ENDED + 50):
        queries.started(str(number), "1", None)
        queries.terminated(str(number), "1", Ending.COMPLETED)
    queries.terminated("nobody's", "1", Ending.COMPLETED)
    known = []
    queries.read(lambda query: known.append(query.query_id))
    assert known == [str(number) for number in range(50, MOST_ENDED + 50)]


def test_names_are_escaped(queries):
    queries.started("q", "1", 'a "name"\\\n')
    (family,) = (found for found in text_string_to_metric_families(page(queries)) if found.name == "headrace_query_active")
    assert family.samples[0].labels["query_name"] == 'a "name"\\\n'


# --- the listener and the page ----------------------------------------------------------------------------------------


class Session:
    def __init__(self):
        self.listeners = []
        self.streams = SimpleNamespace(addListener=self.listeners.append, removeListener=self.listeners.remove)


def test_the_page_shows_what_the_listener_was_reported_until_it_is_closed():
    session = Session()
    with closing(metrics(session, port=0)) as served:
        (listener,) = session.listeners
        assert isinstance(listener, QueryListener)
        listener.onQueryStarted(SimpleNamespace(id="q", runId="1", name="flights"))
        listener.onQueryProgress(SimpleNamespace(progress=progress()))
        listener.onQueryIdle(SimpleNamespace(id="q"))
        text = "Traceback:\nheadrace.enumerator.errors.DataLossError: t-0 is gone\n"
        listener.onQueryTerminated(SimpleNamespace(id="q", runId="1", exception=text))
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=30) as answer:
            body = answer.read().decode()
        assert 'headrace_query_endings_total{ending="data_loss",query_id="q",query_name="flights"} 1.0' in body
        with pytest.raises(RetriableError, match=f"metrics cannot be served at 127.0.0.1:{served.port}") as taken:
            metrics(session, port=served.port)
        assert end_by(taken.value).ending is Ending.FAILED  # a supervised job is started again
        with pytest.raises(UsageError, match=r"metrics cannot be served at 192\.0\.2\.1:"):
            metrics(session, port=0, address="192.0.2.1")
        for wrong, why in (("", "need an address"), (f"{'a' * 64}.b", "cannot be served at a")):
            with pytest.raises(UsageError, match=f"metrics {why}"):
                metrics(session, port=0, address=wrong)
        with pytest.raises(UsageError, match=r"metrics cannot be served at 127\.0\.0\.1:65536: .*port must be 0-65535"):
            metrics(session, port=65536)
    assert session.listeners == []
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=30)


# --- rules and dashboard ----------------------------------------------------------------------------------------------


def known_names():
    return {kind.series for kind in SPARK_METRICS}


def named(expression):
    return set(re.findall(r"\bheadrace_\w+", expression))


def test_the_alert_rules_are_about_metrics_that_there_are():
    rules = [rule for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    assert len(rules) >= 4
    for rule in rules:
        assert named(rule["expr"]), rule
        assert named(rule["expr"]) <= known_names(), rule
        assert rule["labels"]["severity"]
        assert rule["annotations"]["summary"]


def test_the_dashboard_is_about_metrics_that_there_are():
    lease_store = json.loads((MONITORING / "dashboard.json").read_text())
    expressions = [target["expr"] for panel in lease_store["panels"] for target in panel["targets"]]
    shown = set().union(*map(named, expressions))
    assert shown == known_names() - {"headrace_source_end", "headrace_source_position", "headrace_query_batch_id"}


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="Prometheus' promtool is not on the path (Debian: the package prometheus)")
def test_promtool_accepts_the_page_and_the_rules(queries):
    queries.progressed(progress())
    queries.counted("q", {each.value: 1.0 for each in Counted})
    of_page = subprocess.run([PROMTOOL, "check", "metrics"], input=page(queries), text=True, capture_output=True, check=False)
    assert (of_page.returncode, of_page.stderr) == (0, "")
    rules = subprocess.run([PROMTOOL, "check", "rules", MONITORING / "alerts.yml"], capture_output=True, text=True, check=False)
    assert rules.returncode == 0, rules.stdout + rules.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="Prometheus' promtool is not on the path (Debian: the package prometheus)")
def test_the_alerts_fire_when_they_should_and_not_otherwise():
    cases = Path(__file__).with_name("alerts_test.yml")
    done = subprocess.run([PROMTOOL, "test", "rules", cases], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_label_of_ours_is_one_that_prometheus_puts_on_every_series():
    """It would rename ours, and the alerts and panels that name it would show the other."""
    assert not {label for kind in SPARK_METRICS for label in kind.labels} & {"job", "instance"}
