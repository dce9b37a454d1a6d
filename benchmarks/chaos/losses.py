"""What is gone of the input: by the acknowledgements, the log as it is now, and the output check; and what the job reports of
it.

No process can tell a job of records that were gone before it had read them. What it can know, and has to report, is

- of a log that was truncated below its position: from which offset on what it has read is in the log no more;
- of records that were deleted before it had read them: which ones;
- of a topic that was deleted, and perhaps recreated: up to where it has read each partition. All behind is gone.

The due report is made from what came out, the job's from what it logs, so the two have nothing in common but Kafka's offsets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from benchmarks.chaos.oracle import OutputCheck
from benchmarks.restore.oracle import Log
from benchmarks.restore.records import Ints, record_ids


@dataclass(frozen=True, order=True)
class Report:
    """Of one partition: offsets `first` to `behind` - 1 are gone; without `behind` all from `first` on are."""

    partition: int
    first: int
    behind: int | None


@dataclass(frozen=True)
class Gone:
    """Acknowledged records of one partition that are in its log no more: their numbers, ascending, and where they were."""

    partition: int
    numbers: Ints
    offsets: Ints

    def read(self, output_check: OutputCheck) -> int:
        """Up to how many of them the job has read: the previous ones the last one that came out, and that one."""
        return output_check.last_seen(self.partition, self.numbers) + 1

    def unread(self, output_check: OutputCheck) -> int:
        """Offset of the first one that the job has not read; behind the last one if there is none."""
        read = self.read(output_check)
        return int(self.offsets[read]) if read < len(self.offsets) else int(self.offsets[-1]) + 1


def gone(acknowledged: Sequence[Ints], logs: Mapping[int, Log], before: Sequence[Ints]) -> list[Gone]:
    """By partition. `acknowledged`: offsets by number; `logs`: read later; `before`: numbers that were gone before."""
    found = []
    for partition, offsets in enumerate(acknowledged):
        numbers = np.arange(len(offsets))
        there = logs[partition].ids if partition in logs else np.empty(0, np.int64)
        lacking = ~np.isin(record_ids(np.full(len(offsets), partition), numbers), there)
        new = np.flatnonzero(lacking & ~np.isin(numbers, before[partition]))
        if len(new):
            found.append(Gone(partition, new, offsets[new]))
    return found


Due = Callable[[Gone, OutputCheck], Report | None]
"""What a job that has read as much as came out has to report, if anything."""


def of_truncated(part: Gone, output_check: OutputCheck) -> Report | None:
    """Of a log that was truncated: what was read of it."""
    first, behind = int(part.offsets[0]), part.unread(output_check)
    return Report(part.partition, first, behind) if behind > first else None


def of_aged(part: Gone, output_check: OutputCheck) -> Report | None:
    """Of a log that starts later than it did: what was not read."""
    first, behind = part.unread(output_check), int(part.offsets[-1]) + 1
    return Report(part.partition, first, behind) if behind > first else None


def of_deleted(part: Gone, output_check: OutputCheck) -> Report:
    """Of a topic that is gone: always, as no one knows whether there was more."""
    return Report(part.partition, part.unread(output_check), None)


@dataclass(frozen=True)
class Losses:
    """Of one fault, in the job's input `topic`."""

    topic: str
    parts: Sequence[Gone]
    due: Due

    def excuse(self, output_check: OutputCheck) -> None:
        """None of them need come out."""
        for part in self.parts:
            for known in (output_check.gone, output_check.excused):
                known[part.partition] = np.union1d(known[part.partition], part.numbers)

    def accuse(self, output_check: OutputCheck) -> None:
        """But those that lie before one that has: the job has left them out."""
        for part in self.parts:
            left_out = part.numbers[: part.read(output_check)]
            output_check.excused[part.partition] = np.setdiff1d(output_check.excused[part.partition], left_out)

    def due_reports(self, output_check: OutputCheck) -> list[Report]:
        """All of them."""
        return sorted(report for part in self.parts if (report := self.due(part, output_check)) is not None)

    def line(self, output_check: OutputCheck, said: Sequence[str]) -> dict[str, Any]:
        """For the result: by partition which offsets are gone, and how many of these records had been read.

        `said`: what the job has logged, by process, in their order.
        """
        return {
            "lost": [
                {
                    "partition": part.partition,
                    "from": int(part.offsets[0]),
                    "to": int(part.offsets[-1]) + 1,
                    "records": len(part.numbers),
                    "read": part.read(output_check),
                }
                for part in self.parts
            ],
            "due": [list(astuple(report)) for report in self.due_reports(output_check)],
            "reported": [list(astuple(report)) for report in reports(said, self.topic)],
        }


_TRUNCATED = r"{topic}-(\d+): the log was truncated; offsets (\d+) to (\d+) were read already, .*; continuing at offset \2$"
_AGED = r"{topic}-(\d+): offset (\d+) is out of range, .*; offsets \2 to \d+ were deleted .*; continuing at offset (\d+)$"
_SHORTER = (
    r"{topic}-(\d+): offset (\d+) is out of range, available are \d+ to (\d+) \(exclusive\); the log .*; continuing at offset"
)
_ENDED = r"{topic}-(\d+) \(topic id \S+, read up to offset (\d+)\): topic .* was deleted.*; continuing without the rest of it$"


def reports(said: Sequence[str], topic: str) -> list[Report]:
    """Of each partition what the last process that reported it has reported: what one before had read may not have come out."""
    last: dict[int, list[Report]] = {}
    for text in said:
        found = sorted(set(_reports(text, re.escape(topic))))
        last |= {partition: list(group) for partition, group in groupby(found, attrgetter("partition"))}
    return sorted(report for group in last.values() for report in group)


def _reports(text: str, topic: str) -> list[Report]:
    """Offsets are reported inclusively, and the next one to be read where it is the log that is too short."""

    def matches(pattern: str) -> list[tuple[int, ...]]:
        return [tuple(map(int, found)) for found in re.findall(pattern.format(topic=topic), text, re.MULTILINE)]

    return [
        *(Report(partition, first, last + 1) for partition, first, last in matches(_TRUNCATED)),
        *(Report(partition, wanted, begin) for partition, wanted, begin in matches(_AGED)),
        *(Report(partition, end, wanted) for partition, wanted, end in matches(_SHORTER)),
        *(Report(partition, read_to, None) for partition, read_to in matches(_ENDED)),
    ]
