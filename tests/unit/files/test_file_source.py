"""Files read by format, in pieces, with other schemas, by bad input, and from stores."""

import bz2
import gzip
import io
import json
import os
import pickle
import random
import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path
from threading import Barrier
from unittest.mock import Mock
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as arrow_fs

from headrace.connectors.base.nested import unencoded
from headrace.connectors.files.read import lines
from headrace.connectors.files.read.columns import FileColumns
from headrace.connectors.files.read.formats import ReadFormat
from headrace.connectors.files.read.lines import (
    CsvDecoder,
    LinesOfCsv,
    LinesOfJson,
    _parsed_ahead,
    _row_ends,
    _row_ends_by_csv,
    _undelivered,
    _whole,
    as_lines,
    line_blocks,
)
from headrace.delta import DeltaSink
from headrace.enumerator.errors import (
    AuthenticationError,
    BadRecordError,
    CorruptDataError,
    DataLossError,
    PeerError,
    RetriableError,
    StateError,
    UsageError,
)
from headrace.files import Csv, FileSink, FileSource
from headrace.iceberg import IcebergSink
from tests.helpers.reading_files import batches, found, rows

AB = pa.schema([("a", pa.int64()), ("b", pa.string())])
TABLE = pa.table({"a": range(10), "b": [f"x{number}" for number in range(10)]})
ROWS = [tuple(row.values()) for row in TABLE.to_pylist()]
MODES = ("fail", "skip", "keep")


def parquet(path: Path, table: pa.Table = TABLE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=3)


def arrow(path: Path, table: pa.Table = TABLE) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def stream(path: Path) -> None:
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=3)


def avro(path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    kinds = [{"name": "a", "type": ["null", "long"]}, {"name": "b", "type": "string"}]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": kinds}, TABLE.to_pylist(), sync_interval=20)


CSV = "a,b\n" + "".join(f"{a},{b}\n" for a, b in ROWS)
JSON = "".join(f'{{"a":{a},"b":"{b}"}}\n' for a, b in ROWS)


# --- formats ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("schema", [AB, None], ids=["given", "inferred"])
@pytest.mark.parametrize("split_bytes", [1 << 20, 40])
@pytest.mark.parametrize(
    ("format_", "write"),
    [
        ("parquet", parquet), ("arrow", arrow), ("arrow", stream), ("avro", avro),
        ("jsonl", lambda path: path.write_text(JSON)), ("csv", lambda path: path.write_text(CSV)),
        ("csv", lambda path: path.write_bytes(b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode())),
        (Csv(newlines_in_values=True), lambda path: path.write_text(CSV)),
    ],
)  # fmt: skip
def test_a_file_is_read_once_and_in_order(tmp_path, format_, write, split_bytes, schema):
    """Whole or in pieces; and again from every position, as after a restore."""
    write(tmp_path / "file")
    source = FileSource(str(tmp_path), format=format_, schema=schema, split_bytes=split_bytes, batch_rows=2)
    read = list(batches(source, splits := found(source)[0]))
    assert sorted(rows(source, splits)) == ROWS
    for number, batch in enumerate(read[:-1]):
        rest = [
            row
            for each in read[number + 1 :]
            if each.split.split_id == batch.split.split_id
            for row in each.records.to_pylist()
        ]
        assert [row for each in batches(source, [batch.split]) for row in each.records.to_pylist()] == rest
    assert rows(source.with_columns(["b"]), splits) == [row["b"] for each in read for row in each.records.to_pylist()]


@pytest.mark.parametrize("seed", range(20))
def test_lines_are_cut_anywhere(tmp_path, seed):
    """Each line is in the piece that it starts in, however long it is."""
    draw = random.Random(seed)
    lines = ["".join(draw.choices("aé\u2028 ", k=draw.choice((0, 1, 30)))) for _ in range(draw.randint(1, 20))]
    text = draw.choice(("\ufeff", "")) + "\n".join(lines) + draw.choice(("", "\n", "\n\n"))
    (tmp_path / "a").write_bytes(text.encode() or b"\n")
    expected = text.removeprefix("\ufeff").removesuffix("\n").split("\n")
    source = FileSource(str(tmp_path), format="text", split_bytes=draw.randint(1, 40), batch_rows=3)
    assert rows(source) == expected


@pytest.mark.parametrize("format_", ["csv", Csv(newlines_in_values=True)], ids=["lines", "newlines in values"])
@pytest.mark.parametrize(("name", "pack"), [("a.csv.gz", gzip.compress), ("a.csv.bz2", bz2.compress), ("a.csv.zst", None)])
def test_packed_files_are_unpacked_and_not_cut(tmp_path, name, pack, format_):
    """By the ending of their names; a packed file of several parts is all of them (as `cat a.gz b.gz` makes it)."""
    halves = (CSV[:30].encode(), CSV[30:].encode())
    if pack is None:
        with pa.output_stream(str(tmp_path / name), compression="zstd") as packed:
            packed.write(CSV.encode())
    else:
        (tmp_path / name).write_bytes(b"".join(map(pack, halves)))
    for path in (tmp_path, tmp_path / name):
        source = FileSource(str(path), format=format_, split_bytes=20)
        assert len(found(source)[0]) == 1
        assert rows(source) == ROWS


def test_csv_is_read_as_it_is_described(tmp_path):
    (tmp_path / "a").write_text("'x;\ny';1\n'NULL';2\nNULL;3\n")
    csv = Csv(delimiter=";", quote="'", header=False, newlines_in_values=True, null_values=["NULL"])
    schema = pa.schema([("text", pa.string()), ("number", pa.int32())])
    assert [row[1] for row in rows(FileSource(str(tmp_path), format=csv, schema=schema))] == [1, 2, 3]
    assert rows(FileSource(str(tmp_path), format=csv, schema=schema))[0] == ("x;\ny", 1)
    (tmp_path / "a").rename(tmp_path / "_a")
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "b").write_text("x,1\ny,2\n")
    for multi in (False, True):  # names are those of the schema, whatever is asked for
        source = FileSource(
            str(tmp_path),
            format=Csv(header=False, newlines_in_values=multi),
            schema=schema.insert(0, pa.field("day", pa.int8())),
            columns=["number", "day"],
        )
        assert rows(source) == [(1, 1), (2, 1)]


JSON_PARTS = [
    *('{"a":1}', '{"a":2,"b":"x"}', '{"a":1}{"a":2}', '{"a":1},{"a":2}', '{"a":', "2}", '{"a":{"b":"', '}"}', "", " ", "null"),
    *('{"a":1,"a":2}', '{"b":"}"}', '{"b":"{"}', '{"s":[{"a":1}', '{"a":3}]}', ' {"a":4}', '{"a":NaN}', '{"b":"NaN"}', "{}"),
    *('"', '{"a":"1"}', '{"a":1.5}', '{"b":"\udcff"}', '{"s":{}}', "{", "}", "[", "]", ",", '{"a":5}\r', "\r"),
]  # fmt: skip
CSV_PARTS = [
    *("1,x", '2,"y"', '3,"y', 'y",4', "", " ", '"', "5", "6,z,7", "q,z"),
    *('8,"a""b"', "9,\r", '"10",', ",", "1,\udcff", '""', 'x"y,"z', '4,5" disk', '4,"a""', '"4'),
]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("parts", "lines_of"), [(JSON_PARTS, LinesOfJson()), (CSV_PARTS, LinesOfCsv(Csv(header=False), "ab"))])
def test_a_block_read_at_once_is_what_its_lines_are(parts, lines_of, seed):
    """Where it is taken for clean, no line is bad, and rows are those of the lines one by one."""
    draw = random.Random(seed)
    decoder, clean = lines_of.decoder(AB, b""), 0
    for _ in range(60):
        chosen = draw.choices(parts if draw.random() < 0.5 else parts[:2] + parts[-9:], k=draw.randint(1, 4))
        block = "\n".join(chosen).encode(errors="surrogateescape") + draw.choice((b"", b"\n"))
        whole = _whole(*_undelivered(iter([block]), 0), decoder) if block else None
        if whole is not None:
            values, bad = decoder.decode(as_lines(block))
            assert (whole.to_pylist(), bad) == (values.to_pylist(), [])
            clean += 1
    assert clean


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 40])
def test_the_lines_that_start_in_a_range_are_whole_whatever_is_read_at_once(block_bytes):
    draw = random.Random(block_bytes)
    for _ in range(200):
        data = "".join(draw.choices("ab\n", k=draw.randint(1, 40))).encode()
        start = draw.choice((0, draw.randrange(len(data))))
        stop = draw.choice((None, draw.randint(start + 1, len(data))))
        lines = data.splitlines(keepends=True)
        starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
        last = len(data) if stop is None else stop
        wanted = [line for line, at in zip(lines, starts, strict=True) if start <= at < last]
        blocks = list(line_blocks(pa.BufferReader(data), start, stop, block_bytes))
        assert [line for block in blocks for line in block.splitlines(keepends=True)] == wanted
        assert all(block.endswith(b"\n") for block in blocks[:-1])


def test_two_blocks_of_lines_are_parsed_at_the_same_time():
    both = Barrier(2, timeout=60)

    def parse(block):
        both.wait()
        return block.text

    blocks = _undelivered(iter([b"1\n", b"2\n", b"3\n", b"4\n"]), 0)
    assert list(_parsed_ahead(blocks, parse)) == [b"1\n", b"2\n", b"3\n", b"4\n"]


def test_blocks_that_were_read_are_given_before_what_fails_behind_them():
    def failing():
        yield b"1\n"
        yield b"2\n"
        raise OSError("the rest of it is gone")

    parsed = _parsed_ahead(_undelivered(failing(), 0), lambda block: block.text)
    assert [next(parsed), next(parsed)] == [b"1\n", b"2\n"]
    with pytest.raises(OSError, match="the rest"):
        next(parsed)


def test_only_columns_that_are_asked_for_are_read(tmp_path):
    """What is damaged elsewhere does not matter: pages of other columns are not touched."""
    parquet(tmp_path / "a", pa.table({"a": range(1000), "b": ["y" * 100] * 1000}))
    data = bytearray((tmp_path / "a").read_bytes())
    column = pq.ParquetFile(tmp_path / "a").metadata.row_group(0).column(1)
    start = column.dictionary_page_offset or column.data_page_offset
    data[start : start + 20] = bytes(20)
    (tmp_path / "a").write_bytes(data)
    assert rows(FileSource(str(tmp_path), columns=["a"])) == list(range(1000))
    with pytest.raises(CorruptDataError, match="a, record 0: the file cannot be read here"):
        rows(FileSource(str(tmp_path)))


def decoded_rows(monkeypatch):
    """The numbers of rows of the batches that pyarrow decodes from now on."""
    decoded, read = [], pq.ParquetFile.iter_batches

    def iter_batches(file, *given, **options):
        for batch in read(file, *given, **options):
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    return decoded


@pytest.mark.parametrize(("table", "most"), [
    (pa.table({"a": range(100), "b": [1.5] * 100}), 100), (pa.table({"a": range(100), "s": ["a" * 9000] * 100}), 10),
], ids=["numbers", "texts"])  # fmt: skip
def test_more_rows_than_a_batch_has_are_decoded_at_once_where_all_are_short(tmp_path, monkeypatch, table, most):
    """Of texts from a dictionary the file states no length: gigabytes of them were decoded at once."""
    parquet(tmp_path / "a", table)
    decoded = decoded_rows(monkeypatch)
    source = FileSource(str(tmp_path), batch_rows=10)
    given = [batch.records for batch in batches(source, found(source)[0])]
    assert (max(decoded), sum(decoded), max(batch.num_rows for batch in given)) == (most, 100, 10)


def test_rows_of_a_dictionary_are_decoded_a_batch_at_a_time(tmp_path, monkeypatch):
    """Their width is that of the indices, and not of the texts."""
    pq.write_table(pa.table({"s": pa.array([f"{n}" * 9000 for n in range(100)]).dictionary_encode()}), tmp_path / "a")
    decoded = decoded_rows(monkeypatch)
    source = FileSource(str(tmp_path), batch_rows=10)
    assert sum(batch.records.num_rows for batch in batches(source, found(source)[0])) == 100
    assert decoded == [10] * 10


WORDS = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(("kind", "made"), [
    (pa.struct([("d", WORDS)]), lambda each: {"d": each}), (pa.list_(WORDS), lambda each: [each]),
    (pa.map_(pa.string(), WORDS), lambda each: [("k", each)]),
], ids=["struct", "list", "map"])  # fmt: skip
def test_a_dictionary_within_another_type_is_read_over_the_ends_of_row_groups(tmp_path, kind, made):
    """The good file was taken for a damaged one: pyarrow has no batch of two row groups for such a type."""
    values = [made(each) for each in "abcdefgh"]
    parquet(tmp_path / "a", pa.table({"c": pa.array(values, kind)}))
    source = FileSource(str(tmp_path), batch_rows=2)
    splits = found(source)[0]
    assert [batch.records.num_rows for batch in batches(source, splits)] == [2, 1, 2, 1, 2, 0]
    assert rows(source) == values
    assert rows(source, [replace(split, delivered=2) for split in splits]) == values[2:]


@pytest.mark.parametrize(("rows", "most", "threads"), [(1_000_000, 1_000_000, False), (1_000_001, 524_288, True)])
def test_a_piece_of_up_to_8_mib_takes_one_thread_and_one_call(tmp_path, monkeypatch, rows, most, threads):
    """A larger one is decoded in parts, its columns next to each other: what is decoded ahead has a bound."""
    monkeypatch.setattr("headrace.connectors.files.read.columnar._PIECE_BYTES", 8_000_000)
    pq.write_table(pa.table({"a": pa.array(range(rows), "int64")}), tmp_path / "a", row_group_size=rows)
    decoded, read = [], pq.ParquetFile.iter_batches

    def iter_batches(file, *given, use_threads):
        for batch in read(file, *given, use_threads=use_threads):
            decoded.append((batch.num_rows, use_threads))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    source = FileSource(str(tmp_path))
    assert sum(batch.records.num_rows for batch in batches(source, found(source)[0])) == rows
    assert max(decoded) == (most, threads)


def test_rows_ahead_of_damage_are_given_before_it_fails(tmp_path):
    """Several small batches are read in one turn of a thread."""
    file = tmp_path / "a"
    pq.write_table(pa.table({"a": range(50)}), file, row_group_size=10)
    data = bytearray(file.read_bytes())
    column = pq.ParquetFile(file).metadata.row_group(3).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    data[start : start + 20] = bytes(20)
    file.write_bytes(data)
    source = FileSource(str(tmp_path), batch_rows=10)
    given = []
    with pytest.raises(CorruptDataError, match="a, record 30: the file cannot be read here"):
        given.extend(batch.records.num_rows for batch in batches(source, found(source)[0]))
    assert given == [10, 10, 10]
    kept = rows(FileSource(str(tmp_path), batch_rows=10, on_bad_record="keep"))
    assert kept == [*range(30), None]


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst"])
def test_lines_ahead_of_damage_in_a_packed_file_are_given(tmp_path, ending):
    """All but those of the last 64 KiB: a read that fails gives nothing."""
    random_, lines = random.Random(1), []
    while len(lines) < 60_000:
        lines.append(f"{len(lines)} {random_.randbytes(20).hex()}")
    file = tmp_path / f"a{ending}"
    with pa.CompressedOutputStream(str(file), {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}[ending]) as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())
    packed = file.read_bytes()
    file.write_bytes(packed[: len(packed) * 9 // 10])
    kept = rows(FileSource(str(tmp_path), format="text", on_bad_record="keep"))
    assert kept == [*lines[: len(kept) - 1], None]
    unpacked = len(lines) * 9 // 10
    assert len(kept) > unpacked - ((1 << 20) if ending == ".bz2" else (128 << 10)) // len(lines[0])


# --- schemas ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_names_differ_in_more_than_case_and_spaces(tmp_path, format_):
    """Or the column would be null in all rows, where Spark's own reader finds it, or people do."""
    (tmp_path / "f").write_text(CSV)
    if format_ == "parquet":
        parquet(tmp_path / "f")
    with pytest.raises(CorruptDataError, match="it has 'a', and not 'A'"):
        rows(FileSource(tmp_path, format=format_, schema=pa.schema([("A", pa.int64()), ("c", pa.int8())])))
    with pytest.raises(CorruptDataError, match="it has 'a', and not ' a'"):
        rows(FileSource(tmp_path, format=format_, schema=pa.schema([(" a", pa.int64()), ("c", pa.int8())])))
    both = pa.schema([("A", pa.int64()), ("a", pa.int64())])
    assert rows(FileSource(tmp_path, format=format_, schema=both))[0] == (None, 0)


def around(column: str, kind: pa.DataType) -> pa.DataType:
    kinds = {"s": kind, "l": pa.list_(kind), "m": pa.map_(pa.string(), kind), "i": pa.struct([("s", kind)])}
    return kinds[column]


@pytest.mark.parametrize("column", ["s", "l", "m", "i"])
@pytest.mark.parametrize("format_", ["parquet", "arrow", "avro"])
def test_names_of_fields_differ_in_more_than_case_and_spaces(tmp_path, format_, column):
    """As those of columns; a struct with none of the fields would be null in all of them, too."""
    kind, value = pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": "x"}
    row = {"s": value, "l": [value], "m": {"k": value}, "i": {"s": value}}
    if format_ == "avro":
        fields = [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]
        record = {"type": "record", "name": "s", "fields": fields}
        inner = {"type": "record", "name": "i", "fields": [{"name": "s", "type": "s"}]}
        kinds = [record, {"type": "array", "items": "s"}, {"type": "map", "values": "s"}, inner]
        columns = [{"name": name, "type": kind} for name, kind in zip(row, kinds, strict=True)]
        with (tmp_path / "f").open("wb") as file:
            pytest.importorskip("fastavro").writer(file, {"type": "record", "name": "r", "fields": columns}, [row])
    else:
        schema = pa.schema([(name, around(name, kind)) for name in row])
        {"parquet": parquet, "arrow": arrow}[format_](
            tmp_path / "f", pa.Table.from_pylist([row | {"m": [("k", value)]}], schema)
        )

    def source_of(*fields):
        return FileSource(tmp_path, format=format_, schema=pa.schema([(column, around(column, pa.struct(fields)))]))

    with pytest.raises(CorruptDataError, match=f"its column '{column}': it has 'a', and not 'A'"):
        rows(source_of(("A", pa.int64()), ("b", pa.string())))
    with pytest.raises(CorruptDataError, match=f"its column '{column}': it has none of the fields y, z, and has a, b"):
        rows(source_of(("y", pa.int64()), ("z", pa.string())))
    (read,) = rows(source_of(("z", pa.string()), ("b", pa.string())))
    assert str({"z": None, "b": "x"}) in str(read)


def runs_of(values: pa.Array) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), values)


RUNS_WITHIN = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array([1, None], pa.int64()))
NESTED, PLACES = pa.array([[1], None]), pa.array([0, 1, None, 0, 1], pa.int8())
ENCODED = {
    "runs": runs_of(pa.array(["x", None])),
    "runs of lists": runs_of(NESTED),
    "runs of views": runs_of(pa.array(["x", None], pa.string_view())),
    "runs of a dictionary": runs_of(pa.array(["x", "y"]).dictionary_encode()),
    "runs of records of runs": runs_of(pa.StructArray.from_arrays([RUNS_WITHIN], ["r"])),
    "runs of records of views": runs_of(pa.array([{"a": "x"}, None], pa.struct([("a", pa.string_view())]))),
    "a dictionary of views": pa.DictionaryArray.from_arrays(PLACES, pa.array(["x", None], pa.string_view())),
    "a dictionary of lists of views": pa.DictionaryArray.from_arrays(
        PLACES, pa.array([["x"], None], pa.list_(pa.string_view()))
    ),
    "a dictionary of lists of runs": pa.DictionaryArray.from_arrays(PLACES, pa.ListArray.from_arrays([0, 1, 2], RUNS_WITHIN)),
    "a dictionary of lists": pa.DictionaryArray.from_arrays(PLACES, NESTED),
    "a dictionary of records": pa.DictionaryArray.from_arrays(PLACES, pa.array([{"a": 1}, None])),
    "a list": pa.ListArray.from_arrays(pa.array([0, 2, None, 2, 3, 5], pa.int32()), runs_of(pa.array(["x", "y"]))),
    "a record": pa.StructArray.from_arrays([runs_of(NESTED)], ["a"], mask=pa.array([False, True, False, False, False])),
    "a map": pa.MapArray.from_arrays(pa.array([0, 1, 1, 2, 4, 5]), pa.array([*"abcde"]), runs_of(pa.array([1, 2]))),
    "a list of a fixed size, of runs": pa.FixedSizeListArray.from_arrays(runs_of(pa.array(["x", None])), 1),
    "a list of a fixed size, of a dictionary": pa.FixedSizeListArray.from_arrays(
        pa.DictionaryArray.from_arrays(PLACES, pa.array([{"a": 1}, None])), 1
    ),
    "a dictionary of lists of a fixed size, of views": pa.DictionaryArray.from_arrays(
        PLACES, pa.array([["x"], None], pa.list_(pa.string_view(), 1))
    ),
    "a list of a dictionary of unsigned indices": pa.ListArray.from_arrays(
        pa.array([0, 2, None, None, 3, 5], pa.int32()),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 0, 1], pa.uint16()), pa.array(["x", "y"])),
    ),
    "nulls in place of lists of a dictionary of lists": pa.ListArray.from_arrays(
        pa.array([0, None, None, 0], pa.int32()), pa.DictionaryArray.from_arrays(PLACES, NESTED)
    ),
    "nulls in place of records of runs, in a map": pa.MapArray.from_arrays(
        pa.array([0, None, 2, 5], pa.int32()),
        pa.array([*"abcde"]),
        pa.StructArray.from_arrays([runs_of(pa.array([1, 2]))], ["r"], mask=pa.array([True, False, False, True, False])),
    ),
}


@pytest.mark.parametrize("column", ENCODED.values(), ids=list(ENCODED))
@pytest.mark.parametrize("batch_rows", [2, 100])
def test_encodings_that_arrow_casts_from_none_are_decoded(tmp_path, column, batch_rows):
    """Regression: a file was bad by the schema that was inferred from it."""
    with pa.ipc.new_file(tmp_path / "1", pa.schema([("x", column.type)])) as writer:
        writer.write(pa.record_batch([column], ["x"]))
    expected = [value.as_py() for value in column]
    assert rows(FileSource(tmp_path, format="arrow", batch_rows=batch_rows)) == expected


def test_views_of_lists_of_runs_are_refused_by_their_type(tmp_path):
    """Regression: it was Arrow's error as a batch without rows was made; and other columns of such a file are read."""
    column = pa.ListViewArray.from_arrays([0, 1], [1, 1], runs_of(pa.array(["x", "y"])))
    with pa.ipc.new_file(tmp_path / "1", pa.schema([("id", pa.int64()), ("x", column.type)])) as writer:
        writer.write(pa.record_batch([pa.array([1, 2]), column], ["id", "x"]))
    with pytest.raises(UsageError, match=r"no batch of column 'x', list_view<item: run_end_encoded<.*: give `columns` without"):
        rows(FileSource(tmp_path, format="arrow"))
    assert rows(FileSource(tmp_path, format="arrow", columns=["id"])) == [1, 2]


@pytest.mark.parametrize("kind", [pa.ArrowTypeError, pa.ArrowKeyError, pa.ArrowNotImplementedError])
def test_whatever_arrow_raises_of_columns_is_a_bad_record(tmp_path, monkeypatch, kind):
    """Regression: an error of a kind that was not expected ended the run, also where bad records are skipped."""
    (tmp_path / "1").write_text("x\n")
    monkeypatch.setattr(FileColumns, "batch", Mock(side_effect=kind("injected")))
    source = FileSource(tmp_path, format="text", on_bad_record="skip")
    assert rows(source) == []
    with pytest.raises(BadRecordError, match="1, record 0: the file cannot be read here: injected"):
        rows(FileSource(tmp_path, format="text"))


def test_slices_of_lists_of_a_fixed_size_with_runs_are_decoded():
    """Arrow casts such a slice to the values of the first rows."""
    column = pa.FixedSizeListArray.from_arrays(pa.RunEndEncodedArray.from_arrays(pa.array([2, 6]), pa.array(["x", None])), 2)
    assert unencoded(column.slice(1)).to_pylist() == [[None, None], [None, None]]
    assert unencoded(column.slice(0, 1)).to_pylist() == [["x", "x"]]


@pytest.mark.parametrize("name", ["line", "Value", " value"])
def test_lines_of_text_are_the_column_value(tmp_path, name):
    """Or all rows would be null, where Spark's own reader gives the lines under any one name."""
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "f").write_text("x\n")
    days = pa.schema([("day", pa.int64())])
    for columns in (None, ["day"]):
        source = FileSource(tmp_path, format="text", schema=days.append(pa.field(name, pa.string())), columns=columns)
        with pytest.raises(UsageError, match=f"a line of text is the column 'value', and the schema has '{name}'"):
            rows(source)
    assert rows(FileSource(tmp_path, format="text", schema=days)) == [1]
    more = pa.schema([*days, ("value", pa.string()), (name, pa.string())])
    assert rows(FileSource(tmp_path, format="text", schema=more)) == [(1, "x", None)]


@pytest.mark.parametrize(("format_", "kind", "message"), [
    *(("csv", kind, "CSV cannot have the column 'value' as") for kind in (pa.list_(pa.int64()), pa.decimal256(50, 2))),
    (Csv(newlines_in_values=True), pa.float16(), "CSV cannot have the column 'value' as halffloat: take a string"),
    ("text", pa.int64(), "a line of text is a string, and the schema has 'value' as int64"),
    ("jsonl", pa.date32(), "JSON values cannot be date32"),
    ("day", pa.list_(pa.int64()), "a folder's name cannot be the column 'day' as list"),
], ids=str)  # fmt: skip
def test_a_type_that_the_format_does_not_have_is_a_usage_error_and_not_a_bad_file(tmp_path, format_, kind, message):
    """With `skip` all files were left out, and with `after_read="delete"` they were deleted."""
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "f").write_text("value\n1\n")
    name, format_ = ("day", "text") if format_ == "day" else ("value", format_)
    schema = pa.schema([(name, kind), ("other", pa.string())] if name == "value" else [(name, kind)])
    with pytest.raises(UsageError, match=message):
        rows(FileSource(tmp_path, format=format_, schema=schema, on_bad_record="skip"))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_string(), pa.string_view()], ids=str)
def test_lines_of_text_are_of_any_type_of_strings(tmp_path, kind):
    (tmp_path / "f").write_text("x\n")
    (value,) = rows(FileSource(tmp_path, format="text", schema=pa.schema([("value", kind)])))
    assert value == pa.scalar("x").cast(kind).as_py()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_lines_into_bytes_are_of_any_bytes(tmp_path, kind):
    """Regression: a line that is not UTF-8 was a bad record."""
    (tmp_path / "f").write_bytes(b"caf\xe9\nok\n")
    assert rows(FileSource(tmp_path, format="text", schema=pa.schema([("value", kind)]))) == [b"caf\xe9", b"ok"]


@pytest.mark.parametrize("write", [parquet, arrow])
def test_columns_are_found_by_name(tmp_path, write):
    """Missing ones are null, others may come in any order, and narrower numbers are widened; what does not fit is refused."""
    write(tmp_path / "1", pa.table({"b": ["x"], "a": pa.array([1], pa.int8()), "c": [True]}))
    write(tmp_path / "2", pa.table({"s": [{"q": 1, "p": "z"}], "b": [None]}))
    format_ = write.__name__
    schema = pa.schema([*AB, ("s", pa.struct([("p", pa.string()), ("n", pa.float64())]))])
    assert sorted(rows(FileSource(str(tmp_path), format=format_, schema=schema)), key=str) == [
        (1, "x", None), (None, None, {"p": "z", "n": None}),
    ]  # fmt: skip
    write(tmp_path / "3", pa.table({"a": ["text"]}))
    with pytest.raises(CorruptDataError, match="3, record 0: the file cannot be read here: its column 'a' is string, and the"):
        rows(FileSource(str(tmp_path), format=format_, schema=AB))
    assert len(rows(FileSource(str(tmp_path), format=format_, schema=AB, on_bad_record="skip"))) == 2
    other = FileSource(str(tmp_path), format=format_, schema=pa.schema([("x", pa.string()), ("y", pa.string())]), columns=["x"])
    with pytest.raises(CorruptDataError, match="it has none of the columns x, y, and has "):
        rows(other)


def test_columns_of_any_name(tmp_path):
    """Also of those that pyarrow's dataset has for itself, and of names that are paths to other columns."""
    names = ["a.b", "a", "", ".a", "a.b.c", "__filename", "__fragment_index", "__batch_index", "__last_in_fragment", "[0]"]
    values = [*range(len(names)), {"t": 1, "u.v": 2}, 3, 4]
    names += ["s", "s.t", "s.u.v"]
    parquet(tmp_path / "f", pa.table({name: [value] for name, value in zip(names, values, strict=True)}))
    source = FileSource(tmp_path)
    assert rows(source) == [tuple(values)]
    assert [rows(source.with_columns([name])) for name in names] == [[value] for value in values]
    assert rows(source.with_columns(["s.u.v", "s"])) == [(4, values[-3])]


@pytest.mark.parametrize(("found_type", "fits"), [
    (pa.int32(), True), (pa.uint32(), True), (pa.uint64(), False), (pa.float64(), False), (pa.string(), False),
    (pa.dictionary(pa.int8(), pa.int16()), True), (pa.null(), True),
])  # fmt: skip
def test_a_type_fits_where_all_its_values_do(tmp_path, found_type, fits):
    values = [None] if found_type == pa.null() else ["1"] if found_type == pa.string() else [1]
    parquet(tmp_path / "a", pa.table({"a": pa.array(values, found_type)}))
    source = FileSource(str(tmp_path), schema=AB, columns=["a"])
    if fits:
        assert rows(source) == ([None] if found_type == pa.null() else [1])
    else:
        with pytest.raises(CorruptDataError, match="its column 'a' is"):
            rows(source)


@pytest.mark.parametrize("stored", [True, False], ids=["arrow schema", "of others"])
def test_times_as_spark_writes_them(tmp_path, stored):
    """INT96 is an instant, at any depth; as nanoseconds, which Arrow reads by itself, the end of time would be another year."""
    naive = pa.timestamp("us")
    lists = {"l": pa.list_(naive), "g": pa.large_list(naive), "f": pa.list_(naive, 1)}
    columns = {"t": naive, **lists, "s": pa.struct([("n", pa.int8()), ("t", naive)]), "m": pa.map_(naive, naive)}
    table = []
    for end in (datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)):
        table.append({"t": end, "l": [end], "g": [end], "f": [end], "s": {"n": 1, "t": end}, "m": [(end, end)]})
    written = pa.table({name: pa.array([row[name] for row in table], kind) for name, kind in columns.items()})
    pq.write_table(written, tmp_path / "a", use_deprecated_int96_timestamps=True, store_schema=stored)
    assert FileSource(str(tmp_path)).schema.field("t").type == pa.timestamp("us", "UTC")
    assert rows(FileSource(str(tmp_path))) == [tuple(row.values()) for row in table]


@pytest.mark.parametrize("on_bad", MODES)
def test_a_time_that_the_unit_does_not_hold_is_bad(tmp_path, on_bad):
    parquet(tmp_path / "a", pa.table({"t": pa.array([5_000, 5_001], pa.timestamp("ns"))}))
    source = FileSource(str(tmp_path), schema=pa.schema([("t", pa.timestamp("us"))]), batch_rows=1, on_bad_record=on_bad)
    if on_bad == "fail":
        with pytest.raises(CorruptDataError, match=r"a, record 1: the file cannot be read here: .* would lose data\. "):
            rows(source)
    else:
        assert rows(source) == [datetime(1970, 1, 1, microsecond=5), *([None] if on_bad == "keep" else [])]


ONE = {"k": 1}
ALIKE = [
    (pa.timestamp("ns"), pa.timestamp("us"), 5000), (pa.timestamp("ns", "UTC"), pa.timestamp("us", "Europe/Berlin"), 5000),
    (pa.duration("ns"), pa.duration("us"), 5000), (pa.time64("us"), pa.time64("ns"), 5),
    (pa.time64("ns"), pa.time32("ms"), 10**9),
    (pa.map_(pa.string(), pa.field("v", pa.int32(), nullable=False)), pa.map_(pa.string(), pa.int64()), ONE),
    (pa.struct([("m", pa.map_(pa.string(), pa.int8()))]), pa.struct([("m", pa.map_(pa.string(), pa.int16()))]), {"m": ONE}),
    (  # whose values are structs that lack a field
        pa.map_(pa.string(), pa.field("value", pa.struct([pa.field("a", pa.int8(), nullable=False)]), nullable=False)),
        pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("b", pa.string())])), {"k": {"a": 1}},
    ),
    (pa.list_(pa.float32(), 2), pa.list_(pa.float32()), [1, 2]), (pa.list_(pa.float32(), 2), pa.list_(pa.float64()), [1, 2]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "wanted", "value"), ALIKE, ids=str)
def test_what_writers_and_spark_call_alike_fits(tmp_path, kind, wanted, value):
    none = value if pa.types.is_fixed_size_list(kind) else None  # of which Arrow reads no nulls
    column = pa.array([none, value, value] * 3, kind)
    parquet(tmp_path / "a", pa.table({"c": column}))
    expected = pa.array(column.to_pylist(), wanted) if pa.types.is_nested(kind) else column.cast(wanted)
    assert rows(FileSource(str(tmp_path), schema=pa.schema([("c", wanted)]), batch_rows=2)) == expected.to_pylist()


def test_partitions_are_columns(tmp_path):
    """Of the schema's type if there is one; without it, whole numbers where all values are."""
    parquet(tmp_path / "day=1" / "city=a%2Fb" / "f", TABLE.slice(0, 1))
    parquet(tmp_path / "day=__HIVE_DEFAULT_PARTITION__" / "city=7" / "f", TABLE.slice(1, 1))
    source = FileSource(str(tmp_path))
    assert source.schema == pa.schema([*AB, ("day", pa.int64()), ("city", pa.string())])
    assert sorted(rows(source)) == [(0, "x0", 1, "a/b"), (1, "x1", None, "7")]
    given = FileSource(str(tmp_path), schema=pa.schema([("city", pa.string()), ("day", pa.decimal128(5, 2))]))
    assert sorted(rows(given)) == [("7", None), ("a/b", Decimal(1))]
    parquet(tmp_path / "named" / "a%3Db%2Fc=x=y" / "f", TABLE.slice(0, 1))
    assert batches_of(FileSource(str(tmp_path / "named"))) == [{"a": 0, "b": "x0", "a=b/c": "x=y"}]
    with pytest.raises(CorruptDataError, match="the path has a value that is not of the schema's type"):
        rows(FileSource(str(tmp_path), schema=pa.schema([("city", pa.int64())])))


def batches_of(source: FileSource) -> list[dict[str, object]]:
    return [row for batch in batches(source, found(source)[0]) for row in batch.records.to_pylist()]


@pytest.mark.parametrize(("texts", "kind"), [
    (["2024-01-01T00:00:00Z", "2024-01-01T02:00:00+02:00"], pa.timestamp("us", "UTC")),
    (["2024-01-01T00:00:00", "2024-01-01 00:00"], pa.timestamp("us")),
    (["2024-01-01T00:00:00Z", "tomorrow"], pa.string()), (["noon, 00:00:00" * 100_000], pa.string()),
], ids=["with a zone", "without one", "texts", "a long line"])  # fmt: skip
def test_times_of_json_without_a_schema(tmp_path, texts, kind):
    """Read as what they were inferred to be: with a zone, or without one, to the microsecond."""
    (tmp_path / "f").write_text("".join(f'{{"t":"{text}","l":[{{"t":"{text}"}}]}}\n' for text in texts))
    source = FileSource(str(tmp_path), format="jsonl")
    assert source.schema == pa.schema([("t", kind), ("l", pa.list_(pa.struct([("t", kind)])))])
    read = rows(source)
    assert [row[0] for row in read] == [row[1][0]["t"] for row in read]
    (tmp_path / "later").write_text(f'{{"t":"{texts[0].replace("00:00:00", "00:00:00.5")}"}}\n')
    assert "5" in str(rows(source)[-1][0])


def test_times_of_json_without_a_zone_are_in_that_of_the_source(tmp_path):
    (tmp_path / "f").write_text('{"t":"2024-07-01T12:00:00"}\n')
    schema = pa.schema([("t", pa.timestamp("s", "UTC"))])
    for zone, hour in (("UTC", 12), (lambda: "Europe/Berlin", 10)):
        (time,) = rows(FileSource(str(tmp_path), format="jsonl", schema=schema, time_zone=zone))
        assert time.hour == hour


def test_an_avro_uuid_of_bytes(tmp_path):
    fastavro = pytest.importorskip("fastavro")
    kind = {"type": "fixed", "name": "id", "size": 16, "logicalType": "uuid"}
    with (tmp_path / "f").open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": [{"name": "id", "type": kind}]}, [{"id": b"\xff" * 16}])
    assert rows(FileSource(str(tmp_path), format="avro")) == ["ffffffff-ffff-ffff-ffff-ffffffffffff"]


def test_avro_has_times_of_any_year_and_intervals(tmp_path):
    """Python has not, and all records behind the first such value were lost with it, whichever columns were asked for."""
    fastavro = pytest.importorskip("fastavro")
    interval = {"type": "fixed", "name": "i", "size": 12, "logicalType": "duration"}
    kinds = {
        "t": {"type": "long", "logicalType": "timestamp-micros"},
        "d": {"type": "int", "logicalType": "date"},
        "i": interval,
    }
    fields = [{"name": "n.n", "type": "int"}, *({"name": name, "type": kind} for name, kind in kinds.items())]
    records = [{"n.n": n, "t": n << 60, "d": -n << 29, "i": bytes([n, *[0] * 11])} for n in range(4)]
    with (tmp_path / "f").open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, records, sync_interval=40)
    source = FileSource(str(tmp_path), format="avro", batch_rows=3)
    read = pa.Table.from_batches([each.records for each in batches(source, found(source)[0])])
    assert [read[name].cast(pa.int64()).to_pylist() for name in ("n.n", "t")] == [[*range(4)], [n << 60 for n in range(4)]]
    assert read["d"].cast(pa.int32()).to_pylist() == [-n << 29 for n in range(4)]
    assert [each.months for each in read["i"].to_pylist()] == [*range(4)]
    assert rows(source.with_columns(["n.n"])) == [*range(4)]


def test_avro_records_of_no_bytes_are_counted(tmp_path):
    fastavro = pytest.importorskip("fastavro")
    with (tmp_path / "f").open("wb") as file:
        kind = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "null"}]}
        fastavro.writer(file, kind, [{"n": None}] * 100_000)
    assert rows(FileSource(str(tmp_path), format="avro")) == [None] * 100_000


def test_an_avro_codec_whose_library_is_not_installed_ends_the_job(tmp_path, monkeypatch):
    """It would be skipped as one."""
    fastavro = pytest.importorskip("fastavro")

    def missing(_: object) -> None:
        raise ValueError("snappy codec is supported but you need to install one of the following libraries: ('cramjam',)")

    avro(tmp_path / "f")
    monkeypatch.setitem(fastavro.read.BLOCK_READERS, "null", missing)
    with pytest.raises(UsageError, match="needs another library: snappy codec"):
        rows(FileSource(str(tmp_path), format="avro", schema=AB, on_bad_record="skip"))


def test_what_is_ahead_of_a_damaged_block_of_avro_is_read(tmp_path):
    path = tmp_path / "f"
    avro(path)
    data = path.read_bytes()
    assert data.count(b"x9") == 1
    for damaged in (data.replace(b"x9", b"\xff9"), data[: data.index(b"x9")]):
        path.write_bytes(damaged)
        source = FileSource(str(tmp_path), format="avro", schema=AB, on_bad_record="keep", batch_rows=100)
        kept = rows(source)
        assert 0 < len(kept) < len(ROWS)
        assert kept == [*ROWS[: len(kept) - 1], (None, None)]


def test_streams_of_arrow_in_one_file_are_all_read(tmp_path):
    """The rows of the first were all that there were, without an error."""
    path = tmp_path / "f"
    stream(path)
    first = path.read_bytes()
    with pa.ipc.new_stream(path, pa.schema([AB.field("b"), AB.field("a")])) as writer:
        writer.write_table(TABLE.select(["b", "a"]))
    path.write_bytes(first + path.read_bytes())
    assert rows(FileSource(str(tmp_path), format="arrow", split_bytes=500)) == ROWS * 2
    assert rows(FileSource(str(tmp_path), format="arrow", columns=["b"])) == [b for _, b in ROWS] * 2
    for left in (b"garbage, and more of it", first[: len(first) // 2]):
        path.write_bytes(first + left)
        kept = rows(FileSource(str(tmp_path), format="arrow", on_bad_record="keep"))
        assert kept[: len(ROWS)] == ROWS
        assert kept[-1] == (None, None)
    path.write_bytes(first + b"garbage")
    with pytest.raises(CorruptDataError, match=f"record 10: .* its byte {len(first)} of .* is not an Arrow stream"):
        rows(FileSource(str(tmp_path), format="arrow"))


@pytest.mark.parametrize(("folder", "kind", "value"), [
    ("p%20q=1.50", pa.decimal128(5, 2), Decimal("1.50")), ("p%20q=1.505", pa.decimal128(5, 2), None),
    ("p%20q=1", pa.int8(), 1), ("p%20q=1/p q=2", pa.int8(), None), ("p q=1e400", pa.float64(), None),
    ("p q=2024-02-29 01%3A02%3A03", pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)),
    ("p q=2024-02-29 01%3A02%3A03+01:00", pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 0, 2, 3, tzinfo=UTC)),
    ("p q=2024-02-29", pa.timestamp("us", "UTC"), datetime(2024, 2, 29, tzinfo=UTC)),
    ("p q=2024-02-29 01-02", pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 3, tzinfo=UTC)),
    ("p q=01%3A02%3A03", pa.time32("s"), time(1, 2, 3)), ("p q=%FF", pa.string(), None),
])  # fmt: skip
def test_values_and_names_in_paths(tmp_path, folder, kind, value):
    parquet(tmp_path / folder / "f", TABLE.slice(0, 1))
    source = FileSource(str(tmp_path), schema=pa.schema([("p q", kind)]))
    if value is not None:
        assert rows(source) == [value]
    else:
        with pytest.raises(CorruptDataError, match="the path has a value"):
            rows(source)


def test_a_struct_with_a_field_twice_is_refused(tmp_path):
    """The last would be taken."""
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    arrow(tmp_path / "f", pa.table({"s": twice}))
    with pytest.raises(CorruptDataError, match="its column 's' is struct<x: int64, x: int64>, and the schema has"):
        rows(FileSource(str(tmp_path), format="arrow", schema=pa.schema([("s", pa.struct([("x", pa.int64())]))])))


def test_a_union_in_a_null_record_of_another_type_is_null(tmp_path):
    """Arrow ended the process."""
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["s", "t"])], ["i", "s"])
    fields, mask = [pa.array([1, 2], pa.int32()), union], pa.array([False, True])
    arrow(tmp_path / "f", pa.table({"x": pa.StructArray.from_arrays(fields, ["a", "u"], mask=mask)}))
    schema = pa.schema([("x", pa.struct([("a", pa.int64()), ("u", union.type)]))])
    assert rows(FileSource(str(tmp_path), format="arrow", schema=schema)) == [{"a": 1, "u": 1}, None]


def test_an_avro_union_of_several_types_is_refused_by_name(tmp_path):
    fastavro = pytest.importorskip("fastavro")
    fields = [{"name": "u", "type": ["int", "string"]}, {"name": "n", "type": "int"}]
    with (tmp_path / "f").open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, [{"u": "x", "n": 1}])
    source = FileSource(str(tmp_path), format="avro")
    with pytest.raises(CorruptDataError, match="its column 'u' is of several types"):
        rows(source)
    assert rows(source.with_columns(["n"])) == [1]


def test_metadata_is_given_if_it_is_asked_for(tmp_path):
    parquet(tmp_path / "a b", TABLE.slice(0, 1))
    os.utime(tmp_path / "a b", (5, 5))
    (row,) = rows(FileSource(str(tmp_path), columns=["_metadata"]))
    assert (row["path"], row["size"], row["modified"].timestamp()) == ("a b", (tmp_path / "a b").stat().st_size, 5)
    parquet(tmp_path / "own", pa.table({"_metadata": ["the file's own"]}))
    assert rows(FileSource(str(tmp_path / "own"))) == ["the file's own"]
    with pytest.raises(UsageError, match=r"there is no column 'badReason' .which needs on_bad_record='keep'"):
        FileSource(str(tmp_path), schema=AB, columns=["badReason"])


def test_an_inferred_schema_is_pinned(tmp_path):
    """A restore takes that of the checkpoint, and one that has inferred another one is refused by names, and so are pieces."""
    parquet(tmp_path / "1")
    splits, cursor = found(FileSource(str(tmp_path), watch=True))
    (tmp_path / "1").unlink()
    parquet(tmp_path / "2", pa.table({"a": ["x"]}))
    restored = FileSource(str(tmp_path), watch=True)
    assert len(found(restored, cursor)[0]) == 1
    assert restored.schema == AB
    other = FileSource(str(tmp_path), watch=True)
    assert pickle.loads(pickle.dumps(other)).schema == other.schema == pa.schema([("a", pa.string())])
    with pytest.raises(StateError, match=r"without a: int64, b: string, with a: string. Give the schema"):
        found(other, cursor)
    with pytest.raises(StateError, match="1 was found with another inferred schema than this process has: a: string"):
        rows(other, splits)
    assert found(FileSource(str(tmp_path), watch=True, schema=other.schema), cursor)[0][0].schema == ""


@pytest.mark.parametrize(("format_", "text"), [
    ("jsonl", '{"a":1,"b":1.5,"l":[{"n":1}]}\n{"a":12345678901234567890,"b":1e19,"l":[{"n":-9999999999999999999},null]}\n'),
    ("csv", "a,b,t\n1,1.5,x\n12345678901234567890,1e19,y\nNA,,\n"),
    ("csv", "a,b\n12345678901234567890,0.1234567890123456789\n"),
], ids=["json", "csv", "csv of one row"])  # fmt: skip
def test_whole_numbers_of_more_than_64_bits_are_inferred_as_decimals(tmp_path, format_, text):
    """As doubles they would be others."""
    (tmp_path / "a").write_text(text)
    source = FileSource(str(tmp_path), format=format_, columns=["a", "b"])
    kind = pa.decimal128(38, 0)
    assert source.schema == pa.schema([("a", kind), ("b", pa.float64())])
    assert max(row[0] or 0 for row in rows(source)) == 12345678901234567890
    if format_ == "jsonl":
        assert rows(source.with_columns(["l"]))[1][0] == {"n": Decimal("-9999999999999999999")}


def test_a_file_that_goes_while_a_schema_is_inferred_is_no_bad_file(tmp_path, monkeypatch):
    """The next listing does not have it: a run starts again, where it ends for good with a bad file."""
    parquet(tmp_path / "a")
    monkeypatch.setattr(ReadFormat, "inferred", lambda *_: (tmp_path / "b").read_bytes())
    with pytest.raises(CorruptDataError, match=r"a: no schema can be inferred: .*No such file") as gone:
        _ = FileSource(str(tmp_path)).schema
    assert not isinstance(gone.value, BadRecordError)
    monkeypatch.undo()
    (tmp_path / "a").write_text("no parquet")
    with pytest.raises(BadRecordError):
        _ = FileSource(str(tmp_path)).schema


def test_a_schema_cannot_be_inferred_from_nothing(tmp_path):
    with pytest.raises(UsageError, match="no files to infer a schema from: give the schema"):
        _ = FileSource(str(tmp_path)).schema
    (tmp_path / "a").write_text("no parquet")
    with pytest.raises(CorruptDataError, match=r"a: no schema can be inferred: .*: give the schema"):
        _ = FileSource(str(tmp_path)).schema


# --- bad input ----------------------------------------------------------------------------------------------------------
BAD_LINES = [
    ("csv", b"a,b\n1,x\n2,y,z\nq,w\n3\n5,\"z\n\n4,v\n", {
        1: "is not a row of these columns: Expected 2 columns, got 3",
        2: "is not a row of these columns: In CSV column #0: CSV conversion error to int64: invalid value",
        3: "is not a row of these columns: Expected 2 columns, got 1",
        4: "is not a row of these columns: a quoted value does not end in its line",
    }),
    ("jsonl", b'{"a":1,"b":"x"}\n{"a":"2"}\n{\n[]\n{"a":5}{"a":6}\n\n{"a":4,"b":"v"}\n', {
        1: "field 'a' is a string", 2: "is not JSON", 3: "", 4: "is not JSON",
    }),
]  # fmt: skip


@pytest.mark.parametrize(("format_", "data", "message"), [
    ("csv", "a,b\r1,x\r", "its lines end with a carriage return alone"),
    ("csv", "a;b\n1;x\n", "it has none of the columns a, b, and has a;b"),
    (Csv(newlines_in_values=True), "1,x\n", "it has none of the columns a, b, and has 1, x"),
    ("csv", "a,b\n1e39,x\n", "a number is too large for the column's type"),
    ("csv", "a,b\ninf,x\n-1e39,x\n", "a number is too large for the column's type"),
    ("jsonl", '{"a":1e39}\n', "does not fit the type"), ("jsonl", '{"a":1}\n{"l":[1e39]}\n', "does not fit the type"),
])  # fmt: skip
def test_files_and_numbers_that_would_be_read_as_others(tmp_path, format_, data, message):
    (tmp_path / "a").write_text(data, newline="")
    schema = pa.schema([("a", pa.float32()), ("b", pa.string())])
    schema = schema.append(pa.field("l", pa.list_(pa.float32()))) if format_ == "jsonl" else schema
    with pytest.raises(CorruptDataError, match=message):
        rows(FileSource(str(tmp_path), format=format_, schema=schema))


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
@pytest.mark.parametrize("number", ["1" * 30 + ".5", "1" * 29, "9" * 39, "1e50", "-" + "1" * 77])
def test_a_number_that_a_decimal_does_not_hold_is_bad(tmp_path, format_, number):
    """Arrow's readers let the first one run over as they scale it, and give another number."""
    numbers = ("9" * 28 + ".9999999999", number, "-1.5")
    line = "{},x\n" if format_ == "csv" else '{{"a":{},"b":"x","s":{{"l":[{}]}}}}\n'
    (tmp_path / "f").write_text(("a,b\n" if format_ == "csv" else "") + "".join(line.format(each, each) for each in numbers))
    kind = pa.decimal128(38, 10)
    nested = [] if format_ == "csv" else [("s", pa.struct([("l", pa.list_(kind))]))]
    schema = pa.schema([("a", kind), ("b", pa.string()), *nested])
    for name in ("a", "s")[: 1 + len(nested)]:
        source = FileSource(tmp_path, format=format_, schema=schema, columns=[name], on_bad_record="skip")
        assert rows(source) == [Decimal(each) if name == "a" else {"l": [Decimal(each)]} for each in numbers[::2]]


@pytest.mark.parametrize("text", [
    'a,b\n1,"x\ny"\n', '\ufeff\n\r\na,b\r\n1,"x\ny"\r\n', '"a","b"\n1,"x\ny"', 'a,b\r1,"x\ny"\r',
], ids=["plain", "blank lines first", "quoted", "carriage returns"])  # fmt: skip
def test_a_csv_file_with_newlines_in_its_values_is_read_as_its_rows_are(tmp_path, text):
    (tmp_path / "f").write_text(text, newline="")
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    source = FileSource(str(tmp_path), format=Csv(newlines_in_values=True), schema=schema)
    assert batches_of(source) == [{"a": 1, "b": "x\ny"}]


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_bad_rows_among_values_with_newlines_are_found_one_by_one(tmp_path, monkeypatch, block_bytes, end):
    """All rows of 8 MiB went with the first bad one, and all behind it."""
    read = lines.line_blocks
    monkeypatch.setattr(lines, "line_blocks", lambda file, start, stop, size=block_bytes: read(file, start, stop, size))
    rows_ = ['1,"v\n1"', "", '2,"a ""q"", b"', "bad,q", '3,5" disks', "4", '5,"\n\n"', '6,"a\r\nb"', "1e40,x", '7,","']
    (tmp_path / "f").write_text(end.join(["a,b", *rows_, ""]), newline="")
    csv = Csv(newlines_in_values=True)
    source = FileSource(str(tmp_path), format=csv, schema=AB, on_bad_record="keep", batch_rows=3)
    found = batches_of(source.with_columns(["a", "b", "badValue"]))
    assert [(row["a"], row["b"]) for row in found if row["badValue"] is None] == [
        (1, "v\n1"), (2, 'a "q", b'), (3, '5" disks'), (5, "\n\n"), (6, "a\r\nb"), (7, ","),
    ]  # fmt: skip
    assert [row["badValue"] for row in found if row["badValue"]] == [b"bad,q", b"4", b"1e40,x"]


@given(st.text('",\na', max_size=30))
def test_rows_end_where_they_do_for_pythons_module(text):
    data = f"{text}\n".encode()
    csv = Csv(newlines_in_values=True)
    assert _row_ends(data, csv).tolist() == _row_ends_by_csv(data, csv).tolist()


def test_a_quoted_value_that_does_not_end_is_no_value(tmp_path, monkeypatch):
    """The rest of the file was one."""
    for size, most in ((20, 64 << 20), (1000, 99)):
        monkeypatch.setattr(lines, "_ROW_BYTES", most)
        (tmp_path / "f").write_text('a,b\n1,"x"\n2,"y\n' + "3,z\n" * size)
        source = FileSource(str(tmp_path), format=Csv(newlines_in_values=True), schema=AB)
        with pytest.raises(CorruptDataError, match=r"f, record 1: .* a quoted value does not end"):
            rows(source)


@pytest.mark.parametrize("name", ['a\n"b"\r\nc', '5" disks', "ä"])
def test_names_of_csv_columns_may_hold_newlines_and_quotes(tmp_path, name):
    header = '"' + name.replace('"', '""') + '"' if "\n" in name else name
    (tmp_path / "f").write_text(f"{header},d\n1,2\n", newline="")
    schema = pa.schema([(name, pa.int64()), ("d", pa.int64())])
    assert batches_of(FileSource(str(tmp_path), format=Csv(newlines_in_values=True), schema=schema)) == [
        {schema.names[0]: 1, "d": 2}
    ]


def test_values_of_csv_that_are_not_asked_for_are_not_converted(tmp_path):
    """By what the first of them look like."""
    (tmp_path / "a").write_text("a\n" + "1\n" * (5 << 20) + "x\n")
    source = FileSource(str(tmp_path), format=Csv(newlines_in_values=True), schema=pa.schema([("a", pa.string())]))
    read = batches(source.with_columns(["_metadata"]), found(source)[0])
    assert sum(batch.records.num_rows for batch in read) == (5 << 20) + 1


def test_infinities_of_csv_are_read(tmp_path):
    (tmp_path / "a").write_text("a,b\ninf,x\n-Infinity,y\n")
    source = FileSource(str(tmp_path), format="csv", schema=pa.schema([("a", pa.float32()), ("b", pa.string())]), columns=["a"])
    assert rows(source) == [float("inf"), float("-inf")]


def test_a_long_line_is_not_copied_again_and_again():
    class Counting(io.BytesIO):
        reads = 0

        def readinto(self, buffer) -> int:
            self.reads += 1
            return super().readinto(buffer)

    for stop in (1, None):
        file = Counting(b"x" * (4 << 20))
        assert [len(block) for block in line_blocks(file, 0, stop, 1 << 10)] == [4 << 20]
        assert 1 < file.reads < 25


@pytest.mark.parametrize("batch_rows", [2, 5, 100])
@pytest.mark.parametrize("format_", ["csv", Csv(newlines_in_values=True), "jsonl"], ids=["csv", "newlines", "jsonl"])
def test_blank_lines_are_counted_where_a_record_is_named(tmp_path, format_, batch_rows):
    """A record has one number, in messages and in dead letters, however many are read at once."""
    lines = (
        ['{"a":0}', "", "", "", '{"a":"x"}', '{"a":5}', '{"a":"y"}'] if format_ == "jsonl" else ["0", "", "", "", "x", "5", "y"]
    )
    (tmp_path / "f").write_text("".join(f"{line}\n" for line in (lines if format_ == "jsonl" else ["a", *lines])))
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(CorruptDataError, match="f, record 4: "):
        rows(FileSource(tmp_path, format=format_, schema=schema, batch_rows=batch_rows))
    columns = ["deadLetter", "a"]
    kept = FileSource(tmp_path, format=format_, schema=schema, batch_rows=batch_rows, columns=columns, on_bad_record="keep")
    headers = [{each["key"]: each["value"] for each in letter["headers"]} for letter, _ in rows(kept) if letter]
    assert [each["__connect.errors.offset"] for each in headers] == [b"4", b"6"]


LINES = "id,text\n" + "".join(f"{number},x\n" for number in range(9))
NEWLINES = Csv(newlines_in_values=True)


@pytest.mark.parametrize(("first", "then", "said"), [
    (Csv(header=False), Csv(), "counts lines, and now lines behind a header are read"),
    (Csv(), NEWLINES, "counts lines behind a header, and now rows of CSV by , and \" behind a header are read"),
    (NEWLINES, Csv(newlines_in_values=True, quote="'"), "counts rows of CSV by , and \" behind a header, and now"),
])  # fmt: skip
def test_a_position_by_other_arguments_is_refused(tmp_path, first, then, said):
    """Regression: it was continued at another record, and others were left out."""
    (tmp_path / "f").write_text(LINES)
    given = {"schema": pa.schema([("id", pa.string()), ("text", pa.string())]), "batch_rows": 4}
    source = FileSource(tmp_path, format=first, **given)
    position = next(batches(source, found(source)[0])).split
    assert position.delivered == 4
    stored = source.split_serializer.deserialize(1, json.loads(json.dumps(source.split_serializer.serialize(position))))
    assert stored == position
    assert len(rows(source, [stored])) >= 5
    with pytest.raises(StateError, match=re.escape(said)):
        rows(FileSource(tmp_path, format=then, **given), [stored])
    older = replace(stored, counted="")
    assert "counted" not in source.split_serializer.serialize(older)
    assert rows(FileSource(tmp_path, format=then, **given), [older])


def test_a_file_is_continued_by_other_arguments_where_nothing_of_it_was_read(tmp_path):
    (tmp_path / "f").write_text(LINES)
    given = {"schema": pa.schema([("id", pa.int64())]), "batch_rows": 4}
    splits, _ = found(FileSource(tmp_path, format=Csv(header=False), **given))
    source = FileSource(tmp_path, format=NEWLINES, **given)
    for batch in batches(source, splits):
        rest = batch.split
        assert rows(source, [rest]) == [*range(rest.delivered, 9)]


def test_a_piece_of_a_csv_file_is_not_read_with_newlines_in_values(tmp_path):
    """Regression: each piece of a checkpoint was the whole file."""
    (tmp_path / "f").write_text(LINES)
    given = {"schema": pa.schema([("id", pa.int64())])}
    splits, _ = found(FileSource(tmp_path, format="csv", split_bytes=20, **given))
    for split in splits:
        with pytest.raises(StateError, match="f was cut into pieces, and with newlines_in_values=True each would be the whole"):
            rows(FileSource(tmp_path, format=NEWLINES, **given), [split])


@pytest.mark.parametrize(("format_", "data", "bad"), BAD_LINES, ids=["csv", "jsonl"])
@pytest.mark.parametrize("on_bad", MODES)
@pytest.mark.parametrize("split_bytes", [1000, 5])
def test_bad_lines(tmp_path, format_, data, bad, on_bad, split_bytes):
    (tmp_path / "f").write_bytes(data)
    source = FileSource(str(tmp_path), format=format_, schema=AB, on_bad_record=on_bad, split_bytes=split_bytes)
    if on_bad == "fail":
        with pytest.raises(CorruptDataError, match=r"f, record \d( from byte \d+)?: .* let them be kept or skipped"):
            rows(source)
    elif on_bad == "skip":
        assert rows(source) == [(1, "x"), (4, "v")]
    else:
        kept = rows(source.with_columns(["a", "badValue", "badReason", "deadLetter"]))
        lines = data.split(b"\n")[1 if format_ == "csv" else 0 :]
        assert [row[0] for row in kept] == [1, None, None, None, None, 4]
        for row, reason in bad.items():
            assert kept[row][1] == kept[row][3]["value"] == lines[row]
            assert reason in kept[row][2]
        assert {"key": "__connect.errors.topic", "value": b"f"} in kept[1][3]["headers"]
        assert kept[0][1:] == kept[5][1:] == (None, None, None)


def test_a_dead_letter_of_a_piece_has_the_byte_where_that_starts(tmp_path):
    """Regression: letters of several pieces had the same place."""
    (tmp_path / "f").write_text('{"a":1}\nx\n' * 8)
    columns = ["deadLetter", "a"]
    kept = FileSource(tmp_path, format="jsonl", schema=AB, columns=columns, on_bad_record="keep", split_bytes=40)
    headers = [{each["key"]: each["value"] for each in letter["headers"]} for letter, _ in rows(kept) if letter]
    places = [(each.get("headrace.errors.start"), each["__connect.errors.offset"]) for each in headers]
    assert len(set(places)) == len(places) == 8
    assert {start for start, _ in places} == {None, b"40"}


@pytest.mark.parametrize(("format_", "data", "bad"), BAD_LINES, ids=["csv", "jsonl"])
def test_all_columns_are_checked_where_bad_lines_are_asked_for(tmp_path, format_, data, bad):
    """Only those that were asked for were: a dead letter alone was never there."""
    (tmp_path / "f").write_bytes(data)
    source = FileSource(str(tmp_path), format=format_, schema=AB, on_bad_record="keep")
    for name in ("badValue", "badReason", "deadLetter"):
        assert [value is None for value in rows(source.with_columns([name]))] == [row not in bad for row in range(6)]


def test_lines_with_other_numbers_of_columns_are_not_searched_for(monkeypatch):
    """By halving, one in ten of them took a hundred times as long."""
    decoder, parsed = CsvDecoder(Csv(), AB.names, AB), []
    parse = decoder._parsed
    monkeypatch.setattr(decoder, "_parsed", lambda *arguments: parsed.append(1) or parse(*arguments))
    lines = pa.array([b"1,x,y" if number % 10 == 3 else b"2" if number % 10 == 5 else b'3,"x,y"' for number in range(1000)])
    values, bad = decoder.decode(lines)
    assert len(parsed) == 1
    assert [each.row % 10 for each in bad] == [3, 5] * 100
    assert [each.reason for each in bad[:2]] == [f"is not a row of these columns: Expected 2 columns, got {n}" for n in (3, 1)]
    assert values.to_pylist() == [None if number % 10 in (3, 5) else {"a": 3, "b": "x,y"} for number in range(1000)]


TYPED = {
    pa.int8(): ("0XfF", "1.5"), pa.int64(): ("-12", "1x"), pa.int32(): ("0xFFFFFFFF", "9999999999"),
    pa.uint16(): ("0x1F", "-"), pa.float32(): ("-1.5e3", "none"),
    pa.float64(): ("NaN", "1,5"), pa.bool_(): ("true", "yes"), pa.decimal128(5, 2): ("1.5", "one"), pa.string(): ("é", None),
    pa.date32(): ("2024-02-29", "2024-13-01"), pa.time64("us"): ("12:00:00", "noon"), pa.binary(): ("\\", None),
    pa.timestamp("us"): ("2024-02-29 12:00", "1/2/2024"), pa.timestamp("us", "UTC"): ("2024-02-29T12:00:00Z", "soon"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "reason"), [
    (pa.timestamp("us"), "2020-03-04 00:00:00Z", "conversion error to timestamp[us]: expected no zone offset"),
    (pa.timestamp("us", "UTC"), "2020-03-04", "expected a zone offset. If these timestamps are in local time, parse them"),
    (pa.decimal128(5, 2), "42020.3", "Error converting to decimal128(5, 2): precision not supported by type."),
    (pa.decimal128(5, 2), "2020-03-04", "The string is not a valid decimal128 number"),
    (pa.decimal128(5, 2), "-42020", "Decimal value does not fit in precision of decimal128(5, 2)"),
])  # fmt: skip
def test_reasons_of_bad_rows_quote_nothing_of_them(kind, value, reason):
    (bad,) = CsvDecoder(Csv(), ["a", "b"], pa.schema([("a", kind)])).decode(pa.array([f"{value},x".encode()])).bad
    assert reason in bad.reason
    assert "2020" not in bad.reason


def test_the_reason_of_a_time_that_does_not_fit_does_not_have_it(tmp_path):
    parquet(tmp_path / "f", pa.table({"t": pa.array([1234567], pa.timestamp("ns"))}))
    source = FileSource(str(tmp_path), schema=pa.schema([("t", pa.timestamp("us"))]), on_bad_record="keep")
    ((_, reason),) = rows(source.with_columns(["t", "badReason"]))
    assert reason.endswith("would lose data")


def test_values_that_a_type_never_has_are_not_searched_for(monkeypatch):
    """By halving, one bad value in a hundred made a file twenty times as slow."""
    schema = pa.schema([(str(kind), kind) for kind in TYPED])
    decoder, parsed = CsvDecoder(Csv(), schema.names, schema), []
    table = decoder._table
    monkeypatch.setattr(decoder, "_table", lambda *arguments: parsed.append(1) or table(*arguments))
    for number, (kind, (_, wrong)) in enumerate(TYPED.items()):
        cells = [good for good, _ in TYPED.values()]
        lines = [",".join(cells)] * 9
        if wrong is not None:
            cells[number] = f'"{wrong}"'
            lines[3], lines[7] = ",".join(cells), ",".join([*cells[:number], "", *cells[number + 1 :]])
        parsed.clear()
        values, bad = decoder.decode(pa.array(lines, pa.binary()))
        assert [each.row for each in bad] == ([] if wrong is None else [3]), kind
        reason = f"In CSV column #{number}: CSV conversion error to {kind}: invalid value"
        assert wrong is None or bad[0].reason == f"is not a row of these columns: {reason}"
        assert [value is None for value in values.to_pylist()] == [row == 3 and wrong is not None for row in range(9)]
        assert len(parsed) <= 6, kind


def truncated(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


@pytest.mark.parametrize(("format_", "write"), [("parquet", parquet), ("arrow", arrow), ("avro", avro), ("csv", None)])
@pytest.mark.parametrize("on_bad", MODES)
def test_bad_files(tmp_path, format_, write, on_bad):
    """A file that ends too early: its rows before that, of formats that have them, then one bad record."""
    name = "a.csv.gz" if write is None else "a"
    if write is None:
        noise = random.Random(1).randbytes(30_000).hex()
        (tmp_path / name).write_bytes(gzip.compress(f"a,b\n1,{noise}\n".encode()))
    else:
        write(tmp_path / name)
    (tmp_path / name).write_bytes(truncated((tmp_path / name).read_bytes()))
    source = FileSource(str(tmp_path), format=format_, schema=AB, on_bad_record=on_bad, batch_rows=1)
    if on_bad == "fail":
        with pytest.raises(CorruptDataError, match=rf"{name}, record \d+: the file cannot be read here: .+ on_bad_record"):
            rows(source)
        return
    read = rows(source.with_columns(["a", "badReason"]) if on_bad == "keep" else source)
    if on_bad == "keep":
        assert read.pop()[1].startswith("the file cannot be read here: ")
    assert [row[0] for row in read] == list(range(len(read)))


def test_a_file_that_vanishes(tmp_path):
    """Between listing and reading."""
    parquet(tmp_path / "a")
    splits, _ = found(source := FileSource(str(tmp_path), schema=AB))
    (tmp_path / "a").unlink()
    with pytest.raises(DataLossError, match="a is gone since it was found: put it back, or read without it"):
        rows(source, splits)
    assert rows(FileSource(str(tmp_path), schema=AB, fail_on_data_loss=False), splits) == []


@pytest.mark.parametrize(("on_changed", "expected"), [("fail", None), ("ignore", [0, 1, 2, 3]), ("reread", [])])
def test_a_file_that_changes_before_it_is_read(tmp_path, on_changed, expected):
    (tmp_path / "a").write_text("0\n1\n2\n")
    watch = on_changed == "reread"
    source = FileSource(str(tmp_path), format="text", on_changed_file=on_changed, watch=watch)
    splits, cursor = found(source)
    with (tmp_path / "a").open("a") as file:
        file.write("3\n")
    if expected is None:
        with pytest.raises(DataLossError, match=r"a has changed since it was found.*on_changed_file='ignore' or 'reread'"):
            rows(source, splits)
        return
    assert [int(row) for row in rows(source, splits)] == expected
    if watch:
        assert rows(source, found(source, cursor)[0]) == ["0", "1", "2", "3"]


def test_what_is_quoted_in_a_url_of_a_folder(tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "a%20b").mkdir()
    for name in ("a b", "a%20b"):
        (tmp_path / name / "f").write_text(f"{name}\n")
        for path in (tmp_path / name, (tmp_path / name).as_uri(), f"file:{(tmp_path / name).as_uri().removeprefix('file://')}"):
            assert rows(FileSource(path, format="text")) == [name]


NAMES = [b"a b", b"a\nb", b"a\xffb", b"a%20b", "é".encode()]


def test_names_of_any_bytes(tmp_path):
    for name in NAMES:
        Path(os.path.join(os.fsencode(tmp_path), name).decode(errors="surrogateescape")).write_text("x\n")
    source = FileSource(str(tmp_path), format="text", columns=["value", "_metadata"])
    splits, _ = found(source)
    serializer = source.split_serializer
    assert [serializer.deserialize(1, serializer.serialize(split)) for split in splits] == splits
    assert all(split.split_id.isascii() and "\n" not in split.split_id for split in splits)
    assert {row[1]["path"] for row in rows(source)} == {"a b", "a\nb", "a\\xffb", "a%20b", "é"}


def test_links_in_a_circle_hidden_and_empty_files(tmp_path):
    """A folder is listed once, whatever leads to it; links to nothing, what is hidden, and what is empty are left out."""
    parquet(tmp_path / "in" / "_day=1" / "a", TABLE.slice(0, 1))
    for hidden in ("_temporary/b", ".git/c", "_d", ".e", "f._COPYING_", "_day=1/_tmp=1"):
        parquet(tmp_path / "in" / hidden)
    (tmp_path / "in" / "empty").touch()
    (tmp_path / "in" / "up").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "_day=1" / "self").symlink_to("self")
    (tmp_path / "in" / "none").symlink_to("nowhere")
    parquet(tmp_path / "out" / "g", TABLE.slice(1, 1))
    (tmp_path / "in" / "other").symlink_to(tmp_path / "out")
    source = FileSource(str(tmp_path / "in"), schema=AB)
    assert {split.path for split in found(source)[0]} == {"_day=1/a", "other/g"}
    assert sorted(rows(source)) == ROWS[:2]
    assert rows(FileSource(str(tmp_path / "in" / "_day=1" / "a"))) == ROWS[:1]


# --- stores -------------------------------------------------------------------------------------------------------------
def memory_folder(**files: bytes) -> str:
    fsspec = pytest.importorskip("fsspec")
    folder = f"memory://{uuid4().hex}/in"
    for name, data in files.items():
        fsspec.filesystem("memory").pipe(f"{folder}/{name}", data)
    return folder


def test_a_store_of_fsspec(tmp_path):
    parquet(tmp_path / "a")
    folder = memory_folder(a=(tmp_path / "a").read_bytes(), _b=b"x", c=b"", **{"_tmp=1": b"x", "_t/a": b"x"})
    assert rows(FileSource(folder)) == ROWS
    assert rows(FileSource(memory_folder(**{"_day=1/a": (tmp_path / "a").read_bytes()}), schema=AB)) == ROWS
    assert rows(FileSource(f"{folder}/a")) == ROWS
    folder = memory_folder(**{"a.csv.gz": gzip.compress(CSV.encode())})
    packed = FileSource(f"{folder}/a.csv.gz", format="csv", split_bytes=9)
    assert rows(packed) == ROWS
    assert rows(packed.with_columns(["_metadata"]))[0]["path"] == "./a.csv.gz"
    assert rows(FileSource(memory_folder(a=CSV.encode()), format="csv", split_bytes=9)) == ROWS


@pytest.mark.parametrize("filesystem", ["pyarrow", "fsspec"])
def test_a_filesystem_of_the_caller(tmp_path, filesystem):
    given = arrow_fs.LocalFileSystem() if filesystem == "pyarrow" else pytest.importorskip("fsspec").filesystem("file")
    parquet(tmp_path / "in" / "day=1" / "a")
    source = FileSource(str(tmp_path / "in"), filesystem=given, columns=["a", "day"], split_bytes=300)
    assert sorted(rows(source)) == [(row[0], 1) for row in ROWS]
    with pytest.raises(UsageError, match=r"there is no folder or file .*none: create it, or correct the path"):
        found(FileSource(str(tmp_path / "none"), filesystem=given, schema=AB))


class AwayError(Exception):
    """As clients of stores have them: no OSError."""


class FailingFile(io.FileIO):
    """Whose `error` is raised by `read`, if it is set."""

    error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        if FailingFile.error is not None:
            raise FailingFile.error
        return super().read(size)


def failing_store():
    """The local disk by fsspec, which fails while `FailingFile.error` is set."""
    local = pytest.importorskip("fsspec.implementations.local")

    class FailingFileSystem(local.LocalFileSystem):
        cachable = False

        def info(self, *args, **kwargs):
            if FailingFile.error is not None:
                raise FailingFile.error
            return super().info(*args, **kwargs)

        def find(self, path, **more):
            self.info(path)
            return super().find(path, **more)

        def open(self, path, mode):
            return FailingFile(path, mode)

    return FailingFileSystem()


ERRORS = [
    (AwayError("no route"), RetriableError), (TimeoutError(), RetriableError), (OSError(5, "I/O"), RetriableError),
    (PermissionError(13, "no"), AuthenticationError), (OSError("AWS Error ACCESS_DENIED"), AuthenticationError),
]  # fmt: skip


@pytest.mark.parametrize(("error", "expected"), ERRORS)
def test_a_store_that_is_away(tmp_path, monkeypatch, error, expected):
    """While listing, opening or reading, and no such file is bad. Called again later the reader continues, each row once."""
    (tmp_path / "a").write_text(CSV)
    arguments = {"format": "csv", "schema": AB, "split_bytes": 40, "on_bad_record": "skip", "batch_rows": 2}
    source = FileSource(str(tmp_path), filesystem=failing_store(), **arguments)
    monkeypatch.setattr(FailingFile, "error", error)
    with pytest.raises(expected, match="the store"):
        found(source)
    FailingFile.error = None
    splits, _ = found(source)
    with source.create_reader() as reader:
        reader.add_splits(splits)
        FailingFile.error = error
        with pytest.raises(expected, match="the store"):
            reader.poll(0)
        read = []
        while expected is RetriableError and sum(batch.finished for batch in read) < len(splits):
            FailingFile.error = None if FailingFile.error else error
            with suppress(expected):
                read += filter(None, [reader.poll(0)])
    assert [tuple(row.values()) for batch in read for row in batch.records.to_pylist()] == (ROWS if read else [])


def test_a_store_that_is_away_when_its_client_is_made(monkeypatch):
    """No piece is lost where a filesystem connects when it is made."""
    fsspec = pytest.importorskip("fsspec")
    source = FileSource(memory_folder(a=CSV.encode()), format="csv", schema=AB, split_bytes=20)
    splits, _ = found(source)
    with source.create_reader() as reader:
        reader.add_splits(splits)
        with monkeypatch.context() as patch:
            patch.setattr(fsspec.core, "url_to_fs", lambda *_, **__: 1 / 0)
            with pytest.raises(RetriableError, match="ZeroDivisionError"):
                reader.poll(0)
        read = [reader.poll(0) for _ in range(2 * len(splits))]
    assert [tuple(row.values()) for batch in read if batch for row in batch.records.to_pylist()] == ROWS
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda *_, **__: Csv(nonsense=1))
    with pytest.raises(UsageError, match="unexpected keyword argument 'nonsense'"):
        found(source)


@pytest.mark.parametrize("listed", [["/in//a", "/in/b"], []], ids=["two slashes", "the file itself"])
def test_what_a_store_may_list(listed):
    """Keys with two slashes; and HTTP lists what a page links to, not a file."""
    spec = pytest.importorskip("fsspec").spec

    class Store(spec.AbstractFileSystem):
        cachable = False

        def find(self, path, **_):
            return {each: self.info(each) for each in listed}

        def info(self, path, **_):
            if path.startswith("/in/_"):
                raise FileNotFoundError(path)
            return {"name": path, "type": "file", "size": len(CSV), "mtime": 1.0}

        def open(self, path, mode):
            assert path in (*listed, "/in")
            return io.BytesIO(CSV.encode())

    assert rows(FileSource("/in", filesystem=Store(), format="csv", schema=AB)) == ROWS * (len(listed) or 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_a_local_file_that_may_not_be_read(tmp_path):
    parquet(tmp_path / "a")
    (tmp_path / "a").chmod(0)
    with pytest.raises(PeerError, match="Permission denied: let this process read it"):
        rows(FileSource(str(tmp_path), schema=AB, on_bad_record="skip"))


# --- arguments ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("arguments", "message"), [
    ({"format": "orc"}, "format must be one of parquet, arrow, avro, jsonl, text, csv, or Csv"),
    ({"order": "size"}, "order must be one of time, name"), ({"on_bad_record": "null"}, "on_bad_record must be one of fail"),
    ({"on_changed_file": "reread"}, "needs watch=True"), ({"split_bytes": 0}, "split_bytes must be a whole number, at least 1"),
    ({"on_changed_file": "reread", "watch": True, "order": "name"}, "needs order='time'"),
    ({"after_read": "move"}, "after_read must be 'delete' or 'archive:<folder>'"),
    ({"after_read": "archive:/in/done"}, "must not be in the folder that is read"),
    ({"after_read": "archive:s3://a/b"}, "must be in the filesystem of /in"),
    ({"storage_options": {"key": "secret"}}, "storage options are for a URL; got ..key.."),
    ({"schema": pa.schema([("a", pa.int8()), ("a", pa.int8())])}, "has each name once"),
    ({"schema": {"a": "int"}}, "schema must be a pyarrow.Schema, not {'a': 'int'}"),
    ({"schema": AB, "columns": ["c"]}, "there is no column 'c': there are a, b, _metadata"),
    ({"watch": True, "discovery_interval_s": 0}, "discovery_interval_s must be positive"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        FileSource("/in", **arguments)


def warehouse(address: str) -> IcebergSink:
    return IcebergSink("a.b", {"type": "sql", "uri": "sqlite://", "warehouse": address})


@pytest.mark.parametrize("made", [FileSource, FileSink, DeltaSink, warehouse])
def test_a_password_in_an_address_is_refused_and_not_shown(made):
    with pytest.raises(UsageError, match="a password in an address is printed with it") as error:
        made("sftp://user:guessme@host/in")
    assert "guessme" not in str(error.value)


@pytest.mark.parametrize("made", [FileSource, FileSink, lambda path: FileSource("/in", after_read=f"archive:{path}")])
@pytest.mark.parametrize("address", ["https://host/in?sig=guessme", "https:/host/in?sig=guessme&a=[1]"])
def test_a_signature_in_an_address_is_not_shown(made, address):
    with pytest.raises(UsageError, match=r"https:/?/host/in\?\.\.\.") as error:
        made(address)
    assert "guessme" not in str(error.value)


@pytest.mark.parametrize(("path", "archive"), [
    ("/in", "/in/done"), ("s3://b/in", "s3a://b/in/done"), ("hdfs:///in", "hdfs://nn/in/done"), ("sftp://h:22/in", "sftp://u@h/in"),
    ("abfs://c/in", "abfss://c@account/in/done"),
])  # fmt: skip
def test_an_archive_in_the_folder_that_is_read_is_refused(path, archive):
    """Its files would be new ones."""
    with pytest.raises(UsageError, match="must not be in the folder that is read"):
        FileSource(path, after_read=f"archive:{archive}")


@pytest.mark.parametrize(("path", "archive"), [
    ("s3://b/in", "gs://b/done"), ("s3://b/in", "/done"), ("sftp://a@h/in", "sftp://a@other/done"), ("ftp://h/in", "ftp://i/done"),
    ("sftp://h:22/in", "sftp://h:2222/done"), ("abfs://c@account/in", "abfs://c@other/done"),
])  # fmt: skip
def test_an_archive_in_another_store_is_refused(path, archive):
    """Or the file would be renamed within the source's store, to a path of that name."""
    with pytest.raises(UsageError, match=f"the archive {archive} must be in the filesystem of {path}: "):
        FileSource(path, after_read=f"archive:{archive}")


@pytest.mark.parametrize(("path", "archive"), [
    ("s3://b/in", "s3://other/done"), ("sftp://h/in", "sftp://h/done"), ("abfs://c@a/in", "abfs://d@a/done"),
    ("memory://in", "memory://done"), ("/in", "file:///done"),
])  # fmt: skip
def test_an_archive_in_the_same_store(path, archive):
    assert FileSource(path, after_read=f"archive:{archive}").plan.after_read == f"archive:{archive.removeprefix('file://')}"


@pytest.mark.parametrize("arguments", [{"delimiter": ";;"}, {"quote": "\n"}, {"null_values": "NA"}])
def test_csv_that_cannot_be(arguments):
    with pytest.raises(UsageError, match=next(iter(arguments))):
        Csv(**arguments)


def test_a_recursive_column_of_avro_that_is_not_asked_for_is_left_out(tmp_path):
    fastavro = pytest.importorskip("fastavro")
    fields = [{"name": "n", "type": "int"}, {"name": "k", "type": ["null", "T"]}, {"name": "m", "type": "string"}]
    with (tmp_path / "a").open("wb") as file:
        inner = {"n": 2, "k": None, "m": "y"}
        fastavro.writer(file, {"type": "record", "name": "T", "fields": fields}, [{"n": 1, "k": inner, "m": "x"}, inner])
    schema = pa.schema([("m", pa.string()), ("n", pa.int32())])
    assert rows(FileSource(str(tmp_path), format="avro", schema=schema)) == [("x", 1), ("y", 2)]
    with pytest.raises(UsageError, match=r"contains itself at field 'k'.* give the schema, without this column"):
        rows(FileSource(str(tmp_path), format="avro"))


def test_a_folder_that_has_a_column_in_another_case_is_bad(tmp_path):
    """It was null in all rows."""
    (tmp_path / "Day=1").mkdir()
    (tmp_path / "Day=1" / "f").write_text('{"b":2}\n')
    schema = pa.schema([("day", pa.int64()), ("b", pa.int64())])
    with pytest.raises(CorruptDataError, match="its folders have 'Day', and not 'day': give the schema its names as they are"):
        rows(FileSource(str(tmp_path), format="jsonl", schema=schema))
    assert rows(FileSource(str(tmp_path), format="jsonl", schema=schema, columns=["b"])) == [2]
    assert rows(FileSource(str(tmp_path), format="jsonl", schema=schema.append(pa.field("Day", pa.int8())))) == [(None, 2, 1)]


def test_rows_ahead_of_damage_in_packed_csv_with_newlines_are_given(tmp_path):
    packed = gzip.compress(b"a,b\n" + b"".join(b'%d,"x\n%d"\n' % (number, random.getrandbits(64)) for number in range(20_000)))
    (tmp_path / "f.csv.gz").write_bytes(packed[: len(packed) // 2])
    source = FileSource(str(tmp_path), format=Csv(newlines_in_values=True), schema=AB, on_bad_record="skip")
    found = rows(source)
    assert [number for number, _ in found] == list(range(len(found)))
    assert len(found) > 8000
