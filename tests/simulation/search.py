"""Search by random schedules: a simulation, what may happen in it, how often; and a failing schedule made short.

A schedule is data: numbers for the simulation's beginning, then named actions with numbers. An action takes any numbers and
does nothing where it does not apply, so a schedule with steps left out is a history too: that is how one is made short. The
same seed gives the same history.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from typing import Any, Protocol

Numbers = tuple[int, ...]
Step = tuple[str, Numbers]
Action = tuple[Callable[..., None], int]
NUMBERS = 64
"""Numbers are drawn below this."""


class Simulation(Protocol):
    """One history's simulation. An action and both methods raise when a promise is broken."""

    happened: Counter[str]

    def check(self) -> None:
        """What is true at any moment."""

    def drain(self) -> None:
        """No faults any more: everything must be done in the end."""


@dataclass(frozen=True)
class Schedule:
    """`setup`: for the simulation's beginning. `steps`: what happens then, in this order."""

    setup: Numbers
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Adversary:
    """`begin` makes a simulation of `setup` numbers. An action is its method of that name, or what `actions` maps the name to.

    `mixes` are weights of actions: a schedule is drawn from one of them, one after another. Its steps are `longest` at most.
    `around` holds while a schedule is played. `actions`: what each does, and how many numbers it takes.
    """

    name: str
    begin: Callable[..., Simulation]
    setup: int
    mixes: Sequence[Mapping[str, int]]
    longest: int = 120
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    actions: Mapping[str, Action] = field(default_factory=dict)

    def action(self, name: str) -> Action:
        """What it does, and how many numbers it takes."""
        if name in self.actions:
            return self.actions[name]
        method = getattr(self.begin, name)
        return method, _numbers_of(method)

    def draw(self, seed: int) -> Schedule:
        dice = random.Random(seed)
        mix = self.mixes[seed % len(self.mixes)]
        setup = tuple(dice.randrange(NUMBERS) for _ in range(self.setup))
        names = dice.choices(list(mix), list(mix.values()), k=dice.randint(5, self.longest))
        return Schedule(
            setup, tuple((name, tuple(dice.randrange(NUMBERS) for _ in range(self.action(name)[1]))) for name in names)
        )

    def play(self, schedule: Schedule) -> Counter[str]:
        """What happened in it, by how often. Raises what is raised where a promise is broken."""
        with self.around():
            simulation = self.begin(*schedule.setup)
            for name, numbers in schedule.steps:
                self.action(name)[0](simulation, *numbers)
                simulation.check()
            simulation.drain()
            return simulation.happened

    def search(self, first: int, count: int) -> Counter[str]:
        """Play the schedules of these seeds; what happened in them. Raises BrokenScheduleError at the first that fails."""
        total: Counter[str] = Counter()
        for seed in range(first, first + count):
            try:
                total.update(self.play(self.draw(seed)))
            except Exception as error:
                raise BrokenScheduleError(self, seed, error) from error
        return total


def taking(*actions: Callable[..., None]) -> dict[str, Action]:
    """Functions as actions, by their names without an underscore in front: each takes the numbers that are its parameters."""
    return {action.__name__.lstrip("_"): (action, _numbers_of(action)) for action in actions}


def by_chance(simulation: type[Any], names: Iterable[str], dice: str = "chances") -> dict[str, Action]:
    """Methods that take no numbers, but roll the simulation's `dice`: these are made of two numbers."""

    def action(method: Callable[[Any], None]) -> Callable[[Any, int, int], None]:
        def act(simulation: Any, high: int, low: int) -> None:
            setattr(simulation, dice, random.Random(high * NUMBERS + low))
            method(simulation)

        return act

    return {name: (action(getattr(simulation, name)), 2) for name in names}


@cache
def _numbers_of(action: Callable[..., None]) -> int:
    return len(signature(action).parameters) - 1


class BrokenScheduleError(AssertionError):
    """A schedule in which a promise is broken."""

    def __init__(self, adversary: Adversary, seed: int, error: Exception) -> None:
        super().__init__(f"history {seed} of {adversary.name}: {type(error).__name__}: {error}")
        self.adversary = adversary
        self.seed = seed
        self.error = error


def _fails(adversary: Adversary, schedule: Schedule, kind: type[Exception]) -> bool:
    try:
        adversary.play(schedule)
    except Exception as error:  # noqa: BLE001 - whatever the simulation or the code raises
        return type(error) is kind
    return False


def shortened(adversary: Adversary, schedule: Schedule, kind: type[Exception]) -> Schedule:
    """A schedule that fails in the same way, without what does not matter: steps left out, numbers made 0."""
    size = max(1, len(schedule.steps) // 2)
    while size:
        start = 0
        while start < len(schedule.steps):
            shorter = Schedule(schedule.setup, schedule.steps[:start] + schedule.steps[start + size :])
            if _fails(adversary, shorter, kind):
                schedule = shorter
            else:
                start += size
        size //= 2
    for simpler in _simpler(schedule):
        candidate = simpler(schedule)
        if _fails(adversary, candidate, kind):
            schedule = candidate
    return schedule


def _simpler(schedule: Schedule) -> Iterator[Callable[[Schedule], Schedule]]:
    for position in range(len(schedule.setup)):
        yield lambda h, p=position: Schedule(_zeroed(h.setup, p), h.steps)  # type: ignore[misc]
    for number, (_, numbers) in enumerate(schedule.steps):
        for position in range(len(numbers)):
            yield lambda h, n=number, p=position: Schedule(h.setup, _step_zeroed(h.steps, n, p))  # type: ignore[misc]


def _zeroed(numbers: Numbers, position: int) -> Numbers:
    return (*numbers[:position], 0, *numbers[position + 1 :])


def _step_zeroed(steps: tuple[Step, ...], number: int, position: int) -> tuple[Step, ...]:
    name, numbers = steps[number]
    return (*steps[:number], (name, _zeroed(numbers, position)), *steps[number + 1 :])


def as_test(adversary: Adversary, schedule: Schedule, name: str) -> str:
    """The schedule as the text of a test."""
    steps = "".join(f"        {step!r},\n" for step in schedule.steps)
    return f"def test_{name}():\n    {adversary.name.upper()}.play(Schedule({schedule.setup!r}, (\n{steps}    )))\n"
