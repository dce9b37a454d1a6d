"""What a merge of changes refuses, before anything is durable, and what it leaves when it fails; keys of files of others."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.typedef import Record

from headrace.connectors.base.sink import Attempt, CommitList
from headrace.connectors.tables import merging
from headrace.connectors.tables.changes import Changes
from headrace.delta import DeltaSink
from headrace.enumerator.errors import PeerError, RetriableError, UsageError
from headrace.iceberg import IcebergSink
from tests.helpers.both_tables import KINDS, prepared_rows, sink_of
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_table
from tests.helpers.table_rig import JOB, driver, open_marks, unadded_transactions

IDS = pa.schema([("id", pa.int64()), ("name", pa.string())])
BY_ID = Changes(("id",), ())


def prepared(sink: Any, epoch: int, task: int, rows: list[dict[str, Any]], schema: pa.Schema) -> Any:
    return prepared_rows(sink, epoch, task, pa.RecordBatch.from_pylist(rows, schema=schema))


def delta(folder: Path, changes: Changes = BY_ID, schema: pa.Schema = IDS, **given: Any) -> DeltaSink:
    sink = DeltaSink(f"{folder}/table", changes=changes, **given)
    sink.create_table(schema)
    return sink


def found(uri: str) -> list[dict[str, Any]]:
    return DeltaTable(uri).to_pyarrow_table().to_pylist()


@pytest.mark.parametrize(("kind", "keys"), [
    (pa.decimal128(20, 2), [Decimal("123456789012345678.01"), Decimal("123456789012345678.02")]),
    (pa.decimal128(38, 0), [Decimal("12345678901234567890123456789012345678"), Decimal(-(10**30))]),
    (pa.decimal128(9, 2), [Decimal("1.15"), Decimal("-1.15")]),
    (pa.timestamp("us", tz="UTC"), [datetime(2024, 1, 1, 0, 0, 0, 1, UTC), datetime(1969, 1, 1, 0, 0, 0, 999, UTC)]),
], ids=str)  # fmt: skip
def test_a_row_of_others_with_a_key_of_many_digits_is_replaced_and_not_doubled(tmp_path, kind, keys):
    """Their statistics have a decimal as a number of JSON, which is read as a double, and timestamps in milliseconds."""
    schema = pa.schema([("key", kind), ("name", pa.string())])
    for key in keys:
        write_deltalake(f"{tmp_path}/table", pa.Table.from_pylist([{"key": key, "name": "old"}], schema=schema), mode="append")
    sink = delta(tmp_path, Changes(("key",), ()), schema)
    changes = [{"key": key, "name": "new"} for key in keys]
    for epoch, change in enumerate(changes):
        driver(sink).commit(epoch, (prepared(sink, epoch, 0, [change], schema),))
    assert sorted(found(sink.uri), key=lambda row: row["key"]) == sorted(changes, key=lambda row: row["key"])


def test_a_bucket_of_timestamps_with_a_zone_can_be_written(tmp_path):
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    sink = IcebergSink(TABLE, catalog_of(str(tmp_path)))
    sink.create_table(schema, ["bucket(4, at)"])
    rows = [
        {"id": id, "at": at}
        for id, at in enumerate([datetime(2024, 1, 1, 2, 3, 4, 5, UTC), None, datetime(1960, 1, 1, 0, 0, 0, 1, UTC)])
    ]
    driver(sink).commit(0, (prepared(sink, 0, 0, rows, schema),))
    table = iceberg_table(str(tmp_path))
    assert table.scan().to_arrow().sort_by("id").to_pylist() == rows
    for row in rows[::2]:
        text = row["at"].isoformat()
        assert table.scan(row_filter=f"at = '{text}'").to_arrow()["id"].to_pylist() == [row["id"]]


@pytest.mark.parametrize("feature", ["vacuumProtocolCheck", "identityColumns"])
def test_a_table_with_a_feature_that_the_library_does_not_write_is_refused_before_any_task(tmp_path, feature):
    sink = delta(tmp_path)
    rewrite(sink.uri, "protocol", protocol(feature, is_readers=feature == "vacuumProtocolCheck"))
    with pytest.raises(UsageError, match=f"headrace cannot write to this table: it uses {feature}"):
        sink.check_rows(IDS)


@pytest.mark.parametrize("around", ["struct", "list", "map"])
def test_a_rule_for_a_field_within_a_column_is_seen(tmp_path, around):
    """Delta has invariants at any depth."""
    sink = delta(tmp_path)
    rule = {"delta.invariants": '{"expression": {"expression": "x > 5"}}'}
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": rule}]}
    kind = {
        "struct": inner,
        "list": {"type": "array", "elementType": inner, "containsNull": True},
        "map": {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True},
    }[around]
    fields = [{"name": "s", "type": kind, "nullable": True, "metadata": {}}]
    schema = json.dumps({"type": "struct", "fields": fields})
    rewrite(sink.uri, "metaData", {"id": "1", "format": {"provider": "parquet", "options": {}}, "schemaString": schema,
                                   "partitionColumns": [], "configuration": {}})  # fmt: skip
    with pytest.raises(UsageError, match=r"its column 's\.x' has delta\.invariants"):
        sink.log().load().check_writable()


def protocol(feature: str, *, is_readers: bool) -> dict[str, Any]:
    readers = {"minReaderVersion": 3, "readerFeatures": [feature]} if is_readers else {"minReaderVersion": 1}
    return {**readers, "minWriterVersion": 7, "writerFeatures": [feature]}


def test_a_feature_that_only_the_library_refuses_is_no_commit_that_came_too_late(tmp_path, monkeypatch):
    """Which would be tried again for minutes."""
    sink = delta(tmp_path)
    rewrite(sink.uri, "protocol", protocol("rowTracking", is_readers=False))
    monkeypatch.setattr("headrace.connectors.tables.delta._LoadedDelta.check_writable", lambda self: None)
    with pytest.raises(UsageError, match="cannot write to this table: Unsupported table features"):
        driver(sink).recover()


def rewrite(uri: str, action: str, value: dict[str, Any]) -> None:
    (log,) = Path(uri, "_delta_log").glob("*.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps({action: value} if action in line else line) + "\n" for line in lines))


@KINDS
def test_a_column_that_differs_from_another_in_upper_case_alone_is_refused(tmp_path, kind):
    given = {"merge_schema": True}
    sink = delta(tmp_path, **given) if kind == "delta" else IcebergSink(TABLE, catalog_of(str(tmp_path)), **given)
    sink.create_table(IDS)
    with pytest.raises(UsageError, match="columns 'id' and 'ID' differ in upper and lower case alone"):
        sink.create_table(pa.schema([("ID", pa.int64()), ("name", pa.string())]))


TWINS = pa.schema([("id", pa.int64()), ("Id", pa.int64())])


@KINDS
@pytest.mark.parametrize("schema", [TWINS, pa.schema([("c", pa.list_(pa.struct(TWINS)))])], ids=["columns", "fields"])
def test_a_table_with_two_columns_that_differ_in_upper_case_alone_is_not_made(tmp_path, kind, schema):
    """Regression: Iceberg's was, and engines that read it found no row by the second column."""
    sink = sink_of(kind, tmp_path)
    with pytest.raises(UsageError, match="columns 'id' and 'Id' differ in upper and lower case alone"):
        sink.create_table(schema)
    assert not sink.log().exists()


@KINDS
def test_names_that_differ_in_more_than_case_are_two_columns(tmp_path, kind):
    """Regression: a sharp s was taken for two of s, as no engine does."""
    sink_of(kind, tmp_path).create_table(pa.schema([("maße", pa.int64()), ("masse", pa.int64())]))


def test_an_iceberg_table_of_others_with_such_columns_is_left_as_it_is(tmp_path):
    catalog = load_catalog(**catalog_of(str(tmp_path)))
    catalog.create_namespace("shop")
    catalog.create_table(TABLE, TWINS)
    sink_of("iceberg", tmp_path).create_table(TWINS)


def test_tasks_whose_batches_have_other_columns_are_merged_with_nulls(tmp_path):
    sink = delta(tmp_path)
    both = [{"id": 1, "name": "old"}, {"id": 2, "name": "old"}]
    driver(sink).commit(0, (prepared(sink, 0, 0, both, IDS),))
    narrow = pa.schema([IDS.field("id")])
    changes = (prepared(sink, 1, 0, [{"id": 1}], narrow), prepared(sink, 1, 1, [{"id": 3, "name": "new"}], IDS))
    driver(sink).commit(1, changes)
    assert sorted((row["id"], row["name"]) for row in found(sink.uri)) == [(1, None), (2, "old"), (3, "new")]


def test_what_becomes_of_each_row_is_looked_at_once(tmp_path, monkeypatch):
    looks = []
    deleted = Changes.deleted

    def counted(self: Changes, batch: pa.RecordBatch, where: str) -> Any:
        looks.append(batch.num_rows)
        return deleted(self, batch, where)

    monkeypatch.setattr(Changes, "deleted", counted)
    sink = delta(tmp_path)
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        for count in (3, 2):
            transaction.write(pa.RecordBatch.from_pylist([{"id": n, "name": "a"} for n in range(count)], schema=IDS))
    assert looks == [3, 2]


def test_structs_that_others_have_given_a_field_in_the_middle_come_through_a_merge(tmp_path):
    """As Spark's ALTER TABLE ADD COLUMNS ... AFTER does."""
    before = pa.struct([("a", pa.int64()), ("c", pa.int64())])
    sink = delta(tmp_path, schema=pa.schema([("id", pa.int64()), ("inner", before)]))
    rows = [{"id": id, "inner": {"a": 1, "c": 3}} for id in (1, 2)]
    driver(sink).commit(0, (prepared(sink, 0, 0, rows, pa.schema([("id", pa.int64()), ("inner", before)])),))
    logs = sorted(Path(sink.uri, "_delta_log").glob("*.json"))
    (metadata,) = [
        action["metaData"] for log in logs for action in map(json.loads, log.read_text().splitlines()) if "metaData" in action
    ]
    schema = json.loads(metadata["schemaString"])
    a, c = schema["fields"][1]["type"]["fields"]
    schema["fields"][1]["type"]["fields"] = [a, {**a, "name": "b"}, c]
    altered = {"metaData": {**metadata, "schemaString": json.dumps(schema)}}
    Path(sink.uri, "_delta_log", f"{len(logs):020}.json").write_text(json.dumps(altered) + "\n")
    wide = pa.schema([("id", pa.int64()), ("inner", pa.struct([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())]))])
    driver(sink).commit(1, (prepared(sink, 1, 0, [{"id": 2, "inner": {"a": 7, "b": 8, "c": 9}}], wide),))
    assert sorted(found(sink.uri), key=lambda row: row["id"]) == [
        {"id": 1, "inner": {"a": 1, "b": None, "c": 3}},
        {"id": 2, "inner": {"a": 7, "b": 8, "c": 9}},
    ]


def test_rows_of_an_iceberg_table_from_before_it_was_partitioned_in_another_way_are_replaced(tmp_path):
    sink = IcebergSink(TABLE, catalog_of(str(tmp_path)), changes=BY_ID)
    sink.create_table(IDS)
    driver(sink).commit(0, (prepared(sink, 0, 0, [{"id": id, "name": "old"} for id in (1, 2)], IDS),))
    with iceberg_table(str(tmp_path)).update_spec() as spec:
        spec.add_field("name", "identity", "name")
    driver(sink).commit(1, (prepared(sink, 1, 0, [{"id": 1, "name": None}], IDS),))
    driver(sink).commit(2, (prepared(sink, 2, 0, [{"id": 2, "name": "new"}], IDS),))
    rows = iceberg_table(str(tmp_path)).scan().to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "name": None}, {"id": 2, "name": "new"}]


# --- a check is the whole of what can be refused ----------------------------------------------------------------------------
def checked(sink: DeltaSink, *handles: Any) -> Any:
    committer = sink.committer(JOB)
    committer.fence()
    committer.check(handles)
    return committer


def test_a_check_refuses_two_changes_of_a_key_of_which_nothing_says_which_is_the_last(tmp_path):
    sink = delta(tmp_path)
    handles = [prepared(sink, 0, task, [{"id": 1, "name": f"of {task}"}], IDS) for task in (0, 1)]
    with pytest.raises(UsageError, match=r"\{'id': 1\} has more than one change in an epoch"):
        checked(sink, *handles)
    assert left(sink) == {handle.place for handle in handles}


def test_a_check_refuses_an_empty_text_in_a_partition_of_changes(tmp_path):
    sink = DeltaSink(f"{tmp_path}/table", changes=BY_ID)
    sink.create_table(IDS, ["name"])
    handle = prepared(sink, 0, 0, [{"id": id, "name": name} for id, name in enumerate(["", "a"])], IDS)
    with pytest.raises(UsageError, match="column 'name': Delta cannot tell an empty text from a null"):
        checked(sink, handle)
    assert left(sink) == {handle.place}


@pytest.mark.parametrize("changes", [None, BY_ID], ids=["rows", "changes"])
def test_a_check_refuses_files_that_do_not_fit_a_table_that_was_altered(tmp_path, changes):
    sink = DeltaSink(f"{tmp_path}/table", changes=changes)
    sink.create_table(IDS)
    handle = prepared(sink, 0, 0, [{"id": 1, "name": "a"}], IDS)
    write_deltalake(sink.uri, pa.table({"id": [1], "name": [2]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(PeerError, match=r"the table has changed since the files were written \(name\)"):
        checked(sink, handle)


def test_what_a_check_has_merged_is_committed_and_not_merged_again(tmp_path, monkeypatch):
    sink = delta(tmp_path)
    driver(sink).commit(0, (prepared(sink, 0, 0, [{"id": 1, "name": "old"}], IDS),))
    merges = counted_merges(monkeypatch)
    driver(sink).commit(1, (prepared(sink, 1, 0, [{"id": 1, "name": "new"}], IDS),))
    assert merges == [1]
    assert found(sink.uri) == [{"id": 1, "name": "new"}]
    assert left(sink) == set()


def test_a_rival_between_check_and_record_is_seen(tmp_path, monkeypatch):
    sink = delta(tmp_path)
    handle = prepared(sink, 0, 0, [{"id": 1, "name": "ours"}], IDS)
    merges = counted_merges(monkeypatch)
    committer = checked(sink, handle)
    write_deltalake(sink.uri, pa.table({"id": [1, 2], "name": ["theirs"] * 2}), mode="append")
    committer.record(listed(0, handle))
    assert merges == [1, 1]
    assert sorted((row["id"], row["name"]) for row in found(sink.uri)) == [(1, "ours"), (2, "theirs")]
    committer.end(handle)
    assert left(sink) == set()


def test_a_merge_that_no_process_has_recorded_is_removed_when_another_one_takes_its_place(tmp_path):
    """A checkpoint of a run that could not be stored is followed by a larger one, of the same coordinator."""
    sink = delta(tmp_path)
    first, second = (prepared(sink, epoch, 0, [{"id": epoch, "name": "a"}], IDS) for epoch in (0, 1))
    committer = checked(sink, first)
    committer.check([first, second])
    committer.record(listed(0, first, second))
    for handle in (first, second):
        committer.end(handle)
    assert left(sink) == set()
    assert sorted(row["id"] for row in found(sink.uri)) == [0, 1]


def test_a_merge_that_fails_on_the_way_leaves_no_files_while_its_job_continues(tmp_path, monkeypatch):
    sink = delta(tmp_path)
    old = [{"id": id, "name": "old"} for id in (1, 2)]
    driver(sink).commit(0, (prepared(sink, 0, 0, old, IDS),))
    handle = prepared(sink, 1, 0, [{"id": 1, "name": "new"}], IDS)
    write, failures = merging._write, []

    def failing(files: Any, rows: pa.Table) -> None:
        write(files, rows)
        if not failures:
            failures.append(files)
            raise RetriableError("injected: the store is away")

    monkeypatch.setattr(merging, "_write", failing)
    committer = checked(sink, handle)
    assert failures
    committer.record(listed(1, handle))
    committer.end(handle)
    assert left(sink) == set()
    assert sorted((row["id"], row["name"]) for row in found(sink.uri)) == [(1, "new"), (2, "old")]


def counted_merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of handles of each merge that is made."""
    merges: list[int] = []
    merged = merging.Merger._merged

    def counted(self: Any, loaded: Any, work: Any, changes: Any, token: str) -> Any:
        merges.append(len(changes))
        return merged(self, loaded, work, changes, token)

    monkeypatch.setattr(merging.Merger, "_merged", counted)
    return merges


def listed(epoch: int, *handles: Any) -> CommitList[Any]:
    return CommitList(epoch, handles)


def left(sink: DeltaSink) -> set[str]:
    """Transactions with a mark, or with files that no version has."""
    staged = {path.parent.name for path in Path(sink.uri, f"part-{JOB}").glob("*/*.parquet")}
    return open_marks(sink.uri) | (unadded_transactions(sink.uri, JOB) & staged)


ITEM = pa.struct([("sku", pa.string()), ("more", pa.list_(pa.struct([("n", pa.int64())])))])
NESTED = pa.schema([
    ("id", pa.int64()), ("items", pa.list_(ITEM)), ("numbers", pa.list_(pa.int64())),
    ("extra", pa.struct([("notes", pa.list_(ITEM)), ("by_day", pa.map_(pa.string(), ITEM))])),
    ("by_day", pa.map_(pa.string(), ITEM)), ("lists", pa.list_(pa.list_(ITEM))), ("counts", pa.map_(pa.string(), pa.int64())),
])  # fmt: skip
EMPTY = {"items": [], "numbers": [], "extra": {"notes": [], "by_day": []}, "by_day": [], "lists": [], "counts": []}
FULL = {
    "items": [None, {"sku": None, "more": None}, {"sku": "a", "more": [None, {"n": None}, {"n": 1}]}, {"sku": "b", "more": []}],
    "numbers": [None, 1], "extra": {"notes": None, "by_day": [("x", None), ("y", {"sku": "c", "more": None})]},
    "by_day": [("z", {"sku": None, "more": [{"n": 2}]}), ("n", None)], "lists": [None, [], [None], [{"sku": "d", "more": []}]],
    "counts": [("x", None), ("y", 1)],
}  # fmt: skip
NEIGHBOURS = [
    {"id": 1, **dict.fromkeys(EMPTY)}, {"id": 2, **EMPTY}, {"id": 3, **FULL},
    {"id": 4, **dict.fromkeys(EMPTY), "extra": {"notes": None, "by_day": None}}, {"id": 5, **FULL, "extra": None},
]  # fmt: skip


@KINDS
@pytest.mark.parametrize("order", [1, -1])
def test_rows_that_no_change_touches_are_as_they_were(tmp_path, kind, order):
    sink = delta(tmp_path, schema=NESTED) if kind == "delta" else IcebergSink(TABLE, catalog_of(str(tmp_path)), changes=BY_ID)
    sink.create_table(NESTED)
    driver(sink).commit(0, (prepared(sink, 0, 0, NEIGHBOURS[::order], NESTED),))
    for epoch, id in ((1, 9), (2, 2), (3, 2)):
        driver(sink).commit(epoch, (prepared(sink, epoch, 0, [{"id": id, **EMPTY}], NESTED),))
    if kind == "delta":
        paths = DeltaTable(sink.uri).file_uris()
    else:
        paths = [task.file.file_path for task in iceberg_table(str(tmp_path)).scan().plan_files()]
    stored = [row for path in paths for row in pq.ParquetFile(path.removeprefix("file://")).read().to_pylist()]
    assert sorted(stored, key=lambda row: row["id"]) == [*NEIGHBOURS, {"id": 9, **EMPTY}]


def test_rows_of_an_orc_file_of_another_engine_are_as_they_were(tmp_path):
    """Null lists and maps of structs became empty ones."""
    sink = IcebergSink(TABLE, catalog_of(str(tmp_path)), changes=BY_ID)
    sink.create_table(NESTED)
    orc.write_table(pa.Table.from_pylist(NEIGHBOURS, NESTED), tmp_path / "x.orc")
    size, path = (tmp_path / "x.orc").stat().st_size, f"file://{tmp_path}/x.orc"
    with iceberg_table(str(tmp_path)).transaction() as transaction:
        names = create_mapping_from_schema(transaction.table_metadata.schema()).model_dump_json()
        transaction.set_properties({"schema.name-mapping.default": names})
        with transaction.update_snapshot().fast_append() as added:
            file = DataFile.from_args(
                content=DataFileContent.DATA, file_path=path, file_format=FileFormat.ORC, partition=Record(),
                record_count=5, file_size_in_bytes=size,
            )  # fmt: skip
            file.spec_id = 0
            added.append_data_file(file)
    driver(sink).commit(0, (prepared(sink, 0, 0, [{"id": 2, **EMPTY, "counts": None}], NESTED),))
    paths = [task.file.file_path for task in iceberg_table(str(tmp_path)).scan().plan_files()]
    stored = [row for path in paths for row in pq.ParquetFile(path.removeprefix("file://")).read().to_pylist()]
    changed = [{**row, "counts": None} if row["id"] == 2 else row for row in NEIGHBOURS]
    assert sorted(stored, key=lambda row: row["id"]) == changed


def test_commits_that_clean_up_the_log_are_no_failures(tmp_path):
    """The library reads what a job has committed from log files, which its checkpoint may have removed."""
    settings = {"delta.checkpointInterval": "1", "delta.logRetentionDuration": "interval 0 seconds"}
    DeltaTable.create(str(tmp_path / "table"), schema=IDS, configuration=settings)
    sink = DeltaSink(str(tmp_path / "table"))
    for epoch in range(3):
        driver(sink).commit(epoch, (prepared(sink, epoch, 0, [{"id": epoch}], IDS),))
    assert sorted(DeltaTable(sink.uri).to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2]
    assert not Path(sink.uri, "_delta_log", f"{0:020}.json").exists()
