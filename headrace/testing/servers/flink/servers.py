"""A running Flink cluster, and what tests, demos and soaks do to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from headrace.enumerator.errors import PeerError, RetriableError, UsageError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.flink.rest import ENDED, FlinkCheckpoint, FlinkRest, JobView
from headrace.testing.servers.flink.settings import Places
from headrace.testing.servers.flink.watch import Finding, Timeouts, Trouble, Watch
from headrace.testing.servers.ports import HOST, is_listening
from headrace.testing.servers.processes import ServerProcess

if TYPE_CHECKING:
    from apache_beam import Pipeline

T = TypeVar("T")

LOG_LINES = 40
POLL_S = 0.2
WAIT_S = 180.0
CHECKPOINT_MS = 2000

JOB_MANAGER, TASK_MANAGER, JOB_SERVER, WORKERS = "job manager", "task manager", "job server", "workers"


class FlinkCluster:
    """A JobManager, a TaskManager, Beam's job server, and the pool that starts Python workers.

    One TaskManager: each numbers its workers from 1, and a pool that serves two of them stops the wrong one's.

    Not thread-safe. What waits for a job raises PeerError with Flink's own text when the job ends in a failure, and
    DeadlineExceededError, with what looks wrong, when it takes longer than the seconds given.
    """

    def __init__(self, servers: Mapping[str, ServerProcess], places: Places, slots: int, timeout: Timeouts) -> None:
        """Made by `start_flink`; `slots` is how many the TaskManager has."""
        self._servers, self._places, self._slots, self.timeout = servers, places, slots, timeout
        """How long a job may look well and do nothing, before a wait for it gives up."""
        self.rest = FlinkRest(HOST, places.rest)
        """Flink's REST interface."""

    # --- for pipelines ------------------------------------------------------------------------------------------------

    def options(
        self, *, parallelism: int | None = None, checkpoint_ms: int = CHECKPOINT_MS, savepoint: str | None = None
    ) -> list[str]:
        """The pipeline options, for `PipelineOptions(flags)`.

        parallelism: by default all slots. checkpoint_ms: the pause between two checkpoints, in milliseconds, by default 2000.
        savepoint: what to restore from, a savepoint or a retained checkpoint.
        """
        flags = [
            "--runner=PortableRunner",
            f"--job_endpoint={HOST}:{self._places.job_server}",
            "--environment_type=EXTERNAL",
            f"--environment_config={HOST}:{self._places.workers}",
            "--streaming",
            f"--parallelism={parallelism or self._slots}",
            f"--checkpointing_interval={checkpoint_ms}",
            # So that every task hears of a checkpoint's completion before the next barrier.
            "--min_pause_between_checkpoints=500",
            # Without it a checkpoint inside the first bundle stalls the job for ever.
            "--finish_bundle_before_checkpointing",
            "--externalized_checkpoints_enabled",
            "--retain_externalized_checkpoints_on_cancellation",
        ]
        return flags if savepoint is None else [*flags, f"--savepoint_path={savepoint}"]

    def submit(self, pipeline: Pipeline, seconds: float = WAIT_S) -> str:
        """Run a pipeline that was made with `options()`, and give its job id once Flink has the job.

        Raises PeerError when Beam's job server refuses it.
        """
        before = self.rest.job_ids()
        result = pipeline.run()
        found: list[str] = []

        def look() -> None:
            found.extend(job for job in self.rest.job_ids() if job not in before)
            if not found and result.state == "FAILED":
                raise PeerError(f"Beam's job server refused the pipeline. The end of its log:\n{self.log_tail(JOB_SERVER)}")
            if not found:
                raise RetriableError(f"the job server says {result.state}")

        wait_until(look, "the pipeline did not become a Flink job", seconds)
        return found[0]

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> JobView:
        return self.rest.job(job_id)

    def wait_running(self, job_id: str, seconds: float = WAIT_S) -> JobView:
        return self._wait(job_id, lambda view: view if view.is_running else None, "is not running", seconds)

    def wait_checkpoint(self, job_id: str, seconds: float = WAIT_S) -> FlinkCheckpoint:
        """Wait for a completed checkpoint that starts after this call: it covers whatever was seen before the call."""
        before = time.time_ns() // 1_000_000

        def fresh(view: JobView) -> FlinkCheckpoint | None:
            return view.latest if view.latest and view.latest.triggered_ms > before else None

        return self._wait(job_id, fresh, "completed no new checkpoint", seconds)

    def checkpoints(self, job_id: str) -> list[FlinkCheckpoint]:
        """The completed ones that Flink remembers (ten), the newest first."""
        return self.rest.checkpoints(job_id)

    def savepoint(self, job_id: str, seconds: float = WAIT_S) -> str:
        """Take a savepoint, cancel the job with it, and give the savepoint's path for `options(savepoint=...)`.

        Raises StateError with Flink's text when it cannot be taken: the job continues.
        """
        request = self.rest.trigger_savepoint(job_id)
        found: list[str] = []
        wait_until(
            lambda: found.append(self.rest.savepoint(job_id, request)), f"the savepoint of {job_id} is not made", seconds
        )
        self.wait_ended(job_id, seconds)
        return found[0]

    def cancel(self, job_id: str, seconds: float = WAIT_S) -> None:
        """Cancel the job and wait for its end; its retained checkpoints stay."""
        self.rest.cancel(job_id)
        self.wait_ended(job_id, seconds)

    def wait_ended(self, job_id: str, seconds: float = WAIT_S) -> str:
        """Wait until the job is FINISHED, CANCELED or FAILED, and say which."""
        state = ""

        def look() -> None:
            nonlocal state
            state = self.rest.job(job_id).state
            if state not in ENDED:
                raise RetriableError(f"it is {state}")

        wait_until(look, f"job {job_id} did not end", seconds)
        return state

    def explain(self, finding: Finding) -> str:
        """A finding of `Watch` with the log that belongs to it."""
        if finding.trouble is not Trouble.NO_WORKER:
            return finding.text
        return f"{finding.text}. The end of the workers' log:\n{self.log_tail(WORKERS)}"

    def watch(self) -> Watch:
        return Watch(self.timeout)

    def _wait(self, job_id: str, wanted: Callable[[JobView], T | None], what: str, seconds: float) -> T:
        watch, found, failures = self.watch(), list[T](), list[str]()

        def look() -> None:
            view = self.rest.job(job_id)
            if (answer := wanted(view)) is not None:
                found.append(answer)
                return
            for finding in watch.observe(view, time.monotonic()):
                if finding.trouble is not Trouble.FAILURE:
                    raise PeerError(self.explain(finding))
                failures.append(finding.text)  # a job that was killed fails and continues: no reason to give up
            last = failures[-1] if failures else f"tasks {dict(view.tasks)}"
            if view.state in ENDED:
                raise PeerError(f"job {view.name!r} is {view.state}: {last}")
            raise RetriableError(f"job {view.name!r} is {view.state}, {last}")

        wait_until(look, f"job {job_id} {what}", seconds, POLL_S)
        return found[0]

    # --- processes ----------------------------------------------------------------------------------------------------

    def kill_task_manager(self) -> None:
        """End it by SIGKILL. Jobs wait for slots, then start again from their last checkpoint."""
        self._servers[TASK_MANAGER].kill()

    def start_task_manager(self) -> None:
        """Start it again, and wait until Flink has its slots. Raises PeerError with its log when it ends instead."""
        before = self.rest.task_managers()
        self._servers[TASK_MANAGER].start()
        self._wait_task_manager(before)

    def ended(self) -> list[str]:
        """The servers that have ended, a TaskManager that was killed among them: each a name for `log_tail`."""
        return [name for name, server in self._servers.items() if not server.is_running()]

    def log_tail(self, name: str) -> str:
        """The last 40 lines of a server's log: "job manager", "task manager", "job server", "workers"."""
        return self._server(name).log_tail(LOG_LINES)

    def pid(self, name: str) -> int | None:
        """The process id of a server, by its name for `log_tail`. Python workers are children of "workers"."""
        return self._server(name).pid

    def start(self) -> None:
        """Start every server and wait until all of them serve. `start_flink` has done so already."""
        for server in self._servers.values():
            server.start()
        self._wait_task_manager(frozenset())
        self._wait_listening(JOB_SERVER, self._places.job_server)
        self._wait_listening(WORKERS, self._places.workers)

    def kill_all(self) -> None:
        """End every server by SIGKILL."""
        for server in self._servers.values():
            server.kill()

    def _wait_task_manager(self, before: frozenset[str]) -> None:
        def look() -> None:
            self._check_alive(JOB_MANAGER)
            self._check_alive(TASK_MANAGER)
            if not self.rest.task_managers() - before:
                raise RetriableError("it has not registered")

        wait_until(look, "Flink did not get its task manager")

    def _wait_listening(self, name: str, port: int) -> None:
        def look() -> None:
            self._check_alive(name)
            if not is_listening(f"{HOST}:{port}"):
                raise RetriableError(f"nothing listens at port {port}")

        wait_until(look, f"the {name} did not start")

    def _check_alive(self, name: str) -> None:
        if not self._servers[name].is_running():
            raise PeerError(f"the {name} ended. The end of its log:\n{self.log_tail(name)}")

    def _server(self, name: str) -> ServerProcess:
        if name not in self._servers:
            raise UsageError(f"no server {name!r} in this cluster: there are {sorted(self._servers)}")
        return self._servers[name]
