"""One fault, to the result: apply, wait, prove, heal, and wait until all that was acknowledged is visible."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kafka.errors import KafkaError

from benchmarks.chaos.faults.fault import Fault, Kind, NotHappenedError, has_transactions
from benchmarks.chaos.load import Load
from benchmarks.chaos.losses import Losses
from benchmarks.chaos.oracle import now
from benchmarks.chaos.subject import Subject
from benchmarks.chaos.testbed import GROUPS, TRANSACTIONS, Testbed
from headrace.enumerator.errors import HeadraceError

LOOK_S = 0.05
CALM_S, HEAL_S, CATCH_UP_S, REPORT_S = 90.0, 240.0, 300.0, 30.0
T = TypeVar("T")


@dataclass
class Trial:
    """Testbed, job and load, which outlast many faults. Used by one thread; faults are applied in another."""

    testbed: Testbed
    subject: Subject
    load: Load
    past: list[Losses] = field(default_factory=list)

    def watch(self, seconds: float, until: Callable[[], bool]) -> bool:
        """Look, until it is so, or for so long. Whether it was."""
        deadline = now() + seconds
        while now() < deadline:
            self.subject.look()
            if until():
                return True
            time.sleep(LOOK_S)
        return False

    def missing(self) -> int:
        """Acknowledged so far, and not visible."""
        return self.subject.output_check.missing(self.load.produced())

    def is_calm(self) -> bool:
        """Whether every replica is in sync, and the job is at the heels of the load."""
        system = self.subject.system.name
        used = {GROUPS: system != "jvm", TRANSACTIONS: has_transactions(system)}
        internal = [topic for topic in self.testbed.internal if used[topic]]
        with suppress(HeadraceError, KafkaError, RuntimeError):
            return self.testbed.in_sync([*self.subject.names.topics, *internal])
        return False

    def settle(self) -> None:
        """Before a fault. A cluster that does not come to rest is not a reason not to continue."""
        with ThreadPoolExecutor(1) as pool:
            deadline = now() + CALM_S
            while now() < deadline:
                look = pool.submit(self.is_calm)
                self.watch(CALM_S, look.done)
                if look.result():
                    return

    def run(self, kind: Kind, generator: random.Random) -> dict[str, Any]:
        """One fault of the kind, and its line of the result."""
        self.settle()
        fault = kind.make(self.testbed, self.subject, generator)
        hold = generator.uniform(kind.shortest, kind.longest)
        duplicates, starts, ended = self.subject.output_check.duplicates, self.subject.starts, len(self.subject.ended)
        started_at = now()
        line: dict[str, Any] = {"kind": kind.name, "tree": kind.tree, "hold_s": round(hold, 2)}
        line |= self._suffer(fault, hold)
        healed = now()
        losses = self._meanwhile(fault.losses)
        snapshot = self.load.produced()
        caught_up = self.watch(CATCH_UP_S, lambda: self.subject.output_check.missing(snapshot) == 0)
        end = now()
        output_check = self.subject.output_check
        return {
            **line,
            **(self._account(losses) if losses else {}),
            "fault_s": round(healed - started_at, 2),
            "catch_up_s": round(end - healed, 2) if caught_up else None,
            "stall_s": round(output_check.longest_gap(started_at, end), 2),
            "load_stall_s": round(self.load.longest_gap(started_at, end), 2),
            "missing": output_check.missing(snapshot),
            "duplicates": output_check.duplicates - duplicates,
            "damaged": output_check.damaged,
            "produced": sum(snapshot),
            "starts": self.subject.starts - starts,
            "ended": [told_last(text) for text in self.subject.ended[ended:]],
            "machine_load": round(os.getloadavg()[0], 1),
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def _suffer(self, fault: Fault, hold: float) -> dict[str, Any]:
        """Apply, hold, prove, heal; what was hit and what proves it, or `not_happened`; `wrong` when healing failed."""
        found: dict[str, Any] = {}
        try:
            found["hit"] = self._meanwhile(fault.apply)
            self.watch(hold, lambda: False)
            found["proof"] = self._meanwhile(fault.prove)
        except (NotHappenedError, HeadraceError, KafkaError, RuntimeError) as error:
            found["not_happened"] = f"{type(error).__name__}: {error}"
        try:
            self._meanwhile(fault.heal)
        except (TimeoutError, HeadraceError) as error:
            found["wrong"] = f"{type(error).__name__}: {error}"
        return found

    def _meanwhile(self, work: Callable[[], T]) -> T:
        """Look while another thread is at it."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            self.watch(HEAL_S, done.done)
            return done.result()

    def _account(self, losses: Losses) -> dict[str, Any]:
        """What is gone, what the job has to report of it, and what it does: at once, or in good time."""
        output_check = self.subject.output_check
        self.past.append(losses)
        self.watch(REPORT_S, lambda: is_exact(losses.line(output_check, self.subject.said())))
        self.accuse()
        return losses.line(output_check, self.subject.hear())

    def accuse(self) -> None:
        """Of all losses so far, by all that has come out: what comes late shows, too, what was left out before it."""
        for losses in self.past:
            losses.accuse(self.subject.output_check)


def told_last(log: str) -> str:
    """Why a job ended, of the end of its log: the last line that names an error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or lines)[-1][:400]


def is_good(line: Mapping[str, Any]) -> bool:
    """Whether the job was the fault: nothing lost that it does not report, or doubled or damaged, and nothing else wrong."""
    return is_exact(line) and not (line["missing"] or line["duplicates"] or line["damaged"] or "wrong" in line)


def is_exact(line: Mapping[str, Any]) -> bool:
    """Whether it reports the loss that it has to report, and no other. Where no loss is looked for there is neither."""
    return bool(line.get("due") == line.get("reported"))
