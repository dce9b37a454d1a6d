"""What a query's checkpoint holds of a source whose splits Spark cannot cut: which splits its batches read, and from where.

Spark stores the end of a batch before the batch runs, and where it ends is not known then. So an end is not a position but a
`SplitReading`: the splits that the batch reads, where each of them starts, and a name that no other reading has. Under that
name tasks record where they have stopped (`split_ends.py`). A reading of finite splits needs none: it ends where they end.

What is stored, in the envelope of `headrace.enumerator.envelope`, version 1:

    {"source": "lines", "initial": false, "chain": "<uuid>", "sequence": 7, "reading": "<uuid>", "split_version": 1,
     "tasks": [[{...}, {...}], [{...}]], "unread": [{...}], "finished": [{...}], "cursor": null, "more": false,
     "exhausted": false, "marked": true}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic
from uuid import uuid4

from headrace.enumerator.envelope import (
    Envelope,
    compact,
    readable_version,
    stored_number,
    stored_object,
    stored_text,
    stored_truth,
)
from headrace.enumerator.errors import StateError
from headrace.enumerator.source import JsonObject, Source, SplitSerializer
from headrace.enumerator.split import SplitT
from headrace.runners.spark.log_read import WHERE, check_source

SPLITS = Envelope("headrace-splits", "offset of a batch")
STAGE = Envelope("headrace-stage", "offset of a batch")
"""Of a source of several stages, with what the stage's own reader stores as its `offset`."""
ENDS = Envelope("headrace-ends", "record of where a task stopped")
FOLDER = "headrace-ends"
"""Where tasks record how far they have read: in the query's checkpoint, whose copies have it, too."""
ROWS_FOLDER = "headrace-rows"
"""Where they keep the rows of a source that would not give them again, until their batch is committed."""


@dataclass(frozen=True, slots=True)
class SplitReading(Generic[SplitT]):
    """What the batch that ends here reads, and what is left.

    `tasks`: of each task its splits, where they start. `unread`: found, and in no task of this batch. `finished`: read to their
    end, as far as discovery needs to know them. `cursor` and `more` are those of an incremental discovery. `exhausted`: no
    split will ever be added. `chain` names the query, `sequence` counts its readings, and `reading` names this one.
    `marked`: until it is closed, some of its records may be missing, as a file among them states.
    """

    chain: str
    sequence: int
    reading: str
    tasks: tuple[tuple[SplitT, ...], ...]
    unread: tuple[SplitT, ...] = ()
    finished: tuple[SplitT, ...] = ()
    cursor: JsonObject | None = None
    more: bool = False
    exhausted: bool = False
    marked: bool = False

    @property
    def splits(self) -> list[SplitT]:
        return [split for task in self.tasks for split in task]


@dataclass(frozen=True, slots=True)
class Unread(Generic[SplitT]):
    """What there is to read once a reading is over. `is_limited`: a task has stopped at a limit, so more is there.

    `read_nothing`: no task had a record, or came further. `is_unused`: no task was computed.
    """

    unread: tuple[SplitT, ...] = ()
    finished: tuple[SplitT, ...] = ()
    cursor: JsonObject | None = None
    more: bool = False
    exhausted: bool = False
    is_limited: bool = False
    read_nothing: bool = False
    is_unused: bool = False

    def known(self) -> dict[str, SplitT]:
        return {split.split_id: split for split in (*self.finished, *self.unread)}


@dataclass(frozen=True, slots=True)
class SplitEnd(Generic[SplitT]):
    """Where a task stopped reading a split: after `rows` records, which a replay counts, at the position of `split`."""

    split: SplitT
    rows: int
    finished: bool


@dataclass(frozen=True, slots=True)
class TaskEnds(Generic[SplitT]):
    """Where a task stopped reading each of its splits. `is_limited`: at a limit, and not because nothing came.

    `kept`: the file with the rows, of a source that would not give them again. `is_read`: an attempt has recorded it. False
    where the driver has, which is not stored.
    """

    ends: Mapping[str, SplitEnd[SplitT]]
    is_limited: bool
    kept: str | None = None
    is_read: bool = True


def next_reading(
    before: SplitReading[SplitT] | None, backlog: Unread[SplitT], tasks: Sequence[Sequence[SplitT]]
) -> SplitReading[SplitT]:
    """The reading of these tasks, with what of the backlog they leave. `before` is None for a query's first one."""
    read = {split.split_id for task in tasks for split in task}
    return SplitReading(
        uuid4().hex if before is None else before.chain,
        0 if before is None else before.sequence + 1,
        uuid4().hex,
        tuple(tuple(task) for task in tasks),
        tuple(split for split in backlog.unread if split.split_id not in read),
        backlog.finished,
        backlog.cursor,
        backlog.more,
        backlog.exhausted,
    )


@dataclass(frozen=True, slots=True)
class ReadingFormat(Generic[SplitT]):
    """Readings and ends of one source as JSON. Picklable."""

    source: Source[SplitT]
    _serializer: SplitSerializer[SplitT] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_serializer", self.source.split_serializer)

    def initial_mark(self) -> str:
        """The start of a query without a checkpoint: the same text however often Spark asks, and no position."""
        return SPLITS.seal({"source": self.source.name, "initial": True}).decode()

    def to_json(self, reading: SplitReading[SplitT]) -> str:
        body = {
            "source": self.source.name,
            "initial": False,
            "chain": reading.chain,
            "sequence": reading.sequence,
            "reading": reading.reading,
            "split_version": self._serializer.version,
            "tasks": [self._stored(task) for task in reading.tasks],
            "unread": self._stored(reading.unread),
            "finished": self._stored(reading.finished),
            "cursor": reading.cursor,
            "more": reading.more,
            "exhausted": reading.exhausted,
            **({"marked": True} if reading.marked else {}),
        }
        return SPLITS.seal(body).decode()

    def from_json(self, text: str) -> SplitReading[SplitT] | None:
        """What `to_json` wrote; None for the mark. Raises StateError for anything else, such as another source's."""
        body = SPLITS.open(text, WHERE)
        with SPLITS.reading(WHERE):
            check_source(body["source"], self.source)
            if stored_truth(body["initial"]):
                return None
            version = readable_version(body["split_version"], self._serializer.version)
            return SplitReading(
                chain=stored_text(body["chain"]),
                sequence=stored_number(body["sequence"]),
                reading=stored_text(body["reading"]),
                tasks=tuple(self._read(version, task) for task in body["tasks"]),
                unread=self._read(version, body["unread"]),
                finished=self._read(version, body["finished"]),
                cursor=None if body["cursor"] is None else stored_object(body["cursor"]),
                more=stored_truth(body["more"]),
                exhausted=stored_truth(body["exhausted"]),
                marked=stored_truth(body.get("marked", False)),
            )

    def ends_to_json(self, ends: TaskEnds[SplitT]) -> bytes:
        stored = [
            {"split": self._serializer.serialize(end.split), "rows": end.rows, "finished": end.finished}
            for end in ends.ends.values()
        ]
        kept = {} if ends.kept is None else {"kept": ends.kept}
        return ENDS.seal({"split_version": self._serializer.version, "ends": stored, "limited": ends.is_limited, **kept})

    def ends_from_json(self, data: bytes, where: str) -> TaskEnds[SplitT]:
        """What `ends_to_json` wrote. Raises StateError, naming `where`, for anything else."""
        body = ENDS.open(data, where)
        with ENDS.reading(where):
            version = readable_version(body["split_version"], self._serializer.version)
            ends = [
                SplitEnd(
                    self._serializer.deserialize(version, item["split"]),
                    stored_number(item["rows"]),
                    stored_truth(item["finished"]),
                )
                for item in body["ends"]
            ]
            kept = stored_text(body["kept"]) if "kept" in body else None
            return TaskEnds({end.split.split_id: end for end in ends}, stored_truth(body["limited"]), kept)

    def _stored(self, splits: Sequence[SplitT]) -> list[JsonObject]:
        return [self._serializer.serialize(split) for split in splits]

    def _read(self, version: int, items: Sequence[JsonObject]) -> tuple[SplitT, ...]:
        return tuple(self._serializer.deserialize(version, item) for item in items)


def file_prefix(chain: str, sequence: int, reading: str) -> str:
    """What the names of a reading's records start with, in `FOLDER`; behind it is the number of the task."""
    return f"{chain}/{sequence:012d}-{reading}-"


def recorded_by(line: bytes) -> tuple[str, int] | None:
    """`file_prefix` and the number of tasks of the reading that a line of Spark's offset log holds; None for other lines.

    The line of a source with a name starts with that, and the reading may be one of a stage.
    """
    if SPLITS.name.encode() not in line:
        return None
    try:
        body = _reading_in(line[line.find(b"{") :])
    except StateError:
        return None
    return None if body["initial"] else (file_prefix(body["chain"], body["sequence"], body["reading"]), len(body["tasks"]))


def _reading_in(offset: bytes) -> Mapping[str, Any]:
    try:
        return SPLITS.open(offset, WHERE)
    except StateError:
        return SPLITS.open(compact(STAGE.open(offset, WHERE)["offset"]), WHERE)
