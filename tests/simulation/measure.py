"""How many schedules it takes to find each injected bug: `python -m tests.simulation.measure` writes the table."""

from pathlib import Path

from tests.simulation.bugs.injecting import Injected
from tests.simulation.search import BrokenScheduleError
from tests.simulation.simulations import SIMULATIONS, Searched

TABLE = Path(__file__).parents[1] / "simulation" / "README.md"


def schedules_until_found(simulation: Searched, bug: Injected) -> int | None:
    """The number of the first schedule that fails; None when none of the simulation's `schedules` does."""
    with bug():
        try:
            simulation.adversary.search(0, simulation.schedules)
        except BrokenScheduleError as error:
            return error.seed + 1
    return None


def rows() -> list[str]:
    bugs = [(simulation, bug) for simulation in SIMULATIONS for bug in simulation.injected]
    found = [(simulation, bug, schedules_until_found(simulation, bug)) for simulation, bug in bugs]
    return [f"| {simulation.adversary.name} | `{bug.__name__}` | {number or 'missed'} |" for simulation, bug, number in found]


def main() -> None:
    lines = rows()
    text = (
        "# What search alone finds\n\n"
        "Each bug is put into the real code; random schedules are then played from seed 0 on until one breaks a promise.\n"
        "`python -m tests.simulation.measure` writes this table; `test_simulations.py` finds each of them again.\n"
        "The numbers vary a little with the order of sets, which is another in each run.\n\n"
        f"{len(lines)} injected bugs.\n\n| simulation | injected bug | schedules until it was found |\n|---|---|---|\n"
    )
    TABLE.write_text(text + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
