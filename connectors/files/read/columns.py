"""From the rows of a file to the columns of the source: by name, whatever order or narrower types a file has.

A column that a file lacks is null. Columns of partitions come from the path, `_metadata` from the listing, and those that tell
of bad records are the ones that a Kafka source has.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.dead_letters import DEAD_LETTER, LETTER_TYPE, BadParts, letter_column
from headrace.connectors.base.nested import cast_nested, record_fields, unencoded
from headrace.connectors.files.read.split import FileSplit, shown
from headrace.connectors.formats.json_times import instants
from headrace.enumerator.errors import BadRecordError, CorruptDataError, UsageError

BadRecords = Literal["fail", "keep", "skip"]
METADATA = "_metadata"
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_HAS_ZONE = re.compile(r"[ T].*(Z|[+-]\d\d:?\d*)\Z")  # behind a time of day: a date ends as one, too
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
METADATA_TYPE = pa.struct([("path", pa.string()), ("size", pa.int64()), ("modified", pa.timestamp("us", "UTC"))])
BAD_VALUE, BAD_REASON = "badValue", "badReason"
_BAD_TYPES = {BAD_VALUE: pa.binary(), BAD_REASON: pa.string(), DEAD_LETTER: LETTER_TYPE}


class BadRow(NamedTuple):
    """A record that cannot be read: its row, why, and its bytes, where these are known."""

    row: int
    reason: str
    value: bytes | None = None


@dataclass(frozen=True)
class FileRows:
    """Some records of a file. `columns`: those that the file has, of this many rows, null where a row is bad.

    `records`: how many of the file's these are, if that is not the number of rows. `places`: which of these the rows are, if
    that is not all of them.
    """

    columns: Mapping[str, pa.Array]
    rows: int
    records: int
    bad: Sequence[BadRow] = ()
    places: pa.Array | None = None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> FileRows:
        """Those of a batch, all of them good."""
        return cls(dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows, batch.num_rows)


@dataclass(frozen=True)
class Columns:
    """The columns of the source. `data`: those that files and paths may have. `asked`: names, in order; None: all of `data`.

    Raises UsageError for a column that there is not, and for one of a type of which Arrow makes no batch.
    """

    data: pa.Schema
    asked: tuple[str, ...] | None
    on_bad: BadRecords
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        object.__setattr__(self, "schema", self._schema())
        for each in self.schema:
            if "run_end_encoded<" in str(each.type):  # which views of lists keep
                raise UsageError(f"Arrow makes no batch of column {each.name!r}, {each.type}: give `columns` without it")

    def _schema(self) -> pa.Schema:
        if len(set(self.data.names)) != len(self.data.names):
            raise UsageError(f"a schema has each name once, and these are {self.data.names}")
        known = {each.name: pa.field(each.name, each.type) for each in self.data}
        known.setdefault(METADATA, pa.field(METADATA, METADATA_TYPE))
        if self.on_bad == "keep":
            known |= {name: pa.field(name, kind) for name, kind in _BAD_TYPES.items() if name not in known}
        if self.asked is None:
            return pa.schema([known[name] for name in self.data.names])
        for name in self.asked:
            if name not in known:
                hint = " (which needs on_bad_record='keep')" if name in _BAD_TYPES else ""
                raise UsageError(f"there is no column {name!r}{hint}: there are {', '.join(known)}")
        return pa.schema([known[name] for name in self.asked])

    def of_file(self, path: str, time_zone: str | Callable[[], str]) -> FileColumns:
        """What is to be read of a file with this path, whose times are in that zone if they state none.

        Raises CorruptDataError for a value of a partition that does not fit.
        """
        is_about_bad = any(name in _BAD_TYPES and name not in self.data.names for name in self.schema.names)
        wanted = self.data if is_about_bad else pa.schema([each for each in self.schema if each.name in self.data.names])
        keys = partition_keys(path)
        others = {key.lower(): key for key in keys if key not in self.data.names}
        for name in wanted.names:
            if name not in keys and (other := others.get(name.lower())) is not None:
                raise CorruptDataError(f"its folders have {other!r}, and not {name!r}: give the schema its names as they are")
        values = partition_values(path, wanted, time_zone)
        in_file = pa.schema([each for each in wanted if each.name not in values])
        return FileColumns(self, in_file, values, frozenset(keys))


@dataclass(frozen=True)
class FileColumns:
    """Of one file: `wanted` is what it is to be read for, `values` what its path has for these `keys`."""

    columns: Columns
    wanted: pa.Schema
    values: Mapping[str, pa.Scalar]
    keys: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """All that such a file should have, in the order of the schema: of files that have no names themselves."""
        return [name for name in self.columns.data.names if name not in self.keys]

    def batch(self, found: FileRows, split: FileSplit) -> pa.RecordBatch:
        """The rows as the source has them. `split`: as it was before them.

        Raises CorruptDataError, which names the file, for a bad record where these fail.
        """
        if found.bad and self.columns.on_bad == "fail":
            first = found.bad[0]
            raise bad_record(split, first if found.places is None else first._replace(row=found.places[first.row].as_py()))
        arrays = [self._column(each, found, split) for each in self.columns.schema]
        if arrays:
            batch = pa.record_batch(arrays, schema=self.columns.schema)
        else:
            batch = pa.RecordBatch.from_struct_array(pa.array([{}] * found.rows, pa.struct([])))
        if found.bad and self.columns.on_bad == "skip":
            bad = {each.row for each in found.bad}
            batch = batch.filter(pa.array([row not in bad for row in range(found.rows)]))
        return batch

    def _column(self, wanted: pa.Field, found: FileRows, split: FileSplit) -> pa.Array:
        name = wanted.name
        if name in self.values:
            return pa.repeat(self.values[name], found.rows)
        if name in found.columns:
            column = found.columns[name]
            return column if column.type == wanted.type else conformed(column, wanted.type)
        if name not in self.columns.data.names:
            if name == METADATA:
                return pa.repeat(metadata(split), found.rows)
            if found.bad:
                return _bad_column(name, found, split)
        return pa.nulls(found.rows, wanted.type)


def metadata(split: FileSplit) -> pa.Scalar:
    """The row of `_metadata` for a file's records."""
    found = {"path": shown(split.path), "size": split.size, "modified": split.modified_ns // 1000}
    return pa.scalar(found, METADATA_TYPE)


def bad_record(split: FileSplit, bad: BadRow) -> BadRecordError:
    """What is raised for one where bad records fail."""
    start = f" from byte {split.start}" if split.start else ""
    return BadRecordError(
        f"{shown(split.path)}, record {split.delivered + bad.row}{start}: {bad.reason}. Nothing behind it is read. To continue "
        "without such records let them be kept or skipped: on_bad_record (as an option: onBadRecord)"
    )


def _bad_column(name: str, found: FileRows, split: FileSplit) -> pa.Array:
    by_row = {each.row: each for each in found.bad}
    if name == DEAD_LETTER:
        kind = {"key": pa.binary(), "value": pa.binary(), "headers": LETTER_TYPE.field("headers").type}
        columns = {each: pa.nulls(found.rows, kind[each]) for each in ("key", "headers")}
        columns["value"] = pa.array([by_row[row].value if row in by_row else None for row in range(found.rows)], pa.binary())
        columns["topic"] = pa.repeat(shown(split.path), found.rows)
        columns["partition"] = pa.nulls(found.rows, pa.int32())
        places = pa.array(range(found.rows), pa.int64()) if found.places is None else found.places.cast(pa.int64())
        columns["offset"] = pc.add(places, split.delivered)
        columns["start"] = pa.repeat(pa.scalar(split.start or None, pa.int64()), found.rows)
        columns["timestamp"] = pa.repeat(metadata(split)["modified"], found.rows)
        parts = {row: BadParts(each.reason, "value", None) for row, each in by_row.items()}
        return letter_column(pa.record_batch(columns), parts)
    part = "value" if name == BAD_VALUE else "reason"
    return pa.array([getattr(by_row[row], part) if row in by_row else None for row in range(found.rows)], _BAD_TYPES[name])


# --- partitions -------------------------------------------------------------------------------------------------------


def partition_keys(path: str) -> list[str]:
    """The names of the columns that this path has values for, as Hive writes them: `day=2024-01-01/hour=7/file`."""
    return [name for name, _ in _parts(path)]


def _parts(path: str) -> list[tuple[str, str]]:
    """Names, and values as they are written, of the folders that have both."""
    parts = (part.partition("=") for part in path.split("/")[:-1])
    return [(unquote(name), value) for name, equals, value in parts if equals]


def partition_values(path: str, schema: pa.Schema, time_zone: str | Callable[[], str]) -> dict[str, pa.Scalar]:
    """The values that a path has for columns of this schema, in their types. `time_zone`: of times that state none."""
    found: dict[str, pa.Scalar] = {}
    for name, value in _parts(shown(path)):
        if name not in schema.names:
            continue
        if name in found:
            raise CorruptDataError(f"the path has a value for {name!r} twice")
        try:
            found[name] = _partition_value(value, schema.field(name).type, time_zone)
        except pa.ArrowNotImplementedError as error:
            raise UsageError(f"a folder's name cannot be the column {name!r} as {schema.field(name).type}") from error
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise CorruptDataError(f"the path has a value that is not of the schema's type: {error}") from error
    return found


def _partition_value(value: str, kind: pa.DataType, time_zone: str | Callable[[], str]) -> pa.Scalar:
    if value == _HIVE_NULL:
        return pa.scalar(None, kind)
    text = pa.scalar(unquote(value, errors="strict"))
    if pa.types.is_timestamp(kind) and kind.tz is not None and not _HAS_ZONE.search(text.as_py()):
        return instants(pa.array([text.as_py()]).cast(pa.timestamp(kind.unit)), time_zone).cast(kind)[0]
    if pa.types.is_time(kind):  # which Arrow casts from no text
        text = pa.scalar(f"1970-01-01 {text}").cast(pa.timestamp(kind.unit))
    found = text.cast(kind)
    if pa.types.is_floating(kind) and pc.is_inf(found).as_py() and "inf" not in value.lower():
        raise pa.ArrowInvalid("a number is too large")
    return found


def partition_schema(paths: Iterable[str]) -> pa.Schema:
    """The columns that these paths have values for: int64 where all values are whole numbers, else string."""
    found: dict[str, bool] = {}
    for path in paths:
        for name, value in _parts(path):
            found[name] = found.get(name, True) and (_WHOLE.fullmatch(value) is not None or value == _HIVE_NULL)
    return pa.schema([(name, pa.int64() if is_whole else pa.string()) for name, is_whole in found.items()])


# --- types ------------------------------------------------------------------------------------------------------------


def data_columns(schema: pa.Schema, on_bad: BadRecords) -> pa.Schema:
    """Those of a schema that files may have, and not this source: one has the name and the type of a column that it adds."""
    own = _own(on_bad)
    return pa.schema([each for each in schema if each.name not in own or _plain(each.type) != _plain(own[each.name])])


def check_own(data: pa.Schema, on_bad: BadRecords, in_files: Callable[[], Collection[str]]) -> None:
    """Raise UsageError for a column with the name of one that this source adds, of another type, which files do not have.

    Its rows would be null. `in_files`: the columns of files, which is only asked where there is such a name.
    """
    own = _own(on_bad)
    met = [name for name in data.names if name in own]
    there = in_files() if met else ()
    for name in met:
        if name not in there:
            raise UsageError(
                f"column {name!r} is {data.field(name).type} in the schema, and the source adds it as {own[name]}: give it "
                "that type, or leave it out"
            )


def _own(on_bad: BadRecords) -> dict[str, pa.DataType]:
    return {METADATA: METADATA_TYPE} | (_BAD_TYPES if on_bad == "keep" else {})


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema without metadata, dictionaries, and columns that cannot be null; a column without any value is text."""
    return pa.schema([pa.field(each.name, _plain(each.type)) for each in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    if types.is_null(kind):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain(each.type)) for each in kind])
    if types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type))
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_fixed_size_list(kind):
        inner = _plain(kind.value_type)
        return kind if inner == kind.value_type else pa.list_(inner, kind.list_size)
    return pa.list_(_plain(kind.value_type)) if types.is_list(kind) else kind


def digest_of(schema: pa.Schema) -> str:
    """16 hex digits that stand for names and types."""
    return hashlib.sha256(repr([(each.name, str(each.type)) for each in schema]).encode()).hexdigest()[:16]


def check_names(found: Sequence[str], wanted: Sequence[str], known: Sequence[str]) -> None:
    """Raise CorruptDataError for a column that a file has in another case, or with spaces around it, only: it would be null in
    all rows.

    `known`: the schema's. A file that has none of them is none of these files, and all would be null.
    """
    others = {name.strip().lower(): name for name in found if name not in wanted}
    for name in wanted:
        if name not in found and (other := others.get(name.strip().lower())) is not None:
            raise CorruptDataError(f"it has {other!r}, and not {name!r}: give the schema its names as files have them")
    if known and not set(known) & set(found):
        raise CorruptDataError(
            f"it has none of the columns {', '.join(known)}, and has {', '.join(found)[:1000]}: it may have no line of names, "
            "or another delimiter"
        )


def check_fits(found: pa.Schema, columns: FileColumns) -> None:
    """Raise CorruptDataError for columns of a file that are of another type, and would not keep their values."""
    check_names(found.names, columns.wanted.names, columns.names)
    for each in columns.wanted:
        at = found.get_all_field_indices(each.name)
        if len(at) > 1:
            raise CorruptDataError(f"it has the column {each.name!r} {len(at)} times")
        try:
            is_fit = not at or fits(found.field(at[0]).type, each.type)
        except CorruptDataError as error:
            raise CorruptDataError(f"its column {each.name!r}: {error}") from None
        if not is_fit:
            raise CorruptDataError(f"its column {each.name!r} is {found.field(at[0]).type}, and the schema has {each.type}")


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type are of the other: the same kind, and at least as wide. Of times the values decide.

    Raises CorruptDataError for a struct with a field in another case only, or with none of the fields: they would be null.
    """
    types = pa.types
    while types.is_dictionary(found) or types.is_run_end_encoded(found):
        found = found.value_type
    if found == wanted or types.is_null(found):
        return True
    if types.is_struct(found) and types.is_struct(wanted):
        inner, names = [each.name for each in found], [each.name for each in wanted]
        check_names(inner, names, ())
        if names and not set(names) & set(inner):
            raise CorruptDataError(f"it has none of the fields {', '.join(names)}, and has {', '.join(inner) or 'no field'}")
        once = all(inner.count(each.name) < 2 for each in wanted)
        return once and all(each.name not in inner or fits(found.field(each.name).type, each.type) for each in wanted)
    if is_list(found) and is_list(wanted):
        return fits(found.value_type, wanted.value_type)
    if types.is_map(found) and types.is_map(wanted):
        return fits(found.key_type, wanted.key_type) and fits(found.item_type, wanted.item_type)
    if types.is_integer(found):
        return _holds_integers(found, wanted)
    if types.is_floating(found):
        return bool(types.is_floating(wanted) and found.bit_width <= wanted.bit_width)
    if types.is_decimal(found) and types.is_decimal(wanted):
        return bool(found.scale <= wanted.scale and found.precision - found.scale <= wanted.precision - wanted.scale)
    if types.is_timestamp(found) and types.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    if any(is_kind(found) and is_kind(wanted) for is_kind in (types.is_time, types.is_duration)):
        return True
    return any(found in kinds and wanted in kinds for kinds in _ALIKE)


_ALIKE = ((pa.string(), pa.large_string(), pa.string_view()), (pa.binary(), pa.large_binary(), pa.binary_view()))


def is_list(kind: pa.DataType) -> bool:
    """Of any size, or of a fixed one."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _holds_integers(found: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    bits = found.bit_width - types.is_signed_integer(found)
    if types.is_signed_integer(wanted):
        return bool(bits <= wanted.bit_width - 1)
    if types.is_unsigned_integer(wanted):
        return bool(types.is_unsigned_integer(found) and bits <= wanted.bit_width)
    return bool(types.is_floating(wanted) and bits <= {16: 11, 32: 24, 64: 53}[wanted.bit_width])


def conformed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column whose type `fits`, as one of this type: fields of structs by name, those that are not there null.

    Raises ArrowInvalid for a time that the type does not hold.
    """
    column = unencoded(column)
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        parts = {each.name: part for each, part in zip(column.type, record_fields(column), strict=True)}
        inner = [
            conformed(parts[each.name], each.type) if each.name in parts else pa.nulls(len(column), each.type) for each in kind
        ]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=pc.is_null(column))
    if column.type == kind:
        return column
    return cast_nested(column, kind) if pa.types.is_nested(kind) else column.cast(kind)
