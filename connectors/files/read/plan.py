"""What is read of which files, and how: the arguments of the source, and what follows from them."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import pyarrow as pa

from headrace.connectors.base.arguments import at_least_one, names, seconds, text, truth
from headrace.connectors.files.read.columns import BadRecords, Columns, digest_of, partition_schema
from headrace.connectors.files.read.cursor import age_order
from headrace.connectors.files.read.folders import Folder, FoundFile, archive, open_folder
from headrace.connectors.files.read.formats import ReadFormat
from headrace.connectors.files.read.globs import name_glob
from headrace.connectors.files.read.split import FileSplit, shown
from headrace.connectors.files.store import TABLES, given_path, is_local, is_one_store, is_within, shown_address
from headrace.enumerator.errors import BadRecordError, CorruptDataError, HeadraceError, StateError, UsageError

log = logging.getLogger(__name__)

ChangedFiles = Literal["fail", "ignore", "reread"]
Order = Literal["time", "name"]
FormatName = Literal["parquet", "arrow", "avro", "jsonl", "csv", "text"]
_ARCHIVE = "archive:"


@dataclass(eq=False)
class FilePlan:
    """The arguments of a `FileSource`, checked, and the schema once it is known. Picklable."""

    path: str
    format: ReadFormat
    given: pa.Schema | None
    asked: tuple[str, ...] | None
    watch: bool
    pattern: str | None
    order: Order
    max_file_age_s: float
    on_changed_file: ChangedFiles
    fail_on_data_loss: bool
    on_bad_record: BadRecords
    after_read: str | None
    split_bytes: int
    batch_rows: int
    storage_options: Mapping[str, Any] = field(repr=False)
    filesystem: Any = field(default=None, repr=False)
    _inferred: pa.Schema | None = None
    _columns: Columns | None = None

    def __post_init__(self) -> None:
        """Check. Raises UsageError."""
        self.path = self.path if self.filesystem is not None else given_path(self.path)
        self._check()

    def _check(self) -> None:
        for name, kinds in (("order", Order), ("on_changed_file", ChangedFiles), ("on_bad_record", BadRecords)):
            if getattr(self, name) not in get_args(kinds):
                raise UsageError(f"{name} must be one of {', '.join(get_args(kinds))}, not {getattr(self, name)!r}")
        self._check_kinds()
        if self.pattern is not None:
            name_glob("pattern", text("pattern", self.pattern))
        if self.on_changed_file == "reread" and not self.watch:
            raise UsageError("on_changed_file='reread' needs watch=True: a bounded read ends with what it found first")
        if self.on_changed_file == "reread" and self.order == "name":
            raise UsageError("on_changed_file='reread' needs order='time': by names no file is found again")
        if self.storage_options and (self.filesystem is not None or is_local(self.path)):
            raise UsageError(f"{self.path}: storage options are for a URL; got {sorted(self.storage_options)}")
        if self.after_read not in (None, "delete"):
            self._check_archive(str(self.after_read))
        if self.given is not None:
            _ = self.columns

    def _check_kinds(self) -> None:
        for name in ("split_bytes", "batch_rows"):
            at_least_one(name, getattr(self, name))
        for name in ("watch", "fail_on_data_loss"):
            truth(name, getattr(self, name))
        seconds("max_file_age_s", self.max_file_age_s)
        if self.max_file_age_s < 1:
            raise UsageError(f"max_file_age_s must be at least 1, not {self.max_file_age_s!r}")
        if self.after_read is not None:
            text("after_read", self.after_read)
        known = (hasattr(self.filesystem, name) for name in ("invalidate_cache", "get_file_info"))
        if self.filesystem is not None and not any(known):
            raise UsageError(f"filesystem must be an object of fsspec or pyarrow.fs, not {self.filesystem!r}")

    def _check_archive(self, after_read: str) -> None:
        target = after_read.removeprefix(_ARCHIVE)
        if target == after_read or not target:
            raise UsageError(f"after_read must be 'delete' or 'archive:<folder>', not {shown_address(after_read)!r}")
        if self.filesystem is None:
            target = given_path(target)
            if not is_one_store(target, self.path):
                raise UsageError(
                    f"the archive {target} must be in the filesystem of {self.path}: an address with the same scheme and host"
                )
        if is_within(target, self.path):
            raise UsageError(f"the archive {target} must not be in the folder that is read, {self.path}")
        self.after_read = _ARCHIVE + target

    # --- what is read ---------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> Columns:
        """The columns, and how they come to be. Reads files if no schema was given, and none was inferred yet.

        Raises UsageError where there are no files to infer it from, or for columns that there are not.
        """
        if self._columns is None:
            data = self.given if self.given is not None else self._inferred or self._infer()
            self._columns = Columns(data, self.asked, self.on_bad_record)
        return self._columns

    @property
    def pinned_schema(self) -> str | None:
        """The inferred schema as checkpoints have it; None where none was needed yet, or one was given."""
        return None if self._inferred is None else b64encode(self._inferred.serialize()).decode()

    def pin_schema(self, pinned: str | None) -> None:
        """Take the schema that a checkpoint has. Raises StateError if another one was inferred here."""
        if pinned is None or self.given is not None:
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
        return "" if self.given is not None else digest_of(self.columns.data)

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
        except Exception as error:
            if isinstance(error, HeadraceError | MemoryError) and not isinstance(error, CorruptDataError):
                raise
            may_pass = isinstance(error, OSError) and error.errno is not None  # Arrow's own have none
            kind = CorruptDataError if may_pass else BadRecordError
            raise kind(f"{shown(first.path)}: no schema can be inferred: {error}: give the schema") from error
        self._inferred = pa.schema([*(each for each in found if each.name not in keys.names), *keys])
        return self._inferred

    def with_columns(self, columns: Sequence[str]) -> FilePlan:
        """The same, reading only these columns."""
        made = replace(self, asked=names("columns", columns), _columns=None)
        if made._inferred is not None:
            _ = made.columns
        return made

    def selects_name(self, path: str) -> bool:
        """Whether a file of this path is read, by the pattern for names."""
        return is_selected(path, self.pattern)

    def can_cut(self, path: str) -> bool:
        """Whether a file is read in pieces: one that is removed afterwards is not, as then it is finished at once."""
        return self.after_read is None and self.format.can_cut(path)

    def folder(self) -> Folder:
        """The files."""
        return open_folder(self.path, self.storage_options, self.filesystem)

    def refuse_tables(self, folder: Folder) -> None:
        """Raise UsageError for a folder whose files count only if a log in it names them: there are removed ones, too."""
        for name, owner in TABLES.items():
            try:
                folder.find(name)
            except (FileNotFoundError, HeadraceError):
                continue  # what does not answer fails when it is listed
            raise UsageError(
                f"{self.path} is written by {owner}: which files count is in {name}, and others there would be read, too, such "
                "as removed ones or those of failed tasks. Read it as what it is"
            )

    def remove(self, splits: Sequence[FileSplit]) -> None:
        """Archive or delete the files, if that is asked for. What fails is logged, and the file stays.

        So does one that was cut, by a job without `after_read`: whether its other pieces were read is not known.
        """
        if self.after_read is None:
            return
        folder, target = self.folder(), self.after_read.removeprefix(_ARCHIVE)
        archived = open_folder(target, self.storage_options, self.filesystem)
        for path in {split.path for split in splits if not split.is_whole}:
            log.warning("%s was cut into pieces before after_read was given, and stays", shown(path))
        for split in splits:
            if not split.is_whole:
                continue
            try:
                now = folder.find(split.path)
                if now != FoundFile(split.path, split.size, split.modified_ns):
                    log.warning("%s has changed since it was read, and stays", shown(split.path))
                elif self.after_read == "delete":
                    folder.delete(split.path)
                else:
                    archive(folder, now, archived, target)
            except FileNotFoundError:
                pass  # done before
            except HeadraceError as error:
                log.warning("%s was read, and stays where it is: %s", shown(split.path), error)


def is_selected(path: str, pattern: str | None) -> bool:
    """Whether the pattern has the name of this file. None has all."""
    return pattern is None or name_glob("pattern", pattern).fullmatch(path.rsplit("/", 1)[-1]) is not None


def _path(file: FoundFile) -> str:
    return file.path
