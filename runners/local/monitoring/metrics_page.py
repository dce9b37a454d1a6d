"""A run's status as the page that a Prometheus server reads, and `/healthz`. Needs prometheus-client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from socket import SHUT_RDWR, socket
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.enumerator.errors import UsageError
from headrace.runners.metrics import METRICS, MetricType

Read = Callable[[], Mapping[str, Any]]

_LOOK_S = 0.1
"""How often a server looks whether it is closed, in seconds."""

_ANSWER_S = 1.0

_Value = Callable[[Mapping[str, Any]], float]

_OF_STATUS: Mapping[str, _Value] = {
    "headrace_run_input_records": lambda status: status["records_in"],
    "headrace_run_output_records": lambda status: status["records_out"],
    "headrace_run_completed_checkpoints": lambda status: status["checkpoints"]["completed"],
    "headrace_run_failed_checkpoints": lambda status: status["checkpoints"]["failed"],
    "headrace_run_committed_transactions": lambda status: status["committables"],
    "headrace_run_lost_workers": lambda status: status["workers_lost"],
    "headrace_run_workers": lambda status: len(status["workers"]),
}
_OF_LAST = {
    "headrace_run_last_checkpoint_id": "id",
    "headrace_run_last_checkpoint_duration_seconds": "duration_s",
    "headrace_run_last_checkpoint_size_bytes": "bytes",
    "headrace_run_last_checkpoint_timestamp_seconds": "at",
}


class OneThreadServer(WSGIServer):
    """Answers one client after the other, in the thread that serves."""

    _client: socket | None = None

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - of socketserver
        self._client = request
        super().process_request(request, client_address)

    def hang_up(self) -> None:
        """End the answer under way, if there is one: a client may send its request as slowly as it likes."""
        client = self._client
        if client is not None:
            with suppress(OSError):
                client.shutdown(SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a client has asked for nothing, or does not wait for the answer."""


class ThreadingServer(ThreadingMixIn, OneThreadServer):
    """Answers each client in a thread."""

    daemon_threads = True


class RunPage(Collector):
    """Serves until it is closed, or its process ends."""

    def __init__(
        self, read: Read, address: str, port: int, healthy_s: float, server: type[OneThreadServer] = ThreadingServer
    ) -> None:
        """`read`: the status now, empty before the first; called by threads of the server.

        `healthy_s`: a run whose last checkpoint, of whatever coordinator, or whose start is longer ago is not well. `server`:
        `OneThreadServer` for a process that is to fork when the page is closed. Raises UsageError where the port is taken, or
        the address cannot be.
        """
        self._read, self._healthy_s = read, healthy_s
        self._made_s = time.monotonic()
        self._progress: tuple[float, float] = (0.0, 0.0)
        registry = CollectorRegistry()
        registry.register(self)
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        try:
            self._server: OneThreadServer = make_server(address, port, self._answer, server, _Quiet)
        except (OSError, TypeError) as error:  # the latter for what cannot be the name of a host
            raise UsageError(f"metrics cannot be served at {address}:{port}: {error}") from error
        self.port = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever, args=(_LOOK_S,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let go of the port, when the answer under way is given, or has taken a second."""
        ending = Thread(target=self._server.shutdown, daemon=True)
        ending.start()
        self._thread.join(_ANSWER_S)
        while self._thread.is_alive():
            self._server.hang_up()
            self._thread.join(_LOOK_S)
        ending.join()
        self._server.server_close()

    def collect(self) -> Iterator[Metric]:
        status = self._read()
        if not status:
            return
        for name, value in _OF_STATUS.items():
            yield _family(name, [((), value(status))])
        yield _family("headrace_run_uptime_seconds", [((), time.monotonic() - self._made_s)])
        last = status["checkpoints"]["last"] or {}
        for name, key in _OF_LAST.items():
            if last.get(key) is not None:
                yield _family(name, [((), last[key])])
        splits = [((str(worker["number"]),), worker["splits"]) for worker in status["workers"]]
        yield _family("headrace_run_assigned_splits", splits)
        lag = status["lag"]
        if lag is not None:
            yield _family("headrace_run_lag_records", [((), lag["records"])])
            yield _family("headrace_run_split_lag_records", [((split,), records) for split, records in lag["splits"].items()])
        for name, value in status["measures"].items():
            yield _family(f"headrace_run_{name}", [((), value)])

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
        since_s = self._since_s(status["progress_at"])
        if since_s <= self._healthy_s:
            return None
        return f"no checkpoint was committed for {since_s:.0f} s"

    def _since_s(self, progress_at: float) -> float:
        """Time since then. The machine's clock is asked once for each time, as it may be set back while the run hangs."""
        now_s, (known_at, known_s) = time.monotonic(), self._progress
        if known_at != progress_at:
            known_s = now_s - max(0.0, time.time() - progress_at)
            self._progress = (progress_at, known_s)
        return now_s - known_s


def _family(name: str, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    spec = METRICS[name]
    made = CounterMetricFamily if spec.type is MetricType.COUNTER else GaugeMetricFamily
    family = made(spec.name, spec.help, labels=spec.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


class _Quiet(WSGIRequestHandler):
    timeout = 2.0
    """Seconds that a client may take to ask."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: a scrape is not a news."""
