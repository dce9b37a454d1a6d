"""The simulation of standbys: supervisors, drivers, a checkpoint; anything is killed, stopped or continued at any step.

Run for real: `StandbyCore` and the steps of the lock (`taking`). Played: processes, the kernel's lock, Spark's query on a store
whose renames replace what is there (a local file system), and the clock. A process tree is a driver's own process and its JVM;
that exists on for a while when the other dies, as Spark's does.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from headrace.enumerator.errors import FencedError
from headrace.runners.restarts import FixedDelay
from headrace.runners.spark.supervision import core as supervision
from headrace.runners.spark.supervision import lock as locks
from headrace.runners.spark.supervision import standby
from headrace.runners.spark.supervision.core import DriverEnd, Ending, SupervisionLimits
from headrace.runners.spark.supervision.process_tree import Process
from headrace.runners.spark.supervision.standby import DriverPhase, DriverReport, StandbyCore, StandbyLimits
from tests.simulation.search import NUMBERS, Adversary, by_chance

KILLED = DriverEnd(Ending.FAILED, "the driver was killed by SIGKILL")
STEPS, CALM_STEPS = 600, 1500
STEADY_STEPS = 100
"""Some tens of seconds."""


class TwoAtWorkError(AssertionError):
    """Two drivers ran the job at the same time, or one touched what it must not."""


@dataclass(eq=False)
class Played:
    """A process. `program` continues by a step at a time, unless it is stopped or dead."""

    name: str
    program: Iterator[None]
    is_alive: bool = True
    is_stopped: bool = False

    def step(self) -> None:
        if self.is_alive and not self.is_stopped:
            try:
                next(self.program)
            except StopIteration:
                self.is_alive = False


@dataclass(eq=False)
class ProcessTree:
    """A driver's processes, and what it has been reported and says."""

    name: str
    supervisor: "Supervisor"
    number: int
    main: Played = field(init=False)
    jvm: Played | None = None
    is_called: bool = False
    is_to_stop: bool = False
    said: list[DriverReport] = field(default_factory=list)
    end: DriverEnd = KILLED

    @property
    def processes(self) -> list[Played]:
        main, jvm = self.main, self.jvm
        if jvm is None or not jvm.is_alive:
            return [main] if main.is_alive else []
        return [main, jvm] if main.is_alive else [jvm]


class Supervisor:
    """The process of a supervisor around a `StandbyCore`."""

    def __init__(self, simulation: "Simulation", pid: int, standbys: int) -> None:
        self.simulation = simulation
        self.me = Process(pid, pid)
        self.core = StandbyCore(FixedDelay(attempts=10_000, delay_s=3.0), SupervisionLimits(), StandbyLimits(standbys, 10.0))
        self.trees: dict[int, ProcessTree] = {}
        self.is_stopped = False
        self.is_alive = True
        self.end: DriverEnd | None = None

    def begin(self) -> None:
        self.tell(supervision.SupervisionStarted(self.simulation.now_s))

    def tell(self, event: standby.StandbyEvent) -> None:
        for command in self.core.handle(event):
            match command:
                case standby.Launch(number):
                    self.trees[number] = self.simulation.launch(self, number)
                case standby.CallDriver(number):
                    self.trees[number].is_called = True
                case standby.Stop(number):
                    self.trees[number].is_to_stop = True
                case standby.Kill(number):
                    self.simulation.kill_tree(self.trees[number].name)
                case standby.Finish(end):
                    assert not self.trees
                    self.end, self.is_alive = end, False

    def step(self) -> None:
        for number, tree in list(self.trees.items()):
            while tree.said and self.is_alive:
                self.tell(standby.DriverReported(number, self.simulation.now_s, tree.said.pop(0)))
            if not tree.main.is_alive and self.is_alive:
                self.simulation.kill_tree(tree.name)
                del self.trees[number]
                self.tell(standby.DriverDied(number, self.simulation.now_s, tree.end, self.simulation.chances.random()))
        wake_at_s = self.core.wake_at_s
        if self.is_alive and wake_at_s is not None and self.simulation.now_s >= wake_at_s:
            self.tell(supervision.TimePassed(self.simulation.now_s))


class Simulation:
    """See the module. `standbys`: 0 to 2 for each supervisor. `faults`: how many there may be before it gets calm."""

    def __init__(self, seed: int, faults: int = 30) -> None:
        self.chances = random.Random(seed)
        self.faults = faults
        self.now_s = 0.0
        self.supervisors: list[Supervisor] = []
        self.trees: dict[str, ProcessTree] = {}
        self.living: list[ProcessTree] = []  # and some that have died since the last step
        self.flock: Played | None = None
        self.last: str | None = None
        self.offsets: dict[int, str] = {}
        self.commits: dict[int, str] = {}
        self.takeovers = 0
        self.happened: Counter[str] = Counter()

    # --- what processes do --------------------------------------------------------------------------------------------
    def launch(self, supervisor: Supervisor, number: int) -> ProcessTree:
        tree = ProcessTree(f"{supervisor.me.pid}-{supervisor.me.started}-0-{number}", supervisor, number)
        tree.main = Played(tree.name, self.driver(tree))
        self.trees[tree.name] = tree
        self.living.append(tree)
        return tree

    def driver(self, tree: ProcessTree) -> Iterator[None]:
        """A driver's own process: warm, wait, lock, start, watch."""
        for _ in range(self.chances.randrange(20)):
            yield
            tree.said.append(DriverReport.ALIVE)
            if tree.is_called:
                break
        if not tree.is_called:
            self.dry_run(tree)
            tree.said.append(DriverReport.ARMED)
        while not tree.is_called:
            tree.said.append(DriverReport.ALIVE)
            yield
        try:
            yield from self.lock(tree)
        except FencedError as error:
            tree.end = DriverEnd(Ending.FENCED, str(error))
            return
        tree.jvm = Played(f"{tree.name}'s JVM", self.query(tree))
        yield
        tree.said.append(DriverReport.BEGAN)
        while tree.jvm.is_alive:
            if not tree.jvm.is_stopped:
                tree.said.append(DriverReport.BATCHES)
            if tree.is_to_stop:
                tree.jvm.is_alive, tree.end = False, DriverEnd(Ending.STOPPED, "it was stopped")
            yield

    def dry_run(self, tree: ProcessTree) -> None:
        """On its own checkpoint: nothing of the simulation's is touched."""

    def lock(self, tree: ProcessTree) -> Iterator[None]:
        """The project's steps, with anything between any two of them."""
        steps = locks.taking(tree.name)
        step = next(steps)
        while True:
            answer = self.answer(tree, step)
            yield
            try:
                step = steps.send(answer)
            except StopIteration:
                return

    def answer(self, tree: ProcessTree, step: locks.LockStep) -> bool | str | None:
        match step:
            case locks.TryLock():
                if self.flock is None or not self.flock.is_alive:  # the kernel gives it up with its process
                    self.flock = tree.main
                return self.flock is tree.main
            case locks.WhoHolds():
                return self.flock.name if self.flock is not None and self.flock.is_alive else None
            case locks.LooksAlive(supervisor):
                return any(one.me == supervisor and one.is_alive for one in self.supervisors)
            case locks.KillProcessTree(name):
                self.kill_tree(name)
            case locks.ReadLast():
                return self.last
            case locks.WriteLast(name):
                self.last = name
            case locks.AskAgain():
                pass
        return None

    def query(self, tree: ProcessTree) -> Iterator[None]:
        """Spark's loop: read the checkpoint, then batch for batch. A write looks, and replaces what came since."""
        self.begin(tree)
        self.takeovers += 1
        batch = max(self.commits, default=-1) + 1
        lives_without_its_driver = self.chances.randrange(10)
        while lives_without_its_driver:
            if not tree.main.is_alive:
                lives_without_its_driver -= 1
            for log in (self.offsets, self.commits):
                is_there = batch in log
                yield
                if not is_there:
                    self.touch(tree)
                    log[batch] = tree.name
            yield
            batch += 1

    def begin(self, tree: ProcessTree) -> None:
        """This process tree starts to read the checkpoint. The lock of a dead driver may be another's that has not started."""
        if tree.main.is_alive and self.flock is not tree.main:
            raise TwoAtWorkError(f"{tree.name} is running without the lock")
        self.touch(tree)

    def touch(self, tree: ProcessTree) -> None:
        """This process tree is running with the checkpoint: no other may be, not even one that is stopped."""
        for other in self.living:
            if other is not tree and other.jvm is not None and other.jvm.is_alive:
                raise TwoAtWorkError(f"{tree.name} is running, and {other.name} is alive")

    # --- what happens to them -----------------------------------------------------------------------------------------
    def kill_tree(self, name: str) -> None:
        for process in self.trees[name].processes:
            process.is_alive = False

    def fault(self) -> None:
        what: Callable[[], None] = self.chances.choice([
            *(self.kill_one, self.kill_one, self.stop_one, self.stop_one, self.continue_one, self.jump),
            *(self.kill_supervisor, self.stop_supervisor, self.second_supervisor),
        ])  # fmt: skip
        what()

    def one(self) -> tuple[ProcessTree, Played] | None:
        found = [(tree, process) for tree in self.living for process in tree.processes]
        return self.chances.choice(found) if found else None

    def kill_one(self) -> None:
        if (found := self.one()) is not None:
            found[1].is_alive = False
            self.happened["killed"] += 1

    def stop_one(self) -> None:
        """A process, or the whole process tree."""
        if (found := self.one()) is not None:
            for process in self.chances.choice([[found[1]], found[0].processes]):
                process.is_stopped = True
            self.happened["stopped"] += 1

    def continue_one(self) -> None:
        if (found := self.one()) is not None:
            for process in found[0].processes:
                process.is_stopped = False
            self.happened["continued"] += 1

    def kill_supervisor(self) -> None:
        """Its scheduler starts another; its drivers are informed by the end of a pipe."""
        living = [one for one in self.supervisors if one.is_alive]
        if living:
            victim = self.chances.choice(living)
            victim.is_alive = False
            self.start_supervisor(victim.core._limits.standbys)
            self.happened["supervisor killed"] += 1

    def stop_supervisor(self) -> None:
        for one in self.supervisors:
            one.is_stopped = not one.is_stopped
        self.happened["supervisor stopped"] += 1

    def second_supervisor(self) -> None:
        if sum(one.is_alive for one in self.supervisors) == 1:
            self.start_supervisor(self.chances.randrange(2))
            self.happened["second supervisor"] += 1

    def jump(self) -> None:
        """The machine was stopped: everyone's monotonic clock has continued."""
        self.now_s += self.chances.choice([30.0, 3600.0])
        self.happened["jumped"] += 1

    def start_supervisor(self, standbys: int) -> None:
        self.supervisors.append(Supervisor(self, len(self.supervisors) + 1, standbys))
        self.supervisors[-1].begin()

    # --- a history ----------------------------------------------------------------------------------------------------
    def step(self) -> None:
        self.now_s += self.chances.random()
        for supervisor in self.supervisors:
            if supervisor.is_alive and not supervisor.is_stopped and self.chances.random() < 0.7:
                supervisor.step()
        self.living = [tree for tree in self.living if tree.processes]
        for tree in list(self.living):
            if not tree.supervisor.is_alive and tree.main.is_alive and not tree.main.is_stopped:
                self.kill_tree(tree.name)  # its thread that reads the pipe
            for process in tree.processes:
                if self.chances.random() < 0.8:
                    process.step()

    def run(self, standbys: int) -> None:
        """Faults at any step; then a calm time, in which the job has to get on. Raises TwoAtWorkError."""
        self.start_supervisor(standbys)
        for _ in range(STEPS):
            if self.faults and self.chances.random() < 0.05:
                self.faults -= 1
                self.fault()
            self.step()
        self.calm_down(standbys)

    def calm_down(self, standbys: int) -> None:
        """No faults any more: the job gets on, has its standbys, and keeps both; then it ends."""
        for supervisor in self.supervisors:
            supervisor.is_stopped = False
        if not any(one.is_alive for one in self.supervisors):
            self.start_supervisor(standbys)
        for asked in ("", "standbys do not stay"):  # at first there may be some that were stopped, and are not missed yet
            for _ in range(STEADY_STEPS):
                self.step()
            assert not asked or self.has_standbys(), asked
            self.get_on()
        self.end()

    def get_on(self) -> None:
        """Some batch ends, and all standbys wait."""
        before = len(self.commits)
        for _ in range(CALM_STEPS):
            self.step()
            if self.has_got_on(before) and self.has_standbys():
                return
        assert self.has_got_on(before), "the job does not get on"
        raise AssertionError("standbys do not come to wait")

    def has_got_on(self, before: int) -> bool:
        """Another batch than the first this many has ended, of a driver that its supervisor has, and that is not stopped."""
        trees = [self.trees[name] for name in islice(self.commits.values(), before, None)]
        return any(tree.supervisor.is_alive and not tree.main.is_stopped for tree in trees)

    def has_standbys(self) -> bool:
        """Whether all wait that there should be. Of two supervisors one may still be refused."""
        living = [one for one in self.supervisors if one.is_alive]
        waiting = [driver.phase for one in living for driver in one.core.standbys.values()]
        return len(living) == 1 and waiting == [DriverPhase.ARMED] * living[0].core._limits.standbys

    def end(self) -> None:
        """The job is instructed to stop: no process is left but those that are stopped, and whose supervisor is dead."""
        (living,) = [one for one in self.supervisors if one.is_alive]
        living.tell(supervision.JobStopRequested(self.now_s))
        for _ in range(100):
            self.step()
            left = [(tree, process) for tree in self.living for process in tree.processes]
            is_over = all(process.is_stopped and tree.supervisor is not living for tree, process in left)
            if is_over and living.end is not None:
                break
        assert living.end == DriverEnd(Ending.STOPPED, "it was stopped")
        assert is_over


class StandbySimulation(Simulation):
    """As a schedule of steps; chances are taken from an action's numbers. TwoAtWorkError is raised where it happens."""

    def __init__(self, standbys: int, high: int, low: int) -> None:
        super().__init__(high * NUMBERS + low)
        self.standbys = standbys % 3
        self.start_supervisor(self.standbys)

    def check(self) -> None:
        """See the class."""

    def drain(self) -> None:
        self.calm_down(self.standbys)
        self.happened["takeover"] += self.takeovers

    def go_on(self, steps: int) -> None:
        for _ in range(1 + steps):
            self.step()

    def go_on_a_little(self, steps: int) -> None:
        self.go_on(steps % 8)


_FAULTS = {
    "kill_one": 2, "stop_one": 2, "continue_one": 1, "jump": 1, "kill_supervisor": 1, "stop_supervisor": 1,
    "second_supervisor": 1,
}  # fmt: skip

STANDBY = Adversary(
    "standby", StandbySimulation, 3, ({"go_on": 9, **_FAULTS}, {"go_on": 3, "go_on_a_little": 9, **_FAULTS}), longest=40,
    actions=by_chance(Simulation, _FAULTS),
)  # fmt: skip
