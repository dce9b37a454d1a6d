"""How many histories it takes to find each planted bug: `python -m tests.simulation.measure` writes the table."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.search import BrokenHistoryError
from tests.simulation.simulations import WORLDS, Planted, Searched

TABLE = Path(__file__).parents[1] / "simulation" / "README.md"


def histories_until_found(world: Searched, bug: Planted) -> int | None:
    """The number of the first history that fails; None when none of the world's `histories` does."""
    with bug():
        try:
            world.adversary.search(0, world.histories)
        except BrokenHistoryError as error:
            return error.seed + 1
    return None


def rows() -> list[str]:
    found = [(world, bug, histories_until_found(world, bug)) for world in WORLDS for bug in world.planted]
    return [f"| {world.adversary.name} | `{bug.__name__}` | {number or 'missed'} |" for world, bug, number in found]


def main() -> None:
    lines = rows()
    text = (
        "# What search alone finds\n\n"
        "Each bug is put into the real code; random histories are then played from seed 0 on until one breaks a promise.\n"
        "`python -m tests.simulation.measure` writes this table; `test_worlds.py` finds each of them anew.\n"
        "The numbers vary a little with the order of sets, which is another in each run.\n\n"
        f"{len(lines)} planted bugs.\n\n| world | planted bug | histories until it was found |\n|---|---|---|\n"
    )
    TABLE.write_text(text + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
