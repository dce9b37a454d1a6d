"""What the metrics of a Spark session are now. For Prometheus and OpenTelemetry alike; imports neither."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.connectors.base.counters import Counted
from headrace.runners.metrics import METRICS, MetricScope, MetricSpec, metrics_of
from headrace.runners.spark.metrics.queries import KnownQueries, QueryFacts
from headrace.runners.spark.supervision.core import Ending

log = logging.getLogger(__name__)

SPARK_METRICS = metrics_of(*(scope for scope in MetricScope if scope is not MetricScope.RUN))  # all metrics of a session


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric. `labels`: those of its kind, in their order."""

    kind: MetricSpec
    labels: tuple[str, ...]
    value: float


def _sample(name: str, labels: tuple[str, ...], value: float) -> MetricSample:
    return MetricSample(METRICS[name], labels, value)


_ENDINGS_OF_QUERIES = tuple(ending.name.lower() for ending in Ending if ending is not Ending.STOPPED)
_OF_QUERY: Mapping[str, Callable[[QueryFacts], float | None]] = {
    "headrace_query_active": lambda query: float(query.is_active),
    "headrace_query_starts": lambda query: query.starts,
    "headrace_query_silent_seconds": lambda query: query.silent_s if query.is_active else None,
    "headrace_query_batch_id": lambda query: query.batch,
    "headrace_query_last_batch_timestamp_seconds": lambda query: query.last_batch_s,
    "headrace_query_watermark_timestamp_seconds": lambda query: query.watermark_s,
    "headrace_query_state_rows": lambda query: query.state_rows,
    "headrace_query_state_bytes": lambda query: query.state_bytes,
    "headrace_query_batches": lambda query: query.batches,
    "headrace_query_input_rows": lambda query: query.rows,
}
_COUNTED: Mapping[str, Counted] = {
    "headrace_sink_commits": Counted.COMMITS,
    "headrace_sink_commit_seconds": Counted.COMMIT_SECONDS,
    "headrace_sink_transactions": Counted.COMMITTED_TRANSACTIONS,
    "headrace_source_skipped_records": Counted.RECORDS_SKIPPED,
    "headrace_source_bad_records": Counted.RECORDS_KEPT_BAD,
    "headrace_source_lost_offsets": Counted.OFFSETS_LOST,
}


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What a job's supervisor reports about it in its status file (`supervision/status.py`). Read again for each look."""

    path: Path

    def read(self) -> list[MetricSample]:
        """What it says now; nothing where there is no such file, or it is none of a supervisor's."""
        try:
            said = json.loads(self.path.read_text())
            found = [_sample("headrace_job_drivers_started", (), int(said["drivers_started"]))]
            if (takeovers := said.get("takeovers")) is not None:  # a supervisor that counts them
                found.append(_sample("headrace_job_takeovers", (), int(takeovers)))
            standbys = Counter(str(standby["state"]).lower() for standby in said.get("standbys", ()))
            found += [_sample("headrace_job_standbys", (state,), count) for state, count in standbys.items()]
            lease = said.get("lease") or {}
            term, suspect = lease.get("term"), lease.get("suspect")
            if term is not None and suspect is not None:  # it leads others on other hosts
                found.append(_sample("headrace_job_lease_term", (), int(term)))
                found.append(_sample("headrace_job_lease_suspect", (), float(bool(suspect))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []
        return found


class ListsTransactions(Protocol):
    """What is used of a sink, such as `headrace.kafka.KafkaSink`."""

    @property
    def destination(self) -> str:
        """Where it writes."""

    def open_transactions(self) -> Mapping[str, Sequence[float]]:
        """Job to the ages, in seconds, of its open transactions. Contacts the sink."""


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """One look. A job that had some is there with none until the next but one, so that a gauge does not stand still."""

    is_reachable: bool
    ages_s: Mapping[str, Sequence[float]]


class SinkWatch:
    """One sink. Asked by its own thread, so that no scrape waits for it; until it is closed."""

    def __init__(self, sink: ListsTransactions, interval_s: float = 15.0) -> None:
        self.last_seen: OpenTransactions | None = None
        self.destination = sink.destination
        self._sink = sink
        self._interval_s = interval_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-open-transactions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it. A check that is under way is not waited for."""
        self._closing.set()

    def _watch(self) -> None:
        while True:
            self.last_seen = self._look()
            if self._closing.wait(self._interval_s):
                return

    def _look(self) -> OpenTransactions:
        before = self.last_seen
        try:
            found = self._sink.open_transactions()
        except Exception as error:  # noqa: BLE001 - whatever it is, the queries continue, and the metric says it
            if before is None or before.is_reachable:
                log.warning("open transactions of %s cannot be listed, and are not shown: %s", self.destination, error)
            return OpenTransactions(is_reachable=False, ages_s={})
        ended = {job: () for job, ages in before.ages_s.items() if ages} if before is not None else {}
        return OpenTransactions(is_reachable=True, ages_s={**ended, **found})


@dataclass(frozen=True, slots=True)
class MetricSource:
    """All that metrics are made from. Read by any thread; sinks are asked by their own thread."""

    queries: KnownQueries
    sinks: tuple[SinkWatch, ...] = field(default=())
    job: JobStatus | None = None

    def read(self) -> list[MetricSample]:
        found: list[MetricSample] = []
        self.queries.read(lambda query: found.extend(_of_query(query)))
        found.append(_sample("headrace_throttled_seconds", (), self.queries.throttled_s))
        for sink in self.sinks:
            found += _of_sink(sink)
        found += [] if self.job is None else self.job.read()
        return found


def _of_query(query: QueryFacts) -> Iterable[MetricSample]:
    labels = (query.query_id, query.name)
    for name, value in _OF_QUERY.items():
        if (now := value(query)) is not None:
            yield _sample(name, labels, now)
    for phase, seconds in query.phase_seconds.items():
        yield _sample("headrace_query_phase_seconds", (*labels, phase), seconds)
    # from 0 on: what starts with the first time that it happens has not increased by that, to Prometheus
    for ending in _ENDINGS_OF_QUERIES:
        yield _sample("headrace_query_endings", (*labels, ending), query.endings[ending])
    for name, what in _COUNTED.items():
        yield _sample(name, labels, query.counts[what.value])
    for place, partition in query.partitions.items():
        known = {
            "headrace_source_position": partition.position,
            "headrace_source_end": partition.end,
            "headrace_source_lag_records": partition.lag_records,
            "headrace_source_lag_seconds": partition.lag_s,
        }
        yield from (_sample(name, (*labels, *place), number) for name, number in known.items() if number is not None)


def _of_sink(sink: SinkWatch) -> Iterable[MetricSample]:
    seen = sink.last_seen
    if seen is None:
        return
    yield _sample("headrace_sink_reachable", (sink.destination,), float(seen.is_reachable))
    for job, ages in seen.ages_s.items():
        yield _sample("headrace_sink_open_transactions", (sink.destination, job), len(ages))
        yield _sample("headrace_sink_oldest_transaction_seconds", (sink.destination, job), max(ages, default=0.0))
