"""Beam's writing shards under Flink's checkpoints and savepoints (`tests.simulation.checkpoints`), as schedules of steps."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from headrace.runners.beam.shard import Shard
from tests.simulation.bugs import shards
from tests.simulation.bugs.injecting import Injected, bug
from tests.simulation.checkpoints import Engine, Simulation
from tests.simulation.search import Adversary, by_chance

_shard: list[type[Shard[Any]]] = [Shard]


class ShardSimulation(Simulation):
    """The simulation, under the options of Flink that are accepted; its chances are taken from an action's numbers."""

    def __init__(self) -> None:
        super().__init__(random.Random(0), _shard[0], Engine())

    @property
    def happened(self) -> Counter[str]:  # type: ignore[override]
        return self._happened

    @happened.setter
    def happened(self, value: dict[str, int]) -> None:
        self._happened = Counter(value)

    def drain(self) -> None:
        self.finish()


_OFTEN = dict.fromkeys(("write", "heartbeat", "barrier", "complete", "notification"), 3)
_SELDOM = dict.fromkeys(("savepoint", "abort", "crash", "expire", "time"), 1)

SHARDS = Adversary(
    "shards", ShardSimulation, 0,
    ({**_OFTEN, **_SELDOM, "zombie": 2}, {**_OFTEN, **_SELDOM, "write": 6, "crash": 3, "zombie": 4, "expire": 2}), longest=90,
    actions=by_chance(Simulation, (*_OFTEN, *_SELDOM, "zombie"), "random"),
)  # fmt: skip


def _injected(shard: type[Shard[Any]]) -> Injected:
    def injected() -> Iterator[None]:
        _shard[0] = shard
        try:
            yield
        finally:
            _shard[0] = Shard

    injected.__name__, injected.__doc__ = shard.__name__, shard.__doc__
    return bug(injected)


INJECTED = tuple(_injected(shard) for shard in shards.INJECTED)
"""Those of `bugs.shards`."""
