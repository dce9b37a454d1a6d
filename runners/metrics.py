"""The metrics of a Spark session and of `headrace run`: one table. Imports no client of a metrics system.

Names follow Prometheus: `headrace_<thing>_<unit>`, without the `_total` that counters have in addition on its page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


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
    """One metric. `unit` is the last word of the name where it is one of Prometheus' units; empty for a state or a number."""

    name: str
    type: MetricType
    unit: str
    help: str
    scope: MetricScope
    more_labels: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """All of them, in the order in which values are given."""
        return (*self.scope.labels, *self.more_labels)

    @property
    def series(self) -> str:
        """The name on Prometheus' page."""
        return f"{self.name}_total" if self.type is MetricType.COUNTER else self.name


_COUNTER, _GAUGE = MetricType
_QUERY, _PARTITION, _SESSION, _SINK, _JOB, _RUN = MetricScope

# Of a label: not `job`, which Prometheus puts on every series itself. It would rename ours.
_SINK_JOB = ("sink_job",)

_SPARK = (
    MetricSpec("headrace_query_active", _GAUGE, "", "1 while the query runs, 0 once it has ended", _QUERY),
    MetricSpec(
        "headrace_query_silent_seconds",
        _GAUGE,
        "seconds",
        "Time since the last batch ended, or Spark reported that there is nothing to read (each 10 s), while the query runs",
        _QUERY,
    ),
    MetricSpec("headrace_query_starts", _COUNTER, "starts", "Starts of the query in this session", _QUERY),
    MetricSpec("headrace_query_endings", _COUNTER, "endings", "Ends of the query, by how it ended", _QUERY, ("ending",)),
    MetricSpec("headrace_query_batches", _COUNTER, "batches", "Batches that have ended", _QUERY),
    MetricSpec("headrace_query_batch_id", _GAUGE, "", "The last batch that has ended", _QUERY),
    MetricSpec("headrace_query_input_rows", _COUNTER, "rows", "Rows that were read", _QUERY),
    MetricSpec(
        "headrace_query_phase_seconds",
        _COUNTER,
        "seconds",
        "Time used in each phase of the batches, by Spark's names",
        _QUERY,
        ("phase",),
    ),
    MetricSpec(
        "headrace_query_last_batch_timestamp_seconds", _GAUGE, "seconds", "Start of the last batch, in epoch seconds", _QUERY
    ),
    MetricSpec("headrace_query_watermark_timestamp_seconds", _GAUGE, "seconds", "The watermark, in epoch seconds", _QUERY),
    MetricSpec("headrace_query_state_rows", _GAUGE, "rows", "Rows in the state of all operators", _QUERY),
    MetricSpec("headrace_query_state_bytes", _GAUGE, "bytes", "Memory that the state of all operators uses", _QUERY),
    MetricSpec("headrace_source_position", _GAUGE, "", "The next offset to read", _PARTITION),
    MetricSpec("headrace_source_end", _GAUGE, "", "The end of the partition when the last batch was planned", _PARTITION),
    MetricSpec("headrace_source_lag_records", _GAUGE, "records", "Offsets between position and end", _PARTITION),
    MetricSpec(
        "headrace_source_lag_seconds", _GAUGE, "seconds", "Time since the oldest unread record was first seen", _PARTITION
    ),
    MetricSpec(
        "headrace_source_skipped_records",
        _COUNTER,
        "records",
        "Records left out because they cannot be decoded (onBadRecord=skip)",
        _QUERY,
    ),
    MetricSpec(
        "headrace_source_bad_records",
        _COUNTER,
        "records",
        "Records kept with a null because they cannot be decoded (onBadRecord=keep)",
        _QUERY,
    ),
    MetricSpec(
        "headrace_source_lost_offsets",
        _COUNTER,
        "offsets",
        "Offsets that were gone before they were read, and that failOnDataLoss=false tolerated",
        _QUERY,
    ),
    MetricSpec(
        "headrace_sink_commits", _COUNTER, "commits", "Commits of the query's exactly-once sinks, without foreachBatch", _QUERY
    ),
    MetricSpec("headrace_sink_commit_seconds", _COUNTER, "seconds", "Time that those commits took", _QUERY),
    MetricSpec("headrace_sink_transactions", _COUNTER, "transactions", "Transactions in those commits", _QUERY),
    MetricSpec(
        "headrace_throttled_seconds",
        _COUNTER,
        "seconds",
        "Time for which brokers asked this session's processes to wait, because of quotas",
        _SESSION,
    ),
    MetricSpec(
        "headrace_sink_open_transactions", _GAUGE, "transactions", "Transactions of a job that are open now", _SINK, _SINK_JOB
    ),
    MetricSpec("headrace_sink_oldest_transaction_seconds", _GAUGE, "seconds", "Age of the oldest of them", _SINK, _SINK_JOB),
    MetricSpec("headrace_sink_reachable", _GAUGE, "", "1 if the sink's open transactions could be listed the last time", _SINK),
    MetricSpec(
        "headrace_job_drivers_started",
        _COUNTER,
        "drivers",
        "Drivers that the job's supervisor has started: standbys, failed drivers and their replacements included",
        _JOB,
    ),
    MetricSpec("headrace_job_takeovers", _COUNTER, "takeovers", "Takeovers of the job by a standby", _JOB),
    MetricSpec("headrace_job_standbys", _GAUGE, "standbys", "Standbys of the job, by their state", _JOB, ("state",)),
    MetricSpec("headrace_job_lease_term", _GAUGE, "", "The lease's term in which the job's supervisor leads", _JOB),
    MetricSpec(
        "headrace_job_lease_suspect",
        _GAUGE,
        "",
        "1 if other hosts may take the supervisor for dead, as it cannot reach the brokers",
        _JOB,
    ),
)

_OF_RUNS = (
    MetricSpec("headrace_run_input_records", _COUNTER, "records", "Records read up to the last snapshots", _RUN),
    MetricSpec("headrace_run_output_records", _COUNTER, "records", "Records written up to the last snapshots", _RUN),
    MetricSpec("headrace_run_completed_checkpoints", _COUNTER, "checkpoints", "Checkpoints that are committed", _RUN),
    MetricSpec("headrace_run_failed_checkpoints", _COUNTER, "checkpoints", "Checkpoints that were given up", _RUN),
    MetricSpec("headrace_run_committed_transactions", _COUNTER, "transactions", "Transactions that are committed", _RUN),
    MetricSpec("headrace_run_lost_workers", _COUNTER, "workers", "Workers that were lost and replaced", _RUN),
    MetricSpec("headrace_run_uptime_seconds", _GAUGE, "seconds", "Time since this coordinator started", _RUN),
    MetricSpec("headrace_run_workers", _GAUGE, "workers", "Workers that are started now", _RUN),
    MetricSpec("headrace_run_assigned_splits", _GAUGE, "splits", "Splits that a worker holds", _RUN, ("worker",)),
    MetricSpec("headrace_run_last_checkpoint_id", _GAUGE, "", "The last committed checkpoint", _RUN),
    MetricSpec(
        "headrace_run_last_checkpoint_duration_seconds",
        _GAUGE,
        "seconds",
        "Time that it took, from its trigger to the end of its commits",
        _RUN,
    ),
    MetricSpec("headrace_run_last_checkpoint_size_bytes", _GAUGE, "bytes", "Size of its file", _RUN),
    MetricSpec(
        "headrace_run_last_checkpoint_timestamp_seconds", _GAUGE, "seconds", "Time of its commit, in epoch seconds", _RUN
    ),
    MetricSpec(
        "headrace_run_lag_records",
        _GAUGE,
        "records",
        "Offsets between the last checkpoint's positions and the end, of all splits",
        _RUN,
    ),
    MetricSpec(
        "headrace_run_split_lag_records",
        _GAUGE,
        "records",
        "Offsets between the last checkpoint's position and the end, of one split",
        _RUN,
        ("split",),
    ),
)

METRICS: Mapping[str, MetricSpec] = {spec.name: spec for spec in (*_SPARK, *_OF_RUNS)}
"""All of them, by name."""


def metrics_of(*scopes: MetricScope) -> tuple[MetricSpec, ...]:
    return tuple(spec for spec in METRICS.values() if spec.scope in scopes)
