"""The Iceberg sink in one process: lost answers, rivals, another driver in between; what a table's upkeep leaves alone."""

import json
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType, StringType

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.jobs import one_off_job
from headrace.connectors.tables import iceberg
from headrace.connectors.tables.changes import Changes
from headrace.connectors.tables.committer import TableCommitter
from headrace.enumerator.errors import DataLossError, FencedError, PeerError, StateError, UsageError
from headrace.iceberg import IcebergSink
from tests.helpers.both_tables import commit_rows, prepared_rows, taken_over_by
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_table, iceberg_values
from tests.helpers.table_rig import JOB, VALUES, WatchedLog, answer_lost, batch_of, driver, open_marks, prepared

CITY = pa.field("city", pa.string())


@pytest.fixture
def folder(tmp_path) -> str:
    return str(tmp_path)


@pytest.fixture
def sink(folder) -> IcebergSink:
    made = IcebergSink(TABLE, catalog_of(folder))
    made.create_table(VALUES)
    return made


def watched(sink, around) -> JobCommitter:
    return JobCommitter(JOB, TableCommitter(WatchedLog(sink.log(), around), JOB, sink.table))


def append(folder: str, value: str) -> None:
    iceberg_table(folder).append(pa.Table.from_batches([batch_of([value])]))


def test_an_epoch_is_one_snapshot(sink, folder):
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]), prepared(sink, 0, 1, ["b"])))
    assert [int(shot.summary["added-data-files"] or 0) for shot in iceberg_table(folder).metadata.snapshots] == [0, 2]
    assert iceberg_values(folder) == ["a", "b"]


def test_the_marker_in_a_table_is_as_it_was_written(sink, folder):
    driver(sink).commit(7, (prepared(sink, 7, 0, ["a"]),), "sha256:ab12")
    found = {name: value for name, value in iceberg_table(folder).metadata.properties.items() if name.startswith("headrace.")}
    numbers = {"": "8", ".driver": "1", ".recorded-by": "1", ".content": "8637022608588308158", ".claim": "0", ".owner": "0"}
    assert found == {f"headrace.{JOB}{name}": number for name, number in numbers.items()}


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_commit_whose_answer_is_lost(sink, folder, is_applied):
    watched(sink, answer_lost(is_applied=is_applied)).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert iceberg_values(folder) == ["a"]


def test_another_process_else_commits_in_between(sink, folder):
    rivals = []

    def around(number, commit):
        if len(rivals) < 3:
            append(folder, f"rival {number}")
            rivals.append(f"rival {number}")
        commit()

    watched(sink, around).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert len(rivals) == 3
    assert iceberg_values(folder) == ["a", *sorted(rivals)]


def another_driver_takes_over_during_a_commit(sink, folder) -> None:
    with pytest.raises(FencedError):
        watched(sink, taken_over_by(driver(sink))).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert iceberg_values(folder) == []


def test_another_driver_takes_over_during_a_commit(sink, folder):
    another_driver_takes_over_during_a_commit(sink, folder)


def test_the_librarys_own_retry_would_let_an_older_driver_commit(sink, folder):
    with patch.object(iceberg, "_OURS", {}), pytest.raises(DataLossError):
        another_driver_takes_over_during_a_commit(sink, folder)
    assert iceberg_table(folder).metadata.snapshots[-1].summary["added-data-files"] == "1"


def test_the_tables_own_number_of_retries_is_left_alone(sink, folder):
    iceberg_table(folder).transaction().set_properties({"commit.retry.num-retries": "7"}).commit_transaction()
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert iceberg_table(folder).metadata.properties["commit.retry.num-retries"] == "7"


def test_what_is_committed_survives_expiry_rollback_and_new_columns(sink, folder):
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    append(folder, "rival")
    table = iceberg_table(folder)
    table.maintenance.expire_snapshots().by_ids([shot.snapshot_id for shot in table.metadata.snapshots[:-1]]).commit()
    with iceberg_table(folder).update_schema() as update:
        update.add_column("more", LongType())
    assert len(iceberg_table(folder).metadata.snapshots) == 1
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    driver(sink).commit(1, (prepared(sink, 1, 0, ["b"]),))
    assert iceberg_values(folder) == ["a", "b", "rival"]
    assert open_marks(f"{folder}/shop/orders") == set()


def again(table, column):
    """Drop a column of texts, and add one of the same name."""
    with table.update_schema() as update:
        update.delete_column(column)
    path = tuple(column.split("."))
    with table.refresh().update_schema() as update:
        update.add_column(path, StringType())


def swapped(table):
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        with table.refresh().update_schema() as update:
            update.rename_column(old, new)


@pytest.mark.parametrize(("change", "names"), [
    (partial(again, column="a"), "a"), (partial(again, column="s.x"), "s"), (swapped, "a, b"),
])  # fmt: skip
def test_columns_that_are_others_of_the_same_names_have_the_epoch_written_again(folder, change, names):
    """A file is read by its columns' ids: there were nulls, or the other column's values."""
    rows = pa.record_batch({"a": ["A"], "b": ["B"], "s": pa.array([{"y": 1, "x": "X"}])})
    sink = IcebergSink(TABLE, catalog_of(folder))
    sink.create_table(rows.schema)
    handle = prepared_rows(sink, 0, 0, rows)
    change(iceberg_table(folder))
    with pytest.raises(PeerError, match=rf"has changed since the files were written \({names}\): write the epoch again"):
        driver(sink).commit(0, (handle,))
    driver(sink).commit(0, (prepared_rows(sink, 0, 0, rows),))
    assert iceberg_table(folder).scan(selected_fields=("a", "b", "s")).to_arrow().to_pylist() == [
        {"a": "A", "b": "B", "s": {"y": 1, "x": "X"}}
    ]


def test_a_write_of_its_own_leaves_no_property(sink, folder):
    """Else a table would grow with every batch write."""
    job = one_off_job()
    committing = driver(sink, job)
    committing.commit(0, (prepared(sink, 0, 0, ["a"], job=job),))
    assert f"headrace.{job}" in iceberg_table(folder).metadata.properties
    committing.forget()
    assert not [name for name in iceberg_table(folder).metadata.properties if name.startswith("headrace.")]
    assert iceberg_values(folder) == ["a"]
    assert sink.recorded_epochs() == {}


def test_a_table_recreated_is_another_one(sink, folder):
    committing = driver(sink)
    committing.commit(0, (prepared(sink, 0, 0, ["a"]),))
    load_catalog(**catalog_of(folder)).drop_table(TABLE)
    sink.create_table(VALUES)
    with pytest.raises(StateError, match="not the table any more"):
        committing.commit(1, (prepared(sink, 1, 0, ["b"]),))
    assert iceberg_values(folder) == []


def test_values_and_partitions_come_back_and_filters_find_them(folder):
    schema = pa.schema([
        ("text", pa.string()), ("number", pa.int64()), ("day", pa.date32()), ("flag", pa.bool_()), ("real", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")), ("list", pa.list_(pa.int32())),
    ])  # fmt: skip
    sink = IcebergSink(TABLE, catalog_of(folder))
    sink.create_table(schema, ("text", "number", "day", "flag"))
    at = datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
    row = {"text": "", "number": -5, "day": date(1969, 12, 31), "flag": False, "real": 1.5, "at": at, "list": [1, None]}
    rows = [row, {**row, "flag": True, "text": "a/b=c%"}, dict.fromkeys(row)]
    handle = prepared_rows(sink, 0, 0, pa.RecordBatch.from_pylist(rows, schema=schema))
    text = sink.handles.serialize(handle)
    driver(sink).commit(0, (sink.handles.deserialize(1, text),))
    table = iceberg_table(folder)
    assert sorted(map(str, table.scan().to_arrow().cast(schema).to_pylist())) == sorted(
        map(str, pa.Table.from_pylist(rows, schema=schema).to_pylist())
    )
    for expression in ("day = '1969-12-31' and flag = false and text = ''", "number is null", "text = 'a/b=c%' and real > 1"):
        assert len(list(table.scan(row_filter=expression).plan_files())) == 1
        assert table.scan(row_filter=expression).to_arrow().num_rows == 1


def test_a_table_is_made_once_however_many_make_it(folder):
    """The second has looked before the first has made it."""
    sink = IcebergSink(TABLE, catalog_of(folder))
    sink.create_table(VALUES, ("value",))
    made = iceberg_table(folder).metadata.table_uuid
    with patch.object(SqlCatalog, "table_exists", return_value=False) as looked:
        sink.create_table(VALUES)
    assert looked.called
    assert iceberg_table(folder).metadata.table_uuid == made
    with pytest.raises(UsageError, match="'real' is double: partitions are by"):
        sink.create_table(pa.schema([("real", pa.float64())]), ("real",))


TRANSFORMS = {
    "bucket(4, id)": "id = 5", "truncate(2, name)": "name = 'b\u00e9ta'", "truncate(10, id)": "id >= 10",
    "years(at)": "at >= '2024-01-01T00:00:00+00:00'", "month(day)": "day = '1969-12-31'",
    "day(at)": "at < '1970-01-01T00:00:00+00:00'", "hours( at )": "at < '1970-01-01T00:00:00+00:00'", "void(name)": "id = 5",
}  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_partitions_by_a_transform_are_those_that_the_library_finds(folder, transform):
    """What we write, the library's own append agrees with; a filter finds each row, and only files that may have it."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32())])
    sink = IcebergSink(TABLE, catalog_of(folder))
    sink.create_table(schema, (transform,))
    at = datetime(1969, 12, 31, 23, 30, 0, 1, UTC)
    rows = [
        {"id": number, "name": name, "at": moment, "day": None if moment is None else moment.date()}
        for number, name, moment in ((5, "b\u00e9ta", at), (-7, "be", datetime(2024, 2, 29, 12, tzinfo=UTC)), (12, None, None))
    ]
    handle = prepared_rows(sink, 0, 0, pa.RecordBatch.from_pylist(rows, schema=schema))
    driver(sink).commit(0, (sink.handles.deserialize(1, sink.handles.serialize(handle)),))
    table = iceberg_table(folder)
    field = table.spec().fields[0]
    function = field.transform.transform(table.schema().find_type(field.source_id))
    for task in table.scan().plan_files():
        values = pq.read_table(task.file.file_path.removeprefix("file://"))[table.schema().find_column_name(field.source_id)]
        assert {function(internal(value)) for value in values.to_pylist()} == {task.file.partition[0]}
    found = table.scan(row_filter=TRANSFORMS[transform]).to_arrow()
    everything = table.scan().to_arrow()
    assert found.num_rows == 1
    assert everything.num_rows == 3
    pruned = len(list(table.scan(row_filter=TRANSFORMS[transform]).plan_files()))
    assert pruned < len(list(table.scan().plan_files())) or transform == "void(name)"


def internal(value):
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def test_a_warehouse_that_is_a_file_is_no_outage(folder, tmp_path):
    """Regression: what a store refuses for good was an error that may pass."""
    (tmp_path / "file").touch()
    sink = IcebergSink(TABLE, {**catalog_of(folder), "warehouse": f"file://{tmp_path}/file"})
    with pytest.raises(PeerError, match="Not a directory"):
        sink.create_table(pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize("partition", ["bucket(id)", "bucket(0, id)", "sorted(id)", "year(3, id)", "truncate(id)"])
def test_what_is_no_partition_is_refused(folder, partition):
    with pytest.raises(UsageError, match=r"is not a partition: column, bucket\(n, column\)"):
        IcebergSink(TABLE, catalog_of(folder)).create_table(pa.schema([("id", pa.int64())]), (partition,))


@pytest.mark.parametrize(
    "partitions", [["bucket(4, real)"], ["year(id)"], ["id", "id"], ["bucket(4, id)"], ["day(at)", "hour(at)"]]
)
def test_partitions_that_the_library_refuses_are_the_callers(folder, partitions):
    """`id_bucket`, as it would be called, is a column."""
    schema = pa.schema([("id", pa.int64()), ("id_bucket", pa.int64()), ("real", pa.float64()), ("at", pa.timestamp("us"))])
    with pytest.raises(UsageError, match="PyIceberg makes no such table: "):
        IcebergSink(TABLE, catalog_of(folder)).create_table(schema, partitions)


@pytest.mark.parametrize(("column", "message"), [
    ("real", "its partition 'real' is identity of double"),
    ("inner.at", "its partition 'inner.at' is of 'inner.at', a field in a column: partition the table by a column that has"),
])  # fmt: skip
def test_partitions_that_cannot_be_written_are_refused(folder, column, message):
    sink = IcebergSink(TABLE, catalog_of(folder))
    schema = pa.schema([("value", pa.string()), ("real", pa.float64()), ("inner", pa.struct([("at", pa.int64())]))])
    sink.create_table(schema)
    with iceberg_table(folder).update_spec() as update:
        update.add_identity(column)
    for refused in (lambda: sink.check_rows(schema), lambda: driver(sink).recover(), lambda: prepared(sink, 0, 0, ["a"])):
        with pytest.raises(UsageError, match=message):
            refused()


def test_a_former_partition_whose_column_is_gone_is_refused(folder):
    """Format version 1 keeps it as a void one. It was an error of the library's own."""
    sink = IcebergSink(TABLE, catalog_of(folder))
    load_catalog(**catalog_of(folder)).create_namespace_if_not_exists("shop")
    table = load_catalog(**catalog_of(folder)).create_table(TABLE, VALUES.append(CITY), properties={"format-version": "1"})
    with table.update_spec() as update:
        update.add_identity("city")
    with table.update_spec() as update:
        update.remove_field("city")
    with table.update_schema() as update:
        update.delete_column("city")
    for refused in (lambda: sink.check_rows(VALUES), lambda: driver(sink).recover(), lambda: prepared(sink, 0, 0, ["a"])):
        with pytest.raises(UsageError, match=r"the column of its partition 'city' is gone, .*: make it format version 2"):
            refused()
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    with table.update_spec() as update:
        update.remove_field("city")
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert iceberg_values(folder) == ["a"]


def test_a_void_partition_of_a_required_column_is_refused(folder):
    """Regression: the commit failed by an error of the library's own, or files could not be replaced later."""
    schema = pa.schema([VALUES.field("value").with_nullable(nullable=False), CITY])
    sink = IcebergSink(TABLE, catalog_of(folder))
    with pytest.raises(UsageError, match="'value' must not be null, and PyIceberg writes no void partition"):
        sink.create_table(schema, ["void(value)"])
    load_catalog(**catalog_of(folder)).create_namespace_if_not_exists("shop")
    table = load_catalog(**catalog_of(folder)).create_table(TABLE, schema, properties={"format-version": "1"})
    with table.update_spec() as update:
        update.add_identity("value")
    with table.update_spec() as update:
        update.remove_field("value")
    for refused in (lambda: sink.check_rows(VALUES), lambda: driver(sink).recover(), lambda: prepared(sink, 0, 0, ["a"])):
        with pytest.raises(UsageError, match="its partition 'value' is void of 'value', which must not be null"):
            refused()
    with table.update_schema() as update:
        update.make_column_optional("value")
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert iceberg_values(folder) == ["a"]


def test_a_former_void_partition_of_a_required_column_is_refused_in_a_merge(folder):
    """Regression: as in a table whose column has become required since, by an error of the library's own."""
    schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
    sink = IcebergSink(TABLE, catalog_of(folder), changes=Changes(("id",), ()))
    sink.create_table(schema, ["void(city)"])
    row = pa.RecordBatch.from_pylist([{"id": 1, "city": "a"}], schema=schema)
    driver(sink).commit(0, (prepared_rows(sink, 0, 0, row),))
    with iceberg_table(folder).update_spec() as update:
        update.remove_field("city_null")
    with iceberg_table(folder).update_schema(allow_incompatible_changes=True) as update:
        update.update_column("city", required=True)
    with pytest.raises(UsageError, match="its partition 'city_null' is void of a column that must not be null"):
        driver(sink).commit(1, (prepared_rows(sink, 1, 0, row),))
    with iceberg_table(folder).update_schema() as update:
        update.make_column_optional("city")
    driver(sink).commit(1, (prepared_rows(sink, 1, 0, row),))
    assert iceberg_table(folder).scan().to_arrow().num_rows == 1


@pytest.mark.parametrize(
    "given", [{"write.metadata.metrics.default": "bogus"}, {"write.metadata.metrics.column.value": "truncate(x)"}]
)
def test_metrics_that_pyiceberg_does_not_know_are_refused(folder, given):
    """Regression: a task ended by a ValueError that named no table."""
    catalog = load_catalog(**catalog_of(folder))
    catalog.create_namespace_if_not_exists("shop")
    catalog.create_table(TABLE, VALUES, properties=given)
    with pytest.raises(UsageError, match=rf"{TABLE}: .* a property of its metrics .* none that PyIceberg knows"):
        IcebergSink(TABLE, catalog_of(folder)).check_rows(VALUES)


def test_a_void_partition_with_a_value_is_refused_in_a_merge(folder):
    """Regression: PyIceberg writes False for that of a required boolean, and does not find the file again."""
    schema = pa.schema([("id", pa.int64()), pa.field("is", pa.bool_(), nullable=False)])
    catalog = load_catalog(**catalog_of(folder))
    catalog.create_namespace_if_not_exists("shop")
    table = catalog.create_table(TABLE, schema, properties={"format-version": "1"})
    with table.update_spec() as update:
        update.add_identity("is")
    with table.update_spec() as update:
        update.remove_field("is")
    row = pa.RecordBatch.from_pylist([{"id": 1, "is": True}], schema=schema)
    table.append(pa.Table.from_batches([row]))
    with table.update_schema() as update:
        update.make_column_optional("is")
    sink = IcebergSink(TABLE, catalog_of(folder), changes=Changes(("id",), ()))
    with pytest.raises(UsageError, match="its void partition 'is' has a value"):
        driver(sink).commit(0, (prepared_rows(sink, 0, 0, row),))


def test_a_new_column_with_the_name_of_anothers_partition_is_the_callers(folder):
    """Regression: a renamed column's partition keeps its name, and that was an error of the store."""
    sink = IcebergSink(TABLE, catalog_of(folder), merge_schema=True)
    sink.create_table(VALUES.append(CITY), ["city"])
    with iceberg_table(folder).update_schema() as update:
        update.rename_column("city", "town")
    with pytest.raises(UsageError, match=r"PyIceberg adds no such columns: .*: city"):
        sink.create_table(VALUES.append(CITY), ["city"])


def test_a_table_that_is_not_there_is_refused(folder):
    sink = IcebergSink("shop.nothing", catalog_of(folder))
    for refused in (sink.recorded_epochs, lambda: driver(sink).recover(), lambda: prepared(sink, 0, 0, ["a"])):
        with pytest.raises(UsageError, match="there is no such Iceberg table"):
            refused()


@pytest.mark.parametrize(("options", "message"), [
    ({"table": "orders"}, "namespace.table, not 'orders'"), ({"table": "a.b", "target_file_bytes": 0}, "at least 1"),
    ({"table": "a.b", "compression": "rar"}, "not 'rar'"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused_at_once(options, message):
    with pytest.raises(UsageError, match=message):
        IcebergSink(catalog={}, **options)


def test_no_secret_is_shown():
    assert "s3cret" not in repr(IcebergSink("a.b", {"uri": "postgresql://user:s3cret@host/db"}))


def test_columns_whose_names_cannot_be_written_are_named(folder):
    schema = pa.schema([("id", pa.int64()), ("first name", pa.string()), ("a-b", pa.string())])
    catalog = load_catalog(**catalog_of(folder))
    catalog.create_namespace_if_not_exists("n")
    catalog.create_table("n.named", schema)
    with pytest.raises(UsageError, match=r"names of its columns 'first name', 'a-b': rename them"):
        IcebergSink("n.named", catalog_of(folder)).check_rows(schema)


@pytest.mark.parametrize("name", ["first name", "a\nb", ""])
def test_no_table_is_made_with_names_that_cannot_be_written(folder, name):
    with pytest.raises(UsageError, match=r"Avro does not allow the names of its columns|empty avro name"):
        IcebergSink("n.named", catalog_of(folder)).create_table(pa.schema([("id", pa.int64()), (name, pa.string())]))
    assert not load_catalog(**catalog_of(folder)).table_exists("n.named")


def test_no_table_is_made_with_a_partition_whose_name_avro_does_not_have(folder):
    """Regression: DuckDB's process aborts as it reads the manifests."""
    sink, schema = IcebergSink("n.named", catalog_of(folder)), pa.schema([("id", pa.int64()), ("Größe", pa.string())])
    with pytest.raises(UsageError, match=r"Avro does not allow the names of its partitions 'Größe'"):
        sink.create_table(schema, ["Größe"])
    sink.create_table(schema, ["id"])


def test_no_column_is_added_whose_name_cannot_be_written(folder):
    """Regression: it was, and then every job that wrote to the table was refused, also without that column."""
    sink, narrow = IcebergSink("n.named", catalog_of(folder), merge_schema=True), pa.schema([("id", pa.int64())])
    sink.create_table(narrow)
    with pytest.raises(UsageError, match=r"Avro does not allow the names of its columns 'first name'"):
        sink.create_table(narrow.append(pa.field("first name", pa.string())))
    assert load_catalog(**catalog_of(folder)).load_table("n.named").schema().column_names == ["id"]


@pytest.mark.parametrize("warehouse", ["file:///x/a#b", "s3://b/a?b", "file:/a?b"])
def test_a_warehouse_whose_address_has_more_than_a_path_is_refused(warehouse):
    """Its files were in the folder without that, and commits were retried forever."""
    with pytest.raises(UsageError, match=r"PyIceberg takes it for another place because of '\?' or '#'"):
        IcebergSink(TABLE, {"type": "sql", "warehouse": warehouse})


@pytest.mark.parametrize("name", ["n.a#b", "n.a?b"])
def test_a_table_whose_name_makes_another_place_is_not_made(folder, name):
    catalog = {**catalog_of(folder), "warehouse": f"file://{folder}/w"}
    with pytest.raises(UsageError, match=r"the location of n\.a.*PyIceberg takes it for another place"):
        IcebergSink(name, catalog).create_table(pa.schema([("id", pa.int64())]))
    assert not load_catalog(**catalog).table_exists(name)


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41"])
def test_a_warehouse_may_be_any_local_folder(folder, name):
    sink = IcebergSink(TABLE, {**catalog_of(folder), "warehouse": f"{folder}/{name}"})
    sink.create_table(VALUES)
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert list((Path(folder) / name).rglob("*.parquet"))
    assert iceberg_values(folder) == ["a"]


def test_a_location_that_ends_in_a_slash_is_that_without_it(folder):
    """On an object store two slashes are another name."""
    catalog = load_catalog(**catalog_of(folder))
    catalog.create_namespace_if_not_exists("n")
    schema = pa.schema([("id", pa.int64())])
    stored = catalog.create_table("n.made", schema, location=f"file://{folder}/made").metadata_location
    metadata = json.loads(Path(stored.removeprefix("file://")).read_text())
    Path(stored.removeprefix("file://")).write_text(json.dumps({**metadata, "location": f"file://{folder}/made/"}))
    catalog.register_table("n.theirs", stored)
    sink = IcebergSink("n.theirs", catalog_of(folder))
    commit_rows(sink, 0, pa.record_batch([[1]], schema=schema))
    table = catalog.load_table("n.theirs")
    (path,) = (task.file.file_path for task in table.scan().plan_files())
    assert path.startswith(f"file://{folder}/made/part-")
    assert table.scan().to_arrow().to_pylist() == [{"id": 1}]
