"""A session's metrics as the page that a Prometheus server reads. Needs prometheus-client."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.enumerator.errors import RetriableError, UsageError
from headrace.runners.metrics import MetricType
from headrace.runners.spark.metrics.collector import SPARK_METRICS, MetricSource


def serve(source: MetricSource, address: str, port: int) -> Any:  # noqa: ANN401 - prometheus-client's server, and its thread
    """Raises RetriableError where the port is taken, which passes, and UsageError for an address or port that cannot be."""
    if not address.strip():
        raise UsageError("metrics need an address to be served at, such as 127.0.0.1: an empty one is of all interfaces")
    registry = CollectorRegistry()
    registry.register(SessionCollector(source))
    try:
        return start_http_server(port, addr=address, registry=registry)
    except (OSError, OverflowError, UnicodeError) as error:  # of a number, and a name, that cannot be a port's, and a host's
        kind = RetriableError if getattr(error, "errno", None) == errno.EADDRINUSE else UsageError
        raise kind(f"metrics cannot be served at {address}:{port}: {error}") from error


class SessionCollector(Collector):
    """The metrics, recreated for each scrape: what is gone is gone from the page, too."""

    def __init__(self, source: MetricSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        of_type: dict[MetricType, type[CounterMetricFamily | GaugeMetricFamily]]
        of_type = {MetricType.COUNTER: CounterMetricFamily, MetricType.GAUGE: GaugeMetricFamily}
        families = {kind.name: of_type[kind.type](kind.name, kind.help, labels=kind.labels) for kind in SPARK_METRICS}
        for sample in self._source.read():
            families[sample.kind.name].add_metric(list(sample.labels), sample.value)
        return iter(families.values())
