"""What queries over sources other than Kafka store: each form is read and written as in its golden file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.enumerator.errors import StateError
from headrace.runners.spark.log_offsets import SplitOffsets
from headrace.runners.spark.log_read import LogOffsets
from headrace.runners.spark.split_state import ReadingFormat, SplitEnd, SplitReading, TaskEnds
from headrace.runners.spark.staged import _Place
from headrace.testing import MemoryLog, MemorySource, MemorySplit
from tests.helpers.envelopes import body_of, sealed
from tests.helpers.split_sources import Feed, Piece, Pile, Shelf

GOLDEN = Path(__file__).parents[1] / "golden"
READING = SplitReading(
    chain="00112233445566778899aabbccddeeff",
    sequence=7,
    reading="ffeeddccbbaa99887766554433221100",
    tasks=((Piece("a", 3, 10), Piece("b")), (Piece("c"),)),
    unread=(Piece("d"),),
    finished=(Piece("e", 9),),
    cursor={"found": 5},
    more=True,
)
ENDS = TaskEnds({"a": SplitEnd(Piece("a", 5), 2, finished=True), "b": SplitEnd(Piece("b"), 0, finished=False)}, is_limited=True)
OFFSETS = LogOffsets({"a": MemorySplit("a", 3), "b": MemorySplit("b", 0)}, {"a": 1, "b": 0})
PLACE = _Place(1, {"newest_modified_ms": 1_700_000_000_000}, {"t": {"0": 3}})
FORMAT = ReadingFormat(Pile(Shelf()))
LOG_FORMAT = SplitOffsets(MemorySource(MemoryLog()))


def golden(name: str) -> str:
    return (GOLDEN / name).read_text()


def test_what_a_batch_reads() -> None:
    text = golden("split_reading_v1.json")
    assert FORMAT.from_json(text) == READING
    assert FORMAT.to_json(READING) == text
    assert FORMAT.from_json(FORMAT.initial_mark()) is None


def test_where_a_task_stopped() -> None:
    text = golden("split_ends_v1.json")
    assert FORMAT.ends_from_json(text.encode(), "here") == ENDS
    assert FORMAT.ends_to_json(ENDS).decode() == text


def test_offsets_of_a_log() -> None:
    text = golden("log_offsets_v1.json")
    assert LOG_FORMAT.from_json(text) == OFFSETS
    assert LOG_FORMAT.to_json(OFFSETS) == text


def test_an_offset_of_one_stage() -> None:
    offset = json.loads(golden("stage_offset_v1.json"))
    assert _Place.of(offset) == PLACE
    assert PLACE.to_offset() == offset


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        *(("cursor", []), ("more", 1), ("sequence", -1), ("chain", None), ("tasks", None), ("unread", [{"id": "a"}])),
        *(("initial", "false"), ("split_version", 0), ("finished", {"a": 1}), ("marked", 1)),
    ],
)
def test_a_damaged_reading_is_refused_as_such(changed: str, value: object) -> None:
    """Under a checksum that holds."""
    body = body_of(golden("split_reading_v1.json")) | {changed: value}
    with pytest.raises(StateError, match="the query's checkpoint: the offset of a batch cannot be read"):
        FORMAT.from_json(sealed("headrace-splits", body).decode())


@pytest.mark.parametrize(("changed", "value"), [("stage", -1), ("after", []), ("offset", None)])
def test_a_damaged_offset_of_a_stage_is_refused_as_such(changed: str, value: object) -> None:
    body = body_of(golden("stage_offset_v1.json")) | {changed: value}
    with pytest.raises(StateError, match="the query's checkpoint: the offset of a batch cannot be read"):
        _Place.of(json.loads(sealed("headrace-stage", body)))


def test_the_state_of_another_source_is_refused_by_name() -> None:
    with pytest.raises(StateError, match="is of a 'pile' source and cannot restore a 'feed' source"):
        ReadingFormat(Feed(Shelf())).from_json(golden("split_reading_v1.json"))
    body = body_of(golden("log_offsets_v1.json")) | {"source": "other"}
    with pytest.raises(StateError, match="is of a 'other' source and cannot restore a 'memory' source"):
        LOG_FORMAT.from_json(sealed("headrace-log-offsets", body).decode())
