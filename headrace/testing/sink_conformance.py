"""The conformance kit of sinks: what every two-phase-commit sink must pass. Each case is a promise of `headrace.sinks`.

A sink is put in by a subclass with a factory, in a file that pytest collects:

    class TestMySink(SinkConformance):
        def create_external_context(self) -> SinkContext:
            return MyContext()

What a context makes must be its own (for Kafka: a topic with a random name), so that cases do not meet each other. Rows are
written by tasks that are then forgotten, and committed by drivers that die, are replaced, and start again.
"""

from __future__ import annotations

import json
import pickle
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base import capabilities
from headrace.connectors.base.commit import JobCommitter, StaleEpochError, SupersededError
from headrace.connectors.base.sink import Attempt, CommitList, Committer, Outcome, TwoPhaseSink
from headrace.enumerator.errors import DataLossError, FencedError, HeadraceError
from headrace.testing.dying import DyingCommitter, Killed, Step, When

_PLACES: tuple[tuple[Step, int], ...] = (
    ("fence", 1), ("clean_up", 1), ("check", 1), ("record", 1), ("end", 1), ("end", 2), ("clean_up", 2), ("record", 2),
)  # fmt: skip
_WHEN: tuple[When, ...] = ("before", "after")
DEATHS: tuple[tuple[Step, When, int], ...] = tuple((step, when, nth) for step, nth in _PLACES for when in _WHEN)
"""Every place where the driver of an epoch of two tasks can die, with how many calls of that name are before it."""

GREATEST = 2**63 - 1
"""The greatest number that an attempt can have."""


class SinkContext(ABC):
    """The external system of one case: empty at first, closed at the end."""

    @abstractmethod
    def create_sink(self) -> TwoPhaseSink[Any]:
        """A sink into this system, as another process would make it: its own object, equal to the others."""

    @abstractmethod
    def batch(self, values: Sequence[str]) -> pa.RecordBatch:
        """Rows that the sink takes, one for each value."""

    @abstractmethod
    def visible(self) -> list[str]:
        """The values that a reader of the output sees now, in any order, read by other means than the sink's."""

    @abstractmethod
    def unended(self, job: str) -> int:
        """How many transactions of the job are started or prepared and not ended, the driver's own aside."""

    @abstractmethod
    def golden_handles(self) -> Sequence[tuple[int, str, Any]]:
        """At least one (version, JSON text it wrote, the handle) for every version of the handles. Literals."""

    def abort_prepared(self, handle: Any) -> None:  # noqa: ANN401 - the sink's handle
        """Abort it behind the sink's back, as its timeout or an administrator would. Skipped where that cannot be."""
        pytest.skip("nothing but the sink can end a prepared transaction here")

    def close(self) -> None:  # noqa: B027 - optional to implement
        """Remove what was made."""


class _Job:
    """One job of a case: its tasks, its drivers, and what has to be visible of it."""

    def __init__(self, external: SinkContext, stack: ExitStack, name: str) -> None:
        self.name = name
        self._external, self._stack = external, stack
        self.expected: list[str] = []

    @property
    def sink(self) -> TwoPhaseSink[Any]:
        return self._external.create_sink()

    def committer(self) -> Committer[Any]:
        made = self.sink.committer(self.name)
        self._stack.callback(made.close)
        return made

    def driver(self, driver_id: str | None = None) -> JobCommitter[Any]:
        return JobCommitter(self.name, self.committer(), driver_id)

    def dying(self, step: Step, when: When, nth: int) -> tuple[DyingCommitter[Any], JobCommitter[Any]]:
        dying = DyingCommitter(self.committer(), step, when, nth)
        return dying, JobCommitter(self.name, dying)

    def values(self, epoch: int, task: int) -> list[str]:
        return [f"{self.name}/{epoch}/{task}/{number}" for number in range(3)]

    def epoch(self, epoch: int, tasks: int = 2) -> list[str]:
        return [value for task in range(tasks) for value in self.values(epoch, task)]

    def prepare(self, epoch: int, tasks: int = 2, number: int = 0) -> tuple[Any, ...]:
        """What the tasks hand to the driver, through JSON as through a durable list."""
        return tuple(self.prepare_task(epoch, task, number) for task in range(tasks))

    def prepare_task(self, epoch: int, task: int, number: int = 0) -> Any:  # noqa: ANN401 - a handle
        first, *rest = self.values(epoch, task)
        sink = self.sink
        with sink.begin(Attempt(self.name, epoch, task, number)) as transaction:
            transaction.write(self._external.batch([first]))
            transaction.write(self._external.batch(rest))
            handle = transaction.prepare()
        assert handle is not None, "rows were written, and there is no handle of them"
        text = json.dumps(sink.handles.serialize(handle))
        return sink.handles.deserialize(sink.handles.version, json.loads(text))

    def recorded(self) -> int:
        """The last epoch on the durable list; -1 without a list."""
        return self.sink.recorded_epochs().get(self.name, -1)

    def write_epoch(self, epoch: int, tasks: int = 2, driver: JobCommitter[Any] | None = None) -> None:
        """As a runner does when it starts, or replays, an epoch: what is on the durable list is not written again."""
        committing = driver or self.driver()
        if driver is None:
            committing.recover()
        is_recorded = self.recorded() >= epoch
        committing.commit(epoch, () if is_recorded else self.prepare(epoch, tasks))
        self.expected += self.epoch(epoch, tasks)


class SinkConformance(ABC):
    """Subclass it, see the module. Each case is a method; `external` is the fixture that calls the factory."""

    timeout_s: float = 0.0
    """For this many seconds what was committed may stay unseen."""

    @abstractmethod
    def create_external_context(self) -> SinkContext:
        """A new external system, or a part of one that no other process uses."""

    @pytest.fixture
    def external(self) -> Iterator[SinkContext]:
        """The factory's product, closed after the case, like the committers that the case has made."""
        context = self.create_external_context()
        yield context
        self.close_committers()
        context.close()

    @cached_property
    def _stack(self) -> ExitStack:
        return ExitStack()

    def close_committers(self) -> None:
        """Close what the case has left. Only needed where a case is called by hand."""
        self._stack.close()

    def _job(self, external: SinkContext, name: str = "") -> _Job:
        return _Job(external, self._stack, name or f"kit-{uuid.uuid4().hex[:8]}")

    def assert_visible(self, external: SinkContext, *expected: Sequence[str]) -> None:
        """A reader sees these values, each once, and no others."""
        wanted = Counter(value for values in expected for value in values)
        deadline = time.monotonic() + self.timeout_s
        while (seen := Counter(external.visible())) != wanted and time.monotonic() < deadline:
            continue
        assert seen == wanted, f"lost: {sorted(wanted - seen)}; duplicated or foreign: {sorted(seen - wanted)}"

    def _assert_ended(self, external: SinkContext, job: _Job, *expected: Sequence[str]) -> None:
        """A reader sees these values, and no transaction of the job is still open."""
        self.assert_visible(external, *expected)
        assert external.unended(job.name) == 0

    # --- the two phases -----------------------------------------------------------------------------------------------

    def test_nothing_is_visible_before_the_commit(self, external: SinkContext) -> None:
        """Neither what is written, nor what is prepared."""
        job = self._job(external)
        handles = job.prepare(0)
        self.assert_visible(external, [])
        assert external.unended(job.name) == len(handles)
        job.driver().commit(0, handles)
        self.assert_visible(external, job.epoch(0))

    def test_epochs_are_visible_once_they_are_committed(self, external: SinkContext) -> None:
        """One driver, epochs with another number of tasks each; nothing is still open."""
        job = self._job(external)
        driver = job.driver()
        for epoch, tasks in enumerate((1, 3, 2)):
            job.write_epoch(epoch, tasks, driver)
            self._assert_ended(external, job, job.expected)

    def test_a_new_driver_for_every_epoch(self, external: SinkContext) -> None:
        """Each recovers first, and finds nothing to be done."""
        job = self._job(external)
        for epoch in range(3):
            job.write_epoch(epoch)
        self.assert_visible(external, job.expected)

    def test_aborted_rows_are_never_visible(self, external: SinkContext) -> None:
        """A task that fails before it has prepared leaves nothing; aborting twice is aborting once."""
        job = self._job(external)
        transaction = job.sink.begin(Attempt(job.name, 0, 0, 0))
        transaction.write(external.batch(["aborted"]))
        transaction.abort()
        transaction.abort()
        with suppress(ZeroDivisionError), job.sink.begin(Attempt(job.name, 0, 1, 0)) as failing:
            failing.write(external.batch(["failed"]))
            raise ZeroDivisionError
        job.write_epoch(0)
        self._assert_ended(external, job, job.expected)

    def test_a_task_without_rows_has_no_handle(self, external: SinkContext) -> None:
        """It leaves nothing that would have to be ended."""
        job = self._job(external)
        for batches in ([], [external.batch([])]):
            with job.sink.begin(Attempt(job.name, 0, 0, 0)) as transaction:
                for batch in batches:
                    transaction.write(batch)
                assert transaction.prepare() is None
        assert external.unended(job.name) == 0

    def test_an_epoch_without_rows_is_recorded(self, external: SinkContext) -> None:
        """So that an older copy of the checkpoint is noticed; and the next epoch is written as any other."""
        job = self._job(external)
        driver = job.driver()
        driver.commit(4, ())
        assert job.recorded() == 4
        job.write_epoch(5, driver=driver)
        self.assert_visible(external, job.expected)

    def test_a_losing_attempt_of_the_greatest_number_is_aborted(self, external: SinkContext) -> None:
        """Engines count attempts in 64 bits, or draw a number: a name that only smaller ones fit would not be found again."""
        job = self._job(external)
        greatest = Attempt(job.name, 0, 0, GREATEST, GREATEST)
        with job.sink.begin(greatest) as transaction:
            transaction.write(external.batch(["lost"]))
            assert transaction.prepare() is not None
        assert external.unended(job.name) == 1
        job.write_epoch(0)
        self._assert_ended(external, job, job.expected)

    def test_losing_attempts_are_aborted(self, external: SinkContext) -> None:
        """Of two attempts that prepared, the one that is not committed is ended, and never seen."""
        job = self._job(external)
        winners = job.prepare(0, number=1)
        job.prepare_task(0, 0, number=2)
        job.driver().commit(0, winners)
        self._assert_ended(external, job, job.epoch(0))

    # --- what is durable ----------------------------------------------------------------------------------------------

    def test_committing_twice_is_committing_once(self, external: SinkContext) -> None:
        """By the same driver, and by a new one that has the same handles."""
        job = self._job(external)
        handles = job.prepare(0)
        driver = job.driver()
        for committing in (driver, driver, job.driver()):
            committing.commit(0, handles)
            self.assert_visible(external, job.epoch(0))

    def test_ending_twice_is_ending_once(self, external: SinkContext) -> None:
        """`end` answers COMMITTED as often as it is called, from any process."""
        job = self._job(external)
        handles = job.prepare(0)
        for _ in range(2):
            committer = job.committer()
            committer.fence()
            committer.record(CommitList(0, handles))
            assert [committer.end(handle) for handle in (*handles, *handles)] == [Outcome.COMMITTED] * 4
        self.assert_visible(external, job.epoch(0))

    def test_a_cleans_up_spares_what_it_is_instructed_to_keep(self, external: SinkContext) -> None:
        """And ends all else of the job; a second clean up finds nothing."""
        job = self._job(external)
        kept, lost = job.prepare_task(0, 0), job.prepare_task(0, 1)
        committer = job.committer()
        committer.fence()
        committer.clean_up([kept])
        committer.clean_up([kept])
        assert external.unended(job.name) == 1
        committer.check([kept])
        with pytest.raises(HeadraceError):
            committer.check([lost])
        committer.record(CommitList(0, (kept,)))
        assert committer.end(kept) is Outcome.COMMITTED
        self.assert_visible(external, job.values(0, 0))

    def test_the_durable_list_is_read_back(self, external: SinkContext) -> None:
        """By the next driver, as it was; what another sink object reports about it agrees."""
        job = self._job(external)
        assert job.committer().fence() is None
        assert job.recorded() == -1
        handles = job.prepare(3)
        committer = job.committer()
        committer.fence()
        for commits in (CommitList(3, handles), CommitList(3, (), completed=True)):
            committer.record(commits)
            assert job.recorded() == 3
            committer = job.committer()
            assert committer.fence() == commits

    def test_who_has_claimed_a_job_keeps_it_until_a_younger_driver_comes(self, external: SinkContext) -> None:
        """Also before any epoch is recorded. An older one is done for, whichever of its processes asks, and changes nothing."""
        job = self._job(external)
        older, younger = job.driver("older"), job.driver("younger")
        older.claim()
        assert job.recorded() == -1
        job.driver("older").commit(0, job.prepare(0))
        younger.claim()
        handles = job.prepare(1)
        for act in (JobCommitter.recover, JobCommitter.release, lambda driver: driver.commit(1, handles)):
            for superseded in ("older", None):
                with pytest.raises(SupersededError):
                    act(job.driver(superseded))
        with pytest.raises(FencedError):
            younger.commit(1, handles)
        job.driver("younger").commit(1, handles)
        self.assert_visible(external, job.epoch(0), job.epoch(1))
        job.driver("younger").release()
        job.driver().commit(2, job.prepare(2))
        with pytest.raises(SupersededError):
            job.driver("younger").recover()
        self.assert_visible(external, job.epoch(0), job.epoch(1), job.epoch(2))

    def test_a_forgotten_job_has_no_list(self, external: SinkContext) -> None:
        """Its rows stay; a job of the same name starts over."""
        job = self._job(external)
        driver = job.driver()
        job.write_epoch(7, driver=driver)
        driver.forget()
        assert job.recorded() == -1
        job.write_epoch(0)
        self.assert_visible(external, job.expected)

    def test_jobs_are_apart(self, external: SinkContext) -> None:
        """A driver does not end what a job has prepared whose name starts with its own; nor has it that job's list."""
        job = self._job(external)
        other = self._job(external, f"{job.name}0")
        handles = other.prepare(0)
        job.write_epoch(0)
        assert external.unended(other.name) == len(handles)
        assert (job.recorded(), other.recorded()) == (0, -1)
        other.driver().commit(0, handles)
        self.assert_visible(external, job.expected, other.epoch(0))

    # --- drivers that die ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("step", "when", "nth"), DEATHS)
    def test_a_driver_that_dies(self, external: SinkContext, step: Step, when: When, nth: int) -> None:
        """At any place: what its successor recovers is all of the epoch or nothing, and a replay makes it all, once."""
        job = self._job(external)
        job.write_epoch(0)
        dying, driver = job.dying(step, when, nth)
        with pytest.raises(Killed):
            driver.commit(1, job.prepare(1))
        assert dying.died
        successor = job.driver()
        successor.recover()
        self._assert_ended(external, job, job.expected, job.epoch(1) if job.recorded() == 1 else [])
        job.write_epoch(1, driver=successor)
        job.write_epoch(2, driver=successor)
        self._assert_ended(external, job, job.expected)

    @pytest.mark.parametrize(("step", "when", "nth"), [death for death in DEATHS if death[0] in ("end", "record", "clean_up")])
    def test_a_driver_that_dies_while_it_recovers(self, external: SinkContext, step: Step, when: When, nth: int) -> None:
        """The next one recovers in its place. A place that this recovery does not come to is none to die at."""
        job = self._job(external)
        handles = job.prepare(0)
        _, first = job.dying("record", "after", 1)
        with pytest.raises(Killed):
            first.commit(0, handles)
        dying, second = job.dying(step, when, nth)
        try:
            second.recover()
        except Killed:
            assert dying.died
        job.driver().recover()
        self._assert_ended(external, job, job.epoch(0))

    def test_a_replay_after_a_restore(self, external: SinkContext) -> None:
        """The driver dies before the list is durable: the epoch is written again, by other attempts, and seen once."""
        job = self._job(external)
        _, driver = job.dying("record", "before", 1)
        with pytest.raises(Killed):
            driver.commit(0, job.prepare(0))
        successor = job.driver()
        successor.commit(0, job.prepare(0, number=1))
        self._assert_ended(external, job, job.epoch(0))

    def test_an_epoch_that_is_recorded_is_not_written_again(self, external: SinkContext) -> None:
        """What a task that did not know has prepared for it is aborted."""
        job = self._job(external)
        job.write_epoch(0)
        job.driver().commit(0, job.prepare(0, number=1))
        self._assert_ended(external, job, job.expected)

    def test_writers_that_have_jobs_of_their_own(self, external: SinkContext) -> None:
        """As workers of `headrace run`: the lists are another job's, whose driver ends what they have written.

        How often it is asked, and that it cleans up the writer later, changes nothing of what is committed.
        """
        run, writer, dead = (self._job(external) for _ in range(3))
        if isinstance(run.sink, capabilities.SingleCommit):
            pytest.skip("a list of this sink is its commit: all that is written is the job's own")
        driver = run.committer()
        assert driver.fence() is None
        earlier, handle, lost = writer.prepare_task(0, 0), writer.prepare_task(1, 0), dead.prepare_task(0, 0)
        of_writer, of_dead = (capabilities.committer_of_writer(run.sink, job.name, driver) for job in (writer, dead))
        self._stack.callback(of_writer.close)
        self._stack.callback(of_dead.close)
        of_writer.check([earlier, handle])
        for epoch, own in ((1, earlier), (2, handle)):
            driver.record(CommitList(epoch, (), completed=True))
            assert [*capabilities.end_all(of_writer, [own]), *capabilities.end_all(of_writer, [own])] == [Outcome.COMMITTED] * 2
        of_dead.clean_up(())
        of_writer.clean_up([handle])
        assert of_writer.end(handle) is Outcome.COMMITTED
        with pytest.raises(HeadraceError):
            of_dead.check([lost])
        assert (external.unended(writer.name), external.unended(dead.name)) == (0, 0)
        self.assert_visible(external, writer.values(0, 0), writer.values(1, 0))

    def test_what_tasks_have_open_is_known_and_cleaned_up_by_task(self, external: SinkContext) -> None:
        """As a runner needs it whose writers start transactions at any time: of a sink that commits by list."""
        job = self._job(external)
        if not isinstance(job.sink, capabilities.SingleCommit):
            pytest.skip("transactions of this sink are cleaned up by their writers' jobs")
        driver = job.committer()
        by_task = capabilities.task_cleanup(driver)
        assert driver.fence() is None
        assert by_task.open_tasks() == frozenset()
        kept, lost = job.prepare_task(0, 0), job.prepare_task(0, 1)
        assert by_task.open_tasks() == {0, 1}
        by_task.clean_up_tasks([1], [])
        assert by_task.open_tasks() == {0}
        with pytest.raises(HeadraceError):
            driver.check([lost])
        driver.check([kept])
        driver.record(CommitList(0, (kept,)))
        assert list(capabilities.end_all(driver, [kept])) == [Outcome.COMMITTED]
        assert by_task.open_tasks() == frozenset()
        self.assert_visible(external, job.values(0, 0))

    # --- drivers that are replaced ------------------------------------------------------------------------------------

    def test_an_older_driver_is_fenced(self, external: SinkContext) -> None:
        """It records nothing any more, and so commits nothing."""
        job = self._job(external)
        older, newer = job.driver(), job.driver()
        job.write_epoch(0, driver=older)
        newer.recover()
        with pytest.raises(FencedError):
            older.commit(1, job.prepare(1))
        self.assert_visible(external, job.expected)
        job.write_epoch(1, driver=newer)
        self.assert_visible(external, job.expected)

    def test_an_older_driver_ends_nothing_of_its_successor(self, external: SinkContext) -> None:
        """Neither by an epoch without rows, nor by one that it takes for its own."""
        job = self._job(external)
        older, newer = job.driver(), job.driver()
        older.recover()
        newer.recover()
        handles = job.prepare(1, number=1)
        with pytest.raises(FencedError):
            older.commit(0, ())
        newer.commit(1, handles)
        self.assert_visible(external, job.epoch(1))

    def test_a_stale_epoch_is_refused(self, external: SinkContext) -> None:
        """An older copy of a checkpoint may put other rows into it: StaleEpochError, and nothing of it is seen."""
        job = self._job(external)
        job.write_epoch(5)
        with pytest.raises(StaleEpochError):
            job.driver().commit(4, job.prepare(4))
        job.write_epoch(6)
        self._assert_ended(external, job, job.expected)

    def test_an_epoch_that_was_planned_again_is_refused(self, external: SinkContext) -> None:
        """The recorded epoch's number with another content, with and without rows: StaleEpochError from every new driver.

        With the same content it is a replay.
        """
        job = self._job(external)
        for epoch, tasks in ((3, 2), (4, 0)):
            job.driver().commit(epoch, job.prepare(epoch, tasks), f"plan of {epoch}")
            with pytest.raises(StaleEpochError):
                job.driver().commit(epoch, job.prepare(epoch, number=1), "another plan")
            job.driver().commit(epoch, (), f"plan of {epoch}")
        job.driver().commit(5, job.prepare(5), "plan of 5")
        self._assert_ended(external, job, job.epoch(3), job.epoch(5))

    # --- transactions that end behind the sink's back -----------------------------------------------------------------

    def test_what_was_aborted_is_not_recorded(self, external: SinkContext) -> None:
        """`check` finds it before the list is durable: the epoch fails as a whole, and is written again."""
        job = self._job(external)
        handles = job.prepare(0)
        external.abort_prepared(handles[0])
        with pytest.raises(HeadraceError):
            job.driver().commit(0, handles)
        assert job.recorded() == -1
        job.write_epoch(0)
        self.assert_visible(external, job.expected)

    def test_what_was_aborted_after_the_list_is_repaired_or_said_to_be_lost(self, external: SinkContext) -> None:
        """Never skipped: the rows are copied, or recovery raises DataLossError; then and whenever it is tried again."""
        job = self._job(external)
        handles = job.prepare(0)
        _, driver = job.dying("record", "after", 1)
        with pytest.raises(Killed):
            driver.commit(0, handles)
        external.abort_prepared(handles[0])
        try:
            job.driver().recover()
        except DataLossError:
            with pytest.raises(DataLossError):
                job.driver().recover()
            self.assert_visible(external, job.values(0, 1))
        else:
            self.assert_visible(external, job.epoch(0))

    def test_a_task_that_a_new_driver_did_not_expect(self, external: SinkContext) -> None:
        """A driver takes over while it writes: either it fails to prepare, or what it has prepared can be committed whole."""
        job = self._job(external)
        transaction = job.sink.begin(Attempt(job.name, 0, 0, 0))
        transaction.write(external.batch(["given up"]))
        driver = job.driver()
        driver.recover()
        try:
            handle = transaction.prepare()
            assert handle is not None
            driver.commit(0, (handle,))
            expected = ["given up"]
        except HeadraceError:
            expected = []
        finally:
            transaction.abort()
        self.assert_visible(external, expected)

    # --- the parts of a sink ------------------------------------------------------------------------------------------

    def test_golden_handles(self, external: SinkContext) -> None:
        """What any version wrote is read the same for ever, and the current version writes the same text."""
        serializer = external.create_sink().handles
        golden = external.golden_handles()
        assert {version for version, _, _ in golden} == set(range(1, serializer.version + 1))
        for version, text, handle in golden:
            assert serializer.deserialize(version, json.loads(text)) == handle
            if version == serializer.version:
                assert serializer.serialize(handle) == json.loads(text)

    def test_damaged_handles_are_refused(self, external: SinkContext) -> None:
        """KeyError, TypeError or ValueError, so that a damaged list is refused as such; so is a version not yet known."""
        serializer = external.create_sink().handles
        with pytest.raises((KeyError, TypeError, ValueError)):
            serializer.deserialize(serializer.version, {})
        for _, text, _ in external.golden_handles():
            with pytest.raises((KeyError, TypeError, ValueError)):
                serializer.deserialize(serializer.version + 1, json.loads(text))

    def test_a_sink_is_a_value(self, external: SinkContext) -> None:
        """Copies are equal, also through pickle, and have one hash: runners keep committers by them."""
        sink = external.create_sink()
        for copy in (external.create_sink(), pickle.loads(pickle.dumps(sink))):  # noqa: S301
            assert copy == sink
            assert hash(copy) == hash(sink)

    def test_constructor_contacts_no_process(self, external: SinkContext, monkeypatch: pytest.MonkeyPatch) -> None:
        """A sink is made, pickled and unpickled where the network is out of reach."""

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("the sink opens a connection before it is used")

        for name in ("connect", "connect_ex"):
            monkeypatch.setattr(socket.socket, name, refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        pickle.loads(pickle.dumps(external.create_sink()))  # noqa: S301
