"""Metrics of a session: a listener of Spark's that takes down what happens, and the page that shows it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace.enumerator.errors import UsageError
from headrace.enumerator.supervision import Ending
from headrace.runners.spark.metrics.queries import KnownQueries
from headrace.runners.spark.supervision.endings import end_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MetricsServer", "metrics"]


class MetricsServer:
    """What `metrics` has started. `port`: where the page is. Close it in the driver's process."""

    def __init__(self, session: SparkSession, listener: StreamingQueryListener, server: Any, thread: Any) -> None:  # noqa: ANN401
        self.port: int = server.server_port
        self._session = session
        self._listener = listener
        self._server = server
        self._thread = thread

    def close(self) -> None:
        """End it; the session goes on."""
        self._session.streams.removeListener(self._listener)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def metrics(spark: SparkSession, *, port: int, address: str = "127.0.0.1") -> MetricsServer:
    """Serve metrics of all streaming queries of the session at `http://address:port/metrics`, until it is closed.

    `port` 0 is any free one. `address`: `0.0.0.0` lets other machines read them, without a login. Called in the driver's
    process, before the queries start: what ended before is not counted. Needs the extra `metrics`. Raises UsageError without
    it, and where the port is taken.
    """
    try:
        from headrace.runners.spark.metrics.prometheus import serve
    except ModuleNotFoundError as error:
        raise UsageError("metrics need prometheus-client: pip install 'headrace[metrics]'") from error
    queries = KnownQueries(time.monotonic)
    server, thread = serve(queries, address, port)
    listener = QueryListener(queries)
    spark.streams.addListener(listener)
    return MetricsServer(spark, listener, server, thread)


class QueryListener(StreamingQueryListener):
    """Takes down what Spark tells. Called by its listener thread."""

    def __init__(self, queries: KnownQueries) -> None:
        super().__init__()
        self._queries = queries

    def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's
        self._queries.started(str(event.id), event.name)

    def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's
        self._queries.progressed(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's
        self._queries.idle(str(event.id))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's
        failed = event.exception
        self._queries.terminated(str(event.id), Ending.COMPLETED if failed is None else end_by(RuntimeError(failed)).ending)
