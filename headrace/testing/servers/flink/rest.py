"""What Flink's REST interface says about its jobs, and asks of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from headrace.enumerator.errors import PeerError, RetriableError, StateError

ANSWER_S = 30.0
FAILURE_LINES = 60
ENDED = frozenset({"FINISHED", "CANCELED", "FAILED"})
"""States of a job that does nothing any more."""


@dataclass(frozen=True, slots=True)
class FlinkCheckpoint:
    """A completed one. `number` counts from 1 and continues after a restart; `path` is what a new submission restores from.

    `triggered_ms` is in epoch milliseconds. `state_bytes` is the size of all state, `took_ms` the time from end to end.
    """

    number: int
    path: str
    triggered_ms: int
    state_bytes: int
    took_ms: int


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one look. `tasks`: vertex name to its state. `failure`: the last one, its time (epoch milliseconds) and text.

    `checkpoint_interval_ms` is None where the job takes no checkpoints.
    """

    job_id: str
    name: str
    state: str
    started_ms: int
    tasks: Mapping[str, str]
    checkpoint_interval_ms: int | None
    completed: int
    failed: int
    in_progress: int
    latest: FlinkCheckpoint | None
    failure: tuple[int, str] | None

    @property
    def is_running(self) -> bool:
        return self.state == "RUNNING" and all(state in ("RUNNING", "FINISHED") for state in self.tasks.values())


class FlinkRest:
    """A client. A connection for each request, so any thread may use it.

    Every method raises RetriableError when nothing answers, PeerError with Flink's text for what it refuses.
    """

    def __init__(self, host: str, port: int) -> None:
        self.address = f"{host}:{port}"

    def task_managers(self) -> frozenset[str]:
        """The ids of those that Flink has; one that died is among them for some seconds. Each start gets another id."""
        return frozenset(manager["id"] for manager in self._ask("GET", "/taskmanagers")["taskmanagers"])

    def free_slots(self) -> dict[str, int]:
        """By id of each task manager that Flink has, how many of its slots no job has."""
        return {manager["id"]: manager["freeSlots"] for manager in self._ask("GET", "/taskmanagers")["taskmanagers"]}

    def hosts(self, job_id: str) -> frozenset[str]:
        """The ids of the task managers that run the job's tasks; none while the job or one of its tasks does not run."""
        details = self._ask("GET", f"/jobs/{job_id}")
        vertices = details["vertices"]
        if details["state"] != "RUNNING" or any(vertex["status"] != "RUNNING" for vertex in vertices):
            return frozenset()
        found = [self._ask("GET", f"/jobs/{job_id}/vertices/{vertex['id']}/taskmanagers") for vertex in vertices]
        return frozenset(manager["taskmanager-id"] for answer in found for manager in answer["taskmanagers"])

    def job_ids(self) -> dict[str, str]:
        """Job id to name, the newest first, whatever their states."""
        jobs = self._ask("GET", "/jobs/overview")["jobs"]
        return {job["jid"]: job["name"] for job in sorted(jobs, key=lambda job: -job["start-time"])}

    def job(self, job_id: str) -> JobView:
        details = self._ask("GET", f"/jobs/{job_id}")
        checkpoints = self._ask("GET", f"/jobs/{job_id}/checkpoints", absent={})
        config = self._ask("GET", f"/jobs/{job_id}/checkpoints/config", absent={})
        failures = self._ask("GET", f"/jobs/{job_id}/exceptions")["exceptionHistory"]["entries"]
        counts = checkpoints.get("counts", {})
        latest = (checkpoints.get("latest") or {}).get("completed")
        return JobView(
            job_id=job_id,
            name=details["name"],
            state=details["state"],
            started_ms=details["start-time"],
            tasks={f"{number}: {vertex['name']}": vertex["status"] for number, vertex in enumerate(details["vertices"])},
            checkpoint_interval_ms=config.get("interval"),
            completed=counts.get("completed", 0),
            failed=counts.get("failed", 0),
            in_progress=counts.get("in_progress", 0),
            latest=_checkpoint(latest) if latest else None,
            failure=_failure(failures[0]) if failures else None,
        )

    def checkpoints(self, job_id: str) -> list[FlinkCheckpoint]:
        """The completed ones that Flink remembers, the newest first; savepoints among them."""
        history = self._ask("GET", f"/jobs/{job_id}/checkpoints", absent={}).get("history", [])
        return [_checkpoint(entry) for entry in history if entry["status"] == "COMPLETED"]

    def metric(self, name: str) -> float:
        """A number that the task managers measure, by Flink's name for it, such as Status.JVM.Memory.Heap.Used: their sum."""
        found = self._ask("GET", f"/taskmanagers/metrics?get={name}&agg=sum")
        if not found:
            raise RetriableError(f"no task manager has measured {name} yet")
        return float(found[0]["sum"])

    def trigger_savepoint(self, job_id: str) -> str:
        """Ask for a savepoint after which the job is cancelled; gives the request's id for `savepoint`."""
        answer = self._ask("POST", f"/jobs/{job_id}/savepoints", {"cancel-job": True})
        return str(answer["request-id"])

    def savepoint(self, job_id: str, request_id: str) -> str:
        """Where the savepoint is. Raises RetriableError while it is being made, StateError when it failed."""
        answer = self._ask("GET", f"/jobs/{job_id}/savepoints/{request_id}")
        if answer["status"]["id"] != "COMPLETED":
            raise RetriableError(f"the savepoint of job {job_id} is {answer['status']['id']}")
        operation = answer["operation"]
        if "failure-cause" in operation:
            text = _shortened(operation["failure-cause"]["stack-trace"])
            raise StateError(f"the savepoint of job {job_id} failed:\n{text}")
        return str(operation["location"])

    def cancel(self, job_id: str) -> None:
        self._ask("PATCH", f"/jobs/{job_id}?mode=cancel")

    def _ask(self, method: str, path: str, body: object = None, absent: Any = None) -> Any:
        connection = HTTPConnection(self.address, timeout=ANSWER_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, HTTPException) as error:
            raise RetriableError(f"Flink's REST interface at {self.address} does not answer: {error!r}") from error
        finally:
            connection.close()
        if response.status == 404 and absent is not None:
            return absent
        if response.status >= 500:  # a job that is being set up, or given up, answers so
            raise RetriableError(f"Flink cannot do {method} {path} now ({response.status}): {_shortened(text)}")
        if response.status >= 400:
            raise PeerError(f"Flink refused {method} {path} ({response.status}): {_shortened(text)}")
        return json.loads(text) if text else {}


def _checkpoint(entry: dict[str, Any]) -> FlinkCheckpoint:
    return FlinkCheckpoint(
        number=entry["id"],
        path=entry["external_path"],
        triggered_ms=entry["trigger_timestamp"],
        state_bytes=entry["state_size"],
        took_ms=entry["end_to_end_duration"],
    )


def _failure(entry: dict[str, Any]) -> tuple[int, str]:
    where = entry.get("taskName") or "the job"
    return entry["timestamp"], f"{where}: {_shortened(entry['stacktrace'])}"


def _shortened(text: str) -> str:
    lines = [line for line in text.replace("\\n", "\n").replace("\\t", "\t").splitlines() if not line.startswith("\tat ")]
    return "\n".join(lines[:FAILURE_LINES])
