"""Sources other than logs: feeds, whose splits have no end that is known, and piles, whose splits are finite pieces.

What they have is in a `Shelf` in this process, which is pickled as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.enumerator.errors import RetriableError
from headrace.enumerator.source import (
    Boundedness,
    DiscoveryResult,
    IncrementalDiscovery,
    JsonObject,
    Source,
    SourceReader,
    SplitBatch,
    SplitDiscovery,
    SplitSerializer,
)

SCHEMA = pa.schema([("value", pa.string())])


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one list, from `start` on. `size_bytes` is of a pile's pieces."""

    split_id: str
    start: int = 0
    size_bytes: int = 0


class PieceSerializer(SplitSerializer[Piece]):
    version = 1

    def serialize(self, split: Piece) -> JsonObject:
        return {"id": split.split_id, "start": split.start, "size": split.size_bytes}

    def deserialize(self, version: int, data: JsonObject) -> Piece:
        return Piece(data["id"], data["start"], data["size"])


@dataclass
class Shelf:
    """What a source reads. `ended`: lists that get no more records. `trouble`: what the next looks raise.

    `outages`: how many of the next polls fail, as the source is out of reach.
    """

    lists: dict[str, list[str]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    trouble: RetriableError | None = None
    outages: int = 0
    looks: int = 0
    finished: list[str] = field(default_factory=list)
    published: list[dict[str, int]] = field(default_factory=list)

    def add(self, name: str, *values: str) -> None:
        self.lists.setdefault(name, []).extend(values)

    def names(self) -> list[str]:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        return [name for name in self.lists if name not in self.hidden]


class ShelfReader(SourceReader[Piece]):
    def __init__(self, source: Feed) -> None:
        self._source = source
        self._splits: deque[Piece] = deque()

    def add_splits(self, splits: Sequence[Piece]) -> None:
        self._splits.extend(splits)

    def poll(self, timeout: float) -> SplitBatch[Piece] | None:
        shelf = self._source.shelf
        if shelf.outages:
            shelf.outages -= 1
            raise RetriableError("the shelf is out of reach")
        for _ in range(len(self._splits)):
            split = self._splits.popleft()
            values = shelf.lists[split.split_id][split.start :][: self._source.batch_rows]
            moved = replace(split, start=split.start + len(values))
            is_over = self._source.finite_splits or split.split_id in shelf.ended
            finished = is_over and moved.start == len(shelf.lists[split.split_id])
            if not finished:
                self._splits.append(moved)
            if values or finished:
                return SplitBatch(moved, pa.RecordBatch.from_pydict({"value": values}, schema=SCHEMA), finished)
        return None

    def close(self) -> None:
        self._splits.clear()


class Feed(Source[Piece]):
    """Splits that are replayed from a position; where one ends is not known before it was read."""

    name = "feed"
    schema = SCHEMA
    discovery_interval_s = 1e-9
    boundedness = Boundedness.UNBOUNDED

    def __init__(self, shelf: Shelf, batch_rows: int = 2) -> None:
        self.shelf, self.batch_rows = shelf, batch_rows

    @property
    def split_serializer(self) -> PieceSerializer:
        return PieceSerializer()

    def create_discovery(self) -> SplitDiscovery[Piece]:
        return FeedDiscovery(self.shelf)

    def create_reader(self) -> ShelfReader:
        return ShelfReader(self)

    def splits_finished(self, splits: Sequence[Piece]) -> None:
        self.shelf.finished += [split.split_id for split in splits]

    def checkpoint_completed(self, splits: Sequence[Piece]) -> None:
        self.shelf.published.append({split.split_id: split.start for split in splits})


class FeedDiscovery(SplitDiscovery[Piece]):
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def initial(self) -> DiscoveryResult[Piece]:
        return DiscoveryResult([Piece(name) for name in self._shelf.names()])

    def later(self, known: Mapping[str, Piece]) -> DiscoveryResult[Piece]:
        seen = self._shelf.names()
        return DiscoveryResult([Piece(name) for name in seen if name not in known], frozenset(known.keys() - set(seen)))


class Pile(Feed):
    """Finite splits, by an incremental discovery whose cursor is the number of pieces that it has found."""

    name = "pile"
    finite_splits = True

    def create_discovery(self) -> SplitDiscovery[Piece]:
        return PileDiscovery(self.shelf)


class Sight(Pile):
    """A pile that gives what is there when it is read, and other records later."""

    name = "sight"
    repeatable = False


class PileDiscovery(IncrementalDiscovery[Piece]):
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def after(self, cursor: JsonObject | None, limit: int) -> DiscoveryResult[Piece]:
        at = 0 if cursor is None else int(cursor["found"])
        names = self._shelf.names()
        found = [Piece(name, 0, 10 * len(self._shelf.lists[name])) for name in names[at : at + limit]]
        position: dict[str, Any] = {"found": at + len(found)}
        return DiscoveryResult(found, cursor=position, more=at + limit < len(names))
