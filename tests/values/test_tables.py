"""A search for values that Delta and Iceberg tables lose, change or hide from filters; other libraries read them."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import types
from pyiceberg import expressions
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from benchmarks.tables_soak import Reader
from headrace.connectors.base.sink import Attempt
from headrace.connectors.tables import writing
from headrace.connectors.tables.changes import Changes
from headrace.delta import DeltaSink
from headrace.enumerator.errors import UsageError
from headrace.iceberg import IcebergSink
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_table
from tests.helpers.table_rig import JOB, driver
from tests.values import schemas
from tests.values.budget import explore, find
from tests.values.bugs import tables as bugs

WAREHOUSE = tempfile.TemporaryDirectory(prefix="headrace-values-")
"""Of all Iceberg tables, one after the other: a catalog takes longer to make than a table."""
KINDS = st.sampled_from(["delta", "iceberg"])
COUNTS: Counter[str] = Counter()
APPENDS, NARROW, CHANGELOGS, PARTITIONS = 60, 150, 40, 15
"""Examples of the default budget."""
ID = pa.field("id", pa.int64(), nullable=False)
COMMON = (pa.string(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.bool_())
KEYS = (
    *(pa.string(), pa.string(), pa.binary(), pa.bool_(), pa.bool_(), pa.int8(), pa.uint64(), pa.date32(), pa.large_string()),
    *(pa.decimal128(10, 2), pa.decimal128(38, 0), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("s")),
)
MOST_PARTITIONED = (types.is_string, types.is_integer, types.is_boolean, types.is_date32)
COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": lambda column, bound: column == bound,
    "<=": lambda column, bound: column <= bound,
    ">=": lambda column, bound: column >= bound,
    "<": lambda column, bound: column < bound,
    ">": lambda column, bound: column > bound,
}
OF_ICEBERG = {
    "=": expressions.EqualTo,
    "<=": expressions.LessThanOrEqual,
    ">=": expressions.GreaterThanOrEqual,
    "<": expressions.LessThan,
    ">": expressions.GreaterThan,
}


@contextmanager
def table_of(kind: str, **options: Any) -> Iterator[tuple[DeltaSink | IcebergSink, str]]:
    if kind == "delta":
        with tempfile.TemporaryDirectory(prefix="headrace-values-") as folder:
            yield DeltaSink(f"{folder}/table", **options), folder
        return
    try:
        yield IcebergSink(TABLE, catalog_of(WAREHOUSE.name), **options), WAREHOUSE.name
    finally:
        with suppress(NoSuchTableError, NoSuchNamespaceError):
            load_catalog(**catalog_of(WAREHOUSE.name)).drop_table(TABLE)


def commit(sink: Any, epoch: int, *shares: list[pa.RecordBatch]) -> None:
    handles = []
    for task, share in enumerate(shares):
        with sink.begin(Attempt(JOB, epoch, task, 0)) as transaction:
            for batch in share:
                transaction.write(batch)
            handles.append(transaction.prepare())
    driver(sink).commit(epoch, tuple(handle for handle in handles if handle is not None))


def stored_rows(kind: str, folder: str, schema: pa.Schema) -> pa.Table:
    """By Parquet's own reader and the list of files that the format's library gives: nothing else is between."""
    if kind == "delta":
        return DeltaTable(f"{folder}/table").to_pyarrow_dataset().to_table()
    paths = [task.file.file_path.removeprefix("file://") for task in iceberg_table(folder).scan().plan_files()]
    files = [pq.ParquetFile(path).read() for path in paths]
    for at, file in enumerate(files):  # by the specification, a column that a file lacks is null in its rows
        columns = [file[each.name] if each.name in file.column_names else pa.nulls(len(file), each.type) for each in schema]
        files[at] = pa.table(columns, schema.names).cast(schema)
    return pa.concat_tables(files) if files else schema.empty_table()


# --- rows that are appended --------------------------------------------------------------------------------------------


@st.composite
def appended(draw: st.DrawFn, *, is_narrow: bool = False) -> tuple[pa.Schema, list[str], list[list[pa.RecordBatch]]]:
    """A schema, its partitions, and the batches of each commit. The rows are numbered."""
    named = None if draw(st.integers(0, 3)) == 0 else st.sampled_from(schemas.PLAIN_NAMES)
    flat = draw(st.sampled_from([schemas.FLAT, schemas.FLAT + schemas.OTHERS, COMMON]))
    columns = draw(schemas.fields(flat, named=named, least=4, most=8))
    if is_narrow:
        columns = draw(schemas.fields((*COMMON, pa.struct([("a", pa.int64())])), depth=0, most=2, named=named))
    can = [field.name for field in columns if any(is_kind(field.type) for is_kind in MOST_PARTITIONED)]
    partitions = [draw(st.sampled_from(can))] if can and draw(st.integers(0, 4)) == 0 else []
    commits, number = [], 0
    for _ in range(draw(st.integers(1, 2))):
        share = draw(st.lists(schemas.batches(pa.schema(columns)), min_size=2, max_size=3))
        for at, batch in enumerate(share):
            ids = pa.array(range(number, number + batch.num_rows), ID.type)
            share[at] = batch.append_column(ID, ids)
            number += batch.num_rows
        commits.append(share)
    return pa.schema([*columns, ID]), partitions, commits


def is_refused_rightly(schema: pa.Schema, partitions: list[str], kind: str) -> bool:
    """What both formats take by their specifications is not refused."""
    plain_names = set(schema.names) <= {*schemas.PLAIN_NAMES, "id", "op", "offset", "pk0", "pk1", "nested"}
    twins = len({name.casefold() for name in schema.names}) < len(schema.names)
    known = {str(kind) for kind in schemas.OTHERS}
    odd = any(other in str(field.type) for field in schema for other in known)
    in_maps = kind == "delta" and any("map<" in str(field.type) and "timestamp" in str(field.type) for field in schema)
    return not plain_names or twins or odd or in_maps or bool(partitions)


def check_appended(duckdb: Reader, kind: str, row_group_bytes: int, drawn: Any) -> None:
    schema, partitions, commits = drawn
    COUNTS["schemas"] += 1
    with table_of(kind) as (sink, folder), patch.object(writing, "ROW_GROUP_BYTES", row_group_bytes):
        try:
            sink.create_table(schema, partitions)
            for epoch, share in enumerate(commits):
                commit(sink, epoch, share)
        except UsageError:
            COUNTS["refused"] += 1
            assert is_refused_rightly(schema, partitions, kind)
            return
        table = sink.log().load().schema
        rows = [batch.select(schema.names) for share in commits for batch in share if batch.num_rows]
        parts = [pa.table([decoded(column) for column in batch.columns], names=schema.names).cast(table) for batch in rows]
        wanted = pa.concat_tables(parts) if parts else table.empty_table()
        COUNTS["values"] += wanted.num_rows * wanted.num_columns
        is_same(stored_rows(kind, folder, table), wanted)
        # Arrow ends the process where it casts DuckDB's null maps
        without_maps = wanted.select([field.name for field in wanted.schema if "map<" not in str(field.type)])
        names = ", ".join(map(quoted, without_maps.column_names))
        is_same(duckdb.query(f"SELECT {names} FROM {{}}", kind, folder).to_arrow_table(), without_maps)
        check_filters(duckdb, kind, folder, wanted)


def decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def is_same(found: pa.Table, wanted: pa.Table) -> None:
    COUNTS["read-backs"] += 1
    assert sorted(found.column_names) == sorted(wanted.column_names)
    found = found.select(wanted.column_names).cast(wanted.schema).sort_by("id")
    for name in wanted.column_names:
        assert schemas.plain(found[name]) == schemas.plain(wanted[name]), name


def probes(kind: str, column: pa.ChunkedArray) -> list[pa.Scalar]:
    """At, below and above the bounds. Delta's readers know no times out of Python's calendar, whose ends stand for these in
    bounds, and a NaN as no infinity.
    """
    found = schemas.ends(column)
    if found and types.is_string(column.type):
        low, high = (end.as_py() for end in found)
        found += [pa.scalar(low[:-1]), pa.scalar(high[:64]), pa.scalar(f"{high}\0")]
    if found and (types.is_integer(column.type) or types.is_temporal(column.type) or types.is_floating(column.type)):
        found += neighbours(found, column.type)
    if has_nan(column):
        found = [bound for bound in found if math.isfinite(bound.as_py())]
    if kind == "delta" and types.is_temporal(column.type):
        found = [bound for bound in found if is_in_calendar(bound)]
    return found


def neighbours(found: list[pa.Scalar], kind: pa.DataType) -> list[pa.Scalar]:
    made = []
    for end, step in zip(found, (-1, 1), strict=True):
        if types.is_floating(kind):
            made.append(pa.scalar(end.as_py() + step, kind))
            continue
        number = (end.as_py() if types.is_integer(kind) else end.value) + step
        least = 0 if types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        if least <= number < least + 2**kind.bit_width:
            made.append(pa.scalar(number, kind))
    return made


def is_in_calendar(bound: pa.Scalar) -> bool:
    second = bound.value * 86_400 if types.is_date(bound.type) else bound.value // 10**6
    return schemas.FIRST_S < second < schemas.LAST_S


def check_filters(duckdb: Reader, kind: str, folder: str, wanted: pa.Table) -> None:
    conditions: list[tuple[str, str, list[int]]] = []
    dataset = DeltaTable(f"{folder}/table").to_pyarrow_dataset() if kind == "delta" else None
    iceberg = iceberg_table(folder) if kind == "iceberg" else None
    for name in wanted.column_names:
        column = ds.field(name)
        in_sql = kind == "iceberg" or "." not in name  # DuckDB looks for a field within a column of Delta then
        nulls = wanted.filter(pc.is_null(wanted[name]))["id"].to_pylist()
        if dataset is not None:
            assert ids_of(dataset.to_table(filter=column.is_null())) == nulls, name
        for at, bound in enumerate(probes(kind, wanted[name])):
            for sign, compare in COMPARISONS.items():
                ids = wanted.filter(compare(column, bound))["id"].to_pylist()
                COUNTS["filters"] += 1
                if dataset is not None:
                    assert ids_of(dataset.to_table(filter=compare(column, bound))) == ids, (name, sign, text_of(bound))
                if iceberg is not None and sign in "=>" and types.is_string(bound.type) + types.is_integer(bound.type):
                    scan = iceberg.scan(row_filter=OF_ICEBERG[sign](name, bound.as_py()), selected_fields=("id",))
                    assert ids_of(scan.to_arrow()) == ids, (name, sign, text_of(bound))
                if in_sql and at < 2 and sign == "=" and (text := sql_of(bound)) is not None and not has_nan(wanted[name]):
                    conditions.append((name, f"{quoted(name)} {sign} {text}", ids))
    if conditions:
        check_in_sql(duckdb, kind, folder, conditions)


def has_nan(column: pa.ChunkedArray) -> bool:
    """DuckDB, which sorts a NaN, takes Parquet's bounds for those of all values."""
    return types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def check_in_sql(duckdb: Reader, kind: str, folder: str, conditions: list[tuple[str, str, list[int]]]) -> None:
    texts = [f"SELECT {at} AS condition, id FROM {{0}} WHERE {text}" for at, (_, text, _) in enumerate(conditions)]
    found: dict[int, list[int]] = {}
    for condition, number in duckdb.query(" UNION ALL ".join(texts), kind, folder).fetchall():
        found.setdefault(condition, []).append(number)
    for at, (name, text, ids) in enumerate(conditions):
        assert sorted(found.get(at, [])) == ids, (name, text)


def ids_of(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


def text_of(bound: pa.Scalar) -> str:
    """Also of a time after Python's calendar."""
    return str(pa.array([bound]).to_string())


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""').replace("{", "{{").replace("}", "}}") + '"'


def sql_of(bound: pa.Scalar) -> str | None:
    """None where DuckDB has no literal."""
    kind = bound.type
    if types.is_string(kind):
        text = bound.as_py()
        return (
            None
            if "\0" in text or len(text) > 70
            else "'" + text.replace("'", "''").replace("{", "{{").replace("}", "}}") + "'"
        )
    if types.is_integer(kind):
        return str(bound.as_py())
    if types.is_decimal(kind):  # a number of more digits would be read as a double
        return f"'{bound.as_py():f}'::DECIMAL({kind.precision - min(kind.scale, 0)}, {max(kind.scale, 0)})"
    if types.is_timestamp(kind):
        maker = "make_timestamp" if kind.tz is None else "make_timestamptz"
        return f"{maker}({bound.value})"
    if types.is_date32(kind):
        return f"(DATE '1970-01-01' + {bound.value})"
    return f"'{bound.as_py()}'::BOOLEAN" if types.is_boolean(kind) else None


@st.composite
def partitioned(draw: st.DrawFn) -> tuple[pa.Schema, pa.RecordBatch]:
    """Rows that have the column of the partitions alone, which tell them apart where the format can."""
    kind = draw(st.sampled_from([pa.string(), pa.int32(), pa.bool_(), pa.date32()]))
    days = st.integers(schemas.FIRST_S // 86_400, schemas.LAST_S // 86_400)
    values = days if types.is_date(kind) else schemas.scalars(kind).filter(lambda value: value != "")
    rows = pa.record_batch({"part": pa.array(draw(st.lists(st.none() | values, min_size=1, max_size=4)), kind)})
    return pa.schema([rows.schema.field(0), draw(schemas.fields(most=1, named=st.just("other")))[0]]), rows


def check_partitioned(duckdb: Reader, kind: str, drawn: Any) -> None:
    schema, rows = drawn
    with table_of(kind) as (sink, folder):
        try:
            sink.create_table(schema, ["part"])
        except UsageError:
            COUNTS["refused"] += 1
            assert is_refused_rightly(schema, [], kind)
            return
        commit(sink, 0, [rows])
        COUNTS["schemas"] += 1
        COUNTS["read-backs"] += 1
        assert stored_rows(kind, folder, sink.log().load().schema).num_rows == rows.num_rows
        found = duckdb.query('SELECT part, other IS NULL AS "is null" FROM {}', kind, folder).to_arrow_table()
        assert sorted(map(repr, found["part"].to_pylist())) == sorted(map(repr, rows["part"].to_pylist()))
        assert found["is null"].to_pylist() == [True] * rows.num_rows


SIZES = st.sampled_from([1, 64 << 20])


def appends(duckdb: Reader, *, is_narrow: bool = False) -> Callable[[], None]:
    drawn = appended(is_narrow=is_narrow)
    return given(KINDS, SIZES, drawn)(lambda kind, size, drawn: check_appended(duckdb, kind, size, drawn))


def partitions(duckdb: Reader) -> Callable[[], None]:
    return given(KINDS, partitioned())(lambda kind, drawn: check_partitioned(duckdb, kind, drawn))


def test_a_short_run_over_tables(duckdb):
    find(appends(duckdb, is_narrow=True), 10)
    find(changelogs(), 5)
    find(partitions(duckdb), 8)


def test_rows_of_partitions_alone_are_found(duckdb):
    explore(lambda: partitions(duckdb), PARTITIONS, "tables", COUNTS)


def test_what_is_appended_is_found_by_readers_of_others(duckdb):
    explore(lambda: appends(duckdb), APPENDS, "tables", COUNTS)
    explore(lambda: appends(duckdb, is_narrow=True), NARROW, "tables", COUNTS)
    assert COUNTS["refused"] < COUNTS["schemas"] / 2


# --- changes by key ----------------------------------------------------------------------------------------------------


@st.composite
def changed(draw: st.DrawFn) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Keys of one or two columns out of few values, and a nested column; of each epoch its changes."""
    kinds = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2))
    pools = [draw(st.lists(schemas.scalars(kind), min_size=2, max_size=5)) for kind in kinds]
    structs = draw(
        st.sampled_from([pa.list_(pa.struct([("a", pa.int64())])), pa.map_(pa.string(), pa.struct([("a", pa.int64())]))])
    )
    keys = [pa.field(f"pk{at}", kind) for at, kind in enumerate(kinds)]
    payload = [pa.field("nested", structs), *draw(schemas.fields(least=2, most=4, named=st.sampled_from(schemas.PLAIN_NAMES)))]
    schema = pa.schema([*keys, *payload, ID, pa.field("op", pa.string()), pa.field("offset", pa.int64())])
    epochs, number = [], 0
    for _ in range(draw(st.integers(2, 4))):
        count = draw(st.integers(1, 4))
        columns = [
            pa.array([draw(st.sampled_from(pool)) for _ in range(count)], kind) for pool, kind in zip(pools, kinds, strict=True)
        ]
        columns += [pa.array([draw(schemas.values(field.type)) for _ in range(count)], field.type) for field in payload]
        ops = pa.array(draw(st.lists(st.sampled_from(["c", "u", "u", "d"]), min_size=count, max_size=count)))
        numbers = pa.array(range(number, number + count))
        number += count
        epochs.append(pa.RecordBatch.from_arrays([*columns, numbers, ops, numbers], schema=schema))
    return schema, epochs


def check_changed(kind: str, size: int, drawn: Any) -> None:
    schema, epochs = drawn
    names = [name for name in schema.names if name.startswith("pk")]
    COUNTS["changelogs"] += 1
    changes = Changes(tuple(names), ("offset",), "op")
    with table_of(kind, changes=changes) as (sink, folder), patch.object(writing, "ROW_GROUP_BYTES", size):
        try:
            sink.create_table(pa.schema([field for field in schema if field.name != "offset"]))
        except UsageError:
            COUNTS["refused"] += 1
            assert is_refused_rightly(schema, [], kind)
            return
        table = sink.log().load().schema
        there: dict[str, dict[str, Any]] = {}
        for epoch, batch in enumerate(epochs):
            half = batch.num_rows // 2
            commit(sink, epoch, [batch.slice(half)], [batch.slice(0, half)])
            plain = {name: schemas.plain(batch[name].cast(table.field(name).type)) for name in table.names}
            for at, op in enumerate(batch["op"].to_pylist()):
                row = {name: column[at] for name, column in plain.items()}
                key = repr([row[name] for name in names])
                if op == "d":
                    there.pop(key, None)
                else:
                    there[key] = row
            found = stored_rows(kind, folder, table).sort_by("id")
            COUNTS["read-backs"] += 1
            columns = {name: schemas.plain(found[name]) for name in table.names}
            rows = [{name: columns[name][at] for name in table.names} for at in range(found.num_rows)]
            assert rows == sorted(there.values(), key=lambda row: row["id"])


def changelogs() -> Callable[[], None]:
    return given(KINDS, SIZES, changed())(check_changed)


def test_changes_by_key_are_those_of_a_dict(duckdb):
    explore(changelogs, CHANGELOGS, "changelogs", COUNTS)


# --- what the search finds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", bugs.APPENDED)
def test_a_bug_of_what_is_appended_is_found(duckdb, bug):
    with bug(), pytest.raises((AssertionError, OverflowError)):
        find(appends(duckdb, is_narrow=True), NARROW)


@pytest.mark.parametrize("bug", bugs.CHANGED)
def test_a_bug_of_changes_is_found(bug):
    with bug(), pytest.raises(AssertionError):
        find(changelogs(), CHANGELOGS)


@pytest.mark.parametrize("bug", bugs.OF_PARTITIONS)
def test_a_bug_of_partitions_is_found(duckdb, bug):
    with bug(), pytest.raises(AssertionError):
        find(partitions(duckdb), PARTITIONS)
