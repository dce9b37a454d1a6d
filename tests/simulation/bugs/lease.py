"""Injected bugs in the lease between hosts: each breaks one rule, and must be caught by the simulation of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.connectors.base import commit as commit_module
from headrace.runners.spark import writers
from headrace.runners.spark.supervision.lease.core import (
    CallWanted,
    EndLease,
    Follow,
    HeartbeatWritten,
    LeaseCore,
    LeasePhase,
    LeaseStoreRead,
    MayCall,
)
from headrace.runners.spark.supervision.standby import StandbyCore
from headrace.runners.spark.writers import StreamWriter

Injected = Callable[[], AbstractContextManager[None]]


@contextmanager
def whose_the_job_is_is_ignored() -> Iterator[None]:
    """A driver that was taken for dead fences the one that has taken over, and commits."""
    with patch.object(commit_module, "refuse_another", lambda *_: None):
        yield


@contextmanager
def a_driver_that_was_left_behind_has_an_older_copy() -> Iterator[None]:
    """It was paused, and finds a later epoch recorded than its own: the job ends on all hosts, with status 66."""
    with patch.object(writers, "refuse_another", lambda *_: None):
        yield


@contextmanager
def the_checkpoint_is_asked_before_the_sink() -> Iterator[None]:
    """What the previous one plans and records in between is taken for that of another checkpoint: status 66, too."""
    refuse_copy = StreamWriter._refuse_copy

    def injected(self: Any, job: str, last_batch: Callable[[], int | None]) -> None:
        planned = last_batch()
        refuse_copy(self, job, lambda: planned)

    with patch.object(StreamWriter, "_refuse_copy", injected):
        yield


@contextmanager
def looks_are_counted_while_the_lease_store_is_away() -> Iterator[None]:
    """Brokers that are away for all are taken for a dead leader."""
    follower_looked = LeaseCore._follower_looked

    def injected(self: Any, event: Any) -> list[Any]:
        if isinstance(event, LeaseStoreRead):
            return follower_looked(self, event)
        self._missed += 1
        return []

    with patch.object(LeaseCore, "_follower_looked", injected):
        yield


@contextmanager
def who_was_fenced_ends() -> Iterator[None]:
    """As without a lease: the host that was paused is lost to the job."""
    job_ended = LeaseCore._job_ended

    def injected(self: Any, event: Any) -> list[Any]:
        commands = job_ended(self, event)
        if self.phase is not LeasePhase.DISPUTING:
            return commands
        self._end = event.end
        return [EndLease(event.end)]

    with patch.object(LeaseCore, "_job_ended", injected):
        yield


@contextmanager
def a_stop_that_fails_ends_the_job() -> Iterator[None]:
    """A driver that dies while its supervisor is stopped is instructed to all as the end of the job."""
    job_ended = LeaseCore._job_ended

    def injected(self: Any, event: Any) -> list[Any]:
        return job_ended(self, replace(event, was_to_stop=False))

    with patch.object(LeaseCore, "_job_ended", injected):
        yield


@contextmanager
def nobody_is_taken_for_dead() -> Iterator[None]:
    """A follower waits for ever."""
    made = LeaseCore.__init__

    def patient(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        self._most = 1 << 30

    with patch.object(LeaseCore, "__init__", patient):
        yield


@contextmanager
def followers_keep_no_driver_warm() -> Iterator[None]:
    """A follower starts with a cold start."""
    top_up = StandbyCore._top_up

    def injected(self: Any, now_s: float) -> list[Any]:
        return [] if self._is_warming_up else top_up(self, now_s)

    with patch.object(StandbyCore, "_top_up", injected):
        yield


@contextmanager
def who_stands_down_leaves_its_driver_at_work() -> Iterator[None]:
    """It follows, and its driver continues."""
    leader_looked = LeaseCore._leader_looked

    def injected(self: Any, event: Any) -> list[Any]:
        return [command for command in leader_looked(self, event) if not isinstance(command, Follow)]

    with patch.object(LeaseCore, "_leader_looked", injected):
        yield


@contextmanager
def who_is_cut_off_calls_its_next_driver() -> Iterator[None]:
    """It takes the job from the one that has taken over, which sees no process that has done so."""
    apply = LeaseCore._apply

    def injected(self: Any, event: Any) -> list[Any]:
        return [MayCall(event.driver)] if isinstance(event, CallWanted) else apply(self, event)

    with patch.object(LeaseCore, "_apply", injected):
        yield


@contextmanager
def a_heartbeat_counts_from_its_answer() -> Iterator[None]:
    """A host that was paused while it wrote believes that no process can have taken it for dead meanwhile."""
    take_answer = LeaseCore._take_answer

    def injected(self: Any, event: Any) -> None:
        take_answer(self, event)
        self._written_at_s = self._now_s if isinstance(event, HeartbeatWritten) else self._written_at_s

    with patch.object(LeaseCore, "_take_answer", injected):
        yield


@contextmanager
def what_was_seen_before_a_pause_is_believed() -> Iterator[None]:
    """No other process led when it asked, and another process does when it hears so."""
    leader_looked = LeaseCore._leader_looked

    def injected(self: Any, event: Any) -> list[Any]:
        self._asked_at_s = self._now_s
        return leader_looked(self, event)

    with patch.object(LeaseCore, "_leader_looked", injected):
        yield


INJECTED: tuple[Injected, ...] = (
    whose_the_job_is_is_ignored,
    a_driver_that_was_left_behind_has_an_older_copy,
    the_checkpoint_is_asked_before_the_sink,
    looks_are_counted_while_the_lease_store_is_away,
    who_was_fenced_ends,
    a_stop_that_fails_ends_the_job,
    nobody_is_taken_for_dead,
    followers_keep_no_driver_warm,
    who_stands_down_leaves_its_driver_at_work,
    who_is_cut_off_calls_its_next_driver,
    a_heartbeat_counts_from_its_answer,
    what_was_seen_before_a_pause_is_believed,
)
"""Each breaks a promise in some history."""
