"""Delta Lake tables by `deltalake`, which needs no JVM: what a job has committed is in the table's own transaction identifiers.

Each is a `txn` action of an application and a version: `headrace.<job>`, the epoch after the last one recorded;
`headrace.<job>.driver`, `.recorded-by`, `.content`, `.claim` and `.owner`, as in `JobMarker`. Checkpoints of the log, VACUUM,
OPTIMIZE, RESTORE and new columns leave them alone; `delta.setTransactionRetentionDuration` does not: who sets it is refused.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
from pyarrow import fs

from headrace.connectors.base.arguments import text, texts
from headrace.connectors.files.formats import columns_with_bounds, has_codec
from headrace.connectors.files.store import check_no_password, given_path, is_local, shown_address
from headrace.connectors.tables.handles import DataFile
from headrace.connectors.tables.log import FileLayout, JobMarker, LoadedTable, OutdatedError, TableFile, TableLog
from headrace.connectors.tables.metadata_folder import jobs_in, refused_by_store
from headrace.connectors.tables.rows import (
    as_now,
    can_partition,
    check_columns,
    check_no_twins,
    check_partition_columns,
    check_spelling,
)
from headrace.connectors.tables.sink import OpenTableSink
from headrace.connectors.tables.statistics import Measures, delta_statistics, measures_of, within_calendar
from headrace.connectors.tables.text_lengths import has_unchecked_lengths
from headrace.enumerator.errors import PeerError, RetriableError, UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_ZONELESS = "timestampNtz"
_WRITTEN_AS_ASKED = frozenset({"appendOnly", "changeDataFeed", "deletionVectors", _ZONELESS})
"""Features of which a writer that only appends has nothing to do, and with which `deltalake` commits."""

_WRITTEN_IF_UNUSED = frozenset({"checkConstraints", "generatedColumns", "invariants", "columnMapping", "variantType"})
"""Features that ask something of the rows where a column or a property uses them.

A table that `deltalake` makes with deletion vectors has that of variants, too.
"""

_NOT_COMMITTED = "Unsupported table features"
"""What `deltalake` says of a table whose features it does not write, by the same error as of a commit that came too late."""
_FORKED = "Forked process detected"

_CONSTRAINT = "delta.constraints."
_PROPERTIES = {
    "delta.columnMapping.mode": "the names of its columns in files are others (column mapping)",
    "delta.setTransactionRetentionDuration": "it forgets what jobs have committed (delta.setTransactionRetentionDuration)",
    "delta.randomizeFilePrefixes": "it wants its files under random names (delta.randomizeFilePrefixes)",
}
_NOT_REWRITTEN = {
    "delta.appendOnly": "its rows stay as they are",
    "delta.enableChangeDataFeed": "it keeps a record of every change, which this sink does not write",
}
_ALL_PARTITIONS = "partitioned by all of its columns, and files without columns have no rows"
_INDEXED = 32  # Delta's own number: wide tables have long logs otherwise
_MILLISECOND = pa.scalar(1_000, pa.duration("us"))
_NOT_QUOTED = "!$&'()+,/:;=@"
"""What `deltalake` writes as it is in a path, but for what Python's `quote` never changes."""
_MISREAD_PATH = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f]")
"""What `deltalake` writes as it is, and reads as another name: `x%41` as `xA`."""
_MISREAD_ADDRESS = re.compile(r"%[0-9A-Fa-f]{2}|[#\x00-\x1f]")
"""What it drops, with what follows a `#`, so that the table would be another one."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/|/")
_FILE = "__filename"
"""What Arrow calls the column of the file that a row is in."""
_PLAIN_NAME = re.compile(r"[^/=%\\\x00-\x1f\x7f]+")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NAME, _LONGEST_FOLDER = 255, 512  # file systems have no longer names, and S3 no keys of over 1024
_OF_COLUMNS = ("delta.invariants", "delta.generationExpression", "delta.identity.start", "delta.columnMapping.physicalName")


@dataclass(frozen=True)
class DeltaSink(OpenTableSink):
    """Writes rows to a Delta table, exactly once; readers see each epoch whole, as one version of the table.

    - `uri`: where the table is: a local path, or an address of `deltalake` (`s3://`, `az://`, `gs://`). The table exists:
      `create_table` makes one.
    - `target_file_bytes`: a file ends after this many bytes, 128 MiB by default; each task and partition has files of its own.
    - `compression`: Parquet's; snappy by default.
    - `merge_schema`: `create_table` adds columns that a table does not have; by default it leaves a table as it is.
    - `changes`: rows are changes, and take the place of those with the same keys; by default rows are appended.
    - `storage_options`: what is passed to `deltalake` for the store, such as keys; never shown.

    A value that is checked when made, hashable and picklable; does no I/O before a method is called. Raises UsageError for
    what cannot be honoured.
    """

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check, and make a local path absolute."""
        if not text("uri", self.uri):
            raise UsageError("a Delta table needs a path or an address")
        check_no_password(self.uri)
        local = is_local(self.uri) or self.uri.startswith("file:")
        if not local and "?" in self.uri:
            raise UsageError(
                f"{shown_address(self.uri)}: a signature in an address is printed with it: use the storage options"
            )
        object.__setattr__(self, "uri", given_path(self.uri) if local else self.uri.rstrip("/"))
        misread = (_MISREAD_PATH if local else _MISREAD_ADDRESS).search(self.uri)
        if misread is not None:
            raise UsageError(
                f"{self.uri!r}: deltalake takes this for another place because of {misread[0]!r}: write the character "
                "itself, or rename the folder"
            )
        super().__post_init__()
        texts("storage_options", self.storage_options)
        if self.compression != "none" and not has_codec(self.compression):
            raise UsageError(f"this pyarrow has no compression {self.compression!r}")

    @property
    def where(self) -> str:
        """The address."""
        return self.uri

    def _make(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Partitions are by text, integers, booleans and dates."""
        check_partition_columns(schema, partition_by, self.uri)
        check_no_twins(schema, (), self.uri)
        if not set(schema.names) - set(partition_by):
            raise UsageError(f"{self.uri}: a table cannot be {_ALL_PARTITIONS}: leave one out of them")
        if not self.log().exists():
            _check_zones(schema, self.uri)
        if is_local(self.uri):
            _make_folder(self.uri)
        try:
            with _translated(self.uri):
                DeltaTable.create(
                    self.uri,
                    schema=schema,
                    mode="ignore",
                    partition_by=list(partition_by),
                    storage_options=dict(self.storage_options),
                )
        except OutdatedError:  # another process has made one in the same moment: then there is one
            self.log().load()
        except TableNotFoundError as error:
            raise UsageError(f"{self.uri}: deltalake finds no such store: {_first_line(error)}") from error

    def log(self) -> TableLog:
        """The table's log, and the store of its files."""
        return _DeltaLog(self.uri, self.storage_options)

    def _own_type(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.binary() if pa.types.is_fixed_size_binary(kind) else None

    def _markers(self) -> dict[str, JobMarker | None]:
        log = self.log()
        loaded = log.load()
        with refused_by_store(self.uri):
            jobs = jobs_in(log.store())
        return {job: loaded.marker(job) for job in jobs}


def _check_zones(schema: pa.Schema, uri: str) -> None:
    """Raise UsageError for timestamps without a zone that are all in maps, where `deltalake` does not see them.

    They need a feature of the table. Without it `deltalake` leaves one that no reader loads.
    """
    if any(_has_zoneless(field.type, in_maps=False) for field in schema):
        return
    if maps := [repr(field.name) for field in schema if _has_zoneless(field.type, in_maps=True)]:
        raise UsageError(
            f"{uri}: deltalake writes no table whose timestamps without a zone are all in maps ({', '.join(maps)}): "
            "give them a zone"
        )


def _has_zoneless(kind: pa.DataType, *, in_maps: bool) -> bool:
    if pa.types.is_map(kind) and not in_maps:
        return False
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(_has_zoneless(kind.field(at).type, in_maps=in_maps) for at in range(kind.num_fields))


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: no folder can be made here for the table: {error.strerror}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class _DeltaLog(TableLog):
    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self._uri, self._options = uri, dict(options)

    def load(self) -> _LoadedDelta:
        """Each time from the start: an object that is brought up to date does not notice that its table was recreated."""
        try:
            with _translated(self._uri):
                return _LoadedDelta(DeltaTable(self._uri, storage_options=self._options), self._uri)
        except TableNotFoundError as error:
            raise UsageError(
                f"{self._uri}: there is no Delta table here: make it first, as with DeltaSink.create_table"
            ) from error

    def exists(self) -> bool:
        with _translated(self._uri):
            return DeltaTable.is_deltatable(self._uri, self._options)

    def store(self) -> fs.FileSystem:
        return fs.PyFileSystem(_Store(self._uri, self._options))


class _LoadedDelta(LoadedTable):
    def __init__(self, table: DeltaTable, uri: str) -> None:
        self._table, self._uri = table, uri
        self._metadata = table.metadata()
        self._schema = pa.schema(table.schema().to_arrow())
        # Delta compares both without regard to case, and keeps them as they were given.
        self._properties = {name.lower(): (value or "").lower() for name, value in self._metadata.configuration.items()}

    @property
    def id(self) -> str:
        return str(self._metadata.id)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def partitioning(self) -> tuple[str, ...]:
        return tuple(self._metadata.partition_columns)

    @property
    def files(self) -> FileLayout:
        return _DeltaFiles(self.partitioning, self._schema, _indexed(self._properties))

    @property
    def version(self) -> object:
        return self._table.version()

    def check_writable(self) -> None:
        for why in self._obstacles():
            raise UsageError(f"{self._uri}: headrace cannot write to this table: {why}")

    def check_rewritable(self) -> None:
        for name, why in _NOT_REWRITTEN.items():
            if self._properties.get(name.lower()) == "true":
                raise UsageError(f"{self._uri}: headrace cannot replace rows of this table: {why} ({name})")
        if "deletionVectors" in (self._table.protocol().reader_features or ()):
            raise UsageError(f"{self._uri}: headrace cannot replace rows of this table: it has deletion vectors")

    def marker(self, job: str) -> JobMarker | None:
        with _translated(self._uri):  # it reads log files, which another writer may have cleaned up meanwhile
            return JobMarker.stored([self._table.transaction_version(name) for name in JobMarker.names(job)])

    def commit(
        self, job: str, marker: JobMarker, added: Sequence[DataFile], removed: Sequence[TableFile] | None = None
    ) -> None:
        """Tried once: whether to try again is for who knows the marker."""
        versions = zip(JobMarker.names(job), astuple(marker), strict=True)
        now_ms = time.time_ns() // 1_000_000
        properties = CommitProperties(
            custom_metadata={
                "isBlindAppend": removed is None
            },  # if so, others need not fear that we have read what they change
            app_transactions=[Transaction(name, version, now_ms) for name, version in versions],
            max_commit_retries=0,
        )
        with _translated(self._uri):
            self._table.create_write_transaction(
                [*(_removed(file, now_ms) for file in removed or ()), *(_added(file, now_ms) for file in added)],
                "append",
                self._table.schema(),
                partition_by=list(self.partitioning),
                commit_properties=properties,
            )

    def drop_marker(self, job: str) -> None:
        """Delta has no action that does."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with _translated(self._uri):
            check_columns(self._schema, columns, self._uri)
            dataset, stored = self._dataset(), [self._schema.field(name) for name in columns if name not in self.partitioning]
            unchecked = {fragment.path: fragment for fragment in dataset.get_fragments()}
            for batch in dataset.to_batches(columns=[*columns, _FILE]):
                rows = batch.select(list(columns))
                # without values in a column, which the file may have in another case: else none is opened for it
                if batch.num_rows and any(rows.column(field.name).null_count == batch.num_rows for field in stored):
                    fragment = unchecked.pop(batch.column(_FILE)[0].as_py(), None)
                    if fragment is not None:
                        check_spelling(fragment.physical_schema, stored, f"{self._uri}: the file {fragment.path!r}")
                yield rows

    def files_with(self, keys: pa.Table) -> Iterator[TableFile]:
        """Those whose least and greatest values leave space for one of the keys, or are not known."""
        with _translated(self._uri):
            files = pa.table(self._table.get_add_actions(flatten=False))
            self._check_own(files["path"].to_pylist())
            dataset, stored = self._dataset(), [each for each in self._schema if each.name not in self.partitioning]
            without, logged = _paths_without(files, keys), {unquote(path): path for path in files["path"].to_pylist()}
            for fragment in dataset.get_fragments():
                if fragment.path not in without:
                    yield _DeltaFile(fragment, logged.get(fragment.path), dataset.schema, self._schema, stored)

    def _check_own(self, paths: Sequence[str]) -> None:
        """`deltalake` takes the address of a file of another table for a path in this one."""
        for path in paths:
            if _ADDRESS.match(path):
                raise UsageError(
                    f"{self._uri}: headrace cannot replace rows of this table: it has files of another one, as a shallow clone "
                    f"has ({path})"
                )

    def _dataset(self) -> ds.Dataset:
        # Others write timestamps as INT96, which by itself Arrow takes for nanoseconds: the year 9999 becomes another one.
        return self._table.to_pyarrow_dataset(parquet_read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))

    def widen(self, columns: pa.Schema) -> None:
        if _ZONELESS not in (self._table.protocol().writer_features or ()):
            _check_zones(columns, self._uri)
        with _translated(self._uri):
            fields = DeltaSchema.from_arrow(columns).fields
            self._table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))

    def refers_to(self, paths: Collection[str]) -> bool:
        added = pa.table(self._table.get_add_actions(flatten=True)).column("path")
        return any(path.as_py() in paths for path in added)

    def _obstacles(self) -> Iterator[str]:
        unknown = set(self._table.protocol().writer_features or ()) - _WRITTEN_AS_ASKED - _WRITTEN_IF_UNUSED
        if unknown:
            yield f"it uses {', '.join(sorted(unknown))}"
        for name in self._metadata.configuration:
            if name.lower().startswith(_CONSTRAINT):
                yield f"its rows have to satisfy {name[len(_CONSTRAINT) :]!r}"
        for name, why in _PROPERTIES.items():
            if self._properties.get(name.lower(), "") not in ("", "none", "false"):
                yield why
        for name, kind, metadata in _within(self._table.schema()):
            for key in _OF_COLUMNS:
                if key in metadata:
                    yield f"its column {name!r} has {key}"
            if kind.type == "variant":
                yield f"its column {name!r} has variants"
        for each in filter(has_unchecked_lengths, self._schema):
            yield f"its column {each.name!r} has VARCHAR or CHAR within another type"
        if not set(self._schema.names) - set(self.partitioning):
            yield f"it is {_ALL_PARTITIONS}"
        for name in self.partitioning:
            kind = self._schema.field(name).type
            if not can_partition(kind):
                yield f"it is partitioned by {name!r}, which is {kind}"


def _within(kind: Any, outer: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any]]]:  # noqa: ANN401 - any Delta type
    """Name, type and metadata of each field of a schema or struct, under `column.field`, also of those within lists and maps,
    whose parts are there by the name of the field that they are in, without metadata.
    """
    for each in getattr(kind, "fields", ()):
        name = f"{outer}.{each.name}" if outer else each.name
        yield name, each.type, each.metadata
        yield from _within(each.type, name)
    for part in ("element_type", "key_type", "value_type"):
        if hasattr(kind, part):
            yield outer, getattr(kind, part), {}
            yield from _within(getattr(kind, part), outer)


class _DeltaFile(TableFile):
    def __init__(
        self,
        fragment: Any,  # noqa: ANN401 - of pyarrow's datasets
        logged: str | None,
        schema: pa.Schema,
        wanted: pa.Schema,
        stored: Sequence[pa.Field],
    ) -> None:
        """`logged`: its path as the log has it, None if that is not known. `stored`: columns that are in files."""
        self._fragment, self._logged, self._schema, self._wanted, self._stored = fragment, logged, schema, wanted, stored

    @property
    def path(self) -> str:
        return str(self._fragment.path)

    def read(self) -> pa.Table:
        """Raises UsageError for columns in another case, which files have that were converted to a table (CONVERT TO DELTA)."""
        check_spelling(
            self._fragment.physical_schema, self._stored, f"headrace cannot replace rows of the file {self.path!r}: it"
        )
        return as_now(self._fragment.to_table(schema=self._schema), self._wanted, self.path)

    def check_removable(self) -> None:
        """`deltalake` writes paths in one way; a removal that another writer's path does not match removes nothing."""
        if quote(self.path, safe=_NOT_QUOTED) != self._logged:
            raise UsageError(
                f"headrace cannot replace rows of the file {self.path!r}: the log has its path as {self._logged!r}, and "
                "deltalake would remove another one, so that its rows would come twice. Let the engine that has written it "
                "change them"
            )


class _DeltaFiles(FileLayout):
    def __init__(self, partitioning: tuple[str, ...], table: pa.Schema, indexed: int | None) -> None:
        self._partitioning = partitioning
        self._stored = [column for column in table if column.name not in partitioning]
        self._measured = [column.name for column in self._stored if not pa.types.is_nested(column.type)][:indexed]

    @property
    def sources(self) -> tuple[str, ...]:
        return self._partitioning

    def keys(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        return [rows.column(name) for name in self._partitioning]

    def columns(self, schema: pa.Schema) -> pa.Schema:
        """Rows of partitions' values alone get a column of nulls: a file without columns would have no rows."""
        kept = [column for column in schema if column.name not in self._partitioning]
        return pa.schema(kept or self._stored[:1])

    def partition(self, values: tuple[object, ...]) -> tuple[tuple[str, str | None], ...]:
        return tuple((name, _partition_value(name, value)) for name, value in zip(self._partitioning, values, strict=True))

    def folder(self, partition: Sequence[tuple[str, str | None]]) -> str:
        """As Hive has it: Polars takes a partition's values from there, and not from the log.

        No folder where a store may have none of that length, and of columns whose names would be read as others there.
        """
        names = [f"{name}={_NO_VALUE if value is None else quote(value, safe='')}" for name, value in partition]
        found = "".join(f"{name}/" for name in names)
        is_plain = all(_PLAIN_NAME.fullmatch(name) for name, _ in partition)
        is_short = all(len(name.encode()) <= _LONGEST_NAME for name in names) and len(found.encode()) <= _LONGEST_FOLDER
        return found if is_plain and is_short else ""

    def row_group_bounds(self, schema: pa.Schema) -> list[str]:
        return columns_with_bounds(schema)

    def measures(self, rows: pa.Table) -> Measures:
        return measures_of(rows, self._measured)

    def statistics(self, footer: pq.FileMetaData, measured: Sequence[Measures]) -> str:
        structs = [column.name for column in self._stored if pa.types.is_struct(column.type)]
        return delta_statistics(footer.num_rows, self._measured, structs, measured)


class _Store(DeltaStorageHandler):
    """deltalake's store takes `bytes` only, and pyarrow gives it buffers."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        return pa.PythonFile(_BytesFile(self._handler.open_output_stream(path, metadata)), mode="w")


class _BytesFile:
    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - its stub has no `close`
        self._inner = inner
        self._written = 0

    def write(self, data: Buffer) -> int:
        content = bytes(data)
        self._inner.write(content)
        self._written += len(content)
        return len(content)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """The store has it when the file is closed."""

    def close(self) -> None:
        self._inner.close()

    closed = property(attrgetter("_inner.closed"))
    """No function, which may be interrupted: Arrow takes whatever it raises for True."""


def _indexed(properties: Mapping[str, str]) -> int | None:
    """Of how many columns a file has statistics; None for all. What the table wants and is missing, readers take for null."""
    given = properties.get("delta.dataskippingnumindexedcols") or str(_INDEXED)
    if re.fullmatch(r"\s*-?\d{1,19}\s*", given) is None:
        raise UsageError(
            f"the table property delta.dataSkippingNumIndexedCols is {given!r}, and not a whole number: set another"
        )
    return None if int(given) < 0 or "delta.dataskippingstatscolumns" in properties else int(given)


def _paths_without(files: pa.Table, keys: pa.Table) -> frozenset[str]:
    """Those of these files that have none of the keys for certain; one that is not found here by its path is read.

    By the log itself: the dataset of `deltalake` takes a bound that is missing for null, which passes the file over.

    Decimals are not asked for: others write them as doubles, which say nothing of a value with many digits.
    """
    found = pa.repeat(pa.scalar(value=True), len(files))
    for name in keys.column_names:
        if pa.types.is_decimal(keys[name].type):
            continue
        least, greatest = map(within_calendar, pc.min_max(keys[name]).values())
        low, high = (_bound(files, bound, name) for bound in ("min", "max"))
        if low is not None:
            found = pc.and_(found, pc.fill_null(pc.less_equal(low, greatest), fill_value=True))
        if high is not None:
            high = pc.add(high, _MILLISECOND) if pa.types.is_timestamp(high.type) else high  # most writers truncate it
            found = pc.and_(found, pc.fill_null(pc.greater_equal(high, least), fill_value=True))
    return frozenset(map(unquote, files["path"].filter(pc.invert(found)).to_pylist()))  # the log has them as URIs


def _bound(files: pa.Table, bound: str, name: str) -> pa.ChunkedArray | None:
    """Of a column in each file, null where it is not known; None if no file has it."""
    for place in (bound, "partition"):
        if place in files.column_names and files[place].type.get_field_index(name) >= 0:
            return pc.struct_field(files[place], [name])
    return None


def _added(file: DataFile, now_ms: int) -> AddAction:
    return AddAction(file.path, file.size, dict(file.partition), now_ms, data_change=True, stats=file.statistics)


def _removed(file: TableFile, now_ms: int) -> RemoveAction:
    assert isinstance(file, _DeltaFile)
    return RemoveAction(file.path, data_change=True, deletion_timestamp=now_ms)


def _partition_value(name: str, value: object) -> str | None:
    """As the protocol has it, where an empty text is a null."""
    if value == "":
        raise UsageError(f"column {name!r}: Delta cannot tell an empty text from a null in a column that it partitions by")
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, bool) else str(value)


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    """What `deltalake` raises, in our tree. TableNotFoundError is left to those who know what it means."""
    try:
        yield
    except TableNotFoundError:
        raise
    except CommitFailedError as error:
        if _NOT_COMMITTED in str(error):
            raise UsageError(f"{uri}: headrace cannot write to this table: {_first_line(error)}") from error
        raise OutdatedError(f"{uri}: another process has committed meanwhile: {_first_line(error)}") from error
    except (DeltaError, OSError) as error:
        if is_local(uri) and os.path.isfile(uri):
            raise UsageError(f"{uri}: this is a file, and a table is a folder: correct the path") from error
        kind = PeerError if isinstance(error, DeltaError) else RetriableError
        raise kind(f"{uri}: {_first_line(error)}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException" or _FORKED not in str(error):
            raise
        raise UsageError(
            f"{uri}: this process was forked from one that has used deltalake, which does not work then. If a script has used "
            "it as it was loaded, do that under if __name__ == '__main__', or in a function"
        ) from error
