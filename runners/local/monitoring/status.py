"""What a run running does now: taken down by its coordinator, and kept in a file for who looks on this machine.

    status.json   {"run", "coordinator", "at", "since", "progress_at", "phase", "records_in", "records_out", "restarted",
                   "workers": [{"number", "splits"}], "workers_lost", "last_lost": {"number", "at"} or null,
                   "committables",
                   "lag": {"at", "records", "splits": {split id: records}} or null, "measures": {name: number},
                   "checkpoints": {"completed", "failed", "last": {"id", "at", "duration_s", "bytes"} or null}}

`lag` is null while it is not known, and `measures`, which are the source's own, are none; the file has its MOST_SPLITS largest
splits, `shown` has all. `committables` are transactions that were committed. `last_lost`: the worker lost last. Times are
seconds of the epoch. `progress_at`: when a checkpoint of workers was last committed, by any coordinator. `restarted`: how many
coordinators have failed before this one, since the run was started. The other counts are of this coordinator's lifetime: a
restart starts at nothing, as Prometheus' counters may; `last_lost` too.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.enumerator.errors import RetriableError, StateError
from headrace.runners.local import events
from headrace.runners.local.monitoring.lag import RunLag
from headrace.runners.local.monitoring.supervised import is_held, is_supervised
from headrace.runners.local.storage.lock import LOCK

MOST_SPLITS = 20
"""The file is written each second, and a source may have ten thousand splits."""

_STATUS = "status.json"

RESTARTING = "RESTARTING"
"""The phase of a run between two of its coordinators; the others are names of the core's phases."""


class NoRunError(StateError):
    """No run is running, and none is about to start again."""


class RunStatus:
    """Owned by the coordinator's main thread, which alone calls it; `shown` may be read by any thread."""

    def __init__(
        self,
        run: str,
        folder: Path,
        progress_s: float,
        size: Callable[[int], int | None],
        clock: Callable[[], float] = time.time,
        *,
        restarted: int = 0,
    ) -> None:
        """`run`: its name at the sink. `size` gives a checkpoint's bytes.

        `progress_s`: when its last checkpoint was committed, or the run was started if that is later. `clock` gives seconds of
        the epoch. `restarted`: how many coordinators there were before, all of which have failed.
        """
        self._progress_s, self._size = progress_s, size
        self._has_snapshot = False
        self._folder, self._clock = folder, clock
        self._begun: tuple[int, float] = (0, clock())
        self._counts = Counter(records_in=0, records_out=0)  # of the workers
        self._completed = self._failed = self._workers_lost = 0
        self._committables = self._listed = 0
        self._last: dict[str, Any] | None = None
        self._last_lost: dict[str, Any] | None = None
        self._identity = {"run": run, "coordinator": os.getpid(), "since": clock()}
        self._restarted = restarted
        self.shown: Mapping[str, Any] = {}

    def record_event(self, event: object) -> None:
        match event:
            case events.WorkerSnapshotted():
                self._counts.update(event.counts)
                self._has_snapshot = True
            case events.CheckpointCommitted(checkpoint_id):
                self._completed += 1
                self._committables, self._listed = self._committables + self._listed, 0
                now_s, size = self._clock(), self._size(checkpoint_id)
                self._note_progress()
                took_s = round(now_s - self._begun[1], 3)
                self._last = {"id": checkpoint_id, "at": now_s, "duration_s": took_s, "bytes": size}

    def record_command(self, command: object) -> None:
        match command:
            case events.TakeSnapshot(_, checkpoint_id):
                self._begin(checkpoint_id)
            case events.CommitCheckpoint(checkpoint, handles):
                self._begin(checkpoint.checkpoint_id)
                self._listed = len(handles)
            case events.NoteUnchanged():
                self._completed += 1
                self._note_progress()
            case events.ReportCheckpointFailure():
                self._failed += 1
            case events.ReportWorkerLost(number):
                self._workers_lost += 1
                self._last_lost = {"number": number, "at": self._clock()}

    def show(self, phase: str, splits: Mapping[int, int], lag: RunLag | None, measures: Mapping[str, float]) -> None:
        """Write it down. `splits`: a worker's number -> how many splits it holds. What the disk refuses is not a failure."""
        self.shown = {
            **self._identity,
            "at": self._clock(),
            "progress_at": self._progress_s,
            "phase": phase,
            **self._counts,
            "restarted": self._restarted,
            "workers": [{"number": number, "splits": held} for number, held in sorted(splits.items())],
            "workers_lost": self._workers_lost,
            "last_lost": self._last_lost,
            "committables": self._committables,
            "lag": None if lag is None else _lag_of(lag, lag.splits),
            "measures": dict(measures),
            "checkpoints": {"completed": self._completed, "failed": self._failed, "last": self._last},
        }
        scratch = self._folder / f"{_STATUS}.writing"
        brief = None if lag is None else _lag_of(lag, dict(largest_of(lag.splits, MOST_SPLITS)))
        with suppress(OSError):
            scratch.write_text(json.dumps({**self.shown, "lag": brief}))
            scratch.replace(self._folder / _STATUS)

    def _note_progress(self) -> None:
        """One without a worker's snapshot is none: so is each while workers crash as soon as they start."""
        if self._has_snapshot:
            self._progress_s, self._has_snapshot = self._clock(), False

    def _begin(self, checkpoint_id: int) -> None:
        if self._begun[0] != checkpoint_id:
            self._begun = (checkpoint_id, self._clock())


def _lag_of(lag: RunLag, splits: Mapping[str, int]) -> dict[str, Any]:
    return {"at": lag.at_s, "records": lag.records, "splits": splits}


def largest_of(splits: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """The splits that are furthest behind, the first one most; of equal ones in the order of their ids."""
    return sorted(splits.items(), key=lambda item: (-item[1], item[0]))[:most]


def last_progress_s(started_s: float, written_s: float | None, now_s: float) -> float:
    """When a run that started at `started_s` has last committed a checkpoint, or started, in epoch seconds of this machine.

    `written_s`: of its newest checkpoint; None without any. One that is yet to come is of another machine's clock, and says
    nothing: else a run that hangs would be well for as long as that clock is ahead.
    """
    return started_s if written_s is None or written_s > now_s else max(started_s, written_s)


def remove_status(folder: Path) -> None:
    """What is there is of a lifetime before, or of a run that is over. Called by who has the folder's lock, or supervises.

    What the disk refuses is not a failure, as nothing is shown of a folder that is not in use.
    """
    for name in (_STATUS, f"{_STATUS}.writing"):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def check_running(folder: Path) -> bool:
    """True where a coordinator works with these checkpoints, False where one is to be started. Raises NoRunError for neither,
    and OSError.
    """
    is_at_work = is_held(folder / LOCK)
    if not is_at_work and not is_supervised(folder):
        raise NoRunError(f"{folder}: no run works with these checkpoints")
    return is_at_work


def read_status(folder: Path) -> Mapping[str, Any] | None:
    """Of the run that works with these checkpoints; None while it has written nothing yet.

    Between two coordinators: what the last one has left, with the phase RESTARTING and without workers. Raises NoRunError
    without a run, RetriableError where the file is damaged, which a run running fixes within a second, StateError where it may
    not be read or is of another version.
    """
    try:
        is_at_work = check_running(folder)
        data = (folder / _STATUS).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{folder}: what the run reports itself cannot be read: {error}") from error
    status = _checked(data, folder / _STATUS)
    return status if is_at_work else {**status, "phase": RESTARTING, "workers": []}


_IN_ALL_VERSIONS: Mapping[type, Sequence[str]] = {
    str: ("run", "phase"),
    float: ("at", "since"),
    int: ("coordinator", "records_in", "records_out", "workers_lost", "committables", "restarted"),
    list: ("workers",),
    dict: ("checkpoints",),
}


def _checked(data: bytes, path: Path) -> Mapping[str, Any]:
    try:
        status = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RetriableError(f"{path} is damaged: {error}") from error
    if not isinstance(status, dict):
        raise StateError(f"{path} is not a status of a run, but a JSON {type(status).__name__}")
    for kind, name in ((kind, name) for kind, names in _IN_ALL_VERSIONS.items() for name in names):
        found = status.get(name)
        if not isinstance(found, (int, float) if kind is float else kind):
            raise StateError(
                f"{path} is of another version of headrace: {name!r} is {found!r}. Look with the run's own version"
            )
    return status
