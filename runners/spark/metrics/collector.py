"""Every metric, with its name, kind and labels, and what it is now. For Prometheus and OpenTelemetry alike; imports neither.

Names are Prometheus', without the `_total` that it adds to counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.connectors.base.counters import Counted
from headrace.runners.spark.metrics.job import JobStatus
from headrace.runners.spark.metrics.queries import KnownQueries, QueryFacts
from headrace.runners.spark.metrics.sinks import SinkWatch
from headrace.runners.spark.supervision.core import Ending

__all__ = ["METRICS", "MetricKind", "MetricSample", "MetricSource"]


@dataclass(frozen=True, slots=True)
class MetricKind:
    """One metric. A counter only grows while this process lives; any other is a value of now."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of it. `labels`: those of its kind, in their order."""

    kind: MetricKind
    labels: tuple[str, ...]
    value: float


_QUERY = ("query_id", "query_name")
_PARTITION = (*_QUERY, "source", "topic", "partition")
_JOB = ("destination", "sink_job")
"""Not `job`, which Prometheus puts on every series itself: it would rename ours."""

_ACTIVE = MetricKind("headrace_query_active", "1 while the query runs, 0 once it has ended", _QUERY)
_STARTS = MetricKind("headrace_query_starts", "Starts of the query in this session", _QUERY, is_counter=True)
_ENDINGS = MetricKind("headrace_query_endings", "Ends of the query, by how it has ended", (*_QUERY, "ending"), is_counter=True)
_ENDINGS_OF_QUERIES = tuple(ending.name.lower() for ending in Ending if ending is not Ending.STOPPED)
_PHASES = MetricKind(
    "headrace_query_phase_seconds",
    "Time spent in each phase of the batches, by Spark's names",
    (*_QUERY, "phase"),
    is_counter=True,
)
_OF_QUERY: tuple[tuple[MetricKind, Callable[[QueryFacts], float | None]], ...] = (
    (_ACTIVE, lambda query: float(query.is_active)),
    (_STARTS, lambda query: query.starts),
    (
        MetricKind(
            "headrace_query_silent_seconds",
            "Time since the last batch has ended, or nothing was there to be read, while the query runs",
            _QUERY,
        ),
        lambda query: query.silent_s if query.is_active else None,
    ),
    (MetricKind("headrace_query_batch_id", "The last batch that has ended", _QUERY), lambda query: query.batch),
    (
        MetricKind("headrace_query_last_batch_timestamp_seconds", "When the last batch started, in epoch seconds", _QUERY),
        lambda query: query.last_batch_s,
    ),
    (
        MetricKind("headrace_query_watermark_timestamp_seconds", "The watermark, in epoch seconds", _QUERY),
        lambda query: query.watermark_s,
    ),
    (MetricKind("headrace_query_state_rows", "Rows in the state of all operators", _QUERY), lambda query: query.state_rows),
    (
        MetricKind("headrace_query_state_bytes", "Memory that the state of all operators uses", _QUERY),
        lambda query: query.state_bytes,
    ),
    (
        MetricKind("headrace_query_batches", "Batches that have ended", _QUERY, is_counter=True),
        lambda query: query.batches,
    ),
    (MetricKind("headrace_query_input_rows", "Rows that were read", _QUERY, is_counter=True), lambda query: query.rows),
)

_POSITION = MetricKind("headrace_source_position", "The next offset to read", _PARTITION)
_END = MetricKind("headrace_source_end", "Where the partition ended when the last batch was planned", _PARTITION)
_LAG = MetricKind("headrace_source_lag_records", "Offsets between the two", _PARTITION)
_LAG_S = MetricKind(
    "headrace_source_lag_seconds", "How long the oldest record that was not read yet has been seen there", _PARTITION
)

_COUNTED: dict[Counted, MetricKind] = {
    Counted.COMMITS: MetricKind("headrace_sink_commits", "Commits of the query's sinks", _QUERY, is_counter=True),
    Counted.COMMIT_SECONDS: MetricKind(
        "headrace_sink_commit_seconds", "Time that those commits have taken", _QUERY, is_counter=True
    ),
    Counted.COMMITTED_TRANSACTIONS: MetricKind(
        "headrace_sink_transactions", "Transactions that were committed", _QUERY, is_counter=True
    ),
    Counted.RECORDS_SKIPPED: MetricKind(
        "headrace_source_skipped_records", "Records left out as they cannot be decoded", _QUERY, is_counter=True
    ),
    Counted.RECORDS_KEPT_BAD: MetricKind(
        "headrace_source_bad_records", "Records kept with a null as they cannot be decoded", _QUERY, is_counter=True
    ),
    Counted.OFFSETS_LOST: MetricKind(
        "headrace_source_lost_offsets",
        "Offsets that were gone when they were to be read, and tolerated",
        _QUERY,
        is_counter=True,
    ),
}
_THROTTLED = MetricKind(
    "headrace_throttled_seconds", "Time for which brokers asked this session's processes to wait (quotas)", is_counter=True
)

_OPEN = MetricKind("headrace_sink_open_transactions", "Transactions that are open now", _JOB)
_OLDEST = MetricKind("headrace_sink_oldest_transaction_seconds", "Age of the oldest of them", _JOB)
_REACHED = MetricKind(
    "headrace_sink_reachable", "1 if the sink's open transactions could be listed the last time", ("destination",)
)

_DRIVERS = MetricKind("headrace_job_drivers_started", "Drivers that the job's supervisor has started", is_counter=True)
_TAKEOVERS = MetricKind("headrace_job_takeovers", "Takeovers of the job by a standby", is_counter=True)
_STANDBYS = MetricKind("headrace_job_standbys", "Standbys of the job, by their state", ("state",))
_TERM = MetricKind("headrace_job_lease_term", "The lease's term in which the job's supervisor leads")
_SUSPECT = MetricKind(
    "headrace_job_lease_suspect", "1 if it may be taken for dead on other hosts, as it cannot reach the brokers"
)

METRICS: tuple[MetricKind, ...] = (
    *(kind for kind, _ in _OF_QUERY),
    *(_ENDINGS, _PHASES, _POSITION, _END, _LAG, _LAG_S),
    *_COUNTED.values(),
    *(_THROTTLED, _OPEN, _OLDEST, _REACHED, _DRIVERS, _TAKEOVERS, _STANDBYS, _TERM, _SUSPECT),
)
"""All of them."""


@dataclass(frozen=True, slots=True)
class MetricSource:
    """All that metrics are made from. Read by any thread; sinks are asked by their own thread."""

    queries: KnownQueries
    sinks: tuple[SinkWatch, ...] = field(default=())
    job: JobStatus | None = None

    def read(self) -> list[MetricSample]:
        """What all of them are now. What is gone is gone from here, too."""
        found: list[MetricSample] = []
        self.queries.read(lambda query: found.extend(_of_query(query)))
        found.append(MetricSample(_THROTTLED, (), self.queries.throttled_s))
        for sink in self.sinks:
            found += _of_sink(sink)
        found += [] if self.job is None else _of_job(self.job)
        return found


def _of_query(query: QueryFacts) -> Iterable[MetricSample]:
    labels = (query.query_id, query.name)
    for kind, value in _OF_QUERY:
        if (now := value(query)) is not None:
            yield MetricSample(kind, labels, now)
    for phase, seconds in query.phase_seconds.items():
        yield MetricSample(_PHASES, (*labels, phase), seconds)
    # from 0 on: what starts with the first time that it happens has not increased by that, to Prometheus
    for ending in _ENDINGS_OF_QUERIES:
        yield MetricSample(_ENDINGS, (*labels, ending), query.endings[ending])
    for what, kind in _COUNTED.items():
        yield MetricSample(kind, labels, query.counts[what.value])
    for place, partition in query.partitions.items():
        yield MetricSample(_POSITION, (*labels, *place), partition.position)
        for kind, known in ((_END, partition.end), (_LAG, partition.lag_records), (_LAG_S, partition.lag_s)):
            if known is not None:
                yield MetricSample(kind, (*labels, *place), known)


def _of_sink(sink: SinkWatch) -> Iterable[MetricSample]:
    seen = sink.last_seen
    if seen is None:
        return
    yield MetricSample(_REACHED, (sink.destination,), float(seen.is_reachable))
    for job, ages in seen.ages_s.items():
        yield MetricSample(_OPEN, (sink.destination, job), len(ages))
        yield MetricSample(_OLDEST, (sink.destination, job), max(ages, default=0.0))


def _of_job(job: JobStatus) -> Iterable[MetricSample]:
    status = job.read()
    if status is None:
        return
    yield MetricSample(_DRIVERS, (), status.drivers_started)
    if status.takeovers is not None:
        yield MetricSample(_TAKEOVERS, (), status.takeovers)
    for state, standbys in status.standbys.items():
        yield MetricSample(_STANDBYS, (state,), standbys)
    if status.lease_term is not None:
        yield MetricSample(_TERM, (), status.lease_term)
        yield MetricSample(_SUSPECT, (), float(bool(status.is_suspect)))
