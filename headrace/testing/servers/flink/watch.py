"""Troubles that Beam and Flink do not report, found by polling a job. Callers pass in what they see, and when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.testing.servers.flink.rest import JobView

STALL_INTERVALS = 10


@dataclass(frozen=True, slots=True)
class Timeouts:
    """worker_seconds: how long a task may initialise; a Python worker imports Beam within seconds, also on a busy machine.

    stall_seconds: how long, at least, a job may go without a completed checkpoint; ten of its checkpoint intervals where those
    are longer.
    """

    worker_seconds: float = 60.0
    stall_seconds: float = 60.0


class Trouble(Enum):
    """What may be wrong with a job that looks well."""

    NO_WORKER = "no worker"
    NO_CHECKPOINT = "no checkpoint"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """A trouble, and what to tell the user who waits for the job: where it is, what it means, what to do."""

    trouble: Trouble
    text: str


class Watch:
    """Looks at one job. Each finding is given once, and again only after it had passed. Not thread-safe."""

    def __init__(self, timeout: Timeouts) -> None:
        self._timeout = timeout
        self._initialising: dict[str, float] = {}
        self._progress: tuple[tuple[int, str], float] | None = None
        self._failure_ms = 0
        self._told: set[Trouble] = set()

    def observe(self, view: JobView, now: float) -> list[Finding]:
        """What is wrong and was not said yet; `now` in seconds, of any clock that only goes forward."""
        found = [self._workers(view, now), self._checkpoints(view, now)]
        troubles = {finding.trouble for finding in found if finding}
        fresh = [finding for finding in found if finding and finding.trouble not in self._told]
        self._told = troubles
        return fresh + self._failures(view)

    def _workers(self, view: JobView, now: float) -> Finding | None:
        waiting = [name for name, state in view.tasks.items() if state == "INITIALIZING" and view.state == "RUNNING"]
        self._initialising = {name: self._initialising.get(name, now) for name in waiting}
        late = [name for name, since in self._initialising.items() if now - since >= self._timeout.worker_seconds]
        if not late:
            return None
        return Finding(
            Trouble.NO_WORKER,
            f"job {view.name!r} has waited {self._timeout.worker_seconds:.0f} s for its Python workers, and Beam does not say "
            f"why ({len(late)} of {len(view.tasks)} tasks still initialise, the first is {late[0]!r}). A worker that could not "
            "start leaves its reason in the workers' log: mostly a module that only the submitting program can import. "
            "Install it where the workers run, or add its folder to PYTHONPATH before the cluster is started",
        )

    def _checkpoints(self, view: JobView, now: float) -> Finding | None:
        if view.checkpoint_interval_ms is None or not view.is_running:
            self._progress = None
            return None
        progress = (view.completed, view.job_id)
        if self._progress is None or self._progress[0] != progress:
            self._progress = (progress, now)
            return None
        allowed = max(self._timeout.stall_seconds, STALL_INTERVALS * view.checkpoint_interval_ms / 1000)
        if now - self._progress[1] < allowed:
            return None
        return Finding(
            Trouble.NO_CHECKPOINT,
            f"job {view.name!r} runs, but has completed no checkpoint for {allowed:.0f} s ({view.completed} completed, "
            f"{view.in_progress} in progress, {view.failed} failed): nothing of what it reads is safe, and transactions stay "
            "open. A splittable DoFn must return from process() every second or so, by defer_remainder(); the option "
            "--finish_bundle_before_checkpointing must be given; and a DoFn that blocks holds everything up",
        )

    def _failures(self, view: JobView) -> list[Finding]:
        if view.failure is None or view.failure[0] <= self._failure_ms:
            return []
        self._failure_ms = view.failure[0]
        return [Finding(Trouble.FAILURE, f"job {view.name!r} failed and is {view.state}: {view.failure[1]}")]
