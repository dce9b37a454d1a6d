"""`FileSource`: the files of a folder, those that there are or also those that come, each read once."""

from __future__ import annotations

import copy
import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, Self, get_args

import pyarrow as pa

from headrace.connectors.files.formats import FileFormat
from headrace.connectors.files.read.columns import BadRecords, Columns, digest_of, partition_schema, plain_schema
from headrace.connectors.files.read.cursor import age_order
from headrace.connectors.files.read.discovery import FileDiscovery
from headrace.connectors.files.read.folders import Folder, FoundFile, open_folder
from headrace.connectors.files.read.formats import ReadFormat
from headrace.connectors.files.read.lines import Csv
from headrace.connectors.files.read.reader import FileReader
from headrace.connectors.files.read.split import FileSplit, FileSplitSerializer, shown
from headrace.connectors.files.store import is_local, normal_path
from headrace.enumerator.errors import CorruptDataError, HeadraceError, StateError, UsageError
from headrace.enumerator.source import Boundedness, Source

log = logging.getLogger(__name__)

ChangedFiles = Literal["fail", "ignore", "reread"]
Order = Literal["time", "name"]
FormatName = Literal["parquet", "arrow", "avro", "jsonl", "csv", "text"]
_ARCHIVE = "archive:"
_NO_CSV = Csv()


class FileSource(Source[FileSplit]):
    """The files in a folder and below it, each of which is read once: oldest first, or in the order of their names.

    - `path`: a folder or one file: a local path, `file://`, or a URL of any fsspec filesystem (extra `files`).
    - `format`: "parquet" (default), "arrow" (IPC files and streams), "avro" (containers), "jsonl", "csv" or `Csv(...)`, or
      "text", whose lines are the column `value`. Files of the last three may be packed: `.gz`, `.zst`, `.bz2`.
    - `schema`: of the rows; columns are found by name. One that a file lacks is null, narrower numbers are widened, and any
      other type is a bad file. Default: that of the oldest file, or what its first lines suggest, inferred at the first use and
      kept in checkpoints. Where several processes read, and files are removed meanwhile, give it.
    - `columns`: only these are read, in this order; `_metadata` (path, size, modified) must be asked for. Default: all.
    - `watch`: also read files that come later (default False). `discovery_interval_s` (default 10): seconds between listings.
    - `pattern`: only files with such names, as `*.csv` (default: all). Names that start with `_` or `.` are never read, so that
      a file can be written under one and then renamed; neither are empty files.
    - `order`: "time" (default) finds files in the order of their modification times, also one that appears late.
      "name" is for names that sort by time, whole paths compared: nothing is remembered but the last one, and a file
      whose name sorts before it is never read.
    - `max_file_age_s`: how far behind the newest file read an older one may still appear (default 7 days). Files with older
      times are not read any more, except by the first listing. The newest 50,000 are remembered at most, so where more of
      them come within that time it is shorter.
    - `on_changed_file`: what becomes of a file that changes after it was found: "fail" (default) raises DataLossError;
      "ignore" keeps what was read; "reread" reads all of it again, where files are watched.
    - `fail_on_data_loss`: whether a file that is gone before it was read raises DataLossError (default), or is left out.
    - `on_bad_record`: what becomes of a line that is not of the schema, and of a file that cannot be read: "fail" (default)
      raises CorruptDataError; "keep" has nulls, and the columns badValue, badReason and deadLetter when they are asked for;
      "skip" leaves it out, and counts it. A file that is bad in its middle is one bad record, and is not read further.
    - `after_read`: "delete", or "archive:" and a folder of the same filesystem, for files whose rows are durable; such files
      are not split. Default: they stay.
    - `split_bytes`: larger files are read in pieces of at most this size (default 128 MiB), except Avro, packed files and CSV
      with newlines in values. `batch_rows`: rows of a record batch (default 65,536).
    - `storage_options`: for fsspec, such as keys; never shown. `filesystem`: one of fsspec's or pyarrow's in place of a URL.

    Folders named like `day=2024-01-01` are columns. Raises UsageError for what cannot be honoured.
    """

    name = "files"

    def __init__(
        self,
        path: str,
        *,
        format: FormatName | Csv | FileFormat = "parquet",
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        watch: bool = False,
        discovery_interval_s: float = 10.0,
        pattern: str | None = None,
        order: Order = "time",
        max_file_age_s: float = 7 * 86400.0,
        on_changed_file: ChangedFiles = "fail",
        fail_on_data_loss: bool = True,
        on_bad_record: BadRecords = "fail",
        after_read: str | None = None,
        split_bytes: int = 128 << 20,
        batch_rows: int = 65_536,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Any = None,  # noqa: ANN401 - of fsspec or pyarrow
    ) -> None:
        """Raises UsageError as the class says."""
        self.path = path if filesystem is not None else normal_path(path)
        self.format = ReadFormat("csv", format) if isinstance(format, Csv) else ReadFormat(_name(format), _NO_CSV)
        self.watch = watch
        self.discovery_interval_s = discovery_interval_s if watch else None
        self.pattern = pattern
        self.order = order
        self.max_file_age_s = max_file_age_s
        self.on_changed_file = on_changed_file
        self.fail_on_data_loss = fail_on_data_loss
        self.on_bad_record = on_bad_record
        self.after_read = after_read
        self.split_bytes = split_bytes
        self.batch_rows = batch_rows
        self._storage_options = dict(storage_options or {})
        self._filesystem = filesystem
        self._asked = None if columns is None else tuple(columns)
        self._given = None if schema is None else plain_schema(schema)
        self._inferred: pa.Schema | None = None
        self._check()

    def _check(self) -> None:
        for name, kinds in (("order", Order), ("on_changed_file", ChangedFiles), ("on_bad_record", BadRecords)):
            if getattr(self, name) not in get_args(kinds):
                raise UsageError(f"{name} must be one of {', '.join(get_args(kinds))}, not {getattr(self, name)!r}")
        for name in ("split_bytes", "batch_rows", "max_file_age_s"):
            if not getattr(self, name) >= 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.discovery_interval_s is not None and not self.discovery_interval_s > 0:
            raise UsageError(f"discovery_interval_s must be positive seconds, not {self.discovery_interval_s!r}")
        if self.on_changed_file == "reread" and not self.watch:
            raise UsageError("on_changed_file='reread' needs watch=True: a bounded read ends with what it found first")
        if self.on_changed_file == "reread" and self.order == "name":
            raise UsageError("on_changed_file='reread' needs order='time': by names no file is found again")
        if self._storage_options and (self._filesystem is not None or is_local(self.path)):
            raise UsageError(f"{self.path}: storage options are for a URL; got {sorted(self._storage_options)}")
        if self.after_read not in (None, "delete"):
            self._check_archive(str(self.after_read))
        if self._given is not None:
            _ = self.columns

    def _check_archive(self, after_read: str) -> None:
        target = after_read.removeprefix(_ARCHIVE)
        if target == after_read or not target:
            raise UsageError(f"after_read must be 'delete' or 'archive:<folder>', not {after_read!r}")
        if self._filesystem is None:
            target = normal_path(target)
            if target.partition("://")[0] != self.path.partition("://")[0] and not is_local(target) == is_local(self.path):
                raise UsageError(f"the archive {target} must be in the filesystem of {self.path}")
        if f"{target}/".startswith(f"{self.path.rstrip('/')}/"):
            raise UsageError(f"the archive {target} must not be in the folder that is read, {self.path}")
        self.after_read = _ARCHIVE + target

    # --- what is read ---------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:  # known once it is asked for
        """Of the batches. Reads files at the first use, if no schema was given; a copy by pickle then has it, too.

        Raises UsageError where there are no files to infer it from, or for columns that there are not.
        """
        return self.columns.schema

    @property
    def columns(self) -> Columns:
        """The columns, and how they come to be."""
        found = self.__dict__.get("_columns")
        if found is None:
            data = self._given if self._given is not None else self._inferred or self._infer()
            found = self.__dict__["_columns"] = Columns(data, self._asked, self.on_bad_record)
        return found

    @property
    def pinned_schema(self) -> str | None:
        """The inferred schema as checkpoints have it; None where none was needed yet, or one was given."""
        return None if self._inferred is None else b64encode(self._inferred.serialize()).decode()

    def pin_schema(self, pinned: str | None) -> None:
        """Take the schema that a checkpoint has. Raises StateError if another one was inferred here."""
        if pinned is None or self._given is not None:
            return
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(b64decode(pinned, validate=True)))
        except (ValueError, TypeError, OSError) as error:
            raise StateError(f"the schema in a checkpoint of files cannot be read: {error}") from error
        if self._inferred is not None and self._inferred != schema:
            one, other = ({f"{each.name}: {each.type}" for each in found} for found in (self._inferred, schema))
            raise StateError(
                f"{self.path}: the files have another schema than when the checkpoint was made: without "
                f"{', '.join(sorted(other - one)) or 'no column'}, with {', '.join(sorted(one - other)) or 'another order'}. "
                "Give the schema to continue"
            )
        self._inferred = schema

    @property
    def schema_digest(self) -> str:
        """What splits have of an inferred schema."""
        return "" if self._given is not None else digest_of(self.columns.data)

    @property
    def schema_text(self) -> str:
        """For messages."""
        return ", ".join(f"{each.name}: {each.type}" for each in self.columns.data)

    def _infer(self) -> pa.Schema:
        folder = self.folder()
        try:
            files = [file for file in folder.list_files(()) if self.selects_name(file.path)]
        except FileNotFoundError:
            files = []
        if not files:
            raise UsageError(f"{self.path}: there are no files to infer a schema from: give the schema")
        first = min(files, key=age_order if self.order == "time" else _path)
        keys = partition_schema(file.path for file in files)
        try:
            with folder.open(first.path) as file:
                found = self.format.inferred(file, first.path)
        except (HeadraceError, MemoryError):
            raise
        except Exception as error:
            raise CorruptDataError(f"{shown(first.path)}: no schema can be inferred: {error}: give the schema") from error
        self._inferred = pa.schema([*(each for each in found if each.name not in keys.names), *keys])
        return self._inferred

    def with_columns(self, columns: Sequence[str]) -> Self:
        """The same source, reading only these columns."""
        made = copy.copy(self)
        made._asked = tuple(columns)
        made.__dict__.pop("_columns", None)
        if made._given is not None or made._inferred is not None:
            _ = made.columns
        return made

    def selects_name(self, path: str) -> bool:
        """Whether a file of this path is read, by the pattern for names."""
        return self.pattern is None or fnmatchcase(path.rsplit("/", 1)[-1], self.pattern)

    def can_cut(self, path: str) -> bool:
        """Whether a file is read in pieces: one that is removed afterwards is not, as then it is finished at once."""
        return self.after_read is None and self.format.can_cut(path or self.path)

    # --- parts of a source ------------------------------------------------------------------------------------------------

    @property
    def boundedness(self) -> Boundedness:
        """By `watch`."""
        return Boundedness.UNBOUNDED if self.watch else Boundedness.BOUNDED

    @property
    def finite_splits(self) -> bool:
        """Always."""
        return True

    @property
    def split_serializer(self) -> FileSplitSerializer:
        """JSON objects."""
        return FileSplitSerializer()

    def create_discovery(self) -> FileDiscovery:
        """A discovery that lists the folder."""
        return FileDiscovery(self)

    def create_reader(self) -> FileReader:
        """A reader of pieces of files."""
        return FileReader(self)

    def folder(self) -> Folder:
        """The files."""
        return open_folder(self.path, self._storage_options, self._filesystem)

    def splits_finished(self, splits: Sequence[FileSplit]) -> None:
        """Archive or delete the files, if that is asked for. What fails is logged, and the file stays."""
        if self.after_read is None:
            return
        folder = self.folder()
        for split in splits:
            try:
                now = folder.find(split.path)
                if now != FoundFile(split.path, split.size, split.modified_ns):
                    log.warning("%s has changed since it was read, and stays", shown(split.path))
                elif self.after_read == "delete":
                    folder.delete(split.path)
                else:
                    folder.move(split.path, self.after_read.removeprefix(_ARCHIVE))
            except FileNotFoundError:
                pass  # done before
            except HeadraceError as error:
                log.warning("%s was read, and stays where it is: %s", shown(split.path), error)


def _name(format_: Any) -> str:  # noqa: ANN401 - whatever was given
    return str(format_.value) if isinstance(format_, FileFormat) else str(format_)


def _path(file: FoundFile) -> str:
    return file.path
