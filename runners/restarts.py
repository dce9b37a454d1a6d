"""Restart strategies: whether a job that failed is started again, and when. No clock, no chance: both are handed in.

Names, defaults and rules are Flink's (`restart-strategy.*`, FLIP-364):

| `restart-strategy.type` | class | restarts |
|---|---|---|
| `none` | NoRestart | never |
| `fixed-delay` | FixedDelay | this many times, each after the same delay |
| `failure-rate` | FailureRate | as long as failures are not too many in an interval |
| `exponential-delay` | ExponentialDelay | after a delay that grows, varied by chance, and is reset after quiet times |
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import assert_never

from headrace.connectors.base.arguments import at_least_one
from headrace.enumerator.errors import UsageError

# --- strategies -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure is the last."""


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """`attempts` restarts in the whole lifetime of the job, each `delay_s` seconds after its failure. Raises UsageError."""

    attempts: int = 1
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        at_least_one("attempts", self.attempts)
        _at_least("delay", self.delay_s, 0)


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restarts `delay_s` seconds after a failure, while no interval has more failures than the maximum. Raises UsageError."""

    max_failures_per_interval: int = 1
    failure_rate_interval_s: float = 60.0
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        at_least_one("max-failures-per-interval", self.max_failures_per_interval)
        _above("failure-rate-interval", self.failure_rate_interval_s, 0)
        _at_least("delay", self.delay_s, 0)


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """Delays from `initial_backoff_s` on, each `backoff_multiplier` times the previous one, up to `max_backoff_s`.

    After `reset_backoff_threshold_s` seconds without a failure the next delay is the initial one. `jitter_factor`: each delay
    is longer or shorter by up to this share. `attempts_before_reset_backoff`: this many restarts without such a quiet time;
    None (default) for any number. Failures before a restart has happened are one. Raises UsageError.
    """

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    backoff_multiplier: float = 1.5
    reset_backoff_threshold_s: float = 3600.0
    jitter_factor: float = 0.1
    attempts_before_reset_backoff: int | None = None

    def __post_init__(self) -> None:
        _above("initial-backoff", self.initial_backoff_s, 0)
        _at_least("max-backoff", self.max_backoff_s, self.initial_backoff_s)
        _above("backoff-multiplier", self.backoff_multiplier, 1)
        _at_least("reset-backoff-threshold", self.reset_backoff_threshold_s, self.max_backoff_s)
        _at_least("jitter-factor", self.jitter_factor, 0)
        if self.jitter_factor > 1:
            raise UsageError(f"jitter-factor must be at most 1, not {self.jitter_factor}")
        if self.attempts_before_reset_backoff is not None:
            at_least_one("attempts-before-reset-backoff", self.attempts_before_reset_backoff)


RestartStrategy = NoRestart | FixedDelay | FailureRate | ExponentialDelay

RESTART_STRATEGIES: Mapping[str, type[RestartStrategy]] = MappingProxyType(
    {"none": NoRestart, "fixed-delay": FixedDelay, "failure-rate": FailureRate, "exponential-delay": ExponentialDelay}
)
"""Flink's name of each. `exponential-delay` is the default of a job with checkpoints."""

UNCLASSIFIED_ATTEMPTS = 10
"""Restarts for errors that no table has, without a quiet time between, where the strategy sets no number of attempts."""

# --- decisions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the job again, this many seconds from now."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job has failed for good."""

    reason: str


RestartDecision = Restart | GiveUp


class Restarts:
    """The failures of one job so far, under one strategy. Is alive as long as the job's supervisor; not thread-safe."""

    def __init__(self, strategy: RestartStrategy) -> None:
        self._strategy = strategy
        self._attempts = 0
        self._unclassified = 0
        self._failures: deque[float] = deque()
        self._backoff_s = 0.0
        self._restart_at_s: float | None = None

    def failed(self, now_s: float, chance: float) -> RestartDecision:
        """The job has failed. `now_s` is of one monotonic clock, in seconds; `chance` of [0, 1), for jitter alone."""
        match self._strategy:
            case NoRestart():
                return GiveUp("the restart strategy is none")
            case FixedDelay():
                return self._after_fixed_delay(self._strategy)
            case FailureRate():
                return self._by_rate(self._strategy, now_s)
            case ExponentialDelay():
                return self._after_growing_delay(self._strategy, now_s, chance)
            case _:
                assert_never(self._strategy)

    def failed_unclassified(self, now_s: float, chance: float) -> RestartDecision:
        """As `failed`, by an error that may never pass (`UnclassifiedError`): what is never given up else, is given up then."""
        planned_s = self._restart_at_s
        decision = self.failed(now_s, chance)
        if planned_s is None or now_s >= planned_s:  # else it is one failure with the previous one
            self._unclassified += 1
        if self._unclassified > UNCLASSIFIED_ATTEMPTS and _is_endless(self._strategy):
            return GiveUp(f"it was restarted {UNCLASSIFIED_ATTEMPTS} times after errors of unknown kind, which is the most")
        return decision

    def _after_fixed_delay(self, strategy: FixedDelay) -> RestartDecision:
        self._attempts += 1
        if self._attempts > strategy.attempts:
            return GiveUp(f"fixed-delay: it was restarted {strategy.attempts} times, which is the most")
        return Restart(strategy.delay_s)

    def _by_rate(self, strategy: FailureRate, now_s: float) -> RestartDecision:
        self._failures.append(now_s)
        while now_s - self._failures[0] > strategy.failure_rate_interval_s:
            self._failures.popleft()
        if len(self._failures) > strategy.max_failures_per_interval:
            return GiveUp(
                f"failure-rate: {len(self._failures)} failures in {strategy.failure_rate_interval_s:g} s, "
                f"and {strategy.max_failures_per_interval} is the most"
            )
        return Restart(strategy.delay_s)

    def _after_growing_delay(self, strategy: ExponentialDelay, now_s: float, chance: float) -> RestartDecision:
        planned_s = self._restart_at_s
        if planned_s is not None and now_s < planned_s:
            return Restart(planned_s - now_s)  # one failure with the previous one
        if planned_s is None or now_s - planned_s >= strategy.reset_backoff_threshold_s:
            self._attempts, self._unclassified, self._backoff_s = 0, 0, strategy.initial_backoff_s
        else:
            self._backoff_s = min(self._backoff_s * strategy.backoff_multiplier, strategy.max_backoff_s)
        self._attempts += 1
        most = strategy.attempts_before_reset_backoff
        if most is not None and self._attempts > most:
            return GiveUp(f"exponential-delay: it was restarted {most} times without a quiet time between, which is the most")
        varied_s = self._backoff_s * (1 + strategy.jitter_factor * (2 * chance - 1))
        delay_s = min(max(varied_s, strategy.initial_backoff_s), strategy.max_backoff_s)
        self._restart_at_s = now_s + delay_s
        return Restart(delay_s)


def _is_endless(strategy: RestartStrategy) -> bool:
    return isinstance(strategy, ExponentialDelay) and strategy.attempts_before_reset_backoff is None


# --- settings ---------------------------------------------------------------------------------------------------------

_PREFIX = "restart-strategy."
_TYPE = f"{_PREFIX}type"
_DEFAULT_TYPE = "exponential-delay"
_UNITS_S = {"us": 1e-6, "ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)")


def restart_strategy(settings: Mapping[str, str]) -> RestartStrategy:
    """The strategy that settings of Flink's names say: `restart-strategy.type`, `restart-strategy.fixed-delay.attempts`, ...

    Durations are as Flink writes them: `10 s`, `500 ms`, `1 min`, `1 h`. Default: exponential-delay. Raises UsageError, naming
    the setting, for a name that is none, one of another strategy than `type`, and a value that cannot be.
    """
    rest = dict(settings)
    name = rest.pop(_TYPE, _DEFAULT_TYPE)
    kind = RESTART_STRATEGIES.get(name)
    if kind is None:
        raise UsageError(f"{_TYPE} must be one of {', '.join(RESTART_STRATEGIES)}, not {name!r}")
    known = {f"{_PREFIX}{name}.{field.name.removesuffix('_s').replace('_', '-')}": field.name for field in fields(kind)}
    values: dict[str, float | int | None] = {}
    for setting, text in rest.items():
        if setting not in known:
            raise UsageError(f"{setting!r} is not a setting of the strategy {name}, which has: {', '.join(known) or 'none'}")
        argument = known[setting]
        values[argument] = (duration_s if argument.endswith("_s") else _PARSERS[argument])(setting, text)
    return kind(**values)  # type: ignore[arg-type]  # each parser gives its field's type


def duration_s(setting: str, text: str, unit: str = "ms") -> float:
    """Seconds of a duration such as '10 s'. A number alone is of this unit. Raises UsageError, naming the setting."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or (found[2] or unit) not in _UNITS_S:
        raise UsageError(
            f"{setting} must be a duration such as '10 s', '500 ms' or '1 min' (a number alone: {unit}), not {text!r}"
        )
    return float(found[1]) * _UNITS_S[found[2] or unit]


def whole_number(setting: str, text: str) -> int:
    """Raises UsageError, naming the setting, for anything but up to 19 digits."""
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise UsageError(f"{setting} must be a whole number, not {text!r}")
    return int(text)


def _decimal(setting: str, text: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        raise UsageError(f"{setting} must be a number, not {text!r}")
    return float(text)


_PARSERS: Mapping[str, Callable[[str, str], float | int | None]] = {
    "attempts": whole_number,
    "max_failures_per_interval": whole_number,
    "attempts_before_reset_backoff": lambda setting, text: None if text == "infinite" else whole_number(setting, text),
    "backoff_multiplier": _decimal,
    "jitter_factor": _decimal,
}


def _at_least(name: str, value: float, least: float) -> None:
    if not _is_number(value) or not value >= least:  # which NaN is not
        raise UsageError(f"{name} must be at least {least:g}, not {value!r}")


def _above(name: str, value: float, limit: float) -> None:
    if not _is_number(value) or not value > limit:
        raise UsageError(f"{name} must be more than {limit:g}, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
