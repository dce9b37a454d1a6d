"""Flink's options, as Beam's runner has them: under which of them what we know of checkpoints is not true. No I/O.

Both proofs rest on one rule (`publication`): a bundle that was under way when another was finalised is finalised by a later
checkpoint, whose barrier came after the other's end. It needs one checkpoint at a time, a task that hears of a checkpoint's
completion before the next barrier comes, and all calls of a split or a shard in one process. A writer needs more: that rows are
in its state when, and only when, the source's position is behind them. `tests/simulation/checkpoints.py` plays it all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.enumerator.errors import UsageError

MIN_PAUSE_MS = 500
"""At least so long between a checkpoint's completion and the next one's start, for the news of it to reach every task first."""

LEAST_LIFETIME_INTERVALS = 10
"""A worker process that is replaced sooner than after this many checkpoint intervals forgets what it is about to prove."""


COMMITTED_AFTER_CHECKPOINTS = 2
"""At the earliest: one has a transaction in its state, the next one proves it, and a later call of the shard commits."""


class Promise(Enum):
    """What is promised on the strength of checkpoints."""

    WRITE = "delivery='exactly-once'"
    WRITE_TABLE = "writing a table exactly once"
    OFFSETS = "publishing positions (commit_offset_in_finalize, enable.auto.commit, after_read)"


@dataclass(frozen=True, slots=True)
class Rule:
    """An option that breaks promises by some of its values: `wrong` is called with what was given (None where nothing was)."""

    option: str
    wrong: Callable[[Options], bool]
    why: str
    instead: str
    breaks: frozenset[Promise] = frozenset(Promise)


class Options:
    """A pipeline's options by their names in Python. Flags and numbers come as text where Beam does not know them."""

    def __init__(self, given: Mapping[str, Any], *, unbounded: bool) -> None:
        """`given`: all of them. `unbounded`: the pipeline is a streaming one, whatever it says."""
        self._given = {re.sub("(?<!^)(?=[A-Z])", "_", name).lower(): value for name, value in given.items()}
        self.streams = unbounded or self.flag("streaming")

    def number(self, name: str, default: int) -> int:
        """Raises UsageError for what is not a whole number."""
        value = self._given.get(name)
        if value is None:
            return default
        try:
            return int(value)
        except (TypeError, ValueError):
            raise UsageError(f"the option --{name} must be a whole number, not {value!r}") from None

    def flag(self, name: str) -> bool:
        return str(self._given.get(name, "false")).lower() not in ("false", "none", "0")

    def text(self, name: str, default: str) -> str:
        value = self._given.get(name)
        return default if value is None else str(value).upper()


def _lifetime_too_short(options: Options) -> bool:
    lifetime_ms = options.number("environment_cache_millis", 0)
    return 0 < lifetime_ms < LEAST_LIFETIME_INTERVALS * options.number("checkpointing_interval", 0)


_WRITE = frozenset({Promise.WRITE, Promise.WRITE_TABLE})
_TABLE = frozenset({Promise.WRITE_TABLE})
_OFFSETS = frozenset({Promise.OFFSETS})

RULES = (
    Rule(
        "checkpointing_interval",
        lambda options: options.number("checkpointing_interval", 0) <= 0,
        "without one Flink takes no checkpoints: nothing is ever durable, and Beam keeps every bundle in memory",
        "add --checkpointing_interval=10000",
    ),
    Rule("streaming", lambda options: not options.streams, "a batch job takes no checkpoints", "add --streaming", _OFFSETS),
    Rule(
        "finish_bundle_before_checkpointing",
        lambda options: not options.flag("finish_bundle_before_checkpointing"),
        "without it a checkpoint can hold half of a bundle, and a job with splittable DoFns stalls",
        "add --finish_bundle_before_checkpointing",
        _WRITE,
    ),
    Rule(
        "min_pause_between_checkpoints",
        lambda options: options.number("min_pause_between_checkpoints", 0) < MIN_PAUSE_MS,
        "the barrier of a checkpoint may reach a task before the news that the last one is complete, which then seems to cover "
        "what came after the barrier",
        f"add --min_pause_between_checkpoints={MIN_PAUSE_MS}, or more",
    ),
    Rule(
        "num_concurrent_checkpoints",
        lambda options: options.number("num_concurrent_checkpoints", 1) > 1,
        "with several checkpoints under way a completed one seems to cover what came after its barrier",
        "leave it out: one at a time",
    ),
    Rule(
        "checkpointing_mode",
        lambda options: options.text("checkpointing_mode", "EXACTLY_ONCE") != "EXACTLY_ONCE",
        "a checkpoint then holds rows that are read again after a restore",
        "leave it out",
        _WRITE,
    ),
    *(
        Rule(
            option,
            lambda options, option=option: options.flag(option),  # type: ignore[misc]
            "what a writer has handed over may be behind the barrier, and would be taken for that of a writer that has died",
            "leave it out",
            _TABLE,
        )
        for option in ("unaligned_checkpoint_enabled", "force_unaligned_checkpoint_enabled")
    ),
    Rule(
        "load_balance_bundles",
        lambda options: options.flag("load_balance_bundles"),
        "the calls of one shard, or split, are spread over processes, of which none learns what is durable",
        "leave it out",
    ),
    Rule(
        "environment_cache_millis",
        _lifetime_too_short,
        f"workers are replaced within {LEAST_LIFETIME_INTERVALS} checkpoint intervals, and forget what earlier ones proved",
        "leave it out, or give a longer time",
    ),
    Rule(
        "allow_non_restored_state",
        lambda options: options.flag("allow_non_restored_state"),
        "a restore then drops the prepared transactions of a writer whose name has changed, and their rows are lost",
        "leave it out",
        _WRITE,
    ),
    Rule(
        "shutdown_sources_after_idle_ms",
        lambda options: options.number("shutdown_sources_after_idle_ms", -1) >= 0,
        "no checkpoint may be possible after that, so that nothing more is committed",
        "leave it out",
        _WRITE,
    ),
)
"""What is refused."""

ACCEPTED = {
    "checkpoint_timeout_millis": "a checkpoint that is given up is never reported complete",
    "fail_on_checkpointing_errors": "a checkpoint that a task declines is never reported complete",
    "externalized_checkpoints_enabled": "says what becomes of checkpoints when a job has ended",
    "retain_externalized_checkpoints_on_cancellation": "as the previous one",
    "savepoint_path": "state continues where it was; a savepoint older than the last checkpoint is said in the documentation",
    "parallelism": "state moves by its keys; a restore with another one succeeds or fails in Flink",
    "max_parallelism": "as the previous one",
    "sdk_worker_parallelism": "without load_balance_bundles a task keeps to one process",
    "max_bundle_size": "a call is part of one bundle, however long that is",
    "max_bundle_time_mills": "as the previous one",
    "number_of_execution_retries": "each attempt goes back to a checkpoint",
    "execution_retry_delay": "as the previous one",
    "state_backend": "any that Flink restores from",
    "state_backend_factory": "as the previous one",
    "state_backend_storage_path": "as the previous one",
    "object_reuse": "bytes that a worker is sent are not changed afterwards",
    "faster_copy": "as the previous one",
    "operator_chaining": "where tasks meet changes no order of a barrier and rows",
    "enable_stable_input_drain": "no stage here asks for stable input",
    "auto_watermark_interval": "nothing here waits for a watermark",
    "execution_mode_for_batch": "of batch jobs",
    "re_iterable_group_by_key_result": "of batch jobs",
    "file_input_split_max_size_mb": "of batch jobs",
    "auto_balance_write_files_sharding_enabled": "of another sink",
    "latency_tracking_interval": "measures",
    "disable_metrics": "measures",
    "report_checkpoint_duration": "measures",
    "attached_mode": "of the submitting program",
    "job_check_interval_in_secs": "of the submitting program",
    "flink_master": "where the cluster is",
    "flink_conf_dir": "settings of checkpoints that the options here name win over it",
}
"""What was looked at and changes neither proof, and why: all the rest that `FlinkPipelineOptions` of Beam 2.62 to 2.70 has."""


def refuse_timeout(timeout_s: float, options: Options) -> None:
    """Raise UsageError where transactions that time out after `timeout_s` seconds may do so before they are committed.

    What has timed out is copied into new ones, which would wait as long, and be copied again, for ever.
    """
    interval_ms = max(options.number(name, 0) for name in ("checkpointing_interval", "min_pause_between_checkpoints"))
    least_s = COMMITTED_AFTER_CHECKPOINTS * interval_ms / 1000
    if timeout_s <= least_s:
        raise UsageError(
            f"transactions time out after {timeout_s:g} s, and are committed {COMMITTED_AFTER_CHECKPOINTS} checkpoints or more "
            f"after their start, {least_s:g} s here: give a shorter --checkpointing_interval, or a longer transaction timeout "
            "(transaction_timeout_ms)"
        )


def refuse(promise: Promise, options: Options) -> None:
    """Raise UsageError, with all that is to be changed, when the promise cannot be kept under these options of a pipeline."""
    broken = [rule for rule in RULES if promise in rule.breaks and rule.wrong(options)]
    if broken:
        lines = "\n".join(f"- --{rule.option}: {rule.instead}. Why: {rule.why}" for rule in broken)
        raise UsageError(f"{promise.value} on Flink needs other options:\n{lines}")
