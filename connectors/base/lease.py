"""The contract of a lease: a board on which whoever runs a job says so again and again, seen from every host.

A board has one place for each job. It keeps the last *beat* that was written there, and is no lock: a write replaces what is
there, whosever it was, and two that write at once may both believe that they were the last. So a board is for finding out soon
that nobody runs the job any more. That no two run it for long, and that nothing comes of it while they do, is seen to by the
job's sink and checkpoint; who follows and who leads is decided by whoever runs the job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from enum import StrEnum

from headrace.connectors.base.sink import stored_number, stored_text
from headrace.enumerator.envelope import Envelope

__all__ = ["Beat", "BeatState", "LeaseBoard", "parse_beat"]

_BEAT = Envelope("headrace-lease", "lease")


class BeatState(StrEnum):
    """What its writer does. `LEADING`: it runs the job. `LEFT`: it was stopped, or the job cannot run on its host. `OVER`: the
    job has ended, for all.
    """

    LEADING = "leading"
    LEFT = "left"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Beat:
    """What a supervisor says of itself. `term`: one more than the last leader's. `supervisor`: a name that no other has.

    `number`: of the beats of this supervisor in this term, from 0. `host`: for people. `ending` and `reason`: how the job has
    ended, by `Ending`'s name, if it is over.
    """

    term: int
    supervisor: str
    number: int
    state: BeatState
    host: str
    ending: str = ""
    reason: str = ""

    @property
    def rank(self) -> tuple[int, str]:
        """Of two that lead the one of the higher rank goes on."""
        return self.term, self.supervisor

    def serialize(self) -> str:
        """In an envelope."""
        return _BEAT.seal(asdict(self)).decode()


def parse_beat(text: str, where: str) -> Beat:
    """What `serialize` has made. Raises StateError, naming `where`, for anything else."""
    value = _BEAT.open(text, where)
    with _BEAT.reading(where):
        return Beat(
            stored_number(value["term"]),
            stored_text(value["supervisor"]),
            stored_number(value["number"]),
            BeatState(value["state"]),
            stored_text(value["host"]),
            stored_text(value["ending"]),
            stored_text(value["reason"]),
        )


class LeaseBoard(ABC):
    """One job's place on a board. Used by one thread. Contacts nobody before a method is called."""

    @property
    @abstractmethod
    def timeout_s(self) -> float:
        """A leader of which nothing new was seen for so many seconds is taken for dead. At least `LEAST_TIMEOUT_S`."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The place, in messages."""

    @abstractmethod
    def look(self) -> Beat | None:
        """The last beat; None where none was ever written. Returns, or raises, well before `timeout_s`.

        Raises RetriableError or DeadlineExceededError where the board cannot be asked now, and another PeerError, StateError or
        UsageError where that will not pass by itself.
        """

    @abstractmethod
    def write(self, beat: Beat) -> None:
        """Put this beat in place of the last. Raises as `look`; whether it was written is not known then."""


LEAST_TIMEOUT_S = 1.5
