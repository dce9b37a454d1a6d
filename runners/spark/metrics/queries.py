"""What is known of a session's queries, from what Spark shows listeners. No PySpark and no Prometheus in here.

Offsets are taken from JSON of the form `{"topic": {"0": 123}}`, which log sources report; of others there are rows and times.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headrace.connectors.base.counters import Counted
from headrace.runners.spark.supervision.core import Ending

Partition = tuple[str, str, str]  # source (its number), topic, partition
MOST_ENDED = 100  # queries that have ended are kept for their counters, but not without end: a session may start one a minute
_SEEN_KEPT = 256


@dataclass(slots=True)
class PartitionProgress:
    """`lag_s`: since the oldest unread record was seen. Both lags are None where the source shows no end of its log."""

    position: int
    end: int | None
    lag_s: float | None

    @property
    def lag_records(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.position)


@dataclass(slots=True)
class QueryFacts:
    """One query, by its id: a restart within the session continues with its counters. `run`: the last one that has started.

    `silent_s`: how long Spark has said nothing of it, as of `KnownQueries.read`. It reports each batch that has ended, and
    each 10 s (`spark.sql.streaming.noDataProgressEventInterval`), that there is nothing to read.
    """

    query_id: str
    name: str
    heard_s: float
    run: str | None = None
    silent_s: float = 0.0
    is_active: bool = True
    starts: int = 0
    batch: int | None = None
    batches: int = 0
    rows: int = 0
    phase_seconds: Counter[str] = field(default_factory=Counter)
    last_batch_s: float | None = None
    watermark_s: float | None = None
    state_rows: int = 0
    state_bytes: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    partitions: dict[Partition, PartitionProgress] = field(default_factory=dict)
    ends_seen: dict[Partition, deque[tuple[float, int]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


class KnownQueries:
    """All queries of a session. Written by Spark's listener thread, read by the exporter's: under one lock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._queries: dict[str, QueryFacts] = {}
        self._early: dict[str, Counter[str]] = {}
        self.throttled_s = 0.0

    def started(self, query_id: str, run: str, name: str | None) -> None:
        with self._lock:
            query = self._known(query_id, name, starts=0)
            query.run, query.is_active = run, True
            query.starts += 1
            query.heard_s = self._clock()

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """A batch has ended, as Spark's progress JSON says. A query that was running before is known from now on."""
        with self._lock:
            query_id = str(progress["id"])
            query = self._known(query_id, progress.get("name"), starts=1)
            query.heard_s = self._clock()
            _take(query, progress)
            _take_offsets(query, progress.get("sources") or (), query.heard_s)

    def idle(self, query_id: str) -> None:
        """Nothing is there to be read: what is behind in time is so no longer."""
        with self._lock:
            query = self._queries.get(query_id)
            if query is None:
                return
            query.heard_s = self._clock()
            for partition in query.partitions.values():
                partition.lag_s = None if partition.lag_s is None or partition.lag_records else 0.0

    def terminated(self, query_id: str, run: str, ending: Ending) -> None:
        """The run is over, and so are its partitions' lags. Spark reports an end by a queue: the next run may have started."""
        with self._lock:
            query = self._queries.get(query_id)
            if query is None:
                return
            query.endings[ending.name.lower()] += 1
            if query.run not in (None, run):
                return
            query.is_active = False
            query.partitions, query.ends_seen = {}, {}
            ended = [known.query_id for known in self._queries.values() if not known.is_active]
            for forgotten in ended[: max(0, len(ended) - MOST_ENDED)]:
                del self._queries[forgotten]

    def counted(self, query_id: str | None, counts: Mapping[str, float]) -> None:
        """Counts of one process (`headrace.connectors.base.counters`). Those of a query not yet reported are kept."""
        with self._lock:
            self.throttled_s += counts.get(Counted.THROTTLED_SECONDS.value, 0.0)
            if query_id is None:
                return
            known = self._queries.get(query_id)
            sums = self._early.setdefault(query_id, Counter()) if known is None else known.counts
            sums.update(counts)
            for forgotten in list(self._early)[: max(0, len(self._early) - MOST_ENDED)]:
                del self._early[forgotten]

    def _known(self, query_id: str, name: str | None, starts: int) -> QueryFacts:
        if query_id not in self._queries:
            counts = self._early.pop(query_id, Counter())
            self._queries[query_id] = QueryFacts(query_id, name or "", self._clock(), starts=starts, counts=counts)
        return self._queries[query_id]

    def read(self, each: Callable[[QueryFacts], None]) -> None:
        """Call `each` for every query, while nothing changes."""
        with self._lock:
            now_s = self._clock()
            for query in self._queries.values():
                query.silent_s = now_s - query.heard_s
                each(query)


def _take(query: QueryFacts, progress: Mapping[str, Any]) -> None:
    query.batch = int(progress["batchId"])
    query.batches += 1
    query.rows += int(progress.get("numInputRows") or 0)
    for phase, milliseconds in (progress.get("durationMs") or {}).items():
        query.phase_seconds[phase] += milliseconds / 1000
    query.last_batch_s = _instant_s(progress.get("timestamp"))
    query.watermark_s = _instant_s((progress.get("eventTime") or {}).get("watermark"))
    operators = progress.get("stateOperators") or ()
    query.state_rows = sum(int(operator["numRowsTotal"]) for operator in operators)
    query.state_bytes = sum(int(operator["memoryUsedBytes"]) for operator in operators)


def _take_offsets(query: QueryFacts, sources: Iterable[Mapping[str, Any]], now_s: float) -> None:
    partitions: dict[Partition, PartitionProgress] = {}
    for number, source in enumerate(sources):
        ends = dict(_offsets(source.get("latestOffset")))
        for (topic, part), position in _offsets(source.get("endOffset")):
            place, end = (str(number), topic, part), ends.get((topic, part))
            seen = query.ends_seen.setdefault(place, deque(maxlen=_SEEN_KEPT))
            partitions[place] = PartitionProgress(position, end, None if end is None else _lag_s(seen, position, end, now_s))
    query.partitions = partitions
    query.ends_seen = {place: seen for place, seen in query.ends_seen.items() if place in partitions}


def _lag_s(seen: deque[tuple[float, int]], position: int, end: int, now_s: float) -> float:
    """Since when the end is known to be behind `position`: of one clock, and never from a record's own time."""
    while seen and seen[0][1] <= position:
        seen.popleft()
    if end > position and (not seen or end > seen[-1][1]):
        if len(seen) == seen.maxlen:
            seen[-1] = (seen[-1][0], end)  # the oldest says how long it has been
        else:
            seen.append((now_s, end))
    return now_s - seen[0][0] if seen else 0.0


def _offsets(text: object) -> Iterable[tuple[tuple[str, str], int]]:
    """((topic, partition), offset), from JSON of that form; nothing from any other, such as what is stored of files."""
    try:
        document = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return
    if not isinstance(document, dict):
        return
    for topic, partitions in document.items():
        for partition, offset in partitions.items() if isinstance(partitions, dict) else ():
            if type(offset) is int and partition.isascii() and partition.isdigit():
                yield (topic, partition), offset


def _instant_s(text: str | None) -> float | None:
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
