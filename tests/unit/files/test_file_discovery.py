"""Which files are found: each once, whenever it appears, by a cursor that stays small."""

import errno
import itertools
import json
import logging
import os
import pickle
import random
import re
import shutil
import time
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as arrow_fs

from headrace.connectors.files.read.cursor import MOST_REMEMBERED, FileStatus, Remembered
from headrace.connectors.files.read.discovery import FileDiscovery
from headrace.enumerator import EmbeddedRun
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import (
    CorruptDataError,
    DataLossError,
    ProtocolViolationError,
    RetriableError,
    StateError,
    UsageError,
)
from headrace.enumerator.resumed import resumed_discovery
from headrace.files import FileSource
from tests.helpers.reading_files import found, rows

VALUE = pa.schema([("value", pa.string())])
GOLDEN = Path(__file__).parents[1] / "golden"
DAY_S = 86_400
NOW_S = 1_700_000_000


def source_of(folder: Path, **arguments) -> FileSource:
    return FileSource(str(folder), **{"format": "text", "schema": VALUE, "watch": True, **arguments})


def write(path: Path, modified_s: float, text: str = "x\n") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, (modified_s, modified_s))


def paths(found_: tuple) -> list[str]:
    return [split.path for split in found_[0]]


@pytest.fixture(params=["one discovery", "restored"])
def look(request):
    """The paths that are found next by a source: by the same discovery, or by one that starts at the cursor each time."""
    opened: dict[int, FileDiscovery] = {}
    cursors: dict[int, object] = {}

    def found_next(source: FileSource) -> list[str]:
        key = id(source)
        if request.param == "restored" or key not in opened:
            opened[key] = source.create_discovery()
        answer = opened[key].after(cursors.get(key), 1000)
        cursors[key] = json.loads(json.dumps(answer.cursor))
        return [split.path for split in answer.added]

    return found_next


# --- time order ---------------------------------------------------------------------------------------------------------
def test_files_are_found_once_oldest_first(tmp_path, look):
    source = source_of(tmp_path)
    assert look(source) == []
    write(tmp_path / "b", NOW_S)
    write(tmp_path / "a", NOW_S + 1)
    write(tmp_path / "c", NOW_S)
    assert look(source) == ["b", "c", "a"]
    assert look(source) == []
    write(tmp_path / "0", NOW_S + 1)
    assert look(source) == ["0"]
    assert look(source) == []


def test_a_file_that_appears_late_is_found(tmp_path, look):
    """Renamed into place, its time is older than that of others; or a listing has left it out. Gone and back, it is not new."""
    source = source_of(tmp_path)
    write(tmp_path / "1", NOW_S)
    write(tmp_path / "_2", NOW_S - DAY_S)
    assert look(source) == ["1"]
    (tmp_path / "_2").rename(tmp_path / "2")
    assert look(source) == ["2"]
    (tmp_path / "1").rename(tmp_path / "_1")
    assert look(source) == []
    (tmp_path / "_1").rename(tmp_path / "1")
    assert look(source) == []


def test_a_listing_that_has_a_file_twice(tmp_path, monkeypatch):
    source = source_of(tmp_path)
    write(tmp_path / "1", NOW_S)
    discovery = source.create_discovery()
    listed = discovery._folder.list_files
    monkeypatch.setattr(discovery._folder, "list_files", lambda handled: listed(handled) * 2)
    assert [split.path for split in discovery.after(None, 100).added] == ["1"]


def test_behind_the_horizon_nothing_is_found(tmp_path, look):
    """But all files of the first listing are, however old; and one of the future does not move the horizon."""
    source = source_of(tmp_path, max_file_age_s=DAY_S)
    write(tmp_path / "ancient", 1)
    write(tmp_path / "future", NOW_S * 100)
    write(tmp_path / "new", NOW_S)
    assert look(source) == ["ancient", "new", "future"]
    write(tmp_path / "too old", NOW_S - 2 * DAY_S)
    write(tmp_path / "late", NOW_S - DAY_S / 2)
    assert look(source) == []  # the age is counted from now, as a file of the future was read
    write(tmp_path / "now", time.time())
    assert look(source) == ["now"]


def test_the_horizon_follows_the_newest_file_read(tmp_path, look):
    source = source_of(tmp_path, max_file_age_s=DAY_S)
    write(tmp_path / "1", NOW_S)
    assert look(source) == ["1"]
    write(tmp_path / "too old", NOW_S - 2 * DAY_S)
    write(tmp_path / "late", NOW_S - DAY_S / 2)
    assert look(source) == ["late"]


@pytest.mark.parametrize(("on_changed", "expected"), [("fail", None), ("ignore", []), ("reread", ["1"])])
@pytest.mark.parametrize("later_s", [0, 1, -1])
def test_a_file_that_changes_after_it_was_found(tmp_path, look, on_changed, expected, later_s):
    """Also where its time stays the same, as a clock that ticks slowly has it."""
    source = source_of(tmp_path, on_changed_file=on_changed)
    write(tmp_path / "1", NOW_S)
    assert look(source) == ["1"]
    write(tmp_path / "1", NOW_S + later_s, "x\ny\n")
    if expected is None:
        for _ in range(2):
            with pytest.raises(DataLossError, match="1 has changed since it was found"):
                look(source)
        return
    assert look(source) == expected
    assert look(source) == []


def test_a_limit_bounds_an_answer_and_keeps_a_file_together(tmp_path):
    """The listing is not repeated for the rest; another cursor starts from itself."""
    source = source_of(tmp_path, split_bytes=2)
    for number in range(3):
        write(tmp_path / str(number), NOW_S + number, "x\n" * 3)
    with closing(source.create_discovery()) as discovery:
        first = discovery.after(None, 4)
        assert [(split.path, split.start, split.stop) for split in first.added][::3] == [("0", 0, 2), ("1", 0, 2)]
        assert (first.more, first.complete) == (True, False)
        write(tmp_path / "3", NOW_S + 3)
        second = discovery.after(first.cursor, 4)
        assert ([split.path for split in second.added], second.more) == (["2"] * 3, False)
        assert [split.path for split in discovery.after(first.cursor, 5).added] == ["2"] * 3 + ["3"]
        assert len({split.split_id for split in (*first.added, *second.added)}) == 9
        assert all(split.size_bytes == 2 for split in first.added)


def test_a_bounded_read_ends_with_what_was_there_first(tmp_path):
    """Also after a restore in its midst."""
    source = source_of(tmp_path, watch=False)
    for number in range(3):
        write(tmp_path / str(number), NOW_S + number)
    with closing(source.create_discovery()) as discovery:
        answer = discovery.after(None, 2)
    assert not answer.complete
    write(tmp_path / "3", NOW_S + 3)
    with closing(source.create_discovery()) as discovery:
        rest = discovery.after(json.loads(json.dumps(answer.cursor)), 2)
    assert ([split.path for split in rest.added], rest.complete) == (["2"], True)


@pytest.mark.parametrize("order", ["time", "name"])
@pytest.mark.parametrize(("change", "message", "left"), [
    (lambda folder: os.utime(folder / "3"), "lacks 1 of the 3 files", ["1", "2"]),
    (lambda folder: (folder / "2").unlink(), "lacks 1 of the 3 files", ["1", "3"]),
])  # fmt: skip
def test_a_bounded_read_lacks_what_was_listed_first(tmp_path, caplog, order, change, message, left):
    """Its files that wait are counted: one that changes while no process lists them would be left out without a word."""
    for number in range(4):
        write(tmp_path / str(number), NOW_S + number)
    source = source_of(tmp_path, watch=False, order=order)
    first = cursor = json.loads(json.dumps(source.create_discovery().after(None, 1).cursor))
    change(tmp_path)
    for _ in range(2):
        with pytest.raises(DataLossError, match=message):
            source.create_discovery().after(cursor, 1)
    tolerant = source_of(tmp_path, watch=False, order=order, fail_on_data_loss=False)
    with closing(tolerant.create_discovery()) as discovery:
        for path in left:
            answer = discovery.after(cursor, 1)
            assert (paths((answer.added,)), answer.complete) == ([path], path == left[-1])
            cursor = json.loads(json.dumps(answer.cursor))
    assert caplog.text.count(message) == 1
    del first["found"]["left"]  # as an earlier version has it
    assert paths((source.create_discovery().after(first, 9).added,)) == left


@pytest.mark.parametrize("order", ["time", "name"])
@pytest.mark.parametrize("watched", [[True], [True, False], [False, True], [False, True, False], [False]])
def test_an_end_has_the_newest_file_whatever_was_watched(tmp_path, order, watched):
    """Regression: that of a read that was watched before said there was no file, and a topic was read from its start."""
    cursor = None
    for number, watch in enumerate(watched):
        assert source_of(tmp_path, watch=watch, order=order).end(cursor, ()) == {
            "newest_modified_ms": (NOW_S + number - 1) * 1000 if cursor else None
        }
        write(tmp_path / f"{number}", NOW_S + number)
        write(tmp_path / f"{number}5", NOW_S - 9)
        cursor = json.loads(json.dumps(found(source_of(tmp_path, watch=watch, order=order), cursor)[1]))
    assert source_of(tmp_path, order=order).end(cursor, ()) == {"newest_modified_ms": (NOW_S + len(watched) - 1) * 1000}


@pytest.mark.parametrize("order", ["time", "name"])
def test_a_bounded_read_has_what_came_late_with_an_old_time(tmp_path, order):
    for number in range(3):
        write(tmp_path / str(number), NOW_S + number)
    source = source_of(tmp_path, watch=False, order=order)
    cursor = source.create_discovery().after(None, 1).cursor
    write(tmp_path / "15", NOW_S + 1.5)
    assert paths((source.create_discovery().after(cursor, 9).added,)) == ["1", "15", "2"]


@pytest.mark.parametrize("order", ["time", "name"])
def test_a_bounded_read_with_a_wider_pattern_is_refused(tmp_path, order, caplog):
    """Regression: it read those of the files that were left out before which were newer than its position."""
    for number, name in enumerate(("a1", "B1", "a2", "B2", "a3", "a4")):
        write(tmp_path / name, NOW_S + number)
    narrow, given = source_of(tmp_path, watch=False, order=order, pattern="a*"), {"watch": False, "order": order}
    cursor = json.loads(json.dumps(narrow.create_discovery().after(None, 2).cursor))
    for pattern in ("*", None):
        with pytest.raises(StateError, match=r"is of a read with pattern='a\*', which has left out B\d: keep that pattern"):
            source_of(tmp_path, pattern=pattern, **given).create_discovery().after(cursor, 1)
    assert paths((narrow.create_discovery().after(cursor, 9).added,)) == ["a3", "a4"]
    fewer = source_of(tmp_path, pattern="a[14]", fail_on_data_loss=False, **given)
    assert paths((fewer.create_discovery().after(cursor, 9).added,)) == ["a4"]
    assert "lacks 1 of the 2 files" in caplog.text
    del cursor["pattern"]  # as an earlier version has it
    assert paths((narrow.create_discovery().after(cursor, 9).added,)) == ["a3", "a4"]


@pytest.mark.parametrize(("lost", "watch"), [("b9", False), ("b0", True)])
@pytest.mark.parametrize("order", ["time", "name"])
def test_files_that_were_left_out_and_cannot_be_read_any_more_are_refused(tmp_path, order, lost, watch):
    """Regression: those newer than the last file, and those that watching has behind its position, were left out silently."""
    for name in ("a1", "a2"):
        write(tmp_path / name, NOW_S + int(name[1:]))
    narrow = source_of(tmp_path, watch=False, order=order, pattern="[ac]*")
    lost = lost if order == "time" or lost == "b9" else "Z0"
    write(tmp_path / lost, NOW_S + int(lost[1:]))
    cursor = narrow.create_discovery().after(None, 1).cursor
    with pytest.raises(StateError, match=f"which has left out {lost}: keep that pattern"):
        source_of(tmp_path, watch=watch, order=order).create_discovery().after(cursor, 9)


@pytest.mark.parametrize("order", ["time", "name"])
def test_where_files_are_watched_another_pattern_is_refused_for_those_that_would_not_be_read(tmp_path, order):
    """Regression: a file whose name or time is behind the position was left out silently."""
    for name, age_s in (("b0", 0), ("C1", 100), ("a2", 0)):
        write(tmp_path / name, NOW_S - age_s)
    given = {"order": order, "max_file_age_s": 50}
    _, cursor = found(source_of(tmp_path, pattern="a*", **given))
    for pattern in ("[aC]*", None):
        with pytest.raises(StateError, match=r"a read with pattern='a\*', which has left out C1: keep that pattern, move the"):
            found(source_of(tmp_path, pattern=pattern, **given), cursor)
    added, wider = found(source_of(tmp_path, pattern="[ab]*", **given), cursor)
    assert [split.path for split in added] == ["b0"]
    write(tmp_path / "b9", NOW_S)
    assert [split.path for split in found(source_of(tmp_path, pattern="[ab]*", **given), wider)[0]] == ["b9"]
    (tmp_path / "C1").unlink()
    assert [split.path for split in found(source_of(tmp_path, **given), cursor)[0]] == ["b0", "b9"]


@pytest.mark.parametrize("order", ["time", "name"])
@pytest.mark.parametrize("first", ["a1", "B1"])
def test_what_was_left_out_while_watching_is_refused_also_behind_a_bounded_read(tmp_path, order, first):
    """Regression: all that came after the bounded read had listed its folder was left out silently."""
    given = {"order": order, "max_file_age_s": 50}
    write(tmp_path / first, NOW_S - 300)
    _, cursor = found(source_of(tmp_path, pattern="a*", watch=False, **given))
    (tmp_path / first).unlink()
    for name, age_s in (("B2", 200), ("a3", 0)):
        write(tmp_path / name, NOW_S - age_s)
    _, cursor = found(source_of(tmp_path, pattern="a*", **given), cursor)
    with pytest.raises(StateError, match=r"a read with pattern='a\*', which has left out B2: keep that pattern"):
        found(source_of(tmp_path, **given), cursor)


@pytest.mark.parametrize("order", ["time", "name"])
@pytest.mark.parametrize("last", ["[AB]*", None])
def test_what_was_left_out_under_one_of_several_patterns_is_refused_by_the_others(tmp_path, order, last):
    """Regression: a pattern that was in force again left out silently what had come under the one between."""
    given = {"order": order, "max_file_age_s": 50}
    write(tmp_path / "A1", NOW_S - 300)
    _, cursor = found(source_of(tmp_path, pattern="[AB]*", **given))
    for name, age_s in (("A2", 200), ("B3", 0)):
        write(tmp_path / name, NOW_S - age_s)
    added, cursor = found(source_of(tmp_path, pattern="B*", **given), cursor)
    assert [split.path for split in added] == ["B3"]
    wide, cursor = source_of(tmp_path, pattern=last, **given), json.loads(json.dumps(cursor))
    with pytest.raises(StateError, match=r"a read with pattern='B\*', which has left out A2: keep that pattern"):
        found(wide, cursor)
    del cursor["places"]  # as an earlier version has it
    assert found(wide, cursor)[0] == []


@pytest.mark.parametrize("order", ["time", "name"])
def test_what_was_read_under_one_of_several_patterns_is_not_refused_by_the_others(tmp_path, order):
    """By time the first has left out what the second reads: it is newer than what is forgotten."""
    cursor = None
    for name, pattern, later_s in (("a1", "a*", 100), ("b2", None, 0), ("c3", "[ac]*", 900), ("d4", None, 900)):
        write(tmp_path / "b2", NOW_S)
        write(tmp_path / name, NOW_S + later_s)
        added, cursor = found(source_of(tmp_path, pattern=pattern, order=order, max_file_age_s=150), cursor)
        assert [split.path for split in added] == [name]


@pytest.mark.parametrize("order", ["time", "name"])
def test_files_that_were_left_out_and_are_still_to_come_are_read_with_a_wider_pattern(tmp_path, order):
    """Regression: the read was refused. Continued from there by any of its patterns it is not refused either."""
    for number, name in enumerate(("a1", "b2", "c3")):
        write(tmp_path / name, NOW_S + number)
    narrow, wide = (source_of(tmp_path, watch=False, order=order, pattern=pattern) for pattern in ("[ac]*", "*"))
    first = wide.create_discovery().after(narrow.create_discovery().after(None, 1).cursor, 1)
    assert paths((first.added,)) == ["b2"]
    other = source_of(tmp_path, watch=False, order=order, pattern="b*")
    with pytest.raises(DataLossError, match="lacks 1 of the 1 files"):
        other.create_discovery().after(narrow.create_discovery().after(None, 1).cursor, 9)
    write(tmp_path / "b9", NOW_S + 9)  # it came later
    for source in (narrow, wide):
        assert paths((source.create_discovery().after(first.cursor, 9).added,)) == ["c3"]


@pytest.mark.parametrize("pattern", ["a*", "x*"])
def test_a_read_that_is_over_and_has_left_out_files_is_refused(tmp_path, pattern):
    """Regression: with a wider pattern it ended at once, and said nothing."""
    write(tmp_path / "a1", NOW_S)
    narrow, wide = source_of(tmp_path, watch=False, pattern=pattern), source_of(tmp_path, watch=False)
    write(tmp_path / "b1", NOW_S - 1)
    with closing(EmbeddedRun(narrow, clock=time.monotonic)) as run:
        checkpoint, cursor = run.checkpoint(), narrow.create_discovery().after(None, 9).cursor
    with pytest.raises(StateError, match=r"has left out [ab]1: keep that pattern"):
        EmbeddedRun(wide, clock=time.monotonic, checkpoint=checkpoint)
    with pytest.raises(StateError, match=r"has left out [ab]1: keep that pattern"):
        resumed_discovery(wide, Checkpoint(1, (), exhausted=True, cursor=cursor)).initial()
    shutil.rmtree(tmp_path)
    EmbeddedRun(wide, clock=time.monotonic, checkpoint=checkpoint).close()


@pytest.mark.parametrize("order", ["time", "name"])
@pytest.mark.parametrize("pattern", ["a*", "x*"])
def test_a_file_that_came_after_a_bounded_read_had_listed_is_not_one_that_its_pattern_left_out(tmp_path, order, pattern):
    """Regression: another pattern was refused for it, though by no pattern the read would have had it."""
    for number in range(2 if pattern == "a*" else 0):
        write(tmp_path / f"a{number}", NOW_S + number)
    narrow, wide = (source_of(tmp_path, watch=False, order=order, pattern=each) for each in (pattern, None))
    first = json.loads(json.dumps(narrow.create_discovery().after(None, 1).cursor))
    write(tmp_path / "a9", NOW_S + 9)
    write(tmp_path / "Z9", NOW_S + 9)
    assert paths((wide.create_discovery().after(first, 9).added,)) == (["a1"] if pattern == "a*" else ["Z9", "a9"])
    over = narrow.create_discovery().after(first, 9).cursor
    wide.create_discovery().check_final(over)
    del over["newest"]  # as an earlier version has it
    with pytest.raises(StateError, match=r"which has left out [aZ]9: keep that pattern"):
        wide.create_discovery().check_final(over)


@pytest.mark.parametrize("order", ["time", "name"])
def test_watching_continues_a_bounded_read(tmp_path, order, caplog):
    write(tmp_path / "1", NOW_S)
    _, cursor = found(source_of(tmp_path, watch=False, order=order))
    write(tmp_path / "2", NOW_S + 1)
    assert paths(found(source_of(tmp_path, watch=False, order=order), cursor)) == []
    write(tmp_path / "0", NOW_S - 1)
    assert paths(found(source_of(tmp_path, order=order), cursor)) == ["2"]
    said = [record.message for record in caplog.records if "appears later with an older time is not read" in record.message]
    assert len(said) == (1 if order == "time" else 0), "the late file is not read, which is said once"


def test_watching_continues_a_run_that_has_ended(tmp_path):
    write(tmp_path / "1", NOW_S, "a\n")
    _, ended = run_to_end(source_of(tmp_path, watch=False))
    write(tmp_path / "2", NOW_S + 1, "b\n")
    assert run_to_end(source_of(tmp_path, watch=False), ended)[0] == []
    with EmbeddedRun(source_of(tmp_path), clock=lambda: 0.0, checkpoint=ended) as run:
        batch = run.poll(0)
        assert batch is not None
        assert batch.records.column("value").to_pylist() == ["b"]


def test_what_is_gone_is_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.connectors.files.read.discovery._LEAST_HANDLED", 2)
    source, cursor = source_of(tmp_path), None
    with closing(source.create_discovery()) as discovery:
        for number in range(9):
            write(tmp_path / str(number), NOW_S + number)
            answer = discovery.after(cursor, 10)
            assert [split.path for split in answer.added] == [str(number)]
            cursor = answer.cursor
            (tmp_path / str(number - 1)).unlink(missing_ok=True)
        assert len(discovery._handled) <= 3


@pytest.mark.parametrize("name", ["_delta_log", "_spark_metadata"])
def test_a_table_of_others_is_refused(tmp_path, name):
    """At the start: its folder has files that do not count."""
    write(tmp_path / "1", NOW_S)
    assert paths(found(source_of(tmp_path / "1"))) == ["./1"]
    _, cursor = found(source_of(tmp_path))
    (tmp_path / name).mkdir()
    assert paths(found(source_of(tmp_path), cursor)) == []
    for arguments in ({}, {"filesystem": fsspec.filesystem("file")}, {"filesystem": arrow_fs.LocalFileSystem()}):
        with pytest.raises(UsageError, match=f"which files count is in {name}"):
            found(source_of(tmp_path, **arguments))


@pytest.mark.parametrize("order", ["time", "name"])
def test_what_fails_takes_no_file(tmp_path, order):
    """No schema can be inferred of a file that is not whole yet. It is found once that works, as it is then."""
    source = source_of(tmp_path, format="parquet", schema=None, order=order)
    with closing(source.create_discovery()) as discovery:
        cursor = discovery.after(None, 10).cursor
        write(tmp_path / "1", NOW_S)
        with pytest.raises(CorruptDataError):
            discovery.after(cursor, 10)
        pq.write_table(pa.table({"a": [1]}), tmp_path / "1")
        splits = discovery.after(cursor, 10).added
    assert rows(source, splits) == [1]


# --- order of names -----------------------------------------------------------------------------------------------------
def test_names_that_sort_by_time(tmp_path, look):
    """Whole paths; what sorts before the last one is not found, and the cursor is that alone."""
    source = source_of(tmp_path, order="name")
    write(tmp_path / "2024" / "01", 3)
    write(tmp_path / "2024" / "02", 2)
    assert look(source) == ["2024/01", "2024/02"]
    write(tmp_path / "2025" / "01", 1)
    write(tmp_path / "2023", 4)
    assert look(source) == ["2025/01"]
    assert look(source) == []
    _, cursor = found(source)
    assert len(json.dumps(cursor)) < 300


def test_a_store_without_times_has_names(tmp_path, monkeypatch):
    """Which a local file never is, though its time be the epoch, as in images of containers."""
    write(tmp_path / "1", 0)
    assert paths(found(source_of(tmp_path))) == ["1"]
    store = fsspec.filesystem("file")
    monkeypatch.setattr("headrace.connectors.files.read.folders._TIMES", ())
    with pytest.raises(UsageError, match="1: its store has no times of files: read them in the order of names"):
        found(source_of(tmp_path, filesystem=store))
    assert paths(found(source_of(tmp_path, filesystem=store, order="name"))) == ["1"]


@pytest.mark.parametrize(("order", "other"), [("time", "name"), ("name", "time")])
def test_another_order_at_a_restore_is_refused(tmp_path, order, other):
    """By which all files would be new. Before the first one, there is nothing to read again."""
    _, cursor = found(source_of(tmp_path, order=order))
    write(tmp_path / "1", NOW_S)
    assert paths(found(source_of(tmp_path, order=other), cursor)) == ["1"]
    for watch in (True, False):
        _, cursor = found(source_of(tmp_path, order=order, watch=watch))
        with pytest.raises(StateError, match=f"the checkpoint is of order='{order}', and by order='{other}' all files"):
            found(source_of(tmp_path, order=other), cursor)


def test_only_names_of_a_pattern(tmp_path, look):
    source = source_of(tmp_path, pattern="*.csv")
    for name in ("a.csv", "b.txt", "c.CSV"):
        write(tmp_path / name, NOW_S)
    assert look(source) == ["a.csv"]


# --- state --------------------------------------------------------------------------------------------------------------
def test_a_million_files_are_remembered_in_a_megabyte():
    """Ahead of the horizon each is known, none that was not found is taken for known, and one that changed is noticed."""
    draw = random.Random(1)
    remembered = Remembered()
    time_ms, keys = NOW_S * 1000, []
    for _ in range(100):
        for _ in range(10_000):
            time_ms += draw.randint(0, 1200)
            keys.append((time_ms, draw.getrandbits(64), draw.getrandbits(16)))
        remembered.add(keys[-10_000:], time_ms, 7 * DAY_S * 1000)
    text = json.dumps(remembered.stored())
    assert len(text) < 1_000_000
    restored = Remembered.restored(json.loads(text))
    assert all(restored.finding(key) is FileStatus.FOUND for key in keys[-MOST_REMEMBERED:])
    for time_ms, digest, version in keys[-MOST_REMEMBERED::500]:
        assert restored.finding((time_ms, digest ^ 1, version)) is FileStatus.NEW
        assert restored.finding((time_ms, digest, version ^ 1)) is FileStatus.CHANGED
        assert restored.finding((time_ms + 1, digest, version)) is FileStatus.CHANGED
    assert {restored.finding(key) for key in keys[:-MOST_REMEMBERED]} == {FileStatus.BEHIND}
    assert restored.stored() == remembered.stored()


def test_the_golden_cursor_is_read(tmp_path):
    """A difference here means that the format has changed, and needs a new version."""
    golden = json.loads((GOLDEN / "file_cursor_v1.json").read_text())
    write(tmp_path / "1", NOW_S)
    write(tmp_path / "2", NOW_S + 1)
    source = source_of(tmp_path, schema=None)
    assert paths(found(source, golden)) == ["2"]
    assert source.schema == VALUE
    _, cursor = found(source_of(tmp_path, schema=None, pattern="1"))
    assert (cursor.keys(), cursor["found"].keys()) == (golden.keys() | {"pattern"}, golden["found"].keys())
    assert (cursor["version"], cursor["found"]["paths"]) == (golden["version"], golden["found"]["paths"])


def test_a_checkpoint_of_another_folder_is_warned_of(tmp_path, caplog):
    """Its files that are older than those that were read would be missing without a word."""
    for folder in ("here", "there"):
        write(tmp_path / folder / folder, NOW_S)
    _, cursor = found(source_of(tmp_path / "here"))
    found(source_of(tmp_path / "here"), cursor)
    assert not caplog.records
    found(source_of(tmp_path / "there"), cursor)
    assert f"{tmp_path / 'there'}: the checkpoint is of {tmp_path / 'here'}. " in caplog.text


@pytest.mark.parametrize("damage", [
    lambda cursor: {}, lambda cursor: cursor | {"version": 3}, lambda cursor: cursor | {"found": {}},
    lambda cursor: cursor | {"schema": "AAAA"},
    lambda cursor: cursor | {"found": cursor["found"] | {"paths": "AAA="}},
    lambda cursor: cursor | {"found": cursor["found"] | {"times": "????"}},
])  # fmt: skip
def test_a_damaged_cursor_is_refused(tmp_path, damage):
    write(tmp_path / "1", NOW_S)
    _, cursor = found(source_of(tmp_path))
    with pytest.raises(StateError, match="cannot be read"):
        found(source_of(tmp_path, schema=None), damage(cursor))


def test_the_folder_is_away(tmp_path):
    """At the start that is a mistake; later, it may be mounted again."""
    folder = tmp_path / "in"
    with pytest.raises(UsageError, match=r"there is no folder or file .*in: create it, or correct the path"):
        found(source_of(folder))
    write(folder / "1", NOW_S)
    _, cursor = found(source_of(folder))
    folder.rename(tmp_path / "away")
    with pytest.raises(RetriableError, match="there is no folder or file"):
        found(source_of(folder), cursor)


def test_it_continues_by_cursor_only(tmp_path):
    with pytest.raises(ProtocolViolationError):
        source_of(tmp_path).create_discovery().later({})


# --- after it was read --------------------------------------------------------------------------------------------------
def run_to_end(source: FileSource, checkpoint: bytes | None = None) -> tuple[list[str], bytes]:
    read: list[str] = []
    with EmbeddedRun(source, clock=lambda: 0.0, checkpoint=checkpoint) as run:
        while not run.finished:
            batch = run.poll(0)
            read += [] if batch is None else batch.records.column("value").to_pylist()
        data = run.checkpoint()
        run.checkpoint_completed()
    return read, data


@pytest.mark.parametrize("how", ["delete", "archive"])
def test_files_are_removed_once_their_rows_are_durable(tmp_path, how):
    """Each whole, at its path below the archive; what has changed since stays."""
    archive = tmp_path / "done"
    write(tmp_path / "in" / "1", NOW_S, "a\n" * 9)
    (tmp_path / "in" / "day=1").mkdir()
    write(tmp_path / "in" / "day=1" / "2", NOW_S + 1, "b\n")
    after_read = "delete" if how == "delete" else f"archive:{archive}"
    source = source_of(tmp_path / "in", watch=False, split_bytes=2, after_read=after_read)
    splits, _ = found(source)
    assert len(splits) == 2
    write(tmp_path / "in" / "3", NOW_S + 2)
    assert run_to_end(source)[0] == ["a"] * 9 + ["b", "x"]
    assert [path for path in (tmp_path / "in").rglob("*") if path.is_file()] == []
    moved = {str(path.relative_to(archive)) for path in archive.rglob("*") if path.is_file()}
    assert moved == (set() if how == "delete" else {"1", "day=1/2", "3"})
    source.splits_finished(splits)  # again, as after a restore
    write(tmp_path / "in" / "1", NOW_S, "other\n")
    source.splits_finished(splits)
    assert (tmp_path / "in" / "1").exists()


def test_a_file_that_was_cut_before_it_is_to_be_removed_stays(tmp_path, caplog):
    """Regression: it was deleted behind its first piece, and the others were lost."""
    write(tmp_path / "1", NOW_S, "a\n" * 9)
    cut = source_of(tmp_path, watch=False, split_bytes=6)
    with EmbeddedRun(cut, clock=lambda: 0.0) as run:
        while run.poll(0) is None:
            pass
        data = run.checkpoint()
        run.checkpoint_completed()
    assert len(run_to_end(source_of(tmp_path, watch=False, after_read="delete"), data)[0]) >= 6
    assert (tmp_path / "1").exists()
    assert "1 was cut into pieces before after_read was given, and stays" in caplog.text


def test_a_file_that_cannot_be_archived_stays(tmp_path, caplog):
    (tmp_path / "done").write_text("no folder")
    write(tmp_path / "in" / "1", NOW_S)
    with caplog.at_level(logging.WARNING):
        assert run_to_end(source_of(tmp_path / "in", watch=False, after_read=f"archive:{tmp_path / 'done'}"))[0] == ["x"]
    assert "1 was read, and stays where it is: " in caplog.text


def test_a_single_file_is_archived(tmp_path):
    write(tmp_path / "_1", NOW_S)
    assert run_to_end(source_of(tmp_path / "_1", watch=False, after_read=f"archive:{tmp_path / 'done'}"))[0] == ["x"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["_1"]
    assert (tmp_path / "done" / "_1").exists()


def test_a_store_archives(tmp_path):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    root = f"memory://{uuid4().hex}"
    memory.pipe(f"{root}/in/a/1", b"x\n")
    source = FileSource(f"{root}/in", format="text", after_read=f"archive:{root}/done")
    assert run_to_end(source)[0] == ["x"]
    assert [path.removeprefix(root.removeprefix("memory:/")) for path in memory.find(root)] == ["/done/a/1"]
    again = FileSource(f"{root}/done/a/1", format="text", after_read=f"archive:{root}/old")
    assert run_to_end(again)[0] == ["x"]
    assert memory.exists(f"{root}/old/1")


@pytest.mark.parametrize("store", ["disk", "memory", "arrow"])
def test_an_archived_file_is_not_lost_to_a_later_one_of_its_name(tmp_path, store):
    """Neither if the move of one was interrupted between its copy and its removal."""
    root = f"memory://{uuid4().hex}" if store == "memory" else str(tmp_path)
    files = fsspec.filesystem("memory" if store == "memory" else "file")
    given = {"filesystem": arrow_fs.LocalFileSystem()} if store == "arrow" else {}
    source = FileSource(f"{root}/in", format="text", after_read=f"archive:{root}/done", **given)

    def archived(content):
        files.makedirs(f"{root}/in/day=1", exist_ok=True)
        files.pipe(f"{root}/in/day=1/a.b.txt", content)
        splits, _ = found(FileSource(f"{root}/in", format="text", **given))
        source.splits_finished(splits)
        assert files.find(f"{root}/in") == []
        return sorted(files.cat(path) for path in files.find(f"{root}/done"))

    assert archived(b"1\n") == [b"1\n"]
    assert archived(b"1\n") == [b"1\n"], "the second is the first, after a copy that no removal followed"
    assert archived(b"2\n") == [b"1\n", b"2\n"]
    assert archived(b"three\n") == [b"1\n", b"2\n", b"three\n"]
    assert all(re.search(r"done/day=1/a(-\d+)?\.b\.txt$", path) for path in files.find(f"{root}/done"))


def test_a_file_is_archived_on_another_disk(tmp_path, monkeypatch):
    """A copy that is not whole has no name that readers see."""

    def rename(*_):
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "rename", rename)
    write(tmp_path / "in" / "1", NOW_S)
    source = source_of(tmp_path / "in", watch=False, after_read=f"archive:{tmp_path / 'done'}")
    monkeypatch.setattr(shutil, "copyfile", lambda *_, **__: (tmp_path / "done" / ".1").write_text("half") and rename())
    assert run_to_end(source)[0] == ["x"]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".1", "1"]
    monkeypatch.undo()
    monkeypatch.setattr(os, "rename", rename)
    assert run_to_end(source)[0] == ["x"]
    assert [(path.parent.name, path.stat().st_mtime) for path in tmp_path.rglob("*") if path.is_file()] == [("done", NOW_S)]


# --- runs ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(10))
def test_files_that_arrive_while_runs_are_killed(tmp_path, seed):
    """Some are renamed into place with older times, some are large: each line comes once, by what checkpoints have."""
    draw = random.Random(seed)
    source = source_of(tmp_path / "in", split_bytes=5, batch_rows=1)
    written, durable, checkpoint = [], [], None
    (tmp_path / "in").mkdir()
    for step in range(12):
        for number in range(draw.randint(0, 3)):
            lines = [f"{step}.{number}.{line}" for line in range(draw.randint(1, 5))]
            write(tmp_path / "in" / ".new", NOW_S - draw.randint(0, DAY_S), "".join(f"{line}\n" for line in lines))
            (tmp_path / "in" / ".new").rename(tmp_path / "in" / f"{step}.{number}")
            written += lines
        read = []
        copied = pickle.loads(pickle.dumps(source))
        clock = itertools.count(step * 1e6, 0.1).__next__
        with EmbeddedRun(copied, clock=clock, checkpoint=checkpoint, parallelism=2, discovery_interval_s=1.0) as run:
            for _ in range(draw.randint(0, 20) if step < 11 else 500):
                batch = run.poll(0)
                read += [] if batch is None else batch.records.column("value").to_pylist()
            if step == 11 or draw.random() < 0.6:
                checkpoint = run.checkpoint()
                run.checkpoint_completed()
                durable += read
    assert sorted(durable) == sorted(written)
