"""Restart strategies decide as Flink's of the same names do."""

from __future__ import annotations

import pytest

from headrace.enumerator.errors import UsageError
from headrace.runners.restarts import (
    RESTART_STRATEGIES,
    UNCLASSIFIED_ATTEMPTS,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    GiveUp,
    NoRestart,
    Restart,
    Restarts,
    duration_s,
    restart_strategy,
)

EVEN = 0.5  # the chance that varies no delay


def decisions(strategy, *failures):
    restarts = Restarts(strategy)
    return [restarts.failed(now_s, EVEN) for now_s in failures]


def delays(strategy, *failures):
    return [decision.delay_s if isinstance(decision, Restart) else None for decision in decisions(strategy, *failures)]


def test_none_never_restarts():
    assert decisions(NoRestart(), 0.0) == [GiveUp("the restart strategy is none")]


def test_fixed_delay_restarts_this_many_times_however_far_apart():
    assert delays(FixedDelay(attempts=3, delay_s=10.0), 0, 1, 1e9, 2e9) == [10.0, 10.0, 10.0, None]


def test_fixed_delay_restarts_once_after_a_second_by_default():
    assert delays(FixedDelay(), 0, 5) == [1.0, None]


def test_failure_rate_restarts_while_an_interval_has_no_more_failures_than_the_maximum():
    strategy = FailureRate(max_failures_per_interval=2, failure_rate_interval_s=60.0, delay_s=3.0)
    assert delays(strategy, 0, 50, 100, 108) == [3.0, 3.0, 3.0, None]


def test_failure_rate_counts_a_failure_that_is_exactly_an_interval_old():
    assert delays(FailureRate(), 0, 60) == [1.0, None]
    assert delays(FailureRate(), 0, 60.001) == [1.0, 1.0]


def test_exponential_delay_grows_to_its_maximum():
    assert delays(ExponentialDelay(backoff_multiplier=4.0), 0, 100, 200, 300, 400) == [1.0, 4.0, 16.0, 60.0, 60.0]


def test_exponential_delay_starts_over_after_a_quiet_time():
    # the quiet time starts when the job was restarted, which is 1 s after its failure
    assert delays(ExponentialDelay(backoff_multiplier=2.0), 0, 3600.9, 7300.0) == [1.0, 2.0, 1.0]


def test_exponential_delay_takes_failures_before_the_restart_for_one():
    strategy = ExponentialDelay(initial_backoff_s=10.0, attempts_before_reset_backoff=1)
    assert delays(strategy, 0, 4, 9, 11) == [10.0, 6.0, 1.0, None]


def test_exponential_delay_gives_up_after_this_many_attempts_without_a_quiet_time():
    strategy = ExponentialDelay(attempts_before_reset_backoff=2, reset_backoff_threshold_s=100.0)
    assert delays(strategy, 0, 50, 300, 350, 400) == [1.0, 1.5, 1.0, 1.5, None]


@pytest.mark.parametrize(("chance", "delay_s"), [(0.0, 13.5), (0.5, 15.0), (0.999999, 16.5)])
def test_exponential_delay_is_varied_by_its_jitter_factor(chance, delay_s):
    restarts = Restarts(ExponentialDelay(initial_backoff_s=10.0, jitter_factor=0.1))
    restarts.failed(0.0, EVEN)
    decision = restarts.failed(100.0, chance)
    assert isinstance(decision, Restart)
    assert decision.delay_s == pytest.approx(delay_s, abs=1e-4)


@pytest.mark.parametrize(("failures", "chance", "delay_s"), [([0.0], 0.0, 1.0), ([0.0, 100.0, 200.0, 300.0], 0.99, 2.0)])
def test_jitter_does_not_leave_the_limits(failures, chance, delay_s):
    restarts = Restarts(ExponentialDelay(max_backoff_s=2.0, jitter_factor=0.5))
    assert [restarts.failed(now_s, chance) for now_s in failures][-1] == Restart(delay_s)


def unclassified(strategy, *failures):
    restarts = Restarts(strategy)
    return [restarts.failed_unclassified(now_s, EVEN) for now_s in failures]


def test_errors_of_unknown_kind_are_given_up_where_the_strategy_never_gives_up():
    times = [100.0 * n for n in range(UNCLASSIFIED_ATTEMPTS + 1)]
    *before, last = unclassified(ExponentialDelay(), *times)
    assert before == decisions(ExponentialDelay(), *times[:-1])
    assert isinstance(last, GiveUp)
    assert f"{UNCLASSIFIED_ATTEMPTS} times" in last.reason


def test_errors_of_unknown_kind_are_retried_as_often_as_the_user_sets():
    times = [100.0 * n for n in range(UNCLASSIFIED_ATTEMPTS + 5)]
    for strategy in (
        FixedDelay(attempts=UNCLASSIFIED_ATTEMPTS + 3),
        FixedDelay(attempts=2),
        FailureRate(),
        ExponentialDelay(attempts_before_reset_backoff=UNCLASSIFIED_ATTEMPTS + 3),
        NoRestart(),
    ):
        assert unclassified(strategy, *times) == decisions(strategy, *times)


def test_a_quiet_time_forgets_errors_of_unknown_kind():
    strategy = ExponentialDelay(reset_backoff_threshold_s=100.0)
    times = [200.0 * n for n in range(3 * UNCLASSIFIED_ATTEMPTS)]
    assert unclassified(strategy, *times) == [Restart(1.0)] * len(times)


def test_errors_of_unknown_kind_before_the_restart_are_one():
    """As of many workers that meet the same one."""
    decisions = unclassified(ExponentialDelay(), *[0.0] * 3 * UNCLASSIFIED_ATTEMPTS)
    assert {type(decision) for decision in decisions} == {Restart}


def test_other_failures_are_no_errors_of_unknown_kind():
    restarts = Restarts(ExponentialDelay())
    for n in range(3 * UNCLASSIFIED_ATTEMPTS):
        restarts.failed(100.0 * n, EVEN)
    assert isinstance(restarts.failed_unclassified(1e4, EVEN), Restart)


def test_the_defaults_are_flinks():
    assert restart_strategy({}) == ExponentialDelay(1.0, 60.0, 1.5, 3600.0, 0.1, None)
    assert restart_strategy({"restart-strategy.type": "fixed-delay"}) == FixedDelay(1, 1.0)
    assert restart_strategy({"restart-strategy.type": "failure-rate"}) == FailureRate(1, 60.0, 1.0)
    assert restart_strategy({"restart-strategy.type": "none"}) == NoRestart()


def test_settings_are_flinks():
    of_delay = {
        "initial-backoff": "500 ms",
        "max-backoff": "2 min",
        "backoff-multiplier": "2.0",
        "reset-backoff-threshold": "10min",
        "jitter-factor": "0.2",
        "attempts-before-reset-backoff": "8",
    }
    named = {f"restart-strategy.exponential-delay.{name}": text for name, text in of_delay.items()}
    found = restart_strategy({"restart-strategy.type": "exponential-delay", **named})
    assert found == ExponentialDelay(0.5, 120.0, 2.0, 600.0, 0.2, 8)
    endless = {"restart-strategy.exponential-delay.attempts-before-reset-backoff": "infinite"}
    assert restart_strategy(endless) == ExponentialDelay()
    rate = {"restart-strategy.type": "failure-rate", "restart-strategy.failure-rate.failure-rate-interval": "1 h"}
    assert restart_strategy(rate) == FailureRate(failure_rate_interval_s=3600.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"restart-strategy.type": "often"}, "one of none, fixed-delay, failure-rate, exponential-delay, not 'often'"),
        ({"restart-strategy.fixed-delay.attempts": "3"}, "not a setting of the strategy exponential-delay"),
        ({"restart-strategy.type": "none", "restart-strategy.none.delay": "1 s"}, "which has: none"),
        ({"restart-strategy.exponential-delay.max-backoff": "soon"}, "max-backoff must be a duration such as"),
        ({"restart-strategy.exponential-delay.jitter-factor": "-1"}, "jitter-factor must be a number"),
        ({"restart-strategy.exponential-delay.attempts-before-reset-backoff": "1.5"}, "must be a whole number"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(settings, message):
    with pytest.raises(UsageError, match=message):
        restart_strategy(settings)


@pytest.mark.parametrize(
    ("strategy", "arguments"),
    [
        ("fixed-delay", {"attempts": 0}),
        ("fixed-delay", {"delay_s": -1.0}),
        ("failure-rate", {"max_failures_per_interval": 0}),
        ("failure-rate", {"failure_rate_interval_s": 0.0}),
        ("exponential-delay", {"initial_backoff_s": 0.0}),
        ("exponential-delay", {"max_backoff_s": 0.5}),
        ("exponential-delay", {"backoff_multiplier": 1.0}),
        ("exponential-delay", {"reset_backoff_threshold_s": 1.0}),
        ("exponential-delay", {"jitter_factor": 1.5}),
        ("exponential-delay", {"jitter_factor": float("nan")}),
        ("exponential-delay", {"attempts_before_reset_backoff": 0}),
    ],
)
def test_a_strategy_that_makes_no_sense_is_refused(strategy, arguments):
    with pytest.raises(UsageError, match="must be"):
        RESTART_STRATEGIES[strategy](**arguments)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10 s", 10.0), ("250ms", 0.25), ("1500", 1.5), ("2 h", 7200.0), ("1 d", 86400.0), ("7 us", 7e-6), ("1.5 Min", 90.0)],
)
def test_durations_are_as_flink_writes_them(text, seconds):
    assert duration_s("x", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "soon", "-1 s", "1 y", "1 s 2", ".5", "inf", "nan", "1" * 16])
def test_what_is_not_a_duration_is_refused(text):
    with pytest.raises(UsageError, match=r"x must be a duration such as '10 s', .* \(a number alone: s\), not '"):
        duration_s("x", text, "s")


def test_a_number_alone_is_of_the_unit_that_the_caller_names():
    assert [duration_s("x", "7.5", "s"), duration_s("x", "7.5 min", "s")] == [7.5, 450.0]
