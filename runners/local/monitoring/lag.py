"""How far a run is behind its source: the ends of its splits, asked now and then, less the positions of the last checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.source import LogSource, Source

log = logging.getLogger(__name__)

ASK_S = 1.0
"""The ends are asked once a checkpoint, and not more often than this."""

ASK_SHARE = 0.05
"""Asking takes at most this share of the time: with ten thousand splits it is seldom once a second."""

STALE_S = 30.0
"""Without a checkpoint for so long, or two of the longest waits, they are asked again: the lag of a run that hangs grows."""


@dataclass(frozen=True, slots=True)
class RunLag:
    """Split id -> how many offsets lie between the position in the last checkpoint and the end; and when the ends were asked.

    `at_s` is in seconds of the epoch. Splits that are read to their end are left out.
    """

    at_s: float
    splits: dict[str, int]

    @property
    def records(self) -> int:
        return sum(self.splits.values())


class LagWatch:
    """Owned by the coordinator's main thread. `lag` may be read by any thread, and is set by the one that asks."""

    def __init__(
        self,
        source: Source[Any],
        restored: Checkpoint[Any] | None,
        wait_s: float,
        in_thread: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`restored`: the checkpoint that the run continues from. `wait_s`: from one checkpoint to the next, at most.

        `in_thread` calls what it is given, once, in another thread. `clock` gives monotonic seconds, `wall_clock` those of the
        epoch. Does no I/O; of a source that is not a log its measures are asked only.
        """
        self._source = source
        self._is_asked = type(source).lag is not Source.lag or type(source).measures is not Source.measures
        self._timeout_s = max(STALE_S, 2 * wait_s)
        self._in_thread, self._clock, self._wall_clock = in_thread, clock, wall_clock
        self._positions: Sequence[Any] = () if restored is None else _unfinished(restored)
        self._asked_s = float("-inf")
        self._took_s = 0.0
        self._asking = False
        self.lag: RunLag | None = None
        """None while it is not known: before the first checkpoint, or when the source did not answer the last time."""
        self.measures: Mapping[str, float] = {}
        """`Source.measures`; none while they are not known."""

    def moved(self, checkpoint: Checkpoint[Any]) -> None:
        self._positions = _unfinished(checkpoint)
        if not self._positions and (isinstance(self._source, LogSource) or self.lag is not None):
            self.lag = RunLag(self._wall_clock(), {})
        self._ask_after(min(self._timeout_s, max(ASK_S, self._took_s / ASK_SHARE)))

    def look(self) -> None:
        """Called again and again: whether the ends were asked too long ago."""
        self._ask_after(self._timeout_s)

    def _ask_after(self, pause_s: float) -> None:
        now_s = self._clock()
        source, positions = self._source, self._positions
        if not self._is_asked or self._asking or not positions or now_s - self._asked_s < pause_s:
            return
        self._asked_s, self._asking = now_s, True
        self._in_thread(lambda: self._ask(source, positions))

    def _ask(self, source: Source[Any], positions: Sequence[Any]) -> None:
        try:
            behind = source.lag(positions)
            self.lag = None if behind is None else RunLag(self._wall_clock(), dict(behind))
            self.measures = source.measures()
        except Exception as error:  # noqa: BLE001 - what is wrong with the source is for the readers to say
            log.debug("the lag is not known now: %s", error)
            self.lag, self.measures = None, {}
        finally:
            self._took_s = self._clock() - self._asked_s
            self._asking = False


def _unfinished(checkpoint: Checkpoint[Any]) -> list[Any]:
    return [state.split for state in checkpoint.splits if not state.finished]
