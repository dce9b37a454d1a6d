"""The transform that writes Arrow batches to a sink that commits by list (tables): many writers, one committer.

Which files may be committed, and what a crash leaves, is described in `headrace.runners.beam.table_epochs`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Generic

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from headrace.connectors.base.capabilities import end_all, task_cleanup
from headrace.connectors.base.sink import Attempt, CommitList, Committer, HandleT, Outcome, Transaction, TwoPhaseSink
from headrace.enumerator.errors import PeerError, StateError
from headrace.runners.beam.publication import FinalizationToken
from headrace.runners.beam.table_epochs import (
    CommitterLifetime,
    CommitterState,
    CommitterStateSerializer,
    is_of,
    refuse_other_history,
)

LOOK_S = 30.0
"""How often the committer looks for transactions that no writer will hand over, in seconds."""

HEARTBEAT = b""


def job_of(run: str) -> str:
    return f"beam-{run}"


class TableWriter(beam.DoFn):
    """A bundle's rows become one transaction, which is prepared as the bundle ends; its handle goes to the committer."""

    def __init__(self, sink: TwoPhaseSink[Any], run: str) -> None:
        self._sink = sink
        self._run = run
        self._serializer = CommitterStateSerializer(sink.handles)
        self._transaction: Transaction[Any] | None = None

    def start_bundle(self) -> None:
        """A bundle that has failed may have left something."""
        self._give_up()

    def process(self, element: pa.RecordBatch) -> None:
        if self._transaction is None:
            self._transaction = self._sink.begin(Attempt(job_of(self._run), 0, secrets.randbits(62), 0))
        self._transaction.write(element)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return
        with transaction:
            handle = transaction.prepare()
        if handle is not None:
            # All that the committer gets has the key 0: so it is one.
            yield GlobalWindows.windowed_value_at_end_of_window((0, self._serializer.pack(self._run, handle)))

    def teardown(self) -> None:
        """Also of an instance whose bundle has failed."""
        self._give_up()

    def _give_up(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.abort()


class EpochWriter(beam.DoFn):
    """The committer. A call has a handle, or is a heartbeat."""

    STATE = ReadModifyWriteStateSpec("epochs", BytesCoder())

    def __init__(self, sink: TwoPhaseSink[Any], run: str) -> None:
        self._sink = sink
        self._run = run
        self._serializer = CommitterStateSerializer(sink.handles)

    def process(
        self,
        element: tuple[int, bytes],
        bundle_finalizer: Any = beam.DoFn.BundleFinalizerParam,
        epochs: Any = beam.DoFn.StateParam(STATE),  # noqa: B008 - Beam's way to ask for it
    ) -> None:
        stored = epochs.read()
        before: CommitterState[Any] = CommitterState(self._run)
        if stored is not None:
            before = self._serializer.deserialize(stored, f"the committer of run {self._run}")
        committer = _committer(self._sink, self._run)
        lifetime, state, token = committer.call(before, element[1], time.monotonic())
        if state != before or stored is None:
            epochs.write(self._serializer.serialize(state))
        if token is not None:
            bundle_finalizer.register(partial(_finalised, lifetime, token))


class _Lifetime(CommitterLifetime[HandleT]):
    """With the table's driver of this lifetime."""

    committer: Committer[HandleT] | None = None


class EpochCommitter(Generic[HandleT]):
    """What one process has of a committer. Calls come one at a time, but one of a failed attempt may continue meanwhile."""

    def __init__(self, sink: TwoPhaseSink[HandleT], run: str) -> None:
        self._sink = sink
        self._run = run
        self._serializer = CommitterStateSerializer(sink.handles)
        self._last: tuple[CommitterState[HandleT], _Lifetime[HandleT]] | None = None

    def call(
        self, before: CommitterState[HandleT], element: bytes, now_s: float
    ) -> tuple[_Lifetime[HandleT], CommitterState[HandleT], FinalizationToken[Any] | None]:
        """Commit what is durable, then take the handle into the state. The token, if any, is for the lifetime's `finalised`.

        Raises what the sink raises, and StateError for a state of another history than the table's. The bundle has failed then.
        """
        with _lock:
            last, self._last = self._last, None
            is_known = last is not None and last[0] == before
            lifetime = last[1] if last is not None and is_known else _Lifetime(before)
            started = lifetime.position
        try:
            state = self._performed(lifetime, before, element, now_s)
        except BaseException:
            if lifetime.committer is not None:
                with suppress(Exception):
                    lifetime.committer.close()
            raise
        with _lock:
            token = lifetime.returned(started, state)
            self._last = (state, lifetime)
        return lifetime, state, token

    def _performed(
        self, lifetime: _Lifetime[HandleT], state: CommitterState[HandleT], element: bytes, now_s: float
    ) -> CommitterState[HandleT]:
        if state.run != self._run:
            self._follow(state)
            state = CommitterState(self._run)
        job = job_of(state.run)
        committer = lifetime.committer
        if committer is None:
            committer = lifetime.committer = self._sink.committer(job)
            # As the table has it, which has no other driver from here on.
            state = state.without(_completed(committer, job, state, committer.fence()))
        if lifetime.durable > state.committed:  # all that are durable, in one commit
            _commit(committer, job, state.epoch(lifetime.durable))
            state = state.without(lifetime.durable)
        if element != HEARTBEAT:
            run, handle, stored = self._serializer.unpack(element)
            if run != state.run:
                raise StateError(f"a handle of run {run} has come to the committer of run {state.run}: its rows would be lost")
            state = state.adding(handle, stored)
        with _lock:
            orphans = lifetime.orphans()
        if orphans:
            task_cleanup(committer).clean_up_tasks(orphans, state.handles)
        if lifetime.wants_look(now_s, LOOK_S):
            opened = task_cleanup(committer).open_tasks()
            with _lock:
                lifetime.looked(opened, now_s)
        return state

    def _follow(self, state: CommitterState[HandleT]) -> None:
        """Commit what the job before has left, and let no other process continue from its savepoint."""
        job = job_of(state.run)
        closing = state.closing(self._run)
        committer = self._sink.committer(job)
        try:
            recorded = committer.fence()
            if recorded is None or recorded.epoch != closing.epoch or not is_of(recorded, closing.content or ""):
                state = state.without(_completed(committer, job, state, recorded))
                closing = replace(closing, handles=state.handles, completed=not state.received)
                _commit(committer, job, closing)
            elif not recorded.completed:
                _finish(committer, recorded)
            committer.clean_up(())
        finally:
            committer.close()


def _completed(
    committer: Committer[HandleT], job: str, state: CommitterState[HandleT], recorded: CommitList[HandleT] | None
) -> int:
    number = refuse_other_history(job, state, recorded)
    if recorded is not None and not recorded.completed:
        _finish(committer, recorded)
    return number


def _commit(committer: Committer[HandleT], job: str, commits: CommitList[HandleT]) -> None:
    try:
        if commits.handles:
            committer.check(commits.handles)
        committer.record(commits)
    except PeerError as error:
        error.add_note(
            f"A checkpoint has the files of epoch {commits.epoch} of job {job!r}, so their rows are not read again. Put the "
            "table right (its columns and partitions as they were), and the job continues"
        )
        raise
    if not commits.completed:
        _finish(committer, commits)


def _finish(committer: Committer[HandleT], commits: CommitList[HandleT]) -> None:
    """It is in the table. Raises DataLossError if another process has removed files of it."""
    outcomes = end_all(committer, commits.handles)
    aborted = [handle for handle, outcome in zip(commits.handles, outcomes, strict=True) if outcome is Outcome.ABORTED]
    if aborted:
        committer.copy(aborted)
    committer.record(replace(commits, handles=(), completed=True))


_lock = threading.Lock()
"""Held in every step of what a process knows, of calls and of finalisations in any thread; never while the table is asked."""

_committers: dict[str, EpochCommitter[Any]] = {}


def _committer(sink: TwoPhaseSink[Any], run: str) -> EpochCommitter[Any]:
    """Runners make DoFn instances as they like, so it belongs to the process."""
    with _lock:
        return _committers.setdefault(run, EpochCommitter(sink, run))


def _finalised(lifetime: _Lifetime[Any], token: FinalizationToken[Any]) -> None:
    """In a thread of the runner's choice."""
    with _lock:
        lifetime.finalised(token)
