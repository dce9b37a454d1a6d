"""Metrics of a session: listeners for what happens in it, and the page, or the meters, that show it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace._extras import needs_extra
from headrace.enumerator.errors import UsageError
from headrace.runners.spark.metrics.collector import JobStatus, ListsTransactions, MetricSource, SinkWatch
from headrace.runners.spark.metrics.queries import KnownQueries
from headrace.runners.spark.reports import REPORTS_VARIABLE, ReportListener, own_address
from headrace.runners.spark.supervision import dry_run_source
from headrace.runners.spark.supervision.core import Ending
from headrace.runners.spark.supervision.exit_causes import end_by

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class MetricsServer:
    """What `metrics` has started. `port`: where the page is; None without one. Close it in the driver's process."""

    def __init__(self, port: int | None, close: Callable[[], None]) -> None:
        self.port = port
        self._close = close

    def close(self) -> None:
        """End it; the session continues."""
        self._close()


def metrics(
    spark: SparkSession,
    *,
    port: int | None = None,
    address: str = "127.0.0.1",
    meter_provider: MeterProvider | None = None,
    sinks: Sequence[ListsTransactions] = (),
    status: str | Path | None = None,
) -> MetricsServer:
    """Show metrics of all streaming queries of the session, until it is closed.

    `port`: to Prometheus, at `http://address:port/metrics`; 0 is any free one. `address`: `0.0.0.0` lets other machines read
    them, without a login. `meter_provider`: to OpenTelemetry, by the instruments of this provider. `sinks`: whose open
    transactions are shown, such as `headrace.kafka.KafkaSink`; they are asked every 15 s. `status`: the status file of the
    job's supervisor, for its restarts.

    Called in the driver's process, before the queries start: what ended before is not counted. While a standby dry-runs its
    job nothing is shown: the job calls this again when it takes over. Needs the extra `metrics`, or
    `opentelemetry`: MissingExtraError says so. Raises UsageError for an address that cannot be, and without port and meter
    provider; RetriableError where the port is taken: a supervised job is started again then.
    """
    if port is None and meter_provider is None:
        raise UsageError("metrics are shown on a port, or by a meter provider: give port=..., meter_provider=..., or both")
    if dry_run_source.is_under_way():
        return MetricsServer(None, lambda: None)  # the driver that runs the job has the port
    queries = KnownQueries(time.monotonic)
    with ExitStack() as started:  # of what has been started, nothing is left where the rest cannot be
        watches = tuple(SinkWatch(sink) for sink in sinks)
        for watch in watches:
            started.callback(watch.close)
        source = MetricSource(queries, watches, None if status is None else JobStatus(Path(status)))
        if meter_provider is not None:
            started.callback(_instruments(source, meter_provider))
        if port is not None:
            port = _page(source, address, port, started)
        _listen_to_processes(queries, started)
        listener = QueryListener(queries)
        spark.streams.addListener(listener)
        started.callback(spark.streams.removeListener, listener)
        return MetricsServer(port, started.pop_all().close)


def _instruments(source: MetricSource, provider: MeterProvider) -> Callable[[], None]:
    with needs_extra("opentelemetry", "opentelemetry"):
        from headrace.runners.spark.metrics.opentelemetry import Instruments
    return Instruments(source, provider).close


def _page(source: MetricSource, address: str, port: int, started: ExitStack) -> int:
    with needs_extra("metrics", "prometheus_client"):
        from headrace.runners.spark.metrics.prometheus import serve
    server, thread = serve(source, address, port)
    for end in (thread.join, server.server_close, server.shutdown):  # the last one first
        started.callback(end)
    return int(server.server_port)


def _listen_to_processes(queries: KnownQueries, started: ExitStack) -> None:
    """Where it cannot be, metrics do without what only those processes know."""
    if sys.platform != "linux":
        return
    try:
        listener = ReportListener(own_address(), queries.counted)
    except OSError as error:
        log.warning("what Spark's Python processes count is not among the metrics: %s", error)
        return
    started.callback(listener.close)
    if os.environ.get(REPORTS_VARIABLE) != own_address():
        log.warning("the session was not made by headrace's builders: what its Python processes count is not among the metrics")


class QueryListener(StreamingQueryListener):
    """Takes down what Spark shows. Called by its listener thread."""

    def __init__(self, queries: KnownQueries) -> None:
        super().__init__()
        self._queries = queries

    def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's
        self._queries.started(str(event.id), str(event.runId), event.name)

    def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's
        self._queries.progressed(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's
        self._queries.idle(str(event.id))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's
        failed = event.exception
        ending = Ending.COMPLETED if failed is None else end_by(RuntimeError(failed)).ending
        self._queries.terminated(str(event.id), str(event.runId), ending)
