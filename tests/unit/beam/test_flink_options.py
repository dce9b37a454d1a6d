"""Under which options of Flink exactly-once writing, and publishing positions, are refused."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from headrace.enumerator.errors import UsageError
from headrace.runners.beam.flink_options import ACCEPTED, RULES, Options, Promise, refuse, refuse_timeout

GOOD = {
    "streaming": True,
    "checkpointing_interval": 10_000,
    "finish_bundle_before_checkpointing": True,
    "min_pause_between_checkpoints": "500",
}
BOTH = frozenset(Promise)
WRITE = frozenset({Promise.WRITE, Promise.WRITE_TABLE})
TABLE = frozenset({Promise.WRITE_TABLE})

# What Beam's Java interface FlinkPipelineOptions had in 2.62, by its Python names, and two of the portable runners.
FLINK_PIPELINE_OPTIONS = """
flink_master parallelism max_parallelism checkpointing_interval checkpointing_mode checkpoint_timeout_millis
min_pause_between_checkpoints num_concurrent_checkpoints fail_on_checkpointing_errors finish_bundle_before_checkpointing
unaligned_checkpoint_enabled force_unaligned_checkpoint_enabled shutdown_sources_after_idle_ms
number_of_execution_retries job_check_interval_in_secs attached_mode execution_retry_delay object_reuse
operator_chaining state_backend_factory state_backend state_backend_storage_path disable_metrics
externalized_checkpoints_enabled retain_externalized_checkpoints_on_cancellation max_bundle_size max_bundle_time_mills
latency_tracking_interval auto_watermark_interval execution_mode_for_batch savepoint_path allow_non_restored_state
auto_balance_write_files_sharding_enabled report_checkpoint_duration re_iterable_group_by_key_result faster_copy
flink_conf_dir file_input_split_max_size_mb enable_stable_input_drain load_balance_bundles sdk_worker_parallelism
environment_cache_millis
"""


@pytest.mark.parametrize(
    ("timeout_s", "changes", "is_refused"),
    [
        (20.1, {}, False),
        (20, {}, True),
        (900, {"checkpointing_interval": 300_000}, False),
        (900, {"checkpointing_interval": 450_000}, True),
        (900, {"min_pause_between_checkpoints": "450000"}, True),
        (math.inf, {"checkpointing_interval": 10**9}, False),
    ],
)
def test_transactions_that_time_out_before_they_are_committed_are_refused(timeout_s, changes, is_refused) -> None:
    refused = pytest.raises(UsageError, match=r"transactions time out after .*transaction_timeout_ms")
    with refused if is_refused else nullcontext():
        refuse_timeout(timeout_s, Options({**GOOD, **changes}, unbounded=True))


def test_every_option_was_looked_at_and_none_is_both_refused_and_accepted() -> None:
    refused = {rule.option for rule in RULES}
    assert set(FLINK_PIPELINE_OPTIONS.split()) <= refused | ACCEPTED.keys()
    assert refused & ACCEPTED.keys() == set()


@pytest.mark.parametrize(
    ("option", "value", "breaks"),
    [
        ("checkpointing_interval", None, BOTH),
        ("checkpointing_interval", "-1", BOTH),
        ("finish_bundle_before_checkpointing", None, WRITE),
        ("finish_bundle_before_checkpointing", "false", WRITE),
        ("min_pause_between_checkpoints", None, BOTH),
        ("min_pause_between_checkpoints", 499, BOTH),
        ("num_concurrent_checkpoints", "2", BOTH),
        ("checkpointing_mode", "AT_LEAST_ONCE", WRITE),
        ("load_balance_bundles", True, BOTH),
        ("load_balance_bundles", "true", BOTH),
        ("environment_cache_millis", 60_000, BOTH),
        ("allow_non_restored_state", True, WRITE),
        ("shutdown_sources_after_idle_ms", 0, WRITE),
        ("unaligned_checkpoint_enabled", True, TABLE),
        ("force_unaligned_checkpoint_enabled", "true", TABLE),
    ],
)
@pytest.mark.parametrize("promise", Promise)
def test_what_breaks_a_promise_is_refused_by_name(option, value, breaks, promise) -> None:
    given = {**GOOD, option: value}
    if promise in breaks:
        with pytest.raises(UsageError, match=f"--{option}: (add|leave)"):
            refuse(promise, Options(given, unbounded=True))
    else:
        refuse(promise, Options(given, unbounded=True))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_concurrent_checkpoints", 1),
        ("checkpointing_mode", "exactly_once"),
        ("load_balance_bundles", "false"),
        ("environment_cache_millis", 100_000),
        ("environment_cache_millis", 0),
        ("shutdown_sources_after_idle_ms", "-1"),
        ("parallelism", 7),
        ("unaligned_checkpoint_enabled", "false"),
    ],
)
@pytest.mark.parametrize("promise", Promise)
def test_what_breaks_none_is_taken(option, value, promise) -> None:
    refuse(promise, Options({**GOOD, option: value}, unbounded=True))


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        refuse(Promise.WRITE, Options({"num_concurrent_checkpoints": 3}, unbounded=True))
    assert str(refused.value).count("\n- --") == 4


def test_a_bounded_read_that_publishes_is_a_streaming_job() -> None:
    refuse(Promise.OFFSETS, Options(GOOD, unbounded=False))
    refuse(Promise.OFFSETS, Options({**GOOD, "streaming": False}, unbounded=True))
    with pytest.raises(UsageError, match="add --streaming"):
        refuse(Promise.OFFSETS, Options({**GOOD, "streaming": False}, unbounded=False))


def test_a_number_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match="--num_concurrent_checkpoints must be a whole number, not 'two'"):
        refuse(Promise.WRITE, Options({**GOOD, "num_concurrent_checkpoints": "two"}, unbounded=True))


def test_options_are_found_as_pipelines_give_them_and_by_javas_names() -> None:
    flags = ["--streaming", "--checkpointing_interval=10000", "--finish_bundle_before_checkpointing"]
    given = PipelineOptions([*flags, "--minPauseBetweenCheckpoints=600"]).get_all_options(retain_unknown_options=True)
    refuse(Promise.WRITE, Options(given, unbounded=False))
    balanced = PipelineOptions([*flags, "--minPauseBetweenCheckpoints=600", "--load_balance_bundles"])
    with pytest.raises(UsageError, match="--load_balance_bundles"):
        refuse(Promise.WRITE, Options(balanced.get_all_options(retain_unknown_options=True), unbounded=False))
