"""A job that writes epochs through `headrace.connectors.base.commit` in memory, while everything around it goes wrong.

Several drivers of the job may be alive: the newest is the engine's, the others are zombies that have not noticed yet. Each
performs one Committer call at a time, so any of them can be killed before and after any call, `interrupt` kills it in the
middle of one, and everything else can happen in between. Every action takes any integers and does nothing where it does not
apply, so a history can be drawn from a seed. The invariants are checked after every action.

In half of the schedules drivers are supervised: each has a driver id and claims the job when it starts, and one that is
fenced asks again in another of its processes, as `StreamWriter` does. Then only who owns the job by the list may write it.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.connectors.base import commit as commits
from headrace.connectors.base.commit import ClaimRequested, CommitPhase, CommitRequested, RecoveryRequested, StaleEpochError
from headrace.connectors.base.sink import Attempt, CommitList, JobClaim, Outcome
from headrace.enumerator.errors import FencedError, HeadraceError, PeerError
from headrace.testing import memory_sink
from headrace.testing.memory_sink import MemoryHandle, MemorySink, MemoryTransactionLog, State
from tests.simulation.search import Adversary

JOB = "job"
ZOMBIES_AT_MOST = 2
ROWS_AT_MOST = 4
TASKS_AT_MOST = 3
FEW_CALLS = 60  # more than a commit without faults ever takes


class KilledError(Exception):
    """The process is gone."""


def list_in(data: bytes) -> CommitList[MemoryHandle]:
    """A durable list, which is looked at several times."""
    return memory_sink._list_in(data, JOB)


class FusedLog(MemoryTransactionLog):
    """Its caller dies after `fuse` more changes. It remembers what was ever listed. `shown`: how often each was committed."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = self.shown = 0
        self.fuse: int | None = None
        self.listed: set[int] = set()

    def changing(self) -> None:
        if self.fuse == 0:
            raise KilledError
        if self.fuse is not None:
            self.fuse -= 1
        self.changes += 1

    def expire(self, number: int) -> None:
        self.changes += 1
        super().expire(number)

    def commit(self, number: int) -> Outcome:
        self.shown += 1
        return super().commit(number)

    def store(self, job: str, generation: int, data: bytes) -> None:
        super().store(job, generation, data)
        self.listed.update(handle.number for handle in list_in(data).handles)

    def recorded(self) -> int:
        epoch = list_in(self.stored()[JOB]).epoch if JOB in self.stored() else None
        return -1 if epoch is None else epoch

    def claim(self) -> JobClaim | None:
        return list_in(self.stored()[JOB]).claim if JOB in self.stored() else None


class SteppedCommitter(commits.JobCommitter[MemoryHandle]):
    """A JobCommitter that performs one command when instructed to, so that others can act in between."""

    def __init__(self, sink: MemorySink, driver_id: str | None) -> None:
        super().__init__(JOB, sink.committer(JOB), driver_id)
        self.commands: deque[Any] = deque()

    @property
    def phase(self) -> CommitPhase:
        return self._core.phase

    def request(self, event: Any) -> None:
        self.commands.extend(self._core.handle(event))

    def step(self) -> str:
        command = self.commands.popleft()
        for event in self._perform_next(deque([command])):
            self.commands.extend(self._core.handle(event))
        return type(command).__name__


class Run:
    """A driver process. `stale`: it was started from an older copy of the checkpoint. `driver id`: if it is supervised."""

    def __init__(self, sink: MemorySink, epoch: int, driver_id: str | None = None, *, stale: bool = False) -> None:
        self.committer = SteppedCommitter(sink, driver_id)
        self.driver_id = driver_id
        self.is_claiming = False
        self.is_releasing = False
        self.epoch = epoch
        self.stale = stale
        self.handles: tuple[MemoryHandle, ...] | None = None  # None: its tasks have not run
        self.asked = False
        self.committed = False
        self.started_at = 0
        self.recorded = -1

    @property
    def busy(self) -> bool:
        return bool(self.committer.commands)

    def next_epoch(self, epoch: int) -> None:
        self.epoch, self.handles, self.asked, self.committed = epoch, None, False, False


class CommitSimulation:
    """The engine's checkpoint (`done`: the last epoch in it), the rows it has planned for each epoch, and the drivers."""

    def __init__(self, supervised: int = 0) -> None:
        self.is_supervised = bool(supervised % 2)
        self.runs = 0
        self.log = FusedLog()
        self.sink = MemorySink(self.log)
        self.rows: list[list[str]] = []
        self.done = -1
        self.completed: set[int] = set()
        self.attempts: list[Attempt] = []
        self.zombies: list[Run] = []
        self.current = self._new_run(0)
        self.happened: Counter[str] = Counter()
        self.checked: tuple[int, ...] = ()
        self.bystander = self.log.begin("job-2", "0.0.0")  # its name starts with the other job's: nothing of it may be touched
        self.log.prepare(self.bystander)

    # --- actions ------------------------------------------------------------------------------------------------------
    def restart(self, zombie: int, recover: int) -> None:
        """A new driver; the old one is dead, or continues without knowing."""
        if zombie % 2 and len(self.zombies) < ZOMBIES_AT_MOST:
            self.zombies.append(self.current)
        self._start()
        self.happened["restart"] += 1
        if recover % 2 and not self.is_supervised:
            self.current.committer.request(RecoveryRequested())

    def rewind(self, back: int, fates: int) -> None:
        """Another process starts the job from an older copy of the checkpoint; its tasks write what they find then."""
        epoch = self.log.recorded() - 1 - back % 2
        if epoch >= 0 and len(self.zombies) < ZOMBIES_AT_MOST:
            run = Run(self.sink, epoch, stale=True)
            if fates % 2:
                run.handles = self._tasks(run, [f"{epoch}:stale"] * (back % 3), 1, fates)
            self.zombies.append(run)

    def write(self, which: int, size: int, tasks: int, look: int, fates: int) -> None:
        """The tasks of the epoch, unless they are informed that it is recorded. `look`: whether they are reported."""
        run = self._run(which)
        if run.handles is not None or run.busy:
            return
        while len(self.rows) <= run.epoch:
            self.rows.append([f"{len(self.rows)}:{row}" for row in range(size % (ROWS_AT_MOST + 1))])
        recorded = self.sink.recorded_epochs().get(JOB, -1) if look % 2 else -1
        try:
            commits.refuse_stale(JOB, run.epoch, recorded)
        except StaleEpochError:
            assert run is not self.current, "the engine's driver is informed that its checkpoint is old"
            self._lose(run, "tasks refused")
            return
        if recorded == run.epoch:
            self.happened["epoch skipped"] += 1
        run.handles = () if recorded == run.epoch else self._tasks(run, self.rows[run.epoch], tasks, fates)

    def request(self, which: int) -> None:
        """The tasks are done: commit."""
        run = self._run(which)
        if run.handles is None or run.busy or run.asked or run.is_releasing:
            return
        run.asked, run.started_at, run.recorded = True, len(self.log.entries), self.log.recorded()
        handles = run.handles
        self._guarded(run, lambda: run.committer.request(CommitRequested(run.epoch, handles)))

    def step(self, which: int) -> None:
        run = self._run(which)
        if run.busy:
            self._guarded(run, lambda: self.happened.update([run.committer.step()]))

    def interrupt(self, which: int, fuse: int) -> None:
        """A Committer call, in the middle of which the driver dies if it makes more than `fuse` changes."""
        run = self._run(which)
        if run.busy:
            self.log.fuse = fuse % 3
            try:
                self._guarded(run, lambda: self.happened.update([run.committer.step()]))
            finally:
                self.log.fuse = None

    def finish(self, which: int) -> None:
        """All the calls that are left of what was requested."""
        run = self._run(which)
        for _ in range(FEW_CALLS):
            if not run.busy:
                return
            self._guarded(run, lambda: self.happened.update([run.committer.step()]))
        raise AssertionError("a commit does not end")

    def store(self) -> None:
        """The engine writes down that the epoch is done, and continues with the next."""
        if self.current.committed:
            self.done = self.current.epoch
            self.current.next_epoch(self.done + 1)

    def again(self) -> None:
        """The same driver writes the epoch it has just committed again."""
        if self.current.committed:
            self.happened["again"] += 1
            self.current.next_epoch(self.current.epoch)

    def recover_again(self) -> None:
        """The driver is asked to recover though it has."""
        if not self.current.busy and self.current.committer.phase in (CommitPhase.CREATED, CommitPhase.READY):
            self.current.committer.request(RecoveryRequested())

    def give_back(self) -> None:
        """The engine's driver ends in good order, whatever it has under way."""
        run = self.current
        if self.is_supervised and not run.is_claiming:
            run.is_releasing, run.asked, run.handles = True, False, ()
            self._release(run)

    def kill_zombie(self, which: int) -> None:
        if self.zombies:
            self._lose(self.zombies[which % len(self.zombies)], "zombie killed")

    def expire(self, which: int) -> None:
        """A transaction has taken too long, or an outage has."""
        unended = self.log.unended(JOB)
        if unended:
            entry = unended[which % len(unended)]
            self.happened[f"expired {'listed' if entry.number in self.log.listed else entry.state.name}"] += 1
            self.log.expire(entry.number)

    def zombie_task(self, which: int, prepare: int) -> None:
        """A task that no process waits for any more starts again under its old name."""
        if self.attempts:
            attempt = self.attempts[which % len(self.attempts)]
            transaction = self.sink.begin(attempt)
            transaction.write(batch_of(self.rows[attempt.epoch][:1] or [f"{attempt.epoch}:zombie"]))
            if prepare % 2:
                transaction.prepare()

    # --- checks -------------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """What must be true at any moment; it still is where nothing has changed."""
        now = (self.log.changes, len(self.rows), len(self.completed))
        if now == self.checked:
            return
        self.checked = now
        seen = Counter(row["value"] for row in self.log.rows())
        assert not [value for value, times in seen.items() if times > 1], "rows are visible twice"
        recorded, planned = self.log.recorded(), {value for rows in self.rows for value in rows}
        for value in seen:
            assert value in planned, f"{value} was never to be visible"
            assert int(value.split(":")[0]) <= recorded, f"{value} is visible, and its epoch is on no durable list"
        for epoch in self.completed:
            assert not [value for value in self.rows[epoch] if value not in seen], f"rows of completed epoch {epoch} are lost"
        committed = {entry.number for entry in self.log.entries if entry.state is State.COMMITTED}
        assert committed <= self.log.listed, "a transaction was committed that never was on a durable list"
        assert self.log.entries[self.bystander].state is State.PREPARED, "another job's transaction was ended"

    def epoch(self, size: int, tasks: int, fates: int) -> None:
        self.write(0, size, tasks, 1, fates)
        self.request(0)
        self.finish(0)
        self.store()

    def prepared(self, which: int, size: int, tasks: int, look: int, fates: int) -> None:
        """An epoch up to its commit, which is then under way."""
        self.write(which, size, tasks, look, fates)
        self.request(which)

    def drain(self) -> None:
        """Nothing fails any more: the job must continue by itself, and leave nothing open."""
        try:
            self.restart(zombie=0, recover=0)
            self.finish(0)
            for _ in range(3):
                self.write(0, size=2, tasks=2, look=0, fates=0)
                run = self.current
                self.request(0)
                self.finish(0)
                assert self.current is run, "the job cannot continue though nothing fails any more"
                self.check()
                assert not self.log.unended(JOB), "something is still open"
                self.store()
        except HeadraceError as error:
            raise AssertionError(f"the job does not continue: {type(error).__name__}: {error}") from error
        assert self.completed.issuperset(range(self.done + 1))

    # --- steps --------------------------------------------------------------------------------------------------------
    def _run(self, which: int) -> Run:
        """Mostly the engine's driver."""
        runs = [self.current, self.current, *self.zombies]
        return runs[which % len(runs)]

    def _lose(self, run: Run, why: str) -> None:
        self.happened[why] += 1
        if run is self.current:
            self._start()
        else:
            self.zombies.remove(run)

    def _new_run(self, epoch: int) -> Run:
        self.runs += 1
        return Run(self.sink, epoch, f"driver-{self.runs}" if self.is_supervised else None)

    def _start(self) -> None:
        """The engine's next driver. A supervised one claims the job before anything else: its name is known by now."""
        self.current = self._new_run(self.done + 1)
        if self.is_supervised:
            self._claim(self.current)

    def _claim(self, run: Run) -> None:
        run.is_claiming = True
        run.committer.request(ClaimRequested())

    def _release(self, run: Run) -> None:
        run.committer = SteppedCommitter(self.sink, run.driver_id)
        run.committer.request(commits.ReleaseRequested())

    def _fenced(self, run: Run) -> None:
        """Another of the driver's processes asks again for what this one has not got done."""
        if run.driver_id is None:
            self._lose(run, "fenced")
            return
        self.happened["fenced, and asks again"] += 1
        run.committer = SteppedCommitter(self.sink, run.driver_id)
        if run.is_claiming:
            self._claim(run)
        elif run.is_releasing:
            self._release(run)
        elif run.asked and not run.committed:
            assert run.handles is not None
            run.committer.request(CommitRequested(run.epoch, run.handles))

    def _guarded(self, run: Run, act: Callable[[], Any]) -> None:
        """A driver's action: any error of headrace ends the process, as it would."""
        phase, before = run.committer.phase, self.log.stored().get(JOB)
        try:
            try:
                act()
            finally:
                self._check_owner(run, before)
        except KilledError:
            self._lose(run, f"killed {phase.name}")
        except StaleEpochError:
            assert run.epoch < self.log.recorded(), "an epoch that is not stale was refused"
            self._lose(run, "stale epoch refused")
        except commits.SupersededError:
            claim = self.log.claim()
            assert claim is not None
            assert claim.driver_id != run.driver_id, "who owns the job was informed that it is another's"
            self._lose(run, "superseded")
        except FencedError:
            self._fenced(run)
        except PeerError:
            assert phase is CommitPhase.CHECKING
            self._lose(run, "check failed")
        else:
            run.is_claiming &= run.busy
            if run.is_releasing and not run.busy:
                self._lose(run, "given back")
                return
            if run.asked and not run.busy and not run.committed:
                self._finished(run)

    def _check_owner(self, run: Run, before: bytes | None) -> None:
        """Who writes the list owns the job, by that list."""
        if self.log.stored().get(JOB) != before:
            claim = self.log.claim()
            owner = None if claim is None else claim.driver_id
            is_own = owner in ((run.driver_id, None) if run.is_releasing else (run.driver_id,))
            assert is_own, f"{run.driver_id} has written the list of a job that is {owner}'s"

    def _finished(self, run: Run) -> None:
        assert not run.stale, "a stale epoch was not refused"
        assert run.recorded <= run.epoch, "a stale epoch was not refused"
        left = [entry.number for entry in self.log.unended(JOB) if entry.number < run.started_at]
        assert not left, f"the transactions {left} are open after a commit has completed"
        run.committed = True
        self.completed.add(run.epoch)
        self.happened["commit completed"] += 1

    def _tasks(self, run: Run, rows: list[str], tasks: int, fates: int) -> tuple[MemoryHandle, ...]:
        """The rows dealt out to some tasks, each with attempts that fail, or that are not the one that counts."""
        dice = random.Random(fates)
        count = max(tasks % (TASKS_AT_MOST + 1), 1 if rows else 0)
        shares: list[list[str]] = [[] for _ in range(count)]
        for row in rows:
            dice.choice(shares).append(row)
        handles = [self._attempts(run, task, share, dice) for task, share in enumerate(shares)]
        return tuple(handle for handle in handles if handle is not None)

    def _attempts(self, run: Run, task: int, share: list[str], dice: random.Random) -> MemoryHandle | None:
        number = 0
        for fate in dice.choices(["fails", "is lost", "is speculative"], k=dice.choice([0, 0, 0, 1, 2])):
            self._attempt(Attempt(JOB, run.epoch, task, number), share[:1], fate)
            number += 1
        return self._attempt(Attempt(JOB, run.epoch, task, number), share, "counts")

    def _attempt(self, attempt: Attempt, share: list[str], fate: str) -> MemoryHandle | None:
        if not share:
            return None
        self.attempts.append(attempt)
        transaction = self.sink.begin(attempt)
        transaction.write(batch_of(share))
        if fate == "is lost":
            return None
        if fate == "fails":
            transaction.abort()
            return None
        return transaction.prepare()


def batch_of(values: list[str]) -> pa.RecordBatch:
    return _batch_of(tuple(values))


@lru_cache(maxsize=256)
def _batch_of(values: tuple[str, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": values})


COMMITS = Adversary(
    "commits",
    CommitSimulation,
    1,
    (
        {  # whole epochs, and commits that are under way
            "restart": 5, "rewind": 3, "epoch": 5, "prepared": 12, "step": 24, "interrupt": 6, "finish": 5, "store": 4,
            "again": 3, "recover_again": 1, "give_back": 1, "kill_zombie": 1, "expire": 5, "zombie_task": 3,
        },
        {  # step by step
            "restart": 3, "rewind": 4, "write": 12, "request": 12, "step": 30, "interrupt": 5, "finish": 8, "store": 6,
            "again": 1, "recover_again": 1, "give_back": 1, "kill_zombie": 1, "expire": 5, "zombie_task": 3,
        },
    ),
)  # fmt: skip
