"""The simulation of a job on two hosts: supervisors with a lease, their drivers, the lease store, a checkpoint, and the sink.

Run for real: `LeaseCore`, `StandbyCore`, commit and recovery (`JobCommitter`, one command at a time) with who owns the job,
what a driver and its tasks refuse by what is recorded (`StreamWriter`), and the heartbeat as it is stored. Played: processes,
hosts and their clocks, the lease store's network, Spark's query on a store that creates atomically (HDFS), the sink's
transactions (`MemorySink`).

Hosts are paused as a whole, isolated from the lease store, or lose their power; drivers are killed or hang; a write to the
lease store may take effect and its answer be lost, or come later; clocks run at other speeds and jump. A paused host continues
where it was, in the middle of whatever it did.

What must be true: a row is visible once and none is lost; only who owns the job writes its list; no process ends for having
been fenced by the other one, nor before it is instructed to, as this job has no end; who has not seen the lease store for so
long that it may have been taken for dead calls no driver. Once nothing is wrong any more exactly one host leads, the other one
follows with a warm driver, the job gets on, and it stays so, also while the lease store is away; a dead leader is replaced.
"""

import copy
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from headrace.connectors.base.commit import ClaimRequested, CommitRequested, JobCommitter, SupersededError
from headrace.connectors.base.lease import Heartbeat, parse_heartbeat
from headrace.connectors.base.sink import Attempt, Outcome
from headrace.enumerator.errors import FencedError, HeadraceError
from headrace.runners.restarts import FixedDelay
from headrace.runners.spark.supervision import core as supervision
from headrace.runners.spark.supervision import standby
from headrace.runners.spark.supervision.core import DriverEnd, Ending
from headrace.runners.spark.supervision.exit_causes import end_by
from headrace.runners.spark.supervision.lease import core as leases
from headrace.runners.spark.supervision.lease.core import LeaseCore, LeasePhase
from headrace.runners.spark.supervision.standby import DriverPhase, DriverReport, StandbyCore
from headrace.runners.spark.writers import StreamWriter, _Recorded
from headrace.testing.memory_sink import MemorySink, State
from tests.simulation.commit import JOB, FusedLog, SteppedCommitter, batch_of
from tests.simulation.search import NUMBERS, Adversary, by_chance

STOPPED = DriverEnd(Ending.STOPPED, "it was stopped")
KILLED = DriverEnd(Ending.FAILED, "the driver was killed by SIGKILL")
TIMEOUT_S = 3.0
ROWS = 2
MOMENT_S = 0.5
"""A step takes half as long in the mean: so between two looks of a supervisor come a few things, in any order."""
CALM_STEPS = 2400
SHADOW_STEPS = 25
"""Some seconds: who was paused may be suspected just when it continues."""
SHADOW_BATCHES = 2
"""A driver that has lost the job already may still end the batch that it has recorded."""
SETTLED = {(LeasePhase.LEADING, True, DriverPhase.ACTIVE, False), (LeasePhase.FOLLOWING, False, DriverPhase.ARMED, False)}
"""Of each driver: what its supervisor does, whether it is called, what it does, and whether it hangs."""
AWAY_STEPS, BACK_STEPS = 60, 40
"""Each is as long as it takes to be taken for dead, and longer."""


@dataclass(eq=False)
class Driver:
    """One on a host. `program` continues by a step at a time, unless it hangs, its host is paused, or it is dead."""

    name: str
    number: int
    program: Iterator[None] = field(init=False)
    is_alive: bool = True
    hangs: bool = False
    is_called: bool = False
    is_to_stop: bool = False
    has_planned: bool = False
    steps: int = 0
    said: list[DriverReport] = field(default_factory=list)
    end: DriverEnd = KILLED

    def say(self, report: DriverReport) -> None:
        """Whatever it says also states that it is alive. That alone is said once in some steps, which is once a second."""
        self.steps += 1
        if report is not DriverReport.ALIVE or (not self.said and self.steps % 3 == 1):
            self.said.append(report)


@dataclass(frozen=True)
class CheckpointLogs:
    """What a writer asks of the checkpoint."""

    offsets: dict[int, str]
    commits: dict[int, str]

    def digest(self, batch: int) -> str | None:
        return self.offsets.get(batch)

    def is_committed(self, batch: int) -> bool:
        return batch in self.commits


@lru_cache(maxsize=256)
def heartbeat_in(text: str) -> Heartbeat:
    """Each is looked at by both hosts."""
    return parse_heartbeat(text, "the lease store")


class SeenLog(FusedLog):
    """It knows what a reader sees, which never goes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def commit(self, number: int) -> Outcome:
        entry = self.entries[number]
        was_seen = entry.state is State.COMMITTED
        outcome = super().commit(number)
        if outcome is Outcome.COMMITTED and not was_seen:
            values = {row["value"] for row in entry.rows}
            before = len(self.seen)
            self.seen |= values
            assert len(self.seen) == before + len(entry.rows), "rows are visible twice"
        return outcome


class Host:
    """A machine with one supervisor. `now_s`: its own clock."""

    def __init__(self, simulation: "Simulation", name: str, speed: float) -> None:
        self.simulation, self.name, self.speed = simulation, name, speed
        self.now_s = simulation.chances.uniform(0, 1000)
        self.is_paused = self.is_cut_off = False
        self.saw_lease_store_at_s = 0.0
        self.started = 0
        self.start()

    def start(self) -> None:
        self.started += 1
        self.is_on = True
        self.stops = 0
        self.end: DriverEnd | None = None
        self.ended: DriverEnd | None = None
        self.asked: deque[leases.ReadLeaseStore | leases.WriteHeartbeat] = deque()
        self.answer: tuple[leases.LeaseEvent, float] | None = None
        self.drivers: dict[int, Driver] = {}
        self.lease = LeaseCore(f"{self.simulation.chances.randrange(1000):03}-{self.name}-{self.started}", self.name, TIMEOUT_S)
        self.core = self.new_core()
        self.tell_lease(leases.LeaseStarted(self.now_s))

    def new_core(self) -> StandbyCore:
        limits = standby.StandbyLimits(0, silence_s=10.0, settle_s=0.0)
        return StandbyCore(FixedDelay(attempts=10_000, delay_s=1.0), supervision.SupervisionLimits(), limits)

    # --- as `_Supervisor` does it -------------------------------------------------------------------------------------
    def tell(self, event: standby.StandbyEvent) -> None:
        for command in self.core.handle(event):
            match command:
                case standby.Launch(number):
                    self.drivers[number] = self.simulation.launch(self, number)
                case standby.CallDriver(number):
                    self.tell_lease(leases.CallWanted(self.now_s, number))
                case standby.Stop(number):
                    self.drivers[number].is_to_stop = True
                case standby.Kill(number):
                    self.drivers[number].is_alive = False
                case standby.Finish(end):
                    self.ended = end
        if self.ended is not None:
            ended, self.ended = self.ended, None
            self.tell_lease(leases.JobEnded(self.now_s, ended, was_to_stop=self.stops > 0))

    def tell_lease(self, event: leases.LeaseEvent) -> None:
        for command in self.lease.handle(event):
            match command:
                case leases.ReadLeaseStore() | leases.WriteHeartbeat():
                    self.asked.append(command)
                case leases.Follow():
                    self.start_over()
                    self.tell(standby.WarmUp(self.now_s))
                case leases.Lead():
                    self.simulation.happened["leads"] += 1
                    self.tell(supervision.SupervisionStarted(self.now_s))
                case leases.MayCall(number):
                    silent_s = self.now_s - self.saw_lease_store_at_s
                    assert silent_s < TIMEOUT_S, "a driver is called that may take the job from another"
                    self.drivers[number].is_called = True
                case leases.EndLease(end):
                    assert end.ending is not Ending.FENCED, "a supervisor has ended as the other one has taken over"
                    assert self.stops, "a supervisor has ended that was not instructed to"
                    self.start_over()
                    self.end, self.is_on = end, False
                    self.simulation.happened[f"ended: {end.ending.name}"] += 1

    def start_over(self) -> None:
        for driver in self.drivers.values():
            driver.is_alive = False
        self.drivers.clear()
        self.core = self.new_core()

    def stop(self) -> None:
        self.stops += 1
        if self.lease.phase is LeasePhase.LEADING:
            self.tell(supervision.JobStopRequested(self.now_s))
        elif self.lease.phase is not LeasePhase.LEAVING or self.stops > 1:
            self.tell_lease(leases.LeaveRequested(self.now_s))

    def step(self) -> None:
        core = self.core
        for number, driver in list(self.drivers.items()):
            if driver.is_alive and not driver.said:
                continue
            while driver.said and self.is_on and self.core is core:
                self.tell(standby.DriverReported(number, self.now_s, driver.said.pop(0)))
                self.tell_of(number, leases.DriverHeard(self.now_s))
            if not driver.is_alive and self.is_on and self.core is core:
                del self.drivers[number]
                self.tell_of(number, leases.DriverLost(self.now_s))
                self.tell(standby.DriverDied(number, self.now_s, driver.end, self.simulation.chances.random()))
        if self.is_on and self.core.wake_at_s is not None and self.now_s >= self.core.wake_at_s:
            self.tell(supervision.TimePassed(self.now_s))
        if self.is_on and self.lease.wake_at_s is not None and self.now_s >= self.lease.wake_at_s:
            self.tell_lease(leases.ReadDue(self.now_s))

    def tell_of(self, number: int, event: leases.DriverHeard | leases.DriverLost) -> None:
        if number == self.core.called and self.lease.phase is LeasePhase.LEADING:
            self.tell_lease(event)

    def reach_lease_store(self) -> None:
        """What was asked takes effect, or does not; its answer is on its way, or is lost."""
        question = self.asked.popleft()
        is_reached = not (self.is_cut_off or self.simulation.lease_store_is_away)
        if isinstance(question, leases.WriteHeartbeat) and is_reached:
            self.simulation.lease_store = question.heartbeat.serialize()
        if not is_reached or self.simulation.chances.random() <= self.simulation.lost_answers:
            answer: leases.LeaseEvent = leases.LeaseStoreFailed(self.now_s, "no broker answers")
        elif isinstance(question, leases.WriteHeartbeat):
            answer = leases.HeartbeatWritten(self.now_s)
        else:
            answer = leases.LeaseStoreRead(self.now_s, self.simulation.heartbeat())
        self.answer = answer, self.now_s

    def hear_from_lease_store(self) -> None:
        """The answer, which says how the lease store was: meanwhile this host may have been paused."""
        assert self.answer is not None
        (answer, at_s), self.answer = self.answer, None
        if not isinstance(answer, leases.LeaseStoreFailed):
            self.saw_lease_store_at_s = at_s
        self.tell_lease(replace(answer, now_s=self.now_s))


class Simulation:
    """See the module."""

    def __init__(self, high: int, low: int) -> None:
        self.chances = random.Random(high * NUMBERS + low)
        self.happened: Counter[str] = Counter()
        self.lease_store: str | None = None
        self.lease_store_is_away = False
        self.lost_answers = 0.0
        self.promptness = 0.7  # of the lease store and the way to it, at each step
        self.offsets: dict[int, str] = {}
        self.commits: dict[int, str] = {}
        self.log = SeenLog()
        self.sink = MemorySink(self.log)
        self.checked = 0
        self.is_in_between = False
        self.hosts = [Host(self, name, self.chances.choice((0.8, 1.0, 1.25))) for name in ("a", "b")]

    def heartbeat(self) -> Heartbeat | None:
        return None if self.lease_store is None else heartbeat_in(self.lease_store)

    # --- a driver -----------------------------------------------------------------------------------------------------
    def launch(self, host: Host, number: int) -> Driver:
        driver = Driver(f"{host.name}-{host.started}-{number}-{self.happened['launched']}", number)
        self.happened["launched"] += 1
        driver.program = self.program(driver)
        return driver

    def program(self, driver: Driver) -> Iterator[None]:
        """Warm, wait, claim, run, say."""
        for _ in range(self.chances.randrange(20)):
            driver.say(DriverReport.ALIVE)
            yield
            if driver.is_called:
                break
        driver.say(DriverReport.ARMED)
        while not driver.is_called:
            if driver.is_to_stop:
                driver.end = STOPPED
                return
            driver.say(DriverReport.ALIVE)
            yield
        try:
            yield from self.query(driver)
        except FencedError as error:
            self.happened["superseded" if isinstance(error, SupersededError) else "log taken"] += 1
            driver.end = end_by(error)
        except HeadraceError as error:
            self.happened["driver failed"] += 1
            driver.end = end_by(error)

    def query(self, driver: Driver) -> Iterator[None]:
        """Spark's loop, which reads the logs once. The job's name is known once a batch was planned: the checkpoint says it."""
        if self.offsets:
            self.refuse_copy(driver)
            yield from self.asking(driver, ClaimRequested())
        driver.say(DriverReport.BEGAN)
        batch, planned = max(self.commits, default=-1) + 1, max(self.offsets, default=-1)
        while not driver.is_to_stop:
            yield from self.batch(driver, batch, planned)
            driver.say(DriverReport.BATCHES)
            batch += 1
        driver.end = STOPPED

    def refuse_copy(self, driver: Driver) -> None:
        """Others continue between any two of its looks."""

        def last_batch() -> int | None:
            self.go_on_in_between(driver)
            found = max(self.offsets, default=None)
            self.go_on_in_between(driver)
            return found

        logs: Any = CheckpointLogs(self.offsets, self.commits)
        StreamWriter(self.sink, ["value"], logs, driver.name)._refuse_copy(JOB, last_batch)

    def go_on_in_between(self, driver: Driver) -> None:
        """The other drivers, in the middle of what this one does."""
        if self.is_in_between:
            return
        self.is_in_between = True
        for host in self.hosts:
            for other in list(host.drivers.values()) if host.is_on and not host.is_paused else ():
                for _ in range(self.chances.randrange(20)):
                    if other is not driver and other.is_alive and not other.hangs:
                        other.is_alive = next(other.program, other) is not other
        self.is_in_between = False

    def batch(self, driver: Driver, batch: int, planned: int) -> Iterator[None]:
        """One of a query that has found `planned` as the last one in the offset log: up to that it is a replay."""
        if batch > planned:
            driver.say(DriverReport.ALIVE)
            yield
            self.create(self.offsets, batch, driver)
        driver.say(DriverReport.ALIVE)
        driver.has_planned = True
        yield
        driver.has_planned = False
        recorded = copy.copy(_Recorded(self.sink, driver.name))  # as when Spark pickles it, before its tasks start
        handles = yield from self.tasks(driver, batch, recorded)
        content = self.offsets[batch]
        recorded.refuse(JOB, batch, content)
        yield from self.asking(driver, CommitRequested(batch, handles, content))
        self.create(self.commits, batch, driver)

    def create(self, log: dict[int, str], batch: int, driver: Driver) -> None:
        """Atomically: CONCURRENT_STREAM_LOG_UPDATE for the second."""
        if batch in log:
            raise FencedError(f"batch {batch} is in the log already")
        log[batch] = driver.name

    def tasks(self, driver: Driver, batch: int, recorded: _Recorded) -> Iterator[None]:
        """What a replay reads is what was planned."""
        try:
            recorded.refuse(JOB, batch, None)
        except SupersededError:
            self.happened["orphaned"] += 1
            raise
        if (last := recorded.of(JOB)) is not None and last.epoch == batch:
            return ()
        handles = []
        for row in range(ROWS):
            transaction = self.sink.begin(Attempt(JOB, batch, row, self.chances.randrange(1 << 30)))
            transaction.write(batch_of([f"{batch}:{row}"]))
            driver.say(DriverReport.ALIVE)
            yield
            handles.append(transaction.prepare())
        return tuple(handles)

    def asking(self, driver: Driver, request: Any) -> Iterator[None]:
        """As `writers._while_owner` does: one that was fenced fences again, and continues if the job is its own."""
        committer = None
        for _ in range(20):
            committer = SteppedCommitter(self.sink, driver.name)
            try:
                committer.request(request)
                while committer.commands:
                    driver.say(DriverReport.ALIVE)
                    yield
                    self.perform(driver, committer)
                return
            except SupersededError:
                raise
            except FencedError:
                self.happened["fenced, and asks again"] += 1
        raise FencedError("fenced without end")

    def perform(self, driver: Driver, committer: JobCommitter[Any]) -> None:
        before = self.log.stored().get(JOB)
        committer.step()  # type: ignore[attr-defined]
        if self.log.stored().get(JOB) != before:
            claim = self.log.claim()
            owner = None if claim is None else claim.driver_id
            assert owner == driver.name, f"{driver.name} has written the list of a job that is {owner}'s"

    # --- what must be true --------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Nothing of a batch that is done is lost. That nothing is visible twice is seen by the log."""
        if len(self.commits) == self.checked:
            return
        done = islice(self.commits, self.checked, None)
        lost = [f"{batch}:{row}" for batch in done for row in range(ROWS) if f"{batch}:{row}" not in self.log.seen]
        assert not lost, f"rows are lost: {lost}"
        self.checked = len(self.commits)

    # --- what happens -------------------------------------------------------------------------------------------------
    def step(self) -> None:
        """A moment: each host gets on by some of it, in any order."""
        chance = self.chances.random
        passed_s = chance() * MOMENT_S
        for host in self.hosts if chance() < 0.5 else reversed(self.hosts):
            host.now_s += passed_s * host.speed
            if host.is_paused or not host.is_on:
                continue
            for driver in host.drivers.values():
                if driver.is_alive and not driver.hangs and chance() < 0.8:
                    driver.is_alive = next(driver.program, driver) is not driver
            if host.asked and chance() < self.promptness:
                host.reach_lease_store()
            if host.answer is not None and chance() < self.promptness:
                host.hear_from_lease_store()
            if host.is_on and chance() < 0.7:
                host.step()
        self.check()

    def go_on(self, steps: int) -> None:
        for _ in range(1 + steps // 2):
            self.step()

    def host(self) -> Host:
        return self.chances.choice(self.hosts)

    def pause(self) -> None:
        """And continues later: see `wake`."""
        self.host().is_paused = True
        self.happened["paused"] += 1

    def pause_in_a_batch(self) -> None:
        """A host whose driver has planned a batch, and has yet to look what is recorded."""
        self._pause_one("batch", lambda host: any(driver.has_planned for driver in host.drivers.values()))

    def pause_in_a_look(self) -> None:
        """A host that leads, once the lease store has been asked, and before it has heard the answer."""
        self._pause_one("check", lambda host: host.answer is not None and host.lease.phase is LeasePhase.LEADING)

    def _pause_one(self, where: str, is_there: Callable[[Host], bool]) -> None:
        for _ in range(40):
            self.step()
            if there := [*filter(is_there, self.hosts)]:
                self.chances.choice(there).is_paused = True
                self.happened[f"paused in a {where}"] += 1
                return

    def wake(self) -> None:
        for host in self.hosts:
            host.is_paused = False

    def cut_off(self) -> None:
        self.host().is_cut_off = True
        self.happened["isolated"] += 1

    def heal(self) -> None:
        for host in self.hosts:
            host.is_cut_off = False
        self.lease_store_is_away, self.lost_answers = False, 0.0

    def take_lease_store_away(self) -> None:
        self.lease_store_is_away = True
        self.happened["lease store away"] += 1

    def lose_answers(self) -> None:
        self.lost_answers = 0.4

    def wipe_lease_store(self) -> None:
        """Its topic was deleted, or its offsets have expired."""
        self.lease_store = None
        self.happened["lease store wiped"] += 1

    def power_off(self) -> None:
        host = self.host()
        if host.is_on:
            host.is_on = False
            host.drivers.clear()
            self.happened["power lost"] += 1

    def power_on(self) -> None:
        for host in self.hosts:
            if not host.is_on:
                host.is_paused = False
                host.start()

    def hit_driver(self) -> None:
        """It is killed, or hangs."""
        found = [driver for host in self.hosts for driver in host.drivers.values() if driver.is_alive]
        if found:
            driver = self.chances.choice(found)
            driver.is_alive = self.chances.random() < 0.3
            driver.hangs = driver.is_alive
            self.happened["driver hangs" if driver.hangs else "driver killed"] += 1

    def terminate(self) -> None:
        """SIGTERM, and sometimes a second one, which ends a leader's driver in the middle of its batch."""
        host = self.host()
        for _ in range(self.chances.randrange(1, 3)):
            if host.is_on and not host.is_paused:
                host.stop()
                self.happened["SIGTERM"] += 1

    def jump(self) -> None:
        """A host's clock continues by an hour: it was suspended."""
        self.host().now_s += 3600.0

    # --- the end ------------------------------------------------------------------------------------------------------
    def drain(self) -> None:
        """Nothing is wrong any more: the job gets on, one host leads and the other follows, and so it stays."""
        self.wake()
        self.heal()
        self.promptness = 1.0
        self._settle()
        leader, follower = sorted(self.hosts, key=lambda host: host.lease.phase is not LeasePhase.LEADING)
        for self.lease_store_is_away, steps in ((True, AWAY_STEPS), (False, BACK_STEPS)):
            self._gets_on(steps)
            assert leader.lease.phase is LeasePhase.LEADING, "a healthy leader does not stay"
            assert self.is_settled(), "a follower does not stay"
        leader.is_on = False
        leader.drivers.clear()
        self._gets_on(0)
        assert follower.lease.phase is LeasePhase.LEADING, "no process leads in place of one that is dead"

    def go_on_a_little(self, steps: int) -> None:
        self.go_on(steps % 8)

    def _settle(self) -> None:
        steps = batches = 0
        for _ in range(CALM_STEPS):
            self.step()
            self.power_on()
            steps, batches = (steps + 1, batches) if self.is_settled() else (0, len(self.commits) + SHADOW_BATCHES)
            if steps >= SHADOW_STEPS and len(self.commits) >= batches:
                return
        raise AssertionError(f"they do not resolve: {[(h.lease.phase.name, h.lease.term) for h in self.hosts]}")

    def _gets_on(self, steps: int) -> None:
        """For so long, and until a batch has ended."""
        before = len(self.commits)
        for number in range(CALM_STEPS):
            self.step()
            if number >= steps and len(self.commits) > before:
                return
        raise AssertionError("the job does not get on")

    def is_settled(self) -> bool:
        """One leads, and its driver runs the job; the other one follows, with a warm driver."""
        seen = [
            (host.lease.phase, number == host.core.called, lifetime.phase, host.drivers[number].hangs)
            for host in self.hosts
            for number, lifetime in host.core.drivers.items()
            if host.is_on
        ]
        return len(seen) == len(SETTLED) and set(seen) == SETTLED


_FAULTS = {
    "pause": 3, "pause_in_a_batch": 2, "pause_in_a_look": 3, "wake": 3, "cut_off": 2, "heal": 3, "take_lease_store_away": 1,
    "lose_answers": 1, "wipe_lease_store": 1, "power_off": 1, "power_on": 2, "hit_driver": 2, "terminate": 2, "jump": 1,
}  # fmt: skip

HOSTS = Adversary(
    "hosts", Simulation, 2, ({"go_on": 14, **_FAULTS}, {"go_on": 6, "go_on_a_little": 12, **_FAULTS}), longest=60,
    actions=by_chance(Simulation, _FAULTS),
)  # fmt: skip
