"""One source after another as a stream of Spark: the switch is made once, whatever is run again and by whichever driver."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.enumerator.errors import RetriableError, StateError
from headrace.enumerator.source import (
    Boundedness,
    DiscoveryResult,
    IncrementalDiscovery,
    JsonObject,
    SplitDiscovery,
    StagedSource,
)
from headrace.runners.spark.column_types import spark_types
from headrace.runners.spark.pipeline import stream_reader
from headrace.runners.spark.split_stream import SplitRead
from headrace.runners.spark.staged import StagedRead, StagedStreamReader
from headrace.sources import Hybrid, SourceEnd
from tests.helpers.split_sources import Feed, FeedDiscovery, Piece, Pile, PileDiscovery, Shelf

HISTORY, TOPIC = Shelf(), Shelf()


class History(Pile):
    """A pile that ends. What it reads, and what `Topic` reads, is the process's, as readers travel by pickle."""

    boundedness = Boundedness.BOUNDED

    def create_discovery(self) -> IncrementalDiscovery[Piece]:
        return HistoryDiscovery(HISTORY)

    def __reduce__(self) -> tuple[Any, ...]:
        return History, (HISTORY,)


class HistoryDiscovery(PileDiscovery):
    def after(self, cursor: JsonObject | None, limit: int) -> DiscoveryResult[Piece]:
        found = super().after(cursor, limit)
        return replace(found, complete=not found.more)


class Watched(History):
    """The same without an end."""

    boundedness = Boundedness.UNBOUNDED

    def create_discovery(self) -> IncrementalDiscovery[Piece]:
        return PileDiscovery(HISTORY)

    def __reduce__(self) -> tuple[Any, ...]:
        return Watched, (HISTORY,)


class Topic(Feed):
    def __reduce__(self) -> tuple[Any, ...]:
        return Topic, (TOPIC,)


def topic_after(asked: list[int], end: SourceEnd) -> Topic:
    asked.append(end.cursor["found"])
    return Topic(TOPIC)


@pytest.fixture
def asked() -> Iterator[list[int]]:
    yield []
    for shelf in (HISTORY, TOPIC):
        shelf.__init__()  # type: ignore[misc]  # empty again


class Archive(Feed):
    """Without a cursor, and all is found at once."""

    boundedness, finite_splits = Boundedness.BOUNDED, True

    def create_discovery(self) -> SplitDiscovery[Piece]:
        return ArchiveDiscovery(TOPIC)

    def __reduce__(self) -> tuple[Any, ...]:
        return Archive, (TOPIC,)


class ArchiveDiscovery(FeedDiscovery):
    def initial(self) -> DiscoveryResult[Piece]:
        return replace(super().initial(), complete=True)


class Query:
    """As Spark leads it: offsets are stored, and readers are pickled."""

    def __init__(self, asked: list[int], checkpoint: Path) -> None:
        self._read_of = partial(_read_of, str(checkpoint))
        self.restart_with(Hybrid(History(HISTORY), then=partial(topic_after, asked)))
        self.offsets = [self.reader.initialOffset()]

    def restart_with(self, source: StagedSource[Any]) -> None:
        self._read = StagedRead(source=source, read_of=self._read_of)
        self.restart()

    def restart(self) -> None:
        self.reader = StagedStreamReader(self._read, spark_types(self._read.source), stream_reader)

    def plan(self) -> bool:
        end = self.reader.latestOffset(self.offsets[-1], self.reader.getDefaultReadLimit())
        if end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def run(self) -> list[str]:
        worker = pickle.loads(pickle.dumps(self.reader))
        partitions = self.reader.partitions(self.offsets[-2], self.offsets[-1])
        return sorted(v for task in partitions for batch in worker.read(task) for v in batch.column(0).to_pylist())


def _read_of(checkpoint: str, source: Any) -> SplitRead[Piece]:
    Path(checkpoint, "metadata").touch()  # as Spark does
    return SplitRead(source=source, checkpoint=checkpoint, most_splits=2)


@pytest.fixture
def query(asked: list[int], tmp_path: Path) -> Query:
    for name in ("1", "2", "3"):
        HISTORY.add(name, name)
    TOPIC.add("t", "t0")
    return Query(asked, tmp_path)


def test_a_query_that_is_triggered_once_has_no_limit(query: Query) -> None:
    """Spark says so by the limit that it gives. Else a batch has two splits here."""
    query.offsets.append(query.reader.latestOffset(query.offsets[-1], ReadAllAvailable()))
    assert query.run() == ["1", "2", "3"]
    query.restart()
    query.offsets.pop()
    assert query.plan()
    assert query.run() == ["1", "2"]


def test_each_record_is_read_once_in_the_order_of_the_stages(query: Query, asked: list[int]) -> None:
    batches = []
    while query.plan():
        batches.append(query.run())
        query.restart()
    assert batches == [["1", "2"], ["3"], ["t0"]]
    assert set(asked) == {3}
    TOPIC.add("t", "t1")
    assert query.plan()
    assert query.run() == ["t1"]


def test_a_switch_that_was_not_stored_is_made_again_from_the_same_end(query: Query) -> None:
    for _ in range(2):
        query.plan()
        query.run()
    query.plan()
    del query.offsets[-1]
    query.restart()
    query.plan()
    assert query.run() == ["t0"]


def test_the_first_batch_behind_the_switch_is_run_again_as_it_was(query: Query) -> None:
    for _ in range(3):
        query.plan()
        rows = query.run()
    TOPIC.add("t", "t1")
    TOPIC.add("u", "u0")
    query.restart()
    assert query.run() == rows == ["t0"]
    query.plan()
    assert query.run() == ["t1", "u0"]


def test_no_switch_before_the_last_batch_of_a_stage(query: Query) -> None:
    query.plan()
    query.plan()
    assert not TOPIC.looks


def test_no_switch_before_the_finished_splits_are_reported(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        query.plan()
        query.run()
    reported, away = History.splits_finished, RetriableError("the archive is away")

    def fails(_self: History, _splits: Sequence[Piece]) -> None:
        raise away

    monkeypatch.setattr(History, "splits_finished", fails)
    assert not query.plan()
    monkeypatch.setattr(History, "splits_finished", reported)
    assert query.plan()
    assert query.run() == ["t0"]
    assert HISTORY.finished == ["1", "2", "3"]


def test_a_switch_waits_for_the_next_source(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """AvailableNow cannot wait: it would end, as if there were nothing."""
    for _ in range(2):
        query.plan()
        query.run()
    away = RetriableError("no broker answers")

    def fails(_self: Topic) -> Any:
        raise away

    with monkeypatch.context() as outage:
        outage.setattr(Topic, "create_discovery", fails)
        assert not query.plan()
        query.restart()
        assert not query.plan()
        query.restart()
        query.reader.prepareForTriggerAvailableNow()
        with pytest.raises(RetriableError, match="no broker answers"):
            query.plan()
    assert query.plan()
    assert query.run() == ["t0"]


def test_a_source_that_is_added_behind_the_last_gets_its_whole_end(query: Query) -> None:
    """Regression: of a last source without a cursor only the last batch's splits were known, once all were found."""
    for name in "uvwxy":
        TOPIC.add(name, name)
    query.restart_with(Hybrid(History(HISTORY), then=Archive(TOPIC)))
    while query.plan():
        query.run()
    ends: list[SourceEnd] = []

    def added(end: SourceEnd) -> History:
        ends.append(end)
        return History(Shelf())

    source = Hybrid(History(HISTORY), then=[Archive(TOPIC), added], boundedness=Boundedness.BOUNDED)
    query.restart_with(source)
    query.plan()
    assert [split["id"] for split in ends[0].splits] == list("tuvwxy")


def test_a_source_is_added_behind_one_that_had_no_end(query: Query) -> None:
    """Regression: where nothing new came of one that was the last, its end was not stored, nor the next read."""
    read = []
    for stages in ([Watched(HISTORY)], [History(HISTORY), Archive(TOPIC)]):
        query.restart_with(Hybrid(History(HISTORY), then=stages))
        while query.plan():
            read += query.run()
    assert read == ["1", "2", "3", "1", "2", "3", "t0"]


def test_a_last_source_that_was_bounded_is_refused_when_it_is_so_no_more(query: Query) -> None:
    """Regression: where the last source of stages kept its splits, nothing behind their end was read, without an error."""
    query.restart_with(Hybrid(History(HISTORY), then=Archive(TOPIC)))
    while query.plan():
        query.run()
    query.restart_with(Hybrid(History(HISTORY), then=Feed(TOPIC)))
    with pytest.raises(StateError, match="is of a bounded source, of which all splits are found, and 'feed' is unbounded now"):
        query.plan()


def test_an_offset_of_another_kind_of_source_is_refused(query: Query) -> None:
    with pytest.raises(StateError, match="the query's checkpoint: the offset of a batch cannot be read"):
        query.reader.latestOffset({"t": {"0": 1}}, ReadAllAvailable())
