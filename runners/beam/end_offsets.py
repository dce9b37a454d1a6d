"""Where the records of splits end: for the backlog, and to tell a split that is caught up from one that is slow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from apache_beam.utils.timestamp import Timestamp

from headrace.enumerator.source_driver import can_pass
from headrace.enumerator.split import SplitT

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndSeen:
    """Where a split's records end, and when that was asked, in epoch time: what was written by then has lower offsets."""

    offset: int
    asked: Timestamp


class Ends(Generic[SplitT]):
    """Where splits end: looked up in its own thread, so that no call ever waits for what is only a hint. Thread-safe.

    By the split's id, which the parts of a divided split have in common: so what is asked is where the records of the whole
    split end, and no split that is asked for has a stop.

    A look-up that fails for a reason that is transient is left out; any other failure is raised by the next `of`.
    """

    def __init__(self) -> None:
        """Nothing is known; the thread starts with the first question, and is gone when there is none."""
        self._condition = threading.Condition()
        self._known: dict[str, EndSeen] = {}
        self._asked: dict[str, SplitT] = {}
        self._failure: Exception | None = None
        self._looking = False

    def of(self, split_id: str) -> EndSeen | None:
        with self._condition:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return self._known.get(split_id)

    def offset(self, split_id: str) -> int | None:
        """The last answer's offset, for the backlog. Raises nothing."""
        end = self._known.get(split_id)
        return None if end is None else end.offset

    def ask(self, splits: Sequence[SplitT], look: Callable[[Sequence[SplitT]], Mapping[str, int]]) -> None:
        """Have these looked up soon. Returns at once."""
        with self._condition:
            self._asked.update((split.split_id, split) for split in splits)
            if self._looking or not self._asked:
                return
            self._looking = True
        threading.Thread(target=self._run, args=(look,), name="headrace-beam-ends", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Until every question is answered or has failed; false after the timeout. For tests."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._looking, timeout_s)

    def _run(self, look: Callable[[Sequence[SplitT]], Mapping[str, int]]) -> None:
        while True:
            with self._condition:
                splits, self._asked = list(self._asked.values()), {}
                if not splits:
                    self._looking = False
                    self._condition.notify_all()
                    return
            now, failure = Timestamp.now(), None
            ends: Mapping[str, int] = {}
            try:
                ends = look(splits)
            except Exception as error:  # noqa: BLE001 - raised by the next `of`
                if can_pass(error):
                    log.debug("where splits end is not known now: %s", error)
                else:
                    failure = error
            with self._condition:
                self._known.update((split_id, EndSeen(offset, now)) for split_id, offset in ends.items())
                self._failure = failure or self._failure
