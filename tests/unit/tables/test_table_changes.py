"""Changes merged into tables by key: the last change of a key counts, an epoch is one commit, the process that dies where."""

import json
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType
from deltalake.transaction import AddAction, RemoveAction
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt
from headrace.connectors.tables import delta
from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.committer import TableCommitter
from headrace.connectors.tables.handles import TableHandle, kind_of, takes
from headrace.connectors.tables.log import OutdatedError
from headrace.connectors.tables.rows import new_columns
from headrace.delta import DeltaSink
from headrace.enumerator.errors import FencedError, PeerError, UsageError
from tests.helpers.both_tables import KINDS, commit_rows, prepared_rows, rows_of, sink_of, taken_over_by
from tests.helpers.iceberg_rig import iceberg_paths, iceberg_table
from tests.helpers.table_rig import JOB, Death, KilledError, WatchedLog, answer_lost, delta_actions, delta_paths, driver

BY_ID = Changes(("id",), ("offset",), "op")
ROWS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("op", pa.string()), ("offset", pa.int64())])
Row = tuple[int, str | None, str]


class Rig:
    """A table of one of the formats, in a folder. `offset` counts all changes."""

    def __init__(self, kind: str, folder: Path, changes: Changes = BY_ID, schema: pa.Schema = ROWS, **given: Any) -> None:
        self.kind, self.folder, self.schema = kind, str(folder), schema
        self.offset = 0
        folder.mkdir(exist_ok=True)
        partitions = given.pop("partition_by", ())
        given["changes"] = changes
        self.sink = sink_of(kind, folder, **given)
        self.sink.create_table(schema, partitions)

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        ids, names, ops = zip(*rows, strict=True)
        offsets = range(self.offset, self.offset + len(rows))
        self.offset += len(rows)
        return pa.RecordBatch.from_pydict({"id": ids, "name": names, "op": ops, "offset": offsets}, schema=self.schema)

    def prepared(self, epoch: int, batch: pa.RecordBatch, task: int = 0) -> TableHandle:
        return prepared_rows(self.sink, epoch, task, batch)

    def commit(self, epoch: int, *rows: Row) -> None:
        driver(self.sink).commit(epoch, (self.prepared(epoch, self.batch(rows)),))

    def watched(self, around: Callable[[int, Callable[[], None]], None], calling=lambda: None) -> JobCommitter[Any]:
        return JobCommitter(JOB, TableCommitter(WatchedLog(self.sink.log(), around, calling), JOB, "the table"))

    def table(self) -> pa.Table:
        return rows_of(self.kind, Path(self.folder))

    def rows(self) -> dict[int, str | None]:
        found = self.table()
        assert len(set(found["id"].to_pylist())) == found.num_rows, "a key is there twice"
        return dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True))

    def unused(self) -> set[str]:
        """Files of the job that no version of the table has, marks and lists."""
        return self.unused_files() | {path.name for path in (self.root / "_headrace" / JOB).glob("*")}

    @property
    def root(self) -> Path:
        return Path(self.sink.uri) if self.kind == "delta" else Path(self.folder) / "shop/orders"

    def unused_files(self) -> set[str]:
        """Files of the job that no version of the table has."""
        root = self.root
        if self.kind == "delta":
            used = {str(root / unquote(action["add"]["path"])) for action in delta_actions(str(root)) if "add" in action}
        else:
            found = iceberg_table(self.folder).inspect.all_data_files()["file_path"].to_pylist()
            used = {path.removeprefix("file://") for path in found}
        return {str(path) for path in root.glob(f"part-{JOB}/*/**/*.parquet")} - used


@pytest.fixture(params=["delta", "iceberg"])
def rig(request, tmp_path) -> Rig:
    return Rig(request.param, tmp_path)


def test_the_last_change_of_each_key_is_what_the_table_has(rig):
    rig.commit(0, (1, "a", "c"), (2, "b", "c"), (3, "c", "r"), (1, "a2", "u"), (4, "gone", "c"), (4, None, "d"))
    assert rig.rows() == {1: "a2", 2: "b", 3: "c"}
    rig.commit(1, (2, None, "d"), (3, "c2", "u"), (9, None, "d"), (5, "e", "c"), (2, "back", "c"), (3, None, "d"))
    assert rig.rows() == {1: "a2", 2: "back", 5: "e"}
    assert rig.table().column_names == ["id", "name", "offset"]


def test_the_order_of_changes_is_that_of_their_sequence_whichever_task_has_them(rig):
    early, late = rig.batch([(1, "early", "c"), (2, "early", "c")]), rig.batch([(1, None, "d"), (2, "late", "u")])
    driver(rig.sink).commit(0, (rig.prepared(0, late, 0), rig.prepared(0, early, 1)))
    assert rig.rows() == {2: "late"}


def test_an_epoch_is_one_version_and_leaves_nothing(rig):
    rig.commit(0, (1, "a", "c"), (2, "b", "c"))
    before = versions(rig)
    committing = driver(rig.sink)
    committing.recover()
    committing.commit(1, (rig.prepared(1, rig.batch([(1, "a2", "u"), (3, "c", "c")])),))
    assert versions(rig) == before + 2  # one of the new driver
    assert rig.unused() == set()
    assert rig.rows() == {1: "a2", 2: "b", 3: "c"}


def versions(rig: Rig) -> int:
    if rig.kind == "delta":
        return DeltaTable(rig.sink.uri).version()
    return len(iceberg_table(rig.folder).metadata.snapshots)


def test_files_without_a_changed_key_are_left_as_they_are(rig):
    rig.commit(0, *((number, "a", "c") for number in range(10)))
    (first,) = paths(rig)
    rig.commit(1, *((number, "b", "c") for number in range(10, 20)))
    rig.commit(2, (12, None, "d"))
    assert first in paths(rig)
    assert len(rig.rows()) == 19


def paths(rig: Rig) -> list[str]:
    return delta_paths(rig.sink.uri) if rig.kind == "delta" else iceberg_paths(rig.folder)


def test_rows_of_others_are_changed_too(rig):
    """Of whatever file of the table, also of one with a partition's name in its path."""
    theirs = pa.table({"id": [1, 2], "name": ["theirs", "theirs"], "offset": pa.array([None, None], pa.int64())})
    if rig.kind == "delta":
        write_deltalake(rig.sink.uri, theirs, mode="append")
    else:
        iceberg_table(rig.folder).append(theirs)
    rig.commit(0, (2, "ours", "u"))
    assert rig.rows() == {1: "theirs", 2: "ours"}


@KINDS
def test_partitions_and_keys_of_several_columns(tmp_path, kind):
    schema = pa.schema([("city", pa.string()), ("day", pa.date32()), ("total", pa.decimal128(9, 2)), ("n", pa.int32())])
    rig = Rig(kind, tmp_path, Changes(("city", "day"), ("n",)), schema, partition_by=("city",))
    days = [date(2024, 1, 1), date(2024, 1, 2)]
    rows = [{"city": city, "day": day, "total": Decimal("1.50"), "n": 1} for city in ("a/b %c", "d") for day in days]
    driver(rig.sink).commit(0, (rig.prepared(0, pa.RecordBatch.from_pylist(rows, schema=schema)),))
    update = [{**rows[0], "total": Decimal("2.50"), "n": 2}, {**rows[0], "day": date(2024, 1, 3)}]
    driver(rig.sink).commit(1, (rig.prepared(1, pa.RecordBatch.from_pylist(update, schema=schema)),))
    found = rig.table().sort_by([("city", "ascending"), ("day", "ascending")]).select(schema.names).to_pylist()
    assert found == [update[0], rows[1], update[1], rows[2], rows[3]]


ODD_PARTITIONS = ["a b", " ", "50%", "a%20b", "ä/ö", "x=1", "q?#&+", "a:b", "it's", 'say "x"', "back\\slash", "tab\t"]


@pytest.mark.parametrize("partition", ODD_PARTITIONS)
def test_rows_of_others_are_changed_whatever_their_partition_is_called(tmp_path, partition):
    """The log has paths as URIs, and partitions in them."""
    schema = ROWS.append(pa.field("p", pa.string()))
    uri = str(tmp_path / "table")
    of_others = pa.table({"id": [1, 2, 70], "name": ["a", "b", "far"], "offset": [0, 0, 0], "p": [partition] * 2 + ["far"]})
    write_deltalake(uri, of_others, partition_by=["p"])
    sink = DeltaSink(uri, changes=BY_ID)

    def commit(epoch: int, *rows: tuple[int, str | None, str, int]) -> None:
        columns = dict(zip(ROWS.names, zip(*rows, strict=True), strict=True)) | {"p": [partition] * len(rows)}
        commit_rows(sink, epoch, pa.RecordBatch.from_pydict(columns, schema))

    (rewritten,) = sink.log().load().files_with(pa.table({"id": [1]}))  # the other one is not read
    assert rewritten.read()["p"].unique().to_pylist() == [partition]
    commit(0, (1, "a2", "u", 5), (2, None, "d", 6), (3, "c", "c", 7))
    commit(1, (3, "c2", "u", 8))
    rows = DeltaTable(uri).to_pyarrow_table().select(["id", "name", "p"]).to_pylist()
    assert sorted(map(tuple, map(dict.values, rows))) == [(1, "a2", partition), (3, "c2", partition), (70, "far", "far")]


PRINTABLE = "".join(map(chr, range(32, 127))).replace("/", "")


@pytest.mark.parametrize("logged", ["city=Zürich/a", "it%27s", "c%3Ad", "e%28f%29", "g%7Eh", f"x{quote(PRINTABLE, safe='')}"])
def test_a_file_whose_path_the_library_writes_in_another_way_is_not_doubled(tmp_path, logged):
    """As Spark writes what is not ASCII: `deltalake` would remove a path that the log does not have."""
    rig = Rig("delta", tmp_path)
    rig.commit(0, (7, "far", "c"))
    path = rig.root / unquote(f"{logged}.parquet")
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", "b"], "offset": [0, 0]}), path)
    stats = json.dumps({"numRecords": 2, "minValues": {"id": 1}, "maxValues": {"id": 2}})
    added = {"path": f"{logged}.parquet", "partitionValues": {}, "size": path.stat().st_size, "modificationTime": 0}
    version = len(list((rig.root / "_delta_log").glob("*.json")))
    (rig.root / f"_delta_log/{version:020}.json").write_text(json.dumps({"add": added | {"dataChange": True, "stats": stats}}))
    rig.commit(1, (7, "farther", "u"))
    with pytest.raises(UsageError, match="its rows would come twice"):
        rig.commit(2, (1, "a2", "u"))
    assert rig.rows() == {1: "a", 2: "b", 7: "farther"}


def test_a_path_that_the_library_writes_as_it_is_logged_is_removed(tmp_path):
    """Each letter is written as `check_removable` has it."""
    rig = Rig("delta", tmp_path)
    letters = [*PRINTABLE, "ä", "€", "😀", "\u0301"]
    table = DeltaTable(rig.sink.uri)
    removed = [RemoveAction(f"{letter}x", data_change=True, deletion_timestamp=0) for letter in letters]
    table.create_write_transaction(removed, "append", table.schema())
    logged = [action["remove"]["path"] for action in delta_actions(str(rig.root)) if "remove" in action]
    assert logged == [quote(f"{letter}x", safe=delta._NOT_QUOTED) for letter in letters]


def test_a_merge_that_only_adds_rows_has_read_the_table(tmp_path):
    """Else Spark's own merges would not take it for a conflict, and add the same keys."""
    Rig("delta", tmp_path).commit(0, (1, "a", "c"))
    commits = [action["commitInfo"] for action in delta_actions(f"{tmp_path}/table") if "commitInfo" in action]
    assert [each.get("isBlindAppend") for each in commits] == [None, True, False]


def test_a_key_whose_change_moves_it_to_another_partition_is_there_once(tmp_path):
    rig = Rig("delta", tmp_path, partition_by=("name",))
    rig.commit(0, (1, "here", "c"), (2, "here", "c"))
    rig.commit(1, (1, "there", "u"))
    assert rig.rows() == {1: "there", 2: "here"}


def test_rows_in_folders_of_any_name_are_replaced_and_no_file_is_left(tmp_path):
    names = ["a", None, "a b", "ü", "x/y", "c=d", "50%", "%41", "..", "it's", "#?:*", "~", "l" * 300]
    rig = Rig("delta", tmp_path, partition_by=("name",))
    rig.commit(0, *((at, name, "c") for at, name in enumerate(names)))
    rig.commit(1, *((at, name, "u") for at, name in enumerate(reversed(names))))
    assert rig.rows() == dict(enumerate(reversed(names)))
    DeltaTable(rig.sink.uri).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert rig.rows() == dict(enumerate(reversed(names)))
    assert rig.unused() == set()


def test_change_types_of_other_systems(tmp_path):
    for at, (insert, before, update, delete) in enumerate(
        (("+I", "-U", "+U", "-D"), ("insert", "update_preimage", "update_postimage", "delete"))
    ):
        rig = Rig("delta", tmp_path / str(at))
        rig.commit(0, (1, "a", insert), (1, "a", before), (1, "b", update), (2, "x", insert), (2, "x", delete))
        assert rig.rows() == {1: "b"}
        with pytest.raises(UsageError, match=r"column 'op' says what becomes of a row by c, r, u, .*, and not by 'x'"):
            rig.commit(1, (1, None, "x"))


@pytest.mark.parametrize("kind", ["t", "truncate"])
def test_a_truncation_is_named_and_what_can_be_done(tmp_path, kind):
    """Regression: the error only listed what else a change may be."""
    rig = Rig("delta", tmp_path)
    with pytest.raises(
        UsageError, match=rf"was truncated \(column 'op' is '{kind}'\).* Empty this table .*, or leave such rows"
    ):
        rig.commit(0, (1, "a", "c"), (2, None, kind))


@KINDS
@pytest.mark.parametrize("sequence", [("offset",), ()])
@pytest.mark.parametrize(("before", "after"), [("update_preimage", "update_postimage"), ("-U", "+U")])
def test_a_key_that_an_update_changes_leaves_no_row(tmp_path, kind, sequence, before, after):
    """Rows of one change have one sequence, and come in any order, from any task."""
    rig = Rig(kind, tmp_path, Changes(("id",), sequence, "op"))

    def commit(epoch: int, *rows: tuple[int, str, str, int]) -> None:
        batch = pa.RecordBatch.from_pydict(dict(zip(ROWS.names, zip(*rows, strict=True), strict=True)), ROWS)
        handles = [rig.prepared(epoch, batch.slice(at, 1), at) for at in range(batch.num_rows)]
        driver(rig.sink).commit(epoch, tuple(handles))

    commit(0, (1, "a", "insert", 1), (2, "b", "insert", 1))
    commit(1, (5, "a", after, 2), (1, "a", before, 2), (2, "c", after, 2), (2, "b", before, 2))
    assert rig.rows() == {5: "a", 2: "c"}
    if sequence:
        commit(2, (5, "d", after, 3), (5, "a", before, 3), (5, "d", before, 4))
        assert rig.rows() == {2: "c"}


def test_a_boolean_says_what_is_deleted_and_without_a_change_type_every_row_takes_the_place_of_another(tmp_path):
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("gone", pa.bool_())])
    rig = Rig("delta", tmp_path / "a", Changes(("id",), (), "gone"), schema)
    rows = {"id": [1, 2], "name": ["a", "b"], "gone": [False, False]}
    driver(rig.sink).commit(0, (rig.prepared(0, pa.RecordBatch.from_pydict(rows, schema=schema)),))
    rows = {"id": [1], "name": [None], "gone": [True]}
    driver(rig.sink).commit(1, (rig.prepared(1, pa.RecordBatch.from_pydict(rows, schema=schema)),))
    assert rig.rows() == {2: "b"}
    plain = pa.schema([("id", pa.int64()), ("name", pa.string())])
    rig = Rig("delta", tmp_path / "b", Changes(("id",), ()), plain)
    batch = pa.RecordBatch.from_pydict({"id": [1, 1], "name": ["a", "b"]}, schema=plain)
    with pytest.raises(UsageError, match=r"\{'id': 1\} has more than one change in an epoch, and no sequence states which"):
        driver(rig.sink).commit(0, (rig.prepared(0, batch),))


def test_what_a_deleted_row_lacks_does_not_matter_and_what_another_lacks_does(tmp_path):
    schema = pa.schema(
        [ROWS.field("id"), pa.field("name", pa.string(), nullable=False), ROWS.field("op"), ROWS.field("offset")]
    )
    rig = Rig("delta", tmp_path, schema=schema)
    rig.schema = ROWS
    rig.commit(0, (1, "a", "c"), (2, None, "d"))
    assert rig.rows() == {1: "a"}
    with pytest.raises(UsageError, match="column 'name' of the table must not be null"):
        rig.commit(1, (3, None, "c"))


WITH_A_NULL = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([None], pa.int64()))


@pytest.mark.parametrize(("rows", "message"), [
    ({"name": ["a"], "op": ["c"], "offset": [1]}, "changes need the column 'id'; the columns are name, op, offset"),
    ({"id": [1], "name": ["a"], "offset": [1]}, "changes need the column 'op'"),
    ({"id": [1], "name": ["a"], "op": ["c"]}, "changes need the column 'offset'"),
    ({"id": [None], "name": ["a"], "op": ["c"], "offset": [1]}, "column 'id' is null in the table|'id' .*null"),
    ({"id": [1], "name": ["a"], "op": ["c"], "offset": [None]}, "'offset' states which change is the later one"),
    ({"id": [1], "name": ["a"], "op": [None], "offset": [1]}, "and not by None"),
    ({"id": ["x"], "name": ["a"], "op": ["c"], "offset": [1]}, "column 'id' is int64 in the table, and string"),
    ({"id": WITH_A_NULL, "name": ["a"], "op": ["c"], "offset": [1]}, "column 'id' of the table must not be null"),
    ({"id": [1], "name": ["a"], "op": ["c"], "offset": WITH_A_NULL}, "'offset' states which change is the later one"),
])  # fmt: skip
def test_changes_that_cannot_be_merged_are_refused_in_their_task(tmp_path, rows, message):
    rig = Rig("delta", tmp_path)
    kinds = {field.name: field.type for field in ROWS}
    columns = {
        name: values if isinstance(values, pa.Array) else pa.array(values, None if values == ["x"] else kinds[name])
        for name, values in rows.items()
    }
    with pytest.raises(UsageError, match=message):
        rig.prepared(0, pa.RecordBatch.from_pydict(columns))
    assert rig.unused() == set()


def test_a_sequence_that_cannot_be_sorted_is_refused_in_its_task(tmp_path):
    """In the driver the epoch would fail again with each restart."""
    rig = Rig("delta", tmp_path, Changes(("id",), ("order",)), ROWS)
    with pytest.raises(UsageError, match=r"column 'order' is .*, and changes cannot be sorted by that type: cast it"):
        rig.prepared(0, pa.record_batch({"id": [1], "order": [[1]]}))


@pytest.mark.parametrize("name", ["_headrace_deleted", "__headrace_row"])
def test_a_column_named_as_ours_is_refused_in_its_task(tmp_path, name):
    sink = DeltaSink(str(tmp_path), changes=Changes((name,), ()))
    rows = pa.record_batch({name: [1]})
    sink.create_table(rows.schema)
    with pytest.raises(UsageError, match=f"column '{name}' is named as those that headrace adds"):
        sink.begin(Attempt("job", 0, 0, 0)).write(rows)


def test_keys_that_cannot_be_compared_are_refused():
    with pytest.raises(UsageError, match="one key or more, each named once"):
        Changes(())
    with pytest.raises(UsageError, match="cannot be the change type and a key"):
        Changes(("op",), (), "op")


@pytest.mark.parametrize("value", ["true", "True", "TRUE"])
@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_tables_whose_rows_may_not_be_replaced_are_refused(tmp_path, name, value):
    schema = pa.schema([field for field in ROWS if field.name != "op"])
    DeltaTable.create(f"{tmp_path}/table", schema=schema, configuration={name: value})
    rig = Rig("delta", tmp_path)
    with pytest.raises(UsageError, match=f"cannot replace rows of this table: .* \\({name}\\)"):
        rig.commit(0, (1, "a", "c"))


def test_rows_of_a_former_partition_whose_column_is_gone_are_not_replaced_and_others_are(tmp_path):
    rig = Rig("iceberg", tmp_path, partition_by=["name"])
    rig.commit(0, (1, "a", "c"))
    with iceberg_table(rig.folder).update_spec() as spec:
        spec.remove_field("name")
    with iceberg_table(rig.folder).update_schema() as schema:
        schema.delete_column("name")
    rig.schema = pa.schema([field for field in ROWS if field.name != "name"])
    for epoch in (1, 2):
        rig.commit(epoch, (2, None, "c"))
    assert sorted(iceberg_table(rig.folder).scan().to_arrow()["id"].to_pylist()) == [1, 2]
    with pytest.raises(UsageError, match="the column of its former partition 'name' is gone"):
        rig.commit(3, (1, None, "c"))


def test_values_come_through_a_merge_as_they_are(tmp_path):
    """Rows that are written again because a neighbour has changed keep every type."""
    schema = pa.schema([
        ("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("local", pa.timestamp("us")), ("list", pa.list_(pa.int32())),
        ("inner", pa.struct([("a", pa.int64()), ("b", pa.string())])), ("raw", pa.binary()), ("flag", pa.bool_()),
        ("offset", pa.int64()),
    ])  # fmt: skip
    at = datetime(1969, 12, 31, 23, 59, 59, 123456, UTC)
    row = {"id": 1, "at": at, "local": at.replace(tzinfo=None), "list": [1, None], "inner": {"a": 1, "b": None}}
    row |= {"raw": b"\x00\xff", "flag": True, "offset": 1}
    for kind in ("delta", "iceberg"):
        rig = Rig(kind, tmp_path / kind, Changes(("id",)), schema)
        rows = [row, {**row, "id": 2}]
        driver(rig.sink).commit(0, (rig.prepared(0, pa.RecordBatch.from_pylist(rows, schema=schema)),))
        update = {**dict.fromkeys(row), "id": 2, "offset": 2}
        driver(rig.sink).commit(1, (rig.prepared(1, pa.RecordBatch.from_pylist([update], schema=schema)),))
        assert sorted(rig.table().cast(schema).to_pylist(), key=lambda found: found["id"]) == [row, update]


# --- rivals, deaths, lost answers ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_applied", [True, False])
def test_a_commit_whose_answer_is_lost_is_not_merged_twice(rig, is_applied):
    rig.watched(answer_lost(is_applied=is_applied)).commit(0, (rig.prepared(0, rig.batch([(1, "a", "c"), (2, "b", "c")])),))
    assert rig.rows() == {1: "a", 2: "b"}
    assert rig.unused() == set()


def changed_without_a_commit_of_rows(rig: Rig) -> None:
    """Another process adds a column, which in Iceberg moves no branch."""
    if rig.kind == "delta":
        DeltaTable(rig.sink.uri).alter.add_columns([Field("note", PrimitiveType("string"))])
        return
    with iceberg_table(rig.folder).update_schema() as update:
        update.add_column("note", StringType())


def test_a_commit_that_was_lost_and_arrives_after_another_column_is_refused_and_no_file_of_the_table_is_gone(rig):
    """The catalog has it late: the column was added meanwhile, and another merge made for that."""
    late: list[Callable[[], None]] = []
    refused: list[PeerError] = []

    def around(number, commit):
        if number == 3:
            late.append(commit)
            changed_without_a_commit_of_rows(rig)
            raise OutdatedError("injected: the answer is lost")
        if number == 4:
            with pytest.raises(PeerError) as settings:
                late[0]()
            refused.append(settings.value)
        commit()

    committing = rig.watched(around)
    committing.commit(0, (rig.prepared(0, rig.batch([(1, "a", "c"), (2, "b", "c")])),))
    committing.commit(1, (rig.prepared(1, rig.batch([(1, "a2", "u")])),))
    assert len(refused) == 1
    assert rig.rows() == {1: "a2", 2: "b"}
    assert rig.unused() == set()


def test_the_files_of_a_merge_that_was_to_be_committed_are_there_until_the_epoch_is(rig):
    """Who has not heard what became of a commit does not remove what it names."""
    tried: list[set[str]] = []
    there: list[set[str]] = []

    def around(number, commit):
        if number == 2:
            tried.append(rig.unused_files())
            changed_without_a_commit_of_rows(rig)
            raise OutdatedError("injected: the answer is lost")
        if number == 3:
            there.append(rig.unused_files())
        commit()

    rig.commit(0, (1, "a", "c"), (2, "b", "c"))
    rig.watched(around).commit(1, (rig.prepared(1, rig.batch([(1, "a2", "u")])),))
    assert len(tried[0]) == 2  # what the task has staged, and the merge
    assert tried[0] < there[0]
    assert rig.rows() == {1: "a2", 2: "b"}
    assert rig.unused() == set()


def test_a_rival_that_writes_the_same_keys_during_a_commit_is_seen(rig):
    """What was made of the older version is thrown away, with its files."""
    rivals = []

    def around(number, commit):
        if number in (2, 3):
            theirs = pa.table({"id": [1, 10 + number], "name": ["theirs"] * 2, "offset": pa.array([0, 0], pa.int64())})
            if not rivals:
                write(theirs)
            else:
                write(theirs.slice(1))
            rivals.append(number)
        commit()

    def write(rows: pa.Table) -> None:
        if rig.kind == "delta":
            write_deltalake(rig.sink.uri, rows, mode="append")
        else:
            iceberg_table(rig.folder).append(rows)

    rig.watched(around).commit(0, (rig.prepared(0, rig.batch([(1, "ours", "c")])),))
    assert rivals == [2, 3]
    assert rig.rows() == {1: "ours", 12: "theirs", 13: "theirs"}
    assert rig.unused() == set()


def test_a_driver_that_takes_over_during_a_merge_fences_it(rig):
    newer = driver(rig.sink)
    with pytest.raises(FencedError):
        rig.watched(taken_over_by(newer)).commit(0, (rig.prepared(0, rig.batch([(1, "a", "c")])),))
    assert rig.rows() == {}
    newer.commit(0, (rig.prepared(0, rig.batch([(1, "a", "c")])),))
    assert rig.rows() == {1: "a"}
    assert rig.unused() == set()


STEP = 5
"""Deaths that are tried: at each fifth thing that is done. All of them (1) take a minute."""


def test_a_driver_that_dies_before_anything_that_it_does(tmp_path):
    deaths = 0
    for nth in range(1, 300, STEP):
        rig = Rig(("delta", "iceberg")[nth // STEP % 2], tmp_path / str(nth))
        rig.commit(0, (1, "a", "c"), (2, "b", "c"), (3, "c", "c"))
        death = Death(nth)
        changes = rig.batch([(1, "a2", "u"), (2, None, "d"), (4, "d", "c")])
        try:
            rig.watched(death.around, death.step).commit(
                1, (rig.prepared(1, changes.slice(0, 2)), rig.prepared(1, changes.slice(2), 1))
            )
        except KilledError:
            deaths += 1
        successor = driver(rig.sink)
        successor.recover()
        is_recorded = rig.sink.recorded_epochs()[JOB] == 1
        assert rig.rows() == ({1: "a2", 3: "c", 4: "d"} if is_recorded else {1: "a", 2: "b", 3: "c"}), nth
        successor.commit(1, () if is_recorded else (rig.prepared(1, changes),))
        successor.commit(2, (rig.prepared(2, rig.batch([(3, "c2", "u")])),))
        assert rig.rows() == {1: "a2", 3: "c2", 4: "d"}, nth
        assert rig.unused() == set(), nth
        if death.left > 0:
            break
    assert deaths > 3


@KINDS
def test_a_changelog_in_many_epochs_gives_the_same_table_as_a_plain_replay(tmp_path, kind):
    """Kills at random between, epochs written again in other shares; judged by a dictionary."""
    chance, rig, wanted, kills = random.Random(5), Rig(kind, tmp_path), {}, 0
    for epoch in range(4):
        changes = [(chance.randrange(40), f"{epoch}.{n}", chance.choice("crud")) for n in range(30)]
        batch = rig.batch(changes)
        for key, name, op in changes:
            wanted.pop(key, None) if op == "d" else wanted.update({key: name})
        for death in (Death(chance.randrange(1, 40)), Death(chance.randrange(1, 40)), Death(10**6)):
            cut = chance.randrange(1, 29)
            recorded = rig.sink.recorded_epochs().get(JOB, -1)
            shares = (
                ()
                if recorded == epoch
                else (rig.prepared(epoch, batch.slice(cut)), rig.prepared(epoch, batch.slice(0, cut), 1))
            )
            try:
                rig.watched(death.around, death.step).commit(epoch, shares)
                break
            except KilledError:
                kills += 1
    assert kills > 3
    assert rig.rows() == wanted


@KINDS
def test_a_row_before_a_change_and_the_one_after_it_may_be_of_other_batches_tasks_and_epochs(tmp_path, kind):
    rig = Rig(kind, tmp_path)
    rig.commit(0, (1, "a", "c"), (2, "b", "c"))
    with rig.sink.begin(Attempt(JOB, 1, 1, 0)) as transaction:
        transaction.write(rig.batch([(1, "a", "-U")]))
        transaction.write(rig.batch([(1, "a1", "+U")]))
        before, after = rig.batch([(2, "b", "-U")]), rig.batch([(2, "b1", "+U")])
        driver(rig.sink).commit(1, (rig.prepared(1, after), transaction.prepare(), rig.prepared(1, before, 2)))
    assert rig.rows() == {1: "a1", 2: "b1"}
    rig.commit(2, (1, "a1", "-U"))
    assert rig.rows() == {2: "b1"}
    rig.commit(3, (3, "a1", "+U"))
    assert rig.rows() == {2: "b1", 3: "a1"}


@KINDS
def test_a_timestamp_that_spark_has_written_comes_through_a_merge_as_it_is(tmp_path, kind):
    """As INT96, which by itself Arrow reads as nanoseconds: the end of time would be another year then."""
    schema = pa.schema([*ROWS, ("until", pa.timestamp("us"))])
    rig = Rig(kind, tmp_path, schema=schema)
    end = datetime(9999, 12, 31)
    theirs = pa.table(
        {"id": [1, 2], "name": ["theirs"] * 2, "offset": [0, 0], "until": pa.array([end, end], pa.timestamp("us"))}
    )
    file = Path(rig.sink.uri if kind == "delta" else tmp_path, "theirs.parquet")
    pq.write_table(theirs, file, use_deprecated_int96_timestamps=True)
    if kind == "delta":
        _add_to_delta(rig, file.name)
    else:
        _add_to_iceberg(rig, file)
    ours = pa.RecordBatch.from_pydict({"id": [2], "name": ["ours"], "op": ["u"], "offset": [1], "until": [None]}, schema=schema)
    driver(rig.sink).commit(0, (rig.prepared(0, ours),))
    assert sorted((row["id"], row["name"], row["until"]) for row in rig.table().to_pylist()) == [
        (1, "theirs", end),
        (2, "ours", None),
    ]


def test_a_file_with_a_column_in_another_case_is_not_written_again(tmp_path):
    """Spark takes one into a table (CONVERT TO DELTA). Rows of which nothing was changed lost that column's values."""
    rig = Rig("delta", tmp_path)
    file = Path(rig.sink.uri, "theirs.parquet")
    pq.write_table(pa.table({"id": [1, 2], "Name": ["theirs"] * 2, "offset": [0, 0]}), file)
    _add_to_delta(rig, file.name)
    with pytest.raises(UsageError, match=r"the file 'theirs.parquet': it has 'Name' for the table's 'name'"):
        rig.commit(0, (2, "ours", "u"))
    with pytest.raises(UsageError, match=r"the file 'theirs.parquet' has 'Name' for the table's 'name'"):
        list(rig.sink.log().load().batches(["id", "name"]))
    assert sum(each.num_rows for each in rig.sink.log().load().batches(["id"])) == 2


def test_what_a_file_has_for_a_partition_is_not_looked_at(tmp_path):
    """Its values are the log's, whatever columns the file has."""
    rig = Rig("delta", tmp_path, partition_by=["name"])
    folder = Path(rig.sink.uri, "name=theirs")
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "Name": ["theirs"] * 2, "offset": [0, 0], "op": ["c"] * 2}), folder / "a.parquet")
    table = DeltaTable(rig.sink.uri)
    size = (folder / "a.parquet").stat().st_size
    action = AddAction("name=theirs/a.parquet", size, {"name": "theirs"}, 0, data_change=True, stats="{}")
    table.create_write_transaction([action], "append", table.schema(), ["name"])
    rig.commit(0, (2, "ours", "u"))
    assert rig.rows() == {1: "theirs", 2: "ours"}


def test_a_table_with_files_of_another_one_is_not_rewritten(tmp_path):
    """A shallow clone of Spark's. Its files were looked for in the table's own folder, again and again."""
    rig = Rig("delta", tmp_path)
    table = DeltaTable(rig.sink.uri)
    action = AddAction("file:/another/table.parquet", 1, {}, 0, data_change=True, stats="{}")
    table.create_write_transaction([action], "append", table.schema(), [])
    with pytest.raises(UsageError, match=r"it has files of another one, .* \(file:/another/table.parquet\)"):
        rig.commit(0, (2, "ours", "u"))


def test_a_file_that_the_library_does_not_read_is_not_written_again(tmp_path):
    """A run started again for ever."""
    rig = Rig("iceberg", tmp_path)
    (tmp_path / "theirs.avro").touch()
    _add_to_iceberg(rig, tmp_path / "theirs.avro", FileFormat.AVRO)
    with pytest.raises(UsageError, match=r"theirs.avro': PyIceberg does not read AVRO files"):
        rig.commit(0, (2, "ours", "u"))


class _DeleteManifest(ManifestWriterV2):
    """PyIceberg writes none."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AddingDelete(_FastAppendFiles):
    """A snapshot with the equality delete of one id, as Flink's upserts write them."""

    def __init__(self, file: Path, deleted: int, **more: Any) -> None:
        super().__init__(**more)
        bound = {1: deleted.to_bytes(8, "little")}
        none = dict.fromkeys(("sort_order_id", "key_metadata"))
        pq.write_table(pa.table({"id": [deleted]}), file)
        self._delete = DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES, file_format=FileFormat.PARQUET, spec_id=0, file_path=str(file),
            file_size_in_bytes=file.stat().st_size, record_count=1, partition=Record(), equality_ids=[1], value_counts={1: 1},
            null_value_counts={1: 0}, lower_bounds=bound, upper_bounds=bound, **none,
        )  # fmt: skip

    def _manifests(self) -> list[Any]:
        schema = self._transaction.table_metadata.schema()
        with _DeleteManifest(self.spec(0), schema, self.new_manifest_output(), self._snapshot_id, "deflate") as writer:
            numbers = {"snapshot_id": self._snapshot_id, "sequence_number": None, "file_sequence_number": None}
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=self._delete, **numbers))
        return [*super()._manifests(), writer.to_manifest_file()]


@pytest.mark.parametrize("key", [2, 5])
def test_a_table_with_equality_deletes_is_not_rewritten(tmp_path, key):
    """PyIceberg minds those whose bounds are near the keys: a row deleted by another came back in a file written again."""
    rig = Rig("iceberg", tmp_path)
    rig.commit(0, *((each, "ours", "u") for each in (1, 2, 5)))
    table = iceberg_table(rig.folder)
    with table.transaction() as transaction:
        adding = {"operation": Operation.APPEND, "transaction": transaction, "io": table.io}
        with _AddingDelete(tmp_path / "delete.parquet", 2, **adding):
            pass
    with pytest.raises(UsageError, match=r"it has equality deletes, which PyIceberg does not apply"):
        rig.prepared(1, rig.batch([(key, "new", "u")]))
    assert not rig.sink.log().load().refers_to(["not there"])


def _add_to_delta(rig: Rig, name: str) -> None:
    table, file = DeltaTable(rig.sink.uri), Path(rig.sink.uri, name)
    action = AddAction(file.name, file.stat().st_size, {}, 0, data_change=True, stats="{}")
    table.create_write_transaction([action], "append", table.schema(), [])


def _add_to_iceberg(rig: Rig, file: Path, form: FileFormat = FileFormat.PARQUET) -> None:
    """As Spark's procedures `add_files` and `migrate` do; PyIceberg refuses it."""
    table = iceberg_table(rig.folder)
    found = {"file_path": str(file), "file_size_in_bytes": file.stat().st_size, "record_count": 2, "partition": Record()}
    none = dict.fromkeys(("sort_order_id", "equality_ids", "key_metadata"))
    added = DataFile.from_args(content=DataFileContent.DATA, file_format=form, spec_id=0, **found, **none)
    with table.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": table.schema().name_mapping.model_dump_json()})
        with transaction.update_snapshot().fast_append() as snapshot:
            snapshot.append_data_file(added)


# --- columns that a table does not have yet ------------------------------------------------------------------------------
NARROW = pa.schema([("id", pa.int64()), ("name", pa.string())])
WIDE = pa.schema([pa.field("extra", pa.float64(), nullable=False), *NARROW, ("tags", pa.list_(pa.string()))])


def append(sink: Any, epoch: int, row: dict[str, Any], schema: pa.Schema) -> None:
    commit_rows(sink, epoch, pa.RecordBatch.from_pylist([row], schema=schema))


@KINDS
def test_columns_that_a_table_does_not_have_are_added_if_that_is_asked_for(tmp_path, kind):
    sink_of(kind, tmp_path).create_table(NARROW)
    append(sink_of(kind, tmp_path), 0, {"id": 1, "name": "a"}, NARROW)
    plain, merging = sink_of(kind, tmp_path), sink_of(kind, tmp_path, merge_schema=True)
    plain.create_table(WIDE)
    with pytest.raises(UsageError, match="the table has no column 'extra'"):
        plain.check_rows(WIDE)
    for _ in range(2):
        merging.create_table(WIDE)
    append(merging, 1, {"id": 2, "name": "b", "extra": 0.5, "tags": ["x"]}, WIDE)
    append(merging, 2, {"id": 3, "name": "c"}, NARROW)
    found = rows_of(kind, tmp_path).sort_by("id").to_pylist()
    assert [row["extra"] for row in found] == [None, 0.5, None]
    assert [row["tags"] for row in found] == [None, ["x"], None]


@KINDS
@pytest.mark.parametrize("columns", [["id"], ["id", "name", "note", "more"]])
def test_a_batch_with_other_columns_than_the_first_one_of_its_transaction_is_refused(tmp_path, kind, columns):
    """Not given the values of another column, and nothing is left out silently."""
    table = pa.schema([("id", pa.int64()), ("name", pa.string()), ("note", pa.string()), ("more", pa.string())])
    sink = sink_of(kind, tmp_path)
    sink.create_table(table)
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(pa.RecordBatch.from_pydict({"id": [1], "note": ["n"], "name": ["a"]}))
        transaction.write(pa.RecordBatch.from_pydict({"name": ["a"], "id": [1], "note": ["n"]}))
        with pytest.raises(UsageError, match=r"a batch has the columns id.*, and one before it .* id, name, note: give all"):
            transaction.write(pa.RecordBatch.from_pydict({name: [2] if name == "id" else ["b"] for name in columns}))


@KINDS
@pytest.mark.parametrize(
    ("changes", "name"), [(None, "id"), (None, "at"), (Changes(("id",)), "at"), (Changes(("id",)), "offset")]
)
def test_a_batch_of_other_types_than_the_first_one_is_not_cast(tmp_path, kind, changes, name):
    """A text would be a number, and a local time one of UTC."""
    first = pa.record_batch({"id": [1], "at": pa.array([0], pa.timestamp("us", "UTC")), "offset": [1]})
    others = {"id": pa.array(["7"]), "at": pa.array([0], pa.timestamp("us")), "offset": pa.array(["7"])}
    sink = sink_of(kind, tmp_path, changes=changes)
    sink.create_table(pa.schema([field for field in first.schema if not changes or field.name != "offset"]))
    same = {column: first[column] for column in reversed(first.schema.names)}
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(first)
        transaction.write(pa.record_batch({**same, "id": pa.array([2]).dictionary_encode()}))
        with pytest.raises(UsageError, match=f"'{name}' is .* in the table, and .* in the rows|a sequence of another type"):
            transaction.write(pa.record_batch({**same, name: others[name]}))


@KINDS
def test_a_column_of_another_type_is_not_changed(tmp_path, kind):
    sink = sink_of(kind, tmp_path, merge_schema=True)
    sink.create_table(NARROW)
    other = pa.schema([("id", pa.int64()), ("name", pa.int64()), ("more", pa.int64())])
    with pytest.raises(UsageError, match=r"column 'name' is .*string in the table, and int64 in the rows: cast it"):
        sink.create_table(other)
    assert "more" not in rows_of(kind, tmp_path).column_names


@KINDS
def test_a_rival_that_adds_the_same_columns_at_the_same_time_is_no_failure(tmp_path, kind):
    sink = sink_of(kind, tmp_path, merge_schema=True)
    sink.create_table(NARROW)
    rivals = []

    def around(number, commit):
        rivals.append(number)
        if number == 1:
            sink.create_table(WIDE)
        commit()

    TableCommitter(WatchedLog(sink.log(), around), "schema", "the table").widen(lambda table: new_columns(WIDE, table))
    assert rivals == [1]
    assert sorted(rows_of(kind, tmp_path).column_names) == ["extra", "id", "name", "tags"]


def make_required(kind: str, folder: Path, name: str) -> None:
    """Another tool does, which finds no null in the column (Delta: as Spark's SET NOT NULL writes it)."""
    if kind == "iceberg":
        with iceberg_table(str(folder)).update_schema(allow_incompatible_changes=True) as update:
            update.update_column(name, required=True)
        return
    logged = sorted((folder / "table" / "_delta_log").glob("*.json"))
    actions = (json.loads(line) for path in logged for line in path.read_text().splitlines())
    *_, described = (action for action in actions if "metaData" in action)
    schema = json.loads(described["metaData"]["schemaString"])
    next(field for field in schema["fields"] if field["name"] == name)["nullable"] = False
    described["metaData"]["schemaString"] = json.dumps(schema)
    logged[0].with_name(f"{len(logged):020d}.json").write_text(json.dumps(described))


@KINDS
def test_files_with_nulls_are_not_committed_into_a_column_that_is_required_by_then(tmp_path, kind):
    sink, rows = sink_of(kind, tmp_path), pa.RecordBatch.from_pylist([{"id": 1, "name": None}], schema=NARROW)
    sink.create_table(NARROW)
    handle = prepared_rows(sink, 0, 0, rows)
    make_required(kind, tmp_path, "name")
    with pytest.raises(PeerError, match=r"has changed since the files were written \(name\): write the epoch again"):
        driver(sink).commit(0, (handle,))
    with pytest.raises(UsageError, match="'name' of the table must not be null"):
        prepared_rows(sink, 0, 0, rows)


@KINDS
def test_files_without_nulls_are_committed_though_their_column_is_required_or_may_be_null_by_then(tmp_path, kind):
    sink, rows = sink_of(kind, tmp_path), pa.RecordBatch.from_pylist([{"id": 1, "name": "a"}], schema=NARROW)
    sink.create_table(NARROW)
    handle = prepared_rows(sink, 0, 0, rows)
    make_required(kind, tmp_path, "name")
    driver(sink).commit(0, (handle,))
    assert rows_of(kind, tmp_path).to_pylist() == rows.to_pylist()
    assert takes(pa.field("name", pa.string()), kind_of(pa.field("name", pa.string(), nullable=False)))


@KINDS
@pytest.mark.parametrize("value", [{"x": 1}, [1]], ids=["struct", "list"])
def test_files_are_looked_into_where_statistics_do_not_say_that_a_column_has_no_nulls(tmp_path, kind, value):
    """Regression: nested columns have no statistics of nulls, and without them all files were taken to have some."""
    sink, rows = sink_of(kind, tmp_path), pa.RecordBatch.from_pylist([{"id": 1, "name": value}])
    sink.create_table(rows.schema)
    handle = prepared_rows(sink, 0, 0, rows)
    make_required(kind, tmp_path, "name")
    driver(sink).commit(0, (handle,))
    assert rows_of(kind, tmp_path).to_pylist() == rows.to_pylist()


@KINDS
def test_nested_nulls_are_not_committed_into_a_column_that_is_required_by_then(tmp_path, kind):
    sink, rows = sink_of(kind, tmp_path), pa.RecordBatch.from_pylist([{"id": 1, "name": [1]}, {"id": 2, "name": None}])
    sink.create_table(rows.schema)
    handle = prepared_rows(sink, 0, 0, rows)
    make_required(kind, tmp_path, "name")
    with pytest.raises(PeerError, match=r"has changed since the files were written \(name\): write the epoch again"):
        driver(sink).commit(0, (handle,))


def test_files_of_a_delta_table_without_statistics_are_looked_into_for_nulls(tmp_path):
    """Regression: files without nulls were refused for a column that is required by then."""
    sink, rows = sink_of("delta", tmp_path), pa.RecordBatch.from_pylist([{"id": 1, "name": "a"}], schema=NARROW)
    sink.create_table(NARROW)
    DeltaTable(f"{tmp_path}/table").alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    handle = prepared_rows(sink, 0, 0, rows)
    make_required("delta", tmp_path, "name")
    driver(sink).commit(0, (handle,))
    assert rows_of("delta", tmp_path).to_pylist() == rows.to_pylist()


@KINDS
@pytest.mark.parametrize("name", ["a", None])
def test_a_column_of_partitions_that_is_required_by_then_is_looked_at_in_their_values(tmp_path, kind, name):
    sink, rows = sink_of(kind, tmp_path), pa.RecordBatch.from_pylist([{"id": 1, "name": name}], schema=NARROW)
    sink.create_table(NARROW, partition_by=["name"])
    handle = prepared_rows(sink, 0, 0, rows)
    make_required(kind, tmp_path, "name")
    with nullcontext() if name else pytest.raises(PeerError, match=r"since the files were written \(name\)"):
        driver(sink).commit(0, (handle,))
    assert rows_of(kind, tmp_path).num_rows == (1 if name else 0)


@KINDS
@pytest.mark.parametrize(("name", "op"), [("b", "insert"), (None, "delete"), (None, "insert")])
def test_changes_without_nulls_are_merged_though_their_column_is_required_by_then(tmp_path, kind, name, op):
    """Regression: the same prepared changes were refused for ever, as files of rows had been."""
    sink_of(kind, tmp_path).create_table(NARROW)
    merging = sink_of(kind, tmp_path, changes=Changes(("id",), (), "op"))
    rows = [{"id": 1, "name": "a", "op": "insert"}, {"id": 2, "name": name, "op": op}]
    handle = prepared_rows(merging, 0, 0, pa.RecordBatch.from_pylist(rows))
    make_required(kind, tmp_path, "name")
    is_refused = name is None and op == "insert"
    with pytest.raises(PeerError, match=r"since the files were written \(name\)") if is_refused else nullcontext():
        driver(merging).commit(0, (handle,))
    assert rows_of(kind, tmp_path).num_rows == (0 if is_refused else 2 if name else 1)


@KINDS
def test_a_file_with_nulls_in_a_column_that_is_required_now_is_named_by_a_merge(tmp_path, kind):
    """Regression: it was Arrow's error, which named no file."""
    sink_of(kind, tmp_path).create_table(NARROW)
    append(sink_of(kind, tmp_path), 0, {"id": 1, "name": None}, NARROW)
    append(sink_of(kind, tmp_path), 1, {"id": 1, "name": "a"}, NARROW)
    make_required(kind, tmp_path, "name")
    merging = sink_of(kind, tmp_path, changes=Changes(("id",), (), None))
    with pytest.raises(
        UsageError, match=r"cannot replace rows of the file '.*parquet', which does not fit the table: .*'name'"
    ):
        append(merging, 2, {"id": 1, "name": "b"}, NARROW)


@pytest.mark.parametrize("keys", [(".id",), (".id", "id")])
def test_a_key_may_be_named_as_a_path_of_arrow(tmp_path, keys):
    sink = DeltaSink(f"{tmp_path}/table", changes=Changes(keys, (), None))
    rows = pa.record_batch({"v": ["a", "b"], ".id": [1, 2], "id": [7, 7]})
    sink.create_table(rows.schema)
    for epoch in range(2):
        commit_rows(sink, epoch, rows)
    assert rows_of("delta", tmp_path).sort_by("v").to_pylist() == rows.to_pylist()
