"""A run's status as the page that a Prometheus server reads, and `/healthz`. Needs prometheus-client.

Metrics are named as Flink's and Kafka's clients name them, behind `headrace_run_`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.enumerator.errors import UsageError

__all__ = ["RunPage"]

Read = Callable[[], Mapping[str, Any]]

_Value = Callable[[Mapping[str, Any]], float]

_COUNTERS: tuple[tuple[str, str, _Value], ...] = (
    ("numRecordsIn", "Records read up to the last snapshots", lambda status: status["records_in"]),
    ("numRecordsOut", "Records written up to the last snapshots", lambda status: status["records_out"]),
    ("numberOfCompletedCheckpoints", "Checkpoints that are committed", lambda status: status["checkpoints"]["completed"]),
    ("numberOfFailedCheckpoints", "Checkpoints that were given up", lambda status: status["checkpoints"]["failed"]),
    ("successfulCommittables", "Transactions that are committed", lambda status: status["committables"]),
    ("numRestarts", "Workers that were lost, and whose place was taken", lambda status: status["workers_lost"]),
)
_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    ("uptime", "Seconds since this coordinator started", lambda status: status["at"] - status["since"]),
    ("workers", "Workers that are started now", lambda status: len(status["workers"])),
)
_OF_LAST = (
    ("lastCheckpointId", "The last committed checkpoint", "id"),
    ("lastCheckpointDuration", "Seconds that it took, from its trigger to the end of its commits", "duration_s"),
    ("lastCheckpointSize", "Bytes of its file", "bytes"),
    ("lastCheckpointTimestamp", "When it was committed, in epoch seconds", "at"),
)


class RunPage(Collector):
    """Serves until its process ends."""

    def __init__(self, read: Read, address: str, port: int, healthy_s: float) -> None:
        """`read`: the status now, empty before the first; called by threads of the server.

        `healthy_s`: a run whose last checkpoint, of whatever coordinator, or whose start is longer ago is not well. Raises
        UsageError where the port is taken.
        """
        self._read, self._healthy_s = read, healthy_s
        registry = CollectorRegistry()
        registry.register(self)
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        try:
            server = make_server(address, port, self._answer, _Server, _Quiet)
        except OSError as error:
            raise UsageError(f"metrics cannot be served at {address}:{port}: {error}") from error
        self.port = server.server_port
        Thread(target=server.serve_forever, daemon=True).start()

    def collect(self) -> Iterator[Metric]:
        """All metrics; none before the run has started."""
        status = self._read()
        if not status:
            return
        for name, text, value in _COUNTERS:
            yield CounterMetricFamily(f"headrace_run_{name}", text, value=value(status))
        for name, text, value in _GAUGES:
            yield GaugeMetricFamily(f"headrace_run_{name}", text, value=value(status))
        for name, text, key in _OF_LAST:
            last = status["checkpoints"]["last"]
            if last is not None and last[key] is not None:
                yield GaugeMetricFamily(f"headrace_run_{name}", text, value=last[key])
        splits = GaugeMetricFamily("headrace_run_assigned_partitions", "Splits that a worker holds", labels=("worker",))
        for worker in status["workers"]:
            splits.add_metric([str(worker["number"])], worker["splits"])
        yield splits
        if status["lag"] is not None:
            yield from _lag(status["lag"])

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthz":
            return self._metrics(environ, start_response)
        problem = self._problem()
        start_response("503 Service Unavailable" if problem else "200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"healthy": not problem, "problem": problem}).encode()]

    def _problem(self) -> str | None:
        status = self._read()
        if not status:
            return "the run has not started"
        since_s = time.time() - status["progress_at"]
        if since_s <= self._healthy_s:
            return None
        return f"no checkpoint was committed for {since_s:.0f} s"


def _lag(lag: Mapping[str, Any]) -> Iterator[Metric]:
    text = "Offsets between the last checkpoint's positions and the end"
    yield GaugeMetricFamily("headrace_run_pendingRecords", f"{text}, of all splits", value=lag["records"])
    by_split = GaugeMetricFamily("headrace_run_records_lag", text, labels=("split",))
    for split_id, records in lag["splits"].items():
        by_split.add_metric([split_id], records)
    yield by_split


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: a scrape is not a news."""
