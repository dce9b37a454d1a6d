"""A search for values that Parquet and JSON files lose or change: pyarrow, DuckDB and Python's json read them."""

from __future__ import annotations

import base64
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import types

from headrace.connectors.files.formats import FileFormat
from headrace.connectors.files.sink import FileSink
from headrace.enumerator.errors import PeerError, UsageError
from tests.values import schemas
from tests.values.budget import explore, find
from tests.values.test_tables import COMPARISONS, commit, decoded, ids_of, probes, quoted, text_of

COUNTS: Counter[str] = Counter()
ALL = tuple(
    kind for kind in schemas.FLAT + schemas.OTHERS if not types.is_fixed_size_list(kind) and not types.is_duration(kind)
)
"""Arrow does not read lists of fixed size that are null in other ones."""


@st.composite
def written(draw: st.DrawFn) -> list[pa.RecordBatch]:
    schema = pa.schema(draw(schemas.fields(ALL, least=3, most=6)))
    found, number = [], 0
    for batch in draw(st.lists(schemas.batches(schema), min_size=1, max_size=3)):
        columns = {name: decoded(batch[name]) for name in schema.names}
        ids = pa.array(range(number, number + batch.num_rows), pa.int64())
        found.append(pa.RecordBatch.from_pydict({**columns, "id": ids}, schema=schema.append(pa.field("id", pa.int64()))))
        number += batch.num_rows
    return found


def check(file_format: FileFormat, row_group_bytes: int, batches: list[pa.RecordBatch]) -> None:
    COUNTS["schemas"] += 1
    wanted = pa.Table.from_batches(batches)
    with tempfile.TemporaryDirectory(prefix="headrace-values-") as folder:
        try:
            commit(FileSink(folder, format=file_format, row_group_bytes=row_group_bytes), 0, batches)
        except (UsageError, PeerError):
            COUNTS["refused"] += 1
            # Arrow writes no views that are inside of others
            assert any(other in str(wanted.schema.types) for other in ("struct<>", "view"))
            return
        paths = [str(path) for path in Path(folder).glob(f"*.{file_format.value}")]
        COUNTS["values"] += wanted.num_rows * wanted.num_columns
        COUNTS["read-backs"] += 1
        if file_format is FileFormat.JSON_LINES:
            lines = [line for path in paths for line in Path(path).read_text().split("\n")[:-1]]
            check_json([json.loads(line, parse_float=Decimal, parse_int=Decimal) for line in lines], wanted)
        elif paths:
            check_parquet(paths, wanted)


def check_parquet(paths: list[str], wanted: pa.Table) -> None:
    # Arrow filters no rows that have views, and compares no half floats
    kept = {field.name: field for field in ds.dataset(paths).schema}
    fields = [x for x in wanted.schema if "view" not in str(x.type) or not types.is_nested(x.type)]
    dataset = ds.dataset(paths, schema=pa.schema([kept[x.name] if "view" in str(x.type) else x for x in fields]))
    columns = dataset.schema.names
    found = dataset.to_table(columns=columns)
    for name in columns:
        assert schemas.plain(found[name]) == schemas.plain(wanted[name]), name
        if types.is_nested(wanted[name].type) or "view" in str(wanted[name].type) or types.is_float16(wanted[name].type):
            continue
        pairs = pa.table({name: wanted[name], "id": wanted["id"]})
        for bound in probes("parquet", wanted[name]):
            for sign, compare in COMPARISONS.items():
                COUNTS["filters"] += 1
                condition = compare(ds.field(name), bound)
                assert ids_of(dataset.to_table(columns=["id"], filter=condition)) == ids_of(pairs.filter(condition)), (
                    name,
                    sign,
                    text_of(bound),
                )
    lower = Counter(name.lower() for name in wanted.column_names)  # DuckDB renames the second of two cases
    names = [field.name for field in wanted.schema if types.is_string(field.type) or types.is_integer(field.type)]
    names = [name for name in names if lower[name.lower()] == 1]
    text = f"SELECT {', '.join(map(quoted, names))} FROM read_parquet(?) ORDER BY id"
    rows = duckdb.execute(text.replace("{{", "{").replace("}}", "}"), [paths]).to_arrow_table()
    for name in names:
        assert rows[name].to_pylist() == wanted[name].to_pylist(), name


def check_json(found: list[dict[str, Any]], wanted: pa.Table) -> None:
    assert len(found) == wanted.num_rows
    for field in wanted.schema:
        plain = schemas.plain(wanted[field.name])
        for row, value in zip(found, plain, strict=True):
            assert parsed(row[field.name], field.type) == value, (field, row[field.name])


def parsed(value: Any, kind: pa.DataType) -> Any:
    """The value of the text, as `schemas.plain` has it. By NumPy's calendar, which has years after 9999."""
    if value is None:
        return None
    if types.is_struct(kind):
        return {field.name: parsed(value[field.name], field.type) for field in kind}
    if types.is_map(kind):
        return [[key_of(key, kind.key_type), parsed(item, kind.item_type)] for key, item in value.items()]
    if types.is_nested(kind):
        return [parsed(item, kind.value_type) for item in value]
    if types.is_floating(kind):
        # of the value's own width: the shortest text of a single is not that of the double that is nearest to it
        return repr(float(np.dtype(f"f{kind.bit_width // 8}").type(float(value))))
    if types.is_decimal(kind):
        return Decimal(value)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return base64.b64decode(value, validate=True)
    if types.is_date(kind):
        days = int(np.datetime64(value, "D").astype(np.int64))
        return days if types.is_date32(kind) else days * 86_400_000
    if types.is_timestamp(kind):
        assert value.endswith("Z") == (kind.tz is not None)
        return int(np.datetime64(value.removesuffix("Z"), kind.unit).astype(np.int64))
    if types.is_time(kind):
        return int(np.datetime64(f"1970-01-01T{value}", kind.unit).astype(np.int64))
    return value


def key_of(text: str, kind: pa.DataType) -> Any:
    return int(text) if types.is_integer(kind) else parsed(text, kind)


def files() -> Callable[[], None]:
    return given(st.sampled_from(list(FileFormat)), st.sampled_from([1, 64 << 20]), written())(check)


def test_a_short_run_over_files():
    find(files(), 10)


def test_what_is_written_to_files_is_read_by_others():
    explore(files, 100, "files", COUNTS)
    assert COUNTS["refused"] < COUNTS["schemas"] / 2
