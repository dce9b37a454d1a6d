"""mutmut, with deadlines that neither a busy machine nor a paused run reaches: `patient.py run ...`, as `mutmut run ...`.

By itself mutmut ends a mutant after seconds of the clock, and takes it for killed by a timeout. Here its limit of processor
time is what ends one that goes round in a loop; one that waits for what never comes is ended after as many seconds of sleep.
These are counted by looks at it, and nothing looks while the run is stopped (SIGSTOP). What was under way then has no result,
because the tests' own deadlines have passed: it is ended so that mutmut says so, and `run.py` runs it again.
"""

import signal
import threading
import time
from dataclasses import dataclass, field

import psutil

LOOK_S = 1.0
PAUSED_S = 10.0
"""Longer than this between two looks: this process was stopped, and those it has started, too."""


@dataclass
class Watched:
    """A mutant under test. `limit`: this many looks at which it sleeps, and has not run since the look before."""

    process: psutil.Process
    limit: float
    slept: int = 0
    _ran_s: float = field(default=0.0, repr=False)

    def sleeps_for_ever(self) -> bool:
        """Looks at it again. Raises psutil.NoSuchProcess when it is over."""
        times = self.process.cpu_times()
        ran_s = times.user + times.system
        asleep = self.process.status() == psutil.STATUS_SLEEPING and ran_s == self._ran_s
        self._ran_s = ran_s
        self.slept = self.slept + 1 if asleep else 0
        return self.slept * LOOK_S >= self.limit


class Watch:
    """What mutmut calls instead of its own deadlines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[Watched] = []

    def register(self, pid: int, timeout_s: float) -> None:
        """In mutmut's process, by its thread, of each mutant."""
        with self._lock:
            self._watched.append(Watched(psutil.Process(pid), timeout_s))

    def look(self, since_last_s: float) -> None:
        """At all of them. SIGXCPU is what mutmut calls a timeout, and SIGKILL what it has no result of."""
        with self._lock:
            self._watched = [watched for watched in self._watched if self._goes_on(watched, since_last_s)]

    def _goes_on(self, watched: Watched, since_last_s: float) -> bool:
        try:
            if since_last_s > PAUSED_S:
                watched.process.send_signal(signal.SIGKILL)
                return False
            if watched.sleeps_for_ever():
                watched.process.send_signal(signal.SIGXCPU)
                return False
            return watched.process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def for_ever(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(LOOK_S)
            now = time.monotonic()
            self.look(now - last)
            last = now


def main() -> None:
    from mutmut.__main__ import cli
    from mutmut.workers import isolation

    watch = Watch()
    isolation.register_timeout = watch.register
    threading.Thread(target=watch.for_ever, name="watch of mutants", daemon=True).start()
    cli()


if __name__ == "__main__":
    main()
