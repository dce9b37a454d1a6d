"""A log in memory and a source over it: for tests of runners, of pipelines, and of the conformance kit itself.

    log = MemoryLog()
    log.create("a")
    log.append("a", ["one", "two"])
    source = MemorySource(log)

`MemoryPieces` reads such a log in finite pieces: each split is one, with what is in it when it is found.

The log exists in this process; a pickled source finds it again in this process only, unless the log is served.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.managers import BaseManager
from typing import Any, cast
from weakref import WeakValueDictionary

import pyarrow as pa

from headrace.enumerator.errors import DataLossError, UsageError
from headrace.enumerator.source import (
    ALL_SPLITS,
    Boundedness,
    DiscoveryResult,
    IncrementalDiscovery,
    JsonObject,
    LogSource,
    Source,
    SourceReader,
    SplitBatch,
    SplitDiscovery,
    SplitSerializer,
)

SCHEMA = pa.schema([("split", pa.string()), ("offset", pa.int64()), ("value", pa.string())])

_numbers = count()
_logs: WeakValueDictionary[int, MemoryLog] = WeakValueDictionary()


Address = tuple[Any, bytes]


def _find_log(number: int, key: str, server: Address | None) -> MemoryLog:
    log = _logs.get(number)
    if log is not None and log.key == key:
        return log
    if server is None:
        raise UsageError("this MemoryLog exists in another process, or no longer")
    return cast("MemoryLog", _ServedLog(number, key, server))


class _ServedLog:
    """A log of another process. A proxy of the standard library cannot be pickled to a third one."""

    def __init__(self, number: int, key: str, server: Address) -> None:
        self._place = number, key, server
        client = _Server(*server)
        client.connect()
        self._log = client.log(number)  # type: ignore[attr-defined]  # registered below

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_log, self._place

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what the log has
        return getattr(self._log, name)


class _Server(BaseManager):
    """Gives other processes a proxy of a log."""


_Server.register("log", callable=lambda number: _logs[number])


class MemoryLog:
    """Named append-only lists of values. Not thread-safe."""

    def __init__(self) -> None:
        """A log without splits."""
        self._number = next(_numbers)
        self.key: str = secrets.token_hex(8)
        self._server: Address | None = None
        self._values: dict[str, list[str]] = {}
        self._hidden: set[str] = set()
        self._finished: list[str] = []
        _logs[self._number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by reference: two sources over one log stay over one log."""
        return _find_log, (self._number, self.key, self._server)

    def serve(self) -> None:
        """Let sources that are pickled from now on read it in other processes of this machine, as long as this one exists."""
        key = secrets.token_bytes(16)
        server = _Server(authkey=key).get_server()
        threading.Thread(target=server.serve_forever, name="memory log", daemon=True).start()
        self._server = server.address, key

    def create(self, split_id: str, values: Iterable[str] = ()) -> None:
        """Start a new split of these values: an empty one, by default."""
        if split_id in self._values:
            raise UsageError(f"split {split_id} exists")
        self._values[split_id] = [*values]

    def append(self, split_id: str, values: Iterable[str]) -> None:
        """Write to the end of a split."""
        self._values[split_id].extend(values)

    def hide(self, split_id: str) -> None:
        """Let discovery see the split no longer: it was removed, or metadata flaps. It can still be read."""
        self._hidden.add(split_id)

    def show(self, split_id: str) -> None:
        """Undo `hide`."""
        self._hidden.discard(split_id)

    def split_ids(self) -> list[str]:
        """What discovery sees."""
        return [split_id for split_id in self._values if split_id not in self._hidden]

    def finish(self, split_ids: Iterable[str]) -> None:
        """A source was notified that these are read to their end."""
        self._finished += split_ids

    def finished(self) -> list[str]:
        """What `finish` was given, in order."""
        return [*self._finished]

    def end(self, split_id: str) -> int:
        """Offset after the split's last value."""
        return len(self._values[split_id])

    def read(self, split_id: str, start: int, stop: int) -> list[str]:
        """The values there are from `start` up to, not including, `stop`."""
        return self._values[split_id][start:stop]


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Values of one split from `next_offset` up to, not including, `stop_offset` (None: without end)."""

    split_id: str
    next_offset: int
    stop_offset: int | None = None

    def between(self, start: int, stop: int | None) -> MemorySplit:
        """The same split over other offsets."""
        return replace(self, next_offset=start, stop_offset=stop)


class MemorySplitSerializer(SplitSerializer[MemorySplit]):
    """Version 1: {"id": "a", "next": 3, "stop": null}."""

    version = 1

    def serialize(self, split: MemorySplit) -> JsonObject:
        return {"id": split.split_id, "next": split.next_offset, "stop": split.stop_offset}

    def deserialize(self, version: int, data: JsonObject) -> MemorySplit:
        if version != 1:
            raise ValueError(f"no MemorySplit was ever written in version {version}")
        stop = data["stop"]
        return MemorySplit(str(data["id"]), int(data["next"]), None if stop is None else int(stop))


class MemoryDiscovery(SplitDiscovery[MemorySplit]):
    """Looks into the log."""

    def __init__(self, source: MemorySource) -> None:
        self._source = source

    def initial(self) -> DiscoveryResult[MemorySplit]:
        """Every split, from its first value or (start="latest") from its end as it is now."""
        log, latest = self._source.log, self._source.start == "latest"
        added = [self._split(split_id, log.end(split_id) if latest else 0) for split_id in log.split_ids()]
        return DiscoveryResult(added, complete=self._source.is_bounded)

    def later(self, known: Mapping[str, MemorySplit]) -> DiscoveryResult[MemorySplit]:
        """The splits that are not known, from their first value."""
        seen = self._source.log.split_ids()
        added = [self._split(split_id, 0) for split_id in seen if split_id not in known]
        return DiscoveryResult(added, missing=frozenset(known.keys() - set(seen)), complete=self._source.is_bounded)

    def _split(self, split_id: str, start: int) -> MemorySplit:
        return MemorySplit(split_id, start, self._source.log.end(split_id) if self._source.is_bounded else None)


class MemoryReader(SourceReader[MemorySplit]):
    """Reads its splits one after another. `poll` never waits: nothing can arrive while it would."""

    def __init__(self, source: MemorySource | MemoryPieces) -> None:
        self._source = source
        self._splits: deque[MemorySplit] = deque()

    def add_splits(self, splits: Sequence[MemorySplit]) -> None:
        self._splits.extend(splits)

    def poll(self, timeout: float) -> SplitBatch[MemorySplit] | None:
        for _ in range(len(self._splits)):
            split = self._splits.popleft()
            batch = self._read(split)
            if batch is None:
                self._splits.append(split)
                continue
            if not batch.finished:
                self._splits.append(batch.split)
            return batch
        return None

    def close(self) -> None:
        self._splits.clear()

    def _read(self, split: MemorySplit) -> SplitBatch[MemorySplit] | None:
        stop = split.next_offset + self._source.batch_size
        if split.stop_offset is not None:
            stop = min(stop, split.stop_offset)
        values = self._source.log.read(split.split_id, split.next_offset, stop)
        moved = replace(split, next_offset=split.next_offset + len(values))
        finished = moved.next_offset == split.stop_offset
        if not values and not finished:
            return None
        rows = {
            "split": [split.split_id] * len(values),
            "offset": list(range(split.next_offset, moved.next_offset)),
            "value": values,
        }
        columns = {name: rows[name] for name in self._source.schema.names}
        return SplitBatch(moved, pa.RecordBatch.from_pydict(columns, schema=self._source.schema), finished)


class MemorySource(LogSource[MemorySplit]):
    """Source over a MemoryLog. Bounded, it reads what there is when it starts."""

    name = "memory"
    schema = SCHEMA

    def __init__(self, log: MemoryLog, *, bounded: bool = False, start: str = "earliest", batch_size: int = 2) -> None:
        """`start` ("earliest" or "latest") is for the splits there are at first; later ones are read from their first value."""
        if start not in ("earliest", "latest"):
            raise UsageError(f'start must be "earliest" or "latest", not {start!r}')
        if batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, not {batch_size}")
        self.log = log
        self.is_bounded = bounded
        self.start = start
        self.batch_size = batch_size

    @property
    def boundedness(self) -> Boundedness:
        """By the argument `bounded`."""
        return Boundedness.BOUNDED if self.is_bounded else Boundedness.UNBOUNDED

    @property
    def split_serializer(self) -> MemorySplitSerializer:
        """JSON objects of three fields."""
        return MemorySplitSerializer()

    def create_discovery(self) -> MemoryDiscovery:
        """A discovery that looks into the log."""
        return MemoryDiscovery(self)

    def create_reader(self) -> MemoryReader:
        """A reader of the log."""
        return MemoryReader(self)

    def end_offsets(self, splits: Sequence[MemorySplit]) -> dict[str, int]:
        """Split id -> end as it is now, or the split's own stop."""
        ends: dict[str, int] = {}
        for split in splits:
            end = self.log.end(split.split_id)
            if end < split.next_offset:
                raise DataLossError(f"split {split.split_id} ends at {end}, before the position {split.next_offset}")
            ends[split.split_id] = end if split.stop_offset is None else min(end, split.stop_offset)
        return ends

    def stop_offsets(self, splits: Sequence[MemorySplit]) -> dict[str, int]:
        """Split id -> end as it is now, of a bounded source."""
        return {split.split_id: self.log.end(split.split_id) for split in splits} if self.is_bounded else {}

    def with_columns(self, columns: Sequence[str]) -> MemorySource:
        """The same source with these columns only."""
        source = MemorySource(self.log, bounded=self.is_bounded, start=self.start, batch_size=self.batch_size)
        source.schema = pa.schema([SCHEMA.field(column) for column in columns])
        return source


class MemoryPiecesDiscovery(IncrementalDiscovery[MemorySplit]):
    """Finds the log's splits in the order in which they were created. Its cursor is {"found": 3, "stop": null}."""

    def __init__(self, source: MemoryPieces) -> None:
        self._source = source

    def after(self, cursor: JsonObject | None, limit: int) -> DiscoveryResult[MemorySplit]:
        """The next splits, each up to its end as it is now; bounded, up to the last split that there was at first."""
        source, split_ids = self._source, self._source.log.split_ids()
        found, stop = (0, None) if cursor is None else (cursor["found"], cursor["stop"])
        stop = stop or len(split_ids) if source.is_bounded else None
        here = split_ids[found:stop][: min(limit, source.found_at_once)]
        added = [MemorySplit(split_id, 0, source.log.end(split_id)) for split_id in here]
        found += len(added)
        is_behind = found < (len(split_ids) if stop is None else stop)
        place = {"found": found, "stop": stop}
        return DiscoveryResult(added, complete=source.is_bounded and not is_behind, cursor=place, more=is_behind)


class MemoryPieces(Source[MemorySplit]):
    """Source over a MemoryLog whose splits are finite pieces, found by a cursor. Nothing of the log may be hidden.

    Bounded, it reads those that there are when it starts. Pieces that were reported as finished are `finished` in the log.
    """

    name = "memory-pieces"
    schema = SCHEMA

    def __init__(self, log: MemoryLog, *, bounded: bool = False, batch_size: int = 2, found_at_once: int = ALL_SPLITS) -> None:
        """`found_at_once`: one look finds this many pieces at most."""
        self.log = log
        self.is_bounded = bounded
        self.batch_size = batch_size
        self.found_at_once = found_at_once

    @property
    def boundedness(self) -> Boundedness:
        """By the argument `bounded`."""
        return Boundedness.BOUNDED if self.is_bounded else Boundedness.UNBOUNDED

    @property
    def finite_splits(self) -> bool:
        """True."""
        return True

    @property
    def split_serializer(self) -> MemorySplitSerializer:
        """JSON objects of three fields."""
        return MemorySplitSerializer()

    def create_discovery(self) -> MemoryPiecesDiscovery:
        """A discovery that looks into the log."""
        return MemoryPiecesDiscovery(self)

    def create_reader(self) -> MemoryReader:
        """A reader of the log."""
        return MemoryReader(self)

    def splits_finished(self, splits: Sequence[MemorySplit]) -> None:
        """Noted in the log."""
        self.log.finish([split.split_id for split in splits])
