"""Beam's writing shards under Flink's checkpoints and savepoints (`checkpoint_simulator`), as histories of steps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from headrace.runners.beam.shard import Shard
from tests.simulation.bugs import shards
from tests.simulation.checkpoints import Engine
from tests.simulation.checkpoints import World as ShardSimulation
from tests.simulation.search import NUMBERS, Adversary

_shard: list[type[Shard[Any]]] = [Shard]


class ShardWorld(ShardSimulation):
    """The simulation, under the options of Flink that are accepted; its chances are taken from an action's numbers."""

    def __init__(self) -> None:
        super().__init__(random.Random(0), _shard[0], Engine())

    @property
    def happened(self) -> Counter[str]:  # type: ignore[override]
        """By how often."""
        return self._happened

    @happened.setter
    def happened(self, value: dict[str, int]) -> None:
        self._happened = Counter(value)

    def drain(self) -> None:
        """Time without trouble."""
        self.finish()


def _taking(action: Callable[[ShardSimulation], None]) -> tuple[Callable[..., None], int]:
    def act(world: ShardWorld, high: int, low: int) -> None:
        world.random = random.Random(high * NUMBERS + low)
        action(world)

    return act, 2


_OFTEN = dict.fromkeys(("write", "beat", "barrier", "complete", "notification"), 3)
_SELDOM = dict.fromkeys(("savepoint", "abort", "crash", "expire", "time"), 1)

SHARDS = Adversary(
    "shards",
    ShardWorld,
    0,
    {name: _taking(getattr(ShardSimulation, name)) for name in (*_OFTEN, *_SELDOM, "zombie")},
    ({**_OFTEN, **_SELDOM, "zombie": 2}, {**_OFTEN, **_SELDOM, "write": 6, "crash": 3, "zombie": 4, "expire": 2}),
    longest=90,
)


def _planted(shard: type[Shard[Any]]) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def planted() -> Iterator[None]:
        _shard[0] = shard
        try:
            yield
        finally:
            _shard[0] = Shard

    planted.__name__, planted.__doc__ = shard.__name__, shard.__doc__
    return planted


PLANTED = tuple(_planted(shard) for shard in shards.PLANTED)
"""Those of `planted_shards`."""
