"""Faults by script: which requests are hit, and what happens to them. Each counts how often it fired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.enumerator.errors import HeadraceError, UsageError
from headrace.testing.fake_kafka.api import APIS
from headrace.testing.fake_kafka.calls import Call
from headrace.testing.fake_kafka.protocol import Message


@dataclass(frozen=True, slots=True)
class Refuse:
    """The broker refuses: this error code, for one topic or partition where given, and does nothing else.

    Any number will do, also one that Kafka does not have yet.
    """

    code: int
    topic: str | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """The broker takes this many seconds of real time before it looks at the request."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CutBefore:
    """The connection is cut; the request had no effect."""


@dataclass(frozen=True, slots=True)
class CutAfter:
    """The connection is cut after the request took effect: its sender cannot know whether it did."""


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The request takes effect and is never answered; the connection stays."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The request is done twice, as when a network device sends it again; the second answer is given."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """The answer asks the client to wait, and the broker reads no request of this connection for as long (KIP-219)."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Before:
    """Call `do` before the broker looks at the request: a leader moves, a log is truncated, a broker stops."""

    do: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Between:
    """Send half of the answer's bytes, call `do`, send the rest."""

    do: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Call `change` with the answer, a response object of kafka-python, before it is sent."""

    change: Callable[[Message], object]


Action = Refuse | Delay | CutBefore | CutAfter | LoseAnswer | Repeat | Throttle | Before | Between | Rewrite


class UnfiredFaultError(HeadraceError):
    """A fault was scripted and never happened: the test has not tested what it says."""


@dataclass(slots=True)
class Fault:
    """One line of the script. `seen` counts the requests that it was about, `fired` how often it happened."""

    action: Action
    key: int | None
    broker: int | None
    nth: int
    times: int | None
    when: Callable[[Message], bool] | None
    seen: int = 0
    fired: int = 0
    must_fire: bool = True

    def optional(self) -> Fault:
        self.must_fire = False
        return self

    def stop(self) -> None:
        self.times = 0

    def count(self) -> None:
        self.fired += 1

    def happen(self) -> None:
        """Count it, and call what it is to do."""
        assert isinstance(self.action, Before | Between)
        self.count()
        self.action.do()

    def chooses(self, call: Call) -> bool:
        if self.key not in (None, call.header.key) or self.broker not in (None, call.broker.id):
            return False
        if self.when is not None and not self.when(call.request):
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.times is None or self.seen < self.nth + self.times)


class Script:
    """The faults of one cluster, in the order in which they were written."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Raises UsageError for numbers that make no sense."""
        if fault.nth < 1 or (fault.times is not None and fault.times < 1):
            raise UsageError(f"a fault's nth and times count from 1, got nth={fault.nth}, times={fault.times}")
        self.faults.append(fault)
        return fault

    def choose(self, call: Call) -> list[Fault]:
        return [fault for fault in self.faults if fault.chooses(call)]

    def check_fired(self) -> None:
        """Raise UnfiredFaultError for those that never happened and had to."""
        idle = [fault for fault in self.faults if fault.must_fire and not fault.fired]
        if idle:
            lines = "; ".join(f"{describe(fault)} (its kind of request was seen {fault.seen} times)" for fault in idle)
            raise UnfiredFaultError(f"scripted faults that never happened: {lines}. If that is fine, call optional() on them")


def describe(fault: Fault) -> str:
    api = "any request" if fault.key is None else APIS[fault.key].name
    where = "" if fault.broker is None else f" at broker {fault.broker}"
    return f"{fault.action} on {api}{where}, from number {fault.nth} on"


def key_of(api: str) -> int:
    """The API key of a request's name. Raises UsageError for one that the broker does not speak."""
    for known in APIS.values():
        if known.name == api:
            return known.key
    raise UsageError(f"the fake broker speaks no {api!r}; it speaks {', '.join(sorted(each.name for each in APIS.values()))}")
