"""`FileSource`: the files of a folder, those that there are or also those that come, each read once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Literal, Self

import pyarrow as pa

from headrace.connectors.base.arguments import arrow_schema, mapping, names, seconds, text
from headrace.connectors.files.formats import FileFormat
from headrace.connectors.files.read.columns import BadRecords, plain_schema
from headrace.connectors.files.read.cursor import Remembered
from headrace.connectors.files.read.discovery import FileDiscovery
from headrace.connectors.files.read.formats import ReadFormat
from headrace.connectors.files.read.lines import Csv
from headrace.connectors.files.read.plan import ChangedFiles, FilePlan, Order
from headrace.connectors.files.read.reader import FileReader
from headrace.connectors.files.read.split import FileSplit, FileSplitSerializer
from headrace.enumerator.source import Boundedness, JsonObject, Source

FormatName = Literal["parquet", "arrow", "avro", "jsonl", "csv", "text"]
_NO_CSV = Csv()


class FileSource(Source[FileSplit]):
    """The files in a folder and below it, each of which is read once: oldest first, or in the order of their names.

    - `path`: a folder or one file: a local path, `file://`, or a URL of any fsspec filesystem (extra `files`).
    - `format`: "parquet" (default), "arrow" (IPC files and streams), "avro" (containers), "jsonl", "csv" or `Csv(...)`, or
      "text", whose lines are the column `value`. Files of the last three may be packed: `.gz`, `.zst`, `.bz2`.
    - `schema`: of the rows; columns are found by name. One that a file lacks is null, narrower numbers are widened, times get
      the unit, and any other type, a value that would change, a name in another case or with spaces, or none of the columns, or
      of a struct's fields, is a bad file; of JSON such fields are null. Default: that of the oldest file, or what its first
      lines suggest, inferred at the first use and kept in checkpoints. Where several processes read, and files are removed
      meanwhile, give it.
    - `columns`: only these are read, in this order, and checked; all are if badValue, badReason or deadLetter is among them.
      `_metadata` (path, size, modified) must be asked for. Default: all.
    - `watch`: also read files that come later (default False). `discovery_interval_s` (default 10): seconds between listings.
      Where it continues a read without it, what appears with a time before the newest file read is not read.
    - `pattern`: only files with such names, as `*.csv` (default: all), a glob of Hadoop: `?`, `*`, `[a-c]`, `[^a]`, `{a,b}`,
      and `\\` as escape. Names that start with `_` or `.` are never read, so that a file can be written under
      one and then renamed; neither are empty files.
    - `order`: "time" (default) finds files in the order of their modification times, also one that appears late.
      "name" is for names that sort by time, whole paths compared: nothing is remembered but the last one, and a file
      whose name sorts before it is never read.
    - `max_file_age_s`: how far behind the newest file read an older one may still appear (default 7 days). Files with older
      times are not read any more, except by the first listing. The newest 50,000 are remembered at most, so where more of
      them come within that time it is shorter. A file that is forgotten so is read again where it changes.
    - `on_changed_file`: what becomes of a file that changes after it was found, or whose name is used again: "fail" (default)
      raises DataLossError; "ignore" keeps what was read; "reread" reads all of it again, where files are watched.
    - `fail_on_data_loss`: whether a file that is gone before it was read raises DataLossError (default), or is left out. Of a
      bounded read that continues from a checkpoint also one that has changed: what is there is counted.
    - `on_bad_record`: what becomes of a line that is not of the schema, and of a file that cannot be read: "fail" (default)
      raises BadRecordError; "keep" has nulls, and the columns badValue, badReason and deadLetter when they are asked for;
      "skip" leaves it out, and counts it. A file, or piece, that is bad in its middle is one bad record, and ends there.
    - `after_read`: "delete" (also of a file that cannot be read, where that does not fail), or "archive:" and a folder of the
      same filesystem, for files whose rows are durable; such files are not split, and one that already is stays. A name that
      another archived file has gets the time of the file, too. Default: they stay.
    - `time_zone` (default "UTC"): that of times without one in JSON and in names of folders, where the type has zones, or what
      returns it.
    - `split_bytes`: larger files are read in pieces of at most this size (default 128 MiB), except Avro, packed files and CSV
      with newlines in values. `batch_rows`: rows of a record batch (default 65,536).
    - `storage_options`: for fsspec, such as keys; never shown. `filesystem`: one of fsspec's or pyarrow's in place of a URL.

    Folders named like `day=2024-01-01` are columns. Raises UsageError for what cannot be honoured.
    """

    name = "files"

    def __init__(
        self,
        path: str | PathLike[str],
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
        time_zone: str | Callable[[], str] = "UTC",
        split_bytes: int = 128 << 20,
        batch_rows: int = 65_536,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Any = None,  # noqa: ANN401 - of fsspec or pyarrow
    ) -> None:
        """Raises UsageError as the class says."""
        if schema is not None:
            arrow_schema("schema", schema)
        if storage_options is not None:
            mapping("storage_options", storage_options)
        seconds("discovery_interval_s", discovery_interval_s)
        self.discovery_interval_s: float | None = discovery_interval_s if watch else None
        self.plan: FilePlan = FilePlan(
            text("path", fspath(path) if isinstance(path, PathLike) else path),
            ReadFormat("csv", format, time_zone) if isinstance(format, Csv) else ReadFormat(_name(format), _NO_CSV, time_zone),
            None if schema is None else plain_schema(schema),
            None if columns is None else names("columns", columns),
            watch=watch,
            pattern=pattern,
            order=order,
            max_file_age_s=max_file_age_s,
            on_changed_file=on_changed_file,
            fail_on_data_loss=fail_on_data_loss,
            on_bad_record=on_bad_record,
            after_read=after_read,
            split_bytes=split_bytes,
            batch_rows=batch_rows,
            storage_options=dict(storage_options or {}),
            filesystem=filesystem,
        )

    @property
    def schema(self) -> pa.Schema:
        """Of the batches. Reads files at the first use, if no schema was given; a copy by pickle then has it, too.

        Raises UsageError where there are no files to infer it from, or for columns that there are not.
        """
        return self.plan.columns.schema

    def with_columns(self, columns: Sequence[str]) -> Self:
        """The same source, reading only these columns."""
        made = copy.copy(self)
        made.plan = self.plan.with_columns(columns)
        return made

    @property
    def boundedness(self) -> Boundedness:
        """By `watch`."""
        return Boundedness.UNBOUNDED if self.plan.watch else Boundedness.BOUNDED

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
        return FileDiscovery(self.plan)

    def create_reader(self) -> FileReader:
        """A reader of pieces of files."""
        return FileReader(self.plan)

    def on_positions_final(self, cursor: JsonObject | None, splits: Sequence[FileSplit]) -> None:
        """Refuse files that a pattern selects now, and did not when they were found. Raises what listing the folder raises."""
        if cursor is not None:
            self.create_discovery().check_final(cursor)

    def end(self, cursor: JsonObject | None, splits: Sequence[FileSplit]) -> JsonObject:
        """{"newest_modified_ms": when the newest file was modified, None where there was none}."""
        if cursor is None:
            return {"newest_modified_ms": None}
        newest_ms = Remembered.restored(cursor["found"]).newest_ms
        return {"newest_modified_ms": cursor.get("newest_read_ms") if newest_ms is None else newest_ms}

    @property
    def needs_finished(self) -> bool:
        """If `after_read` is given."""
        return self.plan.after_read is not None

    @property
    def publishes(self) -> bool:
        """If `after_read` is given."""
        return self.needs_finished

    def splits_finished(self, splits: Sequence[FileSplit]) -> None:
        """Archive or delete the files, if that is asked for. What fails is logged, and the file stays."""
        self.plan.remove(splits)


def _name(format_: Any) -> str:  # noqa: ANN401 - whatever was given
    return str(format_.value) if isinstance(format_, FileFormat) else str(format_)
