"""How a pipeline is run in processes of one machine, by Flink's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from headrace.enumerator.errors import UsageError
from headrace.runners.local.core import RunSchedule
from headrace.runners.local.storage.folder import local_folder
from headrace.runners.local.storage.places import machine_folder, whole_name
from headrace.runners.restarts import ExponentialDelay, RestartStrategy, duration_s, restart_strategy, whole_number

MOST_PORTS = 65536


class Retention(Enum):
    """What becomes of the checkpoints of a run that is stopped. Those of a run that has failed or finished are always kept."""

    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"


@dataclass(frozen=True)
class RunSettings:
    """How a pipeline is run. Seconds; names and defaults are Flink's, but for the interval, which has none there.

    - `workers`: processes that read and write, default 1.
    - `checkpoints`: where the checkpoints are: a folder, as a path or `file:///...`, or a URL that fsspec knows, such as
      `s3://bucket/run` (extra `files`, and fsspec's package for that store). One run works with them at a time. A second one in
      the same folder is refused; in a store, from another machine, the one that is started last continues, and the other ends.
    - `interval_s` (`execution.checkpointing.interval`): from one checkpoint to the next, default 10. Rows become visible by it.
    - `min_pause_s` (`execution.checkpointing.min-pause`): from the end of one to the next, default 0.
    - `max_delay_s` (`execution.checkpointing.max-delay`): from the first row since a checkpoint to the next one, where that is
      sooner than by the interval; default None, not. It is not Flink's. Rows become visible soon then, and a run without rows
      takes no more checkpoints than the interval asks for.
    - `timeout_s` (`execution.checkpointing.timeout`): one that takes longer has failed, default 600. What a sink does before
      the checkpoint can be stored, such as a merge of changes into a table, is part of it.
    - `tolerable_failed_checkpoints` (`execution.checkpointing.tolerable-failed-checkpoints`): in a row, default 0.
    - `retained` (`execution.checkpointing.num-retained`): this many newest checkpoints are kept, default 1,
      alongside one that is not committed yet.
    - `savepoints` (`execution.checkpointing.savepoint-dir`): a run that is stopped, or whose source ends, writes its last
      checkpoint into this folder as a savepoint; default None, none.
    - `from_savepoint` (`execution.state-recovery.path`): the file of a savepoint that the run starts with, in a new folder of
      checkpoints; default None. Started again, it continues from its own checkpoints.
    - `retention` (`execution.checkpointing.externalized-checkpoint-retention`): whether the checkpoints of a run that is
      stopped are kept; default `Retention.RETAIN_ON_CANCELLATION`, so that the same command continues.
    - `heartbeat_interval_s`, `heartbeat_timeout_s` (`heartbeat.*`): default 10 and 50. A worker that is not heard is killed.
    - `restart` (`restart-strategy.*`): default exponential delay.
    - `metrics_port`: serve Prometheus' metrics and `/healthz` there as long as the run is running, default None, not at all;
      needs the extra `metrics`. `metrics_address`: default 127.0.0.1; with `0.0.0.0` other machines read them, without a login.

    Paths are of the folder that the process works in when this is made. Checked then: raises UsageError.
    """

    checkpoints: str
    _: KW_ONLY
    workers: int = 1
    interval_s: float = 10.0
    min_pause_s: float = 0.0
    timeout_s: float = 600.0
    tolerable_failed_checkpoints: int = 0
    retained: int = 1
    savepoints: str | None = None
    from_savepoint: str | None = None
    retention: Retention = Retention.RETAIN_ON_CANCELLATION
    heartbeat_interval_s: float = 10.0
    heartbeat_timeout_s: float = 50.0
    restart: RestartStrategy = field(default_factory=ExponentialDelay)
    max_delay_s: float | None = None
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"

    def __post_init__(self) -> None:
        self._check_kinds()
        object.__setattr__(self, "checkpoints", whole_name(self.checkpoints))
        for name in ("savepoints", "from_savepoint"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, str(local_folder(getattr(self, name))))
        _ = self.folder
        if not isinstance(self.retention, Retention):
            raise UsageError(f"retention must be a Retention, not {self.retention!r}")
        if self.metrics_port is not None and not 0 < self.metrics_port < MOST_PORTS:
            raise UsageError(f"metrics_port must be between 1 and {MOST_PORTS - 1}, not {self.metrics_port}")
        for name in ("workers", "retained"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("interval_s", "timeout_s", "heartbeat_interval_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be more than 0 seconds, not {getattr(self, name)}")
        if self.max_delay_s is not None and not 0 <= self.max_delay_s <= self.interval_s:
            raise UsageError(f"max_delay_s must be from 0 to interval_s ({self.interval_s}), not {self.max_delay_s}")
        for name in ("min_pause_s", "tolerable_failed_checkpoints"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} must be at least 0, not {getattr(self, name)}")
        if not self.heartbeat_timeout_s > self.heartbeat_interval_s:
            raise UsageError(
                f"heartbeat_timeout_s ({self.heartbeat_timeout_s}) must be more than heartbeat_interval_s "
                f"({self.heartbeat_interval_s})"
            )

    def _check_kinds(self) -> None:
        """A bool, a text and a number with a fraction would fail later, in a process that is then started again and again."""
        for name in _WHOLE:
            value = getattr(self, name)
            if type(value) is not int and not (name == "metrics_port" and value is None):
                raise UsageError(f"{name} must be a whole number, not {value!r}")
        for name in _DURATIONS.values():
            value = getattr(self, name)
            if value is None and name == "max_delay_s":
                continue
            if type(value) not in (int, float) or value in (math.inf, -math.inf):
                raise UsageError(f"{name} must be a number of seconds, not {value!r}")
        if not isinstance(self.restart, RestartStrategy):
            raise UsageError(f"restart must be a restart strategy, such as FixedDelay(3, 1.0), not {self.restart!r}")
        if not isinstance(self.metrics_address, str) or not self.metrics_address.strip():  # an empty one is of all interfaces
            raise UsageError(f"metrics_address must be an address such as 127.0.0.1, not {self.metrics_address!r}")

    @property
    def folder(self) -> Path:
        """Of this machine: lock, status and requests to rescale; and the checkpoints, if they are in a folder."""
        return machine_folder(self.checkpoints)

    @property
    def savepoint_folder(self) -> Path | None:
        """Where the last checkpoint goes as a savepoint."""
        return None if self.savepoints is None else local_folder(self.savepoints)

    @property
    def savepoint_file(self) -> Path | None:
        """The savepoint that the run starts with."""
        return None if self.from_savepoint is None else local_folder(self.from_savepoint)

    @property
    def schedule(self) -> RunSchedule:
        """When checkpoints are taken."""
        return RunSchedule(
            self.interval_s, self.min_pause_s, self.timeout_s, self.tolerable_failed_checkpoints, self.max_delay_s
        )


_CHECKPOINTING = "execution.checkpointing."
_RESTART = "restart-strategy."
_DURATIONS: Mapping[str, str] = {
    f"{_CHECKPOINTING}interval": "interval_s",
    f"{_CHECKPOINTING}min-pause": "min_pause_s",
    f"{_CHECKPOINTING}max-delay": "max_delay_s",
    f"{_CHECKPOINTING}timeout": "timeout_s",
    "heartbeat.interval": "heartbeat_interval_s",
    "heartbeat.timeout": "heartbeat_timeout_s",
}
_COUNTS: Mapping[str, str] = {
    f"{_CHECKPOINTING}tolerable-failed-checkpoints": "tolerable_failed_checkpoints",
    f"{_CHECKPOINTING}num-retained": "retained",
}

_WHOLE = ("workers", "metrics_port", *_COUNTS.values())

_TEXTS: Mapping[str, str] = {f"{_CHECKPOINTING}savepoint-dir": "savepoints", "execution.state-recovery.path": "from_savepoint"}
_RETENTION = f"{_CHECKPOINTING}externalized-checkpoint-retention"


def flink_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `RunSettings` by settings of Flink's names. Raises UsageError, naming it, for one that there is not."""
    found: dict[str, Any] = {}
    for name, text in settings.items():
        if name in _DURATIONS:
            found[_DURATIONS[name]] = duration_s(name, text)
        elif name in _COUNTS:
            found[_COUNTS[name]] = whole_number(name, text)
        elif name in _TEXTS:
            found[_TEXTS[name]] = text
        elif name == _RETENTION:
            if text not in Retention.__members__:
                raise UsageError(f"{name} must be one of {', '.join(Retention.__members__)}, not {text!r}")
            found["retention"] = Retention[text]
        elif not name.startswith(_RESTART):
            known = ", ".join((*_DURATIONS, *_COUNTS, *_TEXTS, _RETENTION))
            raise UsageError(f"{name!r} is not a setting of a run: {known}, {_RESTART}*")
    restart = {name: text for name, text in settings.items() if name.startswith(_RESTART)}
    return {**found, "restart": restart_strategy(restart)} if restart else found
