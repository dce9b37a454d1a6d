"""What names the files that a task has written for a table and that no reader sees yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.sink import Attempt, HandleSerializer
from headrace.connectors.tables.changes import Changes
from headrace.enumerator.envelope import readable_version, stored_number, stored_text
from headrace.enumerator.errors import PeerError


@dataclass(frozen=True, slots=True)
class DataFile:
    """A whole Parquet file of `rows` rows and `size` bytes. `path` is relative to the table.

    `partition`: column and value, as the table's log has them. `statistics`: JSON, as the table's log has it.
    """

    path: str
    size: int
    rows: int
    partition: tuple[tuple[str, str | None], ...]
    statistics: str


_NULLABLE = " or null"


@dataclass(frozen=True, slots=True)
class TableHandle:
    """The files of one transaction. `token` distinguishes it from every other; `table` is the id of the table they were written
    for.

    `columns`: name and kind (`kind_of`) of each column, in the files or in their partition values. `partitioning`: the columns
    that the table was partitioned by. `changes`: the files hold staged changes, to be merged into the table; None: its rows.
    """

    attempt: Attempt
    token: str
    table: str
    columns: tuple[tuple[str, str], ...]
    partitioning: tuple[str, ...]
    files: tuple[DataFile, ...]
    changes: Changes | None = None

    @property
    def place(self) -> str:
        return place_of(self.attempt, self.token)


def kind_of(field: pa.Field) -> str:
    """What a column is, by its type, the ids by which a table knows it and its parts (Iceberg), and whether it may be null.

    Another column of the same name and type, as after it was dropped and added again, is of another kind.
    """
    kind, ids = str(field.type), ", ".join(_ids(field))
    return (f"{kind} ({ids})" if ids else kind) + (_NULLABLE if field.nullable else "")


def takes(field: pa.Field, kind: str) -> bool:
    """Whether a column takes what one of this kind has: one that may be null takes what one that may not has, too."""
    return kind in (kind_of(field), kind_of(field).removesuffix(_NULLABLE))


def table_changed(where: str, what: Iterable[str]) -> PeerError:
    """The error for a table that does not take any more what was written for it: `what` are its columns that do not."""
    return PeerError(f"{where}: the table has changed since the files were written ({', '.join(what)}): write the epoch again")


def _ids(field: pa.Field) -> Iterator[str]:
    if found := (field.metadata or {}).get(b"PARQUET:field_id"):
        yield found.decode()
    for part in map(field.type.field, range(field.type.num_fields)):
        yield from _ids(part)


def place_of(attempt: Attempt, token: str) -> str:
    """The name of an attempt's transaction: of the folder of its files, and of the mark that it is open."""
    return f"{attempt.epoch}-{attempt.task}-{attempt.number}-{token}"


def task_of(place: str) -> int:
    return int(place.split("-")[1])


class TableHandleSerializer(HandleSerializer[TableHandle]):
    """Version 1: {"job", "epoch", "task", "number", "token", "table", "columns", "partitioning", "files", "changes"}.

    A column is [name, kind], a file [path, size, rows, [[column, value], ...], statistics]; changes are null, or {"keys",
    "sequence", "change_type"}.
    """

    version = 1

    def serialize(self, handle: TableHandle) -> dict[str, Any]:
        attempt = handle.attempt
        return {
            "job": attempt.job,
            "epoch": attempt.epoch,
            "task": attempt.task,
            "number": attempt.number,
            "token": handle.token,
            "table": handle.table,
            "columns": [list(column) for column in handle.columns],
            "partitioning": list(handle.partitioning),
            "files": [
                [file.path, file.size, file.rows, [list(value) for value in file.partition], file.statistics]
                for file in handle.files
            ],
            "changes": None if handle.changes is None else handle.changes.stored(),
        }

    def deserialize(self, version: int, value: Any) -> TableHandle:  # noqa: ANN401 - any JSON value
        """What `serialize` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        readable_version(version, self.version)
        token = stored_text(value["token"])
        if not token.isalnum():
            raise ValueError(f"not the token of a transaction: {token!r}")
        numbers = (stored_number(value[name]) for name in ("epoch", "task", "number"))
        return TableHandle(
            Attempt(check_job(stored_text(value["job"])), *numbers),
            token,
            stored_text(value["table"]),
            tuple((stored_text(name), stored_text(kind)) for name, kind in value["columns"]),
            tuple(stored_text(name) for name in value["partitioning"]),
            tuple(_file(item) for item in value["files"]),
            None if value["changes"] is None else Changes.from_stored(value["changes"]),
        )


def _file(value: Any) -> DataFile:  # noqa: ANN401 - any JSON value
    path, size, rows, partition, statistics = value
    values = tuple((stored_text(name), None if item is None else stored_text(item)) for name, item in partition)
    return DataFile(stored_text(path), stored_number(size), stored_number(rows), values, stored_text(statistics))
