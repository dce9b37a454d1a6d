"""The simulation of commit and recovery (`tests.simulation.commit`), with a mix that goes far in a few steps."""

from headrace.enumerator.errors import HeadraceError
from tests.simulation.commit import CommitSimulation
from tests.simulation.search import Adversary


class CommitSimulation(CommitSimulation):
    """The simulation of commits, with whole epochs."""

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
        """As it is; an error then is a job that is still."""
        try:
            super().drain()
        except HeadraceError as error:
            raise AssertionError(f"the job does not continue: {type(error).__name__}: {error}") from error


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
