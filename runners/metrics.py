"""The metrics of a Spark session and of `headrace run`: one table. Imports no client of a metrics system.

Names follow Prometheus: `headrace_<thing>_<unit>`, without the `_total` that counters have in addition on its page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial


class MetricType(Enum):
    """As Prometheus has it. A counter only grows while its process runs; a gauge is a value of now."""

    COUNTER = "counter"
    GAUGE = "gauge"


class MetricScope(Enum):
    """What a metric describes: who serves it, and the labels that all metrics of the scope have."""

    QUERY = "query", ("query_id", "query_name")
    PARTITION = "partition", ("query_id", "query_name", "source", "topic", "partition")
    SESSION = "session", ()
    SINK = "sink", ("destination",)
    JOB = "job", ()
    RUN = "run", ()

    def __init__(self, title: str, labels: tuple[str, ...]) -> None:
        self.title = title
        self.labels = labels


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric."""

    type: MetricType
    name: str
    help: str
    scope: MetricScope
    more_labels: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """All of them, in the order in which values are given."""
        return (*self.scope.labels, *self.more_labels)

    @property
    def unit(self) -> str:
        """What is measured or counted, as the name has it; empty for a state or a number."""
        return next(filter(_UNIT.fullmatch, self.name.split("_")), "")

    @property
    def series(self) -> str:
        """The name on Prometheus' page."""
        return f"{self.name}_total" if self.type is MetricType.COUNTER else self.name


_UNIT = re.compile(
    "batches|bytes|checkpoints|commits|drivers|endings|offsets|records|rows|seconds|splits|standbys|starts|takeovers|"
    "transactions|workers"
)
_counter, _gauge = partial(MetricSpec, MetricType.COUNTER), partial(MetricSpec, MetricType.GAUGE)
_QUERY, _PARTITION, _SESSION, _SINK, _JOB, _RUN = MetricScope

# Of a label: not `job`, which Prometheus puts on every series itself. It would rename ours.
_SINK_JOB = ("sink_job",)

_SPECS = (
    _gauge("headrace_query_active", "1 while the query runs, 0 once it has ended", _QUERY),
    _gauge(
        "headrace_query_silent_seconds",
        "Time since the last batch ended, or Spark reported that there is nothing to read (each 10 s), while the query runs",
        _QUERY,
    ),
    _counter("headrace_query_starts", "Starts of the query in this session", _QUERY),
    _counter("headrace_query_endings", "Ends of the query, by how it ended", _QUERY, ("ending",)),
    _counter("headrace_query_batches", "Batches that have ended", _QUERY),
    _gauge("headrace_query_batch_id", "The last batch that has ended", _QUERY),
    _counter("headrace_query_input_rows", "Rows that were read", _QUERY),
    _counter("headrace_query_phase_seconds", "Time used in each phase of the batches, by Spark's names", _QUERY, ("phase",)),
    _gauge("headrace_query_last_batch_timestamp_seconds", "Start of the last batch, in epoch seconds", _QUERY),
    _gauge("headrace_query_watermark_timestamp_seconds", "The watermark, in epoch seconds", _QUERY),
    _gauge("headrace_query_state_rows", "Rows in the state of all operators", _QUERY),
    _gauge("headrace_query_state_bytes", "Memory that the state of all operators uses", _QUERY),
    _gauge("headrace_source_position", "The next offset to read", _PARTITION),
    _gauge("headrace_source_end", "The end of the partition when the last batch was planned", _PARTITION),
    _gauge("headrace_source_lag_records", "Offsets between position and end", _PARTITION),
    _gauge("headrace_source_lag_seconds", "Time since the oldest unread record was first seen", _PARTITION),
    _counter("headrace_source_skipped_records", "Records left out because they cannot be decoded (onBadRecord=skip)", _QUERY),
    _counter(
        "headrace_source_bad_records", "Records kept with a null because they cannot be decoded (onBadRecord=keep)", _QUERY
    ),
    _counter(
        "headrace_source_lost_offsets",
        "Offsets that were gone before they were read, and that failOnDataLoss=false tolerated",
        _QUERY,
    ),
    _counter("headrace_sink_commits", "Commits of the query's exactly-once sinks, without foreachBatch", _QUERY),
    _counter("headrace_sink_commit_seconds", "Time that those commits took", _QUERY),
    _counter("headrace_sink_transactions", "Transactions in those commits", _QUERY),
    _counter(
        "headrace_throttled_seconds",
        "Time for which brokers asked this session's processes to wait, because of quotas",
        _SESSION,
    ),
    _gauge("headrace_sink_open_transactions", "Transactions of a job that are open now", _SINK, _SINK_JOB),
    _gauge("headrace_sink_oldest_transaction_seconds", "Age of the oldest of them", _SINK, _SINK_JOB),
    _gauge("headrace_sink_reachable", "1 if the sink's open transactions could be listed the last time", _SINK),
    _counter(
        "headrace_job_drivers_started",
        "Drivers that the job's supervisor has started: standbys, failed drivers and their replacements included",
        _JOB,
    ),
    _counter("headrace_job_takeovers", "Takeovers of the job by a standby", _JOB),
    _gauge("headrace_job_standbys", "Standbys of the job, by their state", _JOB, ("state",)),
    _gauge("headrace_job_lease_term", "The lease's term in which the job's supervisor leads", _JOB),
    _gauge(
        "headrace_job_lease_suspect", "1 if other hosts may take the supervisor for dead, as it cannot reach the brokers", _JOB
    ),
    _counter("headrace_run_input_records", "Records read up to the last snapshots", _RUN),
    _counter("headrace_run_output_records", "Records written up to the last snapshots", _RUN),
    _counter("headrace_run_completed_checkpoints", "Checkpoints that are committed", _RUN),
    _counter("headrace_run_failed_checkpoints", "Checkpoints that were given up", _RUN),
    _counter("headrace_run_committed_transactions", "Transactions that are committed", _RUN),
    _counter("headrace_run_lost_workers", "Workers that were lost and replaced", _RUN),
    _gauge("headrace_run_uptime_seconds", "Time since this coordinator started", _RUN),
    _gauge("headrace_run_workers", "Workers that are started now", _RUN),
    _gauge("headrace_run_assigned_splits", "Splits that a worker holds", _RUN, ("worker",)),
    _gauge("headrace_run_last_checkpoint_id", "The last committed checkpoint", _RUN),
    _gauge(
        "headrace_run_last_checkpoint_duration_seconds", "Time that it took, from its trigger to the end of its commits", _RUN
    ),
    _gauge("headrace_run_last_checkpoint_size_bytes", "Size of its file", _RUN),
    _gauge("headrace_run_last_checkpoint_timestamp_seconds", "Time of its commit, in epoch seconds", _RUN),
    _gauge("headrace_run_lag_records", "Offsets between the last checkpoint's positions and the end, of all splits", _RUN),
    _gauge(
        "headrace_run_split_lag_records",
        "Offsets between the last checkpoint's position and the end, of one split",
        _RUN,
        ("split",),
    ),
    _gauge("headrace_run_slot_lag_bytes", "PostgreSQL's log behind what the run's slot has confirmed", _RUN),
    _gauge("headrace_run_slot_retained_bytes", "PostgreSQL's log that is kept for the run's slot", _RUN),
    _gauge("headrace_run_slot_safe_bytes", "Log that can be written until the server may drop what the slot needs", _RUN),
    _gauge("headrace_run_slot_xid_age", "Transactions since the oldest whose catalog rows the slot keeps", _RUN),
)

METRICS: Mapping[str, MetricSpec] = {spec.name: spec for spec in _SPECS}
"""All of them, by name."""


def metrics_of(*scopes: MetricScope) -> tuple[MetricSpec, ...]:
    return tuple(spec for spec in METRICS.values() if spec.scope in scopes)
