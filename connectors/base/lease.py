"""The contract of a lease: the supervisor that runs a job writes heartbeats into a lease store, which every host can read.

A lease store has one place for each job. It keeps the last *heartbeat* that was written there, and is not a lock: a write
replaces what is there, whoever wrote it, and two that write at once may both believe that they were the last. So a lease store
serves to find out soon that the job does not run any more. That no two supervisors run it for long, and that nothing comes of
it while they do, is ensured by the job's sink and checkpoint. Who leads is decided by the runner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from enum import StrEnum

from headrace.enumerator.envelope import Envelope, stored_number, stored_text

_HEARTBEAT = Envelope("headrace-lease", "lease")


class HeartbeatState(StrEnum):
    """Its writer runs the job (LEADING), was stopped or cannot run it (LEFT), or has seen its end, which is for all (OVER)."""

    LEADING = "leading"
    LEFT = "left"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a supervisor reports about itself. `term`: one more than the last leader's. `supervisor`: a name that no other has.

    `number`: of the heartbeats of this supervisor in this term, from 0. `host`: for people. `ending` and `reason`: how the job
    has ended, by `Ending`'s name, if it is over.
    """

    term: int
    supervisor: str
    number: int
    state: HeartbeatState
    host: str
    ending: str = ""
    reason: str = ""

    @property
    def rank(self) -> tuple[int, str]:
        return self.term, self.supervisor

    def serialize(self) -> str:
        return _HEARTBEAT.seal(asdict(self)).decode()


def parse_heartbeat(text: str, where: str) -> Heartbeat:
    """What `serialize` has made. Raises StateError, naming `where`, for anything else."""
    value = _HEARTBEAT.open(text, where)
    with _HEARTBEAT.reading(where):
        return Heartbeat(
            stored_number(value["term"]),
            stored_text(value["supervisor"]),
            stored_number(value["number"]),
            HeartbeatState(value["state"]),
            stored_text(value["host"]),
            stored_text(value["ending"]),
            stored_text(value["reason"]),
        )


class LeaseStore(ABC):
    """One job's place on a lease store. Used by one thread. Does no I/O before a method is called."""

    @property
    @abstractmethod
    def timeout_s(self) -> float:
        """A leader of which nothing new was seen for this many seconds is taken for dead. At least `LEAST_TIMEOUT_S`."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The place, in messages."""

    @abstractmethod
    def read(self) -> Heartbeat | None:
        """The last heartbeat; None where none was ever written. Returns, or raises, well before `timeout_s`.

        Raises RetriableError or DeadlineExceededError where the lease store cannot be asked now, and another PeerError,
        StateError or UsageError where that will not pass by itself.
        """

    @abstractmethod
    def write(self, heartbeat: Heartbeat) -> None:
        """Put this heartbeat in place of the last. Raises as `look`; whether it was written is not known then."""


LEAST_TIMEOUT_S = 1.5
