"""Iceberg tables by PyIceberg: what a job has committed is in the table's own properties.

They are `headrace.<job>`, the epoch after the last one recorded; `headrace.<job>.driver`, `.recorded-by`, `.content`, `.claim`
and `.owner`, as in `JobMarker`. Expiry of snapshots, compaction, rollback and new columns leave them alone.

Every commit, also one without files, makes a snapshot: catalogs refuse a commit if the branch `main` has moved since the table
was loaded, and would let one through of which only properties have changed. A new column or another partitioning does not move
the branch, so each commit asks for these to be as they were, too: else one whose answer was lost could arrive after another was
made in its place, which is of the table as it is then. PyIceberg tries a refused commit again on top of
the newer table, without a check at what that says; so its `commit.retry.num-retries` is 0 in our copy of the table.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.io import pyarrow as arrow_io
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, TableRequirement
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from headrace.connectors.base.arguments import mapping, text
from headrace.connectors.files.store import check_no_password, shown_address
from headrace.connectors.postgresql.errors import DURABLE
from headrace.connectors.tables.handles import DataFile
from headrace.connectors.tables.iceberg_files import files_of, read_as_it_is
from headrace.connectors.tables.iceberg_partitions import TablePartition
from headrace.connectors.tables.log import FileLayout, JobMarker, LoadedTable, OutdatedError, TableFile, TableLog
from headrace.connectors.tables.metadata_folder import is_lasting
from headrace.connectors.tables.rows import as_now, check_columns, check_no_twins
from headrace.connectors.tables.sink import OpenTableSink
from headrace.connectors.tables.statistics import Measures, has_bounds
from headrace.enumerator.errors import HeadraceError, PeerError, RetriableError, UsageError

_PREFIX = "headrace."
_CATALOG = "default"
_OURS = {"commit.retry.num-retries": "0"}
_BOUNDS = ("lower_bounds", "upper_bounds")
_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")


@dataclass(frozen=True)
class IcebergSink(OpenTableSink):
    """Writes rows to an Iceberg table, exactly once; readers see each epoch whole, as one snapshot.

    - `table`: `namespace.table`. It exists: `create_table` makes one.
    - `catalog`: PyIceberg's properties of the catalog, such as `type`, `uri` and `warehouse`, and its `name`, which in a SQL
      catalog is part of every table's (`default` by default); never shown.
    - `target_file_bytes`: a file ends after this many bytes, 128 MiB by default; each task and partition has files of its own.
    - `compression`: Parquet's; zstd by default, as Iceberg has it.
    - `merge_schema`: `create_table` adds columns that a table does not have; by default it leaves a table as it is.
    - `changes`: rows are changes, and take the place of those with the same keys; by default rows are appended.

    A value that is checked when made, hashable and picklable; does no I/O before a method is called. Raises UsageError for
    what cannot be honoured.
    """

    table: str
    catalog: Mapping[str, str] = field(repr=False, hash=False)
    compression: str = field(default="zstd", kw_only=True)

    def __post_init__(self) -> None:
        """Check what can be checked here."""
        mapping("catalog", self.catalog)
        if not all(text("table", self.table).split(".")) or "." not in self.table:
            raise UsageError(f"an Iceberg table is named namespace.table, not {self.table!r}")
        super().__post_init__()
        _check_address(text("the catalog's uri", self.catalog.get("uri", "")))
        _check_warehouse(text("the catalog's warehouse", self.catalog.get("warehouse", "")))
        if self.compression not in ("none", "snappy", "zstd", "gzip", "lz4", "brotli"):
            raise UsageError(f"compression must be none, snappy, zstd, gzip, lz4 or brotli, not {self.compression!r}")

    @property
    def where(self) -> str:
        """For messages: the name of the table."""
        return self.table

    def _make(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """With its namespace. Partitions are columns, or transforms of columns, such as `bucket(16, id)` and `day(at)`."""
        partitions = [TablePartition.parse(each, schema, self.table) for each in partition_by]
        try:
            with _translated(self.table):
                self._create(_catalog(self.catalog), schema, partitions)
        except OutdatedError:  # another process has made one in the same moment: then there is one
            self.log().load()
        except PeerError as error:
            if not isinstance(error.__cause__, ValueError):
                raise
            raise UsageError(f"{self.table}: PyIceberg makes no such table: {error.__cause__}") from error

    def _create(self, catalog: Catalog, schema: pa.Schema, partitions: Sequence[TablePartition]) -> None:
        with suppress(exceptions.NamespaceAlreadyExistsError):
            catalog.create_namespace(self.table.rpartition(".")[0])
        if catalog.table_exists(self.table):
            return
        check_no_twins(schema, (), self.table)
        with suppress(exceptions.TableAlreadyExistsError):
            creation = catalog.create_table_transaction(self.table, schema=schema)
            with creation.update_spec() as spec:
                for partition in partitions:
                    spec.add_field(partition.column, partition.transform, partition.name)
            _check_names(creation.table_metadata.schema(), self.table)
            _check_partition_names([part.name for part in creation.table_metadata.spec().fields], self.table)
            _check_location(f"the location of {self.table}", creation.table_metadata.location)
            creation.commit_transaction()

    def log(self) -> TableLog:
        """The table's log, and the store of its files."""
        return _IcebergLog(self.table, self.catalog)

    def _own_type(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.time64("us") if pa.types.is_time(kind) else kind

    def _markers(self) -> dict[str, JobMarker | None]:
        loaded = _IcebergLog(self.table, self.catalog).load()
        return {job: loaded.marker(job) for job in loaded.jobs()}


def _check_address(uri: str) -> None:
    """Raise UsageError for one that no library can take apart: what it raises then has a part of the password, or all."""
    for address in uri.split(","):
        try:
            _ = urlsplit(address).port
        except ValueError as error:
            raise UsageError(
                "the catalog's uri has no port that is a number up to 65535. If its password has characters such as / or @, "
                "write them as %2F and %40"
            ) from error


def _check_warehouse(address: str) -> None:
    """Raise UsageError for one with a password, and as `_check_location`. It may be a name, and not an address."""
    check_no_password(address)
    _check_location("the catalog's warehouse", address)


def _check_location(what: str, address: str) -> None:
    """Raise UsageError for an address that PyIceberg reads up to a `?` or `#`."""
    if re.match(r"file:|[^/?#]*://", address) and re.search("[?#]", address):
        raise UsageError(
            f"{what}, {shown_address(address)!r}: PyIceberg takes it for another place because of '?' or '#': rename the "
            "folder or table, or give a local warehouse by its path"
        )


def _check_names(schema: Schema, table: str) -> None:
    """Raise UsageError naming columns whose statistics no manifest can have."""
    try:
        clean = sanitize_column_names(schema).column_names
    except ValueError:  # of an empty name
        clean = [name for name in schema.column_names if all(name.split("."))]
    if found := [repr(name) for name in schema.column_names if name not in clean]:
        raise UsageError(
            f"{table}: headrace cannot write to this table: Avro does not allow the names of its columns "
            f"{', '.join(found)}: rename them to A-Z, a-z, 0-9 and _"
        )


def _check_partition_names(names: Sequence[str], table: str) -> None:
    """Raise UsageError for one that no manifest can have as Avro specifies it. Java writes it, and DuckDB's process aborts."""
    if found := [repr(name) for name in names if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) is None]:
        raise UsageError(
            f"{table}: Avro does not allow the names of its partitions {', '.join(found)}: partition by columns whose names "
            "have A-Z, a-z, 0-9 and _ only"
        )


class _IcebergLog(TableLog):
    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self._name, self._properties = name, properties

    def load(self) -> _LoadedIceberg:
        return _LoadedIceberg(self._table(), self._name)

    def exists(self) -> bool:
        with _translated(self._name):
            return _catalog(self._properties).table_exists(self._name)

    def store(self) -> fs.FileSystem:
        table = self._table()
        _check_location(f"the location of {self._name}", str(table.location()))
        assert isinstance(table.io, arrow_io.PyArrowFileIO)
        scheme, netloc, path = arrow_io.PyArrowFileIO.parse_location(table.location())
        return fs.SubTreeFileSystem(path, table.io.fs_by_scheme(scheme, netloc))

    def _table(self) -> Table:
        try:
            with _translated(self._name):
                table: Table = _catalog(self._properties).load_table(self._name)
                return table
        except exceptions.NoSuchTableError as error:
            message = f"{self._name}: there is no such Iceberg table: make it first, as with IcebergSink.create_table"
            raise UsageError(message) from error


class _LoadedIceberg(LoadedTable):
    def __init__(self, table: Table, name: str) -> None:
        self._table, self._name = table, name
        self._properties = dict(table.metadata.properties)
        self._schema = arrow_io.schema_to_pyarrow(table.schema())
        table.metadata = table.metadata.model_copy(update={"properties": {**self._properties, **_OURS}})

    @property
    def id(self) -> str:
        return str(self._table.metadata.table_uuid)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def partitioning(self) -> tuple[str, ...]:
        return tuple(str(partition) for partition in self._partitions)

    @property
    def files(self) -> FileLayout:
        return _IcebergFiles(self._table, self._partitions)

    @property
    def version(self) -> object:
        metadata, snapshot = self._table.metadata, self._table.current_snapshot()
        return (None if snapshot is None else snapshot.snapshot_id, metadata.current_schema_id, metadata.default_spec_id)

    @property
    def _partitions(self) -> tuple[TablePartition, ...]:
        schema = self._table.schema()
        sources = ((part, schema.find_column_name(part.source_id)) for part in self._table.spec().fields)
        return tuple(
            TablePartition(name or "", part.transform, None if name is None else schema.find_type(part.source_id))
            for part, name in sources
        )

    def check_writable(self) -> None:
        schema = self._table.schema()
        try:
            arrow_io.compute_statistics_plan(schema, self._table.properties)
        except ValueError as error:
            raise UsageError(
                f"{self._name}: headrace cannot write to this table: a property of its metrics (write.metadata.metrics...) is "
                f"none that PyIceberg knows: {error}"
            ) from error
        for part, partition in zip(self._table.spec().fields, self._partitions, strict=True):
            if partition.kind is None:
                raise UsageError(
                    f"{self._name}: headrace cannot write to this table: the column of its partition {part.name!r} is gone, "
                    "which no writer of format version 1 can leave out: make it format version 2, and remove the partition"
                )
            if partition.column not in self._schema.names:
                raise UsageError(
                    f"{self._name}: headrace cannot write to this table: its partition {part.name!r} is of "
                    f"{partition.column!r}, a field in a column: partition the table by a column that has its values"
                )
            if _is_void_of_required(part, schema):
                raise UsageError(
                    f"{self._name}: headrace cannot write to this table: its partition {part.name!r} is void of "
                    f"{partition.column!r}, which must not be null, and PyIceberg writes no void partition of such a column: "
                    "let the column be null, or make the table format version 2, and remove the partition"
                )
            if not partition.can_be_written:
                raise UsageError(
                    f"{self._name}: headrace cannot write to this table: its partition {part.name!r} is {part.transform} of "
                    f"{partition.kind}"
                )
        _check_names(schema, self._name)
        if self._table.metadata.format_version > 2:
            raise UsageError(f"{self._name}: headrace writes to tables of format version 1 and 2, and this one is newer")

    def check_rewritable(self) -> None:
        """Position deletes of others are applied by the library when files are read.

        Equality deletes it refuses only where their bounds are near a key: rows of files that are written again would be back.
        """
        with _translated(self._name):
            for file in files_of(self._table, ManifestContent.DELETES):
                if file.content == DataFileContent.EQUALITY_DELETES:
                    raise UsageError(
                        f"{self._name}: headrace cannot replace rows of this table: it has equality deletes, which PyIceberg "
                        "does not apply. Let another engine rewrite the table's data files, and remove the deletes"
                    )

    def jobs(self) -> list[str]:
        ending = ".driver"
        names = [name for name in self._properties if name.startswith(_PREFIX) and name.endswith(ending)]
        return sorted(name.removeprefix(_PREFIX).removesuffix(ending) for name in names)

    def marker(self, job: str) -> JobMarker | None:
        found = [self._properties.get(name) for name in JobMarker.names(job)]
        return JobMarker.stored([None if number is None else int(number) for number in found])

    def commit(
        self, job: str, marker: JobMarker, added: Sequence[DataFile], removed: Sequence[TableFile] | None = None
    ) -> None:
        """Tried once: whether to try again is for who knows the marker."""
        properties = {name: str(number) for name, number in zip(JobMarker.names(job), astuple(marker), strict=True)}
        with _translated(self._name):
            transaction = self._table.transaction()
            transaction._apply((), self._unchanged)
            transaction.set_properties(properties)
            update = transaction.update_snapshot(snapshot_properties=properties)
            with update.overwrite() if removed else update.fast_append() as snapshot:
                for old in removed or ():
                    assert isinstance(old, _IcebergFile)
                    snapshot.delete_data_file(old.task.file)
                for file in added:
                    snapshot.append_data_file(self._added(file))
            transaction.commit_transaction()

    @property
    def _unchanged(self) -> tuple[TableRequirement, ...]:
        """What of `version` a snapshot does not ask for by itself."""
        metadata = self._table.metadata
        return (
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        )

    def drop_marker(self, job: str) -> None:
        with _translated(self._name):
            kept = [name for name in JobMarker.names(job) if name in self._properties]
            self._table.transaction().remove_properties(*kept).commit_transaction()

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with _translated(self._name):
            check_columns(self._schema, columns, self._name)
            yield from self._table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader()

    def files_with(self, keys: pa.Table) -> Iterator[TableFile]:
        """Those whose least and greatest values leave space for one of the keys."""
        with _translated(self._name):
            for task in self._table.scan(row_filter=_between(keys)).plan_files():
                yield _IcebergFile(self._table, task, self._schema)

    def widen(self, columns: pa.Schema) -> None:
        with _translated(self._name):
            transaction = self._table.transaction()
            try:
                with transaction.update_schema() as update:
                    update.union_by_name(columns)
            except ValueError as error:  # such as of a name that a partition of another column has
                raise UsageError(f"{self._name}: PyIceberg adds no such columns: {error}") from error
            _check_names(transaction.table_metadata.schema(), self._name)
            transaction.commit_transaction()

    def refers_to(self, paths: Collection[str]) -> bool:
        wanted = {f"{self._location}/{path}" for path in paths}
        with _translated(self._name):
            return any(file.file_path in wanted for file in files_of(self._table, ManifestContent.DATA))

    @property
    def _location(self) -> str:
        return str(self._table.location()).rstrip("/")

    def _added(self, file: DataFile) -> IcebergFile:
        spec = self._table.spec()
        values = [part.stored(text) for (_, text), part in zip(file.partition, self._partitions, strict=True)]
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._location}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **_from_json(file.statistics),
        )


class _IcebergFile(TableFile):
    def __init__(self, table: Table, task: FileScanTask, wanted: pa.Schema) -> None:
        self._table, self.task, self._wanted = table, task, wanted

    def read(self) -> pa.Table:
        return as_now(read_as_it_is(self._table, self.task), self._wanted, self.task.file.file_path)

    def check_removable(self) -> None:
        """The library needs the columns of the partitioning that the file has."""
        schema, file = self._table.schema(), self.task.file
        for at, part in enumerate(self._table.specs()[file.spec_id].fields):
            if why := _not_removable(part, schema, file.partition[at]):
                raise UsageError(f"headrace cannot replace rows of the file {file.file_path!r}: {why}")


def _not_removable(part: PartitionField, schema: Schema, value: object) -> str | None:
    if schema.find_column_name(part.source_id) is None:
        return (
            f"the column of its former partition {part.name!r} is gone, which PyIceberg needs. Let another engine write the "
            "file again"
        )
    if isinstance(part.transform, VoidTransform) and value is not None:
        return (
            f"its void partition {part.name!r} has a value, by which PyIceberg does not find it: let another engine write the "
            "file again"
        )
    if _is_void_of_required(part, schema):
        return (
            f"its partition {part.name!r} is void of a column that must not be null, which PyIceberg does not write: let the "
            "column be null"
        )
    return None


def _is_void_of_required(part: PartitionField, schema: Schema) -> bool:
    """The library gives such a partition the column's requirement, and fails where it writes its nulls, or makes them False."""
    return isinstance(part.transform, VoidTransform) and schema.find_field(part.source_id).required


class _IcebergFiles(FileLayout):
    def __init__(self, table: Table, partitions: tuple[TablePartition, ...]) -> None:
        self._schema, self._properties, self._partitions = table.schema(), table.metadata.properties, partitions

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.column for part in self._partitions))

    def keys(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        return [part.values_of(rows.column(part.column)) for part in self._partitions]

    def partition(self, values: tuple[object, ...]) -> tuple[tuple[str, str | None], ...]:
        return tuple(
            (str(part), None if value is None else str(value)) for part, value in zip(self._partitions, values, strict=True)
        )

    def statistics(self, footer: pq.FileMetaData, measured: Sequence[Measures]) -> str:
        """A bound is that of all row groups, or there is none; the library takes what it finds."""
        plan = arrow_io.compute_statistics_plan(self._schema, self._properties)
        ids = arrow_io.parquet_path_to_id_mapping(self._schema)
        for index in range(len(footer.schema)):
            wanted = plan[ids[footer.schema.column(index).path]]
            if not _has_bounds(footer, index, wanted):
                plan[wanted.field_id] = replace(wanted, mode=arrow_io.MetricsMode(arrow_io.MetricModeTypes.COUNTS))
        found = arrow_io.data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer, stats_columns=plan, parquet_column_mapping=ids
        )
        return _to_json(found.to_serialized_dict())


def _has_bounds(footer: pq.FileMetaData, index: int, wanted: arrow_io.StatisticsCollector) -> bool:
    groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    if not all(map(has_bounds, groups)):
        return False
    texts = [group.max for group in groups if group.num_values and isinstance(group.max, str)]
    # the library rounds a text up to the next code point, and after this one there is none that can be written
    return not any("\ud7ff" in text[: wanted.mode.length] for text in texts)


def _catalog(properties: Mapping[str, str]) -> Catalog:
    return _catalog_of_process(os.getpid(), tuple(sorted(properties.items())))


@functools.lru_cache(maxsize=16)
def _catalog_of_process(_: int, properties: tuple[tuple[str, str], ...]) -> Catalog:
    """Its connections are kept, and are not those of a process that this one was forked from."""
    given = dict(properties)
    catalog = load_catalog(given.pop("name", _CATALOG), **{**given, "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"})
    engine = getattr(catalog, "engine", None)  # of a catalog in a database
    if engine is not None and engine.dialect.name == "postgresql":
        from sqlalchemy import event

        event.listen(engine, "connect", _make_durable)
        engine.dispose()  # of the connections that it has
    return catalog


def _make_durable(connection: Any, _: object) -> None:  # noqa: ANN401 - of any driver
    connection.cursor().execute(DURABLE)
    connection.commit()


def _between(keys: pa.Table) -> BooleanExpression:
    """What every row with one of these keys satisfies; keys whose values the library takes in no expression are left out."""
    found: BooleanExpression = AlwaysTrue()
    for name in keys.column_names:
        if pa.types.is_integer(keys[name].type) or pa.types.is_string(keys[name].type):
            bounds = pc.min_max(keys[name]).as_py()
            low, high = GreaterThanOrEqual(term=name, value=bounds["min"]), LessThanOrEqual(term=name, value=bounds["max"])
            found = And(found, low, high)
    return found


def _to_json(statistics: Mapping[str, Any]) -> str:
    plain = dict(statistics)
    for name in _BOUNDS:
        plain[name] = {key: base64.b64encode(value).decode() for key, value in (plain.get(name) or {}).items()}
    return json.dumps(plain, separators=(",", ":"))


def _from_json(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    for name in _COUNTS:
        found[name] = {int(key): value for key, value in (found.get(name) or {}).items()}
    for name in _BOUNDS:
        found[name] = {int(key): base64.b64decode(value) for key, value in found[name].items()}
    return found


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """What PyIceberg, or the library of a catalog, raises, in our tree. NoSuchTableError is left to who knows what it means."""
    try:
        yield
    except (exceptions.NoSuchTableError, HeadraceError):
        raise
    except (exceptions.CommitFailedException, exceptions.CommitStateUnknownException) as error:
        raise OutdatedError(f"{name}: another process has committed meanwhile: {error}") from error
    except (OSError, exceptions.ServerError, exceptions.ServiceUnavailableError) as error:
        # Lasting, as where another process has removed a file of the table.
        stays = isinstance(error, OSError) and is_lasting(error)
        raise (PeerError if stays else RetriableError)(f"{name}: {error}") from error
    except Exception as error:
        kind = RetriableError if _may_pass(error) else PeerError
        raise kind(f"{name}: {type(error).__name__}: {error}") from error


_PASSING = {
    "sqlalchemy.exc": ("OperationalError", "InterfaceError"),
    "botocore.exceptions": ("HTTPClientError", "ConnectionError"),
    "thrift.transport.TTransport": ("TTransportException",),
}
"""By module of a catalog's library: what it raises where the catalog could not be reached, or was busy for too long."""

_BUSY = frozenset({"ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded"})


def _may_pass(error: Exception) -> bool:
    """Only what is imported can have been raised."""
    libraries = ((sys.modules.get(module), names) for module, names in _PASSING.items())
    if any(library and isinstance(error, tuple(getattr(library, name) for name in names)) for library, names in libraries):
        return True
    answer = getattr(error, "response", None)  # a service's of AWS
    if not isinstance(answer, dict):
        return False
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.get("Error", {}).get("Code") in _BUSY
