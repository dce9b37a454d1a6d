"""A session's queries as Prometheus' metrics: the page that a Prometheus server reads. Needs prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.enumerator.errors import UsageError
from headrace.runners.spark.metrics.queries import KnownQueries, QueryFacts

__all__ = ["QueryCollector", "serve"]

_QUERY = ("query_id", "query_name")
_PARTITION = (*_QUERY, "source", "topic", "partition")


def serve(queries: KnownQueries, address: str, port: int) -> Any:  # noqa: ANN401 - prometheus-client's server, and its thread
    """Serve the page. Raises UsageError where the port is taken."""
    registry = CollectorRegistry()
    registry.register(QueryCollector(queries))
    try:
        return start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise UsageError(f"metrics cannot be served at {address}:{port}: {error}") from error


class QueryCollector(Collector):
    """The metrics, made anew for each scrape: what is gone is gone from the page, too."""

    def __init__(self, queries: KnownQueries) -> None:
        self._queries = queries

    def collect(self) -> Iterator[Metric]:
        """All families, each with its samples."""
        families = _Families()
        self._queries.read(families.add)
        return iter(families.all())


class _Families:
    def __init__(self) -> None:
        self._gauges = {name: GaugeMetricFamily(name, text, labels=labels) for name, text, labels in _GAUGES}
        self._counters = {name: CounterMetricFamily(name, text, labels=labels) for name, text, labels in _COUNTERS}

    def all(self) -> list[Metric]:
        return [*self._gauges.values(), *self._counters.values()]

    def add(self, query: QueryFacts) -> None:
        labels = [query.query_id, query.name]
        self._gauge("headrace_query_active", labels, float(query.is_active))
        self._gauge("headrace_query_batch_id", labels, query.batch)
        self._gauge("headrace_query_last_batch_timestamp_seconds", labels, query.last_batch_s)
        self._gauge("headrace_query_watermark_timestamp_seconds", labels, query.watermark_s)
        self._gauge("headrace_query_state_rows", labels, query.state_rows)
        self._gauge("headrace_query_state_bytes", labels, query.state_bytes)
        self._counter("headrace_query_starts", labels, query.starts)
        self._counter("headrace_query_batches", labels, query.batches)
        self._counter("headrace_query_input_rows", labels, query.rows)
        for phase, seconds in query.phase_seconds.items():
            self._counter("headrace_query_phase_seconds", [*labels, phase], seconds)
        for ending, times in query.endings.items():
            self._counter("headrace_query_endings", [*labels, ending], times)
        for place, partition in query.partitions.items():
            self._gauge("headrace_source_position", [*labels, *place], partition.position)
            self._gauge("headrace_source_end", [*labels, *place], partition.end)
            self._gauge("headrace_source_lag_records", [*labels, *place], partition.lag_records)
            self._gauge("headrace_source_lag_seconds", [*labels, *place], partition.lag_s)

    def _gauge(self, name: str, labels: list[str], value: float | None) -> None:
        if value is not None:
            self._gauges[name].add_metric(labels, value)

    def _counter(self, name: str, labels: list[str], value: float) -> None:
        self._counters[name].add_metric(labels, value)


_GAUGES = (
    ("headrace_query_active", "1 while the query runs, 0 once it has ended", _QUERY),
    ("headrace_query_batch_id", "The last batch that has ended", _QUERY),
    ("headrace_query_last_batch_timestamp_seconds", "When the last batch began, in epoch seconds", _QUERY),
    ("headrace_query_watermark_timestamp_seconds", "The watermark, in epoch seconds", _QUERY),
    ("headrace_query_state_rows", "Rows in the state of all operators", _QUERY),
    ("headrace_query_state_bytes", "Memory that the state of all operators uses", _QUERY),
    ("headrace_source_position", "The next offset to read", _PARTITION),
    ("headrace_source_end", "Where the partition ended when the last batch was planned", _PARTITION),
    ("headrace_source_lag_records", "Offsets between the two", _PARTITION),
    ("headrace_source_lag_seconds", "How long the oldest record that was not read yet has been seen there", _PARTITION),
)
_COUNTERS = (
    ("headrace_query_starts", "Starts of the query in this session", _QUERY),
    ("headrace_query_batches", "Batches that have ended", _QUERY),
    ("headrace_query_input_rows", "Rows that were read", _QUERY),
    ("headrace_query_phase_seconds", "Time spent in each phase of the batches, by Spark's names", (*_QUERY, "phase")),
    ("headrace_query_endings", "Ends of the query, by how it has ended", (*_QUERY, "ending")),
)
