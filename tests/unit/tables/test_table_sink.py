"""The Delta sink in one process: drivers that die anywhere or are replaced, others running in the table, what is refused."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from unittest.mock import patch
from urllib.parse import quote, unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema, write_deltalake
from deltalake.schema import ArrayType, PrimitiveType, StructType

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.sink import Attempt, CommitList, Outcome
from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.committer import TableCommitter
from headrace.connectors.tables.handles import DataFile, TableHandle, TableHandleSerializer
from headrace.connectors.tables.metadata_folder import WorkFolder
from headrace.delta import DeltaSink
from headrace.enumerator.errors import DataLossError, FencedError, PeerError, ProtocolViolationError, StateError, UsageError
from tests.helpers.both_tables import commit_rows, prepared_rows, taken_over_by
from tests.helpers.table_rig import (
    JOB,
    VALUES,
    Death,
    KilledError,
    WatchedLog,
    answer_lost,
    batch_of,
    delta_actions,
    delta_paths,
    delta_values,
    driver,
    open_marks,
    prepared,
    unadded_transactions,
)


@pytest.fixture
def sink(tmp_path) -> DeltaSink:
    made = DeltaSink(str(tmp_path / "table"))
    made.create_table(VALUES)
    return made


def watched(sink: DeltaSink, around: Callable[[int, Callable[[], None]], None], calling=lambda: None) -> JobCommitter:
    return JobCommitter(JOB, TableCommitter(WatchedLog(sink.log(), around, calling), JOB, sink.uri))


def left_over(sink: DeltaSink) -> set[str]:
    return open_marks(sink.uri) | unadded_transactions(sink.uri, JOB) | lists(sink)


def lists(sink: DeltaSink) -> set[str]:
    return {path.name for path in (Path(sink.uri) / "_headrace" / JOB).glob("*.json")}


def data_commits(sink: DeltaSink) -> list[int]:
    """How many files each version added that added any."""
    found = []
    for log in sorted((Path(sink.uri) / "_delta_log").glob("*.json")):
        added = sum("add" in json.loads(line) for line in log.read_text().splitlines())
        found += [added] if added else []
    return found


def test_an_epoch_is_one_version_of_the_table(sink):
    committing = driver(sink)
    committing.commit(0, (prepared(sink, 0, 0, ["a"]), prepared(sink, 0, 1, ["b"])))
    committing.commit(1, (prepared(sink, 1, 0, ["c"]),))
    assert data_commits(sink) == [2, 1]
    assert delta_values(sink.uri) == ["a", "b", "c"]


def test_what_the_library_reads_is_what_was_written(sink):
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a", "b"]),))
    assert sorted(DeltaTable(sink.uri).to_pyarrow_table()["value"].to_pylist()) == ["a", "b"]


# --- stored formats -----------------------------------------------------------------------------------------------------
HANDLE = TableHandle(
    Attempt("query-1", 7, 3, 1), "0123456789abcdef", "f3009e8c-fd18-4ecf-94d0-d8591a2f697a",
    (("value", "string"), ("day", "date32[day]")), ("day",),
    (DataFile("part-query-1/7-3-1-0123456789abcdef/00000.parquet", 1 << 40, 1000, (("day", None),), '{"numRecords":1000}'),),
)  # fmt: skip
GOLDEN = Path(__file__).parents[1] / "golden" / "table_commit_list_v1.json"
STAGED = replace(HANDLE, partitioning=(), changes=Changes(("value", "day"), ("ts", "offset"), "op"))


def test_the_list_in_a_table_is_as_it_was_written():
    """A difference here means that the format has changed, and needs a new version."""
    lists = CommitListSerializer(TableHandleSerializer())
    assert lists.deserialize(GOLDEN.read_bytes(), "golden") == CommitList(7, (HANDLE, STAGED))
    assert lists.serialize(CommitList(7, (HANDLE, STAGED))) == GOLDEN.read_bytes()


def applications(sink: DeltaSink) -> dict[str, int]:
    table = DeltaTable(sink.uri)
    found = {name: table.transaction_version(f"headrace.{JOB}{name}") for name in ("", ".driver", ".recorded-by", ".content")}
    return {name: number for name, number in found.items() if number is not None}


def test_the_marker_in_a_table_is_as_it_was_written(sink):
    """Another number for the same content would have every job refused at its next start."""
    driver(sink).commit(7, (prepared(sink, 7, 0, ["a"]),), "sha256:ab12")
    assert applications(sink) == {"": 8, ".driver": 1, ".recorded-by": 1, ".content": 8637022608588308158}
    driver(sink).commit(8, (prepared(sink, 8, 0, ["b"]),))
    assert applications(sink) == {"": 9, ".driver": 2, ".recorded-by": 2, ".content": 0}


@pytest.mark.parametrize("changes", [
    {"job": "../x"}, {"token": "../x"}, {"epoch": "7"}, {"number": True}, {"table": None}, {"files": [["a", -1, 0, [], ""]]},
    {"changes": {"keys": []}},
], ids=str)  # fmt: skip
def test_a_damaged_handle_is_refused(changes):
    handles = TableHandleSerializer()
    with pytest.raises((KeyError, TypeError, ValueError)):
        handles.deserialize(1, handles.serialize(HANDLE) | changes)


# --- deaths -------------------------------------------------------------------------------------------------------------
def test_a_driver_that_dies_before_anything_that_it_does(tmp_path):
    """Including between two calls of the store within one step: recovered, every epoch is there once, and nothing is left."""
    deaths = 0
    for nth in range(1, 200):
        sink = DeltaSink(str(tmp_path / str(nth)))
        sink.create_table(VALUES)
        driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
        prepared(sink, 1, 5, ["loser"])
        death = Death(nth)
        handles = (prepared(sink, 1, 0, ["b"]), prepared(sink, 1, 1, ["c"]))
        try:
            watched(sink, death.around, death.step).commit(1, handles)
        except KilledError:
            deaths += 1
        else:
            break
        successor = driver(sink)
        successor.recover()
        is_recorded = sink.recorded_epochs()[JOB] == 1
        assert delta_values(sink.uri) == (["a", "b", "c"] if is_recorded else ["a"]), nth
        replay = () if is_recorded else (prepared(sink, 1, 0, ["b", "c"]),)
        successor.commit(1, replay)
        successor.commit(2, (prepared(sink, 2, 0, ["d"]),))
        assert delta_values(sink.uri) == ["a", "b", "c", "d"], nth
        assert left_over(sink) == set(), nth
    assert deaths > 20
    assert delta_values(sink.uri) == ["a", "b", "c"]


def test_a_task_that_dies_leaves_what_the_next_commit_removes(sink):
    transaction = sink.begin(Attempt(JOB, 0, 0, 0))
    transaction.write(batch_of(["lost"]))
    assert len(left_over(sink)) == 1
    driver(sink).commit(0, (prepared(sink, 0, 1, ["a"]),))
    assert left_over(sink) == set()
    with pytest.raises(PeerError, match="given up by a driver"):
        transaction.prepare()
    assert delta_values(sink.uri) == ["a"]


# --- answers that are lost, and others running --------------------------------------------------------------------------
@pytest.mark.parametrize("is_applied", [True, False])
def test_a_commit_whose_answer_is_lost(sink, is_applied):
    """The table is asked before it is tried again."""
    committing = watched(sink, answer_lost(is_applied=is_applied))
    committing.commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert delta_values(sink.uri) == ["a"]
    assert data_commits(sink) == [1]
    committing.commit(1, (prepared(sink, 1, 0, ["b"]),))
    assert delta_values(sink.uri) == ["a", "b"]


def test_what_fails_after_the_commit_does_not_undo_it(sink, caplog):
    def around(number, commit):
        commit()
        if number == 2:
            raise PeerError("injected: no checkpoint of the log")

    watched(sink, around).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert "injected" in caplog.text
    assert delta_values(sink.uri) == ["a"]


def test_a_commit_that_is_refused_fails(sink):
    def around(number, commit):
        if number == 2:
            raise PeerError("injected: no rights")
        commit()

    with pytest.raises(PeerError, match="no rights"):
        watched(sink, around).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert delta_values(sink.uri) == []


def test_another_process_else_commits_in_between(sink):
    """Five times, before each of our tries."""
    rivals = []

    def around(number, commit):
        if len(rivals) < 5:
            write_deltalake(sink.uri, pa.Table.from_batches([batch_of([f"rival {number}"])]), mode="append")
            rivals.append(f"rival {number}")
        commit()

    watched(sink, around).commit(0, (prepared(sink, 0, 0, ["a"]), prepared(sink, 0, 1, ["b"])))
    assert len(rivals) == 5
    assert delta_values(sink.uri) == ["a", "b", *sorted(rivals)]


def test_a_compaction_and_a_vacuum_before_the_epoch_is_completed(sink):
    """Files that are gone by the table's own means are not lost."""
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    handles = (prepared(sink, 1, 0, ["b"]), prepared(sink, 1, 1, ["c"]))
    first = TableCommitter(sink.log(), JOB, sink.uri)
    first.fence()
    first.check(handles)
    first.record(CommitList(1, handles))
    kept = sorted(path.name for path in (Path(sink.uri) / "_headrace" / JOB).iterdir())
    table = DeltaTable(sink.uri)
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert not (Path(sink.uri) / handles[0].files[0].path).exists()
    assert sorted(path.name for path in (Path(sink.uri) / "_headrace" / JOB).iterdir()) == kept
    driver(sink).recover()
    assert delta_values(sink.uri) == ["a", "b", "c"]
    assert left_over(sink) == set()


def test_files_that_another_process_removes_after_the_commit_are_said_to_be_lost(sink):
    handle = prepared(sink, 0, 0, ["a"])
    first = TableCommitter(sink.log(), JOB, sink.uri)
    first.fence()
    first.record(CommitList(0, (handle,)))
    (Path(sink.uri) / handle.files[0].path).unlink()
    assert first.end(handle) is Outcome.ABORTED
    for _ in range(2):
        with pytest.raises(DataLossError, match=handle.files[0].path):
            driver(sink).recover()


def test_a_schema_that_grows_between_writing_and_committing(sink):
    handle = prepared(sink, 0, 0, ["a"])
    write_deltalake(sink.uri, pa.table({"value": ["rival"], "more": [1]}), mode="append", schema_mode="merge")
    driver(sink).commit(0, (handle,))
    found = DeltaTable(sink.uri).to_pyarrow_table().sort_by("value").to_pylist()
    assert found == [{"value": "a", "more": None}, {"value": "rival", "more": 1}]


def test_a_schema_that_changes_between_writing_and_committing_has_the_epoch_written_again(sink):
    handle = prepared(sink, 0, 0, ["a"])
    write_deltalake(sink.uri, pa.table({"value": [1]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(PeerError, match=r"has changed since the files were written \(value\)"):
        driver(sink).commit(0, (handle,))
    assert sink.recorded_epochs() == {}


def test_a_table_that_is_rolled_back_does_not_roll_back_its_jobs(sink):
    """Rows that another process took out on purpose do not come back by a restart; the next epoch continues."""
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    DeltaTable(sink.uri).restore(0)
    assert delta_values(sink.uri) == []
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    driver(sink).commit(1, (prepared(sink, 1, 0, ["b"]),))
    assert delta_values(sink.uri) == ["b"]
    assert left_over(sink) == set()


def test_a_table_recreated_is_another_one(sink):
    committing = driver(sink)
    committing.commit(0, (prepared(sink, 0, 0, ["a"]),))
    late = prepared(sink, 1, 0, ["b"])
    shutil.rmtree(sink.uri)
    sink.create_table(VALUES)
    with pytest.raises(StateError, match="not the table any more"):
        committing.commit(1, (late,))
    late = prepared(sink, 1, 0, ["b"])
    with pytest.raises(StateError, match="not the table any more"):
        committing_again(committing, late)
    assert delta_values(sink.uri) == []


def committing_again(committing: JobCommitter, handle) -> None:
    """The committer alone: a driver is of no use after an error."""
    committing._committer.record(CommitList(1, (handle,)))


def test_one_name_in_two_tables_is_two_jobs(tmp_path):
    sinks = [DeltaSink(str(tmp_path / name)) for name in ("one", "two")]
    for number, sink in enumerate(sinks):
        sink.create_table(VALUES)
        driver(sink).commit(number, (prepared(sink, number, 0, [sink.uri]),))
    assert [sink.recorded_epochs() for sink in sinks] == [{JOB: 0}, {JOB: 1}]
    assert [delta_values(sink.uri) for sink in sinks] == [[sink.uri] for sink in sinks]


def test_files_of_another_table_are_refused(tmp_path):
    one, two = (DeltaSink(str(tmp_path / name)) for name in ("one", "two"))
    one.create_table(VALUES)
    two.create_table(VALUES)
    handle = prepared(one, 0, 0, ["a"])
    shutil.copytree(f"{one.uri}/part-{JOB}", f"{two.uri}/part-{JOB}")
    shutil.copytree(f"{one.uri}/_headrace", f"{two.uri}/_headrace")
    with pytest.raises(StateError, match="not the table that job 'job' has written these files to"):
        driver(two).commit(0, (handle,))
    assert delta_values(two.uri) == []


def test_a_job_whose_name_another_starts_with_is_apart(sink):
    other = prepared(sink, 0, 0, ["other"], job=f"{JOB}-2")
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    driver(sink, f"{JOB}-2").commit(0, (other,))
    assert delta_values(sink.uri) == ["a", "other"]
    assert sink.recorded_epochs() == {JOB: 0, f"{JOB}-2": 0}


def test_the_list_of_a_younger_driver_is_left_alone(sink):
    """It is about to commit what it lists: without its list no process could complete that."""
    older, younger = (TableCommitter(sink.log(), JOB, sink.uri) for _ in range(2))
    older.fence()
    younger.fence()
    handle = prepared(sink, 0, 0, ["a"])

    def older_cleans_up() -> None:
        with suppress(FencedError):
            older.clean_up((handle,))

    real = WorkFolder.write_list

    def written(self, driver, commits):
        real(self, driver, commits)
        older_cleans_up()

    with patch.object(WorkFolder, "write_list", written):
        younger.record(CommitList(0, (handle,)))
    assert lists(sink) == {"0.2.json"}
    driver(sink).recover()
    assert delta_values(sink.uri) == ["a"]
    assert left_over(sink) == set()


# --- two drivers --------------------------------------------------------------------------------------------------------
def test_a_driver_that_takes_over_during_a_commit_fences_it(sink):
    newer = driver(sink)
    with pytest.raises(FencedError):
        watched(sink, taken_over_by(newer)).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert delta_values(sink.uri) == []
    newer.commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert delta_values(sink.uri) == ["a"]


@contextmanager
def before(method: str, act: Callable[[], None]):
    """Act once before a method of WorkFolder is called; nested calls pass."""
    real = getattr(WorkFolder, method)
    acted: list[bool] = []

    def acting(self, *arguments):
        if not acted:
            acted.append(True)
            act()
        return real(self, *arguments)

    with patch.object(WorkFolder, method, acting):
        yield
    assert acted, f"{method} was never called"


def older_cleans_up_while_a_newer_commits(sink: DeltaSink, place: str) -> None:
    """Whenever the newer one comes: the table has all files that it names, and the epoch is whole or not there."""
    older = TableCommitter(sink.log(), JOB, sink.uri)
    older.fence()
    handles = (prepared(sink, 0, 0, ["a"]), prepared(sink, 0, 1, ["b"]))
    outcome: list[str] = []

    def newer_commits() -> None:
        try:
            driver(sink).commit(0, handles)
            outcome.append("committed")
        except PeerError:
            outcome.append("refused")

    with before(place, newer_commits):
        try:
            older.clean_up(())
        except FencedError:
            outcome.append("older fenced")
    assert all((Path(sink.uri) / path).exists() for path in delta_paths(sink.uri)), "the table names files that are gone"
    assert delta_values(sink.uri) == (["a", "b"] if "committed" in outcome else [])
    driver(sink).recover()
    assert left_over(sink) == set()


@pytest.mark.parametrize("place", ["look", "mark_cleaned_up", "data_files", "remove_data", "close"])
def test_an_older_driver_that_cleans_up_takes_nothing_from_its_successor(sink, place):
    older_cleans_up_while_a_newer_commits(sink, place)


@contextmanager
def removed_without_a_second_look():
    with patch.object(TableCommitter, "_check_removable", lambda self, work, doomed: work.data_files("nothing")):
        yield


@contextmanager
def marks_ignored():
    real = WorkFolder.look
    with patch.object(WorkFolder, "is_open", lambda self, place: place in real(self).opened):
        yield


@contextmanager
def marker_not_asked_again():
    """A commit that was refused, or whose answer was lost, is tried again as it is."""

    def injected(self, commits):
        loaded, marker = self._own()
        self._work().write_list(marker.driver, commits)
        self._commit(loaded, type(marker)(marker.driver, commits.epoch + 1, marker.driver), commits.handles)

    with patch.object(TableCommitter, "_record", injected):
        yield


@contextmanager
def driver_not_asked():
    """The process that records takes the job over."""
    own = TableCommitter._own

    def injected(self):
        self._driver = self._log.load().marker(self._job).driver
        return own(self)

    with patch.object(TableCommitter, "_own", injected):
        yield


CATCHES = [
    (removed_without_a_second_look, lambda sink: [older_cleans_up_while_a_newer_commits(sink, "mark_cleaned_up")]),
    (marks_ignored, lambda sink: [older_cleans_up_while_a_newer_commits(sink, "remove_data")]),
    (marker_not_asked_again, lambda sink: test_a_commit_whose_answer_is_lost(sink, is_applied=True)),
    (driver_not_asked, test_a_driver_that_takes_over_during_a_commit_fences_it),
]


@pytest.mark.parametrize(("bug", "scenario"), CATCHES, ids=lambda item: getattr(item, "__name__", ""))
def test_injected_bugs_are_caught(sink, bug, scenario):
    with bug(), pytest.raises((AssertionError, pytest.fail.Exception, FileNotFoundError, DataLossError)):
        scenario(sink)


def test_nothing_is_recorded_or_ended_without_its_time(sink):
    committer = sink.committer(JOB)
    with pytest.raises(ProtocolViolationError, match="must fence"):
        committer.record(CommitList(0, ()))
    with pytest.raises(ProtocolViolationError, match="is not recorded"):
        committer.end(prepared(sink, 0, 0, ["a"]))


# --- files, partitions, statistics ---------------------------------------------------------------------------------------
WIDE = pa.schema([
    ("text", pa.string()), ("number", pa.int64()), ("real", pa.float64()), ("day", pa.date32()),
    ("at", pa.timestamp("us", tz="UTC")), ("flag", pa.bool_()), ("list", pa.list_(pa.int32())), ("money", pa.decimal128(10, 2)),
])  # fmt: skip


def written(sink: DeltaSink, *rows: dict, **parts) -> None:
    commit_rows(sink, 0, *(pa.RecordBatch.from_pylist([row], schema=parts.get("schema", WIDE)) for row in rows))


ROW = {
    "text": "é", "number": 2**40, "real": 1.5, "day": date(2024, 2, 29), "at": datetime(2024, 2, 29, 23, 59, 59, 123456, UTC),
    "flag": True, "list": [1, None], "money": None,
}  # fmt: skip


def test_values_come_back_and_statistics_hold_them(tmp_path):
    sink = DeltaSink(str(tmp_path / "table"), compression="zstd")
    sink.create_table(WIDE)
    written(sink, ROW, {**dict.fromkeys(ROW), "text": "x" * 100, "number": 3, "real": -2.0})
    assert DeltaTable(sink.uri).to_pyarrow_table().sort_by("number").to_pylist()[1] == ROW
    (added,) = (action["add"] for action in delta_actions(sink.uri) if "add" in action)
    assert json.loads(added["stats"]) == {
        "numRecords": 2,
        "minValues": {
            "text": "x" * 64, "number": 3, "real": -2.0, "day": "2024-02-29", "at": "2024-02-29T23:59:59.123Z", "flag": True,
        },
        "maxValues": {
            "text": "é", "number": 2**40, "real": 1.5, "day": "2024-02-29", "at": "2024-02-29T23:59:59.124Z", "flag": True,
        },
        "nullCount": {"text": 0, "number": 0, "real": 0, "day": 1, "at": 1, "flag": 1, "money": 2},
    }  # fmt: skip


def test_a_column_with_nan_has_all_numbers_between_its_bounds(tmp_path):
    """Parquet's statistics leave it out, and `deltalake` takes a bound that is missing for null."""
    schema = pa.schema([("real", pa.float64())])
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(schema)
    written(sink, {"real": 1.0}, {"real": float("nan")}, schema=schema)
    (added,) = (action["add"] for action in delta_actions(sink.uri) if "add" in action)
    stats = json.loads(added["stats"])
    assert (stats["minValues"], stats["maxValues"]) == ({"real": "-Infinity"}, {"real": "Infinity"})


def test_partitions(tmp_path):
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(WIDE, ["day", "flag", "number", "text"])
    rows = [ROW, {**ROW, "number": None}, {**ROW, "text": "a/b=c%"}, {**ROW, "day": None, "flag": False}, ROW]
    written(sink, *rows)
    assert len(delta_paths(sink.uri)) == 4
    found = DeltaTable(sink.uri).to_pyarrow_table().select(WIDE.names).to_pylist()
    assert all(row in rows for row in found)
    assert all(found.count(row) == rows.count(row) for row in rows)
    assert DeltaTable(sink.uri).to_pyarrow_table(filters=[("text", "=", "a/b=c%")]).num_rows == 1


CITIES = ["a", None, "a b", "ü", "x/y", "c=d", "50%", "%41", "..", "it's", "#?:*", "~", "l" * 300]


def test_files_are_in_folders_that_state_their_partition(tmp_path):
    """Regression: Polars takes a partition's values from folders, as all usual writers have them, and read nulls."""
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(pa.schema({"city": pa.string(), "day of week": pa.int64(), "n": pa.int64()}), ["city", "day of week"])
    rows = [{"city": city, "day of week": 7, "n": at} for at, city in enumerate(CITIES)]
    prepared_rows(sink, 0, 1, pa.RecordBatch.from_pylist(rows))  # abandoned
    commit_rows(sink, 0, pa.RecordBatch.from_pylist(rows))
    assert left_over(sink) == set()
    assert len([*Path(sink.uri).rglob("*.parquet")]) == len(rows)
    added = [action["add"] for action in delta_actions(sink.uri) if "add" in action]
    folders = {each["partitionValues"]["city"]: Path(unquote(each["path"])).parts[2:-1] for each in added}
    *usual, long = CITIES
    for city in usual:
        name, _, value = folders[city][0].partition("=")
        assert (name, value) == ("city", "__HIVE_DEFAULT_PARTITION__" if city is None else quote(city, safe=""))
        assert folders[city][1:] == ("day of week=7",)
    assert folders[long] == ()  # no file system has such a name
    assert all(Path(sink.uri, unquote(each["path"])).is_file() for each in added)
    found = DeltaTable(sink.uri).to_pyarrow_table().sort_by("n").select(["city", "day of week", "n"])
    assert found.to_pylist() == rows


@pytest.mark.parametrize(("values", "parts"), [
    ({"a:b": "x", "c$": "y"}, ("a:b=x", "c$=y")),
    ({"a": "x" * 253, "b": "y" * 253}, (f"a={'x' * 253}", f"b={'y' * 253}")),
    ({"a": "x" * 254, "b": "y"}, ()),
    ({"a": "\u30fc" * 29, "b": "y"}, ()),
    (dict.fromkeys("abc", "x" * 200), ()),
])  # fmt: skip
def test_a_folder_has_any_usual_name_up_to_a_length(tmp_path, values, parts):
    """Regression: columns such as `a$b` had no folders, nor several columns together, nor texts of 250 bytes."""
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(pa.schema({**dict.fromkeys(values, pa.string()), "n": pa.int64()}), list(values))
    commit_rows(sink, 0, pa.RecordBatch.from_pylist([{**values, "n": 1}]))
    (path,) = delta_paths(sink.uri)
    assert Path(unquote(path)).parts[2:-1] == parts
    assert DeltaTable(sink.uri).to_pyarrow_table().select([*values, "n"]).to_pylist() == [{**values, "n": 1}]


def test_a_column_whose_name_is_no_folders_has_none(tmp_path):
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(pa.schema({"a/b=c": pa.string(), "n": pa.int64()}), ["a/b=c"])
    commit_rows(sink, 0, pa.record_batch({"a/b=c": ["x"], "n": [1]}))
    (path,) = delta_paths(sink.uri)
    assert len(Path(path).parts) == 3
    assert DeltaTable(sink.uri).to_pyarrow_table().select(["a/b=c", "n"]).to_pylist() == [{"a/b=c": "x", "n": 1}]


def test_an_empty_text_is_no_partition(tmp_path):
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(WIDE, ["text"])
    with pytest.raises(UsageError, match="cannot tell an empty text from a null"):
        written(sink, {**ROW, "text": ""})
    assert left_over(sink) == set()


def test_files_end_at_their_size(tmp_path):
    sink = DeltaSink(str(tmp_path / "table"), target_file_bytes=1000)
    sink.create_table(VALUES)
    driver(sink).commit(0, (prepared(sink, 0, 0, ["x" * 600]),))
    handle = prepared_rows(sink, 1, 0, *(batch_of([f"{number}" + str(hash(str(number))) * 100]) for number in range(10)))
    assert len(handle.files) > 1
    assert sum(file.rows for file in handle.files) == 10


def test_many_partitions_have_few_files_open(tmp_path):
    schema = pa.schema([("p", pa.int64()), ("v", pa.int64())])
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(schema, ["p"])
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(pa.RecordBatch.from_pydict({"p": list(range(200)), "v": list(range(200))}, schema=schema))
        assert len(transaction._begun.files._open) == 64
        handle = transaction.prepare()
    driver(sink).commit(0, (handle,))
    assert DeltaTable(sink.uri).to_pyarrow_table().num_rows == 200


# --- refusals -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rows", "message"), [
    (pa.schema([("other", pa.string())]), "no column 'other'; its columns are text, number"),
    (pa.schema([("number", pa.string())]), "column 'number' is int64 in the table, and string in the rows: cast it"),
    (pa.schema([("day", pa.timestamp("us"))]), "'day' is date32"),
    (pa.schema([("at", pa.timestamp("us"))]), "'at' is timestamp"),
    (pa.schema([("money", pa.decimal128(12, 2))]), "'money' is decimal128"),
    (pa.schema([("text", pa.string()), ("text", pa.string())]), "a column comes twice"),
    (pa.schema([]), "rows without columns cannot be written"),
])  # fmt: skip
def test_rows_that_do_not_fit_are_refused(tmp_path, rows, message):
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(WIDE)
    with pytest.raises(UsageError, match=message):
        sink.check_rows(rows)


def test_rows_without_the_column_of_the_partitions_are_refused(tmp_path):
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(WIDE, ["day"])
    with pytest.raises(UsageError, match="partitioned by 'day', which the rows do not have"):
        sink.check_rows(VALUES.set(0, pa.field("text", pa.string())))


def test_rows_of_narrower_types_fit(tmp_path):
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(WIDE)
    kinds = {"text": pa.dictionary(pa.int8(), pa.string()), "number": pa.int8(), "real": pa.float32()}
    narrow = pa.schema([*kinds.items(), ("at", pa.timestamp("ms", tz="Europe/Berlin")), ("list", pa.large_list(pa.int8()))])
    sink.check_rows(narrow)
    written(sink, {"text": "a", "number": 1, "real": 0.5, "at": ROW["at"].replace(microsecond=0), "list": [1]}, schema=narrow)
    (row,) = DeltaTable(sink.uri).to_pyarrow_table().to_pylist()
    assert row == {**dict.fromkeys(ROW), "text": "a", "number": 1, "real": 0.5, "list": [1], "at": row["at"]}
    assert row["at"] == ROW["at"].replace(microsecond=0)


@pytest.mark.parametrize("column", [
    pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["x", None], pa.string_view())),
    pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int16()), pa.array(["x", None])),
    pa.array([["x"], None], pa.list_(pa.string_view())),
    pa.array([{"a": "x"}, None], pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))])),
], ids=lambda column: str(column.type))  # fmt: skip
def test_encoded_columns_are_written_as_their_values(tmp_path, column):
    """Regression: Arrow has no cast from a dictionary of views, and runs were of a type that no table has."""
    rows = pa.record_batch({"c": column})
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(rows.schema)
    sink.check_rows(rows.schema)
    commit_rows(sink, 0, rows)
    assert DeltaTable(sink.uri).to_pyarrow_table().to_pylist() == rows.to_pylist()


def test_a_null_where_none_may_be(tmp_path):
    sink = DeltaSink(str(tmp_path / "table"))
    sink.create_table(pa.schema([pa.field("value", pa.string(), nullable=False)]))
    with pytest.raises(UsageError, match="'value' of the table must not be null"), sink.begin(Attempt(JOB, 0, 0, 0)) as started:
        started.write(pa.RecordBatch.from_pydict({"value": ["a", None]}))
    assert left_over(sink) == set()


@pytest.mark.parametrize(("properties", "why"), [
    ({"delta.constraints.positive": "value > 0"}, "satisfy 'positive'"),
    ({"delta.setTransactionRetentionDuration": "interval 1 days"}, "forgets what jobs have committed"),
    ({"delta.settransactionretentionduration": "interval 1 days"}, "forgets what jobs have committed"),
    ({"DELTA.randomizeFilePrefixes": "True"}, "wants its files under random names"),
])  # fmt: skip
def test_tables_that_ask_for_more_are_refused(tmp_path, properties, why):
    DeltaTable.create(str(tmp_path / "table"), schema=VALUES, configuration=properties, raise_if_key_not_exists=False)
    sink = DeltaSink(str(tmp_path / "table"))
    for refused in (lambda: sink.check_rows(VALUES), lambda: driver(sink).recover(), lambda: prepared(sink, 0, 0, ["a"])):
        with pytest.raises(UsageError, match=why):
            refused()


DECLARED = "__CHAR_VARCHAR_TYPE_STRING"


def declared(folder: Path, kind: PrimitiveType | ArrayType | StructType, text: str) -> str:
    """A table with a column as Spark declares it."""
    fields = [Field("id", PrimitiveType("long")), Field("c", kind, metadata={DECLARED: text})]
    return DeltaTable.create(str(folder / "table"), schema=Schema(fields)).table_uri


@pytest.mark.parametrize("kind", ["varchar(3)", "char(3)"])
def test_a_text_that_is_longer_than_spark_has_declared_is_refused(tmp_path, kind):
    """Regression: it was written, and Spark could not write its row again."""
    sink = DeltaSink(declared(tmp_path, PrimitiveType("string"), kind))
    rows = pa.record_batch({"id": [1, 2, 3], "c": ["\U0001f600ü", "abc", None]})
    commit_rows(sink, 0, rows)
    with pytest.raises(UsageError, match=rf"'c' is {re.escape(kind.upper())} in the table, and a row has a text of 4 char"):
        commit_rows(sink, 1, pa.record_batch({"id": [4], "c": pa.array(["abc "], pa.large_string())}))
    assert DeltaTable(sink.uri).to_pyarrow_table().to_pylist() == rows.to_pylist()


def test_a_text_of_a_deleted_row_may_be_longer_than_declared(tmp_path):
    changes = Changes(("id",), (), "deleted")
    sink = DeltaSink(declared(tmp_path, PrimitiveType("string"), "varchar(3)"), changes=changes)
    commit_rows(sink, 0, pa.record_batch({"id": [1], "c": ["abcd"], "deleted": [True]}))
    with pytest.raises(UsageError, match="a text of 4 characters"):
        commit_rows(sink, 1, pa.record_batch({"id": [1], "c": ["abcd"], "deleted": [False]}))


def test_a_key_that_may_be_padded_is_refused(tmp_path):
    sink = DeltaSink(declared(tmp_path, PrimitiveType("string"), "char(3)"), changes=Changes(("c",), ()))
    with pytest.raises(UsageError, match="'c' is CHAR in the table, whose texts are padded or not"):
        sink.check_rows(pa.schema([("id", pa.int64()), ("c", pa.string())]))


@pytest.mark.parametrize(("kind", "text"), [
    (ArrayType(PrimitiveType("string"), True), "array<char(2)>"), (PrimitiveType("string"), "odd"),
    (StructType([Field("v", PrimitiveType("string"), metadata={DECLARED: "varchar(3)"})]), ""),
    (StructType([Field("v", PrimitiveType("string"))]), "struct<v:varchar(3)>"),
], ids=["list", "unknown", "field", "struct"])  # fmt: skip
def test_a_table_with_lengths_within_another_type_is_refused(tmp_path, kind, text):
    sink = DeltaSink(declared(tmp_path, kind, text))
    with pytest.raises(UsageError, match="its column 'c' has VARCHAR or CHAR within another type"):
        sink.check_rows(pa.schema([("id", pa.int64())]))


def test_a_place_without_a_table_is_refused(tmp_path):
    sink = DeltaSink(str(tmp_path / "nothing"))
    for refused in (sink.recorded_epochs, lambda: driver(sink).recover(), lambda: prepared(sink, 0, 0, ["a"])):
        with pytest.raises(UsageError, match="there is no Delta table here"):
            refused()


@pytest.mark.parametrize(("options", "message"), [
    ({"uri": ""}, "needs a path"), ({"uri": "/t", "target_file_bytes": 0}, "at least 1"),
    ({"uri": "/t", "compression": "rar"}, "no compression 'rar'"),
    ({"uri": "/t", "compression": "bz2"}, "no compression 'bz2'"),
    ({"uri": "/x%41"}, "'/x%41': deltalake takes this for another place because of '%41'"),
    ({"uri": "/x\\y"}, "takes this for another place"), ({"uri": "x\ty"}, "takes this for another place"),
    ({"uri": "file:///x%2541"}, "'/x%41': deltalake takes"), ({"uri": "s3://b/x#1"}, "another place because of '#'"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused_at_once(options, message):
    with pytest.raises(UsageError, match=message):
        DeltaSink(**options)


@pytest.mark.parametrize("name", ["100%", "a b", "a#b", "a?b", "%4x", "é"])
def test_a_folder_may_have_other_signs_in_its_name(tmp_path, name):
    sink = DeltaSink((tmp_path / name).as_uri())
    sink.create_table(VALUES)
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert DeltaTable(str(tmp_path / name)).to_pyarrow_table()["value"].to_pylist() == ["a"]


def test_no_secret_is_shown():
    with pytest.raises(UsageError, match=r"abfss://c@a/t\?\.\.\.: a signature in an address is printed with it"):
        DeltaSink("abfss://c@a/t?sig=s3cret")
    assert "s3cret" not in repr(DeltaSink("s3://bucket/table", storage_options={"AWS_SECRET_ACCESS_KEY": "s3cret"}))


def test_a_table_is_made_once(sink):
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    sink.create_table(pa.schema([("other", pa.int64())]))
    assert delta_values(sink.uri) == ["a"]
    with pytest.raises(UsageError, match="'real' is double: partitions are by"):
        sink.create_table(WIDE, ["real"])
    with pytest.raises(UsageError, match="partitions are by columns, each named once, not text, text"):
        sink.create_table(WIDE, ["text", "text"])


def test_a_table_with_a_column_twice_is_refused(tmp_path):
    with pytest.raises(UsageError, match="each column once; the columns are a, a"):
        DeltaSink(str(tmp_path / "table")).create_table(pa.schema([("a", pa.int64()), ("a", pa.int64())]))


def test_a_file_in_the_place_of_a_table_is_named(tmp_path):
    """Regression: it was taken for an error that may pass."""
    (tmp_path / "file").touch()
    sink = DeltaSink(str(tmp_path / "file"))
    for look in (sink.log().exists, sink.recorded, driver(sink).recover):
        with pytest.raises(UsageError, match=f"^{sink.uri}: this is a file, and a table is a folder: correct the path$"):
            look()


ZONELESS = pa.timestamp("us")
IN_MAPS = [
    pa.map_(pa.string(), ZONELESS),
    pa.list_(pa.map_(ZONELESS, pa.string())),
    pa.map_(pa.string(), pa.struct([("a", ZONELESS)])),
]


@pytest.mark.parametrize("kind", IN_MAPS, ids=str)
def test_timestamps_without_a_zone_in_maps_alone_are_refused_and_nothing_is_made(tmp_path, kind):
    """Regression: deltalake left a table that no reader loads, in a new place and, with new columns, in an existing one."""
    refused = pytest.raises(UsageError, match=r"zone are all in maps \('x'\): give them a zone")
    odd, sound = pa.schema([VALUES.field(0), ("x", kind)]), pa.schema([VALUES.field(0), ("at", ZONELESS), ("x", kind)])
    sink = DeltaSink(str(tmp_path / "table"), merge_schema=True)
    with refused:
        sink.create_table(odd)
    sink.create_table(VALUES)
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    with refused:
        sink.create_table(odd)
    assert delta_values(sink.uri) == ["a"]
    for fitting in (sound, odd):  # with the first one the table knows of them
        sink.create_table(fitting)
    assert delta_values(sink.uri) == ["a"]


@pytest.mark.parametrize(("kind", "has_variants"), [
    ("long", False), ("variant", True), ({"type": "array", "elementType": "variant", "containsNull": True}, True)
], ids=["none", "a column", "in a list"])  # fmt: skip
def test_a_table_with_the_feature_of_variants_takes_rows_unless_it_has_some(tmp_path, kind, has_variants):
    """Regression: deltalake gives it that feature along with deletion vectors."""
    uri = str(tmp_path / "table")
    DeltaTable.create(uri, schema=VALUES, configuration={"delta.enableDeletionVectors": "true"})
    assert "variantType" in DeltaTable(uri).protocol().writer_features
    first = tmp_path / "table" / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    described = next(action["metaData"] for action in actions if "metaData" in action)
    fields = json.loads(described["schemaString"])
    fields["fields"].append({"name": "odd", "type": kind, "nullable": True, "metadata": {}})
    described["schemaString"] = json.dumps(fields)
    first.write_text("\n".join(map(json.dumps, actions)))
    sink = DeltaSink(uri)
    if has_variants:
        with pytest.raises(UsageError, match="its column 'odd' has variants"):
            sink.check_rows(VALUES)
    else:
        driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
        found = QueryBuilder().register("t", DeltaTable(uri)).execute("select value from t").read_all()
        assert found["value"].to_pylist() == ["a"]
