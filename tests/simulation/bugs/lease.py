"""Injected bugs in the lease between hosts: each breaks one rule, and must be caught by the simulation of hosts."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from headrace.connectors.base import commit as commit_module
from headrace.runners.spark import writers
from headrace.runners.spark.supervision.lease import core
from headrace.runners.spark.supervision.lease.core import LeaseCore
from headrace.runners.spark.supervision.standby import StandbyCore
from tests.simulation.bugs.injecting import bug, bugs_of, instead_of


@instead_of(commit_module, "refuse_another")
def whose_the_job_is_is_ignored(*_: Any) -> None:
    """A driver that was taken for dead fences the one that has taken over, and commits."""


@bug
def a_driver_that_was_left_behind_has_an_older_copy() -> Iterator[None]:
    """It was paused, and finds a later epoch recorded than its own: the job ends on all hosts, with status 66."""
    lenient = SimpleNamespace(**{**vars(commit_module), "refuse_another": lambda *_: None})
    with patch.object(writers, "commits", lenient):
        yield


@instead_of(writers.StreamWriter, "_refuse_copy")
def the_checkpoint_is_asked_before_the_sink(refuse_copy: Any, self: Any, job: str, last_batch: Any) -> None:
    """What the previous one plans and records in between is taken for that of another checkpoint: status 66, too."""
    planned = last_batch()
    refuse_copy(self, job, lambda: planned)


@instead_of(LeaseCore, "_follower_looked")
def looks_are_counted_while_the_lease_store_is_away(follower_looked: Any, self: Any, event: Any) -> Any:
    """Brokers that are away for all are taken for a dead leader."""
    if isinstance(event, core.LeaseStoreRead):
        return follower_looked(self, event)
    self._missed += 1
    return []


@instead_of(LeaseCore, "_job_ended")
def who_was_fenced_ends(job_ended: Any, self: Any, event: Any) -> Any:
    """As without a lease: the host that was paused is lost to the job."""
    commands = job_ended(self, event)
    if self.phase is not core.LeasePhase.DISPUTING:
        return commands
    self._end = event.end
    return [core.EndLease(event.end)]


@instead_of(LeaseCore, "_job_ended")
def a_stop_that_fails_ends_the_job(job_ended: Any, self: Any, event: Any) -> Any:
    """A driver that dies while its supervisor is stopped is instructed to all as the end of the job."""
    return job_ended(self, replace(event, was_to_stop=False))


@instead_of(LeaseCore, "__init__")
def nobody_is_taken_for_dead(made: Any, self: Any, *arguments: Any) -> None:
    """A follower waits for ever."""
    made(self, *arguments)
    self._most = 1 << 30


@instead_of(StandbyCore, "_top_up")
def followers_keep_no_driver_warm(top_up: Any, self: Any, now_s: float) -> Any:
    """A follower starts with a cold start."""
    return [] if self._is_warming_up else top_up(self, now_s)


@instead_of(LeaseCore, "_leader_looked")
def who_stands_down_leaves_its_driver_at_work(leader_looked: Any, self: Any, event: Any) -> Any:
    """It follows, and its driver continues."""
    return [command for command in leader_looked(self, event) if not isinstance(command, core.Follow)]


@instead_of(LeaseCore, "_apply")
def who_is_cut_off_calls_its_next_driver(apply: Any, self: Any, event: Any) -> Any:
    """It takes the job from the one that has taken over, which sees no process that has done so."""
    return [core.MayCall(event.driver)] if isinstance(event, core.CallWanted) else apply(self, event)


@instead_of(LeaseCore, "_take_answer")
def a_heartbeat_counts_from_its_answer(take_answer: Any, self: Any, event: Any) -> None:
    """A host that was paused while it wrote believes that no process can have taken it for dead meanwhile."""
    take_answer(self, event)
    self._written_at_s = self._now_s if isinstance(event, core.HeartbeatWritten) else self._written_at_s


@instead_of(LeaseCore, "_leader_looked")
def what_was_seen_before_a_pause_is_believed(leader_looked: Any, self: Any, event: Any) -> Any:
    """No other process led when it asked, and another process does when it hears so."""
    self._asked_at_s = self._now_s
    return leader_looked(self, event)


INJECTED = bugs_of(globals())
"""Each breaks a promise in some history."""
